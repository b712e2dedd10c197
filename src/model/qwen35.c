/* qwen35.c - the forward pass of Qwen3.5, dense, from top to bottom.
 *
 *     x = embedding(token)
 *     for each layer:   x += mixer(norm(x));   x += ffn(norm(x))
 *     logits = W_head norm(x)
 *
 * The mixer is a gated delta net in three layers of four and full attention in the fourth.  README.md
 * has the maths.  What is added to x stays in y until the next norm, which adds it on the way.
 */
#include "model/model_int.h"

#include <string.h>

#include "kern/kern.h"
#include "nn/act.h"
#include "nn/norm.h"

/* ---- weights ---- */

static enum rc bind_dense(struct bind *b, const struct hparams *hp, struct layer *l,
                          struct err *err)
{
    const uint64_t E = hp->n_embd, F = hp->n_ff;
    enum rc rc;
    if ((rc = bind_mat(b, "ffn_gate.weight", E, F, 1, &l->gate, err)) ||
        (rc = bind_mat(b, "ffn_up.weight", E, F, 1, &l->up, err)) ||
        (rc = bind_mat(b, "ffn_down.weight", F, E, 1, &l->down, err)))
        return rc;
    return RC_OK;
}

static enum rc bind_attention(struct bind *b, const struct hparams *hp, struct layer *l,
                              struct err *err)
{
    const uint64_t E = hp->n_embd, hd = hp->head_dim, H = hp->n_heads * hd,
                   HK = hp->n_kv_heads * hd;
    enum rc rc;
    if ((rc = bind_mat(b, "attn_q.weight", E, 2 * H, 1, &l->q, err)) ||
        (rc = bind_mat(b, "attn_k.weight", E, HK, 1, &l->k, err)) ||
        (rc = bind_mat(b, "attn_v.weight", E, HK, 1, &l->v, err)) ||
        (rc = bind_vec(b, "attn_q_norm.weight", hd, &l->q_norm, err)) ||
        (rc = bind_vec(b, "attn_k_norm.weight", hd, &l->k_norm, err)) ||
        (rc = bind_mat(b, "attn_output.weight", H, E, 1, &l->out, err)))
        return rc;
    return RC_OK;
}

static enum rc bind_delta(struct bind *b, const struct hparams *hp, struct layer *l,
                          struct err *err)
{
    const uint64_t E = hp->n_embd, C = hparams_conv_channels(hp), nv = hp->n_v_heads;
    enum rc rc;
    if ((rc = bind_mat(b, "attn_qkv.weight", E, C, 1, &l->qkv, err)) ||
        (rc = bind_mat(b, "attn_gate.weight", E, nv * hp->state_dim, 1, &l->z, err)) ||
        (rc = bind_mat(b, "ssm_beta.weight", E, nv, 1, &l->beta, err)) ||
        (rc = bind_mat(b, "ssm_alpha.weight", E, nv, 1, &l->alpha, err)) ||
        (rc = bind_turned(b, "ssm_conv1d.weight", C, hp->conv_taps, &l->conv, err)) ||
        (rc = bind_vec(b, "ssm_a", nv, &l->a, err)) ||
        (rc = bind_vec(b, "ssm_dt.bias", nv, &l->dt, err)) ||
        (rc = bind_vec(b, "ssm_norm.weight", hp->state_dim, &l->norm, err)) ||
        (rc = bind_mat(b, "ssm_out.weight", nv * hp->state_dim, E, 1, &l->out, err)))
        return rc;
    return RC_OK;
}

enum rc qwen35_bind_layer(struct bind *b, const struct hparams *hp, uint32_t i,
                          const struct arch *arch, struct layer *l, struct err *err)
{
    enum rc rc;
    b->block = (int32_t)i;
    if ((rc = bind_vec(b, "attn_norm.weight", hp->n_embd, &l->attn_norm, err)) ||
        (rc = bind_vec(b, "post_attention_norm.weight", hp->n_embd, &l->ffn_norm, err)) ||
        (rc = hp->recurrent[i] ? bind_delta(b, hp, l, err) : bind_attention(b, hp, l, err)) ||
        (rc = arch->bind_ffn(b, hp, l, err)))
        return rc;
    b->block = -1;
    return RC_OK;
}

/* ---- forward ---- */

uint64_t qwen35_wide(const struct hparams *hp)
{
    const uint64_t H = hp->n_heads, HK = hp->n_kv_heads, HV = hp->n_v_heads;
    const uint64_t attention = (3 * H + 2 * HK) * hp->head_dim;
    const uint64_t delta = hparams_conv_channels(hp) + 2 * HV * hp->state_dim + 2 * HV;
    return MAX(MAX(attention, delta), 2 * (uint64_t)hp->n_ff);
}

/* q, gate, k, v = W h;  result = attention(q, k, v) * sigmoid(gate), which is H hd wide */
static float *attention(struct model *m, const struct layer *l, struct batch *b, struct stage *st)
{
    const struct hparams *hp = &m->hp;
    const uint64_t H = (uint64_t)hp->n_heads * hp->head_dim;
    const uint64_t HK = (uint64_t)hp->n_kv_heads * hp->head_dim;
    float *qg = m->wide, *k = qg + 2 * H * b->n, *v = k + b->n * HK, *o = v + b->n * HK;
    const struct matmul_job jobs[] = {{l->q, qg, 2 * H, 0}, {l->k, k, HK, 0}, {l->v, v, HK, 0}};
    matmul_many(m->pool, jobs, COUNT_OF(jobs), m->act);
    stage_next(st, MODEL_ATTN);
    const struct attn_layer al = {l->index, l->q_norm, l->k_norm};
    attn_forward(m->attn, &al, b->kv, b->runs, b->n_runs, qg, k, v, o);
    return o;
}

