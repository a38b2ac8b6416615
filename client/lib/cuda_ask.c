/* cuda_ask.c - the kernel that is a lane's step: it asks and looks for the answer. */
#include "client.h"

_Static_assert(WIRE_MAILBOX_ASKED == 1 && WIRE_MAILBOX_ANSWERED == 2, "ask.ptx has the numbers");

extern const char cuda_ask_text[]; /* ask.ptx, put here by the build */

/* And runs it once: loading it behind a stream that waits would wait for that stream. */
static int load_function(const struct cuda *cuda, void *module, void **function_p)
{
    const struct cuda_driver *driver = cuda_calls(cuda);
    cuda_pointer nowhere = 0;
    void *parameters[] = {&nowhere, &nowhere};
    void *stream = cuda_stream(cuda);
    int result = driver->module_function(function_p, module, "topkd_lane_step");
    if (result == CUDA_OK) {
        result = driver->launch(*function_p, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL);
    }
    return result == CUDA_OK ? driver->stream_synchronize(stream) : result;
}

static int load(const struct cuda *cuda, struct lane_kernel *kernel)
{
    void *module = NULL, *function = NULL;
    int result = cuda_calls(cuda)->module_load(&module, cuda_ask_text);
    if (result != CUDA_OK) {
        return result;
    }
    result = load_function(cuda, module, &function);
    if (result != CUDA_OK) {
        (void)cuda_calls(cuda)->module_unload(module);
        return result;
    }
    *kernel = (struct lane_kernel){.module = module, .function = function};
    return CUDA_OK;
}

/* Without MPS a kernel that looks would hold the time slice in which the worker could answer. */
static bool is_shared(const struct cuda *cuda)
{
    int has_mps = 0;
    return cuda_calls(cuda)->device_attribute(&has_mps, CUDA_ATTRIBUTE_MPS_ENABLED,
                                              cuda_device(cuda)) == CUDA_OK &&
           has_mps != 0;
}

enum topkd_status cuda_ask_get(struct topkd_client *client, bool must, void **kernel_p,
                               char *detail)
{
    const struct cuda *cuda = client->cuda;
    struct lane_kernel *kernel = &client->lanes.kernel;
    if (!must && !is_shared(cuda)) {
        *kernel_p = NULL;
        return TOPKD_OK;
    }
    int result = CUDA_OK;
    pthread_mutex_lock(&client->cuda_mutex);
    enum topkd_status status = kernel->function ? TOPKD_OK : cuda_enter(cuda, detail);
    if (status == TOPKD_OK && !kernel->function) {
        result = load(cuda, kernel);
        cuda_leave(cuda);
    }
    *kernel_p = kernel->function;
    pthread_mutex_unlock(&client->cuda_mutex);
    if (result != CUDA_OK && must) {
        status = cuda_driver_fault(cuda_calls(cuda), result, TOPKD_E_UNSUPPORTED,
                                   "the driver does not load the kernel of a lane's step", detail);
    }
    return status;
}

void cuda_ask_free(struct topkd_client *client)
{
    char detail[WIRE_DETAIL_SIZE];
    struct lane_kernel *kernel = &client->lanes.kernel;
    if (kernel->module && cuda_enter(client->cuda, detail) == TOPKD_OK) {
        (void)cuda_calls(client->cuda)->module_unload(kernel->module);
        cuda_leave(client->cuda);
    }
    *kernel = (struct lane_kernel){.module = NULL};
}

int cuda_ask_launch(const struct cuda *cuda, const struct lane_mailbox *mailbox, void *stream)
{
    cuda_pointer word = mailbox->d_word, bell = mailbox->d_bell;
    void *parameters[] = {&word, &bell};
    return cuda_calls(cuda)->launch(mailbox->kernel, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL);
}

int cuda_ask_add_node(const struct cuda *cuda, const struct lane_mailbox *mailbox,
                      const struct lane_place *place)
{
    cuda_pointer word = mailbox->d_word, bell = mailbox->d_bell;
    void *parameters[] = {&word, &bell};
    const struct cuda_kernel_node node = {
        .function = mailbox->kernel,
        .grid = {1, 1, 1},
        .block = {1, 1, 1},
        .parameters = parameters,
    };
    return cuda_calls(cuda)->graph_add_kernel(place->node_p, place->graph, place->dependencies,
                                              place->num_dependencies, &node);
}
