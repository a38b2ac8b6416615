#include "remote.h"

#include "clock.h"
#include "discover.h"

#include <stdio.h>
#include <string.h>

#define TIMEOUT_MS 10000u /* the library's default too */

const char *remote_kind_name(enum wire_device_kind kind)
{
    return kind == WIRE_DEVICE_CUDA ? "cuda" : "cpu";
}

const char *remote_state_name(enum wire_device_state state)
{
    static const char *const names[] = {"starting", "ready", "draining", "down"};
    return (size_t)state < sizeof(names) / sizeof(names[0]) ? names[state] : "unknown";
}

static enum ctl_exit report_about(const struct remote *remote, const char *url,
                                  enum topkd_status status)
{
    return report_status(remote->options, url, status, remote->detail);
}

enum ctl_exit remote_ask(struct remote *remote, const struct wire_request *request)
{
    enum topkd_status status = rpc_exchange(remote->supervisor, request, remote->deadline_ns,
                                            &remote->reply, remote->detail);
    return status == TOPKD_OK ? CTL_EXIT_OK : report_about(remote, remote->url, status);
}

enum ctl_exit remote_open(const struct ctl_options *options, struct remote *remote)
{
    memset(remote, 0, sizeof(*remote));
    remote->options = options;
    remote->deadline_ns =
        clock_after_ms(options->timeout_ms != 0 ? options->timeout_ms : TIMEOUT_MS);
    enum topkd_status status = discover_url(options->url, remote->url, remote->detail);
    if (status == TOPKD_OK) {
        status = rpc_open(remote->url, remote->deadline_ns, &remote->supervisor, remote->detail);
    }
    if (status != TOPKD_OK) {
        return report_about(remote, options->url != NULL ? options->url : remote->url, status);
    }
    const struct wire_request request = {.kind = WIRE_DEVICES};
    enum ctl_exit code = remote_ask(remote, &request);
    if (code != CTL_EXIT_OK) {
        remote_close(remote);
        return code;
    }
    remote->devices = remote->reply.u.devices;
    return CTL_EXIT_OK;
}

void remote_close(struct remote *remote)
{
    rpc_close(remote->supervisor);
    remote->supervisor = NULL;
}

/* A worker that is starting or gone is no failure of the question. */
static bool is_up(const struct wire_device *device)
{
    return device->state == WIRE_DEVICE_READY || device->state == WIRE_DEVICE_DRAINING;
}

static enum ctl_exit ask_worker(struct remote *remote, const struct wire_device *device,
                                enum wire_kind kind)
{
    struct rpc *worker;
    enum topkd_status status = rpc_open(device->url, remote->deadline_ns, &worker, remote->detail);
    if (status == TOPKD_OK) {
        const struct wire_request request = {.kind = kind, .epoch = device->epoch};
        status =
            rpc_exchange(worker, &request, remote->deadline_ns, &remote->reply, remote->detail);
        rpc_close(worker);
    }
    return status == TOPKD_OK ? CTL_EXIT_OK : report_about(remote, device->url, status);
}

enum ctl_exit remote_visit(struct remote *remote, enum wire_kind kind,
                           void (*visit)(void *arg, const struct wire_device *device,
                                         const struct wire_reply *reply),
                           void *arg)
{
    const char *wanted = remote->options->device;
    bool found = false;
    for (uint32_t i = 0; i < remote->devices.num_devices; i++) {
        const struct wire_device *device = &remote->devices.devices[i];
        if (wanted != NULL && strcmp(wanted, device->device) != 0) {
            continue;
        }
        found = true;
        if (is_up(device)) {
            enum ctl_exit code = ask_worker(remote, device, kind);
            if (code != CTL_EXIT_OK) {
                return code;
            }
        }
        visit(arg, device, is_up(device) ? &remote->reply : NULL);
    }
    if (!found) {
        return report_failure(remote->options, CTL_EXIT_FAILED,
                              "%s has no device \"%s\"; see topkctl devices", remote->url,
                              wanted != NULL ? wanted : "");
    }
    return CTL_EXIT_OK;
}
