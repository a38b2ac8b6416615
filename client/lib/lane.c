/* lane.c - lanes: open, close, renewal, and the watcher. */
#include "client.h"
#include "thread.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Choices: how often the watcher looks at lanes that no worker serves; how long it waits for the
 * last word of a worker that it cannot see die (killed processes were gone in 40-60 ms, H200); how
 * long a renewal asks a worker that still holds the mailbox for the session before; how long an
 * open client waits for a worker to close a lane. */
#define WATCH_NS (200 * UINT64_C(1000))
#define GRACE_NS (250 * CLOCK_NS_PER_MS)
#define BUSY_RETRY_NS (5 * CLOCK_NS_PER_MS)
#define RENEW_MS 1000u

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

/* ---- The watcher ----------------------------------------------------------------------------- */

static bool is_unserved(const struct topkd_lane *lane)
{
    return !lane->is_served && !lane->is_handed && !lane->is_closing;
}

static bool any_unserved(struct topkd_client *client)
{
    list_each(node, &client->lanes.list)
    {
        if (is_unserved(list_entry(node, struct topkd_lane, node))) {
            return true;
        }
    }
    return false;
}

/* Whether nothing of the worker can still be on the GPU. */
static bool is_worker_gone(const struct lanes *lanes)
{
    if (lanes->worker_pid > 0 && kill(lanes->worker_pid, 0) != 0 && errno == ESRCH) {
        return true;
    }
    return clock_now_ns() - lanes->lost_ns > GRACE_NS;
}

/* With the mutex held, released meanwhile: answering may be a call into the driver. */
static void answer(struct topkd_lane *lane)
{
    struct topkd_client *client = lane->client;
    lane->is_answering = true;
    pthread_mutex_unlock(&client->mutex);
    bool was_asked = cuda_lane_answer(client, &lane->mailbox);
    pthread_mutex_lock(&client->mutex);
    lane->is_answering = false;
    lane->num_failed += was_asked;
    pthread_cond_broadcast(&client->changed);
}

static void answer_all(struct topkd_client *client)
{
    struct list *node = client->lanes.list.next;
    while (node != &client->lanes.list) {
        struct topkd_lane *lane = list_entry(node, struct topkd_lane, node);
        if (is_unserved(lane)) {
            answer(lane);
        }
        node = lane->node.next; /* it is still in the list: closing waits for its answer */
    }
}

static void *watch(void *arg)
{
    struct topkd_client *client = arg;
    struct lanes *lanes = &client->lanes;
    pthread_mutex_lock(&client->mutex);
    while (!lanes->is_ending) {
        if (!any_unserved(client)) {
            pthread_cond_wait(&lanes->wake, &client->mutex);
            continue;
        }
        if (is_worker_gone(lanes)) {
            answer_all(client);
        }
        pthread_mutex_unlock(&client->mutex);
        const struct timespec pause = clock_timespec(WATCH_NS);
        (void)nanosleep(&pause, NULL);
        pthread_mutex_lock(&client->mutex);
    }
    pthread_mutex_unlock(&client->mutex);
    return NULL;
}

static enum topkd_status start_watching(struct topkd_client *client, char *detail)
{
    struct lanes *lanes = &client->lanes;
    int error = 0;
    pthread_mutex_lock(&client->mutex);
    if (!lanes->is_watching) {
        error = thread_start(&lanes->watcher, watch, client);
        lanes->is_watching = error == 0;
    }
    pthread_mutex_unlock(&client->mutex);
    return error ? fault_system(detail, "cannot start a thread", error) : TOPKD_OK;
}

/* ---- Sessions come and go -------------------------------------------------------------------- */

void lanes_lose(struct topkd_client *client, const struct session *session,
                enum topkd_status status, const char *detail)
{
    struct lanes *lanes = &client->lanes;
    lanes->worker_pid = (pid_t)session->worker.pid;
    lanes->lost_ns = clock_now_ns();
    list_each(node, &lanes->list)
    {
        struct topkd_lane *lane = list_entry(node, struct topkd_lane, node);
        if (lane->is_served || lane->is_handed) {
            lane->is_served = false;
            lane->is_handed = false;
            lane->outage_status = status;
            (void)fault(lane->outage_detail, status, "%.200s", detail);
        }
    }
    pthread_cond_signal(&lanes->wake);
}

/* What opens the lane on this session. With the mutex. */
static enum topkd_status fill_open(const struct topkd_lane *lane, const struct session *session,
                                   const struct wire_memory *file, struct wire_request *request,
                                   char *detail)
{
    struct wire_lane_open_request *open = &request->u.lane_open;
    request->kind = WIRE_LANE_OPEN;
    enum topkd_status status = select_fill_shape(&lane->request, session, &open->shape, detail);
    if (status == TOPKD_OK) {
        status = select_put_ref(&lane->live_rows, session, &open->live_rows, detail);
    }
    if (status == TOPKD_OK && lane->mailbox.buffer) {
        const struct topkd_tensor word = {.region = topkd_buffer_region(lane->mailbox.buffer)};
        status = select_put_ref(&word, session, &open->device_mailbox, detail);
    }
    open->mailbox = *file;
    return status;
}

static struct topkd_lane *next_lane(struct topkd_client *client, uint64_t serial)
{
    list_each(node, &client->lanes.list)
    {
        struct topkd_lane *lane = list_entry(node, struct topkd_lane, node);
        if (!lane->is_closing && lane->renewed_serial != serial) {
            return lane;
        }
    }
    return NULL;
}

