/*
 * wire_sample.c - sample messages for tests of the wire: fill, compare and print by field tables.
 */
#include "wire_sample.h"

#include "wire_layout.h"

#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

/* A fixed sequence of lengths, twice the largest list, so that each seed gets its own piece. */
static int32_t lengths_pool[2 * WIRE_LENGTHS_MAX];

/* splitmix64: one step of a well mixed sequence (Steele, Lea, Flood 2014). */
static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static uint64_t seed_of(uint64_t seed, const char *name, uint32_t row)
{
    for (; *name; name++)
        seed = mix(seed ^ (unsigned char)*name);
    return mix(seed ^ row);
}

/* ---- Fill -------------------------------------------------------------------------------------
 */

/* A number up to limit by the mode; random modes give the extremes a quarter each. */
static uint64_t number_up_to(uint64_t limit, enum sample_mode mode, uint64_t seed)
{
    if (mode == SAMPLE_MIN)
        return 0;
    if (mode == SAMPLE_MAX)
        return limit;
    const uint64_t choice = mix(seed);
    if (choice % 4 == 0)
        return 0;
    if (choice % 4 == 1)
        return limit;
    return limit == UINT64_MAX ? seed : seed % (limit + 1);
}

static uint64_t bits_max(size_t size)
{
    return size == 8 ? UINT64_MAX : (UINT64_C(1) << (8 * size)) - 1;
}

/* Two's complement bits of a signed number: the smallest, the largest, or any. */
static uint64_t signed_bits(size_t size, enum sample_mode mode, uint64_t seed)
{
    const uint64_t sign = UINT64_C(1) << (8 * size - 1);
    return number_up_to(bits_max(size), mode, seed) ^ sign;
}

/* Little-endian hosts only, as the wire itself. */
static void store(void *at, size_t size, uint64_t number)
{
    memcpy(at, &number, size);
}

static uint64_t load(const void *at, size_t size)
{
    uint64_t number = 0;
    memcpy(&number, at, size);
    return number;
}

/* Printable text, bytes above 0x7f among it. */
static void fill_text(char *text, size_t size, enum sample_mode mode, uint64_t seed)
{
    const size_t length = (size_t)number_up_to(size - 1, mode, seed);
    for (size_t i = 0; i < length; i++) {
        const uint64_t at = seed_of(seed, "text", (uint32_t)i) % (0x5f + 0x80);
        text[i] = (char)(at < 0x5f ? 0x20 + at : 0x80 + (at - 0x5f));
    }
    text[length] = '\0';
}

static void fill(const struct layout *layout, void *base, enum sample_mode mode, uint64_t seed);

static void fill_field(const struct field *field, void *base, uint32_t count, enum sample_mode mode,
                       uint64_t seed)
{
    uint8_t *at = (uint8_t *)base + field->offset;
    switch (field->type) {
    case FIELD_UNSIGNED:
        store(at, field->size, number_up_to(bits_max(field->size), mode, seed));
        break;
    case FIELD_SIGNED:
        store(at, field->size, signed_bits(field->size, mode, seed));
        break;
    case FIELD_BOOL:
        store(at, field->size, number_up_to(1, mode, seed));
        break;
    case FIELD_ENUM:
        store(at, field->size, number_up_to(field->limit, mode, seed));
        break;
    case FIELD_ACCESS:
        store(at, field->size,
              number_up_to(1, mode, seed) ? WIRE_ACCESS_READ_WRITE : WIRE_ACCESS_READ);
        break;
    case FIELD_COUNT:
        if (mode == SAMPLE_SMALL)
            store(at, field->size, seed % (SAMPLE_SMALL_COUNT + 1));
        else
            store(at, field->size, number_up_to(field->limit, mode, seed));
        break;
    case FIELD_TEXT:
        fill_text((char *)at, field->size, mode, seed);
        break;
    case FIELD_BYTES:
        for (uint32_t i = 0; i < count; i++)
            at[i] = (uint8_t)number_up_to(UINT8_MAX, mode, seed_of(seed, "byte", i));
        break;
    case FIELD_NUMBERS:
        for (uint32_t i = 0; i < field->size / sizeof(uint64_t); i++)
            store(at + i * sizeof(uint64_t), sizeof(uint64_t),
                  number_up_to(UINT64_MAX, mode, seed_of(seed, "number", i)));
        break;
    case FIELD_LENGTHS: /* by sample_inline_lengths, once mode and count agree */
        break;
    case FIELD_STRUCT:
        fill(field->layout, at, mode, seed);
        break;
    case FIELD_ROWS:
        for (uint32_t i = 0; i < count; i++)
            fill(field->layout, at + i * field->layout->size, mode, seed_of(seed, "row", i));
        break;
    }
}

