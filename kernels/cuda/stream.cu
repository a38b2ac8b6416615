/*
 * stream.cu - the families tiles and split: long rows stream through shared memory, once.
 *
 * A block works through its share of all rows (share.cuh). One warp feeds a ring of stages with
 * bulk copies and never stops at a row's end, so that memory stays busy while the other warps
 * propose a boundary for a row (boundary.cuh), admit what is above it (frontier.cuh), and finish:
 *
 *   the whole row was here    cut to K, write
 *   a part of it              publish the candidates, count in; the last part to arrive gathers
 *                             them all, cuts and writes
 *   fewer than K admitted     the proposal was too high: read the row again with a lower one, and
 *                             if that fails too, with none
 *
 * Parts are published in position order, and those equal to the boundary apart: of a plateau that
 * crosses the boundary only as many are gathered as are needed.
 */
#include "boundary.cuh"
#include "frontier.cuh"
#include "order.cuh"
#include "ring.cuh"
#include "share.cuh"

namespace
{

#define STAGE TOPK_STAGE_SCORES
#define PARTS_MAX TOPK_STREAM_BLOCKS_MAX

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

template <int CANDIDATES>
struct stream_shared {
    struct frontier_shared<CANDIDATES> frontier;
    struct task task;
    struct share share;
    struct walk walk;       /* the consumers' */
    struct segment segment; /* the part at hand */
    struct route_counts counts;
    struct ring_barriers ring;
    uint32_t boundary; /* the proposal for the row at hand: the same in every part */
    uint32_t sampled;  /* scores sampled for it */
    uint32_t arrived;
    bool more;
};

/*
 * Dynamic shared memory: the state, then the ring. Functions that are not inlined take the state
 * from here and not as an argument: only so does the compiler know that its addresses are shared,
 * and shared atomics on addresses of unknown kind are loops.
 */
extern __shared__ __align__(128) unsigned char dynamic_shared[];

template <int CANDIDATES>
__device__ __forceinline__ struct stream_shared<CANDIDATES> &state() {
    return *reinterpret_cast<struct stream_shared<CANDIDATES> *>(dynamic_shared);
}

/* The ring's stages; bulk copies want them aligned to 128 bytes. */
template <int CANDIDATES>
__device__ __forceinline__ float *stage_at(uint32_t stage)
{
    constexpr size_t first = (sizeof(struct stream_shared<CANDIDATES>) + 127) / 128 * 128;
    return reinterpret_cast<float *>(dynamic_shared + first) + (size_t)stage * STAGE;
}

enum route { ROUTE_NONE, ROUTE_DIRECT, ROUTE_CERTIFIED, ROUTE_BAND, ROUTE_RECOVERY };

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

/* ---- reading ----------------------------------------------------------------------------------
 */

/* The row at hand, by virtual position. */
template <int CANDIDATES>
__device__ __forceinline__ const float *row_at_hand(const struct stream_shared<CANDIDATES> &shared)
{
    return task_row(shared.task, shared.segment.row) - shared.segment.skew;
}

#define GROUPS_OF(threads) (STAGE / 4 / (threads)) /* 16-byte groups a thread takes of a step */

/* The place in a step of a lane's first score. */
template <int THREADS>
__device__ __forceinline__ uint32_t lane_place()
{
    return (warp_index() * 32 * GROUPS_OF(THREADS) + lane_index()) * 4;
}

/* Where a scan stands; the same in all threads. */
struct scan {
    uint32_t step;  /* virtual position of the next step */
    uint32_t count; /* candidates held */
    struct ring_place place;
};

__device__ __forceinline__ bool is_inner(const struct segment &segment, uint32_t step)
{
    return step >= segment.begin && step + STAGE <= segment.end;
}

/* Thread 0 hands back the stage before `place`. */
template <int CANDIDATES>
__device__ __forceinline__ void release_previous(const struct ring_place &place, uint32_t stages)
{
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x == 0) {
        uint32_t previous = (place.stage == 0 ? stages : place.stage) - 1;
        ring_arrive(&state<CANDIDATES>().ring.empty[previous]);
    }
#endif
}

