/*
 * client.h - what the files of the library share: the objects behind the handles, and who owns
 * them.
 *
 *   client --- link ------ rpc (one connection to the worker)
 *     |          |---- slots (one message in flight each)
 *     |          '---- session (what hello gave: limits, semaphore page, arena mapping)
 *     |--- regions, buffers, semaphores   the handles; they outlive sessions
 *     |--- operations                     parked -> sent -> done
 *     '--- leases                         arena slots that results still hold
 *
 * One mutex a client guards everything here but what a comment excepts. It is never held across a
 * call that waits. Lock order: client mutex, then the connection's. Four kinds of thread enter: the
 * caller's, the connection's (answers, its loss), the timer, and the renewer, the only one that
 * replaces the link.
 */
#ifndef TOPKD_CLIENT_CLIENT_H
#define TOPKD_CLIENT_CLIENT_H

#include "clock.h"
#include "cuda_context.h"
#include "fault.h"
#include "lane.h"
#include "list.h"
#include "rpc.h"
#include "shm.h"
#include "topkd.h"
#include "topkd_wire.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* ---- Session and link ------------------------------------------------------------------------ */

/* What one hello gave. Counted: the link, each lease and each waiter of a semaphore hold it, so
 * that its mappings stay while somebody reads them. */
struct session {
    uint32_t num_refs;
    uint64_t serial; /* of this client, 1, 2, ...: worker-given ids may repeat */
    uint64_t id, epoch;
    struct wire_limits limits;
    enum wire_device_kind device_kind;
    char device[WIRE_UUID_SIZE];
    char server_version[WIRE_NAME_SIZE];
    char url[WIRE_URL_SIZE]; /* of the worker */
    struct rpc_peer worker;
    struct shm_map page;  /* struct wire_semaphore [limits.semaphores] */
    struct shm_map arena; /* empty: no arena, or not opened; of a CUDA device: device memory */
    struct cuda_session cuda;
};

/* One asynchronous message in flight: a SELECT, a SELECT_BATCH or a RELEASE. */
struct slot {
    struct link *link;
    struct rpc_request message;
    struct topkd_op *ops[WIRE_BATCH_MAX];
    uint32_t num_ops;    /* of a RELEASE 0 */
    bool is_counted;     /* in link->num_messages */
    uint64_t wire_lease; /* of a RELEASE */
    uint32_t num_busy;   /* times that the RELEASE was answered BUSY */
    struct slot *next_free;
};

struct link {
    struct topkd_client *client;
    struct rpc *rpc;
    struct session *session;
    struct slot *slots; /* [num_slots]: outstanding requests and releases together */
    struct slot *free_slots;
    uint32_t num_slots;
    uint32_t num_in_use;   /* slots in flight */
    uint32_t num_selects;  /* operations in them */
    uint32_t num_messages; /* slots with operations, but for those that left alone */
    uint32_t num_callers;  /* threads inside rpc_exchange on this link */
    uint32_t arena_used;   /* slots of the arena: in flight, held, or being released */
    uint64_t sequence;     /* of the last request */
    bool lost;             /* the connection is gone */
    bool stale;            /* the worker does not know the session any more */
    bool draining;         /* the worker takes no new work; what is in flight may end */
    uint64_t over_ns;      /* of the renewer: until when a stale link may stay */
};

/* How a message in flight ended. */
struct answer {
    bool lost;                /* the connection went before the reply came; nothing else is set */
    enum topkd_status status; /* of a RELEASE */
    struct wire_select_answer selects[WIRE_BATCH_MAX]; /* of the slot's operations */
};

/* ---- Handles --------------------------------------------------------------------------------- */

struct topkd_region {
    struct topkd_client *client;
    struct list node; /* in client->regions */
    char name[WIRE_HANDLE_SIZE];
    uint64_t inode, allocation_bytes;
    uint64_t offset_bytes, length_bytes;
    enum topkd_access access;
    bool is_cuda;
    struct cuda_export export;   /* of CUDA memory */
    struct topkd_buffer *buffer; /* whose region it is, or NULL */
    uint32_t num_users;          /* operations and registrations that refer to it */
    bool closing;
    uint64_t session_serial; /* where it is registered; 0 nowhere */
    uint64_t renewed_serial; /* the last session in which that was tried again */
    uint64_t id;
    uint32_t generation;
    enum topkd_status fault_status; /* why a renewed session does not have it */
    char fault_detail[WIRE_DETAIL_SIZE];
};

struct topkd_buffer {
    struct topkd_client *client;
    struct list node; /* in client->buffers */
    struct shm_name name;
    struct shm_map map; /* of a CUDA device: device memory */
    bool is_cuda;
    struct topkd_region *region;
};

