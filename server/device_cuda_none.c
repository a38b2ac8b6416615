/* device_cuda_none.c - the CUDA device of a build without CUDA. */
#include "device.h"

#include <stddef.h>

const struct device_ops *device_cuda_ops(void)
{
    return NULL;
}
