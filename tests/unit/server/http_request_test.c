/* The head of an HTTP request: whole, in pieces, and wrong in every way. */
#include "server/http_request.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char good[] = "GET /metrics?x=/y HTTP/1.1\r\nHost: 127.0.0.1:9\r\nAccept: */*\r\n\r\n";

/* From memory of exactly that size, so that a read beyond it shows. */
static uint32_t parse(const char *bytes, size_t size, struct http_request *request)
{
    char *copy = malloc(size > 0 ? size : 1);
    assert_non_null(copy);
    memcpy(copy, bytes, size);
    uint32_t status = http_request_parse(copy, size, request);
    free(copy);
    return status;
}

static void hr_01_whole_and_in_pieces(void **state)
{
    struct http_request request = {.path = "untouched"};
    (void)state;
    for (size_t size = 0; size < sizeof good - 1; size++)
        assert_int_equal(parse(good, size, &request), 0);
    assert_string_equal(request.path, "untouched");
    assert_int_equal(parse(good, sizeof good - 1, &request), 200);
    assert_string_equal(request.path, "/metrics");
    assert_false(request.is_head);
    assert_int_equal(parse("HEAD / HTTP/1.0\r\n\r\n", 19, &request), 200);
    assert_string_equal(request.path, "/");
    assert_true(request.is_head);
}

/* Cut short at any byte a head is never taken for a whole one; with any byte changed it is answered
 * or refused, or waits for more. */
static void hr_02_every_byte_changed(void **state)
{
    char bytes[sizeof good - 1];
    uint32_t num_good = 0, num_refused = 0;
    (void)state;
    for (size_t i = 0; i < sizeof bytes; i++)
        for (int byte = 0; byte < 256; byte++) {
            struct http_request request;
            memcpy(bytes, good, sizeof bytes);
            bytes[i] = (char)byte;
            uint32_t status = parse(bytes, sizeof bytes, &request);
            assert_true(status == 0 || status == 200 || status == 400 || status == 405 ||
                        status == 413 || status == 421 || status == 505);
            num_good += status == 200;
            num_refused += status >= 400;
            if (status == 200)
                assert_true(strlen(request.path) > 0 && request.path[0] == '/' &&
                            strpbrk(request.path, "\t\r ") == NULL);
            if ((byte < 0x20 && byte != '\t' && byte != '\r' && byte != '\n') || byte > 0x7e)
                assert_int_equal(status, 400);
        }
    assert_true(num_good > 100 && num_refused > 1000);
}

/* The text without its end. */
static void put(char *at, const char *text)
{
    while (*text != '\0')
        *at++ = *text++;
}

static void hr_03_too_long(void **state)
{
    static char bytes[HTTP_HEAD_SIZE_MAX];
    struct http_request request;
    (void)state;
    memset(bytes, 'a', sizeof bytes);
    assert_int_equal(parse(bytes, sizeof bytes - 1, &request), 0);
    assert_int_equal(parse(bytes, sizeof bytes, &request), 414);
    put(bytes, "GET / HTTP/1.1\r\nA: ");
    assert_int_equal(parse(bytes, sizeof bytes, &request), 431);
    put(bytes + sizeof bytes - 4, "\r\n\r\n"); /* it just fits, and has no host */
    assert_int_equal(parse(bytes, sizeof bytes, &request), 400);
    put(bytes, "GET / HTTP/1.0\r\nA: ");
    assert_int_equal(parse(bytes, sizeof bytes, &request), 200);
}

static void hr_04_path_size(void **state)
{
    (void)state;
    for (size_t length = 1; length < 200; length++) {
        char bytes[256], path[256];
        struct http_request request;
        memset(path, 'p', length);
        path[0] = '/';
        path[length] = '\0';
        int size = snprintf(bytes, sizeof bytes, "GET %s HTTP/1.0\r\n\r\n", path);
        uint32_t status = parse(bytes, (size_t)size, &request);
        assert_int_equal(status, length < HTTP_PATH_SIZE ? 200 : 404);
        if (status == 200)
            assert_string_equal(request.path, path);
    }
}

static void hr_05_hosts(void **state)
{
    static const struct {
        const char *host;
        uint32_t status;
    } cases[] = {
        {"127.0.0.1", 200},    {"LocalHost:1", 200},
        {"[::1]:65535", 200},  {"localhost:", 200},
        {"localhost:1x", 421}, {"localhost.", 421},
        {"127.0.0.2", 421},    {"127.0.0.1.x", 421},
        {"example.com", 421},  {"", 421},
        {"[::1", 421},         {"localhost:123456", 421},
        {"127.0.0.1 x", 421},  {"localhost@x", 421},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char bytes[128];
        struct http_request request;
        int size =
            snprintf(bytes, sizeof bytes, "GET / HTTP/1.1\r\nHost: %s\r\n\r\n", cases[i].host);
        if (parse(bytes, (size_t)size, &request) != cases[i].status)
            fail_msg("host \"%s\" is not answered with %u", cases[i].host, cases[i].status);
    }
}

static void hr_06_reasons(void **state)
{
    static const uint32_t codes[] = {200, 400, 404, 405, 408, 413, 414, 421, 431, 503, 505};
    (void)state;
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++)
        assert_string_not_equal(http_reason(codes[i]), http_reason(500));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hr_01_whole_and_in_pieces),
        cmocka_unit_test(hr_02_every_byte_changed),
        cmocka_unit_test(hr_03_too_long),
        cmocka_unit_test(hr_04_path_size),
        cmocka_unit_test(hr_05_hosts),
        cmocka_unit_test(hr_06_reasons),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
