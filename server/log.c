#include "log.h"

#include "assert.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* Written once by log_init, before other threads exist. */
static const char *log_role = "topkd";
static bool log_to_journal;

/* Atomic: changed by a reload while other threads log. */
static int log_level_now = LOG_LEVEL_INFO;
static uint32_t log_rate_per_s;

static const char *const log_level_names[] = {"error", "warn", "info", "debug"};
static const char log_journal_priorities[] = {'3', '4', '6', '7'}; /* of syslog(3) */

/* systemd puts "device:inode" of the journal's stream there; it counts only when the standard error
 * is still that stream. */
static bool is_journal(void)
{
    const char *stream = getenv("JOURNAL_STREAM");
    struct stat status;
    unsigned long long device, inode;
    if (stream == NULL || sscanf(stream, "%llu:%llu", &device, &inode) != 2)
        return false;
    return fstat(STDERR_FILENO, &status) == 0 && status.st_dev == device && status.st_ino == inode;
}

void log_init(const char *role, enum log_level level, uint32_t rate_per_s)
{
    log_role = role;
    log_to_journal = is_journal();
    log_configure(level, rate_per_s);
}

void log_configure(enum log_level level, uint32_t rate_per_s)
{
    __atomic_store_n(&log_level_now, (int)level, __ATOMIC_RELAXED);
    __atomic_store_n(&log_rate_per_s, rate_per_s, __ATOMIC_RELAXED);
}

bool log_enabled(enum log_level level)
{
    return (int)level <= __atomic_load_n(&log_level_now, __ATOMIC_RELAXED);
}

const char *log_level_name(enum log_level level)
{
    return log_level_names[level];
}

/* Counts the line at its site. False: beyond the rate. At the change of a second two threads may
 * both reset the count; a few lines more are no harm. */
static bool site_admit(struct log_site *site, uint32_t *num_suppressed_p)
{
    uint32_t rate = __atomic_load_n(&log_rate_per_s, __ATOMIC_RELAXED);
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    uint64_t now_ms = (uint64_t)now.tv_sec * 1000u + (uint64_t)now.tv_nsec / 1000000u;
    uint64_t window_ms = __atomic_load_n(&site->window_ms, __ATOMIC_RELAXED);
    if (now_ms - window_ms >= 1000u &&
        __atomic_compare_exchange_n(&site->window_ms, &window_ms, now_ms, false, __ATOMIC_RELAXED,
                                    __ATOMIC_RELAXED))
        __atomic_store_n(&site->num_lines, 0u, __ATOMIC_RELAXED);
    uint32_t num_lines = __atomic_fetch_add(&site->num_lines, 1u, __ATOMIC_RELAXED);
    if (rate != 0 && num_lines >= rate) {
        __atomic_fetch_add(&site->num_suppressed, 1u, __ATOMIC_RELAXED);
        return false;
    }
    *num_suppressed_p = __atomic_exchange_n(&site->num_suppressed, 0u, __ATOMIC_RELAXED);
    return true;
}

/* A line being built; what does not fit is dropped and marked. */
struct line {
    char text[LOG_LINE_SIZE];
    size_t used; /* bytes before the terminator */
    bool cut;
};

static void line_append_v(struct line *line, const char *format, va_list args)
{
    size_t room = sizeof line->text - line->used;
    int wanted = vsnprintf(line->text + line->used, room, format, args);
    if (wanted < 0)
        return;
    line->cut = line->cut || (size_t)wanted >= room;
    line->used += (size_t)wanted >= room ? room - 1 : (size_t)wanted;
}

__attribute__((format(printf, 2, 3))) static void line_append(struct line *line, const char *format,
                                                              ...)
{
    va_list args;
    va_start(args, format);
    line_append_v(line, format, args);
    va_end(args);
}

static void line_begin(struct line *line, enum log_level level)
{
    if (log_to_journal) {
        line_append(line, "<%c>%s ", log_journal_priorities[level], log_role);
        return;
    }
    struct timespec now;
    struct tm utc;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    line->used = strftime(line->text, sizeof line->text, "%Y-%m-%dT%H:%M:%S", &utc);
    line_append(line, ".%03ldZ %s %s[%d] ", now.tv_nsec / 1000000, log_level_names[level], log_role,
                (int)getpid());
}

static void line_write(struct line *line)
{
    static const char mark[] = "...";
    if (line->used > sizeof line->text - 2) /* room for the newline */
        line->used = sizeof line->text - 2;
    if (line->cut)
        memcpy(line->text + line->used - (sizeof mark - 1), mark, sizeof mark - 1);
    for (size_t i = 0; i < line->used; i++) {
        unsigned char c = (unsigned char)line->text[i];
        if (c < 0x20 || c == 0x7f)
            line->text[i] = '?';
    }
    line->text[line->used++] = '\n';
    size_t done = 0;
    while (done < line->used) {
        ssize_t n = write(STDERR_FILENO, line->text + done, line->used - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return; /* nobody reads the log: there is no better place to say so */
        done += (size_t)n;
    }
}

void log_write(struct log_site *site, enum log_level level, const char *event, const char *format,
               ...)
{
    int saved_errno = errno;
    uint32_t num_suppressed = 0;
    if (site_admit(site, &num_suppressed)) {
        struct line line = {.used = 0};
        line_begin(&line, level);
        line_append(&line, "%s ", event);
        va_list args;
        va_start(args, format);
        line_append_v(&line, format, args);
        va_end(args);
        if (num_suppressed != 0)
            line_append(&line, " suppressed=%u", num_suppressed);
        line_write(&line);
    }
    errno = saved_errno;
}

const char *log_quote(char out[LOG_QUOTE_SIZE], const char *text)
{
    static const char digits[] = "0123456789abcdef";
    size_t used = 0;
    out[used++] = '"';
    for (const char *p = text; *p != '\0'; p++) {
        unsigned char c = (unsigned char)*p;
        if (used + 4 + 2 > LOG_QUOTE_SIZE) /* the longest escape, the quote and the NUL */
            break;
        if (c == '"' || c == '\\') {
            out[used++] = '\\';
            out[used++] = (char)c;
        } else if (c < 0x20 || c == 0x7f) {
            out[used++] = '\\';
            out[used++] = 'x';
            out[used++] = digits[c >> 4];
            out[used++] = digits[c & 15];
        } else {
            out[used++] = (char)c;
        }
    }
    out[used++] = '"';
    out[used] = '\0';
    return out;
}

_Noreturn void assert_failed(const char *expression, const char *file, int line,
                             const char *function)
{
    static struct log_site site;
    char text[LOG_QUOTE_SIZE];
    log_write(&site, LOG_LEVEL_ERROR, "assertion_failed", "expression=%s at=%s:%d function=%s",
              log_quote(text, expression), file, line, function);
    abort();
}
