/* attn.h - causal attention over paged KV.
 *
 * Same bits: a query row walks its positions page by page (64, at absolute positions) with an online
 * softmax, and starts afresh every ATTN_SPAN positions; the sums of the spans are then added in order.
 * That is the arithmetic whether the row comes alone, when threads share out its heads and spans, or in
 * a tile of a long prefill, when one thread takes them all.
 */
#ifndef HOLDFAST_NN_ATTN_H
#define HOLDFAST_NN_ATTN_H

#include "base/pool.h"
#include "nn/rope.h"
#include "nn/rows.h"

enum { ATTN_SPAN = 512 };

struct kern;
struct attn; /* shape, and scratch for one layer at a time */

struct attn_shape {
    uint32_t n_heads, n_kv_heads, head_dim; /* n_heads % n_kv_heads == 0, head_dim % 32 == 0 */
    enum kv_type kv_type;
    float eps;         /* of the norms of q and k */
    uint32_t max_rows; /* of a batch */
};

NODISCARD enum rc attn_new(const struct kern *k, struct pool *pool, const struct attn_shape *s,
                           const struct rope *rope, struct attn **out, struct err *err);
void attn_free(struct attn *a);

/* Before the first layer of a batch: the angles of its rows. */
void attn_begin(struct attn *a, const struct stretch *runs, uint32_t n_runs);

struct attn_layer {
    uint32_t index;               /* among the attention layers */
    const float *q_norm, *k_norm; /* [head_dim] */
};

/* For all rows of runs, H query and HK key heads of width D:
 *
 *   qg [rows][H][2][D]  query, gate (raw projections); the queries are overwritten
 *   k, v [rows][HK][D]  raw projections; k is overwritten
 *   y [rows][H][D]      attention * sigmoid(gate)
 *
 * K (normed, turned) and V go to the pages of each run's table, which are read back from there, so
 * that a row sees what a later batch will see. */
void attn_forward(struct attn *a, const struct attn_layer *l, struct kv *kv,
                  const struct stretch *runs, uint32_t n_runs, float *qg, float *k, const float *v,
                  float *y);

#endif
