#include "bucket.h"

#include "assert.h"
#include "detail.h"

#include <stdlib.h>

#define WIDTH_MIN 1024u      /* choice: below, a row costs less than its launch */
#define K_MIN 64u            /* choice: as above */
#define PINNED_ALIGNMENT 16u /* bytes: what cudaMalloc, PyTorch and shared memory give any row */

enum topkd_status bucket_table_init(struct bucket_table *table, uint32_t buckets_max)
{
    topkd_assert(buckets_max > 0);
    *table = (struct bucket_table){.buckets_max = buckets_max, .next_id = 1};
    table->buckets = calloc(buckets_max, sizeof(*table->buckets));
    return table->buckets != NULL ? TOPKD_OK : TOPKD_E_NO_MEMORY;
}

void bucket_table_fini(struct bucket_table *table)
{
    free(table->buckets);
    *table = (struct bucket_table){.buckets_max = 0};
}

/* The next number of the form 2^n * (1, 1.25, 1.5, 1.75) when in quarters, else 2^n. */
static uint64_t round_up(uint64_t value, bool in_quarters)
{
    uint64_t power = 1;
    while (power < value)
        power *= 2;
    if (!in_quarters || power < 8)
        return power;
    uint64_t quarter = power / 8; /* a quarter of the octave below */
    return (value + quarter - 1) / quarter * quarter;
}

static uint32_t clamp(uint64_t value, uint64_t min, uint64_t max)
{
    return (uint32_t)(value < min ? min : value > max ? max : value);
}

struct bucket_key bucket_key_of(const struct topk_args *args, const struct topk_options *options)
{
    return (struct bucket_key){.rows = (uint32_t)args->num_rows,
                               .width = (uint32_t)args->width,
                               .k = (uint32_t)args->k,
                               .options = *options,
                               .has_values = args->values != NULL,
                               .has_page_table = args->page_table != NULL,
                               .has_row_offsets = args->row_offsets != NULL};
}

static uint32_t round_alignment(uint32_t alignment_bytes, enum topk_dtype dtype)
{
    return alignment_bytes >= 128 ? 128 : alignment_bytes >= 16 ? 16 : topk_dtype_bytes(dtype);
}

struct bucket_key bucket_key_round(const struct bucket_key *need)
{
    struct bucket_key key = *need;
    key.rows = clamp(round_up(need->rows, false), 1, TOPK_ROWS_MAX);
    key.width = clamp(round_up(need->width, true), WIDTH_MIN, TOPK_WIDTH_MAX);
    key.k = clamp(round_up(need->k, false), K_MIN, TOPK_K_MAX);
    key.alignment_bytes = round_alignment(need->alignment_bytes, need->options.dtype);
    return key;
}

static uint64_t capacity(const struct bucket_key *key)
{
    return (uint64_t)key->rows * key->width;
}

static bool holds(const struct bucket_key *key, const struct bucket_key *need)
{
    return key->rows >= need->rows && key->width >= need->width && key->k >= need->k;
}

static bool same_kind(const struct bucket_key *a, const struct bucket_key *b)
{
    return a->options.order == b->options.order && a->options.ties == b->options.ties &&
           a->options.dtype == b->options.dtype && a->has_values == b->has_values &&
           a->has_page_table == b->has_page_table && a->has_row_offsets == b->has_row_offsets &&
           a->alignment_bytes == b->alignment_bytes;
}

enum topkd_status bucket_table_pin(struct bucket_table *table, const struct bucket_key *capacities,
                                   struct bucket **bucket_p)
{
    if (table->num_buckets == table->buckets_max)
        return TOPKD_E_LIMIT;
    topkd_assert(table->num_pinned == table->num_buckets);
    struct bucket *bucket = &table->buckets[table->num_buckets++];
    table->num_pinned++;
    *bucket = (struct bucket){.key = {.rows = capacities->rows,
                                      .width = capacities->width,
                                      .k = capacities->k,
                                      .alignment_bytes = PINNED_ALIGNMENT,
                                      .options.dtype = capacities->options.dtype},
                              .id = table->next_id++,
                              .is_pinned = true};
    *bucket_p = bucket;
    return TOPKD_OK;
}

