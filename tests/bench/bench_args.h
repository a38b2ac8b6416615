/* bench_args.h - arguments that are given by their place: help, how many, numbers within limits. */
#ifndef TOPKD_BENCH_ARGS_H
#define TOPKD_BENCH_ARGS_H

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BENCH_USAGE = 2 }; /* exit code of a wrong command line */

/* Prints `usage` and ends the program: with 0 when help is asked for, otherwise with BENCH_USAGE
 * unless there are min to max arguments. */
static inline void bench_args(int argc, char **argv, int min, int max, const char *usage)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            fputs(usage, stdout);
            exit(0);
        }
    }
    if (argc - 1 < min || argc - 1 > max || (argc > 1 && argv[1][0] == '-')) {
        fputs(usage, stderr);
        exit(BENCH_USAGE);
    }
}

/* `text` as a number from min to max; anything else ends the program. */
static inline double bench_number_of(const char *name, const char *text, double min, double max)
{
    char *end = NULL;
    errno = 0;
    double value = strtod(text, &end);
    if (errno != 0 || end == text || *end != '\0' || !(value >= min && value <= max)) {
        fprintf(stderr, "%s is \"%s\": give a number from %.10g to %.10g, or see --help\n", name,
                text, min, max);
        exit(BENCH_USAGE);
    }
    return value;
}

static inline int bench_integer_of(const char *name, const char *text, int min, int max)
{
    double value = bench_number_of(name, text, min, max);
    if (value != (double)(int)value) {
        fprintf(stderr, "%s is \"%s\": give a whole number\n", name, text);
        exit(BENCH_USAGE);
    }
    return (int)value;
}

/* Argument `index`, or `otherwise` when there are not so many. */
static inline double bench_number(int argc, char **argv, int index, const char *name, double min,
                                  double max, double otherwise)
{
    return index < argc ? bench_number_of(name, argv[index], min, max) : otherwise;
}

static inline int bench_integer(int argc, char **argv, int index, const char *name, int min,
                                int max, int otherwise)
{
    return index < argc ? bench_integer_of(name, argv[index], min, max) : otherwise;
}

#endif
