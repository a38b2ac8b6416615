#include "endpoint_internal.h"

#include "assert.h"
#include "detail.h"
#include "log.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define URL_PREFIX "ipc://"
#define BACKLOG 128     /* choice: connections that wait to be accepted */
#define ACCEPTS_MAX 16u /* choice: connections accepted before others have their turn */
#define SWEEP_MS 250u   /* choice: how late an idle pipe may be closed */

/* ---- Listening ------------------------------------------------------------------------------- */

static enum topkd_status check_url(const char *url, char *detail)
{
    size_t path_size_max = sizeof(((struct sockaddr_un *)NULL)->sun_path);

    if (strncmp(url, URL_PREFIX "/", strlen(URL_PREFIX "/")) != 0)
        return detail_set(detail, TOPKD_E_INVALID,
                          "url %s: want " URL_PREFIX " and an absolute path", url);
    size_t length = strlen(url) - strlen(URL_PREFIX);
    if (length >= path_size_max)
        return detail_set(detail, TOPKD_E_INVALID,
                          "%s: a socket path has at most %zu characters, this one has %zu",
                          url + strlen(URL_PREFIX), path_size_max - 1, length);
    return TOPKD_OK;
}

/* Whether somebody listens behind a socket file. */
static bool is_served(const struct sockaddr_un *address)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return true; /* unknown: better to leave it alone */
    bool is_refused = connect(fd, (const struct sockaddr *)address, sizeof(*address)) != 0 &&
                      errno == ECONNREFUSED;
    close(fd);
    return !is_refused;
}

static int bind_path(int fd, const struct sockaddr_un *address)
{
    if (bind(fd, (const struct sockaddr *)address, sizeof(*address)) == 0)
        return 0;
    struct stat file;
    if (errno != EADDRINUSE || lstat(address->sun_path, &file) != 0 || !S_ISSOCK(file.st_mode) ||
        is_served(address))
        return -EADDRINUSE;
    if (unlink(address->sun_path) != 0 ||
        bind(fd, (const struct sockaddr *)address, sizeof(*address)) != 0)
        return -errno;
    return 0;
}

/* Owner, group and mode are right before anyone can connect. */
static enum topkd_status set_up_file(struct endpoint *endpoint,
                                     const struct endpoint_config *config, char *detail)
{
    const char *path = endpoint->address.sun_path;
    struct stat file;
    if (lstat(path, &file) != 0)
        return detail_set(detail, TOPKD_E_SYSTEM, "%s: %s", path, strerror(errno));
    endpoint->owns_file = true;
    endpoint->file_dev = file.st_dev;
    endpoint->file_ino = file.st_ino;
    return socket_file_init(&endpoint->file, path, &config->rights, detail);
}

static enum topkd_status listen_on(struct endpoint *endpoint, const struct endpoint_config *config,
                                   char *detail)
{
    if (config->listen_fd >= 0) {
        endpoint->listen_fd = config->listen_fd;
        return TOPKD_OK;
    }
    const char *path = endpoint->address.sun_path;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return detail_set(detail, TOPKD_E_SYSTEM, "cannot make a socket: %s", strerror(errno));
    endpoint->listen_fd = fd;
    int error = bind_path(fd, &endpoint->address);
    if (error == -EADDRINUSE)
        return detail_set(detail, TOPKD_E_IN_USE,
                          "%s: another process listens there; stop it or configure another "
                          "socket.directory",
                          path);
    if (error != 0)
        return detail_set(detail, TOPKD_E_SYSTEM, "%s: cannot listen: %s", path, strerror(-error));
    enum topkd_status status = set_up_file(endpoint, config, detail);
    if (status == TOPKD_OK && listen(fd, BACKLOG) != 0)
        status = detail_set(detail, TOPKD_E_SYSTEM, "%s: cannot listen: %s", path, strerror(errno));
    return status;
}

static void stop_listening(struct endpoint *endpoint)
{
    struct stat file;
    if (endpoint->listen_fd >= 0)
        close(endpoint->listen_fd);
    endpoint->listen_fd = -1;
    if (endpoint->owns_file && lstat(endpoint->address.sun_path, &file) == 0 &&
        file.st_dev == endpoint->file_dev && file.st_ino == endpoint->file_ino)
        (void)unlink(endpoint->address.sun_path);
    endpoint->owns_file = false;
}

/* ---- The loop's callbacks -------------------------------------------------------------------- */

static void on_connection(uv_poll_t *poll, int status, int events)
{
    struct endpoint *endpoint = poll->data;
    (void)status;
    (void)events;
    for (uint32_t i = 0; i < ACCEPTS_MAX; i++) {
        int fd = accept4(endpoint->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0) {
            endpoint_pipe_open(endpoint, fd);
            continue;
        }
        if (errno == EINTR || errno == ECONNABORTED)
            continue;
        if (errno != EAGAIN) {
            /* Out of descriptors or memory: those that wait keep waiting, and are looked at again
             * by the sweep; the loop must not spin until then. */
            log_warn("accept_failed", "path=%s reason=\"%s\"", endpoint->address.sun_path,
                     strerror(errno));
            endpoint->is_accepting = false;
            uv_poll_stop(&endpoint->listen_poll);
        }
        return;
    }
}

static void start_accepting(struct endpoint *endpoint)
{
    endpoint->is_accepting = true;
    int error = uv_poll_start(&endpoint->listen_poll, UV_READABLE, on_connection);
    topkd_assert(error == 0);
}