/*
 * Admits steps from the ring while the part covers them whole; stops early when a step does not
 * fit. This is where the time goes: one barrier a step, and no call that would cost registers.
 * `held`: the stage before is still to be handed back; each is, one step late, because the few
 * scores that enter are read from it again after the step's barrier.
 */
template <int THREADS, int CANDIDATES>
__device__ __noinline__ struct scan scan_inner(struct scan scan, struct admission admission,
                                               uint32_t num_stages, bool held)
{
    constexpr int GROUPS = GROUPS_OF(THREADS);
    auto &shared = state<CANDIDATES>();
    const uint32_t first = lane_place<THREADS>(), skew = shared.segment.skew;
    const uint32_t end = shared.segment.end;
    for (; scan.step + STAGE <= end; scan.step += STAGE) {
#if __CUDA_ARCH__ >= 900
        ring_wait(&shared.ring.full[scan.place.stage], scan.place.phase);
#endif
        const float *stage = stage_at<CANDIDATES>(scan.place.stage) + first;
        float score[4 * GROUPS];
#pragma unroll
        for (int g = 0; g < GROUPS; g++) {
            const float4 four = *reinterpret_cast<const float4 *>(stage + 128 * g);
            score[4 * g] = four.x;
            score[4 * g + 1] = four.y;
            score[4 * g + 2] = four.z;
            score[4 * g + 3] = four.w;
        }
        if (!frontier_admit<THREADS, GROUPS>(
                admission, &scan.count, scan.step / STAGE % 2, shared.frontier, score,
                (1u << 4 * GROUPS) - 1, first, scan.step - skew,
                [&]() {
                    if (held) {
                        release_previous<CANDIDATES>(scan.place, num_stages);
                    }
                },
                [&](uint32_t at) { return stage[at - first]; })) {
            break;
        }
        held = true;
        ring_advance(scan.place, num_stages);
    }
    return scan;
}

/*
 * Admits one step that the part [begin, end) covers in part: from the ring, or (RING false) any
 * step straight from the row. 16-byte groups that straddle the part's ends are read from the row
 * one by one, for they may straddle the row's ends. Does not advance when the step does not fit.
 */
template <int THREADS, int CANDIDATES, bool RING>
__device__ __noinline__ struct scan scan_edge(struct scan scan, struct admission admission,
                                              uint32_t begin, uint32_t end, uint32_t num_stages,
                                              bool held)
{
    constexpr int GROUPS = GROUPS_OF(THREADS);
    auto &shared = state<CANDIDATES>();
    const uint32_t first = lane_place<THREADS>(), skew = shared.segment.skew;
    const float *row = row_at_hand(shared);
    const float *stage = stage_at<CANDIDATES>(scan.place.stage);
#if __CUDA_ARCH__ >= 900
    if (RING) {
        ring_wait(&shared.ring.full[scan.place.stage], scan.place.phase);
    }
#endif
    float score[4 * GROUPS];
    uint32_t valid = 0;
#pragma unroll
    for (int i = 0; i < 4 * GROUPS; i++) {
        const uint32_t place = first + 128 * (i / 4), at = scan.step + place;
        const bool whole = at >= begin && at + 4 <= end;
        const bool exists = at + i % 4 >= begin && at + i % 4 < end;
        score[i] = 0.0f;
        if (exists) {
            score[i] = RING && whole ? stage[place + i % 4] : row[at + i % 4];
            valid |= 1u << i;
        }
    }
    const bool admitted = frontier_admit<THREADS, GROUPS>(
        admission, &scan.count, scan.step / STAGE % 2, shared.frontier, score, valid, first,
        scan.step - skew,
        [&]() {
            if (RING && held) {
                release_previous<CANDIDATES>(scan.place, num_stages);
            }
        },
        [&](uint32_t place) { return row[scan.step + place]; });
    if (admitted) {
        scan.step += STAGE;
        ring_advance(scan.place, num_stages);
    }
    return scan;
}

