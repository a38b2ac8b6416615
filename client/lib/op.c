/* op.c - the public face of operations: select, start, wait, next, finish, release. */
#include "client.h"

#include <stdlib.h>
#include <string.h>

/* ---- Create ---------------------------------------------------------------------------------- */

static struct topkd_op *make_op(struct topkd_client *client,
                                const struct topkd_select_request *request)
{
    size_t num_lengths = 0;
    if (request->lengths_mode == TOPKD_LENGTHS_HOST && request->lengths_host &&
        request->rows <= WIRE_LENGTHS_MAX) { /* otherwise select_check refuses it */
        num_lengths = request->rows;
    }
    struct topkd_op *op = calloc(1, sizeof(*op) + num_lengths * sizeof(op->lengths[0]));
    struct lease *lease = request->indices.region ? NULL : calloc(1, sizeof(*lease));
    if (!op || (!lease && !request->indices.region)) {
        free(op);
        free(lease);
        return NULL;
    }
    op->client = client;
    op->request = *request;
    op->lease = lease;
    list_init(&op->node);
    list_init(&op->queue_node);
    client_cond_init(&op->done);
    if (num_lengths > 0) {
        memcpy(op->lengths, request->lengths_host, num_lengths * sizeof(op->lengths[0]));
        op->request.lengths_host = op->lengths;
    }
    return op;
}

/* With the mutex held. */
static enum topkd_status check_start(struct topkd_client *client,
                                     const struct topkd_select_request *request, bool blocking,
                                     char *detail)
{
    const struct wire_limits *limits = &client->session->limits;
    if (client->closing) {
        return fault(detail, TOPKD_E_CLOSED, "the client is being closed");
    }
    if (client->ended) {
        return fault(detail, TOPKD_E_STALE_SESSION,
                     "the session is gone and no_renew is set: open a new client");
    }
    enum topkd_status status = select_check(client, request, detail);
    if (status == TOPKD_OK && !blocking && client->num_ops >= limits->outstanding_max) {
        status = fault(detail, TOPKD_E_BUSY,
                       "%u operations are in flight, the session allows outstanding_max %u",
                       client->num_ops, limits->outstanding_max);
    }
    return status;
}

static enum topkd_status free_unstarted(struct topkd_op *op, enum topkd_status status)
{
    pthread_cond_destroy(&op->done);
    free(op->lease);
    free(op);
    return status;
}

enum topkd_status op_start(struct topkd_client *client, const struct topkd_select_request *request,
                           const struct session *session, bool blocking, void *user,
                           struct topkd_op **op_p)
{
    char *detail = fault_detail();
    enum topkd_status status = client_check(client, detail);
    if (status != TOPKD_OK) {
        return status;
    }
    if (!request) {
        return fault(detail, TOPKD_E_INVALID, "request is NULL");
    }
    struct topkd_op *op = make_op(client, request);
    if (!op) {
        return fault(detail, TOPKD_E_NO_MEMORY, "no memory for an operation");
    }
    if (!request->indices.region && (status = cuda_arena_need(client, detail)) != TOPKD_OK) {
        return free_unstarted(op, status);
    }
    pthread_mutex_lock(&client->mutex);
    status = check_start(client, request, blocking, detail);
    if (status == TOPKD_OK && session && client->session != session) {
        status = fault(detail, TOPKD_E_STALE_SESSION,
                       "the session was renewed while the request was prepared: try again");
    }
    if (status == TOPKD_OK) {
        uint32_t timeout_max_ms = client->session->limits.timeout_ms_max;
        op->timeout_ms = request->timeout_ms;
        if (op->timeout_ms == TOPKD_TIMEOUT_DEFAULT) {
            op->timeout_ms =
                client->timeout_ms < timeout_max_ms ? client->timeout_ms : timeout_max_ms;
        }
        op->deadline_ns = clock_after_ms(op->timeout_ms);
        op->held = true;
        op->claimed = blocking;
        op->user = user;
        engine_start(op);
    }
    pthread_mutex_unlock(&client->mutex);
    if (status != TOPKD_OK) {
        return free_unstarted(op, status);
    }
    *op_p = op;
    return TOPKD_OK;
}

/* ---- Finish ---------------------------------------------------------------------------------- */

