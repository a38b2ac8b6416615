/*
 * peer.h - who is at the other end of a connection, as the kernel said when it was made.
 */
#ifndef TOPKD_SERVER_PEER_H
#define TOPKD_SERVER_PEER_H

#include <stdint.h>

/* -1: unknown. The pid is as seen from this process's PID namespace (0: in none of ours). */
struct peer {
    int64_t uid, gid, pid;
};

/* Its supplementary groups; the kernel's list, which may repeat the primary one. */
struct peer_groups {
    uint32_t num_ids;
    uint32_t *ids; /* NULL: none */
};

/* Asks the kernel about a connected Unix socket. The groups are freed with peer_groups_free. */
void peer_read(int fd, struct peer *peer_p, struct peer_groups *groups_p);
void peer_groups_free(struct peer_groups *groups);

#endif
