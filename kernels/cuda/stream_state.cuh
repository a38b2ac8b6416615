/*
 * stream_state.cuh - the state of a block of the stream families: its warps' roles, and how parts
 * of rows are handed from one role to the next.
 */
#ifndef TOPKSEL_CUDA_STREAM_STATE_CUH
#define TOPKSEL_CUDA_STREAM_STATE_CUH

#include "boundary.cuh"
#include "frontier.cuh"
#include "ring.cuh"
#include "share.cuh"

namespace
{

#define STAGE ((uint32_t)(TOPK_STAGE_BYTES / sizeof(score_t))) /* scores */
#define CHUNK TOPK_CHUNK_SCORES
#define STAGE_WARPS (STAGE / CHUNK) /* warps that share a stage */
#define PARTS_MAX TOPK_STREAM_BLOCKS_MAX
#define JOBS 4 /* choice: parts that are known at a time; two ahead of the one scanned */

/* Barriers of teams of warps; 0 is the block's, 1 the finishers' (block_sync). */
#define TEAM_SAMPLERS 2
#define TEAM_SCANNERS 3

/*
 * Which warps do what. The finishers come first, so that what is written for the first THREADS
 * threads of a block serves them.
 */
template <int FINISH_WARPS, int SCAN_WARPS_, int CANDIDATES_, int BUFFERS_>
struct stream_roles {
    static constexpr int THREADS = 32 * FINISH_WARPS; /* the finishers */
    static constexpr uint32_t SCAN_WARPS = SCAN_WARPS_;
    static constexpr int CANDIDATES = CANDIDATES_; /* held of a part */
    static constexpr uint32_t BUFFERS = BUFFERS_;  /* parts whose candidates are held */
    static constexpr uint32_t FIRST_SCANNER = FINISH_WARPS;
    static constexpr uint32_t FIRST_SAMPLER = FIRST_SCANNER + SCAN_WARPS;
    static constexpr uint32_t PRODUCER = FIRST_SAMPLER + TOPK_STREAM_SAMPLE_WARPS;
    static constexpr int BLOCK_THREADS = 32 * (PRODUCER + 1);
};

/* A part of a row, on its way through the block. */
struct job {
    struct segment segment;
    struct boundary boundary;   /* of the row: the same in every part */
    struct admission admission; /* what scanners admit: of the boundary, or since the last cut */
    bool exists;                /* false: there are no more */
    score_t edges[2 * SCORE_GROUP]; /* scores at its ends: edge_position */
};

/* Virtual position of the i-th score at a part's ends, of those that are no whole 16 bytes: those
 * at the beginning, then those at the end. Others lie outside of the part, or in such a group. */
__device__ __forceinline__ uint32_t edge_position(const struct segment &segment, uint32_t i)
{
    const uint32_t group = i < SCORE_GROUP ? segment.begin : segment.end;
    return group - group % SCORE_GROUP + i % SCORE_GROUP;
}

/*
 * Where one role waits for another; of each job, in turn. Phases of a job's barriers complete once
 * each time that the job is used, `scanned` once more for every cut.
 */
template <int BUFFERS>
struct hand_over {
    uint64_t posted[JOBS];     /* the segment is known: to the producer */
    uint64_t ready[JOBS];      /* so is the boundary: to scanners and finishers */
    uint64_t scanned[JOBS];    /* every scanning warp is through, or stuck: to finishers */
    uint64_t freed[JOBS];      /* the producer and the finishers are through: to the samplers */
    uint64_t sampled;          /* the first sample has come: to the producer */
    uint64_t resumed[BUFFERS]; /* the candidates were cut: to the scanners that are stuck */
    uint32_t stuck[BUFFERS];   /* scanning warps that wait for that */
    uint32_t cuts[BUFFERS];    /* of all jobs so far */
};

template <class Roles>
struct stream_shared {
    struct finish_shared finish;
    struct frontier_shared<Roles::CANDIDATES> frontiers[Roles::BUFFERS];
    alignas(16) uint32_t sample_bins[TOPK_BINS]; /* zero between samples */
    struct job jobs[JOBS];
    struct hand_over<Roles::BUFFERS> hand_over;
    struct ring_barriers ring;
    struct task task;
    struct share share;
    struct route_counts counts;
    struct rank_bin first_found[3]; /* of a block's first boundary */
    struct topk_args args;          /* where results go: read while the first row is scanned */
    bool by_value, by_position;     /* order of the results */
    int32_t offset;                 /* of the positions of the row at hand */
    uint32_t arrived;
    uint32_t written; /* entries of a result in no order */
    bool overflowed;  /* another block's candidates of the row did */
};

/*
 * Dynamic shared memory: the state, then the ring. Functions that are not inlined take the state
 * from here and not as an argument: only so does the compiler know that its addresses are shared,
 * and shared atomics on addresses of unknown kind are loops.
 */
SHARED_DYNAMIC(__align__(128) unsigned char, dynamic_shared);

template <class Roles>
__device__ __forceinline__ struct stream_shared<Roles> &state() {
    return *reinterpret_cast<struct stream_shared<Roles> *>(&dynamic_shared[0]);
}

/* The n-th part of this block, and its candidates. */
template <class Roles>
__device__ __forceinline__ struct job &job_at(uint32_t n)
{
    return state<Roles>().jobs[n % JOBS];
}

template <class Roles>
__device__ __forceinline__ struct frontier_shared<Roles::CANDIDATES> &frontier_at(uint32_t n) {
    return state<Roles>().frontiers[n % Roles::BUFFERS];
}

/* The ring's stages; bulk copies want them aligned to 128 bytes. */
template <class Roles>
__device__ __forceinline__ score_t *stage_at(uint32_t stage)
{
    constexpr size_t first = (sizeof(struct stream_shared<Roles>) + 127) / 128 * 128;
    return reinterpret_cast<score_t *>(&dynamic_shared[first]) + (size_t)stage * STAGE;
}

/* A part's row, by virtual position. */
template <class Roles>
__device__ __forceinline__ const score_t *row_of(const struct segment &segment)
{
    return task_row(state<Roles>().task, segment.row) - segment.skew;
}

#if __CUDA_ARCH__ >= 900
/* The n-th phase of a job's barrier. Every thread that reads what is handed over waits. */
__device__ __forceinline__ void wait_for(uint64_t (&barriers)[JOBS], uint32_t n)
{
    ring_wait(&barriers[n % JOBS], n / JOBS & 1);
    __syncwarp();
}

/* One thread, before the block's barrier. */
template <class Roles>
__device__ __forceinline__ void hand_over_init()
{
    auto &hand = state<Roles>().hand_over;
    for (uint32_t i = 0; i < JOBS; i++) {
        mbarrier_init_one(&hand.posted[i]);
        mbarrier_init(&hand.ready[i], HAND_OVER_ARRIVALS(32));
        mbarrier_init(&hand.scanned[i], Roles::SCAN_WARPS * HAND_OVER_ARRIVALS(32));
        mbarrier_init(&hand.freed[i], 1 + HAND_OVER_ARRIVALS(Roles::THREADS));
    }
    for (uint32_t i = 0; i < Roles::BUFFERS; i++) {
        mbarrier_init(&hand.resumed[i], HAND_OVER_ARRIVALS(Roles::THREADS));
        hand.stuck[i] = hand.cuts[i] = 0;
        frontier_clear(state<Roles>().frontiers[i]);
    }
    mbarrier_init(&hand.sampled, HAND_OVER_ARRIVALS(Roles::THREADS));
    fence_mbarrier_init();
}
#endif

} // namespace

#endif
