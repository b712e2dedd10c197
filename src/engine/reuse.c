#include "engine/reuse.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/perslot.h"
#include "engine/tier.h"
#include "state/snap.h"

/* One committed or offered entry's bytes. */
struct payload {
    snap_id id;
    struct snap *snap;
    struct kv_table kv;
    uint32_t pos;
    enum cut_kind kind;
    bool reading; /* from disk, by another thread: nobody else may look at it or change its pages */
};

struct reuse {
    struct reuse_opts o;
    struct cache *cache;
    struct kv *kv;
    struct rec *rec;
    struct snap_store *store;
    struct tier *tier; /* NULL: memory only */
    bool closing;      /* files outlive their entries */
    struct {           /* since what was learned was last kept */
        uint64_t at_ns;
        uint32_t n_requests, n_written;
        bool pins; /* have changed */
    } since;
    struct perslot *perslot; /* with --cache-policy pxa: it, not cache, keeps what is kept */
    /* Unordered.  Looked up once per restore, eviction and cut: a walk over the ids of even
     * ten thousand entries is microseconds. */
    struct payload *payloads;
    size_t n, cap;
    enum drop_why why; /* drops happen now for this reason */
    struct reuse_counts counts;
};

static double ms_since(uint64_t start_ns)
{
    return (double)(clock_mono_ns() - start_ns) * 1e-6;
}

/* ---- payloads -------------------------------------------------------------------------------- */

static struct payload *payload_find(struct reuse *r, snap_id id)
{
    for (size_t i = 0; i < r->n; i++)
        if (r->payloads[i].id == id)
            return &r->payloads[i];
    return NULL;
}

/* p's tokens are the first ones of from's: p holds from's pages instead of its own, the last partial
 * one too.  Nothing lost when memory is out: the same bits are then held twice. */
static void hold_through(struct reuse *r, struct payload *p, const struct kv_table *from)
{
    struct kv_table t;
    kv_table_init(&t);
    if (kv_table_share(r->kv, from, p->pos, &t, NULL))
        return;
    kv_table_release(r->kv, &p->kv);
    p->kv = t;
}

/* p holds, with its last partial page, what a deeper entry on its path holds anyway. */
static void hold_through_deeper(struct reuse *r, struct payload *p)
{
    uint32_t shared = 0;
    const snap_id donor = cache_donor(r->cache, p->id, &shared);
    const struct payload *d = donor ? payload_find(r, donor) : NULL;
    if (d && shared == p->pos && d->pos >= p->pos)
        hold_through(r, p, &d->kv);
}

/* The deepest entry less deep than below whose last page is partial and one of table's. */
static struct payload *deepest_in(struct reuse *r, const struct kv_table *table, uint32_t below)
{
    struct payload *deepest = NULL;
    for (size_t i = 0; i < r->n; i++) {
        struct payload *p = &r->payloads[i];
        const uint32_t last = p->pos / KV_PAGE;
        if (p->pos % KV_PAGE && !p->reading && last < table->n && p->pos < below &&
            p->kv.pages[last] == table->pages[last] && (!deepest || p->pos > deepest->pos))
            deepest = p;
    }
    return deepest;
}

static void payload_remove(struct reuse *r, struct payload *p)
{
    struct payload gone = *p;
    *p = r->payloads[--r->n];
    /* Where several paths leave an entry inside a page, each has its own copy, and the entry holds one of them:
     * the one of another path, when that goes.  From the deep end, so that nobody takes over from one who is still
     * to change. */
    uint32_t below = r->closing ? 0 : UINT32_MAX;
    for (struct payload *q; (q = deepest_in(r, &gone.kv, below)) != NULL; below = q->pos)
        hold_through_deeper(r, q);
    snap_free(r->store, gone.snap);
    kv_table_release(r->kv, &gone.kv);
}

void reuse_counts(const struct reuse *r, struct reuse_counts *out)
{
    *out = r->counts;
}

static void on_drop(void *ctx, snap_id id)
{
    struct reuse *r = ctx;
    r->counts.evicted[r->why]++;
    struct payload *p = payload_find(r, id);
    const struct segment_head *h = r->tier ? tier_head(r->tier, id) : NULL;
    if (p || h)
        event_evict(r->o.events, &(struct event_evict){.snap = id,
                                                       .pos = p ? p->pos : h->pos,
                                                       .kind = cut_kind_name(p ? p->kind : h->kind),
                                                       .bytes = shape_snap_bytes(&r->o.shape),
                                                       .why = drop_name(r->why)});
    if (p)
        payload_remove(r, p);
    if (h && !r->closing)
        tier_drop(r->tier, id);
}

