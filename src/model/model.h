/* model.h - open a model, describe it, run its forward pass.
 *
 * A call, not a service: the caller owns sequences, pages and slots (state/) and says what to
 * evaluate.  README.md has the maths with shapes.
 */
#ifndef HOLDFAST_MODEL_MODEL_H
#define HOLDFAST_MODEL_MODEL_H

#include "base/log.h"
#include "base/pool.h"
#include "gguf/gguf.h"
#include "state/kv.h"
#include "state/rec.h"
#include "state/shape.h"

struct model;

struct model_opts {
    struct pool *pool;       /* borrowed for the model's life */
    const struct logger *lg; /* may be NULL */
    const char *isa;         /* kernel table; NULL = HOLDFAST_ISA or the best this machine has */
    enum kv_type kv_type;
    uint32_t max_batch; /* rows of one forward; 0 = 512 (llama-server's -ub) */
    bool no_repack;
    bool mlock;
};

struct model_info {
    const char *arch, *name, *isa; /* borrowed from the model; name may be "" */
    uint32_t n_layer, n_embd, n_vocab, n_ctx_train;
    uint32_t max_batch; /* rows of one forward, as model_opts asked; 0 from model_describe */
    uint64_t n_params, weight_bytes;
    struct shape shape;
};

/* g is borrowed for the model's life. */
NODISCARD enum rc model_open(struct gguf *g, const struct model_opts *o, struct model **out,
                             struct err *err);
void model_close(struct model *m);
const struct model_info *model_info(const struct model *m);

/* What `inspect` wants without loading weights: the shape and sizes a file would have. */
NODISCARD enum rc model_describe(const struct gguf *g, enum kv_type kv_type, struct model_info *out,
                                 struct err *err);

/* A stretch of one sequence: n tokens at positions [pos, pos + n).  kv has pages for them
 * (kv_table_extend) and rec is the state after pos tokens.  The rows' K, V are written, rec becomes the
 * state after pos + n; the caller then calls kv_table_advance.  Logits of the last n_logits rows go
 * to logits [n_logits][n_vocab]. */
struct run {
    const token *tokens; /* each in [0, n_vocab) */
    uint32_t n, pos;
    const struct kv_table *kv;
    rec_slot rec;
    uint32_t n_logits; /* 0..n */
    float *
        logits; /* best when those of one run follow those of the run before: then the head's weights are
                    * read once for all */
};

/* Sum of n over runs <= max_batch; no two runs share a sequence.  Cannot fail. */
void model_forward(struct model *m, struct kv *kv, struct rec *rec, const struct run *runs,
                   uint32_t n_runs);

/* Where the time of forwards goes, added up while a profile is set; NULL ends it. */
enum model_op {
    MODEL_EMBED,
    MODEL_NORM,
    MODEL_PROJ, /* projections of the mixers, in and out */
    MODEL_ATTN,
    MODEL_DELTA, /* with convolution and gate */
    MODEL_FFN,   /* dense, or router and experts */
    MODEL_HEAD,
    MODEL_N_OPS
};
struct model_profile {
    uint64_t ns[MODEL_N_OPS];
};
const char *model_op_name(enum model_op op);
void model_set_profile(struct model *m, struct model_profile *p);

#endif
