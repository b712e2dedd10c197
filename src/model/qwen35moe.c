/* qwen35moe.c - Qwen3.5 and 3.6 with experts: qwen35.c with another FFN. */
#include "model/model_int.h"

static enum rc bind_experts(struct bind *b, const struct hparams *hp, struct layer *l,
                            struct err *err)
{
    const uint64_t E = hp->n_embd, F = hp->n_ff_exp, S = hp->n_ff_shexp;
    const uint32_t n = hp->n_experts;
    enum rc rc;
    if ((rc = bind_mat(b, "ffn_gate_inp.weight", E, n, 1, &l->router, err)))
        return rc;
    if (bind_has(b, "ffn_gate_up_exps.weight"))
        rc = bind_mat(b, "ffn_gate_up_exps.weight", E, 2 * F, n, &l->gate_e, err);
    else if (!(rc = bind_mat(b, "ffn_gate_exps.weight", E, F, n, &l->gate_e, err)))
        rc = bind_mat(b, "ffn_up_exps.weight", E, F, n, &l->up_e, err);
    if (rc || (rc = bind_mat(b, "ffn_down_exps.weight", F, E, n, &l->down_e, err)) ||
        (rc = bind_vec(b, "ffn_gate_inp_shexp.weight", E, &l->shared, err)) ||
        (rc = bind_mat(b, "ffn_gate_shexp.weight", E, S, 1, &l->gate_s, err)) ||
        (rc = bind_mat(b, "ffn_up_shexp.weight", E, S, 1, &l->up_s, err)) ||
        (rc = bind_mat(b, "ffn_down_shexp.weight", S, E, 1, &l->down_s, err)))
        return rc;
    return RC_OK;
}

static void experts_ffn(struct model *m, const struct layer *l, uint32_t n)
{
    const struct moe_layer ml = {.router = l->router,
                                 .gate = l->gate_e,
                                 .up = l->up_e,
                                 .down = l->down_e,
                                 .gate_s = l->gate_s,
                                 .up_s = l->up_s,
                                 .down_s = l->down_s,
                                 .shared = l->shared};
    act_set(m->act, m->h, n, m->hp.n_embd, m->hp.n_embd);
    moe_forward(m->moe, &ml, m->act, m->h, n, m->y);
}

const struct arch arch_qwen35moe = {"qwen35moe", true, bind_experts, experts_ffn};
