#include "server/explain.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "server/params.h"
#include "server/reply.h"
#include "server/route.h"
#include "server/shape.h"

struct explain {
    pthread_mutex_t lock; /* guards all below; a leaf */
    uint64_t n;           /* noted so far */
    struct explained ring[EXPLAIN_KEPT];
};

struct explain *explain_new(void)
{
    struct explain *x = mem_try_zalloc(sizeof *x);
    if (x)
        pthread_mutex_init(&x->lock, NULL);
    return x;
}

void explain_free(struct explain *x)
{
    if (!x)
        return;
    pthread_mutex_destroy(&x->lock);
    mem_free(x);
}

void explain_note(struct explain *x, const struct explained *e)
{
    if (!x)
        return;
    pthread_mutex_lock(&x->lock);
    x->ring[x->n++ % EXPLAIN_KEPT] = *e;
    pthread_mutex_unlock(&x->lock);
}

uint32_t explain_find(struct explain *x, const char *id, struct explained *out, uint32_t max)
{
    uint32_t found = 0;
    if (!x)
        return 0;
    pthread_mutex_lock(&x->lock);
    for (uint64_t i = x->n > EXPLAIN_KEPT ? x->n - EXPLAIN_KEPT : 0; i < x->n && found < max; i++)
        if (!strcmp(x->ring[i % EXPLAIN_KEPT].id, id))
            out[found++] = x->ring[i % EXPLAIN_KEPT];
    pthread_mutex_unlock(&x->lock);
    return found;
}

/* ---- what happened --------------------------------------------------------------------------- */

static void find_message(struct explained *e, const struct cache_hint *hints, uint32_t n_hints)
{
    e->n_messages = n_hints;
    e->message = e->offset = 0;
    e->role = 0;
    for (uint32_t i = 0; i < n_hints && hints[i].pos <= e->lcp; i++) {
        e->message = i;
        e->offset = e->lcp - hints[i].pos;
        e->role = hints[i].role;
    }
}

void explained_from(struct explained *e, const struct piece *last, const struct cache_hint *hints,
                    uint32_t n_hints)
{
    const struct plan *p = &last->plan;
    e->when_ns = clock_wall_ns();
    e->t = last->timings;
    e->lcp = p->lcp;
    e->asked = p->asked;
    e->start = p->start;
    e->kind = p->restore ? p->restore_kind : CUT_NONE;
    e->disk = p->fetch;
    e->forks = p->forks;
    e->lost_placement = p->lost_placement;
    e->lost_rejected = p->lost_rejected;
    e->lost_evicted = p->lost_evicted;
    e->lost_minimum = p->lost_minimum;
    e->lost_last = p->lost_last;
    e->evicted_ns = p->evicted_ns;
    e->unreadable = p->unreadable;
    e->foreign = last->foreign;
    find_message(e, hints, n_hints);
}

/* Common tokens that were evaluated again. */
static uint32_t again(const struct explained *e)
{
    return e->lcp > e->t.n_reused ? e->lcp - e->t.n_reused : 0;
}

/* The same prompt as before: that one may still run, and be about to evaluate its last token. */
static bool is_repeat(const struct explained *e)
{
    const uint32_t n = e->t.n_prompt;
    return e->lcp >= n || (e->asked >= n && e->lcp + 1 >= n);
}

const char *explained_cause(const struct explained *e)
{
    if (e->off)
        return "off";
    const bool foreign = e->foreign.pos > MAX(e->lcp, e->t.n_reused);
    if (!e->lcp && !e->t.n_reused)
        return foreign ? "fingerprint" : "cold";
    const struct {
        const char *name;
        uint32_t n;
    } causes[] = {
        {"evicted", e->lost_evicted},
        {"rejected", e->lost_rejected},
        {"placement", e->lost_placement},
        /* one token is evaluated in any case, and is worth a word when nothing else is lost */
        {"last", e->lost_last > 1 || (!e->t.n_reused && !e->lost_minimum) ? e->lost_last : 0},
        {"fingerprint", foreign ? e->foreign.pos - e->lcp : 0}};
    const char *name = NULL;
    uint32_t most = 0;
    for (size_t i = 0; i < COUNT_OF(causes) && !e->t.n_shared; i++)
        if (causes[i].n > most) {
            most = causes[i].n;
            name = causes[i].name;
        }
    if (name)
        return name;
    if (!e->t.n_reused) /* so little in common that nothing is kept for it */
        return "minimum";
    return e->forks ? "branch" : is_repeat(e) ? "repeat" : "append";
}

