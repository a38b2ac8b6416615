/* How a session comes into being: its memory at once, its device side on a thread, the answer then.
 */
#include "assert.h"
#include "detail.h"
#include "log.h"
#include "session_internal.h"
#include "worker_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* ---- What it needs --------------------------------------------------------------------------- */

/* Whole pages, as settings promise; 0 without an arena. */
static uint64_t arena_slot_bytes(const struct settings *settings)
{
    const uint64_t page_bytes = 4096;
    uint64_t wanted = settings->limits.arena_slots > 0 ? settings->limits.arena_slot_bytes : 0;
    return (wanted + page_bytes - 1) / page_bytes * page_bytes;
}

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
        .arena_slot_bytes = arena_slot_bytes(settings),
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

/* The page, the arena and the lane, which may take long: memory is cleared. On a thread of libuv's;
 * the session is nobody else's meanwhile but for its end, which waits. What it made is in the
 * session, whatever it returns. */
static enum topkd_status open_device_side(struct session *session, char *detail)
{
    struct device *device = session->worker->device;
    const struct wire_limits *limits = &session->limits;
    enum topkd_status status =
        create_shared(session, "page", limits->semaphores * sizeof(struct wire_semaphore), false,
                      &session->page, detail);
    if (status == TOPKD_OK && limits->arena_slots > 0)
        status = create_shared(session, "arena", limits->arena_slots * limits->arena_slot_bytes,
                               true, &session->arena_memory, detail);
    if (status == TOPKD_OK)
        status = device->ops->lane_create(device, session->page, &session->lane, detail);
    return status;
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
    arena_init(&session->arena, slots != NULL ? limits->arena_slots : 0, limits->arena_slot_bytes,
               slots);
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
    endpoint_pipe_set_user(session->pipe, session);
    endpoint_pipe_keep(session->pipe, true);
}

/* ---- Opening --------------------------------------------------------------------------------- */

static void opening_work(uv_work_t *work)
{
    struct session *session = work->data;
    session->open_status = open_device_side(session, session->open_detail);
}

/* All Hellos that wait have the same answer. */
static void answer_hellos(struct session *session)
{
    struct worker *worker = session->worker;
    struct wire_reply *reply = &worker->reply;
    for (uint32_t i = 0; i < session->num_hellos; i++) {
        const struct session_hello *hello = &session->hellos[i];
        worker_reply_init(worker, reply, hello->session, hello->sequence, WIRE_HELLO);
        reply->status = session->open_status;
        if (session->open_status == TOPKD_OK) {
            reply->session = session->id;
            session_describe(session, &reply->u.hello);
        } else {
            memcpy(reply->detail, session->open_detail, sizeof(reply->detail));
        }
        worker_reply(worker, hello->request, reply);
    }
    session->num_hellos = 0;
}

static void opening_done(uv_work_t *work, int status)
{
    struct session *session = work->data;
    struct worker *worker = session->worker;

    topkd_assert(status == 0); /* nobody cancels it */
    session->is_opening = false;
    if (session->pipe == NULL && session->open_status == TOPKD_OK) /* it has ended meanwhile */
        session->open_status =
            detail_set(session->open_detail, TOPKD_E_DRAINING, "the worker is ending");
    session->is_open = session->open_status == TOPKD_OK;
    answer_hellos(session);
    if (session->is_open) {
        char name[LOG_QUOTE_SIZE];
        worker->stats.sessions_opened++;
        log_info("session_open", "session=%" PRIu64 " uid=%" PRId64 " pid=%" PRId64 " client=%s",
                 session->id, session->peer.uid, session->peer.pid,
                 log_quote(name, session->client_name));
        return;
    }
    if (session->pipe == NULL) {
        session_close(session);
        return;
    }
    char quoted[LOG_QUOTE_SIZE];
    log_warn("session_refused", "uid=%" PRId64 " pid=%" PRId64 " reason=%s", session->peer.uid,
             session->peer.pid, log_quote(quoted, session->open_detail));
    session_end(session, FIGURES_END_CLOSED, session->open_status);
}

bool session_await(struct session *session, struct endpoint_request *request,
                   const struct wire_request *message)
{
    topkd_assert(session->is_opening);
    if (session->num_hellos == SESSION_HELLOS_MAX)
        return false;
    session->hellos[session->num_hellos++] = (struct session_hello){
        .request = request, .session = message->session, .sequence = message->sequence};
    return true;
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
    if (status != TOPKD_OK) {
        session_deallocate(session);
        return detail_set(detail, status, "no memory for a session");
    }
    init_selections(session);
    session->orphan = session_orphan_open(session);
    link_session(session);
    session->is_opening = true;
    session->opening.data = session;
    int error = uv_queue_work(&worker->loop, &session->opening, opening_work, opening_done);
    topkd_assert(error == 0);
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
