#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/buf.h"
#include "base/rng.h"
#include "base/utf8.h"
#include "text/pretok.h"
#include "text/testing_int.h"
#include "text/unicode.h"

#include <cmocka.h>

/* Fragments that random texts are made of: each rule's characters, and their neighbours. */
static const char *const parts[] = {
    "a",        "B",      "s",      "S",      "t",      "l",      "L",          "re",      "VE",
    "m",        "d",      "'",      "'",      "'s",     "'LL",    "1",          "2",       "34",
    "5678",     " ",      " ",      "  ",     "\n",     "\r",     "\r\n",       "\t",      ".",
    "!",        "=",      "-",      "(",      "\"",     "_",      "\u00e9",     "e\u0301", "\u0301",
    "\u093f",   "\u4e16", "\u0416", "\u00bd", "\u0663", "\u2167", "\u00a0",     "\u2003",  "\u3000",
    "\xc2\x85", "\u2028", "\u1680", "\u200b", "\ufeff", "\u20ac", "\U0001f600", "\u00ad",  "\u017f",
    "\u2019",   "\x01",   "\x7f",   "\u0e31", "\u30c4", "\u200d",
};

static const struct {
    const char *name, *regex;
} expressions[] = {
    {"qwen35", "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}|"
               " ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
    {"qwen2", "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|"
              " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
    {"llama-bpe", "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|"
                  "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
                  "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
    {"gpt-2", "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"},
};

static void each_scanner_cuts_as_its_expression_does(void **state)
{
    (void)state;
    struct rng rng = {test_seed()};
    for (size_t e = 0; e < COUNT_OF(expressions); e++) {
        const struct pretok *const p = pretok_find(str_of(expressions[e].name));
        assert_non_null(p);
        int code;
        PCRE2_SIZE where;
        /* (?i:'s) would also fold U+017F to s; the vocabularies' engines do not, so the long s is
         * never put behind an apostrophe below. */
        pcre2_code *const re =
            pcre2_compile((PCRE2_SPTR)expressions[e].regex, PCRE2_ZERO_TERMINATED,
                          PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED, &code, &where, NULL);
        assert_non_null(re);
        (void)pcre2_jit_compile(re, PCRE2_JIT_COMPLETE);
        pcre2_match_data *const m = pcre2_match_data_create_from_pattern(re, NULL);
        struct buf text = BUF_INIT;
        for (int round = 0; round < 30000; round++) {
            buf_clear(&text);
            for (uint32_t n = 1 + rng_below(&rng, 14); n--;) {
                const char *const part = parts[rng_below(&rng, COUNT_OF(parts))];
                if (text.n && text.p[text.n - 1] == '\'' && !strcmp(part, "\u017f"))
                    continue;
                buf_adds(&text, part);
            }
            for (size_t at = 0; at < text.n;) {
                const int rc =
                    pcre2_match(re, (PCRE2_SPTR)text.p, text.n, at, PCRE2_NO_UTF_CHECK, m, NULL);
                assert_true(rc > 0);
                const size_t want = pcre2_get_ovector_pointer(m)[1];
                const size_t got = pretok_next(p, (struct str){text.p, text.n}, at);
                if (got != want)
                    fail_msg("%s, SEED=%llu round %d: \"%s\" from byte %zu: cut at %zu, not %zu",
                             p->name, (unsigned long long)test_seed(), round, text.p, at, got,
                             want);
                at = got;
            }
        }
        buf_release(&text);
        pcre2_match_data_free(m);
        pcre2_code_free(re);
    }
}

static void the_long_s_begins_no_contraction(void **state)
{
    (void)state;
    const struct str text = str_of("'\u017fx");
    assert_int_equal(pretok_next(pretok_find(str_of("qwen35")), text, 0), 4); /* a word, not 's */
}

static void an_unknown_name_is_not_found(void **state)
{
    (void)state;
    assert_null(pretok_find(str_of("qwen")));
    assert_null(pretok_find(str_of("")));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_scanner_cuts_as_its_expression_does),
        cmocka_unit_test(the_long_s_begins_no_contraction),
        cmocka_unit_test(an_unknown_name_is_not_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
