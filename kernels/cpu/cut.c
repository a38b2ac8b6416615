/*
 * Frontier search by counting. The unknown is a float between two known ones; each step counts the
 * scores at or above a float in between, so the frontier is the scores between the two. Counting
 * is a vector loop over an array that lies in cache, needs no scratch, and costs the same whatever
 * the values are: no histogram whose bins collapse, no pivot that an adversary can spoil.
 */
#include "cpu/cut.h"

#include "cpu/check.h"
#include "cpu/key.h"

/*
 * Where to look next between two keys, given how many scores lie at or above each. Two steps of
 * three interpolate (scores near the boundary are close to evenly spread), the third halves, so
 * that no distribution can take more than three steps a bit.
 */
static int32_t next_key(int32_t low, int32_t high, int32_t low_count, int32_t high_count,
                        int32_t wanted, int step)
{
    int64_t gap = (int64_t)high - low;
    int64_t ahead = gap / 2;
    if (step % 3 != 2 && low_count > high_count) {
        double share = ((double)(low_count - wanted) + 0.5) / (double)(low_count - high_count);
        ahead = (int64_t)((double)gap * share);
    }
    ahead = ahead < 1 ? 1 : ahead;
    ahead = ahead > gap - 1 ? gap - 1 : ahead;
    return (int32_t)(low + ahead);
}

struct topk_cut topk_cut_find(const struct topk_isa *isa, const float *values, int32_t num,
                              int32_t count_min, int32_t count_max)
{
    TOPK_CHECK(count_min >= 1 && count_max >= count_min);
    float lowest, highest;
    isa->range(values, num, &lowest, &highest);
    int32_t low_count = isa->count_at_least(values, num, lowest);
    if (low_count < count_min) {
        return (struct topk_cut){-INFINITY, low_count, INT32_MAX};
    }
    int32_t low = topk_key_of(lowest), high = topk_key_of(highest) + 1, high_count = 0;
    int32_t wanted = count_min + (count_max - count_min) / 2;
    for (int step = 0; low_count > count_max && (int64_t)high - low > 1; step++) {
        int32_t middle = next_key(low, high, low_count, high_count, wanted, step);
        int32_t count = isa->count_at_least(values, num, topk_float_of(middle));
        if (count >= count_min) {
            low = middle;
            low_count = count;
        } else {
            high = middle;
            high_count = count;
        }
    }
    struct topk_cut cut = {topk_float_of(low), low_count, INT32_MAX};
    if (low_count > count_max) { /* the next float up has too few: ties fill the rest */
        cut.num_ties = count_min - high_count;
    }
    return cut;
}
