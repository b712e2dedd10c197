#include "nn/attn.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "kern/kern.h"

static_assert((int)SEQ_PAGE == (int)KV_PAGE, "a KV page is an attention page");
static_assert((int)SEQ_F16 == (int)KV_F16 && (int)SEQ_F32 == (int)KV_F32 &&
                  (int)SEQ_Q8_0 == (int)KV_Q8_0 && (int)SEQ_I16 == (int)KV_I16,
              "kern's and state's types of KV are numbered alike");
static_assert(ATTN_SPAN % KV_PAGE == 0, "spans are whole pages");

enum {
    SPAN_PAGES = ATTN_SPAN / KV_PAGE,
    QUERY_ROWS = 16 * SEQ_GROUP, /* query rows against one KV head; q and o of a tile stay in L2 */
    ITEMS_PER_THREAD = 4,        /* fewer than that: spans are shared out as well */
};

/* A tile of one run against one KV head: tokens [t0, t1) of the run, spans [s0, s1).  With part >= 0 the
 * sums of its single span go to partial rows from there, to be combined later. */
struct item {
    uint32_t run, kv_head, t0, t1, s0, s1;
    int64_t part;
};

/* What combines partial sums: one row (token and head) and its spans. */
struct gather {
    uint32_t run, head, t, n_spans;
    uint32_t part, stride; /* rows of partial sums, from one span to the next */
};

struct scratch { /* of one worker */
    float *q, *o, *o_sum, *m, *l, *m_sum, *l_sum, *page;
    uint32_t *last;
};

struct attn {
    const struct kern *k;
    struct pool *pool;
    struct attn_shape s;
    struct rope rope;
    uint32_t gqa, tile_tokens, n_workers;
    float scale;
    float *cs, *sn; /* [max_rows][rot / 2] */
    struct scratch *workers;
    float *worker_mem;
    struct item *items;
    uint32_t n_items, max_items;
    struct gather *gathers;
    uint32_t n_gathers;
    float *part_o, *part_m, *part_l; /* [max_parts][D], [max_parts] */
    uint32_t n_parts, max_parts;
};

/* One batch through one layer, as the parts of a pool run see it. */
struct layer_run {
    struct attn *a;
    const struct attn_layer *l;
    struct kv *kv;
    const struct stretch *runs;
    uint32_t n_runs;
    float *qg, *k;
    const float *v;
    float *y;
};

static uint64_t scratch_floats(const struct attn *a)
{
    const uint64_t rows = (uint64_t)a->tile_tokens * a->gqa;
    return round_up(rows * a->s.head_dim * 3 + rows * 5 + SEQ_SCRATCH, 16);
}

static void divide_scratch(struct attn *a)
{
    const uint64_t rows = (uint64_t)a->tile_tokens * a->gqa;
    for (uint32_t w = 0; w < a->n_workers; w++) {
        struct scratch *s = &a->workers[w];
        float *p = a->worker_mem + w * scratch_floats(a);
        s->q = p, p += rows * a->s.head_dim;
        s->o = p, p += rows * a->s.head_dim;
        s->o_sum = p, p += rows * a->s.head_dim;
        s->page = p, p += SEQ_SCRATCH;
        s->m = p, p += rows;
        s->l = p, p += rows;
        s->m_sum = p, p += rows;
        s->l_sum = p, p += rows;
        s->last = (uint32_t *)(void *)p;
    }
}

