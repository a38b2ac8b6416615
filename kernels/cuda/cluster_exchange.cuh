/*
 * cluster_exchange.cuh - what the blocks of a cluster tell each other of a row: how much each has
 * admitted, and from which boundary on.
 */
#ifndef TOPKSEL_CUDA_CLUSTER_EXCHANGE_CUH
#define TOPKSEL_CUDA_CLUSTER_EXCHANGE_CUH

#include "cluster_admit.cuh"

namespace
{

/* What the blocks of a cluster have admitted. Lane i of every warp knows of block i. */
struct standing {
    uint32_t above, equal;               /* entries of this lane's block */
    uint32_t above_before, equal_before; /* of the blocks before it */
    uint32_t num_above, num_equal;       /* of all */
    bool overflowed;                     /* a list was too short */
    bool copied;                         /* the row has at most K scores */
    bool agreed; /* all came to one boundary: not so when the row changed while it was read */
};

#define ADMITTED_WHOLE 0x8000u /* in admitted.y: at most K scores, nothing to admit */
#define ADMITTED_EXACT 0x4000u /* beside it: by an exact boundary */

#if __CUDA_ARCH__ >= 900
/*
 * Sends all blocks what this one admitted, from which boundary on, and takes what they sent: the
 * same in all threads of a cluster, whatever they read before. A barrier of the cluster; `phase` is
 * that of `met`. What a block wrote before is seen by all after: its lists are complete at its own
 * barrier, behind which the threads that send fence for all of it. The fences are for shared memory
 * alone: one for all memory takes a third of a microsecond more.
 */
template <int THREADS>
__device__ __forceinline__ struct standing exchange(uint2 admitted, const struct boundary &boundary,
                                                    uint32_t &phase)
{
    static_assert(LIST + 1 < 65536 && TOPK_K_FAST_MAX < ADMITTED_EXACT, "two counts share a word");
    const uint32_t key = boundary.key, exact = boundary.exact ? ADMITTED_EXACT : 0;
    auto &shared = cluster_state();
    const uint32_t size = cluster_size();
    block_sync<THREADS>(); /* the lists are complete */
    if (threadIdx.x < size) {
        const uint32_t counts = min(admitted.x, LIST + 1u) | (admitted.y | exact) << 16;
        fence_release_shared();
        remote_send(remote_address(&shared.standing[cluster_rank()], threadIdx.x),
                    make_uint2(counts, key), remote_address(&shared.met, threadIdx.x));
    }
    ring_wait(&shared.met, phase);
    fence_acquire_shared();
    phase ^= 1;
    const uint2 its =
        lane_index() < size ? shared.standing[lane_index()] : make_uint2(exact << 16, key);
    const uint32_t above = its.x & 0xffffu, rest = its.x >> 16;
    struct standing all;
    all.copied = __any_sync(WARP_ALL, (rest & ADMITTED_WHOLE) != 0);
    all.agreed = __all_sync(WARP_ALL, its.y == key && (rest & ADMITTED_EXACT) == exact);
    all.overflowed = __any_sync(WARP_ALL, above > LIST);
    all.above = min(above, (uint32_t)LIST);
    all.equal = rest & ~(ADMITTED_WHOLE | ADMITTED_EXACT);
    all.above_before = warp_prefix(all.above);
    all.equal_before = warp_prefix(all.equal);
    all.num_above = __shfl_sync(WARP_ALL, all.above_before, 31);
    all.num_equal = __shfl_sync(WARP_ALL, all.equal_before, 31);
    all.overflowed = all.overflowed || all.num_above > LIST;
    all.above_before -= all.above;
    all.equal_before -= all.equal;
    return all;
}

/* Arms `met` for the next exchange, once all are past the one before. One thread. */
__device__ __forceinline__ void expect_exchange()
{
    mbarrier_arrive_expect(&cluster_state().met, cluster_size() * (uint32_t)sizeof(uint2));
}
#endif

} // namespace

#endif
