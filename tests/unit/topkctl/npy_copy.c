/* Copies a .npy file through the reader and the writer; npy_numpy.py judges the copy with NumPy.
 * Prints "type dims rows columns", or the refusal and exit code 1. */
#include "npy.h"

#include <inttypes.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: npy_copy IN.npy OUT.npy\n");
        return 2;
    }
    char detail[NPY_DETAIL_SIZE];
    struct npy_file in = {0};
    struct npy_writer *out = NULL;
    enum npy_status status = npy_open(argv[1], &in, detail);
    if (status == NPY_OK) {
        status = npy_writer_create(argv[2], &in.view, &out, detail);
    }
    if (status == NPY_OK) {
        status = npy_writer_append(out, in.view.data, in.view.data_bytes, detail);
    }
    if (status == NPY_OK) {
        status = npy_writer_commit(out, detail);
    }
    if (status == NPY_OK) {
        printf("%s %u %" PRIu64 " %" PRIu64 "\n", npy_type_descr(in.view.type) + 1,
               in.view.num_dims, in.view.rows, in.view.columns);
    } else {
        printf("%s\n", detail);
    }
    npy_writer_destroy(out);
    npy_close(&in);
    return status == NPY_OK ? 0 : 1;
}
