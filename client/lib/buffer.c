/* buffer.c - memory that the library makes shareable. */
#include "client.h"

#include <inttypes.h>
#include <stdlib.h>

static enum topkd_status check_size(const struct wire_limits *limits, uint64_t size_bytes,
                                    char *detail)
{
    if (size_bytes == 0) {
        return fault(detail, TOPKD_E_INVALID, "size_bytes is 0, the least is 1");
    }
    if (size_bytes > limits->region_bytes_max || size_bytes > INT64_MAX) {
        return fault(detail, TOPKD_E_LIMIT,
                     "a buffer of %" PRIu64 " bytes exceeds limits.region_bytes_max %" PRIu64,
                     size_bytes, limits->region_bytes_max);
    }
    return TOPKD_OK;
}

/* The memory and its registration; on an error nothing is left. */
static enum topkd_status fill_buffer(struct topkd_buffer *buffer, uint64_t size_bytes,
                                     const struct rpc_peer *worker, char *detail)
{
    enum topkd_status status = shm_create(size_bytes, worker, &buffer->name, &buffer->map, detail);
    if (status != TOPKD_OK) {
        return status;
    }
    struct shm_info info;
    status = shm_inspect(buffer->name.text, true, &info, detail);
    if (status == TOPKD_OK) {
        const struct topkd_shm shm = {
            .name = buffer->name.text,
            .length_bytes = size_bytes,
            .access = TOPKD_ACCESS_READ_WRITE,
        };
        status = region_open(buffer->client, &shm, &info, buffer, &buffer->region, detail);
    }
    if (status != TOPKD_OK) {
        shm_unmap(&buffer->map);
        shm_remove(&buffer->name);
    }
    return status;
}

void buffer_free(struct topkd_buffer *buffer)
{
    if (buffer->is_cuda) {
        cuda_buffer_free(buffer);
    } else {
        shm_unmap(&buffer->map);
        shm_remove(&buffer->name);
    }
    free(buffer);
}

enum topkd_status topkd_buffer_create(struct topkd_client *client, uint64_t size_bytes,
                                      struct topkd_buffer **buffer_p)
{
    char *detail = fault_detail();
    enum topkd_status status = client_check(client, detail);
    if (status != TOPKD_OK) {
        return status;
    }
    if (!buffer_p) {
        return fault(detail, TOPKD_E_INVALID, "buffer_p is NULL");
    }
    pthread_mutex_lock(&client->mutex);
    const struct rpc_peer worker = client->session->worker;
    enum wire_device_kind device_kind = client->session->device_kind;
    status = check_size(&client->session->limits, size_bytes, detail);
    pthread_mutex_unlock(&client->mutex);
    if (status != TOPKD_OK) {
        return status;
    }
    struct topkd_buffer *buffer = calloc(1, sizeof(*buffer));
    if (!buffer) {
        return fault(detail, TOPKD_E_NO_MEMORY, "no memory for a buffer");
    }
    buffer->client = client;
    buffer->is_cuda = device_kind == WIRE_DEVICE_CUDA;
    status = buffer->is_cuda ? cuda_buffer_fill(buffer, size_bytes, detail)
                             : fill_buffer(buffer, size_bytes, &worker, detail);
    if (status != TOPKD_OK) {
        free(buffer);
        return status;
    }
    pthread_mutex_lock(&client->mutex);
    list_insert(&client->buffers, &buffer->node);
    pthread_mutex_unlock(&client->mutex);
    *buffer_p = buffer;
    return TOPKD_OK;
}

void *topkd_buffer_data(struct topkd_buffer *buffer)
{
    return buffer ? buffer->map.base : NULL;
}

uint64_t topkd_buffer_size_bytes(const struct topkd_buffer *buffer)
{
    return buffer ? buffer->map.size_bytes : 0;
}

struct topkd_region *topkd_buffer_region(struct topkd_buffer *buffer)
{
    return buffer ? buffer->region : NULL;
}

void topkd_buffer_destroy(struct topkd_buffer *buffer)
{
    char *detail = fault_detail();
    if (!buffer || client_check(buffer->client, detail) != TOPKD_OK) {
        return; /* in a child, memory and name are the parent's */
    }
    struct topkd_client *client = buffer->client;
    struct topkd_region *region = buffer->region;
    if (region_close(region, detail) == TOPKD_E_TIMEOUT) {
        /* A request that never ends still refers to it: it stays with the client, nameless. */
        pthread_mutex_lock(&client->mutex);
        region->buffer = NULL;
        pthread_mutex_unlock(&client->mutex);
    }
    pthread_mutex_lock(&client->mutex);
    list_remove(&buffer->node);
    pthread_mutex_unlock(&client->mutex);
    buffer_free(buffer);
}
