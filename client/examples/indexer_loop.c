/*
 * indexer_loop - where topkd stands in a decoding loop with sparse attention.
 *
 * A batch of sequences grows by one token a step. Keys and values lie in a paged cache: a table a
 * sequence says which page holds which positions. A step of a half of the batch is
 *
 *     indexer    a score for every position so far, written where the daemon reads it
 *     selection  the K best positions, answered as slots of the cache
 *     attention  softmax over the values in those slots
 *
 * The batch goes through in two halves, so that the scores of one are made while the other is being
 * selected; topkd_select_start and topkd_op_wait are all that this takes. On a GPU the kernels of
 * indexer and attention go into one stream, and topkd_select_stream between them.
 *
 * Every selection is compared with a sort. Exit code 0 when all were right.
 */
#include <topkd.h>

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SEQUENCES = 8,
    HALF = SEQUENCES / 2,
    STEPS = 24,
    PROMPT = 3000, /* positions before the first step; each sequence has a few more */
    PAGE = 64,     /* positions a page, a power of two */
    PAGES = (PROMPT + SEQUENCES + STEPS + PAGE - 1) / PAGE, /* a sequence */
    WIDTH = PAGES * PAGE,
    SLOTS = SEQUENCES * WIDTH,
    DIM = 16,
    K = 128,
};

/* What daemon and program share, for one half. */
struct shared {
    float scores[HALF][WIDTH];
    int32_t page_table[HALF][PAGES];
    int32_t slots[HALF][K]; /* the answer */
};

struct half {
    struct topkd_buffer *buffer;
    struct shared *shared; /* in the buffer */
    struct topkd_op *op;
    int first; /* sequence */
};

static float keys[SLOTS][DIM], values[SLOTS][DIM];
static int32_t lengths[SEQUENCES];

static void check(enum topkd_status status, const char *what)
{
    if (status != TOPKD_OK) {
        fprintf(stderr, "%s: %s: %s\n%s\n", what, topkd_strerror(status), topkd_detail(),
                topkd_strhint(status));
        exit(1);
    }
}

static float noise(void)
{
    static uint64_t state = 88172645463325252u;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (float)(state >> 40) / 8388608.0f - 1.0f;
}

/* Pages of the sequences lie anywhere in the cache: here strided, one after another's. */
static int32_t page_of(int sequence, int page)
{
    return page * SEQUENCES + (sequence * 5 + page) % SEQUENCES;
}

static int slot_of(int sequence, int position)
{
    return page_of(sequence, position / PAGE) * PAGE + position % PAGE;
}

/* A token enters the cache. */
static void append(int sequence)
{
    int slot = slot_of(sequence, lengths[sequence]++);
    for (int d = 0; d < DIM; d++) {
        keys[slot][d] = noise();
        values[slot][d] = noise();
    }
}

/* One score for each position so far; what lies behind them is never looked at. */
static void run_indexer(struct half *half)
{
    for (int row = 0; row < HALF; row++) {
        int sequence = half->first + row;
        float query[DIM];
        for (int d = 0; d < DIM; d++) {
            query[d] = noise();
        }
        for (int position = 0; position < lengths[sequence]; position++) {
            const float *key = keys[slot_of(sequence, position)];
            float score = 0;
            for (int d = 0; d < DIM; d++) {
                score += query[d] * key[d];
            }
            half->shared->scores[row][position] = score;
        }
    }
}

static void start_selection(struct topkd_client *client, struct half *half)
{
    struct topkd_region *region = topkd_buffer_region(half->buffer);
    const struct topkd_select_request request = {
        .scores = {.region = region, .offset_bytes = offsetof(struct shared, scores)},
        .indices = {.region = region, .offset_bytes = offsetof(struct shared, slots)},
        .page_table = {.region = region, .offset_bytes = offsetof(struct shared, page_table)},
        .page_table_width = PAGES,
        .page_size = PAGE,
        .rows = HALF,
        .width = WIDTH,
        .k = K,
        .lengths_mode = TOPKD_LENGTHS_HOST,
        .lengths_host = &lengths[half->first],
    };
    check(topkd_select_start(client, &request, NULL, &half->op), "start");
}

