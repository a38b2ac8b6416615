/*
 * bench_own.h - a selection alone: what of it is the GPU's time, beside the way to it. Whatever
 * fails ends the process with what it was.
 */
#ifndef TOPKD_BENCH_OWN_H
#define TOPKD_BENCH_OWN_H

#include <cuda.h>
#include <stddef.h>
#include <stdint.h>

#define CU(call) own_check_cu(#call, (call))

struct own_shape {
    int32_t rows, width, k;
};

void own_check_cu(const char *call, CUresult result);

/* The first GPU's primary context becomes the thread's. */
void own_open_gpu(CUdevice *device_p);

/* Scores of bench_scores.h into device memory. */
void own_fill(CUdeviceptr d_scores, size_t count);

/* Microseconds of a selection: the best of some runs of replays of its graph, back to back. */
float own_time_us(const struct own_shape *shape);

#endif
