/* geometry: what is refused, and as what; geometry_exact_test has why nothing else need be. */
#include "geometry_scene.h"

static void expect(const struct scene *scene, enum topkd_status status)
{
    struct geometry geometry;
    assert_int_equal(check(scene, &geometry), status);
}

static void one_byte_less_is_out_of_range(void **state)
{
    (void)state;
    for (int tensor = 0; tensor < GEOMETRY_TENSOR_COUNT; tensor++) {
        struct scene scene = plain_scene();
        scene.regions[tensor].length--;
        expect(&scene, TOPKD_E_OUT_OF_RANGE);
        scene = plain_scene();
        ref_of(&scene.select, tensor)->offset = 4;
        expect(&scene, TOPKD_E_OUT_OF_RANGE);
        scene.regions[tensor].length += 4;
        expect(&scene, TOPKD_OK);
        ref_of(&scene.select, tensor)->offset = 2;
        expect(&scene, TOPKD_E_INVALID); /* not a multiple of 4 */
        scene.regions[tensor].base = 2;  /* of the region, but of the object it is */
        expect(&scene, TOPKD_OK);
        ref_of(&scene.select, tensor)->offset = UINT64_MAX - 1;
        expect(&scene, TOPKD_E_OUT_OF_RANGE);
        scene = plain_scene();
        scene.regions[tensor].present = false;
        expect(&scene, TOPKD_E_INVALID);
    }
}

static void limits_are_named(void **state)
{
    (void)state;
    struct scene scene = plain_scene();
    scene.limits.rows_max = 3;
    expect(&scene, TOPKD_E_INVALID);
    scene = plain_scene();
    scene.limits.width_max = 9;
    expect(&scene, TOPKD_E_INVALID);
    scene = plain_scene();
    scene.select.width = 0;
    expect(&scene, TOPKD_E_INVALID);
    scene = plain_scene();
    scene.select.k = 0;
    expect(&scene, TOPKD_E_INVALID);
    scene = plain_scene();
    scene.limits.k_max = 2;
    expect(&scene, TOPKD_E_UNSUPPORTED);
    scene = plain_scene();
    scene.select.order = 3;
    expect(&scene, TOPKD_E_INVALID);
    scene = plain_scene();
    scene.select.ties = 2;
    expect(&scene, TOPKD_E_INVALID);
    scene = plain_scene();
    scene.select.dtype = TOPK_DTYPE_COUNT;
    expect(&scene, TOPKD_E_INVALID);
    scene.select.dtype = TOPK_DTYPE_BFLOAT16;
    expect(&scene, TOPKD_OK);
    scene.limits.dtypes = 1u << TOPK_DTYPE_FLOAT32 | 1u << TOPK_DTYPE_FLOAT16;
    expect(&scene, TOPKD_E_UNSUPPORTED);
    scene = plain_scene();
    scene.select.page_table_width = 4; /* 4 * 2 < 10: CASES 18 */
    expect(&scene, TOPKD_E_OUT_OF_RANGE);
    scene = plain_scene();
    scene.select.page_size_log2 = TOPK_PAGE_SIZE_LOG2_MAX + 1;
    expect(&scene, TOPKD_E_INVALID);
    scene = plain_scene();
    scene.select.page_table_width = UINT32_MAX;
    expect(&scene, TOPKD_E_INVALID);
    scene = plain_scene();
    scene.select.lengths_mode = WIRE_LENGTHS_INLINE;
    scene.select.num_lengths = 3;
    expect(&scene, TOPKD_E_INVALID);
    scene.select.num_lengths = 4;
    expect(&scene, TOPKD_OK);
}

static void strides_below_a_row_are_refused(void **state)
{
    (void)state;
    struct scene scene = plain_scene();
    int64_t *strides[] = {&scene.select.row_stride, &scene.select.index_stride,
                          &scene.select.value_stride, &scene.select.page_table_stride};
    const int64_t bad[] = {0, -1, 1, INT64_MIN};
    for (size_t i = 0; i < sizeof(strides) / sizeof(strides[0]); i++) {
        int64_t good = *strides[i];
        for (size_t j = 0; j < sizeof(bad) / sizeof(bad[0]); j++) {
            *strides[i] = bad[j];
            expect(&scene, TOPKD_E_INVALID);
        }
        const int64_t far[] = {good + 1, INT64_MAX, INT64_C(1) << 60, (INT64_C(1) << 62) + 10};
        for (size_t j = 0; j < sizeof(far) / sizeof(far[0]); j++) {
            *strides[i] = far[j];
            expect(&scene, TOPKD_E_OUT_OF_RANGE); /* 64-bit sums that would wrap: CASES 28 */
        }
        *strides[i] = good;
    }
    /* With fewer than two rows no stride means anything. */
    for (uint32_t rows = 0; rows < 2; rows++) {
        scene.select.rows = rows;
        scene.select.row_stride = -7;
        scene.select.index_stride = INT64_MIN;
        expect(&scene, TOPKD_OK);
    }
}

