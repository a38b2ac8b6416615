/* Values of the settings as text: reading, writing, and why one is refused. */
#include "assert.h"
#include "log.h"
#include "settings_internal.h"
#include "topk_select.h"

#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <string.h>

/* Choice: bytes for the strings of one user or group entry; a group with very many members does
 * not fit and is then to be given as a number. */
#define ACCOUNT_SIZE 65536u

struct unit {
    const char *suffix;
    uint32_t shift;
};

static const struct unit units[] = {{"TiB", 40}, {"GiB", 30}, {"MiB", 20}, {"KiB", 10}};

/* At most 40 characters of a value, printable: what the user wrote, as far as it helps. */
static const char *shown(char out[48], const char *value)
{
    size_t used = 0;
    for (const char *p = value; *p != '\0'; p++) {
        if (used == 40) {
            memcpy(out + used, "...", 3);
            used += 3;
            break;
        }
        out[used++] = (unsigned char)*p < 0x20 || *p == 0x7f ? '?' : *p;
    }
    out[used] = '\0';
    return out;
}

/* Digits of a base to a number. False when there is anything else; beyond 64 bits it saturates. */
static bool read_digits(const char *text, size_t size, uint32_t base, uint64_t *number_p)
{
    uint64_t number = 0;
    for (size_t i = 0; i < size; i++) {
        if (text[i] < '0' || text[i] >= (char)('0' + base))
            return false;
        uint64_t digit = (uint64_t)(text[i] - '0');
        if (__builtin_mul_overflow(number, base, &number) ||
            __builtin_add_overflow(number, digit, &number))
            number = UINT64_MAX;
        if (number == UINT64_MAX) {
            for (; i < size; i++) /* the rest must be digits all the same */
                if (text[i] < '0' || text[i] >= (char)('0' + base))
                    return false;
        }
    }
    *number_p = number;
    return size != 0;
}

/* The same with a unit behind, "64GiB" or "64 GiB". */
static bool read_bytes(const char *text, uint64_t *number_p)
{
    size_t digits = strspn(text, "0123456789");
    const char *suffix = text + digits + strspn(text + digits, " ");
    uint64_t number = 0;
    if (!read_digits(text, digits, 10, &number))
        return false;
    if (suffix[0] == '\0')
        return *number_p = number, text[digits] == '\0';
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
        if (strcmp(suffix, units[i].suffix) == 0) {
            *number_p =
                number > UINT64_MAX >> units[i].shift ? UINT64_MAX : number << units[i].shift;
            return true;
        }
    return false;
}

static bool is_negative_number(const char *text)
{
    return text[0] == '-' && text[1] != '\0' && strspn(text + 1, "0123456789") == strlen(text + 1);
}

static void write_bytes(uint64_t number, char *text, size_t size)
{
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
        if (number != 0 && number % (UINT64_C(1) << units[i].shift) == 0) {
            snprintf(text, size, "%llu%s", (unsigned long long)(number >> units[i].shift),
                     units[i].suffix);
            return;
        }
    snprintf(text, size, "%llu", (unsigned long long)number);
}

static void write_number(enum settings_type type, uint64_t number, char *text, size_t size)
{
    if (type == SETTINGS_BYTES)
        write_bytes(number, text, size);
    else if (type == SETTINGS_MODE)
        snprintf(text, size, "%04llo", (unsigned long long)number);
    else if (type == SETTINGS_LEVEL)
        snprintf(text, size, "%s", log_level_name((enum log_level)number));
    else
        snprintf(text, size, "%llu", (unsigned long long)number);
}

void settings_range_write(const struct settings_entry *entry, char text[SETTINGS_REASON_SIZE])
{
    char min[32], max[32];
    text[0] = '\0';
    if (entry->type != SETTINGS_U32 && entry->type != SETTINGS_BYTES &&
        entry->type != SETTINGS_MODE)
        return;
    write_number(entry->type, entry->min, min, sizeof min);
    write_number(entry->type, entry->max, max, sizeof max);
    /* A count of bytes carries its unit in itself; "4096 to 64TiB bytes" would not read well. */
    bool with_unit = entry->type == SETTINGS_U32 && entry->unit[0] != '\0';
    snprintf(text, SETTINGS_REASON_SIZE, "%s to %s%s%s", min, max, with_unit ? " " : "",
             with_unit ? entry->unit : "");
}

