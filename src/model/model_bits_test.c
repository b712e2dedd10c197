/* The contract the cache stands on: logits, recurrent state and KV of a sequence have the same bits
 * however its tokens came.
 */
#include "model/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/rng.h"
#include "kern/kern.h"
#include "kern/pick.h"
#include "model/maker.h"
#include "state/snap.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { T = 110, MAX_BATCH = 160 };

static uint64_t test_seed(void)
{
    const char *env = getenv("SEED");
    const uint64_t seed = env ? strtoull(env, NULL, 10) : 1;
    print_message("SEED=%llu\n", (unsigned long long)seed);
    return seed;
}

static void ok(enum rc rc, const struct err *err)
{
    if (rc)
        print_message("%s\n", err->msg);
    assert_int_equal(rc, RC_OK);
}

/* One open model with everything a caller of it owns. */
struct rig {
    struct pool *pool;
    struct model *m;
    struct kv *kv;
    struct rec *rec;
    struct snap_store *snaps;
    uint32_t V;
};

struct seq {
    struct kv_table t;
    rec_slot slot;
};

static struct rig open_rig(struct gguf *g, const char *isa, enum kv_type type, uint32_t threads)
{
    struct rig r;
    struct err err;
    ok(pool_new(&(struct pool_opts){.n_threads = threads}, &r.pool, &err), &err);
    const struct model_opts o = {
        .pool = r.pool, .isa = isa, .kv_type = type, .max_batch = MAX_BATCH};
    ok(model_open(g, &o, &r.m, &err), &err);
    const struct shape *s = &model_info(r.m)->shape;
    ok(kv_new(s, 0, &r.kv, &err), &err);
    ok(rec_new(s, 4, &r.rec, &err), &err);
    ok(snap_store_new(s, &r.snaps, &err), &err);
    r.V = model_info(r.m)->n_vocab;
    return r;
}

static void close_rig(struct rig *r)
{
    snap_store_free(r->snaps);
    rec_free(r->rec);
    kv_free(r->kv);
    model_close(r->m);
    pool_free(r->pool);
}

static struct seq start(struct rig *r)
{
    struct seq s = {.slot = rec_take(r->rec)};
    kv_table_init(&s.t);
    assert_int_not_equal(s.slot, 0);
    return s;
}

static void stop(struct rig *r, struct seq *s)
{
    kv_table_release(r->kv, &s->t);
    rec_give(r->rec, s->slot);
}

static void *page(struct rig *r, kv_page p)
{
    return kv_k(r->kv, p, 0, 0);
}

/* Fresh pages have every bit set: a row that was never written reads as NaN, and whole pages can be
 * compared. */
static void extend(struct rig *r, struct seq *s, uint32_t n)
{
    const uint32_t before = s->t.n;
    assert_int_equal(kv_table_extend(r->kv, &s->t, n, NULL), RC_OK);
    for (uint32_t j = before; j < s->t.n; j++)
        memset(page(r, s->t.pages[j]), 0xff, shape_page_bytes(&model_info(r->m)->shape));
}

static struct run next_run(struct rig *r, struct seq *s, const token *t, uint32_t n, float *logits)
{
    extend(r, s, n);
    return (struct run){t + s->t.len, n, s->t.len, &s->t, s->slot, n, logits + s->t.len * r->V};
}

/* Positions [s->t.len, end) in slices of at most step tokens (random when 0). */
static void feed(struct rig *r, struct seq *s, const token *t, uint32_t end, uint32_t step,
                 struct rng *rng, float *logits)
{
    while (s->t.len < end) {
        const uint32_t want = step ? step : 1 + rng_below(rng, 50), n = MIN(want, end - s->t.len);
        const struct run run = next_run(r, s, t, n, logits);
        model_forward(r->m, r->kv, r->rec, &run, 1);
        kv_table_advance(&s->t, n);
    }
}

/* What all other ways are held against. */
struct want {
    token tokens[T];
    float *logits; /* [T][V] */
    uint8_t *state, *pages;
    uint64_t state_bytes, page_bytes;
    uint32_t n_pages;
};

