/*
 * ptx.cuh - what the kernels need of the hardware beyond CUDA C++: every instruction that is
 * written as PTX, as a function that says what it does, and where shared memory is declared.
 *
 * No other file of the kernels holds inline assembly. Include it as "cuda/ptx.cuh": the model of a
 * GPU in tests/emulate puts a file of the same name before it, which does the same on the host.
 *
 * Functions that sm_80 cannot assemble exist from sm_90 on only, but for those that then do
 * nothing.
 */
#ifndef TOPKSEL_CUDA_PTX_CUH
#define TOPKSEL_CUDA_PTX_CUH

#include <cstdint>

/* ---- shared memory -------------------------------------------------------------------------- */

/* Declares an object in a block's shared memory, within a kernel. */
#define SHARED_OBJECT(type, name) __shared__ type name

/* Declares the block's dynamic shared memory as an array. Its address is &name[0]: `name` alone
 * need not be an array elsewhere. */
#define SHARED_DYNAMIC(type, name) extern __shared__ type name[]

/* An address in the block's own shared memory, as instructions take it. */
static __device__ __forceinline__ uint32_t shared_address(const void *pointer)
{
    return (uint32_t)__cvta_generic_to_shared(pointer);
}

/* ---- barriers of a block -------------------------------------------------------------------- */

/* Barrier 1, for the first THREADS threads; barrier 0 is __syncthreads(). */
template <int THREADS>
static __device__ __forceinline__ void block_sync()
{
    asm volatile("bar.sync 1, %0;" ::"n"(THREADS) : "memory");
}

/*
 * Barrier 0 for all threads of a block, each warp at a place of its own: a barrier that is not
 * `.aligned`, as __syncthreads() is, of which compute-sanitizer wants one place for the whole
 * block.
 */
static __device__ __forceinline__ void block_meet()
{
    asm volatile("barrier.sync 0;" ::: "memory");
}

/* Another of a block's 16 barriers, for THREADS threads of whole warps. */
template <int BARRIER, int THREADS>
static __device__ __forceinline__ void team_sync()
{
    asm volatile("bar.sync %0, %1;" ::"n"(BARRIER), "n"(THREADS) : "memory");
}

/* A barrier that tells every thread whether any of them says so. */
template <int THREADS>
static __device__ __forceinline__ bool block_any(bool here)
{
    uint32_t any;
    asm volatile("{\n"
                 ".reg .pred here, any;\n"
                 "setp.ne.u32 here, %1, 0;\n"
                 "bar.red.or.pred any, 1, %2, here;\n"
                 "selp.u32 %0, 1, 0, any;\n"
                 "}\n"
                 : "=r"(any)
                 : "r"(here ? 1u : 0u), "n"(THREADS)
                 : "memory");
    return any != 0;
}

/* ---- what the compiler must not see through ------------------------------------------------- */

/*
 * The value, but the compiler does not know that it is the same as elsewhere. Numbers made from it
 * for every score are then not kept from pass to pass: there are no registers for that.
 */
static __device__ __forceinline__ int32_t opaque(int32_t value)
{
    int32_t same;
    asm volatile("mov.b32 %0, %1;" : "=r"(same) : "r"(value));
    return same;
}

/* Likewise a base address for many accesses, kept as it is. */
template <class T>
static __device__ __forceinline__ T *opaque_base(T *base)
{
    asm volatile("mov.b64 %0, %0;" : "+l"(base));
    return base;
}

/* ---- global memory -------------------------------------------------------------------------- */

/* Stores in the L2 cache where `marked` is not 0: predicated, not a branch. */
static __device__ __forceinline__ void store_marked(uint32_t marked, int32_t *at, uint32_t value)
{
    asm volatile("{\n"
                 ".reg .pred marked;\n"
                 "setp.ne.u32 marked, %0, 0;\n"
                 "@marked st.global.cg.u32 [%1], %2;\n"
                 "}\n" ::"r"(marked),
                 "l"(at), "r"(value)
                 : "memory");
}

/* The number of a float16, exactly; of a NaN no more than that it is one. */
static __device__ __forceinline__ float half_to_float(uint16_t half)
{
    float number;
    asm("cvt.f32.f16 %0, %1;" : "=f"(number) : "h"(half));
    return number;
}

/* The lowest float16 that is no less than a number; a NaN of one. */
static __device__ __forceinline__ uint16_t half_from_float_up(float number)
{
    uint16_t half;
    asm("cvt.rp.f16.f32 %0, %1;" : "=h"(half) : "f"(number));
    return half;
}

/*
 * Compares the halves of two words as float16, or as bfloat16: sixteen ones where the left is at
 * least the right (or, with _equal, equal to it), else zeros. With a NaN never; -0 is +0.
 */
static __device__ __forceinline__ uint32_t half_pair_from(uint32_t left, uint32_t right)
{
    uint32_t mask;
    asm("set.ge.u32.f16x2 %0, %1, %2;" : "=r"(mask) : "r"(left), "r"(right));
    return mask;
}

