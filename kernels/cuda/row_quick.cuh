/*
 * row_quick.cuh - the short way through a row in registers, for as many rows as multiprocessors or
 * fewer, where what counts is how many steps follow each other:
 *
 *   count     all scores, by the first 12 bits of their float16, in one histogram
 *   find      the bin of the K-th best
 *   collect   positions of what is above that bin, and the few entries in it
 *   rank      each of these few among the others: every thread compares a few of them
 *
 * No sample, for that would be a histogram and a search more. Where too many scores share the bin,
 * or the K-th best is a NaN or a zero, the search of rank.cuh takes over.
 */
#ifndef TOPKSEL_CUDA_ROW_QUICK_CUH
#define TOPKSEL_CUDA_ROW_QUICK_CUH

#include "row_write.cuh"

namespace
{

/*
 * Bins of the upper 12 bits of a score as float16, cut off towards zero, in the order of scores: 64
 * a binade. Numbers beyond the range of float16 share its last bins, a NaN has the highest.
 */
#define QUICK_SHIFT 4
#define QUICK_ZERO (0x8000u >> QUICK_SHIFT)   /* the lowest bin of positive numbers */
#define QUICK_INF (0xfc00u >> QUICK_SHIFT)    /* the bin of +inf; higher ones hold NaN alone */
#define QUICK_LOWEST (0x0400u >> QUICK_SHIFT) /* the lowest bin of numbers */
static_assert(QUICK_BINS == 0x10000u >> QUICK_SHIFT, "a bin for every pattern");

/* Counts all scores of a thread; the bins of NaN are not to be looked at. */
template <int SCORES>
__device__ __forceinline__ void count_halves(const float (&scores)[SCORES], uint32_t *bins)
{
    static_assert(SCORES % 2 == 0, "two at a time");
#pragma unroll
    for (int j = 0; j < SCORES; j += 2) {
        const uint32_t pair = half_pair(scores[j], scores[j + 1]);
        const uint32_t negative = (pair >> 15 & 0x00010001u) * 0xffffu;
        const uint32_t ordered = pair ^ (negative | 0x80008000u);
        atomicAdd(&bins[(ordered & 0xffffu) >> QUICK_SHIFT], 1u);
        atomicAdd(&bins[ordered >> (16 + QUICK_SHIFT)], 1u);
    }
}

/* The lowest key of a bin of numbers other than the two around zero. */
__device__ __forceinline__ uint32_t quick_floor(uint32_t bin)
{
    const uint32_t ordered = bin << QUICK_SHIFT;
    if (bin > QUICK_ZERO) {
        return __float_as_uint(half_to_float((uint16_t)(ordered ^ 0x8000u))) | 0x80000000u;
    }
    /* Up to the magnitude just below that of the bin beneath. */
    const uint32_t beyond = __float_as_uint(half_to_float((uint16_t)(0x8000u - ordered)));
    return 0x80000000u - beyond;
}

/* What the histogram says of a row. */
struct quick_cut {
    uint32_t low, high; /* keys of the bin that the K-th best lies in */
    uint32_t above;     /* scores above it */
    uint32_t count;     /* scores in it */
    bool found;         /* false: counts are of no use; the K-th best may be zero, or below `low` */
};

/* Counts the row and finds the bin of the K-th best. Three barriers; the bins are zero again. */
template <int THREADS, int SCORES>
__device__ __forceinline__ struct quick_cut quick_find(const float (&scores)[SCORES], uint32_t k,
                                                       struct row_shared &shared)
{
    constexpr int EACH = QUICK_BINS / THREADS;
    constexpr uint32_t NAN_THREADS = (QUICK_BINS - QUICK_INF + EACH - 1) / EACH;
    uint32_t *own_bins = &shared.bins[QUICK_BINS - (threadIdx.x + 1) * EACH];
    count_halves<SCORES>(scores, shared.bins);
    block_sync<THREADS>();
    uint32_t count[EACH];
    uint32_t own = load_bins<EACH>(own_bins, count);
    if (threadIdx.x < NAN_THREADS) {
        own = 0;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const uint32_t bin = QUICK_BINS - (threadIdx.x + 1) * EACH + i;
            count[i] = bin <= QUICK_INF ? count[i] : 0;
            own += count[i];
        }
    }
    clear_own<EACH>(own_bins);
    const struct rank_bin found = scan_counts<THREADS, EACH>(count, own, k, shared.rank);
    struct quick_cut cut;
    const bool zero = found.bin == QUICK_ZERO || found.bin == QUICK_ZERO - 1; /* -0 is in this */
    cut.found = found.total >= k && found.bin >= QUICK_LOWEST && !zero;
    cut.above = found.above;
    cut.count = found.count;
    cut.low = cut.found ? quick_floor(found.bin) : (zero ? KEY_ZERO : KEY_NAN);
    cut.high = cut.found ? quick_floor(found.bin + 1) - 1 : KEY_MAX;
    return cut;
}

