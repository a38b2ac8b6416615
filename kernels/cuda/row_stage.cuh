/*
 * row_stage.cuh - the result of a row in registers by way of shared memory, 16 bytes at a time: in
 * no order, by position or by value, with values, and pages that lie in shared memory.
 *
 * Order costs little: a warp turns its marks over, and then each lane has those of neighbouring
 * positions, so that sums over lanes and warps tell where each goes.
 */
#ifndef TOPKSEL_CUDA_ROW_STAGE_CUH
#define TOPKSEL_CUDA_ROW_STAGE_CUH

#include "row_write.cuh"

namespace
{

#define MARKS_IN_TURN 16u /* choice: more marks of a lane than that are not visited one by one */

/* A row of a selection; in `turn` of its block. */
struct row_result {
    const struct task &task;
    int32_t row, turn, k;
};

/* Entries of a row's page table that lie in shared memory: all that its positions need, or 0. */
__device__ __forceinline__ int32_t pages_held(const struct topk_args &args, int32_t width)
{
    if (args.page_table == nullptr) {
        return 0;
    }
    const uint32_t log2 = min(args.page_size_log2, TOPK_PAGE_SIZE_LOG2_MAX);
    const int32_t count = min(args.page_table_width, ((width - 1) >> log2) + 1);
    return count <= ROW_PAGES ? max(count, 0) : 0;
}

/* Asks for a row's page table, which is waited for before the barrier ahead of its use. Those of
 * the row before must have been used. */
template <int THREADS>
__device__ __forceinline__ void fetch_pages(const struct row_result &result,
                                            struct row_shared &shared)
{
    if (result.task.plain || shared.args.page_table == nullptr) {
        return;
    }
    const struct topk_args &args = shared.args;
    const int32_t count = pages_held(args, result.task.width);
    const int32_t *pages = args.page_table + result.row * args.page_table_stride;
    for (int32_t i = (int32_t)threadIdx.x; i < count; i += THREADS) {
        copy_async_4(&shared.pages[i], pages + i);
    }
    if (count == 0 && threadIdx.x == 32) {
        prefetch_pages(args, result.row, result.task.width);
    }
}

/* Where a row's result goes; built when it is written, behind the row's first barrier. */
__device__ __forceinline__ struct sink row_sink(const struct row_result &result,
                                                const struct row_shared &shared)
{
    if (result.task.plain) {
        return sink_plain(result.task, result.row);
    }
    struct sink sink = sink_open(shared.args, task_row(result.task, result.row), result.row,
                                 shared.offsets[result.turn % 2]);
    if (pages_held(shared.args, result.task.width) > 0) {
        sink.pages = shared.pages;
    }
    return sink;
}

/* Whether values are staged beside positions. Those of 16 bits are looked up: a NaN is written
 * otherwise than it is counted. */
__device__ __forceinline__ bool row_stages_values(const struct row_result &result,
                                                  const struct row_shared &shared)
{
    return SCORE_DTYPE == 0 && !result.task.plain && shared.args.values != nullptr;
}

/* Where they are staged: in the bins of the proposal, zero before and after. */
__device__ __forceinline__ uint32_t *staged_values(struct row_shared &shared)
{
    static_assert(TOPK_K_FAST_MAX <= TOPK_BINS, "room for all");
    return coarse_bins(shared);
}

/*
 * Writes four neighbouring entries of a result, from `slot` on; `whole`: as 16 bytes. `values`:
 * theirs, or NULL: looked up.
 */
__device__ __forceinline__ void put_four(const struct sink &sink, uint32_t slot,
                                         const uint4 &positions, bool whole, const uint4 *values)
{
    const uint32_t position[4] = {positions.x, positions.y, positions.z, positions.w};
    struct sink_entry entry[4];
    int32_t index[4];
    float value[4] = {};
#pragma unroll
    for (int b = 0; b < 4; b++) {
        entry[b] = sink_look_up(sink, position[b], values == nullptr);
    }
#pragma unroll
    for (int b = 0; b < 4; b++) {
        index[b] = sink_index(sink, entry[b]);
        value[b] = score_value(entry[b].score);
    }
    if (values != nullptr) {
        const uint4 bits = *values;
        value[0] = __uint_as_float(bits.x);
        value[1] = __uint_as_float(bits.y);
        value[2] = __uint_as_float(bits.z);
        value[3] = __uint_as_float(bits.w);
    }
    if (whole) {
        __stcg(reinterpret_cast<int4 *>(sink.indices + slot),
               make_int4(index[0], index[1], index[2], index[3]));
        if (sink.values != nullptr) {
            __stcg(reinterpret_cast<float4 *>(sink.values + slot),
                   make_float4(value[0], value[1], value[2], value[3]));
        }
        return;
    }
#pragma unroll
    for (int b = 0; b < 4; b++) {
        __stcg(&sink.indices[slot + b], index[b]);
        if (sink.values != nullptr) {
            __stcg(&sink.values[slot + b], value[b]);
        }
    }
}

/*
 * Writes the staged positions as the result, four neighbours a thread, and what is looked up for
 * them, or `valued` has been staged. All THREADS threads call, after a barrier; with values staged
 * it ends with one.
 */
template <int THREADS>
__device__ __forceinline__ void put_staged(const struct sink &sink, uint32_t count, bool valued,
                                           struct row_shared &shared)
{
    if (sink_adds(sink)) {
        sink_put_staged<THREADS>(sink, shared.stage, count);
        return;
    }
    const bool whole =
        (reinterpret_cast<uintptr_t>(sink.indices) | reinterpret_cast<uintptr_t>(sink.values)) %
            16 ==
        0;
    uint4 *values = reinterpret_cast<uint4 *>(staged_values(shared));
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < count / 4; i += THREADS) {
        const uint4 positions = reinterpret_cast<const uint4 *>(shared.stage)[i];
        put_four(sink, 4 * i, positions, whole, valued ? &values[i] : nullptr);
        if (valued) {
            values[i] = make_uint4(0, 0, 0, 0);
        }
    }
    if (threadIdx.x < count % 4) {
        const uint32_t last = count - count % 4 + threadIdx.x;
        sink_put(sink, last, shared.stage[last]);
        if (valued) {
            staged_values(shared)[last] = 0;
        }
    }
    if (valued) {
        block_sync<THREADS>();
    }
}

