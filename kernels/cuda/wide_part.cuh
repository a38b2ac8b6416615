/*
 * wide_part.cuh - a block's part of a row of the wide family, in its registers (sm_90 and later).
 * Position order is (block, warp, score of a lane, lane), as within a block of the row family.
 */
#ifndef TOPKSEL_CUDA_WIDE_PART_CUH
#define TOPKSEL_CUDA_WIDE_PART_CUH

#include "wide_state.cuh"

namespace
{

#if __CUDA_ARCH__ >= 900
/* The position of a lane's first score in the row. */
template <int THREADS, int SCORES>
__device__ __forceinline__ int32_t wide_position()
{
    return (int32_t)(cluster_rank() * (THREADS * SCORES)) + first_position<SCORES>();
}

/* Loads a block's part of a row, up to `end`; what lies beyond becomes NaN. */
template <int THREADS, int SCORES>
__device__ __forceinline__ void load_part(const struct task &task, int32_t row, int32_t end,
                                          float (&scores)[SCORES])
{
    const int32_t first = wide_position<THREADS, SCORES>();
    const score_t *lane_scores = opaque_base(task_row(task, row) + first);
    const int32_t exist = opaque(end - first);
    const float nan = __uint_as_float(0xffffffffu);
#pragma unroll
    for (int j = 0; j < SCORES; j++) {
        scores[j] = 32 * j < exist ? score_number(__ldcs(lane_scores + 32 * j)) : nan;
    }
}

/* Makes NaN of what was loaded beyond the valid length. */
template <int THREADS, int SCORES>
__device__ __forceinline__ void cut_part(int32_t length, float (&scores)[SCORES])
{
    const float nan = __uint_as_float(0xffffffffu);
    const int32_t exist = opaque(length - wide_position<THREADS, SCORES>());
    if (32 * (SCORES - 1) >= exist) {
#pragma unroll
        for (int j = 0; j < SCORES; j++) {
            scores[j] = 32 * j < exist ? scores[j] : nan;
        }
    }
}

/* The key of a score, which may be NaN; 0 where there is none. */
template <int THREADS, int SCORES>
__device__ __forceinline__ uint32_t part_key(const float (&scores)[SCORES], int32_t exist, int j)
{
    return 32 * j < exist ? key_of(__int_as_float(opaque(__float_as_int(scores[j])))) : 0;
}

/* Marks of what is above the range, and of what is in it. */
struct wide_marks {
    uint32_t above, in;
};

template <int THREADS, int SCORES>
__device__ __forceinline__ struct wide_marks mark_part(const float (&scores)[SCORES],
                                                       int32_t length, const struct wide_cut &cut)
{
    struct wide_marks marks;
    marks.above = mark_from<SCORES>(scores, __uint_as_float(key_floor_bits(cut.high + 1)));
    if (cut.low > KEY_NAN) {
        marks.in =
            mark_from<SCORES>(scores, __uint_as_float(key_floor_bits(cut.low))) ^ marks.above;
        return marks;
    }
    marks.in = 0;
    const int32_t exist = opaque(length - wide_position<THREADS, SCORES>());
#pragma unroll
    for (int j = 0; j < SCORES; j++) {
        marks.in |= part_key<THREADS, SCORES>(scores, exist, j) == KEY_NAN ? 1u << j : 0u;
    }
    return marks;
}
#endif

} // namespace

#endif
