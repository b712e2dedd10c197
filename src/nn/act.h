/* act.h - the gate of a feed-forward block. */
#ifndef HOLDFAST_NN_ACT_H
#define HOLDFAST_NN_ACT_H

#include "base/pool.h"

struct kern;

/* Per row: y = silu(g) * u.  g, u row stride ld, y [n][cols]; y may be g when ld == cols. */
void silu_mul_rows(const struct kern *k, struct pool *pool, const float *g, const float *u,
                   uint64_t ld, uint32_t n, uint32_t cols, float *y);

#endif
