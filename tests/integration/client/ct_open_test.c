/* ct_open_test.c - finding a daemon and opening a session with it. */
#include "fake.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static enum topkd_status try_open(const struct fake *fake, uint32_t timeout_ms)
{
    const struct topkd_client_options options = {.url = fake->supervisor_url,
                                                 .timeout_ms = timeout_ms};
    struct topkd_client *client = (struct topkd_client *)1;
    enum topkd_status status = topkd_client_open(&options, &client);
    if (status == TOPKD_OK) {
        topkd_client_close(client);
    } else {
        assert_ptr_equal(client, (struct topkd_client *)1); /* set only on success */
    }
    return status;
}

static void ct_10_opens_and_describes_the_session(void **state)
{
    struct fake *fake = *state;
    fake_start(fake, NULL);
    struct topkd_client *client = fake_client(fake, NULL);
    struct topkd_client_info info;
    expect_ok(topkd_client_info(client, &info));
    assert_string_equal(info.device, "cpu");
    assert_string_equal(info.server_version, "fake");
    assert_int_equal(info.device_kind, TOPKD_DEVICE_CPU);
    assert_int_equal(info.epoch, 1);
    assert_int_equal(info.session, 1001);
    assert_int_equal(info.outstanding_max, 8);
    assert_int_equal(info.arena_slots, 4);
    assert_int_equal(info.semaphores_max, 16);
    assert_int_equal(info.num_renewals, 0);
    uint64_t round_trip_ns = 0;
    expect_ok(topkd_ping(client, &round_trip_ns));
    assert_in_range(round_trip_ns, 1, 2000000000);
    expect_ok(topkd_ping(client, NULL));
    topkd_client_close(client);
}

static void ct_11_without_a_daemon_tries_until_the_deadline(void **state)
{
    struct fake *fake = *state;
    uint64_t before_ms = now_ms();
    expect_status(TOPKD_E_UNREACHABLE, try_open(fake, 400));
    uint64_t took_ms = now_ms() - before_ms;
    assert_in_range(took_ms, 390, LATE_MS);
    expect_detail(fake->supervisor_url, "No such file", NULL);
}

static void ct_12_a_daemon_that_comes_late_is_found(void **state)
{
    struct fake *fake = *state;
    /* It takes at least two looks: the supervisor is there, its worker says that it starts. */
    fake_start(fake, "starting=3", NULL);
    expect_ok(try_open(fake, WAIT_MS));
    assert_true(fake_count(fake, WIRE_DEVICES) >= 4);
}

static void ct_13_a_device_that_never_gets_ready(void **state)
{
    struct fake *fake = *state;
    fake_start(fake, "starting=1000000", NULL);
    expect_status(TOPKD_E_UNREACHABLE, try_open(fake, SHORT_MS));
    expect_detail("cpu", "starting", NULL);
    fake_kill(fake);
    fake_start(fake, "state=2", NULL);
    expect_status(TOPKD_E_DRAINING, try_open(fake, SHORT_MS));
    fake_kill(fake);
    fake_start(fake, "state=3", NULL);
    expect_status(TOPKD_E_UNREACHABLE, try_open(fake, SHORT_MS));
    expect_detail("down", NULL);
}

static void ct_14_a_socket_that_nobody_answers_on(void **state)
{
    struct fake *fake = *state;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    (void)snprintf(address.sun_path, sizeof(address.sun_path), "%s/topkd.sock", fake->folder);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    expect_status(TOPKD_E_UNREACHABLE, try_open(fake, 300)); /* nobody listens */
    expect_detail("refused", NULL);
    assert_int_equal(listen(fd, 4), 0);
    uint64_t before_ms = now_ms();
    expect_status(TOPKD_E_TIMEOUT, try_open(fake, 300)); /* somebody who says nothing */
    assert_in_range(now_ms() - before_ms, 290, LATE_MS);
    close(fd);
}

static void ct_15_refusals_of_the_worker_come_through(void **state)
{
    struct fake *fake = *state;
    static const struct {
        const char *rule;
        enum topkd_status status;
    } cases[] = {
        {"hello:*:status:7", TOPKD_E_VERSION},   {"hello:*:status:11", TOPKD_E_NOT_PERMITTED},
        {"hello:*:status:13", TOPKD_E_LIMIT},    {"hello:*:status:19", TOPKD_E_NOT_VISIBLE},
        {"hello:*:status:14", TOPKD_E_DRAINING}, {"version=9", TOPKD_E_VERSION},
        {"hello:*:garbage", TOPKD_E_PROTOCOL},   {"hello:*:sequence", TOPKD_E_PROTOCOL},
        {"outstanding=0", TOPKD_E_PROTOCOL},     {"outstanding=100000", TOPKD_E_PROTOCOL},
        {"hello:*:silent", TOPKD_E_TIMEOUT},     {"devices:*:silent", TOPKD_E_TIMEOUT},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        fake_start(fake, cases[i].rule, NULL);
        expect_status(cases[i].status, try_open(fake, SHORT_MS));
        assert_true(strlen(topkd_detail()) > 0);
        fake_kill(fake);
    }
}

