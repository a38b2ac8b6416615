#include "geometry.h"

#include "detail.h"

#include <inttypes.h>
#include <stddef.h>

#define ELEMENT_BYTES 4u /* of every tensor but the scores: float32 and int32 alike */

static const struct {
    const char *name;
    bool is_output;
} tensors[GEOMETRY_TENSOR_COUNT] = {
#define GEOMETRY_TENSOR_ENTRY(id, text, output) [id] = {.name = text, .is_output = output},
    GEOMETRY_TENSOR_TABLE(GEOMETRY_TENSOR_ENTRY)
#undef GEOMETRY_TENSOR_ENTRY
};

/* What the request says about one tensor, before anything is known of its region. */
struct shape {
    bool present;
    uint64_t offset;   /* bytes from the region's start */
    uint64_t num_rows; /* rows of the tensor */
    uint64_t num_columns;
    int64_t stride; /* elements; ignored with fewer than two rows */
    uint32_t element_bytes;
};

const char *geometry_tensor_name(enum geometry_tensor tensor)
{
    return tensors[tensor].name;
}

bool geometry_tensor_is_output(enum geometry_tensor tensor)
{
    return tensors[tensor].is_output;
}

static enum topkd_status check_options(const struct wire_select_request *request,
                                       const struct geometry_limits *limits, char *detail)
{
    if (request->order > TOPK_ORDER_VALUE)
        return detail_set(detail, TOPKD_E_INVALID,
                          "order %u is unknown: 0 any, 1 index ascending, 2 value descending",
                          request->order);
    if (request->ties > TOPK_TIES_LOWEST)
        return detail_set(detail, TOPKD_E_INVALID, "ties %u is unknown: 0 any, 1 lowest index",
                          request->ties);
    if (request->dtype >= TOPK_DTYPE_COUNT)
        return detail_set(detail, TOPKD_E_INVALID,
                          "dtype %u is unknown: 0 float32, 1 float16, 2 bfloat16", request->dtype);
    if ((limits->dtypes >> request->dtype & 1u) == 0)
        return detail_set(detail, TOPKD_E_UNSUPPORTED,
                          "this device does not select from %s scores (limits.dtypes 0x%" PRIx32
                          "): give float32 ones",
                          topk_dtype_name((enum topk_dtype)request->dtype), limits->dtypes);
    return TOPKD_OK;
}

static enum topkd_status check_scalars(const struct wire_select_request *request,
                                       const struct geometry_limits *limits, char *detail)
{
    uint64_t rows_max = limits->rows_max < TOPK_ROWS_MAX ? limits->rows_max : TOPK_ROWS_MAX;
    uint64_t width_max = limits->width_max < TOPK_WIDTH_MAX ? limits->width_max : TOPK_WIDTH_MAX;
    uint32_t k_max = limits->k_max < TOPK_K_MAX ? limits->k_max : TOPK_K_MAX;

    if (request->rows > rows_max)
        return detail_set(detail, TOPKD_E_INVALID,
                          "rows %" PRIu32 " exceeds the limit %" PRIu64 ": split the request",
                          request->rows, rows_max);
    if (request->width < 1 || request->width > width_max)
        return detail_set(detail, TOPKD_E_INVALID, "width %" PRIu32 " is outside 1 ... %" PRIu64,
                          request->width, width_max);
    if (request->k < 1)
        return detail_set(detail, TOPKD_E_INVALID, "k 0 asks for nothing: k is 1 ... %" PRIu32,
                          k_max);
    if (request->k > k_max)
        return detail_set(detail, TOPKD_E_UNSUPPORTED,
                          "k %" PRIu32 " exceeds the limit %" PRIu32 " of this device", request->k,
                          k_max);
    return check_options(request, limits, detail);
}

