/* Requests in line: limits of a session and of the worker, places kept for others, order, replies
 * that come before the end. */
#include "raw.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>

static struct wire_reply reply;

/* One client with memory for a few scores and positions. */
struct bench {
    struct raw_worker worker;
    struct raw_client client;
    struct raw_shm scores, other;
};

static void bench_open(struct bench *bench, const char *yaml)
{
    raw_worker_start(&bench->worker, yaml, NULL);
    raw_open(&bench->client, &bench->worker);
    raw_shm_create(&bench->scores, 8192);
    raw_shm_create(&bench->other, 4096);
    raw_register(&bench->client, &bench->scores, WIRE_ACCESS_READ);
    raw_register(&bench->client, &bench->other, WIRE_ACCESS_READ_WRITE);
}

static void bench_close(struct bench *bench)
{
    raw_shm_destroy(&bench->scores);
    raw_shm_destroy(&bench->other);
    raw_disconnect(&bench->client);
    raw_worker_stop(&bench->worker);
}

/* Waits until this many requests of the worker were refused. */
static void await_refused(struct raw_client *client, uint64_t num_refused)
{
    uint64_t end_ms = raw_now_ms() + RAW_TIMEOUT_MS;
    do {
        struct wire_request stats = raw_request(client, WIRE_STATS);
        assert_true(raw_now_ms() < end_ms);
        assert_int_equal(raw_call(client, &stats, &reply), TOPKD_OK);
    } while (reply.u.stats.requests_failed < num_refused);
}

/* One more than outstanding_max is busy, and far more; then all the others are answered. */
static void it_24_outstanding_at_its_limit(void **state)
{
    (void)state;
    static struct bench bench;
    enum { MAX = 4, N = 40 };
    struct raw_pending pending[N];
    bench_open(&bench, "limits: {outstanding_max: 4}");
    for (uint32_t i = 0; i < N; i++) {
        struct wire_request request =
            raw_select_request(&bench.client, &bench.scores, &bench.other, 1, 100, 5);
        request.u.select.wait = (struct wire_semaphore_ref){.index = 0, .value = 1};
        raw_start(&bench.client, &request, &pending[i]);
    }
    uint32_t num_busy = 0, num_ok = 0;
    await_refused(&bench.client, N - MAX); /* the signal comes when all have been judged */
    raw_signal(&bench.client, 0, 1);
    for (uint32_t i = 0; i < N; i++) {
        assert_true(raw_finish(&pending[i], RAW_TIMEOUT_MS, &reply));
        num_ok += reply.status == TOPKD_OK;
        num_busy += reply.status == TOPKD_E_BUSY;
    }
    assert_int_equal(num_ok, MAX);
    assert_int_equal(num_busy, N - MAX);
    raw_expect_selects(&bench.client);
    bench_close(&bench);
}

/* The queue of the worker is full of one client's waits: another still gets its turn. */
static void it_25_a_full_queue_keeps_places_for_others(void **state)
{
    (void)state;
    static struct bench bench;
    struct raw_client other;
    enum { N = 24 };
    struct raw_pending pending[N];
    bench_open(&bench, "limits: {outstanding_max: 32, queue_max: 8, lanes: 2}");
    raw_open(&other, &bench.worker);
    for (uint32_t i = 0; i < N; i++) {
        struct wire_request request =
            raw_select_request(&bench.client, &bench.scores, &bench.other, 1, 100, 5);
        request.u.select.wait = (struct wire_semaphore_ref){.index = 0, .value = 1};
        raw_start(&bench.client, &request, &pending[i]);
    }
    for (int i = 0; i < 20; i++)
        raw_expect_selects(&other);
    /* 8 + 2 places, one of them kept for the other; the signal comes when all have been judged. */
    await_refused(&other, N - 9);
    raw_signal(&bench.client, 0, 1);
    uint32_t num_busy = 0;
    for (uint32_t i = 0; i < N; i++) {
        assert_true(raw_finish(&pending[i], RAW_TIMEOUT_MS, &reply));
        num_busy += reply.status == TOPKD_E_BUSY;
    }
    assert_int_equal(num_busy, N - 9);
    raw_disconnect(&other);
    bench_close(&bench);
}

