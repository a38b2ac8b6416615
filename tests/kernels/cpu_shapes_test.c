/* Lengths, strides, alignments, K, page tables, and matrices of more than 2^32 elements. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "trial.h"

/* ---- lengths ----------------------------------------------------------------------------------
 */

static void select_lengths(const int32_t *lengths, int32_t num_rows, int32_t width, int32_t k,
                           uint64_t clamped)
{
    struct inputs_spec spec = {INPUTS_NORMAL, inputs_run_seed(), num_rows, width, width, k};
    float *scores = malloc(sizeof(*scores) * inputs_elements(&spec));
    int32_t *indices = malloc(sizeof(*indices) * (size_t)num_rows * (size_t)k);
    assert_non_null(scores);
    assert_non_null(indices);
    inputs_fill(&spec, scores);
    inputs_poison_tails(&spec, lengths, scores);
    for (int i = 0; i < trial_pools.num; i++) {
        struct topk_routes routes = {0};
        struct topk_args args = {.scores = scores,
                                 .row_stride = width,
                                 .lengths = lengths,
                                 .indices = indices,
                                 .index_stride = k,
                                 .routes = &routes,
                                 .num_rows = num_rows,
                                 .width = width,
                                 .k = k};
        struct topk_options options = {.order = TOPK_ORDER_ANY, .ties = TOPK_TIES_ANY};
        char detail[ORACLE_DETAIL_SIZE];
        assert_int_equal(topk_cpu_select(trial_pools.cpu[i], &args, &options, NULL, detail),
                         TOPK_OK);
        if (!oracle_check(&args, &options, detail)) {
            fail_msg("isa %s: %s", topk_cpu_isa(trial_pools.cpu[i]), detail);
        }
        assert_int_equal(routes.clamped, clamped);
    }
    free(scores);
    free(indices);
}

#define SELECT_LENGTHS(width, k, clamped, ...)                                                     \
    do {                                                                                           \
        const int32_t lengths[] = {__VA_ARGS__};                                                   \
        select_lengths(lengths, (int32_t)(sizeof(lengths) / sizeof(lengths[0])), width, k,         \
                       clamped);                                                                   \
    } while (0)

static void negative_and_oversized_lengths_are_clamped(void **state)
{
    (void)state;
    SELECT_LENGTHS(16384, 2048, 1, 16384, 9000, 2048, 1, 16384, 16384, -1, 0);
    SELECT_LENGTHS(64, 16, 4, -4, -3, -2, -1, 0, 1);
    SELECT_LENGTHS(1000, 2048, 3, INT32_MIN, INT32_MAX, 1001, 1000, 999);
    SELECT_LENGTHS(4096, 2048, 0, 2047, 2048, 2049);
    SELECT_LENGTHS(8192, 1, 0, 0, 1, 2);
}

static void lengths_far_apart_in_one_batch(void **state)
{
    (void)state;
    SELECT_LENGTHS(131072, 2048, 0, 1, 2047, 2049, 57345);
    SELECT_LENGTHS(131072, 2048, 0, 40000, 1000, 40000);
    SELECT_LENGTHS(131072, 2048, 0, 4096, 4096);
    SELECT_LENGTHS(131072, 300, 0, 8192, 8193, 4096, 4097, 4095);
}

static void ragged_batches_of_every_family(void **state)
{
    (void)state;
    for (int f = 0; f < INPUTS_FAMILY_COUNT; f++) {
        for (int kind = 0; kind < INPUTS_LENGTHS_COUNT; kind++) {
            struct trial trial = trial_of((enum inputs_family)f, 17, 5000, 300);
            trial.lengths = (enum inputs_lengths)kind;
            trial.options.order = (enum topk_order)(f % 3);
            trial.with_values = true;
            trial_run_all(&trial_pools, &trial, NULL);
        }
    }
}

/* Without a lengths array one length serves all rows, and is clamped once a row. */
static void one_length_for_all_rows(void **state)
{
    (void)state;
    const float scores[] = {3, 1, 2, 9, 9, 9, 1, 2, 3, 9, 9, 9};
    const int32_t length_all[] = {3, -2, 100};
    const int32_t expected[][4] = {{0, 2, 1, 2}, {-1, -1, -1, -1}, {3, 4, 3, 4}};
    for (int i = 0; i < trial_pools.num * 3; i++) {
        struct topk_routes routes = {0};
        int32_t indices[4];
        struct topk_args args = {.scores = scores,
                                 .row_stride = 6,
                                 .indices = indices,
                                 .index_stride = 2,
                                 .routes = &routes,
                                 .num_rows = 2,
                                 .width = 6,
                                 .length_all = length_all[i % 3],
                                 .k = 2};
        struct topk_options options = {.order = TOPK_ORDER_INDEX, .ties = TOPK_TIES_LOWEST};
        char detail[TOPK_DETAIL_SIZE];
        assert_int_equal(topk_cpu_select(trial_pools.cpu[i / 3], &args, &options, NULL, detail),
                         TOPK_OK);
        assert_memory_equal(indices, expected[i % 3], sizeof(indices));
        assert_int_equal(routes.clamped, i % 3 == 0 ? 0 : 2);
    }
}

