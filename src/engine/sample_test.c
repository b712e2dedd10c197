#include "engine/sample.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

#include <cmocka.h>

enum { MAX_VOCAB = 600, MAX_HISTORY = 80 };

static uint64_t seed_of_run(void)
{
    const char *s = getenv("SEED");
    return s ? strtoull(s, NULL, 10) : 20240817;
}

/* ---- the same by sorting everything ---------------------------------------------------------- */

struct item {
    double logit; /* floats, exactly */
    token id;
    double p;
};

static int by_rank(const void *a, const void *b)
{
    const struct item *x = a, *y = b;
    if (x->logit != y->logit)
        return x->logit < y->logit ? 1 : -1;
    return (x->id > y->id) - (x->id < y->id);
}

static void softmax(struct item *v, uint32_t n, double temperature)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += v[i].p = exp((v[i].logit - v[0].logit) / temperature);
    for (uint32_t i = 0; i < n; i++)
        v[i].p /= sum;
}

static uint32_t naive(const struct sampler *s, const bool *forbidden, const float *logits,
                      uint32_t n_vocab, const token *history, uint32_t n_history, struct item *v)
{
    const struct sampling *p = &s->p;
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_vocab; i++) {
        float l = logits[i];
        for (uint32_t b = 0; b < s->n_bias; b++)
            if (s->bias[b].id == (token)i)
                l += s->bias[b].bias;
        uint32_t count = 0;
        for (uint32_t h = 0; h < n_history; h++)
            if (history[h] == (token)i &&
                (p->repeat_last_n < 0 || n_history - h <= (uint32_t)p->repeat_last_n))
                count++;
        if (count) {
            l = l <= 0 ? l * p->repeat_penalty : l / p->repeat_penalty;
            l -= (float)count * p->frequency_penalty + p->presence_penalty;
        }
        if (!forbidden[i] && l > -INFINITY)
            v[n++] = (struct item){(double)l, (token)i, 0};
    }
    qsort(v, n, sizeof *v, by_rank);
    if (n && p->temperature <= 0) {
        v[0].p = 1;
        return 1;
    }
    if (p->top_k > 0)
        n = MIN(n, (uint32_t)p->top_k);
    if (p->top_p < 1 && n) {
        softmax(v, n, 1);
        double sum = 0;
        uint32_t kept = 0;
        while (kept < n && (kept == 0 || sum < (double)p->top_p))
            sum += v[kept++].p;
        n = kept;
    }
    if (p->min_p > 0)
        while (n > 1 && (float)v[n - 1].logit < (float)v[0].logit + logf(p->min_p))
            n--;
    softmax(v, n, (double)p->temperature);
    return n;
}

/* ---- random cases ---------------------------------------------------------------------------- */

struct scene {
    uint32_t n_vocab, n_history;
    float logits[MAX_VOCAB];
    token history[MAX_HISTORY];
    bool forbidden[MAX_VOCAB];
    token forbidden_ids[MAX_VOCAB];
    uint32_t n_forbidden;
    struct logit_bias bias[4];
    struct sampling p;
};

