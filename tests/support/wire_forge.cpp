/*
 * wire_forge.cpp - forged messages, built with the FlatBuffers runtime directly.
 */
#include "wire_forge.h"

#include "topkd_generated.h"

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace
{

namespace fb = topkd::wire;
using Builder = flatbuffers::FlatBufferBuilder;
using Message = flatbuffers::Offset<fb::Message>;
using Body = flatbuffers::Offset<void>;

/* ---- Frames ---------------------------------------------------------------------------------- */

Message request(Builder &b, unsigned kind, fb::RequestBody type = fb::RequestBody::NONE,
                Body body = 0)
{
    return fb::CreateMessage(b, FORGE_SESSION, FORGE_SEQUENCE, FORGE_EPOCH,
                             static_cast<fb::Kind>(kind), type, body);
}

Message reply(Builder &b, unsigned kind, fb::ReplyBody type = fb::ReplyBody::NONE, Body body = 0,
              unsigned status = TOPKD_OK, const std::string &detail = "")
{
    const auto answer = fb::CreateReply(b, status, b.CreateString(detail), type, body);
    return fb::CreateMessage(b, FORGE_SESSION, FORGE_SEQUENCE, FORGE_EPOCH,
                             static_cast<fb::Kind>(kind), fb::RequestBody::NONE, 0, answer);
}

/* ---- Requests with one wrong thing ----------------------------------------------------------- */

Message hello(Builder &b, const std::string &name, const std::string &device)
{
    const auto body =
        fb::CreateHelloRequest(b, WIRE_VERSION, b.CreateString(name), b.CreateString(device));
    return request(b, WIRE_HELLO, fb::RequestBody::HelloRequest, body.Union());
}

flatbuffers::Offset<fb::Memory> memory(Builder &b, unsigned kind, size_t handle_bytes)
{
    const std::vector<uint8_t> handle(handle_bytes, 7);
    return fb::CreateMemory(b, static_cast<fb::MemoryKind>(kind), b.CreateVector(handle), 4096);
}

Message registration(Builder &b, unsigned memory_kind, size_t handle_bytes, unsigned access)
{
    const auto m = memory(b, memory_kind, handle_bytes);
    fb::RegisterRequestBuilder body(b);
    body.add_memory(m);
    body.add_access(static_cast<fb::Access>(access));
    return request(b, WIRE_REGISTER, fb::RequestBody::RegisterRequest, body.Finish().Union());
}

struct SelectChoice {
    unsigned lengths_mode = WIRE_LENGTHS_ALL, output_mode = 0, reply_when = 0;
    uint32_t rows = 4;
    int64_t num_lengths = -1; /* -1: no vector */
};

flatbuffers::Offset<fb::SelectRequest> select_body(Builder &b, const SelectChoice &choice)
{
    flatbuffers::Offset<flatbuffers::Vector<int32_t>> lengths;
    if (choice.num_lengths >= 0)
        lengths = b.CreateVector(std::vector<int32_t>(static_cast<size_t>(choice.num_lengths), 9));
    fb::SelectRequestBuilder body(b);
    body.add_rows(choice.rows);
    body.add_lengths_mode(static_cast<fb::LengthsMode>(choice.lengths_mode));
    body.add_output_mode(static_cast<fb::OutputMode>(choice.output_mode));
    body.add_reply_when(static_cast<fb::ReplyWhen>(choice.reply_when));
    body.add_lengths_inline(lengths);
    return body.Finish();
}

Message select(Builder &b, const SelectChoice &choice)
{
    const auto body = select_body(b, choice);
    return request(b, WIRE_SELECT, fb::RequestBody::SelectRequest, body.Union());
}

SelectChoice inline_lengths(uint32_t rows, int64_t num_lengths)
{
    SelectChoice choice;
    choice.lengths_mode = WIRE_LENGTHS_INLINE;
    choice.rows = rows;
    choice.num_lengths = num_lengths;
    return choice;
}

Message lane_open(Builder &b, flatbuffers::Offset<fb::SelectRequest> shape)
{
    const auto body = fb::CreateLaneOpenRequest(b, shape);
    return request(b, WIRE_LANE_OPEN, fb::RequestBody::LaneOpenRequest, body.Union());
}

Message batch(Builder &b, size_t num_selects, const SelectChoice &choice)
{
    std::vector<flatbuffers::Offset<fb::SelectRequest>> selects;
    for (size_t i = 0; i < num_selects; i++)
        selects.push_back(select_body(b, choice));
    const auto body = fb::CreateSelectBatchRequest(b, b.CreateVector(selects));
    return request(b, WIRE_SELECT_BATCH, fb::RequestBody::SelectBatchRequest, body.Union());
}

/* A body with a field that this version does not know, as a newer peer would send it. */
Message newer_release(Builder &b)
{
    const auto start = b.StartTable();
    b.AddElement<uint64_t>(fb::ReleaseRequest::VT_LEASE, 31, 0);
    b.AddElement<uint64_t>(flatbuffers::FieldIndexToOffset(9), UINT64_MAX, 0);
    const flatbuffers::Offset<fb::ReleaseRequest> body(b.EndTable(start));
    return request(b, WIRE_RELEASE, fb::RequestBody::ReleaseRequest, body.Union());
}

/* ---- Replies with one wrong thing ------------------------------------------------------------ */

Message hello_reply(Builder &b, unsigned device_kind, bool with_limits, size_t handle_bytes)
{
    const auto limits = with_limits ? fb::CreateLimits(b) : flatbuffers::Offset<fb::Limits>();
    const auto semaphores = memory(b, WIRE_MEMORY_SHM, handle_bytes);
    const auto body = fb::CreateHelloReply(
        b, WIRE_VERSION, static_cast<fb::DeviceKind>(device_kind), 0, 0, limits, semaphores);
    return reply(b, WIRE_HELLO, fb::ReplyBody::HelloReply, body.Union());
}

Message devices_reply(Builder &b, size_t num_devices, const std::string &url, unsigned state)
{
    std::vector<flatbuffers::Offset<fb::Device>> devices;
    for (size_t i = 0; i < num_devices; i++)
        devices.push_back(fb::CreateDevice(b, 0, 0, b.CreateString(url), 1, fb::DeviceKind::Cpu,
                                           static_cast<fb::DeviceState>(state)));
    const auto body = fb::CreateDevicesReply(b, b.CreateVector(devices));
    return reply(b, WIRE_DEVICES, fb::ReplyBody::DevicesReply, body.Union());
}

Message stats_reply(Builder &b, size_t num_request_bins, size_t num_run_bins, size_t num_buckets)
{
    const auto request_bins = b.CreateVector(std::vector<uint64_t>(num_request_bins, 3));
    const auto run_bins = b.CreateVector(std::vector<uint64_t>(num_run_bins, 4));
    std::vector<flatbuffers::Offset<fb::BucketStats>> buckets;
    for (size_t i = 0; i < num_buckets; i++)
        buckets.push_back(fb::CreateBucketStats(b, i));
    const auto rows = b.CreateVector(buckets);
    fb::StatsReplyBuilder body(b);
    body.add_request_ns_bins(request_bins);
    body.add_run_ns_bins(run_bins);
    body.add_buckets(rows);
    return reply(b, WIRE_STATS, fb::ReplyBody::StatsReply, body.Finish().Union());
}

Message sessions_reply(Builder &b, size_t num_sessions, const std::string &name)
{
    std::vector<flatbuffers::Offset<fb::Session>> sessions;
    for (size_t i = 0; i < num_sessions; i++)
        sessions.push_back(fb::CreateSession(b, i, b.CreateString(name)));
    const auto body = fb::CreateSessionsReply(b, b.CreateVector(sessions));
    return reply(b, WIRE_SESSIONS, fb::ReplyBody::SessionsReply, body.Union());
}

Message lane_open_reply(Builder &b, size_t handle_bytes)
{
    const auto body = fb::CreateLaneOpenReply(b, 1, memory(b, WIRE_MEMORY_CUDA_IPC, handle_bytes));
    return reply(b, WIRE_LANE_OPEN, fb::ReplyBody::LaneOpenReply, body.Union());
}

/* Answers without bodies. */
Message batch_reply(Builder &b, size_t num_answers, uint32_t status, const std::string &detail)
{
    std::vector<flatbuffers::Offset<fb::SelectAnswer>> answers;
    for (size_t i = 0; i < num_answers; i++)
        answers.push_back(fb::CreateSelectAnswer(b, status, b.CreateString(detail)));
    const auto body = fb::CreateSelectBatchReply(b, b.CreateVector(answers));
    return reply(b, WIRE_SELECT_BATCH, fb::ReplyBody::SelectBatchReply, body.Union());
}

/* A small body that is right, for kinds that want another. */
Body small_request_body(Builder &b)
{
    return fb::CreateDrainRequest(b, 100).Union();
}

Body small_reply_body(Builder &b)
{
    return fb::CreateUnregisterReply(b, true).Union();
}

/* ---- The cases ------------------------------------------------------------------------------- */

struct Case {
    forgery told;
    Message (*build)(Builder &b);
};

constexpr topkd_status OK = TOPKD_OK, BAD = TOPKD_E_PROTOCOL, UNKNOWN = TOPKD_E_UNSUPPORTED;

/* A case a line or two. */
/* clang-format off */
#define REQUEST(name, expected, detail, expression) \
    {{name, false, expected, detail}, [](Builder &b) -> Message { return expression; }}
#define REPLY(name, expected, detail, expression) \
    {{name, true, expected, detail}, [](Builder &b) -> Message { return expression; }}
#define NO_BODY(kind) \
    REQUEST(#kind " without a body", BAD, "without its body", request(b, kind)), \
    REQUEST(#kind " with the body of another", BAD, "without its body", \
            request(b, kind, kind == WIRE_DRAIN ? fb::RequestBody::HelloRequest \
                                                : fb::RequestBody::DrainRequest, \
                    kind == WIRE_DRAIN ? fb::CreateHelloRequest(b).Union() : small_request_body(b)))
#define NO_REPLY_BODY(kind) \
    REPLY(#kind " answered without a body", BAD, "without its body", reply(b, kind)), \
    REPLY(#kind " answered with the body of another", BAD, "without its body", \
          reply(b, kind, kind == WIRE_UNREGISTER ? fb::ReplyBody::SelectReply \
                                                 : fb::ReplyBody::UnregisterReply, \
                kind == WIRE_UNREGISTER ? fb::CreateSelectReply(b).Union() : small_reply_body(b)))

const Case cases[] = {
    /* kinds and frames */
    REQUEST("kind 0", UNKNOWN, "request kind 0 is not known", request(b, 0)),
    REQUEST("the next kind", UNKNOWN, "request kind 14 is not known",
            request(b, WIRE_SELECT_BATCH + 1)),
    REQUEST("the last kind", UNKNOWN, "request kind 65535 is not known", request(b, 65535)),
    REQUEST("a new kind with a body", UNKNOWN, "request kind 40",
            request(b, 40, static_cast<fb::RequestBody>(40), small_request_body(b))),
    REQUEST("a reply as a request", BAD, "a reply where a request", reply(b, WIRE_PING)),
    REPLY("a request as a reply", BAD, "a request where a reply", request(b, WIRE_PING)),
    REPLY("reply of the next kind", UNKNOWN, "reply kind 14 is not known",
          reply(b, WIRE_SELECT_BATCH + 1)),
    REPLY("ok without a kind", BAD, "a reply without a kind", reply(b, 0)),
    NO_BODY(WIRE_HELLO), NO_BODY(WIRE_REGISTER), NO_BODY(WIRE_UNREGISTER), NO_BODY(WIRE_SELECT),
    NO_BODY(WIRE_RELEASE), NO_BODY(WIRE_LANE_OPEN), NO_BODY(WIRE_LANE_CLOSE), NO_BODY(WIRE_DRAIN),
    NO_BODY(WIRE_SELECT_BATCH),
    NO_REPLY_BODY(WIRE_HELLO), NO_REPLY_BODY(WIRE_DEVICES), NO_REPLY_BODY(WIRE_REGISTER),
    NO_REPLY_BODY(WIRE_UNREGISTER), NO_REPLY_BODY(WIRE_SELECT), NO_REPLY_BODY(WIRE_LANE_OPEN),
    NO_REPLY_BODY(WIRE_STATS), NO_REPLY_BODY(WIRE_SESSIONS), NO_REPLY_BODY(WIRE_SELECT_BATCH),
    REQUEST("a body of an unknown type", BAD, "without its body",
            request(b, WIRE_HELLO, static_cast<fb::RequestBody>(200), small_request_body(b))),

    /* texts */
    REQUEST("client_name one too long", BAD, "client_name: 64 bytes, at most 63",
            hello(b, std::string(WIRE_NAME_SIZE, 'n'), "")),
    REQUEST("client_name of 60000 bytes", BAD, "client_name: 60000 bytes, at most 63",
            hello(b, std::string(60000, 'n'), "")),
    REQUEST("client_name of the full length", OK, nullptr,
            hello(b, std::string(WIRE_NAME_SIZE - 1, 'n'), "")),
    REQUEST("client_name with a zero byte", BAD, "client_name: a zero byte inside",
            hello(b, std::string("a\0b", 3), "")),
    REQUEST("client_name with a line break", BAD, "client_name: control character 0x0a at byte 2",
            hello(b, "ab\nc", "")),
    REQUEST("client_name with an escape", BAD, "client_name: control character 0x1b at byte 0",
            hello(b, "\033[2J", "")),
    REQUEST("device with a delete", BAD, "device: control character 0x7f at byte 3",
            hello(b, "a", "cpu\x7f")),
    REQUEST("device one too long", BAD, "device: 48 bytes, at most 47",
            hello(b, "", std::string(WIRE_UUID_SIZE, 'u'))),
    REPLY("detail one too long", BAD, "detail: 256 bytes, at most 255",
          reply(b, WIRE_PING, fb::ReplyBody::NONE, 0, TOPKD_E_BUSY, std::string(256, 'd'))),
    REPLY("url one too long", BAD, "url: 128 bytes, at most 127",
          devices_reply(b, 1, std::string(WIRE_URL_SIZE, 'u'), 0)),
    REPLY("session name one too long", BAD, "client_name: 64 bytes, at most 63",
          sessions_reply(b, 2, std::string(WIRE_NAME_SIZE, 'n'))),

    /* enums */
    REQUEST("access 0", BAD, "access: 0 is neither 1 (read) nor 3", registration(b, 1, 4, 0)),
    REQUEST("access 2", BAD, "access: 2 is neither", registration(b, 1, 4, 2)),
    REQUEST("access 255", BAD, "access: 255 is neither", registration(b, 1, 4, 255)),
    REQUEST("memory kind 4", BAD, "memory: 4 is not a value of wire version 1 (0 to 3)",
            registration(b, 4, 4, 1)),
    REQUEST("memory kind 255", BAD, "memory: 255 is not a value", registration(b, 255, 4, 1)),
    REQUEST("lengths_mode 3", BAD, "lengths_mode: 3 is not a value of wire version 1 (0 to 2)",
            select(b, [] { SelectChoice c; c.lengths_mode = 3; return c; }())),
    REQUEST("output_mode 2", BAD, "output_mode: 2 is not a value of wire version 1 (0 to 1)",
            select(b, [] { SelectChoice c; c.output_mode = 2; return c; }())),
    REQUEST("reply_when 200", BAD, "reply_when: 200 is not a value of wire version 1 (0 to 1)",
            select(b, [] { SelectChoice c; c.reply_when = 200; return c; }())),
    REPLY("device kind 2", BAD, "device_kind: 2 is not a value", hello_reply(b, 2, true, 4)),
    REPLY("device state 4", BAD, "device state: 4 is not a value", devices_reply(b, 2, "ipc://x", 4)),

    /* lists */
    REQUEST("handle of the full length", OK, nullptr, registration(b, 1, WIRE_HANDLE_SIZE, 1)),
    REQUEST("handle one too long", BAD, "memory: a handle of 129 bytes, at most 128",
            registration(b, 1, WIRE_HANDLE_SIZE + 1, 1)),
    REQUEST("one length too many", BAD, "lengths_inline: 8193 entries, at most 8192",
            select(b, inline_lengths(WIRE_LENGTHS_MAX + 1, WIRE_LENGTHS_MAX + 1))),
    REQUEST("as many lengths as fit a message", BAD, "lengths_inline: 16000 entries, at most 8192",
            select(b, inline_lengths(16000, 16000))),
    REQUEST("a length too few", BAD, "lengths_inline: 3 entries for 4 rows",
            select(b, inline_lengths(4, 3))),
    REQUEST("no lengths", BAD, "lengths_inline: 0 entries for 4 rows", select(b, inline_lengths(4, -1))),
    REQUEST("no lengths for no rows", OK, nullptr, select(b, inline_lengths(0, 0))),
    REQUEST("lengths with one for all", BAD, "lengths_inline: 4 entries, but lengths_mode",
            select(b, [] { SelectChoice c = inline_lengths(4, 4); c.lengths_mode = 0; return c; }())),
    REPLY("a device too many", BAD, "devices: 65 entries, at most 64",
          devices_reply(b, WIRE_DEVICES_MAX + 1, "ipc://x", 0)),
    REPLY("all devices", OK, nullptr, devices_reply(b, WIRE_DEVICES_MAX, "ipc://x", 0)),
    REPLY("a session too many", BAD, "sessions: 257 entries, at most 256",
          sessions_reply(b, WIRE_SESSIONS_MAX + 1, "n")),
    REPLY("all sessions", OK, nullptr, sessions_reply(b, WIRE_SESSIONS_MAX, "n")),
    REPLY("more sessions than tables", BAD, "corrupt message", sessions_reply(b, 600, "")),
    REPLY("a bucket too many", BAD, "buckets: 65 entries, at most 64", stats_reply(b, 1, 1, 65)),
    REPLY("a request bin too many", BAD, "request_ns_bins: 41 entries, at most 40",
          stats_reply(b, 41, 1, 1)),
    REPLY("a run bin too many", BAD, "run_ns_bins: 41 entries, at most 40", stats_reply(b, 40, 41, 1)),
    REPLY("fewer bins and no buckets", OK, nullptr, stats_reply(b, 3, 0, 0)),
    REPLY("mailbox handle one too long", BAD, "mailbox: a handle of 129 bytes, at most 128",
          lane_open_reply(b, WIRE_HANDLE_SIZE + 1)),
    REPLY("semaphore handle one too long", BAD, "semaphores: a handle of 129 bytes, at most 128",
          hello_reply(b, 0, true, WIRE_HANDLE_SIZE + 1)),

    /* tables inside */
    REQUEST("lane_open without a shape", BAD, "shape: missing", lane_open(b, 0)),
    REQUEST("lane_open with a bad shape", BAD, "lengths_mode: 9 is not a value",
            lane_open(b, select_body(b, [] { SelectChoice c; c.lengths_mode = 9; return c; }()))),
    REQUEST("a batch of all that fit", OK, nullptr, batch(b, WIRE_BATCH_MAX, SelectChoice())),
    REQUEST("a batch with a select too many", BAD, "selects: 17 entries, at most 16",
            batch(b, WIRE_BATCH_MAX + 1, SelectChoice())),
    REQUEST("a batch with a bad select", BAD, "reply_when: 7 is not a value",
            batch(b, 2, [] { SelectChoice c; c.reply_when = 7; return c; }())),
    REQUEST("a batch with too many lengths together", BAD,
            "lengths_inline: 8196 entries in a batch, at most 8192 together",
            batch(b, 4, inline_lengths(2049, 2049))),
    REPLY("an answer too many", BAD, "answers: 17 entries, at most 16",
          batch_reply(b, WIRE_BATCH_MAX + 1, TOPKD_E_BUSY, "")),
    REPLY("an answer whose detail is one too long", BAD, "detail: 256 bytes, at most 255",
          batch_reply(b, 1, TOPKD_E_BUSY, std::string(256, 'd'))),
    REPLY("an answer that is ok without a body", BAD, "one with the status ok has no body",
          batch_reply(b, 2, TOPKD_OK, "")),
    REPLY("an answer with a status of the future", OK, nullptr, batch_reply(b, 2, 4000, "new")),
    REPLY("hello without limits", BAD, "limits: missing", hello_reply(b, 0, false, 4)),

    /* what a newer peer may send */
    REQUEST("a body with a field of the future", OK, nullptr, newer_release(b)),
    REQUEST("a body where none is known", OK, nullptr,
            request(b, WIRE_PING, fb::RequestBody::DrainRequest, small_request_body(b))),
    REPLY("an error with a body", OK, nullptr,
          reply(b, WIRE_SELECT, fb::ReplyBody::SelectReply, fb::CreateSelectReply(b).Union(),
                TOPKD_E_BUSY, "queue full")),
    REPLY("an error without a kind", OK, nullptr,
          reply(b, 0, fb::ReplyBody::NONE, 0, TOPKD_E_PROTOCOL, "unreadable")),
};
/* clang-format on */

} // namespace

size_t forge_count(void)
{
    return sizeof(cases) / sizeof(cases[0]);
}

const struct forgery *forge_case(size_t idx)
{
    return &cases[idx].told;
}

size_t forge_message(size_t idx, uint8_t *out, size_t out_size)
{
    Builder builder;
    fb::FinishMessageBuffer(builder, cases[idx].build(builder));
    if (builder.GetSize() > out_size)
        abort();
    memcpy(out, builder.GetBufferPointer(), builder.GetSize());
    return builder.GetSize();
}
