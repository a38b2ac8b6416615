/*
 * list.h - a doubly linked list through a member of its elements. The head is a node of its own;
 * a node that is in no list points to itself, so that removing it twice does nothing.
 */
#ifndef TOPKD_CLIENT_LIST_H
#define TOPKD_CLIENT_LIST_H

#include <stdbool.h>
#include <stddef.h>

struct list {
    struct list *next, *prev;
};

/* The element whose `member` is this node. */
#define list_entry(node, type, member) ((type *)(void *)((char *)(node)-offsetof(type, member)))

/* The body may remove the node it is at, and no other. */
#define list_each(node, head)                                                                      \
    for (struct list *node = (head)->next, *node##_next = node->next; node != (head);              \
         node = node##_next, node##_next = node->next)

static inline void list_init(struct list *node)
{
    node->next = node;
    node->prev = node;
}

static inline bool list_empty(const struct list *node)
{
    return node->next == node;
}

/* Puts `node` before `position`; before the head is the end. */
static inline void list_insert(struct list *position, struct list *node)
{
    node->prev = position->prev;
    node->next = position;
    position->prev->next = node;
    position->prev = node;
}

static inline void list_remove(struct list *node)
{
    node->prev->next = node->next;
    node->next->prev = node->prev;
    list_init(node);
}

#endif
