/* arena.h - many small allocations with one lifetime, given back together. */
#ifndef HOLDFAST_BASE_ARENA_H
#define HOLDFAST_BASE_ARENA_H

#include "base/base.h"

struct arena_block;
struct arena {
    struct arena_block *head;
    size_t used, limit; /* bytes handed out; 0 = no limit */
};

void arena_init(struct arena *a, size_t limit);
void arena_release(struct arena *a);
/* 16-byte aligned, zeroed; NULL when memory or the limit is reached. */
NODISCARD void *arena_try(struct arena *a, size_t n);
/* A copy of s[n] with a terminating 0; NULL as arena_try. */
NODISCARD char *arena_strndup(struct arena *a, const char *s, size_t n);

#endif
