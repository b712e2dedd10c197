/* policy_lru.c - what the published tree caches do: branch point, prompt end, end of generation and a grid;
 * the least recently used entry goes first.  The baseline that hold is compared with. */
#include "cache/policy.h"

#include "cache/cache_int.h"

static void lru_place(struct cache *c, const struct plan_req *r, const struct lookup *l,
                      struct candidates *cs)
{
    uint64_t step = c->o.step ? c->o.step : 8192;
    while (r->n / step + 3 > PLAN_MAX_CUTS - SPARE_CUTS)
        step *= 2;
    candidates_add(cs, l->start, r->n, l->lcp, CUT_BRANCH, 0);
    candidates_add(cs, l->start, r->n, r->n, CUT_PROMPT, 0);
    for (uint64_t pos = (l->start / step + 1) * step; pos <= r->n; pos += step)
        candidates_add(cs, l->start, r->n, (uint32_t)pos, CUT_GRID, 0);
    cs->gen_end = true;
}

static bool lru_admit(struct cache *c, const struct entry *e, uint32_t gap, double loss)
{
    (void)c, (void)e, (void)gap, (void)loss;
    return true;
}

static void lru_enter(struct cache *c, snap_id id)
{
    entry_at(c, id)->last = c->now;
}

static double lru_weight(const struct cache *c, const struct entry *e, enum tier t)
{
    (void)c, (void)t;
    return e->last - e->pos * 0x1p-32; /* of one request's entries the deepest goes first */
}

static void lru_hit(struct cache *c, snap_id id)
{
    struct entry *e = entry_at(c, id);
    e->hits++;
    e->last = c->now;
    if (entry_is_live(e))
        entry_reweigh(c, id);
}

static bool lru_spill(const struct cache *c, const struct entry *e)
{
    (void)c, (void)e;
    return true;
}

const struct policy policy_lru = {
    .name = "lru",
    .place = lru_place,
    .admit = lru_admit,
    .enter = lru_enter,
    .hit = lru_hit,
    .spill = lru_spill,
    .weight = lru_weight,
};
