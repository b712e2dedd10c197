/* bench.h - time a model without a server: prefill, decode, snapshots, and what the machine could do.
 *
 * Each figure is taken n times over; what comes before it (the depth) is computed once and then
 * restored.  Tokens are random: nothing here depends on what they say.
 */
#ifndef HOLDFAST_CLI_BENCH_H
#define HOLDFAST_CLI_BENCH_H

#include "model/model.h"
#include "nn/roof.h"

/* What evaluating one token takes at least, from the file's tensors.  Memory, per forward: the weights of
 * every matrix once (of experts the share that one token uses, of an embedding with a head of its own
 * nothing), the recurrent state twice (it is read and written), the KV of what comes before once.
 * Vectors, activations and logits stay in the caches and do not count. */
struct bench_work {           /* of matrices */
    double int8_ops, f32_ops; /* multiply-adds count two; by the tensors' types */
    double read_bytes;        /* weights that are touched */
};
struct bench_cost {
    /* body: of every token.  head: of those whose logits are asked for: the head's matrix, and what
     * follows the mixer of the last layer, where nobody needs the others any more */
    struct bench_work body, head;
    /* f32, of a token for each position it sees; attn_last_ops: of those with logits alone */
    double attn_ops, attn_last_ops;
};
NODISCARD enum rc bench_cost_of(const struct gguf *g, struct bench_cost *out, struct err *err);

enum bench_kind { BENCH_PREFILL, BENCH_DECODE, BENCH_SNAPSHOT };

/* Rooflines as measured around every sample; reading memory in a decode between its tokens too, where
 * the upper quartile of the passes counts: some are interrupted. */
struct bench_roof {
    struct roof median;
    double read_min, read_max; /* of read_bytes */
};

struct bench_result {
    enum bench_kind kind;
    uint32_t n_threads, n_tokens, n_depth;
    uint32_t n_samples;
    double *s;                  /* [n_samples] seconds; of a snapshot: to create one */
    double *restore_s, *copy_s; /* [n_samples] of a snapshot: to restore it; a memcpy of its size */
    uint64_t bytes;             /* of a snapshot */
    double *least_s;            /* [n_samples] what the rooflines around each allow; 0: no sample */
    double attn_least_s;        /* of all samples: the part of it that is attention's arithmetic */
    struct bench_roof roof;     /* of this test; of a snapshot: of all tests before it */
    struct model_profile profile; /* all zero unless asked for */
};
void bench_result_release(struct bench_result *r);

/* A model on so many threads. */
struct bench_rig;
struct bench_opts {
    struct gguf *g; /* borrowed */
    uint32_t n_threads, n_ubatch;
    const char *isa;
    enum kv_type kv_type;
    bool no_repack, mlock, profile;
    bool pin; /* each thread to a CPU of its own */
    const struct logger *lg;
};
NODISCARD enum rc bench_open(const struct bench_opts *o, struct bench_rig **out, struct err *err);
void bench_close(struct bench_rig *b);
const struct model_info *bench_model(const struct bench_rig *b);
/* n_tokens at position n_depth, one forward of up to n_ubatch after the other (prefill), or one token
 * a forward (decode). */
NODISCARD enum rc bench_run(struct bench_rig *b, enum bench_kind kind, uint32_t n_tokens,
                            uint32_t n_depth, uint32_t n_samples, struct bench_result *out,
                            struct err *err);
NODISCARD enum rc bench_snapshot(struct bench_rig *b, uint32_t n_samples, struct bench_result *out,
                                 struct err *err);

#endif
