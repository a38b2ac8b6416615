/* What the values of options mean. */
#include "options_value.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DURATION_MAX_MS 86400000u /* choice: a day */

static const char *command_word; /* NULL: none */

void options_name_command(const char *word)
{
    command_word = word;
}

void options_name_help(void)
{
    fprintf(stderr, "see topkctl %s%s--help\n", command_word != NULL ? command_word : "",
            command_word != NULL ? " " : "");
}

bool options_misuse(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("topkctl: ", stderr);
    vfprintf(stderr, format, arguments);
    fputs("; ", stderr);
    options_name_help();
    va_end(arguments);
    return false;
}

bool options_parse_u32(const char *word, const char *text, uint32_t min, uint32_t max,
                       uint32_t *value_p)
{
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != '\0' || errno != 0 || value < min ||
        value > max) {
        return options_misuse("%s%s is \"%s\"; give a number from %u to %u",
                              word[1] != '\0' ? "--" : "-", word, text, min, max);
    }
    *value_p = (uint32_t)value;
    return true;
}

/* Seconds ("10", "2.5", "2.5s") or milliseconds ("500ms"). */
bool options_parse_duration(const char *word, const char *text, uint32_t *duration_ms_p)
{
    char *end;
    double value = strtod(text, &end);
    double unit_ms = strcmp(end, "ms") == 0 ? 1.0 : 1000.0;
    bool known = strcmp(end, "ms") == 0 || strcmp(end, "s") == 0 || *end == '\0';
    double duration_ms = value * unit_ms;
    if (end == text || !known || !(duration_ms >= 1.0 && duration_ms <= (double)DURATION_MAX_MS)) {
        return options_misuse(
            "--%s is \"%s\"; give a time from 1ms to 86400s, as 10, 2.5s or 500ms", word, text);
    }
    *duration_ms_p = (uint32_t)duration_ms;
    return true;
}

bool options_parse_page_size(const char *text, struct ctl_options *options)
{
    uint32_t size = 0;
    if (!options_parse_u32("page-size", text, 1, 1u << TOPK_PAGE_SIZE_LOG2_MAX, &size)) {
        return false;
    }
    if ((size & (size - 1)) != 0) {
        return options_misuse("--page-size is %u; give a power of two", size);
    }
    options->page_size_log2 = (uint32_t)__builtin_ctz(size);
    options->page_size_given = true;
    return true;
}

/* "64x131072x2048,1x4096x16" */
bool options_parse_shapes(const char *text, struct ctl_options *options)
{
    for (options->num_shapes = 0; options->num_shapes < CTL_SHAPES_MAX; options->num_shapes++) {
        uint64_t numbers[3] = {0};
        static const uint64_t max[3] = {TOPK_ROWS_MAX, TOPK_WIDTH_MAX, TOPK_K_MAX};
        for (int i = 0; i < 3; i++) {
            char *end;
            errno = 0;
            numbers[i] = strtoull(text, &end, 10);
            bool is_last = i == 2 && (*end == '\0' || *end == ',');
            if (text[0] < '0' || text[0] > '9' || errno != 0 || numbers[i] < 1 ||
                numbers[i] > max[i] || !(is_last || (i < 2 && *end == 'x'))) {
                return options_misuse(
                    "--shape stops making sense at \"%s\"; give rows x width x K as "
                    "64x131072x2048, K up to %u, several with commas",
                    text, TOPK_K_MAX);
            }
            text = end + (*end != '\0');
        }
        options->shapes[options->num_shapes] =
            (struct ctl_shape){(uint32_t)numbers[0], (uint32_t)numbers[1], (uint32_t)numbers[2]};
        if (text[-1] != ',') {
            options->num_shapes++;
            return true;
        }
    }
    return options_misuse("--shape has more than %u shapes", CTL_SHAPES_MAX);
}
