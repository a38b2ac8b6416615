/*
 * engine.c - the life of an operation: parked until a session, a slot and arena room are there,
 * sent (engine_send.c), done. Everything asynchronous of the library meets here.
 *
 * Deadlines are kept by one timer a client: a request whose deadline has passed is done for its
 * caller, but its slot stays taken until the worker answers or the connection goes. So a late lease
 * is given back, regions know who still uses them, and a worker that hangs fills the slots instead
 * of an unbounded queue.
 */
#include "engine_internal.h"
#include "thread.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Choice: a request whose worker dies this often while it runs is taken for the cause. */
#define LOSSES_MAX 4u
/* Choice: how often a release is sent again when the worker is too busy to take it. */
#define BUSY_MAX 64u

/* ---- Finished operations and their descriptor ------------------------------------------------ */

static void enqueue_finished(struct topkd_op *op)
{
    struct topkd_client *client = op->client;
    bool was_empty = list_empty(&client->finished);
    list_insert(&client->finished, &op->queue_node);
    if (was_empty) {
        const uint64_t one = 1;
        (void)!write(client->event_fd, &one, sizeof(one)); /* cannot fail: the counter is 0 */
    }
}

void engine_unqueue(struct topkd_op *op)
{
    struct topkd_client *client = op->client;
    if (op->state != OP_DONE || list_empty(&op->queue_node)) {
        return;
    }
    list_remove(&op->queue_node);
    if (list_empty(&client->finished)) {
        uint64_t count;
        (void)!read(client->event_fd, &count, sizeof(count)); /* cannot block: the counter is 1 */
    }
}

/* ---- The end of an operation ----------------------------------------------------------------- */

static void change_users(struct topkd_region *region, int32_t change)
{
    region->num_users += (uint32_t)change;
}

static void free_op(struct topkd_op *op)
{
    list_remove(&op->node);
    pthread_cond_destroy(&op->done);
    if (!op->leased) {
        free(op->lease);
    }
    free(op);
}

/* Nothing on the worker's side can refer to it any more. */
static void retire(struct topkd_op *op)
{
    struct topkd_client *client = op->client;
    select_each_region(&op->request, change_users, -1);
    if (op->request.wait.semaphore) {
        semaphore_release(op->request.wait.semaphore);
    }
    if (op->request.signal.semaphore) {
        semaphore_release(op->request.signal.semaphore);
    }
    client->num_ops--;
    pthread_cond_broadcast(&client->changed);
    if (!op->held) {
        free_op(op);
    }
}

void engine_end(struct topkd_op *op, enum topkd_status status, const char *detail)
{
    engine_unpark(op);
    op->state = OP_DONE;
    op->status = status;
    if (detail != op->detail) {
        memcpy(op->detail, detail, strnlen(detail, sizeof(op->detail) - 1) + 1);
        op->detail[sizeof(op->detail) - 1] = '\0';
    }
    if (status != TOPKD_OK && op->request.signal.semaphore) {
        semaphore_fail(op->request.signal.semaphore, op->request.signal.value, status);
    }
    if (op->claimed || op->num_waiters > 0) {
        pthread_cond_broadcast(&op->done);
    } else if (op->held) {
        enqueue_finished(op);
    }
    if (!op->in_flight) {
        retire(op);
    }
}

void engine_unhold(struct topkd_op *op)
{
    engine_unqueue(op);
    op->held = false;
    if (!op->in_flight) {
        free_op(op);
    }
}

void engine_cancel(struct topkd_op *op, const char *why)
{
    if (op->state != OP_DONE) {
        op->claimed = true; /* whoever cancels knows; nobody is to be told */
        engine_end(op, TOPKD_E_CANCELLED, why);
    }
}

void engine_fail_parked(struct topkd_client *client, enum topkd_status status, const char *detail)
{
    list_each(node, &client->parked)
    {
        engine_end(list_entry(node, struct topkd_op, queue_node), status, detail);
    }
}

void engine_fail_streamed(struct topkd_client *client)
{
    if (client->session->device_kind != WIRE_DEVICE_CUDA) {
        return;
    }
    list_each(node, &client->parked)
    {
        struct topkd_op *op = list_entry(node, struct topkd_op, queue_node);
        if (op->request.wait.semaphore || op->request.signal.semaphore) {
            engine_end(
                op, TOPKD_E_STALE_SESSION,
                "the worker went while the request was in flight; CUDA streams hold on to its "
                "semaphores, so it is not sent again");
        }
    }
}

/* ---- Deadlines ------------------------------------------------------------------------------- */

uint64_t engine_expiry_ns(const struct topkd_op *op)
{
    return op->state == OP_SENT ? op->deadline_ns + CLIENT_GRACE_NS : op->deadline_ns;
}