static void ct_16_a_busy_hello_is_said_again(void **state)
{
    struct fake *fake = *state;
    fake_start(fake, "hello:1:status:12", "hello:2:status:14", NULL);
    expect_ok(try_open(fake, WAIT_MS));
    assert_int_equal(fake_count(fake, WIRE_HELLO), 3);
}

static void ct_17_the_device_is_chosen_by_name(void **state)
{
    struct fake *fake = *state;
    fake_start(fake, NULL);
    struct topkd_client_options options = {.url = fake->supervisor_url, .device = "GPU-1"};
    struct topkd_client *client;
    expect_status(TOPKD_E_NO_DEVICE, topkd_client_open(&options, &client));
    expect_detail("GPU-1", "has cpu", NULL);
    setenv("TOPKD_DEVICE", "GPU-2", 1);
    options.device = NULL;
    expect_status(TOPKD_E_NO_DEVICE, topkd_client_open(&options, &client));
    expect_detail("GPU-2", NULL);
    options.device = "cpu"; /* the caller's word counts */
    expect_ok(topkd_client_open(&options, &client));
    topkd_client_close(client);
    unsetenv("TOPKD_DEVICE");
}

static void ct_18_the_url_comes_from_the_environment(void **state)
{
    struct fake *fake = *state;
    struct topkd_client *client;
    char folder[128], path[256], link_target[256];
    fake_start(fake, NULL);
    setenv("TOPKD_URL", fake->supervisor_url, 1);
    expect_ok(topkd_client_open(NULL, &client));
    topkd_client_close(client);
    unsetenv("TOPKD_URL");
    /* $XDG_RUNTIME_DIR/topkd/topkd.sock, here a link to the real one */
    (void)snprintf(folder, sizeof(folder), "%s/topkd", fake->folder);
    (void)snprintf(path, sizeof(path), "%s/topkd.sock", folder);
    (void)snprintf(link_target, sizeof(link_target), "%s/topkd.sock", fake->folder);
    assert_int_equal(mkdir(folder, 0700), 0);
    assert_int_equal(symlink(link_target, path), 0);
    setenv("XDG_RUNTIME_DIR", fake->folder, 1);
    expect_ok(topkd_client_open(NULL, &client));
    topkd_client_close(client);
    unsetenv("XDG_RUNTIME_DIR");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(folder), 0);
}

