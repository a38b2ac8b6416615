#include "device_cuda.h"

#include "assert.h"
#include "detail.h"

#include <inttypes.h>
#include <stdlib.h>

/* ---- Workspaces ------------------------------------------------------------------------------ */

/* A workspace of at least size_bytes; the newest is the largest. */
static enum topkd_status workspace_get(struct cuda_track *track, uint64_t size_bytes,
                                       CUdeviceptr *address_p, char *detail)
{
    struct cuda_workspaces *all = &track->workspaces;
    uint64_t had_bytes = all->num > 0 ? all->entries[all->num - 1].size_bytes : 0;
    if (had_bytes >= size_bytes) {
        *address_p = all->entries[all->num - 1].address;
        return TOPKD_OK;
    }
    if (all->num == CUDA_WORKSPACES_MAX)
        return detail_set(detail, TOPKD_E_LIMIT,
                          "a workspace of %" PRIu64 " bytes, after %u smaller ones", size_bytes,
                          CUDA_WORKSPACES_MAX);
    uint64_t wanted_bytes = had_bytes * 2 > size_bytes ? had_bytes * 2 : size_bytes;
    wanted_bytes = (wanted_bytes + CUDA_BLOCK_BYTES - 1) / CUDA_BLOCK_BYTES * CUDA_BLOCK_BYTES;
    CUdeviceptr address;
    CUresult result = track->cuda->driver->cuMemAlloc(&address, wanted_bytes);
    if (result != CUDA_SUCCESS)
        return cuda_fail(track->cuda, result, TOPKD_E_SYSTEM, "cannot allocate a workspace",
                         detail);
    all->entries[all->num].address = address;
    all->entries[all->num].size_bytes = wanted_bytes;
    all->num++;
    track->last = NULL;
    *address_p = address;
    return TOPKD_OK;
}

/* ---- Graphs ---------------------------------------------------------------------------------- */

/* One selection; for a mailbox, the steps of one launch. */
static enum topk_status enqueue(struct cuda_track *track, const struct topk_plan *plan,
                                CUdeviceptr workspace, const struct device_mailbox *mailbox,
                                char *reason)
{
    struct device_cuda *cuda = track->cuda;
    CUstream stream = cuda->capture_stream;
    const struct topk_args *d_args = (const struct topk_args *)(uintptr_t)track->d_request;
    void *d_workspace = (void *)(uintptr_t)workspace;
    if (mailbox == NULL)
        return topk_cuda_enqueue(plan, d_args, d_workspace, stream, reason);
    struct topk_step *d_step =
        (struct topk_step *)(uintptr_t)(track->d_request + offsetof(struct cuda_request, step));
    /* All words in one comparison: the low one asked (ANSWERED has another bit), any release, or
     * the kernel that begins the step looks for itself. */
    const uint64_t bits = (uint64_t)WIRE_MAILBOX_AWAKE << 48 |
                          (uint64_t)WIRE_MAILBOX_RELEASED << 32 | WIRE_MAILBOX_ASKED;
    enum topk_status status = TOPK_OK;
    for (uint32_t i = 0; i < CUDA_STEPS_PER_LAUNCH && status == TOPK_OK; i++) {
        if (cuda->driver->cuStreamWaitValue64(stream, mailbox->d_mailbox, bits,
                                              CU_STREAM_WAIT_VALUE_AND) != CUDA_SUCCESS)
            return TOPK_E_CUDA;
        status = topk_cuda_step_begin(d_step, mailbox->poll_us > 0, stream, reason);
        if (status == TOPK_OK)
            status = topk_cuda_enqueue(plan, d_args, d_workspace, stream, reason);
        if (status == TOPK_OK)
            status = topk_cuda_step_end(d_step, stream, reason);
    }
    return status;
}

