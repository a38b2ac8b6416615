/* AVX-512 F (with VL, BW and DQ, as every server processor with F has them), BMI1, POPCNT and
 * F16C. */
#include "cpu/isa.h"
#include "cpu/lanes.h"
#include "cpu/score.h"

#include <immintrin.h>
#include <math.h>

#define LANES 16
#define DENSE_MIN 9 /* choice: compressing sixteen at once costs half of AVX2's eight */

static bool usable(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
           topk_lanes_usable();
}

TOPK_EACH_DTYPE __m512 load_scores(const void *row, int32_t i, enum topk_dtype dtype)
{
    const void *halves = (const uint16_t *)row + i;
    switch (dtype) {
    case TOPK_DTYPE_FLOAT16:
        return _mm512_cvtph_ps(_mm256_loadu_si256(halves));
    case TOPK_DTYPE_BFLOAT16:
        return _mm512_castsi512_ps(
            _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(halves)), 16));
    default:
        return _mm512_loadu_ps((const float *)row + i);
    }
}

static inline void store_floats(float *to, __m512 vector)
{
    _mm512_storeu_ps(to, vector);
}

/* Scores of 16 bits compare as they are with a bound above zero, 32 at a time. */
struct bound {
    __m512 floats;
    bool above_zero;     /* only then: */
    __m512i least, span; /* the pattern at the bound, and how far from there to infinity */
};

TOPK_EACH_DTYPE struct bound bound_of(float bound, enum topk_dtype dtype)
{
    struct bound all = {.floats = _mm512_set1_ps(bound), .above_zero = bound > 0.0f};
    if (dtype != TOPK_DTYPE_FLOAT32 && all.above_zero) {
        uint16_t least = topk_half_floor(bound, dtype);
        all.least = _mm512_set1_epi16((short)least);
        all.span = _mm512_set1_epi16((short)(topk_half_inf(dtype) - least));
    }
    return all;
}

TOPK_EACH_DTYPE uint64_t mask16(const void *row, int32_t i, __m512 bounds, enum topk_dtype dtype)
{
    return _mm512_cmp_ps_mask(load_scores(row, i, dtype), bounds, _CMP_GE_OQ);
}

static inline uint64_t halves32(const void *row, int32_t i, const struct bound *bound)
{
    __m512i halves = _mm512_loadu_si512((const uint16_t *)row + i);
    return _mm512_cmple_epu16_mask(_mm512_sub_epi16(halves, bound->least), bound->span);
}

TOPK_EACH_DTYPE uint64_t mask64(const void *row, int32_t i, const struct bound *bound,
                                enum topk_dtype dtype)
{
    if (dtype != TOPK_DTYPE_FLOAT32 && bound->above_zero) {
        return halves32(row, i, bound) | (halves32(row, i + 32, bound) << 32);
    }
    return mask16(row, i, bound->floats, dtype) |
           (mask16(row, i + 16, bound->floats, dtype) << 16) |
           (mask16(row, i + 32, bound->floats, dtype) << 32) |
           (mask16(row, i + 48, bound->floats, dtype) << 48);
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

TOPK_EACH_DTYPE int32_t append_dense(const void *row, int32_t first, uint64_t mask,
                                     struct topk_list *list, int32_t count, enum topk_dtype dtype)
{
    __m512i iota = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    for (int32_t g = 0; g < TOPK_BLOCK_SCORES; g += LANES, mask >>= LANES) {
        __mmask16 hits = (__mmask16)mask;
        store_compressed(list->values + count, list->positions + count, hits,
                         load_scores(row, first + g, dtype),
                         _mm512_add_epi32(iota, _mm512_set1_epi32(first + g)));
        count += (int32_t)_mm_popcnt_u32(hits);
    }
    return count;
}

#include "cpu/admit.h"

static int32_t count_at_least(const float *values, int32_t count, float bound)
{
    const struct bound bounds = bound_of(bound, TOPK_DTYPE_FLOAT32);
    int32_t found = 0, i = 0;
    for (; count - i >= TOPK_BLOCK_SCORES; i += TOPK_BLOCK_SCORES) {
        found += count_bits(mask64(values, i, &bounds, TOPK_DTYPE_FLOAT32));
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
    .read = {TOPK_DTYPE_TABLE(READER_ENTRY)},
    .count_at_least = count_at_least,
    .range = range,
    .keep = keep,
};
