/* A client that changes its memory while a selection reads it; see hostile.h. */
#include "hostile.h"

#include "emulate.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#define FORBID(begin, bytes) __asan_poison_memory_region(begin, bytes)
#define ALLOW(begin, bytes) __asan_unpoison_memory_region(begin, bytes)
#else
#define FORBID(begin, bytes) ((void)(begin), (void)(bytes))
#define ALLOW(begin, bytes) ((void)(begin), (void)(bytes))
#endif

#define FILLED 0x5c /* beside what may be written */
#define GAP_MAX 4   /* entries between the results of two rows */

/* ---- memory at the edge ---------------------------------------------------------------------- */

static void edge_init(struct inputs_rng *rng, size_t size_bytes, size_t alignment,
                      struct edge *edge)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t inner = (size_bytes + page) / page * page;
    edge->size_bytes = size_bytes;
    edge->pages_bytes = inner;
    char *all = mmap(NULL, inner + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    edge->pages = all == MAP_FAILED ? NULL : all + page;
    if (edge->pages == NULL || mprotect(edge->pages, inner, PROT_READ | PROT_WRITE) != 0) {
        perror("memory of a request");
        exit(2);
    }
    memset(edge->pages, FILLED, inner);
    const bool at_end = inputs_rng_below(rng, 2) == 0;
    edge->at = edge->pages + (at_end ? (inner - size_bytes) / alignment * alignment : 0);
    emulate_lend(edge->at, size_bytes);
    FORBID(edge->pages, (size_t)(edge->at - edge->pages));
    FORBID(edge->at + size_bytes, inner - size_bytes - (size_t)(edge->at - edge->pages));
}

static void edge_fini(struct edge *edge)
{
    if (edge->pages == NULL) {
        return;
    }
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    ALLOW(edge->pages, edge->pages_bytes);
    emulate_take_back(edge->at);
    munmap(edge->pages - page, edge->pages_bytes + 2 * page);
}

static bool is_filled(const char *from, const char *to)
{
    for (const char *at = from; at < to; at++) {
        if (*at != FILLED) {
            return false;
        }
    }
    return true;
}

static bool edge_is_within(const struct edge *edge)
{
    if (edge->pages == NULL) {
        return true;
    }
    const char *end = edge->at + edge->size_bytes, *pages_end = edge->pages + edge->pages_bytes;
    ALLOW(edge->pages, edge->pages_bytes);
    const bool within = is_filled(edge->pages, edge->at) && is_filled(end, pages_end);
    FORBID(edge->pages, (size_t)(edge->at - edge->pages));
    FORBID(end, (size_t)(pages_end - end));
    return within;
}

/* ---- the request ----------------------------------------------------------------------------- */

/* Elements of an array of rows, the last of which ends with its `width`. */
static size_t matrix_elements(const struct topk_args *args, int64_t stride, int32_t width)
{
    return (size_t)(args->num_rows - 1) * (size_t)stride + (size_t)width;
}

static void outputs_init(struct hostile *hostile)
{
    struct topk_args *args = &hostile->args;
    args->index_stride = args->k + (int64_t)inputs_rng_below(&hostile->rng, GAP_MAX + 1);
    edge_init(&hostile->rng, matrix_elements(args, args->index_stride, args->k) * sizeof(int32_t),
              sizeof(int32_t), &hostile->indices);
    args->indices = (int32_t *)(void *)hostile->indices.at;
    if (hostile->spec.values) {
        args->value_stride = args->k + (int64_t)inputs_rng_below(&hostile->rng, GAP_MAX + 1);
        edge_init(&hostile->rng, matrix_elements(args, args->value_stride, args->k) * sizeof(float),
                  sizeof(float), &hostile->values);
        args->values = (float *)(void *)hostile->values.at;
    }
    edge_init(&hostile->rng, sizeof(struct topk_routes), sizeof(uint64_t), &hostile->routes);
    memset(hostile->routes.at, 0, sizeof(struct topk_routes));
    args->routes = (struct topk_routes *)(void *)hostile->routes.at;
}

