#include "session.h"

#include "assert.h"
#include "detail.h"
#include "log.h"
#include "session_internal.h"
#include "worker_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Choice: dead or silent clients whose buffers wait to be unlinked. */
#define ORPHANS_MAX 256u

/* Watches the peer's process: at first for its session, later for the names of its buffers. */
struct orphan {
    struct process_watch watch;
    struct worker *worker;
    struct session *session; /* NULL once that has ended */
    struct peer peer;
    bool is_dead;
    uint32_t num_names;
    struct orphan_name {
        struct wire_memory handle;
        struct device_memory_key key;
    } * names;
    struct orphan *previous, *next; /* in worker->orphans, once the session has ended */
};

/* ---- The peer's process -----------------------------------------------------------------------
 */

static void orphan_freed(struct process_watch *watch)
{
    struct orphan *orphan = (struct orphan *)watch; /* its first member */
    free(orphan->names);
    free(orphan);
}

static void orphan_unlink_names(struct orphan *orphan)
{
    for (uint32_t i = 0; i < orphan->num_names; i++)
        orphan->worker->device->ops->memory_unlink(&orphan->names[i].handle, &orphan->names[i].key,
                                                   &orphan->peer);
    orphan->num_names = 0;
}

static void orphan_close(struct orphan *orphan)
{
    process_watch_close(&orphan->watch, orphan_freed);
}

static void orphan_unlist(struct orphan *orphan)
{
    struct worker *worker = orphan->worker;
    if (orphan->next != NULL)
        orphan->next->previous = orphan->previous;
    if (orphan->previous != NULL)
        orphan->previous->next = orphan->next;
    else
        worker->orphans = orphan->next;
    worker->num_orphans--;
}

static void orphan_died(struct process_watch *watch)
{
    struct orphan *orphan = (struct orphan *)watch;

    orphan->is_dead = true;
    if (orphan->session != NULL) {
        /* A child of it may have inherited the connection; that does not keep the session. Else
         * the connection's end is there too, and may only not have had its turn. */
        struct endpoint_pipe *pipe = orphan->session->pipe;
        session_end(orphan->session,
                    pipe != NULL && endpoint_pipe_has_ended(pipe) ? FIGURES_END_CLOSED
                                                                  : FIGURES_END_DIED,
                    TOPKD_E_CANCELLED);
        return;
    }
    orphan_unlink_names(orphan);
    orphan_unlist(orphan);
    orphan_close(orphan);
}

struct orphan *session_orphan_open(struct session *session)
{
    struct orphan *orphan = calloc(1, sizeof(*orphan));
    if (orphan == NULL)
        return NULL;
    orphan->worker = session->worker;
    orphan->session = session;
    orphan->peer = session->peer;
    int error =
        process_watch_open(&orphan->watch, &session->worker->loop, session->peer.pid, orphan_died);
    if (error == 0)
        return orphan;
    char quoted[LOG_QUOTE_SIZE];
    log_debug("process_unwatched", "session=%" PRIu64 " pid=%" PRId64 " reason=%s", session->id,
              session->peer.pid, log_quote(quoted, strerror(-error)));
    free(orphan);
    return NULL;
}

static void orphan_take_names(struct orphan *orphan, const struct region_table *table)
{
    orphan->names = calloc(table->num_regions, sizeof(*orphan->names));
    for (uint32_t i = 0; i < table->regions_max && orphan->names != NULL; i++) {
        const struct region *region = &table->regions[i];
        if (region->id == 0 || !region->unlink_when_dead)
            continue;
        orphan->names[orphan->num_names++] =
            (struct orphan_name){.handle = region->handle, .key = region->memory->memory->key};
    }
}

/* The session is ending: its watch goes, or stays for the names that the process leaves. */
static void orphan_leave(struct session *session)
{
    struct orphan *orphan = session->orphan;
    struct worker *worker = session->worker;
    if (orphan == NULL)
        return;
    session->orphan = NULL;
    orphan->session = NULL;
    if (session->regions.num_regions > 0)
        orphan_take_names(orphan, &session->regions);
    if (orphan->is_dead)
        orphan_unlink_names(orphan);
    if (orphan->num_names == 0 || worker->is_ending || worker->num_orphans >= ORPHANS_MAX) {
        if (orphan->num_names > 0 && !worker->is_ending)
            log_warn("shm_left", "pid=%" PRId64 " num_names=%" PRIu32 " reason=too_many_orphans",
                     orphan->peer.pid, orphan->num_names);
        orphan_close(orphan);
        return;
    }
    orphan->next = worker->orphans;
    if (orphan->next != NULL)
        orphan->next->previous = orphan;
    worker->orphans = orphan;
    worker->num_orphans++;
}