static void ct_19_bad_options_are_named(void **state)
{
    (void)state;
    struct topkd_client *client;
    char text[400];
    memset(text, 'x', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    memcpy(text, "ipc:///", 7);
    struct topkd_client_options options = {.url = "tcp://localhost:1"};
    expect_status(TOPKD_E_INVALID, topkd_client_open(&options, &client));
    expect_detail("tcp://localhost:1", "ipc:///", NULL);
    options.url = "ipc://relative";
    expect_status(TOPKD_E_INVALID, topkd_client_open(&options, &client));
    options.url = text;
    expect_status(TOPKD_E_INVALID, topkd_client_open(&options, &client));
    expect_detail("399", "127", NULL);
    text[6 + 110] = '\0'; /* fits a message, not a socket address */
    expect_status(TOPKD_E_INVALID, topkd_client_open(&options, &client));
    expect_detail("107", NULL);
    options.url = "ipc:///nowhere";
    options.device = text + 7;
    expect_status(TOPKD_E_INVALID, topkd_client_open(&options, &client));
    expect_detail("device", "47", NULL);
    options.device = NULL;
    options.name = text + 7;
    expect_status(TOPKD_E_INVALID, topkd_client_open(&options, &client));
    expect_detail("name", "63", NULL);
    expect_status(TOPKD_E_INVALID, topkd_client_open(&options, NULL));
    expect_detail("client_p", NULL);
}

/* As another user than root, which may open everything; in a child, as only that can change users
 * for good. First in main: ThreadSanitizer wants to fork before there are threads. */
static void ct_22_a_socket_of_others(void **state)
{
    struct fake *fake = *state;
    char path[128];
    int end;
    if (geteuid() != 0) {
        print_message("only root can become another user\n");
        skip();
    }
    fake_start(fake, NULL);
    (void)snprintf(path, sizeof(path), "%s/topkd.sock", fake->folder);
    assert_int_equal(chmod(path, 0600), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        if (setgid(65534) != 0 || setuid(65534) != 0) {
            _exit(2);
        }
        uint64_t before_ms = now_ms();
        if (try_open(fake, 2 * WAIT_MS) != TOPKD_E_NOT_PERMITTED ||
            now_ms() - before_ms > WAIT_MS) {
            _exit(3); /* or it waited for the deadline, which makes no sense here */
        }
        _exit(strstr(topkd_detail(), "uid 65534") && strstr(topkd_detail(), "socket.mode") ? 0 : 4);
    }
    assert_int_equal(waitpid(pid, &end, 0), pid);
    assert_true(WIFEXITED(end));
    assert_int_equal(WEXITSTATUS(end), 0);
}

static void ct_20_null_handles_are_answered(void **state)
{
    (void)state;
    expect_status(TOPKD_E_INVALID, topkd_ping(NULL, NULL));
    expect_detail("client is NULL", NULL);
    expect_status(TOPKD_E_INVALID, topkd_client_info(NULL, NULL));
    expect_status(TOPKD_E_INVALID, topkd_buffer_create(NULL, 1, NULL));
    expect_status(TOPKD_E_INVALID, topkd_region_register_shm(NULL, NULL, NULL));
    expect_status(TOPKD_E_INVALID, topkd_semaphore_create(NULL, NULL));
    expect_status(TOPKD_E_INVALID, topkd_semaphore_signal(NULL, 1));
    expect_status(TOPKD_E_INVALID, topkd_semaphore_wait(NULL, 1, 1));
    expect_status(TOPKD_E_INVALID, topkd_select(NULL, NULL, NULL));
    expect_status(TOPKD_E_INVALID, topkd_select_start(NULL, NULL, NULL, NULL));
    expect_status(TOPKD_E_INVALID, topkd_op_wait(NULL, 1));
    expect_status(TOPKD_E_INVALID, topkd_op_finish(NULL, NULL));
    expect_ok(topkd_region_unregister(NULL));
    topkd_client_close(NULL);
    topkd_buffer_destroy(NULL);
    topkd_semaphore_destroy(NULL);
    topkd_result_release(NULL, NULL);
    assert_null(topkd_buffer_data(NULL));
    assert_null(topkd_buffer_region(NULL));
    assert_int_equal(topkd_buffer_size_bytes(NULL), 0);
    assert_int_equal(topkd_semaphore_value(NULL), 0);
    assert_int_equal(topkd_client_fd(NULL), -1);
    assert_null(topkd_op_next(NULL));
    assert_null(topkd_op_user(NULL));
}

static void ct_21_every_status_has_words(void **state)
{
    (void)state;
    for (int number = TOPKD_OK; number <= TOPKD_E_CLOSED; number++) {
        enum topkd_status status = (enum topkd_status)number;
        assert_true(strlen(topkd_strerror(status)) > 1);
        assert_true(strlen(topkd_strhint(status)) > 1);
        assert_int_equal(strncmp(topkd_status_name(status), "TOPKD_", 6), 0);
    }
    assert_non_null(topkd_strerror((enum topkd_status)9999));
    assert_string_equal(topkd_version(), TOPKD_TEST_VERSION);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(ct_22_a_socket_of_others, fake_set_up, fake_tear_down),
        cmocka_unit_test_setup_teardown(ct_10_opens_and_describes_the_session, fake_set_up,
                                        fake_tear_down),
        cmocka_unit_test_setup_teardown(ct_11_without_a_daemon_tries_until_the_deadline,
                                        fake_set_up, fake_tear_down),
        cmocka_unit_test_setup_teardown(ct_12_a_daemon_that_comes_late_is_found, fake_set_up,
                                        fake_tear_down),
        cmocka_unit_test_setup_teardown(ct_13_a_device_that_never_gets_ready, fake_set_up,
                                        fake_tear_down),
        cmocka_unit_test_setup_teardown(ct_14_a_socket_that_nobody_answers_on, fake_set_up,
                                        fake_tear_down),
        cmocka_unit_test_setup_teardown(ct_15_refusals_of_the_worker_come_through, fake_set_up,
                                        fake_tear_down),
        cmocka_unit_test_setup_teardown(ct_16_a_busy_hello_is_said_again, fake_set_up,
                                        fake_tear_down),
        cmocka_unit_test_setup_teardown(ct_17_the_device_is_chosen_by_name, fake_set_up,
                                        fake_tear_down),
        cmocka_unit_test_setup_teardown(ct_18_the_url_comes_from_the_environment, fake_set_up,
                                        fake_tear_down),
        cmocka_unit_test(ct_19_bad_options_are_named),
        cmocka_unit_test(ct_20_null_handles_are_answered),
        cmocka_unit_test(ct_21_every_status_has_words),
    };
    return cmocka_run_group_tests_name("ct_open", tests, NULL, NULL);
}
