/* topkctl top: looks at the daemon at an interval and shows what happened between two looks. On a
 * terminal the screen is redrawn in place; elsewhere each look is a block of text, or with --json a
 * line. */
#include "clock.h"
#include "remote.h"
#include "top.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void visit_stats(void *arg, const struct wire_device *device, const struct wire_reply *reply)
{
    struct top_look *look = arg;
    struct top_device *to = &look->devices[look->num_devices++];
    to->device = *device;
    to->is_up = reply != NULL;
    if (reply != NULL) {
        to->stats = reply->u.stats;
    } else {
        memset(&to->stats, 0, sizeof(to->stats));
    }
    to->sessions.num_sessions = 0;
}

static void visit_sessions(void *arg, const struct wire_device *device,
                           const struct wire_reply *reply)
{
    struct top_look *look = arg;
    for (uint32_t i = 0; i < look->num_devices && reply != NULL; i++) {
        if (strcmp(look->devices[i].device.device, device->device) == 0) {
            look->devices[i].sessions = reply->u.sessions;
        }
    }
}

static enum ctl_exit look_at(const struct ctl_options *options, struct top_look *look)
{
    static struct remote remote;
    look->num_devices = 0;
    enum ctl_exit code = remote_open(options, &remote);
    memcpy(look->url, remote.url, sizeof(look->url));
    if (code == CTL_EXIT_OK) {
        code = remote_visit(&remote, WIRE_STATS, visit_stats, look);
        look->at_ns = clock_now_ns();
        if (code == CTL_EXIT_OK) {
            code = remote_visit(&remote, WIRE_SESSIONS, visit_sessions, look);
        }
        remote_close(&remote);
    }
    look->is_good = code == CTL_EXIT_OK;
    if (!look->is_good) {
        look->at_ns = clock_now_ns();
        snprintf(look->trouble, sizeof(look->trouble), "%s",
                 remote.detail[0] != '\0' ? remote.detail : "no such device");
    }
    return code;
}

/* Shows the last two looks. */
static void show(const struct ctl_options *options, const struct top_look *before,
                 const struct top_look *now, bool is_terminal)
{
    if (options->json) {
        top_json(before, now, stdout);
        fflush(stdout);
        return;
    }
    if (!is_terminal) {
        top_frame(before, now, 0, stdout);
        putchar('\n');
        fflush(stdout);
        return;
    }
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    if (out != NULL) {
        top_frame(before, now, top_screen_lines(), out);
        if (fclose(out) == 0) {
            top_screen_show(text);
        }
    }
    free(text);
}

enum ctl_exit command_top(const struct ctl_options *options)
{
    static struct top_look looks[2];
    struct ctl_options quiet = *options; /* after the first look the frame shows what is wrong */
    bool is_terminal = !options->json && isatty(STDOUT_FILENO) == 1;
    enum ctl_exit code = look_at(options, &looks[0]);
    if (code != CTL_EXIT_OK) {
        return code;
    }
    quiet.is_quiet = true;
    top_screen_open(is_terminal);
    uint32_t last = 0; /* the look that was shown */
    uint64_t next_ns = looks[0].at_ns;
    if (is_terminal) {
        show(options, &looks[1], &looks[0], true); /* what there is, without rates */
    }
    for (uint32_t round = 0; options->num_rounds == 0 || round < options->num_rounds;) {
        enum top_event event = top_screen_wait(next_ns + options->interval_ms * CLOCK_NS_PER_MS);
        if (event == TOP_EVENT_END || ferror(stdout) != 0) {
            break;
        }
        if (event == TOP_EVENT_DRAW) {
            show(options, &looks[1 - last], &looks[last], is_terminal);
            continue;
        }
        next_ns = clock_now_ns();
        last = 1 - last;
        code = look_at(&quiet, &looks[last]);
        show(options, &looks[1 - last], &looks[last], is_terminal);
        round++;
    }
    top_screen_close();
    return code;
}
