/* A kernel that holds multiprocessors, so that a test can see whether others still make progress.
 */
#ifndef TOPKD_TESTS_SELECT_HOG_H
#define TOPKD_TESTS_SELECT_HOG_H

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Starts num_blocks blocks, each of which takes shared_bytes, until *d_stop (host memory that the
 * device can read) is not 0 or so many cycles have passed.
 */
cudaError_t hog_start(int num_blocks, int shared_bytes, const int *d_stop, long long cycles,
                      cudaStream_t stream);

/* Likewise; *d_running (also host memory) counts the blocks that have begun. */
cudaError_t hog_start_counted(int num_blocks, int shared_bytes, const int *d_stop, int *d_running,
                              long long cycles, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
