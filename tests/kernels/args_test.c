/* Every refusal of topk_args_check and topk_cpu_create, with the text a user reads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "topk_select.h"

static float scores[64], values[64];
static int32_t lengths[4], indices[64], pages[16], offsets[4];
static struct topk_routes routes;

static struct topk_args good_args(void)
{
    return (struct topk_args){
        .scores = scores,
        .row_stride = 16,
        .lengths = lengths,
        .indices = indices,
        .index_stride = 8,
        .values = values,
        .value_stride = 8,
        .page_table = pages,
        .page_table_stride = 4,
        .row_offsets = offsets,
        .routes = &routes,
        .num_rows = 4,
        .width = 16,
        .k = 8,
        .page_table_width = 4,
        .page_size_log2 = 2,
    };
}

static void refused(const struct topk_args *args, const struct topk_options *options,
                    const char *const parts[])
{
    char detail[TOPK_DETAIL_SIZE] = "";
    assert_int_equal(topk_args_check(args, options, detail), TOPK_E_INVALID);
    for (int i = 0; parts[i] != NULL; i++) {
        if (strstr(detail, parts[i]) == NULL) {
            fail_msg("\"%s\" does not say \"%s\"", detail, parts[i]);
        }
    }
    assert_int_equal(topk_args_check(args, options, NULL), TOPK_E_INVALID);
}

#define REFUSED(change, ...)                                                                       \
    do {                                                                                           \
        struct topk_args args = good_args();                                                       \
        struct topk_options options = {.order = TOPK_ORDER_ANY, .ties = TOPK_TIES_ANY};            \
        change;                                                                                    \
        refused(&args, &options, (const char *const[]){__VA_ARGS__, NULL});                        \
    } while (0)

static void accepted(const struct topk_args *args)
{
    struct topk_options options = {.order = TOPK_ORDER_VALUE, .ties = TOPK_TIES_LOWEST};
    char detail[TOPK_DETAIL_SIZE] = "";
    if (topk_args_check(args, &options, detail) != TOPK_OK) {
        fail_msg("refused: %s", detail);
    }
}

static void k_out_of_range(void **state)
{
    (void)state;
    REFUSED(args.k = 0, "k is 0", "1 ... 16384");
    REFUSED(args.k = -5, "k is -5");
    REFUSED(args.k = 16385, "k is 16385", "1 ... 16384");
}

static void shapes_out_of_range(void **state)
{
    (void)state;
    REFUSED(args.num_rows = -1, "num_rows is -1", "0 ...");
    REFUSED(args.width = -7, "width is -7", "0 ...");
    REFUSED(args.row_stride = 15, "row_stride is 15", "width 16");
    REFUSED(args.row_stride = -16, "row_stride is -16");
    REFUSED(args.row_stride = INT64_MAX, "row_stride", "4 rows of scores", "at most");
    REFUSED(args.index_stride = 7, "index_stride is 7", "k 8");
    REFUSED(args.index_stride = INT64_MAX / 4, "index_stride", "indices", "at most");
    REFUSED(args.value_stride = 0, "value_stride is 0", "k 8");
}

static void options_out_of_range(void **state)
{
    (void)state;
    REFUSED(options.order = (enum topk_order)3, "order is 3");
    REFUSED(options.order = (enum topk_order) - 1, "order is -1");
    REFUSED(options.ties = (enum topk_ties)2, "ties is 2");
    REFUSED(options.dtype = (enum topk_dtype)3, "dtype is 3", "2 (bfloat16)");
    REFUSED(options.dtype = (enum topk_dtype) - 1, "dtype is -1");
}

/* A table shorter than the row needs is refused, never read past. */
static void page_table_too_short(void **state)
{
    (void)state;
    REFUSED(args.page_table_width = 3, "page_table_width is 3", "width is 16", "at least 4");
    REFUSED(args.page_table_width = -1, "page_table_width is -1");
    REFUSED(args.width = 17; args.row_stride = 17, "at least 5 entries");
    REFUSED(args.page_table_stride = 3, "page_table_stride is 3", "page_table_width 4");
    REFUSED(args.page_size_log2 = 31, "page_size_log2 is 31", "0 ... 30");
    REFUSED(args.page_size_log2 = 4000000000u, "page_size_log2 is 4000000000");
}

static void pointers_missing_or_misaligned(void **state)
{
    (void)state;
    REFUSED(args.scores = NULL, "scores is NULL", "4 rows of width 16");
    REFUSED(args.indices = NULL, "indices is NULL");
    REFUSED(args.scores = (const float *)((uintptr_t)scores + 2), "scores is 0x", "4 bytes");
    REFUSED(args.scores = (const char *)scores + 1;
            options.dtype = TOPK_DTYPE_FLOAT16, "scores is 0x", "2 bytes");
    REFUSED(args.lengths = (const int32_t *)((uintptr_t)lengths + 1), "lengths is 0x");
    REFUSED(args.indices = (int32_t *)((uintptr_t)indices + 3), "indices is 0x");
    REFUSED(args.values = (float *)((uintptr_t)values + 2), "values is 0x");
    REFUSED(args.page_table = (const int32_t *)((uintptr_t)pages + 2), "page_table is 0x");
    REFUSED(args.row_offsets = (const int32_t *)((uintptr_t)offsets + 2), "row_offsets is 0x");
    REFUSED(args.routes = (struct topk_routes *)((uintptr_t)&routes + 4), "routes is 0x",
            "8 bytes");
}

