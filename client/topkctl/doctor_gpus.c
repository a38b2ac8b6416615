/* doctor_gpus.c - what NVML, loaded at run time, and the environment say about the GPUs. */
#include "doctor.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The little of NVML that is asked; its binary interface is fixed by the versioned names. */
#define NVML_TABLE(X)                                                                              \
    X(init, "nvmlInit_v2", (void))                                                                 \
    X(shutdown, "nvmlShutdown", (void))                                                            \
    X(driver_version, "nvmlSystemGetDriverVersion", (char *text, unsigned size))                   \
    X(cuda_version, "nvmlSystemGetCudaDriverVersion_v2", (int *version_p))                         \
    X(count, "nvmlDeviceGetCount_v2", (unsigned *count_p))                                         \
    X(device, "nvmlDeviceGetHandleByIndex_v2", (unsigned index, void **device_p))                  \
    X(name, "nvmlDeviceGetName", (void *device, char *text, unsigned size))                        \
    X(uuid, "nvmlDeviceGetUUID", (void *device, char *text, unsigned size))                        \
    X(compute_mode, "nvmlDeviceGetComputeMode", (void *device, unsigned *mode_p))                  \
    X(ecc_errors, "nvmlDeviceGetTotalEccErrors",                                                   \
      (void *device, unsigned type, unsigned counter, unsigned long long *count_p))                \
    X(retired, "nvmlDeviceGetRemappedRows",                                                        \
      (void *device, unsigned *corrected_p, unsigned *uncorrected_p, unsigned *pending_p,          \
       unsigned *failed_p))

struct nvml {
#define NVML_FIELD(field, symbol, parameters) int(*field) parameters;
    NVML_TABLE(NVML_FIELD)
#undef NVML_FIELD
};

#define GPUS_MAX 64u /* of one machine that are watched for Xid events */

#define NVML_UNCORRECTED 1u /* NVML_MEMORY_ERROR_TYPE_UNCORRECTED */
#define NVML_VOLATILE 0u    /* NVML_VOLATILE_ECC: since the driver was loaded */

static bool load_nvml(struct doctor *doctor, struct nvml *nvml)
{
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        doctor_note(doctor, DOCTOR_OK, "gpu", NULL,
                    "no NVIDIA driver on this machine or in this container: the CPU device serves");
        return false;
    }
#define LOAD(field, symbol, parameters)                                                            \
    *(void **)&nvml->field = dlsym(library, symbol);                                               \
    if (!nvml->field) {                                                                            \
        doctor_note(doctor, DOCTOR_WARN, "gpu", "upgrade the driver", "NVML has no %s", symbol);   \
        return false;                                                                              \
    }
    NVML_TABLE(LOAD)
#undef LOAD
    if (nvml->init() != 0) {
        doctor_note(doctor, DOCTOR_FAIL, "gpu",
                    "load the driver (nvidia-smi must work), start the container with the GPUs",
                    "NVML is there but does not start");
        return false;
    }
    return true;
}

static void check_driver(struct doctor *doctor, const struct nvml *nvml)
{
    char text[96] = "unknown";
    int version = 0;
    (void)nvml->driver_version(text, sizeof(text));
    (void)nvml->cuda_version(&version);
    if (version < 12000) {
        doctor_note(doctor, DOCTOR_FAIL, "driver", "upgrade the driver to CUDA 12 or later",
                    "driver %s speaks CUDA %d.%d", text, version / 1000, version % 1000 / 10);
    } else {
        doctor_note(doctor, DOCTOR_OK, "driver", NULL, "driver %s speaks CUDA %d.%d", text,
                    version / 1000, version % 1000 / 10);
    }
}

/* Whether the daemon has a worker for it; without a daemon nobody knows. */
static bool is_served(const struct doctor *doctor, const char *uuid)
{
    for (uint32_t i = 0; i < doctor->devices.num_devices; i++) {
        if (strcmp(doctor->devices.devices[i].device, uuid) == 0) {
            return true;
        }
    }
    return !doctor->has_daemon;
}

static void check_health(struct doctor *doctor, const struct nvml *nvml, void *device,
                         const char *uuid)
{
    unsigned long long errors = 0;
    unsigned corrected = 0, uncorrected = 0, pending = 0, failed = 0;
    if (nvml->ecc_errors(device, NVML_UNCORRECTED, NVML_VOLATILE, &errors) == 0) {
        if (errors > 0) {
            doctor_note(doctor, DOCTOR_FAIL, "memory errors",
                        "drain the node and reset the GPU; look for Xid lines in dmesg",
                        "%s: %llu uncorrected errors since the driver was loaded", uuid, errors);
        } else {
            doctor_note(doctor, DOCTOR_OK, "memory errors", NULL, "%s: none uncorrected", uuid);
        }
    }
    if (nvml->retired(device, &corrected, &uncorrected, &pending, &failed) == 0 &&
        (pending || failed)) {
        doctor_note(doctor, DOCTOR_FAIL, "memory rows",
                    "reset the GPU; if it stays, have it replaced", "%s: rows %s remapping", uuid,
                    failed ? "failed in" : "wait for a reset for");
    }
}

