/*
 * fd_channel.h - the side socket through which clients hand over descriptors of device memory.
 *
 * A thread of its own accepts, takes the packets of topkd_fd.h and keeps the descriptors under a
 * random ticket until a registration takes them or they expire; in the other direction it gives
 * out published descriptors. Who may come is who may come to the worker's own socket: the kernel
 * judges by the same rights of the file, the gate by the same lists. A ticket is worth something
 * only to the process that the kernel named when it connected. Everything is bounded: connections,
 * descriptors, tickets, time, and what one process may take of these. A slow or hostile peer can
 * make others wait for a place here, never for the worker's loop.
 */
#ifndef TOPKD_SERVER_FD_CHANNEL_H
#define TOPKD_SERVER_FD_CHANNEL_H

#include "gate.h"
#include "peer.h"
#include "socket_file.h"
#include "topkd_fd.h"
#include "topkd_status.h"

#include <stdbool.h>
#include <stdint.h>

struct fd_channel;

#define FD_CHANNEL_CONNECTIONS_MAX 64u      /* choice: a connection lives for one hand-over */
#define FD_CHANNEL_PEER_CONNECTIONS_MAX 16u /* choice: of one process */
#define FD_CHANNEL_PEER_TICKETS_MAX 64u     /* choice: of one process */
#define FD_CHANNEL_PUBLISHED_MAX 1024u      /* choice: far above the sessions of a CUDA worker */
#define FD_CHANNEL_TICKETS_MAX 256u         /* choice: registrations under way at once */
#define FD_CHANNEL_FDS_MAX 4096u            /* choice: descriptors waiting, all tickets */

struct fd_channel_config {
    const char *path; /* of the socket file; a leftover one is replaced */
    struct socket_rights rights;
    struct gate *gate;  /* kept by pointer */
    uint32_t ticket_ms; /* 0: FD_TICKET_MS */
};

/* The descriptors of one ticket, in the order of the memory. */
struct fd_bundle {
    uint32_t num_fds;
    struct fd_bundle_entry {
        int fd;
        uint64_t size_bytes;
    } entries[];
};

/*
 * Binds, listens and starts the thread. Raises the soft limit of open files towards what the
 * limits above need. SYSTEM, NO_MEMORY, INVALID (path too long) with a text in
 * detail[WIRE_DETAIL_SIZE].
 */
enum topkd_status fd_channel_open(const struct fd_channel_config *config,
                                  struct fd_channel **channel_p, char *detail);

/* Stops the thread, closes every connection and descriptor, removes the socket file. NULL is
 * allowed. Blocks until the thread has ended. */
void fd_channel_close(struct fd_channel *channel);

/*
 * Takes a ticket's descriptors; the ticket ends. The caller frees them with fd_bundle_destroy.
 * MAP_FAILED when there is no such ticket for this process (never issued, used, expired, or handed
 * over by another process). Any thread; does not block on peers.
 */
enum topkd_status fd_channel_take(struct fd_channel *channel, const uint8_t ticket[FD_TICKET_SIZE],
                                  const struct peer *peer, struct fd_bundle **bundle_p,
                                  char *detail);

/*
 * Gives out copies of `fd` (kept by number; the caller's, open until unpublish) to the process of
 * `peer` that names the ticket. LIMIT, SYSTEM. Any thread.
 */
enum topkd_status fd_channel_publish(struct fd_channel *channel, int fd, const struct peer *peer,
                                     uint8_t ticket_p[FD_TICKET_SIZE], char *detail);
void fd_channel_unpublish(struct fd_channel *channel, const uint8_t ticket[FD_TICKET_SIZE]);

/* Closes the descriptors that are not -1 and frees. NULL is allowed. */
void fd_bundle_destroy(struct fd_bundle *bundle);

/* Descriptors held now, for tests and statistics. Any thread. */
uint32_t fd_channel_num_fds(struct fd_channel *channel);

#endif
