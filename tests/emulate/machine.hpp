/*
 * machine.hpp - the model of a GPU, inside: threads, warps, blocks, clusters and grids, and the
 * scheduler that runs them.
 *
 * A CUDA thread is a fiber. It runs until it waits: for lanes of its warp, a barrier, its cluster,
 * an mbarrier; or until the schedule, drawn from a seed, takes the turn from it, which it may where
 * kernels touch what others touch too. One host thread runs everything, so a schedule repeats.
 */
#ifndef TOPKD_EMULATE_MACHINE_HPP
#define TOPKD_EMULATE_MACHINE_HPP

#include "emulate.hpp"

#include <boost/context/fiber.hpp>

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace emulate
{

constexpr uint32_t WARP_LANES = 32, BLOCK_BARRIERS = 16, BLOCK_THREADS_MAX = 1024;

/* ---- what there is --------------------------------------------------------------------------- */

/* A small generator; same seed, same numbers. */
struct random {
    uint64_t state;

    uint64_t next();
    uint32_t below(uint32_t end); /* 0 ... end - 1 */
};

/* The device that is pretended. */
struct device {
    const char *name;
    int multiprocessors, major, minor;
    int shared_per_block, shared_per_multiprocessor;
    int cluster_blocks_max;
    int l2_bytes;
};

enum class wait : uint8_t { none, warp, barrier, cluster, mbarrier, ended };

struct warp;
struct block;
struct cluster;
struct grid;

/* A copy of one thread's to shared memory, which ends when the thread waits. */
struct small_copy {
    char *to;
    const char *from;
    uint32_t room_bytes, size_bytes; /* what it fills, of which it brings so many */
};

struct thread {
    boost::context::fiber fiber; /* where it goes on */
    struct warp *warp;
    struct block *block;
    uint32_t lane, index;
    enum wait wait;
    bool has_arrived;    /* at the cluster's barrier, not yet waited for */
    uint32_t arrived_at; /* its phase then */
    uint64_t result;     /* of the operation it waits for */
    struct site where;
    const char *what; /* it waits for, or did last */
    char *stack;
    void *fake_stack;                      /* AddressSanitizer's */
    std::vector<struct small_copy> copies; /* that it has started and not waited for */
};

/* An operation of several lanes that have not all come. */
struct gathering {
    enum warp_op op;
    uint32_t mask, arrived;
    struct site where; /* of the first */
    uint64_t value[WARP_LANES];
    uint32_t argument[WARP_LANES];
};

struct warp {
    struct block *block;
    uint32_t index;
    uint32_t ready, polling; /* lanes */
    int32_t place;           /* in the scheduler's list of ready warps, or -1 */
    std::vector<gathering> gatherings;
};

/* A barrier of a block, numbered 0 to 15. */
struct barrier {
    uint32_t arrived, expected;
    bool any;
    std::vector<thread *> waiting;
};

/* A piece of a block's shared memory; its window address is what instructions take. */
struct shared_piece {
    char *memory;
    uint32_t window, size_bytes;
};

/* What a block's dynamic shared memory held when copies last looked, and which fence was the last
 * then, for every 16 bytes: so that writes by threads are seen that no fence orders before a copy.
 */
struct shadow {
    std::vector<char> bytes;
    std::vector<uint32_t> fences;
};

struct block {
    struct cluster *cluster;
    struct grid *grid;
    uint32_t rank; /* in its cluster */
    uint3 index;
    uint32_t num_threads, num_ended;
    bool started;
    std::vector<struct shared_piece> pieces; /* the first is the dynamic one */
    std::unordered_map<const void *, void *> objects;
    struct barrier barriers[BLOCK_BARRIERS];
    uint32_t fences; /* before copies, so far */
    struct shadow shadow;
    std::vector<struct warp> warps;
    std::unique_ptr<thread[]> threads;
    uint32_t footprint_bytes; /* of shared memory, for residency */
};

struct cluster {
    std::vector<std::unique_ptr<block>> blocks;
    uint32_t arrived, phase, num_threads; /* threads: that have not ended */
    uint32_t num_ended;                   /* blocks */
    std::vector<thread *> waiting;
};

/* A launch, and how far it is. */
struct grid {
    struct launch launch;
    std::vector<uint32_t> order; /* clusters, as they will start */
    uint32_t next, num_running;  /* clusters */
    uint32_t running_max;
    std::vector<std::unique_ptr<cluster>> clusters;
    bool ended() const
    {
        return next == order.size() && num_running == 0;
    }
};

/* Something that happens by itself, in its own time. */
struct event {
    uint64_t due;
    struct block *block;
    uint64_t *mbarrier;
    char *to;
    const char *from; /* NULL: `pair` */
    uint32_t size_bytes;
    uint64_t pair;
};

/* How a run is scheduled; drawn for each. */
struct schedule {
    uint32_t burst;     /* turns a warp gets in a row, on average */
    uint32_t slice;     /* touches of shared things between switches, on average */
    uint32_t delay_max; /* turns that a copy takes */
    bool reversed;      /* lanes, from the highest */
};

struct machine {
    struct device device;
    struct random random;
    struct schedule schedule;
    std::vector<grid *> grids;
    std::vector<warp *> ready;
    std::vector<struct event> events;
    uint64_t turn, soonest; /* soonest: no event is due before */
    uint64_t seed;          /* that the schedules are drawn from */
    uint64_t case_number;   /* of what is tested */
    uint32_t idle_rounds;
    thread *current;
    int32_t slice_left;
    void (*meddle)(void *context); /* NULL, or what a test does wherever threads may switch */
    void *meddle_context;
};

extern struct machine machine;

/* ---- devices.cpp ----------------------------------------------------------------------------- */

/* Pretends the device that the environment names, unless one is pretended. */
void device_begin();

/* ---- scheduler.cpp --------------------------------------------------------------------------- */

/* Runs grids side by side until one of them ends. */
void run(std::vector<grid *> &grids);

/* Fills a grid from its launch. */
void grid_begin(struct grid &grid, const struct launch &launch);

/* The current thread gives its turn away until somebody calls wake(). */
void suspend(enum wait wait, const char *what, struct site here);
void wake(struct thread &thread);
void wake_polling(struct block &block);

/* ---- fibers.cpp ------------------------------------------------------------------------------ */

void thread_begin(struct thread &thread);  /* its first turn will enter the kernel */
void thread_resume(struct thread &thread); /* from the scheduler, until it suspends */
void thread_suspend(struct thread &thread);

/* ---- shared.cpp ------------------------------------------------------------------------------ */

void shared_begin(struct block &block, uint32_t dynamic_bytes);
void shared_end(struct block &block);
void event_happens(struct event event);

/* ---- barriers.cpp ---------------------------------------------------------------------------- */

void cluster_check(struct cluster &cluster); /* after a thread ended, or arrived */
void mbarrier_complete(uint64_t *barrier, struct block &block, uint32_t bytes);

/* ---- report.cpp ------------------------------------------------------------------------------ */

/* Prints what is wrong, who did it and where everybody is, and ends the program. */
[[noreturn]] void fail(struct site here, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

} // namespace emulate

#endif
