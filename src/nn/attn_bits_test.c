/* Attention against plain f64, and the same bits however its rows come. */
#include "nn/attn.h"

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

enum { D = 64, ROT = 16, T = 600 };

static const uint32_t sections[4] = {3, 3, 2, 0};

static uint64_t test_seed(void)
{
    const char *env = getenv("SEED");
    const uint64_t seed = env ? strtoull(env, NULL, 10) : 1;
    print_message("SEED=%llu\n", (unsigned long long)seed);
    return seed;
}

/* One sequence's raw projections. */
struct input {
    uint32_t H, HK;
    float *qg, *k, *v, q_norm[D], k_norm[D];
};

static float *randoms(struct rng *rng, size_t n, double scale)
{
    float *p = mem_alloc(n * sizeof *p);
    for (size_t i = 0; i < n; i++)
        p[i] = (float)(rng_normal(rng) * scale);
    return p;
}

static struct input new_input(struct rng *rng, uint32_t H, uint32_t HK)
{
    struct input in = {.H = H, .HK = HK};
    in.qg = randoms(rng, (size_t)T * H * 2 * D, 1);
    in.k = randoms(rng, (size_t)T * HK * D, 1);
    in.v = randoms(rng, (size_t)T * HK * D, 1);
    for (int i = 0; i < D; i++) {
        in.q_norm[i] = (float)(1.5 + 0.1 * rng_normal(rng));
        in.k_norm[i] = (float)(1.5 + 0.1 * rng_normal(rng));
    }
    return in;
}

static void free_input(struct input *in)
{
    mem_free(in->qg);
    mem_free(in->k);
    mem_free(in->v);
}

struct rig {
    struct pool *pool;
    struct attn *a;
    struct kv *kv;
};

static struct rig new_rig(const struct kern *k, const struct input *in, enum kv_type type,
                          uint32_t threads)
{
    struct rig r;
    struct rope rope;
    rope_init(&rope, ROT, 1e4, sections);
    const struct attn_shape as = {in->H, in->HK, D, type, 1e-6f, 2 * T};
    const struct shape shape = {.n_attn = 2, .n_kv_heads = in->HK, .head_dim = D, .kv_type = type};
    assert_int_equal(pool_new(&(struct pool_opts){.n_threads = threads}, &r.pool, NULL), RC_OK);
    assert_int_equal(attn_new(k, r.pool, &as, &rope, &r.a, NULL), RC_OK);
    assert_int_equal(kv_new(&shape, 0, &r.kv, NULL), RC_OK);
    return r;
}

static void free_rig(struct rig *r)
{
    attn_free(r->a);
    kv_free(r->kv);
    pool_free(r->pool);
}

/* Pages whose every bit is set: NaNs to whoever reads a row that was never written. */
static void extend(struct rig *r, const struct input *in, enum kv_type type, struct kv_table *t,
                   uint32_t n)
{
    const uint32_t before = t->n;
    assert_int_equal(kv_table_extend(r->kv, t, n, NULL), RC_OK);
    const struct shape s = {.head_dim = D, .kv_type = type};
    for (uint32_t j = before; j < t->n; j++)
        for (uint32_t h = 0; h < in->HK; h++) {
            memset(kv_k(r->kv, t->pages[j], 1, h), 0xff, KV_PAGE * shape_row_bytes(&s));
            memset(kv_v(r->kv, t->pages[j], 1, h), 0xff, KV_PAGE * shape_row_bytes(&s));
        }
}

/* One sequence in slices of at most step tokens (random when step is 0); y [T][H][D]. */
static void run_sliced(struct rig *r, const struct input *in, enum kv_type type, uint32_t step,
                       struct rng *rng, float *y)
{
    const size_t q_row = (size_t)in->H * 2 * D, k_row = (size_t)in->HK * D;
    const struct attn_layer l = {1, in->q_norm, in->k_norm};
    struct kv_table t;
    kv_table_init(&t);
    while (t.len < T) {
        const uint32_t want = step ? step : 1 + rng_below(rng, 300), n = MIN(want, T - t.len);
        float *qg = mem_alloc(n * q_row * sizeof *qg), *k = mem_alloc(n * k_row * sizeof *k);
        memcpy(qg, in->qg + t.len * q_row, n * q_row * sizeof *qg);
        memcpy(k, in->k + t.len * k_row, n * k_row * sizeof *k);
        extend(r, in, type, &t, n);
        const struct stretch run = {.n = n, .pos = t.len, .kv = &t};
        attn_begin(r->a, &run, 1);
        attn_forward(r->a, &l, r->kv, &run, 1, qg, k, in->v + t.len * k_row,
                     y + (size_t)t.len * in->H * D);
        kv_table_advance(&t, n);
        mem_free(qg);
        mem_free(k);
    }
    kv_table_release(r->kv, &t);
}

