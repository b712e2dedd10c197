#include "engine/perslot.h"

#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/engine.h"
#include "engine/perslot_log.h"

/* A slot's bytes.  While a request runs on it, its live has the pages. */
struct seat {
    struct perslot *p;
    struct kv_table kv;
    rec_slot rec;
    struct pxa_ops ops; /* with this seat as context */
    struct pxa_run run; /* of the request under way */
    struct perslot_log log;
    uint32_t held;   /* tokens in the slot when it began */
    uint32_t n_past; /* of them that it went on from */
    uint64_t begun_ns, first_ns;
};

struct perslot {
    struct perslot_opts o;
    struct slot *slots; /* [n_slots] */
    struct seat *seats; /* [n_slots] */
    uint64_t requests;
    uint32_t n_copies; /* made so far: names them in events */
};

static double ms_since(uint64_t start_ns)
{
    return (double)(clock_mono_ns() - start_ns) * 1e-6;
}

/* ---- checkpoints ----------------------------------------------------------------------------- */

struct copy {
    struct snap *snap;
    uint32_t id;
};

static enum cut_kind cut_kind_of(const struct mark *m)
{
    static const enum cut_kind kinds[] = {[MARK_INTERVAL] = CUT_GRID,
                                          [MARK_TAIL] = CUT_PROMPT,
                                          [MARK_PROMPT_END] = CUT_PROMPT,
                                          [MARK_FINAL] = CUT_GEN_END};
    return kinds[m->kind];
}

static void drop_copy(struct perslot *p, const struct mark *m, enum drop_why why)
{
    p->o.evicted[why]++;
    struct copy *c = m->state;
    event_evict(p->o.events, &(struct event_evict){.snap = c->id,
                                                   .pos = m->pos + 1,
                                                   .kind = cut_kind_name(cut_kind_of(m)),
                                                   .bytes = shape_snap_bytes(&p->o.shape),
                                                   .why = drop_name(why)});
    snap_free(p->o.store, c->snap);
    mem_free(c);
}

static bool on_created(void *ctx, struct mark *m)
{
    struct seat *seat = ctx;
    struct perslot *p = seat->p;
    const uint64_t start = clock_mono_ns();
    struct copy *c = mem_try(sizeof *c);
    struct err err;
    if (!c || snap_take(p->o.store, p->o.rec, seat->rec, &c->snap, &err)) {
        mem_free(c);
        log_warn(p->o.lg, "request %" PRIu64 ": no memory for a checkpoint at %u", seat->log.task,
                 m->pos);
        return false;
    }
    c->id = ++p->n_copies;
    m->state = c;
    const double ms = ms_since(start);
    say_created(&seat->log, m, seat->run.slot->n_ring, seat->run.rules->ring, ms);
    event_cut(p->o.events, &(struct event_cut){.id = seat->log.task,
                                               .snap = c->id,
                                               .pos = m->pos + 1,
                                               .kind = cut_kind_name(cut_kind_of(m)),
                                               .bytes = shape_snap_bytes(&p->o.shape),
                                               .ms = ms});
    return true;
}

static void on_restored(void *ctx, const struct mark *m)
{
    struct seat *seat = ctx;
    const struct perslot *p = seat->p;
    const struct copy *c = m->state;
    const uint64_t start = clock_mono_ns();
    say_divergence(&seat->log, seat->run.n_past, seat->held);
    snap_restore(c->snap, p->o.rec, seat->rec);
    const double ms = ms_since(start);
    say_restored(&seat->log, seat->held, m, ms);
    event_restore(p->o.events, &(struct event_restore){.id = seat->log.task,
                                                       .snap = c->id,
                                                       .pos = m->pos + 1,
                                                       .bytes = shape_snap_bytes(&p->o.shape),
                                                       .ms = ms,
                                                       .tier = "ram"});
}

static void on_forced(void *ctx)
{
    const struct seat *seat = ctx;
    say_divergence(&seat->log, seat->run.n_past, seat->held);
    say_forced(&seat->log);
}

static void on_erased(void *ctx, const struct mark *m)
{
    const struct seat *seat = ctx;
    say_erased(&seat->log, m);
    drop_copy(seat->p, m, DROP_ERASED);
}

static void on_evicted(void *ctx, const struct mark *m)
{
    const struct seat *seat = ctx;
    say_evicted(&seat->log, m);
    drop_copy(seat->p, m, DROP_BUDGET);
}

/* ---- slots ----------------------------------------------------------------------------------- */

static void empty(struct perslot *p, struct slot *s, enum drop_why why)
{
    struct seat *seat = &p->seats[s - p->slots];
    for (uint32_t i = 0; i < s->n_ring; i++)
        drop_copy(p, &s->ring[i], why);
    slot_clear(s);
    kv_table_release(p->o.kv, &seat->kv);
    memset(rec_bytes(p->o.rec, seat->rec), 0, shape_snap_bytes(&p->o.shape));
}

