/*
 * endpoint.h - a listening socket on ipc:// that speaks the protocol of NNG's REP, on a libuv loop.
 *
 * Clients use libtopkd or NNG's REQ; topkd_stream.h has what goes over the connection. endpoint.c
 * opens, accepts and closes, endpoint_pipe.c writes, endpoint_read.c reads.
 *
 * The messages of a connection are handed over in the order in which they were sent. A bounded set
 * of requests is held between arrival and reply; when all are taken, further messages are left with
 * their senders, and each connection has its turn of a few, so that none shuts out another. A peer
 * that does not take its replies loses its connection, nobody waits for it. A connection without a
 * purpose (endpoint_pipe_keep) is closed after a while of silence.
 *
 * All functions are for the loop thread.
 */
#ifndef TOPKD_SERVER_ENDPOINT_H
#define TOPKD_SERVER_ENDPOINT_H

#include "peer.h"
#include "socket_file.h"
#include "topkd_status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

struct endpoint;
struct endpoint_pipe;    /* one connection; valid from opened() to closed() */
struct endpoint_request; /* one message that wants a reply; the receiver's until reply or drop */

struct endpoint_handler {
    /* A connection has greeted; nothing else has been received from it yet. May be NULL. */
    void (*opened)(void *owner, struct endpoint_pipe *pipe);
    /* It is gone. Requests of it that are still held may be replied to (into the void) or dropped.
     * May be NULL. */
    void (*closed)(void *owner, struct endpoint_pipe *pipe);
    /* A message came. It must be answered with endpoint_reply or endpoint_drop, now or later. */
    void (*request)(void *owner, struct endpoint_request *request);
};

/* What endpoint_configure can change while the endpoint is open. */
struct endpoint_limits {
    uint32_t num_contexts; /* requests held at once */
    uint32_t pipes_max;    /* connections; more are closed as they come */
    uint32_t unsent_max;   /* replies a pipe may leave untaken before it is closed */
    uint32_t idle_ms;      /* a pipe that is not kept and has sent nothing for so long is closed */
    uint32_t reply_ms;     /* a reply not taken by then closes its pipe */
};

struct endpoint_config {
    uv_loop_t *loop;
    const char *url; /* "ipc:///path"; the path's length is checked */
    int listen_fd;   /* a listening socket there that somebody else made and removes; -1: none */
    struct socket_rights rights; /* of the socket file */
    struct endpoint_limits limits;
    const struct endpoint_handler *handler; /* kept by pointer */
    void *owner;                            /* passed back */
};

/*
 * Opens the socket and listens. A leftover socket file is replaced, a live one is left alone.
 * Errors: INVALID (url), IN_USE (a live process listens there), SYSTEM, NO_MEMORY; the text goes
 * to detail[WIRE_DETAIL_SIZE].
 */
enum topkd_status endpoint_open(const struct endpoint_config *config, struct endpoint **endpoint_p,
                                char *detail);

/* Closes the socket and every pipe (closed() is called for each) and removes the socket file. The
 * memory goes when the loop has run its close callbacks. Requests still held must not be replied
 * to any more. Does not block. Not from a handler. */
void endpoint_close(struct endpoint *endpoint);

/* Takes new limits over. */
void endpoint_configure(struct endpoint *endpoint, const struct endpoint_limits *limits);

/* Replies that the peers' sockets had no room for yet; 0 means that a drain may end. */
uint32_t endpoint_num_unsent(const struct endpoint *endpoint);

/* ---- Pipes ---------------------------------------------------------------------------------- */

const struct peer *endpoint_pipe_peer(const struct endpoint_pipe *pipe);
const struct peer_groups *endpoint_pipe_groups(const struct endpoint_pipe *pipe);
uint32_t endpoint_pipe_id(const struct endpoint_pipe *pipe); /* for logs */
/* Whether the peer has closed its side, read to the end or not. */
bool endpoint_pipe_has_ended(const struct endpoint_pipe *pipe);
void endpoint_pipe_set_user(struct endpoint_pipe *pipe, void *user);
void *endpoint_pipe_user(const struct endpoint_pipe *pipe); /* NULL at first */
/* A kept pipe may be silent for ever. */
void endpoint_pipe_keep(struct endpoint_pipe *pipe, bool keep);
/* closed() follows from the loop. */
void endpoint_pipe_close(struct endpoint_pipe *pipe);

/* ---- Requests ------------------------------------------------------------------------------- */

/* The pipe it came from; inside closed() and after it NULL. */
struct endpoint_pipe *endpoint_request_pipe(const struct endpoint_request *request);
/* The message, valid until reply or drop. */
const void *endpoint_request_bytes(const struct endpoint_request *request, size_t *size_p);
/* Sends size bytes (copied) and ends the request. Never blocks. */
void endpoint_reply(struct endpoint_request *request, const void *bytes, size_t size);
/* Ends the request without an answer. */
void endpoint_drop(struct endpoint_request *request);

#endif
