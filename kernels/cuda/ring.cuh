/*
 * ring.cuh - a ring of stages in shared memory, filled by bulk copies (sm_90 and later).
 *
 * One warp produces: it waits until a stage is empty and starts a copy that arrives at the stage's
 * `full` barrier. All other warps consume: they wait for `full`, read the stage, pass a barrier of
 * their own, and one of them arrives at `empty`.
 */
#ifndef TOPKSEL_CUDA_RING_CUH
#define TOPKSEL_CUDA_RING_CUH

#include "cuda/ptx.cuh"
#include "plan/policy.h"

#include <cstdint>

struct ring_barriers {
    uint64_t full[TOPK_STAGES_MAX], empty[TOPK_STAGES_MAX];
};

/* A position in the ring: both sides advance through it alike. */
struct ring_place {
    uint32_t stage, phase;
};

static __device__ __forceinline__ void ring_advance(struct ring_place &place, uint32_t stages)
{
    place.stage++;
    if (place.stage == stages) {
        place.stage = 0;
        place.phase ^= 1;
    }
}

#if __CUDA_ARCH__ >= 900
/*
 * A stage is empty once it has been said `consumers` times. One thread calls; the block passes a
 * barrier before anyone uses the ring.
 */
static __device__ __forceinline__ void ring_init(struct ring_barriers &barriers, uint32_t stages,
                                                 uint32_t consumers)
{
    for (uint32_t i = 0; i < stages; i++) {
        mbarrier_init_one(&barriers.full[i]);
        mbarrier_init(&barriers.empty[i], consumers);
    }
    fence_mbarrier_init();
    fence_before_copies();
}

static __device__ __forceinline__ void ring_wait(uint64_t *barrier, uint32_t phase)
{
    while (!mbarrier_try_wait(barrier, phase)) {
    }
}

/*
 * Starts a copy of `bytes` (a multiple of 16, 0 allowed) to 16-byte aligned shared memory; its end
 * completes the current phase of `barrier`. One thread.
 */
static __device__ __forceinline__ void ring_copy(void *shared, const void *global, uint32_t bytes,
                                                 uint64_t *barrier)
{
    mbarrier_arrive_expect(barrier, bytes);
    if (bytes > 0) {
        copy_bulk(shared, global, bytes, barrier); /* scores are read once: samples stay in L2 */
    }
}
#endif

#endif
