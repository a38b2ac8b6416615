/*
 * topkd.h - the client library of topkd: exact top-K selection by a daemon that every process of a
 * node shares.
 *
 * One request in four calls (error checks left out):
 *
 *     struct topkd_client *client;
 *     struct topkd_buffer *buffer;                        // memory the daemon can read in place
 *     topkd_client_open(NULL, &client);
 *     topkd_buffer_create(client, rows * width * sizeof(float), &buffer);
 *     fill(topkd_buffer_data(buffer));                    // float32 [rows, width]
 *     struct topkd_select_request request = {
 *         .scores = {.region = topkd_buffer_region(buffer)},
 *         .rows = rows, .width = width, .k = 2048,
 *     };
 *     struct topkd_result result;
 *     topkd_select(client, &request, &result);            // result.indices: int32 [rows, 2048]
 *     topkd_result_release(client, &result);
 *
 * Conventions
 * - A function that can fail returns enum topkd_status and stores its results through trailing *_p
 *   arguments only on success. topkd_detail() has the text of the calling thread's last failure:
 *   what happened, the value, the limit, what to do.
 * - Strides count elements, names that end in _bytes or _ms say so. Scores are float32, positions
 *   and lengths int32. K is the number of positions wanted a row.
 * - Ownership: what `create`, `open` or `register` returned belongs to the caller until its
 *   `destroy`, `close` or `unregister`; closing a client ends everything made from it, and the
 *   caller must not touch those objects afterwards.
 * - Threads: all functions may be called from any thread at once on one client, except that an
 *   object may not be destroyed while another thread uses it. Each client has three threads of its
 *   own, on a GPU up to two more; they take no signals. The library raises none, prints nothing and
 *   never ends the program.
 * - fork: in the child, functions on objects of the parent answer TOPKD_E_CLOSED, those without a
 *   status do nothing. The child may open clients of its own; on a GPU only if the parent had not
 *   used CUDA, which does not survive a fork (else TOPKD_E_CLOSED).
 * - When the daemon or its worker restarts, the library renews the session, registers every region
 *   again, carries semaphore values over, and repeats requests that had no answer, within their
 *   deadlines. Selections only read scores and write outputs, so a repetition is harmless; one
 *   whose `signal` was reached is not repeated. A worker that is draining is waited for in the
 *   same way. Every other call that needs a worker waits for the next one too, and ends as
 *   TOPKD_E_STALE_SESSION when none is there by its deadline. A request under which a worker died
 *   four times ends as TOPKD_E_DEVICE_FAULT. On a GPU, requests that wait or signal are not
 *   repeated but end as TOPKD_E_STALE_SESSION: streams hold on to the old semaphores.
 *
 * The selection contract (what K positions mean, NaN, ties, short rows) is that of
 * topk_select.h and README.md: exact, always.
 */
#ifndef TOPKD_H
#define TOPKD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "topkd_status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TOPKD_API __attribute__((visibility("default")))

#define TOPKD_VERSION_MAJOR 0
#define TOPKD_VERSION_MINOR 1
#define TOPKD_VERSION_PATCH 0

/* Deadlines: 0 means the client's default; a wait for ever does not exist. */
#define TOPKD_TIMEOUT_DEFAULT 0u

struct topkd_client;
struct topkd_region;
struct topkd_buffer;
struct topkd_semaphore;
struct topkd_op;
struct topkd_lane;

/* ---- Errors ---------------------------------------------------------------------------------- */

/* Text and advice of a status; never NULL, static storage. Any thread. */
TOPKD_API const char *topkd_strerror(enum topkd_status status);
TOPKD_API const char *topkd_strhint(enum topkd_status status);
/* The identifier, "TOPKD_E_BUSY". */
TOPKD_API const char *topkd_status_name(enum topkd_status status);
/* The detail of this thread's last failed call ("" if none); valid until its next call. */
TOPKD_API const char *topkd_detail(void);
/* "0.1.0" of the library that is loaded. */
TOPKD_API const char *topkd_version(void);

/* ---- Client ---------------------------------------------------------------------------------- */

