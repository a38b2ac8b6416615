/* The planner: which rows are a cluster's, of the family `cluster` or of `wide`. */
#include "plan_of.h"

static void it_gives_few_rows_the_largest_clusters_that_fit(void **state)
{
    (void)state;
    static const struct {
        int32_t rows, cluster_blocks;
    } edges[] = {{2, 16}, {7, 16}, {8, 8},  {9, 6},  {16, 6},          {17, 4},
                 {24, 4}, {25, 3}, {32, 3}, {33, 2}, {CLUSTER_ROWS, 2}};
    for (size_t i = 0; i < sizeof(edges) / sizeof(edges[0]); i++) {
        for (int32_t width = TOPK_CLUSTER_SLICE_MIN * TOPK_CLUSTER_BLOCKS_MAX;
             width <= TOPK_CLUSTER_WIDTH_MAX; width *= 2) {
            struct topk_plan plan = plan_by_value(&h200, edges[i].rows, width, 2048);
            assert_family(&plan, TOPK_FAMILY_CLUSTER);
            assert_int_equal(plan.cluster_blocks, edges[i].cluster_blocks);
            assert_int_equal(plan.num_blocks, edges[i].rows * edges[i].cluster_blocks);
            assert_in_range(plan.num_blocks, 1, h200.num_multiprocessors);
        }
        struct topk_plan row = plan_by_value(&h200, edges[i].rows, TOPK_CLUSTER_WIDTH_ABOVE, 2048);
        assert_family(&row, TOPK_FAMILY_ROW);
        struct topk_plan longer = plan_of(&h200, edges[i].rows, TOPK_CLUSTER_WIDTH_MAX + 1, 2048);
        assert_family(&longer, TOPK_FAMILY_SPLIT);
    }
}

/* One row of four million bytes or more, of float32. */
static void it_gives_a_very_long_row_several_clusters(void **state)
{
    (void)state;
    static const struct {
        int32_t rows, width, clusters;
        enum topk_dtype dtype;
    } expected[] = {{1, (1 << 20) - 1, 1, TOPK_DTYPE_FLOAT32},
                    {1, 1 << 20, 4, TOPK_DTYPE_FLOAT32},
                    {1, TOPK_CLUSTER_WIDTH_MAX, 4, TOPK_DTYPE_FLOAT32},
                    {2, TOPK_CLUSTER_WIDTH_MAX, 1, TOPK_DTYPE_FLOAT32},
                    {1, TOPK_CLUSTER_WIDTH_MAX, 1, TOPK_DTYPE_FLOAT16}};
    for (size_t i = 0; i < sizeof(expected) / sizeof(expected[0]); i++) {
        struct topk_shape shape = shape_of(expected[i].rows, expected[i].width, 2048);
        const int32_t clusters = expected[i].rows * expected[i].clusters;
        struct topk_plan plan;
        shape.options.dtype = expected[i].dtype;
        assert_int_equal(topk_plan_make(&shape, &h200, &plan, NULL), TOPK_OK);
        assert_family(&plan, TOPK_FAMILY_CLUSTER);
        assert_int_equal(plan.num_blocks, 16 * clusters);
        int64_t parts_bytes = (int64_t)clusters * TOPK_CLUSTER_PART_BYTES;
        assert_in_range(plan.workspace_bytes, expected[i].clusters > 1 ? parts_bytes : 1, 64 << 20);
    }
}

/* What several clusters cannot share is refused, even when it is asked for: rows that the workspace
 * has no room for, longer ones, and 16 bits. */
static void it_shares_no_row_that_several_clusters_cannot(void **state)
{
    (void)state;
    struct topk_shape shapes[] = {shape_of(1, 1 << 20, 64), shape_of(10000, 1 << 20, 64),
                                  shape_of(1, TOPK_CLUSTER_WIDTH_MAX + 1, 64),
                                  shape_of(1, 1 << 20, 64)};
    struct topk_plan plan = plan_of(&h200, 1, 1 << 20, 64);
    const int32_t variant = plan.variant;
    shapes[3].options.dtype = TOPK_DTYPE_BFLOAT16;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        assert_int_equal(
            topk_plan_make_family(&shapes[i], &h200, TOPK_FAMILY_CLUSTER, variant, &plan, NULL),
            i == 0 ? TOPK_OK : TOPK_E_UNSUPPORTED);
    }
}

