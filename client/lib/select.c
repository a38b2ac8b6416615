/* select.c - a selection between the public struct and the wire: checks, translation, result. */
#include "client.h"

#include <inttypes.h>
#include <string.h>

_Static_assert((int)TOPKD_ACCESS_READ == (int)WIRE_ACCESS_READ, "access travels as it is");
_Static_assert((int)TOPKD_ACCESS_READ_WRITE == (int)WIRE_ACCESS_READ_WRITE, "as above");

/* ---- Checks: all that the worker cannot see or could not name in the caller's words ---------- */

enum topkd_status select_check_tensor(const struct topkd_client *client,
                                      const struct topkd_tensor *tensor, const char *name,
                                      uint32_t element_bytes, char *detail)
{
    const struct topkd_region *region = tensor->region;
    if (!region) {
        if (tensor->offset_bytes != 0 || tensor->stride != 0) {
            return fault(detail, TOPKD_E_INVALID,
                         "%s: offset_bytes %" PRIu64 " and stride %" PRId64 " without a region",
                         name, tensor->offset_bytes, tensor->stride);
        }
        return TOPKD_OK;
    }
    if (region->client != client) {
        return fault(detail, TOPKD_E_NO_REGION, "%s: the region belongs to another client", name);
    }
    if (region->closing) {
        return fault(detail, TOPKD_E_NO_REGION, "%s: the region is being unregistered", name);
    }
    if (tensor->offset_bytes % element_bytes != 0) {
        return fault(detail, TOPKD_E_INVALID,
                     "%s: offset_bytes %" PRIu64 " is not a multiple of %u", name,
                     tensor->offset_bytes, element_bytes);
    }
    return TOPKD_OK;
}

static enum topkd_status check_shape(const struct topkd_select_request *request,
                                     const struct wire_limits *limits, char *detail)
{
    if (request->rows > limits->rows_max) {
        return fault(detail, TOPKD_E_INVALID, "rows %u exceeds rows_max %" PRIu64, request->rows,
                     limits->rows_max);
    }
    if (request->width < 1 || request->width > limits->width_max || request->width > INT32_MAX) {
        return fault(detail, TOPKD_E_INVALID, "width %u is outside 1 ... %" PRIu64, request->width,
                     limits->width_max);
    }
    if (request->k < 1 || request->k > limits->k_max) {
        return fault(detail, TOPKD_E_INVALID, "k %u is outside 1 ... %u", request->k,
                     limits->k_max);
    }
    if (request->timeout_ms > limits->timeout_ms_max) {
        return fault(detail, TOPKD_E_INVALID, "timeout_ms %u exceeds timeout_ms_max %u",
                     request->timeout_ms, limits->timeout_ms_max);
    }
    return TOPKD_OK;
}

static enum topkd_status check_options(const struct topkd_select_request *request, char *detail)
{
    if ((unsigned)request->order > TOPKD_ORDER_VALUE) {
        return fault(detail, TOPKD_E_INVALID, "order %u is none of TOPKD_ORDER_ANY, INDEX, VALUE",
                     (unsigned)request->order);
    }
    if ((unsigned)request->ties > TOPKD_TIES_LOWEST) {
        return fault(detail, TOPKD_E_INVALID, "ties %u is none of TOPKD_TIES_ANY, LOWEST",
                     (unsigned)request->ties);
    }
    if (request->deterministic && request->order == TOPKD_ORDER_VALUE) {
        return fault(detail, TOPKD_E_INVALID,
                     "deterministic means order by index: set order to ANY or INDEX, or ask for "
                     "order VALUE with ties LOWEST and without deterministic");
    }
    return TOPKD_OK;
}

/* In the session that the request is for: a renewed one may be of an older daemon, which would take
 * the scores for float32. */
static enum topkd_status check_dtype(enum topkd_dtype dtype, const struct session *session,
                                     char *detail)
{
    static const char *const names[] = {"float32", "float16", "bfloat16"};
    if ((unsigned)dtype > TOPKD_DTYPE_BFLOAT16) {
        return fault(detail, TOPKD_E_INVALID,
                     "dtype %u is none of TOPKD_DTYPE_FLOAT32, FLOAT16, BFLOAT16", (unsigned)dtype);
    }
    if ((session->limits.dtypes >> dtype & 1u) == 0) {
        return fault(detail, TOPKD_E_UNSUPPORTED,
                     "dtype %s: device %.40s of topkd %.20s does not read such scores "
                     "(info.dtypes); give float32 ones",
                     names[dtype], session->device, session->server_version);
    }
    return TOPKD_OK;
}

