#include "lab/sim.h"

#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "cache/radix.h"

static void no_split(void *ctx, uint32_t upper, uint32_t lower)
{
    (void)ctx, (void)upper, (void)lower;
}

static void no_remove(void *ctx, uint32_t leaf)
{
    (void)ctx, (void)leaf;
}

enum rc sim_oracle(const struct trace *t, uint32_t **out, struct err *err)
{
    const struct radix_hooks hooks = {.split = no_split, .merge = no_split, .remove = no_remove};
    struct radix tree = {0};
    struct radix_path path = {0};
    struct trace_tokens x = {0};
    enum rc rc = RC_OK;
    *out = mem_try_array(t->n, sizeof **out);
    if (!*out || !radix_init(&tree, &hooks))
        rc = err_set(err, RC_NOMEM, "no memory for the oracle");
    for (uint32_t i = 0; !rc && i < t->n; i++) {
        rc = trace_expand(t, i, 0, &x, err);
        uint32_t lcp;
        if (rc)
            break;
        if (!radix_walk(&tree, x.seq, x.n_prompt, NULL, &lcp) ||
            !radix_insert(&tree, x.seq, x.n_prompt + x.n_gen, &path))
            rc = err_set(err, RC_NOMEM, "no memory for the oracle's tree at request %" PRIu32, i);
        else
            (*out)[i] = MIN(lcp, x.n_prompt - 1);
    }
    trace_tokens_release(&x);
    radix_path_release(&path);
    radix_release(&tree);
    if (rc) {
        mem_free(*out);
        *out = NULL;
    }
    return rc;
}

struct sim {
    const struct sim_opts *o;
    struct cache *cache;
    struct sim_result *res;
    uint64_t live; /* committed and not dropped */
};

static void on_drop(void *ctx, snap_id id)
{
    struct sim *s = ctx;
    (void)id;
    CHECK(s->live);
    s->live--;
}

/* A counted disk is always fast enough. */
static enum spill_result on_spill(void *ctx, const struct cache_spill *what)
{
    (void)ctx, (void)what;
    return SPILL_DONE;
}

static void on_move(void *ctx, snap_id id)
{
    (void)ctx, (void)id;
}

static void offer(struct sim *s, const struct plan *p, const token *seq, uint32_t pos,
                  enum cut_kind kind, uint64_t now_ns)
{
    const snap_id id = cache_offer(s->cache, p, seq, pos, kind, now_ns);
    if (!id)
        return;
    cache_commit(s->cache, id);
    s->live++;
    s->res->snap_bytes_written += s->o->snap_bytes;
}

static enum rc serve(struct sim *s, const struct trace_tokens *x, uint64_t now_ns, uint32_t *reused,
                     struct err *err)
{
    const struct plan_req r = {
        .prompt = x->seq,
        .n = x->n_prompt,
        .hints = x->hints,
        .n_hints = s->o->no_hints ? 0 : x->n_hints,
    };
    struct plan p;
    const enum rc rc = plan_make(s->cache, &r, now_ns, &p, err);
    if (rc)
        return rc;
    *reused = p.start;
    if (p.fetch) {
        s->res->read_seconds += (double)p.fetch_bytes / s->o->rates[CACHE_RATE_READ];
        cache_fetched(s->cache, p.restore, true, now_ns);
    }
    for (uint32_t i = 0; i < p.n_cuts; i++)
        offer(s, &p, x->seq, p.cuts[i].pos, p.cuts[i].kind, now_ns);
    offer(s, &p, x->seq, x->n_prompt + x->n_gen, CUT_GEN_END, now_ns);
    plan_done(s->cache, &p, x->seq, x->n_prompt + x->n_gen, now_ns);
    return RC_OK;
}

enum rc sim_run(const struct trace *t, const struct sim_opts *o, const uint32_t *oracle,
                uint32_t *reused, struct sim_result *out, struct err *err)
{
    *out = (struct sim_result){.prompt_tokens = t->prompt_tokens};
    struct sim s = {.o = o, .res = out};
    const struct cache_opts co = {
        .policy = o->policy,
        .ram_bytes = o->ram_bytes,
        .snap_bytes = o->snap_bytes,
        .token_bytes = o->token_bytes,
        .page_tokens = o->page_tokens,
        .step = o->step,
        .tree_bytes = o->tree_bytes,
        .charge_tree = o->charge_tree,
        .disk_bytes = o->disk_bytes,
        .rates = {o->rates[0], o->rates[1], o->rates[2]},
        .ops = {.ctx = &s,
                .drop = on_drop,
                .spill = on_spill,
                .drop_ram = on_move,
                .drop_disk = on_move},
    };
    enum rc rc = cache_new(&co, &s.cache, err);
    if (rc)
        return rc;
    struct trace_tokens x = {0};
    const uint64_t begun = clock_mono_ns();
    uint64_t deciding = 0;
    for (uint32_t i = 0; !rc && i < t->n; i++) {
        rc = trace_expand(t, i, 0, &x, err);
        if (rc)
            break;
        const uint64_t t0 = clock_cpu_ns();
        uint32_t got = 0;
        rc = serve(&s, &x, (uint64_t)(t->reqs[i].t * 1e9), &got, err);
        const uint64_t took = clock_cpu_ns() - t0;
        deciding += took;
        out->decide_ms_max = MAX(out->decide_ms_max, (double)took / 1e6);
        out->oracle_tokens += oracle[i];
        out->saved_tokens += got;
        out->hits += got > 0;
        if (reused)
            reused[i] = got;
        if (o->progress && i % 64 == 0)
            o->progress(o->progress_ctx, i, t->n);
    }
    if (o->progress)
        o->progress(o->progress_ctx, t->n, t->n);
    out->seconds = (double)(clock_mono_ns() - begun) / 1e9;
    out->decide_ms_mean = t->n ? (double)deciding / 1e6 / t->n : 0;
    cache_stats(s.cache, &out->cache);
    cache_free(s.cache);
    CHECK(rc || s.live == 0);
    trace_tokens_release(&x);
    return err_wrap(err, rc, "request");
}
