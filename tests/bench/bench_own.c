/* bench_own.c - a selection alone, on this process's own GPU. */
#include "bench_own.h"

#include "bench_scores.h"
#include "topk_select.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

void own_check_cu(const char *call, CUresult result)
{
    const char *name = "?";
    if (result == CUDA_SUCCESS)
        return;
    cuGetErrorName(result, &name);
    fprintf(stderr, "%s: %s\n", call, name);
    _exit(1);
}

void own_open_gpu(CUdevice *device_p)
{
    CUcontext context;
    CU(cuInit(0));
    CU(cuDeviceGet(device_p, 0));
    CU(cuDevicePrimaryCtxRetain(&context, *device_p));
    CU(cuCtxSetCurrent(context));
}

void own_fill(CUdeviceptr d_scores, size_t count)
{
    float *scores = malloc(count * sizeof(*scores));
    if (!scores)
        _exit(1);
    fill_scores(scores, count);
    CU(cuMemcpyHtoD(d_scores, scores, count * sizeof(*scores)));
    free(scores);
}

static CUgraphExec capture(const struct topk_plan *plan, CUdeviceptr d_args, CUdeviceptr workspace,
                           CUstream stream)
{
    CUgraph graph;
    CUgraphExec exec;
    char detail[TOPK_DETAIL_SIZE] = "";
    CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    if (topk_cuda_enqueue(plan, (const struct topk_args *)(uintptr_t)d_args,
                          (void *)(uintptr_t)workspace, stream, detail) != TOPK_OK) {
        fprintf(stderr, "%s\n", detail);
        _exit(1);
    }
    CU(cuStreamEndCapture(stream, &graph));
    CU(cuGraphInstantiate(&exec, graph, 0));
    return exec;
}

float own_time_us(const struct own_shape *shape)
{
    enum { REPLAYS = 300 };
    struct topk_device device;
    struct topk_plan plan;
    struct topk_shape wanted = {
        .k = shape->k, .rows = shape->rows, .width = shape->width, .alignment_bytes = 16};
    CUdeviceptr d_scores, d_indices, d_args, workspace;
    CUstream stream;
    CUevent events[2];
    float best_ms = 1e9f;
    if (topk_cuda_device(0, &device, NULL) != TOPK_OK ||
        topk_plan_make(&wanted, &device, &plan, NULL) != TOPK_OK ||
        topk_cuda_load(&plan, NULL) != TOPK_OK)
        _exit(1);
    size_t count = (size_t)shape->rows * (size_t)shape->width;
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CU(cuMemAlloc(&d_scores, count * sizeof(float)));
    CU(cuMemAlloc(&d_indices, (size_t)shape->rows * (size_t)shape->k * sizeof(int32_t)));
    CU(cuMemAlloc(&d_args, sizeof(struct topk_args)));
    CU(cuMemAlloc(&workspace, (size_t)plan.workspace_bytes + 256));
    own_fill(d_scores, count);
    struct topk_args args = {.scores = (const float *)(uintptr_t)d_scores,
                             .row_stride = shape->width,
                             .indices = (int32_t *)(uintptr_t)d_indices,
                             .index_stride = shape->k,
                             .num_rows = shape->rows,
                             .width = shape->width,
                             .length_all = shape->width,
                             .k = shape->k};
    CU(cuMemcpyHtoD(d_args, &args, sizeof(args)));
    if (topk_cuda_workspace_init(&plan, (void *)(uintptr_t)workspace, stream, NULL) != TOPK_OK)
        _exit(1);
    CUgraphExec exec = capture(&plan, d_args, workspace, stream);
    for (int i = 0; i < 2; i++)
        CU(cuEventCreate(&events[i], CU_EVENT_DEFAULT));
    for (int round = 0; round < 5; round++) {
        float ms;
        CU(cuEventRecord(events[0], stream));
        for (int i = 0; i < REPLAYS; i++)
            CU(cuGraphLaunch(exec, stream));
        CU(cuEventRecord(events[1], stream));
        CU(cuStreamSynchronize(stream));
        CU(cuEventElapsedTime(&ms, events[0], events[1]));
        best_ms = ms < best_ms ? ms : best_ms;
    }
    return best_ms * 1e3f / REPLAYS;
}
