/* delta.h - the gated delta net's mixer between its projections: convolution, norms, recurrence, gate.
 *
 * Same bits: everything is done token after token (kern/seq.h), so the state after a token does not
 * depend on the batches that brought the tokens.
 */
#ifndef HOLDFAST_NN_DELTA_H
#define HOLDFAST_NN_DELTA_H

#include "base/pool.h"
#include "nn/rows.h"

struct kern;
struct delta; /* shape and scratch */

struct delta_shape {
    uint32_t n_k_heads, n_v_heads, dim; /* n_v_heads % n_k_heads == 0, dim % 16 == 0 */
    uint32_t n_taps;                    /* of the convolution, 2..16 */
    float eps;
};

NODISCARD enum rc delta_new(const struct kern *k, struct pool *pool, const struct delta_shape *s,
                            struct delta **out, struct err *err);
void delta_free(struct delta *d);

struct delta_layer {
    uint32_t index;    /* among the delta layers */
    const float *conv; /* [n_taps][C], oldest tap first; C = (2 n_k_heads + n_v_heads) dim */
    const float *a;    /* [n_v_heads]: -exp(A_log) */
    const float *dt;   /* [n_v_heads] */
    const float *norm; /* [dim] */
};

/* For all rows of runs:
 *
 *   u [C / dim][n_rows][dim]  raw projections, head by head: queries, keys, values
 *   z [n_v_heads][n_rows][dim]       alpha, beta [n_rows][n_v_heads]  raw projections
 *   y [n_rows][n_v_heads][dim]
 *
 *   q, k, v = silu(conv(u));  q = q / |q| / sqrt(dim);  k = k / |k|
 *   S <- gated delta rule (kern/seq.h);  y = norm(o) silu(z)
 *
 * Value head h reads key head h mod n_k_heads.  Conv state and S of every run's slot move on by its
 * rows.  Source: specs of the qwen35 files; Yang et al., arXiv:2412.06464. */
void delta_forward(struct delta *d, const struct delta_layer *l, struct rec *rec,
                   const struct stretch *runs, uint32_t n_runs, uint32_t n_rows, const float *u,
                   const float *z, const float *alpha, const float *beta, float *y);

#endif
