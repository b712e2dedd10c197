/* State kept by slot: the rules of another engine decide what is evaluated again, never what is answered.
 * SEED repeats a run. */
#include "engine/perslot.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/rng.h"
#include "engine/engine.h"
#include "model/maker.h"
#include "engine/world_int.h"

/* ---- helpers --------------------------------------------------------------------------------- */

static const struct logger quiet = {.level = LOG_INFO};

/* Decode batches of 128, near the prompt's end is 64 + 5. */
static struct engine *start(const char *policy, struct engine_opts o)
{
    o.model = world.model;
    o.vocab = world.vocab;
    o.lg = o.lg ? o.lg : &quiet;
    o.n_batch = 128;
    o.n_ctx = 2048;
    o.cache_policy = policy;
    o.cache_ram_bytes = o.cache_ram_bytes ? o.cache_ram_bytes : 64 * MIB;
    struct engine *e;
    struct err err;
    must(engine_start(&o, &e, &err), &err);
    return e;
}

static void fill(token *out, uint32_t n, uint64_t seed)
{
    struct rng rng = {seed};
    for (uint32_t i = 0; i < n; i++)
        out[i] = (token)rng_below(&rng, 200) + 20;
}

enum { MAX_ANSWER = 32 };

struct answer {
    token tokens[MAX_ANSWER];
    uint32_t n;
    enum stop_kind stop;
    struct timings t;
    struct plan plan;
    struct err err;
};

static struct job *submit(struct engine *e, const token *prompt, uint32_t n, int32_t n_predict)
{
    struct job_desc d = {.prompt = prompt, .n_prompt = n, .n_predict = n_predict};
    struct job *j;
    struct err err;
    sampling_defaults(&d.sampling);
    d.sampling.temperature = 0;
    d.sampling.ignore_eos = true;
    must(engine_submit(e, &d, &j, &err), &err);
    return j;
}

static struct answer read_all(struct job *j)
{
    struct answer a = {0};
    for (bool last = false; !last;) {
        struct piece *p = job_next(j, UINT64_MAX);
        for (uint32_t i = 0; i < p->n_tokens; i++) {
            assert_true(a.n < MAX_ANSWER);
            a.tokens[a.n++] = p->tokens[i];
        }
        last = p->last;
        a.stop = p->stop;
        a.t = p->timings;
        a.plan = p->plan;
        a.err = p->err;
        piece_free(p);
    }
    job_free(j);
    return a;
}

static struct answer ask(struct engine *e, const token *prompt, uint32_t n, int32_t n_predict)
{
    struct answer a = read_all(submit(e, prompt, n, n_predict));
    engine_check(e);
    return a;
}

/* ---- tests ----------------------------------------------------------------------------------- */

enum { N_TRUNK = 600, N_REQUESTS = 24 };

static void answers_have_the_same_bits_as_without_a_cache(void **state)
{
    (void)state;
    static const char *const policies[] = {"pxa", "pxa-policy0", "pxa-end", "pxa-both"};
    const char *s = getenv("SEED");
    const uint64_t seed = s ? strtoull(s, NULL, 10) : 1;
    token(*prompts)[N_TRUNK] = calloc(N_REQUESTS, sizeof *prompts), trunk[N_TRUNK];
    uint32_t n[N_REQUESTS];
    struct answer want[N_REQUESTS];
    struct rng rng = {seed};
    fill(trunk, N_TRUNK, seed + 1);
    struct engine *e = start("none", (struct engine_opts){.n_parallel = 1});
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        fill(prompts[i], N_TRUNK, seed + 2 + i);
        memcpy(prompts[i], trunk, rng_below(&rng, N_TRUNK) * sizeof *trunk);
        n[i] = 70 + rng_below(&rng, N_TRUNK - 70);
        want[i] = ask(e, prompts[i], n[i], 1 + (int32_t)i % MAX_ANSWER);
    }
    engine_stop(e, 0);
    for (size_t p = 0; p < COUNT_OF(policies); p++) {
        e = start(policies[p], (struct engine_opts){.n_parallel = 2});
        uint64_t reused = 0;
        for (uint32_t i = 0; i < N_REQUESTS; i++) {
            struct job *other =
                submit(e, prompts[(i * 7 + 3) % N_REQUESTS], n[(i * 7 + 3) % N_REQUESTS], 20);
            const struct answer a = ask(e, prompts[i], n[i], 1 + (int32_t)i % MAX_ANSWER);
            if (rng_below(&rng, 2))
                job_cancel(other);
            (void)read_all(other);
            engine_check(e);
            if (a.n != want[i].n || memcmp(a.tokens, want[i].tokens, a.n * sizeof *a.tokens) != 0)
                fail_msg("SEED=%" PRIu64 ": request %u answers otherwise with %s", seed, i,
                         policies[p]);
            assert_int_equal(a.t.n_reused + a.t.n_evaluated, n[i]);
            assert_int_equal(a.plan.lost_placement + a.plan.lost_last, a.plan.lcp - a.plan.start);
            reused += a.t.n_reused;
        }
        assert_true(reused > 0);
        engine_stop(e, 0);
    }
    free(prompts);
}

