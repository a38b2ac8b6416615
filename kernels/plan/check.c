/* What the planner refuses: check.h. */
#include "plan/check.h"

#include "cpu/detail.h"

#include <stddef.h>

#define REFUSE(...) topk_detail(detail, TOPK_E_INVALID, __VA_ARGS__)

static enum topk_status check_shape(const struct topk_shape *shape, char *detail)
{
    if (shape->k < 1 || shape->k > (int32_t)TOPK_K_MAX) {
        return REFUSE("k is %d; plan for 1 ... %u positions a row", shape->k, TOPK_K_MAX);
    }
    if (shape->rows < 1) {
        return REFUSE("rows is %d; plan for 1 ... %d rows", shape->rows, TOPK_ROWS_MAX);
    }
    if (shape->width < 1) {
        return REFUSE("width is %d; plan for 1 ... %d scores a row", shape->width, TOPK_WIDTH_MAX);
    }
    int32_t score_bytes = (int32_t)topk_dtype_bytes(shape->options.dtype);
    if (score_bytes == 0) {
        return REFUSE("options.dtype is %d; pass 0 (float32), 1 (float16) or 2 (bfloat16)",
                      (int)shape->options.dtype);
    }
    int32_t alignment = shape->alignment_bytes;
    if (alignment < score_bytes || alignment > 128 || (alignment & (alignment - 1)) != 0) {
        return REFUSE("alignment_bytes is %d; pass a power of two from %d to 128", alignment,
                      score_bytes);
    }
    if ((unsigned)shape->options.order > TOPK_ORDER_VALUE) {
        return REFUSE("options.order is %d; pass 0 (any), 1 (index) or 2 (value)",
                      (int)shape->options.order);
    }
    if ((unsigned)shape->options.ties > TOPK_TIES_LOWEST) {
        return REFUSE("options.ties is %d; pass 0 (any) or 1 (lowest index)",
                      (int)shape->options.ties);
    }
    return TOPK_OK;
}

static enum topk_status check_device(const struct topk_device *device, char *detail)
{
    if (device->num_multiprocessors < 1 || device->num_multiprocessors > 4096) {
        return REFUSE("device has %d multiprocessors; expected 1 ... 4096",
                      device->num_multiprocessors);
    }
    if (device->compute_major < 8) {
        return topk_detail(detail, TOPK_E_UNSUPPORTED,
                           "compute capability %d.%d is below 8.0, the oldest this is built for; "
                           "use the CPU device",
                           device->compute_major, device->compute_minor);
    }
    return TOPK_OK;
}

enum topk_status topk_plan_check(const struct topk_shape *shape, const struct topk_device *device,
                                 const struct topk_plan *plan_p, char *detail)
{
    if (shape == NULL || device == NULL || plan_p == NULL) {
        return REFUSE("%s is NULL; pass the struct",
                      shape == NULL ? "shape" : (device == NULL ? "device" : "plan_p"));
    }
    enum topk_status status = check_shape(shape, detail);
    return status != TOPK_OK ? status : check_device(device, detail);
}
