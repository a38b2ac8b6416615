/* doctor_xid.c - errors that the driver reports as Xid: those in the kernel's log, and those that
 * NVML tells of while the doctor looks. */
#include "doctor.h"
#include "xid_log.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/klog.h>

#define KLOG_READ_ALL 3 /* syslog(2) */
#define KLOG_SIZE_BUFFER 10
#define WATCH_MS 100u    /* choice: an error that repeats, repeats faster */
#define EVENT_XID 0x8ull /* nvmlEventTypeXidCriticalError */
#define NVML_TIMEOUT 10  /* NVML_ERROR_TIMEOUT */

/* nvmlEventData_t */
struct nvml_event {
    void *device;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
};

/* Newer than the rest of NVML that is asked; not there, nobody watches. */
#define NVML_EVENT_TABLE(X)                                                                        \
    X(supported, "nvmlDeviceGetSupportedEventTypes", (void *device, unsigned long long *types_p))  \
    X(create, "nvmlEventSetCreate", (void **set_p))                                                \
    X(add, "nvmlDeviceRegisterEvents", (void *device, unsigned long long types, void *set))        \
    X(wait, "nvmlEventSetWait_v2", (void *set, struct nvml_event *event, unsigned timeout_ms))     \
    X(destroy, "nvmlEventSetFree", (void *set))

struct nvml_events {
#define NVML_FIELD(field, symbol, parameters) int(*field) parameters;
    NVML_EVENT_TABLE(NVML_FIELD)
#undef NVML_FIELD
};

static bool load_events(struct nvml_events *events)
{
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        return false;
    }
#define LOAD(field, symbol, parameters)                                                            \
    *(void **)&events->field = dlsym(library, symbol);                                             \
    if (!events->field) {                                                                          \
        return false;                                                                              \
    }
    NVML_EVENT_TABLE(LOAD)
#undef LOAD
    return true;
}

static void note_xid(struct doctor *doctor, uint32_t xid, const char *text)
{
    if (xid_is_hardware(xid)) {
        doctor_note(doctor, DOCTOR_FAIL, "xid",
                    "drain the node, then reset the GPU; if it comes again, have it replaced", "%s",
                    text);
    } else {
        doctor_note(doctor, DOCTOR_WARN, "xid",
                    "look in the kernel's log which process it was; topkd's worker restarts by "
                    "itself (topkctl devices)",
                    "%s", text);
    }
}

/* What NVML tells of within a moment. */
static void watch(struct doctor *doctor, void *const *devices, unsigned count)
{
    struct nvml_events events = {0};
    struct nvml_event event = {0};
    void *set = NULL;
    unsigned num_watched = 0;
    char text[128];
    if (!load_events(&events) || events.create(&set) != 0) {
        return;
    }
    for (unsigned i = 0; i < count; i++) {
        unsigned long long types = 0;
        num_watched += events.supported(devices[i], &types) == 0 && (types & EVENT_XID) &&
                       events.add(devices[i], EVENT_XID, set) == 0;
    }
    int result = num_watched > 0 ? events.wait(set, &event, WATCH_MS) : NVML_TIMEOUT;
    if (result == 0) {
        (void)snprintf(text, sizeof(text), "Xid %llu is being reported at this moment", event.data);
        note_xid(doctor, (uint32_t)event.data, text);
    } else if (result == NVML_TIMEOUT && num_watched > 0) {
        doctor_note(doctor, DOCTOR_OK, "xid", NULL, "none within %u ms on %u of %u GPUs", WATCH_MS,
                    num_watched, count);
    }
    (void)events.destroy(set);
}

/* What the kernel still has in its log. */
static void read_log(struct doctor *doctor)
{
    struct xid_summary summary = {0};
    char text[160];
    int size = klogctl(KLOG_SIZE_BUFFER, NULL, 0);
    char *log = size > 0 ? malloc((size_t)size) : NULL;
    int length = log ? klogctl(KLOG_READ_ALL, log, size) : -1;
    if (length < 0) {
        doctor_note(doctor, DOCTOR_OK, "xid", NULL,
                    "unknown from the past: the kernel's log is not readable for this user (%s)",
                    strerror(errno));
        free(log);
        return;
    }
    xid_scan(log, (size_t)length, &summary);
    free(log);
    if (summary.num_hardware > 0) {
        (void)snprintf(text, sizeof(text),
                       "%u in the kernel's log that mean hardware or driver, the last is %u of %s",
                       summary.num_hardware, summary.last_hardware, summary.hardware_at);
        note_xid(doctor, summary.last_hardware, text);
    }
    if (summary.num_other > 0) {
        (void)snprintf(text, sizeof(text),
                       "%u in the kernel's log that mean a program, the last is %u of %s",
                       summary.num_other, summary.last_other, summary.other_at);
        note_xid(doctor, summary.last_other, text);
    }
    if (summary.num_hardware + summary.num_other == 0) {
        doctor_note(doctor, DOCTOR_OK, "xid", NULL, "none in the kernel's log");
    }
}

void doctor_xid(struct doctor *doctor, void *const *devices, unsigned count)
{
    read_log(doctor);
    watch(doctor, devices, count);
}
