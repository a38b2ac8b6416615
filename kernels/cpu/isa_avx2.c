/* AVX2 with the bit instructions that every AVX2 processor has (BMI1, POPCNT). */
#include "cpu/isa.h"
#include "cpu/lanes.h"

#include <immintrin.h>
#include <math.h>

#define LANES 8
#define SPARSE_MAX 4 /* entries a block writes without a branch; measured, Zen 3 */
#define DENSE_MIN 13 /* from here on whole vectors are compressed; measured, Zen 3 */

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

static inline __m256i lanes_of_mask(uint32_t mask8)
{
    return _mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)topk_lanes[mask8]));
}

/* Many admitted: compress eight at a time. The lane numbers are the position offsets. */
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

/* Few admitted: SPARSE_MAX entries are written whatever the mask holds, so that the usual block
 * has no branch that depends on the number. */
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

static void append_scalar(const float *row, int32_t begin, int32_t end, struct topk_list *list)
{
    for (int32_t i = begin; i < end; i++) {
        list->values[list->count] = row[i];
        list->positions[list->count] = i;
        list->count += row[i] >= list->boundary;
    }
}

static int32_t admit(const float *row, int32_t begin, int32_t end, struct topk_list *list)
{
    __m256 bound = _mm256_set1_ps(list->boundary);
    int32_t count = list->count, i = begin;
    for (; end - i >= TOPK_BLOCK_SCORES; i += TOPK_BLOCK_SCORES) {
        const float *scores = row + i;
        uint64_t mask = mask32(scores, bound) | ((uint64_t)mask32(scores + 32, bound) << 32);
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
    append_scalar(row, i, end, list);
    return end;
}

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

/* MINPS and MAXPS return their second operand when one is a NaN: the accumulator. */
static void range(const float *values, int32_t count, float *min_p, float *max_p)
{
    __m256 lows = _mm256_set1_ps(INFINITY), highs = _mm256_set1_ps(-INFINITY);
    int32_t i = 0;
    for (; count - i >= LANES; i += LANES) {
        __m256 value = _mm256_loadu_ps(values + i);
        lows = _mm256_min_ps(value, lows);
        highs = _mm256_max_ps(value, highs);
    }
    float low_lanes[LANES], high_lanes[LANES];
    _mm256_storeu_ps(low_lanes, lows);
    _mm256_storeu_ps(high_lanes, highs);
    float low = INFINITY, high = -INFINITY;
    for (int32_t u = 0; u < LANES; u++) {
        low = low_lanes[u] < low ? low_lanes[u] : low;
        high = high_lanes[u] > high ? high_lanes[u] : high;
    }
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
    __m256 bounds = _mm256_set1_ps(bound);
    float *values = list->values;
    int32_t *positions = list->positions;
    int32_t kept = 0, i = 0;
    for (; list->count - i >= LANES; i += LANES) {
        __m256 value = _mm256_loadu_ps(values + i);
        __m256i position = _mm256_loadu_si256((const __m256i *)(const void *)(positions + i));
        uint32_t mask = (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(value, bounds, _CMP_GT_OQ));
        uint32_t ties = (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(value, bounds, _CMP_EQ_OQ));
        if (ties != 0) {
            for (; ties != 0 && num_ties > 0; ties &= ties - 1, num_ties--) {
                mask |= ties & (0u - ties);
            }
        }
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
