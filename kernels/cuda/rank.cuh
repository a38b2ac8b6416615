/*
 * rank.cuh - the K-th highest of the keys a block holds, by histograms over ever narrower ranges.
 *
 * Every function here is called by all THREADS threads of a block (or of its scanning warps) at
 * once and synchronises them with barrier 1; barrier 0 belongs to the whole block.
 */
#ifndef TOPKSEL_CUDA_RANK_CUH
#define TOPKSEL_CUDA_RANK_CUH

#include "cuda/ptx.cuh"
#include "key.cuh"
#include "score.cuh"

#define WARP_ALL 0xffffffffu
#define RANK_LIST 32 /* a boundary group this small is ranked by comparison, one warp wide */

static __device__ __forceinline__ uint32_t lane_index()
{
    return threadIdx.x & 31u;
}

static __device__ __forceinline__ uint32_t warp_index()
{
    return threadIdx.x >> 5;
}

static __device__ __forceinline__ uint32_t lanes_below()
{
    return (1u << lane_index()) - 1u;
}

/* Inclusive prefix sum over a warp. */
static __device__ __forceinline__ uint32_t warp_prefix(uint32_t value)
{
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        uint32_t below = __shfl_up_sync(WARP_ALL, value, step);
        value += lane_index() >= (uint32_t)step ? below : 0u;
    }
    return value;
}

struct rank_bin {
    uint32_t bin;
    uint32_t above; /* counts in higher bins */
    uint32_t count; /* counts in this bin */
    uint32_t total; /* counts in all bins; when below the rank asked, the other fields are void */
};

/* Shared memory of a search. */
struct rank_shared {
    alignas(16) struct rank_bin found[2];
    uint32_t totals[32];      /* counts of each warp's bins */
    uint32_t list[RANK_LIST]; /* keys of the boundary group */
    uint32_t list_count;      /* 0 between searches */
    uint32_t least, most;     /* offsets in a range */
};

/* Loads EACH neighbouring bins, 16 bytes at a time where that many are; returns their sum. */
template <int EACH>
static __device__ __forceinline__ uint32_t load_bins(const uint32_t *bins, uint32_t *count)
{
    if (EACH % 4 == 0) {
#pragma unroll
        for (int i = 0; i < EACH / 4; i++) {
            uint4 four = reinterpret_cast<const uint4 *>(bins)[i];
            count[4 * i] = four.x;
            count[4 * i + 1] = four.y;
            count[4 * i + 2] = four.z;
            count[4 * i + 3] = four.w;
        }
    } else {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            count[i] = bins[i];
        }
    }
    uint32_t sum = 0;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        sum += count[i];
    }
    return sum;
}

template <int THREADS>
static __device__ __forceinline__ void clear_bins(uint32_t *bins)
{
    constexpr int QUADS = TOPK_BINS / 4; /* cleared 16 bytes at a time */
    uint4 *quads = reinterpret_cast<uint4 *>(bins);
    if (QUADS >= THREADS) {
#pragma unroll
        for (int i = 0; i < QUADS / THREADS; i++) {
            quads[threadIdx.x + i * THREADS] = make_uint4(0, 0, 0, 0);
        }
    } else if (threadIdx.x < QUADS) {
        quads[threadIdx.x] = make_uint4(0, 0, 0, 0);
    }
}

/* Clears EACH neighbouring bins of a thread. */
template <int EACH>
static __device__ __forceinline__ void clear_own(uint32_t *bins)
{
    if (EACH % 4 == 0) { /* 16 bytes at a time */
#pragma unroll
        for (int i = 0; i < EACH / 4; i++) {
            reinterpret_cast<uint4 *>(bins)[i] = make_uint4(0, 0, 0, 0);
        }
    } else {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            bins[i] = 0;
        }
    }
}

/* The bin of a thread's own that holds rank `need`: it has those from `first`, and there are
 * `above` in higher ones. Its lowest when none does. No comparison waits for another. */
template <int EACH>
static __device__ __forceinline__ struct rank_bin rank_within(const uint32_t (&count)[EACH],
                                                              uint32_t first, uint32_t above,
                                                              uint32_t need, uint32_t total)
{
    uint32_t higher[EACH]; /* counts in bins above that one */
    higher[EACH - 1] = above;
#pragma unroll
    for (int i = EACH - 1; i > 0; i--) {
        higher[i - 1] = higher[i] + count[i];
    }
    struct rank_bin found = {first + EACH - 1, above, count[EACH - 1], total};
#pragma unroll
    for (int i = EACH - 2; i >= 0; i--) {
        if (higher[i] < need) {
            found.bin = first + i;
            found.above = higher[i];
            found.count = count[i];
        }
    }
    return found;
}

