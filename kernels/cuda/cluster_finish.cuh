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

/* The list as a source of keys (rank.cuh). */
template <int THREADS>
struct list_source {
    const uint2 *list;
    uint32_t count;

    template <class Visit>
    __device__ __forceinline__ void each_in(uint32_t low, uint32_t high, const Visit &visit) const
    {
#pragma unroll 4
        for (uint32_t i = threadIdx.x; i < count; i += THREADS) {
            const uint32_t key = key_of(__uint_as_float(list[i].x));
            if (key >= low && key <= high) {
                visit(key - low);
            }
        }
    }
};

template <int THREADS>
__device__ __forceinline__ constexpr bool has_score_keys(const struct list_source<THREADS> &)
{
    return true;
}

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

/*
 * The entries of all lists in the registers of the first block: warp w holds 32 * (w * each + j)
 * and the 31 behind as j, below `each`, so that position order is (warp, j, lane). Key 0: none.
 */
#ifndef TAKEN_ENTRIES
#define TAKEN_FEW 4096     /* the usual boundary admits 1500 to 4000 */
#define TAKEN_ENTRIES 6144 /* and seldom more than this */
#endif

template <int THREADS, uint32_t MAX>
struct taken {
    uint32_t key[MAX], position[MAX];
    uint32_t each;
};

/* Takes the `count` entries of the list. Keys are right from `low` on. */
template <int THREADS, uint32_t MAX>
__device__ __forceinline__ void take_list(uint32_t count, uint32_t low,
                                          struct taken<THREADS, MAX> &taken)
{
    auto &shared = cluster_state();
    taken.each = (count + THREADS - 1) / THREADS;
    const uint32_t first = warp_index() * taken.each * 32 + lane_index();
    const bool positive = low > KEY_ZERO;
#pragma unroll
    for (uint32_t j = 0; j < MAX; j++) {
        taken.key[j] = taken.position[j] = 0;
        if (j < taken.each && first + 32 * j < count) {
            const uint2 entry = shared.list[first + 32 * j];
            taken.key[j] = positive ? entry.x | 0x80000000u : key_of(__uint_as_float(entry.x));
            taken.position[j] = entry.y;
        }
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
            if (j < taken.each) {
                const uint32_t offset = taken.key[j] - low; /* wraps to a large one below low */
                if (offset <= high - low) {
                    visit(offset);
                }
            }
        }
    }
};

/* A count of each warp summed over the warps before. One barrier; `counts` is free at the next. */
template <int THREADS>
__device__ __forceinline__ uint32_t sum_before(uint32_t count, uint32_t *counts)
{
    if (lane_index() == 0) {
        counts[warp_index()] = count;
    }
    block_sync<THREADS>();
    const uint32_t other = lane_index() < THREADS / 32 ? counts[lane_index()] : 0;
    return __reduce_add_sync(WARP_ALL, lane_index() < warp_index() ? other : 0);
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
        equal += (uint32_t)__popc(__ballot_sync(WARP_ALL, taken.key[j] == cut.key));
    }
    uint32_t rank = sum_before<THREADS>(equal, cluster_state().warp_counts[1]);
#pragma unroll
    for (uint32_t j = 0; j < MAX; j++) {
        const bool same = taken.key[j] == cut.key;
        const uint32_t lanes = __ballot_sync(WARP_ALL, same);
        if (same && rank + (uint32_t)__popc(lanes & lanes_below()) >= cut.take) {
            marks &= ~(1u << j);
        }
        rank += (uint32_t)__popc(lanes);
    }
    return marks;
}

#define LOOK_UPS 4 /* choice: pages a thread asks for at once; all of K 2048 */

/* Writes what stands in the list, selected and in position order: pages, offsets, values, or sorted
 * by value. All threads call, after a barrier. */
template <int THREADS>
__device__ __noinline__ void write_list(const struct select_params &params, uint32_t k)
{
    auto &shared = cluster_state();
    struct sink sink = shared.sink;
    if (!params.by_value) {
        const auto position_of = [&](uint32_t i) { return shared.list[i].y; };
        if (sink.values != nullptr) {
            sink_put_scores<THREADS>(sink, k, position_of,
                                     [&](uint32_t i) { return __uint_as_float(shared.list[i].x); });
            sink.values = nullptr;
        }
        sink_put_batches<THREADS, LOOK_UPS>(sink, k, position_of);
        return;
    }
    uint64_t *entries = sort_entries(params);
    for (uint32_t i = threadIdx.x; i < k; i += THREADS) {
        const uint2 entry = shared.list[i];
        entries[i] = sort_entry(key_of(__uint_as_float(entry.x)), entry.y);
    }
    block_sync<THREADS>();
    sort_descending<THREADS>(entries, k);
    sink_put_sorted<THREADS>(sink, entries, k);
}

