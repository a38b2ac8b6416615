/*
 * service_stranger.c - what a hostile client can ask of a worker on a GPU: regions of another
 * session, one mailbox for two lanes, and geometry that would leave the registered bytes. usage:
 * service_stranger URL [ROUNDS [SEED]]
 *
 * It uses the library's inner parts to speak the wire by hand: over the connection of a session
 * that it opened in order, and over one that only said hello.
 */
#include "service_client.h"

#include "client.h"
#include "discover.h"
#include "rpc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 64, WIDTH = 8192, K = 1024, GUARD_BYTES = 65536, DEPTH = 8, WAIT_MS = 30000 };

static struct wire_reply reply;

/* The output lies in the middle of an allocation of which only that middle is registered. */
static struct output {
    CUdeviceptr d_base;
    uint64_t size_bytes;
    uint8_t *h_copy;
    struct topkd_region *region;
} output;

static struct wire_region_ref ref_of(const struct topkd_region *region)
{
    return (struct wire_region_ref){.region = region->id, .generation = region->generation};
}

static struct wire_request select_of(const struct service_request *request)
{
    struct wire_request wire = {.kind = WIRE_SELECT};
    wire.u.select = (struct wire_select_request){.scores = ref_of(request->scores),
                                                 .row_stride = WIDTH,
                                                 .rows = ROWS,
                                                 .width = WIDTH,
                                                 .k = K,
                                                 .length_all = WIDTH,
                                                 .indices = ref_of(output.region),
                                                 .index_stride = K,
                                                 .timeout_ms = WAIT_MS};
    return wire;
}

/* Over the library's own connection and session. */
static enum topkd_status call(struct topkd_client *client, struct wire_request *request)
{
    char detail[WIRE_DETAIL_SIZE] = "";
    pthread_mutex_lock(&client->mutex);
    struct link *link = client->link;
    request->session = link->session->id;
    request->epoch = link->session->epoch;
    request->sequence = ++link->sequence;
    pthread_mutex_unlock(&client->mutex);
    return rpc_exchange(link->rpc, request, clock_after_ms(WAIT_MS), &reply, detail);
}

/* ---- Another session's regions --------------------------------------------------------------- */

static void check_foreign_regions(struct topkd_client *client, struct service_request *request)
{
    struct wire_request hello = {.kind = WIRE_HELLO}, wire = select_of(request);
    struct topkd_op *ops[DEPTH];
    struct rpc *rpc;
    char detail[WIRE_DETAIL_SIZE] = "";
    hello.u.hello.version = WIRE_VERSION;
    EXPECT(TOPKD_OK, rpc_open(client->session->url, clock_after_ms(WAIT_MS), &rpc, detail));
    EXPECT(TOPKD_OK, rpc_exchange(rpc, &hello, clock_after_ms(WAIT_MS), &reply, detail));
    wire.session = reply.session;
    wire.epoch = reply.epoch;
    CHECK(reply.session != client->session->id, "two connections share session %llu",
          (unsigned long long)reply.session);
    for (uint32_t round = 0; round < 20; round++) {
        for (int i = 0; i < DEPTH; i++)
            EXPECT(TOPKD_OK, topkd_select_start(client, &request->request, NULL, &ops[i]));
        wire.sequence++;
        wire.kind = WIRE_SELECT;
        EXPECT(TOPKD_E_NO_REGION,
               rpc_exchange(rpc, &wire, clock_after_ms(WAIT_MS), &reply, detail));
        struct wire_request unregister = {.session = wire.session,
                                          .epoch = wire.epoch,
                                          .sequence = ++wire.sequence,
                                          .kind = WIRE_UNREGISTER};
        unregister.u.unreg.region = request->scores->id;
        unregister.u.unreg.generation = request->scores->generation;
        EXPECT(TOPKD_E_NO_REGION,
               rpc_exchange(rpc, &unregister, clock_after_ms(WAIT_MS), &reply, detail));
        for (int i = 0; i < DEPTH; i++) {
            EXPECT(TOPKD_OK, topkd_op_wait(ops[i], 0));
            EXPECT(TOPKD_OK, topkd_op_finish(ops[i], NULL));
        }
    }
    printf("another session's region: %s\n", detail);
    /* A region that was given up twice, and a generation that was. */
    struct topkd_region *region;
    EXPECT(TOPKD_OK, topkd_region_register_cuda(client, (void *)(uintptr_t)request->d_scores, 4096,
                                                TOPKD_ACCESS_READ, &region));
    struct wire_request twice = {.kind = WIRE_UNREGISTER};
    twice.u.unreg.region = region->id;
    twice.u.unreg.generation = region->generation;
    EXPECT(TOPKD_OK, topkd_region_unregister(region));
    EXPECT(TOPKD_E_NO_REGION, call(client, &twice));
    rpc_close(rpc);
    service_request_check(request, 0);
}