/*
 * The bin that holds rank `need`, from the counts that each thread has of EACH bins, whose sum is
 * `own`: thread 0 of the highest. As find_rank() below by other means: every warp sums upwards at
 * once, so that the way to the answer is shorter by a third, at more instructions. Two barriers.
 */
template <int THREADS, int EACH>
static __device__ __forceinline__ struct rank_bin
scan_counts(const uint32_t (&count)[EACH], uint32_t own, uint32_t need, struct rank_shared &shared)
{
    const uint32_t prefix = warp_prefix(own);
    if (lane_index() == 31) {
        shared.totals[warp_index()] = prefix;
    }
    block_sync<THREADS>();
    const uint32_t other = lane_index() < THREADS / 32 ? shared.totals[lane_index()] : 0;
    const uint32_t total = __reduce_add_sync(WARP_ALL, other);
    uint32_t above = __reduce_add_sync(WARP_ALL, lane_index() < warp_index() ? other : 0);
    above += prefix - own;
    if (above < need && need <= above + own) { /* one thread */
        const uint32_t first = EACH * THREADS - (threadIdx.x + 1) * EACH;
        shared.found[0] = rank_within(count, first, above, need, total);
    }
    block_sync<THREADS>();
    struct rank_bin found = {0, 0, 0, total};
    if (total >= need) {
        const uint4 four = *reinterpret_cast<const uint4 *>(&shared.found[0]);
        found.bin = four.x;
        found.above = four.y;
        found.count = four.z;
    }
    return found;
}

/* The bin that holds rank `need`, as scan_counts() finds it, of bins which it clears: they may be
 * used again after its two barriers. */
template <int THREADS>
static __device__ __forceinline__ struct rank_bin scan_bins(uint32_t *bins, uint32_t need,
                                                            struct rank_shared &shared)
{
    constexpr int EACH = TOPK_BINS / THREADS;
    uint32_t *own_bins = bins + TOPK_BINS - (threadIdx.x + 1) * EACH;
    uint32_t count[EACH];
    const uint32_t own = load_bins<EACH>(own_bins, count);
    clear_own<EACH>(own_bins);
    return scan_counts<THREADS, EACH>(count, own, need, shared);
}

/*
 * The bins that hold ranks `need` and `other` (from 1, from the highest bin; for `other`, 0 gives
 * the highest bin). The counts must be complete and a barrier passed. Two barriers inside; the
 * result is valid in all threads, and `bins` may be cleared at once. Every warp learns from the
 * sums of all whether a rank is in its own bins; only there is it looked for.
 */
template <int THREADS, bool PAIR>
static __device__ __forceinline__ struct rank_bin
find_ranks(const uint32_t *bins, struct rank_shared &shared, uint32_t need, uint32_t other,
           uint32_t *other_bin_p)
{
    constexpr int WARPS = THREADS / 32, EACH = TOPK_BINS / THREADS;
    static_assert(EACH >= 1 && EACH * THREADS == TOPK_BINS, "every thread owns the same bins");
    /* Warps and lanes own bins from the top down; a lane's own bins ascend in memory. */
    const uint32_t first = TOPK_BINS - (threadIdx.x + 1) * EACH;
    uint32_t count[EACH];
    const uint32_t own = load_bins<EACH>(bins + first, count);
    const uint32_t sum = __reduce_add_sync(WARP_ALL, own);
    if (lane_index() == 0) {
        shared.totals[warp_index()] = sum;
    }
    block_sync<THREADS>();
    const uint32_t group = lane_index() < WARPS ? shared.totals[lane_index()] : 0;
    const uint32_t total = __reduce_add_sync(WARP_ALL, group);
    const uint32_t before = __reduce_add_sync(WARP_ALL, lane_index() < warp_index() ? group : 0);
    const bool here = before < need && need <= before + sum;
    const bool other_here = PAIR && before < other && other <= before + sum;
    if (here || other_here) {
        const uint32_t reached = before + warp_prefix(own), above = reached - own;
        if (above < need && need <= reached) { /* one thread */
            shared.found[0] = rank_within(count, first, above, need, total);
        }
        if (PAIR && above < other && other <= reached) {
            shared.found[1] = rank_within(count, first, above, other, total);
        }
    }
    block_sync<THREADS>();
    if (PAIR) {
        *other_bin_p = other == 0 ? TOPK_BINS - 1u : (other <= total ? shared.found[1].bin : 0u);
    }
    struct rank_bin result = {0, 0, 0, total};
    if (need <= total) {
        const uint4 found = *reinterpret_cast<const uint4 *>(&shared.found[0]);
        result.bin = found.x;
        result.above = found.y;
        result.count = found.z;
    }
    return result;
}

