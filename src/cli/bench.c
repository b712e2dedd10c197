#include "cli/bench.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/hist.h"
#include "base/mem.h"
#include "base/rng.h"
#include "kern/pick.h"
#include "model/hparams.h"
#include "state/snap.h"

struct bench_rig {
    struct bench_opts o;
    struct bench_cost cost;
    struct pool *pool;
    struct roof_probe *probe;
    struct roof *roofs; /* [n_roofs] of the samples so far */
    uint32_t n_roofs, cap_roofs;
    struct model *model;
    struct kv *kv;
    struct rec *rec;
    struct snap_store *store;
    float *logits; /* [n_vocab] */
    /* the state that every sample starts from */
    struct kv_table kv_deep;
    struct snap *snap_deep;
    uint32_t depth;
};

/* ---- what it must cost ----------------------------------------------------------------------- */

static bool is_float(enum dtype t)
{
    return t == DT_F32 || t == DT_F16 || t == DT_BF16;
}

/* Block number of "blk.12.attn_q.weight"; UINT32_MAX when the name has none. */
static uint32_t block_of(struct str name)
{
    if (!str_starts(name, str_of("blk.")))
        return UINT32_MAX;
    uint32_t n = 0;
    for (size_t i = 4; i < name.n && name.p[i] >= '0' && name.p[i] <= '9'; i++)
        n = n * 10 + (uint32_t)(name.p[i] - '0');
    return n;
}

/* "blk.7.ffn_up.weight", "blk.7.ssm_out.weight" */
static bool after_mixer(struct str name)
{
    static const char *const begin[] = {"ffn_", "attn_output.", "ssm_out."};
    const char *dot = memchr(name.p + 4, '.', name.n - 4);
    if (!dot)
        return false;
    const struct str rest = {dot + 1, name.n - (size_t)(dot + 1 - name.p)};
    for (size_t i = 0; i < COUNT_OF(begin); i++)
        if (str_starts(rest, str_of(begin[i])))
            return true;
    return false;
}

enum rc bench_cost_of(const struct gguf *g, struct bench_cost *out, struct err *err)
{
    struct str arch = {0};
    enum rc rc = gguf_get_str(g, "general.architecture", true, &arch, err);
    if (rc)
        return rc;
    struct hparams hp;
    char name[32];
    snprintf(name, sizeof name, "%.*s", (int)MIN(arch.n, sizeof name - 1), arch.p);
    rc = hparams_read(g, name, str_is(arch, "qwen35moe"), &hp, err);
    if (rc)
        return rc;
    *out = (struct bench_cost){0};
    for (uint32_t i = 0; i < hp.n_layer; i++) /* q k, and p v: a multiply-add each */
        if (!hp.recurrent[i])
            *(i + 1 < hp.n_layer ? &out->attn_ops : &out->attn_last_ops) +=
                4.0 * hp.n_heads * hp.head_dim;
    const bool tied = !gguf_find_tensor(g, "output.weight");
    for (uint64_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        const uint32_t block = block_of(t->name);
        if (t->ne[1] == 1 || (block != UINT32_MAX && block >= hp.n_layer)) /* a vector; unused */
            continue;
        const bool embd = str_is(t->name, "token_embd.weight");
        if (embd && !tied) /* one row is read */
            continue;
        const bool late = embd || str_is(t->name, "output.weight") ||
                          (block + 1 == hp.n_layer && after_mixer(t->name));
        struct bench_work *w = late ? &out->head : &out->body;
        double share = 1;
        if (hp.moe && t->ne[2] == hp.n_experts && hp.n_experts > 1)
            share = (double)hp.n_used / hp.n_experts;
        const double n = (double)t->ne[0] * (double)t->ne[1] * (double)t->ne[2] * share;
        *(is_float(t->type) ? &w->f32_ops : &w->int8_ops) += 2 * n;
        w->read_bytes += (double)t->bytes * share;
    }
    return RC_OK;
}

static double compute_seconds(const struct bench_work *w, const struct roof *r)
{
    return w->int8_ops / r->int8_ops + w->f32_ops / r->f32_ops;
}

/* Seconds the f32 roofline allows for the attention of rows behind depth tokens. */
static double attn_least_seconds(const struct bench_cost *c, const struct roof *r, uint32_t rows,
                                 uint32_t depth)
{
    const double seen = (double)rows * depth + 0.5 * (double)rows * (rows + 1.0);
    return (c->attn_ops * seen + c->attn_last_ops * (depth + rows)) / r->f32_ops;
}

