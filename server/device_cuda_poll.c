#include "device_cuda.h"

#include "assert.h"
#include "detail.h"
#include "log.h"

#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/prctl.h>

/* Choices: how long the thread looks without a pause after something happened (a decoding step of a
 * model comes every few milliseconds), the pause afterwards, and how often a device that keeps
 * silent is asked whether it is still alive. */
#define SPIN_NS UINT64_C(2000000)
#define PAUSE_NS 20000
#define ALIVE_NS UINT64_C(5000000)
/* Choice: while the loop looks, which it does about every microsecond, the thread only sees to it
 * that a loop with other work for so long is stood in for. */
#define HELPED_NS UINT64_C(250000)

static void cpu_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    sched_yield();
#endif
}

/* Whether a stream with work has met an error that no later call would survive. */
static void check_alive(struct device_cuda *cuda)
{
    pthread_mutex_lock(&cuda->mutex);
    for (uint32_t i = 0; i < cuda->num_lanes && !cuda->is_faulted; i++) {
        struct device_lane *lane = cuda->lanes[i];
        CUresult result = CUDA_SUCCESS;
        for (uint32_t j = 0; j < CUDA_LANE_TRACKS && result == CUDA_SUCCESS; j++) {
            const struct cuda_track *track = &lane->tracks[j];
            if (track->first_running != NULL)
                result = cuda->driver->cuStreamQuery(track->stream);
            result = result == CUDA_ERROR_NOT_READY ? CUDA_SUCCESS : result;
        }
        if (result != CUDA_SUCCESS) {
            (void)cuda_fail(cuda, result, TOPKD_E_DEVICE_FAULT, "a selection failed on the device",
                            cuda->fault);
            log_error("device_fault", "device=%s reason=%s", cuda->uuid, cuda->fault);
            cuda_lanes_fault(cuda);
        }
    }
    cuda_mailboxes_check(cuda);
    pthread_mutex_unlock(&cuda->mutex);
}

/* One look at every lane, at each of its jobs now and then; true when something had happened.
 * *is_busy_p: some lane has a job. */
static bool look(struct device_cuda *cuda, struct cuda_looker *looker, uint64_t now_ns,
                 bool *is_busy_p)
{
    bool happened = false, is_full = now_ns - looker->full_ns > CUDA_FULL_LOOK_NS;
    *is_busy_p = false;
    looker->full_ns = is_full ? now_ns : looker->full_ns;
    __atomic_fetch_add(&looker->num_turns, 1, __ATOMIC_SEQ_CST);
    uint32_t num_lanes = __atomic_load_n(&cuda->num_lanes, __ATOMIC_ACQUIRE);
    for (uint32_t i = 0; i < num_lanes; i++) {
        struct device_lane *lane = cuda->lanes[i];
        bool wants = cuda_lane_wants(lane);
        if (wants || (is_full && __atomic_load_n(&lane->num_jobs, __ATOMIC_RELAXED) > 0)) {
            pthread_mutex_lock(&cuda->mutex);
            cuda_lane_advance(lane);
            pthread_mutex_unlock(&cuda->mutex);
            happened |= wants;
        }
        *is_busy_p |= __atomic_load_n(&lane->num_jobs, __ATOMIC_RELAXED) > 0;
    }
    __atomic_fetch_add(&looker->num_turns, 1, __ATOMIC_SEQ_CST);
    if (happened)
        __atomic_store_n(&looker->happened_ns, now_ns, __ATOMIC_RELAXED);
    __atomic_store_n(&looker->looked_ns, now_ns, __ATOMIC_RELAXED);
    return happened;
}

bool cuda_look(struct device *device)
{
    struct device_cuda *cuda = device_cuda_of(device);
    struct cuda_looker *looker = &cuda->poller.lookers[CUDA_LOOKER_LOOP];
    uint64_t now_ns = cuda_now_ns();
    /* After a pause it begins anew. */
    if (now_ns - looker->looked_ns > SPIN_NS)
        __atomic_store_n(&looker->happened_ns, now_ns, __ATOMIC_RELAXED);
    bool is_busy;
    (void)look(cuda, looker, now_ns, &is_busy);
    if (now_ns - looker->happened_ns < SPIN_NS)
        return true;
    /* The loop goes to sleep: it helps no longer, and begins anew with its next request. */
    __atomic_store_n(&looker->looked_ns, 0, __ATOMIC_RELAXED);
    return false;
}

/* Whether the loop looks at present. */
static bool is_helped(const struct device_cuda *cuda, uint64_t now_ns)
{
    const struct cuda_looker *loop = &cuda->poller.lookers[CUDA_LOOKER_LOOP];
    /* It may be later than `now_ns`. */
    return (int64_t)(now_ns - __atomic_load_n(&loop->looked_ns, __ATOMIC_RELAXED)) <
           (int64_t)HELPED_NS;
}

