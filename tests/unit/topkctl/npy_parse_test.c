/* The .npy reader on bytes in memory: what it accepts, and what it says about everything else. */
#include "npy.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Bytes of a file under test, on the heap at their exact size so that a sanitizer sees overreads.
 */
struct bytes {
    uint8_t *data;
    size_t size;
};

#define HEADER(descr, order, shape)                                                                \
    "{'descr': '" descr "', 'fortran_order': " order ", 'shape': " shape ", }"

static struct bytes make(unsigned version, const char *header, size_t data_bytes)
{
    size_t length_bytes = version == 1 ? 2 : 4;
    size_t length = strlen(header);
    struct bytes file = {.size = 8 + length_bytes + length + data_bytes};
    file.data = calloc(1, file.size);
    assert_non_null(file.data);
    memcpy(file.data, "\x93NUMPY", 6);
    file.data[6] = (uint8_t)version;
    for (size_t i = 0; i < length_bytes; i++) {
        file.data[8 + i] = (uint8_t)(length >> (8 * i));
    }
    memcpy(file.data + 8 + length_bytes, header, length);
    for (size_t i = 0; i < data_bytes; i++) {
        file.data[file.size - data_bytes + i] = (uint8_t)i;
    }
    return file;
}

static void check_accepted(const char *header, unsigned version, const struct npy_view *expected)
{
    char detail[NPY_DETAIL_SIZE] = "";
    size_t data_bytes =
        (size_t)(expected->rows * expected->columns * npy_type_bytes(expected->type));
    struct bytes file = make(version, header, data_bytes);
    struct npy_view view = {0};
    enum npy_status status = npy_parse(file.data, file.size, &view, detail);
    if (status != NPY_OK) {
        fail_msg("%s: refused: %s", header, detail);
    }
    assert_int_equal(view.type, expected->type);
    assert_int_equal(view.num_dims, expected->num_dims);
    assert_int_equal(view.rows, expected->rows);
    assert_int_equal(view.columns, expected->columns);
    assert_int_equal(view.data_bytes, data_bytes);
    assert_ptr_equal(view.data, file.data + file.size - data_bytes);
    free(file.data);
}

/* A file that must be refused with this status and a text that has these words. */
struct refusal {
    const char *header;
    size_t data_bytes;
    enum npy_status status;
    const char *words[3];
};

static void check_refused(const struct refusal *refusal)
{
    for (unsigned version = 1; version <= 3; version++) {
        char detail[NPY_DETAIL_SIZE] = "";
        struct bytes file = make(version, refusal->header, refusal->data_bytes);
        struct npy_view view = {.rows = 77};
        enum npy_status status = npy_parse(file.data, file.size, &view, detail);
        if (status != refusal->status) {
            fail_msg("%s: status \"%s\", expected \"%s\": %s", refusal->header,
                     npy_strerror(status), npy_strerror(refusal->status), detail);
        }
        assert_int_equal(view.rows, 77); /* set only on success */
        for (size_t i = 0; i < 3 && refusal->words[i] != NULL; i++) {
            if (strstr(detail, refusal->words[i]) == NULL) {
                fail_msg("%s: \"%s\" is not in: %s", refusal->header, refusal->words[i], detail);
            }
        }
        for (const char *p = detail; *p != '\0'; p++) {
            assert_in_range(*p, ' ', '~');
        }
        assert_int_equal(npy_parse(file.data, file.size, &view, NULL), refusal->status);
        free(file.data);
    }
}

