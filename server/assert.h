/*
 * assert.h - assertions on our own state, in release builds too.
 *
 * A failed one is a bug in this program: it prints the place and aborts, and the supervisor starts
 * a new worker. Input of clients is never asserted, it is answered.
 */
#ifndef TOPKD_SERVER_ASSERT_H
#define TOPKD_SERVER_ASSERT_H

/* Writes one line to the log and calls abort(). In log.c. */
_Noreturn void assert_failed(const char *expression, const char *file, int line,
                             const char *function);

#define topkd_assert(expression)                                                                   \
    ((expression) ? (void)0 : assert_failed(#expression, __FILE__, __LINE__, __func__))

#endif
