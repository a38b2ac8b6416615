#include "cpu/pool.h"

#include <errno.h>
#include <fenv.h>
#include <signal.h>
#include <string.h>

#include "cpu/check.h"
#include "cpu/detail.h"

/* How many scores a thread takes at once. Choices: the least keeps the lock below a percent of the
 * work (13 us a hold at 20 GB/s); the most bounds how long a short job waits for its turn. */
#define TAKE_SCORES_MIN 65536
#define TAKE_SCORES_MAX 524288
#define TAKES_PER_THREAD 4 /* choice: small enough a last take that threads finish together */

struct topk_pool {
    pthread_mutex_t lock;  /* guards everything below but the scratch of a taken seat */
    pthread_cond_t work;   /* a seat is free and a job has items */
    struct topk_job *turn; /* the job whose turn it is, in a ring; NULL when there is none */
    uint32_t num_threads;  /* seats, and persistent threads */
    uint32_t num_free;     /* free seats */
    uint32_t num_waiting;  /* threads waiting for `work` */
    uint32_t num_started;
    bool stop;
    struct topk_scratch **free_seats; /* [num_threads], the first num_free are free */
    struct topk_scratch *scratches;   /* [num_threads] */
    pthread_t *threads;               /* [num_threads] */
};

/* ---- the ring of jobs (lock held) -------------------------------------------------------------
 */

static void ring_add(struct topk_pool *pool, struct topk_job *job)
{
    if (pool->turn == NULL) {
        job->next = job->previous = job;
        pool->turn = job;
        return;
    }
    job->next = pool->turn; /* last in the round */
    job->previous = pool->turn->previous;
    job->previous->next = job;
    job->next->previous = job;
}

static void ring_remove(struct topk_pool *pool, struct topk_job *job)
{
    if (job->next == NULL) {
        return;
    }
    if (pool->turn == job) {
        pool->turn = job->next == job ? NULL : job->next;
    }
    job->previous->next = job->next;
    job->next->previous = job->previous;
    job->next = job->previous = NULL;
}

static int64_t at_least_one(int64_t number)
{
    return number > 1 ? number : 1;
}

/* Takes *begin_p ... (returned end) of the job whose turn it is, and passes the turn on. */
static int64_t take_items(struct topk_pool *pool, struct topk_job *job, int64_t *begin_p)
{
    int64_t left = job->num_items - job->next_item;
    int64_t item_scores = at_least_one(job->item_scores);
    int64_t least = at_least_one(TAKE_SCORES_MIN / item_scores);
    int64_t most = at_least_one(TAKE_SCORES_MAX / item_scores);
    int64_t count = left / ((int64_t)pool->num_threads * TAKES_PER_THREAD);
    count = count < least ? least : count;
    count = count > most ? most : count;
    count = count > left ? left : count;
    *begin_p = job->next_item;
    job->next_item += count;
    job->num_working++;
    pool->turn = job->next;
    if (job->next_item == job->num_items) {
        ring_remove(pool, job);
    }
    return *begin_p + count;
}

static void end_job(struct topk_pool *pool, struct topk_job *job, enum topk_status status)
{
    if (status != TOPK_OK && job->status == TOPK_OK) {
        job->status = status;
        job->next_item = job->num_items; /* drop what nobody has taken */
        ring_remove(pool, job);
    }
    job->num_working--;
    if (job->num_working == 0 && job->next_item == job->num_items) {
        pthread_cond_signal(&job->done);
    }
}

/* ---- working ----------------------------------------------------------------------------------
 */

static void add_routes(struct topk_routes *total, const struct topk_routes *part)
{
    const struct {
        uint64_t *total;
        uint64_t part;
    } counts[] = {
        {&total->copied, part->copied},       {&total->direct, part->direct},
        {&total->certified, part->certified}, {&total->band, part->band},
        {&total->recovery, part->recovery},   {&total->spill, part->spill},
        {&total->clamped, part->clamped},     {&total->scores_read, part->scores_read},
    };
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        if (counts[i].part != 0) {
            __atomic_fetch_add(counts[i].total, counts[i].part, __ATOMIC_RELAXED);
        }
    }
}