/* Copies the state of l out as the entry id. */
static enum rc payload_add(struct reuse *r, snap_id id, const struct live *l, enum cut_kind kind,
                           struct err *err)
{
    struct payload p = {.id = id, .pos = l->pos, .kind = kind};
    kv_table_init(&p.kv);
    if (!mem_grow(&r->payloads, &r->cap, r->n + 1, sizeof *r->payloads))
        return err_set(err, RC_NOMEM, "no memory to note a snapshot");
    enum rc rc = kv_table_share(r->kv, &l->kv, l->pos, &p.kv, err);
    if (rc)
        return rc;
    rc = snap_take(r->store, r->rec, l->rec, &p.snap, err);
    if (rc) {
        kv_table_release(r->kv, &p.kv);
        return rc;
    }
    r->payloads[r->n++] = p;
    return RC_OK;
}

/* Pages of the committed entry id that other entries have too are held once. */
static void hold_once(struct reuse *r, snap_id id, struct live *l)
{
    struct payload *p = payload_find(r, id);
    uint32_t shared = 0;
    const snap_id donor = cache_donor(r->cache, id, &shared);
    const struct payload *d = donor ? payload_find(r, donor) : NULL;
    if (d && shared == p->pos && d->pos >= p->pos)
        hold_through(r, p, &d->kv);
    else if (d)
        kv_table_dedupe(r->kv, &p->kv, &d->kv, shared);
    /* the entry above ends in a page that the new one goes on in, and so may others above it */
    uint32_t page = UINT32_MAX;
    for (snap_id up = id; (up = cache_above_in_memory(r->cache, up)) != 0;) {
        struct payload *above = payload_find(r, up);
        if (page != UINT32_MAX && above->pos / KV_PAGE != page)
            break;
        page = above->pos / KV_PAGE;
        hold_through(r, above, &p->kv);
    }
    if (l)
        kv_table_dedupe(r->kv, &l->kv, &p->kv, l->pos);
}

/* ---- disk ------------------------------------------------------------------------------------ */

/* What was learned goes to disk at the end, and now and then: a process that is killed forgets a minute. */
static void keep_learned(struct reuse *r)
{
    if (tier_keep(r->tier, r->cache)) {
        memset(&r->since, 0, sizeof r->since);
        r->since.at_ns = clock_mono_ns();
    }
}

static void keep_learned_if_due(struct reuse *r)
{
    enum { MANY_WRITTEN = 64 };
    static const uint64_t minute_ns = UINT64_C(60000000000);
    if (!r->tier || tier_is_keeping(r->tier))
        return;
    if (r->since.pins || r->since.n_written >= MANY_WRITTEN ||
        (r->since.n_requests && clock_mono_ns() - r->since.at_ns > minute_ns))
        keep_learned(r);
}

static enum spill_result on_spill(void *ctx, const struct cache_spill *s)
{
    struct reuse *r = ctx;
    const struct payload *p = payload_find(r, s->id);
    struct cache_entry e;
    CHECK(p && !p->reading && cache_entry_get(r->cache, s->id, &e));
    return tier_write(r->tier, r->cache, &e, &p->kv, p->snap) ? SPILL_STARTED : SPILL_NO;
}

static void on_drop_ram(void *ctx, snap_id id)
{
    struct reuse *r = ctx;
    struct payload *p = payload_find(r, id);
    if (p) /* not when it could not be read */
        payload_remove(r, p);
}

static void on_drop_disk(void *ctx, snap_id id)
{
    struct reuse *r = ctx;
    tier_drop(r->tier, id);
}

static bool make_room(struct reuse *r);

/* Pages for an entry that is to be read: what others have of its path is shared, the rest is fresh. *first: the
 * first page to be read. */
static bool pages_to_read(struct reuse *r, struct payload *p, uint32_t *first)
{
    uint32_t shared = 0;
    const snap_id donor = cache_donor(r->cache, p->id, &shared);
    const struct payload *d = donor ? payload_find(r, donor) : NULL;
    if (d && shared < p->pos)
        shared = shared / KV_PAGE * KV_PAGE;
    if (d && kv_table_share(r->kv, &d->kv, shared, &p->kv, NULL))
        return false;
    *first = p->kv.n;
    enum rc rc;
    do
        rc = kv_table_extend(r->kv, &p->kv, p->pos - p->kv.len, NULL);
    while (rc == RC_NOMEM && make_room(r));
    if (!rc)
        kv_table_advance(&p->kv, p->pos - p->kv.len);
    return !rc;
}