bool perslot_shrink(struct perslot *p)
{
    struct slot *oldest = NULL;
    for (uint32_t i = 0; i < p->o.n_slots; i++) {
        struct slot *s = &p->slots[i];
        if (!s->busy && s->n && (!oldest || s->used < oldest->used))
            oldest = s;
    }
    if (oldest)
        empty(p, oldest, DROP_MEMORY);
    return oldest != NULL;
}

/* The slot keeps its first n tokens' pages; its state is at n already, unless n is 0. */
static enum rc keep_pages(struct perslot *p, struct seat *seat, uint32_t n, struct err *err)
{
    if (n == seat->kv.len)
        return RC_OK;
    struct kv_table kept;
    kv_table_init(&kept);
    enum rc rc = RC_OK;
    do
        if (n)
            rc = kv_table_fork(p->o.kv, &seat->kv, n, &kept, err);
    while (rc == RC_NOMEM && perslot_shrink(p));
    if (rc)
        return rc;
    kv_table_release(p->o.kv, &seat->kv);
    seat->kv = kept;
    if (!n)
        memset(rec_bytes(p->o.rec, seat->rec), 0, shape_snap_bytes(&p->o.shape));
    return RC_OK;
}

enum rc perslot_new(const struct perslot_opts *o, struct perslot **out, struct err *err)
{
    struct perslot *p = mem_zalloc(sizeof *p);
    const uint64_t each = shape_snap_bytes(&o->shape);
    p->o = *o;
    p->o.rules.ring = (uint32_t)MIN(p->o.rules.ring, o->ram_bytes / MAX(each, 1) / o->n_slots);
    p->slots = mem_try_array(o->n_slots, sizeof *p->slots);
    p->seats = mem_try_array(o->n_slots, sizeof *p->seats);
    if (!p->slots || !p->seats) {
        perslot_free(p);
        return err_set(err, RC_NOMEM, "no memory for %u slots", o->n_slots);
    }
    for (uint32_t i = 0; i < o->n_slots; i++) {
        struct seat *seat = &p->seats[i];
        *seat =
            (struct seat){.p = p,
                          .rec = rec_take(o->rec),
                          .ops = {seat, on_created, on_restored, on_forced, on_erased, on_evicted},
                          .log = {.lg = o->lg, .slot = i, .mib = (double)each / (double)MIB}};
        CHECK(seat->rec); /* as many as slots */
        kv_table_init(&seat->kv);
    }
    say_rules(&p->seats[0].log, &p->o.rules);
    *out = p;
    return RC_OK;
}

void perslot_free(struct perslot *p)
{
    if (!p)
        return;
    for (uint32_t i = 0; p->slots && p->seats && i < p->o.n_slots; i++) {
        CHECK(!p->slots[i].busy);
        empty(p, &p->slots[i], DROP_SHUTDOWN);
        slot_release(&p->slots[i]);
        rec_give(p->o.rec, p->seats[i].rec);
    }
    mem_free(p->slots);
    mem_free(p->seats);
    mem_free(p);
}

/* ---- a sequence ------------------------------------------------------------------------------ */

/* Forced or restored, or a slot with another prompt in it: what it cost, as plans say it. */
static void fill_plan(struct plan *plan, const struct pxa_run *r, uint32_t lcp)
{
    *plan = (struct plan){.start = r->n_past, .lcp = lcp};
    plan->lost_last = lcp == r->n_prompt;
    plan->lost_placement = lcp - r->n_past - plan->lost_last;
    if (r->verdict == VERDICT_APPEND)
        plan->restore_kind = CUT_GEN_END;
    for (uint32_t i = 0; r->verdict == VERDICT_RESTORED && i < r->slot->n_ring; i++)
        if (r->slot->ring[i].pos == r->restored)
            plan->restore_kind = cut_kind_of(&r->slot->ring[i]);
}

static void set_cut(struct live *l, const struct pxa_run *r)
{
    l->plan.n_cuts = r->n_past < r->n_prompt;
    if (l->plan.n_cuts)
        l->plan.cuts[0] = (struct cut){.pos = pxa_batch_end(r), .kind = CUT_GRID};
}

