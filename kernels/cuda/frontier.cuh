/*
 * frontier.cuh - the candidates of a row: admitted while the row streams past, in any order, never
 * more than fit.
 *
 * When the buffer overflows it is cut to the best K so far. The K-th of them is a proven lower
 * bound of the answer, so the boundary rises to it, and a row is read once whatever its scores.
 * Scores equal to the K-th enter only at positions up to its own: K that rank higher are held.
 *
 * Functions that take a frontier_shared are inlined, so that the compiler knows the address space;
 * with generic addresses the shared atomics become loops.
 */
#ifndef TOPKSEL_CUDA_FRONTIER_CUH
#define TOPKSEL_CUDA_FRONTIER_CUH

#include "boundary.cuh"
#include "emit.cuh"
#include "rank.cuh"

template <int CANDIDATES>
struct frontier_shared {
    alignas(16) float scores[CANDIDATES];
    alignas(16) uint32_t positions[CANDIDATES];
    uint32_t count;  /* reserved; beyond CANDIDATES the buffer has overflowed */
    uint32_t stored; /* after an overflow: held; else all ones */
    uint32_t k;
    uint32_t length;  /* positions are below */
    uint32_t lowest;  /* no key held is lower */
    uint32_t shift;   /* of the bins in which a search from there on starts */
    uint32_t was_cut; /* 1: the buffer had to be cut */
};

#define GROUP_LIST 128 /* choice: a group of so many is ranked by comparison, an entry a thread */

/* What a selection among candidates needs beside them. Both histograms are zero before each. */
struct finish_shared {
    alignas(16) uint32_t bins[TOPK_BINS];   /* exact search; with `more`: the sort buffer */
    alignas(16) uint32_t more[TOPK_BINS];   /* bits of positions; bounds of parts; selected */
    alignas(16) uint64_t group[GROUP_LIST]; /* entries of a group, as order.cuh sorts them */
    struct rank_shared rank;
    struct emit_shared emit;
};

/* The selected among candidates: keys above `key`, and those equal up to a position. */
struct selection {
    uint32_t key, position;
};

static __device__ __forceinline__ bool is_selected(const struct selection &selection, uint32_t key,
                                                   uint32_t position)
{
    return key > selection.key || (key == selection.key && position <= selection.position);
}

/* Choice: from so many marks of a chunk on, storing place by place is quicker. */
#define FRONTIER_DENSE 96

/* What is admitted: scores that reach `score`; from position `until` on, those that reach `later`.
 */
struct admission {
    score_bound score, later; /* never NaN but to admit nothing */
    uint32_t until;
    uint32_t everything; /* all ones: every score is admitted before `until`, NaN too; else 0 */
};

/* Admits keys above `low`, and those equal to it at positions below `until`. */
static __device__ __forceinline__ struct admission admission_of(uint32_t low, uint32_t until)
{
    const score_bound score = bound_from(__uint_as_float(key_floor_bits(low)));
    struct admission admission = {score, score, until, low <= KEY_NAN ? 0xffffffffu : 0u};
    if (until != 0xffffffffu) {
        admission.later = bound_from(__uint_as_float(key_floor_bits(low + 1)));
    }
    return admission;
}

/* The place in a chunk that bit i of a lane's marks stands for: 16 bytes of it are the lane's own
 * neighbours, then come those of the other lanes. */
static __device__ __forceinline__ uint32_t mark_place(uint32_t i)
{
    return SCORE_GROUP * lane_index() + i % SCORE_GROUP + 32 * (i - i % SCORE_GROUP);
}

/* Nothing is held; one thread. */
template <int CANDIDATES>
static __device__ __forceinline__ void frontier_clear(struct frontier_shared<CANDIDATES> &shared)
{
    shared.count = 0;
    shared.stored = 0xffffffffu;
}

/* What is known of the candidates before any is looked at; one thread, then a barrier. */
template <int CANDIDATES>
static __device__ __forceinline__ void frontier_begin(const struct boundary &boundary, uint32_t k,
                                                      uint32_t length,
                                                      struct frontier_shared<CANDIDATES> &shared)
{
    shared.k = k;
    shared.length = length;
    shared.lowest = boundary.key;
    shared.shift = boundary.shift;
    shared.was_cut = 0;
}

/*
 * Stores the marked, each lane its own from `slot` on, `step` apart: as many steps for any marks.
 * Scores are read eight at a time before any is stored, so that no read waits for a store.
 */
