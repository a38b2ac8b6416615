/*
 * cuda_runtime.h - CUDA C++ as far as the kernels use it, on the host: the language's words, vector
 * types, intrinsics, launches. What a kernel needs beyond that is added here, with CUDA's name and
 * meaning.
 */
#ifndef TOPKD_EMULATE_CUDA_RUNTIME_H
#define TOPKD_EMULATE_CUDA_RUNTIME_H

#include "cuda_runtime_api.h"
#include "emulate.hpp"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <type_traits>

#define __CUDA_ARCH__ EMULATE_ARCHITECTURE
#define __host__
#define __device__
#define __global__
#define __forceinline__ inline
#define __noinline__
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(bytes)

/* ---- vectors --------------------------------------------------------------------------------- */

#define EMULATE_VECTOR2(name, type)                                                                \
    struct alignas(2 * sizeof(type)) name {                                                        \
        type x, y;                                                                                 \
    };                                                                                             \
    static inline name make_##name(type x, type y)                                                 \
    {                                                                                              \
        return {x, y};                                                                             \
    }
#define EMULATE_VECTOR4(name, type)                                                                \
    struct alignas(4 * sizeof(type)) name {                                                        \
        type x, y, z, w;                                                                           \
    };                                                                                             \
    static inline name make_##name(type x, type y, type z, type w)                                 \
    {                                                                                              \
        return {x, y, z, w};                                                                       \
    }
EMULATE_VECTOR2(uint2, unsigned)
EMULATE_VECTOR2(int2, int)
EMULATE_VECTOR2(float2, float)
EMULATE_VECTOR4(uint4, unsigned)
EMULATE_VECTOR4(int4, int)
EMULATE_VECTOR4(float4, float)

/* ---- numbers --------------------------------------------------------------------------------- */

template <class A, class B>
static inline std::common_type_t<A, B> min(A a, B b)
{
    using both = std::common_type_t<A, B>;
    return (both)a < (both)b ? (both)a : (both)b;
}

template <class A, class B>
static inline std::common_type_t<A, B> max(A a, B b)
{
    using both = std::common_type_t<A, B>;
    return (both)a > (both)b ? (both)a : (both)b;
}

template <class To, class From>
static inline To emulate_bits(From from)
{
    static_assert(sizeof(To) == sizeof(From), "the same bits");
    To to;
    memcpy(&to, &from, sizeof(to));
    return to;
}

static inline unsigned __float_as_uint(float value)
{
    return emulate_bits<unsigned>(value);
}

static inline int __float_as_int(float value)
{
    return emulate_bits<int>(value);
}

static inline float __uint_as_float(unsigned value)
{
    return emulate_bits<float>(value);
}

static inline float __int_as_float(int value)
{
    return emulate_bits<float>(value);
}

static inline int __popc(unsigned value)
{
    return __builtin_popcount(value);
}

static inline int __clz(int value)
{
    return value == 0 ? 32 : __builtin_clz((unsigned)value);
}

static inline int __ffs(int value)
{
    return __builtin_ffs(value);
}

static inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector)
{
    const unsigned long long bytes = (unsigned long long)high << 32 | low;
    unsigned result = 0;
    for (int i = 0; i < 4; i++) { /* a byte copied with its sign alone (bit 3) is not used */
        const unsigned from = selector >> 4 * i & 7;
        result |= (unsigned)(bytes >> 8 * from & 0xff) << 8 * i;
    }
    return result;
}

static inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift)
{
    const unsigned long long both = (unsigned long long)high << 32 | low;
    return (unsigned)(both << (shift & 31) >> 32);
}

static inline unsigned __umulhi(unsigned a, unsigned b)
{
    return (unsigned)((uint64_t)a * b >> 32);
}

/* CUDA's takes the number where one operand is a NaN of any kind; C's may give a signalling one. */
static inline float emulate_fmaxf(float a, float b)
{
    return std::isnan(a) || a < b ? b : a;
}
#define fmaxf emulate_fmaxf

/* A device's are less exact; no result may depend on them. */
static inline float __fdividef(float a, float b)
{
    return a / b;
}

