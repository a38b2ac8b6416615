/*
 * device_cuda.h - what the files of the CUDA device share.
 *
 *   device_cuda.c         open, close, self-test, the table
 *   device_cuda_graph.c   shape buckets as captured graphs, one instance a lane
 *   device_cuda_lane.c    lanes: which job may run, each enqueued when its semaphore is reached
 *   device_cuda_track.c   a stream with what its work needs: descriptors, workspace, end marks
 *   device_cuda_mailbox.c lanes of clients: opening and closing
 *   device_cuda_arm.c     their steps, armed ahead; pauses, so that memory can be freed
 *   device_cuda_queues.c  streams with hardware queues of their own; how many mailboxes may wait
 *   device_cuda_poll.c    the thread that sees work end, semaphores rise and steps go by
 *   device_cuda_memory.c  semaphore pages and arenas; client memory by IPC handle or descriptors
 *   device_cuda_driver.c  libcuda, loaded at run time
 *
 * No stream of a session's lane ever waits for a client. Measured (H200, driver 580, with and
 * without MPS, 2026-11): while any stream of a context waits on a value, cuMemFree, cuMemFreeHost
 * and cuIpcCloseMemHandle block, and with them every other call into the driver, the one that would
 * release the wait included. One client that never signals would stop all the others. So semaphores
 * are host memory that both sides map and that streams of both sides can write; the worker looks at
 * them itself, and enqueues a job when its value is there. That costs some microseconds after the
 * producer's signal; a wait can end at any time with nothing to undo.
 *
 * Streams of mailboxes do wait. Therefore whoever calls what blocks (cuMemFree, cuMemFreeHost,
 * cuMemHostUnregister, cuIpcCloseMemHandle, cuMemUnmap) does so between cuda_quiet_begin and
 * cuda_quiet_end: no stream waits then. What did not block in a trial while one waits: allocating,
 * registering, opening, capturing, making, uploading and destroying graphs, making and destroying
 * streams (tests/bench/bench_lane_probe.cu, same device). But a worker with more graphs and lanes
 * stood still while it opened another lane, so that making graphs is done in a pause as well.
 */
#ifndef TOPKD_SERVER_DEVICE_CUDA_H
#define TOPKD_SERVER_DEVICE_CUDA_H

#include "device.h"
#include "device_cuda_driver.h"
#include "fd_channel.h"
#include "topk_step.h"

#include <pthread.h>
#include <sys/types.h>

/* CUDA gives a context at most this many hardware queues (CUDA_DEVICE_MAX_CONNECTIONS); streams
 * beyond share one and run one after the other. */
#define CUDA_CONNECTIONS 32u
/* Lanes of sessions: the queues, less those of the side streams below and two for the driver. */
#define CUDA_LANES_MAX 28u
/* Mailboxes: the queues less the four side streams (pauses, routes, capture, canary). Those four
 * are made first, then the mailboxes', so that each has a queue of its own; cuda_queues_check tries
 * at the start whether that is so. Tracks of lanes that share one with a mailbox are helped by
 * relieve() in device_cuda_arm.c, side streams by cuda_stream_wait. */
#define CUDA_MAILBOXES_MAX 28u
/* Tracks of a lane. Measured (H200, driver 580, 2026-11): eight selections of 64 x 131072 in flight
 * take 34.9 us each on one stream, 27 of them the selection, and 20 us on two: the next one's
 * descriptor and blocks come while the last blocks of the one before run. */
#define CUDA_LANE_TRACKS 2u
#define CUDA_TRACK_CANARY (CUDA_LANES_MAX * CUDA_LANE_TRACKS) /* number of the self-test's own */
#define CUDA_TRACKS_ALL (CUDA_TRACK_CANARY + 1)
#define CUDA_TRACK_MAILBOX                                                                         \
    CUDA_TRACKS_ALL /* number of every mailbox's: no bucket has graphs there */
/* Jobs of a track on the device at a time. Choice: a lane's eight hide the round trip over the host
 * behind work of 10 us each; more would only let a flood of one session stand longer in others'
 * way. */
#define CUDA_TRACK_DEPTH 4u
/* Descriptors up to this size are copied from memory that is not pinned: the driver puts them into
 * the command stream, and no copy engine has to be waited for. Measured as above: 30.4 us instead
 * of 34.9 a selection of 64 x 131072, 11.6 instead of 16.1 of 4 x 16384. Choice of the size: the
 * arguments and lengths for 192 rows. */
#define CUDA_SMALL_BYTES 1024u
/* Allocations that another process maps are whole units of this: smaller ones share a block, and
 * all of a block becomes visible with any part of it (CUDA programming guide, IPC). */
