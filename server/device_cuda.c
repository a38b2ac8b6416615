#include "device_cuda.h"

#include "assert.h"
#include "canary.h"
#include "detail.h"
#include "log.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CANARY_TIMEOUT_NS                                                                          \
    UINT64_C(10000000000) /* choice: it takes some 20 us on an idle device                         \
                           */
/* Choice: statistics may be older than now when the device is too busy to copy 64 bytes. */
#define ROUTES_TIMEOUT_NS UINT64_C(2000000)

uint64_t cuda_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

void cuda_pause_ns(uint64_t pause_ns)
{
    const struct timespec pause = {.tv_nsec = (long)pause_ns};
    (void)nanosleep(&pause, NULL);
}

void cuda_enter(struct device_cuda *cuda)
{
    cuda->driver->cuCtxSetCurrent(cuda->context);
}

/* What an operator can do about an error of the driver; "" where its text says all. */
static const char *hint_of(CUresult result)
{
    switch (result) {
    case CUDA_ERROR_DEVICE_UNAVAILABLE:
    case CUDA_ERROR_MPS_CONNECTION_FAILED:
    case CUDA_ERROR_MPS_SERVER_NOT_READY:
    case CUDA_ERROR_MPS_MAX_CLIENTS_REACHED:
    case CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED:
        return "; the device may be in exclusive mode, or the clients of MPS have used up its "
               "hardware channels: unset CUDA_DEVICE_MAX_CONNECTIONS in them (topkctl doctor)";
    case CUDA_ERROR_OUT_OF_MEMORY:
        return "; free device memory, or lower the limits";
    case CUDA_ERROR_NO_DEVICE:
        return "; no GPU is visible to the daemon: check the driver, CUDA_VISIBLE_DEVICES and the "
               "container's devices";
    case CUDA_ERROR_SYSTEM_NOT_READY:
        return "; the fabric manager is not running";
    default:
        return "";
    }
}

enum topkd_status cuda_fail(struct device_cuda *cuda, CUresult result, enum topkd_status otherwise,
                            const char *what, char *detail)
{
    enum topkd_status status = otherwise;
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        status = TOPKD_E_NO_MEMORY;
    if (cuda_error_is_sticky(result))
        status = TOPKD_E_DEVICE_FAULT;
    char error[CUDA_ERROR_SIZE];
    return detail_set(detail, status, "%s: %s%s", what,
                      cuda_driver_error(cuda->driver, result, error), hint_of(result));
}

/* ---- The device by its UUID ------------------------------------------------------------------ */

static void uuid_text(const CUuuid *uuid, char text[WIRE_UUID_SIZE])
{
    uint8_t b[16];
    memcpy(b, uuid->bytes, sizeof(b));
    (void)snprintf(text, WIRE_UUID_SIZE,
                   "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0],
                   b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13],
                   b[14], b[15]);
}

static enum topkd_status find_device(struct device_cuda *cuda, const char *wanted, char *detail)
{
    const struct cuda_driver *driver = cuda->driver;
    int count = 0;
    CUresult result = driver->cuDeviceGetCount(&count);
    if (result != CUDA_SUCCESS)
        return cuda_fail(cuda, result, TOPKD_E_NO_DEVICE, "cannot count the GPUs", detail);
    for (int i = 0; i < count; i++) {
        CUdevice device;
        CUuuid uuid;
        char text[WIRE_UUID_SIZE];
        if (driver->cuDeviceGet(&device, i) != CUDA_SUCCESS ||
            driver->cuDeviceGetUuid(&uuid, device) != CUDA_SUCCESS)
            continue;
        uuid_text(&uuid, text);
        if (strcmp(text, wanted) == 0) {
            cuda->device = device;
            cuda->ordinal = i;
            memcpy(cuda->uuid, text, sizeof(text));
            result = driver->cuDeviceGetName(cuda->name, sizeof(cuda->name), device);
            return result == CUDA_SUCCESS
                       ? TOPKD_OK
                       : cuda_fail(cuda, result, TOPKD_E_NO_DEVICE, "the GPU has no name", detail);
        }
    }
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    return detail_set(detail, TOPKD_E_NOT_VISIBLE,
                      "no GPU %s among the %d that this process sees (CUDA_VISIBLE_DEVICES is %s); "
                      "compare nvidia-smi -L",
                      wanted, count, visible != NULL ? visible : "not set");
}

