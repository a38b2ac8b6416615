/* topkctl drain: the daemon takes no new work, finishes what is in flight, and ends. */
#include "clock.h"
#include "json.h"
#include "remote.h"
#include "text.h"

#include <inttypes.h>
#include <stdio.h>
#include <time.h>

#define POLL_NS 20000000 /* choice: 20 ms, short beside any drain a person waits for */
#define GRACE_MS 2000u   /* choice: for the processes to end once the work has */

/* Whether the supervisor closed the connection, which it does when it ends. */
static bool wait_for_end(struct rpc *supervisor, uint64_t deadline_ns)
{
    while (!rpc_lost(supervisor) && !clock_passed(deadline_ns)) {
        const struct timespec pause = {.tv_nsec = POLL_NS};
        nanosleep(&pause, NULL);
    }
    return rpc_lost(supervisor);
}

enum ctl_exit command_drain(const struct ctl_options *options)
{
    static struct remote remote;
    enum ctl_exit code = remote_open(options, &remote);
    if (code != CTL_EXIT_OK) {
        return code;
    }
    struct wire_request request = {.kind = WIRE_DRAIN};
    request.u.drain.deadline_ms = options->deadline_ms;
    uint64_t start_ns = clock_now_ns();
    code = remote_ask(&remote, &request);
    if (code == CTL_EXIT_OK &&
        !wait_for_end(remote.supervisor,
                      clock_after_ms((uint64_t)options->deadline_ms + GRACE_MS))) {
        code = report_failure(options, CTL_EXIT_FAILED,
                              "drain: %s has not ended %u ms after its deadline of %u ms; see its "
                              "log",
                              remote.url, GRACE_MS, options->deadline_ms);
    }
    uint64_t drained_ns = clock_now_ns() - start_ns;
    remote_close(&remote);
    if (code != CTL_EXIT_OK) {
        return code;
    }
    if (options->json) {
        struct json json = json_of(stdout);
        json_open_object(&json, NULL);
        json_string(&json, "url", remote.url);
        json_bool(&json, "ended", true);
        json_u64(&json, "drain_ns", drained_ns);
        json_close_object(&json);
        json_end(&json);
    } else {
        char text[TEXT_SIZE];
        printf("%s has finished its work and ended, in %s\n", remote.url,
               text_duration(drained_ns, text));
    }
    return CTL_EXIT_OK;
}
