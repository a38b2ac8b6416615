/* A client process of `topkctl bench`: each thread has a session, its scores, and requests in
 * flight, of which the next begins when one ends. */
#include "bench.h"
#include "clock.h"
#include "cuda_driver.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#define POLL_MS 100          /* choice: how late the end of the run may be noticed */
#define REFUSED_WAIT_US 1000 /* choice: after a refusal, so that it is not asked at full speed */
#define FILL_BLOCK 65536u

/* One place for a request in flight. */
struct flight {
    uint32_t shape;
    uint64_t started_ns, indices_offset;
};

struct thread {
    const struct bench_plan *plan;
    struct bench_slot *slot;
    uint64_t seed;
    pthread_t handle;
    struct topkd_client *client;
    struct topkd_buffer *scores, *indices;
    struct flight *flights; /* [outstanding] */
    uint32_t num_flying;
    uint32_t next_shape;
};

static void set_phase(struct bench_slot *slot, enum bench_phase phase)
{
    __atomic_store_n(&slot->phase, (uint32_t)phase, __ATOMIC_RELEASE);
}

static bool fail(struct thread *thread, enum topkd_status status, const char *detail)
{
    thread->slot->status = status;
    snprintf(thread->slot->detail, sizeof(thread->slot->detail), "%s", detail);
    return false;
}

/* ---- Scores ---------------------------------------------------------------------------------- */

static float next_score(const struct ctl_options *options, uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    uint32_t bits = (uint32_t)(*state >> 32);
    switch (options->scores_kind) {
    case CTL_SCORES_TIES: /* 256 different values */
        return (float)(bits >> 24);
    case CTL_SCORES_EQUAL:
        return 1.0f;
    case CTL_SCORES_RANDOM:
        break;
    }
    return (float)(bits >> 8) / 16777216.0f;
}

/* A score of 16 bits from a number of 0 ... 255, its lower bits cut off. */
static uint16_t narrow(float score, enum topk_dtype dtype)
{
    uint32_t bits;
    memcpy(&bits, &score, sizeof(bits));
    if (dtype == TOPK_DTYPE_BFLOAT16) {
        return (uint16_t)(bits >> 16);
    }
    /* float16 below 2^-14 counts steps of 2^-24; above, its exponent is 112 less than float32's. */
    return (uint16_t)(score < 0x1p-14f ? (uint32_t)(score * 0x1p24f) : (bits - (112u << 23)) >> 13);
}

static void fill(const struct thread *thread, void *scores, uint64_t count)
{
    const struct ctl_options *options = thread->plan->options;
    uint64_t state = thread->seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
    for (uint64_t i = 0; i < count; i++) {
        float score = next_score(options, &state);
        if (options->dtype == TOPK_DTYPE_FLOAT32) {
            ((float *)scores)[i] = score;
        } else {
            ((uint16_t *)scores)[i] = narrow(score, options->dtype);
        }
    }
}

/* Copies a block of scores to the device; the block is registered with the driver. */
static int upload_blocks(struct thread *thread, const struct cuda_driver *cuda, void *block,
                         uint64_t count)
{
    const uint64_t score_bytes = topk_dtype_bytes(thread->plan->options->dtype);
    cuda_pointer from;
    int result = cuda->host_pointer(&from, block, 0);
    for (uint64_t at = 0; at < count && result == CUDA_OK; at += FILL_BLOCK) {
        uint64_t left = count - at < FILL_BLOCK ? count - at : FILL_BLOCK;
        thread->seed++;
        fill(thread, block, left);
        if (topkd_buffer_copy(thread->scores, at * score_bytes, (void *)(uintptr_t)from,
                              left * score_bytes, NULL) != TOPKD_OK) {
            return CUDA_INVALID_VALUE;
        }
        result = cuda->stream_synchronize(NULL);
    }
    return result;
}

static bool fill_device(struct thread *thread, uint64_t count)
{
    const struct cuda_driver *cuda;
    char detail[256] = "";
    int ordinal = 0;
    void *context;
    enum topkd_status status = cuda_driver_get(&cuda, detail);
    if (status != TOPKD_OK) {
        return fail(thread, status, detail);
    }
    float *block = aligned_alloc(4096, FILL_BLOCK * sizeof(float));
    if (block == NULL) {
        return fail(thread, TOPKD_E_NO_MEMORY, "no memory for scores");
    }
    cuda_pointer to = (cuda_pointer)(uintptr_t)topkd_buffer_data(thread->scores);
    int result = cuda->pointer_attribute(&ordinal, CUDA_POINTER_DEVICE_ORDINAL, to);
    if (result == CUDA_OK) {
        result = cuda->context_retain(&context, ordinal);
    }
    if (result == CUDA_OK) {
        result = cuda->context_push(context);
        if (result == CUDA_OK) {
            result =
                cuda->host_register(block, FILL_BLOCK * sizeof(float),
                                    CUDA_HOST_REGISTER_PORTABLE | CUDA_HOST_REGISTER_DEVICEMAP);
            if (result == CUDA_OK) {
                result = upload_blocks(thread, cuda, block, count);
                (void)cuda->host_unregister(block);
            }
            (void)cuda->context_pop(&context);
        }
        (void)cuda->context_release(ordinal);
    }
    free(block);
    if (result != CUDA_OK) {
        status = cuda_driver_fault(cuda, result, TOPKD_E_SYSTEM, "cannot copy scores to the device",
                                   detail);
        return fail(thread, status, detail);
    }
    return true;
}

