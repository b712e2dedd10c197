/* check.c - every invariant of the README, by recount.  For tests. */
#include "cache/cache_int.h"

#include <stdio.h>
#include <stdlib.h>

#define HOLDS(number, cond) ((cond) ? (void)0 : broken(number, #cond, __LINE__))

static _Noreturn void broken(int number, const char *cond, int line)
{
    fprintf(stderr, "cache invariant %d (README): %s, check.c:%d\n", number, cond, line);
    abort();
}

static const struct radix_node *node_at(const struct cache *c, uint32_t id)
{
    return radix_at(&c->tree, id);
}

/* (2) and the edge's own count. */
static uint32_t check_list(const struct cache *c, uint32_t node, uint32_t head, bool live)
{
    uint32_t n = 0, before = UINT32_MAX;
    for (snap_id id = head; id; id = entry_at(c, id)->next, n++) {
        const struct entry *e = entry_at(c, id);
        HOLDS(2, e->node == node && e->pos < before);
        HOLDS(2, node_at(c, node)->start < e->pos && e->pos <= node_at(c, node)->end);
        HOLDS(2, entry_is_live(e) == live && e->state != ENTRY_FREE);
        before = e->pos;
    }
    return n;
}

static bool share_position(const struct cache *c, const struct radix_node *x)
{
    for (snap_id a = x->live; a; a = entry_at(c, a)->next)
        for (snap_id b = x->ghost; b; b = entry_at(c, b)->next)
            if (entry_at(c, a)->pos == entry_at(c, b)->pos)
                return true;
    return false;
}

static bool in_layer(const struct entry *e, enum layer l)
{
    return l == LAYER_ANY || e->tiers & 1u << l;
}

/* Live entries of the layer in the edge and below; adds to *pages the pages of the union of their paths: page k of
 * a path belongs to the node in which it ends, or in which the path ends before. (3) (4) */
static uint32_t check_layer(const struct cache *c, uint32_t id, enum layer l, uint64_t *pages)
{
    const struct radix_node *x = node_at(c, id);
    uint32_t own = 0, deepest = x->start, below = 0;
    for (snap_id e = x->live; e; e = entry_at(c, e)->next) {
        own += in_layer(entry_at(c, e), l);
        if (in_layer(entry_at(c, e), l))
            deepest = MAX(deepest, entry_at(c, e)->pos);
    }
    for (uint32_t n = x->child; n; n = node_at(c, n)->next)
        below += check_layer(c, n, l, pages);
    const uint32_t kv = below ? x->end : deepest;
    HOLDS(3, x->at[l].n_own == own && x->at[l].n_live == own + below && x->at[l].kv == kv);
    for (uint32_t k = x->start / c->o.page_tokens; kv > x->start; k++) {
        const uint64_t end = ((uint64_t)k + 1) * c->o.page_tokens;
        *pages += end <= kv || !below;
        if (end >= kv)
            break;
    }
    return own + below;
}

/* Entries listed in the node and below. */
static uint32_t check_node(const struct cache *c, uint32_t id)
{
    const struct radix_node *x = node_at(c, id);
    uint32_t n_live = check_list(c, id, x->live, true);
    check_list(c, id, x->ghost, false);
    HOLDS(2, !share_position(c, x));
    HOLDS(3, x->start <= x->done && x->done <= x->end);
    HOLDS(3, x->done == x->start || id == RADIX_ROOT ||
                 node_at(c, x->parent)->done == node_at(c, x->parent)->end);
    for (uint32_t n = x->child; n; n = node_at(c, n)->next)
        n_live += check_node(c, n);
    return n_live;
}

/* Common tokens of two entries' paths: by climbing the deeper of two nodes until they meet. */
static uint32_t common(const struct cache *c, const struct entry *a, const struct entry *b)
{
    uint32_t x = a->node, y = b->node, n = MIN(a->pos, b->pos);
    while (x != y) {
        uint32_t *deeper = node_at(c, x)->end >= node_at(c, y)->end ? &x : &y;
        *deeper = node_at(c, *deeper)->parent;
        n = MIN(n, node_at(c, *deeper)->end);
    }
    return n;
}

/* Pages freed if the copy went, from all pairs of paths.  on: how far the deepest other entry on its path is; off:
 * how far another path runs along before it leaves.  A page that on lies in stays, unless off's page has those
 * tokens too; the page that off lies in is a copy. */
static uint64_t pages_alone(const struct cache *c, snap_id id, enum tier t)
{
    const struct entry *e = entry_at(c, id);
    uint32_t on = 0, off = 0;
    for (uint32_t i = 0; i < c->ranks[t].n; i++) {
        const struct entry *o = entry_at(c, c->ranks[t].list[i].id);
        const uint32_t n = o == e ? 0 : common(c, e, o);
        if (n == e->pos)
            return 0;
        if (n == o->pos)
            on = MAX(on, n);
        else
            off = MAX(off, n);
    }
    const uint32_t page = c->o.page_tokens;
    return ceil_div(e->pos, page) - (off >= on ? off / page : ceil_div(on, page));
}

