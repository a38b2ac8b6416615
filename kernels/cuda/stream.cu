/*
 * stream.cu - the families tiles and split: long rows stream through shared memory, once.
 *
 * A block works through its share of all rows (share.cuh), part after part, and its warps have
 * roles that work on different parts at a time (stream_state.cuh): one warp feeds a ring of stages
 * with bulk copies, samplers propose the boundary of a part to come (stream_sample.cuh), scanners
 * admit what is above it (stream_scan.cuh), and finishers bring the part before to its end
 * (stream_write.cuh, stream_parts.cuh). None stops at a row's end, so that memory stays busy:
 *
 *   the whole row was here    select K, write
 *   a part of it              publish the candidates, count in; the last part to arrive gathers
 *                             them all, selects and writes
 *   fewer than K admitted     the proposal was too high: read the row again with a lower one, and
 *                             if that fails too, with none
 *
 * Scanners do not wait for each other: each takes its own chunks, and candidates are stored in no
 * order. Where order is asked for, the selected positions are put in
 * order at the end, which costs less than keeping all candidates in order.
 *
 * Candidates equal to the boundary are published apart: of a plateau that crosses the boundary only
 * as many parts are gathered as are needed.
 */
#include "stream_first.cuh"
#include "stream_parts.cuh"
#include "stream_sample.cuh"
#include "stream_scan.cuh"

