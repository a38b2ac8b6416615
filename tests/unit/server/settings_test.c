/* Settings that are right: defaults, printing, reading back, merging, access. */
#include "server/log.h"
#include "server/settings.h"
#include "server/settings_internal.h"
#include "topk_select.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static void parse_ok(const char *text, struct settings *settings)
{
    static struct settings_report report;
    memset(&report, 0, sizeof report);
    enum topkd_status status = settings_parse(text, strlen(text), "t", settings, &report);
    if (status != TOPKD_OK)
        fail_msg("%s\nwas refused: %s", text, report.lines[0]);
    assert_int_equal(report.num_errors, 0);
}

static char *print(const struct settings *settings, bool comments)
{
    char *text = NULL;
    size_t size = 0;
    FILE *file = open_memstream(&text, &size);
    assert_non_null(file);
    settings_print(settings, comments, file);
    assert_int_equal(ferror(file), 0);
    assert_int_equal(fclose(file), 0);
    return text;
}

static void st_01_defaults_pass_every_check(void **state)
{
    (void)state;
    static struct settings settings;
    static struct settings_report report;
    settings_init(&settings);
    assert_int_equal(settings_check(&settings, "defaults", &report), TOPKD_OK);
    for (uint32_t i = 0; i < settings_num_entries; i++) {
        const struct settings_entry *entry = &settings_entries[i];
        if (entry->type == SETTINGS_U32 || entry->type == SETTINGS_BYTES ||
            entry->type == SETTINGS_MODE) {
            assert_true(entry->min <= entry->value);
            assert_true(entry->value <= entry->max);
            assert_true(entry->type == SETTINGS_BYTES || entry->max <= UINT32_MAX);
        }
    }
}

static void st_02_default_file_equals_table(void **state)
{
    (void)state;
    static struct settings settings, read_back;
    static struct settings_report report;
    settings_init(&settings);
    char *text = print(&settings, true);
    FILE *file = fopen(TOPKD_CONFIG_DIR "/topkd.yaml", "r");
    assert_non_null(file);
    char *stored = calloc(1, SETTINGS_TEXT_SIZE_MAX + 1);
    assert_non_null(stored);
    size_t size = fread(stored, 1, SETTINGS_TEXT_SIZE_MAX, file);
    fclose(file);
    if (strcmp(text, stored) != 0)
        fail_msg("config/topkd.yaml (%zu bytes) differs from the table (%zu bytes): write it again "
                 "with  topkd --print-config > config/topkd.yaml  and then  awk -f "
                 "config/reference.awk config/topkd.yaml > docs/configuration.md",
                 size, strlen(text));
    assert_int_equal(settings_load_file(TOPKD_CONFIG_DIR "/topkd.yaml", &read_back, &report),
                     TOPKD_OK);
    assert_memory_equal(&settings, &read_back, sizeof settings);
    free(stored);
    free(text);
}

static void st_03_minimal_file_is_accepted(void **state)
{
    (void)state;
    static struct settings settings;
    static struct settings_report report;
    enum topkd_status status =
        settings_load_file(TOPKD_CONFIG_DIR "/topkd.minimal.yaml", &settings, &report);
    if (status != TOPKD_OK)
        fail_msg("%s", report.lines[0]);
}

static void st_04_empty_texts_are_the_defaults(void **state)
{
    (void)state;
    static const char *const texts[] = {"",          "\n",           "# only a comment\n",
                                        "---\n",     "{}",           "limits:\n",
                                        "limits: ~", "limits: null", "limits: {}\nlog:\n"};
    static struct settings defaults, settings;
    settings_init(&defaults);
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        memset(&settings, 0xff, sizeof settings);
        parse_ok(texts[i], &settings);
        assert_memory_equal(&defaults, &settings, sizeof settings);
    }
}

/* Every number at both of its ends, alone and printed back. Relations that forbid an end alone are
 * satisfied by moving the other side first. */
