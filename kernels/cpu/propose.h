/* Phase 1: a boundary proposed from a sample of the row (the paper's sampled proposal). */
#ifndef TOPKSEL_CPU_PROPOSE_H
#define TOPKSEL_CPU_PROPOSE_H

#include "cpu/isa.h"

/* Choices, measured: see kernels/README.md. */
#define TOPK_SAMPLE_UNIT 4          /* neighbours taken together: they come in one cache line */
#define TOPK_SAMPLE_SCORES_MAX 4096 /* scores of a sample */

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