/* Lock not held. */
static enum topk_status run_items(const struct topk_job *job, int64_t begin, int64_t end,
                                  struct topk_scratch *scratch)
{
    struct topk_routes routes = {0};
    enum topk_status status = TOPK_OK;
    if (!topk_scratch_reserve(scratch, job->k)) {
        return TOPK_E_NO_MEMORY;
    }
    for (int64_t item = begin; item < end; item++) {
        if (job->cancel != NULL && __atomic_load_n(job->cancel, __ATOMIC_RELAXED)) {
            status = TOPK_E_CANCELLED;
            break;
        }
        job->run(job->context, item, item + 1 < end ? item + 1 : -1, scratch, &routes);
    }
    if (job->routes != NULL) {
        add_routes(job->routes, &routes);
    }
    return status;
}

/* There are items to take, a seat to take them in, and a thread waiting for both. Lock held. */
static bool can_use_a_thread(const struct topk_pool *pool)
{
    return pool->turn != NULL && pool->num_free > 0 && pool->num_waiting > 0;
}

/*
 * Takes a seat, works on whatever job's turn it is, and leaves the seat when no job has items or,
 * for a caller, when its own job has none. Lock held at entry and exit, not while working.
 */
static void work_in_seat(struct topk_pool *pool, const struct topk_job *own)
{
    struct topk_scratch *scratch = pool->free_seats[--pool->num_free];
    while (pool->turn != NULL && (own == NULL || own->next != NULL)) {
        struct topk_job *job = pool->turn;
        int64_t begin, end = take_items(pool, job, &begin);
        bool more = can_use_a_thread(pool);
        pthread_mutex_unlock(&pool->lock);
        if (more) { /* each wakes one more, so that many wake in the time of a few */
            pthread_cond_signal(&pool->work);
        }
        enum topk_status status = run_items(job, begin, end, scratch);
        pthread_mutex_lock(&pool->lock);
        end_job(pool, job, status);
    }
    pool->free_seats[pool->num_free++] = scratch;
    if (can_use_a_thread(pool)) {
        pthread_cond_signal(&pool->work); /* someone takes over the seat */
    }
}

