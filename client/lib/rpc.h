/*
 * rpc.h - one raw connection to a supervisor or a worker: a wire request out, its reply back.
 *
 * Used by the library for everything that it says to a daemon, and by topkctl. A connection is one
 * socket and a thread that reads it; what is sent goes out from the caller's thread, as far as the
 * socket has room. When the connection is lost it stays so: no request ever reaches a worker that
 * did not see its hello, and a request is sent once.
 *
 * Threads: any number may call on one connection at once; rpc_close must be the last call.
 */
#ifndef TOPKD_CLIENT_RPC_H
#define TOPKD_CLIENT_RPC_H

#include "clock.h"
#include "list.h"
#include "topkd_wire.h"

#include <stdbool.h>
#include <stdint.h>

struct rpc;

/* The process at the other end, as the kernel says; -1 unknown. */
struct rpc_peer {
    int64_t pid, uid, gid;
};

/*
 * Connects to "ipc:///path", trying again until the deadline (clock_after_ms), once at least.
 * Blocks. TOPKD_E_UNREACHABLE: nobody listens there, or the connection was closed at once.
 * TOPKD_E_NOT_PERMITTED: the socket may not be opened by this user. TOPKD_E_TIMEOUT: something
 * accepted the connection but did not answer. TOPKD_E_PROTOCOL: something else answered.
 * TOPKD_E_INVALID: not such a URL. TOPKD_E_NO_MEMORY, TOPKD_E_SYSTEM. `detail` has WIRE_DETAIL_SIZE
 * bytes.
 */
enum topkd_status rpc_open(const char *url, uint64_t deadline_ns, struct rpc **rpc_p, char *detail);

/* ---- Requests with an answer that calls -------------------------------------------------------
 */

/* How a request ended. */
struct rpc_answer {
    bool lost; /* the connection went before the reply came; the rest says so too */
    /* Of the reply, or TOPKD_E_PROTOCOL for one that is none or belongs to another request. */
    enum topkd_status status;
    const struct wire_reply *reply; /* NULL: there is none that can be read */
    const char *detail;             /* why the status is not OK */
};

/* One on its way: the owner's memory, in its place until answer() is called. That happens once,
 * from the connection's thread; it may post, and must not wait. */
struct rpc_request {
    void (*answer)(struct rpc_request *request, const struct rpc_answer *answer);
    struct list node; /* of those on their way, in the order they were posted; the rest is rpc's */
    uint32_t id;
    uint64_t sequence;
    enum wire_kind kind;
};

/*
 * Sends the request with this answer(); does not wait. The request goes out as it is: session,
 * epoch and sequence are the caller's. On an error answer() is not called, and nothing was sent
 * that could run: TOPKD_E_UNREACHABLE (the connection is lost), TOPKD_E_INVALID (it cannot be
 * encoded), TOPKD_E_NO_MEMORY.
 */
enum topkd_status rpc_post(struct rpc *rpc, const struct wire_request *wire,
                           struct rpc_request *request, char *detail);

/* ---- Requests with an answer that is waited for -----------------------------------------------
 */

/*
 * Sends the request and blocks for its reply until the deadline. Returns the status of the reply
 * (then *reply is set and `detail` has its text when that is an error), or TOPKD_E_TIMEOUT,
 * TOPKD_E_UNREACHABLE when the connection is or gets lost (the request may have run),
 * TOPKD_E_PROTOCOL for a reply that is none, TOPKD_E_INVALID for a request that cannot be encoded,
 * TOPKD_E_NO_MEMORY. struct wire_reply is large (some 35 KiB): small stacks should allocate it.
 */
enum topkd_status rpc_exchange(struct rpc *rpc, const struct wire_request *wire,
                               uint64_t deadline_ns, struct wire_reply *reply, char *detail);

/* The same in two steps, for a caller that orders what it sends: rpc_send does not wait, and after
 * TOPKD_OK rpc_receive must follow. Exchange and reply are the caller's memory and stay in their
 * place. */
struct rpc_exchange {
    struct rpc_request request;
    struct rpc *rpc;
    uint64_t deadline_ns;
    struct wire_reply *reply;
    bool is_done;
    enum topkd_status status;
    char detail[WIRE_DETAIL_SIZE];
};

enum topkd_status rpc_send(struct rpc *rpc, const struct wire_request *wire, uint64_t deadline_ns,
                           struct wire_reply *reply, struct rpc_exchange *exchange, char *detail);
enum topkd_status rpc_receive(struct rpc_exchange *exchange, char *detail);

/* ---- The connection ---------------------------------------------------------------------------
 */

/* Whether it is lost: it never comes back. */
bool rpc_lost(struct rpc *rpc);

/* Has lost(arg) called once, from the connection's thread or from this call, when the connection is
 * lost and every request was answered. It must not call anything of this header. */
void rpc_watch(struct rpc *rpc, void (*lost)(void *arg), void *arg);

struct rpc_peer rpc_peer(const struct rpc *rpc);
const char *rpc_url(const struct rpc *rpc);

/* Ends the connection: when this returns, every request was answered, as lost if not otherwise, and
 * lost() called. Waits for those calls, for nothing else. The object stays valid for rpc_close. */
void rpc_abort(struct rpc *rpc);

/* Aborts and frees. No other call may be running or follow. NULL is allowed. */
void rpc_close(struct rpc *rpc);

#endif
