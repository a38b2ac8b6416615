/* shm.c - POSIX shared memory: create, let the worker in, map. */
#include "shm.h"

#include "fault.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#define NAME_ATTEMPTS 8u

/* ---- Names ----------------------------------------------------------------------------------- */

static enum topkd_status check_name(const char *name, char *detail)
{
    size_t length = strlen(name);
    if (length < 2 || length >= WIRE_HANDLE_SIZE || name[0] != '/' || strchr(name + 1, '/')) {
        return fault(detail, TOPKD_E_INVALID,
                     "shared memory name \"%.64s\": expected \"/name\" of 2 to %u characters "
                     "without a second slash, as shm_open takes it",
                     name, WIRE_HANDLE_SIZE - 1);
    }
    return TOPKD_OK;
}

static enum topkd_status fault_open(const char *name, int error, char *detail)
{
    char buffer[128];
    const char *text = strerror_r(error, buffer, sizeof(buffer));
    switch (error) {
    case ENOENT:
        return fault(detail, TOPKD_E_MAP_FAILED,
                     "shared memory object %s: %s; both processes need the same /dev/shm (in a "
                     "container: share the host's, or its IPC namespace)",
                     name, text);
    case EACCES:
    case EPERM:
        return fault(detail, TOPKD_E_NOT_PERMITTED,
                     "shared memory object %s: %s for uid %u gid %u; run the daemon as root or as "
                     "a user that may share with this one",
                     name, text, (unsigned)geteuid(), (unsigned)getegid());
    default:
        return fault_system(detail, name, error);
    }
}

/* ---- Letting the worker in ------------------------------------------------------------------- */

/* A POSIX access control list as the kernel takes it in the attribute system.posix_acl_access:
 * little-endian, version 2 (linux/posix_acl_xattr.h). */
#define ACL_VERSION 2u
#define ACL_USER_OBJ 0x01u
#define ACL_USER 0x02u
#define ACL_GROUP_OBJ 0x04u
#define ACL_MASK 0x10u
#define ACL_OTHER 0x20u
#define ACL_READ_WRITE 6u
#define ACL_NOBODY UINT32_MAX /* id of the entries that have none */

struct acl_entry {
    uint16_t tag, permissions;
    uint32_t id;
};

struct acl {
    uint32_t version;
    struct acl_entry entries[5];
};

static int grant_user(int fd, uint32_t uid)
{
    const struct acl acl = {
        .version = htole32(ACL_VERSION),
        .entries =
            {
                {htole16(ACL_USER_OBJ), htole16(ACL_READ_WRITE), htole32(ACL_NOBODY)},
                {htole16(ACL_USER), htole16(ACL_READ_WRITE), htole32(uid)},
                {htole16(ACL_GROUP_OBJ), 0, htole32(ACL_NOBODY)},
                {htole16(ACL_MASK), htole16(ACL_READ_WRITE), htole32(ACL_NOBODY)},
                {htole16(ACL_OTHER), 0, htole32(ACL_NOBODY)},
            },
    };
    return fsetxattr(fd, "system.posix_acl_access", &acl, sizeof(acl), 0);
}

static int grant_group(int fd, gid_t gid)
{
    return fchown(fd, (uid_t)-1, gid) == 0 && fchmod(fd, 0660) == 0 ? 0 : -1;
}

static enum topkd_status grant(int fd, const struct rpc_peer *worker, char *detail)
{
    if (worker->uid < 0 || worker->uid == 0 || worker->uid == (int64_t)geteuid()) {
        return TOPKD_OK;
    }
    if (grant_user(fd, (uint32_t)worker->uid) == 0 ||
        (worker->gid >= 0 && grant_group(fd, (gid_t)worker->gid) == 0)) {
        return TOPKD_OK;
    }
    return fault(detail, TOPKD_E_NOT_PERMITTED,
                 "the worker runs as uid %" PRId64 " gid %" PRId64 " and cannot open memory of uid "
                 "%u: /dev/shm takes no access control lists and this process is not in that "
                 "group; run the daemon as root, or put this user into the worker's group",
                 worker->uid, worker->gid, (unsigned)geteuid());
}

