/*
 * wire_internal.h - what the files of this folder share.
 */
#ifndef TOPKD_WIRE_INTERNAL_H
#define TOPKD_WIRE_INTERNAL_H

#include "topkd_wire.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Writes the text into detail[WIRE_DETAIL_SIZE] (may be NULL), cut to fit. Always false, so that a
 * check can end with `return wire_fail(...)`. */
bool wire_fail(char *detail, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Is this number in the table of kinds, or of statuses? */
bool wire_kind_known(uint32_t kind);
bool wire_status_known(uint32_t status);

/*
 * Every enum, text and count of the message within the limits of topkd_wire.h? The same check runs
 * before encoding and after decoding. False with the detail text otherwise. The kind must be known.
 */
bool wire_request_check(const struct wire_request *request, char *detail);
bool wire_reply_check(const struct wire_reply *reply, char *detail);

/* Internal state that must hold whatever a peer sends, in release builds too. Does not return. */
void wire_broken(const char *condition, const char *file, int line) __attribute__((noreturn));
#define WIRE_ASSERT(condition) ((condition) ? (void)0 : wire_broken(#condition, __FILE__, __LINE__))

#ifdef __cplusplus
}
#endif

#endif
