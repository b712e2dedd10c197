#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "cache/cache_int.h"
#include "cache/hazard.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static uint64_t seed_from_env(void)
{
    const char *s = getenv("SEED");
    const uint64_t seed = s ? strtoull(s, NULL, 0) : 1;
    print_message("SEED=%" PRIu64 "\n", seed);
    return seed;
}

/* -- a naive model: lists of token paths ----------------------------------------------------- */

enum { MAX_LEN = 700, MAX_PATHS = 3000, MAX_KEPT = 4000, MAX_RUNNING = 3 };

struct path {
    token t[MAX_LEN + 300]; /* room for a made-up end */
    uint32_t n;
};

struct kept {
    snap_id id;
    const struct path *path;
    uint32_t pos;
    bool ram, disk, writing, fetching;
};

struct running {
    bool on;
    struct plan plan;
    struct path *path; /* prompt, then what is generated */
    uint32_t n_prompt, at;
};

struct model {
    struct cache *c;
    struct path *paths;
    uint32_t n_paths;
    struct {
        const struct path *path;
        uint32_t n;
    } walked[MAX_PATHS * 4]; /* evaluated so far */
    uint32_t n_walked;
    struct kept kept[MAX_KEPT];
    uint32_t n_kept;
    struct running run[MAX_RUNNING];
    struct rng rng;
    uint64_t drops, now;
    bool by_budget; /* drops must be of the least valuable */
    bool shrinking; /* and need no other reason */
};

static uint32_t common(const struct path *a, uint32_t a_n, const struct path *b, uint32_t b_n)
{
    return radix_mismatch(a->t, b->t, MIN(a_n, b_n));
}

/* The path of an internal entry, from the labels up. */
static struct path path_of(const struct cache *c, snap_id id)
{
    const struct entry *e = entry_at(c, id);
    struct path p = {.n = e->pos};
    for (uint32_t n = e->node; n != RADIX_ROOT; n = radix_at(&c->tree, n)->parent) {
        const struct radix_node *x = radix_at(&c->tree, n);
        for (uint32_t i = x->start; i < MIN(x->end, e->pos); i++)
            p.t[i] = x->label[i - x->start];
    }
    return p;
}

struct view { /* what counts: entries with a copy in a tier, as lists of tokens */
    struct path *path;
    snap_id *id;
    uint32_t *same; /* [n][n]: common prefix of two of them */
    uint32_t n;
};

static struct view view_of(const struct cache *c, enum tier t, snap_id extra)
{
    const struct ranks *r = &c->ranks[t];
    struct view v = {.path = malloc((r->n + 1) * sizeof *v.path),
                     .id = malloc((r->n + 1) * sizeof *v.id)};
    for (uint32_t i = 0; i < r->n; i++) {
        v.id[v.n] = r->list[i].id;
        v.path[v.n++] = path_of(c, r->list[i].id);
    }
    if (extra) {
        v.id[v.n] = extra;
        v.path[v.n++] = path_of(c, extra);
    }
    v.same = malloc(((size_t)v.n * v.n + 1) * sizeof *v.same);
    for (uint32_t i = 0; i < v.n; i++)
        for (uint32_t k = 0; k < v.n; k++)
            v.same[i * v.n + k] = common(&v.path[i], v.path[i].n, &v.path[k], v.path[k].n);
    return v;
}

static void view_release(struct view *v)
{
    free(v->path);
    free(v->id);
    free(v->same);
}

/* Pages of the union of all paths but one: page k of a path is there once for all that agree on it as far as
 * both go. */
static uint64_t naive_pages(const struct view *v, uint32_t but, uint32_t page)
{
    uint64_t pages = 0;
    for (uint32_t i = 0; i < v->n; i++)
        for (uint32_t k = 0; i != but && k * page < v->path[i].n; k++) {
            const uint32_t end = MIN((k + 1) * page, v->path[i].n);
            bool other_has_it = false;
            for (uint32_t o = 0; o < v->n && !other_has_it; o++) {
                if (o == i || o == but)
                    continue;
                const uint32_t o_end = MIN((k + 1) * page, v->path[o].n);
                /* o's page holds all of i's tokens of it; of equals the first counts */
                other_has_it = v->same[i * v->n + o] >= end && (o_end > end || o < i);
            }
            pages += !other_has_it;
        }
    return pages;
}

static uint64_t naive_bytes(const struct model *m, const struct view *v)
{
    return v->n * m->c->o.snap_bytes +
           naive_pages(v, UINT32_MAX, m->c->o.page_tokens) * m->c->page_bytes;
}

static uint32_t naive_gap(const struct view *v, uint32_t i)
{
    uint32_t above = 0;
    for (uint32_t o = 0; o < v->n; o++)
        if (v->path[o].n < v->path[i].n && v->same[i * v->n + o] == v->path[o].n)
            above = MAX(above, v->path[o].n);
    return v->path[i].n - above;
}

static bool naive_tip(const struct view *v, uint32_t i)
{
    for (uint32_t o = 0; o < v->n; o++)
        if (v->path[o].n > v->path[i].n && v->same[i * v->n + o] == v->path[i].n)
            return false;
    return true;
}

/* h * gap / bytes, from the lists; only the learned chance h is the cache's own. */
static double naive_value(const struct model *m, const struct view *v, uint32_t i)
{
    struct cache *c = m->c;
    const struct entry *e = entry_at(c, v->id[i]);
    const uint32_t page = c->o.page_tokens;
    const uint64_t bytes =
        c->o.snap_bytes +
        (naive_pages(v, UINT32_MAX, page) - naive_pages(v, i, page)) * c->page_bytes;
    struct hazard *z = c->policy_state; /* first in the policy's struct */
    const uint32_t situation =
        hazard_situation(e->kind, e->hits, naive_tip(v, i), MAX(c->now - e->last, 1));
    const uint32_t cell = hazard_ref(z, e->family, situation, c->now);
    const double h = hazard_rate(z, cell, c->now);
    hazard_unref(z, cell);
    return h * naive_gap(v, i) / (double)bytes;
}

