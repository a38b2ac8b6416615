/* The worker's channel to its supervisor: signs of life while settings change. */
#include "raw.h"
#include "server/control.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <unistd.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>

#define RELOAD_MS 50 /* far below the heartbeat's interval here */

/* Takes what is there; how many of it are heartbeats. */
static uint32_t take_heartbeats(const struct raw_worker *worker)
{
    uint32_t num = 0;
    for (;;) {
        struct control_message message;
        int fd = -1, result = control_receive(worker->control_fd, &message, &fd);
        if (result <= 0) {
            assert_int_equal(result, -EAGAIN);
            return num;
        }
        num += message.kind == CONTROL_HEARTBEAT;
    }
}

/* A program that has the settings read again and again must not silence the worker, which would be
 * killed for it. */
static void it_14_reloads_without_end_leave_the_heartbeat(void **state)
{
    (void)state;
    struct raw_worker worker;
    const char *settings = "worker: {heartbeat_ms: 400, hang_ms: 1200}";
    raw_worker_start(&worker, settings, NULL);
    raw_sleep_ms(RELOAD_MS);
    (void)take_heartbeats(&worker); /* those of its start */
    uint64_t end_ms = raw_now_ms() + RAW_TIMEOUT_MS;
    uint32_t num = 0;
    while (num < 2 && raw_now_ms() < end_ms) {
        raw_worker_reload(&worker, settings);
        raw_sleep_ms(RELOAD_MS);
        num += take_heartbeats(&worker);
    }
    assert_true(num >= 2);
    raw_worker_stop(&worker);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_14_reloads_without_end_leave_the_heartbeat),
    };
    return cmocka_run_group_tests_name("worker control", tests, NULL, NULL);
}
