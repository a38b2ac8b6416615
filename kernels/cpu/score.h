/*
 * What a score is made of. Only this file, the loads of the files isa_*.c and the check of a
 * request know that scores may have 16 bits; everything else works on rows and on float32.
 */
#ifndef TOPKSEL_CPU_SCORE_H
#define TOPKSEL_CPU_SCORE_H

#include <string.h>

#include "topk_select.h"

/* A row of scores. Its parts are found by position; nothing else is done with the pointer. */
struct topk_row {
    const void *scores;
    enum topk_dtype dtype;
};

static inline size_t topk_score_bytes(enum topk_dtype dtype)
{
    return dtype == TOPK_DTYPE_FLOAT32 ? sizeof(float) : sizeof(uint16_t);
}

/* Where score i of a row lies. */
static inline const void *topk_score_place(struct topk_row row, int64_t i)
{
    return (const char *)row.scores + i * (int64_t)topk_score_bytes(row.dtype);
}

static inline float topk_float_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* Exponents of float16, and how far they are from those of float32, at float32's place. */
#define TOPK_HALF_NORMAL (1 << 23)  /* the least magnitude that is no subnormal */
#define TOPK_HALF_INF (31 << 23)    /* infinity; NaN are above */
#define TOPK_HALF_BIAS (112 << 23)  /* 127 - 15 */
#define TOPK_HALF_QUIET 0x00400000u /* the bit that makes a NaN quiet */

/*
 * The number of a float16. A subnormal's bits are put below a leading one, which a subtraction
 * takes off again: exact, and no operand or result is a subnormal float32, which is slow.
 */
static inline float topk_float16_value(uint16_t half)
{
    uint32_t magnitude = (half & 0x7fffu) << 13, sign = (half & 0x8000u) << 16, bits;
    if (magnitude < TOPK_HALF_NORMAL) {
        const uint32_t one = TOPK_HALF_BIAS + TOPK_HALF_NORMAL;
        float value = topk_float_of_bits(magnitude + one) - topk_float_of_bits(one);
        memcpy(&bits, &value, sizeof(bits));
    } else {
        bits = magnitude + TOPK_HALF_BIAS;
        bits += magnitude >= TOPK_HALF_INF ? TOPK_HALF_BIAS : 0;
        bits |= magnitude > TOPK_HALF_INF ? TOPK_HALF_QUIET : 0;
    }
    return topk_float_of_bits(bits | sign);
}

static inline float topk_bfloat16_value(uint16_t half)
{
    return topk_float_of_bits((uint32_t)half << 16);
}

/* Positive infinity of a type of 16 bits. */
static inline uint16_t topk_half_inf(enum topk_dtype dtype)
{
    return dtype == TOPK_DTYPE_FLOAT16 ? TOPK_HALF_INF >> 13 : 0x7f80;
}

/*
 * The least bit pattern whose number reaches a bound above zero. As positive numbers rank as their
 * patterns do, a score of 16 bits reaches the bound when its pattern is from here up to infinity:
 * the test of a whole pass, with no conversion.
 */
static inline uint16_t topk_half_floor(float bound, enum topk_dtype dtype)
{
    uint32_t bits;
    memcpy(&bits, &bound, sizeof(bits));
    if (dtype == TOPK_DTYPE_BFLOAT16) {
        return (uint16_t)((bits + 0xffffu) >> 16);
    }
    if (bound < 0x1p-14f) { /* subnormal: steps of 2^-24 */
        const float steps = bound * 0x1p24f;
        const uint16_t whole = (uint16_t)steps;
        return (uint16_t)(whole + ((float)whole < steps ? 1 : 0));
    }
    const uint32_t floor = (bits - TOPK_HALF_BIAS + 0x1fffu) >> 13;
    return floor < topk_half_inf(dtype) ? (uint16_t)floor : topk_half_inf(dtype);
}

#endif
