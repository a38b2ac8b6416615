/* The command line of topkd. */
#include "server/log.h"
#include "server/options.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define ARGS_MAX 10

static struct options options;
static char error[OPTIONS_ERROR_SIZE];

/* Splits "a b c" after the program's name. */
static bool parse(const char *line)
{
    static char text[512];
    static char *argv[ARGS_MAX + 1];
    int argc = 0;
    snprintf(text, sizeof text, "topkd %s", line);
    for (char *word = strtok(text, " "); word != NULL && argc < ARGS_MAX; word = strtok(NULL, " "))
        argv[argc++] = word;
    argv[argc] = NULL;
    memset(&options, 0, sizeof options);
    memset(error, 0, sizeof error);
    return options_parse(argc, argv, &options, error);
}

static void op_01_accepted(void **state)
{
    (void)state;
    static const struct {
        const char *line;
        enum options_mode mode;
    } cases[] = {
        {"", OPTIONS_RUN},
        {"--check-config --config f", OPTIONS_CHECK_CONFIG},
        {"--config=f --check-config --json", OPTIONS_CHECK_CONFIG},
        {"--print-config --device cpu", OPTIONS_PRINT_CONFIG},
        {"--version --json", OPTIONS_VERSION},
        {"--help", OPTIONS_HELP},
        {"--worker cpu 0 1 p u", OPTIONS_WORKER},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (!parse(cases[i].line))
            fail_msg("%s: %s", cases[i].line, error);
        assert_int_equal(options.mode, cases[i].mode);
    }
    assert_int_equal(options.worker_argc, 5);
    assert_string_equal(options.worker_argv[4], "u");
    assert_true(parse("--config f --socket-dir /d --device cpu --log-level debug "
                      "--allow-shared-pid1"));
    assert_string_equal(options.config, "f");
    assert_string_equal(options.socket_dir, "/d");
    assert_string_equal(options.device, "cpu");
    assert_string_equal(options.log_level, "debug");
    assert_true(options.allow_shared_pid1);
}

static void op_02_refused(void **state)
{
    (void)state;
    static const struct {
        const char *line, *error;
    } cases[] = {
        {"--nonsense", "--nonsense: unknown option; see --help"},
        {"--config", "--config: an argument is missing, or one is too many; see --help"},
        {"--help=yes", "--help=yes: an argument is missing, or one is too many; see --help"},
        {"-x", "-x: unknown option; see --help"},
        {"start", "start: unexpected argument; every option begins with --, see --help"},
        {"--check-config", "--check-config needs --config FILE"},
        {"--json", "--json goes with --check-config or --version"},
        {"--version --help", "--check-config, --print-config, --version and --help exclude each "
                             "other; give one"},
        {"--device cpu --worker", "--worker: unknown option; see --help"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (parse(cases[i].line))
            fail_msg("accepted: %s", cases[i].line);
        assert_string_equal(error, cases[i].error);
    }
}

/* The command line wins over the file, and is judged as strictly. */
static void op_03_settings(void **state)
{
    (void)state;
    static struct settings settings;
    static struct settings_report report;
    char name[] = "/tmp/topkd-options-XXXXXX";
    int fd = mkstemp(name);
    static const char text[] = "log: {level: warn}\nsocket: {directory: /a}\nlimits: {lanes: 7}\n";
    assert_int_equal(write(fd, text, sizeof text - 1), sizeof text - 1);
    close(fd);

    options = (struct options){.config = name};
    assert_int_equal(options_settings(&options, &settings, &report), TOPKD_OK);
    assert_int_equal(settings.log.level, LOG_LEVEL_WARN);
    assert_string_equal(settings.devices[0].device, "auto");

    options.socket_dir = "/b";
    options.log_level = "debug";
    options.device = "cpu";
    assert_int_equal(options_settings(&options, &settings, &report), TOPKD_OK);
    assert_string_equal(settings.socket.directory, "/b");
    assert_int_equal(settings.log.level, LOG_LEVEL_DEBUG);
    assert_string_equal(settings.devices[0].device, "cpu");
    assert_int_equal(settings.limits.lanes, 7);

    options.socket_dir = "relative";
    assert_int_equal(options_settings(&options, &settings, &report), TOPKD_E_INVALID);
    assert_string_equal(report.lines[0],
                        "--socket-dir: relative is neither auto nor an absolute path");
    assert_string_equal(settings.socket.directory, "/b"); /* untouched after an error */
    unlink(name);
    memset(&report, 0, sizeof report);
    assert_int_equal(options_settings(&options, &settings, &report), TOPKD_E_SYSTEM);
    assert_int_equal(report.num_errors, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(op_01_accepted),
        cmocka_unit_test(op_02_refused),
        cmocka_unit_test(op_03_settings),
    };
    return cmocka_run_group_tests_name("options", tests, NULL, NULL);
}
