/*
 * row_quick.cuh - the short way through a row in registers, for as many rows as multiprocessors or
 * fewer, where what counts is how many steps follow each other:
 *
 *   count     all scores, by the first 11 or 12 bits of their float16, in one histogram
 *   find      the bin of the K-th best; where too many share it, a part of it, by a second one
 *   collect   positions of what is above that bin, and the few entries in it
 *   rank      each of these few among the others: every thread compares a few of them
 *
 * No sample, for that would be a histogram and a search more. Where one score, or zero, has all
 * that is left the cut is known; where too many scores share the part as well, or the K-th best is
 * a NaN or next to zero, the search of rank.cuh takes over.
 */
#ifndef TOPKSEL_CUDA_ROW_QUICK_CUH
#define TOPKSEL_CUDA_ROW_QUICK_CUH

#include "half_bins.cuh"
#include "row_stage.cuh"

namespace
{

/* Bits of a pattern that do not count (half_bins.cuh): more bins where rows are long, or the bin of
 * the K-th best would often have more than can be ranked. */
template <int THREADS, int SCORES>
static constexpr uint32_t quick_shift = (THREADS * SCORES > 8192) ? 4 : 5;

/* What the histogram says of a row. */
struct quick_cut {
    uint32_t ordered;   /* of the patterns in the bin of the K-th best the lowest, in their order */
    uint32_t above;     /* scores above it, or above the part that was looked for in it */
    uint32_t count;     /* scores in it, or in that part */
    uint32_t low, high; /* keys of the part, or of all there are in the bin */
    bool zero;          /* the K-th best was found to be zero, or next to it */
    bool found;         /* false: counts are of no use; the K-th best may be zero, or no number */
};

/* Counts the row and finds the bin of the K-th best. Three barriers; the bins are zero again. */
template <int THREADS, int SCORES>
__device__ __forceinline__ struct quick_cut quick_find(const float (&scores)[SCORES], uint32_t k,
                                                       struct row_shared &shared)
{
    constexpr uint32_t SHIFT = quick_shift<THREADS, SCORES>;
    typedef half_bins<SHIFT> bins;
    static_assert(bins::COUNT <= QUICK_BINS_MAX && SCORES % 2 == 0, "room, and two at a time");
#pragma unroll
    for (int j = 0; j < SCORES; j += 2) {
        count_half_pair<SHIFT>(half_pair(scores[j], scores[j + 1]), shared.bins);
    }
    block_sync<THREADS>();
    const struct rank_bin found = find_half_bin<THREADS, SHIFT>(shared.bins, k, shared.rank);
    struct quick_cut cut;
    cut.ordered = found.bin << SHIFT;
    cut.above = found.above;
    cut.count = found.count;
    cut.zero = found.bin == bins::ZERO || found.bin == bins::ZERO - 1; /* -0 is in this */
    cut.found = found.total >= k && found.bin >= bins::LOWEST && !cut.zero;
    return cut;
}

/* The float16, in both halves, of the lowest number whose pattern in order is this or higher. */
__device__ __forceinline__ uint32_t quick_bound(uint32_t ordered)
{
    const uint32_t half = ordered ^ (ordered >= 0x8000u ? 0x8000u : 0xffffu);
    return half | half << 16;
}

/* A pair is compared at once, as group_marks() of 16-bit scores does (score.cuh); the other way
 * round than it was counted, or the compiler would keep all pairs, for which there is no room. */
template <int THREADS, int SCORES>
__device__ __forceinline__ struct cut_marks quick_mark(const float (&scores)[SCORES],
                                                       const struct quick_cut &cut)
{
    const uint32_t low = quick_bound(cut.ordered);
    const uint32_t beyond = quick_bound(cut.ordered + (1u << quick_shift<THREADS, SCORES>));
    uint32_t from[2] = {0, 0}, above[2] = {0, 0};
#pragma unroll
    for (int j = 0; j < SCORES; j += 2) {
        const uint32_t pair = half_pair(scores[j + 1], scores[j]);
        const uint32_t places = 0x00010002u << j % 16;
        from[j / 16] |= half_pair_from(pair, low) & places;
        above[j / 16] |= half_pair_from(pair, beyond) & places;
    }
    struct cut_marks marks;
    marks.above = __byte_perm(above[0], above[1], 0x5410) | __byte_perm(above[0], above[1], 0x7632);
    marks.in = (__byte_perm(from[0], from[1], 0x5410) | __byte_perm(from[0], from[1], 0x7632)) ^
               marks.above;
    return marks;
}

/*
 * A range of keys of one sign, where a score is known by how far it is from the lowest: `factor` is
 * one, or minus one for negative numbers. For a score that is not in the range, or no number, the
 * distance is more than its span.
 */
struct quick_range {
    uint32_t factor, base;

