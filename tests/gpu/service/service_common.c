/* service_common.c - what the programs of the service test share: a GPU, a session, requests. */
#include "service_client.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char *case_name = "?";
static CUdevice device;
static CUcontext context;

void service_case_begin(const char *name)
{
    case_name = name;
}

_Noreturn void service_fail(const char *file, int line, const char *what, const char *format, ...)
{
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    const char *name = strrchr(file, '/');
    printf("FAIL %s pid=%d %s:%d: %s: %s\n", case_name, (int)getpid(), name ? name + 1 : file, line,
           what, text);
    fflush(stdout);
    _exit(1);
}

void service_expect(const char *file, int line, const char *call, enum topkd_status wanted,
                    enum topkd_status got)
{
    if (got != wanted)
        service_fail(file, line, call, "%s instead of %s: %s", topkd_status_name(got),
                     topkd_status_name(wanted), topkd_detail());
}

void service_cu(const char *file, int line, const char *call, CUresult result)
{
    const char *name = "unknown";
    cuGetErrorName(result, &name);
    if (result != CUDA_SUCCESS)
        service_fail(file, line, call, "%s", name);
}

void service_gpu_open(const char *uuid)
{
    int count = 0;
    CU(cuInit(0));
    CU(cuDeviceGetCount(&count));
    for (int i = 0; i < count; i++) {
        CUuuid id;
        char text[64];
        CU(cuDeviceGet(&device, i));
        CU(cuDeviceGetUuid(&id, device));
        const unsigned char *b = (const unsigned char *)id.bytes;
        snprintf(text, sizeof(text),
                 "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0],
                 b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13],
                 b[14], b[15]);
        if (strcmp(text, uuid) == 0) {
            CU(cuDevicePrimaryCtxRetain(&context, device));
            CU(cuCtxSetCurrent(context));
            return;
        }
    }
    CHECK(false, "no device %s in this process", uuid);
}

CUdevice service_gpu_device(void)
{
    return device;
}

struct topkd_client *service_open(const struct service_options *options, const char *name)
{
    struct topkd_client *client;
    struct topkd_client_options open = {
        .url = options->url, .name = name, .device = options->device};
    EXPECT(TOPKD_OK, topkd_client_open(&open, &client));
    struct topkd_client_info info;
    EXPECT(TOPKD_OK, topkd_client_info(client, &info));
    CHECK(info.device_kind == TOPKD_DEVICE_CUDA, "the session's device is %s", info.device);
    service_gpu_open(info.device);
    return client;
}

double service_now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

void service_sleep_ms(uint32_t ms)
{
    const struct timespec pause = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
    nanosleep(&pause, NULL);
}

/* ---- Requests -------------------------------------------------------------------------------- */

void service_request_open(struct topkd_client *client, int32_t rows, int32_t width, int32_t k,
                          struct service_request *request)
{
    memset(request, 0, sizeof(*request));
    request->inputs = (struct inputs_spec){
        .family = INPUTS_NORMAL, .num_rows = rows, .width = width, .row_stride = width, .k = k};
    request->scores_bytes = (uint64_t)rows * (uint64_t)width * sizeof(float);
    request->indices_bytes = (uint64_t)rows * (uint64_t)k * sizeof(int32_t);
    CU(cuMemAlloc(&request->d_scores, request->scores_bytes));
    CU(cuMemAlloc(&request->d_indices, request->indices_bytes));
    /* Pinned: copies are asynchronous to the host. */
    CU(cuMemHostAlloc((void **)&request->h_scores, request->scores_bytes, 0));
    CU(cuMemHostAlloc((void **)&request->h_indices, request->indices_bytes, 0));
    request->h_lengths = calloc((size_t)rows, sizeof(int32_t));
    CHECK(request->h_lengths, "no memory");
    EXPECT(TOPKD_OK,
           topkd_region_register_cuda(client, (void *)(uintptr_t)request->d_scores,
                                      request->scores_bytes, TOPKD_ACCESS_READ, &request->scores));
    EXPECT(TOPKD_OK, topkd_region_register_cuda(client, (void *)(uintptr_t)request->d_indices,
                                                request->indices_bytes, TOPKD_ACCESS_READ_WRITE,
                                                &request->indices));
    request->request = (struct topkd_select_request){
        .scores = {.region = request->scores},
        .indices = {.region = request->indices},
        .rows = (uint32_t)rows,
        .width = (uint32_t)width,
        .k = (uint32_t)k,
    };
}

