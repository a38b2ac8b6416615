#include "selection.h"

#include "assert.h"
#include "detail.h"
#include "log.h"
#include "select_batch.h"
#include "session.h"
#include "worker_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sysexits.h>

static const char *const phase_texts[] = {
    [DEVICE_JOB_QUEUED] = "it was queued behind others of its session",
    [DEVICE_JOB_WAITING] = "it waited",
    [DEVICE_JOB_RUNNING] = "it was selecting",
    [DEVICE_JOB_ENDED] = "it was ending",
};

/* ---- Checks ---------------------------------------------------------------------------------- */

static enum topkd_status check_semaphore(const struct session *session, const char *name,
                                         const struct wire_semaphore_ref *ref, char *detail)
{
    if (ref->value != 0 && ref->index >= session->limits.semaphores)
        return detail_set(detail, TOPKD_E_OUT_OF_RANGE,
                          "%s: semaphore %" PRIu32 ", the session has %" PRIu32, name, ref->index,
                          session->limits.semaphores);
    return TOPKD_OK;
}

/* What needs no look at the regions. */
static enum topkd_status check_request(struct session *session,
                                       const struct wire_select_request *select, char *detail)
{
    struct worker *worker = session->worker;

    if (worker->state == WIRE_DEVICE_DRAINING)
        return detail_set(detail, TOPKD_E_DRAINING, "the worker is draining");
    if (worker->canary.is_wrong)
        return detail_set(detail, TOPKD_E_DEVICE_FAULT, "the device's last self-test was wrong: %s",
                          worker->canary.detail);
    if (select->timeout_ms > session->limits.timeout_ms_max)
        return detail_set(detail, TOPKD_E_INVALID,
                          "timeout %" PRIu32 " ms exceeds limits.timeout_ms_max %" PRIu32,
                          select->timeout_ms, session->limits.timeout_ms_max);
    enum topkd_status status = check_semaphore(session, "wait", &select->wait, detail);
    if (status == TOPKD_OK)
        status = check_semaphore(session, "signal", &select->signal, detail);
    if (status != TOPKD_OK)
        return status;
    struct admission admission = {
        .places_max = worker->settings.limits.queue_max + worker->settings.limits.lanes,
        .num_admitted = worker->num_admitted,
        .num_idle = worker->num_sessions - worker->num_busy,
        .outstanding_max = session->limits.outstanding_max,
        .num_outstanding = session->num_outstanding,
    };
    return admission_check(&admission, detail);
}

static const struct wire_region_ref *region_ref(const struct wire_select_request *select,
                                                enum geometry_tensor tensor)
{
    switch (tensor) {
    case GEOMETRY_SCORES:
        return &select->scores;
    case GEOMETRY_LENGTHS:
        return &select->lengths;
    case GEOMETRY_PAGE_TABLE:
        return &select->page_table;
    case GEOMETRY_ROW_OFFSETS:
        return &select->row_offsets;
    case GEOMETRY_INDICES:
        return &select->indices;
    default:
        return &select->values;
    }
}

enum topkd_status selection_find_regions(struct session *session,
                                         const struct wire_select_request *select,
                                         struct region **regions, struct geometry_region *views,
                                         char *detail)
{
    for (int tensor = 0; tensor < GEOMETRY_TENSOR_COUNT; tensor++) {
        const struct wire_region_ref *ref = region_ref(select, (enum geometry_tensor)tensor);
        regions[tensor] = NULL;
        views[tensor] = (struct geometry_region){.present = false};
        if (ref->region == 0 ||
            (tensor == GEOMETRY_LENGTHS && select->lengths_mode != WIRE_LENGTHS_REGION))
            continue;
        struct region *region = region_find(&session->regions, ref->region, ref->generation);
        if (region == NULL || region->is_draining)
            return detail_set(
                detail, TOPKD_E_NO_REGION, "%s: region %" PRIu64 " generation %" PRIu32 " is %s",
                geometry_tensor_name((enum geometry_tensor)tensor), ref->region, ref->generation,
                region == NULL ? "not registered in this session" : "being unregistered");
        const struct device_memory *memory = region->memory->memory;
        regions[tensor] = region;
        views[tensor] =
            (struct geometry_region){.present = true,
                                     .writable = memory->is_writable,
                                     .object = {memory->key.words[0], memory->key.words[1]},
                                     .base = region->offset,
                                     .length = region->length};
    }
    return TOPKD_OK;
}

/* ---- Taking in ------------------------------------------------------------------------------- */

