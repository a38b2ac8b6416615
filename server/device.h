/*
 * device.h - the only thing that the core knows of a device: one table of functions.
 *
 * A backend (device_cpu.c, device_cuda.c) is one `struct device_ops`. Everything is called from
 * the loop thread unless said otherwise; a job's end is reported from any thread. Addresses in a
 * `struct topk_args` mean what the device understands: host memory here, device memory there.
 */
#ifndef TOPKD_SERVER_DEVICE_H
#define TOPKD_SERVER_DEVICE_H

#include "bucket.h"
#include "gate.h"
#include "peer.h"
#include "socket_file.h"
#include "topk_select.h"
#include "topkd_wire.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DEVICE_JOB_MEMORIES_MAX 6u /* tensors of a selection */

struct device_config {
    char device[WIRE_UUID_SIZE]; /* which one */
    uint32_t threads;            /* of the CPU device; 0: one a processor */
    uint32_t lanes;              /* jobs that run at the same time */
    uint32_t client_lanes_max;   /* mailboxes open at once */
    uint32_t lane_idle_ms;       /* a mailbox without a step for so long is disarmed */
    uint32_t lane_poll_us;       /* longest look of a kernel's for a request; 0: none */
    const char *shm_prefix;      /* of the names of shared objects; kept by pointer */
    /* Of the worker's socket; a device that needs a side socket puts it beside, with those rights
     * and open to whom the gate admits. */
    const char *socket_path;
    struct socket_rights socket_rights;
    struct gate *gate;
};

/* A backend's own struct begins with it. */
struct device {
    const struct device_ops *ops;
};

struct device_info {
    enum wire_device_kind kind;
    char name[WIRE_NAME_SIZE]; /* for people */
    uint32_t k_max;
    uint64_t rows_max, width_max;
    uint32_t dtypes;           /* bit 1 << dtype for each type of scores that it selects from */
    uint32_t client_lanes_max; /* mailboxes; 0: none on this device */
};

/* ---- Memory ---------------------------------------------------------------------------------- */

/* Memory of the daemon that one client maps: its semaphore page, its output arena. */
struct device_shared {
    struct wire_memory memory; /* as Hello hands it over */
    uintptr_t address;         /* of byte 0 in arguments of jobs */
    uint64_t size_bytes;
};

struct device_shared_config {
    const char *name; /* unique in this worker: "7-page" */
    uint64_t size_bytes;
    struct peer peer; /* who may map it beside the daemon's own user */
    bool reserve;     /* take the memory now; else jobs do it (arena_bytes) */
    bool is_arena;    /* written by jobs; otherwise a page of semaphores */
};

/* Identifies an allocation behind a handle: equal while it lives, for every handle of it. The first
 * two words alone tell whether two mappings are the same memory. */
struct device_memory_key {
    uint64_t words[4];
};

/* Memory of a client. A backend's own struct begins with it. */
struct device_memory {
    struct device_memory_key key;
    uint64_t size_bytes; /* of the whole allocation, as the device sees it */
    bool is_writable;
    uintptr_t address; /* of its first byte; set by memory_map */
};

/* ---- Jobs ------------------------------------------------------------------------------------ */

enum device_job_phase {
    DEVICE_JOB_QUEUED = 0,  /* behind another of its lane */
    DEVICE_JOB_WAITING = 1, /* for its semaphore, or for its turn */
    DEVICE_JOB_RUNNING = 2,
    DEVICE_JOB_ENDED = 3
};

/* One selection. The caller's memory from submit until `done` was called. */
struct device_job {
    /* Set before submit. */
    struct topk_args args;
    struct topk_options options;
    const int32_t *lengths_host; /* [num_rows] valid lengths in host memory, or NULL: args says */
    struct bucket *bucket;
    struct wire_semaphore_ref wait, signal;                  /* in the lane's page; value 0: none */
    struct device_memory *memories[DEVICE_JOB_MEMORIES_MAX]; /* that args points into */
    uint32_t num_memories;
    struct device_shared *arena; /* that the outputs point into, or NULL */
    /* The part of the arena that must get memory behind it before anything is written there:
     * NO_MEMORY instead of a fault. 0 bytes: it has. */
    uint64_t arena_offset, arena_bytes;
    uint64_t submitted_ns; /* monotonic clock, when the request arrived */
    /* Called once, from any thread, when the result is written and the semaphore signalled. It may
     * only push and wake. */
    void (*done)(struct device_job *job);

    /* The backend's from submit to done; the core may read `phase`, atomically. */
    struct device_job *next;
    uint32_t phase;         /* enum device_job_phase */
    uint32_t cancel_status; /* enum topkd_status; 0: not cancelled */
    bool cancel;

    /* The result, valid in and after done. */
    enum topkd_status status;
    char detail[WIRE_DETAIL_SIZE];
    uint64_t queued_ns, run_ns; /* from submitted_ns to the start, and the selection itself */
};

struct device_lane;

/* ---- Mailboxes ------------------------------------------------------------------------------- */

/* A selection that a stream of the client's triggers (struct wire_mailbox), as often as it likes.
 * Regions and bucket are the caller's to hold until it is closed. */
