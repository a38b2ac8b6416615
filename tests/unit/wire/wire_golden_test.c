/*
 * wire_golden_test.c - messages written by the first version still mean the same.
 *
 * data/golden_v1.txt holds, for every kind, the bytes of a message and the fields it stands for. It
 * is never regenerated: a change that makes this test fail would be misunderstood by peers in the
 * field. Messages of later versions are appended (`wire_golden_test --print` writes them all).
 */
#include "wire_sample.h"

#include <ctype.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define LINE_SIZE (2 * WIRE_MESSAGE_SIZE_MAX + 64)

static struct wire_request request;
static struct wire_reply reply;
static struct wire_buffer buffer;
static uint8_t bytes[WIRE_MESSAGE_SIZE_MAX];
static char line[LINE_SIZE];
static const char *golden_path;

/* ---- Write ----------------------------------------------------------------------------------- */

static void print_message_of(bool is_reply, uint64_t seed)
{
    char detail[WIRE_DETAIL_SIZE];
    size_t size;
    const enum topkd_status status =
        is_reply ? wire_reply_encode(&reply, bytes, sizeof(bytes), &size, detail)
                 : wire_request_encode(&request, bytes, sizeof(bytes), &size, detail);
    if (status != TOPKD_OK) {
        fprintf(stderr, "seed %llu: %s\n", (unsigned long long)seed, detail);
        exit(1);
    }
    printf("message %s %s\nbytes ", is_reply ? "reply" : "request",
           wire_kind_name(is_reply ? reply.kind : request.kind));
    for (size_t i = 0; i < size; i++)
        printf("%02x", bytes[i]);
    putchar('\n');
    if (is_reply)
        sample_reply_dump(&reply, stdout);
    else
        sample_request_dump(&request, stdout);
    puts("end");
}

static int print_all(void)
{
    for (unsigned kind = WIRE_HELLO; kind <= WIRE_DRAIN; kind++) {
        const uint64_t num_seeds = kind == WIRE_SELECT || kind == WIRE_REGISTER ? 6 : 2;
        for (uint64_t seed = 1; seed <= num_seeds; seed++) {
            sample_request((enum wire_kind)kind, SAMPLE_SMALL, seed, &request);
            if (kind == WIRE_SELECT && seed == 1)
                sample_inline_lengths(&request.u.select, 3, seed);
            print_message_of(false, seed);
        }
        for (uint64_t seed = 1; seed <= 3; seed++) {
            sample_reply((enum wire_kind)kind, TOPKD_OK, SAMPLE_SMALL, seed, &reply);
            print_message_of(true, seed);
        }
    }
    sample_reply((enum wire_kind)0, TOPKD_E_PROTOCOL, SAMPLE_SMALL, 1, &reply);
    print_message_of(true, 1);
    return 0;
}

/* ---- Check ----------------------------------------------------------------------------------- */

/* The next line without its end; fails the test at the end of the file. */
static void next_line(FILE *file)
{
    if (!fgets(line, sizeof(line), file))
        fail_msg("%s ends inside a message", golden_path);
    line[strcspn(line, "\n")] = '\0';
}

static size_t parse_bytes(const char *hex)
{
    size_t size = 0;
    unsigned byte;
    for (; isxdigit((unsigned char)hex[0]) && sscanf(hex, "%2x", &byte) == 1; hex += 2)
        bytes[size++] = (uint8_t)byte;
    assert_int_equal(hex[0], '\0');
    return size;
}

/* The fields of a decoded message, a line each; freed by the caller. */
static char *dump_of(bool is_reply)
{
    char *text = NULL;
    size_t text_size;
    FILE *to = open_memstream(&text, &text_size);
    assert_non_null(to);
    if (is_reply)
        sample_reply_dump(&reply, to);
    else
        sample_request_dump(&request, to);
    assert_int_equal(fclose(to), 0);
    return text;
}

static void check_message(FILE *file, bool is_reply, const char *title)
{
    char detail[WIRE_DETAIL_SIZE] = "";
    next_line(file);
    assert_int_equal(strncmp(line, "bytes ", 6), 0);
    const size_t size = parse_bytes(line + 6);
    const enum topkd_status status =
        is_reply ? wire_reply_decode(bytes, size, &buffer, &reply, detail)
                 : wire_request_decode(bytes, size, &buffer, &request, detail);
    if (status != TOPKD_OK)
        fail_msg("%s: %s: %s", title, wire_status_name(status), detail);
    char *dump = dump_of(is_reply), *save = NULL;
    const char *got = strtok_r(dump, "\n", &save);
    for (next_line(file); strcmp(line, "end") != 0; next_line(file)) {
        if (!got || strcmp(got, line) != 0)
            fail_msg("%s: \"%s\" came out as \"%s\"", title, line, got ? got : "nothing");
        got = strtok_r(NULL, "\n", &save);
    }
    if (got)
        fail_msg("%s: \"%s\" came out of nothing", title, got);
    free(dump);
}

static void messages_of_the_first_version_mean_the_same(void **state)
{
    (void)state;
    FILE *file = fopen(golden_path, "r");
    if (!file)
        fail_msg("%s cannot be read", golden_path);
    bool seen[2][WIRE_DRAIN + 1] = {{false}};
    while (fgets(line, sizeof(line), file)) {
        char title[64];
        line[strcspn(line, "\n")] = '\0';
        if (strncmp(line, "message ", 8) != 0)
            fail_msg("\"%.40s\" where a message begins", line);
        snprintf(title, sizeof(title), "%.60s", line);
        const bool is_reply = strncmp(line, "message reply", 13) == 0;
        check_message(file, is_reply, title);
        seen[is_reply][is_reply ? (unsigned)reply.kind : (unsigned)request.kind] = true;
    }
    fclose(file);
    for (unsigned kind = WIRE_HELLO; kind <= WIRE_DRAIN; kind++) {
        if (!seen[0][kind] || !seen[1][kind])
            fail_msg("no golden %s of kind %s", seen[0][kind] ? "reply" : "request",
                     wire_kind_name((enum wire_kind)kind));
    }
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--print") == 0)
        return print_all();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_of_the_first_version_mean_the_same),
    };
    golden_path = argc == 2 ? argv[1] : TOPKD_WIRE_GOLDEN;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
