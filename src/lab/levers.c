#include "lab/levers.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "lab/legacy.h"
#include "lab/sim.h"

struct candidate {
    char name[40], label[48];
    const char *is; /* "engine", "holdfast", "bound" */
    const char *what;
    uint64_t ram_bytes; /* holdfast only */
    uint64_t reused;
};

enum { MAX_CANDIDATES = 16 };
struct list {
    struct candidate v[MAX_CANDIDATES];
    size_t n;
};

PRINTF_LIKE(3, 4)
static void add(struct list *l, const char *what, const char *fmt, ...)
{
    if (l->n == MAX_CANDIDATES)
        return;
    struct candidate *c = &l->v[l->n++];
    *c = (struct candidate){.is = "engine", .what = what};
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(c->name, sizeof c->name, fmt, ap);
    va_end(ap);
    size_t n = strlen(c->name);
    if (n > 2 && !strcmp(c->name + n - 2, "x1"))
        c->name[n - 2] = 0; /* one slot goes without saying */
    memcpy(c->label, c->name, sizeof c->name);
}

/* The settings of the engine at hand.  ik_llama.cpp and PXA print nearly the same, so where the log is of one
 * of them both are tried; which one fits what was reused tells. */
static void engine_levers(struct list *l, const struct forensics_engine *e)
{
    const uint32_t np = MAX(e->n_slots, 1u), more = MAX(np, 4u);
    if (e->engines & ENG_KV) {
        add(l, "PXA's defaults: checkpoints near the prompt's end only, no RAM cache", "pxax%u",
            np);
        add(l, "PXA_CKPT_PROMPT_END=1: one at the prompt's end too", "pxa-endx%u", np);
        add(l, "PXA_CKPT_PROMPT_POLICY=0: a checkpoint at every batch end", "pxa-policy0x%u", np);
        add(l, "PXA_CKPT_PROMPT_POLICY=0 and -cram 8192: whole prompts put aside in RAM",
            "pxa-policy0-cramx%u", np);
        if (more > np)
            add(l, "PXA_CKPT_PROMPT_POLICY=0 and -np 4: four slots", "pxa-policy0x%u", more);
        add(l, "ik_llama.cpp's defaults: batch ends, RAM cache", "ikx%u", np);
        if (more > np)
            add(l, "ik_llama.cpp, -np 4: four slots", "ikx%u", more);
    } else if (e->engines & ENG_LLAMA) {
        const int32_t date = e->since >= 20251003   ? e->since
                             : e->until >= 20251003 ? e->until
                                                    : 20251009;
        add(l, "this build's defaults", "llama-%dx%u", date, np);
        if (more > np)
            add(l, "this build, -np 4: four slots", "llama-%dx%u", date, more);
        if (date < 20260320)
            add(l, "a build of March 2026: every 8,192 tokens, restored up to the divergence",
                "llama-20260320x%u", np);
        add(l, "the build of September 2026 (where messages begin is not known here)", "llamax%u",
            np);
    }
}

static enum rc simulate(struct list *l, const struct trace *t, const uint32_t *oracle,
                        uint64_t snap, uint64_t token_bytes, uint32_t ring, struct err *err)
{
    enum rc rc = RC_OK;
    for (size_t i = 0; i < l->n && !rc; i++) {
        struct candidate *c = &l->v[i];
        if (c->ram_bytes) {
            struct sim_result r;
            const struct sim_opts o = {.policy = c->name,
                                       .ram_bytes = c->ram_bytes,
                                       .snap_bytes = snap,
                                       .token_bytes = token_bytes};
            rc = sim_run(t, &o, oracle, NULL, &r, err);
            c->reused = r.saved_tokens;
        } else if (!strcmp(c->is, "engine")) {
            struct legacy_opts o;
            struct legacy_result r;
            if (!legacy_by_name(c->name, &o))
                return err_set(err, RC_ARG, "no policy %s", c->name);
            o.snap_bytes = snap;
            if (ring)
                o.ring = ring;
            rc = legacy_run(t, &o, NULL, &r, err);
            c->reused = r.reused_tokens;
        }
    }
    return rc;
}

/* The setting whose reuse comes nearest to the log's, if one comes near. */
static const struct candidate *as_it_is(const struct list *l, double share, uint64_t prompt)
{
    const struct candidate *best = NULL;
    double least = 0.03;
    for (size_t i = 0; i < l->n; i++) { /* the likeliest first: another must fit clearly better */
        const double d = fabs((double)l->v[i].reused / (double)MAX(prompt, 1) - share);
        if (!strcmp(l->v[i].is, "engine") && d < least - (best ? 0.005 : 0)) {
            best = &l->v[i];
            least = d;
        }
    }
    return best;
}

