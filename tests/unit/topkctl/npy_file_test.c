/* .npy files on disk: written, mapped again, refused, and never left half done. */
#include "npy.h"

#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[] = "/tmp/topkctl-npy-XXXXXX";

static const char *path_of(const char *name)
{
    static char path[256];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    return path;
}

static size_t count_files(void)
{
    size_t count = 0;
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    for (struct dirent *entry = readdir(dir); entry != NULL; entry = readdir(dir)) {
        count += entry->d_name[0] != '.';
    }
    closedir(dir);
    return count;
}

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) == NULL;
}

static int empty_folder(void **state)
{
    (void)state;
    DIR *dir = opendir(folder);
    for (struct dirent *entry = readdir(dir); entry != NULL; entry = readdir(dir)) {
        if (entry->d_name[0] != '.') {
            unlinkat(dirfd(dir), entry->d_name, 0);
        }
    }
    closedir(dir);
    return 0;
}

static int remove_folder(void **state)
{
    return empty_folder(state) != 0 || rmdir(folder) != 0;
}

static void write_matrix(const char *path, const struct npy_view *shape, const void *data)
{
    char detail[NPY_DETAIL_SIZE];
    struct npy_writer *writer;
    uint64_t bytes = shape->rows * shape->columns * 4;
    assert_int_equal(npy_writer_create(path, shape, &writer, detail), NPY_OK);
    /* in two uneven pieces, as blocks of rows come */
    assert_int_equal(npy_writer_append(writer, data, 4, detail), NPY_OK);
    assert_int_equal(npy_writer_append(writer, (const char *)data + 4, bytes - 4, detail), NPY_OK);
    assert_int_equal(npy_writer_commit(writer, detail), NPY_OK);
    assert_null(npy_writer_temporary(writer));
    npy_writer_destroy(writer);
}

static void what_is_written_can_be_read(void **state)
{
    (void)state;
    static const int32_t numbers[6] = {-1, 0, 1, 7, INT32_MAX, INT32_MIN};
    static const struct npy_view shapes[] = {
        {NPY_INT32, 2, 2, 3, NULL, 0},
        {NPY_FLOAT32, 2, 6, 1, NULL, 0},
        {NPY_INT32, 1, 1, 6, NULL, 0},
    };
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        char detail[NPY_DETAIL_SIZE] = "";
        write_matrix(path_of("out.npy"), &shapes[i], numbers);
        struct npy_file file;
        if (npy_open(path_of("out.npy"), &file, detail) != NPY_OK) {
            fail_msg("%s", detail);
        }
        assert_int_equal(file.view.type, shapes[i].type);
        assert_int_equal(file.view.num_dims, shapes[i].num_dims);
        assert_int_equal(file.view.rows, shapes[i].rows);
        assert_int_equal(file.view.columns, shapes[i].columns);
        assert_memory_equal(file.view.data, numbers, sizeof(numbers));
        assert_int_equal((uintptr_t)file.view.data % 64, 0);
        npy_close(&file);
        assert_null(file.map);
        npy_close(&file); /* a closed file may be closed again */
    }
    assert_int_equal(count_files(), 1);
}

static void an_unfinished_file_leaves_the_old_one(void **state)
{
    (void)state;
    static const int32_t old[2] = {1, 2};
    struct npy_view shape = {NPY_INT32, 2, 1, 2, NULL, 0};
    write_matrix(path_of("out.npy"), &shape, old);

    char detail[NPY_DETAIL_SIZE];
    struct npy_writer *writer;
    shape.columns = 1000;
    assert_int_equal(npy_writer_create(path_of("out.npy"), &shape, &writer, detail), NPY_OK);
    assert_int_equal(access(npy_writer_temporary(writer), F_OK), 0);
    assert_int_equal(npy_writer_append(writer, old, sizeof(old), detail), NPY_OK);
    assert_int_equal(npy_writer_commit(writer, detail), NPY_E_WRITE);
    assert_non_null(strstr(detail, "3992 bytes of the shape are missing"));
    npy_writer_destroy(writer);

    struct npy_file file;
    assert_int_equal(npy_open(path_of("out.npy"), &file, detail), NPY_OK);
    assert_int_equal(file.view.columns, 2);
    npy_close(&file);
    assert_int_equal(count_files(), 1);
}

static void more_than_the_shape_is_refused(void **state)
{
    (void)state;
    static const int32_t numbers[3] = {1, 2, 3};
    char detail[NPY_DETAIL_SIZE];
    struct npy_writer *writer;
    struct npy_view shape = {NPY_INT32, 2, 1, 2, NULL, 0};
    assert_int_equal(npy_writer_create(path_of("out.npy"), &shape, &writer, detail), NPY_OK);
    assert_int_equal(npy_writer_append(writer, numbers, 12, detail), NPY_E_WRITE);
    assert_non_null(strstr(detail, "12 bytes given, 8 are left"));
    npy_writer_destroy(writer);
    assert_int_equal(count_files(), 0);
}

