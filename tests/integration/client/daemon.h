/*
 * daemon.h - the real topkd under a test's control: one supervisor with a CPU worker in a folder of
 * its own. Fails the test when something cannot be had.
 */
#ifndef TOPKD_TESTS_DAEMON_H
#define TOPKD_TESTS_DAEMON_H

#include "topkd.h"

#include <stdbool.h>
#include <sys/types.h>

struct daemon {
    char folder[64];
    char url[128];
    pid_t pid; /* 0: not running */
};

/* A folder; nothing runs yet. */
void daemon_init(struct daemon *daemon);
/* Starts it; does not wait: clients find it. */
void daemon_start(struct daemon *daemon);
/* SIGTERM, and waits for its end; its exit code must be 0. Nothing when it does not run. */
void daemon_stop(struct daemon *daemon);
/* Stops it and removes the folder. */
void daemon_fini(struct daemon *daemon);

/* The worker's process, waiting until there is one; the one that is not `other`. */
pid_t daemon_worker(const struct daemon *daemon, pid_t other);

/* A client of it. */
struct topkd_client *daemon_client(const struct daemon *daemon,
                                   const struct topkd_client_options *options);

#endif
