#include "base/arena.h"

#include <string.h>

#include "base/mem.h"

enum { BLOCK_BYTES = 16 * 1024 };

struct arena_block {
    struct arena_block *next;
    size_t used, cap;
    _Alignas(16) char p[];
};

void arena_init(struct arena *a, size_t limit)
{
    *a = (struct arena){.limit = limit};
}

void arena_release(struct arena *a)
{
    for (struct arena_block *b = a->head, *next; b; b = next) {
        next = b->next;
        mem_free(b);
    }
    arena_init(a, a->limit);
}

void *arena_try(struct arena *a, size_t n)
{
    if (n > SIZE_MAX - 64)
        return NULL;
    n = (n + 15) & ~(size_t)15;
    if (a->limit && (n > a->limit || a->used > a->limit - n))
        return NULL;
    struct arena_block *b = a->head;
    if (!b || b->cap - b->used < n) {
        const size_t cap = MAX(n, (size_t)BLOCK_BYTES);
        if (cap > SIZE_MAX - sizeof *b || !(b = mem_try(sizeof *b + cap)))
            return NULL;
        b->used = 0;
        b->cap = cap;
        /* a large allocation must not hide the room left in the block before it */
        if (a->head && n > BLOCK_BYTES / 2) {
            b->next = a->head->next;
            a->head->next = b;
        } else {
            b->next = a->head;
            a->head = b;
        }
    }
    void *p = b->p + b->used;
    b->used += n;
    a->used += n;
    return memset(p, 0, n);
}

char *arena_strndup(struct arena *a, const char *s, size_t n)
{
    char *p = n < SIZE_MAX ? arena_try(a, n + 1) : NULL;
    if (p && n)
        memcpy(p, s, n);
    return p;
}