/* ---- A mailbox for two lanes ----------------------------------------------------------------- */

/* Two streams that answer in one mailbox would answer each other's requests: the second lane is
 * refused while the first is open, and served afterwards. */
static void check_shared_mailbox(struct topkd_client *client, struct service_request *request)
{
    char detail[WIRE_DETAIL_SIZE] = "";
    struct topkd_lane *lane;
    struct topkd_select_request shape = request->request;
    shape.lengths_mode = TOPKD_LENGTHS_ALL;
    shape.length_all = WIDTH;
    shape.indices = (struct topkd_tensor){.region = output.region};
    shape.want_values = false;
    shape.values = (struct topkd_tensor){.region = NULL};
    EXPECT(TOPKD_OK, topkd_lane_open(client, &shape, NULL, &lane));
    for (int turn = 0; turn < 2; turn++) {
        struct wire_memory file;
        struct wire_request wire = {.kind = WIRE_LANE_OPEN};
        EXPECT(TOPKD_OK, cuda_lane_offer(&lane->mailbox, client->session->url, &file, detail));
        pthread_mutex_lock(&client->mutex);
        EXPECT(TOPKD_OK, lane_fill_open(lane, client->session, &file, &wire, detail));
        pthread_mutex_unlock(&client->mutex);
        EXPECT(turn == 0 ? TOPKD_E_BUSY : TOPKD_OK, call(client, &wire));
        if (turn == 0) {
            CHECK(strstr(reply.detail, "still serves another lane"), "%s", reply.detail);
            struct wire_request close = {.kind = WIRE_LANE_CLOSE};
            close.u.lane_close.lane = lane->id;
            EXPECT(TOPKD_OK, call(client, &close));
        } else {
            lane->id = reply.u.lane_open.lane; /* the library closes this one */
        }
    }
    topkd_lane_close(lane);
    printf("a mailbox for two lanes: refused\n");
}

/* ---- Hostile geometry ------------------------------------------------------------------------ */

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* A number that breaks sums: near a power of two, near the sizes that fit, or anything. */
static uint64_t hostile(uint64_t *state)
{
    static const uint64_t near[] = {
        0,           ROWS,      WIDTH,      K,           INT32_MAX,
        UINT32_MAX,  INT64_MAX, UINT64_MAX, GUARD_BYTES, ROWS * WIDTH * 4,
        ROWS * K * 4};
    uint64_t random = next_random(state);
    switch (random % 3) {
    case 0:
        return (UINT64_C(1) << (random >> 8) % 64) + (random >> 16) % 3 - 1;
    case 1:
        return near[(random >> 8) % (sizeof(near) / sizeof(near[0]))] + (random >> 16) % 5 - 2;
    default:
        return random >> (random >> 58);
    }
}

static void spoil(struct wire_select_request *select, uint64_t *state)
{
    uint64_t number = hostile(state);
    switch (next_random(state) % 12) {
    case 0:
        select->scores.offset = number;
        break;
    case 1:
        select->indices.offset = number;
        break;
    case 2:
        select->row_stride = (int64_t)number;
        break;
    case 3:
        select->index_stride = (int64_t)number;
        break;
    case 4:
        select->rows = (uint32_t)number;
        break;
    case 5:
        select->width = (uint32_t)number;
        break;
    case 6:
        select->k = (uint32_t)number;
        break;
    case 7:
        select->length_all = (int32_t)number;
        break;
    case 8: /* lengths that lie over the end of the region */
        select->lengths_mode = WIRE_LENGTHS_REGION;
        select->lengths = select->scores;
        select->lengths.offset = number;
        break;
    case 9:
        select->row_offsets = select->scores;
        select->row_offsets.offset = number;
        break;
    case 10: /* output over input */
        select->indices = select->scores;
        select->indices.offset = number;
        break;
    default:
        select->page_table = select->scores;
        select->page_table.offset = number;
        select->page_table_stride = (int64_t)hostile(state);
        select->page_table_width = (uint32_t)hostile(state);
        select->page_size_log2 = (uint32_t)hostile(state) % 40;
        break;
    }
}

