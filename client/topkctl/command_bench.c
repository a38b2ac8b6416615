/* topkctl bench: client processes that select as fast as they can, and what came of it. */
#include "bench.h"
#include "clock.h"
#include "text.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define WARM_NS UINT64_C(300000000)  /* choice: buckets are made, caches and clocks come up */
#define LOOK_US 20000                /* how often the parent looks */
#define DRAW_NS UINT64_C(200000000)  /* calm for the eye */
#define END_NS UINT64_C(15000000000) /* choice: clients get so long to end; the rest is killed */

static volatile sig_atomic_t was_interrupted;

static void on_signal(int number)
{
    (void)number;
    was_interrupted = 1;
}

struct bench {
    struct bench_plan plan;
    size_t size_bytes; /* of the shared memory */
    pid_t pids[CTL_CLIENTS_MAX];
    uint32_t num_running;
    bool has_died; /* a client ended by a signal */
};

static void stop_clients(struct bench *bench)
{
    __atomic_store_n(&bench->plan.shared->stop, true, __ATOMIC_RELAXED);
}

static enum ctl_exit start_clients(struct bench *bench)
{
    const struct ctl_options *options = bench->plan.options;
    fflush(stdout); /* not once again by each child */
    for (uint32_t i = 0; i < options->num_clients; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            bench_client(&bench->plan, i * options->num_threads);
            _exit(0);
        }
        if (pid < 0) {
            stop_clients(bench);
            return report_failure(options, CTL_EXIT_FAILED, "bench: cannot start client %u: %s",
                                  i + 1, strerror(errno));
        }
        bench->pids[i] = pid;
        bench->num_running++;
    }
    return CTL_EXIT_OK;
}

/* Takes note of clients that have ended. */
static void reap(struct bench *bench)
{
    for (uint32_t i = 0; i < bench->plan.options->num_clients; i++) {
        int status;
        if (bench->pids[i] <= 0 || waitpid(bench->pids[i], &status, WNOHANG) != bench->pids[i]) {
            continue;
        }
        bench->pids[i] = 0;
        bench->num_running--;
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
            bench->has_died = true;
        }
    }
}

static uint32_t count_phase(const struct bench *bench, enum bench_phase phase)
{
    uint32_t num = 0;
    for (uint32_t i = 0; i < bench->plan.num_clients; i++) {
        num += __atomic_load_n(&bench->plan.shared->slots[i].phase, __ATOMIC_ACQUIRE) == phase;
    }
    return num;
}

/* ---- Progress -------------------------------------------------------------------------------- */

struct drawing {
    bool enabled;
    uint64_t drawn_ns, requests;
};

static void wipe(const struct drawing *drawing)
{
    if (drawing->enabled && drawing->drawn_ns != 0) {
        fputs("\r\033[K", stderr);
        fflush(stderr);
    }
}

static void draw(const struct bench *bench, struct drawing *drawing)
{
    const struct bench_shared *shared = bench->plan.shared;
    uint64_t now_ns = clock_now_ns();
    if (!drawing->enabled || now_ns - drawing->drawn_ns < DRAW_NS) {
        return;
    }
    uint64_t requests = 0;
    for (uint32_t i = 0; i < bench->plan.num_clients; i++) {
        requests += __atomic_load_n(&shared->slots[i].requests, __ATOMIC_RELAXED);
    }
    if (shared->end_ns == 0) {
        fprintf(stderr, "\r\033[Kbench: %u of %u clients ready", count_phase(bench, BENCH_READY),
                bench->plan.num_clients);
    } else if (now_ns < shared->start_ns) {
        fputs("\r\033[Kbench: warming up", stderr);
    } else {
        double passed_s = (double)(now_ns - drawing->drawn_ns) / 1e9;
        fprintf(stderr, "\r\033[Kbench: %.1f of %.1f s, %.0f selections/s",
                (double)(now_ns - shared->start_ns) / 1e9,
                (double)(shared->end_ns - shared->start_ns) / 1e9,
                (double)(requests - drawing->requests) / passed_s);
    }
    fflush(stderr);
    drawing->drawn_ns = now_ns;
    drawing->requests = requests;
}

/* ---- The run --------------------------------------------------------------------------------- */

/* Until every client is ready; false when one has failed or the user has had enough. */
static bool wait_ready(struct bench *bench, struct drawing *drawing)
{
    while (count_phase(bench, BENCH_READY) < bench->plan.num_clients) {
        reap(bench);
        if (was_interrupted || count_phase(bench, BENCH_FAILED) > 0 ||
            bench->num_running < bench->plan.options->num_clients) {
            return false;
        }
        draw(bench, drawing);
        usleep(LOOK_US);
    }
    return true;
}

