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
 * X(threads, scores a thread, blocks a multiprocessor, early, quick, rows, k)
 * threads * scores is the widest row. `early`: the row is loaded up to its width beside its length
 * instead of after it: sooner, but more traffic when lengths are short. `quick`: all scores are
 * counted, without a sample (row_quick.cuh). `rows`: for at most so many rows, in quarters of a row
 * a multiprocessor; `k`: for at most so large a K; 0: for any. The planner takes the first that
 * serves a shape (H200, 2026-11-30: TUNING.md has the times). Scores of 16 bits have tables of
 * their own: TOPK_HALF_POLICIES and TOPK_HALF_SHORT_POLICIES.
 */
#define TOPK_ROW_POLICIES(X)                                                                       \
    X(512, 8, 1, 1, 1, 4, 0)                                                                       \
    X(256, 16, 4, 0, 0, 16, 1024)                                                                  \
    X(256, 16, 4, 1, 1, 16, 0)                                                                     \
    X(256, 16, 5, 0, 0, 0, 1024)                                                                   \
    X(256, 16, 5, 0, 1, 0, 0)                                                                      \
    X(512, 16, 1, 1, 1, 4, 0)                                                                      \
    X(256, 32, 4, 0, 0, 0, 0)                                                                      \
    X(512, 32, 1, 1, 1, 4, 0)                                                                      \
    X(512, 32, 2, 0, 0, 0, 0)                                                                      \
    X(1024, 32, 1, 0, 0, 0, 0)                                                                     \
    TOPK_ROW_EXPERIMENTS(X)

/*
 * Policies to be measured, in builds with -DTOPKD_EXPERIMENTS=ON only. `rows` of -1: never chosen;
 * `bench_cuda_select --variants` tries them. TUNING.md says what is expected of each.
 */
#ifdef TOPK_EXPERIMENTS
#define TOPK_ROW_EXPERIMENTS(X) X(256, 32, 4, 1, 0, -1, 0)
#else
#define TOPK_ROW_EXPERIMENTS(X)
#endif

/*
 * row, of scores of 16 bits, the short way: a row in registers, as of float32 (TOPK_ROW_POLICIES),
 * numbered behind those of TOPK_HALF_POLICIES; the planner looks here first. What counts there is
 * how many steps follow each other, and those are the same for every type.
 */
#define TOPK_HALF_SHORT_POLICIES(X)                                                                \
    X(512, 8, 1, 1, 1, 4, 0)                                                                       \
    X(256, 16, 5, 0, 1, 0, 0)                                                                      \
    X(512, 16, 1, 1, 1, 4, 0)                                                                      \
    X(256, 32, 4, 0, 1, 0, 0)                                                                      \
    X(512, 32, 1, 1, 1, 4, 0)

/*
 * row, of scores of 16 bits, other rows: a row in the shared memory of one block.
 * X(threads, scores a thread, blocks a multiprocessor, rows)
 * threads * scores is the widest row whose start is aligned to 16 bytes. `rows` as above.
 */
#define TOPK_HALF_POLICIES(X)                                                                      \
    X(256, 64, 4, 0)                                                                               \
    X(1024, 32, 1, 4)                                                                              \
    X(512, 64, 2, 0)

#define TOPK_HALF_LIST 3584 /* entries admitted of a row; four blocks fit a multiprocessor */
#define TOPK_HALF_STATE_BYTES 23552 /* of a block, beside its row */

/* ---- tiles and split: rows streamed through shared memory ----------------------------------- */

/*
 * X(warps that finish rows, warps that scan, candidates held of a row, rows they are held of)
 * Two more roles: a few warps sample, one feeds the ring of stages. A candidate buffer must hold
 * twice the largest fast K, and K beside one chunk, so that it can be cut back to K before it
 * overflows.
 */
#define TOPK_STREAM_POLICIES(X)                                                                    \
    X(8, 12, 6144, 2) /* 24 warps of 80 registers; a ring of 96 KB */                              \
    X(8, 8, 4096, 1)  /* devices with less shared memory */

#define TOPK_STREAM_SAMPLE_WARPS 3

#define TOPK_CHUNK_SCORES 1024 /* what a warp takes at a time: one mark a score in 32 bits */
#define TOPK_STAGE_BYTES 8192  /* choice: of a bulk copy; two chunks of float32 */
#define TOPK_STAGES_MAX                                                                            \
    16 /* a multiple of the warps that share them; choice: 128 KB in flight is 3.7 us of reading   \
          at full speed */
#define TOPK_UNIT_SCORES 1024       /* shares of work are cut at multiples of this */
#define TOPK_STREAM_SAMPLE_MAX 8192 /* scores; twice as many where no cluster takes the row */
#define TOPK_SAMPLE_UNIT 16         /* scores; 64 bytes of float32, the cheapest by traffic */
#define TOPK_STREAM_BLOCKS_MAX 512  /* a row has at most one part a block, two a thread */
#define TOPK_STREAM_MISC_BYTES 3072 /* barriers, counters and lists beside the big arrays */

/* ---- cluster: a row in the blocks of a cluster ------------------------------------------------
 */

/*
 * X(threads, blocks a multiprocessor, blocks a cluster, rows)
 * `rows`: for so many rows on 132 multiprocessors. Clusters do not cross the groups of
 * multiprocessors of a device, which differ in size, so that fewer start at once than a division
 * would have it: an H200 starts 7 clusters of 16, 16 of 6, 24 of 4 or 32 of 3 (2026-11-30). A row
 * more, and the last cluster waits for the first to end.
 */
