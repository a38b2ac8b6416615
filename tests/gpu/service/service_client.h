/*
 * service_client.h - what the cases of the service test share: one client process with its own CUDA
 * context, a session, buffers of scores and results, and the oracle.
 */
#ifndef TOPKD_TESTS_SERVICE_CLIENT_H
#define TOPKD_TESTS_SERVICE_CLIENT_H

#include "inputs.h"
#include "oracle.h"
#include "topkd.h"

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

/* What the command line says. */
struct service_options {
    const char *url, *device;
    uint32_t rounds;
    uint64_t seed;
};

/* Whose name failures carry. */
void service_case_begin(const char *name);

/* Ends the process with one line, FAIL and the place, unless the condition holds. */
#define CHECK(condition, ...)                                                                      \
    ((condition) ? (void)0 : service_fail(__FILE__, __LINE__, #condition, __VA_ARGS__))
_Noreturn void service_fail(const char *file, int line, const char *what, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* The call must return this status. */
#define EXPECT(status, call) service_expect(__FILE__, __LINE__, #call, (status), (call))
void service_expect(const char *file, int line, const char *call, enum topkd_status wanted,
                    enum topkd_status got);
/* The driver's call must succeed. */
#define CU(call) service_cu(__FILE__, __LINE__, #call, (call))
void service_cu(const char *file, int line, const char *call, CUresult result);

/* Context of the device with the session's UUID, current on this thread. */
void service_gpu_open(const char *uuid);
CUdevice service_gpu_device(void);

struct topkd_client *service_open(const struct service_options *options, const char *name);

/* One request with its memory, on the host and on the device. */
struct service_request {
    struct inputs_spec inputs;
    struct topk_options options;
    struct topkd_select_request request;
    CUdeviceptr d_scores, d_indices;
    struct topkd_region *scores, *indices;
    float *h_scores;
    int32_t *h_indices, *h_lengths;
    uint64_t scores_bytes, indices_bytes;
};

/* Makes memory for the shape by cuMemAlloc and registers it. */
void service_request_open(struct topkd_client *client, int32_t rows, int32_t width, int32_t k,
                          struct service_request *request);
void service_request_close(struct service_request *request);

/* Draws fresh scores and lengths (in the message), on the host only. */
void service_request_draw(struct service_request *request, uint64_t seed);
/* Scores to the device and poison over the result; done on return. */
void service_request_upload(struct service_request *request);
/* Fetches the result from d_indices (or `from`, when not 0) and asks the oracle. */
void service_request_check(struct service_request *request, CUdeviceptr from);
/* The result is in h_indices already. */
void service_request_judge(const struct service_request *request);

double service_now_ms(void);
void service_sleep_ms(uint32_t ms);

/* ---- The cases; each ends the process on failure --------------------------------------------- */

#define SERVICE_CASE_TABLE(X)                                                                      \
    X(exact, "mixed shapes, lengths and outputs, blocking, against the oracle")                    \
    X(stream, "selections in the order of streams, pipelined, nothing synchronised")               \
    X(never, "a producer that never signals: timeout of its own request, then all is well")        \
    X(late, "a producer that signals late, from the host and from a stream")                       \
    X(refusals, "memory that cannot be shared, each kind by its name; ranges")                     \
    X(kinds, "interior pointers, one segment twice, virtual memory in two pieces, buffers")        \
    X(stale, "memory freed and allocated again at the same address")                               \
    X(ranges, "geometry that would leave the registered bytes")                                    \
    X(growth, "many requests and registrations: device memory does not grow")                      \
    X(evict, "more shapes than graphs are kept")                                                   \
    X(hidden, "a process that does not see the session's device")                                  \
    X(crowd, "regions are unregistered under load")                                                \
    X(idle, "holds regions and a waiting request until it is killed")                              \
    X(fault, "some request meets a fault of the device, those after it are right")                 \
    X(survive, "the worker is killed under a waiting stream")                                      \
    X(flood, "keeps the worker busy until it is killed")                                           \
    X(steady, "times of a small client beside others")                                             \
    X(other_device, "memory of another device than the session's is refused")                      \
    X(wrong_uuid, "a session with a device that is not there")                                     \
    X(lane_steps, "a lane, batches of steps with changing inputs, through stream and graphs")      \
    X(lane_churn, "lanes opened and closed between steps")                                         \
    X(lane_refusals, "what a lane cannot be, and one lane too many")                               \
    X(lane_hold, "steps of a lane until it is killed")                                             \
    X(lane_silent, "an armed lane that is never used again")                                       \
    X(lane_replaced, "the worker is killed beside a lane without a step")                          \
    X(lane_survive, "the worker is killed under a lane; rounds 0: for good")

#define SERVICE_CASE(name, text) void service_case_##name(const struct service_options *options);
SERVICE_CASE_TABLE(SERVICE_CASE)
#undef SERVICE_CASE

#endif
