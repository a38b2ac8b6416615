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
#include "cluster_row.cuh"

namespace
{

#if __CUDA_ARCH__ >= 900
template <int THREADS>
__device__ __forceinline__ void select_row(const struct select_params &params,
                                           const struct task &task, int32_t row,
                                           struct progress &progress)
{
    auto &shared = cluster_state();
    const bool first_block = cluster_rank() == 0;
    const uint32_t k = (uint32_t)task.k;
    begin_row(params, task, row, first_block, first_block);
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
        admitted = admit_again<THREADS>(view, slice, range_beyond(all, boundary, k), k,
                                        progress.place, (uint32_t)params.stages);
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
            copy_row<THREADS>(params, length, k);
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
    if (params.args == nullptr) {
        return;
    }
    begin_kernel<THREADS>(params);
    launch_wait();
    struct progress progress = {};
    const int32_t stride = (int32_t)(gridDim.x / cluster_size());
    const struct task task = task_read(params);
    begin_counts(params, task);
    for (int32_t row = (int32_t)(blockIdx.x / cluster_size()); row < task.num_rows; row += stride) {
        select_row<THREADS>(params, task, row, progress);
    }
    end_kernel(progress);
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
#if SCORE_DTYPE == 0
    struct select_launch several = *launch; /* its policies are numbered from there on */
    several.variant = variant;
    return select_launch_cluster_several(&several, params, load);
#else
    return cudaErrorInvalidValue;
#endif
}