static void fill(const struct layout *layout, void *base, enum sample_mode mode, uint64_t seed)
{
    uint32_t count = 0;
    for (size_t i = 0; i < layout->num_fields; i++) {
        const struct field *field = &layout->fields[i];
        fill_field(field, base, count, mode, seed_of(seed, field->name, 0));
        if (field->type == FIELD_COUNT)
            count = (uint32_t)load((uint8_t *)base + field->offset, field->size);
    }
}

void sample_inline_lengths(struct wire_select_request *select, uint32_t num_lengths, uint64_t seed)
{
    assert(num_lengths <= WIRE_LENGTHS_MAX);
    if (lengths_pool[0] == 0) {
        for (uint32_t i = 0; i < 2 * WIRE_LENGTHS_MAX; i++)
            lengths_pool[i] = (int32_t)(uint32_t)signed_bits(sizeof(int32_t), SAMPLE_RANDOM,
                                                             seed_of(1, "length", i));
        lengths_pool[0] |= 1;
    }
    select->lengths_mode = WIRE_LENGTHS_INLINE;
    select->rows = select->num_lengths = num_lengths;
    select->lengths_inline = num_lengths > 0 ? lengths_pool + seed % WIRE_LENGTHS_MAX : NULL;
}

/* Mode, count, rows and pointer of the lengths agree in a valid request. */
static void settle_lengths(struct wire_select_request *select, uint64_t seed)
{
    if (select->lengths_mode == WIRE_LENGTHS_INLINE)
        sample_inline_lengths(select, select->num_lengths, seed);
    else
        select->num_lengths = 0;
}

/* Of a batch: as many lengths together as fit, and of an answer without a body none. */
static void settle_batch(struct wire_select_batch_request *batch, uint64_t seed)
{
    uint32_t left = WIRE_LENGTHS_MAX;
    for (uint32_t i = 0; i < batch->num_selects; i++) {
        struct wire_select_request *select = &batch->selects[i];
        if (select->num_lengths > left)
            select->num_lengths = left;
        settle_lengths(select, seed + i);
        left -= select->num_lengths;
    }
}

static void settle_answers(struct wire_select_batch_reply *batch)
{
    for (uint32_t i = 0; i < batch->num_answers; i++) {
        if (batch->answers[i].status != TOPKD_OK)
            memset(&batch->answers[i].select, 0, sizeof(batch->answers[i].select));
    }
}

void sample_request(enum wire_kind kind, enum sample_mode mode, uint64_t seed,
                    struct wire_request *request)
{
    memset(request, 0, sizeof(*request));
    fill(&layout_request_header, request, mode, seed);
    request->kind = kind;
    const struct layout *body = layout_request_body(kind);
    if (body)
        fill(body, &request->u, mode, seed_of(seed, body->name, 0));
    if (kind == WIRE_SELECT)
        settle_lengths(&request->u.select, seed);
    if (kind == WIRE_LANE_OPEN)
        settle_lengths(&request->u.lane_open.shape, seed);
    if (kind == WIRE_SELECT_BATCH)
        settle_batch(&request->u.select_batch, seed);
}

void sample_reply(enum wire_kind kind, enum topkd_status status, enum sample_mode mode,
                  uint64_t seed, struct wire_reply *reply)
{
    memset(reply, 0, sizeof(*reply));
    fill(&layout_reply_header, reply, mode, seed);
    reply->kind = kind;
    reply->status = status;
    const struct layout *body = status == TOPKD_OK ? layout_reply_body(kind) : NULL;
    if (body)
        fill(body, &reply->u, mode, seed_of(seed, body->name, 0));
    if (body && kind == WIRE_SELECT_BATCH)
        settle_answers(&reply->u.select_batch);
}

/* ---- Compare ----------------------------------------------------------------------------------
 */

