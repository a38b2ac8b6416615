/* Shared by the reader and the file side of npy only. */
#ifndef TOPKCTL_NPY_DETAIL_H
#define TOPKCTL_NPY_DETAIL_H

#include "npy.h"

/* Writes detail[NPY_DETAIL_SIZE] unless it is NULL, and returns `status`. */
enum npy_status npy_fail(char *detail, enum npy_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
