/* xid_log_test.c - which lines of a kernel's log are errors of GPUs. */
#include "xid_log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static struct xid_summary scan(const char *text)
{
    struct xid_summary summary = {0};
    xid_scan(text, strlen(text), &summary);
    return summary;
}

static void it_tells_hardware_from_programs(void **state)
{
    (void)state;
    struct xid_summary summary =
        scan("<4>[  12.3] usb 1-1: new device\n"
             "<3>[ 100.1] NVRM: Xid (PCI:0000:3b:00): 31, pid=4711, name=python, Ch 00000010\n"
             "<3>[ 101.1] NVRM: Xid (PCI:0000:3b:00): 43, pid=4711\n"
             "<3>[ 205.9] NVRM: Xid (PCI:0000:d8:00): 79, GPU has fallen off the bus.\n"
             "<3>[ 206.0] NVRM: GPU at PCI:0000:d8:00: GPU-1234");
    assert_int_equal(summary.num_other, 2);
    assert_int_equal(summary.last_other, 43);
    assert_string_equal(summary.other_at, "PCI:0000:3b:00");
    assert_int_equal(summary.num_hardware, 1);
    assert_int_equal(summary.last_hardware, 79);
    assert_string_equal(summary.hardware_at, "PCI:0000:d8:00");
}

/* A log is cut at its start, and anybody may write lines into it. */
static void it_takes_only_whole_lines(void **state)
{
    (void)state;
    static const char *const texts[] = {"",
                                        "\n\n",
                                        "NVRM: Xid (",
                                        "NVRM: Xid (PCI:0000:3b:00",
                                        "NVRM: Xid (PCI:0000:3b:00)",
                                        "NVRM: Xid (PCI:0000:3b:00):",
                                        "NVRM: Xid (PCI:0000:3b:00): ",
                                        "NVRM: Xid (PCI:0000:3b:00): x",
                                        "NVRM: Xid (PCI:0000:3b:00)\n: 79\n"};
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        struct xid_summary summary = scan(texts[i]);
        assert_int_equal(summary.num_hardware + summary.num_other, 0);
    }
    struct xid_summary summary = scan("NVRM: Xid (PCI:0000:3b:00:and:a:very:long:place:indeed:it:is"
                                      "): 4294967297999, pid");
    assert_int_equal(summary.num_other, 1);
    assert_int_equal(strlen(summary.other_at), sizeof(summary.other_at) - 1);
    assert_int_equal(scan("NVRM: Xid (a): 48").last_hardware, 48); /* the last line has no end */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_tells_hardware_from_programs),
        cmocka_unit_test(it_takes_only_whole_lines),
    };
    return cmocka_run_group_tests_name("xid lines", tests, NULL, NULL);
}
