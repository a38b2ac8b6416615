/*
 * discover.h - where the daemon is, and which worker serves a device.
 */
#ifndef TOPKD_CLIENT_DISCOVER_H
#define TOPKD_CLIENT_DISCOVER_H

#include "topkd_wire.h"

#include <stdint.h>

/* Where the daemon listens when nobody says otherwise; the service of the distribution. */
#define DISCOVER_DEFAULT_URL "ipc:///run/topkd/topkd.sock"

/*
 * The URL of the supervisor, copied to url_p[WIRE_URL_SIZE]: `url` unless NULL or "", else
 * $TOPKD_URL, else $XDG_RUNTIME_DIR/topkd/topkd.sock if it exists, else DISCOVER_DEFAULT_URL.
 * TOPKD_E_INVALID when the one that counts is too long. Any thread.
 */
enum topkd_status discover_url(const char *url, char *url_p, char *detail);

/*
 * Asks the supervisor for its devices and picks `device` ("" for the first that is ready) when it
 * is ready. Blocks until the deadline at most; does not wait for a device that is starting.
 * TOPKD_E_NO_DEVICE: not configured there. TOPKD_E_UNREACHABLE: configured, but starting or down
 * now (the text says which). TOPKD_E_DRAINING; and the errors of rpc_open and rpc_exchange.
 */
enum topkd_status discover_device(const char *url, const char *device, uint64_t deadline_ns,
                                  struct wire_device *device_p, char *detail);

#endif
