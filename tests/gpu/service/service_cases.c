/* service_cases.c - cases about selections: exact, in streams, with semaphores, with others. */
#include "service_client.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct shape {
    int32_t rows, width, k;
} shapes[] = {{4, 16384, 512}, {64, 8192, 2048},  {1, 131072, 2048}, {33, 16385, 1024},
              {7, 1000, 1500}, {16, 65536, 2048}, {3, 200000, 64},   {128, 4096, 300}};
#define NUM_SHAPES (sizeof(shapes) / sizeof(shapes[0]))

static struct topkd_region *region_of_lengths(struct topkd_client *client, CUdeviceptr *d_lengths_p,
                                              uint32_t rows)
{
    struct topkd_region *region;
    CU(cuMemAlloc(d_lengths_p, rows * sizeof(int32_t)));
    EXPECT(TOPKD_OK,
           topkd_region_register_cuda(client, (void *)(uintptr_t)*d_lengths_p,
                                      rows * sizeof(int32_t), TOPKD_ACCESS_READ, &region));
    return region;
}

/* Every third request puts its result into the arena, every fourth its lengths into a region; a
 * fifth each has scores of float16 and of bfloat16. */
static void exact_once(struct topkd_client *client, struct service_request *request, uint64_t seed)
{
    service_request_draw(request, seed);
    request->options.dtype = seed % 5 < TOPK_DTYPE_COUNT ? (enum topk_dtype)(seed % 5) : 0;
    request->request.dtype = (enum topkd_dtype)request->options.dtype;
    inputs_fill_typed(&request->inputs, request->options.dtype, NULL, request->h_scores);
    service_request_upload(request);
    struct topkd_select_request asked = request->request;
    CUdeviceptr d_lengths = 0;
    if (seed % 4 == 0 && asked.lengths_mode == TOPKD_LENGTHS_HOST) {
        asked.lengths_mode = TOPKD_LENGTHS_REGION;
        asked.lengths_host = NULL;
        asked.lengths.region = region_of_lengths(client, &d_lengths, asked.rows);
        CU(cuMemcpyHtoDAsync(d_lengths, request->h_lengths, asked.rows * sizeof(int32_t), NULL));
        CU(cuStreamSynchronize(NULL));
    }
    bool in_arena = seed % 3 == 0;
    if (in_arena)
        asked.indices.region = NULL;
    struct topkd_result result;
    EXPECT(TOPKD_OK, topkd_select(client, &asked, &result));
    CHECK(in_arena == (result.lease != 0), "lease %llu", (unsigned long long)result.lease);
    service_request_check(request, in_arena ? (CUdeviceptr)(uintptr_t)result.indices : 0);
    topkd_result_release(client, &result);
    if (d_lengths) {
        EXPECT(TOPKD_OK, topkd_region_unregister(asked.lengths.region));
        CU(cuMemFree(d_lengths));
    }
}

void service_case_exact(const struct service_options *options)
{
    struct topkd_client *client = service_open(options, "exact");
    struct service_request requests[NUM_SHAPES];
    for (size_t i = 0; i < NUM_SHAPES; i++)
        service_request_open(client, shapes[i].rows, shapes[i].width, shapes[i].k, &requests[i]);
    uint32_t rounds = options->rounds ? options->rounds : 24;
    for (uint32_t i = 0; i < rounds; i++)
        exact_once(client, &requests[(i + options->seed) % NUM_SHAPES], options->seed * 1000 + i);
    for (size_t i = 0; i < NUM_SHAPES; i++)
        service_request_close(&requests[i]);
    topkd_client_close(client);
}

/* Upload, selection and download of one request, all in one stream, nothing synchronised. */
static struct topkd_op *enqueue(struct topkd_client *client, struct service_request *request,
                                CUstream stream)
{
    struct topkd_op *op;
    CU(cuMemcpyHtoDAsync(request->d_scores, request->h_scores, request->scores_bytes, stream));
    EXPECT(TOPKD_OK, topkd_select_stream(client, &request->request, stream, &op));
    CU(cuMemcpyDtoHAsync(request->h_indices, request->d_indices, request->indices_bytes, stream));
    return op;
}

