/*
 * row.cu - the row-local exact family: a row lives in the registers of one block.
 *
 * Thread t of warp w holds positions w * 32 * SCORES + 32 * j + lane, j = 0 ... SCORES - 1: every
 * load is 128 consecutive bytes at any alignment, and position order is (warp, j, lane), so that
 * one running count a warp keeps the result in position order.
 *
 *   load        keys into registers, their maximum to shared memory
 *   propose     a coarse histogram of every SAMPLE_EVERY-th 32 scores, a rank with a margin
 *   find_cut    an exact search that starts at the proposed boundary: most keys fall below it and
 *               cost one comparison; should too few be above, it goes on below
 *   write       counts of each warp, one barrier, positions in order
 */
#include "order.cuh"

namespace
{

template <int THREADS>
struct row_shared {
    alignas(16) uint32_t bins[TOPK_BINS];   /* exact search */
    alignas(16) uint32_t coarse[TOPK_BINS]; /* proposal */
    struct rank_shared rank;
    uint32_t coarse_totals[32];
    uint32_t selected[32], equal[32]; /* counts of each warp */
    struct route_counts counts;
};

/* Keys in registers as a source. */
template <int SCORES>
struct register_source {
    const uint32_t (&keys)[SCORES];

    template <class Visit>
    __device__ __forceinline__ void each(const Visit &visit) const
    {
#pragma unroll
        for (int j = 0; j < SCORES; j++) {
            visit(keys[j]);
        }
    }
};

/* Positions below `length` that a sample of every EVERY-th run of 32 contains. */
template <int EVERY>
__device__ __forceinline__ uint32_t sample_size(uint32_t length)
{
    return 32 * (length / (32 * EVERY)) + min(length % (32 * EVERY), 32u);
}

/*
 * The rank in a sample of `size` out of `length` scores whose score has at least k scores of the
 * row above it or equal, but for a miss beyond `margin` standard deviations. Sampling without
 * replacement: the deviation shrinks as the sample covers the row. 0: the sample is too small.
 */
__device__ __forceinline__ uint32_t sample_rank(uint32_t size, uint32_t length, uint32_t k,
                                                float margin)
{
    float share = __fdividef((float)size, (float)length);
    float mean = (float)k * share;
    float spread = mean * (1.0f - __fdividef((float)k, (float)length)) * (1.0f - share);
    uint32_t rank = (uint32_t)(mean + margin * sqrtf(fmaxf(spread, 0.0f)) + 2.0f);
    return rank <= size ? rank : 0;
}

/* Marks in bit j whether keys[j] is selected when not all keys equal to the cut are. */
template <int THREADS, int SCORES>
__device__ __forceinline__ uint32_t mark_ties(const uint32_t (&keys)[SCORES],
                                              const struct rank_cut &cut, uint32_t *counts)
{
    constexpr int WARPS = THREADS / 32;
    uint32_t equal = 0;
#pragma unroll
    for (int j = 0; j < SCORES; j++) {
        equal += (uint32_t)__popc(__ballot_sync(WARP_ALL, keys[j] == cut.key));
    }
    if (lane_index() == 0) {
        counts[warp_index()] = equal;
    }
    block_sync<THREADS>();
    uint32_t other = lane_index() < WARPS ? counts[lane_index()] : 0;
    uint32_t rank = __reduce_add_sync(WARP_ALL, lane_index() < warp_index() ? other : 0);
    uint32_t marks = 0;
#pragma unroll
    for (int j = 0; j < SCORES; j++) {
        bool is_equal = keys[j] == cut.key;
        uint32_t lanes = __ballot_sync(WARP_ALL, is_equal);
        bool taken = is_equal && rank + (uint32_t)__popc(lanes & lanes_below()) < cut.take;
        marks |= (keys[j] > cut.key || taken ? 1u : 0u) << j;
        rank += (uint32_t)__popc(lanes);
    }
    return marks;
}

/* Writes the marked positions in order: to the sink, or as entries to be sorted. One barrier. */
template <int THREADS, int SCORES>
__device__ __forceinline__ void write_marked(const uint32_t (&keys)[SCORES], uint32_t marks,
                                             const struct sink &sink, uint64_t *entries,
                                             uint32_t *counts)
{
    constexpr int WARPS = THREADS / 32;
    uint32_t own = __reduce_add_sync(WARP_ALL, (uint32_t)__popc(marks));
    if (lane_index() == 0) {
        counts[warp_index()] = own;
    }
    block_sync<THREADS>();
    uint32_t other = lane_index() < WARPS ? counts[lane_index()] : 0;
    uint32_t slot = __reduce_add_sync(WARP_ALL, lane_index() < warp_index() ? other : 0);
    uint32_t position = warp_index() * (32 * SCORES) + lane_index();
#pragma unroll
    for (int j = 0; j < SCORES; j++, position += 32) {
        bool marked = (marks >> j & 1u) != 0;
        uint32_t lanes = __ballot_sync(WARP_ALL, marked);
        if (marked) {
            uint32_t own_slot = slot + (uint32_t)__popc(lanes & lanes_below());
            if (entries != nullptr) {
                entries[own_slot] = sort_entry(keys[j], position);
            } else {
                sink_put(sink, own_slot, position);
            }
        }
        slot += (uint32_t)__popc(lanes);
    }
}

/* Loads the row's keys; positions from `length` on become key 0. Early: see policy.h. */
template <int SCORES, bool EARLY>
__device__ __forceinline__ int32_t load_keys(const struct task &task, int32_t row,
                                             uint32_t (&keys)[SCORES], struct route_counts &counts)
{
    const float *scores = task_row(task, row);
    const int32_t first = (int32_t)(warp_index() * (32 * SCORES) + lane_index());
    float score[SCORES];
    int32_t given = task_length(task, row);
    int32_t length = EARLY ? task.width : clamp_length(task, given);
#pragma unroll
    for (int j = 0; j < SCORES; j++) {
        score[j] = first + 32 * j < length ? __ldcs(scores + first + 32 * j) : 0.0f;
    }
    if (EARLY) {
        length = clamp_length(task, given);
    }
    if (threadIdx.x == 0 && length != given) {
        counts.clamped++;
    }
#pragma unroll
    for (int j = 0; j < SCORES; j++) {
        keys[j] = first + 32 * j < length ? key_of(score[j]) : 0;
    }
    return length;
}

/* The lowest key that the sample proposes to look at; KEY_NAN for all. Two barriers. */
template <int THREADS, int SCORES, int SAMPLE_EVERY>
__device__ __forceinline__ uint32_t propose(const uint32_t (&keys)[SCORES], uint32_t rank,
                                            struct row_shared<THREADS> &shared)
{
    uint32_t highest = 0;
#pragma unroll
    for (int j = 0; j < SCORES; j++) {
        highest = max(highest, keys[j]);
        if (j % SAMPLE_EVERY == 0 && keys[j] != 0) {
            atomicAdd(&shared.coarse[coarse_bin(keys[j])], 1u);
        }
    }
    highest = __reduce_max_sync(WARP_ALL, highest);
    if (lane_index() == 0) {
        atomicMax(&shared.rank.max_key, highest);
    }
    block_sync<THREADS>();
    struct rank_bin found = find_rank<THREADS>(shared.coarse, shared.coarse_totals, rank);
    return rank == 0 || found.total < rank ? KEY_NAN : coarse_floor(found.bin);
}

template <int THREADS, int SCORES, bool EARLY>
__device__ __forceinline__ void select_row(const struct select_params &params,
                                           const struct task &task, int32_t row, uint64_t *entries,
                                           struct row_shared<THREADS> &shared)
{
    constexpr int SAMPLE_EVERY = SCORES >= 16 ? 8 : 4;
    uint32_t keys[SCORES];
    int32_t length = load_keys<SCORES, EARLY>(task, row, keys, shared.counts);
    if (length <= task.k) {
        const struct sink sink = sink_open(params.args, task_row(task, row), row);
        select_whole<THREADS>(sink, length, task.k, params.by_value != 0, entries);
        if (threadIdx.x == 0) {
            shared.counts.copied++;
        }
        return;
    }
    uint32_t rank = sample_rank(sample_size<SAMPLE_EVERY>((uint32_t)length), (uint32_t)length,
                                (uint32_t)task.k, params.margin);
    uint32_t low = propose<THREADS, SCORES, SAMPLE_EVERY>(keys, rank, shared);
    uint32_t below = 0;
    const register_source<SCORES> source = {keys};
    const struct rank_cut cut = find_cut<THREADS, true>(
        source, low, shared.rank.max_key, (uint32_t)task.k, shared.bins, shared.rank, &below);
    if (threadIdx.x == 0) {
        shared.counts.scores_read += (uint32_t)length;
        shared.counts.direct += below == 0 ? 1u : 0u;
        shared.counts.recovery += below != 0 ? 1u : 0u;
    }
    uint32_t marks = 0;
    if (cut.all) {
#pragma unroll
        for (int j = 0; j < SCORES; j++) {
            marks |= (keys[j] >= cut.key ? 1u : 0u) << j;
        }
    } else {
        marks = mark_ties<THREADS, SCORES>(keys, cut, shared.equal);
    }
    for (int i = (int)threadIdx.x; i < TOPK_BINS; i += THREADS) {
        shared.coarse[i] = 0;
    }
    if (threadIdx.x == 0) {
        shared.rank.max_key = 0;
    }
    const struct sink sink = sink_open(params.args, task_row(task, row), row);
    write_marked<THREADS, SCORES>(keys, marks, sink, entries, shared.selected);
    if (entries != nullptr) {
        block_sync<THREADS>();
        sort_descending<THREADS>(entries, (uint32_t)task.k);
        sink_put_sorted<THREADS>(sink, entries, (uint32_t)task.k);
        block_sync<THREADS>();
    }
}

template <int THREADS, int SCORES, int BLOCKS, bool EARLY>
__global__ void __launch_bounds__(THREADS, BLOCKS)
    row_kernel(const __grid_constant__ struct select_params params)
{
    static_assert(SCORES <= 32, "one mark a score in 32 bits");
    static_assert(THREADS % 32 == 0 && THREADS <= 1024, "whole warps, one block");
    __shared__ struct row_shared<THREADS> shared;
    extern __shared__ uint64_t sort_entries[];
    if (params.args == nullptr) {
        return;
    }
    launch_release();
    for (int i = (int)threadIdx.x; i < TOPK_BINS; i += THREADS) {
        shared.bins[i] = 0;
        shared.coarse[i] = 0;
    }
    if (threadIdx.x == 0) {
        shared.rank.list_count = 0;
        shared.rank.max_key = 0;
        shared.counts = {};
    }
    block_sync<THREADS>();
    launch_wait();
    const struct task task = task_read(params);
    uint64_t *entries = params.by_value ? sort_entries : nullptr;
    for (int32_t row = (int32_t)blockIdx.x; row < task.num_rows; row += (int32_t)gridDim.x) {
        select_row<THREADS, SCORES, EARLY>(params, task, row, entries, shared);
    }
    if (threadIdx.x == 0) {
        shared.counts.clamped += blockIdx.x == 0 ? task.clamped : 0;
        routes_add(params.args->routes, shared.counts);
    }
}

} // namespace

cudaError_t select_launch_row(const struct select_launch *launch,
                              const struct select_params *params, bool load)
{
    int32_t variant = launch->variant;
#define ROW_LAUNCH(threads, scores, blocks, early)                                                 \
    if (variant-- == 0) {                                                                          \
        return select_launch_kernel(row_kernel<threads, scores, blocks, early != 0>, launch,       \
                                    params, load);                                                 \
    }
    TOPK_ROW_POLICIES(ROW_LAUNCH)
#undef ROW_LAUNCH
    return cudaErrorInvalidValue;
}
