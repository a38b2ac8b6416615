#include "endpoint_internal.h"

#include "assert.h"
#include "log.h"
#include "nng_repair.h"

#include <inttypes.h>
#include <stdlib.h>

void endpoint_pipe_free(struct endpoint_pipe *pipe)
{
    free(pipe->groups.ids);
    free(pipe);
}

/* ---- On NNG's threads: push, wake, receive on
 * --------------------------------------------------------- */

static void event_push_locked(struct endpoint *endpoint, struct event *event)
{
    event->next = NULL;
    *endpoint->last_event = event;
    endpoint->last_event = &event->next;
}

/* The next context that may receive, or NULL. */
static struct endpoint_request *receiver_take_locked(struct endpoint *endpoint)
{
    struct endpoint_request *request = endpoint->free_requests;
    if (request == NULL || endpoint->is_receiving || endpoint->is_stopping)
        return NULL;
    endpoint->free_requests = request->next_free;
    endpoint->is_receiving = true;
    request->state = REQUEST_RECEIVING;
    return request;
}

static void receive(struct endpoint_request *request)
{
    nng_aio_set_timeout(request->aio, NNG_DURATION_INFINITE);
    nng_ctx_recv(request->ctx, request->aio);
}

void endpoint_aio_callback(void *arg)
{
    struct endpoint_request *request = arg;
    struct endpoint *endpoint = request->endpoint;
    struct endpoint_request *next = NULL;

    pthread_mutex_lock(&endpoint->mutex);
    event_push_locked(endpoint, &request->event);
    if (request->state == REQUEST_RECEIVING) {
        endpoint->is_receiving = false;
        next = receiver_take_locked(endpoint);
    }
    pthread_mutex_unlock(&endpoint->mutex);
    uv_async_send(&endpoint->async);
    if (next != NULL)
        receive(next);
}

static struct endpoint_pipe **hash_slot(struct endpoint *endpoint, uint32_t id)
{
    struct endpoint_pipe **slot = &endpoint->hash[id % PIPE_HASH_SIZE];
    while (*slot != NULL && (*slot)->pipe.id != id)
        slot = &(*slot)->hash_next;
    return slot;
}

static int64_t pipe_option(nng_pipe pipe, const char *name)
{
    uint64_t value = 0;
    return nng_pipe_get_uint64(pipe, name, &value) == 0 ? (int64_t)value : -1;
}

static void pipe_added(struct endpoint *endpoint, nng_pipe id)
{
    struct endpoint_pipe *pipe = calloc(1, sizeof(*pipe));
    if (pipe == NULL) {
        nng_pipe_close(id);
        return;
    }
    pipe->endpoint = endpoint;
    pipe->pipe = id;
    nng_repair_groups_begin();
    pipe->peer = (struct peer){.uid = pipe_option(id, NNG_OPT_IPC_PEER_UID),
                               .gid = pipe_option(id, NNG_OPT_IPC_PEER_GID),
                               .pid = pipe_option(id, NNG_OPT_IPC_PEER_PID)};
    nng_repair_groups_end(&pipe->groups);
    pipe->opened = (struct event){.kind = EVENT_PIPE_OPENED, .object = pipe};
    pipe->closed = (struct event){.kind = EVENT_PIPE_CLOSED, .object = pipe};

    pthread_mutex_lock(&endpoint->mutex);
    bool is_full = endpoint->num_pipes >= endpoint->pipes_max;
    if (!is_full) {
        *hash_slot(endpoint, id.id) = pipe;
        endpoint->num_pipes++;
        event_push_locked(endpoint, &pipe->opened);
    }
    uint32_t limit = endpoint->pipes_max;
    pthread_mutex_unlock(&endpoint->mutex);
    if (!is_full) {
        uv_async_send(&endpoint->async);
        return;
    }
    log_warn("connection_refused",
             "reason=limits.connections_max limit=%" PRIu32 " uid=%" PRId64 " pid=%" PRId64, limit,
             pipe->peer.uid, pipe->peer.pid);
    endpoint_pipe_free(pipe);
    nng_pipe_close(id);
}

static void pipe_removed(struct endpoint *endpoint, nng_pipe id)
{
    pthread_mutex_lock(&endpoint->mutex);
    struct endpoint_pipe *pipe = *hash_slot(endpoint, id.id);
    if (pipe != NULL)
        event_push_locked(endpoint, &pipe->closed);
    pthread_mutex_unlock(&endpoint->mutex);
    if (pipe != NULL)
        uv_async_send(&endpoint->async);
}

