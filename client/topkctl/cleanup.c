#include "cleanup.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Read by the handler: a pointer is written in one piece on every platform this builds for. */
static const char *volatile watched[CLEANUP_FILES_MAX];

/* Only calls that are safe in a handler. */
static void on_signal(int number)
{
    for (unsigned i = 0; i < CLEANUP_FILES_MAX; i++) {
        if (watched[i] != NULL) {
            unlink(watched[i]);
        }
    }
    if (number == SIGBUS) {
        static const char text[] = "\ntopkctl: a mapped file shrank or could not be read (SIGBUS); "
                                   "leave it unchanged while it is selected from\n";
        ssize_t written = write(STDERR_FILENO, text, sizeof(text) - 1);
        (void)written; /* nothing can be done about it here */
        _exit(1);
    }
    /* The handler was reset: die of the same signal, so that the caller sees why. */
    raise(number);
}

void cleanup_install(void)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGBUS};
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        sigaction(numbers[i], &action, NULL);
    }
}

void cleanup_watch(unsigned slot, const char *path)
{
    watched[slot] = path;
}