static void accepts_what_numpy_writes(void **state)
{
    (void)state;
    for (unsigned version = 1; version <= 3; version++) {
        check_accepted(HEADER("<f4", "False", "(3, 5)"), version,
                       &(struct npy_view){NPY_FLOAT32, 2, 3, 5, NULL, 0});
        check_accepted(HEADER("<f4", "False", "(7,)"), version,
                       &(struct npy_view){NPY_FLOAT32, 1, 1, 7, NULL, 0});
        check_accepted(HEADER("<i4", "False", "(9,)") "         \n", version,
                       &(struct npy_view){NPY_INT32, 1, 1, 9, NULL, 0});
        check_accepted(HEADER("<f2", "False", "(3, 5)"), version,
                       &(struct npy_view){NPY_FLOAT16, 2, 3, 5, NULL, 0});
        check_accepted(HEADER("<V2", "False", "(2, 4)"), version,
                       &(struct npy_view){NPY_BYTES2, 2, 2, 4, NULL, 0});
        check_accepted(HEADER("<i4", "False", "(1, 1)") "\n", version,
                       &(struct npy_view){NPY_INT32, 2, 1, 1, NULL, 0});
    }
}

static void accepts_every_spelling_of_the_dictionary(void **state)
{
    (void)state;
    struct npy_view matrix = {NPY_FLOAT32, 2, 3, 5, NULL, 0};
    check_accepted("{'shape': (3, 5), 'descr': '<f4', 'fortran_order': False}", 1, &matrix);
    check_accepted("{\"descr\": \"<f4\", \"fortran_order\": False, \"shape\": (3, 5)}", 1, &matrix);
    check_accepted(" \t{'descr':'<f4','fortran_order':False,'shape':(3,5,),}\r\n", 1, &matrix);
    check_accepted(HEADER("<f4", "False", "(3L, 5L)"), 1, &matrix);
    check_accepted(HEADER("<f4", "False", "( 3 , 5 )"), 1, &matrix);
}

static void accepts_fortran_order_where_it_changes_nothing(void **state)
{
    (void)state;
    check_accepted(HEADER("<f4", "True", "(8,)"), 1,
                   &(struct npy_view){NPY_FLOAT32, 1, 1, 8, NULL, 0});
    check_accepted(HEADER("<f4", "True", "(1, 8)"), 1,
                   &(struct npy_view){NPY_FLOAT32, 2, 1, 8, NULL, 0});
    check_accepted(HEADER("<f4", "True", "(8, 1)"), 1,
                   &(struct npy_view){NPY_FLOAT32, 2, 8, 1, NULL, 0});
}

static void refuses_other_types(void **state)
{
    (void)state;
    static const struct refusal refusals[] = {
        {HEADER("<f8", "False", "(2, 2)"), 32, NPY_E_DTYPE, {"'<f8'", "'<f4'", "astype('<f4')"}},
        {HEADER(">f2", "False", "(2, 2)"), 8, NPY_E_DTYPE, {"'>f2'", "astype('<f4')"}},
        {HEADER(">f4", "False", "(2, 2)"), 16, NPY_E_DTYPE, {"big-endian", "astype('<f4')"}},
        {HEADER(">i4", "False", "(2, 2)"), 16, NPY_E_DTYPE, {"big-endian", "astype('<i4')"}},
        {HEADER("<i8", "False", "(2,)"), 16, NPY_E_DTYPE, {"'<i8'", "astype('<i4')"}},
        {HEADER("<u4", "False", "(2,)"), 8, NPY_E_DTYPE, {"'<u4'", "astype('<i4')"}},
        {HEADER("|b1", "False", "(2,)"), 2, NPY_E_DTYPE, {"'|b1'", "astype('<i4')"}},
        {HEADER("|O", "False", "(2,)"), 2, NPY_E_DTYPE, {"'|O'"}},
        {HEADER("<U8", "False", "(2,)"), 2, NPY_E_DTYPE, {"'<U8'"}},
        {HEADER("", "False", "(2,)"), 2, NPY_E_DTYPE, {"''"}},
        {HEADER("<", "False", "(2,)"), 2, NPY_E_DTYPE, {"'<'"}},
        {"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,), }",
         8,
         NPY_E_DTYPE,
         {"fields", "astype('<f4')"}},
        {"{'descr': ('<f4', (2,)), 'fortran_order': False, 'shape': (2,), }",
         16,
         NPY_E_DTYPE,
         {"shape of its own"}},
    };
    for (size_t i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++) {
        check_refused(&refusals[i]);
    }
}

