/* region_cache: over a device that only counts, so that every path can be taken at will. */
#include "server/region_cache.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>

/* ---- A device without memory ------------------------------------------------------------------
 */

static struct {
    uint32_t num_open, num_mapped; /* now; the device is closed on other threads */
    uint32_t num_maps;             /* ever */
    bool map_fails;
    uint64_t faulted_key; /* mappings of this key have vanished */
} fake;

/* The first byte of the handle is the key, the second the size in units of 1000 bytes. */
static enum topkd_status fake_open(struct device *device,
                                   const struct wire_register_request *request,
                                   const struct peer *peer, struct device_memory **memory_p,
                                   char *detail)
{
    (void)device;
    (void)peer;
    (void)detail;
    struct device_memory *memory = calloc(1, sizeof(*memory));
    assert_non_null(memory);
    memory->key.words[0] = request->memory.handle[0];
    memory->size_bytes = request->memory.handle[1] * UINT64_C(1000);
    memory->is_writable = request->access == WIRE_ACCESS_READ_WRITE;
    __atomic_fetch_add(&fake.num_open, 1, __ATOMIC_RELAXED);
    *memory_p = memory;
    return TOPKD_OK;
}

static enum topkd_status fake_map(struct device *device, struct device_memory *memory, char *detail)
{
    (void)device;
    (void)detail;
    if (fake.map_fails)
        return TOPKD_E_MAP_FAILED;
    memory->address = 0x1000;
    __atomic_fetch_add(&fake.num_mapped, 1, __ATOMIC_RELAXED);
    fake.num_maps++;
    return TOPKD_OK;
}

static void fake_close(struct device *device, struct device_memory *memory)
{
    (void)device;
    if (memory->address != 0)
        __atomic_fetch_sub(&fake.num_mapped, 1, __ATOMIC_RELAXED);
    __atomic_fetch_sub(&fake.num_open, 1, __ATOMIC_RELAXED);
    free(memory);
}

static bool fake_faulted(const struct device_memory *memory)
{
    return memory->key.words[0] == fake.faulted_key;
}

static const struct device_ops fake_ops = {.memory_open = fake_open,
                                           .memory_map = fake_map,
                                           .memory_close = fake_close,
                                           .memory_faulted = fake_faulted};
static struct device fake_device = {.ops = &fake_ops};

static uint32_t count(const uint32_t *counter)
{
    return __atomic_load_n(counter, __ATOMIC_RELAXED);
}

/* ---- Tests ----------------------------------------------------------------------------------- */

static uv_loop_t loop;
static struct region_cache cache;
static const struct peer stranger = {.uid = 1, .gid = 1, .pid = 1};
static char detail[WIRE_DETAIL_SIZE];

static int setup(void **state)
{
    (void)state;
    memset(&fake, 0, sizeof(fake));
    fake.faulted_key = UINT64_MAX;
    region_cache_init(&cache, &loop, &fake_device, 10000);
    return uv_loop_init(&loop);
}

static int teardown(void **state)
{
    (void)state;
    uv_run(&loop, UV_RUN_DEFAULT);
    assert_int_equal(count(&fake.num_open), 0);
    assert_int_equal(count(&fake.num_mapped), 0);
    assert_int_equal(cache.mapped_bytes, 0);
    return uv_loop_close(&loop);
}

static struct wire_register_request request_of(uint8_t key, uint8_t thousands, uint64_t offset,
                                               uint64_t length)
{
    return (struct wire_register_request){.memory = {.handle = {key, thousands}},
                                          .offset = offset,
                                          .length = length,
                                          .access = WIRE_ACCESS_READ};
}

static enum topkd_status acquire(const struct wire_register_request *request,
                                 struct region_memory **memory_p)
{
    return region_cache_acquire(&cache, request, &stranger, memory_p, detail);
}

static void the_same_memory_is_mapped_once(void **state)
{
    (void)state;
    struct region_memory *a, *b, *c, *d;
    struct wire_register_request request = request_of(1, 2, 0, 2000);
    assert_int_equal(acquire(&request, &a), TOPKD_OK);
    request = request_of(1, 2, 500, 10);
    assert_int_equal(acquire(&request, &b), TOPKD_OK);
    assert_ptr_equal(a, b);
    request = request_of(2, 2, 0, 10);
    assert_int_equal(acquire(&request, &c), TOPKD_OK);
    assert_ptr_not_equal(a, c);
    request = request_of(1, 2, 0, 10);
    request.access = WIRE_ACCESS_READ_WRITE;
    assert_int_equal(acquire(&request, &d), TOPKD_OK);
    assert_ptr_not_equal(a, d); /* one that may be written is another mapping */
    assert_int_equal(fake.num_maps, 3);
    assert_int_equal(cache.mapped_bytes, 6000);
    region_cache_release(a);
    assert_int_equal(count(&fake.num_mapped), 3);
    region_cache_release(b);
    region_cache_release(c);
    region_cache_release(d);
    uv_run(&loop, UV_RUN_DEFAULT);
    assert_int_equal(count(&fake.num_mapped), 0);
}

