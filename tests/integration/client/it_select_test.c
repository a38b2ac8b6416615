/*
 * it_select_test.c - selections through the real daemon, in every mode of the public request, each
 * checked by the oracle; and requests that the worker refuses, each with the value and the limit.
 */
#include "daemon.h"
#include "fake.h"
#include "inputs.h"
#include "oracle.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

enum { ROWS = 24, WIDTH = 4096, STRIDE = 4099, K_MAX = 2500, PAGE = 64, PAGES = WIDTH / PAGE };

/* Every tensor that a request can name, one after the other in one buffer; and their copy in
 * topk_args for the oracle. */
struct tensors {
    float *scores; /* [ROWS, STRIDE] */
    int32_t *lengths, *offsets, *pages, *indices;
    float *values;
    uint64_t scores_at, lengths_at, offsets_at, pages_at, indices_at, values_at, size;
};

static struct {
    struct daemon daemon;
    struct topkd_client *client;
    struct topkd_buffer *buffer;
    struct tensors t;
} at;

static uint64_t place(uint64_t *size, uint64_t bytes)
{
    uint64_t offset = *size;
    *size += (bytes + 7) / 4 * 4; /* odd alignments, at least a gap of one entry */
    return offset;
}

static int set_up(void **state)
{
    (void)state;
    struct tensors *t = &at.t;
    t->size = 4;
    t->scores_at = place(&t->size, sizeof(float) * ROWS * STRIDE);
    t->lengths_at = place(&t->size, sizeof(int32_t) * ROWS);
    t->offsets_at = place(&t->size, sizeof(int32_t) * ROWS);
    t->pages_at = place(&t->size, sizeof(int32_t) * ROWS * PAGES);
    t->indices_at = place(&t->size, sizeof(int32_t) * ROWS * K_MAX);
    t->values_at = place(&t->size, sizeof(float) * ROWS * K_MAX);
    daemon_init(&at.daemon);
    daemon_start(&at.daemon);
    at.client = daemon_client(&at.daemon, NULL);
    expect_ok(topkd_buffer_create(at.client, t->size, &at.buffer));
    uint8_t *base = topkd_buffer_data(at.buffer);
    t->scores = (float *)(void *)(base + t->scores_at);
    t->lengths = (int32_t *)(void *)(base + t->lengths_at);
    t->offsets = (int32_t *)(void *)(base + t->offsets_at);
    t->pages = (int32_t *)(void *)(base + t->pages_at);
    t->indices = (int32_t *)(void *)(base + t->indices_at);
    t->values = (float *)(void *)(base + t->values_at);
    inputs_fill_pages(inputs_run_seed(), ROWS, PAGES, PAGES, t->pages);
    for (int32_t i = 0; i < ROWS; i++) {
        t->offsets[i] = i * 100000 - 7;
    }
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    topkd_client_close(at.client);
    daemon_fini(&at.daemon);
    assert_false(has_buffers());
    return 0;
}

static struct inputs_spec fill(enum inputs_family family, int32_t k)
{
    struct inputs_spec spec = {.family = family,
                               .seed = inputs_run_seed(),
                               .num_rows = ROWS,
                               .width = WIDTH,
                               .row_stride = STRIDE,
                               .k = k};
    inputs_fill(&spec, at.t.scores);
    inputs_fill_lengths(&spec, INPUTS_LENGTHS_EDGES, at.t.lengths);
    return spec;
}

static struct topkd_tensor tensor(uint64_t offset, int64_t stride)
{
    return (struct topkd_tensor){topkd_buffer_region(at.buffer), offset, stride};
}

static struct topkd_select_request plain(uint32_t k)
{
    return (struct topkd_select_request){
        .scores = tensor(at.t.scores_at, STRIDE), .rows = ROWS, .width = WIDTH, .k = k};
}

/* What the oracle is to hold the result against. */
static struct topk_args args_of(const struct topkd_select_request *request,
                                const struct topkd_result *result)
{
    const int32_t *lengths = NULL;
    if (request->lengths_mode == TOPKD_LENGTHS_HOST) {
        lengths = request->lengths_host;
    } else if (request->lengths_mode == TOPKD_LENGTHS_REGION) {
        lengths = at.t.lengths;
    }
    return (struct topk_args){
        .scores = at.t.scores,
        .row_stride = STRIDE,
        .lengths = lengths,
        .indices = (int32_t *)(uintptr_t)result->indices,
        .index_stride = result->index_stride,
        .values = (float *)(uintptr_t)result->values,
        .value_stride = result->value_stride,
        .page_table = request->page_size ? at.t.pages : NULL,
        .page_table_stride = PAGES,
        .row_offsets = request->row_offsets.region ? at.t.offsets : NULL,
        .num_rows = (int32_t)request->rows,
        .width = (int32_t)request->width,
        .length_all = request->lengths_mode == TOPKD_LENGTHS_ALL ? request->length_all
                                                                 : (int32_t)request->width,
        .k = (int32_t)request->k,
        .page_table_width = request->page_size ? PAGES : 0,
        .page_size_log2 = request->page_size ? (uint32_t)__builtin_ctz(request->page_size) : 0,
    };
}

