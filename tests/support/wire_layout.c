/*
 * wire_layout.c - the structs of topkd_wire.h as tables of fields.
 *
 * A field added to a struct is added to its table here; wire_test fails until it is.
 */
#include "wire_layout.h"

#define COUNTOF(array) (sizeof(array) / sizeof((array)[0]))

/* struct of the table being written: each table sets it */
#define FIELD(field_name, ...)                                                                     \
    {                                                                                              \
        .name = #field_name, .offset = offsetof(struct STRUCT, field_name),                        \
        .size = sizeof(((struct STRUCT *)0)->field_name), __VA_ARGS__                              \
    }
#define U(name) FIELD(name, .type = FIELD_UNSIGNED)
#define S(name) FIELD(name, .type = FIELD_SIGNED)
#define B(name) FIELD(name, .type = FIELD_BOOL)
#define E(name, value_max) FIELD(name, .type = FIELD_ENUM, .limit = (value_max))
#define T(name) FIELD(name, .type = FIELD_TEXT)
#define C(name, count_max) FIELD(name, .type = FIELD_COUNT, .limit = (count_max))
#define L(name, struct_layout) FIELD(name, .type = FIELD_STRUCT, .layout = &(struct_layout))
#define R(name, row_layout, rows_max)                                                              \
    FIELD(name, .type = FIELD_ROWS, .limit = (rows_max), .layout = &(row_layout))

#define LAYOUT(layout_name, struct_name, table)                                                    \
    static const struct layout layout_name = {#struct_name, sizeof(struct struct_name),            \
                                              _Alignof(struct struct_name), COUNTOF(table), table}

/* Fields side by side, in the order of the struct. */
/* clang-format off */

/* ---- Parts ------------------------------------------------------------------------------------ */

#define STRUCT wire_memory
static const struct field memory_fields[] = {
    E(kind, WIRE_MEMORY_CUDA_FD), C(handle_bytes, WIRE_HANDLE_SIZE),
    FIELD(handle, .type = FIELD_BYTES), U(allocation_bytes)};
#undef STRUCT
LAYOUT(memory, wire_memory, memory_fields);

#define STRUCT wire_limits
static const struct field limits_fields[] = {
    U(regions_max), U(outstanding_max), U(semaphores), U(lanes_max), U(k_max), U(timeout_ms_max),
    U(region_bytes_max), U(rows_max), U(width_max), U(arena_slots), U(arena_slot_bytes),
    U(batch_max), U(dtypes)};
#undef STRUCT
LAYOUT(limits, wire_limits, limits_fields);

#define STRUCT wire_region_ref
static const struct field region_ref_fields[] = {U(region), U(generation), U(offset)};
#undef STRUCT
LAYOUT(region_ref, wire_region_ref, region_ref_fields);

#define STRUCT wire_semaphore_ref
static const struct field semaphore_ref_fields[] = {U(index), U(value)};
#undef STRUCT
LAYOUT(semaphore_ref, wire_semaphore_ref, semaphore_ref_fields);

/* ---- Requests --------------------------------------------------------------------------------- */

#define STRUCT wire_hello_request
static const struct field hello_request_fields[] = {U(version), T(client_name), T(device)};
#undef STRUCT
LAYOUT(hello_request, wire_hello_request, hello_request_fields);

#define STRUCT wire_register_request
static const struct field register_request_fields[] = {
    L(memory, memory), U(buffer_id), U(offset), U(length), FIELD(access, .type = FIELD_ACCESS),
    T(device), B(unlink_when_dead)};
#undef STRUCT
LAYOUT(register_request, wire_register_request, register_request_fields);

#define STRUCT wire_unregister_request
static const struct field unregister_request_fields[] = {U(region), U(generation)};
#undef STRUCT
LAYOUT(unregister_request, wire_unregister_request, unregister_request_fields);

#define STRUCT wire_select_request
static const struct field select_request_fields[] = {
    L(scores, region_ref), S(row_stride), U(rows), U(width), U(k), U(order), U(ties),
    U(dtype), B(want_values), E(lengths_mode, WIRE_LENGTHS_REGION), S(length_all),
    C(num_lengths, WIRE_LENGTHS_MAX), FIELD(lengths_inline, .type = FIELD_LENGTHS),
    L(lengths, region_ref), E(output_mode, WIRE_OUTPUT_ARENA), L(indices, region_ref),
    S(index_stride), L(values, region_ref), S(value_stride), L(page_table, region_ref),
    S(page_table_stride), U(page_table_width), U(page_size_log2), L(row_offsets, region_ref),
    L(wait, semaphore_ref), L(signal, semaphore_ref), E(reply_when, WIRE_REPLY_ENQUEUED),
    U(timeout_ms)};
