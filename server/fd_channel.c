#include "fd_channel.h"

#include "assert.h"
#include "detail.h"
#include "log.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define CONNECTION_MS 2000u /* choice: a hand-over takes well under a millisecond */

struct connection {
    int fd; /* -1: unused */
    struct peer peer;
    uint64_t deadline_ms;
    struct fd_bundle *bundle; /* what has come so far; NULL at first */
};

struct ticket {
    struct fd_bundle *bundle; /* NULL: unused */
    struct peer peer;
    uint64_t deadline_ms;
    uint8_t bytes[FD_TICKET_SIZE];
};

struct published {
    int fd; /* -1: unused */
    struct peer peer;
    uint8_t bytes[FD_TICKET_SIZE];
};

struct fd_channel {
    struct fd_channel_config config;
    struct sockaddr_un address;
    int listen_fd;
    int stop_fd; /* eventfd: the thread ends */
    pthread_t thread;
    struct connection connections[FD_CHANNEL_CONNECTIONS_MAX]; /* the thread's alone */
    pthread_mutex_t lock;                                      /* of what follows */
    struct ticket tickets[FD_CHANNEL_TICKETS_MAX];
    struct published published[FD_CHANNEL_PUBLISHED_MAX];
    uint32_t num_fds; /* in tickets and in connections */
};

static uint64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000u + (uint64_t)now.tv_nsec / 1000000u;
}

void fd_bundle_destroy(struct fd_bundle *bundle)
{
    if (!bundle) {
        return;
    }
    for (uint32_t i = 0; i < bundle->num_fds; i++) {
        if (bundle->entries[i].fd >= 0) {
            close(bundle->entries[i].fd);
        }
    }
    free(bundle);
}

/* ---- Tickets --------------------------------------------------------------------------------- */

static void bundle_drop_locked(struct fd_channel *channel, struct fd_bundle *bundle)
{
    if (bundle) {
        topkd_assert(channel->num_fds >= bundle->num_fds);
        channel->num_fds -= bundle->num_fds;
        fd_bundle_destroy(bundle);
    }
}

static void bundle_drop(struct fd_channel *channel, struct fd_bundle *bundle)
{
    pthread_mutex_lock(&channel->lock);
    bundle_drop_locked(channel, bundle);
    pthread_mutex_unlock(&channel->lock);
}

static void tickets_expire(struct fd_channel *channel)
{
    uint64_t now = now_ms();
    pthread_mutex_lock(&channel->lock);
    for (uint32_t i = 0; i < FD_CHANNEL_TICKETS_MAX; i++) {
        struct ticket *ticket = &channel->tickets[i];
        if (ticket->bundle && now >= ticket->deadline_ms) {
            log_warn("fd_ticket_expired", "pid=%lld fds=%u", (long long)ticket->peer.pid,
                     ticket->bundle->num_fds);
            bundle_drop_locked(channel, ticket->bundle);
            ticket->bundle = NULL;
        }
    }
    pthread_mutex_unlock(&channel->lock);
}

/* Moves the connection's descriptors under a new ticket. */
static enum topkd_status ticket_issue(struct fd_channel *channel, struct connection *connection,
                                      uint8_t bytes_p[FD_TICKET_SIZE], char *detail)
{
    uint8_t bytes[FD_TICKET_SIZE];
    if (getrandom(bytes, sizeof(bytes), 0) != (ssize_t)sizeof(bytes)) {
        return detail_set(detail, TOPKD_E_SYSTEM, "getrandom: %s", strerror(errno));
    }
    struct ticket *ticket = NULL;
    uint32_t num_own = 0;
    pthread_mutex_lock(&channel->lock);
    for (uint32_t i = 0; i < FD_CHANNEL_TICKETS_MAX; i++) {
        if (!channel->tickets[i].bundle) {
            ticket = &channel->tickets[i];
        } else {
            num_own += channel->tickets[i].peer.pid == connection->peer.pid;
        }
    }
    if (num_own >= FD_CHANNEL_PEER_TICKETS_MAX) {
        ticket = NULL;
    }
    if (ticket) {
        ticket->bundle = connection->bundle;
        ticket->peer = connection->peer;
        ticket->deadline_ms = now_ms() + channel->config.ticket_ms;
        memcpy(ticket->bytes, bytes, sizeof(bytes));
        connection->bundle = NULL;
    }
    pthread_mutex_unlock(&channel->lock);
    if (!ticket) {
        return detail_set(detail, TOPKD_E_BUSY,
                          "%u hand-overs of this process wait to be registered (at most %u, of "
                          "all processes %u); register, then retry",
                          num_own, FD_CHANNEL_PEER_TICKETS_MAX, FD_CHANNEL_TICKETS_MAX);
    }
    memcpy(bytes_p, bytes, sizeof(bytes));
    return TOPKD_OK;
}

