/*
 * frontier.cuh - the candidates of a row: admitted while the row streams past, in position order,
 * never more than fit.
 *
 * When the buffer is about to overflow it is cut to the best K so far. The K-th of them is a proven
 * lower bound of the answer, so the boundary rises to it, and a row is read once whatever its
 * scores. After a cut, scores equal to the K-th no longer enter: K scores at least as high lie at
 * lower positions already.
 *
 * Functions that take a frontier_shared are inlined, so that the compiler knows the address space;
 * with generic addresses the shared atomics become loops.
 */
#ifndef TOPKSEL_CUDA_FRONTIER_CUH
#define TOPKSEL_CUDA_FRONTIER_CUH

#include "emit.cuh"
#include "rank.cuh"

template <int CANDIDATES>
struct frontier_shared {
    alignas(16) uint32_t bins[TOPK_BINS];   /* exact search; with coarse, the sort buffer */
    alignas(16) uint32_t coarse[TOPK_BINS]; /* proposal; bounds of parts */
    alignas(16) float scores[CANDIDATES];
    alignas(16) uint32_t positions[CANDIDATES];
    struct rank_shared rank;
    struct emit_shared emit; /* also counts what each warp admits in a step */
    uint32_t k;
    uint32_t lowest;  /* no key held is lower */
    uint32_t was_cut; /* 1: the buffer had to be cut */
};

/* What is admitted: scores of at least `score` (never NaN), or with `everything` all ones, all. */
struct admission {
    float score;
    uint32_t everything;
};

/* Admits keys of at least `low`. */
static __device__ __forceinline__ struct admission admission_of(uint32_t low)
{
    struct admission admission = {__uint_as_float(key_floor_bits(low)),
                                  low <= KEY_NAN ? 0xffffffffu : 0u};
    return admission;
}

/* An empty frontier; all threads call, and pass a barrier before it is cut or searched. */
template <int CANDIDATES>
static __device__ __forceinline__ void frontier_begin(uint32_t low, uint32_t k,
                                                      struct frontier_shared<CANDIDATES> &shared)
{
    if (threadIdx.x == 0) {
        shared.k = k;
        shared.lowest = low;
        shared.was_cut = 0;
    }
}

