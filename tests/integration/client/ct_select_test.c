/* ct_select_test.c - what the library itself refuses, each with the value and the limit. */
#include "fake.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* One daemon and two clients for all cases: nothing that is refused reaches it. */
static struct {
    struct fake fake;
    struct topkd_client *client, *other;
    struct matrix matrix, foreign;
    struct topkd_semaphore *semaphore, *foreign_semaphore;
    int32_t lengths[16];
} at;

static int set_up(void **state)
{
    (void)state;
    fake_init(&at.fake);
    fake_start(&at.fake, NULL);
    at.client = fake_client(&at.fake, NULL);
    at.other = fake_client(&at.fake, NULL);
    matrix_create(at.client, 4, 64, 8, &at.matrix);
    matrix_create(at.other, 4, 64, 8, &at.foreign);
    expect_ok(topkd_semaphore_create(at.client, &at.semaphore));
    expect_ok(topkd_semaphore_create(at.other, &at.foreign_semaphore));
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    topkd_client_close(at.client);
    topkd_client_close(at.other);
    fake_fini(&at.fake);
    return 0;
}

/* Both ways to ask refuse the request alike, and nothing is sent. */
static void refused(const struct topkd_select_request *request, enum topkd_status status,
                    const char *first, const char *second)
{
    struct topkd_result result;
    struct topkd_op *op;
    uint64_t before = fake_count(&at.fake, WIRE_SELECT);
    expect_status(status, topkd_select(at.client, request, &result));
    expect_detail(first, second, NULL);
    expect_status(status, topkd_select_start(at.client, request, NULL, &op));
    expect_detail(first, second, NULL);
    assert_int_equal(fake_count(&at.fake, WIRE_SELECT), before);
}

static void ct_30_the_valid_request_is_served(void **state)
{
    (void)state;
    struct topkd_result result;
    for (int arena = 0; arena <= 1; arena++) {
        struct topkd_select_request request = matrix_request(&at.matrix, arena);
        expect_ok(topkd_select(at.client, &request, &result));
        matrix_check(&at.matrix, &request, &result);
        assert_int_equal(result.num_retries, 0);
        assert_int_equal(result.lease != 0, arena);
        topkd_result_release(at.client, &result);
        assert_int_equal(result.lease, 0);
        topkd_result_release(at.client, &result); /* once more does nothing */
    }
}

static void ct_31_tensors(void **state)
{
    (void)state;
    struct topkd_select_request request = matrix_request(&at.matrix, true);
    request.scores.region = NULL;
    refused(&request, TOPKD_E_INVALID, "scores.region", "missing");
    request.scores.offset_bytes = 8;
    refused(&request, TOPKD_E_INVALID, "scores", "offset_bytes 8");
    request = matrix_request(&at.matrix, true);
    request.scores.offset_bytes = 6;
    refused(&request, TOPKD_E_INVALID, "scores", "6 is not a multiple of 4");
    request = matrix_request(&at.matrix, true);
    request.scores.region = topkd_buffer_region(at.foreign.buffer);
    refused(&request, TOPKD_E_NO_REGION, "scores", "another client");
    request = matrix_request(&at.matrix, false);
    request.indices.offset_bytes += 2;
    refused(&request, TOPKD_E_INVALID, "indices", "multiple of 4");
    request = matrix_request(&at.matrix, true);
    request.values.stride = 3;
    refused(&request, TOPKD_E_INVALID, "values", "stride 3");
}

static void ct_32_shape(void **state)
{
    (void)state;
    struct topkd_select_request request = matrix_request(&at.matrix, true);
    request.k = 0;
    refused(&request, TOPKD_E_INVALID, "k 0", "16384");
    request.k = 16385;
    refused(&request, TOPKD_E_INVALID, "k 16385", "16384");
    request = matrix_request(&at.matrix, true);
    request.width = 0;
    refused(&request, TOPKD_E_INVALID, "width 0", "2147483647");
    request.width = UINT32_MAX;
    refused(&request, TOPKD_E_INVALID, "width 4294967295", "2147483647");
    request = matrix_request(&at.matrix, true);
    request.rows = UINT32_MAX;
    refused(&request, TOPKD_E_INVALID, "rows 4294967295", "2147483647");
    request = matrix_request(&at.matrix, true);
    request.timeout_ms = 600001;
    refused(&request, TOPKD_E_INVALID, "timeout_ms 600001", "600000");
}

/* The daemon says nothing of types: it is of the time before there were any, and would take all
 * scores for float32. */
