/* seq.h - the sequence operators of a kernel table: norms, activations, convolution, delta rule,
 * attention over pages.
 *
 * All of them work on one row, one head or one tile of rows; nn/ spreads them over the pool.  None can
 * fail, none allocates.  Pointers need no alignment and do not alias unless it says so.
 *
 * Same bits: what a row (a token, a head) gets depends on that row, its position and the weights.  No
 * sum crosses vector lanes in the delta rule and in attention: the lanes are values of S, positions
 * of K and columns of V, so one row and many rows add in the same order (README.md).
 */
#ifndef HOLDFAST_KERN_SEQ_H
#define HOLDFAST_KERN_SEQ_H

#include "base/base.h"

enum seq_kv { SEQ_F16, SEQ_F32, SEQ_Q8_0, SEQ_I16, SEQ_N_KV };

/* K and V of one head in one page of SEQ_PAGE positions t and D columns d (D % 32 == 0).
 *
 *   K  f16, f32   [SEQ_PAGE / 16][D][16]            element (t / 16, d, t % 16)
 *      q8_0       [SEQ_PAGE / 16][D / 32] of { f16 scale[16]; int8 q[32][16] }
 *   V  f16, f32   [D / 32][SEQ_PAGE][32]            element (d / 32, t, d % 32)
 *      q8_0       [D / 32] of { f16 scale[SEQ_PAGE]; int8 q[SEQ_PAGE][32] }
 *   K  i16        { f32 step[SEQ_PAGE]; int16 k[SEQ_PAGE / 16][D / 2][16][2] }
 *   V  i16        { f32 step[SEQ_PAGE]; int16 v[D / 32][SEQ_PAGE / 2][32][2] }, positions in pairs
 *
 * 16 positions stand side by side in K and 32 columns in V: these are the lanes.  i16 is an integer times the
 * step of its row; seq_i16.inc says which.
 */
enum { SEQ_PAGE = 64 };
/* Dimensions of heads: D and the delta rule's d are multiples of these and at most SEQ_MAX_DIM. */
enum { SEQ_KV_STEP = 32, SEQ_STATE_STEP = 16, SEQ_MAX_DIM = 512, SEQ_MAX_TAPS = 16 };

/* Rows of queries against one KV head.  Row r attends to positions 0 .. last[r]; last never decreases
 * with r.  Rows are taken in groups of at most SEQ_GROUP; pack_q puts them into q. */
enum { SEQ_GROUP = 12, SEQ_SCRATCH = SEQ_GROUP * SEQ_PAGE * 3 / 2 };
struct seq_tile {
    uint32_t n_rows, dim; /* dim: D */
    const uint32_t *last; /* [n_rows] */
    const void *q;        /* packed: group after group, for each D floats a row (pack_q) */
    float *o;             /* [n_rows][D]: sums of p v, not yet divided */
    float *m, *l;         /* [n_rows]: greatest score, sum of p */
    const void
        *next_k; /* the K that will be wanted after this one, or NULL: to be asked for early */
};

/* What is wanted next: the delta rule asks memory for it a little at a time, while it computes. */
enum { SEQ_SOON = 5 };
struct seq_soon {
    uint32_t n; /* of each, at most as many as the call has tokens; 0: none */
    struct {
        const float *rows; /* [n][D], or NULL */
        uint64_t stride;   /* floats */
    } at[SEQ_SOON];
    const float *S; /* another head's, or NULL */
};

struct kern_seq {
    /* x += add (when not NULL); y = x / sqrt(mean(x^2) + eps) * w.  All [n]; y may be x. */
    void (*norm)(float *x, const float *add, const float *w, float eps, uint32_t n, float *y);
    /* y = x * scale / max(sqrt(sum(x^2)), eps); zeros give zeros.  y may be x. */
    void (*l2norm)(const float *x, float eps, float scale, uint32_t n, float *y);
    /* y = silu(g) * u; y may be g or u. */
    void (*silu_mul)(const float *g, const float *u, uint32_t n, float *y);
    /* y = x * sigmoid(g); y may be x. */
    void (*sigmoid_mul)(const float *x, const float *g, uint32_t n, float *y);
    /* x = exp(x - max) / sum, in place. */
    void (*softmax)(float *x, uint32_t n);
    /* y = sum over i < k of w[i] rows[i][0..n), in this order. */
    void (*weighted_sum)(const float *const *rows, const float *w, uint32_t k, uint32_t n,
                         float *y);
    /* sum of x y */
    float (*dot)(const float *x, const float *y, uint32_t n);
    float (*sigmoid)(float x);

