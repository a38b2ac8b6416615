/*
 * cluster_search.cuh - the slow, rare way to a boundary: the K-th highest key of a whole row by
 * histograms of all its scores, summed over the cluster.
 */
#ifndef TOPKSEL_CUDA_CLUSTER_SEARCH_CUH
#define TOPKSEL_CUDA_CLUSTER_SEARCH_CUH

#include "cluster_admit.cuh"

namespace
{

#if __CUDA_ARCH__ >= 900
/* Counts the keys of a slice in [low, high] into coarse[]. All threads call; ends with a barrier.
 */
template <int THREADS>
__device__ __forceinline__ void count_slice(const struct row_view &row, const struct slice &slice,
                                            uint32_t low, uint32_t high, uint32_t shift)
{
    auto &shared = cluster_state();
    const uint32_t end = min(slice.end, row.end);
#pragma unroll 4
    for (uint32_t at = max(slice.first, row.skew) + threadIdx.x; at < end; at += THREADS) {
        const uint32_t key = key_of(score_number(row.base[at]));
        if (key >= low && key <= high) {
            atomicAdd(&shared.coarse[(key - low) >> shift], 1u);
        }
    }
    block_sync<THREADS>();
}

/* Adds this block's counts to the first block's sums, and looks there for a rank. */
template <int THREADS>
__device__ __forceinline__ struct rank_bin find_in_cluster(uint32_t need)
{
    auto &shared = cluster_state();
    for (uint32_t i = threadIdx.x; i < TOPK_BINS; i += THREADS) {
        const uint32_t count = shared.coarse[i];
        if (count > 0) {
            remote_add(remote_address(&shared.bins[i], 0), count);
            shared.coarse[i] = 0;
        }
    }
    cluster_sync();
    if (cluster_rank() == 0) {
        const struct rank_bin found = find_rank<THREADS>(shared.bins, shared.rank, need);
        clear_bins<THREADS>(shared.bins);
        if (threadIdx.x == 0) {
            shared.found = found;
        }
    }
    cluster_sync();
    const uint32_t address = remote_address(&shared.found, 0);
    const uint2 first = remote_load_pair(address), second = remote_load_pair(address + 8);
    const struct rank_bin found = {first.x, first.y, second.x, second.y};
    return found;
}

/*
 * The boundary that admits the K best of a row and nothing else. All threads of the cluster call,
 * after a barrier of the cluster; both histograms are zero at the call, and again after the
 * caller's next barrier. *rounds_p counts the reads of the row.
 */
template <int THREADS>
__device__ __forceinline__ struct boundary
search_row(const struct row_view &row, const struct slice &slice, uint32_t k, uint32_t *rounds_p)
{
    uint32_t low = KEY_NAN, high = KEY_MAX, need = k, rounds = 0;
    struct boundary boundary = {KEY_NAN, true};
    while (low < high) {
        const uint32_t shift = range_shift(high - low);
        count_slice<THREADS>(row, slice, low, high, shift);
        const struct rank_bin found = find_in_cluster<THREADS>(need);
        rounds++;
        if (found.total < need) {
            low = high = KEY_NAN; /* the row changed while it was read */
            break;
        }
        need -= found.above;
        low += found.bin << shift;
        high = low + min(high - low, (1u << shift) - 1u);
        if (found.count == need) {
            break;
        }
    }
    boundary.key = low;
    boundary.exact = low == high || low <= KEY_NAN;
    *rounds_p = rounds;
    return boundary;
}
#endif

} // namespace

#endif