/* Marks of the scores that exist. */
template <int SCORES>
__device__ __forceinline__ uint32_t mark_existing(const struct register_source<SCORES> &source)
{
    const int32_t runs = min(max((source.existing() + 31) >> 5, 0), SCORES);
    return (uint32_t)((1ull << runs) - 1);
}

/* Marks of the scores with a key of at least `low`. */
template <int SCORES>
__device__ __forceinline__ uint32_t mark_keys_from(const struct register_source<SCORES> &source,
                                                   uint32_t low)
{
    if (low <= KEY_NAN) {
        return mark_existing<SCORES>(source);
    }
    const uint32_t key = min(low, KEY_PLUS_INF + 1u); /* nothing is above infinity */
    return mark_from<SCORES>(source.scores, __uint_as_float(key_floor_bits(key)));
}

/* Marks of what is selected whatever else is, and of what may be. */
struct cut_marks {
    uint32_t above, in;
};

/* The lowest `count` of some marks, or all of them. */
__device__ __forceinline__ uint32_t lowest_marks(uint32_t marks, uint32_t count)
{
    if ((uint32_t)__popc(marks) <= count) {
        return marks;
    }
    uint32_t kept = 0; /* the most bits with no more marks than that */
#pragma unroll
    for (uint32_t step = 16; step > 0; step /= 2) {
        const uint32_t more = (1u << (kept + step)) - 1u;
        kept += (uint32_t)__popc(marks & more) <= count ? step : 0u;
    }
    return marks & ((1u << kept) - 1u);
}

