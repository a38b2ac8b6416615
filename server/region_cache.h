/*
 * region_cache.h - mapped client memory of a worker, shared by the regions that lie in it.
 *
 * Keyed by what the memory is (device_memory_key), not by its name: an object registered twice is
 * mapped once, one that was removed and made again under its old name is another. Reference
 * counted, bounded by bytes. The last release hands the mapping to libuv's threads, since unmapping
 * many gigabytes takes long. For the loop thread.
 */
#ifndef TOPKD_SERVER_REGION_CACHE_H
#define TOPKD_SERVER_REGION_CACHE_H

#include "device.h"
#include "peer.h"
#include "topkd_wire.h"

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#define REGION_CACHE_HASH_SIZE 1024u /* choice: short chains up to some thousand mappings */

struct region_cache;

struct region_memory {
    struct device_memory *memory; /* of the device; shared, read-only for users */
    struct region_cache *cache;
    uint64_t size_bytes; /* of the mapping; memory itself is gone first */
    uint32_t num_users;
    struct region_memory *next;
    uv_work_t work;
};

struct region_cache {
    uv_loop_t *loop;
    struct device *device;
    uint64_t bytes_max;    /* may change at any time; applies to new mappings */
    uint64_t mapped_bytes; /* of all mappings, until they are really gone */
    uint32_t num_mappings;
    struct region_memory *hash[REGION_CACHE_HASH_SIZE];
};

void region_cache_init(struct region_cache *cache, uv_loop_t *loop, struct device *device,
                       uint64_t bytes_max);

/*
 * Finds or makes a mapping that covers request->offset + request->length. Errors: those of
 * device_ops.memory_open and memory_map, INVALID (length 0), OUT_OF_RANGE, SAME_PROCESS, LIMIT.
 */
enum topkd_status region_cache_acquire(struct region_cache *cache,
                                       const struct wire_register_request *request,
                                       const struct peer *peer, struct region_memory **memory_p,
                                       char *detail);
void region_cache_release(struct region_memory *memory);

#endif
