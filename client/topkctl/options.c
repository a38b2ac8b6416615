/* The command line: one table of options drives getopt, the help texts and the refusals. */
#include "ctl.h"
#include "options_value.h"

#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MASK(command) (1u << (command))
#define ASKS_DAEMON                                                                                \
    (MASK(CTL_PING) | MASK(CTL_DEVICES) | MASK(CTL_SESSIONS) | MASK(CTL_STATS) | MASK(CTL_DRAIN) | \
     MASK(CTL_SELECT) | MASK(CTL_DOCTOR) | MASK(CTL_TOP) | BENCH)
#define ASKS_DEVICE                                                                                \
    (MASK(CTL_PING) | MASK(CTL_SESSIONS) | MASK(CTL_STATS) | MASK(CTL_SELECT) | MASK(CTL_TOP) |    \
     BENCH)
#define ALL (MASK(CTL_COMMAND_COUNT) - 1)
#define SELECT MASK(CTL_SELECT)
#define BENCH MASK(CTL_BENCH)

#define THREADS_MAX 256u /* of topk_cpu_create */

/* Options: name, letter (0 none), argument (NULL none), commands that take it, help. */
#define OPTION_TABLE(X)                                                                            \
    X(URL, "url", 0, "URL", ASKS_DAEMON,                                                           \
      "of the daemon, ipc:///path (default: $TOPKD_URL, $XDG_RUNTIME_DIR, /run/topkd)")            \
    X(DEVICE, "device", 0, "UUID", ASKS_DEVICE, "one device, as `topkctl devices` names it")       \
    X(TIMEOUT, "timeout", 0, "TIME", ASKS_DAEMON, "give up after TIME: 10, 2.5s or 500ms")         \
    X(DEADLINE, "deadline", 0, "TIME", MASK(CTL_DRAIN), "how long work in flight may take (10s)")  \
    X(K, "k", 'k', "K", SELECT, "positions a row, 1 to 16384 (required)")                          \
    X(LENGTHS, "lengths", 0, "FILE.npy", SELECT, "int32, valid length of each row")                \
    X(ORDER, "order", 0, "any|index|value", SELECT | BENCH,                                        \
      "order of the positions in a row (any)")                                                     \
    X(TIES, "ties", 0, "any|lowest", SELECT | BENCH, "which of equal scores are taken (any)")      \
    X(DTYPE, "dtype", 0, "float32|float16|bfloat16", SELECT | BENCH,                               \
      "what the scores are (select: what FILE.npy says; it cannot say bfloat16)")                  \
    X(DETERMINISTIC, "deterministic", 0, NULL, SELECT | BENCH,                                     \
      "the same bytes in every run: --ties lowest --order index")                                  \
    X(OUT, "out", 0, "FILE.npy", SELECT, "write the positions, int32 [rows, K]")                   \
    X(VALUES, "values", 0, "FILE.npy", SELECT, "write the scores too, float32 [rows, K]")          \
    X(PAGE_TABLE, "page-table", 0, "FILE.npy", SELECT,                                             \
      "int32 [rows, pages]: position p becomes table[p / N] * N + p % N")                          \
    X(PAGE_SIZE, "page-size", 0, "N", SELECT, "positions a page, a power of two")                  \
    X(ROW_OFFSETS, "row-offsets", 0, "FILE.npy", SELECT, "int32, added to each row's positions")   \
    X(VERIFY, "verify", 0, NULL, SELECT, "check every row against the contract")                   \
    X(LOCAL, "local", 0, NULL, SELECT, "select in this process, without a daemon")                 \
    X(SHAPE, "shape", 0, "RxWxK,...", BENCH, "rows, width and K, in turn (64x131072x2048)")        \
    X(CLIENTS, "clients", 0, "N", BENCH, "client processes (1)")                                   \
    X(THREADS, "threads", 0, "N", SELECT | BENCH,                                                  \
      "select --local: threads (one a processor); bench: clients a process (1)")                   \
    X(OUTSTANDING, "outstanding", 0, "N", BENCH, "requests a client keeps in flight (1)")          \
    X(DURATION, "duration", 0, "TIME", BENCH, "time that counts, after a short warm-up (10s)")     \
    X(SCORES, "scores", 0, "random|ties|equal", BENCH, "what is selected from (random)")           \
    X(SEED, "seed", 0, "N", BENCH, "of the scores (1)")                                            \
    X(INTERVAL, "interval", 0, "TIME", MASK(CTL_TOP), "time between looks (1s)")                   \
    X(COUNT, "count", 0, "N", MASK(CTL_TOP), "end after N looks (do not end)")                     \
    X(JSON, "json", 0, NULL, ALL, "print one JSON value")                                          \
    X(HELP, "help", 'h', NULL, ALL, "print this text")

