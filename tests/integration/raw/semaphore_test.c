/* Time between processes: waits, signals, deadlines, failures, and what a client scribbles. */
#include "raw.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>

static struct wire_reply reply;

struct bench {
    struct raw_worker worker;
    struct raw_client client;
    struct raw_shm shm;
};

static void bench_open(struct bench *bench, const char *yaml)
{
    raw_worker_start(&bench->worker, yaml, NULL);
    raw_open(&bench->client, &bench->worker);
    raw_shm_create(&bench->shm, 65536);
    raw_register(&bench->client, &bench->shm, WIRE_ACCESS_READ_WRITE);
}

static void bench_close(struct bench *bench)
{
    raw_shm_destroy(&bench->shm);
    raw_disconnect(&bench->client);
    raw_worker_stop(&bench->worker);
}

static struct wire_request request_of(struct bench *bench, uint32_t wait, uint64_t wait_value,
                                      uint32_t signal, uint64_t signal_value)
{
    struct wire_request request =
        raw_select_request(&bench->client, &bench->shm, &bench->shm, 1, 100, 4);
    request.u.select.indices.offset = 32768;
    request.u.select.wait = (struct wire_semaphore_ref){.index = wait, .value = wait_value};
    request.u.select.signal = (struct wire_semaphore_ref){.index = signal, .value = signal_value};
    return request;
}

static uint64_t value_of(const struct bench *bench, uint32_t index)
{
    return __atomic_load_n(&bench->client.semaphores[index].value, __ATOMIC_ACQUIRE);
}

static void it_50_a_request_waits_and_signals(void **state)
{
    (void)state;
    struct bench bench;
    struct raw_pending pending;
    bench_open(&bench, "");
    for (uint64_t n = 1; n <= 100; n++) {
        struct wire_request request = request_of(&bench, 3, n, 4, n);
        raw_start(&bench.client, &request, &pending);
        if (n % 10 == 0)
            raw_sleep_ms(2);
        assert_int_equal(value_of(&bench, 4), n - 1);
        if (n % 2 == 0)
            raw_signal(&bench.client, 3, n);
        else /* a producer that only writes, as a GPU does: seen without a wake-up */
            __atomic_store_n(&bench.client.semaphores[3].value, n, __ATOMIC_RELEASE);
        assert_true(raw_finish(&pending, RAW_TIMEOUT_MS, &reply));
        assert_int_equal(reply.status, TOPKD_OK);
        assert_int_equal(value_of(&bench, 4), n);
    }
    /* Reached long ago: no wait. A value beyond 32 bits counts in full. */
    struct wire_request request = request_of(&bench, 3, 5, 4, 101);
    assert_int_equal(raw_call(&bench.client, &request, &reply), TOPKD_OK);
    request = request_of(&bench, 3, (UINT64_C(1) << 32) + 7, 4, 102);
    raw_start(&bench.client, &request, &pending);
    raw_signal(&bench.client, 3, 1000);
    raw_sleep_ms(20);
    assert_int_equal(value_of(&bench, 4), 101);
    raw_signal(&bench.client, 3, (UINT64_C(1) << 32) + 7);
    assert_true(raw_finish(&pending, RAW_TIMEOUT_MS, &reply));
    assert_int_equal(reply.status, TOPKD_OK);
    /* The daemon never lowers a value. */
    request = request_of(&bench, 0, 0, 3, 5);
    assert_int_equal(raw_call(&bench.client, &request, &reply), TOPKD_OK);
    assert_int_equal(value_of(&bench, 3), (UINT64_C(1) << 32) + 7);
    bench_close(&bench);
}