/* Starts to read what l->plan restores, unless that is under way. */
static bool fetch(struct reuse *r, const struct live *l)
{
    const snap_id id = l->plan.restore;
    struct payload p = {
        .id = id, .pos = l->plan.start, .kind = l->plan.restore_kind, .reading = true};
    uint32_t first;
    if (payload_find(r, id))
        return true;
    kv_table_init(&p.kv);
    if (mem_grow(&r->payloads, &r->cap, r->n + 1, sizeof *r->payloads) &&
        pages_to_read(r, &p, &first) && !snap_blank(r->store, &p.snap, NULL) &&
        tier_read(r->tier, id, &p.kv, first, p.snap)) {
        r->payloads[r->n++] = p;
        return true;
    }
    snap_free(r->store, p.snap);
    kv_table_release(r->kv, &p.kv);
    return false;
}

static void measured(struct reuse *r, enum cache_rate which, uint64_t amount, uint64_t ns)
{
    if (r->o.disk_read_rate <= 0)
        cache_measured(r->cache, which, amount, ns);
}

static void wrote(struct reuse *r, const struct tier_done *done)
{
    if (done->ok) {
        const struct payload *p = payload_find(r, done->id);
        struct cache_entry e;
        r->since.n_written++;
        r->since.pins |= cache_entry_get(r->cache, done->id, &e) && e.user_pin;
        measured(r, CACHE_RATE_WRITE, done->bytes, done->ns);
        event_spill(r->o.events, &(struct event_spill){.snap = done->id,
                                                       .pos = p->pos,
                                                       .bytes = done->bytes,
                                                       .ms = (double)done->ns * 1e-6});
    }
    cache_spilled(r->cache, done->id, done->ok, clock_wall_ns());
    keep_learned_if_due(r);
}

static void was_read(struct reuse *r, const struct tier_done *done)
{
    struct payload *p = payload_find(r, done->id);
    CHECK(p && p->reading);
    p->reading = false;
    if (done->ok)
        measured(r, CACHE_RATE_READ, done->bytes, done->ns);
    else
        payload_remove(r, p);
    cache_fetched(r->cache, done->id, done->ok, clock_wall_ns());
    if (done->ok && payload_find(r, done->id)) /* no plan may want it any more */
        hold_once(r, done->id, NULL);
}

/* One thing that the disk is done with. */
static bool poll_one(struct reuse *r, uint64_t timeout_ns)
{
    struct tier_done done;
    if (!r->tier || !tier_poll(r->tier, timeout_ns, &done))
        return false;
    if (done.write)
        wrote(r, &done);
    else
        was_read(r, &done);
    return true;
}

void reuse_poll(struct reuse *r)
{
    while (poll_one(r, 0))
        continue;
}

bool reuse_idle(struct reuse *r)
{
    struct disk_stats st;
    if (!reuse_disk(r, &st) || st.writes_off)
        return false;
    if (cache_spill_next(r->cache, clock_wall_ns()))
        return true;
    if (r->since.n_requests && !tier_is_keeping(r->tier))
        keep_learned(r);
    return false;
}

void reuse_flush(struct reuse *r, uint64_t until_ns)
{
    if (!r->tier)
        return;
    for (;;) {
        while (clock_mono_ns() < until_ns && reuse_idle(r))
            continue;
        if (!tier_n_moving(r->tier))
            break;
        (void)poll_one(r, UINT64_MAX);
    }
    keep_learned(r);
}

bool reuse_disk(const struct reuse *r, struct disk_stats *out)
{
    *out = (struct disk_stats){0};
    if (r->tier)
        tier_stats(r->tier, out);
    return r->tier != NULL;
}

void reuse_prefilled(struct reuse *r, uint32_t n_tokens, uint64_t ns)
{
    if (r->tier)
        measured(r, CACHE_RATE_PREFILL, n_tokens, ns);
}

/* ---- life ------------------------------------------------------------------------------------ */

