/*
 * topkd_wire.h - the wire contract as plain C structs.
 *
 * A message is a FlatBuffer (proto/topkd.fbs) with a file identifier; these structs are what both
 * sides see of it. Encoding and decoding live in one C++ file behind this header: no C++ type,
 * exception or generated name leaves it. Decoding copies the message to aligned memory, runs the
 * FlatBuffers verifier, then checks every enum, string length and vector length against the limits
 * below, and that names hold no control characters; encoding checks the same. Neither checks
 * meaning (regions, geometry, permission): that is the server's work.
 *
 * Rules of evolution: fields are only appended; an unknown request kind is answered
 * TOPKD_E_UNSUPPORTED; WIRE_VERSION changes only when an old peer would misunderstand.
 */
#ifndef TOPKD_WIRE_H
#define TOPKD_WIRE_H

#include "topkd_status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define WIRE_VERSION 1u
#define WIRE_MESSAGE_SIZE_MAX 65536u /* bytes, without what topkd_stream.h puts before them */
#define WIRE_LENGTHS_MAX 8192u       /* inline valid lengths a Select may carry (32 KiB) */
#define WIRE_BATCH_MAX 16u           /* Selects of one SelectBatch; choice: 5 KiB of structs */
#define WIRE_NAME_SIZE 64u           /* client, device and object names, terminator included */
#define WIRE_URL_SIZE 128u
#define WIRE_DETAIL_SIZE 256u
#define WIRE_HANDLE_SIZE 128u /* a CUDA IPC handle is 64 bytes, a shm name at most 128 */
#define WIRE_UUID_SIZE 48u    /* "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx" or "cpu" */
#define WIRE_DEVICES_MAX 64u
#define WIRE_SESSIONS_MAX 256u /* rows of one Sessions reply */
#define WIRE_BUCKETS_MAX 64u   /* rows of one Stats reply */
#define WIRE_HISTOGRAM_BINS 40u
/* How the names of shared memory objects that libtopkd makes begin; no other name is unlinked for a
 * dead client (unlink_when_dead). Who makes such an object holds a shared flock on it as long as it
 * wants the name: a daemon unlinks those that nobody holds. */
#define WIRE_SHM_BUFFER_PREFIX "/topkd-held-"

/* Where a message may go: the supervisor answers HELLO, PING, DEVICES, STATS and DRAIN; a worker
 * answers all but DEVICES. */
#define WIRE_KIND_TABLE(X)                                                                         \
    X(WIRE_HELLO, 1, "hello")                                                                      \
    X(WIRE_PING, 2, "ping")                                                                        \
    X(WIRE_DEVICES, 3, "devices")                                                                  \
    X(WIRE_REGISTER, 4, "register")                                                                \
    X(WIRE_UNREGISTER, 5, "unregister")                                                            \
    X(WIRE_SELECT, 6, "select")                                                                    \
    X(WIRE_RELEASE, 7, "release")                                                                  \
    X(WIRE_LANE_OPEN, 8, "lane_open")                                                              \
    X(WIRE_LANE_CLOSE, 9, "lane_close")                                                            \
    X(WIRE_STATS, 10, "stats")                                                                     \
    X(WIRE_SESSIONS, 11, "sessions")                                                               \
    X(WIRE_DRAIN, 12, "drain")                                                                     \
    X(WIRE_SELECT_BATCH, 13, "select_batch")

enum wire_kind {
#define WIRE_KIND_ENUM(name, number, text) name = number,
    WIRE_KIND_TABLE(WIRE_KIND_ENUM)
#undef WIRE_KIND_ENUM
};

enum wire_device_kind { WIRE_DEVICE_CPU = 0, WIRE_DEVICE_CUDA = 1 };
enum wire_device_state {
    WIRE_DEVICE_STARTING = 0,
    WIRE_DEVICE_READY = 1,
    WIRE_DEVICE_DRAINING = 2,
    WIRE_DEVICE_DOWN = 3 /* the worker died; a new one is on its way */
};

