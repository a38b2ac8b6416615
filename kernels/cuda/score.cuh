/*
 * score.cuh - what a score is made of. A family is compiled for float32, and where it reads scores
 * of 16 bits once more for each type of these: by a file that sets SCORE_DTYPE and includes the
 * family's own. Nothing else of a kernel knows.
 *
 * Keys, boundaries and candidates are those of float32: a score becomes a float when it is kept, or
 * counted. Only a pass over all of a row compares scores as they are, two of 16 bits at once; and
 * copies, samples and shares of work are cut by bytes, so that a stage or a unit holds twice as
 * many of them.
 */
#ifndef TOPKSEL_CUDA_SCORE_CUH
#define TOPKSEL_CUDA_SCORE_CUH

#include "cuda/ptx.cuh"

#ifndef SCORE_DTYPE
#define SCORE_DTYPE 0 /* value of an enum topk_dtype, for the preprocessor */
#endif

/* The name of a family's launch function: select_launch_plain, select_launch_plain_float16, ... */
#if SCORE_DTYPE == 0
#define SCORE_LAUNCH(name) name
#elif SCORE_DTYPE == 1
#define SCORE_LAUNCH(name) name##_float16
#else
#define SCORE_LAUNCH(name) name##_bfloat16
#endif

#if SCORE_DTYPE == 0

typedef float score_t;
#define SCORE_KEY_SHIFT 0u /* keys of positive scores (key.cuh) are multiples of 2 to this */

static __device__ __forceinline__ float score_number(score_t score)
{
    return score;
}

static __device__ __forceinline__ float score_value(score_t score)
{
    return score;
}

/* Four scores, as a sample is loaded, and 16 bytes of them, as a row is compared. */
typedef float4 score_quad, score_group;

static __device__ __forceinline__ float quad_number(const score_quad &quad, uint32_t i)
{
    const float number[4] = {quad.x, quad.y, quad.z, quad.w};
    return number[i];
}

/* What scores are compared with: those reach it that are numbers of at least `low`. */
typedef float score_bound;

static __device__ __forceinline__ score_bound bound_from(float low)
{
    return low;
}

/* The bound to which just the scores of this number are equal, if there are any. */
static __device__ __forceinline__ score_bound bound_equal(float number)
{
    return number;
}

/*
 * Bit i: score i of GROUPS times 16 bytes reaches the bound (or, with EQUAL, is equal to it); no
 * bit for a NaN. load(g) gives the g-th of them.
 */
template <uint32_t GROUPS, bool EQUAL, class Load>
static __device__ __forceinline__ uint32_t group_marks(score_bound bound, const Load &load)
{
    static_assert(GROUPS <= 8, "one bit a score");
    uint32_t marks = 0;
#pragma unroll
    for (uint32_t g = 0; g < GROUPS; g++) {
        const float4 four = load(g);
        marks |= (EQUAL ? four.x == bound : four.x >= bound) ? 1u << 4 * g : 0u;
        marks |= (EQUAL ? four.y == bound : four.y >= bound) ? 2u << 4 * g : 0u;
        marks |= (EQUAL ? four.z == bound : four.z >= bound) ? 4u << 4 * g : 0u;
        marks |= (EQUAL ? four.w == bound : four.w >= bound) ? 8u << 4 * g : 0u;
    }
    return marks;
}

#else

typedef uint16_t score_t;
#define SCORE_KEY_SHIFT (SCORE_DTYPE == 2 ? 16u : 13u) /* as above */

/* The number of a score, exactly; any NaN for a NaN. */
static __device__ __forceinline__ float score_number(score_t score)
{
#if SCORE_DTYPE == 2
    return __uint_as_float((uint32_t)score << 16);
#else
    return half_to_float(score);
#endif
}

/* As it is written beside a position: sign and payload of a NaN too, and one of float16 quiet. */
static __device__ __forceinline__ float score_value(score_t score)
{
#if SCORE_DTYPE == 2
    return __uint_as_float((uint32_t)score << 16);
#else
    const uint32_t nan = (score & 0x8000u) << 16 | 0x7fc00000u | (score & 0x03ffu) << 13;
    return (score & 0x7fffu) > 0x7c00u ? __uint_as_float(nan) : half_to_float(score);
#endif
}

