/* Mapping .npy files, and writing them a block at a time. */
#include "npy.h"
#include "npy_detail.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define HEADER_ALIGNMENT 64u /* NumPy aligns the data to this, so that it can be mapped */
#define PATH_DETAIL_SIZE (NPY_DETAIL_SIZE - 160u) /* what a path may take of an error text */

/* ---- reading --------------------------------------------------------------------------------- */

static enum npy_status map_file(int fd, struct npy_file *file, const char *path, char *detail)
{
    struct stat stat;
    if (fstat(fd, &stat) != 0) {
        return npy_fail(detail, NPY_E_OPEN, "%s: %s", path, strerror(errno));
    }
    if (!S_ISREG(stat.st_mode)) {
        return npy_fail(detail, NPY_E_OPEN,
                        "%s is not a regular file and cannot be mapped; save it as a file first",
                        path);
    }
    if (stat.st_size == 0) {
        return npy_fail(detail, NPY_E_FORMAT,
                        "%s: the file is empty; write it with np.save(FILE, array)", path);
    }
    void *map = mmap(NULL, (size_t)stat.st_size, PROT_READ, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) {
        return npy_fail(detail, NPY_E_OPEN, "%s: mapping its %" PRId64 " bytes failed: %s", path,
                        (int64_t)stat.st_size, strerror(errno));
    }
    file->map = map;
    file->map_bytes = (size_t)stat.st_size;
    return NPY_OK;
}

enum npy_status npy_open(const char *path, struct npy_file *file_p, char *detail)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return npy_fail(detail, NPY_E_OPEN, "%s: %s", path, strerror(errno));
    }
    struct npy_file file = {0};
    enum npy_status status = map_file(fd, &file, path, detail);
    close(fd);
    if (status != NPY_OK) {
        return status;
    }
    char text[NPY_DETAIL_SIZE];
    status = npy_parse(file.map, file.map_bytes, &file.view, text);
    if (status != NPY_OK) {
        npy_close(&file);
        return npy_fail(detail, status, "%.*s: %s", (int)PATH_DETAIL_SIZE, path, text);
    }
    size_t start = (size_t)((const char *)file.view.data - (const char *)file.map);
    uint32_t element_bytes = npy_type_bytes(file.view.type);
    if (start % element_bytes != 0) {
        npy_close(&file);
        return npy_fail(detail, NPY_E_FORMAT,
                        "%s: its data begin at byte %zu, not at a multiple of %u, and cannot be "
                        "used in place; save the array again with np.save",
                        path, start, element_bytes);
    }
    *file_p = file;
    return NPY_OK;
}

void npy_close(struct npy_file *file)
{
    if (file->map != NULL) {
        munmap(file->map, file->map_bytes);
    }
    *file = (struct npy_file){0};
}

/* ---- writing --------------------------------------------------------------------------------- */

struct npy_writer {
    int fd;
    char *path;      /* where the file goes */
    char *temporary; /* where it is until then; NULL when written directly */
    uint64_t bytes_left;
};

/* The file that `path` means, links followed; NULL with errno. */
static char *resolve(const char *path)
{
    char *real = realpath(path, NULL);
    return real != NULL || errno != ENOENT ? real : strdup(path);
}

/* Opens the temporary file beside the target, with the permissions a new file would have. */
static int open_temporary(struct npy_writer *writer)
{
    if (asprintf(&writer->temporary, "%s.part-XXXXXX", writer->path) < 0) {
        writer->temporary = NULL;
        return -1;
    }
    int fd = mkostemp(writer->temporary, O_CLOEXEC);
    if (fd < 0) {
        int error = errno;
        free(writer->temporary);
        writer->temporary = NULL;
        errno = error;
        return -1;
    }
    mode_t mask = umask(0);
    umask(mask);
    if (fchmod(fd, 0666 & ~mask) != 0) {
        int error = errno;
        close(fd);
        errno = error;
        return -1; /* destroy removes the file */
    }
    return fd;
}

static int open_target(struct npy_writer *writer)
{
    struct stat stat_now;
    if (stat(writer->path, &stat_now) == 0 && !S_ISREG(stat_now.st_mode)) {
        return open(writer->path, O_WRONLY | O_CLOEXEC);
    }
    return open_temporary(writer);
}