static void structs_missing(void **state)
{
    (void)state;
    struct topk_args args = good_args();
    struct topk_options options = {.order = TOPK_ORDER_ANY, .ties = TOPK_TIES_ANY};
    refused(NULL, &options, (const char *const[]){"args is NULL", NULL});
    refused(&args, NULL, (const char *const[]){"options is NULL", NULL});
}

static void what_is_allowed(void **state)
{
    (void)state;
    struct topk_args args = good_args();
    accepted(&args);
    args.k = 16384; /* more than the width */
    args.index_stride = args.value_stride = 16384;
    accepted(&args);
    args = good_args();
    args.lengths = NULL;
    args.length_all = -100; /* lengths are clamped, not refused */
    args.values = NULL;
    args.value_stride = -1; /* not looked at without values */
    args.page_table = NULL;
    args.page_table_width = -1;
    args.page_size_log2 = 99;
    args.row_offsets = NULL;
    args.routes = NULL;
    accepted(&args);
    args.num_rows = 1; /* one row has no stride */
    args.row_stride = args.index_stride = -3;
    accepted(&args);
    args.num_rows = 0; /* nothing to do: nothing is looked at */
    args.scores = NULL;
    args.indices = NULL;
    accepted(&args);
    args = good_args();
    args.width = 0;
    args.scores = NULL;
    accepted(&args);
    args = good_args();
    args.page_size_log2 = 30;
    args.page_table_width = 1;
    args.page_table_stride = 1;
    accepted(&args);
}

static void select_refuses_as_the_check_does(void **state)
{
    (void)state;
    struct topk_cpu_config config = {.num_threads = 1};
    struct topk_cpu *cpu;
    char detail[TOPK_DETAIL_SIZE] = "";
    assert_int_equal(topk_cpu_create(&config, &cpu, detail), TOPK_OK);
    struct topk_args args = good_args();
    struct topk_options options = {.order = TOPK_ORDER_ANY, .ties = TOPK_TIES_ANY};
    args.k = 0;
    assert_int_equal(topk_cpu_select(cpu, &args, &options, NULL, detail), TOPK_E_INVALID);
    assert_non_null(strstr(detail, "k is 0"));
    assert_int_equal(topk_cpu_select(NULL, &args, &options, NULL, detail), TOPK_E_INVALID);
    assert_non_null(strstr(detail, "cpu is NULL"));
    assert_int_equal(topk_cpu_select(cpu, NULL, &options, NULL, NULL), TOPK_E_INVALID);
    topk_cpu_destroy(cpu);
}

static void create_refuses(void **state)
{
    (void)state;
    struct topk_cpu *cpu = NULL;
    char detail[TOPK_DETAIL_SIZE] = "";
    struct topk_cpu_config config = {.num_threads = 257};
    assert_int_equal(topk_cpu_create(&config, &cpu, detail), TOPK_E_INVALID);
    assert_non_null(strstr(detail, "num_threads is 257; pass 1 ... 256"));
    config = (struct topk_cpu_config){.num_threads = 1, .isa = "sse9"};
    assert_int_equal(topk_cpu_create(&config, &cpu, detail), TOPK_E_INVALID);
    assert_non_null(strstr(detail, "\"sse9\" is unknown; pass NULL, portable, avx2 or avx512"));
    assert_int_equal(topk_cpu_create(NULL, &cpu, detail), TOPK_E_INVALID);
    assert_int_equal(topk_cpu_create(&config, NULL, NULL), TOPK_E_INVALID);
    assert_null(cpu); /* set on success only */
    topk_cpu_destroy(NULL);
}

static void every_status_has_a_text(void **state)
{
    (void)state;
    static const char *const texts[] = {
#define TEXT(name, text) text,
        TOPK_STATUS_TABLE(TEXT)
#undef TEXT
    };
    int count = (int)(sizeof(texts) / sizeof(texts[0]));
    for (int i = 0; i < count; i++) {
        assert_string_equal(topk_strerror((enum topk_status)i), texts[i]);
    }
    assert_string_equal(topk_strerror((enum topk_status)count), "unknown status");
    assert_string_equal(topk_strerror((enum topk_status) - 1), "unknown status");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(k_out_of_range),
        cmocka_unit_test(shapes_out_of_range),
        cmocka_unit_test(options_out_of_range),
        cmocka_unit_test(page_table_too_short),
        cmocka_unit_test(pointers_missing_or_misaligned),
        cmocka_unit_test(structs_missing),
        cmocka_unit_test(what_is_allowed),
        cmocka_unit_test(select_refuses_as_the_check_does),
        cmocka_unit_test(create_refuses),
        cmocka_unit_test(every_status_has_a_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
