/*
 * The ordered key: an int32 that compares as its float does. Consecutive keys are consecutive
 * floats, so bisecting keys bisects floats. The two zeros have neighbouring keys (-1 and 0) though
 * they are equal; every comparison of scores is a float comparison, so that never shows.
 */
#ifndef TOPKSEL_CPU_KEY_H
#define TOPKSEL_CPU_KEY_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define TOPK_KEY_MINUS_INF ((int32_t)0x807fffff)
#define TOPK_KEY_PLUS_INF ((int32_t)0x7f800000)

static inline int32_t topk_key_of_bits(uint32_t bits)
{
    return (int32_t)(bits ^ (((bits >> 31) != 0 ? 0xffffffffu : 0u) >> 1));
}

static inline int32_t topk_key_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return topk_key_of_bits(bits);
}

static inline float topk_float_of(int32_t key)
{
    uint32_t bits = (uint32_t)topk_key_of_bits((uint32_t)key); /* the map is its own inverse */
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* The smallest float above a number; above +inf there is none: NaN, which no score reaches. */
static inline float topk_next_above(float value)
{
    if (value == 0.0f) {
        return topk_float_of(1); /* from either zero */
    }
    return value == INFINITY ? NAN : topk_float_of(topk_key_of(value) + 1);
}

/* A key for sorting: unsigned, better scores first, equal scores alike, every NaN last. */
static inline uint32_t topk_descending_key(float value)
{
    if (isnan(value)) {
        return UINT32_MAX;
    }
    int32_t key = topk_key_of(value + 0.0f); /* -0 + 0 is +0 */
    return ~((uint32_t)key ^ 0x80000000u);
}

#endif
