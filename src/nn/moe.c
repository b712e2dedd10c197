#include "nn/moe.h"

#include <string.h>

#include "base/mem.h"
#include "kern/kern.h"
#include "nn/act.h"
#include "nn/rows.h"

struct moe {
    const struct kern *k;
    struct pool *pool;
    struct moe_shape s;
    struct act *pair_act;   /* rows of the experts' hidden layer */
    float *p;               /* [max_rows][n_experts]: router */
    uint32_t *chosen;       /* [max_rows][n_used] */
    float *weight;          /* [max_rows][n_used] */
    uint32_t *begin;        /* [n_experts + 1]: pairs of expert e */
    uint32_t *expert, *row; /* [pairs], sorted by expert */
    uint32_t *pair;         /* [max_rows][n_used]: where the pair of a choice went */
    uint32_t *self;         /* [pairs]: 0, 1, 2 ... */
    float *gate, *up;       /* [pairs][n_ff]; gate [pairs][2 n_ff] when they are one matrix */
    float *down;            /* [pairs][n_embd] */
    float *gate_s, *up_s;   /* [max_rows][n_ff_shared] */
    float *down_s;          /* [max_rows][n_embd] */
};

enum rc moe_new(const struct kern *k, struct pool *pool, const struct moe_shape *s,
                struct moe **out, struct err *err)
{
    struct moe *m = mem_zalloc(sizeof *m);
    m->k = k;
    m->pool = pool;
    m->s = *s;
    const size_t rows = s->max_rows, pairs = rows * s->n_used, f = sizeof(float);
    enum rc rc = act_new(k, (uint32_t)pairs, s->n_ff, &m->pair_act, err);
    if (rc)
        goto fail;
    m->p = mem_try_array(rows * s->n_experts, f);
    m->chosen = mem_try_array(pairs, sizeof(uint32_t));
    m->weight = mem_try_array(pairs, f);
    m->begin = mem_try_array((size_t)s->n_experts + 1, sizeof(uint32_t));
    m->expert = mem_try_array(pairs, sizeof(uint32_t));
    m->row = mem_try_array(pairs, sizeof(uint32_t));
    m->pair = mem_try_array(pairs, sizeof(uint32_t));
    m->self = mem_try_array(pairs, sizeof(uint32_t));
    m->gate = mem_try_huge(pairs * s->n_ff * 2 * f);
    m->up = mem_try_huge(pairs * s->n_ff * f);
    m->down = mem_try_huge(pairs * s->n_embd * f);
    m->gate_s = mem_try_array(rows * s->n_ff_shared, f);
    m->up_s = mem_try_array(rows * s->n_ff_shared, f);
    m->down_s = mem_try_array(rows * s->n_embd, f);
    if (!m->p || !m->chosen || !m->weight || !m->begin || !m->expert || !m->row || !m->pair ||
        !m->self || !m->gate || !m->up || !m->down || !m->gate_s || !m->up_s || !m->down_s) {
        rc = err_set(err, RC_NOMEM, "no memory for experts of %" PRIu32 " rows", s->max_rows);
        goto fail;
    }
    for (uint32_t i = 0; i < pairs; i++)
        m->self[i] = i;
    *out = m;
    return RC_OK;
fail:
    moe_free(m);
    return rc;
}

void moe_free(struct moe *m)
{
    if (!m)
        return;
    act_free(m->pair_act);
    mem_free(m->p);
    mem_free(m->chosen);
    mem_free(m->weight);
    mem_free(m->begin);
    mem_free(m->expert);
    mem_free(m->row);
    mem_free(m->pair);
    mem_free(m->self);
    mem_free(m->gate);
    mem_free(m->up);
    mem_free(m->down);
    mem_free(m->gate_s);
    mem_free(m->up_s);
    mem_free(m->down_s);
    mem_free(m);
}

void moe_choose(const struct kern *k, float *p, uint32_t n_experts, uint32_t n_used,
                uint32_t *experts, float *weights)
{
    k->seq.softmax(p, n_experts);
    float sum = 0;
    for (uint32_t i = 0; i < n_used; i++) {
        uint32_t best = 0;
        for (uint32_t e = 1; e < n_experts; e++)
            if (p[e] > p[best])
                best = e;
        experts[i] = best;
        weights[i] = p[best];
        sum += p[best];
        p[best] = -1; /* taken */
    }
    sum = MAX(sum, 0x1p-14f); /* 6.1035e-5, the least normal f16 */
    for (uint32_t i = 0; i < n_used; i++)
        weights[i] /= sum;
}

