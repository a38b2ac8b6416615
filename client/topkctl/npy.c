/* The reader of .npy headers: a magic, a version, and a Python dictionary of exactly three keys. */
#include "npy.h"

#include "npy_detail.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "topkd reads little-endian files in place and needs a little-endian host"
#endif

#define MAGIC "\x93NUMPY"
#define MAGIC_SIZE 6u
#define DIMS_MAX 32 /* NumPy's own limit (NPY_MAXDIMS of NumPy 1) */
#define WORD_SIZE 40u
#define SHAPE_SIZE 80u /* text of a shape; longer ones are cut */

/* What the dictionary says. */
struct header {
    char descr[WORD_SIZE];
    bool fortran_order;
    uint32_t num_dims;
    uint64_t dims[DIMS_MAX];
};

/* Where the parser stands. */
struct cursor {
    const char *at, *end;
    char *detail;
};

static const char *const status_texts[] = {
#define STATUS_TEXT(name, text) text,
    NPY_STATUS_TABLE(STATUS_TEXT)
#undef STATUS_TEXT
};

const char *npy_strerror(enum npy_status status)
{
    size_t code = (size_t)status;
    size_t count = sizeof(status_texts) / sizeof(status_texts[0]);
    return code < count ? status_texts[code] : "unknown status";
}

static const struct {
    const char *name, *descr;
    uint32_t bytes;
} types[] = {
#define TYPE_ROW(name, text, descr, bytes) {text, descr, bytes},
    NPY_TYPE_TABLE(TYPE_ROW)
#undef TYPE_ROW
};

const char *npy_type_name(enum npy_type type)
{
    return types[type].name;
}

const char *npy_type_descr(enum npy_type type)
{
    return types[type].descr;
}

uint32_t npy_type_bytes(enum npy_type type)
{
    return types[type].bytes;
}

enum npy_status npy_fail(char *detail, enum npy_status status, const char *format, ...)
{
    if (detail != NULL) {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(detail, NPY_DETAIL_SIZE, format, arguments);
        va_end(arguments);
    }
    return status;
}

/* ---- the dictionary -------------------------------------------------------------------------- */

static void skip_space(struct cursor *c)
{
    while (c->at < c->end && strchr(" \t\r\n", *c->at) != NULL && *c->at != '\0') {
        c->at++;
    }
}

/* Takes `expected` if it comes next. */
static bool take(struct cursor *c, char expected)
{
    skip_space(c);
    if (c->at < c->end && *c->at == expected) {
        c->at++;
        return true;
    }
    return false;
}

/* The next few bytes as text fit for a message. */
static const char *here(const struct cursor *c, char text[WORD_SIZE])
{
    size_t count = 0;
    for (const char *p = c->at; p < c->end && count < 12; p++) {
        text[count++] = (*p >= ' ' && *p <= '~') ? *p : '?';
    }
    text[count] = '\0';
    return count > 0 ? text : "the end";
}

static enum npy_status unexpected(const struct cursor *c, const char *wanted)
{
    char text[WORD_SIZE];
    return npy_fail(c->detail, NPY_E_FORMAT,
                    "damaged .npy header: %s expected at \"%s\"; save the array again with np.save",
                    wanted, here(c, text));
}

/* A Python string without escapes, in either kind of quotes. */
static enum npy_status parse_word(struct cursor *c, char word[WORD_SIZE])
{
    skip_space(c);
    if (c->at >= c->end || (*c->at != '\'' && *c->at != '"')) {
        return unexpected(c, "a quoted word");
    }
    const char *quote = c->at;
    size_t count = 0;
    const char *p = quote + 1;
    for (; p < c->end && *p != *quote; p++) {
        if (*p < ' ' || *p > '~' || *p == '\\' || count + 1 >= WORD_SIZE) {
            return unexpected(c, "a short plain word");
        }
        word[count++] = *p;
    }
    if (p >= c->end) {
        return unexpected(c, "a closing quote");
    }
    word[count] = '\0';
    c->at = p + 1;
    return NPY_OK;
}