/* The bin that holds rank `need`; see find_ranks. */
template <int THREADS>
static __device__ __forceinline__ struct rank_bin
find_rank(const uint32_t *bins, struct rank_shared &shared, uint32_t need)
{
    return find_ranks<THREADS, false>(bins, shared, need, 0, nullptr);
}

/*
 * What is selected: every key above `key`, and of those equal to it the first `take` in position
 * order. `all`: every key of at least `key` (which then need not be a key that occurs).
 */
struct rank_cut {
    uint32_t key, take;
    bool all;
};

/* Ranks a listed boundary group of `count` keys by comparison; every warp does so for itself. */
static __device__ __forceinline__ struct rank_cut rank_list(const uint32_t *list, uint32_t count,
                                                            uint32_t need)
{
    uint32_t key = lane_index() < count ? list[lane_index()] : 0;
    uint32_t greater = 0, equal = 0;
    /* Lanes beyond the last key have 0, which is greater than none. */
    for (uint32_t first = 0; first < count; first += 4) {
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            const uint32_t other = __shfl_sync(WARP_ALL, key, (int)(first + i));
            greater += other > key ? 1u : 0u;
            equal += other == key ? 1u : 0u;
        }
    }
    bool holds = lane_index() < count && greater < need && need <= greater + equal;
    int owner = __ffs((int)__ballot_sync(WARP_ALL, holds)) - 1;
    struct rank_cut cut;
    cut.key = __shfl_sync(WARP_ALL, key, owner);
    cut.take = need - __shfl_sync(WARP_ALL, greater, owner);
    cut.all = cut.take == __shfl_sync(WARP_ALL, equal, owner);
    return cut;
}

/*
 * A first bin width when the search starts at a boundary: 1024 bins a binade over two binades; or,
 * where the boundary is no positive score, the whole range.
 */
static __device__ __forceinline__ uint32_t first_shift(uint32_t low)
{
    return low > KEY_ZERO ? 13 : range_shift(KEY_MAX - low);
}

/* Widens a range in shared memory to what the lanes of a warp have found: where a bin has too many,
 * it is looked into once more by the keys that occur in it. */
static __device__ __forceinline__ void widen_range(uint32_t least, uint32_t most,
                                                   uint32_t &shared_least, uint32_t &shared_most)
{
    least = __reduce_min_sync(WARP_ALL, least);
    most = __reduce_max_sync(WARP_ALL, most);
    if (lane_index() == 0) {
        atomicMin(&shared_least, least);
        atomicMax(&shared_most, most);
    }
}

/*
 * Narrows [low, high] to the keys of a source that occur in it; at least one does (else the range
 * becomes [low - 1, low]). Two barriers, and the caller passes another before the next call. A
 * plateau is found so at once, where histograms would take one round for every 11 bits.
 */
template <int THREADS, class Source>
static __device__ __forceinline__ void find_range(const Source &source, uint32_t *low_p,
                                                  uint32_t *high_p, struct rank_shared &shared)
{
    if (threadIdx.x == 0) {
        shared.least = KEY_MAX;
        shared.most = 0;
    }
    uint32_t least = KEY_MAX, most = 0;
    source.each_in(*low_p, *high_p, [&](uint32_t offset) {
        least = min(least, offset);
        most = max(most, offset);
    });
    block_sync<THREADS>();
    widen_range(least, most, shared.least, shared.most);
    block_sync<THREADS>();
    *high_p = *low_p + shared.most;
    *low_p += shared.least;
}

/*
 * Counts keys of [low, high] in bins of 2^shift: see find_cut. A source may have overloads of these
 * three that are faster for it.
 */
template <class Source>
static __device__ __forceinline__ void count_keys(const Source &source, uint32_t low, uint32_t high,
                                                  uint32_t shift, uint32_t *bins)
{
    source.each_in(low, high, [&](uint32_t offset) {
        uint32_t bin = offset == 0 ? 0 : ((offset - 1) >> shift) + 1;
        atomicAdd(&bins[min(bin, TOPK_BINS - 1u)], 1u);
    });
}

/* Whether count_keys gives `low` the lowest bin alone. */
template <class Source>
static __device__ __forceinline__ constexpr bool lowest_key_alone(const Source &)
{
    return true;
}

/* Whether the keys of a source are those of scores. */
template <class Source>
static __device__ __forceinline__ constexpr bool has_score_keys(const Source &)
{
    return false;
}

/*
 * Whether 2^shift keys from `low` on, one of which occurs, have room for one score of 16 bits only;
 * its key then replaces `low`. Of these scores many are equal: a plateau is known without a look.
 */
