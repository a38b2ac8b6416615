/*
 * lane_model_test.c - the rules of topk_step.h as threads: a client's stream that asks, the stream
 * of a worker with steps armed ahead, and a controller that pauses it again and again, as closing
 * memory does. Each request must be selected exactly once, in order, and no step may wait while the
 * controller holds a pause. Broken rules, one at a time, must be noticed: a model that passes
 * whatever it is given proves nothing.
 */
#include "topk_step.h"
#include "topkd_wire.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>

enum { AHEAD = 8, REQUESTS = 5000, BROKEN_REQUESTS = 2000000 };

/* What may be broken. */
enum rule {
    RULE_ALL,
    RULE_ASKED_IN_PAUSE, /* begin does not read the word while paused: empty steps look real */
    RULE_ORDER,          /* the release comes before `paused` */
    RULE_LOOK,      /* begin of a step that may come ahead of its request does not look for it */
    RULE_BOTH_BACK, /* a look without a request leaves the word that lets waits pass */
};

struct model {
    enum rule broken;
    bool looks; /* after a step for the next one */
    uint32_t num_requests;
    _Atomic uint64_t mailbox; /* word below, release above */
    atomic_uint paused;
    atomic_ullong num_armed, num_ended;
    atomic_uint num_waiting; /* the stream is inside a wait */
    atomic_bool is_over;
    atomic_ullong request; /* the input of the step: its number */
    atomic_ullong answer;  /* the output */
    uint64_t num_selected; /* of the worker's stream alone, as is_awake */
    bool is_awake;
    atomic_bool is_wrong;
};

#define RELEASED ((uint64_t)WIRE_MAILBOX_RELEASED << 32)
#define AWAKE ((uint64_t)WIRE_MAILBOX_AWAKE << 48)

static uint32_t word_of(struct model *model)
{
    return (uint32_t)atomic_load(&model->mailbox);
}

/* A store to a part, as the hardware does: the others stay. */
static void store_part(struct model *model, uint64_t part, uint64_t value)
{
    uint64_t old = atomic_load(&model->mailbox);
    while (!atomic_compare_exchange_weak(&model->mailbox, &old, (old & ~part) | value))
        ;
}

static void store_word(struct model *model, uint32_t word)
{
    store_part(model, UINT64_C(0xffffffff), word);
}

/* By a kernel: the upper half of the release. */
static void store_awake(struct model *model, uint64_t value)
{
    store_part(model, UINT64_C(0xffff) << 48, value);
}

/* By the driver: all of it. */
static void store_release(struct model *model, uint64_t value)
{
    store_part(model, UINT64_C(0xffffffff) << 32, value);
}

/* Every fourth time by a short sleep: on a processor with other work a yield gives away whole
 * slices of time, and who wakes up comes first. More sleeps would leave too few ways to meet. */
static void let_others_run(void)
{
    static _Thread_local uint32_t num;
    const struct timespec shortly = {.tv_nsec = 1};
    if (num++ % 4 == 0)
        nanosleep(&shortly, NULL);
    else
        sched_yield();
}

static void maybe_yield(uint64_t *seed)
{
    *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    if ((*seed >> 33) % 16 == 0)
        let_others_run();
}

/* ---- The client's stream --------------------------------------------------------------------- */

static void *client_main(void *arg)
{
    struct model *model = arg;
    uint64_t seed = 1;
    for (uint64_t i = 1; i <= model->num_requests && !atomic_load(&model->is_wrong); i++) {
        atomic_store(&model->request, i);
        maybe_yield(&seed);
        store_word(model, TOPK_STEP_ASKED);
        while ((word_of(model) & TOPK_STEP_ANSWERED) == 0 && !atomic_load(&model->is_wrong))
            let_others_run();
        if (atomic_load(&model->answer) != i)
            atomic_store(&model->is_wrong, true);
        maybe_yield(&seed);
    }
    atomic_store(&model->is_over, true);
    return NULL;
}

/* ---- The worker's stream --------------------------------------------------------------------- */

static bool passes(struct model *model)
{
    return (atomic_load(&model->mailbox) & (RELEASED | AWAKE | TOPK_STEP_ASKED)) != 0;
}

/* Whether a request comes in time, which is a number of looks here. */
static bool look(struct model *model, uint64_t *seed)
{
    uint64_t looks_max = 1 + (*seed >> 33) % 8;
    for (uint64_t i = 0;; i++) {
        bool is_over = atomic_load(&model->paused) != 0 || i >= looks_max;
        if (word_of(model) == TOPK_STEP_ASKED)
            return true;
        if (is_over)
            return false;
        let_others_run();
    }
}