static void expire(struct topkd_op *op)
{
    struct topkd_client *client = op->client;
    const struct link *link = client->link;
    enum topkd_status status = TOPKD_E_TIMEOUT;
    if (op->state == OP_SENT) {
        (void)fault(op->detail, status, "the worker gave no answer within %u ms", op->timeout_ms);
    } else if (link_usable(link)) {
        (void)fault(op->detail, status,
                    "no slot became free within %u ms: %u requests are in flight", op->timeout_ms,
                    link->num_selects);
    } else if (client->outage_status == TOPKD_E_DRAINING || (link && link->draining)) {
        status = fault(op->detail, TOPKD_E_DRAINING,
                       "the daemon drains and was not back within %u ms", op->timeout_ms);
    } else {
        status = fault(op->detail, TOPKD_E_STALE_SESSION,
                       "the session could not be renewed within %u ms: %.160s", op->timeout_ms,
                       client->outage_status ? client->outage_detail : "its worker went");
    }
    engine_end(op, status, op->detail);
}

void engine_expire(struct topkd_client *client)
{
    uint64_t now_ns = clock_now_ns();
    list_each(node, &client->ops)
    {
        struct topkd_op *op = list_entry(node, struct topkd_op, node);
        if (op->state != OP_DONE && engine_expiry_ns(op) <= now_ns) {
            expire(op);
        }
    }
}

void engine_arm_timer(struct topkd_client *client, uint64_t at_ns)
{
    if (at_ns >= client->timer_at_ns) {
        return;
    }
    client->timer_at_ns = at_ns;
    pthread_cond_signal(&client->timing);
}

static uint64_t next_expiry_ns(const struct topkd_client *client)
{
    uint64_t next_ns = CLOCK_NEVER;
    list_each(node, &client->ops)
    {
        const struct topkd_op *op = list_entry(node, struct topkd_op, node);
        if (op->state != OP_DONE) {
            next_ns = clock_earlier(next_ns, engine_expiry_ns(op));
        }
    }
    return next_ns;
}

static void *run_timer(void *arg)
{
    struct topkd_client *client = arg;
    pthread_mutex_lock(&client->mutex);
    while (!client->timer_over) {
        if (clock_passed(client->timer_at_ns)) {
            engine_expire(client);
            client->timer_at_ns = next_expiry_ns(client);
        } else {
            (void)client_cond_wait(client, &client->timing, client->timer_at_ns);
        }
    }
    pthread_mutex_unlock(&client->mutex);
    return NULL;
}

enum topkd_status engine_timer_start(struct topkd_client *client, char *detail)
{
    int error = thread_start(&client->timer, run_timer, client);
    if (error) {
        return fault_system(detail, "cannot start a thread", error);
    }
    (void)pthread_setname_np(client->timer, "topkd-timer");
    return TOPKD_OK;
}

void engine_timer_stop(struct topkd_client *client)
{
    pthread_mutex_lock(&client->mutex);
    client->timer_over = true;
    pthread_cond_signal(&client->timing);
    pthread_mutex_unlock(&client->mutex);
    pthread_join(client->timer, NULL);
}

/* ---- Arena ----------------------------------------------------------------------------------- */

/* BUSY asks to come again. */
static void answer_release(struct link *link, const struct answer *answer, uint64_t wire_lease,
                           uint32_t num_busy)
{
    if (answer->status == TOPKD_E_BUSY && num_busy < BUSY_MAX && link_usable(link)) {
        engine_send_release(link, wire_lease, num_busy + 1);
    } else {
        link->arena_used--;
    }
}

void engine_release_lease(struct topkd_client *client, struct lease *lease)
{
    struct link *link = client->link;
    list_remove(&lease->node);
    if (link && link->session == lease->session && !link->lost && !link->stale) {
        engine_send_release(link, lease->wire_lease, 0);
    }
    session_release(lease->session);
    free(lease);
}

static bool fits_arena(const struct topkd_op *op, const struct session *session)
{
    uint64_t bytes = (uint64_t)op->request.rows * op->request.k * sizeof(int32_t);
    uint64_t size = session->arena.size_bytes;
    const struct wire_select_reply *reply = &op->reply;
    bool fits = reply->indices_offset % sizeof(int32_t) == 0 && reply->indices_offset <= size &&
                bytes <= size - reply->indices_offset;
    if (op->request.want_values) {
        fits = fits && reply->values_offset % sizeof(float) == 0 && reply->values_offset <= size &&
               bytes <= size - reply->values_offset;
    }
    return fits;
}

/* ---- Start ----------------------------------------------------------------------------------- */

void engine_start(struct topkd_op *op)
{
    struct topkd_client *client = op->client;
    select_locate(op);
    select_each_region(&op->request, change_users, 1);
    if (op->request.wait.semaphore) {
        op->request.wait.semaphore->num_users++;
    }
    if (op->request.signal.semaphore) {
        op->request.signal.semaphore->num_users++;
        op->request.signal.semaphore->promised = op->request.signal.value;
    }
    client->num_ops++;
    op->number = ++client->op_number;
    list_insert(&client->ops, &op->node);
    engine_park(op);
    engine_pump(client);
    if (op->state == OP_PARKED) {
        engine_arm_timer(client, engine_expiry_ns(op));
    }
}

