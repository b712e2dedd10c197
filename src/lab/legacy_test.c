/* The controlled experiment on the slot caches: A is 4,560 tokens, C shares 2,531 of them and has 4,947, B is
 * 99 of its own.  Positions, reuse and erasures as read from the engines' rules. */
#include "lab/legacy.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "base/rng.h"

#include <cmocka.h>

enum { N_A = 4560, N_B = 99, N_C = 4947, SHARED = 2531, GEN = 32, ROOM = 20000 };

/* n_shared tokens of stream 0, then tokens of a stream of their own. */
static void prompt(token *out, uint32_t n_shared, uint32_t n, uint32_t stream)
{
    for (uint32_t i = 0; i < n; i++)
        out[i] = (token)(i < n_shared ? i + 1 : stream * 1000000u + i);
}

static struct legacy_turn ask_gen(struct legacy *l, uint32_t n_shared, uint32_t n, uint32_t stream,
                                  uint32_t gen)
{
    static token seq[ROOM];
    struct legacy_turn t;
    struct err err;
    prompt(seq, n_shared, n + gen, stream);
    if (legacy_request(l, seq, n, gen, NULL, 0, &t, &err))
        fail_msg("%s", err.msg);
    return t;
}

static struct legacy_turn ask(struct legacy *l, uint32_t n_shared, uint32_t n, uint32_t stream)
{
    return ask_gen(l, n_shared, n, stream, GEN);
}

static struct legacy *start(const struct legacy_opts *o)
{
    struct legacy *l;
    struct err err;
    assert_int_equal(legacy_new(o, &l, &err), 0);
    return l;
}

static struct legacy *start_named(const char *name)
{
    struct legacy_opts o;
    assert_true(legacy_by_name(name, &o));
    o.ring = 64; /* --ctx-checkpoints 64 */
    return start(&o);
}

static void ring_is(const struct legacy *l, const char *what, const uint32_t *want, uint32_t n)
{
    uint32_t got[128];
    const uint32_t k = legacy_ring(l, 0, got, COUNT_OF(got));
    if (k != n)
        fail_msg("%s: %u checkpoints, should be %u", what, k, n);
    for (uint32_t i = 0; i < n; i++)
        if (got[i] != want[i])
            fail_msg("%s: checkpoint %u at %u, should be %u", what, i, got[i], want[i]);
}

static void the_matrix_comes_out_to_the_token(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        uint32_t ring_a[5], n_a, ring_b[3], n_b;
        enum slot_verdict verdict;
        int64_t restored;
        uint32_t reused, erased;
    } cells[] = {
        {"pxa", {4095, 4554, 4590}, 3, {93, 99, 129}, 3, VERDICT_FORCED, -1, 0, 3},
        {"pxa-policy0",
         {2047, 4095, 4554, 4590},
         4,
         {93, 99, 129},
         3,
         VERDICT_RESTORED,
         2047,
         2048,
         3},
        {"pxa-end", {4095, 4554, 4559, 4590}, 4, {93, 98, 129}, 3, VERDICT_FORCED, -1, 0, 4},
        {"pxa-both",
         {2047, 4095, 4554, 4559, 4590},
         5,
         {93, 98, 129},
         3,
         VERDICT_RESTORED,
         2047,
         2048,
         4},
    };
    for (size_t i = 0; i < COUNT_OF(cells); i++) {
        /* A then C */
        struct legacy *l = start_named(cells[i].name);
        struct legacy_turn a = ask(l, SHARED, N_A, 1);
        assert_int_equal(a.verdict, VERDICT_COLD);
        ring_is(l, cells[i].name, cells[i].ring_a, cells[i].n_a);
        struct legacy_turn c = ask(l, SHARED, N_C, 2);
        assert_int_equal(c.verdict, cells[i].verdict);
        assert_int_equal(c.restored, cells[i].restored);
        assert_int_equal(c.reused, cells[i].reused);
        assert_int_equal(c.processed, N_C - cells[i].reused);
        assert_int_equal(c.n_erased, cells[i].erased);
        legacy_free(l);
        /* A, B, C: B shares nothing, prints nothing and erases everything */
        l = start_named(cells[i].name);
        (void)ask(l, SHARED, N_A, 1);
        struct legacy_turn b = ask(l, 0, N_B, 3);
        assert_int_equal(b.verdict, VERDICT_COLD);
        assert_int_equal(b.n_erased, cells[i].n_a);
        c = ask(l, SHARED, N_C, 2);
        assert_int_equal(c.verdict, VERDICT_COLD);
        assert_int_equal(c.reused, 0);
        assert_int_equal(c.processed, N_C);
        assert_int_equal(c.n_erased, b.n_made);
        legacy_free(l);
    }
}

