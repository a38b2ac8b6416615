/*
 * cluster_admit.cuh - how a block of a cluster reads its slice of a row: the list of all that
 * reach the boundary, in position order.
 *
 * A row is cut into runs of 64 bytes, which a lane takes at a time; a block has neighbouring runs,
 * which a ring of stages in shared memory brings, a batch a stage. So position order is (warp,
 * lane, score), and one prefix sum a warp and one barrier give every score its place in the list.
 */
#ifndef TOPKSEL_CUDA_CLUSTER_ADMIT_CUH
#define TOPKSEL_CUDA_CLUSTER_ADMIT_CUH

#include "cluster_sample.cuh"

namespace
{

#define SLICE_UNIT ((uint32_t)(64 / sizeof(score_t))) /* slices start at 64 bytes */
#define BATCH ((uint32_t)(TOPK_CLUSTER_BATCH_BYTES / sizeof(score_t))) /* scores of a stage */
#define CLUSTER_RUN(threads) (BATCH / (uint32_t)(threads)) /* scores a lane takes of it */

/* Virtual positions [first, end) of a row: whole runs, of which the row's ends may cut the outer.
 */
struct slice {
    uint32_t first, end;
};

/* The slice of block `rank` of `size`. */
__device__ __forceinline__ struct slice slice_of(const struct row_view &row, uint32_t rank,
                                                 uint32_t size)
{
    const uint32_t units = (row.end + SLICE_UNIT - 1) / SLICE_UNIT; /* times 16: below 2^32 */
    struct slice slice = {units * rank / size * SLICE_UNIT, units * (rank + 1) / size * SLICE_UNIT};
    return slice;
}

#if __CUDA_ARCH__ >= 900
/* Starts the copy of a batch to a stage: whole 16 bytes of the row. One thread. */
__device__ __forceinline__ void copy_batch(const struct row_view &row, const struct slice &slice,
                                           uint32_t first, uint32_t stage)
{
    const uint32_t begin = max(first, (row.skew + SCORE_GROUP - 1) / SCORE_GROUP * SCORE_GROUP);
    const uint32_t end = min(min(slice.end, first + BATCH), row.end / SCORE_GROUP * SCORE_GROUP);
    ring_copy(cluster_stage(stage) + (begin - first), row.base + begin,
              end > begin ? (end - begin) * (uint32_t)sizeof(score_t) : 0,
              &cluster_state().ring.full[stage]);
}

/* Starts the first copies of a slice, from the stage at `place` on: a warp each, for it takes a
 * warp as long to start one as to load its part of a sample. All threads call. */
__device__ __forceinline__ void copy_first(const struct row_view &row, const struct slice &slice,
                                           struct ring_place place, uint32_t num_stages)
{
    const uint32_t batch = warp_index(), first = slice.first + batch * BATCH;
    if (batch < num_stages && first < slice.end && lane_index() == 0) {
        const uint32_t stage = place.stage + batch;
        copy_batch(row, slice, first, stage - (stage >= num_stages ? num_stages : 0));
    }
}
#endif

/* Reads the scores of the 16 bytes that the row's ends cut; 2 * SCORE_GROUP threads, before a
 * barrier. */
__device__ __forceinline__ void load_edges(const struct row_view &row, uint32_t thread)
{
    const uint32_t first = (thread < SCORE_GROUP ? row.skew : row.end) / SCORE_GROUP * SCORE_GROUP;
    const uint32_t at = first + thread % SCORE_GROUP;
    const bool valid = at >= row.skew && at < row.end;
    cluster_state().edge[thread / SCORE_GROUP][thread % SCORE_GROUP] =
        valid ? row.base[at] : score_nan();
}

/*
 * What a lane holds of a batch: the run at virtual position `at`, in a stage. Its 16-byte groups
 * are read in an order that depends on the lane, so that lanes meet in no bank.
 */
struct run {
    score_t *scores;
    uint32_t at;
    bool inside; /* all runs of the warp are of the row, whole, and of the slice */
};

template <uint32_t RUN>
__device__ __forceinline__ struct run run_of(const struct row_view &row, const struct slice &slice,
                                             uint32_t first, uint32_t stage)
{
    const uint32_t part = warp_index() * 32 * RUN;
    struct run run;
    run.scores = cluster_stage(stage) + part + lane_index() * RUN;
    run.at = first + part + lane_index() * RUN;
    run.inside = first + part >= row.skew && first + part + 32 * RUN <= min(row.end, slice.end);
    return run;
}

/* The marks of the first n scores of a run. */
template <uint32_t RUN>
__device__ __forceinline__ uint32_t first_marks(uint32_t n)
{
    return RUN < 32 || n < 32 ? (1u << n) - 1 : 0xffffffffu;
}

/* Bit i: score i of the run reaches the bound; or, with EQUAL, is equal to it. No bit for a NaN. */
template <uint32_t RUN, bool EQUAL>
__device__ __forceinline__ uint32_t compare_run(const struct run &run, score_bound bound)
{
    constexpr uint32_t GROUPS = RUN / SCORE_GROUP;
    const uint32_t turn = lane_index() / (8 / GROUPS) % GROUPS;
    const uint32_t marks = group_marks<GROUPS, EQUAL>(bound, [&](uint32_t g) {
        return *reinterpret_cast<const score_group *>(run.scores +
                                                      SCORE_GROUP * ((g + turn) % GROUPS));
    });
    const uint32_t shift = SCORE_GROUP * turn;
    if constexpr (RUN == 32) {
        return __funnelshift_l(marks, marks, shift);
    } else {
        return (marks << shift | marks >> (RUN - shift)) & ((1u << RUN) - 1);
    }
}

/* Bit i: score i of a run is one of the row and of the slice. */
template <uint32_t RUN>
__device__ __forceinline__ uint32_t valid_marks(const struct row_view &row,
                                                const struct slice &slice, const struct run &run)
{
    const uint32_t end = min(row.end, slice.end);
    const uint32_t from = row.skew > run.at ? min(row.skew - run.at, RUN) : 0;
    const uint32_t to = end > run.at ? min(end - run.at, RUN) : 0;
    return first_marks<RUN>(to) & ~first_marks<RUN>(from);
}

/* Puts into a run the scores that the ring left out, for the row's ends cut their 16 bytes. */
template <uint32_t RUN>
__device__ __forceinline__ void mend_run(const struct row_view &row, const struct run &run)
{
    const uint32_t cut[2] = {row.skew / SCORE_GROUP * SCORE_GROUP,
                             row.end / SCORE_GROUP * SCORE_GROUP};
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const bool is_cut = (i == 0 ? row.skew : row.end) % SCORE_GROUP != 0;
        if (is_cut && cut[i] >= run.at && cut[i] < run.at + RUN) {
            *reinterpret_cast<score_group *>(run.scores + (cut[i] - run.at)) =
                *reinterpret_cast<const score_group *>(cluster_state().edge[i]);
        }
    }
    fence_before_copies(); /* the ring writes there next */
}

