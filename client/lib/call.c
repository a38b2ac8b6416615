/* call.c - requests that block for their reply and are not selections. */
#include "client.h"

#include <stdlib.h>
#include <string.h>

/* Choice: a worker that says BUSY is asked again after so long. */
#define BUSY_RETRY_NS (2 * CLOCK_NS_PER_MS)
/* Choice: a side socket that took nothing is tried again after so long. */
#define SIDE_RETRY_NS (50 * CLOCK_NS_PER_MS)

/* With the mutex held: waits until a request may be sent. */
enum topkd_status call_await_link(struct topkd_client *client, uint64_t deadline_ns,
                                  struct link **link_p, char *detail)
{
    uint64_t num_refusals = client->num_refusals;
    enum topkd_status status = TOPKD_OK;
    client->num_awaiting++;
    while (!link_usable(client->link)) {
        renew_wake(client);
        if (client->closing) {
            status = fault(detail, TOPKD_E_CLOSED, "the client is being closed");
        } else if (client->ended) {
            status = fault(detail, TOPKD_E_STALE_SESSION,
                           "the session is gone and no_renew is set: open a new client");
        } else if (client->num_refusals != num_refusals) {
            status = fault(detail, client->outage_status, "%s", client->outage_detail);
        } else if (!client_cond_wait(client, &client->changed, deadline_ns)) {
            status =
                fault(detail, TOPKD_E_STALE_SESSION, "the session was not renewed in time: %.180s",
                      client->outage_status ? client->outage_detail : "the worker went");
        }
        if (status != TOPKD_OK) {
            break;
        }
    }
    client->num_awaiting--;
    *link_p = client->link;
    return status;
}

enum topkd_status call_find_worker(struct topkd_client *client, uint64_t deadline_ns,
                                   struct call_worker *worker_p, char *detail)
{
    struct link *link;
    pthread_mutex_lock(&client->mutex);
    enum topkd_status status = call_await_link(client, deadline_ns, &link, detail);
    if (status == TOPKD_OK) {
        worker_p->session_serial = link->session->serial;
        memcpy(worker_p->url, link->session->url, sizeof(worker_p->url));
    }
    pthread_mutex_unlock(&client->mutex);
    return status;
}

bool call_worker_again(struct topkd_client *client, const struct call_worker *worker,
                       uint64_t deadline_ns)
{
    uint64_t until_ns = clock_earlier(clock_now_ns() + SIDE_RETRY_NS, deadline_ns);
    pthread_mutex_lock(&client->mutex);
    while (link_usable(client->link) && client->session->serial == worker->session_serial &&
           client_cond_wait(client, &client->changed, until_ns)) {
    }
    pthread_mutex_unlock(&client->mutex);
    return !clock_passed(deadline_ns);
}

/* With the mutex held, released while the reply is awaited: so requests leave in the order of
 * their numbers. */
static enum topkd_status exchange(struct link *link, const struct call *call,
                                  struct wire_reply *reply, char *detail)
{
    struct topkd_client *client = link->client;
    struct wire_request request = {
        .session = link->session->id,
        .epoch = link->session->epoch,
        .sequence = ++link->sequence,
    };
    enum topkd_status status = call->fill(&request, link->session, call->arg, detail);
    if (status != TOPKD_OK) {
        return status;
    }
    struct rpc_exchange sent;
    status = rpc_send(link->rpc, &request, call->deadline_ns, reply, &sent, detail);
    if (status != TOPKD_OK) {
        return status;
    }
    link->num_callers++;
    pthread_mutex_unlock(&client->mutex);
    status = rpc_receive(&sent, detail);
    pthread_mutex_lock(&client->mutex);
    link->num_callers--; /* link_close waits for it and for the mutex: the link is still there */
    pthread_cond_broadcast(&client->changed);
    if (!link_usable(link)) {
        renew_wake(client); /* this may have been the last one in flight */
    }
    if (status == TOPKD_OK && call->take) {
        call->take(reply, link->session, call->arg);
    }
    return status;
}

/* Whether the same request is worth sending again, after what the status says about the link. */
static bool repeatable(struct link *link, enum topkd_status status)
{
    struct topkd_client *client = link->client;
    switch (status) {
    case TOPKD_E_UNREACHABLE:
        link->lost = true;
        break;
    case TOPKD_E_STALE_SESSION:
        link->stale = true;
        break;
    case TOPKD_E_DRAINING:
        link->draining = true;
        break;
    case TOPKD_E_BUSY:
        return true;
    default:
        return false;
    }
    renew_wake(client);
    return !client->no_renew;
}

/* With the mutex held. False when the deadline comes first. */
static bool pause_busy(struct topkd_client *client, uint64_t deadline_ns)
{
    uint64_t again_ns = clock_now_ns() + BUSY_RETRY_NS;
    if (again_ns >= deadline_ns) {
        return false;
    }
    while (client_cond_wait(client, &client->changed, again_ns)) {
    }
    return true;
}

enum topkd_status call_run(struct topkd_client *client, const struct call *call, char *detail)
{
    struct wire_reply *reply = malloc(sizeof(*reply));
    if (!reply) {
        return fault(detail, TOPKD_E_NO_MEMORY, "no memory for a reply");
    }
    pthread_mutex_lock(&client->mutex);
    enum topkd_status status;
    bool again;
    do {
        struct link *link;
        again = false;
        status = call_await_link(client, call->deadline_ns, &link, detail);
        if (status == TOPKD_OK) {
            status = exchange(link, call, reply, detail);
            again = repeatable(link, status) &&
                    (status != TOPKD_E_BUSY ||
                     (!call->is_busy_final && pause_busy(client, call->deadline_ns)));
        }
    } while (again);
    if (status == TOPKD_E_UNREACHABLE && client->no_renew) {
        status = TOPKD_E_STALE_SESSION;
    }
    pthread_mutex_unlock(&client->mutex);
    free(reply);
    return status;
}