static void on_drop(void *ctx, snap_id id)
{
    struct model *m = ctx;
    struct cache *c = m->c;
    m->drops++;
    uint32_t k = 0;
    while (k < m->n_kept && m->kept[k].id != id)
        k++;
    assert_true(k < m->n_kept);
    assert_false(m->kept[k].writing || m->kept[k].fetching);
    m->kept[k] = m->kept[--m->n_kept];
    if (!m->by_budget)
        return;
    struct view v = view_of(c, TIER_RAM, id); /* as it was */
    const double gone = naive_value(m, &v, v.n - 1);
    for (uint32_t i = 0; i + 1 < v.n; i++)
        if (!entry_at(c, v.id[i])->pins)
            assert_true(gone <= naive_value(m, &v, i) * (1 + 1e-9));
    /* and there was need: with it and what was to come the budget did not do */
    assert_true(m->shrinking ||
                naive_bytes(m, &v) + c->o.snap_bytes + (MAX_LEN + 64) * c->o.token_bytes >
                    c->o.ram_bytes);
    view_release(&v);
}

static struct kept *kept_of(struct model *m, snap_id id)
{
    for (uint32_t k = 0; k < m->n_kept; k++)
        if (m->kept[k].id == id)
            return &m->kept[k];
    return NULL;
}

static enum spill_result on_spill(void *ctx, const struct cache_spill *s)
{
    struct model *m = ctx;
    struct kept *k = kept_of(m, s->id);
    assert_true(k && k->ram && !k->disk && !k->writing && !k->fetching);
    assert_int_equal(k->pos, s->pos);
    /* what others have on disk need not be written, and nothing more is left out */
    uint32_t held = 0;
    for (uint32_t o = 0; o < m->n_kept; o++)
        if (m->kept[o].disk)
            held = MAX(held, common(k->path, k->pos, m->kept[o].path, m->kept[o].pos));
    assert_int_equal(s->kv_from, held);
    switch (rng_below(&m->rng, 4)) {
    case 0:
        return SPILL_NO;
    case 1:
        k->disk = k->writing = true;
        return SPILL_STARTED;
    default:
        k->disk = true;
        return SPILL_DONE;
    }
}

static void on_drop_ram(void *ctx, snap_id id)
{
    struct kept *k = kept_of(ctx, id);
    assert_true(k && k->ram && k->disk && !k->writing && !k->fetching);
    k->ram = false;
}

static void on_drop_disk(void *ctx, snap_id id)
{
    struct kept *k = kept_of(ctx, id);
    assert_true(k && k->ram && k->disk && !k->writing && !k->fetching);
    k->disk = false;
}

static void model_init(struct model *m, const struct cache_opts *o, uint64_t seed)
{
    memset(m, 0, sizeof *m);
    m->rng.s = seed;
    m->paths = malloc(MAX_PATHS * sizeof *m->paths);
    struct cache_opts own = *o;
    own.ops = (struct cache_ops){.ctx = m,
                                 .drop = on_drop,
                                 .spill = on_spill,
                                 .drop_ram = on_drop_ram,
                                 .drop_disk = on_drop_disk};
    assert_int_equal(cache_new(&own, &m->c, NULL), RC_OK);
}

static void model_release(struct model *m)
{
    m->by_budget = false;
    cache_free(m->c);
    assert_int_equal(m->n_kept, 0); /* each was dropped once */
    free(m->paths);
}

static void walked(struct model *m, const struct path *p, uint32_t n)
{
    assert_true(m->n_walked < COUNT_OF(m->walked));
    m->walked[m->n_walked].path = p;
    m->walked[m->n_walked++].n = n;
}

static uint32_t naive_lcp(const struct model *m, const struct path *p, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 0; i < m->n_walked; i++)
        best = MAX(best, common(p, n, m->walked[i].path, m->walked[i].n));
    return best;
}

static uint32_t naive_restore(const struct model *m, const struct path *p, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 0; i < m->n_kept; i++)
        if (m->kept[i].pos < n && common(p, n, m->kept[i].path, m->kept[i].pos) == m->kept[i].pos)
            best = MAX(best, m->kept[i].pos);
    return best;
}

static struct path *random_prompt(struct model *m)
{
    struct rng *g = &m->rng;
    struct path *p = &m->paths[m->n_paths];
    p->n = 0;
    if (m->n_paths && rng_below(g, 8)) {
        const struct path *q = &m->paths[m->n_paths - 1 - rng_below(g, MIN(m->n_paths, 30))];
        p->n = rng_below(g, 3) ? q->n : rng_below(g, q->n + 1);
        p->n = MIN(p->n, MAX_LEN - 300);
        memcpy(p->t, q->t, p->n * sizeof *p->t);
    }
    const uint32_t end = p->n + 1 + rng_below(g, 200);
    while (p->n < end)
        p->t[p->n++] = (token)rng_below(g, 50);
    m->n_paths++;
    return p;
}

static uint32_t random_hints(struct model *m, uint32_t n, struct cache_hint *h)
{
    uint32_t n_hints = 0, pos = 0;
    if (rng_below(&m->rng, 3) == 0)
        return 0;
    while (pos < n && n_hints < 20) {
        h[n_hints++] = (struct cache_hint){pos, "suaov"[rng_below(&m->rng, 5)]};
        pos += 1 + rng_below(&m->rng, 80);
    }
    if (n > 4 && h[n_hints - 1].pos < n - 3)
        h[n_hints++] = (struct cache_hint){n - 3, 'g'};
    return n_hints;
}

