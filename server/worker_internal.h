/*
 * worker_internal.h - the state of a worker and what its files need of each other.
 *
 *   worker.c           start, the loop, the end
 *   worker_control.c   the supervisor's channel, heartbeats, canary, drain, reload
 *   worker_dispatch.c  a message: decode, who may, exactly once, to its handler
 *   worker_query.c     Stats and Sessions
 *   worker_figures.c   what the supervisor may read at any time
 *   worker_lag.c       how long a turn of the loop takes
 *   session.c, selection.c  what their headers say
 *
 * Everything belongs to the loop thread, except the list of ended jobs, which the device pushes to.
 */
#ifndef TOPKD_SERVER_WORKER_INTERNAL_H
#define TOPKD_SERVER_WORKER_INTERNAL_H

#include "bucket.h"
#include "device.h"
#include "endpoint.h"
#include "figures.h"
#include "gate.h"
#include "region_cache.h"
#include "session.h"
#include "stats.h"
#include "worker.h"
#include "worker_fault.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <uv.h>

/* Choice: contexts beyond the queue, so that refusals and queries pass beside full queues; more
 * than some clients together can hold by not reading. */
#define WORKER_CONTEXTS_SPARE 512u
/* Choice: replies a client may leave untaken beyond its requests in flight. A burst of refusals is
 * so long at most; who leaves more does not read. */
#define WORKER_UNSENT_SPARE 128u
/* Choice: a client that has not taken a reply for so long has stopped reading. */
#define WORKER_REPLY_MS 5000u
/* Choice: an ending worker gives its clients so long to read the last replies, and twice that when
 * some have not even left. */
#define WORKER_LINGER_MS 100u
#define WORKER_LINGER_MAX_MS 200u

struct worker_canary {
    uv_timer_t timer;
    uv_work_t work;
    bool is_running;
    bool is_wrong; /* for good: nothing more is selected, and the supervisor kills this process */
    uint64_t seed;
    uint64_t finished_ns;          /* the last one; 0: never */
    char detail[WIRE_DETAIL_SIZE]; /* of the wrong one */
    struct topk_routes routes;     /* as the last one found them */
    /* Of the one that runs; written on its thread. */
    enum topkd_status work_status;
    char work_detail[WIRE_DETAIL_SIZE];
    struct topk_routes work_routes;
};

/* Jobs that the device has ended, on their way to the loop. */
struct worker_ended {
    pthread_mutex_t mutex; /* guards the list */
    struct selection *first, **last;
    uv_async_t async;
};

/* While requests come and go the loop does not sleep: it looks at the device and at its sockets in
 * turns. Waking it costs more than most selections take. */
struct worker_spin {
    uv_idle_t idle; /* runs in every turn, and keeps the loop from blocking */
    bool is_looking;
    pthread_t thread; /* the loop's */
    uint64_t looked_ns;
    uint64_t not_before_ns; /* there was no processor to spare */
    long num_preempted;     /* as last looked at */
};

/* Choice: what the loop's longest turn is told of: the last minute, in spans of ten seconds. */
#define WORKER_LAG_SPANS 6u
#define WORKER_LAG_SPAN_S 10u

struct worker_lag {
    uv_prepare_t prepare;
    uint64_t turned_ns,
        idle_ns;   /* when the last turn ended, and what the loop had waited by then */
    uint64_t span; /* number of the one that runs */
    uint64_t longest_ns[WORKER_LAG_SPANS];
};

struct worker {
    struct settings settings; /* a copy; its live part changes on reload */
    const struct worker_args *args;
    uv_loop_t loop;
    enum wire_device_state state;
    bool is_ending; /* the loop is being emptied */
    int exit_code;
    uint64_t started_ns;
    uint64_t rested_ns; /* ending: when the last session was gone; 0: not yet */

    uid_t uid; /* this process's own */
    struct gate gate;
    char main_socket[WIRE_URL_SIZE]; /* the daemon's, whose access list counts */
    struct device *device;
    struct device_info device_info;
    struct bucket_table buckets;
    struct region_cache regions;
    struct endpoint *endpoint;