/* Cuts the candidates when they are about to overflow (frontier.cuh). */
template <int THREADS, int CANDIDATES>
__device__ __noinline__ struct admission cut_candidates(uint32_t count)
{
    block_sync<THREADS>();
    return frontier_cut<THREADS, CANDIDATES>(count, state<CANDIDATES>().frontier);
}

/* Admits the part at hand from the ring; returns how many are held. Ends with a barrier. */
template <int THREADS, int CANDIDATES>
__device__ __forceinline__ uint32_t scan_ring(uint32_t boundary, uint32_t num_stages,
                                              struct ring_place &place)
{
    auto &shared = state<CANDIDATES>();
    const uint32_t begin = shared.segment.begin, end = shared.segment.end;
    frontier_begin(boundary, (uint32_t)shared.task.k, shared.frontier);
    struct admission admission = admission_of(boundary);
    struct scan scan = {begin / TOPK_UNIT_SCORES * TOPK_UNIT_SCORES, 0, place};
    bool held = false;
    while (scan.step < end) {
        bool fits;
        if (is_inner(shared.segment, scan.step)) {
            scan = scan_inner<THREADS, CANDIDATES>(scan, admission, num_stages, held);
            fits = !is_inner(shared.segment, scan.step);
        } else {
            const uint32_t step = scan.step;
            scan =
                scan_edge<THREADS, CANDIDATES, true>(scan, admission, begin, end, num_stages, held);
            fits = scan.step != step;
        }
        held = fits;
        if (!fits) {
            admission = cut_candidates<THREADS, CANDIDATES>(scan.count);
            scan.count = shared.frontier.k;
        }
    }
    place = scan.place;
    block_sync<THREADS>();
    release_previous<CANDIDATES>(place, num_stages);
    return scan.count;
}

/* Admits the whole row from global memory: the slow, rare second look. Ends with a barrier. */
template <int THREADS, int CANDIDATES>
__device__ __noinline__ uint32_t scan_again(uint32_t low)
{
    auto &shared = state<CANDIDATES>();
    const uint32_t begin = shared.segment.skew, end = begin + (uint32_t)shared.segment.length;
    frontier_begin(low, (uint32_t)shared.task.k, shared.frontier);
    struct admission admission = admission_of(low);
    struct scan scan = {0, 0, {0, 0}};
    while (scan.step < end) {
        const uint32_t step = scan.step;
        scan = scan_edge<THREADS, CANDIDATES, false>(scan, admission, begin, end, 1, false);
        if (scan.step == step) {
            admission = cut_candidates<THREADS, CANDIDATES>(scan.count);
            scan.count = shared.frontier.k;
        }
    }
    block_sync<THREADS>();
    return scan.count;
}

/* Proposes a boundary for the row at hand; *sampled_p receives the scores sampled. */
template <int THREADS, int CANDIDATES>
__device__ __noinline__ uint32_t propose_boundary(const struct select_params &params, float margin,
                                                  uint32_t *sampled_p)
{
    auto &shared = state<CANDIDATES>();
    return sample_boundary<THREADS>(row_at_hand(shared), shared.segment.skew,
                                    (uint32_t)shared.segment.length, (uint32_t)shared.task.k,
                                    margin, params, shared.frontier.bins, shared.frontier.coarse,
                                    shared.frontier.rank, sampled_p);
}

/* ---- finishing a row ----------------------------------------------------------------------------
 */

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
    const int32_t row = shared.segment.row;
    return sink_open(params.args, task_row(shared.task, row), row);
}

/* Sorts the k entries of the sort buffer and writes them. All threads call, before a barrier. */
template <int THREADS, int CANDIDATES>
__device__ __noinline__ void write_sorted(const struct select_params &params)
{
    auto &shared = state<CANDIDATES>();
    const uint32_t k = (uint32_t)shared.task.k;
    uint64_t *entries = sort_buffer(shared.frontier);
    block_sync<THREADS>();
    sort_descending<THREADS>(entries, k);
    sink_put_sorted<THREADS>(sink_at_hand(params, shared), entries, k);
    block_sync<THREADS>();
    clear_histograms<THREADS>(shared.frontier);
}