/*
 * Puts the marked positions side by side in shared memory, in no order: they leave in whole sectors
 * and cost a lane only as many steps as it has marks. `valued`: and their scores.
 */
template <int SCORES>
__device__ __forceinline__ void stage_marks(uint32_t marks, const float (&scores)[SCORES],
                                            bool valued, struct row_shared &shared)
{
    uint32_t slot = stage_room(marks, shared);
    const uint32_t position = (uint32_t)first_position<SCORES>();
    if (!valued) {
        each_mark(marks, [&](uint32_t j) { shared.stage[slot++] = position + 32 * j; });
        return;
    }
    uint32_t *values = staged_values(shared);
#pragma unroll
    for (int j = 0; j < SCORES; j++) {
        if ((marks >> j & 1u) != 0) {
            shared.stage[slot] = position + 32 * j;
            values[slot++] = __float_as_uint(scores[j]);
        }
    }
}

/*
 * Puts the positions of a lane's turned marks at `place` in shared memory, ascending. Where a lane
 * has many, as neighbours often have, all places are gone through instead of the marks.
 */
template <int SCORES>
__device__ __forceinline__ void stage_turned(uint32_t marks, uint32_t *place)
{
    const uint32_t position = warp_index() * (32 * SCORES) + lane_index() * SCORES;
    uint32_t count = (uint32_t)__popc(marks);
    if (!__any_sync(WARP_ALL, count > MARKS_IN_TURN)) {
        each_mark(marks, [&](uint32_t j) { place[--count] = position + j; });
        return;
    }
#pragma unroll
    for (int j = 0; j < SCORES; j++) {
        if ((marks >> j & 1u) != 0) {
            *place++ = position + j;
        }
    }
}

/* Writes what a lane's turned marks select as entries to be sorted, `first` is the position of the
 * lowest. A function of its own: what it needs must not cost results by position. */
static __device__ __noinline__ void make_entries(const score_t *scores, uint32_t marks,
                                                 uint32_t first, uint64_t *entries)
{
    while (marks != 0) {
        const uint32_t count = (uint32_t)__popc(marks);
        uint32_t position[LOOK_UPS], j = 0;
        score_t score[LOOK_UPS];
#pragma unroll
        for (int b = 0; b < LOOK_UPS; b++) {
            if (marks != 0) { /* else the last one again */
                j = (uint32_t)__ffs((int)marks) - 1;
                marks &= marks - 1;
            }
            position[b] = first + j;
            score[b] = scores[position[b]];
        }
#pragma unroll
        for (uint32_t b = 0; b < LOOK_UPS; b++) {
            if (b < count) {
                *entries++ = sort_entry(key_of(score_number(score[b])), position[b]);
            }
        }
    }
}

/* Writes turned marks, a warp's from `slot` on, by value (`entries` is there) or by position. One
 * barrier, or more. */
template <int THREADS, int SCORES>
__device__ __forceinline__ void write_turned(uint32_t marks, uint32_t slot, const struct sink &sink,
                                             uint32_t k, uint64_t *entries,
                                             struct row_shared &shared)
{
    const uint32_t own = (uint32_t)__popc(marks);
    slot += warp_prefix(own) - own;
    if (entries == nullptr) {
        stage_turned<SCORES>(marks, &shared.stage[slot]);
        copies_wait();
        block_sync<THREADS>();
        put_staged<THREADS>(sink, k, false, shared);
        return;
    }
    make_entries(sink.scores, marks, warp_index() * (32 * SCORES) + lane_index() * SCORES,
                 entries + slot);
    copies_wait();
    block_sync<THREADS>();
    sort_descending<THREADS>(entries, k);
    sink_put_sorted<THREADS>(sink, entries, k);
    block_sync<THREADS>();
}

/* Counts a warp's marks for all, above in the lower half of a word, in the group in the upper one,
 * and returns them. They are there after the next barrier. */
