/* AVX2 with what every AVX2 processor has (BMI1, POPCNT, F16C). */
#include "cpu/isa.h"
#include "cpu/lanes.h"
#include "cpu/score.h"

#include <immintrin.h>
#include <math.h>

#define LANES 8
#define DENSE_MIN 13 /* choice: eight compressions cost about as much as so many single entries */

static bool usable(void)
{
    return __builtin_cpu_supports("avx2") && topk_lanes_usable();
}

TOPK_EACH_DTYPE __m256 load_scores(const void *row, int32_t i, enum topk_dtype dtype)
{
    const void *halves = (const uint16_t *)row + i;
    switch (dtype) {
    case TOPK_DTYPE_FLOAT16:
        return _mm256_cvtph_ps(_mm_loadu_si128(halves));
    case TOPK_DTYPE_BFLOAT16:
        return _mm256_castsi256_ps(
            _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(halves)), 16));
    default:
        return _mm256_loadu_ps((const float *)row + i);
    }
}

static inline void store_floats(float *to, __m256 vector)
{
    _mm256_storeu_ps(to, vector);
}

/* Scores of 16 bits compare as they are with a bound above zero, sixteen at a time. */
struct bound {
    __m256 floats;
    bool above_zero;       /* only then: */
    __m256i below, beyond; /* the patterns next to those from the bound to infinity */
};

TOPK_EACH_DTYPE struct bound bound_of(float bound, enum topk_dtype dtype)
{
    struct bound all = {.floats = _mm256_set1_ps(bound), .above_zero = bound > 0.0f};
    if (dtype != TOPK_DTYPE_FLOAT32 && all.above_zero) {
        all.below = _mm256_set1_epi16((short)(topk_half_floor(bound, dtype) - 1));
        all.beyond = _mm256_set1_epi16((short)(topk_half_inf(dtype) + 1));
    }
    return all;
}

TOPK_EACH_DTYPE __m256i reach8(const void *row, int32_t i, const struct bound *bound,
                               enum topk_dtype dtype)
{
    return _mm256_castps_si256(
        _mm256_cmp_ps(load_scores(row, i, dtype), bound->floats, _CMP_GE_OQ));
}

static inline __m256i reach16(const void *row, int32_t i, const struct bound *bound)
{
    __m256i halves = _mm256_loadu_si256((const void *)((const uint16_t *)row + i));
    return _mm256_and_si256(_mm256_cmpgt_epi16(halves, bound->below),
                            _mm256_cmpgt_epi16(bound->beyond, halves));
}

/* Bit j: score i + j >= bound, for 32 scores. The packs work within 128-bit halves; the permutation
 * puts the bytes back in order. */
TOPK_EACH_DTYPE uint32_t mask32(const void *row, int32_t i, const struct bound *bound,
                                enum topk_dtype dtype)
{
    if (dtype != TOPK_DTYPE_FLOAT32 && bound->above_zero) {
        __m256i bytes = _mm256_packs_epi16(reach16(row, i, bound), reach16(row, i + 16, bound));
        return (uint32_t)_mm256_movemask_epi8(_mm256_permute4x64_epi64(bytes, 0xd8));
    }
    __m256i c0 = reach8(row, i, bound, dtype), c1 = reach8(row, i + 8, bound, dtype);
    __m256i c2 = reach8(row, i + 16, bound, dtype), c3 = reach8(row, i + 24, bound, dtype);
    __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(c0, c1), _mm256_packs_epi32(c2, c3));
    __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    return (uint32_t)_mm256_movemask_epi8(_mm256_permutevar8x32_epi32(bytes, order));
}

TOPK_EACH_DTYPE uint64_t mask64(const void *row, int32_t i, const struct bound *bound,
                                enum topk_dtype dtype)
{
    return mask32(row, i, bound, dtype) | ((uint64_t)mask32(row, i + 32, bound, dtype) << 32);
}

static inline int32_t count_bits(uint64_t mask)
{
    return (int32_t)_mm_popcnt_u64(mask);
}

static inline __m256i lanes_of_mask(uint32_t mask8)
{
    return _mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)topk_lanes[mask8]));
}

/* Compresses eight at a time; the lane numbers are the position offsets. */
TOPK_EACH_DTYPE int32_t append_dense(const void *row, int32_t first, uint64_t mask,
                                     struct topk_list *list, int32_t count, enum topk_dtype dtype)
{
    for (int32_t g = 0; g < TOPK_BLOCK_SCORES; g += LANES, mask >>= LANES) {
        __m256i lanes = lanes_of_mask((uint32_t)mask & 0xffu);
        __m256 values = _mm256_permutevar8x32_ps(load_scores(row, first + g, dtype), lanes);
        __m256i positions = _mm256_add_epi32(lanes, _mm256_set1_epi32(first + g));
        _mm256_storeu_ps(list->values + count, values);
        _mm256_storeu_si256((__m256i *)(void *)(list->positions + count), positions);
        count += (int32_t)_mm_popcnt_u32((uint32_t)mask & 0xffu);
    }
    return count;
}

