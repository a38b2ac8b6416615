#include "trial.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#define CANARY 0x5ca1ab1e /* a value that no result holds */
#define INDEX_GAP 3       /* canaries between output rows */

/* Scores in a mapping of their own that ends at a forbidden page. */
struct fenced_scores {
    void *mapping;
    size_t mapping_bytes, readable_bytes;
    void *scores;
};

struct outputs {
    int32_t *indices; /* rows of k + INDEX_GAP, one more gap in front */
    float *values;
    int32_t *lengths, *offsets, *pages;
    int32_t page_table_width;
};

bool trial_is_thread_sanitized(void)
{
#if defined(__SANITIZE_THREAD__)
    return true;
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
    return true;
#else
    return false;
#endif
#else
    return false;
#endif
}

bool trial_is_sanitized(void)
{
#if defined(__SANITIZE_ADDRESS__)
    return true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
    return true;
#else
    return trial_is_thread_sanitized();
#endif
#else
    return trial_is_thread_sanitized();
#endif
}

struct topk_cpu *trial_cpu_create(uint32_t num_threads)
{
    struct topk_cpu_config config = {.num_threads = num_threads};
    struct topk_cpu *cpu = NULL;
    char detail[TOPK_DETAIL_SIZE] = "";
    if (topk_cpu_create(&config, &cpu, detail) != TOPK_OK) {
        fail_msg("create: %s", detail);
    }
    return cpu;
}

void trial_isas_open(struct trial_isas *isas, uint32_t num_threads)
{
    static const char *const names[TRIAL_ISAS_MAX] = {"portable", "avx2", "avx512"};
    char detail[TOPK_DETAIL_SIZE];
    isas->num = 0;
    for (int i = 0; i < TRIAL_ISAS_MAX; i++) {
        struct topk_cpu_config config = {.num_threads = num_threads, .isa = names[i]};
        enum topk_status status = topk_cpu_create(&config, &isas->cpu[isas->num], detail);
        if (status == TOPK_OK) {
            isas->num++;
            print_message("instruction set %s: runs\n", names[i]);
        } else {
            assert_int_equal(status, TOPK_E_UNSUPPORTED);
            print_message("instruction set %s: NOT RUN, %s\n", names[i], detail);
        }
    }
    assert_true(isas->num >= 1);
}

void trial_isas_close(struct trial_isas *isas)
{
    for (int i = 0; i < isas->num; i++) {
        topk_cpu_destroy(isas->cpu[i]);
    }
}

struct trial_isas trial_pools;

int trial_pools_open(void **state)
{
    (void)state;
    trial_isas_open(&trial_pools, 2);
    return 0;
}

int trial_pools_close(void **state)
{
    (void)state;
    trial_isas_close(&trial_pools);
    return 0;
}

struct trial trial_of(enum inputs_family family, int32_t num_rows, int32_t width, int32_t k)
{
    return (struct trial){
        .spec = {.family = family,
                 .seed = inputs_run_seed(),
                 .num_rows = num_rows,
                 .width = width,
                 .row_stride = width,
                 .k = k},
    };
}

static void describe(const struct topk_cpu *cpu, const struct trial *trial, char *text, size_t size)
{
    char spec[256];
    inputs_describe(&trial->spec, spec, sizeof(spec));
    snprintf(text, size,
             "isa=%s %s dtype=%s lengths=%s order=%d ties=%d values=%d offsets=%d pages=%d/%u "
             "tail=%d",
             topk_cpu_isa(cpu), spec, topk_dtype_name(trial->options.dtype),
             inputs_lengths_name(trial->lengths), (int)trial->options.order,
             (int)trial->options.ties, trial->with_values, trial->with_offsets, trial->with_pages,
             trial->page_size_log2, trial->tail_elements);
}

static void *must_alloc(size_t count, size_t size_bytes)
{
    void *memory = calloc(count > 0 ? count : 1, size_bytes);
    assert_non_null(memory);
    return memory;
}

static struct fenced_scores fence_scores(const struct trial *trial)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t elements = inputs_elements(&trial->spec) + (size_t)trial->tail_elements;
    struct fenced_scores fenced = {0};
    size_t score_bytes = topk_dtype_bytes(trial->options.dtype);
    fenced.readable_bytes = (elements * score_bytes + page - 1) / page * page + page;
    fenced.mapping_bytes = fenced.readable_bytes + page;
    fenced.mapping = mmap(NULL, fenced.mapping_bytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(fenced.mapping, MAP_FAILED);
    char *end = (char *)fenced.mapping + fenced.readable_bytes;
    assert_int_equal(mprotect(end, page, PROT_NONE), 0);
    fenced.scores = end - elements * score_bytes;
    /* Taken at once by a selector that reads too far. */
    const struct inputs_spec tail = {.family = INPUTS_NORMAL,
                                     .width = trial->tail_elements,
                                     .row_stride = trial->tail_elements,
                                     .num_rows = 1};
    inputs_fill_typed(&tail, trial->options.dtype, &(int32_t){0},
                      end - (size_t)trial->tail_elements * score_bytes);
    return fenced;
}