static void extras_init(struct hostile *hostile)
{
    const struct gpu_spec *spec = &hostile->spec;
    struct topk_args *args = &hostile->args;
    const size_t rows = (size_t)args->num_rows;
    if (spec->pages) {
        const int32_t entries = (spec->inputs.width >> spec->page_size_log2) + 1;
        edge_init(&hostile->rng, rows * (size_t)entries * sizeof(int32_t), sizeof(int32_t),
                  &hostile->page_table);
        int32_t *table = (int32_t *)(void *)hostile->page_table.at;
        inputs_fill_pages(spec->inputs.seed, args->num_rows, entries, entries, table);
        args->page_table = table;
        args->page_table_stride = args->page_table_width = entries;
        args->page_size_log2 = spec->page_size_log2;
    }
    if (spec->row_offsets) {
        edge_init(&hostile->rng, rows * sizeof(int32_t), sizeof(int32_t), &hostile->row_offsets);
        int32_t *offsets = (int32_t *)(void *)hostile->row_offsets.at;
        for (size_t row = 0; row < rows; row++) {
            offsets[row] = (int32_t)(row * 1000003u % 100000000u);
        }
        args->row_offsets = offsets;
    }
}

/* Nothing may depend on what a workspace held before: words that count few or many, or anything. */
static void workspace_fill(struct inputs_rng *rng, const struct edge *edge)
{
    for (size_t at = 0; at + sizeof(uint32_t) <= edge->size_bytes; at += sizeof(uint32_t)) {
        const uint64_t drawn = inputs_rng_next(rng);
        const uint32_t word = (uint32_t)drawn >> (drawn >> 32 & 1 ? 20 : 0);
        memcpy(edge->at + at, &word, sizeof(word));
    }
}

static void *copy_of(const void *memory, size_t size_bytes)
{
    void *copy = malloc(size_bytes);
    if (copy == NULL) {
        printf("out of memory: %zu bytes\n", size_bytes);
        exit(2);
    }
    memcpy(copy, memory, size_bytes);
    return copy;
}

void hostile_init(const struct gpu_spec *spec, const struct topk_plan *plan, uint64_t seed,
                  struct hostile *hostile)
{
    static const uint32_t means[] = {10, 100, 1000, 10000, 100000}, percents[] = {0, 10, 50, 100};
    const struct inputs_spec *inputs = &spec->inputs;
    const size_t element = topk_dtype_bytes(spec->options.dtype);
    memset(hostile, 0, sizeof(*hostile));
    hostile->spec = *spec;
    hostile->spec.inputs.k = spec->k;
    hostile->rng = inputs_rng_of(seed, 0);
    hostile->mean = means[inputs_rng_below(&hostile->rng, 5)];
    hostile->lengths_percent = percents[inputs_rng_below(&hostile->rng, 4)];
    struct topk_args *args = &hostile->args;
    *args = (struct topk_args){.num_rows = inputs->num_rows,
                               .width = inputs->width,
                               .row_stride = inputs->row_stride,
                               .k = spec->k};
    const size_t alignment = spec->alignment_bytes != 0 ? (size_t)spec->alignment_bytes : element;
    edge_init(&hostile->rng, inputs_elements(inputs) * element, alignment, &hostile->scores);
    edge_init(&hostile->rng, (size_t)args->num_rows * sizeof(int32_t), sizeof(int32_t),
              &hostile->lengths);
    int32_t *lengths = (int32_t *)(void *)hostile->lengths.at;
    inputs_fill_lengths(&hostile->spec.inputs, spec->lengths, lengths);
    inputs_fill_typed(&hostile->spec.inputs, spec->options.dtype, lengths, hostile->scores.at);
    args->scores = hostile->scores.at;
    args->lengths = lengths;
    hostile->scores_before = copy_of(hostile->scores.at, hostile->scores.size_bytes);
    hostile->lengths_before = copy_of(lengths, hostile->lengths.size_bytes);
    outputs_init(hostile);
    extras_init(hostile);
    edge_init(&hostile->rng, (size_t)plan->workspace_bytes, 256, &hostile->workspace);
    workspace_fill(&hostile->rng, &hostile->workspace);
    edge_init(&hostile->rng, sizeof(*args), 16, &hostile->descriptor);
    memcpy(hostile->descriptor.at, args, sizeof(*args));
    hostile->d_args = (const struct topk_args *)(void *)hostile->descriptor.at;
}