struct topkd_semaphore {
    struct topkd_client *client;
    struct list node; /* in client->semaphores, by index */
    uint32_t index;
    uint32_t num_users; /* operations and waiters; the index is free again after the last */
    uint64_t promised;  /* the highest value that a request was started to signal */
    uint64_t streamed;  /* the highest value that a CUDA stream was told to wait for */
    bool destroyed;
};

/* An arena slot that a result holds. */
struct lease {
    struct list node; /* in client->leases */
    uint64_t id;      /* of this client, what struct topkd_result carries */
    struct session *session;
    uint64_t wire_lease;
};

enum op_state {
    OP_PARKED, /* waits for a session, a slot or arena room */
    OP_SENT,   /* in a slot */
    OP_DONE    /* has its status; a late answer may still be on its way (in_flight) */
};

struct topkd_op {
    struct topkd_client *client;
    struct list node;       /* in client->ops, until nobody refers to it */
    struct list queue_node; /* in client->parked or client->finished */
    enum op_state state;
    bool in_flight;       /* the engine's reference: a slot points here */
    bool held;            /* the caller's reference: not finished yet */
    bool alone;           /* never in a message with others: it may wait for a semaphore */
    bool claimed;         /* of topkd_select, or cancelled: never for topkd_op_next */
    uint32_t num_waiters; /* threads in topkd_op_wait: not for topkd_op_next either */
    pthread_cond_t done;
    struct topkd_select_request request; /* lengths_host points to the copy below */
    void *user;
    uint32_t timeout_ms;
    uint64_t deadline_ns;
    uint64_t number; /* of this client, in the order of their start */
    uint32_t num_retries, num_losses;
    enum topkd_status status;
    struct wire_select_reply reply;
    struct lease *lease;          /* made beforehand for a result in the arena */
    bool leased;                  /* it holds a slot */
    const void *indices, *values; /* of the result in a buffer; NULL elsewhere */
    char detail[WIRE_DETAIL_SIZE];
    int32_t lengths[];
};

struct topkd_client {
    pid_t pid; /* fork detection; never changes */
    char url[WIRE_URL_SIZE], device[WIRE_UUID_SIZE], name[WIRE_NAME_SIZE]; /* never change */
    uint32_t timeout_ms;                                                   /* never changes */
    bool no_renew;                                                         /* never changes */
    pthread_mutex_t mutex;
    pthread_cond_t changed;  /* the link came or went, users fell to zero, the client ends */
    pthread_cond_t renewing; /* work for the renewer */
    pthread_t renewer;
    bool closing;
    bool ended;              /* no_renew, and the session is gone: for good */
    struct link *link;       /* NULL while there is none */
    struct session *session; /* the present or last one, never NULL after open */
    uint64_t session_serial;
    uint64_t num_renewals;
    bool attempting;       /* the renewer is building a link: regions may be registered there */
    uint32_t num_awaiting; /* threads that wait for a link */
    uint64_t outage_ns;    /* since when there is no link */
    uint64_t num_refusals; /* attempts that failed for good, so that awaiting threads give up */
    enum topkd_status outage_status; /* of the last attempt, TOPKD_OK before the first */
    char outage_detail[WIRE_DETAIL_SIZE];
    struct list regions, buffers, semaphores, leases;
    struct list streams; /* CUDA streams that selections were ordered with */
    struct lanes lanes;
    struct list ops, parked, finished;
    uint32_t num_parked, num_parked_alone; /* in parked; of them those that leave alone */
    uint32_t num_ops;                      /* in ops and not both done and out of flight */
    uint64_t op_number, lease_id;          /* last ones given */
    int event_fd;                          /* readable while `finished` has elements */
    pthread_t timer;                       /* the thread that expires operations */
    pthread_cond_t timing;                 /* it is to look earlier, or to end */
    uint64_t timer_at_ns;                  /* when it looks; CLOCK_NEVER: not at all */
    bool timer_over;
    pthread_mutex_t cuda_mutex; /* held over calls into the driver; before `mutex`, never in it */
    struct cuda *cuda;          /* made under it, at the first need */
};

/* Choice: how long after its deadline a request in flight is still given to the worker, which has
 * the same deadline and whose own answer says more. */
#define CLIENT_GRACE_NS (100 * CLOCK_NS_PER_MS)

/* ---- client.c -------------------------------------------------------------------------------- */

/* Every public function begins with it: TOPKD_E_INVALID for NULL, TOPKD_E_CLOSED after fork. */
enum topkd_status client_check(const struct topkd_client *client, char *detail);

/* `timeout_ms` of a call as a deadline; 0 is the client's default. */
uint64_t client_deadline_ns(const struct topkd_client *client, uint32_t timeout_ms);