/* Seconds the rooflines allow for a forward of rows behind depth tokens, one of them with logits. */
static double least_seconds(const struct bench_cost *c, const struct shape *s, const struct roof *r,
                            uint32_t rows, uint32_t depth)
{
    const double compute = compute_seconds(&c->body, r) * rows + compute_seconds(&c->head, r) +
                           attn_least_seconds(c, r, rows, depth);
    /* a state is read and written; the KV before it is read */
    const double bytes = c->body.read_bytes + c->head.read_bytes +
                         2.0 * (double)shape_snap_bytes(s) + (double)shape_token_bytes(s) * depth;
    return MAX(compute, bytes / r->read_bytes);
}

/* ---- rooflines ------------------------------------------------------------------------------- */

/* Room for n more. */
static enum rc roofs_grow(struct bench_rig *b, uint32_t n, struct err *err)
{
    if (b->cap_roofs - b->n_roofs >= n)
        return RC_OK;
    const uint32_t cap = b->n_roofs + n;
    struct roof *r = mem_try_array(cap, sizeof *r);
    if (!r)
        return err_set(err, RC_NOMEM, "no memory for %u rooflines", cap);
    if (b->n_roofs)
        memcpy(r, b->roofs, b->n_roofs * sizeof *r);
    mem_free(b->roofs);
    b->roofs = r;
    b->cap_roofs = cap;
    return RC_OK;
}

static struct bench_roof roofs_of(const struct roof *r, uint32_t n)
{
    struct hist int8, f32, read;
    hist_init(&int8);
    hist_init(&f32);
    hist_init(&read);
    for (uint32_t i = 0; i < n; i++) {
        hist_add(&int8, r[i].int8_ops);
        hist_add(&f32, r[i].f32_ops);
        hist_add(&read, r[i].read_bytes);
    }
    const struct bench_roof o = {.median = {.int8_ops = hist_quantile(&int8, 0.5),
                                            .f32_ops = hist_quantile(&f32, 0.5),
                                            .read_bytes = hist_quantile(&read, 0.5)},
                                 .read_min = hist_quantile(&read, 0),
                                 .read_max = hist_quantile(&read, 1)};
    hist_release(&int8);
    hist_release(&f32);
    hist_release(&read);
    return o;
}

/* ---- the rig --------------------------------------------------------------------------------- */

enum rc bench_open(const struct bench_opts *o, struct bench_rig **out, struct err *err)
{
    struct bench_rig *b = mem_zalloc(sizeof *b);
    b->o = *o;
    kv_table_init(&b->kv_deep);
    const struct pool_opts po = {.n_threads = o->n_threads, .pin = o->pin};
    const struct kern *k;
    enum rc rc = bench_cost_of(o->g, &b->cost, err);
    if (!rc)
        rc = pool_new(&po, &b->pool, err);
    if (!rc)
        rc = kern_pick(o->isa, &k, err);
    if (!rc)
        rc = roof_new(k, b->pool, &b->probe, err);
    if (!rc && !(rc = roofs_grow(b, 1, err))) /* in case there is no sample */
        b->roofs[b->n_roofs++] = roof_measure(b->probe);
    const struct model_opts mo = {.pool = b->pool,
                                  .lg = o->lg,
                                  .isa = o->isa,
                                  .kv_type = o->kv_type,
                                  .max_batch = o->n_ubatch,
                                  .no_repack = o->no_repack,
                                  .mlock = o->mlock};
    if (!rc)
        rc = model_open(o->g, &mo, &b->model, err);
    if (!rc) {
        const struct shape *s = &model_info(b->model)->shape;
        rc = kv_new(s, 0, &b->kv, err);
        if (!rc)
            rc = rec_new(s, 1, &b->rec, err);
        if (!rc)
            rc = snap_store_new(s, &b->store, err);
        b->logits = mem_try_array(model_info(b->model)->n_vocab, sizeof *b->logits);
        if (!rc && !b->logits)
            rc = err_set(err, RC_NOMEM, "no memory for logits");
    }
    if (rc) {
        bench_close(b);
        return rc;
    }
    *out = b;
    return RC_OK;
}

void bench_close(struct bench_rig *b)
{
    if (!b)
        return;
    if (b->snap_deep)
        snap_free(b->store, b->snap_deep);
    if (b->kv)
        kv_table_release(b->kv, &b->kv_deep);
    mem_free(b->logits);
    snap_store_free(b->store);
    rec_free(b->rec);
    kv_free(b->kv);
    model_close(b->model);
    roof_free(b->probe);
    mem_free(b->roofs);
    pool_free(b->pool);
    mem_free(b);
}

const struct model_info *bench_model(const struct bench_rig *b)
{
    return model_info(b->model);
}

/* Evaluates tokens [n] behind t, up to step a forward; logits of the last row of each forward when
 * every, else of the last forward alone. */