struct topkd_client_options {
    const char *url;     /* of the daemon, "ipc:///run/topkd/topkd.sock". NULL: $TOPKD_URL, else
                          * $XDG_RUNTIME_DIR/topkd/topkd.sock if it exists, else the example */
    const char *device;  /* UUID of the device to use ("cpu", "GPU-..."). NULL: $TOPKD_DEVICE, else
                          * the first ready device */
    const char *name;    /* shown to operators; NULL: the program's name */
    uint32_t timeout_ms; /* default deadline of every call; 0: 10000 */
    bool no_renew;       /* report TOPKD_E_STALE_SESSION instead of renewing the session */
};

/*
 * Connects: asks the daemon for its devices, then opens a session with the device's worker.
 * `options` may be NULL and is not kept. Blocks up to timeout_ms; tries again while the daemon is
 * away, starting or draining. Errors: UNREACHABLE (nobody there, or the device does not get ready;
 * the detail says which), NO_DEVICE, NOT_PERMITTED (the socket, or the access list), VERSION, LIMIT
 * (too many sessions), DRAINING, TIMEOUT (somebody is there and does not answer), MAP_FAILED (the
 * session's shared memory: another /dev/shm), PROTOCOL (something else than topkd answers), INVALID
 * (an option), NO_MEMORY, SYSTEM.
 */
TOPKD_API enum topkd_status topkd_client_open(const struct topkd_client_options *options,
                                              struct topkd_client **client_p);

/* Ends the session and everything made from the client: operations, results, buffers, regions,
 * semaphores. NULL is allowed. Blocks until work in flight no longer uses the client's memory;
 * requests that wait for a semaphore are released at once, and a worker that does not answer is
 * waited for no longer than the client's default deadline. */
TOPKD_API void topkd_client_close(struct topkd_client *client);

enum topkd_device_kind { TOPKD_DEVICE_CPU = 0, TOPKD_DEVICE_CUDA = 1 };

/* What the session offers. */
struct topkd_client_info {
    char device[48]; /* UUID, or "cpu" */
    char server_version[64];
    enum topkd_device_kind device_kind;
    uint64_t session, epoch; /* change when the session is renewed */
    uint64_t num_renewals;   /* sessions renewed so far */
    uint32_t k_max, regions_max, outstanding_max, semaphores_max;
    uint64_t rows_max, width_max, region_bytes_max;
    uint32_t timeout_ms_max;
    uint32_t arena_slots;      /* results without an output region that may be held at once */
    uint64_t arena_slot_bytes; /* largest such result: rows * k * (4, or 8 with values) */
    uint32_t dtypes;           /* bit 1 << TOPKD_DTYPE_... for each type of scores it reads */
};

TOPKD_API enum topkd_status topkd_client_info(struct topkd_client *client,
                                              struct topkd_client_info *info_p);

/* Blocks until the session takes requests: at once, or when it has been renewed. Errors: those of a
 * renewal, STALE_SESSION (not renewed in time, or no_renew is set), CLOSED. What is asked next may
 * meet the next outage all the same. */
TOPKD_API enum topkd_status topkd_client_wait(struct topkd_client *client, uint32_t timeout_ms);

/* Round trip to the worker, without work. */
TOPKD_API enum topkd_status topkd_ping(struct topkd_client *client, uint64_t *round_trip_ns_p);

/* ---- Memory ---------------------------------------------------------------------------------- */

enum topkd_access { TOPKD_ACCESS_READ = 1, TOPKD_ACCESS_READ_WRITE = 3 };