/* ---- Create ---------------------------------------------------------------------------------- */

/* Room for the object, taken now. */
static enum topkd_status allocate(int fd, uint64_t size_bytes, char *detail)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
        size_bytes > limit.rlim_cur) {
        /* Beyond it the kernel would send SIGXFSZ. */
        return fault(detail, TOPKD_E_LIMIT,
                     "a buffer of %" PRIu64 " bytes exceeds this process's file size limit of "
                     "%" PRIu64 " (ulimit -f)",
                     size_bytes, (uint64_t)limit.rlim_cur);
    }
    int error;
    do {
        error = posix_fallocate(fd, 0, (off_t)size_bytes);
    } while (error == EINTR);
    if (error == 0) {
        return TOPKD_OK;
    }
    struct statvfs room;
    if (error == ENOSPC && fstatvfs(fd, &room) == 0) {
        (void)ftruncate(fd, 0); /* what was taken is free again */
        (void)fstatvfs(fd, &room);
        return fault(detail, TOPKD_E_NO_MEMORY,
                     "a buffer of %" PRIu64 " bytes does not fit into /dev/shm, which has %" PRIu64
                     " of %" PRIu64 " bytes free: enlarge it (mount -o remount,size=..., in a "
                     "container --shm-size)",
                     size_bytes, (uint64_t)room.f_bavail * room.f_frsize,
                     (uint64_t)room.f_blocks * room.f_frsize);
    }
    return fault_system(detail, "cannot allocate shared memory",
                        error == ENOSPC || error == EFBIG ? ENOMEM : error);
}

/* Takes the lock that keeps the name. Between its creation and now a daemon may have taken the
 * object for a dead process's: then it has no name any more, and -EEXIST says to try another. */
static int hold(int fd)
{
    struct stat info;
    int error;
    do {
        error = flock(fd, LOCK_SH) == 0 ? 0 : -errno;
    } while (error == -EINTR);
    if (error == 0 && fstat(fd, &info) != 0) {
        error = -errno;
    }
    return error == 0 && info.st_nlink == 0 ? -EEXIST : error;
}

static enum topkd_status open_new(struct shm_name *name_p, char *detail)
{
    int error = EEXIST;
    for (uint32_t i = 0; i < NAME_ATTEMPTS && error == EEXIST; i++) {
        uint64_t random;
        if (getrandom(&random, sizeof(random), 0) != (ssize_t)sizeof(random)) {
            return fault_system(detail, "cannot draw a random name", errno);
        }
        (void)snprintf(name_p->text, sizeof(name_p->text), WIRE_SHM_BUFFER_PREFIX "%d-%016" PRIx64,
                       (int)getpid(), random);
        int fd = shm_open(name_p->text, O_RDWR | O_CREAT | O_EXCL, 0600); /* close-on-exec */
        if (fd < 0) {
            error = errno;
            continue;
        }
        error = -hold(fd);
        name_p->lock_fd = fd;
        if (error == 0) {
            return TOPKD_OK;
        }
        if (error == EEXIST) {
            close(fd);
        } else {
            shm_remove(name_p);
        }
    }
    return fault_system(detail, "cannot create a shared memory object", error);
}

static enum topkd_status map_fd(int fd, uint64_t size_bytes, bool writable, struct shm_map *map_p,
                                char *detail)
{
    int protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
    void *base = mmap(NULL, size_bytes, protection, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED) {
        return fault_system(detail, "cannot map shared memory", errno);
    }
    *map_p = (struct shm_map){.base = base, .size_bytes = size_bytes};
    return TOPKD_OK;
}

