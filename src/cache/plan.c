/* plan.c - one request: what to reuse, where to cut, what was lost and why; and its end. */
#include "cache/cache_int.h"

#include <string.h>

#include "base/mem.h"

void cache_mark_done(struct cache *c, uint32_t n)
{
    for (uint32_t i = c->path.n; i-- > 0;) {
        struct radix_node *x = radix_at(&c->tree, c->path.nodes[i]);
        if (x->done == x->end)
            break; /* and so is all above it */
        if (x->start < n)
            x->done = MAX(x->done, MIN(x->end, n));
    }
}

struct active *cache_find_active(struct cache *c, uint64_t ticket)
{
    for (uint32_t i = 0; i < c->n_active; i++)
        if (c->active[i].ticket == ticket)
            return &c->active[i];
    return NULL;
}

static enum rc check_hints(const struct plan_req *r, struct err *err)
{
    for (uint32_t i = 0; i < r->n_hints; i++)
        if (r->hints[i].pos > r->n || (i && r->hints[i].pos < r->hints[i - 1].pos))
            return err_set(err, RC_ARG,
                           "message boundary %" PRIu32 " at token %" PRIu32
                           " is out of order or beyond the prompt's %" PRIu32,
                           i, r->hints[i].pos, r->n);
    return RC_OK;
}

static snap_id deepest_ghost(const struct cache *c, uint32_t list, uint32_t limit)
{
    for (snap_id id = list; id; id = entry_at(c, id)->next)
        if (entry_at(c, id)->pos <= limit)
            return id;
    return 0;
}

static bool in_memory(const struct entry *e)
{
    return entry_has(e, TIER_RAM) && !e->fetching;
}

/* Tokens saved by going on from the entry: those before it, less those that could be evaluated while it is read. */
static double saves(const struct cache *c, const struct entry *e)
{
    if (in_memory(e))
        return e->pos;
    return e->pos - cost_read_tokens(&c->cost, entry_cost(c, e->node, e->pos, TIER_RAM));
}

/* The kept entry of this edge that saves most; *best is what is to be beaten. */
static snap_id better_in(const struct cache *c, uint32_t list, uint32_t limit, bool disk,
                         double *best)
{
    snap_id found = 0;
    for (snap_id id = list; id; id = entry_at(c, id)->next) {
        const struct entry *e = entry_at(c, id);
        if (e->pos > limit || e->state != ENTRY_LIVE || e->broken || (!disk && !in_memory(e)) ||
            saves(c, e) <= *best)
            continue;
        *best = saves(c, e);
        found = id;
    }
    return found;
}

/* c->path has been walked. */
static struct lookup look_up(const struct cache *c, const struct plan_req *r, bool disk)
{
    struct lookup l = {.path = &c->path, .lcp = c->path.len};
    for (uint32_t i = 0; i < c->path.n && l.done == radix_at(&c->tree, c->path.nodes[i])->start;
         i++)
        l.done = MIN(radix_at(&c->tree, c->path.nodes[i])->done, l.lcp);
    l.limit = MIN(l.done, r->n - 1);
    double best = 0;
    for (uint32_t i = c->path.n; i-- > 0;) {
        const struct radix_node *x = radix_at(&c->tree, c->path.nodes[i]);
        if (!r->no_reuse && x->end > best) {
            const snap_id id = better_in(c, x->live, l.limit, disk, &best);
            l.live = id ? id : l.live;
        }
        if (!l.ghost)
            l.ghost = deepest_ghost(c, x->ghost, l.limit);
    }
    l.start = l.live ? entry_at(c, l.live)->pos : 0;
    return l;
}

/* The deepest kept entry of the path that was not worth reading or could not be, if it is deeper than start. */
static snap_id left_on_disk(const struct cache *c, const struct lookup *l)
{
    for (uint32_t i = l->path->n; i-- > 0;)
        for (snap_id id = radix_at(&c->tree, l->path->nodes[i])->live; id;
             id = entry_at(c, id)->next) {
            const struct entry *e = entry_at(c, id);
            if (e->pos <= l->start)
                return 0;
            if (e->pos <= l->limit && e->state == ENTRY_LIVE)
                return id;
        }
    return 0;
}

