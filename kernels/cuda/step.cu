/* The kernels of topk_step.h. One thread each. */
extern "C" {
#include "cpu/detail.h"
}
#include "task.cuh"
#include "topk_step.h"

/* NULL: loaded, nothing to do. Every access that another process or engine shares is volatile. */
__global__ void __launch_bounds__(32) step_begin_kernel(struct topk_step *step)
{
    launch_release(); /* the selection's blocks get their places meanwhile; they wait for our end */
    if (threadIdx.x != 0 || step == nullptr) {
        return;
    }
    /* The mailbox may be memory of the host: reading it costs about 1 us (H200), so that is done
     * only where it decides something. */
    bool is_real = true;
    if (*(volatile uint32_t *)&step->paused != 0) {
        is_real = *(volatile uint32_t *)step->mailbox == TOPK_STEP_ASKED;
    }
    int32_t rows = step->rows_max;
    if (step->live_rows != nullptr) {
        rows = min(max(*(const volatile int32_t *)step->live_rows, 0), rows);
    }
    step->args->num_rows = is_real ? rows : 0;
    step->is_real = is_real ? 1 : 0;
}

__global__ void __launch_bounds__(32) step_end_kernel(struct topk_step *step)
{
    launch_wait(); /* the selection has ended and what it wrote is visible on this device */
    if (threadIdx.x != 0 || step == nullptr) {
        return;
    }
    /* The reader is a kernel of the same device, behind a wait of its own stream. */
    if (step->is_real != 0) {
        *(volatile uint32_t *)step->mailbox = TOPK_STEP_ANSWERED;
        step->num_real++;
    }
    const uint64_t num_ended = ++step->num_ended;
    volatile struct topk_step_counts *counts = step->counts;
    counts->num_real = step->num_real;
    counts->num_ended = num_ended;
}

static enum topk_status launch(void (*kernel)(struct topk_step *), struct topk_step *d_step,
                               bool programmatic, void *stream, char *detail)
{
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(1);
    config.blockDim = dim3(32);
    config.stream = static_cast<cudaStream_t>(stream);
    config.attrs = &attribute;
    config.numAttrs = programmatic ? 1 : 0;
    cudaError_t error = cudaLaunchKernelEx(&config, kernel, d_step);
    if (error != cudaSuccess) {
        return topk_detail(detail, TOPK_E_CUDA, "launching a step's kernel failed: %s (%s)",
                           cudaGetErrorString(error), cudaGetErrorName(error));
    }
    return TOPK_OK;
}

/* Before compute capability 9.0 kernels do not overlap their launches. */
static bool is_programmatic()
{
    int device = 0, major = 0;
    return cudaGetDevice(&device) == cudaSuccess &&
           cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) ==
               cudaSuccess &&
           major >= 9;
}

enum topk_status topk_cuda_step_load(char *detail)
{
    cudaStream_t stream;
    cudaError_t error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    if (error != cudaSuccess) {
        return topk_detail(detail, TOPK_E_CUDA, "cudaStreamCreateWithFlags failed: %s",
                           cudaGetErrorString(error));
    }
    enum topk_status status = launch(step_begin_kernel, nullptr, false, stream, detail);
    if (status == TOPK_OK) {
        status = launch(step_end_kernel, nullptr, is_programmatic(), stream, detail);
    }
    if (status == TOPK_OK && (error = cudaStreamSynchronize(stream)) != cudaSuccess) {
        status = topk_detail(detail, TOPK_E_CUDA, "loading a step's kernels failed: %s",
                             cudaGetErrorString(error));
    }
    cudaStreamDestroy(stream);
    return status;
}

static enum topk_status check(const struct topk_step *d_step, char *detail)
{
    if (d_step == nullptr || (uintptr_t)d_step % 16 != 0) {
        return topk_detail(detail, TOPK_E_INVALID,
                           "d_step is %p; pass a topk_step in device memory, aligned to 16 bytes",
                           (const void *)d_step);
    }
    return TOPK_OK;
}

enum topk_status topk_cuda_step_begin(struct topk_step *d_step, void *stream, char *detail)
{
    enum topk_status status = check(d_step, detail);
    return status == TOPK_OK ? launch(step_begin_kernel, d_step, false, stream, detail) : status;
}

enum topk_status topk_cuda_step_end(struct topk_step *d_step, void *stream, char *detail)
{
    enum topk_status status = check(d_step, detail);
    return status == TOPK_OK ? launch(step_end_kernel, d_step, is_programmatic(), stream, detail)
                             : status;
}
