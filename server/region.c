#include "region.h"

#include "assert.h"
#include "detail.h"

#include <inttypes.h>
#include <stdlib.h>

enum topkd_status region_table_init(struct region_table *table, uint32_t regions_max)
{
    *table = (struct region_table){.regions_max = regions_max};
    table->regions = calloc(regions_max, sizeof(*table->regions));
    return table->regions != NULL ? TOPKD_OK : TOPKD_E_NO_MEMORY;
}

void region_table_fini(struct region_table *table)
{
    topkd_assert(table->num_regions == 0);
    free(table->regions);
    table->regions = NULL;
}

static enum topkd_status check_request(const struct region_table *table,
                                       const struct wire_register_request *request,
                                       const struct region_limits *limits, char *detail)
{
    if (request->access != WIRE_ACCESS_READ && request->access != WIRE_ACCESS_READ_WRITE)
        return detail_set(detail, TOPKD_E_INVALID, "access %d is unknown: 1 read, 3 read and write",
                          (int)request->access);
    if (table->num_regions == table->regions_max)
        return detail_set(detail, TOPKD_E_LIMIT,
                          "the session has %" PRIu32 " regions, limits.regions_max: unregister "
                          "one first",
                          table->num_regions);
    uint64_t sum_bytes;
    if (__builtin_add_overflow(table->num_bytes, request->length, &sum_bytes) ||
        sum_bytes > limits->bytes_max)
        return detail_set(detail, TOPKD_E_LIMIT,
                          "%" PRIu64 " more bytes would exceed limits.region_bytes_max (%" PRIu64
                          ", of which the session has %" PRIu64 ")",
                          request->length, limits->bytes_max, table->num_bytes);
    return TOPKD_OK;
}

enum topkd_status region_open(struct region_table *table, struct region_cache *cache,
                              const struct wire_register_request *request, const struct peer *peer,
                              const struct region_limits *limits, uint32_t generation,
                              struct region **region_p, char *detail)
{
    enum topkd_status status = check_request(table, request, limits, detail);
    if (status != TOPKD_OK)
        return status;
    struct region_memory *memory;
    status = region_cache_acquire(cache, request, peer, &memory, detail);
    if (status != TOPKD_OK)
        return status;

    struct region *region = table->regions;
    while (region->id != 0)
        region++;
    *region = (struct region){.id = (uint64_t)(region - table->regions) + 1,
                              .generation = generation,
                              .unlink_when_dead = request->unlink_when_dead,
                              .offset = request->offset,
                              .length = request->length,
                              .memory = memory,
                              .handle = request->memory};
    table->num_regions++;
    table->num_bytes += region->length;
    *region_p = region;
    return TOPKD_OK;
}

struct region *region_find(struct region_table *table, uint64_t id, uint32_t generation)
{
    if (id == 0 || id > table->regions_max)
        return NULL;
    struct region *region = &table->regions[id - 1];
    return region->id == id && region->generation == generation ? region : NULL;
}

static void region_end(struct region_table *table, struct region *region)
{
    region_cache_release(region->memory);
    table->num_regions--;
    table->num_bytes -= region->length;
    region->id = 0;
}

bool region_close(struct region_table *table, struct region *region)
{
    topkd_assert(region->id != 0);
    region->is_draining = true;
    if (region->num_active > 0)
        return false;
    region_end(table, region);
    return true;
}

void region_acquire(struct region *region)
{
    topkd_assert(region->id != 0 && !region->is_draining);
    region->num_active++;
}

void region_release(struct region_table *table, struct region *region)
{
    topkd_assert(region->num_active > 0);
    region->num_active--;
    if (region->num_active == 0 && region->is_draining)
        region_end(table, region);
}
