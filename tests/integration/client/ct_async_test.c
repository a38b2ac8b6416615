/* ct_async_test.c - operations: descriptor, limits, deadlines, cancelling, the arena, closing. */
#include "fake.h"

#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { OUTSTANDING = 8, SLOTS = 4 }; /* of the fake */

static bool readable(struct topkd_client *client, int timeout_ms)
{
    struct pollfd fd = {.fd = topkd_client_fd(client), .events = POLLIN};
    return poll(&fd, 1, timeout_ms) == 1;
}

static void ct_40_the_descriptor_tells_of_finished_operations(void **state)
{
    struct fake *fake = *state;
    struct matrix matrix;
    struct topkd_op *ops[3], *next;
    int users[3];
    fake_start(fake, NULL);
    struct topkd_client *client = fake_client(fake, NULL);
    matrix_create(client, 4, 100, 8, &matrix);
    struct topkd_select_request request = matrix_request(&matrix, true);
    assert_false(readable(client, 0));
    assert_null(topkd_op_next(client));
    for (int i = 0; i < 3; i++) {
        expect_ok(topkd_select_start(client, &request, &users[i], &ops[i]));
    }
    for (int i = 0; i < 3; i++) {
        assert_true(readable(client, WAIT_MS));
        next = topkd_op_next(client);
        assert_non_null(next);
        int *user = topkd_op_user(next);
        assert_ptr_equal(next, ops[user - users]);
        struct topkd_result result;
        expect_ok(topkd_op_finish(next, &result));
        matrix_check(&matrix, &request, &result);
        topkd_result_release(client, &result);
    }
    assert_false(readable(client, 0));
    assert_null(topkd_op_next(client));
    topkd_client_close(client);
}

static void ct_41_no_more_than_the_limit_at_a_time(void **state)
{
    struct fake *fake = *state;
    struct matrix matrix;
    struct topkd_op *ops[OUTSTANDING + 1];
    fake_start(fake, NULL);
    struct topkd_client *client = fake_client(fake, NULL);
    struct topkd_semaphore *ready;
    matrix_create(client, 1, 100, 8, &matrix);
    expect_ok(topkd_semaphore_create(client, &ready));
    struct topkd_select_request request = matrix_request(&matrix, false);
    request.wait = (struct topkd_semaphore_point){ready, 1};
    for (int i = 0; i < OUTSTANDING; i++) {
        expect_ok(topkd_select_start(client, &request, NULL, &ops[i]));
    }
    expect_status(TOPKD_E_BUSY, topkd_select_start(client, &request, NULL, &ops[OUTSTANDING]));
    expect_detail("8 operations", "outstanding_max 8", NULL);
    expect_ok(topkd_semaphore_signal(ready, 1));
    for (int i = 0; i < OUTSTANDING; i++) {
        expect_ok(topkd_op_wait(ops[i], WAIT_MS));
        expect_ok(topkd_op_finish(ops[i], NULL));
    }
    expect_ok(topkd_select_start(client, &request, NULL, &ops[0]));
    expect_ok(topkd_op_wait(ops[0], WAIT_MS));
    expect_ok(topkd_op_finish(ops[0], NULL));
    topkd_client_close(client);
}

static void ct_42_waiting_for_one_operation(void **state)
{
    struct fake *fake = *state;
    struct matrix matrix;
    struct topkd_op *op;
    struct topkd_result result;
    fake_start(fake, NULL);
    struct topkd_client *client = fake_client(fake, NULL);
    struct topkd_semaphore *ready;
    matrix_create(client, 2, 100, 8, &matrix);
    expect_ok(topkd_semaphore_create(client, &ready));
    struct topkd_select_request request = matrix_request(&matrix, false);
    request.wait = (struct topkd_semaphore_point){ready, 1};
    expect_ok(topkd_select_start(client, &request, NULL, &op));
    expect_status(TOPKD_E_TIMEOUT, topkd_op_wait(op, 50));
    expect_ok(topkd_semaphore_signal(ready, 1));
    assert_true(readable(client, WAIT_MS)); /* nobody waits for it now, so it is queued */
    expect_ok(topkd_op_wait(op, 50));
    assert_false(readable(client, 0)); /* and no longer */
    assert_null(topkd_op_next(client));
    expect_ok(topkd_op_wait(op, 50)); /* finished stays finished */
    expect_ok(topkd_op_finish(op, &result));
    matrix_check(&matrix, &request, &result);
    topkd_client_close(client);
}

