#include "region_guard.h"

#include "assert.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sysexits.h>
#include <unistd.h>

enum fault_state { FAULT_NONE = 0, FAULT_COVERING = 1, FAULT_COVERED = 2 };

/* Read by the handler on any thread. `base` is published last and withdrawn first. */
struct slot {
    uintptr_t base; /* 0: free */
    size_t size_bytes;
    int protection;
    uint32_t fault; /* enum fault_state */
};

static struct slot slots[REGION_GUARD_SLOTS];
static uint32_t slots_end; /* one past the highest slot ever used */

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* guards what follows */
static uint32_t free_slots[REGION_GUARD_SLOTS];
static uint32_t num_free;

static struct slot *slot_find(uintptr_t address)
{
    uint32_t end = __atomic_load_n(&slots_end, __ATOMIC_ACQUIRE);
    for (uint32_t i = 0; i < end; i++) {
        uintptr_t base = __atomic_load_n(&slots[i].base, __ATOMIC_ACQUIRE);
        if (base != 0 && address >= base && address - base < slots[i].size_bytes)
            return &slots[i];
    }
    return NULL;
}

/* Nothing here but atomics and one system call: the interrupted code may hold any lock. */
static void handle_sigbus(int signal_number, siginfo_t *info, void *context)
{
    (void)context;
    int saved_errno = errno;
    struct slot *slot = slot_find((uintptr_t)info->si_addr);
    if (slot == NULL) {
        /* Not ours: the faulting instruction runs again and meets the default action. */
        struct sigaction action = {.sa_handler = SIG_DFL};
        (void)sigaction(signal_number, &action, NULL);
        errno = saved_errno;
        return;
    }
    uint32_t expected = FAULT_NONE;
    if (__atomic_compare_exchange_n(&slot->fault, &expected, FAULT_COVERING, false,
                                    __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
        long result = syscall(SYS_mmap, slot->base, slot->size_bytes, slot->protection,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0L);
        if (result == -1)
            _exit(EX_SOFTWARE); /* no way to go on; the supervisor starts a new worker */
        __atomic_store_n(&slot->fault, FAULT_COVERED, __ATOMIC_RELEASE);
    }
    /* A thread that lost the race returns, and faults again until the pages are there. */
    errno = saved_errno;
}

void region_guard_install(void)
{
    struct sigaction action = {.sa_sigaction = handle_sigbus, .sa_flags = SA_SIGINFO | SA_RESTART};
    sigemptyset(&action.sa_mask);
    int result = sigaction(SIGBUS, &action, NULL);
    topkd_assert(result == 0);
}

bool region_guard_add(void *base, size_t size_bytes, int protection, uint32_t *slot_p)
{
    topkd_assert(base != NULL && size_bytes > 0);
    pthread_mutex_lock(&mutex);
    uint32_t end = __atomic_load_n(&slots_end, __ATOMIC_RELAXED);
    if (num_free == 0 && end == REGION_GUARD_SLOTS) {
        pthread_mutex_unlock(&mutex);
        return false;
    }
    uint32_t idx = num_free > 0 ? free_slots[--num_free] : end;
    struct slot *slot = &slots[idx];
    slot->size_bytes = size_bytes;
    slot->protection = protection;
    __atomic_store_n(&slot->fault, FAULT_NONE, __ATOMIC_RELAXED);
    __atomic_store_n(&slot->base, (uintptr_t)base, __ATOMIC_RELEASE);
    if (idx == end)
        __atomic_store_n(&slots_end, end + 1, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&mutex);
    *slot_p = idx;
    return true;
}

void region_guard_remove(uint32_t idx)
{
    pthread_mutex_lock(&mutex);
    topkd_assert(idx < slots_end && slots[idx].base != 0);
    __atomic_store_n(&slots[idx].base, 0, __ATOMIC_RELEASE);
    free_slots[num_free++] = idx;
    pthread_mutex_unlock(&mutex);
}

bool region_guard_faulted(uint32_t idx)
{
    return __atomic_load_n(&slots[idx].fault, __ATOMIC_ACQUIRE) != FAULT_NONE;
}
