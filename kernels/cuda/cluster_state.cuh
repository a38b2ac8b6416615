/*
 * cluster_state.cuh - what a block of the cluster family holds in shared memory, and how the blocks
 * of a cluster reach each other's (sm_90 and later).
 *
 * A cluster is launched as a whole, so its blocks may wait for each other. They meet twice a row:
 * once when all have admitted their slice, once when nobody needs another's memory any more.
 */
#ifndef TOPKSEL_CUDA_CLUSTER_STATE_CUH
#define TOPKSEL_CUDA_CLUSTER_STATE_CUH

#include "order.cuh"
#include "rank.cuh"
#include "ring.cuh"
#include "task.cuh"

namespace
{

#define LIST TOPK_CLUSTER_LIST

/* Where to cut: scores of at least `key` are admitted; or, when `exact`, those above it, while the
 * first K of those equal to it are kept apart. */
struct boundary {
    uint32_t key;
    bool exact;
};

struct cluster_shared {
    alignas(16) uint32_t bins[TOPK_BINS + 4]; /* exact search; the first block's: the cluster's
                                               * sums. The last four are never read */
    alignas(16) uint32_t coarse[TOPK_BINS];   /* sample; a block's own counts of a search */
    alignas(16) uint2 list[LIST];             /* score bits and position, positions ascending */
    uint32_t equal[TOPK_K_FAST_MAX];          /* positions of scores equal to the boundary */
    struct rank_shared rank;
    alignas(16) struct rank_bin found;        /* the first block's: of the cluster's sums */
    alignas(16) score_t edge[2][SCORE_GROUP]; /* 16 bytes that a row's start and end cut */
    alignas(16) uint2 standing[TOPK_CLUSTER_BLOCKS_MAX]; /* what each block sent: its entries */
    alignas(8) uint64_t met; /* a barrier that completes when all have sent */
    uint64_t taken;          /* the first block's: when it has all entries */
    struct ring_barriers ring;
    struct boundary boundary; /* of an exact search */
    struct sink sink;
    struct route_counts counts;
    struct topk_routes *routes; /* where they go */
    uint32_t warp_counts[2][32];
    uint32_t least, most; /* KEY_MAX and 0 between uses */
    int32_t length;
};

/* Dynamic shared memory: the state, the stages of the ring and, to order by value, the entries to
 * sort. */
SHARED_DYNAMIC(__align__(128) unsigned char, cluster_memory);

__device__ __forceinline__ struct cluster_shared &cluster_state()
{
    return *reinterpret_cast<struct cluster_shared *>(&cluster_memory[0]);
}

__device__ __forceinline__ score_t *cluster_stage(uint32_t stage)
{
    static_assert(sizeof(struct cluster_shared) <= TOPK_CLUSTER_STATE_BYTES &&
                      TOPK_CLUSTER_STATE_BYTES % 128 == 0,
                  "the planner's account of shared memory");
    return reinterpret_cast<score_t *>(
        &cluster_memory[TOPK_CLUSTER_STATE_BYTES + stage * TOPK_CLUSTER_BATCH_BYTES]);
}

__device__ __forceinline__ uint64_t *sort_entries(const struct select_params &params)
{
    return reinterpret_cast<uint64_t *>(cluster_stage((uint32_t)params.stages));
}

/* The bin that holds rank `need` (from 1, from the highest bin). The counts must be complete and a
 * barrier passed; two barriers inside. */
template <int THREADS>
__device__ __forceinline__ struct rank_bin scan_rank(const uint32_t *bins, uint32_t need)
{
    constexpr int EACH = TOPK_BINS / THREADS;
    uint32_t count[EACH];
    const uint32_t own = load_bins<EACH>(bins + TOPK_BINS - (threadIdx.x + 1) * EACH, count);
    return scan_counts<THREADS, EACH>(count, own, need, cluster_state().rank);
}

#if __CUDA_ARCH__ >= 900
__device__ __forceinline__ void cluster_arrive()
{
    __syncwarp();
    cluster_arrive_aligned();
}

__device__ __forceinline__ void cluster_arrive_relaxed()
{
    __syncwarp();
    cluster_arrive_relaxed_aligned();
}

__device__ __forceinline__ void cluster_sync()
{
    cluster_arrive();
    cluster_wait();
}
#endif

} // namespace

#endif
