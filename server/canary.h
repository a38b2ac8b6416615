/*
 * canary.h - a small selection whose answer is known by construction. Pure.
 *
 * Scores of a row are a permutation of 0 ... CANARY_WIDTH - 1 that the seed shifts, so the k best
 * positions follow from arithmetic and differ from run to run: a stale result does not pass.
 */
#ifndef TOPKD_SERVER_CANARY_H
#define TOPKD_SERVER_CANARY_H

#include "topk_select.h"

#include <stdbool.h>
#include <stdint.h>

#define CANARY_ROWS 4
#define CANARY_WIDTH 16384 /* choice: long enough for the sampled path of every device */
#define CANARY_K 512

/* Writes scores[CANARY_ROWS * CANARY_WIDTH], and -2 to indices[CANARY_ROWS * CANARY_K]. */
void canary_fill(uint64_t seed, float *scores, int32_t *indices);

/* The request: dense, order by index. */
void canary_args(const float *scores, int32_t *indices, struct topk_args *args_p,
                 struct topk_options *options_p);

/* Whether the indices are the answer; else a text in detail[WIRE_DETAIL_SIZE]. */
bool canary_check(uint64_t seed, const int32_t *indices, char *detail);

#endif