static enum topkd_status check_lengths(const struct topkd_select_request *request, char *detail)
{
    enum topkd_lengths mode = request->lengths_mode;
    if ((unsigned)mode > TOPKD_LENGTHS_REGION) {
        return fault(detail, TOPKD_E_INVALID,
                     "lengths_mode %u is none of TOPKD_LENGTHS_FULL, ALL, HOST, REGION",
                     (unsigned)mode);
    }
    if ((mode == TOPKD_LENGTHS_REGION) != (request->lengths.region != NULL)) {
        return fault(detail, TOPKD_E_INVALID, "lengths.region is %s, but lengths_mode is %s",
                     request->lengths.region ? "set" : "missing",
                     request->lengths.region ? "not TOPKD_LENGTHS_REGION" : "TOPKD_LENGTHS_REGION");
    }
    if (mode == TOPKD_LENGTHS_HOST ? !request->lengths_host && request->rows > 0
                                   : request->lengths_host != NULL) {
        return fault(detail, TOPKD_E_INVALID, "lengths_host is %s, but lengths_mode is %s",
                     request->lengths_host ? "set" : "NULL",
                     request->lengths_host ? "not TOPKD_LENGTHS_HOST" : "TOPKD_LENGTHS_HOST");
    }
    if (mode == TOPKD_LENGTHS_HOST && request->rows > WIRE_LENGTHS_MAX) {
        return fault(detail, TOPKD_E_INVALID,
                     "lengths of %u rows do not fit into a message, at most %u do: put them into a "
                     "region (TOPKD_LENGTHS_REGION)",
                     request->rows, WIRE_LENGTHS_MAX);
    }
    if (request->lengths.stride != 0 && request->lengths.stride != 1) {
        return fault(detail, TOPKD_E_INVALID, "lengths.stride is %" PRId64 ": lengths are dense",
                     request->lengths.stride);
    }
    return TOPKD_OK;
}

/* Where a result that names no region would lie. */
static enum topkd_status check_arena(const struct topkd_select_request *request,
                                     const struct wire_limits *limits, char *detail)
{
    uint64_t entry_bytes = request->want_values ? 2 * sizeof(int32_t) : sizeof(int32_t);
    uint64_t bytes = (uint64_t)request->rows * request->k * entry_bytes;
    if (limits->arena_slots == 0) {
        return fault(detail, TOPKD_E_UNSUPPORTED,
                     "the daemon has no output arena (limits.arena_slots 0): give an indices "
                     "region");
    }
    if (bytes > limits->arena_slot_bytes) {
        return fault(detail, TOPKD_E_LIMIT,
                     "a result of %u rows, k %u takes %" PRIu64 " bytes, an arena slot has %" PRIu64
                     ": give an indices region, or raise limits.arena_slot_bytes",
                     request->rows, request->k, bytes, limits->arena_slot_bytes);
    }
    return TOPKD_OK;
}

static enum topkd_status check_output(const struct topkd_select_request *request,
                                      const struct wire_limits *limits, char *detail)
{
    if (!request->indices.region) {
        if (request->values.region) {
            return fault(detail, TOPKD_E_INVALID,
                         "values.region without indices.region: set both, or want_values for a "
                         "result in the arena");
        }
        return check_arena(request, limits, detail);
    }
    if (request->want_values && !request->values.region) {
        return fault(detail, TOPKD_E_INVALID,
                     "want_values is for a result in the arena; beside indices.region give "
                     "values.region");
    }
    return TOPKD_OK;
}

static enum topkd_status check_transform(const struct topkd_select_request *request, char *detail)
{
    if (!request->page_table.region) {
        if (request->page_size != 0 || request->page_table_width != 0) {
            return fault(detail, TOPKD_E_INVALID,
                         "page_size %u and page_table_width %u without page_table.region",
                         request->page_size, request->page_table_width);
        }
    } else if (request->page_size == 0 || (request->page_size & (request->page_size - 1)) != 0) {
        return fault(detail, TOPKD_E_INVALID, "page_size %u is not a power of two",
                     request->page_size);
    }
    if (request->row_offsets.stride != 0 && request->row_offsets.stride != 1) {
        return fault(detail, TOPKD_E_INVALID,
                     "row_offsets.stride is %" PRId64 ": row offsets are dense",
                     request->row_offsets.stride);
    }
    return TOPKD_OK;
}

static enum topkd_status check_point(const struct topkd_client *client,
                                     const struct topkd_semaphore_point *point, const char *name,
                                     char *detail)
{
    const struct topkd_semaphore *semaphore = point->semaphore;
    if (!semaphore) {
        if (point->value != 0) {
            return fault(detail, TOPKD_E_INVALID, "%s.value %" PRIu64 " without a semaphore", name,
                         point->value);
        }
        return TOPKD_OK;
    }
    if (semaphore->client != client) {
        return fault(detail, TOPKD_E_INVALID, "%s.semaphore belongs to another client", name);
    }
    if (point->value == 0) {
        return fault(detail, TOPKD_E_INVALID, "%s.value is 0, the least is 1", name);
    }
    return TOPKD_OK;
}