enum rc attn_new(const struct kern *k, struct pool *pool, const struct attn_shape *s,
                 const struct rope *rope, struct attn **out, struct err *err)
{
    assert(s->n_heads % s->n_kv_heads == 0 && s->head_dim % SEQ_KV_STEP == 0);
    assert(s->head_dim <= SEQ_MAX_DIM && rope->rot <= s->head_dim);
    struct attn *a = mem_zalloc(sizeof *a);
    a->k = k;
    a->pool = pool;
    a->s = *s;
    a->rope = *rope;
    a->gqa = s->n_heads / s->n_kv_heads;
    a->tile_tokens = MAX(1, QUERY_ROWS / a->gqa);
    a->n_workers = pool_n_threads(pool);
    a->scale = 1.0f / sqrtf((float)s->head_dim);
    /* room for the spans of one row at 512 x 512 positions */
    a->max_parts = s->n_heads * 512;
    a->max_items = s->max_rows * s->n_kv_heads + a->max_parts;
    const uint64_t angles = (uint64_t)s->max_rows * (rope->rot / 2);
    a->cs = mem_try_array(angles, sizeof(float));
    a->sn = mem_try_array(angles, sizeof(float));
    a->workers = mem_try_array(a->n_workers, sizeof *a->workers);
    a->worker_mem = mem_try_aligned(64, a->n_workers * scratch_floats(a) * sizeof(float));
    a->items = mem_try_array(a->max_items, sizeof *a->items);
    a->gathers = mem_try_array(a->max_parts, sizeof *a->gathers);
    a->part_o = mem_try_aligned(64, (size_t)a->max_parts * s->head_dim * sizeof(float));
    a->part_m = mem_try_array(a->max_parts, sizeof(float));
    a->part_l = mem_try_array(a->max_parts, sizeof(float));
    if (!a->cs || !a->sn || !a->workers || !a->worker_mem || !a->items || !a->gathers ||
        !a->part_o || !a->part_m || !a->part_l) {
        attn_free(a);
        return err_set(err, RC_NOMEM, "no memory for attention over %" PRIu32 " rows", s->max_rows);
    }
    divide_scratch(a);
    *out = a;
    return RC_OK;
}

void attn_free(struct attn *a)
{
    if (!a)
        return;
    mem_free(a->cs);
    mem_free(a->sn);
    mem_free(a->workers);
    mem_free(a->worker_mem);
    mem_free(a->items);
    mem_free(a->gathers);
    mem_free(a->part_o);
    mem_free(a->part_m);
    mem_free(a->part_l);
    mem_free(a);
}

void attn_begin(struct attn *a, const struct stretch *runs, uint32_t n_runs)
{
    const uint32_t half = a->rope.rot / 2;
    for (uint32_t r = 0; r < n_runs; r++)
        for (uint32_t i = 0; i < runs[r].n; i++) {
            const size_t at = (size_t)(runs[r].row + i) * half;
            rope_angles(&a->rope, runs[r].pos + i, a->cs + at, a->sn + at);
        }
}

static const struct stretch *run_of_row(const struct layer_run *x, uint32_t row)
{
    uint32_t r = 0;
    while (row >= x->runs[r].row + x->runs[r].n)
        r++;
    return &x->runs[r];
}

/* Norms and turns q and k of rows [r0, r1) and puts k, v into their pages. */
static void prepare_rows(const void *ctx, uint32_t r0, uint32_t r1)
{
    const struct layer_run *x = ctx;
    const struct attn *a = x->a;
    const struct kern_seq *seq = &a->k->seq;
    const uint32_t D = a->s.head_dim, half = a->rope.rot / 2;
    for (uint32_t row = r0; row < r1; row++) {
        const float *cs = a->cs + (size_t)row * half, *sn = a->sn + (size_t)row * half;
        float *q = x->qg + (size_t)row * a->s.n_heads * 2 * D;
        for (uint32_t h = 0; h < a->s.n_heads; h++, q += 2 * (size_t)D)
            seq->norm_rope(q, x->l->q_norm, a->s.eps, D, a->rope.rot, cs, sn, a->scale, q);
        const struct stretch *run = run_of_row(x, row);
        const uint32_t pos = run->pos + (row - run->row);
        const kv_page page = run->kv->pages[pos / KV_PAGE];
        for (uint32_t h = 0; h < a->s.n_kv_heads; h++) {
            const size_t at = ((size_t)row * a->s.n_kv_heads + h) * D;
            float *k = x->k + at;
            seq->norm_rope(k, x->l->k_norm, a->s.eps, D, a->rope.rot, cs, sn, 1, k);
            seq->kv_put[a->s.kv_type](k, x->v + at, D, pos % KV_PAGE,
                                      kv_k(x->kv, page, x->l->index, h),
                                      kv_v(x->kv, page, x->l->index, h));
        }
    }
}