static json_t *result(const struct candidate *c, uint64_t prompt, double rate, double share)
{
    const double here = prompt ? (double)c->reused / (double)prompt : 0;
    json_t *o = json_pack("{s:s, s:s, s:s, s:I, s:f}", "name", c->label, "is", c->is, "what",
                          c->what, "reused_tokens", (json_int_t)c->reused, "share", here);
    if (o && !isnan(share) && !isnan(rate))
        json_object_set_new(o, "seconds_saved", json_real((here - share) * (double)prompt / rate));
    return o;
}

enum rc levers_predict(const char *trace_path, const struct forensics_engine *e, json_t **out,
                       struct err *err)
{
    struct trace *t;
    *out = NULL;
    if (e->engines ==
        ENG_HOLDFAST) /* its log does not say what a prompt shares with which other one */
        return RC_OK;
    enum rc rc = trace_open(trace_path, &t, err);
    if (rc)
        return rc;
    const uint32_t all = t->n;
    t->n = MIN(t->n, (uint32_t)LEVERS_MAX_TURNS);
    if (!t->n) {
        trace_close(t);
        return RC_OK;
    }
    uint32_t *oracle;
    rc = sim_oracle(t, &oracle, err);
    if (rc) {
        trace_close(t);
        return rc;
    }
    uint64_t prompt = 0, bound = 0;
    for (uint32_t i = 0; i < t->n; i++) {
        prompt += t->reqs[i].n_prompt;
        bound += oracle[i];
    }
    struct legacy_opts defaults;
    legacy_defaults(&defaults, LEGACY_PXA, 0);
    const bool known = e->ckpt_bytes > 0;
    const uint64_t snap = known ? (uint64_t)e->ckpt_bytes : defaults.snap_bytes;
    struct list l = {0};
    engine_levers(&l, e);
    for (uint64_t gib = 4; gib <= 16; gib *= 4) {
        add(&l,
            gib == 4 ? "holdfast: one cache for all requests, 4 GiB of RAM" : "the same, 16 GiB",
            "hold");
        l.v[l.n - 1].is = "holdfast";
        l.v[l.n - 1].ram_bytes = gib * GIB;
        snprintf(l.v[l.n - 1].label, sizeof l.v[0].label, "hold, %u GiB", (unsigned)gib);
    }
    add(&l, "a state kept at every token, for ever", "oracle");
    l.v[l.n - 1].is = "bound";
    l.v[l.n - 1].reused = bound;
    rc = simulate(&l, t, oracle, snap, defaults.token_bytes, e->ring, err);
    const struct candidate *now = rc ? NULL : as_it_is(&l, e->reused_share, prompt);
    json_t *list = json_array();
    for (size_t i = 0; i < l.n && !rc; i++) {
        if (&l.v[i] == now)
            l.v[i].is = "as it is";
        if (json_array_append_new(list, result(&l.v[i], prompt, e->rate, e->reused_share)))
            rc = err_set(err, RC_NOMEM, "no memory for the prediction");
    }
    if (!rc) {
        *out = json_pack("{s:I, s:I, s:I, s:I, s:b, s:o, s:[s, s, s]}", "turns", (json_int_t)t->n,
                         "turns_in_all", (json_int_t)all, "prompt_tokens", (json_int_t)prompt,
                         "checkpoint_bytes", (json_int_t)snap, "checkpoint_bytes_from_log",
                         (int)known, "policies", list, "assumptions",
                         "The log shows what a prompt shares with its slot's content, not with "
                         "anything older: what a "
                         "cache for all requests would find beyond that is missing here.",
                         "KV is taken as 20,480 bytes a token; it decides only how much fits.",
                         "Requests come one after the other; where messages begin is not known.");
        if (*out && !isnan(e->reused_share))
            json_object_set_new(*out, "share_in_log", json_real(e->reused_share));
        if (*out && now)
            json_object_set_new(*out, "as_it_is", json_string(now->label));
        list = NULL;
        if (!*out)
            rc = err_set(err, RC_NOMEM, "no memory for the prediction");
    }
    json_decref(list);
    mem_free(oracle);
    trace_close(t);
    return rc;
}
