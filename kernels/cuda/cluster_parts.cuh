/*
 * cluster_parts.cuh - a row that several clusters share: each has a part of it and hands in what it
 * admitted; the last to do so finishes the row.
 *
 * A cluster has 16 blocks at most, whose multiprocessors read a very long row for longer than all
 * the rest takes. Nobody waits for another cluster, so that they may run in any order: every
 * cluster counts itself in just once, whatever it found, and whichever comes last knows of all. It
 * gathers their lists, or, where these do not hold the answer, searches the whole row by itself.
 */
#ifndef TOPKSEL_CUDA_CLUSTER_PARTS_CUH
#define TOPKSEL_CUDA_CLUSTER_PARTS_CUH

#include "cluster_finish.cuh"

namespace
{

/*
 * The word of a row in the workspace, zero between launches: how many entries each part has, in
 * fields from the lowest bits on, and above them how many parts have been handed in.
 */
typedef unsigned long long parts_word;
#define PART_BITS 14u
#define PART_VOID ((1u << PART_BITS) - 1u) /* instead of a number: of no use */
#define PARTS_SHIFT (PART_BITS * TOPK_CLUSTER_PARTS_MAX)
static_assert(LIST < PART_VOID && PARTS_SHIFT + 8 <= 64, "a field a part, and a byte");

/* What a part hands in beside the number of its entries. */
struct part_slot {
    uint2 list[LIST];
    uint32_t equal[TOPK_K_FAST_MAX];
    uint32_t num_equal;
};
static_assert(sizeof(struct part_slot) <= TOPK_CLUSTER_PART_BYTES, "the planner's account");

/* What becomes of a row, said to all blocks of a cluster in the place of the parts' number. */
enum parts_verdict : uint32_t { PARTS_OTHERS, PARTS_GATHER, PARTS_SEARCH };

#if __CUDA_ARCH__ >= 900
/* A part of one row, and of how many. */
struct part {
    parts_word *word;
    unsigned char *slots; /* of the row's parts */
    uint32_t rank, parts;