static void bs_ring_is_its_tail(void **state)
{
    (void)state;
    /* the interval checkpoint of generation needs a prompt of 511 or more */
    struct legacy *l = start_named("pxa");
    (void)ask(l, 0, N_B, 3);
    ring_is(l, "B", (const uint32_t[]){93, 129}, 2);
    legacy_free(l);
    l = start_named("pxa-end");
    (void)ask(l, 0, N_B, 3);
    ring_is(l, "B, prompt end", (const uint32_t[]){93, 98, 129}, 3);
    legacy_free(l);
}

static void positions_of_a_long_cold_prompt(void **state)
{
    (void)state;
    struct legacy *l = start_named("pxa");
    static token seq[45300];
    struct legacy_turn t;
    struct err err;
    prompt(seq, 0, 45300, 1);
    assert_int_equal(legacy_request(l, seq, 45000, 300, NULL, 0, &t, &err), 0);
    ring_is(l, "45,000", (const uint32_t[]){44994, 45000, 45298}, 3);
    legacy_free(l);
    l = start_named("pxa-policy0");
    assert_int_equal(legacy_request(l, seq, 45000, 300, NULL, 0, &t, &err), 0);
    assert_int_equal(t.n_made, 24); /* 21 batch ends, 44994, one in generation, the end */
    legacy_free(l);
}

static void the_first_round_misses_by_91(void **state)
{
    (void)state;
    /* with the policy off, any A of 2,054 to 4,100 tokens has 2047 as its only checkpoint in mid-prompt */
    static const uint32_t sizes[] = {2054, 2500, 4095, 4100};
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        struct legacy *l = start_named("pxa-policy0");
        struct legacy_turn a = ask(l, 1956, sizes[i], 1);
        assert_int_equal(a.made[0], 2047);
        assert_true(a.made[1] >= sizes[i] - 6);
        struct legacy_turn c = ask(l, 1956, N_C, 2);
        assert_int_equal(c.verdict, VERDICT_FORCED);
        assert_int_equal(c.lcp, 1956);
        assert_int_equal(a.made[0] - c.lcp, 91);
        legacy_free(l);
    }
}

static void the_append_probe_evaluates_206_tokens(void **state)
{
    (void)state;
    /* 6,346: the tail checkpoint at 6,340 covers exactly the shared 6,341 and is refused */
    struct legacy *l = start_named("pxa");
    (void)ask_gen(l, 6341, 6346, 1, 12);
    struct legacy_turn t = ask(l, 6341, 6350, 2);
    assert_int_equal(t.verdict, VERDICT_RESTORED);
    assert_int_equal(t.restored, 6143);
    assert_int_equal(t.reused, 6144);
    assert_int_equal(t.processed, 206);
    legacy_free(l);
    /* the same with llama.cpp's rule of March 2026, were the checkpoint there: strictly below n_past */
    static const uint32_t low[] = {6346, 6500, 6661};
    for (size_t i = 0; i < COUNT_OF(low); i++) {
        l = start_named("pxa");
        (void)ask_gen(l, 6341, low[i], 1, 12);
        t = ask(l, 6341, 6350, 2);
        assert_int_equal(t.processed, 206);
        legacy_free(l);
    }
}

static void an_identical_prompt_goes_back_to_the_tail(void **state)
{
    (void)state;
    struct legacy *l = start_named("pxa");
    (void)ask(l, SHARED, N_A, 1);
    struct legacy_turn t = ask(l, SHARED, N_A, 1);
    assert_int_equal(t.verdict, VERDICT_RESTORED);
    assert_int_equal(t.restored, 4554);
    assert_int_equal(t.processed, 5);
    legacy_free(l);
}

static void an_append_uses_the_live_state(void **state)
{
    (void)state;
    struct legacy *l = start_named("pxa");
    (void)ask(l, 0, N_A, 1);
    struct legacy_turn t = ask(l, 0, N_A + GEN + 100, 1);
    assert_int_equal(t.verdict, VERDICT_APPEND);
    assert_int_equal(t.reused, N_A + GEN - 1);
    assert_int_equal(t.n_erased, 0);
    legacy_free(l);
}