    __device__ __forceinline__ quick_range(uint32_t low, bool positive)
        : factor(positive ? 1u : ~0u), base(positive ? KEY_ZERO - low : ~low)
    {
    }

    __device__ __forceinline__ uint32_t distance(float score) const
    {
        return __float_as_uint(score) * factor + base;
    }
};

/* Narrows the keys of a bin to those that occur in it. One barrier. */
template <int THREADS, int SCORES>
__device__ __forceinline__ void quick_narrow(const float (&scores)[SCORES], struct quick_cut &cut,
                                             struct row_shared &shared)
{
    const uint32_t beyond = half_floor(cut.ordered + (1u << quick_shift<THREADS, SCORES>));
    const uint32_t low = half_floor(cut.ordered), span = min(beyond - 1, KEY_PLUS_INF) - low;
    const quick_range range(low, cut.ordered >= 0x8000u);
    uint32_t least = ~0u, most = 0;
#pragma unroll
    for (int j = 0; j < SCORES; j++) {
        const uint32_t distance = range.distance(scores[j]);
        least = min(least, distance);
        most = distance <= span ? max(most, distance) : most;
    }
    widen_range(least, most, shared.rank.least, shared.rank.most);
    block_sync<THREADS>();
    cut.low = low + shared.rank.least;
    cut.high = low + shared.rank.most;
}

/*
 * Looks whether the K-th best is a zero, of either sign, as it often is where scores are cut off
 * there: then all zeros are what was found. The bins around have other numbers as well. One
 * barrier.
 */
template <int THREADS, int SCORES>
__device__ __forceinline__ void quick_zero(const float (&scores)[SCORES], uint32_t k,
                                           struct quick_cut &cut, struct row_shared &shared)
{
    static_assert(THREADS * SCORES < 65536, "two counts share a word");
    uint32_t above = 0, from = 0;
#pragma unroll
    for (int j = 0; j < SCORES; j++) {
        above += scores[j] > 0.0f ? 1u : 0u;
        from += scores[j] >= 0.0f ? 1u : 0u;
    }
    const uint32_t both = __reduce_add_sync(WARP_ALL, above | from << 16);
    if (lane_index() == 0) {
        atomicAdd(&shared.rank.most, both);
    }
    block_sync<THREADS>();
    cut.above = shared.rank.most & 0xffffu;
    cut.count = (shared.rank.most >> 16) - cut.above;
    cut.low = cut.high = KEY_ZERO;
    cut.found = cut.above < k && k <= cut.above + cut.count;
}

/*
 * Looks for the K-th best within a bin that has too many: a second histogram, of the keys that
 * occur in it. False where they are one key, or too many are left; else the marks of the part. Four
 * barriers; the bins are zero again.
 */
template <int THREADS, int SCORES>
__device__ __forceinline__ bool quick_look_within(const float (&scores)[SCORES], uint32_t k,
                                                  struct quick_cut &cut, struct cut_marks &marks,
                                                  struct row_shared &shared)
{
    constexpr int EACH = TOPK_BINS / THREADS;
    quick_narrow<THREADS, SCORES>(scores, cut, shared);
    if (cut.low == cut.high) {
        return false;
    }
    const quick_range range(cut.low, cut.ordered >= 0x8000u);
    const uint32_t span = cut.high - cut.low;
    const uint32_t shift = range_shift(span + (span >> 9) + 1); /* the highest bin for the rest */
#pragma unroll
    for (int j = 0; j < SCORES; j++) {
        const uint32_t distance = range.distance(scores[j]);
        atomicAdd(&shared.bins[distance <= span ? distance >> shift : TOPK_BINS - 1u], 1u);
    }
    block_sync<THREADS>();
    const uint32_t rest = THREADS * SCORES - cut.count;
    uint32_t *own_bins = shared.bins + TOPK_BINS - (threadIdx.x + 1) * EACH;
    uint32_t count[EACH];
    const uint32_t own = load_bins<EACH>(own_bins, count);
    clear_own<EACH>(own_bins);
    const struct rank_bin found =
        scan_counts<THREADS, EACH>(count, own, rest + k - cut.above, shared.rank);
    cut.above += found.above - rest;
    cut.count = found.count;
    cut.low += found.bin << shift;
    cut.high = min(cut.high, cut.low + (1u << shift) - 1u);
    if (cut.count > QUICK_NEAR_MAX) {
        return false;
    }
    marks.above = mark_from<SCORES>(scores, __uint_as_float(key_floor_bits(cut.high + 1)));
    marks.in = mark_from<SCORES>(scores, __uint_as_float(key_floor_bits(cut.low))) ^ marks.above;
    return true;
}

/* Whether the list's scores are read from memory once more: where a lane has many scores, few of
 * them marked, a loop over marks is shorter than a pass over all, but cannot reach a register. */
template <int SCORES>
static constexpr bool quick_fetches = SCORES > 16;

/*
 * Puts positions of what is above the bin side by side in shared memory, and what is in it into the
 * list: bits and positions, both in no order; with FETCH positions alone. One prefix sum serves
 * both. Without FETCH one pass does, without a loop over a lane's marks: for that all others wait
 * where one lane has many.
 */
template <int SCORES, bool FETCH>
__device__ __forceinline__ void quick_collect(const float (&scores)[SCORES], struct cut_marks marks,
                                              struct row_shared &shared)
{
    static_assert(QUICK_SCORES_MAX < 65536, "two counts share a word");
    const uint32_t own = (uint32_t)__popc(marks.above) | (uint32_t)__popc(marks.in) << 16;
    const uint32_t sum = warp_prefix(own);
    uint32_t slots = 0;
    if (lane_index() == 31) {
        slots = atomicAdd(&shared.staged, sum);
    }
    slots = __shfl_sync(WARP_ALL, slots, 31) + sum - own;
    const uint32_t position = (uint32_t)opaque(first_position<SCORES>());
    uint32_t *stage = &shared.stage[slots & 0xffffu];
    uint2 *near = &shared.near[slots >> 16];
    if constexpr (FETCH) {
        each_mark(marks.above, [&](uint32_t j) { *stage++ = position + 32 * j; });
        each_mark(marks.in, [&](uint32_t j) { (near++)->y = position + 32 * j; });
    } else {
#pragma unroll
        for (int j = 0; j < SCORES; j++) {
            if ((marks.above >> j & 1u) != 0) {
                *stage++ = position + 32 * j;
            }
            if ((marks.in >> j & 1u) != 0) {
                *near++ = make_uint2(__float_as_uint(scores[j]), position + 32 * j);
            }
        }
    }
}

/* An entry of the list as a number: less for a higher score, of equal ones for a lower position.
 * All in the list are of one sign. */
__device__ __forceinline__ uint64_t quick_entry(uint2 entry, bool positive)
{
    return (uint64_t)(positive ? ~entry.x : entry.x) << 32 | entry.y;
}

/* Calls ranked(entry, rank) for every listed one, rank 0 for the best. After a barrier. */
template <int THREADS, class Ranked>
__device__ __forceinline__ void quick_rank(const struct quick_cut &cut,
                                           const struct row_shared &shared, const Ranked &ranked)
{
    constexpr uint32_t TEAM = QUICK_TEAM, AT_ONCE = QUICK_AT_ONCE;
    const bool positive = cut.ordered >= 0x8000u;
    const uint32_t member = threadIdx.x % TEAM;
    for (uint32_t first = warp_index() * (32 / TEAM); first < cut.count; first += THREADS / TEAM) {
        const uint32_t i = first + lane_index() / TEAM;
        const uint2 entry = shared.near[min(i, cut.count - 1)];
        const uint64_t own = quick_entry(entry, positive);
        uint32_t rank = 0;
        for (uint32_t other = member; other < cut.count; other += TEAM * AT_ONCE) {
            uint2 one[AT_ONCE];
#pragma unroll
            for (uint32_t n = 0; n < AT_ONCE; n++) {
                one[n] = shared.near[other + n * TEAM];
            }
#pragma unroll
            for (uint32_t n = 0; n < AT_ONCE; n++) {
                const bool better = quick_entry(one[n], positive) < own;
                rank += better && other + n * TEAM < cut.count ? 1u : 0u;
            }
        }
#pragma unroll
        for (uint32_t step = TEAM / 2; step > 0; step /= 2) {
            rank += __shfl_down_sync(WARP_ALL, rank, step);
        }
        if (member == 0 && i < cut.count) {
            ranked(entry, rank);
        }
    }
}

/* The score of a listed entry, read once more, where the list has positions alone. */
template <int THREADS>
__device__ __forceinline__ uint32_t quick_fetch(const score_t *scores, uint32_t count,
                                                const struct row_shared &shared)
{
    static_assert(QUICK_NEAR_MAX <= THREADS, "each thread fetches a score");
    return threadIdx.x < count ? __float_as_uint(score_number(scores[shared.near[threadIdx.x].y]))
                               : 0;
}

/* Writes K positions in no order: those above the bin side by side, and what of the bin is
 * selected behind them, as soon as its rank is known. A score that is read once more may have
 * changed: then the rank is another, but each still has one of its own. Two barriers at most. */
template <int THREADS, int SCORES, bool LATE>
__device__ __forceinline__ void
quick_write(const struct select_params &params, const struct row_result &result,
            const float (&scores)[SCORES], const struct cut_marks &marks,
            const struct quick_cut &cut, struct row_shared &shared)
{
    const struct task &task = result.task;
    const int32_t row = result.row;
    constexpr bool ROOMY = row_is_roomy<THREADS, SCORES, true>;
    const uint32_t k = (uint32_t)task.k;
    struct sink sink;
    if constexpr (ROOMY) {
        sink = row_sink(result, shared);
    } else if (!LATE) {
        sink = sink_of_row(task, params.args, row);
    }
    constexpr bool FETCH = quick_fetches<SCORES>;
    quick_collect<SCORES, FETCH>(scores, marks, shared);
    if constexpr (ROOMY) {
        copies_wait();
    }
    block_sync<THREADS>();
    if (!ROOMY && LATE) { /* where registers are few: the scores are no more */
        sink = sink_of_row(task, params.args, row);
    }
    const uint32_t bits = FETCH ? quick_fetch<THREADS>(sink.scores, cut.count, shared) : 0;
    if constexpr (ROOMY) {
        put_staged<THREADS>(sink, cut.above, false, shared);
    } else {
        sink_put_staged<THREADS, LOOK_UPS>(sink, shared.stage, cut.above);
    }
    if (FETCH) {
        if (threadIdx.x < cut.count) {
            shared.near[threadIdx.x].x = bits;
        }
        block_sync<THREADS>();
    }
    quick_rank<THREADS>(cut, shared, [&](const uint2 &entry, uint32_t rank) {
        if (cut.above + rank < k) {
            sink_put(sink, cut.above + rank, entry.y);
        }
    });
}

/*
 * Writes K positions in order. Who ranks a score of the bin notes that it is selected, in the marks
 * of the lane that has its place, and for the warp; so that with the ranks all know where to write.
 * TURNED: marks are turned over before, while scores of the list are on their way. Two barriers, or
 * more.
 */
template <int THREADS, int SCORES>
__device__ __forceinline__ void
quick_write_ordered(const struct row_result &result, const float (&scores)[SCORES],
                    const struct cut_marks &marks, const struct quick_cut &cut, uint64_t *entries,
                    struct row_shared &shared)
{
    static_assert(THREADS <= QUICK_BINS_MAX, "a word for each thread");
    constexpr bool TURNED = SCORES > 16, FETCH = quick_fetches<SCORES>;
    uint32_t *words = shared.bins; /* zero before and after */
    const uint32_t above = __reduce_add_sync(WARP_ALL, (uint32_t)__popc(marks.above));
    if (!TURNED) {
        words[threadIdx.x] = marks.above;
    }
    if (lane_index() == 0) {
        shared.selected[warp_index()] = above;
    }
    quick_collect<SCORES, FETCH>(scores, {0, marks.in}, shared);
    block_sync<THREADS>();
    if (FETCH) {
        const score_t *row = task_row(result.task, result.row);
        const uint32_t bits = quick_fetch<THREADS>(row, cut.count, shared);
        words[threadIdx.x] = turn_marks<SCORES>(marks.above);
        if (threadIdx.x < cut.count) {
            shared.near[threadIdx.x].x = bits;
        }
        block_sync<THREADS>();
    }
    quick_rank<THREADS>(cut, shared, [&](const uint2 &entry, uint32_t rank) {
        if (cut.above + rank < (uint32_t)result.k) {
            const uint32_t warp = entry.y / (32 * SCORES), within = entry.y % (32 * SCORES);
            const uint32_t lane = TURNED ? within / SCORES : within % 32;
            const uint32_t bit = TURNED ? within % SCORES : within / 32;
            atomicOr(&words[warp * 32 + lane], 1u << bit);
            atomicAdd(&shared.selected[warp], 1u);
        }
    });
    copies_wait();
    block_sync<THREADS>();
    const uint32_t selected = words[threadIdx.x], slot = warp_slot<THREADS>(shared.selected);
    words[threadIdx.x] = 0;
    if constexpr (TURNED) {
        write_turned<THREADS, SCORES>(selected, slot, row_sink(result, shared), (uint32_t)result.k,
                                      entries, shared);
    } else {
        write_selected<THREADS, SCORES>(result, selected, slot, entries, shared);
    }
}

/* Selects from the row, or says false, having written nothing: search_bin() then finds the cut.
 * LATE: see quick_write(). */
template <int THREADS, int SCORES, bool LATE, bool ORDERED>
__device__ __forceinline__ bool quick_row(const struct select_params &params,
                                          const struct row_result &result,
                                          const float (&scores)[SCORES], uint64_t *entries,
                                          struct quick_cut &cut, struct row_shared &shared)
{
    const uint32_t k = (uint32_t)result.k;
    cut = quick_find<THREADS, SCORES>(scores, k, shared);
    if constexpr (LATE && ORDERED) {
        fetch_pages<THREADS>(result, shared); /* those of the row before have been used */
    }
    if (!cut.found) {
        if (cut.zero) {
            quick_zero<THREADS, SCORES>(scores, k, cut, shared);
        }
        return false;
    }
    struct cut_marks marks;
    if (cut.count <= QUICK_NEAR_MAX) {
        marks = quick_mark<THREADS, SCORES>(scores, cut);
    } else if (!quick_look_within<THREADS, SCORES>(scores, k, cut, marks, shared)) {
        return false;
    }
    if constexpr (ORDERED) {
        quick_write_ordered<THREADS, SCORES>(result, scores, marks, cut, entries, shared);
    } else {
        quick_write<THREADS, SCORES, LATE>(params, result, scores, marks, cut, shared);
    }
    return true;
}

/* The cut where histograms were not enough: within what they left, if they were of any use. */
template <int THREADS, int SCORES>
__device__ __forceinline__ struct rank_cut search_bin(const struct register_source<SCORES> &source,
                                                      const struct quick_cut &bin, uint32_t k,
                                                      struct row_shared &shared)
{
    if (bin.found && bin.low == bin.high) { /* a plateau */
        const struct rank_cut cut = {bin.low, k - bin.above, bin.above + bin.count == k};
        return cut;
    }
    uint32_t low = bin.zero ? KEY_ZERO : KEY_NAN, below = 0;
    uint32_t shift = range_shift(KEY_MAX - low);
    if (bin.found) {
        const uint32_t span = bin.high - bin.low;
        low = bin.low;
        shift = range_shift(span + (span >> 9) + 1); /* the highest bin for what is above */
    }
    return find_cut<THREADS, true>(source, low, KEY_MAX, shift, k, shared.bins, shared.rank,
                                   &below);
}

} // namespace

#endif
