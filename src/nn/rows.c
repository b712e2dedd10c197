#include "nn/rows.h"

/* About 4 us of work: below it a fork-join costs more than it saves. */
static const uint64_t floats_per_part = 16384;

struct job {
    rows_fn *fn;
    const void *ctx;
    uint32_t n, per_part;
};

static void run_part(void *arg, uint32_t part, uint32_t worker)
{
    (void)worker;
    const struct job *j = arg;
    const uint32_t r0 = part * j->per_part;
    j->fn(j->ctx, r0, MIN(j->n, r0 + j->per_part));
}

void rows_run(struct pool *pool, uint32_t n, uint64_t cols, rows_fn *fn, const void *ctx)
{
    const uint64_t per_part = MAX(1, floats_per_part / MAX(cols, 1));
    struct job j = {fn, ctx, n, (uint32_t)MIN(per_part, MAX(n, 1))};
    pool_run(pool, (uint32_t)ceil_div(n, j.per_part), run_part, &j);
}
