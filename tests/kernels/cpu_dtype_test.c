/*
 * Scores of 16 bits: every bit pattern once, on every instruction set, judged by the oracle; known
 * conversions; each family of inputs in each type; and that they cost no more reads than float32.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cpu/score.h"
#include "trial.h"

#define NUM_PATTERNS 65536

/* What a pattern is worth, written by hand. */
static void known_numbers(void **state)
{
    (void)state;
    static const struct {
        enum topk_dtype dtype;
        uint16_t pattern;
        uint32_t number;
    } known[] = {
        {TOPK_DTYPE_FLOAT16, 0x0000, 0x00000000}, /* 0 */
        {TOPK_DTYPE_FLOAT16, 0x8000, 0x80000000}, /* -0 */
        {TOPK_DTYPE_FLOAT16, 0x0001, 0x33800000}, /* 2^-24, the least subnormal */
        {TOPK_DTYPE_FLOAT16, 0x83ff, 0xb87fc000}, /* the largest one, negative */
        {TOPK_DTYPE_FLOAT16, 0x0400, 0x38800000}, /* 2^-14, the least normal number */
        {TOPK_DTYPE_FLOAT16, 0x3c00, 0x3f800000}, /* 1 */
        {TOPK_DTYPE_FLOAT16, 0xc248, 0xc0490000}, /* -3.140625 */
        {TOPK_DTYPE_FLOAT16, 0x7bff, 0x477fe000}, /* 65504, the largest */
        {TOPK_DTYPE_FLOAT16, 0x7c00, 0x7f800000}, /* inf */
        {TOPK_DTYPE_FLOAT16, 0xfc00, 0xff800000}, /* -inf */
        {TOPK_DTYPE_FLOAT16, 0x7e01, 0x7fc02000}, /* NaN with a payload */
        {TOPK_DTYPE_FLOAT16, 0xfc01, 0xffc02000}, /* a signalling one becomes quiet */
        {TOPK_DTYPE_BFLOAT16, 0x8000, 0x80000000}, {TOPK_DTYPE_BFLOAT16, 0x0001, 0x00010000},
        {TOPK_DTYPE_BFLOAT16, 0xc049, 0xc0490000}, {TOPK_DTYPE_BFLOAT16, 0x7f7f, 0x7f7f0000},
        {TOPK_DTYPE_BFLOAT16, 0xff80, 0xff800000}, {TOPK_DTYPE_BFLOAT16, 0x7f81, 0x7f810000},
    };
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        for (int s = 0; s < trial_pools.num; s++) {
            int32_t index = -1;
            uint32_t number = 0;
            struct topk_args args = {.scores = &known[i].pattern,
                                     .indices = &index,
                                     .values = (float *)(void *)&number,
                                     .num_rows = 1,
                                     .width = 1,
                                     .length_all = 1,
                                     .k = 1};
            struct topk_options options = {.dtype = known[i].dtype};
            char detail[TOPK_DETAIL_SIZE] = "";
            assert_int_equal(topk_cpu_select(trial_pools.cpu[s], &args, &options, NULL, detail),
                             TOPK_OK);
            assert_int_equal(index, 0);
            assert_int_equal(number, known[i].number);
            float judged = oracle_score(&known[i].pattern, known[i].dtype, 0);
            assert_memory_equal(&judged, &number, sizeof(number));
        }
    }
}

/* At and between every two neighbouring patterns. */
static void a_bound_finds_its_pattern(void **state)
{
    (void)state;
    for (int d = TOPK_DTYPE_FLOAT16; d < TOPK_DTYPE_COUNT; d++) {
        const enum topk_dtype dtype = (enum topk_dtype)d;
        for (uint16_t pattern = 1; pattern <= topk_half_inf(dtype); pattern++) {
            uint16_t lower = (uint16_t)(pattern - 1);
            float number = oracle_score(&pattern, dtype, 0);
            float above_lower = nextafterf(oracle_score(&lower, dtype, 0), INFINITY);
            assert_int_equal(topk_half_floor(number, dtype), pattern);
            assert_int_equal(topk_half_floor(above_lower, dtype), pattern);
            assert_int_equal(topk_half_floor(nextafterf(number, 0.0f), dtype),
                             nextafterf(number, 0.0f) > 0.0f ? pattern : 0);
        }
    }
}

