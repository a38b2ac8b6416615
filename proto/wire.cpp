/*
 * wire.cpp - the wire structs to FlatBuffers and back; the only C++ of the daemon and the library.
 *
 * Read a message from the top: wire_request_encode at the end checks the struct (check.c), builds
 * the table of its body, the Message around it, and copies the bytes out. wire_request_decode copies
 * the bytes to aligned memory, verifies, reads the body, and checks the struct. The fields of a
 * table that are plain numbers stand in one list that both directions use.
 *
 * No exceptions and no allocation: a message is built in a room on the stack that holds the largest
 * message within the limits of topkd_wire.h.
 */
#include "wire_internal.h"

#include "topkd_generated.h"

#include <cstring>

namespace fb = topkd::wire;
using flatbuffers::FlatBufferBuilder;
using flatbuffers::Offset;
using flatbuffers::String;
using flatbuffers::Vector;

static_assert(FLATBUFFERS_LITTLEENDIAN, "inline lengths are read in place: little endian only");
static_assert(static_cast<unsigned>(fb::Kind::Drain) == WIRE_DRAIN, "kinds as in the C header");
static_assert(static_cast<unsigned>(fb::Kind::MAX) == WIRE_DRAIN, "kinds as in the C header");
static_assert(static_cast<unsigned>(fb::DeviceKind::MAX) == WIRE_DEVICE_CUDA, "");
static_assert(static_cast<unsigned>(fb::DeviceState::MAX) == WIRE_DEVICE_DOWN, "");
static_assert(static_cast<unsigned>(fb::MemoryKind::MAX) == WIRE_MEMORY_CUDA_FD, "");
static_assert(static_cast<unsigned>(fb::Access::MAX) == WIRE_ACCESS_READ_WRITE, "");
static_assert(static_cast<unsigned>(fb::LengthsMode::MAX) == WIRE_LENGTHS_REGION, "");
static_assert(static_cast<unsigned>(fb::OutputMode::MAX) == WIRE_OUTPUT_ARENA, "");
static_assert(static_cast<unsigned>(fb::ReplyWhen::MAX) == WIRE_REPLY_ENQUEUED, "");

namespace
{

/* Beside the message the builder keeps a few bytes a field and a distinct vtable. */
constexpr size_t SCRATCH_SIZE = 4096;

/* Tables of the largest message (Sessions) and their depth (LaneOpen), with room to grow. */
constexpr flatbuffers::uoffset_t TABLES_MAX = 512, DEPTH_MAX = 8;

/* The one block of memory of a builder. */
class Room final : public flatbuffers::Allocator
{
  public:
    uint8_t *allocate(size_t size) override
    {
        WIRE_ASSERT(!used_ && size <= sizeof(bytes_));
        used_ = true;
        return bytes_;
    }
    void deallocate(uint8_t *, size_t) override
    {
    }
    uint8_t *reallocate_downward(uint8_t *, size_t, size_t, size_t, size_t) override
    {
        wire_broken("a message within the limits fits into the room", __FILE__, __LINE__);
    }

    static constexpr size_t SIZE = WIRE_MESSAGE_SIZE_MAX + SCRATCH_SIZE;