static enum topkd_status check_features(struct device_cuda *cuda, char *detail)
{
    int has_memops = 0;
    CUresult result = cuda->driver->cuDeviceGetAttribute(
        &has_memops, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, cuda->device);
    if (result != CUDA_SUCCESS)
        return cuda_fail(cuda, result, TOPKD_E_NO_DEVICE, "cannot read the GPU's features", detail);
    if (!has_memops)
        return detail_set(detail, TOPKD_E_UNSUPPORTED,
                          "%s cannot write 64-bit values from a stream, which semaphores need",
                          cuda->name);
    return TOPKD_OK;
}

/* Driver, device, context. */
static enum topkd_status open_context(struct device_cuda *cuda, const char *uuid, char *detail)
{
    cuda->driver = cuda_driver_get(detail);
    if (cuda->driver == NULL)
        return TOPKD_E_NO_DEVICE;
    char connections[16];
    (void)snprintf(connections, sizeof(connections), "%u", CUDA_CONNECTIONS);
    /* Both are read by cuInit. Eager: a kernel that is loaded at its first launch waits for all
     * work of the context. */
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", connections, 1);
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    CUresult result = cuda->driver->cuInit(0);
    if (result != CUDA_SUCCESS)
        return cuda_fail(cuda, result, TOPKD_E_NO_DEVICE, "cannot start CUDA", detail);
    enum topkd_status status = find_device(cuda, uuid, detail);
    if (status == TOPKD_OK)
        status = check_features(cuda, detail);
    if (status != TOPKD_OK)
        return status;
    char reason[TOPK_DETAIL_SIZE] = "";
    if (topk_cuda_device(cuda->ordinal, &cuda->properties, reason) != TOPK_OK)
        return detail_set(detail, TOPKD_E_NO_DEVICE, "%s: %s", uuid, reason);
    result = cuda->driver->cuDevicePrimaryCtxRetain(&cuda->context, cuda->device);
    if (result != CUDA_SUCCESS) {
        cuda->context = NULL;
        return cuda_fail(cuda, result, TOPKD_E_NO_DEVICE, "cannot make a context", detail);
    }
    cuda_enter(cuda);
    return TOPKD_OK;
}

/* ---- The canary ------------------------------------------------------------------------------ */

#define CANARY_SCORES_BYTES (sizeof(float) * CANARY_ROWS * CANARY_WIDTH)
#define CANARY_INDICES_BYTES (sizeof(int32_t) * CANARY_ROWS * CANARY_K)

static enum topkd_status canary_open(struct device_cuda *cuda, char *detail)
{
    const struct cuda_driver *driver = cuda->driver;
    CUresult result = driver->cuMemAlloc(&cuda->canary.d_scores, CANARY_SCORES_BYTES);
    if (result == CUDA_SUCCESS)
        result = driver->cuMemAlloc(&cuda->canary.d_indices, CANARY_INDICES_BYTES);
    if (result == CUDA_SUCCESS)
        result = driver->cuMemHostAlloc((void **)&cuda->canary.h_scores,
                                        CANARY_SCORES_BYTES + CANARY_INDICES_BYTES, 0);
    if (result != CUDA_SUCCESS)
        return cuda_fail(cuda, result, TOPKD_E_SYSTEM, "no memory for the canary", detail);
    cuda->canary.h_indices =
        (int32_t *)(cuda->canary.h_scores + (size_t)CANARY_ROWS * CANARY_WIDTH);
    struct topk_args args;
    struct topk_options options;
    canary_args(cuda->canary.h_scores, cuda->canary.h_indices, &args, &options);
    cuda->canary.bucket.key = (struct bucket_key){.rows = CANARY_ROWS,
                                                  .width = CANARY_WIDTH,
                                                  .k = CANARY_K,
                                                  .alignment_bytes = 16,
                                                  .options = options};
    return cuda_bucket_open(&cuda->base, &cuda->canary.bucket, detail);
}

static void canary_close(struct device_cuda *cuda)
{
    if (cuda->canary.track.cuda == NULL)
        return;
    cuda_bucket_close(&cuda->base, &cuda->canary.bucket);
    if (!cuda->is_faulted) {
        if (cuda->canary.h_scores != NULL)
            cuda->driver->cuMemFreeHost(cuda->canary.h_scores);
        if (cuda->canary.d_indices != 0)
            cuda->driver->cuMemFree(cuda->canary.d_indices);
        if (cuda->canary.d_scores != 0)
            cuda->driver->cuMemFree(cuda->canary.d_scores);
    }
    cuda_track_fini(&cuda->canary.track);
}

