#include "gate.h"

#include "detail.h"

#include <inttypes.h>

void gate_init(struct gate *gate, const struct settings_access *access, uid_t uid_self)
{
    pthread_mutex_init(&gate->mutex, NULL);
    gate->access = *access;
    gate->uid_self = uid_self;
}

void gate_fini(struct gate *gate)
{
    pthread_mutex_destroy(&gate->mutex);
}

void gate_set(struct gate *gate, const struct settings_access *access)
{
    pthread_mutex_lock(&gate->mutex);
    gate->access = *access;
    pthread_mutex_unlock(&gate->mutex);
}

bool gate_allows(const struct settings_access *access, uid_t uid_self, const struct peer *peer,
                 const struct peer_groups *groups)
{
    return peer->uid >= 0 && peer->gid >= 0 &&
           settings_allow(access, uid_self, (uid_t)peer->uid, (gid_t)peer->gid, groups);
}

bool gate_admits(struct gate *gate, const struct peer *peer, const struct peer_groups *groups,
                 char *detail)
{
    pthread_mutex_lock(&gate->mutex);
    bool admits = gate_allows(&gate->access, gate->uid_self, peer, groups);
    pthread_mutex_unlock(&gate->mutex);
    if (!admits)
        (void)detail_set(detail, TOPKD_E_NOT_PERMITTED,
                         "uid %" PRId64 " gid %" PRId64
                         " may not use the daemon: see access.uids and access.gids",
                         peer->uid, peer->gid);
    return admits;
}
