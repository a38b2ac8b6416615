/*
 * progress.h - one line on stderr that says how far long work has come. It appears only on a
 * terminal and only after half a second, is redrawn a few times a second, and is wiped at the end.
 */
#ifndef TOPKCTL_PROGRESS_H
#define TOPKCTL_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

struct progress {
    const char *what; /* "selecting" */
    uint64_t total_rows;
    uint64_t row_bytes;
    uint64_t started_ns, drawn_ns;
    bool enabled;
};

uint64_t progress_now_ns(void); /* monotonic */

struct progress progress_of(const char *what, uint64_t total_rows, uint64_t row_bytes);
void progress_update(struct progress *progress, uint64_t done_rows);

/* Wipes the line, if one is on the screen; before anything else is written to stderr. */
void progress_wipe(void);

#endif
