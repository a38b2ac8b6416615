/* The planner: every boundary of its rules, on devices that are not there; those of clusters are in
 * plan_cluster_test. */
#include "plan_of.h"

/* Blocks a multiprocessor of the row policies. */
static const int32_t row_blocks[] = {
#define ROW_BLOCKS(threads, scores, blocks, early, quick, rows, k) blocks,
    TOPK_ROW_POLICIES(ROW_BLOCKS)
#undef ROW_BLOCKS
};
#define NUM_ROW_POLICIES ((int32_t)(sizeof(row_blocks) / sizeof(row_blocks[0])))

static void it_takes_short_rows_into_registers(void **state)
{
    (void)state;
    static const int32_t edges[] = {1, 4096, 4097, 8192, 8193, 16384, 16385, 32768};
    for (size_t i = 0; i < sizeof(edges) / sizeof(edges[0]); i++) {
        for (int32_t rows = 1; rows < 100000; rows = rows * 3 + 1) {
            if (edges[i] > TOPK_CLUSTER_WIDTH_ABOVE && rows <= CLUSTER_ROWS) {
                continue; /* a cluster's */
            }
            struct topk_plan plan = plan_by_value(&h200, rows, edges[i], 2048);
            assert_family(&plan, TOPK_FAMILY_ROW);
            /* No more blocks than run at once: each goes on to the next row. */
            int32_t at_once = row_blocks[plan.variant] * h200.num_multiprocessors;
            assert_int_equal(plan.num_blocks, rows < at_once ? rows : at_once);
        }
    }
    struct topk_plan plan = plan_by_value(&h200, CLUSTER_ROWS + 1, 32769, 2048);
    assert_family(&plan, TOPK_FAMILY_SPLIT);
}

/* Each limit of rows is a whole number of quarters of the multiprocessors. */
static void it_has_row_policies_for_few_and_for_many_rows(void **state)
{
    (void)state;
    static const struct {
        int32_t width, limits[3]; /* the last row count of each policy but the last, then 0 */
    } expected[] = {
        {4096, {132, 528}}, {4097, {132}}, {8192, {132}}, {8193, {132}}, {16384, {132}},
    };
    for (size_t i = 0; i < sizeof(expected) / sizeof(expected[0]); i++) {
        int32_t rows = 1;
        for (int j = 0; expected[i].limits[j] != 0; j++) {
            int32_t last = expected[i].limits[j];
            struct topk_plan first = plan_by_value(&h200, rows, expected[i].width, 64);
            assert_int_equal(last % (h200.num_multiprocessors / 4), 0);
            assert_int_equal(plan_by_value(&h200, last, expected[i].width, 64).variant,
                             first.variant);
            assert_int_not_equal(plan_by_value(&h200, last + 1, expected[i].width, 64).variant,
                                 first.variant);
            rows = last + 1;
        }
        assert_int_equal(plan_by_value(&h200, rows, expected[i].width, 64).variant,
                         plan_by_value(&h200, 1 << 30, expected[i].width, 64).variant);
    }
    /* Many rows of 4K are counted in full where K is large. */
    int32_t variant = plan_of(&h200, 1000, 4096, 1024).variant;
    assert_int_equal(plan_of(&h200, 1000, 4096, 1).variant, variant);
    assert_int_not_equal(plan_of(&h200, 1000, 4096, 1025).variant, variant);
}

static void it_asks_ahead_where_the_device_can(void **state)
{
    (void)state;
    static const int32_t widths[] = {4096, 32768};
    for (size_t i = 0; i < sizeof(widths) / sizeof(widths[0]); i++) {
        struct topk_plan old = plan_of(&a100, 512, widths[i], 2048);
        struct topk_plan new = plan_of(&h200, 512, widths[i], 2048);
        assert_int_equal(old.parameters[TOPK_PARAMETER_PREFETCH], 0);
        assert_int_equal(new.parameters[TOPK_PARAMETER_PREFETCH], 1);
    }
    assert_in_range(plan_of(&h200, 512, 1 << 17, 2048).parameters[TOPK_PARAMETER_SNAP], 1, 1 << 17);
}

