/*
 * fuzz_seeds.c - writes the seeds of the fuzz targets: valid inputs of every kind, and the forged
 * messages of the unit tests.
 *
 * usage: fuzz_seeds FOLDER      (makes FOLDER/wire_request, FOLDER/wire_reply, FOLDER/npy)
 */
#include "fuzz_check.h"
#include "wire_forge.h"
#include "wire_sample.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#define SEED_SIZE_MAX 4096u /* choice: libFuzzer works through small inputs faster */
#define NUM_RANDOM 3u

static const char *folder;
static uint8_t bytes[WIRE_MESSAGE_SIZE_MAX];
static unsigned num_written;

static void make_folder(const char *name)
{
    char path[4096];
    FUZZ_CHECK(snprintf(path, sizeof(path), "%s%s%s", folder, name[0] ? "/" : "", name) <
                   (int)sizeof(path),
               "a path too long");
    FUZZ_CHECK(mkdir(path, 0777) == 0 || errno == EEXIST, "%s: %s", path, strerror(errno));
}

static void write_seed(const char *target, const char *name, unsigned number, size_t size)
{
    char path[4096];
    if (size > SEED_SIZE_MAX)
        return;
    FUZZ_CHECK(snprintf(path, sizeof(path), "%s/%s/%s_%02u", folder, target, name, number) <
                   (int)sizeof(path),
               "a path too long");
    FILE *file = fopen(path, "wb");
    FUZZ_CHECK(file, "%s: %s", path, strerror(errno));
    FUZZ_CHECK(fwrite(bytes, 1, size, file) == size && fclose(file) == 0, "%s: %s", path,
               strerror(errno));
    num_written++;
}

static void write_requests(enum wire_kind kind)
{
    static struct wire_request request;
    char detail[WIRE_DETAIL_SIZE] = "";
    for (unsigned i = 0; i < 2 + NUM_RANDOM; i++) {
        const enum sample_mode mode = i == 0 ? SAMPLE_MIN : i == 1 ? SAMPLE_MAX : SAMPLE_SMALL;
        size_t size;
        sample_request(kind, mode, i, &request);
        if (kind == WIRE_SELECT && i == 2)
            sample_inline_lengths(&request.u.select, 5, i);
        FUZZ_CHECK(wire_request_encode(&request, bytes, sizeof(bytes), &size, detail) == TOPKD_OK,
                   "%s", detail);
        write_seed("wire_request", wire_kind_name(kind), i, size);
    }
}

static void write_replies(enum wire_kind kind)
{
    static struct wire_reply reply;
    char detail[WIRE_DETAIL_SIZE] = "";
    for (unsigned i = 0; i < 3 + NUM_RANDOM; i++) {
        const enum sample_mode mode = i == 0 ? SAMPLE_MIN : i == 1 ? SAMPLE_MAX : SAMPLE_SMALL;
        size_t size;
        sample_reply(kind, i == 2 ? TOPKD_E_TIMEOUT : TOPKD_OK, mode, i, &reply);
        FUZZ_CHECK(wire_reply_encode(&reply, bytes, sizeof(bytes), &size, detail) == TOPKD_OK, "%s",
                   detail);
        write_seed("wire_reply", wire_kind_name(kind), i, size);
    }
}

static void write_forged(void)
{
    for (size_t i = 0; i < forge_count(); i++) {
        const size_t size = forge_message(i, bytes, sizeof(bytes));
        write_seed(forge_case(i)->is_reply ? "wire_reply" : "wire_request", "forged", (unsigned)i,
                   size);
    }
}

/* A .npy file of `version` with this dictionary and so many bytes of elements. */
static void write_npy(unsigned number, unsigned version, const char *dictionary, size_t data_size)
{
    const size_t length = strlen(dictionary), prefix = version == 1 ? 10 : 12;
    memcpy(bytes, "\x93NUMPY", 6);
    bytes[6] = (uint8_t)version;
    bytes[7] = 0;
    for (size_t i = 8; i < prefix; i++)
        bytes[i] = (uint8_t)(length >> 8 * (i - 8));
    memcpy(bytes + prefix, dictionary, length);
    memset(bytes + prefix + length, 1, data_size);
    write_seed("npy", "array", number, prefix + length + data_size);
}

static void write_arrays(void)
{
    write_npy(0, 1, "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }     \n", 24);
    write_npy(1, 2, "{'descr': '<i4', 'fortran_order': False, 'shape': (5,), }       \n", 20);
    write_npy(2, 3, "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1), }     \n", 4);
    write_npy(3, 1, "{'descr': '>f4', 'fortran_order': False, 'shape': (2, 3), }     \n", 24);
    write_npy(4, 1, "{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3), }      \n", 24);
    write_npy(5, 1, "{'shape': (4294967296, 4294967296), 'fortran_order': False, 'descr': '<f4'}\n",
              8);
    write_npy(6, 1, "{\"descr\": [('a', '<f4')], 'fortran_order': False, 'shape': ()}\n", 4);
    write_npy(7, 4, "{'descr': '<f4', 'fortran_order': False, 'shape': (2L, -3), }   \n", 24);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: fuzz_seeds FOLDER\n");
        return 2;
    }
    folder = argv[1];
    make_folder("");
    make_folder("wire_request");
    make_folder("wire_reply");
    make_folder("npy");
    for (unsigned kind = WIRE_HELLO; kind <= WIRE_DRAIN; kind++) {
        write_requests((enum wire_kind)kind);
        write_replies((enum wire_kind)kind);
    }
    write_forged();
    write_arrays();
    printf("%u seeds in %s\n", num_written, folder);
    return 0;
}
