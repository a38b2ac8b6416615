/*
 * fuzz_npy.c - any bytes as a .npy file.
 *
 * What is refused says why in printable ASCII; what is accepted describes elements that lie inside
 * the bytes, all of them.
 */
#include "fuzz_check.h"
#include "npy.h"

#include <string.h>

static void check_refused(const char *detail)
{
    FUZZ_CHECK(memchr(detail, '\0', NPY_DETAIL_SIZE) && detail[0] != '\0', "no detail text");
    for (const char *at = detail; *at; at++)
        FUZZ_CHECK(*at >= 0x20 && *at < 0x7f, "byte 0x%02x in the detail", (unsigned char)*at);
}

static void check_accepted(const uint8_t *data, size_t size, const struct npy_view *view)
{
    FUZZ_CHECK(view->type <= NPY_BYTES2, "type %d", (int)view->type);
    FUZZ_CHECK(view->num_dims == 1 || view->num_dims == 2, "%u dimensions", view->num_dims);
    FUZZ_CHECK(view->rows >= 1 && view->columns >= 1, "no elements");
    FUZZ_CHECK(view->num_dims == 2 || view->rows == 1, "one dimension, but many rows");
    const uint8_t *elements = view->data;
    FUZZ_CHECK(elements >= data && elements <= data + size, "elements outside of the file");
    FUZZ_CHECK(view->data_bytes == (uint64_t)(data + size - elements), "elements do not fill it");
    const uint32_t bytes = npy_type_bytes(view->type);
    FUZZ_CHECK(view->data_bytes / bytes / view->rows == view->columns &&
                   view->data_bytes == view->rows * view->columns * bytes,
               "%llu bytes", (unsigned long long)view->data_bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct npy_view view;
    char detail[NPY_DETAIL_SIZE];
    memset(&view, 0xa5, sizeof(view));
    memset(detail, 0, sizeof(detail));
    const enum npy_status status = npy_parse(data, size, &view, detail);
    if (status == NPY_OK)
        check_accepted(data, size, &view);
    else
        check_refused(detail);
    FUZZ_CHECK(npy_parse(data, size, &view, NULL) == status, "another answer without a detail");
    return 0;
}
