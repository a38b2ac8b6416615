#include "assert.h"
#include "detail.h"
#include "fd_channel_internal.h"
#include "log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define CONNECTION_MS 2000u /* choice: a hand-over takes well under a millisecond */
#define DEAF_MS 250u        /* choice: pause after an accept that found no descriptor */

void fd_connection_close(struct fd_channel *channel, struct fd_connection *connection)
{
    fd_channel_drop(channel, connection->bundle);
    close(connection->fd);
    *connection = (struct fd_connection){.fd = -1};
}

/* A peer that does not take the one packet owed to it loses it. `fd` travels along unless -1. */
static void answer_send(struct fd_connection *connection, struct fd_answer *answer, int fd)
{
    answer->magic = FD_MAGIC;
    answer->version = FD_VERSION;
    (void)rights_send(connection->fd, answer, sizeof(*answer), &fd, fd >= 0 ? 1 : 0);
}

static void answer_error(struct fd_connection *connection, enum topkd_status status,
                         const char *detail)
{
    struct fd_answer answer = {.status = status};
    memcpy(answer.detail, detail, strnlen(detail, sizeof(answer.detail) - 1)); /* cut to fit */
    answer_send(connection, &answer, -1);
}

/* A place for one more connection of the peer, or NULL. */
static struct fd_connection *place_for(struct fd_channel *channel, const struct peer *peer)
{
    struct fd_connection *unused = NULL;
    uint32_t num_own = 0;
    for (uint32_t i = 0; i < FD_CHANNEL_CONNECTIONS_MAX; i++) {
        struct fd_connection *connection = &channel->connections[i];
        if (connection->fd < 0) {
            unused = connection;
        } else {
            num_own += connection->peer.pid == peer->pid;
        }
    }
    if (unused && num_own < FD_CHANNEL_PEER_CONNECTIONS_MAX) {
        return unused;
    }
    log_warn("fd_channel_full", "pid=%lld own=%u", (long long)peer->pid, num_own);
    return NULL;
}

void fd_connection_accept(struct fd_channel *channel)
{
    int fd = accept4(channel->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
        if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
            /* Who waits keeps waiting; the thread must not spin until then. */
            log_warn("fd_channel_accept", "reason=\"%s\"", strerror(errno));
            channel->deaf_until_ms = fd_channel_now_ms() + DEAF_MS;
        }
        return;
    }
    char detail[WIRE_DETAIL_SIZE] = "";
    struct fd_connection connection = {.fd = fd,
                                       .deadline_ms = fd_channel_now_ms() + CONNECTION_MS};
    struct peer_groups groups;
    peer_read(fd, &connection.peer, &groups);
    bool is_admitted = gate_admits(channel->config.gate, &connection.peer, &groups, detail);
    peer_groups_free(&groups);
    struct fd_connection *place = is_admitted ? place_for(channel, &connection.peer) : NULL;
    if (place) {
        *place = connection;
        return;
    }
    if (!is_admitted) { /* it gets an answer, never a place */
        log_info("fd_channel_refused", "uid=%lld pid=%lld", (long long)connection.peer.uid,
                 (long long)connection.peer.pid);
        answer_error(&connection, TOPKD_E_NOT_PERMITTED, detail);
    }
    close(fd);
}

/* Sends a copy of the published descriptor; under the lock, so that it is not unpublished and
 * closed meanwhile. */
static void answer_fetch(struct fd_channel *channel, struct fd_connection *connection,
                         const uint8_t ticket[FD_TICKET_SIZE])
{
    bool found = false;
    pthread_mutex_lock(&channel->lock);
    for (uint32_t i = 0; i < FD_CHANNEL_PUBLISHED_MAX && !found; i++) {
        const struct fd_published *published = &channel->published[i];
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
static enum topkd_status connection_keep(struct fd_channel *channel,
                                         struct fd_connection *connection,
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
    *num_fds_p = FD_PACKET_FDS_MAX;
    ssize_t size = rights_receive(fd, packet, sizeof(*packet), fds, num_fds_p);
    if (size < 0 && errno != EMSGSIZE) {
        return errno == EAGAIN ? 0 : -1;
    }
    if (size == 0 && *num_fds_p == 0) {
        return -1;
    }
    *is_valid_p = size == (ssize_t)sizeof(*packet) && packet->magic == FD_MAGIC &&
                  packet->version == FD_VERSION &&
                  (packet->kind == FD_OFFER ? packet->num_fds >= 1 && packet->num_fds == *num_fds_p
                                            : packet->kind == FD_FETCH && *num_fds_p == 0);
    return 1;
}

bool fd_connection_read(struct fd_channel *channel, struct fd_connection *connection)
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
                            "not a packet of version %u, or not all of its descriptors came along: "
                            "the worker may be out of them",
                            FD_VERSION);
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
    status = fd_channel_issue(channel, connection, answer.ticket, detail);
    if (status == TOPKD_OK) {
        answer_send(connection, &answer, -1);
    } else {
        answer_error(connection, status, detail);
    }
    return false;
}