static enum rc new_perslot(struct reuse *r, const struct pxa_rules *rules, struct err *err)
{
    struct perslot_opts o = {.rules = *rules,
                             .n_slots = r->o.n_slots,
                             .ram_bytes = r->o.cache_ram_bytes,
                             .shape = r->o.shape,
                             .kv = r->kv,
                             .rec = r->rec,
                             .store = r->store,
                             .evicted = r->counts.evicted,
                             .lg = r->o.lg,
                             .events = r->o.events};
    if (r->o.n_batch)
        o.rules.batch = r->o.n_batch;
    if (r->o.n_ubatch)
        o.rules.ubatch = r->o.n_ubatch;
    return perslot_new(&o, &r->perslot, err);
}

/* A directory that cannot be used is no reason not to serve, but one to say so. */
static void open_tier(struct reuse *r)
{
    const char *policy = r->o.cache_policy ? r->o.cache_policy : "hold";
    if (strcmp(policy, "hold") != 0 || !r->o.cache_ram_bytes) {
        log_warn(r->o.lg, "cache directory %s is not used: %s", r->o.cache_dir,
                 r->o.cache_ram_bytes ? "only policy hold writes to disk"
                                      : "state has to pass through memory, and there is none");
        return;
    }
    const struct disk_opts o = {.dir = r->o.cache_dir,
                                .max_bytes = r->o.cache_disk_bytes,
                                .shape = r->o.shape,
                                .kernels = r->o.kernels,
                                .lg = r->o.lg,
                                .wake = r->o.wake,
                                .ctx = r->o.wake_ctx};
    struct err err;
    if (tier_open(&o, r->kv, &r->tier, &err))
        log_warn(r->o.lg, "%s; what is kept stays in memory", err.msg);
}

enum rc reuse_check_policy(const char *name, struct err *err)
{
    struct pxa_rules rules;
    struct buf all = BUF_INIT;
    if (!name || pxa_rules_by_name(name, &rules))
        return RC_OK;
    for (size_t i = 0; cache_policy_at(i); i++) {
        if (!strcmp(cache_policy_at(i), name)) {
            buf_release(&all);
            return RC_OK;
        }
        buf_addf(&all, "%s, ", cache_policy_at(i));
    }
    err_set(err, RC_ARG, "--cache-policy: '%.60s' is none; there are %spxa", name, buf_str(&all));
    buf_release(&all);
    return RC_ARG;
}

enum rc reuse_new(const struct reuse_opts *o, struct reuse **out, struct err *err)
{
    const enum rc known = reuse_check_policy(o->cache_policy, err);
    if (known)
        return known;
    struct reuse *r = mem_zalloc(sizeof *r);
    r->o = *o;
    r->why = DROP_BUDGET;
    struct pxa_rules rules;
    const bool pxa = o->cache_policy && pxa_rules_by_name(o->cache_policy, &rules);
    struct cache_opts co = {
        .policy = pxa ? "none" : o->cache_policy,
        .ram_bytes = o->cache_ram_bytes,
        .snap_bytes = shape_snap_bytes(&o->shape),
        .token_bytes = shape_token_bytes(&o->shape),
        .page_tokens = KV_PAGE,
        .step = o->cache_step,
        .charge_tree = true,
        .rates = {[CACHE_RATE_READ] = o->disk_read_rate},
        .ops = {.ctx = r,
                .drop = on_drop,
                .spill = on_spill,
                .drop_ram = on_drop_ram,
                .drop_disk = on_drop_disk},
    };
    enum rc rc = kv_new(&o->shape, o->kv_max_bytes, &r->kv, err);
    if (!rc)
        rc = rec_new(&o->shape, o->n_slots, &r->rec, err);
    if (!rc)
        rc = snap_store_new(&o->shape, &r->store, err);
    if (!rc && o->cache_dir && o->cache_disk_bytes)
        open_tier(r);
    if (r->tier) {
        co.disk_bytes = tier_cache_bytes(o->cache_disk_bytes);
        co.disk_entry_bytes = tier_entry_bytes(&o->shape);
    }
    if (!rc)
        rc = cache_new(&co, &r->cache, err);
    if (!rc && r->tier)
        tier_adopt(r->tier, r->cache, o->lg);
    r->since.at_ns = clock_mono_ns();
    if (!rc && pxa)
        rc = new_perslot(r, &rules, err);
    if (rc) {
        reuse_free(r);
        return rc;
    }
    *out = r;
    return RC_OK;
}