static void *thread_main(void *argument)
{
    struct topk_pool *pool = argument;
    fesetenv(FE_DFL_ENV); /* whatever the creator did to denormals: see topk_pool_run */
    pthread_mutex_lock(&pool->lock);
    while (!pool->stop) {
        if (pool->num_free > 0 && pool->turn != NULL) {
            work_in_seat(pool, NULL);
        } else {
            pool->num_waiting++;
            pthread_cond_wait(&pool->work, &pool->lock);
            pool->num_waiting--;
        }
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

enum topk_status topk_pool_run(struct topk_pool *pool, struct topk_job *job)
{
    if (job->num_items == 0) {
        return TOPK_OK;
    }
    job->next = job->previous = NULL;
    job->next_item = 0;
    job->num_working = 0;
    job->status = TOPK_OK;
    pthread_cond_init(&job->done, NULL);
    /* The caller may have set flush-to-zero (PyTorch offers it), which makes denormals equal. */
    fenv_t environment;
    fegetenv(&environment);
    fesetenv(FE_DFL_ENV);

    pthread_mutex_lock(&pool->lock);
    ring_add(pool, job);
    if (pool->num_free > 0) {
        work_in_seat(pool, job);
    }
    while (job->num_working > 0 || job->next_item < job->num_items) {
        pthread_cond_wait(&job->done, &pool->lock);
    }
    enum topk_status status = job->status;
    pthread_mutex_unlock(&pool->lock);

    fesetenv(&environment);
    pthread_cond_destroy(&job->done);
    return status;
}

/* ---- life -------------------------------------------------------------------------------------
 */

uint32_t topk_pool_num_threads(const struct topk_pool *pool)
{
    return pool->num_threads;
}

/* The threads take no signal meant for the application, but those that a faulting access raises
 * must reach its handler. */
static void block_signals(sigset_t *before)
{
    const int synchronous[] = {SIGBUS, SIGSEGV, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS};
    sigset_t blocked;
    sigfillset(&blocked);
    for (size_t i = 0; i < sizeof(synchronous) / sizeof(synchronous[0]); i++) {
        sigdelset(&blocked, synchronous[i]);
    }
    pthread_sigmask(SIG_SETMASK, &blocked, before);
}

static enum topk_status start_threads(struct topk_pool *pool, char *detail)
{
    sigset_t before;
    int error = 0;
    block_signals(&before);
    while (pool->num_started < pool->num_threads && error == 0) {
        pthread_t *thread = &pool->threads[pool->num_started];
        error = pthread_create(thread, NULL, thread_main, pool);
        if (error == 0) {
            pthread_setname_np(*thread, "topksel");
            pool->num_started++;
        }
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0) {
        return topk_detail(detail, TOPK_E_NO_MEMORY,
                           "thread %u of %u did not start (%s); ask for fewer threads or raise "
                           "the limit on processes",
                           pool->num_started + 1, pool->num_threads, strerror(error));
    }
    return TOPK_OK;
}

void topk_pool_destroy(struct topk_pool *pool)
{
    if (pool == NULL) {
        return;
    }
    pthread_mutex_lock(&pool->lock);
    TOPK_CHECK(pool->turn == NULL); /* no selection is running */
    pool->stop = true;
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->lock);
    for (uint32_t i = 0; i < pool->num_started; i++) {
        pthread_join(pool->threads[i], NULL);
    }
    for (uint32_t i = 0; pool->scratches != NULL && i < pool->num_threads; i++) {
        topk_scratch_fini(&pool->scratches[i]);
    }
    pthread_cond_destroy(&pool->work);
    pthread_mutex_destroy(&pool->lock);
    free(pool->threads);
    free(pool->scratches);
    free(pool->free_seats);
    free(pool);
}

static bool reserve_seats(struct topk_pool *pool)
{
    uint32_t num = pool->num_threads;
    pool->free_seats = calloc(num, sizeof(struct topk_scratch *));
    pool->scratches = calloc(num, sizeof(*pool->scratches));
    pool->threads = calloc(num, sizeof(*pool->threads));
    if (pool->free_seats == NULL || pool->scratches == NULL || pool->threads == NULL) {
        return false;
    }
    for (uint32_t i = 0; i < num; i++) {
        if (!topk_scratch_reserve(&pool->scratches[i], (int32_t)TOPK_K_FAST_MAX)) {
            return false;
        }
        pool->free_seats[pool->num_free++] = &pool->scratches[i];
    }
    return true;
}

enum topk_status topk_pool_create(uint32_t num_threads, struct topk_pool **pool_p, char *detail)
{
    TOPK_CHECK(num_threads >= 1 && num_threads <= TOPK_THREADS_MAX);
    struct topk_pool *pool = calloc(1, sizeof(*pool));
    if (pool == NULL) {
        return topk_detail(detail, TOPK_E_NO_MEMORY, "no memory for a pool");
    }
    pool->num_threads = num_threads;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->work, NULL);
    enum topk_status status = TOPK_OK;
    if (!reserve_seats(pool)) {
        status = topk_detail(detail, TOPK_E_NO_MEMORY,
                             "no memory for the scratch of %u threads; ask for fewer", num_threads);
    }
    if (status == TOPK_OK) {
        status = start_threads(pool, detail);
    }
    if (status != TOPK_OK) {
        topk_pool_destroy(pool);
        return status;
    }
    *pool_p = pool;
    return TOPK_OK;
}