void service_case_stream(const struct service_options *options)
{
    enum { DEPTH = 4 };
    struct topkd_client *client = service_open(options, "stream");
    struct service_request requests[DEPTH];
    CUstream streams[2];
    struct topkd_op *ops[DEPTH];
    for (int i = 0; i < 2; i++)
        CU(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < DEPTH; i++) {
        const struct shape *shape = &shapes[(options->seed + (uint64_t)i) % NUM_SHAPES];
        service_request_open(client, shape->rows, shape->width, shape->k, &requests[i]);
    }
    uint32_t rounds = options->rounds ? options->rounds : 8;
    for (uint32_t round = 0; round < rounds; round++) {
        for (int i = 0; i < DEPTH; i++)
            service_request_draw(&requests[i], options->seed * 977 + round * DEPTH + (uint32_t)i);
        for (int i = 0; i < DEPTH; i++)
            ops[i] = enqueue(client, &requests[i], streams[i % 2]);
        for (int i = 0; i < 2; i++)
            CU(cuStreamSynchronize(streams[i]));
        for (int i = 0; i < DEPTH; i++) {
            EXPECT(TOPKD_OK, topkd_op_wait(ops[i], 0));
            EXPECT(TOPKD_OK, topkd_op_finish(ops[i], NULL));
            service_request_judge(&requests[i]);
        }
    }
    for (int i = 0; i < DEPTH; i++)
        service_request_close(&requests[i]);
    topkd_client_close(client);
}

/* ---- Semaphores ------------------------------------------------------------------------------ */

void service_case_never(const struct service_options *options)
{
    struct topkd_client *client = service_open(options, "never");
    struct service_request request;
    struct topkd_semaphore *ready, *done;
    CUstream stream;
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    service_request_open(client, 64, 8192, 1024, &request);
    service_request_draw(&request, options->seed);
    service_request_upload(&request);
    EXPECT(TOPKD_OK, topkd_semaphore_create(client, &ready));
    EXPECT(TOPKD_OK, topkd_semaphore_create(client, &done));
    struct topkd_select_request asked = request.request;
    asked.wait = (struct topkd_semaphore_point){.semaphore = ready, .value = 1};
    asked.signal = (struct topkd_semaphore_point){.semaphore = done, .value = 1};
    asked.timeout_ms = 300;
    double start_ms = service_now_ms();
    struct topkd_op *op;
    EXPECT(TOPKD_OK, topkd_select_start(client, &asked, NULL, &op));
    EXPECT(TOPKD_OK, topkd_semaphore_wait_stream(done, 1, stream));
    CU(cuStreamSynchronize(stream)); /* goes on although nobody ever selected */
    EXPECT(TOPKD_OK, topkd_op_wait(op, 0));
    double took_ms = service_now_ms() - start_ms;
    EXPECT(TOPKD_E_TIMEOUT, topkd_op_finish(op, NULL));
    CHECK(strstr(topkd_detail(), "semaphore"), "the text names no semaphore: %s", topkd_detail());
    CHECK(took_ms >= 290 && took_ms < 9000, "a deadline of 300 ms took %.1f", took_ms);
    CHECK(topkd_semaphore_value(done) == 1, "value %llu",
          (unsigned long long)topkd_semaphore_value(done));
    EXPECT(TOPKD_E_TIMEOUT, topkd_semaphore_wait(done, 1, 100)); /* says how it failed */
    /* The lane, the regions and the semaphores are as good as before. */
    asked.wait.value = 2;
    asked.signal.value = 2;
    asked.timeout_ms = 0;
    EXPECT(TOPKD_OK, topkd_semaphore_signal(ready, 2));
    struct topkd_result result;
    EXPECT(TOPKD_OK, topkd_select(client, &asked, &result));
    service_request_check(&request, 0);
    EXPECT(TOPKD_OK, topkd_semaphore_wait(done, 2, 100));
    topkd_semaphore_destroy(ready);
    topkd_semaphore_destroy(done);
    service_request_close(&request);
    topkd_client_close(client);
}

