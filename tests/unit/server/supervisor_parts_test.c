/* Parts of the supervisor that need no process: runtime folder, shared memory, sealed settings. */
#include "server/supervisor_folder.h"
#include "server/supervisor_gpus.h"
#include "server/supervisor_shm.h"
#include "server/supervisor_system.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sysexits.h>
#include <unistd.h>

#include <cmocka.h>

#define NOBODY 65534 /* a user who owns nothing here */

static char root[64]; /* a fresh folder for each test */
static struct settings settings;
static char text[512];

static int set_up(void **state)
{
    (void)state;
    strcpy(root, "/tmp/topkd-parts-XXXXXX");
    settings_init(&settings);
    return mkdtemp(root) == NULL ? -1 : 0;
}

static int tear_down(void **state)
{
    (void)state;
    char command[192];
    snprintf(command, sizeof command, "chmod -R u+rwx %s; rm -rf %s", root, root);
    return system(command);
}

static void use_folder(const char *name)
{
    assert_true(snprintf(settings.socket.directory, sizeof settings.socket.directory, "%s/%s", root,
                         name) < (int)sizeof settings.socket.directory);
}

static int open_folder(struct folder *folder)
{
    memset(text, 0, sizeof text);
    return folder_open(&settings, folder, text, sizeof text);
}

static void expect_refused(int code, const char *part)
{
    struct folder folder;
    int result = open_folder(&folder);
    if (result != code || strstr(text, part) == NULL)
        fail_msg("code %d (expected %d), text: %s", result, code, text);
}

static void sp_01_folder_is_made_and_dressed(void **state)
{
    (void)state;
    struct folder folder;
    struct stat status;
    use_folder("run");
    settings.socket.directory_mode = 0711;
    mode_t mask = umask(0077); /* must not matter */
    assert_int_equal(open_folder(&folder), 0);
    umask(mask);
    assert_int_equal(stat(settings.socket.directory, &status), 0);
    assert_int_equal(status.st_mode & 07777, 0711);
    folder_close(&folder);
    settings.socket.directory_mode = 0750; /* changed between two lives */
    if (geteuid() == 0)
        settings.socket.group = NOBODY;
    assert_int_equal(open_folder(&folder), 0);
    assert_int_equal(stat(settings.socket.directory, &status), 0);
    assert_int_equal(status.st_mode & 07777, 0750);
    if (geteuid() == 0)
        assert_int_equal(status.st_gid, NOBODY);
    folder_close(&folder);
}

static void sp_02_second_daemon_is_refused_with_the_pid(void **state)
{
    (void)state;
    struct folder first, second;
    char expected[64];
    use_folder("run");
    assert_int_equal(open_folder(&first), 0);
    snprintf(expected, sizeof expected, "another topkd (pid %d) serves this folder", getpid());
    expect_refused(EX_TEMPFAIL, expected);
    expect_refused(EX_TEMPFAIL, expected); /* the first is unharmed */
    folder_close(&first);
    assert_int_equal(open_folder(&second), 0);
    folder_close(&second);
}

static void sp_03_lock_file_of_a_dead_daemon(void **state)
{
    (void)state;
    struct folder folder;
    char path[96], pid[16] = "";
    use_folder("run");
    assert_int_equal(mkdir(settings.socket.directory, 0700), 0);
    snprintf(path, sizeof path, "%s/topkd.lock", settings.socket.directory);
    int fd = open(path, O_WRONLY | O_CREAT, 0600);
    assert_int_equal(write(fd, "123456789012\ngarbage", 20), 20);
    close(fd);
    assert_int_equal(open_folder(&folder), 0);
    fd = open(path, O_RDONLY);
    assert_true(read(fd, pid, sizeof pid - 1) > 0);
    assert_int_equal(atoi(pid), getpid());
    assert_non_null(strchr(pid, '\n'));
    assert_int_equal(strlen(strchr(pid, '\n')), 1); /* nothing of the old text behind */
    close(fd);

    /* A holder that has not yet written its pid. */
    assert_int_equal(truncate(path, 0), 0);
    expect_refused(EX_TEMPFAIL, "another topkd (pid unknown)");
    folder_close(&folder);
}

