#include "device_cpu.h"

#include "assert.h"
#include "detail.h"
#include "log.h"
#include "region_guard.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

static uint64_t page_round(uint64_t size_bytes)
{
    uint64_t page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
    return (size_bytes + page_bytes - 1) / page_bytes * page_bytes;
}

/* ---- Memory of the daemon that a client maps --------------------------------------------------
 */

struct shared_cpu {
    struct device_shared base;
    int fd; /* -1 when all of it has memory */
    uint32_t guard;
    char name[WIRE_HANDLE_SIZE];
};

/* The kernel's form of an access control list (system.posix_acl_access): little-endian. */
#define ACL_VERSION 2u
#define ACL_ANY_ID UINT32_MAX
enum { ACL_OWNER = 0x01, ACL_USER = 0x02, ACL_GROUP = 0x04, ACL_MASK = 0x10, ACL_OTHER = 0x20 };

struct acl {
    uint32_t version;
    struct {
        uint16_t tag, mode;
        uint32_t id;
    } entries[5];
};

static bool grant_by_acl(int fd, uint32_t uid)
{
    struct acl acl = {.version = htole32(ACL_VERSION),
                      .entries = {{htole16(ACL_OWNER), htole16(6), htole32(ACL_ANY_ID)},
                                  {htole16(ACL_USER), htole16(6), htole32(uid)},
                                  {htole16(ACL_GROUP), 0, htole32(ACL_ANY_ID)},
                                  {htole16(ACL_MASK), htole16(6), htole32(ACL_ANY_ID)},
                                  {htole16(ACL_OTHER), 0, htole32(ACL_ANY_ID)}}};
    return fsetxattr(fd, "system.posix_acl_access", &acl, sizeof(acl), 0) == 0;
}

/* Lets the peer open the object: its own where this process may give files away, else by an access
 * list, else by the daemon's group (then other members of the group could open it too). */
static enum topkd_status grant(int fd, const struct peer *peer, char *detail)
{
    if (peer->uid < 0 || peer->uid == 0 || peer->uid == (int64_t)geteuid())
        return TOPKD_OK;
    if (fchown(fd, (uid_t)peer->uid, (gid_t)-1) == 0 || grant_by_acl(fd, (uint32_t)peer->uid))
        return TOPKD_OK;
    if (fchmod(fd, 0660) == 0)
        return TOPKD_OK;
    return detail_set(detail, TOPKD_E_SYSTEM, "cannot share memory with uid %" PRId64 ": %s",
                      peer->uid, strerror(errno));
}

static enum topkd_status reserve(int fd, uint64_t offset, uint64_t size_bytes, char *detail)
{
    int error;
    do
        error = posix_fallocate(fd, (off_t)offset, (off_t)size_bytes);
    while (error == EINTR);
    if (error == 0)
        return TOPKD_OK;
    return detail_set(detail, TOPKD_E_NO_MEMORY,
                      "no room for %" PRIu64 " bytes in /dev/shm: %s; enlarge it, or lower "
                      "limits.arena_slots and limits.arena_slot_bytes",
                      size_bytes, strerror(error));
}

static enum topkd_status shared_map(struct shared_cpu *shared, bool reserve_now, char *detail)
{
    uint64_t size_bytes = shared->base.size_bytes;
    if (ftruncate(shared->fd, (off_t)size_bytes) != 0)
        return detail_set(detail, TOPKD_E_SYSTEM, "%s: cannot set its size to %" PRIu64 ": %s",
                          shared->name, size_bytes, strerror(errno));
    if (reserve_now) {
        enum topkd_status status = reserve(shared->fd, 0, size_bytes, detail);
        if (status != TOPKD_OK)
            return status;
    }
    int protection = PROT_READ | PROT_WRITE;
    void *base = mmap(NULL, size_bytes, protection, MAP_SHARED, shared->fd, 0);
    if (base == MAP_FAILED)
        return detail_set(detail, TOPKD_E_NO_MEMORY, "%s: cannot map %" PRIu64 " bytes: %s",
                          shared->name, size_bytes, strerror(errno));
    /* The client can write to the object, so it can shrink it as well. */
    if (!region_guard_add(base, size_bytes, protection, &shared->guard)) {
        munmap(base, size_bytes);
        return detail_set(detail, TOPKD_E_LIMIT, "the worker has %u mappings, its limit",
                          REGION_GUARD_SLOTS);
    }
    shared->base.address = (uintptr_t)base;
    return TOPKD_OK;
}