static void fill_outputs(const struct trial *trial, struct outputs *outputs)
{
    const struct inputs_spec *spec = &trial->spec;
    size_t rows = (size_t)spec->num_rows;
    size_t slots = rows * (size_t)(spec->k + INDEX_GAP) + INDEX_GAP;
    outputs->indices = must_alloc(slots, sizeof(int32_t));
    outputs->values = must_alloc(slots, sizeof(float));
    for (size_t i = 0; i < slots; i++) {
        outputs->indices[i] = CANARY;
        memcpy(&outputs->values[i], &(int32_t){CANARY}, sizeof(float));
    }
    outputs->lengths = must_alloc(rows, sizeof(int32_t));
    inputs_fill_lengths(spec, trial->lengths, outputs->lengths);
    outputs->offsets = must_alloc(rows, sizeof(int32_t));
    for (int32_t r = 0; r < spec->num_rows; r++) {
        outputs->offsets[r] = r * 1000003 - 17;
    }
    int64_t page = (int64_t)1 << trial->page_size_log2;
    outputs->page_table_width = (int32_t)((spec->width + page - 1) / page);
    outputs->pages = must_alloc(rows * (size_t)outputs->page_table_width, sizeof(int32_t));
    inputs_fill_pages(spec->seed, spec->num_rows, outputs->page_table_width,
                      outputs->page_table_width, outputs->pages);
}

static void free_outputs(struct outputs *outputs)
{
    free(outputs->indices);
    free(outputs->values);
    free(outputs->lengths);
    free(outputs->offsets);
    free(outputs->pages);
}

static struct topk_args args_of(const struct trial *trial, const void *scores,
                                const struct outputs *outputs, struct topk_routes *routes)
{
    const struct inputs_spec *spec = &trial->spec;
    return (struct topk_args){
        .scores = scores,
        .row_stride = spec->row_stride,
        .lengths = outputs->lengths,
        .indices = outputs->indices + INDEX_GAP,
        .index_stride = spec->k + INDEX_GAP,
        .values = trial->with_values ? outputs->values + INDEX_GAP : NULL,
        .value_stride = spec->k + INDEX_GAP,
        .page_table = trial->with_pages ? outputs->pages : NULL,
        .page_table_stride = outputs->page_table_width,
        .row_offsets = trial->with_offsets ? outputs->offsets : NULL,
        .routes = routes,
        .num_rows = spec->num_rows,
        .width = spec->width,
        .k = spec->k,
        .page_table_width = outputs->page_table_width,
        .page_size_log2 = trial->page_size_log2,
    };
}

/* Nothing but the k slots of each row may have been written. */
static bool canaries_live(const struct trial *trial, const struct outputs *outputs)
{
    int64_t stride = trial->spec.k + INDEX_GAP;
    for (int32_t r = -1; r < trial->spec.num_rows; r++) {
        for (int64_t i = 0; i < INDEX_GAP; i++) {
            int64_t slot = r < 0 ? i : INDEX_GAP + r * stride + trial->spec.k + i;
            int32_t value_bits;
            memcpy(&value_bits, &outputs->values[slot], sizeof(value_bits));
            if (outputs->indices[slot] != CANARY || value_bits != CANARY) {
                return false;
            }
        }
    }
    return true;
}

static void check_routes(const struct trial *trial, const struct topk_routes *routes)
{
    uint64_t rows = routes->copied + routes->direct + routes->certified + routes->band +
                    routes->recovery + routes->spill;
    assert_int_equal(rows, trial->spec.num_rows); /* each row took exactly one route */
}

static void add_routes(struct topk_routes *total, const struct topk_routes *part)
{
    total->copied += part->copied;
    total->direct += part->direct;
    total->certified += part->certified;
    total->band += part->band;
    total->recovery += part->recovery;
    total->spill += part->spill;
    total->clamped += part->clamped;
    total->scores_read += part->scores_read;
}

static void select_and_check(struct topk_cpu *cpu, const struct trial *trial,
                             const struct fenced_scores *fenced, struct topk_routes *routes)
{
    struct outputs outputs;
    struct topk_routes taken = {0};
    char detail[ORACLE_DETAIL_SIZE] = "", text[512];
    fill_outputs(trial, &outputs);
    struct topk_args args = args_of(trial, fenced->scores, &outputs, &taken);
    describe(cpu, trial, text, sizeof(text));
    enum topk_status status = topk_cpu_select(cpu, &args, &trial->options, NULL, detail);
    if (status != TOPK_OK) {
        fail_msg("%s\n  answered %s: %s", text, topk_strerror(status), detail);
    }
    if (!oracle_check(&args, &trial->options, detail)) {
        fail_msg("%s\n  %s", text, detail);
    }
    if (!canaries_live(trial, &outputs)) {
        fail_msg("%s\n  wrote outside the k slots of a row", text);
    }
    check_routes(trial, &taken);
    if (routes != NULL) {
        add_routes(routes, &taken);
    }
    free_outputs(&outputs);
}

static void run_on(const struct trial_isas *isas, const struct trial *trial,
                   struct topk_routes *routes)
{
    struct fenced_scores fenced = fence_scores(trial);
    int32_t *lengths = must_alloc((size_t)trial->spec.num_rows, sizeof(*lengths));
    inputs_fill_lengths(&trial->spec, trial->lengths, lengths);
    inputs_fill_typed(&trial->spec, trial->options.dtype, lengths, fenced.scores);
    free(lengths);
    assert_int_equal(mprotect(fenced.mapping, fenced.readable_bytes, PROT_READ), 0);
    for (int i = 0; i < isas->num; i++) {
        select_and_check(isas->cpu[i], trial, &fenced, routes);
    }
    munmap(fenced.mapping, fenced.mapping_bytes);
}

void trial_run(struct topk_cpu *cpu, const struct trial *trial, struct topk_routes *routes)
{
    struct trial_isas one = {.cpu = {cpu}, .num = 1};
    run_on(&one, trial, routes);
}

void trial_run_all(const struct trial_isas *isas, const struct trial *trial,
                   struct topk_routes *routes)
{
    run_on(isas, trial, routes);
}
