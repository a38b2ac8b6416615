/*
 * fuzz_check.h - what a fuzz target demands; also when built without assertions.
 */
#ifndef TOPKD_TESTS_FUZZ_CHECK_H
#define TOPKD_TESTS_FUZZ_CHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The entry point of a target: libFuzzer calls it, or replay.c with the files of a corpus. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Ends the program with the condition and a text in the style of printf. */
#define FUZZ_CHECK(condition, ...)                                                                 \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: not true: %s: ", __FILE__, __LINE__, #condition);              \
            fprintf(stderr, __VA_ARGS__);                                                          \
            fputc('\n', stderr);                                                                   \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

/* Are all bytes of an object this value, padding included? Compared with itself one byte further: a
 * loop over the bytes, with the fuzzer's marks in it, took most of the time of a search. */
static inline bool fuzz_is_all(const void *object, size_t size, uint8_t value)
{
    const uint8_t *bytes = object;
    return bytes[0] == value && memcmp(bytes, bytes + 1, size - 1) == 0;
}

#endif