static void ct_43_finishing_early_cancels(void **state)
{
    struct fake *fake = *state;
    struct matrix matrix;
    struct topkd_op *op;
    struct topkd_semaphore *ready;
    fake_start(fake, NULL);
    struct topkd_client *client = fake_client(fake, NULL);
    matrix_create(client, 2, 100, 8, &matrix);
    expect_ok(topkd_semaphore_create(client, &ready));
    struct topkd_select_request request = matrix_request(&matrix, true);
    request.wait = (struct topkd_semaphore_point){ready, 1};
    struct topkd_result result = {.rows = 77};
    uint64_t before_ms = now_ms();
    expect_ok(topkd_select_start(client, &request, NULL, &op));
    expect_status(TOPKD_E_CANCELLED, topkd_op_finish(op, &result));
    assert_true(now_ms() - before_ms < LATE_MS); /* nothing was waited for */
    assert_int_equal(result.rows, 77);           /* set only on success */
    assert_null(topkd_op_next(client));
    assert_int_equal(fake_count(fake, WIRE_RELEASE), 0);
    /* The answer comes nevertheless, and its arena slot goes back. */
    expect_ok(topkd_semaphore_signal(ready, 1));
    fake_await_count(fake, WIRE_RELEASE, 1);
    assert_false(readable(client, 0));
    topkd_client_close(client);
}

static void ct_44_a_silent_worker_costs_time_and_slots(void **state)
{
    struct fake *fake = *state;
    struct matrix matrix;
    struct topkd_op *op;
    struct topkd_result result;
    fake_start(fake, "select:*:silent", NULL);
    const struct topkd_client_options options = {.timeout_ms =
                                                     SHORT_MS}; /* closing waits so long */
    struct topkd_client *client = fake_client(fake, &options);
    matrix_create(client, 1, 100, 8, &matrix);
    struct topkd_select_request request = matrix_request(&matrix, false);
    request.timeout_ms = 100;
    uint64_t before_ms = now_ms();
    expect_status(TOPKD_E_TIMEOUT, topkd_select(client, &request, &result));
    expect_detail("no answer within 100 ms", NULL);
    assert_in_range(now_ms() - before_ms, 100, LATE_MS);
    for (int i = 1; i < OUTSTANDING; i++) {
        expect_ok(topkd_select_start(client, &request, NULL, &op));
    }
    for (int i = 1; i < OUTSTANDING; i++) {
        assert_true(readable(client, WAIT_MS)); /* the timer ends them, nobody waits */
        expect_status(TOPKD_E_TIMEOUT, topkd_op_finish(topkd_op_next(client), NULL));
    }
    /* None was answered, so each may still be running: the slots stay taken. */
    expect_status(TOPKD_E_BUSY, topkd_select_start(client, &request, NULL, &op));
    expect_status(TOPKD_E_TIMEOUT, topkd_select(client, &request, &result));
    expect_detail("no slot", "8 requests are in flight", NULL);
    fake_await_count(fake, WIRE_SELECT, OUTSTANDING); /* it may be late itself */
    assert_int_equal(fake_count(fake, WIRE_SELECT), OUTSTANDING);
    topkd_client_close(client);
}

/* Each is told of at its own deadline: those that began after one with a long time are not late. */
static void ct_45_deadlines_of_mixed_lengths(void **state)
{
    struct fake *fake = *state;
    struct matrix matrix;
    struct topkd_op *ops[4];
    static const uint32_t timeouts_ms[4] = {2 * WAIT_MS, 100, 400, 250};
    fake_start(fake, "select:*:silent", NULL);
    const struct topkd_client_options options = {.timeout_ms =
                                                     SHORT_MS}; /* closing waits so long */
    struct topkd_client *client = fake_client(fake, &options);
    matrix_create(client, 1, 100, 8, &matrix);
    struct topkd_select_request request = matrix_request(&matrix, false);
    uint64_t before_ms = now_ms();
    for (int i = 0; i < 4; i++) {
        request.timeout_ms = timeouts_ms[i];
        expect_ok(topkd_select_start(client, &request, (void *)(uintptr_t)timeouts_ms[i], &ops[i]));
    }
    for (int i = 1; i < 4; i++) { /* of the short ones several may be over at once */
        assert_true(readable(client, WAIT_MS));
        struct topkd_op *op = topkd_op_next(client);
        assert_ptr_not_equal(op, ops[0]);
        assert_in_range(now_ms() - before_ms, (uintptr_t)topkd_op_user(op), LATE_MS);
        expect_status(TOPKD_E_TIMEOUT, topkd_op_finish(op, NULL));
    }
    assert_false(readable(client, 0));
    expect_status(TOPKD_E_CANCELLED, topkd_op_finish(ops[0], NULL));
    topkd_client_close(client);
}

