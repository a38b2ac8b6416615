/*
 * options_value.h - numbers, times and shapes on the command line. Each function is true when the
 * value was good, and otherwise has said on stderr what is accepted.
 */
#ifndef TOPKCTL_OPTIONS_VALUE_H
#define TOPKCTL_OPTIONS_VALUE_H

#include "ctl.h"

#include <stdbool.h>
#include <stdint.h>

/* The command whose help is named in what follows; NULL: none is known. */
void options_name_command(const char *word);

/* Says what is wrong with the command line and whose help to see; returns false for the callers'
 * convenience. */
bool options_misuse(const char *format, ...) __attribute__((format(printf, 1, 2)));
void options_name_help(void); /* the last part of it alone, a line */

bool options_parse_u32(const char *word, const char *text, uint32_t min, uint32_t max,
                       uint32_t *value_p);
/* Seconds ("10", "2.5", "2.5s") or milliseconds ("500ms"). */
bool options_parse_duration(const char *word, const char *text, uint32_t *duration_ms_p);
bool options_parse_page_size(const char *text, struct ctl_options *options);
/* "64x131072x2048,1x4096x16" */
bool options_parse_shapes(const char *text, struct ctl_options *options);

#endif
