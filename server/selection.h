/*
 * selection.h - one Select in flight, from admission to its last trace.
 *
 * The request is checked against its session and turned into a device job; the device's completion
 * comes back through the worker's queue of ended jobs. A deadline is a timer of the loop: it
 * cancels the job, and one that had begun and does not end within SELECTION_STUCK_MS after that is
 * a device fault. For the loop thread.
 */
#ifndef TOPKD_SERVER_SELECTION_H
#define TOPKD_SERVER_SELECTION_H

#include "device.h"
#include "endpoint.h"
#include "geometry.h"
#include "region.h"
#include "reply_cache.h"
#include "topkd_wire.h"

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

/* Choice: a cancelled selection ends after the row at hand, at most some seconds for 2^31 scores.
 */
#define SELECTION_STUCK_MS 10000u

struct session;
struct select_batch;

/* Where a Select came from: a message of its own, or place batch_idx of a batch. */
struct selection_origin {
    struct endpoint_request *request; /* NULL in a batch */
    struct select_batch *batch;       /* NULL: none */
    uint32_t batch_idx;
    struct reply_cache_entry *entry; /* running in the reply cache */
};
struct worker;

struct selection {
    struct device_job job; /* first: a job is turned back into its selection */
    struct session *session;
    struct selection_origin origin; /* to answer; its entry is NULL once answered */
    uint64_t sequence;
    struct region *regions[GEOMETRY_TENSOR_COUNT]; /* acquired ones, else NULL */
    bool has_slot;
    uint32_t slot; /* of the arena */
    uint64_t slot_used_bytes;
    struct wire_select_reply reply;
    int32_t *lengths; /* [WIRE_LENGTHS_MAX], its own */
    uint32_t timeout_ms;
    uint32_t cancel_phase; /* enum device_job_phase when its deadline passed */
    bool is_active;        /* between start and finish */
    bool is_cancelled;
    uv_timer_t timer;
    struct selection *next; /* free, or ended */
};

static inline struct selection *selection_of(struct device_job *job)
{
    return (struct selection *)job;
}

/*
 * Takes a Select of a session in. Either the request is kept and true is returned: it will be
 * answered when the job ends. Or the answer is in *reply (a refusal, or the reply to a request that
 * wants to know only that it is queued) and false is returned.
 */
bool selection_start(struct session *session, const struct wire_select_request *select,
                     const struct selection_origin *origin, struct wire_reply *reply);

/* Looks up every region that the request names: an entry a tensor, NULL where it names none. */
enum topkd_status selection_find_regions(struct session *session,
                                         const struct wire_select_request *select,
                                         struct region **regions, struct geometry_region *views,
                                         char *detail);

/* The bucket that serves these arguments, acquired; makes it, and gives up the least used one,
 * where needed. */
enum topkd_status selection_acquire_bucket(struct worker *worker, const struct topk_args *args,
                                           const struct topk_options *options,
                                           struct bucket **bucket_p, char *detail);

/* Cancels one in flight. */
void selection_cancel(struct selection *selection, enum topkd_status status);

/* Its job has ended: answers, gives everything back. */
void selection_finish(struct selection *selection);

#endif