static void it_gives_no_block_of_a_cluster_a_slice_not_worth_it(void **state)
{
    (void)state;
    static const struct {
        int32_t rows, width, cluster_blocks;
    } expected[] = {{1, 32768, 8},  {8, 32768, 8},  {9, 32768, 6}, {17, 32768, 4},
                    {1, 65535, 8},  {1, 65536, 16}, {1, 24576, 6}, {1, 24575, 4},
                    {24, 16385, 4}, {25, 16385, 3}, {33, 16385, 2}};
    for (size_t i = 0; i < sizeof(expected) / sizeof(expected[0]); i++) {
        struct topk_plan plan = plan_by_value(&h200, expected[i].rows, expected[i].width, 2048);
        assert_family(&plan, TOPK_FAMILY_CLUSTER);
        assert_int_equal(plan.cluster_blocks, expected[i].cluster_blocks);
    }
}

/* What all blocks ask of memory at once is limited, and in large clusters what each does. */
static void it_gives_rings_no_more_than_memory_serves_evenly(void **state)
{
    (void)state;
    static const struct {
        int32_t rows, stages;
    } expected[] = {{4, 3},  {7, 3},  {8, 3},  {16, 3}, {24, 4},
                    {32, 4}, {48, 4}, {54, 4}, {55, 3}, {64, 3}};
    for (size_t i = 0; i < sizeof(expected) / sizeof(expected[0]); i++) {
        struct topk_plan plan = plan_of(&h200, expected[i].rows, 1 << 20, 2048);
        assert_family(&plan, TOPK_FAMILY_CLUSTER);
        assert_int_equal(plan.parameters[TOPK_PARAMETER_STAGES], expected[i].stages);
        assert_true(plan.num_blocks * plan.parameters[TOPK_PARAMETER_STAGES] <=
                    TOPK_CLUSTER_BATCHES_MAX);
    }
}

/* A batch is read while the next is on its way: two stages at least, and all in shared memory. */
static void it_gives_a_cluster_two_to_four_stages(void **state)
{
    (void)state;
    for (int32_t width = 1; width > 0 && width < 1 << 30; width = width * 3 + 1) {
        for (int32_t variant = 0; variant < 6; variant++) {
            for (int order = 0; order < 3; order++) {
                struct topk_shape shape = shape_of(700, width, 2048);
                shape.options.order = (enum topk_order)order;
                struct topk_plan plan;
                assert_int_equal(
                    topk_plan_make_family(&shape, &h200, TOPK_FAMILY_CLUSTER, variant, &plan, NULL),
                    TOPK_OK);
                assert_in_range(plan.parameters[TOPK_PARAMETER_STAGES], 2, TOPK_CLUSTER_STAGES_MAX);
                assert_true(plan.shared_bytes <= h200.shared_bytes_per_block);
                assert_int_equal(plan.num_blocks % plan.cluster_blocks, 0);
                assert_in_range(plan.num_blocks, 1, h200.num_multiprocessors);
            }
        }
    }
}

/* The blocks of a row's cluster in wide; 0: another family has it. */
static int32_t wide_blocks(enum topk_order order, enum topk_dtype dtype, int32_t rows,
                           int32_t width)
{
    struct topk_shape shape = shape_of(rows, width, 2048);
    struct topk_plan plan;
    shape.options.order = order;
    shape.options.dtype = dtype;
    assert_int_equal(topk_plan_make(&shape, &h200, &plan, NULL), TOPK_OK);
    if (plan.family != TOPK_FAMILY_WIDE) {
        return 0;
    }
    assert_int_equal(plan.num_blocks, rows * plan.cluster_blocks);
    return plan.cluster_blocks;
}

