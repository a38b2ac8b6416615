/*
 * wire.cpp - messages: the wire structs to FlatBuffers and back. With its two headers of bodies
 * this is the only C++ of the daemon and the library.
 *
 * wire_request_encode checks the struct (check.c), builds the table of its body and the Message
 * around it, and copies the bytes out. wire_request_decode copies the bytes to aligned memory,
 * verifies them, reads the body, and checks the struct. Replies go the same way.
 *
 * No exceptions and no allocation: a message is built in a room on the stack that holds the largest
 * message within the limits of topkd_wire.h.
 */
#include "codec_replies.hpp"
#include "codec_requests.hpp"

using namespace topkd_codec;

static_assert(FLATBUFFERS_LITTLEENDIAN, "inline lengths are read in place: little endian only");
static_assert(static_cast<unsigned>(fb::Kind::Drain) == WIRE_DRAIN, "kinds as in the C header");
static_assert(static_cast<unsigned>(fb::Kind::MAX) == WIRE_SELECT_BATCH,
              "kinds as in the C header");
static_assert(static_cast<unsigned>(fb::DeviceKind::MAX) == WIRE_DEVICE_CUDA);
static_assert(static_cast<unsigned>(fb::DeviceState::MAX) == WIRE_DEVICE_DOWN);
static_assert(static_cast<unsigned>(fb::MemoryKind::MAX) == WIRE_MEMORY_CUDA_FD);
static_assert(static_cast<unsigned>(fb::Access::MAX) == WIRE_ACCESS_READ_WRITE);
static_assert(static_cast<unsigned>(fb::LengthsMode::MAX) == WIRE_LENGTHS_REGION);
static_assert(static_cast<unsigned>(fb::OutputMode::MAX) == WIRE_OUTPUT_ARENA);
static_assert(static_cast<unsigned>(fb::ReplyWhen::MAX) == WIRE_REPLY_ENQUEUED);

namespace
{

/* Beside the message the builder keeps a few bytes a field and a distinct vtable. */
constexpr size_t SCRATCH_SIZE = 4096;

/* The largest message, Sessions, has WIRE_SESSIONS_MAX + 3 tables in a depth of 4; the rest is room
 * to grow. Offsets of a hostile message may meet in one table, so its size does not bound this. */
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

/* ---- Which body a kind has ------------------------------------------------------------------- */

/* kind, table of the body, member of the union; the kinds not listed have no body */
#define REQUEST_BODIES(X)                                                                          \
    X(WIRE_HELLO, HelloRequest, hello)                                                             \
    X(WIRE_REGISTER, RegisterRequest, reg)                                                         \
    X(WIRE_UNREGISTER, UnregisterRequest, unreg)                                                   \
    X(WIRE_SELECT, SelectRequest, select)                                                          \
    X(WIRE_RELEASE, ReleaseRequest, release)                                                       \
    X(WIRE_LANE_OPEN, LaneOpenRequest, lane_open)                                                  \
    X(WIRE_LANE_CLOSE, LaneCloseRequest, lane_close)                                               \
    X(WIRE_DRAIN, DrainRequest, drain)                                                             \
    X(WIRE_SELECT_BATCH, SelectBatchRequest, select_batch)

#define REPLY_BODIES(X)                                                                            \
    X(WIRE_HELLO, HelloReply, hello)                                                               \
    X(WIRE_DEVICES, DevicesReply, devices)                                                         \
    X(WIRE_REGISTER, RegisterReply, reg)                                                           \
    X(WIRE_UNREGISTER, UnregisterReply, unreg)                                                     \
    X(WIRE_SELECT, SelectReply, select)                                                            \
    X(WIRE_LANE_OPEN, LaneOpenReply, lane_open)                                                    \
    X(WIRE_STATS, StatsReply, stats)                                                               \
    X(WIRE_SESSIONS, SessionsReply, sessions)                                                      \
    X(WIRE_SELECT_BATCH, SelectBatchReply, select_batch)

#define ENCODE_BODY(value, table, member)                                                          \
    case value:                                                                                    \
        body = encode(fbb, m.u.member).Union();                                                    \
        type = BodyType::table;                                                                    \
        break;

#define DECODE_BODY(value, table, member)                                                          \
    case value:                                                                                    \
        return decode_body(t.BODY_AS(table)(), m.u.member, value, detail);

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

/* ---- Whole messages -------------------------------------------------------------------------- */

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

static void keep_only_header(struct wire_request *request)
{
    const uint64_t session = request->session, sequence = request->sequence, epoch = request->epoch;
    memset(request, 0, sizeof(*request));
    request->session = session;
    request->sequence = sequence;
    request->epoch = epoch;
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
    if (decode_request_body(*message, *request, detail) && wire_request_check(request, detail))
        return TOPKD_OK;
    keep_only_header(request);
    return TOPKD_E_PROTOCOL;
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
    if (decode_status(answer->status(), answer->detail(), reply->status, reply->detail, detail) &&
        (reply->status != TOPKD_OK || decode_reply_body(*answer, *reply, detail)) &&
        wire_reply_check(reply, detail))
        return TOPKD_OK;
    reply->status = TOPKD_E_PROTOCOL;
    return TOPKD_E_PROTOCOL;
}
