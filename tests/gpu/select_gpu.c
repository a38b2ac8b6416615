/* Requests in device memory, judged on the host; see select_gpu.h. */
#include "select_gpu.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define JUDGES_MAX 32

static int num_passed, num_failed;

void gpu_give_up(void)
{
    fflush(stdout);
    _Exit(2); /* exit() would take down what other threads are using */
}

void gpu_check_cuda(cudaError_t error, const char *call, const char *file, int line)
{
    if (error != cudaSuccess) {
        printf("%s:%d: %s: %s\n", file, line, call, cudaGetErrorString(error));
        printf("%d passed, %d failed\n", num_passed, num_failed + 1);
        gpu_give_up();
    }
}

void gpu_report(const char *name, bool passed, const char *detail)
{
    *(passed ? &num_passed : &num_failed) += 1;
    printf("%s %s%s%s\n", passed ? "ok    " : "FAILED", name, passed ? "" : ": ",
           passed ? "" : detail);
    fflush(stdout);
}

int gpu_summary(void)
{
    printf("%d passed, %d failed\n", num_passed, num_failed);
    return num_failed == 0 && num_passed > 0 ? 0 : 1;
}

const struct topk_device *gpu_device(void)
{
    static struct topk_device device;
    static bool known;
    if (!known) {
        char detail[TOPK_DETAIL_SIZE];
        if (topk_cuda_device(0, &device, detail) != TOPK_OK) {
            printf("%s\n", detail);
            gpu_give_up();
        }
        known = true;
    }
    return &device;
}

/* An array on both sides; the device's starts `offset` elements after an aligned address. */
static void *host_array(struct gpu_request *request, int slot, size_t bytes)
{
    request->h_memory[slot] = calloc(1, bytes > 0 ? bytes : 1);
    if (request->h_memory[slot] == NULL) {
        printf("out of memory: %zu bytes\n", bytes);
        gpu_give_up();
    }
    return request->h_memory[slot];
}

static void *device_array(struct gpu_request *request, int slot, size_t bytes, size_t offset_bytes)
{
    char *memory;
    CHECK_CUDA(cudaMalloc((void **)&memory, bytes + offset_bytes + 256));
    /* A copy of a few bytes counts as one of 16 for initcheck, whatever lies behind. */
    CHECK_CUDA(cudaMemset(memory + offset_bytes + bytes, 0xff, 16));
    CHECK_CUDA(
        cudaMemcpy(memory + offset_bytes, request->h_memory[slot], bytes, cudaMemcpyHostToDevice));
    request->d_memory[slot] = memory;
    return memory + offset_bytes;
}

enum { SLOT_SCORES, SLOT_LENGTHS, SLOT_INDICES, SLOT_VALUES, SLOT_PAGES, SLOT_OFFSETS };

static void make_extras(struct gpu_request *request)
{
    const struct gpu_spec *spec = &request->spec;
    size_t rows = (size_t)spec->inputs.num_rows, k = (size_t)spec->k;
    struct topk_args *host = &request->host, *device = &request->device;
    if (spec->values) {
        host->values = host_array(request, SLOT_VALUES, rows * k * sizeof(float));
        device->values = device_array(request, SLOT_VALUES, rows * k * sizeof(float), 0);
        host->value_stride = device->value_stride = spec->k;
    }
    if (spec->pages) {
        int32_t entries = (spec->inputs.width >> spec->page_size_log2) + 1;
        size_t bytes = rows * (size_t)entries * sizeof(int32_t);
        int32_t *table = host_array(request, SLOT_PAGES, bytes);
        inputs_fill_pages(spec->inputs.seed, spec->inputs.num_rows, entries, entries, table);
        host->page_table = table;
        device->page_table = device_array(request, SLOT_PAGES, bytes, 0);
        host->page_table_stride = device->page_table_stride = entries;
        host->page_table_width = device->page_table_width = entries;
        host->page_size_log2 = device->page_size_log2 = spec->page_size_log2;
    }
    if (spec->row_offsets) {
        int32_t *offsets = host_array(request, SLOT_OFFSETS, rows * sizeof(int32_t));
        for (size_t row = 0; row < rows; row++) {
            offsets[row] = (int32_t)(row * 1000003u % 100000000u);
        }
        host->row_offsets = offsets;
        device->row_offsets = device_array(request, SLOT_OFFSETS, rows * sizeof(int32_t), 0);
    }
}

