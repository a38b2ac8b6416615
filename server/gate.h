/*
 * gate.h - who may use a worker, asked by every socket of it: access.uids and access.gids of the
 * settings in force. Behind a lock, because the side socket has a thread of its own.
 */
#ifndef TOPKD_SERVER_GATE_H
#define TOPKD_SERVER_GATE_H

#include "peer.h"
#include "settings.h"

#include <pthread.h>
#include <stdbool.h>

struct gate {
    pthread_mutex_t mutex; /* of what follows */
    struct settings_access access;
    uid_t uid_self;
};

/* The rule itself: false for who is on no list, and for who the kernel did not name. */
bool gate_allows(const struct settings_access *access, uid_t uid_self, const struct peer *peer,
                 const struct peer_groups *groups);

void gate_init(struct gate *gate, const struct settings_access *access, uid_t uid_self);
void gate_fini(struct gate *gate);

/* A reload; connections that come from now on are judged by it. */
void gate_set(struct gate *gate, const struct settings_access *access);

/* The rule by the lists of now; false with a text in detail[WIRE_DETAIL_SIZE]. Any thread. */
bool gate_admits(struct gate *gate, const struct peer *peer, const struct peer_groups *groups,
                 char *detail);

#endif