static void begin(struct model *m, struct running *x)
{
    if (m->n_paths == MAX_PATHS)
        return;
    struct path *p = random_prompt(m);
    struct cache_hint hints[32];
    const struct plan_req r = {.prompt = p->t,
                               .n = p->n,
                               .hints = hints,
                               .n_hints = random_hints(m, p->n, hints),
                               .no_reuse = rng_below(&m->rng, 20) == 0,
                               .may_wait = rng_below(&m->rng, 2) == 0};
    const uint32_t lcp = r.no_reuse ? 0 : naive_lcp(m, p, p->n);
    const uint32_t start = r.no_reuse ? 0 : naive_restore(m, p, p->n);
    struct plan plan;
    assert_int_equal(plan_make(m->c, &r, m->now, &plan, NULL), RC_OK);
    if (plan.wait_ticket) {
        assert_true(r.may_wait && !plan.ticket && plan.wait_pos < p->n);
        uint32_t k = 0;
        while (!m->run[k].on || m->run[k].plan.ticket != plan.wait_ticket)
            assert_true(++k < MAX_RUNNING);
        assert_true(common(p, p->n, m->run[k].path, m->run[k].n_prompt) >= plan.wait_pos);
        assert_true(plan.wait_pos > m->run[k].at);
        plan_add_cut(&m->run[k].plan, plan.wait_pos, CUT_BRANCH);
        return;
    }
    if (m->c->o.disk_bytes) /* what is not worth reading is passed over */
        assert_true(plan.start <= start && (!plan.start || kept_of(m, plan.restore)));
    else
        assert_int_equal(plan.start, start);
    if (plan.fetch) {
        struct kept *k = kept_of(m, plan.restore);
        assert_true(k && k->disk && !k->writing && k->pos == plan.start && k->ram == k->fetching);
        k->ram = k->fetching = true;
    }
    assert_int_equal(plan.lcp, lcp);
    assert_true(plan.start < p->n);
    if (!r.no_reuse)
        assert_int_equal(plan.lcp - plan.start, plan.lost_placement + plan.lost_rejected +
                                                    plan.lost_evicted + plan.lost_minimum +
                                                    plan.lost_last);
    for (uint32_t i = 0; i < plan.n_cuts; i++)
        assert_true(plan.cuts[i].pos > (i ? plan.cuts[i - 1].pos : plan.start) &&
                    plan.cuts[i].pos <= p->n);
    *x = (struct running){.on = true, .plan = plan, .path = p, .n_prompt = p->n, .at = plan.start};
}

static void offer(struct model *m, struct running *x, uint32_t pos, enum cut_kind kind)
{
    const snap_id id = cache_offer(m->c, &x->plan, x->path->t, pos, kind, m->now);
    walked(m, x->path, pos);
    x->at = pos;
    if (!id) {
        assert_int_not_equal(cache_last_reject(m->c), REJECT_NONE);
        return;
    }
    if (rng_below(&m->rng, 10) == 0) {
        cache_abandon(m->c, id);
        return;
    }
    cache_commit(m->c, id);
    struct cache_entry e;
    assert_true(cache_entry_get(m->c, id, &e));
    assert_int_equal(e.pos, pos);
    assert_true(m->n_kept < MAX_KEPT);
    m->kept[m->n_kept++] = (struct kept){.id = id, .path = x->path, .pos = pos, .ram = true};
}

/* What is being read arrives, or cannot be read: then the plans of it end. */
static void arrive(struct model *m, struct kept *k)
{
    const snap_id id = k->id;
    const bool ok = rng_below(&m->rng, 6) != 0;
    k->fetching = false;
    cache_fetched(m->c, id, ok, m->now);
    for (uint32_t i = 0; !ok && i < MAX_RUNNING; i++)
        if (m->run[i].on && m->run[i].plan.restore == id) {
            plan_done(m->c, &m->run[i].plan, m->run[i].path->t, 0, m->now);
            m->run[i].on = false;
        }
    assert_true(ok || !kept_of(m, id));
}

/* The next cut, or the end; sometimes cancelled on the way. */
static void go_on(struct model *m, struct running *x)
{
    struct kept *from = x->plan.fetch ? kept_of(m, x->plan.restore) : NULL;
    if (from && from->fetching) {
        arrive(m, from);
        return;
    }
    x->plan.fetch = false;
    uint32_t next = 0;
    for (uint32_t i = x->plan.n_cuts; i-- > 0;)
        if (x->plan.cuts[i].pos > x->at)
            next = i + 1;
    const bool cancel = rng_below(&m->rng, 30) == 0;
    if (next && !cancel) {
        offer(m, x, x->plan.cuts[next - 1].pos, x->plan.cuts[next - 1].kind);
        return;
    }
    uint32_t n = x->n_prompt;
    if (cancel) {
        n = x->at + rng_below(&m->rng, n - x->at + 1);
    } else {
        const uint32_t gen = rng_below(&m->rng, 60);
        for (uint32_t i = 0; i < gen && x->path->n < MAX_LEN; i++)
            x->path->t[x->path->n++] = (token)rng_below(&m->rng, 50);
        n = x->path->n;
        if (gen)
            offer(m, x, n, CUT_GEN_END);
    }
    plan_done(m->c, &x->plan, x->path->t, n, m->now);
    if (n)
        walked(m, x->path, n);
    x->on = false;
}

static void check_against_model(struct model *m)
{
    struct cache *c = m->c;
    cache_check(c);
    struct view v = view_of(c, TIER_RAM, 0);
    struct cache_stats st;
    cache_stats(c, &st);
    assert_int_equal(naive_bytes(m, &v), st.bytes);
    assert_true(st.bytes <= st.budget || st.n_pinned == st.n_snaps);
    uint32_t n_live = 0;
    for (uint32_t i = 0; i < v.n; i++) {
        const struct entry *e = entry_at(c, v.id[i]);
        if (e->state != ENTRY_LIVE)
            continue;
        n_live++;
        const struct kept *k = kept_of(m, v.id[i]);
        assert_true(k && k->ram && k->pos == v.path[i].n && k->fetching == e->fetching);
        assert_memory_equal(k->path->t, v.path[i].t, v.path[i].n * sizeof(token));
        uint32_t shared, best = 0;
        const snap_id donor = cache_donor(c, v.id[i], &shared);
        for (uint32_t o = 0; o < v.n; o++)
            if (o != i && entry_at(c, v.id[o])->state == ENTRY_LIVE &&
                !entry_at(c, v.id[o])->fetching)
                best = MAX(best, common(&v.path[i], v.path[i].n, &v.path[o], v.path[o].n));
        assert_int_equal(shared, best);
        assert_true((donor != 0) == (best != 0));
    }
    view_release(&v);
    uint32_t in_ram = 0, on_disk = 0;
    for (uint32_t k = 0; k < m->n_kept; k++) {
        assert_true(m->kept[k].ram || m->kept[k].disk);
        in_ram += m->kept[k].ram;
        on_disk += m->kept[k].disk;
    }
    assert_int_equal(n_live, in_ram);
    assert_int_equal(on_disk, c->ranks[TIER_DISK].n);
    v = view_of(c, TIER_DISK, 0);
    assert_int_equal(naive_bytes(m, &v), v.n ? st.disk_bytes : 0);
    for (uint32_t i = 0; i < v.n; i++) {
        const struct kept *k = kept_of(m, v.id[i]);
        assert_true(k && k->disk && k->pos == v.path[i].n);
        token back[MAX_LEN];
        assert_true(cache_path(c, v.id[i], back));
        assert_memory_equal(k->path->t, back, v.path[i].n * sizeof(token));
    }
    view_release(&v);
}

