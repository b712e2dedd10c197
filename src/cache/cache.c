/* cache.c - the facade: budgets, offers, pins, statistics. */
#include "cache/cache_int.h"

#include <string.h>

#include "base/mem.h"

static const struct policy *const policies[] = {&policy_hold, &policy_none, &policy_lru};

const char *cut_kind_name(enum cut_kind k)
{
    static const char *const names[CUT_N_KINDS] = {
        [CUT_NONE] = "none",       [CUT_BRANCH] = "branch", [CUT_SIGNATURE] = "signature",
        [CUT_GEN_END] = "gen-end", [CUT_PROMPT] = "prompt", [CUT_SYSTEM] = "system",
        [CUT_MESSAGE] = "message", [CUT_LADDER] = "ladder", [CUT_GRID] = "grid",
        [CUT_PINNED] = "pinned",
    };
    return (uint32_t)k < CUT_N_KINDS ? names[k] : "?";
}

const char *reject_name(enum reject r)
{
    static const char *const names[] = {
        [REJECT_NONE] = "none", [REJECT_HELD] = "held",     [REJECT_SMALL] = "small",
        [REJECT_DEAR] = "dear", [REJECT_BUDGET] = "budget", [REJECT_MEMORY] = "memory",
    };
    return (uint32_t)r < COUNT_OF(names) ? names[r] : "?";
}

static const struct policy *policy_by_name(const char *name, struct err *err)
{
    if (!name)
        return policies[0];
    for (size_t i = 0; i < COUNT_OF(policies); i++)
        if (!strcmp(policies[i]->name, name))
            return policies[i];
    err_set(err, RC_ARG, "cache policy %s is not known; there are hold, none, lru", name);
    return NULL;
}

enum rc cache_new(const struct cache_opts *o, struct cache **out, struct err *err)
{
    const struct policy *policy = policy_by_name(o->policy, err);
    if (!policy)
        return RC_ARG;
    struct cache *c = mem_zalloc(sizeof *c);
    c->o = *o;
    c->policy = policy;
    c->gen_tokens = 256;
    c->o.page_tokens = MAX(o->page_tokens, 1);
    if (!mul_u64(o->token_bytes, c->o.page_tokens, &c->page_bytes)) {
        mem_free(c);
        return err_set(err, RC_ARG,
                       "a page of %" PRIu32 " tokens of %" PRIu64 " bytes is too large",
                       o->page_tokens, o->token_bytes);
    }
    c->tree_cap = o->tree_bytes ? o->tree_bytes : 256 * MIB;
    if (o->charge_tree) /* more of it knows more, but takes the place of state */
        c->tree_cap = MIN(c->tree_cap, MAX(o->ram_bytes / 64, MIN(o->ram_bytes / 16, 4 * MIB)));
    struct radix_hooks hooks = entry_hooks;
    hooks.ctx = c;
    enum rc rc = RC_OK;
    if (!radix_init(&c->tree, &hooks) || !entries_init(c))
        rc = err_set(err, RC_NOMEM, "cache: out of memory");
    if (!rc && policy->init)
        rc = policy->init(c, err);
    if (rc) {
        cache_free(c);
        return rc;
    }
    *out = c;
    return RC_OK;
}

void cache_free(struct cache *c)
{
    if (!c)
        return;
    for (uint32_t i = 0; i < c->ranks.n; i++)
        if (entry_at(c, c->ranks.list[i].id)->state == ENTRY_LIVE && c->o.ops.drop)
            c->o.ops.drop(c->o.ops.ctx, c->ranks.list[i].id);
    for (uint32_t i = 0; i < c->n_active; i++)
        mem_free(c->active[i].prompt);
    mem_free(c->active);
    if (c->policy->release)
        c->policy->release(c);
    entries_release(c);
    radix_path_release(&c->path);
    radix_release(&c->tree);
    mem_free(c);
}

/* -- bytes ----------------------------------------------------------------------------------- */

uint64_t cache_overhead(const struct cache *c)
{
    return radix_bytes(&c->tree) + c->entries_cap * sizeof *c->entries + ranks_bytes(&c->ranks) +
           (c->policy->bytes ? c->policy->bytes(c) : 0);
}

uint64_t cache_used(const struct cache *c)
{
    return c->ranks.n * c->o.snap_bytes + c->n_pages * c->page_bytes +
           (c->o.charge_tree ? cache_overhead(c) : 0);
}

void cache_unplan(struct cache *c, snap_id id, enum ghost_why why, uint64_t now_ns)
{
    struct entry *e = entry_at(c, id);
    CHECK(e->state == ENTRY_PLANNED);
    const uint32_t leaf = e->stand_in ? e->node : 0;
    if (leaf)
        for (uint32_t i = 0; i < c->n_active; i++)
            if (c->active[i].stand_in == id)
                c->active[i].stand_in = 0;
    entry_leave(c, id, why, now_ns);
    if (leaf)
        radix_remove_leaf(&c->tree, leaf);
}