static enum topkd_status capture(struct cuda_track *track, const struct topk_plan *plan,
                                 CUdeviceptr workspace, const struct device_mailbox *mailbox,
                                 CUgraph *graph_p, char *detail)
{
    struct device_cuda *cuda = track->cuda;
    const struct cuda_driver *driver = cuda->driver;
    CUresult result =
        driver->cuStreamBeginCapture(cuda->capture_stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    if (result != CUDA_SUCCESS)
        return cuda_fail(cuda, result, TOPKD_E_SYSTEM, "cannot capture a graph", detail);
    char reason[TOPK_DETAIL_SIZE] = "";
    enum topk_status status = enqueue(track, plan, workspace, mailbox, reason);
    CUgraph graph = NULL;
    result = driver->cuStreamEndCapture(cuda->capture_stream, &graph);
    if (status != TOPK_OK) {
        if (graph != NULL)
            driver->cuGraphDestroy(graph);
        return detail_set(detail, TOPKD_E_UNSUPPORTED, "cannot capture the selection: %s: %s",
                          topk_strerror(status), reason);
    }
    if (result != CUDA_SUCCESS)
        return cuda_fail(cuda, result, TOPKD_E_SYSTEM, "cannot end the capture of a graph", detail);
    *graph_p = graph;
    return TOPKD_OK;
}

static enum topkd_status exec_make(struct cuda_track *track, const struct topk_plan *plan,
                                   const struct device_mailbox *mailbox, struct cuda_exec *exec,
                                   char *detail)
{
    struct device_cuda *cuda = track->cuda;
    const struct cuda_driver *driver = cuda->driver;
    CUdeviceptr workspace = 0;
    uint64_t size_bytes = plan->workspace_bytes > 0 ? (uint64_t)plan->workspace_bytes : 1;
    enum topkd_status status = workspace_get(track, size_bytes, &workspace, detail);
    if (status != TOPKD_OK)
        return status;
    CUgraph graph = NULL; /* the kernels were loaded with the bucket's plan */
    status = capture(track, plan, workspace, mailbox, &graph, detail);
    if (status != TOPKD_OK)
        return status;
    CUgraphExec made;
    CUresult result = driver->cuGraphInstantiateWithFlags(&made, graph, 0);
    driver->cuGraphDestroy(graph);
    if (result != CUDA_SUCCESS)
        return cuda_fail(cuda, result, TOPKD_E_SYSTEM, "cannot instantiate a graph", detail);
    result = driver->cuGraphUpload(made, cuda->capture_stream);
    if (result != CUDA_SUCCESS) {
        driver->cuGraphExecDestroy(made);
        return cuda_fail(cuda, result, TOPKD_E_SYSTEM, "cannot upload a graph", detail);
    }
    *exec = (struct cuda_exec){.exec = made, .workspace = workspace};
    return TOPKD_OK;
}

enum topkd_status cuda_exec_get(struct cuda_track *track, struct cuda_bucket *bucket,
                                struct cuda_exec **exec_p, char *detail)
{
    struct cuda_exec *exec = &bucket->execs[track->number];
    if (exec->exec == NULL) {
        enum topkd_status status = exec_make(track, &bucket->plan, NULL, exec, detail);
        if (status != TOPKD_OK)
            return status;
    }
    *exec_p = exec;
    return TOPKD_OK;
}

enum topkd_status cuda_steps_make(struct device_mailbox *mailbox, const struct cuda_bucket *bucket,
                                  char *detail)
{
    struct cuda_track *track = mailbox->track;
    struct cuda_exec exec;
    enum topkd_status status = exec_make(track, &bucket->plan, mailbox, &exec, detail);
    if (status != TOPKD_OK)
        return status;
    mailbox->exec = exec.exec;
    char reason[TOPK_DETAIL_SIZE] = "";
    if (topk_cuda_workspace_init(&bucket->plan, (void *)(uintptr_t)exec.workspace, track->stream,
                                 reason) != TOPK_OK)
        return detail_set(detail, TOPKD_E_SYSTEM, "cannot prepare a workspace: %s", reason);
    return TOPKD_OK;
}

enum topkd_status cuda_exec_prepare(struct cuda_track *track, char *detail)
{
    enum topkd_status status = TOPKD_OK;
    struct cuda_bucket *bucket = track->cuda->buckets;
    for (; bucket != NULL && status == TOPKD_OK; bucket = bucket->next) {
        struct cuda_exec *exec;
        if (bucket->is_pinned)
            status = cuda_exec_get(track, bucket, &exec, detail);
    }
    return status;
}

enum topkd_status cuda_execs_need(struct device_lane *lane, struct bucket *from, char *detail)
{
    struct device_cuda *cuda = lane->cuda;
    struct cuda_bucket *bucket = from->prepared;
    uint32_t num_missing = 0;
    pthread_mutex_lock(&cuda->mutex);
    for (uint32_t i = 0; i < CUDA_LANE_TRACKS; i++)
        num_missing += bucket->execs[lane->tracks[i].number].exec == NULL;
    pthread_mutex_unlock(&cuda->mutex);
    if (num_missing == 0)
        return TOPKD_OK;
    enum topkd_status status = cuda_quiet_need(cuda, "a shape that is new to a session", detail);
    if (status != TOPKD_OK)
        return status;
    pthread_mutex_lock(&cuda->mutex);
    for (uint32_t i = 0; i < CUDA_LANE_TRACKS && status == TOPKD_OK && !cuda->is_faulted; i++) {
        struct cuda_exec *exec;
        status = cuda_exec_get(&lane->tracks[i], bucket, &exec, detail);
    }
    pthread_mutex_unlock(&cuda->mutex);
    cuda_quiet_end(cuda);
    __atomic_add_fetch(&from->num_misses, 1, __ATOMIC_RELAXED);
    return status;
}

void cuda_exec_forget(struct cuda_track *track)
{
    struct cuda_bucket *bucket = track->cuda->buckets;
    for (; bucket != NULL; bucket = bucket->next) {
        struct cuda_exec *exec = &bucket->execs[track->number];
        if (exec->exec != NULL && !track->cuda->is_faulted)
            track->cuda->driver->cuGraphExecDestroy(exec->exec);
        *exec = (struct cuda_exec){.exec = NULL};
    }
}

/* ---- Buckets --------------------------------------------------------------------------------- */

static struct cuda_track *track_at(struct device_cuda *cuda, uint32_t number)
{
    return &cuda->lanes[number / CUDA_LANE_TRACKS]->tracks[number % CUDA_LANE_TRACKS];
}

static enum topkd_status status_of_plan(enum topk_status status)
{
    switch (status) {
    case TOPK_E_INVALID:
        return TOPKD_E_INVALID;
    case TOPK_E_UNSUPPORTED:
        return TOPKD_E_UNSUPPORTED;
    case TOPK_E_NO_MEMORY:
        return TOPKD_E_NO_MEMORY;
    default:
        return TOPKD_E_DEVICE_FAULT;
    }
}

/* Plans, and loads the kernels. */
static enum topkd_status bucket_plan(struct device_cuda *cuda, const struct bucket_key *key,
                                     struct topk_plan *plan_p, char *detail)
{
    struct topk_shape shape = {.k = (int32_t)key->k,
                               .rows = (int32_t)key->rows,
                               .width = (int32_t)key->width,
                               .alignment_bytes = (int32_t)key->alignment_bytes,
                               .options = key->options};
    char reason[TOPK_DETAIL_SIZE] = "";
    enum topk_status status = topk_plan_make(&shape, &cuda->properties, plan_p, reason);
    if (status == TOPK_OK)
        status = topk_cuda_load(plan_p, reason);
    if (status == TOPK_OK)
        return TOPKD_OK;
    return detail_set(detail, status_of_plan(status),
                      "bucket of %" PRIu32 " rows, width %" PRIu32 ", k %" PRIu32 ": %s: %s",
                      key->rows, key->width, key->k, topk_strerror(status), reason);
}

enum topkd_status cuda_bucket_open(struct device *device, struct bucket *from, char *detail)
{
    struct device_cuda *cuda = device_cuda_of(device);
    struct cuda_bucket *bucket = calloc(1, sizeof(*bucket));
    if (bucket == NULL)
        return detail_set(detail, TOPKD_E_NO_MEMORY, "no memory for a bucket");
    bucket->is_pinned = from->is_pinned;
    /* Loading takes a stream for a moment, which may share a hardware queue with one that waits. */
    enum topkd_status status = cuda_quiet_need(cuda, "a shape that is new", detail);
    if (status == TOPKD_OK) {
        status = bucket_plan(cuda, &from->key, &bucket->plan, detail);
        cuda_quiet_end(cuda);
    }
    if (status != TOPKD_OK) {
        free(bucket);
        return status;
    }
    pthread_mutex_lock(&cuda->mutex);
    bucket->next = cuda->buckets;
    if (bucket->next != NULL)
        bucket->next->previous = bucket;
    cuda->buckets = bucket;
    uint32_t num_tracks = bucket->is_pinned ? cuda->num_lanes * CUDA_LANE_TRACKS : 0;
    for (uint32_t i = 0; i < num_tracks && status == TOPKD_OK; i++) {
        struct cuda_exec *exec;
        status = cuda_exec_get(track_at(cuda, i), bucket, &exec, detail);
    }
    pthread_mutex_unlock(&cuda->mutex);
    from->prepared = bucket;
    if (status != TOPKD_OK)
        cuda_bucket_close(device, from);
    return status;
}

void cuda_bucket_close(struct device *device, struct bucket *from)
{
    struct device_cuda *cuda = device_cuda_of(device);
    struct cuda_bucket *bucket = from->prepared;
    if (bucket == NULL)
        return;
    pthread_mutex_lock(&cuda->mutex);
    for (uint32_t i = 0; i < CUDA_TRACKS_ALL; i++) {
        if (bucket->execs[i].exec != NULL && !cuda->is_faulted)
            cuda->driver->cuGraphExecDestroy(bucket->execs[i].exec);
    }
    for (uint32_t i = 0; i < cuda->num_lanes * CUDA_LANE_TRACKS; i++) {
        struct cuda_track *track = track_at(cuda, i);
        if (track->last == bucket)
            track->last = NULL;
    }
    if (bucket->previous != NULL)
        bucket->previous->next = bucket->next;
    else
        cuda->buckets = bucket->next;
    if (bucket->next != NULL)
        bucket->next->previous = bucket->previous;
    pthread_mutex_unlock(&cuda->mutex);
    free(bucket);
    from->prepared = NULL;
}
