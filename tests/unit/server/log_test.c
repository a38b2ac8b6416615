/* Lines of the log as their readers see them: the standard error is a pipe here. */
#include "server/assert.h"
#include "server/log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <regex.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static int saved_stderr;
static char captured[65536];

/* From here to capture_end the standard error goes to a file that nobody else sees. */
static void capture_begin(void)
{
    char name[] = "/tmp/topkd-log-XXXXXX";
    int fd = mkstemp(name);
    assert_true(fd >= 0);
    unlink(name);
    fflush(stderr);
    saved_stderr = dup(STDERR_FILENO);
    assert_true(dup2(fd, STDERR_FILENO) >= 0);
    close(fd);
}

static const char *capture_end(void)
{
    ssize_t size = pread(STDERR_FILENO, captured, sizeof captured - 1, 0);
    dup2(saved_stderr, STDERR_FILENO);
    close(saved_stderr);
    assert_true(size >= 0);
    captured[size] = '\0';
    return captured;
}

static void expect_match(const char *text, const char *pattern)
{
    regex_t regex;
    assert_int_equal(regcomp(&regex, pattern, REG_EXTENDED | REG_NOSUB), 0);
    if (regexec(&regex, text, 0, NULL, 0) != 0)
        fail_msg("\"%s\" does not match %s", text, pattern);
    regfree(&regex);
}

static uint32_t count_lines(const char *text)
{
    uint32_t num = 0;
    for (; *text != '\0'; text++)
        num += *text == '\n';
    return num;
}

static void lg_01_line_for_people(void **state)
{
    (void)state;
    unsetenv("JOURNAL_STREAM");
    capture_begin();
    log_init("unit", LOG_LEVEL_INFO, 0);
    errno = ENOENT;
    log_info("session_open", "session=%d client=%s", 7, "x");
    assert_int_equal(errno, ENOENT);
    expect_match(capture_end(),
                 "^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\\.[0-9]{3}Z info "
                 "unit\\[[0-9]+\\] session_open session=7 client=x\n$");
}

static void lg_02_line_for_the_journal(void **state)
{
    (void)state;
    static const char *const lines[] = {"<3>unit e x=1\n", "<4>unit w x=2\n", "<6>unit i x=3\n",
                                        "<7>unit d x=4\n"};
    char stream[64], expected[256] = "";
    struct stat status;
    capture_begin();
    assert_int_equal(fstat(STDERR_FILENO, &status), 0);
    snprintf(stream, sizeof stream, "%llu:%llu", (unsigned long long)status.st_dev,
             (unsigned long long)status.st_ino);
    setenv("JOURNAL_STREAM", stream, 1);
    log_init("unit", LOG_LEVEL_DEBUG, 0);
    log_error("e", "x=1");
    log_warn("w", "x=2");
    log_info("i", "x=3");
    log_debug("d", "x=4");
    for (int i = 0; i < 4; i++)
        strcat(expected, lines[i]);
    assert_string_equal(capture_end(), expected);

    /* The variable of a parent whose standard error was redirected since does not count. */
    capture_begin();
    setenv("JOURNAL_STREAM", "1:1", 1);
    log_init("unit", LOG_LEVEL_DEBUG, 0);
    log_error("e", "x=1");
    expect_match(capture_end(), "Z error unit");
    unsetenv("JOURNAL_STREAM");
}

static void lg_03_levels(void **state)
{
    (void)state;
    for (int level = LOG_LEVEL_ERROR; level <= LOG_LEVEL_DEBUG; level++) {
        capture_begin();
        log_init("unit", (enum log_level)level, 0);
        log_error("event", "x=1");
        log_warn("event", "x=1");
        log_info("event", "x=1");
        log_debug("event", "x=1");
        assert_int_equal(count_lines(capture_end()), level + 1);
    }
}

static void lg_04_one_line_whatever_comes(void **state)
{
    (void)state;
    char big[4096];
    memset(big, 'y', sizeof big);
    big[sizeof big - 1] = '\0';
    capture_begin();
    log_init("unit", LOG_LEVEL_INFO, 0);
    log_info("event", "name=%s", "a\nb\rc\x1b[31m\x7f");
    expect_match(capture_end(), "name=a\\?b\\?c\\?\\[31m\\?\n$");
    for (size_t size = 880; size < sizeof big; size += size < 1100 ? 1 : 97) {
        capture_begin();
        log_info("event", "name=%.*s", (int)size, big);
        const char *line = capture_end();
        assert_int_equal(count_lines(line), 1);
        assert_true(strlen(line) <= LOG_LINE_SIZE);
        if (size > 1000)
            expect_match(line, "yyy\\.\\.\\.\n$");
    }
}

