/* Hardware queues: streams that have one of their own; how many mailboxes may wait, found out at
 * the start; and waits for streams of the worker's own while mailboxes do. */
#include "device_cuda.h"

#include "detail.h"
#include "log.h"

#include <inttypes.h>
#include <string.h>
#include <time.h>

/* Choices: by when a stream that has a queue of its own has done a few small operations, whoever
 * else uses the GPU (a hand-over among eight processes without MPS took 1.4 ms, H200); after what
 * time one of the worker's own streams is taken to stand behind a mailbox; how long mailboxes may
 * take to make way for it. */
#define CHECK_NS UINT64_C(3000000000)
#define BEHIND_NS UINT64_C(10000000)
#define WAY_NS UINT64_C(1000000000)
#define LOOK_NS 20000 /* choice: pause between two looks */
#define SPIN_NS UINT64_C(100000)

CUresult cuda_stream_wait(struct device_cuda *cuda, CUstream stream, uint64_t timeout_ns)
{
    uint64_t from_ns = cuda_now_ns(), waited_ns = 0, asked_ns = 0;
    bool is_quiet = false;
    CUresult result;
    while ((result = cuda->driver->cuStreamQuery(stream)) == CUDA_ERROR_NOT_READY) {
        waited_ns = cuda_now_ns() - from_ns;
        if (waited_ns > timeout_ns || __atomic_load_n(&cuda->is_faulted, __ATOMIC_RELAXED))
            break;
        if (!is_quiet && waited_ns - asked_ns > BEHIND_NS) {
            is_quiet = cuda_quiet_within(cuda, WAY_NS);
            asked_ns = cuda_now_ns() - from_ns;
        }
        if (waited_ns > SPIN_NS)
            cuda_pause_ns(LOOK_NS);
    }
    if (is_quiet)
        cuda_quiet_end(cuda);
    return result;
}

/* ---- The streams that have queues of their own ----------------------------------------------- */

enum topkd_status cuda_queues_open(struct device_cuda *cuda, char *detail)
{
    CUstream *side[] = {&cuda->mailbox_stream, &cuda->routes_stream, &cuda->capture_stream};
    CUresult result = CUDA_SUCCESS;
    for (uint32_t i = 0; i < 3 && result == CUDA_SUCCESS; i++)
        result = cuda->driver->cuStreamCreate(side[i], CU_STREAM_NON_BLOCKING);
    if (result != CUDA_SUCCESS)
        return cuda_fail(cuda, result, TOPKD_E_SYSTEM, "cannot make streams", detail);
    enum topkd_status status =
        cuda_track_init(cuda, &cuda->canary.track, CUDA_TRACK_CANARY, detail);
    for (uint32_t i = 0; i < cuda->mailboxes_max && status == TOPKD_OK; i++)
        status = cuda_track_init(cuda, &cuda->mailbox_tracks[i], CUDA_TRACK_MAILBOX, detail);
    return status;
}

void cuda_queues_close(struct device_cuda *cuda)
{
    CUstream side[] = {cuda->mailbox_stream, cuda->routes_stream, cuda->capture_stream};
    for (uint32_t i = 0; i < CUDA_MAILBOXES_MAX; i++)
        cuda_track_fini(&cuda->mailbox_tracks[i]);
    for (uint32_t i = 0; i < 3 && !cuda->is_faulted; i++) {
        if (side[i] != NULL)
            cuda->driver->cuStreamDestroy(side[i]);
    }
}

/* ---- The check at the start ------------------------------------------------------------------ */

/* Mailboxes wait, one more at a time; each time every side stream has to go on. The words are
 * pinned memory, so that a plain store ends a wait even when a call of the driver is stuck: a
 * thread of its own makes it when the check takes too long. */
struct check {
    struct device_cuda *cuda;
    pthread_mutex_t mutex; /* guards is_over */
    pthread_cond_t over;
    bool is_over;
    bool is_late; /* the guard has released everything */
    uint64_t *h_marks;
};

