/* Phase 1: a boundary proposed from a sample of the row (the paper's sampled proposal). */
#ifndef TOPKSEL_CPU_PROPOSE_H
#define TOPKSEL_CPU_PROPOSE_H

#include "cpu/isa.h"

/* Choices, measured: see kernels/README.md. */
#define TOPK_SAMPLE_UNIT 4          /* neighbours taken together: they come in one cache line */
#define TOPK_SAMPLE_SCORES_MAX 4096 /* scores of a sample */

/* Where a sample of a row looks: num_units strata with one unit of neighbours in each. */
struct topk_sample_view {
    int32_t length;
    int32_t num_units;
    int32_t stratum; /* scores of a stratum, rounded down */
};

static inline struct topk_sample_view topk_sample_view_of(int32_t length)
{
    struct topk_sample_view view = {length, TOPK_SAMPLE_SCORES_MAX / TOPK_SAMPLE_UNIT, 0};
    view.stratum = length / view.num_units;
    if (view.stratum < 2 * TOPK_SAMPLE_UNIT) { /* a short row: at most half of it */
        view.stratum = 2 * TOPK_SAMPLE_UNIT;
        view.num_units = length / view.stratum;
    }
    return view;
}

/*
 * The first position of a unit. `random` starts as topk_sample_seed(row_idx) and moves on with each
 * unit. Inline so that a test can build rows that defeat the sample.
 */
static inline int32_t topk_sample_place(const struct topk_sample_view *view, int32_t unit,
                                        uint32_t *random)
{
    uint32_t places = (uint32_t)(view->stratum - TOPK_SAMPLE_UNIT + 1);
    *random = *random * 1664525u + 1013904223u; /* a common linear congruence */
    uint32_t within = (uint32_t)(((uint64_t)*random * places) >> 32);
    return (int32_t)((int64_t)unit * view->length / view->num_units + within);
}

static inline uint32_t topk_sample_seed(int32_t row_idx)
{
    return (uint32_t)row_idx * 2654435761u + 12345u;
}

/* Depths for topk_proposal_boundary. */
#define TOPK_DEPTH_FIRST 1.0f  /* the boundary of the first pass */
#define TOPK_DEPTH_SECOND 2.0f /* the lower one that repairs an underfill */

struct topk_proposal {
    const float *sample;
    int32_t num_sampled;
    float rank; /* of the first boundary in the sample */
};

/*
 * Samples row[length] into sample[TOPK_SAMPLE_SCORES_MAX], which the caller keeps while it uses the
 * proposal. The places depend on length and row_idx alone. Whatever is proposed, the answer is
 * exact: only the time changes.
 */
struct topk_proposal topk_propose(const float *row, int32_t length, int32_t row_idx, int32_t k,
                                  float *sample);

/* A score that about depth * rank scores of the sample reach; -inf when there are not so many. */
float topk_proposal_boundary(const struct topk_isa *isa, const struct topk_proposal *proposal,
                             float depth);

#endif
