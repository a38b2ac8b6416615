#include "lane.h"

#include "assert.h"
#include "detail.h"
#include "log.h"
#include "selection.h"
#include "session.h"
#include "worker_internal.h"

#include <inttypes.h>
#include <string.h>

/* ---- Checks ---------------------------------------------------------------------------------- */

static enum topkd_status check_device(const struct session *session, char *detail)
{
    const struct worker *worker = session->worker;
    bool has_streams = worker->device->ops->mailbox_open != NULL;
    if (has_streams && worker->device_info.client_lanes_max > 0)
        return TOPKD_OK;
    const char *reason = "they need CUDA streams";
    if (has_streams)
        reason = worker->settings.limits.client_lanes_max == 0
                     ? "limits.client_lanes_max is 0"
                     : "its hardware queues hold none, see lanes_limited in the daemon's log";
    return detail_set(detail, TOPKD_E_UNSUPPORTED,
                      "device %s has no client lanes (%s): use selections with semaphores",
                      worker->args->device, reason);
}

/* What a Select may have and a lane may not. */
static enum topkd_status check_request(const struct session *session,
                                       const struct wire_lane_open_request *request, char *detail)
{
    const struct worker *worker = session->worker;
    const struct wire_select_request *shape = &request->shape;
    enum topkd_status status = check_device(session, detail);
    if (status != TOPKD_OK)
        return status;
    if (worker->state == WIRE_DEVICE_DRAINING)
        return detail_set(detail, TOPKD_E_DRAINING, "the worker is draining");
    if (shape->rows == 0)
        return detail_set(detail, TOPKD_E_INVALID,
                          "a lane of 0 rows: live_rows may be 0, not rows");
    if (shape->lengths_mode == WIRE_LENGTHS_INLINE)
        return detail_set(detail, TOPKD_E_INVALID,
                          "a lane reads its lengths from a region, or takes one for all rows: a "
                          "message carries them once only");
    if (shape->output_mode != WIRE_OUTPUT_REGION)
        return detail_set(detail, TOPKD_E_INVALID,
                          "a lane writes to a region: no slot of the arena outlives a selection");
    if (shape->wait.value != 0 || shape->signal.value != 0)
        return detail_set(detail, TOPKD_E_INVALID, "a lane neither waits nor signals");
    return TOPKD_OK;
}

/* A small region beside the tensors, aligned to its size. */
static enum topkd_status find_word(struct session *session, const char *name,
                                   const struct wire_region_ref *ref, uint64_t size_bytes,
                                   struct region **region_p, char *detail)
{
    struct region *region = region_find(&session->regions, ref->region, ref->generation);
    if (region == NULL || region->is_draining)
        return detail_set(detail, TOPKD_E_NO_REGION,
                          "%s: region %" PRIu64 " generation %" PRIu32 " is %s", name, ref->region,
                          ref->generation,
                          region == NULL ? "not registered in this session" : "being unregistered");
    uint64_t address = region->memory->memory->address + region->offset + ref->offset;
    if (ref->offset > region->length || size_bytes > region->length - ref->offset ||
        address % size_bytes != 0)
        return detail_set(detail, TOPKD_E_OUT_OF_RANGE,
                          "%s: %" PRIu64 " bytes at offset %" PRIu64 " of a region of %" PRIu64
                          " bytes, aligned to their size",
                          name, size_bytes, ref->offset, region->length);
    *region_p = region;
    return TOPKD_OK;
}

/* Results must not change the number of rows under the selection. */
static enum topkd_status check_overlap(struct region *const *regions,
                                       const struct geometry *geometry, uint64_t offset,
                                       char *detail)
{
    const struct region *word = regions[LANE_LIVE_ROWS];
    const enum geometry_tensor outputs[] = {GEOMETRY_INDICES, GEOMETRY_VALUES};
    for (int i = 0; i < 2; i++) {
        const struct region *region = regions[outputs[i]];
        const struct geometry_span *span = &geometry->spans[outputs[i]];
        if (region == NULL || memcmp(region->memory->memory->key.words,
                                     word->memory->memory->key.words, 2 * sizeof(uint64_t)) != 0)
            continue;
        uint64_t at = word->offset + offset;
        if (at < region->offset + span->end && at + sizeof(int32_t) > region->offset + span->offset)
            return detail_set(detail, TOPKD_E_OVERLAP, "live_rows lies within %s",
                              geometry_tensor_name(outputs[i]));
    }
    return TOPKD_OK;
}

