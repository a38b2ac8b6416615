/*
 * reply_cache.h - exactly once: what became of the last requests of a session, by sequence.
 *
 * A client that repeats a request (its transport may) gets the answer of the first run. The cache
 * keeps every request that runs and the last answers, whatever their numbers: one that runs for
 * long stands in nobody's way. When all entries are taken, the answer that was given first is
 * forgotten, and no number up to the highest forgotten one is taken as new any more. One thread;
 * memory is the caller's.
 */
#ifndef TOPKD_SERVER_REPLY_CACHE_H
#define TOPKD_SERVER_REPLY_CACHE_H

#include "topkd_wire.h"

#include <stdbool.h>
#include <stdint.h>

enum reply_cache_state { REPLY_CACHE_FREE = 0, REPLY_CACHE_RUNNING = 1, REPLY_CACHE_DONE = 2 };

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
        uint64_t lane;
    } u;
    struct reply_cache_entry *next;  /* free ones, or those answered after it */
    struct reply_cache_entry *chain; /* of the same place */
    struct reply_cache_entry *first; /* of the place with this entry's number: sequence mod n */
};

struct reply_cache {
    uint32_t num_entries;
    struct reply_cache_entry *entries; /* [num_entries] */
    struct reply_cache_entry *free;
    struct reply_cache_entry *oldest, **newest; /* answered ones, in the order of their answers */
    uint64_t forgotten;                         /* highest sequence that was; 0: none */
};

enum reply_cache_verdict {
    REPLY_CACHE_NEW,     /* run it; the entry is now running */
    REPLY_CACHE_REPEAT,  /* finished: answer with the entry */
    REPLY_CACHE_BUSY,    /* it still runs */
    REPLY_CACHE_INVALID, /* sequence 0, another kind under this number, or too old to know */
};

/* num_entries: those that may run at a time, and the answers to remember beside them, at least one.
 */
void reply_cache_init(struct reply_cache *cache, struct reply_cache_entry *entries,
                      uint32_t num_entries);

/* Takes the request in. *entry_p is set for NEW and REPEAT; detail[WIRE_DETAIL_SIZE] is written
 * for BUSY and INVALID. */
enum reply_cache_verdict reply_cache_begin(struct reply_cache *cache, uint64_t sequence,
                                           enum wire_kind kind, struct reply_cache_entry **entry_p,
                                           char *detail);

/* Keeps the answer of a running entry. */
void reply_cache_finish(struct reply_cache *cache, struct reply_cache_entry *entry,
                        const struct wire_reply *reply);

/* Forgets a running entry, for an answer that asks to try the same again (BUSY). */
void reply_cache_forget(struct reply_cache *cache, struct reply_cache_entry *entry);

/* Fills status, detail and body of a reply from a finished entry. */
void reply_cache_answer(const struct reply_cache_entry *entry, struct wire_reply *reply);

#endif