static __device__ __forceinline__ bool is_one_score(uint32_t &low, uint32_t shift)
{
    if (SCORE_KEY_SHIFT == 0 || shift > SCORE_KEY_SHIFT || low < KEY_ZERO) {
        return false;
    }
    low = (low + (1u << SCORE_KEY_SHIFT) - 1u) >> SCORE_KEY_SHIFT << SCORE_KEY_SHIFT;
    return true;
}

/* Lists the keys of [low, high], of which there are at most RANK_LIST. */
template <class Source>
static __device__ __forceinline__ void list_keys(const Source &source, uint32_t low, uint32_t high,
                                                 struct rank_shared &shared)
{
    source.each_in(low, high, [&](uint32_t offset) {
        shared.list[atomicAdd(&shared.list_count, 1u)] = low + offset;
    });
}

/* What a search has come to when it stops early: every key above `high` is selected, and `take` of
 * the `count` keys in [low, high]. */
struct rank_group {
    uint32_t low, high, take, count;
};

/*
 * The cut that selects `need` keys of a source.
 *
 * `source.each_in(low, high, visit)` calls visit(key - low) for every key of the calling thread
 * within [low, high], the same ones each time. At least `need` keys are >= KEY_NAN. (Of a source
 * that breaks this, since it is memory that changes, the cut is wrong, but found.) The search
 * starts in [low, high], in bins of 2^shift keys; keys above high must not exist. The lowest bin
 * may take `low` alone, so that a plateau there is found at once; the highest takes all that is
 * above. When fewer than `need` keys are >= low, the search goes on below, and *below_p counts
 * that. LIST: whether a pass over the source is cheap, so that a small group is collected, and a
 * plateau looked for before another histogram. FEW: with a group of so many keys or fewer the
 * search ends, and leaves that to the caller; *group_p is then set in any case (count is all ones
 * where it is not known, of a plateau). Few warps then search: all of them at once.
 *
 * bins[] is zero at the call, and again after the caller's next barrier. Four barriers for a search
 * that ends in its first range.
 */
template <int THREADS, bool LIST, uint32_t FEW = 0, class Source>
static __device__ __forceinline__ struct rank_cut
find_cut(const Source &source, uint32_t low, uint32_t high, uint32_t shift, uint32_t need,
         uint32_t *bins, struct rank_shared &shared, uint32_t *below_p,
         struct rank_group *group_p = nullptr)
{
    struct rank_cut cut;
    uint32_t count = 0;
    for (;;) {
        count_keys(source, low, high, shift, bins);
        block_sync<THREADS>();
        struct rank_bin found;
        if constexpr (FEW > 0) {
            found = scan_bins<THREADS>(bins, need, shared);
        } else {
            found = find_rank<THREADS>(bins, shared, need);
            clear_bins<THREADS>(bins);
        }
        if (found.total < need) { /* the proposed range was too high */
            if (low <= KEY_NAN) { /* or the source changed: all that is left, if anything */
                cut = {low, need, true};
                count = need;
                break;
            }
            need -= found.total;
            high = low - 1;
            low = KEY_NAN;
            *below_p += 1;
        } else {
            need -= found.above;
            if (lowest_key_alone(source) && found.bin == 0) {
                high = low;
            } else {
                low +=
                    lowest_key_alone(source) ? ((found.bin - 1) << shift) + 1 : found.bin << shift;
                if (found.bin < TOPK_BINS - 1) {
                    high = low + min(high - low, (1u << shift) - 1u);
                }
            }
            cut.key = low;
            cut.take = need;
            cut.all = found.count == need;
            count = found.count;
            if (cut.all || low == high) {
                break;
            }
            if (has_score_keys(source) && found.bin < TOPK_BINS - 1 && is_one_score(low, shift)) {
                cut.key = high = low;
                break;
            }
            if (FEW > 0 && found.count <= FEW) {
                break;
            }
            if (LIST && FEW == 0 && found.count <= RANK_LIST) {
                list_keys(source, low, high, shared);
                block_sync<THREADS>();
                if (threadIdx.x == 0) {
                    shared.list_count = 0;
                }
                cut = rank_list(shared.list, found.count, need);
                break;
            }
        }
        if (LIST) {
            find_range<THREADS>(source, &low, &high, shared);
        } else {
            block_sync<THREADS>();
        }
        if (low == high) { /* a plateau: as many of it as are still needed */
            cut.key = low;
            cut.take = need;
            cut.all = false;
            count = KEY_MAX;
            break;
        }
        shift = range_shift(high - low);
    }
    if (FEW > 0) {
        *group_p = {low, high, cut.take, count};
    }
    return cut;
}

#endif
