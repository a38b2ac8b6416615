/* Operations of the lanes of a warp: shuffles, votes, reductions. */
#include "machine.hpp"

namespace emulate
{

namespace
{

const char *name_of(enum warp_op op)
{
    static const char *const names[] = {
        "__syncwarp",        "__shfl_sync",       "__shfl_up_sync",
        "__shfl_down_sync",  "__shfl_xor_sync",   "a vote",
        "__reduce_add_sync", "__reduce_min_sync", "__reduce_max_sync",
        "__reduce_and_sync", "__reduce_or_sync",  "__reduce_xor_sync",
        "__match_any_sync",
    };
    return names[(int)op];
}

/* The lane that a shuffle takes its value from. */
uint32_t source_lane(const struct gathering &all, uint32_t lane, uint32_t width)
{
    const uint32_t argument = all.argument[lane], first = lane & ~(width - 1);
    switch (all.op) {
    case warp_op::shuffle:
        return first | (argument & (width - 1));
    case warp_op::shuffle_up:
        return lane < first + argument ? lane : lane - argument;
    case warp_op::shuffle_down:
        return lane + argument >= first + width ? lane : lane + argument;
    default:
        return (lane ^ argument) >= first + width ? lane : lane ^ argument;
    }
}

uint32_t reduce(enum warp_op op, uint32_t a, uint32_t b)
{
    switch (op) {
    case warp_op::reduce_add:
        return a + b;
    case warp_op::reduce_min:
        return a < b ? a : b;
    case warp_op::reduce_max:
        return a > b ? a : b;
    case warp_op::reduce_and:
        return a & b;
    case warp_op::reduce_or:
        return a | b;
    default:
        return a ^ b;
    }
}

/* What is the same for all lanes. */
uint64_t combine(const struct gathering &all)
{
    uint32_t lanes = all.mask, result = 0;
    bool first = true;
    for (; lanes != 0; lanes &= lanes - 1) {
        const uint32_t lane = (uint32_t)__builtin_ctz(lanes), value = (uint32_t)all.value[lane];
        if (all.op == warp_op::ballot) {
            result |= value != 0 ? 1u << lane : 0u;
        } else {
            result = first ? value : reduce(all.op, result, value);
        }
        first = false;
    }
    return result;
}

uint64_t matches(const struct gathering &all, uint32_t lane)
{
    uint32_t result = 0;
    for (uint32_t lanes = all.mask; lanes != 0; lanes &= lanes - 1) {
        const uint32_t other = (uint32_t)__builtin_ctz(lanes);
        result |= all.value[other] == all.value[lane] ? 1u << other : 0u;
    }
    return result;
}

/* All lanes of the mask have come: gives each its result and wakes all but the last to come. */
void finish(struct warp &warp, const struct gathering &all, uint32_t width, struct site here)
{
    const bool shuffles = all.op >= warp_op::shuffle && all.op <= warp_op::shuffle_xor;
    const uint64_t same = shuffles || all.op == warp_op::match_any ? 0 : combine(all);
    for (uint32_t lanes = all.mask; lanes != 0; lanes &= lanes - 1) {
        const uint32_t lane = (uint32_t)__builtin_ctz(lanes);
        struct thread &thread = warp.block->threads[warp.index * WARP_LANES + lane];
        thread.result = same;
        if (shuffles) {
            const uint32_t from = source_lane(all, lane, width);
            if ((all.mask >> from & 1u) == 0) {
                fail(here, "%s: lane %u takes the value of lane %u, which the mask 0x%08x lacks",
                     name_of(all.op), lane, from, all.mask);
            }
            thread.result = all.value[from];
        } else if (all.op == warp_op::match_any) {
            thread.result = matches(all, lane);
        }
        if (&thread != machine.current) {
            wake(thread);
        }
    }
}

/* The operation that this lane takes part in: one that waits for it, or a new one. */
struct gathering &join(struct warp &warp, enum warp_op op, uint32_t mask, uint32_t lane,
                       struct site here)
{
    for (struct gathering &one : warp.gatherings) {
        if ((one.mask & mask) == 0) {
            continue;
        }
        if (one.mask != mask || one.op != op) {
            if ((one.mask >> lane & 1u) != 0) {
                fail(here,
                     "%s with mask 0x%08x, but lanes 0x%08x wait for this one in %s with "
                     "mask 0x%08x at %s:%d",
                     name_of(op), mask, one.arrived, name_of(one.op), one.mask, one.where.file,
                     one.where.line);
            }
            continue;
        }
        return one;
    }
    struct gathering fresh;
    fresh.op = op;
    fresh.mask = mask;
    fresh.arrived = 0;
    fresh.where = here;
    warp.gatherings.push_back(fresh);
    return warp.gatherings.back();
}

void check_mask(const struct warp &warp, enum warp_op op, uint32_t mask, uint32_t lane,
                struct site here)
{
    if ((mask >> lane & 1u) == 0) {
        fail(here, "%s: the mask 0x%08x lacks lane %u, which calls", name_of(op), mask, lane);
    }
    for (uint32_t lanes = mask; lanes != 0; lanes &= lanes - 1) {
        const uint32_t other = (uint32_t)__builtin_ctz(lanes);
        const uint32_t index = warp.index * WARP_LANES + other;
        if (index >= warp.block->num_threads || warp.block->threads[index].wait == wait::ended) {
            fail(here, "%s: lane %u of the mask 0x%08x has ended", name_of(op), other, mask);
        }
    }
}

} // namespace

uint64_t warp_gather(enum warp_op op, uint32_t mask, uint64_t value, uint32_t argument,
                     uint32_t width, struct site here)
{
    struct thread &thread = *machine.current;
    struct warp &warp = *thread.warp;
    struct gathering &all = join(warp, op, mask, thread.lane, here);
    if (all.arrived == 0) {
        check_mask(warp, op, mask, thread.lane, here);
    } else if ((mask >> thread.lane & 1u) == 0) {
        fail(here, "%s: the mask 0x%08x lacks lane %u, which calls", name_of(op), mask,
             thread.lane);
    }
    all.arrived |= 1u << thread.lane;
    all.value[thread.lane] = value;
    all.argument[thread.lane] = argument;
    if (all.arrived != mask) {
        suspend(wait::warp, name_of(op), here);
        return thread.result;
    }
    finish(warp, all, width, here);
    warp.gatherings.erase(warp.gatherings.begin() + (&all - warp.gatherings.data()));
    return thread.result;
}

} // namespace emulate
