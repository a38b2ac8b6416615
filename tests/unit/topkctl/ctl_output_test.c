/* What topkctl prints: units, printable names, JSON and tables. */
#include "json.h"
#include "table.h"
#include "text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void quantities_have_three_digits(void **state)
{
    (void)state;
    char text[TEXT_SIZE];
    assert_string_equal(text_duration(0, text), "0 ns");
    assert_string_equal(text_duration(999, text), "999 ns");
    assert_string_equal(text_duration(1000, text), "1.00 us");
    assert_string_equal(text_duration(9994, text), "9.99 us");
    assert_string_equal(text_duration(9996, text), "10.0 us");
    assert_string_equal(text_duration(12345678, text), "12.3 ms");
    assert_string_equal(text_duration(99960000, text), "100 ms");
    assert_string_equal(text_duration(7890000000, text), "7.89 s");
    assert_string_equal(text_duration(UINT64_MAX, text), "18446744074 s");
    assert_string_equal(text_bytes(1023, text), "1023 B");
    assert_string_equal(text_bytes(1536, text), "1.50 KiB");
    assert_string_equal(text_bytes((uint64_t)64 << 20, text), "64.0 MiB");
    assert_string_equal(text_age(12999, text), "12s");
    assert_string_equal(text_age(423000, text), "7m 3s");
    assert_string_equal(text_age(18720000, text), "5h 12m");
    assert_string_equal(text_age(273600000, text), "3d 4h");
}

static void utf8_is_told_from_other_bytes(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t length;
    } cases[] = {
        {"", 0},
        {"a", 1},
        {"\x7f", 1},
        {"\xc3\xa9", 2},         /* e with acute */
        {"\xe2\x82\xac", 3},     /* euro sign */
        {"\xf0\x9f\x92\xa1", 4}, /* beyond the first plane */
        {"\x80", 0},             /* continuation alone */
        {"\xc0\xaf", 0},         /* overlong */
        {"\xc1\xbf", 0},         /* overlong */
        {"\xe0\x80\xaf", 0},     /* overlong */
        {"\xf0\x80\x80\xaf", 0}, /* overlong */
        {"\xed\xa0\x80", 0},     /* surrogate */
        {"\xf4\x90\x80\x80", 0}, /* beyond U+10FFFF */
        {"\xf5\x80\x80\x80", 0}, /* beyond U+10FFFF */
        {"\xc3", 0},             /* cut */
        {"\xe2\x82", 0},         /* cut */
        {"\xf0\x9f\x92", 0},     /* cut */
        {"\xe2(\xac", 0},        /* no continuation */
        {"\xff", 0},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        if (text_utf8_length(cases[i].text) != cases[i].length) {
            fail_msg("case %zu: length %zu", i, text_utf8_length(cases[i].text));
        }
    }
}

static void names_cannot_steer_the_terminal(void **state)
{
    (void)state;
    char out[16];
    assert_int_equal(text_printable("\033[2Jx\a\n\x7f", out, sizeof(out)), 8);
    assert_string_equal(out, "?[2Jx???");
    assert_int_equal(text_printable("\xc2\x9b"
                                    "1m",
                                    out, sizeof(out)),
                     3); /* C1 control */
    assert_string_equal(out, "?1m");
    assert_int_equal(text_printable("caf\xc3\xa9 \xff", out, sizeof(out)), 6);
    assert_string_equal(out, "caf\xc3\xa9 ?");
    assert_int_equal(text_printable("0123456789abcde\xc3\xa9", out, sizeof(out)), 15);
    assert_string_equal(out, "0123456789abcde"); /* no half character */
}

/* A stream in memory, and its text once it is closed. */
struct memory {
    FILE *out;
    char *text;
    size_t size;
};

static void open_memory(struct memory *memory)
{
    memory->out = open_memstream(&memory->text, &memory->size);
    assert_non_null(memory->out);
}

static void check_memory(struct memory *memory, const char *expected)
{
    fclose(memory->out);
    assert_string_equal(memory->text, expected);
    free(memory->text);
}

static void json_is_written_in_full(void **state)
{
    (void)state;
    struct memory memory;
    open_memory(&memory);
    struct json json = json_of(memory.out);
    json_open_object(&json, NULL);
    json_u64(&json, "max", UINT64_MAX);
    json_i64(&json, "min", INT64_MIN);
    json_bool(&json, "yes", true);
    json_null(&json, "none");
    json_open_array(&json, "empty");
    json_close_array(&json);
    json_open_array(&json, "list");
    json_open_object(&json, NULL);
    json_close_object(&json);
    json_string(&json, NULL, "a");
    json_bool(&json, NULL, false);
    json_close_array(&json);
    json_close_object(&json);
    json_end(&json);
    check_memory(&memory, "{\"max\":18446744073709551615,\"min\":-9223372036854775808,"
                          "\"yes\":true,\"none\":null,\"empty\":[],\"list\":[{},\"a\",false]}\n");
}

static void json_text_is_escaped(void **state)
{
    (void)state;
    struct memory memory;
    open_memory(&memory);
    struct json json = json_of(memory.out);
    json_open_object(&json, NULL);
    json_string(&json, "q\"k",
                "a\"b\\c/d\n\t\001\x7f"
                "e");
    json_string(&json, "u", "caf\xc3\xa9 \xff\xc3 \xed\xa0\x80");
    json_close_object(&json);
    json_end(&json);
    check_memory(&memory, "{\"q\\\"k\":\"a\\\"b\\\\c/d\\u000a\\u0009\\u0001\\u007fe\","
                          "\"u\":\"caf\xc3\xa9 \\ufffd\\ufffd \\ufffd\\ufffd\\ufffd\"}\n");
}

static void tables_are_aligned(void **state)
{
    (void)state;
    static const struct table_column columns[] = {
        {"NAME", TABLE_LEFT}, {"COUNT", TABLE_RIGHT}, {"URL", TABLE_LEFT}};
    struct table *table = table_create(columns, 3);
    table_cell(table, "caf\xc3\xa9");
    table_cell(table, "%d", 7);
    table_cell(table, "x");
    table_cell(table, "evil\033");
    table_cell(table, "%d", 1234567);
    table_cell(table, "a longer one");
    struct memory memory;
    open_memory(&memory);
    table_print(table, memory.out);
    table_destroy(table);
    check_memory(&memory, "NAME     COUNT  URL\n"
                          "caf\xc3\xa9         7  x\n"
                          "evil?  1234567  a longer one\n");
}

static void tables_may_be_long(void **state)
{
    (void)state;
    static const struct table_column columns[] = {{"N", TABLE_RIGHT}};
    struct table *table = table_create(columns, 1);
    for (int i = 0; i < 1000; i++) {
        table_cell(table, "%d", i);
    }
    struct memory memory;
    open_memory(&memory);
    table_print(table, memory.out);
    fclose(memory.out);
    assert_int_equal(memory.size, 4 * 1001);
    assert_non_null(strstr(memory.text, "\n999\n"));
    free(memory.text);
    table_destroy(table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quantities_have_three_digits),
        cmocka_unit_test(utf8_is_told_from_other_bytes),
        cmocka_unit_test(names_cannot_steer_the_terminal),
        cmocka_unit_test(json_is_written_in_full),
        cmocka_unit_test(json_text_is_escaped),
        cmocka_unit_test(tables_are_aligned),
        cmocka_unit_test(tables_may_be_long),
    };
    return cmocka_run_group_tests_name("ctl_output", tests, NULL, NULL);
}
