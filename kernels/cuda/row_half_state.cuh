/*
 * row_half_state.cuh - a row of 16-bit scores in the shared memory of a block (row_half.cuh): how
 * it comes there, keys and entries of its scores, and marks of a lane's share of them.
 */
#ifndef TOPKSEL_CUDA_ROW_HALF_STATE_CUH
#define TOPKSEL_CUDA_ROW_HALF_STATE_CUH

#include "boundary.cuh"
#include "order.cuh"

namespace
{

#define RUN_OF(scores) ((scores) < 32 ? (uint32_t)(scores) : 32u) /* a lane's scores in a word */
#define WORDS_OF(scores) ((scores) / RUN_OF(scores))
#define LIST ((uint32_t)TOPK_HALF_LIST)
#define SAMPLED 4u    /* scores at a place of the sample */
#define HALF_TURNS 4u /* lengths that are held: of three rows, when warps are a row apart */

struct half_shared {
    alignas(16) uint32_t bins[TOPK_BINS];
    alignas(16) uint32_t list[TOPK_HALF_LIST]; /* entries, positions ascending */
    struct rank_shared rank;
    uint32_t admitted[32], equal[32], selected[32]; /* counts of each warp */
    int32_t given[HALF_TURNS]; /* lengths of the block's rows, in turn, as one thread reads them */
    struct task task;
    struct route_counts counts;
};

/* Dynamic shared memory: the state, the row and, to order by value, the entries to sort. */
SHARED_DYNAMIC(__align__(128) unsigned char, half_memory);

__device__ __forceinline__ struct half_shared &half_state()
{
    static_assert(sizeof(struct half_shared) <= TOPK_HALF_STATE_BYTES &&
                      TOPK_HALF_STATE_BYTES % 128 == 0,
                  "the planner's account of shared memory");
    return *reinterpret_cast<struct half_shared *>(&half_memory[0]);
}

__device__ __forceinline__ score_t *half_row()
{
    return reinterpret_cast<score_t *>(&half_memory[TOPK_HALF_STATE_BYTES]);
}

/* A row by virtual position; those in [skew, end) are valid. */
struct row_view {
    const score_t *base; /* aligned to 16 bytes */
    uint32_t skew, end;
    int32_t length;
};

__device__ __forceinline__ struct row_view row_view_of(const struct task &task, int32_t row,
                                                       int32_t given)
{
    const score_t *scores = task_row(task, row);
    struct row_view view;
    view.skew = (uint32_t)(reinterpret_cast<uintptr_t>(scores) / sizeof(score_t)) % SCORE_GROUP;
    view.base = scores - view.skew;
    view.length = clamp_length(task, given);
    view.end = view.skew + (uint32_t)view.length;
    return view;
}

/* Starts to copy a row to shared memory, which nobody reads any more. All threads. */
template <int THREADS>
__device__ __forceinline__ void fetch_row(const struct row_view &row)
{
    score_t *buffer = half_row();
    const uint32_t first = row.skew > 0 ? SCORE_GROUP : 0;
#pragma unroll 4
    for (uint32_t at = first + SCORE_GROUP * threadIdx.x; at < row.end;
         at += SCORE_GROUP * THREADS) {
        copy_async_16(buffer + at, row.base + at,
                      min(row.end - at, SCORE_GROUP) * (uint32_t)sizeof(score_t));
    }
    if (threadIdx.x >= row.skew && threadIdx.x < min(first, row.end)) {
        buffer[threadIdx.x] = row.base[threadIdx.x]; /* 16 bytes that begin before the row */
    }
}

/* ---- keys and entries ----------------------------------------------------------------------- */

#define HALF_INFINITY (SCORE_DTYPE == 2 ? 0x7f80u : 0x7c00u)
#define HALF_KEY_NAN 1u

/* As key_of(), in 16 bits: a higher key ranks higher, 1 is NaN, and -0 is +0. */
__device__ __forceinline__ uint32_t half_key(uint32_t pattern)
{
    const uint32_t magnitude = pattern & 0x7fffu;
    uint32_t key = pattern == magnitude ? pattern | 0x8000u : pattern ^ 0xffffu;
    key = magnitude == 0 ? 0x8000u : key;
    return magnitude > HALF_INFINITY ? HALF_KEY_NAN : key;
}

/* A score with this key. */
__device__ __forceinline__ score_t half_of_key(uint32_t key)
{
    const uint32_t pattern = (key & 0x8000u) != 0 ? key ^ 0x8000u : ~key;
    return (score_t)(key == HALF_KEY_NAN ? 0x7fffu : pattern);
}

__device__ __forceinline__ uint32_t half_entry(score_t score, uint32_t position)
{
    return half_key(score) << 16 | (0xffffu - position);
}

/* The lowest entry that a score of at least this key of 32 bits can have. */
__device__ __forceinline__ uint32_t half_entry_from(uint32_t key)
{
    const score_bound bound = bound_from(__uint_as_float(key_floor_bits(key)));
    return (key <= KEY_NAN ? HALF_KEY_NAN : half_key(bound & 0xffffu)) << 16;
}

/* What scores of at least this key reach, but for NaN. A key above that of infinity gives NaN. */
__device__ __forceinline__ score_bound half_bound(uint32_t key)
{
    const uint32_t pattern =
        half_of_key(max(key, 0xffffu - (HALF_INFINITY | 0x8000u))); /* minus infinity */
    return pattern | pattern << 16;
}

/* ---- runs and marks ------------------------------------------------------------------------- */

template <int SCORES>
struct run_marks {
    uint32_t word[WORDS_OF(SCORES)];
};

/* The virtual position of this thread's run of word w. */
template <int THREADS, int SCORES>
__device__ __forceinline__ uint32_t run_at(uint32_t w)
{
    return (w * THREADS + threadIdx.x) * RUN_OF(SCORES);
}

__device__ __forceinline__ uint32_t first_marks(uint32_t n)
{
    return n < 32 ? (1u << n) - 1 : 0xffffffffu;
}

/* Which scores of a run are of the row. */
template <uint32_t RUN>
__device__ __forceinline__ uint32_t valid_marks(const struct row_view &row, uint32_t at)
{
    const uint32_t from = row.skew > at ? min(row.skew - at, RUN) : 0;
    const uint32_t to = row.end > at ? min(row.end - at, RUN) : 0;
    return first_marks(to) & ~first_marks(from);
}

/*
 * Bit i of word w: score i of the run reaches the bound, or is equal to it. The 16 bytes of a run
 * are read in an order that depends on the lane, so that lanes meet in no bank.
 */
template <int THREADS, int SCORES, bool EQUAL>
__device__ __forceinline__ struct run_marks<SCORES>
compare_runs(const struct row_view &row, score_bound bound, uint32_t everything) {
    constexpr uint32_t RUN = RUN_OF(SCORES), GROUPS = RUN / SCORE_GROUP;
    const uint32_t turn = lane_index() / (8 / GROUPS) % GROUPS, shift = SCORE_GROUP * turn;
    struct run_marks<SCORES> marks;
#pragma unroll
    for (uint32_t w = 0; w < WORDS_OF(SCORES); w++) {
        const uint32_t at = run_at<THREADS, SCORES>(w), warp_at = at - lane_index() * RUN;
        marks.word[w] = 0;
        if (warp_at < row.end) {
            const score_t *run = half_row() + at;
            uint32_t turned = group_marks<GROUPS, EQUAL>(bound, [&](uint32_t g) {
                return *reinterpret_cast<const score_group *>(run +
                                                              SCORE_GROUP * ((g + turn) % GROUPS));
            });
            if constexpr (RUN < 32) {
                turned |= turned << RUN; /* so that it turns within its own bits */
                turned = turned >> (RUN - shift) & first_marks(RUN);
            } else {
                turned = __funnelshift_l(turned, turned, shift);
            }
            marks.word[w] = (turned | everything) & first_marks(RUN);
            if (warp_at < row.skew || warp_at + 32 * RUN > row.end) {
                marks.word[w] &= valid_marks<RUN>(row, at);
            }
        }
    }
    return marks;
}

/* Where a thread's marks stand among those of the block, in position order: word 1 is behind all of
 * word 0. */
template <int SCORES>
struct mark_places {
    uint32_t first[WORDS_OF(SCORES)]; /* marks before this thread's of a word */
    uint32_t all;
};

/* One barrier; `counts` is free at the next. All threads call. */
template <int THREADS, int SCORES>
__device__ __forceinline__ struct mark_places<SCORES>
place_marks(const struct run_marks<SCORES> &marks, uint32_t *counts) {
    constexpr int WORDS = WORDS_OF(SCORES);
    static_assert(WORDS <= 2 && THREADS * SCORES / WORDS < 65536, "two counts share a word");
    uint32_t own = (uint32_t)__popc(marks.word[0]);
    if (WORDS == 2) {
        own |= (uint32_t)__popc(marks.word[WORDS - 1]) << 16;
    }
    const uint32_t prefix = warp_prefix(own);
    if (lane_index() == 31) {
        counts[warp_index()] = prefix;
    }
    block_sync<THREADS>();
    const uint32_t other = lane_index() < THREADS / 32 ? counts[lane_index()] : 0;
    const uint32_t before = __reduce_add_sync(WARP_ALL, lane_index() < warp_index() ? other : 0);
    const uint32_t all = __reduce_add_sync(WARP_ALL, other);
    const uint32_t mine = before + prefix - own;
    struct mark_places<SCORES> places;
    places.all = (all & 0xffffu) + (all >> 16);
    places.first[0] = mine & 0xffffu;
    if (WORDS == 2) {
        places.first[WORDS - 1] = (all & 0xffffu) + (mine >> 16);
    }
    return places;
}

} // namespace

#endif
