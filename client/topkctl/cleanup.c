#include "cleanup.h"

#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const int endings[] = {SIGINT, SIGTERM, SIGHUP};
#define NUM_ENDINGS (sizeof(endings) / sizeof(endings[0]))

static struct {
    int used; /* atomic: set after the path, cleared before it changes */
    char path[PATH_MAX];
} watched[CLEANUP_FILES_MAX];

/* Handlers make only calls that are safe in one. */
static void remove_watched(void)
{
    for (unsigned i = 0; i < CLEANUP_FILES_MAX; i++) {
        if (__atomic_load_n(&watched[i].used, __ATOMIC_ACQUIRE)) {
            unlink(watched[i].path);
        }
    }
}

/* Dies of the same signal, for which the handler was reset, so that the caller sees why. */
static void on_ending(int number)
{
    remove_watched();
    raise(number);
}

/* Every thread that reads the file gets here; the first one reports and ends the process. */
static void on_bus_error(int number)
{
    static const char text[] = "\ntopkctl: a mapped file shrank or could not be read (SIGBUS); "
                               "leave it unchanged while it is selected from\n";
    static int reported;
    (void)number;
    while (__atomic_exchange_n(&reported, 1, __ATOMIC_SEQ_CST)) {
        pause();
    }
    remove_watched();
    ssize_t written = write(STDERR_FILENO, text, sizeof(text) - 1);
    (void)written; /* nothing can be done about it here */
    _exit(1);
}

void cleanup_install(void)
{
    struct sigaction ending = {.sa_handler = on_ending, .sa_flags = (int)SA_RESETHAND};
    struct sigaction bus_error = {.sa_handler = on_bus_error};
    sigemptyset(&ending.sa_mask);
    sigemptyset(&bus_error.sa_mask);
    for (size_t i = 0; i < NUM_ENDINGS; i++) {
        sigaction(endings[i], &ending, NULL);
    }
    sigaction(SIGBUS, &bus_error, NULL);
}

static void mask_endings(int how)
{
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < NUM_ENDINGS; i++) {
        sigaddset(&set, endings[i]);
    }
    sigprocmask(how, &set, NULL);
}

void cleanup_hold(void)
{
    mask_endings(SIG_BLOCK);
}

void cleanup_release(void)
{
    mask_endings(SIG_UNBLOCK);
}

void cleanup_watch(unsigned slot, const char *path)
{
    __atomic_store_n(&watched[slot].used, 0, __ATOMIC_SEQ_CST);
    if (path != NULL && strlen(path) < sizeof(watched[slot].path)) {
        memcpy(watched[slot].path, path, strlen(path) + 1);
        __atomic_store_n(&watched[slot].used, 1, __ATOMIC_RELEASE);
    }
}
