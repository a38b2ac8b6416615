/*
 * row.cu - the row-local exact family: a row lives in the registers of one block.
 *
 * Thread t of warp w holds positions w * 32 * SCORES + 32 * j + lane, j = 0 ... SCORES - 1: every
 * load is 128 consecutive bytes at any alignment, and position order is (warp, j, lane), so that
 * one running count a warp keeps the result in position order.
 *
 *   load        scores into registers; what is no score becomes NaN, which no comparison admits
 *   propose     a coarse histogram of every SAMPLE_EVERY-th 32 scores, two ranks with a margin:
 *               a boundary, and a width of bins that spreads what lies between over all of them
 *   find_cut    an exact search that starts at the proposed boundary; should too few be above, it
 *               goes on below
 *   write       in no order through shared memory; or in order, after counts of each warp
 *
 * Short rows with a multiprocessor each go another way between the first and the last:
 * row_quick.cuh.
 *
 * These kernels are bound by the instructions they issue, not by memory: count instructions a score
 * before adding any.
 */
#include "half_bins.cuh"
#include "row_quick.cuh"

namespace
{

/* Positions below `length` that a sample of every EVERY-th run of 32 contains. */
template <int EVERY>
__device__ __forceinline__ uint32_t sample_size(uint32_t length)
{
    return 32 * (length / (32 * EVERY)) + min(length % (32 * EVERY), 32u);
}

/* Loads a row up to `length`; what lies beyond becomes NaN. */
template <int SCORES>
__device__ __forceinline__ void load_scores(const struct task &task, int32_t row, int32_t length,
                                            float (&scores)[SCORES])
{
    const int32_t first = first_position<SCORES>();
    const score_t *lane_scores = opaque_base(task_row(task, row) + first);
    const int32_t exist = opaque(length - first);
    if (32 * (SCORES - 1) < exist) {
#pragma unroll
        for (int j = 0; j < SCORES; j++) {
            scores[j] = score_number(__ldcs(lane_scores + 32 * j));
        }
        return;
    }
    const float nan = __uint_as_float(0xffffffffu);
#pragma unroll
    for (int j = 0; j < SCORES; j++) {
        scores[j] = 32 * j < exist ? score_number(__ldcs(lane_scores + 32 * j)) : nan;
    }
}

/* Makes NaN of what was loaded beyond the valid length. */
template <int SCORES>
__device__ __forceinline__ void cut_scores(int32_t length, float (&scores)[SCORES])
{
    const float nan = __uint_as_float(0xffffffffu);
    const int32_t exist = opaque(length - first_position<SCORES>());
    if (32 * (SCORES - 1) >= exist) {
#pragma unroll
        for (int j = 0; j < SCORES; j++) {
            scores[j] = 32 * j < exist ? scores[j] : nan;
        }
    }
}

/* Where a search starts: at a key, in bins of 2^shift keys. */
struct proposal {
    uint32_t low, shift;
};

/*
 * The sample is counted by the first 11 bits of a score's float16, cut off towards zero, in the
 * order of scores: 32 bins a binade. All that is no number, also what lies beyond the row, is in
 * the highest bin.
 */
#define SAMPLE_SHIFT 5u
typedef half_bins<SAMPLE_SHIFT> sample_bins;
#define SAMPLE_NAN (TOPK_BINS - 1u) /* the bin of NaN */
static_assert(sample_bins::COUNT == TOPK_BINS, "a bin for every pattern");

/* Counts two scores of a sample. */
__device__ __forceinline__ void count_sampled(float first, float second, uint32_t *bins)
{
    const uint32_t pair = half_pair(first, second);
    const uint32_t negative = (pair >> 15 & 0x00010001u) * 0xffffu;
    const uint32_t ordered = pair ^ (negative | 0x80008000u);
    atomicAdd(&bins[(ordered & 0xffffu) >> SAMPLE_SHIFT], 1u);
    atomicAdd(&bins[ordered >> (16 + SAMPLE_SHIFT)], 1u);
}

/* The lowest key of a bin or higher ones; of what is no finite number any key may be told. */
__device__ __forceinline__ uint32_t sampled_floor(uint32_t bin)
{
    if (bin < sample_bins::LOWEST) {
        return KEY_NAN;
    }
    return bin < sample_bins::INF ? half_floor(bin << SAMPLE_SHIFT) : KEY_PLUS_INF;
}

/*
 * What a sample proposes; a low of KEY_NAN admits all. The upper side of the bracket has half the
 * margin: what is above shares a bin, and a search that ends there goes on in it. Three barriers.
 */
template <int THREADS, int SCORES, int SAMPLE_EVERY>
__device__ __forceinline__ struct proposal propose(const struct register_source<SCORES> &source,
                                                   uint32_t k, float margin,
                                                   struct row_shared &shared)
{
    static_assert(SCORES % (2 * SAMPLE_EVERY) == 0, "two at a time");
    uint32_t *bins = coarse_bins(shared);
    if (warp_has_scores<SCORES>(source.length)) {
#pragma unroll
        for (int j = 0; j < SCORES; j += 2 * SAMPLE_EVERY) {
            count_sampled(source.scores[j], source.scores[j + SAMPLE_EVERY], bins);
        }
    }
    const uint32_t length = (uint32_t)source.length;
    struct sample_ranks ranks =
        sample_ranks_of(sample_size<SAMPLE_EVERY>(length), length, k, margin);
    ranks.high += ranks.high > 0 ? (ranks.low - ranks.high) / 4 : 0;
    block_sync<THREADS>();
    const uint32_t no_numbers = bins[SAMPLE_NAN];
    uint32_t high_bin;
    const struct rank_bin found = find_ranks<THREADS, true>(
        bins, shared.rank, ranks.low + no_numbers, ranks.high + no_numbers, &high_bin);
    clear_bins<THREADS>(bins);
    struct proposal proposal;
    proposal.low = found.total < ranks.low + no_numbers ? KEY_NAN : sampled_floor(found.bin);
    proposal.shift = ranks.high > 0 ? span_shift(proposal.low, sampled_floor(high_bin + 1) - 1)
                                    : first_shift(proposal.low);
    return proposal;
}

/*
 * Asks for the row that this block reads next: it comes from memory to the L2 cache while the block
 * computes. One thread.
 */
__device__ __forceinline__ void prefetch_row(const score_t *scores, int32_t length)
{
#if __CUDA_ARCH__ >= 900
    constexpr int32_t GROUP = 16 / sizeof(score_t); /* scores of the least that is asked for */
    const int32_t skip =
        (int32_t)(-(reinterpret_cast<uintptr_t>(scores) / sizeof(score_t)) & (GROUP - 1u));
    if (length >= skip + GROUP) {
        prefetch_bulk(scores + skip, (length - skip) / GROUP * 16);
    }
#else
    (void)scores;
    (void)length;
#endif
}

/* The same of a block's next row, as it is given. */
__device__ __forceinline__ void ask_for_next(const struct select_params &params,
                                             const struct row_result &result, int32_t next)
{
    if (threadIdx.x == 0 && next > result.k && params.prefetch > 0) {
        prefetch_row(task_row(result.task, result.row + (int32_t)gridDim.x),
                     clamp_length(result.task, next));
    }
}

/* Copies the arguments to shared memory. One warp. */
__device__ __forceinline__ void keep_args(const struct topk_args *args, struct row_shared &shared)
{
    constexpr uint32_t WORDS = sizeof(*args) / sizeof(uint32_t);
    static_assert(WORDS <= 32 && sizeof(*args) % sizeof(uint32_t) == 0, "a word a lane");
    if (lane_index() < WORDS) {
        reinterpret_cast<uint32_t *>(&shared.args)[lane_index()] =
            reinterpret_cast<const uint32_t *>(args)[lane_index()];
    }
}

/* Counts a row, and makes ready for its result; thread 0. */
__device__ __forceinline__ void count_row(struct row_shared &shared, int32_t length, int32_t given,
                                          int32_t k)
{
    struct route_counts &counts = shared.counts;
    shared.staged = 0;
    shared.rank.least = KEY_MAX;
    shared.rank.most = 0;
    counts.clamped += length != given ? 1u : 0u;
    counts.copied += length <= k ? 1u : 0u;
    counts.direct += length > k ? 1u : 0u;
    counts.scores_read += length > k ? (uint32_t)length : 0u;
}

/* The short way through a row. */
template <int THREADS, int SCORES, bool EARLY, bool ORDERED>
__device__ __forceinline__ void select_quick(const struct select_params &params,
                                             const struct row_result &result,
                                             const struct register_source<SCORES> &source,
                                             uint64_t *entries, struct row_shared &shared)
{
    static_assert(THREADS * SCORES <= QUICK_SCORES_MAX, "short rows");
    struct quick_cut bin;
    if (quick_row<THREADS, SCORES, !EARLY, ORDERED>(params, result, source.scores, entries, bin,
                                                    shared)) {
        return;
    }
    const struct rank_cut cut =
        search_bin<THREADS, SCORES>(source, bin, (uint32_t)result.k, shared);
    if constexpr (ORDERED) {
        write_in_order<THREADS, SCORES>(result, source, cut, entries, shared);
    } else if constexpr (row_is_roomy<THREADS, SCORES, true>) {
        write_staged<THREADS, SCORES>(result, source, cut, shared);
    } else {
        write_row<THREADS, SCORES>(params, result.task, result.row, source, cut, shared);
    }
}

/* The way by a sample. */
template <int THREADS, int SCORES, bool EARLY, bool ORDERED>
__device__ __forceinline__ void
select_sampled(const struct select_params &params, const struct row_result &result,
               const struct register_source<SCORES> &source, int32_t next, uint64_t *entries,
               struct row_shared &shared)
{
    constexpr int SAMPLE_EVERY = SCORES >= 16 ? 8 : 4;
    const uint32_t k = (uint32_t)result.k;
    const struct proposal proposal =
        propose<THREADS, SCORES, SAMPLE_EVERY>(source, k, params.margin, shared);
    ask_for_next(params, result, EARLY ? next : shared.given[(result.turn + 1) % 2]);
    if constexpr (ORDERED) {
        fetch_pages<THREADS>(result, shared);
    }
    uint32_t below = 0;
    const struct rank_cut cut = find_cut<THREADS, true>(
        source, proposal.low, KEY_MAX, proposal.shift, k, shared.bins, shared.rank, &below);
    if (below != 0 && threadIdx.x == 0) { /* it had to go on below what was proposed */
        shared.counts.direct--;
        shared.counts.recovery++;
    }
    if constexpr (ORDERED) {
        write_in_order<THREADS, SCORES>(result, source, cut, entries, shared);
    } else {
        write_row<THREADS, SCORES>(params, result.task, result.row, source, cut, shared);
    }
}

/*
 * Selects from one row; returns its valid length. What threads must agree on is read by one of
 * them, for the caller may change it: thread 0 knows the length as `read`, and of the block's
 * next row as `next`, 0 if none. All know it as shared.given[turn % 2]; that of the next row behind
 * the row's barriers. Early (see policy.h): the scores are there, or on their way, up to the width.
 * Quick: the caller counts the row when it is written, for nobody waits for thread 0 then.
 */
template <int THREADS, int SCORES, bool EARLY, bool QUICK, bool ORDERED>
__device__ __forceinline__ int32_t select_row(const struct select_params &params,
                                              const struct task &task, int32_t row, int32_t turn,
                                              int32_t read, int32_t next, float (&scores)[SCORES],
                                              uint64_t *entries, struct row_shared &shared)
{
    if (EARLY) {
        if (threadIdx.x == 0) {
            shared.given[turn % 2] = read;
        }
        block_sync<THREADS>();
    }
    const int32_t length = clamp_length(task, shared.given[turn % 2]), k = task.k;
    const struct row_result result = {task, row, turn, k};
    constexpr bool HOLDS = row_holds_args<THREADS, SCORES, QUICK, ORDERED>;
    static_assert(EARLY || ORDERED || !HOLDS,
                  "pages are asked for when those of the row before are used");
    if (EARLY) {
        if constexpr (HOLDS) {
            fetch_pages<THREADS>(result, shared);
        }
        cut_scores<SCORES>(length, scores);
    } else {
        load_scores<SCORES>(task, row, length, scores);
    }
    if (threadIdx.x == 0) {
        if (!EARLY) {
            shared.given[(turn + 1) % 2] = next;
        }
        if (HOLDS && !task.plain && shared.args.row_offsets != nullptr) {
            shared.offsets[turn % 2] = row_offset(shared.args, row);
        }
        if (!QUICK) {
            count_row(shared, length, shared.given[turn % 2], k);
        }
    }
    if (length <= k) {
        const struct sink sink = sink_of_row(task, params.args, row);
        select_whole<THREADS>(sink, length, k, ORDERED && params.by_value != 0, entries);
        if constexpr (HOLDS) {
            copies_wait();
        }
        block_sync<THREADS>();
        return length;
    }
    const struct register_source<SCORES> source = {
        scores, length
    };
    if constexpr (QUICK) {
        ask_for_next(params, result, next);
        select_quick<THREADS, SCORES, EARLY, ORDERED>(params, result, source, entries, shared);
    } else {
        select_sampled<THREADS, SCORES, EARLY, ORDERED>(params, result, source, next, entries,
                                                        shared);
    }
    return length;
}

template <int THREADS, int SCORES, int BLOCKS, bool EARLY, bool QUICK, bool ORDERED>
__global__ void __launch_bounds__(THREADS, BLOCKS)
    row_kernel(const __grid_constant__ struct select_params params)
{
    static_assert(SCORES <= 32, "one mark a score in 32 bits");
    static_assert(THREADS % 32 == 0 && THREADS <= 1024, "whole warps, one block");
    SHARED_OBJECT(struct row_shared, shared);
    SHARED_DYNAMIC(uint64_t, sort_entries);
    if (params.args == nullptr) {
        return;
    }
    launch_release();
    clear_bins<THREADS>(shared.bins);
    clear_bins<THREADS>(coarse_bins(shared));
    if (threadIdx.x == 0) {
        shared.counts = {};
        shared.staged = 0;
        shared.offsets[0] = 0;
        shared.offsets[1] = 0;
        shared.rank.list_count = 0;
        shared.rank.least = KEY_MAX;
        shared.rank.most = 0;
    }
    if (EARLY) {
        if (threadIdx.x == 0) {
            task_prefetch(params);
        }
        block_sync<THREADS>(); /* here it costs nothing: the kernel before still runs */
    }
    launch_wait();
    struct task own_task;
    if (EARLY) { /* in every thread: sooner than by one of them and a barrier */
        own_task = task_read(params);
    } else if (threadIdx.x == 0) {
        shared.task = task_read(params);
    }
    const struct task &task = EARLY ? own_task : shared.task;
    if (row_holds_args<THREADS, SCORES, QUICK, ORDERED> && warp_index() == 1) {
        keep_args(params.args, shared);
    }
    int32_t row = (int32_t)blockIdx.x;
    int32_t read = 0;
    if (threadIdx.x == 0) {
        read = row < task.num_rows ? task_length(task, row) : 0;
        if (!EARLY) {
            shared.given[0] = read;
        }
    }
    if (!EARLY) {
        block_sync<THREADS>();
    }
    if (threadIdx.x == 0) {
        shared.counts.clamped = blockIdx.x == 0 ? task.clamped : 0;
    }
    uint64_t *entries = ORDERED && params.by_value ? &sort_entries[0] : nullptr;
    for (int32_t turn = 0; row < task.num_rows; turn++) {
        const int32_t next_row = row + (int32_t)gridDim.x;
        const bool reads = threadIdx.x == 0 && next_row < task.num_rows;
        const int32_t next = reads ? task_length(task, next_row) : 0;
        if (!row_holds_args<THREADS, SCORES, QUICK, ORDERED> && threadIdx.x == 32 && !task.plain &&
            params.args->page_table != nullptr) {
            prefetch_pages(*params.args, row, task.width);
        }
        float scores[SCORES];
        if (EARLY) {
            load_scores<SCORES>(task, row, task.width, scores);
        }
        const int32_t length = select_row<THREADS, SCORES, EARLY, QUICK, ORDERED>(
            params, task, row, turn, read, next, scores, entries, shared);
        if (QUICK && threadIdx.x == 0) {
            count_row(shared, length, read, task.k);
        }
        row = next_row;
        read = next;
    }
    if (threadIdx.x == 0) {
        routes_add(params.args->routes, shared.counts);
    }
}

/* Launches that of a policy's two kernels which has the order that is asked for. */
template <int THREADS, int SCORES, int BLOCKS, bool EARLY, bool QUICK>
cudaError_t launch_row(const struct select_launch *launch, const struct select_params *params,
                       bool load)
{
    if (params->by_position != 0 || params->by_value != 0) {
        return select_launch_kernel(row_kernel<THREADS, SCORES, BLOCKS, EARLY, QUICK, true>, launch,
                                    params, load);
    }
    return select_launch_kernel(row_kernel<THREADS, SCORES, BLOCKS, EARLY, QUICK, false>, launch,
                                params, load);
}

} // namespace

#if SCORE_DTYPE == 0
#define ROW_LAUNCH_NAME select_launch_row
#define ROW_TABLE TOPK_ROW_POLICIES
#else /* the short way alone: other rows have a kernel of their own, row_half.cuh */
#define ROW_LAUNCH_NAME SCORE_LAUNCH(select_launch_row_short)
#define ROW_TABLE TOPK_HALF_SHORT_POLICIES
#endif

cudaError_t ROW_LAUNCH_NAME(const struct select_launch *launch, const struct select_params *params,
                            bool load)
{
    int32_t variant = launch->variant;
#define ROW_LAUNCH(threads, scores, blocks, early, quick, rows, k)                                 \
    if (variant-- == 0) {                                                                          \
        return launch_row<threads, scores, blocks, early != 0, quick != 0>(launch, params, load);  \
    }
    ROW_TABLE(ROW_LAUNCH)
#undef ROW_LAUNCH
    return cudaErrorInvalidValue;
}
