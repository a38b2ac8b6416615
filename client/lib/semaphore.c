/* semaphore.c - timeline semaphores on the page that the worker shares with a session. */
#include "client.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Choice: a waiter looks this often whether the session, and so the page, was replaced. */
#define SLICE_NS (100 * CLOCK_NS_PER_MS)

_Static_assert(sizeof(struct wire_semaphore) == 64, "one cache line each");
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the futex word is the low half of the value: the first only on little-endian machines"
#endif

/* ---- The page -------------------------------------------------------------------------------- */

static struct wire_semaphore *word_of(const struct session *session, uint32_t index)
{
    return (struct wire_semaphore *)session->page.base + index;
}

static uint64_t load(const uint64_t *word)
{
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

/* Both wait on the low half; the operation is not private: the worker waits on the same page. */
static void wake(struct wire_semaphore *word)
{
    (void)syscall(SYS_futex, &word->value, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static void sleep_on(struct wire_semaphore *word, uint64_t value, uint64_t deadline_ns)
{
    struct timespec until = clock_timespec(deadline_ns);
    (void)syscall(SYS_futex, &word->value, FUTEX_WAIT_BITSET, (uint32_t)value, &until, NULL,
                  FUTEX_BITSET_MATCH_ANY);
}

/* False when the value is there already. */
static bool raise_to(struct wire_semaphore *word, uint64_t value)
{
    uint64_t present = load(&word->value);
    do {
        if (present >= value) {
            return false;
        }
    } while (!__atomic_compare_exchange_n(&word->value, &present, value, false, __ATOMIC_RELEASE,
                                          __ATOMIC_ACQUIRE));
    wake(word);
    return true;
}

/* ---- For the rest of the library ------------------------------------------------------------- */

uint64_t semaphore_value(const struct topkd_semaphore *semaphore)
{
    return load(&word_of(semaphore->client->session, semaphore->index)->value);
}

void semaphore_release(struct topkd_semaphore *semaphore)
{
    if (--semaphore->num_users == 0 && semaphore->destroyed) {
        list_remove(&semaphore->node);
        free(semaphore);
    }
}

void semaphore_fail_on(const struct session *session, const struct topkd_semaphore *semaphore,
                       uint64_t value, enum topkd_status status)
{
    struct wire_semaphore *word = word_of(session, semaphore->index);
    if (load(&word->value) >= value) {
        return;
    }
    __atomic_store_n(&word->failed_status, (uint32_t)status, __ATOMIC_RELAXED);
    __atomic_fetch_add(&word->num_failed, 1, __ATOMIC_RELAXED);
    __atomic_store_n(&word->failed_value, value, __ATOMIC_RELEASE);
    (void)raise_to(word, value);
}

void semaphore_fail(const struct topkd_semaphore *semaphore, uint64_t value,
                    enum topkd_status status)
{
    semaphore_fail_on(semaphore->client->session, semaphore, value, status);
}

void semaphore_release_streams(struct topkd_client *client, enum topkd_status status)
{
    list_each(node, &client->semaphores)
    {
        const struct topkd_semaphore *semaphore = list_entry(node, struct topkd_semaphore, node);
        semaphore_fail(semaphore, semaphore->streamed, status);
    }
}

bool semaphore_ended(const struct topkd_semaphore *semaphore, uint64_t value,
                     enum topkd_status *status_p)
{
    const struct wire_semaphore *word = word_of(semaphore->client->session, semaphore->index);
    uint64_t failed_value = load(&word->failed_value);
    if (load(&word->value) < value || failed_value > value) {
        return false; /* not reached, or a later failure hides what became of it */
    }
    *status_p = TOPKD_OK;
    if (failed_value == value) {
        *status_p = (enum topkd_status)__atomic_load_n(&word->failed_status, __ATOMIC_RELAXED);
    }
    return true;
}

enum topkd_status semaphore_restore(struct topkd_client *client, const struct session *from,
                                    const struct session *to, char *detail)
{
    list_each(node, &client->semaphores)
    {
        uint32_t index = list_entry(node, struct topkd_semaphore, node)->index;
        if (index >= to->limits.semaphores) {
            return fault(detail, TOPKD_E_LIMIT,
                         "the renewed session has %u semaphores, this client uses number %u",
                         to->limits.semaphores, index);
        }
        const struct wire_semaphore *old = word_of(from, index);
        struct wire_semaphore *new = word_of(to, index);
        uint64_t value = load(&old->value);
        new->failed_value = load(&old->failed_value);
        new->failed_status = __atomic_load_n(&old->failed_status, __ATOMIC_RELAXED);
        new->num_failed = __atomic_load_n(&old->num_failed, __ATOMIC_RELAXED);
        __atomic_store_n(&new->value, value, __ATOMIC_RELEASE);
    }
    return TOPKD_OK;
}

/* ---- Public ---------------------------------------------------------------------------------- */

/* The lowest free index, and the node before which it belongs. */
static uint32_t free_index(struct topkd_client *client, struct list **position_p)
{
    uint32_t index = 0;
    list_each(node, &client->semaphores)
    {
        if (list_entry(node, struct topkd_semaphore, node)->index != index) {
            *position_p = node;
            return index;
        }
        index++;
    }
    *position_p = &client->semaphores;
    return index;
}

enum topkd_status topkd_semaphore_create(struct topkd_client *client,
                                         struct topkd_semaphore **semaphore_p)
{
    char *detail = fault_detail();
    enum topkd_status status = client_check(client, detail);
    if (status != TOPKD_OK) {
        return status;
    }
    if (!semaphore_p) {
        return fault(detail, TOPKD_E_INVALID, "semaphore_p is NULL");
    }
    struct topkd_semaphore *semaphore = calloc(1, sizeof(*semaphore));
    if (!semaphore) {
        return fault(detail, TOPKD_E_NO_MEMORY, "no memory for a semaphore");
    }
    pthread_mutex_lock(&client->mutex);
    struct list *position;
    uint32_t index = free_index(client, &position);
    if (index >= client->session->limits.semaphores) {
        status = fault(detail, TOPKD_E_LIMIT,
                       "all %u semaphores of the session are in use: destroy one, or raise "
                       "limits.semaphores",
                       client->session->limits.semaphores);
        free(semaphore);
    } else {
        semaphore->client = client;
        semaphore->index = index;
        list_insert(position, &semaphore->node);
        /* Nobody refers to it: what a former owner left can go. */
        memset(word_of(client->session, index), 0, sizeof(struct wire_semaphore));
        *semaphore_p = semaphore;
    }
    pthread_mutex_unlock(&client->mutex);
    return status;
}

void topkd_semaphore_destroy(struct topkd_semaphore *semaphore)
{
    if (!semaphore || client_check(semaphore->client, fault_detail()) != TOPKD_OK) {
        return;
    }
    struct topkd_client *client = semaphore->client;
    pthread_mutex_lock(&client->mutex);
    semaphore->destroyed = true;
    semaphore->num_users++;
    semaphore_release(semaphore);
    pthread_mutex_unlock(&client->mutex);
}

uint64_t topkd_semaphore_value(struct topkd_semaphore *semaphore)
{
    if (!semaphore || client_check(semaphore->client, fault_detail()) != TOPKD_OK) {
        return 0;
    }
    pthread_mutex_lock(&semaphore->client->mutex);
    uint64_t value = semaphore_value(semaphore);
    pthread_mutex_unlock(&semaphore->client->mutex);
    return value;
}

enum topkd_status topkd_semaphore_signal(struct topkd_semaphore *semaphore, uint64_t value)
{
    char *detail = fault_detail();
    if (!semaphore) {
        return fault(detail, TOPKD_E_INVALID, "semaphore is NULL");
    }
    struct topkd_client *client = semaphore->client;
    enum topkd_status status = client_check(client, detail);
    if (status != TOPKD_OK) {
        return status;
    }
    pthread_mutex_lock(&client->mutex);
    struct wire_semaphore *word = word_of(client->session, semaphore->index);
    if (semaphore->promised > load(&word->value)) {
        status = fault(detail, TOPKD_E_IN_USE,
                       "requests in flight raise the semaphore to %" PRIu64 ": use another one for "
                       "what the program signals itself",
                       semaphore->promised);
    } else if (!raise_to(word, value)) {
        status = fault(detail, TOPKD_E_INVALID,
                       "value %" PRIu64 " is not above the semaphore's value %" PRIu64, value,
                       load(&word->value));
    }
    pthread_mutex_unlock(&client->mutex);
    return status;
}

/* One look at the present page, with the mutex held, which is released while it sleeps. True when
 * *status_p is the end of the wait. */
static bool wait_once(struct topkd_semaphore *semaphore, uint64_t value, uint64_t deadline_ns,
                      enum topkd_status *status_p, char *detail)
{
    struct topkd_client *client = semaphore->client;
    struct session *session = client->session;
    struct wire_semaphore *word = word_of(session, semaphore->index);
    uint64_t present = load(&word->value);
    if (present >= value) {
        *status_p = TOPKD_OK;
        if (load(&word->failed_value) == value) {
            *status_p = (enum topkd_status)__atomic_load_n(&word->failed_status, __ATOMIC_RELAXED);
            (void)fault(detail, *status_p, "the request that was to signal %" PRIu64 " failed: %s",
                        value, wire_status_text(*status_p));
        }
        return true;
    }
    if (client->ended) {
        *status_p = fault(detail, TOPKD_E_STALE_SESSION,
                          "the session is gone and the semaphore stays at %" PRIu64, present);
        return true;
    }
    uint64_t now_ns = clock_now_ns();
    if (now_ns >= deadline_ns) {
        *status_p = fault(detail, TOPKD_E_TIMEOUT,
                          "the semaphore is at %" PRIu64 " and did not reach %" PRIu64 " in time",
                          present, value);
        return true;
    }
    session->num_refs++;
    pthread_mutex_unlock(&client->mutex);
    sleep_on(word, present, clock_earlier(deadline_ns, now_ns + SLICE_NS));
    pthread_mutex_lock(&client->mutex);
    session_release(session);
    return false;
}

enum topkd_status topkd_semaphore_wait(struct topkd_semaphore *semaphore, uint64_t value,
                                       uint32_t timeout_ms)
{
    char *detail = fault_detail();
    if (!semaphore) {
        return fault(detail, TOPKD_E_INVALID, "semaphore is NULL");
    }
    struct topkd_client *client = semaphore->client;
    enum topkd_status status = client_check(client, detail);
    if (status != TOPKD_OK) {
        return status;
    }
    uint64_t deadline_ns = client_deadline_ns(client, timeout_ms);
    pthread_mutex_lock(&client->mutex);
    semaphore->num_users++;
    while (!wait_once(semaphore, value, deadline_ns, &status, detail)) {
    }
    semaphore_release(semaphore);
    pthread_mutex_unlock(&client->mutex);
    return status;
}
