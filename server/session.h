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
#include "figures.h"
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

/* Choice: Hellos of a connection that may wait for its session; a client sends one. */
#define SESSION_HELLOS_MAX 4u

/* A Hello that is answered once the session is open: its request and the numbers of the message. */
struct session_hello {
    struct endpoint_request *request;
    uint64_t session, sequence;
};

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

    /* While it opens: a thread makes page, arena and lane. Until then nobody can ask it for
     * anything. */
    bool is_opening, is_open;
    uv_work_t opening;
    enum topkd_status open_status;
    char open_detail[WIRE_DETAIL_SIZE];
    uint32_t num_hellos;
    struct session_hello hellos[SESSION_HELLOS_MAX];

    struct orphan *orphan; /* watches the peer's process; NULL when that cannot be done */
    uv_work_t teardown;    /* gives the device side back, which may take long */
    uint32_t num_handles;  /* of libuv, to be closed before the memory goes; the teardown too */
    struct session *previous, *next;
};

/*
 * Begins to open a session for a pipe that has none and links it into the worker. What clients wait
 * for is answered when its device side is there, or with NO_MEMORY, SYSTEM or LIMIT of the device.
 * Errors at once: LIMIT (sessions), NO_MEMORY.
 */
enum topkd_status session_open(struct worker *worker, struct endpoint_pipe *pipe,
                               const struct wire_hello_request *hello, struct session **session_p,
                               char *detail);

/* Keeps a Hello of a session that is opening until it is open; false: too many wait. */
bool session_await(struct session *session, struct endpoint_request *request,
                   const struct wire_request *message);

/* Fills the answer to Hello. */
void session_describe(const struct session *session, struct wire_hello_reply *reply);

/* The client is gone or must go: cancels what is in flight with this status (a pending request is
 * still answered with it, where somebody reads). Once. */
void session_end(struct session *session, enum figures_end reason, enum topkd_status status);

/* The worker ends: buffers of clients that live on are theirs to remove. */
void session_orphans_close(struct worker *worker);

/* A lane has closed, with num_lanes lowered; likewise. */
void session_lane_closed(struct session *session);

/* A request in flight has ended; an ending session goes with its last one. */
void session_selection_ended(struct session *session);

#endif