struct device_mailbox_config {
    struct topk_args args; /* num_rows: the most rows of a step */
    struct bucket *bucket;
    uintptr_t live_rows;      /* address of int32 [1], or 0: args.num_rows */
    uintptr_t device_mailbox; /* address of word and release, or 0: in the file */
    uint32_t poll_us;         /* as the client asks, wire_lane_open_request */
    const struct wire_memory *file;
    struct peer peer; /* who handed the file over */
};

struct device_mailbox;

struct device_mailbox_opened {
    struct device_mailbox *mailbox;
    bool fills_device; /* its selection has a block for every multiprocessor */
    uint32_t poll_us;  /* of those asked for */
};

struct device_mailbox_counts {
    uint32_t num_open;
    uint32_t num_armed;  /* of them: a stream waits for the client */
    uint64_t num_steps;  /* since the device was opened */
    uint64_t num_pauses; /* times that all mailboxes stood still so that memory could be freed */
};

/* ---- The table ------------------------------------------------------------------------------- */

/* `detail` is WIRE_DETAIL_SIZE bytes and gets the text of an error. */
struct device_ops {
    /* Opens the device. May block (a context, kernels to load). */
    enum topkd_status (*open)(const struct device_config *config, struct device **device_p,
                              char *detail);
    /* No lane, memory or shared object is left. */
    void (*close)(struct device *device);
    void (*info)(const struct device *device, struct device_info *info_p);
    /* Rows by route since open. */
    void (*routes)(const struct device *device, struct topk_routes *routes_p);

    /* Prepares a bucket's work in bucket->prepared (a captured graph), or frees it again. No job of
     * the bucket is in flight. A device that prepares nothing leaves NULL; bucket_close may meet a
     * bucket that was never prepared. */
    enum topkd_status (*bucket_open)(struct device *device, struct bucket *bucket, char *detail);
    void (*bucket_close)(struct device *device, struct bucket *bucket);

    /* Zeroed memory that the client can map. Both: any thread, and they may take long. */
    enum topkd_status (*shared_create)(struct device *device,
                                       const struct device_shared_config *config,
                                       struct device_shared **shared_p, char *detail);
    void (*shared_destroy)(struct device *device, struct device_shared *shared);

    /* A client's memory in two steps, so that the core can look for a mapping that it has already:
     * memory_open finds out what the handle is, memory_map makes it addressable and proves that
     * with a read of its ends. memory_close undoes either; any thread, and it may take long. */
    enum topkd_status (*memory_open)(struct device *device,
                                     const struct wire_register_request *request,
                                     const struct peer *peer, struct device_memory **memory_p,
                                     char *detail);
    enum topkd_status (*memory_map)(struct device *device, struct device_memory *memory,
                                    char *detail);
    void (*memory_close)(struct device *device, struct device_memory *memory);
    /* Whether a mapped memory has vanished under us; any thread. */
    bool (*memory_faulted)(const struct device_memory *memory);
    /* The owner has died: removes the name of its memory, if it is one that libtopkd made. */
    void (*memory_unlink)(const struct wire_memory *memory, const struct device_memory_key *key,
                          const struct peer *peer);

    /* A lane runs the jobs submitted to it in order, like a stream: wait for the semaphore, select,
     * signal. A device may let jobs overtake one that waits, and run jobs at the same time that do
     * not touch what the other writes, but for those that signal the same semaphore. A job that
     * fails or is cancelled signals as well, in its turn, with its status. Lanes do not wait for
     * each other. */
    enum topkd_status (*lane_create)(struct device *device, struct device_shared *page,
                                     struct device_lane **lane_p, char *detail);
    /* Create, destroy: any thread. At destroy no job is in flight and none will come. */
    void (*lane_destroy)(struct device *device, struct device_lane *lane);
    void (*lane_submit)(struct device_lane *lane, struct device_job *job);
    /* Ends a job early with this status; `done` comes all the same. True when the job had not
     * begun and never will: it touches nothing, though its turn may be some time away. */
    bool (*lane_cancel)(struct device_lane *lane, struct device_job *job, enum topkd_status status);

    /* Looks once whether jobs have ended or semaphores were reached, and does what follows; `done`
     * may be called in it. False: nothing has happened for a while, do not spin. NULL on a device
     * that wakes the loop for all that happens anyway. A device that has it also looks by itself,
     * later than a loop that spins would. */
    bool (*look)(struct device *device);

    /* The mailbox's steps run beside the lanes. NULL on a device that has none (client_lanes_max is
     * 0). Open: BUSY when all places are taken, or the device does not take it up. Close: its last
     * step has ended, the client's memory is not touched any more. Both: any thread, and they may
     * take long. */
    enum topkd_status (*mailbox_open)(struct device *device,
                                      const struct device_mailbox_config *config,
                                      struct device_mailbox_opened *opened_p, char *detail);
    void (*mailbox_close)(struct device *device, struct device_mailbox *mailbox);
    void (*mailbox_counts)(struct device *device, struct device_mailbox_counts *counts_p);
    /* Whether the device is lost for good, which no job may be there to say. May be NULL. */
    bool (*is_lost)(const struct device *device);

    /* One small selection with a known answer (canary.h). Blocks; on any one thread at a time. */
    enum topkd_status (*self_test)(struct device *device, uint64_t seed, char *detail);
};

extern const struct device_ops device_cpu_ops;

/* NULL in a build without CUDA. */
const struct device_ops *device_cuda_ops(void);

#endif