static void st_05_every_number_at_its_ends(void **state)
{
    (void)state;
    static struct settings settings, again;
    static struct settings_report report;
    char text[512], value[SETTINGS_VALUE_SIZE];
    for (uint32_t i = 0; i < settings_num_entries; i++) {
        const struct settings_entry *entry = &settings_entries[i];
        if (entry->type != SETTINGS_U32 && entry->type != SETTINGS_BYTES)
            continue;
        for (int end = 0; end < 2; end++) {
            uint64_t number = end == 0 ? entry->min : entry->max;
            snprintf(text, sizeof text, "%llu", (unsigned long long)number);
            settings_init(&settings);
            memset(&report, 0, sizeof report);
            assert_int_equal(settings_set(&settings, entry->path, text, "t", &report), TOPKD_OK);
            settings_value_write(entry, &settings, value);
            settings_init(&again);
            assert_int_equal(settings_set(&again, entry->path, value, "t", &report), TOPKD_OK);
            assert_memory_equal(&settings, &again, sizeof settings);
            if (end == 0 && number == 0)
                continue;
            number = end == 0 ? number - 1 : number + 1;
            snprintf(text, sizeof text, "%llu", (unsigned long long)number);
            assert_int_equal(settings_set(&again, entry->path, text, "t", &report),
                             TOPKD_E_INVALID);
            assert_non_null(strstr(report.lines[0], end == 0 ? " is below " : " is above "));
            assert_memory_equal(&settings, &again, sizeof settings);
        }
    }
}

static void st_06_values_in_every_form(void **state)
{
    (void)state;
    static struct settings settings;
    parse_ok("socket: {directory: /tmp/a b//, directory_mode: 700, mode: '0666', group: 7}\n"
             "access: {uids: [root, 12, 12, \"13\"], gids: [root], operator_uids: [4294967294]}\n"
             "limits:\n"
             "  region_bytes_max: 1 GiB\n"
             "  region_bytes_total: 64TiB\n"
             "  arena_slot_bytes: 4096\n"
             "  lanes: 007\n"
             "log: {level: debug}\n"
             "devices:\n"
             "  - device: cpu\n"
             "    threads: 256\n"
             "  - {device: GPU-00000000-0000-0000-0000-0123456789ab}\n"
             "buckets: [{k: 16384, width: 2147483647, rows: 2147483647}, {rows: 1, width: 2, k: 3, "
             "dtype: bfloat16}]\n",
             &settings);
    assert_string_equal(settings.socket.directory, "/tmp/a b");
    assert_int_equal(settings.socket.directory_mode, 0700);
    assert_int_equal(settings.socket.mode, 0666);
    assert_int_equal(settings.socket.group, 7);
    assert_int_equal(settings.access.uids.num_ids, 3);
    assert_int_equal(settings.access.uids.ids[0], 0);
    assert_int_equal(settings.access.uids.ids[1], 12);
    assert_int_equal(settings.access.uids.ids[2], 13);
    assert_int_equal(settings.access.gids.num_ids, 1);
    assert_int_equal(settings.access.operator_uids.ids[0], 4294967294u);
    assert_true(settings.limits.region_bytes_max == UINT64_C(1) << 30);
    assert_true(settings.limits.region_bytes_total == UINT64_C(1) << 46);
    assert_int_equal(settings.limits.arena_slot_bytes, 4096);
    assert_int_equal(settings.limits.lanes, 7);
    assert_int_equal(settings.log.level, LOG_LEVEL_DEBUG);
    assert_int_equal(settings.num_devices, 2);
    assert_int_equal(settings.devices[0].threads, 256);
    assert_string_equal(settings.devices[1].device, "GPU-00000000-0000-0000-0000-0123456789ab");
    assert_int_equal(settings.num_buckets, 2);
    assert_int_equal(settings.buckets[0].k, 16384);
    assert_int_equal(settings.buckets[0].dtype, TOPK_DTYPE_FLOAT32);
    assert_int_equal(settings.buckets[1].dtype, TOPK_DTYPE_BFLOAT16);
}

