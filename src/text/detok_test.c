#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/utf8.h"
#include "text/bpe.h"
#include "text/detok.h"
#include "text/testing_int.h"

#include <cmocka.h>

static struct test_vocab t;

static token byte(unsigned char b)
{
    return t.v->byte_token[b];
}

static void a_character_comes_only_when_it_is_whole(void **state)
{
    (void)state;
    static const unsigned char s[] = "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80";
    static const char *const want[] = {"a",      "", "\u00e9", "", "",
                                       "\u20ac", "", "",       "", "\U0001f600"};
    struct detok d;
    struct buf out = BUF_INIT;
    detok_init(&d, false);
    for (size_t i = 0; i < COUNT_OF(want); i++) {
        buf_clear(&out);
        detok_add(&d, t.v, byte(s[i]), &out);
        assert_string_equal(buf_str(&out), want[i]);
    }
    buf_clear(&out);
    detok_finish(&d, &out);
    assert_int_equal(out.n, 0);
    buf_release(&out);
}

static void a_broken_character_is_replaced_and_what_follows_kept(void **state)
{
    (void)state;
    struct detok d;
    struct buf out = BUF_INIT;
    detok_init(&d, false);
    detok_add(&d, t.v, byte(0xe2), &out);
    detok_add(&d, t.v, byte(0x82), &out);
    assert_int_equal(out.n, 0);
    detok_add(&d, t.v, byte('x'), &out);
    assert_string_equal(buf_str(&out), "\ufffd\ufffdx");
    buf_clear(&out);
    detok_add(&d, t.v, byte(0xf0), &out);
    detok_add(&d, t.v, byte(0xf0), &out);
    assert_string_equal(buf_str(&out), "\ufffd");
    detok_finish(&d, &out);
    assert_string_equal(buf_str(&out), "\ufffd\ufffd");
    buf_release(&out);
}

static void control_tokens_show_only_on_request(void **state)
{
    (void)state;
    const token ctl = vocab_find(t.v, str_of("<|im_end|>")),
                user = vocab_find(t.v, str_of("<think>"));
    const token unused = vocab_find(t.v, str_of("[PAD0]"));
    assert_true(ctl >= 0 && user >= 0 && unused >= 0);
    for (int special = 0; special < 2; special++) {
        struct detok d;
        struct buf out = BUF_INIT;
        detok_init(&d, special);
        detok_add(&d, t.v, ctl, &out);
        detok_add(&d, t.v, user, &out);
        detok_add(&d, t.v, unused, &out);
        assert_string_equal(buf_str(&out), special ? "<|im_end|><think>" : "<think>");
        buf_release(&out);
    }
}

static void any_tokens_give_valid_utf8_after_each_one(void **state)
{
    (void)state;
    struct rng rng = {test_seed()};
    struct buf out = BUF_INIT;
    for (int round = 0; round < 2000; round++) {
        struct detok d;
        detok_init(&d, true);
        buf_clear(&out);
        for (uint32_t n = rng_below(&rng, 30); n--;) {
            /* half of them high bytes, which sequences are made of */
            const token x = rng_below(&rng, 2) ? byte((unsigned char)(0x80 + rng_below(&rng, 128)))
                                               : (token)rng_below(&rng, vocab_size(t.v));
            detok_add(&d, t.v, x, &out);
            if (!utf8_valid(buf_str(&out), out.n))
                fail_msg("SEED=%llu round %d", (unsigned long long)test_seed(), round);
        }
        detok_finish(&d, &out);
        assert_true(utf8_valid(buf_str(&out), out.n));
    }
    buf_release(&out);
}

static void encoding_and_back_is_the_same_text(void **state)
{
    (void)state;
    struct rng rng = {test_seed()};
    struct buf text = BUF_INIT, back = BUF_INIT;
    struct tokens ids = {0};
    for (int round = 0; round < 2000; round++) {
        buf_clear(&text);
        for (uint32_t n = rng_below(&rng, 40); n--;) {
            static const uint32_t tops[] = {0x80, 0x800, 0xd800, 0x110000};
            const uint32_t top = tops[rng_below(&rng, 4)];
            const uint32_t cp = rng_below(&rng, top);
            char c[4];
            if (cp < 0xd800 || cp > 0xdfff)
                buf_add(&text, c, utf8_encode(cp, c));
        }
        ids.n = 0;
        struct err err;
        assert_int_equal(bpe_encode(t.v, (struct str){text.p, text.n},
                                    &(struct bpe_opts){.parse_special = true}, &ids, &err),
                         RC_OK);
        struct detok d;
        detok_init(&d, true);
        buf_clear(&back);
        for (size_t i = 0; i < ids.n; i++)
            detok_add(&d, t.v, ids.v[i], &back);
        assert_int_equal(d.n_held, 0);
        assert_int_equal(back.n, text.n);
        assert_memory_equal(buf_str(&back), buf_str(&text), text.n);
    }
    tokens_release(&ids);
    buf_release(&text);
    buf_release(&back);
}

int main(void)
{
    json_t *const small = test_json(HOUSE_SOURCE_DIR "/tests/golden/tokenizer/small.json");
    test_vocab_from(&t, small, "qwen35");
    json_decref(small);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_character_comes_only_when_it_is_whole),
        cmocka_unit_test(a_broken_character_is_replaced_and_what_follows_kept),
        cmocka_unit_test(control_tokens_show_only_on_request),
        cmocka_unit_test(any_tokens_give_valid_utf8_after_each_one),
        cmocka_unit_test(encoding_and_back_is_the_same_text),
    };
    const int bad = cmocka_run_group_tests(tests, NULL, NULL);
    test_vocab_close(&t);
    return bad;
}
