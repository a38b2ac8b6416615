#include "device_cuda_driver.h"

#include "detail.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

/* Soname of every driver since CUDA 1; the unversioned name exists on developers' machines only. */
#define DRIVER_LIBRARY "libcuda.so.1"

#define NAME_TEXT(name) #name
#define VERSIONED_TEXT(name) NAME_TEXT(name)

static pthread_once_t load_once = PTHREAD_ONCE_INIT;
static struct cuda_driver loaded;
static char load_error[WIRE_DETAIL_SIZE];

static void driver_load(void)
{
    void *library = dlopen(DRIVER_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        detail_set(load_error, TOPKD_E_NO_DEVICE,
                   "no CUDA driver on this machine (%s); install NVIDIA's driver, or in a "
                   "container start it with the GPU",
                   dlerror());
        return;
    }
#define LOAD(name)                                                                                 \
    *(void **)&loaded.name = dlsym(library, VERSIONED_TEXT(name));                                 \
    if (!loaded.name) {                                                                            \
        detail_set(load_error, TOPKD_E_NO_DEVICE,                                                  \
                   DRIVER_LIBRARY " has no %s: the driver is older than CUDA 12; upgrade it",      \
                   VERSIONED_TEXT(name));                                                          \
        return;                                                                                    \
    }
    CUDA_DRIVER_TABLE(LOAD)
#undef LOAD
}

const struct cuda_driver *cuda_driver_get(char *detail)
{
    pthread_once(&load_once, driver_load);
    if (load_error[0]) {
        detail_set(detail, TOPKD_E_NO_DEVICE, "%s", load_error);
        return NULL;
    }
    return &loaded;
}

const char *cuda_driver_error(const struct cuda_driver *driver, CUresult result, char *text)
{
    const char *name = NULL;
    const char *message = NULL;
    driver->cuGetErrorName(result, &name);
    driver->cuGetErrorString(result, &message);
    if (name) {
        snprintf(text, CUDA_ERROR_SIZE, "%s (%s)", name, message ? message : "no text");
    } else {
        snprintf(text, CUDA_ERROR_SIZE, "CUDA error %d", (int)result);
    }
    return text;
}

int cuda_error_is_sticky(CUresult result)
{
    switch (result) {
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_CONTAINED:
    case CUDA_ERROR_EXTERNAL_DEVICE:
    case CUDA_ERROR_MPS_CLIENT_TERMINATED:
    case CUDA_ERROR_MPS_RPC_FAILURE:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_DEINITIALIZED:
    case CUDA_ERROR_UNKNOWN:
        return 1;
    default:
        return 0;
    }
}
