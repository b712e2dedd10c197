/* The delta net's mixer against plain f64, and the same bits however its tokens come. */
#include "nn/delta.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "kern/kern.h"
#include "kern/pick.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { T = 70 };

static const struct delta_shape shapes[] = {
    {.n_k_heads = 2, .n_v_heads = 4, .dim = 128, .n_taps = 4, .eps = 1e-6f},
    {.n_k_heads = 1, .n_v_heads = 3, .dim = 48, .n_taps = 3, .eps = 1e-6f},
    {.n_k_heads = 3, .n_v_heads = 3, .dim = 16, .n_taps = 2, .eps = 1e-6f},
    {.n_k_heads = 1, .n_v_heads = 2, .dim = 32, .n_taps = 6, .eps = 1e-6f},
};

static uint64_t test_seed(void)
{
    const char *env = getenv("SEED");
    const uint64_t seed = env ? strtoull(env, NULL, 10) : 1;
    print_message("SEED=%llu\n", (unsigned long long)seed);
    return seed;
}

static float *randoms(struct rng *rng, size_t n, double scale)
{
    float *p = mem_alloc(n * sizeof *p);
    for (size_t i = 0; i < n; i++)
        p[i] = (float)(rng_normal(rng) * scale);
    return p;
}

/* One layer and the raw projections of one sequence. */
struct input {
    struct delta_shape s;
    struct shape shape;
    uint32_t C, H, D;
    float *conv, *a, *dt, *norm, *u, *z, *alpha, *beta;
};

static struct input new_input(struct rng *rng, const struct delta_shape *s)
{
    const uint32_t C = (2 * s->n_k_heads + s->n_v_heads) * s->dim, H = s->n_v_heads, D = s->dim;
    struct input in = {.s = *s, .C = C, .H = H, .D = D};
    in.shape = (struct shape){
        .n_delta = 2, .conv_taps = s->n_taps, .conv_channels = C, .n_v_heads = H, .state_dim = D};
    in.conv = randoms(rng, (size_t)s->n_taps * C, 0.6);
    in.a = randoms(rng, H, 1);
    for (uint32_t h = 0; h < H; h++)
        in.a[h] = -expf(in.a[h] - 2);
    in.dt = randoms(rng, H, 1);
    in.norm = randoms(rng, D, 1);
    in.u = randoms(rng, (size_t)T * C, 1);
    in.z = randoms(rng, (size_t)T * H * D, 1);
    in.alpha = randoms(rng, (size_t)T * H, 1);
    in.beta = randoms(rng, (size_t)T * H, 1);
    return in;
}

static void free_input(struct input *in)
{
    float *const all[] = {in->conv, in->a, in->dt, in->norm, in->u, in->z, in->alpha, in->beta};
    for (size_t i = 0; i < COUNT_OF(all); i++)
        mem_free(all[i]);
}

/* ---- f64 ---- */

static double silu(double x)
{
    return x / (1 + exp(-x));
}

static double convolved(const struct input *in, uint32_t t, uint32_t c)
{
    double s = 0;
    const uint32_t K = in->s.n_taps;
    for (uint32_t i = 0; i < K; i++)
        if (t + i + 1 >= K)
            s += (double)in->conv[i * in->C + c] * in->u[(size_t)(t + i + 1 - K) * in->C + c];
    return silu(s);
}

static void unit(double *x, uint32_t n, double scale)
{
    double ss = 0;
    for (uint32_t i = 0; i < n; i++)
        ss += x[i] * x[i];
    for (uint32_t i = 0; i < n; i++)
        x[i] *= scale / fmax(sqrt(ss), 1e-6);
}

