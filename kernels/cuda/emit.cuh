/*
 * emit.cuh - keys in position order, ranked against a cut while they stream past a block.
 */
#ifndef TOPKSEL_CUDA_EMIT_CUH
#define TOPKSEL_CUDA_EMIT_CUH

#include "rank.cuh"

/* One word a warp, in two sets used in turn so that a step needs one barrier. */
struct emit_shared {
    uint32_t counts[2][32];
};

struct emit_totals {
    uint32_t above, equal;
};

/*
 * For every i < count with a key of at least `cut_key`, in any order of time, calls
 *
 *     visit(key, position, above, above_rank, equal_rank)
 *
 * where load(i, &key, &position) gives entry i, `above` says key > cut_key, and the ranks count the
 * entries above and equal to the cut before i. Entries of a step are all loaded before any of them
 * is visited, so a visit may overwrite entries up to its own. All THREADS threads call, after a
 * barrier; ITEMS * THREADS entries and one barrier a step. The totals are valid in all threads.
 */
template <int THREADS, int ITEMS, class Load, class Visit>
static __device__ __forceinline__ struct emit_totals
for_each_ranked(int64_t count, const Load &load, uint32_t cut_key, struct emit_shared &shared,
                const Visit &visit)
{
    constexpr int WARPS = THREADS / 32;
    static_assert(ITEMS * THREADS < 65536, "two counts share a word");
    struct emit_totals seen = {0, 0};
    int parity = 0;
    for (int64_t step = 0; step < count; step += ITEMS * THREADS, parity ^= 1) {
        const int64_t first = step + warp_index() * (32 * ITEMS) + lane_index();
        uint32_t key[ITEMS], position[ITEMS], own = 0;
#pragma unroll
        for (int j = 0; j < ITEMS; j++) {
            key[j] = 0;
            position[j] = 0;
            if (first + 32 * j < count) {
                load(first + 32 * j, &key[j], &position[j]);
            }
            own += key[j] > cut_key ? 1u : (key[j] == cut_key ? 0x10000u : 0u);
        }
        own = __reduce_add_sync(WARP_ALL, own);
        if (lane_index() == 0) {
            shared.counts[parity][warp_index()] = own;
        }
        block_sync<THREADS>();
        uint32_t other = lane_index() < WARPS ? shared.counts[parity][lane_index()] : 0;
        uint32_t before = __reduce_add_sync(WARP_ALL, lane_index() < warp_index() ? other : 0);
        uint32_t all = __reduce_add_sync(WARP_ALL, other);
        uint32_t above_rank = seen.above + (before & 0xffffu);
        uint32_t equal_rank = seen.equal + (before >> 16);
#pragma unroll
        for (int j = 0; j < ITEMS; j++) {
            uint32_t above = __ballot_sync(WARP_ALL, key[j] > cut_key);
            uint32_t equal = __ballot_sync(WARP_ALL, key[j] == cut_key);
            if (key[j] >= cut_key) {
                visit(key[j], position[j], key[j] > cut_key,
                      above_rank + (uint32_t)__popc(above & lanes_below()),
                      equal_rank + (uint32_t)__popc(equal & lanes_below()));
            }
            above_rank += (uint32_t)__popc(above);
            equal_rank += (uint32_t)__popc(equal);
        }
        seen.above += all & 0xffffu;
        seen.equal += all >> 16;
    }
    return seen;
}

/* As for_each_ranked, for the entries a cut selects: visit(key, position, slot). */
template <int THREADS, int ITEMS, class Load, class Visit>
static __device__ __forceinline__ void
for_each_selected(int64_t count, const Load &load, const struct rank_cut &cut,
                  struct emit_shared &shared, const Visit &visit)
{
    const uint32_t take = cut.all ? 0xffffffffu : cut.take;
    for_each_ranked<THREADS, ITEMS>(
        count, load, cut.key, shared,
        [&](uint32_t key, uint32_t position, bool above, uint32_t above_rank, uint32_t equal_rank) {
            if (above || equal_rank < take) {
                visit(key, position, above_rank + min(equal_rank, take));
            }
        });
}

#endif
