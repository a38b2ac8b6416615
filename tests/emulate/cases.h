/*
 * cases.h - numbered cases, every policy of every family in turn: what programs of random cases on
 * the model have in common. The same number and seed make the same case.
 */
#ifndef TOPKD_EMULATE_CASES_H
#define TOPKD_EMULATE_CASES_H

#include "topk_select.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CASES_POLICIES_MAX 64

/* Of --cases, --seconds, --first and --family, for the usage of a program. */
#define CASES_USAGE                                                                                \
    "  --cases N      so many cases from --first on (100), the same each time\n"                   \
    "  --seconds N    cases until so much time has passed\n"                                       \
    "  --first N      the number of the first case (0)\n"                                          \
    "  --family NAME  plain, row, tiles, split or cluster alone\n"                                 \
    "  --among NAME   of the cases of all families those of one, with their numbers\n"

/* A policy, how often it was tried, and what programs count of it. */
struct cases_policy {
    enum topk_family family;
    int32_t variant;
    uint32_t num_served, num_inexact;
    struct topk_routes routes; /* of all rows */
};

struct cases_policies {
    struct cases_policy list[CASES_POLICIES_MAX]; /* all that this device can run */
    size_t num;
};

/* What a program is made of. */
struct cases_program {
    const char *usage;
    bool (*option)(const char *name, const char *value); /* takes one of its own; NULL: none */
    bool (*run)(uint64_t number);                        /* a case: whether it held */
    void (*print)(const struct cases_policy *policy);    /* a line at the end */
    uint64_t failures_max;                               /* after so many it stops */
    int64_t case_max_s; /* computing; a case that takes longer ends the program */
};

extern struct cases_policies cases_policies;

/* Runs what the command line asks for; the program's exit code: 0 all cases held, 1 one did not, 2
 * usage, 3 one did not end or left its memory, which ends the program with a line that names it. */
int cases_main(const struct cases_program *program, int argc, char **argv);

/* Whether --among passes over the cases of this policy; a program's `run` then does nothing. */
bool cases_are_left_out(const struct cases_policy *policy);

/* The case at hand and the seed. */
const char *cases_where(void);

#endif
