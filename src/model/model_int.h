/* model_int.h - what the files of this room share: weights, scratch, one batch. */
#ifndef HOLDFAST_MODEL_MODEL_INT_H
#define HOLDFAST_MODEL_MODEL_INT_H

#include "base/arena.h"
#include "model/bind.h"
#include "model/hparams.h"
#include "model/model.h"
#include "nn/attn.h"
#include "nn/delta.h"
#include "nn/moe.h"

struct layer {
    const float *attn_norm, *ffn_norm; /* [n_embd]; the second is the file's post_attention_norm */
    uint32_t index;                    /* among the layers of its kind */
    struct mat *out;                   /* what the mixer ends with -> n_embd */

    /* full attention, H heads, HK key/value heads of width hd */
    struct mat *q, *k, *v;        /* n_embd -> 2 H hd (query, gate per head), HK hd, HK hd */
    const float *q_norm, *k_norm; /* [hd] */

    /* delta net, C channels, n_v heads of width d */
    struct mat *qkv, *z, *beta, *alpha; /* n_embd -> C, n_v d, n_v, n_v */
    const float *conv;                  /* [taps][C] */
    const float *a, *dt;                /* [n_v] */
    const float *norm;                  /* [d] */

    /* dense */
    struct mat *gate, *up, *down;

    /* experts: gate and up may be one matrix, then up is NULL */
    struct mat *router, *gate_e, *up_e, *down_e, *gate_s, *up_s, *down_s;
    const float *shared; /* [n_embd] */
};

struct batch {
    struct kv *kv;
    struct rec *rec;
    struct stretch *runs;
    const uint32_t *n_silent; /* [n_runs]: rows of a run before those asked for */
    uint32_t n_runs;
    uint32_t n;             /* rows in scratch; after the last mixer only those asked for */
    uint32_t n_wanted;      /* rows asked for */
    const uint32_t *wanted; /* [n_wanted], rising */
    float *const *logits;   /* [n_wanted] */
};

struct model {
    const struct arch *arch;
    struct hparams hp;
    struct model_info info;
    const struct kern *kern;
    struct pool *pool;
    struct arena arena;
    struct mat_heap *heap;
    struct layer *layers;    /* [n_layer] */
    struct mat *embd, *head; /* head == embd when tied */
    const float *out_norm;

    struct attn *attn;
    struct delta *delta;
    struct moe *moe;
    struct act *act;

    /* Scratch, rows of max_batch. */
    float *mem;
    float *x, *h, *y; /* [n_embd]: residual stream, normed, what is to be added to x */
    float *wide;      /* a mixer's projections and result, or the hidden layers of an FFN */
    struct stretch *runs;
    token *tokens;
    uint32_t *wanted, *n_silent;
    float **logits;
    struct model_profile *profile;
};

/* What the architectures differ in. */
struct arch {
    const char *name; /* general.architecture */
    bool moe;
    enum rc (*bind_ffn)(struct bind *b, const struct hparams *hp, struct layer *l, struct err *err);
    /* y = FFN(h), rows 0 .. n - 1 */
    void (*ffn)(struct model *m, const struct layer *l, uint32_t n);
};
extern const struct arch arch_qwen35, arch_qwen35moe;

/* qwen35.c */
NODISCARD enum rc qwen35_bind_layer(struct bind *b, const struct hparams *hp, uint32_t i,
                                    const struct arch *arch, struct layer *l, struct err *err);
void qwen35_forward(struct model *m, struct batch *b);
/* Floats of the wide scratch per row. */
uint64_t qwen35_wide(const struct hparams *hp);

/* Begins a stage for the profile; the one before ends. */
struct stage {
    struct model_profile *p;
    enum model_op op;
    uint64_t since_ns;
};
void stage_next(struct stage *s, enum model_op op);
void stage_end(struct stage *s);

#endif