static void step(struct model *m)
{
    struct running *x = &m->run[rng_below(&m->rng, MAX_RUNNING)];
    m->now += 1000;
    switch (rng_below(&m->rng, 40)) {
    case 0:
        m->shrinking = true;
        cache_shrink(m->c, rng_below(&m->rng, 2000), m->now);
        m->shrinking = false;
        break;
    case 1: {
        const bool was = m->by_budget;
        m->by_budget = false;
        if (m->n_kept)
            cache_drop(m->c, m->kept[rng_below(&m->rng, m->n_kept)].id);
        m->by_budget = was;
        break;
    }
    case 2:
        if (m->n_kept)
            cache_pin(m->c, m->kept[rng_below(&m->rng, m->n_kept)].id, true);
        break;
    case 5:
        for (uint32_t k = 0; k < m->n_kept; k++)
            if (m->kept[k].writing) {
                const bool ok = rng_below(&m->rng, 4) != 0;
                m->kept[k].writing = false;
                m->kept[k].disk = ok;
                cache_spilled(m->c, m->kept[k].id, ok, m->now);
                break;
            }
        break;
    case 6:
        if (m->c->o.disk_bytes)
            cache_spill_next(m->c, m->now);
        break;
    case 7:
        cache_measured(m->c, rng_below(&m->rng, 3), 1000, 1 + rng_below(&m->rng, 1000000));
        break;
    case 3:
    case 4:
        for (uint32_t i = 0; i < m->n_kept; i++)
            cache_pin(m->c, m->kept[i].id, false);
        break;
    default:
        if (x->on)
            go_on(m, x);
        else
            begin(m, x);
    }
}

static const struct cache_opts tight = {
    .ram_bytes = 30000, .snap_bytes = 900, .token_bytes = 7, .page_tokens = 1};

static void every_step_agrees_with_a_naive_model(void **state)
{
    (void)state;
    const uint64_t seed = seed_from_env();
    static struct model m;
    for (int round = 0; round < 4; round++) {
        struct cache_opts o = tight;
        o.page_tokens = round & 1 ? 16 : 1;
        o.step = round & 2 ? 48 : 0;
        model_init(&m, &o, seed + (uint64_t)round);
        m.by_budget = true;
        for (int i = 0; i < 1500; i++) {
            step(&m);
            check_against_model(&m);
        }
        struct cache_stats st;
        cache_stats(m.c, &st);
        assert_true(st.evictions > 50 && st.commits > 100 && st.reused_tokens > 5000);
        model_release(&m);
    }
}

static void two_tiers_keep_their_books_whatever_the_disk_does(void **state)
{
    (void)state;
    const uint64_t seed = seed_from_env();
    static struct model m;
    uint64_t crowded = 0;
    for (int round = 0; round < 6; round++) {
        struct cache_opts o = tight;
        o.page_tokens = round & 1 ? 16 : 1;
        o.policy = round & 4 ? "lru" : "hold";
        o.ram_bytes = 15000;
        o.disk_bytes = round & 2 ? 20000 : 4000000;
        o.rates[CACHE_RATE_PREFILL] = 1;
        o.rates[CACHE_RATE_READ] = 100;
        model_init(&m, &o, seed + (uint64_t)round);
        for (int i = 0; i < 1500; i++) {
            step(&m);
            check_against_model(&m);
        }
        struct cache_stats st;
        cache_stats(m.c, &st);
        assert_true(st.spills > 20 && st.fetches > 5);
        assert_true(!st.disk_evictions || o.disk_bytes == 20000);
        crowded += st.disk_evictions;
        for (uint32_t k = 0; k < m.n_kept; k++)
            m.kept[k].writing = m.kept[k].fetching = false;
        model_release(&m);
    }
    assert_true(crowded > 20);
}

static void other_policies_keep_the_same_books(void **state)
{
    (void)state;
    const uint64_t seed = seed_from_env();
    static const char *const names[] = {"lru", "none"};
    static struct model m;
    for (size_t k = 0; k < COUNT_OF(names); k++) {
        struct cache_opts o = tight;
        o.policy = names[k];
        o.page_tokens = 16;
        model_init(&m, &o, seed);
        for (int i = 0; i < 1500; i++) {
            step(&m);
            check_against_model(&m);
        }
        struct cache_stats st;
        cache_stats(m.c, &st);
        assert_true((st.commits > 0) == (k == 0));
        model_release(&m);
    }
}

static void a_small_tree_forgets_paths_but_never_what_is_kept(void **state)
{
    (void)state;
    static struct model m;
    struct cache_opts o = tight;
    o.tree_bytes = 1; /* nothing but what live entries stand on, after each request */
    model_init(&m, &o, seed_from_env());
    for (int i = 0; i < 800 && m.n_paths < MAX_PATHS; i++) {
        /* lcp and losses differ from the model's, which forgets nothing */
        struct path *p = random_prompt(&m);
        const struct plan_req r = {.prompt = p->t, .n = p->n};
        const uint32_t start = naive_restore(&m, p, p->n);
        struct running x = {.path = p, .n_prompt = p->n};
        assert_int_equal(plan_make(m.c, &r, 0, &x.plan, NULL), RC_OK);
        assert_int_equal(x.plan.start, start);
        m.n_walked = 0;
        for (uint32_t k = 0; k < x.plan.n_cuts; k++)
            offer(&m, &x, x.plan.cuts[k].pos, x.plan.cuts[k].kind);
        plan_done(m.c, &x.plan, p->t, p->n, 0);
        check_against_model(&m);
    }
    assert_true(m.drops > 20);
    model_release(&m);
}

/* -- what it is for -------------------------------------------------------------------------- */