/* What a block has admitted: entries of list, also those beyond its room, and of equal. */
struct admitted {
    uint32_t above, equal;
};

/* Calls put(slot, i) for every mark of a warp, slots in position order. A warp calls. */
template <class Put>
__device__ __forceinline__ void each_mark(uint32_t marks, uint32_t slot, const Put &put)
{
    const uint32_t own = (uint32_t)__popc(marks);
    slot += warp_prefix(own) - own;
    while (marks != 0) {
        const uint32_t i = (uint32_t)__ffs((int)marks) - 1;
        marks &= marks - 1;
        put(slot, i);
        slot++;
    }
}

/* Marks of scores equal to a key; NaN only where there is a score. */
template <uint32_t RUN>
__device__ __forceinline__ uint32_t marks_equal(const struct run &run, uint32_t key, uint32_t valid)
{
    if (key > KEY_NAN) {
        return compare_run<RUN, true>(run, bound_equal(__uint_as_float(key_floor_bits(key)))) &
               valid;
    }
    uint32_t marks = 0;
    for (uint32_t i = 0; i < RUN; i++) {
        const float score = score_number(run.scores[i]);
        marks |= score != score ? 1u << i : 0u;
    }
    return marks & valid;
}

/* Admits a batch from its run in each lane. One barrier, behind which nobody reads the batch
 * before: free(). */
