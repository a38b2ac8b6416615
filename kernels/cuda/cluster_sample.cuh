/*
 * cluster_sample.cuh - the boundary that a sample of the row proposes, in the cluster family: every
 * block takes the same sample and so comes to the same boundary.
 *
 * Virtual positions count from the boundary of a unit at or before the row's first score
 * (share.cuh). These kernels are short: what an instruction costs is that it has to be fetched and
 * issued at all, so that the bins here are those of half_bins.cuh, cheaper than those of key.cuh.
 */
#ifndef TOPKSEL_CUDA_CLUSTER_SAMPLE_CUH
#define TOPKSEL_CUDA_CLUSTER_SAMPLE_CUH

#include "boundary.cuh"
#include "cluster_state.cuh"
#include "half_bins.cuh"

namespace
{

/* A row by virtual position; those in [skew, end) are valid. */
struct row_view {
    const score_t *base;
    uint32_t skew, end;
};

__device__ __forceinline__ struct row_view row_view_of(const struct task &task, int32_t row,
                                                       int32_t length)
{
    const score_t *scores = task_row(task, row);
    struct row_view view;
    view.skew = (uint32_t)(reinterpret_cast<uintptr_t>(scores) / sizeof(score_t)) % SAMPLE_UNIT;
    view.base = scores - view.skew;
    view.end = view.skew + (uint32_t)length;
    return view;
}

/* How a row is sampled; the same for all threads of a cluster. */
struct sampling {
    uint32_t first_unit, num_units; /* whole units of the row */
    uint32_t sampled_log2;          /* units sampled */
    bool sampled;                   /* false: too short for a sample */