enum topkd_status device_cpu_shared_create(struct device *device,
                                           const struct device_shared_config *config,
                                           struct device_shared **shared_p, char *detail)
{
    struct shared_cpu *shared = calloc(1, sizeof(*shared));
    if (shared == NULL)
        return detail_set(detail, TOPKD_E_NO_MEMORY, "no memory for a shared object");
    shared->base.size_bytes = page_round(config->size_bytes);
    int length = snprintf(shared->name, sizeof(shared->name), "%s%s",
                          device_cpu_of(device)->shm_prefix, config->name);
    topkd_assert(length > 0 && (uint32_t)length < sizeof(shared->name));

    shared->fd = shm_open(shared->name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (shared->fd < 0) {
        detail_set(detail, TOPKD_E_SYSTEM, "cannot create shared memory object %s: %s",
                   shared->name, strerror(errno));
        free(shared);
        return TOPKD_E_SYSTEM;
    }
    enum topkd_status status = grant(shared->fd, &config->peer, detail);
    if (status == TOPKD_OK)
        status = shared_map(shared, config->reserve, detail);
    if (status != TOPKD_OK) {
        shm_unlink(shared->name);
        close(shared->fd);
        free(shared);
        return status;
    }
    if (config->reserve) {
        close(shared->fd); /* the mapping keeps the object */
        shared->fd = -1;
    }
    struct wire_memory *memory = &shared->base.memory;
    memory->kind = WIRE_MEMORY_SHM;
    memory->handle_bytes = (uint32_t)length;
    memcpy(memory->handle, shared->name, (size_t)length);
    memory->allocation_bytes = shared->base.size_bytes;
    *shared_p = &shared->base;
    return TOPKD_OK;
}

enum topkd_status device_cpu_shared_reserve(const struct device_shared *shared, uint64_t offset,
                                            uint64_t size_bytes, char *detail)
{
    topkd_assert(offset <= shared->size_bytes && size_bytes <= shared->size_bytes - offset);
    return reserve(((const struct shared_cpu *)shared)->fd, offset, size_bytes, detail);
}

void device_cpu_shared_destroy(struct device *device, struct device_shared *base)
{
    (void)device;
    struct shared_cpu *shared = (struct shared_cpu *)base;
    region_guard_remove(shared->guard);
    munmap((void *)base->address, base->size_bytes);
    shm_unlink(shared->name);
    if (shared->fd >= 0)
        close(shared->fd);
    free(shared);
}

bool device_cpu_shared_faulted(const struct device_shared *shared)
{
    return region_guard_faulted(((const struct shared_cpu *)shared)->guard);
}

/* ---- Memory of a client -----------------------------------------------------------------------
 */

struct memory_cpu {
    struct device_memory base;
    int fd; /* -1 once mapped */
    uint32_t guard;
};

/* The object's name out of a handle; false when it is none that shm_open would take, or has other
 * than printable ASCII characters (it goes into error texts and the log). */
static bool name_of(const struct wire_memory *memory, char name[WIRE_HANDLE_SIZE + 1])
{
    for (uint32_t i = 0; i < memory->handle_bytes; i++)
        if (memory->handle[i] <= ' ' || memory->handle[i] > '~')
            return false;
    memcpy(name, memory->handle, memory->handle_bytes);
    name[memory->handle_bytes] = '\0';
    return memory->handle_bytes >= 2 && name[0] == '/' && strchr(name + 1, '/') == NULL &&
           strcmp(name, "/.") != 0 && strcmp(name, "/..") != 0;
}

/* `inode` is the client's word for which object it means; 0: it gave none. */
static enum topkd_status check_object(const char *name, const struct stat *info, uint64_t inode,
                                      const struct peer *peer, char *detail)
{
    if (!S_ISREG(info->st_mode))
        return detail_set(detail, TOPKD_E_INVALID, "%s is not a shared memory object", name);
    if (peer->uid != 0 && (int64_t)info->st_uid != peer->uid)
        return detail_set(detail, TOPKD_E_NOT_PERMITTED,
                          "%s belongs to uid %u, the client is uid %" PRId64
                          ": only memory of one's own can be registered",
                          name, info->st_uid, peer->uid);
    if (inode != 0 && inode != (uint64_t)info->st_ino)
        return detail_set(detail, TOPKD_E_MAP_FAILED,
                          "%s is another object here (inode %" PRIu64 ") than the client's "
                          "(%" PRIu64 "): it was made again, or the /dev/shm of a container is "
                          "not this one",
                          name, (uint64_t)info->st_ino, inode);
    return TOPKD_OK;
}

static enum topkd_status explain_open(const char *name, int error, char *detail)
{
    if (error == EACCES || error == EPERM)
        return detail_set(detail, TOPKD_E_NOT_PERMITTED,
                          "the worker (uid %u) may not open %s: let it in by an access list or its "
                          "group, or run the daemon as root",
                          geteuid(), name);
    if (error == EMFILE || error == ENFILE || error == ENOMEM)
        /* It passes, and is no fault of the object: a client that renews its session tries again.
         */
        return detail_set(detail, TOPKD_E_NO_MEMORY,
                          "the worker cannot open %s now: %s; raise its limit of open files "
                          "(LimitNOFILE=, ulimit -n)",
                          name, strerror(error));
    return detail_set(detail, TOPKD_E_MAP_FAILED,
                      "cannot open %s: %s; both processes need the same /dev/shm (containers: one "
                      "IPC namespace or a shared mount)",
                      name, strerror(error));
}

enum topkd_status device_cpu_memory_open(struct device *device,
                                         const struct wire_register_request *request,
                                         const struct peer *peer, struct device_memory **memory_p,
                                         char *detail)
{
    (void)device;
    if (request->memory.kind != WIRE_MEMORY_SHM)
        return detail_set(detail, TOPKD_E_UNSUPPORTED,
                          "the CPU device takes POSIX shared memory (kind %d), not kind %d",
                          WIRE_MEMORY_SHM, (int)request->memory.kind);
    char name[WIRE_HANDLE_SIZE + 1];
    if (!name_of(&request->memory, name))
        return detail_set(detail, TOPKD_E_INVALID,
                          "the handle is not a name \"/...\" of printable ASCII characters, as "
                          "shm_open takes it");

    bool is_writable = request->access == WIRE_ACCESS_READ_WRITE;
    /* Non-blocking: the name could be a FIFO or carry a lease; neither may hold up the loop. */
    int fd = shm_open(name, (is_writable ? O_RDWR : O_RDONLY) | O_NONBLOCK | O_CLOEXEC, 0);
    if (fd < 0)
        return explain_open(name, errno, detail);
    struct stat info;
    enum topkd_status status;
    if (fstat(fd, &info) != 0)
        status = detail_set(detail, TOPKD_E_SYSTEM, "%s: %s", name, strerror(errno));
    else
        status = check_object(name, &info, request->buffer_id, peer, detail);
    struct memory_cpu *memory = status == TOPKD_OK ? calloc(1, sizeof(*memory)) : NULL;
    if (memory == NULL) {
        close(fd);
        return status != TOPKD_OK ? status
                                  : detail_set(detail, TOPKD_E_NO_MEMORY, "no memory for a region");
    }
    memory->fd = fd;
    memory->base =
        (struct device_memory){.key = {.words = {(uint64_t)info.st_dev, (uint64_t)info.st_ino}},
                               .size_bytes = (uint64_t)info.st_size,
                               .is_writable = is_writable};
    *memory_p = &memory->base;
    return TOPKD_OK;
}

enum topkd_status device_cpu_memory_map(struct device *device, struct device_memory *base,
                                        char *detail)
{
    (void)device;
    struct memory_cpu *memory = (struct memory_cpu *)base;
    topkd_assert(memory->fd >= 0 && base->size_bytes > 0);

    int protection = base->is_writable ? PROT_READ | PROT_WRITE : PROT_READ;
    void *address = mmap(NULL, base->size_bytes, protection, MAP_SHARED, memory->fd, 0);
    if (address == MAP_FAILED)
        return detail_set(detail, errno == ENOMEM ? TOPKD_E_NO_MEMORY : TOPKD_E_MAP_FAILED,
                          "cannot map an object of %" PRIu64 " bytes: %s", base->size_bytes,
                          strerror(errno));
    if (!region_guard_add(address, page_round(base->size_bytes), protection, &memory->guard)) {
        munmap(address, base->size_bytes);
        return detail_set(detail, TOPKD_E_LIMIT,
                          "the worker has %u mappings, its limit: unregister some, or register "
                          "larger objects",
                          REGION_GUARD_SLOTS);
    }
    const volatile uint8_t *bytes = address;
    (void)bytes[0];
    (void)bytes[base->size_bytes - 1];
    if (region_guard_faulted(memory->guard)) {
        region_guard_remove(memory->guard);
        munmap(address, base->size_bytes);
        return detail_set(detail, TOPKD_E_MAP_FAILED,
                          "the object's %" PRIu64
                          " bytes are not all there: it shrank meanwhile, or "
                          "has holes and /dev/shm is full",
                          base->size_bytes);
    }
    base->address = (uintptr_t)address;
    close(memory->fd); /* the mapping keeps the object */
    memory->fd = -1;
    return TOPKD_OK;
}

void device_cpu_memory_close(struct device *device, struct device_memory *base)
{
    (void)device;
    struct memory_cpu *memory = (struct memory_cpu *)base;
    if (memory->fd >= 0) {
        close(memory->fd);
    } else {
        region_guard_remove(memory->guard);
        munmap((void *)base->address, base->size_bytes);
    }
    free(memory);
}

bool device_cpu_memory_faulted(const struct device_memory *memory)
{
    return region_guard_faulted(((const struct memory_cpu *)memory)->guard);
}

void device_cpu_memory_unlink(const struct wire_memory *memory, const struct device_memory_key *key,
                              const struct peer *peer)
{
    char name[WIRE_HANDLE_SIZE + 1];
    if (!name_of(memory, name) ||
        strncmp(name, WIRE_SHM_BUFFER_PREFIX, strlen(WIRE_SHM_BUFFER_PREFIX)) != 0)
        return;
    int fd = shm_open(name, O_RDONLY | O_NONBLOCK | O_CLOEXEC, 0);
    if (fd < 0)
        return; /* gone already */
    struct stat info;
    bool is_same = fstat(fd, &info) == 0 && (uint64_t)info.st_dev == key->words[0] &&
                   (uint64_t)info.st_ino == key->words[1] && (int64_t)info.st_uid == peer->uid;
    close(fd);
    if (!is_same)
        return;
    if (shm_unlink(name) == 0)
        log_info("shm_unlinked", "name=%s pid=%" PRId64, name, peer->pid);
    else
        log_warn("shm_left", "name=%s pid=%" PRId64 " reason=\"%s\"", name, peer->pid,
                 strerror(errno));
}