/* ---- Opening --------------------------------------------------------------------------------- */

static bool open_memory(struct thread *thread, const struct topkd_client_info *info)
{
    const struct ctl_options *options = thread->plan->options;
    uint64_t scores = 0;
    uint64_t indices = 0;
    for (uint32_t i = 0; i < options->num_shapes; i++) {
        const struct ctl_shape *shape = &options->shapes[i];
        uint64_t size = (uint64_t)shape->rows * shape->width;
        scores = size > scores ? size : scores;
        size = (uint64_t)shape->rows * shape->k * sizeof(int32_t);
        indices = size > indices ? size : indices;
    }
    indices = (indices + 127) / 128 * 128;
    enum topkd_status status = topkd_buffer_create(
        thread->client, scores * topk_dtype_bytes(options->dtype), &thread->scores);
    if (status == TOPKD_OK) {
        status =
            topkd_buffer_create(thread->client, indices * options->outstanding, &thread->indices);
    }
    if (status != TOPKD_OK) {
        return fail(thread, status, topkd_detail());
    }
    thread->flights = calloc(options->outstanding, sizeof(*thread->flights));
    if (thread->flights == NULL) {
        return fail(thread, TOPKD_E_NO_MEMORY, "no memory for requests");
    }
    for (uint32_t i = 0; i < options->outstanding; i++) {
        thread->flights[i].indices_offset = indices * i;
    }
    if (info->device_kind == TOPKD_DEVICE_CUDA) {
        return fill_device(thread, scores);
    }
    fill(thread, topkd_buffer_data(thread->scores), scores);
    return true;
}

static bool open_client(struct thread *thread)
{
    const struct ctl_options *options = thread->plan->options;
    const struct topkd_client_options client_options = {
        .url = options->url,
        .device = options->device,
        .name = "topkctl bench",
        .timeout_ms = options->timeout_ms,
    };
    struct topkd_client_info info;
    enum topkd_status status = topkd_client_open(&client_options, &thread->client);
    if (status != TOPKD_OK) {
        thread->client = NULL;
        return fail(thread, status, topkd_detail());
    }
    status = topkd_client_info(thread->client, &info);
    if (status != TOPKD_OK) {
        return fail(thread, status, topkd_detail());
    }
    memcpy(thread->slot->device, info.device, sizeof(thread->slot->device));
    thread->slot->device_kind = info.device_kind;
    if (options->outstanding > info.outstanding_max) {
        char detail[160];
        snprintf(detail, sizeof(detail),
                 "--outstanding %u, and a session may have %u (limits.outstanding_max)",
                 options->outstanding, info.outstanding_max);
        return fail(thread, TOPKD_E_LIMIT, detail);
    }
    return open_memory(thread, &info);
}

/* ---- Running --------------------------------------------------------------------------------- */

static bool is_over(const struct thread *thread)
{
    const struct bench_shared *shared = thread->plan->shared;
    uint64_t end_ns = __atomic_load_n(&shared->end_ns, __ATOMIC_RELAXED);
    return __atomic_load_n(&shared->stop, __ATOMIC_RELAXED) ||
           (end_ns != 0 && clock_now_ns() >= end_ns);
}

static void count_failure(struct thread *thread, enum topkd_status status, const char *detail)
{
    struct bench_slot *slot = thread->slot;
    if (slot->failed == 0) {
        (void)fail(thread, status, detail);
    }
    slot->failed++;
    if ((uint32_t)status < BENCH_STATUSES) {
        slot->by_status[status]++;
    }
}

/* False when the request was refused; it is counted. */
static bool start(struct thread *thread, struct flight *flight)
{
    const struct ctl_options *options = thread->plan->options;
    flight->shape = thread->next_shape++ % options->num_shapes;
    const struct ctl_shape *shape = &options->shapes[flight->shape];
    const struct topkd_select_request request = {
        .scores = {.region = topkd_buffer_region(thread->scores)},
        .indices = {.region = topkd_buffer_region(thread->indices),
                    .offset_bytes = flight->indices_offset},
        .rows = shape->rows,
        .width = shape->width,
        .k = shape->k,
        .order = (enum topkd_order)options->order,
        .ties = (enum topkd_ties)options->ties,
        .dtype = (enum topkd_dtype)options->dtype,
        .deterministic = options->deterministic,
    };
    struct topkd_op *op;
    flight->started_ns = clock_now_ns();
    enum topkd_status status = topkd_select_start(thread->client, &request, flight, &op);
    if (status == TOPKD_OK) {
        thread->num_flying++;
        return true;
    }
    count_failure(thread, status, topkd_detail());
    return false;
}

