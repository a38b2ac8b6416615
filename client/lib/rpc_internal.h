/*
 * rpc_internal.h - a connection as its files see it: rpc.c opens and closes, rpc_stream.c has its
 * thread, what is sent and what is read, rpc_exchange.c waits for replies.
 */
#ifndef TOPKD_CLIENT_RPC_INTERNAL_H
#define TOPKD_CLIENT_RPC_INTERNAL_H

#include "rpc.h"
#include "topkd_stream.h"

#include <pthread.h>

/* What stands before a request: the head of the message, and one identifier. */
#define RPC_PREFIX_SIZE (STREAM_HEAD_SIZE + STREAM_ID_SIZE)
#define RPC_MESSAGE_SIZE_MAX (RPC_PREFIX_SIZE + WIRE_MESSAGE_SIZE_MAX)

struct rpc {
    /* Set before the thread starts. */
    int fd, wake_fd;
    struct rpc_peer peer;
    char url[WIRE_URL_SIZE];
    pthread_t thread;

    pthread_mutex_t mutex;  /* guards the following; answers are called without it */
    pthread_cond_t changed; /* an exchange is done, or the thread at its end */
    bool is_lost;           /* nothing is sent any more, and the thread ends */
    bool is_told;           /* lost_cb was, or is now to be called by rpc_watch */
    bool has_ended;         /* the thread does nothing any more */
    bool has_wrapped;       /* identifiers began anew: one may be in use */
    uint32_t last_id;
    struct list requests; /* that were posted and not answered, in that order */
    struct list unsent;   /* messages for which the socket had no room, in their order */
    void (*lost_cb)(void *arg);
    void *lost_arg;
    uint8_t out[RPC_MESSAGE_SIZE_MAX]; /* where a request is encoded */

    /* Of the thread alone. */
    uint8_t in[RPC_MESSAGE_SIZE_MAX]; /* read, and not yet a whole message */
    uint32_t in_size;
    struct wire_buffer buffer;
    struct wire_reply reply;
};

/* ---- rpc.c ----------------------------------------------------------------------------------- */

/* The text of a lost connection. */
enum topkd_status rpc_fault_lost(const struct rpc *rpc, char *detail);

/* ---- rpc_stream.c ---------------------------------------------------------------------------- */

/* The thread; its argument is the connection. */
void *rpc_run(void *arg);

/* Nothing is sent any more, the thread ends soon. With the mutex. */
void rpc_hang_up(struct rpc *rpc);

/* Takes a request back, and its message too where none of it has left. False: it is being answered
 * or was. With the mutex. */
bool rpc_take_back(struct rpc *rpc, struct rpc_request *request);

#endif