/* CASES 25: never signalled. The request ends at its deadline, and the lane serves the next. */
static void it_51_a_wait_that_never_ends_times_out(void **state)
{
    (void)state;
    struct bench bench;
    bench_open(&bench, "limits: {timeout_ms_default: 150}");
    for (int round = 0; round < 3; round++) {
        struct wire_request request = request_of(&bench, 0, 1, 1, 1 + (uint64_t)round);
        request.u.select.timeout_ms = round == 0 ? 0 : 100; /* 0: the configured default */
        uint64_t start_ms = raw_now_ms();
        assert_int_equal(raw_call(&bench.client, &request, &reply), TOPKD_E_TIMEOUT);
        uint64_t took_ms = raw_now_ms() - start_ms;
        assert_in_range(took_ms, 95, RAW_TIMEOUT_MS / 2);
        assert_non_null(strstr(reply.detail, "semaphore 0"));
        /* Who waits for its result is released, and can tell. */
        assert_int_equal(value_of(&bench, 1), 1 + round);
        assert_int_equal(bench.client.semaphores[1].failed_value, 1 + round);
        assert_int_equal(bench.client.semaphores[1].failed_status, TOPKD_E_TIMEOUT);
        assert_int_equal(bench.client.semaphores[1].num_failed, 1 + round);
        raw_expect_selects(&bench.client);
    }
    bench_close(&bench);
}

/* Requests behind a stuck one are answered at their own deadlines, but signal in their turn: a
 * later value must not pass for an earlier one. */
static void it_52_deadlines_keep_the_order_of_signals(void **state)
{
    (void)state;
    struct bench bench;
    struct raw_pending first, second;
    bench_open(&bench, "");
    struct wire_request request = request_of(&bench, 0, 1, 1, 1);
    request.u.select.timeout_ms = RAW_TIMEOUT_MS;
    raw_start(&bench.client, &request, &first);
    request = request_of(&bench, 0, 0, 1, 2);
    request.u.select.timeout_ms = 100;
    uint64_t start_ms = raw_now_ms();
    raw_start(&bench.client, &request, &second);
    assert_true(raw_finish(&second, RAW_TIMEOUT_MS, &reply));
    assert_int_equal(reply.status, TOPKD_E_TIMEOUT);
    assert_true(raw_now_ms() - start_ms < RAW_TIMEOUT_MS / 2);
    assert_int_equal(value_of(&bench, 1), 0);
    raw_signal(&bench.client, 0, 1);
    assert_true(raw_finish(&first, RAW_TIMEOUT_MS, &reply));
    assert_int_equal(reply.status, TOPKD_OK);
    uint64_t end_ms = raw_now_ms() + RAW_TIMEOUT_MS;
    while (value_of(&bench, 1) < 2)
        assert_true(raw_now_ms() < end_ms);
    assert_int_equal(bench.client.semaphores[1].failed_value, 2);
    assert_int_equal(bench.client.semaphores[1].num_failed, 1);
    raw_expect_selects(&bench.client);
    bench_close(&bench);
}

/* A request whose scores were to come from one that failed fails as well, with its status. */
static void it_53_failure_travels_along_a_chain(void **state)
{
    (void)state;
    struct bench bench;
    struct raw_pending first;
    bench_open(&bench, "");
    struct wire_request request = request_of(&bench, 0, 1, 1, 1);
    request.u.select.timeout_ms = 100;
    raw_start(&bench.client, &request, &first);
    request = request_of(&bench, 1, 1, 2, 1);
    assert_int_equal(raw_call(&bench.client, &request, &reply), TOPKD_E_TIMEOUT);
    assert_non_null(strstr(reply.detail, "semaphore 1"));
    assert_true(raw_finish(&first, RAW_TIMEOUT_MS, &reply));
    assert_int_equal(reply.status, TOPKD_E_TIMEOUT);
    /* The next value of the same semaphore is good again. */
    request = request_of(&bench, 0, 0, 1, 2);
    assert_int_equal(raw_call(&bench.client, &request, &reply), TOPKD_OK);
    request = request_of(&bench, 1, 2, 2, 2);
    assert_int_equal(raw_call(&bench.client, &request, &reply), TOPKD_OK);
    bench_close(&bench);
}

