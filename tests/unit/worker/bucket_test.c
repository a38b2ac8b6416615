/* bucket: rounding never loses capacity, configured buckets stay, the least recently used goes. */
#include "inputs.h"
#include "server/bucket.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>

static struct bucket_key need_of(uint32_t rows, uint32_t width, uint32_t k)
{
    return (struct bucket_key){.rows = rows, .width = width, .k = k, .alignment_bytes = 16};
}

static bool holds(const struct bucket_key *key, const struct bucket_key *need)
{
    return key->rows >= need->rows && key->width >= need->width && key->k >= need->k &&
           key->alignment_bytes <= need->alignment_bytes;
}

static enum topkd_status pin(struct bucket_table *table, uint32_t rows, uint32_t width, uint32_t k,
                             struct bucket **bucket_p)
{
    const struct bucket_key capacities = {.rows = rows, .width = width, .k = k};
    return bucket_table_pin(table, &capacities, bucket_p);
}

/* Chooses, makes where needed, begins and ends a use. */
static struct bucket *use(struct bucket_table *table, struct bucket_key need)
{
    struct bucket_choice choice;
    assert_int_equal(bucket_table_choose(table, &need, &choice, NULL), TOPKD_OK);
    struct bucket *bucket = choice.bucket;
    if (bucket == NULL)
        bucket = bucket_table_make(table, &choice);
    assert_true(holds(&bucket->key, &need));
    bucket_acquire(table, bucket);
    return bucket;
}

static struct bucket *use_once(struct bucket_table *table, struct bucket_key need)
{
    struct bucket *bucket = use(table, need);
    bucket_release(bucket);
    return bucket;
}

static void rounding_holds_and_is_idempotent(void **state)
{
    (void)state;
    struct inputs_rng rng = inputs_rng_of(inputs_run_seed(), 2);
    for (int i = 0; i < 200000; i++) {
        uint32_t shift = inputs_rng_below(&rng, 31);
        struct bucket_key need = need_of((uint32_t)(inputs_rng_next(&rng) >> 33) >> shift,
                                         1 + ((uint32_t)(inputs_rng_next(&rng) >> 33) >> shift),
                                         1 + inputs_rng_below(&rng, TOPK_K_MAX));
        if (need.width > TOPK_WIDTH_MAX)
            need.width = TOPK_WIDTH_MAX;
        need.options.dtype = (enum topk_dtype)inputs_rng_below(&rng, TOPK_DTYPE_COUNT);
        need.alignment_bytes = topk_dtype_bytes(need.options.dtype) << inputs_rng_below(&rng, 6);
        struct bucket_key key = bucket_key_round(&need);
        assert_true(holds(&key, &need));
        assert_true(key.rows <= TOPK_ROWS_MAX && key.width <= TOPK_WIDTH_MAX &&
                    key.k <= TOPK_K_MAX);
        struct bucket_key again = bucket_key_round(&key);
        assert_true(holds(&again, &key) && holds(&key, &again)); /* the same again */
        if (need.width >= 1024) /* at most a quarter wider, a quarter of the octave below */
            assert_true(key.width - need.width <= need.width / 4 + 1);
        if (need.rows >= 1)
            assert_true(key.rows < 2 * (uint64_t)need.rows);
    }
    struct bucket_key most = need_of(TOPK_ROWS_MAX, TOPK_WIDTH_MAX, TOPK_K_MAX);
    struct bucket_key key = bucket_key_round(&most);
    assert_int_equal(key.rows, TOPK_ROWS_MAX);
    assert_int_equal(key.width, TOPK_WIDTH_MAX);
}

static void one_bucket_serves_all_that_round_to_it(void **state)
{
    (void)state;
    struct bucket_table table;
    assert_int_equal(bucket_table_init(&table, 8), TOPKD_OK);
    struct bucket *bucket = use_once(&table, need_of(60, 130000, 2048));
    assert_ptr_equal(use_once(&table, need_of(33, 120000, 1025)), bucket);
    assert_int_equal(bucket->num_requests, 2);
    assert_ptr_not_equal(use_once(&table, need_of(65, 130000, 2048)), bucket);
    /* Kinds of work are kept apart. */
    struct bucket_key other = need_of(60, 130000, 2048);
    other.options.order = TOPK_ORDER_VALUE;
    assert_ptr_not_equal(use_once(&table, other), bucket);
    other = need_of(60, 130000, 2048);
    other.has_page_table = true;
    assert_ptr_not_equal(use_once(&table, other), bucket);
    other = need_of(60, 130000, 2048);
    other.alignment_bytes = 8;
    assert_ptr_not_equal(use_once(&table, other), bucket);
    other = need_of(60, 130000, 2048);
    other.options.dtype = TOPK_DTYPE_FLOAT16;
    struct bucket *halves = use_once(&table, other);
    assert_ptr_not_equal(halves, bucket);
    other.options.dtype = TOPK_DTYPE_BFLOAT16;
    assert_ptr_not_equal(use_once(&table, other), halves);
    assert_int_equal(table.num_buckets, 7);
    bucket_table_fini(&table);
}

/* A configured bucket serves the type of scores that it names; others borrow its capacities, unless
 * one of their own type will do. */