void service_case_late(const struct service_options *options)
{
    struct topkd_client *client = service_open(options, "late");
    struct service_request request;
    struct topkd_semaphore *ready;
    CUstream stream;
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    service_request_open(client, 16, 65536, 2048, &request);
    EXPECT(TOPKD_OK, topkd_semaphore_create(client, &ready));
    for (uint64_t value = 1; value <= 4; value++) {
        struct topkd_op *op;
        service_request_draw(&request, options->seed + value);
        struct topkd_select_request asked = request.request;
        asked.wait = (struct topkd_semaphore_point){.semaphore = ready, .value = value};
        EXPECT(TOPKD_OK, topkd_select_start(client, &asked, NULL, &op));
        EXPECT(TOPKD_E_TIMEOUT, topkd_op_wait(op, 20)); /* it waits */
        if (value % 2) {
            service_request_upload(&request);
            EXPECT(TOPKD_OK, topkd_semaphore_signal(ready, value));
        } else {
            CU(cuMemcpyHtoDAsync(request.d_scores, request.h_scores, request.scores_bytes, stream));
            EXPECT(TOPKD_OK, topkd_semaphore_signal_stream(ready, value, stream));
        }
        EXPECT(TOPKD_OK, topkd_op_wait(op, 0));
        EXPECT(TOPKD_OK, topkd_op_finish(op, NULL));
        CU(cuStreamSynchronize(stream));
        service_request_check(&request, 0);
    }
    service_request_close(&request);
    topkd_client_close(client);
}

/* ---- With others ----------------------------------------------------------------------------- */

void service_case_idle(const struct service_options *options)
{
    struct topkd_client *client = service_open(options, "idle");
    struct service_request request;
    struct topkd_semaphore *ready;
    struct topkd_op *op;
    service_request_open(client, 64, 65536, 2048, &request);
    EXPECT(TOPKD_OK, topkd_semaphore_create(client, &ready));
    request.request.wait = (struct topkd_semaphore_point){.semaphore = ready, .value = 1};
    request.request.timeout_ms = 60000;
    EXPECT(TOPKD_OK, topkd_select_start(client, &request.request, NULL, &op));
    printf("waiting\n");
    fflush(stdout);
    for (;;)
        pause();
}

void service_case_survive(const struct service_options *options)
{
    struct topkd_client *client = service_open(options, "survive");
    struct service_request request;
    struct topkd_semaphore *ready, *done;
    struct topkd_op *op;
    CUstream stream;
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    service_request_open(client, 16, 65536, 1024, &request);
    service_request_draw(&request, options->seed);
    service_request_upload(&request);
    EXPECT(TOPKD_OK, topkd_semaphore_create(client, &ready));
    EXPECT(TOPKD_OK, topkd_semaphore_create(client, &done));
    struct topkd_select_request asked = request.request;
    asked.wait = (struct topkd_semaphore_point){.semaphore = ready, .value = 1};
    asked.signal = (struct topkd_semaphore_point){.semaphore = done, .value = 1};
    asked.timeout_ms = 30000;
    EXPECT(TOPKD_OK, topkd_select_start(client, &asked, NULL, &op));
    EXPECT(TOPKD_OK, topkd_semaphore_wait_stream(done, 1, stream));
    printf("waiting\n"); /* now the script kills the worker */
    fflush(stdout);
    double start_ms = service_now_ms();
    CU(cuStreamSynchronize(stream));
    EXPECT(TOPKD_OK, topkd_op_wait(op, 0));
    EXPECT(TOPKD_E_STALE_SESSION, topkd_op_finish(op, NULL));
    printf("released after_ms=%.0f\n", service_now_ms() - start_ms);
    /* The session is renewed, the regions are registered again, the stream is used again. */
    for (uint64_t round = 0; round < 3; round++) {
        service_request_draw(&request, options->seed + round);
        op = enqueue(client, &request, stream);
        CU(cuStreamSynchronize(stream));
        EXPECT(TOPKD_OK, topkd_op_wait(op, 0));
        EXPECT(TOPKD_OK, topkd_op_finish(op, NULL));
        service_request_judge(&request);
    }
    struct topkd_result result;
    request.request.indices.region = NULL; /* the new session's arena */
    EXPECT(TOPKD_OK, topkd_select(client, &request.request, &result));
    service_request_check(&request, (CUdeviceptr)(uintptr_t)result.indices);
    topkd_result_release(client, &result);
    struct topkd_client_info info;
    EXPECT(TOPKD_OK, topkd_client_info(client, &info));
    CHECK(info.num_renewals >= 1, "renewals %llu", (unsigned long long)info.num_renewals);
    service_request_close(&request);
    topkd_client_close(client);
}

