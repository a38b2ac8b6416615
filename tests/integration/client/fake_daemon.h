/*
 * fake_daemon.h - what the files of fake_daemon share: fake_daemon.c listens, follows the rules of
 * a test and hands requests on; fake_daemon_work.c does what a worker does with them.
 */
#ifndef TOPKD_TESTS_FAKE_DAEMON_H
#define TOPKD_TESTS_FAKE_DAEMON_H

#include "topkd_wire.h"

#include <pthread.h>
#include <stdint.h>
#include <sys/types.h>

enum { CONTEXTS = 48, SESSIONS = 64, REGIONS = 64, RULES = 16, SLOTS = 64 };

struct rule {
    char kind[16], action[16];
    uint64_t number; /* 0: each */
    uint32_t argument;
};

struct region {
    uint8_t *base;
    uint64_t size;
    uint32_t generation;
    uint32_t looks; /* unregister requests so far */
};

struct session {
    uint64_t id;
    char page_name[64], arena_name[64];
    struct wire_semaphore *page;
    uint8_t *arena;
    struct region regions[REGIONS];
    uint64_t leases[SLOTS];
};

struct fake_daemon {
    const char *supervisor_url, *worker_url;
    uint64_t epoch;
    uint64_t *counters;
    char device[WIRE_UUID_SIZE];
    enum wire_device_kind kind;
    enum wire_device_state state;
    uint32_t starting; /* answers of Devices that still say so */
    uint32_t drain_looks;
    uint32_t version;
    uid_t uid;
    struct wire_limits limits;
    struct rule rules[RULES];
    uint32_t num_rules;
    pthread_mutex_t mutex, running;
    struct session sessions[SESSIONS];
    uint64_t num_sessions, num_leases;
    uint32_t num_generations;
};

extern struct fake_daemon fake;

/* Ends the process with the text of errno. */
void fake_die(const char *what);

/* ---- fake_daemon_work.c; answers go to *reply ------------------------------------------------ */

/* Fills a refusal and returns its status. */
enum topkd_status fake_refuse(struct wire_reply *reply, enum topkd_status status,
                              const char *detail);
/* With the mutex held. */
void fake_say_hello(struct wire_reply *reply);
void fake_list_devices(struct wire_reply *reply);
void fake_open_region(struct session *session, const struct wire_request *request,
                      struct wire_reply *reply);
void fake_close_region(struct session *session, const struct wire_request *request,
                       struct wire_reply *reply);
void fake_release(struct session *session, const struct wire_request *request,
                  struct wire_reply *reply);
/* Without it: takes as long as the selection. */
void fake_select(struct session *session, const struct wire_request *request,
                 struct wire_reply *reply);

#endif