/* One value head of one token: S [key][value] moves on, y [D]. */
static void naive_head(const struct input *in, uint32_t t, uint32_t h, double *S, double *y)
{
    const uint32_t D = in->D, nk = in->s.n_k_heads, j = h % nk;
    double q[128], k[128], o[128], ss = 0;
    for (uint32_t i = 0; i < D; i++) {
        q[i] = convolved(in, t, j * D + i);
        k[i] = convolved(in, t, (nk + j) * D + i);
    }
    unit(q, D, 1 / sqrt(D));
    unit(k, D, 1);
    const size_t th = (size_t)t * in->H + h;
    const double sp = log1p(exp((double)in->alpha[th] + in->dt[h]));
    const double decay = exp(in->a[h] * sp), beta = 1 / (1 + exp(-(double)in->beta[th]));
    for (uint32_t i = 0; i < D * D; i++)
        S[i] *= decay;
    for (uint32_t c = 0; c < D; c++) {
        double m = 0;
        for (uint32_t x = 0; x < D; x++)
            m += S[x * D + c] * k[x];
        const double e = beta * (convolved(in, t, (2 * nk + h) * D + c) - m);
        o[c] = 0;
        for (uint32_t x = 0; x < D; x++) {
            S[x * D + c] += k[x] * e;
            o[c] += S[x * D + c] * q[x];
        }
        ss += o[c] * o[c];
    }
    for (uint32_t c = 0; c < D; c++)
        y[c] = o[c] / sqrt(ss / D + 1e-6) * in->norm[c] * silu(in->z[th * D + c]);
}

static void check_naive(const struct input *in, const float *y)
{
    const uint32_t D = in->D;
    double *S = mem_zalloc((size_t)in->H * D * D * sizeof *S), want[128];
    for (uint32_t t = 0; t < T; t++)
        for (uint32_t h = 0; h < in->H; h++) {
            naive_head(in, t, h, S + (size_t)h * D * D, want);
            for (uint32_t c = 0; c < D; c++) {
                const double got = y[((size_t)t * in->H + h) * D + c];
                if (!(fabs(got - want[c]) <= 2e-4 * (1 + fabs(want[c])))) {
                    print_message("token %u head %u [%u]: %g, want %g\n", t, h, c, got, want[c]);
                    assert_true(false);
                }
            }
        }
    mem_free(S);
}

/* ---- the operator ---- */

/* Rows [from, from + n) of in [T][blocks * D] to rows [at, at + n) of out [blocks][n_rows][D]. */
static void copy_blocks(const float *in, uint32_t blocks, uint32_t D, uint32_t from, uint32_t n,
                        uint32_t at, uint32_t n_rows, float *out)
{
    for (uint32_t b = 0; b < blocks; b++)
        for (uint32_t i = 0; i < n; i++)
            memcpy(out + ((size_t)b * n_rows + at + i) * D,
                   in + ((size_t)(from + i) * blocks + b) * D, D * sizeof *out);
}

/* Slices of at most step tokens (random when 0); with company another sequence, some tokens of it, goes
 * before ours in every batch.  state [shape_snap_bytes] at the end. */
