/*
 * score_kinds.hpp - the families of scores that benchmarks of the GPU selector use, and the valid
 * lengths of their rows. The first five and the lengths are those that the anchors (README.md) were
 * measured with.
 */
#ifndef TOPKD_BENCH_SCORE_KINDS_HPP
#define TOPKD_BENCH_SCORE_KINDS_HPP

#define BENCH_SCORES_TABLE(X)                                                                      \
    X(BENCH_INDEXER, "indexer")       /* weighted ReLU over heads, sink and recency boost */       \
    X(BENCH_NORMAL, "normal")         /* standard normal */                                        \
    X(BENCH_TIES, "ties")             /* normal, rounded down to quarters */                       \
    X(BENCH_CLUSTERED, "clustered")   /* uniform in [1, 1.245) */                                  \
    X(BENCH_CONST, "const")           /* one value */                                              \
    X(BENCH_ASCENDING, "ascending")   /* each score beats all before it */                         \
    X(BENCH_DESCENDING, "descending") /* and the other way round */                                \
    X(BENCH_SAW, "saw")               /* teeth as long as the plan's sample takes steps */         \
    X(BENCH_TILE, "tile")             /* all winners side by side in one place */

enum bench_scores {
#define BENCH_SCORES_ENUM(name, short_name) name,
    BENCH_SCORES_TABLE(BENCH_SCORES_ENUM) BENCH_SCORES_COUNT
#undef BENCH_SCORES_ENUM
};

extern const char *const bench_scores_names[];

struct topk_plan;

/*
 * The scores from one sampled place of a row to the next, of a row of `length` scores under a plan;
 * 512 for a plan without a sample. Saw-tooth rows have teeth of this length, in four phases: a
 * sample then sees the top of every tooth, its bottom or one height between.
 */
double bench_sample_period(const struct topk_plan &plan, int length);

#endif
