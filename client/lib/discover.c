/* discover.c - the supervisor's URL and its devices. */
#include "discover.h"

#include "fault.h"
#include "rpc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum topkd_status discover_url(const char *url, char *url_p, char *detail)
{
    char path[WIRE_URL_SIZE];
    const char *source = "the URL";
    if (!url || !url[0]) {
        url = getenv("TOPKD_URL");
        source = "TOPKD_URL";
    }
    if (!url || !url[0]) {
        const char *runtime = getenv("XDG_RUNTIME_DIR");
        url = DISCOVER_DEFAULT_URL;
        if (runtime && runtime[0] == '/') {
            int length = snprintf(path, sizeof(path), "ipc://%s/topkd/topkd.sock", runtime);
            if (length < (int)sizeof(path) && access(path + strlen("ipc://"), F_OK) == 0) {
                url = path;
            }
        }
    }
    if (strlen(url) >= WIRE_URL_SIZE) {
        return fault(detail, TOPKD_E_INVALID, "%s has %zu characters, at most %u are allowed",
                     source, strlen(url), WIRE_URL_SIZE - 1);
    }
    memcpy(url_p, url, strlen(url) + 1);
    return TOPKD_OK;
}

static const char *state_text(enum wire_device_state state)
{
    switch (state) {
    case WIRE_DEVICE_STARTING:
        return "starting";
    case WIRE_DEVICE_READY:
        return "ready";
    case WIRE_DEVICE_DRAINING:
        return "draining";
    case WIRE_DEVICE_DOWN:
        return "down";
    }
    return "in an unknown state";
}

static enum topkd_status fault_not_ready(const struct wire_device *device, const char *url,
                                         char *detail)
{
    enum topkd_status status =
        device->state == WIRE_DEVICE_DRAINING ? TOPKD_E_DRAINING : TOPKD_E_UNREACHABLE;
    return fault(detail, status, "device %s of %s is %s (epoch %llu, %u restarts)", device->device,
                 url, state_text(device->state), (unsigned long long)device->epoch,
                 device->restarts);
}

/* "no device X here; it has cpu, GPU-..." */
static enum topkd_status fault_no_device(const struct wire_devices_reply *devices,
                                         const char *device, const char *url, char *detail)
{
    char names[WIRE_DETAIL_SIZE / 2] = "no device";
    size_t used = 0;
    for (uint32_t i = 0; i < devices->num_devices && used + 4 < sizeof(names); i++) {
        int length = snprintf(names + used, sizeof(names) - used, "%s%s", i > 0 ? ", " : "",
                              devices->devices[i].device);
        used += length > 0 ? (size_t)length : 0;
    }
    return fault(detail, TOPKD_E_NO_DEVICE, "device \"%s\" is not configured: %s has %s",
                 device[0] ? device : "(any)", url, names);
}

static enum topkd_status choose(const struct wire_devices_reply *devices, const char *device,
                                const char *url, struct wire_device *device_p, char *detail)
{
    const struct wire_device *candidate = NULL;
    for (uint32_t i = 0; i < devices->num_devices; i++) {
        const struct wire_device *offered = &devices->devices[i];
        if (device[0] && strcmp(device, offered->device) != 0) {
            continue;
        }
        if (offered->state == WIRE_DEVICE_READY) {
            *device_p = *offered;
            return TOPKD_OK;
        }
        if (!candidate || offered->state == WIRE_DEVICE_STARTING) {
            candidate = offered;
        }
    }
    return candidate ? fault_not_ready(candidate, url, detail)
                     : fault_no_device(devices, device, url, detail);
}

enum topkd_status discover_device(const char *url, const char *device, uint64_t deadline_ns,
                                  struct wire_device *device_p, char *detail)
{
    struct wire_reply *reply = malloc(sizeof(*reply));
    if (!reply) {
        return fault(detail, TOPKD_E_NO_MEMORY, "no memory for a reply");
    }
    struct rpc *rpc;
    enum topkd_status status = rpc_open(url, deadline_ns, &rpc, detail);
    if (status != TOPKD_OK) {
        goto err_free;
    }
    struct wire_request request = {.kind = WIRE_DEVICES};
    status = rpc_exchange(rpc, &request, deadline_ns, reply, detail);
    if (status == TOPKD_OK) {
        status = choose(&reply->u.devices, device, url, device_p, detail);
    }
    rpc_close(rpc);
err_free:
    free(reply);
    return status;
}