enum option_code {
    OPTION_FIRST = 256, /* beyond any letter */
#define OPTION_ENUM(name, word, letter, argument, commands, text) OPTION_##name,
    OPTION_TABLE(OPTION_ENUM) OPTION_END
#undef OPTION_ENUM
};

struct option_spec {
    const char *word;
    int letter;
    const char *argument;
    unsigned commands;
    const char *text;
};

static const struct option_spec specs[] = {
#define OPTION_SPEC(name, word, letter, argument, commands, text)                                  \
    {word, letter, argument, commands, text},
    OPTION_TABLE(OPTION_SPEC)
#undef OPTION_SPEC
};
#define NUM_SPECS (sizeof(specs) / sizeof(specs[0]))

static const struct {
    const char *word, *operand, *text;
} commands[] = {
#define COMMAND_ROW(name, word, operand, function, text) {word, operand, text},
    CTL_COMMAND_TABLE(COMMAND_ROW)
#undef COMMAND_ROW
};

static const char *const order_names[] = {"any", "index", "value"};
static const char *const ties_names[] = {"any", "lowest"};

static const char *const dtype_names[] = {
#define DTYPE_NAME(name, word, bytes) word,
    TOPK_DTYPE_TABLE(DTYPE_NAME)
#undef DTYPE_NAME
};

static const char *const scores_names[] = {
#define SCORES_NAME(name, word) word,
    CTL_SCORES_TABLE(SCORES_NAME)
#undef SCORES_NAME
};

const char *options_scores_name(enum ctl_scores scores)
{
    return scores_names[scores];
}

const char *options_order_name(enum topk_order order)
{
    return order_names[order];
}

const char *options_ties_name(enum topk_ties ties)
{
    return ties_names[ties];
}

/* ---- help ------------------------------------------------------------------------------------ */

enum { OPTION_COLUMNS = 24 };

static void print_options(unsigned command_mask)
{
    puts("\nOptions:");
    for (size_t i = 0; i < NUM_SPECS; i++) {
        if ((specs[i].commands & command_mask) == 0) {
            continue;
        }
        char left[64];
        char dash[8] = "";
        if (specs[i].letter != 0) {
            snprintf(dash, sizeof(dash), "-%c, ", specs[i].letter);
        }
        snprintf(left, sizeof(left), "%s--%s%s%s", dash, specs[i].word,
                 specs[i].argument != NULL ? " " : "",
                 specs[i].argument != NULL ? specs[i].argument : "");
        if (strlen(left) > OPTION_COLUMNS) { /* a line of its own */
            printf("  %s\n", left);
            left[0] = '\0';
        }
        printf("  %-*s  %s\n", OPTION_COLUMNS, left, specs[i].text);
    }
    puts("\nExit codes:");
#define PRINT_EXIT(name, number, text) printf("  %d  %s\n", number, text);
    CTL_EXIT_TABLE(PRINT_EXIT)
#undef PRINT_EXIT
}

static void print_help(void)
{
    puts("topkctl - ask and try a topkd daemon\n\nUsage: topkctl COMMAND [OPTION...]\n\nCommands:");
    for (size_t i = 0; i < CTL_COMMAND_COUNT; i++) {
        char left[64];
        snprintf(left, sizeof(left), "%s %s", commands[i].word, commands[i].operand);
        printf("  %-20s  %s\n", left, commands[i].text);
    }
    puts("\n`topkctl COMMAND --help` lists the options of a command.");
}

static void print_command_help(enum ctl_command command)
{
    printf("topkctl %s - %s\n\nUsage: topkctl %s%s%s [OPTION...]\n", commands[command].word,
           commands[command].text, commands[command].word,
           commands[command].operand[0] != '\0' ? " " : "", commands[command].operand);
    print_options(MASK(command));
}

/* ---- values ---------------------------------------------------------------------------------- */

static bool parse_choice(const struct option_spec *spec, const char *text, const char *const *names,
                         size_t num_names, uint32_t *value_p)
{
    for (size_t i = 0; i < num_names; i++) {
        if (strcmp(text, names[i]) == 0) {
            *value_p = (uint32_t)i;
            return true;
        }
    }
    return options_misuse("--%s is \"%s\"; give %s", spec->word, text, spec->argument);
}