#define CUDA_BLOCK_BYTES (UINT64_C(2) << 20)
#define CUDA_WATCHES_MAX 64u /* choice: more waiting jobs are looked at every CUDA_FULL_LOOK_NS */
#define CUDA_FULL_LOOK_NS UINT64_C(1000000)
#define CUDA_WORKSPACES_MAX 12u /* each at least twice the one before: 2 MiB ... 4 GiB */

/* What a graph reads; one in device memory a track, and pinned copies that are on their way. */
struct cuda_request {
    struct topk_args args;
    uint8_t reserved[256 - sizeof(struct topk_args)];
    int32_t lengths[WIRE_LENGTHS_MAX];
    struct topk_step step; /* of a mailbox */
};
_Static_assert(offsetof(struct cuda_request, step) % 16 == 0, "as topk_step.h asks");

/* Choices. Steps of one launch: half as much of a processor a step as with one (H200: 2.0-2.7 us of
 * a processor a step); launches ahead: at 40,000 steps a second the poller has 300 us to come by.
 */
#define CUDA_STEPS_PER_LAUNCH 4u
#define CUDA_LAUNCHES_AHEAD 4u

/* What the poller sees of a mailbox's track; pinned, written by streams. */
struct cuda_step_marks {
    struct topk_step_counts counts;
    uint64_t num_cleared; /* pauses that are over */
};

/* Scratch of a track. Older ones stay for the graphs that were captured with them. */
struct cuda_workspaces {
    uint32_t num;
    struct {
        CUdeviceptr address;
        uint64_t size_bytes;
    } entries[CUDA_WORKSPACES_MAX];
};

/* A graph, ready to run on one track. */
struct cuda_exec {
    CUgraphExec exec;      /* NULL: not made yet */
    CUdeviceptr workspace; /* it was captured with */
};

/* A shape bucket's work: bucket->prepared. */
struct cuda_bucket {
    struct topk_plan plan;
    bool is_pinned;
    struct cuda_bucket *previous, *next;
    struct cuda_exec execs[CUDA_TRACKS_ALL]; /* by track number */
};

/* A job as a track takes it. */
struct cuda_enqueue {
    const struct cuda_request *request; /* from cuda_track_room */
    size_t size_bytes;                  /* of it */
    CUdeviceptr d_signal;               /* a semaphore's word; 0: none */
    uint64_t value;                     /* what it becomes before the end mark is written */
};

/* A semaphore's word and the value that a job waits for. */
struct cuda_watch {
    const uint64_t *word;
    uint64_t value;
};

/* A stream with what its work needs. Its jobs run one after the other. */
struct cuda_track {
    struct device_cuda *cuda; /* NULL: not made */
    uint32_t number;
    CUstream stream;
    CUdeviceptr d_request;              /* struct cuda_request */
    struct cuda_request *h_requests;    /* [CUDA_TRACK_DEPTH], pinned */
    uint8_t (*small)[CUDA_SMALL_BYTES]; /* [CUDA_TRACK_DEPTH], not pinned: for small descriptors */
    uint64_t *h_ended;                  /* pinned, written by the stream: number of the last end */
    struct cuda_step_marks *h_marks;    /* pinned, of a mailbox */
    struct cuda_workspaces workspaces;
    const struct cuda_bucket *last; /* whose work used the workspace last; NULL: nobody's */

    /* Guarded by cuda->mutex. */
    struct device_job *first_running, **last_running; /* on the device, in its order */
    uint64_t num_enqueued, num_ended;
    uint64_t last_end_ns;
};

/*
 * A lane's jobs begin in the order in which their semaphores are reached: requests of one client
 * may arrive in another order than they were sent, and one whose producer is late must not hold up
 * the request that the producer waits for. Jobs that signal the same semaphore keep the order of
 * the values. Of those that may begin, two run at a time, one a track; one that writes what another
 * reads or writes (args_overlap.h) begins after it, on the same track or when it has ended, and
 * holds up those behind it.
 */
struct device_lane {
    struct device_cuda *cuda;
    uint32_t number;
    bool is_open; /* belongs to a session */
    struct cuda_track tracks[CUDA_LANE_TRACKS];

    struct wire_semaphore *semaphores; /* the client can write them too: trust nothing there */
    CUdeviceptr d_semaphores;

    /* Guarded by cuda->mutex. */
    struct device_job *first_waiting, **last_waiting; /* not on the device yet, as they came */
    /* For the poller's look without the mutex: it may be old, never torn. */
    struct cuda_watch watches[CUDA_WATCHES_MAX]; /* semaphores that waiting jobs wait for */
    uint32_t num_watches;
    uint32_t num_jobs; /* running and waiting */
};

