/* cuda_memory.c - CUDA memory that others can see: regions and buffers. */
#include "client.h"
#include "fd_socket.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* An allocation that is shared whole should not share its block with others: CUDA hands out all of
 * a 2 MiB block with any allocation in it (CUDA programming guide, interprocess communication). */
#define BLOCK_BYTES (UINT64_C(2) << 20)

static const char advice[] = "copy it into a topkd_buffer (topkd_buffer_copy)";

/* ---- What kind of memory --------------------------------------------------------------------- */

static uint64_t attribute(const struct cuda *cuda, int which, cuda_pointer pointer)
{
    uint64_t value = 0; /* every attribute used here is at most 64 bits, little-endian */
    return cuda_calls(cuda)->pointer_attribute(&value, which, pointer) == CUDA_OK ? value : 0;
}

static enum topkd_status check_pointer(const struct cuda *cuda, cuda_pointer pointer, char *detail)
{
    uint32_t type = 0;
    if (cuda_calls(cuda)->pointer_attribute(&type, CUDA_POINTER_MEMORY_TYPE, pointer) != CUDA_OK) {
        return fault(detail, TOPKD_E_NOT_EXPORTABLE,
                     "0x%" PRIx64 " is not CUDA memory of this process: it may be ordinary host "
                     "memory, or freed",
                     pointer);
    }
    if (type != CUDA_MEMORY_DEVICE) {
        return fault(detail, TOPKD_E_NOT_EXPORTABLE,
                     "0x%" PRIx64 " is pinned host memory, scores and results lie on the device: "
                     "%s",
                     pointer, advice);
    }
    if (attribute(cuda, CUDA_POINTER_IS_MANAGED, pointer) & 1) {
        return fault(detail, TOPKD_E_NOT_EXPORTABLE,
                     "0x%" PRIx64 " is managed memory (cudaMallocManaged), which no other process "
                     "can map: allocate it with cudaMalloc, or %s",
                     pointer, advice);
    }
    int ordinal = (int)(uint32_t)attribute(cuda, CUDA_POINTER_DEVICE_ORDINAL, pointer);
    if (ordinal != cuda_ordinal(cuda)) {
        return fault(detail, TOPKD_E_NOT_VISIBLE,
                     "0x%" PRIx64 " lies on device %d of this process, the session's device is "
                     "number %d: open a session with that device",
                     pointer, ordinal, cuda_ordinal(cuda));
    }
    return TOPKD_OK;
}

static enum topkd_status range_of(const struct cuda *cuda, cuda_pointer pointer,
                                  cuda_pointer *base_p, uint64_t *size_p, char *detail)
{
    size_t size = 0;
    int result = cuda_calls(cuda)->address_range(base_p, &size, pointer);
    *size_p = size;
    return result == CUDA_OK
               ? TOPKD_OK
               : cuda_driver_fault(cuda_calls(cuda), result, TOPKD_E_NOT_EXPORTABLE,
                                   "the driver does not know the extent of the memory", detail);
}

static enum topkd_status fault_end(cuda_pointer pointer, uint64_t length, cuda_pointer end,
                                   char *detail)
{
    return fault(detail, TOPKD_E_OUT_OF_RANGE,
                 "length_bytes %" PRIu64 " at 0x%" PRIx64 " reaches beyond the allocation, which "
                 "ends at 0x%" PRIx64,
                 length, pointer, end);
}

static enum topkd_status describe_ipc(const struct cuda *cuda, struct cuda_export *export,
                                      char *detail)
{
    cuda_pointer pointer = (cuda_pointer)(uintptr_t) export->pointer;
    cuda_pointer base;
    uint64_t size;
    enum topkd_status status = range_of(cuda, pointer, &base, &size, detail);
    if (status != TOPKD_OK) {
        return status;
    }
    if (export->length_bytes > size - (pointer - base)) {
        return fault_end(pointer, export->length_bytes, base + size, detail);
    }
    struct cuda_ipc_handle handle;
    int result = cuda_calls(cuda)->ipc_get(&handle, base);
    if (result != CUDA_OK) {
        return cuda_driver_fault(cuda_calls(cuda), result, TOPKD_E_NOT_EXPORTABLE,
                                 "the driver gives no IPC handle for the memory", detail);
    }
    export->memory.kind = WIRE_MEMORY_CUDA_IPC;
    export->memory.handle_bytes = sizeof(handle);
    memcpy(export->memory.handle, &handle, sizeof(handle));
    export->memory.allocation_bytes = size;
    export->offset_bytes = pointer - base;
    return TOPKD_OK;
}

