/*
 * policy.h - launch policies as plain data, read by the planner (host) and by the kernels.
 *
 * A row of a table is one instantiated kernel; its number is `variant` of a plan. The kernels
 * static_assert what their code needs of these numbers. Change a number, rebuild, and measure with
 * tests/bench/bench_cuda_select (TUNING.md says what was measured so far).
 */
#ifndef TOPKSEL_PLAN_POLICY_H
#define TOPKSEL_PLAN_POLICY_H

/* Histogram bins of every family: 11 bits of a key, 8 KB of shared memory. */
#define TOPK_BINS 2048

/* ---- row: a row in the registers of one block ---------------------------------------------- */

/*
 * X(threads, scores a thread, blocks a multiprocessor, early)
 * threads * scores is the widest row. `early`: the row is loaded up to its width beside its length
 * instead of after it: half a microsecond sooner, more traffic when lengths are short.
 */
#define TOPK_ROW_POLICIES(X)                                                                       \
    X(128, 32, 8, 0)  /* 4096: many rows */                                                        \
    X(256, 32, 4, 0)  /* 8192 */                                                                   \
    X(512, 32, 2, 0)  /* 16384 */                                                                  \
    X(1024, 32, 1, 0) /* 32768 */                                                                  \
    X(512, 8, 2, 1)   /* 4096: few rows, all about latency */                                      \
    X(1024, 8, 1, 1)  /* 8192 */                                                                   \
    X(1024, 16, 1, 1) /* 16384 */

#define TOPK_ROW_FEW_VARIANT 4 /* the first policy for few rows */

/* ---- plain ---------------------------------------------------------------------------------- */

#define TOPK_PLAIN_THREADS 512
#define TOPK_PLAIN_BLOCKS 2 /* a multiprocessor */

/* Names of plan->parameters; kernels/README.md describes them. */
enum topk_parameter {
    TOPK_PARAMETER_PROGRAMMATIC, /* 1: launched programmatically behind its predecessor */
    TOPK_PARAMETER_STAGES,       /* stages of the ring, 0 without one */
    TOPK_PARAMETER_MARGIN,       /* standard deviations the boundary is set low, times 16 */
    TOPK_PARAMETER_SAMPLE_MIN,   /* scores sampled of a row at least */
    TOPK_PARAMETER_SAMPLE_MAX,   /* and at most */
    TOPK_PARAMETER_PART_SCORES,  /* least scores of a part when few rows share all blocks */
};

#endif
