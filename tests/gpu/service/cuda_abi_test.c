/* cuda_abi_test.c - the driver's declarations in client/lib/cuda_driver.h against cuda.h. It passes
 * when it compiles. */
#include "cuda_driver.h"

#include <cuda.h>

#define SAME(a, b) _Static_assert((unsigned long long)(a) == (unsigned long long)(b), #a " is " #b)

SAME(CUDA_OK, CUDA_SUCCESS);
SAME(CUDA_INVALID_VALUE, CUDA_ERROR_INVALID_VALUE);
SAME(CUDA_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY);
SAME(CUDA_POINTER_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
SAME(CUDA_POINTER_BUFFER_ID, CU_POINTER_ATTRIBUTE_BUFFER_ID);
SAME(CUDA_POINTER_IS_MANAGED, CU_POINTER_ATTRIBUTE_IS_MANAGED);
SAME(CUDA_POINTER_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
SAME(CUDA_POINTER_IS_LEGACY_IPC_CAPABLE, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE);
SAME(CUDA_POINTER_MEMPOOL, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE);
SAME(CUDA_MEMORY_DEVICE, CU_MEMORYTYPE_DEVICE);
SAME(CUDA_HANDLE_POSIX_FD, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
SAME(CUDA_HOST_REGISTER_PORTABLE, CU_MEMHOSTREGISTER_PORTABLE);
SAME(CUDA_HOST_REGISTER_DEVICEMAP, CU_MEMHOSTREGISTER_DEVICEMAP);
SAME(CUDA_IPC_LAZY_PEER_ACCESS, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
SAME(CUDA_STREAM_NON_BLOCKING, CU_STREAM_NON_BLOCKING);
SAME(CUDA_WAIT_GEQ, CU_STREAM_WAIT_VALUE_GEQ);
SAME(sizeof(struct cuda_uuid), sizeof(CUuuid));
SAME(sizeof(struct cuda_ipc_handle), sizeof(CUipcMemHandle));
SAME(sizeof(cuda_pointer), sizeof(CUdeviceptr));
SAME(sizeof(struct cuda_allocation), sizeof(CUmemAllocationProp));
SAME(offsetof(struct cuda_allocation, handle_types),
     offsetof(CUmemAllocationProp, requestedHandleTypes));
SAME(offsetof(struct cuda_allocation, location_id), offsetof(CUmemAllocationProp, location.id));

SAME(CUDA_WAIT_AND, CU_STREAM_WAIT_VALUE_AND);
SAME(CUDA_OP_WAIT_32, CU_STREAM_MEM_OP_WAIT_VALUE_32);
SAME(CUDA_OP_WRITE_32, CU_STREAM_MEM_OP_WRITE_VALUE_32);
SAME(sizeof(struct cuda_word_op), sizeof(CUstreamBatchMemOpParams));
SAME(offsetof(struct cuda_word_op, address), offsetof(CUstreamBatchMemOpParams, waitValue.address));
SAME(offsetof(struct cuda_word_op, value), offsetof(CUstreamBatchMemOpParams, waitValue.value64));
SAME(offsetof(struct cuda_word_op, flags), offsetof(CUstreamBatchMemOpParams, waitValue.flags));
SAME(offsetof(struct cuda_word_op, address),
     offsetof(CUstreamBatchMemOpParams, writeValue.address));
SAME(offsetof(struct cuda_word_op, value), offsetof(CUstreamBatchMemOpParams, writeValue.value));
SAME(offsetof(struct cuda_word_op, flags), offsetof(CUstreamBatchMemOpParams, writeValue.flags));
SAME(sizeof(struct cuda_word_node), sizeof(CUDA_BATCH_MEM_OP_NODE_PARAMS));
SAME(offsetof(struct cuda_word_node, num_ops), offsetof(CUDA_BATCH_MEM_OP_NODE_PARAMS, count));
SAME(offsetof(struct cuda_word_node, ops), offsetof(CUDA_BATCH_MEM_OP_NODE_PARAMS, paramArray));

SAME(CUDA_ATTRIBUTE_MPS_ENABLED, CU_DEVICE_ATTRIBUTE_MPS_ENABLED);
SAME(sizeof(struct cuda_kernel_node), sizeof(CUDA_KERNEL_NODE_PARAMS));
SAME(offsetof(struct cuda_kernel_node, grid), offsetof(CUDA_KERNEL_NODE_PARAMS, gridDimX));
SAME(offsetof(struct cuda_kernel_node, block), offsetof(CUDA_KERNEL_NODE_PARAMS, blockDimX));
SAME(offsetof(struct cuda_kernel_node, shared_bytes),
     offsetof(CUDA_KERNEL_NODE_PARAMS, sharedMemBytes));
SAME(offsetof(struct cuda_kernel_node, parameters),
     offsetof(CUDA_KERNEL_NODE_PARAMS, kernelParams));
SAME(offsetof(struct cuda_kernel_node, kernel), offsetof(CUDA_KERNEL_NODE_PARAMS, kern));

/* The versioned symbols are what cuda.h's macros make of the names. */
#define NAME_TEXT(name) #name
#define VERSIONED(name) NAME_TEXT(name)
#define SAME_NAME(name, symbol)                                                                    \
    _Static_assert(sizeof(VERSIONED(name)) == sizeof(symbol), #name " is not " symbol)
SAME_NAME(cuDeviceGetUuid, "cuDeviceGetUuid_v2");
SAME_NAME(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2");
SAME_NAME(cuCtxPushCurrent, "cuCtxPushCurrent_v2");
SAME_NAME(cuCtxPopCurrent, "cuCtxPopCurrent_v2");
SAME_NAME(cuMemGetAddressRange, "cuMemGetAddressRange_v2");
SAME_NAME(cuMemAlloc, "cuMemAlloc_v2");
SAME_NAME(cuMemFree, "cuMemFree_v2");
SAME_NAME(cuMemcpyDtoDAsync, "cuMemcpyDtoDAsync_v2");
SAME_NAME(cuMemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2");
SAME_NAME(cuIpcOpenMemHandle, "cuIpcOpenMemHandle_v2");
SAME_NAME(cuMemHostRegister, "cuMemHostRegister_v2");
SAME_NAME(cuMemHostGetDevicePointer, "cuMemHostGetDevicePointer_v2");
SAME_NAME(cuStreamDestroy, "cuStreamDestroy_v2");
SAME_NAME(cuStreamWriteValue64, "cuStreamWriteValue64_v2");
SAME_NAME(cuStreamWaitValue64, "cuStreamWaitValue64_v2");
SAME_NAME(cuStreamBatchMemOp, "cuStreamBatchMemOp_v2");
SAME_NAME(cuGraphAddKernelNode, "cuGraphAddKernelNode_v2");
SAME_NAME(cuModuleLoadData, "cuModuleLoadData");
SAME_NAME(cuLaunchKernel, "cuLaunchKernel");
