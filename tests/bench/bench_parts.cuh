/*
 * bench_parts.cuh - what the GPU benchmarks of hand-overs between processes share: a check of every
 * call of CUDA, clocks of both sides, launches.
 */
#ifndef TOPKD_BENCH_PARTS_CUH
#define TOPKD_BENCH_PARTS_CUH

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdio>
#include <time.h>
#include <unistd.h>

/* Of the driver or the runtime, whose errors have the same numbers: what fails ends the process. */
#define CU(call) check_cu(#call, (CUresult)(call))

static inline void check_cu(const char *call, CUresult result)
{
    const char *name = "?";
    if (result == CUDA_SUCCESS)
        return;
    cuGetErrorName(result, &name);
    printf("FAIL %s: %s\n", call, name);
    fflush(stdout);
    _exit(1);
}

static inline double now_s()
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

__device__ static inline unsigned long long device_now() /* ns */
{
    unsigned long long ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    return ns;
}

/* Programmatic launches, as kernels/cuda/task.cuh says. Older GPUs launch one after the other. */
__device__ static inline void launch_wait()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ static inline void launch_release()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* One block. */
template <class... Args>
static void launch_block(void (*kernel)(Args...), unsigned threads, CUstream stream,
                         bool programmatic, Args... args)
{
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(1);
    config.blockDim = dim3(threads);
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = programmatic ? 1 : 0;
    CU(cudaLaunchKernelEx(&config, kernel, args...));
}

#endif
