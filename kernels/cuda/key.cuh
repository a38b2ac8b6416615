/*
 * key.cuh - scores as unsigned keys: a higher key ranks higher.
 *
 *   0                   no score at all (padding); never selected
 *   1                   NaN, either sign, any payload
 *   2 ... 0x007fffff    between: no score has such a key, but a boundary may
 *   0x007fffff          -inf
 *   0x80000000          +0 and -0
 *   0xff800000          +inf
 *
 * Keys of finite scores are the ordered form of the 32 bits, so that a range of keys of one sign
 * is a range of scores, and halving a key range is fair to every binade.
 */
#ifndef TOPKSEL_CUDA_KEY_CUH
#define TOPKSEL_CUDA_KEY_CUH

#include "plan/policy.h"

#include <cstdint>

#define KEY_NAN 1u
#define KEY_MINUS_INF 0x007fffffu
#define KEY_ZERO 0x80000000u
#define KEY_PLUS_INF 0xff800000u
#define KEY_MAX 0xffffffffu

static __host__ __device__ __forceinline__ uint32_t key_of_bits(uint32_t bits)
{
    uint32_t magnitude = bits & 0x7fffffffu;
    uint32_t key = bits ^ ((uint32_t)((int32_t)bits >> 31) | 0x80000000u);
    key = magnitude == 0 ? KEY_ZERO : key;
    return magnitude > 0x7f800000u ? KEY_NAN : key;
}

static __device__ __forceinline__ uint32_t key_of(float score)
{
    uint32_t bits = __float_as_uint(score + 0.0f); /* -0 becomes +0 */
    uint32_t key = bits ^ ((uint32_t)((int32_t)bits >> 31) | 0x80000000u);
    return score != score ? KEY_NAN : key;
}

/* Bits of a score with this key, which occurs. */
static __host__ __device__ __forceinline__ uint32_t key_to_bits(uint32_t key)
{
    uint32_t bits = (key & 0x80000000u) ? key ^ 0x80000000u : ~key;
    return key == KEY_NAN ? 0x7fffffffu : bits;
}

/*
 * The lowest score whose key is at least `key`, as a bit pattern to compare scores with: for every
 * score that is not NaN, key_of(score) >= key exactly when score >= the result. A key above +inf
 * gives NaN, which admits nothing. KEY_NAN must be handled by the caller: no comparison admits NaN.
 */
static __host__ __device__ __forceinline__ uint32_t key_floor_bits(uint32_t key)
{
    key = key < KEY_MINUS_INF ? KEY_MINUS_INF : key;
    return (key & 0x80000000u) ? key ^ 0x80000000u : ~key;
}

/*
 * Coarse bins for a first look at scores of unknown range: sign, 32 binades around 1 and 5 bits of
 * mantissa, truncated, so that the lowest key of a bin is exact. Scores outside the binades share
 * the outermost bins; whoever finds the boundary there looks again with finer bins.
 */
#define COARSE_SHIFT 18            /* keys of a bin: 2^18, 1/32 of a binade */
#define COARSE_LOWEST (112u << 23) /* 2^-15: the lowest magnitude with a bin of its own */
#define COARSE_HALF (TOPK_BINS / 2)

static __host__ __device__ __forceinline__ uint32_t coarse_bin(uint32_t key)
{
    bool positive = (key & 0x80000000u) != 0;
    uint32_t magnitude = positive ? key ^ 0x80000000u : 0x7fffffffu - key;
    uint32_t step = magnitude < COARSE_LOWEST ? 0u : (magnitude - COARSE_LOWEST) >> COARSE_SHIFT;
    step = step < COARSE_HALF - 1 ? step : COARSE_HALF - 1;
    return positive ? COARSE_HALF + step : COARSE_HALF - 1 - step;
}

/* The lowest key of a coarse bin; the lowest bin starts at KEY_NAN. */
static __host__ __device__ __forceinline__ uint32_t coarse_floor(uint32_t bin)
{
    if (bin == 0) {
        return KEY_NAN;
    }
    if (bin == COARSE_HALF) {
        return KEY_ZERO;
    }
    if (bin > COARSE_HALF) {
        return KEY_ZERO + COARSE_LOWEST + ((bin - COARSE_HALF) << COARSE_SHIFT);
    }
    /* Negative: the bin holds magnitudes up to one below the start of the next step. */
    return 0x7fffffffu - (COARSE_LOWEST + ((COARSE_HALF - bin) << COARSE_SHIFT) - 1u);
}

/* How far keys of a range of `span` + 1 are shifted to fall into TOPK_BINS bins. */
static __host__ __device__ __forceinline__ uint32_t range_shift(uint32_t span)
{
    uint32_t shift = 0;
#ifdef __CUDA_ARCH__
    shift = span < TOPK_BINS ? 0u : 21u - (uint32_t)__clz((int)span);
#else
    while ((span >> shift) >= TOPK_BINS) {
        shift++;
    }
#endif
    return shift;
}

#endif