enum rc perslot_begin(struct perslot *p, struct live *l, const struct plan_req *req,
                      struct err *err)
{
    struct slot *s = pxa_pick(&p->o.rules, p->slots, p->o.n_slots, req->prompt, req->n);
    CHECK(s); /* as many slots as sequences */
    struct seat *seat = &p->seats[s - p->slots];
    const uint32_t lcp = req->no_reuse ? 0 : common_prefix(s->seq, s->n, req->prompt, req->n);
    s->busy = true;
    s->used = ++p->requests;
    seat->held = s->n;
    seat->begun_ns = seat->first_ns = clock_mono_ns();
    seat->log.task = l->id;
    seat->run = (struct pxa_run){
        .rules = &p->o.rules, .ops = &seat->ops, .slot = s, .request = p->requests};
    say_launch(&seat->log, s->n, lcp);
    pxa_begin(&seat->run, req->n, lcp);
    seat->n_past = seat->run.n_past;
    if (seat->run.one_more)
        say_one_token(&seat->log);
    const enum rc rc = keep_pages(p, seat, seat->n_past, err);
    if (rc) {
        empty(p, s, DROP_MEMORY);
        s->busy = false;
        return rc;
    }
    say_batch(&seat->log, seat->n_past);
    fill_plan(&l->plan, &seat->run, lcp);
    set_cut(l, &seat->run);
    l->slot = (uint32_t)(s - p->slots);
    l->kv = seat->kv;
    kv_table_init(&seat->kv);
    l->rec = seat->rec;
    l->pos = l->n_reused = seat->n_past;
    l->n_shared = 0;
    event_lookup(p->o.events, &(struct event_lookup){
                                  .id = l->id,
                                  .n_prompt = req->n,
                                  .lcp = lcp,
                                  .start = seat->n_past,
                                  .from = seat->n_past ? cut_kind_name(l->plan.restore_kind) : "",
                                  .why = l->plan.lost_placement ? "placement"
                                         : l->plan.lost_last    ? "last"
                                                                : ""});
    return RC_OK;
}

/* A checkpoint for which the ring has no room is not made; nothing else follows from it. */
static void note(const struct seat *seat, enum rc rc, const struct err *err)
{
    if (rc)
        log_warn(seat->p->o.lg, "request %" PRIu64 ": %s", seat->log.task, err->msg);
}

void perslot_advance(struct perslot *p, struct live *l)
{
    struct seat *seat = &p->seats[l->slot];
    struct pxa_run *r = &seat->run;
    struct err err;
    if (l->pos > r->n_prompt) {
        note(seat, pxa_sampled(r, l->pos - r->n_prompt + 1, &err), &err);
        return;
    }
    if (l->pos != l->plan.cuts[0].pos)
        return; /* inside a decode batch */
    note(seat, pxa_evaluated(r, l->pos, &err), &err);
    set_cut(l, r);
    if (l->pos < r->n_prompt) {
        say_batch(&seat->log, l->pos);
        return;
    }
    seat->first_ns = clock_mono_ns();
    note(seat, pxa_sampled(r, 1, &err), &err);
}

void perslot_end(struct perslot *p, struct live *l, const token *seq)
{
    struct seat *seat = &p->seats[l->slot];
    struct slot *s = &p->slots[l->slot];
    struct err err;
    if (l->n_answer >= 0) {
        note(seat, pxa_end(&seat->run, &err), &err);
        say_timings(&seat->log, seat->run.n_prompt - seat->n_past,
                    (double)(seat->first_ns - seat->begun_ns) * 1e-6, (uint32_t)l->n_answer,
                    ms_since(seat->first_ns));
    }
    say_released(&seat->log, l->pos, l->pos);
    seat->kv = l->kv;
    kv_table_init(&l->kv);
    l->rec = 0;
    s->busy = false;
    if (slot_set(s, seq, l->pos, &err)) {
        note(seat, RC_NOMEM, &err);
        empty(p, s, DROP_MEMORY);
    }
}

bool perslot_held(const struct perslot *p, struct engine_view *v)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->o.n_slots; i++)
        n += p->slots[i].n_ring;
    v->held = mem_try_array(p->o.n_slots, sizeof *v->held);
    v->states = mem_try_array(MAX(n, 1), sizeof *v->states);
    if (!v->held || !v->states)
        return false;
    n = 0;
    for (uint32_t i = 0; i < p->o.n_slots; i++) {
        const struct slot *s = &p->slots[i];
        v->held[i] =
            (struct held_view){.n_tokens = s->n, .busy = s->busy, .first = n, .n = s->n_ring};
        for (uint32_t k = 0; k < s->n_ring; k++)
            v->states[n++] = (struct held_state){.pos = s->ring[k].pos + 1,
                                                 .hits = s->ring[k].hits,
                                                 .kind = cut_kind_of(&s->ring[k])};
    }
    return true;
}

/* ---- checks ---------------------------------------------------------------------------------- */

void perslot_check(const struct perslot *p)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < p->o.n_slots; i++) {
        const struct slot *s = &p->slots[i];
        CHECK(s->busy || p->seats[i].kv.len == s->n);
        CHECK(s->n_ring <= p->o.rules.ring);
        for (uint32_t k = 0; k < s->n_ring; k++) {
            CHECK(s->ring[k].state);
            CHECK(!k || s->ring[k].pos > s->ring[k - 1].pos);
        }
        n += s->n_ring;
    }
    CHECK(snap_store_bytes(p->o.store) >= n * shape_snap_bytes(&p->o.shape));
}