void hostile_fini(struct hostile *hostile)
{
    struct edge *edges[] = {&hostile->scores, &hostile->lengths,    &hostile->indices,
                            &hostile->values, &hostile->page_table, &hostile->row_offsets,
                            &hostile->routes, &hostile->descriptor, &hostile->workspace};
    for (size_t i = 0; i < sizeof(edges) / sizeof(edges[0]); i++) {
        edge_fini(edges[i]);
    }
    free(hostile->scores_before);
    free(hostile->lengths_before);
}

void hostile_restore(struct hostile *hostile)
{
    memcpy(hostile->scores.at, hostile->scores_before, hostile->scores.size_bytes);
    memcpy(hostile->lengths.at, hostile->lengths_before, hostile->lengths.size_bytes);
    memset(hostile->args.routes, 0, sizeof(*hostile->args.routes));
}

/* Between the results of two rows nothing is written either. */
static bool gaps_are_filled(const struct edge *edge, int64_t stride, const struct topk_args *args)
{
    for (int32_t row = 0; edge->pages != NULL && row + 1 < args->num_rows; row++) {
        const char *next = edge->at + (row + 1) * stride * 4;
        if (!is_filled(next - (stride - args->k) * 4, next)) {
            return false;
        }
    }
    return true;
}

/* What is written as a position is one, or -1, or nothing was written there yet. */
static bool are_positions(const struct topk_args *args)
{
    int32_t untouched;
    memset(&untouched, FILLED, sizeof(untouched));
    for (int32_t row = 0; row < args->num_rows; row++) {
        const int32_t *indices = args->indices + row * args->index_stride;
        for (int32_t i = 0; i < args->k; i++) {
            if (indices[i] != untouched && (indices[i] < -1 || indices[i] >= args->width)) {
                return false;
            }
        }
    }
    return true;
}

bool hostile_is_within(const struct hostile *hostile, char *what)
{
    const struct {
        const char *name;
        const struct edge *edge;
    } edges[] = {
        {"scores", &hostile->scores},         {"lengths", &hostile->lengths},
        {"indices", &hostile->indices},       {"values", &hostile->values},
        {"page table", &hostile->page_table}, {"row offsets", &hostile->row_offsets},
        {"routes", &hostile->routes},         {"descriptor", &hostile->descriptor},
        {"workspace", &hostile->workspace},
    };
    const char *beside = NULL;
    for (size_t i = 0; i < sizeof(edges) / sizeof(edges[0]); i++) {
        beside = edge_is_within(edges[i].edge) ? beside : edges[i].name;
    }
    const struct topk_args *args = &hostile->args;
    if (!gaps_are_filled(&hostile->indices, args->index_stride, args)) {
        beside = "a row of indices";
    }
    if (!gaps_are_filled(&hostile->values, args->value_stride, args)) {
        beside = "a row of values";
    }
    if (beside != NULL) {
        snprintf(what, ORACLE_DETAIL_SIZE, "something was written beside %s", beside);
        return false;
    }
    if (args->page_table == NULL && args->row_offsets == NULL && !are_positions(args)) {
        snprintf(what, ORACLE_DETAIL_SIZE, "no position of its row was written as one");
        return false;
    }
    if (memcmp(hostile->d_args, args, sizeof(*args)) != 0) {
        snprintf(what, ORACLE_DETAIL_SIZE, "the descriptor was written");
        return false;
    }
    return true;
}

/* ---- what it does ---------------------------------------------------------------------------- */

static int32_t draw_length(struct inputs_rng *rng, const struct topk_args *args)
{
    const int32_t edges[] = {0,           1,       args->k, args->k + 1,     args->width - 1,
                             args->width, INT_MIN, INT_MAX, args->width + 1, -1};
    const uint32_t kind = inputs_rng_below(rng, 3);
    if (kind == 0) {
        return (int32_t)(uint32_t)inputs_rng_next(rng);
    }
    return kind == 1 ? (int32_t)inputs_rng_below(rng, (uint32_t)args->width + 1)
                     : edges[inputs_rng_below(rng, sizeof(edges) / sizeof(edges[0]))];
}