/* Options that take a path or a word as it is. */
static const char **text_target(enum option_code code, struct ctl_options *options)
{
    switch (code) {
    case OPTION_URL:
        return &options->url;
    case OPTION_DEVICE:
        return &options->device;
    case OPTION_LENGTHS:
        return &options->lengths;
    case OPTION_OUT:
        return &options->out;
    case OPTION_VALUES:
        return &options->values;
    case OPTION_PAGE_TABLE:
        return &options->page_table;
    case OPTION_ROW_OFFSETS:
        return &options->row_offsets;
    default:
        return NULL;
    }
}

static bool *flag_target(enum option_code code, struct ctl_options *options)
{
    switch (code) {
    case OPTION_JSON:
        return &options->json;
    case OPTION_DETERMINISTIC:
        return &options->deterministic;
    case OPTION_VERIFY:
        return &options->verify;
    case OPTION_LOCAL:
        return &options->local;
    default:
        return NULL;
    }
}

static bool take_choice(enum option_code code, const char *text, struct ctl_options *options)
{
    const struct option_spec *spec = &specs[code - OPTION_FIRST - 1];
    uint32_t choice = 0;
    bool good;
    switch (code) {
    case OPTION_ORDER:
        good = parse_choice(spec, text, order_names, 3, &choice);
        options->order = (enum topk_order)choice;
        options->order_given = true;
        return good;
    case OPTION_TIES:
        good = parse_choice(spec, text, ties_names, 2, &choice);
        options->ties = (enum topk_ties)choice;
        return good;
    case OPTION_DTYPE:
        good = parse_choice(spec, text, dtype_names, TOPK_DTYPE_COUNT, &choice);
        options->dtype = (enum topk_dtype)choice;
        options->dtype_given = true;
        return good;
    default:
        good = parse_choice(spec, text, scores_names, 3, &choice);
        options->scores_kind = (enum ctl_scores)choice;
        return good;
    }
}

/* Of bench and top. */
static bool take_load_option(enum option_code code, const char *text, struct ctl_options *options)
{
    const char *word = specs[code - OPTION_FIRST - 1].word;
    switch (code) {
    case OPTION_SHAPE:
        return options_parse_shapes(text, options);
    case OPTION_CLIENTS:
        return options_parse_u32(word, text, 1, CTL_CLIENTS_MAX, &options->num_clients);
    case OPTION_OUTSTANDING:
        return options_parse_u32(word, text, 1, 1024, &options->outstanding);
    case OPTION_DURATION:
        return options_parse_duration(word, text, &options->duration_ms);
    case OPTION_SEED:
        return options_parse_u32(word, text, 0, UINT32_MAX, &options->seed);
    case OPTION_INTERVAL:
        return options_parse_duration(word, text, &options->interval_ms);
    case OPTION_COUNT:
        return options_parse_u32(word, text, 1, UINT32_MAX, &options->num_rounds);
    default:
        return options_misuse("internal error: option %d", (int)code);
    }
}

static bool take_option(enum option_code code, const char *text, struct ctl_options *options)
{
    const char **path = text_target(code, options);
    bool *flag = flag_target(code, options);
    if (path != NULL) {
        *path = text;
        return text[0] != '\0' ||
               options_misuse("--%s is empty", specs[code - OPTION_FIRST - 1].word);
    }
    if (flag != NULL) {
        *flag = true;
        return true;
    }
    const struct option_spec *spec = &specs[code - OPTION_FIRST - 1];
    switch (code) {
    case OPTION_TIMEOUT:
        options->timeout_given = true;
        return options_parse_duration(spec->word, text, &options->timeout_ms);
    case OPTION_DEADLINE:
        return options_parse_duration(spec->word, text, &options->deadline_ms);
    case OPTION_K:
        return options_parse_u32(spec->word, text, 1, TOPK_K_MAX, &options->k);
    case OPTION_THREADS:
        return options_parse_u32(spec->word, text, 1, THREADS_MAX, &options->num_threads);
    case OPTION_PAGE_SIZE:
        return options_parse_page_size(text, options);
    case OPTION_ORDER:
    case OPTION_TIES:
    case OPTION_DTYPE:
    case OPTION_SCORES:
        return take_choice(code, text, options);
    default:
        return take_load_option(code, text, options);
    }
}

/* ---- the whole line -------------------------------------------------------------------------- */

static bool find_command(const char *word, enum ctl_command *command_p)
{
    for (size_t i = 0; i < CTL_COMMAND_COUNT; i++) {
        if (strcmp(word, commands[i].word) == 0) {
            *command_p = (enum ctl_command)i;
            return true;
        }
    }
    return options_misuse("no command \"%s\"", word);
}

