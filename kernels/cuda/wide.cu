/*
 * wide.cu - the wide family: a row in the registers of a cluster of blocks, for few rows that are
 * too long for the registers of one.
 *
 *   count       each block counts its part of the row, by the first 11 bits of their float16, in
 *               its own histogram
 *   find        the blocks tell each other the sums of 32 groups of bins; then, of the group with
 *               the K-th best, their bins: all know the bin, what is above it, and how much of both
 *               the blocks before have
 *   narrow      too many in the bin: counted once more, by bins of the keys in it, up to a bin
 *               with few or with one key
 *   collect     positions above the bin go to the result; the few in it to all blocks
 *   rank        each of these few among the others, each by one warp of the cluster, and what is
 *               selected to the result
 *
 * Scores are read from memory once, and no sample is taken. Three times a row blocks wait for each
 * other, for as long as a few words are on their way (wide_state.cuh); a fourth time where the
 * result is in order, or in no order and the rest of it a plateau. Whatever they do next follows
 * from what was sent, which all see alike; and a block counts and sends only what it has in
 * registers, whatever becomes of a caller's memory.
 */
#include "wide_write.cuh"

namespace
{

#if __CUDA_ARCH__ >= 900
/* The keys of a bin of the first round, whose number from the lowest scores up is `bin`. */
__device__ __forceinline__ void bin_keys(uint32_t bin, struct wide_cut &cut)
{
    const uint32_t ordered = bin << WIDE_SHIFT;
    cut.low = cut.high = KEY_MINUS_INF;
    if (bin >= wide_bins::LOWEST) {
        cut.low = half_floor(ordered);
        cut.high = min(half_floor(ordered + (1u << WIDE_SHIFT)) - 1, KEY_PLUS_INF);
    }
}

/* Counts all scores, and finds the bin of the K-th best: shared.cut. */
template <class L>
__device__ __forceinline__ void count_row(const float (&scores)[L::SCORES], uint32_t length,
                                          uint32_t k, uint32_t &phases, struct wide_shared &shared)
{
#pragma unroll
    for (int j = 0; j < L::SCORES; j += 2) {
        count_half_pair<WIDE_SHIFT>(half_pair(scores[j], scores[j + 1]), shared.bins);
    }
    block_sync<L::THREADS>();
    find_in_cluster<L::THREADS, L::BLOCKS>(
        true, cluster_rank() == 0 ? length : 0, k, phases, shared,
        [&](const struct wide_bin &found, const struct wide_group &) {
            struct wide_cut cut = {
                KEY_NAN, KEY_NAN, found.above, found.count, found.above_before, found.count_before};
            const uint32_t bin = TOPK_BINS - 1 - found.at;
            if (found.total < k) {
                return cut;
            }
            if (bin == wide_bins::ZERO || bin == wide_bins::ZERO - 1) {
                /* Zeros are in both, for their sign counts: all from the lower one on once more. */
                cut = {half_floor((wide_bins::ZERO - 1) << WIDE_SHIFT), KEY_PLUS_INF, 0, ~0u, 0, 0};
            } else {
                bin_keys(bin, cut);
            }
            return cut;
        });
}

/* A range of keys is counted in the upper half of the bins, where that of an offset lies in its
 * place. */
#define NARROW_BINS (TOPK_BINS / 2)
/* choice: two binades, at first. Of the bin of all that is beyond float16 more may be left. */
#define NARROW_SHIFT_MAX 14u

/* Counts the scores in a range of keys of positive or of negative scores, without a branch. */
template <int SCORES>
__device__ __forceinline__ void count_one_sign(const float (&scores)[SCORES], uint32_t low,
                                               uint32_t span, uint32_t shift, uint32_t &least,
                                               uint32_t &most, struct wide_shared &shared)
{
    const uint32_t flip = low > KEY_ZERO ? 0x80000000u : 0xffffffffu; /* bits to keys, but of NaN */
#pragma unroll
    for (int j = 0; j < SCORES; j++) {
        const uint32_t offset = (__float_as_uint(scores[j]) ^ flip) - low;
        const bool in = offset <= span;
        atomicAdd(&shared.bins[in ? min(offset >> shift, NARROW_BINS - 1u) : WIDE_BEYOND], 1u);
        least = min(least, in ? offset : KEY_MAX);
        most = max(most, in ? offset : 0);
    }
}

/* The same of any range. */
template <class L>
__device__ __forceinline__ void
count_range(const float (&scores)[L::SCORES], int32_t length, uint32_t low, uint32_t span,
            uint32_t shift, uint32_t &least, uint32_t &most, struct wide_shared &shared)
{
    const int32_t exist = opaque(length - L::first());
#pragma unroll
    for (int j = 0; j < L::SCORES; j++) {
        const uint32_t offset = part_key<L>(scores, exist, j) - low;
        if (offset <= span) {
            atomicAdd(&shared.bins[offset >> shift], 1u);
            least = min(least, offset);
            most = max(most, offset);
        }
    }
}

/* Narrows the range by a histogram of the keys in it. */
template <class L>
__device__ __forceinline__ void narrow(const float (&scores)[L::SCORES], int32_t length, uint32_t k,
                                       const struct wide_cut &before, uint32_t shift_max,
                                       uint32_t &phases, struct wide_shared &shared)
{
    const uint32_t low = before.low, span = before.high - low;
    uint32_t shift = span < NARROW_BINS ? 0 : range_shift(span) + 1, least = KEY_MAX, most = 0;
    block_sync<L::THREADS>(); /* the bins are clear */
    if (low >= KEY_MINUS_INF && (low > KEY_ZERO || before.high < KEY_ZERO - 1)) {
        shift = min(shift, shift_max);
        count_one_sign<L::SCORES>(scores, low, span, shift, least, most, shared);
    } else {
        count_range<L>(scores, length, low, span, shift, least, most, shared);
    }
    widen_range(least, most, shared.least, shared.most);
    block_sync<L::THREADS>();
    const uint32_t need = k - before.above;
    find_in_cluster<L::THREADS, L::BLOCKS>(
        false, 0, need, phases, shared,
        [&](const struct wide_bin &found, const struct wide_group &group) {
            struct wide_cut cut = before;
            if (found.total < need) { /* the row changed while it was read */
                cut.high = low;
                return cut;
            }
            cut.above += found.above;
            cut.above_before += found.above_before;
            cut.count = found.count;
            cut.count_before = found.count_before;
            cut.high = low + group.most;
            if (group.least < group.most) {
                cut.low += (NARROW_BINS - 1 - found.at) << shift;
                if (found.at > 0) { /* the highest bin has all above */
                    cut.high = min(cut.high, cut.low + ((1u << shift) - 1));
                }
            }
            cut.low = max(cut.low, low + group.least);
            return cut;
        });
}

/* Selects from one row, which is in registers up to its width; `given` is its length as this thread
 * read it. */
template <class L>
__device__ __forceinline__ void
select_row(const struct select_params &params, const struct task &task, int32_t row, int32_t given,
           float (&scores)[L::SCORES], uint32_t &phases, struct wide_shared &shared)
{
    const uint32_t k = (uint32_t)task.k;
    const int32_t own_length = clamp_length(task, given);
    cut_part<L>(own_length, scores);
    count_row<L>(scores, (uint32_t)own_length, k, phases, shared);
    struct wide_cut cut = shared.cut;
    const int32_t length = shared.length;
    if (cluster_rank() == 0 && threadIdx.x == 0) {
        shared.counts.clamped += given != own_length ? 1u : 0u;
        shared.counts.copied += length <= task.k ? 1u : 0u;
        shared.counts.direct += length > task.k ? 1u : 0u;
        shared.counts.scores_read += length > task.k ? (uint32_t)length : 0u;
    }
    if (length <= task.k) {
        if (cluster_rank() == 0) {
            const struct sink whole = sink_of_row(task, params.args, row);
            select_whole<L::THREADS>(whole, length, task.k, false, nullptr);
        }
        return;
    }
    bool again = cut.low <= KEY_NAN; /* NaN among the selected: they have not been counted */
    uint32_t shift_max = NARROW_SHIFT_MAX;
    while (again || (cut.low < cut.high && cut.count > WIDE_NEAR_MAX)) {
        narrow<L>(scores, own_length, k, cut, shift_max, phases, shared);
        cut = shared.cut;
        shift_max = 31;
        again = false;
    }
    const struct sink sink = task.plain ? sink_plain(task, row) : shared.sink;
    write_row<L>(scores, own_length, k, cut, sink, phases, shared);
}
#endif

/* Notes where a row's result goes, which is not plain, and asks for its pages. One thread. */
static __device__ __noinline__ void note_sink(const struct topk_args *args, const score_t *scores,
                                              int32_t row, struct sink &sink)
{
    sink = sink_open(*args, scores, row, row_offset(*args, row));
    if (sink.pages != nullptr) {
        prefetch_pages(*args, row, (int32_t)sink.last + 1);
    }
}

template <int THREADS, int SCORES, int BLOCKS, bool ORDERED>
__global__ void __launch_bounds__(THREADS, 1)
    wide_kernel(const __grid_constant__ struct select_params params)
{
#if __CUDA_ARCH__ >= 900
    static_assert(SCORES <= 32 && SCORES % 2 == 0, "one mark a score in 32 bits; two at a time");
    static_assert(THREADS % 32 == 0 && THREADS <= 1024, "whole warps, one block");
    static_assert(THREADS * SCORES < 65536, "two counts share a word");
    typedef wide_layout<THREADS, SCORES, BLOCKS, ORDERED> layout;
    SHARED_OBJECT(struct wide_shared, shared);
    if (params.args == nullptr) {
        return;
    }
    launch_release();
    clear_bins<THREADS>(shared.bins);
    if (warp_index() == 1) {
        shared.turns[lane_index()] = 0;
    }
    if (threadIdx.x == 0) {
        task_prefetch(params);
        shared.counts = {};
        shared.staged = 0;
        shared.least = KEY_MAX;
        shared.most = 0;
        for (int step = 0; step < WIDE_STEPS; step++) {
            mbarrier_init_one(&shared.met[step]);
        }
        fence_mbarrier_init();
    }
    __syncwarp();
    cluster_arrive_relaxed_aligned(); /* all have started, before anyone sends */
    block_sync<THREADS>();
    launch_wait();
    const struct task task = task_read(params);
    const int32_t clusters = (int32_t)(gridDim.x / BLOCKS);
    int32_t row = (int32_t)(blockIdx.x / BLOCKS);
    uint32_t phases = 0;
    float scores[SCORES];
    if (threadIdx.x == 0) {
        shared.counts.clamped = blockIdx.x == 0 ? task.clamped : 0;
    }
    cluster_wait(); /* while the arguments are on their way */
    for (bool first = true; row < task.num_rows; first = false, row += clusters) {
        const int32_t given = task_length(task, row);
        load_part<layout>(task, row, task.width, scores);
        if (!first) {
            cluster_arrive_aligned(); /* no block has anything of the row before in use */
            cluster_wait();
        }
        if (!task.plain && threadIdx.x == 32) { /* beside the scores, which all wait for */
            note_sink(params.args, task_row(task, row), row, shared.sink);
        }
        select_row<layout>(params, task, row, given, scores, phases, shared);
    }
    if (threadIdx.x == 0) {
        routes_add(params.args->routes, shared.counts);
    }
#else
    (void)params; /* the planner chooses another family before sm_90 */
#endif
}

/* Launches that of a policy's kernels which has the order that is asked for, as far as the planner
 * has a use for it. */
template <int THREADS, int SCORES, int BLOCKS, int USE>
cudaError_t launch_wide(const struct select_launch *launch, const struct select_params *params,
                        bool load)
{
    if constexpr (USE != TOPK_WIDE_FLOAT32 || SCORE_DTYPE == 0) {
        if (params->by_position == 0) {
            return select_launch_kernel(wide_kernel<THREADS, SCORES, BLOCKS, false>, launch, params,
                                        load);
        }
    }
    if constexpr (USE == TOPK_WIDE_ALL) {
        return select_launch_kernel(wide_kernel<THREADS, SCORES, BLOCKS, true>, launch, params,
                                    load);
    }
    return cudaErrorInvalidValue;
}

} // namespace

cudaError_t SCORE_LAUNCH(select_launch_wide)(const struct select_launch *launch,
                                             const struct select_params *params, bool load)
{
    int32_t variant = launch->variant;
#define WIDE_LAUNCH(threads, scores, cluster, rows, above, use)                                    \
    if (variant-- == 0) {                                                                          \
        return launch_wide<threads, scores, cluster, use>(launch, params, load);                   \
    }
    TOPK_WIDE_POLICIES(WIDE_LAUNCH)
#undef WIDE_LAUNCH
    return cudaErrorInvalidValue;
}
