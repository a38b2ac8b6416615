#include "control.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct control_message control_message_make(enum control_kind kind, uint64_t epoch)
{
    struct control_message message;
    memset(&message, 0, sizeof message); /* padding too: it goes to another process */
    message.magic = CONTROL_MAGIC;
    message.version = CONTROL_VERSION;
    message.epoch = epoch;
    message.kind = (uint32_t)kind;
    return message;
}

int control_pair(int fds_p[2])
{
    int fds[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) != 0)
        return -errno;
    fds_p[0] = fds[0];
    fds_p[1] = fds[1];
    return 0;
}

/* Room for one descriptor, aligned as CMSG wants it. */
union fd_room {
    struct cmsghdr header;
    char bytes[CMSG_SPACE(sizeof(int))];
};

int control_send(int fd, const struct control_message *message, int pass_fd)
{
    struct iovec part = {.iov_base = (void *)(uintptr_t)message, .iov_len = sizeof *message};
    struct msghdr packet = {.msg_iov = &part, .msg_iovlen = 1};
    union fd_room room;
    if (pass_fd >= 0) {
        memset(&room, 0, sizeof room);
        packet.msg_control = room.bytes;
        packet.msg_controllen = sizeof room.bytes;
        struct cmsghdr *header = CMSG_FIRSTHDR(&packet);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof pass_fd);
        memcpy(CMSG_DATA(header), &pass_fd, sizeof pass_fd);
    }
    ssize_t sent;
    do
        sent = sendmsg(fd, &packet, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (sent < 0 && errno == EINTR);
    if (sent < 0)
        return -errno;
    return 0; /* a packet is sent whole or not at all */
}

/* The descriptor that came with a packet, or -1. The room holds one, so there is never a second. */
static int passed_fd(struct msghdr *packet)
{
    for (struct cmsghdr *header = CMSG_FIRSTHDR(packet); header != NULL;
         header = CMSG_NXTHDR(packet, header)) {
        if (header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS &&
            header->cmsg_len == CMSG_LEN(sizeof(int))) {
            int fd;
            memcpy(&fd, CMSG_DATA(header), sizeof fd);
            return fd;
        }
    }
    return -1;
}

int control_receive(int fd, struct control_message *message_p, int *fd_p)
{
    struct control_message message;
    struct iovec part = {.iov_base = &message, .iov_len = sizeof message};
    union fd_room room;
    struct msghdr packet = {.msg_iov = &part,
                            .msg_iovlen = 1,
                            .msg_control = room.bytes,
                            .msg_controllen = sizeof room.bytes};
    ssize_t size;
    do
        size = recvmsg(fd, &packet, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    while (size < 0 && errno == EINTR);
    if (size < 0)
        return errno == ECONNRESET ? 0 : -errno; /* reset: closed with our packets unread */
    int got_fd = passed_fd(&packet);
    if (size == 0 && got_fd < 0)
        return 0;
    if (size != (ssize_t)sizeof message || (packet.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0 ||
        message.magic != CONTROL_MAGIC || message.version != CONTROL_VERSION) {
        if (got_fd >= 0)
            close(got_fd);
        return -EPROTO;
    }
    *message_p = message;
    *fd_p = got_fd;
    return 1;
}

const char *control_kind_name(enum control_kind kind)
{
    switch (kind) {
    case CONTROL_READY:
        return "ready";
    case CONTROL_HEARTBEAT:
        return "heartbeat";
    case CONTROL_DRAINED:
        return "drained";
    case CONTROL_DRAIN:
        return "drain";
    case CONTROL_RELOAD:
        return "reload";
    }
    return "unknown";
}
