/* Phase 1: a boundary proposed from a sample of the row (the paper's sampled proposal). */
#ifndef TOPKSEL_CPU_PROPOSE_H
#define TOPKSEL_CPU_PROPOSE_H

#include "cpu/isa.h"
#include "cpu/score.h"

/* Choices, measured: see kernels/README.md. */
#define TOPK_SAMPLE_UNIT 16         /* neighbours taken together: of float32 a cache line */
#define TOPK_SAMPLE_STRATUM 1024    /* one unit is taken from so many scores, */
#define TOPK_SAMPLE_UNITS_MIN 64    /* but no fewer units than this */
#define TOPK_SAMPLE_STRATUM_MIN 256 /* (unless the strata became this short) */
#define TOPK_SAMPLE_UNITS_MAX 256   /* and no more than this: each is a wait for memory */
#define TOPK_SAMPLE_SCORES_MAX (TOPK_SAMPLE_UNITS_MAX * TOPK_SAMPLE_UNIT)

/* Where a sample of a row looks: num_units strata with one unit of neighbours in each. */
struct topk_sample_view {
    int32_t length;
    int32_t num_units;
    int32_t stratum; /* scores of a stratum, rounded down */
    int32_t phase;   /* position 0 lies this many scores behind the start of a unit in memory */
};

/* For rows of at least TOPK_SAMPLE_STRATUM_MIN scores. */
static inline struct topk_sample_view topk_sample_view_of(struct topk_row row, int32_t length)
{
    int32_t num_units = length / TOPK_SAMPLE_STRATUM;
    num_units = num_units > TOPK_SAMPLE_UNITS_MIN ? num_units : TOPK_SAMPLE_UNITS_MIN;
    if (num_units > length / TOPK_SAMPLE_STRATUM_MIN) {
        num_units = length / TOPK_SAMPLE_STRATUM_MIN;
    }
    num_units = num_units < TOPK_SAMPLE_UNITS_MAX ? num_units : TOPK_SAMPLE_UNITS_MAX;
    return (struct topk_sample_view){
        .length = length,
        .num_units = num_units,
        .stratum = length / num_units,
        .phase = (int32_t)((uintptr_t)row.scores / topk_score_bytes(row.dtype) % TOPK_SAMPLE_UNIT),
    };
}

/*
 * The first position of a unit, which lies within one cache line (or at the row's start). `random`
 * starts as topk_sample_seed(row_idx) and moves on with each unit. Inline so that a test can build
 * rows that defeat the sample.
 */
static inline int32_t topk_sample_place(const struct topk_sample_view *view, int32_t unit,
                                        uint32_t *random)
{
    uint32_t places = (uint32_t)(view->stratum - TOPK_SAMPLE_UNIT + 1);
    *random = *random * 1664525u + 1013904223u; /* a common linear congruence */
    int32_t within = (int32_t)(((uint64_t)*random * places) >> 32);
    int32_t place = (int32_t)((int64_t)unit * view->length / view->num_units) + within;
    place -= (place + view->phase) % TOPK_SAMPLE_UNIT;
    return place > 0 ? place : 0;
}

static inline uint32_t topk_sample_seed(int32_t row_idx)
{
    return (uint32_t)row_idx * 2654435761u + 12345u;
}

/*
 * The sample of the row that comes next, asked for during the pass over this one, so that taking it
 * does not wait for memory. A row without scores asks for nothing.
 */
struct topk_ahead {
    struct topk_row row;
    struct topk_sample_view view;
    int32_t unit;
    uint32_t random;
};

struct topk_ahead topk_ahead_of(struct topk_row row, int32_t length, int32_t row_idx);

/* Asks for the next units, as many as the sample takes from num_scores scores. */
void topk_ahead_fetch(struct topk_ahead *ahead, int32_t num_scores);

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
 * proposal. The places depend on length, alignment and row_idx alone. Whatever is proposed, the
 * answer is exact: only the time changes.
 */
struct topk_proposal topk_propose(const struct topk_isa *isa, struct topk_row row, int32_t length,
                                  int32_t row_idx, int32_t k, float *sample);

/* A score that about depth * rank scores of the sample reach; -inf when there are not so many. */
float topk_proposal_boundary(const struct topk_isa *isa, const struct topk_proposal *proposal,
                             float depth);

#endif
