#include "device_cuda.h"

#include "args_overlap.h"
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

/* Where the job's semaphore lies for the stream; 0: it signals none. */
static CUdeviceptr signal_address(const struct device_lane *lane, const struct device_job *job)
{
    return job->signal.value == 0
               ? 0
               : lane->d_semaphores + job->signal.index * sizeof(struct wire_semaphore) +
                     offsetof(struct wire_semaphore, value);
}

/* Writes what the graph reads. */
static struct cuda_request *write_request(struct cuda_track *track, const struct device_job *job,
                                          size_t *size_bytes_p)
{
    struct device_cuda *cuda = track->cuda;
    size_t size_bytes = offsetof(struct cuda_request, lengths);
    size_t lengths_bytes =
        job->lengths_host != NULL ? (size_t)job->args.num_rows * sizeof(int32_t) : 0;
    struct cuda_request *request = cuda_track_room(track, size_bytes + lengths_bytes);
    request->args = job->args;
    request->args.routes = (struct topk_routes *)(uintptr_t)cuda->d_routes;
    if (cuda->fault_countdown > 0 && --cuda->fault_countdown == 0)
        request->args.scores = (const float *)(uintptr_t)16; /* never mapped */
    if (lengths_bytes > 0) {
        memcpy(request->lengths, job->lengths_host, lengths_bytes);
        request->args.lengths = (const int32_t *)(uintptr_t)(track->d_request + size_bytes);
    }
    *size_bytes_p = size_bytes + lengths_bytes;
    return request;
}

/* Puts the job on the device. False with a status when it cannot run. */
static bool job_enqueue(struct device_lane *lane, struct cuda_track *track, struct device_job *job,
                        enum topkd_status *status_p)
{
    struct device_cuda *cuda = lane->cuda;
    struct cuda_bucket *bucket = job->bucket->prepared;
    struct cuda_exec *exec; /* cuda_lane_submit has seen to it */
    *status_p = cuda_exec_get(track, bucket, &exec, job->detail);
    if (*status_p != TOPKD_OK)
        return false;
    struct cuda_enqueue enqueue = {.d_signal = signal_address(lane, job),
                                   .value = job->signal.value};
    enqueue.request = write_request(track, job, &enqueue.size_bytes);
    CUresult result = cuda_track_enqueue(track, bucket, exec, &enqueue);
    if (result != CUDA_SUCCESS) {
        /* What part of it is on the stream cannot be told: the track's count is lost. */
        *status_p = cuda_fail(cuda, result, TOPKD_E_DEVICE_FAULT, "cannot enqueue a selection",
                              job->detail);
        return false;
    }
    uint64_t now_ns = cuda_now_ns();
    job->queued_ns = now_ns - job->submitted_ns;
    job->run_ns = now_ns; /* until it ends: when it was enqueued */
    set_phase(job, DEVICE_JOB_RUNNING);
    return true;
}

/* ---- The lane's queue ------------------------------------------------------------------------ */

static void append(struct device_job ***last, struct device_job *job)
{
    job->next = NULL;
    **last = job;
    *last = &job->next;
}

static void reap(struct device_lane *lane)
{
    for (uint32_t i = 0; i < CUDA_LANE_TRACKS; i++) {
        struct device_job *job;
        while ((job = cuda_track_reap(&lane->tracks[i])) != NULL)
            job_end(lane, job, TOPKD_OK, true);
    }
}

/* Whether an unfinished job is to signal the same semaphore with a lower value: a stream's write
 * would lower what a later one has raised, and a failure would hide it. */
static bool is_behind(const struct device_lane *lane, const struct device_job *job)
{
    const struct device_job *lists[] = {lane->first_waiting, lane->tracks[0].first_running,
                                        lane->tracks[1].first_running};
    _Static_assert(CUDA_LANE_TRACKS == 2, "all tracks are looked at");
    for (uint32_t i = 0; i < 1 + CUDA_LANE_TRACKS && job->signal.value != 0; i++) {
        for (const struct device_job *other = lists[i]; other != NULL; other = other->next) {
            if (other != job && other->signal.value != 0 &&
                other->signal.index == job->signal.index && other->signal.value < job->signal.value)
                return true;
        }
    }
    return false;
}

/* Jobs of the track on the device; *meets_p: one of them touches what this job writes, or writes
 * what it touches. */
static uint32_t count_running(const struct cuda_track *track, const struct device_job *job,
                              bool *meets_p)
{
    uint32_t num = 0;
    *meets_p = false;
    for (const struct device_job *other = track->first_running; other != NULL;
         other = other->next) {
        num++;
        *meets_p |=
            args_overlap(&other->args, other->options.dtype, &job->args, job->options.dtype);
    }
    return num;
}