static enum topkd_status find_words(struct lane *lane, const struct wire_lane_open_request *request,
                                    const struct geometry *geometry, struct region **regions,
                                    char *detail)
{
    struct session *session = lane->session;
    enum topkd_status status = TOPKD_OK;
    if (request->live_rows.region != 0) {
        status = find_word(session, "live_rows", &request->live_rows, sizeof(int32_t),
                           &regions[LANE_LIVE_ROWS], detail);
        if (status == TOPKD_OK)
            status = check_overlap(regions, geometry, request->live_rows.offset, detail);
    }
    if (status == TOPKD_OK && request->device_mailbox.region != 0) {
        status = find_word(session, "device_mailbox", &request->device_mailbox, sizeof(uint64_t),
                           &regions[LANE_MAILBOX], detail);
        if (status == TOPKD_OK && !regions[LANE_MAILBOX]->memory->memory->is_writable)
            status = detail_set(detail, TOPKD_E_READ_ONLY,
                                "device_mailbox: the region was registered for reading only");
    }
    return status;
}

/* ---- Open ------------------------------------------------------------------------------------ */

static uintptr_t address_of(const struct region *region, uint64_t offset)
{
    return region == NULL ? 0 : region->memory->memory->address + region->offset + offset;
}

static void set_args(const struct lane *lane, const struct wire_select_request *shape,
                     const struct geometry *geometry, struct topk_args *args_p)
{
    uintptr_t addresses[GEOMETRY_TENSOR_COUNT];
    for (int tensor = 0; tensor < GEOMETRY_TENSOR_COUNT; tensor++)
        addresses[tensor] = address_of(lane->regions[tensor], 0);
    geometry_args(shape, geometry, addresses, args_p);
}

/* Everything that can refuse; what it took is in the lane. */
static enum topkd_status prepare(struct lane *lane, const struct wire_lane_open_request *request,
                                 struct topk_args *args_p, char *detail)
{
    struct session *session = lane->session;
    const struct wire_select_request *shape = &request->shape;
    struct geometry_region views[GEOMETRY_TENSOR_COUNT];
    struct region *regions[LANE_REGION_COUNT] = {NULL};
    struct geometry geometry;
    enum topkd_status status = selection_find_regions(session, shape, regions, views, detail);
    if (status != TOPKD_OK)
        return status;
    struct geometry_limits limits = {.k_max = session->limits.k_max,
                                     .dtypes = session->limits.dtypes,
                                     .rows_max = session->limits.rows_max,
                                     .width_max = session->limits.width_max};
    status = geometry_check(shape, views, &limits, &geometry, detail);
    if (status == TOPKD_OK)
        status = find_words(lane, request, &geometry, regions, detail);
    if (status != TOPKD_OK)
        return status;
    for (int i = 0; i < LANE_REGION_COUNT; i++) {
        if (regions[i] != NULL)
            region_acquire(regions[i]);
        lane->regions[i] = regions[i];
    }
    set_args(lane, shape, &geometry, args_p);
    const struct topk_options options = geometry_options(shape);
    char reason[TOPK_DETAIL_SIZE] = "";
    enum topk_status checked = topk_args_check(args_p, &options, reason);
    if (checked != TOPK_OK)
        return detail_set(detail, TOPKD_E_INVALID, "%s: %s", topk_strerror(checked), reason);
    return selection_acquire_bucket(session->worker, args_p, &options, &lane->bucket, detail);
}

static void give_back(struct lane *lane)
{
    for (int i = 0; i < LANE_REGION_COUNT; i++) {
        if (lane->regions[i] != NULL)
            region_release(&lane->session->regions, lane->regions[i]);
        lane->regions[i] = NULL;
    }
    if (lane->bucket != NULL)
        bucket_release(lane->bucket);
    lane->bucket = NULL;
    lane->id = 0;
}

static struct lane *free_place(struct session *session)
{
    for (uint32_t i = 0; i < session->limits.lanes_max; i++) {
        const struct lane *lane = &session->lanes[i];
        if (lane->id == 0 && !lane->is_opening && !lane->is_closing)
            return &session->lanes[i];
    }
    return NULL;
}

/* The message is answered when the work is done. */
static void keep(struct lane *lane, const struct lane_origin *origin, uint64_t sequence)
{
    lane->request = origin->request;
    lane->entry = origin->entry;
    lane->sequence = sequence;
}

/* Answers it with the worker's reply, which worker_reply_init began. */
static void answer(struct lane *lane, struct wire_reply *reply)
{
    struct session *session = lane->session;
    if (reply->status == TOPKD_E_BUSY)
        reply_cache_forget(&session->replies, lane->entry);
    else
        reply_cache_finish(&session->replies, lane->entry, reply);
    worker_reply(session->worker, lane->request, reply);
    lane->entry = NULL;
    lane->request = NULL;
}

static void begin(struct lane *lane, uv_work_cb work, uv_after_work_cb done)
{
    lane->work.data = lane;
    int error = uv_queue_work(&lane->session->worker->loop, &lane->work, work, done);
    topkd_assert(error == 0);
}

static void begin_close(struct lane *lane);

static void open_work(uv_work_t *work)
{
    struct lane *lane = work->data;
    struct device *device = lane->session->worker->device;
    lane->open.status = device->ops->mailbox_open(device, &lane->open.config, &lane->open.opened,
                                                  lane->open.detail);
}

