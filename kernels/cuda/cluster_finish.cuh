/*
 * cluster_finish.cuh - the end of a row in the cluster family: the first block takes the entries of
 * all, finds the cut among them and writes the result, in position order or by value.
 */
#ifndef TOPKSEL_CUDA_CLUSTER_FINISH_CUH
#define TOPKSEL_CUDA_CLUSTER_FINISH_CUH

#include "cluster_exchange.cuh"

namespace
{

#if __CUDA_ARCH__ >= 900
/*
 * Copies `count` entries of every lane's block but the first to `before` and on here, 32 entries a
 * step and warp: load(block, i) starts, and its value goes to store(to, value) once several are
 * under way.
 */
template <int THREADS, class Load, class Store>
__device__ __forceinline__ void pull(uint32_t count, uint32_t before, const Load &load,
                                     const Store &store)
{
    constexpr uint32_t WARPS = THREADS / 32, AHEAD = 6; /* choice: loads in flight a thread */
    const uint32_t steps = lane_index() == 0 ? 0 : (count + 31) / 32;
    const uint32_t steps_end = warp_prefix(steps);
    const uint32_t num_steps = __shfl_sync(WARP_ALL, steps_end, 31);
    for (uint32_t first = warp_index(); first < num_steps; first += AHEAD * WARPS) {
        uint2 entry[AHEAD];
        uint32_t to[AHEAD];
#pragma unroll
        for (uint32_t n = 0; n < AHEAD; n++) {
            const uint32_t step = first + n * WARPS;
            to[n] = 0xffffffffu;
            entry[n] = make_uint2(0, 0);
            if (step < num_steps) {
                const int block = __popc(__ballot_sync(WARP_ALL, steps_end <= step));
                const uint32_t begin = __shfl_sync(WARP_ALL, steps_end - steps, block);
                const uint32_t i = (step - begin) * 32 + lane_index();
                const uint32_t its_before = __shfl_sync(WARP_ALL, before, block);
                if (i < __shfl_sync(WARP_ALL, count, block)) {
                    to[n] = its_before + i;
                    entry[n] = load((uint32_t)block, i);
                }
            }
        }
#pragma unroll
        for (uint32_t n = 0; n < AHEAD; n++) {
            if (to[n] != 0xffffffffu) {
                store(to[n], entry[n]);
            }
        }
    }
}

/* Sends a block's list to where it follows those of the blocks before, in the first block. */
template <int THREADS>
__device__ __forceinline__ void push_list(const struct standing &all)
{
    auto &shared = cluster_state();
    const int rank = (int)cluster_rank();
    const uint32_t count = __shfl_sync(WARP_ALL, all.above, rank);
    const uint32_t before = __shfl_sync(WARP_ALL, all.above_before, rank);
    const uint32_t to = remote_address(&shared.list[before], 0);
    const uint32_t barrier = remote_address(&shared.taken, 0);
    for (uint32_t i = threadIdx.x; i < count; i += THREADS) {
        remote_send(to + i * (uint32_t)sizeof(uint2), shared.list[i], barrier);
    }
}

/* Waits in the first block until its list has the entries of all. `phase` is that of `taken`. */
__device__ __forceinline__ void wait_lists(const struct standing &all, uint32_t &phase)
{
    auto &shared = cluster_state();
    if (threadIdx.x == 0) { /* the first lane knows of this block */
        mbarrier_arrive_expect(&shared.taken,
                               (all.num_above - all.above) * (uint32_t)sizeof(uint2));
    }
    ring_wait(&shared.taken, phase);
    fence_acquire_shared();
    phase ^= 1;
}

/* Copies the positions equal to the boundary: the first `wanted`. */
template <int THREADS>
__device__ __forceinline__ void pull_equal(const struct standing &all, uint32_t wanted)
{
    auto &shared = cluster_state();
    pull<THREADS>(
        min(all.equal, wanted - min(wanted, all.equal_before)), all.equal_before,
        [&](uint32_t block, uint32_t i) {
            return make_uint2(remote_load(remote_address(&shared.equal[i], block)), 0);
        },
        [&](uint32_t to, uint2 entry) { shared.equal[to] = entry.x; });
}
#endif

/* How many of count ascending positions are below `position`. */
template <class At>
__device__ __forceinline__ uint32_t count_below(uint32_t count, uint32_t position, const At &at)
{
    uint32_t low = 0, high = count;
    while (low < high) {
        const uint32_t middle = (low + high) / 2;
        if (at(middle) < position) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* Entries of a thread. */
#ifndef TAKEN_FEW
#define TAKEN_FEW 7  /* the usual boundary admits 1500 to 4000 */
#define TAKEN_MORE 9 /* and seldom more than this */
#endif

/*
 * The entries of all lists in the registers of the first block: thread t holds those from MAX * t
 * on, so that position order is (thread, j), and a branch for each is spared. Key 0: none.
 */
template <int THREADS, uint32_t MAX>
struct taken {
    uint32_t key[MAX], position[MAX];
};

/* Takes the `count` entries of the list. Keys are right from `low` on. */
template <int THREADS, uint32_t MAX>
__device__ __forceinline__ void take_list(uint32_t count, uint32_t low,
                                          struct taken<THREADS, MAX> &taken)
{
    static_assert(MAX % 2 == 1, "lanes meet in no bank");
    auto &shared = cluster_state();
    const uint32_t first = threadIdx.x * MAX;
    const bool positive = low > KEY_ZERO;
#pragma unroll
    for (uint32_t j = 0; j < MAX; j++) { /* no branch an entry: what is none is read, too */
        const uint2 entry =
            shared.list[MAX * THREADS > LIST ? min(first + j, LIST - 1u) : first + j];
        taken.key[j] = entry.x;
        taken.position[j] = entry.y;
    }
#pragma unroll
    for (uint32_t j = 0; j < MAX; j++) {
        const uint32_t bits = taken.key[j];
        const uint32_t key = positive ? bits | 0x80000000u : key_of(__uint_as_float(bits));
        taken.key[j] = first + j < count ? key : 0;
    }
}

/* Entries in registers as a source of keys (rank.cuh). */
template <int THREADS, uint32_t MAX>
struct taken_source {
    const struct taken<THREADS, MAX> &taken;

    template <class Visit>
    __device__ __forceinline__ void each_in(uint32_t low, uint32_t high, const Visit &visit) const
    {
#pragma unroll
        for (uint32_t j = 0; j < MAX; j++) {
            const uint32_t offset = taken.key[j] - low; /* wraps to a large one below low */
            if (offset <= high - low) {
                visit(offset);
            }
        }
    }
};

/* A thread's first place of `own` each, in the order of threads. One barrier; `counts` is free at
 * the next. */
template <int THREADS>
__device__ __forceinline__ uint32_t first_place(uint32_t own, uint32_t *counts)
{
    const uint32_t prefix = warp_prefix(own);
    if (lane_index() == 31) {
        counts[warp_index()] = prefix;
    }
    block_sync<THREADS>();
    const uint32_t other = lane_index() < THREADS / 32 ? counts[lane_index()] : 0;
    return __reduce_add_sync(WARP_ALL, lane_index() < warp_index() ? other : 0) + prefix - own;
}

/* Bit j: entry j of this thread is selected. */
template <int THREADS, uint32_t MAX>
__device__ __forceinline__ uint32_t marks_of(const struct taken<THREADS, MAX> &taken,
                                             const struct rank_cut &cut)
{
    uint32_t marks = 0;
#pragma unroll
    for (uint32_t j = 0; j < MAX; j++) {
        marks |= taken.key[j] >= cut.key ? 1u << j : 0u; /* cut.key > 0 */
    }
    if (cut.all) {
        return marks;
    }
    uint32_t equal = 0; /* of those equal to the cut, the first are */
#pragma unroll
    for (uint32_t j = 0; j < MAX; j++) {
        equal |= taken.key[j] == cut.key ? 1u << j : 0u;
    }
    const uint32_t before =
        first_place<THREADS>((uint32_t)__popc(equal), cluster_state().warp_counts[1]);
    for (uint32_t take = cut.take - min(cut.take, before); take > 0 && equal != 0; take--) {
        equal &= equal - 1;
    }
    return marks & ~equal;
}

#define LOOK_UPS 4 /* choice: pages a thread asks for at once; all of K 2048 */

/* A result that is put together: positions in their order, and their keys where more is written. */
struct cluster_result {
    uint32_t position[TOPK_K_FAST_MAX];
    uint32_t key[TOPK_K_FAST_MAX];
};

/* It lies over the list's end. */
__device__ __forceinline__ struct cluster_result &cluster_result()
{
    static_assert(sizeof(struct cluster_result) == TOPK_K_FAST_MAX * sizeof(uint2), "as entries");
    return *reinterpret_cast<struct cluster_result *>(
        &cluster_state().list[LIST - TOPK_K_FAST_MAX]);
}

/* Writes a result that is more than positions: pages, values, or sorted by value. All threads call,
 * after a barrier. */
template <int THREADS>
__device__ __noinline__ void write_more(const struct select_params &params, uint32_t k)
{
    struct sink sink = cluster_state().sink;
    const struct cluster_result &result = cluster_result();
    if (params.by_value) {
        uint64_t *entries = sort_entries(params);
        for (uint32_t i = threadIdx.x; i < k; i += THREADS) {
            entries[i] = sort_entry(result.key[i], result.position[i]);
        }
        block_sync<THREADS>();
        sort_descending<THREADS>(entries, k);
        sink_put_sorted<THREADS>(sink, entries, k);
        return;
    }
    if (sink.values != nullptr) {
        sink_put_scores<THREADS>(
            sink, k, [&](uint32_t i) { return result.position[i]; },
            [&](uint32_t i) { return __uint_as_float(key_to_bits(result.key[i])); });
        sink.values = nullptr;
    }
    sink_put_staged<THREADS, LOOK_UPS>(sink, result.position, k);
}

/* Puts the marked entries together, and writes them. */
template <int THREADS, uint32_t MAX>
__device__ __forceinline__ void write_taken(const struct select_params &params,
                                            const struct taken<THREADS, MAX> &taken, uint32_t marks,
                                            uint32_t k)
{
    auto &shared = cluster_state();
    struct cluster_result &result = cluster_result();
    uint32_t slot = first_place<THREADS>((uint32_t)__popc(marks), shared.warp_counts[0]);
    if (params.by_value || !sink_adds(shared.sink)) {
#pragma unroll
        for (uint32_t j = 0; j < MAX; j++) {
            if ((marks >> j & 1u) != 0) {
                result.position[slot] = taken.position[j];
                result.key[slot++] = taken.key[j];
            }
        }
        block_sync<THREADS>();
        write_more<THREADS>(params, k);
        return;
    }
#pragma unroll
    for (uint32_t j = 0; j < MAX; j++) {
        if ((marks >> j & 1u) != 0) {
            result.position[slot++] = taken.position[j];
        }
    }
    block_sync<THREADS>();
    struct sink sink = {};
    sink.indices = shared.sink.indices;
    sink.offset = shared.sink.offset;
    sink_put_staged<THREADS>(sink, result.position, k);
}

/* The cut that selects `k` of the entries in registers, all of which are `low` or more. */
template <int THREADS, uint32_t MAX>
__device__ __forceinline__ struct rank_cut cut_taken(const struct taken<THREADS, MAX> &taken,
                                                     uint32_t low, uint32_t k)
{
    auto &shared = cluster_state();
    const uint32_t shift = first_shift(low);
#pragma unroll
    for (uint32_t j = 0; j < MAX; j++) { /* no branch a score: what is none has a bin of its own */
        const uint32_t offset = taken.key[j] - low;
        const uint32_t bin = min(offset >> shift, TOPK_BINS - 1u);
        atomicAdd(&shared.bins[taken.key[j] >= low ? bin : TOPK_BINS], 1u);
    }
    block_sync<THREADS>();
    const struct rank_bin found = scan_rank<THREADS>(shared.bins, k);
    clear_bins<THREADS>(shared.bins);
    const uint32_t need = k - found.above;
    low += found.bin << shift;
    if (found.count == need) {
        const struct rank_cut cut = {low, need, true};
        return cut;
    }
    if (found.bin < TOPK_BINS - 1 && is_one_score(low, shift)) {
        const struct rank_cut cut = {low, need, false};
        return cut;
    }
    const uint32_t width = (1u << shift) - 1u;
    const uint32_t high = found.bin < TOPK_BINS - 1 ? low + min(KEY_MAX - low, width) : KEY_MAX;
    if (found.count > RANK_LIST) {
        const struct taken_source<THREADS, MAX> source = {
            taken
        };
        uint32_t below = 0;
        block_sync<THREADS>(); /* the bins are clear */
        return find_cut<THREADS, true>(source, low, high, range_shift(high - low), need,
                                       shared.bins, shared.rank, &below);
    }
    uint32_t in = 0;
#pragma unroll
    for (uint32_t j = 0; j < MAX; j++) {
        in |= taken.key[j] - low <= high - low ? 1u << j : 0u;
    }
    for (; in != 0; in &= in - 1) { /* few: read once more, for registers have no index */
        const uint32_t j = (uint32_t)__ffs((int)in) - 1;
        const float score = __uint_as_float(shared.list[threadIdx.x * MAX + j].x);
        shared.rank.list[atomicAdd(&shared.rank.list_count, 1u)] = key_of(score);
    }
    block_sync<THREADS>();
    if (threadIdx.x == 0) {
        shared.rank.list_count = 0;
    }
    return rank_list(shared.rank.list, found.count, need);
}

#if __CUDA_ARCH__ >= 900
/* Selects K of the `count` in the list by way of registers, and writes them. */
template <int THREADS, uint32_t MAX>
__device__ __forceinline__ void finish_taken(const struct select_params &params, uint32_t count,
                                             uint32_t low, uint32_t k)
{
    struct taken<THREADS, MAX> taken;
    take_list<THREADS, MAX>(count, low, taken);
    const struct rank_cut cut = cut_taken<THREADS, MAX>(taken, low, k);
    write_taken<THREADS, MAX>(params, taken, marks_of<THREADS, MAX>(taken, cut), k);
}

/* The same by as many registers as it takes: what is asked of each of a thread's entries costs
 * where there is none as well. */
template <int THREADS>
__device__ __forceinline__ void finish_list(const struct select_params &params, uint32_t count,
                                            uint32_t low, uint32_t k)
{
    constexpr uint32_t ALL = LIST / THREADS + 1;
    if (count <= THREADS * TAKEN_FEW) {
        finish_taken<THREADS, TAKEN_FEW>(params, count, low, k);
    } else if (count <= THREADS * TAKEN_MORE) {
        finish_taken<THREADS, TAKEN_MORE>(params, count, low, k);
    } else {
        finish_taken<THREADS, ALL>(params, count, low, k);
    }
}
#endif

/*
 * Fewer than K are above the boundary: all of the `count` in the list, and the first of those equal
 * to it, merged by position.
 */
template <int THREADS>
__device__ __noinline__ void finish_merged(const struct select_params &params, uint32_t count,
                                           uint32_t key, uint32_t k)
{
    static_assert(LIST >= 2 * (int)TOPK_K_FAST_MAX, "the result lies behind the entries");
    auto &shared = cluster_state();
    struct cluster_result &result = cluster_result();
    const uint32_t take = k - count;
    for (uint32_t i = threadIdx.x; i < count; i += THREADS) {
        const uint2 entry = shared.list[i];
        const uint32_t before =
            count_below(take, entry.y, [&](uint32_t at) { return shared.equal[at]; });
        result.position[i + before] = entry.y;
        result.key[i + before] = key_of(__uint_as_float(entry.x));
    }
    for (uint32_t i = threadIdx.x; i < take; i += THREADS) {
        const uint32_t position = shared.equal[i];
        const uint32_t before =
            count_below(count, position, [&](uint32_t at) { return shared.list[at].y; });
        result.position[i + before] = position;
        result.key[i + before] = key;
    }
    block_sync<THREADS>();
    write_more<THREADS>(params, k);
}

} // namespace

#endif
