/* Shared memory of a block, of its neighbours in the cluster, and what is copied there. */
#include "machine.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#include <sanitizer/asan_interface.h>
#endif
#endif
#ifndef ASAN_POISON_MEMORY_REGION
#define ASAN_POISON_MEMORY_REGION(memory, size) ((void)(memory), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(memory, size) ((void)(memory), (void)(size))
#endif

namespace emulate
{

namespace
{

constexpr uint32_t WINDOW_FIRST = 1024; /* what is below is the system's */
constexpr uint32_t COPY_UNIT = 16;      /* bytes: of sizes and addresses of bulk copies */
constexpr uint32_t RANK_SHIFT = 24;     /* addresses in other blocks: rank + 1 above the window's */

/* A piece of memory of its own, so that AddressSanitizer sees its ends. Its contents are void. */
void add_piece(struct block &block, uint32_t size_bytes, size_t alignment)
{
    void *memory = nullptr;
    if (posix_memalign(&memory, std::max(alignment, sizeof(void *)), std::max(size_bytes, 1u)) !=
        0) {
        fail({}, "out of memory for %u bytes of shared memory", size_bytes);
    }
    static const unsigned char fillings[] = {0xa5, 0x7f, 0xff, 0x01};
    memset(memory, fillings[machine.random.below(4)], size_bytes);
    uint32_t window = WINDOW_FIRST;
    if (!block.pieces.empty()) {
        const struct shared_piece &last = block.pieces.back();
        window = (last.window + last.size_bytes + 1023) / 1024 * 1024;
    }
    block.pieces.push_back({static_cast<char *>(memory), window, size_bytes});
}

/* The place of a window address in a block's shared memory. */
char *place_of(struct block &block, uint32_t window, uint32_t size_bytes, struct site here)
{
    for (const struct shared_piece &piece : block.pieces) {
        if (window >= piece.window && window + size_bytes <= piece.window + piece.size_bytes) {
            return piece.memory + (window - piece.window);
        }
    }
    fail(here, "shared address 0x%x, %u bytes, lies in no object of block %u", window, size_bytes,
         block.index.x);
}

/* Notes what `size_bytes` of dynamic shared memory hold, as of now. */
void note(struct block &block, const char *memory, uint32_t size_bytes)
{
    const size_t first = (size_t)(memory - block.pieces[0].memory);
    memcpy(block.shadow.bytes.data() + first, memory, size_bytes);
    for (size_t i = first / COPY_UNIT; i < (first + size_bytes) / COPY_UNIT; i++) {
        block.shadow.fences[i] = block.fences;
    }
}

/* What threads wrote where a copy will write must have been fenced since. */
void check_fence(struct block &block, const char *to, uint32_t size_bytes, struct site here)
{
    const struct shared_piece &dynamic = block.pieces[0];
    if (to < dynamic.memory || to + size_bytes > dynamic.memory + dynamic.size_bytes) {
        fail(here, "a bulk copy to shared memory that is not the dynamic one");
    }
    struct shadow &shadow = block.shadow;
    if (shadow.bytes.empty()) { /* the first copy */
        const uint32_t whole = dynamic.size_bytes / COPY_UNIT * COPY_UNIT;
        shadow.bytes.resize(whole);
        shadow.fences.resize(whole / COPY_UNIT);
        note(block, dynamic.memory, whole);
        return;
    }
    const size_t first = (size_t)(to - dynamic.memory);
    for (size_t at = first; at < first + size_bytes; at += COPY_UNIT) {
        if (shadow.fences[at / COPY_UNIT] == block.fences &&
            memcmp(dynamic.memory + at, shadow.bytes.data() + at, COPY_UNIT) != 0) {
            fail(here, "a bulk copy to shared memory that threads wrote since the copy before, "
                       "without a fence between (fence.proxy.async)");
        }
    }
}

void add_event(struct event event)
{
    event.due = machine.turn + 1 + machine.random.below(machine.schedule.delay_max);
    machine.soonest = std::min(machine.soonest, event.due);
    machine.events.push_back(event);
}

} // namespace

void shared_begin(struct block &block, uint32_t dynamic_bytes)
{
    add_piece(block, dynamic_bytes, 1024);
}

void shared_end(struct block &block)
{
    for (const struct event &event : machine.events) {
        if (event.block == &block) {
            fail({},
                 "block %u has ended, and something that it or a neighbour started still "
                 "writes to its shared memory",
                 block.index.x);
        }
    }
    for (const struct shared_piece &piece : block.pieces) {
        free(piece.memory);
    }
    block.pieces.clear();
}

void *shared_dynamic()
{
    return machine.current->block->pieces[0].memory;
}

void *shared_object(const void *declaration, size_t size_bytes, size_t alignment)
{
    struct block &block = *machine.current->block;
    void *&object = block.objects[declaration];
    if (object == nullptr) {
        add_piece(block, (uint32_t)size_bytes, alignment);
        object = block.pieces.back().memory;
    }
    return object;
}

uint32_t shared_address(const void *pointer, struct site here)
{
    const char *place = static_cast<const char *>(pointer);
    for (const struct shared_piece &piece : machine.current->block->pieces) {
        if (place >= piece.memory && place < piece.memory + piece.size_bytes) {
            return piece.window + (uint32_t)(place - piece.memory);
        }
    }
    fail(here, "%p is no address in the block's shared memory", pointer);
}

/* ---- bulk copies ----------------------------------------------------------------------------- */

void fence_before_copies()
{
    machine.current->block->fences++;
}

void copy_bulk(void *shared, const void *global, uint32_t bytes, uint64_t *barrier,
               struct site here)
{
    struct block &block = *machine.current->block;
    if (reinterpret_cast<uintptr_t>(shared) % 16 != 0 ||
        reinterpret_cast<uintptr_t>(global) % 16 != 0 || bytes % 16 != 0 || bytes == 0) {
        fail(here, "a bulk copy of %u bytes from %p to %p; all must be multiples of 16", bytes,
             global, shared);
    }
    touch(here);
    place_of(block, shared_address(shared, here), bytes, here);
    shared_address(barrier, here);
    check_global(global, bytes, here);
    for (const struct event &event : machine.events) {
        if (event.from != nullptr && event.to < static_cast<char *>(shared) + bytes &&
            static_cast<char *>(shared) < event.to + event.size_bytes) {
            fail(here, "a bulk copy to shared memory that another one still writes");
        }
    }
    check_fence(block, static_cast<char *>(shared), bytes, here);
    memset(shared, 0x7f, bytes); /* void until the copy ends: high scores, which would be seen */
    ASAN_POISON_MEMORY_REGION(shared, bytes);
    add_event({0, &block, barrier, static_cast<char *>(shared), static_cast<const char *>(global),
               bytes, 0});
}

void prefetch_bulk(const void *global, int32_t bytes, struct site here)
{
    if (reinterpret_cast<uintptr_t>(global) % 16 != 0 || bytes % 16 != 0 || bytes <= 0) {
        fail(here, "a bulk prefetch of %d bytes from %p; both must be multiples of 16", bytes,
             global);
    }
    check_global(global, (size_t)bytes, here);
}

void copy_async(void *shared, const void *global, uint32_t room, uint32_t bytes, struct site here)
{
    if (reinterpret_cast<uintptr_t>(shared) % room != 0 ||
        reinterpret_cast<uintptr_t>(global) % room != 0 || bytes > room) {
        fail(here, "a copy of %u bytes of %u from %p to %p; both must be multiples of %u", bytes,
             room, global, shared, room);
    }
    touch(here);
    place_of(*machine.current->block, shared_address(shared, here), room, here);
    check_global(global, bytes, here);
    memset(shared, 0x7f, room); /* void until the copy ends */
    ASAN_POISON_MEMORY_REGION(shared, room);
    machine.current->copies.push_back(
        {static_cast<char *>(shared), static_cast<const char *>(global), room, bytes});
}

void copies_wait(struct site here)
{
    for (const struct small_copy &copy : machine.current->copies) {
        ASAN_UNPOISON_MEMORY_REGION(copy.to, copy.room_bytes);
        memset(copy.to, 0, copy.room_bytes);
        memcpy(copy.to, copy.from, copy.size_bytes);
    }
    machine.current->copies.clear();
    touch(here);
}

void event_happens(struct event event)
{
    if (event.from == nullptr) {
        memcpy(event.to, &event.pair, sizeof(event.pair));
    } else {
        ASAN_UNPOISON_MEMORY_REGION(event.to, event.size_bytes);
        memcpy(event.to, event.from, event.size_bytes);
        note(*event.block, event.to, event.size_bytes);
    }
    mbarrier_complete(event.mbarrier, *event.block, event.size_bytes);
}

/* ---- shared memory of the cluster ------------------------------------------------------------ */

uint32_t remote_address(const void *local, uint32_t rank, struct site here)
{
    const uint32_t size = cluster_size();
    if (rank >= size) {
        fail(here, "an address in block %u of a cluster of %u", rank, size);
    }
    return (rank + 1) << RANK_SHIFT | shared_address(local, here);
}

namespace
{

/* The block that an address lies in; it must be running. */
struct block &block_of(uint32_t address, struct site here)
{
    const uint32_t rank = (address >> RANK_SHIFT) - 1;
    struct cluster &cluster = *machine.current->block->cluster;
    if (address >> RANK_SHIFT == 0) {
        return *machine.current->block;
    }
    if (rank >= cluster.blocks.size()) {
        fail(here, "0x%x is no address in the cluster's shared memory", address);
    }
    struct block &block = *cluster.blocks[rank];
    if (!block.started || block.num_ended == block.num_threads) {
        fail(here, "access to the shared memory of block %u of the cluster, which %s", rank,
             block.started ? "has ended" : "may not have started");
    }
    return block;
}

} // namespace

void *remote_pointer(uint32_t address, uint32_t size_bytes, struct site here)
{
    touch(here);
    if (address % size_bytes != 0) {
        fail(here, "access of %u bytes at shared address 0x%x, which is not aligned", size_bytes,
             address);
    }
    struct block &block = block_of(address, here);
    return place_of(block, address & ((1u << RANK_SHIFT) - 1), size_bytes, here);
}

void remote_send(uint32_t address, uint64_t pair, uint32_t barrier, struct site here)
{
    char *to = static_cast<char *>(remote_pointer(address, sizeof(pair), here));
    auto *word = static_cast<uint64_t *>(remote_pointer(barrier, sizeof(uint64_t), here));
    if (address >> RANK_SHIFT != barrier >> RANK_SHIFT) {
        fail(here, "st.async to block %u and an mbarrier of block %u", address >> RANK_SHIFT,
             barrier >> RANK_SHIFT);
    }
    add_event({0, &block_of(address, here), word, to, nullptr, sizeof(pair), pair});
}

} // namespace emulate