static enum topkd_status exchange_open(struct link *link, const struct wire_request *template,
                                       struct wire_reply *reply, char *detail)
{
    uint64_t deadline_ns = clock_after_ms(RENEW_MS);
    for (;;) {
        struct wire_request request = *template;
        request.sequence = ++link->sequence; /* nobody else uses the link yet */
        enum topkd_status status = rpc_exchange(link->rpc, &request, deadline_ns, reply, detail);
        if (status != TOPKD_E_BUSY || clock_now_ns() + BUSY_RETRY_NS >= deadline_ns) {
            return status;
        }
        const struct timespec pause = clock_timespec(BUSY_RETRY_NS);
        (void)nanosleep(&pause, NULL);
    }
}

/* With the mutex held, released meanwhile. */
static enum topkd_status renew(struct topkd_lane *lane, struct link *link, struct wire_reply *reply,
                               char *detail)
{
    struct topkd_client *client = lane->client;
    const struct session *session = link->session;
    struct wire_memory file = {0};
    struct wire_request request = {.session = session->id, .epoch = session->epoch};
    while (lane->is_answering) {
        (void)client_cond_wait(client, &client->changed, CLOCK_NEVER);
    }
    lane->renewed_serial = session->serial;
    lane->is_handed = true; /* from here on the watcher leaves it alone */
    pthread_mutex_unlock(&client->mutex);
    enum topkd_status status = cuda_lane_settle(client, &lane->mailbox, detail);
    if (status == TOPKD_OK) {
        status = cuda_lane_offer(&lane->mailbox, session->url, &file, detail);
    }
    pthread_mutex_lock(&client->mutex);
    if (status == TOPKD_OK) {
        status = fill_open(lane, session, &file, &request, detail);
    }
    pthread_mutex_unlock(&client->mutex);
    if (status == TOPKD_OK) {
        status = exchange_open(link, &request, reply, detail);
    }
    pthread_mutex_lock(&client->mutex);
    if (status == TOPKD_OK) {
        lane->id = reply->u.lane_open.lane;
        return TOPKD_OK;
    }
    lane->is_handed = false;
    lane->outage_status = status;
    memcpy(lane->outage_detail, detail, sizeof(lane->outage_detail));
    pthread_cond_signal(&client->lanes.wake);
    return status;
}

enum topkd_status lanes_renew(struct topkd_client *client, struct link *link, char *detail)
{
    struct wire_reply *reply = malloc(sizeof(*reply));
    if (!reply) {
        return fault(detail, TOPKD_E_NO_MEMORY, "no memory to open lanes again");
    }
    enum topkd_status status = TOPKD_OK;
    struct topkd_lane *lane;
    pthread_mutex_lock(&client->mutex);
    while (!client->closing && status == TOPKD_OK &&
           (lane = next_lane(client, link->session->serial)) != NULL) {
        status = renew(lane, link, reply, detail);
        if (!renew_transient(status) || status == TOPKD_E_LIMIT || status == TOPKD_E_BUSY) {
            status = TOPKD_OK; /* it says something about the lane, and not about the link */
        }
    }
    pthread_mutex_unlock(&client->mutex);
    free(reply);
    return status;
}

void lanes_take(struct topkd_client *client, const struct link *link)
{
    list_each(node, &client->lanes.list)
    {
        struct topkd_lane *lane = list_entry(node, struct topkd_lane, node);
        if (lane->is_handed && lane->renewed_serial == link->session->serial) {
            lane->is_handed = false;
            lane->is_served = true;
            lane->num_renewals++;
        }
    }
}

/* ---- Open ------------------------------------------------------------------------------------ */

struct opening {
    struct topkd_lane *lane;
    uint64_t session_serial; /* whose worker has the file */
    struct wire_memory file;
};

static enum topkd_status fill_opening(struct wire_request *request, const struct session *session,
                                      void *arg, char *detail)
{
    const struct opening *opening = arg;
    if (session->serial != opening->session_serial) {
        return fault(detail, TOPKD_E_CANCELLED, "the session was renewed meanwhile");
    }
    return fill_open(opening->lane, session, &opening->file, request, detail);
}

static void take_opened(const struct wire_reply *reply, const struct session *session, void *arg)
{
    struct topkd_lane *lane = ((struct opening *)arg)->lane;
    lane->id = reply->u.lane_open.lane;
    lane->is_served = true;
    lane->renewed_serial = session->serial;
    list_insert(&lane->client->lanes.list, &lane->node);
}

/* One attempt with the present session. TOPKD_E_CANCELLED: it was renewed in the middle. */
static enum topkd_status open_once(struct opening *opening, uint64_t deadline_ns, char *detail)
{
    struct topkd_client *client = opening->lane->client;
    char url[WIRE_URL_SIZE];
    pthread_mutex_lock(&client->mutex);
    opening->session_serial = client->session->serial;
    memcpy(url, client->session->url, sizeof(url));
    pthread_mutex_unlock(&client->mutex);
    enum topkd_status status =
        cuda_lane_offer(&opening->lane->mailbox, url, &opening->file, detail);
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
    return status == TOPKD_OK ? select_check_tensor(client, live_rows, "live_rows", detail)
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
    list_init(&lane->node);
    enum topkd_status status =
        cuda_lane_mailbox_make(client, options->device_mailbox, &lane->mailbox, detail);
    if (status == TOPKD_OK) {
        status = start_watching(client, detail);
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
    status = cuda_get(client, &cuda, detail);
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
    if (status != TOPKD_OK) {
        return status;
    }
    struct opening opening = {.lane = lane};
    do {
        status = open_once(&opening, deadline_ns, detail);
    } while (status == TOPKD_E_CANCELLED && !clock_passed(deadline_ns));
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
    };
    pthread_mutex_unlock(&client->mutex);
    return TOPKD_OK;
}
