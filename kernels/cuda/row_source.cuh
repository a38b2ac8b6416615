/*
 * row_source.cuh - a row in the registers of one block, as a source of keys for an exact search.
 */
#ifndef TOPKSEL_CUDA_ROW_SOURCE_CUH
#define TOPKSEL_CUDA_ROW_SOURCE_CUH

#include "boundary.cuh"
#include "order.cuh"

namespace
{

#define QUICK_BINS_MAX (2 * TOPK_BINS) /* see row_quick.cuh */
#define QUICK_SCORES_MAX 32768         /* of a row */
#define ROW_PAGES 512 /* choice: entries of a row's page table that are held beside it, 2 KB */
#define QUICK_NEAR_MAX 256u /* choice: so many are ranked by comparing each with each */
#define QUICK_TEAM 8u       /* choice: threads that share the comparisons of one of them ... */
#define QUICK_AT_ONCE 4u    /* ... so many at a time; those behind the last are looked at in vain */

/*
 * Results in no order and those by position or by value have kernels of their own: the code for the
 * others, though it does not run, would cost 1 to 13% (H200, 2026-12-01: TUNING.md).
 *
 * Whether a kernel for no order writes by way of row_stage.cuh: where a thread has registers to
 * spare. Elsewhere, and for 32 scores a thread, that costs more than it saves.
 */
template <int THREADS, int SCORES, bool QUICK>
static constexpr bool row_is_roomy = QUICK &&THREADS >= 512 && SCORES <= 16;

/* Whether a kernel keeps the arguments, and what they say of its row, in shared memory. */
template <int THREADS, int SCORES, bool QUICK, bool ORDERED>
static constexpr bool row_holds_args = ORDERED || row_is_roomy<THREADS, SCORES, QUICK>;

struct row_shared {
    alignas(16) uint32_t below[4]; /* the last lies before bins[0]: see count_from */
    /* Exact search; then those of the proposal. Of the short way in order, marks of each lane. */
    alignas(16) uint32_t bins[QUICK_BINS_MAX];
    struct rank_shared rank;
    uint2 near[QUICK_NEAR_MAX + QUICK_TEAM * QUICK_AT_ONCE]; /* bits and positions in the bin */
    /* Positions on their way out. */
    alignas(16) uint32_t stage[TOPK_K_FAST_MAX];
    uint32_t selected[32], equal[32]; /* counts of each warp */
    uint32_t staged;
    struct task task;
    int32_t given[2];      /* valid lengths of this row and of the next, in turns */
    struct topk_args args; /* for what is more than positions */
    int32_t offsets[2];    /* what is added to positions, of the rows of odd and even turns */
    int32_t pages[ROW_PAGES];
    struct route_counts counts;
};

/* The bins of the proposal. */
__device__ __forceinline__ uint32_t *coarse_bins(struct row_shared &shared)
{
    return &shared.bins[TOPK_BINS];
}

/* The position of a lane's first score. */
template <int SCORES>
__device__ __forceinline__ int32_t first_position()
{
    return (int32_t)(warp_index() * (32 * SCORES) + lane_index());
}

/* Whether any of a warp's scores may exist. */
template <int SCORES>
__device__ __forceinline__ bool warp_has_scores(int32_t length)
{
    return (int32_t)(warp_index() * (32 * SCORES)) < length;
}

/* Scores in registers as a source of keys (rank.cuh). */
template <int SCORES>
struct register_source {
    const float (&scores)[SCORES];
    int32_t length;

    /* For `key`: score j exists when 32 * j is less. */
    __device__ __forceinline__ int32_t existing() const
    {
        return opaque(length - first_position<SCORES>());
    }

    /* The key of a score, which may be NaN; 0 where there is none. */
    __device__ __forceinline__ uint32_t key(int j, int32_t existing) const
    {
        return 32 * j < existing ? key_of(__int_as_float(opaque(__float_as_int(scores[j])))) : 0;
    }

