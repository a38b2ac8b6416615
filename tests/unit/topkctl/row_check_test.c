/* The checker of `topkctl select --verify` and of the examples, judged by the oracle: they must
 * agree on right answers and on answers with one thing wrong. */
#include "inputs.h"
#include "oracle.h"
#include "row_check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define WIDTH_MAX 700
#define K_MAX 800

static uint64_t marks[ROW_CHECK_MARKS(WIDTH_MAX)];

/* One question with room for its answer. */
struct question {
    struct oracle_row row;
    float scores[WIDTH_MAX];
    int32_t indices[K_MAX];
    float values[K_MAX];
};

static bool judge(const struct question *q, char *detail)
{
    const struct row_check row = {
        .scores = q->row.scores,
        .width = q->row.width,
        .length = q->row.length,
        .k = q->row.k,
        .index_ascending = q->row.options.order == TOPK_ORDER_INDEX,
        .value_descending = q->row.options.order == TOPK_ORDER_VALUE,
        .ties_lowest = q->row.options.ties == TOPK_TIES_LOWEST,
    };
    memset(marks, 0xa5, sizeof(marks));
    return row_check(&row, q->indices, q->values, marks, detail);
}

static void check_agreement(const struct question *q, const char *what)
{
    char ours[ROW_CHECK_DETAIL_SIZE] = "";
    char theirs[ORACLE_DETAIL_SIZE] = "";
    bool right = judge(q, ours);
    bool due = oracle_check_row(&q->row, q->indices, q->values, theirs);
    if (right != due) {
        fail_msg("%s: width %d length %d k %d order %d ties %d: checker says %s (%s), oracle %s "
                 "(%s)",
                 what, q->row.width, q->row.length, q->row.k, q->row.options.order,
                 q->row.options.ties, right ? "right" : "wrong", ours, due ? "right" : "wrong",
                 theirs);
    }
}

/* A question of a random family, width, length, k and options, with the oracle's own answer. */
static void make_question(struct inputs_rng *rng, struct question *q)
{
    struct inputs_spec spec = {
        .family = (enum inputs_family)inputs_rng_below(rng, INPUTS_FAMILY_COUNT),
        .seed = inputs_rng_next(rng),
        .num_rows = 1,
        .width = 1 + (int32_t)inputs_rng_below(rng, WIDTH_MAX),
        .k = 1 + (int32_t)inputs_rng_below(rng, K_MAX),
    };
    if (inputs_rng_below(rng, 2) == 0) {
        spec.k = 1 + (int32_t)inputs_rng_below(rng, 20);
    }
    spec.row_stride = spec.width;
    inputs_fill_row(&spec, 0, q->scores);
    int32_t length = (int32_t)inputs_rng_below(rng, (uint32_t)spec.width + 20) - 10;
    q->row = (struct oracle_row){
        .scores = q->scores,
        .width = spec.width,
        .length = inputs_rng_below(rng, 4) == 0 ? length : spec.width,
        .k = spec.k,
        .options = {.order = (enum topk_order)inputs_rng_below(rng, 3),
                    .ties = (enum topk_ties)inputs_rng_below(rng, 2)},
    };
    oracle_select_row(&q->row, q->indices, q->values);
}

/* One small change to an answer; it may stay right, which the oracle decides. */
static const char *spoil(struct inputs_rng *rng, struct question *q)
{
    uint32_t k = (uint32_t)q->row.k;
    uint32_t i = inputs_rng_below(rng, k);
    uint32_t j = inputs_rng_below(rng, k);
    int32_t index = q->indices[i];
    float value = q->values[i];
    switch (inputs_rng_below(rng, 6)) {
    case 0: /* another position, with its score: often equal to a tie, or already there */
        q->indices[i] = (int32_t)inputs_rng_below(rng, (uint32_t)q->row.width);
        q->values[i] = q->scores[q->indices[i]];
        return "another position";
    case 1:
        q->indices[i] = q->indices[j];
        q->values[i] = q->values[j];
        q->indices[j] = index;
        q->values[j] = value;
        return "two entries swapped";
    case 2:
        q->indices[i] = q->indices[j];
        q->values[i] = q->values[j];
        return "an entry twice";
    case 3:
        q->indices[i] = (int32_t[]){
            -1, -2, INT32_MIN, INT32_MAX, q->row.width, q->row.length}[inputs_rng_below(rng, 6)];
        return "outside";
    case 4:
        q->values[i] = value == 0.0f ? -value : value + 1.0f;
        return "another value";
    default:
        return "nothing";
    }
}

/* One thread: the thread sanitizer has little to find, and takes long. */
#ifdef __SANITIZE_THREAD__
enum { ROUNDS = 2000 };
#else
enum { ROUNDS = 20000 };
#endif

static void checker_and_oracle_agree(void **state)
{
    (void)state;
    static struct question q;
    struct inputs_rng rng = inputs_rng_of(inputs_run_seed(), 1);
    int num_wrong = 0;
    for (int round = 0; round < ROUNDS; round++) {
        make_question(&rng, &q);
        char detail[ROW_CHECK_DETAIL_SIZE];
        assert_true(judge(&q, detail));
        const char *what = spoil(&rng, &q);
        check_agreement(&q, what);
        num_wrong += !judge(&q, detail);
    }
    assert_in_range(num_wrong, ROUNDS / 5 * 2,
                    ROUNDS / 20 * 19); /* the spoiled answers are mostly wrong ones */
}

static void texts_name_the_place(void **state)
{
    (void)state;
    static const float scores[5] = {1, 2, 5, 4, 5};
    static const struct {
        int32_t k, indices[3];
        bool ties_lowest;
        const char *words;
    } cases[] = {
        {1, {3}, false, "position 2 (5) is left out, 3 (4) is taken"},
        {2, {2, 2}, false, "entry 1 repeats position 2"},
        {2, {2, 5}, false, "entry 1 is 5, outside 0 ... 4"},
        {1, {4}, true, "position 4 is taken and 2, of equal score and lower, not"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char detail[ROW_CHECK_DETAIL_SIZE] = "";
        struct row_check row = {.scores = scores,
                                .width = 5,
                                .length = 5,
                                .k = cases[i].k,
                                .ties_lowest = cases[i].ties_lowest};
        assert_false(row_check(&row, cases[i].indices, NULL, marks, detail));
        assert_string_equal(detail, cases[i].words);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(checker_and_oracle_agree),
        cmocka_unit_test(texts_name_the_place),
    };
    return cmocka_run_group_tests_name("row_check", tests, NULL, NULL);
}