  private:
    bool used_ = false;
    alignas(16) uint8_t bytes_[SIZE];
};

/* ---- Fields that are plain numbers: one list a table, 8-byte fields first to avoid padding ---- */

#define ADD(field) b.add_##field(m.field);
#define GET(field) m.field = t.field();

#define LIMITS_FIELDS(X)                                                                           \
    X(region_bytes_max) X(rows_max) X(width_max) X(arena_slot_bytes) X(regions_max)                \
    X(outstanding_max) X(semaphores) X(lanes_max) X(k_max) X(timeout_ms_max) X(arena_slots)
#define REGISTER_FIELDS(X) X(buffer_id) X(offset) X(length) X(unlink_when_dead)
#define UNREGISTER_FIELDS(X) X(region) X(generation)
#define SELECT_FIELDS(X)                                                                           \
    X(row_stride) X(index_stride) X(value_stride) X(page_table_stride) X(rows) X(width) X(k)       \
    X(length_all) X(page_table_width) X(page_size_log2) X(timeout_ms) X(order) X(ties)             \
    X(want_values)
#define SELECT_REGIONS(X)                                                                          \
    X(scores) X(lengths) X(indices) X(values) X(page_table) X(row_offsets)
#define DEVICE_FIELDS(X) X(epoch) X(restarts) X(pid)
#define REGISTER_REPLY_FIELDS(X) X(region) X(generation)
#define SELECT_REPLY_FIELDS(X)                                                                     \
    X(lease) X(indices_offset) X(values_offset) X(queued_ns) X(run_ns) X(slot) X(bucket)
#define LANE_OPEN_REPLY_FIELDS(X) X(lane) X(mailbox_offset)
#define BUCKET_FIELDS(X) X(requests) X(bucket) X(rows) X(width) X(k)
#define STATS_FIELDS(X)                                                                            \
    X(uptime_ms) X(epoch) X(mapped_bytes) X(sessions_opened) X(sessions_reaped) X(requests)        \
    X(requests_failed) X(replies_repeated) X(messages_rejected) X(rows_copied) X(rows_direct)      \
    X(rows_certified) X(rows_band) X(rows_recovery) X(rows_spill) X(rows_clamped) X(scores_read)   \
    X(worker_restarts) X(request_ns_sum) X(run_ns_sum) X(sessions) X(regions) X(leases)            \
    X(queued) X(running)
#define SESSION_FIELDS(X)                                                                          \
    X(session) X(uid) X(gid) X(pid) X(mapped_bytes) X(requests) X(age_ms) X(regions)               \
    X(outstanding) X(leases)

/* ---- Parts ------------------------------------------------------------------------------------ */

/* A number of the wire into a C enum. It may be no enumerator until check.c has seen it, so it is
 * not an enum to C++ before. */
template <class E> void put_enum(E &to, unsigned number)
{
    static_assert(sizeof(E) == sizeof(number), "enums of the C header are unsigned int");
    memcpy(&to, &number, sizeof(number));
}

Offset<String> encode_text(FlatBufferBuilder &fbb, const char *text)
{
    return text[0] != '\0' ? fbb.CreateString(text, strlen(text)) : Offset<String>();
}

template <size_t N>
bool decode_text(const String *text, char (&to)[N], const char *field, char *detail)
{
    if (!text)
        return true;
    if (text->size() >= N)
        return wire_fail(detail, "%s: %u bytes, at most %zu", field, text->size(), N - 1);
    if (memchr(text->c_str(), '\0', text->size()))
        return wire_fail(detail, "%s: a zero byte inside the text", field);
    memcpy(to, text->c_str(), text->size());
    return true;
}

Offset<fb::Memory> encode(FlatBufferBuilder &fbb, const wire_memory &m)
{
    if (m.kind == WIRE_MEMORY_NONE && m.handle_bytes == 0 && m.allocation_bytes == 0)
        return {};
    const auto handle = fbb.CreateVector(m.handle, m.handle_bytes);
    return fb::CreateMemory(fbb, static_cast<fb::MemoryKind>(m.kind), handle, m.allocation_bytes);
}

bool decode(const fb::Memory *t, wire_memory &m, const char *field, char *detail)
{
    if (!t)
        return true;
    put_enum(m.kind, static_cast<unsigned>(t->kind()));
    m.allocation_bytes = t->allocation_bytes();
    const Vector<uint8_t> *handle = t->handle();
    if (!handle)
        return true;
    if (handle->size() > sizeof(m.handle))
        return wire_fail(detail, "%s: a handle of %u bytes, at most %zu", field, handle->size(),
                         sizeof(m.handle));
    m.handle_bytes = handle->size();
    memcpy(m.handle, handle->data(), handle->size());
    return true;
}

bool is_none(const wire_region_ref &m)
{
    return m.region == 0 && m.generation == 0 && m.offset == 0;
}

fb::RegionRef region_ref(const wire_region_ref &m)
{
    return {m.region, m.offset, m.generation};
}

void decode(const fb::RegionRef *t, wire_region_ref &m)
{
    if (t)
        m = {t->region(), t->generation(), t->offset()};
}

bool is_none(const wire_semaphore_ref &m)
{
    return m.index == 0 && m.value == 0;
}

fb::SemaphoreRef semaphore_ref(const wire_semaphore_ref &m)
{
    return {m.value, m.index};
}

void decode(const fb::SemaphoreRef *t, wire_semaphore_ref &m)
{
    if (t)
        m = {t->index(), t->value()};
}

/* ---- Bodies of requests ------------------------------------------------------------------------ */

Offset<fb::HelloRequest> encode(FlatBufferBuilder &fbb, const wire_hello_request &m)
{
    const auto name = encode_text(fbb, m.client_name), device = encode_text(fbb, m.device);
    return fb::CreateHelloRequest(fbb, m.version, name, device);
}

bool decode(const fb::HelloRequest &t, wire_hello_request &m, char *detail)
{
    m.version = t.version();
    return decode_text(t.client_name(), m.client_name, "client_name", detail) &&
           decode_text(t.device(), m.device, "device", detail);
}

Offset<fb::RegisterRequest> encode(FlatBufferBuilder &fbb, const wire_register_request &m)
{
    const auto memory = encode(fbb, m.memory);
    const auto device = encode_text(fbb, m.device);
    fb::RegisterRequestBuilder b(fbb);
    REGISTER_FIELDS(ADD)
    b.add_memory(memory);
    b.add_device(device);
    b.add_access(static_cast<fb::Access>(m.access));
    return b.Finish();
}

bool decode(const fb::RegisterRequest &t, wire_register_request &m, char *detail)
{
    REGISTER_FIELDS(GET)
    put_enum(m.access, static_cast<unsigned>(t.access()));
    return decode(t.memory(), m.memory, "memory", detail) &&
           decode_text(t.device(), m.device, "device", detail);
}

Offset<fb::UnregisterRequest> encode(FlatBufferBuilder &fbb, const wire_unregister_request &m)
{
    fb::UnregisterRequestBuilder b(fbb);
    UNREGISTER_FIELDS(ADD)
    return b.Finish();
}

bool decode(const fb::UnregisterRequest &t, wire_unregister_request &m, char *)
{
    UNREGISTER_FIELDS(GET)
    return true;
}

Offset<fb::SelectRequest> encode(FlatBufferBuilder &fbb, const wire_select_request &m)
{
    Offset<Vector<int32_t>> lengths;
    if (m.num_lengths > 0)
        lengths = fbb.CreateVector(m.lengths_inline, m.num_lengths);
    fb::SelectRequestBuilder b(fbb);
#define ADD_REGION(field)                                                                          \
    const fb::RegionRef field##_ref = region_ref(m.field);                                         \
    if (!is_none(m.field))                                                                         \
        b.add_##field(&field##_ref);
    SELECT_REGIONS(ADD_REGION)
#undef ADD_REGION
    const fb::SemaphoreRef wait = semaphore_ref(m.wait), signal = semaphore_ref(m.signal);
    if (!is_none(m.wait))
        b.add_wait(&wait);
    if (!is_none(m.signal))
        b.add_signal(&signal);
    SELECT_FIELDS(ADD)
    b.add_lengths_inline(lengths);
    b.add_lengths_mode(static_cast<fb::LengthsMode>(m.lengths_mode));
    b.add_output_mode(static_cast<fb::OutputMode>(m.output_mode));
    b.add_reply_when(static_cast<fb::ReplyWhen>(m.reply_when));
    return b.Finish();
}

bool decode(const fb::SelectRequest &t, wire_select_request &m, char *)
{
    SELECT_FIELDS(GET)
#define GET_REGION(field) decode(t.field(), m.field);
    SELECT_REGIONS(GET_REGION)
#undef GET_REGION
    decode(t.wait(), m.wait);
    decode(t.signal(), m.signal);
    put_enum(m.lengths_mode, static_cast<unsigned>(t.lengths_mode()));
    put_enum(m.output_mode, static_cast<unsigned>(t.output_mode()));
    put_enum(m.reply_when, static_cast<unsigned>(t.reply_when()));
    if (const Vector<int32_t> *lengths = t.lengths_inline()) {
        m.num_lengths = lengths->size();
        m.lengths_inline = lengths->data();
    }
    return true;
}

Offset<fb::ReleaseRequest> encode(FlatBufferBuilder &fbb, const wire_release_request &m)
{
    return fb::CreateReleaseRequest(fbb, m.lease);
}

bool decode(const fb::ReleaseRequest &t, wire_release_request &m, char *)
{
    m.lease = t.lease();
    return true;
}

Offset<fb::LaneOpenRequest> encode(FlatBufferBuilder &fbb, const wire_lane_open_request &m)
{
    const auto shape = encode(fbb, m.shape);
    const fb::RegionRef live_rows = region_ref(m.live_rows);
    return fb::CreateLaneOpenRequest(fbb, shape, is_none(m.live_rows) ? nullptr : &live_rows);
}

bool decode(const fb::LaneOpenRequest &t, wire_lane_open_request &m, char *detail)
{
    if (!t.shape())
        return wire_fail(detail, "shape: missing in a lane_open request");
    decode(t.live_rows(), m.live_rows);
    return decode(*t.shape(), m.shape, detail);
}

Offset<fb::LaneCloseRequest> encode(FlatBufferBuilder &fbb, const wire_lane_close_request &m)
{
    return fb::CreateLaneCloseRequest(fbb, m.lane);
}

bool decode(const fb::LaneCloseRequest &t, wire_lane_close_request &m, char *)
{
    m.lane = t.lane();
    return true;
}

Offset<fb::DrainRequest> encode(FlatBufferBuilder &fbb, const wire_drain_request &m)
{
    return fb::CreateDrainRequest(fbb, m.deadline_ms);
}

bool decode(const fb::DrainRequest &t, wire_drain_request &m, char *)
{
    m.deadline_ms = t.deadline_ms();
    return true;
}

/* ---- Bodies of replies ------------------------------------------------------------------------- */

Offset<fb::HelloReply> encode(FlatBufferBuilder &fbb, const wire_hello_reply &hello)
{
    const auto device = encode_text(fbb, hello.device);
    const auto server_version = encode_text(fbb, hello.server_version);
    const auto semaphores = encode(fbb, hello.semaphores), arena = encode(fbb, hello.arena);
    const wire_limits &m = hello.limits;
    fb::LimitsBuilder b(fbb);
    LIMITS_FIELDS(ADD)
    const auto limits = b.Finish();
    return fb::CreateHelloReply(fbb, hello.version, static_cast<fb::DeviceKind>(hello.device_kind),
                                device, server_version, limits, semaphores, arena);
}

void decode(const fb::Limits &t, wire_limits &m)
{
    LIMITS_FIELDS(GET)
}

bool decode(const fb::HelloReply &t, wire_hello_reply &m, char *detail)
{
    m.version = t.version();
    put_enum(m.device_kind, static_cast<unsigned>(t.device_kind()));
    if (!t.limits())
        return wire_fail(detail, "limits: missing in the reply to hello");
    decode(*t.limits(), m.limits);
    return decode_text(t.device(), m.device, "device", detail) &&
           decode_text(t.server_version(), m.server_version, "server_version", detail) &&
           decode(t.semaphores(), m.semaphores, "semaphores", detail) &&
           decode(t.arena(), m.arena, "arena", detail);
}

Offset<fb::Device> encode(FlatBufferBuilder &fbb, const wire_device &m)
{
    const auto device = encode_text(fbb, m.device), name = encode_text(fbb, m.name);
    const auto url = encode_text(fbb, m.url);
    fb::DeviceBuilder b(fbb);
    DEVICE_FIELDS(ADD)
    b.add_device(device);
    b.add_name(name);
    b.add_url(url);
    b.add_kind(static_cast<fb::DeviceKind>(m.kind));
    b.add_state(static_cast<fb::DeviceState>(m.state));
    return b.Finish();
}

bool decode(const fb::Device &t, wire_device &m, char *detail)
{
    DEVICE_FIELDS(GET)
    put_enum(m.kind, static_cast<unsigned>(t.kind()));
    put_enum(m.state, static_cast<unsigned>(t.state()));
    return decode_text(t.device(), m.device, "device", detail) &&
           decode_text(t.name(), m.name, "name", detail) &&
           decode_text(t.url(), m.url, "url", detail);
}

Offset<fb::BucketStats> encode(FlatBufferBuilder &fbb, const wire_bucket_stats &m)
{
    fb::BucketStatsBuilder b(fbb);
    BUCKET_FIELDS(ADD)
    return b.Finish();
}

bool decode(const fb::BucketStats &t, wire_bucket_stats &m, char *)
{
    BUCKET_FIELDS(GET)
    return true;
}

Offset<fb::Session> encode(FlatBufferBuilder &fbb, const wire_session &m)
{
    const auto name = encode_text(fbb, m.client_name);
    fb::SessionBuilder b(fbb);
    SESSION_FIELDS(ADD)
    b.add_client_name(name);
    return b.Finish();
}

bool decode(const fb::Session &t, wire_session &m, char *detail)
{
    SESSION_FIELDS(GET)
    return decode_text(t.client_name(), m.client_name, "client_name", detail);
}

/* A vector of tables, from an array of structs; N bounds the offsets kept on the stack. */
template <class T, size_t N, class M>
Offset<Vector<Offset<T>>> encode_rows(FlatBufferBuilder &fbb, const M (&rows)[N], uint32_t num_rows)
{
    Offset<T> offsets[N];
    for (uint32_t i = 0; i < num_rows; i++)
        offsets[i] = encode(fbb, rows[i]);
    return fbb.CreateVector(offsets, num_rows);
}

template <class T, size_t N, class M>
bool decode_rows(const Vector<Offset<T>> *rows, M (&to)[N], uint32_t &num_rows, const char *field,
               char *detail)
{
    if (!rows)
        return true;
    if (rows->size() > N)
        return wire_fail(detail, "%s: %u entries, at most %zu", field, rows->size(), N);
    num_rows = rows->size();
    for (uint32_t i = 0; i < num_rows; i++) {
        if (!decode(*rows->Get(i), to[i], detail))
            return false;
    }
    return true;
}

Offset<fb::DevicesReply> encode(FlatBufferBuilder &fbb, const wire_devices_reply &m)
{
    const auto devices = encode_rows<fb::Device>(fbb, m.devices, m.num_devices);
    return fb::CreateDevicesReply(fbb, devices);
}

bool decode(const fb::DevicesReply &t, wire_devices_reply &m, char *detail)
{
    return decode_rows(t.devices(), m.devices, m.num_devices, "devices", detail);
}

Offset<fb::RegisterReply> encode(FlatBufferBuilder &fbb, const wire_register_reply &m)
{
    fb::RegisterReplyBuilder b(fbb);
    REGISTER_REPLY_FIELDS(ADD)
    return b.Finish();
}

bool decode(const fb::RegisterReply &t, wire_register_reply &m, char *)
{
    REGISTER_REPLY_FIELDS(GET)
    return true;
}

Offset<fb::UnregisterReply> encode(FlatBufferBuilder &fbb, const wire_unregister_reply &m)
{
    return fb::CreateUnregisterReply(fbb, m.draining);
}

bool decode(const fb::UnregisterReply &t, wire_unregister_reply &m, char *)
{
    m.draining = t.draining();
    return true;
}

Offset<fb::SelectReply> encode(FlatBufferBuilder &fbb, const wire_select_reply &m)
{
    fb::SelectReplyBuilder b(fbb);
    SELECT_REPLY_FIELDS(ADD)
    return b.Finish();
}

bool decode(const fb::SelectReply &t, wire_select_reply &m, char *)
{
    SELECT_REPLY_FIELDS(GET)
    return true;
}

Offset<fb::LaneOpenReply> encode(FlatBufferBuilder &fbb, const wire_lane_open_reply &m)
{
    const auto mailbox = encode(fbb, m.mailbox);
    fb::LaneOpenReplyBuilder b(fbb);
    LANE_OPEN_REPLY_FIELDS(ADD)
    b.add_mailbox(mailbox);
    return b.Finish();
}

bool decode(const fb::LaneOpenReply &t, wire_lane_open_reply &m, char *detail)
{
    LANE_OPEN_REPLY_FIELDS(GET)
    return decode(t.mailbox(), m.mailbox, "mailbox", detail);
}

bool decode_bins(const Vector<uint64_t> *bins, uint64_t (&to)[WIRE_HISTOGRAM_BINS],
               const char *field, char *detail)
{
    if (!bins)
        return true;
    if (bins->size() > WIRE_HISTOGRAM_BINS)
        return wire_fail(detail, "%s: %u entries, at most %u", field, bins->size(),
                         WIRE_HISTOGRAM_BINS);
    memcpy(to, bins->data(), bins->size() * sizeof(to[0]));
    return true;
}

Offset<fb::StatsReply> encode(FlatBufferBuilder &fbb, const wire_stats_reply &m)
{
    const auto request_bins = fbb.CreateVector(m.request_ns_bins, WIRE_HISTOGRAM_BINS);
    const auto run_bins = fbb.CreateVector(m.run_ns_bins, WIRE_HISTOGRAM_BINS);
    const auto buckets = encode_rows<fb::BucketStats>(fbb, m.buckets, m.num_buckets);
    fb::StatsReplyBuilder b(fbb);
    STATS_FIELDS(ADD)
    b.add_request_ns_bins(request_bins);
    b.add_run_ns_bins(run_bins);
    b.add_buckets(buckets);
    return b.Finish();
}

bool decode(const fb::StatsReply &t, wire_stats_reply &m, char *detail)
{
    STATS_FIELDS(GET)
    return decode_bins(t.request_ns_bins(), m.request_ns_bins, "request_ns_bins", detail) &&
           decode_bins(t.run_ns_bins(), m.run_ns_bins, "run_ns_bins", detail) &&
           decode_rows(t.buckets(), m.buckets, m.num_buckets, "buckets", detail);
}

Offset<fb::SessionsReply> encode(FlatBufferBuilder &fbb, const wire_sessions_reply &m)
{
    const auto sessions = encode_rows<fb::Session>(fbb, m.sessions, m.num_sessions);
    return fb::CreateSessionsReply(fbb, sessions, m.num_total);
}

bool decode(const fb::SessionsReply &t, wire_sessions_reply &m, char *detail)
{
    m.num_total = t.num_total();
    return decode_rows(t.sessions(), m.sessions, m.num_sessions, "sessions", detail);
}

/* ---- Which body a kind has --------------------------------------------------------------------- */

/* kind, table of the body, member of the union; the kinds not listed have no body */
#define REQUEST_BODIES(X)                                                                          \
    X(WIRE_HELLO, HelloRequest, hello)                                                             \
    X(WIRE_REGISTER, RegisterRequest, reg)                                                         \
    X(WIRE_UNREGISTER, UnregisterRequest, unreg)                                                   \
    X(WIRE_SELECT, SelectRequest, select)                                                          \
    X(WIRE_RELEASE, ReleaseRequest, release)                                                       \
    X(WIRE_LANE_OPEN, LaneOpenRequest, lane_open)                                                  \
    X(WIRE_LANE_CLOSE, LaneCloseRequest, lane_close)                                               \
    X(WIRE_DRAIN, DrainRequest, drain)

#define REPLY_BODIES(X)                                                                            \
    X(WIRE_HELLO, HelloReply, hello)                                                               \
    X(WIRE_DEVICES, DevicesReply, devices)                                                         \
    X(WIRE_REGISTER, RegisterReply, reg)                                                           \
    X(WIRE_UNREGISTER, UnregisterReply, unreg)                                                     \
    X(WIRE_SELECT, SelectReply, select)                                                            \
    X(WIRE_LANE_OPEN, LaneOpenReply, lane_open)                                                    \
    X(WIRE_STATS, StatsReply, stats)                                                               \
    X(WIRE_SESSIONS, SessionsReply, sessions)

#define ENCODE_BODY(wire_kind, table, member)                                                       \
    case wire_kind:                                                                                \
        body = encode(fbb, m.u.member).Union();                                                     \
        type = BodyType::table;                                                                    \
        break;

#define DECODE_BODY(wire_kind, table, member)                                                        \
    case wire_kind:                                                                                \
        return decode_body(t.BODY_AS(table)(), m.u.member, wire_kind, detail);

template <class T, class M>
bool decode_body(const T *t, M &m, enum wire_kind kind, char *detail)
{
    if (!t)
        return wire_fail(detail, "a message of kind %s without its body", wire_kind_name(kind));
    memset(&m, 0, sizeof(m));
    return decode(*t, m, detail);
}

bool decode_request_body(const fb::Message &t, wire_request &m, char *detail)
{
#define BODY_AS(table) request_as_##table
    switch (m.kind) {
        REQUEST_BODIES(DECODE_BODY)
    default:
        return true;
    }
#undef BODY_AS
}

bool decode_reply_body(const fb::Reply &t, wire_reply &m, char *detail)
{
#define BODY_AS(table) body_as_##table
    switch (m.kind) {
        REPLY_BODIES(DECODE_BODY)
    default:
        return true;
    }
#undef BODY_AS
}

/* ---- Whole messages ---------------------------------------------------------------------------- */

enum topkd_status deliver(FlatBufferBuilder &fbb, Offset<fb::Message> message, uint8_t *out,
                          size_t out_size, size_t *size_p, char *detail)
{
    fb::FinishMessageBuffer(fbb, message);
    const size_t size = fbb.GetSize();
    WIRE_ASSERT(size <= WIRE_MESSAGE_SIZE_MAX);
    if (size > out_size) {
        wire_fail(detail, "the message has %zu bytes, its buffer only %zu", size, out_size);
        return TOPKD_E_INVALID;
    }
    memcpy(out, fbb.GetBufferPointer(), size);
    *size_p = size;
    return TOPKD_OK;
}

/* The verified message in `buffer`, or null with the detail text. */
const fb::Message *open_message(const void *bytes, size_t size, wire_buffer *buffer, char *detail)
{
    /* root offset and identifier; every FlatBuffer is a multiple of its offsets' size */
    constexpr size_t size_min = 8, granule = sizeof(flatbuffers::uoffset_t);
    if (size < size_min || size > WIRE_MESSAGE_SIZE_MAX || size % granule != 0) {
        wire_fail(detail, "a message of %zu bytes; it must be a multiple of %zu from %zu to %u",
                  size, granule, size_min, WIRE_MESSAGE_SIZE_MAX);
        return nullptr;
    }
    memmove(buffer->bytes, bytes, size);
    if (!fb::MessageBufferHasIdentifier(buffer->bytes)) {
        const uint8_t *id = buffer->bytes + sizeof(flatbuffers::uoffset_t);
        wire_fail(detail, "not a topkd message: identifier %02x %02x %02x %02x is not \"%s\"",
                  id[0], id[1], id[2], id[3], fb::MessageIdentifier());
        return nullptr;
    }
    flatbuffers::Verifier::Options options;
    options.max_depth = DEPTH_MAX;
    options.max_tables = TABLES_MAX;
    flatbuffers::Verifier verifier(buffer->bytes, size, options);
    if (!fb::VerifyMessageBuffer(verifier)) {
        wire_fail(detail, "a corrupt message of %zu bytes: an offset or a size in it is wrong",
                  size);
        return nullptr;
    }
    return fb::GetMessage(buffer->bytes);
}

} // namespace