    __device__ __forceinline__ struct part_slot &slot(uint32_t of) const
    {
        return *reinterpret_cast<struct part_slot *>(slots + (size_t)of * TOPK_CLUSTER_PART_BYTES);
    }
};

__device__ __forceinline__ struct part part_of(const struct select_params &params, int32_t row,
                                               uint32_t rank, uint32_t parts)
{
    const size_t words =
        ((size_t)params.rows_max * sizeof(parts_word) + TOPK_CLUSTER_PART_ALIGN - 1) /
        TOPK_CLUSTER_PART_ALIGN * TOPK_CLUSTER_PART_ALIGN;
    struct part part;
    part.word = reinterpret_cast<parts_word *>(params.workspace) + row;
    part.slots = params.workspace + words + (size_t)row * parts * TOPK_CLUSTER_PART_BYTES;
    part.rank = rank;
    part.parts = parts;
    return part;
}

/* Stores what this block admitted behind that of the blocks before it. */
template <int THREADS>
__device__ __forceinline__ void store_part(const struct standing &all, struct part_slot &slot,
                                           uint32_t k)
{
    auto &shared = cluster_state();
    const int rank = (int)cluster_rank();
    const uint32_t above = __shfl_sync(WARP_ALL, all.above, rank);
    const uint32_t above_before = __shfl_sync(WARP_ALL, all.above_before, rank);
    for (uint32_t i = threadIdx.x; i < above; i += THREADS) {
        __stcg(&slot.list[above_before + i], shared.list[i]);
    }
    if (all.num_equal > 0) {
        const uint32_t before = __shfl_sync(WARP_ALL, all.equal_before, rank);
        const uint32_t equal = min(__shfl_sync(WARP_ALL, all.equal, rank), k - min(k, before));
        for (uint32_t i = threadIdx.x; i < equal; i += THREADS) {
            __stcg(&slot.equal[before + i], shared.equal[i]);
        }
    }
}

/* The entries of part `of`, by the word of a row that is complete. */
__device__ __forceinline__ uint32_t part_entries(parts_word word, uint32_t of)
{
    return (uint32_t)(word >> (PART_BITS * of)) & PART_VOID;
}

/* Whether the parts together have more than a list holds; one of no use counts for as much. */
__device__ __forceinline__ bool parts_overflow(parts_word word)
{
    uint32_t count = 0;
#pragma unroll
    for (uint32_t i = 0; i < TOPK_CLUSTER_PARTS_MAX; i++) {
        count += part_entries(word, i);
    }
    return count > LIST;
}

/* Counts a part in, and decides when it is the last; the word's upper byte is then the verdict. One
 * thread, of the first block. */
__device__ __forceinline__ parts_word count_part(const struct part &part,
                                                 const struct standing &all, bool good, uint32_t k)
{
    const parts_word entries = good ? all.num_above : PART_VOID;
    const parts_word own = (parts_word)1 << PARTS_SHIFT | entries << (PART_BITS * part.rank);
    __threadfence();
    const parts_word word = atomicAdd(part.word, own) + own;
    __threadfence();
    const parts_word counts = word & (((parts_word)1 << PARTS_SHIFT) - 1);
    if (word >> PARTS_SHIFT != part.parts) {
        return counts | (parts_word)PARTS_OTHERS << PARTS_SHIFT;
    }
    *part.word = 0; /* ready for the next launch */
    uint32_t num_above = 0, num_equal = 0;
    for (uint32_t i = 0; i < part.parts; i++) {
        const uint32_t its = part_entries(word, i);
        good = good && its != PART_VOID;
        num_above += its;
    }
    if (good && num_above < k) {
        for (uint32_t i = 0; i < part.parts; i++) {
            num_equal += min(__ldcg(&part.slot(i).num_equal), k);
        }
    }
    good = good && num_above <= LIST && num_above + num_equal >= k;
    return counts | (parts_word)(good ? PARTS_GATHER : PARTS_SEARCH) << PARTS_SHIFT;
}

/*
 * Hands in what a cluster admitted and returns the verdict, the same in all its threads. All
 * threads of the cluster call, after an exchange; `phase` is that of `met`. The barrier of the
 * cluster makes the stores of all its blocks those of the thread that counts.
 */
template <int THREADS>
__device__ __forceinline__ parts_word hand_in(const struct part &part, const struct standing &all,
                                              bool good, uint32_t k, uint32_t &phase)
{
    auto &shared = cluster_state();
    if (good) {
        store_part<THREADS>(all, part.slot(part.rank), k);
    }
    if (threadIdx.x == 0) {
        mbarrier_arrive_expect(&shared.met, (uint32_t)sizeof(uint2));
        if (cluster_rank() == 0) {
            __stcg(&part.slot(part.rank).num_equal, all.num_equal);
        }
    }
    cluster_sync();
    if (cluster_rank() == 0 && warp_index() == 0) {
        parts_word word = 0;
        if (lane_index() == 0) {
            word = count_part(part, all, good, k);
        }
        const uint2 said = make_uint2(__shfl_sync(WARP_ALL, (uint32_t)word, 0),
                                      __shfl_sync(WARP_ALL, (uint32_t)(word >> 32), 0));
        if (lane_index() < cluster_size()) {
            remote_send(remote_address(&shared.standing[0], lane_index()), said,
                        remote_address(&shared.met, lane_index()));
        }
    }
    ring_wait(&shared.met, phase);
    fence_acquire_shared();
    phase ^= 1;
    return (parts_word)shared.standing[0].y << 32 | shared.standing[0].x;
}

/*
 * Gathers the entries of all parts in the list of this block, those below `low` as if they were
 * equal to it, and the positions equal to the boundary that are needed beside them; returns how
 * many entries there are. Ends with a barrier.
 */
template <int THREADS>
__device__ __forceinline__ uint32_t gather_parts(const struct part &part, parts_word word,
                                                 uint32_t low, uint32_t k)
{
    constexpr uint32_t AHEAD = 8; /* choice: loads in flight a thread */
    auto &shared = cluster_state();
    const float least = __uint_as_float(key_floor_bits(low));
    uint32_t end[TOPK_CLUSTER_PARTS_MAX], count = 0;
#pragma unroll
    for (uint32_t i = 0; i < TOPK_CLUSTER_PARTS_MAX; i++) {
        count += part_entries(word, i);
        end[i] = count;
    }
    for (uint32_t first = threadIdx.x; first < count; first += AHEAD * THREADS) {
        uint2 entry[AHEAD];
#pragma unroll
        for (uint32_t n = 0; n < AHEAD; n++) {
            const uint32_t at = first + n * THREADS;
            uint32_t of = 0, before = 0;
#pragma unroll
            for (uint32_t i = 0; i + 1 < TOPK_CLUSTER_PARTS_MAX; i++) {
                of = at >= end[i] ? i + 1 : of;
                before = at >= end[i] ? end[i] : before;
            }
            entry[n] = make_uint2(0, 0);
            if (at < count) {
                entry[n] = __ldcg(&part.slot(of).list[at - before]);
            }
        }
#pragma unroll
        for (uint32_t n = 0; n < AHEAD; n++) {
            const float score = fmaxf(__uint_as_float(entry[n].x), least);
            if (first + n * THREADS < count) {
                shared.list[first + n * THREADS] = make_uint2(__float_as_uint(score), entry[n].y);
            }
        }
    }
    uint32_t before = 0;
    for (uint32_t of = 0; of < part.parts && count + before < k; of++) {
        const struct part_slot &slot = part.slot(of);
        const uint32_t wanted = k - count - before, equal = min(__ldcg(&slot.num_equal), wanted);
        for (uint32_t i = threadIdx.x; i < equal; i += THREADS) {
            shared.equal[before + i] = __ldcg(&slot.equal[i]);
        }
        before += equal;
    }
    block_sync<THREADS>();
    return count;
}
#endif

} // namespace

#endif
