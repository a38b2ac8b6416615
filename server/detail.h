/*
 * detail.h - the text that goes with a status: what happened, the value, the limit, what to do.
 */
#ifndef TOPKD_SERVER_DETAIL_H
#define TOPKD_SERVER_DETAIL_H

#include "topkd_status.h"
#include "topkd_wire.h"

/*
 * Writes the text to detail[WIRE_DETAIL_SIZE] (cut to fit; NULL is allowed) and returns the status,
 * so that the first to detect an error can say `return detail_set(...)`. Any thread.
 */
enum topkd_status detail_set(char *detail, enum topkd_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
