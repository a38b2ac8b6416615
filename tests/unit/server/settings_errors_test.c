/* Settings that are wrong: every kind of error, with the whole line that a user reads. */
#include "server/settings.h"
#include "server/settings_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

/* A text and the line of its only error. */
struct wrong {
    const char *text, *line;
};

static struct settings settings;
static struct settings_report report;

static enum topkd_status parse(const char *text, size_t size)
{
    static struct settings before;
    memset(&settings, 0x5a, sizeof settings);
    before = settings;
    memset(&report, 0, sizeof report);
    enum topkd_status status = settings_parse(text, size, "t", &settings, &report);
    if (status != TOPKD_OK)
        assert_memory_equal(&settings, &before, sizeof settings); /* untouched after an error */
    return status;
}

static void expect_one(const struct wrong *wrong)
{
    if (parse(wrong->text, strlen(wrong->text)) != TOPKD_E_INVALID)
        fail_msg("accepted: %s", wrong->text);
    if (report.num_errors != 1 || strcmp(report.lines[0], wrong->line) != 0)
        fail_msg("%s\n  gave %u errors, the first:\n  %s\n  expected:\n  %s", wrong->text,
                 report.num_errors, report.lines[0], wrong->line);
}

static void expect_each(const struct wrong *wrongs, size_t num_wrongs)
{
    for (size_t i = 0; i < num_wrongs; i++)
        expect_one(&wrongs[i]);
}

#define EXPECT_EACH(wrongs) expect_each(wrongs, sizeof(wrongs) / sizeof(wrongs)[0])

static void se_01_numbers(void **state)
{
    (void)state;
    static const struct wrong wrongs[] = {
        {"limits:\n  sessions_max: 0\n",
         "t:2:17: limits.sessions_max: 0 is below 1; accepted is 1 to 65536, default 256"},
        {"limits: {sessions_max: 65537}",
         "t:1:24: limits.sessions_max: 65537 is above 65536; accepted is 1 to 65536, default 256"},
        {"limits: {lanes: -1}",
         "t:1:17: limits.lanes: -1 is below 1; accepted is 1 to 64, default 4"},
        {"limits: {lanes: 99999999999999999999999}",
         "t:1:17: limits.lanes: 99999999999999999999999 is above 64; accepted is 1 to 64, default "
         "4"},
        {"limits: {lanes: 18446744073709551617}",
         "t:1:17: limits.lanes: 18446744073709551617 is above 64; accepted is 1 to 64, default 4"},
        {"limits: {lanes: 4294967297}",
         "t:1:17: limits.lanes: 4294967297 is above 64; accepted is 1 to 64, default 4"},
        {"limits: {lanes: 0x10}",
         "t:1:17: limits.lanes: 0x10 is not a whole number; accepted is 1 to 64, default 4"},
        {"limits: {lanes: 4.0}",
         "t:1:17: limits.lanes: 4.0 is not a whole number; accepted is 1 to 64, default 4"},
        {"limits: {lanes: yes}",
         "t:1:17: limits.lanes: yes is not a whole number; accepted is 1 to 64, default 4"},
        {"limits: {lanes: ''}",
         "t:1:17: limits.lanes:  is not a whole number; accepted is 1 to 64, default 4"},
        {"limits: {lanes: \"1\\n2\"}",
         "t:1:17: limits.lanes: 1?2 is not a whole number; accepted is 1 to 64, default 4"},
        {"limits: {lanes: 12345678901234567890123456789012345678901234567890x}",
         "t:1:17: limits.lanes: 1234567890123456789012345678901234567890... is not a whole number; "
         "accepted is 1 to 64, default 4"},
        {"worker: {hang_ms: 99}",
         "t:1:19: worker.hang_ms: 99 is below 100; accepted is 100 to 600000 milliseconds, default "
         "5000"},
        {"log: {rate_per_s: 100001}",
         "t:1:19: log.rate_per_s: 100001 is above 100000; accepted is 0 to 100000 lines a second, "
         "default 20"},
    };
    EXPECT_EACH(wrongs);
}