/* ---- Virtual memory: a run of allocations ---------------------------------------------------- */

/* One mapped piece at `address`: its extent, and its handle for the caller to release. */
static enum topkd_status piece_at(const struct cuda *cuda, cuda_pointer address,
                                  cuda_pointer *base_p, uint64_t *size_p, uint64_t *handle_p,
                                  char *detail)
{
    const struct cuda_driver *driver = cuda_calls(cuda);
    enum topkd_status status = range_of(cuda, address, base_p, size_p, detail);
    if (status != TOPKD_OK) {
        return status;
    }
    if (driver->virtual_retain(handle_p, (void *)(uintptr_t)address) != CUDA_OK) {
        const char *what = attribute(cuda, CUDA_POINTER_MEMPOOL, address)
                               ? "comes from a stream-ordered pool (cudaMallocAsync; in PyTorch "
                                 "backend:cudaMallocAsync)"
                               : "cannot be exported";
        return fault(detail, TOPKD_E_NOT_EXPORTABLE,
                     "0x%" PRIx64 " %s: allocate it with cudaMalloc, or %s", address, what, advice);
    }
    struct cuda_allocation allocation = {0};
    if (driver->virtual_properties(&allocation, *handle_p) != CUDA_OK ||
        !(allocation.handle_types & CUDA_HANDLE_POSIX_FD)) {
        (void)driver->virtual_release(*handle_p);
        return fault(detail, TOPKD_E_NOT_EXPORTABLE,
                     "0x%" PRIx64
                     " is virtual memory made without an exportable handle (cuMemCreate "
                     "with requestedHandleTypes %u, a file descriptor is 1): %s",
                     address, allocation.handle_types, advice);
    }
    return TOPKD_OK;
}

static enum topkd_status describe_virtual(const struct cuda *cuda, struct cuda_export *export,
                                          char *detail)
{
    cuda_pointer pointer = (cuda_pointer)(uintptr_t) export->pointer;
    cuda_pointer at = pointer, end = pointer + export->length_bytes, first = 0;
    uint64_t total = 0;
    for (uint32_t num = 0; at < end; num++) {
        cuda_pointer base;
        uint64_t size, handle;
        if (num > 0 && attribute(cuda, CUDA_POINTER_MEMORY_TYPE, at) == 0) {
            return fault_end(pointer, export->length_bytes, at, detail);
        }
        enum topkd_status status = piece_at(cuda, at, &base, &size, &handle, detail);
        if (status != TOPKD_OK) {
            return status;
        }
        (void)cuda_calls(cuda)->virtual_release(handle);
        first = num == 0 ? base : first;
        total += size;
        at = base + size;
    }
    export->memory.kind = WIRE_MEMORY_CUDA_FD;
    export->memory.handle_bytes = 0;
    export->memory.allocation_bytes = total;
    export->offset_bytes = pointer - first;
    return TOPKD_OK;
}

enum topkd_status cuda_export_describe(const struct cuda *cuda, struct cuda_export *export,
                                       char *detail)
{
    cuda_pointer pointer = (cuda_pointer)(uintptr_t) export->pointer;
    enum topkd_status status = cuda_enter(cuda, detail);
    if (status != TOPKD_OK) {
        return status;
    }
    status = check_pointer(cuda, pointer, detail);
    if (status == TOPKD_OK) {
        export->buffer_id = attribute(cuda, CUDA_POINTER_BUFFER_ID, pointer);
        status = attribute(cuda, CUDA_POINTER_IS_LEGACY_IPC_CAPABLE, pointer) & 1
                     ? describe_ipc(cuda, export, detail)
                     : describe_virtual(cuda, export, detail);
    }
    cuda_leave(cuda);
    return status;
}

