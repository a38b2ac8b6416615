/*
 * stream_write.cuh - the end of a row in the stream families: selection among the candidates, and
 * the result in no order, by position or by value; and the second look at a row whose proposed
 * boundary was too high.
 */
#ifndef TOPKSEL_CUDA_STREAM_WRITE_CUH
#define TOPKSEL_CUDA_STREAM_WRITE_CUH

#include "order.cuh"
#include "stream_order.cuh"

namespace
{

enum route { ROUTE_NONE, ROUTE_DIRECT, ROUTE_CERTIFIED, ROUTE_BAND, ROUTE_RECOVERY };

/* Cuts the candidates of the n-th part after an overflow. All finishers call, after a barrier. */
template <class Roles>
__device__ __noinline__ struct admission cut_candidates(uint32_t n, uint32_t count)
{
    return frontier_cut<Roles::THREADS, Roles::CANDIDATES>(count, frontier_at<Roles>(n),
                                                           state<Roles>().finish);
}

/*
 * The marks of a chunk of a row in global memory, at virtual position `chunk`; what lies outside of
 * [begin, end) is not read. All loads of a chunk that lies inside go out together.
 */
__device__ __forceinline__ uint32_t marks_again(const score_t *row, uint32_t chunk, uint32_t begin,
                                                uint32_t end, const struct admission &admission)
{
    const bool early = chunk - min(begin, chunk) < admission.until;
    const score_bound bound = early ? admission.score : admission.later;
    const uint32_t everything = early ? admission.everything : 0;
    if (chunk >= begin && end - chunk >= CHUNK) {
        return everything | group_marks<32 / SCORE_GROUP, false>(bound, [&](uint32_t g) {
                   return group_load(row + chunk, lane_index() + 32 * g);
               });
    }
    uint32_t marks = 0;
#pragma unroll 8
    for (uint32_t i = 0; i < 32; i++) {
        const uint32_t at = chunk + mark_place(i);
        if (at >= begin && at < end) {
            marks |= reaches(row[at], bound) || everything != 0 ? 1u << i : 0u;
        }
    }
    return marks;
}

/* Asks for a chunk to come to the L2 cache, as far as it lies in [begin, end). One lane. */
__device__ __forceinline__ void ask_for(const score_t *row, uint32_t chunk, uint32_t begin,
                                        uint32_t end)
{
#if __CUDA_ARCH__ >= 900
    const uint32_t from = max(chunk, (begin + SCORE_GROUP - 1) / SCORE_GROUP * SCORE_GROUP);
    const uint32_t to = min(chunk + CHUNK, end / SCORE_GROUP * SCORE_GROUP);
    if (to > from) {
        prefetch_bulk(row + from, (int32_t)((to - from) * sizeof(score_t)));
    }
#else
    (void)row, (void)chunk, (void)begin, (void)end; /* these families do nothing before sm_90 */
#endif
}

/*
 * Admits the whole row from global memory: the slow, rare second look. Ends with a barrier. As the
 * scanners', its warps do not wait for each other, unless candidates must be cut; chunks are asked
 * for some turns ahead, for a warp has no more than one in its registers.
 */
#define AGAIN_AHEAD 4 /* choice: turns; 128 KB of all warps */
template <class Roles>
__device__ __noinline__ uint32_t scan_again(uint32_t n, uint32_t low)
{
    constexpr int THREADS = Roles::THREADS;
    constexpr uint32_t TURN = CHUNK * THREADS / 32;
    auto &frontier = frontier_at<Roles>(n);
    const struct segment &segment = job_at<Roles>(n).segment;
    const score_t *row = row_of<Roles>(segment);
    const uint32_t skew = segment.skew, end = skew + (uint32_t)segment.length;
    uint32_t chunk = warp_index() * CHUNK;
    if (lane_index() < AGAIN_AHEAD) {
        ask_for(row, chunk + lane_index() * TURN, skew, end);
    }
    block_sync<THREADS>();
    if (threadIdx.x == 0) {
        const struct boundary boundary = {low, 0xffffffffu, 0, first_shift(low), KEY_NAN};
        frontier_begin(boundary, (uint32_t)state<Roles>().task.k, end - skew, frontier);
        frontier_clear(frontier);
    }
    block_sync<THREADS>();
    struct admission admission = admission_of(low, 0xffffffffu);
    for (;;) {
        /* Scores are read twice, and may have changed: no key held is lower than said. */
        const uint32_t lowest = frontier.lowest;
        for (; chunk < end; chunk += TURN) {
            if (lane_index() == 0) {
                ask_for(row, chunk + AGAIN_AHEAD * TURN, skew, end);
            }
            const uint32_t marks = marks_again(row, chunk, skew, end, admission);
            if (!frontier_admit(frontier, marks, chunk - skew, [&](uint32_t at) {
                    const float score = score_number(row[chunk + at]);
                    return key_of(score) >= lowest ? score
                                                   : __uint_as_float(key_floor_bits(lowest));
                })) {
                break;
            }
        }
        block_sync<THREADS>();
        const uint32_t stored = frontier.stored;
        block_sync<THREADS>(); /* all have read it before anyone admits more */
        if (stored == 0xffffffffu) {
            break;
        }
        admission = cut_candidates<Roles>(n, stored);
    }
    return frontier.count;
}

/* The sort buffer lies over both histograms. */
__device__ __forceinline__ uint64_t *sort_buffer(struct finish_shared &finish)
{
    static_assert(2 * TOPK_BINS * sizeof(uint32_t) >= TOPK_K_FAST_MAX * sizeof(uint64_t),
                  "the largest fast K fits");
    return reinterpret_cast<uint64_t *>(finish.bins);
}

#define LOOK_UPS 8 /* choice: pages and values a thread asks for at once; all of K 2048 */

/* Where the result of the n-th part's row goes. */
template <class Roles>
__device__ __forceinline__ struct sink sink_at(uint32_t n)
{
    auto &shared = state<Roles>();
    const int32_t row = job_at<Roles>(n).segment.row;
    return shared.task.plain
               ? sink_plain(shared.task, row)
               : sink_open(shared.args, task_row(shared.task, row), row, shared.offset);
}

/* Writes the best k of `count` candidates (at least k) by value, descending. All threads call,
 * after a barrier. */
template <class Roles>
__device__ __noinline__ void write_by_value(uint32_t n, uint32_t count)
{
    constexpr int THREADS = Roles::THREADS;
    auto &shared = state<Roles>();
    auto &frontier = frontier_at<Roles>(n);
    const struct selection selection =
        frontier_select<THREADS, Roles::CANDIDATES>(count, frontier, shared.finish);
    const uint32_t k = (uint32_t)shared.task.k;
    uint64_t *entries = sort_buffer(shared.finish);
    block_sync<THREADS>(); /* the histograms are clear before entries overwrite them */
    for_each_ranked<THREADS, 4>(
        count,
        [&](int64_t i, uint32_t *key, uint32_t *position) {
            *key = key_of(frontier.scores[i]);
            *position = frontier.positions[i];
        },
        [&](uint32_t key, uint32_t position) {
            return is_selected(selection, key, position) ? EMIT_FIRST : EMIT_NONE;
        },
        shared.finish.emit,
        [&](uint32_t key, uint32_t position, enum emit_class, uint32_t slot, uint32_t) {
            if (slot < k) { /* more when the row changed while it was read */
                entries[slot] = sort_entry(key, position);
            }
        });
    block_sync<THREADS>();
    sort_descending<THREADS>(entries, k);
    sink_put_sorted<THREADS, LOOK_UPS>(sink_at<Roles>(n), entries, k);
}

/* Bits of the calling thread's candidates (each_score) with keys from `low` on. */
template <class Roles>
__device__ __forceinline__ uint32_t marks_from(uint32_t n, uint32_t low, uint32_t count)
{
    auto &frontier = frontier_at<Roles>(n);
    const float bound = __uint_as_float(key_floor_bits(low));
    const uint32_t everything = low <= KEY_NAN ? 0xffffffffu : 0u;
    uint32_t marks = 0;
    each_score<Roles::THREADS>(frontier.scores, count, [&](float score, uint32_t bit) {
        marks |= score >= bound ? bit : everything & bit;
    });
    return marks;
}

/* Bits of the calling thread's candidates (each_score) that rank above the group. Those in it are
 * listed, in any order. */
template <class Roles>
__device__ __forceinline__ uint32_t marks_above(uint32_t n, const struct rank_group &group,
                                                uint32_t count)
{
    constexpr int THREADS = Roles::THREADS;
    auto &finish = state<Roles>().finish;
    auto &frontier = frontier_at<Roles>(n);
    const float from = __uint_as_float(key_floor_bits(group.low));
    const float above = __uint_as_float(key_floor_bits(min(group.high, KEY_PLUS_INF) + 1));
    uint32_t marks = 0, reach = 0, all = 0;
    each_score<THREADS>(frontier.scores, count, [&](float score, uint32_t bit) {
        marks |= score >= above ? bit : 0u;
        reach |= score >= from ? bit : 0u;
        all |= bit;
    });
    reach = group.low <= KEY_NAN ? all : reach; /* every one, NaN too */
    for (uint32_t rest = reach & ~marks; rest != 0; rest &= rest - 1) {
        const uint32_t at = candidate_at<THREADS>((uint32_t)__ffs((int)rest) - 1, count);
        finish.group[atomicAdd(&finish.rank.list_count, 1u)] =
            sort_entry(key_of(frontier.scores[at]), frontier.positions[at]);
    }
    return marks;
}

/*
 * Bits of the calling thread's candidates that are surely selected where the group is a plateau of
 * more than can be ranked by comparison: those above it, and its first positions, but for the last
 * few of these, which become the group and are listed. Counted are the places of the plateau's own
 * candidates only, in as many bins as there are, the first places in the highest; one round is
 * enough for rows of 256K, and two for any but the longest. All threads call, after a barrier;
 * three barriers a round.
 */
template <class Roles>
__device__ __forceinline__ uint32_t marks_of_plateau(uint32_t n, uint32_t count,
                                                     struct rank_group &group)
{
    constexpr int THREADS = Roles::THREADS;
    auto &finish = state<Roles>().finish;
    auto &frontier = frontier_at<Roles>(n);
    uint32_t marks = 0, tied = 0;
    each_score<THREADS>(frontier.scores, count, [&](float score, uint32_t bit) {
        const uint32_t key = key_of(score);
        marks |= key > group.low ? bit : 0u;
        tied |= key == group.low ? bit : 0u;
    });
    const auto each_tied = [&](const auto &visit) {
        for (uint32_t rest = tied; rest != 0; rest &= rest - 1) {
            const uint32_t i = (uint32_t)__ffs((int)rest) - 1;
            visit(frontier.positions[candidate_at<THREADS>(i, count)], 1u << i);
        }
    };
    uint32_t first = 0, shift = range_shift((uint32_t)job_at<Roles>(n).segment.length - 1u);
    const auto bin_of = [&](uint32_t position) {
        return TOPK_BINS - 1u - ((position - first) >> shift);
    };
    struct rank_bin found;
    for (;;) {
        each_tied(
            [&](uint32_t position, uint32_t) { atomicAdd(&finish.bins[bin_of(position)], 1u); });
        block_sync<THREADS>();
        found = scan_bins<THREADS>(finish.bins, group.take, finish.rank);
        if (found.total < group.take) { /* what others published changed: all there are */
            group.count = group.take = 0;
            return marks | tied;
        }
        group.take -= found.above;
        each_tied([&](uint32_t position, uint32_t bit) {
            const uint32_t bin = bin_of(position);
            marks |= bin > found.bin ? bit : 0u;
            tied &= bin != found.bin ? ~bit : 0xffffffffu;
        });
        if (found.count <= GROUP_LIST || shift == 0) {
            break;
        }
        first += (TOPK_BINS - 1u - found.bin) << shift;
        shift = range_shift((1u << shift) - 1u);
    }
    /* More than that are one position again and again, which others published: any of them. */
    const bool listed = found.count <= GROUP_LIST;
    each_tied([&](uint32_t position, uint32_t bit) {
        const uint32_t slot = atomicAdd(&finish.rank.list_count, 1u);
        if (listed) {
            finish.group[slot] = sort_entry(group.low, position);
        } else {
            marks |= slot < group.take ? bit : 0u;
        }
    });
    group.count = listed ? found.count : 0;
    group.take = listed ? group.take : 0;
    return marks;
}

/*
 * Calls put(rank, entry, position) for each of the best `take` of the listed group, a thread an
 * entry; positions are below `length`, also of entries that are not there because what others
 * published changed. All threads call, after a barrier.
 */
template <int THREADS, class Put>
__device__ __forceinline__ void rank_listed(const struct rank_group &group, uint32_t length,
                                            struct finish_shared &finish, const Put &put)
{
    constexpr uint32_t BATCH = 4; /* choice: entries loaded before any is compared */
    static_assert(GROUP_LIST <= THREADS && GROUP_LIST % BATCH == 0, "an entry a thread");
    if (threadIdx.x == 0) {
        finish.rank.list_count = 0;
    }
    if (threadIdx.x < group.count) {
        const uint64_t own = finish.group[threadIdx.x];
        uint32_t rank = 0; /* no two entries are equal */
#pragma unroll 1
        for (uint32_t i = 0; i < group.count; i += BATCH) {
#pragma unroll
            for (uint32_t j = 0; j < BATCH; j++) {
                rank += i + j < group.count && finish.group[i + j] > own ? 1u : 0u;
            }
        }
        if (rank < group.take) {
            put(rank, own, min(~(uint32_t)own, length - 1u));
        }
    }
}

/* Puts those of the calling thread's four that are marked (by the lowest bits) side by side. */
__device__ __forceinline__ uint32_t *list_four(uint32_t marks, const uint4 &four, uint32_t *list)
{
    const uint32_t word[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        if ((marks >> i & 1u) != 0) {
            *list++ = word[i];
        }
    }
    return list;
}

/* Puts the words of the calling thread's marked candidates side by side. */
template <int THREADS>
__device__ __forceinline__ void list_marked(const uint32_t *words, uint32_t marks, uint32_t count,
                                            uint32_t *list)
{
    const uint4 *quads = reinterpret_cast<const uint4 *>(words);
    uint32_t rest = marks;
#pragma unroll 1
    for (uint32_t quad = threadIdx.x; quad < count / 4; quad += THREADS, rest >>= 4) {
        list = list_four(rest, quads[quad], list);
    }
    if (marks >> SINGLE_BIT != 0) {
        *list = words[candidate_at<THREADS>(SINGLE_BIT, count)];
    }
}

/*
 * Puts the best k of `count` candidates (at least k) in `list`, in any order, but for the best of a
 * last group, which is returned (rank_listed). Candidates between those that are surely selected
 * and those that are not are few as a rule: they are listed in the same pass that marks the former,
 * ties and all. SCORES: with their scores. WAIT: the list lies where there are scores, or bins. All
 * threads call, after a barrier; ends with one.
 */
template <class Roles, bool SCORES, bool WAIT>
__device__ __forceinline__ struct rank_group list_selected(uint32_t n, uint32_t count,
                                                           const struct selected_list &list)
{
    constexpr int THREADS = Roles::THREADS;
    static_assert(Roles::CANDIDATES / THREADS < SINGLE_BIT, "one bit a candidate of a thread");
    auto &shared = state<Roles>();
    auto &frontier = frontier_at<Roles>(n);
    struct rank_group group =
        frontier_group<THREADS, Roles::CANDIDATES>(count, frontier, shared.finish);
    const bool all = group.count == group.take;
    uint32_t marks;
    if (all) {
        marks = marks_from<Roles>(n, group.low, count);
        group.count = group.take = 0; /* nothing is left to be ranked */
    } else if (group.count <= GROUP_LIST) {
        marks = marks_above<Roles>(n, group, count);
    } else {
        marks = marks_of_plateau<Roles>(n, count, group);
    }
    const uint32_t own = (uint32_t)__popc(marks), prefix = warp_prefix(own);
    uint32_t slot = 0;
    if (lane_index() == 31) {
        slot = atomicAdd(&shared.written, prefix);
    }
    slot = __shfl_sync(WARP_ALL, slot, 31) + prefix - own;
    if (WAIT) {
        block_sync<THREADS>(); /* scores are read, bins are clear */
    }
    list_marked<THREADS>(frontier.positions, marks, count, list.positions + slot);
    if (SCORES) {
        list_marked<THREADS>(reinterpret_cast<const uint32_t *>(frontier.scores), marks, count,
                             reinterpret_cast<uint32_t *>(list.scores) + slot);
    }
    block_sync<THREADS>();
    return group;
}

/*
 * Writes the best k of `count` candidates by position or in no order; SCORES: values too. The list
 * lies over the histograms, but in order without values, which needs these, over the candidates'
 * scores. All threads call, after a barrier.
 */
template <class Roles, bool BY_POSITION, bool SCORES>
__device__ __noinline__ void write_positions(uint32_t n, uint32_t count)
{
    constexpr int THREADS = Roles::THREADS;
    constexpr bool WAIT = BY_POSITION || SCORES;
    auto &shared = state<Roles>();
    float *scores = frontier_at<Roles>(n).scores;
    struct selected_list list = {BY_POSITION && !SCORES ? reinterpret_cast<uint32_t *>(scores)
                                                        : shared.finish.more,
                                 reinterpret_cast<float *>(shared.finish.bins)};
    const struct rank_group group = list_selected<Roles, SCORES, WAIT>(n, count, list);
    const uint32_t k = (uint32_t)shared.task.k, sure = k - group.take;
    const uint32_t length = (uint32_t)job_at<Roles>(n).segment.length;
    const struct sink sink = sink_at<Roles>(n);
    if (!WAIT && sink_adds(sink)) { /* the group need not join the others */
        rank_listed<THREADS>(
            group, length, shared.finish, [&](uint32_t rank, uint64_t, uint32_t position) {
                __stcg(&sink.indices[sure + rank], (int32_t)(position + (uint32_t)sink.offset));
            });
        sink_put_staged<THREADS>(sink, list.positions, sure);
        return;
    }
    rank_listed<THREADS>(
        group, length, shared.finish, [&](uint32_t rank, uint64_t entry, uint32_t position) {
            list.positions[sure + rank] = position;
            if (SCORES) {
                list.scores[sure + rank] = __uint_as_float(key_to_bits((uint32_t)(entry >> 32)));
            }
        });
    block_sync<THREADS>();
    if (BY_POSITION) {
        list = put_in_order<Roles, SCORES>(n, list);
    }
    sink_put_staged<THREADS, LOOK_UPS>(sink, list.positions, k, SCORES ? list.scores : nullptr);
}

/* Selects from `count` candidates (at least k) and writes; all threads call, after a barrier. The
 * histograms hold anything then. */
template <class Roles>
__device__ __forceinline__ void write_frontier(uint32_t n, uint32_t count)
{
    const auto &shared = state<Roles>();
    const bool values = shared.args.values != nullptr;
    if (shared.by_value) {
        write_by_value<Roles>(n, count);
    } else if (shared.by_position) {
        values ? write_positions<Roles, true, true>(n, count)
               : write_positions<Roles, true, false>(n, count);
    } else {
        values ? write_positions<Roles, false, true>(n, count)
               : write_positions<Roles, false, false>(n, count);
    }
}

/* The row read again, whole, by this block: with a much lower boundary, then with none. */
template <class Roles>
__device__ __noinline__ enum route recover(uint32_t n)
{
    auto &shared = state<Roles>();
    uint32_t reads = 1;
    uint32_t count = scan_again<Roles>(n, job_at<Roles>(n).boundary.fallback);
    if (count < (uint32_t)shared.task.k) {
        count = scan_again<Roles>(n, KEY_NAN);
        reads = 2;
    }
    write_frontier<Roles>(n, count);
    if (threadIdx.x == 0) {
        shared.counts.scores_read += reads * (uint64_t)(uint32_t)job_at<Roles>(n).segment.length;
    }
    return reads == 1 ? ROUTE_BAND : ROUTE_RECOVERY;
}

} // namespace

#endif