static enum rc evaluate(struct bench_rig *b, struct kv_table *t, rec_slot slot, const token *tokens,
                        uint32_t n, uint32_t step, bool every, struct err *err)
{
    for (uint32_t i = 0; i < n;) {
        const uint32_t k = MIN(step, n - i);
        const enum rc rc = kv_table_extend(b->kv, t, k, err);
        if (rc)
            return rc;
        const struct run run = {.tokens = tokens + i,
                                .n = k,
                                .pos = t->len,
                                .kv = t,
                                .rec = slot,
                                .n_logits = every || i + k == n,
                                .logits = b->logits};
        model_forward(b->model, b->kv, b->rec, &run, 1);
        kv_table_advance(t, k);
        i += k;
    }
    return RC_OK;
}

static token *random_tokens(const struct bench_rig *b, uint32_t n)
{
    token *t = mem_try_array(n, sizeof *t);
    struct rng rng = {1};
    for (uint32_t i = 0; t && i < n; i++)
        t[i] = (token)rng_below(&rng, model_info(b->model)->n_vocab);
    return t;
}

/* kv_deep and snap_deep become the state after depth tokens. */
static enum rc go_deep(struct bench_rig *b, rec_slot slot, uint32_t depth, struct err *err)
{
    if (b->snap_deep && b->depth == depth)
        return RC_OK;
    if (b->snap_deep)
        snap_free(b->store, b->snap_deep);
    b->snap_deep = NULL;
    kv_table_release(b->kv, &b->kv_deep);
    token *tokens = random_tokens(b, depth);
    if (!tokens)
        return err_set(err, RC_NOMEM, "no memory for %u tokens", depth);
    enum rc rc =
        evaluate(b, &b->kv_deep, slot, tokens, depth, model_info(b->model)->max_batch, false, err);
    if (!rc)
        rc = snap_take(b->store, b->rec, slot, &b->snap_deep, err);
    b->depth = depth;
    mem_free(tokens);
    return rc;
}

/* Tokens decoded between two passes over memory. */
enum { DECODE_SLICE = 8 };

/* tokens [n] behind t; adds the seconds to *s, and in a decode what memory gave in between to reads. */
static enum rc timed(struct bench_rig *b, struct kv_table *t, rec_slot slot, enum bench_kind kind,
                     const token *tokens, uint32_t n, double *s, struct hist *reads,
                     struct err *err)
{
    const bool decode = kind == BENCH_DECODE;
    const uint32_t slice = decode ? DECODE_SLICE : n;
    for (uint32_t i = 0; i < n; i += slice) {
        if (i)
            hist_add(reads, roof_read(b->probe));
        const uint64_t start = clock_mono_ns();
        const enum rc rc = evaluate(b, t, slot, tokens + i, MIN(slice, n - i),
                                    decode ? 1 : model_info(b->model)->max_batch, decode, err);
        *s += (double)(clock_mono_ns() - start) * 1e-9;
        if (rc)
            return rc;
    }
    return RC_OK;
}

/* One sample; its seconds in *s, what the machine could do meanwhile in *roof. */
static enum rc sample(struct bench_rig *b, rec_slot slot, enum bench_kind kind, const token *tokens,
                      uint32_t n, double *s, struct roof *roof, struct model_profile *profile,
                      struct err *err)
{
    struct hist reads;
    struct kv_table t;
    kv_table_init(&t);
    enum rc rc = kv_table_fork(b->kv, &b->kv_deep, b->depth, &t, err);
    if (rc)
        return rc;
    snap_restore(b->snap_deep, b->rec, slot);
    hist_init(&reads);
    const struct roof before = roof_measure(b->probe);
    model_set_profile(b->model, profile);
    *s = 0;
    rc = timed(b, &t, slot, kind, tokens, n, s, &reads, err);
    model_set_profile(b->model, NULL);
    const struct roof after = roof_measure(b->probe);
    *roof = roof_better(&before, &after);
    if (reads.n) {
        hist_add(&reads, before.read_bytes);
        hist_add(&reads, after.read_bytes);
        roof->read_bytes = hist_quantile(&reads, 0.75);
    }
    hist_release(&reads);
    kv_table_release(b->kv, &t);
    return rc;
}

static enum rc result_init(const struct bench_rig *b, enum bench_kind kind, uint32_t n_samples,
                           struct bench_result *out, struct err *err)
{
    *out = (struct bench_result){.kind = kind,
                                 .n_threads = pool_n_threads(b->pool),
                                 .s = mem_try_array(n_samples, sizeof(double)),
                                 .least_s = mem_try_array(n_samples, sizeof(double)),
                                 .restore_s = mem_try_array(n_samples, sizeof(double)),
                                 .copy_s = mem_try_array(n_samples, sizeof(double))};
    if (out->s && out->least_s && out->restore_s && out->copy_s)
        return RC_OK;
    bench_result_release(out);
    return err_set(err, RC_NOMEM, "no memory for %u samples", n_samples);
}

