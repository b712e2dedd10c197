/* maker.h - write a model file of a real shape with random weights.
 *
 * For tests, demos and measurements where no trained model is at hand.  The weights are scaled so that
 * activations stay of order one, the recurrent state remembers anything from a few to a few thousand
 * tokens, and the logits are neither flat nor constant: a wrong or lost state changes the output.
 * The vocabulary is a working byte-level BPE with the family's special tokens and a chat template, so
 * the file serves any engine that knows the architecture.
 *
 * The file is a function of the options (on one machine's libm), and the weights do not depend on the
 * type: two types of one seed are two roundings of the same model.  Memory stays below some 100 MB for
 * every shape; data is written as it is made.
 */
#ifndef HOLDFAST_MODEL_MAKER_H
#define HOLDFAST_MODEL_MAKER_H

#include <stdatomic.h>

#include "base/dtype.h"
#include "base/err.h"
#include "base/log.h"

struct maker_opts {
    const char *preset; /* maker_preset() */
    enum dtype type;    /* of the matrices; where a row is no whole number of blocks: q8_0 or f16 */
    bool medium; /* type is q4_K: some matrices are q5_K and q6_K, as in files named Q4_K_M */
    uint64_t seed;
    uint32_t n_layers; /* 0: the preset's; else a multiple of 4, at most 1024 */
    uint32_t n_vocab;  /* 0: the preset's; else 282 .. 1048576 */
    uint32_t n_ctx;    /* 0: the preset's; only a number in the file */
    bool mtp;          /* append one multi-token-prediction block */

    const struct logger *lg; /* progress; may be NULL */
    const atomic_bool *stop; /* becomes true: RC_CANCELLED; may be NULL */
};

struct maker_info {
    uint32_t n_tensors;
    uint64_t n_params;
};

/* The i-th preset's name, NULL past the last. */
const char *maker_preset(size_t i);

/* RC_ARG for an unknown preset or a number out of range.  On failure path holds what it held before.
 * info may be NULL. */
NODISCARD enum rc maker_write(const char *path, const struct maker_opts *o, struct maker_info *info,
                              struct err *err);

#endif