static const float *query(const struct layer_run *x, const struct stretch *run, uint32_t t,
                          uint32_t head)
{
    return x->qg + ((size_t)(run->row + t) * x->a->s.n_heads + head) * 2 * x->a->s.head_dim;
}

/* One span of a tile: the pages that any of its rows sees. */
static void span(const struct layer_run *x, const struct item *it, struct seq_tile *tile,
                 uint32_t s, float *page)
{
    const struct attn *a = x->a;
    const struct stretch *run = &x->runs[it->run];
    const uint32_t end = tile->last[tile->n_rows - 1] / KV_PAGE;
    a->k->seq.attn_begin(tile);
    for (uint32_t j = s * SPAN_PAGES; j < (s + 1) * SPAN_PAGES && j <= end; j++) {
        const kv_page p = run->kv->pages[j];
        tile->next_k =
            j < end ? kv_k(x->kv, run->kv->pages[j + 1], x->l->index, it->kv_head) : NULL;
        a->k->seq.attn_page[a->s.kv_type](tile, j * KV_PAGE,
                                          kv_k(x->kv, p, x->l->index, it->kv_head),
                                          kv_v(x->kv, p, x->l->index, it->kv_head), page);
    }
}

static void run_item(void *arg, uint32_t part, uint32_t worker)
{
    const struct layer_run *x = arg;
    struct attn *a = x->a;
    const struct kern_seq *seq = &a->k->seq;
    const struct item *it = &a->items[part];
    const struct scratch *w = &a->workers[worker];
    const struct stretch *run = &x->runs[it->run];
    const uint32_t D = a->s.head_dim, n_rows = (it->t1 - it->t0) * a->gqa;
    /* row r: token t0 + r / gqa, head kv_head * gqa + r % gqa */
    for (uint32_t r = 0; r < n_rows; r++) {
        const uint32_t t = it->t0 + r / a->gqa;
        seq->pack_q[a->s.kv_type](query(x, run, t, it->kv_head * a->gqa + r % a->gqa), D, r, n_rows,
                                  w->q);
        w->last[r] = run->pos + t;
        w->m_sum[r] = -INFINITY;
    }
    struct seq_tile tile = {n_rows, D, w->last, w->q, w->o, w->m, w->l, NULL};
    if (it->part >= 0) {
        tile.o = a->part_o + it->part * D;
        tile.m = a->part_m + it->part;
        tile.l = a->part_l + it->part;
        span(x, it, &tile, it->s0, w->page);
        return;
    }
    for (uint32_t s = it->s0; s < it->s1; s++) {
        span(x, it, &tile, s, w->page);
        for (uint32_t r = 0; r < n_rows; r++)
            if (w->last[r] >= s * ATTN_SPAN)
                seq->attn_combine(w->o + (size_t)r * D, w->m[r], w->l[r], D,
                                  w->o_sum + (size_t)r * D, &w->m_sum[r], &w->l_sum[r]);
    }
    for (uint32_t r = 0; r < n_rows; r++) {
        const uint32_t t = it->t0 + r / a->gqa, head = it->kv_head * a->gqa + r % a->gqa;
        seq->attn_end(w->o_sum + (size_t)r * D, w->l_sum[r], query(x, run, t, head) + D, D,
                      x->y + ((size_t)(run->row + t) * a->s.n_heads + head) * D);
    }
}

