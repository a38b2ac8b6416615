/* AVX-512 F (with VL, BW and DQ, as every server processor with F has them), BMI1 and POPCNT. */
#include "cpu/isa.h"
#include "cpu/lanes.h"

#include <immintrin.h>
#include <math.h>

#define LANES 16
#define DENSE_MIN 9 /* choice: compressing sixteen at once costs half of AVX2's eight */

typedef __m512 bound_vector;

static inline __m512 bound_of(float bound)
{
    return _mm512_set1_ps(bound);
}

static bool usable(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("bmi") && __builtin_cpu_supports("popcnt");
}

static inline uint64_t mask16(const float *scores, __m512 bound)
{
    return _mm512_cmp_ps_mask(_mm512_loadu_ps(scores), bound, _CMP_GE_OQ);
}

static inline uint64_t mask64(const float *scores, __m512 bounds)
{
    return mask16(scores, bounds) | (mask16(scores + 16, bounds) << 16) |
           (mask16(scores + 32, bounds) << 32) | (mask16(scores + 48, bounds) << 48);
}

static inline int32_t count_bits(uint64_t mask)
{
    return (int32_t)_mm_popcnt_u64(mask);
}

/* The mask of the first `left` lanes, all of them from LANES on. */
static inline __mmask16 first_lanes(int32_t left)
{
    return (__mmask16)(left < LANES ? (1u << left) - 1u : 0xffffu);
}

/* Compressing in a register and storing a whole vector is the quick form on every maker's
 * processors; a compressing store is microcoded on some. */
static inline void store_compressed(float *values, int32_t *positions, __mmask16 mask, __m512 value,
                                    __m512i position)
{
    _mm512_storeu_ps(values, _mm512_maskz_compress_ps(mask, value));
    _mm512_storeu_si512(positions, _mm512_maskz_compress_epi32(mask, position));
}

static int32_t append_dense(const float *scores, int32_t first, uint64_t mask,
                            struct topk_list *list, int32_t count)
{
    __m512i iota = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    for (int32_t g = 0; g < TOPK_BLOCK_SCORES; g += LANES, mask >>= LANES) {
        __mmask16 hits = (__mmask16)mask;
        store_compressed(list->values + count, list->positions + count, hits,
                         _mm512_loadu_ps(scores + g),
                         _mm512_add_epi32(iota, _mm512_set1_epi32(first + g)));
        count += (int32_t)_mm_popcnt_u32(hits);
    }
    return count;
}

#include "cpu/admit.h"

static int32_t count_at_least(const float *values, int32_t count, float bound)
{
    __m512 bounds = _mm512_set1_ps(bound);
    int32_t found = 0, i = 0;
    for (; count - i >= TOPK_BLOCK_SCORES; i += TOPK_BLOCK_SCORES) {
        found += count_bits(mask64(values + i, bounds));
    }
    for (; i < count; i++) {
        found += values[i] >= bound;
    }
    return found;
}

static void range(const float *values, int32_t count, float from, float upto, float *min_p,
                  float *max_p)
{
    const __m512 froms = _mm512_set1_ps(from), uptos = _mm512_set1_ps(upto);
    __m512 lows = _mm512_set1_ps(INFINITY), highs = _mm512_set1_ps(-INFINITY);
    for (int32_t i = 0; i < count; i += LANES) {
        __mmask16 live = first_lanes(count - i);
        __m512 value = _mm512_maskz_loadu_ps(live, values + i);
        __mmask16 within = _mm512_mask_cmp_ps_mask(live, value, froms, _CMP_GE_OQ);
        within = _mm512_mask_cmp_ps_mask(within, value, uptos, _CMP_LE_OQ);
        lows = _mm512_mask_min_ps(lows, within, lows, value);
        highs = _mm512_mask_max_ps(highs, within, highs, value);
    }
    *min_p = _mm512_reduce_min_ps(lows);
    *max_p = _mm512_reduce_max_ps(highs);
}

/* In place: a store ends at or before the vector just loaded. */
static void keep(struct topk_list *list, float bound, int32_t num_ties)
{
    __m512 bounds = _mm512_set1_ps(bound);
    int32_t kept = 0;
    for (int32_t i = 0; i < list->count; i += LANES) {
        __mmask16 live = first_lanes(list->count - i);
        __m512 value = _mm512_loadu_ps(list->values + i); /* the slack covers the last vector */
        __m512i position = _mm512_loadu_si512(list->positions + i);
        uint32_t mask = _mm512_mask_cmp_ps_mask(live, value, bounds, _CMP_GT_OQ);
        uint32_t ties = _mm512_mask_cmp_ps_mask(live, value, bounds, _CMP_EQ_OQ);
        mask |= topk_first_ties(ties, &num_ties);
        store_compressed(list->values + kept, list->positions + kept, (__mmask16)mask, value,
                         position);
        kept += (int32_t)_mm_popcnt_u32(mask);
    }
    list->count = kept;
}

const struct topk_isa topk_isa_avx512 = {
    .name = "avx512",
    .usable = usable,
    .admit = admit,
    .count_at_least = count_at_least,
    .range = range,
    .keep = keep,
};