static void open_done(uv_work_t *work, int status)
{
    struct lane *lane = work->data;
    struct session *session = lane->session;
    struct worker *worker = session->worker;
    struct wire_reply *reply = &worker->reply;
    topkd_assert(status == 0); /* nobody cancels it */
    lane->is_opening = false;
    worker_reply_init(worker, reply, session->id, lane->sequence, WIRE_LANE_OPEN);
    reply->status = lane->open.status;
    memcpy(reply->detail, lane->open.detail, sizeof(reply->detail));
    reply->u.lane_open = (struct wire_lane_open_reply){
        .lane = lane->id,
        .fills_device = lane->open.opened.fills_device,
        .poll_us = lane->open.opened.poll_us,
    };
    lane->mailbox = lane->open.opened.mailbox;
    answer(lane, reply);
    if (lane->open.status == TOPKD_OK) {
        const struct topk_args *args = &lane->open.config.args;
        log_info("lane_open",
                 "session=%" PRIu64 " lane=%" PRIu64 " rows=%" PRId32 " width=%" PRId32
                 " k=%" PRId32 " bucket=%" PRIu32 " poll_us=%" PRIu32,
                 session->id, lane->id, args->num_rows, args->width, args->k, lane->bucket->id,
                 lane->open.opened.poll_us);
        if (session->pipe == NULL) /* it has ended meanwhile */
            begin_close(lane);
        return;
    }
    give_back(lane);
    session->num_lanes--;
    session_lane_closed(session);
}

bool lane_open(struct session *session, const struct wire_lane_open_request *request,
               const struct lane_origin *origin, struct wire_reply *reply)
{
    reply->status = check_request(session, request, reply->detail);
    if (reply->status != TOPKD_OK)
        return false;
    struct lane *lane = free_place(session);
    if (lane == NULL) {
        reply->status =
            detail_set(reply->detail, TOPKD_E_LIMIT,
                       "the session has %" PRIu32 " lanes open, the most there may be: close one",
                       session->limits.lanes_max);
        return false;
    }
    *lane = (struct lane){.session = session, .is_opening = true};
    struct topk_args args;
    reply->status = prepare(lane, request, &args, reply->detail);
    if (reply->status != TOPKD_OK) {
        give_back(lane);
        lane->is_opening = false;
        return false;
    }
    lane->open.file = request->mailbox;
    lane->open.config = (struct device_mailbox_config){
        .args = args,
        .bucket = lane->bucket,
        .live_rows = address_of(lane->regions[LANE_LIVE_ROWS], request->live_rows.offset),
        .device_mailbox = address_of(lane->regions[LANE_MAILBOX], request->device_mailbox.offset),
        .poll_us = request->poll_us,
        .file = &lane->open.file,
        .peer = session->peer,
    };
    lane->id = session->worker->next_lane++;
    session->num_lanes++;
    keep(lane, origin, reply->sequence);
    begin(lane, open_work, open_done);
    return true;
}

/* ---- Close ----------------------------------------------------------------------------------- */

static void close_work(uv_work_t *work)
{
    struct lane *lane = work->data;
    struct device *device = lane->session->worker->device;
    device->ops->mailbox_close(device, lane->mailbox);
}

static void close_done(uv_work_t *work, int status)
{
    struct lane *lane = work->data;
    struct session *session = lane->session;
    struct worker *worker = session->worker;
    topkd_assert(status == 0); /* nobody cancels it */
    log_info("lane_close", "session=%" PRIu64 " lane=%" PRIu64, session->id, lane->id);
    give_back(lane);
    lane->is_closing = false;
    if (lane->entry != NULL) {
        worker_reply_init(worker, &worker->reply, session->id, lane->sequence, WIRE_LANE_CLOSE);
        answer(lane, &worker->reply);
    }
    session->num_lanes--;
    session_lane_closed(session);
}

static void begin_close(struct lane *lane)
{
    lane->is_closing = true;
    begin(lane, close_work, close_done);
}

bool lane_close(struct session *session, uint64_t id, const struct lane_origin *origin,
                struct wire_reply *reply)
{
    for (uint32_t i = 0; i < session->limits.lanes_max && id != 0; i++) {
        struct lane *lane = &session->lanes[i];
        if (lane->id != id || lane->is_opening || lane->is_closing)
            continue;
        keep(lane, origin, reply->sequence);
        begin_close(lane);
        return true;
    }
    reply->status = check_device(session, reply->detail);
    if (reply->status == TOPKD_OK)
        reply->status = detail_set(reply->detail, TOPKD_E_INVALID,
                                   "lane %" PRIu64 " is not open in this session (any more)", id);
    return false;
}

void lanes_end(struct session *session)
{
    for (uint32_t i = 0; i < session->limits.lanes_max; i++) {
        struct lane *lane = &session->lanes[i];
        if (lane->id != 0 && !lane->is_opening && !lane->is_closing)
            begin_close(lane); /* else it is, when it has been opened */
    }
}
