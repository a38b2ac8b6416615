/* The command line: one table of options drives getopt, the help texts and the refusals. */
#include "ctl.h"

#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MASK(command) (1u << (command))
#define ASKS_DAEMON                                                                                \
    (MASK(CTL_PING) | MASK(CTL_DEVICES) | MASK(CTL_SESSIONS) | MASK(CTL_STATS) | MASK(CTL_DRAIN) | \
     MASK(CTL_SELECT) | MASK(CTL_DOCTOR))
#define ASKS_DEVICE (MASK(CTL_PING) | MASK(CTL_SESSIONS) | MASK(CTL_STATS) | MASK(CTL_SELECT))
#define ALL (MASK(CTL_COMMAND_COUNT) - 1)
#define SELECT MASK(CTL_SELECT)

#define DURATION_MAX_MS 86400000u /* choice: a day */
#define THREADS_MAX 256u          /* of topk_cpu_create */

/* Options: name, letter (0 none), argument (NULL none), commands that take it, help. */
#define OPTION_TABLE(X)                                                                            \
    X(URL, "url", 0, "URL", ASKS_DAEMON,                                                           \
      "of the daemon, ipc:///path (default: $TOPKD_URL, $XDG_RUNTIME_DIR, /run/topkd)")            \
    X(DEVICE, "device", 0, "UUID", ASKS_DEVICE, "one device, as `topkctl devices` names it")       \
    X(TIMEOUT, "timeout", 0, "TIME", ASKS_DAEMON, "give up after TIME: 10, 2.5s or 500ms")         \
    X(DEADLINE, "deadline", 0, "TIME", MASK(CTL_DRAIN), "how long work in flight may take (10s)")  \
    X(K, "k", 'k', "K", SELECT, "positions a row, 1 to 16384 (required)")                          \
    X(LENGTHS, "lengths", 0, "FILE.npy", SELECT, "int32, valid length of each row")                \
    X(ORDER, "order", 0, "any|index|value", SELECT, "order of the positions in a row (any)")       \
    X(TIES, "ties", 0, "any|lowest", SELECT, "which of equal scores are taken (any)")              \
    X(DETERMINISTIC, "deterministic", 0, NULL, SELECT,                                             \
      "the same bytes in every run: --ties lowest --order index")                                  \
    X(OUT, "out", 0, "FILE.npy", SELECT, "write the positions, int32 [rows, K]")                   \
    X(VALUES, "values", 0, "FILE.npy", SELECT, "write the scores too, float32 [rows, K]")          \
    X(PAGE_TABLE, "page-table", 0, "FILE.npy", SELECT,                                             \
      "int32 [rows, pages]: position p becomes table[p / N] * N + p % N")                          \
    X(PAGE_SIZE, "page-size", 0, "N", SELECT, "positions a page, a power of two")                  \
    X(ROW_OFFSETS, "row-offsets", 0, "FILE.npy", SELECT, "int32, added to each row's positions")   \
    X(VERIFY, "verify", 0, NULL, SELECT, "check every row against the contract")                   \
    X(LOCAL, "local", 0, NULL, SELECT, "select in this process, without a daemon")                 \
    X(THREADS, "threads", 0, "N", SELECT, "with --local: threads (one a processor)")               \
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

const char *options_order_name(enum topk_order order)
{
    return order_names[order];
}

const char *options_ties_name(enum topk_ties ties)
{
    return ties_names[ties];
}

/* Says what is wrong with the command line; returns false for the callers' convenience. */
static bool misuse(const char *format, ...) __attribute__((format(printf, 1, 2)));

static bool misuse(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("topkctl: ", stderr);
    vfprintf(stderr, format, arguments);
    fputs("; see topkctl --help\n", stderr);
    va_end(arguments);
    return false;
}

/* ---- help ------------------------------------------------------------------------------------ */

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
        printf("  %-24s  %s\n", left, specs[i].text);
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

static bool parse_u32(const char *word, const char *text, uint32_t min, uint32_t max,
                      uint32_t *value_p)
{
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != '\0' || errno != 0 || value < min ||
        value > max) {
        return misuse("--%s is \"%s\"; give a number from %u to %u", word, text, min, max);
    }
    *value_p = (uint32_t)value;
    return true;
}

/* Seconds ("10", "2.5", "2.5s") or milliseconds ("500ms"). */
static bool parse_duration(const char *word, const char *text, uint32_t *duration_ms_p)
{
    char *end;
    double value = strtod(text, &end);
    double unit_ms = strcmp(end, "ms") == 0 ? 1.0 : 1000.0;
    bool known = strcmp(end, "ms") == 0 || strcmp(end, "s") == 0 || *end == '\0';
    double duration_ms = value * unit_ms;
    if (end == text || !known || !(duration_ms >= 1.0 && duration_ms <= (double)DURATION_MAX_MS)) {
        return misuse("--%s is \"%s\"; give a time from 1ms to 86400s, as 10, 2.5s or 500ms", word,
                      text);
    }
    *duration_ms_p = (uint32_t)duration_ms;
    return true;
}