static bool refuse_number(const struct settings_entry *entry, const char *value, const char *what,
                          char reason[SETTINGS_REASON_SIZE])
{
    char range[SETTINGS_REASON_SIZE], normal[32], text[48];
    settings_range_write(entry, range);
    write_number(entry->type, entry->value, normal, sizeof normal);
    snprintf(reason, SETTINGS_REASON_SIZE, "%s %s; accepted is %.80s, default %s",
             shown(text, value), what, range, normal);
    return false;
}

static bool read_number(const struct settings_entry *entry, const char *value, uint64_t *number_p,
                        char reason[SETTINGS_REASON_SIZE])
{
    static const char *const kinds[] = {[SETTINGS_U32] = "is not a whole number",
                                        [SETTINGS_BYTES] =
                                            ("is not a number of bytes (4096, 64KiB, "
                                             "8MiB, 2GiB, 1TiB)"),
                                        [SETTINGS_MODE] = "is not an octal mode"};
    char bound[64], end[32];
    uint64_t number;
    bool valid =
        entry->type == SETTINGS_BYTES
            ? read_bytes(value, &number)
            : read_digits(value, strlen(value), entry->type == SETTINGS_MODE ? 8 : 10, &number);
    bool negative = !valid && is_negative_number(value);
    if (!valid && !negative)
        return refuse_number(entry, value, kinds[entry->type], reason);
    bool below = negative || number < entry->min;
    if (below || number > entry->max) {
        write_number(entry->type, below ? entry->min : entry->max, end, sizeof end);
        snprintf(bound, sizeof bound, "is %s %s", below ? "below" : "above", end);
        return refuse_number(entry, value, bound, reason);
    }
    *number_p = number;
    return true;
}

static bool read_level(const char *value, uint32_t *level_p, char reason[SETTINGS_REASON_SIZE])
{
    char text[48];
    for (uint32_t level = LOG_LEVEL_ERROR; level <= LOG_LEVEL_DEBUG; level++)
        if (strcmp(value, log_level_name((enum log_level)level)) == 0) {
            *level_p = level;
            return true;
        }
    snprintf(reason, SETTINGS_REASON_SIZE,
             "%s is not a log level; accepted is error, warn, info or debug, default info",
             shown(text, value));
    return false;
}

/* Printable ASCII without the characters that YAML and URLs escape: what every consumer of the
 * path (socket address, URL, log, settings of the workers) reads the same way. */
static bool read_directory(const char *value, char *directory, char reason[SETTINGS_REASON_SIZE])
{
    char text[48];
    size_t size = strlen(value);
    if (strcmp(value, "auto") == 0) {
        directory[0] = '\0';
        return true;
    }
    if (value[0] != '/') {
        snprintf(reason, SETTINGS_REASON_SIZE, "%s is neither auto nor an absolute path",
                 shown(text, value));
        return false;
    }
    if (size >= SETTINGS_DIRECTORY_SIZE) {
        snprintf(reason, SETTINGS_REASON_SIZE,
                 "%s has %zu characters; at most %u fit with the names of the sockets, whose path "
                 "ends at 107",
                 shown(text, value), size, SETTINGS_DIRECTORY_SIZE - 1);
        return false;
    }
    for (size_t i = 0; i < size; i++)
        if (value[i] < 0x20 || value[i] >= 0x7f || strchr("\"\\%?#", value[i]) != NULL) {
            snprintf(reason, SETTINGS_REASON_SIZE,
                     "%s has a character at %zu that a socket's URL cannot carry; use printable "
                     "ASCII without \" \\ %% ? #",
                     shown(text, value), i + 1);
            return false;
        }
    while (size > 1 && value[size - 1] == '/')
        size--;
    memset(directory, 0, SETTINGS_DIRECTORY_SIZE);
    memcpy(directory, value, size);
    return true;
}