/* The track with less to do, or the one that the job must be behind; NULL: none for now. */
static struct cuda_track *choose_track(struct device_lane *lane, const struct device_job *job)
{
    struct cuda_track *chosen = NULL;
    uint32_t num_chosen = 0, num_met = 0;
    bool is_met = false;
    for (uint32_t i = 0; i < CUDA_LANE_TRACKS; i++) {
        bool meets;
        uint32_t num = count_running(&lane->tracks[i], job, &meets);
        num_met += meets;
        if (chosen == NULL || meets || (!is_met && num < num_chosen)) {
            chosen = &lane->tracks[i];
            num_chosen = num;
            is_met = meets;
        }
    }
    return num_met > 1 || num_chosen >= CUDA_TRACK_DEPTH ? NULL : chosen;
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

static enum step waiting_step(struct device_lane *lane, struct device_job **link, bool *is_held)
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
    if (is_behind(lane, job))
        return STEP_STAYS;
    struct cuda_track *track = can_run && !*is_held ? choose_track(lane, job) : NULL;
    if (can_run && track == NULL) {
        *is_held = true; /* nothing that could run overtakes it */
        return STEP_STAYS;
    }
    unlink_waiting(lane, link);
    if (can_run && job_enqueue(lane, track, job, &status)) {
        cuda_track_add(track, job);
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
    bool is_held = false;
    while (*link != NULL) {
        switch (waiting_step(lane, link, &is_held)) {
        case STEP_STAYS:
            link = &(*link)->next;
            break;
        case STEP_LEFT:
            link = &lane->first_waiting;
            is_held = false;
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
    for (uint32_t i = 0; i < CUDA_LANE_TRACKS; i++) {
        if (cuda_track_has_ended(&lane->tracks[i]))
            return true;
    }
    uint32_t num_watches = __atomic_load_n(&lane->num_watches, __ATOMIC_ACQUIRE);
    for (uint32_t i = 0; i < num_watches; i++) {
        const struct cuda_watch *watch = &lane->watches[i];
        if (__atomic_load_n(__atomic_load_n(&watch->word, __ATOMIC_RELAXED), __ATOMIC_RELAXED) >=
            __atomic_load_n(&watch->value, __ATOMIC_RELAXED))
            return true;
    }
    return false;
}

/* Ends one of the lane's jobs; false: there is none. */
static bool fault_one(struct device_lane *lane)
{
    struct device_job *job = NULL;
    for (uint32_t i = 0; i < CUDA_LANE_TRACKS && job == NULL; i++)
        job = cuda_track_take(&lane->tracks[i]);
    if (job == NULL && lane->first_waiting != NULL) {
        job = lane->first_waiting;
        unlink_waiting(lane, &lane->first_waiting);
    }
    if (job == NULL)
        return false;
    const struct device_cuda *cuda = lane->cuda;
    (void)detail_set(job->detail, TOPKD_E_DEVICE_FAULT, "%s",
                     cuda->fault[0] ? cuda->fault : "the worker gave up on its device");
    job_end(lane, job, TOPKD_E_DEVICE_FAULT, false);
    return true;
}

void cuda_lanes_fault(struct device_cuda *cuda)
{
    cuda->is_faulted = true;
    for (uint32_t i = 0; i < cuda->num_lanes; i++) {
        struct device_lane *lane = cuda->lanes[i];
        __atomic_store_n(&lane->num_watches, 0, __ATOMIC_RELAXED);
        while (fault_one(lane)) {
        }
    }
}

/* ---- Lanes ----------------------------------------------------------------------------------- */

void cuda_lane_fini(struct device_lane *lane)
{
    for (uint32_t i = 0; i < CUDA_LANE_TRACKS; i++)
        cuda_track_fini(&lane->tracks[i]);
}

static enum topkd_status lane_init(struct device_cuda *cuda, struct device_lane *lane, char *detail)
{
    enum topkd_status status = TOPKD_OK;
    lane->cuda = cuda;
    lane->number = cuda->num_lanes;
    lane->last_waiting = &lane->first_waiting;
    for (uint32_t i = 0; i < CUDA_LANE_TRACKS && status == TOPKD_OK; i++) {
        struct cuda_track *track = &lane->tracks[i];
        status = cuda_track_init(cuda, track, lane->number * CUDA_LANE_TRACKS + i, detail);
        if (status == TOPKD_OK)
            status = cuda_exec_prepare(track, detail);
    }
    for (uint32_t i = 0; i < CUDA_LANE_TRACKS && status != TOPKD_OK; i++) {
        if (lane->tracks[i].cuda != NULL)
            cuda_exec_forget(&lane->tracks[i]);
    }
    return status;
}

/* One more lane. With the mutex, while no mailbox waits. */
static enum topkd_status lanes_add(struct device_cuda *cuda, char *detail)
{
    struct device_lane *lane = calloc(1, sizeof(*lane));
    if (lane == NULL)
        return detail_set(detail, TOPKD_E_NO_MEMORY, "no memory for a lane");
    enum topkd_status status = lane_init(cuda, lane, detail);
    if (status != TOPKD_OK) {
        cuda_lane_fini(lane);
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
    cuda_enter(cuda); /* on whatever thread */
    status = cuda_quiet_need(cuda, "a session that opens", detail);
    if (status != TOPKD_OK)
        return status;
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
        /* A former session that changed lengths while they were read may have left parts of rows
         * counted in: its workspaces are cleared before they are used again. */
        for (uint32_t i = 0; i < CUDA_LANE_TRACKS; i++)
            lane->tracks[i].last = NULL;
        lane->semaphores = (struct wire_semaphore *)page->address;
        lane->d_semaphores = cuda_shared_device_address(page);
        *lane_p = lane;
    }
    pthread_mutex_unlock(&cuda->mutex);
    cuda_quiet_end(cuda);
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
    job->cancel_status = cuda_execs_need(lane, job->bucket, job->detail);
    job->cancel = job->cancel_status != TOPKD_OK; /* then it leaves in its turn */

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
