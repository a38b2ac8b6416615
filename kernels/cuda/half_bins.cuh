/*
 * half_bins.cuh - a histogram of scores by the first bits of their float16, cut off towards zero:
 * few instructions a score, and bins of equal width within a binade.
 *
 * Numbers beyond the range of float16 share its last bins. In memory the bins lie by the pattern,
 * those of negative numbers behind, the lowest of these last, so that a score finds its bin in two
 * instructions. By number they are in the order of scores: that of a pattern is its upper bits when
 * the patterns of negative numbers are turned over and come first.
 */
#ifndef TOPKSEL_CUDA_HALF_BINS_CUH
#define TOPKSEL_CUDA_HALF_BINS_CUH

#include "rank.cuh"

/* SHIFT: bits of a pattern that do not count; 5: 32 bins a binade, 4: 64. */
template <uint32_t SHIFT>
struct half_bins {
    static constexpr int COUNT = 0x10000 >> SHIFT;
    static constexpr uint32_t INF = 0xfc00u >> SHIFT;    /* +inf alone */
    static constexpr uint32_t ZERO = 0x8000u >> SHIFT;   /* the lowest of positive numbers */
    static constexpr uint32_t LOWEST = 0x0400u >> SHIFT; /* the lowest of numbers but -inf */
};

/* Counts a pair; a NaN in the last bin of positive patterns, which is theirs alone. */
template <uint32_t SHIFT>
static __device__ __forceinline__ void count_half_pair(uint32_t pair, uint32_t *bins)
{
    atomicAdd(&bins[(pair & 0xffffu) >> SHIFT], 1u);
    atomicAdd(&bins[pair >> (16 + SHIFT)], 1u);
}

/*
 * The bin that holds rank `need` (from 1, from the highest bin), NaN not counted. The counts must
 * be complete and a barrier passed; two barriers inside, behind which the bins are zero.
 */
template <int THREADS, uint32_t SHIFT>
static __device__ __forceinline__ struct rank_bin find_half_bin(uint32_t *bins, uint32_t need,
                                                                struct rank_shared &shared)
{
    constexpr int COUNT = half_bins<SHIFT>::COUNT, EACH = COUNT / THREADS;
    const bool negative = threadIdx.x >= THREADS / 2;
    uint32_t *own_bins =
        &bins[negative ? threadIdx.x * EACH : COUNT / 2 - (threadIdx.x + 1) * EACH];
    uint32_t loaded[EACH], count[EACH];
    uint32_t own = load_bins<EACH>(own_bins, loaded);
    if (threadIdx.x == 0) { /* without NaN */
        own -= loaded[EACH - 1];
        loaded[EACH - 1] = 0;
    }
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        count[i] = negative ? loaded[EACH - 1 - i] : loaded[i];
    }
    clear_own<EACH>(own_bins);
    return scan_counts<THREADS, EACH>(count, own, need, shared);
}

/* The lowest key of a number whose pattern, cut off towards zero, is this or higher in order; of
 * those that become a zero, all from the positive one on. */
static __device__ __forceinline__ uint32_t half_floor(uint32_t ordered)
{
    if (ordered >= 0x8000u) {
        return __float_as_uint(half_to_float((uint16_t)(ordered ^ 0x8000u))) | 0x80000000u;
    }
    /* Up to the magnitude just below that of the pattern beneath. */
    return 0x80000000u - __float_as_uint(half_to_float((uint16_t)(0x8000u - ordered)));
}

#endif
