#include "cache/radix.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static uint64_t seed_from_env(void)
{
    const char *s = getenv("SEED");
    return s ? strtoull(s, NULL, 0) : 1;
}

static void split(void *ctx, uint32_t upper, uint32_t lower)
{
    struct radix *r = ctx;
    r->nodes[upper].at[0] = r->nodes[lower].at[0];
}

static void nothing(void *ctx, uint32_t a, uint32_t b)
{
    (void)ctx, (void)a, (void)b;
}

static void removed(void *ctx, uint32_t leaf)
{
    (void)ctx, (void)leaf;
}

static bool tree_init(struct radix *r)
{
    const struct radix_hooks hooks = {
        .ctx = r, .split = split, .merge = nothing, .remove = removed};
    return radix_init(r, &hooks);
}

enum { MAX_LEN = 60, MAX_PATHS = 400 };

struct naive {
    token seq[MAX_PATHS][MAX_LEN];
    uint32_t len[MAX_PATHS], n;
};

static uint32_t naive_lcp(const struct naive *m, const token *s, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 0; i < m->n; i++)
        best = MAX(best, radix_mismatch(m->seq[i], s, MIN(n, m->len[i])));
    return best;
}

/* A prefix of an earlier path with a fresh tail, of few different tokens. */
static uint32_t random_path(struct rng *rng, const struct naive *m, token *s)
{
    uint32_t n = 0;
    if (m->n && rng_below(rng, 4)) {
        const uint32_t i = rng_below(rng, m->n);
        n = rng_below(rng, m->len[i] + 1);
        memcpy(s, m->seq[i], n * sizeof *s);
    }
    const uint32_t end = MAX(1, n + rng_below(rng, MAX_LEN - n + 1));
    while (n < end)
        s[n++] = (token)rng_below(rng, 3);
    return n;
}

static void the_longest_prefix_is_that_of_a_naive_list(void **state)
{
    (void)state;
    struct rng rng = {seed_from_env()};
    struct radix r;
    struct radix_path path = {0};
    static struct naive m;
    m.n = 0;
    assert_true(tree_init(&r));
    while (m.n < MAX_PATHS) {
        token s[MAX_LEN];
        uint32_t n = random_path(&rng, &m, s), got;
        assert_true(radix_walk(&r, s, n, &path, &got));
        assert_int_equal(got, naive_lcp(&m, s, n));
        assert_true(radix_insert(&r, s, n, &path));
        radix_touch(&r, &path);
        assert_int_equal(path.len, n);
        uint32_t pos = 0;
        for (uint32_t i = 0; i < path.n; i++) {
            const struct radix_node *x = radix_at(&r, path.nodes[i]);
            assert_int_equal(x->start, pos);
            assert_memory_equal(x->label, s + pos, (MIN(x->end, n) - pos) * sizeof *s);
            pos = x->end;
        }
        for (uint32_t p = 1; p <= n; p++) {
            const struct radix_node *x = radix_at(&r, path.nodes[radix_path_at(&r, &path, p)]);
            assert_true(x->start < p && p <= x->end);
        }
        memcpy(m.seq[m.n], s, n * sizeof *s);
        m.len[m.n++] = n;
        radix_check(&r);
    }
    radix_path_release(&path);
    radix_release(&r);
}

static void mark_live(struct radix *r, const struct radix_path *path, int by)
{
    for (uint32_t i = 0; i < path->n; i++)
        radix_at(r, path->nodes[i])->at[0].n_live += (uint32_t)by;
}

