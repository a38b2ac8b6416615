/*
 * lane.h - a client's lane: selection inside the client's own CUDA graph.
 *
 * The client's stream asks in a mailbox and the device answers it there, any number of times, with
 * no message and no turn of the loop (device.h, struct wire_mailbox). What is left for the core:
 * check the request once, hold its regions and its bucket while the lane is open, and take the lane
 * down before anything that it uses goes. For the loop thread.
 *
 *   LaneOpen: geometry and regions as of a Select -> device->mailbox_open on a thread of libuv's,
 *   which makes a graph and waits until the device has taken up the lane, some 3 ms -> its id
 *   LaneClose, or the session's end: device->mailbox_close on a thread of libuv's (it waits until
 *   the last armed step has gone by, some 100 us), then regions, bucket and the answer
 *
 * A client that dies, or whose connection goes, ends its session and so its lanes. One that only
 * stops keeps them: the device disarms what is idle, and nothing waits for it any more.
 */
#ifndef TOPKD_SERVER_LANE_H
#define TOPKD_SERVER_LANE_H

#include "device.h"
#include "endpoint.h"
#include "geometry.h"
#include "region.h"
#include "reply_cache.h"
#include "topkd_wire.h"

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

struct session;

/* What is answered, and how often: of one message. */
struct lane_origin {
    struct endpoint_request *request;
    struct reply_cache_entry *entry;
};

/* Regions of a lane beside the tensors. */
enum { LANE_LIVE_ROWS = GEOMETRY_TENSOR_COUNT, LANE_MAILBOX, LANE_REGION_COUNT };

struct lane {
    uint64_t id; /* 0: this place is free */
    struct session *session;
    struct device_mailbox *mailbox;
    struct bucket *bucket;
    struct region *regions[LANE_REGION_COUNT]; /* acquired ones, else NULL */
    bool is_opening, is_closing;
    uv_work_t work;                   /* the open or the close */
    struct endpoint_request *request; /* to answer then, or NULL */
    struct reply_cache_entry *entry;
    uint64_t sequence;
    struct { /* between the loop and the thread of the open */
        struct device_mailbox_config config;
        struct device_mailbox_opened opened;
        struct wire_memory file;
        enum topkd_status status;
        char detail[WIRE_DETAIL_SIZE];
    } open;
};

/* Both: true, the request is kept and answered when it is done. False: the answer is in *reply. */

/*
 * Begins to open one. Errors: UNSUPPORTED (a device without lanes), BUSY (places, or the device
 * does not take it up), LIMIT (of the session), and those of a Select that concern regions and
 * shape.
 */
bool lane_open(struct session *session, const struct wire_lane_open_request *request,
               const struct lane_origin *origin, struct wire_reply *reply);

/* Begins to close. Errors: INVALID (no such lane), UNSUPPORTED. */
bool lane_close(struct session *session, uint64_t id, const struct lane_origin *origin,
                struct wire_reply *reply);

/* The session ends: closes what is open or about to be. session_lane_closed follows for each. */
void lanes_end(struct session *session);

#endif
