/* bind.h - name every tensor of a model, check every shape, load the weights.
 *
 * A binder walks the model twice with the same calls: first checking only, so that a fault in the last
 * block is told at once, then loading.
 */
#ifndef HOLDFAST_MODEL_BIND_H
#define HOLDFAST_MODEL_BIND_H

#include "base/arena.h"
#include "base/log.h"
#include "gguf/gguf.h"
#include "nn/matmul.h"

struct bind {
    const struct gguf *g;
    const struct logger *lg; /* may be NULL */
    bool load;               /* else only check */
    int32_t block;           /* names get "blk.N." before them; -1: none */

    /* with load */
    const struct kern *kern;
    struct pool *pool;
    bool no_repack;
    struct mat_heap *heap; /* of the matrices */
    struct arena *arena;   /* of the vectors */
    struct progress progress;
    uint64_t done_bytes, total_bytes;

    /* found so far; each tensor counts once */
    bool *used; /* [gguf_n_tensors] */
    uint64_t n_params, weight_bytes;
};

NODISCARD enum rc bind_init(struct bind *b, const struct gguf *g, const struct logger *lg,
                            struct err *err);
/* Over again, now loading matrices into heap and vectors into arena. */
void bind_load(struct bind *b, const struct kern *k, struct pool *pool, bool no_repack,
               struct mat_heap *heap, struct arena *arena);
void bind_release(struct bind *b);

bool bind_has(const struct bind *b, const char *name);
/* A vector of n values as f32, in the arena. */
NODISCARD enum rc bind_vec(struct bind *b, const char *name, uint64_t n, const float **out,
                           struct err *err);
/* A vector of [cols][rows] with rows contiguous in the file, turned to [rows][cols]. */
NODISCARD enum rc bind_turned(struct bind *b, const char *name, uint64_t cols, uint64_t rows,
                              const float **out, struct err *err);
/* n_mats matrices of cols inputs and rows outputs.  *out is the caller's (mat_free). */
NODISCARD enum rc bind_mat(struct bind *b, const char *name, uint64_t cols, uint64_t rows,
                           uint32_t n_mats, struct mat **out, struct err *err);
/* The same, read row by row from the mapped file. */
NODISCARD enum rc bind_rows(struct bind *b, const char *name, uint64_t cols, uint64_t rows,
                            struct mat **out, struct err *err);
/* What is left over: RC_UNSUPPORTED for a scale that would have to be applied, a warning for other
 * names; blocks from n_layer on (multi-token prediction) may be left. */
NODISCARD enum rc bind_rest(const struct bind *b, uint32_t n_layer, struct err *err);

#endif
