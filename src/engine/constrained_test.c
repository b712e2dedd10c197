/* Answers under a grammar, over a tiny model of random weights: what it says would be noise, so all that is
 * right about an answer comes from the mask. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "base/mem.h"
#include "base/rng.h"
#include "engine/engine.h"
#include "model/maker.h"
#include "text/grammar_cache.h"
#include "engine/world_int.h"

static struct grammar_cache *grammars;

static int open_world(void **state)
{
    if (world_open(state))
        return 1;
    grammars = grammar_cache_new(world.vocab, 0);
    return 0;
}

static int close_world(void **state)
{
    grammar_cache_free(grammars);
    return world_close(state);
}

/* ---- helpers --------------------------------------------------------------------------------- */

static const struct logger quiet = {.level = LOG_INFO};

typedef token sayer(void *ctx, const struct job_desc *d, uint32_t n);

static struct engine *start(sayer *say)
{
    const struct engine_opts o = {.model = world.model,
                                  .vocab = world.vocab,
                                  .lg = &quiet,
                                  .n_parallel = 4,
                                  .n_ctx = 2048,
                                  .cache_ram_bytes = 64 * MIB,
                                  .cache_step = 64,
                                  .say = say};
    struct engine *e;
    struct err err;
    if (engine_start(&o, &e, &err))
        fail_msg("%s", err.msg);
    return e;
}

static struct grammar *get(const char *gbnf, const char *schema)
{
    json_t *const s = schema ? json_loads(schema, 0, NULL) : NULL;
    const struct grammar_spec spec = {.gbnf = str_of(gbnf ? gbnf : ""), .schema = s};
    struct grammar *g;
    struct err err;
    if (grammar_cache_get(grammars, &spec, &g, &err))
        fail_msg("%s", err.msg);
    json_decref(s);
    return g;
}

enum { N_PROMPT = 80 };

static struct job_desc ask_for(token *prompt, uint64_t seed, struct grammar *g, float temperature)
{
    struct rng rng = {seed};
    struct job_desc d = {.prompt = prompt, .n_prompt = N_PROMPT, .n_predict = -1, .grammar = g};
    for (uint32_t i = 0; i < N_PROMPT;) {
        const token t = (token)rng_below(&rng, vocab_size(world.vocab));
        if (vocab_type(world.vocab, t) == TOKEN_NORMAL)
            prompt[i++] = t;
    }
    sampling_defaults(&d.sampling);
    d.sampling.temperature = temperature;
    d.sampling.seed = seed;
    d.sampling.has_seed = true;
    return d;
}

struct answer {
    struct buf text;
    uint32_t n;
    enum stop_kind stop;
    struct err err;
    uint32_t n_reused;
};

static struct job *submit(struct engine *e, const struct job_desc *d)
{
    struct job *j;
    struct err err;
    if (engine_submit(e, d, &j, &err))
        fail_msg("%s", err.msg);
    return j;
}

static struct answer read_all(struct job *j)
{
    struct answer a = {.text = BUF_INIT};
    for (bool last = false; !last;) {
        struct piece *p = job_next(j, UINT64_MAX);
        assert_non_null(p);
        buf_add(&a.text, p->text.p, p->text.n);
        a.n += p->n_tokens;
        assert_true(!p->n_probs || p->probs);
        last = p->last;
        a.stop = p->stop;
        a.err = p->err;
        a.n_reused = p->timings.n_reused;
        piece_free(p);
    }
    job_free(j);
    return a;
}

static struct answer ask(struct engine *e, const struct job_desc *d)
{
    return read_all(submit(e, d));
}

/* What the schema below says, checked by hand. */
static const char person[] =
    "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":12},"
    "\"age\":{\"type\":\"integer\",\"minimum\":0,\"maximum\":150},\"tags\":{\"type\":\"array\","
    "\"items\":{\"enum\":[\"a\",\"b\",null]},\"maxItems\":3}},"
    "\"required\":[\"name\",\"age\",\"tags\"],\"additionalProperties\":false}";

