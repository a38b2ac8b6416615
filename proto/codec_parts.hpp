/*
 * codec_parts.hpp - what the bodies of messages have in common: numbers, texts, memory, references,
 * statuses, rows.
 *
 * Everywhere: encode(builder, struct) appends to the message and returns where; decode(table,
 * struct, detail) fills a struct that is zero, and is false with the detail text when something
 * does not fit into it. Included by wire.cpp only.
 */
#ifndef TOPKD_CODEC_PARTS_HPP
#define TOPKD_CODEC_PARTS_HPP

#include "topkd_generated.h"
#include "wire_internal.h"

#include <cstring>

namespace topkd_codec
{

namespace fb = topkd::wire;
using flatbuffers::FlatBufferBuilder;
using flatbuffers::Offset;
using flatbuffers::String;
using flatbuffers::Vector;

/* The fields of a table that are plain numbers stand in one list, X(a) X(b) ..., which both
 * directions expand: with a table builder `b` or a table `t`, and the struct `m`. 8-byte fields
 * come first, which saves padding. */
#define ADD_FIELD(field) b.add_##field(m.field);
#define GET_FIELD(field) m.field = t.field();

/* A number of the wire into a C enum. It may be no enumerator until check.c has seen it, so it is
 * not an enum to C++ before. */
template <class E>
void put_enum(E &to, unsigned number)
{
    static_assert(sizeof(E) == sizeof(number), "enums of the C header are unsigned int");
    memcpy(&to, &number, sizeof(number));
}

inline Offset<String> encode_text(FlatBufferBuilder &fbb, const char *text)
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

/* The status of a reply; one that this version has no name for keeps its number in the text. */
inline bool decode_status(uint32_t number, const String *text, enum topkd_status &status,
                          char (&to)[WIRE_DETAIL_SIZE], char *detail)
{
    if (!decode_text(text, to, "detail", detail))
        return false;
    if (wire_status_known(number)) {
        put_enum(status, number);
        return true;
    }
    char newer[WIRE_DETAIL_SIZE];
    memcpy(newer, to, sizeof(newer));
    status = TOPKD_E_VERSION;
    wire_fail(to, "status %u of a newer topkd: %.200s", number, newer);
    return true;
}

inline Offset<fb::Memory> encode(FlatBufferBuilder &fbb, const wire_memory &m)
{
    if (m.kind == WIRE_MEMORY_NONE && m.handle_bytes == 0 && m.allocation_bytes == 0)
        return {};
    const auto handle = fbb.CreateVector(m.handle, m.handle_bytes);
    return fb::CreateMemory(fbb, static_cast<fb::MemoryKind>(m.kind), handle, m.allocation_bytes);
}

inline bool decode(const fb::Memory *t, wire_memory &m, const char *field, char *detail)
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

inline bool is_none(const wire_region_ref &m)
{
    return m.region == 0 && m.generation == 0 && m.offset == 0;
}

inline fb::RegionRef region_ref(const wire_region_ref &m)
{
    return {m.region, m.offset, m.generation};
}

inline void decode(const fb::RegionRef *t, wire_region_ref &m)
{
    if (t)
        m = {t->region(), t->generation(), t->offset()};
}

inline bool is_none(const wire_semaphore_ref &m)
{
    return m.index == 0 && m.value == 0;
}

inline fb::SemaphoreRef semaphore_ref(const wire_semaphore_ref &m)
{
    return {m.value, m.index};
}

inline void decode(const fb::SemaphoreRef *t, wire_semaphore_ref &m)
{
    if (t)
        m = {t->index(), t->value()};
}

/* What may be a row; the templates below must know them. */
#define ROW_CODEC(table, record)                                                                   \
    Offset<fb::table> encode(FlatBufferBuilder &fbb, const record &m);                             \
    bool decode(const fb::table &t, record &m, char *detail);
ROW_CODEC(SelectRequest, wire_select_request)
ROW_CODEC(SelectAnswer, wire_select_answer)
ROW_CODEC(Device, wire_device)
ROW_CODEC(BucketStats, wire_bucket_stats)
ROW_CODEC(Session, wire_session)
#undef ROW_CODEC

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

} // namespace topkd_codec

#endif
