/*
 * row_half.cuh - the row-local exact family for scores of 16 bits: a row lies in the shared memory
 * of one block. row_float16.cu and row_bfloat16.cu are made of it. Rows that the planner finds
 * short go the way of float32: row_short_float16.cu and its like.
 *
 * A score and its position, which is below 65536, are one word: a key of 16 bits above, the
 * complement of the position below. No two of these entries are equal, and among equal scores the
 * lowest position has the highest entry. So the K highest entries are the answer, ties or not.
 *
 *   fetch       16 bytes at a time to shared memory, while the row before is finished
 *   propose     a coarse histogram of every eighth score, two ranks with a margin: a boundary, and
 *               a width of bins that spreads what lies between over all of them
 *   admit       scores are compared two at a time; entries of those that reach the boundary go to a
 *               list, in position order, and from there to registers
 *   find_cut    the K-th highest entry
 *   write       the entries from there on, still in position order
 *
 * Too few or too many for the list: the row is searched in shared memory (settle).
 *
 * A lane has runs of RUN neighbouring scores, whose marks are a word. Virtual positions count from
 * the 16 bytes that hold the row's first score. A block waits for itself most of the time: what
 * counts is how few steps follow each other, so loops over a lane's share are unrolled.
 */
#ifndef TOPKSEL_CUDA_ROW_HALF_CUH
#define TOPKSEL_CUDA_ROW_HALF_CUH

#include "row_half_sample.cuh"

namespace
{

/* ---- the search ----------------------------------------------------------------------------- */

/* The entries of the list in registers, in position order: (warp, j, lane). 0: none. */
template <int THREADS>
struct taken {
    static constexpr uint32_t MAX = (LIST + THREADS - 1) / THREADS;
    uint32_t entry[MAX], each;

    template <class Visit>
    __device__ __forceinline__ void each_in(uint32_t low, uint32_t high, const Visit &visit) const
    {
#pragma unroll
        for (uint32_t j = 0; j < MAX; j++) {
            if (j < each) {
                const uint32_t offset = entry[j] - low; /* wraps to a large one below low */
                if (offset <= high - low) {
                    visit(offset);
                }
            }
        }
    }
};

template <int THREADS>
__device__ __forceinline__ void take_list(uint32_t count, struct taken<THREADS> &taken)
{
    taken.each = (count + THREADS - 1) / THREADS;
    const uint32_t first = warp_index() * taken.each * 32 + lane_index();
#pragma unroll
    for (uint32_t j = 0; j < taken.MAX; j++) {
        const uint32_t i = first + 32 * j;
        taken.entry[j] = j < taken.each && i < count ? half_state().list[i] : 0;
    }
}

/* The scores of a row as keys of 16 bits. */
template <int THREADS, int SCORES>
struct run_source {
    const score_t *scores;
    uint32_t skew, end;