static void nothing_to_do(void **state)
{
    (void)state;
    struct topk_options options = {.order = TOPK_ORDER_VALUE, .ties = TOPK_TIES_LOWEST};
    int32_t indices[] = {5, 5, 5};
    for (int i = 0; i < trial_pools.num; i++) {
        struct topk_args no_rows = {.k = 3};
        assert_int_equal(topk_cpu_select(trial_pools.cpu[i], &no_rows, &options, NULL, NULL),
                         TOPK_OK);
        struct topk_args no_scores = {.indices = indices, .num_rows = 1, .k = 3, .length_all = 8};
        assert_int_equal(topk_cpu_select(trial_pools.cpu[i], &no_scores, &options, NULL, NULL),
                         TOPK_OK);
        assert_int_equal(indices[0] & indices[1] & indices[2], -1);
    }
}

/* ---- alignment and strides --------------------------------------------------------------------
 */

/* Every offset of the base within two cache lines, with odd and even strides. */
static void every_alignment_and_stride(void **state)
{
    (void)state;
    const int32_t widths[] = {3, 63, 64, 65, 127, 1000, 8193};
    const int64_t extra[] = {0, 1, 7, 16, 33};
    for (int32_t tail = 0; tail < 32; tail++) {
        for (size_t w = 0; w < sizeof(widths) / sizeof(widths[0]); w++) {
            struct trial trial = trial_of(INPUTS_MIXED, 4, widths[w], 50);
            trial.spec.seed += (uint64_t)tail;
            trial.spec.row_stride += extra[(size_t)tail % 5];
            trial.tail_elements = tail;
            trial_run_all(&trial_pools, &trial, NULL);
        }
    }
}

/* Widths around every block size: the end of a row is where vector code goes wrong. */
static void every_width_around_a_block(void **state)
{
    (void)state;
    for (int32_t width = 1; width <= 300; width++) {
        struct trial trial = trial_of(INPUTS_MIXED, 5, width, 1 + width * 2 / 3);
        trial.spec.seed += (uint64_t)width;
        trial.options.ties = (enum topk_ties)(width % 2);
        trial.with_values = true;
        trial_run_all(&trial_pools, &trial, NULL);
    }
}

static void length_three_with_an_odd_stride(void **state)
{
    (void)state;
    struct trial trial = trial_of(INPUTS_NORMAL, 5, 3, 2);
    trial.spec.row_stride = 8193;
    trial.tail_elements = 1; /* base + 4 bytes from a boundary */
    trial_run_all(&trial_pools, &trial, NULL);
}

/* ---- K ----------------------------------------------------------------------------------------
 */

static void every_k(void **state)
{
    (void)state;
    const int32_t ks[] = {1, 2, 7, 64, 300, 2047, 2048, 2049, 2051, 4096, 16383, 16384};
    const enum inputs_family families[] = {INPUTS_NORMAL, INPUTS_TIES, INPUTS_INDEXER,
                                           INPUTS_FEW_VALUES};
    for (size_t i = 0; i < sizeof(ks) / sizeof(ks[0]); i++) {
        const int32_t widths[] = {ks[i], ks[i] + 1, ks[i] / 2 + 1, 4 * ks[i] + 1, 50000};
        for (size_t w = 0; w < sizeof(widths) / sizeof(widths[0]); w++) {
            struct trial trial = trial_of(families[(i + w) % 4], 3, widths[w], ks[i]);
            trial.options.order = (enum topk_order)((i + w) % 3);
            trial.options.ties = (enum topk_ties)(i % 2);
            trial.with_values = true;
            trial_run_all(&trial_pools, &trial, NULL);
        }
    }
}

static void four_way_ties_cut_inside_a_group(void **state)
{
    (void)state;
    struct trial trial = trial_of(INPUTS_TIES, 4, 20000, 2051);
    for (int order = 0; order < 3; order++) {
        trial.options =
            (struct topk_options){.order = (enum topk_order)order, .ties = TOPK_TIES_LOWEST};
        trial_run_all(&trial_pools, &trial, NULL);
    }
}

/* ---- pages ------------------------------------------------------------------------------------
 */

