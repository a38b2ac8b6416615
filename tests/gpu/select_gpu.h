/*
 * select_gpu.h - what the GPU tests of the selection library share: requests in device memory,
 * judged on the host by the oracle.
 */
#ifndef TOPKD_TESTS_SELECT_GPU_H
#define TOPKD_TESTS_SELECT_GPU_H

#include "inputs.h"
#include "oracle.h"
#include "topk_select.h"

#include <cuda_runtime_api.h>
#include <stdio.h>

/* Ends the program: a CUDA error leaves nothing to test. */
#define CHECK_CUDA(call) gpu_check_cuda((call), #call, __FILE__, __LINE__)
void gpu_check_cuda(cudaError_t error, const char *call, const char *file, int line);

/* Ends the process with what has been printed, exit status 2. Any thread. */
void gpu_give_up(void) __attribute__((noreturn));

/* Prints one line a test and counts; gpu_summary prints "N passed, N failed", returns exit status.
 */
void gpu_report(const char *name, bool passed, const char *detail);
int gpu_summary(void);

/* What a request is made of. Zero means: none of it. */
struct gpu_spec {
    struct inputs_spec inputs; /* row_stride 0: the width */
    enum inputs_lengths lengths;
    struct topk_options options;
    int32_t k;
    int32_t offset;          /* scores between an aligned address and the first score */
    int32_t alignment_bytes; /* of every row, as the planner is told; 0: that of a score */
    uint32_t page_size_log2;
    bool values, pages, row_offsets;
};

/* A request: host arrays for the oracle, device arrays for the selector. */
struct gpu_request {
    struct gpu_spec spec;
    struct topk_args host, device; /* the same request with host and with device pointers */
    struct topk_args *d_args;
    struct topk_routes *d_routes;
    void *d_memory[8], *h_memory[8];
};

void gpu_request_init(const struct gpu_spec *spec, struct gpu_request *request);
void gpu_request_fini(struct gpu_request *request);

/* Copies request->device to the descriptor that enqueued selections read. */
void gpu_request_send(struct gpu_request *request);

/* Poisons the result on the device, so that an entry nobody wrote is seen. */
void gpu_request_poison(struct gpu_request *request);

/* Reads the result back and checks every row; many host threads. detail[ORACLE_DETAIL_SIZE]. */
bool gpu_request_judge(struct gpu_request *request, char *detail);

/* A plan with its workspace, loaded and initialised. */
struct gpu_plan {
    struct topk_plan plan;
    void *d_workspace;
};

/* False when the family does not serve the shape (family TOPK_FAMILY_COUNT: the planner's). */
bool gpu_plan_init(const struct topk_shape *shape, enum topk_family family, int32_t variant,
                   struct gpu_plan *plan);
void gpu_plan_fini(struct gpu_plan *plan);

/* The shape of a request, or with room to spare when `spare`. */
struct topk_shape gpu_shape(const struct gpu_spec *spec, bool spare);

/*
 * Has the sample of this plan see scores in [2, 3) or in [-3, -2), on both sides, in every row that
 * is long enough; how many are. All other scores are to be between. (select_misled.c)
 */
int32_t gpu_mislead(struct gpu_request *request, const struct topk_plan *plan);

void gpu_enqueue(const struct gpu_plan *plan, const struct gpu_request *request,
                 cudaStream_t stream);

const struct topk_device *gpu_device(void);

#define GPU_VARIANTS_MAX 16 /* more policies than any family has */

/* Whether a policy of a family serves this request. */
bool gpu_serves(const struct gpu_spec *spec, enum topk_family family, int32_t variant);

#endif