/* Appends to the path of a field; false, so that a comparison can end with it. */
static bool differ_at(char *where, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool differ_at(char *where, const char *format, ...)
{
    char inner[WIRE_DETAIL_SIZE], outer[WIRE_DETAIL_SIZE];
    va_list args;
    va_start(args, format);
    vsnprintf(outer, sizeof(outer), format, args);
    va_end(args);
    memcpy(inner, where, sizeof(inner));
    snprintf(where, WIRE_DETAIL_SIZE, "%.100s%.150s", outer, inner);
    return false;
}

static bool equal(const struct layout *layout, const void *a, const void *b, char *where);

static bool rows_equal(const struct field *field, const uint8_t *a, const uint8_t *b, char *where)
{
    for (uint32_t i = 0; i < field->limit; i++) {
        const size_t at = i * field->layout->size;
        if (!equal(field->layout, a + at, b + at, where))
            return differ_at(where, "%s[%u].", field->name, i);
    }
    return true;
}

static bool lengths_equal(const uint8_t *a, const uint8_t *b, uint32_t count)
{
    const int32_t *lengths_a, *lengths_b;
    memcpy(&lengths_a, a, sizeof(lengths_a));
    memcpy(&lengths_b, b, sizeof(lengths_b));
    return count == 0 ? !lengths_a == !lengths_b
                      : memcmp(lengths_a, lengths_b, count * sizeof(int32_t)) == 0;
}

static bool equal(const struct layout *layout, const void *a, const void *b, char *where)
{
    uint32_t count = 0;
    for (size_t i = 0; i < layout->num_fields; i++) {
        const struct field *field = &layout->fields[i];
        const uint8_t *at_a = (const uint8_t *)a + field->offset;
        const uint8_t *at_b = (const uint8_t *)b + field->offset;
        switch (field->type) {
        case FIELD_STRUCT:
            if (!equal(field->layout, at_a, at_b, where))
                return differ_at(where, "%s.", field->name);
            break;
        case FIELD_ROWS:
            if (!rows_equal(field, at_a, at_b, where))
                return false;
            break;
        case FIELD_LENGTHS:
            if (!lengths_equal(at_a, at_b, count))
                return differ_at(where, "%s", field->name);
            break;
        case FIELD_TEXT:
            if (strcmp((const char *)at_a, (const char *)at_b) != 0)
                return differ_at(where, "%s", field->name);
            break;
        default: /* bytes beyond the count too: a decoder leaves them zero */
            if (memcmp(at_a, at_b, field->size) != 0)
                return differ_at(where, "%s", field->name);
        }
        if (field->type == FIELD_COUNT)
            count = (uint32_t)load(at_a, field->size);
    }
    return true;
}

bool sample_requests_equal(const struct wire_request *a, const struct wire_request *b, char *where)
{
    where[0] = '\0';
    const struct layout *body = layout_request_body(a->kind);
    return equal(&layout_request_header, a, b, where) &&
           (!body || equal(body, &a->u, &b->u, where));
}

bool sample_replies_equal(const struct wire_reply *a, const struct wire_reply *b, char *where)
{
    where[0] = '\0';
    const struct layout *body = a->status == TOPKD_OK ? layout_reply_body(a->kind) : NULL;
    return equal(&layout_reply_header, a, b, where) && (!body || equal(body, &a->u, &b->u, where));
}

/* ---- Print ------------------------------------------------------------------------------------
 */

static void dump(const struct layout *layout, const void *base, const char *path, FILE *to);

static void dump_bytes(const uint8_t *bytes, size_t size, FILE *to)
{
    for (size_t i = 0; i < size; i++)
        fprintf(to, "%02x", bytes[i]);
    fputc('\n', to);
}

static void dump_field(const struct field *field, const void *base, uint32_t count,
                       const char *path, FILE *to)
{
    const uint8_t *at = (const uint8_t *)base + field->offset;
    char inner[WIRE_DETAIL_SIZE];
    switch (field->type) {
    case FIELD_STRUCT:
        snprintf(inner, sizeof(inner), "%s%s.", path, field->name);
        dump(field->layout, at, inner, to);
        break;
    case FIELD_ROWS:
        for (uint32_t i = 0; i < count; i++) {
            snprintf(inner, sizeof(inner), "%s%s[%u].", path, field->name, i);
            dump(field->layout, at + i * field->layout->size, inner, to);
        }
        break;
    case FIELD_LENGTHS:
        for (uint32_t i = 0; i < count; i++) {
            const int32_t *lengths;
            memcpy(&lengths, at, sizeof(lengths));
            fprintf(to, "%s%s[%u] %" PRId32 "\n", path, field->name, i, lengths[i]);
        }
        break;
    case FIELD_NUMBERS:
        for (uint32_t i = 0; i < field->size / sizeof(uint64_t); i++) {
            const uint64_t number = load(at + i * sizeof(uint64_t), sizeof(uint64_t));
            if (number != 0)
                fprintf(to, "%s%s[%u] %" PRIu64 "\n", path, field->name, i, number);
        }
        break;
    case FIELD_TEXT:
        if (at[0] != '\0') {
            fprintf(to, "%s%s ", path, field->name);
            dump_bytes(at, strlen((const char *)at), to);
        }
        break;
    case FIELD_BYTES:
        if (count > 0) {
            fprintf(to, "%s%s ", path, field->name);
            dump_bytes(at, count, to);
        }
        break;
    default:
        if (load(at, field->size) != 0)
            fprintf(to, "%s%s %" PRIu64 "\n", path, field->name, load(at, field->size));
    }
}

static void dump(const struct layout *layout, const void *base, const char *path, FILE *to)
{
    uint32_t count = 0;
    for (size_t i = 0; i < layout->num_fields; i++) {
        const struct field *field = &layout->fields[i];
        dump_field(field, base, count, path, to);
        if (field->type == FIELD_COUNT)
            count = (uint32_t)load((const uint8_t *)base + field->offset, field->size);
    }
}

void sample_request_dump(const struct wire_request *request, FILE *to)
{
    const struct layout *body = layout_request_body(request->kind);
    dump(&layout_request_header, request, "", to);
    if (body)
        dump(body, &request->u, "", to);
}

void sample_reply_dump(const struct wire_reply *reply, FILE *to)
{
    const struct layout *body = reply->status == TOPKD_OK ? layout_reply_body(reply->kind) : NULL;
    dump(&layout_reply_header, reply, "", to);
    if (body)
        dump(body, &reply->u, "", to);
}

/* ---- Completeness -----------------------------------------------------------------------------
 */

static size_t alignment_of(const struct field *field)
{
    switch (field->type) {
    case FIELD_TEXT:
    case FIELD_BYTES:
        return 1;
    case FIELD_NUMBERS:
    case FIELD_LENGTHS:
        return 8;
    case FIELD_STRUCT:
    case FIELD_ROWS:
        return field->layout->alignment;
    default:
        return field->size;
    }
}

static bool is_complete(const struct layout *layout, char *where)
{
    size_t end = 0;
    for (size_t i = 0; i < layout->num_fields; i++) {
        const struct field *field = &layout->fields[i];
        if (field->offset < end || field->offset - end >= alignment_of(field))
            return differ_at(where, "struct %s: something before %s (bytes %zu to %zu)",
                             layout->name, field->name, end, field->offset);
        if (field->layout) {
            const size_t count = field->type == FIELD_ROWS ? field->limit : 1;
            if (!is_complete(field->layout, where))
                return false;
            if (field->size != count * field->layout->size)
                return differ_at(where, "struct %s: %s is not %zu of struct %s", layout->name,
                                 field->name, count, field->layout->name);
        }
        end = field->offset + field->size;
    }
    if (layout->size - end >= layout->alignment)
        return differ_at(where, "struct %s: something at its end (bytes %zu to %zu)", layout->name,
                         end, layout->size);
    return true;
}

bool sample_layouts_complete(char *where)
{
    where[0] = '\0';
    if (!is_complete(&layout_request_header, where) || !is_complete(&layout_reply_header, where))
        return false;
    for (unsigned kind = WIRE_HELLO; kind <= WIRE_DRAIN; kind++) {
        const struct layout *request = layout_request_body((enum wire_kind)kind);
        const struct layout *reply = layout_reply_body((enum wire_kind)kind);
        if ((request && !is_complete(request, where)) || (reply && !is_complete(reply, where)))
            return false;
    }
    return true;
}