/* Rows of partial sums, combined span by span. */
static void gather_rows(const void *ctx, uint32_t r0, uint32_t r1)
{
    const struct layer_run *x = ctx;
    const struct attn *a = x->a;
    const uint32_t D = a->s.head_dim;
    for (uint32_t i = r0; i < r1; i++) {
        const struct gather *g = &a->gathers[i];
        const struct stretch *run = &x->runs[g->run];
        float o[SEQ_MAX_DIM], m = -INFINITY, l = 0;
        for (uint32_t s = 0; s < g->n_spans; s++) {
            const size_t p = g->part + (size_t)s * g->stride;
            a->k->seq.attn_combine(a->part_o + p * D, a->part_m[p], a->part_l[p], D, o, &m, &l);
        }
        a->k->seq.attn_end(o, l, query(x, run, g->t, g->head) + D, D,
                           x->y + ((size_t)(run->row + g->t) * a->s.n_heads + g->head) * D);
    }
}

static uint32_t n_spans(const struct stretch *run, uint32_t t)
{
    return (run->pos + t) / ATTN_SPAN + 1;
}

/* An item for each span of a tile, if there is room for the partial sums. */
static bool share_out_spans(struct attn *a, const struct stretch *run, const struct item *it)
{
    const uint32_t n = it->s1, rows = (it->t1 - it->t0) * a->gqa;
    if (n < 2 || (uint64_t)rows * n > a->max_parts - a->n_parts)
        return false;
    for (uint32_t r = 0; r < rows; r++) {
        const uint32_t t = it->t0 + r / a->gqa;
        a->gathers[a->n_gathers++] = (struct gather){.run = it->run,
                                                     .head = it->kv_head * a->gqa + r % a->gqa,
                                                     .t = t,
                                                     .n_spans = n_spans(run, t),
                                                     .part = a->n_parts + r,
                                                     .stride = rows};
    }
    for (uint32_t s = 0; s < n; s++) {
        struct item *o = &a->items[a->n_items++];
        *o = *it;
        o->s0 = s;
        o->s1 = s + 1;
        o->part = a->n_parts;
        a->n_parts += rows;
    }
    return true;
}

/* Later tiles see more positions: they come first, so that the pool ends together. */
static void make_items(struct attn *a, const struct stretch *runs, uint32_t n_runs)
{
    uint64_t tiles = 0;
    for (uint32_t r = 0; r < n_runs; r++)
        tiles += ceil_div(runs[r].n - runs[r].n_silent, a->tile_tokens) * a->s.n_kv_heads;
    const bool few = a->n_workers > 1 && tiles < (uint64_t)ITEMS_PER_THREAD * a->n_workers;
    a->n_items = a->n_gathers = a->n_parts = 0;
    for (uint32_t r = n_runs; r-- > 0;)
        for (uint32_t t1 = runs[r].n, t0; t1 > runs[r].n_silent; t1 = t0) {
            t0 = MAX((t1 - 1) / a->tile_tokens * a->tile_tokens, runs[r].n_silent);
            for (uint32_t h = 0; h < a->s.n_kv_heads; h++) {
                const struct item it = {r, h, t0, t1, 0, n_spans(&runs[r], t1 - 1), -1};
                if (!few || !share_out_spans(a, &runs[r], &it))
                    a->items[a->n_items++] = it;
            }
        }
    assert(a->n_items <= a->max_items);
}

void attn_forward(struct attn *a, const struct attn_layer *l, struct kv *kv,
                  const struct stretch *runs, uint32_t n_runs, float *qg, float *k, const float *v,
                  float *y)
{
    struct layer_run x = {a, l, kv, runs, n_runs, qg, k, v, y};
    uint32_t rows = 0;
    for (uint32_t r = 0; r < n_runs; r++)
        rows = MAX(rows, runs[r].row + runs[r].n);
    const uint64_t cols = (a->s.n_heads + (uint64_t)2 * a->s.n_kv_heads) * a->s.head_dim;
    rows_run(a->pool, rows, 4 * cols, prepare_rows, &x);
    make_items(a, runs, n_runs);
    pool_run(a->pool, a->n_items, run_item, &x);
    rows_run(a->pool, a->n_gathers, 16 * (uint64_t)a->s.head_dim, gather_rows, &x);
}
