/*
 * rpc.h - one raw connection to a supervisor or a worker: a wire request out, its reply back.
 *
 * Used by the library for discovery, hello and everything that is not a selection, and by topkctl.
 * A connection is one NNG REQ socket with exactly one pipe in its life: when the pipe is lost the
 * connection is lost, so that no request ever reaches a worker that did not see its hello. NNG's
 * own resend is off: a request is sent once.
 *
 * Threads: any number may call rpc_exchange on one connection at once. rpc_close must be the last
 * call. Nothing here may be used in a child after fork() (answered TOPKD_E_CLOSED).
 */
#ifndef TOPKD_CLIENT_RPC_H
#define TOPKD_CLIENT_RPC_H

#include "clock.h"
#include "topkd_wire.h"

#include <nng/nng.h>
#include <stdbool.h>
#include <stdint.h>

struct rpc;

/* The process at the other end, as the kernel says; -1 unknown. */
struct rpc_peer {
    int64_t pid, uid, gid;
};

/*
 * Connects to "ipc:///path", trying again until the deadline (clock_after_ms), or 200 ms when that
 * is longer. Blocks.
 * TOPKD_E_UNREACHABLE: nobody listens there, or the connection was closed at once.
 * TOPKD_E_NOT_PERMITTED: the socket may not be opened by this user. TOPKD_E_TIMEOUT: something
 * accepted the connection but did not answer. TOPKD_E_INVALID: not such a URL. TOPKD_E_CLOSED:
 * after fork(). TOPKD_E_NO_MEMORY, TOPKD_E_SYSTEM. `detail` has WIRE_DETAIL_SIZE bytes.
 */
enum topkd_status rpc_open(const char *url, uint64_t deadline_ns, struct rpc **rpc_p, char *detail);

/*
 * Sends the request and blocks for its reply until the deadline. The request goes out as it is:
 * session, epoch and sequence are the caller's. Returns the status of the reply (then *reply is set
 * and `detail` has its text when that is an error), or TOPKD_E_TIMEOUT, TOPKD_E_UNREACHABLE when
 * the connection is or gets lost (the request may have run), TOPKD_E_PROTOCOL for a reply that is
 * none, TOPKD_E_INVALID for a request that cannot be encoded, TOPKD_E_NO_MEMORY. struct wire_reply
 * is large (some 35 KiB): small stacks should allocate it.
 */
enum topkd_status rpc_exchange(struct rpc *rpc, const struct wire_request *request,
                               uint64_t deadline_ns, struct wire_reply *reply, char *detail);

/* The same in two steps, for a caller that orders what it sends: rpc_send does not wait, and after
 * TOPKD_OK rpc_receive must follow. The exchange is the caller's memory and stays in its place. */
struct rpc_exchange {
    nng_aio *aio;
    nng_ctx ctx;
    uint64_t deadline_ns, sequence;
    enum wire_kind kind;
    struct rpc_exchange *next, **link_p;
};

enum topkd_status rpc_send(struct rpc *rpc, const struct wire_request *request,
                           uint64_t deadline_ns, struct rpc_exchange *exchange, char *detail);
enum topkd_status rpc_receive(struct rpc *rpc, struct rpc_exchange *exchange,
                              struct wire_reply *reply, char *detail);

/* Encodes into a new message of the size that the request needs; the caller owns it. */
enum topkd_status rpc_encode(const struct wire_request *request, nng_msg **message_p, char *detail);

/* Whether the pipe is gone. A connection never comes back. */
bool rpc_lost(struct rpc *rpc);

/* Has lost(arg) called once, from a thread of NNG or from this call, when the pipe is gone. It must
 * not call anything of this header. */
void rpc_watch(struct rpc *rpc, void (*lost)(void *arg), void *arg);

struct rpc_peer rpc_peer(const struct rpc *rpc);
nng_socket rpc_socket(const struct rpc *rpc);
const char *rpc_url(const struct rpc *rpc);

/* How long a request may wait to be sent before the connection counts as lost. */
int32_t rpc_send_ms(void);

/* Ends the connection: exchanges in flight return TOPKD_E_UNREACHABLE, lost() is called before this
 * returns. The object stays valid for rpc_close. Does not block. */
void rpc_abort(struct rpc *rpc);

/* Aborts and frees. No other call may be running or follow. Best when no reply is outstanding: see
 * rpc.c for why. Blocks for a moment, two seconds in the worst case. NULL is allowed. */
void rpc_close(struct rpc *rpc);

#endif