/*
 * A buffer is memory that the library makes shareable, registered for reading and writing. Zeroed.
 * For a session of the CPU device it is a POSIX shared memory object mapped into this process; for
 * a GPU it is device memory (cuMemAlloc in the device's primary context, whole 2 MiB blocks, so
 * that the worker sees nothing beside it), and topkd_buffer_data() is a device pointer.
 * size_bytes >= 1. Errors: INVALID, LIMIT, NO_MEMORY (also when /dev/shm is full), SYSTEM,
 * NOT_VISIBLE (a GPU that this process does not see) and those of register.
 *
 * Who may read a shared memory buffer: its object "/topkd-held-<pid>-<random>" has mode 0600. A
 * daemon of root or of this user can open it. For a daemon of another user the library adds an
 * access control entry for exactly that uid; where /dev/shm has no access control lists, it gives
 * the object to the daemon's group with mode 0660, if this process is a member of it. If neither
 * works the error is NOT_PERMITTED, and the operator runs the daemon as root or puts the clients'
 * users into its group. Both sides must see the same /dev/shm. The name goes with the buffer, or
 * with the process: the worker removes it when the process has died.
 */
TOPKD_API enum topkd_status topkd_buffer_create(struct topkd_client *client, uint64_t size_bytes,
                                                struct topkd_buffer **buffer_p);
TOPKD_API void *topkd_buffer_data(struct topkd_buffer *buffer);
TOPKD_API uint64_t topkd_buffer_size_bytes(const struct topkd_buffer *buffer);
/* The region to name in requests; belongs to the buffer. */
TOPKD_API struct topkd_region *topkd_buffer_region(struct topkd_buffer *buffer);
/* Unregisters (waiting for work in flight that uses it), unmaps, frees. NULL is allowed. */
TOPKD_API void topkd_buffer_destroy(struct topkd_buffer *buffer);

/*
 * Copies into a buffer: how scores in memory that cannot be shared (stream-ordered pools, managed
 * memory) reach the daemon. On a GPU `from` is a device pointer and the copy is enqueued in
 * `stream` (a cudaStream_t; NULL is the default stream), nothing is waited for. On the CPU device
 * it is done on return and `stream` is ignored. Errors: INVALID, OUT_OF_RANGE, SYSTEM.
 */
TOPKD_API enum topkd_status topkd_buffer_copy(struct topkd_buffer *buffer, uint64_t offset_bytes,
                                              const void *from, uint64_t size_bytes, void *stream);

/*
 * Registers length_bytes of CUDA device memory at `pointer` (anywhere in an allocation) with the
 * worker of the session's GPU. The library chooses the way from the pointer's attributes:
 * - memory of cudaMalloc, and so of most allocators' segments: an IPC handle of the allocation;
 * - virtual memory made exportable (PyTorch's expandable segments): file descriptors, mapped in
 *   the worker with no more than `access` asks for.
 * The memory must stay until unregister has returned TOPKD_OK; unregister before freeing it.
 * Needs the CUDA driver, which is loaded at the first call of this kind; makes no CUDA context
 * beside the device's primary one. Not while any stream of the process is being captured. Errors:
 * NOT_EXPORTABLE (the detail names the kind of memory and a way out: topkd_buffer_copy),
 * OUT_OF_RANGE (beyond the allocation), NOT_VISIBLE (another device, or none here), UNSUPPORTED
 * (the session's device is the CPU), MAP_FAILED, SAME_PROCESS, INVALID, LIMIT, BUSY, NO_MEMORY.
 */
TOPKD_API enum topkd_status topkd_region_register_cuda(struct topkd_client *client, void *pointer,
                                                       uint64_t length_bytes,
                                                       enum topkd_access access,
                                                       struct topkd_region **region_p);

/* What holds a span of CUDA memory. */
struct topkd_allocation {
    void *base;          /* where the first allocation that holds some of it begins */
    uint64_t size_bytes; /* from there to the end of the last one */
    uint64_t id;         /* another one once any of them was freed and its place taken again */
};

/*
 * Which allocation, or run of neighbouring ones (virtual memory), holds length_bytes of CUDA memory
 * at `pointer`. For those who keep regions of memory that a caching allocator hands out: register
 * the allocation once, name tensors by their offsets, and use a region only while base, size and id
 * are what they were when it was registered. Asks the driver only; changes nothing; no stream is
 * waited for. Any thread. Errors: INVALID, NOT_EXPORTABLE (no memory of a GPU; whether a region can
 * be made of it is for register to say), OUT_OF_RANGE (beyond the allocation), NOT_VISIBLE (another
 * device, or none here), UNSUPPORTED (the session's device is the CPU).
 */