enum { CHECK_PAUSES, CHECK_ROUTES, CHECK_CAPTURE, CHECK_CANARY, CHECK_STREAMS };

/* A mailbox's word while it is checked; nothing else uses it yet. */
static uint64_t *word_of(struct device_cuda *cuda, uint32_t place)
{
    return &cuda->mailbox_tracks[place].h_marks->num_cleared;
}

static void store_words(struct device_cuda *cuda, uint64_t value)
{
    for (uint32_t i = 0; i < cuda->mailboxes_max; i++)
        __atomic_store_n(word_of(cuda, i), value, __ATOMIC_SEQ_CST);
}

static void *guard_main(void *arg)
{
    struct check *check = arg;
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)(2 * CHECK_NS / UINT64_C(1000000000));
    pthread_mutex_lock(&check->mutex);
    int error = 0;
    while (!check->is_over && error == 0)
        error = pthread_cond_timedwait(&check->over, &check->mutex, &until);
    if (!check->is_over) {
        __atomic_store_n(&check->is_late, true, __ATOMIC_SEQ_CST);
        store_words(check->cuda, 1);
    }
    pthread_mutex_unlock(&check->mutex);
    return NULL;
}

/* As an armed step: a wait, and a kernel behind it. */
static CUresult arm(struct device_cuda *cuda, uint32_t place)
{
    const struct cuda_track *track = &cuda->mailbox_tracks[place];
    CUresult result = cuda->driver->cuStreamWaitValue64(
        track->stream, (CUdeviceptr)(uintptr_t)word_of(cuda, place), 1, CU_STREAM_WAIT_VALUE_GEQ);
    return result == CUDA_SUCCESS
               ? cuda->driver->cuMemsetD8Async(track->d_request, 0, 64, track->stream)
               : result;
}

/* What each of them does later: copies both ways, kernels, writes. */
static CUresult work(const struct check *check, uint32_t number, CUstream stream, uint64_t value)
{
    struct device_cuda *cuda = check->cuda;
    const struct cuda_driver *driver = cuda->driver;
    const struct cuda_track *track = &cuda->canary.track;
    CUdeviceptr d_scratch = track->d_request + number * UINT64_C(256);
    CUstreamBatchMemOpParams op;
    memset(&op, 0, sizeof(op));
    op.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
    op.writeValue.address = (CUdeviceptr)(uintptr_t)&check->h_marks[number];
    op.writeValue.value64 = value;
    CUresult result = driver->cuMemsetD8Async(d_scratch, 0, 64, stream);
    if (result == CUDA_SUCCESS && number == CHECK_CANARY)
        result = driver->cuMemcpyHtoDAsync(d_scratch, track->h_requests, 64, stream);
    if (result == CUDA_SUCCESS && number == CHECK_ROUTES)
        result = driver->cuMemcpyDtoHAsync(cuda->h_scratch, d_scratch, 64, stream);
    return result == CUDA_SUCCESS ? driver->cuStreamBatchMemOp(stream, 1, &op, 0) : result;
}

/* Whether all of them go on. */
static bool go_on(const struct check *check, uint64_t value, CUresult *result_p)
{
    struct device_cuda *cuda = check->cuda;
    const CUstream streams[CHECK_STREAMS] = {cuda->mailbox_stream, cuda->routes_stream,
                                             cuda->capture_stream, cuda->canary.track.stream};
    for (uint32_t i = 0; i < CHECK_STREAMS && *result_p == CUDA_SUCCESS; i++)
        *result_p = work(check, i, streams[i], value);
    uint64_t until_ns = cuda_now_ns() + CHECK_NS;
    for (uint32_t i = 0; i < CHECK_STREAMS && *result_p == CUDA_SUCCESS; i++) {
        while (__atomic_load_n(&check->h_marks[i], __ATOMIC_ACQUIRE) < value) {
            if (cuda_now_ns() > until_ns)
                return false;
            cuda_pause_ns(LOOK_NS);
        }
    }
    return *result_p == CUDA_SUCCESS && !__atomic_load_n(&check->is_late, __ATOMIC_SEQ_CST);
}

