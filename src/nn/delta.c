#include "nn/delta.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "kern/kern.h"

/* Tokens taken together: a tile of S stays in L1 while their q and k pass.  Fewer, and S goes to and fro
 * more often. */
enum { BLOCK = 32 };

struct scratch {          /* of one worker */
    float *q, *k, *v, *o; /* [BLOCK][dim] */
    float alpha[BLOCK], b[BLOCK], decay[BLOCK], beta[BLOCK];
};

struct delta {
    const struct kern *k;
    struct pool *pool;
    struct delta_shape s;
    uint32_t channels;
    struct scratch *workers;
    float *worker_mem;
};

/* Up to so many rows memory sets the time: a head's state comes in and goes out again. */
enum { FEW_ROWS = 16 };

struct layer_run {
    const struct delta *d;
    const struct delta_layer *l;
    struct rec *rec;
    const struct stretch *runs;
    uint32_t n_rows;
    uint32_t heads, parts; /* key heads of a part, parts of a run */
    const float *u, *z, *alpha, *beta;
    float *y;
};

enum rc delta_new(const struct kern *k, struct pool *pool, const struct delta_shape *s,
                  struct delta **out, struct err *err)
{
    assert(s->n_v_heads % s->n_k_heads == 0 && s->dim % SEQ_STATE_STEP == 0);
    assert(s->dim <= SEQ_MAX_DIM && s->n_taps >= 2 && s->n_taps <= SEQ_MAX_TAPS);
    const uint32_t n = pool_n_threads(pool);
    const size_t block = (size_t)BLOCK * s->dim;
    struct delta *d = mem_zalloc(sizeof *d);
    *d = (struct delta){.k = k, .pool = pool, .s = *s};
    d->channels = (2 * s->n_k_heads + s->n_v_heads) * s->dim;
    d->workers = mem_try_array(n, sizeof *d->workers);
    d->worker_mem = mem_try_aligned(64, 4 * block * n * sizeof(float));
    if (!d->workers || !d->worker_mem) {
        delta_free(d);
        return err_set(err, RC_NOMEM, "no memory for the delta rule");
    }
    for (uint32_t i = 0; i < n; i++) {
        float *p = d->worker_mem + 4 * block * i;
        d->workers[i].q = p;
        d->workers[i].k = p + block;
        d->workers[i].v = p + 2 * block;
        d->workers[i].o = p + 3 * block;
    }
    *out = d;
    return RC_OK;
}

void delta_free(struct delta *d)
{
    if (!d)
        return;
    mem_free(d->workers);
    mem_free(d->worker_mem);
    mem_free(d);
}

/* Raw projections of a run's token i for block b (a query, key or value head); those before its first
 * token, i < 0, are in the conv state. */
static const float *raw_row(const struct layer_run *x, const struct stretch *run,
                            const float *state, uint32_t b, int64_t i)
{
    const uint64_t D = x->d->s.dim, back = x->d->s.n_taps - 1;
    return i < 0 ? state + (uint64_t)(i + (int64_t)back) * x->d->channels + b * D
                 : x->u + (b * (uint64_t)x->n_rows + run->row + (uint64_t)i) * D;
}

/* Block b of tokens [i0, i0 + n) after the convolution: y [n][dim]. */
static void convolve(const struct layer_run *x, const struct stretch *run, const float *state,
                     uint32_t b, uint32_t i0, uint32_t n, float *y)
{
    const struct delta_shape *s = &x->d->s;
    const uint32_t back = s->n_taps - 1;
    const float *rows[BLOCK + SEQ_MAX_TAPS];
    for (uint32_t i = 0; i < n + back; i++)
        rows[i] = raw_row(x, run, state, b, (int64_t)i0 + i - back);
    x->d->k->seq.conv_silu(rows, s->n_taps, x->l->conv + (uint64_t)b * s->dim, x->d->channels, n,
                           s->dim, y, s->dim);
}

/* What value head h reads and writes of the block of tokens from i on; a key head's first value head asks
 * for the queries and keys too.  All at once, before the recurrence, the units would wait for it.  After
 * the last block the state of the head that comes next, of a part whose key heads end at end. */
static struct seq_soon soon_of(const struct layer_run *x, const struct stretch *run,
                               const float *state, uint32_t h, uint32_t end, uint32_t i)
{
    const uint64_t K = x->d->s.n_k_heads, H = x->d->s.n_v_heads, D = x->d->s.dim;
    const uint64_t row = run->row + i;
    struct seq_soon soon = {.n = MIN(run->n - i, BLOCK)};
    if (!soon.n) {
        const uint64_t next = h + K < H ? h + K : h % K + 1;
        if (h + K < H || next < end)
            soon.S = rec_s(x->rec, run->rec, x->l->index) + next * D * D;
        return soon;
    }
    soon.at[0].rows = raw_row(x, run, state, (uint32_t)(2 * K + h), i);
    soon.at[1].rows = x->z + (h * (uint64_t)x->n_rows + row) * D;
    soon.at[2].rows = x->y + (row * H + h) * D;
    if (h < K) {
        soon.at[3].rows = raw_row(x, run, state, h, i);
        soon.at[4].rows = raw_row(x, run, state, (uint32_t)(K + h), i);
    }
    for (int j = 0; j < SEQ_SOON; j++)
        soon.at[j].stride = j == 2 ? H * D : D;
    return soon;
}

