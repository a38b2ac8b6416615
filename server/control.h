/*
 * control.h - the channel between the supervisor and one worker.
 *
 * A SOCK_SEQPACKET socket pair; the worker finds its end at descriptor CONTROL_FD. A message is one
 * packet of fixed size with a version, so that both sides can tell a foreign one. Both ends are
 * non-blocking. When either side closes, the worker ends: the supervisor sees the process exit,
 * the worker sees end of file, answers what is pending and exits.
 *
 *   worker -> supervisor   READY       buckets captured, canary right, socket listening
 *                          HEARTBEAT   every worker.heartbeat_ms from the worker's loop, also
 *                                      while starting if the loop turns
 *                          DRAINED     no work left after DRAIN; the worker exits with 0 next
 *   supervisor -> worker   DRAIN       take no new work, end by the deadline
 *                          RELOAD      new settings: a sealed descriptor travels along; the
 *                                      worker takes the live ones over (settings_merge_live)
 */
#ifndef TOPKD_SERVER_CONTROL_H
#define TOPKD_SERVER_CONTROL_H

#include "topkd_status.h"
#include "topkd_wire.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CONTROL_FD 3        /* of a worker: its end of the channel */
#define CONTROL_CONFIG_FD 4 /* of a worker: the sealed text of the settings */
#define CONTROL_VERSION 1u
#define CONTROL_MAGIC 0x746b4354u /* "TCkt" */

enum control_kind {
    CONTROL_READY = 1,
    CONTROL_HEARTBEAT = 2,
    CONTROL_DRAINED = 3,
    CONTROL_DRAIN = 16,
    CONTROL_RELOAD = 17
};

#define CONTROL_CANARY_NEVER UINT64_MAX

struct control_ready {
    uint32_t device_kind;             /* enum wire_device_kind */
    char device_name[WIRE_NAME_SIZE]; /* for people: "CPU, 16 threads, avx2" */
};

struct control_heartbeat {
    uint32_t state;         /* enum wire_device_state */
    uint32_t canary_ok;     /* 0: one came out wrong, or none has ended */
    uint64_t canary_age_ms; /* since it finished, or CONTROL_CANARY_NEVER */
    uint32_t num_sessions;
    uint32_t num_running; /* requests queued or running */
};

struct control_drain {
    uint32_t deadline_ms; /* from receipt */
};

/* Same machine, same executable: native layout. Unused bytes are zero. */
struct control_message {
    uint32_t magic;   /* CONTROL_MAGIC */
    uint32_t version; /* CONTROL_VERSION */
    uint64_t epoch;   /* of the worker */
    uint32_t kind;    /* enum control_kind */
    uint32_t reserved;
    union {
        struct control_ready ready;
        struct control_heartbeat heartbeat;
        struct control_drain drain;
    } u;
};

/* A zeroed message of this kind, with magic, version and epoch. */
struct control_message control_message_make(enum control_kind kind, uint64_t epoch);

/* A pair of connected ends, both close-on-exec and non-blocking. 0, or -errno. */
int control_pair(int fds_p[2]);

/*
 * Sends one message, with a descriptor unless `pass_fd` is -1 (the sender keeps its own copy). 0,
 * or -errno: -EAGAIN when the other side does not read (the message is dropped), -EPIPE or
 * -ECONNRESET when it is gone. Never raises SIGPIPE, never blocks.
 */
int control_send(int fd, const struct control_message *message, int pass_fd);

/*
 * Takes one message. 1 and *message_p, with *fd_p a descriptor that the caller closes, or -1. 0 at
 * end of file. -EAGAIN when there is none; -EPROTO for a packet that is not ours (a received
 * descriptor is closed); other -errno. Never blocks.
 */
int control_receive(int fd, struct control_message *message_p, int *fd_p);

const char *control_kind_name(enum control_kind kind);

#endif
