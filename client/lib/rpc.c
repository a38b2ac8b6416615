/* rpc.c - one raw connection: an NNG REQ socket that accepts a single pipe in its life. */
#include "rpc_internal.h"

#include "fault.h"
#include "thread.h"

#include <errno.h>
#include <nng/protocol/reqrep0/req.h>
#include <nng/transport/ipc/ipc.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* Choices: how fast NNG tries again to connect while the daemon is away. */
#define RECONNECT_MIN_MS 10
#define RECONNECT_MAX_MS 200
/* Choice: how long a socket without permission is tried (a daemon binds first and then opens the
 * mode), and how often that is looked at. */
#define REFUSED_MS 300u
#define LOOK_MS 50u
/* Choice: the least time to connect in, see wait_up. */
#define GREETING_MS 200u
/* Choice: how long rpc_close waits for NNG, which takes well under a millisecond. */
#define BURY_S 2
#define BURY_LOOK_NS 200000 /* choice: the pause between two looks whether it has come back */
/* Choices: how long a request may wait for its way out. A worker that takes none for so long hangs,
 * or is gone and NNG did not notice, which is likely once NNG is stuck. */
#define SEND_MS 5000
#define SEND_STUCK_MS 500

#define URL_SCHEME "ipc://"

/* ---- Fork ------------------------------------------------------------------------------------ */

/* The process in which NNG was first used: its threads exist there only, and NNG ends a child that
 * touches it. */
static _Atomic pid_t first_pid;

/* NNG has once not come back from closing, see rpc_close. */
static atomic_bool nng_stuck;

enum topkd_status rpc_check_process(char *detail)
{
    pid_t expected = 0;
    pid_t pid = getpid();
    if (!atomic_compare_exchange_strong(&first_pid, &expected, pid) && expected != pid) {
        return fault(detail, TOPKD_E_CLOSED,
                     "process %d was forked from process %d, which had used topkd before: the "
                     "connections and threads stayed there; open the first client after fork, or "
                     "exec a new program",
                     (int)pid, (int)expected);
    }
    return TOPKD_OK;
}

/* ---- Errors ---------------------------------------------------------------------------------- */

static enum topkd_status fault_nng(char *detail, const char *what, int error)
{
    enum topkd_status status = error == NNG_ENOMEM ? TOPKD_E_NO_MEMORY : TOPKD_E_SYSTEM;
    return fault(detail, status, "%s: %s", what, nng_strerror(error));
}

static const char *url_path(const char *url)
{
    return url + sizeof(URL_SCHEME) - 1;
}

static enum topkd_status check_url(const char *url, char *detail)
{
    if (strncmp(url, URL_SCHEME "/", sizeof(URL_SCHEME)) != 0) {
        return fault(detail, TOPKD_E_INVALID,
                     "URL \"%.100s\": expected \"ipc:///path/of/the/socket\"", url);
    }
    size_t length = strlen(url_path(url));
    size_t length_max = sizeof(((struct sockaddr_un *)NULL)->sun_path) - 1;
    if (length > length_max) {
        return fault(detail, TOPKD_E_INVALID,
                     "URL \"%.100s...\": the path has %zu characters, a Unix socket at most %zu",
                     url, length, length_max);
    }
    return TOPKD_OK;
}

/* Connects as NNG does and tells the errno, which NNG keeps for itself; 0 when that worked. */
static int probe(const char *url)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        return errno;
    }
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path, url_path(url), strlen(url_path(url)));
    int error = connect(fd, (const struct sockaddr *)&address, sizeof(address)) == 0 ? 0 : errno;
    if (error == 0) {
        /* Not to hang up on somebody who is about to greet. */
        struct pollfd greeting = {.fd = fd, .events = POLLIN};
        (void)poll(&greeting, 1, (int)LOOK_MS);
    }
    close(fd);
    return error;
}