static bool check_order(const struct ctl_options *options)
{
    if (options->deterministic && options->order_given && options->order != TOPK_ORDER_INDEX) {
        return options_misuse("--deterministic means --order index, and --order %s was given too",
                              order_names[options->order]);
    }
    return true;
}

static bool check_select(const struct ctl_options *options)
{
    if (options->k == 0) {
        return options_misuse("select needs -k K, 1 to %u positions a row", TOPK_K_MAX);
    }
    if ((options->page_table != NULL) != options->page_size_given) {
        return options_misuse("--page-table and --page-size go together");
    }
    if (options->local &&
        (options->url != NULL || options->device != NULL || options->timeout_given)) {
        return options_misuse(
            "--local asks no daemon: --url, --device and --timeout have no meaning");
    }
    if (!options->local && options->num_threads != 0) {
        return options_misuse("--threads goes with --local; the daemon has its own threads");
    }
    return true;
}

/* The operands are the command's word and, for some, a file. */
static bool check_line(int num_operands, char **operands, unsigned *seen,
                       struct ctl_options *options)
{
    enum ctl_command command = options->command;
    bool wants_operand = commands[command].operand[0] != '\0';
    if (num_operands != (wants_operand ? 2 : 1)) {
        return options_misuse("%s takes %s%s, %d given", commands[command].word,
                              wants_operand ? "one " : "no operand",
                              wants_operand ? commands[command].operand : "", num_operands - 1);
    }
    options->operand = wants_operand ? operands[1] : NULL;
    for (size_t i = 0; i < NUM_SPECS; i++) {
        if (seen[i] != 0 && (specs[i].commands & MASK(command)) == 0) {
            return options_misuse("%s takes no --%s", commands[command].word, specs[i].word);
        }
    }
    if (command == CTL_BENCH && options->num_threads == 0) {
        options->num_threads = 1;
    }
    return check_order(options) && (command != CTL_SELECT || check_select(options));
}

/* The word of a command that the line has, wherever its options stand; NULL: none. */
static const char *command_of(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        for (size_t c = 0; c < CTL_COMMAND_COUNT; c++) {
            if (strcmp(argv[i], commands[c].word) == 0) {
                return commands[c].word;
            }
        }
    }
    return NULL;
}

static void fill_getopt(struct option *table)
{
    for (size_t i = 0; i < NUM_SPECS; i++) {
        table[i] = (struct option){
            .name = specs[i].word,
            .has_arg = specs[i].argument != NULL ? required_argument : no_argument,
            .val = OPTION_FIRST + 1 + (int)i,
        };
    }
    table[NUM_SPECS] = (struct option){0};
}

enum ctl_exit options_parse(int argc, char **argv, struct ctl_options *options_p, bool *done_p)
{
    struct option table[NUM_SPECS + 1];
    struct ctl_options options = {
        .deadline_ms = 10000,
        .num_clients = 1,
        .outstanding = 1,
        .duration_ms = 10000,
        .seed = 1,
        .num_shapes = 1,
        .shapes = {{.rows = 64, .width = 131072, .k = 2048}},
        .interval_ms = 1000,
    };
    unsigned seen[NUM_SPECS] = {0};
    static char name[] = "topkctl"; /* getopt's messages begin with it, as ours do */
    fill_getopt(table);
    options_name_command(command_of(argc, argv));
    argv[0] = name;
    for (int code; (code = getopt_long(argc, argv, "k:h", table, NULL)) != -1;) {
        code = code == 'k' ? OPTION_K : code == 'h' ? OPTION_HELP : code;
        if (code == '?') { /* getopt has said what is wrong */
            options_name_help();
            return CTL_EXIT_USAGE;
        }
        seen[code - OPTION_FIRST - 1] = 1;
        if (code != OPTION_HELP && !take_option((enum option_code)code, optarg, &options)) {
            return CTL_EXIT_USAGE;
        }
    }
    bool help = seen[OPTION_HELP - OPTION_FIRST - 1] != 0;
    *done_p = help;
    if (optind == argc) {
        if (!help) {
            options_misuse("no command given");
            return CTL_EXIT_USAGE;
        }
        print_help();
        return CTL_EXIT_OK;
    }
    if (!find_command(argv[optind], &options.command)) {
        return CTL_EXIT_USAGE;
    }
    if (help) {
        print_command_help(options.command);
        return CTL_EXIT_OK;
    }
    if (!check_line(argc - optind, argv + optind, seen, &options)) {
        return CTL_EXIT_USAGE;
    }
    if (options.deterministic) {
        options.order = TOPK_ORDER_INDEX;
        options.ties = TOPK_TIES_LOWEST;
    }
    *options_p = options;
    return CTL_EXIT_OK;
}
