/* Perplexity against logits of an independent implementation, and against one token at a time. */
#include "cli/ppl.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/rng.h"

#include <cmocka.h>

#define GOLDEN HOUSE_SHARED_DIR "/golden/tiny"

enum { MAX_PROMPT = 400 };

struct rig {
    struct gguf *g;
    struct pool *pool;
    struct model *m;
    uint32_t V;
};

/* NULL where the golden model is not at hand. */
static struct rig *open_rig(uint32_t n_threads)
{
    if (access(GOLDEN ".gguf", R_OK))
        return NULL;
    struct rig *r = mem_zalloc(sizeof *r);
    struct err err;
    if (gguf_open(GOLDEN ".gguf", &r->g, &err) ||
        pool_new(&(struct pool_opts){.n_threads = n_threads}, &r->pool, &err))
        fail_msg("%s", err.msg);
    const struct model_opts o = {.pool = r->pool, .kv_type = KV_F32, .max_batch = 48};
    if (model_open(r->g, &o, &r->m, &err))
        fail_msg("%s", err.msg);
    r->V = model_info(r->m)->n_vocab;
    return r;
}

static void close_rig(struct rig *r)
{
    model_close(r->m);
    pool_free(r->pool);
    gguf_close(r->g);
    mem_free(r);
}

static struct ppl measure(struct rig *r, const struct ppl_opts *o)
{
    struct ppl p;
    struct err err;
    if (ppl_run(r->m, r->pool, o, NULL, NULL, &p, &err))
        fail_msg("%s", err.msg);
    return p;
}

static void the_next_token_costs_what_the_golden_logits_say(void **state)
{
    (void)state;
    struct rig *r = open_rig(2);
    if (!r)
        skip();
    json_t *golden = json_load_file(GOLDEN ".json", JSON_ALLOW_NUL, NULL);
    assert_non_null(golden);
    size_t at, n_checked = 0;
    json_t *c;
    json_array_foreach(json_object_get(golden, "cases"), at, c)
    {
        const json_t *prompt = json_object_get(c, "prompt"), *l = json_object_get(c, "logits_last");
        const uint32_t n = (uint32_t)json_array_size(prompt);
        token t[MAX_PROMPT + 1];
        if (n < 3 || n > MAX_PROMPT)
            continue;
        for (uint32_t i = 0; i < n; i++)
            t[i] = (token)json_integer_value(json_array_get(prompt, i));
        double sum = 0;
        for (uint32_t i = 0; i < r->V; i++)
            sum += exp(json_number_value(json_array_get(l, i)));
        for (token next = 0; next < (token)r->V; next += 37) {
            t[n] = next;
            const struct ppl_opts o = {
                .tokens = t, .n = n + 1, .n_ctx = n + 1, .stride = 1, .bos = -1};
            const struct ppl p = measure(r, &o);
            assert_int_equal(p.n_scored, 1);
            const double want = log(sum) - json_number_value(json_array_get(l, (size_t)next));
            assert_true(fabs(p.nll - want) < 4e-4);
            n_checked++;
        }
    }
    assert_true(n_checked > 0);
    json_decref(golden);
    close_rig(r);
}

/* -ln p of window [from, from + n_ctx)'s tokens from `first + 1` on, one forward a token. */
static void slowly(struct rig *r, const token *t, uint32_t n_ctx, uint32_t first, struct ppl *p)
{
    struct kv *kv;
    struct rec *rec;
    struct kv_table table;
    float *l = mem_alloc(r->V * sizeof *l);
    assert_int_equal(kv_new(&model_info(r->m)->shape, 0, &kv, NULL), RC_OK);
    assert_int_equal(rec_new(&model_info(r->m)->shape, 1, &rec, NULL), RC_OK);
    kv_table_init(&table);
    const rec_slot slot = rec_take(rec);
    for (uint32_t i = 0; i + 1 < n_ctx; i++) {
        assert_int_equal(kv_table_extend(kv, &table, 1, NULL), RC_OK);
        const struct run run = {t + i, 1, i, &table, slot, 1, l};
        model_forward(r->m, kv, rec, &run, 1);
        kv_table_advance(&table, 1);
        if (i < first)
            continue;
        double sum = 0;
        for (uint32_t v = 0; v < r->V; v++)
            sum += exp((double)l[v]);
        const double nll = log(sum) - (double)l[t[i + 1]];
        p->nll += nll;
        p->nll2 += nll * nll;
        p->n_scored++;
    }
    p->n_windows++;
    kv_table_release(kv, &table);
    rec_free(rec);
    kv_free(kv);
    mem_free(l);
}