void endpoint_pipe_callback(nng_pipe pipe, nng_pipe_ev event, void *arg)
{
    if (event == NNG_PIPE_EV_ADD_PRE)
        pipe_added(arg, pipe);
    else if (event == NNG_PIPE_EV_REM_POST)
        pipe_removed(arg, pipe);
}

/* ---- On the loop ----------------------------------------------------------------------------- */

void endpoint_pipe_unref(struct endpoint_pipe *pipe)
{
    topkd_assert(pipe->num_requests > 0);
    pipe->num_requests--;
    if (pipe->num_requests == 0 && !pipe->is_announced)
        endpoint_pipe_free(pipe);
}

void endpoint_request_free(struct endpoint_request *request)
{
    struct endpoint *endpoint = request->endpoint;

    pthread_mutex_lock(&endpoint->mutex);
    request->state = REQUEST_FREE;
    request->next_free = endpoint->free_requests;
    endpoint->free_requests = request;
    struct endpoint_request *next = receiver_take_locked(endpoint);
    pthread_mutex_unlock(&endpoint->mutex);
    if (next != NULL)
        receive(next);
}

static void pipe_opened(struct endpoint_pipe *pipe)
{
    struct endpoint *endpoint = pipe->endpoint;

    pipe->is_announced = true;
    pipe->active_ms = uv_now(endpoint->sweep.loop);
    pipe->next = endpoint->pipes;
    if (pipe->next != NULL)
        pipe->next->previous = pipe;
    endpoint->pipes = pipe;
    if (endpoint->handler->opened != NULL)
        endpoint->handler->opened(endpoint->owner, pipe);
}

void endpoint_pipe_doom(struct endpoint_pipe *pipe)
{
    if (pipe->is_doomed)
        return;
    pipe->is_doomed = true;
    nng_pipe_close(pipe->pipe);
}

void endpoint_pipe_forget(struct endpoint_pipe *pipe)
{
    struct endpoint *endpoint = pipe->endpoint;

    pthread_mutex_lock(&endpoint->mutex);
    struct endpoint_pipe **slot = hash_slot(endpoint, pipe->pipe.id);
    topkd_assert(*slot == pipe);
    *slot = pipe->hash_next;
    endpoint->num_pipes--;
    pthread_mutex_unlock(&endpoint->mutex);

    if (pipe->next != NULL)
        pipe->next->previous = pipe->previous;
    if (pipe->previous != NULL)
        pipe->previous->next = pipe->next;
    else
        endpoint->pipes = pipe->next;
    pipe->num_requests++; /* keeps it alive through the callback */
    pipe->is_announced = false;
    if (endpoint->handler->closed != NULL)
        endpoint->handler->closed(endpoint->owner, pipe);
    endpoint_pipe_unref(pipe);
}

static void request_received(struct endpoint_request *request)
{
    struct endpoint *endpoint = request->endpoint;

    int error = nng_aio_result(request->aio);
    if (error == NNG_ECLOSED)
        return; /* the endpoint is closing */
    if (error != 0) {
        log_warn("receive_failed", "reason=\"%s\"", nng_strerror(error));
        endpoint_request_free(request);
        return;
    }
    nng_msg *message = nng_aio_get_msg(request->aio);
    uint32_t id = nng_msg_get_pipe(message).id;
    pthread_mutex_lock(&endpoint->mutex);
    struct endpoint_pipe *pipe = *hash_slot(endpoint, id);
    pthread_mutex_unlock(&endpoint->mutex);
    if (pipe == NULL || !pipe->is_announced || pipe->is_doomed) {
        /* Its closing overtook the message. */
        nng_msg_free(message);
        endpoint_request_free(request);
        return;
    }
    request->message = message;
    request->pipe = pipe;
    request->state = REQUEST_HELD;
    pipe->num_requests++;
    pipe->active_ms = uv_now(endpoint->sweep.loop);
    endpoint->handler->request(endpoint->owner, request);
}

static void request_sent(struct endpoint_request *request)
{
    struct endpoint_pipe *pipe = request->pipe;
    int error = nng_aio_result(request->aio);

    if (error != 0) /* else the message is NNG's */
        nng_msg_free(nng_aio_get_msg(request->aio));
    request->pipe = NULL;
    request->endpoint->num_unsent--;
    pipe->num_unsent--;
    if (error == NNG_ETIMEDOUT && pipe->is_announced && !pipe->is_doomed) {
        log_warn("connection_closed", "reason=reply_not_taken uid=%" PRId64 " pid=%" PRId64,
                 pipe->peer.uid, pipe->peer.pid);
        endpoint_pipe_doom(pipe);
    }
    endpoint_pipe_unref(pipe);
    if (error != NNG_ECLOSED)
        endpoint_request_free(request);
}

