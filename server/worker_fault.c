#include "worker_fault.h"

#include "log.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define VARIABLE "TOPKD_TEST_FAULT"

static const char *const names[] = {
#define WORKER_FAULT_NAME(name, text, what) [name] = text,
    WORKER_FAULT_TABLE(WORKER_FAULT_NAME)
#undef WORKER_FAULT_NAME
};

bool worker_fault_init(struct worker_fault *fault)
{
    *fault = (struct worker_fault){.kind = WORKER_FAULT_NONE};
    const char *text = getenv(VARIABLE);
    if (text == NULL)
        return true;
    const char *at = strchr(text, '@');
    if (at != NULL) {
        char *end;
        errno = 0;
        unsigned long number = strtoul(at + 1, &end, 10);
        bool is_number = errno == 0 && end != at + 1 && *end == '\0' && at[1] != '-';
        for (size_t i = 0; i < sizeof(names) / sizeof(names[0]) && is_number; i++) {
            if (number < 1 || number > UINT32_MAX || strlen(names[i]) != (size_t)(at - text) ||
                strncmp(names[i], text, (size_t)(at - text)) != 0)
                continue;
            fault->kind = (enum worker_fault_kind)i;
            fault->countdown = (uint32_t)number;
            log_warn("test_fault_armed", "kind=%s after=%" PRIu32, names[i], fault->countdown);
            return true;
        }
    }
    char quoted[LOG_QUOTE_SIZE];
    log_error("test_fault_unknown", VARIABLE "=%s expected=kind@number", log_quote(quoted, text));
    return false;
}

/* True when this event is the n-th. */
static bool is_due(struct worker_fault *fault)
{
    return fault->countdown > 0 && --fault->countdown == 0;
}

bool worker_fault_select(struct worker_fault *fault)
{
    if (fault->kind == WORKER_FAULT_NONE || fault->kind == WORKER_FAULT_CANARY ||
        fault->kind == WORKER_FAULT_STALL || !is_due(fault))
        return false;
    log_warn("test_fault", "kind=%s", names[fault->kind]);
    static volatile uintptr_t nowhere = 64; /* in the page that is never mapped */
    switch (fault->kind) {
    case WORKER_FAULT_ABORT:
        abort();
    case WORKER_FAULT_SEGV:
        *(volatile int *)nowhere = 1;
        return false;
    case WORKER_FAULT_HANG:
        for (;;)
            pause();
    case WORKER_FAULT_LOSE:
        fault->lose = true;
        return false;
    default:
        return true;
    }
}

bool worker_fault_canary(struct worker_fault *fault)
{
    if (fault->kind == WORKER_FAULT_STALL && is_due(fault)) {
        log_warn("test_fault", "kind=%s", names[fault->kind]);
        for (;;)
            pause();
    }
    if (fault->kind != WORKER_FAULT_CANARY)
        return false;
    if (fault->countdown > 1) {
        fault->countdown--;
        return false;
    }
    return true;
}
