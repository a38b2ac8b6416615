#include "progress.h"

#include "text.h"

#include <inttypes.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#define FIRST_AFTER_NS 500000000u /* choice: shorter work needs no line */
#define REDRAW_NS 200000000u      /* choice: calm for the eye */

static bool line_is_visible; /* there is one terminal */

uint64_t progress_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

struct progress progress_of(const char *what, uint64_t total_rows, uint64_t row_bytes)
{
    return (struct progress){
        .what = what,
        .total_rows = total_rows,
        .row_bytes = row_bytes,
        .started_ns = progress_now_ns(),
        .enabled = isatty(STDERR_FILENO) == 1,
    };
}

void progress_update(struct progress *progress, uint64_t done_rows)
{
    uint64_t now = progress_now_ns();
    uint64_t elapsed = now - progress->started_ns;
    if (!progress->enabled || elapsed < FIRST_AFTER_NS || now - progress->drawn_ns < REDRAW_NS) {
        return;
    }
    progress->drawn_ns = now;
    line_is_visible = true;
    char rate[TEXT_SIZE];
    double bytes_per_s =
        (double)(done_rows * progress->row_bytes) / ((double)elapsed / 1000000000.0);
    fprintf(stderr, "\r\033[K%s: %" PRIu64 " of %" PRIu64 " rows (%u%%), %s/s", progress->what,
            done_rows, progress->total_rows,
            (unsigned)((double)done_rows * 100.0 / (double)progress->total_rows),
            text_bytes((uint64_t)bytes_per_s, rate));
    fflush(stderr);
}

void progress_wipe(void)
{
    if (line_is_visible) {
        fputs("\r\033[K", stderr);
        fflush(stderr);
        line_is_visible = false;
    }
}