/* A reply that says only "queued": the end is seen on the semaphore. */
static void it_27_enqueued_replies(void **state)
{
    (void)state;
    static struct bench bench;
    bench_open(&bench, "");
    struct wire_semaphore *semaphores = bench.client.semaphores;
    for (uint64_t n = 1; n <= 50; n++) {
        struct wire_request request =
            raw_select_request(&bench.client, &bench.scores, &bench.other, 1, 1000, 5);
        float *scores = (float *)bench.scores.data;
        request.u.select.wait = (struct wire_semaphore_ref){.index = 1, .value = n};
        request.u.select.signal = (struct wire_semaphore_ref){.index = 2, .value = n};
        request.u.select.reply_when = WIRE_REPLY_ENQUEUED;
        request.u.select.order = 2;
        assert_int_equal(raw_call(&bench.client, &request, &reply), TOPKD_OK);
        /* Only now are the scores written. */
        assert_true(__atomic_load_n(&semaphores[2].value, __ATOMIC_ACQUIRE) < n);
        for (uint32_t i = 0; i < 1000; i++)
            scores[i] = (float)((i * 7919u + n * 131u) % 1009u);
        raw_signal(&bench.client, 1, n);
        uint64_t end_ms = raw_now_ms() + RAW_TIMEOUT_MS;
        while (__atomic_load_n(&semaphores[2].value, __ATOMIC_ACQUIRE) < n)
            assert_true(raw_now_ms() < end_ms);
        const int32_t *indices = (const int32_t *)bench.other.data;
        for (int i = 0; i < 4; i++)
            assert_true(scores[indices[i]] >= scores[indices[i + 1]]);
        assert_int_equal(semaphores[2].failed_value, 0);
        /* The same number again is answered from the cache. */
        assert_int_equal(raw_call(&bench.client, &request, &reply), TOPKD_OK);
    }
    bench_close(&bench);
}

/* Each request waits for what the one before it signals: they end only if the worker takes them in
 * the order in which they were sent. */
static void it_28_a_session_is_served_in_order(void **state)
{
    (void)state;
    static struct bench bench;
    enum { N = 32, ROUNDS = 60 };
    struct raw_pending pending[N];
    bench_open(&bench, "");
    for (uint64_t round = 0; round < ROUNDS; round++) {
        uint64_t base = round * (N + 1);
        for (uint32_t i = 0; i < N; i++) {
            struct wire_request request =
                raw_select_request(&bench.client, &bench.scores, &bench.other, 1, 64, 4);
            request.u.select.wait = (struct wire_semaphore_ref){.index = 5, .value = base + i + 1};
            request.u.select.signal =
                (struct wire_semaphore_ref){.index = 5, .value = base + i + 2};
            request.u.select.timeout_ms = RAW_TIMEOUT_MS / 2;
            raw_start(&bench.client, &request, &pending[i]);
        }
        raw_signal(&bench.client, 5, base + 1);
        for (uint32_t i = 0; i < N; i++) {
            assert_true(raw_finish(&pending[i], RAW_TIMEOUT_MS, &reply));
            if (reply.status != TOPKD_OK)
                fail_msg("round %d request %u: %s", (int)round, i, reply.detail);
        }
    }
    bench_close(&bench);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_24_outstanding_at_its_limit),
        cmocka_unit_test(it_25_a_full_queue_keeps_places_for_others),
        cmocka_unit_test(it_27_enqueued_replies),
        cmocka_unit_test(it_28_a_session_is_served_in_order),
    };
    return cmocka_run_group_tests_name("requests in line", tests, NULL, NULL);
}
