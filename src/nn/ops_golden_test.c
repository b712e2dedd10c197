/* The sequence operators of every table against golden/ops.json (float64). */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/mem.h"
#include "kern/kern.h"
#include "kern/pick.h"
#include "nn/delta.h"
#include "nn/moe.h"
#include "nn/rope.h"
#include "state/rec.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static json_t *ops;

static const json_t *get(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    assert_non_null(v);
    return v;
}

static uint32_t get_u32(const json_t *o, const char *key)
{
    return (uint32_t)json_integer_value(get(o, key));
}

/* Flattens nested arrays of numbers; the caller frees. */
static float *floats(const json_t *a, size_t *n)
{
    float *out;
    if (json_is_array(json_array_get(a, 0))) {
        size_t each, rows = json_array_size(a);
        out = NULL;
        *n = 0;
        for (size_t i = 0; i < rows; i++) {
            float *row = floats(json_array_get(a, i), &each);
            float *grown = mem_try_realloc(out, (*n + each) * sizeof *out);
            assert_non_null(grown);
            out = grown;
            memcpy(out + *n, row, each * sizeof *row);
            *n += each;
            mem_free(row);
        }
        return out;
    }
    *n = json_array_size(a);
    out = mem_try_array(*n, sizeof *out);
    assert_non_null(out);
    for (size_t i = 0; i < *n; i++)
        out[i] = (float)json_number_value(json_array_get(a, i));
    return out;
}

static float *get_floats(const json_t *o, const char *key, size_t *n)
{
    return floats(get(o, key), n);
}

static void assert_near(const float *got, const float *want, size_t n, double tolerance)
{
    for (size_t i = 0; i < n; i++)
        if (!(fabs((double)got[i] - want[i]) <= tolerance * (1 + fabs((double)want[i])))) {
            print_message("[%zu]: %.9g, want %.9g\n", i, (double)got[i], (double)want[i]);
            assert_true(false);
        }
}

#define FOR_TABLES(k)                                                                              \
    const struct kern *k;                                                                          \
    for (uint32_t nth_ = 0; (k = kern_nth(nth_)); nth_++)

static void norms_agree(void **state)
{
    (void)state;
    size_t n;
    const json_t *o = get(ops, "rms_norm");
    float *x = get_floats(o, "x", &n), *w = get_floats(o, "w", &n), *y = get_floats(o, "y", &n);
    float *l = get_floats(get(ops, "l2_norm"), "y", &n), got[16], zero[16] = {0};
    FOR_TABLES(k)
    {
        k->seq.norm(x, NULL, w, 1e-6f, (uint32_t)n, got);
        assert_near(got, y, n, 1e-6);
        k->seq.l2norm(x, 1e-6f, 1, (uint32_t)n, got);
        assert_near(got, l, n, 1e-6);
        k->seq.l2norm(zero, 1e-6f, 1, (uint32_t)n, got);
        assert_memory_equal(got, zero, sizeof zero);
    }
    mem_free(x);
    mem_free(w);
    mem_free(y);
    mem_free(l);
}

static void activations_agree(void **state)
{
    (void)state;
    size_t n;
    const json_t *o = get(ops, "silu");
    float *x = get_floats(o, "x", &n), *y = get_floats(o, "y", &n);
    float *sp = get_floats(get(ops, "softplus"), "y", &n), got[16], beta[16];
    const float ones[16] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    FOR_TABLES(k)
    {
        k->seq.silu_mul(x, ones, (uint32_t)n, got);
        assert_near(got, y, n, 1e-6);
        /* decay = exp(a softplus(x)) */
        k->seq.gates(x, x, 0, -0.05f, (uint32_t)n, got, beta);
        for (size_t i = 0; i < n; i++) {
            const float decay = (float)exp(-0.05 * sp[i]),
                        b = (float)(1 / (1 + exp(-(double)x[i])));
            assert_near(&got[i], &decay, 1, 1e-6);
            assert_near(&beta[i], &b, 1, 1e-6);
        }
    }
    mem_free(x);
    mem_free(y);
    mem_free(sp);
}

static void rope_agrees_at_position_200000(void **state)
{
    (void)state;
    const json_t *cases = get(ops, "rope");
    for (size_t c = 0; c < json_array_size(cases); c++) {
        const json_t *o = json_array_get(cases, c);
        const uint32_t rot = get_u32(o, "rot"), D = get_u32(o, "head_dim");
        uint32_t sections[4];
        for (size_t i = 0; i < 4; i++)
            sections[i] = (uint32_t)json_integer_value(json_array_get(get(o, "sections"), i));
        struct rope r;
        rope_init(&r, rot, json_number_value(get(o, "base")), sections);
        float cs[ROPE_MAX / 2], sn[ROPE_MAX / 2], w[256], got[256];
        rope_angles(&r, get_u32(o, "pos"), cs, sn);
        size_t n;
        float *x = get_floats(o, "x", &n), *y = get_floats(o, "y", &n);
        /* norm_rope norms first: undo it in the weights */
        double ss = 0;
        for (size_t i = 0; i < n; i++)
            ss += (double)x[i] * x[i];
        for (size_t i = 0; i < n; i++)
            w[i] = (float)sqrt(ss / (double)n);
        FOR_TABLES(k)
        {
            k->seq.norm_rope(x, w, 0, D, rot, cs, sn, 1, got);
            assert_near(got, y, n, 2e-6);
        }
        mem_free(x);
        mem_free(y);
    }
}

