#include "socket_file.h"

#include "detail.h"
#include "log.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

/* Where Linux keeps a POSIX access control list. */
static const char acl_name[] = "system.posix_acl_access";

/* Bytes of the list of the socket that counts; 0: it has none; -1: not known now. */
static ssize_t read_acl(const struct socket_file *file, uint8_t acl[SOCKET_FILE_ACL_MAX])
{
    if (file->rights.like == NULL)
        return 0;
    ssize_t size = lgetxattr(file->rights.like, acl_name, acl, SOCKET_FILE_ACL_MAX);
    if (size >= 0)
        return size;
    if (errno == ENODATA || errno == ENOTSUP)
        return 0;
    if (errno != ENOENT) /* else it is being made anew */
        log_warn("socket_acl_unread", "path=%s reason=\"%s\"", file->rights.like, strerror(errno));
    return -1;
}

/* 0, or an error number. */
static int apply_acl(struct socket_file *file, const uint8_t *acl, size_t size)
{
    file->acl_size = size; /* also when it fails: said once, not four times a second */
    if (size > 0) {
        memcpy(file->acl, acl, size);
        return lsetxattr(file->path, acl_name, acl, size, 0) == 0 ? 0 : errno;
    }
    if (lremovexattr(file->path, acl_name) != 0 && errno != ENODATA)
        return errno;
    return chmod(file->path, (mode_t)file->rights.mode) == 0 ? 0 : errno;
}

enum topkd_status socket_file_init(struct socket_file *file, const char *path,
                                   const struct socket_rights *rights, char *detail)
{
    *file = (struct socket_file){.path = path, .rights = *rights};
    if (rights->gid >= 0 && lchown(path, (uid_t)-1, (gid_t)rights->gid) != 0)
        return detail_set(detail, TOPKD_E_SYSTEM,
                          "%s: cannot give the socket to group %" PRId64
                          ": %s; the daemon's user must be a member of socket.group",
                          path, rights->gid, strerror(errno));
    if (chmod(path, (mode_t)rights->mode) != 0)
        return detail_set(detail, TOPKD_E_SYSTEM, "%s: cannot set the mode %04o: %s", path,
                          rights->mode, strerror(errno));
    uint8_t acl[SOCKET_FILE_ACL_MAX];
    ssize_t size = read_acl(file, acl);
    /* Without one, a list that the folder gives to what is made in it stays. */
    int error = size > 0 ? apply_acl(file, acl, (size_t)size) : 0;
    if (error != 0)
        return detail_set(detail, TOPKD_E_SYSTEM, "%s: cannot take over the access list of %s: %s",
                          path, rights->like, strerror(error));
    return TOPKD_OK;
}

void socket_file_follow(struct socket_file *file)
{
    uint8_t acl[SOCKET_FILE_ACL_MAX];
    ssize_t size = read_acl(file, acl);
    if (size < 0 || ((size_t)size == file->acl_size && memcmp(acl, file->acl, (size_t)size) == 0))
        return;
    int error = apply_acl(file, acl, (size_t)size);
    if (error == 0)
        log_info("socket_acl", "path=%s entries=%zu like=%s", file->path,
                 size > 4 ? ((size_t)size - 4) / 8 : 0, file->rights.like);
    else
        log_warn("socket_acl_failed", "path=%s like=%s reason=\"%s\"", file->path,
                 file->rights.like, strerror(error));
}
