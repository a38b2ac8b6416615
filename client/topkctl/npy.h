/*
 * npy.h - NumPy's .npy files, as far as selections need them.
 *
 * Read: format versions 1, 2 and 3; little-endian float32 ('<f4'), float16 ('<f2') and int32
 * ('<i4'), C order, one or two dimensions. Everything else is refused with a text that says what
 * was found, what is accepted and which NumPy call makes it so. bfloat16 has no type of its own in
 * these files: NumPy writes it as two unnamed bytes ('<V2'), which this reads as NPY_BYTES2, for
 * whoever knows what they are. Written: version 1, what NumPy itself would write.
 *
 * Files are mapped, never read whole, and written a block at a time, so both may be larger than
 * memory. Nothing here is shared between calls; different objects may be used by different threads.
 */
#ifndef TOPKCTL_NPY_H
#define TOPKCTL_NPY_H

#include <stddef.h>
#include <stdint.h>

#define NPY_DETAIL_SIZE 512u           /* bytes of an error text, terminator included */
#define NPY_HEADER_SIZE_MAX (1u << 16) /* choice: NumPy itself reads headers up to 10,000 bytes */

#define NPY_STATUS_TABLE(X)                                                                        \
    X(NPY_OK, "ok")                                                                                \
    X(NPY_E_OPEN, "the file cannot be opened or mapped")                                           \
    X(NPY_E_FORMAT, "not a .npy file, or a damaged header")                                        \
    X(NPY_E_DTYPE, "elements of a type that is not accepted")                                      \
    X(NPY_E_ORDER, "columns are stored before rows (Fortran order)")                               \
    X(NPY_E_SHAPE, "a shape that is not accepted")                                                 \
    X(NPY_E_TRUNCATED, "fewer bytes than the header promises")                                     \
    X(NPY_E_TRAILING, "more bytes than the header promises")                                       \
    X(NPY_E_WRITE, "the file cannot be written")

enum npy_status {
#define NPY_STATUS_ENUM(name, text) name,
    NPY_STATUS_TABLE(NPY_STATUS_ENUM)
#undef NPY_STATUS_ENUM
};

const char *npy_strerror(enum npy_status status);

/* Type, its name, its name in a header, bytes of an element. */
#define NPY_TYPE_TABLE(X)                                                                          \
    X(NPY_FLOAT32, "float32", "<f4", 4)                                                            \
    X(NPY_INT32, "int32", "<i4", 4)                                                                \
    X(NPY_FLOAT16, "float16", "<f2", 2)                                                            \
    X(NPY_BYTES2, "unnamed 2-byte elements", "|V2", 2)

enum npy_type {
#define NPY_TYPE_ENUM(name, text, descr, bytes) name,
    NPY_TYPE_TABLE(NPY_TYPE_ENUM)
#undef NPY_TYPE_ENUM
};

const char *npy_type_name(enum npy_type type);
const char *npy_type_descr(enum npy_type type);
uint32_t npy_type_bytes(enum npy_type type);

/* What a file holds. A one-dimensional array is one row. */
struct npy_view {
    enum npy_type type;
    uint32_t num_dims;      /* 1 or 2 */
    uint64_t rows, columns; /* both >= 1 */
    const void *data;       /* [rows, columns], dense; inside the caller's bytes, ANY alignment */
    uint64_t data_bytes;
};

/*
 * Reads the header of a file that lies in memory. bytes[size] may hold anything; nothing outside of
 * it is read and nothing is allocated. The view points into `bytes`. `detail` (NPY_DETAIL_SIZE, may
 * be NULL) gets the error text, printable ASCII whatever the file contains.
 */
enum npy_status npy_parse(const void *bytes, size_t size, struct npy_view *view_p, char *detail);

/* A mapped file: data aligned to an element, read-only. One that shrinks while mapped raises
 * SIGBUS.
 */
struct npy_file {
    struct npy_view view;
    void *map;
    size_t map_bytes;
};

/* Maps and parses; the error text begins with the path. The caller closes it. */
enum npy_status npy_open(const char *path, struct npy_file *file_p, char *detail);

/* Unmaps; a zeroed file is allowed. */
void npy_close(struct npy_file *file);

struct npy_writer;

/*
 * Begins a file of rows x columns elements (num_dims 1 writes the shape (columns,)).
 * A regular file appears under its name only with commit, so that a reader never sees half of one;
 * until then it is a temporary file beside it. Devices and pipes are written directly.
 */
enum npy_status npy_writer_create(const char *path, const struct npy_view *shape,
                                  struct npy_writer **writer_p, char *detail);

/* Adds elements. More than the shape has is refused. */
enum npy_status npy_writer_append(struct npy_writer *writer, const void *data, uint64_t bytes,
                                  char *detail);

/* Gives the file its name. Refused while elements are missing. The writer lives on until destroy.
 */
enum npy_status npy_writer_commit(struct npy_writer *writer, char *detail);

/* Frees; what was not committed is removed. NULL is allowed. */
void npy_writer_destroy(struct npy_writer *writer);

/* The temporary file's path, NULL when there is none; for a signal handler that must remove it. */
const char *npy_writer_temporary(const struct npy_writer *writer);

#endif
