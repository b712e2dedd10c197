#include "cache/slot.h"

#include <string.h>

#include "base/mem.h"

const char *slot_verdict_name(enum slot_verdict v)
{
    static const char *const names[] = {"cold", "append", "restored", "forced"};
    return (unsigned)v < COUNT_OF(names) ? names[v] : "?";
}

uint32_t common_prefix(const token *a, uint32_t na, const token *b, uint32_t nb)
{
    const uint32_t n = MIN(na, nb);
    uint32_t i = 0;
    while (i + 16 <= n && !memcmp(a + i, b + i, 16 * sizeof *a))
        i += 16;
    while (i < n && a[i] == b[i])
        i++;
    return i;
}

enum rc slot_set(struct slot *s, const token *seq, uint32_t n, struct err *err)
{
    if (!mem_grow(&s->seq, &s->seq_cap, n, sizeof *s->seq))
        return err_set(err, RC_NOMEM, "no memory for a slot of %u tokens", n);
    if (n)
        memcpy(s->seq, seq, n * sizeof *seq);
    s->n = n;
    return RC_OK;
}

void slot_release(struct slot *s)
{
    mem_free(s->seq);
    mem_free(s->ring);
    *s = (struct slot){0};
}

void slot_clear(struct slot *s)
{
    s->n = s->n_ring = 0;
}

void slot_remove_mark(struct slot *s, uint32_t i)
{
    memmove(s->ring + i, s->ring + i + 1, (s->n_ring - i - 1) * sizeof *s->ring);
    s->n_ring--;
}

struct mark *slot_add_mark(struct slot *s, uint32_t pos, uint64_t request)
{
    if (!mem_grow(&s->ring, &s->ring_cap, s->n_ring + 1, sizeof *s->ring))
        return NULL;
    struct mark *m = &s->ring[s->n_ring++];
    *m = (struct mark){.pos = pos, .request = request};
    return m;
}
