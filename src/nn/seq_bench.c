/* seq_bench - the sequence operators of every table, one thread, in CPU time: so that other work on the
 * machine does not count.
 *
 *   nn_seq_bench [TABLE]
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"
#include "kern/kern.h"
#include "kern/pick.h"
#include "nn/delta.h"
#include "state/rec.h"

static float *randoms(size_t n)
{
    static uint64_t calls;
    struct rng rng = {++calls};
    /* each at its own place in a page, lest stores and loads be taken for one another */
    float *p = mem_alloc((n + 64 * calls) * sizeof *p);
    for (size_t i = 0; i < n; i++)
        p[i] = (float)(rng_normal(&rng) * 0.1);
    return p;
}

/* Best of some runs of about 10 ms: seconds for one call of fn.  (Reading the clock takes as long as a
 * small call.) */
static double time_of(void (*fn)(void *), void *ctx)
{
    double best = 1e9;
    for (int n = 1, runs = 0; runs < 9;) {
        const uint64_t t0 = clock_cpu_ns();
        for (int i = 0; i < n; i++)
            fn(ctx);
        const double t = 1e-9 * (double)(clock_cpu_ns() - t0);
        if (t < 0.01) {
            n *= 2;
            continue;
        }
        best = MIN(best, t / n);
        runs++;
    }
    return best;
}

struct delta_case {
    const struct kern *k;
    float *S, *q, *kk, *v, *decay, *beta, *out;
    uint32_t dim, n;
};

static void run_delta(void *ctx)
{
    const struct delta_case *c = ctx;
    c->k->seq.delta(c->S, c->dim, c->q, c->kk, c->v, c->decay, c->beta, c->n, c->out,
                    &(struct seq_soon){0});
}

static void bench_delta(const struct kern *k)
{
    enum { D = 128, N = 16 };
    struct delta_case c = {k,
                           randoms(D * D),
                           randoms(N * D),
                           randoms(N * D),
                           randoms(N * D),
                           randoms(N),
                           randoms(N),
                           randoms(N * D),
                           D,
                           N};
    for (int i = 0; i < N; i++) {
        c.decay[i] = 0.9f;
        c.beta[i] = 0.5f;
    }
    const double s = time_of(run_delta, &c) / N;
    printf("  delta rule, heads of %d      %7.3f us a token and head, %6.1f GFLOPS\n", D, s * 1e6,
           7.0 * D * D / s * 1e-9);
    mem_free(c.S);
    mem_free(c.q);
    mem_free(c.kk);
    mem_free(c.v);
    mem_free(c.decay);
    mem_free(c.beta);
    mem_free(c.out);
}

/* The mixer of a layer between its projections: 16 heads of 128, as in the 0.8B model. */
struct layer_case {
    struct delta *d;
    struct delta_layer l;
    struct rec *rec;
    struct stretch run;
    float *u, *z, *alpha, *beta, *y;
};

static void run_layer(void *ctx)
{
    const struct layer_case *c = ctx;
    delta_forward(c->d, &c->l, c->rec, &c->run, 1, c->run.n, c->u, c->z, c->alpha, c->beta, c->y);
}

static void bench_layer(const struct kern *k, uint32_t n)
{
    enum { H = 16, D = 128, C = 3 * H * D, TAPS = 4 };
    const struct delta_shape s = {
        .n_k_heads = H, .n_v_heads = H, .dim = D, .n_taps = TAPS, .eps = 1e-6f};
    const struct shape shape = {
        .n_delta = 1, .conv_taps = TAPS, .conv_channels = C, .n_v_heads = H, .state_dim = D};
    const struct pool_opts po = {.n_threads = 1};
    struct pool *pool;
    float *conv = randoms(TAPS * C), *a = randoms(H), *dt = randoms(H), *norm = randoms(D);
    struct layer_case c = {.l = {0, conv, a, dt, norm},
                           .run = {.n = n},
                           .u = randoms((size_t)n * C),
                           .z = randoms((size_t)n * H * D),
                           .alpha = randoms((size_t)n * H),
                           .beta = randoms((size_t)n * H),
                           .y = randoms((size_t)n * H * D)};
    for (int h = 0; h < H; h++)
        a[h] = -fabsf(a[h]);
    CHECK(pool_new(&po, &pool, NULL) == RC_OK && delta_new(k, pool, &s, &c.d, NULL) == RC_OK &&
          rec_new(&shape, 1, &c.rec, NULL) == RC_OK);
    c.run.rec = rec_take(c.rec);
    const double t = time_of(run_layer, &c) / n / H;
    printf("  delta net, %3u tokens         %7.3f us a token and head\n", n, t * 1e6);
    rec_give(c.rec, c.run.rec);
    rec_free(c.rec);
    delta_free(c.d);
    pool_free(pool);
    float *const all[] = {conv, a, dt, norm, c.u, c.z, c.alpha, c.beta, c.y};
    for (size_t i = 0; i < COUNT_OF(all); i++)
        mem_free(all[i]);
}

