/*
 * Any processor: vectors of four floats in the notation that GCC and Clang share, which become
 * SSE2, NEON or whatever the target has, or plain code where it has nothing.
 */
#include <math.h>
#include <string.h>

#include "cpu/isa.h"
#include "cpu/score.h"

#define LANES 4
#define DENSE_MIN 20 /* choice: a step of the dense loop costs a third of a single entry */

typedef float float_vector __attribute__((vector_size(16)));
typedef uint32_t mask_vector __attribute__((vector_size(16)));
typedef int32_t int_vector __attribute__((vector_size(16)));
typedef uint16_t half_vector __attribute__((vector_size(8)));

static bool usable(void)
{
    return true;
}

static inline float_vector all_of(float number)
{
    return (float_vector){number, number, number, number};
}

static inline float_vector load(const float *floats)
{
    float_vector vector;
    memcpy(&vector, floats, sizeof(vector));
    return vector;
}

static inline void store_floats(float *to, float_vector vector)
{
    memcpy(to, &vector, sizeof(vector));
}

static inline float float16_value(uint16_t bits)
{
    return topk_float16_value(bits);
}

/* topk_float16_value, four at a time: a comparison gives all bits or none. */
static inline float_vector float16_values(int_vector halves)
{
    const int_vector magnitudes = (halves & 0x7fff) << 13, signs = (halves & 0x8000) << 16;
    const int_vector one = (magnitudes & 0) + (TOPK_HALF_BIAS + TOPK_HALF_NORMAL);
    const int_vector tiny = magnitudes < TOPK_HALF_NORMAL;
    int_vector normals = magnitudes + TOPK_HALF_BIAS;
    normals += (magnitudes >= TOPK_HALF_INF) & TOPK_HALF_BIAS;
    normals |= (magnitudes > TOPK_HALF_INF) & (int32_t)TOPK_HALF_QUIET;
    int_vector subnormals = (int_vector)((float_vector)(magnitudes + one) - (float_vector)one);
    return (float_vector)((subnormals & tiny) | (normals & ~tiny) | signs);
}

static inline int_vector load_halves(const void *row, int32_t i)
{
    half_vector halves;
    memcpy(&halves, (const uint16_t *)row + i, sizeof(halves));
    return __builtin_convertvector(halves, int_vector);
}

TOPK_EACH_DTYPE float_vector load_scores(const void *row, int32_t i, enum topk_dtype dtype)
{
    if (dtype == TOPK_DTYPE_FLOAT32) {
        return load((const float *)row + i);
    }
    const int_vector bits = load_halves(row, i);
    return dtype == TOPK_DTYPE_FLOAT16 ? float16_values(bits) : (float_vector)(bits << 16);
}

/* Scores of 16 bits compare as they are with a bound above zero. */
struct bound {
    float_vector floats;
    bool above_zero;    /* only then: */
    int32_t least, inf; /* the pattern at the bound, and that of infinity */
};

TOPK_EACH_DTYPE struct bound bound_of(float bound, enum topk_dtype dtype)
{
    struct bound all = {.floats = all_of(bound), .above_zero = bound > 0.0f};
    if (dtype != TOPK_DTYPE_FLOAT32 && all.above_zero) {
        all.least = topk_half_floor(bound, dtype);
        all.inf = topk_half_inf(dtype);
    }
    return all;
}

TOPK_EACH_DTYPE mask_vector reach4(const void *row, int32_t i, const struct bound *bound,
                                   enum topk_dtype dtype)
{
    if (dtype != TOPK_DTYPE_FLOAT32 && bound->above_zero) {
        const int_vector halves = load_halves(row, i);
        return (mask_vector)((halves >= bound->least) & (halves <= bound->inf));
    }
    return (mask_vector)(load_scores(row, i, dtype) >= bound->floats);
}

/* Bit j of the 32 lowest: score i + j >= bound, for 32 scores. Each lane gathers the bits of eight
 * vectors at its own place. */
TOPK_EACH_DTYPE uint64_t mask32(const void *row, int32_t i, const struct bound *bound,
                                enum topk_dtype dtype)
{
    mask_vector bits = {1, 2, 4, 8}, gathered = {0, 0, 0, 0};
    for (int32_t j = 0; j < 32; j += LANES) {
        gathered |= reach4(row, i + j, bound, dtype) & bits;
        bits <<= LANES;
    }
    uint64_t halves[2];
    memcpy(halves, &gathered, sizeof(halves));
    uint64_t both = halves[0] | halves[1];
    return (both | (both >> 32)) & 0xffffffffu;
}

TOPK_EACH_DTYPE uint64_t mask64(const void *row, int32_t i, const struct bound *bound,
                                enum topk_dtype dtype)
{
    return mask32(row, i, bound, dtype) | (mask32(row, i + 32, bound, dtype) << 32);
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
TOPK_EACH_DTYPE int32_t append_dense(const void *row, int32_t first, uint64_t mask,
                                     struct topk_list *list, int32_t count, enum topk_dtype dtype)
{
    for (int32_t g = 0; g < TOPK_BLOCK_SCORES; g += LANES) {
        const float_vector values = load_scores(row, first + g, dtype);
        for (int32_t j = 0; j < LANES; j++, mask >>= 1) {
            list->values[count] = values[j];
            list->positions[count] = first + g + j;
            count += (int32_t)(mask & 1);
        }
    }
    return count;
}

#include "cpu/admit.h"

static int32_t count_at_least(const float *values, int32_t count, float bound)
{
    const float_vector bounds = all_of(bound);
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
    const float_vector froms = all_of(from), uptos = all_of(upto);
    float_vector lows = all_of(INFINITY), highs = all_of(-INFINITY);
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
    .read = {TOPK_DTYPE_TABLE(READER_ENTRY)},
    .count_at_least = count_at_least,
    .range = range,
    .keep = keep,
};