template <int CANDIDATES, class Read>
static __device__ __forceinline__ void
frontier_store_dense(struct frontier_shared<CANDIDATES> &shared, uint32_t marks,
                     uint32_t chunk_position, uint32_t slot, uint32_t step, const Read &read)
{
    constexpr uint32_t BATCH = 8;
    static_assert(BATCH % SCORE_GROUP == 0, "places of a batch lie as those of the first");
#pragma unroll 1
    for (uint32_t first = mark_place(0); first < 32 * 32; first += 32 * BATCH, marks >>= BATCH) {
        float score[BATCH];
#pragma unroll
        for (uint32_t i = 0; i < BATCH; i++) {
            const uint32_t place = first + mark_place(i) - mark_place(0);
            score[i] = (marks >> i & 1u) != 0 ? read(place) : 0.0f;
        }
#pragma unroll
        for (uint32_t i = 0; i < BATCH; i++) {
            if ((marks >> i & 1u) != 0) {
                shared.scores[slot] = score[i];
                shared.positions[slot] = chunk_position + first + mark_place(i) - mark_place(0);
                slot += step;
            }
        }
    }
}

/*
 * Admits the marked of a warp's chunk (mark_place), which starts at a position. One warp calls.
 * read(place) gives a score. Returns false when they do not fit: nothing is stored then, and the
 * buffer must be cut.
 */
template <int CANDIDATES, class Read>
static __device__ __forceinline__ bool frontier_admit(struct frontier_shared<CANDIDATES> &shared,
                                                      uint32_t marks, uint32_t chunk_position,
                                                      const Read &read)
{
    if (!__any_sync(WARP_ALL, marks != 0)) {
        return true;
    }
    const uint32_t own = (uint32_t)__popc(marks), all = __reduce_add_sync(WARP_ALL, own);
    uint32_t base = 0;
    if (lane_index() == 0) {
        base = atomicAdd(&shared.count, all);
    }
    uint32_t slot = warp_prefix(own) - own; /* while the atomic is under way */
    base = __shfl_sync(WARP_ALL, base, 0);
    if (base + all > CANDIDATES) {
        if (lane_index() == 0) {
            atomicMin(&shared.stored, base);
        }
        return false;
    }
    if (all >= FRONTIER_DENSE) {
        /* Of a whole chunk the lanes' entries lie side by side, or all would be in one bank. */
        const bool whole = all == 32 * 32;
        slot = base + (whole ? lane_index() : slot);
        frontier_store_dense(shared, marks, chunk_position, slot, whole ? 32 : 1, read);
        return true;
    }
    slot += base;
    while (marks != 0) {
        const uint32_t i = (uint32_t)__ffs((int)marks) - 1, place = mark_place(i);
        marks &= marks - 1;
        shared.scores[slot] = read(place);
        shared.positions[slot] = chunk_position + place;
        slot++;
    }
    return true;
}

/*
 * How candidates are dealt to THREADS threads where each is looked at: four neighbours at a time,
 * and those that are left one by one to the last threads. Calls visit(score, bit) for every one of
 * the calling thread's, with a bit of a word for each: as candidate_at(). A short loop: code that
 * runs once a row is fetched each time, and takes its room from that of the scanning warps.
 */
#define SINGLE_BIT 31 /* of what is left; the others from bit 0 on */
template <int THREADS, class Visit>
static __device__ __forceinline__ void each_score(const float *scores, uint32_t count,
                                                  const Visit &visit)
{
    const float4 *quads = reinterpret_cast<const float4 *>(scores);
    uint32_t bit = 1;
#pragma unroll 1
    for (uint32_t quad = threadIdx.x; quad < count / 4; quad += THREADS, bit <<= 4) {
        const float4 four = quads[quad];
        visit(four.x, bit);
        visit(four.y, bit << 1);
        visit(four.z, bit << 2);
        visit(four.w, bit << 3);
    }
    if (threadIdx.x + count % 4 >= THREADS) {
        visit(scores[count - (THREADS - threadIdx.x)], 1u << SINGLE_BIT);
    }
}

/* Which candidate a bit of the calling thread's stands for; for few. */
template <int THREADS>
static __device__ __forceinline__ uint32_t candidate_at(uint32_t bit, uint32_t count)
{
    return bit == SINGLE_BIT ? count - (THREADS - threadIdx.x)
                             : 4 * (threadIdx.x + bit / 4 * THREADS) + bit % 4;
}

/* The candidates as a source of keys (rank.cuh). */
template <int THREADS>
struct candidate_source {
    const float *scores;
    uint32_t count, lowest; /* no key is lower */

    template <class Visit>
    __device__ __forceinline__ void each_in(uint32_t low, uint32_t high, const Visit &visit) const
    {
#pragma unroll 4
        for (uint32_t i = threadIdx.x; i < count; i += THREADS) {
            uint32_t key = key_of(scores[i]);
            if (key >= low && key <= high) {
                visit(key - low);
            }
        }
    }
};

/* count_keys for the common case: all keys are those of positive scores, and none is below low. */
template <int THREADS>
static __device__ __forceinline__ void count_keys(const struct candidate_source<THREADS> &source,
                                                  uint32_t low, uint32_t high, uint32_t shift,
                                                  uint32_t *bins)
{
    if (low > KEY_ZERO && low == source.lowest && high == KEY_MAX) {
        const uint32_t bias = (1u << shift) - 1u - key_floor_bits(low); /* low has bin 0 alone */
        each_score<THREADS>(source.scores, source.count, [&](float score, uint32_t) {
            const uint32_t bin = (__float_as_uint(score) + bias) >> shift;
            atomicAdd(&bins[min(bin, TOPK_BINS - 1u)], 1u);
        });
        return;
    }
    source.each_in(low, high, [&](uint32_t offset) {
        uint32_t bin = offset == 0 ? 0 : ((offset - 1) >> shift) + 1;
        atomicAdd(&bins[min(bin, TOPK_BINS - 1u)], 1u);
    });
}