/* A uid or gid as number or name. The highest number is (uid_t)-1, which no process can have. */
static bool read_account(const char *value, bool is_group, uint32_t *id_p,
                         char reason[SETTINGS_REASON_SIZE])
{
    char text[48], strings[ACCOUNT_SIZE];
    const char *kind = is_group ? "group" : "user";
    uint64_t number;
    int error;
    if (read_digits(value, strlen(value), 10, &number)) {
        if (number < UINT32_MAX) {
            *id_p = (uint32_t)number;
            return true;
        }
        snprintf(reason, SETTINGS_REASON_SIZE, "%s is above 4294967294, the highest %s number",
                 shown(text, value), kind);
        return false;
    }
    if (is_group) {
        struct group group, *found = NULL;
        error = getgrnam_r(value, &group, strings, sizeof strings, &found);
        if (found != NULL)
            *id_p = group.gr_gid;
        if (found != NULL)
            return true;
    } else {
        struct passwd user, *found = NULL;
        error = getpwnam_r(value, &user, strings, sizeof strings, &found);
        if (found != NULL)
            *id_p = user.pw_uid;
        if (found != NULL)
            return true;
    }
    if (error == 0 || error == ENOENT || error == ESRCH || error == EBADF || error == EPERM)
        snprintf(reason, SETTINGS_REASON_SIZE, "no %s is called %s here; give its number or name",
                 kind, shown(text, value));
    else
        snprintf(reason, SETTINGS_REASON_SIZE, "looking up the %s %s failed (%s); give its number",
                 kind, shown(text, value), strerror(error));
    return false;
}

static bool add_account(struct settings_ids *ids, const char *value, bool is_group,
                        char reason[SETTINGS_REASON_SIZE])
{
    uint32_t id;
    if (!read_account(value, is_group, &id, reason))
        return false;
    for (uint32_t i = 0; i < ids->num_ids; i++)
        if (ids->ids[i] == id)
            return true;
    if (ids->num_ids == SETTINGS_IDS_MAX) {
        snprintf(reason, SETTINGS_REASON_SIZE, "the list has more than %u entries; use a group",
                 SETTINGS_IDS_MAX);
        return false;
    }
    ids->ids[ids->num_ids++] = id;
    return true;
}

static bool read_group(const char *value, int64_t *group_p, char reason[SETTINGS_REASON_SIZE])
{
    uint32_t id;
    if (strcmp(value, "none") == 0) {
        *group_p = SETTINGS_GROUP_NONE;
        return true;
    }
    if (!read_account(value, true, &id, reason))
        return false;
    *group_p = id;
    return true;
}

bool settings_value_read(const struct settings_entry *entry, const char *value,
                         struct settings *settings, char reason[SETTINGS_REASON_SIZE])
{
    void *field = settings_field(settings, entry);
    uint64_t number;
    switch (entry->type) {
    case SETTINGS_U32:
    case SETTINGS_MODE:
        if (!read_number(entry, value, &number, reason))
            return false;
        *(uint32_t *)field = (uint32_t)number;
        return true;
    case SETTINGS_BYTES:
        return read_number(entry, value, field, reason);
    case SETTINGS_LEVEL:
        return read_level(value, field, reason);
    case SETTINGS_DIRECTORY:
        return read_directory(value, field, reason);
    case SETTINGS_GROUP:
        return read_group(value, field, reason);
    case SETTINGS_USERS:
        return add_account(field, value, false, reason);
    case SETTINGS_GROUPS:
        return add_account(field, value, true, reason);
    }
    topkd_assert(false && "a type of the table");
}