/* Cuts `count` candidates (at least k) and writes the result; all threads call, after a barrier. */
template <int THREADS, int CANDIDATES>
__device__ __noinline__ void write_frontier(const struct select_params &params, uint32_t count)
{
    auto &shared = state<CANDIDATES>();
    const struct rank_cut cut = frontier_find_cut<THREADS, CANDIDATES>(count, shared.frontier);
    const struct sink sink = sink_at_hand(params, shared);
    if (sink.plain && !params.by_value) {
        frontier_each_selected<THREADS>(count, cut, shared.frontier,
                                        [&](uint32_t, uint32_t position, uint32_t slot) {
                                            __stcg(&sink.indices[slot], (int32_t)position);
                                        });
        return;
    }
    uint64_t *entries = sort_buffer(shared.frontier);
    block_sync<THREADS>(); /* the histogram is clear before entries overwrite it */
    frontier_each_selected<THREADS>(count, cut, shared.frontier,
                                    [&](uint32_t key, uint32_t position, uint32_t slot) {
                                        if (params.by_value) {
                                            entries[slot] = sort_entry(key, position);
                                        } else {
                                            sink_put(sink, slot, position);
                                        }
                                    });
    if (params.by_value) {
        write_sorted<THREADS, CANDIDATES>(params);
    }
}

/* The row read again, whole, by this block: with a much lower boundary, then with none. */
template <int THREADS, int CANDIDATES>
__device__ __noinline__ enum route recover(const struct select_params &params)
{
    auto &shared = state<CANDIDATES>();
    const uint32_t k = (uint32_t)shared.task.k;
    uint32_t sampled = 0, reads = 1;
    uint32_t low = propose_boundary<THREADS, CANDIDATES>(params, 3.0f * params.margin, &sampled);
    block_sync<THREADS>();
    uint32_t count = scan_again<THREADS, CANDIDATES>(low);
    if (count < k) {
        count = scan_again<THREADS, CANDIDATES>(KEY_NAN);
        reads = 2;
    }
    write_frontier<THREADS, CANDIDATES>(params, count);
    if (threadIdx.x == 0) {
        shared.counts.scores_read += sampled + reads * (uint64_t)(uint32_t)shared.segment.length;
    }
    return reads == 1 ? ROUTE_BAND : ROUTE_RECOVERY;
}

/* ---- rows in several parts ----------------------------------------------------------------------
 */

/*
 * Publishes this block's candidates; true in the block that is the last of the row to do so. All
 * threads call, after a barrier.
 */
