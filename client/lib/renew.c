/*
 * renew.c - the thread that replaces a link: it takes the old one down, finds the worker again,
 * says hello, registers the regions, restores the semaphores, and lets parked operations go.
 *
 * It tries while somebody waits, and for the client's default timeout after the loss, so that an
 * idle client is ready again soon but does not knock for ever at a daemon that was stopped.
 */
#include "client.h"
#include "thread.h"

#include <errno.h>
#include <string.h>

/* Choices: the pause after a failed attempt, doubled up to the longer one; and the most that one
 * step of an attempt (discovery, hello, one registration) may take. */
#define BACKOFF_MIN_NS (10 * CLOCK_NS_PER_MS)
#define BACKOFF_MAX_NS (500 * CLOCK_NS_PER_MS)
#define ATTEMPT_MS 2000u
/* Choice: how long the answers of a stale session are waited for. */
#define STALE_NS (500 * CLOCK_NS_PER_MS)

void renew_wake(struct topkd_client *client)
{
    pthread_cond_signal(&client->renewing);
}

bool renew_transient(enum topkd_status status)
{
    switch (status) {
    case TOPKD_E_UNREACHABLE:
    case TOPKD_E_TIMEOUT:
    case TOPKD_E_DRAINING:
    case TOPKD_E_BUSY:
    case TOPKD_E_STALE_SESSION:
    case TOPKD_E_LIMIT:     /* the old session may not have been reaped yet */
    case TOPKD_E_NO_MEMORY: /* here or there */
    case TOPKD_E_SYSTEM:
        return true;
    default:
        return false;
    }
}

/* ---- Taking down ----------------------------------------------------------------------------- */

/*
 * When the link may be taken down, CLOCK_NEVER while it serves. One whose connection is gone at
 * once; one that is only done for (stale, draining) when the last answer has come. A stale
 * session's requests are all refused quickly; a draining worker ends by itself.
 */
static uint64_t over_ns(struct link *link)
{
    bool idle = link->num_in_use == 0 && link->num_callers == 0;
    if (link->lost || (idle && (link->stale || link->draining))) {
        return 0;
    }
    if (!link->stale) {
        return CLOCK_NEVER;
    }
    if (link->over_ns == 0) {
        link->over_ns = clock_now_ns() + STALE_NS;
    }
    return link->over_ns;
}

/* With the mutex held, released meanwhile. What was in flight is parked again afterwards. */
static void take_down(struct topkd_client *client)
{
    static const char text[] = "the session is gone and no_renew is set: open a new client";
    struct link *link = client->link;
    client->link = NULL;
    client->outage_ns = clock_now_ns();
    client->outage_status = TOPKD_OK;
    client->ended = client->no_renew;
    lanes_lose(client, link->session, link->draining ? TOPKD_E_DRAINING : TOPKD_E_STALE_SESSION,
               link->draining ? "the worker drains" : "the worker's session is gone");
    pthread_mutex_unlock(&client->mutex);
    link_close(link);
    pthread_mutex_lock(&client->mutex);
    if (client->ended) {
        engine_fail_parked(client, TOPKD_E_STALE_SESSION, text);
    }
    engine_fail_streamed(client);
    semaphore_release_streams(client, TOPKD_E_STALE_SESSION);
    pthread_cond_broadcast(&client->changed);
}

/* ---- Building -------------------------------------------------------------------------------- */

/* Without the mutex. */
static enum topkd_status attempt(struct topkd_client *client, uint64_t serial, struct link **link_p,
                                 char *detail)
{
    struct link *link;
    enum topkd_status status = link_open(client, serial, clock_after_ms(ATTEMPT_MS), &link, detail);
    if (status != TOPKD_OK) {
        return status;
    }
    status = region_renew_all(client, link, detail);
    if (status == TOPKD_OK) {
        status = lanes_renew(client, link, detail);
    }
    if (status != TOPKD_OK) {
        pthread_mutex_lock(&client->mutex);
        lanes_lose(client, link->session, status, detail);
        pthread_mutex_unlock(&client->mutex);
        link_close(link);
        return status;
    }
    *link_p = link;
    return TOPKD_OK;
}

