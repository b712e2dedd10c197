#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/utf8.h"
#include "text/bpe.h"
#include "text/testing_int.h"

#include <cmocka.h>

static json_t *small;

static void encode(const struct vocab *v, const char *s, size_t n, bool parse, struct tokens *out)
{
    const struct bpe_opts o = {.parse_special = parse};
    struct err err;
    out->n = 0;
    if (bpe_encode(v, (struct str){s, n}, &o, out, &err))
        fail_msg("%s", err.msg);
}

static void every_vector_of_the_recipe_is_met(void **state)
{
    (void)state;
    static const char *const pres[] = {"qwen35", "qwen2", "llama-bpe", "gpt-2"};
    size_t n_met = 0;
    struct tokens got = {0};
    for (size_t p = 0; p < COUNT_OF(pres); p++) {
        struct test_vocab t;
        test_vocab_from(&t, small, pres[p]);
        size_t i, k;
        const json_t *c, *id;
        json_array_foreach(json_object_get(small, "cases"), i, c)
        {
            if (strcmp(json_string_value(json_object_get(c, "pre")), pres[p]) != 0)
                continue;
            const json_t *const text = json_object_get(c, "text");
            const json_t *const ids = json_object_get(c, "ids");
            encode(t.v, json_string_value(text), json_string_length(text),
                   json_is_true(json_object_get(c, "parse_special")), &got);
            if (got.n != json_array_size(ids))
                fail_msg("case %zu: %zu tokens, not %zu", i, got.n, json_array_size(ids));
            json_array_foreach(ids, k, id) if (got.v[k] != json_integer_value(id))
                fail_msg("case %zu: token %zu is %d", i, k, got.v[k]);
            n_met++;
        }
        test_vocab_close(&t);
    }
    assert_true(n_met > 200);
    tokens_release(&got);
}

/* Cuts specials out one after another, as the rule reads. */
static void cut_naively(const struct vocab *v, struct str s, const token *order, size_t n_order,
                        struct tokens *out)
{
    for (size_t i = 0; i < n_order; i++) {
        const struct str text = vocab_text(v, order[i]);
        const ptrdiff_t at = str_find(s, text, 0);
        if (at < 0)
            continue;
        /* Leftmost first: nothing longer is in s, so order goes on from i on both sides. */
        cut_naively(v, (struct str){s.p, (size_t)at}, order + i, n_order - i, out);
        assert_true(tokens_add(out, order[i]));
        const size_t end = (size_t)at + text.n;
        cut_naively(v, (struct str){s.p + end, s.n - end}, order + i, n_order - i, out);
        return;
    }
    struct tokens part = {0};
    encode(v, s.p, s.n, false, &part);
    assert_true(tokens_append(out, part.v, part.n));
    tokens_release(&part);
}

static int longest_text_first(const void *a, const void *b)
{
    const json_t *const tokens = json_object_get(small, "tokens");
    const token x = *(const token *)a, y = *(const token *)b;
    const size_t nx = json_string_length(json_array_get(tokens, (size_t)x));
    const size_t ny = json_string_length(json_array_get(tokens, (size_t)y));
    return nx != ny ? (nx > ny ? -1 : 1) : x - y;
}

static void overlapping_specials_are_cut_longest_first(void **state)
{
    (void)state;
    static const char *const parts[] = {
        "<|im", "_start|>", "<|im_start|>", "<|im_end|>", "im_start", "<",
        "|",    "think>",   "</",           "[UNK]",      "[PAD0]",   "x",
        "<|",   "=",        "==",           "\xff",       " "};
    struct test_vocab t;
    test_vocab_from(&t, small, "qwen35");
    token order[32];
    size_t n_order = 0;
    for (token i = 0; i < (token)vocab_size(t.v); i++)
        if (vocab_type(t.v, i) != TOKEN_NORMAL && vocab_type(t.v, i) != TOKEN_UNUSED)
            order[n_order++] = i;
    qsort(order, n_order, sizeof *order, longest_text_first);
    token user[32];
    size_t n_user = 0;
    for (size_t i = 0; i < n_order; i++)
        if (vocab_type(t.v, order[i]) == TOKEN_USER)
            user[n_user++] = order[i];

    struct rng rng = {test_seed()};
    struct tokens got = {0}, want = {0};
    struct buf s = BUF_INIT;
    for (int round = 0; round < 5000; round++) {
        buf_clear(&s);
        for (uint32_t n = rng_below(&rng, 10); n--;)
            buf_adds(&s, parts[rng_below(&rng, COUNT_OF(parts))]);
        const bool parse = rng_below(&rng, 2);
        encode(t.v, buf_str(&s), s.n, parse, &got);
        want.n = 0;
        cut_naively(t.v, (struct str){buf_str(&s), s.n}, parse ? order : user,
                    parse ? n_order : n_user, &want);
        if (got.n != want.n || (got.n && memcmp(got.v, want.v, got.n * sizeof *got.v) != 0))
            fail_msg("SEED=%llu round %d: \"%s\"", (unsigned long long)test_seed(), round,
                     buf_str(&s));
    }
    buf_release(&s);
    tokens_release(&got);
    tokens_release(&want);
    test_vocab_close(&t);
}