static void se_02_bytes_and_modes(void **state)
{
    (void)state;
    static const struct wrong wrongs[] = {
        {"limits: {region_bytes_max: 4095}",
         "t:1:28: limits.region_bytes_max: 4095 is below 4KiB; accepted is 4KiB to 64TiB, default "
         "64GiB"},
        {"limits: {region_bytes_max: 65TiB}",
         "t:1:28: limits.region_bytes_max: 65TiB is above 64TiB; accepted is 4KiB to 64TiB, "
         "default 64GiB"},
        {"limits: {region_bytes_max: 99999999999TiB}",
         "t:1:28: limits.region_bytes_max: 99999999999TiB is above 64TiB; accepted is 4KiB to "
         "64TiB, default 64GiB"},
        {"limits: {arena_slot_bytes: 1MB}",
         "t:1:28: limits.arena_slot_bytes: 1MB is not a number of bytes (4096, 64KiB, 8MiB, 2GiB, "
         "1TiB); accepted is 4KiB to 4GiB, default 8MiB"},
        {"limits: {arena_slot_bytes: MiB}",
         "t:1:28: limits.arena_slot_bytes: MiB is not a number of bytes (4096, 64KiB, 8MiB, 2GiB, "
         "1TiB); accepted is 4KiB to 4GiB, default 8MiB"},
        {"limits: {arena_slot_bytes: '8192 '}",
         "t:1:28: limits.arena_slot_bytes: 8192  is not a number of bytes (4096, 64KiB, 8MiB, "
         "2GiB, 1TiB); accepted is 4KiB to 4GiB, default 8MiB"},
        {"socket: {mode: 0888}",
         "t:1:16: socket.mode: 0888 is not an octal mode; accepted is 0600 to 0777, default 0660"},
        {"socket: {mode: 0577}",
         "t:1:16: socket.mode: 0577 is below 0600; accepted is 0600 to 0777, default 0660"},
        {"socket: {directory_mode: 1777}",
         "t:1:26: socket.directory_mode: 1777 is above 0755; accepted is 0700 to 0755, default "
         "0750"},
        {"socket: {directory_mode: 0770}",
         "t:1:26: socket.directory_mode: 0770 is above 0755; accepted is 0700 to 0755, default "
         "0750"},
        {"socket: {directory_mode: 0731}",
         "t:1:10: socket.directory_mode: 0731 lets others write to the folder and replace the "
         "sockets; take 0022 out of it, for example 0711"},
    };
    EXPECT_EACH(wrongs);
}

static void se_03_words(void **state)
{
    (void)state;
    static const struct wrong wrongs[] = {
        {"log: {level: INFO}",
         "t:1:14: log.level: INFO is not a log level; accepted is error, warn, info or debug, "
         "default info"},
        {"socket: {directory: run/topkd}",
         "t:1:21: socket.directory: run/topkd is neither auto nor an absolute path"},
        {"socket: {directory: /1234567890123456789012345678901234567890123456789012345678901}",
         "t:1:21: socket.directory: /123456789012345678901234567890123456789... has 62 characters; "
         "at most 60 fit with the names of the sockets, whose path ends at 107"},
        {"socket: {directory: \"/a\\tb\"}",
         "t:1:21: socket.directory: /a?b has a character at 3 that a socket's URL cannot carry; "
         "use printable ASCII without \" \\ % ? #"},
        {"socket: {directory: '/a%20'}",
         "t:1:21: socket.directory: /a%20 has a character at 3 that a socket's URL cannot carry; "
         "use printable ASCII without \" \\ % ? #"},
        {"socket: {group: no-such-group-here}",
         "t:1:17: socket.group: no group is called no-such-group-here here; give its number or "
         "name"},
        {"socket: {group: 4294967295}",
         "t:1:17: socket.group: 4294967295 is above 4294967294, the highest group number"},
        {"access: {uids: [no-such-user-here]}",
         "t:1:17: access.uids: no user is called no-such-user-here here; give its number or name"},
        {"access: {uids: [-1]}",
         "t:1:17: access.uids: no user is called -1 here; give its number or name"},
        {"devices: [{device: gpu0}]",
         "t:1:20: devices[0].device: gpu0 is not a device; accepted is auto, cpu or the UUID of a "
         "GPU (GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx, see nvidia-smi -L)"},
        {"devices: [{device: GPU-0000000g-0000-0000-0000-000000000000}]",
         "t:1:20: devices[0].device: GPU-0000000g-0000-0000-0000-000000000000 is not a device; "
         "accepted is auto, cpu or the UUID of a GPU (GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx, "
         "see nvidia-smi -L)"},
    };
    EXPECT_EACH(wrongs);
}