static inline float rsqrtf(float value)
{
    return 1.0f / std::sqrt(value);
}

/* ---- warps ----------------------------------------------------------------------------------- */

template <class T>
static inline T emulate_shuffle(enum emulate::warp_op op, unsigned mask, T value, unsigned argument,
                                int width, emulate::site here)
{
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "32 or 64 bits");
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof(value));
    bits = emulate::warp_gather(op, mask, bits, argument, (uint32_t)width, here);
    memcpy(&value, &bits, sizeof(value));
    return value;
}

template <class T>
static inline T __shfl_sync(unsigned mask, T value, int lane, int width = 32,
                            emulate::site here = EMULATE_HERE)
{
    return emulate_shuffle(emulate::warp_op::shuffle, mask, value, (unsigned)lane, width, here);
}

template <class T>
static inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32,
                               emulate::site here = EMULATE_HERE)
{
    return emulate_shuffle(emulate::warp_op::shuffle_up, mask, value, delta, width, here);
}

template <class T>
static inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32,
                                 emulate::site here = EMULATE_HERE)
{
    return emulate_shuffle(emulate::warp_op::shuffle_down, mask, value, delta, width, here);
}

template <class T>
static inline T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32,
                                emulate::site here = EMULATE_HERE)
{
    return emulate_shuffle(emulate::warp_op::shuffle_xor, mask, value, (unsigned)lanes, width,
                           here);
}

static inline unsigned __ballot_sync(unsigned mask, int predicate,
                                     emulate::site here = EMULATE_HERE)
{
    return (unsigned)emulate::warp_gather(emulate::warp_op::ballot, mask, predicate != 0 ? 1 : 0, 0,
                                          32, here);
}

static inline int __any_sync(unsigned mask, int predicate, emulate::site here = EMULATE_HERE)
{
    return __ballot_sync(mask, predicate, here) != 0 ? 1 : 0;
}

static inline int __all_sync(unsigned mask, int predicate, emulate::site here = EMULATE_HERE)
{
    return __ballot_sync(mask, predicate, here) == mask ? 1 : 0;
}

static inline void __syncwarp(unsigned mask = 0xffffffffu, emulate::site here = EMULATE_HERE)
{
    emulate::warp_gather(emulate::warp_op::sync, mask, 0, 0, 32, here);
}

#define EMULATE_REDUCE(name)                                                                       \
    static inline unsigned __reduce_##name##_sync(unsigned mask, unsigned value,                   \
                                                  emulate::site here = EMULATE_HERE)               \
    {                                                                                              \
        return (unsigned)emulate::warp_gather(emulate::warp_op::reduce_##name, mask, value, 0, 32, \
                                              here);                                               \
    }
EMULATE_REDUCE(add)
EMULATE_REDUCE(min)
EMULATE_REDUCE(max)
EMULATE_REDUCE(and)
EMULATE_REDUCE(or)
EMULATE_REDUCE(xor)

static inline unsigned __match_any_sync(unsigned mask, unsigned value,
                                        emulate::site here = EMULATE_HERE)
{
    return (unsigned)emulate::warp_gather(emulate::warp_op::match_any, mask, value, 0, 32, here);
}

/* ---- blocks and memory ----------------------------------------------------------------------- */

static inline void __syncthreads(emulate::site here = EMULATE_HERE)
{
    emulate::barrier_sync(0, 0, false, here);
}

static inline void __threadfence(emulate::site here = EMULATE_HERE)
{
    emulate::touch(here);
}

#define EMULATE_ATOMIC(name, result)                                                               \
    template <class T>                                                                             \
    static inline T name(T *place, std::common_type_t<T> value, emulate::site here = EMULATE_HERE) \
    {                                                                                              \
        emulate::touch(here);                                                                      \
        const T before = *place;                                                                   \
        *place = (result);                                                                         \
        return before;                                                                             \
    }