/* Two copies of the sequence in one batch, the second some tokens behind; returns the second's rows. */
static void run_in_company(struct rig *r, const struct input *in, enum kv_type type,
                           struct rng *rng, float *y)
{
    const size_t q_row = (size_t)in->H * 2 * D, k_row = (size_t)in->HK * D, y_row = in->H * D;
    const struct attn_layer l = {1, in->q_norm, in->k_norm};
    struct kv_table t[2];
    kv_table_init(&t[0]);
    kv_table_init(&t[1]);
    while (t[1].len < T) {
        struct stretch runs[2];
        uint32_t rows = 0;
        for (uint32_t i = 0; i < 2; i++) {
            const uint32_t want = i ? 1 + rng_below(rng, 200) : 1 + rng_below(rng, 400);
            const uint32_t n = MIN(want, T - t[i].len);
            extend(r, in, type, &t[i], n);
            runs[i] = (struct stretch){.row = rows, .n = n, .pos = t[i].len, .kv = &t[i]};
            rows += n;
        }
        float *qg = mem_alloc(rows * q_row * sizeof *qg), *k = mem_alloc(rows * k_row * sizeof *k);
        float *v = mem_alloc(rows * k_row * sizeof *v),
              *out = mem_alloc(rows * y_row * sizeof *out);
        for (int i = 0; i < 2; i++) {
            const struct stretch *s = &runs[i];
            memcpy(qg + s->row * q_row, in->qg + s->pos * q_row, s->n * q_row * sizeof *qg);
            memcpy(k + s->row * k_row, in->k + s->pos * k_row, s->n * k_row * sizeof *k);
            memcpy(v + s->row * k_row, in->v + s->pos * k_row, s->n * k_row * sizeof *k);
        }
        const uint32_t first = runs[0].n ? 0 : 1; /* the leader may have ended */
        attn_begin(r->a, runs + first, 2 - first);
        attn_forward(r->a, &l, r->kv, runs + first, 2 - first, qg, k, v, out);
        memcpy(y + runs[1].pos * y_row, out + runs[1].row * y_row, runs[1].n * y_row * sizeof *y);
        kv_table_advance(&t[0], runs[0].n);
        kv_table_advance(&t[1], runs[1].n);
        mem_free(qg);
        mem_free(k);
        mem_free(v);
        mem_free(out);
    }
    kv_table_release(r->kv, &t[0]);
    kv_table_release(r->kv, &t[1]);
}

/* ---- f64 ---- */

static void norm_turn(const float *x, const float *w, uint32_t pos, double *y)
{
    double ss = 0;
    for (int i = 0; i < D; i++)
        ss += (double)x[i] * x[i];
    for (int i = 0; i < D; i++)
        y[i] = x[i] / sqrt(ss / D + 1e-6) * w[i];
    for (int j = 0; j < ROT / 2; j++) {
        const double a = y[j], b = y[j + ROT / 2], th = pos * pow(1e4, -2.0 * j / ROT);
        y[j] = a * cos(th) - b * sin(th);
        y[j + ROT / 2] = a * sin(th) + b * cos(th);
    }
}

static void naive_row(const struct input *in, const double *keys, uint32_t pos, uint32_t h,
                      double *y)
{
    static double s[T];
    const uint32_t m = h / (in->H / in->HK);
    const float *qg = in->qg + ((size_t)pos * in->H + h) * 2 * D;
    double q[D], max = -INFINITY, sum = 0;
    norm_turn(qg, in->q_norm, pos, q);
    for (uint32_t t = 0; t <= pos; t++) {
        s[t] = 0;
        for (uint32_t i = 0; i < D; i++)
            s[t] += q[i] * keys[((size_t)t * in->HK + m) * D + i] / sqrt(D);
        max = MAX(max, s[t]);
    }
    memset(y, 0, D * sizeof *y);
    for (uint32_t t = 0; t <= pos; t++) {
        const double p = exp(s[t] - max);
        sum += p;
        for (uint32_t i = 0; i < D; i++)
            y[i] += p * in->v[((size_t)t * in->HK + m) * D + i];
    }
    for (int i = 0; i < D; i++)
        y[i] = y[i] / sum / (1 + exp(-(double)qg[D + i]));
}

