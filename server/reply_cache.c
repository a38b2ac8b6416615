#include "reply_cache.h"

#include "assert.h"
#include "detail.h"

#include <inttypes.h>
#include <string.h>

enum reply_cache_verdict reply_cache_begin(struct reply_cache *cache, uint64_t sequence,
                                           enum wire_kind kind, struct reply_cache_entry **entry_p,
                                           char *detail)
{
    if (sequence == 0) {
        detail_set(detail, TOPKD_E_INVALID,
                   "sequence 0 in a %s: count the requests of a session from 1",
                   wire_kind_name(kind));
        return REPLY_CACHE_INVALID;
    }
    struct reply_cache_entry *entry = &cache->entries[sequence % cache->num_entries];
    if (entry->state != REPLY_CACHE_EMPTY && entry->sequence == sequence) {
        if (entry->kind != kind) {
            detail_set(detail, TOPKD_E_INVALID,
                       "sequence %" PRIu64 " was a %s, now it is a %s: use each number once",
                       sequence, wire_kind_name(entry->kind), wire_kind_name(kind));
            return REPLY_CACHE_INVALID;
        }
        if (entry->state == REPLY_CACHE_RUNNING) {
            detail_set(detail, TOPKD_E_BUSY,
                       "sequence %" PRIu64 " is still running: wait for its answer", sequence);
            return REPLY_CACHE_BUSY;
        }
        *entry_p = entry;
        return REPLY_CACHE_REPEAT;
    }
    if (entry->sequence > sequence) {
        detail_set(detail, TOPKD_E_INVALID,
                   "sequence %" PRIu64 " is older than the %" PRIu32 " replies kept (%" PRIu64
                   " was seen): never reuse a number",
                   sequence, cache->num_entries, entry->sequence);
        return REPLY_CACHE_INVALID;
    }
    if (entry->state == REPLY_CACHE_RUNNING) {
        detail_set(detail, TOPKD_E_BUSY,
                   "sequence %" PRIu64 " is %" PRIu64
                   " ahead of one that still runs, at most %" PRIu32
                   " are kept apart: wait for its answer",
                   sequence, sequence - entry->sequence, cache->num_entries);
        return REPLY_CACHE_BUSY;
    }
    entry->sequence = sequence;
    entry->state = REPLY_CACHE_RUNNING;
    entry->kind = kind;
    *entry_p = entry;
    return REPLY_CACHE_NEW;
}

void reply_cache_finish(struct reply_cache_entry *entry, const struct wire_reply *reply)
{
    topkd_assert(entry->state == REPLY_CACHE_RUNNING);
    topkd_assert(entry->kind == reply->kind);
    entry->state = REPLY_CACHE_DONE;
    entry->status = reply->status;
    memcpy(entry->detail, reply->detail, sizeof(entry->detail));
    memset(&entry->u, 0, sizeof(entry->u));
    if (reply->status != TOPKD_OK)
        return;
    switch (reply->kind) {
    case WIRE_REGISTER:
        entry->u.reg = reply->u.reg;
        break;
    case WIRE_UNREGISTER:
        entry->u.unreg = reply->u.unreg;
        break;
    case WIRE_SELECT:
        entry->u.select = reply->u.select;
        break;
    default: /* no body */
        break;
    }
}

void reply_cache_forget(struct reply_cache_entry *entry)
{
    topkd_assert(entry->state == REPLY_CACHE_RUNNING);
    /* The number stays: the same sequence may come again, an older one may not. */
    entry->state = REPLY_CACHE_EMPTY;
}

void reply_cache_answer(const struct reply_cache_entry *entry, struct wire_reply *reply)
{
    topkd_assert(entry->state == REPLY_CACHE_DONE);
    reply->status = entry->status;
    memcpy(reply->detail, entry->detail, sizeof(reply->detail));
    if (entry->status != TOPKD_OK)
        return;
    switch (entry->kind) {
    case WIRE_REGISTER:
        reply->u.reg = entry->u.reg;
        break;
    case WIRE_UNREGISTER:
        reply->u.unreg = entry->u.unreg;
        break;
    case WIRE_SELECT:
        reply->u.select = entry->u.select;
        break;
    default:
        break;
    }
}
