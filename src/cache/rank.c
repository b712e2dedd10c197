#include "cache/rank.h"

#include "base/mem.h"

enum { NOBODY = UINT32_MAX };

bool ranks_reserve(struct ranks *r)
{
    if (!mem_grow(&r->list, &r->cap, (size_t)r->n + 1, sizeof *r->list))
        return false;
    if (r->n < r->width)
        return true;
    const uint32_t width = r->width ? r->width * 2 : 64;
    uint32_t *winner = mem_try_realloc(r->winner, 2 * (size_t)width * sizeof *winner);
    if (!winner)
        return false;
    r->winner = winner;
    r->width = width;
    r->stale = true;
    return true;
}

void ranks_release(struct ranks *r)
{
    mem_free(r->list);
    mem_free(r->winner);
    *r = (struct ranks){0};
}

uint64_t ranks_bytes(const struct ranks *r)
{
    return r->cap * sizeof *r->list + 2 * (uint64_t)r->width * sizeof *r->winner;
}

static uint32_t smaller(const struct ranks *r, uint32_t a, uint32_t b)
{
    if (a == NOBODY || b == NOBODY)
        return a == NOBODY ? b : a;
    const struct rank *x = &r->list[a], *y = &r->list[b];
    if (x->value != y->value)
        return x->value < y->value ? a : b;
    return x->id < y->id ? a : b;
}

static void replay(struct ranks *r, uint32_t slot, uint32_t who)
{
    if (r->stale)
        return;
    size_t at = (size_t)r->width + slot;
    r->winner[at] = who;
    while (at > 1) {
        at /= 2;
        r->winner[at] = smaller(r, r->winner[2 * at], r->winner[2 * at + 1]);
    }
}

uint32_t ranks_add(struct ranks *r, snap_id id)
{
    const uint32_t slot = r->n++;
    r->list[slot] = (struct rank){.id = id};
    replay(r, slot, slot);
    return slot;
}

snap_id ranks_drop(struct ranks *r, uint32_t slot)
{
    const uint32_t last = --r->n;
    const snap_id moved = r->list[last].id;
    replay(r, slot, NOBODY);
    replay(r, last, NOBODY);
    if (slot != last) {
        r->list[slot] = r->list[last];
        replay(r, slot, r->list[slot].barred ? NOBODY : slot);
    }
    return moved;
}

static double value_of(const struct rank *x, rank_rate *rate, const struct cache *c)
{
    return rate ? x->weight * rate(c, x->cell) : x->weight;
}

void ranks_update(struct ranks *r, uint32_t slot, rank_rate *rate, const struct cache *c)
{
    struct rank *x = &r->list[slot];
    x->value = value_of(x, rate, c);
    replay(r, slot, x->barred ? NOBODY : slot);
}

void ranks_renew(struct ranks *r, uint32_t epoch, rank_rate *rate, const struct cache *c)
{
    if (r->epoch == epoch && !r->stale)
        return;
    r->epoch = epoch;
    r->stale = false;
    for (uint32_t i = 0; i < r->width; i++) {
        r->winner[r->width + i] = i < r->n && !r->list[i].barred ? i : NOBODY;
        if (i < r->n)
            r->list[i].value = value_of(&r->list[i], rate, c);
    }
    for (size_t at = r->width; at-- > 1;)
        r->winner[at] = smaller(r, r->winner[2 * at], r->winner[2 * at + 1]);
}

uint32_t ranks_least(const struct ranks *r)
{
    return r->n ? r->winner[1] : NOBODY;
}

void ranks_hide(struct ranks *r, uint32_t slot)
{
    replay(r, slot, NOBODY);
}

void ranks_show(struct ranks *r, uint32_t slot)
{
    replay(r, slot, slot);
}

bool ranks_all_barred(const struct ranks *r)
{
    for (uint32_t i = 0; i < r->n; i++)
        if (!r->list[i].barred)
            return false;
    return true;
}

void ranks_check(const struct ranks *r, uint32_t epoch)
{
    uint32_t least = NOBODY;
    for (uint32_t i = 0; i < r->n; i++)
        if (!r->list[i].barred)
            least = smaller(r, least, i);
    CHECK(r->stale || r->epoch != epoch || !r->width || ranks_least(r) == least);
}
