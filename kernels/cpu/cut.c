/*
 * Frontier search by counting. The unknown is a float between two known ones; each step counts the
 * scores at or above a float in between, so the frontier is the scores between the two. Counting
 * is a vector loop over an array that lies in cache, needs no scratch, and costs the same whatever
 * the values are: no histogram whose bins collapse, no pivot that an adversary can spoil.
 */
#include "cpu/cut.h"

#include "cpu/check.h"
#include "cpu/key.h"

#define STALLS_MAX 2 /* choice: so many steps may fail to cut the frontier by a quarter */
#define STEPS_MAX                                                                                  \
    200 /* more than any search of 2^21 scores takes: 51 steps that cut the frontier by            \
         * a quarter, as many before each that do not, and 33 halvings of the keys */

/* What is known: the counts at two keys, low_count >= wanted > high_count. */
struct frontier {
    int32_t low, high;
    int32_t low_count, high_count;
};

/*
 * Where to look next. Scores near the boundary are close to evenly spread, so interpolation finds
 * it in a few steps; where it does not get ahead, halving does.
 */
static int32_t next_key(const struct frontier *frontier, int32_t wanted, bool halve)
{
    int64_t gap = (int64_t)frontier->high - frontier->low;
    int64_t ahead = gap / 2;
    if (!halve) {
        double above = (double)(frontier->low_count - wanted) + 0.5;
        ahead = (int64_t)((double)gap * above / (frontier->low_count - frontier->high_count));
    }
    ahead = ahead < 1 ? 1 : ahead;
    ahead = ahead > gap - 1 ? gap - 1 : ahead;
    return (int32_t)(frontier->low + ahead);
}

/* Draws the two keys together to the scores that lie between them: with few different scores (a
 * plateau, many ties) this ends the search. */
static void tighten(const struct topk_isa *isa, const float *values, int32_t num,
                    struct frontier *frontier)
{
    float lowest, highest;
    isa->range(values, num, topk_float_of(frontier->low), topk_float_of(frontier->high - 1),
               &lowest, &highest);
    if (lowest <= highest) {
        int32_t low = topk_key_of(lowest);
        int32_t high = topk_key_of(highest + 0.0f) + 1; /* past both zeros */
        frontier->low = low > frontier->low ? low : frontier->low;
        frontier->high = high < frontier->high ? high : frontier->high;
    }
}

struct topk_cut topk_cut_find(const struct topk_isa *isa, const float *values, int32_t num,
                              int32_t count_min, int32_t count_max)
{
    TOPK_CHECK(count_min >= 1 && count_max >= count_min);
    int32_t wanted = count_min + (count_max - count_min) / 2, num_stalls = 0;
    struct frontier frontier = {TOPK_KEY_MINUS_INF, TOPK_KEY_PLUS_INF + 1, 0, 0};
    frontier.low_count = isa->count_at_least(values, num, -INFINITY); /* the numbers */
    if (frontier.low_count < count_min) {
        return (struct topk_cut){-INFINITY, frontier.low_count, INT32_MAX};
    }
    tighten(isa, values, num, &frontier);
    for (int step = 0; frontier.low_count > count_max && (int64_t)frontier.high - frontier.low > 1;
         step++) {
        TOPK_CHECK(step < STEPS_MAX);
        int32_t before = frontier.low_count - frontier.high_count;
        int32_t middle = next_key(&frontier, wanted, num_stalls > 0);
        int32_t count = isa->count_at_least(values, num, topk_float_of(middle));
        if (count >= count_min) {
            frontier.low = middle;
            frontier.low_count = count;
        } else {
            frontier.high = middle;
            frontier.high_count = count;
        }
        bool stalled = frontier.low_count - frontier.high_count > before - before / 4;
        num_stalls = stalled ? num_stalls + 1 : 0;
        if (num_stalls >= STALLS_MAX && frontier.low_count > count_max) {
            tighten(isa, values, num, &frontier);
        }
    }
    struct topk_cut cut = {topk_float_of(frontier.low), frontier.low_count, INT32_MAX};
    if (frontier.low_count > count_max) { /* the next float up has too few: ties fill the rest */
        cut.num_ties = count_min - frontier.high_count;
    }
    return cut;
}