/* Scores up, selection, indices down. */
static enum topkd_status canary_enqueue(struct device_cuda *cuda, char *detail)
{
    const struct cuda_driver *driver = cuda->driver;
    struct cuda_track *track = &cuda->canary.track;
    struct cuda_exec *exec;
    pthread_mutex_lock(&cuda->mutex);
    enum topkd_status status = cuda_exec_get(track, cuda->canary.bucket.prepared, &exec, detail);
    pthread_mutex_unlock(&cuda->mutex);
    if (status != TOPKD_OK)
        return status;
    struct cuda_request *request = cuda_track_room(track, offsetof(struct cuda_request, lengths));
    struct topk_options options;
    canary_args((const float *)(uintptr_t)cuda->canary.d_scores,
                (int32_t *)(uintptr_t)cuda->canary.d_indices, &request->args, &options);
    CUresult result = driver->cuMemcpyHtoDAsync(cuda->canary.d_scores, cuda->canary.h_scores,
                                                CANARY_SCORES_BYTES, track->stream);
    if (result == CUDA_SUCCESS)
        result = driver->cuMemcpyHtoDAsync(cuda->canary.d_indices, cuda->canary.h_indices,
                                           CANARY_INDICES_BYTES, track->stream);
    const struct cuda_enqueue enqueue = {.request = request,
                                         .size_bytes = offsetof(struct cuda_request, lengths)};
    if (result == CUDA_SUCCESS)
        result = cuda_track_enqueue(track, cuda->canary.bucket.prepared, exec, &enqueue);
    if (result == CUDA_SUCCESS)
        result = driver->cuMemcpyDtoHAsync(cuda->canary.h_indices, cuda->canary.d_indices,
                                           CANARY_INDICES_BYTES, track->stream);
    return result == CUDA_SUCCESS ? TOPKD_OK
                                  : cuda_fail(cuda, result, TOPKD_E_DEVICE_FAULT, "canary", detail);
}

static enum topkd_status cuda_self_test(struct device *device, uint64_t seed, char *detail)
{
    struct device_cuda *cuda = device_cuda_of(device);
    if (__atomic_load_n(&cuda->is_faulted, __ATOMIC_RELAXED))
        return detail_set(detail, TOPKD_E_DEVICE_FAULT, "the device has failed");
    cuda_enter(cuda);
    canary_fill(seed, cuda->canary.h_scores, cuda->canary.h_indices);
    enum topkd_status status = canary_enqueue(cuda, detail);
    if (status != TOPKD_OK)
        return status;
    CUresult result = cuda_stream_wait(cuda, cuda->canary.track.stream, CANARY_TIMEOUT_NS);
    if (result == CUDA_ERROR_NOT_READY)
        return detail_set(detail, TOPKD_E_DEVICE_FAULT,
                          "the canary has not ended within %" PRIu64 " ms",
                          CANARY_TIMEOUT_NS / 1000000u);
    if (result != CUDA_SUCCESS)
        return cuda_fail(cuda, result, TOPKD_E_DEVICE_FAULT, "canary", detail);
    return canary_check(seed, cuda->canary.h_indices, detail) ? TOPKD_OK : TOPKD_E_DEVICE_FAULT;
}

/* ---- Open and close -------------------------------------------------------------------------- */

/* "<path>.sock" of the worker's socket as "<path>.fds". */
static enum topkd_status channel_open(struct device_cuda *cuda, const struct device_config *config,
                                      char *detail)
{
    char path[WIRE_URL_SIZE];
    const char *from = config->socket_path;
    size_t length = strlen(from);
    const char *suffix = length > 5 ? from + length - 5 : "";
    if (strcmp(suffix, ".sock") != 0 || length >= sizeof(path))
        return detail_set(detail, TOPKD_E_INVALID, "socket path %s does not end in .sock", from);
    (void)snprintf(path, sizeof(path), "%.*s%s", (int)(length - 5), from, FD_SOCKET_SUFFIX);
    struct fd_channel_config channel = {
        .path = path, .rights = config->socket_rights, .gate = config->gate};
    return fd_channel_open(&channel, &cuda->channel, detail);
}

/* Not an error: everything works without, slowly. But a kernel that looks for a client's word would
 * hold the time slice in which the client could write it. */
static void settle_without_mps(struct device_cuda *cuda)
{
    int has_mps = 0;
    CUresult result =
        cuda->driver->cuDeviceGetAttribute(&has_mps, CU_DEVICE_ATTRIBUTE_MPS_ENABLED, cuda->device);
    if (result != CUDA_SUCCESS || has_mps == 0)
        cuda->mailbox_poll_us = 0;
    if (result == CUDA_SUCCESS && has_mps == 0)
        log_warn("mps_missing",
                 "device=%s effect=\"processes take turns on the GPU in time slices; a step of a "
                 "lane took 298 us instead of 23 with one client, 1394 instead of 28 with eight "
                 "(H200, 1x131072)\" fix=\"start nvidia-cuda-mps-control -d first\"",
                 cuda->uuid);
}