enum topkd_status wire_request_encode(const struct wire_request *request, uint8_t *out,
                                      size_t out_size, size_t *size_p, char *detail)
{
    if (!wire_request_check(request, detail))
        return TOPKD_E_INVALID;
    const wire_request &m = *request;
    Room room;
    FlatBufferBuilder fbb(Room::SIZE, &room);
    using BodyType = fb::RequestBody;
    BodyType type = BodyType::NONE;
    Offset<void> body;
    switch (m.kind) {
        REQUEST_BODIES(ENCODE_BODY)
    default:
        break;
    }
    const auto message = fb::CreateMessage(fbb, m.session, m.sequence, m.epoch,
                                           static_cast<fb::Kind>(m.kind), type, body);
    return deliver(fbb, message, out, out_size, size_p, detail);
}

enum topkd_status wire_reply_encode(const struct wire_reply *reply, uint8_t *out, size_t out_size,
                                    size_t *size_p, char *detail)
{
    if (!wire_reply_check(reply, detail))
        return TOPKD_E_INVALID;
    const wire_reply &m = *reply;
    Room room;
    FlatBufferBuilder fbb(Room::SIZE, &room);
    using BodyType = fb::ReplyBody;
    BodyType type = BodyType::NONE;
    Offset<void> body;
    if (m.status == TOPKD_OK) {
        switch (m.kind) {
            REPLY_BODIES(ENCODE_BODY)
        default:
            break;
        }
    }
    const auto text = encode_text(fbb, m.detail);
    const auto answer = fb::CreateReply(fbb, static_cast<uint32_t>(m.status), text, type, body);
    const auto message =
        fb::CreateMessage(fbb, m.session, m.sequence, m.epoch, static_cast<fb::Kind>(m.kind),
                          fb::RequestBody::NONE, 0, answer);
    return deliver(fbb, message, out, out_size, size_p, detail);
}