static void check_hostile_geometry(struct topkd_client *client, struct service_request *request,
                                   uint32_t rounds, uint64_t seed)
{
    uint32_t num_ran = 0, num_refused = 0;
    uint64_t state = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
    for (uint32_t round = 0; round < rounds; round++) {
        struct wire_request wire = select_of(request);
        uint32_t num_spoiled = 1 + (uint32_t)(next_random(&state) % 3);
        for (uint32_t i = 0; i < num_spoiled; i++)
            spoil(&wire.u.select, &state);
        enum topkd_status status = call(client, &wire);
        num_ran += status == TOPKD_OK;
        num_refused += status != TOPKD_OK;
        CHECK(status == TOPKD_OK || reply.detail[0], "round %u: refused without a text", round);
        CHECK(status != TOPKD_E_DEVICE_FAULT && status != TOPKD_E_TIMEOUT &&
                  status != TOPKD_E_UNREACHABLE,
              "round %u: %s: %s", round, topkd_status_name(status), reply.detail);
    }
    printf("%u hostile requests: %u refused, %u were harmless and ran\n", rounds, num_refused,
           num_ran);
    CHECK(num_refused > rounds / 2 && num_ran > 0, "%u refused, %u ran", num_refused, num_ran);
}

/* Nothing beside the registered bytes was written. */
static void check_guards(void)
{
    uint64_t inner_end = GUARD_BYTES + (uint64_t)ROWS * K * sizeof(int32_t);
    CU(cuMemcpyDtoHAsync(output.h_copy, output.d_base, output.size_bytes, NULL));
    CU(cuStreamSynchronize(NULL));
    for (uint64_t i = 0; i < output.size_bytes; i++)
        CHECK((i >= GUARD_BYTES && i < inner_end) || output.h_copy[i] == 0x5a,
              "byte %llu of %llu was written", (unsigned long long)i,
              (unsigned long long)output.size_bytes);
}

int main(int argc, char **argv)
{
    struct service_options options = {.url = argc > 1 ? argv[1] : NULL,
                                      .rounds = argc > 2 ? (uint32_t)atoi(argv[2]) : 2000,
                                      .seed = argc > 3 ? strtoull(argv[3], NULL, 10) : 1};
    struct service_request request;
    service_case_begin("stranger");
    struct topkd_client *client = service_open(&options, "stranger");
    service_request_open(client, ROWS, WIDTH, K, &request);
    service_request_draw(&request, 6);
    service_request_upload(&request);
    output.size_bytes = 2 * GUARD_BYTES + (uint64_t)ROWS * K * sizeof(int32_t);
    output.h_copy = malloc(output.size_bytes);
    CHECK(output.h_copy, "no memory");
    CU(cuMemAlloc(&output.d_base, output.size_bytes));
    CU(cuMemsetD8(output.d_base, 0x5a, output.size_bytes));
    EXPECT(TOPKD_OK,
           topkd_region_register_cuda(client, (void *)(uintptr_t)(output.d_base + GUARD_BYTES),
                                      (size_t)ROWS * K * sizeof(int32_t), TOPKD_ACCESS_READ_WRITE,
                                      &output.region));
    check_foreign_regions(client, &request);
    check_shared_mailbox(client, &request);
    check_hostile_geometry(client, &request, options.rounds, options.seed);
    check_guards();
    struct topkd_result result;
    EXPECT(TOPKD_OK, topkd_select(client, &request.request, &result));
    service_request_check(&request, 0);
    struct topkd_client_info info;
    EXPECT(TOPKD_OK, topkd_client_info(client, &info));
    CHECK(info.num_renewals == 0, "the worker went %llu times",
          (unsigned long long)info.num_renewals);
    EXPECT(TOPKD_OK, topkd_region_unregister(output.region));
    CU(cuMemFree(output.d_base));
    free(output.h_copy);
    service_request_close(&request);
    topkd_client_close(client);
    printf("ok stranger\n");
    return 0;
}
