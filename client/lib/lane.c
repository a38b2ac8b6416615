/* lane.c - lanes: open, close, what became of their steps. */
#include "client.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static void change_users(struct topkd_region *region, int32_t change)
{
    region->num_users += (uint32_t)change;
}

/* With the mutex: the regions that the lane refers to. */
static void change_regions(struct topkd_lane *lane, int32_t change)
{
    select_each_region(&lane->request, change_users, change);
    if (lane->live_rows.region) {
        change_users(lane->live_rows.region, change);
    }
    if (change < 0) {
        pthread_cond_broadcast(&lane->client->changed);
    }
}

/* ---- Open ------------------------------------------------------------------------------------ */

struct opening {
    struct topkd_lane *lane;
    struct call_worker worker; /* that has the file */
    struct wire_memory file;
};

static enum topkd_status fill_opening(struct wire_request *request, const struct session *session,
                                      void *arg, char *detail)
{
    const struct opening *opening = arg;
    if (session->serial != opening->worker.session_serial) {
        return fault(detail, TOPKD_E_CANCELLED, "the session was renewed meanwhile");
    }
    return lane_fill_open(opening->lane, session, &opening->file, request, detail);
}

static void take_opened(const struct wire_reply *reply, const struct session *session, void *arg)
{
    struct topkd_lane *lane = ((struct opening *)arg)->lane;
    struct topkd_client *client = lane->client;
    lane->id = reply->u.lane_open.lane;
    lane->poll_us_granted = reply->u.lane_open.poll_us;
    if (lane->wait == TOPKD_LANE_WAIT_AUTO && reply->u.lane_open.fills_device) {
        lane->mailbox.kernel = NULL; /* it would stand in the selection's way */
    }
    lane->is_served = client->link && client->link->session == session;
    lane->renewed_serial = session->serial;
    list_insert(&client->lanes.list, &lane->node);
    if (!lane->is_served) { /* its loss was dealt with while the answer was on its way */
        lane->outage_status = fault(lane->outage_detail, TOPKD_E_STALE_SESSION,
                                    "the worker went when it had just opened the lane");
        pthread_cond_signal(&client->lanes.wake);
    }
}

/* One attempt with the present session. TOPKD_E_CANCELLED: try again, it was renewed in the
 * middle or its side socket took nothing. */
static enum topkd_status open_once(struct opening *opening, uint64_t deadline_ns, char *detail)
{
    struct topkd_client *client = opening->lane->client;
    struct call_worker *worker = &opening->worker;
    enum topkd_status status = call_find_worker(client, deadline_ns, worker, detail);
    if (status != TOPKD_OK) {
        return status;
    }
    status = cuda_lane_offer(&opening->lane->mailbox, worker->url, &opening->file, detail);
    if (status == TOPKD_E_UNREACHABLE && call_worker_again(client, worker, deadline_ns)) {
        return TOPKD_E_CANCELLED;
    }
    if (status != TOPKD_OK) {
        return status;
    }
    const struct call call = {
        .fill = fill_opening,
        .take = take_opened,
        .arg = opening,
        .deadline_ns = deadline_ns,
        .is_busy_final = true,
    };
    return call_run(client, &call, detail);
}

static enum topkd_status check_options(const struct topkd_lane_options *options, char *detail)
{
    if (options->wait != TOPKD_LANE_WAIT_AUTO && options->wait != TOPKD_LANE_WAIT_DRIVER &&
        options->wait != TOPKD_LANE_WAIT_KERNEL) {
        return fault(detail, TOPKD_E_INVALID, "wait is %d: one of TOPKD_LANE_WAIT_... (0 to %d)",
                     (int)options->wait, (int)TOPKD_LANE_WAIT_KERNEL);
    }
    if (options->wait == TOPKD_LANE_WAIT_KERNEL && !options->device_mailbox) {
        return fault(detail, TOPKD_E_INVALID,
                     "wait is TOPKD_LANE_WAIT_KERNEL with a word in host memory: set "
                     "device_mailbox as well");
    }
    if (options->poll_us > 0 && !options->device_mailbox) {
        return fault(detail, TOPKD_E_INVALID,
                     "poll_us is %" PRIu32
                     " with a word in host memory: set device_mailbox as well",
                     options->poll_us);
    }
    return TOPKD_OK;
}