static void select_and_check(const struct topkd_select_request *request)
{
    struct topkd_result result;
    expect_ok(topkd_select(at.client, request, &result));
    assert_int_equal(result.rows, request->rows);
    assert_int_equal(result.k, request->k);
    assert_non_null(result.indices);
    assert_true((result.values != NULL) == (request->want_values || request->values.region));
    assert_true(result.run_ns > 0);
    struct topk_args args = args_of(request, &result);
    struct topk_options options = {.order = (enum topk_order)request->order,
                                   .ties = (enum topk_ties)request->ties,
                                   .dtype = (enum topk_dtype)request->dtype};
    if (request->deterministic) {
        options.order = TOPK_ORDER_INDEX;
        options.ties = TOPK_TIES_LOWEST;
    }
    char detail[ORACLE_DETAIL_SIZE];
    if (!oracle_check(&args, &options, detail)) {
        print_error("seed=%llu k=%u: %s\n", (unsigned long long)inputs_run_seed(), request->k,
                    detail);
        fail();
    }
    topkd_result_release(at.client, &result);
}

/* ---- Modes ----------------------------------------------------------------------------------- */

static void it_10_every_family_with_every_option(void **state)
{
    (void)state;
    static const uint32_t ks[] = {1, 64, 2048, K_MAX};
    for (int family = 0; family < INPUTS_FAMILY_COUNT; family++) {
        uint32_t k = ks[family % 4];
        (void)fill((enum inputs_family)family, (int32_t)k);
        for (int order = TOPKD_ORDER_ANY; order <= TOPKD_ORDER_VALUE; order++) {
            struct topkd_select_request request = plain(k);
            request.order = (enum topkd_order)order;
            request.ties = order == TOPKD_ORDER_INDEX ? TOPKD_TIES_LOWEST : TOPKD_TIES_ANY;
            request.want_values = true;
            select_and_check(&request);
        }
        struct topkd_select_request request = plain(k);
        request.deterministic = true;
        select_and_check(&request);
    }
}

/* Scores of 16 bits where those of 32 were, and from an odd multiple of 2 bytes on. */
static void it_10_scores_of_16_bits(void **state)
{
    (void)state;
    struct topkd_client_info info;
    expect_ok(topkd_client_info(at.client, &info));
    assert_int_equal(info.dtypes, 7);
    for (int family = 0; family < INPUTS_FAMILY_COUNT; family++) {
        struct inputs_spec spec = fill((enum inputs_family)family, 700);
        for (int run = 0; run < 4; run++) {
            struct topkd_select_request request = plain(700);
            request.dtype = run % 2 == 0 ? TOPKD_DTYPE_FLOAT16 : TOPKD_DTYPE_BFLOAT16;
            request.order = (enum topkd_order)((family + run) % 3);
            request.ties = TOPKD_TIES_LOWEST;
            request.want_values = true;
            request.lengths_mode = TOPKD_LENGTHS_REGION;
            request.lengths = tensor(at.t.lengths_at, 0);
            uint64_t shift = run < 2 ? 0 : 2;
            request.scores.offset_bytes += shift;
            float *base = at.t.scores;
            at.t.scores = (float *)(void *)((uint8_t *)base + shift);
            inputs_fill_typed(&spec, (enum topk_dtype)request.dtype, at.t.lengths, at.t.scores);
            select_and_check(&request);
            at.t.scores = base;
        }
    }
}

static void it_11_lengths_in_every_mode(void **state)
{
    (void)state;
    int32_t lengths_host[ROWS];
    (void)fill(INPUTS_NORMAL, 300);
    struct topkd_select_request request = plain(300);
    select_and_check(&request);
    static const int32_t lengths_all[] = {-5, 0, 1, 299, 300, 301, WIDTH, WIDTH + 9, INT32_MAX};
    for (size_t i = 0; i < sizeof(lengths_all) / sizeof(lengths_all[0]); i++) {
        request.lengths_mode = TOPKD_LENGTHS_ALL;
        request.length_all = lengths_all[i];
        select_and_check(&request);
    }
    request.lengths_mode = TOPKD_LENGTHS_REGION;
    request.lengths = tensor(at.t.lengths_at, 0);
    select_and_check(&request);
    request = plain(300);
    request.lengths_mode = TOPKD_LENGTHS_HOST;
    for (int32_t i = 0; i < ROWS; i++) {
        lengths_host[i] = i * 200 - 100;
    }
    request.lengths_host = lengths_host;
    select_and_check(&request);
}

