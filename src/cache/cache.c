/* cache.c - the facade: budgets, offers, pins, statistics. */
#include "cache/cache_int.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/pack.h"

static const struct policy *const policies[] = {&policy_hold, &policy_none, &policy_lru};

const char *cut_kind_name(enum cut_kind k)
{
    static const char *const names[CUT_N_KINDS] = {
        [CUT_NONE] = "none",       [CUT_BRANCH] = "branch",   [CUT_SIGNATURE] = "signature",
        [CUT_GEN_END] = "gen-end", [CUT_PROMPT] = "prompt",   [CUT_SYSTEM] = "system",
        [CUT_MESSAGE] = "message", [CUT_LADDER] = "ladder",   [CUT_GRID] = "grid",
        [CUT_PINNED] = "pinned",   [CUT_STOPPED] = "stopped",
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

const char *cache_policy_at(size_t i)
{
    return i < COUNT_OF(policies) ? policies[i]->name : NULL;
}

static const struct policy *policy_by_name(const char *name, struct err *err)
{
    if (!name)
        return policies[0];
    for (size_t i = 0; i < COUNT_OF(policies); i++)
        if (!strcmp(policies[i]->name, name))
            return policies[i];
    err_set(err, RC_ARG, "there is no cache policy %s", name);
    return NULL;
}

enum rc cache_new(const struct cache_opts *o, struct cache **out, struct err *err)
{
    const struct policy *policy = policy_by_name(o->policy, err);
    if (!policy)
        return RC_ARG;
    if (o->disk_bytes && (!o->ops.spill || !o->ops.drop_ram || !o->ops.drop_disk))
        return err_set(err, RC_ARG, "cache: a disk tier without spill, drop_ram and drop_disk");
    struct cache *c = mem_zalloc(sizeof *c);
    c->o = *o;
    c->policy = policy;
    c->gen_tokens = 256;
    c->ram = o->disk_bytes ? LAYER_RAM : LAYER_ANY;
    cost_init(&c->cost, o->rates);
    c->measured = c->cost;
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
    c->tree_charge = UINT64_MAX;
    if (o->charge_tree && c->tree_cap < MIN_TREE) {
        c->tree_charge = c->tree_cap;
        c->tree_cap = MIN_TREE;
    }
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
    for (snap_id id = 1; id < c->entries_used; id++)
        if (entry_at(c, id)->state == ENTRY_LIVE && c->o.ops.drop)
            c->o.ops.drop(c->o.ops.ctx, id);
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
    return radix_bytes(&c->tree) + c->entries_cap * sizeof *c->entries +
           ranks_bytes(&c->ranks[TIER_RAM]) + ranks_bytes(&c->ranks[TIER_DISK]) +
           (c->policy->bytes ? c->policy->bytes(c) : 0);
}

/* The part of the tree that counts against the budget. */
static uint64_t charged(const struct cache *c)
{
    return c->o.charge_tree ? MIN(cache_overhead(c), c->tree_charge) : 0;
}

/* A ghost's tokens teach as much as the ghost: a quarter of a small tree is theirs. */
static uint32_t max_ghosts(const struct cache *c)
{
    const uint64_t fit = c->tree_cap / 4 / sizeof(struct entry);
    return fit < MAX_GHOSTS ? (uint32_t)fit : MAX_GHOSTS;
}

uint64_t cache_used(const struct cache *c, enum tier t)
{
    const enum layer l = t == TIER_RAM ? c->ram : LAYER_DISK;
    return c->ranks[t].n * entry_own_bytes(c, t) + c->n_pages[l] * c->page_bytes +
           (t == TIER_RAM ? charged(c) : 0);
}

/* -- eviction -------------------------------------------------------------------------------- */

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

static void drop(struct cache *c, snap_id id, uint64_t now_ns)
{
    entry_leave(c, id, entry_at(c, id)->broken ? GHOST_UNREADABLE : GHOST_EVICTED, now_ns);
    if (c->o.ops.drop)
        c->o.ops.drop(c->o.ops.ctx, id);
}

/* Room on disk for cost bytes, from entries worth less than value; false when there are not enough of those. */
static bool make_disk_room(struct cache *c, const struct entry *e, double value, uint64_t now_ns)
{
    for (;;) {
        const uint64_t cost = entry_cost(c, e->node, e->pos, TIER_DISK);
        if (cache_used(c, TIER_DISK) + cost <= c->o.disk_bytes)
            return true;
        const snap_id id = entry_least(c, TIER_DISK, 0);
        if (!id || entry_value(c, id, TIER_DISK) >= value)
            return false;
        c->stats.disk_evictions++;
        if (entry_has(entry_at(c, id), TIER_RAM)) {
            entry_part(c, id, TIER_DISK);
            c->o.ops.drop_disk(c->o.ops.ctx, id);
        } else {
            c->stats.evictions++;
            drop(c, id, now_ns);
        }
    }
}

/* What the user wants kept is kept over a restart. */
static bool worth_writing(const struct cache *c, const struct entry *e)
{
    return c->policy->spill && (e->user_pin || c->policy->spill(c, e));
}

/* Writes the entry to disk; what became of it. */
static enum spill_result spill(struct cache *c, snap_id id, uint64_t now_ns)
{
    enum { MAX_WRITING = 4 }; /* they hold their memory until they are done */
    struct entry *e = entry_at(c, id);
    if (!c->o.disk_bytes || e->unfit || c->n_writing >= MAX_WRITING || !worth_writing(c, e) ||
        !ranks_reserve(&c->ranks[TIER_DISK]))
        return SPILL_NO;
    const uint64_t cost = entry_cost(c, e->node, e->pos, TIER_DISK);
    const double rate = c->policy->rate ? c->policy->rate(c, e->cell) : 1;
    const double value = e->user_pin ? INFINITY : rate * e->gap / (double)cost;
    entry_pin(c, id, 1); /* nor may it go from disk while room is made */
    const bool room = make_disk_room(c, e, value, now_ns);
    entry_pin(c, id, -1);
    if (!room)
        return SPILL_NO;
    struct cache_spill s = {.id = id, .pos = e->pos};
    uint64_t missing;
    s.kv_from = entry_resident(c, e->node, e->pos, TIER_DISK, &missing);
    s.bytes = c->o.snap_bytes + missing * c->page_bytes;
    const enum spill_result r = c->o.ops.spill(c->o.ops.ctx, &s);
    if (r == SPILL_NO) {
        e->unfit = true;
        return r;
    }
    c->stats.spills++;
    c->stats.spill_bytes += s.bytes;
    entry_join(c, id, TIER_DISK);
    if (r == SPILL_STARTED) {
        e->writing = true;
        c->n_writing++;
        entry_pin(c, id, 1);
    }
    return r;
}

static void leave_ram(struct cache *c, snap_id id)
{
    entry_part(c, id, TIER_RAM);
    c->o.ops.drop_ram(c->o.ops.ctx, id);
}

void cache_evict(struct cache *c, snap_id id, uint64_t now_ns)
{
    const struct entry *e = entry_at(c, id);
    if (e->state == ENTRY_PLANNED) {
        c->stats.rejected++;
        cache_unplan(c, id, GHOST_DEAR, now_ns);
        return;
    }
    if (entry_has(e, TIER_DISK)) {
        leave_ram(c, id);
        return;
    }
    switch (spill(c, id, now_ns)) {
    case SPILL_DONE:
        leave_ram(c, id);
        break;
    case SPILL_STARTED: /* pinned now: others are looked at */
        break;
    case SPILL_NO:
        c->stats.evictions++;
        drop(c, id, now_ns);
    }
}

bool cache_make_room(struct cache *c, uint64_t need, snap_id *own, uint64_t now_ns)
{
    while (cache_used(c, TIER_RAM) + need > c->o.ram_bytes) {
        const snap_id id = entry_least(c, TIER_RAM, *own);
        if (!id)
            return false;
        if (id == *own) {
            entry_pin(c, id, -1);
            *own = 0;
        }
        cache_evict(c, id, now_ns);
    }
    return true;
}

void cache_settle(struct cache *c, uint64_t now_ns)
{
    while (c->n_ghosts > max_ghosts(c))
        entry_forget(c, c->ghost_oldest);
    if (cache_overhead(c) > c->tree_cap) {
        /* an eighth at once: a pass costs the same however little it frees */
        const uint64_t rest = cache_overhead(c) - radix_bytes(&c->tree), goal = c->tree_cap / 8 * 7;
        radix_trim(&c->tree, goal > rest ? goal - rest : 0);
    }
    snap_id none = 0;
    /* With a disk, writes begin before the room is needed. */
    (void)cache_make_room(c, c->o.disk_bytes ? c->o.ram_bytes / 16 : 0, &none, now_ns);
}

uint64_t cache_shrink(struct cache *c, uint64_t bytes, uint64_t now_ns)
{
    uint64_t freed = 0;
    while (freed < bytes) {
        const snap_id id = entry_least(c, TIER_RAM, 0);
        if (!id)
            break;
        const struct entry *e = entry_at(c, id);
        const bool real = e->state == ENTRY_LIVE; /* others hold no memory yet */
        const uint64_t its = entry_bytes(c, e, TIER_RAM);
        cache_evict(c, id, now_ns);
        if (real && !entry_has(e, TIER_RAM))
            freed += its;
    }
    return freed;
}

void cache_unpin(struct cache *c, snap_id id, uint64_t now_ns)
{
    const struct entry *e = entry_at(c, id);
    entry_pin(c, id, -1);
    if (e->broken && !e->pins)
        drop(c, id, now_ns);
}

/* -- disk ------------------------------------------------------------------------------------ */

void cache_spilled(struct cache *c, snap_id id, bool ok, uint64_t now_ns)
{
    struct entry *e = entry_at(c, id);
    CHECK(e->state == ENTRY_LIVE && e->writing);
    e->writing = false;
    c->n_writing--;
    if (!ok) {
        e->unfit = true;
        entry_part(c, id, TIER_DISK);
    }
    cache_unpin(c, id, now_ns);
    cache_settle(c, now_ns);
}

void cache_fetched(struct cache *c, snap_id id, bool ok, uint64_t now_ns)
{
    struct entry *e = entry_at(c, id);
    CHECK(e->state == ENTRY_LIVE && e->fetching);
    e->fetching = false;
    if (!ok) {
        e->broken = true;
        if (e->user_pin) {
            e->user_pin = false;
            entry_pin(c, id, -1);
        }
    }
    cache_unpin(c, id, now_ns);
}

bool cache_spill_next(struct cache *c, uint64_t now_ns)
{
    snap_id best = 0;
    for (uint32_t i = 0; i < c->ranks[TIER_RAM].n; i++) {
        const snap_id id = c->ranks[TIER_RAM].list[i].id;
        const struct entry *e = entry_at(c, id);
        if (e->state == ENTRY_LIVE && !entry_has(e, TIER_DISK) && !e->unfit &&
            worth_writing(c, e) &&
            (!best || entry_value(c, id, TIER_RAM) > entry_value(c, best, TIER_RAM)))
            best = id;
    }
    return best && spill(c, best, now_ns) != SPILL_NO;
}

snap_id cache_adopt(struct cache *c, const struct cache_found *f, uint64_t now_ns)
{
    if (!c->o.disk_bytes || !f->pos || !radix_insert(&c->tree, f->seq, f->pos, &c->path) ||
        !ranks_reserve(&c->ranks[TIER_DISK]) || !ranks_reserve(&c->ranks[TIER_RAM]))
        return 0;
    radix_touch(&c->tree, &c->path);
    cache_mark_done(c, f->pos);
    snap_id id = entry_find(c, f->pos);
    if (id && entry_is_live(entry_at(c, id)))
        return 0;
    if (!id)
        id = entry_new_ghost(c, f->pos, f->kind, f->family, GHOST_EVICTED);
    if (!id)
        return 0;
    struct entry *e = entry_at(c, id);
    if (cache_used(c, TIER_DISK) + entry_cost(c, e->node, e->pos, TIER_DISK) > c->o.disk_bytes)
        return 0;
    e->hits = f->hits;
    e->made_ns = f->made_ns;
    e->used_ns = f->used_ns;
    if (f->idle && c->policy->born) { /* as if it had been seen then */
        if (c->policy->gone)
            c->policy->gone(c, id);
        e->last = c->now - MIN(f->idle, c->now);
        c->policy->born(c, id);
    }
    entry_enter(c, id, TIER_DISK);
    (void)now_ns;
    return id;
}

enum { MAX_NOW = 1 << 30 }; /* far from where the count of requests would begin anew */

void cache_save(struct cache *c, struct buf *b)
{
    pack_u32(b, MIN(c->now, MAX_NOW));
    pack_f64(b, c->gen_tokens);
    if (c->policy->save)
        c->policy->save(c, b);
}

enum rc cache_load(struct cache *c, const void *p, size_t n, struct err *err)
{
    struct unpack u = {.p = p, .n = n};
    const uint32_t now = unpack_u32(&u);
    const double gen_tokens = unpack_f64(&u);
    CHECK(!c->now && !c->n_live);
    if (u.failed || now > MAX_NOW || !(gen_tokens >= 0 && gen_tokens < 1e9) || !c->policy->load ||
        !c->policy->load(c, now, &u))
        return err_set(err, RC_FORMAT, "what the cache had learned cannot be read");
    c->now = now;
    c->gen_tokens = gen_tokens;
    return RC_OK;
}

bool cache_path(const struct cache *c, snap_id id, token *out)
{
    if (!id || id >= c->entries_used || entry_at(c, id)->state != ENTRY_LIVE)
        return false;
    const struct entry *e = entry_at(c, id);
    for (uint32_t n = e->node; n != RADIX_ROOT; n = radix_at(&c->tree, n)->parent) {
        const struct radix_node *x = radix_at(&c->tree, n);
        memcpy(out + x->start, x->label, (MIN(x->end, e->pos) - x->start) * sizeof *out);
    }
    return true;
}

void cache_measured(struct cache *c, enum cache_rate r, uint64_t amount, uint64_t ns)
{
    cost_measured(&c->measured, r, amount, ns);
    const double f = cost_read_tokens(&c->measured, 1) / cost_read_tokens(&c->cost, 1);
    if (f > .9 && f < 1.1)
        return;
    c->cost = c->measured;
    for (uint32_t i = 0; i < c->ranks[TIER_DISK].n; i++)
        entry_reweigh(c, c->ranks[TIER_DISK].list[i].id);
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
    if (!*id || !ranks_reserve(&c->ranks[TIER_RAM]))
        return REJECT_MEMORY;
    struct entry *e = entry_at(c, *id);
    const snap_id above = entry_above(c, e->node, pos);
    const uint32_t gap = pos - (above ? entry_at(c, above)->pos : 0);
    const uint64_t cost = entry_cost(c, e->node, pos, TIER_RAM), used = cache_used(c, TIER_RAM);
    const uint64_t over = used + cost > c->o.ram_bytes ? used + cost - c->o.ram_bytes : 0;
    const bool small = gap < MIN_TOKENS && kind != CUT_BRANCH && !certain;
    e->why = small ? GHOST_SMALL : GHOST_DEAR;
    e->gap = gap;
    if (small)
        return REJECT_SMALL;
    if (cost > c->o.ram_bytes ||
        (over && c->n_pins && entry_pinned_bytes(c, a->restore) + cost > c->o.ram_bytes))
        return REJECT_BUDGET;
    if (!certain &&
        !c->policy->admit(c, e, gap, entry_loss(c, TIER_RAM, MIN(over, cost), a->restore)))
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
    c->last_reject =
        cache_consider(c, a, pos, kind, a->family, is_promised(a, pos) || kind == CUT_PINNED, &id);
    /* What goes may be the entry above, and its path's KV with it: the cost is seen anew each time. */
    while (!c->last_reject) {
        const uint64_t cost = entry_cost(c, entry_at(c, id)->node, pos, TIER_RAM);
        if (cache_used(c, TIER_RAM) + cost <= c->o.ram_bytes)
            break;
        if (!cache_make_room(c, cost, &a->restore, now_ns))
            c->last_reject = REJECT_BUDGET;
    }
    if (c->last_reject)
        return 0;
    entry_enter(c, id, TIER_RAM);
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
    if ((kind == CUT_GEN_END || kind == CUT_STOPPED) && a->stand_in)
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
    drop(c, id, e->used_ns);
    return true;
}

snap_id cache_find(struct cache *c, const token *seq, uint32_t pos)
{
    uint32_t len;
    if (!pos || !radix_walk(&c->tree, seq, pos, &c->path, &len) || len < pos)
        return 0;
    const snap_id id = entry_find(c, pos);
    return committed(c, id) ? id : 0;
}

bool cache_pin(struct cache *c, snap_id id, bool on)
{
    struct entry *e = committed(c, id);
    if (!e || e->broken)
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
    return entry_donor(c, id, shared);
}

snap_id cache_above_in_memory(const struct cache *c, snap_id id)
{
    return committed(c, id) ? entry_above_in_memory(c, id) : 0;
}

static void describe(struct cache *c, snap_id id, struct cache_entry *out)
{
    const struct entry *e = entry_at(c, id);
    *out = (struct cache_entry){
        .id = id,
        .pos = e->pos,
        .kind = e->kind,
        .bytes = entry_bytes(c, e, entry_has(e, TIER_RAM) ? TIER_RAM : TIER_DISK),
        .used_ns = e->used_ns,
        .made_ns = e->made_ns,
        .hits = e->hits,
        .idle = c->now - e->last,
        .pins = e->pins,
        .value = entry_value(c, id, entry_has(e, TIER_RAM) ? TIER_RAM : TIER_DISK),
        .above = entry_above(c, e->node, e->pos),
        .user_pin = e->user_pin,
        .in_ram = entry_has(e, TIER_RAM) && !e->fetching && !e->broken,
        .on_disk = entry_has(e, TIER_DISK) && !e->writing,
        .family = e->family,
    };
}

bool cache_entry_at(struct cache *c, uint32_t i, struct cache_entry *out)
{
    const uint32_t n = c->ranks[TIER_RAM].n;
    if (i < n) {
        describe(c, c->ranks[TIER_RAM].list[i].id, out);
        return true;
    }
    for (uint32_t k = 0, left = i - n; k < c->ranks[TIER_DISK].n; k++) {
        const snap_id id = c->ranks[TIER_DISK].list[k].id;
        if (entry_has(entry_at(c, id), TIER_RAM) || left--)
            continue;
        describe(c, id, out);
        return true;
    }
    return false;
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
    out->bytes = cache_used(c, TIER_RAM);
    out->tree_bytes = cache_overhead(c);
    out->n_snaps = c->n_live;
    out->n_pinned = c->n_pins;
    out->n_nodes = c->tree.n_nodes;
    out->n_tokens = c->tree.n_tokens;
    out->n_pages = c->n_pages[c->ram];
    out->disk_budget = c->o.disk_bytes;
    out->disk_bytes = cache_used(c, TIER_DISK);
    out->n_on_disk = c->ranks[TIER_DISK].n;
    out->n_disk_only = c->n_live - c->ranks[TIER_RAM].n;
    memcpy(out->rates, c->measured.rate, sizeof out->rates);
}