static void check_naive(const struct input *in, const float *y, double tolerance)
{
    double *keys = mem_alloc((size_t)T * in->HK * D * sizeof *keys), want[D];
    for (uint32_t t = 0; t < T; t++)
        for (uint32_t m = 0; m < in->HK; m++) {
            const size_t at = ((size_t)t * in->HK + m) * D;
            norm_turn(in->k + at, in->k_norm, t, keys + at);
        }
    for (uint32_t pos = 0; pos < T; pos += pos < 130 ? 1 : 97)
        for (uint32_t h = 0; h < in->H; h++) {
            naive_row(in, keys, pos, h, want);
            for (int i = 0; i < D; i++) {
                const double got = y[((size_t)pos * in->H + h) * D + (size_t)i];
                if (!(fabs(got - want[i]) <= tolerance)) {
                    print_message("pos %u head %u [%d]: %g, want %g\n", pos, h, i, got, want[i]);
                    assert_true(false);
                }
            }
        }
    mem_free(keys);
}

static const double tolerance[] = {
    [KV_F16] = 4e-3, [KV_F32] = 1e-5, [KV_Q8_0] = 4e-2, [KV_I16] = 4e-3};

static void every_table_and_kv_type_agrees_with_f64(void **state)
{
    (void)state;
    struct rng rng = {test_seed()};
    struct input in = new_input(&rng, 4, 2);
    float *y = mem_alloc((size_t)T * in.H * D * sizeof *y);
    const struct kern *k;
    for (uint32_t i = 0; (k = kern_nth(i)); i++)
        for (enum kv_type type = KV_F16; type <= KV_I16; type++) {
            struct rig r = new_rig(k, &in, type, 2);
            run_sliced(&r, &in, type, 500, &rng, y);
            check_naive(&in, y, tolerance[type]);
            free_rig(&r);
        }
    mem_free(y);
    free_input(&in);
}

static void a_row_has_the_same_bits_however_it_comes(void **state)
{
    (void)state;
    static const uint32_t heads[][2] = {{4, 2}, {7, 1}};
    struct rng rng = {test_seed()};
    const struct kern *k;
    for (uint32_t c = 0; c < COUNT_OF(heads); c++) {
        struct input in = new_input(&rng, heads[c][0], heads[c][1]);
        const size_t bytes = (size_t)T * in.H * D * sizeof(float);
        float *want = mem_alloc(bytes), *got = mem_alloc(bytes);
        for (uint32_t i = 0; (k = kern_nth(i)); i++)
            for (enum kv_type type = c ? KV_I16 : KV_F16; type <= KV_I16; type++)
                for (uint32_t threads = 1; threads <= 3; threads++) {
                    struct rig r = new_rig(k, &in, type, threads);
                    if (threads == 1)
                        run_sliced(&r, &in, type, T, &rng, want);
                    run_sliced(&r, &in, type, threads == 2 ? 1 : 0, &rng, got);
                    assert_memory_equal(got, want, bytes);
                    run_in_company(&r, &in, type, &rng, got);
                    assert_memory_equal(got, want, bytes);
                    free_rig(&r);
                }
        mem_free(want);
        mem_free(got);
        free_input(&in);
    }
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    struct rope rope;
    rope_init(&rope, ROT, 1e4, sections);
    const struct attn_shape s = {4, 2, D, KV_F16, 1e-6f, 10};
    struct pool *pool;
    assert_int_equal(pool_new(&(struct pool_opts){.n_threads = 1}, &pool, NULL), RC_OK);
    for (uint64_t n = 1;; n++) {
        struct attn *a = NULL;
        mem_fail_after(n);
        const enum rc rc = attn_new(kern_nth(0), pool, &s, &rope, &a, NULL);
        mem_fail_after(0);
        attn_free(a);
        if (!rc)
            break;
        assert_int_equal(rc, RC_NOMEM);
    }
    pool_free(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_table_and_kv_type_agrees_with_f64),
        cmocka_unit_test(a_row_has_the_same_bits_however_it_comes),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
