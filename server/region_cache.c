#include "region_cache.h"

#include "assert.h"
#include "detail.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void region_cache_init(struct region_cache *cache, uv_loop_t *loop, struct device *device,
                       uint64_t bytes_max)
{
    *cache = (struct region_cache){.loop = loop, .device = device, .bytes_max = bytes_max};
}

static struct region_memory **hash_chain(struct region_cache *cache,
                                         const struct device_memory_key *key)
{
    uint64_t mix = key->words[0] * 31 + key->words[1];
    return &cache->hash[mix % REGION_CACHE_HASH_SIZE];
}

static struct region_memory *find(struct region_cache *cache, const struct device_memory *wanted,
                                  uint64_t end_bytes)
{
    struct region_memory *entry = *hash_chain(cache, &wanted->key);
    for (; entry != NULL; entry = entry->next) {
        const struct device_memory *memory = entry->memory;
        if (memcmp(&memory->key, &wanted->key, sizeof(wanted->key)) == 0 &&
            memory->is_writable == wanted->is_writable && memory->size_bytes >= end_bytes &&
            !cache->device->ops->memory_faulted(memory))
            return entry;
    }
    return NULL;
}

static enum topkd_status check_range(const struct wire_register_request *request,
                                     uint64_t size_bytes, uint64_t *end_bytes_p, char *detail)
{
    if (request->length == 0)
        return detail_set(detail, TOPKD_E_INVALID, "a region of 0 bytes: give its length");
    if (__builtin_add_overflow(request->offset, request->length, end_bytes_p) ||
        *end_bytes_p > size_bytes)
        return detail_set(detail, TOPKD_E_OUT_OF_RANGE,
                          "offset %" PRIu64 " + length %" PRIu64
                          " reaches beyond the object of %" PRIu64 " bytes",
                          request->offset, request->length, size_bytes);
    if (request->memory.allocation_bytes > size_bytes)
        return detail_set(detail, TOPKD_E_OUT_OF_RANGE,
                          "the object has %" PRIu64 " bytes, not the %" PRIu64 " announced",
                          size_bytes, request->memory.allocation_bytes);
    return TOPKD_OK;
}

/* Maps what memory_open found; on failure the caller closes it. */
static enum topkd_status add(struct region_cache *cache, struct device_memory *memory,
                             struct region_memory **entry_p, char *detail)
{
    uint64_t sum_bytes;
    if (__builtin_add_overflow(cache->mapped_bytes, memory->size_bytes, &sum_bytes) ||
        sum_bytes > cache->bytes_max)
        return detail_set(detail, TOPKD_E_LIMIT,
                          "mapping %" PRIu64 " more bytes would exceed limits.region_bytes_total "
                          "(%" PRIu64 ", of which %" PRIu64 " are mapped)",
                          memory->size_bytes, cache->bytes_max, cache->mapped_bytes);
    struct region_memory *entry = calloc(1, sizeof(*entry));
    if (entry == NULL)
        return detail_set(detail, TOPKD_E_NO_MEMORY, "no memory for a mapping");
    enum topkd_status status = cache->device->ops->memory_map(cache->device, memory, detail);
    if (status != TOPKD_OK) {
        free(entry);
        return status;
    }
    struct region_memory **chain = hash_chain(cache, &memory->key);
    *entry = (struct region_memory){.memory = memory,
                                    .size_bytes = memory->size_bytes,
                                    .cache = cache,
                                    .next = *chain,
                                    .work = {.data = entry}};
    *chain = entry;
    cache->mapped_bytes = sum_bytes;
    cache->num_mappings++;
    *entry_p = entry;
    return TOPKD_OK;
}

enum topkd_status region_cache_acquire(struct region_cache *cache,
                                       const struct wire_register_request *request,
                                       const struct peer *peer, struct region_memory **memory_p,
                                       char *detail)
{
    const struct device_ops *ops = cache->device->ops;
    if (peer->pid == (int64_t)getpid())
        return detail_set(detail, TOPKD_E_SAME_PROCESS,
                          "the client is this worker's own process (pid %" PRId64 ")", peer->pid);

    struct device_memory *memory;
    enum topkd_status status = ops->memory_open(cache->device, request, peer, &memory, detail);
    if (status != TOPKD_OK)
        return status;
    uint64_t end_bytes = 0;
    status = check_range(request, memory->size_bytes, &end_bytes, detail);
    if (status != TOPKD_OK)
        goto err_close;
    struct region_memory *entry = find(cache, memory, end_bytes);
    if (entry != NULL) {
        ops->memory_close(cache->device, memory);
    } else {
        status = add(cache, memory, &entry, detail);
        if (status != TOPKD_OK)
            goto err_close;
    }
    topkd_assert(entry != NULL);
    entry->num_users++;
    *memory_p = entry;
    return TOPKD_OK;

err_close:
    ops->memory_close(cache->device, memory);
    return status;
}

static void unmap_work(uv_work_t *work)
{
    struct region_memory *entry = work->data;
    struct device *device = entry->cache->device;
    device->ops->memory_close(device, entry->memory);
}

static void unmap_done(uv_work_t *work, int status)
{
    struct region_memory *entry = work->data;
    topkd_assert(status == 0); /* nobody cancels it */
    entry->cache->mapped_bytes -= entry->size_bytes;
    entry->cache->num_mappings--;
    free(entry);
}

void region_cache_release(struct region_memory *entry)
{
    struct region_cache *cache = entry->cache;

    topkd_assert(entry->num_users > 0);
    if (--entry->num_users > 0)
        return;
    struct region_memory **link = hash_chain(cache, &entry->memory->key);
    while (*link != entry)
        link = &(*link)->next;
    *link = entry->next;
    int error = uv_queue_work(cache->loop, &entry->work, unmap_work, unmap_done);
    topkd_assert(error == 0);
}
