/* matmul_test_int.h - random matrices and activations for matmul's tests and bench. */
#ifndef HOLDFAST_NN_MATMUL_TEST_INT_H
#define HOLDFAST_NN_MATMUL_TEST_INT_H

#include <stdlib.h>

#include "base/mem.h"
#include "base/rng.h"
#include "kern/quant.h"
#include "nn/matmul.h"

static const enum dtype test_types[] = {DT_F32,  DT_F16,    DT_BF16,   DT_Q8_0, DT_Q4_0, DT_Q4_1,
                                        DT_Q5_0, DT_Q5_1,   DT_Q4_K,   DT_Q5_K, DT_Q6_K, DT_Q3_K,
                                        DT_Q2_K, DT_IQ4_NL, DT_IQ4_XS, DT_MXFP4};

/* SEED of the environment, or a fixed one. */
static inline uint64_t test_seed(void)
{
    const char *s = getenv("SEED");
    return s ? strtoull(s, NULL, 0) : 20240607;
}

static inline float *random_floats(struct rng *rng, uint64_t n, float scale)
{
    float *x = mem_try(n * sizeof *x + 1);
    CHECK(x);
    for (uint64_t i = 0; i < n; i++)
        x[i] = (float)rng_normal(rng) * scale;
    return x;
}

/* n weights of type t, encoded from normal ones. */
static inline uint8_t *random_blocks(struct rng *rng, enum dtype t, uint64_t n, float scale)
{
    const struct dtype_info *info = dtype_info(t);
    float *x = random_floats(rng, n, scale);
    uint8_t *b = mem_try(n / info->block_elems * info->block_bytes + 1);
    CHECK(b);
    quant_encode(t, x, n, b);
    mem_free(x);
    return b;
}

#endif