static bool any_busy(const struct device_cuda *cuda)
{
    if (cuda->num_mailboxes > 0)
        return true;
    for (uint32_t i = 0; i < cuda->num_lanes; i++) {
        if (cuda->lanes[i]->num_jobs > 0)
            return true;
    }
    return false;
}

/* Sleeps until there is work. False: stop. */
static bool sleep_idle(struct device_cuda *cuda)
{
    struct cuda_poller *poller = &cuda->poller;
    pthread_mutex_lock(&cuda->mutex);
    poller->is_asleep = true;
    while (!poller->is_stopping && !any_busy(cuda))
        pthread_cond_wait(&poller->wake, &cuda->mutex);
    poller->is_asleep = false;
    bool goes_on = !poller->is_stopping;
    pthread_mutex_unlock(&cuda->mutex);
    return goes_on;
}

/* 0 is no wish. */
static uint64_t shorter(uint64_t pause_ns, uint64_t rest_ns)
{
    return rest_ns > 0 && rest_ns < pause_ns ? rest_ns : pause_ns;
}

static uint64_t look_mailboxes(struct device_cuda *cuda, struct cuda_looker *looker,
                               uint64_t now_ns)
{
    __atomic_fetch_add(&looker->num_turns, 1, __ATOMIC_SEQ_CST);
    uint64_t rest_ns = cuda_mailboxes_look(cuda, now_ns);
    __atomic_fetch_add(&looker->num_turns, 1, __ATOMIC_SEQ_CST);
    return rest_ns;
}

static void *poll_main(void *arg)
{
    struct device_cuda *cuda = arg;
    struct cuda_looker *looker = &cuda->poller.lookers[CUDA_LOOKER_POLLER];
    const struct cuda_looker *loop = &cuda->poller.lookers[CUDA_LOOKER_LOOP];
    (void)prctl(PR_SET_TIMERSLACK, 1000UL); /* nanoseconds: a pause is a pause, not 50 us more */
    cuda_enter(cuda);
    uint64_t alive_ns = cuda_now_ns();
    looker->happened_ns = alive_ns;
    for (;;) {
        bool is_busy;
        uint64_t now_ns = cuda_now_ns();
        bool happened = look(cuda, looker, now_ns, &is_busy);
        uint64_t rest_ns = look_mailboxes(cuda, looker, now_ns);
        if (happened) {
            alive_ns = now_ns;
            continue;
        }
        uint64_t loop_ns = __atomic_load_n(&loop->happened_ns, __ATOMIC_RELAXED);
        alive_ns = loop_ns > alive_ns ? loop_ns : alive_ns;
        if ((is_busy || rest_ns > 0) && now_ns > alive_ns + ALIVE_NS) {
            alive_ns = now_ns;
            check_alive(cuda);
        }
        if (is_helped(cuda, now_ns)) {
            cuda_pause_ns(shorter(HELPED_NS, rest_ns));
        } else if (now_ns - looker->happened_ns < SPIN_NS) {
            cpu_relax();
        } else if (is_busy || rest_ns > 0) {
            cuda_pause_ns(is_busy ? shorter(PAUSE_NS, rest_ns) : rest_ns);
        } else {
            if (!sleep_idle(cuda))
                return NULL;
            looker->happened_ns = cuda_now_ns();
        }
    }
}

void cuda_poller_wake(struct device_cuda *cuda)
{
    if (cuda->poller.is_asleep)
        pthread_cond_signal(&cuda->poller.wake);
}

void cuda_poller_pass(struct device_cuda *cuda)
{
    for (int i = 0; i < CUDA_LOOKERS; i++) {
        struct cuda_looker *looker = &cuda->poller.lookers[i];
        /* A write, so that what the caller wrote before is seen by every turn that begins later. */
        uint64_t num_turns = __atomic_fetch_add(&looker->num_turns, 0, __ATOMIC_SEQ_CST);
        while (num_turns % 2 == 1 &&
               __atomic_load_n(&looker->num_turns, __ATOMIC_SEQ_CST) == num_turns)
            cuda_pause_ns(PAUSE_NS);
    }
}

enum topkd_status cuda_poller_start(struct device_cuda *cuda, char *detail)
{
    pthread_cond_init(&cuda->poller.wake, NULL);
    int error = pthread_create(&cuda->poller.thread, NULL, poll_main, cuda);
    if (error != 0) {
        pthread_cond_destroy(&cuda->poller.wake);
        return detail_set(detail, TOPKD_E_SYSTEM, "cannot start the device's thread: %s",
                          strerror(error));
    }
    return TOPKD_OK;
}

void cuda_poller_stop(struct device_cuda *cuda)
{
    pthread_mutex_lock(&cuda->mutex);
    cuda->poller.is_stopping = true;
    pthread_cond_signal(&cuda->poller.wake);
    pthread_mutex_unlock(&cuda->mutex);
    pthread_join(cuda->poller.thread, NULL);
    pthread_cond_destroy(&cuda->poller.wake);
}
