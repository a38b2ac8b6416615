#include "endpoint_internal.h"

#include "assert.h"
#include "log.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

static void on_poll(uv_poll_t *poll, int status, int events);

/* ---- What the loop waits for ----------------------------------------------------------------- */

void endpoint_pipe_update(struct endpoint_pipe *pipe)
{
    int events = 0;
    if (pipe->is_forgotten)
        return;
    if (!pipe->is_doomed) {
        /* Who does not take its replies is not listened to. */
        bool is_heard = !pipe->is_starved && pipe->first_out == NULL;
        events = is_heard ? UV_READABLE : UV_DISCONNECT;
        if (pipe->first_out != NULL)
            events |= UV_WRITABLE;
    }
    if (events == pipe->events)
        return;
    pipe->events = events;
    int error =
        events == 0 ? uv_poll_stop(&pipe->poll) : uv_poll_start(&pipe->poll, events, on_poll);
    topkd_assert(error == 0);
}

void endpoint_pipe_doom(struct endpoint_pipe *pipe)
{
    if (pipe->is_doomed || pipe->is_forgotten)
        return;
    pipe->is_doomed = true;
    pipe->endpoint->num_doomed++;
    endpoint_pipe_update(pipe);
    endpoint_look_later(pipe->endpoint);
}

/* ---- The end of requests and pipes ----------------------------------------------------------- */

static void free_if_unused(struct endpoint_pipe *pipe)
{
    if (!pipe->is_forgotten || pipe->has_handle || pipe->num_requests > 0)
        return;
    peer_groups_free(&pipe->groups);
    free(pipe);
}

static void request_end(struct endpoint_request *request)
{
    struct endpoint_pipe *pipe = request->pipe;
    struct endpoint *endpoint = pipe->endpoint;

    if (request->next != NULL)
        request->next->previous = request->previous;
    if (request->previous != NULL)
        request->previous->next = request->next;
    else
        endpoint->requests = request->next;
    topkd_assert(pipe->num_requests > 0 && endpoint->num_requests > 0);
    endpoint->num_requests--;
    pipe->num_requests--;
    free(request);
    free_if_unused(pipe);
    if (endpoint->first_starved != NULL)
        endpoint_look_later(endpoint);
}

void endpoint_requests_free(struct endpoint *endpoint)
{
    while (endpoint->requests != NULL)
        request_end(endpoint->requests);
}

static void poll_closed(uv_handle_t *handle)
{
    struct endpoint_pipe *pipe = handle->data;
    struct endpoint *endpoint = pipe->endpoint;
    pipe->has_handle = false;
    free_if_unused(pipe);
    endpoint_handle_gone(endpoint);
}

static void drop_outgoing(struct endpoint_pipe *pipe)
{
    while (pipe->first_out != NULL) {
        struct outgoing *next = pipe->first_out->next;
        free(pipe->first_out);
        pipe->first_out = next;
    }
    pipe->last_out = &pipe->first_out;
    pipe->endpoint->num_unsent -= pipe->num_unsent;
    pipe->num_unsent = 0;
}

void endpoint_pipe_forget(struct endpoint_pipe *pipe)
{
    struct endpoint *endpoint = pipe->endpoint;

    topkd_assert(!pipe->is_forgotten);
    if (pipe->next != NULL)
        pipe->next->previous = pipe->previous;
    if (pipe->previous != NULL)
        pipe->previous->next = pipe->next;
    else
        endpoint->pipes = pipe->next;
    endpoint->num_pipes--;
    if (pipe->is_doomed)
        endpoint->num_doomed--;
    if (pipe->is_starved)
        endpoint_starved_remove(pipe);
    drop_outgoing(pipe);
    free(pipe->message);
    free(pipe->backlog);
    pipe->message = NULL;
    pipe->backlog = NULL;
    pipe->is_forgotten = true;
    uv_close((uv_handle_t *)&pipe->poll, poll_closed); /* the memory stays until then */
    close(pipe->fd);
    pipe->fd = -1;
    if (pipe->has_greeted && endpoint->handler->closed != NULL)
        endpoint->handler->closed(endpoint->owner, pipe);
}