/*
 *            arm                 idle, quiet, closing          all steps have ended
 *   CLEAR ---------> ARMED ------------------------> RELEASED ---------------------> CLEARING
 *     ^                                                                                 |
 *     '------------------------- the stream has cleared both words --------------------'
 *
 * A stream waits for the client in ARMED alone; in RELEASED it runs out within microseconds.
 */
enum cuda_mailbox_state { MAILBOX_CLEAR, MAILBOX_ARMED, MAILBOX_RELEASED, MAILBOX_CLEARING };

struct device_mailbox {
    struct device_cuda *cuda;
    struct cuda_track *track; /* one of cuda->mailbox_tracks; NULL: none yet */
    CUgraphExec exec;         /* CUDA_STEPS_PER_LAUNCH steps */
    struct wire_mailbox *file;
    dev_t file_device; /* which file it is */
    ino_t file_inode;
    bool is_registered, is_device; /* the file; the word lies in device memory */
    CUdeviceptr d_mailbox;
    uint32_t poll_us; /* how long a kernel looks for the next request after a step; 0: none */

    /* Guarded by cuda->mutex; the poller reads state and num_armed without it. */
    uint32_t state; /* enum cuda_mailbox_state */
    bool is_wanted; /* armed again after a pause */
    bool is_closing;
    uint64_t num_armed; /* steps launched since open */
    uint64_t num_clears;

    /* The poller's. */
    uint64_t seen_ended, moved_ns;
    uint64_t asked_ns; /* since when the step that is asked for has not begun; 0: none is */
};

/* Who looks at end marks and semaphores: the poller's thread, and the loop while it spins. */
enum { CUDA_LOOKER_POLLER, CUDA_LOOKER_LOOP, CUDA_LOOKERS };

struct cuda_looker {
    uint64_t num_turns; /* odd: it is looking */
    uint64_t looked_ns, full_ns, happened_ns;
};

struct cuda_poller {
    pthread_t thread;
    pthread_cond_t wake;
    struct cuda_looker lookers[CUDA_LOOKERS];
    bool is_asleep;
    bool is_stopping;
};

struct device_cuda {
    struct device base;
    const struct cuda_driver *driver;
    CUdevice device;
    CUcontext context;
    int ordinal;
    char uuid[WIRE_UUID_SIZE];
    char name[WIRE_NAME_SIZE];
    struct topk_device properties;
    struct fd_channel *channel;

    CUdeviceptr d_routes;
    pthread_mutex_t routes_mutex; /* guards the stream and the copy below */
    uint32_t routes_wanted;       /* who waits for it and must not wait long; atomic */
    CUstream routes_stream;
    struct topk_routes *h_routes; /* pinned: as last read */
    void *h_scratch;              /* pinned, 64 bytes */

    pthread_mutex_t mutex; /* guards lanes, buckets, capture stream and what follows */
    CUstream capture_stream;
    struct cuda_bucket *buckets;
    uint32_t num_lanes;
    struct device_lane *lanes[CUDA_LANES_MAX]; /* made so far; they stay until close */
    uint32_t fault_countdown; /* jobs until one gets an illegal address; 0: none does */
    bool is_faulted;
    char fault[WIRE_DETAIL_SIZE];
    struct cuda_poller poller;
    bool poller_started;

    CUstream mailbox_stream; /* of pauses: one for all, so that their order is the calls' */
    uint32_t mailboxes_max;
    uint64_t mailbox_idle_ns;
    uint32_t mailbox_poll_us; /* most that a mailbox may have; 0 without MPS */
    struct cuda_track mailbox_tracks[CUDA_MAILBOXES_MAX]; /* the first mailboxes_max are made */
    uint32_t num_mailboxes;                               /* open ones; where they are has holes */
    struct device_mailbox *mailboxes[CUDA_MAILBOXES_MAX]; /* by the place of their track */
    uint32_t num_quiet;                                   /* who needs that no stream waits */
    uint64_t num_pauses, num_steps_closed;
    uint64_t stall_looked_ns; /* the poller's */

    struct {
        struct cuda_track track;
        struct bucket bucket;
        CUdeviceptr d_scores, d_indices;
        float *h_scores; /* pinned */
        int32_t *h_indices;
    } canary;
};

static inline struct device_cuda *device_cuda_of(struct device *device)
{
    return (struct device_cuda *)device; /* base is its first member */
}