/* The object has grown: the old mapping does not reach, so there is a second one. */
static void a_grown_object_is_mapped_again(void **state)
{
    (void)state;
    struct region_memory *a, *b, *c;
    struct wire_register_request request = request_of(1, 2, 0, 2000);
    assert_int_equal(acquire(&request, &a), TOPKD_OK);
    request = request_of(1, 3, 0, 3000);
    assert_int_equal(acquire(&request, &b), TOPKD_OK);
    assert_ptr_not_equal(a, b);
    request = request_of(1, 3, 2000, 1000);
    assert_int_equal(acquire(&request, &c), TOPKD_OK);
    assert_ptr_equal(b, c);
    region_cache_release(a);
    region_cache_release(b);
    region_cache_release(c);
}

static void a_vanished_mapping_is_not_hit(void **state)
{
    (void)state;
    struct region_memory *a, *b;
    struct wire_register_request request = request_of(7, 1, 0, 10);
    assert_int_equal(acquire(&request, &a), TOPKD_OK);
    fake.faulted_key = 7;
    assert_int_equal(acquire(&request, &b), TOPKD_OK);
    assert_ptr_not_equal(a, b);
    region_cache_release(a);
    region_cache_release(b);
}

static void refusals_leave_nothing_open(void **state)
{
    (void)state;
    struct region_memory *memory;
    static const struct {
        uint64_t offset, length;
        enum topkd_status status;
    } cases[] = {
        {0, 0, TOPKD_E_INVALID},
        {0, 2001, TOPKD_E_OUT_OF_RANGE},
        {2000, 1, TOPKD_E_OUT_OF_RANGE},
        {UINT64_MAX, 2, TOPKD_E_OUT_OF_RANGE},
        {UINT64_MAX - 1, UINT64_MAX, TOPKD_E_OUT_OF_RANGE},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct wire_register_request request = request_of(1, 2, cases[i].offset, cases[i].length);
        assert_int_equal(acquire(&request, &memory), cases[i].status);
        assert_int_equal(count(&fake.num_open), 0);
    }
    struct wire_register_request request = request_of(1, 2, 0, 10);
    request.memory.allocation_bytes = 2001;
    assert_int_equal(acquire(&request, &memory), TOPKD_E_OUT_OF_RANGE);
    fake.map_fails = true;
    request = request_of(1, 2, 0, 10);
    assert_int_equal(acquire(&request, &memory), TOPKD_E_MAP_FAILED);
    assert_int_equal(count(&fake.num_open), 0);
    /* CASES 24: this very process. */
    struct peer self = {.uid = 1, .gid = 1, .pid = getpid()};
    assert_int_equal(region_cache_acquire(&cache, &request, &self, &memory, detail),
                     TOPKD_E_SAME_PROCESS);
    assert_int_equal(count(&fake.num_open), 0);
}

/* Bytes count until the mapping is really gone, so that the limit holds for the address space. */
static void bytes_are_bounded(void **state)
{
    (void)state;
    struct region_memory *a, *b, *c;
    struct wire_register_request request = request_of(1, 6, 0, 1);
    assert_int_equal(acquire(&request, &a), TOPKD_OK);
    request = request_of(2, 4, 0, 1);
    assert_int_equal(acquire(&request, &b), TOPKD_OK); /* 10000 of 10000 */
    request = request_of(3, 1, 0, 1);
    assert_int_equal(acquire(&request, &c), TOPKD_E_LIMIT);
    request = request_of(1, 6, 100, 1);
    assert_int_equal(acquire(&request, &c), TOPKD_OK); /* nothing more is mapped */
    region_cache_release(c);
    region_cache_release(b);
    request = request_of(3, 1, 0, 1);
    assert_int_equal(acquire(&request, &c), TOPKD_E_LIMIT);
    uv_run(&loop, UV_RUN_DEFAULT);
    assert_int_equal(acquire(&request, &c), TOPKD_OK);
    region_cache_release(a);
    region_cache_release(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_same_memory_is_mapped_once, setup, teardown),
        cmocka_unit_test_setup_teardown(a_grown_object_is_mapped_again, setup, teardown),
        cmocka_unit_test_setup_teardown(a_vanished_mapping_is_not_hit, setup, teardown),
        cmocka_unit_test_setup_teardown(refusals_leave_nothing_open, setup, teardown),
        cmocka_unit_test_setup_teardown(bytes_are_bounded, setup, teardown),
    };
    return cmocka_run_group_tests_name("region cache", tests, NULL, NULL);
}