/* One length, each another, or all the same. */
static void change_lengths(struct hostile *hostile)
{
    struct inputs_rng *rng = &hostile->rng;
    const struct topk_args *args = &hostile->args;
    int32_t *lengths = (int32_t *)(void *)hostile->lengths.at;
    const uint32_t kind = inputs_rng_below(rng, 4);
    const int32_t length = draw_length(rng, args);
    if (kind == 0) {
        lengths[inputs_rng_below(rng, (uint32_t)args->num_rows)] = length;
        return;
    }
    for (int32_t row = 0; row < args->num_rows; row++) {
        lengths[row] = kind == 1 ? draw_length(rng, args) : length;
    }
}

/* The bits of a score, from which further ones ascend. */
static uint32_t draw_bits(struct inputs_rng *rng, enum topk_dtype dtype)
{
    static const float numbers[] = {0.0f, 1.0f, -1.0f, 3e38f, -3e38f, 1e-40f, 60000.0f, -60000.0f};
    union {
        float number;
        uint32_t bits;
    } score = {.number = numbers[inputs_rng_below(rng, 8)]};
    switch (inputs_rng_below(rng, 6)) {
    case 0:
        score.bits = 0x7fc00000u; /* NaN */
        break;
    case 1:
        score.number = inputs_rng_normal(rng) * 4.0f;
        break;
    case 2:
        score.bits = inputs_rng_below(rng, 2) == 0 ? 0x7f800000u : 0xff800000u; /* infinities */
        break;
    default:
        break;
    }
    if (dtype == TOPK_DTYPE_FLOAT32) {
        return score.bits;
    }
    uint16_t narrow;
    inputs_narrow(dtype, &score.number, 1, &narrow);
    return narrow;
}

/* How many were changed. */
static uint32_t change_scores(struct hostile *hostile)
{
    struct inputs_rng *rng = &hostile->rng;
    const enum topk_dtype dtype = hostile->spec.options.dtype;
    const uint32_t count = (uint32_t)inputs_elements(&hostile->spec.inputs);
    const uint32_t width = (uint32_t)hostile->args.width;
    uint32_t begin = 0, end = count; /* all of them, or: */
    switch (inputs_rng_below(rng, 3)) {
    case 0: /* a row */
        begin = inputs_rng_below(rng, (uint32_t)hostile->args.num_rows) *
                (uint32_t)hostile->args.row_stride;
        end = begin + width;
        break;
    case 1: /* a stretch */
        begin = inputs_rng_below(rng, count);
        end = begin + 1 + inputs_rng_below(rng, count - begin);
        break;
    default:
        break;
    }
    const uint32_t bits = draw_bits(rng, dtype);
    const uint32_t kind = inputs_rng_below(rng, 4); /* all equal, ascending, scattered, mixed */
    const uint32_t other = draw_bits(rng, dtype), every = 1 + inputs_rng_below(rng, 3000);
    for (uint32_t i = begin; i < end; i++) {
        uint32_t score = bits;
        score += kind == 1 ? i - begin : kind == 2 ? (uint32_t)(i * 2654435761u) >> 20 : 0;
        score = kind == 3 && i % every == 0 ? other : score;
        if (dtype == TOPK_DTYPE_FLOAT32) {
            memcpy(hostile->scores.at + 4 * (size_t)i, &score, 4);
        } else {
            memcpy(hostile->scores.at + 2 * (size_t)i, &(uint16_t){(uint16_t)score}, 2);
        }
    }
    return end - begin;
}

void hostile_meddle(void *context)
{
    struct hostile *hostile = context;
    if (hostile->left-- > 0) {
        return;
    }
    hostile->left = inputs_rng_below(&hostile->rng, 2 * hostile->mean);
    if (inputs_rng_below(&hostile->rng, 100) < hostile->lengths_percent) {
        change_lengths(hostile);
    } else { /* what takes time itself is done less often */
        hostile->left += change_scores(hostile) / 8;
    }
}