/* Four scores, as a sample is loaded, and 16 bytes of them, as a row is compared. */
typedef uint2 score_quad;
typedef uint4 score_group;

static __device__ __forceinline__ float quad_number(const score_quad &quad, uint32_t i)
{
    const uint32_t pair = i < 2 ? quad.x : quad.y;
    return score_number((score_t)(pair >> i % 2 * 16));
}

/* What scores are compared with, in both halves: those reach it that are numbers of at least `low`,
 * for it is the lowest such score. */
typedef uint32_t score_bound;

static __device__ __forceinline__ score_bound bound_from(float low)
{
#if SCORE_DTYPE == 2
    const uint32_t bits = __float_as_uint(low);
    const uint32_t up = bits >> 31 != 0 ? bits : bits + 0xffffu; /* towards zero, or away from it */
    const uint32_t pattern = low != low ? 0x7fffu : up >> 16;
#else
    const uint32_t pattern = half_from_float_up(low);
#endif
    return pattern | pattern << 16;
}

/* The bound to which just the scores of this number are equal, if there are any. */
static __device__ __forceinline__ score_bound bound_equal(float number)
{
    const score_bound bound = bound_from(number);
    return score_number((score_t)bound) == number ? bound : 0x7fff7fffu;
}

static __device__ __forceinline__ uint32_t pair_mask(uint32_t pair, score_bound bound, bool equal)
{
#if SCORE_DTYPE == 2
    return equal ? bfloat_pair_equal(pair, bound) : bfloat_pair_from(pair, bound);
#else
    return equal ? half_pair_equal(pair, bound) : half_pair_from(pair, bound);
#endif
}

/*
 * Bit i: score i of GROUPS times 16 bytes reaches the bound (or, with EQUAL, is equal to it); no
 * bit for a NaN. load(g) gives the g-th of them. Two instructions for two scores: of a pair's mask
 * the first score's bit stays in the lower half of a word and the second's in the upper, where
 * their own places of the sixteen are. The halves are put together at the end.
 */
template <uint32_t GROUPS, bool EQUAL, class Load>
static __device__ __forceinline__ uint32_t group_marks(score_bound bound, const Load &load)
{
    static_assert(GROUPS <= 4, "one bit a score");
    uint32_t sixteen[2] = {0, 0};
#pragma unroll
    for (uint32_t g = 0; g < GROUPS; g++) {
        const score_group group = load(g);
        const uint32_t pair[4] = {group.x, group.y, group.z, group.w};
#pragma unroll
        for (uint32_t p = 0; p < 4; p++) {
            const uint32_t places = 0x00020001u << (8 * (g % 2) + 2 * p);
            sixteen[g / 2] |= pair_mask(pair[p], bound, EQUAL) & places;
        }
    }
    return __byte_perm(sixteen[0], sixteen[1], 0x5410) |
           __byte_perm(sixteen[0], sixteen[1], 0x7632);
}

#endif

/* Whether one score reaches a bound. */
static __device__ __forceinline__ bool reaches(score_t score, score_bound bound)
{
#if SCORE_DTYPE == 0
    return score >= bound;
#else
    return score_number(score) >= score_number((score_t)bound);
#endif
}

#define SCORE_GROUP ((uint32_t)(16 / sizeof(score_t))) /* scores in 16 bytes */

/* The bits of a NaN. */
static __device__ __forceinline__ score_t score_nan()
{
#if SCORE_DTYPE == 0
    return __uint_as_float(0xffffffffu);
#else
    return 0xffff;
#endif
}

/* The i-th 16 bytes from `scores` on, which are aligned; nobody writes them meanwhile. */
static __device__ __forceinline__ score_group group_load(const score_t *scores, uint64_t i)
{
    return __ldg(reinterpret_cast<const score_group *>(scores) + i);
}

/* The i-th four scores from `scores` on, which are aligned; nobody writes them meanwhile. */
static __device__ __forceinline__ score_quad quad_load(const score_t *scores, uint64_t i)
{
    return __ldg(reinterpret_cast<const score_quad *>(scores) + i);
}

#endif
