/*
 * fault.h - the text beside a status.
 *
 * Inside the library a function that can fail takes `char *detail` (WIRE_DETAIL_SIZE bytes, never
 * NULL) and writes it only when it fails. A public function hands in fault_detail(), the buffer of
 * its thread that topkd_detail() shows.
 */
#ifndef TOPKD_CLIENT_FAULT_H
#define TOPKD_CLIENT_FAULT_H

#include "topkd_status.h"
#include "topkd_wire.h"

/* Writes the text and returns the status. `format`'s arguments must not point into `detail`. */
enum topkd_status fault(char *detail, enum topkd_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* TOPKD_E_SYSTEM (NO_MEMORY for ENOMEM) with the text "<what>: <strerror(error)>". */
enum topkd_status fault_system(char *detail, const char *what, int error);

/* The buffer of the calling thread. */
char *fault_detail(void);

#endif