bool settings_member_read(const struct settings_member *member, const char *value, void *object,
                          char reason[SETTINGS_REASON_SIZE])
{
    char text[48];
    uint64_t number = 0;
    bool valid = read_digits(value, strlen(value), 10, &number);
    bool negative = !valid && is_negative_number(value);
    if (valid && number >= member->min && number <= member->max) {
        uint32_t stored = (uint32_t)number;
        memcpy((char *)object + member->offset, &stored, sizeof stored);
        return true;
    }
    const char *what = !valid && !negative                ? "is not a whole number"
                       : negative || number < member->min ? "is too small"
                                                          : "is too large";
    snprintf(reason, SETTINGS_REASON_SIZE, "%s %s; accepted is %llu to %llu", shown(text, value),
             what, (unsigned long long)member->min, (unsigned long long)member->max);
    return false;
}

/* GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx, as nvidia-smi -L prints it. */
static bool is_gpu_uuid(const char *value)
{
    static const char shape[] = "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx";
    if (strlen(value) != sizeof shape - 1)
        return false;
    for (size_t i = 0; i < sizeof shape - 1; i++)
        if (shape[i] == 'x' ? strchr("0123456789abcdef", value[i]) == NULL : value[i] != shape[i])
            return false;
    return true;
}

bool settings_device_read(const char *value, struct settings_device *device,
                          char reason[SETTINGS_REASON_SIZE])
{
    char text[48];
    if (strcmp(value, "auto") != 0 && strcmp(value, "cpu") != 0 && !is_gpu_uuid(value)) {
        snprintf(reason, SETTINGS_REASON_SIZE,
                 "%s is not a device; accepted is auto, cpu or the UUID of a GPU "
                 "(GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx, see nvidia-smi -L)",
                 shown(text, value));
        return false;
    }
    memset(device->device, 0, sizeof device->device);
    memcpy(device->device, value, strlen(value));
    return true;
}

bool settings_dtype_read(const char *value, struct settings_bucket *bucket,
                         char reason[SETTINGS_REASON_SIZE])
{
    char text[48];
    for (uint32_t dtype = 0; dtype < TOPK_DTYPE_COUNT; dtype++) {
        if (strcmp(value, topk_dtype_name((enum topk_dtype)dtype)) == 0) {
            bucket->dtype = dtype;
            return true;
        }
    }
    snprintf(reason, SETTINGS_REASON_SIZE,
             "%s is no type of scores; accepted is float32, float16 or bfloat16",
             shown(text, value));
    return false;
}

static void write_ids(const struct settings_ids *ids, char text[SETTINGS_VALUE_SIZE])
{
    size_t used = 0;
    text[used++] = '[';
    for (uint32_t i = 0; i < ids->num_ids; i++) /* 64 entries of at most 12 characters fit */
        used += (size_t)snprintf(text + used, SETTINGS_VALUE_SIZE - used, "%s%u",
                                 i == 0 ? "" : ", ", ids->ids[i]);
    text[used++] = ']';
    text[used] = '\0';
}

void settings_value_write(const struct settings_entry *entry, const struct settings *settings,
                          char text[SETTINGS_VALUE_SIZE])
{
    const void *field = settings_field_const(settings, entry);
    switch (entry->type) {
    case SETTINGS_U32:
    case SETTINGS_MODE:
    case SETTINGS_LEVEL:
        write_number(entry->type, *(const uint32_t *)field, text, SETTINGS_VALUE_SIZE);
        return;
    case SETTINGS_BYTES:
        write_number(entry->type, *(const uint64_t *)field, text, SETTINGS_VALUE_SIZE);
        return;
    case SETTINGS_DIRECTORY:
        if (*(const char *)field == '\0')
            strcpy(text, "auto");
        else
            snprintf(text, SETTINGS_VALUE_SIZE, "\"%s\"", (const char *)field);
        return;
    case SETTINGS_GROUP:
        if (*(const int64_t *)field == SETTINGS_GROUP_NONE)
            strcpy(text, "none");
        else
            snprintf(text, SETTINGS_VALUE_SIZE, "%lld", (long long)*(const int64_t *)field);
        return;
    case SETTINGS_USERS:
    case SETTINGS_GROUPS:
        write_ids(field, text);
        return;
    }
    topkd_assert(false && "a type of the table");
}