void cache_evict(struct cache *c, snap_id id, uint64_t now_ns)
{
    if (entry_at(c, id)->state == ENTRY_PLANNED) {
        c->stats.rejected++;
        cache_unplan(c, id, GHOST_DEAR, now_ns);
        return;
    }
    entry_leave(c, id, GHOST_EVICTED, now_ns);
    c->stats.evictions++;
    if (c->o.ops.drop)
        c->o.ops.drop(c->o.ops.ctx, id);
}

void cache_settle(struct cache *c, uint64_t now_ns)
{
    while (c->n_ghosts > MAX_GHOSTS)
        entry_forget(c, c->ghost_oldest);
    if (cache_overhead(c) > c->tree_cap) {
        /* an eighth at once: a pass costs the same however little it frees */
        const uint64_t rest = cache_overhead(c) - radix_bytes(&c->tree), goal = c->tree_cap / 8 * 7;
        radix_trim(&c->tree, goal > rest ? goal - rest : 0);
    }
    while (cache_used(c) > c->o.ram_bytes) {
        const snap_id id = entry_least(c, 0);
        if (!id)
            break;
        cache_evict(c, id, now_ns);
    }
}

uint64_t cache_shrink(struct cache *c, uint64_t bytes, uint64_t now_ns)
{
    uint64_t freed = 0;
    while (freed < bytes) {
        const snap_id id = entry_least(c, 0);
        if (!id)
            break;
        if (entry_at(c, id)->state == ENTRY_LIVE) /* others hold no memory yet */
            freed += entry_bytes(c, entry_at(c, id));
        cache_evict(c, id, now_ns);
    }
    return freed;
}

/* -- offers ---------------------------------------------------------------------------------- */

/* The ghost at pos, made when there is none; 0 when memory is out. */
static snap_id ghost_here(struct cache *c, snap_id id, uint32_t pos, enum cut_kind kind,
                          uint64_t family)
{
    if (!id)
        return entry_new_ghost(c, pos, kind, family, GHOST_DEAR);
    struct entry *e = entry_at(c, id);
    if (kind < (enum cut_kind)e->kind) {
        if (c->policy->kind)
            c->policy->kind(c, id, kind);
        e->kind = (uint8_t)kind;
        if (kind == CUT_SIGNATURE)
            e->family = family;
    }
    return id;
}

enum reject cache_consider(struct cache *c, const struct active *a, uint32_t pos,
                           enum cut_kind kind, uint64_t family, bool certain, snap_id *id)
{
    *id = entry_find(c, pos);
    if (*id && entry_is_live(entry_at(c, *id)))
        return REJECT_HELD;
    *id = ghost_here(c, *id, pos, kind, family);
    if (!*id || !ranks_reserve(&c->ranks))
        return REJECT_MEMORY;
    struct entry *e = entry_at(c, *id);
    const snap_id above = entry_above(c, e->node, pos);
    const uint32_t gap = pos - (above ? entry_at(c, above)->pos : 0);
    const uint64_t cost = entry_cost(c, e->node, pos), used = cache_used(c);
    const uint64_t over = used + cost > c->o.ram_bytes ? used + cost - c->o.ram_bytes : 0;
    const bool small = gap < MIN_TOKENS && kind != CUT_BRANCH && !certain;
    e->why = small ? GHOST_SMALL : GHOST_DEAR;
    if (small)
        return REJECT_SMALL;
    if (cost > c->o.ram_bytes ||
        (over && c->n_pins && entry_pinned_bytes(c, a->restore) + cost > c->o.ram_bytes))
        return REJECT_BUDGET;
    if (!certain && !c->policy->admit(c, e, gap, entry_loss(c, MIN(over, cost), a->restore)))
        return REJECT_DEAR;
    return REJECT_NONE;
}

static bool is_promised(const struct active *a, uint32_t pos)
{
    for (uint32_t i = 0; i < a->n_promised; i++)
        if (a->promised[i] == pos)
            return true;
    return false;
}

static snap_id reserve(struct cache *c, snap_id id, uint64_t now_ns)
{
    struct entry *e = entry_at(c, id);
    e->state = ENTRY_RESERVED;
    e->made_ns = e->used_ns = now_ns;
    entry_pin(c, id, 1);
    c->last_reject = REJECT_NONE;
    return id;
}

static snap_id offer_unplanned(struct cache *c, struct active *a, uint32_t pos, enum cut_kind kind,
                               uint64_t now_ns)
{
    snap_id id;
    c->last_reject = cache_consider(c, a, pos, kind, a->family, is_promised(a, pos), &id);
    /* What goes may be the entry above, and its path's KV with it: the cost is seen anew each time. */
    while (!c->last_reject &&
           cache_used(c) + entry_cost(c, entry_at(c, id)->node, pos) > c->o.ram_bytes) {
        const snap_id least = entry_least(c, a->restore);
        if (!least) {
            c->last_reject = REJECT_BUDGET;
            break;
        }
        if (least == a->restore)
            a->restore = 0;
        cache_evict(c, least, now_ns);
    }
    if (c->last_reject)
        return 0;
    entry_enter(c, id);
    return reserve(c, id, now_ns);
}

