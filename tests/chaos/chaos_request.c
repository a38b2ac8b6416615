#include "chaos_request.h"

#include "oracle.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- The driver, as far as copies need it ------------------------------------------------------
 */

#define DRIVER_TABLE(X)                                                                            \
    X(init, "cuInit", (unsigned flags))                                                            \
    X(device_count, "cuDeviceGetCount", (int *count_p))                                            \
    X(device_get, "cuDeviceGet", (int *device_p, int ordinal))                                     \
    X(device_uuid, "cuDeviceGetUuid_v2", (unsigned char uuid_p[16], int device))                   \
    X(context_retain, "cuDevicePrimaryCtxRetain", (void **context_p, int device))                  \
    X(context_set, "cuCtxSetCurrent", (void *context))                                             \
    X(memory_info, "cuMemGetInfo_v2", (size_t * free_p, size_t * total_p))                         \
    X(copy_in_async, "cuMemcpyHtoDAsync_v2",                                                       \
      (uintptr_t to, const void *from, size_t size_bytes, void *stream))                           \
    X(stream_wait, "cuStreamSynchronize", (void *stream))                                          \
    X(copy_out, "cuMemcpyDtoH_v2", (void *to, uintptr_t from, size_t size_bytes))

static struct {
#define DRIVER_FIELD(field, symbol, parameters) int(*field) parameters;
    DRIVER_TABLE(DRIVER_FIELD)
#undef DRIVER_FIELD
} driver;

static bool driver_load(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        return false;
#define DRIVER_LOAD(field, symbol, parameters)                                                     \
    *(void **)&driver.field = dlsym(library, symbol);                                              \
    if (driver.field == NULL)                                                                      \
        return false;
    DRIVER_TABLE(DRIVER_LOAD)
#undef DRIVER_LOAD
    return driver.init(0) == 0;
}

/* 0 when the bytes are there. */
static int copy_in(void *to, const void *from, size_t size_bytes)
{
    int result = driver.copy_in_async((uintptr_t)to, from, size_bytes, NULL);
    return result != 0 ? result : driver.stream_wait(NULL);
}

static bool has_uuid(int device, const char *wanted)
{
    unsigned char uuid[16];
    char text[48];
    int used = snprintf(text, sizeof(text), "GPU-");
    if (driver.device_uuid(uuid, device) != 0)
        return false;
    for (int i = 0; i < 16; i++) {
        bool has_dash = i == 4 || i == 6 || i == 8 || i == 10;
        used += snprintf(text + used, sizeof(text) - (size_t)used, "%s%02x", has_dash ? "-" : "",
                         uuid[i]);
    }
    return strcmp(text, wanted) == 0;
}

bool chaos_cuda_open(const char *uuid)
{
    int count = 0, device = 0;
    void *context = NULL;
    if (!driver_load() || driver.device_count(&count) != 0) {
        fprintf(stderr, "chaos_client: no CUDA driver\n");
        return false;
    }
    for (int i = 0; i < count; i++)
        if (driver.device_get(&device, i) == 0 && has_uuid(device, uuid) &&
            driver.context_retain(&context, device) == 0)
            return driver.context_set(context) == 0;
    fprintf(stderr, "chaos_client: device %s is not here\n", uuid);
    return false;
}

uint64_t chaos_cuda_free_bytes(void)
{
    size_t free_bytes = 0, total_bytes = 0;
    if (driver.memory_info == NULL || driver.memory_info(&free_bytes, &total_bytes) != 0)
        return 0;
    return free_bytes;
}

/* ---- Matrices -------------------------------------------------------------------------------- */

/* Small numbers as often as large ones. */
static uint32_t draw_size(struct inputs_rng *rng, uint32_t max)
{
    uint32_t size = 1;
    uint32_t doublings = inputs_rng_below(rng, 32);
    for (uint32_t i = 0; i < doublings && size < max; i++)
        size *= 2;
    if (size > max)
        size = max;
    return 1 + inputs_rng_below(rng, size);
}

static uint64_t indices_offset(const struct chaos_matrix *matrix)
{
    return inputs_elements(&matrix->inputs) * sizeof(float);
}

static uint64_t indices_bytes(const struct chaos_matrix *matrix)
{
    return (uint64_t)matrix->inputs.num_rows * (uint32_t)matrix->inputs.k * sizeof(int32_t);
}

static void *device_at(const struct chaos_matrix *matrix, uint64_t offset)
{
    return (uint8_t *)topkd_buffer_data(matrix->buffer) + offset;
}

static void draw_inputs(struct inputs_rng *rng, struct inputs_spec *inputs)
{
    uint32_t rows = draw_size(rng, 64);
    uint32_t width = draw_size(rng, CHAOS_SCORES_MAX / rows);
    uint32_t k = draw_size(rng, CHAOS_K_MAX);
    *inputs = (struct inputs_spec){
        .family = (enum inputs_family)inputs_rng_below(rng, INPUTS_FAMILY_COUNT),
        .seed = inputs_rng_next(rng),
        .num_rows = (int32_t)rows,
        .width = (int32_t)width,
        .row_stride = width + inputs_rng_below(rng, 8),
        .k = (int32_t)k,
    };
}

