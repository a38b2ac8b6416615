/*
 * Two of libc's functions, called by NNG through the dynamic linker, have a stand-in here for all
 * of the process.
 *
 * sendmsg: a peer that connects and hangs up before NNG 1.5 has sent it the eight bytes of the
 * protocol's greeting makes that sendmsg fail with EPIPE. NNG calls EPIPE "closed", takes it for
 * the end of the listener itself, and never accepts another connection (src/core/listener.c,
 * listener_accept_cb), although the socket still looks alive. Anyone who may connect could so make
 * the daemon deaf, a crashing client by accident.
 *
 * The stand-in says ECONNRESET instead, which NNG treats as what it is: the end of one connection.
 * Nothing here tells the two apart: a peer that is gone is gone.
 *
 * getsockopt: NNG tells the user, group and process of a peer, but not its supplementary groups,
 * nor the descriptor that one could ask. It asks the kernel itself, though, each time that it is
 * asked. At that moment the stand-in asks for the groups too, when its thread wants them. The
 * process id would not do: it may be another process's by now, or mean nothing in this PID
 * namespace.
 */
#include "nng_repair.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>

/* Libc's, or those of a sanitizer in front of it. */
typedef ssize_t sendmsg_function(int fd, const struct msghdr *message, int flags);
typedef int getsockopt_function(int fd, int level, int name, void *value, socklen_t *size);

static _Thread_local struct {
    bool is_wanted;
    struct peer_groups groups;
} peer;

/* The function that the stand-in hides; NULL with errno when there is none. Several threads may
 * find the same. */
static void *hidden(void **cache, const char *name)
{
    void *function = __atomic_load_n(cache, __ATOMIC_RELAXED);
    if (function != NULL)
        return function;
    function = dlsym(RTLD_NEXT, name);
    __atomic_store_n(cache, function, __ATOMIC_RELAXED);
    if (function == NULL)
        errno = ENOSYS;
    return function;
}

__attribute__((visibility("default"))) ssize_t sendmsg(int fd, const struct msghdr *message,
                                                       int flags)
{
    static void *cache;
    sendmsg_function *next = (sendmsg_function *)hidden(&cache, "sendmsg");
    ssize_t sent = next != NULL ? next(fd, message, flags) : -1;
    if (sent < 0 && errno == EPIPE)
        errno = ECONNRESET;
    return sent;
}

static void read_groups(getsockopt_function *next, int fd)
{
    socklen_t size = 0;
    /* Without room the kernel says how much it needs. */
    if (next(fd, SOL_SOCKET, SO_PEERGROUPS, NULL, &size) == 0 || errno != ERANGE)
        return;
    uint32_t *ids = malloc(size);
    if (ids == NULL || next(fd, SOL_SOCKET, SO_PEERGROUPS, ids, &size) != 0) {
        free(ids);
        return;
    }
    peer.groups = (struct peer_groups){.num_ids = size / (uint32_t)sizeof(*ids), .ids = ids};
}

__attribute__((visibility("default"))) int getsockopt(int fd, int level, int name, void *value,
                                                      socklen_t *size)
{
    static void *cache;
    getsockopt_function *next = (getsockopt_function *)hidden(&cache, "getsockopt");
    if (next == NULL)
        return -1;
    int result = next(fd, level, name, value, size);
    if (peer.is_wanted && result == 0 && level == SOL_SOCKET && name == SO_PEERCRED) {
        peer.is_wanted = false; /* once is enough */
        read_groups(next, fd);
    }
    return result;
}

bool nng_repair_is_active(void)
{
    /* What a library loaded with the program finds first under these names. */
    return dlsym(RTLD_DEFAULT, "sendmsg") == (void *)sendmsg &&
           dlsym(RTLD_DEFAULT, "getsockopt") == (void *)getsockopt;
}

void nng_repair_groups_begin(void)
{
    peer.is_wanted = true;
    peer.groups = (struct peer_groups){.num_ids = 0};
}

void nng_repair_groups_end(struct peer_groups *groups_p)
{
    peer.is_wanted = false;
    *groups_p = peer.groups;
    peer.groups = (struct peer_groups){.num_ids = 0};
}