static void it_12_output_in_every_place(void **state)
{
    (void)state;
    (void)fill(INPUTS_TIES, 100);
    struct topkd_select_request request = plain(100);
    request.indices = tensor(at.t.indices_at, 0); /* dense */
    select_and_check(&request);
    request.values = tensor(at.t.values_at, 0);
    select_and_check(&request);
    request.indices.stride = 103;
    request.values.stride = 101;
    memset(at.t.indices, 0x55, sizeof(int32_t) * ROWS * K_MAX);
    select_and_check(&request);
    for (int32_t row = 0; row < ROWS; row++) {
        for (int32_t i = 100; i < 103; i++) { /* between the rows nothing was written */
            assert_int_equal(at.t.indices[row * 103 + i], 0x55555555);
        }
    }
    request = plain(100); /* the arena */
    select_and_check(&request);
    request.want_values = true;
    select_and_check(&request);
}

static void it_13_page_table_and_row_offsets(void **state)
{
    (void)state;
    (void)fill(INPUTS_INDEXER, 200);
    struct topkd_select_request request = plain(200);
    request.lengths_mode = TOPKD_LENGTHS_REGION;
    request.lengths = tensor(at.t.lengths_at, 0);
    request.row_offsets = tensor(at.t.offsets_at, 0);
    select_and_check(&request);
    request.page_table = tensor(at.t.pages_at, 0);
    request.page_table_width = PAGES;
    request.page_size = PAGE;
    request.want_values = true;
    select_and_check(&request);
    request.row_offsets = (struct topkd_tensor){0};
    request.order = TOPKD_ORDER_VALUE;
    select_and_check(&request);
}

static void it_14_edges_of_the_shape(void **state)
{
    (void)state;
    (void)fill(INPUTS_NORMAL, 50);
    struct topkd_select_request request = plain(50);
    request.rows = 0;
    struct topkd_result result;
    expect_ok(topkd_select(at.client, &request, &result));
    assert_int_equal(result.rows, 0);
    topkd_result_release(at.client, &result);
    request = plain(50);
    request.rows = 1;
    select_and_check(&request);
    request.width = 1;
    select_and_check(&request);
    request.width = 49; /* below k */
    select_and_check(&request);
    request = plain(50);
    request.scores.offset_bytes += 4; /* one score later in every row */
    request.width = WIDTH - 1;
    at.t.scores++;
    select_and_check(&request);
    at.t.scores--;
}

/* ---- Refusals of the worker ------------------------------------------------------------------ */

static void refused(const struct topkd_select_request *request, enum topkd_status status,
                    const char *first, const char *second)
{
    struct topkd_result result;
    expect_status(status, topkd_select(at.client, request, &result));
    expect_detail(first, second, NULL);
}

static void it_20_geometry_against_the_region(void **state)
{
    (void)state;
    char size[32];
    (void)snprintf(size, sizeof(size), "%llu", (unsigned long long)at.t.size);
    struct topkd_select_request request = plain(10);
    request.scores.stride = WIDTH - 1;
    refused(&request, TOPKD_E_INVALID, "4095", "4096");
    request.scores.stride = -STRIDE;
    refused(&request, TOPKD_E_INVALID, "-4099", "4096");
    request = plain(10);
    request.rows = 1000;
    refused(&request, TOPKD_E_OUT_OF_RANGE, "scores", size);
    request = plain(10);
    request.scores.stride = INT64_MAX / 4;
    refused(&request, TOPKD_E_OUT_OF_RANGE, "scores", size);
    request = plain(10);
    request.scores.offset_bytes = UINT64_MAX - 3;
    refused(&request, TOPKD_E_OUT_OF_RANGE, "scores", size);
    request = plain(10);
    request.indices = tensor(at.t.size - 4, 0);
    refused(&request, TOPKD_E_OUT_OF_RANGE, "indices", size);
    request.indices = tensor(at.t.indices_at, 9);
    refused(&request, TOPKD_E_INVALID, "9", "10");
    request = plain(10);
    request.indices = tensor(at.t.scores_at + 400, 0);
    refused(&request, TOPKD_E_OVERLAP, "indices", "scores");
    request = plain(10);
    request.indices = tensor(at.t.indices_at, 0);
    request.values = tensor(at.t.indices_at + 4, 0);
    refused(&request, TOPKD_E_OVERLAP, "indices", "values");
    request = plain(10);
    request.page_table = tensor(at.t.pages_at, 0);
    request.page_table_width = PAGES - 1; /* ends before the rows do */
    request.page_size = PAGE;
    refused(&request, TOPKD_E_OUT_OF_RANGE, "63", "4096");
    request = plain(10); /* and the worker is none the worse for it */
    (void)fill(INPUTS_NORMAL, 10);
    select_and_check(&request);
}

