/*
 * region.h - the registered regions of one session.
 *
 * An id names a place of the session's table, its generation one use of that place: an id of
 * another session or of an earlier registration is never taken for a live one. For the loop thread.
 */
#ifndef TOPKD_SERVER_REGION_H
#define TOPKD_SERVER_REGION_H

#include "region_cache.h"
#include "topkd_wire.h"

#include <stdbool.h>
#include <stdint.h>

struct region {
    uint64_t id;         /* place in the table + 1; 0: the place is free */
    uint32_t generation; /* unique in this worker, until 2^32 registrations */
    bool is_draining;    /* unregistered; closed when num_active reaches 0 */
    bool unlink_when_dead;
    uint32_t num_active; /* requests in flight that use it */
    uint64_t offset;     /* of the region in its object */
    uint64_t length;
    struct region_memory *memory;
    struct wire_memory handle; /* as it came, for unlink_when_dead */
};

struct region_table {
    uint32_t regions_max;
    uint32_t num_regions;   /* draining ones included */
    uint64_t num_bytes;     /* sum of lengths */
    struct region *regions; /* [regions_max] */
};

struct region_limits {
    uint64_t bytes_max; /* of a session */
};

enum topkd_status region_table_init(struct region_table *table, uint32_t regions_max);
/* No region is left. */
void region_table_fini(struct region_table *table);

/*
 * Registers. Errors: LIMIT (number, bytes), INVALID (access) and those of region_cache_acquire.
 * `generation` is the caller's, never used before.
 */
enum topkd_status region_open(struct region_table *table, struct region_cache *cache,
                              const struct wire_register_request *request, const struct peer *peer,
                              const struct region_limits *limits, uint32_t generation,
                              struct region **region_p, char *detail);

/* The region of this id and generation, draining ones included; NULL when there is none. */
struct region *region_find(struct region_table *table, uint64_t id, uint32_t generation);

/* No request may take it any more. True when it is closed at once, false while it drains. */
bool region_close(struct region_table *table, struct region *region);

/* A request begins and ends to use it; the last one closes a draining region. */
void region_acquire(struct region *region);
void region_release(struct region_table *table, struct region *region);

#endif
