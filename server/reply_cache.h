/*
 * reply_cache.h - exactly once: what became of the last requests of a session, by sequence.
 *
 * A client that repeats a request (its transport may) gets the answer of the first run. The cache
 * is a ring: sequence s lives in entry s mod n, so that a request that arrives out of order finds
 * its place while the sequences in flight span less than n. One thread; memory is the caller's.
 */
#ifndef TOPKD_SERVER_REPLY_CACHE_H
#define TOPKD_SERVER_REPLY_CACHE_H

#include "topkd_wire.h"

#include <stdbool.h>
#include <stdint.h>

enum reply_cache_state { REPLY_CACHE_EMPTY = 0, REPLY_CACHE_RUNNING = 1, REPLY_CACHE_DONE = 2 };

/* A finished reply of one of the kinds that change something; these have small bodies. */
struct reply_cache_entry {
    uint64_t sequence;
    enum reply_cache_state state;
    enum wire_kind kind;
    enum topkd_status status;
    char detail[WIRE_DETAIL_SIZE];
    union {
        struct wire_register_reply reg;
        struct wire_unregister_reply unreg;
        struct wire_select_reply select;
    } u;
};

struct reply_cache {
    uint32_t num_entries;
    struct reply_cache_entry *entries; /* [num_entries], zero at first */
};

enum reply_cache_verdict {
    REPLY_CACHE_NEW,     /* run it; the entry is now running */
    REPLY_CACHE_REPEAT,  /* finished: answer with the entry */
    REPLY_CACHE_BUSY,    /* it still runs, or its entry is held by an older one that does */
    REPLY_CACHE_INVALID, /* sequence 0, another kind under this number, or too old to know */
};

/* Takes the request in. *entry_p is set for NEW and REPEAT; detail[WIRE_DETAIL_SIZE] is written
 * for BUSY and INVALID. */
enum reply_cache_verdict reply_cache_begin(struct reply_cache *cache, uint64_t sequence,
                                           enum wire_kind kind, struct reply_cache_entry **entry_p,
                                           char *detail);

/* Keeps the answer of a running entry. */
void reply_cache_finish(struct reply_cache_entry *entry, const struct wire_reply *reply);

/* Forgets a running entry, for an answer that asks to try the same again (BUSY). */
void reply_cache_forget(struct reply_cache_entry *entry);

/* Fills status, detail and body of a reply from a finished entry. */
void reply_cache_answer(const struct reply_cache_entry *entry, struct wire_reply *reply);

#endif
