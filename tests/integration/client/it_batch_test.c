/*
 * it_batch_test.c - selections that leave together: which ones, how many, and what becomes of them.
 *
 * The CPU device runs a session's requests in their order, so one that waits for a semaphore holds
 * everything behind it still, and what has left the client can be counted in the worker.
 */
#include "daemon.h"
#include "discover.h"
#include "fake.h"
#include "rpc.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { WIDTH = 512, K = 8, OPS_MAX = 17, ROWS_MAX = 3000 };

static struct {
    struct daemon daemon;
    struct topkd_client *client;
    struct topkd_buffer *buffer;
    struct topkd_semaphore *gate;
    struct topkd_op *ops[OPS_MAX];
    uint32_t num_ops;
    int32_t lengths[ROWS_MAX];
} at;

static int set_up(void **state)
{
    (void)state;
    memset(&at, 0, sizeof(at));
    daemon_init(&at.daemon);
    daemon_start(&at.daemon);
    at.client = daemon_client(&at.daemon, NULL);
    expect_ok(topkd_buffer_create(at.client, sizeof(float) * WIDTH * ROWS_MAX, &at.buffer));
    expect_ok(topkd_semaphore_create(at.client, &at.gate));
    float *scores = topkd_buffer_data(at.buffer);
    for (int i = 0; i < WIDTH; i++) {
        scores[i] = (float)(i * 211 % WIDTH);
    }
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    topkd_semaphore_destroy(at.gate);
    topkd_buffer_destroy(at.buffer);
    topkd_client_close(at.client);
    daemon_fini(&at.daemon);
    return 0;
}

/* The worker's counters, over a connection of its own. */
static struct wire_stats_reply stats(void)
{
    static struct wire_reply reply;
    struct wire_device device;
    struct rpc *rpc;
    char detail[WIRE_DETAIL_SIZE] = "";
    const struct wire_request request = {.kind = WIRE_STATS};
    uint64_t deadline_ns = clock_after_ms(WAIT_MS);
    expect_ok(discover_device(at.daemon.url, "", deadline_ns, &device, detail));
    expect_ok(rpc_open(device.url, deadline_ns, &rpc, detail));
    expect_ok(rpc_exchange(rpc, &request, deadline_ns, &reply, detail));
    rpc_close(rpc);
    return reply.u.stats;
}

/* Waits until the worker has so many, then looks again a moment later. */
static void expect_in_worker(uint32_t num)
{
    uint32_t seen = UINT32_MAX;
    for (int i = 0; i < 5000 && seen != num; i++) {
        struct wire_stats_reply now = stats();
        seen = now.queued + now.running;
        usleep(2000);
    }
    assert_int_equal(seen, num);
    struct wire_stats_reply now = stats();
    assert_int_equal(now.queued + now.running, num);
}

static struct topkd_select_request plain_request(void)
{
    return (struct topkd_select_request){.scores = {.region = topkd_buffer_region(at.buffer)},
                                         .rows = 1,
                                         .width = WIDTH,
                                         .k = K,
                                         .indices = {.region = topkd_buffer_region(at.buffer),
                                                     .offset_bytes = WIDTH * sizeof(float)}};
}

/* Its result goes to a place of its own, behind the scores. */
static void start_op(struct topkd_select_request request)
{
    uint32_t idx = at.num_ops++;
    assert_true(idx < OPS_MAX);
    request.indices.offset_bytes += (uint64_t)idx * ROWS_MAX * K * sizeof(int32_t);
    expect_ok(topkd_select_start(at.client, &request, NULL, &at.ops[idx]));
}

static void start_plain(uint32_t num)
{
    for (uint32_t i = 0; i < num; i++) {
        start_op(plain_request());
    }
}

/* One that waits for the gate, so that all behind it stay where they are. */
static void start_waiting(uint64_t value)
{
    struct topkd_select_request request = plain_request();
    request.wait = (struct topkd_semaphore_point){.semaphore = at.gate, .value = value};
    start_op(request);
}

static void finish_all(void)
{
    for (uint32_t i = 0; i < at.num_ops; i++) {
        struct topkd_result result;
        expect_ok(topkd_op_wait(at.ops[i], WAIT_MS));
        expect_ok(topkd_op_finish(at.ops[i], &result));
        const float *scores = topkd_buffer_data(at.buffer);
        for (int j = 0; j < K && result.rows == 1; j++) {
            assert_in_range(result.indices[j], 0, WIDTH - 1);
            assert_true(scores[result.indices[j]] >= (float)(WIDTH - K));
        }
    }
    at.num_ops = 0;
}

