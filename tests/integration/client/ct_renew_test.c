/* ct_renew_test.c - the worker goes and comes back: sessions are renewed, requests repeated. */
#include "fake.h"

#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

/* A thread that brings a new life, without rules, as soon as the present one has died. */
static void *reviver(void *arg)
{
    struct fake *fake = arg;
    fake_await_death(fake);
    fake_start(fake, NULL);
    return NULL;
}

static pthread_t revive_after_death(struct fake *fake)
{
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, reviver, fake), 0);
    return thread;
}

static uint64_t num_renewals(struct topkd_client *client)
{
    struct topkd_client_info info;
    expect_ok(topkd_client_info(client, &info));
    return info.num_renewals;
}

static void ct_60_a_request_survives_its_worker(void **state)
{
    struct fake *fake = *state;
    struct matrix matrix, other;
    struct topkd_result result;
    struct topkd_client_info info;
    fake_start(fake, "select:3:exit", NULL);
    struct topkd_client *client = fake_client(fake, NULL);
    matrix_create(client, 2, 100, 8, &matrix);
    matrix_create(client, 3, 200, 9, &other);
    pthread_t thread = revive_after_death(fake);
    for (int i = 0; i < 6; i++) {
        struct topkd_select_request request = matrix_request(&matrix, i % 2 == 0);
        expect_ok(topkd_select(client, &request, &result));
        matrix_check(&matrix, &request, &result);
        assert_int_equal(result.num_retries, i == 2);
        topkd_result_release(client, &result);
    }
    pthread_join(thread, NULL);
    expect_ok(topkd_client_info(client, &info));
    assert_int_equal(info.num_renewals, 1);
    assert_int_equal(info.epoch, 2);
    assert_int_equal(fake_count(fake, WIRE_REGISTER), 4); /* both buffers, twice */
    struct topkd_select_request request = matrix_request(&other, true);
    expect_ok(topkd_select(client, &request, &result));
    matrix_check(&other, &request, &result);
    topkd_client_close(client);
}

static void ct_61_a_session_that_was_reaped_is_renewed(void **state)
{
    struct fake *fake = *state;
    struct matrix matrix;
    struct topkd_result result;
    fake_start(fake, "select:2:stale", "ping:1:stale", NULL);
    struct topkd_client *client = fake_client(fake, NULL);
    matrix_create(client, 2, 100, 8, &matrix);
    struct topkd_select_request request = matrix_request(&matrix, false);
    for (int i = 0; i < 3; i++) {
        expect_ok(topkd_select(client, &request, &result));
        matrix_check(&matrix, &request, &result);
        assert_int_equal(result.num_retries, i == 1);
    }
    assert_int_equal(num_renewals(client), 1);
    expect_ok(topkd_ping(client, NULL)); /* so do other requests */
    assert_int_equal(num_renewals(client), 2);
    struct topkd_buffer *buffer;
    expect_ok(topkd_buffer_create(client, 100, &buffer));
    topkd_buffer_destroy(buffer);
    topkd_client_close(client);
}

static void ct_62_without_renewal_the_client_is_told(void **state)
{
    struct fake *fake = *state;
    struct matrix matrix;
    struct topkd_result result;
    struct topkd_op *op;
    struct topkd_semaphore *semaphore;
    fake_start(fake, "select:2:exit", NULL);
    const struct topkd_client_options options = {.no_renew = true};
    struct topkd_client *client = fake_client(fake, &options);
    matrix_create(client, 2, 100, 8, &matrix);
    expect_ok(topkd_semaphore_create(client, &semaphore));
    struct topkd_select_request request = matrix_request(&matrix, false);
    expect_ok(topkd_select(client, &request, &result));
    request.signal = (struct topkd_semaphore_point){semaphore, 1};
    expect_ok(topkd_select_start(client, &request, NULL, &op));
    expect_status(TOPKD_E_STALE_SESSION, topkd_semaphore_wait(semaphore, 1, WAIT_MS));
    expect_ok(topkd_op_wait(op, WAIT_MS));
    expect_status(TOPKD_E_STALE_SESSION, topkd_op_finish(op, NULL));
    fake_await_death(fake);
    fake_start(fake, NULL); /* it is back, but that does not count */
    request.signal.semaphore = NULL;
    request.signal.value = 0;
    expect_status(TOPKD_E_STALE_SESSION, topkd_select(client, &request, &result));
    expect_status(TOPKD_E_STALE_SESSION, topkd_ping(client, NULL));
    expect_status(TOPKD_E_STALE_SESSION, topkd_semaphore_wait(semaphore, 9, WAIT_MS));
    assert_int_equal(fake_count(fake, WIRE_HELLO), 1);
    topkd_client_close(client);
    assert_false(has_buffers());
}

