/*
 * fuzz_settings.c - any bytes as the daemon's configuration.
 *
 * What is refused says why, in printable lines, and leaves the settings alone; what is accepted is
 * printed as YAML that reads back to the same settings.
 */
#include "fuzz_check.h"

#include "server/settings.h"

#include <string.h>

#define UNTOUCHED 0xa5

static struct settings first, second;
static struct settings_report report;

static void check_refused(enum topkd_status status)
{
    FUZZ_CHECK(status == TOPKD_E_INVALID, "status %u", (unsigned)status);
    FUZZ_CHECK(report.num_errors > 0, "refused without an error");
    const uint32_t num_lines =
        report.num_errors < SETTINGS_REPORT_LINES ? report.num_errors : SETTINGS_REPORT_LINES;
    for (uint32_t i = 0; i < num_lines; i++) {
        const char *line = report.lines[i];
        FUZZ_CHECK(memchr(line, '\0', sizeof(report.lines[i])), "line %u has no end", i);
        FUZZ_CHECK(strncmp(line, "fuzz.yaml", 9) == 0, "line %u lacks the file: %s", i, line);
        for (const char *at = line; *at; at++)
            FUZZ_CHECK((unsigned char)*at >= 0x20 && *at != 0x7f, "line %u holds byte 0x%02x", i,
                       (unsigned char)*at);
    }
    FUZZ_CHECK(fuzz_is_all(&first, sizeof(first), UNTOUCHED), "refused, but changed");
}

/* The settings as YAML; freed by the caller. */
static char *printed(const struct settings *settings, bool comments, size_t *size_p)
{
    char *text = NULL;
    FILE *file = open_memstream(&text, size_p);
    FUZZ_CHECK(file, "no memory stream");
    settings_print(settings, comments, file);
    FUZZ_CHECK(fclose(file) == 0, "no memory for the text");
    return text;
}

static void check_accepted(bool comments)
{
    size_t first_size, second_size;
    char *first_text = printed(&first, comments, &first_size);
    memset(&second, 0x5a, sizeof(second));
    const enum topkd_status status =
        settings_parse(first_text, first_size, "printed.yaml", &second, &report);
    FUZZ_CHECK(status == TOPKD_OK, "what was printed is refused: %s\n%s", report.lines[0],
               first_text);
    char *second_text = printed(&second, comments, &second_size);
    FUZZ_CHECK(first_size == second_size && memcmp(first_text, second_text, first_size) == 0,
               "read back as other settings:\n%s\n%s", first_text, second_text);
    free(first_text);
    free(second_text);
    struct settings_changes changes;
    settings_merge_live(&second, &first, &changes);
    FUZZ_CHECK(changes.num_live == 0 && changes.num_restart == 0, "read back with changes");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    memset(&first, UNTOUCHED, sizeof(first));
    memset(&report, 0, sizeof(report));
    const enum topkd_status status =
        settings_parse((const char *)data, size, "fuzz.yaml", &first, &report);
    if (status == TOPKD_OK) {
        check_accepted(false);
        check_accepted(true);
    } else {
        check_refused(status);
    }
    return 0;
}