static void drop_nothing(void *ctx, snap_id id)
{
    (void)ctx, (void)id;
}

static uint32_t serve(struct cache *c, const token *t, uint32_t n, uint32_t gen, struct plan *p)
{
    const struct plan_req r = {.prompt = t, .n = n};
    assert_int_equal(plan_make(c, &r, 0, p, NULL), RC_OK);
    for (uint32_t i = 0; i < p->n_cuts; i++) {
        const snap_id id = cache_offer(c, p, t, p->cuts[i].pos, p->cuts[i].kind, 0);
        if (id)
            cache_commit(c, id);
    }
    if (gen) {
        const snap_id id = cache_offer(c, p, t, n + gen, CUT_GEN_END, 0);
        if (id)
            cache_commit(c, id);
    }
    plan_done(c, p, t, n + gen, 0);
    cache_check(c);
    return p->start;
}

static void fill(token *t, uint32_t from, uint32_t to, uint64_t seed)
{
    struct rng g = {seed};
    for (uint32_t i = from; i < to; i++)
        t[i] = (token)(rng_u64(&g) >> 40);
}

static struct cache *cache_of(uint64_t ram_bytes, uint32_t step)
{
    const struct cache_opts o = {.ram_bytes = ram_bytes,
                                 .snap_bytes = 19 * MIB,
                                 .token_bytes = 12288,
                                 .page_tokens = 64,
                                 .step = step,
                                 .ops = {.drop = drop_nothing}};
    struct cache *c;
    assert_int_equal(cache_new(&o, &c, NULL), RC_OK);
    return c;
}

static struct cache *roomy(uint32_t step)
{
    return cache_of(4 * GIB, step);
}

static void a_divergence_costs_the_grid_step_once_and_nothing_the_second_time(void **state)
{
    (void)state;
    enum { STEP = 256, GEN = 24, LEAVES = 2531 };
    static token a[4560 + GEN], b[99 + GEN], c1[4947 + GEN], c2[4947 + GEN];
    fill(a, 0, COUNT_OF(a), 1);
    fill(b, 0, COUNT_OF(b), 2);
    memcpy(c1, a, LEAVES * sizeof *a);
    fill(c1, LEAVES, COUNT_OF(c1), 3);
    memcpy(c2, a, LEAVES * sizeof *a);
    fill(c2, LEAVES, COUNT_OF(c2), 4);
    struct cache *c = roomy(STEP);
    struct plan p;
    assert_int_equal(serve(c, a, 4560, GEN, &p), 0);
    assert_int_equal(serve(c, b, 99, GEN, &p), 0);
    assert_true(serve(c, c1, 4947, GEN, &p) >= LEAVES - STEP);
    assert_int_equal(p.lcp, LEAVES);
    assert_int_equal(serve(c, c2, 4947, GEN, &p), LEAVES);
    assert_int_equal(p.restore_kind, CUT_BRANCH);
    cache_free(c);
}

static void an_interloper_costs_nothing(void **state)
{
    (void)state;
    static const uint32_t overlaps[] = {0, 1, 3, 32, 500}, times[] = {0, 1, 7, 50, 200};
    enum { N = 3000, GEN = 50 };
    static token a[N + GEN], b[900 + GEN], c2[N + GEN];
    fill(a, 0, N + GEN, 1);
    for (size_t o = 0; o < COUNT_OF(overlaps); o++) {
        uint32_t alone = 0;
        for (size_t k = 0; k < COUNT_OF(times); k++) {
            struct cache *c = cache_of(32 * GIB, 0);
            struct plan p;
            serve(c, a, N, GEN, &p);
            for (uint32_t i = 0; i < times[k]; i++) {
                memcpy(b, a, overlaps[o] * sizeof *a);
                fill(b, overlaps[o], COUNT_OF(b), 100 + i);
                serve(c, b, 300 + overlaps[o], GEN, &p);
            }
            /* the conversation goes on: its prompt and its answer, then something new */
            memcpy(c2, a, (N + GEN) * sizeof *a);
            memcpy(c2 + 2900, b + 500, 100 * sizeof *a);
            const uint32_t got = serve(c, c2, N, 0, &p);
            if (!k)
                alone = got;
            assert_true(got >= alone && got > 2000);
            struct cache_stats st;
            cache_stats(c, &st);
            assert_int_equal(st.evictions, 0);
            cache_free(c);
        }
    }
}

static void a_conversation_that_appends_resumes_at_its_last_token(void **state)
{
    (void)state;
    static token t[20000];
    fill(t, 0, COUNT_OF(t), 5);
    struct cache *c = roomy(0);
    struct plan p;
    uint32_t end = 0;
    for (uint32_t n = 700; n < 19000; n += 1000) {
        assert_int_equal(serve(c, t, n, 100, &p), end);
        end = n + 100;
    }
    cache_free(c);
}

static void a_block_rendered_anew_is_foreseen_the_third_time(void **state)
{
    (void)state;
    /* [ header | 40 constant tokens | block, new each turn | tail, new each turn ], in ever new histories */
    enum { BEFORE = 4000, AFTER = 2000 };
    static token t[BEFORE + 40 + AFTER];
    struct cache *c = roomy(0);
    for (uint32_t chat = 0; chat < 4; chat++)
        for (uint32_t turn = 0; turn < 3; turn++) {
            fill(t, 0, BEFORE, 10 + chat);
            fill(t, BEFORE, BEFORE + 40, 999);
            fill(t, BEFORE + 40, COUNT_OF(t), 1000 + chat * 10 + turn);
            struct plan p;
            const uint32_t got = serve(c, t, COUNT_OF(t), 0, &p);
            /* the first chat has to part once before it is known; later ones are cut at first sight */
            if (turn == 2 || (chat && turn))
                assert_int_equal(got, BEFORE + 40);
            if (chat && turn == 1)
                assert_int_equal(p.restore_kind, CUT_SIGNATURE);
        }
    cache_free(c);
}

