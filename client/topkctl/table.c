#include "table.h"

#include "text.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define GAP 2 /* columns of space between cells */

struct cell {
    char text[TABLE_CELL_SIZE];
    size_t width;
};

struct table {
    const struct table_column *columns;
    size_t num_columns;
    struct cell *cells;
    size_t num_cells, capacity;
};

static void *must_realloc(void *memory, size_t count, size_t size_bytes)
{
    void *grown = reallocarray(memory, count, size_bytes);
    if (grown == NULL) {
        fprintf(stderr, "topkctl: out of memory for a table of %zu cells\n", count);
        exit(1);
    }
    return grown;
}

static void add_cell(struct table *table, const char *text)
{
    if (table->num_cells == table->capacity) {
        table->capacity = table->capacity == 0 ? 64 : table->capacity * 2;
        table->cells = must_realloc(table->cells, table->capacity, sizeof(*table->cells));
    }
    struct cell *cell = &table->cells[table->num_cells++];
    cell->width = text_printable(text, cell->text, sizeof(cell->text));
}

struct table *table_create(const struct table_column *columns, size_t num_columns)
{
    struct table *table = must_realloc(NULL, 1, sizeof(*table));
    *table = (struct table){.columns = columns, .num_columns = num_columns};
    for (size_t i = 0; i < num_columns; i++) {
        add_cell(table, columns[i].heading);
    }
    return table;
}

void table_destroy(struct table *table)
{
    if (table != NULL) {
        free(table->cells);
        free(table);
    }
}

void table_cell(struct table *table, const char *format, ...)
{
    char text[TABLE_CELL_SIZE];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    add_cell(table, text);
}

static size_t column_width(const struct table *table, size_t column)
{
    size_t width = 0;
    for (size_t i = column; i < table->num_cells; i += table->num_columns) {
        width = table->cells[i].width > width ? table->cells[i].width : width;
    }
    return width;
}

void table_print(const struct table *table, FILE *out)
{
    if (table->num_cells % table->num_columns != 0) {
        fprintf(stderr, "topkctl: internal error: a table row is not full\n");
        abort();
    }
    for (size_t i = 0; i < table->num_cells; i++) {
        size_t column = i % table->num_columns;
        const struct cell *cell = &table->cells[i];
        int padding = (int)(column_width(table, column) - cell->width);
        bool last = column + 1 == table->num_columns;
        if (table->columns[column].side == TABLE_RIGHT) {
            fprintf(out, "%*s%s%*s", padding, "", cell->text, last ? 0 : GAP, "");
        } else {
            fprintf(out, "%s%*s", cell->text, last ? 0 : padding + GAP, "");
        }
        if (last) {
            putc('\n', out);
        }
    }
}