/* Why there is no pipe when the deadline has passed. */
static enum topkd_status fault_unconnected(const char *url, char *detail)
{
    char buffer[128];
    int error = probe(url);
    switch (error) {
    case 0:
    case EAGAIN: /* the backlog is full */
        return fault(detail, TOPKD_E_TIMEOUT,
                     "%s accepts connections but does not answer: the daemon hangs, or something "
                     "else listens there",
                     url);
    case EACCES:
    case EPERM:
        return fault(detail, TOPKD_E_NOT_PERMITTED,
                     "%s: %s for uid %u gid %u; see socket.mode, socket.group and "
                     "socket.directory_mode in the daemon's configuration",
                     url, strerror_r(error, buffer, sizeof(buffer)), (unsigned)geteuid(),
                     (unsigned)getegid());
    default:
        return fault(detail, TOPKD_E_UNREACHABLE, "%s: %s", url,
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

/* ---- Pipe events (threads of NNG) ------------------------------------------------------------ */

static void read_peer(nng_pipe pipe, struct rpc_peer *peer)
{
    uint64_t value;
    peer->pid = nng_pipe_get_uint64(pipe, NNG_OPT_IPC_PEER_PID, &value) == 0 ? (int64_t)value : -1;
    peer->uid = nng_pipe_get_uint64(pipe, NNG_OPT_IPC_PEER_UID, &value) == 0 ? (int64_t)value : -1;
    peer->gid = nng_pipe_get_uint64(pipe, NNG_OPT_IPC_PEER_GID, &value) == 0 ? (int64_t)value : -1;
}

/* Called with the mutex held, once; releases it. */
static void lose_and_unlock(struct rpc *rpc)
{
    rpc->lost = true;
    for (struct rpc_exchange *exchange = rpc->exchanges; exchange; exchange = exchange->next) {
        nng_aio_abort(exchange->aio, NNG_ECONNRESET);
    }
    void (*lost_cb)(void *arg) = rpc->lost_cb;
    void *lost_arg = rpc->lost_arg;
    rpc->telling = lost_cb != NULL;
    pthread_cond_broadcast(&rpc->changed);
    pthread_mutex_unlock(&rpc->mutex);
    if (lost_cb) {
        lost_cb(lost_arg);
        pthread_mutex_lock(&rpc->mutex);
        rpc->telling = false;
        pthread_cond_broadcast(&rpc->changed);
        pthread_mutex_unlock(&rpc->mutex);
    }
}

static void pipe_cb(nng_pipe pipe, nng_pipe_ev event, void *arg)
{
    struct rpc *rpc = arg;
    int pipe_id = nng_pipe_id(pipe);
    pthread_mutex_lock(&rpc->mutex);
    switch (event) {
    case NNG_PIPE_EV_ADD_PRE:
        if (rpc->pipe_id != 0 || rpc->lost) {
            pthread_mutex_unlock(&rpc->mutex);
            nng_pipe_close(pipe); /* the dialer came back; one pipe is all there is */
            return;
        }
        rpc->pipe_id = pipe_id;
        read_peer(pipe, &rpc->peer);
        break;
    case NNG_PIPE_EV_ADD_POST:
        rpc->up = rpc->pipe_id == pipe_id;
        pthread_cond_broadcast(&rpc->changed);
        break;
    case NNG_PIPE_EV_REM_POST:
        if (rpc->pipe_id == pipe_id && !rpc->lost) {
            lose_and_unlock(rpc);
            return;
        }
        break;
    default:
        break;
    }
    pthread_mutex_unlock(&rpc->mutex);
}

/* ---- Open ------------------------------------------------------------------------------------ */

static int configure(struct rpc *rpc)
{
    int error;
    if ((error = nng_socket_set_size(rpc->socket, NNG_OPT_RECVMAXSZ, WIRE_MESSAGE_SIZE_MAX)) ||
        (error = nng_socket_set_ms(rpc->socket, NNG_OPT_REQ_RESENDTIME, NNG_DURATION_INFINITE)) ||
        (error = nng_socket_set_ms(rpc->socket, NNG_OPT_RECONNMINT, RECONNECT_MIN_MS)) ||
        (error = nng_socket_set_ms(rpc->socket, NNG_OPT_RECONNMAXT, RECONNECT_MAX_MS)) ||
        (error = nng_pipe_notify(rpc->socket, NNG_PIPE_EV_ADD_PRE, pipe_cb, rpc)) ||
        (error = nng_pipe_notify(rpc->socket, NNG_PIPE_EV_ADD_POST, pipe_cb, rpc)) ||
        (error = nng_pipe_notify(rpc->socket, NNG_PIPE_EV_REM_POST, pipe_cb, rpc))) {
        return error;
    }
    /* Not blocking, because the blocking form has no deadline. */
    return nng_dial(rpc->socket, rpc->url, &rpc->dialer, NNG_FLAG_NONBLOCK);
}

/* Waits a little even when the deadline is near: NNG 1.5.2 leaks a connection that is closed while
 * the two sides greet. */
static enum topkd_status wait_up(struct rpc *rpc, uint64_t deadline_ns, char *detail)
{
    enum topkd_status status = TOPKD_OK;
    uint64_t greeted_ns = clock_after_ms(GREETING_MS);
    if (deadline_ns < greeted_ns) {
        deadline_ns = greeted_ns;
    }
    uint64_t refused_ns = clock_after_ms(REFUSED_MS);
    pthread_mutex_lock(&rpc->mutex);
    while (!rpc->up && !rpc->lost && status == TOPKD_OK) {
        uint64_t look_ns = clock_after_ms(LOOK_MS);
        struct timespec until = clock_timespec(clock_earlier(look_ns, deadline_ns));
        if (pthread_cond_timedwait(&rpc->changed, &rpc->mutex, &until) != ETIMEDOUT) {
            continue;
        }
        pthread_mutex_unlock(&rpc->mutex);
        if (clock_passed(deadline_ns)) {
            status = fault_unconnected(rpc->url, detail);
        } else if (clock_passed(refused_ns) && access(url_path(rpc->url), W_OK) != 0 &&
                   errno == EACCES) {
            status = fault_unconnected(rpc->url, detail);
        }
        pthread_mutex_lock(&rpc->mutex);
    }
    if (rpc->lost) {
        status = rpc_fault_lost(rpc, detail);
    } else if (rpc->up) {
        status = TOPKD_OK;
    }
    pthread_mutex_unlock(&rpc->mutex);
    return status;
}

static struct rpc *allocate(const char *url)
{
    struct rpc *rpc = calloc(1, sizeof(*rpc));
    if (!rpc) {
        return NULL;
    }
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&rpc->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    pthread_mutex_init(&rpc->mutex, NULL);
    rpc->peer = (struct rpc_peer){.pid = -1, .uid = -1, .gid = -1};
    memcpy(rpc->url, url, strlen(url) + 1);
    return rpc;
}

static void deallocate(struct rpc *rpc)
{
    pthread_cond_destroy(&rpc->changed);
    pthread_mutex_destroy(&rpc->mutex);
    free(rpc);
}

enum topkd_status rpc_open(const char *url, uint64_t deadline_ns, struct rpc **rpc_p, char *detail)
{
    enum topkd_status status = check_url(url, detail);
    if (status == TOPKD_OK) {
        status = rpc_check_process(detail); /* last: it notes that NNG is about to be used */
    }
    if (status != TOPKD_OK) {
        return status;
    }
    struct rpc *rpc = allocate(url);
    if (!rpc) {
        return fault(detail, TOPKD_E_NO_MEMORY, "no memory for a connection");
    }
    int error = nng_req0_open(&rpc->socket);
    if (error) {
        deallocate(rpc);
        return fault_nng(detail, "cannot open a socket", error);
    }
    error = configure(rpc);
    if (error) {
        status = fault_nng(detail, url, error);
    } else {
        status = wait_up(rpc, deadline_ns, detail);
    }
    if (status != TOPKD_OK) {
        rpc_close(rpc);
        return status;
    }
    *rpc_p = rpc;
    return TOPKD_OK;
}

void rpc_abort(struct rpc *rpc)
{
    pthread_mutex_lock(&rpc->mutex);
    nng_pipe pipe = {.id = (uint32_t)rpc->pipe_id};
    if (!rpc->lost) {
        lose_and_unlock(rpc);
    } else {
        /* NNG's thread may be in the middle of telling; what it tells is freed after this. */
        while (rpc->telling) {
            pthread_cond_wait(&rpc->changed, &rpc->mutex);
        }
        pthread_mutex_unlock(&rpc->mutex);
    }
    /* First, or it dials again once its pipe is gone; NNG 1.5.2 leaks a pipe that comes up while
     * its socket is closed. */
    (void)nng_dialer_close(rpc->dialer);
    if (pipe.id != 0) {
        (void)nng_pipe_close(pipe); /* the other side sees it now; the rest may take its time */
    }
}

/* Closes and frees; a thread of its own, see rpc_close. */
static void *bury(void *arg)
{
    struct rpc *rpc = arg;
    nng_close(rpc->socket);
    deallocate(rpc);
    return NULL;
}

/*
 * NNG 1.5.2 can wait for ever in nng_close: when its pipe is closed between the arrival of a
 * message's head and the request for its body, the receive is dropped without a completion
 * (ipc_pipe_recv_cb goes on after nni_aio_close, and nni_aio_begin then fails in silence). Callers
 * close when no answer is on its way, which leaves that to a peer that dies at the wrong moment.
 * Then the connection is left to a thread that does not end, rather than the caller; and because
 * the thread of NNG that reports lost pipes is the one that waits, losses are seen later from then
 * on, by requests that find no way out (rpc_send_ms).
 */
void rpc_close(struct rpc *rpc)
{
    pthread_t thread;
    if (!rpc) {
        return;
    }
    rpc_abort(rpc);
    if (thread_start(&thread, bury, rpc) != 0) {
        (void)bury(rpc);
        return;
    }
    /* Looked at again and again: the joins that wait do so by a clock that may jump. */
    const struct timespec pause = {.tv_nsec = BURY_LOOK_NS};
    uint64_t end_ns = clock_after_ms(atomic_load(&nng_stuck) ? 0 : BURY_S * 1000u);
    int error;
    while ((error = pthread_tryjoin_np(thread, NULL)) == EBUSY && !clock_passed(end_ns)) {
        (void)nanosleep(&pause, NULL);
    }
    if (error != 0) {
        atomic_store(&nng_stuck, true);
        (void)pthread_detach(thread);
    }
}

int32_t rpc_send_ms(void)
{
    return atomic_load(&nng_stuck) ? SEND_STUCK_MS : SEND_MS;
}

/* ---- Look ------------------------------------------------------------------------------------ */

bool rpc_lost(struct rpc *rpc)
{
    pthread_mutex_lock(&rpc->mutex);
    bool lost = rpc->lost;
    pthread_mutex_unlock(&rpc->mutex);
    return lost;
}

void rpc_watch(struct rpc *rpc, void (*lost)(void *arg), void *arg)
{
    pthread_mutex_lock(&rpc->mutex);
    rpc->lost_cb = lost;
    rpc->lost_arg = arg;
    bool already = rpc->lost;
    pthread_mutex_unlock(&rpc->mutex);
    if (already) {
        lost(arg);
    }
}

struct rpc_peer rpc_peer(const struct rpc *rpc)
{
    return rpc->peer; /* written before `up`, never after */
}

nng_socket rpc_socket(const struct rpc *rpc)
{
    return rpc->socket;
}

const char *rpc_url(const struct rpc *rpc)
{
    return rpc->url;
}
