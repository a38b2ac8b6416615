/* service_lanes.c - cases of the service test: selection inside the client's own graph. An odd seed
 * takes a mailbox in device memory: with 3, 7, 11 ... the worker looks ahead of requests, with 5 or
 * 13 the driver waits on both sides, else it is as the library finds best. */
#include "service_client.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROWS = 5, WIDTH = 3000, K = 40, SOURCES = 16, BATCH = 64 };

/* Everything that changes from step to step, one behind the other, so that one copy brings it. */
struct inputs_block {
    float scores[ROWS * WIDTH];
    int32_t lengths[ROWS];
    int32_t live_rows;
};

/* A lane, what it reads and writes, and what it must give for each of several inputs. */
struct fixture {
    struct topkd_client *client;
    struct topkd_lane *lane;
    struct topkd_region *in, *out;
    CUdeviceptr d_in, d_out, d_sources, d_results;
    CUstream stream;
    struct inputs_block *sources; /* [SOURCES] */
    int32_t (*wanted)[ROWS * K];  /* [SOURCES], 0x81 bytes where nothing may be written */
    int32_t (*results)[ROWS * K]; /* [BATCH] */
};

static uint64_t random_next(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *state >> 33;
}

/* ---- What is right, from the oracle ---------------------------------------------------------- */

static void fill_source(struct inputs_block *block, uint64_t seed)
{
    static const enum inputs_family families[] = {INPUTS_NORMAL, INPUTS_MIXED, INPUTS_TIES};
    struct inputs_spec spec = {.family = families[seed % 3],
                               .seed = seed,
                               .num_rows = ROWS,
                               .width = WIDTH,
                               .row_stride = WIDTH,
                               .k = K};
    inputs_fill(&spec, block->scores);
    for (int i = 0; i < ROWS; i++)
        block->lengths[i] = (int32_t)(random_next(&seed) % (WIDTH + 1));
    block->live_rows = (int32_t)(random_next(&seed) % (ROWS + 2)) - 1; /* -1 counts as 0 */
}

/* The first answer for an input is judged; every later one must be the same bytes. */
static void learn(struct fixture *fixture, int source, const int32_t *result)
{
    const struct inputs_block *block = &fixture->sources[source];
    int32_t live = block->live_rows < 0 ? 0 : block->live_rows > ROWS ? ROWS : block->live_rows;
    struct topk_args args = {.scores = block->scores,
                             .row_stride = WIDTH,
                             .lengths = block->lengths,
                             .indices = fixture->wanted[source],
                             .index_stride = K,
                             .num_rows = live,
                             .width = WIDTH,
                             .k = K};
    const struct topk_options options = {.order = TOPK_ORDER_INDEX, .ties = TOPK_TIES_LOWEST};
    char detail[ORACLE_DETAIL_SIZE] = "";
    memcpy(fixture->wanted[source], result, sizeof(fixture->wanted[source]));
    CHECK(oracle_check(&args, &options, detail), "source %d: %s", source, detail);
    for (int i = live * K; i < ROWS * K; i++)
        CHECK(result[i] == (int32_t)0x81818181, "source %d: row %d of %d live ones was written",
              source, i / K, live);
}

/* ---- Lanes ----------------------------------------------------------------------------------- */

static void lane_request(const struct fixture *fixture, struct topkd_select_request *request,
                         struct topkd_lane_options *options)
{
    *request = (struct topkd_select_request){
        .scores = {.region = fixture->in},
        .rows = ROWS,
        .width = WIDTH,
        .k = K,
        .deterministic = true,
        .lengths_mode = TOPKD_LENGTHS_REGION,
        .lengths = {.region = fixture->in, .offset_bytes = offsetof(struct inputs_block, lengths)},
        .indices = {.region = fixture->out},
    };
    *options = (struct topkd_lane_options){
        .live_rows = {.region = fixture->in,
                      .offset_bytes = offsetof(struct inputs_block, live_rows)},
    };
}

static void choose_waits(uint64_t seed, struct topkd_lane_options *options)
{
    options->device_mailbox = seed % 2 == 1;
    options->poll_us = seed % 4 == 3 ? 1000 : 0;
    options->wait = seed % 8 == 5 ? TOPKD_LANE_WAIT_DRIVER : TOPKD_LANE_WAIT_AUTO;
}

