/*
 * The check of a request before anything is read through its pointers. Each refusal names the
 * value, the limit and what to do; the first one found is reported.
 */
#include "cpu/detail.h"

#define REFUSE(detail, ...) topk_detail((detail), TOPK_E_INVALID, __VA_ARGS__)

/* A pointer of the request with what must hold for it. */
struct checked_pointer {
    const char *name;
    const void *pointer;
    uintptr_t alignment_bytes;
    bool required;
};

/* A matrix of the request: how far apart its rows are. */
struct checked_matrix {
    const char *name, *stride_name, *columns_name;
    bool present;
    int64_t stride, columns;
};

static enum topk_status check_numbers(const struct topk_args *args,
                                      const struct topk_options *options, char *detail)
{
    if (args->num_rows < 0) {
        return REFUSE(detail, "num_rows is %d; pass 0 ... %d", args->num_rows, TOPK_ROWS_MAX);
    }
    if (args->width < 0) {
        return REFUSE(detail, "width is %d; pass 0 ... %d", args->width, TOPK_WIDTH_MAX);
    }
    if (args->k < 1 || args->k > (int32_t)TOPK_K_MAX) {
        return REFUSE(detail, "k is %d; ask for 1 ... %u positions a row", args->k, TOPK_K_MAX);
    }
    if ((unsigned)options->order > TOPK_ORDER_VALUE) {
        return REFUSE(detail, "options.order is %d; pass 0 (any), 1 (index) or 2 (value)",
                      (int)options->order);
    }
    if ((unsigned)options->ties > TOPK_TIES_LOWEST) {
        return REFUSE(detail, "options.ties is %d; pass 0 (any) or 1 (lowest index)",
                      (int)options->ties);
    }
    if (topk_dtype_bytes(options->dtype) == 0) {
        return REFUSE(detail, "options.dtype is %d; pass 0 (float32), 1 (float16) or 2 (bfloat16)",
                      (int)options->dtype);
    }
    return TOPK_OK;
}

static enum topk_status check_pointers(const struct topk_args *args,
                                       const struct topk_options *options, char *detail)
{
    bool rows = args->num_rows > 0;
    const struct checked_pointer pointers[] = {
        {"scores", args->scores, topk_dtype_bytes(options->dtype), rows && args->width > 0},
        {"lengths", args->lengths, sizeof(int32_t), false},
        {"indices", args->indices, sizeof(int32_t), rows},
        {"values", args->values, sizeof(float), false},
        {"page_table", args->page_table, sizeof(int32_t), false},
        {"row_offsets", args->row_offsets, sizeof(int32_t), false},
        {"routes", args->routes, sizeof(uint64_t), false},
    };
    for (size_t i = 0; i < sizeof(pointers) / sizeof(pointers[0]); i++) {
        const struct checked_pointer *p = &pointers[i];
        if (p->pointer == NULL && p->required) {
            return REFUSE(detail, "%s is NULL with %d rows of width %d; pass the array", p->name,
                          args->num_rows, args->width);
        }
        if ((uintptr_t)p->pointer % p->alignment_bytes != 0) {
            return REFUSE(detail, "%s is %p, which is not a multiple of %u bytes; align it",
                          p->name, p->pointer, (unsigned)p->alignment_bytes);
        }
    }
    return TOPK_OK;
}

static enum topk_status check_strides(const struct topk_args *args, char *detail)
{
    const struct checked_matrix matrices[] = {
        {"scores", "row_stride", "width", true, args->row_stride, args->width},
        {"indices", "index_stride", "k", true, args->index_stride, args->k},
        {"values", "value_stride", "k", args->values != NULL, args->value_stride, args->k},
        {"page_table", "page_table_stride", "page_table_width", args->page_table != NULL,
         args->page_table_stride, args->page_table_width},
    };
    if (args->num_rows < 2) {
        return TOPK_OK; /* no stride is ever used */
    }
    int64_t stride_max = (INT64_MAX / 4 - INT32_MAX) / (args->num_rows - 1);
    for (size_t i = 0; i < sizeof(matrices) / sizeof(matrices[0]); i++) {
        const struct checked_matrix *m = &matrices[i];
        if (m->present && m->stride < m->columns) {
            return REFUSE(detail, "%s is %lld elements, less than %s %lld: rows would overlap",
                          m->stride_name, (long long)m->stride, m->columns_name,
                          (long long)m->columns);
        }
        if (m->present && m->stride > stride_max) {
            return REFUSE(detail,
                          "%s is %lld elements: %d rows of %s would pass 2^63 bytes; at "
                          "most %lld",
                          m->stride_name, (long long)m->stride, args->num_rows, m->name,
                          (long long)stride_max);
        }
    }
    return TOPK_OK;
}

static enum topk_status check_page_table(const struct topk_args *args, char *detail)
{
    if (args->page_table == NULL) {
        return TOPK_OK;
    }
    if (args->page_size_log2 > TOPK_PAGE_SIZE_LOG2_MAX) {
        return REFUSE(detail, "page_size_log2 is %u; pass 0 ... %u", args->page_size_log2,
                      TOPK_PAGE_SIZE_LOG2_MAX);
    }
    if (args->page_table_width < 0) {
        return REFUSE(detail, "page_table_width is %d; pass the entries of a row, 0 or more",
                      args->page_table_width);
    }
    int64_t page = (int64_t)1 << args->page_size_log2;
    int64_t needed = (args->width + page - 1) / page;
    if (args->page_table_width < needed) {
        return REFUSE(detail,
                      "page_table_width is %d entries of %lld positions, width is %d; "
                      "pass at least %lld entries a row",
                      args->page_table_width, (long long)page, args->width, (long long)needed);
    }
    return TOPK_OK;
}

enum topk_status topk_args_check(const struct topk_args *args, const struct topk_options *options,
                                 char *detail)
{
    if (args == NULL || options == NULL) {
        return REFUSE(detail, "%s is NULL; pass the struct%s", args == NULL ? "args" : "options",
                      args == NULL ? "" : ", zeroed for the defaults");
    }
    enum topk_status status = check_numbers(args, options, detail);
    if (status == TOPK_OK) {
        status = check_page_table(args, detail);
    }
    if (status == TOPK_OK) {
        status = check_strides(args, detail);
    }
    if (status == TOPK_OK) {
        status = check_pointers(args, options, detail);
    }
    return status;
}
