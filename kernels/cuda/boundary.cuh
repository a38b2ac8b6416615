/*
 * boundary.cuh - the proposal: a key that, by a sample of the row, has more than K scores at or
 * above it, but not many more. A wrong proposal costs time, never exactness.
 *
 * The sample is made of 64-byte units at the middles of equal strata of the row: single scores
 * would cost a 32-byte sector each. Their number is a power of two.
 */
#ifndef TOPKSEL_CUDA_BOUNDARY_CUH
#define TOPKSEL_CUDA_BOUNDARY_CUH

#include "rank.cuh"
#include "score.cuh"
#include "select.h"

#define SAMPLE_BATCH 4 /* choice: 16-byte loads in flight a thread */
#define SAMPLE_UNIT ((uint32_t)(TOPK_SAMPLE_UNIT_BYTES / sizeof(score_t))) /* scores */
#define UNIT_GROUPS (SAMPLE_UNIT / SCORE_GROUP)

/* Which units of a row are sampled. */
struct sample_units {
    const score_t *row; /* virtual position 0, 64-byte aligned; not all of the first unit is ours */
    uint32_t first, count; /* whole units of the row */
    uint32_t sampled_log2; /* units sampled */
};

static __device__ __forceinline__ struct sample_units
sample_units_of(const score_t *row, uint32_t skew, uint32_t length,
                const struct select_params &params)
{
    struct sample_units units;
    units.row = row;
    units.first = (skew + SAMPLE_UNIT - 1) / SAMPLE_UNIT;
    units.count = (skew + length) / SAMPLE_UNIT - units.first;
    uint32_t wanted = max(length / (uint32_t)params.sample_stride, (uint32_t)params.sample_min);
    wanted = min(min(wanted, (uint32_t)params.sample_max), length / 2) / SAMPLE_UNIT;
    units.sampled_log2 = 31u - (uint32_t)__clz((int)max(wanted, 1u));
    return units;
}

/* The i-th sampled unit. */
static __device__ __forceinline__ const score_t *sample_unit_at(const struct sample_units &units,
                                                                uint32_t i)
{
    const uint64_t middle = (uint64_t)i * 2 + 1;
    const uint64_t unit = units.first + (middle * units.count >> (units.sampled_log2 + 1));
    return units.row + unit * SAMPLE_UNIT;
}

/* Asks for a row's sample ahead of time, so that it comes from the L2 cache. One warp calls. */
static __device__ __forceinline__ void sample_prefetch(const struct sample_units &units)
{
    for (uint32_t i = lane_index(); i < 1u << units.sampled_log2; i += 32) {
        prefetch_64(sample_unit_at(units, i));
    }
}

template <int THREADS>
struct sample_source {
    struct sample_units units;

    template <class Visit>
    __device__ __forceinline__ void each_in(uint32_t low, uint32_t high, const Visit &visit) const
    {
        each([&](uint32_t key) {
            if (key >= low && key <= high) {
                visit(key - low);
            }
        });
    }

    template <class Visit>
    __device__ __forceinline__ void each(const Visit &visit) const /* visit(key) */
    {
        const uint32_t groups = UNIT_GROUPS << units.sampled_log2;
        for (uint32_t first = threadIdx.x; first < groups; first += SAMPLE_BATCH * THREADS) {
            score_group group[SAMPLE_BATCH];
#pragma unroll
            for (int i = 0; i < SAMPLE_BATCH; i++) {
                uint32_t at = first + i * THREADS;
                if (at < groups) {
                    const score_t *unit = sample_unit_at(units, at / UNIT_GROUPS);
                    group[i] = group_load(unit, at % UNIT_GROUPS);
                }
            }
#pragma unroll
            for (int i = 0; i < SAMPLE_BATCH; i++) {
                if (first + i * THREADS < groups) {
#pragma unroll
                    for (uint32_t e = 0; e < SCORE_GROUP; e++) {
                        visit(key_of(group_number(group[i], e)));
                    }
                }
            }
        }
    }
};

/*
 * Ranks in a sample of `size` out of `length` scores: but for a miss beyond `margin` standard
 * deviations of a random sample, the k-th score of the row lies at or above `low`, the deeper, and
 * below `high`, which is 0 when nothing can be said.
 */
struct sample_ranks {
    uint32_t low, high;
};

