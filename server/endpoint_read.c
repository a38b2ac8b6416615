/* What a connection sends: greeting, messages, and whose turn it is. */
#include "endpoint_internal.h"

#include "assert.h"
#include "log.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

/* The peer's greeting is complete. */
static void greet(struct endpoint_pipe *pipe)
{
    struct endpoint *endpoint = pipe->endpoint;
    if (!stream_is_greeting(pipe->head, STREAM_REQ)) {
        endpoint_pipe_doom(pipe);
        return;
    }
    pipe->has_greeted = true;
    if (endpoint->handler->opened != NULL)
        endpoint->handler->opened(endpoint->owner, pipe);
}

/* The head of a message is complete. */
static void begin_message(struct endpoint_pipe *pipe)
{
    uint64_t length;
    if (!stream_get_head(pipe->head, &length) || length > RECEIVE_SIZE_MAX ||
        length < STREAM_ID_SIZE) {
        log_debug("connection_closed",
                  "reason=no_message length=%" PRIu64 " uid=%" PRId64 " pid=%" PRId64, length,
                  pipe->peer.uid, pipe->peer.pid);
        endpoint_pipe_doom(pipe);
        return;
    }
    pipe->message = malloc(sizeof(*pipe->message) + length);
    if (pipe->message == NULL) {
        log_error("message_lost", "reason=no_memory size_bytes=%" PRIu64, length);
        endpoint_pipe_doom(pipe);
        return;
    }
    *pipe->message = (struct endpoint_request){.pipe = pipe, .size = length};
    pipe->message_size = 0;
}

/* Finds the end of the identifiers; false when there is none. */
static bool find_hops(struct endpoint_request *request)
{
    for (size_t end = STREAM_ID_SIZE; end <= request->size && end <= STREAM_ID_SIZE * HOPS_MAX;
         end += STREAM_ID_SIZE) {
        if ((stream_get_id(request->bytes + end - STREAM_ID_SIZE) & STREAM_ID_LAST) != 0) {
            request->hops_size = end;
            return true;
        }
    }
    return false;
}

/* The message is complete, and a request is free for it. */
static void deliver(struct endpoint_pipe *pipe)
{
    struct endpoint *endpoint = pipe->endpoint;
    struct endpoint_request *request = pipe->message;

    pipe->message = NULL;
    if (!find_hops(request)) {
        free(request);
        endpoint_pipe_doom(pipe);
        return;
    }
    request->next = endpoint->requests;
    if (request->next != NULL)
        request->next->previous = request;
    endpoint->requests = request;
    endpoint->num_requests++;
    pipe->num_requests++;
    pipe->active_ms = uv_now(endpoint->loop);
    endpoint->handler->request(endpoint->owner, request);
}

void endpoint_starved_remove(struct endpoint_pipe *pipe)
{
    struct endpoint *endpoint = pipe->endpoint;
    struct endpoint_pipe **link = &endpoint->first_starved;
    while (*link != pipe)
        link = &(*link)->next_starved;
    *link = pipe->next_starved;
    if (endpoint->last_starved == &pipe->next_starved)
        endpoint->last_starved = link;
    pipe->next_starved = NULL;
    pipe->is_starved = false;
    endpoint->num_starved--;
}

/* The next message must wait: what was read does so here, what was not with the sender. */
static void starve(struct endpoint_pipe *pipe, const uint8_t *bytes, size_t size)
{
    struct endpoint *endpoint = pipe->endpoint;
    topkd_assert(size <= READ_SIZE);
    if (size > 0 && pipe->backlog == NULL)
        pipe->backlog = malloc(READ_SIZE);
    if (size > 0 && pipe->backlog == NULL) {
        log_error("message_lost", "reason=no_memory size_bytes=%zu", size);
        endpoint_pipe_doom(pipe);
        return;
    }
    if (size > 0)
        memmove(pipe->backlog, bytes, size); /* it may lie there already, further on */
    pipe->backlog_size = size;
    pipe->is_starved = true;
    pipe->next_starved = NULL;
    *endpoint->last_starved = pipe;
    endpoint->last_starved = &pipe->next_starved;
    endpoint->num_starved++;
}

/* Whether a message may be handed over: a request is free, and the peer takes its replies. */
static bool may_go_on(const struct endpoint_pipe *pipe)
{
    const struct endpoint *endpoint = pipe->endpoint;
    return endpoint->num_requests < endpoint->limits.num_contexts && pipe->first_out == NULL;
}

static size_t copy_some(uint8_t *to, size_t *have_p, size_t want, const uint8_t *from, size_t size)
{
    size_t num = want - *have_p < size ? want - *have_p : size;
    memcpy(to + *have_p, from, num);
    *have_p += num;
    return num;
}

/* Takes bytes apart into messages, and hands those over: one turn of the pipe. */
static void feed(struct endpoint_pipe *pipe, const uint8_t *bytes, size_t size)
{
    size_t at = 0;
    uint32_t num_delivered = 0;
    while (!pipe->is_doomed) {
        if (pipe->message != NULL && pipe->message_size == pipe->message->size) {
            if (num_delivered == TURN_MESSAGES || !may_go_on(pipe)) {
                starve(pipe, bytes + at, size - at);
                if (num_delivered == TURN_MESSAGES)
                    endpoint_look_later(pipe->endpoint);
                return;
            }
            num_delivered++;
            deliver(pipe);
        } else if (at == size) {
            return;
        } else if (pipe->message != NULL) {
            at += copy_some(pipe->message->bytes, &pipe->message_size, pipe->message->size,
                            bytes + at, size - at);
        } else {
            size_t want = pipe->has_greeted ? STREAM_HEAD_SIZE : STREAM_GREETING_SIZE;
            at += copy_some(pipe->head, &pipe->head_size, want, bytes + at, size - at);
            if (pipe->head_size < want)
                return;
            pipe->head_size = 0;
            if (pipe->has_greeted)
                begin_message(pipe);
            else
                greet(pipe);
        }
    }
}

void endpoint_resume_starved(struct endpoint *endpoint)
{
    uint32_t num_left = endpoint->num_starved;
    struct endpoint_pipe *next = endpoint->first_starved;
    while (num_left-- > 0) {
        struct endpoint_pipe *pipe = next;
        next = pipe->next_starved;
        if (!may_go_on(pipe))
            continue; /* the end of a request or of a reply lets us look again */
        endpoint_starved_remove(pipe);
        feed(pipe, pipe->backlog, pipe->backlog_size);
        if (!pipe->is_starved) {
            free(pipe->backlog);
            pipe->backlog = NULL;
            pipe->backlog_size = 0;
        }
        endpoint_pipe_update(pipe);
    }
}

/* One read; the loop comes back while there is more. */
void endpoint_pipe_read(struct endpoint_pipe *pipe)
{
    struct endpoint *endpoint = pipe->endpoint;
    uint8_t *to = endpoint->scratch;
    size_t room = sizeof(endpoint->scratch);
    bool is_large = false; /* what is missing of a large message goes where it belongs */

    if (pipe->message != NULL && pipe->message->size - pipe->message_size >= room) {
        is_large = true;
        to = pipe->message->bytes + pipe->message_size;
        room = pipe->message->size - pipe->message_size;
    }
    ssize_t got = recv(pipe->fd, to, room, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (got <= 0) {
        endpoint_pipe_doom(pipe);
    } else if (is_large) {
        pipe->message_size += (size_t)got;
        feed(pipe, NULL, 0);
    } else {
        feed(pipe, to, (size_t)got);
    }
}
