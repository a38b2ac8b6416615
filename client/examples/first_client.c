/*
 * first_client - the smallest complete client of topkd: make scores, ask, print.
 *
 * Build it against an installed topkd with
 *     cc first_client.c $(pkg-config --cflags --libs topkd) -o first_client
 */
#include <topkd.h>

#include <stdio.h>
#include <stdlib.h>

enum { ROWS = 4, WIDTH = 100000, K = 8 };

static void check(enum topkd_status status, const char *what)
{
    if (status != TOPKD_OK) {
        fprintf(stderr, "%s: %s: %s\n%s\n", what, topkd_strerror(status), topkd_detail(),
                topkd_strhint(status));
        exit(1);
    }
}

int main(void)
{
    struct topkd_client *client;
    check(topkd_client_open(NULL, &client), "open");

    /* Memory that the daemon reads in place: float32 [ROWS, WIDTH]. */
    struct topkd_buffer *buffer;
    check(topkd_buffer_create(client, sizeof(float) * ROWS * WIDTH, &buffer), "buffer");
    float *scores = topkd_buffer_data(buffer);
    for (uint32_t i = 0; i < ROWS * WIDTH; i++) {
        scores[i] = (float)(i * 2654435761u % 1000003u) / 1000003.0f;
    }

    /* The K best positions of every row, best first. */
    struct topkd_select_request request = {
        .scores = {.region = topkd_buffer_region(buffer)},
        .rows = ROWS,
        .width = WIDTH,
        .k = K,
        .order = TOPKD_ORDER_VALUE,
    };
    struct topkd_result result;
    check(topkd_select(client, &request, &result), "select");

    for (int row = 0; row < ROWS; row++) {
        const int32_t *indices = result.indices + row * result.index_stride;
        printf("row %d:", row);
        for (int i = 0; i < K; i++) {
            printf(" %d (%.6f)", indices[i], (double)scores[row * WIDTH + indices[i]]);
        }
        printf("\n");
    }

    topkd_result_release(client, &result);
    topkd_buffer_destroy(buffer);
    topkd_client_close(client);
    return 0;
}