static void assert_person(const struct answer *a)
{
    json_error_t e;
    json_t *const v = json_loadb(a->text.p, a->text.n, JSON_ALLOW_NUL, &e);
    if (!v)
        fail_msg("%s: %s", e.text, buf_str(&a->text));
    const json_t *const age = json_object_get(v, "age"), *const tags = json_object_get(v, "tags");
    assert_int_equal(json_object_size(v), 3);
    assert_true(json_is_string(json_object_get(v, "name")));
    assert_true(json_string_length(json_object_get(v, "name")) <= 4 * 12);
    assert_true(json_is_integer(age) && json_integer_value(age) >= 0 &&
                json_integer_value(age) <= 150);
    assert_true(json_is_array(tags) && json_array_size(tags) <= 3);
    for (size_t i = 0; i < json_array_size(tags); i++) {
        const json_t *const t = json_array_get(tags, i);
        assert_true(json_is_null(t) || !strcmp(json_string_value(t), "a") ||
                    !strcmp(json_string_value(t), "b"));
    }
    json_decref(v);
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void every_answer_is_what_the_schema_says(void **state)
{
    (void)state;
    struct grammar *const g = get(NULL, person);
    struct engine *const e = start(NULL);
    token prompt[N_PROMPT];
    for (uint64_t seed = 0; seed < 24; seed++) {
        struct job_desc d = ask_for(prompt, seed, g, seed % 4 ? 1.5f : 0);
        const struct logit_bias bias = {vocab_find(world.vocab, str_of("a")), 3};
        d.bias = &bias;
        d.n_bias = 1;
        d.sampling.top_k = seed % 3 ? 40 : 0;
        d.sampling.repeat_penalty = seed % 2 ? 1.2f : 1;
        d.sampling.ignore_eos =
            seed % 5 == 0; /* it ends all the same: there is nothing left to say */
        d.n_probs = (uint32_t)(seed % 3);
        struct answer a = ask(e, &d);
        assert_int_equal(a.stop, STOP_EOG);
        assert_person(&a);
        buf_release(&a.text);
    }
    engine_check(e);
    engine_stop(e, 0);
    grammar_free(g);
}

static void it_is_the_same_cold_warm_and_among_others_under_the_same_grammar(void **state)
{
    (void)state;
    token prompt[N_PROMPT], other[3][N_PROMPT];
    struct grammar *const g = get(NULL, person);
    const struct job_desc d = ask_for(prompt, 1, g, 1.2f);
    struct engine *e = start(NULL);
    struct answer want = ask(e, &d);
    struct answer warm = ask(e, &d);
    assert_true(warm.n_reused > 0);
    assert_string_equal(buf_str(&want.text), buf_str(&warm.text));
    struct job *jobs[3];
    for (uint32_t i = 0; i < 3; i++) {
        const struct job_desc o = ask_for(other[i], 100 + i, g, 1);
        jobs[i] = submit(e, &o);
    }
    struct answer among = ask(e, &d);
    assert_string_equal(buf_str(&want.text), buf_str(&among.text));
    for (uint32_t i = 0; i < 3; i++) {
        struct answer a = read_all(jobs[i]);
        assert_person(&a);
        buf_release(&a.text);
    }
    engine_stop(e, 0);
    buf_release(&want.text);
    buf_release(&warm.text);
    buf_release(&among.text);
    grammar_free(g);
}

/* The 6th token closes the thinking. */
static token close_thinking(void *ctx, const struct job_desc *d, uint32_t n)
{
    (void)ctx;
    (void)d;
    return n == 5 ? vocab_find(world.vocab, str_of("</think>")) : -1;
}

static void it_can_begin_behind_the_thinking_which_does_not_end_the_answer(void **state)
{
    (void)state;
    struct grammar *const g = get(NULL, person);
    struct engine *const e = start(close_thinking);
    token prompt[N_PROMPT];
    const struct logit_bias bias = {vocab_eos(world.vocab), 100}; /* would end at once */
    for (uint64_t seed = 0; seed < 4; seed++) {
        struct job_desc d = ask_for(prompt, seed, g, 1);
        d.grammar_after = "</think>";
        d.bias = &bias;
        d.n_bias = 1;
        d.special = true; /* the tag in the text */
        struct answer a = ask(e, &d);
        assert_int_equal(a.stop, STOP_EOG);
        const char *const at = strstr(buf_str(&a.text), "</think>");
        assert_non_null(at);
        buf_eat(&a.text, (size_t)(at - buf_str(&a.text)) + strlen("</think>"));
        assert_person(&a);
        buf_release(&a.text);
    }
    engine_stop(e, 0);
    grammar_free(g);
}

static void it_ends_by_itself_only_where_the_grammar_may(void **state)
{
    (void)state;
    struct grammar *const g = get("root ::= [a-z] [a-z] [a-z] [a-z]*", NULL);
    struct engine *const e = start(NULL);
    token prompt[N_PROMPT];
    const struct logit_bias bias = {vocab_eos(world.vocab), 100};
    for (uint64_t seed = 0; seed < 4; seed++) {
        struct job_desc d = ask_for(prompt, seed, g, 1);
        d.bias = &bias;
        d.n_bias = 1;
        struct answer a = ask(e, &d);
        assert_int_equal(a.stop, STOP_EOG);
        assert_true(a.text.n >= 3);
        assert_int_equal(strspn(buf_str(&a.text), "abcdefghijklmnopqrstuvwxyz"), a.text.n);
        buf_release(&a.text);
    }
    engine_stop(e, 0);
    grammar_free(g);
}

static void stop_strings_and_limits_end_it_as_ever(void **state)
{
    (void)state;
    struct grammar *const g = get("root ::= (\"ab\" | \"cd\")* \";\" root", NULL);
    struct engine *const e = start(NULL);
    token prompt[N_PROMPT];
    struct job_desc d = ask_for(prompt, 3, g, 1);
    static const char *const stop[] = {";"};
    d.n_predict = 30; /* this grammar has no end */
    struct answer a = ask(e, &d);
    assert_int_equal(a.stop, STOP_LIMIT);
    assert_int_equal(a.n, 30);
    assert_int_equal(strspn(buf_str(&a.text), "abcd;"), a.text.n);
    buf_release(&a.text);
    d.n_predict = -1;
    a = ask(e, &d);
    assert_int_equal(a.stop, STOP_CONTEXT);
    buf_release(&a.text);
    d.stop = stop;
    d.n_stop = 1;
    a = ask(e, &d);
    assert_int_equal(a.stop, STOP_WORD);
    assert_int_equal(strspn(buf_str(&a.text), "abcd"), a.text.n);
    buf_release(&a.text);
    engine_stop(e, 0);
    grammar_free(g);
}

static void a_grammar_that_leads_nowhere_is_an_error(void **state)
{
    (void)state;
    struct grammar *const g = get("root ::= \"0\" [a-z]", NULL);
    struct engine *const e = start(NULL);
    token prompt[N_PROMPT];
    struct job_desc d = ask_for(prompt, 1, g, 1);
    const struct logit_bias bias = {vocab_find(world.vocab, str_of("0")), -INFINITY};
    d.bias = &bias;
    d.n_bias = 1;
    struct answer a = ask(e, &d);
    assert_int_equal(a.stop, STOP_ERROR);
    assert_non_null(strstr(a.err.msg, "grammar"));
    buf_release(&a.text);
    d.n_bias = 0; /* and the next one is well */
    a = ask(e, &d);
    assert_int_equal(a.stop, STOP_EOG);
    buf_release(&a.text);
    engine_check(e);
    engine_stop(e, 0);
    grammar_free(g);
}

static void cancelled_it_leaves_nothing(void **state)
{
    (void)state;
    struct engine *const e = start(NULL);
    token prompt[N_PROMPT];
    for (int i = 0; i < 8; i++) {
        struct grammar *const g = get("root ::= [a-z]* \"0\" root", NULL);
        const struct job_desc d = ask_for(prompt, (uint64_t)i, g, 1);
        struct job *const j = submit(e, &d);
        grammar_free(g); /* the job has its own */
        for (int k = 0; k < i; k++)
            piece_free(job_next(j, UINT64_MAX));
        job_free(j);
    }
    engine_stop(e, 0);
}

static void any_allocation_may_fail(void **state)
{
    (void)state;
    struct grammar *const g = get(NULL, person);
    token prompt[N_PROMPT];
    struct job_desc d = ask_for(prompt, 1, g, 1);
    d.grammar_after = "x";
    d.n_predict = 6;
    struct engine *const e = start(NULL);
    for (uint64_t n = 1; n < 60; n++) {
        struct job *j;
        mem_fail_after(n);
        if (!engine_submit(e, &d, &j, NULL)) {
            struct answer a = read_all(j);
            assert_true(a.stop == STOP_LIMIT || a.stop == STOP_ERROR);
            mem_fail_after(0);
            buf_release(&a.text);
        }
        mem_fail_after(0);
    }
    engine_check(e);
    engine_stop(e, 0);
    grammar_free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_answer_is_what_the_schema_says),
        cmocka_unit_test(it_is_the_same_cold_warm_and_among_others_under_the_same_grammar),
        cmocka_unit_test(it_can_begin_behind_the_thinking_which_does_not_end_the_answer),
        cmocka_unit_test(it_ends_by_itself_only_where_the_grammar_may),
        cmocka_unit_test(stop_strings_and_limits_end_it_as_ever),
        cmocka_unit_test(a_grammar_that_leads_nowhere_is_an_error),
        cmocka_unit_test(cancelled_it_leaves_nothing),
        cmocka_unit_test(any_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, open_world, close_world);
}
