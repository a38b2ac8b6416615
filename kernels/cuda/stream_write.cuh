/*
 * stream_write.cuh - the end of a row in the stream families: selection among the candidates, and
 * the result in no order, by position or by value; and the second look at a row whose proposed
 * boundary was too high.
 */
#ifndef TOPKSEL_CUDA_STREAM_WRITE_CUH
#define TOPKSEL_CUDA_STREAM_WRITE_CUH

#include "order.cuh"
#include "stream_scan.cuh"

namespace
{

/* The sort buffer lies over both histograms, which must be zero again afterwards. */
template <int CANDIDATES>
__device__ __forceinline__ uint64_t *sort_buffer(struct frontier_shared<CANDIDATES> &shared)
{
    static_assert(2 * TOPK_BINS * sizeof(uint32_t) >= TOPK_K_FAST_MAX * sizeof(uint64_t),
                  "the largest fast K fits");
    return reinterpret_cast<uint64_t *>(shared.bins);
}

template <int THREADS, int CANDIDATES>
__device__ __forceinline__ void clear_histograms(struct frontier_shared<CANDIDATES> &shared)
{
    clear_bins<THREADS>(shared.bins);
    clear_bins<THREADS>(shared.coarse);
}

/* Where the result of the row at hand goes. */
template <int CANDIDATES>
__device__ __forceinline__ struct sink sink_at_hand(const struct select_params &params,
                                                    const struct stream_shared<CANDIDATES> &shared)
{
    return sink_of_row(shared.task, params.args, shared.segment.row);
}

/* Writes the selected of `count` candidates by value, descending. All threads call. */
template <int THREADS, int CANDIDATES>
__device__ __noinline__ void write_by_value(const struct select_params &params,
                                            struct selection selection, uint32_t count)
{
    auto &shared = state<CANDIDATES>();
    const uint32_t k = (uint32_t)shared.task.k;
    uint64_t *entries = sort_buffer(shared.frontier);
    block_sync<THREADS>(); /* the histograms are clear before entries overwrite them */
    for_each_ranked<THREADS, 4>(
        count,
        [&](int64_t i, uint32_t *key, uint32_t *position) {
            *key = key_of(shared.frontier.scores[i]);
            *position = shared.frontier.positions[i];
        },
        [&](uint32_t key, uint32_t position) {
            return is_selected(selection, key, position) ? EMIT_FIRST : EMIT_NONE;
        },
        shared.frontier.emit,
        [&](uint32_t key, uint32_t position, enum emit_class, uint32_t slot, uint32_t) {
            entries[slot] = sort_entry(key, position);
        });
    block_sync<THREADS>();
    sort_descending<THREADS>(entries, k);
    sink_put_sorted<THREADS>(sink_at_hand(params, shared), entries, k);
    block_sync<THREADS>();
    clear_histograms<THREADS>(shared.frontier);
}

/* Bit i: candidate threadIdx.x + i * THREADS, one of `count`, is selected. */
template <int THREADS, int CANDIDATES>
__device__ __forceinline__ uint32_t selected_marks(const struct selection &selection,
                                                   uint32_t count)
{
    static_assert(CANDIDATES / THREADS <= 32, "one bit a candidate of a thread");
    auto &shared = state<CANDIDATES>();
    const bool by_score = selection.position == 0xffffffffu && selection.key >= KEY_MINUS_INF;
    const float low = __uint_as_float(key_floor_bits(selection.key));
    uint32_t marks = 0, bit = 1;
#pragma unroll 4
    for (uint32_t at = threadIdx.x; at < count; at += THREADS, bit += bit) {
        const float score = shared.frontier.scores[at];
        const bool is_one =
            by_score ? score >= low
                     : is_selected(selection, key_of(score), shared.frontier.positions[at]);
        marks |= is_one ? bit : 0u;
    }
    return marks;
}

/* Writes the selected of `count` candidates in any order. All threads call. */
template <int THREADS, int CANDIDATES>
__device__ __forceinline__ void write_unordered(const struct select_params &params,
                                                struct selection selection, uint32_t count)
{
    auto &shared = state<CANDIDATES>();
    uint32_t *stage = reinterpret_cast<uint32_t *>(shared.frontier.scores);
    uint32_t marks = selected_marks<THREADS, CANDIDATES>(selection, count);
    const uint32_t own = (uint32_t)__popc(marks), prefix = warp_prefix(own);
    uint32_t slot = 0;
    if (lane_index() == 31) {
        slot = atomicAdd(&shared.written, prefix);
    }
    slot = __shfl_sync(WARP_ALL, slot, 31) + prefix - own;
    block_sync<THREADS>(); /* all scores are read: positions take their place */
    while (marks != 0) {
        const uint32_t i = 31u - (uint32_t)__clz((int)marks);
        marks ^= 1u << i;
        stage[slot++] = shared.frontier.positions[threadIdx.x + i * THREADS];
    }
    block_sync<THREADS>();
    sink_put_staged<THREADS>(sink_at_hand(params, shared), stage, (uint32_t)shared.task.k);
}

/* Turns the counts in bins[] into exclusive sums, and copies them to `copy`. Two barriers. */
template <int THREADS>
__device__ __forceinline__ void sum_bins(uint32_t *bins, uint32_t *copy, uint32_t *totals)
{
    constexpr int EACH = TOPK_BINS / THREADS;
    uint32_t count[EACH];
    const uint32_t own = load_bins<EACH>(bins + threadIdx.x * EACH, count);
    const uint32_t prefix = warp_prefix(own);
    if (lane_index() == 31) {
        totals[warp_index()] = prefix;
    }
    block_sync<THREADS>();
    const uint32_t other = lane_index() < THREADS / 32 ? totals[lane_index()] : 0;
    uint32_t sum =
        prefix - own + __reduce_add_sync(WARP_ALL, lane_index() < warp_index() ? other : 0);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        bins[threadIdx.x * EACH + i] = sum;
        copy[threadIdx.x * EACH + i] = sum;
        sum += count[i];
    }
    block_sync<THREADS>();
}