static void ct_63_a_worker_that_stays_away(void **state)
{
    struct fake *fake = *state;
    struct matrix matrix;
    struct topkd_result result;
    struct topkd_buffer *buffer;
    fake_start(fake, NULL);
    const struct topkd_client_options options = {.timeout_ms = SHORT_MS};
    struct topkd_client *client = fake_client(fake, &options);
    matrix_create(client, 2, 100, 8, &matrix);
    struct topkd_select_request request = matrix_request(&matrix, false);
    fake_kill(fake);
    uint64_t before_ms = now_ms();
    expect_status(TOPKD_E_STALE_SESSION, topkd_select(client, &request, &result));
    assert_in_range(now_ms() - before_ms, SHORT_MS - 10, LATE_MS);
    expect_status(TOPKD_E_STALE_SESSION, topkd_ping(client, NULL));
    expect_status(TOPKD_E_STALE_SESSION, topkd_buffer_create(client, 10, &buffer));
    assert_true(strlen(topkd_detail()) > 20);
    usleep((SHORT_MS + 200) * 1000); /* longer than it looks by itself */
    fake_start(fake, NULL);
    request.timeout_ms = WAIT_MS;
    expect_ok(topkd_select(client, &request, &result));
    matrix_check(&matrix, &request, &result);
    topkd_buffer_destroy(matrix.buffer);
    topkd_client_close(client);
}

static void ct_64_an_idle_client_is_ready_again_before_it_asks(void **state)
{
    struct fake *fake = *state;
    struct matrix matrix;
    struct topkd_result result;
    fake_start(fake, NULL);
    struct topkd_client *client = fake_client(fake, NULL);
    matrix_create(client, 2, 100, 8, &matrix);
    fake_kill(fake);
    fake_start(fake, NULL);
    for (int i = 0; i < WAIT_MS / 10 && num_renewals(client) == 0; i++) {
        usleep(10000);
    }
    assert_int_equal(num_renewals(client), 1);
    struct topkd_select_request request = matrix_request(&matrix, false);
    expect_ok(topkd_select(client, &request, &result));
    assert_int_equal(result.num_retries, 0);
    topkd_client_close(client);
}

static void ct_65_work_that_said_it_was_done_does_not_run_again(void **state)
{
    struct fake *fake = *state;
    struct matrix matrix;
    struct topkd_op *op;
    struct topkd_semaphore *done;
    struct topkd_result result;
    fake_start(fake, "select:1:exit_after", NULL);
    struct topkd_client *client = fake_client(fake, NULL);
    matrix_create(client, 2, 100, 8, &matrix);
    expect_ok(topkd_semaphore_create(client, &done));
    struct topkd_select_request request = matrix_request(&matrix, false);
    request.signal = (struct topkd_semaphore_point){done, 3};
    pthread_t thread = revive_after_death(fake);
    expect_ok(topkd_select_start(client, &request, NULL, &op));
    expect_ok(topkd_semaphore_wait(done, 3, WAIT_MS));
    expect_ok(topkd_op_wait(op, WAIT_MS));
    expect_ok(topkd_op_finish(op, &result));
    matrix_check(&matrix, &request, &result);
    pthread_join(thread, NULL);
    for (int i = 0; i < WAIT_MS / 10 && num_renewals(client) == 0; i++) {
        usleep(10000);
    }
    assert_int_equal(fake_count(fake, WIRE_SELECT), 1);
    assert_int_equal(topkd_semaphore_value(done), 3); /* carried over */
    /* Into the arena there is no way but to run it again: the reply says where the result is. */
    topkd_client_close(client);
}

static void ct_66_without_a_semaphore_it_runs_again(void **state)
{
    struct fake *fake = *state;
    struct matrix matrix;
    struct topkd_result result;
    fake_start(fake, "select:1:exit_after", NULL);
    struct topkd_client *client = fake_client(fake, NULL);
    matrix_create(client, 2, 100, 8, &matrix);
    struct topkd_select_request request = matrix_request(&matrix, true);
    pthread_t thread = revive_after_death(fake);
    expect_ok(topkd_select(client, &request, &result));
    matrix_check(&matrix, &request, &result);
    assert_int_equal(result.num_retries, 1);
    pthread_join(thread, NULL);
    assert_int_equal(fake_count(fake, WIRE_SELECT), 2);
    topkd_client_close(client);
}

static void *revive_five_times(void *arg)
{
    for (int i = 0; i < 5; i++) {
        fake_await_death(arg);
        fake_start(arg, i < 4 ? "select:*:exit" : "starting=0", NULL);
    }
    return NULL;
}