TOPKD_API enum topkd_status topkd_cuda_allocation(struct topkd_client *client, const void *pointer,
                                                  uint64_t length_bytes,
                                                  struct topkd_allocation *allocation_p);

/* A POSIX shared memory object that the caller made with shm_open. Its name must stay until
 * unregister: a renewed session opens it again. */
struct topkd_shm {
    const char *name;      /* "/name", as given to shm_open */
    uint64_t offset_bytes; /* where the region begins in the object */
    uint64_t length_bytes; /* >= 1; offset + length within the object */
    enum topkd_access access;
};

/*
 * Registers memory with the worker, which maps it. The memory must stay as it is until unregister
 * has returned TOPKD_OK. The object must belong to the user of this process. Errors: INVALID,
 * OUT_OF_RANGE (beyond the object), MAP_FAILED (no such object; another /dev/shm), NOT_PERMITTED
 * (owned by another user), SAME_PROCESS, LIMIT, BUSY.
 */
TOPKD_API enum topkd_status topkd_region_register_shm(struct topkd_client *client,
                                                      const struct topkd_shm *shm,
                                                      struct topkd_region **region_p);

/* Ends a registration: waits until no work in flight uses it, up to the client's default deadline.
 * Frees the handle in every case but TOPKD_E_TIMEOUT, after which it is good for another
 * unregister only. NULL is allowed; INVALID for the region of a buffer. */
TOPKD_API enum topkd_status topkd_region_unregister(struct topkd_region *region);

/* ---- Time between processes ------------------------------------------------------------------ */

/*
 * A semaphore is a 64-bit value that only grows, in memory that both sides see. It begins at 0. A
 * request may wait for a value (scores are ready) and signal one (indices are written). The values
 * that requests signal on one semaphore must grow from request to request, because a value stands
 * for all work up to it. On the CPU device the requests of one client run in the order in which
 * they were started, so one that waits holds up those behind it. On a GPU a request begins when its
 * own wait is reached, and requests that do not touch each other's output may run at the same time
 * and end in any order, except that those which signal the same semaphore keep the order of its
 * values. Threads: any. Errors of create: LIMIT when the session's page is full. destroy does not
 * disturb requests in flight that use it.
 */
TOPKD_API enum topkd_status topkd_semaphore_create(struct topkd_client *client,
                                                   struct topkd_semaphore **semaphore_p);
TOPKD_API void topkd_semaphore_destroy(struct topkd_semaphore *semaphore);
TOPKD_API uint64_t topkd_semaphore_value(struct topkd_semaphore *semaphore);
/* Raises the value and wakes waiters on both sides. INVALID when value is not above the present;
 * IN_USE while requests in flight are to raise it: a semaphore is the program's or theirs. */
TOPKD_API enum topkd_status topkd_semaphore_signal(struct topkd_semaphore *semaphore,
                                                   uint64_t value);
/* Blocks until the value is reached. TIMEOUT; STALE_SESSION with no_renew, once the session is
 * gone; or the status of the request that failed to produce it (the value is reached all the same,
 * so that nothing hangs). Only the last failure is kept: of several values that failed before
 * anyone waited, the operations tell. */
TOPKD_API enum topkd_status topkd_semaphore_wait(struct topkd_semaphore *semaphore, uint64_t value,
                                                 uint32_t timeout_ms);

/*
 * The same in the order of a CUDA stream, without blocking the caller: the stream writes the value
 * when it gets there, or goes no further until the value is reached. A value whose request failed
 * is reached all the same: look at the operation's status before the result is used. When the
 * worker goes, every value that a stream waits for is reached, as failed. Streams that share one of
 * the process's hardware queues wait for each other: under MPS there are two, elsewhere eight,
 * unless CUDA_DEVICE_MAX_CONNECTIONS says otherwise, so a stream that is to release others should
 * not be one of many that wait. The session's device must be a GPU and the stream one of it, not in
 * capture. Errors: INVALID, UNSUPPORTED, NOT_VISIBLE,
 * STALE_SESSION (not renewed within the client's default deadline), SYSTEM.
 */
