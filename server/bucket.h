/*
 * bucket.h - shape buckets: the classes that requests are rounded up to.
 *
 * A device prepares work (a captured graph) a bucket; rows, lengths, strides and pointers of a
 * request are data of that work. The table holds the configured buckets, which stay, and others
 * made on first use, of which the least recently used goes when the table is full. Plain data and
 * arithmetic, one thread.
 */
#ifndef TOPKD_SERVER_BUCKET_H
#define TOPKD_SERVER_BUCKET_H

#include "topk_select.h"
#include "topkd_status.h"
#include "topkd_wire.h"

#include <stdbool.h>
#include <stdint.h>

/* The class of a request: capacities and what the work is specialised for. */
struct bucket_key {
    uint32_t rows, width, k; /* capacities, each at least the request's */
    uint32_t alignment_bytes;
    struct topk_options options;
    bool has_values, has_page_table, has_row_offsets;
};

struct bucket {
    struct bucket_key key;
    uint32_t id;         /* 1 ...; never used again in this worker */
    bool is_pinned;      /* configured: never evicted */
    uint32_t num_active; /* requests that use it now */
    uint64_t last_used;  /* tick of the table */
    uint64_t num_requests;
    uint64_t num_misses; /* requests that a graph had to be made for; the device's, atomic */
    void *prepared;      /* of the device */
};

struct bucket_table {
    uint32_t buckets_max;
    uint32_t num_buckets;
    uint32_t num_pinned;
    uint32_t next_id;
    uint64_t tick;
    struct bucket *buckets; /* [buckets_max], the first num_buckets in use */
};

/* Allocates; the caller's table. NO_MEMORY. */
enum topkd_status bucket_table_init(struct bucket_table *table, uint32_t buckets_max);
void bucket_table_fini(struct bucket_table *table);

/* What a request needs, exactly; nothing is rounded yet. */
struct bucket_key bucket_key_of(const struct topk_args *args, const struct topk_options *options);

/* The on-demand class: rows and K to a power of two, width to a quarter of one, alignment to
 * 16, 128 or that of a score; capacities never exceed the library's limits. */
struct bucket_key bucket_key_round(const struct bucket_key *need);

/*
 * Adds a configured bucket: rows, width, K and type of scores are those of `capacities`, of which
 * nothing else counts. It serves requests with default options, aligned to 16 bytes, without
 * values, page table or row offsets; other kinds of request borrow its capacities. The caller adds
 * each once, before the first request. LIMIT when the table is full.
 */
enum topkd_status bucket_table_pin(struct bucket_table *table, const struct bucket_key *capacities,
                                   struct bucket **bucket_p);

/* What serving a request of this need takes. */
struct bucket_choice {
    struct bucket *bucket;  /* that serves it; NULL: `key` must be made first */
    struct bucket_key key;  /* of the bucket to make */
    struct bucket *evicted; /* to give up for it; NULL: there is room */
};

/*
 * Chooses; changes nothing. Configured capacities are preferred over on-demand ones while they are
 * at most BUCKET_WASTE_MAX times as many scores. BUSY when every bucket is in use by a request,
 * LIMIT when every place is a configured bucket's and none serves this kind.
 */
#define BUCKET_WASTE_MAX 4u /* choice: a launch sized for four times the work still pays */
enum topkd_status bucket_table_choose(struct bucket_table *table, const struct bucket_key *need,
                                      struct bucket_choice *choice_p, char *detail);

/* Carries out a choice without bucket: the evicted one's place (its `prepared` the caller has
 * already ended) or a new one gets the key. */
struct bucket *bucket_table_make(struct bucket_table *table, const struct bucket_choice *choice);

/* Takes back a bucket that was just made and could not be prepared. */
void bucket_table_drop(struct bucket_table *table, struct bucket *bucket);

/* A request begins and ends to use a bucket. */
void bucket_acquire(struct bucket_table *table, struct bucket *bucket);
void bucket_release(struct bucket *bucket);

#endif
