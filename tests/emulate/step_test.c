/*
 * step_test - begin and end of a lane's step (topk_step.h) on the model of a GPU: which steps are
 * real, what they leave for the next one, and how long one that looks ahead of its request looks.
 */
#include "topk_step.h"

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            printf("FAILED %s, line %d: %s\n", __func__, __LINE__, #condition);                    \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

enum { ROWS_MAX = 7, POLL_NS = 50000 };

/* The lane's state, and what it points to: all in device memory. */
struct lane {
    struct topk_step step;
    struct topk_args args;
    struct topk_step_counts counts;
    struct {
        uint32_t word;
        uint16_t release, awake;
    } mailbox;
    int32_t live_rows;
};

static struct lane *d_lane;
static struct lane lane; /* as last read */
static char detail[TOPK_DETAIL_SIZE];

static void put(void)
{
    CHECK(cudaMemcpy(d_lane, &lane, sizeof(lane), cudaMemcpyHostToDevice) == cudaSuccess);
}

static void lane_init(uint32_t poll_ns)
{
    memset(&lane, 0, sizeof(lane));
    lane.step = (struct topk_step){
        .mailbox = &d_lane->mailbox.word,
        .live_rows = &d_lane->live_rows,
        .args = &d_lane->args,
        .counts = &d_lane->counts,
        .awake = &d_lane->mailbox.awake,
        .rows_max = ROWS_MAX,
        .poll_ns = poll_ns,
    };
    lane.live_rows = 3;
    put();
}

/* A whole step, without what stands between its two kernels. */
static void run_step(void)
{
    CHECK(topk_cuda_step_begin(&d_lane->step, lane.step.poll_ns != 0, NULL, detail) == TOPK_OK);
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
    CHECK(topk_cuda_step_end(&d_lane->step, NULL, detail) == TOPK_OK);
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
    CHECK(cudaMemcpy(&lane, d_lane, sizeof(lane), cudaMemcpyDeviceToHost) == cudaSuccess);
    CHECK(lane.counts.num_ended == lane.step.num_ended);
    CHECK(lane.counts.num_real == lane.step.num_real);
}

static void ask(void)
{
    lane.mailbox.word = TOPK_STEP_ASKED;
    put();
}

static bool was_answered(void)
{
    return lane.step.is_real == 1 && lane.mailbox.word == TOPK_STEP_ANSWERED;
}

static void a_request_is_answered(void)
{
    static const int32_t live[][2] = {{3, 3}, {-1, 0}, {0, 0}, {ROWS_MAX + 1, ROWS_MAX}};
    lane_init(0);
    for (int i = 0; i < 4; i++) {
        lane.live_rows = live[i][0];
        ask();
        run_step();
        CHECK(was_answered() && lane.args.num_rows == live[i][1]);
        CHECK(lane.counts.num_real == (uint64_t)i + 1 && lane.mailbox.awake == 0);
    }
}

static void a_paused_step_is_real_when_asked_for(void)
{
    lane_init(0);
    lane.step.paused = 1;
    lane.mailbox.word = TOPK_STEP_ANSWERED;
    put();
    run_step();
    CHECK(lane.step.is_real == 0 && lane.args.num_rows == 0);
    CHECK(lane.counts.num_ended == 1 && lane.counts.num_real == 0);
    ask();
    run_step();
    CHECK(was_answered() && lane.counts.num_real == 1);
}

static void a_step_after_a_real_one_looks(void)
{
    lane_init(POLL_NS);
    ask();
    run_step();
    CHECK(was_answered() && lane.step.is_awake == 1 && lane.mailbox.awake == 1);
    ask(); /* in time */
    run_step();
    CHECK(was_answered() && lane.mailbox.awake == 1);
    run_step(); /* nobody asks: it gives up, and the next wait is for the client */
    CHECK(lane.step.is_real == 0 && lane.args.num_rows == 0);
    CHECK(lane.step.is_awake == 0 && lane.mailbox.awake == 0);
    CHECK(lane.mailbox.word == TOPK_STEP_ANSWERED && lane.counts.num_real == 2);
    ask();
    run_step();
    CHECK(was_answered() && lane.counts.num_ended == 4);
}

static void a_pause_ends_the_look(void)
{
    lane_init(UINT32_MAX); /* 4 s: it would not end otherwise */
    ask();
    run_step();
    CHECK(lane.mailbox.awake == 1);
    lane.step.paused = 1;
    lane.mailbox.release = 1;
    put();
    run_step();
    CHECK(lane.step.is_real == 0 && lane.mailbox.awake == 0 && lane.mailbox.release == 1);
    ask();
    run_step();
    CHECK(was_answered() && lane.step.is_awake == 0 && lane.mailbox.awake == 0);
}

static void a_request_before_the_pause_is_taken(void)
{
    lane_init(POLL_NS);
    ask();
    run_step();
    lane.step.paused = 1;
    ask();
    run_step();
    CHECK(was_answered() && lane.counts.num_real == 2);
}

static void bad_states_are_refused(void)
{
    CHECK(topk_cuda_step_begin(NULL, false, NULL, detail) == TOPK_E_INVALID && detail[0]);
    CHECK(topk_cuda_step_end((struct topk_step *)((char *)d_lane + 8), NULL, detail) ==
          TOPK_E_INVALID);
}

int main(void)
{
    CHECK(cudaMalloc((void **)&d_lane, sizeof(*d_lane)) == cudaSuccess);
    CHECK(topk_cuda_step_load(detail) == TOPK_OK);
    a_request_is_answered();
    a_paused_step_is_real_when_asked_for();
    a_step_after_a_real_one_looks();
    a_pause_ends_the_look();
    a_request_before_the_pause_is_taken();
    bad_states_are_refused();
    CHECK(cudaFree(d_lane) == cudaSuccess);
    printf("6 passed\n");
    return 0;
}
