/*
 * bench_inputs.cuh - score rows made on the device, and the check of a result on the device.
 *
 * The score families and lengths are those that the anchors (README.md) were measured with.
 */
#ifndef TOPKD_BENCH_INPUTS_CUH
#define TOPKD_BENCH_INPUTS_CUH

#include <cuda_runtime.h>

#include <cstddef>

#define BENCH_SCORES_TABLE(X)                                                                      \
    X(BENCH_INDEXER, "indexer")     /* weighted ReLU over heads, sink and recency boost */         \
    X(BENCH_NORMAL, "normal")       /* standard normal */                                          \
    X(BENCH_TIES, "ties")           /* normal, rounded down to quarters */                         \
    X(BENCH_CLUSTERED, "clustered") /* uniform in [1, 1.245) */                                    \
    X(BENCH_CONST, "const")         /* one value */

enum bench_scores {
#define BENCH_SCORES_ENUM(name, short_name) name,
    BENCH_SCORES_TABLE(BENCH_SCORES_ENUM) BENCH_SCORES_COUNT
#undef BENCH_SCORES_ENUM
};

extern const char *const bench_scores_names[];

/* Valid length of row `row` of a matrix; `run` counts rows over all matrices of a rotation. */
int bench_length(int row, long run, int rows, int width);

/* Fills scores[rows, width]; beyond lengths[row] lies -inf. */
void bench_fill(float *scores, const int *lengths, long rows, int width, enum bench_scores kind);

/* 32-bit words of scratch a row that bench_check needs. */
size_t bench_check_words(int width);

/*
 * The number of rows whose indices[rows, k] are not an exact selection; with `ordered` they must
 * also ascend and take the lowest positions of equal scores. Blocks until done.
 */
int bench_check(const float *scores, const int *lengths, const int *indices, long rows, int width,
                int k, bool ordered, unsigned *bits, int *bad, cudaStream_t stream);

#endif
