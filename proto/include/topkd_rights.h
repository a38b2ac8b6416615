/*
 * topkd_rights.h - a packet and file descriptors over a SOCK_SEQPACKET socket, for both sides of
 * every channel of topkd that carries some. Whether the calls block is the socket's matter.
 */
#ifndef TOPKD_RIGHTS_H
#define TOPKD_RIGHTS_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <unistd.h>

#define RIGHTS_MAX 64u /* descriptors a packet; the kernel's own limit is 253 */

union rights_room {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(sizeof(int) * RIGHTS_MAX)];
};

/* Sends bytes[size] whole, and fds[num_fds] along, at most RIGHTS_MAX; the caller keeps its own.
 * Returns as send(2), but not EINTR; raises no signal. */
static inline ssize_t rights_send(int socket, const void *bytes, size_t size, const int *fds,
                                  uint32_t num_fds)
{
    union rights_room room;
    struct iovec part = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = size};
    struct msghdr packet = {.msg_iov = &part, .msg_iovlen = 1};
    if (num_fds > 0) {
        memset(&room, 0, sizeof(room));
        packet.msg_control = room.bytes;
        packet.msg_controllen = CMSG_SPACE(sizeof(int) * num_fds);
        struct cmsghdr *header = &room.align; /* the first, and the only one */
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int) * num_fds);
        memcpy(CMSG_DATA(header), fds, sizeof(int) * num_fds);
    }
    ssize_t sent;
    do {
        sent = sendmsg(socket, &packet, MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    return sent;
}

/*
 * Receives a packet into bytes[size]; its descriptors go to fds[*num_fds_p], close-on-exec and the
 * caller's from then on; *num_fds_p is the room before (at most RIGHTS_MAX) and their number after.
 * Returns as recv(2), but not EINTR; EMSGSIZE for a packet that is longer, or whose descriptors did
 * not all arrive: more than there is room for, or than this process may have. None is left open
 * then.
 */
static inline ssize_t rights_receive(int socket, void *bytes, size_t size, int *fds,
                                     uint32_t *num_fds_p)
{
    union rights_room room;
    struct iovec part = {.iov_base = bytes, .iov_len = size};
    /* Without CMSG_SPACE's padding, which the kernel would fill with one more. */
    struct msghdr packet = {.msg_iov = &part,
                            .msg_iovlen = 1,
                            .msg_control = room.bytes,
                            .msg_controllen = CMSG_LEN(sizeof(int) * *num_fds_p)};
    ssize_t got;
    do {
        got = recvmsg(socket, &packet, MSG_CMSG_CLOEXEC);
    } while (got < 0 && errno == EINTR);
    *num_fds_p = 0;
    if (got < 0) {
        return got;
    }
    const struct cmsghdr *header = CMSG_FIRSTHDR(&packet);
    if (header != NULL && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS) {
        *num_fds_p = (uint32_t)((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        memcpy(fds, CMSG_DATA(header), sizeof(int) * *num_fds_p);
    }
    if ((packet.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
        while (*num_fds_p > 0) {
            (*num_fds_p)--;
            close(fds[*num_fds_p]);
            fds[*num_fds_p] = -1;
        }
        errno = EMSGSIZE;
        return -1;
    }
    return got;
}

#endif
