/* ct_semaphore_test.c - timeline semaphores: values, waiting, failures, who may raise them. */
#include "fake.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { SEMAPHORES = 16, ROUNDS = 200 }; /* of the fake; of a pipeline */

static void ct_80_values_only_grow(void **state)
{
    struct fake *fake = *state;
    struct topkd_semaphore *semaphore;
    fake_start(fake, NULL);
    struct topkd_client *client = fake_client(fake, NULL);
    expect_ok(topkd_semaphore_create(client, &semaphore));
    assert_int_equal(topkd_semaphore_value(semaphore), 0);
    expect_ok(topkd_semaphore_wait(semaphore, 0, 100));
    expect_ok(topkd_semaphore_signal(semaphore, 5));
    assert_int_equal(topkd_semaphore_value(semaphore), 5);
    expect_status(TOPKD_E_INVALID, topkd_semaphore_signal(semaphore, 5));
    expect_detail("5 is not above", NULL);
    expect_status(TOPKD_E_INVALID, topkd_semaphore_signal(semaphore, 4));
    assert_int_equal(topkd_semaphore_value(semaphore), 5);
    expect_ok(topkd_semaphore_signal(semaphore, UINT64_C(1) << 33)); /* beyond the futex word */
    expect_ok(topkd_semaphore_wait(semaphore, 6, 100));
    expect_ok(topkd_semaphore_wait(semaphore, UINT64_C(1) << 33, 100));
    uint64_t before_ms = now_ms();
    expect_status(TOPKD_E_TIMEOUT, topkd_semaphore_wait(semaphore, (UINT64_C(1) << 33) + 1, 150));
    expect_detail("8589934592", "8589934593", NULL);
    assert_in_range(now_ms() - before_ms, 149, LATE_MS);
    topkd_semaphore_destroy(semaphore);
    expect_status(TOPKD_E_INVALID, topkd_semaphore_create(client, NULL));
    topkd_client_close(client);
}

static void ct_81_a_page_full_of_them(void **state)
{
    struct fake *fake = *state;
    struct topkd_semaphore *semaphores[SEMAPHORES], *more;
    fake_start(fake, NULL);
    struct topkd_client *client = fake_client(fake, NULL);
    for (int i = 0; i < SEMAPHORES; i++) {
        expect_ok(topkd_semaphore_create(client, &semaphores[i]));
        expect_ok(topkd_semaphore_signal(semaphores[i], (uint64_t)i + 1));
    }
    expect_status(TOPKD_E_LIMIT, topkd_semaphore_create(client, &more));
    expect_detail("all 16 semaphores", NULL);
    topkd_semaphore_destroy(semaphores[7]);
    expect_ok(topkd_semaphore_create(client, &more));
    assert_int_equal(topkd_semaphore_value(more), 0); /* a used place is as new */
    for (int i = 0; i < SEMAPHORES; i++) {
        if (i != 7) {
            assert_int_equal(topkd_semaphore_value(semaphores[i]), i + 1);
        }
    }
    topkd_client_close(client);
}

static void ct_82_a_place_in_use_by_a_request_is_not_given_away(void **state)
{
    struct fake *fake = *state;
    struct matrix matrix;
    struct topkd_semaphore *ready, *done, *other;
    struct topkd_op *op;
    fake_start(fake, NULL);
    struct topkd_client *client = fake_client(fake, NULL);
    matrix_create(client, 1, 100, 8, &matrix);
    expect_ok(topkd_semaphore_create(client, &ready));
    expect_ok(topkd_semaphore_create(client, &done));
    struct topkd_select_request request = matrix_request(&matrix, false);
    request.wait = (struct topkd_semaphore_point){ready, 1};
    request.signal = (struct topkd_semaphore_point){done, 9};
    expect_ok(topkd_select_start(client, &request, NULL, &op));
    topkd_semaphore_destroy(done); /* the request goes on using it */
    expect_ok(topkd_semaphore_create(client, &other));
    expect_ok(topkd_semaphore_signal(ready, 1));
    expect_ok(topkd_op_wait(op, WAIT_MS));
    expect_ok(topkd_op_finish(op, NULL));
    assert_int_equal(topkd_semaphore_value(other), 0); /* not 9 */
    topkd_client_close(client);
}

