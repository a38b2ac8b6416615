/* cuda_driver.c - loads libcuda. */
#include "cuda_driver.h"

#include "fault.h"

#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct cuda_driver driver;
static char load_error[WIRE_DETAIL_SIZE];
static pid_t load_pid;

static void load(void)
{
    load_pid = getpid();
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        (void)fault(load_error, TOPKD_E_NOT_VISIBLE,
                    "this process has no CUDA driver: %.150s; install it, or start the container "
                    "with the GPU",
                    dlerror());
        return;
    }
#define LOAD(field, symbol, parameters)                                                            \
    *(void **)&driver.field = dlsym(library, symbol);                                              \
    if (!driver.field) {                                                                           \
        (void)fault(load_error, TOPKD_E_NOT_VISIBLE,                                               \
                    "the CUDA driver has no %s: it is older than CUDA 12; upgrade it", symbol);    \
        return;                                                                                    \
    }
    CUDA_DRIVER_TABLE(LOAD)
#undef LOAD
    int result = driver.init(0);
    if (result != CUDA_OK) {
        (void)cuda_driver_fault(&driver, result, TOPKD_E_NOT_VISIBLE,
                                "CUDA does not start in this process (under MPS: do its clients "
                                "together use too many connections? unset "
                                "CUDA_DEVICE_MAX_CONNECTIONS)",
                                load_error);
    }
}

enum topkd_status cuda_driver_get(const struct cuda_driver **driver_p, char *detail)
{
    (void)pthread_once(&once, load);
    if (load_error[0]) {
        return fault(detail, TOPKD_E_NOT_VISIBLE, "%s", load_error);
    }
    if (load_pid != getpid()) {
        return fault(detail, TOPKD_E_CLOSED,
                     "process %d was forked from process %d, which had used CUDA through topkd: "
                     "CUDA does not survive that; fork before, or exec a new program",
                     (int)getpid(), (int)load_pid);
    }
    *driver_p = &driver;
    return TOPKD_OK;
}

enum topkd_status cuda_driver_fault(const struct cuda_driver *cuda, int result,
                                    enum topkd_status otherwise, const char *what, char *detail)
{
    const char *name = NULL;
    const char *text = NULL;
    (void)cuda->error_name(result, &name);
    (void)cuda->error_text(result, &text);
    return fault(detail, result == CUDA_OUT_OF_MEMORY ? TOPKD_E_NO_MEMORY : otherwise,
                 "%.130s: %.40s (%.60s)", what, name ? name : "unknown error", text ? text : "");
}
