/* hparams.h - the numbers of a model, read from a file's keys and checked.
 *
 * Letters as in the papers; A is the architecture's name in the file.
 */
#ifndef HOLDFAST_MODEL_HPARAMS_H
#define HOLDFAST_MODEL_HPARAMS_H

#include "base/err.h"
#include "gguf/gguf.h"
#include "state/shape.h"

enum { MAX_LAYERS = 1024, MAX_CTX = 1 << 20 };

struct hparams {
    bool moe;
    uint32_t n_layer; /* trunk blocks: A.block_count - A.nextn_predict_layers */
    uint32_t n_mtp;   /* multi-token-prediction blocks after them, not used */
    uint32_t n_ctx;   /* as trained; at most MAX_CTX */
    uint32_t n_embd, n_vocab;
    uint32_t n_ff;                          /* dense */
    uint32_t n_experts, n_used;             /* moe */
    uint32_t n_ff_exp, n_ff_shexp;          /* hidden size of a routed and of the shared expert */
    uint32_t n_heads, n_kv_heads, head_dim; /* full attention */
    uint32_t rot, sections[4];              /* turned entries of a head; M-RoPE sections */
    float rope_base, eps;
    uint32_t conv_taps, state_dim, n_k_heads, n_v_heads; /* delta net */
    bool recurrent[MAX_LAYERS]; /* per trunk block: delta net, else attention */
};

/* RC_FORMAT for what contradicts itself, RC_UNSUPPORTED for what is legal but not done here; both name the
 * key. */
NODISCARD enum rc hparams_read(const struct gguf *g, const char *arch, bool moe, struct hparams *hp,
                               struct err *err);
/* Without fingerprint. */
struct shape hparams_shape(const struct hparams *hp, enum kv_type kv_type);

static inline uint32_t hparams_conv_channels(const struct hparams *hp)
{
    return (2 * hp->n_k_heads + hp->n_v_heads) * hp->state_dim;
}

#endif
