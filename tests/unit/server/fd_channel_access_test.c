/* fd_channel_access_test.c - who may come to the side socket: other users, lists, access lists. */
#include "server/fd_channel.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <endian.h>
#include <errno.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#define WAIT_MS 30000 /* choice: far above the second that a list needs, also with sanitizers */
#define STRANGER 65534u

struct fixture {
    char folder[64], path[96], like[96];
    int like_fd;
    struct gate gate;
    struct fd_channel *channel;
};

static int bind_at(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    assert_int_equal(chmod(path, 0600), 0);
    return fd;
}

static int setup(void **state)
{
    if (geteuid() != 0) /* nobody else can be another user */
        return 0;
    struct fixture *fixture = calloc(1, sizeof(*fixture));
    assert_non_null(fixture);
    strcpy(fixture->folder, "/tmp/fd_channel_XXXXXX");
    assert_non_null(mkdtemp(fixture->folder));
    assert_int_equal(chmod(fixture->folder, 0711), 0);
    snprintf(fixture->path, sizeof(fixture->path), "%s/x.fds", fixture->folder);
    snprintf(fixture->like, sizeof(fixture->like), "%s/main.sock", fixture->folder);
    fixture->like_fd = bind_at(fixture->like);
    gate_init(&fixture->gate, &(struct settings_access){.uids = {.num_ids = 0}}, 0);
    *state = fixture;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *fixture = *state;
    if (fixture == NULL)
        return 0;
    fd_channel_close(fixture->channel);
    gate_fini(&fixture->gate);
    close(fixture->like_fd);
    assert_int_equal(unlink(fixture->like), 0);
    assert_int_equal(rmdir(fixture->folder), 0);
    free(fixture);
    return 0;
}

static void open_channel(struct fixture *fixture, uint32_t mode)
{
    char detail[WIRE_DETAIL_SIZE] = "";
    const struct fd_channel_config config = {
        .path = fixture->path,
        .rights = {.mode = mode, .gid = -1, .like = fixture->like},
        .gate = &fixture->gate};
    if (fd_channel_open(&config, &fixture->channel, detail) != TOPKD_OK)
        fail_msg("%s", detail);
}

