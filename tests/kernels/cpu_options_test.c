/* Every combination of options, determinism, and shapes drawn at random. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "trial.h"

static void every_combination_of_options(void **state)
{
    (void)state;
    for (int f = 0; f < INPUTS_FAMILY_COUNT; f++) {
        for (int mask = 0; mask < 3 * 2 * 2 * 2 * 2; mask++) {
            struct trial trial = trial_of((enum inputs_family)f, 5, 1500, 200);
            trial.lengths = (enum inputs_lengths)(mask % INPUTS_LENGTHS_COUNT);
            trial.options.order = (enum topk_order)(mask % 3);
            trial.options.ties = (enum topk_ties)(mask / 3 % 2);
            trial.options.dtype = (enum topk_dtype)((f + mask / 6) % TOPK_DTYPE_COUNT);
            trial.with_values = mask / 6 % 2 != 0;
            trial.with_offsets = mask / 12 % 2 != 0;
            trial.with_pages = mask / 24 != 0;
            trial.page_size_log2 = (uint32_t)f % 9;
            trial_run_all(&trial_pools, &trial, NULL);
        }
    }
}

/* Long rows too, where the result comes through the sample and the sort of many. */
static void every_option_on_long_rows(void **state)
{
    (void)state;
    for (int mask = 0; mask < 12; mask++) {
        struct trial trial = trial_of(INPUTS_MIXED, 23, 20000, 2048);
        trial.spec.seed += (uint64_t)mask;
        trial.options.order = (enum topk_order)(mask % 3);
        trial.options.ties = (enum topk_ties)(mask / 3 % 2);
        trial.with_values = true;
        trial.with_offsets = mask / 6 != 0;
        trial.with_pages = true;
        trial.page_size_log2 = 6;
        trial_run_all(&trial_pools, &trial, NULL);
    }
}

static uint64_t hash(const void *bytes, size_t size)
{
    uint64_t value = 0xcbf29ce484222325u; /* FNV-1a */
    for (size_t i = 0; i < size; i++) {
        value = (value ^ ((const unsigned char *)bytes)[i]) * 0x100000001b3u;
    }
    return value;
}

/* The unique answer on every instruction set, and the same bytes a thousand times. */
static void a_thousand_runs_give_one_hash(void **state)
{
    (void)state;
    enum { ROWS = 24, WIDTH = 9000, K = 128 };
    struct inputs_spec spec = {INPUTS_MIXED, inputs_run_seed(), ROWS, WIDTH, WIDTH, K};
    float *scores = malloc(sizeof(*scores) * ROWS * WIDTH);
    int32_t *indices = malloc(sizeof(*indices) * ROWS * K);
    int32_t *expected = malloc(sizeof(*expected) * ROWS * K);
    assert_true(scores != NULL && indices != NULL && expected != NULL);
    inputs_fill(&spec, scores);
    struct topk_options options = {.order = TOPK_ORDER_INDEX, .ties = TOPK_TIES_LOWEST};
    struct topk_args args = {.scores = scores,
                             .row_stride = WIDTH,
                             .indices = indices,
                             .index_stride = K,
                             .num_rows = ROWS,
                             .width = WIDTH,
                             .length_all = WIDTH,
                             .k = K};
    for (int32_t r = 0; r < ROWS; r++) {
        struct oracle_row row = oracle_row_of(&args, &options, r);
        oracle_select_row(&row, expected + r * K, NULL);
    }
    uint64_t wanted = hash(expected, sizeof(*expected) * ROWS * K);
    for (int i = 0; i < trial_pools.num; i++) {
        int num_runs = trial_is_thread_sanitized() ? 30 : trial_is_sanitized() ? 100 : 1000;
        for (int run = 0; run < num_runs; run++) {
            memset(indices, 0xee, sizeof(*indices) * ROWS * K);
            assert_int_equal(topk_cpu_select(trial_pools.cpu[i], &args, &options, NULL, NULL),
                             TOPK_OK);
            if (hash(indices, sizeof(*indices) * ROWS * K) != wanted) {
                fail_msg("isa %s, run %d: other bytes", topk_cpu_isa(trial_pools.cpu[i]), run);
            }
        }
    }
    free(scores);
    free(indices);
    free(expected);
}

/* ---- random trials ----------------------------------------------------------------------------
 */

/* Sizes spread evenly over the orders of magnitude, 1 ... end. */
static int32_t random_size(struct inputs_rng *rng, int bits_max)
{
    uint32_t end = 1u << (1u + inputs_rng_below(rng, (uint32_t)bits_max));
    return 1 + (int32_t)inputs_rng_below(rng, end);
}

static struct trial random_trial(uint64_t seed)
{
    struct inputs_rng rng = inputs_rng_of(seed, 77);
    struct trial trial = {0};
    trial.spec.family = (enum inputs_family)inputs_rng_below(&rng, INPUTS_FAMILY_COUNT);
    trial.spec.seed = seed;
    trial.spec.width = random_size(&rng, 16);
    trial.spec.k = random_size(&rng, 12);
    if (inputs_rng_below(&rng, 50) == 0) {
        trial.spec.k = (int32_t)TOPK_K_MAX - (int32_t)inputs_rng_below(&rng, 100);
    }
    int32_t rows_max = 200000 / trial.spec.width + 1;
    trial.spec.num_rows =
        1 + (int32_t)inputs_rng_below(&rng, (uint32_t)(rows_max < 40 ? rows_max : 40));
    trial.spec.row_stride = trial.spec.width + (int32_t)inputs_rng_below(&rng, 70);
    trial.lengths = (enum inputs_lengths)inputs_rng_below(&rng, INPUTS_LENGTHS_COUNT);
    trial.options.order = (enum topk_order)inputs_rng_below(&rng, 3);
    trial.options.ties = (enum topk_ties)inputs_rng_below(&rng, 2);
    trial.options.dtype = (enum topk_dtype)inputs_rng_below(&rng, TOPK_DTYPE_COUNT);
    trial.with_values = inputs_rng_below(&rng, 2) != 0;
    trial.with_offsets = inputs_rng_below(&rng, 2) != 0;
    trial.with_pages = inputs_rng_below(&rng, 3) == 0;
    trial.page_size_log2 = inputs_rng_below(&rng, 12);
    trial.tail_elements = (int32_t)inputs_rng_below(&rng, 20);
    return trial;
}

static void random_trials(void **state)
{
    (void)state;
    uint64_t seed = inputs_run_seed();
    int count = trial_is_thread_sanitized() ? 100 : trial_is_sanitized() ? 300 : 3000;
    print_message("random trials: TOPKD_TEST_SEED=%llu, %d of them\n", (unsigned long long)seed,
                  count);
    for (int i = 0; i < count; i++) {
        struct trial trial = random_trial(seed + (uint64_t)i);
        trial_run_all(&trial_pools, &trial, NULL);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_combination_of_options),
        cmocka_unit_test(every_option_on_long_rows),
        cmocka_unit_test(a_thousand_runs_give_one_hash),
        cmocka_unit_test(random_trials),
    };
    return cmocka_run_group_tests(tests, trial_pools_open, trial_pools_close);
}
