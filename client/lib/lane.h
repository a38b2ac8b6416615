/*
 * lane.h - lanes: selection inside a CUDA graph of the caller's (topkd.h).
 *
 *   lane.c         open, close, what became of steps
 *   lane_renew.c   renewal; the watcher, which answers steps that no worker serves
 *   cuda_lane.c    the mailbox, and the operations of streams on it
 *   cuda_ask.c     the kernel that does them for a word in device memory, under MPS
 *
 * The mailbox is this process's memory, so that its addresses, and the graphs that hold them, stay
 * when the worker is replaced: a lane is opened again with the same mailbox.
 *
 * Who answers a step is one side at any time: the worker from the answer to LaneOpen until its
 * session is gone, otherwise the watcher. A worker that died may have had a selection on the GPU,
 * whose answer would meet the next step: so the watcher waits until that process is gone, or a
 * quarter of a second when that cannot be seen.
 */
#ifndef TOPKD_CLIENT_LANE_H
#define TOPKD_CLIENT_LANE_H

#include "cuda_context.h"
#include "list.h"
#include "topkd.h"
#include "topkd_wire.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct link;
struct session;

/* Of a client; under its cuda_mutex. */
struct lane_kernel {
    void *module, *function; /* NULL: not loaded */
};

/* In struct topkd_client; under its mutex. */
struct lanes {
    struct lane_kernel kernel;
    struct list list;
    pthread_cond_t wake; /* of the watcher */
    pthread_t watcher;
    bool is_watching; /* the thread was started */
    bool is_ending;
    pid_t worker_pid; /* of the last worker that served them; <= 0 unknown */
    uint64_t lost_ns; /* since when it does not */
};

/* Where a lane's word lies. */
struct lane_mailbox {
    struct wire_mailbox *file; /* one page, mapped */
    int fd;
    cuda_pointer d_file;
    bool is_registered;
    struct topkd_buffer *buffer; /* with word and release in device memory, else NULL */
    cuda_pointer d_word;
    cuda_pointer d_bell; /* in the file */
    void *stream;        /* of the library's own writes to the buffer */
    void *kernel;        /* that a step launches; NULL: a step is operations of the driver's */
};

/* Where a node goes in a graph under construction. */
struct lane_place {
    void *graph;
    void *const *dependencies;
    size_t num_dependencies;
    void **node_p;
};

struct topkd_lane {
    struct topkd_client *client;
    struct list node; /* in client->lanes.list, once it was opened */
    struct topkd_select_request request;
    struct topkd_tensor live_rows;
    uint32_t poll_us; /* as asked for */
    enum topkd_lane_wait wait;
    struct lane_mailbox mailbox;
    /* Under the client's mutex. */
    uint64_t id; /* in the session that serves it */
    uint32_t poll_us_granted;
    bool is_served;
    bool is_handed; /* to a worker, by a renewal that is not over */
    bool is_closing;
    bool is_answering;               /* by the watcher, without the mutex: the lane stays */
    uint64_t renewed_serial;         /* the last session in which that was tried */
    enum topkd_status outage_status; /* why it is not served */
    char outage_detail[WIRE_DETAIL_SIZE];
    uint64_t num_failed, num_reported, num_renewals;
};

/* ---- lane_renew.c ---------------------------------------------------------------------------- */

/* Starts the watcher, once a client. Without the mutex. */
enum topkd_status lanes_watch(struct topkd_client *client, char *detail);

/* What opens the lane on this session. With the mutex. */
enum topkd_status lane_fill_open(const struct topkd_lane *lane, const struct session *session,
                                 const struct wire_memory *file, struct wire_request *request,
                                 char *detail);

/* With the mutex: the session is gone, and the steps are the library's to answer. */
void lanes_lose(struct topkd_client *client, const struct session *session,
                enum topkd_status status, const char *detail);

/* Opens every lane on a link that is not the client's yet. Without the mutex. What a worker refuses
 * is noted in the lane; only what spoils the link is returned. */
enum topkd_status lanes_renew(struct topkd_client *client, struct link *link, char *detail);

/* With the mutex: the link has become the client's. */
void lanes_take(struct topkd_client *client, const struct link *link);

/* ---- lane.c ---------------------------------------------------------------------------------- */

/* Closes every lane. Without the mutex. */
void lanes_close(struct topkd_client *client);

/* Ends the watcher; no lane is left. */
void lanes_free(struct topkd_client *client);

/* ---- cuda_lane.c ----------------------------------------------------------------------------- */

enum topkd_status cuda_lane_mailbox_make(struct topkd_client *client,
                                         const struct topkd_lane_options *options,
                                         struct lane_mailbox *mailbox_p, char *detail);
/* No step of the lane is outstanding. */
void cuda_lane_mailbox_free(struct topkd_client *client, struct lane_mailbox *mailbox);

/* Hands the mailbox's file over to the worker at `url`. */
enum topkd_status cuda_lane_offer(const struct lane_mailbox *mailbox, const char *url,
                                  struct wire_memory *memory_p, char *detail);

/* What the library has answered is in place before a worker looks. */
enum topkd_status cuda_lane_settle(struct topkd_client *client, struct lane_mailbox *mailbox,
                                   char *detail);

/* Answers a step that is asked for; whether there was one. */
bool cuda_lane_answer(struct topkd_client *client, struct lane_mailbox *mailbox);

/* ---- cuda_ask.c ------------------------------------------------------------------------------ */

/* The kernel, loaded at the first call. Unless it `must` be had, NULL where the device is not
 * shared through MPS or the driver does not compile it. Without the mutex; the client has its CUDA
 * part. */
enum topkd_status cuda_ask_get(struct topkd_client *client, bool must, void **kernel_p,
                               char *detail);
/* No lane is left. */
void cuda_ask_free(struct topkd_client *client);

/* Both return the driver's result; with the device's context. */
int cuda_ask_launch(const struct cuda *cuda, const struct lane_mailbox *mailbox, void *stream);
int cuda_ask_add_node(const struct cuda *cuda, const struct lane_mailbox *mailbox,
                      const struct lane_place *place);

#endif
