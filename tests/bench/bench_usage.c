/* What the threads of processes did; see bench_usage.h. */
#include "bench_usage.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>

static void add_usage(pid_t pid, struct usage *usage)
{
    char path[300];
    snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
    DIR *folder = opendir(path);
    for (struct dirent *entry = folder ? readdir(folder) : NULL; entry; entry = readdir(folder)) {
        unsigned long long cpu_ns, wait_ns, turns;
        snprintf(path, sizeof(path), "/proc/%d/task/%.16s/schedstat", (int)pid, entry->d_name);
        FILE *file = entry->d_name[0] != '.' ? fopen(path, "r") : NULL;
        if (file != NULL && fscanf(file, "%llu %llu %llu", &cpu_ns, &wait_ns, &turns) == 3) {
            usage->cpu_us += (double)cpu_ns / 1e3;
            usage->wait_us += (double)wait_ns / 1e3;
            usage->turns += (double)turns;
        }
        if (file != NULL) {
            fclose(file);
        }
    }
    if (folder != NULL) {
        closedir(folder);
    }
}

void usage_read(pid_t worker, const pid_t *clients, int num, struct usage usage[2])
{
    memset(usage, 0, 2 * sizeof(*usage));
    if (worker > 0) {
        add_usage(worker, &usage[0]);
    }
    for (int i = 0; i < num && worker > 0; i++) {
        add_usage(clients[i], &usage[1]);
    }
}
