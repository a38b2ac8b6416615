/*
 * Score values that broke other selectors (clustered, tied, constant, NaN, infinite, denormal ...),
 * each as a whole family, on every instruction set this processor has.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "trial.h"

/* Rows of the larger sweeps: the thread sanitizer makes each score thirty times as dear. */
static int32_t rows_of(int32_t num_rows)
{
    return trial_is_thread_sanitized() ? (num_rows + 7) / 8 : num_rows;
}

/* Shapes that reach every phase: shorter than K, direct, sampled, and long enough for raises. */
static const struct {
    int32_t num_rows, width, k;
} shapes[] = {
    {6, 8, 3},        {5, 100, 7},      {4, 2500, 2048},   {5, 8320, 2048},  {4, 16384, 512},
    {3, 16385, 2048}, {3, 33000, 1024}, {2, 131072, 2048}, {2, 70001, 4096}, {2, 90000, 16384},
};

static void run_family(enum inputs_family family)
{
    size_t count = sizeof(shapes) / sizeof(shapes[0]);
    for (size_t s = 0; s < count; s++) {
        struct trial trial = trial_of(family, shapes[s].num_rows, shapes[s].width, shapes[s].k);
        /* Both kinds of ties; thinned out, one and the other in turn. */
        int begin = trial_is_thread_sanitized() ? (int)(s + (size_t)family) % 2 : 0;
        int end = trial_is_thread_sanitized() ? begin + 1 : 2;
        for (int seed = begin; seed < end; seed++) {
            trial.spec.seed += 1;
            trial.options.ties = seed == 0 ? TOPK_TIES_ANY : TOPK_TIES_LOWEST;
            trial.options.order = (enum topk_order)((s + (size_t)seed) % 3);
            trial.with_values = true;
            trial_run_all(&trial_pools, &trial, NULL);
        }
    }
}

#define FAMILY_TEST(name, short_name, text)                                                        \
    static void exact_on_##name(void **state)                                                      \
    {                                                                                              \
        (void)state;                                                                               \
        run_family(name);                                                                          \
    }
INPUTS_FAMILY_TABLE(FAMILY_TEST)
#undef FAMILY_TEST

/* The published shapes where a coarse key put thousands of scores in one bin. */
static void clustered_batches_lose_nothing(void **state)
{
    (void)state;
    const int32_t ks[] = {512, 1024, 2048};
    for (size_t i = 0; i < 3; i++) {
        for (int32_t width = 16384; width <= 16385; width++) {
            struct trial trial = trial_of(INPUTS_CLUSTERED, rows_of(33), width, ks[i]);
            trial_run_all(&trial_pools, &trial, NULL);
        }
    }
}

static void clustered_long_rows_do_not_overflow(void **state)
{
    (void)state;
    struct trial trial = trial_of(INPUTS_CLUSTERED, rows_of(64), 65536, 2048);
    trial_run_all(&trial_pools, &trial, NULL);
    trial = trial_of(INPUTS_CLUSTERED, 2, 1 << 20, 2048);
    trial_run_all(&trial_pools, &trial, NULL);
}

static void neighbouring_floats_are_told_apart(void **state)
{
    (void)state;
    struct trial trial = trial_of(INPUTS_NEIGHBOURS, 6, 65536, 1024);
    trial.options.order = TOPK_ORDER_VALUE;
    trial_run_all(&trial_pools, &trial, NULL);
}

static void monotonic_rows_of_low_contrast(void **state)
{
    (void)state;
    const int32_t widths[] = {16384, 16448, 32768};
    for (size_t i = 0; i < 3; i++) {
        struct trial rising = trial_of(INPUTS_ASCENDING, 2, widths[i], 2048);
        struct trial falling = trial_of(INPUTS_DESCENDING, 2, widths[i], 2048);
        trial_run_all(&trial_pools, &rising, NULL);
        trial_run_all(&trial_pools, &falling, NULL);
    }
}

static void a_constant_million_takes_the_lowest(void **state)
{
    (void)state;
    struct trial trial = trial_of(INPUTS_CONSTANT, 1, 1 << 20, 2048);
    trial.options.ties = TOPK_TIES_LOWEST;
    trial_run_all(&trial_pools, &trial, NULL);
}

static void few_finite_scores_in_long_rows(void **state)
{
    (void)state;
    struct trial trial = trial_of(INPUTS_FEW_FINITE, 4, 200000, 2048);
    trial_run_all(&trial_pools, &trial, NULL);
}

/* ---- answers known by heart -------------------------------------------------------------------
 */

