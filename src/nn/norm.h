/* norm.h - root mean square norm of rows, with the residual sum before it. */
#ifndef HOLDFAST_NN_NORM_H
#define HOLDFAST_NN_NORM_H

#include "base/pool.h"

struct kern;

/* Per row: x += add (when add is not NULL); y = x / sqrt(mean(x^2) + eps) * w.
 * x, add, y [n][cols], w [cols]; y may be x. */
void norm_rows(const struct kern *k, struct pool *pool, float *x, const float *add, const float *w,
               float eps, uint32_t n, uint32_t cols, float *y);

#endif
