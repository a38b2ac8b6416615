/*
 * codec_requests.hpp - the bodies of requests. Included by wire.cpp only.
 */
#ifndef TOPKD_CODEC_REQUESTS_HPP
#define TOPKD_CODEC_REQUESTS_HPP

#include "codec_parts.hpp"

namespace topkd_codec
{

/* clang-format off */
#define REGISTER_FIELDS(X) X(buffer_id) X(offset) X(length) X(unlink_when_dead)
#define UNREGISTER_FIELDS(X) X(region) X(generation)
#define SELECT_FIELDS(X)                                                                           \
    X(row_stride) X(index_stride) X(value_stride) X(page_table_stride) X(rows) X(width) X(k)       \
    X(length_all) X(page_table_width) X(page_size_log2) X(timeout_ms) X(order) X(ties)             \
    X(want_values) X(dtype)
#define SELECT_REGIONS(X) X(scores) X(lengths) X(indices) X(values) X(page_table) X(row_offsets)
/* clang-format on */

inline Offset<fb::HelloRequest> encode(FlatBufferBuilder &fbb, const wire_hello_request &m)
{
    const auto name = encode_text(fbb, m.client_name), device = encode_text(fbb, m.device);
    return fb::CreateHelloRequest(fbb, m.version, name, device);
}

inline bool decode(const fb::HelloRequest &t, wire_hello_request &m, char *detail)
{
    m.version = t.version();
    return decode_text(t.client_name(), m.client_name, "client_name", detail) &&
           decode_text(t.device(), m.device, "device", detail);
}

inline Offset<fb::RegisterRequest> encode(FlatBufferBuilder &fbb, const wire_register_request &m)
{
    const auto memory = encode(fbb, m.memory);
    const auto device = encode_text(fbb, m.device);
    fb::RegisterRequestBuilder b(fbb);
    REGISTER_FIELDS(ADD_FIELD)
    b.add_memory(memory);
    b.add_device(device);
    b.add_access(static_cast<fb::Access>(m.access));
    return b.Finish();
}

inline bool decode(const fb::RegisterRequest &t, wire_register_request &m, char *detail)
{
    REGISTER_FIELDS(GET_FIELD)
    put_enum(m.access, static_cast<unsigned>(t.access()));
    return decode(t.memory(), m.memory, "memory", detail) &&
           decode_text(t.device(), m.device, "device", detail);
}

inline Offset<fb::UnregisterRequest> encode(FlatBufferBuilder &fbb,
                                            const wire_unregister_request &m)
{
    fb::UnregisterRequestBuilder b(fbb);
    UNREGISTER_FIELDS(ADD_FIELD)
    return b.Finish();
}

inline bool decode(const fb::UnregisterRequest &t, wire_unregister_request &m, char *)
{
    UNREGISTER_FIELDS(GET_FIELD)
    return true;
}

inline Offset<fb::SelectRequest> encode(FlatBufferBuilder &fbb, const wire_select_request &m)
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
    SELECT_FIELDS(ADD_FIELD)
    b.add_lengths_inline(lengths);
    b.add_lengths_mode(static_cast<fb::LengthsMode>(m.lengths_mode));
    b.add_output_mode(static_cast<fb::OutputMode>(m.output_mode));
    b.add_reply_when(static_cast<fb::ReplyWhen>(m.reply_when));
    return b.Finish();
}

inline bool decode(const fb::SelectRequest &t, wire_select_request &m, char *)
{
    SELECT_FIELDS(GET_FIELD)
#define GET_REGION(field) decode(t.field(), m.field);
    SELECT_REGIONS(GET_REGION)
#undef GET_REGION
    decode(t.wait(), m.wait);
    decode(t.signal(), m.signal);
    put_enum(m.lengths_mode, static_cast<unsigned>(t.lengths_mode()));
    put_enum(m.output_mode, static_cast<unsigned>(t.output_mode()));
    put_enum(m.reply_when, static_cast<unsigned>(t.reply_when()));
    const Vector<int32_t> *lengths = t.lengths_inline();
    if (lengths && lengths->size() > 0) { /* an empty list has no pointer either */
        m.num_lengths = lengths->size();
        m.lengths_inline = lengths->data();
    }
    return true;
}

inline Offset<fb::ReleaseRequest> encode(FlatBufferBuilder &fbb, const wire_release_request &m)
{
    return fb::CreateReleaseRequest(fbb, m.lease);
}

inline bool decode(const fb::ReleaseRequest &t, wire_release_request &m, char *)
{
    m.lease = t.lease();
    return true;
}

inline Offset<fb::LaneOpenRequest> encode(FlatBufferBuilder &fbb, const wire_lane_open_request &m)
{
    const auto shape = encode(fbb, m.shape);
    const fb::RegionRef live_rows = region_ref(m.live_rows);
    const auto mailbox = encode(fbb, m.mailbox);
    const fb::RegionRef device_mailbox = region_ref(m.device_mailbox);
    return fb::CreateLaneOpenRequest(fbb, shape, is_none(m.live_rows) ? nullptr : &live_rows,
                                     mailbox, is_none(m.device_mailbox) ? nullptr : &device_mailbox,
                                     m.poll_us);
}

inline bool decode(const fb::LaneOpenRequest &t, wire_lane_open_request &m, char *detail)
{
    if (!t.shape())
        return wire_fail(detail, "shape: missing in a lane_open request");
    decode(t.live_rows(), m.live_rows);
    decode(t.device_mailbox(), m.device_mailbox);
    m.poll_us = t.poll_us();
    return decode(*t.shape(), m.shape, detail) && decode(t.mailbox(), m.mailbox, "mailbox", detail);
}

inline Offset<fb::LaneCloseRequest> encode(FlatBufferBuilder &fbb, const wire_lane_close_request &m)
{
    return fb::CreateLaneCloseRequest(fbb, m.lane);
}

inline bool decode(const fb::LaneCloseRequest &t, wire_lane_close_request &m, char *)
{
    m.lane = t.lane();
    return true;
}

inline Offset<fb::SelectBatchRequest> encode(FlatBufferBuilder &fbb,
                                             const wire_select_batch_request &m)
{
    const auto selects = encode_rows<fb::SelectRequest>(fbb, m.selects, m.num_selects);
    return fb::CreateSelectBatchRequest(fbb, selects);
}

inline bool decode(const fb::SelectBatchRequest &t, wire_select_batch_request &m, char *detail)
{
    return decode_rows(t.selects(), m.selects, m.num_selects, "selects", detail);
}

inline Offset<fb::DrainRequest> encode(FlatBufferBuilder &fbb, const wire_drain_request &m)
{
    return fb::CreateDrainRequest(fbb, m.deadline_ms);
}

inline bool decode(const fb::DrainRequest &t, wire_drain_request &m, char *)
{
    m.deadline_ms = t.deadline_ms();
    return true;
}

} // namespace topkd_codec

#endif