static void at_least_one_token_is_evaluated(void **state)
{
    (void)state;
    static token t[500];
    fill(t, 0, COUNT_OF(t), 6);
    struct cache *c = roomy(0);
    struct plan p;
    assert_int_equal(serve(c, t, 400, 0, &p), 0);
    /* the same again: all but the last token */
    assert_int_equal(serve(c, t, 400, 0, &p), 399);
    assert_int_equal(p.lcp, 400);
    assert_int_equal(p.lost_last, 1);
    /* one token more, and the snapshot at exactly the common prefix serves */
    assert_int_equal(serve(c, t, 401, 0, &p), 400);
    cache_free(c);
}

static void the_second_with_the_same_new_prefix_waits_for_the_first(void **state)
{
    (void)state;
    enum { SAME = 1500, N = 2000 };
    static token a[N], b[N];
    fill(a, 0, N, 1);
    memcpy(b, a, SAME * sizeof *a);
    fill(b, SAME, N, 2);
    struct cache *c = roomy(0);
    struct plan pa, pb;
    const struct plan_req ra = {.prompt = a, .n = N};
    struct plan_req rb = {.prompt = b, .n = N, .may_wait = true};
    assert_int_equal(plan_make(c, &ra, 0, &pa, NULL), RC_OK);
    cache_progress(c, &pa, 700);
    assert_int_equal(plan_make(c, &rb, 0, &pb, NULL), RC_OK);
    assert_int_equal(pb.wait_ticket, pa.ticket);
    assert_int_equal(pb.wait_pos, SAME);
    assert_int_equal(pb.ticket, 0);
    assert_true(plan_add_cut(&pa, SAME, CUT_BRANCH));
    assert_false(plan_add_cut(&pa, SAME, CUT_BRANCH));
    for (uint32_t i = 0; i < pa.n_cuts; i++) {
        const snap_id id = cache_offer(c, &pa, a, pa.cuts[i].pos, pa.cuts[i].kind, 0);
        if (id)
            cache_commit(c, id);
        if (pa.cuts[i].pos == SAME)
            assert_true(id != 0);
    }
    /* now there is nothing to wait for */
    assert_int_equal(plan_make(c, &rb, 0, &pb, NULL), RC_OK);
    assert_int_equal(pb.wait_ticket, 0);
    assert_int_equal(pb.start, SAME);
    struct cache_stats st;
    cache_stats(c, &st);
    assert_int_equal(st.requests, 2);
    plan_done(c, &pb, b, N, 0);
    plan_done(c, &pa, a, N, 0);
    cache_check(c);
    /* a prefix too short, or one that is behind, is not worth waiting for */
    fill(a, 0, N, 3);
    memcpy(b, a, 100 * sizeof *a);
    assert_int_equal(plan_make(c, &ra, 0, &pa, NULL), RC_OK);
    assert_int_equal(plan_make(c, &rb, 0, &pb, NULL), RC_OK);
    assert_int_equal(pb.wait_ticket, 0);
    plan_done(c, &pb, b, N, 0);
    memcpy(b, a, SAME * sizeof *a);
    cache_progress(c, &pa, SAME);
    assert_int_equal(plan_make(c, &rb, 0, &pb, NULL), RC_OK);
    assert_int_equal(pb.wait_ticket, 0);
    plan_done(c, &pb, b, N, 0);
    plan_done(c, &pa, a, N, 0);
    cache_free(c);
}

static void the_same_prompt_is_known_as_such_before_the_first_has_ended(void **state)
{
    (void)state;
    enum { N = 2000 };
    static token a[N + 1];
    fill(a, 0, N + 1, 1);
    struct cache *c = roomy(0);
    struct plan first, second, longer;
    const struct plan_req r = {.prompt = a, .n = N}, more = {.prompt = a, .n = N + 1};
    assert_int_equal(plan_make(c, &r, 0, &first, NULL), RC_OK);
    assert_int_equal(first.asked, 0);
    const snap_id id = cache_offer(c, &first, a, N - 1, CUT_BRANCH, 0);
    assert_int_not_equal(id, 0);
    cache_commit(c, id);
    assert_int_equal(plan_make(c, &r, 0, &second, NULL), RC_OK);
    assert_int_equal(second.lcp, N - 1);
    assert_int_equal(second.asked, N);
    assert_int_equal(plan_make(c, &more, 0, &longer, NULL), RC_OK);
    assert_int_equal(longer.asked, N);
    plan_done(c, &longer, a, N + 1, 0);
    plan_done(c, &second, a, N, 0);
    plan_done(c, &first, a, N, 0);
    cache_check(c);
    cache_free(c);
}

static void what_a_running_request_has_not_computed_is_not_counted_as_lost(void **state)
{
    (void)state;
    enum { N = 2000 };
    static token a[N];
    fill(a, 0, N, 1);
    struct cache *c = roomy(0);
    struct plan pa, pb;
    const struct plan_req r = {.prompt = a, .n = N};
    assert_int_equal(plan_make(c, &r, 0, &pa, NULL), RC_OK);
    assert_int_equal(plan_make(c, &r, 0, &pb, NULL), RC_OK);
    assert_int_equal(pb.lcp, 0);
    plan_done(c, &pb, a, 800, 0); /* cancelled there */
    assert_int_equal(plan_make(c, &r, 0, &pb, NULL), RC_OK);
    assert_int_equal(pb.lcp, 800);
    plan_done(c, &pb, a, 0, 0);
    plan_done(c, &pa, a, N, 0);
    cache_check(c);
    cache_free(c);
}

static void memory_that_runs_out_at_any_moment_costs_reuse_only(void **state)
{
    (void)state;
    const uint64_t seed = seed_from_env();
    for (uint64_t k = 1; k < 4000; k = k * 5 / 4 + 1) {
        static struct path p[40];
        struct rng g = {seed};
        struct cache *c = NULL;
        mem_fail_after(k);
        struct cache_opts o = tight;
        if (cache_new(&o, &c, NULL)) {
            mem_fail_after(0);
            continue;
        }
        for (uint32_t i = 0; i < COUNT_OF(p); i++) {
            p[i].n = 0;
            if (i && rng_below(&g, 3))
                p[i] = p[i - 1 - rng_below(&g, MIN(i, 3))];
            p[i].n = MIN(p[i].n, MAX_LEN - 200);
            fill(p[i].t, p[i].n, p[i].n + 150, i);
            p[i].n += 150;
            const struct plan_req r = {.prompt = p[i].t, .n = p[i].n - 20};
            struct plan plan;
            struct err err;
            const enum rc rc = plan_make(c, &r, 0, &plan, &err);
            assert_true(rc == RC_OK || rc == RC_NOMEM);
            if (rc)
                continue;
            assert_true(plan.start < r.n);
            for (uint32_t q = 0; q < plan.n_cuts; q++) {
                const snap_id id =
                    cache_offer(c, &plan, p[i].t, plan.cuts[q].pos, plan.cuts[q].kind, 0);
                if (id)
                    cache_commit(c, id);
            }
            const snap_id id = cache_offer(c, &plan, p[i].t, p[i].n, CUT_GEN_END, 0);
            if (id)
                cache_commit(c, id);
            plan_done(c, &plan, p[i].t, p[i].n, 0);
        }
        mem_fail_after(0);
        cache_check(c);
        cache_free(c);
    }
}

