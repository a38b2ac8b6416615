/*
 * Any processor: vectors of four floats in the notation that GCC and Clang share, which become
 * SSE2, NEON or whatever the target has, or plain code where it has nothing.
 */
#include <math.h>
#include <string.h>

#include "cpu/isa.h"

#define LANES 4
#define DENSE_MIN 20 /* choice: a step of the dense loop costs a third of a single entry */

typedef float float_vector __attribute__((vector_size(16)));
typedef uint32_t mask_vector __attribute__((vector_size(16)));
typedef float_vector bound_vector;

static bool usable(void)
{
    return true;
}

static inline float_vector bound_of(float bound)
{
    return (float_vector){bound, bound, bound, bound};
}

static inline float_vector load(const float *scores)
{
    float_vector vector;
    memcpy(&vector, scores, sizeof(vector));
    return vector;
}

/* Bit j of the 32 lowest: scores[j] >= bound, for 32 scores. Each lane gathers the bits of eight
 * vectors at its own place. */
static inline uint64_t mask32(const float *scores, float_vector bounds)
{
    mask_vector bits = {1, 2, 4, 8}, gathered = {0, 0, 0, 0};
    for (int32_t i = 0; i < 32; i += LANES) {
        gathered |= (mask_vector)(load(scores + i) >= bounds) & bits;
        bits <<= LANES;
    }
    uint64_t halves[2];
    memcpy(halves, &gathered, sizeof(halves));
    uint64_t both = halves[0] | halves[1];
    return (both | (both >> 32)) & 0xffffffffu;
}

static inline uint64_t mask64(const float *scores, float_vector bounds)
{
    return mask32(scores, bounds) | (mask32(scores + 32, bounds) << 32);
}

/* The usual sums of neighbouring fields: the instruction may be missing. */
static inline int32_t count_bits(uint64_t mask)
{
    mask -= (mask >> 1) & 0x5555555555555555u;
    mask = (mask & 0x3333333333333333u) + ((mask >> 2) & 0x3333333333333333u);
    mask = (mask + (mask >> 4)) & 0x0f0f0f0f0f0f0f0fu;
    return (int32_t)((mask * 0x0101010101010101u) >> 56);
}

/* Branch-free: every score is written, the count moves on only past a marked one. */
static int32_t append_dense(const float *scores, int32_t first, uint64_t mask,
                            struct topk_list *list, int32_t count)
{
    for (int32_t j = 0; j < TOPK_BLOCK_SCORES; j++, mask >>= 1) {
        list->values[count] = scores[j];
        list->positions[count] = first + j;
        count += (int32_t)(mask & 1);
    }
    return count;
}

#include "cpu/admit.h"

static int32_t count_at_least(const float *values, int32_t count, float bound)
{
    const float_vector bounds = bound_of(bound);
    mask_vector sums[2] = {{0, 0, 0, 0}, {0, 0, 0, 0}};
    int32_t i = 0;
    for (; count - i >= 2 * LANES; i += 2 * LANES) {
        sums[0] -= (mask_vector)(load(values + i) >= bounds);
        sums[1] -= (mask_vector)(load(values + i + LANES) >= bounds);
    }
    mask_vector sum = sums[0] + sums[1];
    int32_t found = (int32_t)(sum[0] + sum[1] + sum[2] + sum[3]);
    for (; i < count; i++) {
        found += values[i] >= bound;
    }
    return found;
}

/* The lanes of `yes` where the mask is set, of `no` elsewhere. */
static inline float_vector pick(mask_vector mask, float_vector yes, float_vector no)
{
    return (float_vector)(((mask_vector)yes & mask) | ((mask_vector)no & ~mask));
}

static void range(const float *values, int32_t count, float from, float upto, float *min_p,
                  float *max_p)
{
    const float_vector froms = bound_of(from), uptos = bound_of(upto);
    float_vector lows = bound_of(INFINITY), highs = bound_of(-INFINITY);
    int32_t i = 0;
    for (; count - i >= LANES; i += LANES) {
        float_vector value = load(values + i);
        mask_vector within = (mask_vector)(value >= froms) & (mask_vector)(value <= uptos);
        lows = pick((mask_vector)(value < lows) & within, value, lows);
        highs = pick((mask_vector)(value > highs) & within, value, highs);
    }
    float low = INFINITY, high = -INFINITY;
    for (int32_t lane = 0; lane < LANES; lane++) {
        low = lows[lane] < low ? lows[lane] : low;
        high = highs[lane] > high ? highs[lane] : high;
    }
    for (; i < count; i++) {
        bool within = values[i] >= from && values[i] <= upto;
        low = within && values[i] < low ? values[i] : low;
        high = within && values[i] > high ? values[i] : high;
    }
    *min_p = low;
    *max_p = high;
}

static void keep(struct topk_list *list, float bound, int32_t num_ties)
{
    int32_t kept = 0;
    for (int32_t i = 0; i < list->count; i++) {
        float value = list->values[i];
        bool tie = value == bound && num_ties > 0;
        list->values[kept] = value;
        list->positions[kept] = list->positions[i];
        kept += value > bound || tie;
        num_ties -= tie;
    }
    list->count = kept;
}

const struct topk_isa topk_isa_portable = {
    .name = "portable",
    .usable = usable,
    .admit = admit,
    .count_at_least = count_at_least,
    .range = range,
    .keep = keep,
};