/* With the mutex held: the link becomes the client's. */
static enum topkd_status install(struct topkd_client *client, struct link *link, char *detail)
{
    enum topkd_status status = semaphore_restore(client, client->session, link->session, detail);
    if (status != TOPKD_OK) {
        return status;
    }
    session_release(client->session);
    client->session = link->session;
    client->session->num_refs++;
    client->link = link;
    lanes_take(client, link);
    client->num_renewals++;
    client->outage_status = TOPKD_OK;
    engine_pump(client);
    return TOPKD_OK;
}

static void note_failure(struct topkd_client *client, enum topkd_status status, const char *detail)
{
    client->outage_status = status;
    memcpy(client->outage_detail, detail, sizeof(client->outage_detail));
    if (!renew_transient(status)) {
        client->num_refusals++;
        engine_fail_parked(client, status, detail);
    }
}

/* With the mutex held, released meanwhile. True when there is a link again. */
static bool rebuild(struct topkd_client *client)
{
    char detail[WIRE_DETAIL_SIZE] = "";
    struct link *link = NULL;
    uint64_t serial = ++client->session_serial;
    client->attempting = true;
    pthread_mutex_unlock(&client->mutex);
    enum topkd_status status = attempt(client, serial, &link, detail);
    pthread_mutex_lock(&client->mutex);
    if (status == TOPKD_OK && !client->closing) {
        status = install(client, link, detail);
    }
    if (link && client->link != link) {
        lanes_lose(client, link->session, status != TOPKD_OK ? status : TOPKD_E_CLOSED, detail);
        pthread_mutex_unlock(&client->mutex);
        link_close(link);
        pthread_mutex_lock(&client->mutex);
    }
    client->attempting = false;
    if (status != TOPKD_OK) {
        note_failure(client, status, detail);
    }
    pthread_cond_broadcast(&client->changed);
    return client->link != NULL;
}

/* ---- The thread ------------------------------------------------------------------------------ */

/* Whether a link is worth an attempt now. */
static bool wanted(const struct topkd_client *client)
{
    uint64_t eager_ns = (uint64_t)client->timeout_ms * CLOCK_NS_PER_MS;
    return !client->ended && (!list_empty(&client->parked) || client->num_awaiting > 0 ||
                              clock_now_ns() - client->outage_ns < eager_ns);
}

static void *run(void *arg)
{
    struct topkd_client *client = arg;
    uint64_t backoff_ns = BACKOFF_MIN_NS;
    pthread_mutex_lock(&client->mutex);
    while (!client->closing) {
        uint64_t until_ns = client->link ? over_ns(client->link) : CLOCK_NEVER;
        if (client->link && clock_passed(until_ns)) {
            take_down(client);
            backoff_ns = BACKOFF_MIN_NS;
        } else if (client->link || !wanted(client)) {
            (void)client_cond_wait(client, &client->renewing, until_ns);
        } else if (!rebuild(client)) {
            until_ns = clock_now_ns() + backoff_ns;
            while (!client->closing && client_cond_wait(client, &client->renewing, until_ns)) {
            }
            backoff_ns = clock_earlier(backoff_ns * 2, BACKOFF_MAX_NS);
        }
    }
    pthread_mutex_unlock(&client->mutex);
    return NULL;
}

enum topkd_status renew_start(struct topkd_client *client, char *detail)
{
    int error = thread_start(&client->renewer, run, client);
    if (error) {
        return fault_system(detail, "cannot start a thread", error);
    }
    (void)pthread_setname_np(client->renewer, "topkd-renew");
    return TOPKD_OK;
}

void renew_stop(struct topkd_client *client)
{
    pthread_mutex_lock(&client->mutex);
    renew_wake(client);
    pthread_mutex_unlock(&client->mutex);
    pthread_join(client->renewer, NULL);
}