/* Leases a slot; where it has no memory yet, the job gets some first. */
static enum topkd_status lease_slot(struct selection *selection, const struct geometry *geometry,
                                    char *detail)
{
    struct session *session = selection->session;

    enum topkd_status status = arena_lease(&session->arena, &selection->slot, detail);
    if (status != TOPKD_OK)
        return status;
    selection->has_slot = true;
    const struct arena_slot *slot = &session->arena.slots[selection->slot];
    uint64_t start = selection->slot * session->arena.slot_bytes;
    const struct geometry_span *values = &geometry->spans[GEOMETRY_VALUES];
    selection->slot_used_bytes =
        values->present ? values->end : geometry->spans[GEOMETRY_INDICES].end;
    if (selection->slot_used_bytes > slot->reserved_bytes) {
        selection->job.arena_offset = start;
        selection->job.arena_bytes = selection->slot_used_bytes;
    }
    selection->reply.slot = selection->slot;
    selection->reply.lease = slot->lease;
    selection->reply.indices_offset = start;
    selection->reply.values_offset = values->present ? start + values->offset : 0;
    return TOPKD_OK;
}

static void set_args(struct selection *selection, const struct wire_select_request *select,
                     const struct geometry *geometry)
{
    struct session *session = selection->session;
    struct device_job *job = &selection->job;
    uintptr_t addresses[GEOMETRY_TENSOR_COUNT] = {0};

    job->num_memories = 0;
    for (int tensor = 0; tensor < GEOMETRY_TENSOR_COUNT; tensor++) {
        struct region *region = selection->regions[tensor];
        if (region != NULL) {
            struct device_memory *memory = region->memory->memory;
            addresses[tensor] = memory->address + region->offset;
            job->memories[job->num_memories++] = memory;
        } else if (geometry->spans[tensor].in_arena) {
            addresses[tensor] =
                session->arena_memory->address + selection->slot * session->arena.slot_bytes;
        }
    }
    geometry_args(select, geometry, addresses, &job->args);
    job->options = geometry_options(select);
    job->arena = selection->has_slot ? session->arena_memory : NULL;
    job->lengths_host = NULL;
    if (select->lengths_mode == WIRE_LENGTHS_INLINE && select->num_lengths > 0) {
        memcpy(selection->lengths, select->lengths_inline,
               select->num_lengths * sizeof(*selection->lengths));
        job->lengths_host = selection->lengths;
    }
    job->wait = select->wait;
    job->signal = select->signal;
}

enum topkd_status selection_acquire_bucket(struct worker *worker, const struct topk_args *args,
                                           const struct topk_options *options,
                                           struct bucket **bucket_p, char *detail)
{
    struct device *device = worker->device;
    struct bucket_key need = bucket_key_of(args, options);
    need.alignment_bytes = geometry_alignment_bytes(args, options->dtype);
    struct bucket_choice choice;
    enum topkd_status status = bucket_table_choose(&worker->buckets, &need, &choice, detail);
    if (status != TOPKD_OK)
        return status;
    struct bucket *bucket = choice.bucket;
    if (bucket == NULL) {
        if (choice.evicted != NULL)
            device->ops->bucket_close(device, choice.evicted);
        bucket = bucket_table_make(&worker->buckets, &choice);
        status = device->ops->bucket_open(device, bucket, detail);
        if (status != TOPKD_OK) {
            bucket_table_drop(&worker->buckets, bucket);
            return status;
        }
    }
    bucket_acquire(&worker->buckets, bucket);
    *bucket_p = bucket;
    return TOPKD_OK;
}

/* Everything that can refuse; what it took is in the selection. */
static enum topkd_status prepare(struct selection *selection,
                                 const struct wire_select_request *select, char *detail)
{
    struct session *session = selection->session;
    struct geometry_region views[GEOMETRY_TENSOR_COUNT];
    struct region *regions[GEOMETRY_TENSOR_COUNT];
    struct geometry geometry;

    enum topkd_status status = selection_find_regions(session, select, regions, views, detail);
    if (status != TOPKD_OK)
        return status;
    struct geometry_limits limits = {.k_max = session->limits.k_max,
                                     .dtypes = session->limits.dtypes,
                                     .rows_max = session->limits.rows_max,
                                     .width_max = session->limits.width_max,
                                     .arena_slot_bytes = session->limits.arena_slot_bytes};
    status = geometry_check(select, views, &limits, &geometry, detail);
    if (status != TOPKD_OK)
        return status;
    if (select->output_mode == WIRE_OUTPUT_ARENA) {
        status = lease_slot(selection, &geometry, detail);
        if (status != TOPKD_OK)
            return status;
    }
    for (int tensor = 0; tensor < GEOMETRY_TENSOR_COUNT; tensor++) {
        /* A region that is named but not used (values with the arena) was refused above. */
        if (regions[tensor] == NULL)
            continue;
        region_acquire(regions[tensor]);
        selection->regions[tensor] = regions[tensor];
    }
    set_args(selection, select, &geometry);
    char reason[TOPK_DETAIL_SIZE] = "";
    enum topk_status checked =
        topk_args_check(&selection->job.args, &selection->job.options, reason);
    if (checked != TOPK_OK)
        return detail_set(detail, TOPKD_E_INVALID, "%s: %s", topk_strerror(checked), reason);
    status = selection_acquire_bucket(session->worker, &selection->job.args,
                                      &selection->job.options, &selection->job.bucket, detail);
    if (status == TOPKD_OK)
        selection->reply.bucket = selection->job.bucket->id;
    return status;
}

