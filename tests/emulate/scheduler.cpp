/* Who runs next: the schedule, blocks that start and end, and the end of all progress. */
#include "machine.hpp"

#include <algorithm>

namespace emulate
{

struct machine machine;

uint64_t random::next()
{
    state += 0x9e3779b97f4a7c15ull; /* splitmix64 */
    uint64_t mixed = state;
    mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9ull;
    mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111ebull;
    return mixed ^ mixed >> 31;
}

uint32_t random::below(uint32_t end)
{
    return (uint32_t)((next() >> 32) * end >> 32);
}

namespace
{

/* Rounds in which every polling thread looked again in vain, with nothing else left to run. */
constexpr uint32_t IDLE_ROUNDS_MAX = 3;

/* A number near `mean`, at least 1. */
int32_t about(uint32_t mean)
{
    return (int32_t)(1 + machine.random.below(2 * mean));
}

void make_ready(struct warp &warp, uint32_t lanes)
{
    if (warp.ready == 0) {
        warp.place = (int32_t)machine.ready.size();
        machine.ready.push_back(&warp);
    }
    warp.ready |= lanes;
}

void leave_ready(struct warp &warp)
{
    struct warp *last = machine.ready.back();
    machine.ready[(size_t)warp.place] = last;
    last->place = warp.place;
    machine.ready.pop_back();
    warp.place = -1;
}

/* Very different ones: a warp that runs far ahead finds other faults than one of many. */
void draw_schedule()
{
    static const uint32_t bursts[] = {1, 4, 40, 1000}, slices[] = {2, 30, 400, 5000};
    static const uint32_t delays[] = {1, 50, 3000, 200000};
    struct schedule &schedule = machine.schedule;
    schedule.burst = bursts[machine.random.below(4)];
    schedule.slice = slices[machine.random.below(4)];
    schedule.delay_max = delays[machine.random.below(4)];
    schedule.reversed = machine.random.below(4) == 0;
}

void block_start(struct grid &grid, struct cluster &cluster, uint32_t cluster_index, uint32_t rank)
{
    struct block &block = *cluster.blocks[rank];
    block.cluster = &cluster;
    block.grid = &grid;
    block.rank = rank;
    block.index = {cluster_index * grid.launch.cluster_blocks + rank, 0, 0};
    block.num_threads = grid.launch.block.x;
    shared_begin(block, grid.launch.dynamic_bytes);
    block.threads = std::make_unique<thread[]>(block.num_threads);
    block.warps.resize((block.num_threads + WARP_LANES - 1) / WARP_LANES);
    for (uint32_t i = 0; i < block.num_threads; i++) {
        struct thread &thread = block.threads[i];
        struct warp &warp = block.warps[i / WARP_LANES];
        warp.block = &block;
        warp.index = i / WARP_LANES;
        thread.warp = &warp;
        thread.block = &block;
        thread.lane = i % WARP_LANES;
        thread.index = i;
        thread.what = "has not started";
        thread_begin(thread);
        make_ready(warp, 1u << thread.lane);
    }
}

void start_clusters(struct grid &grid)
{
    while (grid.next < grid.order.size() && grid.num_running < grid.running_max) {
        const uint32_t index = grid.order[grid.next++];
        grid.num_running++;
        auto &slot = grid.clusters[index];
        slot = std::make_unique<cluster>();
        slot->num_threads = grid.launch.cluster_blocks * grid.launch.block.x;
        for (uint32_t rank = 0; rank < grid.launch.cluster_blocks; rank++) {
            slot->blocks.push_back(std::make_unique<block>());
        }
        for (uint32_t rank = 0; rank < grid.launch.cluster_blocks; rank++) {
            block_start(grid, *slot, index, rank);
        }
    }
}

/* False when its cluster has ended, and is gone. */
bool thread_ended(struct thread &thread)
{
    struct block &block = *thread.block;
    struct cluster &cluster = *block.cluster;
    for (const struct gathering &one : thread.warp->gatherings) {
        if ((one.mask >> thread.lane & 1u) != 0) {
            fail(one.where, "lane %u of thread %u's warp has ended, but others wait for it",
                 thread.lane, thread.index);
        }
    }
    cluster.num_threads--;
    block.num_ended++;
    if (block.num_ended == block.num_threads) {
        shared_end(block);
        cluster.num_ended++;
    }
    if (cluster.num_ended < cluster.blocks.size()) {
        cluster_check(cluster);
        return true;
    }
    struct grid &grid = *block.grid;
    grid.num_running--;
    grid.clusters[block.index.x / grid.launch.cluster_blocks].reset();
    start_clusters(grid);
    return false;
}

/* Makes what is due happen; with `jump` time goes on to the next event first. */
void pass_time(bool jump)
{
    if (jump) {
        machine.turn = std::max(machine.turn, machine.soonest);
    }
    for (size_t i = 0; i < machine.events.size();) {
        if (machine.events[i].due > machine.turn) {
            i++;
            continue;
        }
        struct event event = machine.events[i];
        machine.events[i] = machine.events.back();
        machine.events.pop_back();
        event_happens(event);
    }
    machine.soonest = UINT64_MAX;
    for (const struct event &event : machine.events) {
        machine.soonest = std::min(machine.soonest, event.due);
    }
}

/* Nobody is ready: an event, a look again by those who poll, or the end. */
void go_on()
{
    if (!machine.events.empty()) {
        pass_time(true);
        return;
    }
    if (machine.idle_rounds++ == IDLE_ROUNDS_MAX) {
        fail({}, "deadlock: nobody can go on");
    }
    for (struct grid *grid : machine.grids) {
        for (auto &cluster : grid->clusters) {
            for (size_t i = 0; cluster != nullptr && i < cluster->blocks.size(); i++) {
                wake_polling(*cluster->blocks[i]);
            }
        }
    }
    if (machine.ready.empty()) {
        fail({}, "deadlock: nobody can go on");
    }
}

/* One turn of a lane of this warp; false when the warp is gone. */
bool turn_of(struct warp &warp)
{
    const uint32_t lane = machine.schedule.reversed ? 31u - (uint32_t)__builtin_clz(warp.ready)
                                                    : (uint32_t)__builtin_ctz(warp.ready);
    struct thread &thread = warp.block->threads[warp.index * WARP_LANES + lane];
    warp.ready &= ~(1u << lane);
    const bool emptied = warp.ready == 0;
    thread.block->started = true;
    machine.turn++;
    if (emptied) {
        leave_ready(warp);
    }
    thread_resume(thread);
    if (thread.wait != wait::mbarrier) {
        machine.idle_rounds = 0;
    }
    if (thread.wait == wait::ended) {
        return thread_ended(thread);
    }
    if (thread.wait == wait::none) {
        make_ready(warp, 1u << lane);
    }
    return true;
}

void meddle()
{
    if (machine.meddle != nullptr) {
        machine.meddle(machine.meddle_context);
    }
}

} // namespace

void suspend(enum wait wait, const char *what, struct site here)
{
    meddle();
    struct thread &thread = *machine.current;
    thread.wait = wait;
    thread.what = what;
    thread.where = here;
    if (wait == wait::mbarrier) {
        thread.warp->polling |= 1u << thread.lane;
    }
    thread_suspend(thread);
}

void wake(struct thread &thread)
{
    thread.wait = wait::none;
    make_ready(*thread.warp, 1u << thread.lane);
}

void wake_polling(struct block &block)
{
    for (struct warp &warp : block.warps) {
        if (warp.polling != 0) {
            make_ready(warp, warp.polling);
            warp.polling = 0;
        }
    }
}

void touch(struct site here)
{
    meddle();
    if (--machine.slice_left <= 0) {
        machine.slice_left = about(machine.schedule.slice);
        suspend(wait::none, "was interrupted", here);
    }
}

void grid_begin(struct grid &grid, const struct launch &launch)
{
    grid.launch = launch;
    const uint32_t num_clusters = launch.grid.x / launch.cluster_blocks;
    grid.order.resize(num_clusters);
    grid.clusters.resize(num_clusters);
    for (uint32_t i = 0; i < num_clusters; i++) {
        grid.order[i] = i;
    }
    if (machine.random.below(2) == 0) { /* in order, mostly, on a device; nothing promises it */
        for (uint32_t i = num_clusters; i > 1; i--) {
            std::swap(grid.order[i - 1], grid.order[machine.random.below(i)]);
        }
    }
    /* As many as the device holds, or fewer: other work may have the rest of it. */
    const uint32_t each = launch.dynamic_bytes + (1u << 10); /* a kilobyte is the system's */
    uint32_t blocks = (uint32_t)machine.device.shared_per_multiprocessor / each;
    blocks = std::min(blocks, 2048u / std::max(launch.block.x, 1u));
    blocks = std::max(blocks, 1u) * (uint32_t)machine.device.multiprocessors;
    const uint32_t most = std::max(std::min(blocks / launch.cluster_blocks, num_clusters), 1u);
    grid.running_max = machine.random.below(2) == 0 ? most : 1 + machine.random.below(most);
    grid.next = grid.num_running = 0;
}

void run(std::vector<grid *> &grids)
{
    machine.grids = grids;
    draw_schedule();
    for (struct grid *grid : grids) {
        start_clusters(*grid);
    }
    int32_t burst_left = 0;
    struct warp *warp = nullptr;
    for (;;) {
        for (const struct grid *grid : grids) {
            if (grid->ended()) {
                machine.grids.clear();
                return;
            }
        }
        if (machine.soonest <= machine.turn) {
            pass_time(false);
        }
        while (machine.ready.empty()) {
            go_on();
        }
        if (warp == nullptr || burst_left-- <= 0 || warp->ready == 0) {
            warp = machine.ready[machine.random.below((uint32_t)machine.ready.size())];
            burst_left = about(machine.schedule.burst);
        }
        warp = turn_of(*warp) ? warp : nullptr;
    }
}

} // namespace emulate