TOPKD_API enum topkd_status topkd_semaphore_signal_stream(struct topkd_semaphore *semaphore,
                                                          uint64_t value, void *stream);
TOPKD_API enum topkd_status topkd_semaphore_wait_stream(struct topkd_semaphore *semaphore,
                                                        uint64_t value, void *stream);

struct topkd_semaphore_point {
    struct topkd_semaphore *semaphore; /* NULL: none */
    uint64_t value;                    /* >= 1 */
};

/* ---- Selection ------------------------------------------------------------------------------- */

enum topkd_order { TOPKD_ORDER_ANY = 0, TOPKD_ORDER_INDEX = 1, TOPKD_ORDER_VALUE = 2 };
enum topkd_ties { TOPKD_TIES_ANY = 0, TOPKD_TIES_LOWEST = 1 };

/* What scores are. All rank by the numbers that they stand for, and values come back as float32,
 * which holds each of them exactly. */
enum topkd_dtype {
    TOPKD_DTYPE_FLOAT32 = 0,
    TOPKD_DTYPE_FLOAT16 = 1,  /* IEEE 754 half precision */
    TOPKD_DTYPE_BFLOAT16 = 2, /* the upper half of a float32 */
};

/* Where a tensor lies. */
struct topkd_tensor {
    struct topkd_region *region; /* NULL: absent */
    uint64_t offset_bytes;       /* of element [0, 0] from the region's start; a multiple of 4, of
                                  * 2 for scores of 16 bits */
    int64_t stride;              /* elements from row to row; 0: dense */
};

enum topkd_lengths {
    TOPKD_LENGTHS_FULL = 0,   /* every row is valid up to width */
    TOPKD_LENGTHS_ALL = 1,    /* every row has length_all valid scores */
    TOPKD_LENGTHS_HOST = 2,   /* lengths_host; travels in the message, at most 8192 rows */
    TOPKD_LENGTHS_REGION = 3, /* lengths, in a region */
};

/* Zero-initialise, then set what differs. Nothing is kept after the call that takes it. */
struct topkd_select_request {
    struct topkd_tensor scores; /* [rows, width] of dtype */
    uint32_t rows, width, k;    /* rows 0 is allowed; width >= 1; 1 <= k <= info.k_max */
    enum topkd_order order;
    enum topkd_ties ties;
    enum topkd_dtype dtype; /* of the scores; UNSUPPORTED unless info.dtypes has it */
    bool deterministic;     /* ties LOWEST and order INDEX: the same bytes in every run; not
                             * together with order VALUE */
    enum topkd_lengths lengths_mode;
    int32_t length_all;
    const int32_t *lengths_host; /* [rows] */
    struct topkd_tensor lengths; /* int32 [rows], dense */
    struct topkd_tensor indices; /* int32 [rows, k] result; absent: a slot of the daemon's arena */
    struct topkd_tensor values;  /* float32 [rows, k] result, only beside an indices region */
    bool want_values;            /* values too, when the result goes to the arena */
    struct topkd_tensor page_table;      /* int32 [rows, page_table_width]: p becomes
                                          * table[p / page_size] * page_size + p % page_size */
    uint32_t page_table_width;           /* entries a row; * page_size must reach width */
    uint32_t page_size;                  /* a power of two; 0 without a page table */
    struct topkd_tensor row_offsets;     /* int32 [rows], added to every position but -1 */
    struct topkd_semaphore_point wait;   /* scores are ready when this is reached */
    struct topkd_semaphore_point signal; /* reached when the result is written, or has failed */
    uint32_t timeout_ms;                 /* 0: the client's default */
};

struct topkd_result {
    uint32_t rows, k;
    const int32_t *indices; /* [rows, k], -1 beyond the valid length. In the arena: readable
                             * until released. In a buffer's region: into that buffer. In
                             * another region: NULL (the caller knows where it is) */
    int64_t index_stride;   /* elements */
    const float *values;    /* [rows, k], or NULL */
    int64_t value_stride;
    uint32_t bucket;            /* shape bucket that served the request */
    uint32_t num_retries;       /* repetitions after a renewed session */
    uint64_t queued_ns, run_ns; /* in the daemon: waiting, selecting */
    uint64_t lease;             /* of the arena slot, 0 none; for topkd_result_release */
};

