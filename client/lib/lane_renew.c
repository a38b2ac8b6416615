/* lane_renew.c - lanes when workers come and go: the watcher, and opening them again. */
#include "client.h"
#include "thread.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Choices: how often the watcher looks at lanes that no worker serves; how long it waits for the
 * last word of a worker that it cannot see die (killed processes were gone in 40-60 ms, H200); how
 * long a renewal asks a worker that still holds the mailbox for the session before. */
#define WATCH_NS (200 * UINT64_C(1000))
#define GRACE_NS (250 * CLOCK_NS_PER_MS)
#define RENEW_MS 1000u

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

enum topkd_status lanes_watch(struct topkd_client *client, char *detail)
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

enum topkd_status lane_fill_open(const struct topkd_lane *lane, const struct session *session,
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
    open->poll_us = lane->poll_us;
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
        status = lane_fill_open(lane, session, &file, &request, detail);
    }
    pthread_mutex_unlock(&client->mutex);
    if (status == TOPKD_OK) {
        status = link_exchange(link, &request, clock_after_ms(RENEW_MS), reply, detail);
    }
    pthread_mutex_lock(&client->mutex);
    if (status == TOPKD_OK) {
        lane->id = reply->u.lane_open.lane;
        lane->poll_us_granted = reply->u.lane_open.poll_us;
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