static enum topkd_status steps_open(char *detail)
{
    char reason[TOPK_DETAIL_SIZE] = "";
    if (topk_cuda_step_load(reason) == TOPK_OK)
        return TOPKD_OK;
    return detail_set(detail, TOPKD_E_UNSUPPORTED, "cannot load the kernels of lanes: %s", reason);
}

/* Counters of rows, and where they are copied to. */
static enum topkd_status routes_open(struct device_cuda *cuda, char *detail)
{
    const struct cuda_driver *driver = cuda->driver;
    size_t size_bytes = sizeof(struct topk_routes);
    CUresult result = driver->cuMemAlloc(&cuda->d_routes, size_bytes);
    if (result == CUDA_SUCCESS)
        result = driver->cuMemHostAlloc((void **)&cuda->h_routes, size_bytes + 64, 0);
    if (result == CUDA_SUCCESS)
        result = driver->cuMemsetD8Async(cuda->d_routes, 0, size_bytes, cuda->routes_stream);
    if (result == CUDA_SUCCESS)
        result = driver->cuStreamSynchronize(cuda->routes_stream);
    if (result != CUDA_SUCCESS)
        return cuda_fail(cuda, result, TOPKD_E_SYSTEM, "cannot prepare the device", detail);
    memset(cuda->h_routes, 0, size_bytes);
    cuda->h_scratch = cuda->h_routes + 1;
    return TOPKD_OK;
}

static void cuda_close(struct device *device)
{
    struct device_cuda *cuda = device_cuda_of(device);
    if (cuda->poller_started)
        cuda_poller_stop(cuda);
    if (cuda->context != NULL)
        canary_close(cuda);
    for (uint32_t i = 0; i < cuda->num_lanes; i++) {
        topkd_assert(cuda->lanes[i]->num_jobs == 0);
        cuda_lane_fini(cuda->lanes[i]);
        free(cuda->lanes[i]);
    }
    topkd_assert(cuda->num_mailboxes == 0);
    cuda_queues_close(cuda);
    fd_channel_close(cuda->channel);
    if (cuda->context != NULL && !cuda->is_faulted) {
        if (cuda->h_routes != NULL)
            cuda->driver->cuMemFreeHost(cuda->h_routes);
        if (cuda->d_routes != 0)
            cuda->driver->cuMemFree(cuda->d_routes);
        cuda->driver->cuDevicePrimaryCtxRelease(cuda->device);
    }
    pthread_mutex_destroy(&cuda->routes_mutex);
    pthread_mutex_destroy(&cuda->mutex);
    free(cuda);
}

/* A fault on purpose, for tests of what a lost device does to others: the n-th selection of this
 * worker reads an illegal address. Nothing of it can be reached through a socket. */
static void read_test_fault(struct device_cuda *cuda)
{
    const char *text = getenv("TOPKD_TEST_CUDA_FAULT");
    if (text == NULL)
        return;
    cuda->fault_countdown = (uint32_t)strtoul(text, NULL, 10);
    log_warn("test_fault_armed", "kind=illegal_address after=%" PRIu32, cuda->fault_countdown);
}

static const struct device_ops cuda_ops;

static enum topkd_status cuda_open(const struct device_config *config, struct device **device_p,
                                   char *detail)
{
    struct device_cuda *cuda = calloc(1, sizeof(*cuda));
    if (cuda == NULL)
        return detail_set(detail, TOPKD_E_NO_MEMORY, "no memory for the CUDA device");
    cuda->base.ops = &cuda_ops;
    cuda->mailboxes_max = config->client_lanes_max < CUDA_MAILBOXES_MAX ? config->client_lanes_max
                                                                        : CUDA_MAILBOXES_MAX;
    cuda->mailbox_idle_ns = (uint64_t)config->lane_idle_ms * UINT64_C(1000000);
    cuda->mailbox_poll_us = config->lane_poll_us;
    pthread_mutex_init(&cuda->mutex, NULL);
    pthread_mutex_init(&cuda->routes_mutex, NULL);
    read_test_fault(cuda);
    enum topkd_status status = open_context(cuda, config->device, detail);
    if (status == TOPKD_OK)
        status = channel_open(cuda, config, detail);
    if (status == TOPKD_OK)
        status = cuda_queues_open(cuda, detail);
    if (status == TOPKD_OK)
        status = routes_open(cuda, detail);
    if (status == TOPKD_OK)
        status = canary_open(cuda, detail);
    if (status == TOPKD_OK)
        status = steps_open(detail);
    if (status == TOPKD_OK)
        status = cuda_queues_check(cuda, detail);
    if (status == TOPKD_OK)
        settle_without_mps(cuda);
    if (status == TOPKD_OK)
        status = cuda_lanes_reserve(cuda, config->lanes, detail);
    if (status == TOPKD_OK)
        status = cuda_poller_start(cuda, detail);
    if (status != TOPKD_OK) {
        cuda_close(&cuda->base);
        return status;
    }
    cuda->poller_started = true;
    *device_p = &cuda->base;
    return TOPKD_OK;
}