/*
 * Selects and blocks until the result is written or the deadline passes; waits its turn when
 * info.outstanding_max requests are in flight. Errors: INVALID, OUT_OF_RANGE, OVERLAP, READ_ONLY,
 * UNSUPPORTED, NO_REGION, LIMIT (the result exceeds an arena slot), BUSY (the worker's queue is
 * full, or results hold all slots of the arena), TIMEOUT, STALE_SESSION (with no_renew, or the
 * worker did not return in time), DRAINING (nor did a draining one), NOT_PERMITTED, VERSION and
 * others of open when the daemon came back different, REGION_FAULT, DEVICE_FAULT, MAP_FAILED (a
 * region whose object is gone from a renewed session), PROTOCOL, NO_MEMORY. A request that is
 * refused before it is sent signals nothing. After an error the output region's content is
 * undefined; after a TIMEOUT the worker may still write it for a moment.
 */
TOPKD_API enum topkd_status topkd_select(struct topkd_client *client,
                                         const struct topkd_select_request *request,
                                         struct topkd_result *result_p);

/* Gives an arena slot back; result pointers end here. Nothing happens for a result without one.
 * Does not block. */
TOPKD_API void topkd_result_release(struct topkd_client *client, struct topkd_result *result);

/* ---- The asynchronous core ------------------------------------------------------------------- */

/*
 * Starts a selection and returns at once. `user` comes back with the operation. At most
 * info.outstanding_max at a time (BUSY beyond), where one that ended at its deadline counts until
 * the worker has answered. The operation must be finished with topkd_op_finish. Errors: those that
 * can be told without the worker (INVALID, NO_REGION, LIMIT, UNSUPPORTED, BUSY, NO_MEMORY,
 * STALE_SESSION with no_renew); all others come with the operation.
 *
 * A message costs more than most selections, so with many in flight several share one: the first
 * four leave at once, those started while four messages are on their way leave with the next
 * answer, up to 16 together, and are answered together when the last of them is done. An operation
 * that names a semaphore always leaves at once and is answered by itself.
 */
TOPKD_API enum topkd_status topkd_select_start(struct topkd_client *client,
                                               const struct topkd_select_request *request,
                                               void *user, struct topkd_op **op_p);

/*
 * Starts a selection in the order of a CUDA stream (a cudaStream_t of the session's GPU): it reads
 * the scores when all that was enqueued in the stream before is done, and what is enqueued
 * afterwards sees the result. Nothing is synchronised. `request` has neither wait nor signal; the
 * library uses two semaphores of the session for each stream that it sees. One thread at a time
 * may enqueue in a stream, as always in CUDA.
 *
 * The operation is an ordinary one (op_next, op_wait, op_finish). When it fails, at its deadline,
 * by a fault of the worker or otherwise, the stream goes on all the same, over an output whose
 * content is undefined: look at the operation's status before the result is used. It is never sent
 * twice. The deadline begins with this call, the time until the stream gets here included.
 * Errors: those of start, and of topkd_semaphore_signal_stream; LIMIT when no semaphores are left.
 * May block while the session is renewed.
 */
TOPKD_API enum topkd_status topkd_select_stream(struct topkd_client *client,
                                                const struct topkd_select_request *request,
                                                void *stream, struct topkd_op **op_p);

/* The same for a thread that must not wait, as that of an event loop: while the session is renewed
 * it answers TIMEOUT at once, and nothing has been enqueued. Never blocks for the daemon. */
TOPKD_API enum topkd_status topkd_select_stream_try(struct topkd_client *client,
                                                    const struct topkd_select_request *request,
                                                    void *stream, struct topkd_op **op_p);

/* A descriptor that polls readable while finished operations wait to be taken by topkd_op_next.
 * Belongs to the client; only poll it. */
