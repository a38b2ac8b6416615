/*
 * supervisor_internal.h - what the files supervisor*.c share. One loop thread owns it all.
 */
#ifndef TOPKD_SERVER_SUPERVISOR_INTERNAL_H
#define TOPKD_SERVER_SUPERVISOR_INTERNAL_H

#include "control.h"
#include "endpoint.h"
#include "figures.h"
#include "http.h"
#include "options.h"
#include "settings.h"
#include "supervisor_folder.h"
#include "supervisor_shm.h"
#include "topkd_wire.h"

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#define SUPERVISOR_SIGNALS 4u

struct supervisor;

/* Where a device's worker stands:
 *
 *   WAITING --timer--> STARTING --READY--> READY --DRAIN--> DRAINING --exit--> STOPPED
 *      ^                  |                  |                  |
 *      +----- exit -------+------ exit ------+   silent, wrong canary, late: ENDING, until exit
 */
enum slot_state {
    SLOT_STOPPED,  /* no process, and none to come */
    SLOT_WAITING,  /* no process; the timer starts one */
    SLOT_STARTING, /* the timer limits it to worker.start_ms */
    SLOT_READY,    /* the timer looks for heartbeats */
    SLOT_DRAINING, /* the timer kills it after the deadline */
    SLOT_ENDING    /* killed, or it closed its channel; the timer kills it again */
};

/* One worker process; apart from its slot because libuv closes handles later. */
struct life {
    struct slot *slot; /* NULL once it has exited */
    uv_process_t process;
    uv_poll_t poll; /* of control_fd */
    int control_fd;
    bool has_process, has_poll; /* the handle is to be closed */
};

/* A device and its present worker, if there is one. */
struct slot {
    struct supervisor *supervisor;
    struct settings_device device;
    char url[WIRE_URL_SIZE];
    enum slot_state state;
    struct life *life; /* NULL in STOPPED and WAITING */
    uv_timer_t timer;
    uint64_t epoch;              /* of the present or last life */
    uint32_t num_starts;         /* processes started */
    uint32_t num_canaries_wrong; /* workers killed for one */
    uint32_t backoff_ms;         /* the last wait; 0: none yet */
    uint64_t ready_ms;           /* loop time of READY; 0: this life was not ready yet */
    uint64_t heard_ms;           /* loop time of the last message */
    uint64_t check_ms;           /* READY: loop time at which the timer is due */
    const char *end_reason;      /* why we ended this life; NULL: it ended by itself */
    struct control_ready ready;
    struct control_heartbeat heartbeat;
    struct figures_page *figures_page; /* of all its lives; NULL without HTTP */
    int figures_fd;                    /* of that page, or -1 */
    struct figures figures;            /* what was read last */
};

/* Looks for buffers of dead clients, beside the loop: others may fill the folder as they like. */
struct supervisor_sweep {
    uv_timer_t timer;
    uv_work_t work;
    bool is_running;
    uint32_t num_removed; /* by the one that runs */
};

struct supervisor_counters {
    uint64_t requests, requests_failed, messages_rejected;
};

struct supervisor {
    const struct options *options;
    struct settings settings; /* in force; the device list as configured */
    struct folder folder;
    struct shm_instance shm;
    int settings_fd; /* sealed text of settings, for workers to come */
    uint64_t epoch;
    uv_loop_t loop;
    uint64_t started_ms;
    uv_signal_t signals[SUPERVISOR_SIGNALS];
    uv_timer_t watchdog;
    uv_timer_t finish;
    struct supervisor_sweep sweep;
    uint64_t drain_end_ms, finish_end_ms, healthy_ms; /* loop times */
    uint32_t num_slots;
    struct slot slots[SETTINGS_DEVICES_MAX];
    struct endpoint *endpoint;
    struct http_server *http; /* NULL: off */
    struct supervisor_counters counters;
    bool is_draining, is_finishing, was_ready;
    int exit_code;
    /* One message at a time. */
    struct wire_buffer buffer;
    struct wire_request request;
    struct wire_reply reply;
    uint8_t reply_bytes[WIRE_MESSAGE_SIZE_MAX];
};

/* ---- supervisor_slot.c ----------------------------------------------------------------------- */

void slot_init(struct slot *slot, struct supervisor *supervisor,
               const struct settings_device *device);
/* Starts a worker now; a failure is logged and tried again later. Only in STOPPED. */
void slot_start(struct slot *slot);
/* No new worker, and the present one ends by the deadline. May be called again, with less time. */
void slot_drain(struct slot *slot, uint32_t deadline_ms);
/* Sends new settings; they are lost on a worker that does not read, which is then killed. */
void slot_reload(struct slot *slot, int settings_fd);
/* Closes the timer; only in STOPPED. */
void slot_close(struct slot *slot);
pid_t slot_pid(const struct slot *slot); /* 0: no process */

enum wire_device_state slot_device_state(const struct slot *slot);
enum wire_device_kind slot_device_kind(const struct slot *slot);

/* ---- supervisor_discovery.c ------------------------------------------------------------------ */

enum topkd_status discovery_open(struct supervisor *supervisor, char *detail);
/* Takes changed limits over. */
void discovery_configure(struct supervisor *supervisor);

/* ---- supervisor_http.c ----------------------------------------------------------------------- */

/* Does nothing while http.port is 0. Before the first worker starts. */
enum topkd_status supervisor_http_open(struct supervisor *supervisor, char *detail);
/* Takes changed limits over. */
void supervisor_http_configure(struct supervisor *supervisor);
/* Also when it is not open. */
void supervisor_http_close(struct supervisor *supervisor);

/* ---- supervisor.c ---------------------------------------------------------------------------- */

/* A slot changed its state: says so to systemd, and ends the daemon when a drain is over. */
void supervisor_slot_changed(struct supervisor *supervisor);
/* Begins to drain, or shortens the time of a drain that runs. */
void supervisor_drain(struct supervisor *supervisor, uint32_t deadline_ms, const char *reason);
/* A process of ours has been reaped; others may now be seen (PID 1). */
void supervisor_reap(struct supervisor *supervisor);
uint32_t supervisor_num_restarts(const struct supervisor *supervisor);

#endif