/* The rounding of the generators loses nothing that a type can hold. */
static void every_pattern_survives_narrowing(void **state)
{
    (void)state;
    for (int d = TOPK_DTYPE_FLOAT16; d < TOPK_DTYPE_COUNT; d++) {
        for (uint32_t pattern = 0; pattern < NUM_PATTERNS; pattern++) {
            uint16_t bits = (uint16_t)pattern, back = 0;
            float number = oracle_score(&bits, (enum topk_dtype)d, 0);
            inputs_narrow((enum topk_dtype)d, &number, 1, &back);
            bool quieted = d == TOPK_DTYPE_FLOAT16 && (bits & 0x7c00u) == 0x7c00u &&
                           (bits & 0x3ffu) != 0 && (bits & 0x200u) == 0;
            assert_int_equal(back, quieted ? bits | 0x200u : bits);
        }
    }
}

/* A row of a family has `wanted` among its patterns, and none of a magnitude above `most`. */
static void check_patterns(enum topk_dtype dtype, enum inputs_family family, uint16_t most,
                           uint16_t wanted)
{
    enum { WIDTH = 4096 };
    static uint16_t scores[WIDTH];
    const struct inputs_spec spec = {.family = family,
                                     .seed = inputs_run_seed(),
                                     .num_rows = 1,
                                     .width = WIDTH,
                                     .row_stride = WIDTH,
                                     .k = 2048};
    int count = 0;
    inputs_fill_typed(&spec, dtype, NULL, scores);
    for (int i = 0; i < WIDTH; i++) {
        assert_in_range(scores[i] & 0x7fff, 0, most);
        count += scores[i] == wanted ? 1 : 0;
    }
    assert_in_range(count, 1, WIDTH - 1);
}

/* Nor what a family is about: the edges of float32 become those of the type. */
static void edges_are_those_of_the_type(void **state)
{
    (void)state;
    for (int d = TOPK_DTYPE_FLOAT16; d < TOPK_DTYPE_COUNT; d++) {
        const enum topk_dtype dtype = (enum topk_dtype)d;
        const uint16_t inf = topk_half_inf(dtype), one = d == TOPK_DTYPE_FLOAT16 ? 0x3c00 : 0x3f80;
        const uint16_t subnormal = d == TOPK_DTYPE_FLOAT16 ? 0x03ff : 0x007f;
        check_patterns(dtype, INPUTS_DENORMAL, subnormal, (uint16_t)(subnormal - 1));
        check_patterns(dtype, INPUTS_ONE_BIT, (uint16_t)(one + 1), (uint16_t)(one + 1));
        check_patterns(dtype, INPUTS_EXTREMES, (uint16_t)(inf - 1), (uint16_t)(inf - 1));
        check_patterns(dtype, INPUTS_SPECIALS, 0x7fff, (uint16_t)(subnormal + 1));
        check_patterns(dtype, INPUTS_SPECIALS, 0x7fff, 0x8001);
    }
}

