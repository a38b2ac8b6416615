/*
 * stream_parts.cuh - rows that lie in several blocks: each publishes its candidates and counts
 * itself in; the last to arrive gathers them all and completes the row. Nobody waits.
 */
#ifndef TOPKSEL_CUDA_STREAM_PARTS_CUH
#define TOPKSEL_CUDA_STREAM_PARTS_CUH

#include "stream_write.cuh"

namespace
{

/* Copies this block's candidates to its slot: those above the boundary, those equal to it. */
template <int THREADS, int CANDIDATES>
__device__ __forceinline__ struct emit_totals copy_part(uint2 *entries, uint32_t count)
{
    auto &shared = state<CANDIDATES>();
    const uint32_t boundary = shared.boundary.key;
    return for_each_ranked<THREADS, 4>(
        count,
        [&](int64_t i, uint32_t *key, uint32_t *position) {
            *key = key_of(shared.frontier.scores[i]);
            *position = shared.frontier.positions[i];
        },
        [&](uint32_t key, uint32_t) { return key > boundary ? EMIT_FIRST : EMIT_SECOND; },
        shared.frontier.emit,
        [&](uint32_t key, uint32_t position, enum emit_class kind, uint32_t above, uint32_t equal) {
            uint32_t at = kind == EMIT_FIRST ? above : CANDIDATES - 1 - equal;
            __stcg(&entries[at], make_uint2(key_to_bits(key), position));
        });
}

/*
 * Publishes this block's candidates; true in the block that is the last of the row to do so. All
 * threads call, after a barrier.
 */
template <int THREADS, int CANDIDATES>
__device__ __noinline__ bool publish_part(const struct workspace workspace, uint32_t count)
{
    auto &shared = state<CANDIDATES>();
    const uint32_t first_block = shared.segment.first_block, k = (uint32_t)shared.task.k;
    const uint32_t slot = slot_of_part(first_block, blockIdx.x - first_block);
    uint2 *entries = reinterpret_cast<uint2 *>(workspace.slots) + (size_t)slot * CANDIDATES;
    struct emit_totals totals = copy_part<THREADS, CANDIDATES>(entries, count);
    if (totals.second > k) { /* a plateau: k of it are enough, the lowest positions */
        block_sync<THREADS>();
        cut_candidates<THREADS, CANDIDATES>(count);
        totals = copy_part<THREADS, CANDIDATES>(entries, k);
    }
    if (threadIdx.x == 0) {
        struct part_header header = {totals.first,
                                     totals.second | (shared.frontier.was_cut ? PART_WAS_CUT : 0u)};
        workspace.headers[slot] = header;
    }
    __threadfence();
    block_sync<THREADS>();
    if (threadIdx.x == 0) {
        uint32_t arrived = atomicAdd(&workspace.arrivals[first_block], 1u) + 1;
        if (arrived == shared.segment.num_parts) {
            workspace.arrivals[first_block] = 0; /* ready for the next launch */
        }
        shared.arrived = arrived;
    }
    block_sync<THREADS>();
    bool last = shared.arrived == shared.segment.num_parts;
    if (last) {
        __threadfence();
    }
    return last;
}

/* Where each part's entries go in the row's list: the sums of the parts before it. */
struct part_bounds {
    uint32_t *above, *equal; /* [num_parts], in shared memory */
    uint32_t num_above, num_equal;
    bool was_cut; /* any of them */
};

/* Reads the headers of all parts. The bounds lie over `coarse`, to be cleared by the caller. */
template <int THREADS, int CANDIDATES>
__device__ __forceinline__ struct part_bounds read_parts(const struct workspace &workspace,
                                                         struct stream_shared<CANDIDATES> &shared)
{
    constexpr uint32_t EACH = (PARTS_MAX + THREADS - 1) / THREADS; /* neighbouring parts */
    static_assert(2 * PARTS_MAX <= TOPK_BINS, "the bounds fit");
    struct part_bounds bounds = {shared.frontier.coarse, shared.frontier.coarse + PARTS_MAX, 0, 0,
                                 false};
    const uint32_t num_parts = shared.segment.num_parts;
    uint32_t above[EACH], equal[EACH], above_own = 0, equal_own = 0;
    bool was_cut = false;
#pragma unroll
    for (uint32_t i = 0; i < EACH; i++) {
        const uint32_t part = threadIdx.x * EACH + i;
        above[i] = equal[i] = 0;
        if (part < num_parts) {
            const uint2 header = __ldcg(reinterpret_cast<const uint2 *>(
                &workspace.headers[slot_of_part(shared.segment.first_block, part)]));
            above[i] = header.x;
            equal[i] = header.y & ~PART_WAS_CUT;
            was_cut = was_cut || (header.y & PART_WAS_CUT) != 0;
        }
        above_own += above[i];
        equal_own += equal[i];
    }
    uint32_t above_sum = warp_prefix(above_own), equal_sum = warp_prefix(equal_own);
    uint32_t *above_totals = shared.frontier.emit.counts[0];
    uint32_t *equal_totals = shared.frontier.emit.counts[1];
    if (lane_index() == 31) {
        above_totals[warp_index()] = above_sum;
        equal_totals[warp_index()] = equal_sum;
    }
    bounds.was_cut = block_any<THREADS>(was_cut);
    bool exists = lane_index() < THREADS / 32, before = lane_index() < warp_index();
    uint32_t above_all = exists ? above_totals[lane_index()] : 0;
    uint32_t equal_all = exists ? equal_totals[lane_index()] : 0;
    above_sum += __reduce_add_sync(WARP_ALL, before ? above_all : 0) - above_own;
    equal_sum += __reduce_add_sync(WARP_ALL, before ? equal_all : 0) - equal_own;
    bounds.num_above = __reduce_add_sync(WARP_ALL, above_all);
    bounds.num_equal = __reduce_add_sync(WARP_ALL, equal_all);
#pragma unroll
    for (uint32_t i = 0; i < EACH; i++) {
        const uint32_t part = threadIdx.x * EACH + i;
        if (part < num_parts) {
            bounds.above[part] = above_sum;
            bounds.equal[part] = equal_sum;
        }
        above_sum += above[i];
        equal_sum += equal[i];
    }
    block_sync<THREADS>();
    return bounds;
}

/* The part that entry i belongs to: the last one that starts at or before it. */
__device__ __forceinline__ uint32_t part_of(const uint32_t *bounds, uint32_t num_parts, uint32_t i)
{
    uint32_t low = 0, high = num_parts; /* bounds[low] <= i, and below bounds[high] */
    while (high - low > 1) {
        uint32_t middle = (low + high) / 2;
        if (bounds[middle] <= i) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

/* Copies entries [first, end) of the row's list of those above (or equal) to candidates from `at`.
 */
template <int THREADS, int CANDIDATES>
__device__ __forceinline__ void
gather(const struct workspace &workspace, const struct part_bounds &bounds, bool equal,
       uint32_t first, uint32_t end, uint32_t at, struct stream_shared<CANDIDATES> &shared)
{
    constexpr int BATCH = 4; /* choice: loads in flight a thread */
    const uint32_t *starts = equal ? bounds.equal : bounds.above;
    for (uint32_t base = first + threadIdx.x; base < end; base += BATCH * THREADS) {
        uint2 entry[BATCH];
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            const uint32_t i = base + b * THREADS;
            if (i < end) {
                const uint32_t part = part_of(starts, shared.segment.num_parts, i);
                const uint32_t rank = i - starts[part];
                const uint2 *entries =
                    reinterpret_cast<const uint2 *>(workspace.slots) +
                    (size_t)slot_of_part(shared.segment.first_block, part) * CANDIDATES;
                entry[b] = __ldcg(&entries[equal ? CANDIDATES - 1 - rank : rank]);
            }
        }
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            const uint32_t i = base + b * THREADS;
            if (i < end) {
                shared.frontier.scores[at + i - first] = __uint_as_float(entry[b].x);
                shared.frontier.positions[at + i - first] = entry[b].y;
            }
        }
    }
}

/* The last part to arrive completes the row. */
template <int THREADS, int CANDIDATES>
__device__ __noinline__ enum route complete_row(const struct select_params &params,
                                                const struct workspace workspace)
{
    static_assert(CANDIDATES >= 2 * (int)TOPK_K_FAST_MAX, "less than k above, k of the last part");
    auto &shared = state<CANDIDATES>();
    const uint32_t k = (uint32_t)shared.task.k;
    frontier_begin(shared.boundary, k, (uint32_t)shared.segment.length, shared.frontier);
    const struct part_bounds bounds = read_parts<THREADS>(workspace, shared);
    const bool enough = bounds.num_above + bounds.num_equal >= k;
    uint32_t count = 0;
    for (uint32_t first = 0; enough && first < bounds.num_above;) {
        if (first > 0) { /* more than fit: keep the best so far */
            block_sync<THREADS>();
            cut_candidates<THREADS, CANDIDATES>(count);
            count = k;
            if (threadIdx.x == 0) { /* what is gathered from here on may be below the cut */
                shared.frontier.lowest = shared.boundary.key;
                shared.frontier.shift = shared.boundary.shift;
            }
        }
        uint32_t end = min(bounds.num_above, first + CANDIDATES - count);
        gather<THREADS>(workspace, bounds, false, first, end, count, shared);
        count += end - first;
        first = end;
    }
    if (enough && bounds.num_above < k) { /* whole parts of the plateau, until there are k */
        const uint32_t part =
            part_of(bounds.equal, shared.segment.num_parts, k - bounds.num_above - 1) + 1;
        const uint32_t end =
            part < shared.segment.num_parts ? bounds.equal[part] : bounds.num_equal;
        gather<THREADS>(workspace, bounds, true, 0, end, count, shared);
        count += end;
    }
    block_sync<THREADS>();
    clear_bins<THREADS>(shared.frontier.coarse); /* it held the bounds */
    if (threadIdx.x == 0) {
        shared.overflowed = bounds.was_cut;
    }
    block_sync<THREADS>();
    if (!enough) {
        return recover<THREADS, CANDIDATES>(params);
    }
    write_frontier<THREADS, CANDIDATES>(params, count);
    return shared.boundary.sampled > 0 ? ROUTE_CERTIFIED : ROUTE_DIRECT;
}

} // namespace

#endif