static void expect(const float *scores, int32_t width, int32_t k, const int32_t *expected)
{
    for (int i = 0; i < trial_pools.num; i++) {
        int32_t indices[8];
        struct topk_args args = {.scores = scores,
                                 .row_stride = width,
                                 .indices = indices,
                                 .index_stride = k,
                                 .num_rows = 1,
                                 .width = width,
                                 .length_all = width,
                                 .k = k};
        struct topk_options options = {.order = TOPK_ORDER_VALUE, .ties = TOPK_TIES_LOWEST};
        char detail[TOPK_DETAIL_SIZE];
        assert_int_equal(topk_cpu_select(trial_pools.cpu[i], &args, &options, NULL, detail),
                         TOPK_OK);
        assert_memory_equal(indices, expected, (size_t)k * sizeof(*expected));
    }
}

static void known_answers(void **state)
{
    (void)state;
    const float inf = __builtin_inff(), nan = __builtin_nanf("");
    const float same[] = {-1, -1, -1, -1}, five[] = {1, 2, 5, 4, 5};
    const float one[] = {0.5f, -inf, -inf, -inf, -inf};
    const float mixed[] = {nan, -0.0f, 0.0f, -nan, inf, -inf, nan};
    const int32_t same_order[] = {0, 1, 2, 3}, five_order[] = {2, 4, 3, 1, 0};
    const int32_t one_order[] = {0, 1, 2}, mixed_order[] = {4, 1, 2, 5, 0, 3, 6};
    const int32_t beyond[] = {0, 1, 2, 3, -1, -1};
    for (int32_t k = 1; k <= 4; k++) {
        expect(same, 4, k, same_order);
    }
    expect(same, 4, 6, beyond);
    for (int32_t k = 1; k <= 5; k++) {
        expect(five, 5, k, five_order);
    }
    expect(one, 5, 3, one_order);
    for (int32_t k = 1; k <= 7; k++) {
        expect(mixed, 7, k, mixed_order);
    }
}

/* ---- the promise about time, in scores read ----------------------------------------------------
 */

/* Constant, tied, clustered and sorted rows must not cost more reads than random ones. */
static void one_read_whatever_the_values(void **state)
{
    (void)state;
    const enum inputs_family families[] = {
        INPUTS_NORMAL,     INPUTS_CLUSTERED,  INPUTS_NEIGHBOURS, INPUTS_ASCENDING,
        INPUTS_DESCENDING, INPUTS_PLATEAU,    INPUTS_RELU_ZEROS, INPUTS_CONSTANT,
        INPUTS_TIES,       INPUTS_FEW_VALUES, INPUTS_NAN_MOST,   INPUTS_SIGNED_ZEROS,
        INPUTS_DENORMAL,   INPUTS_EXTREMES,   INPUTS_FEW_FINITE, INPUTS_ONE_TILE,
        INPUTS_SAW_TOOTH,  INPUTS_MINUS_INF,
    };
    const int32_t rows = rows_of(8);
    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++) {
        struct topk_routes routes = {0};
        struct trial trial = trial_of(families[i], rows, 131072, 2048);
        trial_run_all(&trial_pools, &trial, &routes);
        double reads = (double)routes.scores_read / (rows * 131072.0 * trial_pools.num);
        if (reads > 1.2) {
            fail_msg("%s: %.2f reads of a row", inputs_family_name(families[i]), reads);
        }
    }
}

static void at_most_four_reads_of_any_row(void **state)
{
    (void)state;
    for (int f = 0; f < INPUTS_FAMILY_COUNT; f++) {
        struct topk_routes routes = {0};
        const int32_t rows = rows_of(8);
        struct trial trial = trial_of((enum inputs_family)f, rows, 40000, 1000);
        trial_run_all(&trial_pools, &trial, &routes);
        assert_true(routes.scores_read <= 4u * (unsigned)rows * 40000u * (unsigned)trial_pools.num);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define FAMILY_ENTRY(name, short_name, text) cmocka_unit_test(exact_on_##name),
        INPUTS_FAMILY_TABLE(FAMILY_ENTRY)
#undef FAMILY_ENTRY
            cmocka_unit_test(clustered_batches_lose_nothing),
        cmocka_unit_test(clustered_long_rows_do_not_overflow),
        cmocka_unit_test(neighbouring_floats_are_told_apart),
        cmocka_unit_test(monotonic_rows_of_low_contrast),
        cmocka_unit_test(a_constant_million_takes_the_lowest),
        cmocka_unit_test(few_finite_scores_in_long_rows),
        cmocka_unit_test(known_answers),
        cmocka_unit_test(one_read_whatever_the_values),
        cmocka_unit_test(at_most_four_reads_of_any_row),
    };
    return cmocka_run_group_tests(tests, trial_pools_open, trial_pools_close);
}
