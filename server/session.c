#include "session.h"

#include "assert.h"
#include "detail.h"
#include "log.h"
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
        /* A child of it may have inherited the connection; that does not keep the session. */
        orphan->worker->tally.ends[FIGURES_END_DIED]++;
        session_end(orphan->session, TOPKD_E_CANCELLED);
        return;
    }
    orphan_unlink_names(orphan);
    orphan_unlist(orphan);
    orphan_close(orphan);
}

static struct orphan *orphan_open(struct session *session)
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

/* ---- Open ------------------------------------------------------------------------------------ */

static struct wire_limits limits_of(const struct worker *worker)
{
    const struct settings *settings = &worker->settings;
    return (struct wire_limits){
        .regions_max = settings->limits.regions_max,
        .outstanding_max = settings->limits.outstanding_max,
        .semaphores = settings->limits.semaphores,
        .lanes_max = worker->device_info.client_lanes_max,
        .k_max = worker->device_info.k_max,
        .timeout_ms_max = settings->limits.timeout_ms_max,
        .region_bytes_max = settings->limits.region_bytes_max,
        .rows_max = worker->device_info.rows_max,
        .width_max = worker->device_info.width_max,
        .arena_slots = settings->limits.arena_slots,
        .batch_max = WIRE_BATCH_MAX,
        .dtypes = worker->device_info.dtypes,
    };
}

static enum topkd_status create_shared(struct session *session, const char *kind,
                                       uint64_t size_bytes, bool is_arena,
                                       struct device_shared **shared_p, char *detail)
{
    struct device *device = session->worker->device;
    char name[WIRE_NAME_SIZE];
    (void)snprintf(name, sizeof(name), "%" PRIu64 "-%s", session->id, kind);
    struct device_shared_config config = {.name = name,
                                          .size_bytes = size_bytes,
                                          .peer = session->peer,
                                          .reserve = !is_arena,
                                          .is_arena = is_arena};
    return device->ops->shared_create(device, &config, shared_p, detail);
}

/* The page, the arena and the lane. What it made is in the session, whatever it returns. */
static enum topkd_status open_device_side(struct session *session, char *detail)
{
    struct worker *worker = session->worker;
    struct wire_limits *limits = &session->limits;
    enum topkd_status status =
        create_shared(session, "page", limits->semaphores * sizeof(struct wire_semaphore), false,
                      &session->page, detail);
    if (status != TOPKD_OK)
        return status;
    if (limits->arena_slots > 0) {
        uint64_t page_bytes = 4096; /* what settings promise: slots of whole pages */
        uint64_t slot_bytes =
            (worker->settings.limits.arena_slot_bytes + page_bytes - 1) / page_bytes * page_bytes;
        status = create_shared(session, "arena", limits->arena_slots * slot_bytes, true,
                               &session->arena_memory, detail);
        if (status != TOPKD_OK)
            return status;
        limits->arena_slot_bytes = slot_bytes;
    }
    return worker->device->ops->lane_create(worker->device, session->page, &session->lane, detail);
}

static enum topkd_status allocate(struct session *session)
{
    const struct settings *settings = &session->worker->settings;
    const struct wire_limits *limits = &session->limits;

