/*
 * score.cuh - what a score is made of. A family is compiled for float32, and where it reads scores
 * of 16 bits once more for each type of these: by a file that sets SCORE_DTYPE and includes the
 * family's own. Nothing else of a kernel knows.
 *
 * A score becomes a float in registers as soon as it is loaded, so that keys, boundaries and
 * candidates are those of float32.
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

static __device__ __forceinline__ float score_number(score_t score)
{
    return score;
}

static __device__ __forceinline__ float score_value(score_t score)
{
    return score;
}

#else

typedef uint16_t score_t;

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

#endif

#endif