static __device__ __forceinline__ uint32_t half_pair_equal(uint32_t left, uint32_t right)
{
    uint32_t mask;
    asm("set.eq.u32.f16x2 %0, %1, %2;" : "=r"(mask) : "r"(left), "r"(right));
    return mask;
}

#if __CUDA_ARCH__ >= 900
static __device__ __forceinline__ uint32_t bfloat_pair_from(uint32_t left, uint32_t right)
{
    uint32_t mask;
    asm("set.ge.u32.bf16x2 %0, %1, %2;" : "=r"(mask) : "r"(left), "r"(right));
    return mask;
}

static __device__ __forceinline__ uint32_t bfloat_pair_equal(uint32_t left, uint32_t right)
{
    uint32_t mask;
    asm("set.eq.u32.bf16x2 %0, %1, %2;" : "=r"(mask) : "r"(left), "r"(right));
    return mask;
}
#else
/* As float32, of which a bfloat16 is the upper half. */
static __device__ __forceinline__ uint32_t bfloat_pair_from(uint32_t left, uint32_t right)
{
    const uint32_t upper = 0xffff0000u;
    return (__uint_as_float(left << 16) >= __uint_as_float(right << 16) ? ~upper : 0u) |
           (__uint_as_float(left & upper) >= __uint_as_float(right & upper) ? upper : 0u);
}

static __device__ __forceinline__ uint32_t bfloat_pair_equal(uint32_t left, uint32_t right)
{
    const uint32_t upper = 0xffff0000u;
    return (__uint_as_float(left << 16) == __uint_as_float(right << 16) ? ~upper : 0u) |
           (__uint_as_float(left & upper) == __uint_as_float(right & upper) ? upper : 0u);
}
#endif

/* Two scores as float16, cut off towards zero: the first below. NaN becomes 0x7fff; a number beyond
 * float16 its largest one. */
static __device__ __forceinline__ uint32_t half_pair(float first, float second)
{
    uint32_t pair;
    asm("cvt.rz.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
    return pair;
}

/* Two float16, -0 as +0. */
static __device__ __forceinline__ uint32_t half_pair_unsigned_zero(uint32_t pair)
{
    uint32_t same;
    asm("add.f16x2 %0, %1, %2;" : "=r"(same) : "r"(pair), "r"(0));
    return same;
}

/* Adds to a counter of all blocks, and does not ask what it was. */
static __device__ __forceinline__ void global_add(uint64_t *counter, uint64_t count)
{
    asm volatile("red.global.add.u64 [%0], %1;" ::"l"(__cvta_generic_to_global(counter)), "l"(count)
                 : "memory");
}

/* The device's clock. */
static __device__ __forceinline__ uint64_t clock_ns()
{
    uint64_t ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    return ns;
}

/* Asks for 64 bytes to come to the L2 cache. */
static __device__ __forceinline__ void prefetch_64(const void *global)
{
    asm volatile("prefetch.global.L2 [%0];\n"
                 "prefetch.global.L2 [%0+32];" ::"l"(__cvta_generic_to_global(global)));
}

/* ---- launches ------------------------------------------------------------------------------- */

/*
 * A kernel launched programmatically starts while its predecessor still runs: everything that the
 * predecessor may have written is read after `wait`. `release` lets the successor start likewise;
 * it waits for our end by its own `wait`, so the call may come at any time. Every thread calls
 * both.
 */
static __device__ __forceinline__ void launch_wait()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

static __device__ __forceinline__ void launch_release()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/*
 * Starts a copy of `bytes`, at most 16, to 16 bytes of shared memory, whose rest becomes zero; both
 * addresses are aligned to 16. The thread waits for all that it started; a barrier tells others.
 */
static __device__ __forceinline__ void copy_async_16(void *shared, const void *global,
                                                     uint32_t bytes)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)),
                 "l"(__cvta_generic_to_global(global)), "r"(bytes)
                 : "memory");
}

/* The same of one word; both addresses are aligned to 4. */
static __device__ __forceinline__ void copy_async_4(void *shared, const void *global)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(shared)),
                 "l"(__cvta_generic_to_global(global))
                 : "memory");
}

static __device__ __forceinline__ void copies_wait()
{
    asm volatile("cp.async.wait_all;" ::: "memory");
}

/* What this thread wrote to shared memory comes before later bulk copies to it. */
static __device__ __forceinline__ void fence_before_copies()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

#if __CUDA_ARCH__ >= 900
/* ---- mbarriers, in the block's shared memory ------------------------------------------------ */

/* A phase completes after `arrivals` of them, and the bytes that they said to expect. */
static __device__ __forceinline__ void mbarrier_init(uint64_t *barrier, uint32_t arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
                 "r"(arrivals));
}

/* As above, for one arrival. */
static __device__ __forceinline__ void mbarrier_init_one(uint64_t *barrier)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(barrier)));
}