/* Tokens [i0, i0 + n) of a run through value head h; q and k are in the worker's scratch. */
static void value_head(const struct layer_run *x, const struct stretch *run, const float *state,
                       uint32_t h, uint32_t end, uint32_t i0, uint32_t n, struct scratch *w)
{
    const struct delta_shape *s = &x->d->s;
    const struct kern_seq *seq = &x->d->k->seq;
    const uint32_t H = s->n_v_heads, D = s->dim;
    for (uint32_t i = 0; i < n; i++) {
        const size_t at = (size_t)(run->row + i0 + i) * H + h;
        w->alpha[i] = x->alpha[at];
        w->b[i] = x->beta[at];
    }
    const float *z = x->z + (h * (uint64_t)x->n_rows + run->row + i0) * D;
    convolve(x, run, state, 2 * s->n_k_heads + h, i0, n, w->v);
    const struct seq_soon soon = soon_of(x, run, state, h, end, i0 + n);
    seq->gates(w->alpha, w->b, x->l->dt[h], x->l->a[h], n, w->decay, w->beta);
    seq->delta(rec_s(x->rec, run->rec, x->l->index) + (size_t)h * D * D, D, w->q, w->k, w->v,
               w->decay, w->beta, n, w->o, &soon);
    for (uint32_t i = 0; i < n; i++) {
        float *o = w->o + (size_t)i * D;
        seq->norm(o, NULL, x->l->norm, s->eps, D, o);
        seq->silu_mul(z + (size_t)i * D, o, D, x->y + ((size_t)(run->row + i0 + i) * H + h) * D);
    }
}

/* The last n_taps - 1 raw rows of a block become the conv state. */
static void move_conv_state(const struct layer_run *x, const struct stretch *run, float *state,
                            uint32_t b)
{
    const uint32_t back = x->d->s.n_taps - 1;
    for (uint32_t j = 0; j < back; j++) /* reads at or above what it writes */
        memmove(state + (size_t)j * x->d->channels + (size_t)b * x->d->s.dim,
                raw_row(x, run, state, b, (int64_t)run->n - back + j), x->d->s.dim * sizeof(float));
}

/* One run through key head j and its value heads: nobody else reads these channels or states.  The part
 * goes on with key heads up to end. */
static void run_head(const struct layer_run *x, const struct stretch *run, uint32_t j, uint32_t end,
                     struct scratch *w)
{
    const struct delta_shape *s = &x->d->s;
    const struct kern_seq *seq = &x->d->k->seq;
    const uint32_t K = s->n_k_heads, D = s->dim;
    float *state = rec_conv(x->rec, run->rec, x->l->index);
    for (uint32_t i0 = 0; i0 < run->n; i0 += BLOCK) {
        const uint32_t n = MIN(run->n - i0, BLOCK);
        convolve(x, run, state, j, i0, n, w->q);
        convolve(x, run, state, K + j, i0, n, w->k);
        for (uint32_t i = 0; i < n; i++) {
            float *q = w->q + (size_t)i * D, *k = w->k + (size_t)i * D;
            seq->l2norm(q, s->eps, 1.0f / sqrtf((float)D), D, q);
            seq->l2norm(k, s->eps, 1, D, k);
        }
        for (uint32_t h = j; h < s->n_v_heads; h += K)
            value_head(x, run, state, h, end, i0, n, w);
    }
    move_conv_state(x, run, state, j);
    move_conv_state(x, run, state, K + j);
    for (uint32_t h = j; h < s->n_v_heads; h += K)
        move_conv_state(x, run, state, 2 * K + h);
}

static void run_heads(void *ctx, uint32_t part, uint32_t worker)
{
    const struct layer_run *x = ctx;
    const uint32_t begin = part % x->parts * x->heads;
    const uint32_t end = MIN(begin + x->heads, x->d->s.n_k_heads);
    for (uint32_t j = begin; j < end; j++)
        run_head(x, &x->runs[part / x->parts], j, end, &x->d->workers[worker]);
}

void delta_forward(struct delta *d, const struct delta_layer *l, struct rec *rec,
                   const struct stretch *runs, uint32_t n_runs, uint32_t n_rows, const float *u,
                   const float *z, const float *alpha, const float *beta, float *y)
{
    const uint32_t K = d->s.n_k_heads;
    struct layer_run x = {d, l, rec, runs, n_rows, 1, K, u, z, alpha, beta, y};
    if (n_rows <= FEW_ROWS) { /* heads whose states follow one another */
        x.heads = MIN(K, MAX(1, n_runs * K / (2 * pool_n_threads(d->pool))));
        x.parts = (uint32_t)ceil_div(K, x.heads);
    }
    pool_run(d->pool, n_runs * x.parts, run_heads, &x);
}