static void configured_buckets_have_a_type(void **state)
{
    (void)state;
    struct bucket_table table;
    struct bucket *floats, *halves;
    assert_int_equal(bucket_table_init(&table, 8), TOPKD_OK);
    assert_int_equal(pin(&table, 64, 131072, 2048, &floats), TOPKD_OK);
    const struct bucket_key capacities = {
        .rows = 64, .width = 262144, .k = 2048, .options.dtype = TOPK_DTYPE_FLOAT16};
    assert_int_equal(bucket_table_pin(&table, &capacities, &halves), TOPKD_OK);
    struct bucket_key need = need_of(60, 100000, 2000);
    assert_ptr_equal(use_once(&table, need), floats);
    need.options.dtype = TOPK_DTYPE_FLOAT16;
    assert_ptr_equal(use_once(&table, need), halves);
    need.options.dtype = TOPK_DTYPE_BFLOAT16;
    struct bucket *other = use_once(&table, need);
    assert_false(other->is_pinned);
    assert_int_equal(other->key.width, 131072);
    assert_int_equal(other->key.options.dtype, TOPK_DTYPE_BFLOAT16);
    bucket_table_fini(&table);
}

static void configured_buckets_are_preferred_unless_wasteful(void **state)
{
    (void)state;
    struct bucket_table table;
    struct bucket *small, *big;
    assert_int_equal(bucket_table_init(&table, 8), TOPKD_OK);
    assert_int_equal(pin(&table, 64, 131072, 2048, &small), TOPKD_OK);
    assert_int_equal(pin(&table, 512, 131072, 2048, &big), TOPKD_OK);
    assert_ptr_equal(use_once(&table, need_of(40, 100000, 512)), small);
    assert_ptr_equal(use_once(&table, need_of(64, 131072, 2048)), small);
    assert_ptr_equal(use_once(&table, need_of(65, 131072, 2048)), big); /* 128 rows: 4 times */
    struct bucket *tiny = use_once(&table, need_of(1, 2000, 64));
    assert_false(tiny->is_pinned);
    assert_int_equal(tiny->key.rows, 1);
    /* Another kind borrows the configured capacities. */
    struct bucket_key need = need_of(40, 100000, 512);
    need.has_values = true;
    need.alignment_bytes = 128;
    struct bucket *values = use_once(&table, need);
    assert_false(values->is_pinned);
    assert_int_equal(values->key.rows, 64);
    assert_int_equal(values->key.width, 131072);
    bucket_table_fini(&table);
}

static void the_least_recently_used_goes(void **state)
{
    (void)state;
    struct bucket_table table;
    struct bucket *pinned;
    assert_int_equal(bucket_table_init(&table, 3), TOPKD_OK);
    assert_int_equal(pin(&table, 1, 1024, 64, &pinned), TOPKD_OK);
    struct bucket *a = use_once(&table, need_of(8, 8192, 64));
    struct bucket *b = use(&table, need_of(8, 16384, 64));
    uint32_t a_id = a->id;
    use_once(&table, need_of(8, 8192, 64)); /* a is newer than b, but b is in use */
    struct bucket *c = use_once(&table, need_of(8, 32768, 64));
    assert_ptr_equal(c, a); /* its place */
    assert_int_not_equal(c->id, a_id);
    assert_int_equal(c->num_requests, 1);
    /* All in use: busy, and nothing changes. */
    bucket_acquire(&table, c);
    struct bucket_choice choice;
    struct bucket_key need = need_of(8, 65536, 64);
    char detail[WIRE_DETAIL_SIZE] = "";
    assert_int_equal(bucket_table_choose(&table, &need, &choice, detail), TOPKD_E_BUSY);
    assert_non_null(strstr(detail, "buckets_max"));
    bucket_release(b);
    assert_int_equal(bucket_table_choose(&table, &need, &choice, detail), TOPKD_OK);
    assert_ptr_equal(choice.evicted, b);
    bucket_release(c);
    assert_ptr_equal(use_once(&table, need_of(1, 1000, 64)), pinned);
    bucket_table_fini(&table);
}

static void configured_buckets_alone(void **state)
{
    (void)state;
    struct bucket_table table;
    struct bucket *pinned;
    assert_int_equal(bucket_table_init(&table, 1), TOPKD_OK);
    assert_int_equal(pin(&table, 512, 131072, 2048, &pinned), TOPKD_OK);
    assert_int_equal(pin(&table, 1, 1024, 64, &pinned), TOPKD_E_LIMIT);
    assert_ptr_equal(use_once(&table, need_of(1, 2000, 5)), pinned); /* waste beats refusal */
    struct bucket_choice choice;
    struct bucket_key need = need_of(513, 2000, 5);
    assert_int_equal(bucket_table_choose(&table, &need, &choice, NULL), TOPKD_E_LIMIT);
    bucket_table_fini(&table);
}

/* A made bucket whose preparation failed serves nobody and goes first. */
static void a_dropped_bucket_is_never_chosen(void **state)
{
    (void)state;
    struct bucket_table table;
    struct bucket_choice choice;
    assert_int_equal(bucket_table_init(&table, 2), TOPKD_OK);
    struct bucket_key need = need_of(8, 8192, 64);
    assert_int_equal(bucket_table_choose(&table, &need, &choice, NULL), TOPKD_OK);
    struct bucket *dropped = bucket_table_make(&table, &choice);
    bucket_table_drop(&table, dropped);
    struct bucket *bucket = use_once(&table, need);
    assert_ptr_not_equal(bucket, dropped);
    assert_ptr_equal(use_once(&table, need_of(8, 32768, 64)), dropped);
    bucket_table_fini(&table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rounding_holds_and_is_idempotent),
        cmocka_unit_test(one_bucket_serves_all_that_round_to_it),
        cmocka_unit_test(configured_buckets_are_preferred_unless_wasteful),
        cmocka_unit_test(configured_buckets_have_a_type),
        cmocka_unit_test(the_least_recently_used_goes),
        cmocka_unit_test(configured_buckets_alone),
        cmocka_unit_test(a_dropped_bucket_is_never_chosen),
    };
    return cmocka_run_group_tests_name("bucket", tests, NULL, NULL);
}
