/*
 * wide_part.cuh - a block's part of a row of the wide family, in its registers (sm_90 and later).
 */
#ifndef TOPKSEL_CUDA_WIDE_PART_CUH
#define TOPKSEL_CUDA_WIDE_PART_CUH

#include "wide_state.cuh"

namespace
{

#if __CUDA_ARCH__ >= 900
/*
 * Which scores a thread has: those from first() on, STEP apart. For a result in order, position
 * order is (block, warp, score of a lane, lane), as within a block of the row family. For one in
 * no order it is (score of a lane, block, warp, lane), so that the selected ones, which often are
 * neighbours, are shared by as many lanes as can be.
 */
template <int T, int S, int B, bool O>
struct wide_layout {
    static constexpr int THREADS = T, SCORES = S, BLOCKS = B;
    static constexpr bool ORDERED = O;
    static constexpr int32_t STEP = O ? 32 : T * B;

    static __device__ __forceinline__ int32_t first()
    {
        return O ? (int32_t)(cluster_rank() * (T * S)) + first_position<S>()
                 : (int32_t)(cluster_rank() * T + threadIdx.x);
    }
};

/* Loads a block's part of a row, up to `end`; what lies beyond becomes NaN. */
template <class L>
__device__ __forceinline__ void load_part(const struct task &task, int32_t row, int32_t end,
                                          float (&scores)[L::SCORES])
{
    const int32_t first = L::first();
    const score_t *lane_scores = opaque_base(task_row(task, row) + first);
    const int32_t exist = opaque(end - first);
    const float nan = __uint_as_float(0xffffffffu);
#pragma unroll
    for (int j = 0; j < L::SCORES; j++) {
        scores[j] = L::STEP * j < exist ? score_number(__ldcs(lane_scores + L::STEP * j)) : nan;
    }
}

/* Makes NaN of what was loaded beyond the valid length. */
template <class L>
__device__ __forceinline__ void cut_part(int32_t length, float (&scores)[L::SCORES])
{
    const float nan = __uint_as_float(0xffffffffu);
    const int32_t exist = opaque(length - L::first());
    if (L::STEP * (L::SCORES - 1) >= exist) {
#pragma unroll
        for (int j = 0; j < L::SCORES; j++) {
            scores[j] = L::STEP * j < exist ? scores[j] : nan;
        }
    }
}

/* The key of a score, which may be NaN; 0 where there is none. */
template <class L>
__device__ __forceinline__ uint32_t part_key(const float (&scores)[L::SCORES], int32_t exist, int j)
{
    return L::STEP * j < exist ? key_of(__int_as_float(opaque(__float_as_int(scores[j])))) : 0;
}

/* Marks of what is above the range, and of what is in it. */
struct wide_marks {
    uint32_t above, in;
};

template <class L>
__device__ __forceinline__ struct wide_marks mark_part(const float (&scores)[L::SCORES],
                                                       int32_t length, const struct wide_cut &cut)
{
    struct wide_marks marks;
    marks.above = mark_from<L::SCORES>(scores, __uint_as_float(key_floor_bits(cut.high + 1)));
    if (cut.low > KEY_NAN) {
        marks.in =
            mark_from<L::SCORES>(scores, __uint_as_float(key_floor_bits(cut.low))) ^ marks.above;
        return marks;
    }
    marks.in = 0;
    const int32_t exist = opaque(length - L::first());
#pragma unroll
    for (int j = 0; j < L::SCORES; j++) {
        marks.in |= part_key<L>(scores, exist, j) == KEY_NAN ? 1u << j : 0u;
    }
    return marks;
}
#endif

} // namespace

#endif
