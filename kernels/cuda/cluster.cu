/*
 * cluster.cu - the cluster family: a row in the registers and the shared memory of a few blocks
 * that are launched together.
 *
 *   propose     every block takes the same sample of the row and so comes to the same boundary,
 *               while its slice is on its way
 *   admit       what reaches the boundary goes to a list in shared memory, in position order
 *   exchange    a barrier of the cluster; every block reads how much the others have
 *   take        the others send their entries to the first block's shared memory, and are done; it
 *               takes all into registers
 *   write       it finds the cut, by histogram, and writes
 *
 * Two barriers of a cluster a row, and nothing in global memory but scores and results. A boundary
 * on a plateau (the sample has too much of one score) is kept apart: what is above it is listed,
 * and of those equal to it each block keeps the first K, so that constant and tied rows cost one
 * read as others do. Too few, or more than a list holds: the row is searched exactly, by histograms
 * over all of it, which cannot fail; then once more admitted.
 *
 * Blocks of a cluster may wait for each other, for the hardware starts them together. How often
 * they do is decided by what they published and all read alike, never by what each read of memory
 * that a caller may change.
 */
#include "cluster_finish.cuh"
#include "cluster_search.cuh"

namespace
{

#if __CUDA_ARCH__ >= 900
/* What the threads of a block must agree on is read by one of them. */
__device__ __forceinline__ void begin_row(const struct select_params &params,
                                          const struct task &task, int32_t row, bool first_block)
{
    auto &shared = cluster_state();
    if (threadIdx.x == 0) {
        const int32_t given = task_length(task, row);
        shared.length = clamp_length(task, given);
        shared.least = KEY_MAX;
        shared.most = 0;
        expect_exchange();
        shared.counts.clamped += first_block && shared.length != given ? 1u : 0u;
    }
    if (first_block && threadIdx.x == 32) {
        shared.sink = sink_of_row(task, params.args, row);
    }
}

/* A row counts once, in the first block. */
__device__ __forceinline__ void count_route(struct route_counts &counts, bool sampled, bool again,
                                            bool overflowed)
{
    counts.direct += !again && !sampled ? 1u : 0u;
    counts.certified += !again && sampled ? 1u : 0u;
    counts.spill += again && overflowed ? 1u : 0u;
    counts.recovery += again && !overflowed ? 1u : 0u;
}

/* Where a block stands in its ring and its exchanges. */
struct progress {
    struct ring_place place;
    uint32_t met_phase, taken_phase;
    bool started; /* all blocks of the cluster have */
};

/* Admits the whole slice once more, by the boundary of an exact search, which is left in the state.
 */
template <int THREADS>
__device__ __noinline__ uint2 admit_again(const struct row_view row, const struct slice slice,
                                          uint32_t k, struct ring_place place, uint32_t num_stages)
{
    uint32_t rounds;
    const struct boundary boundary = search_row<THREADS>(row, slice, k, &rounds);
    /* Else all from the key on are selected, just K, and none of those equal to the one below. */
    const uint32_t key = boundary.exact ? boundary.key : boundary.key - 1;
    if (threadIdx.x == 0) {
        const uint64_t scores = slice.end - slice.first;
        cluster_state().counts.scores_read += (rounds + 1) * scores;
        cluster_state().boundary = boundary;
        expect_exchange();
    }
    block_sync<THREADS>(); /* a slice without a score has no batch, nor its barrier */
    copy_first(row, slice, place, num_stages);
    return admit_exactly<THREADS>(row, slice, key, k, place, num_stages);
}

/* What a block does of a row of more than K scores: its slice, by the boundary of a sample. */
template <int THREADS>
__device__ __forceinline__ uint2 admit_row(const struct select_params &params,
                                           const struct row_view &view, const struct slice &slice,
                                           uint32_t k, struct boundary &boundary,
                                           struct ring_place place)
{
    const uint32_t num_stages = (uint32_t)params.stages;
    const struct sampling sampling = sampling_of(view, params);
    score_quad sample[SAMPLE_QUADS(THREADS)];
    load_sample<THREADS>(view, sampling, sample);
    copy_first(view, slice, place, num_stages);
    if (warp_index() == 1 && lane_index() < 2 * SCORE_GROUP) {
        load_edges(view, lane_index());
    }
    boundary = propose<THREADS>(view, sampling, sample, k, params.margin);
    if (threadIdx.x == 0) {
        struct route_counts &counts = cluster_state().counts;
        counts.scores_read += sampling.size() + (slice.end - slice.first);
    }
    if (boundary.exact) {
        return admit_exactly<THREADS>(view, slice, boundary.key, k, place, num_stages);
    }
    const struct admitted admitted =
        admit_slice<THREADS, false>(view, slice, boundary.key, k, place, num_stages);
    return make_uint2(admitted.above, 0);
}

/* The first block's end of a row: the other lists come to it; what they have of equal scores is in
 * its reach until it says so. */
template <int THREADS>
__device__ __forceinline__ void
finish_row(const struct select_params &params, const struct standing &all,
           const struct boundary &boundary, uint32_t k, uint32_t &taken_phase)
{
    const uint32_t low = boundary.exact ? boundary.key + 1 : boundary.key;
    struct taken<THREADS> taken;
    wait_lists(all, taken_phase);
    if (all.num_above >= k && take_list<THREADS>(all.num_above, low, taken)) {
        cluster_arrive_relaxed();
        finish_taken<THREADS>(params, taken, low, k);
        return;
    }
    if (all.num_above < k) {
        pull_equal<THREADS>(all, k - all.num_above);
    }
    cluster_arrive_relaxed();
    block_sync<THREADS>();
    if (all.num_above >= k) {
        finish_list<THREADS>(params, all.num_above, low, k);
    } else {
        finish_merged<THREADS>(params, all.num_above, boundary.key, k);
    }
}

template <int THREADS>
__device__ __forceinline__ void select_row(const struct select_params &params,
                                           const struct task &task, int32_t row,
                                           struct progress &progress)
{
    auto &shared = cluster_state();
    const bool first_block = cluster_rank() == 0;
    const uint32_t k = (uint32_t)task.k;
    begin_row(params, task, row, first_block);
    block_sync<THREADS>();
    const int32_t length = shared.length;
    const struct row_view view = row_view_of(task, row, length);
    const struct slice slice = slice_of(view, cluster_rank(), cluster_size());
    struct boundary boundary = {KEY_NAN, true};
    uint2 admitted = make_uint2(0, ADMITTED_WHOLE);
    if (length > task.k) {
        admitted = admit_row<THREADS>(params, view, slice, k, boundary, progress.place);
        pass_slice(slice, progress.place, (uint32_t)params.stages);
    }
    if (!progress.started) {
        cluster_wait();
        progress.started = true;
    }
    struct standing all;
    bool good, again = false, overflowed = false;
    for (;;) {
        all = exchange<THREADS>(admitted, boundary, progress.met_phase);
        good = !all.copied && all.agreed && !all.overflowed && all.num_above + all.num_equal >= k;
        if (good || all.copied || again) { /* not good then: the row changed while it was read */
            break;
        }
        again = true;
        overflowed = all.overflowed;
        admitted = admit_again<THREADS>(view, slice, k, progress.place, (uint32_t)params.stages);
        pass_slice(slice, progress.place, (uint32_t)params.stages);
        boundary = shared.boundary;
    }
    if (first_block && good) {
        finish_row<THREADS>(params, all, boundary, k, progress.taken_phase);
        if (threadIdx.x == 0) {
            count_route(shared.counts, boundary.key > KEY_NAN, again, overflowed);
        }
    } else {
        if (good) {
            push_list<THREADS>(all);
        }
        cluster_arrive_relaxed();
        if (first_block) {
            select_whole<THREADS>(shared.sink, min(length, (int32_t)k), (int32_t)k,
                                  params.by_value != 0, sort_entries(params));
            if (threadIdx.x == 0) {
                shared.counts.copied++;
            }
        }
    }
    cluster_wait();
    block_sync<THREADS>(); /* nothing of this row is in use */
}
#endif

template <int THREADS, int BLOCKS>
__global__ void __launch_bounds__(THREADS, BLOCKS)
    cluster_kernel(const __grid_constant__ struct select_params params)
{
#if __CUDA_ARCH__ >= 900
    static_assert(LIST >= 2 * (int)TOPK_K_FAST_MAX, "room for more than K");
    auto &shared = cluster_state();
    if (params.args == nullptr) {
        return;
    }
    launch_release();
    clear_bins<THREADS>(shared.bins);
    clear_bins<THREADS>(shared.coarse);
    if (threadIdx.x == 32) {
        task_prefetch(params);
    }
    if (threadIdx.x == 0) {
        shared.rank.list_count = 0;
        shared.counts = {};
        mbarrier_init_one(&shared.met);
        mbarrier_init_one(&shared.taken);
        ring_init(shared.ring, (uint32_t)params.stages, 1);
    }
    cluster_arrive(); /* all have started, before anyone sends */
    block_sync<THREADS>();
    launch_wait();
    struct progress progress = {};
    const int32_t stride = (int32_t)(gridDim.x / cluster_size());
    const struct task task = task_read(params);
    if (threadIdx.x == 0) {
        shared.counts.clamped = blockIdx.x == 0 ? task.clamped : 0;
        shared.routes = params.args->routes;
    }
    for (int32_t row = (int32_t)(blockIdx.x / cluster_size()); row < task.num_rows; row += stride) {
        select_row<THREADS>(params, task, row, progress);
    }
    if (!progress.started) {
        cluster_wait();
    }
    if (threadIdx.x == 0) {
        routes_add(shared.routes, shared.counts);
    }
#else
    (void)params; /* the planner chooses another family before sm_90 */
#endif
}

} // namespace

cudaError_t SCORE_LAUNCH(select_launch_cluster)(const struct select_launch *launch,
                                                const struct select_params *params, bool load)
{
    int32_t variant = launch->variant;
#define CLUSTER_LAUNCH(threads, blocks, cluster, rows)                                             \
    if (variant-- == 0) {                                                                          \
        return select_launch_kernel(cluster_kernel<threads, blocks>, launch, params, load);        \
    }
    TOPK_CLUSTER_POLICIES(CLUSTER_LAUNCH)
#undef CLUSTER_LAUNCH
    return cudaErrorInvalidValue;
}
