/*
 * wide_state.cuh - what a block of the wide family holds in shared memory, and how the blocks of a
 * cluster come to one histogram (sm_90 and later).
 *
 * Blocks send each other a few words, by stores that complete a barrier where they arrive; nobody
 * reads another's memory. A block can send for the next step only when it has what all others sent
 * in this one, so that what is sent never overtakes those who still read: of each buffer below, all
 * readers are done before anyone can fill it again. Where a step is left out, because there is one
 * key alone, nothing more is sent for the row, and between rows all blocks meet.
 */
#ifndef TOPKSEL_CUDA_WIDE_STATE_CUH
#define TOPKSEL_CUDA_WIDE_STATE_CUH

#include "half_bins.cuh"
#include "ring.cuh"
#include "row_write.cuh"

namespace
{

#define WIDE_SHIFT 5u /* bits of a pattern that do not count: half_bins.cuh */
typedef half_bins<WIDE_SHIFT> wide_bins;

#define WIDE_CHUNKS 512u /* of four bins, which a thread takes at once */
#define WIDE_GROUPS 32u  /* of 16 chunks: one a lane */
#define WIDE_GROUP_CHUNKS (WIDE_CHUNKS / WIDE_GROUPS)
#define WIDE_BEYOND TOPK_BINS /* a bin for what is in none: nobody reads it */
#define WIDE_COUNT_MAX 4095u  /* sent of a bin at most: more than K; 16 fit 16 bits */
/* Threads that serve all blocks: a power of two. */
#define WIDE_TEAM(blocks) ((blocks) <= 2 ? 2u : (blocks) <= 4 ? 4u : (blocks) <= 8 ? 8u : 16u)
/* choice: so many are ranked by comparing each with each; more cost more than a second round */
#define WIDE_NEAR_MAX 384u

/* The steps of a row, each with a barrier. */
enum wide_step { WIDE_GROUP, WIDE_BIN, WIDE_NEAR, WIDE_LAST, WIDE_STEPS };

/* Where a rank is, by groups of bins. */
struct wide_group {
    uint32_t group, above, above_before, total; /* as in wide_bin */
    uint32_t count_before;                      /* in the group, in blocks before this one */
    uint32_t least, most;                       /* of what all blocks say beside their counts */
};

/* What of the row is selected, as far as it is known: all keys above `high`, and of those from
 * `low` on so many that there are K. */
struct wide_cut {
    uint32_t low, high;
    uint32_t above, count;               /* scores above, and in between */
    uint32_t above_before, count_before; /* of these, in blocks before this one */
};

/* What is taken of a plateau that a block has in turns: all of some turns, and some of one. */
struct wide_taken {
    uint32_t whole, part; /* marks of turns */
    uint32_t part_count;
    uint32_t before; /* taken in blocks before this one */
};

struct wide_shared {
    alignas(16) uint32_t bins[TOPK_BINS + 4];              /* of this block; WIDE_BEYOND */
    uint32_t groups[TOPK_CLUSTER_BLOCKS_MAX][WIDE_GROUPS]; /* counts of each block */
    uint32_t slices[TOPK_CLUSTER_BLOCKS_MAX][WIDE_GROUPS]; /* of two bins of one group a word */
    uint2 notes[TOPK_CLUSTER_BLOCKS_MAX];                  /* and what it says beside */
    uint2 near[WIDE_NEAR_MAX]; /* keys and positions in the bin of the K-th best, of all blocks */
    uint2 own[WIDE_NEAR_MAX];  /* bits and positions, of this one */
    uint2 last;                /* key and position of the last one selected */
    alignas(8) uint64_t met[WIDE_STEPS];
    struct wide_cut cut;              /* what one warp tells the others ... */
    int32_t length;                   /* ... and the row's length, as the first block has read it */
    uint32_t selected[32], equal[32]; /* counts of each warp */
    uint32_t turns[32];               /* marks of a plateau in each turn; 0 between rows */
    struct wide_taken taken;          /* what of it is taken (first_turns()) */
    uint32_t staged;                  /* places given away in this block */
    uint32_t least, most;             /* offsets in a range */
    struct sink sink;                 /* where the row's result goes, if it is not plain */
    struct route_counts counts;
};

/* A bin of the cluster's histogram. Bins are numbered from the highest scores down. */
struct wide_bin {
    uint32_t at;
    uint32_t above, count; /* in higher bins, and in this one */
    uint32_t total;        /* in all; when below the rank asked, all are above, and `at` is void */
    uint32_t above_before, count_before; /* of these, in blocks before this one */
};

/* Where a chunk lies in memory: half_bins.cuh. */
__device__ __forceinline__ uint32_t chunk_place(uint32_t chunk)
{
    return chunk < WIDE_CHUNKS / 2 ? WIDE_CHUNKS / 2 - 1 - chunk : chunk;
}

/* Where a bin lies. */
__device__ __forceinline__ uint32_t bin_place(uint32_t bin)
{
    return bin < TOPK_BINS / 2 ? TOPK_BINS / 2 - 1 - bin : bin;
}

#if __CUDA_ARCH__ >= 900
/* As warp_prefix(), in three steps instead of five: what shuffles of one step give is asked for at
 * once. For where one warp works and all others wait. */
__device__ __forceinline__ uint32_t quick_prefix(uint32_t value)
{
#pragma unroll
    for (uint32_t step = 1; step < 32; step *= 4) {
        uint32_t sum = value;
#pragma unroll
        for (uint32_t below = step; below < min(4 * step, 32u); below += step) {
            const uint32_t its = __shfl_up_sync(WARP_ALL, value, below);
            sum += lane_index() >= below ? its : 0;
        }
        value = sum;
    }
    return value;
}

/* Waits until all of a step has arrived. A bit of `phases` is the phase of each step's barrier. */
__device__ __forceinline__ void wide_wait(enum wide_step step, uint32_t &phases,
                                          struct wide_shared &shared)
{
    ring_wait(&shared.met[step], phases >> step & 1u);
    fence_acquire_shared();
    phases ^= 1u << step;
}

/* Sends to the same place in another block. */
__device__ __forceinline__ void wide_send(uint2 *place, uint32_t block, uint2 value,
                                          enum wide_step step, struct wide_shared &shared)
{
    remote_send(remote_address(place, block), value, remote_address(&shared.met[step], block));
}

/* Sends all blocks the counts of this one's groups; a warp has two of them. In the first round the
 * highest bin has NaN, which do not count. */
template <int BLOCKS>
__device__ __forceinline__ void send_groups(bool first, struct wide_shared &shared)
{
    if (threadIdx.x >= WIDE_CHUNKS) {
        return;
    }
    uint4 four = reinterpret_cast<const uint4 *>(shared.bins)[chunk_place(threadIdx.x)];
    if (first && threadIdx.x == 0) {
        four.w = shared.bins[bin_place(0)] = 0;
    }
    const uint32_t sum = four.x + four.y + four.z + four.w;
    const uint32_t both = __reduce_add_sync(WARP_ALL, lane_index() < 16 ? sum : sum << 16);
    if (lane_index() < BLOCKS) {
        wide_send(reinterpret_cast<uint2 *>(&shared.groups[cluster_rank()][2 * warp_index()]),
                  lane_index(), make_uint2(both & 0xffffu, both >> 16), WIDE_GROUP, shared);
    }
}

/* A lane's word of all blocks together, and of those before this one. */
template <int BLOCKS>
__device__ __forceinline__ void
sum_blocks(const uint32_t (&words)[TOPK_CLUSTER_BLOCKS_MAX][WIDE_GROUPS], uint32_t &all,
           uint32_t &before)
{
    all = before = 0;
#pragma unroll
    for (uint32_t block = 0; block < BLOCKS; block++) {
        const uint32_t its = words[block][lane_index()];
        all += its;
        before += block < cluster_rank() ? its : 0;
    }
}

/* Looks for the group that holds rank `need`. One warp. */
template <int BLOCKS>
__device__ __forceinline__ struct wide_group find_group(uint32_t need,
                                                        const struct wide_shared &shared)
{
    uint32_t count, before;
    sum_blocks<BLOCKS>(shared.groups, count, before);
    const uint32_t prefix = quick_prefix(count);
    const uint32_t reached = __ballot_sync(WARP_ALL, prefix >= need);
    struct wide_group found;
    found.total = __shfl_sync(WARP_ALL, prefix, 31);
    found.group = reached != 0 ? (uint32_t)__ffs((int)reached) - 1 : WIDE_GROUPS - 1;
    found.above =
        reached != 0 ? __shfl_sync(WARP_ALL, prefix - count, (int)found.group) : found.total;
    found.above_before =
        __reduce_add_sync(WARP_ALL, lane_index() < found.group || reached == 0 ? before : 0);
    found.count_before = __shfl_sync(WARP_ALL, before, (int)found.group);
    const uint2 note = lane_index() < BLOCKS ? shared.notes[lane_index()] : make_uint2(KEY_MAX, 0);
    found.least = __reduce_min_sync(WARP_ALL, note.x);
    found.most = __reduce_max_sync(WARP_ALL, note.y);
    return found;
}

/* Sends all blocks this one's counts in a group, a chunk a thread and block. */
template <int BLOCKS, uint32_t TEAM>
__device__ __forceinline__ void send_slice(uint32_t group, struct wide_shared &shared)
{
    const uint32_t chunk = threadIdx.x / TEAM, block = threadIdx.x % TEAM;
    const bool positive = group < WIDE_GROUPS / 2;
    const uint32_t place = chunk_place(group * WIDE_GROUP_CHUNKS + chunk);
    uint4 four = reinterpret_cast<const uint4 *>(shared.bins)[place];
    four.x = min(four.x, WIDE_COUNT_MAX);
    four.y = min(four.y, WIDE_COUNT_MAX);
    four.z = min(four.z, WIDE_COUNT_MAX);
    four.w = min(four.w, WIDE_COUNT_MAX);
    const uint2 counts = positive ? make_uint2(four.w | four.z << 16, four.y | four.x << 16)
                                  : make_uint2(four.x | four.y << 16, four.z | four.w << 16);
    __syncwarp(); /* the bins are cleared by who has it from this block: all lanes have read them */
    if (block < BLOCKS) {
        wide_send(reinterpret_cast<uint2 *>(&shared.slices[cluster_rank()][2 * chunk]), block,
                  counts, WIDE_BIN, shared);
    }
}

/* Looks for the bin within the group that was found. One warp. */
template <int BLOCKS>
__device__ __forceinline__ struct wide_bin find_bin(uint32_t need, const struct wide_group &group,
                                                    const struct wide_shared &shared)
{
    uint32_t counts, befores;
    sum_blocks<BLOCKS>(shared.slices, counts, befores);
    const uint32_t first = counts & 0xffffu, own = first + (counts >> 16);
    const uint32_t above = group.above + quick_prefix(own) - own;
    struct wide_bin found = {0, group.above, 0, group.total, group.above_before, 0};
    if (group.total < need) {
        return found;
    }
    const int lane = __ffs((int)__ballot_sync(WARP_ALL, above + own >= need)) - 1;
    const bool second = above + first < need;
    const uint32_t first_before = befores & 0xffffu;
    const uint32_t before = lane_index() < (uint32_t)lane    ? first_before + (befores >> 16)
                            : lane_index() == (uint32_t)lane ? (second ? first_before : 0)
                                                             : 0;
    found.above_before += __reduce_add_sync(WARP_ALL, before);
    found.at = __shfl_sync(WARP_ALL, 2 * lane_index() + (second ? 1u : 0u), lane) +
               group.group * (4 * WIDE_GROUP_CHUNKS);
    found.above = __shfl_sync(WARP_ALL, above + (second ? first : 0), lane);
    found.count = __shfl_sync(WARP_ALL, second ? counts >> 16 : first, lane);
    found.count_before = __shfl_sync(WARP_ALL, second ? befores >> 16 : first_before, lane);
    return found;
}

/*
 * Looks for the bin that holds rank `need` of what all blocks have counted: one warp of each block
 * finds it, the same in all but for what is before the block, and calls cut(bin, group) for what
 * all threads then find in shared.cut. Beside their counts blocks say the length of the row in the
 * first round, 0 but for the first block, and in later ones the extent of what they counted:
 * group.most, and group.least. Where that is one number, no bins are sent: found.at is void. All
 * threads call, after a barrier; the bins are zero again after the next.
 */
template <int THREADS, int BLOCKS, class Cut>
__device__ __forceinline__ void find_in_cluster(bool first, uint32_t length, uint32_t need,
                                                uint32_t &phases, struct wide_shared &shared,
                                                const Cut &cut)
{
    constexpr uint32_t TEAM = WIDE_TEAM(BLOCKS);
    constexpr uint32_t SENDERS = WIDE_GROUP_CHUNKS * TEAM / 32; /* warps */
    static_assert(BLOCKS <= TOPK_CLUSTER_BLOCKS_MAX && THREADS >= (int)WIDE_CHUNKS, "a chunk each");
    static_assert(BLOCKS * WIDE_COUNT_MAX < 65536 && WIDE_COUNT_MAX > TOPK_K_FAST_MAX,
                  "two sums a word, and no rank beyond a count that is cut");
    send_groups<BLOCKS>(first, shared);
    if (warp_index() == 0) {
        /* One thread's length, for each read it for itself. */
        uint2 note = make_uint2(KEY_MAX, __shfl_sync(WARP_ALL, length, 0));
        if (!first) {
            note = make_uint2(shared.least, shared.most);
        }
        __syncwarp();
        if (lane_index() == 0) {
            shared.least = KEY_MAX;
            shared.most = 0;
            shared.staged = 0;
            mbarrier_arrive_expect(&shared.met[WIDE_GROUP], BLOCKS * (4 * WIDE_GROUPS + 8));
            fence_release_shared();
        }
        if (lane_index() < BLOCKS) {
            wide_send(&shared.notes[cluster_rank()], lane_index(), note, WIDE_GROUP, shared);
        }
    }
    if (warp_index() < SENDERS) { /* nobody else asks for the phases of these steps */
        wide_wait(WIDE_GROUP, phases, shared);
        const struct wide_group group = find_group<BLOCKS>(need, shared);
        const bool one_key = !first && group.least == group.most && group.total >= need;
        if (!one_key) {
            send_slice<BLOCKS, TEAM>(group.group, shared);
        }
        if (warp_index() == 0) {
            struct wide_bin found = {0, 0, group.total, group.total, 0, group.count_before};
            if (!one_key) {
                if (lane_index() == 0) {
                    mbarrier_arrive_expect(&shared.met[WIDE_BIN], BLOCKS * 4 * WIDE_GROUPS);
                }
                wide_wait(WIDE_BIN, phases, shared);
                found = find_bin<BLOCKS>(need, group, shared);
            }
            const struct wide_cut now = cut(found, group);
            if (lane_index() == 0) {
                shared.cut = now;
                if (first) {
                    shared.length = (int32_t)group.most;
                }
            }
        }
    }
    block_sync<THREADS>();
    if (threadIdx.x < WIDE_CHUNKS) {
        reinterpret_cast<uint4 *>(shared.bins)[threadIdx.x] = make_uint4(0, 0, 0, 0);
    }
}
#endif

} // namespace

#endif
