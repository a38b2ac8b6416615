/*
 * wide_write.cuh - the result of a row in the registers of a cluster, whose cut is known: what is
 * above the bin of the K-th best goes to the result at once, the few in it to all blocks, which
 * rank them (sm_90 and later).
 */
#ifndef TOPKSEL_CUDA_WIDE_WRITE_CUH
#define TOPKSEL_CUDA_WIDE_WRITE_CUH

#include "wide_part.cuh"

namespace
{

#if __CUDA_ARCH__ >= 900
/* Of the marks of a block those of the first `take` in its order. One barrier. */
template <class L>
__device__ __forceinline__ uint32_t first_marks(uint32_t marks, uint32_t take, uint32_t *counts)
{
    const uint32_t own = __reduce_add_sync(WARP_ALL, (uint32_t)__popc(marks));
    if (lane_index() == 0) {
        counts[warp_index()] = own;
    }
    block_sync<L::THREADS>();
    const uint32_t other = lane_index() < L::THREADS / 32 ? counts[lane_index()] : 0;
    uint32_t rank = __reduce_add_sync(WARP_ALL, lane_index() < warp_index() ? other : 0);
    if (rank >= take || rank + own <= take) { /* none, or all: every warp but one */
        return rank >= take ? 0 : marks;
    }
#pragma unroll 1
    for (int j = 0; j < L::SCORES; j++) {
        const uint32_t lanes = __ballot_sync(WARP_ALL, (marks >> j & 1u) != 0);
        if (rank + (uint32_t)__popc(lanes & lanes_below()) >= take) {
            marks &= ~(1u << j);
        }
        rank += (uint32_t)__popc(lanes);
    }
    return marks;
}

/*
 * Of a plateau that all blocks have in turns, those marks of a block that are of the first `take`
 * in position order; *before_p: how many of these are in blocks before this one. The blocks tell
 * each other how many they have of each turn, by the list's room and barrier.
 */
template <class L>
__device__ __forceinline__ uint32_t first_turns(uint32_t marks, uint32_t take, uint32_t *before_p,
                                                uint32_t &phases, struct wide_shared &shared)
{
    constexpr uint32_t TEAM = WIDE_TEAM(L::BLOCKS), PAIRS = L::SCORES / 2;
    static_assert(TEAM * PAIRS <= L::THREADS, "a thread for each pair of turns and block");
    static_assert(L::BLOCKS * PAIRS <= WIDE_NEAR_MAX, "the list has room for all counts");
    const uint32_t turned = turn_marks<32>(marks); /* a lane has one turn of the warp's scores */
    atomicAdd(&shared.turns[lane_index()], (uint32_t)__popc(turned));
    if (threadIdx.x == 0) {
        mbarrier_arrive_expect(&shared.met[WIDE_NEAR], L::BLOCKS * L::SCORES * 4);
    }
    block_sync<L::THREADS>();
    const uint32_t block = threadIdx.x % TEAM, pair = threadIdx.x / TEAM;
    if (pair < PAIRS && block < L::BLOCKS) {
        wide_send(&shared.near[cluster_rank() * PAIRS + pair], block,
                  make_uint2(shared.turns[2 * pair], shared.turns[2 * pair + 1]), WIDE_NEAR,
                  shared);
    }
    wide_wait(WIDE_NEAR, phases, shared);
    if (warp_index() == 0) {
        const uint32_t turn = lane_index();
        const uint32_t *words = &shared.near[0].x;
        uint32_t all = 0, before = 0, own = 0;
#pragma unroll
        for (uint32_t from = 0; from < L::BLOCKS; from++) {
            const uint32_t its = turn < L::SCORES ? words[from * L::SCORES + turn] : 0;
            all += its;
            before += from < cluster_rank() ? its : 0;
            own = from == cluster_rank() ? its : own;
        }
        const uint32_t above = quick_prefix(all) - all;
        const uint32_t rest = take > above ? take - above : 0; /* from this turn on */
        const uint32_t taken = min(own, rest > before ? rest - before : 0);
        const bool part = taken != 0 && taken != own; /* one turn of one block, if any */
        struct wide_taken found;
        found.whole = __ballot_sync(WARP_ALL, taken == own);
        found.part = __ballot_sync(WARP_ALL, part);
        found.part_count = __reduce_add_sync(WARP_ALL, part ? taken : 0);
        found.before = __reduce_add_sync(WARP_ALL, min(before, rest));
        if (turn == 0) {
            shared.taken = found;
        }
        shared.turns[turn] = 0;
    }
    block_sync<L::THREADS>();
    const struct wide_taken taken = shared.taken;
    *before_p = taken.before;
    if (taken.part == 0) { /* in every block but one */
        return marks & taken.whole;
    }
    const uint32_t mark = marks & taken.part;
    const uint32_t lanes = __ballot_sync(WARP_ALL, mark != 0);
    const uint32_t rank = first_slot<L::THREADS>(mark, shared.selected);
    const bool first = rank + (uint32_t)__popc(lanes & lanes_below()) < taken.part_count;
    return (marks & taken.whole) | (first ? mark : 0);
}

/* Writes marked positions from `slot` on, in the order of marks: mark j is at `position` + j *
 * step. */
__device__ __forceinline__ void put_marks(uint32_t marks, uint32_t slot, uint32_t position,
                                          uint32_t step, const struct sink &sink)
{
    if (!sink_adds(sink)) {
        while (marks != 0) {
            const uint32_t count = (uint32_t)__popc(marks);
            struct sink_entry entry[LOOK_UPS];
            uint32_t j = 0;
#pragma unroll
            for (int b = 0; b < LOOK_UPS; b++) {
                if (marks != 0) { /* else the last one again */
                    j = (uint32_t)__ffs((int)marks) - 1;
                    marks &= marks - 1;
                }
                entry[b] = sink_look_up(sink, position + step * j);
            }
#pragma unroll
            for (uint32_t b = 0; b < LOOK_UPS; b++) {
                if (b < count) {
                    sink_put_entry(sink, slot++, entry[b]);
                }
            }
        }
        return;
    }
    const uint32_t written = position + (uint32_t)sink.offset;
    int32_t *indices = sink.indices + slot;
    for (; marks != 0; marks &= marks - 1) {
        const uint32_t j = (uint32_t)__ffs((int)marks) - 1;
        __stcg(indices++, (int32_t)(written + step * j));
    }
}

/*
 * Writes a warp's marked positions from `slot` on, in position order. Turned over, a lane has the
 * marks of EACH neighbours, where that many divide 32, else those of a run of 32. Plain positions
 * of few scores a lane are sooner written by a ballot and a store each.
 */
template <class L>
__device__ __forceinline__ void put_ordered(uint32_t marks, uint32_t slot, const struct sink &sink)
{
    const uint32_t first = (uint32_t)L::first() - lane_index();
    if (!sink_adds(sink) || L::SCORES == 16 || L::SCORES == 32) {
        constexpr uint32_t EACH = 32 % L::SCORES == 0 ? L::SCORES : 32;
        const uint32_t turned = turn_marks<EACH>(marks), own = (uint32_t)__popc(turned);
        put_marks(turned, slot + warp_prefix(own) - own, first + lane_index() * EACH, 1, sink);
    } else if (__any_sync(WARP_ALL, marks != 0)) {
        const uint32_t below = lanes_below();
        const uint32_t position = first + lane_index() + (uint32_t)sink.offset;
        int32_t *indices = opaque_base(sink.indices); /* one base for all stores */
#pragma unroll
        for (int j = 0; j < L::SCORES; j++) {
            const uint32_t marked = marks & 1u << j;
            const uint32_t lanes = __ballot_sync(WARP_ALL, marked != 0);
            store_marked(marked, indices + (slot + (uint32_t)__popc(lanes & below)),
                         position + 32 * j);
            slot += (uint32_t)__popc(lanes);
        }
    }
}

/* Writes all marked positions of a block from `slot` on: in position order, after one barrier, or
 * in none. */
template <class L>
__device__ __forceinline__ void write_part(uint32_t marks, uint32_t slot, const struct sink &sink,
                                           struct wide_shared &shared)
{
    if (L::ORDERED) {
        slot += first_slot<L::THREADS>(marks, shared.selected);
        put_ordered<L>(marks, slot, sink);
        return;
    }
    const uint32_t own = (uint32_t)__popc(marks), sum = warp_prefix(own);
    uint32_t first = lane_index() == 31 ? atomicAdd(&shared.staged, sum) : 0;
    first = __shfl_sync(WARP_ALL, first, 31);
    put_marks(marks, slot + first + sum - own, (uint32_t)opaque(L::first()), L::STEP, sink);
}

/* An entry of the list as a number: less for a higher score, of equal ones for a lower position. */
__device__ __forceinline__ uint64_t near_number(uint2 entry)
{
    return (uint64_t)~entry.x << 32 | entry.y;
}

/* Sends what is marked in the range to all blocks; it is the `slot`-th and further ones of this
 * block. A warp does not wait for others. */
template <class L>
__device__ __forceinline__ void send_near(const float (&scores)[L::SCORES], uint32_t marks,
                                          uint32_t slot, const struct wide_cut &cut,
                                          struct wide_shared &shared)
{
    constexpr uint32_t TEAM = WIDE_TEAM(L::BLOCKS);
    if (!__any_sync(WARP_ALL, marks != 0)) {
        return;
    }
    const uint32_t first = __shfl_sync(WARP_ALL, slot, 0);
    const uint32_t end = __shfl_sync(WARP_ALL, slot + (uint32_t)__popc(marks), 31);
    const uint32_t position = (uint32_t)opaque(L::first());
    uint2 *own = &shared.own[slot];
#pragma unroll
    for (int j = 0; j < L::SCORES; j++) {
        if ((marks >> j & 1u) != 0) {
            *own++ = make_uint2(__float_as_uint(scores[j]), position + L::STEP * j);
        }
    }
    __syncwarp();
    const uint32_t block = lane_index() % TEAM;
    for (uint32_t i = first + lane_index() / TEAM; i < end; i += 32 / TEAM) {
        const uint2 entry = shared.own[i];
        if (block < L::BLOCKS) {
            wide_send(&shared.near[cut.count_before + i], block,
                      make_uint2(key_of(__uint_as_float(entry.x)), entry.y), WIDE_NEAR, shared);
        }
    }
}

/* Ranks the listed ones, each by one warp of the cluster: ranked(entry, rank), rank 0 for the best,
 * in all lanes. */
template <class L, class Ranked>
__device__ __forceinline__ void rank_near(uint32_t count, const struct wide_shared &shared,
                                          const Ranked &ranked)
{
    const uint32_t first = cluster_rank() + warp_index() * L::BLOCKS;
    for (uint32_t i = first; i < count; i += L::THREADS / 32 * L::BLOCKS) {
        const uint2 entry = shared.near[i];
        const uint64_t own = near_number(entry);
        uint32_t rank = 0;
#pragma unroll 4
        for (uint32_t other = lane_index(); other < count; other += 32) {
            rank += near_number(shared.near[other]) < own ? 1u : 0u;
        }
        ranked(entry, __reduce_add_sync(WARP_ALL, rank));
    }
}

/* Of a lane's scores those that are as good as the last one selected. */
template <class L>
__device__ __forceinline__ uint32_t mark_until(const float (&scores)[L::SCORES],
                                               const struct wide_marks &marks, uint2 last)
{
    const uint32_t better =
        mark_from<L::SCORES>(scores, __uint_as_float(key_floor_bits(last.x + 1)));
    const uint32_t from =
        last.x > KEY_NAN ? mark_from<L::SCORES>(scores, __uint_as_float(key_floor_bits(last.x)))
                         : marks.above | marks.in;
    const int32_t ahead = (int32_t)last.y - L::first();
    const uint32_t until = ahead < 0 ? 0 : ahead / 32 > 30 ? WARP_ALL : (2u << ahead / 32) - 1;
    return better | (from & until);
}

/* Which of a block's scores are selected, where the result is in order; *place_p is that of the
 * warp's first. One barrier, while what others have sent is on its way. */
template <class L>
__device__ __forceinline__ uint32_t select_part(const float (&scores)[L::SCORES],
                                                const struct wide_marks &marks,
                                                const struct wide_cut &cut, uint32_t k,
                                                uint32_t *place_p, uint32_t &phases,
                                                struct wide_shared &shared)
{
    const uint32_t start = (uint32_t)L::first() - lane_index();
    uint32_t before = first_slot<L::THREADS>(marks.above, shared.selected);
    before = lane_index() == 0 ? cut.above_before + before : 0;
    const uint32_t end = cut.count_before + (shared.staged >> 16);
    wide_wait(WIDE_NEAR, phases, shared);
    rank_near<L>(cut.count, shared, [&](const uint2 &entry, uint32_t rank) {
        if (cut.above + rank == k - 1 && lane_index() < L::BLOCKS) {
            wide_send(&shared.last, lane_index(), entry, WIDE_LAST, shared);
        }
    });
    wide_wait(WIDE_LAST, phases, shared);
    const uint64_t last = near_number(shared.last);
#pragma unroll 4
    for (uint32_t i = lane_index(); i < end; i += 32) { /* those of later blocks are behind */
        const uint2 entry = shared.near[i];
        before += entry.y < start && near_number(entry) <= last ? 1u : 0u;
    }
    *place_p = __reduce_add_sync(WARP_ALL, before);
    return __any_sync(WARP_ALL, marks.in != 0) ? mark_until<L>(scores, marks, shared.last)
                                               : marks.above;
}

/* Writes a row of more than K scores by its cut. */
template <class L>
__device__ __forceinline__ void
write_row(const float (&scores)[L::SCORES], int32_t length, uint32_t k, const struct wide_cut &cut,
          const struct sink &sink, uint32_t &phases, struct wide_shared &shared)
{
    const struct wide_marks marks = mark_part<L>(scores, length, cut);
    const uint32_t take = k - cut.above;
    if (cut.low == cut.high || cut.count == take) { /* a plateau, or all of them */
        uint32_t in = marks.in, taken = min(cut.count_before, take);
        if (L::ORDERED) {
            in = first_marks<L>(in, take - taken, shared.equal);
        } else if (cut.count != take) {
            in = first_turns<L>(in, take, &taken, phases, shared);
        }
        write_part<L>(marks.above | in, cut.above_before + taken, sink, shared);
        return;
    }
    if (threadIdx.x == 0) {
        mbarrier_arrive_expect(&shared.met[WIDE_NEAR], cut.count * (uint32_t)sizeof(uint2));
        if (L::ORDERED) {
            mbarrier_arrive_expect(&shared.met[WIDE_LAST], (uint32_t)sizeof(uint2));
        }
    }
    const uint32_t own = (uint32_t)__popc(marks.above) | (uint32_t)__popc(marks.in) << 16;
    const uint32_t sum = warp_prefix(own);
    uint32_t slots = lane_index() == 31 ? atomicAdd(&shared.staged, sum) : 0;
    slots = __shfl_sync(WARP_ALL, slots, 31) + sum - own;
    send_near<L>(scores, marks.in, slots >> 16, cut, shared);
    if (L::ORDERED) {
        uint32_t slot;
        const uint32_t selected = select_part<L>(scores, marks, cut, k, &slot, phases, shared);
        put_ordered<L>(selected, slot, sink);
        return;
    }
    put_marks(marks.above, cut.above_before + (slots & 0xffffu), (uint32_t)opaque(L::first()),
              L::STEP, sink);
    wide_wait(WIDE_NEAR, phases, shared);
    rank_near<L>(cut.count, shared, [&](const uint2 &entry, uint32_t rank) {
        if (cut.above + rank < k && lane_index() == 0) {
            sink_put(sink, cut.above + rank, entry.y);
        }
    });
}
#endif

} // namespace

#endif
