/* fake_kernel.c - the one kernel that the client library brings along (client/lib/ask.ptx). */
#include "fake_cuda.h"

#include <stdlib.h>
#include <string.h>

static const char name_of_step[] = "topkd_lane_step";

CUresult cuModuleLoadData(CUmodule *module_p, const void *image)
{
    const char *text = image;
    if (fake_fails("cuModuleLoadData"))
        return CUDA_ERROR_JIT_COMPILER_NOT_FOUND;
    if (strstr(text, ".visible .entry topkd_lane_step(") == NULL)
        return CUDA_ERROR_INVALID_PTX;
    fake_wall_pass();
    *module_p = malloc(1);
    return *module_p != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuModuleGetFunction(CUfunction *function_p, CUmodule module, const char *name)
{
    (void)module;
    if (strcmp(name, name_of_step) != 0)
        return CUDA_ERROR_NOT_FOUND;
    *function_p = (CUfunction)(uintptr_t)name_of_step;
    return CUDA_SUCCESS;
}

CUresult cuModuleUnload(CUmodule module)
{
    fake_wall_meet("cuModuleUnload");
    free(module);
    return CUDA_SUCCESS;
}

/* What it does, as a stream's operations; how many. */
static unsigned step_ops(void *const *parameters, struct fake_op ops[3])
{
    CUdeviceptr word, bell;
    memcpy(&word, parameters[0], sizeof(word));
    memcpy(&bell, parameters[1], sizeof(bell));
    if (word == 0)
        return 0;
    ops[0] =
        (struct fake_op){.kind = FAKE_WRITE, .to = (void *)(uintptr_t)word, .value = 1, .size = 4};
    ops[1] =
        (struct fake_op){.kind = FAKE_WRITE, .to = (void *)(uintptr_t)bell, .value = 1, .size = 4};
    ops[2] = (struct fake_op){.kind = FAKE_WAIT,
                              .to = (void *)(uintptr_t)word,
                              .value = 2,
                              .size = 4,
                              .flags = CU_STREAM_WAIT_VALUE_EQ};
    return 3;
}

static bool is_one_thread(const unsigned *grid, const unsigned *block)
{
    return grid[0] * grid[1] * grid[2] == 1 && block[0] * block[1] * block[2] == 1;
}

CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                        unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                        unsigned int block_z, unsigned int shared_bytes, CUstream stream,
                        void **parameters, void **extra)
{
    const unsigned grid[] = {grid_x, grid_y, grid_z}, block[] = {block_x, block_y, block_z};
    struct fake_op ops[3];
    if (function != (CUfunction)(uintptr_t)name_of_step || !is_one_thread(grid, block) ||
        shared_bytes != 0 || extra != NULL)
        return CUDA_ERROR_INVALID_VALUE;
    unsigned num = step_ops(parameters, ops);
    CUresult result = CUDA_SUCCESS;
    for (unsigned i = 0; i < num && result == CUDA_SUCCESS; i++)
        result = fake_push(stream, &ops[i]);
    return result;
}

CUresult cuGraphAddKernelNode(CUgraphNode *node_p, CUgraph graph, const CUgraphNode *dependencies,
                              size_t num_dependencies, const CUDA_KERNEL_NODE_PARAMS *params)
{
    const unsigned grid[] = {params->gridDimX, params->gridDimY, params->gridDimZ};
    const unsigned block[] = {params->blockDimX, params->blockDimY, params->blockDimZ};
    struct fake_op ops[3];
    (void)dependencies; /* as with other nodes: done in the order in which they were added */
    (void)num_dependencies;
    if (params->func != (CUfunction)(uintptr_t)name_of_step || !is_one_thread(grid, block))
        return CUDA_ERROR_INVALID_VALUE;
    unsigned num = step_ops(params->kernelParams, ops);
    if (num == 0 || graph->num_ops + num > FAKE_OPS_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(&graph->ops[graph->num_ops], ops, num * sizeof(ops[0]));
    graph->num_ops += num;
    *node_p = (CUgraphNode)&graph->ops[graph->num_ops - 1];
    return CUDA_SUCCESS;
}
