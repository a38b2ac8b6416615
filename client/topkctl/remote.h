/*
 * remote.h - raw requests to the supervisor and to each worker, for commands that only look.
 * They open no session and therefore count against no limit of the daemon.
 */
#ifndef TOPKCTL_REMOTE_H
#define TOPKCTL_REMOTE_H

#include "ctl.h"
#include "rpc.h"
#include "topkd_wire.h"

/* The supervisor that the options mean, and what it was asked last. Large; not for small stacks. */
struct remote {
    const struct ctl_options *options;
    char url[WIRE_URL_SIZE];
    uint64_t deadline_ns;
    struct rpc *supervisor;
    struct wire_devices_reply devices;
    struct wire_reply reply;
    char detail[WIRE_DETAIL_SIZE];
};

/* Connects and asks for the devices. Reports its own failure. */
enum ctl_exit remote_open(const struct ctl_options *options, struct remote *remote);
void remote_close(struct remote *remote);

/* Sends a request to the supervisor; the answer is in remote->reply. Reports its own failure. */
enum ctl_exit remote_ask(struct remote *remote, const struct wire_request *request);

/*
 * Sends a request without body to the worker of each device that the options name (all without
 * --device) and calls visit(arg, device, reply) with its answer; reply is NULL for a device that
 * is not up now. Stops at the first failure, which is reported. CTL_EXIT_FAILED when --device names
 * none.
 */
enum ctl_exit remote_visit(struct remote *remote, enum wire_kind kind,
                           void (*visit)(void *arg, const struct wire_device *device,
                                         const struct wire_reply *reply),
                           void *arg);

const char *remote_kind_name(enum wire_device_kind kind);    /* "cpu", "cuda" */
const char *remote_state_name(enum wire_device_state state); /* "ready", ... */

#endif
