/* cases.c - see cases.h. */
#include "cases.h"

#include "emulate.h"
#include "inputs.h"
#include "select_gpu.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

struct cases_policies cases_policies;
static char where[96];
static const char *among; /* NULL: all */

const char *cases_where(void)
{
    return where;
}

bool cases_are_left_out(const struct cases_policy *policy)
{
    return among != NULL && strcmp(among, topk_family_name(policy->family)) != 0;
}

/* Says where and what, and ends the program with 3; from handlers of signals. */
static void die(const char *what)
{
    static const char begin[] = "emulate: ";
    if (write(STDOUT_FILENO, begin, sizeof(begin) - 1) < 0 ||
        write(STDOUT_FILENO, where, strlen(where)) < 0 ||
        write(STDOUT_FILENO, what, strlen(what)) < 0) {
        _exit(2);
    }
    _exit(3);
}

/* A kernel that never ends is an error like any other. */
static void on_time(int signal)
{
    (void)signal;
    die(": the case does not end\n");
}

#ifndef __SANITIZE_ADDRESS__ /* which says where */
static void on_fault(int signal)
{
    (void)signal;
    die(": memory out of range is read or written\n");
}
#endif

static void find_policies(const char *only)
{
    static const int32_t widths[] = {1024, 16384, 32768, 200000};
    for (int family = 0; family < TOPK_FAMILY_COUNT; family++) {
        if (only != NULL && strcmp(only, topk_family_name((enum topk_family)family)) != 0) {
            continue;
        }
        for (int32_t variant = 0; variant < GPU_VARIANTS_MAX; variant++) {
            bool serves = false;
            for (size_t i = 0; i < sizeof(widths) / sizeof(widths[0]) && !serves; i++) {
                const struct gpu_spec spec = {.k = 64,
                                              .inputs = {.num_rows = 1, .width = widths[i]}};
                serves = gpu_serves(&spec, (enum topk_family)family, variant);
            }
            if (serves) {
                cases_policies.list[cases_policies.num++] =
                    (struct cases_policy){.family = (enum topk_family)family, .variant = variant};
            }
        }
    }
}

static bool number_of(const char *text, uint64_t *number_p)
{
    char *end;
    *number_p = strtoull(text, &end, 10);
    return end != text && *end == '\0';
}

/* The case, in every report, and the time that it may take. */
static void announce(const struct cases_program *program, uint64_t number)
{
    const struct itimerval limit = {.it_value = {.tv_sec = program->case_max_s}};
    snprintf(where, sizeof(where), "case %llu, seed %llu", (unsigned long long)number,
             (unsigned long long)inputs_run_seed());
    emulate_case(number);
    setitimer(ITIMER_VIRTUAL, &limit, NULL);
}

static int run(const struct cases_program *program, uint64_t cases, uint64_t seconds,
               uint64_t first)
{
    uint64_t number = first, num_failed = 0;
    const time_t start = time(NULL);
    signal(SIGVTALRM, on_time);
#ifndef __SANITIZE_ADDRESS__
    signal(SIGSEGV, on_fault);
    signal(SIGBUS, on_fault);
#endif
    while (num_failed < program->failures_max &&
           (seconds > 0 ? time(NULL) - start < (time_t)seconds : number - first < cases)) {
        announce(program, number);
        num_failed += program->run(number++) ? 0 : 1;
    }
    for (size_t i = 0; i < cases_policies.num; i++) {
        program->print(&cases_policies.list[i]);
    }
    printf("%llu cases, %llu failed\n", (unsigned long long)(number - first),
           (unsigned long long)num_failed);
    return num_failed == 0 && number > first ? 0 : 1;
}

int cases_main(const struct cases_program *program, int argc, char **argv)
{
    const char *only = NULL;
    uint64_t cases = 100, seconds = 0, first = 0;
    for (int i = 1; i < argc; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        bool good = (strcmp(argv[i], "--cases") == 0 && number_of(value, &cases)) ||
                    (strcmp(argv[i], "--seconds") == 0 && number_of(value, &seconds)) ||
                    (strcmp(argv[i], "--first") == 0 && number_of(value, &first)) ||
                    (program->option != NULL && program->option(argv[i], value));
        if (strcmp(argv[i], "--family") == 0) {
            only = value;
            good = true;
        } else if (strcmp(argv[i], "--among") == 0) {
            among = value;
            good = true;
        }
        if (!good) {
            const bool help = strcmp(argv[i], "--help") == 0;
            printf("%s", program->usage);
            if (!help) {
                printf("'%s %s' is no option\n", argv[i], value);
            }
            return help ? 0 : 2;
        }
    }
    find_policies(only);
    if (cases_policies.num == 0) {
        printf("no policy of family '%s' on this device\n", only != NULL ? only : "any");
        return 2;
    }
    printf("seed %llu\n", (unsigned long long)inputs_run_seed());
    fflush(stdout);
    return run(program, cases, seconds, first);
}
