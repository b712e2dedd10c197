#include "nn/mat_heap.h"

#include "base/mem.h"

enum { ALIGN = 64, CHUNK_BYTES = 32 << 20, LARGE = CHUNK_BYTES / 4 };

struct chunk {
    struct chunk *next;
    void *p;
};

struct mat_heap {
    struct chunk *chunks;
    uint8_t *at; /* free bytes of the chunk that is filled */
    size_t left;
};

struct mat_heap *mat_heap_new(void)
{
    return mem_zalloc(sizeof(struct mat_heap));
}

void mat_heap_free(struct mat_heap *h)
{
    if (!h)
        return;
    for (struct chunk *c = h->chunks, *next; c; c = next) {
        next = c->next;
        mem_free(c->p);
        mem_free(c);
    }
    mem_free(h);
}

static void *new_chunk(struct mat_heap *h, size_t n)
{
    void *p = mem_try_huge(n);
    if (!p)
        return NULL;
    struct chunk *c = mem_alloc(sizeof *c);
    *c = (struct chunk){h->chunks, p};
    h->chunks = c;
    return p;
}

void *mat_heap_try(struct mat_heap *h, size_t n)
{
    if (n >= LARGE)
        return new_chunk(h, n);
    n = round_up(n, ALIGN);
    if (n > h->left) { /* what is left is untouched, but for the end of a page */
        uint8_t *p = new_chunk(h, CHUNK_BYTES);
        if (!p)
            return NULL;
        h->at = p;
        h->left = CHUNK_BYTES;
    }
    void *p = h->at;
    h->at += n;
    h->left -= n;
    return p;
}
