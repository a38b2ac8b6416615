/*
 * geometry.h - where the tensors of a Select lie, checked in 64 bits against their regions.
 *
 * Pure: plain structs in, plain structs out, nothing read through a pointer but the request. What
 * passes cannot make a selection touch a byte outside the registered bytes, write into a read-only
 * region, or write over an input or another output. The checks of values (lengths, page numbers)
 * are the selection's own: it clamps lengths, and page numbers are copied, never followed.
 */
#ifndef TOPKD_SERVER_GEOMETRY_H
#define TOPKD_SERVER_GEOMETRY_H

#include "topk_select.h"
#include "topkd_wire.h"

#include <stdbool.h>
#include <stdint.h>

/* The tensors of a selection: identifier, name in error texts, whether it is written. */
#define GEOMETRY_TENSOR_TABLE(X)                                                                   \
    X(GEOMETRY_SCORES, "scores", false)                                                            \
    X(GEOMETRY_LENGTHS, "lengths", false)                                                          \
    X(GEOMETRY_PAGE_TABLE, "page_table", false)                                                    \
    X(GEOMETRY_ROW_OFFSETS, "row_offsets", false)                                                  \
    X(GEOMETRY_INDICES, "indices", true)                                                           \
    X(GEOMETRY_VALUES, "values", true)

enum geometry_tensor {
#define GEOMETRY_TENSOR_ENUM(name, text, is_output) name,
    GEOMETRY_TENSOR_TABLE(GEOMETRY_TENSOR_ENUM)
#undef GEOMETRY_TENSOR_ENUM
        GEOMETRY_TENSOR_COUNT
};

/* The registered bytes behind one tensor's region reference. */
struct geometry_region {
    bool present; /* false: the request names no region for this tensor */
    bool writable;
    uint64_t object[2]; /* which memory: equal for regions of the same object */
    uint64_t base;      /* bytes from the object's start to the region's */
    uint64_t length;    /* bytes of the region */
};

struct geometry_limits {
    uint32_t k_max;
    uint32_t dtypes; /* bit 1 << dtype for each type of scores that the device reads */
    uint64_t rows_max, width_max;
    uint64_t arena_slot_bytes; /* 0: no arena */
};

/* The bytes of one tensor: num_rows pieces of row_bytes, pitch_bytes apart. */
struct geometry_span {
    bool present;
    bool in_arena;     /* offsets count from the arena slot's start, not from the region's */
    uint64_t offset;   /* of the first byte */
    uint64_t num_rows; /* 0: nothing is touched */
    uint64_t row_bytes;
    uint64_t pitch_bytes; /* >= row_bytes when num_rows > 1 */
    uint64_t end;         /* one past the last byte touched; = offset when nothing is */
};

struct geometry {
    struct geometry_span spans[GEOMETRY_TENSOR_COUNT];
};

/*
 * Checks the request. `regions` has an entry a tensor (enum geometry_tensor), looked up by the
 * caller. Sets *geometry_p on success; else INVALID, UNSUPPORTED, OUT_OF_RANGE, READ_ONLY, OVERLAP
 * or LIMIT with a text in detail[WIRE_DETAIL_SIZE] that names tensor, value and limit.
 */
enum topkd_status geometry_check(const struct wire_select_request *request,
                                 const struct geometry_region *regions,
                                 const struct geometry_limits *limits, struct geometry *geometry_p,
                                 char *detail);

/*
 * The arguments of the selection. addresses[t] is where offset 0 of span t lies: the region's
 * first byte, or the arena slot's. Lengths in the message and routes are left NULL, they are not
 * memory of a region.
 */
void geometry_args(const struct wire_select_request *request, const struct geometry *geometry,
                   const uintptr_t *addresses, struct topk_args *args_p);

/* Order, ties and type of scores, as the selection takes them. */
struct topk_options geometry_options(const struct wire_select_request *request);

/* The largest power of two, from the bytes of a score to 128, that divides the address and the
 * pitch of every score row (the pitch does not count when there is one row). */
uint32_t geometry_alignment_bytes(const struct topk_args *args, enum topk_dtype dtype);

const char *geometry_tensor_name(enum geometry_tensor tensor);
bool geometry_tensor_is_output(enum geometry_tensor tensor);

#endif