void reuse_free(struct reuse *r)
{
    if (!r)
        return;
    r->why = DROP_SHUTDOWN;
    r->closing = true;
    while (r->tier && tier_n_moving(r->tier))
        (void)poll_one(r, UINT64_MAX);
    perslot_free(r->perslot);
    cache_free(r->cache);
    tier_close(r->tier);
    CHECK(r->n == 0);
    CHECK(!r->kv || kv_n_pages(r->kv) == 0);
    mem_free(r->payloads);
    snap_store_free(r->store);
    rec_free(r->rec);
    kv_free(r->kv);
    mem_free(r);
}

struct kv *reuse_kv(struct reuse *r)
{
    return r->kv;
}

struct rec *reuse_rec(struct reuse *r)
{
    return r->rec;
}

struct cache *reuse_cache(struct reuse *r)
{
    return r->cache;
}

uint64_t reuse_snap_bytes(const struct reuse *r)
{
    return snap_store_bytes(r->store);
}

/* ---- a sequence ------------------------------------------------------------------------------ */

/* More memory for pages: the cache gives up what is worth least.  False when it has nothing left. */
static bool make_room(struct reuse *r)
{
    if (r->perslot)
        return perslot_shrink(r->perslot);
    r->why = DROP_MEMORY;
    const uint64_t freed = cache_shrink(r->cache, shape_page_bytes(&r->o.shape), clock_wall_ns());
    r->why = DROP_BUDGET;
    return freed > 0;
}

/* Forks src [0, len) into l->kv, at the cache's cost when memory is short. */
static enum rc fork_pages(struct reuse *r, struct live *l, const struct kv_table *src, uint32_t len,
                          struct err *err)
{
    enum rc rc;
    do
        rc = kv_table_fork(r->kv, src, len, &l->kv, err);
    while (rc == RC_NOMEM && make_room(r));
    return rc;
}

/* The cause of most of what is evaluated again; "" when nothing is. */
static const char *loss_name(const struct live *l)
{
    const struct plan *p = &l->plan;
    const struct {
        const char *name;
        uint32_t n;
    } causes[] = {{"placement", p->lost_placement},
                  {"rejected", p->lost_rejected},
                  {"evicted", p->lost_evicted},
                  {"minimum", p->lost_minimum},
                  {"last", p->lost_last},
                  {"fingerprint", l->foreign.pos ? l->foreign.pos - p->lcp : 0}};
    const char *name = "";
    uint32_t most = 0;
    for (size_t i = 0; i < COUNT_OF(causes); i++)
        if (causes[i].n > most) {
            most = causes[i].n;
            name = causes[i].name;
        }
    return name;
}

static enum rc restore(struct reuse *r, struct live *l, struct err *err)
{
    const struct plan *plan = &l->plan;
    const struct payload *p = payload_find(r, plan->restore);
    /* anything else would give the client another prompt's tokens */
    CHECK(p && p->pos == plan->start && !p->reading);
    const uint64_t start = l->fetching ? l->fetch_ns : clock_mono_ns();
    const enum rc rc = fork_pages(r, l, &p->kv, plan->start, err);
    if (rc)
        return rc;
    snap_restore(p->snap, r->rec, l->rec);
    l->pos = l->n_reused = plan->start;
    r->counts.restores[plan->restore_kind]++;
    r->counts.from_disk += l->fetching;
    r->counts.restore_ns += clock_mono_ns() - start;
    event_restore(r->o.events, &(struct event_restore){.id = l->id,
                                                       .snap = plan->restore,
                                                       .pos = plan->start,
                                                       .bytes = shape_snap_bytes(&r->o.shape),
                                                       .ms = ms_since(start),
                                                       .tier = l->fetching ? "disk" : "ram"});
    return RC_OK;
}

/* False, and the plan is over, when what it wants to have read cannot be: it must be made again. */
static bool begin_fetch(struct reuse *r, struct live *l)
{
    l->fetching = l->plan.fetch;
    if (!l->fetching)
        return true;
    l->fetch_ns = clock_mono_ns();
    if (fetch(r, l))
        return true;
    log_warn(r->o.lg, "request %" PRIu64 ": no memory to read its %" PRIu32 " tokens from disk",
             l->id, l->plan.start);
    cache_fetched(r->cache, l->plan.restore, false, clock_wall_ns());
    plan_done(r->cache, &l->plan, NULL, 0, clock_wall_ns());
    return false;
}

