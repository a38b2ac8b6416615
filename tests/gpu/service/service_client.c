/* service_client.c - a client process of the service test: usage: service_client CASE [URL [ROUNDS
 * [SEED [DEVICE]]]]. Prints "ok CASE" or "FAIL CASE ...". */
#include "service_client.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
    static const struct {
        const char *name, *text;
        void (*run)(const struct service_options *options);
    } cases[] = {
#define SERVICE_ROW(name, text) {#name, text, service_case_##name},
        SERVICE_CASE_TABLE(SERVICE_ROW)
#undef SERVICE_ROW
    };
    struct service_options options = {
        .url = argc > 2 ? argv[2] : NULL,
        .rounds = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : 0,
        .seed = argc > 4 ? strtoull(argv[4], NULL, 10) : 1,
        .device = argc > 5 ? argv[5] : NULL,
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        if (argc > 1 && strcmp(argv[1], cases[i].name) == 0) {
            service_case_begin(cases[i].name);
            cases[i].run(&options);
            printf("ok %s\n", cases[i].name);
            return 0;
        }
    }
    printf("usage: %s CASE [URL [ROUNDS [SEED [DEVICE]]]]\n", argv[0]);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        printf("  %-10s %s\n", cases[i].name, cases[i].text);
    return 64;
}