static void check(struct rig *r, struct seq *s, const float *logits, const struct want *w)
{
    assert_memory_equal(logits, w->logits, (size_t)T * r->V * sizeof *logits);
    assert_memory_equal(rec_bytes(r->rec, s->slot), w->state, w->state_bytes);
    assert_int_equal(s->t.n, w->n_pages);
    for (uint32_t j = 0; j < w->n_pages; j++)
        assert_memory_equal(page(r, s->t.pages[j]), w->pages + j * w->page_bytes, w->page_bytes);
}

static struct want in_one_batch(struct rig *r, struct rng *rng)
{
    struct want w = {.state_bytes = shape_snap_bytes(&model_info(r->m)->shape),
                     .page_bytes = shape_page_bytes(&model_info(r->m)->shape)};
    for (int i = 0; i < T; i++)
        w.tokens[i] = (token)rng_below(rng, r->V);
    w.logits = mem_alloc((size_t)T * r->V * sizeof *w.logits);
    w.state = mem_alloc(w.state_bytes);
    struct seq s = start(r);
    feed(r, &s, w.tokens, T, T, rng, w.logits);
    memcpy(w.state, rec_bytes(r->rec, s.slot), w.state_bytes);
    w.n_pages = s.t.n;
    w.pages = mem_alloc(w.n_pages * w.page_bytes);
    for (uint32_t j = 0; j < w.n_pages; j++)
        memcpy(w.pages + j * w.page_bytes, page(r, s.t.pages[j]), w.page_bytes);
    stop(r, &s);
    return w;
}

static void free_want(struct want *w)
{
    mem_free(w->logits);
    mem_free(w->state);
    mem_free(w->pages);
}

static void in_slices(struct rig *r, const struct want *w, uint32_t step, struct rng *rng,
                      float *logits)
{
    struct seq s = start(r);
    feed(r, &s, w->tokens, T, step, rng, logits);
    check(r, &s, logits, w);
    stop(r, &s);
}

/* Two other sequences in every batch, before and after ours. */
static void in_company(struct rig *r, const struct want *w, struct rng *rng, float *logits)
{
    token other[T];
    float *rubbish = mem_alloc((size_t)T * r->V * sizeof *rubbish);
    for (int i = 0; i < T; i++)
        other[i] = (token)rng_below(rng, r->V);
    struct seq s[3] = {start(r), start(r), start(r)};
    while (s[1].t.len < T) {
        struct run runs[3];
        uint32_t ns[3];
        for (int i = 0; i < 3; i++) {
            const uint32_t want = i == 1 ? 1 + rng_below(rng, 40) : rng_below(rng, 30);
            ns[i] = MIN(want, T - s[i].t.len);
            runs[i] =
                next_run(r, &s[i], i == 1 ? w->tokens : other, ns[i], i == 1 ? logits : rubbish);
            if (i != 1)
                runs[i].n_logits = MIN(ns[i], 1);
        }
        model_forward(r->m, r->kv, r->rec, runs, 3);
        for (int i = 0; i < 3; i++)
            kv_table_advance(&s[i].t, ns[i]);
    }
    check(r, &s[1], logits, w);
    for (int i = 0; i < 3; i++)
        stop(r, &s[i]);
    mem_free(rubbish);
}

/* Snapshots at a few positions; another sequence begins at each and goes on to the end, while the one
 * that left them has long gone. */
