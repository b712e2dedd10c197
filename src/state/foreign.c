#include "state/foreign.h"

#include <stdlib.h>

#include "base/mem.h"

enum { MAX_HEADS = 1 << 16 }; /* of files that are looked at */

struct head {
    uint64_t id, parent, path_hash, used_ns;
    uint32_t pos;
    bool has_snap, whole; /* whole: all it goes on from is there */
    struct segment_maker by;
};

struct foreign {
    struct head *list; /* [n]; when ready: states only, the shallow first */
    size_t n, cap;
    uint32_t *pos;  /* [n] of list */
    uint64_t *hash; /* [n], scratch */
};

struct foreign *foreign_new(void)
{
    return mem_try_zalloc(sizeof(struct foreign));
}

void foreign_free(struct foreign *f)
{
    if (!f)
        return;
    mem_free(f->list);
    mem_free(f->pos);
    mem_free(f->hash);
    mem_free(f);
}

void foreign_add(struct foreign *f, const struct segment_head *h, const struct segment_maker *by,
                 bool has_snap)
{
    if (!f || f->n == MAX_HEADS || !mem_grow(&f->list, &f->cap, f->n + 1, sizeof *f->list))
        return;
    f->list[f->n++] = (struct head){.id = h->id,
                                    .parent = h->parent,
                                    .path_hash = h->path_hash,
                                    .used_ns = h->used_ns,
                                    .pos = h->pos,
                                    .has_snap = has_snap,
                                    .by = *by};
}

static int by_id(const void *a, const void *b)
{
    const struct head *x = a, *y = b;
    return (x->id > y->id) - (x->id < y->id);
}

static int by_use(const void *a, const void *b) /* the latest first */
{
    const struct head *x = a, *y = b;
    return x->used_ns != y->used_ns ? (x->used_ns < y->used_ns) - (x->used_ns > y->used_ns)
                                    : by_id(a, b);
}

static int by_pos(const void *a, const void *b)
{
    const struct head *x = a, *y = b;
    return x->pos != y->pos ? (x->pos > y->pos) - (x->pos < y->pos) : by_id(a, b);
}

/* A parent has a smaller id, so that it comes before its children. */
static void find_whole(struct foreign *f)
{
    if (f->n)
        qsort(f->list, f->n, sizeof *f->list, by_id);
    for (size_t i = 0; i < f->n; i++) {
        struct head *x = &f->list[i];
        const struct head key = {.id = x->parent};
        const struct head *p = x->parent ? bsearch(&key, f->list, i, sizeof *f->list, by_id) : NULL;
        x->whole = !x->parent || (p && p->whole && p->by.fingerprint == x->by.fingerprint);
    }
}

void foreign_ready(struct foreign *f)
{
    if (!f)
        return;
    find_whole(f);
    size_t n = 0;
    for (size_t i = 0; i < f->n; i++)
        if (f->list[i].has_snap && f->list[i].whole)
            f->list[n++] = f->list[i];
    if (n)
        qsort(f->list, n, sizeof *f->list, by_use);
    f->n = MIN(n, FOREIGN_MAX);
    if (f->n)
        qsort(f->list, f->n, sizeof *f->list, by_pos);
    f->pos = mem_try_array(MAX(f->n, 1), sizeof *f->pos);
    f->hash = mem_try_array(MAX(f->n, 1), sizeof *f->hash);
    struct head *fit = mem_try_realloc(f->list, MAX(f->n, 1) * sizeof *f->list);
    if (fit) {
        f->list = fit;
        f->cap = MAX(f->n, 1);
    }
    if (!f->pos || !f->hash)
        f->n = 0;
    for (size_t i = 0; i < f->n; i++)
        f->pos[i] = f->list[i].pos;
}

/* How many of f's states are no deeper than pos. */
static uint32_t up_to(const struct foreign *f, uint32_t pos)
{
    size_t lo = 0, hi = f->n;
    while (lo < hi) {
        const size_t mid = lo + (hi - lo) / 2;
        if (f->pos[mid] <= pos)
            lo = mid + 1;
        else
            hi = mid;
    }
    return (uint32_t)lo;
}

struct foreign_state foreign_find(const struct foreign *f, const token *seq, uint32_t n,
                                  uint32_t from)
{
    struct foreign_state none = {0};
    if (!f || from >= n)
        return none;
    const uint32_t first = up_to(f, from), end = up_to(f, n);
    segment_hashes(seq, f->pos + first, end - first, f->hash);
    for (uint32_t i = end; i-- > first;)
        if (f->hash[i - first] == f->list[i].path_hash)
            return (struct foreign_state){
                .pos = f->pos[i], .id = f->list[i].id, .by = f->list[i].by};
    return none;
}