enum rc reuse_begin(struct reuse *r, struct live *l, const struct plan_req *req, struct err *err)
{
    if (r->perslot)
        return perslot_begin(r->perslot, l, req, err);
    enum rc rc;
    do {
        rc = plan_make(r->cache, req, clock_wall_ns(), &l->plan, err);
        if (rc || l->plan.wait_ticket)
            return rc;
    } while (!begin_fetch(r, l));
    const struct plan *p = &l->plan;
    l->foreign = (struct foreign_state){0};
    if (r->tier && !req->no_reuse)
        l->foreign = tier_foreign(r->tier, req->prompt, req->n - 1, p->lcp);
    event_lookup(r->o.events,
                 &(struct event_lookup){.id = l->id,
                                        .n_prompt = req->n,
                                        .lcp = p->lcp,
                                        .start = p->start,
                                        .from = p->restore ? cut_kind_name(p->restore_kind) : "",
                                        .why = loss_name(l)});
    kv_table_init(&l->kv);
    l->pos = l->n_reused = l->n_shared = 0;
    l->rec = rec_take(r->rec);
    CHECK(l->rec); /* as many slots as sequences */
    rc = p->restore && !l->fetching ? restore(r, l, err) : RC_OK;
    if (rc)
        reuse_end(r, l, NULL);
    return rc;
}

bool reuse_is_reading(struct reuse *r, const struct live *l)
{
    const struct payload *p = payload_find(r, l->plan.restore);
    return p && p->reading;
}

enum rc reuse_fetched(struct reuse *r, struct live *l, struct err *err)
{
    const bool there = payload_find(r, l->plan.restore);
    const enum rc rc =
        there ? restore(r, l, err) : err_set(err, RC_STALE, "the state could not be read");
    if (rc)
        reuse_end(r, l, NULL);
    l->fetching = false;
    return rc;
}

enum rc reuse_take_over(struct reuse *r, struct live *l, const struct live *from, struct err *err)
{
    struct live next = *l;
    kv_table_init(&next.kv);
    const enum rc rc = fork_pages(r, &next, &from->kv, from->pos, err);
    if (rc)
        return rc;
    kv_table_release(r->kv, &l->kv);
    memcpy(rec_bytes(r->rec, l->rec), rec_bytes(r->rec, from->rec), shape_snap_bytes(&r->o.shape));
    next.n_shared = from->pos - l->pos;
    next.pos = next.n_reused = from->pos;
    *l = next;
    cache_progress(r->cache, &l->plan, l->pos);
    return RC_OK;
}

enum rc reuse_extend(struct reuse *r, struct live *l, uint32_t n, struct err *err)
{
    enum rc rc;
    do
        rc = kv_table_extend(r->kv, &l->kv, n, err);
    while (rc == RC_NOMEM && make_room(r));
    return rc;
}

void reuse_advance(struct reuse *r, struct live *l, uint32_t n)
{
    kv_table_advance(&l->kv, n);
    l->pos += n;
    if (r->perslot)
        perslot_advance(r->perslot, l);
    else
        cache_progress(r->cache, &l->plan, l->pos);
}

const struct cut *reuse_next_cut(const struct live *l)
{
    for (uint32_t i = 0; i < l->plan.n_cuts; i++)
        if (l->plan.cuts[i].pos > l->pos)
            return &l->plan.cuts[i];
    return NULL;
}

static void rejected(struct reuse *r, const struct live *l, enum cut_kind kind, const char *why)
{
    event_reject(r->o.events,
                 &(struct event_reject){
                     .id = l->id, .pos = l->pos, .kind = cut_kind_name(kind), .why = why});
}

void reuse_keep(struct reuse *r, struct live *l, const token *seq, enum cut_kind kind)
{
    const uint64_t start = clock_mono_ns();
    const snap_id id = cache_offer(r->cache, &l->plan, seq, l->pos, kind, clock_wall_ns());
    if (!id) {
        rejected(r, l, kind, reject_name(cache_last_reject(r->cache)));
        return;
    }
    struct err err;
    if (payload_add(r, id, l, kind, &err)) {
        cache_abandon(r->cache, id);
        rejected(r, l, kind, "memory");
        log_warn(r->o.lg, "request %" PRIu64 ": state at %u is not kept: %s", l->id, l->pos,
                 err.msg);
        return;
    }
    cache_commit(r->cache, id);
    hold_once(r, id, l);
    event_cut(r->o.events, &(struct event_cut){.id = l->id,
                                               .snap = id,
                                               .pos = l->pos,
                                               .kind = cut_kind_name(kind),
                                               .bytes = shape_snap_bytes(&r->o.shape),
                                               .ms = ms_since(start)});
}