template <int THREADS, bool EXACT, class Free>
__device__ __forceinline__ void
admit_batch(const struct row_view &row, const struct slice &slice, const struct run &run,
            uint32_t key, uint32_t k, uint32_t parity, struct admitted &admitted, const Free &free)
{
    constexpr uint32_t RUN = CLUSTER_RUN(THREADS);
    auto &shared = cluster_state();
    if (!run.inside) {
        mend_run<RUN>(row, run);
    }
    uint32_t marks = compare_run<RUN, false>(
        run, bound_from(__uint_as_float(key_floor_bits(EXACT ? key + 1 : key))));
    uint32_t equal = 0;
    const uint32_t valid = run.inside ? first_marks<RUN>(RUN) : valid_marks<RUN>(row, slice, run);
    marks &= valid;
    if (EXACT) {
        equal = marks_equal<RUN>(run, key, valid);
    }
    const uint32_t own =
        __reduce_add_sync(WARP_ALL, (uint32_t)__popc(marks) | (uint32_t)__popc(equal) << 16);
    if (lane_index() == 0) {
        shared.warp_counts[parity][warp_index()] = own;
    }
    block_sync<THREADS>();
    free();
    const uint32_t other =
        lane_index() < THREADS / 32 ? shared.warp_counts[parity][lane_index()] : 0;
    const uint32_t all = __reduce_add_sync(WARP_ALL, other);
    if (own != 0) {
        const uint32_t before =
            __reduce_add_sync(WARP_ALL, lane_index() < warp_index() ? other : 0);
        const uint32_t slot = admitted.above + (before & 0xffffu), position = run.at - row.skew;
        if (slot + (own & 0xffffu) <= LIST) {
            each_mark(marks, slot, [&](uint32_t at, uint32_t i) {
                shared.list[at] =
                    make_uint2(__float_as_uint(score_number(run.scores[i])), position + i);
            });
        }
        if (EXACT) {
            each_mark(equal, admitted.equal + (before >> 16), [&](uint32_t at, uint32_t i) {
                if (at < k) {
                    shared.equal[at] = position + i;
                }
            });
        }
    }
    admitted.above += all & 0xffffu;
    admitted.equal += all >> 16;
}

#if __CUDA_ARCH__ >= 900
/* Admits a slice whose first batches are in the ring, or on their way there. */
template <int THREADS, bool EXACT>
__device__ __forceinline__ struct admitted
admit_slice(const struct row_view &row, const struct slice &slice, uint32_t key, uint32_t k,
            struct ring_place &place, uint32_t num_stages)
{
    static_assert(CLUSTER_RUN(THREADS) % SCORE_GROUP == 0 && CLUSTER_RUN(THREADS) <= 32,
                  "whole 16 bytes, and one mark a score in 32 bits");
    static_assert(BATCH < 65536, "two counts share a word");
    auto &shared = cluster_state();
    struct admitted admitted = {0, 0};
    uint32_t parity = 0, stage_before = 0;
#pragma unroll 1
    for (uint32_t first = slice.first; first < slice.end; first += BATCH, parity ^= 1) {
        const struct run run = run_of<CLUSTER_RUN(THREADS)>(row, slice, first, place.stage);
        ring_wait(&shared.ring.full[place.stage], place.phase);
        admit_batch<THREADS, EXACT>(row, slice, run, key, k, parity, admitted, [&]() {
            const uint32_t next = first + (num_stages - 1) * BATCH; /* follows the one before */
            if (threadIdx.x == 0 && first != slice.first && next < slice.end) {
                copy_batch(row, slice, next, stage_before);
            }
        });
        stage_before = place.stage;
        ring_advance(place, num_stages);
    }
    return admitted;
}

/* Likewise by an exact boundary: what is above it, and apart the first that are equal. */
template <int THREADS>
__device__ __noinline__ uint2 admit_exactly(const struct row_view row, const struct slice slice,
                                            uint32_t key, uint32_t k, struct ring_place place,
                                            uint32_t num_stages)
{
    const struct admitted admitted =
        admit_slice<THREADS, true>(row, slice, key, k, place, num_stages);
    return make_uint2(admitted.above, min(admitted.equal, k));
}

/* The place in the ring behind a slice. */
__device__ __forceinline__ void pass_slice(const struct slice &slice, struct ring_place &place,
                                           uint32_t num_stages)
{
    for (uint32_t first = slice.first; first < slice.end; first += BATCH) {
        ring_advance(place, num_stages);
    }
}
#endif

} // namespace

#endif
