/* Error texts of the selection library: one printf into the caller's buffer, when there is one. */
#ifndef TOPKSEL_CPU_DETAIL_H
#define TOPKSEL_CPU_DETAIL_H

#include "topk_select.h"

/* Writes detail[TOPK_DETAIL_SIZE] unless detail is NULL, and returns `status`. */
enum topk_status topk_detail(char *detail, enum topk_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