static void windows_score_their_second_half_or_their_last_stride(void **state)
{
    (void)state;
    struct rig *r = open_rig(1);
    if (!r)
        skip();
    enum { N = 300 };
    token t[N];
    struct rng rng = {5};
    for (int i = 0; i < N; i++)
        t[i] = (token)rng_below(&rng, r->V);
    static const struct {
        uint32_t n_ctx, stride, n_windows, want_windows;
        token bos;
    } rows[] = {{128, 0, 0, 2, -1}, {129, 0, 1, 1, -1}, {100, 30, 0, 7, -1}, {100, 0, 0, 3, 7}};
    for (size_t k = 0; k < COUNT_OF(rows); k++) {
        const struct ppl_opts o = {.tokens = t,
                                   .n = N,
                                   .n_ctx = rows[k].n_ctx,
                                   .stride = rows[k].stride,
                                   .n_windows = rows[k].n_windows,
                                   .bos = rows[k].bos};
        const uint32_t step = o.stride ? o.stride : o.n_ctx;
        const uint32_t first = o.stride ? o.n_ctx - 1 - o.stride : o.n_ctx / 2;
        struct ppl want = {0};
        for (uint32_t w = 0; w < rows[k].want_windows; w++) {
            token window[N];
            for (uint32_t i = 0; i < o.n_ctx; i++)
                window[i] = i || o.bos < 0 ? t[w * step + i] : o.bos;
            slowly(r, window, o.n_ctx, first, &want);
        }
        const struct ppl got = measure(r, &o);
        assert_int_equal(got.n_windows, rows[k].want_windows);
        assert_int_equal(got.n_scored, want.n_scored);
        assert_true(fabs(got.nll - want.nll) < 1e-4 * want.nll);
        assert_true(fabs(ppl_value(&got) - ppl_value(&want)) < 1e-4 * ppl_value(&want));
        assert_true(fabs(ppl_error(&got) - ppl_error(&want)) < 1e-3 * ppl_error(&want));
    }
    close_rig(r);
}

static void value_and_error_are_those_of_the_sample(void **state)
{
    (void)state;
    const struct ppl p = {.n_scored = 4, .nll = 1 + 2 + 3 + 6, .nll2 = 1 + 4 + 9 + 36};
    assert_true(fabs(ppl_value(&p) - exp(3)) < 1e-12);
    /* deviations -2 -1 0 3: variance 14/4, of the mean 14/4/3 */
    assert_true(fabs(ppl_error(&p) - exp(3) * sqrt(14.0 / 12)) < 1e-9);
}

static void a_text_or_window_that_cannot_be_measured_is_refused(void **state)
{
    (void)state;
    struct rig *r = open_rig(1);
    if (!r)
        skip();
    token t[20] = {0};
    const struct ppl_opts good = {.tokens = t, .n = 20, .n_ctx = 16, .bos = -1};
    struct ppl_opts bad[6] = {good, good, good, good, good, good};
    bad[0].n = 15;
    bad[1].n_ctx = 3;
    bad[2].n_ctx = UINT32_MAX;
    bad[3].stride = 16;
    token outside[20] = {[19] = (token)r->V}, negative[20] = {-1};
    bad[4].tokens = outside;
    bad[5].tokens = negative;
    struct ppl p;
    struct err err;
    assert_int_equal(ppl_run(r->m, r->pool, &good, NULL, NULL, &p, &err), RC_OK);
    for (size_t i = 0; i < COUNT_OF(bad); i++)
        assert_int_equal(ppl_run(r->m, r->pool, &bad[i], NULL, NULL, &p, &err), RC_ARG);
    for (uint64_t n = 1;; n++) {
        mem_fail_after(n);
        const enum rc rc = ppl_run(r->m, r->pool, &good, NULL, NULL, &p, &err);
        mem_fail_after(0);
        if (!rc)
            break;
        assert_int_equal(rc, RC_NOMEM);
        assert_true(n < 100);
    }
    close_rig(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_next_token_costs_what_the_golden_logits_say),
        cmocka_unit_test(windows_score_their_second_half_or_their_last_stride),
        cmocka_unit_test(value_and_error_are_those_of_the_sample),
        cmocka_unit_test(a_text_or_window_that_cannot_be_measured_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