static enum topkd_status refuse_request(struct wire_request *request, enum topkd_status status)
{
    const uint64_t session = request->session, sequence = request->sequence,
                   epoch = request->epoch;
    memset(request, 0, sizeof(*request));
    request->session = session;
    request->sequence = sequence;
    request->epoch = epoch;
    return status;
}

enum topkd_status wire_request_decode(const void *bytes, size_t size, struct wire_buffer *buffer,
                                      struct wire_request *request, char *detail)
{
    memset(request, 0, sizeof(*request));
    const fb::Message *message = open_message(bytes, size, buffer, detail);
    if (!message)
        return TOPKD_E_PROTOCOL;
    request->session = message->session();
    request->sequence = message->sequence();
    request->epoch = message->epoch();
    if (message->reply()) {
        wire_fail(detail, "a reply where a request is expected");
        return TOPKD_E_PROTOCOL;
    }
    const unsigned kind = static_cast<unsigned>(message->kind());
    if (!wire_kind_known(kind)) {
        wire_fail(detail, "request kind %u is not known to wire version %u", kind, WIRE_VERSION);
        return TOPKD_E_UNSUPPORTED;
    }
    put_enum(request->kind, kind);
    if (!decode_request_body(*message, *request, detail) || !wire_request_check(request, detail))
        return refuse_request(request, TOPKD_E_PROTOCOL);
    return TOPKD_OK;
}