static void fixture_open(const struct service_options *options, const char *name,
                         struct fixture *fixture)
{
    *fixture = (struct fixture){.client = service_open(options, name)};
    CU(cuMemAlloc(&fixture->d_in, sizeof(struct inputs_block)));
    CU(cuMemAlloc(&fixture->d_out, sizeof(int32_t) * ROWS * K));
    CU(cuMemAlloc(&fixture->d_sources, sizeof(struct inputs_block) * SOURCES));
    CU(cuMemAlloc(&fixture->d_results, sizeof(int32_t) * ROWS * K * BATCH));
    CU(cuStreamCreate(&fixture->stream, CU_STREAM_NON_BLOCKING));
    CU(cuMemHostAlloc((void **)&fixture->sources, sizeof(struct inputs_block) * SOURCES, 0));
    CU(cuMemHostAlloc((void **)&fixture->results, sizeof(int32_t) * ROWS * K * BATCH, 0));
    fixture->wanted = calloc(SOURCES, sizeof(*fixture->wanted));
    CHECK(fixture->wanted, "no memory");
    for (int i = 0; i < SOURCES; i++)
        fill_source(&fixture->sources[i], options->seed * 1000 + (uint64_t)i);
    CU(cuMemcpyHtoDAsync(fixture->d_sources, fixture->sources,
                         sizeof(struct inputs_block) * SOURCES, fixture->stream));
    CU(cuStreamSynchronize(fixture->stream));
    EXPECT(TOPKD_OK, topkd_region_register_cuda(fixture->client, (void *)(uintptr_t)fixture->d_in,
                                                sizeof(struct inputs_block), TOPKD_ACCESS_READ,
                                                &fixture->in));
    EXPECT(TOPKD_OK, topkd_region_register_cuda(fixture->client, (void *)(uintptr_t)fixture->d_out,
                                                sizeof(int32_t) * ROWS * K, TOPKD_ACCESS_READ_WRITE,
                                                &fixture->out));
    struct topkd_select_request request;
    struct topkd_lane_options lane;
    lane_request(fixture, &request, &lane);
    choose_waits(options->seed, &lane);
    EXPECT(TOPKD_OK, topkd_lane_open(fixture->client, &request, &lane, &fixture->lane));
}

static void fixture_close(struct fixture *fixture)
{
    topkd_lane_close(fixture->lane);
    EXPECT(TOPKD_OK, topkd_region_unregister(fixture->in));
    EXPECT(TOPKD_OK, topkd_region_unregister(fixture->out));
    topkd_client_close(fixture->client);
    CU(cuStreamDestroy(fixture->stream));
    CU(cuMemFree(fixture->d_in));
    CU(cuMemFree(fixture->d_out));
    CU(cuMemFree(fixture->d_sources));
    CU(cuMemFree(fixture->d_results));
    CU(cuMemFreeHost(fixture->sources));
    CU(cuMemFreeHost(fixture->results));
    free(fixture->wanted);
}

/* Input and poison before a step, the result into its place after it. */
static void before_step(struct fixture *fixture, int source)
{
    CU(cuMemcpyDtoDAsync(fixture->d_in,
                         fixture->d_sources + (size_t)source * sizeof(struct inputs_block),
                         sizeof(struct inputs_block), fixture->stream));
    CU(cuMemsetD8Async(fixture->d_out, 0x81, sizeof(int32_t) * ROWS * K, fixture->stream));
}

static void after_step(struct fixture *fixture, int place)
{
    CU(cuMemcpyDtoDAsync(fixture->d_results + sizeof(int32_t) * ROWS * K * (size_t)place,
                         fixture->d_out, sizeof(int32_t) * ROWS * K, fixture->stream));
}

static void fetch(struct fixture *fixture, int num)
{
    CU(cuMemcpyDtoHAsync(fixture->results, fixture->d_results,
                         sizeof(int32_t) * ROWS * K * (size_t)num, fixture->stream));
    CU(cuStreamSynchronize(fixture->stream));
}

/* One input after the other, synchronised, so that each answer is known from now on. */
static void learn_all(struct fixture *fixture)
{
    for (int i = 0; i < SOURCES; i++) {
        before_step(fixture, i);
        EXPECT(TOPKD_OK, topkd_lane_enqueue(fixture->lane, fixture->stream));
        after_step(fixture, 0);
        fetch(fixture, 1);
        learn(fixture, i, fixture->results[0]);
    }
}