enum topkd_status shm_create(uint64_t size_bytes, const struct rpc_peer *worker,
                             struct shm_name *name_p, struct shm_map *map_p, char *detail)
{
    enum topkd_status status = open_new(name_p, detail);
    if (status != TOPKD_OK) {
        return status;
    }
    int fd = name_p->lock_fd;
    status = grant(fd, worker, detail);
    if (status == TOPKD_OK) {
        status = allocate(fd, size_bytes, detail);
    }
    if (status == TOPKD_OK) {
        status = map_fd(fd, size_bytes, true, map_p, detail);
    }
    if (status != TOPKD_OK) {
        shm_remove(name_p);
    }
    return status;
}

void shm_remove(struct shm_name *name)
{
    (void)shm_unlink(name->text);
    close(name->lock_fd);
    name->lock_fd = -1;
}

/* ---- Objects of others ----------------------------------------------------------------------- */

static enum topkd_status open_existing(const char *name, bool writable, int *fd_p,
                                       struct shm_info *info_p, char *detail)
{
    enum topkd_status status = check_name(name, detail);
    if (status != TOPKD_OK) {
        return status;
    }
    int fd = shm_open(name, writable ? O_RDWR : O_RDONLY, 0);
    if (fd < 0) {
        return fault_open(name, errno, detail);
    }
    struct stat info;
    if (fstat(fd, &info) != 0) {
        status = fault_system(detail, name, errno);
        close(fd);
        return status;
    }
    *info_p = (struct shm_info){.size_bytes = (uint64_t)info.st_size, .inode = info.st_ino};
    *fd_p = fd;
    return TOPKD_OK;
}

enum topkd_status shm_map(const struct wire_memory *memory, bool writable, struct shm_map *map_p,
                          char *detail)
{
    if (memory->kind != WIRE_MEMORY_SHM) {
        return fault(detail, TOPKD_E_UNSUPPORTED,
                     "the worker offers memory of kind %d; this library maps POSIX shared memory "
                     "(%d) only",
                     (int)memory->kind, (int)WIRE_MEMORY_SHM);
    }
    char name[WIRE_HANDLE_SIZE + 1] = "";
    memcpy(name, memory->handle, memory->handle_bytes);
    int fd = -1;
    struct shm_info info;
    enum topkd_status status = open_existing(name, writable, &fd, &info, detail);
    if (status != TOPKD_OK) {
        return status;
    }
    if (memory->allocation_bytes == 0 || info.size_bytes < memory->allocation_bytes) {
        status = fault(detail, TOPKD_E_MAP_FAILED,
                       "shared memory object %s has %" PRIu64 " bytes, the worker promised "
                       "%" PRIu64,
                       name, info.size_bytes, memory->allocation_bytes);
    } else {
        status = map_fd(fd, memory->allocation_bytes, writable, map_p, detail);
    }
    close(fd);
    return status;
}

enum topkd_status shm_map_fd(int fd, uint64_t size_bytes, struct shm_map *map_p, char *detail)
{
    struct stat info;
    if (fstat(fd, &info) != 0) {
        return fault_system(detail, "the worker's memory file", errno);
    }
    if (size_bytes == 0 || info.st_size < 0 || (uint64_t)info.st_size < size_bytes) {
        return fault(detail, TOPKD_E_MAP_FAILED,
                     "the worker's memory file has %lld bytes, it promised %" PRIu64,
                     (long long)info.st_size, size_bytes);
    }
    return map_fd(fd, size_bytes, true, map_p, detail);
}

void shm_unmap(struct shm_map *map)
{
    if (map->base) {
        (void)munmap(map->base, map->size_bytes);
        *map = (struct shm_map){0};
    }
}

enum topkd_status shm_inspect(const char *name, bool writable, struct shm_info *info_p,
                              char *detail)
{
    int fd = -1;
    enum topkd_status status = open_existing(name, writable, &fd, info_p, detail);
    if (status == TOPKD_OK) {
        close(fd);
    }
    return status;
}