snap_id reuse_pin(struct reuse *r, struct live *l, const token *seq)
{
    if (r->perslot)
        return 0;
    if (!cache_find(r->cache, seq, l->pos))
        reuse_keep(r, l, seq, CUT_PINNED);
    const snap_id id = cache_find(r->cache, seq, l->pos);
    return id && reuse_set_pin(r, id, true) ? id : 0;
}

snap_id reuse_pin_kept(struct reuse *r, const token *seq, uint32_t n)
{
    struct cache_entry e;
    const snap_id id = cache_find(r->cache, seq, n);
    const bool there = id && cache_entry_get(r->cache, id, &e) && e.in_ram;
    return there && reuse_set_pin(r, id, true) ? id : 0;
}

bool reuse_set_pin(struct reuse *r, snap_id id, bool on)
{
    if (!cache_pin(r->cache, id, on))
        return false;
    r->since.pins = true;
    keep_learned_if_due(r);
    return true;
}

void reuse_end(struct reuse *r, struct live *l, const token *seq)
{
    if (r->perslot) {
        perslot_end(r->perslot, l, seq);
        return;
    }
    if (l->pos > l->n_reused)
        reuse_keep(r, l, seq, l->in_prompt ? CUT_STOPPED : CUT_GEN_END);
    plan_done(r->cache, &l->plan, seq, l->pos, clock_wall_ns());
    kv_table_release(r->kv, &l->kv);
    rec_give(r->rec, l->rec);
    l->rec = 0;
    r->since.n_requests++;
    keep_learned_if_due(r);
}

bool reuse_speaks(const struct reuse *r)
{
    return r->perslot != NULL;
}

static bool drop_for(struct reuse *r, snap_id id, enum drop_why why)
{
    r->why = why;
    const bool dropped = cache_drop(r->cache, id);
    r->why = DROP_BUDGET;
    return dropped;
}

bool reuse_drop(struct reuse *r, snap_id id)
{
    return drop_for(r, id, DROP_USER);
}

bool reuse_distrust(struct reuse *r, snap_id id)
{
    return drop_for(r, id, DROP_AUDIT);
}

bool reuse_entry_state(struct reuse *r, snap_id id, struct reuse_state *out)
{
    const struct payload *p = payload_find(r, id);
    if (!p || p->reading || !p->snap)
        return false;
    *out = (struct reuse_state){.kv = &p->kv,
                                .snap = snap_data(p->snap),
                                .page_bytes = shape_page_bytes(&r->o.shape),
                                .snap_bytes = shape_snap_bytes(&r->o.shape)};
    return true;
}

const struct shape *reuse_shape(const struct reuse *r)
{
    return &r->o.shape;
}

bool reuse_export(struct reuse *r, snap_id id, struct saved *s)
{
    struct reuse_state st;
    *s = (struct saved){0};
    const struct payload *p = payload_find(r, id);
    if (!reuse_entry_state(r, id, &st) || saved_init(s, &r->o.shape, p->pos, NULL) ||
        !cache_path(r->cache, id, s->seq)) {
        saved_release(s);
        return false;
    }
    for (uint32_t j = 0; j < s->n_pages; j++)
        memcpy(s->pages + j * st.page_bytes, kv_page_mem(r->kv, st.kv->pages[j]), st.page_bytes);
    memcpy(s->snap, st.snap, st.snap_bytes);
    s->kind = p->kind;
    return true;
}

/* A payload of s's bytes for the entry id. */
static enum rc payload_from(struct reuse *r, snap_id id, const struct saved *s, struct err *err)
{
    struct payload p = {.id = id, .pos = s->pos, .kind = s->kind};
    kv_table_init(&p.kv);
    if (!mem_grow(&r->payloads, &r->cap, r->n + 1, sizeof *r->payloads))
        return err_set(err, RC_NOMEM, "no memory to note a snapshot");
    enum rc rc = kv_table_extend(r->kv, &p.kv, s->pos, err);
    if (!rc)
        rc = snap_blank(r->store, &p.snap, err);
    if (rc) {
        kv_table_release(r->kv, &p.kv);
        return rc;
    }
    const uint64_t page_bytes = shape_page_bytes(&r->o.shape);
    for (uint32_t j = 0; j < s->n_pages; j++)
        memcpy(kv_page_mem(r->kv, p.kv.pages[j]), s->pages + j * page_bytes, page_bytes);
    kv_table_advance(&p.kv, s->pos);
    memcpy(snap_fill(p.snap), s->snap, shape_snap_bytes(&r->o.shape));
    r->payloads[r->n++] = p;
    return RC_OK;
}