/* Marks of what is above the bin, and of what is in it. */
struct quick_marks {
    uint32_t above, in;
};

template <int SCORES>
__device__ __forceinline__ struct quick_marks quick_mark(const float (&scores)[SCORES],
                                                         const struct quick_cut &cut)
{
    const float low = __uint_as_float(key_floor_bits(cut.low));
    const float beyond = __uint_as_float(key_floor_bits(cut.high + 1));
    struct quick_marks marks = {0, 0};
#pragma unroll
    for (int j = 0; j < SCORES; j++) {
        marks.above |= scores[j] >= beyond ? 1u << j : 0u;
        marks.in |= scores[j] >= low ? 1u << j : 0u;
    }
    marks.in ^= marks.above;
    return marks;
}

/*
 * Puts positions of what is above the bin side by side in shared memory, and what is in it into the
 * list: keys and positions, both in no order. One prefix sum serves both.
 */
template <int SCORES>
__device__ __forceinline__ void quick_collect(const float (&scores)[SCORES],
                                              struct quick_marks marks, struct row_shared &shared)
{
    static_assert(QUICK_SCORES_MAX < 65536, "two counts share a word");
    const uint32_t own = (uint32_t)__popc(marks.above) | (uint32_t)__popc(marks.in) << 16;
    const uint32_t sum = warp_prefix(own);
    uint32_t slots = 0;
    if (lane_index() == 31) {
        slots = atomicAdd(&shared.staged, sum);
    }
    slots = __shfl_sync(WARP_ALL, slots, 31) + sum - own;
    const uint32_t position = (uint32_t)first_position<SCORES>();
    uint32_t near_slot = slots >> 16;
#pragma unroll
    for (int j = 0; j < SCORES; j++) {
        if ((marks.in >> j & 1u) != 0) {
            shared.near[near_slot++] = make_uint2(key_of(scores[j]), position + 32 * j);
        }
    }
    for (uint32_t slot = slots & 0xffffu; marks.above != 0; slot++) {
        const uint32_t j = 31u - (uint32_t)__clz((int)marks.above);
        marks.above ^= 1u << j;
        shared.stage[slot] = position + 32 * j;
    }
}

/* Calls ranked(entry, rank) for every listed one, rank 0 for the best: by score, equal ones by
 * position. After a barrier. */
template <int THREADS, class Ranked>
__device__ __forceinline__ void quick_rank(uint32_t count, const struct row_shared &shared,
                                           const Ranked &ranked)
{
    constexpr uint32_t TEAM = 4; /* choice: threads that share an entry's comparisons */
    const uint32_t member = threadIdx.x % TEAM;
    for (uint32_t i = threadIdx.x / TEAM; i - threadIdx.x / TEAM < count; i += THREADS / TEAM) {
        const uint2 entry = shared.near[min(i, count - 1)];
        uint32_t rank = 0;
#pragma unroll 4
        for (uint32_t other = member; other < count; other += TEAM) {
            const uint2 one = shared.near[other];
            rank += one.x > entry.x || (one.x == entry.x && one.y < entry.y) ? 1u : 0u;
        }
#pragma unroll
        for (uint32_t step = TEAM / 2; step > 0; step /= 2) {
            rank += __shfl_down_sync(WARP_ALL, rank, step);
        }
        if (member == 0 && i < count) {
            ranked(entry, rank);
        }
    }
}