/* The running request that is about to compute most of what this one lacks. */
static struct active *worth_waiting_for(struct cache *c, const struct plan_req *r, uint32_t start,
                                        uint32_t *pos)
{
    struct active *best = NULL;
    *pos = start + MIN_WAIT - 1;
    for (uint32_t i = 0; i < c->n_active; i++) {
        struct active *a = &c->active[i];
        if (!a->prompt || a->n_promised == COUNT_OF(a->promised))
            continue;
        const uint32_t same = MIN(radix_mismatch(a->prompt, r->prompt, MIN(a->n, r->n)), r->n - 1);
        if (same > *pos && same > a->progress) {
            *pos = same;
            best = a;
        }
    }
    return best;
}

static void promise(struct active *a, uint32_t pos)
{
    for (uint32_t i = 0; i < a->n_promised; i++)
        if (a->promised[i] == pos)
            return;
    a->promised[a->n_promised++] = pos;
}

/* What the ghosts of a path say about its tokens from some place on. */
struct told {
    uint32_t to; /* the deepest one's place, 0 = there is none; of what lies before it: */
    uint32_t rejected, evicted; /* so many tokens went that way */
    const struct entry *gone; /* the deepest that was there and went, as far as it is remembered */
    uint32_t small;           /* deepest place too close to an entry above it, or 0 */
};

/* x is the next ghost on the way up; *up: what is not put down to a cause yet ends there.  A state that was there would
 * have served all that lies before it.  One that was rejected would have saved no more than its distance to the entry
 * then above it (gap): what that one served went some other way. */
static void hear(struct told *t, const struct entry *x, uint32_t *up, uint32_t from)
{
    if (!t->to)
        t->to = *up = x->pos;
    else if (x->pos < *up) { /* in between was one that nobody remembers */
        t->evicted += *up - x->pos;
        *up = x->pos;
    }
    const uint32_t end = *up;
    if (x->why == GHOST_DEAR) {
        *up = MIN(end, x->pos - MIN(x->gap, x->pos - from));
        t->rejected += end - *up;
    } else {
        *up = from;
        t->evicted += end - from;
        t->gone = x;
    }
}

/* A ghost whose request ended before its turn tells nothing, and one that was too small tells of the entry it
 * was too close to. */
static struct told what_ghosts_tell(const struct cache *c, const struct lookup *l, uint32_t from)
{
    struct told t = {0};
    uint32_t up = l->limit;
    for (uint32_t i = l->path->n; i-- > 0;)
        for (snap_id id = radix_at(&c->tree, l->path->nodes[i])->ghost; id;
             id = entry_at(c, id)->next) {
            const struct entry *e = entry_at(c, id);
            if (e->pos <= from || up == from) {
                t.evicted += t.to ? up - from : 0;
                return t;
            }
            if (e->pos > l->limit || e->why == GHOST_ABANDONED)
                continue;
            if (e->why == GHOST_SMALL)
                t.small = t.small ? t.small : e->pos;
            else
                hear(&t, e, &up, from);
        }
    t.evicted += t.to ? up - from : 0;
    return t;
}

/* Splits done - start into causes, from the deep end: what an entry at the last token would have given but for the
 * rule that one token is evaluated; what entries that were there or were rejected would have; the rest. */