/* How memory is handed over. */
enum wire_memory_kind {
    WIRE_MEMORY_NONE = 0,
    WIRE_MEMORY_SHM = 1,      /* handle: name of a POSIX shared memory object, "/name" */
    WIRE_MEMORY_CUDA_IPC = 2, /* handle: cudaIpcMemHandle_t, 64 bytes */
    WIRE_MEMORY_CUDA_FD = 3   /* handle: ticket of a descriptor sent through the side socket */
};

enum wire_access { WIRE_ACCESS_READ = 1, WIRE_ACCESS_READ_WRITE = 3 };

struct wire_memory {
    enum wire_memory_kind kind;
    uint32_t handle_bytes;
    uint8_t handle[WIRE_HANDLE_SIZE];
    uint64_t allocation_bytes; /* of the whole object behind the handle */
};

/* A semaphore in the session's page: a timeline (its value only grows) on its own cache line. The
 * daemon owns the page. A failure of the work that was to signal v leaves failed_value = v and its
 * status before value = v, so that a waiter never hangs and can tell. Fields are accessed
 * atomically; a futex waits on the low 32 bits of value. */
struct wire_semaphore {
    uint64_t value;
    uint64_t failed_value;
    uint32_t failed_status;
    uint32_t num_failed;
    uint8_t reserved[40];
};

struct wire_limits {
    uint32_t regions_max;     /* a session */
    uint32_t outstanding_max; /* requests a session may have in flight */
    uint32_t semaphores;      /* entries of the session's page */
    uint32_t lanes_max;       /* client lanes a session may open; 0: no client lanes here */
    uint32_t k_max;
    uint32_t timeout_ms_max;   /* longest deadline a request may ask for */
    uint64_t region_bytes_max; /* mapped bytes of all regions of a session */
    uint64_t rows_max, width_max;
    uint32_t arena_slots;      /* slots of the session's output arena */
    uint64_t arena_slot_bytes; /* bytes a slot */
    uint32_t batch_max;        /* Selects that a SelectBatch may carry; 0: no such message here */
    /* Types of scores that this worker reads: bit 1 << dtype; 0 is what a worker says that knows
     * float32 alone. Such a worker overlooks the dtype of a request, so whoever sends another one
     * looks here first, in each session anew. */
    uint32_t dtypes;
};

struct wire_hello_request {
    uint32_t version; /* WIRE_VERSION of the sender */
    char client_name[WIRE_NAME_SIZE];
    char device[WIRE_UUID_SIZE]; /* the device the client expects, "" any; refused if another */
};

struct wire_hello_reply {
    uint32_t version;
    enum wire_device_kind device_kind;
    char device[WIRE_UUID_SIZE];
    char server_version[WIRE_NAME_SIZE];
    struct wire_limits limits;
    struct wire_memory semaphores; /* struct wire_semaphore [limits.semaphores] */
    struct wire_memory arena;      /* limits.arena_slots slots of arena_slot_bytes; may be NONE */
};

struct wire_device {
    char device[WIRE_UUID_SIZE];
    char name[WIRE_NAME_SIZE];
    char url[WIRE_URL_SIZE]; /* the worker's socket */
    enum wire_device_kind kind;
    enum wire_device_state state;
    uint64_t epoch;
    uint32_t restarts;
    int32_t pid; /* of the worker; 0 when down */
};

struct wire_devices_reply {
    uint32_t num_devices;
    struct wire_device devices[WIRE_DEVICES_MAX];
};

struct wire_register_request {
    struct wire_memory memory;
    uint64_t buffer_id; /* tells a recycled address from the old allocation; 0 unknown */
    uint64_t offset;    /* of the region in the object */
    uint64_t length;    /* bytes of the region */
    enum wire_access access;
    char device[WIRE_UUID_SIZE]; /* where the memory lives */
    bool unlink_when_dead; /* a shm object of libtopkd: unlink its name once the peer has died */
};

struct wire_region_ref {
    uint64_t region;     /* id; 0 none */
    uint32_t generation; /* of the id */
    uint64_t offset;     /* bytes from the region's start */
};

struct wire_register_reply {
    uint64_t region;
    uint32_t generation;
};

