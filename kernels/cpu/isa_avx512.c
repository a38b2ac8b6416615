/* AVX-512 F (with VL, BW and DQ, as every server processor with F has them), BMI1 and POPCNT. */
#include "cpu/isa.h"

#include <immintrin.h>
#include <math.h>

#define LANES 16
#define SPARSE_MAX 4 /* as in isa_avx2.c */
#define DENSE_MIN 9  /* choice: compressing sixteen at once costs half of AVX2's eight */

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

static inline int32_t append_sparse(const float *scores, int32_t first, uint64_t mask,
                                    struct topk_list *list, int32_t count)
{
    int32_t total = (int32_t)_mm_popcnt_u64(mask);
    for (int32_t i = 0; i < SPARSE_MAX; i++) {
        int32_t j = (int32_t)(_tzcnt_u64(mask) & (TOPK_BLOCK_SCORES - 1));
        list->values[count + i] = scores[j];
        list->positions[count + i] = first + j;
        mask &= mask - 1;
    }
    for (int32_t i = SPARSE_MAX; i < total; i++) {
        int32_t j = (int32_t)_tzcnt_u64(mask);
        list->values[count + i] = scores[j];
        list->positions[count + i] = first + j;
        mask &= mask - 1;
    }
    return count + total;
}

/* The last scores of a row: the same with what is beyond the end masked off. */
static void append_tail(const float *row, int32_t begin, int32_t end, struct topk_list *list)
{
    __m512 bound = _mm512_set1_ps(list->boundary);
    __m512i iota = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    for (int32_t i = begin; i < end; i += LANES) {
        __mmask16 live = first_lanes(end - i);
        __m512 value = _mm512_maskz_loadu_ps(live, row + i);
        __mmask16 hits = _mm512_mask_cmp_ps_mask(live, value, bound, _CMP_GE_OQ);
        store_compressed(list->values + list->count, list->positions + list->count, hits, value,
                         _mm512_add_epi32(iota, _mm512_set1_epi32(i)));
        list->count += (int32_t)_mm_popcnt_u32(hits);
    }
}

static int32_t admit(const float *row, int32_t begin, int32_t end, struct topk_list *list)
{
    __m512 bound = _mm512_set1_ps(list->boundary);
    int32_t count = list->count, i = begin;
    for (; end - i >= TOPK_BLOCK_SCORES; i += TOPK_BLOCK_SCORES) {
        const float *scores = row + i;
        uint64_t mask = mask16(scores, bound) | (mask16(scores + 16, bound) << 16) |
                        (mask16(scores + 32, bound) << 32) | (mask16(scores + 48, bound) << 48);
        if (mask == 0) {
            continue;
        }
        if (count >= list->capacity) {
            break;
        }
        count = _mm_popcnt_u64(mask) < DENSE_MIN ? append_sparse(scores, i, mask, list, count)
                                                 : append_dense(scores, i, mask, list, count);
    }
    list->count = count;
    if (end - i >= TOPK_BLOCK_SCORES) {
        return i;
    }
    append_tail(row, i, end, list);
    return end;
}

static int32_t count_at_least(const float *values, int32_t count, float bound)
{
    __m512 bounds = _mm512_set1_ps(bound);
    int32_t found = 0, i = 0;
    for (; count - i >= TOPK_BLOCK_SCORES; i += TOPK_BLOCK_SCORES) {
        uint64_t mask = mask16(values + i, bounds) | (mask16(values + i + 16, bounds) << 16) |
                        (mask16(values + i + 32, bounds) << 32) |
                        (mask16(values + i + 48, bounds) << 48);
        found += (int32_t)_mm_popcnt_u64(mask);
    }
    for (; i < count; i++) {
        found += values[i] >= bound;
    }
    return found;
}

/* MINPS and MAXPS return their second operand when one is a NaN: the accumulator. */
static void range(const float *values, int32_t count, float *min_p, float *max_p)
{
    __m512 lows = _mm512_set1_ps(INFINITY), highs = _mm512_set1_ps(-INFINITY);
    int32_t i = 0;
    for (; count - i >= LANES; i += LANES) {
        __m512 value = _mm512_loadu_ps(values + i);
        lows = _mm512_min_ps(value, lows);
        highs = _mm512_max_ps(value, highs);
    }
    float low = _mm512_reduce_min_ps(lows), high = _mm512_reduce_max_ps(highs);
    for (; i < count; i++) {
        low = values[i] < low ? values[i] : low;
        high = values[i] > high ? values[i] : high;
    }
    *min_p = low;
    *max_p = high;
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
        for (; ties != 0 && num_ties > 0; ties &= ties - 1, num_ties--) {
            mask |= ties & (0u - ties);
        }
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