/* The parts of the request that decide which tensors there are. */
static enum topkd_status check_modes(const struct wire_select_request *request, char *detail)
{
    switch (request->lengths_mode) {
    case WIRE_LENGTHS_ALL:
        break;
    case WIRE_LENGTHS_INLINE:
        if (request->num_lengths != request->rows)
            return detail_set(detail, TOPKD_E_INVALID,
                              "the message carries %" PRIu32 " lengths for %" PRIu32
                              " rows: one a row",
                              request->num_lengths, request->rows);
        break;
    case WIRE_LENGTHS_REGION:
        break;
    default:
        return detail_set(detail, TOPKD_E_INVALID,
                          "lengths mode %d is unknown: 0 all, 1 inline, 2 region",
                          (int)request->lengths_mode);
    }
    if (request->output_mode != WIRE_OUTPUT_REGION && request->output_mode != WIRE_OUTPUT_ARENA)
        return detail_set(detail, TOPKD_E_INVALID, "output mode %d is unknown: 0 region, 1 arena",
                          (int)request->output_mode);
    if (request->page_table.region == 0)
        return TOPKD_OK;

    if (request->page_size_log2 > TOPK_PAGE_SIZE_LOG2_MAX)
        return detail_set(detail, TOPKD_E_INVALID, "page size 2^%" PRIu32 " exceeds the limit 2^%u",
                          request->page_size_log2, TOPK_PAGE_SIZE_LOG2_MAX);
    if (request->page_table_width > TOPK_WIDTH_MAX)
        return detail_set(detail, TOPKD_E_INVALID,
                          "page table width %" PRIu32 " exceeds the limit %d",
                          request->page_table_width, TOPK_WIDTH_MAX);
    uint64_t reach = (uint64_t)request->page_table_width << request->page_size_log2;
    if (reach < request->width)
        return detail_set(detail, TOPKD_E_OUT_OF_RANGE,
                          "a page table of %" PRIu32 " pages of %u reaches position %" PRIu64
                          ", width is %" PRIu32 ": give more pages a row",
                          request->page_table_width, 1u << request->page_size_log2, reach,
                          request->width);
    return TOPKD_OK;
}

/* Of a request whose dtype has been checked. */
static uint32_t element_bytes(const struct wire_select_request *request,
                              enum geometry_tensor tensor)
{
    return tensor == GEOMETRY_SCORES ? topk_dtype_bytes((enum topk_dtype)request->dtype)
                                     : ELEMENT_BYTES;
}

/* Fills shapes[GEOMETRY_TENSOR_COUNT] of the tensors that lie in regions. */
static void shapes_of(const struct wire_select_request *request, struct shape *shapes)
{
    uint64_t rows = request->rows;

    shapes[GEOMETRY_SCORES] = (struct shape){.present = true,
                                             .offset = request->scores.offset,
                                             .num_rows = rows,
                                             .num_columns = request->width,
                                             .stride = request->row_stride};
    /* A vector of one entry a row is one row of `rows` columns. */
    shapes[GEOMETRY_LENGTHS] =
        (struct shape){.present = request->lengths_mode == WIRE_LENGTHS_REGION,
                       .offset = request->lengths.offset,
                       .num_rows = rows > 0,
                       .num_columns = rows};
    shapes[GEOMETRY_ROW_OFFSETS] = (struct shape){.present = request->row_offsets.region != 0,
                                                  .offset = request->row_offsets.offset,
                                                  .num_rows = rows > 0,
                                                  .num_columns = rows};
    shapes[GEOMETRY_PAGE_TABLE] = (struct shape){.present = request->page_table.region != 0,
                                                 .offset = request->page_table.offset,
                                                 .num_rows = rows,
                                                 .num_columns = request->page_table_width,
                                                 .stride = request->page_table_stride};
    bool to_region = request->output_mode == WIRE_OUTPUT_REGION;
    shapes[GEOMETRY_INDICES] = (struct shape){.present = to_region,
                                              .offset = request->indices.offset,
                                              .num_rows = rows,
                                              .num_columns = request->k,
                                              .stride = request->index_stride};
    shapes[GEOMETRY_VALUES] = (struct shape){.present = to_region && request->values.region != 0,
                                             .offset = request->values.offset,
                                             .num_rows = rows,
                                             .num_columns = request->k,
                                             .stride = request->value_stride};
    for (int tensor = 0; tensor < GEOMETRY_TENSOR_COUNT; tensor++)
        shapes[tensor].element_bytes = element_bytes(request, (enum geometry_tensor)tensor);
}

