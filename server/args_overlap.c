#include "args_overlap.h"

#include <stddef.h>
#include <stdint.h>

/* Bytes [begin, end). */
struct span {
    uintptr_t begin, end;
};

#define OUTPUTS 2
#define INPUTS 4

static struct span span_of(const void *base, const struct topk_args *args, int64_t stride,
                           int64_t columns, size_t element_bytes)
{
    struct span span = {0, 0};
    if (base == NULL || args->num_rows < 1 || columns < 1)
        return span;
    int64_t rows_before = args->num_rows - 1; /* the stride of a single row may be anything */
    uint64_t elements = (uint64_t)(rows_before > 0 ? rows_before * stride : 0) + (uint64_t)columns;
    span.begin = (uintptr_t)base;
    span.end = span.begin + elements * element_bytes;
    return span;
}

static void outputs_of(const struct topk_args *args, struct span spans[OUTPUTS])
{
    spans[0] = span_of(args->indices, args, args->index_stride, args->k, sizeof(int32_t));
    spans[1] = span_of(args->values, args, args->value_stride, args->k, sizeof(float));
}

static void inputs_of(const struct topk_args *args, enum topk_dtype dtype,
                      struct span spans[INPUTS])
{
    spans[0] = span_of(args->scores, args, args->row_stride, args->width, topk_dtype_bytes(dtype));
    spans[1] = span_of(args->lengths, args, 1, 1, sizeof(int32_t));
    spans[2] = span_of(args->page_table, args, args->page_table_stride, args->page_table_width,
                       sizeof(int32_t));
    spans[3] = span_of(args->row_offsets, args, 1, 1, sizeof(int32_t));
}

static bool meet(const struct span *a, int num_a, const struct span *b, int num_b)
{
    for (int i = 0; i < num_a; i++) {
        for (int j = 0; j < num_b; j++) {
            if (a[i].begin < b[j].end && b[j].begin < a[i].end)
                return true;
        }
    }
    return false;
}

bool args_overlap(const struct topk_args *a, enum topk_dtype a_dtype, const struct topk_args *b,
                  enum topk_dtype b_dtype)
{
    struct span out_a[OUTPUTS], out_b[OUTPUTS], in_a[INPUTS], in_b[INPUTS];
    outputs_of(a, out_a);
    outputs_of(b, out_b);
    inputs_of(a, a_dtype, in_a);
    inputs_of(b, b_dtype, in_b);
    return meet(out_a, OUTPUTS, out_b, OUTPUTS) || meet(out_a, OUTPUTS, in_b, INPUTS) ||
           meet(out_b, OUTPUTS, in_a, INPUTS);
}