static void it_splits_few_long_rows_and_tiles_many(void **state)
{
    (void)state;
    for (int32_t width = 32769; width > 0 && width < 1 << 30; width *= 2) {
        struct topk_plan fewest = plan_of(&h200, CLUSTER_ROWS + 1, width, 2048);
        assert_family(&fewest, TOPK_FAMILY_SPLIT);
        struct topk_plan split = plan_of(&h200, h200.num_multiprocessors, width, 2048);
        struct topk_plan tiles = plan_of(&h200, h200.num_multiprocessors + 1, width, 2048);
        assert_family(&split, TOPK_FAMILY_SPLIT);
        assert_family(&tiles, TOPK_FAMILY_TILES);
    }
    /* Candidates of two rows, so that one is finished while the next is scanned, where they fit. */
    struct topk_plan large = plan_of(&h200, 512, 100000, 2048);
    struct topk_plan small = plan_of(&rtx, 512, 100000, 2048);
    assert_int_equal(large.num_blocks, h200.num_multiprocessors);
    assert_int_equal(small.num_blocks, rtx.num_multiprocessors);
    assert_int_not_equal(large.variant, small.variant);
    assert_true(small.parameters[TOPK_PARAMETER_STAGES] > 0);
}

static void it_takes_the_plain_path_above_the_fast_k(void **state)
{
    (void)state;
    for (int32_t width = 1; width > 0 && width < 1 << 30; width *= 7) {
        for (size_t i = 0; i < 4; i++) {
            struct topk_plan plan = plan_of(devices[i], 40, width, (int32_t)TOPK_K_FAST_MAX + 1);
            assert_family(&plan, TOPK_FAMILY_PLAIN);
            plan = plan_of(devices[i], 40, width, (int32_t)TOPK_K_MAX);
            assert_family(&plan, TOPK_FAMILY_PLAIN);
        }
    }
}

static void it_needs_no_bulk_copies_before_sm_90(void **state)
{
    (void)state;
    struct topk_plan row = plan_of(&a100, 64, 32768, 2048);
    struct topk_plan plain = plan_of(&a100, 64, 32769, 2048);
    assert_family(&row, TOPK_FAMILY_ROW);
    assert_family(&plain, TOPK_FAMILY_PLAIN);
    assert_int_equal(plain.parameters[TOPK_PARAMETER_PROGRAMMATIC], 0);
    struct topk_shape shape = shape_of(64, 100000, 2048);
    struct topk_plan plan;
    char detail[TOPK_DETAIL_SIZE] = "";
    assert_int_equal(topk_plan_make_family(&shape, &a100, TOPK_FAMILY_TILES, -1, &plan, detail),
                     TOPK_E_UNSUPPORTED);
    assert_non_null(strstr(detail, "8.0"));
}

/* Whatever the shape: limits of the device and of the header hold, and the plan is plain data. */
static void it_stays_within_the_limits(void **state)
{
    (void)state;
    for (size_t d = 0; d < 4; d++) {
        for (int32_t k = 1; k <= (int32_t)TOPK_K_MAX; k = k * 3 + 1) {
            for (int32_t rows = 1; rows > 0 && rows < 1 << 30; rows *= 33) {
                for (int32_t width = 1; width > 0 && width <= 1 << 20; width *= 4) {
                    for (int order = 0; order < 3; order++) {
                        struct topk_shape shape = shape_of(rows, width, k);
                        shape.options.order = (enum topk_order)order;
                        struct topk_plan plan, again;
                        memset(&plan, 0x11, sizeof(plan));
                        memset(&again, 0x22, sizeof(again));
                        assert_int_equal(topk_plan_make(&shape, devices[d], &plan, NULL), TOPK_OK);
                        assert_int_equal(topk_plan_make(&shape, devices[d], &again, NULL), TOPK_OK);
                        assert_memory_equal(&plan, &again, sizeof(plan));
                        assert_in_range(plan.num_blocks, 1, 0x7fffffff);
                        assert_in_range(plan.threads, 32, 1024);
                        assert_true(plan.shared_bytes <= devices[d]->shared_bytes_per_block);
                        assert_in_range(plan.workspace_bytes, 256, 64 << 20);
                    }
                }
            }
        }
    }
}

