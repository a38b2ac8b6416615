#include "assert.h"
#include "detail.h"
#include "log.h"
#include "select_batch.h"
#include "worker_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sysexits.h>

/* ---- Replies --------------------------------------------------------------------------------- */

void worker_reply_init(const struct worker *worker, struct wire_reply *reply, uint64_t session,
                       uint64_t sequence, enum wire_kind kind)
{
    reply->session = session;
    reply->sequence = sequence;
    reply->epoch = worker->args->epoch;
    reply->kind = kind;
    reply->status = TOPKD_OK;
    reply->detail[0] = '\0';
    /* The body is the handler's; it is only read when the status is OK. */
}

void worker_reply(struct worker *worker, struct endpoint_request *request,
                  const struct wire_reply *reply)
{
    size_t size = 0;
    char detail[WIRE_DETAIL_SIZE] = "";
    enum topkd_status status =
        wire_reply_encode(reply, worker->out, sizeof(worker->out), &size, detail);
    if (status != TOPKD_OK) {
        /* What we made does not fit its own limits (or memory ran out): say that much. */
        char quoted[LOG_QUOTE_SIZE];
        log_error("reply_not_encoded", "kind=%s status=%s reason=%s", wire_kind_name(reply->kind),
                  wire_status_name(status), log_quote(quoted, detail));
        struct wire_reply *failure = &worker->failure;
        *failure = (struct wire_reply){.session = reply->session,
                                       .sequence = reply->sequence,
                                       .epoch = reply->epoch,
                                       .kind = reply->kind,
                                       .status = TOPKD_E_NO_MEMORY};
        status = wire_reply_encode(failure, worker->out, sizeof(worker->out), &size, NULL);
        if (status != TOPKD_OK) {
            endpoint_drop(request);
            return;
        }
    }
    endpoint_reply(request, worker->out, size);
}

/* ---- Handlers of single kinds ------------------------------------------------------------------
 */

static enum topkd_status check_hello(const struct worker *worker,
                                     const struct wire_hello_request *hello, char *detail)
{
    if (hello->version != WIRE_VERSION)
        return detail_set(detail, TOPKD_E_VERSION,
                          "the client speaks wire version %" PRIu32 ", the worker %u",
                          hello->version, WIRE_VERSION);
    if (hello->device[0] != '\0' && strcmp(hello->device, worker->args->device) != 0)
        return detail_set(detail, TOPKD_E_NOT_VISIBLE,
                          "this worker owns device %s, the client asked for %s",
                          worker->args->device, hello->device);
    if (worker->state == WIRE_DEVICE_DRAINING)
        return detail_set(detail, TOPKD_E_DRAINING, "the worker is draining");
    return TOPKD_OK;
}

/* True: the request is kept until the session is open. */
static bool handle_hello(struct worker *worker, struct endpoint_request *request,
                         struct endpoint_pipe *pipe, struct wire_reply *reply)
{
    const struct wire_hello_request *hello = &worker->request.u.hello;
    struct session *session = endpoint_pipe_user(pipe);

    reply->status = check_hello(worker, hello, reply->detail);
    if (reply->status == TOPKD_OK && session == NULL)
        reply->status = session_open(worker, pipe, hello, &session, reply->detail);
    if (reply->status != TOPKD_OK)
        return false;
    if (session->is_opening) {
        if (session_await(session, request, &worker->request))
            return true;
        reply->status = detail_set(reply->detail, TOPKD_E_BUSY,
                                   "%u hellos of this connection wait for its session already",
                                   SESSION_HELLOS_MAX);
        return false;
    }
    /* A repeated Hello of the same connection has the same answer. */
    reply->session = session->id;
    session_describe(session, &reply->u.hello);
    return false;
}

static enum topkd_status handle_register(struct session *session,
                                         const struct wire_register_request *request,
                                         struct wire_reply *reply)
{
    struct worker *worker = session->worker;

    if (worker->state == WIRE_DEVICE_DRAINING)
        return detail_set(reply->detail, TOPKD_E_DRAINING, "the worker is draining");
    if (request->device[0] != '\0' && strcmp(request->device, worker->args->device) != 0)
        return detail_set(reply->detail, TOPKD_E_NOT_VISIBLE,
                          "the memory is of device %s, the session's device is %s", request->device,
                          worker->args->device);
    uint32_t per_s = worker->settings.limits.registrations_per_s;
    if (!admission_rate_take(&session->registrations, per_s, uv_hrtime()))
        return detail_set(reply->detail, TOPKD_E_BUSY,
                          "more than %" PRIu32 " registrations a second "
                          "(limits.registrations_per_s): keep regions, they are cheap to hold",
                          per_s);
    struct region_limits limits = {.bytes_max = session->limits.region_bytes_max};
    struct region *region;
    enum topkd_status status =
        region_open(&session->regions, &worker->regions, request, &session->peer, &limits,
                    worker->next_generation, &region, reply->detail);
    if (status != TOPKD_OK) {
        char quoted[LOG_QUOTE_SIZE];
        log_info("region_refused", "session=%" PRIu64 " status=%s reason=%s", session->id,
                 wire_status_name(status), log_quote(quoted, reply->detail));
        return status;
    }
    worker->next_generation++;
    reply->u.reg =
        (struct wire_register_reply){.region = region->id, .generation = region->generation};
    log_debug("region_open", "session=%" PRIu64 " region=%" PRIu64 " length_bytes=%" PRIu64,
              session->id, region->id, region->length);
    return TOPKD_OK;
}

