/* moe.h - a layer of experts: router, the chosen experts, the shared expert.
 *
 *   p = softmax(W_router h) over all experts;  top = the n_used greatest, ties to the lower index
 *   y = sum over top of p_e / sum(p_top) W_down_e(silu(W_gate_e h) * (W_up_e h))
 *     + sigmoid(w_shared . h) W_down_s(silu(W_gate_s h) * (W_up_s h))
 *
 * Rows are grouped by expert, so that an expert's weights are read once per batch; a row's sum runs
 * through its experts in falling order of p, the shared one last, whatever the batch.
 */
#ifndef HOLDFAST_NN_MOE_H
#define HOLDFAST_NN_MOE_H

#include "nn/matmul.h"

enum { MOE_MAX_USED = 64 };

struct moe; /* shape and scratch */

struct moe_shape {
    uint32_t n_experts, n_used; /* n_used <= n_experts, MOE_MAX_USED */
    uint32_t n_embd, n_ff, n_ff_shared;
    uint32_t max_rows;
};

NODISCARD enum rc moe_new(const struct kern *k, struct pool *pool, const struct moe_shape *s,
                          struct moe **out, struct err *err);
void moe_free(struct moe *m);

struct moe_layer {
    const struct mat *router;           /* n_embd -> n_experts */
    const struct mat *gate, *up, *down; /* experts; up NULL: gate holds gate rows, then up rows */
    const struct mat *gate_s, *up_s, *down_s; /* the shared expert */
    const float *shared;                      /* [n_embd]: w_shared */
};

/* h [n][n_embd] is set in a (act_set), which holds another matrix's rows afterwards; y [n][n_embd]. */
void moe_forward(struct moe *m, const struct moe_layer *l, struct act *a, const float *h,
                 uint32_t n, float *y);

/* The router's choice for one row: p [n_experts] holds logits and is overwritten; experts in falling
 * order of p, weights sum to 1. */
void moe_choose(const struct kern *k, float *p, uint32_t n_experts, uint32_t n_used,
                uint32_t *experts, float *weights);

#endif