/* One tensor against its region. */
static enum topkd_status check_span(enum geometry_tensor tensor, const struct shape *shape,
                                    const struct geometry_region *region,
                                    struct geometry_span *span_p, char *detail)
{
    const char *name = tensors[tensor].name;

    if (!region->present)
        return detail_set(detail, TOPKD_E_INVALID, "%s: no region is named, but it is needed",
                          name);
    if (tensors[tensor].is_output && !region->writable)
        return detail_set(detail, TOPKD_E_READ_ONLY,
                          "%s: its region is registered for reading only", name);
    /* base + length does not overflow (checked at registration), so neither does this sum once
     * the offset is known to lie inside. */
    if (shape->offset > region->length)
        return detail_set(detail, TOPKD_E_OUT_OF_RANGE,
                          "%s: offset %" PRIu64 " is beyond its region of %" PRIu64 " bytes", name,
                          shape->offset, region->length);
    if ((region->base + shape->offset) % shape->element_bytes != 0)
        return detail_set(detail, TOPKD_E_INVALID,
                          "%s: offset %" PRIu64 " (region begins at %" PRIu64
                          " of its object) is not a multiple of %" PRIu32,
                          name, shape->offset, region->base, shape->element_bytes);

    struct geometry_span span = {.present = true,
                                 .offset = shape->offset,
                                 .num_rows = shape->num_rows,
                                 .row_bytes = shape->num_columns * shape->element_bytes};
    span.pitch_bytes = span.row_bytes;
    if (shape->num_rows > 1) {
        if (shape->stride < 0 || (uint64_t)shape->stride < shape->num_columns)
            return detail_set(detail, TOPKD_E_INVALID,
                              "%s: stride %" PRId64 " is below the %" PRIu64 " elements of a row",
                              name, shape->stride, shape->num_columns);
        if (__builtin_mul_overflow((uint64_t)shape->stride, shape->element_bytes,
                                   &span.pitch_bytes))
            return detail_set(detail, TOPKD_E_OUT_OF_RANGE,
                              "%s: stride %" PRId64 " elements exceeds 64 bits in bytes", name,
                              shape->stride);
    }
    span.end = span.offset;
    if (shape->num_rows > 0) {
        uint64_t reach;
        if (__builtin_mul_overflow(shape->num_rows - 1, span.pitch_bytes, &reach) ||
            __builtin_add_overflow(reach, span.row_bytes, &reach) ||
            __builtin_add_overflow(reach, span.offset, &span.end))
            return detail_set(detail, TOPKD_E_OUT_OF_RANGE,
                              "%s: %" PRIu64 " rows of stride %" PRId64
                              " reach beyond 64 bits; its region has %" PRIu64 " bytes",
                              name, shape->num_rows, shape->stride, region->length);
    }
    if (span.end > region->length)
        return detail_set(detail, TOPKD_E_OUT_OF_RANGE,
                          "%s: reaches byte %" PRIu64 " of its region, which has %" PRIu64
                          " (offset %" PRIu64 ", %" PRIu64 " rows, stride %" PRId64 ")",
                          name, span.end, region->length, span.offset, shape->num_rows,
                          shape->stride);
    *span_p = span;
    return TOPKD_OK;
}

/* Whether two spans share a byte; offsets count from the start of the same object. Exact when the
 * pitches are equal (columns of one matrix side by side) or one of them is a single row; else by
 * the range from first to last byte, which may refuse rows that interleave without touching. */
