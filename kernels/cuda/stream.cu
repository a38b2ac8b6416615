/*
 * stream.cu - the families tiles and split: long rows stream through shared memory, once.
 *
 * A block works through its share of all rows (share.cuh). One warp feeds a ring of stages with
 * bulk copies and never stops at a row's end, so that memory stays busy while the other warps
 * propose a boundary for a row (boundary.cuh), admit what is above it (frontier.cuh), and finish:
 *
 *   the whole row was here    select K, write
 *   a part of it              publish the candidates, count in; the last part to arrive gathers
 *                             them all, selects and writes
 *   fewer than K admitted     the proposal was too high: read the row again with a lower one, and
 *                             if that fails too, with none
 *
 * While a part is scanned its warps do not wait for each other: each takes its own chunks, and
 * candidates are stored in no order. Where order is asked for, the selected positions are put in
 * order at the end, which costs less than keeping all candidates in order.
 *
 * Candidates equal to the boundary are published apart: of a plateau that crosses the boundary only
 * as many parts are gathered as are needed.
 */
#include "stream_parts.cuh"

namespace
{

/* A row counts once: by how its boundary was found, or as a spill when its candidates overflowed.
 */
__device__ __forceinline__ void count_route(struct route_counts &counts, enum route route,
                                            bool overflowed)
{
    if (route == ROUTE_NONE) {
        return; /* another block completes the row */
    }
    counts.spill += overflowed ? 1u : 0u;
    counts.direct += !overflowed && route == ROUTE_DIRECT ? 1u : 0u;
    counts.certified += !overflowed && route == ROUTE_CERTIFIED ? 1u : 0u;
    counts.band += !overflowed && route == ROUTE_BAND ? 1u : 0u;
    counts.recovery += !overflowed && route == ROUTE_RECOVERY ? 1u : 0u;
}

#if __CUDA_ARCH__ >= 900
/* One warp: keeps the ring full, part after part. Its first lane does, all ask for samples. */
template <int CANDIDATES>
__device__ __forceinline__ void produce(const struct select_params &params)
{
    auto &shared = state<CANDIDATES>();
    struct walk walk = walk_begin(shared.share);
    struct ring_place place = {0, 0};
    struct segment segment;
    bool ahead = false;
    while (walk_next(shared.task, shared.share, params.part_scores, walk, segment)) {
        if (segment.length <= shared.task.k) {
            continue;
        }
        const float *row = task_row(shared.task, segment.row) - segment.skew;
        const uint32_t begin = (segment.begin + 3) / 4 * 4, end = segment.end / 4 * 4;
        if (ahead && params.prefetch > 0 && segment.length > CANDIDATES) {
            /* The ring is a few stages ahead of the scan, which is time enough. */
            sample_prefetch(sample_units_of(row, segment.skew, (uint32_t)segment.length, params));
        }
        ahead = true;
        uint32_t step = segment.begin / TOPK_UNIT_SCORES * TOPK_UNIT_SCORES;
        for (; lane_index() == 0 && step < segment.end; step += STAGE) {
            ring_wait(&shared.ring.empty[place.stage], place.phase ^ 1);
            uint32_t from = max(step, begin), to = min(step + STAGE, end);
            uint32_t count = to > from ? to - from : 0; /* only whole 16-byte groups */
            ring_copy(stage_at<CANDIDATES>(place.stage) + (from - step), row + from,
                      count * (uint32_t)sizeof(float), &shared.ring.full[place.stage]);
            ring_advance(place, (uint32_t)params.stages);
        }
        __syncwarp(); /* no lane runs ahead of the ring */
    }
}
#endif

/* Thread 0 finds the part after the one at hand, while others scan: that reads memory. */
template <int CANDIDATES>
__device__ __forceinline__ void look_ahead(const struct select_params &params)
{
    auto &shared = state<CANDIDATES>();
    if (threadIdx.x == 0) {
        shared.next_exists =
            walk_next(shared.task, shared.share, params.part_scores, shared.walk, shared.next);
    }
}

/* The part at hand, of a row longer than K. */
template <int THREADS, int CANDIDATES>
__device__ __forceinline__ void consume_part(const struct select_params &params,
                                             struct warp_place &place)
{
    auto &shared = state<CANDIDATES>();
    struct boundary boundary = {KEY_NAN, 0, first_shift(KEY_NAN)};
    if (shared.segment.length > CANDIDATES) { /* else the whole row fits: no boundary is needed */
        boundary = propose_boundary<THREADS, CANDIDATES>(params, params.margin);
    }
    if (threadIdx.x == 0) {
        shared.boundary = boundary;
    }
    frontier_begin(boundary, (uint32_t)shared.task.k, (uint32_t)shared.segment.length,
                   shared.frontier);
    block_sync<THREADS>();
    look_ahead<CANDIDATES>(params);
    const uint32_t count =
        scan_ring<THREADS, CANDIDATES>(boundary.key, (uint32_t)params.stages, place);
    enum route route = ROUTE_NONE;
    if (shared.segment.num_parts > 1) {
        const struct workspace workspace = workspace_at(params.workspace, gridDim.x);
        if (publish_part<THREADS, CANDIDATES>(workspace, count)) {
            route = complete_row<THREADS, CANDIDATES>(params, workspace);
        }
    } else if (count >= (uint32_t)shared.task.k) {
        write_frontier<THREADS, CANDIDATES>(params, count);
        route = shared.boundary.sampled > 0 ? ROUTE_CERTIFIED : ROUTE_DIRECT;
    } else {
        route = recover<THREADS, CANDIDATES>(params);
    }
    if (threadIdx.x == 0) {
        shared.counts.scores_read +=
            shared.boundary.sampled + (shared.segment.end - shared.segment.begin);
        count_route(shared.counts, route, shared.overflowed || shared.frontier.was_cut != 0);
    }
}

template <int THREADS, int CANDIDATES>
__device__ __forceinline__ void consume(const struct select_params &params)
{
    auto &shared = state<CANDIDATES>();
    const uint32_t group = warp_index() / STAGE_WARPS;
    struct warp_place place = {group, group, 0};
    look_ahead<CANDIDATES>(params);
    for (;;) {
        if (threadIdx.x == 0) {
            shared.written = 0;
            shared.overflowed = false;
            shared.more = shared.next_exists;
            shared.segment = shared.next;
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
            look_ahead<CANDIDATES>(params);
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
        ring_init(shared.ring, (uint32_t)params.stages, STAGE_WARPS);
        shared.frontier.rank.list_count = 0;
        shared.counts = {};
    }
    launch_wait();
    if (threadIdx.x < THREADS) {
        const struct task task = task_read(params);
        share_init<THREADS>(task, params.snap, shared.share,
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
    } else {
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