/* Of two configured buckets: one of the need's type of scores, then the smaller. */
static bool is_better(const struct bucket_key *a, const struct bucket_key *b,
                      const struct bucket_key *need)
{
    bool a_fits = a->options.dtype == need->options.dtype;
    bool b_fits = b->options.dtype == need->options.dtype;
    return a_fits != b_fits ? a_fits : capacity(a) < capacity(b);
}

/* Capacities for the need: those of the best configured bucket that holds it and does not waste
 * too much, else rounded ones. With room only for configured buckets, any that holds it will do. */
static struct bucket_key choose_key(const struct bucket_table *table, const struct bucket_key *need)
{
    struct bucket_key key = bucket_key_round(need);
    bool is_full_of_pinned = table->num_pinned == table->buckets_max;
    const struct bucket_key *best = NULL;
    for (uint32_t i = 0; i < table->num_pinned; i++) {
        const struct bucket_key *pinned = &table->buckets[i].key;
        bool is_close = capacity(pinned) / BUCKET_WASTE_MAX <= capacity(&key);
        if (holds(pinned, need) && (is_close || is_full_of_pinned) &&
            (best == NULL || is_better(pinned, best, need)))
            best = pinned;
    }
    if (best != NULL) {
        key.rows = best->rows;
        key.width = best->width;
        key.k = best->k;
        /* A row aligned better than the configured bucket asks is served by it as well. */
        if (key.alignment_bytes > best->alignment_bytes)
            key.alignment_bytes = best->alignment_bytes;
    }
    return key;
}

enum topkd_status bucket_table_choose(struct bucket_table *table, const struct bucket_key *need,
                                      struct bucket_choice *choice_p, char *detail)
{
    struct bucket_choice choice = {.key = choose_key(table, need)};
    struct bucket *oldest = NULL;
    for (uint32_t i = 0; i < table->num_buckets; i++) {
        struct bucket *bucket = &table->buckets[i];
        if (same_kind(&bucket->key, &choice.key) && bucket->key.rows == choice.key.rows &&
            bucket->key.width == choice.key.width && bucket->key.k == choice.key.k) {
            choice.bucket = bucket;
            *choice_p = choice;
            return TOPKD_OK;
        }
        if (!bucket->is_pinned && bucket->num_active == 0 &&
            (oldest == NULL || bucket->last_used < oldest->last_used))
            oldest = bucket;
    }
    if (table->num_buckets == table->buckets_max) {
        if (table->num_pinned == table->buckets_max)
            return detail_set(detail, TOPKD_E_LIMIT,
                              "all %u shape buckets are configured ones and none fits rows %u, "
                              "width %u, k %u of %s with these options: raise limits.buckets_max",
                              table->buckets_max, need->rows, need->width, need->k,
                              topk_dtype_name(need->options.dtype));
        if (oldest == NULL)
            return detail_set(detail, TOPKD_E_BUSY,
                              "all %u shape buckets are in use: retry, or raise "
                              "limits.buckets_max",
                              table->buckets_max);
        choice.evicted = oldest;
    }
    *choice_p = choice;
    return TOPKD_OK;
}

struct bucket *bucket_table_make(struct bucket_table *table, const struct bucket_choice *choice)
{
    topkd_assert(choice->bucket == NULL);
    struct bucket *bucket = choice->evicted;
    if (bucket == NULL) {
        topkd_assert(table->num_buckets < table->buckets_max);
        bucket = &table->buckets[table->num_buckets++];
    }
    topkd_assert(bucket->num_active == 0 && !bucket->is_pinned);
    *bucket = (struct bucket){.key = choice->key, .id = table->next_id++};
    return bucket;
}

void bucket_table_drop(struct bucket_table *table, struct bucket *bucket)
{
    topkd_assert(bucket->num_active == 0 && !bucket->is_pinned);
    /* Buckets in use are pointed to, so none may move: the place stays, with a class that no
     * request has, as the first to be given up. */
    *bucket = (struct bucket){.id = table->next_id++};
}

void bucket_acquire(struct bucket_table *table, struct bucket *bucket)
{
    bucket->num_active++;
    bucket->num_requests++;
    bucket->last_used = ++table->tick;
}

void bucket_release(struct bucket *bucket)
{
    topkd_assert(bucket->num_active > 0);
    bucket->num_active--;
}