static void se_04_structure(void **state)
{
    (void)state;
    static const struct wrong wrongs[] = {
        {"- 3", "t:1:1: this is a list; wanted is a mapping, lines of \"name: value\""},
        {"word", "t:1:1: this is a single value; wanted is a mapping, lines of \"name: value\""},
        {"limits: 3",
         "t:1:9: limits: this is a single value; wanted is a mapping, lines of \"name: value\""},
        {"limits: [3]",
         "t:1:9: limits: this is a list; wanted is a mapping, lines of \"name: value\""},
        {"limits:\n  lanes:\n",
         "t:2:9: limits.lanes: this is empty; wanted is one value from 1 to 64"},
        {"limits: {lanes: [3]}",
         "t:1:17: limits.lanes: this is a list; wanted is one value from 1 to 64"},
        {"log: {level: {a: b}}", "t:1:14: log.level: this is a mapping; wanted is one value"},
        {"access: {uids: 7}",
         "t:1:16: access.uids: this is a single value; wanted is a list, for example [1000, 1001] "
         "or []"},
        {"access: {uids: [[7]]}",
         "t:1:17: access.uids: this is a list; wanted is a name or a number"},
        {"access: {uids: }",
         "t:1:16: access.uids: this is empty; wanted is a list, for example [1000, 1001] or []"},
        {"devices: cpu",
         "t:1:10: devices: this is a single value; wanted is a list of mappings, or []"},
        {"devices: [cpu]",
         "t:1:11: devices[0]: this is a single value; wanted is a mapping, lines of \"name: "
         "value\""},
        {"buckets:", "t:1:9: buckets: this is empty; wanted is a list of mappings, or []"},
        {"{[a]: b}", "t:1:2: this is a list; wanted is a name before the colon"},
        {"limits: {? {a: b} : c}",
         "t:1:12: limits: this is a mapping; wanted is a name before the colon"},
        {"log: {level: \"in\\0fo\"}", "t:1:14: log.level: the value holds a NUL character; remove "
                                      "it"},
    };
    for (size_t i = 0; i < sizeof wrongs / sizeof wrongs[0]; i++) {
        if (strcmp(wrongs[i].text, "devices: [cpu]") == 0)
            continue; /* two errors, below */
        expect_one(&wrongs[i]);
    }
    assert_int_equal(parse("devices: [cpu]", 14), TOPKD_E_INVALID);
    assert_int_equal(report.num_errors, 2);
    assert_string_equal(report.lines[1], "t:1:11: devices[0]: device is missing");
}

static void se_05_unknown_keys(void **state)
{
    (void)state;
#define SUFFIX "; topkd --print-config lists all"
    static const struct wrong wrongs[] = {
        {"limits: {sesions_max: 3}",
         "t:1:10: limits.sesions_max: unknown key (did you mean sessions_max?)" SUFFIX},
        {"limits: {lanse: 3}", "t:1:10: limits.lanse: unknown key (did you mean lanes?)" SUFFIX},
        {"limits: {uids: [3]}",
         "t:1:10: limits.uids: unknown key (did you mean access.uids?)" SUFFIX},
        {"level: info", "t:1:1: level: unknown key (did you mean log.level?)" SUFFIX},
        {"sockets: {mode: 3}", "t:1:1: sockets: unknown key (did you mean socket?)" SUFFIX},
        {"device: []", "t:1:1: device: unknown key (did you mean devices?)" SUFFIX},
        {"xyzzy: {deep: [{er: 1}, 2]}\n", "t:1:1: xyzzy: unknown key" SUFFIX},
        {"'': 1", "t:1:1: unknown key" SUFFIX},
        {"\"a\\tb\\e[2J\": 1", "t:1:1: a?b?[2J: unknown key" SUFFIX},
        {"devices: [{device: cpu, thread: 3}]",
         "t:1:25: devices[0].thread: unknown key (did you mean threads?)" SUFFIX},
        {"buckets: [{rows: 1, width: 1, k: 1}, {row: 1, rows: 1, width: 2, k: 1}]",
         "t:1:39: buckets[1].row: unknown key (did you mean rows?)" SUFFIX},
        {"limits: {sessions_max_sessions_max_sessions_max_sessions_max_sessions_max_: 3}",
         "t:1:10: limits.sessions_max_sessions_max_sessions_max_sessions_max_sessions_ma: unknown "
         "key" SUFFIX},
    };
#undef SUFFIX
    EXPECT_EACH(wrongs);
}