static void make_scene(struct scene *c, struct rng *rng)
{
    *c = (struct scene){.n_vocab = 2 + rng_below(rng, MAX_VOCAB - 2),
                        .n_history = rng_below(rng, MAX_HISTORY)};
    const double spread = rng_f64(rng) * 8;
    const bool ties = rng_below(rng, 3) == 0;
    for (uint32_t i = 0; i < c->n_vocab; i++) {
        c->logits[i] = (float)(rng_normal(rng) * spread);
        if (ties)
            c->logits[i] = roundf(c->logits[i]);
        if (rng_below(rng, 40) == 0)
            c->logits[i] = rng_below(rng, 2) ? -INFINITY : NAN;
        if (rng_below(rng, 50) == 0) {
            c->forbidden[i] = true;
            c->forbidden_ids[c->n_forbidden++] = (token)i;
        }
    }
    for (uint32_t i = 0; i < c->n_history; i++)
        c->history[i] = (token)rng_below(rng, MIN(c->n_vocab, 30));
    for (uint32_t i = 0; i < COUNT_OF(c->bias); i++)
        c->bias[i] =
            (struct logit_bias){(token)rng_below(rng, c->n_vocab),
                                rng_below(rng, 4) ? (float)(rng_normal(rng) * 5) : -INFINITY};
    c->p = (struct sampling){
        .temperature = rng_below(rng, 5) ? (float)(0.05 + 2 * rng_f64(rng)) : 0,
        .top_k = rng_below(rng, 2) ? (int32_t)rng_below(rng, 60) : 0,
        .top_p = rng_below(rng, 2) ? (float)rng_f64(rng) : 1,
        .min_p = rng_below(rng, 2) ? (float)(0.3 * rng_f64(rng)) : 0,
        .repeat_penalty = rng_below(rng, 2) ? (float)(0.5 + rng_f64(rng)) : 1,
        .presence_penalty = rng_below(rng, 2) ? (float)rng_normal(rng) : 0,
        .frequency_penalty = rng_below(rng, 2) ? (float)rng_normal(rng) : 0,
        .repeat_last_n = (int32_t)rng_below(rng, 100) - 1,
    };
}

static struct sample_room *room_of(const struct scene *c)
{
    struct sample_room *r;
    assert_int_equal(
        sample_room_new(c->n_vocab, c->forbidden_ids, c->n_forbidden, NULL, 0, &r, NULL), RC_OK);
    return r;
}

static void every_chain_keeps_what_sorting_everything_keeps(void **state)
{
    (void)state;
    const uint64_t seed = seed_of_run();
    struct rng rng = {seed};
    for (int round = 0; round < 4000; round++) {
        struct scene c;
        make_scene(&c, &rng);
        struct sample_room *r = room_of(&c);
        struct sampler s;
        sampler_init(&s, &c.p, 1, c.bias, rng_below(&rng, 5));
        struct item want[MAX_VOCAB];
        const uint32_t n_want =
            naive(&s, c.forbidden, c.logits, c.n_vocab, c.history, c.n_history, want);
        float logits[MAX_VOCAB];
        memcpy(logits, c.logits, sizeof logits);
        token ids[MAX_VOCAB];
        double p[MAX_VOCAB];
        const uint32_t n = sampler_candidates(&s, r, logits, c.history, c.n_history, ids, p);
        double got[MAX_VOCAB] = {0};
        for (uint32_t i = 0; i < n; i++)
            got[ids[i]] = p[i];
        bool same = n == n_want;
        for (uint32_t i = 0; i < n_want; i++)
            same = same && fabs(got[want[i].id] - want[i].p) < 1e-9;
        if (!same)
            fail_msg("SEED=%" PRIu64 " round %d: %u candidates, sorting gives %u", seed, round, n,
                     n_want);
        sample_room_free(r);
    }
}

static void greedy_takes_the_lowest_of_the_best(void **state)
{
    (void)state;
    struct sample_room *r;
    assert_int_equal(sample_room_new(5, NULL, 0, NULL, 0, &r, NULL), RC_OK);
    const struct sampling p = {.temperature = 0, .repeat_penalty = 1, .top_p = 1};
    struct sampler s;
    sampler_init(&s, &p, 1, NULL, 0);
    float logits[5] = {NAN, 1, 3, 3, 2};
    assert_int_equal(sampler_next(&s, r, logits, NULL, 0, NULL, 0), 2);
    sample_room_free(r);
}

