/*
 * A peer that connects and hangs up before NNG 1.5 has sent it the eight bytes of the protocol's
 * greeting makes that sendmsg fail with EPIPE. NNG calls EPIPE "closed", takes it for the end of
 * the listener itself, and never accepts another connection, although the socket still looks alive.
 * A client of a test that is killed could so make the fake daemon deaf.
 *
 * This sendmsg takes the place of libc's for all of the process and says ECONNRESET instead, which
 * NNG treats as what it is: the end of one connection. Nothing here tells the two apart: a peer
 * that is gone is gone.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <sys/socket.h>

/* Libc's, or that of a sanitizer in front of it. */
typedef ssize_t sendmsg_function(int fd, const struct msghdr *message, int flags);

static sendmsg_function *next_sendmsg;

__attribute__((visibility("default"))) ssize_t sendmsg(int fd, const struct msghdr *message,
                                                       int flags)
{
    sendmsg_function *next = __atomic_load_n(&next_sendmsg, __ATOMIC_RELAXED);
    if (next == NULL) { /* several threads may find the same */
        next = (sendmsg_function *)dlsym(RTLD_NEXT, "sendmsg");
        if (next == NULL) {
            errno = ENOSYS;
            return -1;
        }
        __atomic_store_n(&next_sendmsg, next, __ATOMIC_RELAXED);
    }
    ssize_t sent = next(fd, message, flags);
    if (sent < 0 && errno == EPIPE)
        errno = ECONNRESET;
    return sent;
}
