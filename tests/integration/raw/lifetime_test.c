/* What becomes of the worker under its sessions: draining, a supervisor that goes, new settings. */
#include "raw.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/wait.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>

static struct wire_reply reply;

/* New work is refused by name, what is in flight is answered, then the process ends with 0. */
static void it_09_drain_finishes_what_is_in_flight(void **state)
{
    (void)state;
    struct raw_worker worker;
    struct raw_client client, late;
    struct raw_shm shm;
    struct raw_pending pending;
    raw_worker_start(&worker, "", NULL);
    raw_open(&client, &worker);
    raw_connect(&late, &worker);
    raw_shm_create(&shm, 8192);
    raw_register(&client, &shm, WIRE_ACCESS_READ_WRITE);
    struct wire_request select = raw_select_request(&client, &shm, &shm, 1, 8, 2);
    select.u.select.indices.offset = 4096;
    select.u.select.wait = (struct wire_semaphore_ref){.index = 0, .value = 1};
    raw_start(&client, &select, &pending);

    struct wire_request drain = raw_request(&client, WIRE_DRAIN);
    drain.u.drain.deadline_ms = 20000;
    assert_int_equal(raw_call(&client, &drain, &reply), TOPKD_OK);
    struct wire_request more = select;
    more.sequence = ++client.sequence;
    assert_int_equal(raw_call(&client, &more, &reply), TOPKD_E_DRAINING);
    struct wire_request reg = raw_register_request(&client, &shm, WIRE_ACCESS_READ);
    assert_int_equal(raw_call(&client, &reg, &reply), TOPKD_E_DRAINING);
    assert_int_equal(raw_hello(&late, &reply), TOPKD_E_DRAINING);

    raw_signal(&client, 0, 1);
    assert_true(raw_finish(&pending, RAW_TIMEOUT_MS, &reply));
    assert_int_equal(reply.status, TOPKD_OK);
    int status = raw_worker_wait(&worker);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    raw_shm_destroy(&shm);
    raw_disconnect(&late);
    raw_disconnect(&client);
}

static void it_10_drain_cancels_at_its_deadline(void **state)
{
    (void)state;
    struct raw_worker worker;
    struct raw_client client;
    struct raw_shm shm;
    struct raw_pending pending;
    raw_worker_start(&worker, "", NULL);
    raw_open(&client, &worker);
    raw_shm_create(&shm, 8192);
    raw_register(&client, &shm, WIRE_ACCESS_READ_WRITE);
    struct wire_request select = raw_select_request(&client, &shm, &shm, 1, 8, 2);
    select.u.select.indices.offset = 4096;
    select.u.select.wait = (struct wire_semaphore_ref){.index = 0, .value = 1};
    select.u.select.signal = (struct wire_semaphore_ref){.index = 1, .value = 1};
    raw_start(&client, &select, &pending);
    struct wire_request drain = raw_request(&client, WIRE_DRAIN);
    drain.u.drain.deadline_ms = 100;
    assert_int_equal(raw_call(&client, &drain, &reply), TOPKD_OK);
    assert_true(raw_finish(&pending, RAW_TIMEOUT_MS, &reply));
    assert_int_equal(reply.status, TOPKD_E_DRAINING);
    int status = raw_worker_wait(&worker);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_int_equal(client.semaphores[1].value, 1);
    assert_int_equal(client.semaphores[1].failed_status, TOPKD_E_DRAINING);
    raw_shm_destroy(&shm);
    raw_disconnect(&client);
}

static void it_11_the_worker_ends_with_its_supervisor(void **state)
{
    (void)state;
    struct raw_worker worker;
    struct raw_client client;
    raw_worker_start(&worker, "", NULL);
    raw_open(&client, &worker);
    raw_expect_selects(&client);
    shutdown(worker.control_fd, SHUT_RDWR);
    int status = raw_worker_wait(&worker);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    raw_disconnect(&client);
}

/* Live settings change under open sessions; a text that does not parse changes nothing. */
static void it_12_settings_are_reloaded(void **state)
{
    (void)state;
    struct raw_worker worker;
    struct raw_client clients[3];
    raw_worker_start(&worker, "limits: {sessions_max: 1}", NULL);
    raw_open(&clients[0], &worker);
    raw_connect(&clients[1], &worker);
    raw_connect(&clients[2], &worker);
    assert_int_equal(raw_hello(&clients[1], &reply), TOPKD_E_LIMIT);
    raw_worker_reload(&worker, "limits: {sessions_max: 0}");
    raw_sleep_ms(50);
    assert_int_equal(raw_hello(&clients[1], &reply), TOPKD_E_LIMIT);
    /* More sessions; fewer places than before; and what needs a restart stays as it was. */
    raw_worker_reload(&worker,
                      "limits: {sessions_max: 2, queue_max: 4096, semaphores: 7, hello_ms: 100}");
    uint64_t end_ms = raw_now_ms() + RAW_TIMEOUT_MS;
    enum topkd_status status;
    while ((status = raw_hello(&clients[1], &reply)) == TOPKD_E_LIMIT)
        assert_true(raw_now_ms() < end_ms);
    assert_int_equal(status, TOPKD_OK);
    assert_int_equal(clients[1].hello.limits.semaphores, clients[0].hello.limits.semaphores);
    raw_expect_selects(&clients[0]);
    raw_expect_selects(&clients[1]);
    raw_disconnect(&clients[2]);
    raw_disconnect(&clients[1]);
    raw_disconnect(&clients[0]);
    raw_worker_stop(&worker);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_09_drain_finishes_what_is_in_flight),
        cmocka_unit_test(it_10_drain_cancels_at_its_deadline),
        cmocka_unit_test(it_11_the_worker_ends_with_its_supervisor),
        cmocka_unit_test(it_12_settings_are_reloaded),
    };
    return cmocka_run_group_tests_name("worker's lifetime", tests, NULL, NULL);
}