/* A condition variable on CLOCK_MONOTONIC. */
void client_cond_init(pthread_cond_t *cond);

/* Waits on `cond` with the mutex held; false when the deadline (or CLOCK_NEVER) has passed. */
bool client_cond_wait(struct topkd_client *client, pthread_cond_t *cond, uint64_t deadline_ns);

/* Drops a reference; with the mutex held, or when no other thread can see the client. */
void session_release(struct session *session);

/* The same without the mutex. */
void session_let_go(struct topkd_client *client, struct session *session);

/* ---- link.c ---------------------------------------------------------------------------------- */

/* Finds the device's worker, connects and says hello, maps its memory. Without the mutex. The
 * status is that of the step that failed. */
enum topkd_status link_open(struct topkd_client *client, uint64_t serial, uint64_t deadline_ns,
                            struct link **link_p, char *detail);

/* Ends the connection, lets every slot and caller come to its end (as lost), frees. Without the
 * mutex; the link is no longer the client's. */
void link_close(struct link *link);

/* With the mutex. */
bool link_usable(const struct link *link);
struct slot *link_take_slot(struct link *link); /* NULL when all are in use */
void link_give_slot(struct slot *slot);

/* Fills in session, epoch and the next sequence (a batch takes one for each select), encodes and
 * sends; the answer comes to engine_answer. With the mutex. On an error the slot is still the
 * caller's, and nothing was sent: TOPKD_E_UNREACHABLE when the connection is lost. */
enum topkd_status link_send(struct slot *slot, struct wire_request *request, char *detail);

/* A request and its reply on a link that is not the client's yet, so that nobody else numbers
 * requests; again while the worker is busy, until the deadline. Without the mutex. */
enum topkd_status link_exchange(struct link *link, struct wire_request *request,
                                uint64_t deadline_ns, struct wire_reply *reply, char *detail);

/* ---- renew.c --------------------------------------------------------------------------------- */

enum topkd_status renew_start(struct topkd_client *client, char *detail);
void renew_stop(struct topkd_client *client); /* client->closing is set; joins */
void renew_wake(struct topkd_client *client); /* with the mutex */

/* Whether an attempt that failed so is worth another. */
bool renew_transient(enum topkd_status status);

/* ---- call.c ---------------------------------------------------------------------------------- */

/* A request that is not a selection. Both functions run with the mutex held. */
struct call {
    /* Sets kind and body, each time it is sent; may refuse. */
    enum topkd_status (*fill)(struct wire_request *request, const struct session *session,
                              void *arg, char *detail);
    /* Takes the reply that is OK, before a renewal can replace the session; may be NULL. */
    void (*take)(const struct wire_reply *reply, const struct session *session, void *arg);
    void *arg;
    uint64_t deadline_ns;
    bool is_busy_final; /* BUSY is an answer, and not a reason to ask again */
};

/* Waits for a link that takes requests. */
enum topkd_status call_await_link(struct topkd_client *client, uint64_t deadline_ns,
                                  struct link **link_p, char *detail);

/* Sends it on the present session and blocks for the reply; renews and repeats as need be. */
enum topkd_status call_run(struct topkd_client *client, const struct call *call, char *detail);

/* Where descriptors go that a request is to name, and whose they are then. */
struct call_worker {
    uint64_t session_serial;
    char url[WIRE_URL_SIZE];
};

/* The worker of the present session; waits for one as call_await_link. Without the mutex, as the
 * next. */
enum topkd_status call_find_worker(struct topkd_client *client, uint64_t deadline_ns,
                                   struct call_worker *worker_p, char *detail);

/* Its side socket was UNREACHABLE: the worker may be gone, which shows soon, or hold too many
 * connections. Waits a moment; false: the deadline has passed, do not try again. */
bool call_worker_again(struct topkd_client *client, const struct call_worker *worker,
                       uint64_t deadline_ns);

/* ---- region.c -------------------------------------------------------------------------------- */

/* The wire request that registers the region. */
void region_fill(const struct topkd_region *region, const struct session *session,
                 struct wire_request *request);

/* Registers every live region on a link that is not the client's yet. Without the mutex. A region
 * that the worker refuses is marked; only what spoils the link is returned. */
enum topkd_status region_renew_all(struct topkd_client *client, struct link *link, char *detail);

/* Registers `info` of memory with the worker; base is where the region lies in this process or
 * NULL. */
enum topkd_status region_open(struct topkd_client *client, const struct topkd_shm *shm,
                              const struct shm_info *info, struct topkd_buffer *buffer,
                              struct topkd_region **region_p, char *detail);
