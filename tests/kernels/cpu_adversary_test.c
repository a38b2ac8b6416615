/*
 * Rows built with knowledge of where the sample looks, so that its proposal is as wrong as can be:
 * every route behind the certified one is taken, stays exact, and stays within its reads.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cpu/propose.h"
#include "trial.h"

#define WIDTH 131072
#define ROWS 3
#define K 2048

static struct trial_isas isas;
static float *scores; /* [ROWS][WIDTH] */

/* Calls `place` for every sampled position of every row, with its number in the sample. */
static void at_sampled(float (*value)(int32_t sampled, struct inputs_rng *rng))
{
    for (int32_t r = 0; r < ROWS; r++) {
        struct inputs_rng rng = inputs_rng_of(inputs_run_seed(), 900u + (uint64_t)r);
        struct topk_row row = {scores + (int64_t)r * WIDTH, TOPK_DTYPE_FLOAT32};
        struct topk_sample_view view = topk_sample_view_of(row, WIDTH);
        uint32_t random = topk_sample_seed(r);
        for (int32_t u = 0; u < view.num_units; u++) {
            int32_t position = topk_sample_place(&view, u, &random);
            for (int32_t i = 0; i < TOPK_SAMPLE_UNIT; i++) {
                float *score = scores + (int64_t)r * WIDTH + position + i;
                float chosen = value(u * TOPK_SAMPLE_UNIT + i, &rng);
                *score = chosen == 0.0f ? *score : chosen; /* 0 leaves it as it is */
            }
        }
    }
}

static void fill_between(float low, float step)
{
    struct inputs_rng rng = inputs_rng_of(inputs_run_seed(), 800);
    for (int64_t i = 0; i < (int64_t)ROWS * WIDTH; i++) {
        scores[i] = low + (step != 0.0f ? step * (float)(i % WIDTH) : inputs_rng_uniform(&rng));
    }
}

static struct topk_routes select_exactly(void)
{
    struct topk_routes routes = {0};
    for (int i = 0; i < isas.num; i++) {
        for (int order = 0; order < 3; order++) {
            int32_t *indices = malloc(sizeof(*indices) * ROWS * K);
            assert_non_null(indices);
            struct topk_args args = {.scores = scores,
                                     .row_stride = WIDTH,
                                     .indices = indices,
                                     .index_stride = K,
                                     .routes = &routes,
                                     .num_rows = ROWS,
                                     .width = WIDTH,
                                     .length_all = WIDTH,
                                     .k = K};
            struct topk_options options = {.order = (enum topk_order)order,
                                           .ties = TOPK_TIES_LOWEST};
            char detail[ORACLE_DETAIL_SIZE];
            assert_int_equal(topk_cpu_select(isas.cpu[i], &args, &options, NULL, detail), TOPK_OK);
            if (!oracle_check(&args, &options, detail)) {
                fail_msg("isa %s: %s", topk_cpu_isa(isas.cpu[i]), detail);
            }
            free(indices);
        }
    }
    return routes;
}

static double reads_of(const struct topk_routes *routes)
{
    return (double)routes->scores_read / ((double)ROWS * WIDTH * 3 * isas.num);
}

static uint64_t all_rows(void)
{
    return (uint64_t)(ROWS * 3 * isas.num);
}

/* ---- what the sample is made to see ------------------------------------------------------------
 */

static float a_few_winners(int32_t sampled, struct inputs_rng *rng)
{
    return sampled < 80 ? 2.0f + inputs_rng_uniform(rng) : 0.0f;
}

static float only_winners(int32_t sampled, struct inputs_rng *rng)
{
    (void)sampled;
    return 2.0f + inputs_rng_uniform(rng);
}

static float only_losers(int32_t sampled, struct inputs_rng *rng)
{
    (void)sampled;
    return -1.0f - inputs_rng_uniform(rng);
}

static float one_plateau(int32_t sampled, struct inputs_rng *rng)
{
    (void)sampled, (void)rng;
    return 0.5f;
}

static float nothing_but_nan(int32_t sampled, struct inputs_rng *rng)
{
    (void)sampled, (void)rng;
    return __builtin_nanf("");
}

static void an_underfill_is_repaired_by_the_band(void **state)
{
    (void)state;
    fill_between(0.0f, 0.0f);
    at_sampled(a_few_winners);
    struct topk_routes routes = select_exactly();
    assert_int_equal(routes.band, all_rows());
    assert_true(reads_of(&routes) < 2.1);
}

static void a_worthless_sample_is_recovered_from(void **state)
{
    (void)state;
    fill_between(0.0f, 0.0f);
    at_sampled(only_winners);
    struct topk_routes routes = select_exactly();
    assert_int_equal(routes.recovery, all_rows());
    assert_true(reads_of(&routes) < 3.1);
}

static void a_hidden_crowd_spills_and_needs_one_read(void **state)
{
    (void)state;
    fill_between(0.0f, 0.0f);
    at_sampled(only_losers);
    struct topk_routes routes = select_exactly();
    assert_int_equal(routes.spill, all_rows());
    assert_true(reads_of(&routes) < 1.1);
}

/* The worst order for a bounded list: each score beats all before it. */
static void a_hidden_ramp_spills_and_needs_one_read(void **state)
{
    (void)state;
    fill_between(0.0f, 1e-5f);
    at_sampled(only_losers);
    struct topk_routes routes = select_exactly();
    assert_int_equal(routes.spill, all_rows());
    assert_true(reads_of(&routes) < 1.1);
}

static void a_plateau_in_the_sample_alone(void **state)
{
    (void)state;
    fill_between(0.0f, 0.0f);
    at_sampled(one_plateau);
    select_exactly();
}

static void a_sample_of_nan(void **state)
{
    (void)state;
    fill_between(0.0f, 0.0f);
    at_sampled(nothing_but_nan);
    struct topk_routes routes = select_exactly();
    assert_int_equal(routes.spill, all_rows());
}

/* Everything but the sample is NaN: fewer numbers than a pass expects, found where none is left. */
static void numbers_in_the_sample_alone(void **state)
{
    (void)state;
    for (int64_t i = 0; i < (int64_t)ROWS * WIDTH; i++) {
        scores[i] = __builtin_nanf("");
    }
    at_sampled(a_few_winners);
    struct topk_routes routes = select_exactly();
    assert_true(reads_of(&routes) < 3.2);
}

static int open_all(void **state)
{
    (void)state;
    trial_isas_open(&isas, 2);
    scores = calloc((size_t)ROWS * WIDTH, sizeof(*scores));
    return scores == NULL;
}

static int close_all(void **state)
{
    (void)state;
    free(scores);
    trial_isas_close(&isas);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_underfill_is_repaired_by_the_band),
        cmocka_unit_test(a_worthless_sample_is_recovered_from),
        cmocka_unit_test(a_hidden_crowd_spills_and_needs_one_read),
        cmocka_unit_test(a_hidden_ramp_spills_and_needs_one_read),
        cmocka_unit_test(a_plateau_in_the_sample_alone),
        cmocka_unit_test(a_sample_of_nan),
        cmocka_unit_test(numbers_in_the_sample_alone),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