void service_request_close(struct service_request *request)
{
    EXPECT(TOPKD_OK, topkd_region_unregister(request->scores));
    EXPECT(TOPKD_OK, topkd_region_unregister(request->indices));
    CU(cuMemFree(request->d_scores));
    CU(cuMemFree(request->d_indices));
    CU(cuMemFreeHost(request->h_scores));
    CU(cuMemFreeHost(request->h_indices));
    free(request->h_lengths);
}

void service_request_draw(struct service_request *request, uint64_t seed)
{
    static const enum inputs_family families[] = {
        INPUTS_NORMAL, INPUTS_MIXED, INPUTS_CLUSTERED, INPUTS_TIES, INPUTS_RELU_ZEROS, INPUTS_BITS};
    struct inputs_spec *inputs = &request->inputs;
    inputs->seed = seed;
    inputs->family = families[seed % (sizeof(families) / sizeof(families[0]))];
    inputs_fill(inputs, request->h_scores);
    memset(request->h_indices, 0x81, request->indices_bytes);
    request->request.lengths_mode = TOPKD_LENGTHS_FULL;
    request->request.lengths_host = NULL;
    if (seed % 3 == 1 && inputs->num_rows <= 8192) {
        request->request.lengths_mode = TOPKD_LENGTHS_HOST;
        request->request.lengths_host = request->h_lengths;
        for (int32_t i = 0; i < inputs->num_rows; i++)
            request->h_lengths[i] = (int32_t)((seed * 2654435761u + (uint64_t)i * 40503u) %
                                              (uint64_t)(inputs->width + 3)) -
                                    1;
    } else if (seed % 3 == 2) {
        request->request.lengths_mode = TOPKD_LENGTHS_ALL;
        request->request.length_all = (int32_t)(seed * 7919u % (uint64_t)(inputs->width + 1));
    }
    request->options.order = (enum topk_order)(seed / 3 % 3);
    request->options.ties = seed % 2 ? TOPK_TIES_LOWEST : TOPK_TIES_ANY;
    request->request.order = (enum topkd_order)request->options.order;
    request->request.ties = (enum topkd_ties)request->options.ties;
}

void service_request_upload(struct service_request *request)
{
    CU(cuMemcpyHtoDAsync(request->d_scores, request->h_scores, request->scores_bytes, NULL));
    CU(cuMemcpyHtoDAsync(request->d_indices, request->h_indices, request->indices_bytes, NULL));
    CU(cuStreamSynchronize(NULL));
}

void service_request_judge(const struct service_request *request)
{
    const struct inputs_spec *inputs = &request->inputs;
    const struct topkd_select_request *asked = &request->request;
    struct topk_args args = {
        .scores = request->h_scores,
        .row_stride = inputs->row_stride,
        .lengths = asked->lengths_mode == TOPKD_LENGTHS_HOST ? request->h_lengths : NULL,
        .indices = request->h_indices,
        .index_stride = inputs->k,
        .num_rows = inputs->num_rows,
        .width = inputs->width,
        .length_all = asked->lengths_mode == TOPKD_LENGTHS_ALL ? asked->length_all : inputs->width,
        .k = inputs->k,
    };
    char detail[ORACLE_DETAIL_SIZE] = "", described[256];
    inputs_describe(inputs, described, sizeof(described));
    CHECK(oracle_check(&args, &request->options, detail), "%s (%s)", detail, described);
}

void service_request_check(struct service_request *request, CUdeviceptr from)
{
    CU(cuMemcpyDtoHAsync(request->h_indices, from ? from : request->d_indices,
                         request->indices_bytes, NULL));
    CU(cuStreamSynchronize(NULL));
    service_request_judge(request);
}