/* What the child of ask_as says: an answer's status, or 100 and the errno of connect. */
static int ask(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct fd_answer answer;
    strcpy(address.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return 98;
    if (connect(fd, (struct sockaddr *)&address, sizeof(address)) != 0)
        return 100 + errno;
    /* No ticket: who is let in is told so. A refusal comes without being asked. */
    const struct fd_packet packet = {.magic = FD_MAGIC, .version = FD_VERSION, .kind = 7};
    (void)send(fd, &packet, sizeof(packet), MSG_NOSIGNAL);
    ssize_t size;
    do
        size = recv(fd, &answer, sizeof(answer), 0);
    while (size < 0 && errno == ECONNRESET); /* it closed before it read ours: said once */
    return size == (ssize_t)sizeof(answer) ? (int)answer.status : 99;
}

static int ask_as(const struct fixture *fixture, uid_t uid, gid_t group)
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        if (setgroups(1, &group) != 0 || setgid(STRANGER) != 0 || setuid(uid) != 0)
            _exit(97);
        _exit(ask(fixture->path));
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void wait_for(const struct fixture *fixture, uid_t uid, int expected)
{
    int got = ask_as(fixture, uid, STRANGER);
    for (int i = 0; i < WAIT_MS / 20 && got != expected; i++) {
        usleep(20000);
        got = ask_as(fixture, uid, STRANGER);
    }
    assert_int_equal(got, expected);
}

/* The form of the kernel: version 2; owner rw, `uid` rw, group -, mask rw, others -. */
static bool set_acl(const char *path, uint32_t uid)
{
    const struct {
        uint32_t version;
        struct {
            uint16_t tag, mode;
            uint32_t id;
        } entries[5];
    } acl = {.version = htole32(2),
             .entries = {{htole16(0x01), htole16(6), UINT32_MAX},
                         {htole16(0x02), htole16(6), htole32(uid)},
                         {htole16(0x04), 0, UINT32_MAX},
                         {htole16(0x10), htole16(6), UINT32_MAX},
                         {htole16(0x20), 0, UINT32_MAX}}};
    return setxattr(path, "system.posix_acl_access", &acl, sizeof(acl), 0) == 0;
}

static void the_lists_of_the_settings_count(void **state)
{
    struct fixture *fixture = *state;
    struct settings_access access = {.uids = {.num_ids = 1, .ids = {1234}}};
    if (fixture == NULL)
        skip();
    gate_set(&fixture->gate, &access);
    open_channel(fixture, 0666);
    assert_int_equal(ask_as(fixture, STRANGER, STRANGER), TOPKD_E_NOT_PERMITTED);
    assert_int_equal(ask_as(fixture, 1234, STRANGER), TOPKD_E_PROTOCOL); /* let in */
    assert_int_equal(ask_as(fixture, 0, STRANGER), TOPKD_E_PROTOCOL);
    access = (struct settings_access){.gids = {.num_ids = 1, .ids = {4242}}}; /* a reload */
    gate_set(&fixture->gate, &access);
    assert_int_equal(ask_as(fixture, 1234, STRANGER), TOPKD_E_NOT_PERMITTED);
    assert_int_equal(ask_as(fixture, 1234, 4242), TOPKD_E_PROTOCOL); /* a supplementary group */
}

/* More of them than there are places. */
static void refused_peers_take_no_place(void **state)
{
    struct fixture *fixture = *state;
    struct settings_access access = {.uids = {.num_ids = 1, .ids = {1234}}};
    if (fixture == NULL)
        skip();
    gate_set(&fixture->gate, &access);
    open_channel(fixture, 0666);
    for (uint32_t i = 0; i < FD_CHANNEL_CONNECTIONS_MAX + 4; i++)
        assert_int_equal(ask_as(fixture, STRANGER, STRANGER), TOPKD_E_NOT_PERMITTED);
    assert_int_equal(ask_as(fixture, 1234, STRANGER), TOPKD_E_PROTOCOL);
}

static void the_mode_decides(void **state)
{
    struct fixture *fixture = *state;
    if (fixture == NULL)
        skip();
    open_channel(fixture, 0600);
    assert_int_equal(ask_as(fixture, STRANGER, STRANGER), 100 + EACCES);
    assert_int_equal(ask_as(fixture, 0, STRANGER), TOPKD_E_PROTOCOL);
}

static void the_access_list_of_the_main_socket_counts(void **state)
{
    struct fixture *fixture = *state;
    if (fixture == NULL)
        skip();
    if (!set_acl(fixture->like, STRANGER)) {
        print_message("no access lists in %s: %s\n", fixture->folder, strerror(errno));
        skip();
    }
    open_channel(fixture, 0600);
    assert_int_equal(ask_as(fixture, STRANGER, STRANGER), TOPKD_E_PROTOCOL); /* let in */
    assert_int_equal(ask_as(fixture, 1234, STRANGER), 100 + EACCES);
    assert_true(set_acl(fixture->like, 1234)); /* the operator thinks again */
    wait_for(fixture, 1234, TOPKD_E_PROTOCOL);
    assert_int_equal(ask_as(fixture, STRANGER, STRANGER), 100 + EACCES);
    assert_int_equal(removexattr(fixture->like, "system.posix_acl_access"), 0);
    wait_for(fixture, 1234, 100 + EACCES);
    struct stat info;
    assert_int_equal(stat(fixture->path, &info), 0);
    assert_int_equal(info.st_mode & 07777, 0600);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_lists_of_the_settings_count, setup, teardown),
        cmocka_unit_test_setup_teardown(refused_peers_take_no_place, setup, teardown),
        cmocka_unit_test_setup_teardown(the_mode_decides, setup, teardown),
        cmocka_unit_test_setup_teardown(the_access_list_of_the_main_socket_counts, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