static void lg_05_quoting(void **state)
{
    (void)state;
    static const struct {
        const char *text, *quoted;
    } cases[] = {
        {"", "\"\""},
        {"plain", "\"plain\""},
        {"a \"b\" \\c", "\"a \\\"b\\\" \\\\c\""},
        {"x\" uid=0 y=\"", "\"x\\\" uid=0 y=\\\"\""},
        {"\n\x01\x7f", "\"\\x0a\\x01\\x7f\""},
        {"gr\xc3\xbc\xc3\x9f", "\"gr\xc3\xbc\xc3\x9f\""},
    };
    char out[LOG_QUOTE_SIZE], big[1000];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_string_equal(log_quote(out, cases[i].text), cases[i].quoted);
    for (int kind = 0; kind < 3; kind++) {
        memset(big, "z\"\x02"[kind], sizeof big);
        for (size_t size = 0; size < sizeof big; size++) {
            memset(out, 'U', sizeof out);
            big[size] = '\0';
            log_quote(out, big);
            size_t used = strnlen(out, sizeof out);
            assert_true(used >= 2 && used < sizeof out);
            assert_int_equal(out[used - 1], '"');
            big[size] = "z\"\x02"[kind];
        }
    }
}

static void log_at_one_site(int i)
{
    log_warn("flood", "i=%d", i);
}

static void lg_06_rate_limit_of_a_site(void **state)
{
    (void)state;
    capture_begin();
    log_init("unit", LOG_LEVEL_INFO, 5);
    for (int i = 0; i < 1000; i++)
        log_at_one_site(i);
    log_warn("another_site", "x=1"); /* is not affected */
    const char *text = capture_end();
    /* A second may have begun in between, and then another five. */
    assert_in_range(count_lines(text), 6, 11);
    assert_non_null(strstr(text, "another_site"));
    usleep(1100 * 1000);
    capture_begin();
    log_at_one_site(1000);
    expect_match(capture_end(), "flood i=1000 suppressed=99[05]\n$");
    capture_begin();
    log_configure(LOG_LEVEL_INFO, 0);
    for (int i = 0; i < 100; i++)
        log_at_one_site(i);
    assert_int_equal(count_lines(capture_end()), 100);
}

static void *log_much(void *argument)
{
    (void)argument;
    for (int i = 0; i < 200; i++)
        log_at_one_site(i);
    return NULL;
}

static void lg_07_threads(void **state)
{
    (void)state;
    pthread_t threads[4];
    capture_begin();
    log_init("unit", LOG_LEVEL_INFO, 0);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, log_much, NULL), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    /* Files are written at one offset by all threads of a process, so that no line is lost. */
    const char *text = capture_end();
    assert_int_equal(count_lines(text), 800);
}

static void lg_08_failed_assertion_speaks_and_aborts(void **state)
{
    (void)state;
    int status = 0;
    capture_begin();
    log_init("unit", LOG_LEVEL_INFO, 0);
    pid_t pid = fork();
    if (pid == 0) {
        signal(SIGABRT, SIG_DFL);
        topkd_assert(1 == 1);
        topkd_assert(1 == 2);
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGABRT);
    const char *text = capture_end();
    assert_int_equal(count_lines(text), 1);
    expect_match(text, "assertion_failed expression=\"1 == 2\" at=.*log_test.c:[0-9]+ "
                       "function=lg_08_failed_assertion_speaks_and_aborts\n$");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lg_01_line_for_people),
        cmocka_unit_test(lg_02_line_for_the_journal),
        cmocka_unit_test(lg_03_levels),
        cmocka_unit_test(lg_04_one_line_whatever_comes),
        cmocka_unit_test(lg_05_quoting),
        cmocka_unit_test(lg_06_rate_limit_of_a_site),
        cmocka_unit_test(lg_07_threads),
        cmocka_unit_test(lg_08_failed_assertion_speaks_and_aborts),
    };
    return cmocka_run_group_tests_name("log", tests, NULL, NULL);
}