static void user_defined_tokens_match_without_parse_special(void **state)
{
    (void)state;
    struct test_vocab t;
    test_vocab_from(&t, small, "qwen35");
    struct tokens got = {0};
    encode(t.v, "<think>", 7, false, &got);
    assert_int_equal(got.n, 1);
    encode(t.v, "<|im_end|>", 10, false, &got);
    assert_true(got.n > 1);
    encode(t.v, "<|im_end|>", 10, true, &got);
    assert_int_equal(got.n, 1);
    assert_true(vocab_is_eog(t.v, got.v[0]));
    tokens_release(&got);
    test_vocab_close(&t);
}

static void stray_bytes_encode_as_replacement_characters(void **state)
{
    (void)state;
    struct test_vocab t;
    test_vocab_from(&t, small, "qwen35");
    struct tokens got = {0}, want = {0};
    encode(t.v,
           "a\xff"
           "b\xe2\x82",
           5, true, &got);
    encode(t.v,
           "a\xef\xbf\xbd"
           "b\xef\xbf\xbd\xef\xbf\xbd",
           11, true, &want);
    assert_int_equal(got.n, want.n);
    assert_memory_equal(got.v, want.v, got.n * sizeof *got.v);
    tokens_release(&got);
    tokens_release(&want);
    test_vocab_close(&t);
}

/* The spec's first 256 tokens with merges whose results are no tokens. */
static void a_merge_without_a_token_falls_back_to_bytes(void **state)
{
    (void)state;
    json_t *const spec = json_object();
    json_t *const tokens = json_array(), *const types = json_array();
    for (size_t i = 0; i < 256; i++) {
        json_array_append(tokens, json_array_get(json_object_get(small, "tokens"), i));
        json_array_append_new(types, json_integer(TOKEN_NORMAL));
    }
    json_array_append_new(tokens, json_string("abc"));
    json_array_append_new(types, json_integer(TOKEN_NORMAL));
    json_object_set_new(spec, "tokens", tokens);
    json_object_set_new(spec, "types", types);
    json_object_set_new(spec, "merges", json_pack("[sss]", "a b", "ab c", "x y"));
    struct test_vocab t;
    test_vocab_from(&t, spec, "qwen35");
    struct tokens got = {0};
    encode(t.v, "abc", 3, true, &got); /* through the ghost "ab" to a token */
    assert_int_equal(got.n, 1);
    assert_int_equal(got.v[0], 256);
    encode(t.v, "abxy", 4, true, &got); /* ghosts are left over */
    assert_int_equal(got.n, 4);
    for (size_t i = 0; i < 4; i++)
        assert_string_equal(json_string_value(json_array_get(tokens, (size_t)got.v[i])),
                            ((const char *[]){"a", "b", "x", "y"})[i]);
    assert_int_equal(vocab_find(t.v, str_of("ab")), -1);
    assert_int_equal(vocab_find(t.v, str_of("abc")), 256);
    tokens_release(&got);
    test_vocab_close(&t);
    json_decref(spec);
}

