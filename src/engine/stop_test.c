#include "engine/stop.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"

#include <cmocka.h>

static uint64_t seed_of_run(void)
{
    const char *s = getenv("SEED");
    return s ? strtoull(s, NULL, 10) : 11;
}

/* Where the first stop word begins in text, or its length. */
static size_t first_stop(const char *text, const char *const *words, uint32_t n, int *which)
{
    size_t at = strlen(text);
    *which = -1;
    for (uint32_t i = 0; i < n; i++) {
        const char *p = words[i][0] ? strstr(text, words[i]) : NULL;
        if (p && (size_t)(p - text) < at) {
            at = (size_t)(p - text);
            *which = (int)i;
        }
    }
    return at;
}

/* However the text is cut into tokens, what comes out is all before the first stop word that is complete
 * at that point, and never a part of one. */
static void no_cut_of_the_text_leaks_part_of_a_stop_word(void **state)
{
    (void)state;
    const uint64_t seed = seed_of_run();
    struct rng rng = {seed};
    for (int round = 0; round < 20000; round++) {
        char text[40], words[3][6];
        const char *list[3];
        const uint32_t n_words = rng_below(&rng, 4);
        for (uint32_t w = 0; w < n_words; w++) {
            const uint32_t len = rng_below(&rng, 5);
            for (uint32_t i = 0; i < len; i++)
                words[w][i] = (char)('a' + rng_below(&rng, 2));
            words[w][len] = 0;
            list[w] = words[w];
        }
        const uint32_t n = rng_below(&rng, 39);
        for (uint32_t i = 0; i < n; i++)
            text[i] = (char)('a' + rng_below(&rng, 3));
        text[n] = 0;

        struct stopper s;
        stopper_init(&s, list, n_words);
        struct buf out = BUF_INIT;
        int found = -1;
        uint32_t at = 0;
        while (at < n && found < 0) {
            const uint32_t some = 1 + rng_below(&rng, 4), k = MIN(some, n - at);
            found = stopper_add(&s, text + at, k, &out);
            at += k;
            /* nothing that could still become a stop word is out */
            for (uint32_t w = 0; w < n_words; w++)
                for (size_t l = 1; l < strlen(words[w]); l++)
                    if (found < 0 && out.n >= l && out.n == at)
                        assert_false(memcmp(out.p + out.n - l, words[w], l) == 0);
        }
        if (found < 0)
            stopper_finish(&s, &out);
        char seen[40]; /* a word is only found once it is complete */
        memcpy(seen, text, at);
        seen[at] = 0;
        int which;
        const size_t want = first_stop(seen, list, n_words, &which);
        if (found != which || out.n != want || memcmp(buf_str(&out), text, want) != 0)
            fail_msg("SEED=%" PRIu64 " round %d: \"%s\" gives \"%s\", word %d, not %zu bytes, "
                     "word %d",
                     seed, round, seen, buf_str(&out), found, want, which);
        buf_release(&out);
        stopper_release(&s);
    }
}

static void held_text_comes_out_when_it_turns_out_to_be_no_stop_word(void **state)
{
    (void)state;
    const char *const words[] = {"</tool>"};
    struct stopper s;
    struct buf out = BUF_INIT;
    stopper_init(&s, words, 1);
    assert_int_equal(stopper_add(&s, "x </to", 6, &out), -1);
    assert_string_equal(buf_str(&out), "x ");
    assert_int_equal(stopper_add(&s, "ols", 3, &out), -1);
    assert_string_equal(buf_str(&out), "x </tools");
    assert_int_equal(stopper_add(&s, "</", 2, &out), -1);
    stopper_finish(&s, &out);
    assert_string_equal(buf_str(&out), "x </tools</");
    buf_release(&out);
    stopper_release(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_cut_of_the_text_leaks_part_of_a_stop_word),
        cmocka_unit_test(held_text_comes_out_when_it_turns_out_to_be_no_stop_word),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
