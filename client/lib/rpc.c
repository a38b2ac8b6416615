/* rpc.c - one raw connection: connects, greets, starts its thread, ends it. */
#include "fault.h"
#include "rpc_internal.h"
#include "thread.h"

#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* Choices: the pause before connecting again while the daemon is away, doubled up to the longer
 * one. */
#define PAUSE_MIN_NS (10 * CLOCK_NS_PER_MS)
#define PAUSE_MAX_NS (200 * CLOCK_NS_PER_MS)
/* Choice: how long a socket without permission is tried: a daemon binds first and then opens the
 * mode. */
#define REFUSED_MS 300u

#define URL_SCHEME "ipc://"

/* ---- Errors ---------------------------------------------------------------------------------- */

static enum topkd_status take_url(const char *url, struct sockaddr_un *address, char *detail)
{
    if (strncmp(url, URL_SCHEME "/", sizeof(URL_SCHEME)) != 0) {
        return fault(detail, TOPKD_E_INVALID,
                     "URL \"%.100s\": expected \"ipc:///path/of/the/socket\"", url);
    }
    const char *path = url + strlen(URL_SCHEME);
    size_t length = strlen(path);
    size_t length_max = sizeof(address->sun_path) - 1;
    if (length > length_max) {
        return fault(detail, TOPKD_E_INVALID,
                     "URL \"%.100s...\": the path has %zu characters, a Unix socket at most %zu",
                     url, length, length_max);
    }
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(address->sun_path, path, length);
    return TOPKD_OK;
}

static enum topkd_status fault_silent(const struct rpc *rpc, char *detail)
{
    return fault(detail, TOPKD_E_TIMEOUT,
                 "%s accepts connections but does not answer: the daemon hangs, or something else "
                 "listens there",
                 rpc->url);
}

static enum topkd_status fault_connect(const struct rpc *rpc, int error, char *detail)
{
    char buffer[128];
    switch (error) {
    case EAGAIN: /* nobody accepts those who wait */
        return fault_silent(rpc, detail);
    case EACCES:
    case EPERM:
        return fault(detail, TOPKD_E_NOT_PERMITTED,
                     "%s: %s for uid %u gid %u; see socket.mode, socket.group and "
                     "socket.directory_mode in the daemon's configuration",
                     rpc->url, strerror_r(error, buffer, sizeof(buffer)), (unsigned)geteuid(),
                     (unsigned)getegid());
    default:
        return fault(detail, TOPKD_E_UNREACHABLE, "%s: %s", rpc->url,
                     strerror_r(error, buffer, sizeof(buffer)));
    }
}

enum topkd_status rpc_fault_lost(const struct rpc *rpc, char *detail)
{
    return fault(detail, TOPKD_E_UNREACHABLE,
                 "%s closed the connection: the daemon ended, restarted, or has reached its limit "
                 "of connections",
                 rpc->url);
}

/* ---- Connect --------------------------------------------------------------------------------- */

/* Each side greets, and this one waits until the other has. */
static enum topkd_status greet(const struct rpc *rpc, uint64_t deadline_ns, char *detail)
{
    uint8_t greeting[STREAM_GREETING_SIZE];
    stream_put_greeting(greeting, STREAM_REQ);
    if (send(rpc->fd, greeting, sizeof(greeting), MSG_NOSIGNAL) != (ssize_t)sizeof(greeting)) {
        return rpc_fault_lost(rpc, detail); /* a fresh socket has room for so little */
    }
    for (size_t size = 0; size < sizeof(greeting);) {
        ssize_t got = recv(rpc->fd, greeting + size, sizeof(greeting) - size, MSG_DONTWAIT);
        if (got > 0) {
            size += (size_t)got;
            continue;
        }
        if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
            return rpc_fault_lost(rpc, detail);
        }
        struct pollfd polled = {.fd = rpc->fd, .events = POLLIN};
        if (poll(&polled, 1, clock_left_ms(deadline_ns)) <= 0 && clock_passed(deadline_ns)) {
            return fault_silent(rpc, detail);
        }
    }
    if (!stream_is_greeting(greeting, STREAM_REP)) {
        return fault(detail, TOPKD_E_PROTOCOL, "%s is the socket of something else than topkd",
                     rpc->url);
    }
    return TOPKD_OK;
}

/* One try. On an error there is no descriptor. */
static enum topkd_status connect_once(struct rpc *rpc, const struct sockaddr_un *address,
                                      uint64_t deadline_ns, char *detail)
{
    rpc->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (rpc->fd < 0) {
        return fault_system(detail, "cannot open a socket", errno);
    }
    enum topkd_status status;
    if (connect(rpc->fd, (const struct sockaddr *)address, sizeof(*address)) != 0) {
        status = fault_connect(rpc, errno, detail);
    } else {
        status = greet(rpc, deadline_ns, detail);
    }
    if (status != TOPKD_OK) {
        close(rpc->fd);
        rpc->fd = -1;
    }
    return status;
}

/* Whether another try may go better: somebody may come to listen, open the socket's mode, or have
 * room for a connection. */