/* A graph of one step: by capture, or node by node. */
static CUgraphExec graph_of(struct fixture *fixture, bool explicitly)
{
    CUgraph graph;
    CUgraphExec exec;
    if (explicitly) {
        void *node;
        CU(cuGraphCreate(&graph, 0));
        EXPECT(TOPKD_OK, topkd_lane_add_node(fixture->lane, graph, NULL, 0, &node));
    } else {
        CU(cuStreamBeginCapture(fixture->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
        EXPECT(TOPKD_OK, topkd_lane_enqueue(fixture->lane, fixture->stream));
        CU(cuStreamEndCapture(fixture->stream, &graph));
    }
    CU(cuGraphInstantiateWithFlags(&exec, graph, 0));
    CU(cuGraphDestroy(graph));
    return exec;
}

/* ---- Cases: right answers -------------------------------------------------------------------- */

/* That many batches, nothing synchronised within one: through the stream, or by either graph. */
static void run_batches(struct fixture *fixture, uint32_t num_batches, uint64_t seed)
{
    CUgraphExec graphs[] = {graph_of(fixture, false), graph_of(fixture, true)};
    int sources[BATCH];
    for (uint32_t batch = 0; batch < num_batches; batch++) {
        int way = (int)(batch % 3);
        for (int i = 0; i < BATCH; i++) {
            sources[i] = (int)(random_next(&seed) % SOURCES);
            before_step(fixture, sources[i]);
            if (way == 2)
                EXPECT(TOPKD_OK, topkd_lane_enqueue(fixture->lane, fixture->stream));
            else
                CU(cuGraphLaunch(graphs[way], fixture->stream));
            after_step(fixture, i);
            if (random_next(&seed) % 256 == 0)
                service_sleep_ms((uint32_t)(random_next(&seed) % 3));
        }
        fetch(fixture, BATCH);
        for (int i = 0; i < BATCH; i++)
            CHECK(memcmp(fixture->results[i], fixture->wanted[sources[i]],
                         sizeof(fixture->results[i])) == 0,
                  "batch %u way %d step %d: not the answer for source %d", batch, way, i,
                  sources[i]);
        if (random_next(&seed) % 64 == 0) /* long enough to be disarmed */
            service_sleep_ms(260);
    }
    EXPECT(TOPKD_OK, topkd_lane_check(fixture->lane));
    CU(cuGraphExecDestroy(graphs[0]));
    CU(cuGraphExecDestroy(graphs[1]));
}

void service_case_lane_steps(const struct service_options *options)
{
    struct fixture fixture;
    fixture_open(options, "lane_steps", &fixture);
    learn_all(&fixture);
    run_batches(&fixture, options->rounds, options->seed);
    struct topkd_lane_info info;
    EXPECT(TOPKD_OK, topkd_lane_info(fixture.lane, &info));
    CHECK(info.is_served && info.num_failed == 0 && info.num_renewals == 0, "%llu failed",
          (unsigned long long)info.num_failed);
    printf("waits by the %s, poll_us %u\n",
           info.wait == TOPKD_LANE_WAIT_KERNEL ? "kernel" : "driver", info.poll_us);
    printf("steps %llu\n", (unsigned long long)options->rounds * BATCH + SOURCES);
    fixture_close(&fixture);
}

/* Several lanes of one client, opened and closed between steps. */
void service_case_lane_churn(const struct service_options *options)
{
    struct fixture fixture;
    fixture_open(options, "lane_churn", &fixture);
    learn_all(&fixture);
    struct topkd_select_request request;
    struct topkd_lane_options lane_options;
    lane_request(&fixture, &request, &lane_options);
    for (uint32_t round = 0; round < options->rounds; round++) {
        struct topkd_lane *lanes[2];
        choose_waits(round, &lane_options);
        for (int i = 0; i < 2; i++)
            EXPECT(TOPKD_OK, topkd_lane_open(fixture.client, &request, &lane_options, &lanes[i]));
        struct topkd_lane *both[] = {lanes[0], fixture.lane, lanes[1]};
        for (int i = 0; i < 3; i++) {
            int source = (int)((round * 3 + (uint32_t)i) % SOURCES);
            before_step(&fixture, source);
            EXPECT(TOPKD_OK, topkd_lane_enqueue(both[i], fixture.stream));
            after_step(&fixture, 0);
            fetch(&fixture, 1);
            CHECK(memcmp(fixture.results[0], fixture.wanted[source], sizeof(fixture.results[0])) ==
                      0,
                  "round %u lane %d: wrong", round, i);
        }
        topkd_lane_close(lanes[0]);
        topkd_lane_close(lanes[1]);
    }
    fixture_close(&fixture);
}

/* ---- Cases: refusals ------------------------------------------------------------------------- */

void service_case_lane_refusals(const struct service_options *options)
{
    struct fixture fixture;
    fixture_open(options, "lane_refusals", &fixture);
    struct topkd_select_request good, request;
    struct topkd_lane_options lane_options, changed;
    struct topkd_lane *lane;
    lane_request(&fixture, &good, &lane_options);
    request = good;
    request.indices.region = NULL;
    EXPECT(TOPKD_E_INVALID, topkd_lane_open(fixture.client, &request, &lane_options, &lane));
    request = good;
    request.lengths_mode = TOPKD_LENGTHS_HOST;
    request.lengths.region = NULL;
    request.lengths_host = fixture.sources[0].lengths;
    EXPECT(TOPKD_E_INVALID, topkd_lane_open(fixture.client, &request, &lane_options, &lane));
    request = good;
    request.rows = 0;
    EXPECT(TOPKD_E_INVALID, topkd_lane_open(fixture.client, &request, &lane_options, &lane));
    request = good;
    request.indices.region = fixture.in;
    EXPECT(TOPKD_E_READ_ONLY, topkd_lane_open(fixture.client, &request, &lane_options, &lane));
    request = good;
    request.rows = ROWS + 1;
    EXPECT(TOPKD_E_OUT_OF_RANGE, topkd_lane_open(fixture.client, &request, &lane_options, &lane));
    changed = lane_options;
    changed.wait = (enum topkd_lane_wait)3;
    EXPECT(TOPKD_E_INVALID, topkd_lane_open(fixture.client, &good, &changed, &lane));
    changed.wait =
        TOPKD_LANE_WAIT_KERNEL; /* it looks at device memory alone, as the worker's does */
    EXPECT(TOPKD_E_INVALID, topkd_lane_open(fixture.client, &good, &changed, &lane));
    changed.wait = TOPKD_LANE_WAIT_AUTO;
    changed.poll_us = 1;
    EXPECT(TOPKD_E_INVALID, topkd_lane_open(fixture.client, &good, &changed, &lane));
    changed = lane_options;
    changed.live_rows = (struct topkd_tensor){.region = fixture.out};
    EXPECT(TOPKD_E_OVERLAP, topkd_lane_open(fixture.client, &good, &changed, &lane));
    changed.live_rows =
        (struct topkd_tensor){.region = fixture.in, .offset_bytes = sizeof(struct inputs_block)};
    EXPECT(TOPKD_E_OUT_OF_RANGE, topkd_lane_open(fixture.client, &good, &changed, &lane));
    struct topkd_semaphore *semaphore;
    EXPECT(TOPKD_OK, topkd_semaphore_create(fixture.client, &semaphore));
    request = good;
    request.wait = (struct topkd_semaphore_point){.semaphore = semaphore, .value = 1};
    EXPECT(TOPKD_E_INVALID, topkd_lane_open(fixture.client, &request, &lane_options, &lane));
    EXPECT(TOPKD_E_INVALID, topkd_lane_open(fixture.client, &good, &lane_options, NULL));
    EXPECT(TOPKD_E_INVALID, topkd_lane_enqueue(NULL, fixture.stream));
    /* All places, then one more; a place that is given back serves again. */
    struct topkd_lane *lanes[64];
    int num = 0;
    enum topkd_status status = TOPKD_OK;
    while (num < 64 && status == TOPKD_OK) {
        status = topkd_lane_open(fixture.client, &good, &lane_options, &lanes[num]);
        num += status == TOPKD_OK;
    }
    CHECK(status == TOPKD_E_BUSY || status == TOPKD_E_LIMIT, "%d lanes, then %s", num,
          topkd_status_name(status));
    CHECK(num >= 1, "no second lane: %s", topkd_detail());
    topkd_lane_close(lanes[--num]);
    EXPECT(TOPKD_OK, topkd_lane_open(fixture.client, &good, &lane_options, &lanes[num++]));
    learn_all(&fixture); /* beside that many that are armed or idle */
    while (num > 0)
        topkd_lane_close(lanes[--num]);
    fixture_close(&fixture);
}

/* ---- Cases: lives ---------------------------------------------------------------------------- */

/* Steps for ever, some milliseconds apart, until it is killed, or told to end by a file's end. */
void service_case_lane_hold(const struct service_options *options)
{
    struct fixture fixture;
    fixture_open(options, "lane_hold", &fixture);
    learn_all(&fixture);
    printf("waiting\n");
    fflush(stdout);
    for (uint64_t i = 0;; i++) {
        run_batches(&fixture, 1, options->seed + i);
        service_sleep_ms(2);
    }
}

/* An armed lane and a client that does nothing more. */
void service_case_lane_silent(const struct service_options *options)
{
    struct fixture fixture;
    fixture_open(options, "lane_silent", &fixture);
    learn_all(&fixture);
    printf("waiting\n");
    fflush(stdout);
    for (;;)
        pause();
}

/* The worker is killed while no step is outstanding: none has failed, and the next one takes over.
 */
void service_case_lane_replaced(const struct service_options *options)
{
    struct fixture fixture;
    fixture_open(options, "lane_replaced", &fixture);
    learn_all(&fixture);
    printf("waiting\n");
    fflush(stdout);
    struct topkd_lane_info info = {.num_renewals = 0};
    double until_ms = service_now_ms() + 40000;
    while (info.num_renewals == 0) {
        CHECK(service_now_ms() < until_ms, "no worker took the lane over");
        EXPECT(TOPKD_OK, topkd_lane_info(fixture.lane, &info));
        service_sleep_ms(1);
    }
    EXPECT(TOPKD_OK, topkd_lane_check(fixture.lane));
    run_batches(&fixture, options->rounds, options->seed);
    EXPECT(TOPKD_OK, topkd_lane_info(fixture.lane, &info));
    CHECK(info.num_failed == 0, "%llu steps failed that nobody asked for",
          (unsigned long long)info.num_failed);
    fixture_close(&fixture);
}

/* One step of the graph that was captured at the start: it ends, come what may, which takes two
 * seconds at most where the machine has time for it. */
static bool step_ends(struct fixture *fixture, CUgraphExec exec, int source)
{
    before_step(fixture, source);
    CU(cuGraphLaunch(exec, fixture->stream));
    double until_ms = service_now_ms() + 20000;
    while (cuStreamQuery(fixture->stream) == CUDA_ERROR_NOT_READY) {
        if (service_now_ms() > until_ms)
            return false;
        service_sleep_ms(1);
    }
    after_step(fixture, 0);
    fetch(fixture, 1);
    return true;
}

/* The worker is killed while steps run (the script does it when it reads "waiting"). No step hangs,
 * the failure is reported once, and the same graph is right again with the next worker; or, with
 * rounds 0, there is none and every step is answered all the same. */
void service_case_lane_survive(const struct service_options *options)
{
    struct fixture fixture;
    fixture_open(options, "lane_survive", &fixture);
    learn_all(&fixture);
    CUgraphExec exec = graph_of(&fixture, false);
    struct topkd_lane_info info = {.is_served = true};
    uint64_t num_reports = 0, num_wrong = 0;
    double begin_ms = service_now_ms();
    printf("waiting\n");
    fflush(stdout);
    for (int i = 0; service_now_ms() < begin_ms + 40000; i++) {
        int source = i % SOURCES;
        CHECK(step_ends(&fixture, exec, source), "step %d hangs", i);
        enum topkd_status status = topkd_lane_check(fixture.lane);
        CHECK(status == TOPKD_OK || status == TOPKD_E_STALE_SESSION || status == TOPKD_E_DRAINING,
              "%s: %s", topkd_status_name(status), topkd_detail());
        num_reports += status != TOPKD_OK;
        bool is_right =
            memcmp(fixture.results[0], fixture.wanted[source], sizeof(fixture.results[0])) == 0;
        CHECK(is_right || status != TOPKD_OK, "step %d is wrong and nothing is reported", i);
        num_wrong += !is_right;
        EXPECT(TOPKD_OK, topkd_lane_info(fixture.lane, &info));
        if (info.num_renewals > 0 && options->rounds > 0)
            break;
        if (options->rounds == 0 && num_reports > 0 && !info.is_served &&
            service_now_ms() > begin_ms + 4000) /* some time with nobody there */
            break;
    }
    /* A quick successor may have taken the lane over before a step failed. */
    CHECK(num_reports > 0 || (info.num_renewals > 0 && num_wrong == 0), "no failure was reported");
    if (options->rounds == 0) {
        CHECK(!info.is_served, "somebody serves the lane");
        EXPECT(info.status, topkd_lane_enqueue(fixture.lane, fixture.stream));
    } else {
        CHECK(info.num_renewals == 1, "%llu renewals", (unsigned long long)info.num_renewals);
        run_batches(&fixture, options->rounds, options->seed);
    }
    printf("reports %llu, wrong %llu, failed %llu\n", (unsigned long long)num_reports,
           (unsigned long long)num_wrong, (unsigned long long)info.num_failed);
    fflush(stdout);
    if (options->rounds == 0)
        _exit(0); /* nobody is there to unregister with */
    CU(cuGraphExecDestroy(exec));
    fixture_close(&fixture);
}