static void attribute(const struct cache *c, const struct plan_req *r, const struct lookup *l,
                      struct plan *plan)
{
    if (l->done == r->n) {
        const snap_id id = entry_find(c, r->n);
        plan->lost_last = id && entry_at(c, id)->state == ENTRY_LIVE ? r->n - l->start : 1;
        if (plan->lost_last > 1)
            return;
    }
    uint32_t top = l->start;
    const snap_id unread = left_on_disk(c, l);
    if (unread) { /* it went from memory, and reading it back takes longer than what it saves */
        plan->lost_evicted = entry_at(c, unread)->pos - top;
        top = entry_at(c, unread)->pos;
        plan->unreadable = entry_at(c, unread)->broken;
    }
    const struct told t = what_ghosts_tell(c, l, top);
    plan->lost_rejected = t.rejected;
    plan->lost_evicted += t.evicted;
    top = MAX(top, t.to);
    if (t.gone) {
        plan->evicted_ns = t.gone->gone_ns;
        plan->unreadable |= t.gone->why == GHOST_UNREADABLE;
    }
    if (t.small > top) {
        const uint32_t lost = t.small - top;
        top = t.small;
        if (lost < MIN_TOKENS)
            plan->lost_minimum = lost;
        else /* it was too close to an entry that is not even remembered */
            plan->lost_evicted += lost;
    }
    if (l->limit - top < MIN_TOKENS)
        plan->lost_minimum += l->limit - top;
    else
        plan->lost_placement = l->limit - top;
}

/* Whether a path walked before goes on otherwise than the prompt does; made-up tokens are no path. */
static bool forks(const struct cache *c, const struct plan_req *r, const struct lookup *l)
{
    if (!l->path->n || l->lcp == r->n || l->done < l->lcp)
        return false;
    const struct radix_node *x = radix_at(&c->tree, l->path->nodes[l->path->n - 1]);
    if (x->end > l->lcp)
        return x->label[l->lcp - x->start] >= 0;
    for (uint32_t k = x->child; k; k = radix_at(&c->tree, k)->next)
        if (radix_at(&c->tree, k)->label[0] >= 0)
            return true;
    return false;
}

/* -- placing ---------------------------------------------------------------------------------- */

bool candidates_add(struct candidates *cs, uint32_t above, uint32_t to, uint32_t pos,
                    enum cut_kind kind, uint64_t family)
{
    if (pos <= above || pos > to)
        return true;
    uint32_t i = 0;
    while (i < cs->n && cs->list[i].pos < pos)
        i++;
    if (i < cs->n && cs->list[i].pos == pos)
        return true;
    if (cs->n == PLAN_MAX_CUTS - SPARE_CUTS)
        return false;
    memmove(&cs->list[i + 1], &cs->list[i], (cs->n - i) * sizeof *cs->list);
    cs->list[i] = (struct candidate){pos, kind, family};
    cs->n++;
    return true;
}

static snap_id plan_entry(struct cache *c, struct active *a, uint32_t pos, enum cut_kind kind,
                          uint64_t family, enum reject *why)
{
    snap_id id;
    c->stats.offers++;
    *why = cache_consider(c, a, pos, kind, family, false, &id);
    c->stats.rejected += *why && *why != REJECT_HELD;
    if (*why)
        return 0;
    entry_enter(c, id, TIER_RAM);
    entry_at(c, id)->owner = (uint32_t)a->ticket;
    a->planned[a->n_planned++] = id;
    return id;
}

/* The end of generation competes with the others from the start, though its place is not known: it
 * stands on made-up tokens (negative, so that no path meets them) as many as generations have on average. */
static void plan_stand_in(struct cache *c, struct active *a)
{
    const uint32_t n = (uint32_t)MAX(c->gen_tokens, 1);
    token *made_up = mem_try((size_t)n * sizeof *made_up);
    if (!made_up)
        return;
    for (uint32_t i = 0; i < n; i++)
        made_up[i] = INT32_MIN + (token)(a->ticket & INT32_MAX);
    if (radix_extend(&c->tree, made_up, n, &c->path)) {
        enum reject why;
        a->stand_in = plan_entry(c, a, c->path.len, CUT_GEN_END, a->family, &why);
        if (a->stand_in)
            entry_at(c, a->stand_in)->stand_in = true;
        else
            radix_remove_leaf(&c->tree, c->path.nodes[c->path.n - 1]);
    }
    mem_free(made_up);
}

/* c->path is the whole prompt.  All candidates enter, then the least valuable of everything goes until the
 * budget holds: so what comes later in this request has its say before anything is dropped for what comes
 * earlier. */