enum topkd_status chaos_matrix_open(struct topkd_client *client, struct inputs_rng *rng,
                                    bool is_cuda, struct chaos_matrix *matrix_p)
{
    struct chaos_matrix matrix = {.is_cuda = is_cuda};
    draw_inputs(rng, &matrix.inputs);
    enum topkd_status status = topkd_buffer_create(
        client, indices_offset(&matrix) + indices_bytes(&matrix), &matrix.buffer);
    if (status != TOPKD_OK)
        return status;
    uint64_t scores_bytes = indices_offset(&matrix);
    matrix.h_scores = is_cuda ? malloc(scores_bytes) : topkd_buffer_data(matrix.buffer);
    matrix.h_indices = malloc(indices_bytes(&matrix));
    if (matrix.h_scores == NULL || matrix.h_indices == NULL) {
        chaos_matrix_close(&matrix);
        return TOPKD_E_NO_MEMORY;
    }
    inputs_fill(&matrix.inputs, matrix.h_scores);
    if (is_cuda && copy_in(device_at(&matrix, 0), matrix.h_scores, scores_bytes) != 0) {
        chaos_matrix_close(&matrix);
        return TOPKD_E_SYSTEM;
    }
    *matrix_p = matrix;
    return TOPKD_OK;
}

void chaos_matrix_forget(struct chaos_matrix *matrix)
{
    if (matrix->is_cuda)
        free(matrix->h_scores);
    free(matrix->h_indices);
    memset(matrix, 0, sizeof(*matrix));
}

void chaos_matrix_close(struct chaos_matrix *matrix)
{
    topkd_buffer_destroy(matrix->buffer);
    chaos_matrix_forget(matrix);
}

void chaos_matrix_ask(struct chaos_matrix *matrix, struct inputs_rng *rng)
{
    const struct inputs_spec *inputs = &matrix->inputs;
    struct topkd_region *region = topkd_buffer_region(matrix->buffer);
    struct topkd_select_request *request = &matrix->request;
    *request = (struct topkd_select_request){
        .scores = {.region = region, .stride = inputs->row_stride},
        .rows = (uint32_t)inputs->num_rows,
        .width = (uint32_t)inputs->width,
        .k = (uint32_t)inputs->k,
        .order = (enum topkd_order)inputs_rng_below(rng, 3),
        .ties = (enum topkd_ties)inputs_rng_below(rng, 2),
    };
    if (inputs_rng_below(rng, 3) == 0) {
        request->lengths_mode = TOPKD_LENGTHS_ALL;
        request->length_all = (int32_t)inputs_rng_below(rng, (uint32_t)inputs->width + 2) - 1;
    }
    memset(matrix->h_indices, 0x81, indices_bytes(matrix));
    /* A result in the arena of a GPU's session is device memory too; the region will do there. */
    if (matrix->is_cuda || inputs_rng_below(rng, 2) == 0) {
        request->indices =
            (struct topkd_tensor){.region = region, .offset_bytes = indices_offset(matrix)};
        void *at = device_at(matrix, indices_offset(matrix));
        if (matrix->is_cuda)
            (void)copy_in(at, matrix->h_indices, indices_bytes(matrix));
        else
            memcpy(at, matrix->h_indices, indices_bytes(matrix));
    }
}

bool chaos_matrix_judge(const struct chaos_matrix *matrix, const struct topkd_result *result)
{
    const struct topkd_select_request *asked = &matrix->request;
    const struct inputs_spec *inputs = &matrix->inputs;
    int32_t *indices = (int32_t *)(uintptr_t)result->indices;
    int64_t stride = result->index_stride;
    if (matrix->is_cuda) {
        uintptr_t from = (uintptr_t)device_at(matrix, indices_offset(matrix));
        if (driver.copy_out(matrix->h_indices, from, indices_bytes(matrix)) != 0) {
            printf("NOTE copy_failed\n");
            return true; /* a fault of the device, which the next calls will meet */
        }
        indices = matrix->h_indices;
        stride = inputs->k;
    }
    const struct topk_args args = {
        .scores = matrix->h_scores,
        .row_stride = inputs->row_stride,
        .indices = indices,
        .index_stride = stride,
        .num_rows = inputs->num_rows,
        .width = inputs->width,
        .length_all = asked->lengths_mode == TOPKD_LENGTHS_ALL ? asked->length_all : inputs->width,
        .k = inputs->k,
    };
    const struct topk_options options = {.order = (enum topk_order)asked->order,
                                         .ties = (enum topk_ties)asked->ties};
    char detail[ORACLE_DETAIL_SIZE] = "", described[256];
    if (oracle_check(&args, &options, detail))
        return true;
    inputs_describe(inputs, described, sizeof(described));
    printf("WRONG %s (%s, order %d, ties %d, lengths %d %d, %s)\n", detail, described,
           (int)asked->order, (int)asked->ties, (int)asked->lengths_mode, asked->length_all,
           asked->indices.region != NULL ? "region" : "arena");
    return false;
}
