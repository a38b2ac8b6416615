#include "assert.h"
#include "detail.h"
#include "fd_channel_internal.h"
#include "log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

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

void fd_channel_drop(struct fd_channel *channel, struct fd_bundle *bundle)
{
    pthread_mutex_lock(&channel->lock);
    bundle_drop_locked(channel, bundle);
    pthread_mutex_unlock(&channel->lock);
}

void fd_channel_expire(struct fd_channel *channel)
{
    uint64_t now = fd_channel_now_ms();
    pthread_mutex_lock(&channel->lock);
    for (uint32_t i = 0; i < FD_CHANNEL_TICKETS_MAX; i++) {
        struct fd_ticket *ticket = &channel->tickets[i];
        if (ticket->bundle && now >= ticket->deadline_ms) {
            log_warn("fd_ticket_expired", "pid=%lld fds=%u", (long long)ticket->peer.pid,
                     ticket->bundle->num_fds);
            bundle_drop_locked(channel, ticket->bundle);
            ticket->bundle = NULL;
        }
    }
    pthread_mutex_unlock(&channel->lock);
}

enum topkd_status fd_channel_issue(struct fd_channel *channel, struct fd_connection *connection,
                                   uint8_t bytes_p[FD_TICKET_SIZE], char *detail)
{
    uint8_t bytes[FD_TICKET_SIZE];
    if (getrandom(bytes, sizeof(bytes), 0) != (ssize_t)sizeof(bytes)) {
        return detail_set(detail, TOPKD_E_SYSTEM, "getrandom: %s", strerror(errno));
    }
    struct fd_ticket *ticket = NULL;
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
        ticket->deadline_ms = fd_channel_now_ms() + channel->config.ticket_ms;
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
        struct fd_ticket *ticket = &channel->tickets[i];
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
    struct fd_published *published = NULL;
    pthread_mutex_lock(&channel->lock);
    for (uint32_t i = 0; i < FD_CHANNEL_PUBLISHED_MAX && !published; i++) {
        if (channel->published[i].fd < 0) {
            published = &channel->published[i];
        }
    }
    if (published) {
        *published = (struct fd_published){.fd = fd, .peer = *peer};
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
        struct fd_published *published = &channel->published[i];
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