static void from_snapshots(struct rig *r, const struct want *w, struct rng *rng, float *logits)
{
    enum { N = 3 };
    struct snap *snap[N];
    struct kv_table kept[N];
    uint32_t at[N];
    struct seq first = start(r);
    for (int i = 0; i < N; i++) {
        const uint32_t step = 1 + rng_below(rng, T / N - 1);
        feed(r, &first, w->tokens, first.t.len + step, 0, rng, logits);
        at[i] = first.t.len;
        kv_table_init(&kept[i]);
        assert_int_equal(snap_take(r->snaps, r->rec, first.slot, &snap[i], NULL), RC_OK);
        assert_int_equal(kv_table_share(r->kv, &first.t, at[i], &kept[i], NULL), RC_OK);
    }
    feed(r, &first, w->tokens, T, 0, rng, logits);
    stop(r, &first);
    for (int i = N - 1; i >= 0; i--) {
        struct seq s = start(r);
        assert_int_equal(kv_table_fork(r->kv, &kept[i], at[i], &s.t, NULL), RC_OK);
        snap_restore(snap[i], r->rec, s.slot);
        memset(logits + (size_t)at[i] * r->V, 0, (size_t)(T - at[i]) * r->V * sizeof *logits);
        feed(r, &s, w->tokens, T, 0, rng, logits);
        /* a forked page brings rows of the first run along; they were written over by equal ones */
        check(r, &s, logits, w);
        stop(r, &s);
        kv_table_release(r->kv, &kept[i]);
        snap_free(r->snaps, snap[i]);
    }
}

static void check_table(struct gguf *g, const char *isa, enum kv_type type, uint32_t max_threads,
                        struct rng *rng)
{
    struct want w = {0};
    float *logits = NULL;
    for (uint32_t threads = 1; threads <= max_threads; threads++) {
        struct rig r = open_rig(g, isa, type, threads);
        if (threads == 1) {
            w = in_one_batch(&r, rng);
            logits = mem_alloc((size_t)T * r.V * sizeof *logits);
        }
        in_slices(&r, &w, threads == 1 ? 1 : threads == 2 ? T : 0, rng, logits);
        if (threads != 2)
            in_company(&r, &w, rng, logits);
        if (threads == 1)
            from_snapshots(&r, &w, rng, logits);
        close_rig(&r);
    }
    mem_free(logits);
    free_want(&w);
}

static void check_model(const char *preset, enum dtype type, const enum kv_type *kv, size_t n_kv)
{
    char path[512];
    snprintf(path, sizeof path, HOUSE_BINARY_DIR "/bits_%d_%s_%d.gguf", (int)getpid(), preset,
             (int)type);
    struct err err;
    const struct maker_opts o = {.preset = preset, .type = type, .seed = 3, .n_layers = 4};
    ok(maker_write(path, &o, NULL, &err), &err);
    struct gguf *g;
    ok(gguf_open(path, &g, &err), &err);
    unlink(path);
    struct rng rng = {test_seed()};
    const struct kern *k;
    for (uint32_t i = 0; (k = kern_nth(i)); i++)
        for (size_t j = 0; j < n_kv; j++)
            check_table(g, k->name, kv[j], j ? 1 : 3, &rng);
    gguf_close(g);
}

static const enum kv_type all_kv[] = {KV_I16, KV_F16, KV_F32, KV_Q8_0};

static void f32_weights_keep_their_bits(void **state)
{
    (void)state;
    check_model("tiny", DT_F32, all_kv, 4);
    check_model("tiny-moe", DT_F32, all_kv, 2);
}

static void f16_weights_keep_their_bits(void **state)
{
    (void)state;
    check_model("tiny", DT_F16, all_kv, 2);
    check_model("tiny-moe", DT_F16, all_kv, 1);
}

static void q8_0_weights_keep_their_bits(void **state)
{
    (void)state;
    check_model("tiny", DT_Q8_0, all_kv, 2);
    check_model("tiny-moe", DT_Q8_0, all_kv, 2);
}

static void q4_0_weights_keep_their_bits(void **state)
{
    (void)state;
    check_model("tiny", DT_Q4_0, all_kv, 2);
    check_model("tiny-moe", DT_Q4_0, all_kv, 1);
}

static void q4_k_weights_keep_their_bits(void **state)
{
    (void)state;
    check_model("mini", DT_Q4_K, all_kv, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f32_weights_keep_their_bits),
        cmocka_unit_test(f16_weights_keep_their_bits),
        cmocka_unit_test(q8_0_weights_keep_their_bits),
        cmocka_unit_test(q4_0_weights_keep_their_bits),
        cmocka_unit_test(q4_k_weights_keep_their_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