    session->selections = calloc(limits->outstanding_max, sizeof(*session->selections));
    /* Those that run, and the answers to remember. */
    uint32_t num_replies =
        settings->limits.reply_cache + limits->outstanding_max + limits->lanes_max;
    struct reply_cache_entry *replies = calloc(num_replies, sizeof(*replies));
    if (replies != NULL)
        reply_cache_init(&session->replies, replies, num_replies);
    session->batches = calloc((size_t)limits->outstanding_max + 1, sizeof(*session->batches));
    for (uint32_t i = 0; session->batches != NULL && i <= limits->outstanding_max; i++) {
        session->batches[i].next = session->free_batches;
        session->free_batches = &session->batches[i];
    }
    struct arena_slot *slots = NULL;
    if (limits->arena_slots > 0)
        slots = calloc(limits->arena_slots, sizeof(*slots));
    arena_init(&session->arena, slots != NULL ? limits->arena_slots : 0, 0, slots);
    size_t lengths_bytes =
        (size_t)limits->outstanding_max * WIRE_LENGTHS_MAX * sizeof(*session->lengths);
    void *lengths = mmap(NULL, lengths_bytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    session->lengths = lengths == MAP_FAILED ? NULL : lengths;
    if (limits->lanes_max > 0)
        session->lanes = calloc(limits->lanes_max, sizeof(*session->lanes));
    if (session->selections == NULL || session->batches == NULL ||
        session->replies.entries == NULL || (limits->arena_slots > 0 && slots == NULL) ||
        (limits->lanes_max > 0 && session->lanes == NULL) || session->lengths == NULL)
        return TOPKD_E_NO_MEMORY;
    return region_table_init(&session->regions, limits->regions_max);
}

/* The lane and what is shared with the client; on a thread of libuv's when the session ends. */
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

static void deallocate(struct session *session)
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

static void init_selections(struct session *session)
{
    for (uint32_t i = 0; i < session->limits.outstanding_max; i++) {
        struct selection *selection = &session->selections[i];
        selection->session = session;
        selection->lengths = session->lengths + (size_t)i * WIRE_LENGTHS_MAX;
        selection->next = session->free_selections;
        session->free_selections = selection;
        uv_timer_init(&session->worker->loop, &selection->timer);
        selection->timer.data = selection;
    }
    session->num_handles = session->limits.outstanding_max;
}

static void link_session(struct session *session)
{
    struct worker *worker = session->worker;
    session->next = worker->sessions;
    if (session->next != NULL)
        session->next->previous = session;
    worker->sessions = session;
    worker->num_sessions++;
    worker->stats.sessions_opened++;
    endpoint_pipe_set_user(session->pipe, session);
    endpoint_pipe_keep(session->pipe, true);
}

enum topkd_status session_open(struct worker *worker, struct endpoint_pipe *pipe,
                               const struct wire_hello_request *hello, struct session **session_p,
                               char *detail)
{
    if (worker->num_sessions >= worker->settings.limits.sessions_max)
        return detail_set(detail, TOPKD_E_LIMIT,
                          "the worker has %" PRIu32 " sessions, limits.sessions_max is %" PRIu32
                          ": close one, or raise it",
                          worker->num_sessions, worker->settings.limits.sessions_max);
    struct session *session = calloc(1, sizeof(*session));
    if (session == NULL)
        return detail_set(detail, TOPKD_E_NO_MEMORY, "no memory for a session");
    session->id = worker->next_session++;
    session->worker = worker;
    session->pipe = pipe;
    session->peer = *endpoint_pipe_peer(pipe);
    session->opened_ns = uv_hrtime();
    session->limits = limits_of(worker);
    (void)snprintf(session->client_name, sizeof(session->client_name), "%s", hello->client_name);

    enum topkd_status status = allocate(session);
    if (status != TOPKD_OK)
        detail_set(detail, status, "no memory for a session");
    else
        status = open_device_side(session, detail);
    if (status != TOPKD_OK) {
        char quoted[LOG_QUOTE_SIZE];
        log_warn("session_refused", "uid=%" PRId64 " pid=%" PRId64 " reason=%s", session->peer.uid,
                 session->peer.pid, log_quote(quoted, detail));
        close_device_side(session);
        deallocate(session);
        return status;
    }
    session->arena.slot_bytes = session->limits.arena_slot_bytes;
    init_selections(session);
    session->orphan = orphan_open(session);
    link_session(session);
    char name[LOG_QUOTE_SIZE];
    log_info("session_open", "session=%" PRIu64 " uid=%" PRId64 " pid=%" PRId64 " client=%s",
             session->id, session->peer.uid, session->peer.pid,
             log_quote(name, session->client_name));
    *session_p = session;
    return TOPKD_OK;
}

void session_describe(const struct session *session, struct wire_hello_reply *reply)
{
    const struct worker *worker = session->worker;

    *reply = (struct wire_hello_reply){.version = WIRE_VERSION,
                                       .device_kind = worker->device_info.kind,
                                       .limits = session->limits,
                                       .semaphores = session->page->memory};
    (void)snprintf(reply->device, sizeof(reply->device), "%s", worker->args->device);
    (void)snprintf(reply->server_version, sizeof(reply->server_version), "%s", TOPKD_VERSION_TEXT);
    if (session->arena_memory != NULL)
        reply->arena = session->arena_memory->memory;
}

/* ---- End ------------------------------------------------------------------------------------- */

static void handle_gone(struct session *session)
{
    if (--session->num_handles == 0)
        deallocate(session);
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

/* Nothing is in flight any more. */
static void session_close(struct session *session)
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
    log_info("session_end", "session=%" PRIu64 " pid=%" PRId64 " requests=%" PRIu64, session->id,
             session->peer.pid, session->num_requests);
    for (uint32_t i = 0; i < session->limits.outstanding_max; i++)
        uv_close((uv_handle_t *)&session->selections[i].timer, timer_closed);
    session->teardown.data = session;
    session->num_handles++;
    int error = uv_queue_work(&worker->loop, &session->teardown, teardown_work, teardown_done);
    topkd_assert(error == 0);
    worker_drain_check(worker);
}

void session_end(struct session *session, enum topkd_status status)
{
    topkd_assert(session->pipe != NULL);
    endpoint_pipe_set_user(session->pipe, NULL);
    endpoint_pipe_keep(session->pipe, false);
    if (status == TOPKD_E_CANCELLED) /* nobody is there to read answers */
        endpoint_pipe_close(session->pipe);
    session->pipe = NULL;
    session->worker->stats.sessions_reaped++;
    orphan_leave(session);
    lanes_end(session);
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