static __device__ __forceinline__ struct sample_ranks
sample_ranks_of(uint32_t size, uint32_t length, uint32_t k, float margin)
{
    float share = __fdividef((float)size, (float)length);
    float mean = (float)k * share;
    /* Without replacement: the deviation shrinks as the sample covers the row. */
    float spread = mean * (1.0f - __fdividef((float)k, (float)length)) * (1.0f - share);
    float distance = margin * (spread > 0.0f ? spread * rsqrtf(spread) : 0.0f) + 2.0f;
    struct sample_ranks ranks = {(uint32_t)(mean + distance),
                                 (uint32_t)fmaxf(mean - distance, 0.0f)};
    return ranks;
}

/* The deeper of the two alone. */
static __device__ __forceinline__ uint32_t sample_rank(uint32_t size, uint32_t length, uint32_t k,
                                                       float margin)
{
    return sample_ranks_of(size, length, k, margin).low;
}

/*
 * A bin width for a search from `low` up, where the answer probably lies in the coarse bins up to
 * `high_bin`: these spread over all bins but the highest, which takes what is above.
 */
static __device__ __forceinline__ uint32_t bracket_shift(uint32_t low, uint32_t high_bin)
{
    const uint32_t high = high_bin + 1 < TOPK_BINS ? coarse_floor(high_bin + 1) - 1 : KEY_PLUS_INF;
    const uint32_t span = max(high, low) - low;
    return range_shift(span + (span >> 9) + 1); /* so that span >> shift is at most 2044 */
}

/* A proposal: the lowest key to admit, and where the answer then probably lies. */
struct boundary {
    uint32_t key;     /* KEY_NAN: admit all */
    uint32_t sampled; /* scores sampled for it */
    uint32_t shift;   /* width of bins for a search among the admitted */
};

/*
 * Proposes for a row of virtual positions [skew, skew + length); KEY_NAN when the row is too short
 * for a sample. bins and coarse are zero at the call, and again after the caller's next barrier.
 */
template <int THREADS>
static __device__ __forceinline__ struct boundary
sample_boundary(const score_t *row, uint32_t skew, uint32_t length, uint32_t k, float margin,
                const struct select_params &params, uint32_t *bins, uint32_t *coarse,
                struct rank_shared &shared)
{
    const struct sample_source<THREADS> source = {
        sample_units_of(row, skew, length, params)
    };
    struct boundary boundary = {KEY_NAN, 0, first_shift(KEY_NAN)};
    const uint32_t size = SAMPLE_UNIT << source.units.sampled_log2;
    const struct sample_ranks ranks = sample_ranks_of(size, length, k, margin);
    if (ranks.low >= size) {
        return boundary;
    }
    boundary.sampled = size;
    source.each([&](uint32_t key) { atomicAdd(&coarse[coarse_bin(key)], 1u); });
    block_sync<THREADS>();
    uint32_t high_bin;
    struct rank_bin found =
        find_ranks<THREADS, true>(coarse, shared, ranks.low, ranks.high, &high_bin);
    clear_bins<THREADS>(coarse);
    /* Choice: about a quarter more candidates cost less than another look. */
    const uint32_t surplus_max = ranks.low / 4 + 16;
    uint32_t low = coarse_floor(found.bin), need = ranks.low - found.above;
    uint32_t high = found.bin + 1 < TOPK_BINS ? coarse_floor(found.bin + 1) - 1 : KEY_MAX;
    /* Too many in one bin: look again within it, until they are few or one key. */
    while (found.count - need > surplus_max && low < high) {
        find_range<THREADS>(source, &low, &high, shared);
        if (low == high) {
            break;
        }
        const uint32_t shift = range_shift(high - low);
        source.each_in(low, high, [&](uint32_t offset) { atomicAdd(&bins[offset >> shift], 1u); });
        block_sync<THREADS>();
        found = find_rank<THREADS>(bins, shared, need);
        need -= found.above;
        low += found.bin << shift;
        high = low + min(high - low, (1u << shift) - 1u);
        clear_bins<THREADS>(bins);
        block_sync<THREADS>();
    }
    boundary.key = low;
    boundary.shift = ranks.high > 0 ? bracket_shift(low, high_bin) : first_shift(low);
    return boundary;
}

#endif
