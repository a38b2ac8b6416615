/*
 * geometry_scene.h - a request with the regions that it names, for tests of geometry.
 */
#ifndef TOPKD_TESTS_GEOMETRY_SCENE_H
#define TOPKD_TESTS_GEOMETRY_SCENE_H

#include "server/geometry.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>

/* A request with the regions that it names. */
struct scene {
    struct wire_select_request select;
    struct geometry_region regions[GEOMETRY_TENSOR_COUNT];
    struct geometry_limits limits;
};

static inline struct wire_region_ref *ref_of(struct wire_select_request *select, int tensor)
{
    struct wire_region_ref *refs[GEOMETRY_TENSOR_COUNT] = {
        [GEOMETRY_SCORES] = &select->scores,         [GEOMETRY_LENGTHS] = &select->lengths,
        [GEOMETRY_PAGE_TABLE] = &select->page_table, [GEOMETRY_ROW_OFFSETS] = &select->row_offsets,
        [GEOMETRY_INDICES] = &select->indices,       [GEOMETRY_VALUES] = &select->values};
    return refs[tensor];
}

static inline void use(struct scene *scene, int tensor, uint64_t object, uint64_t base,
                       uint64_t length)
{
    ref_of(&scene->select, tensor)->region = (uint64_t)tensor + 1;
    scene->regions[tensor] = (struct geometry_region){
        .present = true, .writable = true, .object = {1, object}, .base = base, .length = length};
}

/* rows 4, width 10, k 3; each tensor in an object of its own that fits exactly. */
static inline struct scene plain_scene(void)
{
    struct scene scene = {.select = {.rows = 4,
                                     .width = 10,
                                     .k = 3,
                                     .row_stride = 10,
                                     .index_stride = 3,
                                     .value_stride = 3,
                                     .page_table_stride = 5,
                                     .page_table_width = 5,
                                     .page_size_log2 = 1,
                                     .lengths_mode = WIRE_LENGTHS_REGION},
                          .limits = {.k_max = TOPK_K_MAX,
                                     .dtypes = 7,
                                     .rows_max = TOPK_ROWS_MAX,
                                     .width_max = TOPK_WIDTH_MAX,
                                     .arena_slot_bytes = 96}};
    use(&scene, GEOMETRY_SCORES, 1, 0, 160);
    use(&scene, GEOMETRY_LENGTHS, 2, 0, 16);
    use(&scene, GEOMETRY_PAGE_TABLE, 3, 0, 80);
    use(&scene, GEOMETRY_ROW_OFFSETS, 4, 0, 16);
    use(&scene, GEOMETRY_INDICES, 5, 0, 48);
    use(&scene, GEOMETRY_VALUES, 6, 0, 48);
    return scene;
}

static inline enum topkd_status check(const struct scene *scene, struct geometry *geometry)
{
    char detail[WIRE_DETAIL_SIZE] = "";
    enum topkd_status status =
        geometry_check(&scene->select, scene->regions, &scene->limits, geometry, detail);
    assert_true((status == TOPKD_OK) == (detail[0] == '\0'));
    return status;
}

#endif
