/* What is learned from traffic goes on after a restart.  SEED repeats a run. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "cache/cache_int.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static struct rng rng_of_run(void)
{
    const char *s = getenv("SEED");
    const struct rng g = {s ? strtoull(s, NULL, 0) : 1};
    print_message("SEED=%" PRIu64 "\n", g.s);
    return g;
}

static void drop_nothing(void *ctx, snap_id id)
{
    (void)ctx;
    (void)id;
}

static struct cache *new_cache(void)
{
    const struct cache_opts o = {.ram_bytes = 40 * MIB,
                                 .snap_bytes = MIB,
                                 .token_bytes = 1000,
                                 .ops = {.drop = drop_nothing}};
    struct cache *c;
    assert_int_equal(cache_new(&o, &c, NULL), RC_OK);
    return c;
}

static void fill(token *t, uint32_t from, uint32_t to, uint64_t seed)
{
    struct rng g = {seed + 1};
    for (uint32_t i = from; i < to; i++)
        t[i] = (token)rng_below(&g, 50000);
}

/* A request from beginning to end; what it reused.  first: tokens of its first message. */
static uint32_t serve(struct cache *c, const token *t, uint32_t n, uint32_t n_prompt,
                      uint32_t first, struct plan *p)
{
    const struct cache_hint hints[] = {{0, 's'}, {first, 'u'}};
    const struct plan_req r = {.prompt = t, .n = n_prompt, .hints = hints, .n_hints = 2};
    assert_int_equal(plan_make(c, &r, 0, p, NULL), RC_OK);
    for (uint32_t i = 0; i < p->n_cuts; i++) {
        const snap_id id = cache_offer(c, p, t, p->cuts[i].pos, p->cuts[i].kind, 0);
        if (id)
            cache_commit(c, id);
    }
    const snap_id id = cache_offer(c, p, t, n, CUT_GEN_END, 0);
    if (id)
        cache_commit(c, id);
    const uint32_t start = p->start;
    plan_done(c, p, t, n, 0);
    return start;
}

enum { BEFORE = 4000, AFTER = 1000, N = BEFORE + 40 + AFTER };

/* [ history of the chat | 40 constant tokens | block, new each turn ] */
static void chat_turn(token *t, uint32_t chat, uint32_t turn)
{
    fill(t, 0, BEFORE, 10 + chat);
    fill(t, BEFORE, BEFORE + 40, 999);
    fill(t, BEFORE + 40, N, 1000 + chat * 10 + turn);
}

static struct cache *taught(uint32_t n_chats)
{
    static token t[N];
    struct cache *c = new_cache();
    struct plan p;
    for (uint32_t chat = 0; chat < n_chats; chat++)
        for (uint32_t turn = 0; turn < 3; turn++) {
            chat_turn(t, chat, turn);
            serve(c, t, N, N - 10, 100, &p);
        }
    return c;
}

static struct buf saved(struct cache *c)
{
    struct buf b;
    buf_init(&b);
    cache_save(c, &b);
    assert_false(b.failed);
    return b;
}

static void a_block_rendered_anew_is_foreseen_after_a_restart(void **state)
{
    (void)state;
    static token t[N];
    struct cache *before = taught(3);
    struct buf b = saved(before);
    cache_free(before);
    for (int knows = 0; knows < 2; knows++) {
        struct cache *c = new_cache();
        struct plan p;
        if (knows)
            assert_int_equal(cache_load(c, b.p, b.n, NULL), RC_OK);
        chat_turn(t, 50, 0);
        serve(c, t, N, N - 10, 100, &p);
        chat_turn(t, 50, 1);
        serve(c, t, N, N - 10, 100, &p);
        assert_int_equal(p.restore_kind == CUT_SIGNATURE, knows);
        assert_int_equal(p.start == BEFORE + 40, knows);
        cache_check(c);
        cache_free(c);
    }
    buf_release(&b);
}

static void what_is_saved_is_what_was_loaded(void **state)
{
    (void)state;
    struct cache *a = taught(30), *c = new_cache();
    struct buf was = saved(a);
    assert_int_equal(cache_load(c, was.p, was.n, NULL), RC_OK);
    struct buf is = saved(c);
    assert_int_equal(was.n, is.n);
    assert_memory_equal(was.p, is.p, was.n);
    buf_release(&was);
    buf_release(&is);
    cache_free(a);
    cache_free(c);
}

/* A file that was changed has been found out before; even so nothing may come of it but a refusal or odd habits. */
static void bytes_that_are_none_of_ours_are_refused_and_teach_nothing(void **state)
{
    (void)state;
    struct rng g = rng_of_run();
    struct cache *a = taught(6), *fresh = new_cache();
    struct buf b = saved(a), none = saved(fresh);
    uint32_t n_refused = 0;
    for (size_t i = 0; i < 600; i++) {
        const size_t n = i < 200 ? rng_below(&g, (uint32_t)b.n) : b.n;
        char *copy = malloc(MAX(n, 1));
        memcpy(copy, b.p, n);
        for (int k = 0; i >= 200 && k < 4; k++)
            copy[rng_below(&g, rng_below(&g, 2) ? 32 : (uint32_t)n)] = (char)rng_u64(&g);
        struct cache *c = new_cache();
        struct err err;
        const enum rc rc = cache_load(c, copy, n, &err);
        if (rc) {
            assert_int_equal(rc, RC_FORMAT);
            struct buf is = saved(c);
            assert_int_equal(is.n, none.n);
            assert_memory_equal(is.p, none.p, none.n);
            buf_release(&is);
            n_refused++;
        } else {
            static token t[N];
            struct plan p;
            chat_turn(t, 1, 7);
            serve(c, t, N, N - 10, 100, &p);
        }
        cache_check(c);
        cache_free(c);
        free(copy);
    }
    assert_true(n_refused >= 200);
    buf_release(&b);
    buf_release(&none);
    cache_free(a);
    cache_free(fresh);
}

static void without_memory_nothing_is_taken_over(void **state)
{
    (void)state;
    struct cache *a = taught(6);
    struct buf b = saved(a);
    enum rc rc = RC_FORMAT;
    for (uint64_t i = 1; rc; i++) {
        struct cache *c = new_cache();
        mem_fail_after(i);
        rc = cache_load(c, b.p, b.n, NULL);
        mem_fail_after(0);
        struct buf is = saved(c);
        assert_true(rc ? is.n < b.n : is.n == b.n);
        buf_release(&is);
        cache_free(c);
        assert_true(i < 1000);
    }
    buf_release(&b);
    cache_free(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_block_rendered_anew_is_foreseen_after_a_restart),
        cmocka_unit_test(what_is_saved_is_what_was_loaded),
        cmocka_unit_test(bytes_that_are_none_of_ours_are_refused_and_teach_nothing),
        cmocka_unit_test(without_memory_nothing_is_taken_over),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