static void choose_rows(const void *ctx, uint32_t r0, uint32_t r1)
{
    const struct moe *m = ctx;
    for (size_t r = r0; r < r1; r++)
        moe_choose(m->k, m->p + r * m->s.n_experts, m->s.n_experts, m->s.n_used,
                   m->chosen + r * m->s.n_used, m->weight + r * m->s.n_used);
}

/* Sorts the choices of n rows by expert, rows in order within one. */
static void group_by_expert(struct moe *m, uint32_t n)
{
    const uint32_t pairs = n * m->s.n_used;
    memset(m->begin, 0, ((size_t)m->s.n_experts + 1) * sizeof *m->begin);
    for (uint32_t i = 0; i < pairs; i++)
        m->begin[m->chosen[i] + 1]++;
    for (uint32_t e = 0; e < m->s.n_experts; e++)
        m->begin[e + 1] += m->begin[e];
    for (uint32_t i = 0; i < pairs; i++) {
        const uint32_t p = m->begin[m->chosen[i]]++;
        m->expert[p] = m->chosen[i];
        m->row[p] = i / m->s.n_used;
        m->pair[i] = p;
    }
}

struct sum_job {
    const struct moe *m;
    const struct moe_layer *l;
    const float *h;
    float *y;
};

static void sum_rows(const void *ctx, uint32_t r0, uint32_t r1)
{
    const struct sum_job *j = ctx;
    const struct moe *m = j->m;
    const uint32_t k = m->s.n_used, n_embd = m->s.n_embd;
    for (size_t r = r0; r < r1; r++) {
        const float *rows[MOE_MAX_USED + 1];
        float w[MOE_MAX_USED + 1];
        for (uint32_t i = 0; i < k; i++) {
            rows[i] = m->down + (size_t)m->pair[r * k + i] * n_embd;
            w[i] = m->weight[r * k + i];
        }
        rows[k] = m->down_s + r * n_embd;
        w[k] = m->k->seq.sigmoid(m->k->seq.dot(j->l->shared, j->h + r * n_embd, n_embd));
        m->k->seq.weighted_sum(rows, w, k + 1, n_embd, j->y + r * n_embd);
    }
}

void moe_forward(struct moe *m, const struct moe_layer *l, struct act *a, const float *h,
                 uint32_t n, float *y)
{
    const struct moe_shape *s = &m->s;
    const uint32_t ff = s->n_ff, pairs = n * s->n_used;
    const struct matmul_job first[] = {
        {l->router, m->p, s->n_experts, 0},
        {l->gate_s, m->gate_s, s->n_ff_shared, 0},
        {l->up_s, m->up_s, s->n_ff_shared, 0},
    };
    matmul_many(m->pool, first, COUNT_OF(first), a);
    rows_run(m->pool, n, (uint64_t)s->n_experts * s->n_used, choose_rows, m);
    group_by_expert(m, n);

    if (l->up) {
        matmul_experts(m->pool, l->gate, a, m->expert, m->row, pairs, m->gate, ff);
        matmul_experts(m->pool, l->up, a, m->expert, m->row, pairs, m->up, ff);
        silu_mul_rows(m->k, m->pool, m->gate, m->up, ff, pairs, ff, m->up);
    } else {
        matmul_experts(m->pool, l->gate, a, m->expert, m->row, pairs, m->gate, 2 * (uint64_t)ff);
        silu_mul_rows(m->k, m->pool, m->gate, m->gate + ff, 2 * (uint64_t)ff, pairs, ff, m->up);
    }
    act_set(m->pair_act, m->up, pairs, ff, ff);
    matmul_experts(m->pool, l->down, m->pair_act, m->expert, m->self, pairs, m->down, s->n_embd);

    const uint32_t ffs = s->n_ff_shared;
    silu_mul_rows(m->k, m->pool, m->gate_s, m->up_s, ffs, n, ffs, m->gate_s);
    act_set(a, m->gate_s, n, ffs, ffs);
    matmul(m->pool, l->down_s, a, m->down_s, s->n_embd);
    const struct sum_job j = {m, l, h, y};
    rows_run(m->pool, n, (uint64_t)s->n_embd * (s->n_used + 2), sum_rows, &j);
}