enum rc reuse_import(struct reuse *r, const struct saved *s, snap_id *id, struct err *err)
{
    *id = r->perslot ? 0 : cache_find(r->cache, s->seq, s->pos);
    if (*id)
        return RC_OK;
    /* as if a request had just evaluated it */
    struct plan plan;
    const struct plan_req req = {.prompt = s->seq, .n = s->pos};
    enum rc rc = plan_make(r->cache, &req, clock_wall_ns(), &plan, err);
    if (rc)
        return rc;
    if (plan.fetch) { /* not read for this: it is found again when someone wants it */
        plan_done(r->cache, &plan, s->seq, 0, clock_wall_ns());
        return err_set(err, RC_LIMIT, "a part of it is being read from disk; try again");
    }
    *id = cache_offer(r->cache, &plan, s->seq, s->pos, CUT_PINNED, clock_wall_ns());
    rc = *id ? payload_from(r, *id, s, err)
             : err_set(err, RC_LIMIT, "the state of %u tokens does not fit into the cache (%s)",
                       s->pos, reject_name(cache_last_reject(r->cache)));
    if (*id && rc) {
        cache_abandon(r->cache, *id);
    } else if (*id) {
        cache_commit(r->cache, *id);
        CHECK(cache_pin(r->cache, *id, false));
        hold_once(r, *id, NULL);
    }
    plan_done(r->cache, &plan, s->seq, rc ? 0 : s->pos, clock_wall_ns());
    return rc;
}

bool reuse_held(const struct reuse *r, struct engine_view *v)
{
    return !r->perslot || perslot_held(r->perslot, v);
}

bool reuse_spoil(struct reuse *r, snap_id id)
{
    const struct payload *p = payload_find(r, id);
    if (!p || !p->snap)
        return false;
    *(unsigned char *)snap_fill(p->snap) ^= 1;
    return true;
}

/* ---- checks ---------------------------------------------------------------------------------- */

static int by_page(const void *a, const void *b)
{
    const kv_page x = *(const kv_page *)a, y = *(const kv_page *)b;
    return (x > y) - (x < y);
}

/* Without those being read: what others come to share with them is held once only when they are there. */
static uint64_t held_pages(const struct reuse *r)
{
    size_t n = 0, m = 0, distinct = 0;
    for (size_t i = 0; i < r->n; i++)
        n += r->payloads[i].reading ? 0 : r->payloads[i].kv.n;
    kv_page *all = mem_alloc(n * sizeof *all);
    for (size_t i = 0; i < r->n; i++)
        for (uint32_t j = 0; j < r->payloads[i].kv.n && !r->payloads[i].reading; j++)
            all[m++] = r->payloads[i].kv.pages[j];
    qsort(all, n, sizeof *all, by_page);
    for (size_t i = 0; i < n; i++)
        distinct += i == 0 || all[i] != all[i - 1];
    mem_free(all);
    return distinct;
}

void reuse_check(struct reuse *r)
{
    cache_check(r->cache);
    struct cache_stats st;
    cache_stats(r->cache, &st);
    struct cache_entry e;
    uint32_t n = 0;
    for (uint32_t i = 0; cache_entry_at(r->cache, i, &e); i++) {
        if (!cache_entry_get(r->cache, e.id, &e)) /* planned, not committed */
            continue;
        const struct payload *p = payload_find(r, e.id);
        CHECK(!e.in_ram || (p && !p->reading));
        CHECK(!p || (p->pos == e.pos && p->kv.len == e.pos && e.in_ram != p->reading));
        CHECK(!e.on_disk || tier_head(r->tier, e.id));
        n += p != NULL;
    }
    CHECK(r->n == n);
    if (r->perslot) {
        perslot_check(r->perslot);
        return;
    }
    const uint64_t pages = held_pages(r);
    CHECK(pages <= st.n_pages);
    CHECK(snap_store_bytes(r->store) + pages * shape_page_bytes(&r->o.shape) <=
          MIN(st.bytes, st.budget));
}
