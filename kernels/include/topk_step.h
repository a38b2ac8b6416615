/*
 * topk_step.h - the first and the last kernel of a selection that another process asks for.
 *
 * A step of a client's lane is, in one stream: wait for the mailbox, begin, selection, end. The
 * wait is the driver's; it passes when the client has asked, or when the worker releases it because
 * it must free memory, which the driver does not do while a stream waits. Begin tells the two apart
 * and end answers a real step only, so that
 *
 *   each request is selected exactly once, and a step without a request selects nothing and writes
 *   nothing that the client can see.
 *
 * Why that holds. The client writes ASKED when its scores are complete, and not again before it has
 * read ANSWERED. The steps of a lane run one after the other, in one stream.
 * 1. Not paused: the wait passed, and nobody has released it, because `paused` is written, in
 *    stream order, before the release. So the word is ASKED. The step is real; end writes ANSWERED
 *    before the next step's wait (stream order), so that one waits for the next request.
 * 2. Paused: begin reads the word itself. ASKED: real, as above, whether the release or the request
 *    let it pass. Anything else: empty. If the client asks just after that, the word stays ASKED:
 *    an empty step does not touch it, and the next step, armed or still to be armed, takes it.
 * 3. The pause ends after the last armed step has ended and before the next is armed, in stream
 *    order. A request that came between finds its word ASKED at that step's wait.
 * 4. Awake: a lane may let a step begin some time ahead of its request (`poll_ns`). End of a real
 *    step then writes `is_awake` and the word `awake`, which lets the next wait pass at once; begin
 *    looks for the request itself until the time is over or a pause begins. ASKED at the last look:
 *    real. Else the step is empty and begin takes both words back, so that the next wait is for the
 *    client again; a request that came just after the look finds it so, as in 2. The word `awake`
 *    is set only while `is_awake` is: so no wait passes for a begin that does not look.
 * tests/unit/worker/lane_model_test.c runs the same rules as threads.
 */
#ifndef TOPK_STEP_H
#define TOPK_STEP_H

#include "topk_select.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TOPK_STEP_ASKED 1u
#define TOPK_STEP_ANSWERED 2u

/* State of a lane, in device memory, aligned to 16 bytes. The caller sets it before the first step
 * and owns everything that it points to. */
struct topk_step {
    uint32_t paused;          /* written by a stream of the caller's: not 0 while steps may pass
                               * that nobody asked for */
    uint32_t is_real;         /* begin to end of one step */
    uint64_t num_ended;       /* steps */
    uint64_t num_real;        /* of them with a request */
    uint32_t *mailbox;        /* the word, as the device reaches it */
    const int32_t *live_rows; /* rows of the step, or NULL: rows_max */
    struct topk_args *args;   /* of the selection; begin sets its num_rows */
    struct topk_step_counts *counts; /* mapped host memory */
    uint16_t *awake; /* beside the mailbox, so that one wait sees both; NULL when poll_ns is 0 */
    int32_t rows_max;
    uint32_t poll_ns;  /* how long begin looks for a request that is not there yet; 0: not */
    uint32_t is_awake; /* the step before was real, and begin looks */
    uint32_t reserved;
};

/* What a processor can see of the lane's progress; each word is written in one piece. */
struct topk_step_counts {
    uint64_t num_ended;
    uint64_t num_real;
};

/* Loads both kernels into the current context, as topk_cuda_load. */
TOPK_API enum topk_status topk_cuda_step_load(char *detail);

/* Enqueue them; may be captured. What stands between the two is the selection, in the same stream:
 * its kernels begin to launch while begin runs, and end while they run. `looks`: the state has a
 * poll_ns; the selection's blocks then get no place on the device before there is a request. */
TOPK_API enum topk_status topk_cuda_step_begin(struct topk_step *d_step, bool looks, void *stream,
                                               char *detail);
TOPK_API enum topk_status topk_cuda_step_end(struct topk_step *d_step, void *stream, char *detail);

#ifdef __cplusplus
}
#endif

#endif