static enum topkd_status check_points(const struct topkd_client *client,
                                      const struct topkd_select_request *request, char *detail)
{
    enum topkd_status status = check_point(client, &request->wait, "wait", detail);
    if (status == TOPKD_OK) {
        status = check_point(client, &request->signal, "signal", detail);
    }
    if (status != TOPKD_OK || !request->signal.semaphore) {
        return status;
    }
    uint64_t value = semaphore_value(request->signal.semaphore);
    if (request->signal.semaphore->promised > value) {
        value = request->signal.semaphore->promised;
    }
    if (request->signal.value <= value) {
        return fault(detail, TOPKD_E_INVALID,
                     "signal.value %" PRIu64 " is not above %" PRIu64
                     ", which the semaphore has or gets from an earlier request",
                     request->signal.value, value);
    }
    return TOPKD_OK;
}

static enum topkd_status check_tensors(const struct topkd_client *client,
                                       const struct topkd_select_request *request, char *detail)
{
    const struct {
        const struct topkd_tensor *tensor;
        const char *name;
        uint32_t element_bytes;
    } tensors[] = {
        {&request->scores, "scores", request->dtype == TOPKD_DTYPE_FLOAT32 ? 4 : 2},
        {&request->lengths, "lengths", 4},
        {&request->indices, "indices", 4},
        {&request->values, "values", 4},
        {&request->page_table, "page_table", 4},
        {&request->row_offsets, "row_offsets", 4},
    };
    for (size_t i = 0; i < sizeof(tensors) / sizeof(tensors[0]); i++) {
        enum topkd_status status = select_check_tensor(client, tensors[i].tensor, tensors[i].name,
                                                       tensors[i].element_bytes, detail);
        if (status != TOPKD_OK) {
            return status;
        }
    }
    if (!request->scores.region) {
        return fault(detail, TOPKD_E_INVALID, "scores.region is missing");
    }
    return TOPKD_OK;
}

enum topkd_status select_check(struct topkd_client *client,
                               const struct topkd_select_request *request, char *detail)
{
    const struct wire_limits *limits = &client->session->limits;
    enum topkd_status status;
    if ((status = check_dtype(request->dtype, client->session, detail)) ||
        (status = check_tensors(client, request, detail)) ||
        (status = check_shape(request, limits, detail)) ||
        (status = check_options(request, detail)) || (status = check_lengths(request, detail)) ||
        (status = check_output(request, limits, detail)) ||
        (status = check_transform(request, detail)) ||
        (status = check_points(client, request, detail))) {
        return status;
    }
    return TOPKD_OK;
}

/* ---- To the wire ----------------------------------------------------------------------------- */

void select_each_region(const struct topkd_select_request *request,
                        void (*visit)(struct topkd_region *region, int32_t change), int32_t change)
{
    const struct topkd_tensor *tensors[] = {
        &request->scores, &request->lengths,    &request->indices,
        &request->values, &request->page_table, &request->row_offsets,
    };
    for (size_t i = 0; i < sizeof(tensors) / sizeof(tensors[0]); i++) {
        if (tensors[i]->region) {
            visit(tensors[i]->region, change);
        }
    }
}

enum topkd_status select_put_ref(const struct topkd_tensor *tensor, const struct session *session,
                                 struct wire_region_ref *ref, char *detail)
{
    const struct topkd_region *region = tensor->region;
    if (!region) {
        return TOPKD_OK;
    }
    if (region->session_serial != session->serial) {
        return fault(detail, region->fault_status ? region->fault_status : TOPKD_E_NO_REGION,
                     "region %s was not taken over into the renewed session: %.140s", region->name,
                     region->fault_status ? region->fault_detail : "it is being unregistered");
    }
    *ref = (struct wire_region_ref){
        .region = region->id,
        .generation = region->generation,
        .offset = tensor->offset_bytes,
    };
    return TOPKD_OK;
}

static int64_t stride_of(const struct topkd_tensor *tensor, uint32_t dense)
{
    return tensor->region && tensor->stride != 0 ? tensor->stride : (int64_t)dense;
}

static struct wire_semaphore_ref point_ref(const struct topkd_semaphore_point *point)
{
    struct wire_semaphore_ref ref = {0};
    if (point->semaphore) {
        ref.index = point->semaphore->index;
        ref.value = point->value;
    }
    return ref;
}