/* Exports each piece; the descriptors are the caller's. *num_p counts those made, also on error. */
static enum topkd_status export_pieces(const struct cuda *cuda, const struct cuda_export *export,
                                       int *fds, uint64_t *sizes, uint32_t *num_p, char *detail)
{
    cuda_pointer at = (cuda_pointer)(uintptr_t) export->pointer;
    cuda_pointer end = at + export->length_bytes;
    while (at < end) {
        cuda_pointer base;
        uint64_t handle;
        if (*num_p == FD_TICKET_FDS_MAX) {
            return fault(detail, TOPKD_E_LIMIT,
                         "the memory consists of more than %u allocations: register it in parts",
                         FD_TICKET_FDS_MAX);
        }
        enum topkd_status status = piece_at(cuda, at, &base, &sizes[*num_p], &handle, detail);
        if (status != TOPKD_OK) {
            return status;
        }
        int result =
            cuda_calls(cuda)->virtual_export(&fds[*num_p], handle, CUDA_HANDLE_POSIX_FD, 0);
        (void)cuda_calls(cuda)->virtual_release(handle);
        if (result != CUDA_OK) {
            return cuda_driver_fault(cuda_calls(cuda), result, TOPKD_E_NOT_EXPORTABLE,
                                     "the driver exports no descriptor of the memory", detail);
        }
        at = base + sizes[(*num_p)++];
    }
    return TOPKD_OK;
}

enum topkd_status cuda_export_send(const struct cuda *cuda, const struct cuda_export *export,
                                   const char *url, struct wire_memory *memory_p, char *detail)
{
    enum topkd_status status = cuda_enter(cuda, detail);
    if (status != TOPKD_OK) {
        return status;
    }
    uint64_t id =
        attribute(cuda, CUDA_POINTER_BUFFER_ID, (cuda_pointer)(uintptr_t) export->pointer);
    *memory_p = export->memory;
    if (id != export->buffer_id) {
        status = fault(detail, TOPKD_E_MAP_FAILED,
                       "the memory at %p is not the one that was registered: it was freed in the "
                       "meantime",
                       export->pointer);
    }
    if (status != TOPKD_OK || export->memory.kind == WIRE_MEMORY_CUDA_IPC) {
        cuda_leave(cuda);
        return status;
    }
    int *fds = malloc(FD_TICKET_FDS_MAX * sizeof(*fds));
    uint64_t *sizes = malloc(FD_TICKET_FDS_MAX * sizeof(*sizes));
    uint32_t num = 0;
    if (fds && sizes) {
        status = export_pieces(cuda, export, fds, sizes, &num, detail);
    } else {
        status = fault(detail, TOPKD_E_NO_MEMORY, "no memory for descriptors");
    }
    cuda_leave(cuda);
    if (status == TOPKD_OK) {
        status = fd_socket_offer(url, fds, sizes, num, memory_p->handle, detail);
        memory_p->handle_bytes = FD_TICKET_SIZE;
    }
    for (uint32_t i = 0; i < num; i++) {
        close(fds[i]);
    }
    free(fds);
    free(sizes);
    return status;
}

/* ---- Allocations ----------------------------------------------------------------------------- */

/* The pieces from `pointer` to `end`; the id is a hash of theirs (FNV-1a, over whole ids). */
static enum topkd_status find_pieces(const struct cuda *cuda, cuda_pointer pointer,
                                     cuda_pointer end, struct topkd_allocation *allocation,
                                     char *detail)
{
    cuda_pointer at = pointer;
    while (at < end) {
        cuda_pointer base;
        uint64_t size;
        if (at != pointer && attribute(cuda, CUDA_POINTER_MEMORY_TYPE, at) == 0) {
            return fault_end(pointer, end - pointer, at, detail);
        }
        enum topkd_status status = range_of(cuda, at, &base, &size, detail);
        if (status != TOPKD_OK) {
            return status;
        }
        if (at == pointer) {
            allocation->base = (void *)(uintptr_t)base;
            allocation->id = UINT64_C(0xcbf29ce484222325);
        }
        allocation->id ^= attribute(cuda, CUDA_POINTER_BUFFER_ID, at);
        allocation->id *= UINT64_C(0x100000001b3);
        at = base + size;
    }
    allocation->size_bytes = at - (cuda_pointer)(uintptr_t)allocation->base;
    return TOPKD_OK;
}