static void place(struct cache *c, struct active *a, const struct plan_req *r,
                  const struct lookup *l, struct plan *plan, uint64_t now_ns)
{
    struct candidates cs = {0};
    c->policy->place(c, r, l, &cs);
    snap_id ids[PLAN_MAX_CUTS];
    for (uint32_t i = 0; i < cs.n; i++) {
        const struct candidate *x = &cs.list[i];
        enum reject why;
        ids[i] = plan_entry(c, a, x->pos, x->kind, x->family ? x->family : a->family, &why);
        if (why == REJECT_HELD) /* by another running request, which may not get there */
            ids[i] = UINT32_MAX;
    }
    if (cs.gen_end)
        plan_stand_in(c, a);
    cache_settle(c, now_ns);
    for (uint32_t i = 0; i < cs.n; i++)
        if (ids[i] == UINT32_MAX || (ids[i] && entry_at(c, ids[i])->state == ENTRY_PLANNED))
            plan->cuts[plan->n_cuts++] = (struct cut){cs.list[i].pos, cs.list[i].kind};
}

static void book_plan(struct cache *c, const struct plan_req *r, const struct plan *p)
{
    struct cache_stats *s = &c->stats;
    s->requests++;
    s->prompt_tokens += r->n;
    s->reused_tokens += p->start;
    s->lcp_tokens += p->lcp;
    s->lost_placement += p->lost_placement;
    s->lost_rejected += p->lost_rejected;
    s->lost_evicted += p->lost_evicted;
    s->lost_minimum += p->lost_minimum;
    s->lost_last += p->lost_last;
}

/* Room in memory for an entry that is on disk. */
static bool fetch(struct cache *c, snap_id id, struct plan *plan, uint64_t now_ns)
{
    struct entry *e = entry_at(c, id);
    snap_id none = 0;
    uint64_t missing;
    if (e->fetching) { /* for another request */
        plan->fetch = true;
        return true;
    }
    if (!ranks_reserve(&c->ranks[TIER_RAM]))
        return false;
    const uint64_t cost = entry_cost(c, e->node, e->pos, TIER_RAM);
    entry_pin(c, id, 1);
    bool room = cost <= c->o.ram_bytes;
    while (room && cache_used(c, TIER_RAM) + entry_cost(c, e->node, e->pos, TIER_RAM) >
                       c->o.ram_bytes) /* KV it shares may go too */
        room = cache_make_room(c, entry_cost(c, e->node, e->pos, TIER_RAM), &none, now_ns);
    entry_pin(c, id, -1);
    if (!room)
        return false;
    plan->fetch = true;
    plan->fetch_from = entry_resident(c, e->node, e->pos, TIER_RAM, &missing);
    plan->fetch_bytes = c->o.snap_bytes + missing * c->page_bytes;
    c->stats.fetches++;
    c->stats.fetch_bytes += plan->fetch_bytes;
    entry_join(c, id, TIER_RAM);
    e->fetching = true;
    entry_pin(c, id, 1); /* until it is there, whatever becomes of the request */
    return true;
}

enum rc plan_make(struct cache *c, const struct plan_req *r, uint64_t now_ns, struct plan *plan,
                  struct err *err)
{
    *plan = (struct plan){0};
    if (!r->n)
        return err_set(err, RC_ARG, "the prompt has no tokens");
    const enum rc rc = check_hints(r, err);
    if (rc)
        return rc;
    uint32_t len;
    if (!radix_walk(&c->tree, r->prompt, r->n, &c->path, &len) ||
        !mem_grow(&c->active, &c->active_cap, (size_t)c->n_active + 1, sizeof *c->active))
        return err_set(err, RC_NOMEM, "cache: no memory for a request of %" PRIu32 " tokens", r->n);