static void draws_follow_the_probabilities_and_repeat_with_the_seed(void **state)
{
    (void)state;
    struct sample_room *r;
    assert_int_equal(sample_room_new(4, NULL, 0, NULL, 0, &r, NULL), RC_OK);
    const double p[4] = {0.5, 0.25, 0.2, 0.05};
    const struct sampling o = {.temperature = 1, .repeat_penalty = 1, .top_p = 1};
    struct sampler a, b, other;
    sampler_init(&a, &o, 7, NULL, 0);
    sampler_init(&b, &o, 7, NULL, 0);
    sampler_init(&other, &o, 8, NULL, 0);
    enum { DRAWS = 40000 };
    uint32_t count[4] = {0}, n_other = 0;
    for (int i = 0; i < DRAWS; i++) {
        float la[4], lb[4], lo[4];
        for (int k = 0; k < 4; k++)
            la[k] = lb[k] = lo[k] = (float)log(p[k]);
        const token t = sampler_next(&a, r, la, NULL, 0, NULL, 0);
        assert_int_equal(t, sampler_next(&b, r, lb, NULL, 0, NULL, 0));
        n_other += t != sampler_next(&other, r, lo, NULL, 0, NULL, 0);
        count[t]++;
    }
    assert_true(n_other > DRAWS / 4); /* another seed, other draws */
    for (int k = 0; k < 4; k++) {
        const double sd = sqrt(DRAWS * p[k] * (1 - p[k]));
        assert_true(fabs(count[k] - DRAWS * p[k]) < 4.5 * sd);
    }
    sample_room_free(r);
}

/* A few tokens hold nearly everything, 100,000 share the rest: whoever falls among these is drawn as if
 * all weights had been added up. */
static void rare_tokens_are_drawn_where_they_stand(void **state)
{
    (void)state;
    enum { N = 100000 };
    struct sample_room *r;
    assert_int_equal(sample_room_new(N, NULL, 0, NULL, 0, &r, NULL), RC_OK);
    float *const from = mem_alloc(N * sizeof *from), *const work = mem_alloc(N * sizeof *work);
    const struct sampling o = {.temperature = 0.5F, .repeat_penalty = 1, .top_p = 1};
    double head = 0, all = 0;
    for (uint32_t i = 0; i < N; i++) { /* the head stands here and there */
        const uint32_t nth = i / 14000;
        from[i] = i % 14000 == 5 ? -(float)nth / 4 : i % 3 ? -10.2F : -INFINITY;
        all += exp((double)from[i] / 0.5);
        if (from[i] > -5)
            head += exp((double)from[i] / 0.5);
    }
    uint32_t n_rare = 0;
    for (uint64_t seed = 0; n_rare < 12; seed++) {
        struct rng copy = {.s = seed};
        const double at = rng_f64(&copy) * all;
        if (at < head && seed % 20000)
            continue; /* of the usual ones a few will do */
        struct sampler s;
        sampler_init(&s, &o, seed, NULL, 0);
        memcpy(work, from, N * sizeof *work);
        const token t = sampler_next(&s, r, work, NULL, 0, NULL, 0);
        double before = from[t] > -5 ? 0 : head;
        for (token i = 0; i < t; i++)
            if ((from[i] > -5) == (from[t] > -5))
                before += exp((double)from[i] / 0.5);
        assert_true(at > before - 1e-9 && at < before + exp((double)from[t] / 0.5) + 1e-9);
        n_rare += from[t] < -5;
    }
    mem_free(from);
    mem_free(work);
    sample_room_free(r);
}

static void log_probabilities_are_the_models_own(void **state)
{
    (void)state;
    struct rng rng = {seed_of_run()};
    for (int round = 0; round < 200; round++) {
        struct scene c;
        make_scene(&c, &rng);
        struct sample_room *r = room_of(&c);
        struct sampler s;
        sampler_init(&s, &c.p, 3, c.bias, COUNT_OF(c.bias));
        /* what sorting gives without bias and penalties */
        struct item all[MAX_VOCAB];
        struct sampler plain = {.p = {.temperature = 1, .top_p = 1, .repeat_penalty = 1}};
        const uint32_t n = naive(&plain, c.forbidden, c.logits, c.n_vocab, NULL, 0, all);
        enum { N_PROBS = 5 };
        struct prob probs[1 + N_PROBS];
        float logits[MAX_VOCAB];
        memcpy(logits, c.logits, sizeof logits);
        const token t = sampler_next(&s, r, logits, c.history, c.n_history, probs, N_PROBS);
        for (uint32_t i = 0; i < N_PROBS; i++) {
            assert_int_equal(probs[1 + i].id, i < n ? all[i].id : -1);
            if (i < n)
                assert_true(fabs((double)probs[1 + i].logprob - log(all[i].p)) < 1e-4);
        }
        if (t >= 0) {
            assert_int_equal(probs[0].id, t);
            for (uint32_t i = 0; i < n; i++)
                if (all[i].id == t)
                    assert_true(fabs((double)probs[0].logprob - log(all[i].p)) < 1e-4);
        }
        sample_room_free(r);
    }
}

