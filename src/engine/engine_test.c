/* The engine over a tiny model: what a request is told never depends on what was kept, on who else
 * runs, or on who was cancelled; and nothing is lost or leaked on the way. */
#include "engine/engine.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/utf8.h"
#include "model/maker.h"
#include "text/bpe.h"
#include "engine/world_int.h"

static uint64_t seed_of_run(void)
{
    const char *s = getenv("SEED");
    return s ? strtoull(s, NULL, 10) : 1;
}

/* ---- helpers --------------------------------------------------------------------------------- */

static const struct logger quiet = {.level = LOG_INFO};

static struct engine *start(struct engine_opts o)
{
    o.model = world.model;
    o.vocab = world.vocab;
    if (!o.lg)
        o.lg = &quiet;
    struct engine *e;
    struct err err;
    must(engine_start(&o, &e, &err), &err);
    return e;
}

static struct engine *start_hold(uint64_t cache_mib)
{
    return start((struct engine_opts){
        .n_parallel = 4, .n_ctx = 2048, .cache_ram_bytes = cache_mib * MIB, .cache_step = 64});
}

static struct job_desc greedy(const token *prompt, uint32_t n, int32_t n_predict)
{
    struct job_desc d = {.prompt = prompt, .n_prompt = n, .n_predict = n_predict};
    sampling_defaults(&d.sampling);
    d.sampling.temperature = 0;
    d.sampling.ignore_eos = true; /* answers of full length */
    return d;
}

struct answer {
    struct buf text;
    struct tokens tokens;
    enum stop_kind stop;
    const char *stop_word;
    struct err err;
    struct timings t;
    struct plan plan;
    uint32_t n_pieces;
    float progress; /* the last one before tokens came */
};

static void answer_release(struct answer *a)
{
    buf_release(&a->text);
    tokens_release(&a->tokens);
}

static struct job *submit(struct engine *e, const struct job_desc *d)
{
    struct job *j;
    struct err err;
    must(engine_submit(e, d, &j, &err), &err);
    return j;
}

/* Reads to the end; job stays the caller's. */
static struct answer read_all(struct job *j)
{
    struct answer a = {.text = BUF_INIT};
    for (bool last = false; !last;) {
        struct piece *p = job_next(j, 60 * UINT64_C(1000000000));
        assert_non_null(p);
        assert_true(utf8_valid(buf_str(&p->text), p->text.n));
        buf_add(&a.text, p->text.p, p->text.n);
        for (uint32_t i = 0; i < p->n_tokens; i++)
            assert_true(tokens_add(&a.tokens, p->tokens[i]));
        assert_true(p->progress >= a.progress);
        a.progress = p->progress;
        a.n_pieces++;
        last = p->last;
        a.stop = p->stop;
        a.stop_word = p->stop_word;
        a.err = p->err;
        a.t = p->timings;
        a.plan = p->plan;
        piece_free(p);
    }
    assert_null(job_next(j, UINT64_MAX)); /* at once */
    return a;
}

static struct answer ask(struct engine *e, const struct job_desc *d)
{
    struct job *j = submit(e, d);
    struct answer a = read_all(j);
    job_free(j);
    return a;
}

static void assert_same(const struct answer *a, const struct answer *b)
{
    assert_int_equal(a->tokens.n, b->tokens.n);
    assert_memory_equal(a->tokens.v, b->tokens.v, a->tokens.n * sizeof *a->tokens.v);
    assert_string_equal(buf_str(&a->text), buf_str(&b->text));
}

/* The answer of an engine that keeps nothing and runs nothing else; no other may be running. */
static struct answer reference(const struct job_desc *d)
{
    struct engine *e =
        start((struct engine_opts){.n_parallel = 1, .n_ctx = 2048, .cache_policy = "none"});
    const struct answer a = ask(e, d);
    assert_int_equal(a.t.n_reused, 0);
    engine_stop(e, 0);
    return a;
}

/* Until no request has a place (a cancelled one keeps it to the end of the step). */
static void wait_idle(struct engine *e)
{
    uint32_t n_busy;
    do {
        struct engine_view v;
        must(engine_view(e, false, &v, NULL), NULL);
        n_busy = v.n_queued;
        for (uint32_t i = 0; i < v.n_slots; i++)
            n_busy += v.slots[i].job != 0;
        engine_view_release(&v);
    } while (n_busy);
}

