/*
 * stream_scan.cuh - how a block of the stream families reads its share: one warp feeds a ring of
 * stages with bulk copies, the scanners admit candidates from it. Neither stops at a row's end.
 */
#ifndef TOPKSEL_CUDA_STREAM_SCAN_CUH
#define TOPKSEL_CUDA_STREAM_SCAN_CUH

#include "stream_state.cuh"

namespace
{

/*
 * Where a warp stands in the ring. Stage n of a block's whole work is taken by the warps whose
 * group is n modulo the number of groups.
 */
struct warp_place {
    uint32_t due;          /* stages of the part at hand before this warp's next */
    uint32_t stage, phase; /* of that next one in the ring */
};

/*
 * The stages of a part, in the order in which they are read: from the second quarter on, the first
 * one last. The best scores crowd at a row's ends as a rule, and chunks with many take long, which
 * hurts least where others follow.
 */
struct stage_order {
    uint32_t first; /* virtual position of the part's first stage */
    uint32_t count, quarter;
};

__device__ __forceinline__ struct stage_order stage_order_of(const struct segment &segment)
{
    const uint32_t first = segment.begin / TOPK_UNIT_SCORES * TOPK_UNIT_SCORES;
    const uint32_t count = (segment.end - first + STAGE - 1) / STAGE;
    return {first, count, count / 4};
}

/* Virtual position of the i-th stage. */
__device__ __forceinline__ uint32_t stage_begin(const struct stage_order &order, uint32_t i)
{
    const uint32_t stage = i + order.quarter;
    return order.first + (stage < order.count ? stage : stage - order.count) * STAGE;
}

/* The marks of a chunk that the part covers whole, all of it before or behind `until`. */
__device__ __forceinline__ uint32_t marks_inner(const score_t *scores, score_bound low)
{
    const score_group *groups = reinterpret_cast<const score_group *>(scores) + lane_index();
    return group_marks<CHUNK / (32 * SCORE_GROUP), false>(
        low, [&](uint32_t g) { return groups[32 * g]; });
}

/* Bits of a lane's marks: places of a chunk from `first` on, below `end`. */
__device__ __forceinline__ uint32_t places_between(int32_t first, int32_t end)
{
    uint32_t marks = 0;
#pragma unroll
    for (uint32_t i = 0; i < 32; i += SCORE_GROUP) {
        const int32_t group = (int32_t)mark_place(i), all = (int32_t)SCORE_GROUP;
        const uint32_t from = (uint32_t)min(max(first - group, 0), all);
        const uint32_t to = (uint32_t)min(max(end - group, 0), all);
        marks |= to > from ? ((1u << to) - (1u << from)) << i : 0u;
    }
    return marks;
}

/* The place in a chunk of a virtual position: its first if that lies before, its end if behind. */
__device__ __forceinline__ int32_t place_in(uint32_t chunk, uint32_t position)
{
    return position > chunk ? (int32_t)min(position - chunk, (uint32_t)CHUNK) : 0;
}

/*
 * The marks of any other chunk, at virtual position `chunk` of the n-th part. Scores at the part's
 * ends that the ring left out, for they are no whole 16 bytes, are put into the stage first.
 */
template <class Roles>
__device__ __noinline__ uint32_t marks_edge(uint32_t n, score_t *scores, uint32_t chunk)
{
    const struct job &job = job_at<Roles>(n);
    const struct segment &segment = job.segment;
    const struct admission admission = job.admission;
    const int32_t first = place_in(chunk, segment.begin), end = place_in(chunk, segment.end);
    if (lane_index() < 2 * SCORE_GROUP) {
        const int32_t place = (int32_t)(edge_position(segment, lane_index()) - chunk);
        if (place >= first && place < end) {
            scores[place] = job.edges[lane_index()];
        }
    }
    __syncwarp();
    const uint32_t until = segment.skew + min(admission.until, (uint32_t)segment.length);
    const int32_t middle = min(max(place_in(chunk, until), first), end);
    const uint32_t early = marks_inner(scores, admission.score) | admission.everything;
    const uint32_t later = marks_inner(scores, admission.later);
    const uint32_t marks =
        (early & places_between(first, middle)) | (later & places_between(middle, end));
    fence_before_copies(); /* the ring writes there next */
    return marks;
}

#if __CUDA_ARCH__ >= 900
/*
 * One warp, of which one lane works: keeps the ring full, part after part. When all blocks begin,
 * full rings would have the first sample wait for some microseconds: so at first a few stages, and
 * the others when it has come.
 */
#define EARLY_STAGES 3 /* choice */
template <class Roles>
__device__ __forceinline__ void produce(uint32_t num_stages)
{
    auto &shared = state<Roles>();
    struct ring_place place = {0, 0};
    for (uint32_t n = 0;; n++) {
        ring_wait(&shared.hand_over.posted[n % JOBS], n / JOBS & 1);
        if (!job_at<Roles>(n).exists) {
            break;
        }
        const struct segment &segment = job_at<Roles>(n).segment;
        const score_t *row = row_of<Roles>(segment);
        const struct stage_order order = stage_order_of(segment);
        const uint32_t stages = segment.length > shared.task.k ? order.count : 0;
        /* Only whole groups of 16 bytes. */
        const uint32_t begin = (segment.begin + SCORE_GROUP - 1) / SCORE_GROUP * SCORE_GROUP;
        const uint32_t end = segment.end / SCORE_GROUP * SCORE_GROUP;
        const uint32_t turn = order.first + order.count * STAGE;
        /* Stages that begin in the first so many scores are whole; of a short part none. */
        const uint32_t whole = end >= begin + STAGE ? end - begin - STAGE + 1 : 0;
        uint32_t step = stage_begin(order, 0), left = stages;
        uint32_t until = n == 0 && stages > EARLY_STAGES ? stages - EARLY_STAGES : 0;
        for (;;) {
            for (; left > until; left--) { /* few steps: this warp is to keep up with memory */
                score_t *stage = stage_at<Roles>(place.stage);
                uint64_t *full = &shared.ring.full[place.stage];
                ring_wait(&shared.ring.empty[place.stage], place.phase ^ 1);
                if (step - begin < whole) {
                    ring_copy(stage, row + step, STAGE * (uint32_t)sizeof(score_t), full);
                } else {
                    const uint32_t from = max(step, begin), to = max(min(step + STAGE, end), from);
                    ring_copy(stage + (from - step), row + from,
                              (to - from) * (uint32_t)sizeof(score_t), full);
                }
                ring_advance(place, num_stages);
                step += STAGE;
                step = step == turn ? order.first : step;
            }
            if (left == 0) {
                break;
            }
            ring_wait(&shared.hand_over.sampled, 0);
            until = 0;
        }
        mbarrier_arrive(&shared.hand_over.freed[n % JOBS]);
    }
}

/*
 * Waits until a stage is full; false, in the whole warp, after an overflow: other warps then hold
 * stages that the ring would need to go on.
 */
__device__ __forceinline__ bool wait_for_stage(struct ring_barriers &ring,
                                               const volatile uint32_t &stored,
                                               const struct warp_place &place)
{
    bool full = mbarrier_try_wait(&ring.full[place.stage], place.phase);
    while (!full && stored == 0xffffffffu) {
        full = mbarrier_try_wait(&ring.full[place.stage], place.phase);
    }
    return __all_sync(WARP_ALL, full);
}

/*
 * Admits this warp's chunks of the n-th part from the ring, until none is left or the candidates
 * overflow, when it returns false. This is where the time goes: no barrier and no call in the
 * common case.
 */
template <class Roles>
__device__ __forceinline__ bool scan_chunks(uint32_t n, uint32_t num_stages,
                                            struct warp_place &place)
{
    constexpr uint32_t GROUPS = Roles::SCAN_WARPS / STAGE_WARPS;
    auto &shared = state<Roles>();
    auto &frontier = frontier_at<Roles>(n);
    const struct segment &segment = job_at<Roles>(n).segment;
    const struct admission admission = job_at<Roles>(n).admission;
    const uint32_t begin = segment.begin, end = segment.end, skew = segment.skew;
    const uint32_t within = (warp_index() - Roles::FIRST_SCANNER) % STAGE_WARPS * CHUNK;
    const struct stage_order order = stage_order_of(segment);
    while (place.due < order.count) {
        const uint32_t chunk = stage_begin(order, place.due) + within;
        if (!wait_for_stage(shared.ring, frontier.stored, place)) {
            return false;
        }
        score_t *scores = stage_at<Roles>(place.stage) + within;
        const bool is_whole = chunk >= begin && chunk + CHUNK <= end;
        const bool early = chunk - skew < admission.until; /* the first place, and the last */
        const bool all_early = chunk - skew + (CHUNK - 1) < admission.until;
        uint32_t marks;
        if (is_whole && early == all_early) {
            marks = marks_inner(scores, early ? admission.score : admission.later);
            marks |= early ? admission.everything : 0;
        } else {
            marks = marks_edge<Roles>(n, scores, chunk);
        }
        if (!frontier_admit(frontier, marks, chunk - skew,
                            [&](uint32_t at) { return score_number(scores[at]); })) {
            return false;
        }
        __syncwarp();
        mbarrier_hand_over(&shared.ring.empty[place.stage], lane_index() == 0);
        place.due += GROUPS;
        place.stage += GROUPS;
        if (place.stage >= num_stages) {
            place.stage -= num_stages;
            place.phase ^= 1;
        }
    }
    return true;
}

/*
 * The scanners' work, part after part. A warp whose candidates do not fit counts itself stuck, and
 * as through like those that are; the finishers cut the candidates when all are, and let it resume.
 */
template <class Roles>
__device__ __forceinline__ void scan(uint32_t num_stages)
{
    static_assert(Roles::BUFFERS <= JOBS, "a buffer is free when a job is");
    auto &shared = state<Roles>();
    auto &hand = shared.hand_over;
    const uint32_t group = (warp_index() - Roles::FIRST_SCANNER) / STAGE_WARPS;
    struct warp_place place = {group, group, 0};
    for (uint32_t n = 0;; n++) {
        wait_for(hand.ready, n);
        if (!job_at<Roles>(n).exists) {
            break;
        }
        if (n >= Roles::BUFFERS) {
            wait_for(hand.freed, n - Roles::BUFFERS);
        }
        const struct segment &segment = job_at<Roles>(n).segment;
        if (segment.length > shared.task.k) {
            const uint32_t buffer = n % Roles::BUFFERS;
            while (!scan_chunks<Roles>(n, num_stages, place)) {
                const uint32_t phase = hand.cuts[buffer] & 1;
                __syncwarp();
                if (lane_index() == 0) {
                    atomicAdd(&hand.stuck[buffer], 1u);
                }
                mbarrier_hand_over(&hand.scanned[n % JOBS], lane_index() == 0);
                ring_wait(&hand.resumed[buffer], phase);
                __syncwarp();
            }
            place.due -= stage_order_of(segment).count;
        }
        __syncwarp();
        mbarrier_hand_over(&hand.scanned[n % JOBS], lane_index() == 0);
    }
}
#endif

} // namespace

#endif