static enum npy_status parse_descr(struct cursor *c, struct header *header)
{
    skip_space(c);
    if (c->at < c->end && (*c->at == '[' || *c->at == '(')) {
        return npy_fail(c->detail, NPY_E_DTYPE,
                        "the dtype has fields or a shape of its own; float32 ('<f4'), float16 "
                        "('<f2') and int32 ('<i4') are accepted: a = np.load(FILE); np.save(FILE, "
                        "a['FIELD'].astype('<f4'))");
    }
    return parse_word(c, header->descr);
}

static enum npy_status parse_bool(struct cursor *c, bool *value_p)
{
    skip_space(c);
    static const struct {
        const char *word;
        bool value;
    } words[] = {{"True", true}, {"False", false}};
    for (size_t i = 0; i < 2; i++) {
        size_t length = strlen(words[i].word);
        if ((size_t)(c->end - c->at) >= length && memcmp(c->at, words[i].word, length) == 0) {
            c->at += length;
            *value_p = words[i].value;
            return NPY_OK;
        }
    }
    return unexpected(c, "True or False");
}

static enum npy_status parse_number(struct cursor *c, uint64_t *value_p)
{
    skip_space(c);
    uint64_t value = 0;
    const char *start = c->at;
    for (; c->at < c->end && *c->at >= '0' && *c->at <= '9'; c->at++) {
        if (__builtin_mul_overflow(value, (uint64_t)10, &value) ||
            __builtin_add_overflow(value, (uint64_t)(*c->at - '0'), &value)) {
            return npy_fail(c->detail, NPY_E_SHAPE,
                            "a dimension of the shape passes 2^64; the header is damaged");
        }
    }
    if (c->at == start) {
        return unexpected(c, "a number");
    }
    take(c, 'L'); /* Python 2 wrote its long integers so */
    *value_p = value;
    return NPY_OK;
}

/* "(64, 131072)", "(7,)" or "()". */
static enum npy_status parse_shape(struct cursor *c, struct header *header)
{
    if (!take(c, '(')) {
        return unexpected(c, "a shape in parentheses");
    }
    header->num_dims = 0;
    while (!take(c, ')')) {
        if (header->num_dims == DIMS_MAX) {
            return npy_fail(c->detail, NPY_E_SHAPE,
                            "the shape has more than %d dimensions; 1 or 2 are accepted", DIMS_MAX);
        }
        enum npy_status status = parse_number(c, &header->dims[header->num_dims]);
        if (status != NPY_OK) {
            return status;
        }
        header->num_dims++;
        if (!take(c, ',')) {
            return take(c, ')') ? NPY_OK : unexpected(c, "',' or ')'");
        }
    }
    return NPY_OK;
}

enum { KEY_DESCR = 1, KEY_FORTRAN_ORDER = 2, KEY_SHAPE = 4, KEY_ALL = 7 };

static enum npy_status parse_pair(struct cursor *c, struct header *header, unsigned *seen)
{
    char key[WORD_SIZE];
    enum npy_status status = parse_word(c, key);
    if (status != NPY_OK) {
        return status;
    }
    unsigned bit = strcmp(key, "descr") == 0           ? KEY_DESCR
                   : strcmp(key, "fortran_order") == 0 ? KEY_FORTRAN_ORDER
                   : strcmp(key, "shape") == 0         ? KEY_SHAPE
                                                       : 0;
    if (bit == 0 || (*seen & bit) != 0) {
        return npy_fail(c->detail, NPY_E_FORMAT,
                        "damaged .npy header: key '%s' %s; save the array again with np.save", key,
                        bit == 0 ? "is unknown" : "appears twice");
    }
    *seen |= bit;
    if (!take(c, ':')) {
        return unexpected(c, "':'");
    }
    if (bit == KEY_DESCR) {
        return parse_descr(c, header);
    }
    return bit == KEY_SHAPE ? parse_shape(c, header) : parse_bool(c, &header->fortran_order);
}