/* Until the job has said its first token. */
static void wait_token(struct job *j)
{
    bool said = false;
    while (!said) {
        struct piece *p = job_next(j, UINT64_MAX);
        assert_non_null(p);
        said = p->n_tokens > 0;
        piece_free(p);
    }
}

static uint32_t reused(struct engine *e, const struct job_desc *d)
{
    struct answer a = ask(e, d);
    assert_int_equal(a.t.n_reused + a.t.n_evaluated, a.t.n_prompt);
    answer_release(&a);
    engine_check(e);
    return a.t.n_reused;
}

/* ---- the same answer ------------------------------------------------------------------------- */

enum { N_LONG = 300, N_ANSWER = 24 };

static void an_answer_is_the_same_cold_warm_among_others_and_after_a_cancel(void **state)
{
    (void)state;
    token prompt[N_LONG];
    random_tokens(prompt, N_LONG, 1);
    for (int sampled = 0; sampled < 2; sampled++) {
        struct job_desc d = greedy(prompt, N_LONG, N_ANSWER);
        if (sampled) {
            d.sampling.temperature = 0.9f;
            d.sampling.seed = 77;
            d.sampling.has_seed = true;
            d.sampling.repeat_penalty = 1.1f;
        }
        struct answer want = reference(&d);
        assert_int_equal(want.tokens.n, N_ANSWER);
        struct engine *e = start_hold(64);
        struct answer cold = ask(e, &d);
        struct answer warm = ask(e, &d);
        assert_int_equal(cold.t.n_reused, 0);
        assert_true(warm.t.n_reused > N_LONG / 2);
        assert_same(&want, &cold);
        assert_same(&want, &warm);
        /* among others, some of which share its beginning, some of which go away */
        token other[6][N_LONG];
        struct job *jobs[6];
        for (uint32_t i = 0; i < 6; i++) {
            random_tokens(other[i], N_LONG, 10 + i);
            memcpy(other[i], prompt, (i % 3) * 90 * sizeof *prompt);
            const struct job_desc od = greedy(other[i], N_LONG - 7 * i, 40);
            jobs[i] = submit(e, &od);
        }
        struct job *j = submit(e, &d);
        job_cancel(jobs[1]);
        job_free(jobs[4]);
        struct answer among = read_all(j);
        assert_same(&want, &among);
        job_free(j);
        for (uint32_t i = 0; i < 6; i++)
            if (i != 4)
                job_free(jobs[i]);
        struct answer after = ask(e, &d);
        assert_same(&want, &after);
        engine_check(e);
        engine_stop(e, 0);
        answer_release(&want);
        answer_release(&cold);
        answer_release(&warm);
        answer_release(&among);
        answer_release(&after);
    }
}

static void a_second_turn_continues_where_the_answer_ended(void **state)
{
    (void)state;
    enum { N_SAID = 40 }; /* fewer would not be worth a state of their own */
    token prompt[N_LONG + N_SAID + 50];
    random_tokens(prompt, COUNT_OF(prompt), 2);
    struct engine *e = start_hold(64);
    const struct job_desc d = greedy(prompt, N_LONG, N_SAID);
    struct answer a = ask(e, &d);
    memcpy(prompt + N_LONG, a.tokens.v, N_SAID * sizeof *prompt);
    const struct job_desc next = greedy(prompt, COUNT_OF(prompt), N_ANSWER);
    struct answer want = reference(&next);
    struct answer b = ask(e, &next);
    assert_same(&want, &b);
    /* all but the last sampled token, which was never evaluated, and which the answer's end is */
    assert_int_equal(b.t.n_reused, N_LONG + N_SAID - 1);
    assert_int_equal(b.plan.restore_kind, CUT_GEN_END);
    engine_stop(e, 0);
    answer_release(&a);
    answer_release(&b);
    answer_release(&want);
}

