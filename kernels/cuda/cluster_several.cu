/*
 * cluster_several.cu - one very long row of float32 in several clusters: each admits a part of it,
 * as cluster.cu does a row, and hands it in; the last to do so finishes the row.
 *
 * A kernel of its own, for what it has more to keep makes the other slower.
 */
/* With more, registers do not suffice, and the loop over batches waits for what is spilled: H200, 1
 * us of a row of a million. */
#define TAKEN_FEW 7
#define TAKEN_MORE 11
#define SEARCH_AHEAD 1
#include "cluster_parts.cuh"
#include "cluster_row.cuh"

namespace
{

#if __CUDA_ARCH__ >= 900
/* The end of a row whose parts are all in, in the first block of the cluster that was the last. No
 * entry is taken for less than this cluster's boundary, should the row have changed meanwhile. */
template <int THREADS>
__device__ __noinline__ void finish_parts(const struct select_params &params,
                                          const struct part part, parts_word word,
                                          const struct boundary boundary, uint32_t k)
{
    const uint32_t low = min(boundary.exact ? boundary.key + 1 : boundary.key, KEY_PLUS_INF);
    const uint32_t count = gather_parts<THREADS>(part, word, low, k);
    if (count < k) {
        finish_merged<THREADS>(params, count, boundary.key, k);
    } else {
        finish_list<THREADS>(params, count, low, k);
    }
}

/* What a cluster knows of a row, the same in all its threads, when nothing is left to admit. */
struct outcome {
    struct standing all;
    struct boundary boundary;
    parts_word word; /* of a row that several clusters share, with the verdict */
    bool good;       /* the first block finishes what all have */
    bool handed;     /* no more than what the verdict says is left to this cluster */
    bool again, overflowed;
};

/* Lets all blocks know what each admitted; where that is not enough, or too much, the row is
 * searched and admitted once more: by the last cluster, where several share it. */
template <int THREADS>
__device__ __forceinline__ struct outcome
settle(const struct select_params &params, const struct row_view &view, const struct part &part,
       uint2 admitted, const struct boundary &boundary, uint32_t k, struct progress &progress)
{
    const struct slice slice = slice_of(view, cluster_rank(), cluster_size());
    struct outcome row = {};
    row.boundary = boundary;
    for (;;) {
        row.all = exchange<THREADS>(admitted, row.boundary, progress.met_phase);
        row.good = !row.all.copied && row.all.agreed && !row.all.overflowed;
        if (!row.again) {
            row.word = hand_in<THREADS>(part, row.all, row.good, k, progress.met_phase);
            row.handed = row.all.copied || row.word >> PARTS_SHIFT != PARTS_SEARCH;
            row.good = false;
        }
        row.good = row.good && row.all.num_above + row.all.num_equal >= k;
        if (row.good || row.handed || row.all.copied || row.again) {
            return row; /* not good and again: it changed while it was read */
        }
        row.again = true;
        row.overflowed = row.all.overflowed || parts_overflow(row.word);
        const struct search_range whole = {KEY_NAN, KEY_MAX, k}; /* parts may differ */
        admitted =
            admit_again<THREADS>(view, slice, whole, k, progress.place, (uint32_t)params.stages);
        pass_slice(slice, progress.place, (uint32_t)params.stages);
        row.boundary = cluster_state().boundary;
    }
}

/* Finishes the row, in the first block, or helps to: ends with one arrival at the barrier of the
 * cluster. */
template <int THREADS>
__device__ __forceinline__ void finish(const struct select_params &params,
                                       const struct outcome &row, const struct part &part,
                                       int32_t length, uint32_t k, struct progress &progress)
{
    const bool first_block = cluster_rank() == 0;
    bool selects = first_block && row.good;
    if (selects) {
        finish_row<THREADS>(params, row.all, row.boundary, k, progress.taken_phase);
    } else {
        if (row.good) {
            push_list<THREADS>(row.all);
        }
        cluster_arrive_relaxed();
        if (row.handed && !row.all.copied) {
            selects = first_block && row.word >> PARTS_SHIFT == PARTS_GATHER;
            if (selects) {
                finish_parts<THREADS>(params, part, row.word, row.boundary, k);
            }
        } else if (first_block && (part.rank == 0 || !row.handed)) {
            copy_row<THREADS>(params, length, k);
        }
    }
    if (selects && threadIdx.x == 0) {
        count_route(cluster_state().counts, row.boundary.key > KEY_NAN, row.again, row.overflowed);
    }
}

/* Selects from one row: this cluster's part of it, where several share a row. */
template <int THREADS>
__device__ __forceinline__ void select_row(const struct select_params &params,
                                           const struct task &task, int32_t row,
                                           const struct part &part, struct progress &progress)
{
    auto &shared = cluster_state();
    const uint32_t k = (uint32_t)task.k;
    const bool first_block = cluster_rank() == 0;
    begin_row(params, task, row, first_block, first_block && part.rank == 0);
    block_sync<THREADS>();
    const int32_t length = shared.length;
    const struct row_view view = row_view_of(task, row, length);
    struct boundary boundary = {KEY_NAN, true};
    uint2 admitted = make_uint2(0, ADMITTED_WHOLE);
    if (length > task.k) {
        const struct slice slice = slice_of(view, part.rank * cluster_size() + cluster_rank(),
                                            part.parts * cluster_size());
        admitted = admit_row<THREADS>(params, view, slice, k, boundary, progress.place);
        pass_slice(slice, progress.place, (uint32_t)params.stages);
    }
    if (!progress.started) {
        cluster_wait();
        progress.started = true;
    }
    const struct outcome outcome =
        settle<THREADS>(params, view, part, admitted, boundary, k, progress);
    finish<THREADS>(params, outcome, part, length, k, progress);
    cluster_wait();
    block_sync<THREADS>(); /* nothing of this row is in use */
}
#endif

template <int THREADS, int BLOCKS>
__global__ void __launch_bounds__(THREADS, BLOCKS)
    several_kernel(const __grid_constant__ struct select_params params)
{
#if __CUDA_ARCH__ >= 900
    if (params.args == nullptr) {
        return;
    }
    begin_kernel<THREADS>(params);
    const uint32_t clusters = gridDim.x / cluster_size(), cluster = blockIdx.x / cluster_size();
    const uint32_t parts = max(clusters / (uint32_t)params.rows_max, 1u);
    const int32_t stride = (int32_t)(clusters / parts);
    launch_wait();
    struct progress progress = {};
    const struct task task = task_read(params);
    begin_counts(params, task);
    for (int32_t row = (int32_t)(cluster / parts); row < task.num_rows; row += stride) {
        const struct part part = part_of(params, row, cluster % parts, parts);
        select_row<THREADS>(params, task, row, part, progress);
    }
    end_kernel(progress);
#else
    (void)params; /* the planner chooses another family before sm_90 */
#endif
}

} // namespace

cudaError_t select_launch_cluster_several(const struct select_launch *launch,
                                          const struct select_params *params, bool load)
{
    int32_t variant = launch->variant;
#define SEVERAL_LAUNCH(threads, blocks, cluster, clusters, rows)                                   \
    static_assert(clusters <= TOPK_CLUSTER_PARTS_MAX, "a field of a row's word for each");         \
    if (variant-- == 0) {                                                                          \
        return select_launch_kernel(several_kernel<threads, blocks>, launch, params, load);        \
    }
    TOPK_CLUSTER_SEVERAL_POLICIES(SEVERAL_LAUNCH)
#undef SEVERAL_LAUNCH
    return cudaErrorInvalidValue;
}