static void page_tables_of_every_page_size(void **state)
{
    (void)state;
    for (uint32_t log2 = 0; log2 <= 16; log2++) {
        struct trial trial = trial_of(INPUTS_NORMAL, 3, 9001, 700);
        trial.lengths = INPUTS_LENGTHS_EDGES;
        trial.with_pages = true;
        trial.page_size_log2 = log2;
        trial.with_offsets = log2 % 2 == 1;
        trial_run_all(&trial_pools, &trial, NULL);
    }
    struct trial largest = trial_of(INPUTS_NORMAL, 1, 100, 7);
    largest.with_pages = true;
    largest.page_size_log2 = TOPK_PAGE_SIZE_LOG2_MAX;
    trial_run_all(&trial_pools, &largest, NULL);
}

/* A table of exactly the entries needed lies before a forbidden page: one entry more would fault.
 */
static void the_page_table_is_not_read_past(void **state)
{
    (void)state;
    char *mapping = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(mapping, MAP_FAILED);
    assert_int_equal(mprotect(mapping + 4096, 4096, PROT_NONE), 0);
    int32_t *pages = (int32_t *)(void *)(mapping + 4096) - 3;
    const float scores[10] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
    int32_t indices[4];
    pages[0] = 5, pages[1] = 9, pages[2] = 1;
    struct topk_args args = {.scores = scores,
                             .indices = indices,
                             .page_table = pages,
                             .num_rows = 1,
                             .width = 10,
                             .length_all = 10,
                             .k = 4,
                             .page_table_width = 3,
                             .page_size_log2 = 2};
    const int32_t expected[] = {38, 39, 4, 5};
    struct topk_options options = {.order = TOPK_ORDER_INDEX, .ties = TOPK_TIES_LOWEST};
    for (int i = 0; i < trial_pools.num; i++) {
        assert_int_equal(topk_cpu_select(trial_pools.cpu[i], &args, &options, NULL, NULL), TOPK_OK);
        assert_memory_equal(indices, expected, sizeof(expected));
    }
    munmap(mapping, 8192);
}

/* ---- more than 2^32 elements ------------------------------------------------------------------
 */

/* A mapping of which only the touched pages exist. NULL when the machine allows no such mapping. */
static void *map_sparse(size_t size_bytes)
{
    void *mapping = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_ptr_not_equal(mapping, MAP_FAILED);
    return mapping;
}

/* Selects from three rows that lie this many elements apart, in scores and in both outputs. */
static void select_far_apart(int64_t row_stride, int64_t output_stride, int32_t width)
{
    enum { ROWS = 3, K = 100 };
    size_t score_bytes = ((size_t)row_stride * (ROWS - 1) + (size_t)width) * sizeof(float);
    size_t output_bytes = ((size_t)output_stride * (ROWS - 1) + K) * sizeof(float);
    float *scores = map_sparse(score_bytes), *values = map_sparse(output_bytes);
    int32_t *indices = map_sparse(output_bytes);
    struct inputs_spec spec = {INPUTS_NORMAL, inputs_run_seed(), ROWS, width, row_stride, K};
    for (int32_t r = 0; r < ROWS; r++) {
        inputs_fill_row(&spec, r, scores + r * row_stride);
    }
    struct topk_args args = {.scores = scores,
                             .row_stride = row_stride,
                             .indices = indices,
                             .index_stride = output_stride,
                             .values = values,
                             .value_stride = output_stride,
                             .num_rows = ROWS,
                             .width = width,
                             .length_all = width,
                             .k = K};
    struct topk_options options = {.order = TOPK_ORDER_VALUE, .ties = TOPK_TIES_LOWEST};
    for (int i = 0; i < trial_pools.num; i++) {
        char detail[ORACLE_DETAIL_SIZE];
        assert_int_equal(topk_cpu_select(trial_pools.cpu[i], &args, &options, NULL, detail),
                         TOPK_OK);
        if (!oracle_check(&args, &options, detail)) {
            fail_msg("isa %s: %s", topk_cpu_isa(trial_pools.cpu[i]), detail);
        }
    }
    munmap(scores, score_bytes);
    munmap(values, output_bytes);
    munmap(indices, output_bytes);
}

static void rows_more_than_2_to_32_elements_apart(void **state)
{
    (void)state;
    if (trial_is_thread_sanitized()) {
        skip(); /* its shadow memory does not fit such addresses */
    }
    select_far_apart(((int64_t)1 << 31) + 5, 1000, 9000); /* the third row is past 2^32 */
    select_far_apart(9001, ((int64_t)1 << 31) + 3, 9000);
}

/* Geometries past 2^30 and 2^32 where only the last rows hold scores: a product or an offset in 32
 * bits would look elsewhere. */
