/* fd_channel_test.c - descriptors between processes: tickets, who may use them, limits. */
#include "server/fd_channel.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

struct fixture {
    char folder[64], path[96], like[96];
    struct gate gate;
    struct fd_channel *channel;
    struct peer self;
};

static int setup_with(void **state, uint32_t ticket_ms)
{
    struct fixture *fixture = calloc(1, sizeof(*fixture));
    char detail[256] = "";
    assert_non_null(fixture);
    strcpy(fixture->folder, "/tmp/fd_channel_XXXXXX");
    assert_non_null(mkdtemp(fixture->folder));
    snprintf(fixture->path, sizeof(fixture->path), "%s/x.fds", fixture->folder);
    snprintf(fixture->like, sizeof(fixture->like), "%s/main", fixture->folder);
    fixture->self = (struct peer){.uid = geteuid(), .gid = getegid(), .pid = getpid()};
    gate_init(&fixture->gate, &(struct settings_access){.uids = {.num_ids = 0}}, geteuid());
    struct fd_channel_config config = {.path = fixture->path,
                                       .rights = {.mode = 0600, .gid = -1, .like = fixture->like},
                                       .gate = &fixture->gate,
                                       .ticket_ms = ticket_ms};
    assert_int_equal(fd_channel_open(&config, &fixture->channel, detail), TOPKD_OK);
    *state = fixture;
    return 0;
}

static int setup(void **state)
{
    return setup_with(state, 0);
}

static int setup_short(void **state)
{
    return setup_with(state, 50);
}

static int teardown(void **state)
{
    struct fixture *fixture = *state;
    fd_channel_close(fixture->channel);
    gate_fini(&fixture->gate);
    assert_int_equal(access(fixture->path, F_OK), -1); /* the socket file is gone */
    (void)unlink(fixture->like);
    assert_int_equal(rmdir(fixture->folder), 0);
    free(fixture);
    return 0;
}

static int connect_to(const struct fixture *fixture)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strcpy(address.sun_path, fixture->path);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    return fd;
}

/* The channel's thread takes in and closes descriptors in its own time: up to a minute. */
static void wait_for_fds(struct fd_channel *channel, uint32_t num_fds)
{
    for (int i = 0; i < 6000 && fd_channel_num_fds(channel) != num_fds; i++)
        usleep(10000);
    assert_int_equal(fd_channel_num_fds(channel), num_fds);
}

static int memory_file(off_t size)
{
    int fd = memfd_create("test", MFD_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, size), 0);
    return fd;
}

static void send_packet(int fd, const void *bytes, size_t size, const int *fds, uint32_t num_fds)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int) * FD_PACKET_FDS_MAX)];
    } control;
    struct iovec iov = {.iov_base = (void *)bytes, .iov_len = size};
    struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};
    memset(&control, 0, sizeof(control));
    if (num_fds > 0) {
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE(sizeof(int) * num_fds);
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int) * num_fds);
        memcpy(CMSG_DATA(header), fds, sizeof(int) * num_fds);
    }
    assert_int_equal(sendmsg(fd, &message, MSG_NOSIGNAL), (ssize_t)size);
}

/* The answer and its descriptor, or -1. */
static struct fd_answer receive(int fd, int *fd_p)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    struct fd_answer answer;
    struct iovec iov = {.iov_base = &answer, .iov_len = sizeof(answer)};
    struct msghdr message = {.msg_iov = &iov,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof(control.bytes)};
    assert_int_equal(recvmsg(fd, &message, MSG_CMSG_CLOEXEC), (ssize_t)sizeof(answer));
    assert_int_equal(answer.magic, FD_MAGIC);
    *fd_p = -1;
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (header)
        memcpy(fd_p, CMSG_DATA(header), sizeof(int));
    return answer;
}

static struct fd_packet offer_of(uint32_t num_fds, bool is_last)
{
    struct fd_packet packet = {.magic = FD_MAGIC,
                               .version = FD_VERSION,
                               .kind = FD_OFFER,
                               .num_fds = num_fds,
                               .is_last = is_last};
    for (uint32_t i = 0; i < num_fds; i++)
        packet.size_bytes[i] = 4096u * (i + 1);
    return packet;
}

