/*
 * bench_cuda_inputs.cuh - score rows made on the device, and the check of a result on the device.
 */
#ifndef TOPKD_BENCH_CUDA_INPUTS_CUH
#define TOPKD_BENCH_CUDA_INPUTS_CUH

#include "score_kinds.hpp"
#include "topk_select.h"

#include <cuda_runtime.h>

#include <cstddef>

/* The rows of all matrices of a cell, one behind the other; pointers are of the device. */
struct bench_rows {
    const int *lengths; /* [count] */
    long count, width;
    long stride;  /* scores from one row to the next; what lies behind a row's width is +inf */
    int k;        /* of the selection, for BENCH_TILE */
    float period; /* of a tooth of BENCH_SAW, as a part of the row's length */
};

/* What was selected of them; pointers are of the device. */
struct bench_result {
    const int *indices;  /* [count, k] */
    const float *values; /* [count, k], or null: none were asked for */
    int k;
    bool by_index, by_value; /* the order that was asked for, with the lowest ties */
};

/* Fills scores[count, stride] of a type, rounded to it; beyond lengths[row] lies -inf, and +inf
 * beyond the width, where no selector may look. */
void bench_fill(void *scores, enum topk_dtype dtype, const struct bench_rows &rows,
                enum bench_scores kind);

/* A page table [rows, pages_a_row] that leaves every position as it is. */
void bench_fill_pages(int *pages, long rows, int pages_a_row);

/* 32-bit words of scratch a row that bench_check needs. */
size_t bench_check_words(int width);

/*
 * The number of rows whose result is not an exact selection, is in another order than the wanted
 * one, or has a value that is not its score. Blocks until done.
 */
int bench_check(const void *scores, enum topk_dtype dtype, const struct bench_rows &rows,
                const struct bench_result &result, unsigned *bits, int *bad, cudaStream_t stream);

#endif