/* The value of an entry: the very bits of its score, for which zeros and NaN are looked up. */
__device__ __forceinline__ float value_of(const struct sink &sink, uint32_t key, uint32_t position)
{
    const float value = __uint_as_float(key_to_bits(key));
    return fabsf(value) > 0.0f ? value : score_value(sink.scores[min(position, sink.last)]);
}

/* Writes the marked entries: at once, where no page is to be looked up and no order to be made. */
template <int THREADS, uint32_t MAX>
__device__ __forceinline__ void write_taken(const struct select_params &params,
                                            const struct taken<THREADS, MAX> &taken, uint32_t marks,
                                            uint32_t k)
{
    auto &shared = cluster_state();
    const uint32_t own = __reduce_add_sync(WARP_ALL, (uint32_t)__popc(marks));
    uint32_t slot = sum_before<THREADS>(own, shared.warp_counts[0]);
    const bool direct = shared.sink.pages == nullptr && !params.by_value;
    int32_t *indices = shared.sink.indices;
    float *values = shared.sink.values;
    const uint32_t offset = (uint32_t)shared.sink.offset;
#pragma unroll
    for (uint32_t j = 0; j < MAX; j++) {
        if (j < taken.each) {
            const bool marked = (marks >> j & 1u) != 0;
            const uint32_t lanes = __ballot_sync(WARP_ALL, marked);
            const uint32_t at = slot + (uint32_t)__popc(lanes & lanes_below());
            if (marked && direct) {
                __stcg(&indices[at], (int32_t)(taken.position[j] + offset));
                if (values != nullptr) {
                    __stcg(&values[at], value_of(shared.sink, taken.key[j], taken.position[j]));
                }
            } else if (marked) {
                shared.list[at] = make_uint2(key_to_bits(taken.key[j]), taken.position[j]);
            }
            slot += (uint32_t)__popc(lanes);
        }
    }
    if (!direct) {
        block_sync<THREADS>();
        write_list<THREADS>(params, k);
    }
}

/* The cut that selects `k` of the entries in registers, all of which are `low` or more. */
template <int THREADS, uint32_t MAX>
__device__ __forceinline__ struct rank_cut cut_taken(const struct taken<THREADS, MAX> &taken,
                                                     uint32_t low, uint32_t k)
{
    auto &shared = cluster_state();
    const struct taken_source<THREADS, MAX> source = {
        taken
    };
    const uint32_t shift = first_shift(low);
    source.each_in(low, KEY_MAX, [&](uint32_t offset) {
        atomicAdd(&shared.bins[min(offset >> shift, TOPK_BINS - 1u)], 1u);
    });
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
        uint32_t below = 0;
        block_sync<THREADS>(); /* the bins are clear */
        return find_cut<THREADS, true>(source, low, high, range_shift(high - low), need,
                                       shared.bins, shared.rank, &below);
    }
    source.each_in(low, high, [&](uint32_t offset) {
        shared.rank.list[atomicAdd(&shared.rank.list_count, 1u)] = low + offset;
    });
    block_sync<THREADS>();
    if (threadIdx.x == 0) {
        shared.rank.list_count = 0;
    }
    return rank_list(shared.rank.list, found.count, need);
}

#if __CUDA_ARCH__ >= 900
/* Selects K of the `count` in the list by way of registers, and writes them. LETS_GO: tells the
 * other blocks as soon as nothing of theirs is needed. */
template <int THREADS, uint32_t MAX, bool LETS_GO>
__device__ __forceinline__ void finish_taken(const struct select_params &params, uint32_t count,
                                             uint32_t low, uint32_t k)
{
    struct taken<THREADS, MAX> taken;
    take_list<THREADS, MAX>(count, low, taken);
    if (LETS_GO) {
        cluster_arrive_relaxed();
    }
    const struct rank_cut cut = cut_taken<THREADS, MAX>(taken, low, k);
    write_taken<THREADS, MAX>(params, taken, marks_of<THREADS, MAX>(taken, cut), k);
}

/* The same, or false: they are too many. Two copies, for what is asked of each of a thread's
 * entries costs where there is none as well. */