/* Writes K positions in no order: those above the bin side by side, and what of the bin is
 * selected behind them, as soon as its rank is known. One barrier. */
template <int THREADS, int SCORES>
__device__ __forceinline__ void quick_write(const float (&scores)[SCORES],
                                            const struct quick_marks &marks,
                                            const struct quick_cut &cut, const struct sink &sink,
                                            uint32_t k, struct row_shared &shared)
{
    quick_collect<SCORES>(scores, marks, shared);
    block_sync<THREADS>();
    sink_put_staged<THREADS>(sink, shared.stage, cut.above);
    quick_rank<THREADS>(cut.count, shared, [&](const uint2 &entry, uint32_t rank) {
        if (cut.above + rank < k) {
            sink_put(sink, cut.above + rank, entry.y);
        }
    });
}

/* Marks of all that is selected, where the result is in order. Two barriers. */
template <int THREADS, int SCORES>
__device__ __forceinline__ uint32_t quick_select(const float (&scores)[SCORES],
                                                 const struct quick_marks &marks,
                                                 const struct quick_cut &cut, uint32_t k,
                                                 struct row_shared &shared)
{
    quick_collect<SCORES>(scores, {0, marks.in}, shared);
    block_sync<THREADS>();
    quick_rank<THREADS>(cut.count, shared, [&](const uint2 &entry, uint32_t rank) {
        if (cut.above + rank == k - 1) {
            shared.last = entry;
        }
    });
    block_sync<THREADS>();
    const uint2 last = shared.last;
    const uint32_t position = (uint32_t)first_position<SCORES>();
    uint32_t selected = marks.above;
#pragma unroll
    for (int j = 0; j < SCORES; j++) {
        if ((marks.in >> j & 1u) != 0) {
            const uint32_t key = key_of(scores[j]);
            const bool taken = key > last.x || (key == last.x && position + 32 * j <= last.y);
            selected |= taken ? 1u << j : 0u;
        }
    }
    return selected;
}

/* Selects from the row, or says false, having changed nothing: search_bin() then finds the cut. */
template <int THREADS, int SCORES>
__device__ __forceinline__ bool quick_row(const struct select_params &params, int32_t row,
                                          const float (&scores)[SCORES], const struct task &task,
                                          uint64_t *entries, struct quick_cut &cut,
                                          struct row_shared &shared)
{
    const uint32_t k = (uint32_t)task.k;
    cut = quick_find<THREADS, SCORES>(scores, k, shared);
    if (!cut.found || cut.count > QUICK_NEAR_MAX) {
        return false;
    }
    const struct sink sink = sink_of_row(task, params.args, row);
    const struct quick_marks marks = quick_mark<SCORES>(scores, cut);
    if (entries == nullptr && params.by_position == 0) {
        quick_write<THREADS, SCORES>(scores, marks, cut, sink, k, shared);
    } else {
        const uint32_t selected = quick_select<THREADS, SCORES>(scores, marks, cut, k, shared);
        write_ordered<THREADS, SCORES>(selected, sink, k, entries, shared);
    }
    return true;
}

/* The cut where a histogram was not enough: within its bin, if it was of any use. */
template <int THREADS, int SCORES>
__device__ __forceinline__ struct rank_cut search_bin(const struct register_source<SCORES> &source,
                                                      const struct quick_cut &bin, uint32_t k,
                                                      struct row_shared &shared)
{
    uint32_t low = bin.low, high = bin.high, below = 0;
    uint32_t shift = range_shift(KEY_MAX - low);
    if (bin.found) {
        if (bin.count > (uint32_t)source.length / 4) { /* probably a plateau */
            find_range<THREADS>(source, &low, &high, shared.rank);
            if (low == high) {
                const struct rank_cut cut = {low, k - bin.above, bin.above + bin.count == k};
                return cut;
            }
        }
        const uint32_t span = high - low;
        shift = range_shift(span + (span >> 9) + 1); /* the highest bin for what is above */
    }
    return find_cut<THREADS, true>(source, low, KEY_MAX, shift, k, shared.bins, shared.rank,
                                   &below);
}

} // namespace

#endif