/* C after A, and after A and B, for each engine: verdict and tokens reused. */
static void the_same_traffic_on_other_engines(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        enum slot_verdict ac;
        uint32_t ac_reused;
        enum slot_verdict abc;
        uint32_t abc_reused;
    } cases[] = {
        {"pxa", VERDICT_FORCED, 0, VERDICT_COLD, 0},
        {"pxa-policy0", VERDICT_RESTORED, 2048, VERDICT_COLD, 0},
        {"pxa-policy0-cram", VERDICT_RESTORED, 2048, VERDICT_RESTORED, 2048},
        {"pxa-cram", VERDICT_FORCED, 0, VERDICT_COLD, 0},
        {"ik", VERDICT_RESTORED, 2048, VERDICT_RESTORED, 2048},
        {"ik-cram0", VERDICT_RESTORED, 2048, VERDICT_COLD, 0},
        {"llama-20251101", VERDICT_FORCED, 0, VERDICT_FORCED, 0},
        {"llama-20260320", VERDICT_FORCED, 0, VERDICT_FORCED, 0},
        {"llama", VERDICT_FORCED, 0, VERDICT_FORCED, 0},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct legacy *l = start_named(cases[i].name);
        (void)ask(l, SHARED, N_A, 1);
        struct legacy_turn c = ask(l, SHARED, N_C, 2);
        if (c.verdict != cases[i].ac || c.reused != cases[i].ac_reused)
            fail_msg("%s, A C: %s, %u reused", cases[i].name, slot_verdict_name(c.verdict),
                     c.reused);
        legacy_free(l);
        l = start_named(cases[i].name);
        (void)ask(l, SHARED, N_A, 1);
        (void)ask(l, 0, N_B, 3);
        c = ask(l, SHARED, N_C, 2);
        if (c.verdict != cases[i].abc || c.reused != cases[i].abc_reused)
            fail_msg("%s, A B C: %s, %u reused", cases[i].name, slot_verdict_name(c.verdict),
                     c.reused);
        legacy_free(l);
    }
}

static void the_ram_stores_swap_fails_from_504_tokens_of_reply_on(void **state)
{
    (void)state;
    for (uint32_t gen = 502; gen <= 505; gen++) {
        struct legacy *l = start_named("pxa-policy0-cram");
        (void)ask_gen(l, SHARED, N_A, 1, gen);
        (void)ask(l, 0, N_B, 3);
        struct legacy_turn c = ask(l, SHARED, N_C, 2);
        assert_int_equal(c.swapped, gen < 504);
        legacy_free(l);
    }
}

static void llama_by_date_places_as_its_commits_say(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        uint32_t tokens[2], n;
    } cases[] = {
        {"llama-20251101", {4496}, 1},       {"llama-20260210", {4048}, 1},
        {"llama-20260307", {4048}, 1},       {"llama-20260312", {4044, 4556}, 2},
        {"llama-20260320", {4044, 4556}, 2}, {"llama-20260530", {4044, 4556}, 2},
        {"llama-20260605", {4044, 4556}, 2}, {"llama-20260625", {4044}, 1},
        {"llama-20260715", {4044, 4556}, 2},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct legacy *l = start_named(cases[i].name);
        (void)ask(l, SHARED, N_A, 1);
        uint32_t want[2] = {cases[i].tokens[0] - 1, cases[i].tokens[1] - 1};
        ring_is(l, cases[i].name, want, cases[i].n);
        legacy_free(l);
    }
}

static void llama_restores_up_to_a_known_user_message(void **state)
{
    (void)state;
    struct legacy *l = start_named("llama-20260701");
    static token seq[ROOM];
    const struct cache_hint hints[] = {{0, 's'}, {1200, 'u'}, {2400, 'u'}, {4000, 'u'}};
    struct legacy_turn t;
    struct err err;
    prompt(seq, SHARED, N_A + GEN, 1);
    assert_int_equal(legacy_request(l, seq, N_A, GEN, hints, 4, &t, &err), 0);
    prompt(seq, SHARED, N_C + GEN, 2);
    assert_int_equal(legacy_request(l, seq, N_C, GEN, hints, 3, &t, &err), 0);
    assert_int_equal(t.verdict, VERDICT_RESTORED);
    assert_true(t.reused == 1200 || t.reused == 2400);
    legacy_free(l);
}

static void an_append_was_a_rewind_for_ten_days_of_2026(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        enum slot_verdict verdict;
    } cases[] = {{"llama-20260520", VERDICT_APPEND},
                 {"llama-20260528", VERDICT_RESTORED},
                 {"llama-20260610", VERDICT_APPEND}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct legacy *l = start_named(cases[i].name);
        (void)ask(l, 0, N_A, 1);
        assert_int_equal(ask(l, 0, N_A + GEN + 100, 1).verdict, cases[i].verdict);
        legacy_free(l);
    }
}

static void a_full_ring_evicts_from_the_middle_or_the_front(void **state)
{
    (void)state;
    struct legacy_opts o;
    uint32_t pos[64];
    assert_true(legacy_by_name("pxa-policy0", &o));
    o.ring = 4;
    struct legacy *l = start(&o);
    struct legacy_turn t = ask(l, 0, 15000, 1);
    assert_int_equal(legacy_ring(l, 0, pos, 64), 4);
    assert_int_equal(pos[0], 2047); /* the first and the last stay */
    assert_int_equal(t.n_evicted, t.n_made - 4);
    legacy_free(l);
    o.evict = EVICT_FIFO;
    l = start(&o);
    ask(l, 0, 15000, 1);
    assert_int_equal(legacy_ring(l, 0, pos, 64), 4);
    assert_true(pos[0] > 8000);
    legacy_free(l);
}

