/* "did you mean": the known name nearest to an unknown one. */
#include "settings_internal.h"

#include <string.h>

/* Edits between two words: insert, delete, replace, swap neighbours. */
static uint32_t distance_of(const char *a, const char *b)
{
    enum { SIZE = 64 };
    size_t a_size = strlen(a), b_size = strlen(b);
    if (a_size >= SIZE || b_size >= SIZE)
        return UINT32_MAX;
    uint32_t rows[3][SIZE]; /* of the table of edits: this, the one before, the one before that */
    uint32_t *now = rows[0], *before = rows[1], *before2 = rows[2];
    for (size_t j = 0; j <= b_size; j++)
        now[j] = (uint32_t)j;
    for (size_t i = 1; i <= a_size; i++) {
        uint32_t *oldest = before2;
        before2 = before;
        before = now;
        now = oldest;
        now[0] = (uint32_t)i;
        for (size_t j = 1; j <= b_size; j++) {
            uint32_t best = before[j - 1] + (a[i - 1] != b[j - 1]);
            if (before[j] + 1 < best)
                best = before[j] + 1;
            if (now[j - 1] + 1 < best)
                best = now[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                before2[j - 2] + 1 < best)
                best = before2[j - 2] + 1;
            now[j] = best;
        }
    }
    return now[b_size];
}

void settings_guess_consider(struct settings_guess *guess, const char *name)
{
    size_t key_size = strlen(guess->key), name_size = strlen(name);
    uint32_t limit = 1 + (uint32_t)name_size / 4; /* choice: beyond, a guess only confuses */
    if (key_size > name_size + limit || name_size > key_size + limit)
        return; /* an edit changes the length by one at most */
    uint32_t distance = distance_of(guess->key, name);
    if (distance <= limit && (guess->best == NULL || distance < guess->distance)) {
        guess->best = name;
        guess->distance = distance;
    }
}

const char *settings_guess_best(const struct settings_guess *guess)
{
    for (uint32_t i = 0; i < settings_num_entries; i++)
        if (strcmp(settings_entries[i].name, guess->key) == 0)
            return settings_entries[i].path;
    return guess->best;
}