struct wire_unregister_request {
    uint64_t region;
    uint32_t generation;
};

struct wire_unregister_reply {
    bool draining; /* work in flight still uses it; closed when that ends */
};

enum wire_lengths_mode { WIRE_LENGTHS_ALL = 0, WIRE_LENGTHS_INLINE = 1, WIRE_LENGTHS_REGION = 2 };
enum wire_output_mode { WIRE_OUTPUT_REGION = 0, WIRE_OUTPUT_ARENA = 1 };
enum wire_reply_when {
    WIRE_REPLY_DONE = 0,    /* when the result is written (or the work has failed) */
    WIRE_REPLY_ENQUEUED = 1 /* as soon as the work is queued; the end is seen on the semaphore */
};

struct wire_semaphore_ref {
    uint32_t index;
    uint64_t value; /* 0: none */
};

/* Shapes as in struct topk_args; strides in elements. */
struct wire_select_request {
    struct wire_region_ref scores; /* [rows, width] of dtype */
    int64_t row_stride;
    uint32_t rows, width, k;
    uint8_t order, ties; /* values of enum topk_order / topk_ties */
    uint8_t dtype;       /* of enum topk_dtype; one of limits.dtypes */
    bool want_values;    /* with arena output; with region output values.region says it */
    enum wire_lengths_mode lengths_mode;
    int32_t length_all;
    uint32_t num_lengths;          /* INLINE: equals rows */
    const int32_t *lengths_inline; /* decode: points into the wire_buffer */
    struct wire_region_ref lengths;
    enum wire_output_mode output_mode;
    struct wire_region_ref indices; /* int32 [rows, k] */
    int64_t index_stride;
    struct wire_region_ref values; /* float32 [rows, k] */
    int64_t value_stride;
    struct wire_region_ref page_table; /* int32 [rows, page_table_width] */
    int64_t page_table_stride;
    uint32_t page_table_width, page_size_log2;
    struct wire_region_ref row_offsets; /* int32 [rows] */
    struct wire_semaphore_ref wait, signal;
    enum wire_reply_when reply_when;
    uint32_t timeout_ms; /* from arrival to done; 0: the configured default */
};

struct wire_select_reply {
    uint32_t slot;                          /* ARENA: the leased slot */
    uint64_t lease;                         /* ARENA: lease id for Release; 0 none */
    uint64_t indices_offset, values_offset; /* ARENA: bytes from the arena's start; stride k */
    uint32_t bucket;                        /* id of the shape bucket that served it */
    uint64_t queued_ns, run_ns; /* DONE: time queued (waits included) and time selecting */
};

/*
 * Several Selects in one message, to be answered by one: what many requests in flight cost in
 * messages and wake-ups is then paid once. That of index i has the sequence of the message + i, and
 * each is what a Select of its own would have been: taken in, refused, and kept in the memory of
 * replies by its own number. The reply comes when the last of them has its answer, so a request
 * that may wait long for its semaphore is better sent alone. All inline lengths together are at
 * most WIRE_LENGTHS_MAX.
 */
struct wire_select_batch_request {
    uint32_t num_selects;
    struct wire_select_request selects[WIRE_BATCH_MAX];
};

struct wire_select_answer {
    enum topkd_status status;
    char detail[WIRE_DETAIL_SIZE];   /* "" when ok */
    struct wire_select_reply select; /* valid when status is TOPKD_OK */
};

struct wire_select_batch_reply {
    uint32_t num_answers; /* as many as selects, in their order */
    struct wire_select_answer answers[WIRE_BATCH_MAX];
};

struct wire_release_request {
    uint64_t lease;
};

/*
 * A client lane: selection inside the client's own graph, asked for and answered in a mailbox by
 * the streams of both sides. The mailbox is the client's, so that its graphs outlive a worker: a
 * memory file of one page, sealed against shrinking, which both sides register with the driver.
 *
 * `word` is the whole protocol. The client's stream writes ASKED when the scores are there and goes
 * on when it reads ANSWERED; the worker's stream waits for ASKED and writes ANSWERED. Only the
 * client's side turns ANSWERED (or the 0 of a new mailbox) into ASKED, and only the side that
 * serves it (a worker, or the client's library when there is none) turns ASKED into ANSWERED, so
 * the constants never change and a captured graph is good for ever. `release` is the worker's: a
 * bit there lets its waiting stream pass without a request. Its upper half is written by kernels,
 * alone, and says that the worker looks for the next request ahead of time.
 */
