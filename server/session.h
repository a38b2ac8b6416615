/*
 * session.h - one client: a pipe, its regions, its memory shared with the daemon, its lane and its
 * requests in flight.
 *
 * Everything a request of the session needs is allocated when the session opens; the request path
 * takes from it. A session ends when its pipe or its process goes: what is in flight is cancelled,
 * and with the last of it regions, shared memory and lane go. For the loop thread.
 */
#ifndef TOPKD_SERVER_SESSION_H
#define TOPKD_SERVER_SESSION_H

#include "admission.h"
#include "arena.h"
#include "device.h"
#include "endpoint.h"
#include "lane.h"
#include "process_watch.h"
#include "region.h"
#include "reply_cache.h"
#include "select_batch.h"
#include "selection.h"
#include "topkd_wire.h"

#include <stdbool.h>
#include <stdint.h>

struct worker;
struct orphan;

struct session {
    uint64_t id;
    struct worker *worker;
    struct endpoint_pipe *pipe; /* NULL once the session is ending */
    struct peer peer;
    char client_name[WIRE_NAME_SIZE];
    uint64_t opened_ns;
    uint64_t num_requests;     /* Selects answered or in flight */
    struct wire_limits limits; /* as Hello said; they hold for the session's life */

    struct region_table regions;
    struct admission_rate registrations;
    struct device_shared *page;
    struct device_shared *arena_memory; /* NULL without an arena */
    struct arena arena;
    struct device_lane *lane;
    struct reply_cache replies;

    uint32_t num_outstanding;
    struct selection *selections; /* [limits.outstanding_max] */
    struct selection *free_selections;
    struct select_batch *batches; /* [outstanding_max + 1] */
    struct select_batch *free_batches;
    int32_t *lengths; /* [outstanding_max * WIRE_LENGTHS_MAX], untouched pages cost nothing */

    uint32_t num_lanes; /* open and closing ones */
    struct lane *lanes; /* [limits.lanes_max] */

    struct orphan *orphan; /* watches the peer's process; NULL when that cannot be done */
    uv_work_t teardown;    /* gives the device side back, which may take long */
    uint32_t num_handles;  /* of libuv, to be closed before the memory goes; the teardown too */
    struct session *previous, *next;
};

/*
 * Opens a session for a pipe that has none and links it into the worker. Errors: LIMIT (sessions),
 * NO_MEMORY, SYSTEM (shared memory, thread).
 */
enum topkd_status session_open(struct worker *worker, struct endpoint_pipe *pipe,
                               const struct wire_hello_request *hello, struct session **session_p,
                               char *detail);

/* Fills the answer to Hello. */
void session_describe(const struct session *session, struct wire_hello_reply *reply);

/* The client is gone or must go: cancels what is in flight with this status (a pending request is
 * still answered with it, where somebody reads). Once. */
void session_end(struct session *session, enum topkd_status status);

/* The worker ends: buffers of clients that live on are theirs to remove. */
void session_orphans_close(struct worker *worker);

/* A lane has closed, with num_lanes lowered; likewise. */
void session_lane_closed(struct session *session);

/* A request in flight has ended; an ending session goes with its last one. */
void session_selection_ended(struct session *session);

#endif