    __device__ __forceinline__ uint32_t size() const
    {
        return sampled ? SAMPLE_UNIT << sampled_log2 : 0;
    }
};

#define SAMPLED_MIN 256u /* choice; whole units, many of them, lie in any row this long */

__device__ __forceinline__ struct sampling sampling_of(const struct row_view &row,
                                                       const struct select_params &params)
{
    const uint32_t length = row.end - row.skew;
    struct sampling sampling;
    sampling.first_unit = (row.skew + SAMPLE_UNIT - 1) / SAMPLE_UNIT;
    sampling.num_units = row.end / SAMPLE_UNIT - sampling.first_unit;
    uint32_t wanted = max(length / (uint32_t)params.sample_stride, (uint32_t)params.sample_min);
    wanted = min(min(wanted, (uint32_t)params.sample_max), (uint32_t)TOPK_CLUSTER_SAMPLE_MAX);
    wanted = min(wanted, length / 2) / SAMPLE_UNIT;
    sampling.sampled_log2 = 31u - (uint32_t)__clz((int)max(wanted, 1u));
    sampling.sampled = length >= SAMPLED_MIN;
    return sampling;
}

#define SAMPLE_SHIFT 5u /* 32 bins a binade: half_bins.cuh */
typedef half_bins<SAMPLE_SHIFT> sample_bins;
static_assert(sample_bins::COUNT == TOPK_BINS, "a bin for every pattern");

/* The lowest key that is counted in a bin or a higher one, where -0 counts as +0. */
__device__ __forceinline__ uint32_t sample_floor(uint32_t bin)
{
    if (bin < sample_bins::LOWEST) {
        return KEY_NAN; /* -inf, with what is no number */
    }
    return half_floor((bin << SAMPLE_SHIFT) - (bin == sample_bins::ZERO ? 1u : 0u));
}

#define SAMPLE_QUADS(threads) (TOPK_CLUSTER_SAMPLE_MAX / 4 / (threads)) /* a thread's */

/* Loads the sample: a unit of each of equal strata; 0 where there is none. */
template <int THREADS>
__device__ __forceinline__ void load_sample(const struct row_view &row,
                                            const struct sampling &sampling,
                                            score_quad (&sample)[SAMPLE_QUADS(THREADS)])
{
    const uint32_t quads = sampling.size() / 4;
#pragma unroll
    for (int i = 0; i < SAMPLE_QUADS(THREADS); i++) {
        sample[i] = {};
        if (i * THREADS < quads) { /* the same for all threads */
            const uint32_t quad = threadIdx.x + i * THREADS;
            const uint32_t place = sample_place(quad / UNIT_QUADS, sampling.sampled_log2);
            const uint32_t unit = sampling.first_unit + __umulhi(place, sampling.num_units);
            if (quad < quads) {
                sample[i] = quad_load(row.base, (uint64_t)unit * UNIT_QUADS + quad % UNIT_QUADS);
            }
        }
    }
}

/* Counts a sample into bins. Lanes of a warp that count in the same bin cost no more than one. */
template <int THREADS>
__device__ __forceinline__ void count_sample(const score_quad (&sample)[SAMPLE_QUADS(THREADS)],
                                             uint32_t quads, uint32_t *bins)
{
#pragma unroll
    for (int i = 0; i < SAMPLE_QUADS(THREADS); i++) {
        if (threadIdx.x + i * THREADS < quads) {
#pragma unroll
            for (uint32_t e = 0; e < 4; e += 2) {
                const uint32_t pair =
                    half_pair(quad_number(sample[i], e), quad_number(sample[i], e + 1));
                count_half_pair<SAMPLE_SHIFT>(half_pair_unsigned_zero(pair), bins);
            }
        }
    }
}

/* Narrows [low, high] to the keys of the sample in it; at least one is. One barrier. */
template <int THREADS>
__device__ __forceinline__ void narrow(const struct sample_source<THREADS> &source, uint32_t &low,
                                       uint32_t &high)
{
    auto &shared = cluster_state();
    uint32_t least = KEY_MAX, most = 0;
    source.each([&](uint32_t key) {
        const bool within = key >= low && key <= high;
        least = within ? min(least, key) : least;
        most = within ? max(most, key) : most;
    });
    widen_range(least, most, shared.least, shared.most);
    block_sync<THREADS>();
    low = shared.least;
    high = shared.most;
}

/* Too many of the sample are in one bin: looks again within it, until they are few or one key. */
template <int THREADS>
__device__ __noinline__ struct boundary
look_within(const struct row_view row, const struct sampling sampling, uint32_t low, uint32_t high,
            uint32_t need, uint32_t surplus_max)
{
    auto &shared = cluster_state();
    const struct sample_source<THREADS> source = {
        row.base, sampling.first_unit, sampling.num_units, sampling.sampled_log2
    };
    for (;;) {
        narrow<THREADS>(source, low, high);
        if (low == high) {
            break; /* a plateau */
        }
        const uint32_t shift = range_shift(high - low);
        source.each([&](uint32_t key) {
            if (key >= low && key <= high) {
                atomicAdd(&shared.coarse[(key - low) >> shift], 1u);
            }
        });
        block_sync<THREADS>();
        if (threadIdx.x == 0) {
            shared.least = KEY_MAX;
            shared.most = 0;
        }
        const struct rank_bin found = find_rank<THREADS>(shared.coarse, shared.rank, need);
        clear_bins<THREADS>(shared.coarse);
        if (found.total < need) {
            low = high = KEY_NAN; /* the row changed while it was read */
            break;
        }
        need -= found.above;
        low += found.bin << shift;
        high = low + min(high - low, (1u << shift) - 1u);
        if (found.count - need <= surplus_max || low == high) {
            break;
        }
    }
    struct boundary boundary = {low, low == high || low <= KEY_NAN};
    return boundary;
}

/*
 * The boundary of a row by its sample; the same in all blocks of a cluster. `coarse` is zero at the
 * call, and again after the caller's next barrier.
 */
template <int THREADS>
__device__ __forceinline__ struct boundary
propose(const struct row_view &row, const struct sampling &sampling,
        const score_quad (&sample)[SAMPLE_QUADS(THREADS)], uint32_t k, float margin)
{
    auto &shared = cluster_state();
    const uint32_t size = sampling.size();
    const uint32_t rank = sample_rank(size, row.end - row.skew, k, margin);
    struct boundary boundary = {KEY_NAN, true};
    if (rank >= size) {
        block_sync<THREADS>(); /* the edges are loaded */
        return boundary;       /* everything is admitted */
    }
    count_sample<THREADS>(sample, size / 4, shared.coarse);
    block_sync<THREADS>();
    const struct rank_bin found =
        find_half_bin<THREADS, SAMPLE_SHIFT>(shared.coarse, rank, shared.rank);
    if (found.total < rank) {
        return boundary; /* NaN are among what is admitted */
    }
    const uint32_t need = rank - found.above;
    const uint32_t surplus_max = rank / 4 + 2; /* choice: a quarter more candidates at most */
    boundary.key = sample_floor(found.bin);
    boundary.exact = boundary.key <= KEY_NAN;
    if (found.count - need > surplus_max) {
        const uint32_t next = max(found.bin + 1, sample_bins::LOWEST);
        const uint32_t high = found.bin < sample_bins::INF ? sample_floor(next) - 1 : KEY_MAX;
        boundary = look_within<THREADS>(row, sampling, boundary.key, high, need, surplus_max);
    }
    return boundary;
}

} // namespace

#endif
