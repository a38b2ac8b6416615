/*
 * cluster_row.cuh - steps of a row that a cluster takes, or a part of it: cluster.cu,
 * cluster_several.cu.
 */
#ifndef TOPKSEL_CUDA_CLUSTER_ROW_CUH
#define TOPKSEL_CUDA_CLUSTER_ROW_CUH

#include "cluster_finish.cuh"
#include "cluster_search.cuh"

namespace
{

#if __CUDA_ARCH__ >= 900
/* What the threads of a block must agree on is read by one of them. */
__device__ __forceinline__ void begin_row(const struct select_params &params,
                                          const struct task &task, int32_t row, bool first_block,
                                          bool counts)
{
    auto &shared = cluster_state();
    if (threadIdx.x == 0) {
        const int32_t given = task_length(task, row);
        shared.length = clamp_length(task, given);
        shared.least = KEY_MAX;
        shared.most = 0;
        expect_exchange();
        shared.counts.clamped += counts && shared.length != given ? 1u : 0u;
    }
    if (first_block && threadIdx.x == 32) {
        shared.sink = sink_of_row(task, params.args, row);
    }
    if (first_block && threadIdx.x == 64 && !task.plain && params.args->page_table != nullptr) {
        prefetch_pages(*params.args, row, task.width);
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

/* Choice: keys looked through first below a boundary, a quarter of a binade of scores; in each bin
 * then scores that differ by a 2^-13th at most. */
#define SEARCH_SPAN (1u << 21)

/* Where to look for the K-th highest of a row of which too few reach a boundary, or too many. */
__device__ __forceinline__ struct search_range
range_beyond(const struct standing &all, const struct boundary &boundary, uint32_t k)
{
    struct search_range range = {KEY_NAN, KEY_MAX, k};
    if (!all.agreed || boundary.key <= KEY_NAN) {
        return range; /* the row changed while it was read */
    }
    if (all.overflowed) {
        range.low = boundary.key;
    } else {
        range.high = boundary.key - 1;
        range.low = boundary.key - min(SEARCH_SPAN, range.high);
        range.need = k - min(k - 1, all.num_above + all.num_equal);
    }
    return range;
}

/* Admits the whole slice once more, by the boundary of a search, which is left in the state. */
template <int THREADS>
__device__ __noinline__ uint2 admit_again(const struct row_view row, const struct slice slice,
                                          const struct search_range range, uint32_t k,
                                          struct ring_place place, uint32_t num_stages)
{
    uint32_t rounds;
    const struct boundary boundary = search_row<THREADS>(row, slice, range, &rounds);
    /* Else all from the key on are wanted, and those equal to the one below are not. */
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
    wait_lists(all, taken_phase);
    if (all.num_above >= k) {
        cluster_arrive_relaxed();
        finish_list<THREADS>(params, all.num_above, low, k);
    } else {
        pull_equal<THREADS>(all, k - all.num_above);
        cluster_arrive_relaxed();
        block_sync<THREADS>();
        finish_merged<THREADS>(params, all.num_above, boundary.key, k);
    }
}

/* Writes a row of at most K scores, or the first K of one that changed while it was read. */
template <int THREADS>
__device__ __forceinline__ void copy_row(const struct select_params &params, int32_t length,
                                         uint32_t k)
{
    auto &shared = cluster_state();
    select_whole<THREADS>(shared.sink, min(length, (int32_t)k), (int32_t)k, params.by_value != 0,
                          sort_entries(params));
    if (threadIdx.x == 0) {
        shared.counts.copied++;
    }
}

/* Makes a block ready for its rows while the kernel before may still run. */
template <int THREADS>
__device__ __forceinline__ void begin_kernel(const struct select_params &params)
{
    auto &shared = cluster_state();
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
}

/* What is counted of the whole task, and where all counts go in the end. */
__device__ __forceinline__ void begin_counts(const struct select_params &params,
                                             const struct task &task)
{
    if (threadIdx.x == 0) {
        cluster_state().counts.clamped = blockIdx.x == 0 ? task.clamped : 0;
        cluster_state().routes = params.args->routes;
    }
}

/* After a cluster's rows, of which it may have had none. */
__device__ __forceinline__ void end_kernel(const struct progress &progress)
{
    if (!progress.started) {
        cluster_wait();
    }
    if (threadIdx.x == 0) {
        routes_add(cluster_state().routes, cluster_state().counts);
    }
}
#endif

} // namespace

#endif