    struct lookup l;
    if (r->may_wait && !r->no_reuse && c->policy->admit) {
        l = look_up(c, r, true);
        struct active *other = worth_waiting_for(c, r, l.start, &plan->wait_pos);
        if (other) {
            promise(other, plan->wait_pos);
            plan->wait_ticket = other->ticket;
            return RC_OK;
        }
        plan->wait_pos = 0;
    }

    c->now++;
    if (c->policy->tick)
        c->policy->tick(c); /* may forget ghosts */
    l = look_up(c, r, true);
    if (l.live && !in_memory(entry_at(c, l.live)) && !fetch(c, l.live, plan, now_ns))
        l = look_up(c, r, false);
    struct active *a = &c->active[c->n_active++];
    *a = (struct active){
        .ticket = ++c->last_ticket, .n = r->n, .progress = l.start, .restore = l.live};
    a->prompt = mem_try((size_t)r->n * sizeof *a->prompt);
    if (a->prompt)
        memcpy(a->prompt, r->prompt, (size_t)r->n * sizeof *a->prompt);

    plan->ticket = a->ticket;
    plan->start = l.start;
    plan->lcp = r->no_reuse ? 0 : l.done;
    plan->asked = r->no_reuse ? 0 : l.lcp;
    plan->forks = !r->no_reuse && forks(c, r, &l);
    if (!r->no_reuse)
        attribute(c, r, &l, plan);
    if (c->policy->observe)
        c->policy->observe(c, a, r, &l);
    if (l.ghost && entry_at(c, l.ghost)->pos > l.start && !r->no_reuse && c->policy->hit)
        c->policy->hit(c, l.ghost);
    if (l.live) {
        struct entry *e = entry_at(c, l.live);
        plan->restore = l.live;
        plan->restore_kind = e->kind;
        e->used_ns = now_ns;
        entry_pin(c, l.live, 1);
        if (c->policy->hit)
            c->policy->hit(c, l.live);
    }
    /* Without memory for the path there are no cuts, that is all. */
    const bool known = radix_insert(&c->tree, r->prompt, r->n, &c->path);
    radix_touch(&c->tree, &c->path);
    if (known && c->policy->place)
        place(c, a, r, &l, plan, now_ns);
    book_plan(c, r, plan);
    return RC_OK;
}

bool plan_add_cut(struct plan *p, uint32_t pos, enum cut_kind kind)
{
    uint32_t i = p->n_cuts;
    if (i == PLAN_MAX_CUTS || pos <= p->start)
        return false;
    while (i && p->cuts[i - 1].pos > pos)
        i--;
    if (i && p->cuts[i - 1].pos == pos)
        return false;
    memmove(&p->cuts[i + 1], &p->cuts[i], (p->n_cuts - i) * sizeof *p->cuts);
    p->cuts[i] = (struct cut){pos, kind};
    p->n_cuts++;
    return true;
}

void cache_progress(struct cache *c, const struct plan *p, uint32_t pos)
{
    struct active *a = cache_find_active(c, p->ticket);
    if (a)
        a->progress = MAX(a->progress, pos);
}

void plan_done(struct cache *c, const struct plan *p, const token *seq, uint32_t n, uint64_t now_ns)
{
    struct active *a = cache_find_active(c, p->ticket);
    if (!a)
        return;
    for (uint32_t i = 0; i < a->n_planned; i++) {
        const struct entry *e = entry_at(c, a->planned[i]);
        if (e->state == ENTRY_PLANNED && e->owner == (uint32_t)a->ticket)
            cache_unplan(c, a->planned[i], GHOST_ABANDONED, now_ns);
    }
    if (a->restore)
        cache_unpin(c, a->restore, now_ns);
    if (n > a->n)
        c->gen_tokens += ((double)(n - a->n) - c->gen_tokens) / 32;
    mem_free(a->prompt);
    *a = c->active[--c->n_active];
    /* Without memory the path is not remembered: the next one like it is cold. */
    if (n && radix_insert(&c->tree, seq, n, &c->path)) {
        radix_touch(&c->tree, &c->path);
        cache_mark_done(c, n);
    }
    cache_settle(c, now_ns);
}
