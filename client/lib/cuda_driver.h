/*
 * cuda_driver.h - the part of the CUDA driver that the library uses, loaded when it is first
 * needed.
 *
 * Declared here and not taken from cuda.h, so that the library is built, and packaged, on machines
 * without a CUDA toolkit, and one package serves users with and without a GPU. The driver's binary
 * interface does not change within a versioned name; tests/gpu/cuda_abi_test.c compares these
 * declarations with cuda.h where there is one.
 */
#ifndef TOPKD_CLIENT_CUDA_DRIVER_H
#define TOPKD_CLIENT_CUDA_DRIVER_H

#include "topkd_status.h"

#include <stddef.h>
#include <stdint.h>

/* Results. */
#define CUDA_OK 0
#define CUDA_INVALID_VALUE 1
#define CUDA_OUT_OF_MEMORY 2

/* Attributes of a pointer. */
#define CUDA_POINTER_MEMORY_TYPE 2
#define CUDA_POINTER_BUFFER_ID 7
#define CUDA_POINTER_IS_MANAGED 8
#define CUDA_POINTER_DEVICE_ORDINAL 9
#define CUDA_POINTER_IS_LEGACY_IPC_CAPABLE 10
#define CUDA_POINTER_MEMPOOL 17

#define CUDA_MEMORY_DEVICE 2u
#define CUDA_HANDLE_POSIX_FD 1u
#define CUDA_HOST_REGISTER_PORTABLE 1u
#define CUDA_HOST_REGISTER_DEVICEMAP 2u
#define CUDA_IPC_LAZY_PEER_ACCESS 1u
#define CUDA_STREAM_NON_BLOCKING 1u
#define CUDA_WAIT_GEQ 0u
#define CUDA_WAIT_AND 2u
#define CUDA_OP_WAIT_32 1u
#define CUDA_OP_WRITE_32 2u
#define CUDA_ATTRIBUTE_MPS_ENABLED 133 /* of a device */

struct cuda_uuid {
    unsigned char bytes[16];
};

struct cuda_ipc_handle {
    char bytes[64];
};

/* CUmemAllocationProp. */
struct cuda_allocation {
    uint32_t type, handle_types;
    uint32_t location_type;
    int32_t location_id;
    void *win32;
    unsigned char flags[8];
};

typedef uint64_t cuda_pointer; /* CUdeviceptr */

/* CUstreamBatchMemOpParams: a write or a wait. */
struct cuda_word_op {
    uint32_t operation;
    cuda_pointer address;
    uint64_t value; /* of 32 bits: the low half */
    uint32_t flags;
    cuda_pointer alias;
    uint64_t reserved;
};

/* CUDA_BATCH_MEM_OP_NODE_PARAMS. */
struct cuda_word_node {
    void *context;
    uint32_t num_ops;
    struct cuda_word_op *ops;
    uint32_t flags;
};

/* CUDA_KERNEL_NODE_PARAMS. */
struct cuda_kernel_node {
    void *function;
    uint32_t grid[3], block[3];
    uint32_t shared_bytes;
    void **parameters;
    void **extra;
    void *kernel;
    void *context;
};

