/* rpc_exchange.c - a request out, its reply back. */
#include "fault.h"
#include "rpc_internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Bytes of an encoded request beside its inline lengths; the largest, a select with a page table,
 * takes under 500. */
#define REQUEST_SIZE_BASE 1024u

/* The same of one select among several. */
#define SELECT_SIZE 512u

static size_t lengths_bytes(const struct wire_select_request *select)
{
    return select->lengths_mode == WIRE_LENGTHS_INLINE
               ? (size_t)select->num_lengths * sizeof(int32_t)
               : 0;
}

/* ---- Exchange -------------------------------------------------------------------------------- */

enum topkd_status rpc_encode(const struct wire_request *request, nng_msg **message_p, char *detail)
{
    size_t room = REQUEST_SIZE_BASE;
    if (request->kind == WIRE_SELECT) {
        room += lengths_bytes(&request->u.select);
    } else if (request->kind == WIRE_SELECT_BATCH) {
        const struct wire_select_batch_request *batch = &request->u.select_batch;
        for (uint32_t i = 0; i < batch->num_selects; i++) {
            room += SELECT_SIZE + lengths_bytes(&batch->selects[i]);
        }
    }
    if (room > WIRE_MESSAGE_SIZE_MAX) {
        room = WIRE_MESSAGE_SIZE_MAX;
    }
    nng_msg *message;
    if (nng_msg_alloc(&message, room)) {
        return fault(detail, TOPKD_E_NO_MEMORY, "no memory for a message of %zu bytes", room);
    }
    size_t size;
    enum topkd_status status =
        wire_request_encode(request, nng_msg_body(message), room, &size, detail);
    if (status != TOPKD_OK) {
        nng_msg_free(message);
        return status;
    }
    nng_msg_chop(message, room - size);
    *message_p = message;
    return TOPKD_OK;
}

/* Starts one step of at most `at_most_ms`. Under the mutex, so that a loss either is seen here or
 * finds the step to abort. */
static int start_step(struct rpc *rpc, struct rpc_exchange *exchange,
                      void (*step)(nng_ctx ctx, nng_aio *aio), int32_t at_most_ms)
{
    int32_t left_ms = clock_left_ms(exchange->deadline_ns);
    if (left_ms == 0) {
        return NNG_ETIMEDOUT; /* to NNG a zero would mean: do not wait */
    }
    if (left_ms > at_most_ms) {
        left_ms = at_most_ms;
    }
    pthread_mutex_lock(&rpc->mutex);
    int error = rpc->lost ? NNG_ECONNRESET : 0;
    if (error == 0) {
        nng_aio_set_timeout(exchange->aio, left_ms);
        step(exchange->ctx, exchange->aio);
    }
    pthread_mutex_unlock(&rpc->mutex);
    return error;
}

static void link_exchange(struct rpc *rpc, struct rpc_exchange *exchange)
{
    pthread_mutex_lock(&rpc->mutex);
    exchange->next = rpc->exchanges;
    exchange->link_p = &rpc->exchanges;
    if (exchange->next) {
        exchange->next->link_p = &exchange->next;
    }
    rpc->exchanges = exchange;
    pthread_mutex_unlock(&rpc->mutex);
}

/* The exchange is over; a message that is still its own goes. */
static void fini_exchange(struct rpc *rpc, struct rpc_exchange *exchange)
{
    pthread_mutex_lock(&rpc->mutex);
    *exchange->link_p = exchange->next;
    if (exchange->next) {
        exchange->next->link_p = exchange->link_p;
    }
    pthread_mutex_unlock(&rpc->mutex);
    nng_msg *message = nng_aio_get_msg(exchange->aio);
    if (message) {
        nng_msg_free(message);
    }
    nng_aio_free(exchange->aio);
    nng_ctx_close(exchange->ctx);
}

static enum topkd_status fault_exchange(const struct rpc *rpc, const struct rpc_exchange *exchange,
                                        int error, char *detail)
{
    switch (error) {
    case NNG_ETIMEDOUT:
        return fault(detail, TOPKD_E_TIMEOUT, "%s did not answer %s in time", rpc->url,
                     wire_kind_name(exchange->kind));
    case NNG_ENOMEM:
        return fault(detail, TOPKD_E_NO_MEMORY, "no memory to send %s to %s",
                     wire_kind_name(exchange->kind), rpc->url);
    default:
        return rpc_fault_lost(rpc, detail);
    }
}

