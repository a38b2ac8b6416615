/* The CUDA half of topk_select.h in a build without CUDA: every call says so. */
#include "cpu/detail.h"
#include "topk_step.h"

static enum topk_status refuse(char *detail)
{
    return topk_detail(detail, TOPK_E_NO_DEVICE,
                       "this library was built without CUDA; configure with TOPKD_CUDA=ON, or use "
                       "the CPU device");
}

enum topk_status topk_cuda_device(int ordinal, struct topk_device *device_p, char *detail)
{
    (void)ordinal;
    (void)device_p;
    return refuse(detail);
}

enum topk_status topk_cuda_load(const struct topk_plan *plan, char *detail)
{
    (void)plan;
    return refuse(detail);
}

enum topk_status topk_cuda_workspace_init(const struct topk_plan *plan, void *d_workspace,
                                          void *stream, char *detail)
{
    (void)plan;
    (void)d_workspace;
    (void)stream;
    return refuse(detail);
}

enum topk_status topk_cuda_enqueue(const struct topk_plan *plan, const struct topk_args *d_args,
                                   void *d_workspace, void *stream, char *detail)
{
    (void)plan;
    (void)d_args;
    (void)d_workspace;
    (void)stream;
    return refuse(detail);
}

enum topk_status topk_cuda_step_load(char *detail)
{
    return refuse(detail);
}

enum topk_status topk_cuda_step_begin(struct topk_step *d_step, bool looks, void *stream,
                                      char *detail)
{
    (void)d_step;
    (void)looks;
    (void)stream;
    return refuse(detail);
}

enum topk_status topk_cuda_step_end(struct topk_step *d_step, void *stream, char *detail)
{
    (void)d_step;
    (void)stream;
    return refuse(detail);
}
