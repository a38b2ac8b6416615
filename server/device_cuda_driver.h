/*
 * device_cuda_driver.h - the CUDA driver, loaded when a worker needs it.
 *
 * libcuda belongs to the machine's driver, not to the toolkit, so the daemon does not link it: one
 * binary serves machines with and without a GPU. The table below is the whole of what the worker
 * calls; names are those of cuda.h, whose macros add the versions (cuMemAlloc is cuMemAlloc_v2).
 */
#ifndef TOPKD_SERVER_DEVICE_CUDA_DRIVER_H
#define TOPKD_SERVER_DEVICE_CUDA_DRIVER_H

#include "topkd_status.h"

#include <cuda.h>

#define CUDA_DRIVER_TABLE(X)                                                                       \
    X(cuInit)                                                                                      \
    X(cuDriverGetVersion)                                                                          \
    X(cuGetErrorName)                                                                              \
    X(cuGetErrorString)                                                                            \
    X(cuDeviceGetCount)                                                                            \
    X(cuDeviceGet)                                                                                 \
    X(cuDeviceGetUuid)                                                                             \
    X(cuDeviceGetName)                                                                             \
    X(cuDeviceGetAttribute)                                                                        \
    X(cuDevicePrimaryCtxRetain)                                                                    \
    X(cuDevicePrimaryCtxRelease)                                                                   \
    X(cuCtxSetCurrent)                                                                             \
    X(cuMemAlloc)                                                                                  \
    X(cuMemFree)                                                                                   \
    X(cuMemHostAlloc)                                                                              \
    X(cuMemFreeHost)                                                                               \
    X(cuMemHostRegister)                                                                           \
    X(cuMemHostUnregister)                                                                         \
    X(cuMemHostGetDevicePointer)                                                                   \
    X(cuMemsetD8Async)                                                                             \
    X(cuMemcpyHtoDAsync)                                                                           \
    X(cuMemcpyDtoHAsync)                                                                           \
    X(cuMemGetAddressRange)                                                                        \
    X(cuIpcGetMemHandle)                                                                           \
    X(cuIpcOpenMemHandle)                                                                          \
    X(cuIpcCloseMemHandle)                                                                         \
    X(cuMemImportFromShareableHandle)                                                              \
    X(cuMemAddressReserve)                                                                         \
    X(cuMemAddressFree)                                                                            \
    X(cuMemMap)                                                                                    \
    X(cuMemUnmap)                                                                                  \
    X(cuMemSetAccess)                                                                              \
    X(cuMemRelease)                                                                                \
    X(cuStreamCreate)                                                                              \
    X(cuStreamDestroy)                                                                             \
    X(cuStreamSynchronize)                                                                         \
    X(cuStreamQuery)                                                                               \
    X(cuStreamBatchMemOp)                                                                          \
    X(cuStreamWaitValue64)                                                                         \
    X(cuStreamBeginCapture)                                                                        \
    X(cuStreamEndCapture)                                                                          \
    X(cuGraphInstantiateWithFlags)                                                                 \
    X(cuGraphUpload)                                                                               \
    X(cuGraphLaunch)                                                                               \
    X(cuGraphExecDestroy)                                                                          \
    X(cuGraphDestroy)

#define CUDA_DRIVER_FIELD(name) __typeof__(&name) name;
struct cuda_driver {
    CUDA_DRIVER_TABLE(CUDA_DRIVER_FIELD)
};
#undef CUDA_DRIVER_FIELD

/*
 * The functions, loaded once in the life of the process; does not call cuInit. NULL with a text in
 * detail[WIRE_DETAIL_SIZE] when the machine has no driver, or one too old. Any thread.
 */
const struct cuda_driver *cuda_driver_get(char *detail);

/* "CUDA_ERROR_OUT_OF_MEMORY (out of memory)", static storage of the driver or of this call's
 * text[CUDA_ERROR_SIZE]; returns text. */
#define CUDA_ERROR_SIZE 160u
const char *cuda_driver_error(const struct cuda_driver *driver, CUresult result, char *text);

/*
 * Whether an error poisons the context, so that every later call fails as well: an address fault,
 * a failed launch, a lost device. The worker then ends; in-process recovery does not exist.
 */
int cuda_error_is_sticky(CUresult result);

#endif
