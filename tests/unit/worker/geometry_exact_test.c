/*
 * geometry in exact arithmetic: nothing that passes can touch a byte outside, write what is
 * read-only, or write twice. Every combination of small numbers, and random ones of any size.
 */
#include "geometry_scene.h"
#include "inputs.h"

typedef __int128 wide; /* exact where 64 bits are not */

/* ---- The tensors again, written from the contract ------------------------------------------- */

struct extent {
    bool present;
    wide rows, columns, stride, offset; /* elements, elements, elements, bytes */
    wide bytes;                         /* of an element */
};

static struct extent extent_of(const struct wire_select_request *select, int tensor)
{
    wide rows = select->rows;
    switch (tensor) {
    case GEOMETRY_SCORES:
        return (struct extent){true,
                               rows,
                               select->width,
                               select->row_stride,
                               select->scores.offset,
                               select->dtype == TOPK_DTYPE_FLOAT32 ? 4 : 2};
    case GEOMETRY_LENGTHS:
        return (struct extent){
            select->lengths_mode == WIRE_LENGTHS_REGION, rows, 1, 1, select->lengths.offset, 4};
    case GEOMETRY_PAGE_TABLE:
        return (struct extent){select->page_table.region != 0, rows,
                               select->page_table_width,       select->page_table_stride,
                               select->page_table.offset,      4};
    case GEOMETRY_ROW_OFFSETS:
        return (struct extent){select->row_offsets.region != 0, rows, 1, 1,
                               select->row_offsets.offset,      4};
    case GEOMETRY_INDICES:
        return (struct extent){true, rows, select->k, select->index_stride, select->indices.offset,
                               4};
    default:
        return (struct extent){select->values.region != 0, rows, select->k, select->value_stride,
                               select->values.offset,      4};
    }
}

static bool extent_inside(const struct extent *extent, wide length)
{
    if (extent->rows == 0)
        return extent->offset <= length;
    wide first = extent->offset, row_bytes = extent->columns * extent->bytes;
    wide last_row = extent->offset + (extent->rows - 1) * extent->stride * extent->bytes;
    return first >= 0 && last_row >= 0 && first + row_bytes <= length &&
           last_row + row_bytes <= length;
}

/* By brute force over rows; for small extents of one object. */
static bool extents_meet(const struct extent *a, wide a_base, const struct extent *b, wide b_base)
{
    for (wide i = 0; i < a->rows; i++) {
        for (wide j = 0; j < b->rows; j++) {
            wide a_begin = a_base + a->offset + i * a->stride * a->bytes;
            wide b_begin = b_base + b->offset + j * b->stride * b->bytes;
            if (a_begin < b_begin + b->columns * b->bytes &&
                b_begin < a_begin + a->columns * a->bytes)
                return true;
        }
    }
    return false;
}

static bool same_object(const struct geometry_region *a, const struct geometry_region *b)
{
    return a->object[0] == b->object[0] && a->object[1] == b->object[1];
}

/* What must hold of a request that passed; and of the arguments made from it. */
static void expect_safe(const struct scene *scene, const struct geometry *geometry)
{
    for (int tensor = 0; tensor < GEOMETRY_TENSOR_COUNT; tensor++) {
        struct extent extent = extent_of(&scene->select, tensor);
        const struct geometry_region *region = &scene->regions[tensor];
        if (!extent.present)
            continue;
        assert_true(region->present);
        assert_true(extent_inside(&extent, (wide)region->length));
        assert_true(!geometry_tensor_is_output((enum geometry_tensor)tensor) || region->writable);
        assert_true((region->base + (uint64_t)extent.offset) % (uint64_t)extent.bytes == 0);
        assert_true(geometry->spans[tensor].present);
        if (extent.rows > 0)
            assert_true(geometry->spans[tensor].end <= region->length);
    }
    uintptr_t addresses[GEOMETRY_TENSOR_COUNT];
    for (int tensor = 0; tensor < GEOMETRY_TENSOR_COUNT; tensor++)
        addresses[tensor] = 0x10000u * (uintptr_t)(tensor + 1) * 4u;
    struct topk_args args;
    geometry_args(&scene->select, geometry, addresses, &args);
    assert_int_equal((uintptr_t)args.scores,
                     addresses[GEOMETRY_SCORES] + scene->select.scores.offset);
    if (args.num_rows > 1) {
        assert_true(args.row_stride == scene->select.row_stride);
        assert_true(args.index_stride == scene->select.index_stride);
    }
    struct topk_options options = geometry_options(&scene->select);
    char detail[TOPK_DETAIL_SIZE];
    /* The selection library, which checks again, finds nothing. */
    if (topk_args_check(&args, &options, detail) != TOPK_OK)
        fail_msg("topk_args_check: %s", detail);
}