/* Gives back what prepare took. */
static void give_back(struct selection *selection, bool failed)
{
    struct session *session = selection->session;

    for (int tensor = 0; tensor < GEOMETRY_TENSOR_COUNT; tensor++) {
        if (selection->regions[tensor] != NULL)
            region_release(&session->regions, selection->regions[tensor]);
        selection->regions[tensor] = NULL;
    }
    if (selection->job.bucket != NULL)
        bucket_release(selection->job.bucket);
    selection->job.bucket = NULL;
    if (selection->has_slot)
        arena_finish(&session->arena, selection->slot, failed, selection->slot_used_bytes);
    selection->has_slot = false;
}

static struct selection *take(struct session *session)
{
    struct selection *selection = session->free_selections;
    topkd_assert(selection != NULL); /* admission counts them */
    session->free_selections = selection->next;
    selection->next = NULL;
    selection->origin = (struct selection_origin){.entry = NULL};
    selection->is_cancelled = false;
    selection->job.arena_bytes = 0;
    memset(&selection->reply, 0, sizeof(selection->reply));
    return selection;
}

static void put_back(struct selection *selection)
{
    struct session *session = selection->session;
    selection->next = session->free_selections;
    session->free_selections = selection;
}

/* ---- Deadline -------------------------------------------------------------------------------- */

static void answer(struct selection *selection, enum topkd_status status, const char *detail);

static void set_timeout_text(const struct selection *selection, char *detail)
{
    const struct wire_semaphore_ref *wait = &selection->job.wait;
    if (selection->cancel_phase == DEVICE_JOB_WAITING && wait->value != 0)
        (void)detail_set(detail, TOPKD_E_TIMEOUT,
                         "the deadline of %" PRIu32 " ms passed while it waited for semaphore "
                         "%" PRIu32 " to reach %" PRIu64 ", or for its turn behind others",
                         selection->timeout_ms, wait->index, wait->value);
    else
        (void)detail_set(detail, TOPKD_E_TIMEOUT, "the deadline of %" PRIu32 " ms passed while %s",
                         selection->timeout_ms, phase_texts[selection->cancel_phase]);
}

static void timer_callback(uv_timer_t *timer)
{
    struct selection *selection = timer->data;
    struct worker *worker = selection->session->worker;

    if (!selection->is_cancelled) {
        selection_cancel(selection, TOPKD_E_TIMEOUT);
        return;
    }
    log_error("lane_stuck", "session=%" PRIu64 " sequence=%" PRIu64 " after_ms=%u",
              selection->session->id, selection->sequence, SELECTION_STUCK_MS);
    answer(selection, TOPKD_E_DEVICE_FAULT,
           "the device did not end the request when it was cancelled: the worker restarts");
    worker_end(worker, EX_SOFTWARE, TOPKD_E_DEVICE_FAULT);
    worker_end_soon(worker); /* its session cannot end in order */
}

void selection_cancel(struct selection *selection, enum topkd_status status)
{
    struct session *session = selection->session;
    topkd_assert(selection->is_active);
    if (selection->is_cancelled)
        return;
    selection->is_cancelled = true;
    selection->cancel_phase = __atomic_load_n(&selection->job.phase, __ATOMIC_RELAXED);
    bool never_runs =
        session->worker->device->ops->lane_cancel(session->lane, &selection->job, status);
    if (!never_runs) {
        uv_timer_start(&selection->timer, timer_callback, SELECTION_STUCK_MS, 0);
        return;
    }
    /* It ends in its turn, which may be some time away and is no fault; the client need not wait
     * for that. */
    uv_timer_stop(&selection->timer);
    char detail[WIRE_DETAIL_SIZE] = "";
    if (status == TOPKD_E_TIMEOUT)
        set_timeout_text(selection, detail);
    answer(selection, status, detail);
}

/* ---- The way of a request ---------------------------------------------------------------------
 */

/* On the device's thread: push and wake. */
static void job_done(struct device_job *job)
{
    struct selection *selection = selection_of(job);
    struct worker *worker = selection->session->worker;
    struct worker_ended *ended = &worker->ended;

    pthread_mutex_lock(&ended->mutex);
    selection->next = NULL;
    *ended->last = selection;
    ended->last = &selection->next;
    pthread_mutex_unlock(&ended->mutex);
    if (!worker_spin_looks(worker))
        uv_async_send(&ended->async);
}