enum topkd_status fd_channel_take(struct fd_channel *channel, const uint8_t bytes[FD_TICKET_SIZE],
                                  const struct peer *peer, struct fd_bundle **bundle_p,
                                  char *detail)
{
    struct fd_bundle *bundle = NULL;
    pthread_mutex_lock(&channel->lock);
    for (uint32_t i = 0; i < FD_CHANNEL_TICKETS_MAX && !bundle; i++) {
        struct ticket *ticket = &channel->tickets[i];
        if (ticket->bundle && !memcmp(ticket->bytes, bytes, FD_TICKET_SIZE) &&
            ticket->peer.pid == peer->pid && ticket->peer.uid == peer->uid) {
            bundle = ticket->bundle;
            ticket->bundle = NULL;
            channel->num_fds -= bundle->num_fds;
        }
    }
    pthread_mutex_unlock(&channel->lock);
    if (!bundle) {
        return detail_set(detail, TOPKD_E_MAP_FAILED,
                          "no descriptors wait under this ticket for pid %lld; hand them over "
                          "again and register within %u ms",
                          (long long)peer->pid, channel->config.ticket_ms);
    }
    *bundle_p = bundle;
    return TOPKD_OK;
}

/* ---- Published descriptors ------------------------------------------------------------------- */

enum topkd_status fd_channel_publish(struct fd_channel *channel, int fd, const struct peer *peer,
                                     uint8_t ticket_p[FD_TICKET_SIZE], char *detail)
{
    uint8_t bytes[FD_TICKET_SIZE];
    if (getrandom(bytes, sizeof(bytes), 0) != (ssize_t)sizeof(bytes)) {
        return detail_set(detail, TOPKD_E_SYSTEM, "getrandom: %s", strerror(errno));
    }
    struct published *published = NULL;
    pthread_mutex_lock(&channel->lock);
    for (uint32_t i = 0; i < FD_CHANNEL_PUBLISHED_MAX && !published; i++) {
        if (channel->published[i].fd < 0) {
            published = &channel->published[i];
        }
    }
    if (published) {
        *published = (struct published){.fd = fd, .peer = *peer};
        memcpy(published->bytes, bytes, sizeof(bytes));
    }
    pthread_mutex_unlock(&channel->lock);
    if (!published) {
        return detail_set(detail, TOPKD_E_LIMIT,
                          "%u descriptors are published, the most there may "
                          "be",
                          FD_CHANNEL_PUBLISHED_MAX);
    }
    memcpy(ticket_p, bytes, sizeof(bytes));
    return TOPKD_OK;
}

void fd_channel_unpublish(struct fd_channel *channel, const uint8_t ticket[FD_TICKET_SIZE])
{
    bool found = false;
    pthread_mutex_lock(&channel->lock);
    for (uint32_t i = 0; i < FD_CHANNEL_PUBLISHED_MAX && !found; i++) {
        struct published *published = &channel->published[i];
        found = published->fd >= 0 && !memcmp(published->bytes, ticket, FD_TICKET_SIZE);
        if (found) {
            published->fd = -1;
        }
    }
    pthread_mutex_unlock(&channel->lock);
    topkd_assert(found);
}

