/* Finding a score that a wanted number of scores reach: the one search behind proposal, raise and
 * refinement. */
#ifndef TOPKSEL_CPU_CUT_H
#define TOPKSEL_CPU_CUT_H

#include "cpu/isa.h"

struct topk_cut {
    float bound;      /* -inf when fewer than wanted are numbers */
    int32_t count;    /* scores >= bound */
    int32_t num_ties; /* of the scores equal to bound, how many bring the count to the minimum;
                       * INT32_MAX when the count is in the wanted range as it is */
};

/*
 * Finds a bound with count_min ... count_max scores of values[num] at or above it. Where equal
 * scores make that impossible, the largest bound with at least count_min, and how many of its ties
 * to keep. Reads values about ten times for ordinary scores and at most about a hundred times for
 * any. Pure.
 */
struct topk_cut topk_cut_find(const struct topk_isa *isa, const float *values, int32_t num,
                              int32_t count_min, int32_t count_max);

#endif
