#include "nn/norm.h"

#include "kern/kern.h"
#include "nn/rows.h"

struct job {
    const struct kern *k;
    float *x;
    const float *add, *w;
    float eps;
    uint32_t cols;
    float *y;
};

static void run(const void *ctx, uint32_t r0, uint32_t r1)
{
    const struct job *j = ctx;
    for (uint32_t r = r0; r < r1; r++) {
        const size_t at = (size_t)r * j->cols;
        j->k->seq.norm(j->x + at, j->add ? j->add + at : NULL, j->w, j->eps, j->cols, j->y + at);
    }
}

void norm_rows(const struct kern *k, struct pool *pool, float *x, const float *add, const float *w,
               float eps, uint32_t n, uint32_t cols, float *y)
{
    const struct job j = {k, x, add, w, eps, cols, y};
    rows_run(pool, n, cols, run, &j);
}