static void se_06_repeated_keys(void **state)
{
    (void)state;
    static const struct wrong wrongs[] = {
        {"limits:\n  lanes: 3\n  lanes: 3\n",
         "t:3:3: limits.lanes: already set at line 2, column 3; keep one of the two"},
        {"log: {level: info}\nlog: {level: warn}\n",
         "t:2:1: log: already set at line 1, column 1; keep one of the two"},
        {"buckets: []\nbuckets: []\n",
         "t:2:1: buckets: already set at line 1, column 1; keep one of the two"},
        {"devices: [{device: cpu, device: auto}]",
         "t:1:25: devices[0].device: already set at line 1, column 12; keep one of the two"},
        {"buckets: [{rows: 1, width: 1, k: 1, k: 2}]",
         "t:1:37: buckets[0].k: already set at line 1, column 31; keep one of the two"},
    };
    EXPECT_EACH(wrongs);
}

static void se_07_elements(void **state)
{
    (void)state;
    static const struct wrong wrongs[] = {
        {"buckets: [{rows: 1, width: 0, k: 1}]",
         "t:1:28: buckets[0].width: 0 is too small; accepted is 1 to 2147483647"},
        {"buckets: [{rows: 1, width: 1, k: 16385}]",
         "t:1:34: buckets[0].k: 16385 is too large; accepted is 1 to 16384"},
        {"buckets: [{rows: -7, width: 1, k: 1}]",
         "t:1:18: buckets[0].rows: -7 is too small; accepted is 1 to 2147483647"},
        {"buckets: [{rows: 2147483648, width: 1, k: 1}]",
         "t:1:18: buckets[0].rows: 2147483648 is too large; accepted is 1 to 2147483647"},
        {"buckets: [{rows: many, width: 1, k: 1}]",
         "t:1:18: buckets[0].rows: many is not a whole number; accepted is 1 to 2147483647"},
        {"buckets: [{rows: 1, width: 1}]", "t:1:11: buckets[0]: k is missing"},
        {"devices: [{threads: 1}]", "t:1:11: devices[0]: device is missing"},
        {"devices: [{device: cpu, threads: 257}]",
         "t:1:34: devices[0].threads: 257 is too large; accepted is 0 to 256"},
        {"devices: []", "t: devices: the list is empty; name at least one of auto, cpu or a "
                        "GPU-... UUID"},
        {"devices: [{device: cpu}, {device: cpu}]",
         "t: devices: cpu is listed twice; one worker owns a device"},
        {"devices: [{device: cpu}, {device: auto}]",
         "t: devices: auto stands for all devices; remove it or the 1 others"},
        {"buckets: [{rows: 1, width: 2, k: 3}, {rows: 1, width: 2, k: 3}]",
         "t: buckets: rows 1, width 2, k 3 of float32 is listed twice"},
        {"buckets: [{rows: 1, width: 2, k: 3, dtype: half}]",
         "t:1:44: buckets[0].dtype: half is no type of scores; accepted is float32, float16 or "
         "bfloat16"},
    };
    EXPECT_EACH(wrongs);
}