static void run(const struct kern *k, struct pool *pool, const struct input *in, uint32_t step,
                bool company, struct rng *rng, float *y, uint8_t *state)
{
    const struct delta_layer l = {1, in->conv, in->a, in->dt, in->norm};
    const size_t C = in->C, H = in->H, HD = H * in->D;
    struct delta *d;
    struct rec *rec;
    assert_int_equal(delta_new(k, pool, &in->s, &d, NULL), RC_OK);
    assert_int_equal(rec_new(&in->shape, 2, &rec, NULL), RC_OK);
    const rec_slot ours = rec_take(rec), other = rec_take(rec);
    for (uint32_t pos = 0, at = 0; pos < T;) {
        const uint32_t want = step ? step : 1 + rng_below(rng, 25), n = MIN(want, T - pos);
        const uint32_t before = company ? MIN(n / 2 + 1, T - at) : 0, rows = before + n;
        float *u = mem_alloc(rows * C * sizeof *u), *z = mem_alloc(rows * HD * sizeof *z);
        float *al = mem_alloc(rows * H * sizeof *al), *be = mem_alloc(rows * H * sizeof *be);
        float *out = mem_alloc(rows * HD * sizeof *out);
        const struct stretch runs[] = {{.n = before, .pos = at, .rec = other},
                                       {.row = before, .n = n, .pos = pos, .rec = ours}};
        for (int i = 0; i < 2; i++) {
            const struct stretch *s = &runs[i];
            copy_blocks(in->u, in->C / in->D, in->D, s->pos, s->n, s->row, rows, u);
            copy_blocks(in->z, in->H, in->D, s->pos, s->n, s->row, rows, z);
            memcpy(al + s->row * H, in->alpha + s->pos * H, s->n * H * sizeof *al);
            memcpy(be + s->row * H, in->beta + s->pos * H, s->n * H * sizeof *be);
        }
        delta_forward(d, &l, rec, runs + !before, 1 + (before != 0), rows, u, z, al, be, out);
        memcpy(y + pos * HD, out + before * HD, n * HD * sizeof *y);
        pos += n;
        at += before;
        mem_free(u);
        mem_free(z);
        mem_free(al);
        mem_free(be);
        mem_free(out);
    }
    memcpy(state, rec_bytes(rec, ours), shape_snap_bytes(&in->shape));
    delta_free(d);
    rec_free(rec);
}

static void every_table_and_shape_agrees_with_f64_and_keeps_its_bits(void **state)
{
    (void)state;
    struct rng rng = {test_seed()};
    for (size_t c = 0; c < COUNT_OF(shapes); c++) {
        struct input in = new_input(&rng, &shapes[c]);
        const size_t y_bytes = (size_t)T * in.H * in.D * sizeof(float);
        const size_t s_bytes = shape_snap_bytes(&in.shape);
        float *want = mem_alloc(y_bytes), *got = mem_alloc(y_bytes);
        uint8_t *want_s = mem_alloc(s_bytes), *got_s = mem_alloc(s_bytes);
        const struct kern *k;
        for (uint32_t i = 0; (k = kern_nth(i)); i++)
            for (uint32_t threads = 1; threads <= 3; threads++) {
                struct pool *pool;
                const struct pool_opts po = {.n_threads = threads};
                assert_int_equal(pool_new(&po, &pool, NULL), RC_OK);
                if (threads == 1) {
                    run(k, pool, &in, T, false, &rng, want, want_s);
                    check_naive(&in, want);
                }
                for (int way = 0; way < 3; way++) {
                    run(k, pool, &in, way == 0 ? 1 : 0, way == 2, &rng, got, got_s);
                    assert_memory_equal(got, want, y_bytes);
                    assert_memory_equal(got_s, want_s, s_bytes);
                }
                pool_free(pool);
            }
        mem_free(want);
        mem_free(got);
        mem_free(want_s);
        mem_free(got_s);
        free_input(&in);
    }
}

/* With no history and no input, q and k are zero: nothing may become NaN. */
static void silence_stays_silent(void **state)
{
    (void)state;
    struct rng rng = {1};
    struct input in = new_input(&rng, &shapes[0]);
    memset(in.u, 0, (size_t)T * in.C * sizeof *in.u);
    float *y = mem_alloc((size_t)T * in.H * in.D * sizeof *y);
    uint8_t *s = mem_alloc(shape_snap_bytes(&in.shape));
    struct pool *pool;
    assert_int_equal(pool_new(&(struct pool_opts){.n_threads = 1}, &pool, NULL), RC_OK);
    const struct kern *k;
    for (uint32_t i = 0; (k = kern_nth(i)); i++) {
        run(k, pool, &in, T, false, &rng, y, s);
        for (size_t j = 0; j < (size_t)T * in.H * in.D; j++)
            assert_true(y[j] == 0);
    }
    pool_free(pool);
    mem_free(y);
    mem_free(s);
    free_input(&in);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_table_and_shape_agrees_with_f64_and_keeps_its_bits),
        cmocka_unit_test(silence_stays_silent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