/* A, then an unrelated B, then C that leaves A in its middle: the experiment in small. */
static void an_interloper_costs_nothing(void **state)
{
    (void)state;
    enum { A = 456, B = 99, C = 494, COMMON = 253, GRID = 64 };
    token a[A], b[B], c[C], c2[C];
    random_tokens(a, A, 3);
    random_tokens(b, B, 4);
    random_tokens(c, C, 5);
    random_tokens(c2, C, 6);
    memcpy(c, a, COMMON * sizeof *a);
    memcpy(c2, a, COMMON * sizeof *a);
    const struct job_desc da = greedy(a, A, 8), db = greedy(b, B, 8), dc = greedy(c, C, 8),
                          dc2 = greedy(c2, C, 8);
    struct answer want = reference(&dc), want2 = reference(&dc2);
    uint32_t without[2], with[2];
    for (int interloper = 0; interloper < 2; interloper++) {
        uint32_t *r = interloper ? with : without;
        struct engine *e = start_hold(64);
        assert_int_equal(reused(e, &da), 0);
        if (interloper)
            assert_int_equal(reused(e, &db), 0);
        struct answer first = ask(e, &dc);
        if (interloper)
            reused(e, &db);
        struct answer second = ask(e, &dc2);
        assert_same(&want, &first);
        assert_same(&want2, &second);
        r[0] = first.t.n_reused;
        r[1] = second.t.n_reused;
        answer_release(&first);
        answer_release(&second);
        engine_stop(e, 0);
    }
    assert_int_equal(with[0], without[0]);
    assert_int_equal(with[1], without[1]);
    assert_true(with[0] >= COMMON - GRID);
    assert_int_equal(with[1], COMMON);
    answer_release(&want);
    answer_release(&want2);
}

static void a_prefix_that_several_need_at_once_is_evaluated_once(void **state)
{
    (void)state;
    token prompt[3][N_LONG];
    for (uint32_t i = 0; i < 3; i++) {
        random_tokens(prompt[i], N_LONG, 20 + i);
        memcpy(prompt[i], prompt[0], 200 * sizeof **prompt);
    }
    memcpy(prompt[2], prompt[0], sizeof *prompt); /* the same prompt altogether */
    struct answer want[3];
    for (uint32_t i = 0; i < 3; i++) {
        const struct job_desc d = greedy(prompt[i], N_LONG, N_ANSWER);
        want[i] = reference(&d);
    }
    for (int kept = 1; kept >= 0; kept--) { /* without a cache the state goes from hand to hand */
        struct engine *e = start((struct engine_opts){
            .n_parallel = 3, .n_ctx = 2048, .n_batch = 32, .cache_ram_bytes = kept ? 64 * MIB : 0});
        /* every place is taken until all three wait for one */
        struct job *blocker[3], *jobs[3];
        for (uint32_t i = 0; i < 3; i++) {
            const struct job_desc d = greedy(prompt[i] + 250, 1, -1);
            blocker[i] = submit(e, &d);
            wait_token(blocker[i]);
        }
        for (uint32_t i = 0; i < 3; i++) {
            const struct job_desc d = greedy(prompt[i], N_LONG, N_ANSWER);
            jobs[i] = submit(e, &d);
        }
        struct engine_view v;
        must(engine_view(e, false, &v, NULL), NULL);
        assert_int_equal(v.n_queued, 3);
        engine_view_release(&v);
        for (uint32_t i = 0; i < 3; i++)
            job_cancel(blocker[i]);
        for (uint32_t i = 0; i < 3; i++)
            job_free(blocker[i]);
        uint32_t evaluated = 0, shared = 0;
        for (uint32_t i = 0; i < 3; i++) {
            struct answer got = read_all(jobs[i]);
            assert_same(&want[i], &got);
            evaluated += got.t.n_evaluated;
            shared += got.t.n_reused;
            answer_release(&got);
            job_free(jobs[i]);
        }
        assert_int_equal(evaluated, N_LONG + (N_LONG - 200) + 1);
        assert_int_equal(shared, 200 + N_LONG - 1);
        engine_check(e);
        engine_stop(e, 0);
    }
    for (uint32_t i = 0; i < 3; i++)
        answer_release(&want[i]);
}

/* ---- cancel ---------------------------------------------------------------------------------- */