uint64_t cuda_now_ns(void);
/* Less than a second. */
void cuda_pause_ns(uint64_t pause_ns);

/* Makes the context current on the calling thread; every entry from another thread needs it. */
void cuda_enter(struct device_cuda *cuda);

/*
 * Turns a driver's error into a status with the text "<what>: <error>; <hint>": NO_MEMORY, or
 * DEVICE_FAULT for an error that poisons the context (which is then noted), else `otherwise`.
 */
enum topkd_status cuda_fail(struct device_cuda *cuda, CUresult result, enum topkd_status otherwise,
                            const char *what, char *detail);

/* ---- device_cuda.c --------------------------------------------------------------------------- */

/* Takes the mutex of the routes' stream ahead of those that clear memory on it. Any thread. */
void cuda_routes_lock(struct device_cuda *cuda);

/* ---- device_cuda_graph.c --------------------------------------------------------------------- */

enum topkd_status cuda_bucket_open(struct device *device, struct bucket *bucket, char *detail);
void cuda_bucket_close(struct device *device, struct bucket *bucket);

/* The bucket's graph for this track; made now if need be (a new bucket, a new lane: never for a
 * configured bucket on a lane that is open). With the mutex. */
enum topkd_status cuda_exec_get(struct cuda_track *track, struct cuda_bucket *bucket,
                                struct cuda_exec **exec_p, char *detail);

/* Every configured bucket for this track. With the mutex. */
enum topkd_status cuda_exec_prepare(struct cuda_track *track, char *detail);

/* The bucket's graphs for both tracks of the lane, if they are not there: in a pause of all
 * mailboxes. Without the mutex; the loop's. */
enum topkd_status cuda_execs_need(struct device_lane *lane, struct bucket *bucket, char *detail);

/* Undoes it for a track that could not be made. With the mutex. */
void cuda_exec_forget(struct cuda_track *track);

/* A graph of CUDA_STEPS_PER_LAUNCH steps on the mailbox's track. With the mutex. */
enum topkd_status cuda_steps_make(struct device_mailbox *mailbox, const struct cuda_bucket *bucket,
                                  char *detail);

/* ---- device_cuda_track.c --------------------------------------------------------------------- */

/* Stream, descriptors and end mark; also the canary's. What is there after an error goes with
 * cuda_track_fini. */
enum topkd_status cuda_track_init(struct device_cuda *cuda, struct cuda_track *track,
                                  uint32_t number, char *detail);
/* Nothing of it is on the device, and no mailbox waits. A track that was not made is allowed. */
void cuda_track_fini(struct cuda_track *track);

/* Where the next job's request of so many bytes is to be written; its own until it has ended, if
 * the track has less than CUDA_TRACK_DEPTH jobs. With the mutex. */
struct cuda_request *cuda_track_room(struct cuda_track *track, size_t size_bytes);

/* Enqueues descriptor, graph, signal and end mark. On an error it cannot be told what of it is on
 * the stream. With the mutex, or for the canary's track. */
CUresult cuda_track_enqueue(struct cuda_track *track, struct cuda_bucket *bucket,
                            const struct cuda_exec *exec, const struct cuda_enqueue *enqueue);

/* The running jobs: one more, the first taken off (NULL: there is none), and that one when the
 * stream has ended it, with its times (NULL: it has not). With the mutex. */
void cuda_track_add(struct cuda_track *track, struct device_job *job);
struct device_job *cuda_track_take(struct cuda_track *track);
struct device_job *cuda_track_reap(struct cuda_track *track);

/* Whether cuda_track_reap would find one; without the mutex, may be old. */
bool cuda_track_has_ended(const struct cuda_track *track);

/* ---- device_cuda_lane.c ---------------------------------------------------------------------- */

/* Its tracks go; no job is left. */
void cuda_lane_fini(struct device_lane *lane);

/* Makes lanes ahead of sessions. */
enum topkd_status cuda_lanes_reserve(struct device_cuda *cuda, uint32_t num_lanes, char *detail);

enum topkd_status cuda_lane_create(struct device *device, struct device_shared *page,
                                   struct device_lane **lane_p, char *detail);
void cuda_lane_destroy(struct device *device, struct device_lane *lane);
void cuda_lane_submit(struct device_lane *lane, struct device_job *job);
bool cuda_lane_cancel(struct device_lane *lane, struct device_job *job, enum topkd_status status);

/* Ends what has ended, enqueues what can be. With the mutex. */
void cuda_lane_advance(struct device_lane *lane);

/* Whether cuda_lane_advance would find something to do. Without the mutex. */
bool cuda_lane_wants(const struct device_lane *lane);