static void ct_67_a_request_that_kills_its_worker_is_given_up(void **state)
{
    struct fake *fake = *state;
    struct matrix matrix;
    struct topkd_result result;
    pthread_t thread;
    fake_start(fake, "select:*:exit", NULL);
    struct topkd_client *client = fake_client(fake, NULL);
    matrix_create(client, 2, 100, 8, &matrix);
    struct topkd_select_request request = matrix_request(&matrix, false);
    assert_int_equal(pthread_create(&thread, NULL, revive_five_times, fake), 0);
    expect_status(TOPKD_E_DEVICE_FAULT, topkd_select(client, &request, &result));
    expect_detail("went 4 times", NULL);
    assert_int_equal(fake_count(fake, WIRE_SELECT), 4);
    expect_ok(topkd_select(client, &request, &result)); /* kills the fifth, the sixth is well */
    assert_int_equal(result.num_retries, 1);
    pthread_join(thread, NULL);
    topkd_client_close(client);
}

static void ct_68_a_draining_daemon_is_waited_for(void **state)
{
    struct fake *fake = *state;
    struct matrix matrix;
    struct topkd_result result;
    fake_start(fake, "select:*:status:14", "hello:2:status:14", "hello:3:exit", NULL);
    struct topkd_client *client = fake_client(fake, NULL);
    matrix_create(client, 2, 100, 8, &matrix);
    pthread_t thread = revive_after_death(fake);
    struct topkd_select_request request = matrix_request(&matrix, false);
    expect_ok(topkd_select(client, &request, &result));
    matrix_check(&matrix, &request, &result);
    pthread_join(thread, NULL);
    topkd_client_close(client);
}

static void ct_69_a_daemon_that_stays_draining_is_named(void **state)
{
    struct fake *fake = *state;
    struct matrix matrix;
    struct topkd_result result;
    fake_start(fake, "select:*:status:14", "hello:1:delay:0", "hello:*:status:14", NULL);
    struct topkd_client *client = fake_client(fake, NULL);
    matrix_create(client, 2, 100, 8, &matrix);
    struct topkd_select_request request = matrix_request(&matrix, false);
    request.timeout_ms = SHORT_MS; /* time for an attempt that is refused */
    expect_status(TOPKD_E_DRAINING, topkd_select(client, &request, &result));
    topkd_client_close(client);
}

static void ct_70_a_daemon_that_refuses_this_client_now(void **state)
{
    struct fake *fake = *state;
    struct matrix matrix;
    struct topkd_result result;
    fake_start(fake, NULL);
    struct topkd_client *client = fake_client(fake, NULL);
    matrix_create(client, 2, 100, 8, &matrix);
    fake_kill(fake);
    fake_start(fake, "hello:*:status:11", NULL); /* another access list */
    struct topkd_select_request request = matrix_request(&matrix, false);
    uint64_t before_ms = now_ms();
    expect_status(TOPKD_E_NOT_PERMITTED, topkd_select(client, &request, &result));
    expect_status(TOPKD_E_NOT_PERMITTED, topkd_ping(client, NULL));
    assert_true(now_ms() - before_ms < LATE_MS); /* no sense in waiting for the deadline */
    topkd_client_close(client);
}

/* A shared object of the test's own. */
static void *make_object(const char *name, uint64_t size)
{
    int fd = shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)size), 0);
    void *base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_ptr_not_equal(base, MAP_FAILED);
    close(fd);
    return base;
}

static void ct_71_a_region_whose_name_was_reused_is_not_taken_over(void **state)
{
    struct fake *fake = *state;
    char name[64];
    struct topkd_region *region;
    struct topkd_result result;
    (void)snprintf(name, sizeof(name), "/topkd-test-%d", (int)getpid());
    float *scores = make_object(name, 4096);
    fake_start(fake, NULL);
    struct topkd_client *client = fake_client(fake, NULL);
    const struct topkd_shm shm = {.name = name, .length_bytes = 4096, .access = TOPKD_ACCESS_READ};
    expect_ok(topkd_region_register_shm(client, &shm, &region));
    struct topkd_select_request request = {
        .scores = {.region = region}, .rows = 1, .width = 1024, .k = 4};
    expect_ok(topkd_select(client, &request, &result));
    topkd_result_release(client, &result);
    assert_int_equal(shm_unlink(name), 0);
    float *others = make_object(name, 4096);
    fake_kill(fake);
    fake_start(fake, NULL);
    expect_status(TOPKD_E_MAP_FAILED, topkd_select(client, &request, &result));
    expect_detail(name, "not the one that was registered", NULL);
    expect_ok(topkd_ping(client, NULL)); /* the session itself is fine */
    expect_ok(topkd_region_unregister(region));
    assert_int_equal(shm_unlink(name), 0);
    (void)munmap(scores, 4096);
    (void)munmap(others, 4096);
    topkd_client_close(client);
}