static void cancelled_at_any_step_a_request_leaves_its_finished_part(void **state)
{
    (void)state;
    token prompt[N_LONG];
    random_tokens(prompt, N_LONG, 7);
    const struct job_desc d = greedy(prompt, N_LONG, N_ANSWER);
    struct answer want = reference(&d);
    for (uint32_t k = 0; k < 30; k++) {
        struct engine *e = start((struct engine_opts){
            .n_parallel = 2, .n_ctx = 2048, .n_batch = 40, .cache_ram_bytes = 64 * MIB});
        struct job *j = submit(e, &d);
        for (uint32_t i = 0; i < k; i++) {
            struct piece *p = job_next(j, UINT64_MAX);
            if (!p)
                break;
            piece_free(p);
        }
        job_cancel(j);
        uint32_t n_done = 0;
        for (struct piece *p; (p = job_next(j, UINT64_MAX));) {
            if (p->last) {
                assert_true(p->stop == STOP_CANCELLED || p->stop == STOP_LIMIT);
                n_done = p->timings.n_evaluated;
            }
            piece_free(p);
        }
        job_free(j);
        engine_check(e);
        struct engine_view v;
        must(engine_view(e, true, &v, NULL), NULL);
        assert_int_equal(v.cache.n_pinned, 0);
        for (uint32_t i = 0; i < v.n_slots; i++)
            assert_int_equal(v.slots[i].job, 0);
        /* what a cancel leaves within the prompt is no end of an answer */
        for (uint32_t i = 0; i < v.n_entries; i++)
            assert_true(v.entries[i].pos >= N_LONG || v.entries[i].kind != CUT_GEN_END);
        engine_view_release(&v);
        struct answer again = ask(e, &d);
        assert_same(&want, &again);
        if (n_done < N_LONG) /* but for what is too little to keep */
            assert_true(again.t.n_reused + 32 > n_done);
        answer_release(&again);
        engine_check(e);
        engine_stop(e, 0);
    }
    answer_release(&want);
}

static void a_stopped_engine_lets_jobs_finish_in_time_and_cancels_the_rest(void **state)
{
    (void)state;
    token prompt[N_LONG];
    random_tokens(prompt, N_LONG, 8);
    const struct job_desc d = greedy(prompt, N_LONG, N_ANSWER), endless = greedy(prompt, 10, -1);
    struct engine *e = start_hold(8);
    struct job *j = submit(e, &d);
    engine_stop(e, 60 * UINT64_C(1000000000));
    struct answer a = read_all(j);
    assert_int_equal(a.stop, STOP_LIMIT);
    answer_release(&a);
    job_free(j);

    e = start((struct engine_opts){.n_parallel = 1, .n_ctx = 30000, .cache_ram_bytes = 8 * MIB});
    j = submit(e, &endless);
    struct job *queued = submit(e, &d);
    engine_stop(e, 1000000);
    a = read_all(j);
    assert_int_equal(a.stop, STOP_CANCELLED);
    answer_release(&a);
    a = read_all(queued);
    assert_int_equal(a.stop, STOP_CANCELLED);
    assert_int_equal(a.t.n_evaluated, 0);
    answer_release(&a);
    job_free(j);
    job_free(queued);
}

/* ---- limits ---------------------------------------------------------------------------------- */

static void a_full_context_ends_that_request_alone(void **state)
{
    (void)state;
    token prompt[100];
    random_tokens(prompt, 100, 9);
    struct engine *e = start((struct engine_opts){.n_parallel = 2, .n_ctx = 128});
    const struct job_desc full = greedy(prompt, 100, -1), small = greedy(prompt + 50, 20, 60);
    struct job *a = submit(e, &full), *b = submit(e, &small);
    struct answer x = read_all(a), y = read_all(b);
    assert_int_equal(x.stop, STOP_CONTEXT);
    assert_int_equal(x.t.n_predicted, 28);
    assert_int_equal(y.stop, STOP_LIMIT);
    assert_int_equal(y.t.n_predicted, 60);
    answer_release(&x);
    answer_release(&y);
    job_free(a);
    job_free(b);
    engine_stop(e, 0);
}

