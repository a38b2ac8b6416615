#include "admission.h"

#include "detail.h"

#include <inttypes.h>

#define NS_PER_S UINT64_C(1000000000)

enum topkd_status admission_check(const struct admission *admission, char *detail)
{
    if (admission->num_outstanding >= admission->outstanding_max)
        return detail_set(detail, TOPKD_E_BUSY,
                          "the session has %" PRIu32 " requests in flight, the limit is %" PRIu32
                          ": wait for an answer",
                          admission->num_outstanding, admission->outstanding_max);
    uint32_t reserved = admission->num_outstanding == 0 ? 0 : admission->num_idle;
    uint32_t places = admission->places_max > reserved ? admission->places_max - reserved : 0;
    if (admission->num_admitted >= places)
        return detail_set(detail, TOPKD_E_BUSY,
                          "the worker holds %" PRIu32 " requests of at most %" PRIu32 " (%" PRIu32
                          " kept for sessions without one): retry after an answer",
                          admission->num_admitted, admission->places_max, reserved);
    return TOPKD_OK;
}

bool admission_rate_take(struct admission_rate *rate, uint32_t per_s, uint64_t now_ns)
{
    uint64_t interval_ns = NS_PER_S / per_s;
    uint64_t due_ns = rate->due_ns > now_ns ? rate->due_ns : now_ns;
    if (due_ns - now_ns > NS_PER_S - interval_ns)
        return false;
    rate->due_ns = due_ns + interval_ns;
    return true;
}