static void it_gives_few_rows_of_middle_width_to_wide(void **state)
{
    (void)state;
    static const struct {
        int32_t rows, width, any, by_position, any_half;
    } expected[] = {
        {1, 4096, 0, 0, 0},      {1, 4097, 4, 4, 4},     {4, 8192, 4, 4, 4},
        {5, 8192, 0, 0, 0},      {1, 8193, 8, 8, 8},     {12, 16384, 8, 8, 8},
        {12, 32768, 8, 8, 8},    {13, 16384, 4, 4, 4},   {24, 16384, 4, 4, 4},
        {25, 16384, 0, 0, 0},    {25, 16385, 3, 3, 3},   {16, 36864, 6, 6, 6},
        {17, 32768, 4, 4, 4},    {24, 32768, 4, 4, 4},   {25, 32768, 3, 3, 3},
        {32, 36864, 3, 3, 3},    {33, 32768, 2, 0, 2},   {66, 32768, 2, 0, 2},
        {67, 32768, 0, 0, 0},    {17, 32769, 4, 4, 4},   {24, 49152, 4, 4, 4},
        {24, 65536, 4, 0, 4},    {25, 65536, 3, 0, 0},   {32, 73728, 3, 0, 0},
        {33, 65536, 0, 0, 0},    {7, 65536, 16, 16, 16}, {8, 65536, 6, 6, 6},
        {16, 73728, 6, 6, 6},    {12, 73729, 8, 8, 8},   {12, 131072, 8, 8, 8},
        {13, 131072, 6, 0, 0},   {16, 147456, 6, 0, 0},  {16, 147457, 0, 0, 0},
        {17, 131072, 0, 0, 0},   {7, 65537, 16, 16, 16}, {7, 131073, 16, 16, 16},
        {7, 262144, 16, 16, 16}, {7, 262145, 16, 0, 0},  {1, 393216, 16, 0, 0},
        {1, 393217, 0, 0, 0},
    };
    for (size_t i = 0; i < sizeof(expected) / sizeof(expected[0]); i++) {
        const int32_t rows = expected[i].rows, width = expected[i].width;
        assert_int_equal(wide_blocks(TOPK_ORDER_ANY, TOPK_DTYPE_FLOAT32, rows, width),
                         expected[i].any);
        assert_int_equal(wide_blocks(TOPK_ORDER_INDEX, TOPK_DTYPE_FLOAT32, rows, width),
                         expected[i].by_position);
        assert_int_equal(wide_blocks(TOPK_ORDER_ANY, TOPK_DTYPE_BFLOAT16, rows, width),
                         expected[i].any_half);
        assert_int_equal(wide_blocks(TOPK_ORDER_VALUE, TOPK_DTYPE_FLOAT32, rows, width), 0);
    }
    assert_int_not_equal(plan_of(&h200, 1, 32768, (int32_t)TOPK_K_FAST_MAX + 1).family,
                         TOPK_FAMILY_WIDE);
    assert_int_not_equal(plan_of(&a100, 1, 32768, 2048).family, TOPK_FAMILY_WIDE);
    assert_int_equal(plan_of(&rtx, 1, 147456, 2048).family, TOPK_FAMILY_WIDE); /* up to 8 blocks */
    assert_int_not_equal(plan_of(&rtx, 1, 147457, 2048).family, TOPK_FAMILY_WIDE);
}

/* A policy that is for results in no order, or of float32, serves no others even when it is asked
 * for by its number. */
