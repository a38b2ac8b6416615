/*
 * engine_internal.h - what the files of the engine share. All with the client's mutex.
 */
#ifndef TOPKD_CLIENT_ENGINE_INTERNAL_H
#define TOPKD_CLIENT_ENGINE_INTERNAL_H

#include "client.h"

/* ---- engine.c -------------------------------------------------------------------------------- */

/* Gives the operation its status; `detail` may be its own. It may be freed here. */
void engine_end(struct topkd_op *op, enum topkd_status status, const char *detail);

/* When the operation is given up. */
uint64_t engine_expiry_ns(const struct topkd_op *op);

/* Sets the timer for `at_ns` unless it comes earlier anyway. */
void engine_arm_timer(struct topkd_client *client, uint64_t at_ns);

/* ---- engine_send.c --------------------------------------------------------------------------- */

bool engine_uses_arena(const struct topkd_op *op);

/* Into the parked ones, in the order of their start: a session runs its requests in order, and a
 * semaphore must not reach a later value before an earlier one's work is done. */
void engine_park(struct topkd_op *op);
/* Out of them; nothing happens to one that is not parked. */
void engine_unpark(struct topkd_op *op);

/* Sends the release; the slot of the arena counts as used until the worker has answered. If it
 * cannot be sent, for lack of memory, the arena slot stays taken until the session ends. */
void engine_send_release(struct link *link, uint64_t wire_lease, uint32_t num_busy);

#endif
