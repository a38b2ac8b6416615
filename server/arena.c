#include "arena.h"

#include "assert.h"
#include "detail.h"

#include <inttypes.h>
#include <stddef.h>

void arena_init(struct arena *arena, uint32_t num_slots, uint64_t slot_bytes,
                struct arena_slot *slots)
{
    topkd_assert(num_slots == 0 || slots != NULL);
    *arena = (struct arena){
        .num_slots = num_slots, .slot_bytes = slot_bytes, .next_lease = 1, .slots = slots};
}

static void slot_free(struct arena *arena, struct arena_slot *slot)
{
    topkd_assert(slot->lease != 0 && arena->num_leased > 0);
    slot->lease = 0;
    slot->is_running = false;
    slot->release_wanted = false;
    arena->num_leased--;
}

enum topkd_status arena_lease(struct arena *arena, uint32_t *slot_p, char *detail)
{
    /* The slot with most memory behind it first: a session that uses one at a time then touches
     * the memory of one. */
    struct arena_slot *best = NULL;
    for (uint32_t i = 0; i < arena->num_slots; i++) {
        struct arena_slot *slot = &arena->slots[i];
        if (slot->lease == 0 && (best == NULL || slot->reserved_bytes > best->reserved_bytes))
            best = slot;
    }
    if (best == NULL)
        return detail_set(detail, TOPKD_E_BUSY,
                          "all %" PRIu32 " slots of the session's output arena are leased: release "
                          "a result first",
                          arena->num_slots);
    best->lease = arena->next_lease++;
    best->is_running = true;
    arena->num_leased++;
    *slot_p = (uint32_t)(best - arena->slots);
    return TOPKD_OK;
}

void arena_finish(struct arena *arena, uint32_t slot_idx, bool failed, uint64_t used_bytes)
{
    topkd_assert(slot_idx < arena->num_slots);
    struct arena_slot *slot = &arena->slots[slot_idx];
    topkd_assert(slot->is_running);
    slot->is_running = false;
    if (!failed && used_bytes > slot->reserved_bytes)
        slot->reserved_bytes = used_bytes;
    if (failed || slot->release_wanted)
        slot_free(arena, slot);
}

enum topkd_status arena_release(struct arena *arena, uint64_t lease, char *detail)
{
    for (uint32_t i = 0; i < arena->num_slots && lease != 0; i++) {
        struct arena_slot *slot = &arena->slots[i];
        if (slot->lease != lease || slot->release_wanted)
            continue;
        if (slot->is_running)
            slot->release_wanted = true;
        else
            slot_free(arena, slot);
        return TOPKD_OK;
    }
    return detail_set(detail, TOPKD_E_INVALID,
                      "lease %" PRIu64 " is not held by this session: it was released before, or "
                      "its request failed",
                      lease);
}
