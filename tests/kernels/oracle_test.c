/*
 * The judge is judged: every kind of wrong answer must be named, every right one accepted, and the
 * generators must give what they promise. Without this a blind oracle would pass every selector.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "inputs.h"
#include "oracle.h"

/* Ranks by value: 4 (inf), 1, {0, 3, 6} equal, 2, 5 (-inf), 7 (NaN). */
static const float row_scores[8] = {1.0f, 2.0f, -1.0f, 1.0f, HUGE_VALF, -HUGE_VALF, 1.0f, NAN};

static struct oracle_row row_of(int32_t k, enum topk_order order, enum topk_ties ties)
{
    return (struct oracle_row){.scores = row_scores,
                               .width = 8,
                               .length = 8,
                               .k = k,
                               .options = {.order = order, .ties = ties}};
}

static void accepts(const struct oracle_row *row, const int32_t *indices)
{
    char detail[ORACLE_DETAIL_SIZE] = "";
    if (!oracle_check_row(row, indices, NULL, detail)) {
        fail_msg("a right answer was refused: %s", detail);
    }
}

static void refuses(const struct oracle_row *row, const int32_t *indices, const char *why)
{
    char detail[ORACLE_DETAIL_SIZE] = "";
    assert_false(oracle_check_row(row, indices, NULL, detail));
    if (strstr(detail, why) == NULL) {
        fail_msg("\"%s\" does not say \"%s\"", detail, why);
    }
}

#define ACCEPTS(row, ...) accepts((row), (const int32_t[]){__VA_ARGS__})
#define REFUSES(row, why, ...) refuses((row), (const int32_t[]){__VA_ARGS__}, (why))

static void sets_and_ties(void **state)
{
    (void)state;
    struct oracle_row any = row_of(3, TOPK_ORDER_ANY, TOPK_TIES_ANY);
    struct oracle_row lowest = row_of(3, TOPK_ORDER_ANY, TOPK_TIES_LOWEST);
    ACCEPTS(&any, 1, 4, 0);
    ACCEPTS(&any, 6, 4, 1);
    ACCEPTS(&lowest, 1, 0, 4);
    REFUSES(&lowest, "its equal at 0", 1, 4, 3);
    REFUSES(&any, "position 0 (1) is not", 1, 4, 2);
    REFUSES(&any, "selected twice", 1, 4, 4);
    REFUSES(&any, "no position of the row", 1, 4, 8);
    REFUSES(&any, "no position of the row", 1, 4, -1);
    REFUSES(&any, "position 7 (nan) is selected", 1, 4, 7);
}

static void orders(void **state)
{
    (void)state;
    struct oracle_row index = row_of(3, TOPK_ORDER_INDEX, TOPK_TIES_ANY);
    struct oracle_row value = row_of(4, TOPK_ORDER_VALUE, TOPK_TIES_ANY);
    ACCEPTS(&index, 1, 3, 4);
    REFUSES(&index, "order by position", 1, 4, 3);
    ACCEPTS(&value, 4, 1, 3, 6);
    REFUSES(&value, "order by value", 4, 1, 6, 3);
    REFUSES(&value, "order by value", 1, 4, 0, 3);
}

static void short_rows(void **state)
{
    (void)state;
    struct oracle_row row = row_of(5, TOPK_ORDER_ANY, TOPK_TIES_ANY);
    row.length = 3;
    ACCEPTS(&row, 0, 1, 2, -1, -1);
    REFUSES(&row, "order by position", 1, 0, 2, -1, -1);
    REFUSES(&row, "not -1", 0, 1, 2, 3, -1);
    row.length = -7;
    ACCEPTS(&row, -1, -1, -1, -1, -1);
    REFUSES(&row, "not -1", 0, -1, -1, -1, -1);
    row.length = 1000; /* clamped to the width */
    ACCEPTS(&row, 0, 1, 3, 4, 6);
    row.length = 3;
    row.options.order = TOPK_ORDER_VALUE;
    ACCEPTS(&row, 1, 0, 2, -1, -1);
}

static void values_bit_for_bit(void **state)
{
    (void)state;
    const float zeros[] = {-0.0f, 0.0f, -1.0f};
    struct oracle_row row = {
        .scores = zeros, .width = 3, .length = 3, .k = 2, .options = {.order = TOPK_ORDER_INDEX}};
    const int32_t indices[] = {0, 1};
    const float right[] = {-0.0f, 0.0f}, wrong[] = {0.0f, 0.0f};
    char detail[ORACLE_DETAIL_SIZE] = "";
    assert_true(oracle_check_row(&row, indices, right, detail));
    assert_false(oracle_check_row(&row, indices, wrong, detail));
    assert_non_null(strstr(detail, "value of slot 0"));
    const float tail[] = {1.0f}, tail_values[] = {1.0f, -1.0f};
    const int32_t tail_indices[] = {0, -1};
    row = (struct oracle_row){.scores = tail, .width = 1, .length = 1, .k = 2};
    assert_false(
        oracle_check_row(&row, tail_indices, tail_values, detail)); /* -inf belongs there */
}

static void pages_and_offsets(void **state)
{
    (void)state;
    const int32_t pages[] = {7, 3};
    struct oracle_row row = row_of(3, TOPK_ORDER_INDEX, TOPK_TIES_LOWEST);
    row.page_table = pages;
    row.page_table_width = 2;
    row.page_size_log2 = 2;
    row.row_offset = 100;
    ACCEPTS(&row, 128, 129, 112); /* positions 0, 1, 4: pages 7, 7 and 3 */
    REFUSES(&row, "order by position", 112, 128, 129);
    REFUSES(&row, "no position of the row", 128, 129, 116);
    const int32_t same[] = {7, 7};
    row.page_table = same;
    REFUSES(&row, "the same place", 128, 129, 128);
}

