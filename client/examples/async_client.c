/*
 * async_client - many requests in flight on one thread: a poll loop over the client's descriptor,
 * as an event-driven server would add it to its own.
 *
 * Keeps up to DEPTH selections outstanding over one buffer of scores, each with an output of its
 * own, and prints how many came back a second.
 */
#include <topkd.h>

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { ROWS = 8, WIDTH = 32768, K = 512, DEPTH = 16, REQUESTS = 500 };

/* One place in the pipeline: where its result lies in the output buffer. */
struct place {
    uint64_t offset_bytes;
};

struct program {
    struct topkd_client *client;
    struct topkd_buffer *scores, *indices;
    struct place places[DEPTH];
    int num_started, num_finished;
};

static void check(enum topkd_status status, const char *what)
{
    if (status != TOPKD_OK) {
        fprintf(stderr, "%s: %s: %s\n%s\n", what, topkd_strerror(status), topkd_detail(),
                topkd_strhint(status));
        exit(1);
    }
}

static void start(struct program *program, struct place *place)
{
    struct topkd_select_request request = {
        .scores = {.region = topkd_buffer_region(program->scores)},
        .indices = {.region = topkd_buffer_region(program->indices),
                    .offset_bytes = place->offset_bytes},
        .rows = ROWS,
        .width = WIDTH,
        .k = K,
    };
    struct topkd_op *op; /* comes back from topkd_op_next; the place travels along */
    check(topkd_select_start(program->client, &request, place, &op), "start");
    program->num_started++;
}

/* Takes every finished operation and starts the next one in its place. */
static void take_finished(struct program *program)
{
    struct topkd_op *op;
    while ((op = topkd_op_next(program->client)) != NULL) {
        struct place *place = topkd_op_user(op);
        struct topkd_result result;
        check(topkd_op_finish(op, &result), "select");
        if (result.indices[0] < 0 || result.indices[0] >= WIDTH) {
            fprintf(stderr, "position %d is outside the row\n", result.indices[0]);
            exit(1);
        }
        program->num_finished++;
        if (program->num_started < REQUESTS) {
            start(program, place);
        }
    }
}

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

int main(void)
{
    struct program program = {0};
    const uint64_t result_bytes = sizeof(int32_t) * ROWS * K;
    check(topkd_client_open(NULL, &program.client), "open");
    check(topkd_buffer_create(program.client, sizeof(float) * ROWS * WIDTH, &program.scores),
          "scores");
    check(topkd_buffer_create(program.client, result_bytes * DEPTH, &program.indices), "indices");
    float *scores = topkd_buffer_data(program.scores);
    for (uint32_t i = 0; i < ROWS * WIDTH; i++) {
        scores[i] = (float)(i * 2654435761u % 1000003u) / 1000003.0f;
    }

    double started_s = now_s();
    for (int i = 0; i < DEPTH; i++) {
        program.places[i].offset_bytes = result_bytes * (uint64_t)i;
        start(&program, &program.places[i]);
    }
    struct pollfd poll_fd = {.fd = topkd_client_fd(program.client), .events = POLLIN};
    while (program.num_finished < REQUESTS) {
        if (poll(&poll_fd, 1, 1000) < 0) {
            perror("poll");
            return 1;
        }
        take_finished(&program);
    }
    printf("requests=%d depth=%d rows=%d width=%d k=%d requests_per_s=%.0f\n", REQUESTS, DEPTH,
           ROWS, WIDTH, K, REQUESTS / (now_s() - started_s));

    topkd_buffer_destroy(program.indices);
    topkd_buffer_destroy(program.scores);
    topkd_client_close(program.client);
    return 0;
}
