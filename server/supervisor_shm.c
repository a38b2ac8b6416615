#include "supervisor_shm.h"

#include "log.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define SHM_FOLDER "/dev/shm" /* where glibc keeps POSIX shared memory */
#define ID_DIGITS 16u
#define NAME_START "/topkd-"
#define OWNER_END "-owner"

static void owner_name(const char *id, char name[WIRE_NAME_SIZE])
{
    snprintf(name, WIRE_NAME_SIZE, NAME_START "%s" OWNER_END, id);
}

int shm_instance_open(struct shm_instance *instance_p)
{
    for (;;) {
        struct shm_instance instance;
        char name[WIRE_NAME_SIZE];
        struct stat status;
        uint64_t random;
        if (getrandom(&random, sizeof random, 0) != (ssize_t)sizeof random)
            return -errno;
        snprintf(instance.id, sizeof instance.id, "%016" PRIx64, random);
        owner_name(instance.id, name);
        instance.owner_fd = shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600); /* close-on-exec */
        if (instance.owner_fd < 0 && errno == EEXIST)
            continue;
        if (instance.owner_fd < 0)
            return -errno;
        /* Between the two calls another daemon may have taken the object for a dead one's. */
        if (flock(instance.owner_fd, LOCK_EX) != 0 || fstat(instance.owner_fd, &status) != 0) {
            int error = errno;
            close(instance.owner_fd);
            shm_unlink(name);
            return -error;
        }
        if (status.st_nlink != 0) {
            *instance_p = instance;
            return 0;
        }
        close(instance.owner_fd);
    }
}

void shm_instance_close(struct shm_instance *instance)
{
    char name[WIRE_NAME_SIZE];
    snprintf(name, sizeof name, NAME_START "%s-", instance->id);
    shm_remove(name); /* the owner object among them; its lock ends with the descriptor */
    close(instance->owner_fd);
    instance->owner_fd = -1;
}

void shm_prefix(const struct shm_instance *instance, uint64_t epoch, char prefix[WIRE_NAME_SIZE])
{
    snprintf(prefix, WIRE_NAME_SIZE, NAME_START "%s-%016" PRIx64 "-", instance->id, epoch);
}

static DIR *open_folder(void)
{
    DIR *folder = opendir(SHM_FOLDER);
    if (folder == NULL)
        log_warn("shm_unreadable", "folder=%s error=%s", SHM_FOLDER, strerror(errno));
    return folder;
}

/* Whether an entry is an object of this user; objects of others are not ours to judge. */
static bool is_own(DIR *folder, const char *name)
{
    struct stat status;
    return fstatat(dirfd(folder), name, &status, AT_SYMLINK_NOFOLLOW) == 0 &&
           S_ISREG(status.st_mode) && status.st_uid == geteuid();
}

/* Removes what begins with a name of /dev/shm, except `kept` (may be NULL). */
static uint32_t remove_all(const char *start, const char *kept)
{
    uint32_t num_removed = 0;
    DIR *folder = open_folder();
    if (folder == NULL)
        return 0;
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        const char *name = entry->d_name;
        if (strncmp(name, start, strlen(start)) == 0 && (kept == NULL || strcmp(name, kept) != 0) &&
            is_own(folder, name) && unlinkat(dirfd(folder), name, 0) == 0)
            num_removed++;
    }
    closedir(folder);
    return num_removed;
}

uint32_t shm_remove(const char *prefix)
{
    return remove_all(prefix + 1, NULL); /* names in the folder have no slash */
}

/* As is_own; root's daemon judges the objects of every user. */
static bool is_ours(DIR *folder, const char *name)
{
    struct stat status;
    if (geteuid() != 0)
        return is_own(folder, name);
    return fstatat(dirfd(folder), name, &status, AT_SYMLINK_NOFOLLOW) == 0 &&
           S_ISREG(status.st_mode);
}

/* "topkd-<16 hexadecimal digits>-owner": copies the digits. */
static bool is_owner(const char *name, char id[ID_DIGITS + 1])
{
    const char *start = &NAME_START[1];
    if (strncmp(name, start, strlen(start)) != 0)
        return false;
    name += strlen(start);
    if (strspn(name, "0123456789abcdef") != ID_DIGITS || strcmp(name + ID_DIGITS, OWNER_END) != 0)
        return false;
    memcpy(id, name, ID_DIGITS);
    id[ID_DIGITS] = '\0';
    return true;
}

/* Removes the objects of an instance if its owner is dead; those of a live one stay. */
static uint32_t remove_if_dead(DIR *folder, const char *owner, const char *id)
{
    char start[WIRE_NAME_SIZE];
    uint32_t num_removed = 0;
    int fd = openat(dirfd(folder), owner, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return 0;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
        /* The owner goes last, so that an interrupted removal is found again. */
        snprintf(start, sizeof start, "%s%s-", &NAME_START[1], id);
        num_removed = remove_all(start, owner);
        if (unlinkat(dirfd(folder), owner, 0) == 0)
            num_removed++;
    }
    close(fd);
    return num_removed;
}

uint32_t shm_remove_dead(void)
{
    char id[ID_DIGITS + 1];
    uint32_t num_removed = 0;
    DIR *folder = open_folder();
    if (folder == NULL)
        return 0;
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;)
        if (is_owner(entry->d_name, id) && is_own(folder, entry->d_name))
            num_removed += remove_if_dead(folder, entry->d_name, id);
    closedir(folder);
    return num_removed;
}

/* A client takes its shared lock right after it has made the object, and then looks whether the
 * name is still there; so whoever gets this lock finds no live holder, or one that tries again. */
static uint32_t remove_if_unheld(DIR *folder, const char *name)
{
    uint32_t num_removed = 0;
    /* Not blocking: somebody may hold a lease on it. */
    int fd = openat(dirfd(folder), name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return 0;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0 && unlinkat(dirfd(folder), name, 0) == 0)
        num_removed = 1;
    close(fd);
    return num_removed;
}

uint32_t shm_remove_unheld(void)
{
    const char *start = &WIRE_SHM_BUFFER_PREFIX[1];
    uint32_t num_removed = 0;
    DIR *folder = open_folder();
    if (folder == NULL)
        return 0;
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;)
        if (strncmp(entry->d_name, start, strlen(start)) == 0 && is_ours(folder, entry->d_name))
            num_removed += remove_if_unheld(folder, entry->d_name);
    closedir(folder);
    return num_removed;
}
