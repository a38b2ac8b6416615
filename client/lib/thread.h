/*
 * thread.h - threads of the library. They take no signals: those are the program's.
 */
#ifndef TOPKD_CLIENT_THREAD_H
#define TOPKD_CLIENT_THREAD_H

#include <pthread.h>
#include <signal.h>
#include <stddef.h>

/* As pthread_create; 0 or an errno. */
static inline int thread_start(pthread_t *thread_p, void *(*run)(void *arg), void *arg)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(thread_p, NULL, run, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

#endif