/* What was initialised is seen by the cluster, after its barrier. */
static __device__ __forceinline__ void fence_mbarrier_init()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/* Whether the phase of this parity has completed; may take its time to say no. */
static __device__ __forceinline__ bool mbarrier_try_wait(uint64_t *barrier, uint32_t parity)
{
    uint32_t done;
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, done;\n"
                 "}\n"
                 : "=r"(done)
                 : "r"(shared_address(barrier)), "r"(parity)
                 : "memory");
    return done != 0;
}

static __device__ __forceinline__ void mbarrier_arrive(uint64_t *barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
                 : "memory");
}

/*
 * Threads that hand something over together are in order already, after __syncwarp() or a barrier
 * of theirs, so that one of them arrives for all. racecheck does not follow such an order: built
 * with TOPK_RACECHECK every thread arrives for itself. All of them call; `first` is said by one.
 */
#ifdef TOPK_RACECHECK
#define HAND_OVER_ARRIVALS(threads) (uint32_t)(threads)
#else
#define HAND_OVER_ARRIVALS(threads) 1u
#endif
static __device__ __forceinline__ void mbarrier_hand_over(uint64_t *barrier, bool first)
{
    if (HAND_OVER_ARRIVALS(32) > 1 || first) {
        mbarrier_arrive(barrier);
    }
}

/* Arrives, and has the phase wait for so many bytes more. */
static __device__ __forceinline__ void mbarrier_arrive_expect(uint64_t *barrier, uint32_t bytes)
{
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
        "r"(bytes)
        : "memory");
}

/* ---- bulk copies ---------------------------------------------------------------------------- */

/*
 * Copies global memory to this block's shared memory, in its own time: a multiple of 16 bytes
 * between addresses that are one too. Its end is so many bytes of `barrier`. What is read is the
 * first to leave the L2 cache.
 */
static __device__ __forceinline__ void copy_bulk(void *shared, const void *global, uint32_t bytes,
                                                 uint64_t *barrier)
{
    const uint64_t evict_first = 0x12f0000000000000ull;
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(shared_address(shared)),
                 "l"(global), "r"(bytes), "r"(shared_address(barrier)), "l"(evict_first)
                 : "memory");
}

/* Asks for global memory to come to the L2 cache; address and size as above. */
static __device__ __forceinline__ void prefetch_bulk(const void *global, int32_t bytes)
{
    asm volatile(
        "cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(__cvta_generic_to_global(global)),
        "r"(bytes)
        : "memory");
}

/* ---- clusters ------------------------------------------------------------------------------- */

/* The block's number in its cluster, and how many there are. */
static __device__ __forceinline__ uint32_t cluster_rank()
{
    uint32_t rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

static __device__ __forceinline__ uint32_t cluster_size()
{
    uint32_t size;
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
    return size;
}

/* The two halves of a barrier of all threads of a cluster; what was written before the one is seen
 * after the other. All lanes of a warp call at once. */
static __device__ __forceinline__ void cluster_arrive_aligned()
{
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}

static __device__ __forceinline__ void cluster_arrive_relaxed_aligned()
{
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

static __device__ __forceinline__ void cluster_wait()
{
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/* Shared memory written by this block, and all it has seen written, comes before what this thread
 * sends; and what was sent comes before what this thread reads of a cluster's shared memory. */
static __device__ __forceinline__ void fence_release_shared()
{
    asm volatile("fence.release.sync_restrict::shared::cta.cluster;" ::: "memory");
}

static __device__ __forceinline__ void fence_acquire_shared()
{
    asm volatile("fence.acquire.sync_restrict::shared::cluster.cluster;" ::: "memory");
}

/* The address in block `rank`'s shared memory of what lies at `here` in ours. */
static __device__ __forceinline__ uint32_t remote_address(const void *here, uint32_t rank)
{
    uint32_t address, local = shared_address(here);
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(local), "r"(rank));
    return address;
}

static __device__ __forceinline__ uint32_t remote_load(uint32_t address)
{
    uint32_t value;
    asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
    return value;
}

static __device__ __forceinline__ uint2 remote_load_pair(uint32_t address)
{
    uint2 value;
    asm volatile("ld.shared::cluster.v2.u32 {%0, %1}, [%2];"
                 : "=r"(value.x), "=r"(value.y)
                 : "r"(address)
                 : "memory");
    return value;
}

static __device__ __forceinline__ void remote_add(uint32_t address, uint32_t value)
{
    asm volatile("red.relaxed.cluster.shared::cluster.add.u32 [%0], %1;" ::"r"(address), "r"(value)
                 : "memory");
}

/* Stores a pair in another block, and counts its 8 bytes to a barrier there. */
static __device__ __forceinline__ void remote_send(uint32_t address, uint2 value, uint32_t barrier)
{
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, "
                 "[%3];" ::"r"(address),
                 "r"(value.x), "r"(value.y), "r"(barrier)
                 : "memory");
}
#endif

#endif