static void ct_72_a_result_outlives_its_session(void **state)
{
    struct fake *fake = *state;
    struct matrix matrix;
    struct topkd_result old, new;
    fake_start(fake, NULL);
    struct topkd_client *client = fake_client(fake, NULL);
    matrix_create(client, 2, 100, 8, &matrix);
    struct topkd_select_request request = matrix_request(&matrix, true);
    expect_ok(topkd_select(client, &request, &old));
    fake_kill(fake);
    fake_start(fake, NULL);
    expect_ok(topkd_select(client, &request, &new));
    matrix_check(&matrix, &request, &old); /* still mapped */
    matrix_check(&matrix, &request, &new);
    topkd_result_release(client, &old); /* the new worker does not hear of it */
    topkd_result_release(client, &new);
    topkd_client_close(client); /* waits for the answers of what is on its way */
    assert_int_equal(fake_count(fake, WIRE_RELEASE), 1);
}

/* Many requests in flight, killed again and again: each is answered, and rightly. */
static void ct_73_a_stream_of_requests_through_five_deaths(void **state)
{
    struct fake *fake = *state;
    struct matrix matrix;
    struct topkd_op *ops[8];
    fake_start(fake, NULL);
    struct topkd_client *client = fake_client(fake, NULL);
    matrix_create(client, 4, 500, 16, &matrix);
    for (int round = 0; round < 5; round++) {
        for (int burst = 0; burst < 10; burst++) {
            for (int i = 0; i < 8; i++) {
                struct topkd_select_request request = matrix_request(&matrix, i < 4);
                expect_ok(topkd_select_start(client, &request, NULL, &ops[i]));
            }
            if (burst == 5) {
                fake_kill(fake);
                fake_start(fake, NULL);
            }
            for (int i = 0; i < 8; i++) {
                struct topkd_select_request request = matrix_request(&matrix, i < 4);
                struct topkd_result result;
                expect_ok(topkd_op_wait(ops[i], WAIT_MS));
                expect_ok(topkd_op_finish(ops[i], &result));
                matrix_check(&matrix, &request, &result);
                topkd_result_release(client, &result);
            }
        }
    }
    assert_int_equal(num_renewals(client), 5);
    topkd_client_close(client);
    assert_false(has_buffers());
}

static void ct_74_a_session_is_waited_for(void **state)
{
    struct fake *fake = *state;
    fake_start(fake, NULL);
    struct topkd_client *client = fake_client(fake, NULL);
    expect_ok(topkd_client_wait(client, 1));
    fake_kill(fake);
    enum topkd_status status = TOPKD_OK;
    for (uint64_t end = now_ms() + WAIT_MS; status == TOPKD_OK && now_ms() < end;) {
        status = topkd_client_wait(client, 10); /* OK until it has seen that nobody is there */
    }
    expect_status(TOPKD_E_STALE_SESSION, status);
    expect_detail("not renewed in time", NULL);
    fake_start(fake, NULL);
    expect_ok(topkd_client_wait(client, WAIT_MS));
    assert_int_equal(num_renewals(client), 1);
    topkd_client_close(client);
    expect_status(TOPKD_E_INVALID, topkd_client_wait(NULL, 1));

    fake_kill(fake);
    fake_start(fake, NULL);
    client = fake_client(fake, &(struct topkd_client_options){.no_renew = true});
    fake_kill(fake);
    status = TOPKD_OK;
    for (uint64_t end = now_ms() + WAIT_MS; status == TOPKD_OK && now_ms() < end;) {
        status = topkd_client_wait(client, WAIT_MS);
    }
    expect_status(TOPKD_E_STALE_SESSION, status);
    expect_detail("no_renew is set", NULL);
    topkd_client_close(client);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, fake_set_up, fake_tear_down)
    const struct CMUnitTest tests[] = {
        TEST(ct_60_a_request_survives_its_worker),
        TEST(ct_61_a_session_that_was_reaped_is_renewed),
        TEST(ct_62_without_renewal_the_client_is_told),
        TEST(ct_63_a_worker_that_stays_away),
        TEST(ct_64_an_idle_client_is_ready_again_before_it_asks),
        TEST(ct_65_work_that_said_it_was_done_does_not_run_again),
        TEST(ct_66_without_a_semaphore_it_runs_again),
        TEST(ct_67_a_request_that_kills_its_worker_is_given_up),
        TEST(ct_68_a_draining_daemon_is_waited_for),
        TEST(ct_69_a_daemon_that_stays_draining_is_named),
        TEST(ct_70_a_daemon_that_refuses_this_client_now),
        TEST(ct_71_a_region_whose_name_was_reused_is_not_taken_over),
        TEST(ct_72_a_result_outlives_its_session),
        TEST(ct_73_a_stream_of_requests_through_five_deaths),
        TEST(ct_74_a_session_is_waited_for),
    };
    return cmocka_run_group_tests_name("ct_renew", tests, NULL, NULL);
}
