/*
 * session_internal.h - what session_open.c and session.c need of each other.
 */
#ifndef TOPKD_SERVER_SESSION_INTERNAL_H
#define TOPKD_SERVER_SESSION_INTERNAL_H

#include "session.h"

/* Watches the peer's process; NULL when that cannot be done. */
struct orphan *session_orphan_open(struct session *session);
/* Frees what the loop's thread allocated. */
void session_deallocate(struct session *session);
/* It has ended and nothing of it is in flight: unlinks it and gives back what it holds. */
void session_close(struct session *session);

#endif
