/* The CUDA half of topk_select.h: device properties, loading, workspaces, enqueue. */
extern "C" {
#include "cpu/detail.h"
}
#include "select.h"

#include <cstring>
#include <pthread.h>

#define CUDA_REFUSE(detail, error, what)                                                           \
    topk_detail((detail), TOPK_E_CUDA, "%s failed: %s (%s)", (what), cudaGetErrorString(error),    \
                cudaGetErrorName(error))

enum topk_status topk_cuda_device(int ordinal, struct topk_device *device_p, char *detail)
{
    if (device_p == nullptr) {
        return topk_detail(detail, TOPK_E_INVALID, "device_p is NULL; pass the struct");
    }
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess || count == 0) {
        return topk_detail(detail, TOPK_E_NO_DEVICE, "no usable CUDA device: %s",
                           error != cudaSuccess ? cudaGetErrorString(error) : "none is visible");
    }
    if (ordinal < 0 || ordinal >= count) {
        return topk_detail(detail, TOPK_E_NO_DEVICE,
                           "CUDA device %d does not exist; this process sees %d, from 0", ordinal,
                           count);
    }
    struct topk_device device;
    memset(&device, 0, sizeof(device));
    int l2_bytes = 0;
    const struct {
        enum cudaDeviceAttr attribute;
        int *value;
    } wanted[] = {
        {cudaDevAttrMultiProcessorCount, &device.num_multiprocessors},
        {cudaDevAttrComputeCapabilityMajor, &device.compute_major},
        {cudaDevAttrComputeCapabilityMinor, &device.compute_minor},
        {cudaDevAttrMaxSharedMemoryPerBlockOptin, &device.shared_bytes_per_block},
        {cudaDevAttrMaxSharedMemoryPerMultiprocessor, &device.shared_bytes_per_multiprocessor},
        {cudaDevAttrL2CacheSize, &l2_bytes},
    };
    for (const auto &one : wanted) {
        error = cudaDeviceGetAttribute(one.value, one.attribute, ordinal);
        if (error != cudaSuccess) {
            return CUDA_REFUSE(detail, error, "cudaDeviceGetAttribute");
        }
    }
    device.l2_bytes = l2_bytes;
    *device_p = device;
    return TOPK_OK;
}

static void launch_of(const struct topk_plan *plan, cudaStream_t stream,
                      struct select_launch *launch, struct select_params *params)
{
    *launch = {};
    launch->variant = plan->variant;
    launch->num_blocks = plan->num_blocks;
    launch->threads = plan->threads;
    launch->cluster_blocks = plan->cluster_blocks;
    launch->shared_bytes = (size_t)plan->shared_bytes;
    launch->programmatic = plan->parameters[TOPK_PARAMETER_PROGRAMMATIC] != 0;
    launch->stream = stream;
    *params = {};
    params->rows_max = plan->shape.rows;
    params->width_max = plan->shape.width;
    params->k_max = plan->shape.k;
    params->by_value = plan->shape.options.order == TOPK_ORDER_VALUE ? 1 : 0;
    params->by_position = plan->shape.options.order == TOPK_ORDER_INDEX ? 1 : 0;
    params->sample_stride = plan->sample_stride;
    params->sample_min = (int32_t)plan->parameters[TOPK_PARAMETER_SAMPLE_MIN];
    params->sample_max = (int32_t)plan->parameters[TOPK_PARAMETER_SAMPLE_MAX];
    params->margin = (float)plan->parameters[TOPK_PARAMETER_MARGIN] / 16.0f;
    params->stages = (int32_t)plan->parameters[TOPK_PARAMETER_STAGES];
    params->part_scores = (int32_t)plan->parameters[TOPK_PARAMETER_PART_SCORES];
    params->snap = (int32_t)(plan->parameters[TOPK_PARAMETER_SNAP] / TOPK_UNIT_SCORES);
    params->prefetch = (int32_t)plan->parameters[TOPK_PARAMETER_PREFETCH];
}

/* The launch functions, by family and type of scores. */
static const select_launch_function launch_functions[TOPK_FAMILY_COUNT][TOPK_DTYPE_COUNT] = {
    {select_launch_plain, select_launch_plain_float16, select_launch_plain_bfloat16},
    {select_launch_row, select_launch_row_float16, select_launch_row_bfloat16},
    {select_launch_stream, select_launch_stream_float16, select_launch_stream_bfloat16}, /* tiles */
    {select_launch_stream, select_launch_stream_float16, select_launch_stream_bfloat16}, /* split */
    {select_launch_cluster, select_launch_cluster_float16, select_launch_cluster_bfloat16},
    {select_launch_wide, select_launch_wide_float16, select_launch_wide_bfloat16},
};