TOPKD_API int topkd_client_fd(struct topkd_client *client);

/* Takes one finished operation in order of completion; NULL when there is none. Does not block. */
TOPKD_API struct topkd_op *topkd_op_next(struct topkd_client *client);

/* Blocks until this operation has finished, well or not (OK), or TIMEOUT. An operation that was
 * waited for with success is not returned by topkd_op_next any more. */
TOPKD_API enum topkd_status topkd_op_wait(struct topkd_op *op, uint32_t timeout_ms);

TOPKD_API void *topkd_op_user(const struct topkd_op *op);

/* Frees a finished operation and gives its status and result, with topkd_detail(); an unfinished
 * one is cancelled (CANCELLED; its output is undefined until the client is closed or its deadline
 * has passed, and its signal is reached as failed). result_p may be NULL: then an arena slot is
 * released at once. */
TOPKD_API enum topkd_status topkd_op_finish(struct topkd_op *op, struct topkd_result *result_p);

/* ---- Lanes: selection inside a CUDA graph ---------------------------------------------------- */

/*
 * A lane lets a stream ask for a selection and get its answer without any processor in between: the
 * worker keeps the selection armed on the GPU, waiting for a word that the client's stream writes.
 * One shape, fixed regions; what changes from step to step (scores, valid lengths, live rows) is
 * read from those regions when the step runs. So a program captures
 *
 *     scores kernel -> topkd_lane_enqueue(lane, stream) -> attention kernel
 *
 * once, and replays the graph for as long as the lane is open, renewed workers included.
 *
 * - A step takes what lies in the regions when the stream reaches it, and the result is in the
 *   output regions for what follows in the stream. Exactly one selection a step, in order.
 * - One step at a time: the steps of a lane are ordered (one stream, or events). Two streams use
 *   two lanes.
 * - A GPU has room for limits.client_lanes_max lanes of all its clients (16).
 * - A step has no deadline and reports nothing by itself. While no worker serves the lane (it died,
 *   or the daemon drains), the library answers the steps, so that no stream hangs: their output is
 *   undefined, they are counted, and topkd_lane_check and topkd_lane_enqueue report it. When a new
 *   worker has taken the lane over, steps are right again; graphs captured before stay good.
 * - After a pause of limits.lane_idle_ms (200 ms) the worker stops waiting; the next step is begun
 *   some 100 us late. Nothing needs to be called for that.
 * - Without NVIDIA's MPS it works, but processes take turns on the GPU in time slices: a step that
 *   takes 25 us with MPS takes 300 (topkctl doctor says whether MPS runs).
 * - While a step is outstanding the driver may block calls that free memory (cudaFree) until it is
 *   answered. Kernels of the program's own that are first launched while a stream waits may have to
 *   be loaded, which waits for the stream: launch each once before, or set
 *   CUDA_MODULE_LOADING=EAGER. The library's own is loaded when the first lane opens.
 */
struct topkd_lane;

/*
 * What a step is for the client's stream. The driver's operations: its queue waits for the word. A
 * kernel of one thread, for a word in device memory: it looks until the answer is there, which is 2
 * to 5 us sooner with one client and 15 to 18 with eight (H200), and takes a place on a
 * multiprocessor meanwhile. AUTO: the kernel with a word in device memory, under MPS (without, it
 * would hold the time slice in which the worker could answer), and for a selection with fewer
 * blocks than there are multiprocessors, as those of decoding have; topkd_lane_info says which it
 * is.
 */
enum topkd_lane_wait {
    TOPKD_LANE_WAIT_AUTO = 0,
    TOPKD_LANE_WAIT_DRIVER = 1,
    TOPKD_LANE_WAIT_KERNEL = 2
};