static void forbidden_tokens_are_never_sampled(void **state)
{
    (void)state;
    const token unused[] = {1}, eog[] = {2};
    struct sample_room *r;
    assert_int_equal(sample_room_new(4, unused, 1, eog, 1, &r, NULL), RC_OK);
    struct sampling p = {.temperature = 0, .top_p = 1, .repeat_penalty = 1};
    struct sampler s;
    sampler_init(&s, &p, 1, NULL, 0);
    float a[4] = {0, 9, 8, 7};
    assert_int_equal(sampler_next(&s, r, a, NULL, 0, NULL, 0), 2);
    p.ignore_eos = true;
    sampler_init(&s, &p, 1, NULL, 0);
    float b[4] = {0, 9, 8, 7};
    assert_int_equal(sampler_next(&s, r, b, NULL, 0, NULL, 0), 3);
    const struct logit_bias never[] = {{0, -INFINITY}, {3, -INFINITY}};
    sampler_init(&s, &p, 1, never, 2);
    float d[4] = {0, 9, 8, 7};
    assert_int_equal(sampler_next(&s, r, d, NULL, 0, NULL, 0), -1); /* nothing is left */
    sample_room_free(r);
}

static void a_mask_lets_through_its_bits_and_no_token_behind_them(void **state)
{
    (void)state;
    enum { N = 200, N_MASK = 131 }; /* neither a multiple of 64 */
    struct sample_room *r;
    float logits[N];
    token ids[N];
    double share[N];
    assert_int_equal(sample_room_new(N, NULL, 0, NULL, 0, &r, NULL), RC_OK);
    const struct sampling p = {.temperature = 1, .top_p = 1, .repeat_penalty = 1};
    struct sampler s;
    sampler_init(&s, &p, 1, NULL, 0);
    const uint64_t mask[3] = {UINT64_MAX, UINT64_C(1) << 63, UINT64_MAX};
    s.mask = mask;
    s.n_mask = N_MASK;
    memset(logits, 0, sizeof logits);
    const uint32_t n = sampler_candidates(&s, r, logits, NULL, 0, ids, share);
    assert_int_equal(n, 64 + 1 + (N_MASK - 128));
    for (uint32_t i = 0; i < n; i++)
        assert_true(ids[i] < 64 || (ids[i] >= 127 && ids[i] < N_MASK));
    /* reported probabilities know nothing of it */
    struct prob probs[2];
    memset(logits, 0, sizeof logits);
    logits[100] = 5;
    const token t = sampler_next(&s, r, logits, NULL, 0, probs, 1);
    assert_true(t < 64 || t >= 127);
    assert_int_equal(probs[1].id, 100);
    sample_room_free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_chain_keeps_what_sorting_everything_keeps),
        cmocka_unit_test(greedy_takes_the_lowest_of_the_best),
        cmocka_unit_test(draws_follow_the_probabilities_and_repeat_with_the_seed),
        cmocka_unit_test(rare_tokens_are_drawn_where_they_stand),
        cmocka_unit_test(log_probabilities_are_the_models_own),
        cmocka_unit_test(forbidden_tokens_are_never_sampled),
        cmocka_unit_test(a_mask_lets_through_its_bits_and_no_token_behind_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