#undef STRUCT
LAYOUT(select_request, wire_select_request, select_request_fields);

#define STRUCT wire_select_batch_request
static const struct field select_batch_request_fields[] = {
    C(num_selects, WIRE_BATCH_MAX), R(selects, select_request, WIRE_BATCH_MAX)};
#undef STRUCT
LAYOUT(select_batch_request, wire_select_batch_request, select_batch_request_fields);

#define STRUCT wire_release_request
static const struct field release_request_fields[] = {U(lease)};
#undef STRUCT
LAYOUT(release_request, wire_release_request, release_request_fields);

#define STRUCT wire_lane_open_request
static const struct field lane_open_request_fields[] = {
    L(shape, select_request), L(live_rows, region_ref), L(mailbox, memory),
    L(device_mailbox, region_ref), U(poll_us)};
#undef STRUCT
LAYOUT(lane_open_request, wire_lane_open_request, lane_open_request_fields);

#define STRUCT wire_lane_close_request
static const struct field lane_close_request_fields[] = {U(lane)};
#undef STRUCT
LAYOUT(lane_close_request, wire_lane_close_request, lane_close_request_fields);

#define STRUCT wire_drain_request
static const struct field drain_request_fields[] = {U(deadline_ms)};
#undef STRUCT
LAYOUT(drain_request, wire_drain_request, drain_request_fields);

/* ---- Replies ---------------------------------------------------------------------------------- */

#define STRUCT wire_hello_reply
static const struct field hello_reply_fields[] = {
    U(version), E(device_kind, WIRE_DEVICE_CUDA), T(device), T(server_version), L(limits, limits),
    L(semaphores, memory), L(arena, memory)};
#undef STRUCT
LAYOUT(hello_reply, wire_hello_reply, hello_reply_fields);

#define STRUCT wire_device
static const struct field device_fields[] = {
    T(device), T(name), T(url), E(kind, WIRE_DEVICE_CUDA), E(state, WIRE_DEVICE_DOWN), U(epoch),
    U(restarts), S(pid)};
#undef STRUCT
LAYOUT(device, wire_device, device_fields);

#define STRUCT wire_devices_reply
static const struct field devices_reply_fields[] = {
    C(num_devices, WIRE_DEVICES_MAX), R(devices, device, WIRE_DEVICES_MAX)};
#undef STRUCT
LAYOUT(devices_reply, wire_devices_reply, devices_reply_fields);

#define STRUCT wire_register_reply
static const struct field register_reply_fields[] = {U(region), U(generation)};
#undef STRUCT
LAYOUT(register_reply, wire_register_reply, register_reply_fields);

#define STRUCT wire_unregister_reply
static const struct field unregister_reply_fields[] = {B(draining)};
#undef STRUCT
LAYOUT(unregister_reply, wire_unregister_reply, unregister_reply_fields);

#define STRUCT wire_select_reply
static const struct field select_reply_fields[] = {
    U(slot), U(lease), U(indices_offset), U(values_offset), U(bucket), U(queued_ns), U(run_ns)};
#undef STRUCT
LAYOUT(select_reply, wire_select_reply, select_reply_fields);

#define STRUCT wire_select_answer
static const struct field select_answer_fields[] = {
    E(status, TOPKD_E_CLOSED), T(detail), L(select, select_reply)};
#undef STRUCT
LAYOUT(select_answer, wire_select_answer, select_answer_fields);

#define STRUCT wire_select_batch_reply
static const struct field select_batch_reply_fields[] = {
    C(num_answers, WIRE_BATCH_MAX), R(answers, select_answer, WIRE_BATCH_MAX)};
#undef STRUCT
LAYOUT(select_batch_reply, wire_select_batch_reply, select_batch_reply_fields);

#define STRUCT wire_lane_open_reply
static const struct field lane_open_reply_fields[] = {
    U(lane), L(mailbox, memory), U(mailbox_offset), B(fills_device), U(poll_us)};
#undef STRUCT
LAYOUT(lane_open_reply, wire_lane_open_reply, lane_open_reply_fields);

#define STRUCT wire_bucket_stats
static const struct field bucket_stats_fields[] = {
    U(bucket), U(rows), U(width), U(k), U(dtype), U(requests)};
#undef STRUCT
LAYOUT(bucket_stats, wire_bucket_stats, bucket_stats_fields);