namespace
{

#if __CUDA_ARCH__ >= 900
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

/* The candidates of the n-th part, whole and cut as need be, become a result, or are published. */
template <class Roles>
__device__ __forceinline__ void finish_part(const struct select_params &params, uint32_t n)
{
    auto &shared = state<Roles>();
    const struct job &job = job_at<Roles>(n);
    const uint32_t count = frontier_at<Roles>(n).count;
    enum route route = ROUTE_NONE;
    if (job.segment.num_parts > 1) {
        const struct workspace workspace = workspace_at(params.workspace, gridDim.x);
        if (publish_part<Roles>(n, workspace, count)) {
            route = complete_row<Roles>(n, workspace);
        }
    } else if (count >= (uint32_t)shared.task.k) {
        write_frontier<Roles>(n, count);
        route = job.boundary.sampled > 0 ? ROUTE_CERTIFIED : ROUTE_DIRECT;
    } else {
        route = recover<Roles>(n);
    }
    if (threadIdx.x == 0) {
        shared.counts.scores_read += job.boundary.sampled + (job.segment.end - job.segment.begin);
        count_route(shared.counts, route, shared.overflowed || frontier_at<Roles>(n).was_cut != 0);
    }
}

/*
 * Waits until the n-th part is scanned, however often its candidates must be cut for that. The
 * warps that were through before a cut have arrived for the last time: thread 0 does it for them.
 */
template <class Roles>
__device__ __forceinline__ void await_candidates(uint32_t n, uint32_t &phases)
{
    auto &shared = state<Roles>();
    auto &hand = shared.hand_over;
    const uint32_t buffer = n % Roles::BUFFERS;
    for (;;) {
        ring_wait(&hand.scanned[n % JOBS], phases >> n % JOBS & 1);
        phases ^= 1u << n % JOBS;
        const uint32_t stuck = hand.stuck[buffer];
        block_sync<Roles::THREADS>();
        if (stuck == 0) {
            break;
        }
        const struct admission admission = cut_candidates<Roles>(n, frontier_at<Roles>(n).stored);
        if (threadIdx.x == 0) {
            job_at<Roles>(n).admission = admission;
            hand.stuck[buffer] = 0;
            hand.cuts[buffer]++;
            for (uint32_t i = stuck * HAND_OVER_ARRIVALS(32);
                 i < Roles::SCAN_WARPS * HAND_OVER_ARRIVALS(32); i++) {
                mbarrier_arrive(&hand.scanned[n % JOBS]);
            }
        }
        mbarrier_hand_over(&hand.resumed[buffer], threadIdx.x == 0);
    }
}

/* What the results of all rows need, and the end. Ends with a barrier. */
template <class Roles>
__device__ __forceinline__ void copy_args(const struct select_params &params)
{
    constexpr uint32_t WORDS = sizeof(struct topk_args) / sizeof(uint32_t);
    static_assert(WORDS * sizeof(uint32_t) == sizeof(struct topk_args) && WORDS <= Roles::THREADS,
                  "a word a thread");
    if (threadIdx.x < WORDS) {
        reinterpret_cast<uint32_t *>(&state<Roles>().args)[threadIdx.x] =
            reinterpret_cast<const uint32_t *>(params.args)[threadIdx.x];
    }
    if (threadIdx.x == 0) {
        state<Roles>().by_value = params.by_value != 0;
        state<Roles>().by_position = params.by_position != 0;
    }
    block_sync<Roles::THREADS>();
}

/* The finishers' work, part after part. In a function of its own, as are other roles: the registers
 * of each are then its own, and what one needs is not spilled by another. */
template <class Roles>
__device__ __noinline__ void finish(const struct select_params &params)
{
    auto &shared = state<Roles>();
    copy_args<Roles>(params);
    uint32_t phases = 0; /* a bit a job: of `scanned` */
    for (uint32_t n = 0;; n++) {
        wait_for(shared.hand_over.ready, n);
        const struct job &job = job_at<Roles>(n);
        if (!job.exists) {
            break;
        }
        const bool is_whole = job.segment.length <= shared.task.k; /* all of it is selected */
        if (threadIdx.x == 0) {
            shared.written = 0;
            shared.overflowed = false;
            shared.offset = row_offset(shared.args, job.segment.row);
            frontier_begin(job.boundary, (uint32_t)shared.task.k, (uint32_t)job.segment.length,
                           frontier_at<Roles>(n));
            shared.counts.clamped += job.segment.starts && job.segment.clamped ? 1u : 0u;
            shared.counts.copied += job.segment.starts && is_whole ? 1u : 0u;
        }
        if (threadIdx.x == 32 && shared.args.page_table != nullptr) {
            prefetch_pages(shared.args, job.segment.row, job.segment.length);
        }
        await_candidates<Roles>(n, phases);
        if (is_whole) {
            select_whole<Roles::THREADS>(sink_at<Roles>(n), job.segment.length, shared.task.k,
                                         shared.by_value, sort_buffer(shared.finish));
        } else {
            finish_part<Roles>(params, n);
        }
        block_sync<Roles::THREADS>(); /* the buffers are free */
        clear_histograms<Roles::THREADS>(shared.finish);
        if (threadIdx.x == 0) {
            frontier_clear(frontier_at<Roles>(n));
        }
        mbarrier_hand_over(&shared.hand_over.freed[n % JOBS], threadIdx.x == 0);
    }
    if (threadIdx.x == 0) {
        shared.counts.clamped += blockIdx.x == 0 ? shared.task.clamped : 0;
        routes_add(shared.args.routes, shared.counts);
    }
}

/* The state of a block before anything is read. */
template <class Roles>
__device__ __forceinline__ void begin(const struct select_params &params)
{
    auto &shared = state<Roles>();
    if (threadIdx.x < Roles::THREADS) {
        clear_histograms<Roles::THREADS>(shared.finish);
    } else if (warp_index() == Roles::FIRST_SAMPLER) {
        clear_sample_bins(shared.sample_bins);
    } else if (threadIdx.x == 32 * Roles::PRODUCER) {
        ring_init(shared.ring, (uint32_t)params.stages, STAGE_WARPS * HAND_OVER_ARRIVALS(32));
        hand_over_init<Roles>();
        shared.finish.rank.list_count = 0;
        shared.counts = {};
    }
}
#endif

template <class Roles>
__global__ void __launch_bounds__(Roles::BLOCK_THREADS, 1)
    stream_kernel(const __grid_constant__ struct select_params params)
{
#if __CUDA_ARCH__ >= 900
    static_assert(sizeof(struct stream_shared<Roles>) <= Roles::CANDIDATES * 8 * Roles::BUFFERS +
                                                             3 * TOPK_BINS * 4 +
                                                             TOPK_STREAM_MISC_BYTES,
                  "the planner's account of shared memory");
    auto &shared = state<Roles>();
    if (params.args == nullptr) {
        return;
    }
    launch_release();
    if (threadIdx.x == 32 * Roles::FIRST_SCANNER) {
        task_prefetch(params);
    }
    begin<Roles>(params);
    if (warp_index() < Roles::FIRST_SCANNER) {
        propose_first<Roles>(params);
        finish<Roles>(params);
    } else if (warp_index() < Roles::FIRST_SAMPLER) {
        const uint32_t step = share_step();
        launch_wait();
        share_init<TEAM_SCANNERS, 32 * Roles::SCAN_WARPS>(
            task_read(params), threadIdx.x - 32 * Roles::FIRST_SCANNER, step, params.snap,
            shared.share, reinterpret_cast<int64_t *>(shared.frontiers[0].scores));
        block_meet();
        scan<Roles>((uint32_t)params.stages);
    } else if (warp_index() < Roles::PRODUCER) {
        sample<Roles>(params);
    } else {
        launch_wait();
        if (lane_index() == 0) {
            shared.task = task_read(params);
        }
        __syncwarp();
        block_meet();
        if (lane_index() == 0) {
            produce<Roles>((uint32_t)params.stages);
        }
    }
#else
    (void)params; /* the planner chooses another family before sm_90 */
#endif
}

} // namespace

cudaError_t SCORE_LAUNCH(select_launch_stream)(const struct select_launch *launch,
                                               const struct select_params *params, bool load)
{
    int32_t variant = launch->variant;
#define STREAM_LAUNCH(...)                                                                         \
    if (variant-- == 0) {                                                                          \
        return select_launch_kernel(stream_kernel<stream_roles<__VA_ARGS__>>, launch, params,      \
                                    load);                                                         \
    }
    TOPK_STREAM_POLICIES(STREAM_LAUNCH)
#undef STREAM_LAUNCH
    return cudaErrorInvalidValue;
}
