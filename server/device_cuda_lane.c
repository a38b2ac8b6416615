#include "device_cuda.h"

#include "assert.h"
#include "detail.h"

#include <inttypes.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* ---- Semaphores ------------------------------------------------------------------------------ */

static void futex_wake(struct wire_semaphore *semaphore)
{
    _Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "low 32 bits come first");
    (void)syscall(SYS_futex, (uint32_t *)&semaphore->value, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static bool is_reached(const struct device_lane *lane, const struct device_job *job)
{
    return job->wait.value == 0 || __atomic_load_n(&lane->semaphores[job->wait.index].value,
                                                   __ATOMIC_ACQUIRE) >= job->wait.value;
}

/* A value that only a failure reached fails the job too: the scores it waited for do not exist. */
static enum topkd_status check_wait(const struct device_lane *lane, struct device_job *job)
{
    if (job->wait.value == 0)
        return TOPKD_OK;
    const struct wire_semaphore *semaphore = &lane->semaphores[job->wait.index];
    if (__atomic_load_n(&semaphore->failed_value, __ATOMIC_ACQUIRE) != job->wait.value)
        return TOPKD_OK;
    uint32_t number = __atomic_load_n(&semaphore->failed_status, __ATOMIC_ACQUIRE);
    enum topkd_status status = number > TOPKD_OK && number <= TOPKD_E_CLOSED
                                   ? (enum topkd_status)number
                                   : TOPKD_E_CANCELLED;
    return detail_set(job->detail, status,
                      "the request that was to signal value %" PRIu64 " of semaphore %" PRIu32
                      " failed: %s",
                      job->wait.value, job->wait.index, wire_status_text(status));
}

/* What the stream does for work that ran: marks a failure first, then raises the value (never
 * lowers it). */
static void signal_failure(struct device_lane *lane, const struct device_job *job)
{
    if (job->signal.value == 0)
        return;
    struct wire_semaphore *semaphore = &lane->semaphores[job->signal.index];
    __atomic_store_n(&semaphore->failed_status, (uint32_t)job->status, __ATOMIC_RELEASE);
    __atomic_store_n(&semaphore->failed_value, job->signal.value, __ATOMIC_RELEASE);
    __atomic_fetch_add(&semaphore->num_failed, 1, __ATOMIC_RELEASE);
    uint64_t value = __atomic_load_n(&semaphore->value, __ATOMIC_RELAXED);
    while (value < job->signal.value &&
           !__atomic_compare_exchange_n(&semaphore->value, &value, job->signal.value, false,
                                        __ATOMIC_RELEASE, __ATOMIC_RELAXED)) {
        /* `value` is what it is now */
    }
}

/* ---- A job ----------------------------------------------------------------------------------- */

static void set_phase(struct device_job *job, enum device_job_phase phase)
{
    __atomic_store_n(&job->phase, (uint32_t)phase, __ATOMIC_RELAXED);
}

/* The job's last touch here. `has_signalled`: the stream raised its semaphore. */
static void job_end(struct device_lane *lane, struct device_job *job, enum topkd_status status,
                    bool has_signalled)
{
    job->status = job->cancel_status != TOPKD_OK ? (enum topkd_status)job->cancel_status : status;
    set_phase(job, DEVICE_JOB_ENDED);
    if (!has_signalled)
        signal_failure(lane, job);
    if (job->signal.value != 0)
        futex_wake(&lane->semaphores[job->signal.index]);
    __atomic_fetch_sub(&lane->num_jobs, 1, __ATOMIC_RELAXED);
    job->done(job);
}

CUresult cuda_lane_enqueue(struct device_lane *lane, struct cuda_bucket *bucket,
                           const struct cuda_exec *exec, const struct cuda_request *h_request,
                           size_t size_bytes, uint64_t number, CUdeviceptr d_signal, uint64_t value)
{
    const struct cuda_driver *driver = lane->cuda->driver;
    if (lane->last != bucket) {
        /* Another shape lays the workspace out in another way. */
        char reason[TOPK_DETAIL_SIZE];
        if (topk_cuda_workspace_init(&bucket->plan, (void *)(uintptr_t)exec->workspace,
                                     lane->stream, reason) != TOPK_OK)
            return CUDA_ERROR_UNKNOWN;
        lane->last = bucket;
    }
    CUresult result =
        driver->cuMemcpyHtoDAsync(lane->d_request, h_request, size_bytes, lane->stream);
    if (result == CUDA_SUCCESS)
        result = driver->cuGraphLaunch(exec->exec, lane->stream);
    if (result != CUDA_SUCCESS)
        return result;
    CUstreamBatchMemOpParams writes[2];
    memset(writes, 0, sizeof(writes));
    uint32_t num_writes = 0;
    if (d_signal != 0) {
        writes[num_writes].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
        writes[num_writes].writeValue.address = d_signal;
        writes[num_writes++].writeValue.value64 = value;
    }
    writes[num_writes].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
    writes[num_writes].writeValue.address = (CUdeviceptr)(uintptr_t)lane->h_ended;
    writes[num_writes++].writeValue.value64 = number;
    return driver->cuStreamBatchMemOp(lane->stream, num_writes, writes, 0);
}

/* Puts the job on the device. False with a status when it cannot run. */
static bool job_enqueue(struct device_lane *lane, struct device_job *job,
                        enum topkd_status *status_p)
{
    struct device_cuda *cuda = lane->cuda;
    struct cuda_bucket *bucket = job->bucket->prepared;
    struct cuda_exec *exec;
    if (bucket->execs[lane->number].exec == NULL)
        __atomic_add_fetch(&job->bucket->num_misses, 1, __ATOMIC_RELAXED);
    *status_p = cuda_exec_get(lane, bucket, &exec, job->detail);
    if (*status_p != TOPKD_OK)
        return false;
    struct cuda_request *request = &lane->h_requests[lane->num_enqueued % CUDA_LANE_DEPTH];
    size_t size_bytes = offsetof(struct cuda_request, lengths);
    request->args = job->args;
    request->args.routes = (struct topk_routes *)(uintptr_t)cuda->d_routes;
    if (cuda->fault_countdown > 0 && --cuda->fault_countdown == 0)
        request->args.scores = (const float *)(uintptr_t)16; /* never mapped */
    if (job->lengths_host != NULL) {
        size_t lengths_bytes = (size_t)job->args.num_rows * sizeof(int32_t);
        topkd_assert(lengths_bytes <= sizeof(request->lengths));
        memcpy(request->lengths, job->lengths_host, lengths_bytes);
        request->args.lengths = (const int32_t *)(uintptr_t)(lane->d_request + size_bytes);
        size_bytes += lengths_bytes;
    }
    CUdeviceptr d_signal = job->signal.value == 0
                               ? 0
                               : lane->d_semaphores +
                                     job->signal.index * sizeof(struct wire_semaphore) +
                                     offsetof(struct wire_semaphore, value);
    CUresult result = cuda_lane_enqueue(lane, bucket, exec, request, size_bytes,
                                        lane->num_enqueued + 1, d_signal, job->signal.value);
    if (result != CUDA_SUCCESS) {
        /* What part of it is on the stream cannot be told: the lane's count is lost. */
        *status_p = cuda_fail(cuda, result, TOPKD_E_DEVICE_FAULT, "cannot enqueue a selection",
                              job->detail);
        return false;
    }
    lane->num_enqueued++;
    uint64_t now_ns = cuda_now_ns();
    job->queued_ns = now_ns - job->submitted_ns;
    job->run_ns = now_ns; /* until it ends: when it was enqueued */
    set_phase(job, DEVICE_JOB_RUNNING);
    return true;
}

/* ---- The lane's queue ------------------------------------------------------------------------ */

static struct device_job *take_first(struct device_job **first, struct device_job ***last)
{
    struct device_job *job = *first;
    *first = job->next;
    if (*first == NULL)
        *last = first;
    job->next = NULL;
    return job;
}

static void append(struct device_job ***last, struct device_job *job)
{
    job->next = NULL;
    **last = job;
    *last = &job->next;
}

static void reap(struct device_lane *lane)
{
    uint64_t ended = __atomic_load_n(lane->h_ended, __ATOMIC_ACQUIRE);
    uint64_t now_ns = lane->num_ended < ended ? cuda_now_ns() : 0;
    topkd_assert(ended <= lane->num_enqueued);
    while (lane->num_ended < ended) {
        lane->num_ended++;
        struct device_job *job = take_first(&lane->first_running, &lane->last_running);
        /* It ran from when it was enqueued, or from the end of the one before it. */
        uint64_t start_ns = job->run_ns > lane->last_end_ns ? job->run_ns : lane->last_end_ns;
        job->queued_ns += start_ns - job->run_ns;
        job->run_ns = now_ns - start_ns;
        lane->last_end_ns = now_ns;
        job_end(lane, job, TOPKD_OK, true);
    }
}

/* Whether an unfinished job is to signal the same semaphore with a lower value: a stream's write
 * would lower what a later one has raised, and a failure would hide it. */
static bool is_behind(const struct device_lane *lane, const struct device_job *job)
{
    const struct device_job *lists[] = {lane->first_running, lane->first_waiting};
    for (int i = 0; i < 2 && job->signal.value != 0; i++) {
        for (const struct device_job *other = lists[i]; other != NULL; other = other->next) {
            if (other != job && other->signal.value != 0 &&
                other->signal.index == job->signal.index && other->signal.value < job->signal.value)
                return true;
        }
    }
    return false;
}

/* Takes one out of the middle of the waiting jobs. */
static void unlink_waiting(struct device_lane *lane, struct device_job **link)
{
    struct device_job *job = *link;
    *link = job->next;
    if (*link == NULL)
        lane->last_waiting = link;
    job->next = NULL;
}

/* What becomes of a waiting job now: it stays, it leaves the list, or the device is lost. */
enum step { STEP_STAYS, STEP_LEFT, STEP_FAULT };

static enum step waiting_step(struct device_lane *lane, struct device_job **link)
{
    struct device_job *job = *link;
    enum topkd_status status = TOPKD_OK;
    if (!job->cancel) {
        if (!is_reached(lane, job)) {
            set_phase(job, DEVICE_JOB_WAITING);
            return STEP_STAYS;
        }
        status = check_wait(lane, job);
    }
    bool can_run = !job->cancel && status == TOPKD_OK;
    if (is_behind(lane, job) ||
        (can_run && lane->num_enqueued - lane->num_ended >= CUDA_LANE_DEPTH))
        return STEP_STAYS;
    unlink_waiting(lane, link);
    if (can_run && job_enqueue(lane, job, &status)) {
        append(&lane->last_running, job);
        return STEP_LEFT;
    }
    job_end(lane, job, status, false);
    return status == TOPKD_E_DEVICE_FAULT && can_run ? STEP_FAULT : STEP_LEFT;
}

/* Tells the poller which words to look at. */
static void publish_watches(struct device_lane *lane)
{
    uint32_t num = 0;
    const struct device_job *job = lane->first_waiting;
    for (; job != NULL && num < CUDA_WATCHES_MAX; job = job->next) {
        if (job->wait.value == 0 || is_reached(lane, job))
            continue; /* it waits for others of its lane */
        struct cuda_watch *watch = &lane->watches[num++];
        __atomic_store_n(&watch->value, job->wait.value, __ATOMIC_RELAXED);
        __atomic_store_n(&watch->word, &lane->semaphores[job->wait.index].value, __ATOMIC_RELAXED);
    }
    __atomic_store_n(&lane->num_watches, num, __ATOMIC_RELEASE);
}

void cuda_lane_advance(struct device_lane *lane)
{
    struct device_cuda *cuda = lane->cuda;
    if (cuda->is_faulted) {
        cuda_lanes_fault(cuda);
        return;
    }
    reap(lane);
    __atomic_store_n(&lane->num_watches, 0, __ATOMIC_RELEASE);
    /* One that leaves may let an earlier one go: from the start again, until none leaves. */
    struct device_job **link = &lane->first_waiting;
    while (*link != NULL) {
        switch (waiting_step(lane, link)) {
        case STEP_STAYS:
            link = &(*link)->next;
            break;
        case STEP_LEFT:
            link = &lane->first_waiting;
            break;
        case STEP_FAULT:
            cuda_lanes_fault(cuda);
            return;
        }
    }
    publish_watches(lane);
}

bool cuda_lane_wants(const struct device_lane *lane)
{
    if (__atomic_load_n(&lane->num_jobs, __ATOMIC_RELAXED) == 0)
        return false;
    if (__atomic_load_n(lane->h_ended, __ATOMIC_RELAXED) !=
        __atomic_load_n(&lane->num_ended, __ATOMIC_RELAXED))
        return true;
    uint32_t num_watches = __atomic_load_n(&lane->num_watches, __ATOMIC_ACQUIRE);
    for (uint32_t i = 0; i < num_watches; i++) {
        const struct cuda_watch *watch = &lane->watches[i];
        if (__atomic_load_n(__atomic_load_n(&watch->word, __ATOMIC_RELAXED), __ATOMIC_RELAXED) >=
            __atomic_load_n(&watch->value, __ATOMIC_RELAXED))
            return true;
    }
    return false;
}

void cuda_lanes_fault(struct device_cuda *cuda)
{
    cuda->is_faulted = true;
    for (uint32_t i = 0; i < cuda->num_lanes; i++) {
        struct device_lane *lane = cuda->lanes[i];
        __atomic_store_n(&lane->num_watches, 0, __ATOMIC_RELAXED);
        while (lane->first_running != NULL || lane->first_waiting != NULL) {
            struct device_job *job = lane->first_running != NULL
                                         ? take_first(&lane->first_running, &lane->last_running)
                                         : take_first(&lane->first_waiting, &lane->last_waiting);
            (void)detail_set(job->detail, TOPKD_E_DEVICE_FAULT, "%s",
                             cuda->fault[0] ? cuda->fault : "the worker gave up on its device");
            job_end(lane, job, TOPKD_E_DEVICE_FAULT, false);
        }
    }
}

/* ---- Lanes ----------------------------------------------------------------------------------- */

enum topkd_status cuda_lane_init(struct device_cuda *cuda, struct device_lane *lane,
                                 uint32_t number, char *detail)
{
    const struct cuda_driver *driver = cuda->driver;
    *lane = (struct device_lane){.cuda = cuda, .number = number};
    lane->last_running = &lane->first_running;
    lane->last_waiting = &lane->first_waiting;
    void *pinned = NULL;
    size_t pinned_bytes = CUDA_LANE_DEPTH * sizeof(struct cuda_request) + sizeof(uint64_t);
    CUresult result = driver->cuStreamCreate(&lane->stream, CU_STREAM_NON_BLOCKING);
    if (result == CUDA_SUCCESS)
        result = driver->cuMemAlloc(&lane->d_request, sizeof(struct cuda_request));
    if (result == CUDA_SUCCESS)
        result = driver->cuMemHostAlloc(&pinned, pinned_bytes,
                                        CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
    if (result != CUDA_SUCCESS) {
        cuda_lane_fini(lane);
        *lane = (struct device_lane){.cuda = NULL}; /* nothing of it is left */
        return cuda_fail(cuda, result, TOPKD_E_SYSTEM, "cannot make a lane", detail);
    }
    memset(pinned, 0, pinned_bytes);
    lane->h_requests = pinned;
    lane->h_ended = (uint64_t *)(lane->h_requests + CUDA_LANE_DEPTH);
    return TOPKD_OK;
}

void cuda_lane_fini(struct device_lane *lane)
{
    const struct cuda_driver *driver = lane->cuda->driver;
    if (lane->cuda->is_faulted)
        return; /* a lost context is the kernel's to clean up */
    for (uint32_t i = 0; i < lane->workspaces.num; i++)
        driver->cuMemFree(lane->workspaces.entries[i].address);
    if (lane->h_requests != NULL)
        driver->cuMemFreeHost(lane->h_requests);
    if (lane->d_request != 0)
        driver->cuMemFree(lane->d_request);
    if (lane->stream != NULL)
        driver->cuStreamDestroy(lane->stream);
}

/* One more lane, with the mutex. */
static enum topkd_status lanes_add(struct device_cuda *cuda, char *detail)
{
    struct device_lane *lane = malloc(sizeof(*lane));
    if (lane == NULL)
        return detail_set(detail, TOPKD_E_NO_MEMORY, "no memory for a lane");
    enum topkd_status status = cuda_lane_init(cuda, lane, cuda->num_lanes, detail);
    if (status == TOPKD_OK) {
        status = cuda_exec_prepare(lane, detail);
        if (status != TOPKD_OK) {
            cuda_exec_forget(lane);
            cuda_lane_fini(lane);
        }
    }
    if (status != TOPKD_OK) {
        free(lane);
        return status;
    }
    cuda->lanes[cuda->num_lanes] = lane;
    __atomic_store_n(&cuda->num_lanes, cuda->num_lanes + 1, __ATOMIC_RELEASE);
    return TOPKD_OK;
}

enum topkd_status cuda_lanes_reserve(struct device_cuda *cuda, uint32_t num_lanes, char *detail)
{
    enum topkd_status status = TOPKD_OK;
    pthread_mutex_lock(&cuda->mutex);
    while (status == TOPKD_OK && cuda->num_lanes < num_lanes && cuda->num_lanes < CUDA_LANES_MAX)
        status = lanes_add(cuda, detail);
    pthread_mutex_unlock(&cuda->mutex);
    return status;
}

enum topkd_status cuda_lane_create(struct device *device, struct device_shared *page,
                                   struct device_lane **lane_p, char *detail)
{
    struct device_cuda *cuda = device_cuda_of(device);
    struct device_lane *lane = NULL;
    enum topkd_status status = TOPKD_OK;
    pthread_mutex_lock(&cuda->mutex);
    for (uint32_t i = 0; i < cuda->num_lanes && lane == NULL; i++) {
        if (!cuda->lanes[i]->is_open)
            lane = cuda->lanes[i];
    }
    if (lane == NULL && cuda->num_lanes == CUDA_LANES_MAX) {
        status = detail_set(detail, TOPKD_E_LIMIT,
                            "%u sessions have a lane of their own on this device, the most that "
                            "its hardware queues allow; close one",
                            CUDA_LANES_MAX);
    } else if (lane == NULL) {
        status = lanes_add(cuda, detail);
        lane = status == TOPKD_OK ? cuda->lanes[cuda->num_lanes - 1] : NULL;
    }
    if (lane != NULL) {
        lane->is_open = true;
        lane->semaphores = (struct wire_semaphore *)page->address;
        lane->d_semaphores = cuda_shared_device_address(page);
        *lane_p = lane;
    }
    pthread_mutex_unlock(&cuda->mutex);
    return status;
}

void cuda_lane_destroy(struct device *device, struct device_lane *lane)
{
    struct device_cuda *cuda = device_cuda_of(device);
    pthread_mutex_lock(&cuda->mutex);
    topkd_assert(lane->is_open && lane->num_jobs == 0);
    lane->is_open = false;
    lane->semaphores = NULL;
    lane->d_semaphores = 0;
    topkd_assert(lane->num_watches == 0);
    pthread_mutex_unlock(&cuda->mutex);
    /* The page goes next: the poller may still look at a word of it. */
    cuda_poller_pass(cuda);
}

void cuda_lane_submit(struct device_lane *lane, struct device_job *job)
{
    struct device_cuda *cuda = lane->cuda;
    job->cancel_status = TOPKD_OK;
    job->cancel = false;
    job->detail[0] = '\0';
    job->queued_ns = 0;
    job->run_ns = 0;
    set_phase(job, DEVICE_JOB_QUEUED);

    pthread_mutex_lock(&cuda->mutex);
    topkd_assert(lane->is_open);
    __atomic_fetch_add(&lane->num_jobs, 1, __ATOMIC_RELAXED);
    append(&lane->last_waiting, job);
    cuda_lane_advance(lane);
    cuda_poller_wake(cuda);
    pthread_mutex_unlock(&cuda->mutex);
}

bool cuda_lane_cancel(struct device_lane *lane, struct device_job *job, enum topkd_status status)
{
    struct device_cuda *cuda = lane->cuda;
    topkd_assert(status != TOPKD_OK);
    pthread_mutex_lock(&cuda->mutex);
    enum device_job_phase phase = (enum device_job_phase)job->phase;
    bool never_runs = phase == DEVICE_JOB_QUEUED || phase == DEVICE_JOB_WAITING;
    if (phase != DEVICE_JOB_ENDED && job->cancel_status == TOPKD_OK) {
        job->cancel_status = status;
        job->cancel = true;
        if (status == TOPKD_E_DEVICE_FAULT)
            cuda->is_faulted = true; /* the worker has given up: nothing waits for the device */
        cuda_lane_advance(lane);
    }
    pthread_mutex_unlock(&cuda->mutex);
    return never_runs;
}
