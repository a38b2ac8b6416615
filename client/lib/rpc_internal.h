/*
 * rpc_internal.h - a connection as rpc.c and rpc_exchange.c see it.
 */
#ifndef TOPKD_CLIENT_RPC_INTERNAL_H
#define TOPKD_CLIENT_RPC_INTERNAL_H

#include "rpc.h"

#include <pthread.h>

struct rpc {
    pthread_mutex_t mutex;
    pthread_cond_t changed; /* up, lost or telling */
    nng_socket socket;
    nng_dialer dialer;
    int pipe_id;  /* of the one pipe that was let in; 0 before */
    bool up;      /* the pipe was started */
    bool lost;    /* the pipe is gone, or the connection was aborted */
    bool telling; /* lost_cb runs */
    struct rpc_peer peer;
    struct rpc_exchange *exchanges; /* in flight */
    void (*lost_cb)(void *arg);
    void *lost_arg;
    char url[WIRE_URL_SIZE];
};

/* TOPKD_E_CLOSED in a child of the process that first used NNG. */
enum topkd_status rpc_check_process(char *detail);

/* The text of a lost connection. */
enum topkd_status rpc_fault_lost(const struct rpc *rpc, char *detail);

#endif