static void it_keeps_groups_of_warps_to_their_own_stages(void **state)
{
    (void)state;
    static const int32_t scan_warps[] = {
#define SCAN_WARPS(finish, scan, candidates, buffers) scan,
        TOPK_STREAM_POLICIES(SCAN_WARPS)
#undef SCAN_WARPS
    };
    for (size_t d = 0; d < 4; d++) {
        for (size_t variant = 0; variant < sizeof(scan_warps) / sizeof(scan_warps[0]); variant++) {
            struct topk_shape shape = shape_of(500, 200000, 2048);
            struct topk_plan plan;
            if (topk_plan_make_family(&shape, devices[d], TOPK_FAMILY_TILES, (int32_t)variant,
                                      &plan, NULL) != TOPK_OK) {
                assert_true(devices[d] == &a100 || devices[d] == &rtx);
                continue;
            }
            int64_t stages = plan.parameters[TOPK_PARAMETER_STAGES];
            int64_t groups = scan_warps[variant] * 4 * TOPK_CHUNK_SCORES / TOPK_STAGE_BYTES;
            assert_in_range(stages, groups, TOPK_STAGES_MAX);
            assert_int_equal(stages % groups, 0);
            assert_in_range(plan.num_blocks, 1, TOPK_STREAM_BLOCKS_MAX);
        }
    }
}

static void it_refuses_what_is_outside_the_limits(void **state)
{
    (void)state;
    const struct {
        struct topk_shape shape;
        const char *named;
    } wrong[] = {
        {{.k = 0, .rows = 1, .width = 1, .alignment_bytes = 4}, "k is 0"},
        {{.k = 16385, .rows = 1, .width = 1, .alignment_bytes = 4}, "16384"},
        {{.k = 1, .rows = 0, .width = 1, .alignment_bytes = 4}, "rows is 0"},
        {{.k = 1, .rows = 1, .width = 0, .alignment_bytes = 4}, "width is 0"},
        {{.k = 1, .rows = 1, .width = 1, .alignment_bytes = 2}, "alignment_bytes is 2"},
        {{.k = 1, .rows = 1, .width = 1, .alignment_bytes = 12}, "alignment_bytes is 12"},
        {{.k = 1, .rows = 1, .width = 1, .alignment_bytes = 256}, "alignment_bytes is 256"},
        {{1, 1, 1, 4, {.order = (enum topk_order)3}}, "order is 3"},
        {{1, 1, 1, 4, {.ties = (enum topk_ties)2}}, "ties is 2"},
        {{1, 1, 1, 4, {.dtype = (enum topk_dtype)3}}, "dtype is 3"},
        {{1, 1, 1, 1, {.dtype = TOPK_DTYPE_FLOAT16}},
         "alignment_bytes is 1; pass a power of two "
         "from 2"},
    };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct topk_plan plan;
        char detail[TOPK_DETAIL_SIZE] = "";
        assert_int_equal(topk_plan_make(&wrong[i].shape, &h200, &plan, detail), TOPK_E_INVALID);
        assert_non_null(strstr(detail, wrong[i].named));
    }
    struct topk_shape shape = shape_of(1, 1, 1);
    struct topk_device old = h200, none = h200;
    struct topk_plan plan;
    char detail[TOPK_DETAIL_SIZE] = "";
    old.compute_major = 7;
    none.num_multiprocessors = 0;
    assert_int_equal(topk_plan_make(&shape, &old, &plan, detail), TOPK_E_UNSUPPORTED);
    assert_non_null(strstr(detail, "7.0"));
    assert_int_equal(topk_plan_make(&shape, &none, &plan, detail), TOPK_E_INVALID);
    assert_int_equal(topk_plan_make(NULL, &h200, &plan, detail), TOPK_E_INVALID);
}

