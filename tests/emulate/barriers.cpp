/* Barriers: of a block, of a cluster, and mbarriers in shared memory. */
#include "machine.hpp"

#include <cstring>

namespace emulate
{

bool barrier_sync(uint32_t number, uint32_t threads, bool here, struct site where)
{
    struct thread &thread = *machine.current;
    struct block &block = *thread.block;
    struct barrier &barrier = block.barriers[number];
    const uint32_t expected = threads != 0 ? threads : block.num_threads;
    if (expected > block.num_threads || (threads != 0 && threads % WARP_LANES != 0)) {
        fail(where, "barrier %u for %u threads in a block of %u; whole warps of it can meet",
             number, expected, block.num_threads);
    }
    if (barrier.arrived > 0 && barrier.expected != expected) {
        fail(where, "barrier %u for %u threads, but %u wait there for %u at %s:%d", number,
             expected, barrier.arrived, barrier.expected, barrier.waiting[0]->where.file,
             barrier.waiting[0]->where.line);
    }
    barrier.any = (barrier.arrived > 0 && barrier.any) || here;
    barrier.expected = expected;
    barrier.arrived++;
    if (barrier.arrived < expected) {
        barrier.waiting.push_back(&thread);
        suspend(wait::barrier, "a barrier of the block", where);
        return thread.result != 0;
    }
    for (struct thread *other : barrier.waiting) {
        other->result = barrier.any ? 1 : 0;
        wake(*other);
    }
    barrier.waiting.clear();
    barrier.arrived = 0;
    const bool any = barrier.any;
    touch(where); /* the barrier may be in use again afterwards */
    return any;
}

/* ---- clusters -------------------------------------------------------------------------------- */

uint32_t cluster_rank()
{
    return machine.current->block->rank;
}

uint32_t cluster_size()
{
    return (uint32_t)machine.current->block->cluster->blocks.size();
}

void cluster_check(struct cluster &cluster)
{
    if (cluster.arrived == 0 || cluster.arrived < cluster.num_threads) {
        return;
    }
    cluster.arrived = 0;
    cluster.phase++;
    for (struct thread *thread : cluster.waiting) {
        wake(*thread);
    }
    cluster.waiting.clear();
}

void cluster_arrive(struct site here)
{
    struct thread &thread = *machine.current;
    struct cluster &cluster = *thread.block->cluster;
    if (thread.has_arrived) {
        fail(here, "barrier.cluster.arrive again before barrier.cluster.wait");
    }
    thread.has_arrived = true;
    thread.arrived_at = cluster.phase;
    cluster.arrived++;
    cluster_check(cluster);
    touch(here);
}

void cluster_wait(struct site here)
{
    struct thread &thread = *machine.current;
    struct cluster &cluster = *thread.block->cluster;
    if (!thread.has_arrived) {
        fail(here, "barrier.cluster.wait without barrier.cluster.arrive");
    }
    thread.has_arrived = false;
    if (cluster.phase == thread.arrived_at) {
        cluster.waiting.push_back(&thread);
        suspend(wait::cluster, "the barrier of the cluster", here);
    }
}

/* ---- mbarriers ------------------------------------------------------------------------------- */

namespace
{

constexpr uint64_t MARK = 0x5b1; /* of an initialised one, in 11 bits */
constexpr int32_t BYTES_ZERO = 1 << 21;

/* The 64 bits in shared memory. */
struct mbarrier_word {
    uint64_t phase : 1, arrivals : 15, pending : 15, bytes : 22, mark : 11;
};
static_assert(sizeof(struct mbarrier_word) == sizeof(uint64_t), "an mbarrier has 64 bits");

struct mbarrier_word word_of(const uint64_t *barrier, struct site here)
{
    struct mbarrier_word word;
    if (reinterpret_cast<uintptr_t>(barrier) % 8 != 0) {
        fail(here, "an mbarrier at %p; it must be aligned to 8 bytes", (const void *)barrier);
    }
    memcpy(&word, barrier, sizeof(word));
    if (word.mark != MARK) {
        fail(here, "an mbarrier at %p that was not initialised, or was overwritten",
             (const void *)barrier);
    }
    return word;
}

void put(uint64_t *barrier, const struct mbarrier_word &word)
{
    memcpy(barrier, &word, sizeof(word));
}

/* The phase ends when all have arrived and all bytes are there. */
void complete(struct mbarrier_word &word, struct block &block)
{
    if (word.pending == 0 && word.bytes == BYTES_ZERO) {
        word.phase ^= 1;
        word.pending = word.arrivals;
        wake_polling(block);
        machine.idle_rounds = 0;
    }
}

} // namespace

void mbarrier_init(uint64_t *barrier, uint32_t arrivals, struct site here)
{
    shared_address(barrier, here);
    struct mbarrier_word word = {};
    word.mark = MARK;
    word.arrivals = word.pending = arrivals & 0x7fffu;
    word.bytes = BYTES_ZERO;
    put(barrier, word);
}

void mbarrier_arrive(uint64_t *barrier, uint32_t bytes, struct site here)
{
    shared_address(barrier, here);
    touch(here);
    struct mbarrier_word word = word_of(barrier, here);
    if (word.pending == 0) {
        fail(here, "more arrivals at an mbarrier than the %u of its phase",
             (uint32_t)word.arrivals);
    }
    word.pending--;
    word.bytes = (word.bytes + bytes) & 0x3fffffu;
    complete(word, *machine.current->block);
    put(barrier, word);
}

void mbarrier_complete(uint64_t *barrier, struct block &block, uint32_t bytes)
{
    struct mbarrier_word word = word_of(barrier, {});
    word.bytes = (word.bytes - bytes) & 0x3fffffu;
    complete(word, block);
    put(barrier, word);
}

bool mbarrier_try_wait(uint64_t *barrier, uint32_t parity, struct site here)
{
    shared_address(barrier, here);
    if (word_of(barrier, here).phase != (parity & 1u)) {
        return true;
    }
    suspend(wait::mbarrier, "an mbarrier", here);
    return word_of(barrier, here).phase != (parity & 1u);
}

} // namespace emulate