/* A list one entry beyond its limit, and one at it. */
static void se_08_list_lengths(void **state)
{
    (void)state;
    static char text[8192];
    for (uint32_t num = 64; num <= 65; num++) {
        size_t used = (size_t)snprintf(text, sizeof text, "access:\n  uids: [");
        for (uint32_t i = 0; i < num; i++)
            used += (size_t)snprintf(text + used, sizeof text - used, "%u,", 1000 + i);
        used += (size_t)snprintf(text + used, sizeof text - used, "]\nbuckets:\n");
        for (uint32_t i = 0; i < num; i++)
            used += (size_t)snprintf(text + used, sizeof text - used,
                                     "  - {rows: %u, width: 9, k: 9}\n", i + 1);
        if (num == 64) {
            assert_int_equal(parse(text, used), TOPKD_OK);
            assert_int_equal(settings.access.uids.num_ids, 64);
            assert_int_equal(settings.num_buckets, 64);
        } else {
            assert_int_equal(parse(text, used), TOPKD_E_INVALID);
            assert_int_equal(report.num_errors, 2);
            assert_string_equal(report.lines[0], "t:2:330: access.uids: the list has more than 64 "
                                                 "entries; use a group");
            assert_string_equal(report.lines[1], "t:4:3: buckets: 65 entries; at most 64 are "
                                                 "accepted");
        }
    }
}

static void se_09_relations(void **state)
{
    (void)state;
#define ADVICE "; raise the first or lower the second"
    static const struct wrong wrongs[] = {
        {"limits:\n  timeout_ms_default: 600001\n",
         "t:2:3: limits.timeout_ms_max: 600000 is below limits.timeout_ms_default, which is "
         "600001" ADVICE},
        {"limits: {region_bytes_total: 63GiB}",
         "t:1:10: limits.region_bytes_total: 63GiB is below limits.region_bytes_max, which is "
         "64GiB" ADVICE},
        {"limits: {reply_cache: 31}",
         "t:1:10: limits.reply_cache: 31 is below limits.outstanding_max, which is 32" ADVICE},
        {"worker: {heartbeat_ms: 100, hang_ms: 299}",
         "t:1:29: worker.hang_ms: 299 is below 3 times worker.heartbeat_ms, which is 100" ADVICE},
        {"worker: {restart_min_ms: 10001}",
         "t:1:10: worker.restart_max_ms: 10000 is below worker.restart_min_ms, which is "
         "10001" ADVICE},
        {"limits: {buckets_max: 4}",
         "t:1:10: limits.buckets_max: 4 is below the number of configured buckets, 5; raise it or "
         "remove buckets"},
    };
#undef ADVICE
    EXPECT_EACH(wrongs);
    static const char *const edges[] = {"limits: {timeout_ms_default: 600000}",
                                        "limits: {region_bytes_total: 64GiB}",
                                        "limits: {reply_cache: 32}",
                                        "worker: {heartbeat_ms: 100, hang_ms: 300}",
                                        "worker: {restart_min_ms: 10000}",
                                        "limits: {buckets_max: 5}"};
    for (size_t i = 0; i < sizeof edges / sizeof edges[0]; i++)
        assert_int_equal(parse(edges[i], strlen(edges[i])), TOPKD_OK);
}

static void se_10_not_yaml(void **state)
{
    (void)state;
    static const struct wrong wrongs[] = {
        {"log: {level: &a info}", "t:1:14: anchors (&name) are not accepted; remove it"},
        {"log: &a {level: info}", "t:1:6: anchors (&name) are not accepted; remove it"},
        {"buckets: &a []", "t:1:10: anchors (&name) are not accepted; remove it"},
        {"log: *a", "t:1:6: aliases (*name) are not accepted; write the value out"},
        {"log: {level: !!str info}", "t:1:14: tags (!name) are not accepted; remove it"},
        {"--- {}\n---\n", "t:2:1: a second document begins here; settings are one"},
        {"log: {level: info", "t:2:1: not YAML: did not find expected ',' or '}', while parsing a "
                              "flow mapping"},
        {"log:\n\t level: info\n", "t:2:1: not YAML: found character that cannot start any token, "
                                   "while scanning for the next token"},
        {"log: \"\xff\"", "t: not YAML: invalid leading UTF-8 octet at byte 6"},
        {"a\x01", "t: not YAML: control characters are not allowed at byte 1"},
    };
    EXPECT_EACH(wrongs);
}

