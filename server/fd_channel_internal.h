/*
 * fd_channel_internal.h - what the files of the side socket share: fd_channel.c opens, closes and
 * has the thread, fd_channel_ticket.c keeps descriptors, fd_channel_connection.c speaks with peers.
 */
#ifndef TOPKD_SERVER_FD_CHANNEL_INTERNAL_H
#define TOPKD_SERVER_FD_CHANNEL_INTERNAL_H

#include "fd_channel.h"

#include <pthread.h>
#include <sys/un.h>

struct fd_connection {
    int fd; /* -1: unused */
    struct peer peer;
    uint64_t deadline_ms;
    struct fd_bundle *bundle; /* what has come so far; NULL at first */
};

struct fd_ticket {
    struct fd_bundle *bundle; /* NULL: unused */
    struct peer peer;
    uint64_t deadline_ms;
    uint8_t bytes[FD_TICKET_SIZE];
};

struct fd_published {
    int fd; /* -1: unused */
    struct peer peer;
    uint8_t bytes[FD_TICKET_SIZE];
};

struct fd_channel {
    struct fd_channel_config config;
    struct sockaddr_un address;
    struct socket_file file; /* the thread's, once it runs */
    int listen_fd;
    int stop_fd; /* eventfd: the thread ends */
    pthread_t thread;
    uint64_t deaf_until_ms; /* the thread's: nobody is let in before, descriptors are short */
    struct fd_connection connections[FD_CHANNEL_CONNECTIONS_MAX]; /* the thread's alone */
    pthread_mutex_t lock;                                         /* of what follows */
    struct fd_ticket tickets[FD_CHANNEL_TICKETS_MAX];
    struct fd_published published[FD_CHANNEL_PUBLISHED_MAX];
    uint32_t num_fds; /* in tickets and in connections */
};

/* Milliseconds of the monotonic clock. */
uint64_t fd_channel_now_ms(void);

/* ---- fd_channel_ticket.c --------------------------------------------------------------------- */

/* Frees a bundle that counts in num_fds; NULL is allowed. */
void fd_channel_drop(struct fd_channel *channel, struct fd_bundle *bundle);
/* Drops what nobody has registered in time. */
void fd_channel_expire(struct fd_channel *channel);
/* Moves the connection's descriptors under a new ticket. SYSTEM, BUSY. */
enum topkd_status fd_channel_issue(struct fd_channel *channel, struct fd_connection *connection,
                                   uint8_t ticket_p[FD_TICKET_SIZE], char *detail);

/* ---- fd_channel_connection.c ----------------------------------------------------------------- */

/* Takes one connection that waits, if its peer may have it. */
void fd_connection_accept(struct fd_channel *channel);
/* Takes one packet; true while the connection goes on. */
bool fd_connection_read(struct fd_channel *channel, struct fd_connection *connection);
void fd_connection_close(struct fd_channel *channel, struct fd_connection *connection);

#endif
