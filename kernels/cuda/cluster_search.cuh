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
#ifndef SEARCH_AHEAD
#define SEARCH_AHEAD 8 /* choice: loads of four scores in flight a thread */
#endif

/* Counts the keys of a slice in [low, high] into coarse[]. All threads call; ends with a barrier.
 */
template <int THREADS>
__device__ __forceinline__ void count_slice(const struct row_view &row, const struct slice &slice,
                                            uint32_t low, uint32_t high, uint32_t shift)
{
    auto &shared = cluster_state();
    const uint32_t begin = max(slice.first, row.skew), end = min(slice.end, row.end);
    const uint32_t first_quad = (begin + 3) / 4, end_quad = end / 4;
    const auto count = [&](uint32_t key) {
        if (key >= low && key <= high) {
            atomicAdd(&shared.coarse[(key - low) >> shift], 1u);
        }
    };
    for (uint32_t quad = first_quad + threadIdx.x; quad < end_quad;
         quad += SEARCH_AHEAD * THREADS) {
        score_quad four[SEARCH_AHEAD];
#pragma unroll
        for (uint32_t n = 0; n < SEARCH_AHEAD; n++) {
            if (quad + n * THREADS < end_quad) {
                four[n] = quad_load(row.base, quad + n * THREADS);
            }
        }
#pragma unroll
        for (uint32_t n = 0; n < SEARCH_AHEAD; n++) {
            for (uint32_t e = 0; e < 4 && quad + n * THREADS < end_quad; e++) {
                count(key_of(quad_number(four[n], e)));
            }
        }
    }
    if (threadIdx.x < 6) { /* what no whole four covers: at most three at either end */
        const bool tail = threadIdx.x >= 3;
        const uint32_t at =
            tail ? 4 * max(first_quad, end_quad) + threadIdx.x - 3 : begin + threadIdx.x;
        if (at < (tail ? end : min(4 * first_quad, end))) {
            count(key_of(score_number(row.base[at])));
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

/* Where a search begins: it is for rank `need` of the keys in [low, high]; if there are fewer, for
 * what is missing of those below. */
struct search_range {
    uint32_t low, high, need;
};

#define SEARCH_SURPLUS TOPK_K_FAST_MAX /* choice: admitted beside the K, at most */

/*
 * A boundary that admits the K best of a row and not many more. All threads of the cluster call,
 * after a barrier of the cluster; both histograms are zero at the call, and again after the
 * caller's next barrier. *rounds_p counts the reads of the row.
 */
template <int THREADS>
__device__ __forceinline__ struct boundary
search_row(const struct row_view &row, const struct slice &slice, const struct search_range &range,
           uint32_t *rounds_p)
{
    static_assert(LIST >= (int)(TOPK_K_FAST_MAX + SEARCH_SURPLUS), "room for what is admitted");
    uint32_t low = range.low, high = range.high, need = range.need, rounds = 0;
    struct boundary boundary = {KEY_NAN, true};
    while (low < high) {
        const uint32_t shift = range_shift(high - low);
        count_slice<THREADS>(row, slice, low, high, shift);
        const struct rank_bin found = find_in_cluster<THREADS>(need);
        rounds++;
        if (found.total < need) { /* all below, or, if there is none, the row changed meanwhile */
            need -= found.total;
            high = low <= KEY_NAN ? KEY_NAN : low - 1;
            low = KEY_NAN;
            continue;
        }
        need -= found.above;
        low += found.bin << shift;
        high = low + min(high - low, (1u << shift) - 1u);
        if (found.count - need <= SEARCH_SURPLUS) {
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