/* 64 KiB is accepted, a byte more is not; deep nesting ends early whatever its place. */
static void se_11_size_and_depth(void **state)
{
    (void)state;
    static char text[SETTINGS_TEXT_SIZE_MAX + 1];
    memset(text, '#', sizeof text);
    assert_int_equal(parse(text, SETTINGS_TEXT_SIZE_MAX), TOPKD_OK);
    assert_int_equal(parse(text, SETTINGS_TEXT_SIZE_MAX + 1), TOPKD_E_INVALID);
    assert_string_equal(report.lines[0],
                        "t: the text is longer than 65536 bytes, the limit; remove comments or "
                        "entries");
    static const char *const starts[] = {
        "log: {level: ", "log: ", "buckets: [{rows: ", "access: {uids: [", ""};
    for (size_t i = 0; i < sizeof starts / sizeof starts[0]; i++) {
        size_t used = (size_t)snprintf(text, sizeof text, "%s", starts[i]);
        memset(text + used, '[', 900);
        assert_int_equal(parse(text, used + 900), TOPKD_E_INVALID);
        uint32_t last = report.num_errors - 1;
        assert_true(last < SETTINGS_REPORT_LINES);
        assert_non_null(strstr(report.lines[last], "nested too deeply"));
    }
}

/* More errors than lines: all are counted, the first have their line. */
static void se_12_many_errors(void **state)
{
    (void)state;
    static char text[4096];
    size_t used = (size_t)snprintf(text, sizeof text, "limits:\n");
    for (int i = 0; i < 100; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "  x%d: 1\n", i);
    assert_int_equal(parse(text, used), TOPKD_E_INVALID);
    assert_int_equal(report.num_errors, 100);
    for (uint32_t i = 0; i < SETTINGS_REPORT_LINES; i++) {
        char begin[32];
        snprintf(begin, sizeof begin, "t:%u:3: limits.x%u: ", i + 2, i);
        assert_int_equal(strncmp(report.lines[i], begin, strlen(begin)), 0);
    }
}

static void se_13_files(void **state)
{
    (void)state;
    memset(&report, 0, sizeof report);
    assert_int_equal(settings_load_file("/no/such/file", &settings, &report), TOPKD_E_SYSTEM);
    assert_string_equal(report.lines[0],
                        "/no/such/file: cannot be opened: No such file or directory");
    memset(&report, 0, sizeof report);
    assert_int_equal(settings_load_file("/", &settings, &report), TOPKD_E_SYSTEM);
    assert_string_equal(report.lines[0], "/: cannot be read: Is a directory");
    memset(&report, 0, sizeof report);
    assert_int_equal(settings_load_file("/dev/zero", &settings, &report), TOPKD_E_INVALID);
    memset(&report, 0, sizeof report);
    assert_int_equal(settings_load_file("/dev/null", &settings, &report), TOPKD_OK);

    /* A descriptor is read from its start whatever its position, which stays. */
    static const char text[] = "limits: {lanes: 9}";
    int fd = memfd_create("settings", MFD_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, sizeof text - 1), sizeof text - 1);
    assert_int_equal(settings_load_fd(fd, "fd", &settings, &report), TOPKD_OK);
    assert_int_equal(settings.limits.lanes, 9);
    assert_int_equal(lseek(fd, 0, SEEK_CUR), sizeof text - 1);
    close(fd);
    memset(&report, 0, sizeof report);
    assert_int_equal(settings_load_fd(-1, "fd", &settings, &report), TOPKD_E_SYSTEM);
    assert_string_equal(report.lines[0], "fd: cannot be read: Bad file descriptor");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(se_01_numbers),        cmocka_unit_test(se_02_bytes_and_modes),
        cmocka_unit_test(se_03_words),          cmocka_unit_test(se_04_structure),
        cmocka_unit_test(se_05_unknown_keys),   cmocka_unit_test(se_06_repeated_keys),
        cmocka_unit_test(se_07_elements),       cmocka_unit_test(se_08_list_lengths),
        cmocka_unit_test(se_09_relations),      cmocka_unit_test(se_10_not_yaml),
        cmocka_unit_test(se_11_size_and_depth), cmocka_unit_test(se_12_many_errors),
        cmocka_unit_test(se_13_files),
    };
    return cmocka_run_group_tests_name("settings_errors", tests, NULL, NULL);
}
