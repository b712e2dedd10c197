/* mat_error.h - what a product costs in accuracy: the rounding of activations, per tensor type. */
#ifndef HOLDFAST_NN_MAT_ERROR_H
#define HOLDFAST_NN_MAT_ERROR_H

#include "base/dtype.h"
#include "base/err.h"
#include "base/pool.h"

struct kern;

/* Relative to the rms of y = W x in f64, W being the decoded weights: what rounding the weights cost is
 * no part of it. */
struct mat_error {
    double rms; /* of this table's product */
    /* of exact products after ggml's CPU rounding of x: int8 with an f16 scale per 32 elements, for the
     * types of 256-element blocks int8 with an f32 scale per 256, for f16 and bf16 the same type */
    double ggml_rms;
};

/* From normally distributed weights and activations; a function of t and the table alone. */
NODISCARD enum rc mat_error(const struct kern *k, struct pool *pool, enum dtype t,
                            struct mat_error *out, struct err *err);

#endif
