/*
 * arena.h - leases of the output arena's slots of one session. Plain data, one thread.
 *
 * A slot is leased when a Select with arena output is accepted and given back by Release (or at
 * once when the work failed). A lease id is never used twice in a session, so that a late Release
 * cannot free somebody else's result.
 */
#ifndef TOPKD_SERVER_ARENA_H
#define TOPKD_SERVER_ARENA_H

#include "topkd_status.h"
#include "topkd_wire.h"

#include <stdbool.h>
#include <stdint.h>

struct arena_slot {
    uint64_t lease;          /* 0: free */
    uint64_t reserved_bytes; /* of the slot that have memory behind them, as finished work found */
    bool is_running;         /* the work that writes it has not ended */
    bool release_wanted;     /* Release came while it ran */
};

struct arena {
    uint32_t num_slots;
    uint32_t num_leased;
    uint64_t slot_bytes;
    uint64_t next_lease;
    struct arena_slot *slots; /* [num_slots]; the caller's memory, zero at first */
};

void arena_init(struct arena *arena, uint32_t num_slots, uint64_t slot_bytes,
                struct arena_slot *slots);

/* Leases a free slot for work that is about to run. BUSY when all are leased. */
enum topkd_status arena_lease(struct arena *arena, uint32_t *slot_p, char *detail);

/* The work of a slot has ended. When it failed the slot is given back, else its first used_bytes
 * are known to have memory. */
void arena_finish(struct arena *arena, uint32_t slot, bool failed, uint64_t used_bytes);

/* Gives a lease back; a running one ends with its work. INVALID for an unknown id. */
enum topkd_status arena_release(struct arena *arena, uint64_t lease, char *detail);

#endif