static void event_handle(struct event *event)
{
    struct endpoint_request *request;

    switch (event->kind) {
    case EVENT_PIPE_OPENED:
        pipe_opened(event->object);
        break;
    case EVENT_PIPE_CLOSED:
        endpoint_pipe_forget(event->object);
        break;
    case EVENT_REQUEST:
        request = event->object;
        if (request->state == REQUEST_RECEIVING)
            request_received(request);
        else
            request_sent(request);
        break;
    }
}

void endpoint_async_callback(uv_async_t *async)
{
    struct endpoint *endpoint = async->data;

    /* Wake-ups coalesce: take the whole queue, and look again until it is empty. */
    if (endpoint->is_closing)
        return;
    endpoint->is_handling = true;
    for (;;) {
        pthread_mutex_lock(&endpoint->mutex);
        struct event *event = endpoint->first_event;
        endpoint->first_event = NULL;
        endpoint->last_event = &endpoint->first_event;
        pthread_mutex_unlock(&endpoint->mutex);
        if (event == NULL)
            break;
        while (event != NULL) {
            struct event *next = event->next; /* the event may be queued again, or freed */
            event_handle(event);
            event = next;
        }
    }
    endpoint->is_handling = false;
}

void endpoint_sweep_callback(uv_timer_t *timer)
{
    struct endpoint *endpoint = timer->data;
    uint64_t now_ms = uv_now(timer->loop);

    for (struct endpoint_pipe *pipe = endpoint->pipes; pipe != NULL; pipe = pipe->next) {
        if (pipe->is_kept || pipe->is_doomed || pipe->num_requests > 0 ||
            now_ms - pipe->active_ms < endpoint->limits.idle_ms)
            continue;
        log_debug("connection_closed", "reason=idle uid=%" PRId64 " pid=%" PRId64, pipe->peer.uid,
                  pipe->peer.pid);
        endpoint_pipe_doom(pipe);
    }
}

/* ---- Pipes and requests ---------------------------------------------------------------------- */

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
    return pipe->pipe.id;
}

void endpoint_pipe_set_user(struct endpoint_pipe *pipe, void *user)
{
    pipe->user = user;
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
    topkd_assert(request->state == REQUEST_HELD);
    return request->pipe->is_announced ? request->pipe : NULL;
}

const void *endpoint_request_bytes(const struct endpoint_request *request, size_t *size_p)
{
    topkd_assert(request->state == REQUEST_HELD);
    *size_p = nng_msg_len(request->message);
    return nng_msg_body(request->message);
}

void endpoint_drop(struct endpoint_request *request)
{
    topkd_assert(request->state == REQUEST_HELD);
    nng_msg_free(request->message);
    request->message = NULL;
    endpoint_pipe_unref(request->pipe);
    request->pipe = NULL;
    endpoint_request_free(request);
}

void endpoint_reply(struct endpoint_request *request, const void *bytes, size_t size)
{
    topkd_assert(request->state == REQUEST_HELD);
    struct endpoint *endpoint = request->endpoint;
    struct endpoint_pipe *pipe = request->pipe;
    if (!pipe->is_announced || pipe->is_doomed) {
        endpoint_drop(request);
        return;
    }
    /* The reply goes out in the request's message, whose room mostly suffices. */
    nng_msg_clear(request->message);
    if (nng_msg_append(request->message, bytes, size) != 0) {
        log_error("reply_lost", "reason=no_memory size_bytes=%zu uid=%" PRId64 " pid=%" PRId64,
                  size, pipe->peer.uid, pipe->peer.pid);
        endpoint_pipe_doom(pipe); /* the peer must not wait for an answer that will not come */
        endpoint_drop(request);
        return;
    }
    request->state = REQUEST_SENDING;
    endpoint->num_unsent++;
    pipe->num_unsent++;
    pipe->active_ms = uv_now(endpoint->sweep.loop);
    if (pipe->num_unsent > endpoint->limits.unsent_max) {
        log_warn("connection_closed",
                 "reason=replies_not_taken num_replies=%" PRIu32 " uid=%" PRId64 " pid=%" PRId64,
                 pipe->num_unsent, pipe->peer.uid, pipe->peer.pid);
        endpoint_pipe_doom(pipe);
    }
    nng_aio_set_timeout(request->aio, (nng_duration)endpoint->limits.reply_ms);
    nng_aio_set_msg(request->aio, request->message);
    request->message = NULL;
    nng_ctx_send(request->ctx, request->aio);
}
