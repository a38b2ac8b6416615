/*
 * codec_replies.hpp - the bodies of replies. Included by wire.cpp only.
 */
#ifndef TOPKD_CODEC_REPLIES_HPP
#define TOPKD_CODEC_REPLIES_HPP

#include "codec_parts.hpp"

namespace topkd_codec
{

/* clang-format off */
#define LIMITS_FIELDS(X)                                                                           \
    X(region_bytes_max) X(rows_max) X(width_max) X(arena_slot_bytes) X(regions_max)                \
    X(outstanding_max) X(semaphores) X(lanes_max) X(k_max) X(timeout_ms_max) X(arena_slots)        \
    X(batch_max) X(dtypes)
#define DEVICE_FIELDS(X) X(epoch) X(restarts) X(pid)
#define REGISTER_REPLY_FIELDS(X) X(region) X(generation)
#define SELECT_REPLY_FIELDS(X)                                                                     \
    X(lease) X(indices_offset) X(values_offset) X(queued_ns) X(run_ns) X(slot) X(bucket)
#define LANE_OPEN_REPLY_FIELDS(X) X(lane) X(mailbox_offset) X(fills_device) X(poll_us)
#define BUCKET_FIELDS(X) X(requests) X(bucket) X(rows) X(width) X(k) X(dtype)
#define STATS_FIELDS(X)                                                                            \
    X(uptime_ms) X(epoch) X(mapped_bytes) X(sessions_opened) X(sessions_reaped) X(requests)        \
    X(requests_failed) X(replies_repeated) X(messages_rejected) X(rows_copied) X(rows_direct)      \
    X(rows_certified) X(rows_band) X(rows_recovery) X(rows_spill) X(rows_clamped) X(scores_read)   \
    X(worker_restarts) X(request_ns_sum) X(run_ns_sum) X(sessions) X(regions) X(leases) X(queued)  \
    X(running) X(lanes) X(lane_steps) X(lane_pauses) X(select_batches) X(selects_batched)   \
    X(lanes_armed) X(lanes_max) X(lanes_wanted)
#define SESSION_FIELDS(X)                                                                          \
    X(session) X(uid) X(gid) X(pid) X(mapped_bytes) X(requests) X(age_ms) X(regions)               \
    X(outstanding) X(leases)
/* clang-format on */

inline Offset<fb::HelloReply> encode(FlatBufferBuilder &fbb, const wire_hello_reply &hello)
{
    const auto device = encode_text(fbb, hello.device);
    const auto server_version = encode_text(fbb, hello.server_version);
    const auto semaphores = encode(fbb, hello.semaphores), arena = encode(fbb, hello.arena);
    const wire_limits &m = hello.limits;
    fb::LimitsBuilder b(fbb);
    LIMITS_FIELDS(ADD_FIELD)
    const auto limits = b.Finish();
    return fb::CreateHelloReply(fbb, hello.version, static_cast<fb::DeviceKind>(hello.device_kind),
                                device, server_version, limits, semaphores, arena);
}

inline void decode(const fb::Limits &t, wire_limits &m)
{
    LIMITS_FIELDS(GET_FIELD)
}

inline bool decode(const fb::HelloReply &t, wire_hello_reply &m, char *detail)
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

inline Offset<fb::Device> encode(FlatBufferBuilder &fbb, const wire_device &m)
{
    const auto device = encode_text(fbb, m.device), name = encode_text(fbb, m.name);
    const auto url = encode_text(fbb, m.url);
    fb::DeviceBuilder b(fbb);
    DEVICE_FIELDS(ADD_FIELD)
    b.add_device(device);
    b.add_name(name);
    b.add_url(url);
    b.add_kind(static_cast<fb::DeviceKind>(m.kind));
    b.add_state(static_cast<fb::DeviceState>(m.state));
    return b.Finish();
}

inline bool decode(const fb::Device &t, wire_device &m, char *detail)
{
    DEVICE_FIELDS(GET_FIELD)
    put_enum(m.kind, static_cast<unsigned>(t.kind()));
    put_enum(m.state, static_cast<unsigned>(t.state()));
    return decode_text(t.device(), m.device, "device", detail) &&
           decode_text(t.name(), m.name, "name", detail) &&
           decode_text(t.url(), m.url, "url", detail);
}

inline Offset<fb::BucketStats> encode(FlatBufferBuilder &fbb, const wire_bucket_stats &m)
{
    fb::BucketStatsBuilder b(fbb);
    BUCKET_FIELDS(ADD_FIELD)
    return b.Finish();
}

inline bool decode(const fb::BucketStats &t, wire_bucket_stats &m, char *)
{
    BUCKET_FIELDS(GET_FIELD)
    return true;
}

inline Offset<fb::Session> encode(FlatBufferBuilder &fbb, const wire_session &m)
{
    const auto name = encode_text(fbb, m.client_name);
    fb::SessionBuilder b(fbb);
    SESSION_FIELDS(ADD_FIELD)
    b.add_client_name(name);
    return b.Finish();
}

inline bool decode(const fb::Session &t, wire_session &m, char *detail)
{
    SESSION_FIELDS(GET_FIELD)
    return decode_text(t.client_name(), m.client_name, "client_name", detail);
}

inline Offset<fb::DevicesReply> encode(FlatBufferBuilder &fbb, const wire_devices_reply &m)
{
    const auto devices = encode_rows<fb::Device>(fbb, m.devices, m.num_devices);
    return fb::CreateDevicesReply(fbb, devices);
}

inline bool decode(const fb::DevicesReply &t, wire_devices_reply &m, char *detail)
{
    return decode_rows(t.devices(), m.devices, m.num_devices, "devices", detail);
}

inline Offset<fb::RegisterReply> encode(FlatBufferBuilder &fbb, const wire_register_reply &m)
{
    fb::RegisterReplyBuilder b(fbb);
    REGISTER_REPLY_FIELDS(ADD_FIELD)
    return b.Finish();
}

inline bool decode(const fb::RegisterReply &t, wire_register_reply &m, char *)
{
    REGISTER_REPLY_FIELDS(GET_FIELD)
    return true;
}

inline Offset<fb::UnregisterReply> encode(FlatBufferBuilder &fbb, const wire_unregister_reply &m)
{
    return fb::CreateUnregisterReply(fbb, m.draining);
}

inline bool decode(const fb::UnregisterReply &t, wire_unregister_reply &m, char *)
{
    m.draining = t.draining();
    return true;
}

inline Offset<fb::SelectReply> encode(FlatBufferBuilder &fbb, const wire_select_reply &m)
{
    fb::SelectReplyBuilder b(fbb);
    SELECT_REPLY_FIELDS(ADD_FIELD)
    return b.Finish();
}

inline bool decode(const fb::SelectReply &t, wire_select_reply &m, char *)
{
    SELECT_REPLY_FIELDS(GET_FIELD)
    return true;
}

inline Offset<fb::SelectAnswer> encode(FlatBufferBuilder &fbb, const wire_select_answer &m)
{
    const auto text = encode_text(fbb, m.detail);
    const auto select = m.status == TOPKD_OK ? encode(fbb, m.select) : Offset<fb::SelectReply>();
    return fb::CreateSelectAnswer(fbb, static_cast<uint32_t>(m.status), text, select);
}

inline bool decode(const fb::SelectAnswer &t, wire_select_answer &m, char *detail)
{
    if (!decode_status(t.status(), t.detail(), m.status, m.detail, detail))
        return false;
    if (m.status != TOPKD_OK)
        return true;
    if (!t.select())
        return wire_fail(detail, "answers: one with the status ok has no body");
    return decode(*t.select(), m.select, detail);
}

inline Offset<fb::SelectBatchReply> encode(FlatBufferBuilder &fbb, const wire_select_batch_reply &m)
{
    const auto answers = encode_rows<fb::SelectAnswer>(fbb, m.answers, m.num_answers);
    return fb::CreateSelectBatchReply(fbb, answers);
}

inline bool decode(const fb::SelectBatchReply &t, wire_select_batch_reply &m, char *detail)
{
    return decode_rows(t.answers(), m.answers, m.num_answers, "answers", detail);
}

inline Offset<fb::LaneOpenReply> encode(FlatBufferBuilder &fbb, const wire_lane_open_reply &m)
{
    const auto mailbox = encode(fbb, m.mailbox);
    fb::LaneOpenReplyBuilder b(fbb);
    LANE_OPEN_REPLY_FIELDS(ADD_FIELD)
    b.add_mailbox(mailbox);
    return b.Finish();
}

inline bool decode(const fb::LaneOpenReply &t, wire_lane_open_reply &m, char *detail)
{
    LANE_OPEN_REPLY_FIELDS(GET_FIELD)
    return decode(t.mailbox(), m.mailbox, "mailbox", detail);
}

inline bool decode_bins(const Vector<uint64_t> *bins, uint64_t (&to)[WIRE_HISTOGRAM_BINS],
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

inline Offset<fb::StatsReply> encode(FlatBufferBuilder &fbb, const wire_stats_reply &m)
{
    const auto request_bins = fbb.CreateVector(m.request_ns_bins, WIRE_HISTOGRAM_BINS);
    const auto run_bins = fbb.CreateVector(m.run_ns_bins, WIRE_HISTOGRAM_BINS);
    const auto buckets = encode_rows<fb::BucketStats>(fbb, m.buckets, m.num_buckets);
    fb::StatsReplyBuilder b(fbb);
    STATS_FIELDS(ADD_FIELD)
    b.add_request_ns_bins(request_bins);
    b.add_run_ns_bins(run_bins);
    b.add_buckets(buckets);
    return b.Finish();
}

inline bool decode(const fb::StatsReply &t, wire_stats_reply &m, char *detail)
{
    STATS_FIELDS(GET_FIELD)
    return decode_bins(t.request_ns_bins(), m.request_ns_bins, "request_ns_bins", detail) &&
           decode_bins(t.run_ns_bins(), m.run_ns_bins, "run_ns_bins", detail) &&
           decode_rows(t.buckets(), m.buckets, m.num_buckets, "buckets", detail);
}

inline Offset<fb::SessionsReply> encode(FlatBufferBuilder &fbb, const wire_sessions_reply &m)
{
    const auto sessions = encode_rows<fb::Session>(fbb, m.sessions, m.num_sessions);
    return fb::CreateSessionsReply(fbb, sessions, m.num_total);
}

inline bool decode(const fb::SessionsReply &t, wire_sessions_reply &m, char *detail)
{
    m.num_total = t.num_total();
    return decode_rows(t.sessions(), m.sessions, m.num_sessions, "sessions", detail);
}

} // namespace topkd_codec

#endif
