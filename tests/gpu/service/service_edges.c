/* service_edges.c - cases at the edges: more shapes than graphs are kept, a device that is not
 * visible, regions that go under load, and very many requests. */
#include "service_client.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Each shape is a bucket of its own; the daemon keeps fewer graphs than there are shapes, so every
 * request may find that its graph has gone. */
void service_case_evict(const struct service_options *options)
{
    enum { SHAPES = 12 };
    static const int32_t widths[] = {2048, 8192, 32768};
    struct topkd_client *client = service_open(options, "evict");
    struct service_request requests[SHAPES];
    uint32_t rounds = options->rounds ? options->rounds : 6;
    size_t free_bytes[2] = {0, 0}, total_bytes;
    for (int i = 0; i < SHAPES; i++)
        service_request_open(client, 1 << (i / 3 * 2), widths[i % 3], 64 << (i % 2), &requests[i]);
    for (uint32_t round = 0; round < rounds; round++) {
        for (int i = 0; i < SHAPES; i++) {
            /* Now in order, now against it, now the same ones again and again. */
            int which = round % 3 == 0 ? i : round % 3 == 1 ? SHAPES - 1 - i : i % 3 * 4;
            struct topkd_result result;
            service_request_draw(&requests[which],
                                 options->seed * 131 + round * SHAPES + (uint64_t)i);
            service_request_upload(&requests[which]);
            EXPECT(TOPKD_OK, topkd_select(client, &requests[which].request, &result));
            service_request_check(&requests[which], 0);
        }
        if (round == rounds / 2 || round == rounds - 1)
            CU(cuMemGetInfo(&free_bytes[round == rounds - 1], &total_bytes));
    }
    CHECK(free_bytes[1] + (32u << 20) >= free_bytes[0], "free device memory fell from %zu to %zu",
          free_bytes[0], free_bytes[1]);
    for (int i = 0; i < SHAPES; i++)
        service_request_close(&requests[i]);
    topkd_client_close(client);
}

/* This process does not see the session's device: a session is possible, memory is not, and the
 * error says why. */
void service_case_hidden(const struct service_options *options)
{
    struct topkd_client *client;
    struct topkd_client_options open = {.url = options->url, .device = options->device};
    struct topkd_buffer *buffer;
    struct topkd_region *region;
    static int32_t word;
    EXPECT(TOPKD_OK, topkd_client_open(&open, &client));
    EXPECT(TOPKD_OK, topkd_ping(client, NULL));
    EXPECT(TOPKD_E_NOT_VISIBLE, topkd_buffer_create(client, 4096, &buffer));
    printf("%s\n", topkd_detail());
    EXPECT(TOPKD_E_NOT_VISIBLE,
           topkd_region_register_cuda(client, &word, sizeof(word), TOPKD_ACCESS_READ, &region));
    topkd_client_close(client);
}

/* Eight requests are on their way when their regions are unregistered: each of them is done, the
 * call returns when it is, and memory registered again serves at once. */
void service_case_crowd(const struct service_options *options)
{
    enum { DEPTH = 8 };
    struct topkd_client *client = service_open(options, "crowd");
    struct service_request request;
    struct topkd_op *ops[DEPTH];
    uint32_t rounds = options->rounds ? options->rounds : 40;
    service_request_open(client, 64, 32768, 1024, &request);
    service_request_draw(&request, 6);
    service_request_upload(&request);
    for (uint32_t round = 0; round < rounds; round++) {
        for (int i = 0; i < DEPTH; i++)
            EXPECT(TOPKD_OK, topkd_select_start(client, &request.request, NULL, &ops[i]));
        EXPECT(TOPKD_OK, topkd_region_unregister(request.scores));
        for (int i = 0; i < DEPTH; i++) {
            EXPECT(TOPKD_OK, topkd_op_wait(ops[i], 1)); /* nothing used the region any more */
            EXPECT(TOPKD_OK, topkd_op_finish(ops[i], NULL));
        }
        service_request_check(&request, 0);
        EXPECT(TOPKD_OK, topkd_region_register_cuda(client, (void *)(uintptr_t)request.d_scores,
                                                    request.scores_bytes, TOPKD_ACCESS_READ,
                                                    &request.scores));
        request.request.scores.region = request.scores;
    }
    service_request_close(&request);
    topkd_client_close(client);
}

/* ---- Very many ------------------------------------------------------------------------------- */

/* So many requests, eight in flight; a short registration now and then. */
static void run_many(struct topkd_client *client, const struct service_request *request,
                     uint32_t num)
{
    enum { DEPTH = 8 };
    struct topkd_op *ops[DEPTH] = {NULL};
    for (uint32_t i = 0; i < num + DEPTH; i++) {
        struct topkd_op **op = &ops[i % DEPTH];
        if (*op) {
            EXPECT(TOPKD_OK, topkd_op_wait(*op, 0));
            EXPECT(TOPKD_OK, topkd_op_finish(*op, NULL));
            *op = NULL;
        }
        if (i < num)
            EXPECT(TOPKD_OK, topkd_select_start(client, &request->request, NULL, op));
    }
}

static void register_once(struct topkd_client *client)
{
    CUdeviceptr memory;
    struct topkd_region *region;
    CU(cuMemAlloc(&memory, 4u << 20));
    EXPECT(TOPKD_OK, topkd_region_register_cuda(client, (void *)(uintptr_t)memory, 4u << 20,
                                                TOPKD_ACCESS_READ, &region));
    EXPECT(TOPKD_OK, topkd_region_unregister(region));
    CU(cuMemFree(memory));
}

static size_t free_memory(void)
{
    size_t free_bytes, total_bytes;
    service_sleep_ms(100); /* the last unmapping is the worker's to do in the background */
    CU(cuMemGetInfo(&free_bytes, &total_bytes));
    return free_bytes;
}

/* SEED: MiB of device memory that others may take meanwhile. */
void service_case_growth(const struct service_options *options)
{
    struct topkd_client *client = service_open(options, "growth");
    struct service_request request;
    uint32_t num_requests = options->rounds ? options->rounds : 1000;
    uint32_t num_registrations = num_requests >= 100000 ? 1000 : num_requests / 10 + 1;
    size_t spare_bytes = (size_t)options->seed << 20;
    service_request_open(client, 4, 16384, 512, &request);
    service_request_draw(&request, 6); /* lengths of every row in full */
    service_request_upload(&request);
    run_many(client, &request, num_requests / 10);
    for (int i = 0; i < 3; i++)
        register_once(client);
    size_t before = free_memory();
    double start_ms = service_now_ms();
    run_many(client, &request, num_requests);
    double took_ms = service_now_ms() - start_ms;
    service_request_check(&request, 0);
    size_t after = free_memory();
    printf("%u requests in %.0f ms, free device memory %zu before, %zu after\n", num_requests,
           took_ms, before, after);
    CHECK(after + spare_bytes >= before, "free device memory fell from %zu to %zu", before, after);
    start_ms = service_now_ms();
    for (uint32_t i = 0; i < num_registrations; i++)
        register_once(client);
    took_ms = service_now_ms() - start_ms;
    after = free_memory();
    printf("%u registrations in %.0f ms, free device memory %zu after\n", num_registrations,
           took_ms, after);
    CHECK(after + spare_bytes >= before, "free device memory fell from %zu to %zu", before, after);
    service_request_close(&request);
    topkd_client_close(client);
}
