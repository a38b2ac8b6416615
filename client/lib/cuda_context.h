/*
 * cuda_context.h - the CUDA part of a client: what its sessions, regions, buffers and streams need
 * of the driver. Nothing of it is loaded before a call that needs it.
 *
 *   cuda_context.c the device's context, arenas and pages of sessions, the janitor
 *   cuda_memory.c  how a pointer can be shared; regions and buffers
 *   cuda_stream.c  semaphores and selections in the order of a CUDA stream
 *
 * While a stream of this process waits for a value, some calls of the driver block, and others
 * behind them (cudaFree is one). Therefore no call into the driver is made with the client's mutex
 * held, and what belongs to a session that is gone is given back by a thread of its own, the
 * janitor: answers, and with them the end of every wait, never depend on the driver.
 */
#ifndef TOPKD_CLIENT_CUDA_CONTEXT_H
#define TOPKD_CLIENT_CUDA_CONTEXT_H

#include "cuda_driver.h"
#include "topkd_wire.h"

#include <stdbool.h>
#include <stdint.h>

struct session;
struct topkd_client;
struct topkd_region;
struct topkd_buffer;

/* One a client. */
struct cuda;

/* What a session holds of the driver; in struct session. */
struct cuda_session {
    struct cuda *cuda;        /* NULL: nothing */
    struct session *next;     /* with the janitor */
    struct wire_memory arena; /* as hello gave it */
    cuda_pointer arena_base;  /* 0: not opened */
    cuda_pointer page_base;   /* the semaphore page, for streams; 0: not registered */
};

/* How CUDA memory travels to a worker. */
struct cuda_export {
    void *pointer; /* of the region's first byte */
    uint64_t length_bytes;
    uint64_t buffer_id;
    struct wire_memory memory; /* descriptors: handle_bytes is 0 until cuda_export_send */
    uint64_t offset_bytes;     /* of the region in the memory */
};

/* ---- cuda_context.c -------------------------------------------------------------------------- */

/* The client's CUDA part, made at the first call. INVALID when the session's device is none;
 * NOT_VISIBLE when this process does not see the device. Without the mutex. */
enum topkd_status cuda_get(struct topkd_client *client, struct cuda **cuda_p, char *detail);

/* Ends it, if there is one: no stream uses it any more. Without the mutex. */
void cuda_end(struct topkd_client *client);

const struct cuda_driver *cuda_calls(const struct cuda *cuda);
/* The device's context, as the driver names it. */
void *cuda_context(const struct cuda *cuda);
/* The stream for the library's own copies. */
void *cuda_stream(const struct cuda *cuda);
/* The device's context becomes the calling thread's until cuda_leave. */
enum topkd_status cuda_enter(const struct cuda *cuda, char *detail);
void cuda_leave(const struct cuda *cuda);
/* The device's number in this process, and the driver's name of it. */
int cuda_ordinal(const struct cuda *cuda);
int cuda_device(const struct cuda *cuda);

/* Opens the arena of the present session, or of one that is not the client's yet. Without the
 * mutex; the session is the caller's to keep alive. */
enum topkd_status cuda_arena_open(struct topkd_client *client, struct session *session,
                                  char *detail);
/* Makes sure that the present session's arena is open, when its device is CUDA. */
enum topkd_status cuda_arena_need(struct topkd_client *client, char *detail);
/* Registers the session's semaphore page. */
enum topkd_status cuda_page_need(struct topkd_client *client, struct session *session,
                                 char *detail);

/* A session without references that holds something of the driver: the janitor frees it. With the
 * mutex. */
void cuda_retire(struct session *session);

/* ---- cuda_memory.c --------------------------------------------------------------------------- */

/* Finds out how the memory at export->pointer can be shared and fills in the rest. */
enum topkd_status cuda_export_describe(const struct cuda *cuda, struct cuda_export *export,
                                       char *detail);

/* What must be done each time before the memory is registered: checks that it is still the same,
 * and hands descriptors over to the worker at `url`. */
enum topkd_status cuda_export_send(const struct cuda *cuda, const struct cuda_export *export,
                                   const char *url, struct wire_memory *memory_p, char *detail);

/* ---- cuda_stream.c --------------------------------------------------------------------------- */

/* Forgets the streams; their semaphores go with the client's. */
void cuda_streams_free(struct topkd_client *client);

/* ---- cuda_memory.c, buffers ------------------------------------------------------------------ */

enum topkd_status cuda_buffer_fill(struct topkd_buffer *buffer, uint64_t size_bytes, char *detail);
void cuda_buffer_free(struct topkd_buffer *buffer);

#endif
