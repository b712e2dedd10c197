#include "server/gen.h"

#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "server/explain.h"
#include "server/reply.h"

enum { LOOK_NS = 50000000 }; /* how often client, clock and shutdown are looked at */

/* ---- start and end ---- */

static bool submit_all(struct gen *g, const struct prompts *prompts, const struct params *p,
                       struct grammar *grammar, struct err *err)
{
    struct job_desc d;
    params_to_job(g->c, p, &d);
    d.grammar = grammar;
    d.hints = prompts->hints;
    d.n_hints = prompts->n_hints;
    for (uint32_t i = 0; i < prompts->n; i++) {
        const struct tokens *t = &prompts->v[i];
        d.prompt = t->v;
        d.n_prompt = (uint32_t)MIN(t->n, (size_t)UINT32_MAX);
        for (uint32_t k = 0; k < p->n; k++) {
            /* of one seed the k-th completion draws its own, so that n of them differ */
            d.sampling.seed = p->sampling.seed + k;
            const enum rc rc = engine_submit(g->c->m->engine, &d, &g->jobs[g->n], err);
            if (rc == RC_LIMIT) {
                reply_context_error(g->c, err, t->n, engine_n_ctx(g->c->m->engine));
                return false;
            }
            if (rc) {
                reply_error(g->c, err);
                return false;
            }
            g->n++;
        }
    }
    return true;
}

bool gen_start(struct gen *g, struct call *c, const struct prompts *prompts, const struct params *p,
               struct stream *stream)
{
    struct err err;
    *g = (struct gen){.c = c,
                      .per_prompt = p->n,
                      .stream = stream,
                      .prompts = prompts,
                      .field = p->want.field,
                      .no_cache = !p->cache_prompt || !strcmp(c->m->cache_policy, "none"),
                      .looked_ns = clock_mono_ns()};
    g->jobs = mem_try_array((size_t)prompts->n * p->n, sizeof(struct job *));
    if (!g->jobs) {
        err_set(&err, RC_NOMEM, "out of memory for %u completions", prompts->n * p->n);
        reply_error(c, &err);
        return false;
    }
    struct grammar *grammar;
    bool ok = !constraint_compile(c, &p->want, &grammar, &err);
    if (!ok)
        reply_error(c, &err);
    else
        ok = submit_all(g, prompts, p, grammar, &err);
    grammar_free(grammar); /* the jobs have their own */
    if (!ok)
        gen_end(g);
    return ok;
}

void gen_end(struct gen *g)
{
    for (uint32_t i = 0; i < g->n; i++)
        job_free(g->jobs[i]);
    mem_free(g->jobs);
    g->jobs = NULL;
    g->n = 0;
}

/* ---- the loop ---- */

static void look_around(struct gen *g)
{
    const uint64_t now = clock_mono_ns();
    if (now - g->looked_ns < LOOK_NS)
        return;
    g->looked_ns = now;
    if (g->stream)
        stream_ping(g->stream, now);
    g->gone = http_gone(g->c->r) || (g->stream && g->stream->broken);
    if (now >= atomic_load_explicit(&g->c->s->end_ns, memory_order_relaxed))
        for (uint32_t i = 0; i < g->n; i++)
            job_cancel(g->jobs[i]);
}

/* For /cache/explain. */
static void note(const struct gen *g, uint32_t k, const struct piece *last)
{
    struct explained e = {.index = k, .off = g->no_cache};
    if (!g->c->id || last->stop == STOP_ERROR)
        return;
    snprintf(e.id, sizeof e.id, "%s", g->c->id);
    explained_from(&e, last, g->prompts->hints, g->prompts->n_hints);
    explain_note(g->c->s->explain, &e);
}

struct piece *gen_next(struct gen *g, uint32_t *which)
{
    while (g->n_ended < g->n && !g->gone) {
        /* one job: wait for it.  Several: look at each in turn, rest on one of them a little. */
        for (uint32_t i = 0; i < g->n; i++) {
            const uint32_t k = (g->turn + i) % g->n;
            const bool last = i + 1 == g->n;
            const uint64_t wait = !last ? 0 : g->n == 1 ? LOOK_NS : LOOK_NS / 10;
            struct piece *p = job_next(g->jobs[k], wait);
            if (!p)
                continue;
            look_around(g);
            g->n_ended += p->last;
            if (p->last)
                note(g, k, p);
            if (p->last && p->stop == STOP_ERROR && p->err.rc == RC_LIMIT && g->field)
                err_wrap(&p->err, RC_LIMIT, "%s", g->field); /* a grammar that asks for too much */
            g->turn = (k + 1) % g->n;
            *which = k;
            return p;
        }
        g->turn = (g->turn + 1) % g->n;
        look_around(g);
    }
    return NULL;
}

/* ---- whole answers ---- */

struct answer *answers_new(struct gen *g)
{
    struct answer *a = mem_try_array(g->n, sizeof *a);
    if (!a) {
        struct err err;
        err_set(&err, RC_NOMEM, "out of memory for %u answers", g->n);
        reply_error(g->c, &err);
    }
    return a;
}

void answers_free(const struct gen *g, struct answer *a)
{
    for (uint32_t i = 0; a && i < g->n; i++) {
        buf_release(&a[i].text);
        tokens_release(&a[i].tokens);
        mem_free(a[i].probs);
    }
    mem_free(a);
}

void answer_note(struct answer *a, const struct piece *p)
{
    a->newline = a->newline || (p->text.n && memchr(p->text.p, '\n', p->text.n));
    a->n_bytes += p->text.n;
    a->n_tokens += p->n_tokens;
    a->timings = p->timings;
    a->slot = p->slot;
    if (p->last) {
        a->stop = p->stop;
        a->stop_word = p->stop_word;
        a->pinned = p->pinned;
        a->err = p->err;
    }
}

void answer_add(struct answer *a, const struct piece *p)
{
    const size_t width = 1 + (size_t)p->n_probs;
    const size_t n = a->tokens.n + p->n_tokens;
    buf_add(&a->text, p->text.p, p->text.n);
    if (p->probs && mem_grow(&a->probs, &a->cap_probs, n * width, sizeof *a->probs)) {
        memcpy(a->probs + a->tokens.n * width, p->probs, p->n_tokens * width * sizeof *p->probs);
        a->n_probs = p->n_probs;
    } else if (p->probs) {
        a->nomem = true;
    }
    a->nomem = a->nomem || !tokens_append(&a->tokens, p->tokens, p->n_tokens) || a->text.failed;
    answer_note(a, p);
}

bool gen_failed(const struct answer *a, struct err *err)
{
    if (a->nomem)
        err_set(err, RC_NOMEM, "out of memory for the answer");
    else if (a->stop == STOP_ERROR)
        *err = a->err;
    else if (a->stop == STOP_CANCELLED)
        err_set(err, RC_CANCELLED, "the server is stopping");
    else
        return false;
    return true;
}

bool gen_collect(struct gen *g, struct answer *answers)
{
    struct piece *p;
    uint32_t which;
    while ((p = gen_next(g, &which))) {
        answer_add(&answers[which], p);
        piece_free(p);
    }
    struct err err;
    for (uint32_t i = 0; i < g->n && !g->gone; i++)
        if (gen_failed(&answers[i], &err)) {
            reply_error(g->c, &err);
            return false;
        }
    return !g->gone;
}
