/*
 * shm.h - POSIX shared memory: objects of our own, and those of the worker.
 */
#ifndef TOPKD_CLIENT_SHM_H
#define TOPKD_CLIENT_SHM_H

#include "rpc.h"
#include "topkd_wire.h"

#include <stdbool.h>
#include <stdint.h>

/* A mapping in this process; base NULL when there is none. */
struct shm_map {
    void *base;
    uint64_t size_bytes;
};

/* The name of an object of our own. A daemon removes objects whose lock nobody holds: those of
 * processes that died, when no worker was left to see it. */
struct shm_name {
    char text[WIRE_HANDLE_SIZE];
    int lock_fd; /* its shared flock; a forked child that lives on keeps it */
};

/*
 * Creates a zeroed object with a new name "/topkd-held-<pid>-<random>", takes all its memory at
 * once (so that a full /dev/shm is an error here and not a bus error later), lets `worker` open it,
 * and maps it for reading and writing. The object belongs to this user alone (mode 0600); a worker
 * of another user that is not root is let in by an access control entry for its uid or, where the
 * file system has none, by its group if this process is a member. One descriptor stays
 * open until shm_remove. TOPKD_E_NO_MEMORY, LIMIT (RLIMIT_FSIZE), NOT_PERMITTED, SYSTEM; then
 * nothing is left.
 */
enum topkd_status shm_create(uint64_t size_bytes, const struct rpc_peer *worker,
                             struct shm_name *name_p, struct shm_map *map_p, char *detail);

/* Removes the name; memory stays until the last mapping goes. */
void shm_remove(struct shm_name *name);

/* Maps memory that the worker handed over. TOPKD_E_MAP_FAILED, NOT_PERMITTED, UNSUPPORTED (not a
 * shared memory object), SYSTEM. */
enum topkd_status shm_map(const struct wire_memory *memory, bool writable, struct shm_map *map_p,
                          char *detail);

/* Maps a memory file of the worker for reading and writing; the descriptor stays the caller's.
 * TOPKD_E_MAP_FAILED (smaller than promised), SYSTEM. */
enum topkd_status shm_map_fd(int fd, uint64_t size_bytes, struct shm_map *map_p, char *detail);

/* Unmaps; nothing happens for an empty map. */
void shm_unmap(struct shm_map *map);

/* What an object is at this moment. */
struct shm_info {
    uint64_t size_bytes;
    uint64_t inode; /* another object under the same name has another one */
};

/* Looks at the object `name`. TOPKD_E_INVALID (not a name), MAP_FAILED (there is none),
 * NOT_PERMITTED, SYSTEM. */
enum topkd_status shm_inspect(const char *name, bool writable, struct shm_info *info_p,
                              char *detail);

#endif