/* The context is lost: ends every job with DEVICE_FAULT. With the mutex. */
void cuda_lanes_fault(struct device_cuda *cuda);

/* ---- device_cuda_mailbox.c ------------------------------------------------------------------- */

enum topkd_status cuda_mailbox_open(struct device *device,
                                    const struct device_mailbox_config *config,
                                    struct device_mailbox_opened *opened_p, char *detail);
void cuda_mailbox_close(struct device *device, struct device_mailbox *mailbox);
void cuda_mailbox_counts(struct device *device, struct device_mailbox_counts *counts_p);

/* ---- device_cuda_arm.c ----------------------------------------------------------------------- */

/* Takes the mailbox as far as it goes now. `is_idle`: nothing has moved for long. With the mutex.
 */
void cuda_mailbox_advance(struct device_mailbox *mailbox, bool is_idle);

/* A look at every mailbox; how long the poller may rest, 0: nothing is open. The poller's. */
uint64_t cuda_mailboxes_look(struct device_cuda *cuda, uint64_t now_ns);

/* Whether the stream of one has met an error that no later call would survive. With the mutex. */
void cuda_mailboxes_check(struct device_cuda *cuda);

/* Choice: as long as the loop may stand still for a pause of all lanes, which takes 0.2 ms (H200);
 * less than worker.hang_ms is by default. */
#define CUDA_QUIET_MAX_NS UINT64_C(2000000000)

/* From begin (on return) to end no stream of the process waits for a client. Nests, on any threads;
 * without the mutex. Steps that clients ask for meanwhile run after the last end. */
void cuda_quiet_begin(struct device_cuda *cuda);
void cuda_quiet_end(struct device_cuda *cuda);

/* The same, if it becomes true in time; else false, nothing has begun and there is no end to call.
 */
bool cuda_quiet_within(struct device_cuda *cuda, uint64_t timeout_ns);

/* The same within CUDA_QUIET_MAX_NS, else BUSY with who it is that has to wait. */
enum topkd_status cuda_quiet_need(struct device_cuda *cuda, const char *who, char *detail);

/* ---- device_cuda_queues.c -------------------------------------------------------------------- */

/* Makes the streams that must not share a hardware queue, before all others; of them first those
 * that mailboxes must never stand in the way of: pauses, counters, captures, the canary. */
enum topkd_status cuda_queues_open(struct device_cuda *cuda, char *detail);
/* Nothing of them is on the device. The canary's track is canary_close's. */
void cuda_queues_close(struct device_cuda *cuda);

/* Lowers mailboxes_max to what the hardware queues hold: so many streams wait, and the side streams
 * still go on. Before anything else runs; says in the log what came out. */
enum topkd_status cuda_queues_check(struct device_cuda *cuda, char *detail);

/* Until the stream has done all its work: its result, or CUDA_ERROR_NOT_READY at the timeout. One
 * that stands behind waiting mailboxes has them pause. Without the mutex. */
CUresult cuda_stream_wait(struct device_cuda *cuda, CUstream stream, uint64_t timeout_ns);

/* ---- device_cuda_poll.c ---------------------------------------------------------------------- */

enum topkd_status cuda_poller_start(struct device_cuda *cuda, char *detail);
void cuda_poller_stop(struct device_cuda *cuda);
/* There is work. With the mutex. */
void cuda_poller_wake(struct device_cuda *cuda);
/* Waits until nobody looks any more at what may have been read of a lane before this call. Without
 * the mutex; some microseconds. */
void cuda_poller_pass(struct device_cuda *cuda);
/* The loop's look; see device.h. */
bool cuda_look(struct device *device);

/* ---- device_cuda_memory.c -------------------------------------------------------------------- */

/* Where the streams of this device find byte 0 of a semaphore page. */
CUdeviceptr cuda_shared_device_address(const struct device_shared *shared);

enum topkd_status cuda_shared_create(struct device *device,
                                     const struct device_shared_config *config,
                                     struct device_shared **shared_p, char *detail);
void cuda_shared_destroy(struct device *device, struct device_shared *shared);
enum topkd_status cuda_memory_open(struct device *device,
                                   const struct wire_register_request *request,
                                   const struct peer *peer, struct device_memory **memory_p,
                                   char *detail);
enum topkd_status cuda_memory_map(struct device *device, struct device_memory *memory,
                                  char *detail);
void cuda_memory_close(struct device *device, struct device_memory *memory);
bool cuda_memory_faulted(const struct device_memory *memory);
void cuda_memory_unlink(const struct wire_memory *memory, const struct device_memory_key *key,
                        const struct peer *peer);

#endif