static void trimming_takes_the_least_recently_walked_and_never_what_is_live(void **state)
{
    (void)state;
    struct rng rng = {seed_from_env()};
    for (int round = 0; round < 20; round++) {
        struct radix r;
        struct radix_path path = {0};
        static struct naive m;
        m.n = 0;
        assert_true(tree_init(&r));
        token live[MAX_LEN];
        uint32_t n_live = 0, got;
        while (m.n < 100) {
            const uint32_t n = random_path(&rng, &m, m.seq[m.n]);
            assert_true(radix_insert(&r, m.seq[m.n], n, &path));
            radix_touch(&r, &path);
            m.len[m.n++] = n;
            if (m.n == 7) {
                memcpy(live, m.seq[6], n * sizeof *live);
                n_live = n;
                mark_live(&r, &path, 1);
            }
        }
        const uint64_t full = radix_bytes(&r), labels = r.label_bytes;
        radix_trim(&r, full - labels / 2);
        radix_check(&r);
        assert_true(radix_bytes(&r) <= full - labels / 2);
        assert_true(radix_walk(&r, live, n_live, NULL, &got));
        assert_int_equal(got, n_live);
        /* the last path walked goes last */
        assert_true(radix_walk(&r, m.seq[99], m.len[99], NULL, &got));
        assert_int_equal(got, m.len[99]);
        radix_trim(&r, 0);
        radix_check(&r);
        assert_true(radix_walk(&r, live, n_live, &path, &got));
        assert_int_equal(got, n_live);
        assert_int_equal(r.n_tokens, n_live);
        mark_live(&r, &path, -1);
        radix_trim(&r, 0);
        radix_check(&r);
        assert_int_equal(r.n_nodes, 0);
        assert_int_equal(r.label_bytes, 0);
        radix_path_release(&path);
        radix_release(&r);
    }
}

static void a_failed_insert_leaves_the_tree_as_it_was(void **state)
{
    (void)state;
    struct rng rng = {seed_from_env()};
    struct radix r;
    struct radix_path path = {0};
    static struct naive m;
    m.n = 0;
    assert_true(tree_init(&r));
    uint32_t failures = 0;
    while (m.n < 200) {
        token s[MAX_LEN];
        const uint32_t n = random_path(&rng, &m, s);
        for (uint64_t k = 1;; k++) {
            mem_fail_after(k);
            const bool ok = radix_insert(&r, s, n, &path);
            mem_fail_after(0);
            radix_check(&r);
            uint32_t got;
            assert_true(radix_walk(&r, s, n, NULL, &got));
            if (ok)
                break;
            failures++;
            assert_int_equal(got, naive_lcp(&m, s, n));
        }
        memcpy(m.seq[m.n], s, n * sizeof *s);
        m.len[m.n++] = n;
    }
    assert_true(failures > 100);
    radix_path_release(&path);
    radix_release(&r);
}

static void a_label_of_a_leaf_added_by_hand_goes_with_it(void **state)
{
    (void)state;
    struct radix r;
    struct radix_path path = {0};
    assert_true(tree_init(&r));
    const token s[] = {1, 2, 3, 4, 5}, made_up[] = {-1, -1, -1};
    assert_true(radix_insert(&r, s, 5, &path));
    uint32_t got;
    assert_true(radix_walk(&r, s, 3, &path, &got)); /* ends inside an edge */
    assert_true(radix_extend(&r, made_up, 3, &path));
    assert_int_equal(path.len, 6);
    radix_check(&r);
    radix_remove_leaf(&r, path.nodes[path.n - 1]);
    radix_check(&r);
    assert_int_equal(r.n_tokens, 5);
    assert_true(radix_walk(&r, s, 5, NULL, &got));
    assert_int_equal(got, 5);
    radix_path_release(&path);
    radix_release(&r);
}

static void mismatch_finds_the_first_difference_wherever_it_is(void **state)
{
    (void)state;
    static token a[1000], b[1000];
    for (uint32_t n = 0; n < 1000; n += 37)
        for (uint32_t d = 0; d <= n; d += 13) {
            memcpy(b, a, sizeof b);
            b[d] = 1;
            assert_int_equal(radix_mismatch(a, b, n), MIN(d, n));
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_longest_prefix_is_that_of_a_naive_list),
        cmocka_unit_test(trimming_takes_the_least_recently_walked_and_never_what_is_live),
        cmocka_unit_test(a_failed_insert_leaves_the_tree_as_it_was),
        cmocka_unit_test(a_label_of_a_leaf_added_by_hand_goes_with_it),
        cmocka_unit_test(mismatch_finds_the_first_difference_wherever_it_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