#define STRUCT wire_stats_reply
static const struct field stats_reply_fields[] = {
    U(uptime_ms), U(epoch), U(sessions), U(regions), U(leases), U(queued), U(running),
    U(mapped_bytes), U(sessions_opened), U(sessions_reaped), U(requests), U(requests_failed),
    U(replies_repeated), U(messages_rejected), U(rows_copied), U(rows_direct), U(rows_certified),
    U(rows_band), U(rows_recovery), U(rows_spill), U(rows_clamped), U(scores_read),
    U(worker_restarts), U(request_ns_sum), U(run_ns_sum), U(lanes), U(lane_steps), U(lane_pauses),
    U(select_batches), U(selects_batched), U(lanes_armed), U(lanes_max), U(lanes_wanted),
    FIELD(request_ns_bins, .type = FIELD_NUMBERS), FIELD(run_ns_bins, .type = FIELD_NUMBERS),
    C(num_buckets, WIRE_BUCKETS_MAX), R(buckets, bucket_stats, WIRE_BUCKETS_MAX)};
#undef STRUCT
LAYOUT(stats_reply, wire_stats_reply, stats_reply_fields);

#define STRUCT wire_session
static const struct field session_fields[] = {
    U(session), T(client_name), S(uid), S(gid), S(pid), U(regions), U(outstanding), U(leases),
    U(mapped_bytes), U(requests), U(age_ms)};
#undef STRUCT
LAYOUT(session, wire_session, session_fields);

#define STRUCT wire_sessions_reply
static const struct field sessions_reply_fields[] = {
    C(num_sessions, WIRE_SESSIONS_MAX), U(num_total), R(sessions, session, WIRE_SESSIONS_MAX)};
#undef STRUCT
LAYOUT(sessions_reply, wire_sessions_reply, sessions_reply_fields);

/* ---- Headers ---------------------------------------------------------------------------------- */

#define STRUCT wire_request
static const struct field request_header_fields[] = {
    U(session), U(sequence), U(epoch), FIELD(kind, .type = FIELD_ENUM, .limit = WIRE_SELECT_BATCH)};
#undef STRUCT
const struct layout layout_request_header = {
    "wire_request", offsetof(struct wire_request, u), _Alignof(struct wire_request),
    COUNTOF(request_header_fields), request_header_fields};

#define STRUCT wire_reply
static const struct field reply_header_fields[] = {
    U(session), U(sequence), U(epoch), FIELD(kind, .type = FIELD_ENUM, .limit = WIRE_SELECT_BATCH),
    FIELD(status, .type = FIELD_ENUM, .limit = TOPKD_E_CLOSED), T(detail)};
#undef STRUCT
const struct layout layout_reply_header = {
    "wire_reply", offsetof(struct wire_reply, u), _Alignof(struct wire_reply),
    COUNTOF(reply_header_fields), reply_header_fields};

/* clang-format on */

const struct layout *layout_request_body(enum wire_kind kind)
{
    switch (kind) {
    case WIRE_HELLO:
        return &hello_request;
    case WIRE_REGISTER:
        return &register_request;
    case WIRE_UNREGISTER:
        return &unregister_request;
    case WIRE_SELECT:
        return &select_request;
    case WIRE_RELEASE:
        return &release_request;
    case WIRE_LANE_OPEN:
        return &lane_open_request;
    case WIRE_LANE_CLOSE:
        return &lane_close_request;
    case WIRE_DRAIN:
        return &drain_request;
    case WIRE_SELECT_BATCH:
        return &select_batch_request;
    case WIRE_PING:
    case WIRE_DEVICES:
    case WIRE_STATS:
    case WIRE_SESSIONS:
        break;
    }
    return NULL;
}

const struct layout *layout_reply_body(enum wire_kind kind)
{
    switch (kind) {
    case WIRE_HELLO:
        return &hello_reply;
    case WIRE_DEVICES:
        return &devices_reply;
    case WIRE_REGISTER:
        return &register_reply;
    case WIRE_UNREGISTER:
        return &unregister_reply;
    case WIRE_SELECT:
        return &select_reply;
    case WIRE_LANE_OPEN:
        return &lane_open_reply;
    case WIRE_STATS:
        return &stats_reply;
    case WIRE_SESSIONS:
        return &sessions_reply;
    case WIRE_SELECT_BATCH:
        return &select_batch_reply;
    case WIRE_PING:
    case WIRE_RELEASE:
    case WIRE_LANE_CLOSE:
    case WIRE_DRAIN:
        break;
    }
    return NULL;
}
