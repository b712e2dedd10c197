/* The project's own random models do what tests and demos lean on: they load, their vocabulary
 * tokenises, their logits are alive, and they feel it when state is lost. */
#include "model/maker.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/rng.h"
#include "model/model.h"
#include "text/bpe.h"
#include "text/detok.h"

#include <cmocka.h>

enum { N = 300, GREEDY = 32 };

struct rig {
    char path[64];
    struct gguf *g;
    struct pool *pool;
    struct model *m;
    struct kv *kv;
    struct rec *rec;
    uint32_t V;
    float *logits, *other; /* [V] */
};

static void ok(enum rc rc, const struct err *err)
{
    if (rc)
        fail_msg("%s", err->msg);
}

static void open_rig(struct rig *r, const char *preset, enum dtype type)
{
    struct err err = {0};
    *r = (struct rig){0};
    snprintf(r->path, sizeof r->path, "/tmp/holdfast-made-XXXXXX");
    const int fd = mkstemp(r->path);
    assert_true(fd >= 0);
    close(fd);
    const struct maker_opts mo = {.preset = preset, .type = type, .seed = 1};
    ok(maker_write(r->path, &mo, NULL, &err), &err);
    ok(gguf_open(r->path, &r->g, &err), &err);
    ok(pool_new(&(struct pool_opts){.n_threads = 2}, &r->pool, &err), &err);
    const struct model_opts o = {.pool = r->pool, .kv_type = KV_F16, .max_batch = N};
    ok(model_open(r->g, &o, &r->m, &err), &err);
    const struct shape *shape = &model_info(r->m)->shape;
    ok(kv_new(shape, 0, &r->kv, &err), &err);
    ok(rec_new(shape, 1, &r->rec, &err), &err);
    r->V = model_info(r->m)->n_vocab;
    r->logits = mem_alloc(r->V * sizeof *r->logits);
    r->other = mem_alloc(r->V * sizeof *r->other);
}

static void close_rig(struct rig *r)
{
    mem_free(r->logits);
    mem_free(r->other);
    rec_free(r->rec);
    kv_free(r->kv);
    model_close(r->m);
    pool_free(r->pool);
    gguf_close(r->g);
    (void)unlink(r->path);
}

/* One sequence. */
struct seq {
    struct kv_table t;
    rec_slot slot;
};

static void begin(struct rig *r, struct seq *s)
{
    kv_table_init(&s->t);
    s->slot = rec_take(r->rec);
    assert_int_not_equal(s->slot, 0);
}

static void end(struct rig *r, struct seq *s)
{
    kv_table_release(r->kv, &s->t);
    rec_give(r->rec, s->slot);
}

/* Logits of the last token into r->logits. */
static void feed(struct rig *r, struct seq *s, const token *t, uint32_t n)
{
    struct err err = {0};
    ok(kv_table_extend(r->kv, &s->t, n, &err), &err);
    const struct run run = {.tokens = t,
                            .n = n,
                            .pos = s->t.len,
                            .kv = &s->t,
                            .rec = s->slot,
                            .n_logits = 1,
                            .logits = r->logits};
    model_forward(r->m, r->kv, r->rec, &run, 1);
    kv_table_advance(&s->t, n);
}

static double moved(const float *a, const float *b, uint32_t n)
{
    double most = 0;
    for (uint32_t i = 0; i < n; i++)
        most = MAX(most, fabs((double)a[i] - (double)b[i]));
    return most;
}

static void random_prompt(token *t, uint32_t V)
{
    struct rng rng = {11};
    for (int i = 0; i < N; i++)
        t[i] = (token)rng_below(&rng, V - 32); /* no special token */
}

static const struct {
    const char *preset;
    enum dtype type;
} models[] = {{"tiny", DT_F32}, {"tiny-moe", DT_F32}, {"tiny", DT_Q8_0}};