static void an_interloper_erases_all_and_the_perfect_checkpoint_is_refused(void **state)
{
    (void)state;
    token a[800], b[80], c[820];
    fill(a, COUNT_OF(a), 3);
    fill(b, COUNT_OF(b), 4);
    b[0] = a[0] + 1;
    fill(c, COUNT_OF(c), 5);
    memcpy(c, a, 600 * sizeof *a);
    c[600] = a[600] + 1;
    for (int off = 0; off < 2; off++) {
        struct engine *e =
            start(off ? "pxa-policy0" : "pxa", (struct engine_opts){.n_parallel = 1});
        (void)ask(e, a, COUNT_OF(a), 8);
        /* A's checkpoints: at batch ends 512 apart, or only at one near the end */
        assert_int_equal(ask(e, c, COUNT_OF(c), 8).t.n_reused, off ? 512 : 0);
        /* C again: all of it is there, but only what lies two below its end is used */
        assert_int_equal(ask(e, c, COUNT_OF(c), 8).t.n_reused, COUNT_OF(c) - 5);
        (void)ask(e, b, COUNT_OF(b), 8);
        const struct answer last = ask(e, c, COUNT_OF(c), 8);
        assert_int_equal(last.t.n_reused, 0);
        assert_int_equal(last.plan.lcp, 0);
        struct engine_view v;
        must(engine_view(e, true, &v, NULL), NULL);
        assert_true(v.evicted[DROP_ERASED] > 0 && !v.evicted[DROP_BUDGET]);
        assert_int_equal(v.held[0].n_tokens, COUNT_OF(c) + 8 - 1);
        assert_int_equal(v.states[v.held[0].n - 1].kind, CUT_GEN_END);
        engine_view_release(&v);
        engine_stop(e, 0);
    }
    /* at 1 less than what is shared: refused, though it is exactly the common prefix */
    struct engine *e = start("pxa", (struct engine_opts){.n_parallel = 1});
    (void)ask(e, a, COUNT_OF(a), 1);
    memcpy(c, a, 768 * sizeof *a); /* its first checkpoint has 768 tokens */
    c[768] = a[768] + 1;
    const struct answer refused = ask(e, c, COUNT_OF(c), 1);
    assert_int_equal(refused.plan.lcp, 768);
    assert_int_equal(refused.t.n_reused, 0);
    engine_stop(e, 0);
}

static void pages_for_a_request_come_from_idle_slots(void **state)
{
    (void)state;
    token p[3][300];
    for (uint64_t i = 0; i < 3; i++) {
        fill(p[i], 300, 30 + i);
        p[i][0] = 20 + (token)i;
    }
    const uint64_t page = shape_page_bytes(&model_info(world.model)->shape);
    struct engine *e =
        start("pxa", (struct engine_opts){.n_parallel = 2, .kv_max_bytes = 8 * page});
    for (uint32_t i = 0; i < 3;
         i++) /* five pages each: the second needs what the first's slot has */
        assert_int_equal(ask(e, p[i], 300, 4).stop, STOP_LIMIT);
    const struct answer big = ask(e, p[0], 300, MAX_ANSWER);
    assert_int_equal(big.stop, STOP_LIMIT);
    engine_stop(e, 0);
}

