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
    X(1024, 16, 1, 1) /* 16384 */                                                                  \
    X(256, 16, 5, 0)  /* 4096 */                                                                   \
    X(512, 16, 2, 1)  /* 8192 */

#define TOPK_ROW_FEW_VARIANT 4 /* the first policy for few rows */
#define TOPK_ROW_FEW_END 7

/* ---- tiles and split: rows streamed through shared memory ----------------------------------- */

/*
 * X(scanning threads, candidates held, blocks a multiprocessor)
 * One more warp feeds the ring of stages. A candidate buffer must hold the largest fast K and one
 * whole stage, so that it can be cut back to K before it overflows.
 */
#define TOPK_STREAM_POLICIES(X)                                                                    \
    X(512, 6144, 2)                                                                                \
    X(512, 8192, 1)

#define TOPK_STAGE_SCORES 4096 /* choice: 16 KB, one barrier of the block a stage */
#define TOPK_STAGES_MAX 8      /* choice: 128 KB in flight is 3.7 us of reading at full speed */
#define TOPK_UNIT_SCORES 1024  /* shares of work are cut at multiples of this */
#define TOPK_SAMPLE_UNIT 16    /* scores: 64 bytes, the cheapest sample by traffic (TUNING.md) */
#define TOPK_STREAM_BLOCKS_MAX 512  /* a row has at most one part a block, a thread reads each */
#define TOPK_STREAM_MISC_BYTES 1024 /* barriers, counters and lists beside the big arrays */

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