/* A text of 64 entries in each list, printed with and without comments, reads back the same. */
static void st_07_full_lists_survive_printing(void **state)
{
    (void)state;
    static struct settings settings, again;
    settings_init(&settings);
    strcpy(settings.socket.directory, "/srv/top kd's");
    settings.socket.group = 4294967294;
    settings.limits.region_bytes_max = 4097;
    settings.limits.buckets_max = 64;
    for (uint32_t i = 0; i < SETTINGS_IDS_MAX; i++)
        settings.access.uids.ids[i] = UINT32_MAX - 1 - i;
    settings.access.uids.num_ids = SETTINGS_IDS_MAX;
    settings.access.gids = settings.access.operator_uids = settings.access.uids;
    for (uint32_t i = 0; i < SETTINGS_BUCKETS_MAX; i++)
        settings.buckets[i] = (struct settings_bucket){i + 1, 2147483647, 16384, i % 3};
    settings.num_buckets = SETTINGS_BUCKETS_MAX;
    for (uint32_t i = 0; i < SETTINGS_DEVICES_MAX; i++)
        snprintf(settings.devices[i].device, sizeof settings.devices[i].device,
                 "GPU-%08x-0000-0000-0000-000000000000", i);
    settings.num_devices = SETTINGS_DEVICES_MAX;
    for (int comments = 0; comments < 2; comments++) {
        char *text = print(&settings, comments != 0);
        parse_ok(text, &again);
        assert_memory_equal(&settings, &again, sizeof settings);
        free(text);
    }
    settings.num_buckets = 0;
    memset(settings.buckets, 0, sizeof settings.buckets);
    char *text = print(&settings, false);
    parse_ok(text, &again);
    assert_memory_equal(&settings, &again, sizeof settings);
    free(text);
}

static bool listed(const char *const *paths, uint32_t num_paths, const char *path)
{
    for (uint32_t i = 0; i < num_paths; i++)
        if (strcmp(paths[i], path) == 0)
            return true;
    return false;
}

/* Changes each setting alone: it is taken over exactly when the table says live. */
static void st_08_merge_takes_only_live_settings(void **state)
{
    (void)state;
    static struct settings current, fresh, before;
    struct settings_changes changes;
    for (uint32_t i = 0; i < settings_num_entries; i++) {
        const struct settings_entry *entry = &settings_entries[i];
        settings_init(&current);
        settings_init(&fresh);
        before = current;
        ((char *)&fresh)[entry->offset] ^= 1;
        settings_merge_live(&current, &fresh, &changes);
        assert_int_equal(changes.num_live, entry->live ? 1 : 0);
        assert_int_equal(changes.num_restart, entry->live ? 0 : 1);
        assert_string_equal(entry->live ? changes.live[0] : changes.restart[0], entry->path);
        assert_memory_equal(&current, entry->live ? &fresh : &before, sizeof current);
    }
    settings_init(&current);
    settings_init(&fresh);
    fresh.num_buckets = 1;
    fresh.devices[0].threads = 3;
    settings_merge_live(&current, &fresh, &changes);
    assert_int_equal(changes.num_restart, 2);
    assert_true(listed(changes.restart, 2, "devices"));
    assert_true(listed(changes.restart, 2, "buckets"));
    assert_int_equal(current.devices[0].threads, 0);
    settings_merge_live(&current, &current, &changes);
    assert_int_equal(changes.num_live + changes.num_restart, 0);
}

