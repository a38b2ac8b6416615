/*
 * task.cuh - one selection as the kernels see it: the caller's arguments, clamped to the plan, and
 * the way a result leaves.
 */
#ifndef TOPKSEL_CUDA_TASK_CUH
#define TOPKSEL_CUDA_TASK_CUH

#include "cuda/ptx.cuh"
#include "key.cuh"
#include "score.cuh"
#include "select.h"

/* The fields of topk_args that every row needs, within the limits of the plan. */
struct task {
    const score_t *scores;
    int64_t row_stride;
    const int32_t *lengths;
    int32_t *indices;
    int64_t index_stride;
    int32_t num_rows, width, k, length_all;
    uint32_t clamped; /* of num_rows, width and k, beyond the plan */
    bool plain;       /* positions as they are, no values */
};

static __device__ __forceinline__ int32_t clamp_counted(int32_t value, int32_t limit,
                                                        uint32_t *count)
{
    int32_t clamped = min(limit, max(value, 0));
    *count += clamped != value ? 1u : 0u;
    return clamped;
}

/* Asks for the descriptor to come to the L2 cache, and its page to be known, while the kernel
 * before may still write it. One thread. */
static __device__ __forceinline__ void task_prefetch(const struct select_params &params)
{
    static_assert(sizeof(struct topk_args) > 64 && sizeof(struct topk_args) <= 128, "two halves");
    prefetch_64(params.args);
    prefetch_64(reinterpret_cast<const unsigned char *>(params.args + 1) - 64);
}

/* Reads the descriptor. Any thread; params.args must not be NULL. */
static __device__ __forceinline__ struct task task_read(const struct select_params &params)
{
    const struct topk_args *args = params.args;
    struct task task;
    task.scores = static_cast<const score_t *>(args->scores);
    task.row_stride = args->row_stride;
    task.lengths = args->lengths;
    task.length_all = args->length_all;
    task.indices = args->indices;
    task.index_stride = args->index_stride;
    /* As numbers, so that all three are read at once and not one after the other. */
    task.plain =
        (reinterpret_cast<uintptr_t>(args->values) | reinterpret_cast<uintptr_t>(args->page_table) |
         reinterpret_cast<uintptr_t>(args->row_offsets)) == 0;
    task.clamped = 0;
    task.num_rows = clamp_counted(args->num_rows, params.rows_max, &task.clamped);
    task.width = clamp_counted(args->width, params.width_max, &task.clamped);
    task.k = clamp_counted(args->k, params.k_max, &task.clamped);
    return task;
}

/* The valid length of a row as given; the caller clamps it. */
static __device__ __forceinline__ int32_t task_length(const struct task &task, int32_t row)
{
    return task.lengths != nullptr ? task.lengths[row] : task.length_all;
}

static __device__ __forceinline__ int32_t clamp_length(const struct task &task, int32_t length)
{
    return min(task.width, max(length, 0));
}

static __device__ __forceinline__ const score_t *task_row(const struct task &task, int32_t row)
{
    return task.scores + row * task.row_stride;
}

/* Where one row's result goes. Built by every thread that writes; 16 registers at most. */
struct sink {
    int32_t *indices;      /* [k] */
    float *values;         /* [k] or NULL */
    const score_t *scores; /* the row, for values */
    const int32_t *pages;  /* the row's page table or NULL */
    int32_t num_pages;
    uint32_t last; /* position of the row */
    uint32_t page_size_log2;
    int32_t offset;
    bool plain; /* positions as they are, no values */
};

/* What is added to the positions of a row. */
static __device__ __forceinline__ int32_t row_offset(const struct topk_args &args, int32_t row)
{
    return args.row_offsets != nullptr ? args.row_offsets[row] : 0;
}

static __device__ __forceinline__ struct sink
sink_open(const struct topk_args &args, const score_t *scores, int32_t row, int32_t offset)
{
    struct sink sink;
    sink.indices = args.indices + row * args.index_stride;
    sink.values = args.values != nullptr ? args.values + row * args.value_stride : nullptr;
    sink.scores = scores;
    sink.pages =
        args.page_table != nullptr ? args.page_table + row * args.page_table_stride : nullptr;
    sink.num_pages = args.page_table_width;
    sink.last = (uint32_t)max(args.width, 1) - 1;
    sink.page_size_log2 = min(args.page_size_log2, TOPK_PAGE_SIZE_LOG2_MAX);
    sink.offset = offset;
    sink.plain = sink.values == nullptr && sink.pages == nullptr && args.row_offsets == nullptr;
    return sink;
}

