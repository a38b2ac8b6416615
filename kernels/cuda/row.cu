/*
 * row.cu - the row-local exact family: a row lives in the registers of one block.
 *
 * Thread t of warp w holds positions w * 32 * SCORES + 32 * j + lane, j = 0 ... SCORES - 1: every
 * load is 128 consecutive bytes at any alignment, and position order is (warp, j, lane), so that
 * one running count a warp keeps the result in position order.
 *
 *   load        scores into registers; what is no score becomes NaN, which no comparison admits
 *   propose     a coarse histogram of every SAMPLE_EVERY-th 32 scores, a rank with a margin
 *   find_cut    an exact search that starts at the proposed boundary: most scores fall below it and
 *               cost one comparison; should too few be above, it goes on below
 *   write       counts of each warp, one barrier, positions in order
 *
 * These kernels are bound by the instructions they issue, not by memory: count instructions a score
 * before adding any.
 */
#include "boundary.cuh"
#include "order.cuh"

namespace
{

struct row_shared {
    alignas(16) uint32_t bins[TOPK_BINS];   /* exact search */
    alignas(16) uint32_t coarse[TOPK_BINS]; /* proposal */
    struct rank_shared rank;
    uint32_t selected[32], equal[32]; /* counts of each warp */
    struct route_counts counts;
};

/* The position of a lane's first score. */
template <int SCORES>
__device__ __forceinline__ int32_t first_position()
{
    return (int32_t)(warp_index() * (32 * SCORES) + lane_index());
}

/*
 * The value, but the compiler does not know that it is the same as elsewhere. Numbers made from it
 * for every score are then not kept from pass to pass: there are no registers for that.
 */
__device__ __forceinline__ int32_t opaque(int32_t value)
{
    int32_t same;
    asm volatile("mov.b32 %0, %1;" : "=r"(same) : "r"(value));
    return same;
}

/* Scores in registers as a source of keys (rank.cuh). */
template <int SCORES>
struct register_source {
    const float (&scores)[SCORES];
    int32_t length;

    /* For `key`: score j exists when 32 * j is less. */
    __device__ __forceinline__ int32_t existing() const
    {
        return opaque(length - first_position<SCORES>());
    }

    /* The key of a score, which may be NaN; 0 where there is none. */
    __device__ __forceinline__ uint32_t key(int j, int32_t existing) const
    {
        return 32 * j < existing ? key_of(__int_as_float(opaque(__float_as_int(scores[j])))) : 0;
    }