static void check_live(const struct cache *c, snap_id id)
{
    const struct entry *e = entry_at(c, id);
    const struct radix_node *x = node_at(c, e->node);
    HOLDS(6, e->tip == (x->live == id && x->at[LAYER_ANY].n_live == x->at[LAYER_ANY].n_own));
    const snap_id above = entry_above(c, e->node, e->pos);
    HOLDS(6, e->gap == e->pos - (above ? entry_at(c, above)->pos : 0));
    for (enum tier t = TIER_RAM; t < N_TIERS; t++) {
        if (!entry_has(e, t))
            continue;
        HOLDS(6, e->slot[t] < c->ranks[t].n);
        const struct rank *r = ranks_at(c, e, t);
        HOLDS(6, r->id == id && r->barred == (e->pins > 0) && r->cell == e->cell);
        HOLDS(6, e->pages[t] == pages_alone(c, id, t));
        HOLDS(6, r->weight == (c->policy->weight ? c->policy->weight(c, e, t) : 1));
    }
    HOLDS(8, e->state != ENTRY_RESERVED || e->pins > 0);
    HOLDS(8, !e->user_pin || e->pins > 0);
    HOLDS(9, !e->stand_in || (e->state == ENTRY_PLANNED && !x->child && x->live == id && !e->next &&
                              e->pos == x->end && !x->ghost));
    HOLDS(14, e->tiers && (e->state == ENTRY_LIVE || e->tiers == 1u << LAYER_RAM));
    HOLDS(14, !e->writing || (entry_has(e, TIER_RAM) && entry_has(e, TIER_DISK) && e->pins));
    HOLDS(14, !e->fetching || (entry_has(e, TIER_RAM) && entry_has(e, TIER_DISK) && e->pins));
}

static void check_requests(const struct cache *c)
{
    uint64_t pins = 0, wanted = 0;
    for (snap_id id = 1; id < c->entries_used; id++) {
        const struct entry *e = entry_at(c, id);
        if (!entry_is_live(e))
            continue;
        pins += e->pins;
        wanted += (uint64_t)e->user_pin + (e->state == ENTRY_RESERVED) + e->writing + e->fetching;
        bool owned = e->state != ENTRY_PLANNED;
        for (uint32_t k = 0; k < c->n_active; k++)
            owned |= e->owner == (uint32_t)c->active[k].ticket;
        HOLDS(9, owned);
    }
    for (uint32_t i = 0; i < c->n_active; i++) {
        const struct active *a = &c->active[i];
        wanted += a->restore != 0;
        HOLDS(8, !a->restore || entry_at(c, a->restore)->state == ENTRY_LIVE);
        HOLDS(9, !a->stand_in || entry_at(c, a->stand_in)->stand_in);
    }
    HOLDS(8, pins == wanted);
}

void cache_check(const struct cache *c)
{
    radix_check(&c->tree); /* (1) */
    const uint32_t n_listed = check_node(c, RADIX_ROOT);
    for (enum layer l = LAYER_ANY; l < N_LAYERS; l++) {
        if (l == LAYER_RAM && c->ram == LAYER_ANY)
            continue; /* not kept apart */
        uint64_t pages = 0;
        const uint32_t n = check_layer(c, RADIX_ROOT, l, &pages);
        HOLDS(4, pages == c->n_pages[l]);
        HOLDS(2, n == (l == LAYER_ANY   ? c->n_live
                       : l == LAYER_RAM ? c->ranks[TIER_RAM].n
                                        : c->ranks[TIER_DISK].n));
    }
    uint32_t n_live = 0, n_ghosts = 0, n_pins = 0, n_free = 0, n_writing = 0;
    for (uint32_t id = 1; id < c->entries_used; id++) {
        const struct entry *e = entry_at(c, id);
        n_live += entry_is_live(e);
        n_ghosts += e->state == ENTRY_GHOST;
        n_free += e->state == ENTRY_FREE;
        n_pins += entry_is_live(e) && e->pins > 0;
        n_writing += entry_is_live(e) && e->writing;
        if (entry_is_live(e))
            check_live(c, id);
        else
            HOLDS(8, !e->pins && !e->user_pin);
    }
    HOLDS(2, n_live == c->n_live && n_listed == n_live && n_ghosts == c->n_ghosts);
    HOLDS(2, n_live + n_ghosts + n_free == c->entries_used - 1);
    HOLDS(8, n_pins == c->n_pins && n_writing == c->n_writing);
    HOLDS(5, cache_used(c, TIER_RAM) <= c->o.ram_bytes || ranks_all_barred(&c->ranks[TIER_RAM]));
    HOLDS(5, cache_used(c, TIER_DISK) <= c->o.disk_bytes);
    check_requests(c);
    ranks_check(&c->ranks[TIER_RAM], c->now); /* (7) */
    ranks_check(&c->ranks[TIER_DISK], c->now);
}