    /* One head: y = rope(norm(x, w)) * scale; pairs (j, j + rot / 2) turn by cs[j] = cos, sn[j] = sin.
     * y may be x. */
    void (*norm_rope)(const float *x, const float *w, float eps, uint32_t n, uint32_t rot,
                      const float *cs, const float *sn, float scale, float *y);
    /* Row t of a page: k [D], v [D] converted and laid out as above. f16 saturates at 65504. */
    void (*kv_put[SEQ_N_KV])(const float *k, const float *v, uint32_t dim, uint32_t t, void *k_page,
                             void *v_page);
    /* Row r of n_rows: q [D] into its place in packed, where a group is f32 [D][rows]; for i16
     * int16 [D / 2][rows][2], then f32 step[rows]. */
    void (*pack_q[SEQ_N_KV])(const float *q, uint32_t dim, uint32_t r, uint32_t n_rows,
                             void *packed);
    /* Empty sums, to begin a span. */
    void (*attn_begin)(const struct seq_tile *t);
    /* Adds the page whose first position is pos; pages come in order.  Positions after last[r] are
     * not read for row r. scratch: SEQ_SCRATCH floats. */
    void (*attn_page[SEQ_N_KV])(const struct seq_tile *t, uint32_t pos, const void *k_page,
                                const void *v_page, float *scratch);
    /* Adds the sums of one span (o, m, l) of a row to the row's total, spans in order; the first one
     * finds *m_sum == -inf. */
    void (*attn_combine)(const float *o, float m, float l, uint32_t dim, float *o_sum, float *m_sum,
                         float *l_sum);
    /* y = o / l * sigmoid(gate), all [D] */
    void (*attn_end)(const float *o, float l, const float *gate, uint32_t dim, float *y);

    /* Causal convolution of n tokens over n_ch channels: token i reads rows[i] (the oldest of n_taps) to
     * rows[i + n_taps - 1]; y[i * ldy + c] = silu(sum over j of w[j * ldw + c] rows[i + j][c]). */
    void (*conv_silu)(const float *const *rows, uint32_t n_taps, const float *w, uint64_t ldw,
                      uint32_t n, uint32_t n_ch, float *y, uint64_t ldy);
    /* Per token: beta = sigmoid(b), decay = exp(a softplus(alpha + dt)) for one head. */
    void (*gates)(const float *alpha, const float *b, float dt, float a, uint32_t n, float *decay,
                  float *beta);
    /* Gated delta rule for one head, n tokens in order.
     *
     *   q, k, v [n][D]  q, k l2-normalised, q scaled     out [n][D]
     *   decay [n] in (0, 1]    beta [n] in (0, 1)    soon: see above
     *   S [D / W][D][W]  element (y / W, x, y % W) of key x and value y, W = 32, or 16 when
     *                    32 does not divide D; updated in place
     *
     * Per token: S <- decay S;  e = beta (v - S^T k);  S <- S + k e^T;  out = S^T q.
     *
     * A column of S never looks at another: a few columns stay in cache and registers while all tokens
     * pass.  A chunked form sums in an order that depends on where a chunk begins: a restored state
     * would no longer be the recomputed one.
     * Source: Yang, Kautz, Hatamizadeh, "Gated Delta Networks", arXiv:2412.06464.
     */
    void (*delta)(float *S, uint32_t dim, const float *q, const float *k, const float *v,
                  const float *decay, const float *beta, uint32_t n, float *out,
                  const struct seq_soon *soon);
};

#endif
