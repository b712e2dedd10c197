#include "nn/moe.h"

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

enum { E = 64, F = 32, S = 48, X = 10, USED = 3, N = 37 }; /* widths, experts, rows */

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

struct weights {
    float *router, *gate, *up, *down, *gate_up, *gate_s, *up_s, *down_s, *shared;
};

static struct weights new_weights(struct rng *rng)
{
    struct weights w = {
        .router = randoms(rng, X * E, 0.3),
        .gate = randoms(rng, X * F * E, 0.15),
        .up = randoms(rng, X * F * E, 0.15),
        .down = randoms(rng, X * E * F, 0.2),
        .gate_up = randoms(rng, X * 2 * F * E, 0),
        .gate_s = randoms(rng, S * E, 0.15),
        .up_s = randoms(rng, S * E, 0.15),
        .down_s = randoms(rng, E * S, 0.2),
        .shared = randoms(rng, E, 0.2),
    };
    for (size_t x = 0; x < X; x++) {
        memcpy(w.gate_up + x * 2 * F * E, w.gate + x * F * E, F * E * sizeof(float));
        memcpy(w.gate_up + (x * 2 + 1) * F * E, w.up + x * F * E, F * E * sizeof(float));
    }
    return w;
}

static void free_weights(struct weights *w)
{
    float *const all[] = {w->router, w->gate, w->up,     w->down,  w->gate_up,
                          w->gate_s, w->up_s, w->down_s, w->shared};
    for (size_t i = 0; i < COUNT_OF(all); i++)
        mem_free(all[i]);
}

/* ---- f64 ---- */

static void product(const float *w, uint32_t rows, uint32_t cols, const double *x, double *y)
{
    for (uint32_t r = 0; r < rows; r++) {
        y[r] = 0;
        for (uint32_t c = 0; c < cols; c++)
            y[r] += w[r * cols + c] * x[c];
    }
}

static void ffn(const float *gate, const float *up, const float *down, uint32_t hidden,
                const double *x, double scale, double *y)
{
    double g[S], u[S], out[E];
    product(gate, hidden, E, x, g);
    product(up, hidden, E, x, u);
    for (uint32_t i = 0; i < hidden; i++)
        g[i] = g[i] / (1 + exp(-g[i])) * u[i];
    product(down, E, hidden, g, out);
    for (int i = 0; i < E; i++)
        y[i] += scale * out[i];
}

static void naive(const struct weights *w, const float *h, double *y)
{
    double x[E], p[X], sum = 0, chosen = 0, s = 0;
    bool taken[X] = {false};
    uint32_t order[USED];
    for (int i = 0; i < E; i++)
        x[i] = h[i];
    product(w->router, X, E, x, p);
    for (int e = 0; e < X; e++)
        sum += p[e] = exp(p[e]);
    for (int i = 0; i < USED; i++) {
        int best = -1;
        for (int e = 0; e < X; e++)
            if (!taken[e] && (best < 0 || p[e] > p[best]))
                best = e;
        taken[best] = true;
        order[i] = (uint32_t)best;
        chosen += p[best] / sum;
    }
    memset(y, 0, E * sizeof *y);
    for (int i = 0; i < USED; i++) {
        const size_t at = (size_t)order[i] * F * E;
        ffn(w->gate + at, w->up + at, w->down + at, F, x, p[order[i]] / sum / chosen, y);
    }
    for (int i = 0; i < E; i++)
        s += w->shared[i] * x[i];
    ffn(w->gate_s, w->up_s, w->down_s, S, x, 1 / (1 + exp(-s)), y);
}

/* ---- the operator ---- */

struct rig {
    struct pool *pool;
    struct moe *m;
    struct act *a;
    struct mat *mats[7];
    struct moe_layer l;
};

static struct mat *mat(const struct kern *k, struct pool *pool, const float *w, uint32_t rows,
                       uint32_t cols, uint32_t n)
{
    struct mat *m;
    const struct mat_src src = {"test", DT_F32, cols, rows, n, w};
    assert_int_equal(mat_new(k, pool, &src, NULL, &m, NULL), RC_OK);
    return m;
}