static void finish(struct thread *thread, struct topkd_op *op)
{
    const struct bench_shared *shared = thread->plan->shared;
    struct bench_slot *slot = thread->slot;
    const struct flight *flight = topkd_op_user(op);
    const struct ctl_shape *shape = &thread->plan->options->shapes[flight->shape];
    struct topkd_result result;
    uint64_t now_ns = clock_now_ns();
    enum topkd_status status = topkd_op_finish(op, &result);
    thread->num_flying--;
    uint64_t start_ns = __atomic_load_n(&shared->start_ns, __ATOMIC_RELAXED);
    if (status != TOPKD_OK) {
        count_failure(thread, status, topkd_detail());
        return;
    }
    if (now_ns < start_ns || is_over(thread)) {
        return; /* warming up, or late */
    }
    slot->by_status[TOPKD_OK]++;
    slot->queued_ns += result.queued_ns;
    slot->run_ns += result.run_ns;
    slot->retries += result.num_retries;
    histogram_add(&slot->latency, now_ns - flight->started_ns);
    __atomic_store_n(&slot->rows, slot->rows + shape->rows, __ATOMIC_RELAXED);
    slot->scores += (uint64_t)shape->rows * shape->width;
    __atomic_store_n(&slot->requests, slot->requests + 1, __ATOMIC_RELAXED);
}

/* Takes what has ended and puts the next in its place. */
static void turn(struct thread *thread)
{
    struct topkd_op *op;
    while ((op = topkd_op_next(thread->client)) != NULL) {
        struct flight *flight = topkd_op_user(op);
        uint64_t failed = thread->slot->failed;
        finish(thread, op);
        if (thread->slot->failed != failed) {
            usleep(REFUSED_WAIT_US);
        }
        while (!is_over(thread) && !start(thread, flight)) {
            usleep(REFUSED_WAIT_US);
        }
    }
}

static void run(struct thread *thread)
{
    struct pollfd ended = {.fd = topkd_client_fd(thread->client), .events = POLLIN};
    for (uint32_t i = 0; i < thread->plan->options->outstanding; i++) {
        while (!is_over(thread) && !start(thread, &thread->flights[i])) {
            usleep(REFUSED_WAIT_US);
        }
    }
    while (thread->num_flying > 0) {
        (void)poll(&ended, 1, POLL_MS);
        turn(thread);
        if (__atomic_load_n(&thread->plan->shared->stop, __ATOMIC_RELAXED)) {
            return; /* closing the client ends what is in flight */
        }
    }
}

static bool wait_for_start(const struct thread *thread)
{
    const struct bench_shared *shared = thread->plan->shared;
    while (__atomic_load_n(&shared->end_ns, __ATOMIC_ACQUIRE) == 0) {
        if (__atomic_load_n(&shared->stop, __ATOMIC_RELAXED)) {
            return false;
        }
        usleep(1000);
    }
    return true;
}

static void *thread_main(void *argument)
{
    struct thread *thread = argument;
    bool is_open = open_client(thread);
    set_phase(thread->slot, is_open ? BENCH_READY : BENCH_FAILED);
    if (is_open && wait_for_start(thread)) {
        run(thread);
    }
    topkd_buffer_destroy(thread->indices);
    topkd_buffer_destroy(thread->scores);
    topkd_client_close(thread->client);
    free(thread->flights);
    if (is_open) {
        set_phase(thread->slot, BENCH_ENDED);
    }
    return NULL;
}

void bench_client(const struct bench_plan *plan, uint32_t first_slot)
{
    uint32_t num_threads = plan->options->num_threads;
    struct thread *threads = calloc(num_threads, sizeof(*threads));
    /* The parent decides when it is over, also for a Ctrl-C that the terminal sends to all. */
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_DFL);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    uint32_t num_started = 0;
    for (uint32_t i = 0; i < num_threads && threads != NULL; i++) {
        threads[i] = (struct thread){
            .plan = plan,
            .slot = &plan->shared->slots[first_slot + i],
            .seed = plan->options->seed + first_slot + i,
        };
        if (pthread_create(&threads[i].handle, NULL, thread_main, &threads[i]) != 0) {
            break;
        }
        num_started++;
    }
    for (uint32_t i = num_started; i < num_threads; i++) {
        plan->shared->slots[first_slot + i].status = TOPKD_E_NO_MEMORY;
        set_phase(&plan->shared->slots[first_slot + i], BENCH_FAILED);
    }
    for (uint32_t i = 0; i < num_started; i++) {
        pthread_join(threads[i].handle, NULL);
    }
    free(threads);
}
