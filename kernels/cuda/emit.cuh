/*
 * emit.cuh - keys in position order, ranked against a cut while they stream past a block.
 */
#ifndef TOPKSEL_CUDA_EMIT_CUH
#define TOPKSEL_CUDA_EMIT_CUH

#include "rank.cuh"

#define EMIT_WARPS_MAX 16 /* of blocks that emit */

/* One word a warp, in two sets used in turn so that a step needs one barrier. */
struct emit_shared {
    uint32_t counts[2][EMIT_WARPS_MAX];
};

struct emit_totals {
    uint32_t first, second;
};

/* What for_each_ranked does with an entry. */
enum emit_class { EMIT_NONE, EMIT_FIRST, EMIT_SECOND };

/*
 * Sorts entries 0 ... count - 1 into two classes and ranks them within: for every entry that is not
 * EMIT_NONE calls, in any order of time,
 *
 *     visit(key, position, class, first_rank, second_rank)
 *
 * where load(i, &key, &position) gives entry i, classify(key, position) its class, and the ranks
 * count the entries of each class before i. Entries of a step are all loaded before any of them is
 * visited, so a visit may overwrite entries up to its own. All THREADS threads call, after a
 * barrier; ITEMS * THREADS entries and one barrier a step. The totals are valid in all threads.
 */
template <int THREADS, int ITEMS, class Load, class Classify, class Visit>
static __device__ __forceinline__ struct emit_totals
for_each_ranked(int64_t count, const Load &load, const Classify &classify,
                struct emit_shared &shared, const Visit &visit)
{
    constexpr int WARPS = THREADS / 32;
    static_assert(WARPS <= EMIT_WARPS_MAX, "one word a warp");
    static_assert(ITEMS * THREADS < 65536, "two counts share a word");
    struct emit_totals seen = {0, 0};
    int parity = 0;
    for (int64_t step = 0; step < count; step += ITEMS * THREADS, parity ^= 1) {
        const int64_t first = step + warp_index() * (32 * ITEMS) + lane_index();
        uint32_t key[ITEMS], position[ITEMS], own = 0;
        enum emit_class kind[ITEMS];
#pragma unroll
        for (int j = 0; j < ITEMS; j++) {
            kind[j] = EMIT_NONE;
            if (first + 32 * j < count) {
                load(first + 32 * j, &key[j], &position[j]);
                kind[j] = classify(key[j], position[j]);
            }
            own += kind[j] == EMIT_FIRST ? 1u : (kind[j] == EMIT_SECOND ? 0x10000u : 0u);
        }
        own = __reduce_add_sync(WARP_ALL, own);
        if (lane_index() == 0) {
            shared.counts[parity][warp_index()] = own;
        }
        block_sync<THREADS>();
        uint32_t other = lane_index() < WARPS ? shared.counts[parity][lane_index()] : 0;
        uint32_t before = __reduce_add_sync(WARP_ALL, lane_index() < warp_index() ? other : 0);
        uint32_t all = __reduce_add_sync(WARP_ALL, other);
        uint32_t first_rank = seen.first + (before & 0xffffu);
        uint32_t second_rank = seen.second + (before >> 16);
#pragma unroll
        for (int j = 0; j < ITEMS; j++) {
            uint32_t firsts = __ballot_sync(WARP_ALL, kind[j] == EMIT_FIRST);
            uint32_t seconds = __ballot_sync(WARP_ALL, kind[j] == EMIT_SECOND);
            if (kind[j] != EMIT_NONE) {
                visit(key[j], position[j], kind[j],
                      first_rank + (uint32_t)__popc(firsts & lanes_below()),
                      second_rank + (uint32_t)__popc(seconds & lanes_below()));
            }
            first_rank += (uint32_t)__popc(firsts);
            second_rank += (uint32_t)__popc(seconds);
        }
        seen.first += all & 0xffffu;
        seen.second += all >> 16;
    }
    return seen;
}

#endif