/* Why a state on disk could not be gone on from. */
static void add_foreign(struct buf *b, const struct explained *e, const struct segment_maker *here)
{
    const struct segment_maker *by = &e->foreign.by;
    buf_addf(b, "%u tokens are on disk in %016" PRIx64 ".seg, but ", e->foreign.pos, e->foreign.id);
    if (strcmp(by->kv_type, here->kv_type) != 0)
        buf_addf(b, "with KV in %s; here it is %s.", by->kv_type, here->kv_type);
    else if (strcmp(by->kernels, here->kernels) != 0)
        buf_addf(b, "made by kernels %s; these are %s.", by->kernels, here->kernels);
    else
        buf_adds(b, "made by another model.");
}

static void add_sentence(struct buf *b, const struct explained *e, const struct engine_view *v,
                         uint64_t now_ns)
{
    const double budget = (double)v->cache.budget / MIB;
    const char *cause = explained_cause(e);
    if (!strcmp(cause, "off"))
        buf_adds(b, "Nothing was to be reused: by cache_prompt, or by --cache-policy none.");
    else if (!strcmp(cause, "cold"))
        buf_adds(b, "No earlier prompt that is still remembered begins like this one.");
    else if (!strcmp(cause, "fingerprint"))
        add_foreign(b, e, &v->maker);
    else if (!strcmp(cause, "append"))
        buf_addf(b, "The prompt goes on where an earlier request ended, at token %u.", e->lcp);
    else if (!strcmp(cause, "repeat"))
        buf_addf(b, "All %u tokens were known from an earlier request.", e->t.n_prompt);
    else if (!strcmp(cause, "branch"))
        buf_addf(b, "The prompt leaves what was known at token %u.", e->lcp);
    else if (!strcmp(cause, "minimum"))
        buf_addf(b, "Only %u tokens are in common: too few to keep a state for.", e->lcp);
    else
        buf_addf(b, "%u of %u common tokens were evaluated again: ", again(e), e->lcp);
    if (!strcmp(cause, "placement"))
        buf_adds(b, "no state had been kept between the restored one and where the prompts part.");
    else if (!strcmp(cause, "last"))
        buf_adds(b,
                 "a state is kept of the whole prompt, but its last token has to be evaluated, and "
                 "nothing had been kept between the restored one and there.");
    else if (!strcmp(cause, "rejected"))
        buf_addf(b,
                 "a state there was worth less than what it would have displaced, under a budget "
                 "of %.1f MiB.",
                 budget);
    else if (!strcmp(cause, "evicted") && e->unreadable)
        buf_adds(b, "the state there was on disk, and its file could not be read.");
    else if (!strcmp(cause, "evicted") && e->evicted_ns && e->evicted_ns <= now_ns)
        buf_addf(b, "the state there was evicted %.0f s ago, under a budget of %.1f MiB.",
                 (double)(now_ns - e->evicted_ns) * 1e-9, budget);
    else if (!strcmp(cause, "evicted"))
        buf_addf(b, "the state there had gone from memory, under a budget of %.1f MiB.", budget);
    if (e->t.n_shared)
        buf_addf(b, " %u tokens were taken over from a request in flight.", e->t.n_shared);
}

/* ---- the route ------------------------------------------------------------------------------- */

static const char *role_name(char letter)
{
    switch (letter) {
    case 's':
        return "system";
    case 'a':
        return "assistant";
    case 'o':
        return "tool";
    case 'g':
        return "generation prompt";
    default:
        return "user";
    }
}

static void write_divergence(struct jwrite *w, const struct explained *e)
{
    if (is_repeat(e)) { /* nowhere */
        jwrite_null(w, "divergence");
        return;
    }
    jwrite_obj(w, "divergence");
    jwrite_u64(w, "position", e->lcp);
    if (e->n_messages) {
        jwrite_u64(w, "message", e->message);
        jwrite_u64(w, "offset", e->offset);
        jwrite_str(w, "role", e->role ? role_name(e->role) : "before the first message");
    } else {
        jwrite_null(w, "message");
        jwrite_null(w, "offset");
        jwrite_null(w, "role");
    }
    jwrite_end_obj(w);
}

static void write_maker(struct jwrite *w, const char *key, const struct segment_maker *by)
{
    char fingerprint[17];
    snprintf(fingerprint, sizeof fingerprint, "%016" PRIx64, by->fingerprint);
    jwrite_obj(w, key);
    jwrite_str(w, "fingerprint", fingerprint);
    jwrite_str(w, "kv_type", by->kv_type);
    jwrite_str(w, "kernels", by->kernels);
    jwrite_end_obj(w);
}