static enum topkd_status handle_unregister(struct session *session,
                                           const struct wire_unregister_request *request,
                                           struct wire_reply *reply)
{
    struct region *region = region_find(&session->regions, request->region, request->generation);
    if (region == NULL)
        return detail_set(reply->detail, TOPKD_E_NO_REGION,
                          "region %" PRIu64 " generation %" PRIu32
                          " is not registered in this session (any more)",
                          request->region, request->generation);
    /* Asked again while it drains, the answer is the same: so a client can wait for the end. */
    reply->u.unreg.draining = !region_close(&session->regions, region);
    return TOPKD_OK;
}

static enum topkd_status handle_drain(struct worker *worker, const struct peer *peer,
                                      const struct wire_drain_request *request,
                                      struct wire_reply *reply)
{
    if (!settings_allow_operator(&worker->settings, worker->uid, (uid_t)peer->uid))
        return detail_set(reply->detail, TOPKD_E_NOT_PERMITTED,
                          "uid %" PRId64 " may not drain: see access.operator_uids", peer->uid);
    log_info("drain_asked", "uid=%" PRId64 " pid=%" PRId64 " deadline_ms=%" PRIu32, peer->uid,
             peer->pid, request->deadline_ms);
    worker_drain(worker, request->deadline_ms);
    return TOPKD_OK;
}

/* ---- Dispatch -------------------------------------------------------------------------------- */

/* Kinds that change a session run exactly once. The entry of a number that is new; NULL: the answer
 * is in *reply. */
static struct reply_cache_entry *begin_once(struct session *session, struct wire_reply *reply)
{
    struct reply_cache_entry *entry = NULL;

    switch (
        reply_cache_begin(&session->replies, reply->sequence, reply->kind, &entry, reply->detail)) {
    case REPLY_CACHE_BUSY:
        reply->status = TOPKD_E_BUSY;
        return NULL;
    case REPLY_CACHE_INVALID:
        reply->status = TOPKD_E_INVALID;
        return NULL;
    case REPLY_CACHE_REPEAT:
        session->worker->stats.replies_repeated++;
        reply_cache_answer(entry, reply);
        return NULL;
    case REPLY_CACHE_NEW:
        break;
    }
    return entry;
}

static void end_once(struct session *session, struct reply_cache_entry *entry,
                     const struct wire_reply *reply)
{
    if (reply->status == TOPKD_E_BUSY)
        reply_cache_forget(&session->replies, entry);
    else
        reply_cache_finish(&session->replies, entry, reply);
}

bool worker_select_once(struct session *session, const struct wire_select_request *select,
                        const struct selection_origin *origin, struct wire_reply *reply)
{
    struct selection_origin whole = *origin;
    whole.entry = begin_once(session, reply);
    if (whole.entry == NULL)
        return false;
    if (selection_start(session, select, &whole, reply))
        return true;
    end_once(session, whole.entry, reply);
    return false;
}

/* True: the request is kept. */
static bool run_once(struct session *session, struct endpoint_request *request)
{
    struct worker *worker = session->worker;
    const struct wire_request *message = &worker->request;
    struct wire_reply *reply = &worker->reply;
    struct reply_cache_entry *entry;

    if (message->kind == WIRE_SELECT) {
        struct selection_origin origin = {.request = request};
        return worker_select_once(session, &message->u.select, &origin, reply);
    }
    entry = begin_once(session, reply);
    if (entry == NULL)
        return false;
    const struct lane_origin origin = {.request = request, .entry = entry};
    switch (message->kind) {
    case WIRE_REGISTER:
        reply->status = handle_register(session, &message->u.reg, reply);
        break;
    case WIRE_UNREGISTER:
        reply->status = handle_unregister(session, &message->u.unreg, reply);
        break;
    case WIRE_RELEASE:
        reply->status = arena_release(&session->arena, message->u.release.lease, reply->detail);
        break;
    case WIRE_LANE_OPEN:
        if (lane_open(session, &message->u.lane_open, &origin, reply))
            return true;
        break;
    case WIRE_LANE_CLOSE:
        if (lane_close(session, message->u.lane_close.lane, &origin, reply))
            return true;
        break;
    default:
        reply->status = detail_set(reply->detail, TOPKD_E_UNSUPPORTED,
                                   "requests of kind %s are not for a worker's session",
                                   wire_kind_name(message->kind));
        break;
    }
    end_once(session, entry, reply);
    return false;
}