static void memory_that_runs_out_ends_that_request_alone(void **state)
{
    (void)state;
    token prompt[2][500];
    random_tokens(prompt[0], 500, 30);
    random_tokens(prompt[1], 500, 31);
    const uint64_t page = shape_page_bytes(&model_info(world.model)->shape);
    const struct job_desc big = greedy(prompt[0], 500, 200), small = greedy(prompt[1], 60, 40);
    struct answer want = reference(&small);
    struct engine *e = start((struct engine_opts){
        .n_parallel = 2, .n_ctx = 2048, .kv_max_bytes = 6 * page, .cache_ram_bytes = 64 * MIB});
    for (int round = 0; round < 3; round++) {
        struct job *a = submit(e, &big), *b = submit(e, &small);
        struct answer x = read_all(a), y = read_all(b);
        assert_int_equal(x.stop, STOP_ERROR);
        assert_int_equal(x.err.rc, RC_NOMEM);
        assert_int_equal(y.stop, STOP_LIMIT);
        assert_same(&want, &y);
        answer_release(&x);
        answer_release(&y);
        job_free(a);
        job_free(b);
        engine_check(e);
    }
    engine_stop(e, 0);
    answer_release(&want);
}

static void the_cache_makes_room_for_a_running_request(void **state)
{
    (void)state;
    token prompt[2][300];
    random_tokens(prompt[0], 300, 32);
    random_tokens(prompt[1], 300, 33);
    const uint64_t page = shape_page_bytes(&model_info(world.model)->shape);
    struct engine *e = start((struct engine_opts){
        .n_parallel = 1, .n_ctx = 2048, .kv_max_bytes = 8 * page, .cache_ram_bytes = 64 * MIB});
    for (uint32_t i = 0; i < 2; i++) { /* five pages each: the second needs what the first left */
        const struct job_desc d = greedy(prompt[i], 300, 4);
        struct answer a = ask(e, &d);
        assert_int_equal(a.stop, STOP_LIMIT);
        answer_release(&a);
        engine_check(e);
    }
    engine_stop(e, 0);
}

/* Random traffic over a small budget; engine_check holds what entries hold against the budget. */
static void the_budget_is_never_exceeded(void **state)
{
    (void)state;
    const uint64_t seed = seed_of_run();
    struct rng rng = {seed};
    token trunk[400];
    random_tokens(trunk, 400, 40);
    const uint64_t snap = shape_snap_bytes(&model_info(world.model)->shape);
    const uint64_t page = shape_page_bytes(&model_info(world.model)->shape);
    const uint64_t budget = 5 * snap + 12 * page;
    struct engine *e = start((struct engine_opts){
        .n_parallel = 3, .n_ctx = 2048, .cache_ram_bytes = budget, .cache_step = 32});
    struct job *jobs[3] = {NULL};
    for (int round = 0; round < 90; round++) {
        const uint32_t k = rng_below(&rng, 3);
        token prompt[400];
        random_tokens(prompt, 400, rng_u64(&rng));
        memcpy(prompt, trunk, rng_below(&rng, 350) * sizeof *prompt);
        job_free(jobs[k]); /* at whatever point it is */
        const struct job_desc d =
            greedy(prompt, 50 + rng_below(&rng, 350), 1 + (int32_t)rng_below(&rng, 30));
        jobs[k] = submit(e, &d);
        if (rng_below(&rng, 2)) {
            struct answer a = read_all(jobs[k]);
            answer_release(&a);
        }
        engine_check(e);
    }
    for (uint32_t k = 0; k < 3; k++)
        job_free(jobs[k]);
    struct engine_view v;
    must(engine_view(e, true, &v, NULL), NULL);
    assert_int_equal(v.cache.budget, budget);
    assert_true(v.cache.evictions > 0);
    engine_view_release(&v);
    engine_stop(e, 0);
}

static void any_allocation_may_fail(void **state)
{
    (void)state;
    token prompt[150];
    random_tokens(prompt, 150, 50);
    struct job_desc d = greedy(prompt, 150, 6);
    d.n_probs = 2;
    const char *const stop[] = {"never said"};
    d.stop = stop;
    d.n_stop = 1;
    struct answer want = reference(&d);
    uint32_t n_failed = 0;
    bool done = false;
    for (uint64_t n = 1; !done; n++) {
        struct engine *e = start_hold(8);
        struct job *j = NULL;
        struct err err;
        mem_fail_after(n);
        enum rc rc = engine_submit(e, &d, &j, &err);
        if (rc) {
            assert_int_equal(rc, RC_NOMEM);
        } else {
            struct piece *p;
            for (bool last = false; !last; piece_free(p)) {
                p = job_next(j, UINT64_MAX);
                last = p->last;
                if (last && p->stop == STOP_ERROR)
                    rc = p->err.rc;
                else if (last)
                    assert_int_equal(p->stop, STOP_LIMIT);
            }
        }
        mem_fail_after(0);
        job_free(j);
        if (rc)
            assert_int_equal(rc, RC_NOMEM);
        n_failed += rc != RC_OK;
        done = n > 40 && rc == RC_OK;
        engine_check(e);
        struct answer a = ask(e, &d); /* whatever happened, the next one is served */
        assert_same(&want, &a);
        answer_release(&a);
        engine_stop(e, 0);
    }
    assert_true(n_failed > 5);
    answer_release(&want);
}

