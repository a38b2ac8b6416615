#include "reply_cache.h"

#include "assert.h"
#include "detail.h"

#include <inttypes.h>
#include <string.h>

void reply_cache_init(struct reply_cache *cache, struct reply_cache_entry *entries,
                      uint32_t num_entries)
{
    memset(entries, 0, num_entries * sizeof(*entries));
    *cache = (struct reply_cache){.num_entries = num_entries, .entries = entries};
    cache->newest = &cache->oldest;
    for (uint32_t i = num_entries; i > 0; i--) {
        entries[i - 1].next = cache->free;
        cache->free = &entries[i - 1];
    }
}

static struct reply_cache_entry **place_of(struct reply_cache *cache, uint64_t sequence)
{
    return &cache->entries[sequence % cache->num_entries].first;
}

static struct reply_cache_entry *find(struct reply_cache *cache, uint64_t sequence)
{
    struct reply_cache_entry *entry = *place_of(cache, sequence);
    while (entry != NULL && entry->sequence != sequence)
        entry = entry->chain;
    return entry;
}

static void put_free(struct reply_cache *cache, struct reply_cache_entry *entry)
{
    struct reply_cache_entry **link = place_of(cache, entry->sequence);
    while (*link != entry)
        link = &(*link)->chain;
    *link = entry->chain;
    entry->state = REPLY_CACHE_FREE;
    entry->next = cache->free;
    cache->free = entry;
}

static void forget_oldest(struct reply_cache *cache)
{
    struct reply_cache_entry *entry = cache->oldest;
    topkd_assert(entry != NULL); /* there are more entries than may run */
    cache->oldest = entry->next;
    if (cache->oldest == NULL)
        cache->newest = &cache->oldest;
    if (entry->sequence > cache->forgotten)
        cache->forgotten = entry->sequence;
    put_free(cache, entry);
}

static struct reply_cache_entry *take_new(struct reply_cache *cache, uint64_t sequence,
                                          enum wire_kind kind)
{
    if (cache->free == NULL)
        forget_oldest(cache);
    struct reply_cache_entry *entry = cache->free;
    struct reply_cache_entry **place = place_of(cache, sequence);
    cache->free = entry->next;
    entry->next = NULL;
    entry->sequence = sequence;
    entry->state = REPLY_CACHE_RUNNING;
    entry->kind = kind;
    entry->chain = *place;
    *place = entry;
    return entry;
}

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
    struct reply_cache_entry *entry = find(cache, sequence);
    if (entry == NULL && sequence <= cache->forgotten) {
        detail_set(detail, TOPKD_E_INVALID,
                   "sequence %" PRIu64 " is not among the %" PRIu32 " replies kept, and %" PRIu64
                   " was forgotten already: never reuse a number",
                   sequence, cache->num_entries, cache->forgotten);
        return REPLY_CACHE_INVALID;
    }
    if (entry == NULL) {
        *entry_p = take_new(cache, sequence, kind);
        return REPLY_CACHE_NEW;
    }
    if (entry->kind != kind) {
        detail_set(detail, TOPKD_E_INVALID,
                   "sequence %" PRIu64 " was a %s, now it is a %s: use each number once", sequence,
                   wire_kind_name(entry->kind), wire_kind_name(kind));
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

void reply_cache_finish(struct reply_cache *cache, struct reply_cache_entry *entry,
                        const struct wire_reply *reply)
{
    topkd_assert(entry->state == REPLY_CACHE_RUNNING);
    topkd_assert(entry->kind == reply->kind);
    entry->state = REPLY_CACHE_DONE;
    entry->next = NULL;
    *cache->newest = entry;
    cache->newest = &entry->next;
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
    case WIRE_LANE_OPEN:
        entry->u.lane = reply->u.lane_open.lane;
        break;
    default: /* no body */
        break;
    }
}

void reply_cache_forget(struct reply_cache *cache, struct reply_cache_entry *entry)
{
    topkd_assert(entry->state == REPLY_CACHE_RUNNING);
    put_free(cache, entry);
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
    case WIRE_LANE_OPEN:
        reply->u.lane_open = (struct wire_lane_open_reply){.lane = entry->u.lane};
        break;
    default:
        break;
    }
}