static enum topkd_status check_session(const struct worker *worker, const struct session *session,
                                       const struct wire_request *message, char *detail)
{
    if (message->epoch != worker->args->epoch)
        return detail_set(detail, TOPKD_E_STALE_SESSION,
                          "epoch %" PRIu64 " is over, the worker lives in epoch %" PRIu64
                          ": say hello again",
                          message->epoch, worker->args->epoch);
    if (session == NULL || session->id != message->session)
        return detail_set(detail, TOPKD_E_STALE_SESSION,
                          "session %" PRIu64 " is not the one of this connection: say hello again",
                          message->session);
    return TOPKD_OK;
}

/* Answers into worker->reply. True: the request is kept. */
static bool handle_message(struct worker *worker, struct endpoint_request *request,
                           struct endpoint_pipe *pipe)
{
    const struct wire_request *message = &worker->request;
    struct wire_reply *reply = &worker->reply;
    const struct peer *peer = endpoint_pipe_peer(pipe);
    struct session *session = endpoint_pipe_user(pipe);

    if (!gate_admits(&worker->gate, peer, endpoint_pipe_groups(pipe), reply->detail)) {
        reply->status = TOPKD_E_NOT_PERMITTED;
        return false;
    }
    if (message->kind == WIRE_HELLO)
        return handle_hello(worker, request, pipe, reply);
    if (session != NULL && session->is_opening)
        session = NULL; /* nobody knows its number yet */
    bool needs_session = message->kind != WIRE_PING && message->kind != WIRE_STATS &&
                         message->kind != WIRE_SESSIONS && message->kind != WIRE_DRAIN &&
                         message->kind != WIRE_DEVICES;
    if (needs_session || message->session != 0) {
        reply->status = check_session(worker, session, message, reply->detail);
        if (reply->status != TOPKD_OK)
            return false;
    }
    bool is_operator = settings_allow_operator(&worker->settings, worker->uid, (uid_t)peer->uid);
    switch (message->kind) {
    case WIRE_PING:
        return false;
    case WIRE_SELECT_BATCH:
        if (message->u.select_batch.num_selects > 0) {
            select_batch_start(session, request);
            return true;
        }
        reply->status =
            detail_set(reply->detail, TOPKD_E_INVALID,
                       "a select_batch without selects: it holds 1 to %u", WIRE_BATCH_MAX);
        return false;
    case WIRE_STATS:
        worker_stats(worker, session, is_operator, &reply->u.stats);
        return false;
    case WIRE_SESSIONS:
        worker_sessions(worker, session, is_operator, &reply->u.sessions);
        return false;
    case WIRE_DRAIN:
        reply->status = handle_drain(worker, peer, &message->u.drain, reply);
        return false;
    case WIRE_DEVICES:
        reply->status = detail_set(reply->detail, TOPKD_E_UNSUPPORTED,
                                   "a worker knows its own device only: ask the daemon's socket");
        return false;
    default: /* those that need a session, which was checked */
        topkd_assert(session != NULL);
        return run_once(session, request);
    }
}

/* A fault on purpose, for each Select. */
static bool meets_fault(struct worker *worker, const struct wire_request *message)
{
    uint32_t num_selects = message->kind == WIRE_SELECT ? 1 : 0;
    bool meets = false;
    if (message->kind == WIRE_SELECT_BATCH)
        num_selects = message->u.select_batch.num_selects;
    for (uint32_t i = 0; i < num_selects && !meets; i++)
        meets = worker_fault_select(&worker->fault);
    return meets;
}

static void request_received(void *owner, struct endpoint_request *request)
{
    struct worker *worker = owner;
    struct wire_request *message = &worker->request;
    struct wire_reply *reply = &worker->reply;
    struct endpoint_pipe *pipe = endpoint_request_pipe(request);

    if (pipe == NULL || worker->is_ending) {
        endpoint_drop(request);
        return;
    }
    size_t size;
    const void *bytes = endpoint_request_bytes(request, &size);
    char detail[WIRE_DETAIL_SIZE] = "";
    enum topkd_status status = wire_request_decode(bytes, size, &worker->buffer, message, detail);
    worker_reply_init(worker, reply, message->session, message->sequence, message->kind);
    if (status != TOPKD_OK) {
        worker->stats.messages_rejected++;
        const struct peer *peer = endpoint_pipe_peer(pipe);
        char quoted[LOG_QUOTE_SIZE];
        log_info("message_rejected", "uid=%" PRId64 " pid=%" PRId64 " size_bytes=%zu reason=%s",
                 peer->uid, peer->pid, size, log_quote(quoted, detail));
        reply->status = status;
        (void)snprintf(reply->detail, sizeof(reply->detail), "%s", detail);
        worker_reply(worker, request, reply);
        return;
    }
    if (meets_fault(worker, message)) {
        endpoint_drop(request);
        worker_end(worker, EX_SOFTWARE, TOPKD_E_DEVICE_FAULT);
        return;
    }
    if (!handle_message(worker, request, pipe))
        worker_reply(worker, request, reply);
}

static void pipe_closed(void *owner, struct endpoint_pipe *pipe)
{
    struct session *session = endpoint_pipe_user(pipe);
    (void)owner;
    if (session != NULL)
        session_end(session, FIGURES_END_CLOSED, TOPKD_E_CANCELLED);
}

const struct endpoint_handler worker_handler = {
    .closed = pipe_closed,
    .request = request_received,
};