EMULATE_ATOMIC(atomicAdd, (T)(before + value))
EMULATE_ATOMIC(atomicMin, value < before ? value : before)
EMULATE_ATOMIC(atomicMax, value > before ? value : before)
EMULATE_ATOMIC(atomicAnd, (T)(before &value))
EMULATE_ATOMIC(atomicOr, (T)(before | value))
EMULATE_ATOMIC(atomicExch, value)

/* Loads and stores by way of a cache, or past it. */
#define EMULATE_LOAD(name)                                                                         \
    template <class T>                                                                             \
    static inline T name(const T *place, emulate::site here = EMULATE_HERE)                        \
    {                                                                                              \
        emulate::touch(here);                                                                      \
        return *place;                                                                             \
    }
EMULATE_LOAD(__ldg)
EMULATE_LOAD(__ldcg)
EMULATE_LOAD(__ldcs)
EMULATE_LOAD(__ldca)

#define EMULATE_STORE(name)                                                                        \
    template <class T>                                                                             \
    static inline void name(T *place, std::common_type_t<T> value,                                 \
                            emulate::site here = EMULATE_HERE)                                     \
    {                                                                                              \
        emulate::touch(here);                                                                      \
        *place = value;                                                                            \
    }
EMULATE_STORE(__stcg)
EMULATE_STORE(__stcs)
EMULATE_STORE(__stwb)

/* ---- launches -------------------------------------------------------------------------------- */

enum cudaLaunchAttributeID {
    cudaLaunchAttributeClusterDimension = 4,
    cudaLaunchAttributeProgrammaticStreamSerialization = 6,
};

struct cudaLaunchAttribute {
    enum cudaLaunchAttributeID id;
    union {
        struct {
            unsigned x, y, z;
        } clusterDim;
        int programmaticStreamSerializationAllowed;
    } val;
};

struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
    struct cudaLaunchAttribute *attrs;
    unsigned numAttrs;
};

enum cudaFuncAttribute {
    cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
    cudaFuncAttributeNonPortableClusterSizeAllowed = 13,
};

struct cudaFuncAttributes {
    int maxDynamicSharedSizeBytes;
};

template <class Kernel>
static inline cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes,
                                                Kernel *kernel)
{
    attributes->maxDynamicSharedSizeBytes =
        emulate::function_of(reinterpret_cast<const void *>(kernel)).dynamic_bytes_max;
    return cudaSuccess;
}

template <class Kernel>
static inline cudaError_t cudaFuncSetAttribute(Kernel *kernel, enum cudaFuncAttribute attribute,
                                               int value)
{
    struct emulate::function &function =
        emulate::function_of(reinterpret_cast<const void *>(kernel));
    int most = 0;
    cudaError_t error = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0);
    if (error != cudaSuccess || value < 0) {
        return cudaErrorInvalidValue;
    }
    if (attribute == cudaFuncAttributeNonPortableClusterSizeAllowed) {
        function.large_clusters = value != 0;
        return cudaSuccess;
    }
    if (value > most) {
        return cudaErrorInvalidValue;
    }
    function.dynamic_bytes_max = value;
    return cudaSuccess;
}

/* Programmatic launches wait for their predecessors' end, as they may. */
template <class... Parameters, class... Arguments>
static inline cudaError_t cudaLaunchKernelEx(const struct cudaLaunchConfig_t *config,
                                             void (*kernel)(Parameters...),
                                             Arguments &&...arguments)
{
    std::tuple<std::decay_t<Parameters>...> parameters(std::forward<Arguments>(arguments)...);
    struct emulate::launch launch;
    launch.kernel = [kernel, parameters]() { std::apply(kernel, parameters); };
    launch.grid = config->gridDim;
    launch.block = config->blockDim;
    launch.dynamic_bytes = (uint32_t)config->dynamicSmemBytes;
    launch.cluster_blocks = 1;
    for (unsigned i = 0; i < config->numAttrs; i++) {
        if (config->attrs[i].id == cudaLaunchAttributeClusterDimension) {
            launch.cluster_blocks = config->attrs[i].val.clusterDim.x;
        }
    }
    return emulate::enqueue(reinterpret_cast<const void *>(kernel), launch, config->stream);
}

#endif
