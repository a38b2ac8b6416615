/*
 * socket_file.h - who may connect to a socket file, as far as the kernel judges: by owner, group,
 * mode and POSIX access list. All sockets of a daemon carry what topkd.sock carries, so that an
 * operator says it in one place.
 */
#ifndef TOPKD_SERVER_SOCKET_FILE_H
#define TOPKD_SERVER_SOCKET_FILE_H

#include "topkd_status.h"

#include <stddef.h>
#include <stdint.h>

#define SOCKET_FILE_ACL_MAX 2048u /* choice: bytes of an access list; 8 an entry */

struct socket_rights {
    uint32_t mode;
    int64_t gid;      /* -1: leave it */
    const char *like; /* path of the socket whose access list counts, or NULL; kept by pointer */
};

struct socket_file {
    const char *path; /* the caller's, while it is used */
    struct socket_rights rights;
    size_t acl_size;                  /* of the list taken over; 0: there was none */
    uint8_t acl[SOCKET_FILE_ACL_MAX]; /* in the kernel's form */
};

/* Sets the rights of a socket that is bound and does not listen yet. SYSTEM with a text in
 * detail[WIRE_DETAIL_SIZE]. */
enum topkd_status socket_file_init(struct socket_file *file, const char *path,
                                   const struct socket_rights *rights, char *detail);

/* Takes a list over that has changed meanwhile, and gives it up again when it went. Does not block;
 * a failure is logged. */
void socket_file_follow(struct socket_file *file);

#endif