__device__ __forceinline__ uint32_t count_marks(const struct cut_marks &marks,
                                                struct row_shared &shared)
{
    static_assert(32 * 1024 < 65536, "two counts share a word");
    const uint32_t own = (uint32_t)__popc(marks.above) | (uint32_t)__popc(marks.in) << 16;
    const uint32_t both = __reduce_add_sync(WARP_ALL, own);
    if (lane_index() == 0) {
        shared.selected[warp_index()] = both;
    }
    return both;
}

/*
 * Writes what is marked above, and of what is in the group the first `take` positions: by value or
 * by position, for these are known in order. `both`: what count_marks() gave. One barrier, or more.
 */
template <int THREADS, int SCORES>
__device__ __forceinline__ void
write_counted(const struct row_result &result, const struct cut_marks &marks, uint32_t both,
              uint32_t take, uint64_t *entries, struct row_shared &shared)
{
    const uint32_t before = warp_slot<THREADS>(shared.selected);
    const uint32_t taken = min(before >> 16, take);
    uint32_t selected = turn_marks<SCORES>(marks.above);
    if (taken < take && both >> 16 != 0) {
        const uint32_t in = turn_marks<SCORES>(marks.in), own = (uint32_t)__popc(in);
        const uint32_t first = taken + warp_prefix(own) - own;
        selected |= lowest_marks(in, first < take ? take - first : 0);
    }
    write_turned<THREADS, SCORES>(selected, (before & 0xffffu) + taken, row_sink(result, shared),
                                  (uint32_t)result.k, entries, shared);
}

/*
 * Writes what a warp has marked, from `slot` on, by value or by position. A few positions a lane,
 * and nothing else, need no turning: a ballot and a store for each are sooner done. One barrier, or
 * more; with ballots none.
 */
template <int THREADS, int SCORES>
__device__ __forceinline__ void write_selected(const struct row_result &result, uint32_t marks,
                                               uint32_t slot, uint64_t *entries,
                                               struct row_shared &shared)
{
    if (SCORES <= 16 && result.task.plain && entries == nullptr) {
        write_plain<SCORES>(marks, slot, sink_plain(result.task, result.row).indices);
    } else {
        write_turned<THREADS, SCORES>(turn_marks<SCORES>(marks), slot, row_sink(result, shared),
                                      (uint32_t)result.k, entries, shared);
    }
}

/* The result, by value or by position, of a row whose cut is known. Two barriers, or more. */
template <int THREADS, int SCORES>
__device__ __forceinline__ void
write_in_order(const struct row_result &result, const struct register_source<SCORES> &source,
               const struct rank_cut &cut, uint64_t *entries, struct row_shared &shared)
{
    if (SCORES <= 16) {
        const uint32_t selected = mark_selected<THREADS, SCORES>(source, cut, shared);
        const uint32_t slot = first_slot<THREADS>(selected, shared.selected);
        write_selected<THREADS, SCORES>(result, selected, slot, entries, shared);
        return;
    }
    struct cut_marks marks = {mark_keys_from<SCORES>(source, cut.key), 0};
    if (!cut.all) {
        marks.in = marks.above;
        marks.above = mark_keys_from<SCORES>(source, cut.key + 1);
        marks.in ^= marks.above;
    }
    const uint32_t both = count_marks(marks, shared);
    block_sync<THREADS>();
    write_counted<THREADS, SCORES>(result, marks, both, cut.all ? 0 : cut.take, entries, shared);
}

/* The same in no order. One barrier, or two. */
template <int THREADS, int SCORES>
__device__ __forceinline__ void write_staged(const struct row_result &result,
                                             const struct register_source<SCORES> &source,
                                             const struct rank_cut &cut, struct row_shared &shared)
{
    const uint32_t marks = mark_selected<THREADS, SCORES>(source, cut, shared);
    const bool valued = row_stages_values(result, shared);
    stage_marks<SCORES>(marks, source.scores, valued, shared);
    copies_wait();
    block_sync<THREADS>();
    put_staged<THREADS>(row_sink(result, shared), (uint32_t)result.k, valued, shared);
}

} // namespace

#endif