#include "cpu/admit.h"

static int32_t count_at_least(const float *values, int32_t count, float bound)
{
    __m256 bounds = _mm256_set1_ps(bound);
    __m256i sums[4] = {_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256(),
                       _mm256_setzero_si256()};
    int32_t i = 0;
    for (; count - i >= 4 * LANES; i += 4 * LANES) {
        for (int32_t u = 0; u < 4; u++) {
            __m256 hit = _mm256_cmp_ps(_mm256_loadu_ps(values + i + u * LANES), bounds, _CMP_GE_OQ);
            sums[u] = _mm256_sub_epi32(sums[u], _mm256_castps_si256(hit));
        }
    }
    __m256i sum =
        _mm256_add_epi32(_mm256_add_epi32(sums[0], sums[1]), _mm256_add_epi32(sums[2], sums[3]));
    int32_t lanes[LANES], found = 0;
    _mm256_storeu_si256((__m256i *)(void *)lanes, sum);
    for (int32_t u = 0; u < LANES; u++) {
        found += lanes[u];
    }
    for (; i < count; i++) {
        found += values[i] >= bound;
    }
    return found;
}

static void range(const float *values, int32_t count, float from, float upto, float *min_p,
                  float *max_p)
{
    const __m256 froms = _mm256_set1_ps(from), uptos = _mm256_set1_ps(upto);
    const __m256 best = _mm256_set1_ps(INFINITY), worst = _mm256_set1_ps(-INFINITY);
    __m256 lows = best, highs = worst;
    int32_t i = 0;
    for (; count - i >= LANES; i += LANES) {
        __m256 value = _mm256_loadu_ps(values + i);
        __m256 within = _mm256_and_ps(_mm256_cmp_ps(value, froms, _CMP_GE_OQ),
                                      _mm256_cmp_ps(value, uptos, _CMP_LE_OQ));
        lows = _mm256_min_ps(lows, _mm256_blendv_ps(best, value, within));
        highs = _mm256_max_ps(highs, _mm256_blendv_ps(worst, value, within));
    }
    float low_lanes[LANES], high_lanes[LANES], low = INFINITY, high = -INFINITY;
    _mm256_storeu_ps(low_lanes, lows);
    _mm256_storeu_ps(high_lanes, highs);
    for (int32_t u = 0; u < LANES; u++) {
        low = low_lanes[u] < low ? low_lanes[u] : low;
        high = high_lanes[u] > high ? high_lanes[u] : high;
    }
    for (; i < count; i++) {
        bool within = values[i] >= from && values[i] <= upto;
        low = within && values[i] < low ? values[i] : low;
        high = within && values[i] > high ? values[i] : high;
    }
    *min_p = low;
    *max_p = high;
}

/* In place: a store ends at or before the vector just loaded. */
static void keep(struct topk_list *list, float bound, int32_t num_ties)
{
    __m256 bounds = _mm256_set1_ps(bound);
    float *values = list->values;
    int32_t *positions = list->positions;
    int32_t kept = 0, i = 0;
    for (; list->count - i >= LANES; i += LANES) {
        __m256 value = _mm256_loadu_ps(values + i);
        __m256i position = _mm256_loadu_si256((const __m256i *)(const void *)(positions + i));
        uint32_t mask = (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(value, bounds, _CMP_GT_OQ));
        uint32_t ties = (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(value, bounds, _CMP_EQ_OQ));
        mask |= topk_first_ties(ties, &num_ties);
        __m256i lanes = lanes_of_mask(mask);
        _mm256_storeu_ps(values + kept, _mm256_permutevar8x32_ps(value, lanes));
        _mm256_storeu_si256((__m256i *)(void *)(positions + kept),
                            _mm256_permutevar8x32_epi32(position, lanes));
        kept += (int32_t)_mm_popcnt_u32(mask);
    }
    for (; i < list->count; i++) {
        bool tie = values[i] == bound && num_ties > 0;
        bool taken = values[i] > bound || tie;
        values[kept] = values[i];
        positions[kept] = positions[i];
        kept += taken;
        num_ties -= tie;
    }
    list->count = kept;
}

const struct topk_isa topk_isa_avx2 = {
    .name = "avx2",
    .usable = usable,
    .read = {TOPK_DTYPE_TABLE(READER_ENTRY)},
    .count_at_least = count_at_least,
    .range = range,
    .keep = keep,
};
