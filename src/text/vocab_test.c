#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "text/testing_int.h"

#include <cmocka.h>

/* What an image holds; changed from case to case. */
struct image {
    const char *model, *pre;
    bool tokens, merges;
    int skip_byte; /* its token is left out, -1: none */
    const char *merge;
    uint32_t n_types;
    uint32_t type0, eos;
};

static const struct image sound = {
    .model = "gpt2",
    .pre = "qwen2",
    .tokens = true,
    .merges = true,
    .skip_byte = -1,
    .merge = "a b",
    .n_types = 257,
    .type0 = TOKEN_NORMAL,
    .eos = 256,
};

static enum rc open_image(const struct image *im, char msg[256])
{
    struct test_gguf t = {0};
    if (im->model)
        test_key_str(&t, "tokenizer.ggml.model", im->model);
    if (im->pre)
        test_key_str(&t, "tokenizer.ggml.pre", im->pre);
    if (im->tokens) {
        test_key_arr(&t, "tokenizer.ggml.tokens", GGUF_STR, 257);
        for (int b = 0; b < 257; b++) {
            char c[4];
            if (b == im->skip_byte || b == 256)
                test_put_str(&t.b, "ab", 2);
            else
                test_put_str(&t.b, c, utf8_encode(alphabet_char((uint8_t)b), c));
        }
    }
    if (im->merges) {
        test_key_arr(&t, "tokenizer.ggml.merges", GGUF_STR, 1);
        test_put_str(&t.b, im->merge, strlen(im->merge));
    }
    test_key_arr(&t, "tokenizer.ggml.token_type", GGUF_I32, im->n_types);
    for (uint32_t i = 0; i < im->n_types; i++)
        test_put(&t.b, i ? TOKEN_NORMAL : im->type0, 4);
    test_key_u32(&t, "tokenizer.ggml.eos_token_id", im->eos);
    struct gguf *g = NULL;
    struct vocab *v = NULL;
    struct err err = {0};
    if (test_gguf_open(&t, &g, &err))
        fail_msg("%s", err.msg);
    const enum rc rc = vocab_open(g, &v, &err);
    snprintf(msg, 256, "%s", err.msg);
    vocab_close(v);
    gguf_close(g);
    buf_release(&t.b);
    return rc;
}

static void expect(struct image im, enum rc want, const char *says)
{
    char msg[256];
    assert_int_equal(open_image(&im, msg), want);
    if (!strstr(msg, says))
        fail_msg("\"%s\" does not say \"%s\"", msg, says);
}

#define WITH(...)                                                                                  \
    ({                                                                                             \
        struct image im_ = sound;                                                                  \
        im_ __VA_ARGS__;                                                                           \
        im_;                                                                                       \
    })

static void an_unsound_vocabulary_is_refused_by_name(void **state)
{
    (void)state;
    char msg[256];
    assert_int_equal(open_image(&sound, msg), RC_OK);
    expect(WITH(.model = NULL), RC_FORMAT, "tokenizer.ggml.model");
    expect(WITH(.model = "llama"), RC_UNSUPPORTED, "\"llama\"");
    expect(WITH(.pre = NULL), RC_FORMAT, "tokenizer.ggml.pre");
    expect(WITH(.pre = "bert"), RC_UNSUPPORTED, "known are qwen35");
    expect(WITH(.tokens = false), RC_FORMAT, "tokenizer.ggml.tokens is missing");
    expect(WITH(.merges = false), RC_FORMAT, "tokenizer.ggml.merges is missing");
    expect(WITH(.skip_byte = 10), RC_FORMAT, "byte 0x0A");
    expect(WITH(.merge = "ab"), RC_FORMAT, "merges[0]");
    expect(WITH(.merge = " "), RC_FORMAT, "merges[0]");
    expect(WITH(.n_types = 5), RC_FORMAT, "5 entries for 257 tokens");
    expect(WITH(.type0 = 7), RC_FORMAT, "token_type[0]");
    expect(WITH(.eos = 257), RC_FORMAT, "eos_token_id is 257");
}

static void the_alphabet_is_a_bijection(void **state)
{
    (void)state;
    for (int b = 0; b < 256; b++)
        assert_int_equal(alphabet_byte(alphabet_char((uint8_t)b)), b);
    int n = 0;
    for (uint32_t cp = 0; cp < 0x200; cp++)
        n += alphabet_byte(cp) >= 0;
    assert_int_equal(n, 256);
    assert_int_equal(alphabet_char(' '), 0x120);
    assert_int_equal(alphabet_char('\n'), 0x10a);
    assert_int_equal(alphabet_char(0xad), 0x143);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_unsound_vocabulary_is_refused_by_name),
        cmocka_unit_test(the_alphabet_is_a_bijection),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
