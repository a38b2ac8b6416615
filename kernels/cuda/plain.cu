/*
 * plain.cu - the plain exact family: any K, any width, any device.
 *
 * One block a row, rows dealt in turn. The cut is found by three histograms over the whole row (11,
 * 11 and 10 bits of the keys; fewer when a range happens to hold just what is needed), then one
 * more read writes the selected positions in order. Nothing is kept between the reads, so that
 * nothing can overflow.
 */
#include "order.cuh"

#define THREADS TOPK_PLAIN_THREADS
#define WARPS (THREADS / 32)
#define BATCH 8 /* choice: loads in flight a thread */

namespace
{

/* A row in global memory as a source of keys. */
struct row_source {
    const float *scores;
    int32_t length;

    template <class Visit>
    __device__ __forceinline__ void each(const Visit &visit) const
    {
        for (int64_t first = threadIdx.x; first < length; first += (int64_t)BATCH * THREADS) {
            float score[BATCH];
#pragma unroll
            for (int i = 0; i < BATCH; i++) {
                int64_t position = first + i * THREADS;
                score[i] = position < length ? scores[position] : 0.0f;
            }
#pragma unroll
            for (int i = 0; i < BATCH; i++) {
                if (first + i * THREADS < length) {
                    visit(key_of(score[i]));
                }
            }
        }
    }
};

struct plain_shared {
    alignas(16) uint32_t bins[TOPK_BINS];
    struct rank_shared rank;
    uint32_t above[2][WARPS], equal[2][WARPS];
    struct route_counts counts;
};

/*
 * Writes the selected positions in ascending order: to the sink, or as entries to be sorted. The
 * running counts live in every thread; one barrier a step of THREADS positions.
 */
__device__ void write_selected(const struct row_source &row, const struct rank_cut &cut,
                               const struct sink &sink, uint64_t *entries,
                               struct plain_shared &shared)
{
    uint32_t written = 0, equal_seen = 0;
    const uint32_t take = cut.all ? 0xffffffffu : cut.take;
    int parity = 0;
    for (int64_t first = 0; first < row.length; first += THREADS, parity ^= 1) {
        int64_t position = first + threadIdx.x;
        uint32_t key = position < row.length ? key_of(row.scores[position]) : 0;
        bool is_above = key > cut.key, is_equal = key == cut.key;
        uint32_t above_lanes = __ballot_sync(WARP_ALL, is_above);
        uint32_t equal_lanes = __ballot_sync(WARP_ALL, is_equal);
        if (lane_index() == 0) {
            shared.above[parity][warp_index()] = (uint32_t)__popc(above_lanes);
            shared.equal[parity][warp_index()] = (uint32_t)__popc(equal_lanes);
        }
        block_sync<THREADS>();
        uint32_t above = lane_index() < WARPS ? shared.above[parity][lane_index()] : 0;
        uint32_t equal = lane_index() < WARPS ? shared.equal[parity][lane_index()] : 0;
        bool before = lane_index() < warp_index();
        uint32_t above_rank = __reduce_add_sync(WARP_ALL, before ? above : 0) +
                              (uint32_t)__popc(above_lanes & lanes_below());
        uint32_t equal_rank = equal_seen + __reduce_add_sync(WARP_ALL, before ? equal : 0) +
                              (uint32_t)__popc(equal_lanes & lanes_below());
        uint32_t equal_before = min(equal_rank, take) - min(equal_seen, take);
        if (is_above || (is_equal && equal_rank < take)) {
            uint32_t slot = written + above_rank + equal_before;
            if (entries != nullptr) {
                entries[slot] = sort_entry(key, (uint32_t)position);
            } else {
                sink_put(sink, slot, (uint32_t)position);
            }
        }
        uint32_t equal_all = equal_seen + __reduce_add_sync(WARP_ALL, equal);
        written +=
            __reduce_add_sync(WARP_ALL, above) + min(equal_all, take) - min(equal_seen, take);
        equal_seen = equal_all;
    }
}

__global__ void __launch_bounds__(THREADS, TOPK_PLAIN_BLOCKS)
    plain_kernel(const __grid_constant__ struct select_params params)
{
    __shared__ struct plain_shared shared;
    if (params.args == nullptr) {
        return;
    }
    for (int i = (int)threadIdx.x; i < TOPK_BINS; i += THREADS) {
        shared.bins[i] = 0;
    }
    if (threadIdx.x == 0) {
        shared.rank.list_count = 0;
        shared.counts = {};
    }
    launch_release();
    launch_wait();
    const struct task task = task_read(params);
    uint64_t *entries = nullptr;
    if (params.by_value) {
        uint32_t room = 1;
        while (room < (uint32_t)params.k_max) {
            room *= 2;
        }
        entries = reinterpret_cast<uint64_t *>(params.workspace) + (size_t)blockIdx.x * room;
    }
    block_sync<THREADS>();
    for (int32_t row = (int32_t)blockIdx.x; row < task.num_rows; row += (int32_t)gridDim.x) {
        int32_t given = task_length(task, row), length = clamp_length(task, given);
        if (threadIdx.x == 0) {
            shared.counts.clamped += length != given ? 1u : 0u;
            shared.counts.copied += length <= task.k ? 1u : 0u;
            shared.counts.direct += length > task.k ? 1u : 0u;
        }
        const float *scores = task_row(task, row);
        const struct sink sink = sink_open(params.args, scores, row);
        if (length <= task.k) {
            select_whole<THREADS>(sink, length, task.k, params.by_value != 0, entries);
            continue;
        }
        const struct row_source source = {scores, length};
        uint32_t below = 0;
        struct rank_cut cut = find_cut<THREADS, false>(source, KEY_NAN, KEY_MAX, (uint32_t)task.k,
                                                       shared.bins, shared.rank, &below);
        write_selected(source, cut, sink, entries, shared);
        block_sync<THREADS>();
        if (entries != nullptr) {
            sort_descending<THREADS>(entries, (uint32_t)task.k);
            sink_put_sorted<THREADS>(sink, entries, (uint32_t)task.k);
            block_sync<THREADS>();
        }
        if (threadIdx.x == 0) { /* three histograms at most, and the write */
            shared.counts.scores_read += 4 * (uint64_t)length;
        }
    }
    if (threadIdx.x == 0) {
        shared.counts.clamped += blockIdx.x == 0 ? task.clamped : 0;
        routes_add(params.args->routes, shared.counts);
    }
}

} // namespace

cudaError_t select_launch_plain(const struct select_launch *launch,
                                const struct select_params *params, bool load)
{
    return select_launch_kernel(plain_kernel, launch, params, load);
}
