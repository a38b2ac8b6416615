/*
 * indexer_client - a client of topkd from end to end.
 *
 * Makes the scores of a sparse-attention indexer (or takes a .npy file), in memory that the daemon
 * reads in place; asks for the K best positions of every row, many times; checks every row of every
 * answer with a judge of its own (row_check.h); and prints one line:
 *
 *     rows=64 width=131072 k=2048 exact=yes p50_us=... p99_us=...
 *
 * The times are of whole calls, as a client sees them. Exit code: 0 when every row was right, 1
 * when one was wrong or something failed, 2 for a wrong command line.
 */
#include "float16.h"
#include "indexer_scores.h"
#include "npy.h"
#include "row_check.h"
#include "topkd.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char usage[] =
    "Usage: indexer_client [--rows N] [--width N] [--k K] [--heads N] [--seed N] [--repeats N]\n"
    "                      [--scores FILE.npy] [--url URL] [--device UUID]\n"
    "Selects from generated indexer scores, or from a float32 or float16 .npy file, and checks\n"
    "every row.\n";

struct settings {
    uint32_t rows, width, k, heads, repeats;
    uint64_t seed;
    const char *scores_path; /* NULL: generated */
    enum topkd_dtype dtype;
    const char *url, *device;
};

/* The tensors of one request in one shared buffer, and where they are in it. */
struct tensors {
    struct topkd_buffer *buffer;
    void *scores;     /* [rows, width] of the settings' dtype, at offset 0 */
    int32_t *lengths; /* [rows] */
    int32_t *indices; /* [rows, k] result */
    uint64_t lengths_offset, indices_offset;
};

static bool failed(const char *what, enum topkd_status status)
{
    fprintf(stderr, "indexer_client: %s: %s: %s (%s)\n", what, topkd_strerror(status),
            topkd_detail(), topkd_strhint(status));
    return false;
}

static size_t element_bytes(const struct settings *settings)
{
    return settings->dtype == TOPKD_DTYPE_FLOAT16 ? sizeof(uint16_t) : sizeof(float);
}

static double now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

/* ---- scores ---------------------------------------------------------------------------------- */

static bool allocate(struct topkd_client *client, const struct settings *settings,
                     struct tensors *tensors)
{
    uint64_t scores_bytes = (uint64_t)settings->rows * settings->width * element_bytes(settings);
    scores_bytes = (scores_bytes + sizeof(int32_t) - 1) / sizeof(int32_t) * sizeof(int32_t);
    uint64_t lengths_bytes = (uint64_t)settings->rows * sizeof(int32_t);
    uint64_t indices_bytes = (uint64_t)settings->rows * settings->k * sizeof(int32_t);
    uint64_t size_bytes = scores_bytes + lengths_bytes + indices_bytes;
    enum topkd_status status = topkd_buffer_create(client, size_bytes, &tensors->buffer);
    if (status != TOPKD_OK) {
        return failed("shared buffer", status);
    }
    char *data = topkd_buffer_data(tensors->buffer);
    tensors->lengths_offset = scores_bytes;
    tensors->indices_offset = scores_bytes + lengths_bytes;
    tensors->scores = data;
    tensors->lengths = (int32_t *)(void *)(data + tensors->lengths_offset);
    tensors->indices = (int32_t *)(void *)(data + tensors->indices_offset);
    return true;
}

static bool fill(const struct settings *settings, const struct npy_view *file,
                 struct tensors *tensors)
{
    if (file->data != NULL) {
        memcpy(tensors->scores, file->data, file->data_bytes);
        for (uint32_t row = 0; row < settings->rows; row++) {
            tensors->lengths[row] = (int32_t)settings->width;
        }
        return true;
    }
    const struct indexer indexer = {.seed = settings->seed,
                                    .rows = settings->rows,
                                    .width = settings->width,
                                    .heads = settings->heads};
    if (!indexer_fill(&indexer, tensors->scores, tensors->lengths)) {
        fprintf(stderr, "indexer_client: out of memory for queries and keys\n");
        return false;
    }
    return true;
}

/* ---- selecting ------------------------------------------------------------------------------- */

/* What checking takes: one bit a position, and the numbers of a row of 16 bits. */
struct check_room {
    uint64_t *marks;
    float *numbers;
};

/* A row's scores as float32. */
static const float *numbers_of(const struct settings *settings, const struct tensors *tensors,
                               uint32_t row, struct check_room *room)
{
    size_t at = (size_t)row * settings->width;
    if (settings->dtype == TOPKD_DTYPE_FLOAT32) {
        return (const float *)tensors->scores + at;
    }
    float16_widen((const uint16_t *)tensors->scores + at, settings->width, room->numbers);
    return room->numbers;
}

