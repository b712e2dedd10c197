#include "nn/act.h"

#include "kern/kern.h"
#include "nn/rows.h"

struct job {
    const struct kern *k;
    const float *g, *u;
    uint64_t ld;
    uint32_t cols;
    float *y;
};

static void run(const void *ctx, uint32_t r0, uint32_t r1)
{
    const struct job *j = ctx;
    for (uint64_t r = r0; r < r1; r++)
        j->k->seq.silu_mul(j->g + r * j->ld, j->u + r * j->ld, j->cols, j->y + r * j->cols);
}

void silu_mul_rows(const struct kern *k, struct pool *pool, const float *g, const float *u,
                   uint64_t ld, uint32_t n, uint32_t cols, float *y)
{
    const struct job j = {k, g, u, ld, cols, y};
    rows_run(pool, n, (uint64_t)cols * 2, run, &j);
}
