#include "engine/audit.h"

#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"

enum { MAX_NOTED = 16 };

struct audit {
    struct audit_opts o;
    struct rng rng;
    struct audit_stats stats;
    snap_id noted[MAX_NOTED];
    uint32_t n_noted;
    /* the one under way; id 0: none */
    snap_id id;
    uint64_t made_ns; /* tells it from a later entry of the same id */
    uint32_t pos, done;
    token *tokens; /* [pos] */
    struct kv_table kv;
    rec_slot rec;
    uint64_t spent_ns;
};

enum rc audit_new(const struct audit_opts *o, struct audit **out, struct err *err)
{
    if (!(o->share >= 0 && o->share <= 1))
        return err_set(err, RC_ARG, "the share of restores to audit is %g, not from 0 to 1",
                       o->share);
    struct audit *a = mem_zalloc(sizeof *a);
    a->o = *o;
    a->rng.s = clock_mono_ns();
    *out = a;
    return RC_OK;
}

static void end(struct audit *a)
{
    kv_table_release(reuse_kv(a->o.reuse), &a->kv);
    if (a->rec)
        rec_give(reuse_rec(a->o.reuse), a->rec);
    mem_free(a->tokens);
    a->rec = 0;
    a->tokens = NULL;
    a->id = 0;
}

void audit_free(struct audit *a)
{
    if (!a)
        return;
    end(a);
    mem_free(a);
}

void audit_note(struct audit *a, snap_id id)
{
    if (!a || !id || rng_f64(&a->rng) >= a->o.share)
        return;
    if (a->n_noted < MAX_NOTED)
        a->noted[a->n_noted++] = id;
    else
        a->stats.skipped++;
}

bool audit_wants(const struct audit *a)
{
    return a && (a->id || a->n_noted);
}

void audit_stats(const struct audit *a, struct audit_stats *out)
{
    *out = a ? a->stats : (struct audit_stats){0};
}

/* False when there is nothing to compare with. */
static bool begin(struct audit *a)
{
    struct cache_entry e;
    const snap_id id = a->noted[--a->n_noted];
    struct cache *cache = reuse_cache(a->o.reuse);
    if (!cache_entry_get(cache, id, &e))
        return false;
    a->tokens = mem_try_array(e.pos, sizeof *a->tokens);
    a->id = id;
    a->made_ns = e.made_ns;
    a->pos = e.pos;
    a->done = 0;
    a->spent_ns = 0;
    kv_table_init(&a->kv);
    a->rec = a->tokens && cache_path(cache, id, a->tokens) ? rec_take(reuse_rec(a->o.reuse)) : 0;
    return a->rec != 0;
}

/* The entry's state, if it is still there and in memory. */
static bool still_there(const struct audit *a, struct reuse_state *st)
{
    struct cache_entry e;
    return cache_entry_get(reuse_cache(a->o.reuse), a->id, &e) && e.made_ns == a->made_ns &&
           e.pos == a->pos && reuse_entry_state(a->o.reuse, a->id, st);
}

static void conclude(struct audit *a, const struct reuse_state *st)
{
    struct kv *kv = reuse_kv(a->o.reuse);
    const char *what = NULL;
    for (uint32_t j = 0; j < a->kv.n && !what; j++)
        if (memcmp(kv_page_mem(kv, a->kv.pages[j]), kv_page_mem(kv, st->kv->pages[j]),
                   st->page_bytes) != 0)
            what = "kv";
    if (memcmp(rec_bytes(reuse_rec(a->o.reuse), a->rec), st->snap, st->snap_bytes) != 0)
        what = "state";
    a->stats.equal += !what;
    a->stats.different += what != NULL;
    event_audit(a->o.events, &(struct event_audit){.snap = a->id,
                                                   .pos = a->pos,
                                                   .ms = (double)a->spent_ns * 1e-6,
                                                   .result = what ? what : "equal"});
    if (!what)
        return;
    const bool dropped = reuse_distrust(a->o.reuse, a->id);
    log_error(a->o.lg,
              "audit: entry %u, the state after %u tokens, is not what evaluating them gives (%s "
              "differs); %s",
              a->id, a->pos, what, dropped ? "it is dropped" : "it is in use and stays");
}

void audit_step(struct audit *a)
{
    struct reuse_state st;
    if (!a->id && !begin(a)) {
        a->stats.skipped++;
        end(a);
        return;
    }
    /* A last page that is filled in part is evaluated in one forward: its other rows are then what they are in the
     * entry's page at this moment, and whole pages compare. */
    const uint32_t full = a->pos / KV_PAGE * KV_PAGE, rest = a->pos - full;
    const bool last = a->done == full;
    const uint32_t n = last ? rest : MIN(a->o.n_rows, full - a->done);
    struct kv *kv = reuse_kv(a->o.reuse);
    bool ok = still_there(a, &st) && n <= a->o.n_rows;
    if (ok && n)
        ok = !kv_table_extend(kv, &a->kv, n, NULL);
    if (!ok) {
        a->stats.skipped++;
        end(a);
        return;
    }
    const uint64_t before = clock_mono_ns();
    if (n) {
        if (last)
            memcpy(kv_page_mem(kv, a->kv.pages[full / KV_PAGE]),
                   kv_page_mem(kv, st.kv->pages[full / KV_PAGE]), st.page_bytes);
        const struct run run = {
            .tokens = a->tokens + a->done, .n = n, .pos = a->done, .kv = &a->kv, .rec = a->rec};
        model_forward(a->o.model, kv, reuse_rec(a->o.reuse), &run, 1);
        kv_table_advance(&a->kv, n);
        a->done += n;
    }
    a->spent_ns += clock_mono_ns() - before;
    if (a->done == a->pos) {
        conclude(a, &st);
        end(a);
    }
}