static bool check_rows(const struct settings *settings, const struct tensors *tensors,
                       struct check_room *room)
{
    for (uint32_t row = 0; row < settings->rows; row++) {
        char detail[ROW_CHECK_DETAIL_SIZE];
        const struct row_check check = {
            .scores = numbers_of(settings, tensors, row, room),
            .width = (int32_t)settings->width,
            .length = tensors->lengths[row],
            .k = (int32_t)settings->k,
        };
        const int32_t *indices = tensors->indices + (uint64_t)row * settings->k;
        if (!row_check(&check, indices, NULL, room->marks, detail)) {
            fprintf(stderr, "indexer_client: row %u is wrong: %s\n", row, detail);
            return false;
        }
    }
    return true;
}

/* Selects `repeats` times; times_us[repeats] gets the time of each call. */
static bool select_repeatedly(struct topkd_client *client, const struct settings *settings,
                              struct tensors *tensors, double *times_us, bool *exact_p)
{
    struct topkd_region *region = topkd_buffer_region(tensors->buffer);
    const struct topkd_select_request request = {
        .scores = {.region = region},
        .rows = settings->rows,
        .width = settings->width,
        .dtype = settings->dtype,
        .k = settings->k,
        .lengths_mode = TOPKD_LENGTHS_REGION,
        .lengths = {.region = region, .offset_bytes = tensors->lengths_offset},
        .indices = {.region = region, .offset_bytes = tensors->indices_offset},
    };
    size_t indices_bytes = (size_t)settings->rows * settings->k * sizeof(int32_t);
    struct check_room room = {
        .marks = malloc(ROW_CHECK_MARKS(settings->width) * sizeof(*room.marks)),
        .numbers = malloc(settings->width * sizeof(*room.numbers)),
    };
    if (room.marks == NULL || room.numbers == NULL) {
        fprintf(stderr, "indexer_client: out of memory for the check\n");
        free(room.marks);
        free(room.numbers);
        return false;
    }
    enum topkd_status status = TOPKD_OK;
    *exact_p = true;
    for (uint32_t i = 0; i < settings->repeats && status == TOPKD_OK && *exact_p; i++) {
        memset(tensors->indices, 0x55, indices_bytes); /* an answer that is not written shows */
        struct topkd_result result;
        double start_us = now_us();
        status = topkd_select(client, &request, &result);
        times_us[i] = now_us() - start_us;
        *exact_p = status == TOPKD_OK && check_rows(settings, tensors, &room);
    }
    free(room.marks);
    free(room.numbers);
    return status == TOPKD_OK || failed("select", status);
}

static int compare_times(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The smallest time that at least `percent` of the calls did not exceed. */
static double percentile(const double *sorted_us, uint32_t count, uint32_t percent)
{
    uint64_t rank = ((uint64_t)count * percent + 99) / 100;
    return sorted_us[rank > 0 ? rank - 1 : 0];
}

/* This example fills its buffer with the CPU; a GPU's buffer is device memory. */
static bool check_device(struct topkd_client *client)
{
    struct topkd_client_info info;
    enum topkd_status status = topkd_client_info(client, &info);
    if (status != TOPKD_OK) {
        return failed("device", status);
    }
    if (info.device_kind != TOPKD_DEVICE_CPU) {
        fprintf(stderr, "indexer_client: %s is a GPU; name a CPU device with --device\n",
                info.device);
    }
    return info.device_kind == TOPKD_DEVICE_CPU;
}

static bool run(struct topkd_client *client, const struct settings *settings,
                const struct npy_view *file)
{
    struct tensors tensors = {0};
    double *times_us = calloc(settings->repeats, sizeof(*times_us));
    bool exact = false;
    bool good = times_us != NULL && check_device(client) && allocate(client, settings, &tensors) &&
                fill(settings, file, &tensors) &&
                select_repeatedly(client, settings, &tensors, times_us, &exact);
    if (good) {
        qsort(times_us, settings->repeats, sizeof(*times_us), compare_times);
        printf("rows=%u width=%u k=%u exact=%s p50_us=%.0f p99_us=%.0f\n", settings->rows,
               settings->width, settings->k, exact ? "yes" : "no",
               percentile(times_us, settings->repeats, 50),
               percentile(times_us, settings->repeats, 99));
    }
    topkd_buffer_destroy(tensors.buffer);
    free(times_us);
    return good && exact;
}

/* ---- the command line ------------------------------------------------------------------------ */

static bool parse_number(const char *name, const char *text, uint64_t max, uint64_t *value_p)
{
    char *end;
    unsigned long long value = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != '\0' || value > max) {
        fprintf(stderr, "indexer_client: --%s is \"%s\"; give a number up to %llu\n", name, text,
                (unsigned long long)max);
        return false;
    }
    *value_p = value;
    return true;
}