snap_id cache_offer(struct cache *c, const struct plan *p, const token *seq, uint32_t pos,
                    enum cut_kind kind, uint64_t now_ns)
{
    struct active *a = cache_find_active(c, p->ticket);
    c->last_reject = REJECT_DEAR;
    if (!a || !pos || !c->policy->admit)
        return 0;
    a->progress = MAX(a->progress, pos);
    if (kind == CUT_GEN_END && a->stand_in)
        cache_unplan(c, a->stand_in, GHOST_DEAR, now_ns);
    c->last_reject = REJECT_MEMORY;
    if (!radix_insert(&c->tree, seq, pos, &c->path))
        return 0;
    radix_touch(&c->tree, &c->path);
    cache_mark_done(c, pos);
    const snap_id id = entry_find(c, pos);
    if (id && entry_at(c, id)->state == ENTRY_PLANNED)
        return reserve(c, id, now_ns);
    c->stats.offers++;
    const snap_id got = offer_unplanned(c, a, pos, kind, now_ns);
    c->stats.rejected += !got && c->last_reject != REJECT_HELD;
    return got;
}

void cache_commit(struct cache *c, snap_id id)
{
    struct entry *e = entry_at(c, id);
    CHECK(e->state == ENTRY_RESERVED);
    e->state = ENTRY_LIVE;
    if (e->kind == CUT_PINNED)
        e->user_pin = true;
    else
        entry_pin(c, id, -1);
    c->stats.commits++;
}

void cache_abandon(struct cache *c, snap_id id)
{
    CHECK(entry_at(c, id)->state == ENTRY_RESERVED);
    entry_leave(c, id, GHOST_ABANDONED, entry_at(c, id)->made_ns);
}

enum reject cache_last_reject(const struct cache *c)
{
    return c->last_reject;
}

/* -- by id ----------------------------------------------------------------------------------- */

static struct entry *committed(const struct cache *c, snap_id id)
{
    if (!id || id >= c->entries_used || entry_at(c, id)->state != ENTRY_LIVE)
        return NULL;
    return entry_at(c, id);
}

bool cache_drop(struct cache *c, snap_id id)
{
    struct entry *e = committed(c, id);
    if (!e || e->pins > e->user_pin)
        return false;
    entry_leave(c, id, GHOST_EVICTED, e->used_ns);
    if (c->o.ops.drop)
        c->o.ops.drop(c->o.ops.ctx, id);
    return true;
}

bool cache_pin(struct cache *c, snap_id id, bool on)
{
    struct entry *e = committed(c, id);
    if (!e)
        return false;
    if (e->user_pin != on)
        entry_pin(c, id, on ? 1 : -1);
    e->user_pin = on;
    return true;
}

snap_id cache_donor(const struct cache *c, snap_id id, uint32_t *shared)
{
    *shared = 0;
    if (!id || id >= c->entries_used || !entry_is_live(entry_at(c, id)))
        return 0;
    const struct entry *e = entry_at(c, id);
    /* The deepest node of the path with another committed entry in or below it. */
    uint32_t from = 0;
    for (uint32_t n = e->node; n; from = n, n = radix_at(&c->tree, n)->parent) {
        const struct radix_node *x = radix_at(&c->tree, n);
        const uint32_t own_branch = from ? radix_at(&c->tree, from)->n_live : 0;
        snap_id best = 0;
        if (x->n_live > x->n_own + own_branch)
            best = entry_any_below(c, n, from);
        if (best) {
            *shared = MIN(x->end, e->pos);
            return *shared ? best : 0;
        }
        for (snap_id o = x->live; o; o = entry_at(c, o)->next)
            if (o != id && entry_at(c, o)->state == ENTRY_LIVE) {
                *shared = MIN(entry_at(c, o)->pos, e->pos);
                return o;
            }
    }
    return 0;
}

static void describe(struct cache *c, snap_id id, struct cache_entry *out)
{
    const struct entry *e = entry_at(c, id);
    *out = (struct cache_entry){
        .id = id,
        .pos = e->pos,
        .kind = e->kind,
        .bytes = entry_bytes(c, e),
        .used_ns = e->used_ns,
        .made_ns = e->made_ns,
        .hits = e->hits,
        .pins = e->pins,
        .value = entry_value(c, id),
        .above = entry_above(c, e->node, e->pos),
        .user_pin = e->user_pin,
    };
}

bool cache_entry_at(struct cache *c, uint32_t i, struct cache_entry *out)
{
    if (i >= c->ranks.n)
        return false;
    describe(c, c->ranks.list[i].id, out);
    return true;
}

bool cache_entry_get(struct cache *c, snap_id id, struct cache_entry *out)
{
    if (!committed(c, id))
        return false;
    describe(c, id, out);
    return true;
}

void cache_stats(const struct cache *c, struct cache_stats *out)
{
    *out = c->stats;
    out->budget = c->o.ram_bytes;
    out->bytes = cache_used(c);
    out->tree_bytes = cache_overhead(c);
    out->n_snaps = c->ranks.n;
    out->n_pinned = c->n_pins;
    out->n_nodes = c->tree.n_nodes;
    out->n_tokens = c->tree.n_tokens;
}
