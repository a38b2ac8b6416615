#include "canary.h"

#include "detail.h"

#include <inttypes.h>

#define STEP 6361u /* choice: odd, so that it permutes a power of two; no small period */

static uint32_t rank_of(uint64_t seed, uint32_t row, uint32_t position)
{
    return (position * STEP + (uint32_t)(seed * 977u) + row * 4099u) % CANARY_WIDTH;
}

void canary_fill(uint64_t seed, float *scores, int32_t *indices)
{
    for (uint32_t row = 0; row < CANARY_ROWS; row++)
        for (uint32_t i = 0; i < CANARY_WIDTH; i++)
            scores[row * CANARY_WIDTH + i] = (float)rank_of(seed, row, i);
    for (uint32_t i = 0; i < CANARY_ROWS * CANARY_K; i++)
        indices[i] = -2;
}

void canary_args(const float *scores, int32_t *indices, struct topk_args *args_p,
                 struct topk_options *options_p)
{
    *args_p = (struct topk_args){.scores = scores,
                                 .row_stride = CANARY_WIDTH,
                                 .indices = indices,
                                 .index_stride = CANARY_K,
                                 .num_rows = CANARY_ROWS,
                                 .width = CANARY_WIDTH,
                                 .length_all = CANARY_WIDTH,
                                 .k = CANARY_K};
    *options_p = (struct topk_options){.order = TOPK_ORDER_INDEX};
}

bool canary_check(uint64_t seed, const int32_t *indices, char *detail)
{
    for (uint32_t row = 0; row < CANARY_ROWS; row++) {
        int32_t previous = -1;
        for (uint32_t i = 0; i < CANARY_K; i++) {
            int32_t position = indices[row * CANARY_K + i];
            /* K distinct positions, each among the K best: that is the answer. */
            if (position <= previous || position >= CANARY_WIDTH ||
                rank_of(seed, row, (uint32_t)position) < CANARY_WIDTH - CANARY_K) {
                detail_set(detail, TOPKD_E_DEVICE_FAULT,
                           "canary row %" PRIu32 ": entry %" PRIu32 " is %" PRId32
                           ", not one of the %d best positions in ascending order",
                           row, i, position, CANARY_K);
                return false;
            }
            previous = position;
        }
    }
    return true;
}
