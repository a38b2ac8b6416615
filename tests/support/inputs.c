/* The generators of score rows, lengths and page tables: see inputs.h. */
#include "inputs_internal.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const family_names[] = {
#define FAMILY_NAME(name, short_name, text) short_name,
    INPUTS_FAMILY_TABLE(FAMILY_NAME)
#undef FAMILY_NAME
};

static const char *const family_texts[] = {
#define FAMILY_TEXT(name, short_name, text) text,
    INPUTS_FAMILY_TABLE(FAMILY_TEXT)
#undef FAMILY_TEXT
};

static const char *const lengths_names[] = {
#define LENGTHS_NAME(name, short_name, text) short_name,
    INPUTS_LENGTHS_TABLE(LENGTHS_NAME)
#undef LENGTHS_NAME
};

const char *inputs_family_name(enum inputs_family family)
{
    return family_names[family];
}

const char *inputs_family_text(enum inputs_family family)
{
    return family_texts[family];
}

const char *inputs_lengths_name(enum inputs_lengths kind)
{
    return lengths_names[kind];
}

bool inputs_family_parse(const char *name, enum inputs_family *family_p)
{
    for (int f = 0; f < INPUTS_FAMILY_COUNT; f++) {
        if (strcmp(name, family_names[f]) == 0) {
            *family_p = (enum inputs_family)f;
            return true;
        }
    }
    return false;
}

void inputs_describe(const struct inputs_spec *spec, char *text, size_t text_size)
{
    snprintf(text, text_size, "family=%s seed=%llu rows=%d width=%d stride=%lld k=%d",
             family_names[spec->family], (unsigned long long)spec->seed, spec->num_rows,
             spec->width, (long long)spec->row_stride, spec->k);
}

void *inputs_must_alloc(size_t count, size_t size_bytes)
{
    void *memory = calloc(count > 0 ? count : 1, size_bytes);
    if (memory == NULL) {
        fprintf(stderr, "inputs: out of memory for %zu x %zu bytes\n", count, size_bytes);
        abort();
    }
    return memory;
}

/* ---- random numbers (splitmix64) ------------------------------------------------------------ */

