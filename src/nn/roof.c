#include "nn/roof.h"

#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "kern/kern.h"

enum {
    PARTS = 256,
    ROUNDS = 5000,
    READ_BYTES = 256 << 20, /* far more than caches hold */
    ARITH_MS = 8,
    READ_MS = 25
};

struct roof_probe {
    const struct kern *k;
    struct pool *pool;
    uint8_t *p; /* [READ_BYTES] */
    struct {
        _Alignas(64) uint64_t sink, ops;
    } part[PARTS];
};

static void dot_part(void *ctx, uint32_t part, uint32_t worker)
{
    (void)worker;
    struct roof_probe *b = ctx;
    b->part[part].ops = b->k->busy_dot(ROUNDS, &b->part[part].sink);
}

static void fma_part(void *ctx, uint32_t part, uint32_t worker)
{
    (void)worker;
    struct roof_probe *b = ctx;
    b->part[part].ops = b->k->busy_fma(ROUNDS, &b->part[part].sink);
}

/* 1 MiB from end to end.  Several streams, other distances of asking ahead, hints, small pages and
 * a contiguous half for each thread all read as fast; only smaller parts are slower. */
static void read_part(void *ctx, uint32_t part, uint32_t worker)
{
    (void)worker;
    struct roof_probe *b = ctx;
    b->k->busy_read(b->p + (uint64_t)part * (READ_BYTES / PARTS), READ_BYTES / PARTS,
                    &b->part[part].sink);
    b->part[part].ops = READ_BYTES / PARTS;
}

/* Operations a second over at least so many ms, a mean like that of what is timed next to it: the best of short
 * runs would find the gaps between the neighbours' work, which no longer run does. */
static double rate(struct roof_probe *b, pool_fn *fn, uint64_t ms)
{
    uint64_t ops = 0, ns;
    const uint64_t t0 = clock_mono_ns();
    do {
        pool_run(b->pool, PARTS, fn, b);
        for (int i = 0; i < PARTS; i++)
            ops += b->part[i].ops;
        ns = clock_mono_ns() - t0;
    } while (ns < ms * 1000000);
    return (double)ops * 1e9 / (double)ns;
}

enum rc roof_new(const struct kern *k, struct pool *pool, struct roof_probe **out, struct err *err)
{
    struct roof_probe *b = mem_try_aligned(64, sizeof *b);
    uint8_t *p = mem_try_huge(READ_BYTES);
    if (!b || !p) {
        mem_free(b);
        mem_free(p);
        return err_set(err, RC_NOMEM, "no memory for the %d MiB that are read", READ_BYTES >> 20);
    }
    memset(b, 0, sizeof *b);
    memset(p, 1, READ_BYTES);
    b->k = k;
    b->pool = pool;
    b->p = p;
    pool_run(pool, PARTS, read_part, b); /* fresh memory is slower once */
    *out = b;
    return RC_OK;
}

void roof_free(struct roof_probe *b)
{
    if (!b)
        return;
    mem_free(b->p);
    mem_free(b);
}

struct roof roof_measure(struct roof_probe *b)
{
    struct roof r;
    r.int8_ops = rate(b, dot_part, ARITH_MS);
    r.f32_ops = rate(b, fma_part, ARITH_MS);
    r.read_bytes = rate(b, read_part, READ_MS);
    return r;
}

double roof_read(struct roof_probe *b)
{
    return rate(b, read_part, 0);
}

struct roof roof_better(const struct roof *a, const struct roof *b)
{
    return (struct roof){.int8_ops = MAX(a->int8_ops, b->int8_ops),
                         .f32_ops = MAX(a->f32_ops, b->f32_ops),
                         .read_bytes = MAX(a->read_bytes, b->read_bytes)};
}
