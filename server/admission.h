/*
 * admission.h - whether one more request may enter. Pure.
 *
 * Two bounds: a session's own, and the worker's. The last places of the worker belong to sessions
 * that have nothing in flight, so that no flood can shut another client out.
 */
#ifndef TOPKD_SERVER_ADMISSION_H
#define TOPKD_SERVER_ADMISSION_H

#include "topkd_status.h"

#include <stdbool.h>
#include <stdint.h>

struct admission {
    uint32_t places_max;   /* of the worker: limits.queue_max + limits.lanes */
    uint32_t num_admitted; /* requests in flight, all sessions */
    uint32_t num_idle;     /* sessions with nothing in flight */
    uint32_t outstanding_max;
    uint32_t num_outstanding; /* of the asking session */
};

/* OK, or BUSY with a text in detail[WIRE_DETAIL_SIZE]. */
enum topkd_status admission_check(const struct admission *admission, char *detail);

/*
 * A rate averaged over a second: per_s at once after a quiet second, then evenly. State is zero at
 * first; the clock is the caller's (monotonic).
 */
struct admission_rate {
    uint64_t due_ns; /* when everything taken so far would be due at the even rate */
};

/* Takes one; false when the rate is exceeded (nothing is taken). per_s >= 1. */
bool admission_rate_take(struct admission_rate *rate, uint32_t per_s, uint64_t now_ns);

#endif