static void ct_39_a_daemon_of_before_gets_float32_alone(void **state)
{
    (void)state;
    struct topkd_client_info info;
    expect_ok(topkd_client_info(at.client, &info));
    assert_int_equal(info.dtypes, 1u << TOPKD_DTYPE_FLOAT32);
    struct topkd_select_request request = matrix_request(&at.matrix, true);
    request.dtype = TOPKD_DTYPE_FLOAT16;
    refused(&request, TOPKD_E_UNSUPPORTED, "dtype float16", "float32");
    request.dtype = TOPKD_DTYPE_BFLOAT16;
    refused(&request, TOPKD_E_UNSUPPORTED, "dtype bfloat16", "info.dtypes");
    request.dtype = (enum topkd_dtype)3;
    refused(&request, TOPKD_E_INVALID, "dtype 3", "BFLOAT16");
}

/* A request for scores of 16 bits that meets an older daemon after a restart is not sent to it. */
static void ct_40_types_are_looked_up_in_each_session(void **state)
{
    (void)state;
    struct fake fake;
    struct matrix matrix;
    struct topkd_result result;
    fake_init(&fake);
    fake_start(&fake, "dtypes=7", NULL);
    struct topkd_client *client = fake_client(&fake, NULL);
    matrix_create(client, 4, 64, 8, &matrix);
    struct topkd_select_request request = matrix_request(&matrix, true);
    request.dtype = TOPKD_DTYPE_FLOAT16;
    expect_ok(topkd_select(client, &request, &result));
    topkd_result_release(client, &result);
    uint64_t before = fake_count(&fake, WIRE_SELECT);
    fake_kill(&fake);
    fake_start(&fake, NULL);
    expect_status(TOPKD_E_UNSUPPORTED, topkd_select(client, &request, &result));
    expect_detail("dtype float16", NULL);
    assert_int_equal(fake_count(&fake, WIRE_SELECT), before);
    topkd_client_close(client);
    fake_fini(&fake);
}

static void ct_33_options(void **state)
{
    (void)state;
    struct topkd_select_request request = matrix_request(&at.matrix, true);
    request.order = (enum topkd_order)3;
    refused(&request, TOPKD_E_INVALID, "order 3", "VALUE");
    request.order = (enum topkd_order) - 1;
    refused(&request, TOPKD_E_INVALID, "order 4294967295", "VALUE");
    request = matrix_request(&at.matrix, true);
    request.ties = (enum topkd_ties)2;
    refused(&request, TOPKD_E_INVALID, "ties 2", "LOWEST");
    request = matrix_request(&at.matrix, true);
    request.deterministic = true;
    request.order = TOPKD_ORDER_VALUE;
    refused(&request, TOPKD_E_INVALID, "deterministic", "order");
}

static void ct_34_lengths(void **state)
{
    (void)state;
    struct topkd_select_request request = matrix_request(&at.matrix, true);
    request.lengths_mode = (enum topkd_lengths)4;
    refused(&request, TOPKD_E_INVALID, "lengths_mode 4", "REGION");
    request = matrix_request(&at.matrix, true);
    request.lengths_mode = TOPKD_LENGTHS_HOST;
    refused(&request, TOPKD_E_INVALID, "lengths_host is NULL", "HOST");
    request = matrix_request(&at.matrix, true);
    request.lengths_host = at.lengths;
    refused(&request, TOPKD_E_INVALID, "lengths_host is set", "not TOPKD_LENGTHS_HOST");
    request.lengths_mode = TOPKD_LENGTHS_HOST;
    request.rows = 8193;
    request.k = 1;
    refused(&request, TOPKD_E_INVALID, "8193", "8192");
    request = matrix_request(&at.matrix, true);
    request.lengths_mode = TOPKD_LENGTHS_REGION;
    refused(&request, TOPKD_E_INVALID, "lengths.region is missing", "REGION");
    request = matrix_request(&at.matrix, true);
    request.lengths.region = request.scores.region;
    refused(&request, TOPKD_E_INVALID, "lengths.region is set", "not TOPKD_LENGTHS_REGION");
    request.lengths_mode = TOPKD_LENGTHS_REGION;
    request.lengths.stride = 2;
    refused(&request, TOPKD_E_INVALID, "lengths.stride is 2", "dense");
}

