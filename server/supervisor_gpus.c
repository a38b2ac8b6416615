#include "supervisor_gpus.h"

#include "log.h"
#include "settings_internal.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PATH_SIZE 512u

/* What the driver's file of one GPU says: lines of "Name: \t value". */
struct information {
    char uuid[WIRE_UUID_SIZE]; /* "GPU-????????-..." before its first use */
    int minor;                 /* of its device node; -1 unknown */
    bool is_excluded;
};

static bool read_information(const char *proc_folder, const char *name, struct information *info_p)
{
    char path[PATH_SIZE], line[256], word[16];
    *info_p = (struct information){.minor = -1};
    if (snprintf(path, sizeof path, "%s/%s/information", proc_folder, name) >= (int)sizeof path)
        return false;
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return false;
    while (fgets(line, sizeof line, file) != NULL) {
        if (sscanf(line, "GPU UUID: %47s", info_p->uuid) == 1 ||
            sscanf(line, "Device Minor: %d", &info_p->minor) == 1)
            continue;
        if (sscanf(line, "GPU Excluded: %15s", word) == 1)
            info_p->is_excluded = strcmp(word, "Yes") == 0;
    }
    fclose(file);
    return true;
}

static bool is_known(const struct information *info, struct settings_device *device_p)
{
    char reason[SETTINGS_REASON_SIZE];
    return strncmp(info->uuid, "GPU-", 4) == 0 &&
           settings_device_read(info->uuid, device_p, reason);
}

/* Reads again while the node of the GPU is open. */
static void wake(const char *proc_folder, const char *dev_folder, const char *name,
                 struct information *info)
{
    char path[PATH_SIZE];
    if (info->minor < 0 ||
        snprintf(path, sizeof path, "%s/nvidia%d", dev_folder, info->minor) >= (int)sizeof path)
        return;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return;
    read_information(proc_folder, name, info);
    close(fd);
}

static bool find_gpu(const char *proc_folder, const char *dev_folder, const char *name,
                     struct settings_device *device_p)
{
    struct information info;
    if (name[0] == '.' || !read_information(proc_folder, name, &info) || info.is_excluded)
        return false;
    if (is_known(&info, device_p))
        return true;
    wake(proc_folder, dev_folder, name, &info);
    if (is_known(&info, device_p))
        return true;
    char text[LOG_QUOTE_SIZE];
    log_warn("gpu_without_uuid",
             "pci=%s uuid=%s hint=\"name the GPU under devices, or run nvidia-persistenced\"", name,
             log_quote(text, info.uuid));
    return false;
}

uint32_t gpus_find(const char *proc_folder, const char *dev_folder,
                   struct settings_device *devices_p, uint32_t num_max)
{
    struct dirent **entries;
    uint32_t num = 0;
    int num_entries = scandir(proc_folder, &entries, NULL, alphasort);
    if (num_entries < 0)
        return 0;
    for (int i = 0; i < num_entries; i++) {
        struct settings_device device = {.threads = 0};
        if (num < num_max && find_gpu(proc_folder, dev_folder, entries[i]->d_name, &device))
            devices_p[num++] = device;
        free(entries[i]);
    }
    free(entries);
    return num;
}
