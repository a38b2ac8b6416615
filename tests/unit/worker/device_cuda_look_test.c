/* Who looks for the end of a GPU's selections: the loop while it spins, the poller otherwise. */
#include "server/device_cuda.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>

#define LIMIT_NS UINT64_C(20000000000) /* for a busy machine */

/* The loop looks, as it does while requests come, until it is told to go to sleep. */
static void look_until_sleep(struct device_cuda *cuda)
{
    uint64_t begin_ns = cuda_now_ns();
    while (cuda_look(&cuda->base))
        assert_true(cuda_now_ns() - begin_ns < LIMIT_NS);
}

/* The poller leaves the looking to a loop that has looked a moment ago; of one that sleeps it must
 * not think so, or an end is seen a quarter of a millisecond late. */
static void it_does_not_count_on_a_loop_that_sleeps(void **state)
{
    (void)state;
    static struct device_cuda cuda; /* without a lane, so nothing ever happens */
    struct cuda_looker *loop = &cuda.poller.lookers[CUDA_LOOKER_LOOP];
    assert_true(cuda_look(&cuda.base));
    assert_true(loop->looked_ns > 0);
    look_until_sleep(&cuda);
    assert_true(loop->looked_ns == 0);
}

/* Also where the requests before were seen through by the poller alone. */
static void it_spins_anew_for_the_next_request(void **state)
{
    (void)state;
    static struct device_cuda cuda;
    for (int request = 0; request < 3; request++) {
        assert_true(cuda_look(&cuda.base));
        look_until_sleep(&cuda);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_does_not_count_on_a_loop_that_sleeps),
        cmocka_unit_test(it_spins_anew_for_the_next_request),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