static bool spans_meet(const struct geometry_span *a, uint64_t a_base,
                       const struct geometry_span *b, uint64_t b_base)
{
    if (a->num_rows == 0 || b->num_rows == 0 || a->row_bytes == 0 || b->row_bytes == 0)
        return false;
    uint64_t a_begin = a_base + a->offset;
    uint64_t b_begin = b_base + b->offset;
    if (a_begin >= b_base + b->end || b_begin >= a_base + a->end)
        return false;
    uint64_t pitch = a->num_rows > 1 ? a->pitch_bytes : b->pitch_bytes;
    if ((b->num_rows > 1 && b->pitch_bytes != pitch) || a->row_bytes > pitch ||
        b->row_bytes > pitch)
        return true;

    /* Let a be the one that begins first. Row j of b lies `rest` bytes behind row j + skip of a. */
    if (b_begin < a_begin) {
        const struct geometry_span *span = a;
        a = b;
        b = span;
        uint64_t begin = a_begin;
        a_begin = b_begin;
        b_begin = begin;
    }
    uint64_t skip = (b_begin - a_begin) / pitch;
    uint64_t rest = (b_begin - a_begin) % pitch;
    bool meets_same = rest < a->row_bytes && skip < a->num_rows;
    bool meets_next = pitch - rest < b->row_bytes && skip + 1 < a->num_rows;
    return meets_same || meets_next;
}

static enum topkd_status check_overlap(const struct geometry *geometry,
                                       const struct geometry_region *regions, char *detail)
{
    for (int out = 0; out < GEOMETRY_TENSOR_COUNT; out++) {
        const struct geometry_span *span = &geometry->spans[out];
        if (!tensors[out].is_output || !span->present || span->in_arena)
            continue;
        for (int other = 0; other < GEOMETRY_TENSOR_COUNT; other++) {
            const struct geometry_span *peer = &geometry->spans[other];
            if (other == out || !peer->present || peer->in_arena ||
                regions[out].object[0] != regions[other].object[0] ||
                regions[out].object[1] != regions[other].object[1])
                continue;
            if (spans_meet(span, regions[out].base, peer, regions[other].base))
                return detail_set(detail, TOPKD_E_OVERLAP,
                                  "%s (bytes %" PRIu64 " ... %" PRIu64
                                  " of its object) overlaps %s (%" PRIu64 " ... %" PRIu64 ")",
                                  tensors[out].name, regions[out].base + span->offset,
                                  regions[out].base + span->end, tensors[other].name,
                                  regions[other].base + peer->offset,
                                  regions[other].base + peer->end);
        }
    }
    return TOPKD_OK;
}

/* Output in a slot: indices from its start, values right behind them, both dense. */
static enum topkd_status check_arena(const struct wire_select_request *request,
                                     const struct geometry_limits *limits,
                                     struct geometry *geometry, char *detail)
{
    if (request->indices.region != 0 || request->values.region != 0)
        return detail_set(detail, TOPKD_E_INVALID,
                          "output mode is arena, but a region is named for %s: use one of the two",
                          request->indices.region != 0 ? "indices" : "values");
    if (limits->arena_slot_bytes == 0)
        return detail_set(detail, TOPKD_E_UNSUPPORTED,
                          "this session has no output arena (limits.arena_slots is 0): name a "
                          "region for the indices");
    /* rows and k are below 2^31 and 2^15, so nothing here can overflow. */
    uint64_t row_bytes = (uint64_t)request->k * ELEMENT_BYTES;
    uint64_t part_bytes = request->rows * row_bytes;
    uint64_t bytes = request->want_values ? 2 * part_bytes : part_bytes;
    if (bytes > limits->arena_slot_bytes)
        return detail_set(detail, TOPKD_E_LIMIT,
                          "the result of %" PRIu32 " rows and k %" PRIu32 " takes %" PRIu64
                          " bytes, an arena slot has %" PRIu64
                          ": give an output region, or split the request",
                          request->rows, request->k, bytes, limits->arena_slot_bytes);
    struct geometry_span span = {.present = true,
                                 .in_arena = true,
                                 .num_rows = request->rows,
                                 .row_bytes = row_bytes,
                                 .pitch_bytes = row_bytes,
                                 .end = part_bytes};
    geometry->spans[GEOMETRY_INDICES] = span;
    if (request->want_values) {
        span.offset = part_bytes;
        span.end = 2 * part_bytes;
        geometry->spans[GEOMETRY_VALUES] = span;
    }
    return TOPKD_OK;
}