/* ---- Writing --------------------------------------------------------------------------------- */

/* False: the connection is broken. */
static bool flush(struct endpoint_pipe *pipe)
{
    while (pipe->first_out != NULL) {
        struct outgoing *out = pipe->first_out;
        ssize_t sent = send(pipe->fd, out->bytes + out->num_sent, out->size - out->num_sent,
                            MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0)
            return errno == EAGAIN;
        out->num_sent += (size_t)sent;
        if (out->num_sent < out->size)
            continue;
        pipe->first_out = out->next;
        if (pipe->first_out == NULL)
            pipe->last_out = &pipe->first_out;
        free(out);
        pipe->num_unsent--;
        pipe->endpoint->num_unsent--;
    }
    return true;
}

/* Keeps what the socket has no room for; false: no memory. */
static bool queue(struct endpoint_pipe *pipe, const struct iovec *parts, size_t size,
                  size_t num_sent)
{
    struct outgoing *out = malloc(sizeof(*out) + size);
    if (out == NULL)
        return false;
    *out = (struct outgoing){
        .since_ms = uv_now(pipe->endpoint->loop), .size = size, .num_sent = num_sent};
    uint8_t *to = out->bytes;
    for (int i = 0; i < REPLY_PARTS; i++) {
        memcpy(to, parts[i].iov_base, parts[i].iov_len);
        to += parts[i].iov_len;
    }
    *pipe->last_out = out;
    pipe->last_out = &out->next;
    pipe->num_unsent++;
    pipe->endpoint->num_unsent++;
    return true;
}