template <int THREADS>
static __device__ __forceinline__ constexpr bool
has_score_keys(const struct candidate_source<THREADS> &)
{
    return true;
}

/* The positions of the candidates with one key, the lowest as the highest key. */
template <int THREADS>
struct position_source {
    const float *scores;
    const uint32_t *positions;
    uint32_t count, key;

    template <class Visit>
    __device__ __forceinline__ void each_in(uint32_t low, uint32_t high, const Visit &visit) const
    {
#pragma unroll 4
        for (uint32_t i = threadIdx.x; i < count; i += THREADS) {
            uint32_t place = ~positions[i];
            if (key_of(scores[i]) == key && place >= low && place <= high) {
                visit(place - low);
            }
        }
    }
};

/* How the best k of `count` candidates, at least k, are told from the others. All threads call,
 * after a barrier. */
template <int THREADS, int CANDIDATES>
static __device__ __forceinline__ struct rank_group
frontier_group(uint32_t count, struct frontier_shared<CANDIDATES> &shared,
               struct finish_shared &finish)
{
    const struct candidate_source<THREADS> source = {
        shared.scores, count, shared.lowest
    };
    uint32_t below = 0;
    struct rank_group group;
    find_cut<THREADS, true, GROUP_LIST>(source, shared.lowest, KEY_MAX, shared.shift, shared.k,
                                        finish.bins, finish.rank, &below, &group);
    return group;
}

/* Of a plateau of candidates the lowest `take` positions: the highest of these. All threads call;
 * begins with a barrier. */
template <int THREADS, int CANDIDATES>
static __device__ __forceinline__ uint32_t
plateau_position(uint32_t count, uint32_t key, uint32_t take,
                 struct frontier_shared<CANDIDATES> &shared, struct finish_shared &finish)
{
    const struct position_source<THREADS> places = {
        shared.scores, shared.positions, count, key
    };
    const uint32_t low = ~shared.length;
    uint32_t below = 0;
    block_sync<THREADS>();
    return ~find_cut<THREADS, true>(places, low, KEY_MAX, range_shift(KEY_MAX - low), take,
                                    finish.bins, finish.rank, &below)
                .key;
}

/* The best k of `count` candidates, at least k; all threads call, after a barrier. */
template <int THREADS, int CANDIDATES>
static __device__ __forceinline__ struct selection
frontier_select(uint32_t count, struct frontier_shared<CANDIDATES> &shared,
                struct finish_shared &finish)
{
    const struct candidate_source<THREADS> source = {
        shared.scores, count, shared.lowest
    };
    uint32_t below = 0;
    const struct rank_cut cut = find_cut<THREADS, true>(
        source, shared.lowest, KEY_MAX, shared.shift, shared.k, finish.bins, finish.rank, &below);
    struct selection selection = {cut.key, 0xffffffffu};
    if (!cut.all) {
        selection.position =
            plateau_position<THREADS, CANDIDATES>(count, cut.key, cut.take, shared, finish);
    }
    return selection;
}

/*
 * Cuts the candidates to the best k, in place; returns what is admitted from then on. All threads
 * call, after a barrier; ends with one.
 */
template <int THREADS, int CANDIDATES>
static __device__ __forceinline__ struct admission
frontier_cut(uint32_t count, struct frontier_shared<CANDIDATES> &shared,
             struct finish_shared &finish)
{
    const struct selection selection = frontier_select<THREADS, CANDIDATES>(count, shared, finish);
    for_each_ranked<THREADS, 4>(
        count,
        [&](int64_t i, uint32_t *key, uint32_t *position) {
            *key = key_of(shared.scores[i]);
            *position = shared.positions[i];
        },
        [&](uint32_t key, uint32_t position) {
            return is_selected(selection, key, position) ? EMIT_FIRST : EMIT_NONE;
        },
        finish.emit,
        [&](uint32_t key, uint32_t position, enum emit_class, uint32_t slot, uint32_t) {
            shared.scores[slot] = __uint_as_float(key_to_bits(key));
            shared.positions[slot] = position;
        });
    if (threadIdx.x == 0) {
        shared.count = shared.k;
        shared.stored = 0xffffffffu;
        shared.lowest = selection.key;
        shared.shift = first_shift(selection.key);
        shared.was_cut = 1;
    }
    block_sync<THREADS>();
    const bool part = selection.position != 0xffffffffu; /* of those equal to the K-th */
    return admission_of(selection.key, part ? selection.position + 1 : 0xffffffffu);
}

#endif