static void the_last_row_of_a_huge_matrix(void **state)
{
    (void)state;
    if (trial_is_thread_sanitized()) {
        skip();
    }
    const int32_t shapes[][2] = {{4096, 262209}, {32769, 131072}};
    for (size_t s = 0; s < 2; s++) {
        int32_t rows = shapes[s][0], width = shapes[s][1], k = 2048;
        size_t score_bytes = (size_t)rows * (size_t)width * sizeof(float);
        size_t output_bytes = (size_t)rows * (size_t)k * sizeof(int32_t);
        float *scores = map_sparse(score_bytes);
        int32_t *indices = map_sparse(output_bytes);
        int32_t *lengths = calloc((size_t)rows, sizeof(*lengths));
        assert_non_null(lengths);
        lengths[rows - 1] = lengths[rows - 2] = width;
        struct inputs_spec spec = {INPUTS_NORMAL, inputs_run_seed(), rows, width, width, k};
        inputs_fill_row(&spec, 1, scores + (int64_t)width * (rows - 2));
        inputs_fill_row(&spec, 2, scores + (int64_t)width * (rows - 1));
        struct topk_args args = {.scores = scores,
                                 .row_stride = width,
                                 .lengths = lengths,
                                 .indices = indices,
                                 .index_stride = k,
                                 .num_rows = rows,
                                 .width = width,
                                 .k = k};
        struct topk_options options = {.order = TOPK_ORDER_INDEX, .ties = TOPK_TIES_ANY};
        int fastest =
            trial_pools.num - 1; /* the offsets are common code: one instruction set is enough */
        char detail[ORACLE_DETAIL_SIZE];
        assert_int_equal(topk_cpu_select(trial_pools.cpu[fastest], &args, &options, NULL, detail),
                         TOPK_OK);
        for (int32_t r = rows - 3; r < rows; r++) {
            struct oracle_row row = oracle_row_of(&args, &options, r);
            if (!oracle_check_row(&row, indices + (int64_t)r * k, NULL, detail)) {
                fail_msg("row %d of %d: %s", r, rows, detail);
            }
        }
        munmap(scores, score_bytes);
        munmap(indices, output_bytes);
        free(lengths);
    }
}

/* ---- the batch does not matter -----------------------------------------------------------------
 */

static void a_row_alone_and_in_batches(void **state)
{
    (void)state;
    enum { WIDTH = 12000, K = 512, ROWS = 65 };
    const int32_t batches[] = {63, 64, 65};
    struct inputs_spec spec = {INPUTS_MIXED, inputs_run_seed(), ROWS, WIDTH, WIDTH, K};
    float *scores = malloc(sizeof(*scores) * ROWS * WIDTH);
    int32_t *indices = malloc(sizeof(*indices) * ROWS * K), alone[K];
    assert_non_null(scores);
    assert_non_null(indices);
    inputs_fill(&spec, scores);
    struct topk_options options = {.order = TOPK_ORDER_INDEX, .ties = TOPK_TIES_LOWEST};
    for (int i = 0; i < trial_pools.num; i++) {
        for (size_t b = 0; b < 3; b++) {
            struct topk_args args = {.scores = scores,
                                     .row_stride = WIDTH,
                                     .indices = indices,
                                     .index_stride = K,
                                     .num_rows = batches[b],
                                     .width = WIDTH,
                                     .length_all = WIDTH,
                                     .k = K};
            assert_int_equal(topk_cpu_select(trial_pools.cpu[i], &args, &options, NULL, NULL),
                             TOPK_OK);
            for (int32_t r = 0; r < batches[b]; r++) {
                struct topk_args single = args;
                single.scores = scores + (int64_t)r * WIDTH;
                single.indices = alone;
                single.num_rows = 1;
                assert_int_equal(topk_cpu_select(trial_pools.cpu[i], &single, &options, NULL, NULL),
                                 TOPK_OK);
                assert_memory_equal(alone, indices + (int64_t)r * K, sizeof(alone));
            }
        }
    }
    free(scores);
    free(indices);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(negative_and_oversized_lengths_are_clamped),
        cmocka_unit_test(lengths_far_apart_in_one_batch),
        cmocka_unit_test(ragged_batches_of_every_family),
        cmocka_unit_test(one_length_for_all_rows),
        cmocka_unit_test(nothing_to_do),
        cmocka_unit_test(every_alignment_and_stride),
        cmocka_unit_test(every_width_around_a_block),
        cmocka_unit_test(length_three_with_an_odd_stride),
        cmocka_unit_test(every_k),
        cmocka_unit_test(four_way_ties_cut_inside_a_group),
        cmocka_unit_test(page_tables_of_every_page_size),
        cmocka_unit_test(the_page_table_is_not_read_past),
        cmocka_unit_test(rows_more_than_2_to_32_elements_apart),
        cmocka_unit_test(the_last_row_of_a_huge_matrix),
        cmocka_unit_test(a_row_alone_and_in_batches),
    };
    return cmocka_run_group_tests(tests, trial_pools_open, trial_pools_close);
}
