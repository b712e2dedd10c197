/* What is asked for twice is compiled once; what is kept stays within bounds; threads may ask at once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "text/grammar_cache.h"
#include "text/testing_int.h"

#include <cmocka.h>

static struct test_vocab vocab;

static struct grammar *get(struct grammar_cache *c, const char *gbnf)
{
    const struct grammar_spec spec = {.gbnf = str_of(gbnf)};
    struct grammar *g;
    struct err err;
    if (grammar_cache_get(c, &spec, &g, &err))
        fail_msg("%s: %s", gbnf, err.msg);
    return g;
}

static struct grammar *get_json(struct grammar_cache *c, const char *schema, const char *tools,
                                bool parallel)
{
    json_t *const s = schema ? json_loads(schema, JSON_DECODE_ANY, NULL) : NULL;
    json_t *const t = tools ? json_loads(tools, 0, NULL) : NULL;
    const struct grammar_spec spec = {.schema = s, .tools = t, .parallel = parallel};
    struct grammar *g;
    struct err err;
    if (grammar_cache_get(c, &spec, &g, &err))
        fail_msg("%s %s: %s", schema, tools, err.msg);
    json_decref(s);
    json_decref(t);
    return g;
}

static void the_same_schema_is_compiled_once(void **state)
{
    (void)state;
    static const char tools[] = "[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]";
    struct grammar_cache *const c = grammar_cache_new(vocab.v, 0);
    struct grammar *g[7] = {get_json(c, "{\"type\":\"integer\"}", NULL, false),
                            get_json(c, " {\"type\" : \"integer\"}", NULL, false),
                            get_json(c, "{\"type\":\"null\"}", NULL, false),
                            get_json(c, NULL, tools, false),
                            get_json(c, NULL, tools, true),
                            get_json(c, "{\"type\":\"null\"}", tools, false),
                            get_json(c, NULL, tools, false)};
    for (size_t i = 0; i < COUNT_OF(g); i++)
        for (size_t k = 0; k < i; k++)
            assert_int_equal(g[i] == g[k], (i == 1 && k == 0) || (i == 6 && k == 3));
    for (size_t i = 0; i < COUNT_OF(g); i++)
        grammar_free(g[i]);
    grammar_cache_free(c);
}

static void what_is_kept_has_a_bound_and_the_oldest_goes(void **state)
{
    (void)state;
    struct grammar_cache *const c = grammar_cache_new(vocab.v, 0);
    struct grammar *const first = get(c, "root ::= \"first\"");
    struct grammar *const second = get(c, "root ::= \"second\"");
    for (int i = 0; i < 62; i++) {
        char text[64];
        snprintf(text, sizeof text, "root ::= \"%d\"", i);
        grammar_free(get(c, text));
    }
    struct grammar *g = get(c, "root ::= \"first\""); /* used again: now the second is the oldest */
    assert_ptr_equal(g, first);
    grammar_free(g);
    grammar_free(get(c, "root ::= \"one more\""));
    g = get(c, "root ::= \"first\"");
    assert_ptr_equal(g, first);
    grammar_free(g);
    g = get(c, "root ::= \"second\"");
    assert_ptr_not_equal(g, second); /* which is still ours, so that no address is used twice */
    grammar_free(g);
    grammar_free(second);
    grammar_free(first);
    grammar_cache_free(c);
    /* by bytes: room for no more than one */
    struct grammar_cache *const small = grammar_cache_new(vocab.v, 1);
    struct grammar *const a = get(small, "root ::= \"a\"");
    struct grammar *const b = get(small, "root ::= \"b\"");
    g = get(small, "root ::= \"b\"");
    assert_ptr_equal(g, b);
    grammar_free(g);
    g = get(small, "root ::= \"a\"");
    assert_ptr_not_equal(g, a);
    grammar_free(g);
    grammar_free(a);
    grammar_free(b);
    grammar_cache_free(small);
}

static void a_grammar_outlives_the_cache(void **state)
{
    (void)state;
    struct grammar_cache *const c = grammar_cache_new(vocab.v, 0);
    struct grammar *const g = get(c, "root ::= \"end\"");
    struct grammar_state *s;
    const uint64_t *bits;
    grammar_cache_free(c);
    assert_int_equal(grammar_state_new(g, NULL, &s, NULL), RC_OK);
    const token t = vocab_find(vocab.v, str_of("end"));
    assert_int_equal(grammar_mask(s, &bits, NULL), RC_OK);
    assert_true(bits[t / 64] >> t % 64 & 1);
    assert_int_equal(grammar_accept(s, t, NULL), RC_OK);
    assert_true(grammar_must_end(s));
    grammar_state_free(s);
    grammar_free(g);
}

static void an_error_is_told_and_not_kept(void **state)
{
    (void)state;
    struct grammar_cache *const c = grammar_cache_new(vocab.v, 0);
    struct grammar *g;
    struct err err;
    for (int i = 0; i < 2; i++) {
        const struct grammar_spec spec = {.gbnf = str_of("root := 1")};
        assert_int_equal(grammar_cache_get(c, &spec, &g, &err), RC_ARG);
        assert_non_null(strstr(err.msg, "line 1"));
    }
    grammar_cache_free(c);
}

static void without_memory_nothing_is_lost(void **state)
{
    (void)state;
    bool done = false;
    for (uint64_t n = 1; !done && n < 2000; n++) {
        struct grammar_cache *const c = grammar_cache_new(vocab.v, 0);
        const struct grammar_spec spec = {.gbnf = str_of("root ::= [a-z]+ \"x\"?")};
        struct grammar *g;
        struct err err;
        mem_fail_after(n);
        const enum rc rc = grammar_cache_get(c, &spec, &g, &err);
        mem_fail_after(0);
        assert_true(rc == RC_OK || rc == RC_NOMEM);
        done = !rc;
        if (!rc)
            grammar_free(g);
        grammar_cache_free(c);
    }
    assert_true(done);
}

static void *ask(void *arg)
{
    for (int i = 0; i < 100; i++) {
        char text[64];
        snprintf(text, sizeof text, "root ::= \"%d\"", i % 7);
        const struct grammar_spec spec = {.gbnf = str_of(text)};
        struct grammar *g;
        if (grammar_cache_get(arg, &spec, &g, NULL))
            return arg;
        grammar_free(g);
    }
    return NULL;
}

static void threads_may_ask_at_once(void **state)
{
    (void)state;
    struct grammar_cache *const c = grammar_cache_new(vocab.v, 0);
    pthread_t threads[4];
    for (size_t i = 0; i < COUNT_OF(threads); i++)
        assert_int_equal(pthread_create(&threads[i], NULL, ask, c), 0);
    for (size_t i = 0; i < COUNT_OF(threads); i++) {
        void *failed;
        assert_int_equal(pthread_join(threads[i], &failed), 0);
        assert_null(failed);
    }
    grammar_cache_free(c);
}

int main(void)
{
    json_t *const small = test_json(HOUSE_SOURCE_DIR "/tests/golden/tokenizer/small.json");
    test_vocab_from(&vocab, small, "qwen35");
    json_decref(small);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_schema_is_compiled_once),
        cmocka_unit_test(what_is_kept_has_a_bound_and_the_oldest_goes),
        cmocka_unit_test(a_grammar_outlives_the_cache),
        cmocka_unit_test(an_error_is_told_and_not_kept),
        cmocka_unit_test(without_memory_nothing_is_lost),
        cmocka_unit_test(threads_may_ask_at_once),
    };
    const int bad = cmocka_run_group_tests(tests, NULL, NULL);
    test_vocab_close(&vocab);
    return bad;
}
