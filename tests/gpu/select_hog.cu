/* A kernel that holds multiprocessors until it is told to stop; see select_hog.h. */
#include "select_hog.h"

static __global__ void __launch_bounds__(32)
    hog_kernel(const volatile int *stop, int *running, long long cycles)
{
    extern __shared__ unsigned char whole[]; /* nothing else fits beside it */
    whole[threadIdx.x] = 0;
    if (running != nullptr && threadIdx.x == 0) {
        atomicAdd_system(running, 1);
    }
    const long long begin = clock64();
    while (*stop == 0 && clock64() - begin < cycles) {
    }
}

cudaError_t hog_start_counted(int num_blocks, int shared_bytes, const int *d_stop, int *d_running,
                              long long cycles, cudaStream_t stream)
{
    cudaError_t error =
        cudaFuncSetAttribute(hog_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
    if (error != cudaSuccess) {
        return error;
    }
    hog_kernel<<<num_blocks, 32, (size_t)shared_bytes, stream>>>(d_stop, d_running, cycles);
    return cudaGetLastError();
}

cudaError_t hog_start(int num_blocks, int shared_bytes, const int *d_stop, long long cycles,
                      cudaStream_t stream)
{
    return hog_start_counted(num_blocks, shared_bytes, d_stop, nullptr, cycles, stream);
}