enum topkd_status geometry_check(const struct wire_select_request *request,
                                 const struct geometry_region *regions,
                                 const struct geometry_limits *limits, struct geometry *geometry_p,
                                 char *detail)
{
    enum topkd_status status = check_scalars(request, limits, detail);
    if (status != TOPKD_OK)
        return status;
    status = check_modes(request, detail);
    if (status != TOPKD_OK)
        return status;

    struct geometry geometry = {.spans = {{.present = false}}};
    struct shape shapes[GEOMETRY_TENSOR_COUNT];
    shapes_of(request, shapes);
    for (int tensor = 0; tensor < GEOMETRY_TENSOR_COUNT; tensor++) {
        if (!shapes[tensor].present)
            continue;
        status = check_span((enum geometry_tensor)tensor, &shapes[tensor], &regions[tensor],
                            &geometry.spans[tensor], detail);
        if (status != TOPKD_OK)
            return status;
    }
    if (request->output_mode == WIRE_OUTPUT_ARENA) {
        status = check_arena(request, limits, &geometry, detail);
        if (status != TOPKD_OK)
            return status;
    }
    status = check_overlap(&geometry, regions, detail);
    if (status != TOPKD_OK)
        return status;
    *geometry_p = geometry;
    return TOPKD_OK;
}

void geometry_args(const struct wire_select_request *request, const struct geometry *geometry,
                   const uintptr_t *addresses, struct topk_args *args_p)
{
    void *pointers[GEOMETRY_TENSOR_COUNT];
    int64_t strides[GEOMETRY_TENSOR_COUNT];
    for (int tensor = 0; tensor < GEOMETRY_TENSOR_COUNT; tensor++) {
        const struct geometry_span *span = &geometry->spans[tensor];
        pointers[tensor] = span->present ? (void *)(addresses[tensor] + span->offset) : NULL;
        strides[tensor] =
            (int64_t)(span->pitch_bytes / element_bytes(request, (enum geometry_tensor)tensor));
    }
    *args_p = (struct topk_args){
        .scores = pointers[GEOMETRY_SCORES],
        .row_stride = strides[GEOMETRY_SCORES],
        .lengths = pointers[GEOMETRY_LENGTHS],
        .indices = pointers[GEOMETRY_INDICES],
        .index_stride = strides[GEOMETRY_INDICES],
        .values = pointers[GEOMETRY_VALUES],
        .value_stride = strides[GEOMETRY_VALUES],
        .page_table = pointers[GEOMETRY_PAGE_TABLE],
        .page_table_stride = strides[GEOMETRY_PAGE_TABLE],
        .row_offsets = pointers[GEOMETRY_ROW_OFFSETS],
        .num_rows = (int32_t)request->rows,
        .width = (int32_t)request->width,
        .length_all = request->length_all,
        .k = (int32_t)request->k,
        .page_table_width =
            geometry->spans[GEOMETRY_PAGE_TABLE].present ? (int32_t)request->page_table_width : 0,
        .page_size_log2 =
            geometry->spans[GEOMETRY_PAGE_TABLE].present ? request->page_size_log2 : 0,
    };
}

struct topk_options geometry_options(const struct wire_select_request *request)
{
    return (struct topk_options){.order = (enum topk_order)request->order,
                                 .ties = (enum topk_ties)request->ties,
                                 .dtype = (enum topk_dtype)request->dtype};
}

uint32_t geometry_alignment_bytes(const struct topk_args *args, enum topk_dtype dtype)
{
    uint64_t bits = (uint64_t)(uintptr_t)args->scores | 128u;
    if (args->num_rows > 1)
        bits |= (uint64_t)args->row_stride * topk_dtype_bytes(dtype);
    return (uint32_t)(bits & -bits);
}
