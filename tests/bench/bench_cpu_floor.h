/*
 * The floor of a selection on the CPU: the time to read every valid score once and compare it with
 * a number, with the same threads over the same bytes. No exact selector can read less.
 */
#ifndef TOPKD_BENCH_CPU_FLOOR_H
#define TOPKD_BENCH_CPU_FLOOR_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct bench_floor;

/* Starts the threads; ends the program when that fails. */
struct bench_floor *bench_floor_start(uint32_t num_threads);
void bench_floor_stop(struct bench_floor *floor);

/* Reads and compares every score of rows of `lengths` (or width where NULL); returns how many are
 * at or above bound, so that no compiler can leave the pass out. Blocks. */
int64_t bench_floor_run(struct bench_floor *floor, const float *scores, int64_t row_stride,
                        const int32_t *lengths, int32_t num_rows, int32_t width, float bound);

#ifdef __cplusplus
}
#endif

#endif