static bool outputs_overlap(const struct scene *scene)
{
    for (int out = GEOMETRY_INDICES; out <= GEOMETRY_VALUES; out++) {
        struct extent a = extent_of(&scene->select, out);
        for (int other = 0; other < GEOMETRY_TENSOR_COUNT && a.present; other++) {
            struct extent b = extent_of(&scene->select, other);
            if (other != out && b.present &&
                same_object(&scene->regions[out], &scene->regions[other]) &&
                extents_meet(&a, (wide)scene->regions[out].base, &b,
                             (wide)scene->regions[other].base))
                return true;
        }
    }
    return false;
}

/* ---- Tests ----------------------------------------------------------------------------------- */

static void what_fits_exactly_passes(void **state)
{
    (void)state;
    struct scene scene = plain_scene();
    struct geometry geometry;
    assert_int_equal(check(&scene, &geometry), TOPKD_OK);
    expect_safe(&scene, &geometry);
}

/* Every combination of small numbers: the verdict is right in both directions. */
static void exhaustive_of(enum topk_dtype dtype)
{
    uint64_t num_passed = 0, num_overlaps = 0;
    for (uint32_t rows = 0; rows <= 3; rows++)
        for (uint32_t width = 1; width <= 3; width++)
            for (uint32_t k = 1; k <= 2; k++)
                for (int64_t row_stride = 0; row_stride <= 4; row_stride++)
                    for (int64_t index_stride = 0; index_stride <= 4; index_stride++)
                        for (uint64_t base = 0; base <= 40; base += 4)
                            for (uint64_t length = 8; length <= 56; length += 4) {
                                struct scene scene = plain_scene();
                                struct geometry geometry;
                                scene.select.dtype = (uint8_t)dtype;
                                scene.select.rows = rows;
                                scene.select.width = width;
                                scene.select.k = k;
                                scene.select.row_stride = row_stride;
                                scene.select.index_stride = index_stride;
                                scene.select.lengths_mode = WIRE_LENGTHS_ALL;
                                scene.select.page_table.region = 0;
                                scene.select.row_offsets.region = 0;
                                scene.select.values.region = 0;
                                use(&scene, GEOMETRY_SCORES, 1, 0, 44);
                                use(&scene, GEOMETRY_INDICES, 1, base, length);
                                enum topkd_status status = check(&scene, &geometry);
                                bool has_bad_stride = rows > 1 && (row_stride < (int64_t)width ||
                                                                   index_stride < (int64_t)k);
                                struct extent in = extent_of(&scene.select, GEOMETRY_SCORES);
                                struct extent out = extent_of(&scene.select, GEOMETRY_INDICES);
                                if (rows < 2)
                                    in.stride = out.stride = 4;
                                bool is_inside =
                                    extent_inside(&in, 44) && extent_inside(&out, (wide)length);
                                bool meets = extents_meet(&in, 0, &out, (wide)base);
                                if (status == TOPKD_OK) {
                                    num_passed++;
                                    assert_false(has_bad_stride);
                                    assert_true(is_inside);
                                    assert_false(meets);
                                    expect_safe(&scene, &geometry);
                                } else if (has_bad_stride) {
                                    assert_true(status == TOPKD_E_INVALID ||
                                                status == TOPKD_E_OUT_OF_RANGE);
                                } else if (!is_inside) {
                                    assert_int_equal(status, TOPKD_E_OUT_OF_RANGE);
                                } else {
                                    assert_int_equal(status, TOPKD_E_OVERLAP);
                                    num_overlaps++;
                                    /* Exact where the pitches agree; else it may be careful. */
                                    assert_true(meets ||
                                                (rows > 1 && row_stride * (int64_t)in.bytes !=
                                                                 index_stride * 4));
                                }
                            }
    assert_true(num_passed > 10000);
    assert_true(num_overlaps > 1000);
}