static void refuses_other_shapes_and_orders(void **state)
{
    (void)state;
    static const struct refusal refusals[] = {
        {HEADER("<f4", "True", "(2, 3)"), 24, NPY_E_ORDER, {"Fortran", "(2, 3)", "contiguous"}},
        {HEADER("<f4", "False", "()"), 4, NPY_E_SHAPE, {"()", "reshape(1, 1)"}},
        {HEADER("<f4", "False", "(2, 2, 2)"), 32, NPY_E_SHAPE, {"(2, 2, 2)", "reshape(-1"}},
        {HEADER("<f4", "False", "(0,)"), 0, NPY_E_SHAPE, {"(0)", "empty"}},
        {HEADER("<f4", "False", "(0, 5)"), 0, NPY_E_SHAPE, {"(0, 5)", "empty"}},
        {HEADER("<f4", "False", "(5, 0)"), 0, NPY_E_SHAPE, {"(5, 0)", "empty"}},
        {HEADER("<f4", "False", "(4294967296, 4294967296)"), 0, NPY_E_SHAPE, {"2^63"}},
        {HEADER("<f4", "False", "(4611686018427387905, 4)"), 16, NPY_E_SHAPE, {"2^63"}},
        {HEADER("<f4", "False", "(4611686018427387904, 1)"), 0, NPY_E_SHAPE, {"2^63"}},
        {HEADER("<f4", "False", "(18446744073709551615,)"), 0, NPY_E_SHAPE, {"2^63"}},
        {HEADER("<f4", "False", "(18446744073709551616,)"), 0, NPY_E_SHAPE, {"2^64"}},
        {HEADER("<f4", "False", "(99999999999999999999999999,)"), 0, NPY_E_SHAPE, {"2^64"}},
    };
    for (size_t i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++) {
        check_refused(&refusals[i]);
    }
}

static void refuses_too_little_and_too_much_data(void **state)
{
    (void)state;
    static const struct refusal refusals[] = {
        {HEADER("<f4", "False", "(3, 5)"), 59, NPY_E_TRUNCATED, {"60 bytes", "59 follow"}},
        {HEADER("<f4", "False", "(3, 5)"), 0, NPY_E_TRUNCATED, {"60 bytes", "0 follow"}},
        {HEADER("<f4", "False", "(3, 5)"), 61, NPY_E_TRAILING, {"60 bytes", "61 follow"}},
        {HEADER("<f4", "False", "(2305843009213693951,)"), 8, NPY_E_TRUNCATED, {"8 follow"}},
    };
    for (size_t i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++) {
        check_refused(&refusals[i]);
    }
}

static void refuses_damaged_dictionaries(void **state)
{
    (void)state;
    static const struct refusal refusals[] = {
        {"", 4, NPY_E_FORMAT, {"'{' expected", "the end"}},
        {"{}", 4, NPY_E_FORMAT, {"'descr' is missing"}},
        {"{'descr': '<f4', 'shape': (1,)}", 4, NPY_E_FORMAT, {"'fortran_order' is missing"}},
        {"{'descr': '<f4', 'fortran_order': False}", 4, NPY_E_FORMAT, {"'shape' is missing"}},
        {"{'descr': '<f4', 'descr': '<f4'}", 4, NPY_E_FORMAT, {"'descr' appears twice"}},
        {"{'colour': '<f4'}", 4, NPY_E_FORMAT, {"'colour' is unknown"}},
        {"{'descr' '<f4'}", 4, NPY_E_FORMAT, {"':' expected"}},
        {"{'descr': '<f4' 'shape': (1,)}", 4, NPY_E_FORMAT, {"',' or '}' expected"}},
        {"{'descr': 7}", 4, NPY_E_FORMAT, {"a quoted word expected", "7}"}},
        {"{'descr': '<f4", 4, NPY_E_FORMAT, {"a closing quote"}},
        {"{'descr': '\\x3cf4'}", 4, NPY_E_FORMAT, {"a short plain word"}},
        {"{'fortran_order': 0}", 4, NPY_E_FORMAT, {"True or False"}},
        {"{'fortran_order': Tru", 4, NPY_E_FORMAT, {"True or False"}},
        {"{'shape': 3}", 4, NPY_E_FORMAT, {"parentheses"}},
        {"{'shape': (3, -1)}", 4, NPY_E_FORMAT, {"a number", "-1"}},
        {"{'shape': (3 5)}", 4, NPY_E_FORMAT, {"',' or ')'"}},
        {"{'shape': (3, ", 4, NPY_E_FORMAT, {"a number", "the end"}},
        {"{'shape': (,)}", 4, NPY_E_FORMAT, {"a number"}},
        {HEADER("<f4", "False", "(1,)") "x", 4, NPY_E_FORMAT, {"nothing more", "x"}},
        {"\x01\x02\xff", 4, NPY_E_FORMAT, {"'{' expected", "???"}},
        {"{'0123456789012345678901234567890123456789': 1}", 4, NPY_E_FORMAT, {"a short plain"}},
    };
    for (size_t i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++) {
        check_refused(&refusals[i]);
    }
    char many[256];
    int length = snprintf(many, sizeof(many), "{'shape': (");
    for (int i = 0; i < 33; i++) {
        length += snprintf(many + length, sizeof(many) - (size_t)length, "1, ");
    }
    check_refused(&(struct refusal){many, 4, NPY_E_SHAPE, {"more than 32 dimensions"}});
}

