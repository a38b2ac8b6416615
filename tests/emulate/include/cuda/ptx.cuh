/*
 * ptx.cuh - the functions of kernels/cuda/ptx.cuh, done by the model of a GPU. The two have the
 * same functions, whose comments are there.
 */
#ifndef TOPKD_EMULATE_PTX_CUH
#define TOPKD_EMULATE_PTX_CUH

#include <cuda_runtime.h>

#define SHARED_OBJECT(type, name)                                                                  \
    static const char name##_declaration = 0;                                                      \
    type &name = *static_cast<type *>(                                                             \
        emulate::shared_object(&name##_declaration, sizeof(type), alignof(type)))

namespace emulate
{

/* The block's dynamic shared memory, whichever block runs. */
template <class T>
struct dynamic_array {
    T &operator[](size_t i) const
    {
        return static_cast<T *>(shared_dynamic())[i];
    }
};

} // namespace emulate

#define SHARED_DYNAMIC(type, name) static constexpr emulate::dynamic_array<type> name = {}

static inline uint32_t shared_address(const void *pointer, emulate::site here = EMULATE_HERE)
{
    return emulate::shared_address(pointer, here);
}

template <int THREADS>
static inline void block_sync(emulate::site here = EMULATE_HERE)
{
    emulate::barrier_sync(1, THREADS, false, here);
}

static inline void block_meet(emulate::site here = EMULATE_HERE)
{
    emulate::barrier_sync(0, 0, false, here);
}

template <int BARRIER, int THREADS>
static inline void team_sync(emulate::site here = EMULATE_HERE)
{
    emulate::barrier_sync(BARRIER, THREADS, false, here);
}

template <int THREADS>
static inline bool block_any(bool any, emulate::site here = EMULATE_HERE)
{
    return emulate::barrier_sync(1, THREADS, any, here);
}

static inline int32_t opaque(int32_t value)
{
    return value;
}

template <class T>
static inline T *opaque_base(T *base)
{
    return base;
}

static inline void store_marked(uint32_t marked, int32_t *at, uint32_t value,
                                emulate::site here = EMULATE_HERE)
{
    if (marked != 0) {
        __stcg(at, (int32_t)value, here);
    }
}

static inline float half_to_float(uint16_t half)
{
    int exponent = half >> 10 & 31, fraction = half & 1023;
    float number = exponent == 0 ? ldexpf((float)fraction, -24)
                                 : ldexpf((float)(1024 + fraction), exponent - 25);
    if (exponent == 31) {
        number = fraction != 0 ? __uint_as_float(0x7fffffffu) : INFINITY; /* one NaN for all */
    }
    return fraction != 0 && exponent == 31 ? number : copysignf(number, half >> 15 ? -1.0f : 1.0f);
}

static inline float bfloat_to_float(uint16_t pattern)
{
    return __uint_as_float((uint32_t)pattern << 16);
}

/* By search: of the patterns in ascending order of their numbers, the first that is no less. */
static inline uint16_t half_from_float_up(float number)
{
    if (number != number) {
        return 0x7fff;
    }
    int32_t least = -0x7c00, most = 0x7c00; /* magnitudes, below zero those of negative ones */
    while (least < most) {
        const int32_t middle = (least + most) >> 1;
        const float here =
            middle < 0 ? -half_to_float((uint16_t)-middle) : half_to_float((uint16_t)middle);
        if (here >= number) {
            most = middle;
        } else {
            least = middle + 1;
        }
    }
    return (uint16_t)(least < 0 ? 0x8000 | -least : least);
}

namespace emulate
{

/* Compares the two halves of a word, as numbers. */
template <class Number, class Compare>
static inline uint32_t pair_mask(uint32_t left, uint32_t right, Number number, Compare compare)
{
    const bool low = compare(number((uint16_t)left), number((uint16_t)right));
    const bool high = compare(number((uint16_t)(left >> 16)), number((uint16_t)(right >> 16)));
    return (low ? 0x0000ffffu : 0u) | (high ? 0xffff0000u : 0u);
}

static inline bool is_from(float left, float right)
{
    return left >= right;
}

static inline bool is_equal(float left, float right)
{
    return left == right;
}

} // namespace emulate

static inline uint32_t half_pair_from(uint32_t left, uint32_t right)
{
    return emulate::pair_mask(left, right, half_to_float, emulate::is_from);
}

static inline uint32_t half_pair_equal(uint32_t left, uint32_t right)
{
    return emulate::pair_mask(left, right, half_to_float, emulate::is_equal);
}

static inline uint32_t bfloat_pair_from(uint32_t left, uint32_t right)
{
    return emulate::pair_mask(left, right, bfloat_to_float, emulate::is_from);
}

static inline uint32_t bfloat_pair_equal(uint32_t left, uint32_t right)
{
    return emulate::pair_mask(left, right, bfloat_to_float, emulate::is_equal);
}

/* A float as float16, towards zero. */
static inline uint32_t half_toward_zero(float number)
{
    const uint32_t bits = __float_as_uint(number), magnitude = bits & 0x7fffffffu;
    const uint32_t sign = bits >> 16 & 0x8000u;
    if (magnitude > 0x7f800000u) {
        return 0x7fffu;
    }
    if (magnitude >= 0x47800000u) { /* 2^16 */
        return sign | (magnitude == 0x7f800000u ? 0x7c00u : 0x7bffu);
    }
    if (magnitude >= 0x38800000u) { /* 2^-14: normal in float16 */
        return sign | (magnitude - 0x38000000u) >> 13;
    }
    return sign | (uint32_t)ldexpf(__uint_as_float(magnitude), 24);
}

static inline uint32_t half_pair(float first, float second)
{
    return half_toward_zero(first) | half_toward_zero(second) << 16;
}

static inline uint32_t half_pair_unsigned_zero(uint32_t pair)
{
    pair = (pair & 0xffffu) == 0x8000u ? pair & 0xffff0000u : pair;
    return pair >> 16 == 0x8000u ? pair & 0xffffu : pair;
}

static inline void global_add(uint64_t *counter, uint64_t count, emulate::site here = EMULATE_HERE)
{
    atomicAdd(counter, count, here);
}

static inline void prefetch_64(const void *global, emulate::site here = EMULATE_HERE)
{
    emulate::check_global(global, 64, here);
}

static inline void launch_wait()
{
}

/* Every look at the clock takes a while. */
static inline uint64_t clock_ns()
{
    static uint64_t ns;
    return __atomic_add_fetch(&ns, 100, __ATOMIC_RELAXED);
}

static inline void launch_release()
{
}

static inline void copy_async_16(void *shared, const void *global, uint32_t bytes,
                                 emulate::site here = EMULATE_HERE)
{
    emulate::copy_async(shared, global, 16, bytes, here);
}

static inline void copy_async_4(void *shared, const void *global, emulate::site here = EMULATE_HERE)
{
    emulate::copy_async(shared, global, 4, 4, here);
}

static inline void copies_wait(emulate::site here = EMULATE_HERE)
{
    emulate::copies_wait(here);
}

static inline void fence_before_copies()
{
    emulate::fence_before_copies();
}

#if __CUDA_ARCH__ >= 900
static inline void mbarrier_init(uint64_t *barrier, uint32_t arrivals,
                                 emulate::site here = EMULATE_HERE)
{
    emulate::mbarrier_init(barrier, arrivals, here);
}

static inline void mbarrier_init_one(uint64_t *barrier, emulate::site here = EMULATE_HERE)
{
    emulate::mbarrier_init(barrier, 1, here);
}

static inline void fence_mbarrier_init()
{
}

static inline bool mbarrier_try_wait(uint64_t *barrier, uint32_t parity,
                                     emulate::site here = EMULATE_HERE)
{
    return emulate::mbarrier_try_wait(barrier, parity, here);
}

static inline void mbarrier_arrive(uint64_t *barrier, emulate::site here = EMULATE_HERE)
{
    emulate::mbarrier_arrive(barrier, 0, here);
}

#define HAND_OVER_ARRIVALS(threads) 1u

static inline void mbarrier_hand_over(uint64_t *barrier, bool first,
                                      emulate::site here = EMULATE_HERE)
{
    if (first) {
        emulate::mbarrier_arrive(barrier, 0, here);
    }
}

static inline void mbarrier_arrive_expect(uint64_t *barrier, uint32_t bytes,
                                          emulate::site here = EMULATE_HERE)
{
    emulate::mbarrier_arrive(barrier, bytes, here);
}

static inline void copy_bulk(void *shared, const void *global, uint32_t bytes, uint64_t *barrier,
                             emulate::site here = EMULATE_HERE)
{
    emulate::copy_bulk(shared, global, bytes, barrier, here);
}

static inline void prefetch_bulk(const void *global, int32_t bytes,
                                 emulate::site here = EMULATE_HERE)
{
    emulate::prefetch_bulk(global, bytes, here);
}

static inline uint32_t cluster_rank()
{
    return emulate::cluster_rank();
}

static inline uint32_t cluster_size()
{
    return emulate::cluster_size();
}

/* Aligned: the lanes of a warp meet first, as they must. */
static inline void cluster_arrive_aligned(emulate::site here = EMULATE_HERE)
{
    emulate::cluster_arrive(here);
}

static inline void cluster_arrive_relaxed_aligned(emulate::site here = EMULATE_HERE)
{
    emulate::cluster_arrive(here);
}

static inline void cluster_wait(emulate::site here = EMULATE_HERE)
{
    emulate::cluster_wait(here);
}

static inline void fence_release_shared(emulate::site here = EMULATE_HERE)
{
    emulate::touch(here);
}

static inline void fence_acquire_shared(emulate::site here = EMULATE_HERE)
{
    emulate::touch(here);
}

static inline uint32_t remote_address(const void *local, uint32_t rank,
                                      emulate::site here = EMULATE_HERE)
{
    return emulate::remote_address(local, rank, here);
}

static inline uint32_t remote_load(uint32_t address, emulate::site here = EMULATE_HERE)
{
    return *static_cast<uint32_t *>(emulate::remote_pointer(address, sizeof(uint32_t), here));
}

static inline uint2 remote_load_pair(uint32_t address, emulate::site here = EMULATE_HERE)
{
    return *static_cast<uint2 *>(emulate::remote_pointer(address, sizeof(uint2), here));
}

static inline void remote_add(uint32_t address, uint32_t value, emulate::site here = EMULATE_HERE)
{
    *static_cast<uint32_t *>(emulate::remote_pointer(address, sizeof(uint32_t), here)) += value;
}

static inline void remote_send(uint32_t address, uint2 value, uint32_t barrier,
                               emulate::site here = EMULATE_HERE)
{
    emulate::remote_send(address, emulate_bits<uint64_t>(value), barrier, here);
}
#endif

#endif