void session_orphans_close(struct worker *worker)
{
    while (worker->orphans != NULL) {
        struct orphan *orphan = worker->orphans;
        orphan_unlist(orphan);
        orphan_close(orphan);
    }
}

/* ---- What a session holds ------------------------------------------------------------------- */

static void close_device_side(struct session *session)
{
    struct device *device = session->worker->device;
    if (session->lane != NULL)
        device->ops->lane_destroy(device, session->lane);
    if (session->arena_memory != NULL)
        device->ops->shared_destroy(device, session->arena_memory);
    if (session->page != NULL)
        device->ops->shared_destroy(device, session->page);
}

void session_deallocate(struct session *session)
{
    region_table_fini(&session->regions);
    if (session->lengths != NULL)
        munmap(session->lengths, (size_t)session->limits.outstanding_max * WIRE_LENGTHS_MAX *
                                     sizeof(*session->lengths));
    free(session->lanes);
    free(session->arena.slots);
    free(session->replies.entries);
    free(session->batches);
    free(session->selections);
    free(session);
}

/* ---- End ------------------------------------------------------------------------------------- */

static void handle_gone(struct session *session)
{
    if (--session->num_handles == 0)
        session_deallocate(session);
}

static void timer_closed(uv_handle_t *handle)
{
    struct selection *selection = handle->data;
    handle_gone(selection->session);
}

static void teardown_work(uv_work_t *work)
{
    close_device_side(work->data);
}

static void teardown_done(uv_work_t *work, int status)
{
    topkd_assert(status == 0); /* nobody cancels it */
    handle_gone(work->data);
}

void session_close(struct session *session)
{
    struct worker *worker = session->worker;

    for (uint32_t i = 0; i < session->regions.regions_max; i++) {
        struct region *region = &session->regions.regions[i];
        if (region->id != 0) {
            bool is_closed = region_close(&session->regions, region);
            topkd_assert(is_closed);
        }
    }
    if (session->next != NULL)
        session->next->previous = session->previous;
    if (session->previous != NULL)
        session->previous->next = session->next;
    else
        worker->sessions = session->next;
    worker->num_sessions--;
    if (session->is_open)
        log_info("session_end", "session=%" PRIu64 " pid=%" PRId64 " requests=%" PRIu64,
                 session->id, session->peer.pid, session->num_requests);
    for (uint32_t i = 0; i < session->limits.outstanding_max; i++)
        uv_close((uv_handle_t *)&session->selections[i].timer, timer_closed);
    session->teardown.data = session;
    session->num_handles++;
    int error = uv_queue_work(&worker->loop, &session->teardown, teardown_work, teardown_done);
    topkd_assert(error == 0);
    worker_drain_check(worker);
}

void session_end(struct session *session, enum figures_end reason, enum topkd_status status)
{
    topkd_assert(session->pipe != NULL);
    endpoint_pipe_set_user(session->pipe, NULL);
    endpoint_pipe_keep(session->pipe, false);
    if (status == TOPKD_E_CANCELLED) /* nobody is there to read answers */
        endpoint_pipe_close(session->pipe);
    session->pipe = NULL;
    if (session->is_open) {
        session->worker->tally.ends[reason]++;
        session->worker->stats.sessions_reaped++;
    }
    orphan_leave(session);
    lanes_end(session);
    if (session->is_opening)
        return; /* the thread that makes its device side goes first */
    if (session->num_outstanding == 0 && session->num_lanes == 0) {
        session_close(session);
        return;
    }
    for (uint32_t i = 0; i < session->limits.outstanding_max; i++)
        if (session->selections[i].is_active)
            selection_cancel(&session->selections[i], status);
}

void session_selection_ended(struct session *session)
{
    if (session->pipe == NULL && session->num_outstanding == 0 && session->num_lanes == 0)
        session_close(session);
    else
        worker_drain_check(session->worker);
}

void session_lane_closed(struct session *session)
{
    session_selection_ended(session);
}