static bool parse_choice(const struct option_spec *spec, const char *text, const char *const *names,
                         size_t num_names, uint32_t *value_p)
{
    for (size_t i = 0; i < num_names; i++) {
        if (strcmp(text, names[i]) == 0) {
            *value_p = (uint32_t)i;
            return true;
        }
    }
    return misuse("--%s is \"%s\"; give %s", spec->word, text, spec->argument);
}

static bool parse_page_size(const char *text, struct ctl_options *options)
{
    uint32_t size = 0;
    if (!parse_u32("page-size", text, 1, 1u << TOPK_PAGE_SIZE_LOG2_MAX, &size)) {
        return false;
    }
    if ((size & (size - 1)) != 0) {
        return misuse("--page-size is %u; give a power of two", size);
    }
    options->page_size_log2 = (uint32_t)__builtin_ctz(size);
    options->page_size_given = true;
    return true;
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

static bool take_option(enum option_code code, const char *text, struct ctl_options *options)
{
    const char **path = text_target(code, options);
    bool *flag = flag_target(code, options);
    if (path != NULL) {
        *path = text;
        return text[0] != '\0' || misuse("--%s is empty", specs[code - OPTION_FIRST - 1].word);
    }
    if (flag != NULL) {
        *flag = true;
        return true;
    }
    const struct option_spec *spec = &specs[code - OPTION_FIRST - 1];
    uint32_t choice = 0;
    bool good = true;
    switch (code) {
    case OPTION_TIMEOUT:
        options->timeout_given = true;
        return parse_duration(spec->word, text, &options->timeout_ms);
    case OPTION_DEADLINE:
        return parse_duration(spec->word, text, &options->deadline_ms);
    case OPTION_K:
        return parse_u32(spec->word, text, 1, TOPK_K_MAX, &options->k);
    case OPTION_THREADS:
        return parse_u32(spec->word, text, 1, THREADS_MAX, &options->num_threads);
    case OPTION_PAGE_SIZE:
        return parse_page_size(text, options);
    case OPTION_ORDER:
        good = parse_choice(spec, text, order_names, 3, &choice);
        options->order = (enum topk_order)choice;
        options->order_given = true;
        return good;
    case OPTION_TIES:
        good = parse_choice(spec, text, ties_names, 2, &choice);
        options->ties = (enum topk_ties)choice;
        return good;
    default:
        return misuse("internal error: option %d", (int)code);
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
    return misuse("no command \"%s\"", word);
}

static bool check_select(const struct ctl_options *options)
{
    if (options->k == 0) {
        return misuse("select needs -k K, 1 to %u positions a row", TOPK_K_MAX);
    }
    if ((options->page_table != NULL) != options->page_size_given) {
        return misuse("--page-table and --page-size go together");
    }
    if (options->deterministic && options->order_given && options->order != TOPK_ORDER_INDEX) {
        return misuse("--deterministic means --order index, and --order %s was given too",
                      order_names[options->order]);
    }
    if (options->local &&
        (options->url != NULL || options->device != NULL || options->timeout_given)) {
        return misuse("--local asks no daemon: --url, --device and --timeout have no meaning");
    }
    if (!options->local && options->num_threads != 0) {
        return misuse("--threads goes with --local; the daemon has its own threads");
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
        return misuse("%s takes %s%s, %d given", commands[command].word,
                      wants_operand ? "one " : "no operand",
                      wants_operand ? commands[command].operand : "", num_operands - 1);
    }
    options->operand = wants_operand ? operands[1] : NULL;
    for (size_t i = 0; i < NUM_SPECS; i++) {
        if (seen[i] != 0 && (specs[i].commands & MASK(command)) == 0) {
            return misuse("%s takes no --%s", commands[command].word, specs[i].word);
        }
    }
    return command != CTL_SELECT || check_select(options);
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
    struct ctl_options options = {.deadline_ms = 10000};
    unsigned seen[NUM_SPECS] = {0};
    fill_getopt(table);
    for (int code; (code = getopt_long(argc, argv, "k:h", table, NULL)) != -1;) {
        code = code == 'k' ? OPTION_K : code == 'h' ? OPTION_HELP : code;
        if (code == '?') { /* getopt has said what is wrong */
            fputs("see topkctl --help\n", stderr);
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
            misuse("no command given");
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
