#include "peer.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>

void peer_read(int fd, struct peer *peer_p, struct peer_groups *groups_p)
{
    struct ucred credentials;
    socklen_t size = sizeof(credentials);
    *peer_p = (struct peer){.uid = -1, .gid = -1, .pid = -1};
    *groups_p = (struct peer_groups){.num_ids = 0};
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0)
        return;
    *peer_p = (struct peer){.uid = credentials.uid, .gid = credentials.gid, .pid = credentials.pid};
    size = 0;
    /* Without room the kernel says how much it needs. */
    if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, NULL, &size) == 0 || errno != ERANGE)
        return;
    uint32_t *ids = malloc(size);
    if (ids == NULL || getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, ids, &size) != 0) {
        free(ids);
        return;
    }
    *groups_p = (struct peer_groups){.num_ids = size / (uint32_t)sizeof(*ids), .ids = ids};
}

void peer_groups_free(struct peer_groups *groups)
{
    free(groups->ids);
    *groups = (struct peer_groups){.num_ids = 0};
}