/* ---- Answers --------------------------------------------------------------------------------- */

/* Sends it again on the next session, unless that is not wanted or of no use. */
static void repeat(struct topkd_op *op, enum topkd_status status, const char *detail)
{
    struct topkd_client *client = op->client;
    const struct topkd_semaphore_point *signal = &op->request.signal;
    if (client->closing || client->no_renew) {
        engine_end(op, client->closing ? TOPKD_E_CANCELLED : status, detail);
        return;
    }
    if (op->num_losses >= LOSSES_MAX) {
        (void)fault(op->detail, TOPKD_E_DEVICE_FAULT,
                    "the worker went %u times while it ran this request; it is not sent again",
                    op->num_losses);
        engine_end(op, TOPKD_E_DEVICE_FAULT, op->detail);
        return;
    }
    if (!engine_uses_arena(op) && signal->semaphore &&
        semaphore_ended(signal->semaphore, signal->value, &status)) {
        /* The work was done and said so; only the reply is missing. Its scores may have been
         * overwritten since, so it must not run again. */
        engine_end(op, status, status == TOPKD_OK ? "" : "the request failed as its worker went");
        return;
    }
    op->num_retries++;
    engine_park(op);
    engine_arm_timer(client, engine_expiry_ns(op));
}

/* The result is written: for the arena, the lease begins. */
static void accept(struct topkd_op *op, struct link *link, const struct wire_select_reply *reply)
{
    struct topkd_client *client = op->client;
    op->reply = *reply;
    if (!engine_uses_arena(op)) {
        engine_end(op, TOPKD_OK, "");
        return;
    }
    if (op->state == OP_DONE) { /* its caller went */
        engine_send_release(link, reply->lease, 0);
        return;
    }
    if (!fits_arena(op, link->session)) {
        (void)fault(op->detail, TOPKD_E_PROTOCOL,
                    "the worker put the result at %" PRIu64 ", outside the arena of %" PRIu64
                    " bytes",
                    reply->indices_offset, link->session->arena.size_bytes);
        engine_send_release(link, reply->lease, 0);
        engine_end(op, TOPKD_E_PROTOCOL, op->detail);
        return;
    }
    struct lease *lease = op->lease;
    lease->id = ++client->lease_id;
    lease->session = link->session;
    lease->session->num_refs++;
    lease->wire_lease = reply->lease;
    list_insert(&client->leases, &lease->node);
    op->leased = true;
    engine_end(op, TOPKD_OK, "");
}

/* How one request ended, in a message of its own or with others. */
static void answer_select(struct link *link, struct topkd_op *op, bool lost,
                          const struct wire_select_answer *answer)
{
    static const char lost_text[] = "the connection to the worker was lost";
    op->in_flight = false;
    link->num_selects--;
    if (answer->status != TOPKD_OK || lost) {
        link->arena_used -= engine_uses_arena(op);
    }
    if (lost) {
        op->num_losses++;
    } else if (answer->status == TOPKD_E_STALE_SESSION) {
        link->stale = true;
    } else if (answer->status == TOPKD_E_DRAINING) {
        link->draining = true;
    }
    bool done = op->state == OP_DONE;
    if (!lost && answer->status == TOPKD_OK) {
        if (!done || engine_uses_arena(op)) {
            accept(op, link, &answer->select);
        }
    } else if (!done && lost) {
        repeat(op, TOPKD_E_STALE_SESSION, lost_text);
    } else if (!done &&
               (answer->status == TOPKD_E_STALE_SESSION || answer->status == TOPKD_E_DRAINING)) {
        repeat(op, answer->status, answer->detail);
    } else if (!done) {
        engine_end(op, answer->status, answer->detail);
    }
    if (done) {
        retire(op);
    }
}

void engine_answer(struct slot *slot, const struct answer *answer)
{
    struct link *link = slot->link;
    struct topkd_client *client = link->client;
    struct topkd_op *ops[WIRE_BATCH_MAX];
    pthread_mutex_lock(&client->mutex);
    link->lost = link->lost || answer->lost;
    uint64_t wire_lease = slot->wire_lease;
    uint32_t num_busy = slot->num_busy, num_ops = slot->num_ops;
    memcpy(ops, slot->ops, num_ops * sizeof(ops[0]));
    link->num_messages -= slot->is_counted;
    link_give_slot(slot);
    for (uint32_t i = 0; i < num_ops; i++) {
        answer_select(link, ops[i], answer->lost, &answer->selects[i]);
    }
    if (num_ops == 0) {
        answer_release(link, answer, wire_lease, num_busy);
    }
    if (!link_usable(link)) {
        renew_wake(client);
    }
    pthread_cond_broadcast(&client->changed);
    engine_pump(client);
    pthread_mutex_unlock(&client->mutex);
}