static void write_foreign(struct jwrite *w, const struct explained *e,
                          const struct segment_maker *here)
{
    if (!e->foreign.pos) {
        jwrite_null(w, "foreign");
        return;
    }
    char file[32];
    snprintf(file, sizeof file, "%016" PRIx64 ".seg", e->foreign.id);
    jwrite_obj(w, "foreign");
    jwrite_u64(w, "position", e->foreign.pos);
    jwrite_str(w, "file", file);
    write_maker(w, "made_by", &e->foreign.by);
    write_maker(w, "here", here);
    jwrite_end_obj(w);
}

static void write_one(struct jwrite *w, const struct explained *e, const struct engine_view *v,
                      uint64_t now_ns)
{
    struct buf text = BUF_INIT;
    add_sentence(&text, e, v, now_ns);
    jwrite_obj(w, NULL);
    jwrite_u64(w, "index", e->index);
    jwrite_str(w, "cause", explained_cause(e));
    jwrite_strn(w, "text", buf_str(&text), text.n);
    jwrite_u64(w, "prompt_tokens", e->t.n_prompt);
    jwrite_u64(w, "common_tokens", e->lcp);
    jwrite_u64(w, "restored_at", e->start);
    if (e->kind)
        jwrite_str(w, "restored_kind", cut_kind_name(e->kind));
    else
        jwrite_null(w, "restored_kind");
    if (e->kind)
        jwrite_str(w, "restored_tier", e->disk ? "disk" : "ram");
    else
        jwrite_null(w, "restored_tier");
    jwrite_u64(w, "reused_tokens", e->t.n_reused);
    jwrite_u64(w, "in_flight_tokens", e->t.n_shared);
    jwrite_u64(w, "evaluated_tokens", e->t.n_evaluated);
    jwrite_u64(w, "snapshot_distance", again(e));
    jwrite_obj(w, "lost_tokens");
    jwrite_u64(w, "placement", e->lost_placement);
    jwrite_u64(w, "rejected", e->lost_rejected);
    jwrite_u64(w, "evicted", e->lost_evicted);
    jwrite_u64(w, "minimum", e->lost_minimum);
    jwrite_u64(w, "last", e->lost_last);
    jwrite_end_obj(w);
    if (e->lost_evicted && e->evicted_ns)
        jwrite_fixed(w, "evicted_at", (double)e->evicted_ns * 1e-9, 3);
    else
        jwrite_null(w, "evicted_at");
    write_foreign(w, e, &v->maker);
    write_divergence(w, e);
    jwrite_fixed(w, "prompt_ms", e->t.prompt_ms, 3);
    jwrite_fixed(w, "age_s", now_ns > e->when_ns ? (double)(now_ns - e->when_ns) * 1e-9 : 0, 3);
    jwrite_end_obj(w);
    w->b->failed |= text.failed;
    buf_release(&text);
}

void explain_get(struct call *c)
{
    enum { MAX_FOUND = MAX_PROMPTS };
    const char *id = http_query(c->r, "id");
    struct err err;
    struct engine_view v;
    if (!id || !*id) {
        err_set(&err, RC_ARG, "id is missing in the query");
        reply_error(c, &err);
        return;
    }
    struct explained *found = mem_try_array(MAX_FOUND, sizeof *found);
    if (!found) {
        err_set(&err, RC_NOMEM, "out of memory for an explanation");
        reply_error(c, &err);
        return;
    }
    const uint32_t n = explain_find(c->s->explain, id, found, MAX_FOUND);
    if (!n) {
        reply_refuse(c, 404, "not_found_error",
                     "no finished response of that id among those remembered");
    } else if (engine_view(c->m->engine, false, &v, &err)) {
        reply_error(c, &err);
    } else {
        struct buf b = BUF_INIT;
        struct jwrite w;
        const uint64_t now = clock_wall_ns();
        jwrite_init(&w, &b);
        jwrite_obj(&w, NULL);
        jwrite_str(&w, "id", id);
        jwrite_u64(&w, "budget_bytes", v.cache.budget);
        jwrite_u64(&w, "cache_bytes", v.cache.bytes);
        jwrite_arr(&w, "prompts");
        for (uint32_t i = 0; i < n; i++)
            write_one(&w, &found[i], &v, now);
        jwrite_end_arr(&w);
        jwrite_end_obj(&w);
        reply_json(c, 200, &b);
        buf_release(&b);
        engine_view_release(&v);
    }
    mem_free(found);
}