static void it_refuses_what_a_policy_of_wide_is_not_for(void **state)
{
    (void)state;
    struct topk_plan plan;
    char detail[TOPK_DETAIL_SIZE] = "";
    struct topk_shape shape = shape_of(1, 393216, 2048);
    assert_int_equal(topk_plan_make(&shape, &h200, &plan, NULL), TOPK_OK);
    const int32_t variant = plan.variant;
    assert_int_equal(topk_plan_make_family(&shape, &h200, TOPK_FAMILY_WIDE, variant, &plan, NULL),
                     TOPK_OK);
    shape.options.dtype = TOPK_DTYPE_FLOAT16;
    assert_int_equal(topk_plan_make_family(&shape, &h200, TOPK_FAMILY_WIDE, variant, &plan, detail),
                     TOPK_E_UNSUPPORTED);
    assert_non_null(strstr(detail, "wide"));
    shape.options.dtype = TOPK_DTYPE_FLOAT32;
    shape.options.order = TOPK_ORDER_INDEX;
    assert_int_equal(topk_plan_make_family(&shape, &h200, TOPK_FAMILY_WIDE, variant, &plan, detail),
                     TOPK_E_UNSUPPORTED);
    shape = shape_of(1, 393217, 2048);
    assert_int_equal(topk_plan_make_family(&shape, &h200, TOPK_FAMILY_WIDE, -1, &plan, detail),
                     TOPK_E_UNSUPPORTED);
    assert_non_null(strstr(detail, "wide"));
}

static void it_has_other_families_where_there_are_no_clusters(void **state)
{
    (void)state;
    struct topk_shape shape = shape_of(4, 100000, 2048);
    struct topk_plan plan;
    char detail[TOPK_DETAIL_SIZE] = "";
    const struct topk_device *without[] = {&a100, &rtx}; /* none; too little shared memory */
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(
            topk_plan_make_family(&shape, without[i], TOPK_FAMILY_CLUSTER, -1, &plan, detail),
            TOPK_E_UNSUPPORTED);
        assert_non_null(strstr(detail, "cluster"));
        plan = plan_by_value(without[i], 4, 30000, 2048);
        assert_family(&plan, TOPK_FAMILY_ROW);
    }
    plan = plan_by_value(&rtx, 4, 100000, 2048);
    assert_int_not_equal(plan.family, TOPK_FAMILY_CLUSTER);
    plan = plan_by_value(&b200, 4, 100000, 2048);
    assert_family(&plan, TOPK_FAMILY_CLUSTER);
    shape.k = (int32_t)TOPK_K_FAST_MAX + 1;
    assert_int_equal(topk_plan_make_family(&shape, &h200, TOPK_FAMILY_CLUSTER, -1, &plan, detail),
                     TOPK_E_UNSUPPORTED);
    struct topk_device small = h200; /* a slice of a device: fewer rows at once */
    small.num_multiprocessors = 33;
    plan = plan_by_value(&small, 1, 100000, 2048);
    assert_int_equal(plan.cluster_blocks, 16);
    plan = plan_by_value(&small, 2, 100000, 2048);
    assert_int_equal(plan.cluster_blocks, 8);
    plan = plan_by_value(&small, 3, 100000, 2048);
    assert_int_equal(plan.cluster_blocks, 6);
    plan = plan_by_value(&small, 17, 100000, 2048);
    assert_family(&plan, TOPK_FAMILY_SPLIT);
    small.num_multiprocessors = 14;
    assert_int_equal(topk_plan_make_family(&shape, &small, TOPK_FAMILY_CLUSTER, 0, &plan, detail),
                     TOPK_E_UNSUPPORTED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_gives_few_rows_the_largest_clusters_that_fit),
        cmocka_unit_test(it_gives_few_rows_of_middle_width_to_wide),
        cmocka_unit_test(it_refuses_what_a_policy_of_wide_is_not_for),
        cmocka_unit_test(it_gives_a_very_long_row_several_clusters),
        cmocka_unit_test(it_shares_no_row_that_several_clusters_cannot),
        cmocka_unit_test(it_gives_no_block_of_a_cluster_a_slice_not_worth_it),
        cmocka_unit_test(it_gives_rings_no_more_than_memory_serves_evenly),
        cmocka_unit_test(it_gives_a_cluster_two_to_four_stages),
        cmocka_unit_test(it_has_other_families_where_there_are_no_clusters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