static void sp_04_wrong_kinds_of_folder(void **state)
{
    (void)state;
    char path[96];
    use_folder("missing/run");
    expect_refused(EX_CANTCREAT, "its parent folder must exist");
    use_folder("file");
    assert_int_equal(close(open(settings.socket.directory, O_WRONLY | O_CREAT, 0600)), 0);
    expect_refused(EX_CANTCREAT, "it must be a folder, not a file or a link");
    use_folder("link");
    assert_int_equal(symlink(root, settings.socket.directory), 0);
    expect_refused(EX_CANTCREAT, "it must be a folder, not a file or a link");
    use_folder("sticky");
    assert_int_equal(mkdir(settings.socket.directory, 0700), 0);
    assert_int_equal(chmod(settings.socket.directory, 01777), 0);
    expect_refused(EX_NOPERM, "shared by many programs (mode 1777)");
    use_folder("lock-is-a-link");
    assert_int_equal(mkdir(settings.socket.directory, 0700), 0);
    snprintf(path, sizeof path, "%s/topkd.lock", settings.socket.directory);
    assert_int_equal(symlink("/dev/null", path), 0);
    expect_refused(EX_OSERR, "topkd.lock: cannot be opened");
}

/* What another user meets: a parent that it may not write, a folder of someone else. */
static void sp_05_folders_of_others(void **state)
{
    (void)state;
    if (geteuid() != 0) { /* then root's folders are the others' */
        strcpy(settings.socket.directory, "/topkd-run");
        expect_refused(EX_NOPERM, "cannot make the runtime folder: Permission denied");
        strcpy(settings.socket.directory, "/root");
        expect_refused(EX_NOPERM, "Permission denied");
        return;
    }
    assert_int_equal(chmod(root, 0755), 0);
    use_folder("owned-by-other");
    assert_int_equal(mkdir(settings.socket.directory, 0700), 0);
    assert_int_equal(chown(settings.socket.directory, 1234, 1234), 0);
    expect_refused(EX_NOPERM, "belongs to user 1234, and this is user 0");

    assert_int_equal(seteuid(NOBODY), 0);
    use_folder("run");
    expect_refused(EX_NOPERM, "cannot make the runtime folder: Permission denied; run as a user "
                              "that may write there");
    assert_int_equal(seteuid(0), 0);
    assert_int_equal(mkdir(settings.socket.directory, 0755), 0);
    assert_int_equal(seteuid(NOBODY), 0);
    expect_refused(EX_NOPERM, "topkd.lock: cannot be opened: Permission denied");
    assert_int_equal(seteuid(0), 0);
    assert_int_equal(chmod(settings.socket.directory, 0777), 0);
    assert_int_equal(seteuid(NOBODY), 0);
    expect_refused(EX_NOPERM, "mode 0777, so that other users could replace the sockets");
    assert_int_equal(seteuid(0), 0);
}

/* ---- Shared memory --------------------------------------------------------------------------- */