static void it_forces_only_what_serves_the_shape(void **state)
{
    (void)state;
    struct topk_shape wide = shape_of(10, 40000, 100), narrow = shape_of(10, 4000, 100);
    struct topk_plan plan;
    assert_int_equal(topk_plan_make_family(&wide, &h200, TOPK_FAMILY_ROW, -1, &plan, NULL),
                     TOPK_E_UNSUPPORTED);
    for (int32_t variant = 0; variant < 100; variant++) {
        enum topk_status status =
            topk_plan_make_family(&narrow, &h200, TOPK_FAMILY_ROW, variant, &plan, NULL);
        if (status != TOPK_OK) {
            assert_int_equal(status, TOPK_E_UNSUPPORTED);
            assert_int_equal(variant, NUM_ROW_POLICIES); /* the first number that is no policy */
            break;
        }
        assert_int_equal(plan.variant, variant);
    }
    assert_int_equal(topk_plan_make_family(&narrow, &h200, TOPK_FAMILY_COUNT, -1, &plan, NULL),
                     TOPK_E_UNSUPPORTED);
}

/* What is forced on a shape of 16 bits is what can be forced on it with float32; a refusal names
 * the type. */
static void check_forced(const struct topk_shape *shape, const struct topk_device *device)
{
    struct topk_shape wide = *shape;
    wide.options.dtype = TOPK_DTYPE_FLOAT32;
    for (int family = 0; family < TOPK_FAMILY_COUNT; family++) {
        struct topk_plan plan;
        char detail[TOPK_DETAIL_SIZE] = "";
        enum topk_status status =
            topk_plan_make_family(shape, device, (enum topk_family)family, -1, &plan, detail);
        assert_int_equal(status, topk_plan_make_family(&wide, device, (enum topk_family)family, -1,
                                                       &plan, NULL));
        if (status != TOPK_OK) {
            assert_non_null(strstr(detail, topk_dtype_name(shape->options.dtype)));
        }
    }
}

/* Scores of 16 bits have the family that float32 has. */
static void it_gives_16_bits_the_families_of_float32(void **state)
{
    (void)state;
    const int32_t widths[] = {1, 4096, 4097, 8192, 16385, 32768, 32769, 1 << 20};
    for (size_t d = 0; d < sizeof(devices) / sizeof(devices[0]); d++) {
        for (int dtype = TOPK_DTYPE_FLOAT16; dtype < TOPK_DTYPE_COUNT; dtype++) {
            for (size_t w = 0; w < sizeof(widths) / sizeof(widths[0]); w++) {
                for (int32_t rows = 1; rows < 10000; rows *= 4) {
                    struct topk_shape shape = shape_of(rows, widths[w], 512);
                    struct topk_plan plan;
                    char text[512];
                    shape.options.dtype = (enum topk_dtype)dtype;
                    assert_int_equal(topk_plan_make(&shape, devices[d], &plan, NULL), TOPK_OK);
                    assert_int_equal(plan.family, plan_of(devices[d], rows, widths[w], 512).family);
                    assert_int_equal(plan.shape.options.dtype, dtype);
                    topk_plan_describe(&plan, text, sizeof(text));
                    assert_non_null(strstr(text, topk_dtype_name((enum topk_dtype)dtype)));
                    check_forced(&shape, devices[d]);
                }
            }
        }
    }
}