static void several_slots_keep_streams_apart(void **state)
{
    (void)state;
    struct legacy *l = start_named("pxa-policy0x4");
    (void)ask(l, SHARED, N_A, 1);
    struct legacy_turn b = ask(l, 0, N_B, 3);
    assert_int_equal(b.slot, 1);
    assert_int_equal(b.n_erased, 0);
    struct legacy_turn c = ask(l, SHARED, N_C, 2);
    assert_int_equal(c.slot, 0);
    assert_int_equal(c.reused, 2048);
    legacy_free(l);
}

/* Whatever comes: a reused token was in the slot before and is in the prompt, and the ring stays in order. */
static void nothing_is_reused_that_was_not_there(void **state)
{
    (void)state;
    struct err err;
    const char *seed = getenv("SEED");
    struct rng rng = {.s = seed ? strtoull(seed, NULL, 0) : 1};
    const uint64_t first = rng.s;
    static token seq[8192];
    for (size_t i = 0; legacy_name_at(i); i++) {
        struct legacy_opts o;
        assert_true(legacy_by_name(legacy_name_at(i), &o));
        o.ring = 6;
        o.cram_mib = MIN(o.cram_mib, 700);
        o.n_slots = 1 + rng_below(&rng, 3);
        struct legacy *l = start(&o);
        for (int k = 0; k < 300; k++) {
            const uint32_t n = 1 + rng_below(&rng, 6000), gen = rng_below(&rng, 700);
            const uint32_t shared = rng_below(&rng, n + 1);
            struct legacy_turn t;
            struct cache_hint h[8];
            uint32_t n_h = 0;
            for (uint32_t p = rng_below(&rng, 900); p < n && n_h < 8;
                 p += 1 + rng_below(&rng, 1500), n_h++)
                h[n_h] = (struct cache_hint){p, n_h % 2 ? 'a' : 'u'};
            prompt(seq, shared, n + gen, 1 + rng_below(&rng, 4));
            assert_int_equal(legacy_request(l, seq, n, gen, h, n_h, &t, &err), 0);
            uint32_t pos[64];
            const uint32_t r = legacy_ring(l, t.slot, pos, 64);
            if (t.reused >= n || t.reused > t.lcp || t.reused + t.processed != n || r > o.ring)
                fail_msg("SEED=%llu: %s: %u reused of %u, lcp %u", (unsigned long long)first,
                         legacy_name_at(i), t.reused, n, t.lcp);
            for (uint32_t j = 1; j < r; j++)
                if (pos[j] <= pos[j - 1] || pos[j] >= n + gen)
                    fail_msg("SEED=%llu: %s: ring out of order", (unsigned long long)first,
                             legacy_name_at(i));
        }
        legacy_free(l);
    }
}

static void running_out_of_memory_is_an_error(void **state)
{
    (void)state;
    static token seq[8192];
    prompt(seq, 100, 8192, 1);
    bool done = false;
    for (uint64_t n = 1; !done && n < 200; n++) {
        struct legacy_opts o;
        struct legacy *l = NULL;
        struct legacy_turn t;
        struct err err;
        assert_true(legacy_by_name("ik", &o));
        mem_fail_after(n);
        enum rc rc = legacy_new(&o, &l, &err);
        for (uint32_t k = 0; k < 4 && !rc; k++)
            rc = legacy_request(l, seq + k, 6000, 100, NULL, 0, &t, &err);
        mem_fail_after(0);
        assert_true(rc == RC_OK || rc == RC_NOMEM);
        done = rc == RC_OK;
        legacy_free(l);
    }
    assert_true(done);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_matrix_comes_out_to_the_token),
        cmocka_unit_test(bs_ring_is_its_tail),
        cmocka_unit_test(positions_of_a_long_cold_prompt),
        cmocka_unit_test(the_first_round_misses_by_91),
        cmocka_unit_test(the_append_probe_evaluates_206_tokens),
        cmocka_unit_test(an_identical_prompt_goes_back_to_the_tail),
        cmocka_unit_test(an_append_uses_the_live_state),
        cmocka_unit_test(the_same_traffic_on_other_engines),
        cmocka_unit_test(the_ram_stores_swap_fails_from_504_tokens_of_reply_on),
        cmocka_unit_test(llama_by_date_places_as_its_commits_say),
        cmocka_unit_test(llama_restores_up_to_a_known_user_message),
        cmocka_unit_test(an_append_was_a_rewind_for_ten_days_of_2026),
        cmocka_unit_test(a_full_ring_evicts_from_the_middle_or_the_front),
        cmocka_unit_test(several_slots_keep_streams_apart),
        cmocka_unit_test(nothing_is_reused_that_was_not_there),
        cmocka_unit_test(running_out_of_memory_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