static void logits_are_neither_flat_nor_constant(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(models); i++) {
        struct rig r;
        struct seq s;
        token t[N];
        open_rig(&r, models[i].preset, models[i].type);
        random_prompt(t, r.V);
        begin(&r, &s);
        feed(&r, &s, t, N);
        double sum = 0, square = 0;
        for (uint32_t k = 0; k < r.V; k++) {
            sum += (double)r.logits[k];
            square += (double)r.logits[k] * (double)r.logits[k];
        }
        const double deviation = sqrt(square / r.V - sum / r.V * (sum / r.V));
        assert_true(deviation > 1.5 && deviation < 6);

        bool seen[1024] = {false};
        uint32_t distinct = 0;
        for (int k = 0; k < GREEDY; k++) {
            token best = 0;
            for (uint32_t j = 1; j < r.V; j++)
                if (r.logits[j] > r.logits[best])
                    best = (token)j;
            distinct += !seen[best];
            seen[best] = true;
            feed(&r, &s, &best, 1);
        }
        if (distinct < GREEDY / 3)
            fail_msg("%s: %" PRIu32 " distinct tokens of %d", models[i].preset, distinct, GREEDY);
        end(&r, &s);
        close_rig(&r);
    }
}

/* So that a cache that restores the wrong thing cannot pass a test of outputs. */
static void a_lost_or_wrong_state_shows_in_the_logits(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(models); i++) {
        struct rig r;
        struct seq s;
        token t[N];
        open_rig(&r, models[i].preset, models[i].type);
        const struct shape *shape = &model_info(r.m)->shape;
        random_prompt(t, r.V);
        begin(&r, &s);
        feed(&r, &s, t, N);
        memcpy(r.other, r.logits, r.V * sizeof *r.other);
        end(&r, &s);

        begin(&r, &s); /* the recurrent state is lost half way */
        feed(&r, &s, t, N / 2);
        memset(rec_bytes(r.rec, s.slot), 0, shape_snap_bytes(shape));
        feed(&r, &s, t + N / 2, N - N / 2);
        const double lost = moved(r.logits, r.other, r.V);
        end(&r, &s);

        begin(&r, &s); /* the first token was another */
        t[0] = (t[0] + 1) % 256;
        feed(&r, &s, t, N);
        const double first = moved(r.logits, r.other, r.V);
        end(&r, &s);
        if (lost < 0.3 || first < 0.05)
            fail_msg("%s: lost state moves a logit by %g, another first token by %g",
                     models[i].preset, lost, first);
        close_rig(&r);
    }
}

static void texts_survive_tokenising_and_become_shorter(void **state)
{
    (void)state;
    static const char text[] = "<|im_start|>user\nWhat did the inspector want to know? Please "
                               "answer in one sentence; it's "
                               "for a report.\n    for (int i = 0; i < 10; i++) { sum += a[i]; }\n"
                               "Grüße, naïve café — 42 €, 明日は 🙂\n<|im_end|>\n";
    static const uint32_t sizes[] = {512, 4096};
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        struct err err = {0};
        struct gguf *g;
        struct vocab *v;
        struct tokens t = {0};
        struct detok d;
        struct buf back = BUF_INIT;
        char path[] = "/tmp/holdfast-made-XXXXXX";
        const int fd = mkstemp(path);
        assert_true(fd >= 0);
        close(fd);
        const struct maker_opts mo = {.preset = "tiny", .seed = 1, .n_vocab = sizes[i]};
        ok(maker_write(path, &mo, NULL, &err), &err);
        ok(gguf_open(path, &g, &err), &err);
        ok(vocab_open(g, &v, &err), &err);
        assert_int_equal(vocab_size(v), sizes[i]);
        assert_true(str_is(vocab_text(v, vocab_eos(v)), "<|im_end|>"));
        assert_true(vocab_chat_template(v).n > 100);
        ok(bpe_encode(v, str_of(text), &(struct bpe_opts){.parse_special = true}, &t, &err), &err);
        assert_int_equal(t.v[0], vocab_find(v, str_of("<|im_start|>")));
        detok_init(&d, true);
        for (size_t k = 0; k < t.n; k++)
            detok_add(&d, v, t.v[k], &back);
        detok_finish(&d, &back);
        assert_string_equal(buf_str(&back), text);
        if (t.n * 3 > strlen(text) * 2)
            fail_msg("%zu tokens for %zu bytes", t.n, strlen(text));
        buf_release(&back);
        tokens_release(&t);
        vocab_close(v);
        gguf_close(g);
        (void)unlink(path);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_are_neither_flat_nor_constant),
        cmocka_unit_test(a_lost_or_wrong_state_shows_in_the_logits),
        cmocka_unit_test(texts_survive_tokenising_and_become_shorter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