static void refuses_files_of_other_kinds(void **state)
{
    (void)state;
    char detail[NPY_DETAIL_SIZE];
    struct npy_view view;
    assert_int_equal(npy_parse(NULL, 0, &view, detail), NPY_E_FORMAT);
    assert_non_null(strstr(detail, "empty"));
    assert_int_equal(npy_parse("PK\3\4zip and more", 16, &view, detail), NPY_E_FORMAT);
    assert_non_null(strstr(detail, ".npz"));
    assert_int_equal(npy_parse("0.25,0.5\n1,2\n", 13, &view, detail), NPY_E_FORMAT);
    assert_non_null(strstr(detail, "not a .npy file"));
    assert_int_equal(npy_parse("\x93NUMPY\4\0\0\0\0\0", 12, &view, detail), NPY_E_FORMAT);
    assert_non_null(strstr(detail, "version 4"));
    assert_int_equal(npy_parse("\x93NUMPY\2\0\xff\xff\xff\xff", 12, &view, detail), NPY_E_FORMAT);
    assert_non_null(strstr(detail, "4294967295"));
}

static void refuses_every_cut_of_a_good_file(void **state)
{
    (void)state;
    for (unsigned version = 1; version <= 3; version++) {
        struct bytes file = make(version, HEADER("<f4", "False", "(3, 5)"), 60);
        for (size_t size = 0; size < file.size; size++) {
            uint8_t *cut = malloc(size + 1);
            assert_non_null(cut);
            memcpy(cut, file.data, size);
            cut = realloc(cut, size > 0 ? size : 1);
            char detail[NPY_DETAIL_SIZE] = "";
            struct npy_view view;
            enum npy_status status = npy_parse(cut, size, &view, detail);
            assert_int_equal(status, size < 6 ? NPY_E_FORMAT : NPY_E_TRUNCATED);
            assert_true(strlen(detail) > 20);
            free(cut);
        }
        free(file.data);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(accepts_what_numpy_writes),
        cmocka_unit_test(accepts_every_spelling_of_the_dictionary),
        cmocka_unit_test(accepts_fortran_order_where_it_changes_nothing),
        cmocka_unit_test(refuses_other_types),
        cmocka_unit_test(refuses_other_shapes_and_orders),
        cmocka_unit_test(refuses_too_little_and_too_much_data),
        cmocka_unit_test(refuses_damaged_dictionaries),
        cmocka_unit_test(refuses_files_of_other_kinds),
        cmocka_unit_test(refuses_every_cut_of_a_good_file),
    };
    return cmocka_run_group_tests_name("npy_parse", tests, NULL, NULL);
}
