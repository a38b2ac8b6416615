/*
 * stream_parts.cuh - rows that lie in several blocks: each publishes its candidates and counts
 * itself in; the last to arrive gathers them all and completes the row. Nobody waits.
 */
#ifndef TOPKSEL_CUDA_STREAM_PARTS_CUH
#define TOPKSEL_CUDA_STREAM_PARTS_CUH

#include "stream_write.cuh"

namespace
{

/* What a block publishes of a part: `above` entries from the front, `equal` from the back. */
struct part_header {
    uint32_t above;
    uint32_t equal; /* bit 31: the part had to be cut */
};
#define PART_WAS_CUT 0x80000000u

/* The workspace: counters, headers, then two slots of candidates a block. */
struct workspace {
    uint32_t *arrivals;          /* [blocks], zero between launches */
    struct part_header *headers; /* [2 * blocks] */
    uint64_t *slots;             /* [2 * blocks, CANDIDATES] */
};

__device__ __forceinline__ struct workspace workspace_at(unsigned char *base, uint32_t blocks)
{
    size_t arrivals = (blocks * sizeof(uint32_t) + 255) / 256 * 256;
    size_t headers = (2 * blocks * sizeof(struct part_header) + 255) / 256 * 256;
    struct workspace workspace;
    workspace.arrivals = reinterpret_cast<uint32_t *>(base);
    workspace.headers = reinterpret_cast<struct part_header *>(base + arrivals);
    workspace.slots = reinterpret_cast<uint64_t *>(base + arrivals + headers);
    return workspace;
}

/* Entries of a slot are pairs of score bits and position. A block holds at most two unfinished
 * rows: one begun by an earlier block, one begun here. */
__device__ __forceinline__ uint32_t slot_of_part(uint32_t first_block, uint32_t part)
{
    return part == 0 ? 2 * first_block + 1 : 2 * (first_block + part);
}

/* Copies this block's candidates to its slot: those above the boundary, those equal to it. */
template <class Roles>
__device__ __forceinline__ struct emit_totals copy_part(uint32_t n, uint2 *entries, uint32_t count)
{
    constexpr int THREADS = Roles::THREADS;
    constexpr int CANDIDATES = Roles::CANDIDATES;
    auto &shared = state<Roles>();
    auto &frontier = frontier_at<Roles>(n);
    const uint32_t boundary = job_at<Roles>(n).boundary.key;
    return for_each_ranked<THREADS, 4>(
        count,
        [&](int64_t i, uint32_t *key, uint32_t *position) {
            *key = key_of(frontier.scores[i]);
            *position = frontier.positions[i];
        },
        [&](uint32_t key, uint32_t) { return key > boundary ? EMIT_FIRST : EMIT_SECOND; },
        shared.finish.emit,
        [&](uint32_t key, uint32_t position, enum emit_class kind, uint32_t above, uint32_t equal) {
            uint32_t at = kind == EMIT_FIRST ? above : CANDIDATES - 1 - equal;
            __stcg(&entries[at], make_uint2(key_to_bits(key), position));
        });
}

/*
 * Publishes this block's candidates; true in the block that is the last of the row to do so. All
 * threads call, after a barrier.
 */
template <class Roles>
__device__ __noinline__ bool publish_part(uint32_t n, const struct workspace workspace,
                                          uint32_t count)
{
    constexpr int THREADS = Roles::THREADS;
    constexpr int CANDIDATES = Roles::CANDIDATES;
    auto &shared = state<Roles>();
    auto &frontier = frontier_at<Roles>(n);
    const struct segment &segment = job_at<Roles>(n).segment;
    const uint32_t first_block = segment.first_block, k = (uint32_t)shared.task.k;
    const uint32_t slot = slot_of_part(first_block, blockIdx.x - first_block);
    uint2 *entries = reinterpret_cast<uint2 *>(workspace.slots) + (size_t)slot * CANDIDATES;
    struct emit_totals totals = copy_part<Roles>(n, entries, count);
    if (totals.second > k) { /* a plateau: k of it are enough, the lowest positions */
        block_sync<THREADS>();
        cut_candidates<Roles>(n, count);
        totals = copy_part<Roles>(n, entries, k);
    }
    if (threadIdx.x == 0) {
        struct part_header header = {totals.first,
                                     totals.second | (frontier.was_cut ? PART_WAS_CUT : 0u)};
        workspace.headers[slot] = header;
    }
    __threadfence();
    block_sync<THREADS>();
    if (threadIdx.x == 0) {
        uint32_t arrived = atomicAdd(&workspace.arrivals[first_block], 1u) + 1;
        if (arrived == segment.num_parts) {
            workspace.arrivals[first_block] = 0; /* ready for the next launch */
        }
        shared.arrived = arrived;
    }
    block_sync<THREADS>();
    bool last = shared.arrived == segment.num_parts;
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

/* Reads the headers of all parts; what is in the workspace need not be of this row when lengths
 * changed while they were read, but is never taken for more than fits. The bounds lie over `more`,
 * to be cleared by the caller. */
template <class Roles>
__device__ __forceinline__ struct part_bounds read_parts(uint32_t n,
                                                         const struct workspace &workspace)
{
    constexpr int THREADS = Roles::THREADS;
    auto &shared = state<Roles>();
    const struct segment &segment = job_at<Roles>(n).segment;
    constexpr uint32_t EACH = (PARTS_MAX + THREADS - 1) / THREADS; /* neighbouring parts */
    static_assert(2 * PARTS_MAX <= TOPK_BINS, "the bounds fit");
    struct part_bounds bounds = {shared.finish.more, shared.finish.more + PARTS_MAX, 0, 0, false};
    const uint32_t num_parts = segment.num_parts;
    uint32_t above[EACH], equal[EACH], above_own = 0, equal_own = 0;
    bool was_cut = false;
#pragma unroll
    for (uint32_t i = 0; i < EACH; i++) {
        const uint32_t part = threadIdx.x * EACH + i;
        above[i] = equal[i] = 0;
        if (part < num_parts) {
            const uint2 header = __ldcg(reinterpret_cast<const uint2 *>(
                &workspace.headers[slot_of_part(segment.first_block, part)]));
            above[i] = min(header.x, (uint32_t)Roles::CANDIDATES);
            equal[i] = min(header.y & ~PART_WAS_CUT, TOPK_K_FAST_MAX);
            was_cut = was_cut || (header.y & PART_WAS_CUT) != 0;
        }
        above_own += above[i];
        equal_own += equal[i];
    }
    uint32_t above_sum = warp_prefix(above_own), equal_sum = warp_prefix(equal_own);
    uint32_t *above_totals = shared.finish.emit.counts[0];
    uint32_t *equal_totals = shared.finish.emit.counts[1];
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
template <class Roles>
__device__ __forceinline__ void gather(uint32_t n, const struct workspace &workspace,
                                       const struct part_bounds &bounds, bool equal, uint32_t first,
                                       uint32_t end, uint32_t at)
{
    constexpr int THREADS = Roles::THREADS;
    constexpr int CANDIDATES = Roles::CANDIDATES;
    auto &frontier = frontier_at<Roles>(n);
    const struct segment &segment = job_at<Roles>(n).segment;
    constexpr int BATCH = 4; /* choice: loads in flight a thread */
    const uint32_t *starts = equal ? bounds.equal : bounds.above;
    for (uint32_t base = first + threadIdx.x; base < end; base += BATCH * THREADS) {
        uint2 entry[BATCH];
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            const uint32_t i = base + b * THREADS;
            if (i < end) {
                const uint32_t part = part_of(starts, segment.num_parts, i);
                const uint32_t rank = i - starts[part];
                const uint2 *entries = reinterpret_cast<const uint2 *>(workspace.slots) +
                                       (size_t)slot_of_part(segment.first_block, part) * CANDIDATES;
                entry[b] = __ldcg(&entries[equal ? CANDIDATES - 1 - rank : rank]);
            }
        }
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            const uint32_t i = base + b * THREADS;
            if (i < end) {
                frontier.scores[at + i - first] = __uint_as_float(entry[b].x);
                frontier.positions[at + i - first] = min(entry[b].y, (uint32_t)segment.length - 1);
            }
        }
    }
}

/* The last part to arrive completes the row. */
template <class Roles>
__device__ __noinline__ enum route complete_row(uint32_t n, const struct workspace workspace)
{
    constexpr int THREADS = Roles::THREADS;
    constexpr int CANDIDATES = Roles::CANDIDATES;
    static_assert(CANDIDATES >= 2 * (int)TOPK_K_FAST_MAX, "less than k above, k of the last part");
    auto &shared = state<Roles>();
    auto &frontier = frontier_at<Roles>(n);
    const struct segment &segment = job_at<Roles>(n).segment;
    const struct boundary boundary = job_at<Roles>(n).boundary;
    const uint32_t k = (uint32_t)shared.task.k;
    if (threadIdx.x == 0) {
        frontier_begin(boundary, k, (uint32_t)segment.length, frontier);
    }
    const struct part_bounds bounds = read_parts<Roles>(n, workspace);
    const bool enough = bounds.num_above + bounds.num_equal >= k;
    uint32_t count = 0;
    for (uint32_t first = 0; enough && first < bounds.num_above;) {
        if (first > 0) { /* more than fit: keep the best so far */
            block_sync<THREADS>();
            cut_candidates<Roles>(n, count);
            count = k;
            if (threadIdx.x == 0) { /* what is gathered from here on may be below the cut */
                frontier.lowest = boundary.key;
                frontier.shift = boundary.shift;
            }
        }
        uint32_t end = min(bounds.num_above, first + CANDIDATES - count);
        gather<Roles>(n, workspace, bounds, false, first, end, count);
        count += end - first;
        first = end;
    }
    if (enough && bounds.num_above < k) { /* whole parts of the plateau, until there are k */
        const uint32_t part =
            part_of(bounds.equal, segment.num_parts, k - bounds.num_above - 1) + 1;
        const uint32_t end = part < segment.num_parts ? bounds.equal[part] : bounds.num_equal;
        gather<Roles>(n, workspace, bounds, true, 0, end, count);
        count += end;
    }
    block_sync<THREADS>();
    clear_bins<THREADS>(shared.finish.more); /* it held the bounds */
    if (threadIdx.x == 0) {
        shared.overflowed = bounds.was_cut;
    }
    block_sync<THREADS>();
    if (!enough) {
        return recover<Roles>(n);
    }
    write_frontier<Roles>(n, count);
    return boundary.sampled > 0 ? ROUTE_CERTIFIED : ROUTE_DIRECT;
}

} // namespace

#endif