uint32_t fd_channel_num_fds(struct fd_channel *channel)
{
    pthread_mutex_lock(&channel->lock);
    uint32_t num_fds = channel->num_fds;
    pthread_mutex_unlock(&channel->lock);
    return num_fds;
}

/* ---- Connections ----------------------------------------------------------------------------- */

static void connection_close(struct fd_channel *channel, struct connection *connection)
{
    bundle_drop(channel, connection->bundle);
    close(connection->fd);
    *connection = (struct connection){.fd = -1};
}

static void connection_accept(struct fd_channel *channel)
{
    int fd = accept4(channel->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
        return; /* the peer has gone again, or descriptors are short: poll tells next time */
    }
    struct ucred cred;
    socklen_t size = sizeof(cred);
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &size) != 0) {
        close(fd);
        return;
    }
    struct connection *unused = NULL;
    uint32_t num_own = 0;
    for (uint32_t i = 0; i < FD_CHANNEL_CONNECTIONS_MAX; i++) {
        struct connection *connection = &channel->connections[i];
        if (connection->fd < 0) {
            unused = connection;
        } else {
            num_own += connection->peer.pid == cred.pid;
        }
    }
    if (!unused || num_own >= FD_CHANNEL_PEER_CONNECTIONS_MAX) {
        log_warn("fd_channel_full", "pid=%d own=%u", (int)cred.pid, num_own);
        close(fd);
        return;
    }
    *unused = (struct connection){
        .fd = fd,
        .peer = {.uid = cred.uid, .gid = cred.gid, .pid = cred.pid},
        .deadline_ms = now_ms() + CONNECTION_MS,
    };
}