/* u, z, beta, alpha = W h;  result = norm(delta rule(conv(u))) * silu(z), which is n_v d wide */
static float *delta_net(struct model *m, const struct layer *l, struct batch *b, struct stage *st)
{
    const struct hparams *hp = &m->hp;
    const uint64_t C = hparams_conv_channels(hp), nv = hp->n_v_heads, vd = nv * hp->state_dim;
    float *u = m->wide, *z = u + b->n * C, *o = z + b->n * vd;
    float *beta = o + b->n * vd, *alpha = beta + b->n * nv;
    /* u and z head by head, as they are read: a head's rows then follow one another in memory */
    const struct matmul_job jobs[] = {{.w = l->qkv, .y = u, .block = hp->state_dim},
                                      {.w = l->z, .y = z, .block = hp->state_dim},
                                      {.w = l->beta, .y = beta, .ldy = nv},
                                      {.w = l->alpha, .y = alpha, .ldy = nv}};
    matmul_many(m->pool, jobs, COUNT_OF(jobs), m->act);
    stage_next(st, MODEL_DELTA);
    const struct delta_layer dl = {l->index, l->conv, l->a, l->dt, l->norm};
    delta_forward(m->delta, &dl, b->rec, b->runs, b->n_runs, b->n, u, z, alpha, beta, o);
    return o;
}

/* y = W_down(silu(W_gate h) * (W_up h)) */
static void dense_ffn(struct model *m, const struct layer *l, uint32_t n)
{
    const uint32_t F = m->hp.n_ff;
    float *g = m->wide, *u = g + (uint64_t)n * F;
    const struct matmul_job jobs[] = {{l->gate, g, F, 0}, {l->up, u, F, 0}};
    act_set(m->act, m->h, n, m->hp.n_embd, m->hp.n_embd);
    matmul_many(m->pool, jobs, COUNT_OF(jobs), m->act);
    silu_mul_rows(m->kern, m->pool, g, u, F, n, F, g);
    act_set(m->act, g, n, F, F);
    matmul(m->pool, l->down, m->act, m->y, m->hp.n_embd);
}

static void embed_rows(const void *ctx, uint32_t r0, uint32_t r1)
{
    const struct model *m = ctx;
    for (uint32_t r = r0; r < r1; r++)
        mat_row(m->embd, (uint64_t)m->tokens[r], m->x + (uint64_t)r * m->hp.n_embd);
}

/* Row i becomes row wanted[i]. */
static void keep_wanted(const struct batch *b, float *rows, uint64_t cols)
{
    for (uint32_t i = 0; i < b->n_wanted; i++)
        if (b->wanted[i] != i)
            memcpy(rows + i * cols, rows + b->wanted[i] * cols, cols * sizeof *rows);
}

/* Logits of rows whose destinations follow one another go in one product. */
static void head(struct model *m, const struct batch *b)
{
    const uint64_t E = m->hp.n_embd, V = m->hp.n_vocab;
    for (uint32_t i = 0, n; i < b->n; i += n) {
        for (n = 1; i + n < b->n && b->logits[i + n] == b->logits[i] + n * V;)
            n++;
        act_set(m->act, m->h + i * E, n, E, E);
        matmul(m->pool, m->head, m->act, b->logits[i], V);
    }
}

void qwen35_forward(struct model *m, struct batch *b)
{
    const uint32_t E = m->hp.n_embd;
    const float eps = m->hp.eps;
    struct stage st = {.p = m->profile};

    stage_next(&st, MODEL_EMBED);
    rows_run(m->pool, b->n, 4 * (uint64_t)E, embed_rows, m);
    attn_begin(m->attn, b->runs, b->n_runs);

    for (uint32_t i = 0; i < m->hp.n_layer; i++) {
        const struct layer *l = &m->layers[i];
        const bool recurrent = m->hp.recurrent[i], last = i + 1 == m->hp.n_layer;
        for (uint32_t r = 0; last && r < b->n_runs; r++)
            b->runs[r].n_silent = b->n_silent[r];
        stage_next(&st, MODEL_NORM);
        norm_rows(m->kern, m->pool, m->x, i ? m->y : NULL, l->attn_norm, eps, b->n, E, m->h);

        stage_next(&st, MODEL_PROJ);
        act_set(m->act, m->h, b->n, E, E);
        float *o = recurrent ? delta_net(m, l, b, &st) : attention(m, l, b, &st);
        const uint64_t o_cols = mat_cols(l->out);
        if (last) { /* from here on only the rows somebody asked for */
            keep_wanted(b, o, o_cols);
            keep_wanted(b, m->x, E);
            b->n = b->n_wanted;
        }
        stage_next(&st, MODEL_PROJ);
        act_set(m->act, o, b->n, o_cols, o_cols);
        matmul(m->pool, l->out, m->act, m->y, E);

        stage_next(&st, MODEL_NORM);
        norm_rows(m->kern, m->pool, m->x, m->y, l->ffn_norm, eps, b->n, E, m->h);
        stage_next(&st, MODEL_FFN);
        m->arch->ffn(m, l, b->n);
    }

    stage_next(&st, MODEL_NORM);
    norm_rows(m->kern, m->pool, m->x, m->y, m->out_norm, eps, b->n, E, m->h);
    stage_next(&st, MODEL_HEAD);
    head(m, b);
    stage_end(&st);
}

const struct arch arch_qwen35 = {"qwen35", false, bind_dense, dense_ffn};