/* Answers once; later calls do nothing. */
static void answer(struct selection *selection, enum topkd_status status, const char *detail)
{
    struct session *session = selection->session;
    struct worker *worker = session->worker;
    struct wire_reply *reply = &worker->reply;

    struct selection_origin origin = selection->origin;
    if (origin.entry == NULL)
        return;
    worker_reply_init(worker, reply, session->id, selection->sequence, WIRE_SELECT);
    reply->status = status;
    if (status != TOPKD_OK)
        (void)snprintf(reply->detail, sizeof(reply->detail), "%s",
                       detail[0] != '\0' ? detail : wire_status_text(status));
    reply->u.select = selection->reply;
    reply_cache_finish(&session->replies, origin.entry, reply);
    selection->origin = (struct selection_origin){.entry = NULL};
    if (origin.batch != NULL)
        select_batch_answer(origin.batch, origin.batch_idx, reply);
    else
        worker_reply(worker, origin.request, reply);
}

static void submit(struct selection *selection)
{
    struct session *session = selection->session;
    struct worker *worker = session->worker;

    selection->is_active = true;
    if (session->num_outstanding++ == 0)
        worker->num_busy++;
    worker->num_admitted++;
    uv_update_time(&worker->loop); /* a deadline counts from now, not from the turn's begin */
    uv_timer_start(&selection->timer, timer_callback, selection->timeout_ms, 0);
    if (worker->fault.lose) { /* as if the device had begun it */
        worker->fault.lose = false;
        selection->job.phase = DEVICE_JOB_RUNNING;
        selection->job.cancel_status = TOPKD_OK;
        return;
    }
    worker->device->ops->lane_submit(session->lane, &selection->job);
    worker_spin(worker);
}

bool selection_start(struct session *session, const struct wire_select_request *select,
                     const struct selection_origin *origin, struct wire_reply *reply)
{
    struct worker *worker = session->worker;

    session->num_requests++;
    reply->status = check_request(session, select, reply->detail);
    if (reply->status != TOPKD_OK) {
        stats_request_refused(&worker->stats);
        figures_count(&worker->tally, reply->status);
        return false;
    }
    struct selection *selection = take(session);
    selection->sequence = reply->sequence;
    reply->status = prepare(selection, select, reply->detail);
    if (reply->status != TOPKD_OK) {
        give_back(selection, true);
        put_back(selection);
        stats_request_refused(&worker->stats);
        figures_count(&worker->tally, reply->status);
        return false;
    }
    selection->timeout_ms =
        select->timeout_ms != 0 ? select->timeout_ms : worker->settings.limits.timeout_ms_default;
    selection->job.submitted_ns = uv_hrtime();
    selection->job.done = job_done;
    if (select->reply_when == WIRE_REPLY_ENQUEUED) {
        reply->u.select = selection->reply;
        submit(selection);
        return false;
    }
    selection->origin = *origin;
    submit(selection);
    return true;
}

void selection_finish(struct selection *selection)
{
    struct session *session = selection->session;
    struct worker *worker = session->worker;
    struct device_job *job = &selection->job;

    topkd_assert(selection->is_active);
    uv_timer_stop(&selection->timer);
    if (job->status == TOPKD_E_TIMEOUT && job->detail[0] == '\0')
        set_timeout_text(selection, job->detail);
    else if (job->status != TOPKD_OK && job->detail[0] == '\0')
        (void)detail_set(job->detail, job->status, "%s", wire_status_text(job->status));
    selection->reply.queued_ns = job->queued_ns;
    selection->reply.run_ns = job->run_ns;
    stats_request_done(&worker->stats, job->status, uv_hrtime() - job->submitted_ns, job->run_ns);
    figures_count(&worker->tally, job->status);
    if (job->status == TOPKD_E_DEVICE_FAULT || job->status == TOPKD_E_REGION_FAULT) {
        char quoted[LOG_QUOTE_SIZE];
        log_warn("request_failed", "session=%" PRIu64 " sequence=%" PRIu64 " status=%s reason=%s",
                 session->id, selection->sequence, wire_status_name(job->status),
                 log_quote(quoted, job->detail));
    }
    /* First the answer is on its way, then what it took is free for others. */
    answer(selection, job->status, job->detail);
    give_back(selection, job->status != TOPKD_OK);
    selection->is_active = false;
    put_back(selection);
    if (--session->num_outstanding == 0)
        worker->num_busy--;
    worker->num_admitted--;
    bool is_fatal = job->status == TOPKD_E_DEVICE_FAULT;
    session_selection_ended(session);
    if (is_fatal)
        worker_end(worker, EX_SOFTWARE, TOPKD_E_DEVICE_FAULT);
}