    struct session *sessions;
    uint32_t num_sessions; /* ending ones included */
    uint64_t next_session;
    uint32_t next_generation;
    uint64_t next_lane;
    uint32_t num_admitted; /* selections in flight */
    uint32_t num_busy;     /* sessions with a selection in flight */
    uint32_t num_orphans;
    struct orphan *orphans; /* of sessions that have ended */
    struct worker_ended ended;
    struct worker_spin spin;
    struct worker_lag lag;
    struct wire_stats_reply stats;
    struct figures_tally tally;
    struct figures_page *figures_page; /* NULL: nobody reads one */
    struct figures figures;            /* scratch, to publish */

    uv_poll_t control;
    uv_timer_t heartbeat;
    uv_timer_t drain;  /* its deadline */
    uv_timer_t settle; /* looks, outside of any handler, whether drain or end have come to rest */
    struct worker_canary canary;
    struct worker_fault fault;

    /* Scratch of the loop thread for the message at hand. */
    struct wire_buffer buffer;
    struct wire_request request;
    struct wire_reply reply;
    struct wire_reply failure; /* in place of a reply that cannot be encoded */
    uint8_t out[WIRE_MESSAGE_SIZE_MAX];
};

/* ---- worker.c -------------------------------------------------------------------------------- */

/* A job went to the device: the loop spins from now on, until nothing has happened for a while. */
void worker_spin(struct worker *worker);

/* A job has ended. True: the loop knows, because it is the one that looked. Any thread. */
bool worker_spin_looks(const struct worker *worker);

/* Begins the end of the process: what is in flight is cancelled and answered with this status, then
 * the loop empties and worker_main returns the exit code. Later calls change nothing. */
void worker_end(struct worker *worker, int exit_code, enum topkd_status status);

/* Do not wait for what does not end: others get a moment for their answers. */
void worker_end_soon(struct worker *worker);

/* The loop is ending and a session has gone: closes the rest with the last one. False: look again
 * in a moment. */
bool worker_end_check(struct worker *worker);

/* The limits of the endpoint that follow from the settings. */
struct endpoint_limits worker_endpoint_limits(const struct settings *settings);

/* ---- worker_lag.c ---------------------------------------------------------------------------- */

void worker_lag_init(struct worker *worker);
/* From now on turns of the loop are measured; what the start took is none. */
void worker_lag_start(struct worker *worker);
/* The longest turn of the last minute. */
uint64_t worker_lag_longest_ns(struct worker *worker);

/* ---- worker_control.c ------------------------------------------------------------------------ */

enum topkd_status worker_control_start(struct worker *worker, char *detail);
void worker_control_stop(struct worker *worker);
/* Tells the supervisor that clients may come. */
void worker_control_ready(struct worker *worker);
/* Takes no new work; ends when nothing is in flight, or at the deadline. */
void worker_drain(struct worker *worker, uint32_t deadline_ms);
/* Something in flight or a session has ended: looks soon whether that was the last. */
void worker_drain_check(struct worker *worker);

/* ---- worker_dispatch.c ----------------------------------------------------------------------- */

extern const struct endpoint_handler worker_handler;

/* Encodes and sends; ends the endpoint's request. */
void worker_reply(struct worker *worker, struct endpoint_request *request,
                  const struct wire_reply *reply);

/* Runs a Select under the number of *reply exactly once. True: it is kept and its origin will be
 * answered. False: the answer is in *reply. */
bool worker_select_once(struct session *session, const struct wire_select_request *select,
                        const struct selection_origin *origin, struct wire_reply *reply);

/* A reply without body: status, detail and the numbers of its request. */
void worker_reply_init(const struct worker *worker, struct wire_reply *reply, uint64_t session,
                       uint64_t sequence, enum wire_kind kind);

/* ---- worker_query.c -------------------------------------------------------------------------- */

/* All that is counted, or only what `own` (NULL: none) has when the peer is no operator. */
void worker_stats(struct worker *worker, const struct session *own, bool is_operator,
                  struct wire_stats_reply *reply);
/* The same without asking the device for its routes, which may take a moment. */
void worker_stats_at_hand(const struct worker *worker, struct wire_stats_reply *reply);
/* All sessions, or only `own` (NULL: none) when the peer is no operator. */
void worker_sessions(const struct worker *worker, const struct session *own, bool is_operator,
                     struct wire_sessions_reply *reply);

/* ---- worker_figures.c ------------------------------------------------------------------------ */

/* Writes the figures page anew. */
void worker_publish(struct worker *worker);

#endif
