#include "cli/ppl.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"

enum {
    LOGIT_ROWS = 32
}; /* rows of logits at a time: a vocabulary of 248,320 makes 32 MB of them */

double ppl_value(const struct ppl *p)
{
    return exp(p->nll / (double)p->n_scored);
}

double ppl_error(const struct ppl *p)
{
    const double n = (double)p->n_scored, mean = p->nll / n;
    const double variance = fmax(p->nll2 / n - mean * mean, 0);
    return ppl_value(p) * sqrt(variance / (n - 1));
}

uint32_t ppl_windows(const struct ppl_opts *o)
{
    const uint64_t step = o->stride ? o->stride : o->n_ctx;
    const uint64_t all = o->n < o->n_ctx ? 0 : (o->n - o->n_ctx) / step + 1;
    return (uint32_t)MIN(all, (uint64_t)(o->n_windows ? o->n_windows : UINT32_MAX));
}

struct rig {
    struct model *m;
    struct pool *pool;
    uint32_t n_vocab;
    struct kv *kv;
    struct rec *rec;
    struct kv_table t;
    rec_slot slot;
    token *window;     /* [n_ctx] */
    float *logits;     /* [LOGIT_ROWS][n_vocab] */
    const token *want; /* [rows]: what follows each row of logits */
    double nll[LOGIT_ROWS];
};

static enum rc rig_init(struct rig *r, struct model *m, struct pool *pool, uint32_t n_ctx,
                        struct err *err)
{
    const struct model_info *info = model_info(m);
    *r = (struct rig){.m = m, .pool = pool, .n_vocab = info->n_vocab};
    kv_table_init(&r->t);
    enum rc rc = kv_new(&info->shape, 0, &r->kv, err);
    if (!rc)
        rc = rec_new(&info->shape, 1, &r->rec, err);
    r->window = mem_try_array(n_ctx, sizeof *r->window);
    r->logits = mem_try_array((size_t)LOGIT_ROWS * r->n_vocab, sizeof *r->logits);
    if (!rc && (!r->window || !r->logits))
        rc = err_set(err, RC_NOMEM, "no memory for windows of %u tokens", n_ctx);
    return rc;
}

static void rig_release(struct rig *r)
{
    if (r->kv)
        kv_table_release(r->kv, &r->t);
    rec_free(r->rec);
    kv_free(r->kv);
    mem_free(r->window);
    mem_free(r->logits);
}

/* -ln softmax(logits)[want] of one row. */
static void score_row(void *ctx, uint32_t row, uint32_t worker)
{
    (void)worker;
    struct rig *r = ctx;
    const float *l = r->logits + (size_t)row * r->n_vocab;
    float top = l[0];
    for (uint32_t i = 1; i < r->n_vocab; i++)
        top = MAX(top, l[i]);
    double sum = 0;
    for (uint32_t i = 0; i < r->n_vocab; i++)
        sum += (double)expf(l[i] - top);
    r->nll[row] = log(sum) - ((double)l[r->want[row]] - (double)top);
}

/* Evaluates window [from, from + n); logits of all its rows when wanted. */
static enum rc feed(struct rig *r, uint32_t from, uint32_t n, bool wanted, struct err *err)
{
    const enum rc rc = kv_table_extend(r->kv, &r->t, n, err);
    if (rc)
        return rc;
    const struct run run = {r->window + from, n, from, &r->t, r->slot, wanted ? n : 0, r->logits};
    model_forward(r->m, r->kv, r->rec, &run, 1);
    kv_table_advance(&r->t, n);
    return RC_OK;
}

/* The rows from first on are scored; the window's last token is only foretold. */
static enum rc run_window(struct rig *r, uint32_t n_ctx, uint32_t first, struct ppl *p,
                          struct err *err)
{
    const uint32_t max_batch = model_info(r->m)->max_batch, end = n_ctx - 1;
    enum rc rc = RC_OK;
    r->slot = rec_take(r->rec);
    CHECK(r->slot);
    for (uint32_t at = 0, n; at < end && !rc; at += n) {
        const bool wanted = at >= first;
        n = wanted ? MIN(end - at, MIN(max_batch, (uint32_t)LOGIT_ROWS))
                   : MIN(first - at, max_batch);
        rc = feed(r, at, n, wanted, err);
        if (rc || !wanted)
            continue;
        r->want = r->window + at + 1;
        pool_run(r->pool, n, score_row, r);
        for (uint32_t i = 0; i < n; i++) {
            p->nll += r->nll[i];
            p->nll2 += r->nll[i] * r->nll[i];
        }
        p->n_scored += n;
    }
    p->n_windows++;
    rec_give(r->rec, r->slot);
    kv_table_release(r->kv, &r->t);
    return rc;
}

static enum rc check(const struct model_info *info, const struct ppl_opts *o, struct err *err)
{
    if (o->n_ctx < 4 || o->n_ctx > info->n_ctx_train)
        return err_set(err, RC_ARG, "windows of %u tokens: from 4 to %u, the model's context",
                       o->n_ctx, info->n_ctx_train);
    if (o->stride >= o->n_ctx)
        return err_set(err, RC_ARG, "a stride of %u must be less than the window of %u", o->stride,
                       o->n_ctx);
    if (o->n < o->n_ctx)
        return err_set(err, RC_ARG, "the text has %" PRIu64 " tokens: no window of %u", o->n,
                       o->n_ctx);
    for (uint64_t i = 0; i < o->n; i++)
        if (o->tokens[i] < 0 || (uint32_t)o->tokens[i] >= info->n_vocab)
            return err_set(err, RC_ARG, "token %d at %" PRIu64 " is not in the vocabulary of %u",
                           o->tokens[i], i, info->n_vocab);
    return RC_OK;
}

enum rc ppl_run(struct model *m, struct pool *pool, const struct ppl_opts *o,
                void (*each)(void *ctx, const struct ppl *p), void *ctx, struct ppl *out,
                struct err *err)
{
    struct rig r = {0};
    *out = (struct ppl){0};
    enum rc rc = check(model_info(m), o, err);
    if (rc)
        return rc;
    rc = rig_init(&r, m, pool, o->n_ctx, err);
    const uint64_t step = o->stride ? o->stride : o->n_ctx;
    const uint32_t first = o->stride ? o->n_ctx - 1 - o->stride : o->n_ctx / 2;
    const uint32_t n = ppl_windows(o);
    for (uint32_t w = 0; w < n && !rc; w++) {
        memcpy(r.window, o->tokens + w * step, o->n_ctx * sizeof *r.window);
        if (o->bos >= 0)
            r.window[0] = o->bos;
        rc = run_window(&r, o->n_ctx, first, out, err);
        if (!rc && each)
            each(ctx, out);
    }
    rig_release(&r);
    return rc;
}