static struct rig new_rig(const struct kern *k, const struct weights *w, bool one, uint32_t threads)
{
    struct rig r;
    const struct moe_shape s = {X, USED, E, F, S, N};
    assert_int_equal(pool_new(&(struct pool_opts){.n_threads = threads}, &r.pool, NULL), RC_OK);
    assert_int_equal(moe_new(k, r.pool, &s, &r.m, NULL), RC_OK);
    assert_int_equal(act_new(k, N, E, &r.a, NULL), RC_OK);
    r.mats[0] = mat(k, r.pool, w->router, X, E, 1);
    r.mats[1] = one ? mat(k, r.pool, w->gate_up, 2 * F, E, X) : mat(k, r.pool, w->gate, F, E, X);
    r.mats[2] = one ? NULL : mat(k, r.pool, w->up, F, E, X);
    r.mats[3] = mat(k, r.pool, w->down, E, F, X);
    r.mats[4] = mat(k, r.pool, w->gate_s, S, E, 1);
    r.mats[5] = mat(k, r.pool, w->up_s, S, E, 1);
    r.mats[6] = mat(k, r.pool, w->down_s, E, S, 1);
    r.l = (struct moe_layer){r.mats[0], r.mats[1], r.mats[2], r.mats[3],
                             r.mats[4], r.mats[5], r.mats[6], w->shared};
    return r;
}

static void free_rig(struct rig *r)
{
    for (size_t i = 0; i < COUNT_OF(r->mats); i++)
        mat_free(r->mats[i]);
    moe_free(r->m);
    act_free(r->a);
    pool_free(r->pool);
}

/* Rows in slices of at most step. */
static void run(struct rig *r, const float *h, uint32_t step, float *y)
{
    for (uint32_t at = 0; at < N; at += step) {
        const uint32_t n = MIN(step, N - at);
        act_set(r->a, h + at * E, n, E, E);
        moe_forward(r->m, &r->l, r->a, h + at * E, n, y + at * E);
    }
}

static void every_table_agrees_with_f64_in_any_batch(void **state)
{
    (void)state;
    struct rng rng = {test_seed()};
    struct weights w = new_weights(&rng);
    float *h = randoms(&rng, N * E, 1), one[N * E], sliced[N * E];
    const struct kern *k;
    for (uint32_t i = 0; (k = kern_nth(i)); i++)
        for (int fused = 0; fused <= 1; fused++) {
            struct rig r = new_rig(k, &w, fused, 1 + (uint32_t)fused);
            run(&r, h, N, one);
            for (uint32_t row = 0; row < N; row++) {
                double want[E];
                naive(&w, h + row * E, want);
                for (int c = 0; c < E; c++)
                    assert_true(fabs(one[row * E + (uint32_t)c] - want[c]) < 1e-4);
            }
            run(&r, h, 1, sliced);
            assert_memory_equal(sliced, one, sizeof one);
            run(&r, h, 5, sliced);
            assert_memory_equal(sliced, one, sizeof one);
            free_rig(&r);
        }
    mem_free(h);
    free_weights(&w);
}

static void equal_experts_are_chosen_from_the_lowest(void **state)
{
    (void)state;
    const struct kern *k;
    for (uint32_t i = 0; (k = kern_nth(i)); i++) {
        float p[6] = {1, 3, 1, 3, 1, 1}, w[4];
        uint32_t e[4];
        moe_choose(k, p, 6, 4, e, w);
        assert_int_equal(e[0], 1);
        assert_int_equal(e[1], 3);
        assert_int_equal(e[2], 0);
        assert_int_equal(e[3], 2);
        assert_true(w[0] == w[1] && w[2] == w[3]);
    }
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    const struct moe_shape s = {X, USED, E, F, S, N};
    struct pool *pool;
    assert_int_equal(pool_new(&(struct pool_opts){.n_threads = 1}, &pool, NULL), RC_OK);
    for (uint64_t n = 1;; n++) {
        struct moe *m = NULL;
        mem_fail_after(n);
        const enum rc rc = moe_new(kern_nth(0), pool, &s, &m, NULL);
        mem_fail_after(0);
        moe_free(m);
        if (!rc)
            break;
        assert_int_equal(rc, RC_NOMEM);
    }
    pool_free(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_table_agrees_with_f64_in_any_batch),
        cmocka_unit_test(equal_experts_are_chosen_from_the_lowest),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