enum topkd_status region_close(struct topkd_region *region, char *detail);

/* The same for CUDA memory. */
enum topkd_status region_open_cuda(struct topkd_client *client, const struct cuda_export *export,
                                   enum topkd_access access, struct topkd_buffer *buffer,
                                   struct topkd_region **region_p, char *detail);

/* ---- buffer.c -------------------------------------------------------------------------------- */

/* Frees its memory and the handle. */
void buffer_free(struct topkd_buffer *buffer);

/* ---- op.c ------------------------------------------------------------------------------------ */

/* As topkd_select_start; with `session`, only while that is the client's. Without the mutex. */
enum topkd_status op_start(struct topkd_client *client, const struct topkd_select_request *request,
                           const struct session *session, bool blocking, void *user,
                           struct topkd_op **op_p);

/* ---- semaphore.c (all with the mutex) -------------------------------------------------------- */

uint64_t semaphore_value(const struct topkd_semaphore *semaphore);
void semaphore_release(struct topkd_semaphore *semaphore); /* one user less */

/* Reaches `value` as failed unless it is reached already. */
void semaphore_fail(const struct topkd_semaphore *semaphore, uint64_t value,
                    enum topkd_status status);
/* The same on the page of a session that need not be the present one. */
void semaphore_fail_on(const struct session *session, const struct topkd_semaphore *semaphore,
                       uint64_t value, enum topkd_status status);

/* Reaches, as failed, every value that a CUDA stream waits for on the present session's page. */
void semaphore_release_streams(struct topkd_client *client, enum topkd_status status);

/* Whether the work that was to signal `value` is known to have ended, and how. */
bool semaphore_ended(const struct topkd_semaphore *semaphore, uint64_t value,
                     enum topkd_status *status_p);

/* Carries every value over from one session's page to another's. TOPKD_E_LIMIT when the new page
 * is too small. */
enum topkd_status semaphore_restore(struct topkd_client *client, const struct session *from,
                                    const struct session *to, char *detail);

/* ---- select.c -------------------------------------------------------------------------------- */

/* Checks all that can be known without the worker. With the mutex. */
enum topkd_status select_check(struct topkd_client *client,
                               const struct topkd_select_request *request, char *detail);

/* An operation as the wire has it on this session, with the time that is left. With the mutex. */
enum topkd_status select_fill(const struct topkd_op *op, const struct session *session,
                              struct wire_select_request *select, char *detail);

/* Its parts: one tensor, and all of the wire's struct but semaphores and deadline. */
enum topkd_status select_check_tensor(const struct topkd_client *client,
                                      const struct topkd_tensor *tensor, const char *name,
                                      uint32_t element_bytes, char *detail);
enum topkd_status select_put_ref(const struct topkd_tensor *tensor, const struct session *session,
                                 struct wire_region_ref *ref, char *detail);
enum topkd_status select_fill_shape(const struct topkd_select_request *request,
                                    const struct session *session,
                                    struct wire_select_request *select, char *detail);

/* Calls visit once for each region that the request names. */
void select_each_region(const struct topkd_select_request *request,
                        void (*visit)(struct topkd_region *region, int32_t change), int32_t change);

/* Notes where the result lies in this process, while its regions are known to be there. */
void select_locate(struct topkd_op *op);

/* The result of an operation that is OK. With the mutex. */
void select_result(const struct topkd_op *op, struct topkd_result *result_p);

/* ---- engine.c, engine_send.c
 * ------------------------------------------------------------------------ */

/* The answer of a slot, from link.c. Without the mutex. */
void engine_answer(struct slot *slot, const struct answer *answer);

/* With the mutex: takes the operation on, and sends what can be sent. */
void engine_start(struct topkd_op *op);
void engine_pump(struct topkd_client *client);

/* With the mutex: ends operations. */
void engine_expire(struct topkd_client *client);
void engine_cancel(struct topkd_op *op, const char *why);
void engine_fail_parked(struct topkd_client *client, enum topkd_status status, const char *detail);

/* Ends those parked operations that wait or signal, if the session's device is CUDA: streams of
 * this process hold on to the page of the session that is gone. */
void engine_fail_streamed(struct topkd_client *client);
void engine_unhold(struct topkd_op *op); /* the caller's reference goes */

/* With the mutex: takes an operation out of `finished`. */
void engine_unqueue(struct topkd_op *op);

/* With the mutex: gives an arena slot back, if its session still is the present one. Frees. */
void engine_release_lease(struct topkd_client *client, struct lease *lease);

/* The thread that expires operations. */
enum topkd_status engine_timer_start(struct topkd_client *client, char *detail);
void engine_timer_stop(struct topkd_client *client); /* joins; without the mutex */

#endif