/* Short rows of 16 bits go the way of float32, without shared memory of the plan's. */
static void it_takes_short_rows_of_16_bits_into_registers(void **state)
{
    (void)state;
    static const int32_t rows_in[][2] = {{1 << 30, 8192}, {132, 8193}, {132, 16384}},
                         rows_out[][2] = {{133, 8193}, {133, 16384}, {67, 16385}};
    for (size_t i = 0; i < 3; i++) {
        struct topk_shape in = shape_of(rows_in[i][0], rows_in[i][1], 2048);
        struct topk_shape out = shape_of(rows_out[i][0], rows_out[i][1], 2048);
        struct topk_plan plan_in, plan_out;
        in.options.dtype = out.options.dtype = TOPK_DTYPE_FLOAT16;
        assert_int_equal(topk_plan_make(&in, &h200, &plan_in, NULL), TOPK_OK);
        assert_int_equal(topk_plan_make(&out, &h200, &plan_out, NULL), TOPK_OK);
        assert_int_equal(plan_in.shared_bytes, 0);
        assert_int_not_equal(plan_out.shared_bytes, 0);
    }
}

/* A row of 16 bits that may begin within 16 bytes needs room for those before it. */
static void it_makes_room_for_rows_of_16_bits_at_any_alignment(void **state)
{
    (void)state;
    static const int32_t widths[] = {4096, 8192, 16384, 32768};
    for (size_t w = 0; w < sizeof(widths) / sizeof(widths[0]); w++) {
        struct topk_shape shape = shape_of(1000, widths[w], 512);
        struct topk_plan aligned, any, less;
        shape.options.dtype = TOPK_DTYPE_BFLOAT16;
        assert_int_equal(topk_plan_make(&shape, &h200, &aligned, NULL), TOPK_OK);
        assert_family(&aligned, TOPK_FAMILY_ROW);
        shape.alignment_bytes = 2;
        assert_int_equal(topk_plan_make(&shape, &h200, &any, NULL), TOPK_OK);
        if (widths[w] <= 8192) { /* in registers: no alignment needs room */
            assert_int_equal(any.variant, aligned.variant);
            assert_int_equal(any.shared_bytes, aligned.shared_bytes);
        } else if (any.family == TOPK_FAMILY_ROW) {
            assert_true(any.shared_bytes > aligned.shared_bytes);
        } else {
            assert_int_equal(widths[w], 32768);
        }
        shape.width -= 7;
        assert_int_equal(topk_plan_make(&shape, &h200, &less, NULL), TOPK_OK);
        assert_family(&less, TOPK_FAMILY_ROW);
        assert_int_equal(less.variant, aligned.variant);
    }
}

static void it_describes_a_plan_in_one_line(void **state)
{
    (void)state;
    struct topk_plan plan = plan_of(&h200, 512, 131072, 2048);
    char text[512], tiny[8];
    topk_plan_describe(&plan, text, sizeof(text));
    assert_non_null(strstr(text, "family=tiles"));
    assert_non_null(strstr(text, "k=2048"));
    assert_null(strchr(text, '\n'));
    topk_plan_describe(&plan, tiny, sizeof(tiny));
    assert_int_equal(strlen(tiny), sizeof(tiny) - 1);
    topk_plan_describe(&plan, NULL, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_takes_short_rows_into_registers),
        cmocka_unit_test(it_has_row_policies_for_few_and_for_many_rows),
        cmocka_unit_test(it_asks_ahead_where_the_device_can),
        cmocka_unit_test(it_splits_few_long_rows_and_tiles_many),
        cmocka_unit_test(it_takes_the_plain_path_above_the_fast_k),
        cmocka_unit_test(it_needs_no_bulk_copies_before_sm_90),
        cmocka_unit_test(it_stays_within_the_limits),
        cmocka_unit_test(it_keeps_groups_of_warps_to_their_own_stages),
        cmocka_unit_test(it_refuses_what_is_outside_the_limits),
        cmocka_unit_test(it_forces_only_what_serves_the_shape),
        cmocka_unit_test(it_gives_16_bits_the_families_of_float32),
        cmocka_unit_test(it_takes_short_rows_of_16_bits_into_registers),
        cmocka_unit_test(it_makes_room_for_rows_of_16_bits_at_any_alignment),
        cmocka_unit_test(it_describes_a_plan_in_one_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
