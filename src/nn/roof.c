#include "nn/roof.h"

#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/mem.h"
#include "kern/kern.h"

enum {
    PARTS = 64,
    REPEATS = 5, /* the best counts: a roof is not lowered by a neighbour's noise */
    READ_BYTES = 256 << 20
};

struct busy {
    const struct kern *k;
    const uint8_t *p;
    uint64_t rounds;
    struct {
        _Alignas(64) uint64_t sink, ops;
    } part[PARTS];
};

static void dot_part(void *ctx, uint32_t part, uint32_t worker)
{
    (void)worker;
    struct busy *b = ctx;
    b->part[part].ops = b->k->busy_dot(b->rounds, &b->part[part].sink);
}

static void fma_part(void *ctx, uint32_t part, uint32_t worker)
{
    (void)worker;
    struct busy *b = ctx;
    b->part[part].ops = b->k->busy_fma(b->rounds, &b->part[part].sink);
}

static void read_part(void *ctx, uint32_t part, uint32_t worker)
{
    (void)worker;
    struct busy *b = ctx;
    b->k->busy_read(b->p + (uint64_t)part * (READ_BYTES / PARTS), READ_BYTES / PARTS,
                    &b->part[part].sink);
    b->part[part].ops = READ_BYTES / PARTS;
}

/* Operations a second, the best of REPEATS. */
static double rate(struct busy *b, struct pool *pool, pool_fn *fn)
{
    double best = 0;
    for (int r = 0; r < REPEATS; r++) {
        const uint64_t t0 = clock_mono_ns();
        pool_run(pool, PARTS, fn, b);
        const uint64_t ns = clock_mono_ns() - t0;
        uint64_t ops = 0;
        for (int i = 0; i < PARTS; i++)
            ops += b->part[i].ops;
        best = MAX(best, (double)ops * 1e9 / (double)MAX(ns, 1));
    }
    return best;
}

enum rc roof_measure(const struct kern *k, struct pool *pool, struct roof *out, struct err *err)
{
    uint8_t *p = mem_try_aligned(2 << 20, READ_BYTES);
    if (!p)
        return err_set(err, RC_NOMEM, "no memory for the %d MiB that are read", READ_BYTES >> 20);
    (void)madvise(p, READ_BYTES, MADV_HUGEPAGE);
    memset(p, 1, READ_BYTES);
    struct busy b = {.k = k, .p = p, .rounds = 20000};
    out->int8_ops = rate(&b, pool, dot_part);
    out->f32_ops = rate(&b, pool, fma_part);
    out->read_bytes = rate(&b, pool, read_part);
    mem_free(p);
    return RC_OK;
}