static void ct_83_what_requests_raise_the_program_does_not(void **state)
{
    struct fake *fake = *state;
    struct matrix matrix;
    struct topkd_semaphore *ready, *done;
    struct topkd_op *op;
    fake_start(fake, NULL);
    struct topkd_client *client = fake_client(fake, NULL);
    matrix_create(client, 1, 100, 8, &matrix);
    expect_ok(topkd_semaphore_create(client, &ready));
    expect_ok(topkd_semaphore_create(client, &done));
    struct topkd_select_request request = matrix_request(&matrix, false);
    request.wait = (struct topkd_semaphore_point){ready, 1};
    request.signal = (struct topkd_semaphore_point){done, 5};
    expect_ok(topkd_select_start(client, &request, NULL, &op));
    expect_status(TOPKD_E_IN_USE, topkd_semaphore_signal(done, 2));
    expect_detail("raise the semaphore to 5", NULL);
    struct topkd_op *second;
    expect_status(TOPKD_E_INVALID, topkd_select_start(client, &request, NULL, &second));
    expect_detail("signal.value 5", "not above 5", NULL);
    expect_ok(topkd_semaphore_signal(ready, 1));
    expect_ok(topkd_semaphore_wait(done, 5, WAIT_MS));
    expect_ok(topkd_op_wait(op, WAIT_MS));
    expect_ok(topkd_op_finish(op, NULL));
    expect_ok(topkd_semaphore_signal(done, 6));
    topkd_client_close(client);
}

static void ct_84_a_failure_reaches_the_value_and_tells(void **state)
{
    struct fake *fake = *state;
    struct matrix matrix;
    struct topkd_semaphore *done;
    struct topkd_result result;
    /* Whether the worker marks the failure itself (a failed wait) or only refuses (a status). */
    fake_start(fake, "select:1:status:12", NULL);
    struct topkd_client *client = fake_client(fake, NULL);
    matrix_create(client, 1, 100, 8, &matrix);
    expect_ok(topkd_semaphore_create(client, &done));
    struct topkd_select_request request = matrix_request(&matrix, false);
    request.signal = (struct topkd_semaphore_point){done, 4};
    expect_status(TOPKD_E_BUSY, topkd_select(client, &request, &result));
    expect_status(TOPKD_E_BUSY, topkd_semaphore_wait(done, 4, WAIT_MS));
    expect_detail("signal 4 failed", NULL);
    expect_ok(topkd_semaphore_wait(done, 3, WAIT_MS)); /* an earlier value did not fail */
    request.signal.value = 6;
    expect_ok(topkd_select(client, &request, &result));
    expect_ok(topkd_semaphore_wait(done, 6, WAIT_MS));
    topkd_client_close(client);
}

static void ct_85_a_request_whose_wait_failed_fails_alike(void **state)
{
    struct fake *fake = *state;
    struct matrix matrix;
    struct topkd_semaphore *first, *second;
    struct topkd_op *ops[2];
    fake_start(fake, "select:1:silent", NULL);
    const struct topkd_client_options options = {.timeout_ms =
                                                     SHORT_MS}; /* closing waits so long */
    struct topkd_client *client = fake_client(fake, &options);
    matrix_create(client, 1, 100, 8, &matrix);
    expect_ok(topkd_semaphore_create(client, &first));
    expect_ok(topkd_semaphore_create(client, &second));
    struct topkd_select_request request = matrix_request(&matrix, false);
    request.timeout_ms = 200;
    request.signal = (struct topkd_semaphore_point){first, 1};
    expect_ok(topkd_select_start(client, &request, NULL, &ops[0]));
    fake_await_count(fake, WIRE_SELECT, 1); /* it is this one that gets no answer */
    request.timeout_ms = WAIT_MS;
    request.wait = request.signal;
    request.signal = (struct topkd_semaphore_point){second, 1};
    expect_ok(topkd_select_start(client, &request, NULL, &ops[1]));
    expect_status(TOPKD_E_TIMEOUT, topkd_semaphore_wait(second, 1, WAIT_MS));
    for (int i = 0; i < 2; i++) {
        expect_ok(topkd_op_wait(ops[i], WAIT_MS));
        expect_status(TOPKD_E_TIMEOUT, topkd_op_finish(ops[i], NULL));
    }
    topkd_client_close(client);
}

