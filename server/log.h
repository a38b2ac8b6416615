/*
 * log.h - one line a fact on the standard error.
 *
 *     log_info("session_open", "session=%llu uid=%u client=%s", id, uid, log_quote(text, name));
 *
 * writes  2026-01-31T12:00:00.123Z info worker[4711] session_open session=7 uid=1000 client="a b"
 * or, when the standard error is the journal (JOURNAL_STREAM names it), "<6>worker session_open
 * session=7 ...", since the journal keeps time, level and pid itself. The event is a constant word
 * with underscores, the rest key=value; foreign text goes through log_quote. Control characters
 * that slip in are replaced, so that a line is always one line. A line is one write of at most
 * LOG_LINE_SIZE bytes.
 *
 * Each log_... in the source is a site with its own rate limit: what goes beyond is counted and
 * reported as suppressed=N with the site's next line. Any thread; never blocks on a lock; does not
 * allocate; leaves errno as it was. Not from signal handlers.
 */
#ifndef TOPKD_SERVER_LOG_H
#define TOPKD_SERVER_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LOG_LINE_SIZE 1024u /* choice: below PIPE_BUF, so that lines of processes do not mix */
#define LOG_QUOTE_SIZE 280u /* choice: WIRE_DETAIL_SIZE with its quotes and some escapes */

enum log_level { LOG_LEVEL_ERROR = 0, LOG_LEVEL_WARN = 1, LOG_LEVEL_INFO = 2, LOG_LEVEL_DEBUG = 3 };

/* A place in the source that logs; static storage, zero at first. */
struct log_site {
    uint64_t window_ms;      /* start of the present second, monotonic */
    uint32_t num_lines;      /* written in it */
    uint32_t num_suppressed; /* since the last written line */
};

/* Before the first line: who is speaking ("supervisor", "worker", kept by pointer). Finds out
 * whether the standard error is the journal. */
void log_init(const char *role, enum log_level level, uint32_t rate_per_s);

/* Changes level and rate (0: no limit); any thread. */
void log_configure(enum log_level level, uint32_t rate_per_s);

bool log_enabled(enum log_level level);
const char *log_level_name(enum log_level level);

void log_write(struct log_site *site, enum log_level level, const char *event, const char *format,
               ...) __attribute__((format(printf, 4, 5)));

/* text in double quotes with ", \ and control characters escaped, cut to fit; returns out. */
const char *log_quote(char out[LOG_QUOTE_SIZE], const char *text);

#define log_at(level, event, ...)                                                                  \
    do {                                                                                           \
        static struct log_site log_site_;                                                          \
        if (log_enabled(level))                                                                    \
            log_write(&log_site_, level, event, __VA_ARGS__);                                      \
    } while (0)
#define log_error(event, ...) log_at(LOG_LEVEL_ERROR, event, __VA_ARGS__)
#define log_warn(event, ...) log_at(LOG_LEVEL_WARN, event, __VA_ARGS__)
#define log_info(event, ...) log_at(LOG_LEVEL_INFO, event, __VA_ARGS__)
#define log_debug(event, ...) log_at(LOG_LEVEL_DEBUG, event, __VA_ARGS__)

#endif