static void it_54_semaphores_and_deadlines_at_their_limits(void **state)
{
    (void)state;
    struct bench bench;
    bench_open(&bench, "limits: {semaphores: 8, timeout_ms_max: 5000, timeout_ms_default: 5000}");
    struct wire_request request = request_of(&bench, 7, 0, 7, 1);
    assert_int_equal(raw_call(&bench.client, &request, &reply), TOPKD_OK);
    request = request_of(&bench, 0, 0, 8, 1);
    assert_int_equal(raw_call(&bench.client, &request, &reply), TOPKD_E_OUT_OF_RANGE);
    request = request_of(&bench, 8, 1, 0, 0);
    assert_int_equal(raw_call(&bench.client, &request, &reply), TOPKD_E_OUT_OF_RANGE);
    request = request_of(&bench, UINT32_MAX, 1, UINT32_MAX, 1);
    assert_int_equal(raw_call(&bench.client, &request, &reply), TOPKD_E_OUT_OF_RANGE);
    request = request_of(&bench, UINT32_MAX, 0, UINT32_MAX, 0); /* value 0: none is meant */
    assert_int_equal(raw_call(&bench.client, &request, &reply), TOPKD_OK);
    request = request_of(&bench, 0, 0, 0, 0);
    request.u.select.timeout_ms = 5000;
    assert_int_equal(raw_call(&bench.client, &request, &reply), TOPKD_OK);
    request = request_of(&bench, 0, 0, 0, 0);
    request.u.select.timeout_ms = 5001;
    assert_int_equal(raw_call(&bench.client, &request, &reply), TOPKD_E_INVALID);
    bench_close(&bench);
}

/* The page is the client's to ruin; it ruins its own requests only. */
static void it_55_a_scribbled_page(void **state)
{
    (void)state;
    struct bench bench;
    struct raw_client other;
    struct raw_pending pending;
    bench_open(&bench, "");
    raw_open(&other, &bench.worker);
    for (int round = 0; round < 20; round++) {
        memset(bench.client.semaphores, round % 2 ? 0xff : 0, 64 * sizeof(struct wire_semaphore));
        struct wire_request request =
            request_of(&bench, 2, round % 2 ? UINT64_MAX : 3, 2, UINT64_MAX - (uint64_t)round);
        request.u.select.timeout_ms = 50;
        raw_start(&bench.client, &request, &pending);
        memset(bench.client.semaphores, 0x77, 64 * sizeof(struct wire_semaphore));
        assert_true(raw_finish(&pending, RAW_TIMEOUT_MS, &reply));
        assert_true(reply.status <= TOPKD_E_CLOSED);
        raw_expect_selects(&other);
    }
    raw_disconnect(&other);
    bench_close(&bench);
}

/* Sessions do not wait for each other: one is stuck, others go on at full pace. */
static void it_56_a_stuck_session_delays_nobody(void **state)
{
    (void)state;
    struct bench bench;
    struct raw_client other;
    struct raw_pending pending[16];
    bench_open(&bench, "limits: {lanes: 1}");
    raw_open(&other, &bench.worker);
    for (int i = 0; i < 16; i++) {
        struct wire_request request = request_of(&bench, 0, 1, 1, 1 + (uint64_t)i);
        request.u.select.timeout_ms = RAW_TIMEOUT_MS;
        raw_start(&bench.client, &request, &pending[i]);
    }
    uint64_t start_ms = raw_now_ms();
    for (int i = 0; i < 100; i++)
        raw_expect_selects(&other);
    assert_true(raw_now_ms() - start_ms < RAW_TIMEOUT_MS / 2);
    raw_signal(&bench.client, 0, 1);
    for (int i = 0; i < 16; i++) {
        assert_true(raw_finish(&pending[i], RAW_TIMEOUT_MS, &reply));
        assert_int_equal(reply.status, TOPKD_OK);
    }
    assert_int_equal(value_of(&bench, 1), 16);
    raw_disconnect(&other);
    bench_close(&bench);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_50_a_request_waits_and_signals),
        cmocka_unit_test(it_51_a_wait_that_never_ends_times_out),
        cmocka_unit_test(it_52_deadlines_keep_the_order_of_signals),
        cmocka_unit_test(it_53_failure_travels_along_a_chain),
        cmocka_unit_test(it_54_semaphores_and_deadlines_at_their_limits),
        cmocka_unit_test(it_55_a_scribbled_page),
        cmocka_unit_test(it_56_a_stuck_session_delays_nobody),
    };
    return cmocka_run_group_tests_name("semaphores", tests, NULL, NULL);
}