static void exhaustive_small(void **state)
{
    (void)state;
    exhaustive_of(TOPK_DTYPE_FLOAT32);
    exhaustive_of(TOPK_DTYPE_FLOAT16);
}

static uint64_t pick(struct inputs_rng *rng)
{
    /* Numbers around every power of two, small ones more often. */
    uint32_t shift =
        inputs_rng_below(rng, 2) ? inputs_rng_below(rng, 12) : inputs_rng_below(rng, 64);
    uint64_t value = (UINT64_C(1) << shift) + inputs_rng_below(rng, 9) - 4;
    return inputs_rng_below(rng, 8) == 0 ? inputs_rng_next(rng) >> shift : value;
}

/* Random requests of any size: what passes is safe in exact arithmetic. */
static void random_big(void **state)
{
    (void)state;
    struct inputs_rng rng = inputs_rng_of(inputs_run_seed(), 1);
    uint64_t num_passed = 0, num_big = 0;
    for (int round = 0; round < 400000; round++) {
        struct scene scene = plain_scene();
        struct geometry geometry;
        struct wire_select_request *select = &scene.select;
        select->rows = (uint32_t)pick(&rng);
        select->width = (uint32_t)pick(&rng);
        select->k = 1 + (uint32_t)(pick(&rng) % TOPK_K_MAX);
        select->dtype = (uint8_t)inputs_rng_below(&rng, TOPK_DTYPE_COUNT);
        select->row_stride = (int64_t)pick(&rng);
        select->index_stride = (int64_t)pick(&rng);
        select->value_stride = (int64_t)pick(&rng);
        select->page_table_width = (uint32_t)pick(&rng);
        select->page_table_stride = (int64_t)pick(&rng);
        select->page_size_log2 = inputs_rng_below(&rng, 34);
        select->lengths_mode = inputs_rng_below(&rng, 2) ? WIRE_LENGTHS_REGION : WIRE_LENGTHS_ALL;
        for (int tensor = 0; tensor < GEOMETRY_TENSOR_COUNT; tensor++) {
            uint64_t base = pick(&rng);
            uint64_t length = pick(&rng) >> 2; /* objects end below 2^63 bytes (off_t) */
            base >>= 2;
            use(&scene, tensor, 1 + inputs_rng_below(&rng, 8), base & ~UINT64_C(3), length);
            ref_of(select, tensor)->offset = inputs_rng_below(&rng, 2) ? 0 : pick(&rng);
            scene.regions[tensor].writable = inputs_rng_below(&rng, 8) != 0;
        }
        if (inputs_rng_below(&rng, 2))
            select->page_table.region = 0;
        if (inputs_rng_below(&rng, 2))
            select->row_offsets.region = 0;
        if (inputs_rng_below(&rng, 2))
            select->values.region = 0;
        if (inputs_rng_below(&rng, 2)) /* strides that have a chance */
            select->row_stride = (int64_t)select->width + inputs_rng_below(&rng, 3);
        if (inputs_rng_below(&rng, 2))
            select->index_stride = (int64_t)select->k + inputs_rng_below(&rng, 3);
        if (check(&scene, &geometry) != TOPKD_OK)
            continue;
        num_passed++;
        num_big += (uint64_t)select->rows * select->width > UINT32_MAX;
        expect_safe(&scene, &geometry);
        if (select->rows < 64)
            assert_false(outputs_overlap(&scene));
    }
    assert_true(num_passed > 1000);
    assert_true(num_big > 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_fits_exactly_passes),
        cmocka_unit_test(exhaustive_small),
        cmocka_unit_test(random_big),
    };
    return cmocka_run_group_tests_name("geometry, exact", tests, NULL, NULL);
}