uint64_t inputs_rng_next(struct inputs_rng *rng)
{
    uint64_t z = rng->state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

struct inputs_rng inputs_rng_of(uint64_t seed, uint64_t stream)
{
    struct inputs_rng rng = {seed};
    rng.state = inputs_rng_next(&rng) ^ (stream * 0xd1342543de82ef95u);
    inputs_rng_next(&rng);
    return rng;
}

uint32_t inputs_rng_below(struct inputs_rng *rng, uint32_t end)
{
    return (uint32_t)(((inputs_rng_next(rng) >> 32) * end) >> 32);
}

float inputs_rng_uniform(struct inputs_rng *rng)
{
    return (float)(inputs_rng_next(rng) >> 40) * 0x1p-24f;
}

float inputs_rng_normal(struct inputs_rng *rng)
{
    float radius = sqrtf(-2.0f * logf(1.0f - inputs_rng_uniform(rng)));
    return radius * cosf(6.2831853f * inputs_rng_uniform(rng));
}

uint64_t inputs_run_seed(void)
{
    const char *text = getenv("TOPKD_TEST_SEED");
    return text != NULL && *text != '\0' ? strtoull(text, NULL, 0) : 20260917u;
}

/* ---- families ------------------------------------------------------------------------------- */

static float float_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

static float random_sign(struct inputs_rng *rng, float value)
{
    return inputs_rng_below(rng, 2) != 0 ? value : -value;
}

static float random_nan(struct inputs_rng *rng)
{
    uint32_t payload = 1u + inputs_rng_below(rng, 0x7fffffu);
    return float_of_bits((inputs_rng_below(rng, 2) << 31) | 0x7f800000u | payload);
}

static void shuffle(struct inputs_rng *rng, float *row, int32_t width)
{
    for (int32_t i = width - 1; i > 0; i--) {
        uint32_t j = inputs_rng_below(rng, (uint32_t)i + 1);
        float other = row[j];
        row[j] = row[i];
        row[i] = other;
    }
}

/* Puts `count` scores from `draw` at random places of the row (some may fall on one place). */
static void scatter(struct inputs_rng *rng, float *row, int32_t width, int32_t count,
                    float (*draw)(struct inputs_rng *rng))
{
    for (int32_t i = 0; i < count && width > 0; i++) {
        row[inputs_rng_below(rng, (uint32_t)width)] = draw(rng);
    }
}

static void fill_value(float *row, int32_t width, float value)
{
    for (int32_t i = 0; i < width; i++) {
        row[i] = value;
    }
}

static float draw_winner(struct inputs_rng *rng)
{
    return 1.0f + inputs_rng_uniform(rng);
}

static float draw_above_one(struct inputs_rng *rng)
{
    (void)rng;
    return 0x1.000002p0f; /* the float32 after 1 */
}

static float draw_special(struct inputs_rng *rng)
{
    static const float table[] = {INFINITY, -INFINITY, 0.0f,      -0.0f,      FLT_MAX,  -FLT_MAX,
                                  FLT_MIN,  -FLT_MIN,  0x1p-149f, -0x1p-149f, 65520.0f, -65520.0f};
    uint32_t pick = inputs_rng_below(rng, 20);
    if (pick < sizeof(table) / sizeof(table[0])) {
        return table[pick];
    }
    return pick < 15 ? random_nan(rng) : inputs_rng_normal(rng);
}

static float draw_subnormal(struct inputs_rng *rng)
{
    return random_sign(rng, float_of_bits(inputs_rng_below(rng, 0x00800000u)));
}

static float draw_zero(struct inputs_rng *rng)
{
    return random_sign(rng, 0.0f);
}

static float draw_beyond_half(struct inputs_rng *rng)
{
    return random_sign(rng, 60000.0f * expf(inputs_rng_uniform(rng) * 9.7f));
}

static float draw_mostly_nan(struct inputs_rng *rng)
{
    return inputs_rng_below(rng, 100) < 83 ? random_nan(rng) : inputs_rng_normal(rng);
}

static float draw_bits(struct inputs_rng *rng)
{
    return float_of_bits((uint32_t)inputs_rng_next(rng));
}

static float draw_clustered(struct inputs_rng *rng)
{
    return 1.0f + 0.245f * inputs_rng_uniform(rng);
}

static void fill_drawn(struct inputs_rng *rng, float *row, int32_t width,
                       float (*draw)(struct inputs_rng *rng))
{
    for (int32_t i = 0; i < width; i++) {
        row[i] = draw(rng);
    }
}

static void fill_neighbours(struct inputs_rng *rng, int32_t row_idx, float *row, int32_t width)
{
    static const uint32_t starts[] = {0x3f800000u, 0x00000000u, 0xbf800000u, 0x477fe000u};
    uint32_t start = starts[inputs_rng_below(rng, 4)];
    for (int32_t i = 0; i < width; i++) {
        int32_t step = row_idx % 3 == 1 ? width - 1 - i : i;
        row[i] = float_of_bits(start + (uint32_t)step);
    }
    if (row_idx % 3 == 2) {
        shuffle(rng, row, width);
    }
}

static void fill_constant(int32_t row_idx, float *row, int32_t width)
{
    static const float values[] = {-1.0f,    0.0f,    -0.0f,    1.0f,     0x1p-149f,
                                   -FLT_MIN, FLT_MAX, -FLT_MAX, INFINITY, -INFINITY};
    fill_value(row, width, values[row_idx % 10]);
}

static void fill_saw_tooth(struct inputs_rng *rng, float *row, int32_t width)
{
    int32_t period = 16 << inputs_rng_below(rng, 7);
    int32_t phase = (int32_t)inputs_rng_below(rng, (uint32_t)period);
    for (int32_t i = 0; i < width; i++) {
        row[i] = (float)((i + phase) % period) + 0.25f * inputs_rng_uniform(rng);
    }
}

static void fill_one_tile(struct inputs_rng *rng, float *row, int32_t width, int32_t k)
{
    fill_drawn(rng, row, width, inputs_rng_uniform);
    int32_t winners = k < width ? k : width;
    uint32_t start = inputs_rng_below(rng, (uint32_t)(width - winners) + 1);
    for (int32_t i = 0; i < winners; i++) {
        row[start + (uint32_t)i] = 2.0f + inputs_rng_uniform(rng);
    }
}

static void fill_grouped(struct inputs_rng *rng, float *row, int32_t width, int32_t num_values)
{
    for (int32_t i = 0; i < width; i++) {
        int32_t group =
            num_values > 0 ? (int32_t)inputs_rng_below(rng, (uint32_t)num_values) : i / 4;
        row[i] = (float)(group - 3) * 0.125f;
    }
    if (num_values == 0) {
        shuffle(rng, row, width);
    }
}

static void fill_ramp(float *row, int32_t width, float step)
{
    for (int32_t i = 0; i < width; i++) {
        row[i] = 1.0f + (float)i * step;
    }
}

/* Rows with fewer than k scores above a floor value, drawn by `draw`. */
static void fill_floor(struct inputs_rng *rng, float *row, int32_t width, int32_t winners,
                       float floor_value, float (*draw)(struct inputs_rng *rng))
{
    fill_value(row, width, floor_value);
    scatter(rng, row, width, winners, draw);
}

static void fill_family(struct inputs_rng *rng, const struct inputs_spec *spec, int32_t row_idx,
                        float *row)
{
    int32_t width = spec->width, k = spec->k;
    switch (spec->family) {
    case INPUTS_CLUSTERED:
        fill_drawn(rng, row, width, draw_clustered);
        break;
    case INPUTS_NEIGHBOURS:
        fill_neighbours(rng, row_idx, row, width);
        break;
    case INPUTS_ASCENDING:
        fill_ramp(row, width, 1e-6f);
        break;
    case INPUTS_DESCENDING:
        fill_ramp(row, width, -1e-6f);
        break;
    case INPUTS_PLATEAU:
        fill_floor(rng, row, width, 1 + k / 20, -0.5f, draw_winner);
        break;
    case INPUTS_RELU_ZEROS:
        fill_floor(rng, row, width, k / 2, 0.0f, draw_winner);
        break;
    case INPUTS_ONE_BIT:
        fill_floor(rng, row, width, k / 2, 1.0f, draw_above_one);
        break;
    case INPUTS_CONSTANT:
        fill_constant(row_idx, row, width);
        break;
    case INPUTS_TIES:
        fill_grouped(rng, row, width, 0);
        break;
    case INPUTS_FEW_VALUES:
        fill_grouped(rng, row, width, 2 + row_idx % 8);
        break;
    case INPUTS_NAN_MOST:
        fill_drawn(rng, row, width, draw_mostly_nan);
        break;
    case INPUTS_NAN_ALL:
        fill_drawn(rng, row, width, row_idx % 2 != 0 ? random_nan : inputs_rng_normal);
        break;
    case INPUTS_SPECIALS:
        fill_drawn(rng, row, width, draw_special);
        break;
    case INPUTS_MINUS_INF:
        fill_floor(rng, row, width, k / 3, -INFINITY, inputs_rng_normal);
        scatter(rng, row, width, 1 + k / 7, random_nan);
        break;
    case INPUTS_SIGNED_ZEROS:
        fill_drawn(rng, row, width, draw_zero);
        scatter(rng, row, width, k / 2, draw_winner);
        scatter(rng, row, width, width / 3, draw_subnormal);
        break;
    case INPUTS_DENORMAL:
        fill_drawn(rng, row, width, draw_subnormal);
        break;
    case INPUTS_HALF_RANGE:
        fill_drawn(rng, row, width, draw_beyond_half);
        break;
    case INPUTS_EXTREMES:
        fill_floor(rng, row, width, k / 2, -FLT_MAX, inputs_rng_normal);
        row[inputs_rng_below(rng, (uint32_t)width)] = FLT_MAX;
        break;
    case INPUTS_FEW_FINITE:
        fill_floor(rng, row, width, k / 4, -INFINITY, inputs_rng_normal);
        break;
    case INPUTS_ONE_TILE:
        fill_one_tile(rng, row, width, k);
        break;
    case INPUTS_SAW_TOOTH:
        fill_saw_tooth(rng, row, width);
        break;
    case INPUTS_BITS:
        fill_drawn(rng, row, width, draw_bits);
        break;
    default:
        fill_drawn(rng, row, width, inputs_rng_normal);
        break;
    }
}

struct inputs_spec inputs_spec_of_row(const struct inputs_spec *spec, int32_t row_idx)
{
    struct inputs_spec chosen = *spec;
    if (chosen.family == INPUTS_MIXED) {
        chosen.family = (enum inputs_family)((spec->seed + (uint64_t)row_idx) % INPUTS_MIXED);
    }
    return chosen;
}

static void fill_row(const struct inputs_spec *spec, int32_t row_idx, const float *keys, float *row)
{
    if (spec->width <= 0) {
        return;
    }
    struct inputs_rng rng = inputs_rng_of(spec->seed, (uint64_t)row_idx);
    if (spec->family == INPUTS_INDEXER) {
        inputs_indexer_row(spec, row_idx, keys, row);
    } else {
        fill_family(&rng, spec, row_idx, row);
    }
}

void inputs_fill_row(const struct inputs_spec *spec, int32_t row_idx, float *row)
{
    struct inputs_spec chosen = inputs_spec_of_row(spec, row_idx);
    float *keys = NULL;
    if (chosen.family == INPUTS_INDEXER) {
        keys = inputs_indexer_keys_create(chosen.seed, chosen.width);
    }
    fill_row(&chosen, row_idx, keys, row);
    free(keys);
}

size_t inputs_elements(const struct inputs_spec *spec)
{
    if (spec->num_rows < 1) {
        return 0;
    }
    return (size_t)(spec->num_rows - 1) * (size_t)spec->row_stride + (size_t)spec->width;
}

void inputs_fill(const struct inputs_spec *spec, float *scores)
{
    float *keys = NULL;
    for (int32_t r = 0; r < spec->num_rows; r++) {
        struct inputs_spec chosen = inputs_spec_of_row(spec, r);
        float *row = scores + (int64_t)r * spec->row_stride;
        if (chosen.family == INPUTS_INDEXER && keys == NULL) {
            keys = inputs_indexer_keys_create(chosen.seed, chosen.width);
        }
        fill_row(&chosen, r, keys, row);
        for (int64_t i = spec->width; i < spec->row_stride && r + 1 < spec->num_rows; i++) {
            row[i] = INFINITY;
        }
    }
    free(keys);
}

/* ---- lengths and pages ---------------------------------------------------------------------- */

static int32_t edge_length(struct inputs_rng *rng, int32_t width, int32_t k)
{
    const int32_t edges[] = {INT32_MIN, -4,        -3,    -1,       0,         1,
                             2,         k - 1,     k,     k + 1,    width / 2, width - 1,
                             width,     width + 1, 2 * k, INT32_MAX};
    return edges[inputs_rng_below(rng, sizeof(edges) / sizeof(edges[0]))];
}

void inputs_fill_lengths(const struct inputs_spec *spec, enum inputs_lengths kind, int32_t *lengths)
{
    struct inputs_rng rng = inputs_rng_of(spec->seed, 0x6c656e);
    for (int32_t r = 0; r < spec->num_rows; r++) {
        int32_t back = spec->num_rows - 1 - r;
        switch (kind) {
        case INPUTS_LENGTHS_CAUSAL:
            lengths[r] = back < spec->width ? spec->width - back : 0;
            break;
        case INPUTS_LENGTHS_RAGGED:
            lengths[r] = (int32_t)inputs_rng_below(&rng, (uint32_t)spec->width + 1);
            break;
        case INPUTS_LENGTHS_EDGES:
            lengths[r] = edge_length(&rng, spec->width, spec->k);
            break;
        case INPUTS_LENGTHS_NEAR_K:
            lengths[r] = spec->k + 1 - r % (spec->k + 2);
            break;
        default:
            lengths[r] = spec->width;
            break;
        }
    }
}

void inputs_poison_tails(const struct inputs_spec *spec, const int32_t *lengths, float *scores)
{
    for (int32_t r = 0; r < spec->num_rows; r++) {
        float *row = scores + (int64_t)r * spec->row_stride;
        for (int32_t i = lengths[r] > 0 ? lengths[r] : 0; i < spec->width; i++) {
            row[i] = INFINITY;
        }
    }
}

void inputs_fill_pages(uint64_t seed, int32_t num_rows, int32_t page_table_width, int64_t stride,
                       int32_t *page_table)
{
    for (int32_t r = 0; r < num_rows; r++) {
        struct inputs_rng rng = inputs_rng_of(seed, (uint64_t)r);
        int32_t *row = page_table + (int64_t)r * stride;
        for (int32_t i = 0; i < page_table_width; i++) { /* insert page i at a random place */
            uint32_t j = inputs_rng_below(&rng, (uint32_t)i + 1);
            if (j != (uint32_t)i) {
                row[i] = row[j];
            }
            row[j] = r * 3 + i;
        }
    }
}
