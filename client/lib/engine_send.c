/*
 * engine_send.c - operations leave for the worker, in the order of their start.
 *
 * A message costs its client some 15 us of processor time and the worker 7 (measured on an H200's
 * host, tests/bench/results/h200-service.md), a selection on the device often less. So when a few
 * messages with selections are on their way already, those that are started meanwhile are gathered,
 * and the next answer takes as many along in one message as keep the messages of about one size. A
 * lone operation, and the first few, leave at once and by themselves. One that names a semaphore
 * may wait for what the program does next: it leaves at once and alone, and counts for nothing
 * here; so that none can be stuck behind it, those that were started before it leave too.
 */
#include "engine_internal.h"

#include <string.h>

/* Choice: messages with selections on their way before further ones are gathered. With four, a
 * quarter of what a client keeps in flight travels while the device works on the rest. */
#define MESSAGES_MAX 4u

/* Operations that leave in one message. */
struct gathering {
    struct topkd_op *ops[WIRE_BATCH_MAX];
    uint32_t num_ops, num_lengths;
    bool alone; /* it is one that leaves alone */
    struct wire_request request;
};

/* ---- Arena ----------------------------------------------------------------------------------- */

bool engine_uses_arena(const struct topkd_op *op)
{
    return !op->request.indices.region;
}

void engine_send_release(struct link *link, uint64_t wire_lease, uint32_t num_busy)
{
    char detail[WIRE_DETAIL_SIZE];
    struct slot *slot = link_take_slot(link);
    if (!slot) {
        return; /* cannot be: as many as arena slots are kept for releases */
    }
    struct wire_request request = {.kind = WIRE_RELEASE};
    request.u.release.lease = wire_lease;
    slot->wire_lease = wire_lease;
    slot->num_busy = num_busy;
    if (link_send(slot, &request, detail) != TOPKD_OK) {
        link_give_slot(slot);
    }
}

static uint32_t count_leases(const struct topkd_client *client, const struct session *session)
{
    uint32_t num_leases = 0;
    list_each(node, &client->leases)
    {
        num_leases += list_entry(node, struct lease, node)->session == session;
    }
    return num_leases;
}

/* Whether the arena has room. An operation that waits for a slot that only its caller can give
 * back ends as BUSY. */
static bool arena_room(struct topkd_op *op, const struct link *link)
{
    uint32_t num_slots = link->session->limits.arena_slots;
    if (link->arena_used < num_slots) {
        return true;
    }
    if (count_leases(op->client, link->session) >= num_slots) {
        (void)fault(op->detail, TOPKD_E_BUSY,
                    "all %u slots of the arena hold results: release one (topkd_result_release), "
                    "give an indices region, or raise limits.arena_slots",
                    num_slots);
        engine_end(op, TOPKD_E_BUSY, op->detail);
    }
    return false;
}

/* ---- Parked operations ----------------------------------------------------------------------- */

/* Whether it may take long for reasons of the program: its semaphore is not there yet, or it has to
 * keep the order of the values that it signals. */
static bool may_wait(const struct topkd_op *op)
{
    const struct topkd_semaphore_point *wait = &op->request.wait;
    return op->request.signal.semaphore ||
           (wait->semaphore && semaphore_value(wait->semaphore) < wait->value);
}

void engine_park(struct topkd_op *op)
{
    struct topkd_client *client = op->client;
    struct list *position = &client->parked;
    while (position->prev != &client->parked &&
           list_entry(position->prev, struct topkd_op, queue_node)->number > op->number) {
        position = position->prev;
    }
    op->state = OP_PARKED;
    op->alone = may_wait(op);
    client->num_parked++;
    client->num_parked_alone += op->alone;
    list_insert(position, &op->queue_node);
}

void engine_unpark(struct topkd_op *op)
{
    struct topkd_client *client = op->client;
    if (op->state != OP_PARKED) {
        return;
    }
    client->num_parked--;
    client->num_parked_alone -= op->alone;
    list_remove(&op->queue_node);
}

/* ---- Gathering ------------------------------------------------------------------------------- */

/* Selections that the worker takes in one message. */
static uint32_t batch_max(const struct link *link)
{
    uint32_t max = link->session->limits.batch_max;
    return max < 1 ? 1 : max < WIRE_BATCH_MAX ? max : WIRE_BATCH_MAX;
}

