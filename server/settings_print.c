/* Settings as YAML: what --print-config shows, config/topkd.yaml and the text of the workers. */
#include "settings_internal.h"
#include "topk_select.h"

#include <string.h>

#define COMMENT_COLUMNS 96u /* choice: of a comment line, indentation included */

static const char header[] =
    "Settings of topkd: each with what it means, the values it accepts, and when a change applies. "
    "A file needs to name only what differs from the defaults; topkd --check-config --config FILE "
    "checks one, topkd --print-config prints what is in force.";

static const char devices_text[] =
    "One worker process a device. device is auto (every GPU that this build serves, otherwise the "
    "CPU), cpu, or the UUID of a GPU (nvidia-smi -L). threads is for the CPU device, 0 to 256; 0: "
    "one a processor that the daemon may use.";

static const char buckets_text[] =
    "Shape buckets captured before a worker is ready. A request is rounded up to one: at least its "
    "rows, width and K. The scores are float32, or what dtype says: float32, float16 or bfloat16. "
    "Other shapes get a bucket at their first use.";

/* Words of text on lines "# ...", each with an indentation. */
static void print_comment(FILE *file, size_t indentation, const char *text)
{
    size_t column = 0;
    while (*text != '\0') {
        size_t word = strcspn(text, " ");
        if (column != 0 && column + 1 + word > COMMENT_COLUMNS) {
            fputc('\n', file);
            column = 0;
        }
        if (column == 0) {
            fprintf(file, "%*s#", (int)indentation, "");
            column = indentation + 1;
        }
        fprintf(file, " %.*s", (int)word, text);
        column += 1 + word;
        text += word;
        text += strspn(text, " ");
    }
    fputc('\n', file);
}

static void print_entry(FILE *file, const struct settings_entry *entry,
                        const struct settings *settings, bool comments)
{
    char value[SETTINGS_VALUE_SIZE], range[SETTINGS_REASON_SIZE], note[SETTINGS_REASON_SIZE + 64];
    if (comments) {
        settings_range_write(entry, range);
        snprintf(note, sizeof note, "(%s%s%s)", range, range[0] == '\0' ? "" : "; ",
                 entry->live ? "live" : "restart");
        print_comment(file, 2, entry->text);
        print_comment(file, 2, note);
    }
    settings_value_write(entry, settings, value);
    fprintf(file, "  %s: %s\n", entry->name, value);
}

static void print_sections(FILE *file, const struct settings *settings, bool comments)
{
    const struct settings_entry *entry = settings_entries;
    for (uint32_t i = 0; i < settings_num_sections; i++) {
        const struct settings_section *section = &settings_sections[i];
        if (comments) {
            fputc('\n', file);
            print_comment(file, 0, section->text);
        }
        fprintf(file, "%s:\n", section->name);
        for (; entry < settings_entries + settings_num_entries &&
               strcmp(entry->section, section->name) == 0;
             entry++)
            print_entry(file, entry, settings, comments);
    }
}

static void print_devices(FILE *file, const struct settings *settings, bool comments)
{
    if (comments) {
        fputc('\n', file);
        print_comment(file, 0, devices_text);
        print_comment(file, 0, "(restart)");
    }
    fputs("devices:\n", file);
    for (uint32_t i = 0; i < settings->num_devices; i++)
        fprintf(file, "  - {device: %s, threads: %u}\n", settings->devices[i].device,
                settings->devices[i].threads);
}

static void print_buckets(FILE *file, const struct settings *settings, bool comments)
{
    if (comments) {
        fputc('\n', file);
        print_comment(file, 0, buckets_text);
        print_comment(file, 0, "(restart)");
    }
    fputs(settings->num_buckets == 0 ? "buckets: []\n" : "buckets:\n", file);
    for (uint32_t i = 0; i < settings->num_buckets; i++) {
        const struct settings_bucket *bucket = &settings->buckets[i];
        fprintf(file, "  - {rows: %u, width: %u, k: %u", bucket->rows, bucket->width, bucket->k);
        if (bucket->dtype != TOPK_DTYPE_FLOAT32)
            fprintf(file, ", dtype: %s", topk_dtype_name((enum topk_dtype)bucket->dtype));
        fputs("}\n", file);
    }
}

void settings_print(const struct settings *settings, bool comments, FILE *file)
{
    if (comments) {
        print_comment(file, 0, header);
        print_comment(
            file, 0,
            "(live): SIGHUP swaps it in the running daemon. (restart): it needs a new one.");
    }
    print_sections(file, settings, comments);
    print_devices(file, settings, comments);
    print_buckets(file, settings, comments);
}