static bool is_overdue(const struct endpoint_pipe *pipe, uint64_t now_ms)
{
    const struct endpoint_limits *limits = &pipe->endpoint->limits;
    if (pipe->first_out != NULL && now_ms - pipe->first_out->since_ms >= limits->reply_ms) {
        log_warn("connection_closed", "reason=reply_not_taken uid=%" PRId64 " pid=%" PRId64,
                 pipe->peer.uid, pipe->peer.pid);
        return true;
    }
    if (pipe->is_kept || pipe->num_requests > 0 || now_ms - pipe->active_ms < limits->idle_ms)
        return false;
    log_debug("connection_closed", "reason=idle uid=%" PRId64 " pid=%" PRId64, pipe->peer.uid,
              pipe->peer.pid);
    return true;
}

static void on_sweep(uv_timer_t *timer)
{
    struct endpoint *endpoint = timer->data;
    uint64_t now_ms = uv_now(timer->loop);

    for (struct endpoint_pipe *pipe = endpoint->pipes; pipe != NULL; pipe = pipe->next)
        if (!pipe->is_doomed && is_overdue(pipe, now_ms))
            endpoint_pipe_doom(pipe);
    if (!endpoint->is_accepting)
        start_accepting(endpoint);
    if (endpoint->owns_file)
        socket_file_follow(&endpoint->file);
}

static void on_later(uv_idle_t *idle)
{
    struct endpoint *endpoint = idle->data;
    struct endpoint_pipe *next;

    uv_idle_stop(idle);
    for (struct endpoint_pipe *pipe = endpoint->pipes; pipe != NULL && endpoint->num_doomed > 0;
         pipe = next) {
        next = pipe->next;
        if (pipe->is_doomed)
            endpoint_pipe_forget(pipe);
    }
    endpoint_resume_starved(endpoint);
}

void endpoint_look_later(struct endpoint *endpoint)
{
    if (!endpoint->is_closing)
        uv_idle_start(&endpoint->later, on_later);
}

/* ---- Open and close -------------------------------------------------------------------------- */

void endpoint_handle_gone(struct endpoint *endpoint)
{
    if (--endpoint->num_handles == 0)
        free(endpoint);
}

static void handle_closed(uv_handle_t *handle)
{
    endpoint_handle_gone(handle->data);
}

static enum topkd_status open_handles(struct endpoint *endpoint, char *detail)
{
    int error = uv_poll_init(endpoint->loop, &endpoint->listen_poll, endpoint->listen_fd);
    if (error != 0)
        return detail_set(detail, TOPKD_E_SYSTEM, "cannot watch %s: %s", endpoint->address.sun_path,
                          uv_strerror(error));
    uv_timer_init(endpoint->loop, &endpoint->sweep); /* these two cannot fail */
    uv_idle_init(endpoint->loop, &endpoint->later);
    endpoint->num_handles = 3;
    endpoint->listen_poll.data = endpoint;
    endpoint->sweep.data = endpoint;
    endpoint->later.data = endpoint;
    start_accepting(endpoint);
    uv_timer_start(&endpoint->sweep, on_sweep, SWEEP_MS, SWEEP_MS);
    return TOPKD_OK;
}

enum topkd_status endpoint_open(const struct endpoint_config *config, struct endpoint **endpoint_p,
                                char *detail)
{
    enum topkd_status status = check_url(config->url, detail);
    if (status != TOPKD_OK)
        return status;
    struct endpoint *endpoint = calloc(1, sizeof(*endpoint));
    if (endpoint == NULL)
        return detail_set(detail, TOPKD_E_NO_MEMORY, "no memory for an endpoint");
    endpoint->loop = config->loop;
    endpoint->limits = config->limits;
    endpoint->handler = config->handler;
    endpoint->owner = config->owner;
    endpoint->listen_fd = -1;
    endpoint->last_starved = &endpoint->first_starved;
    endpoint->address.sun_family = AF_UNIX;
    strcpy(endpoint->address.sun_path, config->url + strlen(URL_PREFIX)); /* it fits: checked */
    status = listen_on(endpoint, config, detail);
    if (status == TOPKD_OK)
        status = open_handles(endpoint, detail);
    if (status != TOPKD_OK) {
        stop_listening(endpoint);
        free(endpoint);
        return status;
    }
    *endpoint_p = endpoint;
    return TOPKD_OK;
}

void endpoint_close(struct endpoint *endpoint)
{
    topkd_assert(!endpoint->is_closing);
    endpoint->is_closing = true;
    uv_close((uv_handle_t *)&endpoint->listen_poll, handle_closed);
    uv_close((uv_handle_t *)&endpoint->sweep, handle_closed);
    uv_close((uv_handle_t *)&endpoint->later, handle_closed);
    stop_listening(endpoint);
    while (endpoint->pipes != NULL)
        endpoint_pipe_forget(endpoint->pipes);
    endpoint_requests_free(endpoint);
}

void endpoint_configure(struct endpoint *endpoint, const struct endpoint_limits *limits)
{
    endpoint->limits = *limits;
    endpoint_look_later(endpoint); /* there may be room for starved ones */
}

uint32_t endpoint_num_unsent(const struct endpoint *endpoint)
{
    return endpoint->num_unsent;
}