#define WIRE_MAILBOX_ASKED 1u
#define WIRE_MAILBOX_ANSWERED 2u
#define WIRE_MAILBOX_RELEASED 1u
#define WIRE_MAILBOX_AWAKE 1u    /* in the upper half of release */
#define WIRE_MAILBOX_BYTES 4096u /* of the file: a page */

struct wire_mailbox {
    uint32_t word; /* waited on together with release, as one 64-bit value */
    uint32_t release;
    uint32_t doorbell; /* with a device_mailbox: the client's stream writes 1 here after ASKED
                        * there, so that a processor sees it; cleared by whoever serves */
};

struct wire_lane_open_request {
    struct wire_select_request shape; /* output to regions, lengths in a region or one for all;
                                       * wait, signal, reply_when and timeout_ms unused */
    struct wire_region_ref live_rows; /* int32 [1]; none: rows */
    struct wire_memory mailbox;       /* CUDA_FD: ticket of the file with struct wire_mailbox */
    struct wire_region_ref device_mailbox; /* word and release lie there; none: in the file */
    uint32_t poll_us; /* how long after a step a kernel of the worker's may look for the next
                       * request; 0: none does. Less than asked for where the worker has a limit,
                       * none without MPS or with the word in the file */
};

struct wire_lane_open_reply {
    uint64_t lane;
    struct wire_memory mailbox; /* NONE: the request's */
    uint64_t mailbox_offset;
    bool fills_device; /* the selection has a block for every multiprocessor: a kernel of the
                        * client's that looks for the answer would be in its way */
    uint32_t poll_us;  /* of those asked for */
};

struct wire_lane_close_request {
    uint64_t lane;
};

struct wire_bucket_stats {
    uint32_t bucket, rows, width, k;
    uint8_t dtype; /* of enum topk_dtype */
    uint64_t requests;
};

/* Counters since the worker's (or supervisor's) start, gauges as of now. Who is no operator gets
 * uptime and epoch, and from a worker its limits of lanes and what its own session has; all else is
 * 0. */
struct wire_stats_reply {
    uint64_t uptime_ms, epoch;
    uint32_t sessions, regions, leases, queued, running;
    uint64_t mapped_bytes;
    uint64_t sessions_opened, sessions_reaped;
    uint64_t requests, requests_failed, replies_repeated, messages_rejected;
    uint64_t rows_copied, rows_direct, rows_certified, rows_band, rows_recovery, rows_spill;
    uint64_t rows_clamped, scores_read;
    uint64_t worker_restarts;
    uint64_t request_ns_sum, run_ns_sum;
    uint32_t lanes;                           /* client lanes open now */
    uint64_t lane_steps, lane_pauses;         /* selections they ran; times that all were paused */
    uint64_t select_batches, selects_batched; /* SelectBatch messages; the Selects in them */
    uint32_t lanes_armed;                     /* of `lanes`: the device waits for their clients */
    uint32_t lanes_max, lanes_wanted;         /* client lanes that may be open; that settings want:
                                               * a device whose hardware holds fewer has fewer */
    /* bin i counts latencies in [2^i, 2^(i+1)) nanoseconds */
    uint64_t request_ns_bins[WIRE_HISTOGRAM_BINS];
    uint64_t run_ns_bins[WIRE_HISTOGRAM_BINS];
    uint32_t num_buckets;
    struct wire_bucket_stats buckets[WIRE_BUCKETS_MAX];
};

struct wire_session {
    uint64_t session;
    char client_name[WIRE_NAME_SIZE];
    int64_t uid, gid, pid; /* -1 unknown */
    uint32_t regions, outstanding, leases;
    uint64_t mapped_bytes, requests, age_ms;
};