static void ct_86_cancelling_a_parked_request_tells_its_waiters(void **state)
{
    struct fake *fake = *state;
    struct matrix matrix;
    struct topkd_semaphore *done;
    struct topkd_op *op;
    fake_start(fake, NULL);
    const struct topkd_client_options options = {.timeout_ms = SHORT_MS};
    struct topkd_client *client = fake_client(fake, &options);
    matrix_create(client, 1, 100, 8, &matrix);
    expect_ok(topkd_semaphore_create(client, &done));
    struct topkd_select_request request = matrix_request(&matrix, false);
    request.signal = (struct topkd_semaphore_point){done, 1};
    fake_kill(fake);
    expect_status(TOPKD_E_STALE_SESSION, topkd_ping(client, NULL)); /* the loss is known */
    expect_ok(topkd_select_start(client, &request, NULL, &op));
    expect_status(TOPKD_E_CANCELLED, topkd_op_finish(op, NULL));
    expect_status(TOPKD_E_CANCELLED, topkd_semaphore_wait(done, 1, WAIT_MS));
    topkd_client_close(client);
}

/* ---- Threads --------------------------------------------------------------------------------- */

struct producer {
    struct topkd_semaphore *ready;
    pthread_t thread;
};

/* Writes nothing, but says so at its own pace. */
static void *produce(void *arg)
{
    const struct producer *producer = arg;
    for (uint64_t i = 1; i <= ROUNDS; i++) {
        usleep((useconds_t)(i % 7) * 100);
        if (topkd_semaphore_signal(producer->ready, i) != TOPKD_OK) {
            break;
        }
    }
    return NULL;
}

/* Producer -> daemon -> consumer, all ends tied by semaphores, through two deaths of the worker. */
static void ct_87_a_pipeline_goes_on_through_deaths(void **state)
{
    struct fake *fake = *state;
    struct matrix matrix;
    struct producer producer;
    struct topkd_semaphore *done;
    struct topkd_op *ops[8];
    fake_start(fake, NULL);
    struct topkd_client *client = fake_client(fake, NULL);
    matrix_create(client, 2, 200, 8, &matrix);
    expect_ok(topkd_semaphore_create(client, &producer.ready));
    expect_ok(topkd_semaphore_create(client, &done));
    assert_int_equal(pthread_create(&producer.thread, NULL, produce, &producer), 0);
    struct topkd_select_request request = matrix_request(&matrix, false);
    for (uint64_t i = 1; i <= ROUNDS + 8; i++) {
        if (i > 8) { /* the oldest of eight in flight */
            uint64_t oldest = i - 8;
            struct topkd_result result;
            expect_ok(topkd_semaphore_wait(done, oldest, WAIT_MS));
            expect_ok(topkd_op_wait(ops[oldest % 8], WAIT_MS));
            expect_ok(topkd_op_finish(ops[oldest % 8], &result));
            matrix_check(&matrix, &request, &result);
        }
        if (i <= ROUNDS) {
            request.wait = (struct topkd_semaphore_point){producer.ready, i};
            request.signal = (struct topkd_semaphore_point){done, i};
            expect_ok(topkd_select_start(client, &request, NULL, &ops[i % 8]));
        }
        if (i == 60 || i == 130) {
            fake_kill(fake);
            fake_start(fake, NULL);
        }
    }
    pthread_join(producer.thread, NULL);
    assert_int_equal(topkd_semaphore_value(done), ROUNDS);
    assert_int_equal(topkd_semaphore_value(producer.ready), ROUNDS);
    topkd_client_close(client);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, fake_set_up, fake_tear_down)
    const struct CMUnitTest tests[] = {
        TEST(ct_80_values_only_grow),
        TEST(ct_81_a_page_full_of_them),
        TEST(ct_82_a_place_in_use_by_a_request_is_not_given_away),
        TEST(ct_83_what_requests_raise_the_program_does_not),
        TEST(ct_84_a_failure_reaches_the_value_and_tells),
        TEST(ct_85_a_request_whose_wait_failed_fails_alike),
        TEST(ct_86_cancelling_a_parked_request_tells_its_waiters),
        TEST(ct_87_a_pipeline_goes_on_through_deaths),
    };
    return cmocka_run_group_tests_name("ct_semaphore", tests, NULL, NULL);
}