static enum npy_status parse_header(struct cursor *c, struct header *header)
{
    unsigned seen = 0;
    if (!take(c, '{')) {
        return unexpected(c, "'{'");
    }
    while (!take(c, '}')) {
        enum npy_status status = parse_pair(c, header, &seen);
        if (status != NPY_OK) {
            return status;
        }
        if (!take(c, ',')) {
            if (!take(c, '}')) {
                return unexpected(c, "',' or '}'");
            }
            break;
        }
    }
    skip_space(c);
    if (c->at != c->end) {
        return unexpected(c, "nothing more");
    }
    if (seen != KEY_ALL) {
        return npy_fail(c->detail, NPY_E_FORMAT,
                        "damaged .npy header: '%s' is missing; save the array again with np.save",
                        (seen & KEY_DESCR) == 0           ? "descr"
                        : (seen & KEY_FORTRAN_ORDER) == 0 ? "fortran_order"
                                                          : "shape");
    }
    return NPY_OK;
}

/* ---- what the header means ------------------------------------------------------------------- */

static enum npy_status check_type(const struct header *header, enum npy_type *type_p, char *detail)
{
    const char *descr = header->descr;
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        if (strcmp(descr, types[i].descr) == 0) {
            *type_p = (enum npy_type)i;
            return NPY_OK;
        }
    }
    if (strcmp(descr, "<V2") == 0 || strcmp(descr, "<u2") == 0 || strcmp(descr, "<i2") == 0) {
        *type_p = NPY_BYTES2; /* as NumPy's extensions and PyTorch's view(int16) have bfloat16 */
        return NPY_OK;
    }
    char kind = descr[0] == '\0' ? '\0' : descr[1];
    bool integer = kind == 'i' || kind == 'u' || kind == 'b';
    return npy_fail(detail, NPY_E_DTYPE,
                    "the dtype is '%s'%s; little-endian float32 ('<f4'), float16 ('<f2') and int32 "
                    "('<i4') are accepted: a = np.load(FILE); np.save(FILE, a.astype('%s'))",
                    descr, descr[0] == '>' ? " (big-endian)" : "", integer ? "<i4" : "<f4");
}

static void format_shape(const struct header *header, char text[SHAPE_SIZE])
{
    size_t used = 0;
    size_t room = SHAPE_SIZE;
    for (uint32_t i = 0; i < header->num_dims && used + 1 < room; i++) {
        used += (size_t)snprintf(text + used, room - used, "%s%" PRIu64, i == 0 ? "(" : ", ",
                                 header->dims[i]);
    }
    if (used + 2 < room) {
        snprintf(text + used, room - used, "%s", header->num_dims == 0 ? "()" : ")");
    }
}

static enum npy_status check_shape(const struct header *header, struct npy_view *view, char *detail)
{
    char shape[SHAPE_SIZE];
    format_shape(header, shape);
    if (header->num_dims != 1 && header->num_dims != 2) {
        return npy_fail(detail, NPY_E_SHAPE,
                        "the shape is %s; one row (n,) or a matrix (rows, width) is accepted: "
                        "a = np.load(FILE); np.save(FILE, a.reshape(%s))",
                        shape, header->num_dims == 0 ? "1, 1" : "-1, a.shape[-1]");
    }
    view->num_dims = header->num_dims;
    view->rows = header->num_dims == 2 ? header->dims[0] : 1;
    view->columns = header->dims[header->num_dims - 1];
    if (view->rows == 0 || view->columns == 0) {
        return npy_fail(detail, NPY_E_SHAPE,
                        "the shape is %s: the array is empty; at least one row of one element is "
                        "needed",
                        shape);
    }
    if (__builtin_mul_overflow(view->rows, view->columns, &view->data_bytes) ||
        __builtin_mul_overflow(view->data_bytes, (uint64_t)types[view->type].bytes,
                               &view->data_bytes) ||
        view->data_bytes > INT64_MAX) {
        return npy_fail(detail, NPY_E_SHAPE,
                        "the shape is %s: more than 2^63 bytes; the header is damaged", shape);
    }
    if (header->fortran_order && view->rows > 1 && view->columns > 1) {
        return npy_fail(detail, NPY_E_ORDER,
                        "the array of shape %s is stored in Fortran order; C order is accepted: "
                        "a = np.load(FILE); np.save(FILE, np.ascontiguousarray(a))",
                        shape);
    }
    return NPY_OK;
}