enum topkd_status rpc_send(struct rpc *rpc, const struct wire_request *request,
                           uint64_t deadline_ns, struct rpc_exchange *exchange, char *detail)
{
    *exchange = (struct rpc_exchange){
        .deadline_ns = deadline_ns, .sequence = request->sequence, .kind = request->kind};
    enum topkd_status status = rpc_check_process(detail);
    if (status != TOPKD_OK) {
        return status;
    }
    nng_msg *message;
    status = rpc_encode(request, &message, detail);
    if (status != TOPKD_OK) {
        return status;
    }
    int error = nng_ctx_open(&exchange->ctx, rpc->socket);
    if (error) {
        goto err_message;
    }
    error = nng_aio_alloc(&exchange->aio, NULL, NULL);
    if (error) {
        goto err_ctx;
    }
    nng_aio_set_msg(exchange->aio, message);
    link_exchange(rpc, exchange);
    error = start_step(rpc, exchange, nng_ctx_send, rpc_send_ms());
    if (error) {
        fini_exchange(rpc, exchange);
        return fault_exchange(rpc, exchange, error, detail);
    }
    return TOPKD_OK;

err_ctx:
    nng_ctx_close(exchange->ctx);
err_message:
    nng_msg_free(message);
    return fault_exchange(rpc, exchange, error, detail);
}

/* Decodes and checks that the reply belongs to the request. */
static enum topkd_status read_reply(const struct rpc *rpc, const struct rpc_exchange *exchange,
                                    nng_msg *message, struct wire_reply *reply, char *detail)
{
    struct wire_buffer *buffer = malloc(sizeof(*buffer));
    if (!buffer) {
        return fault(detail, TOPKD_E_NO_MEMORY, "no memory for a reply");
    }
    enum topkd_status status =
        wire_reply_decode(nng_msg_body(message), nng_msg_len(message), buffer, reply, detail);
    free(buffer); /* a reply does not point into it */
    if (status != TOPKD_OK) {
        return status;
    }
    if (reply->status != TOPKD_OK) {
        return fault(detail, reply->status, "%s",
                     reply->detail[0] ? reply->detail : wire_status_text(reply->status));
    }
    if (reply->kind != exchange->kind || reply->sequence != exchange->sequence) {
        return fault(detail, TOPKD_E_PROTOCOL,
                     "%s answered request %" PRIu64 " (%s) with a reply to %" PRIu64 " (%s)",
                     rpc->url, exchange->sequence, wire_kind_name(exchange->kind), reply->sequence,
                     wire_kind_name(reply->kind));
    }
    return TOPKD_OK;
}

enum topkd_status rpc_receive(struct rpc *rpc, struct rpc_exchange *exchange,
                              struct wire_reply *reply, char *detail)
{
    memset(reply, 0, sizeof(*reply));
    nng_aio_wait(exchange->aio);
    int error = nng_aio_result(exchange->aio);
    if (error == NNG_ETIMEDOUT && !clock_passed(exchange->deadline_ns)) {
        error = NNG_ECONNRESET; /* it found no way out */
    }
    if (error == 0) {
        nng_aio_set_msg(exchange->aio, NULL); /* NNG's now */
        error = start_step(rpc, exchange, nng_ctx_recv, INT32_MAX);
    }
    if (error == 0) {
        nng_aio_wait(exchange->aio);
        error = nng_aio_result(exchange->aio);
    }
    enum topkd_status status;
    if (error) {
        status = fault_exchange(rpc, exchange, error, detail);
    } else {
        status = read_reply(rpc, exchange, nng_aio_get_msg(exchange->aio), reply, detail);
    }
    fini_exchange(rpc, exchange);
    return status;
}

enum topkd_status rpc_exchange(struct rpc *rpc, const struct wire_request *request,
                               uint64_t deadline_ns, struct wire_reply *reply, char *detail)
{
    struct rpc_exchange exchange;
    enum topkd_status status = rpc_send(rpc, request, deadline_ns, &exchange, detail);
    if (status != TOPKD_OK) {
        memset(reply, 0, sizeof(*reply));
        return status;
    }
    return rpc_receive(rpc, &exchange, reply, detail);
}