static void convolution_agrees(void **state)
{
    (void)state;
    const json_t *o = get(ops, "conv1d");
    const uint32_t C = get_u32(o, "channels"), K = get_u32(o, "taps");
    size_t n;
    float *w = get_floats(o, "weight", &n), *x = get_floats(o, "input", &n);
    float *y = get_floats(o, "output", &n), wt[64], zero[8] = {0}, got[256];
    assert_true(C <= 8 && K * C <= 64 && n <= 256);
    for (uint32_t c = 0; c < C; c++)
        for (uint32_t i = 0; i < K; i++)
            wt[i * C + c] = w[c * K + i];
    const float *rows[64];
    const uint32_t T = (uint32_t)(n / C);
    for (uint32_t i = 0; i < T + K - 1; i++)
        rows[i] = i < K - 1 ? zero : x + (i - (K - 1)) * C;
    FOR_TABLES(k)
    {
        k->seq.conv_silu(rows, K, wt, C, T, C, got, C);
        assert_near(got, y, n, 1e-6);
    }
    mem_free(w);
    mem_free(x);
    mem_free(y);
}

/* The vectors have heads of 8; ours are multiples of 16, so each is padded with zeros. */
static void the_delta_rule_agrees(void **state)
{
    (void)state;
    enum { D = 16 };
    const json_t *o = get(ops, "delta_rule");
    const uint32_t H = get_u32(o, "value_heads"), HK = get_u32(o, "key_heads");
    const uint32_t d = get_u32(o, "dim"), T = get_u32(o, "tokens");
    size_t n;
    float *q = get_floats(o, "q", &n), *k_ = get_floats(o, "k", &n), *v = get_floats(o, "v", &n);
    float *g = get_floats(o, "g", &n), *b = get_floats(o, "beta", &n);
    float *S0 = get_floats(o, "S0", &n), *S1 = get_floats(o, "S", &n),
          *out = get_floats(o, "o", &n);
    FOR_TABLES(k)
    for (uint32_t h = 0; h < H; h++) {
        float S[D * D] = {0}, qh[100 * D] = {0}, kh[100 * D] = {0}, vh[100 * D] = {0};
        float oh[100 * D], decay[100], beta[100];
        for (uint32_t i = 0; i < d * d; i++)
            S[i / d * D + i % d] = S0[h * d * d + i];
        for (uint32_t t = 0; t < T; t++) {
            decay[t] = expf(g[t * H + h]);
            beta[t] = b[t * H + h];
            for (uint32_t i = 0; i < d; i++) {
                qh[t * D + i] = q[(t * HK + h % HK) * d + i] / sqrtf((float)d);
                kh[t * D + i] = k_[(t * HK + h % HK) * d + i];
                vh[t * D + i] = v[(t * H + h) * d + i];
            }
        }
        k->seq.delta(S, D, qh, kh, vh, decay, beta, T, oh, &(struct seq_soon){0});
        for (uint32_t t = 0; t < T; t++)
            assert_near(oh + t * D, out + (t * H + h) * d, d, 2e-6);
        for (uint32_t x = 0; x < d; x++)
            assert_near(S + x * D, S1 + (h * d + x) * d, d, 2e-6);
    }
    mem_free(q);
    mem_free(k_);
    mem_free(v);
    mem_free(g);
    mem_free(b);
    mem_free(S0);
    mem_free(S1);
    mem_free(out);
}

static void the_router_agrees(void **state)
{
    (void)state;
    const json_t *o = get(ops, "router");
    size_t n, used;
    float *lo = get_floats(o, "logits", &n), *w = get_floats(o, "weights", &used), p[64], got[8];
    uint32_t e[8];
    FOR_TABLES(k)
    {
        memcpy(p, lo, n * sizeof *p);
        moe_choose(k, p, (uint32_t)n, (uint32_t)used, e, got);
        for (size_t i = 0; i < used; i++)
            assert_int_equal(e[i], json_integer_value(json_array_get(get(o, "experts"), i)));
        assert_near(got, w, used, 1e-6);
    }
    mem_free(lo);
    mem_free(w);
}

static void load(void)
{
    ops = json_load_file(HOUSE_SHARED_DIR "/golden/ops.json", 0, NULL);
}

static int unload(void **state)
{
    (void)state;
    json_decref(ops);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norms_agree),
        cmocka_unit_test(activations_agree),
        cmocka_unit_test(rope_agrees_at_position_200000),
        cmocka_unit_test(convolution_agrees),
        cmocka_unit_test(the_delta_rule_agrees),
        cmocka_unit_test(the_router_agrees),
    };
    load();
    if (!ops) {
        printf("skipped: no " HOUSE_SHARED_DIR "/golden/ops.json\n");
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, unload);
}
