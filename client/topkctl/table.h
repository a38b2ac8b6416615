/*
 * table.h - rows of text in aligned columns: a heading in capitals, names to the left, numbers to
 * the right. Cells are made printable (text.h), so a client's name cannot steer the terminal.
 */
#ifndef TOPKCTL_TABLE_H
#define TOPKCTL_TABLE_H

#include <stddef.h>
#include <stdio.h>

#define TABLE_CELL_SIZE 160u /* longer cells are cut; a socket's URL has at most 127 bytes */

struct table_column {
    const char *heading;
    enum { TABLE_LEFT, TABLE_RIGHT } side;
};

struct table;

/* `columns` must live as long as the table. Ends the program when memory is out. */
struct table *table_create(const struct table_column *columns, size_t num_columns);
void table_destroy(struct table *table);

/* Adds the next cell; after the last column a new row begins. */
void table_cell(struct table *table, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Prints heading and rows. A row that is not full is a mistake of the caller and asserted. */
void table_print(const struct table *table, FILE *out);

#endif