/* Offers `num_packets` packets of `num_fds` descriptors each. */
static struct fd_answer offer(const struct fixture *fixture, uint32_t num_packets, uint32_t num_fds)
{
    int socket_fd = connect_to(fixture), extra;
    int fds[FD_PACKET_FDS_MAX];
    for (uint32_t i = 0; i < num_fds; i++)
        fds[i] = memory_file(4096 * (off_t)(i + 1));
    for (uint32_t i = 0; i < num_packets; i++) {
        struct fd_packet packet = offer_of(num_fds, i + 1 == num_packets);
        send_packet(socket_fd, &packet, sizeof(packet), fds, num_fds);
    }
    struct fd_answer answer = receive(socket_fd, &extra);
    assert_int_equal(extra, -1);
    for (uint32_t i = 0; i < num_fds; i++)
        close(fds[i]);
    close(socket_fd);
    return answer;
}

static void a_ticket_gives_the_descriptors_in_order(void **state)
{
    struct fixture *fixture = *state;
    struct fd_bundle *bundle;
    char detail[256] = "";
    struct fd_answer answer = offer(fixture, 2, 40);
    assert_int_equal(answer.status, TOPKD_OK);
    assert_int_equal(answer.num_fds, 80);
    assert_int_equal(fd_channel_num_fds(fixture->channel), 80);
    assert_int_equal(
        fd_channel_take(fixture->channel, answer.ticket, &fixture->self, &bundle, detail),
        TOPKD_OK);
    assert_int_equal(bundle->num_fds, 80);
    for (uint32_t i = 0; i < 80; i++) {
        struct stat info;
        assert_int_equal(fstat(bundle->entries[i].fd, &info), 0);
        assert_int_equal(info.st_size, 4096 * (i % 40 + 1));
        assert_int_equal(bundle->entries[i].size_bytes, 4096 * (i % 40 + 1));
    }
    fd_bundle_destroy(bundle);
    assert_int_equal(fd_channel_num_fds(fixture->channel), 0);
}

static void a_ticket_is_good_once_and_for_its_process(void **state)
{
    struct fixture *fixture = *state;
    struct fd_bundle *bundle;
    char detail[256] = "";
    struct fd_answer answer = offer(fixture, 1, 1);
    struct peer other = fixture->self;
    other.pid++;
    assert_int_equal(fd_channel_take(fixture->channel, answer.ticket, &other, &bundle, detail),
                     TOPKD_E_MAP_FAILED);
    other = fixture->self;
    other.uid++;
    assert_int_equal(fd_channel_take(fixture->channel, answer.ticket, &other, &bundle, detail),
                     TOPKD_E_MAP_FAILED);
    assert_int_equal(
        fd_channel_take(fixture->channel, answer.ticket, &fixture->self, &bundle, detail),
        TOPKD_OK);
    fd_bundle_destroy(bundle);
    assert_int_equal(
        fd_channel_take(fixture->channel, answer.ticket, &fixture->self, &bundle, detail),
        TOPKD_E_MAP_FAILED);
}

static void a_ticket_expires(void **state)
{
    struct fixture *fixture = *state;
    struct fd_bundle *bundle;
    char detail[256] = "";
    struct fd_answer answer = offer(fixture, 1, 3);
    wait_for_fds(fixture->channel, 0);
    assert_int_equal(
        fd_channel_take(fixture->channel, answer.ticket, &fixture->self, &bundle, detail),
        TOPKD_E_MAP_FAILED);
}

static void foreign_packets_are_refused(void **state)
{
    struct fixture *fixture = *state;
    struct fd_packet packets[5];
    for (int i = 0; i < 5; i++)
        packets[i] = offer_of(1, true);
    packets[0].magic++;
    packets[1].version++;
    packets[2].kind = 7;
    packets[3].num_fds = 2; /* one comes along */
    packets[4].num_fds = 0;
    for (int i = 0; i < 6; i++) {
        int socket_fd = connect_to(fixture), fd = memory_file(4096), extra;
        if (i < 5)
            send_packet(socket_fd, &packets[i], sizeof(packets[i]), &fd, 1);
        else
            send_packet(socket_fd, &packets[0], 8, &fd, 1);
        struct fd_answer answer = receive(socket_fd, &extra);
        assert_int_equal(answer.status, TOPKD_E_PROTOCOL);
        wait_for_fds(fixture->channel, 0);
        close(fd);
        close(socket_fd);
    }
}