/* Sends, or keeps in its turn. False: the connection is broken, or there is no memory. */
static bool send_parts(struct endpoint_pipe *pipe, struct iovec *parts, size_t size)
{
    ssize_t sent = 0;
    if (pipe->first_out == NULL) {
        const struct msghdr message = {.msg_iov = parts, .msg_iovlen = REPLY_PARTS};
        do
            sent = sendmsg(pipe->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
        while (sent < 0 && errno == EINTR);
        if (sent < 0 && errno != EAGAIN)
            return false; /* it hung up */
        if (sent < 0)
            sent = 0;
    }
    if ((size_t)sent == size)
        return true;
    if (!queue(pipe, parts, size, (size_t)sent)) {
        log_error("reply_lost", "reason=no_memory size_bytes=%zu uid=%" PRId64 " pid=%" PRId64,
                  size, pipe->peer.uid, pipe->peer.pid);
        return false;
    }
    return true;
}

void endpoint_reply(struct endpoint_request *request, const void *bytes, size_t size)
{
    struct endpoint_pipe *pipe = request->pipe;
    struct endpoint *endpoint = pipe->endpoint;

    if (pipe->is_forgotten || pipe->is_doomed) {
        request_end(request);
        return;
    }
    uint8_t head[STREAM_HEAD_SIZE];
    stream_put_head(head, request->hops_size + size);
    struct iovec parts[REPLY_PARTS] = {
        {.iov_base = head, .iov_len = sizeof(head)},
        {.iov_base = request->bytes, .iov_len = request->hops_size},
        {.iov_base = (void *)(uintptr_t)bytes, .iov_len = size},
    };
    pipe->active_ms = uv_now(endpoint->loop);
    if (!send_parts(pipe, parts, sizeof(head) + request->hops_size + size)) {
        endpoint_pipe_doom(pipe); /* the peer must not wait for an answer that will not come */
    } else if (pipe->num_unsent > endpoint->limits.unsent_max) {
        log_warn("connection_closed",
                 "reason=replies_not_taken num_replies=%" PRIu32 " uid=%" PRId64 " pid=%" PRId64,
                 pipe->num_unsent, pipe->peer.uid, pipe->peer.pid);
        endpoint_pipe_doom(pipe);
    }
    endpoint_pipe_update(pipe);
    request_end(request);
}

void endpoint_drop(struct endpoint_request *request)
{
    request_end(request);
}

/* ---- Events ---------------------------------------------------------------------------------- */

static void on_poll(uv_poll_t *poll, int status, int events)
{
    struct endpoint_pipe *pipe = poll->data;
    if (status < 0 || (events & UV_DISCONNECT) != 0) {
        endpoint_pipe_doom(pipe);
        return;
    }
    if ((events & UV_WRITABLE) != 0 && !flush(pipe))
        endpoint_pipe_doom(pipe);
    if (pipe->is_starved && pipe->first_out == NULL)
        endpoint_look_later(pipe->endpoint);
    if ((events & UV_READABLE) != 0 && !pipe->is_doomed)
        endpoint_pipe_read(pipe);
    endpoint_pipe_update(pipe);
}

/* ---- Opening --------------------------------------------------------------------------------- */

/* A fresh socket has room for these few bytes. */
static bool send_greeting(const struct endpoint_pipe *pipe)
{
    uint8_t greeting[STREAM_GREETING_SIZE];
    stream_put_greeting(greeting, STREAM_REP);
    return send(pipe->fd, greeting, sizeof(greeting), MSG_DONTWAIT | MSG_NOSIGNAL) ==
           (ssize_t)sizeof(greeting);
}

void endpoint_pipe_open(struct endpoint *endpoint, int fd)
{
    struct endpoint_pipe *pipe = calloc(1, sizeof(*pipe));
    if (pipe == NULL) {
        close(fd);
        return;
    }
    pipe->endpoint = endpoint;
    pipe->fd = fd;
    pipe->last_out = &pipe->first_out;
    peer_read(fd, &pipe->peer, &pipe->groups);
    bool is_full = endpoint->num_pipes >= endpoint->limits.pipes_max;
    if (is_full)
        log_warn("connection_refused",
                 "reason=limits.connections_max limit=%" PRIu32 " uid=%" PRId64 " pid=%" PRId64,
                 endpoint->limits.pipes_max, pipe->peer.uid, pipe->peer.pid);
    if (is_full || !send_greeting(pipe) || uv_poll_init(endpoint->loop, &pipe->poll, fd) != 0) {
        peer_groups_free(&pipe->groups);
        free(pipe);
        close(fd);
        return;
    }
    pipe->has_handle = true;
    pipe->poll.data = pipe;
    pipe->id = ++endpoint->next_id;
    pipe->active_ms = uv_now(endpoint->loop);
    pipe->next = endpoint->pipes;
    if (pipe->next != NULL)
        pipe->next->previous = pipe;
    endpoint->pipes = pipe;
    endpoint->num_pipes++;
    endpoint->num_handles++;
    endpoint_pipe_update(pipe);
}

/* ---- Pipes and requests as others see them --------------------------------------------------- */

const struct peer *endpoint_pipe_peer(const struct endpoint_pipe *pipe)
{
    return &pipe->peer;
}

const struct peer_groups *endpoint_pipe_groups(const struct endpoint_pipe *pipe)
{
    return &pipe->groups;
}

uint32_t endpoint_pipe_id(const struct endpoint_pipe *pipe)
{
    return pipe->id;
}

void endpoint_pipe_set_user(struct endpoint_pipe *pipe, void *user)
{
    pipe->user = user;
}

bool endpoint_pipe_has_ended(const struct endpoint_pipe *pipe)
{
    struct pollfd look = {.fd = pipe->fd, .events = POLLRDHUP};
    return pipe->fd < 0 || (poll(&look, 1, 0) == 1 && (look.revents & (POLLRDHUP | POLLHUP)) != 0);
}

void *endpoint_pipe_user(const struct endpoint_pipe *pipe)
{
    return pipe->user;
}

void endpoint_pipe_keep(struct endpoint_pipe *pipe, bool keep)
{
    pipe->is_kept = keep;
}

void endpoint_pipe_close(struct endpoint_pipe *pipe)
{
    endpoint_pipe_doom(pipe);
}

struct endpoint_pipe *endpoint_request_pipe(const struct endpoint_request *request)
{
    return request->pipe->is_forgotten ? NULL : request->pipe;
}

const void *endpoint_request_bytes(const struct endpoint_request *request, size_t *size_p)
{
    *size_p = request->size - request->hops_size;
    return request->bytes + request->hops_size;
}