template <int THREADS, bool LETS_GO>
__device__ __forceinline__ bool finish_in_registers(const struct select_params &params,
                                                    uint32_t count, uint32_t low, uint32_t k)
{
    static_assert(TAKEN_FEW % THREADS == 0 && TAKEN_ENTRIES % THREADS == 0, "the same for all");
    if (count <= TAKEN_FEW) {
        finish_taken<THREADS, TAKEN_FEW / THREADS, LETS_GO>(params, count, low, k);
        return true;
    }
    if (count <= TAKEN_ENTRIES) {
        finish_taken<THREADS, TAKEN_ENTRIES / THREADS, LETS_GO>(params, count, low, k);
        return true;
    }
    return false;
}
#endif

/* More entries than registers hold: selects K of the `count` in the list, which it compacts. */
template <int THREADS>
__device__ __noinline__ void finish_list(const struct select_params &params, uint32_t count,
                                         uint32_t low, uint32_t k)
{
    auto &shared = cluster_state();
    const struct list_source<THREADS> source = {
        shared.list, count
    };
    uint32_t below = 0;
    const struct rank_cut cut = find_cut<THREADS, true>(source, low, KEY_MAX, first_shift(low), k,
                                                        shared.bins, shared.rank, &below);
    const uint32_t take = cut.all ? 0xffffffffu : cut.take;
    uint32_t num_above = 0, num_same = 0, parity = 0;
    block_sync<THREADS>();
    for (uint32_t first = 0; first < count; first += THREADS, parity ^= 1) {
        const uint32_t i = first + threadIdx.x;
        const uint2 entry = i < count ? shared.list[i] : make_uint2(0, 0);
        const uint32_t key = i < count ? key_of(__uint_as_float(entry.x)) : 0;
        const uint32_t above = __ballot_sync(WARP_ALL, key > cut.key);
        const uint32_t same = __ballot_sync(WARP_ALL, key == cut.key);
        if (lane_index() == 0) {
            shared.warp_counts[parity][warp_index()] =
                (uint32_t)__popc(above) | (uint32_t)__popc(same) << 16;
        }
        block_sync<THREADS>(); /* all of the step is loaded: entries may move down */
        const uint32_t other =
            lane_index() < THREADS / 32 ? shared.warp_counts[parity][lane_index()] : 0;
        const uint32_t before =
            __reduce_add_sync(WARP_ALL, lane_index() < warp_index() ? other : 0);
        const uint32_t all = __reduce_add_sync(WARP_ALL, other);
        const uint32_t same_before =
            num_same + (before >> 16) + (uint32_t)__popc(same & lanes_below());
        const uint32_t above_before =
            num_above + (before & 0xffffu) + (uint32_t)__popc(above & lanes_below());
        if (key > cut.key || (key == cut.key && same_before < take)) {
            shared.list[above_before + min(same_before, take)] = entry;
        }
        num_above += all & 0xffffu;
        num_same += all >> 16;
    }
    block_sync<THREADS>();
    write_list<THREADS>(params, k);
}

/*
 * Fewer than K are above the boundary: all of the `count` in the list, and the first of those equal
 * to it, merged by position behind the list.
 */
template <int THREADS>
__device__ __noinline__ void finish_merged(const struct select_params &params, uint32_t count,
                                           uint32_t key, uint32_t k)
{
    static_assert(LIST >= 2 * (int)TOPK_K_FAST_MAX, "the merged entries lie behind the list");
    auto &shared = cluster_state();
    const uint32_t take = k - count;
    uint2 *merged = shared.list + TOPK_K_FAST_MAX;
    for (uint32_t i = threadIdx.x; i < count; i += THREADS) {
        const uint2 entry = shared.list[i];
        const uint32_t before =
            count_below(take, entry.y, [&](uint32_t at) { return shared.equal[at]; });
        merged[i + before] = entry;
    }
    for (uint32_t i = threadIdx.x; i < take; i += THREADS) {
        const uint32_t position = shared.equal[i];
        const uint32_t before =
            count_below(count, position, [&](uint32_t at) { return shared.list[at].y; });
        merged[i + before] = make_uint2(key_to_bits(key), position);
    }
    block_sync<THREADS>();
    for (uint32_t i = threadIdx.x; i < k; i += THREADS) {
        shared.list[i] = merged[i];
    }
    block_sync<THREADS>();
    write_list<THREADS>(params, k);
}

} // namespace

#endif