/* Zero-initialise, then set what differs. */
struct topkd_lane_options {
    /* int32 [1] on the device: rows of the step, read when it runs, 0 ... request->rows (clamped).
     * Absent: request->rows. */
    struct topkd_tensor live_rows;
    /* Where the word lies that the streams write and wait for. false: in host memory, where the
     * library can end a stream's wait with a plain store, whatever the driver does meanwhile. true:
     * in device memory, some 5 us a step faster; but when the worker dies, ending the wait takes a
     * call of the driver, which does not come through while another thread is inside a blocked one
     * (cudaFree) or when the streams of this process share all their hardware queues with waiting
     * ones. */
    bool device_mailbox;
    enum topkd_lane_wait wait;
    /* How long after a step the worker looks for the next one by a kernel of one warp, in
     * microseconds; 0: not, its stream waits. With a word in device memory and under MPS a step
     * that comes within that time begins some 2 us sooner, with eight clients 5. But meanwhile the
     * warp has a place on a multiprocessor, and a block that takes all of its shared memory does
     * not fit beside it: of a kernel with such a block for every multiprocessor the last one starts
     * when another has ended. At most limits.lane_poll_us of the daemon (1000). */
    uint32_t poll_us;
};

/*
 * Opens a lane for requests of this shape. `request` as for topkd_select, with these differences:
 * indices in a region; lengths FULL, ALL or REGION; no wait, no signal; timeout_ms is that of this
 * call. `options` may be NULL. Neither is kept; the regions stay in use until the lane is closed
 * (unregister answers TIMEOUT until then). Blocks; allocates; not while a stream of the process is
 * being captured. Errors: those of topkd_select that concern the request; UNSUPPORTED (the
 * session's device is the CPU: use topkd_select_start with semaphores), BUSY (the GPU's lanes
 * are all taken: close one, or raise limits.client_lanes_max), NOT_VISIBLE, NO_MEMORY, SYSTEM.
 */
TOPKD_API enum topkd_status topkd_lane_open(struct topkd_client *client,
                                            const struct topkd_select_request *request,
                                            const struct topkd_lane_options *options,
                                            struct topkd_lane **lane_p);

/*
 * Adds one step to a stream (a cudaStream_t of the session's GPU), or to the capture that is in
 * progress on it. Does not block and synchronises nothing. Any thread, one at a time a lane, as
 * with the stream. Errors, after which nothing was added: that of topkd_lane_check; INVALID (no
 * stream of the device); STALE_SESSION (no worker serves the lane at present); SYSTEM.
 */
TOPKD_API enum topkd_status topkd_lane_enqueue(struct topkd_lane *lane, void *stream);

/*
 * The same as one node of a graph under construction: `graph` is a cudaGraph_t, `dependencies` are
 * num_dependencies cudaGraphNode_t of it (NULL for none); *node_p gets the new node. Errors as
 * above.
 */
TOPKD_API enum topkd_status topkd_lane_add_node(struct topkd_lane *lane, void *graph,
                                                void *const *dependencies, size_t num_dependencies,
                                                void **node_p);

/*
 * TOPKD_OK, or once after each failure the status that ended it: steps were answered without a
 * selection (STALE_SESSION, DRAINING, DEVICE_FAULT; topkd_detail() says how many). For programs
 * that only replay graphs: call it when a replay's results are about to be used for good. Reads
 * host memory only. Any thread.
 */
TOPKD_API enum topkd_status topkd_lane_check(struct topkd_lane *lane);

struct topkd_lane_info {
    bool is_served;            /* by a worker, now */
    enum topkd_status status;  /* why not; OK when it is */
    uint64_t num_failed;       /* steps answered without a selection, since open */
    uint64_t num_renewals;     /* times that a new worker took the lane over */
    enum topkd_lane_wait wait; /* DRIVER or KERNEL */
    uint32_t poll_us;          /* of those asked for */
};

TOPKD_API enum topkd_status topkd_lane_info(struct topkd_lane *lane,
                                            struct topkd_lane_info *info_p);

/* Closes: blocks until the worker has let go of the lane. No step of it may be outstanding or come
 * (graphs that contain one are not replayed any more); one that is there all the same is answered
 * without a selection. NULL is allowed. Does not touch regions. Closing the client closes its
 * lanes. */
TOPKD_API void topkd_lane_close(struct topkd_lane *lane);

#ifdef __cplusplus
}
#endif

#endif