static void outputs_need_a_writable_region_of_their_own(void **state)
{
    (void)state;
    struct scene scene = plain_scene();
    scene.regions[GEOMETRY_INDICES].writable = false;
    expect(&scene, TOPKD_E_READ_ONLY);
    scene = plain_scene();
    scene.regions[GEOMETRY_VALUES].writable = false;
    expect(&scene, TOPKD_E_READ_ONLY);
    scene = plain_scene();
    scene.regions[GEOMETRY_SCORES].writable = false;
    expect(&scene, TOPKD_OK);
    for (int input = 0; input < GEOMETRY_INDICES; input++) {
        scene = plain_scene();
        uint64_t end = scene.regions[input].length;
        use(&scene, GEOMETRY_INDICES, (uint64_t)input + 1, end - 4, 48); /* same object */
        expect(&scene, TOPKD_E_OVERLAP);
        use(&scene, GEOMETRY_INDICES, (uint64_t)input + 1, end, 48);
        expect(&scene, TOPKD_OK);
    }
    /* Side by side in one matrix [4, 6]: each row has 3 indices, then 3 values. */
    scene = plain_scene();
    use(&scene, GEOMETRY_INDICES, 5, 0, 96);
    use(&scene, GEOMETRY_VALUES, 5, 0, 96);
    scene.select.index_stride = 6;
    scene.select.value_stride = 6;
    expect(&scene, TOPKD_E_OVERLAP);
    scene.select.values.offset = 12;
    expect(&scene, TOPKD_OK);
    scene.select.values.offset = 8;
    expect(&scene, TOPKD_E_OVERLAP);
    /* In the padding behind each row of scores. */
    scene = plain_scene();
    scene.select.row_stride = 13;
    scene.select.index_stride = 13;
    use(&scene, GEOMETRY_SCORES, 1, 0, 208);
    use(&scene, GEOMETRY_INDICES, 1, 0, 208);
    scene.select.indices.offset = 40;
    expect(&scene, TOPKD_OK);
    scene.select.indices.offset = 36;
    expect(&scene, TOPKD_E_OVERLAP);
}

static void arena_results_fit_their_slot(void **state)
{
    (void)state;
    struct scene scene = plain_scene();
    struct geometry geometry;
    scene.select.output_mode = WIRE_OUTPUT_ARENA;
    expect(&scene, TOPKD_E_INVALID); /* a region is named as well */
    scene.select.indices.region = 0;
    scene.select.values.region = 0;
    assert_int_equal(check(&scene, &geometry), TOPKD_OK);
    assert_false(geometry.spans[GEOMETRY_VALUES].present);
    scene.select.want_values = true;
    assert_int_equal(check(&scene, &geometry), TOPKD_OK);
    assert_int_equal(geometry.spans[GEOMETRY_VALUES].offset, 48);
    assert_int_equal(geometry.spans[GEOMETRY_VALUES].end, 96);
    scene.limits.arena_slot_bytes = 95;
    expect(&scene, TOPKD_E_LIMIT);
    scene.limits.arena_slot_bytes = 0;
    expect(&scene, TOPKD_E_UNSUPPORTED);
    scene = plain_scene();
    scene.select.output_mode = WIRE_OUTPUT_ARENA;
    scene.select.indices.region = 0;
    scene.select.values.region = 0;
    scene.select.want_values = true;
    scene.select.rows = TOPK_ROWS_MAX;
    scene.select.k = TOPK_K_MAX;
    scene.select.lengths_mode = WIRE_LENGTHS_ALL;
    scene.select.page_table.region = 0;
    scene.select.row_offsets.region = 0;
    scene.regions[GEOMETRY_SCORES].length = UINT64_MAX / 2;
    expect(&scene, TOPKD_E_LIMIT); /* 2^31 * 2^14 * 8 does not wrap */
}

static void alignment_of_rows(void **state)
{
    (void)state;
    struct topk_args args = {.scores = (const float *)(uintptr_t)0x1000, .num_rows = 1};
    args.row_stride = 1;
    assert_int_equal(geometry_alignment_bytes(&args, TOPK_DTYPE_FLOAT32), 128);
    args.num_rows = 2;
    assert_int_equal(geometry_alignment_bytes(&args, TOPK_DTYPE_FLOAT32), 4);
    args.row_stride = 8;
    assert_int_equal(geometry_alignment_bytes(&args, TOPK_DTYPE_FLOAT32), 32);
    assert_int_equal(geometry_alignment_bytes(&args, TOPK_DTYPE_FLOAT16), 16);
    args.scores = (const void *)(uintptr_t)0x1004;
    assert_int_equal(geometry_alignment_bytes(&args, TOPK_DTYPE_FLOAT32), 4);
    args.row_stride = 7;
    assert_int_equal(geometry_alignment_bytes(&args, TOPK_DTYPE_BFLOAT16), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_byte_less_is_out_of_range),
        cmocka_unit_test(limits_are_named),
        cmocka_unit_test(strides_below_a_row_are_refused),
        cmocka_unit_test(outputs_need_a_writable_region_of_their_own),
        cmocka_unit_test(arena_results_fit_their_slot),
        cmocka_unit_test(alignment_of_rows),
    };
    return cmocka_run_group_tests_name("geometry", tests, NULL, NULL);
}
