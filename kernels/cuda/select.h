/*
 * select.h - what the host half of the CUDA device and its kernels share: the parameters of a
 * launch and one launch function a family.
 */
#ifndef TOPKSEL_CUDA_SELECT_H
#define TOPKSEL_CUDA_SELECT_H

#include "plan/policy.h"
#include "topk_select.h"

#include <cuda_runtime.h>

/* The one parameter of every kernel. */
struct select_params {
    const struct topk_args *args;       /* device memory; NULL: load the kernel, select nothing */
    unsigned char *workspace;           /* plan->workspace_bytes; laid out by the family */
    int32_t rows_max, width_max, k_max; /* the plan's shape: nothing in args goes beyond it */
    int32_t by_value;                   /* 1: results sorted by score */
    int32_t by_position;                /* 1: results in position order */
    int32_t sample_stride;              /* stream families: 1/stride of a row is sampled ... */
    int32_t sample_min, sample_max;     /* ... within these, in scores */
    float margin;                       /* standard deviations the sampled boundary is set low */
    int32_t stages;                     /* stream families: stages of the ring */
    int32_t part_scores;                /* stream families: least scores of a part of a row */
    int32_t snap;                       /* stream families: units a cut is moved to a row's end */
    int32_t prefetch;                   /* row: 1: a block's next row is asked for ahead of time */
};

/* How a kernel is launched; filled from a plan. */
struct select_launch {
    int32_t variant, num_blocks, threads, cluster_blocks;
    size_t shared_bytes;
    bool programmatic;
    cudaStream_t stream;
};

/*
 * Launch one family, for one type of scores. `load` sets the kernel's shared-memory limit first,
 * which must have been done once in a context before any launch. Asynchronous; neither allocates
 * nor synchronises.
 */
typedef cudaError_t (*select_launch_function)(const struct select_launch *launch,
                                              const struct select_params *params, bool load);
#define SELECT_LAUNCH(name)                                                                        \
    cudaError_t name(const struct select_launch *launch, const struct select_params *params,       \
                     bool load);
SELECT_LAUNCH(select_launch_plain)
SELECT_LAUNCH(select_launch_plain_float16)
SELECT_LAUNCH(select_launch_plain_bfloat16)
SELECT_LAUNCH(select_launch_row)
SELECT_LAUNCH(select_launch_row_float16)
SELECT_LAUNCH(select_launch_row_bfloat16)
SELECT_LAUNCH(select_launch_row_short_float16)
SELECT_LAUNCH(select_launch_row_short_bfloat16)
SELECT_LAUNCH(select_launch_cluster)
SELECT_LAUNCH(select_launch_cluster_float16)
SELECT_LAUNCH(select_launch_cluster_bfloat16)
SELECT_LAUNCH(select_launch_cluster_several)
SELECT_LAUNCH(select_launch_wide)
SELECT_LAUNCH(select_launch_wide_float16)
SELECT_LAUNCH(select_launch_wide_bfloat16)
SELECT_LAUNCH(select_launch_stream)
SELECT_LAUNCH(select_launch_stream_float16)
SELECT_LAUNCH(select_launch_stream_bfloat16)

/* What the launch functions share: one kernel, one parameter, optionally programmatic or in
 * clusters. */
template <class Kernel>
static inline cudaError_t select_launch_kernel(Kernel kernel, const struct select_launch *launch,
                                               const struct select_params *params, bool load)
{
    if (load && launch->shared_bytes > 0) {
        /* Only ever raised: another plan of the same kernel may need more than this one. */
        cudaFuncAttributes kernel_attributes;
        cudaError_t error = cudaFuncGetAttributes(&kernel_attributes, kernel);
        if (error == cudaSuccess &&
            kernel_attributes.maxDynamicSharedSizeBytes < (int)launch->shared_bytes) {
            error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         (int)launch->shared_bytes);
        }
        if (error != cudaSuccess) {
            return error;
        }
    }
    if (load && launch->cluster_blocks > 1) {
        cudaError_t error =
            cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
        if (error != cudaSuccess) {
            return error;
        }
    }
    cudaLaunchAttribute attributes[2] = {};
    unsigned num_attributes = 0;
    if (launch->programmatic) {
        attributes[num_attributes].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attributes[num_attributes++].val.programmaticStreamSerializationAllowed = 1;
    }
    if (launch->cluster_blocks > 1) {
        attributes[num_attributes].id = cudaLaunchAttributeClusterDimension;
        attributes[num_attributes++].val.clusterDim = {(unsigned)launch->cluster_blocks, 1, 1};
    }
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)launch->num_blocks);
    config.blockDim = dim3((unsigned)launch->threads);
    config.dynamicSmemBytes = launch->shared_bytes;
    config.stream = launch->stream;
    config.attrs = attributes;
    config.numAttrs = num_attributes;
    return cudaLaunchKernelEx(&config, kernel, *params);
}

#endif