/* The unique answer, by construction from a sort, satisfies the checks made by linear scans. */
static void both_halves_of_the_oracle_agree(void **state)
{
    (void)state;
    for (int f = 0; f < INPUTS_FAMILY_COUNT; f++) {
        for (int order = 0; order < 3; order++) {
            struct inputs_spec spec = {.family = (enum inputs_family)f,
                                       .seed = inputs_run_seed(),
                                       .num_rows = 3,
                                       .width = 700,
                                       .row_stride = 701,
                                       .k = 90};
            float scores[3 * 701], values[90];
            int32_t indices[90];
            char detail[ORACLE_DETAIL_SIZE] = "";
            inputs_fill(&spec, scores);
            for (int r = 0; r < 3; r++) {
                struct oracle_row row = {
                    .scores = scores + r * 701,
                    .width = 700,
                    .length = 100 + 300 * r,
                    .k = 90,
                    .options = {.order = (enum topk_order)order, .ties = TOPK_TIES_LOWEST}};
                oracle_select_row(&row, indices, values);
                if (!oracle_check_row(&row, indices, values, detail)) {
                    fail_msg("%s: %s", inputs_family_name(spec.family), detail);
                }
            }
        }
    }
}

static void whole_requests_name_the_row(void **state)
{
    (void)state;
    const float scores[] = {1, 2, 3, 4, 5, 6};
    int32_t indices[] = {1, 2, 0, 1};
    struct topk_args args = {.scores = scores,
                             .row_stride = 3,
                             .indices = indices,
                             .index_stride = 2,
                             .num_rows = 2,
                             .width = 3,
                             .length_all = 3,
                             .k = 2};
    struct topk_options options = {.order = TOPK_ORDER_ANY, .ties = TOPK_TIES_ANY};
    char detail[ORACLE_DETAIL_SIZE] = "";
    assert_false(oracle_check(&args, &options, detail));
    assert_non_null(strstr(detail, "row 1 of 2"));
    indices[2] = 2;
    assert_true(oracle_check(&args, &options, detail));
}

/* ---- generators -------------------------------------------------------------------------------
 */

static void a_row_is_the_same_alone_and_in_a_batch(void **state)
{
    (void)state;
    enum { WIDTH = 300, STRIDE = 305, ROWS = 12 };
    static float batch[ROWS * STRIDE], alone[WIDTH];
    for (int f = 0; f < INPUTS_FAMILY_COUNT; f++) {
        struct inputs_spec spec = {(enum inputs_family)f, 5, ROWS, WIDTH, STRIDE, 40};
        assert_int_equal(inputs_elements(&spec), (ROWS - 1) * STRIDE + WIDTH);
        inputs_fill(&spec, batch);
        spec.num_rows = 1; /* the batch's size does not matter */
        for (int r = 0; r < ROWS; r++) {
            inputs_fill_row(&spec, r, alone);
            assert_memory_equal(alone, batch + r * STRIDE, sizeof(alone));
            if (r + 1 < ROWS) {
                assert_true(isinf(batch[r * STRIDE + WIDTH]));
            }
        }
    }
}

static void families_have_names(void **state)
{
    (void)state;
    for (int f = 0; f < INPUTS_FAMILY_COUNT; f++) {
        enum inputs_family family = INPUTS_FAMILY_COUNT;
        assert_true(inputs_family_parse(inputs_family_name((enum inputs_family)f), &family));
        assert_int_equal(family, f);
        assert_true(strlen(inputs_family_text(family)) > 10);
    }
    enum inputs_family family = INPUTS_NORMAL;
    assert_false(inputs_family_parse("no-such-family", &family));
    assert_int_equal(family, INPUTS_NORMAL);
}

/* The indexer family has what it is for: sinks at the start, recent positions, many zeros. */
static void indexer_scores_have_structure(void **state)
{
    (void)state;
    enum { WIDTH = 20000, K = 500, ROWS = 20 };
    struct inputs_spec spec = {INPUTS_INDEXER, inputs_run_seed(), ROWS, WIDTH, WIDTH, K};
    float *scores = malloc(sizeof(*scores) * inputs_elements(&spec));
    assert_non_null(scores);
    inputs_fill(&spec, scores);
    int32_t indices[K], sinks = 0, recent = 0;
    for (int r = 0; r < ROWS; r++) {
        struct oracle_row row = {
            .scores = scores + (size_t)r * WIDTH, .width = WIDTH, .length = WIDTH, .k = K};
        oracle_select_row(&row, indices, NULL);
        for (int j = 0; j < K; j++) {
            sinks += indices[j] < 2;
            recent += indices[j] >= WIDTH - 100;
        }
    }
    free(scores);
    assert_true(sinks >= ROWS);                       /* of 2 each row */
    assert_true(recent > 3 * ROWS * 100 * K / WIDTH); /* thrice what chance would give */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sets_and_ties),
        cmocka_unit_test(orders),
        cmocka_unit_test(short_rows),
        cmocka_unit_test(values_bit_for_bit),
        cmocka_unit_test(pages_and_offsets),
        cmocka_unit_test(both_halves_of_the_oracle_agree),
        cmocka_unit_test(whole_requests_name_the_row),
        cmocka_unit_test(a_row_is_the_same_alone_and_in_a_batch),
        cmocka_unit_test(families_have_names),
        cmocka_unit_test(indexer_scores_have_structure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