/* ---- text ------------------------------------------------------------------------------------ */

static void a_stop_string_ends_the_text_and_is_not_in_it(void **state)
{
    (void)state;
    token prompt[40];
    random_tokens(prompt, 40, 60);
    struct job_desc d = greedy(prompt, 40, 120);
    struct answer want = reference(&d);
    assert_true(want.text.n > 30);
    struct engine *e = start_hold(8);
    uint32_t n_tried = 0;
    for (size_t at = 0; at + 6 < want.text.n; at += 5) {
        char word[8];
        const size_t len = 1 + at % 6;
        memcpy(word, want.text.p + at, len);
        word[len] = 0;
        if (!utf8_valid(word, len) || memchr(word, 0, len))
            continue;
        const char *const words[] = {"", "not in it at all", word};
        d.stop = words;
        d.n_stop = COUNT_OF(words);
        struct job *j = submit(e, &d);
        struct answer a = read_all(j);
        const char *first = memmem(want.text.p, want.text.n, word, len);
        assert_int_equal(a.stop, STOP_WORD);
        assert_string_equal(a.stop_word, word);
        assert_int_equal(a.text.n, first - want.text.p);
        assert_memory_equal(buf_str(&a.text), want.text.p, a.text.n);
        answer_release(&a);
        job_free(j);
        n_tried++;
    }
    assert_true(n_tried > 5);
    engine_stop(e, 0);
    answer_release(&want);
}

static void the_end_of_generation_token_ends_it_without_text(void **state)
{
    (void)state;
    token prompt[10];
    random_tokens(prompt, 10, 61);
    const token eos = vocab_eos(world.vocab);
    const struct logit_bias force[] = {{eos, 1000}};
    struct job_desc d = greedy(prompt, 10, 20);
    d.sampling.ignore_eos = false;
    d.bias = force;
    d.n_bias = 1;
    struct engine *e = start_hold(8);
    struct answer a = ask(e, &d);
    assert_int_equal(a.stop, STOP_EOG);
    assert_int_equal(a.text.n, 0);
    assert_int_equal(a.tokens.n, 1);
    assert_int_equal(a.tokens.v[0], eos);
    answer_release(&a);
    d.special = true;
    a = ask(e, &d);
    const struct str shown = vocab_bytes(world.vocab, eos, true);
    assert_int_equal(a.text.n, shown.n);
    answer_release(&a);
    engine_stop(e, 0);
}

static void probabilities_come_with_every_token(void **state)
{
    (void)state;
    token prompt[30];
    random_tokens(prompt, 30, 62);
    struct job_desc d = greedy(prompt, 30, 10);
    d.n_probs = 3;
    struct engine *e = start_hold(8);
    struct job *j = submit(e, &d);
    uint32_t n = 0;
    for (struct piece *p; (p = job_next(j, UINT64_MAX)); piece_free(p))
        for (uint32_t i = 0; i < p->n_tokens; i++, n++) {
            const struct prob *row = p->probs + (size_t)i * (1 + p->n_probs);
            assert_int_equal(p->n_probs, 3);
            assert_int_equal(row[0].id, p->tokens[i]);
            if (!vocab_is_eog(world.vocab, row[1].id)) /* greedy, but not the end */
                assert_int_equal(row[1].id, row[0].id);
            assert_true(row[0].logprob <= row[1].logprob && row[1].logprob >= row[2].logprob &&
                        row[2].logprob >= row[3].logprob && row[1].logprob < 0);
        }
    assert_int_equal(n, 10);
    job_free(j);
    engine_stop(e, 0);
}