void gpu_request_init(const struct gpu_spec *spec, struct gpu_request *request)
{
    memset(request, 0, sizeof(*request));
    request->spec = *spec;
    struct inputs_spec *inputs = &request->spec.inputs;
    inputs->k = spec->k;
    if (inputs->row_stride == 0) {
        inputs->row_stride = inputs->width;
    }
    size_t rows = (size_t)inputs->num_rows, k = (size_t)spec->k;
    const size_t element = topk_dtype_bytes(spec->options.dtype);
    size_t score_bytes = inputs_elements(inputs) * element;
    struct topk_args *host = &request->host;
    void *scores = host_array(request, SLOT_SCORES, score_bytes);
    int32_t *lengths = host_array(request, SLOT_LENGTHS, rows * sizeof(int32_t));
    inputs_fill_lengths(inputs, spec->lengths, lengths);
    inputs_fill_typed(inputs, spec->options.dtype, lengths, scores);
    host->scores = scores;
    host->lengths = lengths;
    host->row_stride = inputs->row_stride;
    host->indices = host_array(request, SLOT_INDICES, rows * k * sizeof(int32_t));
    host->index_stride = spec->k;
    host->num_rows = inputs->num_rows;
    host->width = inputs->width;
    host->k = spec->k;
    request->device = *host;
    struct topk_args *device = &request->device;
    device->scores =
        device_array(request, SLOT_SCORES, score_bytes, (size_t)spec->offset * element);
    device->lengths = device_array(request, SLOT_LENGTHS, rows * sizeof(int32_t), 0);
    device->indices = device_array(request, SLOT_INDICES, rows * k * sizeof(int32_t), 4);
    make_extras(request);
    CHECK_CUDA(cudaMalloc((void **)&request->d_routes, sizeof(struct topk_routes)));
    CHECK_CUDA(cudaMemset(request->d_routes, 0, sizeof(struct topk_routes)));
    device->routes = request->d_routes;
    CHECK_CUDA(cudaMalloc((void **)&request->d_args, sizeof(struct topk_args)));
    gpu_request_send(request);
}

void gpu_request_fini(struct gpu_request *request)
{
    for (int i = 0; i < 8; i++) {
        CHECK_CUDA(cudaFree(request->d_memory[i]));
        free(request->h_memory[i]);
    }
    CHECK_CUDA(cudaFree(request->d_routes));
    CHECK_CUDA(cudaFree(request->d_args));
}

void gpu_request_send(struct gpu_request *request)
{
    CHECK_CUDA(cudaMemcpy(request->d_args, &request->device, sizeof(request->device),
                          cudaMemcpyHostToDevice));
}

void gpu_request_poison(struct gpu_request *request)
{
    size_t bytes = (size_t)request->spec.inputs.num_rows * (size_t)request->spec.k * 4;
    CHECK_CUDA(cudaMemset(request->device.indices, 0x7e, bytes));
    if (request->device.values != NULL) {
        CHECK_CUDA(cudaMemset(request->device.values, 0x7e, bytes));
    }
    CHECK_CUDA(cudaDeviceSynchronize());
}

struct judge {
    const struct gpu_request *request;
    int32_t first, step;
    bool good;
    char detail[ORACLE_DETAIL_SIZE];
};

static void *judge_rows(void *argument)
{
    struct judge *judge = argument;
    const struct topk_args *args = &judge->request->host;
    judge->good = true;
    for (int32_t row = judge->first; row < args->num_rows && judge->good; row += judge->step) {
        struct oracle_row one = oracle_row_of(args, &judge->request->spec.options, row);
        char detail[ORACLE_DETAIL_SIZE];
        judge->good = oracle_check_row(
            &one, args->indices + row * args->index_stride,
            args->values != NULL ? args->values + row * args->value_stride : NULL, detail);
        if (!judge->good) {
            snprintf(judge->detail, sizeof(judge->detail), "row %d: %.290s", row, detail);
        }
    }
    return NULL;
}