static void limits_hold(void **state)
{
    struct fixture *fixture = *state;
    struct fd_answer answer = offer(fixture, 17, FD_PACKET_FDS_MAX); /* 1088 of 1024 */
    assert_int_equal(answer.status, TOPKD_E_LIMIT);
    wait_for_fds(fixture->channel, 0);
    for (uint32_t i = 0; i < FD_CHANNEL_PEER_TICKETS_MAX; i++) {
        answer = offer(fixture, 1, 1);
        assert_int_equal(answer.status, TOPKD_OK);
    }
    answer = offer(fixture, 1, 1);
    assert_int_equal(answer.status, TOPKD_E_BUSY);
    wait_for_fds(fixture->channel, FD_CHANNEL_PEER_TICKETS_MAX); /* closed after the answer */
}

static void a_peer_that_hangs_up_leaves_nothing(void **state)
{
    struct fixture *fixture = *state;
    int socket_fd = connect_to(fixture), fd = memory_file(4096);
    struct fd_packet packet = offer_of(1, false);
    send_packet(socket_fd, &packet, sizeof(packet), &fd, 1);
    wait_for_fds(fixture->channel, 1);
    close(socket_fd);
    wait_for_fds(fixture->channel, 0);
    close(fd);
}

static uint64_t processor_ms(void)
{
    struct timespec used;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return (uint64_t)used.tv_sec * 1000u + (uint64_t)used.tv_nsec / 1000000u;
}

/* Who comes then waits, and no processor is spent on that. */
static void without_descriptors_the_thread_sleeps(void **state)
{
    struct fixture *fixture = *state;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strcpy(address.sun_path, fixture->path);
    int fd = memory_file(4096), socket_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    int lowest = dup(fd);
    assert_true(socket_fd >= 0 && lowest >= 0);
    close(lowest);
    struct rlimit before, none;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = before;
    none.rlim_cur = (rlim_t)lowest; /* every number below is taken */
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    int result = connect(socket_fd, (struct sockaddr *)&address, sizeof(address));
    uint64_t from_ms = processor_ms();
    struct pollfd answer = {.fd = socket_fd, .events = POLLIN};
    int num_answers = poll(&answer, 1, 600);
    uint64_t used_ms = processor_ms() - from_ms;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(result, 0);
    assert_int_equal(num_answers, 0);
    assert_in_range(used_ms, 0, 150);
    struct fd_packet packet = offer_of(1, true);
    send_packet(socket_fd, &packet, sizeof(packet), &fd, 1);
    int extra;
    assert_int_equal(receive(socket_fd, &extra).status, TOPKD_OK);
    wait_for_fds(fixture->channel, 1);
    close(socket_fd);
    close(fd);
}

static void published_descriptors_reach_their_process_only(void **state)
{
    struct fixture *fixture = *state;
    char detail[256] = "";
    struct peer other = fixture->self;
    other.pid++;
    struct fd_packet packets[2];
    int fd = memory_file(8192);
    for (int i = 0; i < 2; i++) {
        packets[i] = (struct fd_packet){.magic = FD_MAGIC, .version = FD_VERSION, .kind = FD_FETCH};
        assert_int_equal(fd_channel_publish(fixture->channel, fd, i ? &other : &fixture->self,
                                            packets[i].ticket, detail),
                         TOPKD_OK);
    }
    for (int i = 0; i < 3; i++) {
        if (i == 2)
            fd_channel_unpublish(fixture->channel, packets[0].ticket);
        int socket_fd = connect_to(fixture), fetched;
        send_packet(socket_fd, &packets[i % 2], sizeof(packets[0]), NULL, 0);
        struct fd_answer answer = receive(socket_fd, &fetched);
        assert_int_equal(answer.status, i == 0 ? TOPKD_OK : TOPKD_E_NOT_PERMITTED);
        assert_int_equal(fetched >= 0, i == 0);
        if (fetched >= 0) {
            struct stat info;
            assert_int_equal(fstat(fetched, &info), 0);
            assert_int_equal(info.st_size, 8192);
            close(fetched);
        }
        close(socket_fd);
    }
    fd_channel_unpublish(fixture->channel, packets[1].ticket);
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_ticket_gives_the_descriptors_in_order, setup, teardown),
        cmocka_unit_test_setup_teardown(a_ticket_is_good_once_and_for_its_process, setup, teardown),
        cmocka_unit_test_setup_teardown(a_ticket_expires, setup_short, teardown),
        cmocka_unit_test_setup_teardown(foreign_packets_are_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(limits_hold, setup, teardown),
        cmocka_unit_test_setup_teardown(a_peer_that_hangs_up_leaves_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(without_descriptors_the_thread_sleeps, setup, teardown),
        cmocka_unit_test_setup_teardown(published_descriptors_reach_their_process_only, setup,
                                        teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