/* What a selection may have and a lane may not, and what concerns a lane alone. With the mutex. */
static enum topkd_status check_lane(struct topkd_client *client,
                                    const struct topkd_select_request *request,
                                    const struct topkd_tensor *live_rows, char *detail)
{
    if (!request->indices.region) {
        return fault(detail, TOPKD_E_INVALID,
                     "a lane writes to a region: set indices (an arena slot lasts for one result)");
    }
    if (request->lengths_mode == TOPKD_LENGTHS_HOST) {
        return fault(detail, TOPKD_E_INVALID,
                     "a lane reads lengths on the device: put them into a region "
                     "(TOPKD_LENGTHS_REGION), or give one for all");
    }
    if (request->wait.semaphore || request->signal.semaphore) {
        return fault(detail, TOPKD_E_INVALID,
                     "wait and signal are the lane's own: leave them empty");
    }
    if (request->rows == 0) {
        return fault(detail, TOPKD_E_INVALID, "rows is 0: the most rows of a step, at least 1");
    }
    enum topkd_status status = select_check(client, request, detail);
    return status == TOPKD_OK
               ? select_check_tensor(client, live_rows, "live_rows", sizeof(int32_t), detail)
               : status;
}

static enum topkd_status make_lane(struct topkd_client *client,
                                   const struct topkd_select_request *request,
                                   const struct topkd_lane_options *options,
                                   struct topkd_lane **lane_p, char *detail)
{
    struct topkd_lane *lane = calloc(1, sizeof(*lane));
    if (!lane) {
        return fault(detail, TOPKD_E_NO_MEMORY, "no memory for a lane");
    }
    lane->client = client;
    lane->request = *request;
    lane->live_rows = options->live_rows;
    lane->poll_us = options->poll_us;
    lane->wait = options->wait;
    list_init(&lane->node);
    enum topkd_status status = cuda_lane_mailbox_make(client, options, &lane->mailbox, detail);
    if (status == TOPKD_OK) {
        status = lanes_watch(client, detail);
        if (status != TOPKD_OK) {
            cuda_lane_mailbox_free(client, &lane->mailbox);
        }
    }
    if (status != TOPKD_OK) {
        free(lane);
        return status;
    }
    pthread_mutex_lock(&client->mutex);
    change_regions(lane, 1);
    pthread_mutex_unlock(&client->mutex);
    *lane_p = lane;
    return TOPKD_OK;
}

static void free_lane(struct topkd_lane *lane)
{
    struct topkd_client *client = lane->client;
    pthread_mutex_lock(&client->mutex);
    list_remove(&lane->node);
    change_regions(lane, -1);
    pthread_mutex_unlock(&client->mutex);
    cuda_lane_mailbox_free(client, &lane->mailbox);
    free(lane);
}

enum topkd_status topkd_lane_open(struct topkd_client *client,
                                  const struct topkd_select_request *request,
                                  const struct topkd_lane_options *options,
                                  struct topkd_lane **lane_p)
{
    static const struct topkd_lane_options defaults = {0};
    char *detail = fault_detail();
    enum topkd_status status = client_check(client, detail);
    if (status != TOPKD_OK) {
        return status;
    }
    if (!request || !lane_p) {
        return fault(detail, TOPKD_E_INVALID, "%s is NULL", request ? "lane_p" : "request");
    }
    options = options ? options : &defaults;
    struct cuda *cuda;
    status = check_options(options, detail);
    if (status == TOPKD_OK) {
        status = cuda_get(client, &cuda, detail);
    }
    if (status != TOPKD_OK) {
        return status;
    }
    pthread_mutex_lock(&client->mutex);
    status = check_lane(client, request, &options->live_rows, detail);
    pthread_mutex_unlock(&client->mutex);
    if (status != TOPKD_OK) {
        return status;
    }
    uint64_t deadline_ns = client_deadline_ns(client, request->timeout_ms);
    struct topkd_lane *lane = NULL;
    status = make_lane(client, request, options, &lane, detail);
    if (!lane) {
        return status;
    }
    struct opening opening = {.lane = lane};
    do {
        status = open_once(&opening, deadline_ns, detail);
    } while (status == TOPKD_E_CANCELLED);
    if (status != TOPKD_OK) {
        free_lane(lane);
        return status;
    }
    *lane_p = lane;
    return TOPKD_OK;
}

/* ---- Close ----------------------------------------------------------------------------------- */

static enum topkd_status fill_close(struct wire_request *request, const struct session *session,
                                    void *arg, char *detail)
{
    const struct topkd_lane *lane = arg;
    if (lane->renewed_serial != session->serial) {
        return fault(detail, TOPKD_E_CANCELLED, "the session of the lane is gone");
    }
    request->kind = WIRE_LANE_CLOSE;
    request->u.lane_close.lane = lane->id;
    return TOPKD_OK;
}