#define TOPK_CLUSTER_POLICIES(X)                                                                   \
    X(512, 1, 16, 7)                                                                               \
    X(512, 1, 8, 8)                                                                                \
    X(512, 1, 6, 16)                                                                               \
    X(512, 1, 4, 24)                                                                               \
    X(512, 1, 3, 32)                                                                               \
    X(512, 1, 2, 66)

/*
 * Several clusters a row of float32, where one would read it for too long; what they admit goes
 * through global memory (cluster_several.cu). Numbered behind those above; the planner looks here
 * first. X(threads, blocks a multiprocessor, blocks a cluster, clusters a row, rows); `rows` of -1:
 * for none, but for the tests of small devices.
 */
#define TOPK_CLUSTER_SEVERAL_POLICIES(X)                                                           \
    X(512, 1, 16, 4, 1)                                                                            \
    X(512, 1, 2, 3, -1)

#define TOPK_CLUSTER_ROWS_OF 132       /* multiprocessors that `rows` is given for */
#define TOPK_CLUSTER_WIDTH_ABOVE 16384 /* shorter rows are quicker in one block; H200, measured */
#define TOPK_CLUSTER_WIDTH_MAX                                                                     \
    (4 << 20)                       /* of longer ones the sample says too little for the list */
#define TOPK_CLUSTER_SLICE_MIN 4096 /* scores a block; H200: twice what each samples pays */
#define TOPK_CLUSTER_PARTS_MAX 4    /* clusters a row; a word counts what each has */
#define TOPK_CLUSTER_PART_SLICE_MIN 16384 /* the same where several share a row; H200, measured */
#define TOPK_CLUSTER_PART_BYTES 74240     /* of workspace a part of a row: lists and a count */
#define TOPK_CLUSTER_PART_ALIGN 256       /* of what lies in the workspace */
#define TOPK_CLUSTER_BATCH_BYTES 32768    /* of a stage; a block takes its scores at once */
#define TOPK_CLUSTER_STAGES_MAX 4         /* choice: 128 KB in flight a block */
#define TOPK_CLUSTER_STAGES_LARGE 3       /* in clusters of more than 4 blocks; H200, measured */
#define TOPK_CLUSTER_BATCHES_MAX 432      /* of all blocks at once: 13.5 MB; H200, measured */
#define TOPK_CLUSTER_LIST 8192            /* scores admitted of a row: four times the fast K */
#define TOPK_CLUSTER_SAMPLE_MAX 16384     /* scores of a sample, held in registers */
#define TOPK_CLUSTER_STATE_BYTES 91776    /* of a block, beside the stages of its ring */
#define TOPK_CLUSTER_BLOCKS_MAX 16        /* of a cluster; more than 8 are not portable */

/* ---- wide: a row in the registers of a cluster ------------------------------------------------
 */

/* What a policy of wide is for. */
#define TOPK_WIDE_ALL 0
#define TOPK_WIDE_ANY_ORDER 1 /* to put so much of a row in order costs what it gains */
#define TOPK_WIDE_FLOAT32 2   /* any order too; half of the bytes are as soon read by others */

/*
 * X(threads, scores a thread, blocks a cluster, rows, above, use)
 * threads * scores * blocks is the widest row; narrower ones than `above` are left to others.
 * `rows` as of TOPK_CLUSTER_POLICIES; an H200 starts 12 clusters of 8 at once, 24 of 4, 32 of 3.
 * The planner takes the first that serves a shape (H200, 2026-12-01: TUNING.md has the times).
 */
#define TOPK_WIDE_POLICIES(X)                                                                      \
    X(512, 4, 4, 4, 4096, TOPK_WIDE_ALL)                                                           \
    X(512, 4, 8, 12, 8192, TOPK_WIDE_ALL)                                                          \
    X(512, 8, 8, 12, 16384, TOPK_WIDE_ALL)                                                         \
    X(512, 8, 16, 7, 32768, TOPK_WIDE_ALL)                                                         \
    X(512, 16, 16, 7, 65536, TOPK_WIDE_ALL)                                                        \
    X(512, 24, 16, 7, 131072, TOPK_WIDE_ALL)                                                       \
    X(512, 32, 16, 7, 196608, TOPK_WIDE_ALL)                                                       \
    X(768, 32, 16, 7, 262144, TOPK_WIDE_FLOAT32)                                                   \
    X(512, 8, 4, 24, 8192, TOPK_WIDE_ALL)                                                          \
    X(512, 12, 6, 16, 16384, TOPK_WIDE_ALL)                                                        \
    X(512, 24, 6, 16, 32768, TOPK_WIDE_ALL)                                                        \
    X(512, 32, 8, 12, 73728, TOPK_WIDE_ALL)                                                        \
    X(768, 32, 6, 16, 73728, TOPK_WIDE_FLOAT32)                                                    \
    X(512, 16, 4, 24, 16384, TOPK_WIDE_ALL)                                                        \
    X(512, 24, 4, 24, 32768, TOPK_WIDE_ALL)                                                        \
    X(1024, 16, 4, 24, 49152, TOPK_WIDE_ANY_ORDER)                                                 \
    X(512, 24, 3, 32, 16384, TOPK_WIDE_ALL)                                                        \
    X(768, 32, 3, 32, 32768, TOPK_WIDE_FLOAT32)                                                    \
    X(1024, 16, 2, 66, 16384, TOPK_WIDE_ANY_ORDER)

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
    TOPK_PARAMETER_SNAP,         /* scores from a row's end within which no block is cut off */
    TOPK_PARAMETER_PREFETCH,     /* 1: a row's block asks for its next row ahead of time */
};

#endif