static void it_30_few_requests_leave_by_themselves(void **state)
{
    (void)state;
    for (int i = 0; i < 100; i++) {
        struct topkd_select_request request = plain_request();
        struct topkd_result result;
        expect_ok(topkd_select(at.client, &request, &result));
    }
    start_waiting(1);
    start_plain(4);
    expect_in_worker(5);
    expect_ok(topkd_semaphore_signal(at.gate, 1));
    finish_all();
    assert_int_equal(stats().select_batches, 0);
    assert_int_equal(stats().requests, 105);
}

static void it_31_many_requests_leave_together(void **state)
{
    (void)state;
    start_waiting(1);
    start_plain(16);
    expect_in_worker(5); /* the others are gathered */
    expect_ok(topkd_semaphore_signal(at.gate, 1));
    finish_all();
    struct wire_stats_reply now = stats();
    /* Each of the first answers takes a quarter of all along. */
    assert_int_equal(now.select_batches, 3);
    assert_int_equal(now.selects_batched, 12);
    assert_int_equal(now.requests, 17);
    assert_int_equal(now.requests_failed, 0);
}

/* What waits for a semaphore is never held back, nor what was started before it. */
static void it_32_a_waiting_request_holds_nothing_back(void **state)
{
    (void)state;
    start_waiting(1);
    start_plain(6);
    expect_in_worker(5);
    start_waiting(2);
    expect_in_worker(8);
    start_plain(2);
    expect_in_worker(8);
    expect_ok(topkd_semaphore_signal(at.gate, 2));
    finish_all();
}

static void it_33_lengths_bound_a_message(void **state)
{
    (void)state;
    struct topkd_select_request request = plain_request();
    request.rows = ROWS_MAX;
    request.width = 4;
    request.k = 2;
    request.indices.offset_bytes = 0;
    request.lengths_mode = TOPKD_LENGTHS_HOST;
    request.lengths_host = at.lengths;
    for (uint32_t i = 0; i < ROWS_MAX; i++) {
        at.lengths[i] = (int32_t)(i % 5);
    }
    struct topkd_buffer *results;
    expect_ok(topkd_buffer_create(at.client, sizeof(int32_t) * ROWS_MAX * 2, &results));
    request.indices.region = topkd_buffer_region(results);
    start_waiting(1);
    start_plain(4);
    for (int i = 0; i < 12; i++) {
        expect_ok(topkd_select_start(at.client, &request, NULL, &at.ops[at.num_ops++]));
    }
    expect_in_worker(5);
    expect_ok(topkd_semaphore_signal(at.gate, 1));
    finish_all();
    struct wire_stats_reply now = stats();
    assert_int_equal(now.selects_batched, 2 * now.select_batches); /* a third has no room */
    assert_true(now.select_batches >= 3);
    const int32_t *indices = topkd_buffer_data(results);
    for (uint32_t i = 0; i < ROWS_MAX; i++) {
        assert_int_equal(indices[2 * i] >= 0, at.lengths[i] > 0);
        assert_int_equal(indices[2 * i + 1] >= 0, at.lengths[i] > 1);
    }
    topkd_buffer_destroy(results);
}

/* Some have left together when the worker dies: all are sent again, each is done. */
static void it_34_a_worker_dies_with_batches(void **state)
{
    (void)state;
    pid_t worker = daemon_worker(&at.daemon, 0);
    start_waiting(1);
    start_plain(6);
    start_waiting(2); /* makes the others leave, two of them together */
    start_plain(4);
    expect_in_worker(8);
    assert_int_equal(stats().select_batches, 1);
    kill(worker, SIGKILL);
    (void)daemon_worker(&at.daemon, worker);
    expect_ok(topkd_semaphore_signal(at.gate, 2));
    finish_all();
    struct topkd_client_info info;
    expect_ok(topkd_client_info(at.client, &info));
    assert_int_equal(info.num_renewals, 1);
    assert_int_equal(stats().requests, 12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(it_30_few_requests_leave_by_themselves, set_up, tear_down),
        cmocka_unit_test_setup_teardown(it_31_many_requests_leave_together, set_up, tear_down),
        cmocka_unit_test_setup_teardown(it_32_a_waiting_request_holds_nothing_back, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(it_33_lengths_bound_a_message, set_up, tear_down),
        cmocka_unit_test_setup_teardown(it_34_a_worker_dies_with_batches, set_up, tear_down),
    };
    return cmocka_run_group_tests_name("selections that leave together", tests, NULL, NULL);
}