    template <class Visit>
    __device__ __forceinline__ void each_in(uint32_t low, uint32_t high, const Visit &visit) const
    {
        constexpr uint32_t RUN = RUN_OF(SCORES);
        for (uint32_t w = 0; w < WORDS_OF(SCORES); w++) {
#pragma unroll 4
            for (uint32_t i = 0; i < RUN; i++) { /* lanes meet in no bank */
                const uint32_t at = run_at<THREADS, SCORES>(w) + (i + lane_index()) % RUN;
                if (at >= skew && at < end) {
                    const uint32_t offset = half_key(scores[at]) - low;
                    if (offset <= high - low) {
                        visit(offset);
                    }
                }
            }
        }
    }
};

/* Both spread their keys from the lowest on: it has no bin of its own. */
template <class Source>
__device__ __forceinline__ void count_offsets(const Source &source, uint32_t low, uint32_t high,
                                              uint32_t shift, uint32_t *bins)
{
    source.each_in(low, high, [&](uint32_t offset) {
        atomicAdd(&bins[min(offset >> shift, TOPK_BINS - 1u)], 1u);
    });
}

template <int THREADS>
__device__ __forceinline__ void count_keys(const struct taken<THREADS> &source, uint32_t low,
                                           uint32_t high, uint32_t shift, uint32_t *bins)
{
    count_offsets(source, low, high, shift, bins);
}

template <int THREADS>
__device__ __forceinline__ constexpr bool lowest_key_alone(const struct taken<THREADS> &)
{
    return false;
}

template <int THREADS, int SCORES>
__device__ __forceinline__ void count_keys(const struct run_source<THREADS, SCORES> &source,
                                           uint32_t low, uint32_t high, uint32_t shift,
                                           uint32_t *bins)
{
    count_offsets(source, low, high, shift, bins);
}

template <int THREADS, int SCORES>
__device__ __forceinline__ constexpr bool
lowest_key_alone(const struct run_source<THREADS, SCORES> &)
{
    return false;
}

/*
 * Marks the scores above a key and the first of those of this key, K in all; false when it is not
 * the K-th. All threads call, and pass a barrier before the next call.
 */
template <int THREADS, int SCORES>
__device__ __forceinline__ bool mark_at(const struct row_view &row, uint32_t key, uint32_t k,
                                        struct run_marks<SCORES> &marks)
{
    auto &shared = half_state();
    marks = compare_runs<THREADS, SCORES, false>(row, half_bound(key + 1), 0);
    struct run_marks<SCORES> equal = compare_runs<THREADS, SCORES, true>(row, half_bound(key), 0);
    uint32_t own = 0;
#pragma unroll
    for (uint32_t w = 0; w < WORDS_OF(SCORES); w++) {
        if (key == HALF_KEY_NAN) {
            equal.word[w] =
                valid_marks<RUN_OF(SCORES)>(row, run_at<THREADS, SCORES>(w)) & ~marks.word[w];
        }
        own += (uint32_t)__popc(marks.word[w]);
    }
    own = __reduce_add_sync(WARP_ALL, own);
    if (lane_index() == 0) {
        shared.selected[warp_index()] = own;
    }
    const struct mark_places<SCORES> places = place_marks<THREADS, SCORES>(equal, shared.equal);
    const uint32_t other = lane_index() < THREADS / 32 ? shared.selected[lane_index()] : 0;
    const uint32_t above = __reduce_add_sync(WARP_ALL, other), num_equal = places.all;
    if (above > k || above + num_equal < k) {
        return false;
    }
    const uint32_t take = k - above;
#pragma unroll
    for (uint32_t w = 0; w < WORDS_OF(SCORES); w++) {
        uint32_t left = equal.word[w];
        for (uint32_t rank = places.first[w]; left != 0 && rank < take; rank++) {
            marks.word[w] |= left & (0u - left);
            left &= left - 1;
        }
    }
    return true;
}

/*
 * The marks of the K best of a row of which the boundary admits too many or too few: where it is
 * the K-th score itself, a plateau, at once; else after a search of the row. Then a barrier is due.
 */
template <int THREADS, int SCORES>
__device__ __noinline__ struct run_marks<SCORES> settle(const struct row_view row, uint32_t key,
                                                        uint32_t k) {
    auto &shared = half_state();
    struct run_marks<SCORES> marks;
    block_sync<THREADS>(); /* all counts are read */
    if (mark_at<THREADS, SCORES>(row, key, k, marks)) {
        return marks;
    }
    const struct run_source<THREADS, SCORES> source = {
        half_row(), row.skew, row.end
    };
    uint32_t below = 0;
    block_sync<THREADS>(); /* the bins are clear, all counts are read */
    key = find_cut<THREADS, true>(source, HALF_KEY_NAN, 0xffffu, range_shift(0xfffeu), k,
                                  shared.bins, shared.rank, &below)
              .key;
    mark_at<THREADS, SCORES>(row, key, k, marks);
    return marks;
}

/* ---- the result ----------------------------------------------------------------------------- */

/* Puts the marked scores' entries in the list. POSITIVE: all of them are, and numbers. */
template <int THREADS, int SCORES, bool POSITIVE>
__device__ __forceinline__ void list_marked(const struct row_view &row,
                                            const struct run_marks<SCORES> &marks,
                                            const struct mark_places<SCORES> &places)
{
    constexpr uint32_t RUN = RUN_OF(SCORES), GROUPS = RUN / SCORE_GROUP;
    const uint32_t turn = lane_index() / (8 / GROUPS) % GROUPS;
    uint32_t *list = half_state().list;
#pragma unroll
    for (uint32_t w = 0; w < WORDS_OF(SCORES); w++) {
#pragma unroll
        for (uint32_t g = 0; g < GROUPS; g++) {
            const uint32_t within = SCORE_GROUP * ((g + turn) % GROUPS);
            const uint32_t at = run_at<THREADS, SCORES>(w) + within;
            const score_group group = *reinterpret_cast<const score_group *>(half_row() + at);
            const uint32_t pair[4] = {group.x, group.y, group.z, group.w};
            const uint32_t here = marks.word[w] >> within, position = at - row.skew;
            uint32_t slot = places.first[w] + (uint32_t)__popc(marks.word[w] & first_marks(within));
#pragma unroll
            for (uint32_t e = 0; e < SCORE_GROUP; e++) {
                uint32_t entry;
                if (POSITIVE) {
                    const uint32_t score =
                        e % 2 == 0 ? pair[e / 2] << 16 : pair[e / 2] & 0xffff0000u;
                    entry = score + (0x8000ffffu - position - e);
                } else {
                    entry = half_entry((score_t)(pair[e / 2] >> e % 2 * 16), position + e);
                }
                if ((here >> e & 1u) != 0) {
                    list[slot++] = entry;
                }
            }
        }
    }
}

#define LOOK_UPS 4 /* choice: pages and values a thread asks for at once */

/*
 * Writes the entries from `cut` on: just K, by position or, BY_VALUE, sorted in `entries`. What is
 * more than positions is looked up for several at a time, by way of the list. One barrier, or more.
 */
template <int THREADS, bool BY_VALUE>
__device__ __forceinline__ void write_taken(const struct sink &sink,
                                            const struct taken<THREADS> &taken, uint32_t cut,
                                            uint32_t k, uint64_t *entries)
{
    auto &shared = half_state();
    uint32_t own = 0;
#pragma unroll
    for (uint32_t j = 0; j < taken.MAX; j++) {
        own += taken.entry[j] >= cut ? 1u : 0u;
    }
    own = __reduce_add_sync(WARP_ALL, own);
    if (lane_index() == 0) {
        shared.selected[warp_index()] = own;
    }
    block_sync<THREADS>();
    const uint32_t other = lane_index() < THREADS / 32 ? shared.selected[lane_index()] : 0;
    uint32_t slot = __reduce_add_sync(WARP_ALL, lane_index() < warp_index() ? other : 0);
    const bool direct = !BY_VALUE && sink_adds(sink);
#pragma unroll
    for (uint32_t j = 0; j < taken.MAX; j++) {
        if (j < taken.each) {
            const uint32_t entry = taken.entry[j];
            const uint32_t lanes = __ballot_sync(WARP_ALL, entry >= cut);
            const uint32_t at = slot + (uint32_t)__popc(lanes & lanes_below());
            const uint32_t position = 0xffffu - (entry & 0xffffu);
            if (entry >= cut && direct) {
                __stcg(&sink.indices[at], (int32_t)(position + (uint32_t)sink.offset));
            } else if (entry >= cut && BY_VALUE) {
                entries[at] = sort_entry(key_of(score_number(half_of_key(entry >> 16))), position);
            } else if (entry >= cut) {
                shared.list[at] = position; /* its entries are in registers */
            }
            slot += (uint32_t)__popc(lanes);
        }
    }
    if (direct) {
        return;
    }
    block_sync<THREADS>();
    if (BY_VALUE) {
        sort_descending<THREADS>(entries, k);
        sink_put_sorted<THREADS>(sink, entries, k);
    } else {
        sink_put_staged<THREADS, LOOK_UPS>(sink, shared.list, k);
    }
}

/* Fetches the block's row of this turn, if it needs it; `row` below 0: there is none. */
template <int THREADS>
__device__ __forceinline__ void fetch_next(int32_t row, uint32_t turn)
{
    const struct task &task = half_state().task;
    const int32_t given = half_state().given[turn % HALF_TURNS];
    if (row >= 0 && clamp_length(task, given) > task.k) {
        fetch_row<THREADS>(row_view_of(task, row, given));
    }
}

/* Selects from a row of more than K scores, which is in shared memory; the next one is fetched as
 * soon as that is free. */
template <int THREADS, int SCORES, bool BY_VALUE>
__device__ __forceinline__ void select_long(const struct select_params &params,
                                            const struct row_view &row, int32_t row_idx,
                                            int32_t next_idx, uint32_t next_turn, uint64_t *entries)
{
    auto &shared = half_state();
    const uint32_t k = (uint32_t)shared.task.k;
    const struct proposal proposal = propose<THREADS, SCORES>(row, k, params.margin);
    const uint32_t everything = proposal.key == HALF_KEY_NAN ? 0xffffffffu : 0u;
    struct run_marks<SCORES> marks =
        compare_runs<THREADS, SCORES, false>(row, half_bound(proposal.key), everything);
    struct mark_places<SCORES> places = place_marks<THREADS, SCORES>(marks, shared.admitted);
    const uint32_t admitted = places.all;
    const bool again = admitted < k || admitted > LIST;
    if (again) {
        marks = settle<THREADS, SCORES>(row, proposal.key, k);
        places = place_marks<THREADS, SCORES>(marks, shared.admitted);
    }
    if (proposal.key > half_key(0) && !again) {
        list_marked<THREADS, SCORES, true>(row, marks, places);
    } else {
        list_marked<THREADS, SCORES, false>(row, marks, places);
    }
    block_sync<THREADS>(); /* the list is complete, the row read */
    fetch_next<THREADS>(next_idx, next_turn);
    struct taken<THREADS> taken;
    const uint32_t count = places.all;
    take_list<THREADS>(count, taken);
    uint32_t cut = 1;
    if (count > k) {
        uint32_t below = 0;
        cut = find_cut<THREADS, true>(taken, proposal.key << 16, KEY_MAX, proposal.shift, k,
                                      shared.bins, shared.rank, &below)
                  .key;
    }
    write_taken<THREADS, BY_VALUE>(sink_of_row(shared.task, params.args, row_idx), taken, cut, k,
                                   entries);
    if (threadIdx.x == 0) {
        shared.counts.scores_read += (uint32_t)row.length;
        shared.counts.direct += again ? 0u : 1u;
        shared.counts.recovery += again ? 1u : 0u;
    }
}

/*
 * The length, as given, of the row `ahead` behind this one; 0 where there is none. All threads must
 * agree on a length, which the caller may change: one reads it.
 */
__device__ __forceinline__ int32_t length_ahead(const struct task &task, int32_t row, int32_t ahead)
{
    return row < task.num_rows - ahead ? task_length(task, row + ahead) : 0;
}

template <int THREADS, int SCORES, int BLOCKS, bool BY_VALUE>
__global__ void __launch_bounds__(THREADS, BLOCKS)
    row_half_kernel(const __grid_constant__ struct select_params params)
{
    if (params.args == nullptr) {
        return;
    }
    auto &shared = half_state();
    launch_release();
    clear_bins<THREADS>(shared.bins);
    launch_wait();
    const int32_t stride = (int32_t)gridDim.x;
    int32_t row = (int32_t)blockIdx.x, read = 0;
    if (threadIdx.x == 0) {
        shared.rank.list_count = 0;
        shared.counts = {};
        shared.task = task_read(params);
        shared.given[0] = length_ahead(shared.task, row, 0);
        read = length_ahead(shared.task, row, stride);
    }
    block_sync<THREADS>();
    const struct task &task = shared.task;
    uint64_t *entries =
        BY_VALUE ? reinterpret_cast<uint64_t *>(half_row() + THREADS * SCORES) : nullptr;
    fetch_next<THREADS>(row < task.num_rows ? row : -1, 0);
    for (uint32_t turn = 0; row < task.num_rows; turn++) {
        const int32_t next_row = row + stride;
        const int32_t next_idx = next_row < task.num_rows ? next_row : -1;
        if (threadIdx.x == 32 && !task.plain && params.args->page_table != nullptr) {
            prefetch_pages(*params.args, row, task.width);
        }
        if (threadIdx.x == 0) { /* it was asked for a row ago */
            shared.given[(turn + 1) % HALF_TURNS] = read;
            read = next_idx >= 0 ? length_ahead(task, next_row, stride) : 0;
        }
        copies_wait();
        block_sync<THREADS>(); /* the row is there; nothing of the one before is in use */
        const int32_t given = shared.given[turn % HALF_TURNS];
        const struct row_view view = row_view_of(task, row, given);
        if (threadIdx.x == 0) {
            shared.counts.clamped += view.length != given ? 1u : 0u;
            shared.counts.copied += view.length <= task.k ? 1u : 0u;
        }
        if (view.length > task.k) {
            select_long<THREADS, SCORES, BY_VALUE>(params, view, row, next_idx, turn + 1, entries);
        } else {
            fetch_next<THREADS>(next_idx, turn + 1);
            select_whole<THREADS>(sink_of_row(task, params.args, row), view.length, task.k,
                                  BY_VALUE, entries);
        }
        row = next_row;
    }
    if (threadIdx.x == 0) {
        shared.counts.clamped += blockIdx.x == 0 ? task.clamped : 0;
        routes_add(params.args->routes, shared.counts);
    }
}

/* Launches that of a policy's two kernels which has the order that is asked for (row_source.cuh).
 */
template <int THREADS, int SCORES, int BLOCKS>
cudaError_t launch_half(const struct select_launch *launch, const struct select_params *params,
                        bool load)
{
    if (params->by_value != 0) {
        return select_launch_kernel(row_half_kernel<THREADS, SCORES, BLOCKS, true>, launch, params,
                                    load);
    }
    return select_launch_kernel(row_half_kernel<THREADS, SCORES, BLOCKS, false>, launch, params,
                                load);
}

} // namespace

cudaError_t SCORE_LAUNCH(select_launch_row)(const struct select_launch *launch,
                                            const struct select_params *params, bool load)
{
    int32_t variant = launch->variant;
#define HALF_LAUNCH(threads, scores, blocks, rows)                                                 \
    if (variant-- == 0) {                                                                          \
        return launch_half<threads, scores, blocks>(launch, params, load);                         \
    }
    TOPK_HALF_POLICIES(HALF_LAUNCH)
#undef HALF_LAUNCH
    struct select_launch short_way = *launch; /* its policies are numbered from there on */
    short_way.variant = variant;
    return SCORE_LAUNCH(select_launch_row_short)(&short_way, params, load);
}

#endif
