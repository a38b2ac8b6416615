/*
 * nng_repair.h - what NNG 1.5 lacks: listeners that stay alive, the groups of a peer. nng_repair.c
 * says why and how.
 */
#ifndef TOPKD_SERVER_NNG_REPAIR_H
#define TOPKD_SERVER_NNG_REPAIR_H

#include "peer.h"

#include <stdbool.h>

/* Whether NNG's calls go through the repair: a matter of linking, the same in every run of a
 * program. A program that opens an endpoint checks it once. */
bool nng_repair_is_active(void);

/* Between these two calls a thread asks NNG for an option of a pipe that says who the peer is; the
 * second one then has the groups of that peer, as they were when it connected. Of a kernel that
 * does not tell (before 4.13), and without memory, it has none. The caller frees ids. */
void nng_repair_groups_begin(void);
void nng_repair_groups_end(struct peer_groups *groups_p);

#endif
