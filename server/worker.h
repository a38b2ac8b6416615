/*
 * worker.h - one process that owns one device: what the supervisor's main needs of it.
 */
#ifndef TOPKD_SERVER_WORKER_H
#define TOPKD_SERVER_WORKER_H

#include "settings.h"
#include "topkd_wire.h"

#include <stdbool.h>
#include <stdint.h>

/* What differs from worker to worker; the rest is in the settings. */
struct worker_args {
    char device[WIRE_UUID_SIZE]; /* "cpu" or "GPU-..." */
    uint32_t threads;            /* of the CPU device; 0: one a processor */
    uint64_t epoch;              /* this life; never used before on this machine since its boot */
    char url[WIRE_URL_SIZE];     /* where to listen: "ipc:///run/topkd/cpu.sock" */
    int control_fd;              /* channel to the supervisor, CONTROL_FD */
    int figures_fd;              /* page that the supervisor reads (figures.h), or -1 */
    /* Every POSIX shared memory object of this worker begins with it ("/topkd-<instance>-<epoch>-",
     * at most 48 characters), so that the supervisor can remove what a dead worker left. */
    char shm_prefix[WIRE_NAME_SIZE];
};

/*
 * Runs the worker: opens the device, captures the buckets, listens, says READY, serves until the
 * control channel says DRAIN or closes. Returns the exit code of the process: 0 after a drain or
 * the end of the channel, EX_UNAVAILABLE when the device cannot be opened, EX_SOFTWARE after a
 * device fault. Both arguments are only read, and live as long as the call. log_init has been
 * called; SIGTERM, SIGINT and SIGHUP are ignored in a worker (the supervisor speaks for them),
 * SIGPIPE too.
 */
int worker_main(const struct settings *settings, const struct worker_args *args);

/* Whether this build can serve a kind of device. */
bool worker_device_supported(enum wire_device_kind kind);

#endif