static enum npy_status check_size(const struct npy_view *view, uint64_t available, char *detail)
{
    if (available == view->data_bytes) {
        return NPY_OK;
    }
    bool fewer = available < view->data_bytes;
    return npy_fail(detail, fewer ? NPY_E_TRUNCATED : NPY_E_TRAILING,
                    "%" PRIu64 " x %" PRIu64 " elements are %" PRIu64 " bytes, but %" PRIu64
                    " follow the header: %s",
                    view->rows, view->columns, view->data_bytes, available,
                    fewer ? "the file was cut off; write or copy it again"
                          : "one array a file is accepted; save each with np.save");
}

/* Finds the dictionary: bytes[*start_p, *start_p + *length_p). */
static enum npy_status find_header(const uint8_t *bytes, size_t size, size_t *start_p,
                                   size_t *length_p, char *detail)
{
    if (size < MAGIC_SIZE || memcmp(bytes, MAGIC, MAGIC_SIZE) != 0) {
        bool zip = size >= 4 && memcmp(bytes, "PK\3\4", 4) == 0;
        return npy_fail(detail, NPY_E_FORMAT, "%s; write it with np.save(FILE, array)",
                        size == 0 ? "the file is empty"
                        : zip     ? "this is a .npz archive (np.savez), not a .npy file"
                                  : "this is not a .npy file (it does not begin with \\x93NUMPY)");
    }
    unsigned major = size > MAGIC_SIZE ? bytes[MAGIC_SIZE] : 0;
    if (size > MAGIC_SIZE && (major < 1 || major > 3)) {
        return npy_fail(detail, NPY_E_FORMAT,
                        ".npy format version %u; 1, 2 and 3 are read: save it with np.save", major);
    }
    size_t length_bytes = major == 1 ? 2 : 4;
    size_t start = MAGIC_SIZE + 2 + length_bytes;
    if (size < start) {
        return npy_fail(detail, NPY_E_TRUNCATED,
                        "the file ends after %zu bytes, inside its header; write or copy it again",
                        size);
    }
    size_t length = 0;
    for (size_t i = 0; i < length_bytes; i++) {
        length |= (size_t)bytes[MAGIC_SIZE + 2 + i] << (8 * i);
    }
    if (length > NPY_HEADER_SIZE_MAX) {
        return npy_fail(detail, NPY_E_FORMAT,
                        "the .npy header claims %zu bytes, at most %u are read: it is damaged",
                        length, NPY_HEADER_SIZE_MAX);
    }
    if (length > size - start) {
        return npy_fail(detail, NPY_E_TRUNCATED,
                        "the header claims %zu bytes, the file has %zu more: it was cut off; write "
                        "or copy it again",
                        length, size - start);
    }
    *start_p = start;
    *length_p = length;
    return NPY_OK;
}

enum npy_status npy_parse(const void *bytes, size_t size, struct npy_view *view_p, char *detail)
{
    size_t start = 0;
    size_t length = 0;
    enum npy_status status = find_header(bytes, size, &start, &length, detail);
    if (status != NPY_OK) {
        return status;
    }
    const char *text = (const char *)bytes + start;
    struct cursor cursor = {.at = text, .end = text + length, .detail = detail};
    struct header header = {0};
    status = parse_header(&cursor, &header);
    struct npy_view view = {.data = text + length};
    if (status == NPY_OK) {
        status = check_type(&header, &view.type, detail);
    }
    if (status == NPY_OK) {
        status = check_shape(&header, &view, detail);
    }
    if (status == NPY_OK) {
        status = check_size(&view, size - start - length, detail);
    }
    if (status == NPY_OK) {
        *view_p = view;
    }
    return status;
}