void bench_result_release(struct bench_result *r)
{
    mem_free(r->s);
    mem_free(r->least_s);
    mem_free(r->restore_s);
    mem_free(r->copy_s);
    *r = (struct bench_result){0};
}

/* roofs [n_samples] */
static void hold_to_roofs(const struct bench_rig *b, const struct roof *roofs,
                          struct bench_result *out)
{
    const struct model_info *m = model_info(b->model);
    const uint32_t step = out->kind == BENCH_DECODE ? 1 : m->max_batch;
    for (uint32_t i = 0; i < out->n_samples; i++) {
        const struct roof r = roofs[i];
        out->least_s[i] = 0;
        for (uint32_t at = 0; at < out->n_tokens; at += step) {
            const uint32_t rows = MIN(step, out->n_tokens - at), depth = out->n_depth + at;
            out->least_s[i] += least_seconds(&b->cost, &m->shape, &r, rows, depth);
            out->attn_least_s += attn_least_seconds(&b->cost, &r, rows, depth);
        }
    }
    out->roof = roofs_of(roofs, out->n_samples);
}

enum rc bench_run(struct bench_rig *b, enum bench_kind kind, uint32_t n_tokens, uint32_t n_depth,
                  uint32_t n_samples, struct bench_result *out, struct err *err)
{
    enum rc rc = result_init(b, kind, n_samples, out, err);
    if (rc)
        return rc;
    out->n_tokens = n_tokens;
    out->n_depth = n_depth;
    token *tokens = random_tokens(b, n_tokens);
    const rec_slot slot = rec_take(b->rec);
    CHECK(slot);
    rc = tokens ? go_deep(b, slot, n_depth, err)
                : err_set(err, RC_NOMEM, "no memory for %u tokens", n_tokens);
    const uint32_t first = b->n_roofs;
    double warm_up; /* one that does not count: caches and clocks come up */
    struct roof ignored;
    if (!rc && !(rc = roofs_grow(b, n_samples, err)))
        rc = sample(b, slot, kind, tokens, MIN(n_tokens, 64), &warm_up, &ignored, NULL, err);
    for (uint32_t i = 0; i < n_samples && !rc; i++) {
        rc = sample(b, slot, kind, tokens, n_tokens, &out->s[i], &b->roofs[b->n_roofs++],
                    b->o.profile ? &out->profile : NULL, err);
        out->n_samples++;
    }
    rec_give(b->rec, slot);
    mem_free(tokens);
    if (rc) {
        bench_result_release(out);
        return rc;
    }
    hold_to_roofs(b, b->roofs + first, out);
    return RC_OK;
}

enum rc bench_snapshot(struct bench_rig *b, uint32_t n_samples, struct bench_result *out,
                       struct err *err)
{
    enum rc rc = result_init(b, BENCH_SNAPSHOT, n_samples, out, err);
    if (rc)
        return rc;
    out->bytes = shape_snap_bytes(&model_info(b->model)->shape);
    out->roof = roofs_of(b->roofs, b->n_roofs);
    const rec_slot slot = rec_take(b->rec);
    CHECK(slot);
    void *copy = mem_try_aligned(64, out->bytes + 64);
    if (!copy)
        rc = err_set(err, RC_NOMEM, "no memory for a snapshot");
    if (copy)
        memset(copy, 1, out->bytes); /* pages are there before they are timed */
    for (uint32_t i = 0; i < n_samples && !rc; i++) {
        struct snap *s;
        uint64_t t0 = clock_mono_ns();
        rc = snap_take(b->store, b->rec, slot, &s, err);
        const uint64_t t1 = clock_mono_ns();
        if (rc)
            break;
        snap_restore(s, b->rec, slot);
        const uint64_t t2 = clock_mono_ns();
        memcpy(copy, rec_bytes(b->rec, slot), out->bytes);
        const uint64_t t3 = clock_mono_ns();
        snap_free(b->store, s);
        out->s[i] = (double)(t1 - t0) * 1e-9;
        out->restore_s[i] = (double)(t2 - t1) * 1e-9;
        out->copy_s[i] = (double)(t3 - t2) * 1e-9;
        out->n_samples++;
    }
    mem_free(copy);
    rec_give(b->rec, slot);
    if (rc)
        bench_result_release(out);
    return rc;
}