static void ct_46_answers_that_make_no_sense(void **state)
{
    struct fake *fake = *state;
    struct matrix matrix;
    struct topkd_result result;
    fake_start(fake, "select:1:garbage", "select:2:sequence", "select:3:offset",
               "select:4:status:22", NULL);
    struct topkd_client *client = fake_client(fake, NULL);
    matrix_create(client, 1, 100, 8, &matrix);
    struct topkd_select_request request = matrix_request(&matrix, true);
    expect_status(TOPKD_E_PROTOCOL, topkd_select(client, &request, &result));
    expect_status(TOPKD_E_PROTOCOL, topkd_select(client, &request, &result));
    expect_detail("answered request", NULL);
    expect_status(TOPKD_E_PROTOCOL, topkd_select(client, &request, &result));
    expect_detail("outside the arena", NULL);
    expect_status(TOPKD_E_REGION_FAULT, topkd_select(client, &request, &result));
    expect_detail("as the test wants", NULL);
    expect_ok(topkd_select(client, &request, &result)); /* the next one is as good as ever */
    matrix_check(&matrix, &request, &result);
    topkd_client_close(client);
}

static void ct_47_the_arena_is_leased(void **state)
{
    struct fake *fake = *state;
    struct matrix matrix;
    struct topkd_result results[SLOTS], more;
    struct topkd_op *op;
    fake_start(fake, NULL);
    struct topkd_client *client = fake_client(fake, NULL);
    matrix_create(client, 2, 100, 8, &matrix);
    struct topkd_select_request request = matrix_request(&matrix, true);
    request.want_values = true;
    for (int i = 0; i < SLOTS; i++) {
        expect_ok(topkd_select(client, &request, &results[i]));
        assert_non_null(results[i].values);
    }
    expect_status(TOPKD_E_BUSY, topkd_select(client, &request, &more));
    expect_detail("all 4 slots", "topkd_result_release", NULL);
    expect_ok(topkd_select_start(client, &request, NULL, &op));
    expect_ok(topkd_op_wait(op, WAIT_MS));
    expect_status(TOPKD_E_BUSY, topkd_op_finish(op, NULL));
    for (int i = 0; i < SLOTS; i++) {
        matrix_check(&matrix, &request, &results[i]); /* none was overwritten */
    }
    struct topkd_result bogus = {.lease = 4711};
    topkd_result_release(client, &bogus);
    topkd_result_release(client, &results[2]);
    assert_null(results[2].indices);
    expect_ok(topkd_select(client, &request, &more)); /* waits for the release, if it must */
    matrix_check(&matrix, &request, &more);
    /* A result that nobody wants is released at once. */
    topkd_result_release(client, &more);
    for (int i = 0; i < 3 * SLOTS; i++) {
        expect_ok(topkd_select_start(client, &request, NULL, &op));
        expect_ok(topkd_op_wait(op, WAIT_MS));
        expect_ok(topkd_op_finish(op, NULL));
    }
    topkd_client_close(client);
}

static void ct_48_a_release_that_meets_a_busy_worker_comes_again(void **state)
{
    struct fake *fake = *state;
    struct matrix matrix;
    struct topkd_result result;
    fake_start(fake, "release:1:status:12", "release:2:status:12", NULL);
    struct topkd_client *client = fake_client(fake, NULL);
    matrix_create(client, 2, 100, 8, &matrix);
    struct topkd_select_request request = matrix_request(&matrix, true);
    for (int i = 0; i < 2 * SLOTS; i++) {
        expect_ok(topkd_select(client, &request, &result));
        topkd_result_release(client, &result);
    }
    fake_await_count(fake, WIRE_RELEASE, 2 * SLOTS + 2);
    assert_int_equal(fake_count(fake, WIRE_RELEASE), 2 * SLOTS + 2);
    topkd_client_close(client);
}

/* ---- Threads --------------------------------------------------------------------------------- */

struct caller {
    struct topkd_client *client;
    const struct matrix *matrix;
    bool arena;
    int num_calls;
    enum topkd_status status;
};

static void *call_many(void *arg)
{
    struct caller *caller = arg;
    struct topkd_select_request request = matrix_request(caller->matrix, caller->arena);
    for (int i = 0; i < caller->num_calls && caller->status == TOPKD_OK; i++) {
        struct topkd_result result;
        caller->status = topkd_select(caller->client, &request, &result);
        if (caller->status == TOPKD_OK) {
            topkd_result_release(caller->client, &result);
        }
    }
    return NULL;
}

static void run_callers(struct topkd_client *client, const struct matrix *matrix, bool arena,
                        int num_threads)
{
    struct caller callers[3 * OUTSTANDING];
    pthread_t threads[3 * OUTSTANDING];
    for (int i = 0; i < num_threads; i++) {
        callers[i] = (struct caller){client, matrix, arena, 50, TOPKD_OK};
        assert_int_equal(pthread_create(&threads[i], NULL, call_many, &callers[i]), 0);
    }
    for (int i = 0; i < num_threads; i++) {
        pthread_join(threads[i], NULL);
        expect_status(TOPKD_OK, callers[i].status);
    }
}

