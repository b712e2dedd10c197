/* The forward pass of every kernel table against an independent float64 implementation. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "kern/kern.h"
#include "kern/pick.h"
#include "model/model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define GOLDEN HOUSE_SHARED_DIR "/golden/"

enum { MAX_PROMPT = 400, GREEDY = 64, TOP = 8 };
/* of logits, whose standard deviation is 3: arithmetic alone, then K and V in 16 bits as well */
static const struct {
    enum kv_type kv;
    double tolerance;
} kinds[] = {{KV_F32, 2e-4}, {KV_I16, 2e-3}};

struct rig {
    struct gguf *g;
    struct pool *pool;
    struct model *m;
    struct kv *kv;
    struct rec *rec;
    struct kv_table t;
    rec_slot slot;
    uint32_t V;
    double tolerance;
};

static void ok(enum rc rc, const struct err *err)
{
    if (rc)
        print_message("%s\n", err->msg);
    assert_int_equal(rc, RC_OK);
}

static struct rig open_rig(const char *path, const char *isa, enum kv_type kv_type)
{
    struct rig r = {0};
    struct err err;
    ok(gguf_open(path, &r.g, &err), &err);
    ok(pool_new(&(struct pool_opts){.n_threads = 1}, &r.pool, &err), &err);
    const struct model_opts o = {.pool = r.pool, .isa = isa, .kv_type = kv_type, .max_batch = 400};
    ok(model_open(r.g, &o, &r.m, &err), &err);
    r.V = model_info(r.m)->n_vocab;
    ok(kv_new(&model_info(r.m)->shape, 0, &r.kv, &err), &err);
    ok(rec_new(&model_info(r.m)->shape, 1, &r.rec, &err), &err);
    kv_table_init(&r.t);
    r.slot = rec_take(r.rec);
    return r;
}

static void close_rig(struct rig *r)
{
    kv_table_release(r->kv, &r->t);
    rec_free(r->rec);
    kv_free(r->kv);
    model_close(r->m);
    pool_free(r->pool);
    gguf_close(r->g);
}

static void restart(struct rig *r)
{
    kv_table_release(r->kv, &r->t);
    rec_give(r->rec, r->slot);
    r->slot = rec_take(r->rec);
}

static void feed(struct rig *r, const token *t, uint32_t n, uint32_t n_logits, float *logits)
{
    assert_int_equal(kv_table_extend(r->kv, &r->t, n, NULL), RC_OK);
    const struct run run = {t, n, r->t.len, &r->t, r->slot, n_logits, logits};
    model_forward(r->m, r->kv, r->rec, &run, 1);
    kv_table_advance(&r->t, n);
}

static token argmax(const float *x, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (x[i] > x[best])
            best = i;
    return (token)best;
}

static void near(double tolerance, double got, double want, const char *what, size_t pos, size_t i)
{
    if (!(fabs(got - want) <= tolerance)) {
        print_message("%s, position %zu, [%zu]: %.7g, want %.7g\n", what, pos, i, got, want);
        assert_true(false);
    }
}

/* The 8 best tokens at every position with their logits; in order, but for what the tolerance may swap. */
static void check_top(double tolerance, const json_t *top8, const float *logits, uint32_t V,
                      uint32_t n)
{
    for (size_t p = 0; p < n; p++) {
        const float *l = logits + p * V;
        const json_t *top = json_array_get(top8, p);
        double least = INFINITY;
        uint32_t above = 0;
        for (size_t i = 0; i < TOP; i++) {
            const json_t *want = json_array_get(top, i);
            least = json_number_value(json_array_get(want, 1));
            near(tolerance, l[json_integer_value(json_array_get(want, 0))], least, "top 8", p, i);
        }
        for (uint32_t i = 0; i < V; i++)
            above += l[i] > least + tolerance;
        assert_true(above < TOP);
    }
}

static void check_case(struct rig *r, const json_t *c)
{
    const json_t *prompt = json_object_get(c, "prompt"), *last = json_object_get(c, "logits_last");
    const json_t *greedy = json_object_get(c, "greedy");
    const uint32_t n = (uint32_t)json_array_size(prompt);
    token t[MAX_PROMPT];
    assert_true(n >= 1 && n <= MAX_PROMPT);
    for (uint32_t i = 0; i < n; i++)
        t[i] = (token)json_integer_value(json_array_get(prompt, i));
    float *logits = mem_alloc((size_t)n * r->V * sizeof *logits);
    restart(r);
    feed(r, t, n, n, logits);
    const float *at_end = logits + (size_t)(n - 1) * r->V;
    assert_int_equal(json_array_size(last), r->V);
    for (size_t i = 0; i < r->V; i++)
        near(r->tolerance, at_end[i], json_number_value(json_array_get(last, i)), "last", n - 1, i);
    check_top(r->tolerance, json_object_get(c, "top8"), logits, r->V, n);
    assert_int_equal(json_array_size(greedy), GREEDY);
    for (size_t k = 0; k < GREEDY; k++) {
        const token best = argmax(k ? logits : at_end, r->V);
        assert_int_equal(best, json_integer_value(json_array_get(greedy, k)));
        feed(r, &best, 1, 1, logits);
    }
    mem_free(logits);
}

static void check_model(const char *name)
{
    char path[512];
    snprintf(path, sizeof path, GOLDEN "%s.json", name);
    json_t *golden = json_load_file(path, JSON_ALLOW_NUL, NULL);
    snprintf(path, sizeof path, GOLDEN "%s.gguf", name);
    assert_non_null(golden);
    const struct kern *k;
    for (uint32_t i = 0; (k = kern_nth(i)); i++)
        for (size_t j = 0; j < COUNT_OF(kinds); j++) {
            struct rig r = open_rig(path, k->name, kinds[j].kv);
            r.tolerance = kinds[j].tolerance;
            const json_t *cases = json_object_get(golden, "cases");
            assert_int_equal(json_array_size(cases), 3);
            for (size_t c = 0; c < json_array_size(cases); c++)
                check_case(&r, json_array_get(cases, c));
            close_rig(&r);
        }
    json_decref(golden);
}

static void the_dense_model_agrees(void **state)
{
    (void)state;
    check_model("tiny");
}

static void the_model_with_experts_agrees(void **state)
{
    (void)state;
    check_model("tiny-moe");
}

static void a_prediction_block_is_counted_and_skipped(void **state)
{
    (void)state;
    check_model("tiny-mtp");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_dense_model_agrees),
        cmocka_unit_test(the_model_with_experts_agrees),
        cmocka_unit_test(a_prediction_block_is_counted_and_skipped),
    };
    if (access(GOLDEN "tiny.gguf", R_OK)) {
        printf("skipped: no " GOLDEN "tiny.gguf\n");
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
