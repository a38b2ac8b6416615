/*
 * chaos_request.h - random requests of a chaos client: memory, scores, and the judgement of
 * results.
 */
#ifndef TOPKD_TESTS_CHAOS_REQUEST_H
#define TOPKD_TESTS_CHAOS_REQUEST_H

#include "inputs.h"
#include "topkd.h"

#include <stdbool.h>
#include <stdint.h>

#define CHAOS_SCORES_MAX 200000u /* choice: of one request; the oracle sorts them all */
#define CHAOS_K_MAX 2048u

/* Scores, room for the result behind them, and what was asked. */
struct chaos_matrix {
    struct topkd_buffer *buffer;
    struct inputs_spec inputs;
    struct topkd_select_request request;
    float *h_scores; /* what the buffer holds; its own memory on the CPU device */
    int32_t *h_indices;
    bool is_cuda;
};

/* Finds the driver and makes the device's context current. False with a line on stderr. */
bool chaos_cuda_open(const char *uuid);
/* Free bytes of the device's memory; 0 without a device. */
uint64_t chaos_cuda_free_bytes(void);

/* A matrix of a random shape and family with its buffer. The status is the library's. */
enum topkd_status chaos_matrix_open(struct topkd_client *client, struct inputs_rng *rng,
                                    bool is_cuda, struct chaos_matrix *matrix_p);
void chaos_matrix_close(struct chaos_matrix *matrix);
/* Without unregistering: the client is gone, or the process is about to be. */
void chaos_matrix_forget(struct chaos_matrix *matrix);

/* Draws options and lengths for the next request, and puts poison where its result goes. */
void chaos_matrix_ask(struct chaos_matrix *matrix, struct inputs_rng *rng);

/* Whether a finished request was answered rightly; a line on stdout when not. */
bool chaos_matrix_judge(const struct chaos_matrix *matrix, const struct topkd_result *result);

#endif
