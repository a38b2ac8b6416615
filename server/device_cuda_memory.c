#include "device_cuda.h"

#include "assert.h"
#include "detail.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Choice: bytes of an arena cleared at a time; some microseconds of a GPU. */
#define CLEAR_BYTES (UINT64_C(8) << 20)
#define GIVE_WAY_NS 20000 /* choice: pause of who clears while another wants the stream */

static uint64_t round_up(uint64_t value, uint64_t unit)
{
    return (value + unit - 1) / unit * unit;
}

/* ---- Memory of the daemon that a client maps ------------------------------------------------- */

/* A semaphore page: a sealed memory file, which the client fetches through the side socket (so that
 * it needs no /dev/shm in common with the daemon, and cannot shrink it under us), registered with
 * the driver on both sides. Or an arena: device memory with an IPC handle. */
struct shared_cuda {
    struct device_shared base;
    bool is_arena;
    int fd;                /* of a page */
    CUdeviceptr d_address; /* of a page, for streams */
    bool is_registered, is_published;
};

CUdeviceptr cuda_shared_device_address(const struct device_shared *shared)
{
    return ((const struct shared_cuda *)shared)->d_address;
}

static enum topkd_status page_make(struct device_cuda *cuda, struct shared_cuda *shared,
                                   const struct peer *peer, char *detail)
{
    const struct cuda_driver *driver = cuda->driver;
    struct device_shared *base = &shared->base;
    base->size_bytes = round_up(base->size_bytes, (uint64_t)sysconf(_SC_PAGESIZE));
    shared->fd = memfd_create("topkd-semaphores", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (shared->fd < 0 || ftruncate(shared->fd, (off_t)base->size_bytes) != 0 ||
        fcntl(shared->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
        return detail_set(detail, TOPKD_E_SYSTEM,
                          "cannot make a memory file of %" PRIu64 " bytes: %s", base->size_bytes,
                          strerror(errno));
    void *address = mmap(NULL, base->size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, shared->fd, 0);
    if (address == MAP_FAILED)
        return detail_set(detail, TOPKD_E_NO_MEMORY, "cannot map %" PRIu64 " bytes: %s",
                          base->size_bytes, strerror(errno));
    base->address = (uintptr_t)address;
    CUresult result = driver->cuMemHostRegister(
        address, base->size_bytes, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
    if (result != CUDA_SUCCESS)
        return cuda_fail(cuda, result, TOPKD_E_SYSTEM, "cannot register a semaphore page", detail);
    shared->is_registered = true;
    result = driver->cuMemHostGetDevicePointer(&shared->d_address, address, 0);
    if (result != CUDA_SUCCESS)
        return cuda_fail(cuda, result, TOPKD_E_SYSTEM, "a semaphore page has no device address",
                         detail);
    base->memory.kind = WIRE_MEMORY_CUDA_FD;
    base->memory.handle_bytes = FD_TICKET_SIZE;
    base->memory.allocation_bytes = base->size_bytes;
    enum topkd_status status =
        fd_channel_publish(cuda->channel, shared->fd, peer, base->memory.handle, detail);
    shared->is_published = status == TOPKD_OK;
    return status;
}

/* What another process left there is not for this client. In slices, because Stats on the loop's
 * thread reads the routes under the same mutex; a mutex alone lets the one who just had it have it
 * again, so who clears gives way. */
static CUresult clear(struct device_cuda *cuda, CUdeviceptr address, uint64_t size_bytes)
{
    CUresult result = CUDA_SUCCESS;
    uint64_t slice_bytes;
    for (uint64_t at = 0; at < size_bytes && result == CUDA_SUCCESS; at += slice_bytes) {
        slice_bytes = size_bytes - at < CLEAR_BYTES ? size_bytes - at : CLEAR_BYTES;
        while (__atomic_load_n(&cuda->routes_wanted, __ATOMIC_SEQ_CST) > 0)
            cuda_pause_ns(GIVE_WAY_NS);
        pthread_mutex_lock(&cuda->routes_mutex);
        result = cuda->driver->cuMemsetD8Async(address + at, 0, slice_bytes, cuda->routes_stream);
        if (result == CUDA_SUCCESS)
            result = cuda_stream_wait(cuda, cuda->routes_stream, UINT64_MAX);
        pthread_mutex_unlock(&cuda->routes_mutex);
    }
    return result;
}

static enum topkd_status arena_make(struct device_cuda *cuda, struct shared_cuda *shared,
                                    char *detail)
{
    const struct cuda_driver *driver = cuda->driver;
    struct device_shared *base = &shared->base;
    base->size_bytes = round_up(base->size_bytes, CUDA_BLOCK_BYTES);
    CUdeviceptr address;
    CUresult result = driver->cuMemAlloc(&address, base->size_bytes);
    if (result != CUDA_SUCCESS)
        return cuda_fail(cuda, result, TOPKD_E_NO_MEMORY,
                         "cannot allocate an output arena (limits.arena_slots times "
                         "limits.arena_slot_bytes)",
                         detail);
    base->address = (uintptr_t)address;
    result = clear(cuda, address, base->size_bytes);
    CUipcMemHandle handle;
    if (result == CUDA_SUCCESS)
        result = driver->cuIpcGetMemHandle(&handle, address);
    if (result != CUDA_SUCCESS)
        return cuda_fail(cuda, result, TOPKD_E_SYSTEM, "cannot share an output arena", detail);
    _Static_assert(sizeof(handle) <= WIRE_HANDLE_SIZE, "an IPC handle fits");
    base->memory.kind = WIRE_MEMORY_CUDA_IPC;
    base->memory.handle_bytes = sizeof(handle);
    memcpy(base->memory.handle, &handle, sizeof(handle));
    base->memory.allocation_bytes = base->size_bytes;
    return TOPKD_OK;
}

enum topkd_status cuda_shared_create(struct device *device,
                                     const struct device_shared_config *config,
                                     struct device_shared **shared_p, char *detail)
{
    struct device_cuda *cuda = device_cuda_of(device);
    struct shared_cuda *shared = calloc(1, sizeof(*shared));
    if (shared == NULL)
        return detail_set(detail, TOPKD_E_NO_MEMORY, "no memory for a shared object");
    cuda_enter(cuda); /* on whatever thread */
    shared->fd = -1;
    shared->is_arena = config->is_arena;
    shared->base.size_bytes = config->size_bytes;
    enum topkd_status status = config->is_arena ? arena_make(cuda, shared, detail)
                                                : page_make(cuda, shared, &config->peer, detail);
    if (status != TOPKD_OK) {
        cuda_shared_destroy(device, &shared->base);
        return status;
    }
    *shared_p = &shared->base;
    return TOPKD_OK;
}

void cuda_shared_destroy(struct device *device, struct device_shared *base)
{
    struct device_cuda *cuda = device_cuda_of(device);
    struct shared_cuda *shared = (struct shared_cuda *)base;
    cuda_enter(cuda); /* on whatever thread */
    if (shared->is_published)
        fd_channel_unpublish(cuda->channel, base->memory.handle);
    cuda_quiet_begin(cuda);
    bool is_usable = !__atomic_load_n(&cuda->is_faulted, __ATOMIC_RELAXED);
    if (shared->is_arena && base->address != 0 && is_usable)
        cuda->driver->cuMemFree((CUdeviceptr)base->address);
    if (shared->is_registered && is_usable)
        cuda->driver->cuMemHostUnregister((void *)base->address);
    cuda_quiet_end(cuda);
    /* A lost context may still write there: the mapping stays with the dying process. */
    if (!shared->is_arena && base->address != 0 && is_usable)
        munmap((void *)base->address, base->size_bytes);
    if (shared->fd >= 0)
        close(shared->fd);
    free(shared);
}

/* ---- Memory of a client ---------------------------------------------------------------------- */

struct memory_cuda {
    struct device_memory base;
    enum wire_memory_kind kind;
    CUipcMemHandle handle;
    struct fd_bundle *bundle; /* until it is mapped */
    CUdeviceptr address;      /* 0: not mapped */
    uint64_t mapped_bytes;    /* of descriptors: from the start of the reserved range */
};

/* When the process started, in clock ticks since boot; 0 when that cannot be read. */
static uint64_t process_start(int64_t pid)
{
    char path[64];
    char text[1024];
    (void)snprintf(path, sizeof(path), "/proc/%" PRId64 "/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t size = read(fd, text, sizeof(text) - 1);
    close(fd);
    text[size > 0 ? size : 0] = '\0';
    const char *field = strrchr(text, ')'); /* the name before it can have anything in it */
    for (int i = 2; field != NULL && i < 22; i++)
        field = strchr(field + 1, ' ');
    return field != NULL ? strtoull(field + 1, NULL, 10) : 0;
}

static uint64_t hash_bytes(const uint8_t *bytes, size_t size, uint64_t seed)
{
    uint64_t hash = seed; /* FNV-1a */
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ bytes[i]) * UINT64_C(1099511628211);
    return hash;
}

/* The same allocation of the same process gives the same key, whatever address it lies at: the
 * driver's buffer id tells a recycled address, the start time a recycled pid. */
static struct device_memory_key key_of_ipc(const struct wire_register_request *request,
                                           const struct peer *peer)
{
    const struct wire_memory *memory = &request->memory;
    return (struct device_memory_key){
        .words = {hash_bytes(memory->handle, memory->handle_bytes, UINT64_C(14695981039346656037)),
                  hash_bytes(memory->handle, memory->handle_bytes, UINT64_C(7809847782465536322)),
                  request->buffer_id, (uint64_t)peer->pid << 40 ^ process_start(peer->pid)}};
}

static enum topkd_status open_ipc(struct memory_cuda *memory,
                                  const struct wire_register_request *request,
                                  const struct peer *peer, char *detail)
{
    if (request->memory.handle_bytes != sizeof(memory->handle))
        return detail_set(detail, TOPKD_E_INVALID, "an IPC handle has %zu bytes, not %" PRIu32,
                          sizeof(memory->handle), request->memory.handle_bytes);
    memcpy(&memory->handle, request->memory.handle, sizeof(memory->handle));
    memory->base.size_bytes = request->memory.allocation_bytes;
    memory->base.key = key_of_ipc(request, peer);
    return TOPKD_OK;
}

static enum topkd_status open_fds(struct device_cuda *cuda, struct memory_cuda *memory,
                                  const struct wire_register_request *request,
                                  const struct peer *peer, char *detail)
{
    static uint64_t num_opened; /* the loop's: no two hand-overs share a mapping */
    if (request->memory.handle_bytes != FD_TICKET_SIZE)
        return detail_set(detail, TOPKD_E_INVALID, "a ticket has %u bytes, not %" PRIu32,
                          FD_TICKET_SIZE, request->memory.handle_bytes);
    enum topkd_status status =
        fd_channel_take(cuda->channel, request->memory.handle, peer, &memory->bundle, detail);
    if (status != TOPKD_OK)
        return status;
    uint64_t size_bytes = 0;
    for (uint32_t i = 0; i < memory->bundle->num_fds; i++) {
        if (__builtin_add_overflow(size_bytes, memory->bundle->entries[i].size_bytes, &size_bytes))
            return detail_set(detail, TOPKD_E_INVALID,
                              "the sizes of %" PRIu32 " descriptors overflow 64 bits",
                              memory->bundle->num_fds);
    }
    memory->base.size_bytes = size_bytes;
    memory->base.key.words[0] = ++num_opened;
    memory->base.key.words[3] = UINT64_MAX;
    return TOPKD_OK;
}

enum topkd_status cuda_memory_open(struct device *device,
                                   const struct wire_register_request *request,
                                   const struct peer *peer, struct device_memory **memory_p,
                                   char *detail)
{
    struct device_cuda *cuda = device_cuda_of(device);
    if (request->device[0] != '\0' && strcmp(request->device, cuda->uuid) != 0)
        return detail_set(detail, TOPKD_E_NOT_VISIBLE,
                          "the memory lies on device %s, this session's device is %s: open a "
                          "session with that device",
                          request->device, cuda->uuid);
    struct memory_cuda *memory = calloc(1, sizeof(*memory));
    if (memory == NULL)
        return detail_set(detail, TOPKD_E_NO_MEMORY, "no memory for a region");
    memory->kind = request->memory.kind;
    memory->base.is_writable = request->access == WIRE_ACCESS_READ_WRITE;
    enum topkd_status status;
    switch (request->memory.kind) {
    case WIRE_MEMORY_CUDA_IPC:
        status = open_ipc(memory, request, peer, detail);
        break;
    case WIRE_MEMORY_CUDA_FD:
        status = open_fds(cuda, memory, request, peer, detail);
        break;
    default:
        status = detail_set(detail, TOPKD_E_UNSUPPORTED,
                            "a CUDA device takes device memory by IPC handle (kind %d) or by "
                            "descriptors (kind %d), not kind %d",
                            WIRE_MEMORY_CUDA_IPC, WIRE_MEMORY_CUDA_FD, (int)request->memory.kind);
    }
    if (status != TOPKD_OK) {
        fd_bundle_destroy(memory->bundle);
        free(memory);
        return status;
    }
    *memory_p = &memory->base;
    return TOPKD_OK;
}

static enum topkd_status fail_map(struct device_cuda *cuda, CUresult result, const char *what,
                                  char *detail)
{
    if (result == CUDA_ERROR_INVALID_CONTEXT)
        return detail_set(detail, TOPKD_E_SAME_PROCESS,
                          "the memory is of the worker's own process: CUDA opens handles of other "
                          "processes only");
    return cuda_fail(cuda, result, TOPKD_E_MAP_FAILED, what, detail);
}

static enum topkd_status map_ipc(struct device_cuda *cuda, struct memory_cuda *memory, char *detail)
{
    const struct cuda_driver *driver = cuda->driver;
    CUresult result = driver->cuIpcOpenMemHandle(&memory->address, memory->handle,
                                                 CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    if (result != CUDA_SUCCESS) {
        memory->address = 0;
        return fail_map(cuda, result,
                        "cannot open the IPC handle (was the memory freed, or does it lie on "
                        "another device?)",
                        detail);
    }
    CUdeviceptr base;
    size_t size_bytes;
    result = driver->cuMemGetAddressRange(&base, &size_bytes, memory->address);
    if (result != CUDA_SUCCESS)
        return fail_map(cuda, result, "the opened memory has no size", detail);
    if (base != memory->address || size_bytes < memory->base.size_bytes)
        return detail_set(detail, TOPKD_E_OUT_OF_RANGE,
                          "the allocation has %zu bytes, not the %" PRIu64 " announced", size_bytes,
                          memory->base.size_bytes);
    return TOPKD_OK;
}

/* The descriptors' memory, one behind the other; no more than the region may do with it. */
static enum topkd_status map_fds(struct device_cuda *cuda, struct memory_cuda *memory, char *detail)
{
    const struct cuda_driver *driver = cuda->driver;
    struct fd_bundle *bundle = memory->bundle;
    CUresult result =
        driver->cuMemAddressReserve(&memory->address, memory->base.size_bytes, 0, 0, 0);
    if (result != CUDA_SUCCESS) {
        memory->address = 0;
        return fail_map(cuda, result, "cannot reserve addresses", detail);
    }
    for (uint32_t i = 0; i < bundle->num_fds; i++) {
        struct fd_bundle_entry *entry = &bundle->entries[i];
        CUmemGenericAllocationHandle handle;
        result = driver->cuMemImportFromShareableHandle(&handle, (void *)(uintptr_t)entry->fd,
                                                        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
        if (result != CUDA_SUCCESS)
            return fail_map(cuda, result, "a descriptor is not shareable device memory", detail);
        result = driver->cuMemMap(memory->address + memory->mapped_bytes, entry->size_bytes, 0,
                                  handle, 0);
        driver->cuMemRelease(handle); /* the mapping keeps it */
        if (result != CUDA_SUCCESS)
            return fail_map(cuda, result, "cannot map a descriptor with the size announced",
                            detail);
        memory->mapped_bytes += entry->size_bytes;
    }
    CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = cuda->device},
                              .flags = memory->base.is_writable ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                                                                : CU_MEM_ACCESS_FLAGS_PROT_READ};
    result = driver->cuMemSetAccess(memory->address, memory->mapped_bytes, &access, 1);
    if (result != CUDA_SUCCESS)
        return fail_map(cuda, result, "the mapped memory cannot be made accessible", detail);
    return TOPKD_OK;
}

/* A read of both ends proves that the device reaches them. */
static enum topkd_status read_ends(struct device_cuda *cuda, const struct memory_cuda *memory,
                                   char *detail)
{
    const struct cuda_driver *driver = cuda->driver;
    cuda_routes_lock(cuda);
    void *scratch = cuda->h_scratch;
    CUresult result = driver->cuMemcpyDtoHAsync(scratch, memory->address, 1, cuda->routes_stream);
    if (result == CUDA_SUCCESS)
        result = driver->cuMemcpyDtoHAsync(scratch, memory->address + memory->base.size_bytes - 1,
                                           1, cuda->routes_stream);
    if (result == CUDA_SUCCESS)
        result = cuda_stream_wait(cuda, cuda->routes_stream, UINT64_MAX);
    pthread_mutex_unlock(&cuda->routes_mutex);
    return result == CUDA_SUCCESS
               ? TOPKD_OK
               : fail_map(cuda, result, "the mapped memory cannot be read", detail);
}

static void unmap(struct device_cuda *cuda, struct memory_cuda *memory)
{
    const struct cuda_driver *driver = cuda->driver;
    if (memory->address == 0)
        return;
    cuda_quiet_begin(cuda);
    bool is_usable = !__atomic_load_n(&cuda->is_faulted, __ATOMIC_RELAXED);
    if (is_usable && memory->kind == WIRE_MEMORY_CUDA_IPC) {
        driver->cuIpcCloseMemHandle(memory->address);
    } else if (is_usable) {
        if (memory->mapped_bytes > 0)
            driver->cuMemUnmap(memory->address, memory->mapped_bytes);
        driver->cuMemAddressFree(memory->address, memory->base.size_bytes);
    }
    cuda_quiet_end(cuda);
    memory->address = 0;
    memory->mapped_bytes = 0;
}

enum topkd_status cuda_memory_map(struct device *device, struct device_memory *base, char *detail)
{
    struct device_cuda *cuda = device_cuda_of(device);
    struct memory_cuda *memory = (struct memory_cuda *)base;
    topkd_assert(memory->address == 0 && base->size_bytes > 0);
    enum topkd_status status = memory->kind == WIRE_MEMORY_CUDA_IPC ? map_ipc(cuda, memory, detail)
                                                                    : map_fds(cuda, memory, detail);
    fd_bundle_destroy(memory->bundle);
    memory->bundle = NULL;
    if (status == TOPKD_OK)
        status = read_ends(cuda, memory, detail);
    if (status != TOPKD_OK) {
        unmap(cuda, memory);
        return status;
    }
    base->address = (uintptr_t)memory->address;
    return TOPKD_OK;
}

void cuda_memory_close(struct device *device, struct device_memory *base)
{
    struct device_cuda *cuda = device_cuda_of(device);
    struct memory_cuda *memory = (struct memory_cuda *)base;
    cuda_enter(cuda);
    unmap(cuda, memory);
    fd_bundle_destroy(memory->bundle);
    free(memory);
}

bool cuda_memory_faulted(const struct device_memory *memory)
{
    (void)memory; /* an allocation lives while somebody has it mapped */
    return false;
}

void cuda_memory_unlink(const struct wire_memory *memory, const struct device_memory_key *key,
                        const struct peer *peer)
{
    (void)memory; /* device memory has no name to remove */
    (void)key;
    (void)peer;
}