static bool write_all(int fd, const void *data, uint64_t bytes)
{
    const char *at = data;
    while (bytes > 0) {
        ssize_t written = write(fd, at, bytes);
        if (written < 0 && errno == EINTR) {
            continue;
        }
        if (written <= 0) {
            return false;
        }
        at += written;
        bytes -= (uint64_t)written;
    }
    return true;
}

static bool write_header(int fd, const struct npy_view *shape)
{
    char header[256];
    char dims[64];
    if (shape->num_dims == 1) {
        snprintf(dims, sizeof(dims), "(%" PRIu64 ",)", shape->columns);
    } else {
        snprintf(dims, sizeof(dims), "(%" PRIu64 ", %" PRIu64 ")", shape->rows, shape->columns);
    }
    char text[192];
    int length =
        snprintf(text, sizeof(text), "{'descr': '%s', 'fortran_order': False, 'shape': %s, }",
                 npy_type_descr(shape->type), dims);
    size_t start = 10; /* magic, version, 16-bit header length */
    size_t total =
        (start + (size_t)length + 1 + HEADER_ALIGNMENT - 1) / HEADER_ALIGNMENT * HEADER_ALIGNMENT;
    size_t header_bytes = total - start;
    memset(header, ' ', sizeof(header));
    static const char version_1[8] = {'\x93', 'N', 'U', 'M', 'P', 'Y', 1, 0};
    memcpy(header, version_1, sizeof(version_1));
    header[8] = (char)(header_bytes & 0xff);
    header[9] = (char)(header_bytes >> 8);
    memcpy(header + start, text, (size_t)length);
    header[total - 1] = '\n';
    return write_all(fd, header, total);
}

enum npy_status npy_writer_create(const char *path, const struct npy_view *shape,
                                  struct npy_writer **writer_p, char *detail)
{
    struct npy_writer *writer = calloc(1, sizeof(*writer));
    if (writer == NULL) {
        return npy_fail(detail, NPY_E_WRITE, "%s: out of memory", path);
    }
    writer->fd = -1;
    writer->bytes_left = shape->rows * shape->columns * npy_type_bytes(shape->type);
    writer->path = resolve(path);
    writer->fd = writer->path == NULL ? -1 : open_target(writer);
    if (writer->fd < 0 || !write_header(writer->fd, shape)) {
        int error = errno;
        npy_writer_destroy(writer);
        return npy_fail(detail, NPY_E_WRITE, "%s: %s; choose a place that can be written", path,
                        strerror(error));
    }
    *writer_p = writer;
    return NPY_OK;
}

enum npy_status npy_writer_append(struct npy_writer *writer, const void *data, uint64_t bytes,
                                  char *detail)
{
    if (bytes > writer->bytes_left) {
        return npy_fail(detail, NPY_E_WRITE, "%s: %" PRIu64 " bytes given, %" PRIu64 " are left",
                        writer->path, bytes, writer->bytes_left);
    }
    if (!write_all(writer->fd, data, bytes)) {
        return npy_fail(detail, NPY_E_WRITE, "%s: %s", writer->path, strerror(errno));
    }
    writer->bytes_left -= bytes;
    return NPY_OK;
}

enum npy_status npy_writer_commit(struct npy_writer *writer, char *detail)
{
    if (writer->bytes_left > 0) {
        return npy_fail(detail, NPY_E_WRITE, "%s: %" PRIu64 " bytes of the shape are missing",
                        writer->path, writer->bytes_left);
    }
    int fd = writer->fd;
    writer->fd = -1;
    if (close(fd) != 0 ||
        (writer->temporary != NULL && rename(writer->temporary, writer->path) != 0)) {
        return npy_fail(detail, NPY_E_WRITE, "%s: %s", writer->path, strerror(errno));
    }
    free(writer->temporary);
    writer->temporary = NULL;
    return NPY_OK;
}

void npy_writer_destroy(struct npy_writer *writer)
{
    if (writer == NULL) {
        return;
    }
    if (writer->fd >= 0) {
        close(writer->fd);
    }
    if (writer->temporary != NULL) {
        unlink(writer->temporary);
    }
    free(writer->temporary);
    free(writer->path);
    free(writer);
}

const char *npy_writer_temporary(const struct npy_writer *writer)
{
    return writer->temporary;
}
