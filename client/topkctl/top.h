/*
 * top.h - what the files of `topkctl top` share.
 *
 *   command_top.c  looks at the daemon again and again
 *   top_frame.c    two looks to lines of text, or to one line of JSON
 *   top_screen.c   a terminal's whole screen: lines, keys, size, going to sleep and coming back
 */
#ifndef TOPKCTL_TOP_H
#define TOPKCTL_TOP_H

#include "ctl.h"
#include "topkd_wire.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define TOP_TROUBLE_SIZE 512u

struct top_device {
    struct wire_device device;
    bool is_up; /* the rest is there */
    struct wire_stats_reply stats;
    struct wire_sessions_reply sessions;
};

/* What a look has seen. Large; not for stacks. */
struct top_look {
    uint64_t at_ns; /* monotonic; 0: nothing was looked at */
    bool is_good;
    char trouble[TOP_TROUBLE_SIZE]; /* when it is not good */
    char url[WIRE_URL_SIZE];
    uint32_t num_devices;
    struct top_device devices[WIRE_DEVICES_MAX];
};

/* ---- top_frame.c ----------------------------------------------------------------------------- */

/* What happened between two looks. `num_lines_max` 0: as many as there are. */
void top_frame(const struct top_look *before, const struct top_look *now, unsigned num_lines_max,
               FILE *out);
void top_json(const struct top_look *before, const struct top_look *now, FILE *out);

/* ---- top_screen.c ---------------------------------------------------------------------------- */

enum top_event {
    TOP_EVENT_TIME, /* the time is over */
    TOP_EVENT_DRAW, /* the screen has another size, or was away */
    TOP_EVENT_END
};

/* Takes signals, and the screen when `is_terminal`. */
void top_screen_open(bool is_terminal);
/* Gives the screen back as it was. */
void top_screen_close(void);
/* Waits until `until_ns` of the monotonic clock, or for something else. */
enum top_event top_screen_wait(uint64_t until_ns);
unsigned top_screen_lines(void);
/* Shows a text; lines too long or too many for the screen are cut. In one write, over what was
 * there, so that nothing flickers. */
void top_screen_show(const char *text);

#endif