struct attn_case {
    const struct kern *k;
    enum seq_kv type;
    struct seq_tile tile;
    void *K, *V;
    uint32_t n_pages;
    float scratch[SEQ_SCRATCH];
};

/* Pages that stay in cache, and as many as a long context has */
enum { FEW = 8, MANY = 1024 };

static void run_attn(void *ctx)
{
    struct attn_case *c = ctx;
    const size_t bytes = (size_t)SEQ_PAGE * c->tile.dim * 4; /* of the widest type */
    c->k->seq.attn_begin(&c->tile);
    for (uint32_t i = 0; i < c->n_pages; i++) {
        c->tile.next_k = i + 1 < c->n_pages ? (char *)c->K + (i + 1) * bytes : NULL;
        c->k->seq.attn_page[c->type](&c->tile, i * SEQ_PAGE, (char *)c->K + i * bytes,
                                     (char *)c->V + i * bytes, c->scratch);
    }
}

static void bench_attn(const struct kern *k, enum seq_kv type, uint32_t rows, uint32_t pages)
{
    enum { D = 256 };
    static const char *const names[] = {"f16", "f32", "q8_0", "i16"};
    const size_t page = (size_t)SEQ_PAGE * D;
    float *row = randoms(D);
    struct attn_case c = {.k = k, .type = type, .n_pages = pages};
    c.K = mem_zalloc(pages * page * 4);
    c.V = mem_zalloc(pages * page * 4);
    for (uint32_t i = 0; i < pages; i++)
        for (uint32_t t = 0; t < SEQ_PAGE; t++)
            k->seq.kv_put[type](row, row, D, t, (char *)c.K + i * page * 4,
                                (char *)c.V + i * page * 4);
    uint32_t last[96];
    for (uint32_t i = 0; i < rows; i++)
        last[i] = pages * SEQ_PAGE - 1;
    float *packed = randoms((size_t)rows * D);
    for (uint32_t r = 0; r < rows; r++)
        k->seq.pack_q[type](row, D, r, rows, packed);
    float *o = randoms((size_t)rows * D), m[96], l[96];
    c.tile = (struct seq_tile){rows, D, last, packed, o, m, l, NULL};
    const double s = time_of(run_attn, &c);
    printf("  attention %-4s, %2u rows%s   %7.3f us a page and row, %6.1f GFLOPS\n", names[type],
           rows, pages > FEW ? ", far" : "     ", s * 1e6 / pages / rows,
           4.0 * D * SEQ_PAGE * pages * rows / s * 1e-9);
    mem_free(c.K);
    mem_free(c.V);
    mem_free(row);
    mem_free(packed);
    mem_free(o);
}

struct row_case {
    const struct kern *k;
    float *x, *y, *w;
    uint32_t n;
};

static void run_silu(void *ctx)
{
    const struct row_case *c = ctx;
    c->k->seq.silu_mul(c->x, c->y, c->n, c->w);
}

static void run_norm(void *ctx)
{
    const struct row_case *c = ctx;
    c->k->seq.norm(c->x, NULL, c->y, 1e-6f, c->n, c->w);
}

static void run_conv(void *ctx)
{
    const struct row_case *c = ctx;
    const float *rows[16 + 3];
    for (uint32_t i = 0; i < COUNT_OF(rows); i++)
        rows[i] = c->x + i * c->n;
    c->k->seq.conv_silu(rows, 4, c->y, c->n, 16, c->n, c->w, c->n);
}

static void bench_rows(const struct kern *k)
{
    struct row_case c = {k, randoms(4096), randoms(4096), randoms(4096), 1024};
    printf("  silu, norm of 1024           %7.3f, %7.3f us\n", time_of(run_silu, &c) * 1e6,
           time_of(run_norm, &c) * 1e6);
    c.n = 128;
    printf("  convolution of 128           %7.3f us a token\n", time_of(run_conv, &c) * 1e6 / 16);
    mem_free(c.x);
    mem_free(c.y);
    mem_free(c.w);
}

int main(int argc, char **argv)
{
    const struct kern *k;
    for (uint32_t i = 0; (k = kern_nth(i)); i++) {
        if (argc > 1 && strcmp(argv[1], k->name) != 0)
            continue;
        printf("%s\n", k->name);
        bench_delta(k);
        bench_layer(k, 512);
        bench_layer(k, 1);
        for (enum seq_kv type = 0; type < SEQ_N_KV; type++) {
            bench_attn(k, type, 96, FEW);
            bench_attn(k, type, 4, FEW);
            bench_attn(k, type, 1, FEW);
            bench_attn(k, type, 4, MANY);
        }
        bench_rows(k);
    }
    return 0;
}
