/* rpc_exchange.c - a request out, and a wait for its reply. */
#include "fault.h"
#include "rpc_internal.h"

#include <string.h>

/* From the connection's thread. */
static void take_answer(struct rpc_request *request, const struct rpc_answer *answer)
{
    struct rpc_exchange *exchange = list_entry(request, struct rpc_exchange, request);
    struct rpc *rpc = exchange->rpc; /* the exchange is gone when it is done */
    if (answer->reply) {
        *exchange->reply = *answer->reply;
    }
    exchange->status = answer->status;
    memcpy(exchange->detail, answer->detail, sizeof(exchange->detail));
    pthread_mutex_lock(&rpc->mutex);
    exchange->is_done = true;
    pthread_cond_broadcast(&rpc->changed);
    pthread_mutex_unlock(&rpc->mutex);
}

enum topkd_status rpc_send(struct rpc *rpc, const struct wire_request *wire, uint64_t deadline_ns,
                           struct wire_reply *reply, struct rpc_exchange *exchange, char *detail)
{
    *exchange = (struct rpc_exchange){
        .request.answer = take_answer, .rpc = rpc, .deadline_ns = deadline_ns, .reply = reply};
    memset(reply, 0, sizeof(*reply));
    return rpc_post(rpc, wire, &exchange->request, detail);
}

enum topkd_status rpc_receive(struct rpc_exchange *exchange, char *detail)
{
    struct rpc *rpc = exchange->rpc;
    const struct timespec until = clock_timespec(exchange->deadline_ns);
    bool is_late = false;
    pthread_mutex_lock(&rpc->mutex);
    while (!exchange->is_done && !is_late) {
        is_late = pthread_cond_timedwait(&rpc->changed, &rpc->mutex, &until) != 0 &&
                  rpc_take_back(rpc, &exchange->request);
    }
    pthread_mutex_unlock(&rpc->mutex);
    if (!exchange->is_done) {
        return fault(detail, TOPKD_E_TIMEOUT, "%s did not answer %s in time", rpc->url,
                     wire_kind_name(exchange->request.kind));
    }
    if (exchange->status != TOPKD_OK) {
        memcpy(detail, exchange->detail, sizeof(exchange->detail));
    }
    return exchange->status;
}

enum topkd_status rpc_exchange(struct rpc *rpc, const struct wire_request *wire,
                               uint64_t deadline_ns, struct wire_reply *reply, char *detail)
{
    struct rpc_exchange exchange;
    enum topkd_status status = rpc_send(rpc, wire, deadline_ns, reply, &exchange, detail);
    return status == TOPKD_OK ? rpc_receive(&exchange, detail) : status;
}