/* An operator sees all sessions, others only their own. */
struct wire_sessions_reply {
    uint32_t num_sessions, num_total;
    struct wire_session sessions[WIRE_SESSIONS_MAX];
};

struct wire_drain_request {
    uint32_t deadline_ms;
};

struct wire_request {
    uint64_t session;  /* 0 before Hello was answered */
    uint64_t sequence; /* grows by one a request of a session; 0 in requests without session. A
                        * SelectBatch takes as many numbers as it has selects. */
    uint64_t epoch;    /* of the worker, as Hello said */
    enum wire_kind kind;
    union {
        struct wire_hello_request hello;
        struct wire_register_request reg;
        struct wire_unregister_request unreg;
        struct wire_select_request select;
        struct wire_release_request release;
        struct wire_lane_open_request lane_open;
        struct wire_lane_close_request lane_close;
        struct wire_drain_request drain;
        struct wire_select_batch_request select_batch;
    } u; /* PING, DEVICES, STATS and SESSIONS have no body */
};

struct wire_reply {
    uint64_t session, sequence, epoch;
    enum wire_kind kind; /* of the request; 0 when that could not be read */
    enum topkd_status status;
    char detail[WIRE_DETAIL_SIZE]; /* "" when ok */
    union {                        /* valid when status is TOPKD_OK */
        struct wire_hello_reply hello;
        struct wire_devices_reply devices;
        struct wire_register_reply reg;
        struct wire_unregister_reply unreg;
        struct wire_select_reply select;
        struct wire_lane_open_reply lane_open;
        struct wire_stats_reply stats;
        struct wire_sessions_reply sessions;
        struct wire_select_batch_reply select_batch;
    } u; /* PING, RELEASE, LANE_CLOSE and DRAIN have no body */
};

/* Aligned room for one message; a decoded request points into it (lengths_inline). */
struct wire_buffer {
    uint8_t bytes[WIRE_MESSAGE_SIZE_MAX] __attribute__((aligned(16)));
};

/*
 * Encodes into out[out_size], length to *size_p. TOPKD_E_INVALID when a field is outside its limit
 * or the message would not fit (WIRE_MESSAGE_SIZE_MAX bytes hold every message). `detail`
 * (WIRE_DETAIL_SIZE, may be NULL) then says what; it is untouched on success. Allocates nothing,
 * uses 72 KiB of stack, never blocks. Any thread.
 */
enum topkd_status wire_request_encode(const struct wire_request *request, uint8_t *out,
                                      size_t out_size, size_t *size_p, char *detail);
enum topkd_status wire_reply_encode(const struct wire_reply *reply, uint8_t *out, size_t out_size,
                                    size_t *size_p, char *detail);

/*
 * Decodes untrusted bytes (any alignment, any content; they may already lie in `buffer`).
 * TOPKD_E_PROTOCOL with a detail text when they are not a valid message; then *request is zero
 * except session, sequence and epoch where those could be read. TOPKD_E_UNSUPPORTED for a kind this
 * version does not know. `buffer` must live as long as `request` is used. Allocates nothing, never
 * blocks. Any thread.
 *
 * A reply likewise, except that on failure its status is TOPKD_E_PROTOCOL and what is in u means
 * nothing; on success only the member of u that belongs to its kind is set. A status that this
 * version has no name for arrives as TOPKD_E_VERSION with its number in the detail.
 */
enum topkd_status wire_request_decode(const void *bytes, size_t size, struct wire_buffer *buffer,
                                      struct wire_request *request, char *detail);
enum topkd_status wire_reply_decode(const void *bytes, size_t size, struct wire_buffer *buffer,
                                    struct wire_reply *reply, char *detail);

/* Names for logs and tools; never NULL. */
const char *wire_kind_name(enum wire_kind kind);
const char *wire_status_name(enum topkd_status status); /* "TOPKD_E_BUSY" */
const char *wire_status_text(enum topkd_status status);
const char *wire_status_hint(enum topkd_status status);

#ifdef __cplusplus
}
#endif

#endif