bool gpu_request_judge(struct gpu_request *request, char *detail)
{
    struct topk_args *host = &request->host;
    size_t bytes = (size_t)request->spec.inputs.num_rows * (size_t)request->spec.k * 4;
    CHECK_CUDA(cudaMemcpy(host->indices, request->device.indices, bytes, cudaMemcpyDeviceToHost));
    if (host->values != NULL) {
        CHECK_CUDA(cudaMemcpy(host->values, request->device.values, bytes, cudaMemcpyDeviceToHost));
    }
    struct judge judges[JUDGES_MAX];
    pthread_t threads[JUDGES_MAX];
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    int count = (int)(online < 1 ? 1 : (online > JUDGES_MAX ? JUDGES_MAX : online));
    count = count < host->num_rows ? count : host->num_rows;
    for (int i = 0; i < count; i++) {
        judges[i] = (struct judge){.request = request, .first = i, .step = count};
        if (pthread_create(&threads[i], NULL, judge_rows, &judges[i]) != 0) {
            printf("cannot start a thread\n");
            gpu_give_up();
        }
    }
    bool good = true;
    for (int i = 0; i < count; i++) {
        pthread_join(threads[i], NULL);
        if (!judges[i].good && good) {
            good = false;
            memcpy(detail, judges[i].detail, ORACLE_DETAIL_SIZE);
        }
    }
    return good;
}

struct topk_shape gpu_shape(const struct gpu_spec *spec, bool spare)
{
    struct topk_shape shape = {
        .k = spec->k,
        .rows = spec->inputs.num_rows + (spare ? 3 : 0),
        .width = spec->inputs.width + (spare ? 100 : 0),
        .alignment_bytes = spec->alignment_bytes != 0
                               ? spec->alignment_bytes
                               : (int32_t)topk_dtype_bytes(spec->options.dtype),
        .options = spec->options,
    };
    return shape;
}

bool gpu_serves(const struct gpu_spec *spec, enum topk_family family, int32_t variant)
{
    struct topk_shape shape = gpu_shape(spec, false);
    struct topk_plan plan;
    char detail[TOPK_DETAIL_SIZE];
    return topk_plan_make_family(&shape, gpu_device(), family, variant, &plan, detail) == TOPK_OK;
}

bool gpu_plan_init(const struct topk_shape *shape, enum topk_family family, int32_t variant,
                   struct gpu_plan *plan)
{
    char detail[TOPK_DETAIL_SIZE] = "";
    enum topk_status status =
        family == TOPK_FAMILY_COUNT
            ? topk_plan_make(shape, gpu_device(), &plan->plan, detail)
            : topk_plan_make_family(shape, gpu_device(), family, variant, &plan->plan, detail);
    if (status != TOPK_OK) {
        return false;
    }
    CHECK_CUDA(cudaMalloc(&plan->d_workspace, (size_t)plan->plan.workspace_bytes));
    /* Nothing may depend on what the memory held before. */
    CHECK_CUDA(cudaMemset(plan->d_workspace, 0xa5, (size_t)plan->plan.workspace_bytes));
    status = topk_cuda_load(&plan->plan, detail);
    if (status == TOPK_OK) {
        status = topk_cuda_workspace_init(&plan->plan, plan->d_workspace, NULL, detail);
    }
    if (status != TOPK_OK) {
        printf("%s\n", detail);
        gpu_give_up();
    }
    CHECK_CUDA(cudaDeviceSynchronize());
    return true;
}

void gpu_plan_fini(struct gpu_plan *plan)
{
    CHECK_CUDA(cudaFree(plan->d_workspace));
}

void gpu_enqueue(const struct gpu_plan *plan, const struct gpu_request *request,
                 cudaStream_t stream)
{
    char detail[TOPK_DETAIL_SIZE];
    if (topk_cuda_enqueue(&plan->plan, request->d_args, plan->d_workspace, stream, detail) !=
        TOPK_OK) {
        printf("enqueue: %s\n", detail);
        gpu_give_up();
    }
}