/* The status of a reply; one that this version has no name for keeps its number in the detail. */
static bool decode_status(const fb::Reply &answer, wire_reply *reply, char *detail)
{
    if (!decode_text(answer.detail(), reply->detail, "detail", detail))
        return false;
    const uint32_t status = answer.status();
    if (wire_status_known(status)) {
        put_enum(reply->status, status);
        return true;
    }
    char text[WIRE_DETAIL_SIZE];
    memcpy(text, reply->detail, sizeof(text));
    reply->status = TOPKD_E_VERSION;
    wire_fail(reply->detail, "status %u of a newer topkd: %.200s", status, text);
    return true;
}

enum topkd_status wire_reply_decode(const void *bytes, size_t size, struct wire_buffer *buffer,
                                    struct wire_reply *reply, char *detail)
{
    /* The bodies of a reply are large: the one of its kind is cleared when it is read. */
    memset(reply, 0, offsetof(struct wire_reply, u));
    reply->status = TOPKD_E_PROTOCOL;
    const fb::Message *message = open_message(bytes, size, buffer, detail);
    if (!message)
        return TOPKD_E_PROTOCOL;
    reply->session = message->session();
    reply->sequence = message->sequence();
    reply->epoch = message->epoch();
    const fb::Reply *answer = message->reply();
    if (!answer) {
        wire_fail(detail, "a request where a reply is expected");
        return TOPKD_E_PROTOCOL;
    }
    const unsigned kind = static_cast<unsigned>(message->kind());
    if (kind != 0 && !wire_kind_known(kind)) {
        wire_fail(detail, "reply kind %u is not known to wire version %u", kind, WIRE_VERSION);
        return TOPKD_E_UNSUPPORTED;
    }
    put_enum(reply->kind, kind);
    if (decode_status(*answer, reply, detail) &&
        (reply->status != TOPKD_OK || decode_reply_body(*answer, *reply, detail)) &&
        wire_reply_check(reply, detail))
        return TOPKD_OK;
    reply->status = TOPKD_E_PROTOCOL;
    return TOPKD_E_PROTOCOL;
}
