#include "assert.h"
#include "detail.h"
#include "fd_channel_internal.h"
#include "log.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define TURN_MS 1000 /* choice: how late what has expired may be dropped */

uint64_t fd_channel_now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000u + (uint64_t)now.tv_nsec / 1000000u;
}

/* ---- The thread ------------------------------------------------------------------------------ */

/* One turn: waits up to a second, accepts, reads, expires. False: stop. */
static bool channel_turn(struct fd_channel *channel)
{
    struct pollfd polls[2 + FD_CHANNEL_CONNECTIONS_MAX];
    struct fd_connection *owners[FD_CHANNEL_CONNECTIONS_MAX];
    nfds_t num_polls = 2;
    uint64_t now = fd_channel_now_ms();
    bool is_deaf = now < channel->deaf_until_ms;
    int timeout_ms = is_deaf ? (int)(channel->deaf_until_ms - now) : TURN_MS;
    polls[0] = (struct pollfd){.fd = channel->stop_fd, .events = POLLIN};
    polls[1] = (struct pollfd){.fd = channel->listen_fd, .events = is_deaf ? 0 : POLLIN};
    for (uint32_t i = 0; i < FD_CHANNEL_CONNECTIONS_MAX; i++) {
        if (channel->connections[i].fd >= 0) {
            owners[num_polls - 2] = &channel->connections[i];
            polls[num_polls++] =
                (struct pollfd){.fd = channel->connections[i].fd, .events = POLLIN};
        }
    }
    if (poll(polls, num_polls, timeout_ms) < 0 && errno != EINTR) {
        log_error("fd_channel_poll", "errno=%d", errno);
        return false;
    }
    if (polls[0].revents) {
        return false;
    }
    now = fd_channel_now_ms();
    for (nfds_t i = 2; i < num_polls; i++) {
        struct fd_connection *connection = owners[i - 2];
        bool goes_on = now < connection->deadline_ms;
        if (goes_on && polls[i].revents) {
            goes_on = fd_connection_read(channel, connection);
        }
        if (!goes_on) {
            fd_connection_close(channel, connection);
        }
    }
    if (polls[1].revents) {
        fd_connection_accept(channel);
    }
    fd_channel_expire(channel);
    socket_file_follow(&channel->file);
    return true;
}

static void *channel_thread(void *arg)
{
    struct fd_channel *channel = arg;
    while (channel_turn(channel)) {
    }
    return NULL;
}

/* ---- Open and close -------------------------------------------------------------------------- */

/* Two descriptors a mapping exist for a moment; the worker's own are few. */
static void raise_open_files(void)
{
    struct rlimit limit;
    rlim_t wanted = FD_CHANNEL_FDS_MAX + 2048u;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < wanted) {
        limit.rlim_cur = wanted < limit.rlim_max ? wanted : limit.rlim_max;
        if (setrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur < wanted) {
            log_warn("fd_limit_low", "open_files=%llu wanted=%llu",
                     (unsigned long long)limit.rlim_cur, (unsigned long long)wanted);
        }
    }
}

/* A bound, listening socket in channel->listen_fd. */
static enum topkd_status channel_listen(struct fd_channel *channel, char *detail)
{
    const char *path = channel->config.path;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        return detail_set(detail, TOPKD_E_SYSTEM, "socket: %s", strerror(errno));
    }
    const char *what = "unlink";
    enum topkd_status status = TOPKD_OK;
    int error = unlink(path) != 0 && errno != ENOENT ? errno : 0;
    if (!error) {
        what = "bind";
        error = bind(fd, (const struct sockaddr *)&channel->address, sizeof(channel->address))
                    ? errno
                    : 0;
    }
    /* Until it listens nobody can connect. */
    if (!error) {
        status = socket_file_init(&channel->file, path, &channel->config.rights, detail);
    }
    if (!error && status == TOPKD_OK) {
        what = "listen";
        error = listen(fd, (int)FD_CHANNEL_CONNECTIONS_MAX) ? errno : 0;
    }
    if (error) {
        status = detail_set(detail, TOPKD_E_SYSTEM, "%s of %s: %s", what, path, strerror(error));
    }
    if (status != TOPKD_OK) {
        close(fd);
        return status;
    }
    channel->listen_fd = fd;
    return TOPKD_OK;
}

enum topkd_status fd_channel_open(const struct fd_channel_config *config,
                                  struct fd_channel **channel_p, char *detail)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(config->path) >= sizeof(address.sun_path)) {
        return detail_set(detail, TOPKD_E_INVALID, "socket path %s has %zu bytes, at most %zu fit",
                          config->path, strlen(config->path), sizeof(address.sun_path) - 1);
    }
    strcpy(address.sun_path, config->path);
    struct fd_channel *channel = calloc(1, sizeof(*channel));
    if (!channel) {
        return detail_set(detail, TOPKD_E_NO_MEMORY, "no memory for the descriptor channel");
    }
    channel->config = *config;
    channel->config.ticket_ms = config->ticket_ms ? config->ticket_ms : FD_TICKET_MS;
    channel->address = address;
    channel->config.path = channel->address.sun_path;
    for (uint32_t i = 0; i < FD_CHANNEL_CONNECTIONS_MAX; i++) {
        channel->connections[i].fd = -1;
    }
    for (uint32_t i = 0; i < FD_CHANNEL_PUBLISHED_MAX; i++) {
        channel->published[i].fd = -1;
    }
    pthread_mutex_init(&channel->lock, NULL);
    raise_open_files();
    enum topkd_status status = channel_listen(channel, detail);
    if (status != TOPKD_OK) {
        goto err_free;
    }
    channel->stop_fd = eventfd(0, EFD_CLOEXEC);
    if (channel->stop_fd < 0) {
        status = detail_set(detail, TOPKD_E_SYSTEM, "eventfd: %s", strerror(errno));
        goto err_unlisten;
    }
    int error = pthread_create(&channel->thread, NULL, channel_thread, channel);
    if (error) {
        status = detail_set(detail, TOPKD_E_SYSTEM, "pthread_create: %s", strerror(error));
        goto err_close_stop;
    }
    *channel_p = channel;
    return TOPKD_OK;
err_close_stop:
    close(channel->stop_fd);
err_unlisten:
    close(channel->listen_fd);
    unlink(channel->config.path);
err_free:
    pthread_mutex_destroy(&channel->lock);
    free(channel);
    return status;
}

void fd_channel_close(struct fd_channel *channel)
{
    if (!channel) {
        return;
    }
    uint64_t one = 1;
    ssize_t written = write(channel->stop_fd, &one, sizeof(one));
    topkd_assert(written == (ssize_t)sizeof(one));
    pthread_join(channel->thread, NULL);
    for (uint32_t i = 0; i < FD_CHANNEL_CONNECTIONS_MAX; i++) {
        if (channel->connections[i].fd >= 0) {
            fd_connection_close(channel, &channel->connections[i]);
        }
    }
    for (uint32_t i = 0; i < FD_CHANNEL_TICKETS_MAX; i++) {
        fd_channel_drop(channel, channel->tickets[i].bundle);
    }
    topkd_assert(channel->num_fds == 0);
    close(channel->listen_fd);
    close(channel->stop_fd);
    unlink(channel->config.path);
    pthread_mutex_destroy(&channel->lock);
    free(channel);
}