static cudaError_t launch_family(const struct topk_plan *plan, const struct select_launch *launch,
                                 const struct select_params *params, bool load)
{
    if ((unsigned)plan->family >= TOPK_FAMILY_COUNT ||
        (unsigned)plan->shape.options.dtype >= TOPK_DTYPE_COUNT) {
        return cudaErrorInvalidValue;
    }
    return launch_functions[plan->family][plan->shape.options.dtype](launch, params, load);
}

enum topk_status topk_cuda_load(const struct topk_plan *plan, char *detail)
{
    if (plan == nullptr) {
        return topk_detail(detail, TOPK_E_INVALID, "plan is NULL; make one with topk_plan_make");
    }
    cudaStream_t stream;
    cudaError_t error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    if (error != cudaSuccess) {
        return CUDA_REFUSE(detail, error, "cudaStreamCreateWithFlags");
    }
    struct select_launch launch;
    struct select_params params;
    launch_of(plan, stream, &launch, &params);
    launch.num_blocks = plan->cluster_blocks; /* without arguments the kernel returns at once */
    /* A kernel's limit of shared memory is read, and raised where it is too low. */
    static pthread_mutex_t limits = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&limits);
    error = launch_family(plan, &launch, &params, true);
    pthread_mutex_unlock(&limits);
    if (error == cudaSuccess) {
        error = cudaStreamSynchronize(stream);
    }
    cudaStreamDestroy(stream);
    return error == cudaSuccess ? TOPK_OK : CUDA_REFUSE(detail, error, "loading the kernel");
}

static enum topk_status check_workspace(const struct topk_plan *plan, const void *d_workspace,
                                        char *detail)
{
    if (plan == nullptr) {
        return topk_detail(detail, TOPK_E_INVALID, "plan is NULL; make one with topk_plan_make");
    }
    if (d_workspace == nullptr || (uintptr_t)d_workspace % 256 != 0) {
        return topk_detail(detail, TOPK_E_WORKSPACE,
                           "workspace is %p; pass %lld bytes of device memory aligned to 256",
                           d_workspace, (long long)plan->workspace_bytes);
    }
    return TOPK_OK;
}

enum topk_status topk_cuda_workspace_init(const struct topk_plan *plan, void *d_workspace,
                                          void *stream, char *detail)
{
    enum topk_status status = check_workspace(plan, d_workspace, detail);
    if (status != TOPK_OK) {
        return status;
    }
    /* Only the counters at the front must start at zero: one a block, or 8 bytes a row that several
     * clusters share. */
    size_t bytes = (size_t)plan->num_blocks * sizeof(uint32_t);
    bytes = bytes < (size_t)plan->workspace_bytes ? bytes : (size_t)plan->workspace_bytes;
    cudaError_t error = cudaMemsetAsync(d_workspace, 0, bytes, static_cast<cudaStream_t>(stream));
    return error == cudaSuccess ? TOPK_OK : CUDA_REFUSE(detail, error, "cudaMemsetAsync");
}

enum topk_status topk_cuda_enqueue(const struct topk_plan *plan, const struct topk_args *d_args,
                                   void *d_workspace, void *stream, char *detail)
{
    enum topk_status status = check_workspace(plan, d_workspace, detail);
    if (status != TOPK_OK) {
        return status;
    }
    if (d_args == nullptr || (uintptr_t)d_args % 16 != 0) {
        return topk_detail(detail, TOPK_E_INVALID,
                           "d_args is %p; pass a topk_args in device memory, aligned to 16 bytes",
                           (const void *)d_args);
    }
    struct select_launch launch;
    struct select_params params;
    launch_of(plan, static_cast<cudaStream_t>(stream), &launch, &params);
    params.args = d_args;
    params.workspace = static_cast<unsigned char *>(d_workspace);
    cudaError_t error = launch_family(plan, &launch, &params, false);
    return error == cudaSuccess ? TOPK_OK : CUDA_REFUSE(detail, error, "launching the kernel");
}