static void nothing_to_predict_still_puts_the_prompt_into_the_cache(void **state)
{
    (void)state;
    token prompt[200];
    random_tokens(prompt, 200, 63);
    struct engine *e = start_hold(8);
    const struct job_desc warm = greedy(prompt, 170, 0), d = greedy(prompt, 200, 4);
    struct answer a = ask(e, &warm);
    assert_int_equal(a.stop, STOP_LIMIT);
    assert_int_equal(a.t.n_evaluated, 170);
    assert_int_equal(a.tokens.n, 0);
    answer_release(&a);
    assert_int_equal(reused(e, &d), 169); /* all but the last token of a raw prompt */
    engine_stop(e, 0);
}

/* ---- what is told ---------------------------------------------------------------------------- */

static void a_bad_request_is_refused_with_the_fields_name(void **state)
{
    (void)state;
    token prompt[200];
    random_tokens(prompt, 200, 64);
    struct engine *e = start((struct engine_opts){.n_ctx = 128});
    const struct job_desc good = greedy(prompt, 20, 1);
    struct job_desc d[9];
    for (size_t i = 0; i < COUNT_OF(d); i++)
        d[i] = good;
    const token outside[] = {5, 100000};
    const struct logit_bias bias[] = {{-3, 1}};
    const struct cache_hint hints[] = {{.pos = 9}, {.pos = 3}};
    d[0].n_prompt = 0;
    d[1].prompt = outside;
    d[1].n_prompt = 2;
    d[2].n_prompt = 128;
    d[3].bias = bias;
    d[3].n_bias = 1;
    d[4].sampling.top_p = 1.5f;
    d[5].sampling.temperature = 0.0f / 0.0f;
    d[6].n_predict = -7;
    d[7].hints = hints;
    d[7].n_hints = 2;
    d[8].n_probs = 100000;
    static const char *const names[] = {"prompt",      "prompt",    "prompt", "logit_bias", "top_p",
                                        "temperature", "n_predict", "hint",   "n_probs"};
    for (size_t i = 0; i < COUNT_OF(d); i++) {
        struct job *j;
        struct err err;
        assert_int_equal(engine_submit(e, &d[i], &j, &err), i == 2 ? RC_LIMIT : RC_ARG);
        assert_non_null(strstr(err.msg, names[i]));
    }
    struct job *j;
    struct err err;
    assert_int_equal(engine_submit(e, &d[2], &j, &err), RC_LIMIT);
    assert_string_equal(err.msg, "prompt has 128 tokens, the context 128");
    engine_stop(e, 0);
}

static void one_line_and_events_for_every_request_and_no_text_in_them(void **state)
{
    (void)state;
    char events_path[256];
    snprintf(events_path, sizeof events_path, "%s/engine_test-%d.events", HOUSE_BINARY_DIR,
             (int)getpid());
    FILE *out = tmpfile();
    struct event_log *events;
    struct err err;
    must(event_log_open(events_path, &events, &err), &err);
    const struct logger lg = {.level = LOG_INFO, .out = out};
    struct engine *e = start((struct engine_opts){
        .n_ctx = 2048, .cache_ram_bytes = 8 * MIB, .lg = &lg, .events = events});
    token prompt[160];
    random_tokens(prompt, 160, 65);
    const struct job_desc da = greedy(prompt, 120, 5), db = greedy(prompt, 160, 5);
    struct answer a = ask(e, &da), b = ask(e, &db);
    engine_stop(e, 0);
    event_log_close(events);

    rewind(out);
    char line[512];
    assert_non_null(fgets(line, sizeof line, out));
    assert_non_null(strstr(line, "request 1: prompt 120, reused 0, evaluated 120 in "));
    assert_non_null(strstr(line, "generated 5 in "));
    assert_non_null(strstr(line, "stop limit\n"));
    assert_non_null(fgets(line, sizeof line, out));
    char want[64];
    snprintf(want, sizeof want, "request 2: prompt 160, reused %u (prompt, RAM)", b.t.n_reused);
    assert_non_null(strstr(line, want));
    assert_null(fgets(line, sizeof line, out));
    fclose(out);

    FILE *f = fopen(events_path, "r");
    unlink(events_path);
    assert_non_null(f);
    uint32_t n_lookup = 0, n_turn = 0, n_cut = 0, n_restore = 0;
    while (fgets(line, sizeof line, f)) {
        json_t *o;
        must(jread_parse(line, strlen(line), &o, &err), &err);
        const char *ev = "";
        must(jread_str(o, "ev", &ev, &err), &err);
        n_lookup += !strcmp(ev, "lookup");
        n_turn += !strcmp(ev, "turn");
        n_cut += !strcmp(ev, "cut");
        n_restore += !strcmp(ev, "restore");
        json_decref(o);
    }
    fclose(f);
    assert_int_equal(b.t.n_reused, 119);
    assert_int_equal(n_lookup, 2);
    assert_int_equal(n_turn, 2);
    assert_int_equal(n_restore, 1);
    assert_true(n_cut >= 1);
    answer_release(&a);
    answer_release(&b);
}