static bool exists(const char *prefix, const char *end)
{
    char name[128];
    snprintf(name, sizeof name, "%s%s", prefix, end);
    int fd = shm_open(name, O_RDONLY, 0);
    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

static void make(const char *prefix, const char *end)
{
    char name[128];
    snprintf(name, sizeof name, "%s%s", prefix, end);
    int fd = shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
    assert_true(fd >= 0);
    close(fd);
}

static void sp_06_objects_of_one_life(void **state)
{
    (void)state;
    struct shm_instance instance;
    char first[WIRE_NAME_SIZE], second[WIRE_NAME_SIZE];
    assert_int_equal(shm_instance_open(&instance), 0);
    shm_prefix(&instance, 1, first);
    shm_prefix(&instance, UINT64_MAX, second);
    assert_true(strlen(second) <= 48);
    make(first, "page-1");
    make(first, "arena-1");
    make(second, "page-1");
    assert_int_equal(shm_remove(first), 2);
    assert_false(exists(first, "page-1"));
    assert_true(exists(second, "page-1"));
    assert_int_equal(shm_remove(first), 0);
    shm_instance_close(&instance);
    assert_false(exists(second, "page-1"));
}

static void sp_07_dead_instances_go_live_ones_stay(void **state)
{
    (void)state;
    struct shm_instance live, dead;
    char live_prefix[WIRE_NAME_SIZE], dead_prefix[WIRE_NAME_SIZE], owner[WIRE_NAME_SIZE];
    assert_int_equal(shm_instance_open(&live), 0);
    assert_int_equal(shm_instance_open(&dead), 0);
    assert_string_not_equal(live.id, dead.id);
    shm_prefix(&live, 7, live_prefix);
    shm_prefix(&dead, 7, dead_prefix);
    make(live_prefix, "page");
    make(dead_prefix, "page");
    shm_remove_dead();
    assert_true(exists(live_prefix, "page"));
    assert_true(exists(dead_prefix, "page"));
    close(dead.owner_fd); /* as its death would */
    assert_true(shm_remove_dead() >= 2);
    assert_true(exists(live_prefix, "page"));
    assert_false(exists(dead_prefix, "page"));
    snprintf(owner, sizeof owner, "/topkd-%s-owner", dead.id);
    assert_false(exists(owner, ""));
    snprintf(owner, sizeof owner, "/topkd-%s-owner", live.id);
    assert_true(exists(owner, ""));
    shm_instance_close(&live);
    assert_false(exists(owner, ""));
}

/* Names that only look like ours, and objects of other users, are left alone. */
static void sp_08_foreign_objects_stay(void **state)
{
    (void)state;
    static const char *const names[] = {
        "/topkd-holds-1-0123456789abcdef", "/topkd-0123456789abcdeF-owner",
        "/topkd-0123456789abcde-owner",    "/topkd-0123456789abcdef0-owner",
        "/topkd-0123456789abcdef-owner2",  "/other-0123456789abcdef-owner",
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        make(names[i], "");
    const char *foreign = "/topkd-00000000000000ff-owner";
    make(foreign, "");
    if (geteuid() == 0)
        assert_int_equal(chown("/dev/shm/topkd-00000000000000ff-owner", 1234, 1234), 0);
    shm_remove_dead();
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        assert_true(exists(names[i], ""));
        shm_unlink(names[i]);
    }
    assert_int_equal(exists(foreign, ""), geteuid() == 0);
    shm_unlink(foreign);
}

/* Buffers of clients go when nobody holds their lock, whatever their names say. */
static void sp_13_buffers_nobody_holds(void **state)
{
    (void)state;
    const char *name = WIRE_SHM_BUFFER_PREFIX "sp13", *before = "/topkd-holds-sp13";
    make(before, "");
    int fd = shm_open(before, O_RDONLY, 0);
    assert_true(fd >= 0);
    assert_int_equal(flock(fd, LOCK_SH), 0);
    /* Not sooner: a daemon on this machine may look for such names at any time. */
    assert_int_equal(rename("/dev/shm/topkd-holds-sp13", "/dev/shm" WIRE_SHM_BUFFER_PREFIX "sp13"),
                     0);
    (void)shm_remove_unheld();
    assert_true(exists(name, ""));
    int second = shm_open(name, O_RDONLY, 0);
    assert_int_equal(flock(second, LOCK_SH), 0);
    close(fd);
    (void)shm_remove_unheld();
    assert_true(exists(name, ""));
    close(second);
    (void)shm_remove_unheld();
    assert_false(exists(name, ""));
    /* A link of that name to something else is not followed, nor is a FIFO waited for. */
    const char *path = "/dev/shm" WIRE_SHM_BUFFER_PREFIX "sp13";
    assert_int_equal(mkfifo(path, 0600), 0);
    (void)shm_remove_unheld();
    assert_int_equal(unlink(path), 0);
    assert_int_equal(symlink("/dev/shm/topkd-holds-target", path), 0);
    make("/topkd-holds-target", "");
    (void)shm_remove_unheld();
    assert_true(exists("/topkd-holds-target", ""));
    shm_unlink("/topkd-holds-target");
    assert_int_equal(unlink(path), 0);
}

/* ---- System ---------------------------------------------------------------------------------- */

static void sp_09_sealed_settings(void **state)
{
    (void)state;
    static struct settings again;
    static struct settings_report report;
    settings.limits.lanes = 9;
    settings.access.uids = (struct settings_ids){.num_ids = 1, .ids = {4711}};
    int fd = system_seal_settings(&settings);
    assert_true(fd >= 0);
    assert_int_equal(settings_load_fd(fd, "fd", &again, &report), TOPKD_OK);
    assert_memory_equal(&settings, &again, sizeof settings);
    assert_int_equal(pwrite(fd, "x", 1, 0), -1);
    assert_int_equal(errno, EPERM);
    assert_int_equal(ftruncate(fd, 0), -1);
    assert_true((fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
    close(fd);
}

static void sp_10_epochs_grow(void **state)
{
    (void)state;
    uint64_t last = 0;
    for (int i = 0; i < 100000; i++) {
        uint64_t epoch = system_epoch();
        assert_true(epoch > last);
        last = epoch;
    }
}

static void sp_11_devices(void **state)
{
    (void)state;
    static const char gpu[] = "GPU-00000000-0000-0000-0000-0123456789ab";
    static struct settings_device devices[SETTINGS_DEVICES_MAX];
    static struct settings_report report;
    uint32_t num_devices = 0;
    settings.devices[0].threads = 3;
    assert_true(system_resolve_devices(&settings, false, devices, &num_devices, text, sizeof text));
    assert_int_equal(num_devices, 1);
    assert_string_equal(devices[0].device, "cpu");
    assert_int_equal(devices[0].threads, 3);

    assert_int_equal(settings_set_device(&settings, gpu, "t", &report), TOPKD_OK);
    assert_false(
        system_resolve_devices(&settings, false, devices, &num_devices, text, sizeof text));
    assert_non_null(strstr(text, "GPU-00000000-0000-0000-0000-0123456789ab: this topkd was built "
                                 "without CUDA"));
    assert_true(system_resolve_devices(&settings, true, devices, &num_devices, text, sizeof text));
    assert_int_equal(num_devices, 1);
    assert_string_equal(devices[0].device, gpu);
}

/* The UUID of a GPU that nothing has used yet; in pieces, since C reads "??-" as one character. */
#define ASLEEP                                                                                     \
    "GPU-????????"                                                                                 \
    "-????"                                                                                        \
    "-????"                                                                                        \
    "-????"                                                                                        \
    "-????????????"

/* The file of a GPU as the driver writes it, tabs included. */
static void make_gpu(const char *name, const char *uuid, int minor, const char *excluded)
{
    char path[160];
    snprintf(path, sizeof path, "%s/%s", root, name);
    assert_int_equal(mkdir(path, 0755), 0);
    snprintf(path, sizeof path, "%s/%s/information", root, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file,
            "Model: \t\t NVIDIA H200\nIRQ:   \t\t 41\nGPU UUID: \t %s\nVideo BIOS: \t "
            "96.00.a5.00.1a\nBus Location: \t %s\nDevice Minor: \t %d\nGPU Excluded:\t %s\n",
            uuid, name, minor, excluded);
    assert_int_equal(fclose(file), 0);
}

static void sp_12_gpus_of_the_driver(void **state)
{
    (void)state;
    static const char first[] = "GPU-8c4a8077-f452-400b-ac51-3a1e0a091043";
    static const char second[] = "GPU-00000000-0000-0000-0000-000000000001";
    static struct settings_device devices[SETTINGS_DEVICES_MAX];
    char path[160];
    assert_int_equal(gpus_find("/no/driver", "/dev", devices, SETTINGS_DEVICES_MAX), 0);
    assert_int_equal(gpus_find(root, "/dev", devices, SETTINGS_DEVICES_MAX), 0);
    make_gpu("0000:b1:00.0", second, 1, "No");
    make_gpu("0000:06:00.0", first, 0, "No");
    make_gpu("0000:07:00.0", "GPU-00000000-0000-0000-0000-00000000dead", 2, "Yes");
    make_gpu("0000:08:00.0", ASLEEP, 9, "No");
    make_gpu("0000:09:00.0", "", 3, "No");
    snprintf(path, sizeof path, "%s/nvidia9", root); /* waking it changes nothing here */
    assert_int_equal(close(open(path, O_WRONLY | O_CREAT, 0600)), 0);
    snprintf(path, sizeof path, "%s/0000:0a:00.0", root);
    assert_int_equal(mkdir(path, 0755), 0); /* without a file */
    assert_int_equal(gpus_find(root, root, devices, SETTINGS_DEVICES_MAX), 2);
    assert_string_equal(devices[0].device, first);
    assert_string_equal(devices[1].device, second);
    assert_int_equal(gpus_find(root, root, devices, 1), 1);
}

int main(void)
{
#define PART_TEST(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        PART_TEST(sp_01_folder_is_made_and_dressed),
        PART_TEST(sp_02_second_daemon_is_refused_with_the_pid),
        PART_TEST(sp_03_lock_file_of_a_dead_daemon),
        PART_TEST(sp_04_wrong_kinds_of_folder),
        PART_TEST(sp_05_folders_of_others),
        PART_TEST(sp_06_objects_of_one_life),
        PART_TEST(sp_07_dead_instances_go_live_ones_stay),
        PART_TEST(sp_08_foreign_objects_stay),
        PART_TEST(sp_13_buffers_nobody_holds),
        PART_TEST(sp_09_sealed_settings),
        PART_TEST(sp_10_epochs_grow),
        PART_TEST(sp_11_devices),
        PART_TEST(sp_12_gpus_of_the_driver),
    };
    return cmocka_run_group_tests_name("supervisor_parts", tests, NULL, NULL);
}