static bool parse(int argc, char **argv, struct settings *settings)
{
    static const struct {
        const char *name;
        uint64_t min, max;
    } numbers[] = {{"rows", 1, 1u << 20}, {"width", 1, 1u << 24},  {"k", 1, 16384},
                   {"heads", 1, 64},      {"seed", 0, UINT64_MAX}, {"repeats", 1, 1u << 20}};
    static const struct option options[] = {{"rows", required_argument, NULL, 0},
                                            {"width", required_argument, NULL, 1},
                                            {"k", required_argument, NULL, 2},
                                            {"heads", required_argument, NULL, 3},
                                            {"seed", required_argument, NULL, 4},
                                            {"repeats", required_argument, NULL, 5},
                                            {"scores", required_argument, NULL, 's'},
                                            {"url", required_argument, NULL, 'u'},
                                            {"device", required_argument, NULL, 'd'},
                                            {"help", no_argument, NULL, 'h'},
                                            {NULL, 0, NULL, 0}};
    uint64_t values[] = {settings->rows,  settings->width, settings->k,
                         settings->heads, settings->seed,  settings->repeats};
    for (int code; (code = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (code) {
        case 's':
            settings->scores_path = optarg;
            break;
        case 'u':
            settings->url = optarg;
            break;
        case 'd':
            settings->device = optarg;
            break;
        case 'h':
            fputs(usage, stdout);
            exit(0);
        case '?':
            return false;
        default:
            if (!parse_number(numbers[code].name, optarg, numbers[code].max, &values[code])) {
                return false;
            }
            if (values[code] < numbers[code].min) {
                fprintf(stderr, "indexer_client: --%s is 0; at least 1\n", numbers[code].name);
                return false;
            }
        }
    }
    settings->rows = (uint32_t)values[0];
    settings->width = (uint32_t)values[1];
    settings->k = (uint32_t)values[2];
    settings->heads = (uint32_t)values[3];
    settings->seed = values[4];
    settings->repeats = (uint32_t)values[5];
    return optind == argc;
}

/* Maps the file and takes its shape over. */
static bool open_scores(struct settings *settings, struct npy_file *file)
{
    char detail[NPY_DETAIL_SIZE];
    if (settings->scores_path == NULL) {
        return true;
    }
    if (npy_open(settings->scores_path, file, detail) != NPY_OK) {
        fprintf(stderr, "indexer_client: %s\n", detail);
        return false;
    }
    enum npy_type type = file->view.type;
    if ((type != NPY_FLOAT32 && type != NPY_FLOAT16) || file->view.rows > INT32_MAX ||
        file->view.columns > INT32_MAX) {
        fprintf(stderr,
                "indexer_client: %s holds %s, %llu x %llu; give a float32 or float16 matrix of at "
                "most 2^31 - 1 rows and columns (topkctl select --dtype reads bfloat16)\n",
                settings->scores_path, npy_type_name(type), (unsigned long long)file->view.rows,
                (unsigned long long)file->view.columns);
        return false;
    }
    settings->dtype = type == NPY_FLOAT16 ? TOPKD_DTYPE_FLOAT16 : TOPKD_DTYPE_FLOAT32;
    settings->rows = (uint32_t)file->view.rows;
    settings->width = (uint32_t)file->view.columns;
    return true;
}

int main(int argc, char **argv)
{
    struct settings settings = {
        .rows = 64, .width = 131072, .k = 2048, .heads = 4, .seed = 1, .repeats = 50};
    if (!parse(argc, argv, &settings)) {
        fputs(usage, stderr);
        return 2;
    }
    struct npy_file file = {0};
    bool exact = false;
    if (open_scores(&settings, &file)) {
        const struct topkd_client_options options = {
            .url = settings.url, .device = settings.device, .name = "indexer_client"};
        struct topkd_client *client;
        enum topkd_status status = topkd_client_open(&options, &client);
        if (status == TOPKD_OK) {
            exact = run(client, &settings, &file.view);
            topkd_client_close(client);
        } else {
            failed("topkd", status);
        }
    }
    npy_close(&file);
    return exact ? 0 : 1;
}