/* All 65536 patterns in random order: every boundary between two of them, every written value. */
static void every_pattern_in_one_row(void **state)
{
    (void)state;
    static const int32_t ks[] = {1, 17, 2048, 16384, 0}; /* 0: as many as there are numbers */
    uint16_t *patterns = malloc(sizeof(*patterns) * NUM_PATTERNS);
    int32_t *indices = malloc(sizeof(*indices) * TOPK_K_MAX);
    float *values = malloc(sizeof(*values) * TOPK_K_MAX);
    assert_true(patterns != NULL && indices != NULL && values != NULL);
    struct inputs_rng rng = inputs_rng_of(inputs_run_seed(), 16);
    for (uint32_t i = 0; i < NUM_PATTERNS; i++) { /* insert pattern i at a random place */
        uint32_t j = inputs_rng_below(&rng, i + 1);
        patterns[i] = patterns[j];
        patterns[j] = (uint16_t)i;
    }
    for (int run = 0; run < 2 * 3 * 5; run += trial_is_sanitized() ? 2 : 1) {
        int32_t k = ks[run % 5], width = NUM_PATTERNS;
        if (k == 0) { /* a part of the row, most of it selected */
            k = (int32_t)TOPK_K_MAX;
            width = k + 1 + (int32_t)inputs_rng_below(&rng, 999);
        }
        struct topk_options options = {.order = (enum topk_order)(run / 5 % 3),
                                       .ties = TOPK_TIES_LOWEST,
                                       .dtype = (enum topk_dtype)(1 + run / 15)};
        struct topk_args args = {.scores = patterns,
                                 .indices = indices,
                                 .values = values,
                                 .num_rows = 1,
                                 .width = width,
                                 .length_all = width,
                                 .k = k};
        for (int s = 0; s < trial_pools.num; s++) {
            char detail[ORACLE_DETAIL_SIZE] = "";
            assert_int_equal(topk_cpu_select(trial_pools.cpu[s], &args, &options, NULL, detail),
                             TOPK_OK);
            if (!oracle_check(&args, &options, detail)) {
                fail_msg("%s, %s, order %d: %s", topk_cpu_isa(trial_pools.cpu[s]),
                         topk_dtype_name(options.dtype), (int)options.order, detail);
            }
        }
    }
    free(patterns);
    free(indices);
    free(values);
}

/* Shapes that reach every phase, at every alignment of 2 bytes. */
static void every_family_in_each_type(void **state)
{
    (void)state;
    static const int32_t shapes[][3] = {
        {6, 37, 5}, {5, 1100, 700}, {3, 8321, 2048}, {3, 33000, 1024}, {1, 140000, 2048},
    };
    for (int f = 0; f < INPUTS_FAMILY_COUNT; f += trial_is_sanitized() ? 3 : 1) {
        for (int run = 0; run < 10; run++) {
            const int32_t *shape = shapes[run / 2];
            struct trial trial = trial_of((enum inputs_family)f, shape[0], shape[1], shape[2]);
            trial.spec.row_stride += f % 4;
            trial.tail_elements = f % 33;
            trial.lengths = run / 2 == 1 ? INPUTS_LENGTHS_RAGGED : INPUTS_LENGTHS_FULL;
            trial.options.dtype = (enum topk_dtype)(1 + run % 2);
            trial.options.order = (enum topk_order)((f + run) % 3);
            trial.options.ties = (enum topk_ties)(run / 2 % 2);
            trial.with_values = true;
            trial_run_all(&trial_pools, &trial, NULL);
        }
    }
}

/* 16 bits mean more ties; they must not mean more reads. */
static void one_read_of_long_rows(void **state)
{
    (void)state;
    for (int f = 0; f < INPUTS_BITS; f += trial_is_sanitized() ? 5 : 1) {
        for (int d = TOPK_DTYPE_FLOAT16; d < TOPK_DTYPE_COUNT; d++) {
            struct topk_routes routes = {0};
            struct trial trial = trial_of((enum inputs_family)f, 4, 131072, 2048);
            trial.options.dtype = (enum topk_dtype)d;
            trial_run_all(&trial_pools, &trial, &routes);
            double reads = (double)routes.scores_read / (4.0 * 131072.0 * trial_pools.num);
            bool lacks_numbers = f == INPUTS_NAN_ALL; /* NaN fill such a row in a second read */
            if (reads > (lacks_numbers ? 4.0 : 1.3)) {
                fail_msg("%s as %s: %.2f reads of a row", inputs_family_name((enum inputs_family)f),
                         topk_dtype_name((enum topk_dtype)d), reads);
            }
        }
    }
}

static int open_pools(void **state)
{
    (void)state;
    trial_isas_open(&trial_pools, 4); /* enough threads that a long row is cut into parts */
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_numbers),
        cmocka_unit_test(a_bound_finds_its_pattern),
        cmocka_unit_test(every_pattern_survives_narrowing),
        cmocka_unit_test(edges_are_those_of_the_type),
        cmocka_unit_test(every_pattern_in_one_row),
        cmocka_unit_test(every_family_in_each_type),
        cmocka_unit_test(one_read_of_long_rows),
    };
    return cmocka_run_group_tests(tests, open_pools, trial_pools_close);
}
