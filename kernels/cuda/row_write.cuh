/*
 * row_write.cuh - the result of a row in registers: which scores are selected, and their positions
 * in no order; and what puts marked ones in order.
 */
#ifndef TOPKSEL_CUDA_ROW_WRITE_CUH
#define TOPKSEL_CUDA_ROW_WRITE_CUH

#include "row_source.cuh"

namespace
{

#define LOOK_UPS 4 /* choice: pages and values a thread asks for at once */

/* How many scores of a lane are equal to the cut. */
template <int SCORES>
__device__ __forceinline__ uint32_t count_equal(const struct register_source<SCORES> &source,
                                                uint32_t cut_key)
{
    uint32_t equal = 0;
    if (cut_key >= KEY_MINUS_INF) {
        const float score = __uint_as_float(key_floor_bits(cut_key));
#pragma unroll
        for (int j = 0; j < SCORES; j++) {
            equal += source.scores[j] == score ? 1u : 0u;
        }
        return equal;
    }
    const int32_t exist = source.existing(); /* NaN among the selected */
#pragma unroll
    for (int j = 0; j < SCORES; j++) {
        equal += source.key(j, exist) == cut_key ? 1u : 0u;
    }
    return equal;
}

/* Marks of the scores of at least `low`. */
template <int SCORES>
__device__ __forceinline__ uint32_t mark_from(const float (&scores)[SCORES], float low)
{
    uint32_t marks = 0;
#pragma unroll
    for (int j = 0; j < SCORES; j++) {
        marks |= scores[j] >= low ? 1u << j : 0u;
    }
    return marks;
}

/*
 * Bit j: scores[j] is selected. For cuts that a comparison of scores cannot express: not all of
 * those equal to the cut, or NaN among the selected. One barrier.
 */
template <int THREADS, int SCORES>
__device__ __forceinline__ uint32_t mark_keys(const struct register_source<SCORES> &source,
                                              const struct rank_cut &cut, uint32_t *counts)
{
    const uint32_t equal = __reduce_add_sync(WARP_ALL, count_equal<SCORES>(source, cut.key));
    if (lane_index() == 0) {
        counts[warp_index()] = equal;
    }
    block_sync<THREADS>();
    const uint32_t take = cut.all ? 0xffffffffu : cut.take;
    uint32_t other = lane_index() < THREADS / 32 ? counts[lane_index()] : 0;
    uint32_t rank = __reduce_add_sync(WARP_ALL, lane_index() < warp_index() ? other : 0);
    if (cut.key >= KEY_MINUS_INF && (rank >= take || rank + equal <= take)) {
        /* All of this warp's, or none: every warp but one. */
        const uint32_t low = cut.key + (rank >= take ? 1u : 0u);
        return mark_from<SCORES>(source.scores, __uint_as_float(key_floor_bits(low)));
    }
    uint32_t marks = 0;
    const int32_t exist = source.existing();
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

/* The slot of a warp's first marked score, by the counts of all warps; after a barrier. */
template <int THREADS>
__device__ __forceinline__ uint32_t warp_slot(const uint32_t *counts)
{
    const uint32_t other = lane_index() < THREADS / 32 ? counts[lane_index()] : 0;
    return __reduce_add_sync(WARP_ALL, lane_index() < warp_index() ? other : 0);
}

/* The same of marks. One barrier. */
template <int THREADS>
__device__ __forceinline__ uint32_t first_slot(uint32_t marks, uint32_t *counts)
{
    const uint32_t own = __reduce_add_sync(WARP_ALL, (uint32_t)__popc(marks));
    if (lane_index() == 0) {
        counts[warp_index()] = own;
    }
    block_sync<THREADS>();
    return warp_slot<THREADS>(counts);
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
    indices = opaque_base(indices); /* one base for all stores */
#pragma unroll
    for (int j = 0; j < SCORES; j++) {
        const uint32_t marked = marks & 1u << j;
        const uint32_t lanes = __ballot_sync(WARP_ALL, marked != 0);
        const uint32_t own_slot = slot + (uint32_t)__popc(lanes & below);
        store_marked(marked, indices + own_slot, position + 32 * j);
        slot += (uint32_t)__popc(lanes);
    }
}

/* Calls put(j) for every mark. */
template <class Put>
__device__ __forceinline__ void each_mark(uint32_t marks, const Put &put)
{
    while (marks != 0) {
        const uint32_t j = 31u - (uint32_t)__clz((int)marks);
        marks ^= 1u << j;
        put(j);
    }
}

/*
 * The other way round: bit j of lane l becomes bit l of lane j. Where a lane has SCORES < 32 marks,
 * each gets as many neighbours in place of 32. So of a warp's scores, lane l then has the marks of
 * those from SCORES * l on, which makes lanes follow each other in position order.
 */
template <int SCORES>
__device__ __forceinline__ uint32_t turn_marks(uint32_t marks)
{
    uint32_t low = 0xffffu;
#pragma unroll
    for (uint32_t step = 16; step > 0; step /= 2) {
        const bool upper = (lane_index() & step) != 0;
        const uint32_t other = __shfl_xor_sync(WARP_ALL, marks, (int)step);
        const uint32_t keep = upper ? ~low : low;
        const uint32_t turned = __funnelshift_l(other, other, upper ? 32 - step : step);
        marks = (marks & keep) | (turned & ~keep);
        low ^= low << step / 2;
    }
    if (SCORES < 32) {
        const uint32_t first = lane_index() * SCORES;
        marks = __shfl_sync(WARP_ALL, marks, (int)(first / 32)) >> first % 32;
        marks &= (1u << SCORES % 32) - 1u;
    }
    return marks;
}

/* A lane's place in shared memory for what it has marked, beside that of others, in no order. */
__device__ __forceinline__ uint32_t stage_room(uint32_t marks, struct row_shared &shared)
{
    const uint32_t own = (uint32_t)__popc(marks), prefix = warp_prefix(own);
    uint32_t first = 0;
    if (lane_index() == 31) {
        first = atomicAdd(&shared.staged, prefix);
    }
    return __shfl_sync(WARP_ALL, first, 31) + prefix - own;
}

/* Puts the marked positions side by side in shared memory, in no order: they leave in whole sectors
 * and cost a lane only as many steps as it has marks. */
template <int SCORES>
__device__ __forceinline__ void stage_marked(uint32_t marks, struct row_shared &shared)
{
    uint32_t slot = stage_room(marks, shared);
    const uint32_t position = (uint32_t)first_position<SCORES>();
    each_mark(marks, [&](uint32_t j) { shared.stage[slot++] = position + 32 * j; });
}

/* Marks of what a cut selects. No barrier where it can be told by a comparison, else one. */
template <int THREADS, int SCORES>
__device__ __forceinline__ uint32_t mark_selected(const struct register_source<SCORES> &source,
                                                  const struct rank_cut &cut,
                                                  struct row_shared &shared)
{
    if (cut.all && cut.key >= KEY_MINUS_INF) {
        return mark_from<SCORES>(source.scores, __uint_as_float(key_floor_bits(cut.key)));
    }
    return mark_keys<THREADS, SCORES>(source, cut, shared.equal);
}

/* The result, in no order, of a row whose cut is known. */
template <int THREADS, int SCORES>
__device__ __forceinline__ void write_row(const struct select_params &params,
                                          const struct task &task, int32_t row,
                                          const struct register_source<SCORES> &source,
                                          const struct rank_cut &cut, struct row_shared &shared)
{
    const uint32_t marks = mark_selected<THREADS, SCORES>(source, cut, shared);
    const struct sink sink = sink_of_row(task, params.args, row);
    stage_marked<SCORES>(marks, shared);
    block_sync<THREADS>();
    sink_put_staged<THREADS, LOOK_UPS>(sink, shared.stage, (uint32_t)task.k);
}

} // namespace

#endif
