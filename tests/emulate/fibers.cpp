/* CUDA threads as fibers: their stacks, and the switch between them and the scheduler. */
#include "machine.hpp"

#include <cstdio>
#include <cstdlib>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
#define HAS_ADDRESS_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HAS_ADDRESS_SANITIZER 1
#endif
#endif
#ifdef HAS_ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define STACK_BYTES (128u << 10) /* frames have red zones */
#else
#define STACK_BYTES (32u << 10) /* choice: the deepest kernel needs less than a third */
#endif

struct uint3 threadIdx, blockIdx;
struct dim3 blockDim, gridDim;

namespace emulate
{

namespace
{

/* The scheduler, while a thread runs. */
boost::context::fiber scheduler;
#ifdef HAS_ADDRESS_SANITIZER
void *scheduler_fake_stack;
const void *scheduler_stack;
size_t scheduler_stack_bytes;
#endif

/* Stacks of threads that have ended; the last one used is in the processor's cache. */
std::vector<char *> free_stacks;

/* A stack above a page that cannot be touched. */
char *stack_acquire()
{
    if (!free_stacks.empty()) {
        char *stack = free_stacks.back();
        free_stacks.pop_back();
        return stack;
    }
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    void *memory = mmap(nullptr, page + STACK_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory, page, PROT_NONE) != 0) {
        perror("emulate: a stack for a CUDA thread");
        exit(2);
    }
    return static_cast<char *>(memory) + page;
}

void stack_release(char *stack)
{
#ifdef HAS_ADDRESS_SANITIZER
    __asan_unpoison_memory_region(stack, STACK_BYTES); /* frames that were never left */
#endif
    free_stacks.push_back(stack);
}

/* Gives boost the stack that the thread has. */
struct stack_of_thread {
    struct thread *thread;

    boost::context::stack_context allocate()
    {
        boost::context::stack_context context;
        thread->stack = stack_acquire();
        context.size = STACK_BYTES;
        context.sp = thread->stack + STACK_BYTES;
        return context;
    }

    void deallocate(boost::context::stack_context &)
    {
        stack_release(thread->stack);
        thread->stack = nullptr;
    }
};

void entered_thread(struct thread &thread)
{
#ifdef HAS_ADDRESS_SANITIZER
    __sanitizer_finish_switch_fiber(thread.fake_stack, &scheduler_stack, &scheduler_stack_bytes);
#else
    (void)thread;
#endif
}

void leave_thread(struct thread &thread, bool forever)
{
#ifdef HAS_ADDRESS_SANITIZER
    __sanitizer_start_switch_fiber(forever ? nullptr : &thread.fake_stack, scheduler_stack,
                                   scheduler_stack_bytes);
#else
    (void)thread;
    (void)forever;
#endif
}

} // namespace

void thread_begin(struct thread &thread)
{
    struct thread *own = &thread;
    thread.fiber = boost::context::fiber(std::allocator_arg, stack_of_thread{own},
                                         [own](boost::context::fiber &&from) {
                                             scheduler = std::move(from);
                                             entered_thread(*own);
                                             own->block->grid->launch.kernel();
                                             own->wait = wait::ended;
                                             leave_thread(*own, true);
                                             return std::move(scheduler);
                                         });
}

void thread_resume(struct thread &thread)
{
    const struct block &block = *thread.block;
    threadIdx = {thread.index, 0, 0};
    blockIdx = block.index;
    blockDim = block.grid->launch.block;
    gridDim = block.grid->launch.grid;
    machine.current = &thread;
#ifdef HAS_ADDRESS_SANITIZER
    __sanitizer_start_switch_fiber(&scheduler_fake_stack, thread.stack, STACK_BYTES);
#endif
    thread.fiber = std::move(thread.fiber).resume();
#ifdef HAS_ADDRESS_SANITIZER
    __sanitizer_finish_switch_fiber(scheduler_fake_stack, nullptr, nullptr);
#endif
    machine.current = nullptr;
}

void thread_suspend(struct thread &thread)
{
    leave_thread(thread, false);
    scheduler = std::move(scheduler).resume();
    entered_thread(thread);
}

} // namespace emulate
