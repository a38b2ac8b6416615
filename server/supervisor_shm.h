/*
 * supervisor_shm.h - POSIX shared memory that outlives its process, and its removal.
 *
 * Every object of a daemon is called /topkd-<instance>-..., with 16 random hexadecimal digits for
 * the instance. The supervisor holds a flock on /topkd-<instance>-owner as long as it lives, so
 * that the next daemon of the same user can tell a dead instance from a live one, whatever folder,
 * container or PID namespace it ran in, as long as both see the same /dev/shm.
 */
#ifndef TOPKD_SERVER_SUPERVISOR_SHM_H
#define TOPKD_SERVER_SUPERVISOR_SHM_H

#include "topkd_wire.h"

#include <stdint.h>

struct shm_instance {
    char id[17]; /* 16 hexadecimal digits */
    int owner_fd;
};

/* A new instance with its locked owner object. 0, or -errno. */
int shm_instance_open(struct shm_instance *instance_p);
/* Removes every object of the instance, the owner last. */
void shm_instance_close(struct shm_instance *instance);

/* Prefix of the objects of one worker life: "/topkd-<instance>-<epoch>-". */
void shm_prefix(const struct shm_instance *instance, uint64_t epoch, char prefix[WIRE_NAME_SIZE]);

/* Removes every object of this user whose name begins with the prefix; returns how many. */
uint32_t shm_remove(const char *prefix);

/* Removes what dead instances of this user left; returns how many objects. */
uint32_t shm_remove_dead(void);

/* Removes buffers of clients (WIRE_SHM_BUFFER_PREFIX) that nobody holds any more: those that were
 * not registered when their process died, or whose worker died with it. Of this user; root's of
 * every user. Returns how many. Any thread. */
uint32_t shm_remove_unheld(void);

#endif
