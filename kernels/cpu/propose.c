/*
 * The row is cut into as many equal strata as the sample has units, and one unit of neighbouring
 * scores is taken at a pseudo-random place of each: as even as a regular view, but no period of the
 * scores can hide from it.
 */
#include "cpu/propose.h"

#include <math.h>

#include "cpu/cut.h"

/*
 * The boundary's rank in the sample: m scores of the sample are expected among the row's K best,
 * with a deviation of about sqrt(m) for independent scores and more for correlated neighbours.
 */
#define MARGIN_DEVIATIONS 4.0f /* choice, measured: see kernels/README.md */

/* Returns how many scores were written to `sample`. */
static int32_t take_sample(const struct topk_isa *isa, struct topk_row row, int32_t length,
                           int32_t row_idx, float *sample)
{
    struct topk_sample_view view = topk_sample_view_of(row, length);
    uint32_t random = topk_sample_seed(row_idx);
    for (int32_t u = 0; u < view.num_units; u++) {
        int32_t place = topk_sample_place(&view, u, &random);
        isa->read[row.dtype].widen(row.scores, place, place + TOPK_SAMPLE_UNIT,
                                   sample + u * TOPK_SAMPLE_UNIT);
    }
    return view.num_units * TOPK_SAMPLE_UNIT;
}

struct topk_ahead topk_ahead_of(struct topk_row row, int32_t length, int32_t row_idx)
{
    return (struct topk_ahead){row, topk_sample_view_of(row, length), 0, topk_sample_seed(row_idx)};
}

void topk_ahead_fetch(struct topk_ahead *ahead, int32_t num_scores)
{
    if (ahead->row.scores == NULL) {
        return;
    }
    int32_t num_units = num_scores / ahead->view.stratum + 1;
    for (int32_t i = 0; i < num_units && ahead->unit < ahead->view.num_units; i++) {
        int32_t place = topk_sample_place(&ahead->view, ahead->unit++, &ahead->random);
        __builtin_prefetch(topk_score_place(ahead->row, place), 0,
                           2); /* into the second cache: it is used later */
    }
}

struct topk_proposal topk_propose(const struct topk_isa *isa, struct topk_row row, int32_t length,
                                  int32_t row_idx, int32_t k, float *sample)
{
    int32_t num_sampled = take_sample(isa, row, length, row_idx, sample);
    float expected = (float)k * (float)num_sampled / (float)length;
    return (struct topk_proposal){
        .sample = sample,
        .num_sampled = num_sampled,
        .rank = expected + MARGIN_DEVIATIONS * sqrtf(expected) + 1.0f,
    };
}

float topk_proposal_boundary(const struct topk_isa *isa, const struct topk_proposal *proposal,
                             float depth)
{
    float rank = depth * proposal->rank;
    if (rank >= (float)proposal->num_sampled) {
        return -INFINITY;
    }
    int32_t count_min = (int32_t)rank;
    int32_t count_max = count_min + count_min / 8; /* near enough */
    return topk_cut_find(isa, proposal->sample, proposal->num_sampled, count_min, count_max).bound;
}