/* How many may wait; everything has run out on return. */
static uint32_t count(struct check *check, CUresult *result_p)
{
    struct device_cuda *cuda = check->cuda;
    uint32_t num = 0;
    *result_p = CUDA_SUCCESS;
    while (num < cuda->mailboxes_max && *result_p == CUDA_SUCCESS) {
        *result_p = arm(cuda, num);
        if (*result_p != CUDA_SUCCESS || !go_on(check, num + 1, result_p))
            break;
        num++;
    }
    store_words(cuda, 1);
    for (uint32_t i = 0; i < cuda->mailboxes_max && *result_p == CUDA_SUCCESS; i++)
        *result_p = cuda->driver->cuStreamSynchronize(cuda->mailbox_tracks[i].stream);
    CUstream streams[] = {cuda->mailbox_stream, cuda->routes_stream, cuda->capture_stream,
                          cuda->canary.track.stream};
    for (uint32_t i = 0; i < CHECK_STREAMS && *result_p == CUDA_SUCCESS; i++)
        *result_p = cuda->driver->cuStreamSynchronize(streams[i]);
    store_words(cuda, 0);
    return num;
}

static CUresult run_guarded(struct check *check, uint32_t *num_p)
{
    pthread_t guard;
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&check->over, &attributes);
    pthread_condattr_destroy(&attributes);
    pthread_mutex_init(&check->mutex, NULL);
    CUresult result = CUDA_ERROR_OPERATING_SYSTEM;
    if (pthread_create(&guard, NULL, guard_main, check) == 0) {
        *num_p = count(check, &result);
        pthread_mutex_lock(&check->mutex);
        check->is_over = true;
        pthread_cond_signal(&check->over);
        pthread_mutex_unlock(&check->mutex);
        pthread_join(guard, NULL);
    }
    pthread_mutex_destroy(&check->mutex);
    pthread_cond_destroy(&check->over);
    return result;
}

enum topkd_status cuda_queues_check(struct device_cuda *cuda, char *detail)
{
    struct check check = {.cuda = cuda};
    uint32_t num = 0, wanted = cuda->mailboxes_max;
    uint64_t from_ns = cuda_now_ns();
    if (wanted == 0)
        return TOPKD_OK;
    CUresult result =
        cuda->driver->cuMemHostAlloc((void **)&check.h_marks, CHECK_STREAMS * sizeof(uint64_t),
                                     CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
    if (result == CUDA_SUCCESS) {
        memset(check.h_marks, 0, CHECK_STREAMS * sizeof(uint64_t));
        result = run_guarded(&check, &num);
        cuda->driver->cuMemFreeHost(check.h_marks);
    }
    if (result != CUDA_SUCCESS)
        return cuda_fail(cuda, result, TOPKD_E_SYSTEM, "cannot try how many lanes may wait",
                         detail);
    cuda->mailboxes_max = num;
    for (uint32_t i = num; i < wanted; i++)
        cuda_track_fini(&cuda->mailbox_tracks[i]);
    uint64_t took_us = (cuda_now_ns() - from_ns) / 1000;
    if (num < wanted)
        log_warn(
            "lanes_limited",
            "device=%s lanes=%" PRIu32 " client_lanes_max=%" PRIu32 " after_us=%" PRIu64
            " reason=\"with one more lane waiting, the GPU did not go on with the worker's own "
            "streams within %" PRIu64 " ms: its hardware queues are taken\" fix=\"one daemon a "
            "GPU; MPS; or lower limits.client_lanes_max\"",
            cuda->uuid, num, wanted, took_us, CHECK_NS / 1000000);
    else
        log_info("lanes_checked", "device=%s lanes=%" PRIu32 " after_us=%" PRIu64, cuda->uuid, num,
                 took_us);
    return TOPKD_OK;
}
