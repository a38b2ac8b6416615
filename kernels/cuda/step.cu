/* The kernels of topk_step.h. One thread each. */
extern "C" {
#include "cpu/detail.h"
}
#include "task.cuh"
#include "topk_step.h"

/* Whether a request is there, or comes in the time that the lane has for it. */
static __device__ bool look(const struct topk_step *step)
{
    const uint64_t from_ns = clock_ns();
    for (;;) {
        /* The word last: what was asked for before the time was over is taken. */
        const bool is_over =
            *(const volatile uint32_t *)&step->paused != 0 || clock_ns() - from_ns >= step->poll_ns;
        if (*(volatile uint32_t *)step->mailbox == TOPK_STEP_ASKED) {
            return true;
        }
        if (is_over) {
            return false;
        }
    }
}

static __device__ bool is_asked(struct topk_step *step)
{
    if (step->is_awake != 0) {
        if (look(step)) {
            return true;
        }
        step->is_awake = 0;
        *(volatile uint16_t *)step->awake = 0;
        return false;
    }
    /* The mailbox may be memory of the host: reading it costs about 1 us (H200), so that is done
     * only where it decides something. */
    return *(volatile uint32_t *)&step->paused == 0 ||
           *(volatile uint32_t *)step->mailbox == TOPK_STEP_ASKED;
}

/* NULL: loaded, nothing to do. Every access that another process or engine shares is volatile. */
__global__ void __launch_bounds__(32) step_begin_kernel(struct topk_step *step, bool looks)
{
    if (!looks) {
        launch_release(); /* the selection's blocks get their places and wait for our end */
    }
    if (threadIdx.x != 0 || step == nullptr) {
        return;
    }
    const bool is_real = is_asked(step);
    if (looks) {
        launch_release(); /* not earlier: they would hold the device for a request to come */
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
        if (step->poll_ns != 0 && *(volatile uint32_t *)&step->paused == 0) {
            step->is_awake = 1;
            *(volatile uint16_t *)step->awake = 1;
        }
    }
    const uint64_t num_ended = ++step->num_ended;
    volatile struct topk_step_counts *counts = step->counts;
    counts->num_real = step->num_real;
    counts->num_ended = num_ended;
}

static cudaLaunchConfig_t one_warp(cudaLaunchAttribute *attribute, bool programmatic, void *stream)
{
    *attribute = {};
    attribute->id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute->val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(1);
    config.blockDim = dim3(32);
    config.stream = static_cast<cudaStream_t>(stream);
    config.attrs = attribute;
    config.numAttrs = programmatic ? 1 : 0;
    return config;
}

static enum topk_status launched(cudaError_t error, char *detail)
{
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

static enum topk_status launch_begin(struct topk_step *d_step, bool looks, void *stream,
                                     char *detail)
{
    cudaLaunchAttribute attribute;
    cudaLaunchConfig_t config = one_warp(&attribute, false, stream);
    return launched(cudaLaunchKernelEx(&config, step_begin_kernel, d_step, looks), detail);
}

static enum topk_status launch_end(struct topk_step *d_step, void *stream, char *detail)
{
    cudaLaunchAttribute attribute;
    cudaLaunchConfig_t config = one_warp(&attribute, is_programmatic(), stream);
    return launched(cudaLaunchKernelEx(&config, step_end_kernel, d_step), detail);
}

enum topk_status topk_cuda_step_load(char *detail)
{
    cudaStream_t stream;
    cudaError_t error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    if (error != cudaSuccess) {
        return topk_detail(detail, TOPK_E_CUDA, "cudaStreamCreateWithFlags failed: %s",
                           cudaGetErrorString(error));
    }
    enum topk_status status = launch_begin(nullptr, false, stream, detail);
    if (status == TOPK_OK) {
        status = launch_end(nullptr, stream, detail);
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

enum topk_status topk_cuda_step_begin(struct topk_step *d_step, bool looks, void *stream,
                                      char *detail)
{
    enum topk_status status = check(d_step, detail);
    return status == TOPK_OK ? launch_begin(d_step, looks, stream, detail) : status;
}

enum topk_status topk_cuda_step_end(struct topk_step *d_step, void *stream, char *detail)
{
    enum topk_status status = check(d_step, detail);
    return status == TOPK_OK ? launch_end(d_step, stream, detail) : status;
}