/*
 * Writes the selected of `count` candidates by position, ascending: dealt into as many buckets of
 * neighbouring positions as there are bins, and ranked within a bucket by comparison. All threads
 * call; the histograms are clear again after the caller's next barrier.
 */
template <int THREADS, int CANDIDATES>
__device__ __forceinline__ void write_by_position(const struct select_params &params,
                                                  struct selection selection, uint32_t count)
{
    constexpr int EACH = CANDIDATES / THREADS;
    static_assert(EACH * THREADS == CANDIDATES, "every thread keeps as many positions");
    auto &shared = state<CANDIDATES>();
    uint32_t *starts = shared.frontier.bins, *next = shared.frontier.coarse;
    uint32_t *dealt = reinterpret_cast<uint32_t *>(shared.frontier.scores);
    uint32_t *ordered = shared.frontier.positions;
    const uint32_t k = (uint32_t)shared.task.k;
    const uint32_t shift = range_shift((uint32_t)shared.segment.length);
    const uint32_t marks = selected_marks<THREADS, CANDIDATES>(selection, count);
    uint32_t position[EACH];
    block_sync<THREADS>(); /* the histograms are clear, all scores are read */
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        position[i] = 0;
        if (i * THREADS < count && (marks >> i & 1u) != 0) {
            position[i] = shared.frontier.positions[threadIdx.x + i * THREADS];
            atomicAdd(&starts[position[i] >> shift], 1u);
        }
    }
    block_sync<THREADS>();
    sum_bins<THREADS>(starts, next, shared.frontier.emit.counts[0]);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        if (i * THREADS < count && (marks >> i & 1u) != 0) {
            dealt[atomicAdd(&next[position[i] >> shift], 1u)] = position[i];
        }
    }
    block_sync<THREADS>();
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        if (i * THREADS < count && (marks >> i & 1u) != 0) {
            const uint32_t bucket = position[i] >> shift;
            uint32_t slot = starts[bucket];
            for (uint32_t other = slot; other < next[bucket]; other++) { /* next: now the end */
                slot += dealt[other] < position[i] ? 1u : 0u;
            }
            ordered[slot] = position[i];
        }
    }
    block_sync<THREADS>();
    clear_histograms<THREADS>(shared.frontier);
    sink_put_staged<THREADS>(sink_at_hand(params, shared), ordered, k);
}

/* Selects from `count` candidates (at least k) and writes; all threads call, after a barrier. */
template <int THREADS, int CANDIDATES>
__device__ __noinline__ void write_frontier(const struct select_params &params, uint32_t count)
{
    const struct selection selection =
        frontier_select<THREADS, CANDIDATES>(count, state<CANDIDATES>().frontier);
    if (params.by_value) {
        write_by_value<THREADS, CANDIDATES>(params, selection, count);
    } else if (!params.by_position) {
        write_unordered<THREADS, CANDIDATES>(params, selection, count);
    } else {
        write_by_position<THREADS, CANDIDATES>(params, selection, count);
    }
}

/* The row read again, whole, by this block: with a much lower boundary, then with none. */
template <int THREADS, int CANDIDATES>
__device__ __noinline__ enum route recover(const struct select_params &params)
{
    auto &shared = state<CANDIDATES>();
    const uint32_t k = (uint32_t)shared.task.k;
    uint32_t reads = 1;
    const struct boundary lower =
        propose_boundary<THREADS, CANDIDATES>(params, 3.0f * params.margin);
    block_sync<THREADS>();
    uint32_t count = scan_again<THREADS, CANDIDATES>(lower.key);
    if (count < k) {
        count = scan_again<THREADS, CANDIDATES>(KEY_NAN);
        reads = 2;
    }
    write_frontier<THREADS, CANDIDATES>(params, count);
    if (threadIdx.x == 0) {
        shared.counts.scores_read +=
            lower.sampled + reads * (uint64_t)(uint32_t)shared.segment.length;
    }
    return reads == 1 ? ROUTE_BAND : ROUTE_RECOVERY;
}

} // namespace

#endif