/* Field, symbol of the driver, parameters. Contexts and streams are pointers of the driver's. */
#define CUDA_DRIVER_TABLE(X)                                                                       \
    X(init, "cuInit", (unsigned flags))                                                            \
    X(driver_version, "cuDriverGetVersion", (int *version_p))                                      \
    X(error_name, "cuGetErrorName", (int result, const char **text_p))                             \
    X(error_text, "cuGetErrorString", (int result, const char **text_p))                           \
    X(device_count, "cuDeviceGetCount", (int *count_p))                                            \
    X(device, "cuDeviceGet", (int *device_p, int ordinal))                                         \
    X(device_uuid, "cuDeviceGetUuid_v2", (struct cuda_uuid * uuid_p, int device))                  \
    X(device_attribute, "cuDeviceGetAttribute", (int *value_p, int attribute, int device))         \
    X(context_retain, "cuDevicePrimaryCtxRetain", (void **context_p, int device))                  \
    X(context_release, "cuDevicePrimaryCtxRelease_v2", (int device))                               \
    X(context_push, "cuCtxPushCurrent_v2", (void *context))                                        \
    X(context_pop, "cuCtxPopCurrent_v2", (void **context_p))                                       \
    X(pointer_attribute, "cuPointerGetAttribute", (void *data, int attribute, cuda_pointer p))     \
    X(address_range, "cuMemGetAddressRange_v2",                                                    \
      (cuda_pointer * base_p, size_t * size_p, cuda_pointer p))                                    \
    X(alloc, "cuMemAlloc_v2", (cuda_pointer * pointer_p, size_t size))                             \
    X(free, "cuMemFree_v2", (cuda_pointer pointer))                                                \
    X(set_bytes, "cuMemsetD8Async",                                                                \
      (cuda_pointer to, unsigned char value, size_t n, void *stream))                              \
    X(copy, "cuMemcpyDtoDAsync_v2",                                                                \
      (cuda_pointer to, cuda_pointer from, size_t size, void *stream))                             \
    X(read, "cuMemcpyDtoHAsync_v2", (void *to, cuda_pointer from, size_t size, void *stream))      \
    X(ipc_get, "cuIpcGetMemHandle", (struct cuda_ipc_handle * handle_p, cuda_pointer pointer))     \
    X(ipc_open, "cuIpcOpenMemHandle_v2",                                                           \
      (cuda_pointer * pointer_p, struct cuda_ipc_handle handle, unsigned flags))                   \
    X(ipc_close, "cuIpcCloseMemHandle", (cuda_pointer pointer))                                    \
    X(virtual_retain, "cuMemRetainAllocationHandle", (uint64_t * handle_p, void *address))         \
    X(virtual_properties, "cuMemGetAllocationPropertiesFromHandle",                                \
      (struct cuda_allocation * allocation_p, uint64_t handle))                                    \
    X(virtual_export, "cuMemExportToShareableHandle",                                              \
      (void *shareable_p, uint64_t handle, unsigned type, unsigned long long flags))               \
    X(virtual_release, "cuMemRelease", (uint64_t handle))                                          \
    X(host_register, "cuMemHostRegister_v2", (void *address, size_t size, unsigned flags))         \
    X(host_unregister, "cuMemHostUnregister", (void *address))                                     \
    X(host_pointer, "cuMemHostGetDevicePointer_v2",                                                \
      (cuda_pointer * pointer_p, void *address, unsigned flags))                                   \
    X(stream_create, "cuStreamCreate", (void **stream_p, unsigned flags))                          \
    X(stream_destroy, "cuStreamDestroy_v2", (void *stream))                                        \
    X(stream_synchronize, "cuStreamSynchronize", (void *stream))                                   \
    X(stream_id, "cuStreamGetId", (void *stream, unsigned long long *id_p))                        \
    X(stream_capturing, "cuStreamIsCapturing", (void *stream, int *status_p))                      \
    X(stream_write, "cuStreamWriteValue64_v2",                                                     \
      (void *stream, cuda_pointer to, uint64_t value, unsigned flags))                             \
    X(stream_wait, "cuStreamWaitValue64_v2",                                                       \
      (void *stream, cuda_pointer at, uint64_t value, unsigned flags))                             \
    X(stream_words, "cuStreamBatchMemOp_v2",                                                       \
      (void *stream, unsigned num_ops, struct cuda_word_op *ops, unsigned flags))                  \
    X(graph_add_words, "cuGraphAddBatchMemOpNode",                                                 \
      (void **node_p, void *graph, void *const *dependencies, size_t num_dependencies,             \
       const struct cuda_word_node *params))                                                       \
    X(graph_add_kernel, "cuGraphAddKernelNode_v2",                                                 \
      (void **node_p, void *graph, void *const *dependencies, size_t num_dependencies,             \
       const struct cuda_kernel_node *params))                                                     \
    X(module_load, "cuModuleLoadData", (void **module_p, const void *image))                       \
    X(module_function, "cuModuleGetFunction", (void **function_p, void *module, const char *name)) \
    X(module_unload, "cuModuleUnload", (void *module))                                             \
    X(launch, "cuLaunchKernel",                                                                    \
      (void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,        \
       unsigned block_y, unsigned block_z, unsigned shared_bytes, void *stream, void **parameters, \
       void **extra))

struct cuda_driver {
#define CUDA_DRIVER_FIELD(field, symbol, parameters) int(*field) parameters;
    CUDA_DRIVER_TABLE(CUDA_DRIVER_FIELD)
#undef CUDA_DRIVER_FIELD
};

/* The driver, loaded and initialised once a process. TOPKD_E_NOT_VISIBLE with the reason when this
 * machine has none, or it does not start. Any thread. */
enum topkd_status cuda_driver_get(const struct cuda_driver **driver_p, char *detail);

/* The status with "<what>: <the driver's name and text of result>": TOPKD_E_NO_MEMORY when the
 * device has none left, else `otherwise`. */
enum topkd_status cuda_driver_fault(const struct cuda_driver *driver, int result,
                                    enum topkd_status otherwise, const char *what, char *detail);

#endif