    template <class Visit>
    __device__ __forceinline__ void each_in(uint32_t low, uint32_t high, const Visit &visit) const
    {
        if (!warp_has_scores<SCORES>(length)) {
            return;
        }
        if (low > KEY_ZERO && low <= KEY_PLUS_INF) { /* their bits are as far apart as their keys */
            const uint32_t low_bits = key_floor_bits(low), span = min(high, KEY_PLUS_INF) - low;
#pragma unroll
            for (int j = 0; j < SCORES; j++) {
                const uint32_t offset = __float_as_uint(scores[j]) - low_bits;
                if (offset <= span) {
                    visit(offset);
                }
            }
            return;
        }
        const int32_t exist = existing();
#pragma unroll
        for (int j = 0; j < SCORES; j++) {
            uint32_t offset = key(j, exist) - low; /* wraps to a large one below low */
            if (offset <= high - low) {
                visit(offset);
            }
        }
    }
};

/*
 * count_keys for the common case, scores above a positive boundary: their keys are as far apart as
 * their bits. Six instructions a score and no branch: a score below the boundary, or NaN, becomes
 * the number just below it and is counted in bins[-1], which nobody reads. Lanes of a warp that
 * count in the same bin cost no more than one.
 */
template <int SCORES>
__device__ __forceinline__ void count_from(const float (&scores)[SCORES], uint32_t low_bits,
                                           uint32_t shift, uint32_t *bins)
{
    const float below = __uint_as_float(low_bits - 1);
#pragma unroll
    for (int j = 0; j < SCORES; j++) {
        const int32_t offset = __float_as_int(fmaxf(scores[j], below)) - (int32_t)low_bits;
        atomicAdd(&bins[min(offset >> shift, TOPK_BINS - 1)], 1u);
    }
}

/* The lowest bin takes its whole width: find_cut asks. */
template <int SCORES>
__device__ __forceinline__ constexpr bool lowest_key_alone(const struct register_source<SCORES> &)
{
    return false;
}

template <int SCORES>
__device__ __forceinline__ void count_keys(const struct register_source<SCORES> &source,
                                           uint32_t low, uint32_t high, uint32_t shift,
                                           uint32_t *bins)
{
    if (low > KEY_ZERO && low <= KEY_PLUS_INF && high == KEY_MAX) {
        if (warp_has_scores<SCORES>(source.length)) {
            count_from<SCORES>(source.scores, key_floor_bits(low), shift, bins);
        }
        return;
    }
    source.each_in(low, high, [&](uint32_t offset) {
        atomicAdd(&bins[min(offset >> shift, TOPK_BINS - 1u)], 1u);
    });
}

/* Few scores, if any, are listed: they are marked first, and most warps have none. */
template <int SCORES>
__device__ __forceinline__ void list_keys(const struct register_source<SCORES> &source,
                                          uint32_t low, uint32_t high, struct rank_shared &shared)
{
    if (!warp_has_scores<SCORES>(source.length)) {
        return;
    }
    uint32_t marks = 0;
    if (low > KEY_ZERO) {
        const uint32_t low_bits = key_floor_bits(low), span = min(high, KEY_PLUS_INF) - low;
#pragma unroll
        for (int j = 0; j < SCORES; j++) {
            marks |= __float_as_uint(source.scores[j]) - low_bits <= span ? 1u << j : 0u;
        }
    } else {
        const int32_t exist = source.existing();
#pragma unroll
        for (int j = 0; j < SCORES; j++) {
            marks |= source.key(j, exist) - low <= high - low ? 1u << j : 0u;
        }
    }
    if (!__any_sync(WARP_ALL, marks != 0)) {
        return;
    }
    uint32_t slot = marks != 0 ? atomicAdd(&shared.list_count, (uint32_t)__popc(marks)) : 0;
#pragma unroll
    for (int j = 0; j < SCORES; j++) {
        if ((marks >> j & 1u) != 0) {
            shared.list[slot++] = key_of(source.scores[j]);
        }
    }
}

} // namespace

#endif