/* A peer that does not take the one packet owed to it loses it. `fd` travels along unless -1. */
static void answer_send(struct connection *connection, struct fd_answer *answer, int fd)
{
    answer->magic = FD_MAGIC;
    answer->version = FD_VERSION;
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec iov = {.iov_base = answer, .iov_len = sizeof(*answer)};
    struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};
    if (fd >= 0) {
        message.msg_control = control.bytes;
        message.msg_controllen = sizeof(control.bytes);
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(header), &fd, sizeof(int));
    }
    (void)sendmsg(connection->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void answer_error(struct connection *connection, enum topkd_status status,
                         const char *detail)
{
    struct fd_answer answer = {.status = status};
    memcpy(answer.detail, detail, strnlen(detail, sizeof(answer.detail) - 1)); /* cut to fit */
    answer_send(connection, &answer, -1);
}

/* Sends a copy of the published descriptor; under the lock, so that it is not unpublished and
 * closed meanwhile. */
static void answer_fetch(struct fd_channel *channel, struct connection *connection,
                         const uint8_t ticket[FD_TICKET_SIZE])
{
    bool found = false;
    pthread_mutex_lock(&channel->lock);
    for (uint32_t i = 0; i < FD_CHANNEL_PUBLISHED_MAX && !found; i++) {
        const struct published *published = &channel->published[i];
        found = published->fd >= 0 && !memcmp(published->bytes, ticket, FD_TICKET_SIZE) &&
                published->peer.pid == connection->peer.pid &&
                published->peer.uid == connection->peer.uid;
        if (found) {
            struct fd_answer answer = {.status = TOPKD_OK, .num_fds = 1};
            answer_send(connection, &answer, published->fd);
        }
    }
    pthread_mutex_unlock(&channel->lock);
    if (!found) {
        answer_error(connection, TOPKD_E_NOT_PERMITTED,
                     "no descriptor is published under this ticket for this process");
    }
}

/* Appends descriptors to the connection's bundle, which then owns them. */
static enum topkd_status connection_keep(struct fd_channel *channel, struct connection *connection,
                                         const struct fd_packet *packet, const int *fds,
                                         char *detail)
{
    uint32_t had = connection->bundle ? connection->bundle->num_fds : 0;
    uint32_t total = had + packet->num_fds;
    if (total > FD_TICKET_FDS_MAX) {
        return detail_set(detail, TOPKD_E_LIMIT,
                          "%u descriptors for one region, the most is %u; register the memory in "
                          "parts",
                          total, FD_TICKET_FDS_MAX);
    }
    size_t size = sizeof(struct fd_bundle) + total * sizeof(struct fd_bundle_entry);
    struct fd_bundle *bundle = realloc(connection->bundle, size);
    if (!bundle) {
        return detail_set(detail, TOPKD_E_NO_MEMORY, "no memory for %u descriptors", total);
    }
    bundle->num_fds = had;
    connection->bundle = bundle;
    pthread_mutex_lock(&channel->lock);
    bool fits = channel->num_fds + packet->num_fds <= FD_CHANNEL_FDS_MAX;
    if (fits) {
        channel->num_fds += packet->num_fds;
    }
    pthread_mutex_unlock(&channel->lock);
    if (!fits) {
        return detail_set(detail, TOPKD_E_BUSY,
                          "%u descriptors wait to be registered, the most there may be; retry",
                          FD_CHANNEL_FDS_MAX);
    }
    for (uint32_t i = 0; i < packet->num_fds; i++) {
        bundle->entries[had + i] =
            (struct fd_bundle_entry){.fd = fds[i], .size_bytes = packet->size_bytes[i]};
    }
    bundle->num_fds = total;
    return TOPKD_OK;
}

/* Receives one packet and its descriptors. -1: the connection is over; 0: nothing yet; 1: *packet
 * and fds[*num_fds_p], which the caller owns even when the packet is wrong. */
static int packet_receive(int fd, struct fd_packet *packet, int *fds, uint32_t *num_fds_p,
                          bool *is_valid_p)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int) * FD_PACKET_FDS_MAX)];
    } control;
    struct iovec iov = {.iov_base = packet, .iov_len = sizeof(*packet)};
    struct msghdr message = {.msg_iov = &iov,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof(control.bytes)};
    ssize_t size = recvmsg(fd, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    *num_fds_p = 0;
    if (size < 0) {
        return errno == EAGAIN || errno == EINTR ? 0 : -1;
    }
    for (struct cmsghdr *header = CMSG_FIRSTHDR(&message); header;
         header = CMSG_NXTHDR(&message, header)) {
        if (header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS) {
            uint32_t count = (uint32_t)((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
            topkd_assert(*num_fds_p + count <= FD_PACKET_FDS_MAX);
            memcpy(fds + *num_fds_p, CMSG_DATA(header), count * sizeof(int));
            *num_fds_p += count;
        }
    }
    if (size == 0 && *num_fds_p == 0) {
        return -1;
    }
    *is_valid_p = size == (ssize_t)sizeof(*packet) &&
                  !(message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) && packet->magic == FD_MAGIC &&
                  packet->version == FD_VERSION &&
                  (packet->kind == FD_OFFER ? packet->num_fds >= 1 && packet->num_fds == *num_fds_p
                                            : packet->kind == FD_FETCH && *num_fds_p == 0);
    return 1;
}

/* Takes one packet; true while the connection goes on. */
static bool connection_read(struct fd_channel *channel, struct connection *connection)
{
    struct fd_packet packet;
    int fds[FD_PACKET_FDS_MAX];
    uint32_t num_fds = 0;
    bool is_valid = false;
    int result = packet_receive(connection->fd, &packet, fds, &num_fds, &is_valid);
    if (result <= 0) {
        return result == 0;
    }
    char detail[WIRE_DETAIL_SIZE] = "";
    enum topkd_status status = TOPKD_OK;
    if (!is_valid) {
        status = detail_set(detail, TOPKD_E_PROTOCOL,
                            "not a packet of version %u (%u descriptors came along; the worker "
                            "may be out of them)",
                            FD_VERSION, num_fds);
    } else if (packet.kind == FD_FETCH) {
        answer_fetch(channel, connection, packet.ticket);
        return false;
    } else {
        status = connection_keep(channel, connection, &packet, fds, detail);
    }
    if (status != TOPKD_OK) {
        for (uint32_t i = 0; i < num_fds; i++) {
            close(fds[i]);
        }
        answer_error(connection, status, detail);
        return false;
    }
    if (!packet.is_last) {
        return true;
    }
    struct fd_answer answer = {.status = TOPKD_OK, .num_fds = connection->bundle->num_fds};
    status = ticket_issue(channel, connection, answer.ticket, detail);
    if (status == TOPKD_OK) {
        answer_send(connection, &answer, -1);
    } else {
        answer_error(connection, status, detail);
    }
    return false;
}

/* ---- The thread ------------------------------------------------------------------------------ */

/* One turn: waits up to a second, accepts, reads, expires. False: stop. */
static bool channel_turn(struct fd_channel *channel)
{
    struct pollfd polls[2 + FD_CHANNEL_CONNECTIONS_MAX];
    struct connection *owners[FD_CHANNEL_CONNECTIONS_MAX];
    nfds_t num_polls = 2;
    polls[0] = (struct pollfd){.fd = channel->stop_fd, .events = POLLIN};
    polls[1] = (struct pollfd){.fd = channel->listen_fd, .events = POLLIN};
    for (uint32_t i = 0; i < FD_CHANNEL_CONNECTIONS_MAX; i++) {
        if (channel->connections[i].fd >= 0) {
            owners[num_polls - 2] = &channel->connections[i];
            polls[num_polls++] =
                (struct pollfd){.fd = channel->connections[i].fd, .events = POLLIN};
        }
    }
    if (poll(polls, num_polls, 1000) < 0 && errno != EINTR) {
        log_error("fd_channel_poll", "errno=%d", errno);
        return false;
    }
    if (polls[0].revents) {
        return false;
    }
    uint64_t now = now_ms();
    for (nfds_t i = 2; i < num_polls; i++) {
        struct connection *connection = owners[i - 2];
        bool goes_on = now < connection->deadline_ms;
        if (goes_on && polls[i].revents) {
            goes_on = connection_read(channel, connection);
        }
        if (!goes_on) {
            connection_close(channel, connection);
        }
    }
    if (polls[1].revents) {
        connection_accept(channel);
    }
    tickets_expire(channel);
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

/* A bound, listening socket with the wished mode, in *fd_p. */
static enum topkd_status channel_listen(const struct fd_channel_config *config,
                                        const struct sockaddr_un *address, int *fd_p, char *detail)
{
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        return detail_set(detail, TOPKD_E_SYSTEM, "socket: %s", strerror(errno));
    }
    const char *what = "unlink";
    int error = unlink(config->path) != 0 && errno != ENOENT ? errno : 0;
    /* Nobody may connect between bind and chmod: the file comes into being closed. */
    if (!error) {
        what = "bind";
        error = fchmod(fd, 0) != 0 ? errno : 0;
        error =
            !error && bind(fd, (const struct sockaddr *)address, sizeof(*address)) ? errno : error;
    }
    if (!error && config->gid >= 0) {
        what = "chown";
        error = chown(config->path, (uid_t)-1, (gid_t)config->gid) ? errno : 0;
    }
    if (!error) {
        what = "chmod";
        error = chmod(config->path, (mode_t)config->mode) ? errno : 0;
    }
    if (!error) {
        what = "listen";
        error = listen(fd, (int)FD_CHANNEL_CONNECTIONS_MAX) ? errno : 0;
    }
    if (error) {
        close(fd);
        return detail_set(detail, TOPKD_E_SYSTEM, "%s of %s: %s", what, config->path,
                          strerror(error));
    }
    *fd_p = fd;
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
    enum topkd_status status =
        channel_listen(&channel->config, &channel->address, &channel->listen_fd, detail);
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
            connection_close(channel, &channel->connections[i]);
        }
    }
    for (uint32_t i = 0; i < FD_CHANNEL_TICKETS_MAX; i++) {
        bundle_drop(channel, channel->tickets[i].bundle);
    }
    topkd_assert(channel->num_fds == 0);
    close(channel->listen_fd);
    close(channel->stop_fd);
    unlink(channel->config.path);
    pthread_mutex_destroy(&channel->lock);
    free(channel);
}
