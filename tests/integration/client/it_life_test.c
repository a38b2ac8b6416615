/* it_life_test.c - the client library through the life of the real daemon: many clients, threads
 * and requests at once, workers that are killed, a daemon that stops and starts. */
#include "daemon.h"
#include "fake.h"

#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { THREADS = 6, CALLS = 60, DEPTH = 16 };

static int set_up(void **state)
{
    struct daemon *daemon = malloc(sizeof(*daemon));
    assert_non_null(daemon);
    daemon_init(daemon);
    *state = daemon;
    return 0;
}

static int tear_down(void **state)
{
    daemon_fini(*state);
    free(*state);
    return 0;
}

/* ---- At once --------------------------------------------------------------------------------- */

static int be_a_client(const struct daemon *daemon, uint32_t rows)
{
    struct matrix matrix;
    struct topkd_result result;
    struct topkd_client *client = daemon_client(daemon, NULL);
    matrix_create(client, rows, 3000, 64, &matrix);
    for (int i = 0; i < CALLS; i++) {
        struct topkd_select_request request = matrix_request(&matrix, i % 2 == 0);
        expect_ok(topkd_select(client, &request, &result));
        matrix_check(&matrix, &request, &result);
        topkd_result_release(client, &result);
    }
    topkd_client_close(client);
    return has_buffers() ? 2 : 0;
}

/* Two processes. First in main: ThreadSanitizer wants to fork before there are threads. */
static void it_30_two_processes_at_once(void **state)
{
    const struct daemon *daemon = *state;
    pid_t children[2];
    daemon_start(*state);
    for (uint32_t i = 0; i < 2; i++) {
        children[i] = fork();
        assert_true(children[i] >= 0);
        if (children[i] == 0) {
            _exit(be_a_client(daemon, 4 + 3 * i)); /* a failed check leaves by abort */
        }
    }
    for (int i = 0; i < 2; i++) {
        int end;
        assert_int_equal(waitpid(children[i], &end, 0), children[i]);
        assert_true(WIFEXITED(end));
        assert_int_equal(WEXITSTATUS(end), 0);
    }
}

/* No worker is left that could see the client's death: the supervisor finds the memory. What a live
 * process holds stays, registered or not. */
