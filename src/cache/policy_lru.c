/* policy_lru.c - what the published tree caches do: branch point, prompt end, end of generation and a grid;
 * the least recently used entry goes first.  The baseline that hold is compared with. */
#include "cache/policy.h"

#include "cache/cache_int.h"

static void lru_place(struct cache *c, struct active *a, const struct plan_req *r,
                      const struct lookup *l, struct plan *plan)
{
    (void)a;
    plan->start = l->start;
    uint64_t step = c->o.step ? c->o.step : 8192;
    while (r->n / step + 1 > PLAN_MAX_CUTS - 8)
        step *= 2;
    for (uint64_t pos = (l->start / step + 1) * step; pos <= r->n; pos += step)
        plan_add_cut(plan, (uint32_t)pos, CUT_GRID);
    if (l->limit > l->start)
        plan_add_cut(plan, l->lcp, CUT_BRANCH);
    plan_add_cut(plan, r->n, CUT_PROMPT);
}

static bool lru_admit(struct cache *c, const struct entry *e, uint32_t gap, double floor,
                      uint64_t need)
{
    (void)c, (void)e, (void)gap, (void)floor, (void)need;
    return true;
}

static void lru_enter(struct cache *c, snap_id id)
{
    entry_at(c, id)->last = c->now;
}

static double lru_weight(const struct cache *c, const struct entry *e)
{
    (void)c;
    return e->last - e->pos * 0x1p-32; /* of one request's entries the deepest goes first */
}

static void lru_hit(struct cache *c, snap_id id)
{
    struct entry *e = entry_at(c, id);
    e->hits++;
    e->last = c->now;
    if (entry_is_live(e))
        c->ranks[e->slot].weight = lru_weight(c, e);
}

const struct policy policy_lru = {
    .name = "lru",
    .place = lru_place,
    .admit = lru_admit,
    .enter = lru_enter,
    .hit = lru_hit,
    .weight = lru_weight,
};
