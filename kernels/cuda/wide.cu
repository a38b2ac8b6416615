/*
 * wide.cu - the wide family: a row in the registers of a cluster of blocks, for few rows that are
 * too long for the registers of one.
 *
 *   count       each block counts its part of the row, by the first 11 bits of their float16, in
 *               its own histogram
 *   find        the blocks tell each other the sums of 32 groups of bins; then, of the group with
 *               the K-th best, their bins: all know the bin, what is above it, and how much of both
 *               the blocks before have
 *   narrow      too many in the bin: counted once more, by bins of the keys in it, up to a bin
 *               with few or with one key
 *   collect     positions above the bin go to the result; the few in it to all blocks
 *   rank        each of these few among the others, each by one warp of the cluster, and what is
 *               selected to the result
 *
 * Scores are read from memory once, and no sample is taken. Three times a row blocks wait for each
 * other, for as long as a few words are on their way (wide_state.cuh); a fourth time where the
 * result is in order. Whatever they do next follows from what was sent, which all see alike; and a
 * block counts and sends only what it has in registers, whatever becomes of a caller's memory.
 */
#include "wide_part.cuh"

namespace
{

#if __CUDA_ARCH__ >= 900
/* The keys of a bin of the first round, whose number from the lowest scores up is `bin`. */
__device__ __forceinline__ void bin_keys(uint32_t bin, struct wide_cut &cut)
{
    const uint32_t ordered = bin << WIDE_SHIFT;
    cut.low = cut.high = KEY_MINUS_INF;
    if (bin >= wide_bins::LOWEST) {
        cut.low = half_floor(ordered);
        cut.high = min(half_floor(ordered + (1u << WIDE_SHIFT)) - 1, KEY_PLUS_INF);
    }
}

/* Counts all scores, and finds the bin of the K-th best: shared.cut. */
template <int THREADS, int SCORES, int BLOCKS>
__device__ __forceinline__ void count_row(const float (&scores)[SCORES], uint32_t length,
                                          uint32_t k, uint32_t &phases, struct wide_shared &shared)
{
#pragma unroll
    for (int j = 0; j < SCORES; j += 2) {
        count_half_pair<WIDE_SHIFT>(half_pair(scores[j], scores[j + 1]), shared.bins);
    }
    block_sync<THREADS>();
    find_in_cluster<THREADS, BLOCKS>(
        true, cluster_rank() == 0 ? length : 0, k, phases, shared,
        [&](const struct wide_bin &found, const struct wide_group &) {
            struct wide_cut cut = {
                KEY_NAN, KEY_NAN, found.above, found.count, found.above_before, found.count_before};
            const uint32_t bin = TOPK_BINS - 1 - found.at;
            if (found.total < k) {
                return cut;
            }
            if (bin == wide_bins::ZERO || bin == wide_bins::ZERO - 1) {
                /* Zeros are in both, for their sign counts: all from the lower one on once more. */
                cut = {half_floor((wide_bins::ZERO - 1) << WIDE_SHIFT), KEY_PLUS_INF, 0, ~0u, 0, 0};
            } else {
                bin_keys(bin, cut);
            }
            return cut;
        });
}

/* A range of keys is counted in the upper half of the bins, where that of an offset lies in its
 * place. */
#define NARROW_BINS (TOPK_BINS / 2)
/* choice: two binades, at first. Of the bin of all that is beyond float16 more may be left. */
#define NARROW_SHIFT_MAX 14u

/* Counts the scores in a range of keys of positive or of negative scores, without a branch. */
template <int SCORES>
__device__ __forceinline__ void count_one_sign(const float (&scores)[SCORES], uint32_t low,
                                               uint32_t span, uint32_t shift, uint32_t &least,
                                               uint32_t &most, struct wide_shared &shared)
{
    const uint32_t flip = low > KEY_ZERO ? 0x80000000u : 0xffffffffu; /* bits to keys, but of NaN */
#pragma unroll
    for (int j = 0; j < SCORES; j++) {
        const uint32_t offset = (__float_as_uint(scores[j]) ^ flip) - low;
        const bool in = offset <= span;
        atomicAdd(&shared.bins[in ? min(offset >> shift, NARROW_BINS - 1u) : WIDE_BEYOND], 1u);
        least = min(least, in ? offset : KEY_MAX);
        most = max(most, in ? offset : 0);
    }
}

/* The same of any range. */
template <int THREADS, int SCORES>
__device__ __forceinline__ void
count_range(const float (&scores)[SCORES], int32_t length, uint32_t low, uint32_t span,
            uint32_t shift, uint32_t &least, uint32_t &most, struct wide_shared &shared)
{
    const int32_t exist = opaque(length - wide_position<THREADS, SCORES>());
#pragma unroll
    for (int j = 0; j < SCORES; j++) {
        const uint32_t offset = part_key<THREADS, SCORES>(scores, exist, j) - low;
        if (offset <= span) {
            atomicAdd(&shared.bins[offset >> shift], 1u);
            least = min(least, offset);
            most = max(most, offset);
        }
    }
}

/* Narrows the range by a histogram of the keys in it. */
template <int THREADS, int SCORES, int BLOCKS>
__device__ __forceinline__ void narrow(const float (&scores)[SCORES], int32_t length, uint32_t k,
                                       const struct wide_cut &before, uint32_t shift_max,
                                       uint32_t &phases, struct wide_shared &shared)
{
    const uint32_t low = before.low, span = before.high - low;
    uint32_t shift = span < NARROW_BINS ? 0 : range_shift(span) + 1, least = KEY_MAX, most = 0;
    block_sync<THREADS>(); /* the bins are clear */
    if (low >= KEY_MINUS_INF && (low > KEY_ZERO || before.high < KEY_ZERO - 1)) {
        shift = min(shift, shift_max);
        count_one_sign<SCORES>(scores, low, span, shift, least, most, shared);
    } else {
        count_range<THREADS, SCORES>(scores, length, low, span, shift, least, most, shared);
    }
    widen_range(least, most, shared.least, shared.most);
    block_sync<THREADS>();
    const uint32_t need = k - before.above;
    find_in_cluster<THREADS, BLOCKS>(
        false, 0, need, phases, shared,
        [&](const struct wide_bin &found, const struct wide_group &group) {
            struct wide_cut cut = before;
            if (found.total < need) { /* the row changed while it was read */
                cut.high = low;
                return cut;
            }
            cut.above += found.above;
            cut.above_before += found.above_before;
            cut.count = found.count;
            cut.count_before = found.count_before;
            cut.high = low + group.most;
            if (group.least < group.most) {
                cut.low += (NARROW_BINS - 1 - found.at) << shift;
                if (found.at > 0) { /* the highest bin has all above */
                    cut.high = min(cut.high, cut.low + ((1u << shift) - 1));
                }
            }
            cut.low = max(cut.low, low + group.least);
            return cut;
        });
}

/* Of the marks of a block those of the first `take` in position order. One barrier. */
template <int THREADS, int SCORES>
__device__ __forceinline__ uint32_t first_marks(uint32_t marks, uint32_t take, uint32_t *counts)
{
    const uint32_t own = __reduce_add_sync(WARP_ALL, (uint32_t)__popc(marks));
    if (lane_index() == 0) {
        counts[warp_index()] = own;
    }
    block_sync<THREADS>();
    const uint32_t other = lane_index() < THREADS / 32 ? counts[lane_index()] : 0;
    uint32_t rank = __reduce_add_sync(WARP_ALL, lane_index() < warp_index() ? other : 0);
    if (rank >= take || rank + own <= take) { /* none, or all: every warp but one */
        return rank >= take ? 0 : marks;
    }
#pragma unroll 1
    for (int j = 0; j < SCORES; j++) {
        const uint32_t lanes = __ballot_sync(WARP_ALL, (marks >> j & 1u) != 0);
        if (rank + (uint32_t)__popc(lanes & lanes_below()) >= take) {
            marks &= ~(1u << j);
        }
        rank += (uint32_t)__popc(lanes);
    }
    return marks;
}

/* Writes the marked positions from `slot` on, in the order of a lane's scores. */
template <int THREADS, int SCORES>
__device__ __forceinline__ void put_marked(uint32_t marks, uint32_t slot, const struct sink &sink)
{
    const uint32_t position = (uint32_t)opaque(wide_position<THREADS, SCORES>());
    if (!sink.plain) {
        while (marks != 0) {
            const uint32_t j = (uint32_t)__ffs((int)marks) - 1;
            marks &= marks - 1;
            sink_put(sink, slot++, position + 32 * j);
        }
        return;
    }
    int32_t *indices = sink.indices + slot;
#pragma unroll
    for (int j = 0; j < SCORES; j++) {
        if ((marks >> j & 1u) != 0) {
            __stcg(indices++, (int32_t)(position + 32 * j));
        }
    }
}

/* Writes a warp's marked positions from `slot` on, in position order. */
template <int THREADS, int SCORES>
__device__ __forceinline__ void put_ordered(uint32_t marks, uint32_t slot, const struct sink &sink)
{
    if (!sink.plain) {
        const uint32_t before = wide_position<THREADS, SCORES>() - first_position<SCORES>();
        write_marked<SCORES>(marks, slot, [&](uint32_t position, uint32_t own_slot) {
            sink_put(sink, own_slot, before + position);
        });
    } else if (__any_sync(WARP_ALL, marks != 0)) {
        const uint32_t below = lanes_below(), position = wide_position<THREADS, SCORES>();
        int32_t *indices = opaque_base(sink.indices); /* one base for all stores */
#pragma unroll
        for (int j = 0; j < SCORES; j++) {
            const uint32_t marked = marks & 1u << j;
            const uint32_t lanes = __ballot_sync(WARP_ALL, marked != 0);
            store_marked(marked, indices + (slot + (uint32_t)__popc(lanes & below)),
                         position + 32 * j);
            slot += (uint32_t)__popc(lanes);
        }
    }
}

/* Writes all marked positions of a block from `slot` on: in position order, after one barrier, or
 * in none. */
template <int THREADS, int SCORES>
__device__ __forceinline__ void write_part(bool in_order, uint32_t marks, uint32_t slot,
                                           const struct sink &sink, struct wide_shared &shared)
{
    if (in_order) {
        slot += first_slot<THREADS>(marks, shared.selected);
        put_ordered<THREADS, SCORES>(marks, slot, sink);
        return;
    }
    const uint32_t own = (uint32_t)__popc(marks), sum = warp_prefix(own);
    uint32_t first = lane_index() == 31 ? atomicAdd(&shared.staged, sum) : 0;
    first = __shfl_sync(WARP_ALL, first, 31);
    put_marked<THREADS, SCORES>(marks, slot + first + sum - own, sink);
}

/* An entry of the list as a number: less for a higher score, of equal ones for a lower position. */
__device__ __forceinline__ uint64_t near_number(uint2 entry)
{
    return (uint64_t)~entry.x << 32 | entry.y;
}

/* Sends what is marked in the range to all blocks; it is the `slot`-th and further ones of this
 * block. A warp does not wait for others. */
template <int THREADS, int SCORES, int BLOCKS>
__device__ __forceinline__ void send_near(const float (&scores)[SCORES], uint32_t marks,
                                          uint32_t slot, const struct wide_cut &cut,
                                          struct wide_shared &shared)
{
    constexpr uint32_t TEAM = WIDE_TEAM(BLOCKS);
    if (!__any_sync(WARP_ALL, marks != 0)) {
        return;
    }
    const uint32_t first = __shfl_sync(WARP_ALL, slot, 0);
    const uint32_t end = __shfl_sync(WARP_ALL, slot + (uint32_t)__popc(marks), 31);
    const uint32_t position = (uint32_t)opaque(wide_position<THREADS, SCORES>());
    uint2 *own = &shared.own[slot];
#pragma unroll
    for (int j = 0; j < SCORES; j++) {
        if ((marks >> j & 1u) != 0) {
            *own++ = make_uint2(__float_as_uint(scores[j]), position + 32 * j);
        }
    }
    __syncwarp();
    const uint32_t block = lane_index() % TEAM;
    for (uint32_t i = first + lane_index() / TEAM; i < end; i += 32 / TEAM) {
        const uint2 entry = shared.own[i];
        if (block < BLOCKS) {
            wide_send(&shared.near[cut.count_before + i], block,
                      make_uint2(key_of(__uint_as_float(entry.x)), entry.y), WIDE_NEAR, shared);
        }
    }
}

/* Ranks the listed ones, each by one warp of the cluster: ranked(entry, rank), rank 0 for the best,
 * in all lanes. */
template <int THREADS, int BLOCKS, class Ranked>
__device__ __forceinline__ void rank_near(uint32_t count, const struct wide_shared &shared,
                                          const Ranked &ranked)
{
    const uint32_t first = cluster_rank() + warp_index() * BLOCKS;
    for (uint32_t i = first; i < count; i += THREADS / 32 * BLOCKS) {
        const uint2 entry = shared.near[i];
        const uint64_t own = near_number(entry);
        uint32_t rank = 0;
#pragma unroll 4
        for (uint32_t other = lane_index(); other < count; other += 32) {
            rank += near_number(shared.near[other]) < own ? 1u : 0u;
        }
        ranked(entry, __reduce_add_sync(WARP_ALL, rank));
    }
}

/* Of a lane's scores those that are as good as the last one selected. */
template <int THREADS, int SCORES>
__device__ __forceinline__ uint32_t mark_until(const float (&scores)[SCORES],
                                               const struct wide_marks &marks, uint2 last)
{
    const uint32_t better = mark_from<SCORES>(scores, __uint_as_float(key_floor_bits(last.x + 1)));
    const uint32_t from = last.x > KEY_NAN
                              ? mark_from<SCORES>(scores, __uint_as_float(key_floor_bits(last.x)))
                              : marks.above | marks.in;
    const int32_t ahead = (int32_t)last.y - wide_position<THREADS, SCORES>();
    const uint32_t until = ahead < 0 ? 0 : ahead / 32 > 30 ? WARP_ALL : (2u << ahead / 32) - 1;
    return better | (from & until);
}

/* Which of a block's scores are selected, where the result is in order; *place_p is that of the
 * warp's first. One barrier, while what others have sent is on its way. */
template <int THREADS, int SCORES, int BLOCKS>
__device__ __forceinline__ uint32_t select_part(const float (&scores)[SCORES],
                                                const struct wide_marks &marks,
                                                const struct wide_cut &cut, uint32_t k,
                                                uint32_t *place_p, uint32_t &phases,
                                                struct wide_shared &shared)
{
    const uint32_t start = (uint32_t)wide_position<THREADS, SCORES>() - lane_index();
    uint32_t before = first_slot<THREADS>(marks.above, shared.selected);
    before = lane_index() == 0 ? cut.above_before + before : 0;
    const uint32_t end = cut.count_before + (shared.staged >> 16);
    wide_wait(WIDE_NEAR, phases, shared);
    rank_near<THREADS, BLOCKS>(cut.count, shared, [&](const uint2 &entry, uint32_t rank) {
        if (cut.above + rank == k - 1 && lane_index() < BLOCKS) {
            wide_send(&shared.last, lane_index(), entry, WIDE_LAST, shared);
        }
    });
    wide_wait(WIDE_LAST, phases, shared);
    const uint64_t last = near_number(shared.last);
#pragma unroll 4
    for (uint32_t i = lane_index(); i < end; i += 32) { /* those of later blocks are behind */
        const uint2 entry = shared.near[i];
        before += entry.y < start && near_number(entry) <= last ? 1u : 0u;
    }
    *place_p = __reduce_add_sync(WARP_ALL, before);
    return __any_sync(WARP_ALL, marks.in != 0)
               ? mark_until<THREADS, SCORES>(scores, marks, shared.last)
               : marks.above;
}

/* Writes a row of more than K scores by its cut. */
template <int THREADS, int SCORES, int BLOCKS>
__device__ __forceinline__ void write_row(bool in_order, const float (&scores)[SCORES],
                                          int32_t length, uint32_t k, const struct wide_cut &cut,
                                          const struct sink &sink, uint32_t &phases,
                                          struct wide_shared &shared)
{
    const struct wide_marks marks = mark_part<THREADS, SCORES>(scores, length, cut);
    const uint32_t take = k - cut.above;
    if (cut.low == cut.high || cut.count == take) { /* a plateau, or all of them */
        const uint32_t taken = min(cut.count_before, take);
        const uint32_t in = first_marks<THREADS, SCORES>(marks.in, take - taken, shared.equal);
        write_part<THREADS, SCORES>(in_order, marks.above | in, cut.above_before + taken, sink,
                                    shared);
        return;
    }
    if (threadIdx.x == 0) {
        mbarrier_arrive_expect(&shared.met[WIDE_NEAR], cut.count * (uint32_t)sizeof(uint2));
        if (in_order) {
            mbarrier_arrive_expect(&shared.met[WIDE_LAST], (uint32_t)sizeof(uint2));
        }
    }
    const uint32_t own = (uint32_t)__popc(marks.above) | (uint32_t)__popc(marks.in) << 16;
    const uint32_t sum = warp_prefix(own);
    uint32_t slots = lane_index() == 31 ? atomicAdd(&shared.staged, sum) : 0;
    slots = __shfl_sync(WARP_ALL, slots, 31) + sum - own;
    send_near<THREADS, SCORES, BLOCKS>(scores, marks.in, slots >> 16, cut, shared);
    if (in_order) {
        uint32_t slot;
        const uint32_t selected =
            select_part<THREADS, SCORES, BLOCKS>(scores, marks, cut, k, &slot, phases, shared);
        put_ordered<THREADS, SCORES>(selected, slot, sink);
        return;
    }
    put_marked<THREADS, SCORES>(marks.above, cut.above_before + (slots & 0xffffu), sink);
    wide_wait(WIDE_NEAR, phases, shared);
    rank_near<THREADS, BLOCKS>(cut.count, shared, [&](const uint2 &entry, uint32_t rank) {
        if (cut.above + rank < k && lane_index() == 0) {
            sink_put(sink, cut.above + rank, entry.y);
        }
    });
}

/* Selects from one row, which is in registers up to its width; `given` is its length as this thread
 * read it. */
template <int THREADS, int SCORES, int BLOCKS>
__device__ __forceinline__ void
select_row(const struct select_params &params, const struct task &task, int32_t row, int32_t given,
           float (&scores)[SCORES], uint32_t &phases, struct wide_shared &shared)
{
    const uint32_t k = (uint32_t)task.k;
    const int32_t own_length = clamp_length(task, given);
    cut_part<THREADS, SCORES>(own_length, scores);
    count_row<THREADS, SCORES, BLOCKS>(scores, (uint32_t)own_length, k, phases, shared);
    struct wide_cut cut = shared.cut;
    const int32_t length = shared.length;
    if (cluster_rank() == 0 && threadIdx.x == 0) {
        shared.counts.clamped += given != own_length ? 1u : 0u;
        shared.counts.copied += length <= task.k ? 1u : 0u;
        shared.counts.direct += length > task.k ? 1u : 0u;
        shared.counts.scores_read += length > task.k ? (uint32_t)length : 0u;
    }
    if (length <= task.k) {
        if (cluster_rank() == 0) {
            const struct sink whole = sink_of_row(task, params.args, row);
            select_whole<THREADS>(whole, length, task.k, false, nullptr);
        }
        return;
    }
    bool again = cut.low <= KEY_NAN; /* NaN among the selected: they have not been counted */
    uint32_t shift_max = NARROW_SHIFT_MAX;
    while (again || (cut.low < cut.high && cut.count > WIDE_NEAR_MAX)) {
        narrow<THREADS, SCORES, BLOCKS>(scores, own_length, k, cut, shift_max, phases, shared);
        cut = shared.cut;
        shift_max = 31;
        again = false;
    }
    const struct sink sink = sink_of_row(task, params.args, row);
    write_row<THREADS, SCORES, BLOCKS>(params.by_position != 0, scores, own_length, k, cut, sink,
                                       phases, shared);
}
#endif

template <int THREADS, int SCORES, int BLOCKS>
__global__ void __launch_bounds__(THREADS, 1)
    wide_kernel(const __grid_constant__ struct select_params params)
{
#if __CUDA_ARCH__ >= 900
    static_assert(SCORES <= 32 && SCORES % 2 == 0, "one mark a score in 32 bits; two at a time");
    static_assert(THREADS % 32 == 0 && THREADS <= 1024, "whole warps, one block");
    static_assert(THREADS * SCORES < 65536, "two counts share a word");
    SHARED_OBJECT(struct wide_shared, shared);
    if (params.args == nullptr) {
        return;
    }
    launch_release();
    clear_bins<THREADS>(shared.bins);
    if (threadIdx.x == 0) {
        task_prefetch(params);
        shared.counts = {};
        shared.staged = 0;
        shared.least = KEY_MAX;
        shared.most = 0;
        for (int step = 0; step < WIDE_STEPS; step++) {
            mbarrier_init_one(&shared.met[step]);
        }
        fence_mbarrier_init();
    }
    __syncwarp();
    cluster_arrive_relaxed_aligned(); /* all have started, before anyone sends */
    block_sync<THREADS>();
    launch_wait();
    const struct task task = task_read(params);
    const int32_t clusters = (int32_t)(gridDim.x / BLOCKS);
    int32_t row = (int32_t)(blockIdx.x / BLOCKS);
    uint32_t phases = 0;
    float scores[SCORES];
    if (threadIdx.x == 0) {
        shared.counts.clamped = blockIdx.x == 0 ? task.clamped : 0;
    }
    cluster_wait(); /* while the arguments are on their way */
    for (bool first = true; row < task.num_rows; first = false, row += clusters) {
        const int32_t given = task_length(task, row);
        load_part<THREADS, SCORES>(task, row, task.width, scores);
        if (!first) {
            cluster_arrive_aligned(); /* no block has anything of the row before in use */
            cluster_wait();
        }
        select_row<THREADS, SCORES, BLOCKS>(params, task, row, given, scores, phases, shared);
    }
    if (threadIdx.x == 0) {
        routes_add(params.args->routes, shared.counts);
    }
#else
    (void)params; /* the planner chooses another family before sm_90 */
#endif
}

} // namespace

cudaError_t SCORE_LAUNCH(select_launch_wide)(const struct select_launch *launch,
                                             const struct select_params *params, bool load)
{
    int32_t variant = launch->variant;
#define WIDE_LAUNCH(threads, scores, cluster, rows, above)                                         \
    if (variant-- == 0) {                                                                          \
        return select_launch_kernel(wide_kernel<threads, scores, cluster>, launch, params, load);  \
    }
    TOPK_WIDE_POLICIES(WIDE_LAUNCH)
#undef WIDE_LAUNCH
    return cudaErrorInvalidValue;
}
