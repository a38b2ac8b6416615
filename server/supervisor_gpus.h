/*
 * supervisor_gpus.h - which GPUs this machine has, without a CUDA context and without its
 * libraries.
 */
#ifndef TOPKD_SERVER_SUPERVISOR_GPUS_H
#define TOPKD_SERVER_SUPERVISOR_GPUS_H

#include "settings.h"

/*
 * UUIDs of the NVIDIA GPUs that the driver lists under `proc_folder` (/proc/driver/nvidia/gpus; a
 * container sees its own there), in the order of their PCI addresses, at most num_max. A GPU that
 * the administrator excluded is left out. One that nothing has used since boot has no UUID yet: its
 * node in `dev_folder` (/dev) is opened, which wakes it. What still has none is logged and left
 * out. None without a driver.
 */
uint32_t gpus_find(const char *proc_folder, const char *dev_folder,
                   struct settings_device *devices_p, uint32_t num_max);

#endif
