#include "select_batch.h"

#include "assert.h"
#include "session.h"
#include "worker_internal.h"

#include <string.h>

static struct select_batch *take(struct session *session)
{
    struct select_batch *batch = session->free_batches;
    /* Each that is kept has a request in flight, and there is one more than of these. */
    topkd_assert(batch != NULL);
    session->free_batches = batch->next;
    batch->next = NULL;
    return batch;
}

void select_batch_answer(struct select_batch *batch, uint32_t idx, const struct wire_reply *reply)
{
    struct session *session = batch->session;
    struct worker *worker = session->worker;
    struct wire_select_answer *answer = &batch->reply.answers[idx];

    topkd_assert(idx < batch->reply.num_answers && batch->num_left > 0);
    answer->status = reply->status;
    memcpy(answer->detail, reply->detail, sizeof(answer->detail));
    memset(&answer->select, 0, sizeof(answer->select));
    if (reply->status == TOPKD_OK)
        answer->select = reply->u.select;
    if (--batch->num_left > 0)
        return;
    struct wire_reply *whole = &worker->reply; /* `reply` may be this one */
    worker_reply_init(worker, whole, session->id, batch->sequence, WIRE_SELECT_BATCH);
    whole->u.select_batch = batch->reply;
    struct endpoint_request *request = batch->request;
    batch->request = NULL;
    batch->next = session->free_batches;
    session->free_batches = batch;
    worker_reply(worker, request, whole);
}

void select_batch_start(struct session *session, struct endpoint_request *request)
{
    struct worker *worker = session->worker;
    const struct wire_request *message = &worker->request;
    const struct wire_select_batch_request *selects = &message->u.select_batch;
    struct wire_reply *reply = &worker->reply;
    struct select_batch *batch = take(session);

    topkd_assert(selects->num_selects > 0 && selects->num_selects <= WIRE_BATCH_MAX);
    batch->session = session;
    batch->request = request;
    batch->sequence = message->sequence;
    batch->num_left = selects->num_selects;
    batch->reply.num_answers = selects->num_selects;
    worker->stats.select_batches++;
    worker->stats.selects_batched += selects->num_selects;
    for (uint32_t i = 0; i < selects->num_selects; i++) {
        struct selection_origin origin = {.batch = batch, .batch_idx = i};
        worker_reply_init(worker, reply, session->id, message->sequence + i, WIRE_SELECT);
        if (!worker_select_once(session, &selects->selects[i], &origin, reply))
            select_batch_answer(batch, i, reply);
    }
}
