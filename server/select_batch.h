/*
 * select_batch.h - several Selects in one message, on their way to the one reply.
 *
 * Each is taken in as a Select of its own: its sequence, its place in the memory of replies, its
 * admission and its limits. Only the message and the wake-ups are shared. The reply leaves with
 * the last answer. For the loop thread.
 */
#ifndef TOPKD_SERVER_SELECT_BATCH_H
#define TOPKD_SERVER_SELECT_BATCH_H

#include "endpoint.h"
#include "topkd_wire.h"

#include <stdint.h>

struct session;

struct select_batch {
    struct session *session;
    struct endpoint_request *request; /* to answer */
    uint64_t sequence;                /* of the first */
    uint32_t num_left;                /* without an answer yet */
    struct wire_select_batch_reply reply;
    struct select_batch *next; /* free ones */
};

/* Takes the message at hand in (worker->request, a SelectBatch with at least one Select). The
 * request is kept and will be answered. */
void select_batch_start(struct session *session, struct endpoint_request *request);

/* Select `idx` of the batch has its answer; with the last one the reply goes, and the batch. */
void select_batch_answer(struct select_batch *batch, uint32_t idx, const struct wire_reply *reply);

#endif
