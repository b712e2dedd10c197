/* Against the vectors beside the specification, which other engines were compared with. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "text/bpe.h"
#include "text/detok.h"
#include "text/testing_int.h"

#include <cmocka.h>

#define GOLDEN HOUSE_SHARED_DIR "/golden/"

static json_t *load_or_skip(const char *path)
{
    json_t *const j = test_json(path);
    if (!j) {
        print_message("%s is absent: skipped\n", path);
        skip();
    }
    return j;
}

static size_t from_hex(const char *hex, char *out)
{
    size_t n = 0;
    for (; hex[0]; hex += 2) {
        const char two[3] = {hex[0], hex[1], 0};
        char *end;
        out[n++] = (char)strtoul(two, &end, 16);
        assert_int_equal(*end, 0);
    }
    return n;
}

static void tiny_gguf_tokenises_as_golden(void **state)
{
    (void)state;
    json_t *const j = load_or_skip(GOLDEN "tokenizer.json");
    struct gguf *g = NULL;
    struct vocab *v = NULL;
    struct err err;
    if (gguf_open(GOLDEN "tiny.gguf", &g, &err) || vocab_open(g, &v, &err))
        fail_msg("%s", err.msg);
    struct tokens got = {0};
    size_t i, k;
    const json_t *c, *x;
    json_array_foreach(json_object_get(j, "cases"), i, c)
    {
        const json_t *const text = json_object_get(c, "text"), *const ids =
                                                                   json_object_get(c, "ids");
        const struct bpe_opts o = {.parse_special =
                                       json_is_true(json_object_get(c, "parse_special"))};
        got.n = 0;
        if (bpe_encode(v, (struct str){json_string_value(text), json_string_length(text)}, &o, &got,
                       &err))
            fail_msg("%s", err.msg);
        if (got.n != json_array_size(ids))
            fail_msg("case %zu: %zu tokens, not %zu", i, got.n, json_array_size(ids));
        json_array_foreach(ids, k, x) if (got.v[k] != json_integer_value(x))
            fail_msg("case %zu: token %zu is %d", i, k, got.v[k]);
    }
    assert_true(i > 100);
    json_array_foreach(json_object_get(j, "pieces"), i, c)
    {
        const token t = (token)json_integer_value(json_array_get(c, 0));
        for (size_t special = 0; special < 2; special++) {
            char want[256];
            const size_t n = from_hex(json_string_value(json_array_get(c, 2 - special)), want);
            const struct str s = vocab_bytes(v, t, special);
            assert_int_equal(s.n, n);
            assert_memory_equal(s.p, want, n);
        }
    }
    assert_int_equal(i, vocab_size(v));
    tokens_release(&got);
    vocab_close(v);
    gguf_close(g);
    json_decref(j);
}

static void texts_are_cut_into_the_golden_pieces(void **state)
{
    (void)state;
    json_t *const j = load_or_skip(GOLDEN "pretokenizer.json");
    static const char *const pres[] = {"qwen35", "qwen2"};
    size_t i;
    const json_t *c;
    json_array_foreach(json_object_get(j, "cases"), i, c)
    {
        const json_t *const text = json_object_get(c, "text");
        const struct str s = {json_string_value(text), json_string_length(text)};
        for (size_t p = 0; p < COUNT_OF(pres); p++) {
            const json_t *const want = json_object_get(c, pres[p]);
            size_t k = 0;
            for (size_t at = 0; at < s.n; k++) {
                const size_t end = pretok_next(pretok_find(str_of(pres[p])), s, at);
                const json_t *const piece = json_array_get(want, k);
                if (!str_eq((struct str){s.p + at, end - at},
                            (struct str){json_string_value(piece), json_string_length(piece)}))
                    fail_msg("%s case %zu piece %zu", pres[p], i, k);
                at = end;
            }
            assert_int_equal(k, json_array_size(want));
        }
    }
    assert_true(i > 50);
    json_decref(j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tiny_gguf_tokenises_as_golden),
        cmocka_unit_test(texts_are_cut_into_the_golden_pieces),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