static bool is_transient(enum topkd_status status, uint64_t refused_ns)
{
    return status == TOPKD_E_UNREACHABLE || status == TOPKD_E_TIMEOUT ||
           (status == TOPKD_E_NOT_PERMITTED && !clock_passed(refused_ns));
}

static enum topkd_status connect_until(struct rpc *rpc, const struct sockaddr_un *address,
                                       uint64_t deadline_ns, char *detail)
{
    uint64_t refused_ns = clock_after_ms(REFUSED_MS);
    uint64_t pause_ns = PAUSE_MIN_NS;
    enum topkd_status status;
    while ((status = connect_once(rpc, address, deadline_ns, detail)) != TOPKD_OK &&
           is_transient(status, refused_ns)) {
        uint64_t now_ns = clock_now_ns();
        if (now_ns >= deadline_ns) {
            break;
        }
        const struct timespec pause = clock_timespec(clock_earlier(pause_ns, deadline_ns - now_ns));
        (void)nanosleep(&pause, NULL);
        pause_ns = clock_earlier(pause_ns * 2, PAUSE_MAX_NS);
    }
    return status;
}

static void read_peer(struct rpc *rpc)
{
    struct ucred peer;
    socklen_t size = sizeof(peer);
    rpc->peer = (struct rpc_peer){.pid = -1, .uid = -1, .gid = -1};
    if (getsockopt(rpc->fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0) {
        rpc->peer = (struct rpc_peer){.pid = peer.pid, .uid = peer.uid, .gid = peer.gid};
    }
}

/* ---- Open and close -------------------------------------------------------------------------- */

static struct rpc *allocate(const char *url)
{
    struct rpc *rpc = malloc(sizeof(*rpc));
    if (!rpc) {
        return NULL;
    }
    memset(rpc, 0, offsetof(struct rpc, out)); /* the large buffers behind need no values */
    rpc->in_size = 0;
    rpc->fd = rpc->wake_fd = -1;
    rpc->last_id = STREAM_ID_LAST;
    list_init(&rpc->requests);
    list_init(&rpc->unsent);
    memcpy(rpc->url, url, strlen(url) + 1);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&rpc->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    pthread_mutex_init(&rpc->mutex, NULL);
    return rpc;
}

static void deallocate(struct rpc *rpc)
{
    if (rpc->fd >= 0) {
        close(rpc->fd);
    }
    if (rpc->wake_fd >= 0) {
        close(rpc->wake_fd);
    }
    pthread_cond_destroy(&rpc->changed);
    pthread_mutex_destroy(&rpc->mutex);
    free(rpc);
}

static enum topkd_status start(struct rpc *rpc, char *detail)
{
    read_peer(rpc);
    rpc->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (rpc->wake_fd < 0) {
        return fault_system(detail, "cannot create an event descriptor", errno);
    }
    int error = thread_start(&rpc->thread, rpc_run, rpc);
    if (error) {
        return fault_system(detail, "cannot start a thread", error);
    }
    (void)pthread_setname_np(rpc->thread, "topkd-rpc");
    return TOPKD_OK;
}

enum topkd_status rpc_open(const char *url, uint64_t deadline_ns, struct rpc **rpc_p, char *detail)
{
    struct sockaddr_un address;
    enum topkd_status status = take_url(url, &address, detail);
    if (status != TOPKD_OK) {
        return status;
    }
    struct rpc *rpc = allocate(url);
    if (!rpc) {
        return fault(detail, TOPKD_E_NO_MEMORY, "no memory for a connection");
    }
    status = connect_until(rpc, &address, deadline_ns, detail);
    if (status == TOPKD_OK) {
        status = start(rpc, detail);
    }
    if (status != TOPKD_OK) {
        deallocate(rpc);
        return status;
    }
    *rpc_p = rpc;
    return TOPKD_OK;
}

void rpc_abort(struct rpc *rpc)
{
    pthread_mutex_lock(&rpc->mutex);
    rpc_hang_up(rpc);
    while (!rpc->has_ended) {
        pthread_cond_wait(&rpc->changed, &rpc->mutex);
    }
    pthread_mutex_unlock(&rpc->mutex);
}

void rpc_close(struct rpc *rpc)
{
    if (rpc) {
        rpc_abort(rpc);
        pthread_join(rpc->thread, NULL);
        deallocate(rpc);
    }
}

/* ---- Look ------------------------------------------------------------------------------------ */

bool rpc_lost(struct rpc *rpc)
{
    pthread_mutex_lock(&rpc->mutex);
    bool is_lost = rpc->is_lost;
    pthread_mutex_unlock(&rpc->mutex);
    return is_lost;
}

void rpc_watch(struct rpc *rpc, void (*lost)(void *arg), void *arg)
{
    pthread_mutex_lock(&rpc->mutex);
    rpc->lost_cb = lost;
    rpc->lost_arg = arg;
    bool is_told = rpc->is_told;
    pthread_mutex_unlock(&rpc->mutex);
    if (is_told) {
        lost(arg);
    }
}

struct rpc_peer rpc_peer(const struct rpc *rpc)
{
    return rpc->peer;
}

const char *rpc_url(const struct rpc *rpc)
{
    return rpc->url;
}