static void ct_50_more_threads_than_slots_wait_their_turn(void **state)
{
    struct fake *fake = *state;
    struct matrix matrix;
    fake_start(fake, NULL);
    struct topkd_client *client = fake_client(fake, NULL);
    matrix_create(client, 1, 100, 8, &matrix);
    run_callers(client, &matrix, false, 3 * OUTSTANDING);
    topkd_client_close(client);
}

static void ct_51_as_many_threads_as_arena_slots_never_meet_busy(void **state)
{
    struct fake *fake = *state;
    struct matrix matrix;
    fake_start(fake, NULL);
    struct topkd_client *client = fake_client(fake, NULL);
    matrix_create(client, 1, 100, 8, &matrix);
    run_callers(client, &matrix, true, SLOTS);
    topkd_client_close(client);
}

/* ---- Closing --------------------------------------------------------------------------------- */

static void ct_52_closing_ends_what_is_in_flight(void **state)
{
    struct fake *fake = *state;
    struct matrix matrix;
    struct topkd_op *ops[OUTSTANDING];
    struct topkd_semaphore *never;
    fake_start(fake, NULL);
    struct topkd_client *client = fake_client(fake, NULL);
    matrix_create(client, 1, 100, 8, &matrix);
    expect_ok(topkd_semaphore_create(client, &never));
    for (int i = 0; i < OUTSTANDING; i++) {
        struct topkd_select_request request = matrix_request(&matrix, i % 2 == 0);
        if (i >= SLOTS) {
            request = matrix_request(&matrix, false);
        }
        request.wait = (struct topkd_semaphore_point){never, 5};
        expect_ok(topkd_select_start(client, &request, NULL, &ops[i]));
    }
    expect_status(TOPKD_E_CANCELLED, topkd_op_finish(ops[1], NULL));
    uint64_t before_ms = now_ms();
    topkd_client_close(client); /* they would have waited ten seconds */
    assert_true(now_ms() - before_ms < LATE_MS);
    assert_false(has_buffers());
}

static void ct_53_closing_with_results_and_finished_operations(void **state)
{
    struct fake *fake = *state;
    struct matrix matrix;
    struct topkd_op *ops[2];
    struct topkd_result result;
    fake_start(fake, NULL);
    struct topkd_client *client = fake_client(fake, NULL);
    matrix_create(client, 1, 100, 8, &matrix);
    struct topkd_select_request request = matrix_request(&matrix, true);
    expect_ok(topkd_select(client, &request, &result));
    expect_ok(topkd_select_start(client, &request, NULL, &ops[0]));
    expect_ok(topkd_select_start(client, &request, NULL, &ops[1]));
    expect_ok(topkd_op_wait(ops[0], WAIT_MS));
    topkd_client_close(client); /* the sanitizers look for what is left */
    assert_false(has_buffers());
}

static void ct_54_closing_while_the_worker_is_silent_is_bounded(void **state)
{
    struct fake *fake = *state;
    struct matrix matrix;
    struct topkd_op *op;
    fake_start(fake, "select:*:silent", NULL);
    const struct topkd_client_options options = {.timeout_ms = SHORT_MS};
    struct topkd_client *client = fake_client(fake, &options);
    matrix_create(client, 1, 100, 8, &matrix);
    struct topkd_select_request request = matrix_request(&matrix, false);
    expect_ok(topkd_select_start(client, &request, NULL, &op));
    uint64_t before_ms = now_ms();
    topkd_client_close(client);
    assert_in_range(now_ms() - before_ms, SHORT_MS - 10, LATE_MS);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, fake_set_up, fake_tear_down)
    const struct CMUnitTest tests[] = {
        TEST(ct_40_the_descriptor_tells_of_finished_operations),
        TEST(ct_41_no_more_than_the_limit_at_a_time),
        TEST(ct_42_waiting_for_one_operation),
        TEST(ct_43_finishing_early_cancels),
        TEST(ct_44_a_silent_worker_costs_time_and_slots),
        TEST(ct_45_deadlines_of_mixed_lengths),
        TEST(ct_46_answers_that_make_no_sense),
        TEST(ct_47_the_arena_is_leased),
        TEST(ct_48_a_release_that_meets_a_busy_worker_comes_again),
        TEST(ct_50_more_threads_than_slots_wait_their_turn),
        TEST(ct_51_as_many_threads_as_arena_slots_never_meet_busy),
        TEST(ct_52_closing_ends_what_is_in_flight),
        TEST(ct_53_closing_with_results_and_finished_operations),
        TEST(ct_54_closing_while_the_worker_is_silent_is_bounded),
    };
    return cmocka_run_group_tests_name("ct_async", tests, NULL, NULL);
}
