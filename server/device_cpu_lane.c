#include "device_cpu.h"

#include "assert.h"
#include "detail.h"

#include <inttypes.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* A waiter looks again after so long, for a client that wrote without waking, or a wake-up that
 * came between its look and its sleep. Choice: far below any deadline, cheap when idle. */
#define WAIT_SLICE_NS 50000000

struct device_lane {
    struct device_cpu *cpu;
    struct wire_semaphore *semaphores; /* the client can write them too: trust nothing there */
    pthread_t thread;
    pthread_cond_t wake;
    /* Guarded by cpu->mutex. */
    struct device_job *first_job, **last_job;
    bool is_stopping;
    bool in_turns; /* in the device's list of those ready to run */
    struct device_lane *next_turn;
};

/* ---- Semaphores ------------------------------------------------------------------------------ */

static uint32_t *futex_word(struct wire_semaphore *semaphore)
{
    _Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "low 32 bits come first");
    return (uint32_t *)&semaphore->value;
}

static void futex_wake(struct wire_semaphore *semaphore)
{
    (void)syscall(SYS_futex, futex_word(semaphore), FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static bool is_cancelled(const struct device_job *job)
{
    return __atomic_load_n(&job->cancel, __ATOMIC_ACQUIRE);
}

/* What the client may have scribbled there is at least a number of ours. */
static enum topkd_status status_of(uint32_t number)
{
    return number > TOPKD_OK && number <= TOPKD_E_CLOSED ? (enum topkd_status)number
                                                         : TOPKD_E_CANCELLED;
}

/* Blocks until the value is reached or the job is cancelled. A value that only a failure reached
 * fails the job too: the scores it waited for do not exist. */
static enum topkd_status semaphore_wait(struct device_lane *lane, struct device_job *job)
{
    if (job->wait.value == 0)
        return TOPKD_OK;
    struct wire_semaphore *semaphore = &lane->semaphores[job->wait.index];
    const struct timespec slice = {.tv_nsec = WAIT_SLICE_NS};
    for (;;) {
        if (is_cancelled(job))
            return TOPKD_OK; /* the caller looks */
        uint64_t value = __atomic_load_n(&semaphore->value, __ATOMIC_ACQUIRE);
        if (value >= job->wait.value)
            break;
        (void)syscall(SYS_futex, futex_word(semaphore), FUTEX_WAIT, (uint32_t)value, &slice, NULL,
                      0);
    }
    if (__atomic_load_n(&semaphore->failed_value, __ATOMIC_ACQUIRE) != job->wait.value)
        return TOPKD_OK;
    enum topkd_status status =
        status_of(__atomic_load_n(&semaphore->failed_status, __ATOMIC_ACQUIRE));
    return detail_set(job->detail, status,
                      "the request that was to signal value %" PRIu64 " of semaphore %" PRIu32
                      " failed: %s",
                      job->wait.value, job->wait.index, wire_status_text(status));
}

/* Marks the failure first, then raises the value (never lowers it), then wakes. */
static void semaphore_signal(struct device_lane *lane, const struct device_job *job)
{
    if (job->signal.value == 0)
        return;
    struct wire_semaphore *semaphore = &lane->semaphores[job->signal.index];
    if (job->status != TOPKD_OK) {
        __atomic_store_n(&semaphore->failed_status, (uint32_t)job->status, __ATOMIC_RELEASE);
        __atomic_store_n(&semaphore->failed_value, job->signal.value, __ATOMIC_RELEASE);
        __atomic_fetch_add(&semaphore->num_failed, 1, __ATOMIC_RELEASE);
    }
    uint64_t value = __atomic_load_n(&semaphore->value, __ATOMIC_RELAXED);
    while (value < job->signal.value) {
        /* On failure the client raised it meanwhile, and `value` is what it is now. */
        if (__atomic_compare_exchange_n(&semaphore->value, &value, job->signal.value, false,
                                        __ATOMIC_RELEASE, __ATOMIC_RELAXED))
            break;
    }
    futex_wake(semaphore);
}

/* ---- Turns ----------------------------------------------------------------------------------- */

static void turns_remove(struct device_cpu *cpu, struct device_lane *lane)
{
    struct device_lane **link = &cpu->first_turn;
    while (*link != lane)
        link = &(*link)->next_turn;
    *link = lane->next_turn;
    if (cpu->last_turn == &lane->next_turn)
        cpu->last_turn = link;
    lane->in_turns = false;
}

static void turns_wake_first(struct device_cpu *cpu)
{
    if (cpu->first_turn != NULL && cpu->num_running < cpu->run_max)
        pthread_cond_signal(&cpu->first_turn->wake);
}

/* Takes one of the run_max places, in the order of asking. False when the job was cancelled. The
 * mutex is held. */
static bool run_begin(struct device_lane *lane, const struct device_job *job)
{
    struct device_cpu *cpu = lane->cpu;

    lane->next_turn = NULL;
    *cpu->last_turn = lane;
    cpu->last_turn = &lane->next_turn;
    lane->in_turns = true;
    while (!is_cancelled(job) && (cpu->first_turn != lane || cpu->num_running >= cpu->run_max))
        pthread_cond_wait(&lane->wake, &cpu->mutex);
    turns_remove(cpu, lane);
    bool may_run = !is_cancelled(job);
    if (may_run)
        cpu->num_running++;
    turns_wake_first(cpu);
    return may_run;
}

static void run_end(struct device_cpu *cpu)
{
    cpu->num_running--;
    turns_wake_first(cpu);
}

/* ---- Jobs ------------------------------------------------------------------------------------ */

static void set_phase(struct device_job *job, enum device_job_phase phase)
{
    __atomic_store_n(&job->phase, (uint32_t)phase, __ATOMIC_RELAXED);
}

static enum topkd_status status_of_selection(enum topk_status status, const char *reason,
                                             struct device_job *job)
{
    switch (status) {
    case TOPK_OK:
        return TOPKD_OK;
    case TOPK_E_CANCELLED:
        return TOPKD_E_CANCELLED; /* the caller puts the real reason */
    case TOPK_E_INVALID:
        return detail_set(job->detail, TOPKD_E_INVALID, "%s", reason);
    case TOPK_E_UNSUPPORTED:
        return detail_set(job->detail, TOPKD_E_UNSUPPORTED, "%s", reason);
    case TOPK_E_NO_MEMORY:
        return detail_set(job->detail, TOPKD_E_NO_MEMORY, "%s", reason);
    default:
        return detail_set(job->detail, TOPKD_E_DEVICE_FAULT, "%s: %s", topk_strerror(status),
                          reason);
    }
}

static enum topkd_status check_faults(struct device_job *job)
{
    for (uint32_t i = 0; i < job->num_memories; i++)
        if (device_cpu_memory_faulted(job->memories[i]))
            return detail_set(job->detail, TOPKD_E_REGION_FAULT,
                              "memory of a region vanished: its object was shrunk, or /dev/shm is "
                              "full; the result is worthless");
    if (job->arena != NULL && device_cpu_shared_faulted(job->arena))
        return detail_set(job->detail, TOPKD_E_REGION_FAULT,
                          "memory of the session's output arena vanished: its object was shrunk");
    return TOPKD_OK;
}

static enum topkd_status job_select(struct device_lane *lane, struct device_job *job)
{
    struct device_cpu *cpu = lane->cpu;
    struct topk_args args = job->args;
    char reason[TOPK_DETAIL_SIZE] = "";

    if (job->lengths_host != NULL)
        args.lengths = job->lengths_host;
    args.routes = &cpu->routes;
    uint64_t start_ns = device_cpu_now_ns();
    job->queued_ns = start_ns - job->submitted_ns;
    if (job->arena_bytes > 0) {
        enum topkd_status reserved =
            device_cpu_shared_reserve(job->arena, job->arena_offset, job->arena_bytes, job->detail);
        if (reserved != TOPKD_OK)
            return reserved;
    }
    enum topk_status status =
        topk_cpu_select(cpu->selector, &args, &job->options, &job->cancel, reason);
    job->run_ns = device_cpu_now_ns() - start_ns;
    enum topkd_status fault = check_faults(job);
    return fault != TOPKD_OK ? fault : status_of_selection(status, reason, job);
}

static void job_run(struct device_lane *lane, struct device_job *job)
{
    struct device_cpu *cpu = lane->cpu;

    enum topkd_status status = semaphore_wait(lane, job);
    if (status == TOPKD_OK) {
        pthread_mutex_lock(&cpu->mutex);
        bool may_run = run_begin(lane, job);
        if (may_run)
            set_phase(job, DEVICE_JOB_RUNNING);
        pthread_mutex_unlock(&cpu->mutex);
        status = TOPKD_E_CANCELLED;
        if (may_run) {
            status = job_select(lane, job);
            pthread_mutex_lock(&cpu->mutex);
            run_end(cpu);
            pthread_mutex_unlock(&cpu->mutex);
        }
    }
    pthread_mutex_lock(&cpu->mutex);
    set_phase(job, DEVICE_JOB_ENDED); /* from here on a cancel comes too late */
    if (status == TOPKD_E_CANCELLED && job->cancel_status != TOPKD_OK)
        status = (enum topkd_status)job->cancel_status;
    pthread_mutex_unlock(&cpu->mutex);
    job->status = status;
    semaphore_signal(lane, job);
    job->done(job);
}

static void *lane_main(void *arg)
{
    struct device_lane *lane = arg;
    struct device_cpu *cpu = lane->cpu;

    pthread_mutex_lock(&cpu->mutex);
    for (;;) {
        while (lane->first_job == NULL && !lane->is_stopping)
            pthread_cond_wait(&lane->wake, &cpu->mutex);
        struct device_job *job = lane->first_job;
        if (job == NULL)
            break;
        lane->first_job = job->next;
        if (lane->first_job == NULL)
            lane->last_job = &lane->first_job;
        set_phase(job, DEVICE_JOB_WAITING);
        pthread_mutex_unlock(&cpu->mutex);
        job_run(lane, job);
        pthread_mutex_lock(&cpu->mutex);
    }
    pthread_mutex_unlock(&cpu->mutex);
    return NULL;
}

/* ---- The lane's part of the table -------------------------------------------------------------
 */

enum topkd_status device_cpu_lane_create(struct device *device, struct device_shared *page,
                                         struct device_lane **lane_p, char *detail)
{
    struct device_lane *lane = calloc(1, sizeof(*lane));
    if (lane == NULL)
        return detail_set(detail, TOPKD_E_NO_MEMORY, "no memory for a lane");
    lane->cpu = device_cpu_of(device);
    lane->semaphores = (struct wire_semaphore *)page->address;
    lane->last_job = &lane->first_job;
    pthread_cond_init(&lane->wake, NULL);
    int error = pthread_create(&lane->thread, NULL, lane_main, lane);
    if (error != 0) {
        detail_set(detail, TOPKD_E_SYSTEM, "cannot start the session's thread: %s",
                   strerror(error));
        pthread_cond_destroy(&lane->wake);
        free(lane);
        return TOPKD_E_SYSTEM;
    }
    (void)pthread_setname_np(lane->thread, "lane"); /* in ps and top */
    *lane_p = lane;
    return TOPKD_OK;
}

void device_cpu_lane_destroy(struct device *device, struct device_lane *lane)
{
    struct device_cpu *cpu = device_cpu_of(device);

    pthread_mutex_lock(&cpu->mutex);
    topkd_assert(lane->first_job == NULL);
    lane->is_stopping = true;
    pthread_cond_signal(&lane->wake);
    pthread_mutex_unlock(&cpu->mutex);
    pthread_join(lane->thread, NULL); /* it is idle, so this is short */
    pthread_cond_destroy(&lane->wake);
    free(lane);
}

void device_cpu_lane_submit(struct device_lane *lane, struct device_job *job)
{
    job->next = NULL;
    job->phase = DEVICE_JOB_QUEUED;
    job->cancel_status = TOPKD_OK;
    job->cancel = false;
    job->detail[0] = '\0';
    job->queued_ns = 0;
    job->run_ns = 0;

    pthread_mutex_lock(&lane->cpu->mutex);
    topkd_assert(!lane->is_stopping);
    *lane->last_job = job;
    lane->last_job = &job->next;
    pthread_cond_signal(&lane->wake);
    pthread_mutex_unlock(&lane->cpu->mutex);
}

bool device_cpu_lane_cancel(struct device_lane *lane, struct device_job *job,
                            enum topkd_status status)
{
    struct device_cpu *cpu = lane->cpu;
    topkd_assert(status != TOPKD_OK);

    pthread_mutex_lock(&cpu->mutex);
    enum device_job_phase phase = (enum device_job_phase)job->phase;
    if (phase != DEVICE_JOB_ENDED && job->cancel_status == TOPKD_OK) {
        job->cancel_status = status;
        __atomic_store_n(&job->cancel, true, __ATOMIC_RELEASE);
        if (phase == DEVICE_JOB_WAITING) {
            if (job->wait.value != 0)
                futex_wake(&lane->semaphores[job->wait.index]);
            pthread_cond_signal(&lane->wake);
        }
    }
    pthread_mutex_unlock(&cpu->mutex);
    return phase == DEVICE_JOB_QUEUED;
}