static void it_21_memory_of_the_program_itself(void **state)
{
    (void)state;
    char name[64];
    struct topkd_region *input, *output;
    struct topkd_result result;
    (void)snprintf(name, sizeof(name), "/topkd-test-%d", (int)getpid());
    int fd = shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, 12288), 0);
    float *memory = mmap(NULL, 12288, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_ptr_not_equal(memory, MAP_FAILED);
    close(fd);
    for (int i = 0; i < 1024; i++) {
        memory[1024 + i] = (float)((i * 37) % 1024);
    }
    struct topkd_shm shm = {name, 4096, 4096, TOPKD_ACCESS_READ};
    expect_ok(topkd_region_register_shm(at.client, &shm, &input));
    shm = (struct topkd_shm){name, 8192, 4096, TOPKD_ACCESS_READ_WRITE};
    expect_ok(topkd_region_register_shm(at.client, &shm, &output));
    struct topkd_select_request request = {.scores = {.region = input},
                                           .indices = {.region = output},
                                           .rows = 1,
                                           .width = 1024,
                                           .k = 3,
                                           .order = TOPKD_ORDER_VALUE};
    expect_ok(topkd_select(at.client, &request, &result));
    assert_null(result.indices); /* the program knows where it mapped it */
    const int32_t *indices = (const int32_t *)(const void *)(memory + 2048);
    for (int i = 0; i < 3; i++) {
        assert_true(memory[1024 + indices[i]] == (float)(1023 - i));
    }
    request.width = 1025;
    refused(&request, TOPKD_E_OUT_OF_RANGE, "scores", "4096");
    request.width = 512;
    request.indices = (struct topkd_tensor){.region = input, .offset_bytes = 2048};
    refused(&request, TOPKD_E_READ_ONLY, "indices", "read");
    /* Two regions of one object: the worker sees that they are the same bytes. */
    struct topkd_region *same;
    shm = (struct topkd_shm){name, 4096, 4096, TOPKD_ACCESS_READ_WRITE};
    expect_ok(topkd_region_register_shm(at.client, &shm, &same));
    request.indices = (struct topkd_tensor){.region = same};
    refused(&request, TOPKD_E_OVERLAP, "indices", "scores");
    expect_ok(topkd_region_unregister(same));
    expect_ok(topkd_region_unregister(output));
    expect_ok(topkd_region_unregister(input));
    assert_int_equal(shm_unlink(name), 0);
    (void)munmap(memory, 12288);
}

static void it_22_deadlines_of_the_worker(void **state)
{
    (void)state;
    struct topkd_semaphore *never;
    struct topkd_result result;
    expect_ok(topkd_semaphore_create(at.client, &never));
    struct topkd_select_request request = plain(10);
    request.wait = (struct topkd_semaphore_point){never, 1};
    request.timeout_ms = 200;
    uint64_t before_ms = now_ms();
    expect_status(TOPKD_E_TIMEOUT, topkd_select(at.client, &request, &result));
    assert_in_range(now_ms() - before_ms, 190, LATE_MS);
    topkd_semaphore_destroy(never);
    request = plain(10);
    select_and_check(&request);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_10_every_family_with_every_option),
        cmocka_unit_test(it_10_scores_of_16_bits),
        cmocka_unit_test(it_11_lengths_in_every_mode),
        cmocka_unit_test(it_12_output_in_every_place),
        cmocka_unit_test(it_13_page_table_and_row_offsets),
        cmocka_unit_test(it_14_edges_of_the_shape),
        cmocka_unit_test(it_20_geometry_against_the_region),
        cmocka_unit_test(it_21_memory_of_the_program_itself),
        cmocka_unit_test(it_22_deadlines_of_the_worker),
    };
    return cmocka_run_group_tests_name("it_client_select", tests, set_up, tear_down);
}
