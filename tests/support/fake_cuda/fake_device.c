/* fake_device.c - what the environment asks for; devices and contexts. */
#include "fake_cuda.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static __thread CUcontext stack[16];
static __thread int depth;

static int env(const char *name, int otherwise)
{
    const char *text = getenv(name);
    return text != NULL ? atoi(text) : otherwise;
}

bool fake_fails(const char *call)
{
    const char *path = getenv("FAKE_CUDA_FAIL");
    char wanted[64] = "";
    int fd = path != NULL ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0)
        return false;
    ssize_t size = read(fd, wanted, sizeof(wanted) - 1);
    close(fd);
    wanted[size > 0 ? size : 0] = '\0';
    wanted[strcspn(wanted, "\n")] = '\0';
    return strcmp(wanted, call) == 0;
}

CUresult cuInit(unsigned int flags)
{
    (void)flags;
    return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int *version_p)
{
    *version_p = 13000;
    return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char **text_p)
{
    *text_p =
        error == CUDA_ERROR_INVALID_CONTEXT ? "CUDA_ERROR_INVALID_CONTEXT" : "CUDA_ERROR_FAKE";
    return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult error, const char **text_p)
{
    (void)error;
    *text_p = "fake driver";
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count_p)
{
    *count_p = env("FAKE_CUDA_DEVICES", 1) - env("FAKE_CUDA_FIRST", 0);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device_p, int ordinal)
{
    *device_p = ordinal;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid *uuid_p, CUdevice device)
{
    memset(uuid_p, 0xfa, sizeof(*uuid_p));
    uuid_p->bytes[15] = (char)(device + env("FAKE_CUDA_FIRST", 0));
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *name, int size, CUdevice device)
{
    snprintf(name, (size_t)size, "Fake GPU %d", device);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *value_p, CUdevice_attribute attribute, CUdevice device)
{
    (void)device;
    *value_p = attribute != CU_DEVICE_ATTRIBUTE_COMPUTE_MODE;
    if (attribute == CU_DEVICE_ATTRIBUTE_MPS_ENABLED)
        *value_p = env("FAKE_CUDA_MPS", 1);
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context_p, CUdevice device)
{
    *context_p = (CUcontext)(uintptr_t)(0x1000 + device);
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
    (void)device;
    return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context)
{
    depth = depth > 0 ? depth : 1;
    stack[depth - 1] = context;
    return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent(CUcontext context)
{
    if (depth == 16)
        abort(); /* a push without its pop */
    stack[depth++] = context;
    return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent(CUcontext *context_p)
{
    if (depth == 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    *context_p = stack[--depth];
    return CUDA_SUCCESS;
}

int fake_current_device(void)
{
    return depth > 0 ? (int)((uintptr_t)stack[depth - 1] - 0x1000) : -1;
}