static void a_view_shows_slots_counters_and_entries_and_an_entry_can_be_dropped(void **state)
{
    (void)state;
    token prompt[100];
    random_tokens(prompt, 100, 66);
    struct engine *e = start_hold(8);
    const struct job_desc d = greedy(prompt, 100, 6), endless = greedy(prompt, 90, -1);
    reused(e, &d);
    struct job *j = submit(e, &endless);
    wait_token(j);
    struct engine_view v;
    must(engine_view(e, true, &v, NULL), NULL);
    assert_int_equal(v.n_slots, 4);
    assert_int_equal(v.slots[0].job, job_id(j));
    assert_int_equal(v.slots[0].n_prompt, 90);
    assert_int_equal(v.slots[0].n_done, 90);
    assert_false(v.slots[0].prefill);
    assert_true(v.slots[0].n_predicted > 0);
    assert_int_equal(v.jobs_total, 1);
    assert_int_equal(v.prompt_tokens_total, 100);
    assert_int_equal(v.predicted_tokens_total, 6);
    assert_true(v.n_entries > 0);
    assert_true(v.kv_bytes > 0 && v.snap_bytes > 0);
    engine_view_release(&v);
    job_free(j);
    wait_idle(e);
    must(engine_view(e, true, &v, NULL), NULL);
    for (uint32_t i = 0; i < v.n_entries; i++) {
        assert_true(engine_drop(e, v.entries[i].id));
        assert_false(engine_drop(e, v.entries[i].id));
    }
    engine_view_release(&v);
    must(engine_view(e, true, &v, NULL), NULL);
    assert_int_equal(v.n_entries, 0);
    assert_int_equal(v.snap_bytes, 0);
    engine_view_release(&v);
    engine_stop(e, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_answer_is_the_same_cold_warm_among_others_and_after_a_cancel),
        cmocka_unit_test(a_second_turn_continues_where_the_answer_ended),
        cmocka_unit_test(an_interloper_costs_nothing),
        cmocka_unit_test(a_prefix_that_several_need_at_once_is_evaluated_once),
        cmocka_unit_test(cancelled_at_any_step_a_request_leaves_its_finished_part),
        cmocka_unit_test(a_stopped_engine_lets_jobs_finish_in_time_and_cancels_the_rest),
        cmocka_unit_test(a_full_context_ends_that_request_alone),
        cmocka_unit_test(memory_that_runs_out_ends_that_request_alone),
        cmocka_unit_test(the_cache_makes_room_for_a_running_request),
        cmocka_unit_test(the_budget_is_never_exceeded),
        cmocka_unit_test(any_allocation_may_fail),
        cmocka_unit_test(a_stop_string_ends_the_text_and_is_not_in_it),
        cmocka_unit_test(the_end_of_generation_token_ends_it_without_text),
        cmocka_unit_test(probabilities_come_with_every_token),
        cmocka_unit_test(nothing_to_predict_still_puts_the_prompt_into_the_cache),
        cmocka_unit_test(a_bad_request_is_refused_with_the_fields_name),
        cmocka_unit_test(one_line_and_events_for_every_request_and_no_text_in_them),
        cmocka_unit_test(a_view_shows_slots_counters_and_entries_and_an_entry_can_be_dropped),
    };
    return cmocka_run_group_tests(tests, world_open, world_close);
}
