#include "control.h"

#include "topkd_rights.h"

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

int control_send(int fd, const struct control_message *message, int pass_fd)
{
    uint32_t num_fds = pass_fd >= 0 ? 1 : 0;
    return rights_send(fd, message, sizeof *message, &pass_fd, num_fds) < 0 ? -errno : 0;
}

int control_receive(int fd, struct control_message *message_p, int *fd_p)
{
    struct control_message message;
    int got_fd = -1;
    uint32_t num_fds = 1;
    ssize_t size = rights_receive(fd, &message, sizeof message, &got_fd, &num_fds);
    if (size < 0 && errno != EMSGSIZE)
        return errno == ECONNRESET ? 0 : -errno; /* reset: closed with our packets unread */
    if (size == 0 && num_fds == 0)
        return 0;
    if (size != (ssize_t)sizeof message || message.magic != CONTROL_MAGIC ||
        message.version != CONTROL_VERSION) {
        if (num_fds > 0)
            close(got_fd);
        return -EPROTO;
    }
    *message_p = message;
    *fd_p = num_fds > 0 ? got_fd : -1;
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
