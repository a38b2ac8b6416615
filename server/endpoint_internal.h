/*
 * endpoint_internal.h - what the files of the endpoint share: endpoint.c opens, accepts and closes,
 * endpoint_pipe.c has the connections and writes, endpoint_read.c reads.
 */
#ifndef TOPKD_SERVER_ENDPOINT_INTERNAL_H
#define TOPKD_SERVER_ENDPOINT_INTERNAL_H

#include "endpoint.h"
#include "topkd_stream.h"
#include "topkd_wire.h"

#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>

/* Identifiers before a message; NNG's own limit. */
#define HOPS_MAX 8u
/* The identifiers are part of the message, and a client has one of its own. */
#define RECEIVE_SIZE_MAX (WIRE_MESSAGE_SIZE_MAX + STREAM_ID_SIZE)
/* Choice: bytes read from a connection at a time; some ten requests. */
#define READ_SIZE 4096u
/* Choice: messages of a connection that are handled before the others have their turn; answering
 * the dearest ones takes a tenth of a millisecond then. */
#define TURN_MESSAGES 8u

/* Bytes that are on their way to a peer. */
struct outgoing {
    struct outgoing *next;
    uint64_t since_ms;
    size_t size, num_sent;
    uint8_t bytes[];
};

#define REPLY_PARTS 3 /* head, identifiers, content */

struct endpoint_request {
    struct endpoint_pipe *pipe;
    struct endpoint_request *previous, *next; /* of those held by the handler */
    size_t hops_size;                         /* of the identifiers, at the start of the message */
    size_t size;
    uint8_t bytes[]; /* the message */
};

struct endpoint_pipe {
    struct endpoint *endpoint;
    uv_poll_t poll;
    int fd;     /* -1 once closed */
    int events; /* that poll waits for */
    uint32_t id;
    struct peer peer;
    struct peer_groups groups;
    bool has_greeted;
    bool is_kept;
    bool is_doomed;    /* it is closed as soon as nobody is at work with it */
    bool is_starved;   /* in the list of those whose next message must wait */
    bool is_forgotten; /* closed() was called; the memory goes with the last request and the handle
                        */
    bool has_handle;
    uint64_t active_ms;
    uint32_t num_requests; /* held, not yet answered */
    void *user;
    struct endpoint_pipe *previous, *next; /* of the open ones */
    struct endpoint_pipe *next_starved;

    uint8_t head[STREAM_HEAD_SIZE]; /* greeting, or head of the message at hand */
    size_t head_size;
    struct endpoint_request *message; /* being received; NULL between messages */
    size_t message_size;              /* of it that is there */
    uint8_t *backlog; /* read, and not yet taken apart while it is starved; [READ_SIZE] or NULL */
    size_t backlog_size;

    struct outgoing *first_out, **last_out;
    uint32_t num_unsent;
};

struct endpoint {
    uv_loop_t *loop;
    struct endpoint_limits limits;
    const struct endpoint_handler *handler;
    void *owner;
    int listen_fd;
    bool owns_file; /* the socket file is removed at the end if it still is the one made */
    dev_t file_dev;
    ino_t file_ino;
    struct socket_file file;
    struct sockaddr_un address;
    uv_poll_t listen_poll;
    uv_timer_t sweep;
    uv_idle_t later;      /* runs while pipes are doomed, or starved ones may go on */
    uint32_t num_handles; /* of libuv, still open, those of pipes included */
    bool is_closing;
    bool is_accepting; /* false for a moment when descriptors have run out */
    uint32_t next_id;
    uint32_t num_pipes, num_requests, num_unsent, num_doomed, num_starved;
    struct endpoint_pipe *pipes;
    struct endpoint_request *requests; /* held by the handler */
    struct endpoint_pipe *first_starved, **last_starved;
    uint8_t scratch[READ_SIZE];
};

/* Soon, from the loop: closes doomed pipes and lets starved ones go on. */
void endpoint_look_later(struct endpoint *endpoint);
/* A libuv handle of the endpoint has been closed; frees it with the last one. */
void endpoint_handle_gone(struct endpoint *endpoint);

/* ---- endpoint_pipe.c ------------------------------------------------------------------------- */

/* A connection was accepted; takes the descriptor over, also when there is no memory for it. */
void endpoint_pipe_open(struct endpoint *endpoint, int fd);
/* Marks it; it is closed from the loop. */
void endpoint_pipe_doom(struct endpoint_pipe *pipe);
/* Closes it now: no handler may be at work with it. */
void endpoint_pipe_forget(struct endpoint_pipe *pipe);
/* What the loop waits for on it follows from its state. */
void endpoint_pipe_update(struct endpoint_pipe *pipe);
/* Ends all that are held. */
void endpoint_requests_free(struct endpoint *endpoint);

/* ---- endpoint_read.c ------------------------------------------------------------------------- */

/* One read; the loop comes back while there is more. */
void endpoint_pipe_read(struct endpoint_pipe *pipe);
/* Each starved pipe that may go on has one turn. */
void endpoint_resume_starved(struct endpoint *endpoint);
void endpoint_starved_remove(struct endpoint_pipe *pipe);

#endif