/* The candidates as a source of keys (rank.cuh). */
template <int THREADS>
struct candidate_source {
    const float *scores;
    uint32_t count;

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

/* The cut of the best k of `count` candidates, at least k; all threads call, after a barrier. */
template <int THREADS, int CANDIDATES>
static __device__ __forceinline__ struct rank_cut
frontier_find_cut(uint32_t count, struct frontier_shared<CANDIDATES> &shared)
{
    const struct candidate_source<THREADS> source = {
        shared.scores, count
    };
    uint32_t below = 0;
    return find_cut<THREADS, true>(source, shared.lowest, KEY_MAX, RANK_FIRST_SHIFT, shared.k,
                                   shared.bins, shared.rank, &below);
}

/* Calls visit(score, position, slot) for the selected candidates; `visit` may overwrite slot. */
template <int THREADS, int CANDIDATES, class Visit>
static __device__ __forceinline__ void
frontier_each_selected(uint32_t count, const struct rank_cut &cut,
                       struct frontier_shared<CANDIDATES> &shared, const Visit &visit)
{
    for_each_selected<THREADS, 4>(
        count,
        [&](int64_t i, uint32_t *key, uint32_t *position) {
            *key = key_of(shared.scores[i]);
            *position = shared.positions[i];
        },
        cut, shared.emit, visit);
}

/*
 * Cuts the candidates to the best k, in place; returns what is admitted from then on. All threads
 * call, after a barrier; ends with one.
 */
template <int THREADS, int CANDIDATES>
static __device__ __forceinline__ struct admission
frontier_cut(uint32_t count, struct frontier_shared<CANDIDATES> &shared)
{
    const struct rank_cut cut = frontier_find_cut<THREADS, CANDIDATES>(count, shared);
    frontier_each_selected<THREADS>(count, cut, shared,
                                    [&](uint32_t key, uint32_t position, uint32_t slot) {
                                        shared.scores[slot] = __uint_as_float(key_to_bits(key));
                                        shared.positions[slot] = position;
                                    });
    if (threadIdx.x == 0) {
        shared.lowest = cut.key;
        shared.was_cut = 1;
    }
    block_sync<THREADS>();
    return admission_of(cut.all ? cut.key : cut.key + 1);
}

/* Bit i: score[i] may enter. */
template <int SCORES>
static __device__ __forceinline__ uint32_t admission_marks(const struct admission &admission,
                                                           const float (&score)[SCORES])
{
    uint32_t marks = 0;
#pragma unroll
    for (int i = 0; i < SCORES; i++) {
        marks |= score[i] >= admission.score ? 1u << i : 0u;
    }
    return marks | admission.everything;
}

/*
 * Admits what of a step is not below the boundary. A lane's score[4 * g + e] lies at place
 * `lane_first` + 128 * g + e of the step; bit 4 * g + e of `valid` says that it exists. Lanes, then
 * groups, then warps are in position order. All threads call; one barrier. `parity` differs from
 * that of the call before, unless more barriers have passed.
 *   passed()      called by all threads after the barrier
 *   read(place)   a score of the step, again: the few that enter are read a second time, which
 *                 costs less than choosing among registers
 * Returns false, in all threads, when the step does not fit: the buffer must be cut to k first, and
 * the step admitted again. Otherwise *count_p grows; the candidates are complete after the caller's
 * next barrier.
 */
template <int THREADS, int GROUPS, int CANDIDATES, class Passed, class Read>
static __device__ __forceinline__ bool
frontier_admit(const struct admission &admission, uint32_t *count_p, uint32_t parity,
               struct frontier_shared<CANDIDATES> &shared, const float (&score)[4 * GROUPS],
               uint32_t valid, uint32_t lane_first, uint32_t step_position, const Passed &passed,
               const Read &read)
{
    constexpr int WARPS = THREADS / 32;
    static_assert(CANDIDATES >= (int)TOPK_K_FAST_MAX + 4 * GROUPS * THREADS,
                  "after a cut to K a whole step fits");
    static_assert(GROUPS <= 2, "the slot is chosen between two groups");
    uint32_t marks = admission_marks<4 * GROUPS>(admission, score) & valid;
    uint32_t rank[GROUPS] = {}, own = 0;
    if (__any_sync(WARP_ALL, marks != 0)) {
#pragma unroll
        for (int g = 0; g < GROUPS; g++) {
            /* 0 ... 4 a lane, summed over the lanes below bit by bit */
            const uint32_t count = (uint32_t)__popc(marks >> 4 * g & 15u), below = lanes_below();
            const uint32_t ones = __ballot_sync(WARP_ALL, count & 1u);
            const uint32_t twos = __ballot_sync(WARP_ALL, count & 2u);
            const uint32_t fours = __ballot_sync(WARP_ALL, count & 4u);
            rank[g] = own + (uint32_t)(__popc(ones & below) + 2 * __popc(twos & below) +
                                       4 * __popc(fours & below));
            own += (uint32_t)(__popc(ones) + 2 * __popc(twos) + 4 * __popc(fours));
        }
    }
    uint32_t *counts = shared.emit.counts[parity];
    if (lane_index() == 0) {
        counts[warp_index()] = own;
    }
    block_sync<THREADS>();
    passed();
    const uint32_t other = lane_index() < WARPS ? counts[lane_index()] : 0;
    const uint32_t all = __reduce_add_sync(WARP_ALL, other);
    if (*count_p + all > CANDIDATES) {
        return false;
    }
    own = *count_p + __reduce_add_sync(WARP_ALL, lane_index() < warp_index() ? other : 0);
    *count_p += all;
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        rank[g] += own;
    }
    while (marks != 0) {
        const uint32_t i = (uint32_t)__ffs((int)marks) - 1, group = i / 4;
        const uint32_t place = lane_first + 128 * group + i % 4;
        uint32_t slot = rank[0];
        if (GROUPS == 1 || group == 0) {
            rank[0]++;
        } else {
            slot = rank[GROUPS - 1]++;
        }
        marks &= marks - 1;
        shared.scores[slot] = read(place);
        shared.positions[slot] = step_position + place;
    }
    return true;
}

#endif