/* ---- The table ------------------------------------------------------------------------------- */

/* The types of scores that the planner has kernels for. */
static uint32_t dtypes_of(const struct device_cuda *cuda)
{
    uint32_t dtypes = 0;
    for (int dtype = 0; dtype < TOPK_DTYPE_COUNT; dtype++) {
        struct topk_shape shape = {.k = 1,
                                   .rows = 1,
                                   .width = 1,
                                   .alignment_bytes = 4,
                                   .options.dtype = (enum topk_dtype)dtype};
        struct topk_plan plan;
        if (topk_plan_make(&shape, &cuda->properties, &plan, NULL) == TOPK_OK)
            dtypes |= 1u << dtype;
    }
    return dtypes;
}

static void cuda_info(const struct device *device, struct device_info *info_p)
{
    const struct device_cuda *cuda = (const struct device_cuda *)device;
    *info_p = (struct device_info){.kind = WIRE_DEVICE_CUDA,
                                   .k_max = TOPK_K_MAX,
                                   .rows_max = TOPK_ROWS_MAX,
                                   .width_max = TOPK_WIDTH_MAX,
                                   .dtypes = dtypes_of(cuda),
                                   .client_lanes_max = cuda->mailboxes_max};
    memcpy(info_p->name, cuda->name, sizeof(info_p->name));
}

void cuda_routes_lock(struct device_cuda *cuda)
{
    __atomic_fetch_add(&cuda->routes_wanted, 1, __ATOMIC_SEQ_CST);
    pthread_mutex_lock(&cuda->routes_mutex);
    __atomic_fetch_sub(&cuda->routes_wanted, 1, __ATOMIC_SEQ_CST);
}

static void cuda_routes(const struct device *device, struct topk_routes *routes_p)
{
    struct device_cuda *cuda = device_cuda_of((struct device *)device);
    const struct cuda_driver *driver = cuda->driver;
    cuda_routes_lock(cuda);
    if (!__atomic_load_n(&cuda->is_faulted, __ATOMIC_RELAXED) &&
        driver->cuStreamQuery(cuda->routes_stream) == CUDA_SUCCESS &&
        driver->cuMemcpyDtoHAsync(cuda->h_routes, cuda->d_routes, sizeof(*routes_p),
                                  cuda->routes_stream) == CUDA_SUCCESS) {
        uint64_t until_ns = cuda_now_ns() + ROUTES_TIMEOUT_NS;
        while (driver->cuStreamQuery(cuda->routes_stream) == CUDA_ERROR_NOT_READY &&
               cuda_now_ns() < until_ns) {
        }
    }
    *routes_p = *cuda->h_routes;
    pthread_mutex_unlock(&cuda->routes_mutex);
}

static bool cuda_is_lost(const struct device *device)
{
    const struct device_cuda *cuda = (const struct device_cuda *)device;
    return __atomic_load_n(&cuda->is_faulted, __ATOMIC_RELAXED);
}

static const struct device_ops cuda_ops = {
    .open = cuda_open,
    .close = cuda_close,
    .info = cuda_info,
    .routes = cuda_routes,
    .bucket_open = cuda_bucket_open,
    .bucket_close = cuda_bucket_close,
    .shared_create = cuda_shared_create,
    .shared_destroy = cuda_shared_destroy,
    .memory_open = cuda_memory_open,
    .memory_map = cuda_memory_map,
    .memory_close = cuda_memory_close,
    .memory_faulted = cuda_memory_faulted,
    .memory_unlink = cuda_memory_unlink,
    .lane_create = cuda_lane_create,
    .lane_destroy = cuda_lane_destroy,
    .lane_submit = cuda_lane_submit,
    .lane_cancel = cuda_lane_cancel,
    .look = cuda_look,
    .is_lost = cuda_is_lost,
    .mailbox_open = cuda_mailbox_open,
    .mailbox_close = cuda_mailbox_close,
    .mailbox_counts = cuda_mailbox_counts,
    .self_test = cuda_self_test,
};

const struct device_ops *device_cuda_ops(void)
{
    return &cuda_ops;
}
