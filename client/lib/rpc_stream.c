/*
 * rpc_stream.c - what goes over a connection: requests out, replies in, each to its request.
 *
 * A request is written by the thread that posts it. What the socket has no room for is kept and
 * written by the connection's thread, in its order; a peer that takes nothing for a while is given
 * up. The thread reads for as long as the connection lasts and answers requests one after another.
 */
#include "fault.h"
#include "rpc_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Choice: how long a request may wait for its way out. A worker that takes none for so long
 * hangs. */
#define SEND_NS (5 * CLOCK_NS_PER_S)

/* The rest of a message that the socket had no room for. */
struct outgoing {
    struct list node;                  /* in rpc->unsent */
    const struct rpc_request *request; /* only to be compared: it may be gone */
    bool has_begun;                    /* a part of it has left, so all of it must */
    uint64_t since_ns;
    size_t size, num_sent;
    uint8_t bytes[];
};

/* ---- Out (with the mutex) -------------------------------------------------------------------- */

void rpc_hang_up(struct rpc *rpc)
{
    if (!rpc->is_lost) {
        rpc->is_lost = true;
        (void)shutdown(rpc->fd, SHUT_RDWR); /* what has been received can still be read */
    }
}

/* As send(2), but a full socket takes 0 bytes. */
static ssize_t send_some(const struct rpc *rpc, const uint8_t *bytes, size_t size)
{
    ssize_t sent;
    do {
        sent = send(rpc->fd, bytes, size, MSG_DONTWAIT | MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    return sent < 0 && errno == EAGAIN ? 0 : sent;
}

static void drop_outgoing(struct outgoing *outgoing)
{
    list_remove(&outgoing->node);
    free(outgoing);
}

/* Writes what was left over; false: the connection is broken, or its first one waits too long. */
static bool flush(struct rpc *rpc)
{
    list_each(node, &rpc->unsent)
    {
        struct outgoing *outgoing = list_entry(node, struct outgoing, node);
        ssize_t sent = send_some(rpc, outgoing->bytes + outgoing->num_sent,
                                 outgoing->size - outgoing->num_sent);
        if (sent < 0) {
            return false;
        }
        outgoing->num_sent += (size_t)sent;
        outgoing->has_begun = outgoing->has_begun || sent > 0;
        if (outgoing->num_sent < outgoing->size) {
            return clock_now_ns() - outgoing->since_ns < SEND_NS;
        }
        drop_outgoing(outgoing);
    }
    return true;
}

/* Keeps the rest of a message; its thread is to look for room. */
static bool keep(struct rpc *rpc, const struct rpc_request *request, size_t size, size_t num_sent)
{
    struct outgoing *outgoing = malloc(sizeof(*outgoing) + size - num_sent);
    if (!outgoing) {
        return false;
    }
    *outgoing = (struct outgoing){.request = request,
                                  .has_begun = num_sent > 0,
                                  .since_ns = clock_now_ns(),
                                  .size = size - num_sent};
    memcpy(outgoing->bytes, rpc->out + num_sent, outgoing->size);
    if (list_empty(&rpc->unsent)) {
        const uint64_t one = 1;
        (void)!write(rpc->wake_fd, &one, sizeof(one)); /* cannot fail: the counter is small */
    }
    list_insert(&rpc->unsent, &outgoing->node);
    return true;
}

/* Sends rpc->out, or keeps of it what does not go out now. */
static enum topkd_status send_out(struct rpc *rpc, const struct rpc_request *request, size_t size,
                                  char *detail)
{
    ssize_t sent = list_empty(&rpc->unsent) ? send_some(rpc, rpc->out, size) : 0;
    if (sent < 0 && errno != ENOMEM && errno != ENOBUFS) {
        rpc_hang_up(rpc);
        return rpc_fault_lost(rpc, detail);
    }
    if (sent == (ssize_t)size) {
        return TOPKD_OK;
    }
    if (sent >= 0 && keep(rpc, request, size, (size_t)sent)) {
        return TOPKD_OK;
    }
    if (sent > 0) {
        rpc_hang_up(rpc); /* half a message: nothing can follow it */
    }
    return fault(detail, TOPKD_E_NO_MEMORY, "no memory to send %s to %s",
                 wire_kind_name(request->kind), rpc->url);
}

static struct rpc_request *find(struct rpc *rpc, uint32_t id)
{
    list_each(node, &rpc->requests)
    {
        struct rpc_request *request = list_entry(node, struct rpc_request, node);
        if (request->id == id) {
            return request;
        }
    }
    return NULL;
}

static uint32_t next_id(struct rpc *rpc)
{
    do {
        rpc->last_id = (rpc->last_id + 1) | STREAM_ID_LAST;
        rpc->has_wrapped = rpc->has_wrapped || rpc->last_id == STREAM_ID_LAST;
    } while (rpc->has_wrapped && find(rpc, rpc->last_id));
    return rpc->last_id;
}

enum topkd_status rpc_post(struct rpc *rpc, const struct wire_request *wire,
                           struct rpc_request *request, char *detail)
{
    size_t size;
    pthread_mutex_lock(&rpc->mutex);
    enum topkd_status status = rpc->is_lost
                                   ? rpc_fault_lost(rpc, detail)
                                   : wire_request_encode(wire, rpc->out + RPC_PREFIX_SIZE,
                                                         WIRE_MESSAGE_SIZE_MAX, &size, detail);
    if (status == TOPKD_OK) {
        request->id = next_id(rpc);
        request->sequence = wire->sequence;
        request->kind = wire->kind;
        stream_put_head(rpc->out, STREAM_ID_SIZE + size);
        stream_put_id(rpc->out + STREAM_HEAD_SIZE, request->id);
        status = send_out(rpc, request, RPC_PREFIX_SIZE + size, detail);
    }
    if (status == TOPKD_OK) {
        list_insert(&rpc->requests, &request->node);
    }
    pthread_mutex_unlock(&rpc->mutex);
    return status;
}

bool rpc_take_back(struct rpc *rpc, struct rpc_request *request)
{
    if (list_empty(&request->node)) {
        return false;
    }
    list_remove(&request->node);
    list_each(node, &rpc->unsent)
    {
        struct outgoing *outgoing = list_entry(node, struct outgoing, node);
        if (outgoing->request == request && !outgoing->has_begun) {
            drop_outgoing(outgoing);
        }
    }
    return true;
}

/* ---- In (without the mutex) ------------------------------------------------------------------ */

/* What the reply says to the request that it carries the identifier of. */
static enum topkd_status check_reply(const struct rpc *rpc, const struct rpc_request *request,
                                     char *detail)
{
    const struct wire_reply *reply = &rpc->reply;
    if (reply->status != TOPKD_OK) {
        return fault(detail, reply->status, "%s",
                     reply->detail[0] ? reply->detail : wire_status_text(reply->status));
    }
    if (reply->kind != request->kind || reply->sequence != request->sequence) {
        return fault(detail, TOPKD_E_PROTOCOL,
                     "%s answered request %" PRIu64 " (%s) with a reply to %" PRIu64 " (%s)",
                     rpc->url, request->sequence, wire_kind_name(request->kind), reply->sequence,
                     wire_kind_name(reply->kind));
    }
    return TOPKD_OK;
}

/* One message. What answers nothing that is still wanted is dropped. */
static void take_message(struct rpc *rpc, const uint8_t *bytes, size_t size)
{
    char detail[WIRE_DETAIL_SIZE] = "";
    struct rpc_answer answer = {.detail = detail};
    pthread_mutex_lock(&rpc->mutex);
    struct rpc_request *request = find(rpc, stream_get_id(bytes));
    if (request) {
        list_remove(&request->node);
    }
    pthread_mutex_unlock(&rpc->mutex);
    if (!request) {
        return;
    }
    answer.status = wire_reply_decode(bytes + STREAM_ID_SIZE, size - STREAM_ID_SIZE, &rpc->buffer,
                                      &rpc->reply, detail);
    if (answer.status == TOPKD_OK) {
        answer.reply = &rpc->reply;
        answer.status = check_reply(rpc, request, detail);
    }
    request->answer(request, &answer);
}

/* Reads once, and takes apart what is there; false: the connection is at its end, or what comes is
 * no message. */
static bool take_in(struct rpc *rpc)
{
    ssize_t got =
        recv(rpc->fd, rpc->in + rpc->in_size, sizeof(rpc->in) - rpc->in_size, MSG_DONTWAIT);
    if (got <= 0) {
        return got < 0 && (errno == EAGAIN || errno == EINTR);
    }
    size_t size = rpc->in_size + (size_t)got;
    size_t at = 0;
    while (size - at >= STREAM_HEAD_SIZE) {
        uint64_t length;
        if (!stream_get_head(rpc->in + at, &length) || length < STREAM_ID_SIZE ||
            length > STREAM_ID_SIZE + WIRE_MESSAGE_SIZE_MAX) {
            return false;
        }
        if (size - at < STREAM_HEAD_SIZE + length) {
            break;
        }
        take_message(rpc, rpc->in + at + STREAM_HEAD_SIZE, (size_t)length);
        at += STREAM_HEAD_SIZE + (size_t)length;
    }
    rpc->in_size = (uint32_t)(size - at);
    memmove(rpc->in, rpc->in + at, rpc->in_size);
    return true;
}

/* ---- The thread ------------------------------------------------------------------------------ */

/* Waits until there is something to read or, while something is unsent, room to write. */
static bool wait_and_serve(struct rpc *rpc)
{
    pthread_mutex_lock(&rpc->mutex);
    bool is_full = !list_empty(&rpc->unsent);
    int timeout_ms = -1;
    if (is_full) {
        const struct outgoing *first = list_entry(rpc->unsent.next, struct outgoing, node);
        timeout_ms = clock_left_ms(first->since_ns + SEND_NS);
    }
    pthread_mutex_unlock(&rpc->mutex);
    struct pollfd polled[] = {
        {.fd = rpc->fd, .events = (short)(is_full ? POLLIN | POLLOUT : POLLIN)},
        {.fd = rpc->wake_fd, .events = POLLIN},
    };
    if (poll(polled, 2, timeout_ms) < 0) {
        return errno == EINTR;
    }
    if (polled[1].revents != 0) {
        uint64_t count;
        (void)!read(rpc->wake_fd, &count, sizeof(count)); /* what woke it is looked at next time */
    }
    if ((polled[0].revents & ~POLLOUT) != 0 && !take_in(rpc)) {
        return false;
    }
    pthread_mutex_lock(&rpc->mutex);
    bool moves = flush(rpc);
    pthread_mutex_unlock(&rpc->mutex);
    return moves;
}

/* Whoever still waits hears that the connection is gone; none can come after them. */
static void lose(struct rpc *rpc)
{
    char detail[WIRE_DETAIL_SIZE];
    const struct rpc_answer lost = {
        .lost = true, .status = rpc_fault_lost(rpc, detail), .detail = detail};
    pthread_mutex_lock(&rpc->mutex);
    rpc_hang_up(rpc);
    list_each(node, &rpc->unsent)
    {
        drop_outgoing(list_entry(node, struct outgoing, node));
    }
    while (!list_empty(&rpc->requests)) {
        struct rpc_request *request = list_entry(rpc->requests.next, struct rpc_request, node);
        list_remove(&request->node);
        pthread_mutex_unlock(&rpc->mutex);
        request->answer(request, &lost);
        pthread_mutex_lock(&rpc->mutex);
    }
    void (*lost_cb)(void *arg) = rpc->lost_cb;
    void *lost_arg = rpc->lost_arg;
    rpc->is_told = true;
    pthread_mutex_unlock(&rpc->mutex);
    if (lost_cb) {
        lost_cb(lost_arg);
    }
    pthread_mutex_lock(&rpc->mutex);
    rpc->has_ended = true;
    pthread_cond_broadcast(&rpc->changed);
    pthread_mutex_unlock(&rpc->mutex);
}

void *rpc_run(void *arg)
{
    while (wait_and_serve(arg)) {
    }
    lose(arg);
    return NULL;
}
