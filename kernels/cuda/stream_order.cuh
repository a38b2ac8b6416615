/*
 * stream_order.cuh - the selected of a row in the stream families put in order of position, by a
 * bitmap of the row in shared memory.
 */
#ifndef TOPKSEL_CUDA_STREAM_ORDER_CUH
#define TOPKSEL_CUDA_STREAM_ORDER_CUH

#include "stream_state.cuh"

namespace
{

/* One barrier later they may be counted into. */
template <int THREADS>
__device__ __forceinline__ void clear_histograms(struct finish_shared &finish)
{
    clear_bins<THREADS>(finish.bins);
    clear_bins<THREADS>(finish.more);
}

/* Where the selected are put together: positions, and scores where values are asked for. */
struct selected_list {
    uint32_t *positions;
    float *scores;
};

/*
 * Order by position: a bit for each selected position of a window of the row, over both histograms;
 * an entry's place is the number of bits before its own. No step depends on where the selected
 * crowd. Longer rows take several windows, which cost little beside the reading of so much.
 */
#define WINDOW_WORDS (2 * TOPK_BINS)
#define WINDOW (32 * WINDOW_WORDS) /* positions */

/* Counts, for each word of a window, the bits of the words before it and `done`, which came in
 * windows before. Returns `done` and all bits of this window. One barrier, and the caller's. */
template <int THREADS>
__device__ __forceinline__ uint32_t count_before(const uint32_t *words, uint16_t *before,
                                                 uint32_t *totals, uint32_t done)
{
    constexpr uint32_t QUADS = WINDOW_WORDS / 4 / THREADS; /* a warp's lanes read neighbours */
    const uint32_t first = warp_index() * 32 * QUADS + lane_index();
    uint32_t two[QUADS], three[QUADS], four[QUADS]; /* bits before that word of a quad */
    uint32_t start[QUADS], all = 0;
#pragma unroll
    for (uint32_t i = 0; i < QUADS; i++) {
        const uint4 quad = reinterpret_cast<const uint4 *>(words)[first + 32 * i];
        two[i] = (uint32_t)__popc(quad.x);
        three[i] = two[i] + (uint32_t)__popc(quad.y);
        four[i] = three[i] + (uint32_t)__popc(quad.z);
        const uint32_t own = four[i] + (uint32_t)__popc(quad.w), prefix = warp_prefix(own);
        start[i] = all + prefix - own;
        all += __shfl_sync(WARP_ALL, prefix, 31);
    }
    if (lane_index() == 0) {
        totals[warp_index()] = all;
    }
    block_sync<THREADS>();
    const uint32_t other = lane_index() < THREADS / 32 ? totals[lane_index()] : 0;
    const uint32_t base =
        done + __reduce_add_sync(WARP_ALL, lane_index() < warp_index() ? other : 0);
#pragma unroll
    for (uint32_t i = 0; i < QUADS; i++) {
        const uint32_t one = base + start[i];
        reinterpret_cast<uint2 *>(before)[first + 32 * i] =
            make_uint2(one | (one + two[i]) << 16, (one + three[i]) | (one + four[i]) << 16);
    }
    return done + __reduce_add_sync(WARP_ALL, other);
}

/*
 * Puts a list of k positions below `length` in ascending order, in `ordered`; `before` has room for
 * a window's words. SCORES: the list has scores, and lies over both histograms. All threads call,
 * after a barrier; ends with one.
 */
template <class Roles, bool SCORES>
__device__ __forceinline__ void order_positions(const struct selected_list &list, uint32_t k,
                                                uint32_t length, uint16_t *before,
                                                const struct selected_list &ordered)
{
    constexpr int THREADS = Roles::THREADS, EACH = (int)TOPK_K_FAST_MAX / THREADS;
    static_assert(TOPK_K_FAST_MAX < 65536, "a count of the selected has 16 bits");
    auto &finish = state<Roles>().finish;
    uint32_t *words = finish.bins; /* and `more` */
    uint32_t position[EACH], done = 0;
    float score[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const uint32_t at = threadIdx.x + i * THREADS;
        position[i] = at < k ? list.positions[at] : 0xffffffffu;
        position[i] = position[i] < length ? position[i] : 0xffffffffu; /* of no use: see the end */
        score[i] = SCORES && at < k ? list.scores[at] : 0.0f;
    }
    if (SCORES) { /* the list lies over the words */
        block_sync<THREADS>();
        clear_histograms<THREADS>(finish);
        block_sync<THREADS>();
    }
    for (uint32_t window = 0; window < length; window += WINDOW) {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const uint32_t bit = position[i] - window;
            if (bit < WINDOW) {
                atomicOr(&words[bit / 32], 1u << bit % 32);
            }
        }
        block_sync<THREADS>();
        done = count_before<THREADS>(words, before, finish.emit.counts[0], done);
        block_sync<THREADS>();
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const uint32_t bit = position[i] - window;
            if (bit < WINDOW) {
                const uint32_t lower = words[bit / 32] & ((1u << bit % 32) - 1u);
                const uint32_t slot = before[bit / 32] + (uint32_t)__popc(lower);
                ordered.positions[slot] = position[i];
                if (SCORES) {
                    ordered.scores[slot] = score[i];
                }
            }
        }
        block_sync<THREADS>();
        if (window + WINDOW < length) {
            clear_histograms<THREADS>(finish);
            block_sync<THREADS>();
        }
    }
    if (done < k) { /* what others published changed: a position of the row for each that lacks */
        for (uint32_t i = done + threadIdx.x; i < k; i += THREADS) {
            ordered.positions[i] = 0;
            if (SCORES) {
                ordered.scores[i] = 0.0f;
            }
        }
        block_sync<THREADS>();
    }
}

/* Puts the list in order, into the candidates' places; returns where. All threads call, after a
 * barrier; ends with one. */
template <class Roles, bool SCORES>
__device__ __forceinline__ struct selected_list put_in_order(uint32_t n,
                                                             const struct selected_list &list)
{
    static_assert(Roles::CANDIDATES >= WINDOW_WORDS / 2 + (int)TOPK_K_FAST_MAX, "both fit");
    auto &frontier = frontier_at<Roles>(n);
    const struct selected_list ordered = {frontier.positions + WINDOW_WORDS / 2, frontier.scores};
    order_positions<Roles, SCORES>(list, (uint32_t)state<Roles>().task.k,
                                   (uint32_t)job_at<Roles>(n).segment.length,
                                   reinterpret_cast<uint16_t *>(frontier.positions), ordered);
    return ordered;
}

} // namespace

#endif