static void run(struct bench *bench, struct drawing *drawing)
{
    struct bench_shared *shared = bench->plan.shared;
    uint64_t start_ns = clock_now_ns() + WARM_NS;
    uint64_t end_ns = start_ns + (uint64_t)bench->plan.options->duration_ms * CLOCK_NS_PER_MS;
    __atomic_store_n(&shared->start_ns, start_ns, __ATOMIC_RELAXED);
    __atomic_store_n(&shared->end_ns, end_ns, __ATOMIC_RELEASE);
    while (!was_interrupted && bench->num_running > 0 && clock_now_ns() < end_ns) {
        draw(bench, drawing);
        usleep(LOOK_US);
        reap(bench);
    }
    if (was_interrupted) { /* what was done so far counts */
        __atomic_store_n(&shared->end_ns, clock_now_ns(), __ATOMIC_RELEASE);
    }
}

static void end_clients(struct bench *bench)
{
    uint64_t deadline_ns = clock_now_ns() + END_NS;
    while (bench->num_running > 0) {
        reap(bench);
        if (clock_now_ns() >= deadline_ns) {
            for (uint32_t i = 0; i < bench->plan.options->num_clients; i++) {
                if (bench->pids[i] > 0) {
                    (void)kill(bench->pids[i], SIGKILL);
                }
            }
        }
        usleep(1000);
    }
}

static enum ctl_exit report_first_failure(const struct bench *bench)
{
    const struct ctl_options *options = bench->plan.options;
    for (uint32_t i = 0; i < bench->plan.num_clients; i++) {
        const struct bench_slot *slot = &bench->plan.shared->slots[i];
        if (slot->phase == BENCH_FAILED) {
            char what[32];
            snprintf(what, sizeof(what), "bench: client %u", i + 1);
            return report_status(options, what, slot->status, slot->detail);
        }
    }
    return report_failure(options, CTL_EXIT_FAILED,
                          was_interrupted ? "bench: interrupted before the clients were ready"
                                          : "bench: a client process died");
}

static enum ctl_exit conclude(const struct bench *bench)
{
    const struct ctl_options *options = bench->plan.options;
    uint64_t failed = 0;
    uint64_t requests = 0;
    for (uint32_t i = 0; i < bench->plan.num_clients; i++) {
        failed += bench->plan.shared->slots[i].failed;
        requests += bench->plan.shared->slots[i].requests;
    }
    bench_report(&bench->plan);
    if (bench->has_died) {
        fputs("topkctl: bench: a client process died; the figures lack its part\n", stderr);
        return CTL_EXIT_FAILED;
    }
    if (requests == 0 && failed == 0 && !was_interrupted) {
        fprintf(stderr,
                "topkctl: bench: no selection ended within %u ms; give a longer --duration\n",
                options->duration_ms);
        return CTL_EXIT_FAILED;
    }
    return failed > 0 ? CTL_EXIT_FAILED : CTL_EXIT_OK;
}

enum ctl_exit command_bench(const struct ctl_options *options)
{
    static struct bench bench;
    struct drawing drawing = {.enabled = isatty(STDERR_FILENO) == 1};
    bench.plan.options = options;
    bench.plan.num_clients = options->num_clients * options->num_threads;
    bench.size_bytes =
        sizeof(struct bench_shared) + bench.plan.num_clients * sizeof(struct bench_slot);
    void *memory =
        mmap(NULL, bench.size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        return report_failure(options, CTL_EXIT_FAILED, "bench: out of memory");
    }
    bench.plan.shared = memory;
    const struct sigaction action = {.sa_handler = on_signal};
    (void)sigaction(SIGINT, &action, NULL);
    (void)sigaction(SIGTERM, &action, NULL);
    enum ctl_exit code = start_clients(&bench);
    bool is_ready = code == CTL_EXIT_OK && wait_ready(&bench, &drawing);
    if (is_ready) {
        run(&bench, &drawing);
    } else {
        stop_clients(&bench);
    }
    wipe(&drawing);
    end_clients(&bench);
    if (code == CTL_EXIT_OK) {
        code = is_ready ? conclude(&bench) : report_first_failure(&bench);
    }
    munmap(memory, bench.size_bytes);
    return code;
}