static void st_09_access_lists(void **state)
{
    (void)state;
    static struct settings settings;
    settings_init(&settings);
    assert_true(settings_allow(&settings.access, 50, 4711, 4711, NULL)); /* the kernel has judged */
    assert_false(settings_allow_operator(&settings, 50, 4711));
    assert_true(settings_allow_operator(&settings, 50, 50));
    assert_true(settings_allow_operator(&settings, 50, 0));
    parse_ok("access: {uids: [1000], gids: [2000], operator_uids: [1001]}", &settings);
    assert_true(settings_allow(&settings.access, 50, 1000, 1, NULL));
    assert_true(settings_allow(&settings.access, 50, 1, 2000, NULL));
    assert_true(settings_allow(&settings.access, 50, 0, 0, NULL));
    assert_true(settings_allow(&settings.access, 50, 50, 1, NULL));
    assert_false(settings_allow(&settings.access, 50, 2000, 1000, NULL));
    assert_false(
        settings_allow(&settings.access, 50, 1001, 1, NULL)); /* an operator is not a client */
    /* Any of the other groups counts, whichever place it has. */
    uint32_t ids[] = {7, 2000, 8};
    assert_true(settings_allow(&settings.access, 50, 1, 1, &(struct peer_groups){3, ids}));
    assert_true(settings_allow(&settings.access, 50, 1, 1, &(struct peer_groups){2, ids}));
    assert_false(settings_allow(&settings.access, 50, 1, 1, &(struct peer_groups){1, ids}));
    assert_false(settings_allow(&settings.access, 50, 1, 1, &(struct peer_groups){0, NULL}));
    assert_true(settings_allow_operator(&settings, 50, 1001));
    assert_false(settings_allow_operator(&settings, 50, 1000));
}

static void st_10_directory_resolution(void **state)
{
    (void)state;
    static struct settings settings;
    static struct settings_report report;
    settings_init(&settings);
    strcpy(settings.socket.directory, "/somewhere");
    assert_int_equal(settings_resolve_directory(&settings, &report), TOPKD_OK);
    assert_string_equal(settings.socket.directory, "/somewhere");
    settings_init(&settings);
    if (geteuid() == 0) {
        assert_int_equal(settings_resolve_directory(&settings, &report), TOPKD_OK);
        assert_string_equal(settings.socket.directory, "/run/topkd");
        return;
    }
    setenv("XDG_RUNTIME_DIR", "/run/user/7", 1);
    assert_int_equal(settings_resolve_directory(&settings, &report), TOPKD_OK);
    assert_string_equal(settings.socket.directory, "/run/user/7/topkd");
    settings_init(&settings);
    unsetenv("XDG_RUNTIME_DIR");
    assert_int_equal(settings_resolve_directory(&settings, &report), TOPKD_E_INVALID);
    assert_non_null(strstr(report.lines[0], "XDG_RUNTIME_DIR"));
}

static void st_11_device_of_the_command_line(void **state)
{
    (void)state;
    static struct settings settings;
    static struct settings_report report;
    parse_ok("devices: [{device: cpu, threads: 5}, "
             "{device: GPU-00000000-0000-0000-0000-0123456789ab}]",
             &settings);
    assert_int_equal(settings_set_device(&settings, "cpu", "--device", &report), TOPKD_OK);
    assert_int_equal(settings.num_devices, 1);
    assert_string_equal(settings.devices[0].device, "cpu");
    assert_int_equal(settings.devices[0].threads, 5);
    assert_int_equal(settings_set_device(&settings, "gpu", "--device", &report), TOPKD_E_INVALID);
    assert_non_null(strstr(report.lines[0], "--device: gpu is not a device"));
    assert_string_equal(settings.devices[0].device, "cpu");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(st_01_defaults_pass_every_check),
        cmocka_unit_test(st_02_default_file_equals_table),
        cmocka_unit_test(st_03_minimal_file_is_accepted),
        cmocka_unit_test(st_04_empty_texts_are_the_defaults),
        cmocka_unit_test(st_05_every_number_at_its_ends),
        cmocka_unit_test(st_06_values_in_every_form),
        cmocka_unit_test(st_07_full_lists_survive_printing),
        cmocka_unit_test(st_08_merge_takes_only_live_settings),
        cmocka_unit_test(st_09_access_lists),
        cmocka_unit_test(st_10_directory_resolution),
        cmocka_unit_test(st_11_device_of_the_command_line),
    };
    return cmocka_run_group_tests_name("settings", tests, NULL, NULL);
}