static void fill_lengths(const struct topkd_select_request *request,
                         struct wire_select_request *select)
{
    switch (request->lengths_mode) {
    case TOPKD_LENGTHS_FULL:
        select->lengths_mode = WIRE_LENGTHS_ALL;
        select->length_all = (int32_t)request->width;
        break;
    case TOPKD_LENGTHS_ALL:
        select->lengths_mode = WIRE_LENGTHS_ALL;
        select->length_all = request->length_all;
        break;
    case TOPKD_LENGTHS_HOST:
        select->lengths_mode = WIRE_LENGTHS_INLINE;
        select->num_lengths = request->rows;
        select->lengths_inline = request->lengths_host;
        break;
    case TOPKD_LENGTHS_REGION:
        select->lengths_mode = WIRE_LENGTHS_REGION;
        break;
    }
}

enum topkd_status select_fill_shape(const struct topkd_select_request *request,
                                    const struct session *session,
                                    struct wire_select_request *select, char *detail)
{
    enum topkd_status status;
    *select = (struct wire_select_request){0};
    if ((status = check_dtype(request->dtype, session, detail)) ||
        (status = select_put_ref(&request->scores, session, &select->scores, detail)) ||
        (status = select_put_ref(&request->lengths, session, &select->lengths, detail)) ||
        (status = select_put_ref(&request->indices, session, &select->indices, detail)) ||
        (status = select_put_ref(&request->values, session, &select->values, detail)) ||
        (status = select_put_ref(&request->page_table, session, &select->page_table, detail)) ||
        (status = select_put_ref(&request->row_offsets, session, &select->row_offsets, detail))) {
        return status;
    }
    select->rows = request->rows;
    select->width = request->width;
    select->k = request->k;
    select->row_stride = stride_of(&request->scores, request->width);
    select->index_stride = stride_of(&request->indices, request->k);
    select->value_stride = stride_of(&request->values, request->k);
    select->page_table_stride = stride_of(&request->page_table, request->page_table_width);
    select->page_table_width = request->page_table_width;
    select->page_size_log2 = request->page_size ? (uint32_t)__builtin_ctz(request->page_size) : 0;
    select->order = (uint8_t)(request->deterministic ? TOPKD_ORDER_INDEX : request->order);
    select->ties = (uint8_t)(request->deterministic ? TOPKD_TIES_LOWEST : request->ties);
    select->dtype = (uint8_t)request->dtype;
    select->output_mode = request->indices.region ? WIRE_OUTPUT_REGION : WIRE_OUTPUT_ARENA;
    select->want_values = request->want_values && !request->indices.region;
    fill_lengths(request, select);
    return TOPKD_OK;
}

enum topkd_status select_fill(const struct topkd_op *op, const struct session *session,
                              struct wire_select_request *select, char *detail)
{
    const struct topkd_select_request *request = &op->request;
    enum topkd_status status = select_fill_shape(request, session, select, detail);
    if (status != TOPKD_OK) {
        return status;
    }
    select->wait = point_ref(&request->wait);
    select->signal = point_ref(&request->signal);
    if (request->signal.semaphore &&
        semaphore_value(request->signal.semaphore) >= request->signal.value) {
        select->signal = (struct wire_semaphore_ref){0}; /* reached already: a repetition */
    }
    select->reply_when = WIRE_REPLY_DONE;
    int32_t left_ms = clock_left_ms(op->deadline_ns);
    select->timeout_ms = left_ms > 0 ? (uint32_t)left_ms : 1;
    return TOPKD_OK;
}

/* ---- The result ------------------------------------------------------------------------------ */

/* Where a tensor lies in this process, NULL when only the caller knows. */
static const void *tensor_address(const struct topkd_tensor *tensor)
{
    const struct topkd_region *region = tensor->region;
    if (!region || !region->buffer) {
        return NULL;
    }
    return (const uint8_t *)region->buffer->map.base + region->offset_bytes + tensor->offset_bytes;
}

void select_locate(struct topkd_op *op)
{
    op->indices = tensor_address(&op->request.indices);
    op->values = tensor_address(&op->request.values);
}

void select_result(const struct topkd_op *op, struct topkd_result *result_p)
{
    const struct topkd_select_request *request = &op->request;
    *result_p = (struct topkd_result){
        .rows = request->rows,
        .k = request->k,
        .index_stride = stride_of(&request->indices, request->k),
        .value_stride = stride_of(&request->values, request->k),
        .bucket = op->reply.bucket,
        .num_retries = op->num_retries,
        .queued_ns = op->reply.queued_ns,
        .run_ns = op->reply.run_ns,
    };
    if (op->leased) {
        const uint8_t *arena = op->lease->session->arena.base;
        result_p->lease = op->lease->id;
        result_p->indices = (const int32_t *)(const void *)(arena + op->reply.indices_offset);
        if (request->want_values) {
            result_p->values = (const float *)(const void *)(arena + op->reply.values_offset);
        }
    } else {
        result_p->indices = op->indices;
        result_p->values = op->values;
    }
}
