/*
 * endpoint_internal.h - what the two files of the endpoint share: endpoint.c opens and closes,
 * endpoint_events.c moves pipes and requests.
 */
#ifndef TOPKD_SERVER_ENDPOINT_INTERNAL_H
#define TOPKD_SERVER_ENDPOINT_INTERNAL_H

#include "endpoint.h"

#include <nng/nng.h>
#include <pthread.h>

#define PIPE_HASH_SIZE 1024u /* choice: chains stay short up to some thousand connections */

enum event_kind { EVENT_PIPE_OPENED, EVENT_PIPE_CLOSED, EVENT_REQUEST };

/* What NNG's threads hand to the loop; embedded in what it is about. */
struct event {
    struct event *next;
    enum event_kind kind;
    void *object;
};

struct endpoint_pipe {
    struct endpoint *endpoint;
    nng_pipe pipe;
    struct peer peer;
    struct peer_groups groups;
    struct endpoint_pipe *hash_next; /* guarded by endpoint->mutex */
    struct event opened, closed;     /* each is queued once */
    /* The rest is the loop's. */
    bool is_announced; /* opened() was called and closed() was not */
    bool is_kept;
    bool is_doomed; /* we have closed it; closed() is on its way */
    uint64_t active_ms;
    uint32_t num_requests; /* that point here: received and not yet answered and sent */
    uint32_t num_unsent;
    void *user;
    struct endpoint_pipe *previous, *next; /* of the announced ones */
};

enum request_state { REQUEST_FREE, REQUEST_RECEIVING, REQUEST_HELD, REQUEST_SENDING };

struct endpoint_request {
    struct endpoint *endpoint;
    nng_ctx ctx;
    nng_aio *aio;
    struct event event;
    struct endpoint_request *next_free; /* guarded by endpoint->mutex */
    enum request_state state;           /* set before the operation whose end it tells apart */
    /* The loop's. */
    nng_msg *message;
    struct endpoint_pipe *pipe;
};

struct endpoint {
    nng_socket socket;
    struct endpoint_limits limits;
    const struct endpoint_handler *handler;
    void *owner;
    uv_async_t async;
    uv_timer_t sweep;
    uint32_t num_handles; /* of libuv, still open */
    uint32_t num_requests;
    struct endpoint_request **requests; /* [num_requests] */
    uint32_t num_unsent;
    bool is_closing;
    bool is_handling;            /* events are being handed to the handler */
    struct endpoint_pipe *pipes; /* announced ones */

    pthread_mutex_t mutex; /* guards what follows, shared with NNG's threads */
    struct event *first_event, **last_event;
    struct endpoint_pipe *hash[PIPE_HASH_SIZE]; /* by id: from the opened event to the closed one */
    uint32_t num_pipes;                         /* in the hash */
    uint32_t pipes_max;                         /* copy of the limit */
    /* One context receives at a time, and its callback lets the next one: so messages of a pipe
     * reach the loop in the order in which they were sent. */
    bool is_receiving;
    bool is_stopping; /* nothing may begin to receive */
    struct endpoint_request *free_requests;
};

/* The callbacks that endpoint.c installs: of NNG (any thread) and of the loop. */
void endpoint_aio_callback(void *request);
void endpoint_pipe_callback(nng_pipe pipe, nng_pipe_ev event, void *endpoint);
void endpoint_async_callback(uv_async_t *async);
void endpoint_sweep_callback(uv_timer_t *timer);

/* The context is free: it receives, or waits for its turn to. */
void endpoint_request_free(struct endpoint_request *request);
void endpoint_pipe_free(struct endpoint_pipe *pipe);
/* A request of the pipe has ended; frees a closed pipe with its last one. */
void endpoint_pipe_unref(struct endpoint_pipe *pipe);
/* Closes the connection, once. */
void endpoint_pipe_doom(struct endpoint_pipe *pipe);
/* Takes a pipe out of all lists and tells the handler. */
void endpoint_pipe_forget(struct endpoint_pipe *pipe);

#endif
