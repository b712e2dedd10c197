#include "cache/signs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { N = 3000, MANY = 60 };

static void fill(token *t, uint32_t n, uint64_t seed)
{
    struct rng g = {seed};
    for (uint32_t i = 0; i < n; i++)
        t[i] = (token)rng_below(&g, 1000);
}

static bool found(const struct sign_match *m, uint32_t n, uint32_t pos)
{
    for (uint32_t i = 0; i < n; i++)
        if (m[i].pos == pos)
            return true;
    return false;
}

static void
a_divergence_is_expected_after_what_stood_before_and_before_what_came_after(void **state)
{
    (void)state;
    static token t[N];
    struct sign_match m[MANY];
    struct signs *s = signs_new();
    fill(t, N, 1);
    signs_learn(s, t + 500 - SIGN_TOKENS, SIGN_BEFORE); /* parted at 500 */
    signs_learn(s, t + 700, SIGN_AFTER);                /* older text from 700 on */
    assert_int_equal(signs_find(s, t, N, 0, N, m, MANY), 2);
    assert_true(found(m, 2, 500) && found(m, 2, 700));
    /* bounds: (from, to] */
    assert_int_equal(signs_find(s, t, N, 500, N, m, MANY), 1);
    assert_int_equal(signs_find(s, t, N, 499, 500, m, MANY), 1);
    assert_int_equal(signs_find(s, t, N, 499, 499, m, MANY), 0);
    assert_int_equal(signs_find(s, t, N, 700, N, m, MANY), 0);
    assert_int_equal(signs_find(s, t, N, 699, 700, m, MANY), 1);
    /* only the last occurrence counts */
    memcpy(t + 2000, t + 500 - SIGN_TOKENS, SIGN_TOKENS * sizeof *t);
    assert_int_equal(signs_find(s, t, N, 0, N, m, MANY), 2);
    assert_true(found(m, 2, 2000 + SIGN_TOKENS));
    /* at the very ends */
    assert_int_equal(signs_find(s, t + 500 - SIGN_TOKENS, SIGN_TOKENS, 0, SIGN_TOKENS, m, MANY), 1);
    assert_int_equal(m[0].pos, SIGN_TOKENS);
    assert_int_equal(signs_find(s, t, SIGN_TOKENS - 1, 0, SIGN_TOKENS - 1, m, MANY), 0);
    signs_free(s);
}

/* All windows against all signs learned, the obvious way. */
static void finds_what_a_search_of_every_window_finds(void **state)
{
    (void)state;
    const char *env = getenv("SEED");
    const uint64_t seed = env ? strtoull(env, NULL, 0) : 1;
    print_message("SEED=%" PRIu64 "\n", seed);
    struct rng g = {seed};
    static token t[N];
    static struct {
        token w[SIGN_TOKENS];
        enum sign_side side;
    } known[MANY];
    for (int round = 0; round < 200; round++) {
        struct signs *s = signs_new();
        for (uint32_t i = 0; i < N; i++)
            t[i] = (token)rng_below(&g, 2); /* few tokens: windows repeat */
        for (uint32_t i = 0; i < MANY; i++) {
            for (uint32_t k = 0; k < SIGN_TOKENS; k++)
                known[i].w[k] = (token)rng_below(&g, 2);
            known[i].side = rng_below(&g, 2);
            signs_learn(s, known[i].w, known[i].side);
        }
        const uint32_t from = rng_below(&g, N), to = from + rng_below(&g, N - from + 1);
        struct sign_match m[MANY];
        const uint32_t n = signs_find(s, t, N, from, to, m, MANY);
        uint32_t expected = 0;
        for (uint32_t i = 0; i < MANY; i++) {
            uint32_t last = 0;
            bool twice = false;
            for (uint32_t k = 0; k < i; k++)
                twice |= known[k].side == known[i].side &&
                         !memcmp(known[k].w, known[i].w, sizeof known[i].w);
            for (uint32_t p = 0; p + SIGN_TOKENS <= N; p++) {
                const uint32_t pos = known[i].side == SIGN_BEFORE ? p + SIGN_TOKENS : p;
                if (pos > from && pos <= to && !memcmp(t + p, known[i].w, sizeof known[i].w))
                    last = pos;
            }
            assert_true(!last || found(m, n, last));
            expected += last && !twice;
        }
        assert_int_equal(n, expected);
        signs_free(s);
    }
}

static void the_longest_unconfirmed_goes_first(void **state)
{
    (void)state;
    static token t[SIGNS_MAX * 3 * SIGN_TOKENS];
    struct sign_match m[4];
    struct signs *s = signs_new();
    fill(t, COUNT_OF(t), 3);
    for (uint32_t i = 0; i < SIGNS_MAX * 3; i++) {
        signs_learn(s, t + i * SIGN_TOKENS, SIGN_AFTER);
        signs_learn(s, t, SIGN_AFTER); /* confirmed all the time */
    }
    assert_int_equal(signs_count(s), SIGNS_MAX);
    assert_int_equal(signs_find(s, t + COUNT_OF(t) - 100, 100, 0, 100, m, 4), 4);
    token window[1 + SIGN_TOKENS] = {-1};
    memcpy(window + 1, t, SIGN_TOKENS * sizeof *t);
    assert_int_equal(signs_find(s, window, COUNT_OF(window), 0, COUNT_OF(window), m, 4), 1);
    memcpy(window + 1, t + SIGN_TOKENS, SIGN_TOKENS * sizeof *t);
    assert_int_equal(signs_find(s, window, COUNT_OF(window), 0, COUNT_OF(window), m, 4), 0);
    signs_free(s);
}

static void of_too_many_the_latest_confirmed_are_given(void **state)
{
    (void)state;
    static token t[20 * SIGN_TOKENS + 1];
    struct sign_match m[3];
    struct signs *s = signs_new();
    fill(t, COUNT_OF(t), 4);
    static const uint32_t order[] = {7, 3, 15, 1, 12, 9};
    for (uint32_t i = 0; i < COUNT_OF(order); i++)
        signs_learn(s, t + 1 + order[i] * SIGN_TOKENS, SIGN_AFTER);
    assert_int_equal(signs_find(s, t, COUNT_OF(t), 0, COUNT_OF(t), m, 3), 3);
    for (uint32_t i = 3; i < COUNT_OF(order); i++)
        assert_true(found(m, 3, 1 + order[i] * SIGN_TOKENS));
    signs_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            a_divergence_is_expected_after_what_stood_before_and_before_what_came_after),
        cmocka_unit_test(finds_what_a_search_of_every_window_finds),
        cmocka_unit_test(the_longest_unconfirmed_goes_first),
        cmocka_unit_test(of_too_many_the_latest_confirmed_are_given),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