enum topkd_status topkd_cuda_allocation(struct topkd_client *client, const void *pointer,
                                        uint64_t length_bytes,
                                        struct topkd_allocation *allocation_p)
{
    char *detail = fault_detail();
    enum topkd_status status = client_check(client, detail);
    if (status != TOPKD_OK) {
        return status;
    }
    if (!pointer || !allocation_p || length_bytes == 0 ||
        length_bytes > UINTPTR_MAX - (uintptr_t)pointer) {
        return fault(detail, TOPKD_E_INVALID,
                     "pointer %p, length_bytes %" PRIu64
                     ", allocation_p %s: none may be empty, and the memory ends below 2^64",
                     pointer, length_bytes, allocation_p ? "set" : "NULL");
    }
    struct cuda *cuda;
    status = cuda_get(client, &cuda, detail);
    if (status == TOPKD_OK) {
        status = cuda_enter(cuda, detail);
    }
    if (status != TOPKD_OK) {
        return status;
    }
    cuda_pointer first = (cuda_pointer)(uintptr_t)pointer;
    struct topkd_allocation allocation = {0};
    status = check_pointer(cuda, first, detail);
    if (status == TOPKD_OK && (attribute(cuda, CUDA_POINTER_IS_LEGACY_IPC_CAPABLE, first) & 1)) {
        cuda_pointer base;
        uint64_t size;
        status = range_of(cuda, first, &base, &size, detail);
        if (status == TOPKD_OK && length_bytes > size - (first - base)) {
            status = fault_end(first, length_bytes, base + size, detail);
        }
    }
    if (status == TOPKD_OK) {
        status = find_pieces(cuda, first, first + length_bytes, &allocation, detail);
    }
    cuda_leave(cuda);
    if (status == TOPKD_OK) {
        *allocation_p = allocation;
    }
    return status;
}

/* ---- Regions --------------------------------------------------------------------------------- */

enum topkd_status topkd_region_register_cuda(struct topkd_client *client, void *pointer,
                                             uint64_t length_bytes, enum topkd_access access,
                                             struct topkd_region **region_p)
{
    char *detail = fault_detail();
    enum topkd_status status = client_check(client, detail);
    if (status != TOPKD_OK) {
        return status;
    }
    if (!pointer || !region_p || length_bytes == 0 ||
        length_bytes > UINTPTR_MAX - (uintptr_t)pointer) {
        return fault(detail, TOPKD_E_INVALID,
                     "pointer %p, length_bytes %" PRIu64
                     ", region_p %s: none may be empty, and the "
                     "memory ends below 2^64",
                     pointer, length_bytes, region_p ? "set" : "NULL");
    }
    if (access != TOPKD_ACCESS_READ && access != TOPKD_ACCESS_READ_WRITE) {
        return fault(detail, TOPKD_E_INVALID,
                     "access %u is neither TOPKD_ACCESS_READ nor TOPKD_ACCESS_READ_WRITE",
                     (unsigned)access);
    }
    struct cuda *cuda;
    status = cuda_get(client, &cuda, detail);
    struct cuda_export export = {.pointer = pointer, .length_bytes = length_bytes};
    if (status == TOPKD_OK) {
        status = cuda_export_describe(cuda, &export, detail);
    }
    return status == TOPKD_OK ? region_open_cuda(client, &export, access, NULL, region_p, detail)
                              : status;
}

/* ---- Buffers --------------------------------------------------------------------------------- */

