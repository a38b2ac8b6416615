/*
 * ring.cuh - a ring of stages in shared memory, filled by bulk copies (sm_90 and later).
 *
 * One warp produces: it waits until a stage is empty and starts a copy that arrives at the stage's
 * `full` barrier. All other warps consume: they wait for `full`, read the stage, pass a barrier of
 * their own, and one of them arrives at `empty`.
 */
#ifndef TOPKSEL_CUDA_RING_CUH
#define TOPKSEL_CUDA_RING_CUH

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

static __device__ __forceinline__ uint32_t shared_address(const void *pointer)
{
    return (uint32_t)__cvta_generic_to_shared(pointer);
}

#if __CUDA_ARCH__ >= 900
/*
 * A stage is empty once `consumers` warps have said so. One thread calls; the block passes a
 * barrier before anyone uses the ring.
 */
static __device__ __forceinline__ void ring_init(struct ring_barriers &barriers, uint32_t stages,
                                                 uint32_t consumers)
{
    for (uint32_t i = 0; i < stages; i++) {
        asm volatile(
            "mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&barriers.full[i])));
        asm volatile(
            "mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&barriers.empty[i])),
            "r"(consumers));
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

static __device__ __forceinline__ bool ring_try_wait(uint64_t *barrier, uint32_t phase)
{
    uint32_t done;
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, done;\n"
                 "}\n"
                 : "=r"(done)
                 : "r"(shared_address(barrier)), "r"(phase)
                 : "memory");
    return done != 0;
}

static __device__ __forceinline__ void ring_wait(uint64_t *barrier, uint32_t phase)
{
    while (!ring_try_wait(barrier, phase)) {
    }
}

static __device__ __forceinline__ void ring_arrive(uint64_t *barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
                 : "memory");
}

/*
 * Starts a copy of `bytes` (a multiple of 16, 0 allowed) to 16-byte aligned shared memory; its end
 * completes the current phase of `barrier`. One thread.
 */
static __device__ __forceinline__ void ring_copy(void *shared, const void *global, uint32_t bytes,
                                                 uint64_t *barrier)
{
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
        "r"(bytes)
        : "memory");
    if (bytes > 0) {
        /* Scores are read once: first to leave the L2 cache, so that samples stay in it. */
        const uint64_t evict_first = 0x12f0000000000000ull;
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                     ".L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(shared_address(shared)),
                     "l"(global), "r"(bytes), "r"(shared_address(barrier)), "l"(evict_first)
                     : "memory");
    }
}
#endif

#endif