static void ct_35_output(void **state)
{
    (void)state;
    struct topkd_select_request request = matrix_request(&at.matrix, true);
    request.values.region = request.scores.region;
    refused(&request, TOPKD_E_INVALID, "values.region", "indices.region");
    request = matrix_request(&at.matrix, false);
    request.want_values = true;
    refused(&request, TOPKD_E_INVALID, "want_values", "values.region");
    request = matrix_request(&at.matrix, true);
    request.rows = 8192;
    request.k = 33; /* 8192 * 33 * 4 bytes do not fit into a slot of 1 MiB */
    refused(&request, TOPKD_E_LIMIT, "1081344", "1048576");
    request.k = 17;
    request.want_values = true;
    refused(&request, TOPKD_E_LIMIT, "1114112", "1048576");
}

static void ct_36_transform(void **state)
{
    (void)state;
    struct topkd_select_request request = matrix_request(&at.matrix, true);
    request.page_size = 16;
    refused(&request, TOPKD_E_INVALID, "page_size 16", "page_table.region");
    request = matrix_request(&at.matrix, true);
    request.page_table_width = 4;
    refused(&request, TOPKD_E_INVALID, "page_table_width 4", "page_table.region");
    request.page_table.region = request.scores.region;
    refused(&request, TOPKD_E_INVALID, "page_size 0", "power of two");
    request.page_size = 24;
    refused(&request, TOPKD_E_INVALID, "page_size 24", "power of two");
    request = matrix_request(&at.matrix, true);
    request.row_offsets.region = request.scores.region;
    request.row_offsets.stride = 4;
    refused(&request, TOPKD_E_INVALID, "row_offsets.stride is 4", "dense");
}

static void ct_37_semaphores(void **state)
{
    (void)state;
    struct topkd_select_request request = matrix_request(&at.matrix, true);
    request.wait.semaphore = at.semaphore;
    refused(&request, TOPKD_E_INVALID, "wait.value is 0", "1");
    request.wait.semaphore = at.foreign_semaphore;
    request.wait.value = 1;
    refused(&request, TOPKD_E_INVALID, "wait.semaphore", "another client");
    request.wait.semaphore = NULL;
    refused(&request, TOPKD_E_INVALID, "wait.value 1", "without a semaphore");
    request = matrix_request(&at.matrix, true);
    expect_ok(topkd_semaphore_signal(at.semaphore, 7));
    request.signal.semaphore = at.semaphore;
    request.signal.value = 7;
    refused(&request, TOPKD_E_INVALID, "signal.value 7", "not above 7");
}

static void ct_38_arguments(void **state)
{
    (void)state;
    struct topkd_select_request request = matrix_request(&at.matrix, true);
    struct topkd_result result;
    struct topkd_op *op;
    expect_status(TOPKD_E_INVALID, topkd_select(at.client, NULL, &result));
    expect_detail("request is NULL", NULL);
    expect_status(TOPKD_E_INVALID, topkd_select(at.client, &request, NULL));
    expect_detail("result_p is NULL", NULL);
    expect_status(TOPKD_E_INVALID, topkd_select_start(at.client, &request, NULL, NULL));
    expect_detail("op_p is NULL", NULL);
    expect_status(TOPKD_E_INVALID, topkd_select_start(NULL, &request, NULL, &op));
    expect_detail("client is NULL", NULL);
}

static void ct_39_no_rows_is_an_answer(void **state)
{
    (void)state;
    struct topkd_select_request request = matrix_request(&at.matrix, true);
    struct topkd_result result;
    request.rows = 0;
    request.lengths_mode = TOPKD_LENGTHS_HOST; /* and no lengths */
    expect_ok(topkd_select(at.client, &request, &result));
    assert_int_equal(result.rows, 0);
    topkd_result_release(at.client, &result);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ct_30_the_valid_request_is_served),
        cmocka_unit_test(ct_31_tensors),
        cmocka_unit_test(ct_32_shape),
        cmocka_unit_test(ct_39_a_daemon_of_before_gets_float32_alone),
        cmocka_unit_test(ct_40_types_are_looked_up_in_each_session),
        cmocka_unit_test(ct_33_options),
        cmocka_unit_test(ct_34_lengths),
        cmocka_unit_test(ct_35_output),
        cmocka_unit_test(ct_36_transform),
        cmocka_unit_test(ct_37_semaphores),
        cmocka_unit_test(ct_38_arguments),
        cmocka_unit_test(ct_39_no_rows_is_an_answer),
    };
    return cmocka_run_group_tests_name("ct_select", tests, set_up, tear_down);
}