static void absurd_requests_are_refused_with_a_reason(void **state)
{
    (void)state;
    struct cache *c = roomy(0);
    struct plan p;
    struct err err = {0};
    const token t[3] = {1, 2, 3};
    struct plan_req r = {.prompt = t, .n = 0};
    assert_int_equal(plan_make(c, &r, 0, &p, &err), RC_ARG);
    const struct cache_hint beyond[] = {{0, 's'}, {4, 'u'}}, backwards[] = {{2, 's'}, {1, 'u'}};
    r = (struct plan_req){.prompt = t, .n = 3, .hints = beyond, .n_hints = 2};
    assert_int_equal(plan_make(c, &r, 0, &p, &err), RC_ARG);
    assert_non_null(strstr(err.msg, "boundary 1"));
    r.hints = backwards;
    assert_int_equal(plan_make(c, &r, 0, &p, &err), RC_ARG);
    cache_free(c);
    struct cache_opts o = tight;
    o.policy = "lfu";
    assert_int_equal(cache_new(&o, &c, &err), RC_ARG);
    assert_non_null(strstr(err.msg, "lfu"));
    o = tight;
    o.token_bytes = UINT64_MAX / 2;
    o.page_tokens = 64;
    assert_int_equal(cache_new(&o, &c, &err), RC_ARG);
}

static void a_pinned_entry_outlives_any_pressure(void **state)
{
    (void)state;
    static token t[700];
    struct cache_opts o = tight;
    o.ops.drop = drop_nothing;
    struct cache *c;
    assert_int_equal(cache_new(&o, &c, NULL), RC_OK);
    fill(t, 0, 300, 1);
    struct plan p;
    serve(c, t, 200, 50, &p);
    struct cache_entry e = {0}, deepest = {0};
    for (uint32_t i = 0; cache_entry_at(c, i, &e); i++)
        if (e.pos > deepest.pos)
            deepest = e;
    assert_true(cache_pin(c, deepest.id, true));
    for (uint32_t i = 0; i < 200; i++) {
        fill(t, 0, 700, 100 + i);
        serve(c, t, 500 + i % 100, 40, &p);
    }
    assert_true(cache_entry_get(c, deepest.id, &e));
    assert_false(cache_drop(c, 0));
    assert_true(cache_drop(c, deepest.id));
    assert_false(cache_entry_get(c, deepest.id, &e));
    cache_check(c);
    cache_free(c);
}

static void a_budget_smaller_than_a_snapshot_keeps_nothing(void **state)
{
    (void)state;
    struct cache_opts o = tight;
    o.ram_bytes = 500;
    struct cache *c;
    assert_int_equal(cache_new(&o, &c, NULL), RC_OK);
    static token t[400];
    fill(t, 0, 400, 1);
    struct plan p;
    for (int i = 0; i < 3; i++)
        assert_int_equal(serve(c, t, 300, 30, &p), 0);
    assert_int_equal(p.lost_rejected + p.lost_placement + p.lost_minimum + p.lost_last, p.lcp);
    cache_free(c);
}

static uint32_t lost(const struct plan *p)
{
    return p->lost_placement + p->lost_rejected + p->lost_evicted + p->lost_minimum + p->lost_last;
}

/* A prompt, and one that goes on past it and its reply after the state at its end has gone. */
static void a_state_that_has_gone_is_not_called_too_small_by_the_reply_behind_it(void **state)
{
    (void)state;
    static const uint32_t replies[] = {1, 8, 24};
    enum { N = 2000 };
    static token t[N + 200];
    for (size_t i = 0; i < COUNT_OF(replies) * 3; i++) {
        const uint32_t gen = replies[i / 3];
        struct cache *c = roomy(0);
        struct plan p;
        struct cache_entry e;
        fill(t, 0, COUNT_OF(t), i);
        serve(c, t, N, gen, &p);
        snap_id end = cache_find(c, t, N - 1);
        assert_true(end && cache_drop(c, end));
        if (i % 3)
            while (cache_entry_at(c, 0, &e))
                assert_true(cache_drop(c, e.id));
        if (i % 3 == 2) { /* nor is it remembered that there was one */
            while (c->n_ghosts && entry_at(c, c->ghost_newest)->why == GHOST_EVICTED)
                entry_forget(c, c->ghost_newest);
        }
        serve(c, t, N + 200, 0, &p);
        assert_int_equal(p.lcp, N + gen);
        assert_int_equal(lost(&p), p.lcp - p.start);
        assert_true(p.lost_minimum <= gen + 1);
        assert_int_equal(p.lost_minimum + p.lost_evicted, p.lcp - p.start);
        if (i % 3)
            assert_int_equal(p.start, 0);
        if (i % 3 < 2)
            assert_int_equal(p.lost_evicted, N - 1 - p.start);
        cache_free(c);
    }
}

