/* AVX2 with the bit instructions that every AVX2 processor has (BMI1, POPCNT). */
#include "cpu/isa.h"
#include "cpu/lanes.h"

#include <immintrin.h>
#include <math.h>

#define LANES 8
#define DENSE_MIN 13 /* choice: eight compressions cost about as much as so many single entries */

typedef __m256 bound_vector;

static inline __m256 bound_of(float bound)
{
    return _mm256_set1_ps(bound);
}

static bool usable(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") &&
           __builtin_cpu_supports("popcnt");
}

/* Bit j: scores[j] >= bound, for 32 scores. The packs work within 128-bit halves; the permutation
 * puts the bytes back in order. */
static inline uint32_t mask32(const float *scores, __m256 bound)
{
    __m256i c0 = _mm256_castps_si256(_mm256_cmp_ps(_mm256_loadu_ps(scores), bound, _CMP_GE_OQ));
    __m256i c1 = _mm256_castps_si256(_mm256_cmp_ps(_mm256_loadu_ps(scores + 8), bound, _CMP_GE_OQ));
    __m256i c2 =
        _mm256_castps_si256(_mm256_cmp_ps(_mm256_loadu_ps(scores + 16), bound, _CMP_GE_OQ));
    __m256i c3 =
        _mm256_castps_si256(_mm256_cmp_ps(_mm256_loadu_ps(scores + 24), bound, _CMP_GE_OQ));
    __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(c0, c1), _mm256_packs_epi32(c2, c3));
    __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    return (uint32_t)_mm256_movemask_epi8(_mm256_permutevar8x32_epi32(bytes, order));
}

static inline uint64_t mask64(const float *scores, __m256 bounds)
{
    return mask32(scores, bounds) | ((uint64_t)mask32(scores + 32, bounds) << 32);
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
static int32_t append_dense(const float *scores, int32_t first, uint64_t mask,
                            struct topk_list *list, int32_t count)
{
    for (int32_t g = 0; g < TOPK_BLOCK_SCORES; g += LANES, mask >>= LANES) {
        __m256i lanes = lanes_of_mask((uint32_t)mask & 0xffu);
        __m256 values = _mm256_permutevar8x32_ps(_mm256_loadu_ps(scores + g), lanes);
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
    .admit = admit,
    .count_at_least = count_at_least,
    .range = range,
    .keep = keep,
};