    template <class Visit>
    __device__ __forceinline__ void each_in(uint32_t low, uint32_t high, const Visit &visit) const
    {
        if (low > KEY_ZERO) { /* positive scores: keys are as far apart as the bits */
            const uint32_t low_bits = key_floor_bits(low), span = high - low;
            const float low_score = __uint_as_float(low_bits);
#pragma unroll
            for (int j = 0; j < SCORES; j++) {
                uint32_t offset = __float_as_uint(scores[j]) - low_bits;
                if (scores[j] >= low_score && offset <= span) {
                    visit(offset);
                }
            }
            return;
        }
        const int32_t exist = existing();
#pragma unroll
        for (int j = 0; j < SCORES; j++) {
            uint32_t offset = key(j, exist) - low; /* wraps to a large one below low */
            if (offset <= high - low) {
                visit(offset);
            }
        }
    }
};

/* Positions below `length` that a sample of every EVERY-th run of 32 contains. */
template <int EVERY>
__device__ __forceinline__ uint32_t sample_size(uint32_t length)
{
    return 32 * (length / (32 * EVERY)) + min(length % (32 * EVERY), 32u);
}

/* Loads a row; what lies beyond its valid length becomes NaN. Early: see policy.h. */
template <int SCORES, bool EARLY>
__device__ __forceinline__ int32_t load_row(const struct select_params &params, int32_t row,
                                            float (&scores)[SCORES], struct route_counts &counts)
{
    const struct task task = task_read(params);
    const float nan = __uint_as_float(0xffffffffu);
    const int32_t first = first_position<SCORES>();
    const float *lane_scores = task_row(task, row) + first;
    const int32_t given = task_length(task, row);
    int32_t length = EARLY ? task.width : clamp_length(task, given);
    int32_t exist = opaque(length - first);
    if (32 * (SCORES - 1) < exist) {
#pragma unroll
        for (int j = 0; j < SCORES; j++) {
            scores[j] = __ldcs(lane_scores + 32 * j);
        }
    } else {
#pragma unroll
        for (int j = 0; j < SCORES; j++) {
            scores[j] = 32 * j < exist ? __ldcs(lane_scores + 32 * j) : nan;
        }
    }
    if (EARLY) {
        length = clamp_length(task, given);
        exist = opaque(length - first);
        if (32 * (SCORES - 1) >= exist) {
#pragma unroll
            for (int j = 0; j < SCORES; j++) {
                scores[j] = 32 * j < exist ? scores[j] : nan;
            }
        }
    }
    if (threadIdx.x == 0 && length != given) {
        counts.clamped++;
    }
    return length;
}

/* The lowest key that a sample proposes to look at; KEY_NAN for all. Three barriers. */
template <int THREADS, int SCORES, int SAMPLE_EVERY>
__device__ __forceinline__ uint32_t propose(const struct register_source<SCORES> &source,
                                            uint32_t k, float margin, struct row_shared &shared)
{
    const int32_t exist = source.existing();
#pragma unroll
    for (int j = 0; j < SCORES; j += SAMPLE_EVERY) {
        uint32_t key = source.key(j, exist);
        if (key != 0) {
            atomicAdd(&shared.coarse[coarse_bin(key)], 1u);
        }
    }
    const uint32_t length = (uint32_t)source.length;
    const uint32_t rank = sample_rank(sample_size<SAMPLE_EVERY>(length), length, k, margin);
    block_sync<THREADS>();
    struct rank_bin found = find_rank<THREADS>(shared.coarse, shared.rank, rank);
    clear_bins<THREADS>(shared.coarse);
    return found.total < rank ? KEY_NAN : coarse_floor(found.bin);
}

/*
 * Bit j: scores[j] is selected. For cuts that a comparison of scores cannot express: not all of
 * those equal to the cut, or NaN among the selected. One barrier.
 */
template <int THREADS, int SCORES>
__device__ __forceinline__ uint32_t mark_keys(const struct register_source<SCORES> &source,
                                              const struct rank_cut &cut, uint32_t *counts)
{
    uint32_t equal = 0;
    int32_t exist = source.existing();
#pragma unroll
    for (int j = 0; j < SCORES; j++) {
        equal += source.key(j, exist) == cut.key ? 1u : 0u;
    }
    equal = __reduce_add_sync(WARP_ALL, equal);
    if (lane_index() == 0) {
        counts[warp_index()] = equal;
    }
    block_sync<THREADS>();
    const uint32_t take = cut.all ? 0xffffffffu : cut.take;
    uint32_t other = lane_index() < THREADS / 32 ? counts[lane_index()] : 0;
    uint32_t rank = __reduce_add_sync(WARP_ALL, lane_index() < warp_index() ? other : 0);
    uint32_t marks = 0;
    exist = source.existing();
#pragma unroll
    for (int j = 0; j < SCORES; j++) {
        const uint32_t key = source.key(j, exist);
        uint32_t lanes = __ballot_sync(WARP_ALL, key == cut.key);
        bool taken = key == cut.key && rank + (uint32_t)__popc(lanes & lanes_below()) < take;
        marks |= (key > cut.key || taken ? 1u : 0u) << j;
        rank += (uint32_t)__popc(lanes);
    }
    return marks;
}

/* The slot of a warp's first marked score. One barrier. */
template <int THREADS>
__device__ __forceinline__ uint32_t first_slot(uint32_t marks, uint32_t *counts)
{
    uint32_t own = __reduce_add_sync(WARP_ALL, (uint32_t)__popc(marks));
    if (lane_index() == 0) {
        counts[warp_index()] = own;
    }
    block_sync<THREADS>();
    uint32_t other = lane_index() < THREADS / 32 ? counts[lane_index()] : 0;
    return __reduce_add_sync(WARP_ALL, lane_index() < warp_index() ? other : 0);
}

/*
 * Writes the marked positions, nothing but positions: the common case. The store is predicated by
 * hand; a branch around it would cost as much as all the rest.
 */
template <int SCORES>
__device__ __forceinline__ void write_plain(uint32_t marks, uint32_t slot, int32_t *indices)
{
    const uint32_t below = lanes_below(), position = (uint32_t)first_position<SCORES>();
    if (!__any_sync(WARP_ALL, marks != 0)) {
        return;
    }
    asm volatile("mov.b64 %0, %0;" : "+l"(indices)); /* one base for all stores, kept as it is */
#pragma unroll
    for (int j = 0; j < SCORES; j++) {
        const uint32_t marked = marks & 1u << j;
        const uint32_t lanes = __ballot_sync(WARP_ALL, marked != 0);
        const uint32_t own_slot = slot + (uint32_t)__popc(lanes & below);
        asm volatile("{\n"
                     ".reg .pred marked;\n"
                     "setp.ne.u32 marked, %0, 0;\n"
                     "@marked st.global.cg.u32 [%1], %2;\n"
                     "}\n" ::"r"(marked),
                     "l"(indices + own_slot), "r"(position + 32 * j)
                     : "memory");
        slot += (uint32_t)__popc(lanes);
    }
}

/* Calls put(position, slot) for every marked score; in position order. */
template <int SCORES, class Put>
__device__ __forceinline__ void write_marked(uint32_t marks, uint32_t slot, const Put &put)
{
    const uint32_t position = (uint32_t)opaque(first_position<SCORES>());
#pragma unroll 1
    for (int j = 0; j < SCORES; j++) {
        const bool marked = (marks >> j & 1u) != 0;
        const uint32_t lanes = __ballot_sync(WARP_ALL, marked);
        if (marked) {
            put(position + 32 * j, slot + (uint32_t)__popc(lanes & lanes_below()));
        }
        slot += (uint32_t)__popc(lanes);
    }
}

/* The result of a row whose cut is known. */
template <int THREADS, int SCORES>
__device__ __forceinline__ void write_row(const struct select_params &params, int32_t row,
                                          const struct register_source<SCORES> &source,
                                          const struct rank_cut &cut, uint64_t *entries,
                                          struct row_shared &shared)
{
    const struct sink sink = sink_of_row(params, row);
    uint32_t marks = 0;
    if (cut.all && cut.key >= KEY_MINUS_INF) {
        const float low = __uint_as_float(key_floor_bits(cut.key));
#pragma unroll
        for (int j = 0; j < SCORES; j++) {
            marks |= source.scores[j] >= low ? 1u << j : 0u;
        }
    } else {
        marks = mark_keys<THREADS, SCORES>(source, cut, shared.equal);
    }
    const uint32_t slot = first_slot<THREADS>(marks, shared.selected);
    if (sink.plain && entries == nullptr) {
        write_plain<SCORES>(marks, slot, sink.indices);
        return;
    }
    write_marked<SCORES>(marks, slot, [&](uint32_t position, uint32_t own_slot) {
        if (entries != nullptr) {
            entries[own_slot] = sort_entry(key_of(sink.scores[position]), position);
        } else {
            sink_put(sink, own_slot, position);
        }
    });
    if (entries != nullptr) {
        block_sync<THREADS>();
        const uint32_t k = (uint32_t)task_k(params);
        sort_descending<THREADS>(entries, k);
        sink_put_sorted<THREADS>(sink, entries, k);
        block_sync<THREADS>();
    }
}

/*
 * Arguments are read again where they are needed (from the L1 cache): kept in registers they would
 * crowd out scores.
 */
template <int THREADS, int SCORES, bool EARLY>
__device__ __forceinline__ void select_row(const struct select_params &params, int32_t row,
                                           uint64_t *entries, struct row_shared &shared)
{
    constexpr int SAMPLE_EVERY = SCORES >= 16 ? 8 : 4;
    float scores[SCORES];
    const int32_t length = load_row<SCORES, EARLY>(params, row, scores, shared.counts);
    const int32_t k = task_k(params);
    if (length <= k) {
        select_whole<THREADS>(sink_of_row(params, row), length, k, params.by_value != 0, entries);
        if (threadIdx.x == 0) {
            shared.counts.copied++;
        }
        return;
    }
    const struct register_source<SCORES> source = {
        scores, length
    };
    const uint32_t low =
        propose<THREADS, SCORES, SAMPLE_EVERY>(source, (uint32_t)k, params.margin, shared);
    uint32_t below = 0;
    const struct rank_cut cut = find_cut<THREADS, true>(
        source, low, KEY_MAX, first_shift(low), (uint32_t)k, shared.bins, shared.rank, &below);
    if (threadIdx.x == 0) {
        shared.counts.scores_read += (uint32_t)length;
        shared.counts.direct += below == 0 ? 1u : 0u;
        shared.counts.recovery += below != 0 ? 1u : 0u;
    }
    write_row<THREADS, SCORES>(params, row, source, cut, entries, shared);
}

template <int THREADS, int SCORES, int BLOCKS, bool EARLY>
__global__ void __launch_bounds__(THREADS, BLOCKS)
    row_kernel(const __grid_constant__ struct select_params params)
{
    static_assert(SCORES <= 32, "one mark a score in 32 bits");
    static_assert(THREADS % 32 == 0 && THREADS <= 1024, "whole warps, one block");
    __shared__ struct row_shared shared;
    extern __shared__ uint64_t sort_entries[];
    if (params.args == nullptr) {
        return;
    }
    launch_release();
    clear_bins<THREADS>(shared.bins);
    clear_bins<THREADS>(shared.coarse);
    if (threadIdx.x == 0) {
        shared.rank.list_count = 0;
        shared.counts = {};
    }
    block_sync<THREADS>();
    launch_wait();
    uint64_t *entries = params.by_value ? sort_entries : nullptr;
    const int32_t num_rows = task_read(params).num_rows;
    for (int32_t row = (int32_t)blockIdx.x; row < num_rows; row += (int32_t)gridDim.x) {
        select_row<THREADS, SCORES, EARLY>(params, row, entries, shared);
    }
    if (threadIdx.x == 0) {
        shared.counts.clamped += blockIdx.x == 0 ? task_read(params).clamped : 0;
        routes_add(params.args->routes, shared.counts);
    }
}

} // namespace

cudaError_t select_launch_row(const struct select_launch *launch,
                              const struct select_params *params, bool load)
{
    int32_t variant = launch->variant;
#define ROW_LAUNCH(threads, scores, blocks, early, rows)                                           \
    if (variant-- == 0) {                                                                          \
        return select_launch_kernel(row_kernel<threads, scores, blocks, early != 0>, launch,       \
                                    params, load);                                                 \
    }
    TOPK_ROW_POLICIES(ROW_LAUNCH)
#undef ROW_LAUNCH
    return cudaErrorInvalidValue;
}