/* Of a prompt and its reply: the states at the ends of both are gone, one by one. */
static void a_rejection_answers_for_the_tokens_it_was_about_and_no_more(void **state)
{
    (void)state;
    enum { N = 2000, GEN = 40 };
    static const struct {
        bool prompt_rejected, prompt_forgotten;
    } cases[] = {{false, false}, {true, false}, {false, true}};
    static token t[N + 200];
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct cache *c = roomy(0);
        struct plan p;
        fill(t, 0, COUNT_OF(t), i);
        serve(c, t, N, GEN, &p);
        const snap_id end = cache_find(c, t, N + GEN), prompt = cache_find(c, t, N - 1);
        assert_true(cache_drop(c, end) && cache_drop(c, prompt));
        entry_at(c, end)->why = GHOST_DEAR;
        if (cases[i].prompt_rejected)
            entry_at(c, prompt)->why = GHOST_DEAR;
        if (cases[i].prompt_forgotten)
            entry_forget(c, prompt);
        serve(c, t, N + 200, 0, &p);
        assert_int_equal(p.lcp, N + GEN);
        assert_true(p.start < N - 1);
        assert_int_equal(lost(&p), p.lcp - p.start);
        assert_int_equal(p.lost_rejected, cases[i].prompt_rejected ? N + GEN - p.start : GEN + 1);
        assert_int_equal(p.lost_evicted, cases[i].prompt_rejected ? 0 : N - 1 - p.start);
        cache_free(c);
    }
}

static enum spill_result spill_at_once(void *ctx, const struct cache_spill *s)
{
    (void)ctx;
    (void)s;
    return SPILL_DONE;
}

/* gen: tokens of the reply; at: the state that is read back */
static void unreadable(uint64_t ram_bytes, uint32_t gen, uint32_t at)
{
    enum { N = 2000 };
    static token t[N + 400];
    const struct cache_opts o = {.ram_bytes = ram_bytes,
                                 .disk_bytes = 4 * GIB,
                                 .snap_bytes = 19 * MIB,
                                 .token_bytes = 12288,
                                 .page_tokens = 64,
                                 .rates = {100, 1e9, 1e9},
                                 .ops = {.drop = drop_nothing,
                                         .spill = spill_at_once,
                                         .drop_ram = drop_nothing,
                                         .drop_disk = drop_nothing}};
    struct cache *c;
    struct plan p, waiting;
    assert_int_equal(cache_new(&o, &c, NULL), RC_OK);
    fill(t, 0, COUNT_OF(t), 3);
    serve(c, t, N, gen, &p);
    cache_shrink(c, UINT64_MAX, 0);
    const struct plan_req on = {.prompt = t, .n = N + 400}, same = {.prompt = t, .n = N + gen + 1};
    assert_int_equal(plan_make(c, &on, 0, &p, NULL), RC_OK);
    assert_true(p.fetch);
    assert_int_equal(p.start, at);
    assert_int_equal(plan_make(c, &same, 0, &waiting, NULL), RC_OK);
    assert_int_equal(waiting.restore, p.restore);
    cache_fetched(c, p.restore, false, 0);
    /* made again while the other one still holds it, and when it has gone */
    for (int i = 0; i < 2; i++) {
        plan_done(c, i ? &waiting : &p, t, 0, 0);
        assert_int_equal(plan_make(c, &on, 0, &p, NULL), RC_OK);
        assert_int_equal(p.lcp, N + gen);
        assert_true(p.start < at);
        assert_true(p.unreadable);
        assert_int_equal(p.lost_evicted, at - p.start);
        assert_int_equal(lost(&p), p.lcp - p.start);
        cache_check(c);
        if (p.fetch)
            cache_fetched(c, p.restore, true, 0);
        plan_done(c, &p, t, 0, 0);
    }
    cache_free(c);
}

static void a_file_that_cannot_be_read_is_no_rejection(void **state)
{
    (void)state;
    static const uint64_t budgets[] = {4 * GIB, 100 * MIB};
    for (size_t i = 0; i < COUNT_OF(budgets); i++) {
        unreadable(budgets[i], 40, 2040);
        unreadable(budgets[i], 8, 1999); /* the reply is too short for a state of its own */
    }
}

static void the_tree_counts_against_the_budget_when_asked_to(void **state)
{
    (void)state;
    struct cache_opts o = {.ram_bytes = 8 * MIB,
                           .snap_bytes = 64 * KIB,
                           .token_bytes = 64,
                           .charge_tree = true,
                           .ops = {.drop = drop_nothing}};
    struct cache *c;
    assert_int_equal(cache_new(&o, &c, NULL), RC_OK);
    static token t[20000];
    struct cache_stats st;
    for (uint32_t i = 0; i < 100; i++) {
        fill(t, 0, 20000, i);
        struct plan p;
        serve(c, t, 19000, 1000, &p);
        cache_stats(c, &st);
        assert_true(st.bytes <= st.budget);
        assert_true(st.bytes >= st.tree_bytes);
    }
    assert_true(st.tree_bytes < st.budget / 4);
    assert_true(st.n_snaps > 0);
    cache_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_step_agrees_with_a_naive_model),
        cmocka_unit_test(two_tiers_keep_their_books_whatever_the_disk_does),
        cmocka_unit_test(other_policies_keep_the_same_books),
        cmocka_unit_test(a_small_tree_forgets_paths_but_never_what_is_kept),
        cmocka_unit_test(a_divergence_costs_the_grid_step_once_and_nothing_the_second_time),
        cmocka_unit_test(an_interloper_costs_nothing),
        cmocka_unit_test(a_conversation_that_appends_resumes_at_its_last_token),
        cmocka_unit_test(a_block_rendered_anew_is_foreseen_the_third_time),
        cmocka_unit_test(at_least_one_token_is_evaluated),
        cmocka_unit_test(the_second_with_the_same_new_prefix_waits_for_the_first),
        cmocka_unit_test(the_same_prompt_is_known_as_such_before_the_first_has_ended),
        cmocka_unit_test(what_a_running_request_has_not_computed_is_not_counted_as_lost),
        cmocka_unit_test(memory_that_runs_out_at_any_moment_costs_reuse_only),
        cmocka_unit_test(absurd_requests_are_refused_with_a_reason),
        cmocka_unit_test(a_pinned_entry_outlives_any_pressure),
        cmocka_unit_test(a_budget_smaller_than_a_snapshot_keeps_nothing),
        cmocka_unit_test(a_state_that_has_gone_is_not_called_too_small_by_the_reply_behind_it),
        cmocka_unit_test(a_rejection_answers_for_the_tokens_it_was_about_and_no_more),
        cmocka_unit_test(a_file_that_cannot_be_read_is_no_rejection),
        cmocka_unit_test(the_tree_counts_against_the_budget_when_asked_to),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