/* How many may leave in the next message; 0: they are gathered until an answer comes. */
static uint32_t gather_max(const struct topkd_client *client, const struct link *link)
{
    uint32_t max = batch_max(link);
    if (max == 1 || client->num_parked_alone > 0) {
        return max;
    }
    if (link->num_messages >= MESSAGES_MAX) {
        return 0;
    }
    uint32_t share = (link->num_selects + client->num_parked + MESSAGES_MAX - 1) / MESSAGES_MAX;
    return share < max ? share : max;
}

/* The operation is on its way, or (with -1) is not. */
static void count_sent(struct link *link, const struct topkd_op *op, int32_t change)
{
    link->num_selects += (uint32_t)change;
    link->arena_used += engine_uses_arena(op) ? (uint32_t)change : 0;
}

/* Takes the first parked operation along, or ends it with an error. False: it stays, and so do
 * those behind it. */
static bool gather_one(struct gathering *gathering, struct link *link)
{
    struct topkd_client *client = link->client;
    struct topkd_op *op = list_entry(client->parked.next, struct topkd_op, queue_node);
    uint32_t num_lengths = op->request.lengths_mode == TOPKD_LENGTHS_HOST ? op->request.rows : 0;
    if (gathering->num_ops > 0 && (gathering->alone || op->alone ||
                                   gathering->num_lengths + num_lengths > WIRE_LENGTHS_MAX)) {
        return false;
    }
    if (link->num_selects >= link->session->limits.outstanding_max) {
        return false;
    }
    if (engine_uses_arena(op) && !arena_room(op, link)) {
        return list_empty(&client->parked) ||
               list_entry(client->parked.next, struct topkd_op, queue_node) != op;
    }
    struct wire_select_request *select =
        &gathering->request.u.select_batch.selects[gathering->num_ops];
    enum topkd_status status = select_fill(op, link->session, select, op->detail);
    if (status != TOPKD_OK) {
        engine_end(op, status, op->detail);
        return true;
    }
    engine_unpark(op);
    op->state = OP_SENT;
    op->in_flight = true;
    count_sent(link, op, 1);
    gathering->ops[gathering->num_ops++] = op;
    gathering->num_lengths += num_lengths;
    gathering->alone = op->alone;
    return true;
}

/* As a message of its own where it is only one. */
static void set_kind(struct gathering *gathering)
{
    struct wire_request *request = &gathering->request;
    request->kind = gathering->num_ops == 1 ? WIRE_SELECT : WIRE_SELECT_BATCH;
    if (gathering->num_ops == 1) {
        struct wire_select_request select = request->u.select_batch.selects[0];
        request->u.select = select;
    } else {
        request->u.select_batch.num_selects = gathering->num_ops;
    }
}

static void send_gathered(struct gathering *gathering, struct link *link, struct slot *slot)
{
    char detail[WIRE_DETAIL_SIZE];
    set_kind(gathering);
    memcpy(slot->ops, gathering->ops, gathering->num_ops * sizeof(gathering->ops[0]));
    slot->num_ops = gathering->num_ops;
    slot->is_counted = !gathering->alone;
    enum topkd_status status = link_send(slot, &gathering->request, detail);
    if (status == TOPKD_OK) {
        link->num_messages += slot->is_counted;
        for (uint32_t i = 0; i < gathering->num_ops; i++) {
            engine_arm_timer(link->client, engine_expiry_ns(gathering->ops[i]));
        }
        return;
    }
    link_give_slot(slot);
    link->lost = link->lost || status == TOPKD_E_UNREACHABLE;
    for (uint32_t i = 0; i < gathering->num_ops; i++) {
        struct topkd_op *op = gathering->ops[i];
        count_sent(link, op, -1);
        op->in_flight = false;
        if (status == TOPKD_E_UNREACHABLE) {
            engine_park(op); /* for the next link, as if it had not been taken out */
        } else {
            engine_end(op, status, detail);
        }
    }
}

void engine_pump(struct topkd_client *client)
{
    struct link *link = client->link;
    while (!list_empty(&client->parked)) {
        if (!link_usable(link)) {
            renew_wake(client);
            return;
        }
        struct gathering gathering; /* what of its request is used is set */
        gathering.num_ops = gathering.num_lengths = 0;
        gathering.alone = false;
        uint32_t max = gather_max(client, link);
        struct slot *slot = max > 0 ? link_take_slot(link) : NULL;
        if (!slot) {
            return;
        }
        bool goes_on = true;
        while (goes_on && gathering.num_ops < max && !list_empty(&client->parked)) {
            goes_on = gather_one(&gathering, link);
        }
        if (gathering.num_ops > 0) {
            send_gathered(&gathering, link, slot);
            continue;
        }
        link_give_slot(slot);
        if (!goes_on) {
            return;
        }
    }
}