template <int THREADS, int CANDIDATES>
__device__ __noinline__ bool publish_part(const struct workspace workspace, uint32_t count)
{
    auto &shared = state<CANDIDATES>();
    const uint32_t first_block = shared.segment.first_block;
    const uint32_t slot = slot_of_part(first_block, blockIdx.x - first_block);
    uint2 *entries = reinterpret_cast<uint2 *>(workspace.slots) + (size_t)slot * CANDIDATES;
    const struct emit_totals totals = for_each_ranked<THREADS, 4>(
        count,
        [&](int64_t i, uint32_t *key, uint32_t *position) {
            *key = key_of(shared.frontier.scores[i]);
            *position = shared.frontier.positions[i];
        },
        shared.boundary, shared.frontier.emit,
        [&](uint32_t key, uint32_t position, bool above, uint32_t above_rank, uint32_t equal_rank) {
            uint32_t at = above ? above_rank : CANDIDATES - 1 - equal_rank;
            __stcg(&entries[at], make_uint2(key_to_bits(key), position));
        });
    if (threadIdx.x == 0) {
        struct part_header header = {totals.above,
                                     totals.equal | (shared.frontier.was_cut ? PART_WAS_CUT : 0u)};
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
    static_assert(PARTS_MAX <= THREADS && 2 * PARTS_MAX <= TOPK_BINS, "one thread a part");
    struct part_bounds bounds = {shared.frontier.coarse, shared.frontier.coarse + PARTS_MAX, 0, 0,
                                 false};
    const uint32_t num_parts = shared.segment.num_parts;
    uint32_t above = 0, equal = 0;
    bool was_cut = false;
    if (threadIdx.x < num_parts) {
        const uint2 header = __ldcg(reinterpret_cast<const uint2 *>(
            &workspace.headers[slot_of_part(shared.segment.first_block, threadIdx.x)]));
        above = header.x;
        equal = header.y & ~PART_WAS_CUT;
        was_cut = (header.y & PART_WAS_CUT) != 0;
    }
    uint32_t above_sum = warp_prefix(above), equal_sum = warp_prefix(equal);
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
    above_sum += __reduce_add_sync(WARP_ALL, before ? above_all : 0);
    equal_sum += __reduce_add_sync(WARP_ALL, before ? equal_all : 0);
    bounds.num_above = __reduce_add_sync(WARP_ALL, above_all);
    bounds.num_equal = __reduce_add_sync(WARP_ALL, equal_all);
    if (threadIdx.x < num_parts) {
        bounds.above[threadIdx.x] = above_sum - above;
        bounds.equal[threadIdx.x] = equal_sum - equal;
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
    const uint32_t *starts = equal ? bounds.equal : bounds.above;
    for (uint32_t i = first + threadIdx.x; i < end; i += THREADS) {
        uint32_t part = part_of(starts, shared.segment.num_parts, i), rank = i - starts[part];
        const uint2 *entries = reinterpret_cast<const uint2 *>(workspace.slots) +
                               (size_t)slot_of_part(shared.segment.first_block, part) * CANDIDATES;
        uint2 entry = __ldcg(&entries[equal ? CANDIDATES - 1 - rank : rank]);
        shared.frontier.scores[at + i - first] = __uint_as_float(entry.x);
        shared.frontier.positions[at + i - first] = entry.y;
    }
}

/* How many of sorted positions[count] are below `position`. */
__device__ __forceinline__ uint32_t positions_below(const uint32_t *positions, uint32_t count,
                                                    uint32_t position)
{
    uint32_t low = 0, high = count;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (positions[middle] < position) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/*
 * Writes exactly k candidates: `num_above` in position order, then the rest in position order. All
 * threads call, after a barrier.
 */
template <int THREADS, int CANDIDATES>
__device__ __noinline__ void write_merged(const struct select_params &params, uint32_t num_above)
{
    auto &shared = state<CANDIDATES>();
    const uint32_t k = (uint32_t)shared.task.k;
    const uint32_t *positions = shared.frontier.positions;
    uint64_t *entries = sort_buffer(shared.frontier);
    const struct sink sink = sink_at_hand(params, shared);
    block_sync<THREADS>(); /* the histograms are clear before entries overwrite them */
    for (uint32_t i = threadIdx.x; i < k; i += THREADS) {
        uint32_t position = positions[i];
        if (params.by_value) {
            entries[i] = sort_entry(key_of(shared.frontier.scores[i]), position);
        } else if (i < num_above) {
            uint32_t others = positions_below(positions + num_above, k - num_above, position);
            sink_put(sink, i + others, position);
        } else {
            uint32_t others = positions_below(positions, num_above, position);
            sink_put(sink, i - num_above + others, position);
        }
    }
    if (params.by_value) {
        write_sorted<THREADS, CANDIDATES>(params);
    }
}

/* The last part to arrive completes the row. */
template <int THREADS, int CANDIDATES>
__device__ __noinline__ enum route complete_row(const struct select_params &params,
                                                const struct workspace workspace)
{
    auto &shared = state<CANDIDATES>();
    const uint32_t k = (uint32_t)shared.task.k;
    frontier_begin(shared.boundary, k, shared.frontier);
    const struct part_bounds bounds = read_parts<THREADS>(workspace, shared);
    const bool enough = bounds.num_above + bounds.num_equal >= k, merged = bounds.num_above < k;
    uint32_t count = 0;
    if (enough && merged) {
        gather<THREADS>(workspace, bounds, false, 0, bounds.num_above, 0, shared);
        gather<THREADS>(workspace, bounds, true, 0, k - bounds.num_above, bounds.num_above, shared);
    } else if (enough) {
        for (uint32_t first = 0; first < bounds.num_above;) {
            if (first > 0) { /* more than fit: keep the best so far */
                block_sync<THREADS>();
                cut_candidates<THREADS, CANDIDATES>(count);
                count = k;
            }
            uint32_t end = min(bounds.num_above, first + CANDIDATES - count);
            gather<THREADS>(workspace, bounds, false, first, end, count, shared);
            count += end - first;
            first = end;
        }
    }
    block_sync<THREADS>();
    clear_bins<THREADS>(shared.frontier.coarse); /* it held the bounds */
    if (threadIdx.x == 0) {
        shared.counts.spill += bounds.was_cut || shared.frontier.was_cut ? 1u : 0u;
    }
    if (!enough) {
        block_sync<THREADS>();
        return recover<THREADS, CANDIDATES>(params);
    }
    if (merged) {
        write_merged<THREADS, CANDIDATES>(params, bounds.num_above);
    } else {
        write_frontier<THREADS, CANDIDATES>(params, count);
    }
    return shared.sampled > 0 ? ROUTE_CERTIFIED : ROUTE_DIRECT;
}

/* ---- the two roles ------------------------------------------------------------------------------
 */

__device__ __forceinline__ void count_route(struct route_counts &counts, enum route route)
{
    counts.direct += route == ROUTE_DIRECT ? 1u : 0u;
    counts.certified += route == ROUTE_CERTIFIED ? 1u : 0u;
    counts.band += route == ROUTE_BAND ? 1u : 0u;
    counts.recovery += route == ROUTE_RECOVERY ? 1u : 0u;
}

#if __CUDA_ARCH__ >= 900
/* One thread: keeps the ring full, part after part. */
template <int CANDIDATES>
__device__ __forceinline__ void produce(const struct select_params &params)
{
    auto &shared = state<CANDIDATES>();
    struct walk walk = walk_begin(shared.share);
    struct ring_place place = {0, 0};
    struct segment segment;
    while (walk_next(shared.task, shared.share, params.part_scores, walk, segment)) {
        if (segment.length <= shared.task.k) {
            continue;
        }
        const float *row = task_row(shared.task, segment.row) - segment.skew;
        const uint32_t begin = (segment.begin + 3) / 4 * 4, end = segment.end / 4 * 4;
        uint32_t step = segment.begin / TOPK_UNIT_SCORES * TOPK_UNIT_SCORES;
        for (; step < segment.end; step += STAGE) {
            ring_wait(&shared.ring.empty[place.stage], place.phase ^ 1);
            uint32_t from = max(step, begin), to = min(step + STAGE, end);
            uint32_t count = to > from ? to - from : 0; /* only whole 16-byte groups */
            ring_copy(stage_at<CANDIDATES>(place.stage) + (from - step), row + from,
                      count * (uint32_t)sizeof(float), &shared.ring.full[place.stage]);
            ring_advance(place, (uint32_t)params.stages);
        }
    }
}
#endif

/* The part at hand, of a row longer than K. */
template <int THREADS, int CANDIDATES>
__device__ __forceinline__ void consume_part(const struct select_params &params,
                                             struct ring_place &place)
{
    auto &shared = state<CANDIDATES>();
    uint32_t boundary = KEY_NAN, sampled = 0;
    if (shared.segment.length > CANDIDATES) { /* else the whole row fits: no boundary is needed */
        boundary = propose_boundary<THREADS, CANDIDATES>(params, params.margin, &sampled);
    }
    if (threadIdx.x == 0) {
        shared.boundary = boundary;
        shared.sampled = sampled;
    }
    const uint32_t count = scan_ring<THREADS, CANDIDATES>(boundary, (uint32_t)params.stages, place);
    enum route route = ROUTE_NONE;
    if (shared.segment.num_parts > 1) {
        const struct workspace workspace = workspace_at(params.workspace, gridDim.x);
        if (publish_part<THREADS, CANDIDATES>(workspace, count)) {
            route = complete_row<THREADS, CANDIDATES>(params, workspace);
        }
    } else if (count >= (uint32_t)shared.task.k) {
        write_frontier<THREADS, CANDIDATES>(params, count);
        route = shared.sampled > 0 ? ROUTE_CERTIFIED : ROUTE_DIRECT;
    } else {
        route = recover<THREADS, CANDIDATES>(params);
    }
    if (threadIdx.x == 0) {
        shared.counts.spill += shared.segment.num_parts == 1 ? shared.frontier.was_cut : 0u;
        shared.counts.scores_read += shared.sampled + (shared.segment.end - shared.segment.begin);
        count_route(shared.counts, route);
    }
}

template <int THREADS, int CANDIDATES>
__device__ __forceinline__ void consume(const struct select_params &params)
{
    auto &shared = state<CANDIDATES>();
    struct ring_place place = {0, 0};
    for (;;) {
        if (threadIdx.x == 0) {
            shared.more = walk_next(shared.task, shared.share, params.part_scores, shared.walk,
                                    shared.segment);
            bool first_seen = shared.more && shared.segment.starts;
            shared.counts.clamped += first_seen && shared.segment.clamped ? 1u : 0u;
            shared.counts.copied += first_seen && shared.segment.length <= shared.task.k ? 1u : 0u;
        }
        block_sync<THREADS>();
        if (!shared.more) {
            break;
        }
        if (shared.segment.length > shared.task.k) {
            consume_part<THREADS, CANDIDATES>(params, place);
        } else {
            select_whole<THREADS>(sink_at_hand(params, shared), shared.segment.length,
                                  shared.task.k, params.by_value != 0,
                                  sort_buffer(shared.frontier));
            if (params.by_value) {
                clear_histograms<THREADS>(shared.frontier);
            }
        }
        block_sync<THREADS>(); /* the buffers and the part at hand are free */
    }
    if (threadIdx.x == 0) {
        shared.counts.clamped += blockIdx.x == 0 ? shared.task.clamped : 0;
        routes_add(params.args->routes, shared.counts);
    }
}

template <int THREADS, int CANDIDATES, int BLOCKS>
__global__ void __launch_bounds__(THREADS + 32, BLOCKS)
    stream_kernel(const __grid_constant__ struct select_params params)
{
#if __CUDA_ARCH__ >= 900
    static_assert(sizeof(struct stream_shared<CANDIDATES>) <=
                      CANDIDATES * 8 + 2 * TOPK_BINS * 4 + TOPK_STREAM_MISC_BYTES,
                  "the planner's account of shared memory");
    static_assert(STAGE % (4 * THREADS) == 0, "every thread takes whole 16-byte groups");
    auto &shared = state<CANDIDATES>();
    if (params.args == nullptr) {
        return;
    }
    launch_release();
    if (threadIdx.x < THREADS) {
        clear_histograms<THREADS>(shared.frontier);
    } else if (threadIdx.x == THREADS) {
        ring_init(shared.ring, (uint32_t)params.stages);
        shared.frontier.rank.list_count = 0;
        shared.counts = {};
    }
    launch_wait();
    if (threadIdx.x < THREADS) {
        const struct task task = task_read(params);
        share_init<THREADS>(task, shared.share,
                            reinterpret_cast<int64_t *>(shared.frontier.scores));
        if (threadIdx.x == 0) {
            shared.task = task;
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        shared.walk = walk_begin(shared.share);
    }
    if (threadIdx.x < THREADS) {
        consume<THREADS, CANDIDATES>(params);
    } else if (threadIdx.x == THREADS) {
        produce<CANDIDATES>(params);
    }
#else
    (void)params; /* the planner chooses another family before sm_90 */
#endif
}

} // namespace

cudaError_t select_launch_stream(const struct select_launch *launch,
                                 const struct select_params *params, bool load)
{
    int32_t variant = launch->variant;
#define STREAM_LAUNCH(threads, candidates, blocks)                                                 \
    if (variant-- == 0) {                                                                          \
        return select_launch_kernel(stream_kernel<threads, candidates, blocks>, launch, params,    \
                                    load);                                                         \
    }
    TOPK_STREAM_POLICIES(STREAM_LAUNCH)
#undef STREAM_LAUNCH
    return cudaErrorInvalidValue;
}