/*
 * Asks for the page table of a row to come to the L2 cache, as far as its first `length` positions
 * can need it, unless the places where it is looked up are less. One thread.
 */
static __device__ __forceinline__ void prefetch_pages(const struct topk_args &args, int32_t row,
                                                      int32_t length)
{
#if __CUDA_ARCH__ >= 900
    constexpr uintptr_t GROUP = 16, SECTOR = 32; /* bytes: of bulk copies, of the cache */
    const uint32_t log2 = min(args.page_size_log2, TOPK_PAGE_SIZE_LOG2_MAX);
    const int32_t count = min(args.page_table_width, ((length - 1) >> log2) + 1);
    const int32_t *pages = args.page_table + row * args.page_table_stride;
    const uintptr_t begin = (reinterpret_cast<uintptr_t>(pages) + GROUP - 1) / GROUP * GROUP;
    const uintptr_t end = reinterpret_cast<uintptr_t>(pages + max(count, 0)) / GROUP * GROUP;
    if (end > begin && end - begin <= SECTOR * (uint32_t)args.k) {
        prefetch_bulk(reinterpret_cast<const void *>(begin), (int32_t)(end - begin));
    }
#else
    (void)args, (void)row, (void)length; /* no bulk copies before sm_90 */
#endif
}

/* The sink of a plain result, which needs no look at the arguments again. */
static __device__ __forceinline__ struct sink sink_plain(const struct task &task, int32_t row)
{
    struct sink sink = {};
    sink.scores = task_row(task, row);
    sink.indices = task.indices + row * task.index_stride;
    sink.plain = true;
    return sink;
}

/* Of a row, by the arguments as they lie in memory. */
static __device__ __forceinline__ struct sink sink_of_row(const struct task &task,
                                                          const struct topk_args *args, int32_t row)
{
    if (task.plain) {
        return sink_plain(task, row);
    }
    return sink_open(*args, task_row(task, row), row, row_offset(*args, row));
}

/* Writes position `position` of the row as entry `slot` of its result. */
static __device__ __forceinline__ void sink_put(const struct sink &sink, uint32_t slot,
                                                uint32_t position)
{
    uint32_t result = position;
    if (sink.plain) {
        __stcg(&sink.indices[slot], (int32_t)position);
        return;
    }
    if (sink.pages != nullptr) {
        uint32_t page = position >> sink.page_size_log2;
        if (page >= (uint32_t)sink.num_pages) { /* topk_args_check refuses such a table */
            sink.indices[slot] = -1;
            return;
        }
        uint32_t within = position & ((1u << sink.page_size_log2) - 1);
        result = ((uint32_t)sink.pages[page] << sink.page_size_log2) + within;
    }
    __stcg(&sink.indices[slot], (int32_t)(result + (uint32_t)sink.offset));
    if (sink.values != nullptr) {
        /* No position is beyond, unless the row changed while it was read. */
        sink.values[slot] = score_value(sink.scores[min(position, sink.last)]);
    }
}

/* Entry `slot` of a row with fewer valid scores than K. */
static __device__ __forceinline__ void sink_put_none(const struct sink &sink, uint32_t slot)
{
    sink.indices[slot] = -1;
    if (sink.values != nullptr) {
        sink.values[slot] = -INFINITY;
    }
}

/* A block's share of the route counters: in shared memory, kept by thread 0, added once. */
struct route_counts {
    uint64_t scores_read;
    uint32_t copied, direct, certified, band, recovery, spill, clamped;
};

static __device__ __forceinline__ void add_route(uint64_t *counter, uint64_t count)
{
    if (count > 0) {
        global_add(counter, count);
    }
}

/* Thread 0, at the end of the block. `routes` may be NULL. */
static __device__ __forceinline__ void routes_add(struct topk_routes *routes,
                                                  const struct route_counts &counts)
{
    if (routes == nullptr) {
        return;
    }
    add_route(&routes->copied, counts.copied);
    add_route(&routes->direct, counts.direct);
    add_route(&routes->certified, counts.certified);
    add_route(&routes->band, counts.band);
    add_route(&routes->recovery, counts.recovery);
    add_route(&routes->spill, counts.spill);
    add_route(&routes->clamped, counts.clamped);
    add_route(&routes->scores_read, counts.scores_read);
}

#endif