/* False: it cannot be opened. */
static bool check_device(struct doctor *doctor, const struct nvml *nvml, unsigned index,
                         void **device_p)
{
    static const char *const modes[] = {"default", "exclusive thread", "prohibited",
                                        "exclusive process"};
    void *device;
    char name[96] = "?", uuid[96] = "?";
    unsigned mode = 0;
    if (nvml->device(index, &device) != 0) {
        doctor_note(doctor, DOCTOR_FAIL, "gpu", "look for Xid lines in dmesg, reset the GPU",
                    "number %u cannot be opened", index);
        return false;
    }
    (void)nvml->name(device, name, sizeof(name));
    (void)nvml->uuid(device, uuid, sizeof(uuid));
    doctor_note(doctor, is_served(doctor, uuid) ? DOCTOR_OK : DOCTOR_WARN, "gpu",
                is_served(doctor, uuid) ? NULL : "add it to devices, or use devices: [auto]",
                "%u: %s, %s%s", index, uuid, name,
                is_served(doctor, uuid) ? "" : ", which the daemon does not serve");
    if (nvml->compute_mode(device, &mode) == 0) {
        const char *text = mode < 4 ? modes[mode] : "unknown";
        if (mode == 0) {
            doctor_note(doctor, DOCTOR_OK, "compute mode", NULL, "%s: %s", uuid, text);
        } else {
            doctor_note(doctor, mode == 2 ? DOCTOR_FAIL : DOCTOR_WARN, "compute mode",
                        "run MPS, through which several processes share the GPU in this mode, or "
                        "have an administrator set the default mode",
                        "%s: %s: only one process may use it without MPS", uuid, text);
        }
    }
    check_health(doctor, nvml, device, uuid);
    *device_p = device;
    return true;
}

/* ---- MPS ------------------------------------------------------------------------------------- */

static bool runs(const char *wanted)
{
    DIR *folder = opendir("/proc");
    bool found = false;
    for (struct dirent *entry = folder ? readdir(folder) : NULL; entry && !found;
         entry = readdir(folder)) {
        char path[300], name[64] = "";
        (void)snprintf(path, sizeof(path), "/proc/%s/comm", entry->d_name);
        FILE *file = entry->d_name[0] >= '1' && entry->d_name[0] <= '9' ? fopen(path, "r") : NULL;
        if (file) {
            /* The kernel keeps 15 characters of a name. */
            found = fgets(name, sizeof(name), file) && strncmp(name, wanted, 15) == 0;
            fclose(file);
        }
    }
    if (folder) {
        closedir(folder);
    }
    return found;
}

static void check_mps(struct doctor *doctor)
{
    const char *folder = getenv("CUDA_MPS_PIPE_DIRECTORY");
    char path[256];
    (void)snprintf(path, sizeof(path), "%s/control", folder ? folder : "/tmp/nvidia-mps");
    bool has_pipe = access(path, F_OK) == 0;
    if (has_pipe && access(path, W_OK) != 0) {
        doctor_note(doctor, DOCTOR_FAIL, "mps",
                    "run MPS as the user of daemon and clients, or let this user into its folder",
                    "%s: %s", path, strerror(errno));
    } else if (has_pipe) {
        doctor_note(doctor, DOCTOR_OK, "mps", NULL, "control pipe %s", path);
    } else if (runs("nvidia-cuda-mps")) {
        doctor_note(doctor, DOCTOR_WARN, "mps",
                    "set CUDA_MPS_PIPE_DIRECTORY to the same folder in the daemon and in all "
                    "clients; in a container mount it",
                    "MPS runs, but not with the folder that this process would use (%s)", path);
    } else {
        doctor_note(doctor, DOCTOR_WARN, "mps",
                    "start nvidia-cuda-mps-control -d before the daemon and the clients",
                    "not running: processes take turns on the GPU in time slices; a step of a lane "
                    "took 298 us instead of 23 with one client, 1394 instead of 28 with eight "
                    "(H200, 1x131072)");
    }
    const char *connections = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    if (connections && atoi(connections) > 8) {
        doctor_note(doctor, DOCTOR_WARN, "connections",
                    "unset it in clients: the worker has 32 of its own, and under MPS all share "
                    "the GPU's hardware channels",
                    "CUDA_DEVICE_MAX_CONNECTIONS is %s in this environment", connections);
    }
}

void doctor_gpus(struct doctor *doctor)
{
    struct nvml nvml;
    if (!load_nvml(doctor, &nvml)) {
        return;
    }
    check_driver(doctor, &nvml);
    unsigned count = 0;
    (void)nvml.count(&count);
    if (count == 0) {
        doctor_note(doctor, DOCTOR_WARN, "gpu", "start the container with the GPUs",
                    "the driver is there, but no GPU");
    }
    void *devices[GPUS_MAX];
    unsigned num_devices = 0;
    for (unsigned i = 0; i < count; i++) {
        void *device;
        if (check_device(doctor, &nvml, i, &device) && num_devices < GPUS_MAX) {
            devices[num_devices++] = device;
        }
    }
    doctor_xid(doctor, devices, num_devices);
    if (count > 0) {
        check_mps(doctor);
    }
    (void)nvml.shutdown();
}
