/* The channel between supervisor and worker, both ends in this process. */
#include "server/control.h"
#include "topkd_rights.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static int fds[2];

static int set_up(void **state)
{
    (void)state;
    return control_pair(fds);
}

static int tear_down(void **state)
{
    (void)state;
    close(fds[0]);
    close(fds[1]);
    return 0;
}

static void ct_01_messages_arrive_whole_and_in_order(void **state)
{
    (void)state;
    static const enum control_kind kinds[] = {CONTROL_READY, CONTROL_HEARTBEAT, CONTROL_DRAINED,
                                              CONTROL_DRAIN, CONTROL_RELOAD};
    struct control_message message, received;
    int fd = 0;
    for (uint32_t i = 0; i < 5; i++) {
        message = control_message_make(kinds[i], 1000 + i);
        message.u.heartbeat.canary_age_ms = CONTROL_CANARY_NEVER - i;
        assert_int_equal(control_send(fds[i & 1], &message, -1), 0);
    }
    for (uint32_t i = 0; i < 5; i++) {
        memset(&received, 0xee, sizeof received);
        assert_int_equal(control_receive(fds[~i & 1], &received, &fd), 1);
        assert_int_equal(fd, -1);
        assert_int_equal(received.kind, kinds[i]);
        assert_true(received.epoch == 1000 + i);
        assert_true(received.u.heartbeat.canary_age_ms == CONTROL_CANARY_NEVER - i);
        assert_string_not_equal(control_kind_name(kinds[i]), "unknown");
    }
    assert_int_equal(control_receive(fds[0], &received, &fd), -EAGAIN);
    assert_string_equal(control_kind_name((enum control_kind)99), "unknown");
}

static void ct_02_descriptor_travels(void **state)
{
    (void)state;
    struct control_message message = control_message_make(CONTROL_RELOAD, 1);
    struct stat sent, got;
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC), fd = -1;
    assert_int_equal(control_send(fds[0], &message, null), 0);
    assert_int_equal(control_receive(fds[1], &message, &fd), 1);
    assert_true(fd >= 0 && fd != null);
    assert_int_equal(fstat(null, &sent), 0);
    assert_int_equal(fstat(fd, &got), 0);
    assert_true(sent.st_rdev == got.st_rdev && sent.st_ino == got.st_ino);
    assert_true((fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
    close(fd);
    close(null);
}

static void ct_03_end_of_file_after_the_last_message(void **state)
{
    (void)state;
    struct control_message message = control_message_make(CONTROL_DRAINED, 1);
    int fd = -1;
    assert_int_equal(control_send(fds[0], &message, -1), 0);
    close(fds[0]);
    assert_int_equal(control_receive(fds[1], &message, &fd), 1);
    assert_int_equal(control_receive(fds[1], &message, &fd), 0);
    assert_int_equal(control_receive(fds[1], &message, &fd), 0);
    int error = control_send(fds[1], &message, -1); /* and no SIGPIPE */
    assert_true(error == -EPIPE || error == -ECONNRESET);
    fds[0] = -1;
}

/* Closed with packets of ours unread: the kernel says "reset", which means the same. */
static void ct_04_end_of_file_with_unread_messages(void **state)
{
    (void)state;
    struct control_message message = control_message_make(CONTROL_HEARTBEAT, 1);
    int fd = -1;
    assert_int_equal(control_send(fds[1], &message, -1), 0);
    close(fds[0]);
    fds[0] = -1;
    int result = control_receive(fds[1], &message, &fd);
    assert_int_equal(result, 0);
}

/* Room for one has padding, in which a second would find a place unless it is kept out. */
static void ct_07_a_second_descriptor_is_not_let_in(void **state)
{
    (void)state;
    struct control_message message = control_message_make(CONTROL_RELOAD, 1);
    const int two[] = {fds[0], fds[1]};
    int fd = -1, free_fd = dup(fds[0]);
    close(free_fd);
    assert_true(rights_send(fds[0], &message, sizeof message, two, 2) > 0);
    assert_int_equal(control_receive(fds[1], &message, &fd), -EPROTO);
    assert_int_equal(fd, -1);
    assert_int_equal(dup(fds[0]), free_fd); /* the lowest free number is the same as before */
    close(free_fd);
}

static void ct_05_strangers_are_refused(void **state)
{
    (void)state;
    struct control_message message = control_message_make(CONTROL_READY, 1), received;
    int fd = -1;
    char big[sizeof message + 1] = {0};

    assert_int_equal(send(fds[0], &message, sizeof message - 1, 0), sizeof message - 1);
    assert_int_equal(control_receive(fds[1], &received, &fd), -EPROTO);
    memcpy(big, &message, sizeof message);
    assert_int_equal(send(fds[0], big, sizeof big, 0), sizeof big);
    assert_int_equal(control_receive(fds[1], &received, &fd), -EPROTO);
    message.version++;
    assert_int_equal(control_send(fds[0], &message, -1), 0);
    assert_int_equal(control_receive(fds[1], &received, &fd), -EPROTO);
    message = control_message_make(CONTROL_READY, 1);
    message.magic = 0;
    assert_int_equal(control_send(fds[0], &message, STDIN_FILENO), 0);
    int probe = dup(STDIN_FILENO); /* the number that a leaked descriptor would take */
    close(probe);
    assert_int_equal(control_receive(fds[1], &received, &fd), -EPROTO);
    int again = dup(STDIN_FILENO);
    assert_int_equal(again, probe);
    close(again);

    message = control_message_make(CONTROL_READY, 2);
    assert_int_equal(control_send(fds[0], &message, -1), 0); /* the channel still works */
    assert_int_equal(control_receive(fds[1], &received, &fd), 1);
}

static void ct_06_full_channel_does_not_block(void **state)
{
    (void)state;
    struct control_message message = control_message_make(CONTROL_HEARTBEAT, 1);
    int num_sent = 0, error = 0, fd = -1;
    while ((error = control_send(fds[0], &message, -1)) == 0 && num_sent < 100000)
        num_sent++;
    assert_int_equal(error, -EAGAIN);
    assert_true(num_sent > 8); /* seconds of heartbeats fit */
    for (int i = 0; i < num_sent; i++)
        assert_int_equal(control_receive(fds[1], &message, &fd), 1);
    assert_int_equal(control_receive(fds[1], &message, &fd), -EAGAIN);
}

int main(void)
{
#define CONTROL_TEST(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        CONTROL_TEST(ct_01_messages_arrive_whole_and_in_order),
        CONTROL_TEST(ct_02_descriptor_travels),
        CONTROL_TEST(ct_03_end_of_file_after_the_last_message),
        CONTROL_TEST(ct_04_end_of_file_with_unread_messages),
        CONTROL_TEST(ct_05_strangers_are_refused),
        CONTROL_TEST(ct_06_full_channel_does_not_block),
        CONTROL_TEST(ct_07_a_second_descriptor_is_not_let_in),
    };
    return cmocka_run_group_tests_name("control", tests, NULL, NULL);
}
