/*
 * nng_repair.h - keeps NNG's listeners alive; see nng_repair.c for the reason.
 */
#ifndef TOPKD_SERVER_NNG_REPAIR_H
#define TOPKD_SERVER_NNG_REPAIR_H

#include <stdbool.h>

/* Whether NNG's calls go through the repair: a matter of linking, the same in every run of a
 * program. A program that opens an endpoint checks it once. */
bool nng_repair_is_active(void);

#endif