/* With the mutex held. Frees the operation. */
static enum topkd_status finish(struct topkd_op *op, struct topkd_result *result_p, char *detail)
{
    engine_cancel(op, "the operation was finished before it had ended");
    enum topkd_status status = op->status;
    if (status != TOPKD_OK) {
        memcpy(detail, op->detail, sizeof(op->detail));
    } else if (result_p) {
        select_result(op, result_p);
    } else if (op->leased) {
        engine_release_lease(op->client, op->lease);
    }
    engine_unhold(op);
    return status;
}

enum topkd_status topkd_op_finish(struct topkd_op *op, struct topkd_result *result_p)
{
    char *detail = fault_detail();
    if (!op) {
        return fault(detail, TOPKD_E_INVALID, "op is NULL");
    }
    struct topkd_client *client = op->client;
    enum topkd_status status = client_check(client, detail);
    if (status != TOPKD_OK) {
        return status;
    }
    pthread_mutex_lock(&client->mutex);
    status = finish(op, result_p, detail);
    pthread_mutex_unlock(&client->mutex);
    return status;
}

/* ---- Blocking -------------------------------------------------------------------------------- */

enum topkd_status topkd_select(struct topkd_client *client,
                               const struct topkd_select_request *request,
                               struct topkd_result *result_p)
{
    char *detail = fault_detail();
    struct topkd_op *op;
    if (!result_p) {
        return fault(detail, TOPKD_E_INVALID, "result_p is NULL");
    }
    enum topkd_status status = op_start(client, request, NULL, true, NULL, &op);
    if (status != TOPKD_OK) {
        return status;
    }
    pthread_mutex_lock(&client->mutex);
    while (op->state != OP_DONE) {
        if (!client_cond_wait(client, &op->done, op->deadline_ns + CLIENT_GRACE_NS)) {
            engine_expire(client); /* the timer is late */
        }
    }
    status = finish(op, result_p, detail);
    pthread_mutex_unlock(&client->mutex);
    return status;
}

/* ---- Asynchronous ---------------------------------------------------------------------------- */

enum topkd_status topkd_select_start(struct topkd_client *client,
                                     const struct topkd_select_request *request, void *user,
                                     struct topkd_op **op_p)
{
    if (!op_p) {
        return fault(fault_detail(), TOPKD_E_INVALID, "op_p is NULL");
    }
    return op_start(client, request, NULL, false, user, op_p);
}

int topkd_client_fd(struct topkd_client *client)
{
    return client_check(client, fault_detail()) == TOPKD_OK ? client->event_fd : -1;
}

struct topkd_op *topkd_op_next(struct topkd_client *client)
{
    if (client_check(client, fault_detail()) != TOPKD_OK) {
        return NULL;
    }
    struct topkd_op *op = NULL;
    pthread_mutex_lock(&client->mutex);
    if (!list_empty(&client->finished)) {
        op = list_entry(client->finished.next, struct topkd_op, queue_node);
        engine_unqueue(op);
    }
    pthread_mutex_unlock(&client->mutex);
    return op;
}

enum topkd_status topkd_op_wait(struct topkd_op *op, uint32_t timeout_ms)
{
    char *detail = fault_detail();
    if (!op) {
        return fault(detail, TOPKD_E_INVALID, "op is NULL");
    }
    struct topkd_client *client = op->client;
    enum topkd_status status = client_check(client, detail);
    if (status != TOPKD_OK) {
        return status;
    }
    uint64_t deadline_ns = client_deadline_ns(client, timeout_ms);
    pthread_mutex_lock(&client->mutex);
    op->num_waiters++;
    while (op->state != OP_DONE && client_cond_wait(client, &op->done, deadline_ns)) {
    }
    op->num_waiters--;
    if (op->state == OP_DONE) {
        engine_unqueue(op);
    } else {
        status = fault(detail, TOPKD_E_TIMEOUT, "the operation has not finished yet");
    }
    pthread_mutex_unlock(&client->mutex);
    return status;
}

void *topkd_op_user(const struct topkd_op *op)
{
    return op ? op->user : NULL;
}

/* ---- Arena ----------------------------------------------------------------------------------- */

void topkd_result_release(struct topkd_client *client, struct topkd_result *result)
{
    if (client_check(client, fault_detail()) != TOPKD_OK || !result || result->lease == 0) {
        return;
    }
    pthread_mutex_lock(&client->mutex);
    list_each(node, &client->leases)
    {
        struct lease *lease = list_entry(node, struct lease, node);
        if (lease->id == result->lease) {
            engine_release_lease(client, lease);
            break;
        }
    }
    pthread_mutex_unlock(&client->mutex);
    result->indices = NULL;
    result->values = NULL;
    result->lease = 0;
}