static void close_by(struct topkd_lane *lane, uint64_t deadline_ns)
{
    char detail[WIRE_DETAIL_SIZE];
    struct topkd_client *client = lane->client;
    pthread_mutex_lock(&client->mutex);
    lane->is_closing = true;
    while (lane->is_answering || lane->is_handed) {
        (void)client_cond_wait(client, &client->changed, CLOCK_NEVER);
    }
    /* Without a link there is no session that could serve it. */
    bool is_served = lane->is_served && client->link;
    pthread_mutex_unlock(&client->mutex);
    if (is_served) {
        const struct call call = {.fill = fill_close, .arg = lane, .deadline_ns = deadline_ns};
        (void)call_run(client, &call, detail); /* either way nobody answers from now on */
    }
    (void)cuda_lane_answer(client, &lane->mailbox);
    free_lane(lane);
}

void topkd_lane_close(struct topkd_lane *lane)
{
    if (lane && client_check(lane->client, fault_detail()) == TOPKD_OK) {
        close_by(lane, client_deadline_ns(lane->client, TOPKD_TIMEOUT_DEFAULT));
    }
}

void lanes_free(struct topkd_client *client)
{
    struct lanes *lanes = &client->lanes;
    if (lanes->is_watching) {
        pthread_mutex_lock(&client->mutex);
        lanes->is_ending = true;
        pthread_cond_signal(&lanes->wake);
        pthread_mutex_unlock(&client->mutex);
        pthread_join(lanes->watcher, NULL);
    }
    pthread_cond_destroy(&lanes->wake);
    cuda_ask_free(client);
}

void lanes_close(struct topkd_client *client)
{
    uint64_t deadline_ns = client_deadline_ns(client, TOPKD_TIMEOUT_DEFAULT);
    for (;;) {
        struct topkd_lane *lane = NULL;
        pthread_mutex_lock(&client->mutex);
        if (!list_empty(&client->lanes.list)) {
            lane = list_entry(client->lanes.list.next, struct topkd_lane, node);
        }
        pthread_mutex_unlock(&client->mutex);
        if (!lane) {
            return;
        }
        close_by(lane, deadline_ns);
    }
}

/* ---- What became of the steps ---------------------------------------------------------------- */

enum topkd_status topkd_lane_check(struct topkd_lane *lane)
{
    char *detail = fault_detail();
    if (!lane) {
        return fault(detail, TOPKD_E_INVALID, "lane is NULL");
    }
    struct topkd_client *client = lane->client;
    enum topkd_status status = client_check(client, detail);
    if (status != TOPKD_OK) {
        return status;
    }
    pthread_mutex_lock(&client->mutex);
    while (lane->is_answering) { /* what it answers is counted afterwards */
        (void)client_cond_wait(client, &client->changed, CLOCK_NEVER);
    }
    uint64_t num_failed = lane->num_failed - lane->num_reported;
    lane->num_reported = lane->num_failed;
    if (num_failed > 0) {
        status = fault(detail, lane->outage_status,
                       "%" PRIu64 " steps were answered without a selection, their output is "
                       "undefined: %.140s",
                       num_failed, lane->outage_detail);
    }
    pthread_mutex_unlock(&client->mutex);
    return status;
}

enum topkd_status topkd_lane_info(struct topkd_lane *lane, struct topkd_lane_info *info_p)
{
    char *detail = fault_detail();
    if (!lane || !info_p) {
        return fault(detail, TOPKD_E_INVALID, "%s is NULL", lane ? "info_p" : "lane");
    }
    struct topkd_client *client = lane->client;
    enum topkd_status status = client_check(client, detail);
    if (status != TOPKD_OK) {
        return status;
    }
    pthread_mutex_lock(&client->mutex);
    *info_p = (struct topkd_lane_info){
        .is_served = lane->is_served || lane->is_handed,
        .status = lane->is_served || lane->is_handed ? TOPKD_OK : lane->outage_status,
        .num_failed = lane->num_failed,
        .num_renewals = lane->num_renewals,
        .wait = lane->mailbox.kernel ? TOPKD_LANE_WAIT_KERNEL : TOPKD_LANE_WAIT_DRIVER,
        .poll_us = lane->poll_us_granted,
    };
    pthread_mutex_unlock(&client->mutex);
    return TOPKD_OK;
}