static void bos_comes_first_where_the_vocabulary_asks_for_it(void **state)
{
    (void)state;
    struct test_vocab t;
    test_vocab_from(&t, small, "llama-bpe"); /* asks, but has none */
    struct tokens got = {0};
    struct err err;
    assert_true(vocab_add_bos(t.v));
    assert_int_equal(
        bpe_encode(t.v, str_of("a"), &(struct bpe_opts){.add_special = true}, &got, &err), RC_OK);
    assert_int_equal(got.n, 1);
    t.v->bos = 7;
    assert_int_equal(
        bpe_encode(t.v, str_of("a"), &(struct bpe_opts){.add_special = true}, &got, &err), RC_OK);
    assert_int_equal(got.n, 3);
    assert_int_equal(got.v[1], 7);
    tokens_release(&got);
    test_vocab_close(&t);
}

static void out_of_memory_leaves_the_tokens_as_they_were(void **state)
{
    (void)state;
    struct test_vocab t;
    test_vocab_from(&t, small, "llama-bpe");
    const struct bpe_opts o = {.parse_special = true};
    const struct str text = str_of("<|im_start|>user\nThe cache\xff keeps one<|im_end|>\n");
    struct tokens out = {0};
    struct err err;
    assert_true(tokens_add(&out, 5));
    enum rc rc = RC_NOMEM;
    uint64_t n = 1;
    for (; rc == RC_NOMEM; n++) {
        assert_int_equal(out.n, 1);
        mem_fail_after(n);
        rc = bpe_encode(t.v, text, &o, &out, &err);
        mem_fail_after(0);
    }
    assert_int_equal(rc, RC_OK);
    assert_true(n > 4);
    tokens_release(&out);

    struct vocab *v;
    for (n = 1, rc = RC_NOMEM; rc == RC_NOMEM; n++) {
        mem_fail_after(n);
        rc = vocab_open(t.g, &v, &err);
        mem_fail_after(0);
    }
    assert_int_equal(rc, RC_OK);
    vocab_close(v);
    test_vocab_close(&t);
}

static double seconds_for(const struct vocab *v, const char *s, size_t n)
{
    struct tokens out = {0};
    const uint64_t begun = clock_cpu_ns();
    encode(v, s, n, true, &out);
    const uint64_t took = clock_cpu_ns() - begun;
    tokens_release(&out);
    return (double)took * 1e-9;
}

/* What is quadratic takes sixteen times as long for four times the text; what is n log n takes little
 * more than four.  CPU time, and a wide margin for caches that no longer hold the piece. */
static void time_grows_with_the_text_and_no_faster(void **state)
{
    (void)state;
    struct test_vocab t;
    test_vocab_from(&t, small, "qwen35");
    const size_t n = 1 << 18;
    char *const s = mem_try(n);
    assert_non_null(s);
    struct rng rng = {test_seed()};
    for (int kind = 0; kind < 5; kind++) {
        for (size_t i = 0; i < n; i++)
            s[i] = kind == 0   ? '='
                   : kind == 1 ? (char)rng_below(&rng, 256)
                   : kind == 2 ? ' '
                   : kind == 3 ? "<|im_start|>"[i % 12]
                               : (char)('a' + rng_below(&rng, 26));
        const double quarter = seconds_for(t.v, s, n / 4), whole = seconds_for(t.v, s, n);
        if (whole > 10 * quarter + 0.02)
            fail_msg("kind %d: %.3f s for a quarter, %.3f s for all", kind, quarter, whole);
    }
    mem_free(s);
    test_vocab_close(&t);
}

int main(void)
{
    small = test_json(HOUSE_SOURCE_DIR "/tests/golden/tokenizer/small.json");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_vector_of_the_recipe_is_met),
        cmocka_unit_test(overlapping_specials_are_cut_longest_first),
        cmocka_unit_test(user_defined_tokens_match_without_parse_special),
        cmocka_unit_test(stray_bytes_encode_as_replacement_characters),
        cmocka_unit_test(a_merge_without_a_token_falls_back_to_bytes),
        cmocka_unit_test(bos_comes_first_where_the_vocabulary_asks_for_it),
        cmocka_unit_test(out_of_memory_leaves_the_tokens_as_they_were),
        cmocka_unit_test(time_grows_with_the_text_and_no_faster),
    };
    const int bad = cmocka_run_group_tests(tests, NULL, NULL);
    json_decref(small);
    return bad;
}