static void any_allocation_may_fail(void **state)
{
    (void)state;
    token p[400], q[400];
    fill(p, COUNT_OF(p), 50);
    fill(q, COUNT_OF(q), 51);
    memcpy(q, p, 300 * sizeof *p);
    struct engine *e = start("none", (struct engine_opts){.n_parallel = 1});
    const struct answer want = ask(e, q, COUNT_OF(q), 6);
    engine_stop(e, 0);
    bool done = false;
    uint32_t n_failed = 0;
    for (uint64_t n = 1; !done; n++) {
        e = start("pxa-both", (struct engine_opts){.n_parallel = 1});
        (void)ask(e, p, COUNT_OF(p), 6);
        struct job_desc d = {.prompt = q, .n_prompt = COUNT_OF(q), .n_predict = 6};
        sampling_defaults(&d.sampling);
        d.sampling.temperature = 0;
        d.sampling.ignore_eos = true;
        struct job *j = NULL;
        struct err err;
        mem_fail_after(n);
        bool ok = engine_submit(e, &d, &j, &err) == RC_OK;
        if (ok) {
            const struct answer a = read_all(j);
            ok = a.stop == STOP_LIMIT;
            assert_true(ok || (a.stop == STOP_ERROR && a.err.rc == RC_NOMEM));
        }
        mem_fail_after(0);
        n_failed += !ok;
        done = ok && n > 40;
        const struct answer again = ask(e, q, COUNT_OF(q), 6);
        assert_int_equal(again.n, want.n);
        assert_memory_equal(again.tokens, want.tokens, want.n * sizeof *want.tokens);
        engine_stop(e, 0);
    }
    assert_true(n_failed > 5);
}

static void the_log_has_that_engines_lines_and_no_others_of_requests(void **state)
{
    (void)state;
    static const char *const want[] = {
        "slot is processing task |",
        "======== Cache: cache_size = 802, n_past0 =  600,",
        "| n_past = 600, slot.prompt.tokens.size() = 802, seq_id = 0, pos_min = 801, state_pos",
        "restored HYBRID context checkpoint took ",
        "(state_pos 801 -> 511, n_past = 512, size = ",
        "erased invalidated context checkpoint (pos_min = 794, pos_max = 794, size",
        " p0=512\n",
        "created context checkpoint 2 of 32 (pos_min = 639, pos_max = 639, n_tokens = 640,",
        ", prompt-end)\n",
        "\nprompt eval time = ",
        " /   288 tokens (",
        "slot released |"};
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);
    const struct logger lg = {.level = LOG_INFO, .out = f};
    token p[800];
    fill(p, COUNT_OF(p), 60);
    struct engine *e = start("pxa-both", (struct engine_opts){.n_parallel = 1, .lg = &lg});
    (void)ask(e, p, COUNT_OF(p), 3);
    for (uint32_t i = 600; i < COUNT_OF(p); i++)
        p[i] ^= 1;
    (void)ask(e, p, COUNT_OF(p), 3);
    struct job *j = submit(e, p, 64, -1); /* is cancelled: no timings */
    job_cancel(j);
    (void)read_all(j);
    engine_stop(e, 0);
    fclose(f);
    const char *at = strstr(text, "id_task=2");
    assert_non_null(at);
    for (at -= 100; *at != '\n'; at--)
        continue;
    for (size_t i = 0; i < COUNT_OF(want); i++) {
        const char *found = strstr(at, want[i]);
        if (!found)
            fail_msg("no \"%s\" in\n%s", want[i], at);
        at = found;
    }
    assert_null(strstr(text, "request 2:"));
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_have_the_same_bits_as_without_a_cache),
        cmocka_unit_test(an_interloper_erases_all_and_the_perfect_checkpoint_is_refused),
        cmocka_unit_test(pages_for_a_request_come_from_idle_slots),
        cmocka_unit_test(any_allocation_may_fail),
        cmocka_unit_test(the_log_has_that_engines_lines_and_no_others_of_requests),
    };
    return cmocka_run_group_tests(tests, world_open, world_close);
}