static bool is_asked(struct model *model, uint64_t *seed)
{
    if (!model->is_awake)
        return atomic_load(&model->paused) == 0 || model->broken == RULE_ASKED_IN_PAUSE ||
               word_of(model) == TOPK_STEP_ASKED;
    if (model->broken == RULE_LOOK || look(model, seed))
        return true;
    model->is_awake = false;
    maybe_yield(seed);
    if (model->broken != RULE_BOTH_BACK)
        store_awake(model, 0);
    return false;
}

static void run_step(struct model *model, uint64_t *seed)
{
    if (!passes(model)) {
        atomic_fetch_add(&model->num_waiting, 1);
        while (!passes(model))
            let_others_run();
        atomic_fetch_sub(&model->num_waiting, 1);
    }
    maybe_yield(seed);
    bool is_real = is_asked(model, seed);
    maybe_yield(seed);
    if (is_real) {
        uint64_t request = atomic_load(&model->request);
        if (request != ++model->num_selected) /* once, and in order */
            atomic_store(&model->is_wrong, true);
        atomic_store(&model->answer, request);
        maybe_yield(seed);
        store_word(model, TOPK_STEP_ANSWERED);
        if (model->looks && atomic_load(&model->paused) == 0) {
            model->is_awake = true;
            maybe_yield(seed);
            store_awake(model, AWAKE);
        }
    }
    atomic_fetch_add(&model->num_ended, 1);
}

static void *stream_main(void *arg)
{
    struct model *model = arg;
    uint64_t seed = 2;
    for (;;) {
        while (atomic_load(&model->num_armed) == atomic_load(&model->num_ended)) {
            if (atomic_load(&model->is_over))
                return NULL;
            let_others_run();
        }
        run_step(model, &seed);
    }
}

/* ---- The controller -------------------------------------------------------------------------- */

static void pause_begin(struct model *model, uint64_t *seed)
{
    if (model->broken != RULE_ORDER)
        atomic_store(&model->paused, 1);
    maybe_yield(seed);
    store_release(model, RELEASED);
    maybe_yield(seed);
    atomic_store(&model->paused, 1);
    while (atomic_load(&model->num_ended) != atomic_load(&model->num_armed))
        let_others_run();
}

static void pause_end(struct model *model)
{
    store_release(model, 0);
    atomic_store(&model->paused, 0);
}

static void control(struct model *model)
{
    uint64_t seed = 3;
    for (uint64_t turn = 0; !atomic_load(&model->is_over); turn++) {
        while (atomic_load(&model->num_armed) - atomic_load(&model->num_ended) < AHEAD)
            atomic_fetch_add(&model->num_armed, 1);
        for (uint64_t i = 0; i < turn % 64; i++)
            maybe_yield(&seed);
        pause_begin(model, &seed);
        for (int i = 0; i < 20; i++) { /* what would block is called here */
            if (atomic_load(&model->num_waiting) != 0)
                atomic_store(&model->is_wrong, true);
            maybe_yield(&seed);
        }
        pause_end(model);
    }
    pause_begin(model, &seed); /* the stream runs out */
}

static bool run(enum rule broken, bool looks, uint32_t num_requests)
{
    static struct model model;
    model = (struct model){.broken = broken, .looks = looks, .num_requests = num_requests};
    pthread_t client, stream;
    assert_int_equal(pthread_create(&client, NULL, client_main, &model), 0);
    assert_int_equal(pthread_create(&stream, NULL, stream_main, &model), 0);
    control(&model);
    pthread_join(client, NULL);
    pthread_join(stream, NULL);
    return !atomic_load(&model.is_wrong) && model.num_selected == num_requests;
}

static void each_request_is_selected_once_beside_pauses(void **state)
{
    (void)state;
    assert_true(run(RULE_ALL, false, REQUESTS));
    assert_true(run(RULE_ALL, true, REQUESTS));
}

static void broken_rules_are_noticed(void **state)
{
    (void)state;
    assert_false(run(RULE_ASKED_IN_PAUSE, false, BROKEN_REQUESTS));
    assert_false(run(RULE_ORDER, false, BROKEN_REQUESTS));
    assert_false(run(RULE_LOOK, true, BROKEN_REQUESTS));
    assert_false(run(RULE_BOTH_BACK, true, BROKEN_REQUESTS));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_request_is_selected_once_beside_pauses),
        cmocka_unit_test(broken_rules_are_noticed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