void service_case_fault(const struct service_options *options)
{
    struct topkd_client *client = service_open(options, "fault");
    struct service_request request;
    service_request_open(client, 4, 16384, 512, &request);
    uint32_t rounds = options->rounds ? options->rounds : 60, num_faults = 0;
    for (uint32_t i = 0; i < rounds; i++) {
        struct topkd_result result;
        service_request_draw(&request, options->seed + i);
        service_request_upload(&request);
        enum topkd_status status = topkd_select(client, &request.request, &result);
        if (status == TOPKD_OK) {
            service_request_check(&request, 0);
            continue;
        }
        CHECK(status == TOPKD_E_DEVICE_FAULT, "%s: %s", topkd_status_name(status), topkd_detail());
        printf("fault: %s\n", topkd_detail());
        num_faults++;
    }
    CHECK(num_faults == 1, "%u faults", num_faults);
    struct topkd_client_info info;
    EXPECT(TOPKD_OK, topkd_client_info(client, &info));
    CHECK(info.num_renewals >= 1, "renewals %llu", (unsigned long long)info.num_renewals);
    service_request_close(&request);
    topkd_client_close(client);
}

void service_case_flood(const struct service_options *options)
{
    enum { DEPTH = 16 };
    struct topkd_client *client = service_open(options, "flood");
    struct service_request request;
    struct topkd_op *ops[DEPTH] = {NULL};
    service_request_open(client, 64, 131072, 2048, &request);
    service_request_draw(&request, 6);
    service_request_upload(&request);
    printf("waiting\n");
    fflush(stdout);
    for (uint32_t i = 0;; i++) {
        struct topkd_op **op = &ops[i % DEPTH];
        if (*op) {
            EXPECT(TOPKD_OK, topkd_op_wait(*op, 0));
            EXPECT(TOPKD_OK, topkd_op_finish(*op, NULL));
        }
        EXPECT(TOPKD_OK, topkd_select_start(client, &request.request, NULL, op));
    }
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

void service_case_steady(const struct service_options *options)
{
    struct topkd_client *client = service_open(options, "steady");
    struct service_request request;
    struct topkd_result result;
    uint32_t rounds = options->rounds ? options->rounds : 500;
    double *times = calloc(rounds, sizeof(*times));
    CHECK(times, "no memory");
    service_request_open(client, 4, 16384, 512, &request);
    service_request_draw(&request, 6);
    service_request_upload(&request);
    for (uint32_t i = 0; i < rounds + 50; i++) {
        double start_ms = service_now_ms();
        EXPECT(TOPKD_OK, topkd_select(client, &request.request, &result));
        if (i >= 50)
            times[i - 50] = service_now_ms() - start_ms;
    }
    service_request_check(&request, 0);
    qsort(times, rounds, sizeof(*times), compare);
    double p50_ms = times[rounds / 2], p99_ms = times[rounds * 99 / 100];
    printf("steady p50_us=%.0f p99_us=%.0f\n", p50_ms * 1e3, p99_ms * 1e3);
    /* A starved client would wait for whole queues of the others, again and again. Of few calls the
     * slowest may be one that the machine held up. */
    double judged_ms = rounds < 100 ? p50_ms : p99_ms;
    CHECK(judged_ms < 50, "a small request took %.1f ms, %.1f at p99", p50_ms, p99_ms);
    free(times);
    service_request_close(&request);
    topkd_client_close(client);
}

void service_case_wrong_uuid(const struct service_options *options)
{
    struct topkd_client *client;
    struct topkd_client_options open = {.url = options->url,
                                        .device = "GPU-00000000-1111-2222-3333-444444444444",
                                        .timeout_ms = 30000};
    EXPECT(TOPKD_E_NO_DEVICE, topkd_client_open(&open, &client));
}