static void links_and_devices_are_kept(void **state)
{
    (void)state;
    static const int32_t numbers[2] = {1, 2};
    struct npy_view shape = {NPY_INT32, 2, 1, 2, NULL, 0};
    char target[256];
    char link_path[256];
    snprintf(target, sizeof(target), "%s", path_of("target.npy"));
    snprintf(link_path, sizeof(link_path), "%s", path_of("link.npy"));
    write_matrix(target, &shape, numbers);
    assert_int_equal(symlink(target, link_path), 0);
    write_matrix(link_path, &shape, numbers);
    struct stat stat_now;
    assert_int_equal(lstat(link_path, &stat_now), 0);
    assert_true(S_ISLNK(stat_now.st_mode));
    write_matrix("/dev/null", &shape, numbers);
    assert_int_equal(lstat("/dev/null", &stat_now), 0);
    assert_true(S_ISCHR(stat_now.st_mode));
}

static void permissions_follow_the_umask(void **state)
{
    (void)state;
    static const int32_t numbers[2] = {1, 2};
    struct npy_view shape = {NPY_INT32, 2, 1, 2, NULL, 0};
    mode_t before = umask(027);
    write_matrix(path_of("out.npy"), &shape, numbers);
    umask(before);
    struct stat stat_now;
    assert_int_equal(stat(path_of("out.npy"), &stat_now), 0);
    assert_int_equal(stat_now.st_mode & 0777, 0640);
}

static void places_that_cannot_be_used_are_named(void **state)
{
    (void)state;
    char detail[NPY_DETAIL_SIZE] = "";
    struct npy_file file;
    struct npy_writer *writer;
    struct npy_view shape = {NPY_INT32, 2, 1, 2, NULL, 0};
    assert_int_equal(npy_open(path_of("none.npy"), &file, detail), NPY_E_OPEN);
    assert_non_null(strstr(detail, "none.npy: No such file"));
    assert_int_equal(npy_open(folder, &file, detail), NPY_E_OPEN);
    assert_non_null(strstr(detail, "not a regular file"));
    assert_int_equal(npy_open("/dev/null", &file, detail), NPY_E_OPEN);
    assert_int_equal(npy_writer_create(path_of("no/such/out.npy"), &shape, &writer, detail),
                     NPY_E_WRITE);
    assert_non_null(strstr(detail, "no/such/out.npy: No such file"));
    assert_int_equal(npy_writer_create(folder, &shape, &writer, detail), NPY_E_WRITE);

    int fd = open(path_of("empty.npy"), O_CREAT | O_WRONLY, 0600);
    close(fd);
    assert_int_equal(npy_open(path_of("empty.npy"), &file, detail), NPY_E_FORMAT);
    assert_non_null(strstr(detail, "empty.npy: the file is empty"));
}

static void data_that_cannot_be_used_in_place_are_refused(void **state)
{
    (void)state;
    /* a header one byte longer than a multiple of 4 */
    static const char text[] = "{'descr': '<f4', 'fortran_order': False, 'shape': (1,)} ";
    static const char start[10] = {'\x93', 'N', 'U', 'M', 'P', 'Y', 1, 0, sizeof(text) - 1, 0};
    FILE *out = fopen(path_of("odd.npy"), "wb");
    assert_non_null(out);
    assert_int_equal(fwrite(start, 1, sizeof(start), out), sizeof(start));
    assert_int_equal(fwrite(text, 1, sizeof(text) - 1, out), sizeof(text) - 1);
    assert_int_equal(fwrite("\0\0\0\0", 1, 4, out), 4);
    fclose(out);
    char detail[NPY_DETAIL_SIZE] = "";
    struct npy_file file;
    assert_int_equal((sizeof(start) + sizeof(text) - 1) % 4, 2);
    assert_int_equal(npy_open(path_of("odd.npy"), &file, detail), NPY_E_FORMAT);
    assert_non_null(strstr(detail, "not at a multiple of 4"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(what_is_written_can_be_read, empty_folder),
        cmocka_unit_test_teardown(an_unfinished_file_leaves_the_old_one, empty_folder),
        cmocka_unit_test_teardown(more_than_the_shape_is_refused, empty_folder),
        cmocka_unit_test_teardown(links_and_devices_are_kept, empty_folder),
        cmocka_unit_test_teardown(permissions_follow_the_umask, empty_folder),
        cmocka_unit_test_teardown(places_that_cannot_be_used_are_named, empty_folder),
        cmocka_unit_test_teardown(data_that_cannot_be_used_in_place_are_refused, empty_folder),
    };
    return cmocka_run_group_tests_name("npy_file", tests, make_folder, remove_folder);
}
