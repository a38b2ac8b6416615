/*
 * stream_scan.cuh - the state of a block of the stream families, and how it reads a row: from the
 * ring, warp by warp, or a second time from global memory.
 */
#ifndef TOPKSEL_CUDA_STREAM_SCAN_CUH
#define TOPKSEL_CUDA_STREAM_SCAN_CUH

#include "boundary.cuh"
#include "frontier.cuh"
#include "ring.cuh"
#include "share.cuh"

namespace
{

#define STAGE TOPK_STAGE_SCORES
#define CHUNK TOPK_CHUNK_SCORES
#define STAGE_WARPS (STAGE / CHUNK) /* warps that share a stage */
#define PARTS_MAX TOPK_STREAM_BLOCKS_MAX

/* What a block publishes of a part: `above` entries from the front, `equal` from the back. */
struct part_header {
    uint32_t above;
    uint32_t equal; /* bit 31: the part had to be cut */
};
#define PART_WAS_CUT 0x80000000u

/* The workspace: counters, headers, then two slots of candidates a block. */
struct workspace {
    uint32_t *arrivals;          /* [blocks], zero between launches */
    struct part_header *headers; /* [2 * blocks] */
    uint64_t *slots;             /* [2 * blocks, CANDIDATES] */
};

template <int CANDIDATES>
struct stream_shared {
    struct frontier_shared<CANDIDATES> frontier;
    struct task task;
    struct share share;
    struct walk walk;       /* the consumers' */
    struct segment segment; /* the part at hand ... */
    struct segment next;    /* ... and the one after it, if next_exists */
    struct route_counts counts;
    struct ring_barriers ring;
    struct boundary boundary; /* the proposal for the row at hand: the same in every part */
    uint32_t arrived;
    uint32_t written; /* entries of a result in no order */
    bool more, next_exists;
    bool overflowed; /* another block's candidates of the row did */
};

/*
 * Dynamic shared memory: the state, then the ring. Functions that are not inlined take the state
 * from here and not as an argument: only so does the compiler know that its addresses are shared,
 * and shared atomics on addresses of unknown kind are loops.
 */
SHARED_DYNAMIC(__align__(128) unsigned char, dynamic_shared);

template <int CANDIDATES>
__device__ __forceinline__ struct stream_shared<CANDIDATES> &state() {
    return *reinterpret_cast<struct stream_shared<CANDIDATES> *>(&dynamic_shared[0]);
}

/* The ring's stages; bulk copies want them aligned to 128 bytes. */
template <int CANDIDATES>
__device__ __forceinline__ float *stage_at(uint32_t stage)
{
    constexpr size_t first = (sizeof(struct stream_shared<CANDIDATES>) + 127) / 128 * 128;
    return reinterpret_cast<float *>(&dynamic_shared[first]) + (size_t)stage * STAGE;
}

enum route { ROUTE_NONE, ROUTE_DIRECT, ROUTE_CERTIFIED, ROUTE_BAND, ROUTE_RECOVERY };

__device__ __forceinline__ struct workspace workspace_at(unsigned char *base, uint32_t blocks)
{
    size_t arrivals = (blocks * sizeof(uint32_t) + 255) / 256 * 256;
    size_t headers = (2 * blocks * sizeof(struct part_header) + 255) / 256 * 256;
    struct workspace workspace;
    workspace.arrivals = reinterpret_cast<uint32_t *>(base);
    workspace.headers = reinterpret_cast<struct part_header *>(base + arrivals);
    workspace.slots = reinterpret_cast<uint64_t *>(base + arrivals + headers);
    return workspace;
}

/* Entries of a slot are pairs of score bits and position. A block holds at most two unfinished
 * rows: one begun by an earlier block, one begun here. */
__device__ __forceinline__ uint32_t slot_of_part(uint32_t first_block, uint32_t part)
{
    return part == 0 ? 2 * first_block + 1 : 2 * (first_block + part);
}

/* The row at hand, by virtual position. */
template <int CANDIDATES>
__device__ __forceinline__ const float *row_at_hand(const struct stream_shared<CANDIDATES> &shared)
{
    return task_row(shared.task, shared.segment.row) - shared.segment.skew;
}

/*
 * Where a warp stands in the ring. Stage n of a block's whole work is taken by the warps whose
 * group is n modulo the number of groups.
 */
struct warp_place {
    uint32_t due;          /* stages of the part at hand before this warp's next */
    uint32_t stage, phase; /* of that next one in the ring */
};

#if __CUDA_ARCH__ >= 900
/*
 * Waits until a stage is full; false, in the whole warp, after an overflow: other warps then hold
 * stages that the ring would need to go on.
 */
template <int CANDIDATES>
__device__ __forceinline__ bool wait_for_stage(const struct warp_place &place)
{
    auto &shared = state<CANDIDATES>();
    bool full = mbarrier_try_wait(&shared.ring.full[place.stage], place.phase);
    while (!full && *(volatile uint32_t *)&shared.frontier.stored == 0xffffffffu) {
        full = mbarrier_try_wait(&shared.ring.full[place.stage], place.phase);
    }
    return __all_sync(WARP_ALL, full);
}
#endif

/* The marks of a chunk that the part covers whole. */
__device__ __forceinline__ uint32_t marks_inner(const float *lane_scores, float low)
{
    uint32_t marks = 0;
#pragma unroll
    for (int g = 0; g < CHUNK / 128; g++) {
        const float4 four = *reinterpret_cast<const float4 *>(lane_scores + 128 * g);
        marks |= four.x >= low ? 1u << 4 * g : 0u;
        marks |= four.y >= low ? 2u << 4 * g : 0u;
        marks |= four.z >= low ? 4u << 4 * g : 0u;
        marks |= four.w >= low ? 8u << 4 * g : 0u;
    }
    return marks;
}

/*
 * The marks of a lane's scores of a chunk at virtual position `chunk` that lie in [begin, end).
 * 16-byte groups that the part does not cover whole, which the ring left out, are read from the
 * row one by one, for they may straddle its ends, and put into the stage.
 */
__device__ __noinline__ uint32_t marks_edge(float *lane_scores, const float *row, uint32_t chunk,
                                            uint32_t lane_first, uint32_t begin, uint32_t end,
                                            float low, uint32_t everything)
{
    uint32_t marks = 0;
    for (uint32_t g = 0; g < CHUNK / 128; g++) {
        const uint32_t at = chunk + lane_first + 128 * g;
        const bool whole = at >= begin && at + 4 <= end;
        for (uint32_t e = 0; e < 4; e++) {
            if (at + e >= begin && at + e < end) {
                float *place = lane_scores + 128 * g + e;
                if (!whole) {
                    *place = row[at + e];
                }
                marks |= *place >= low ? 1u << (4 * g + e) : everything & 1u << (4 * g + e);
            }
        }
    }
    fence_before_copies(); /* the ring writes there next */
    return marks;
}

/*
 * Admits this warp's chunks of the part at hand from the ring, until none is left or the candidates
 * overflow. This is where the time goes: no barrier and no call in the common case.
 */
template <int THREADS, int CANDIDATES>
__device__ __noinline__ struct warp_place
scan_chunks(struct warp_place place, struct admission admission, uint32_t num_stages)
{
    constexpr uint32_t GROUPS = THREADS / 32 / STAGE_WARPS;
    auto &shared = state<CANDIDATES>();
    const uint32_t begin = shared.segment.begin, end = shared.segment.end;
    const uint32_t skew = shared.segment.skew, lane_first = 4 * lane_index();
    const uint32_t within = warp_index() % STAGE_WARPS * CHUNK;
    uint32_t chunk = begin / TOPK_UNIT_SCORES * TOPK_UNIT_SCORES + place.due * STAGE + within;
    for (; chunk < end + within; chunk += GROUPS * STAGE) {
#if __CUDA_ARCH__ >= 900
        if (!wait_for_stage<CANDIDATES>(place)) {
            break;
        }
#endif
        float *scores = stage_at<CANDIDATES>(place.stage) + within;
        const bool early = chunk - skew < admission.until || chunk < skew;
        const float low = early ? admission.score : admission.later;
        const uint32_t everything = early ? admission.everything : 0;
        uint32_t marks;
        if (chunk >= begin && chunk + CHUNK <= end) {
            marks = marks_inner(scores + lane_first, low) | everything;
        } else {
            marks = marks_edge(scores + lane_first, row_at_hand(shared), chunk, lane_first, begin,
                               end, low, everything);
        }
        if (!frontier_admit(shared.frontier, marks, lane_first, chunk - skew,
                            [&](uint32_t at) { return scores[at]; })) {
            break;
        }
        __syncwarp();
#if __CUDA_ARCH__ >= 900
        if (lane_index() == 0) {
            mbarrier_arrive(&shared.ring.empty[place.stage]);
        }
#endif
        place.due += GROUPS;
        place.stage += GROUPS;
        if (place.stage >= num_stages) {
            place.stage -= num_stages;
            place.phase ^= 1;
        }
    }
    return place;
}

/* Cuts the candidates after an overflow (frontier.cuh). All threads call, after a barrier. */
template <int THREADS, int CANDIDATES>
__device__ __noinline__ struct admission cut_candidates(uint32_t count)
{
    return frontier_cut<THREADS, CANDIDATES>(count, state<CANDIDATES>().frontier);
}

/* Admits the part at hand from the ring; returns how many are held. Ends with a barrier. */
template <int THREADS, int CANDIDATES>
__device__ __forceinline__ uint32_t scan_ring(uint32_t boundary, uint32_t num_stages,
                                              struct warp_place &place)
{
    auto &shared = state<CANDIDATES>();
    struct admission admission = admission_of(boundary);
    for (;;) {
        place = scan_chunks<THREADS, CANDIDATES>(place, admission, num_stages);
        block_sync<THREADS>();
        const uint32_t stored = shared.frontier.stored;
        if (stored == 0xffffffffu) {
            break;
        }
        admission = cut_candidates<THREADS, CANDIDATES>(stored);
    }
    const uint32_t first = shared.segment.begin / TOPK_UNIT_SCORES * TOPK_UNIT_SCORES;
    place.due -= (shared.segment.end - first + STAGE - 1) / STAGE;
    return shared.frontier.count;
}

/* Admits the whole row from global memory: the slow, rare second look. Ends with a barrier. */
template <int THREADS, int CANDIDATES>
__device__ __noinline__ uint32_t scan_again(uint32_t low)
{
    auto &shared = state<CANDIDATES>();
    const uint32_t length = (uint32_t)shared.segment.length;
    const float *row = row_at_hand(shared) + shared.segment.skew;
    const struct boundary boundary = {low, 0, first_shift(low)};
    frontier_begin(boundary, (uint32_t)shared.task.k, length, shared.frontier);
    block_sync<THREADS>();
    struct admission admission = admission_of(low);
    for (uint32_t step = 0; step < length; step += CHUNK * (THREADS / 32)) {
        const uint32_t chunk = step + warp_index() * CHUNK, lane_first = 4 * lane_index();
        bool admitted = false;
        for (;;) {
            if (!admitted) {
                const bool early = chunk < admission.until;
                const float bound = early ? admission.score : admission.later;
                uint32_t marks = 0;
#pragma unroll 8
                for (uint32_t i = 0; i < 32; i++) {
                    const uint32_t at = chunk + lane_first + (i & 3u) + 32 * (i & 28u);
                    if (at < length) {
                        bool enters = row[at] >= bound || (early && admission.everything != 0);
                        marks |= enters ? 1u << i : 0u;
                    }
                }
                admitted = frontier_admit(shared.frontier, marks, lane_first, chunk,
                                          [&](uint32_t at) { return row[chunk + at]; });
            }
            block_sync<THREADS>();
            const uint32_t stored = shared.frontier.stored;
            block_sync<THREADS>(); /* all have read it before anyone admits more */
            if (stored == 0xffffffffu) {
                break;
            }
            admission = cut_candidates<THREADS, CANDIDATES>(stored);
        }
    }
    return shared.frontier.count;
}

/* Proposes a boundary for the row at hand. */
template <int THREADS, int CANDIDATES>
__device__ __noinline__ struct boundary propose_boundary(const struct select_params &params,
                                                         float margin)
{
    auto &shared = state<CANDIDATES>();
    return sample_boundary<THREADS>(row_at_hand(shared), shared.segment.skew,
                                    (uint32_t)shared.segment.length, (uint32_t)shared.task.k,
                                    margin, params, shared.frontier.bins, shared.frontier.coarse,
                                    shared.frontier.rank);
}

} // namespace

#endif
