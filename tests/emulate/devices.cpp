/* The devices that can be pretended, and which one is. */
#include "emulate.h"
#include "machine.hpp"

#include <cstdio>
#include <cstdlib>
#include <cstring>

using emulate::machine;

namespace
{

/* Shared memory, in bytes: of CUDA's tables for each compute capability. */
constexpr struct emulate::device devices[] = {
    {"h200", 132, 9, 0, 232448, 233472, 16, 60 << 20},
    {"sm90", 4, 9, 0, 232448, 233472, 16, 8 << 20},
    {"sm90-18", 18, 9, 0, 232448, 233472, 16, 8 << 20},
    {"sm120", 4, 12, 0, 101376, 102400, 8, 8 << 20},
    {"sm80", 4, 8, 0, 166912, 167936, 1, 8 << 20},
};

/* Kernels are compiled for one architecture or another: see CMakeLists.txt. */
constexpr const char *DEFAULT_DEVICE = EMULATE_ARCHITECTURE >= 900 ? "sm90" : "sm80";

bool known;

void seed_with(uint64_t seed)
{
    machine.seed = machine.random.state = seed;
}

} // namespace

namespace emulate
{

void device_begin()
{
    if (known) {
        return;
    }
    const char *device = getenv("TOPKD_EMULATE_DEVICE"), *seed = getenv("TOPKD_EMULATE_SEED");
    emulate_device(device != nullptr ? device : DEFAULT_DEVICE);
    machine.soonest = UINT64_MAX;
    seed_with(seed != nullptr ? strtoull(seed, nullptr, 0) : 1);
}

} // namespace emulate

extern "C" {

void emulate_device(const char *name)
{
    for (const struct emulate::device &device : devices) {
        const bool runs = (device.major >= 9) == (EMULATE_ARCHITECTURE >= 900);
        if (runs && strcmp(device.name, name) == 0) {
            machine.device = device;
            known = true;
            return;
        }
    }
    fprintf(stderr, "emulate: no device '%s' for kernels of sm_%d; there are:", name,
            EMULATE_ARCHITECTURE / 10);
    for (const struct emulate::device &device : devices) {
        if ((device.major >= 9) == (EMULATE_ARCHITECTURE >= 900)) {
            fprintf(stderr, " %s", device.name);
        }
    }
    fprintf(stderr, "\n");
    exit(2);
}

void emulate_seed(uint64_t seed)
{
    emulate::device_begin();
    seed_with(seed);
}

void emulate_case(uint64_t number)
{
    machine.case_number = number;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    emulate::device_begin();
    *count = 1;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device)
{
    *device = 0;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
    emulate::device_begin();
    if (device != 0) {
        return cudaErrorInvalidDevice;
    }
    switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
        *value = machine.device.multiprocessors;
        return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
        *value = machine.device.major;
        return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
        *value = machine.device.minor;
        return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *value = machine.device.shared_per_block;
        return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
        *value = machine.device.shared_per_multiprocessor;
        return cudaSuccess;
    case cudaDevAttrL2CacheSize:
        *value = machine.device.l2_bytes;
        return cudaSuccess;
    default:
        return cudaErrorInvalidValue;
    }
}

const char *cudaGetErrorName(cudaError_t error)
{
    switch (error) {
    case cudaSuccess:
        return "cudaSuccess";
    case cudaErrorMemoryAllocation:
        return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration:
        return "cudaErrorInvalidConfiguration";
    case cudaErrorInvalidDevice:
        return "cudaErrorInvalidDevice";
    case cudaErrorInvalidResourceHandle:
        return "cudaErrorInvalidResourceHandle";
    case cudaErrorNotReady:
        return "cudaErrorNotReady";
    default:
        return "cudaErrorInvalidValue";
    }
}

const char *cudaGetErrorString(cudaError_t error)
{
    return cudaGetErrorName(error);
}
}
