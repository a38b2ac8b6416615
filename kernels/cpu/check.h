/* The library's own assertion: on internal state only, and in release builds too. */
#ifndef TOPKSEL_CPU_CHECK_H
#define TOPKSEL_CPU_CHECK_H

#include <stdio.h>
#include <stdlib.h>

#define TOPK_CHECK(condition)                                                                      \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "topksel: %s:%d: internal state is wrong: %s\n", __FILE__, __LINE__,   \
                    #condition);                                                                   \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

#endif