static enum topkd_status allocate(const struct cuda *cuda, uint64_t size_bytes,
                                  cuda_pointer *pointer_p, char *detail)
{
    const struct cuda_driver *driver = cuda_calls(cuda);
    uint64_t whole_bytes = (size_bytes + BLOCK_BYTES - 1) / BLOCK_BYTES * BLOCK_BYTES;
    enum topkd_status status = cuda_enter(cuda, detail);
    if (status != TOPKD_OK) {
        return status;
    }
    cuda_pointer pointer = 0;
    int result = driver->alloc(&pointer, whole_bytes);
    if (result == CUDA_OK) {
        result = driver->set_bytes(pointer, 0, whole_bytes, cuda_stream(cuda));
        if (result == CUDA_OK) {
            result = driver->stream_synchronize(cuda_stream(cuda));
        }
        if (result != CUDA_OK) {
            (void)driver->free(pointer);
        }
    }
    cuda_leave(cuda);
    if (result != CUDA_OK) {
        return cuda_driver_fault(driver, result, TOPKD_E_SYSTEM, "no device memory for a buffer",
                                 detail);
    }
    *pointer_p = pointer;
    return TOPKD_OK;
}

static void release(const struct cuda *cuda, cuda_pointer pointer)
{
    char detail[WIRE_DETAIL_SIZE];
    if (cuda_enter(cuda, detail) == TOPKD_OK) {
        (void)cuda_calls(cuda)->free(pointer);
        cuda_leave(cuda);
    }
}

enum topkd_status cuda_buffer_fill(struct topkd_buffer *buffer, uint64_t size_bytes, char *detail)
{
    struct cuda *cuda;
    enum topkd_status status = cuda_get(buffer->client, &cuda, detail);
    cuda_pointer pointer = 0;
    if (status == TOPKD_OK) {
        status = allocate(cuda, size_bytes, &pointer, detail);
    }
    if (status != TOPKD_OK) {
        return status;
    }
    buffer->map.base = (void *)(uintptr_t)pointer;
    buffer->map.size_bytes = size_bytes;
    struct cuda_export export = {.pointer = buffer->map.base, .length_bytes = size_bytes};
    status = cuda_export_describe(cuda, &export, detail);
    if (status == TOPKD_OK) {
        status = region_open_cuda(buffer->client, &export, TOPKD_ACCESS_READ_WRITE, buffer,
                                  &buffer->region, detail);
    }
    if (status != TOPKD_OK) {
        release(cuda, pointer);
        buffer->map = (struct shm_map){0};
    }
    return status;
}

void cuda_buffer_free(struct topkd_buffer *buffer)
{
    release(buffer->client->cuda, (cuda_pointer)(uintptr_t)buffer->map.base);
}

enum topkd_status topkd_buffer_copy(struct topkd_buffer *buffer, uint64_t offset_bytes,
                                    const void *from, uint64_t size_bytes, void *stream)
{
    char *detail = fault_detail();
    if (!buffer || !from) {
        return fault(detail, TOPKD_E_INVALID, "buffer or from is NULL");
    }
    enum topkd_status status = client_check(buffer->client, detail);
    if (status != TOPKD_OK) {
        return status;
    }
    if (offset_bytes > buffer->map.size_bytes ||
        size_bytes > buffer->map.size_bytes - offset_bytes) {
        return fault(detail, TOPKD_E_OUT_OF_RANGE,
                     "offset_bytes %" PRIu64 " + size_bytes %" PRIu64 " reach beyond the buffer of "
                     "%" PRIu64 " bytes",
                     offset_bytes, size_bytes, buffer->map.size_bytes);
    }
    uint8_t *to = (uint8_t *)buffer->map.base + offset_bytes;
    if (!buffer->is_cuda) {
        memmove(to, from, size_bytes);
        return TOPKD_OK;
    }
    struct cuda *cuda = buffer->client->cuda;
    status = cuda_enter(cuda, detail);
    if (status != TOPKD_OK) {
        return status;
    }
    int result = cuda_calls(cuda)->copy((cuda_pointer)(uintptr_t)to, (cuda_pointer)(uintptr_t)from,
                                        size_bytes, stream);
    cuda_leave(cuda);
    return result == CUDA_OK ? TOPKD_OK
                             : cuda_driver_fault(cuda_calls(cuda), result, TOPKD_E_INVALID,
                                                 "the copy was refused", detail);
}