static void finish_selection(struct half *half)
{
    check(topkd_op_wait(half->op, TOPKD_TIMEOUT_DEFAULT), "wait");
    check(topkd_op_finish(half->op, NULL), "select");
}

/* Softmax over the chosen slots; here with a query of ones. Slots are used as they come. */
static float run_attention(const struct half *half)
{
    float sum = 0;
    for (int row = 0; row < HALF; row++) {
        float total = 0;
        float out[DIM] = {0};
        for (int i = 0; i < K; i++) {
            int32_t slot = half->shared->slots[row][i];
            float dot = 0;
            for (int d = 0; d < DIM; d++) {
                dot += keys[slot][d];
            }
            float weight = expf(dot);
            total += weight;
            for (int d = 0; d < DIM; d++) {
                out[d] += weight * values[slot][d];
            }
        }
        sum += out[0] / total;
    }
    return sum;
}

static int descending(const void *a, const void *b)
{
    float x = *(const float *)a;
    float y = *(const float *)b;
    return (x < y) - (x > y);
}

/* The scores in the chosen slots are the K highest of the row. */
static bool is_exact(const struct half *half)
{
    for (int row = 0; row < HALF; row++) {
        int sequence = half->first + row;
        static float sorted[WIDTH];
        static bool is_chosen[SLOTS];
        int num_found = 0;
        const float *scores = half->shared->scores[row];
        memcpy(sorted, scores, sizeof(float) * (size_t)lengths[sequence]);
        qsort(sorted, (size_t)lengths[sequence], sizeof(float), descending);
        memset(is_chosen, 0, sizeof(is_chosen));
        for (int i = 0; i < K; i++) {
            is_chosen[half->shared->slots[row][i]] = true;
        }
        for (int position = 0; position < lengths[sequence]; position++) {
            if (is_chosen[slot_of(sequence, position)]) {
                num_found++;
                if (scores[position] < sorted[K - 1]) {
                    return false;
                }
            }
        }
        if (num_found != K) { /* a slot twice, or of another sequence */
            return false;
        }
    }
    return true;
}

static void open_half(struct topkd_client *client, struct half *half, int first)
{
    half->first = first;
    check(topkd_buffer_create(client, sizeof(struct shared), &half->buffer), "buffer");
    half->shared = topkd_buffer_data(half->buffer);
    for (int row = 0; row < HALF; row++) {
        for (int page = 0; page < PAGES; page++) {
            half->shared->page_table[row][page] = page_of(first + row, page);
        }
    }
}

int main(void)
{
    struct topkd_client *client;
    struct half halves[2];
    float sum = 0;
    int num_exact = 0;
    const struct topkd_client_options options = {.device = "cpu", .name = "indexer_loop"};
    check(topkd_client_open(&options, &client), "open");
    open_half(client, &halves[0], 0);
    open_half(client, &halves[1], HALF);
    for (int sequence = 0; sequence < SEQUENCES; sequence++) {
        for (int i = 0; i < PROMPT + sequence; i++) {
            append(sequence);
        }
    }

    run_indexer(&halves[0]);
    start_selection(client, &halves[0]);
    for (int turn = 1; turn <= 2 * STEPS; turn++) {
        struct half *selecting = &halves[(turn - 1) % 2];
        struct half *next = &halves[turn % 2];
        run_indexer(next); /* while the other half is being selected */
        finish_selection(selecting);
        num_exact += is_exact(selecting);
        start_selection(client, next);
        sum += run_attention(selecting); /* while the next half is */
        for (int row = 0; row < HALF; row++) {
            append(selecting->first + row);
        }
    }
    finish_selection(&halves[0]);

    printf("steps=%d sequences=%d length=%d k=%d exact=%d of %d checksum=%.4f\n", STEPS, SEQUENCES,
           lengths[0], K, num_exact, 2 * STEPS, (double)sum);
    topkd_buffer_destroy(halves[0].buffer);
    topkd_buffer_destroy(halves[1].buffer);
    topkd_client_close(client);
    return num_exact == 2 * STEPS ? 0 : 1;
}