static void it_39_a_client_dies_with_its_worker(void **state)
{
    const struct daemon *daemon = *state;
    int ready[2];
    daemon_start(*state);
    pid_t worker = daemon_worker(daemon, 0);
    assert_int_equal(pipe(ready), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct topkd_buffer *buffer;
        struct topkd_client *client = daemon_client(daemon, NULL);
        expect_ok(topkd_buffer_create(client, 1 << 20, &buffer));
        (void)!write(ready[1], "", 1);
        for (;;) {
            pause();
        }
    }
    char byte;
    assert_int_equal(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    close(ready[1]);
    usleep(2500000); /* longer than the supervisor takes to look again */
    assert_true(has_buffers_of(child));
    assert_int_equal(kill(worker, SIGSTOP), 0); /* so that it does not see the other death */
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(kill(worker, SIGKILL), 0);
    assert_int_equal(waitpid(child, NULL, 0), child);
    uint64_t end_ms = now_ms() + WAIT_MS;
    while (has_buffers_of(child) && now_ms() < end_ms) {
        usleep(10000);
    }
    assert_false(has_buffers_of(child));
}

struct caller {
    struct topkd_client *client;
    struct matrix matrix; /* its own buffer */
    pthread_t thread;
    enum topkd_status status;
    char detail[256];
    int num_right;
};

static void *call_many(void *arg)
{
    struct caller *caller = arg;
    for (int i = 0; i < CALLS && caller->status == TOPKD_OK; i++) {
        struct topkd_select_request request = matrix_request(&caller->matrix, i % 3 == 0);
        struct topkd_result result;
        request.deterministic = true;
        caller->status = topkd_select(caller->client, &request, &result);
        if (caller->status == TOPKD_OK) {
            /* The same bytes every time, into whatever place. */
            static __thread int32_t first[8 * 32];
            if (i == 0) {
                memcpy(first, result.indices, sizeof(first));
            }
            caller->num_right += memcmp(first, result.indices, sizeof(first)) == 0;
            topkd_result_release(caller->client, &result);
        } else {
            strncpy(caller->detail, topkd_detail(), sizeof(caller->detail) - 1);
        }
    }
    return NULL;
}

static void start_callers(struct topkd_client *client, struct caller *callers)
{
    for (int i = 0; i < THREADS; i++) {
        callers[i] = (struct caller){.client = client};
        matrix_create(client, 8, 2000, 32, &callers[i].matrix);
        assert_int_equal(pthread_create(&callers[i].thread, NULL, call_many, &callers[i]), 0);
    }
}

static void join_callers(struct caller *callers)
{
    for (int i = 0; i < THREADS; i++) {
        pthread_join(callers[i].thread, NULL);
        if (callers[i].status != TOPKD_OK) {
            print_error("%s: %s\n", topkd_status_name(callers[i].status), callers[i].detail);
        }
        assert_int_equal(callers[i].num_right, CALLS);
    }
}

static void it_31_threads_of_one_client(void **state)
{
    struct caller callers[THREADS];
    daemon_start(*state);
    struct topkd_client *client = daemon_client(*state, NULL);
    start_callers(client, callers);
    join_callers(callers);
    topkd_client_close(client);
    assert_false(has_buffers());
}

static void it_32_many_outstanding_with_poll(void **state)
{
    struct matrix matrix;
    int num_started = 0, num_finished = 0;
    daemon_start(*state);
    struct topkd_client *client = daemon_client(*state, NULL);
    matrix_create(client, 4, 5000, 100, &matrix);
    struct topkd_select_request request = matrix_request(&matrix, false);
    while (num_finished < 400) {
        struct topkd_op *op;
        while (num_started < 400 && num_started - num_finished < DEPTH) {
            expect_ok(topkd_select_start(client, &request, NULL, &op));
            num_started++;
        }
        struct pollfd fd = {.fd = topkd_client_fd(client), .events = POLLIN};
        assert_int_equal(poll(&fd, 1, WAIT_MS), 1);
        while ((op = topkd_op_next(client)) != NULL) {
            struct topkd_result result;
            expect_ok(topkd_op_finish(op, &result));
            num_finished++;
            if (num_finished == 400) {
                matrix_check(&matrix, &request, &result);
            }
        }
    }
    topkd_client_close(client);
}

/* ---- Deaths ---------------------------------------------------------------------------------- */

static void it_33_workers_killed_in_the_middle_of_a_stream(void **state)
{
    struct caller callers[THREADS];
    struct topkd_client_info info;
    daemon_start(*state);
    struct topkd_client *client = daemon_client(*state, NULL);
    pid_t worker = daemon_worker(*state, 0);
    start_callers(client, callers);
    for (int i = 0; i < 3; i++) {
        usleep(20000);
        assert_int_equal(kill(worker, SIGKILL), 0);
        worker = daemon_worker(*state, worker);
        expect_ok(topkd_ping(client, NULL)); /* a session with the new one */
    }
    join_callers(callers);
    expect_ok(topkd_client_info(client, &info));
    assert_true(info.num_renewals >= 1 && info.num_renewals <= 4);
    topkd_client_close(client);
    assert_false(has_buffers());
}

static void it_34_a_worker_killed_under_requests_in_flight(void **state)
{
    struct matrix matrix;
    struct topkd_op *ops[DEPTH];
    struct topkd_semaphore *ready;
    daemon_start(*state);
    struct topkd_client *client = daemon_client(*state, NULL);
    matrix_create(client, 4, 5000, 100, &matrix);
    expect_ok(topkd_semaphore_create(client, &ready));
    struct topkd_select_request request = matrix_request(&matrix, false);
    request.wait = (struct topkd_semaphore_point){ready, 1};
    for (int i = 0; i < DEPTH; i++) {
        expect_ok(topkd_select_start(client, &request, NULL, &ops[i]));
    }
    assert_int_equal(kill(daemon_worker(*state, 0), SIGKILL), 0);
    expect_ok(topkd_semaphore_signal(ready, 1)); /* to whichever page there is now */
    for (int i = 0; i < DEPTH; i++) {
        struct topkd_result result;
        expect_ok(topkd_op_wait(ops[i], WAIT_MS));
        expect_ok(topkd_op_finish(ops[i], &result));
        matrix_check(&matrix, &request, &result);
        assert_int_equal(result.num_retries, 1);
    }
    topkd_client_close(client);
}

static void it_35_a_daemon_that_stops_and_starts(void **state)
{
    struct matrix matrix;
    struct topkd_result result;
    struct topkd_client *late;
    struct daemon *daemon = *state;
    const struct topkd_client_options impatient = {.url = daemon->url, .timeout_ms = 300};
    expect_status(TOPKD_E_UNREACHABLE, topkd_client_open(&impatient, &late));
    daemon_start(daemon);
    struct topkd_client *client = daemon_client(daemon, NULL);
    matrix_create(client, 4, 500, 10, &matrix);
    struct topkd_select_request request = matrix_request(&matrix, true);
    expect_ok(topkd_select(client, &request, &result));
    daemon_stop(daemon);
    request.timeout_ms = 3000; /* a busy machine notices the lost connection late */
    enum topkd_status status = topkd_select(client, &request, &result);
    if (status != TOPKD_E_DRAINING) { /* as it goes: refused first, then gone */
        expect_status(TOPKD_E_STALE_SESSION, status);
    }
    daemon_start(daemon);
    request.timeout_ms = 30000;
    expect_ok(topkd_select(client, &request, &result));
    matrix_check(&matrix, &request, &result);
    topkd_client_close(client);
}

static void *stop_and_start(void *arg)
{
    daemon_stop(arg);
    daemon_start(arg);
    return NULL;
}

static void it_36_calls_do_not_notice_a_restart(void **state)
{
    struct caller callers[THREADS];
    pthread_t thread;
    daemon_start(*state);
    struct topkd_client *client = daemon_client(*state, NULL);
    start_callers(client, callers);
    assert_int_equal(pthread_create(&thread, NULL, stop_and_start, *state), 0);
    join_callers(callers);
    pthread_join(thread, NULL);
    topkd_client_close(client);
}

/* ---- Ends ------------------------------------------------------------------------------------ */

static void it_37_leaving_in_the_middle(void **state)
{
    struct matrix matrix, second;
    struct topkd_op *ops[DEPTH];
    struct topkd_semaphore *ready, *never;
    daemon_start(*state);
    struct topkd_client *client = daemon_client(*state, NULL);
    matrix_create(client, 64, 20000, 500, &matrix);
    matrix_create(client, 64, 20000, 500, &second);
    expect_ok(topkd_semaphore_create(client, &ready));
    expect_ok(topkd_semaphore_create(client, &never));
    struct topkd_select_request request = matrix_request(&matrix, false);
    request.wait = (struct topkd_semaphore_point){ready, 1}; /* however quick the worker is */
    for (int i = 0; i < 4; i++) {
        expect_ok(topkd_select_start(client, &request, NULL, &ops[i]));
    }
    expect_status(TOPKD_E_CANCELLED, topkd_op_finish(ops[2], NULL));
    expect_ok(topkd_semaphore_signal(ready, 1));
    topkd_buffer_destroy(matrix.buffer); /* waits for all four */
    request = matrix_request(&second, true);
    request.wait = (struct topkd_semaphore_point){never, 1};
    for (int i = 4; i < 8; i++) {
        expect_ok(topkd_select_start(client, &request, NULL, &ops[i]));
    }
    uint64_t before_ms = now_ms();
    topkd_client_close(client);
    assert_true(now_ms() - before_ms < LATE_MS);
    assert_false(has_buffers());
}

/* ---- Time between processes ------------------------------------------------------------------ */

struct producer {
    struct topkd_semaphore *ready, *done;
    float *scores; /* [2, 256] */
};

/* Step n writes row n mod 2 so that position n mod 256 is the best. */
static void *produce(void *arg)
{
    const struct producer *producer = arg;
    for (uint64_t n = 1; n <= 300; n++) {
        if (n > 2 && topkd_semaphore_wait(producer->done, n - 2, WAIT_MS) != TOPKD_OK) {
            break; /* the row is still being read */
        }
        float *row = producer->scores + (n % 2) * 256;
        for (int i = 0; i < 256; i++) {
            row[i] = (float)i / 256;
        }
        row[n % 256] = 2;
        if (topkd_semaphore_signal(producer->ready, n) != TOPKD_OK) {
            break;
        }
    }
    return NULL;
}

static void it_38_a_producer_and_a_consumer(void **state)
{
    struct topkd_buffer *buffer;
    struct producer producer;
    struct topkd_op *ops[2] = {NULL};
    pthread_t thread;
    daemon_start(*state);
    struct topkd_client *client = daemon_client(*state, NULL);
    expect_ok(topkd_buffer_create(client, 4096, &buffer));
    expect_ok(topkd_semaphore_create(client, &producer.ready));
    expect_ok(topkd_semaphore_create(client, &producer.done));
    producer.scores = topkd_buffer_data(buffer);
    const int32_t *indices = (const int32_t *)(const void *)(producer.scores + 512);
    assert_int_equal(pthread_create(&thread, NULL, produce, &producer), 0);
    for (uint64_t n = 1; n <= 302; n++) {
        if (n > 2) {
            expect_ok(topkd_semaphore_wait(producer.done, n - 2, WAIT_MS));
            assert_int_equal(indices[n % 2], (n - 2) % 256);
            expect_ok(topkd_op_wait(ops[n % 2], WAIT_MS));
            expect_ok(topkd_op_finish(ops[n % 2], NULL));
        }
        if (n <= 300) {
            const struct topkd_select_request request = {
                .scores = {topkd_buffer_region(buffer), (n % 2) * 1024, 0},
                .indices = {topkd_buffer_region(buffer), 2048 + (n % 2) * 4, 0},
                .rows = 1,
                .width = 256,
                .k = 1,
                .wait = {producer.ready, n},
                .signal = {producer.done, n},
            };
            expect_ok(topkd_select_start(client, &request, NULL, &ops[n % 2]));
        }
    }
    pthread_join(thread, NULL);
    topkd_client_close(client);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(it_30_two_processes_at_once),         /* first: it forks */
        TEST(it_39_a_client_dies_with_its_worker), /* and so does this */
        TEST(it_31_threads_of_one_client),
        TEST(it_32_many_outstanding_with_poll),
        TEST(it_33_workers_killed_in_the_middle_of_a_stream),
        TEST(it_34_a_worker_killed_under_requests_in_flight),
        TEST(it_35_a_daemon_that_stops_and_starts),
        TEST(it_36_calls_do_not_notice_a_restart),
        TEST(it_37_leaving_in_the_middle),
        TEST(it_38_a_producer_and_a_consumer),
    };
    return cmocka_run_group_tests_name("it_client_life", tests, NULL, NULL);
}
