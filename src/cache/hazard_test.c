#include "cache/hazard.h"

#include <math.h>

#include "base/mem.h"
#include "base/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static bool near(double a, double b)
{
    return fabs(a - b) <= 1e-9 * (fabs(a) + fabs(b));
}

static void ages_fall_into_powers_of_four(void **state)
{
    (void)state;
    static const struct {
        uint32_t age, bucket;
    } t[] = {{0, 0},    {1, 0},    {3, 0},    {4, 1},     {15, 1},
             {16, 2},   {64, 3},   {255, 3},  {256, 4},   {1024, 5},
             {4095, 5}, {4096, 6}, {9999, 6}, {16384, 6}, {UINT32_MAX, 6}};
    for (size_t i = 0; i < COUNT_OF(t); i++)
        assert_int_equal(hazard_age(t[i].age), t[i].bucket);
}

static void an_unknown_family_has_the_habits_of_all_and_a_known_one_its_own(void **state)
{
    (void)state;
    struct hazard z;
    assert_true(hazard_init(&z));
    const uint32_t s = hazard_situation(CUT_GEN_END, 0, true, 1);
    const double base = .06;
    assert_true(near(hazard_of(&z, 0, s), base));
    assert_true(near(hazard_of(&z, 77, s), base));
    hazard_book(&z, 0, s, 30, 100, 1);
    hazard_begin(&z);
    const double aged = base / (1 + .3 * 30 / (30 + 20));
    const double p = aged * (30 + 20) / (100 * aged + 20), all = (30 + 4) / (100 + 4 / p);
    assert_true(near(hazard_of(&z, 0, s), all));
    assert_true(near(hazard_of(&z, 77, s), all));
    hazard_book(&z, 77, s, 0, 180, 2);
    hazard_begin(&z);
    const double q = aged * (30 + 20) / (280 * aged + 20), now = (30 + 4) / (280 + 4 / q);
    assert_true(1 / now < 20);
    assert_true(near(hazard_of(&z, 77, s), 20 * now / (180 + 20)));
    assert_true(near(hazard_of(&z, 78, s), now));
    /* through a cell it is the same, and stays so until the next request */
    const uint32_t cell = hazard_ref(&z, 77, s, 3);
    const double r = hazard_rate(&z, cell, 3);
    assert_true(near(r, hazard_of(&z, 77, s)));
    hazard_book(&z, 77, s, 50, 0, 3);
    assert_true(hazard_rate(&z, cell, 3) == r);
    assert_true(hazard_rate(&z, cell, 4) > r);
    hazard_unref(&z, cell);
    hazard_release(&z);
}

static void one_lucky_hit_among_rare_ones_proves_little(void **state)
{
    (void)state;
    struct hazard z;
    assert_true(hazard_init(&z));
    const uint32_t s = hazard_situation(CUT_GEN_END, 0, true, 200);
    hazard_book(&z, 0, s, 50, 100000, 1); /* once in 2000 requests */
    const double all = hazard_of(&z, 0, s);
    hazard_book(&z, 5, s, 1, 40, 2);
    assert_true(hazard_of(&z, 5, s) < 4 * all);
    for (int i = 0; i < 20; i++)
        hazard_book(&z, 5, s, 1, 40, 3);
    assert_true(hazard_of(&z, 5, s) > 20 * all);
    hazard_release(&z);
}

static void more_hits_are_worth_more_and_youth_is_where_something_came_back(void **state)
{
    (void)state;
    struct hazard z;
    assert_true(hazard_init(&z));
    for (uint32_t k = CUT_BRANCH; k < CUT_N_KINDS; k++) {
        const uint32_t young = hazard_situation(k, 1, true, 1),
                       old = hazard_situation(k, 1, true, 500);
        const double base = hazard_of(&z, 0, young);
        assert_true(base > 0);
        assert_true(hazard_of(&z, 0, hazard_situation(k, 2, true, 1)) > base);
        assert_true(hazard_of(&z, 0, old) == base);
        hazard_book(&z, 0, hazard_situation(k, 0, true, 20), 5, 100, 1);
        hazard_begin(&z);
        assert_true(hazard_of(&z, 0, old) < hazard_of(&z, 0, young) / 4);
    }
    hazard_release(&z);
}

/* Much exposure in old situations and little in young ones, all without a hit, say how seldom such entries come
 * back, not that only the young ones do. */
static void where_nobody_comes_back_all_ages_of_a_kind_fall_together(void **state)
{
    (void)state;
    struct hazard z;
    assert_true(hazard_init(&z));
    const uint32_t young = hazard_situation(CUT_PROMPT, 0, true, 1);
    const uint32_t old = hazard_situation(CUT_PROMPT, 0, true, 200);
    const uint32_t rung = hazard_situation(CUT_LADDER, 0, true, 200);
    const double ladder = hazard_of(&z, 0, rung), high = hazard_of(&z, 0, young);
    hazard_book(&z, 0, young, 0, 600, 1);
    hazard_book(&z, 0, old, 0, 9000, 1);
    hazard_begin(&z);
    assert_true(hazard_of(&z, 0, young) < high / 4);
    assert_true(hazard_of(&z, 0, old) > hazard_of(&z, 0, young) / 8);
    assert_true(hazard_of(&z, 0, rung) == ladder); /* other kinds are not meant */
    hazard_release(&z);
}

static void families_that_never_come_back_do_not_fill_memory(void **state)
{
    (void)state;
    struct hazard z;
    struct rng g = {1};
    assert_true(hazard_init(&z));
    const uint32_t s = hazard_situation(CUT_PROMPT, 0, true, 1);
    hazard_book(&z, 5, s, 1e6, 1e6, 1);
    const uint32_t held = hazard_ref(&z, 5, s, 1); /* a live entry stands here */
    for (uint32_t now = 2; now < 300000; now++)
        hazard_book(&z, rng_u64(&g) | 1, s, 0, 1, now);
    assert_true(z.n_family <= HAZARD_MAX_CELLS);
    assert_true(hazard_bytes(&z) < 16 * MIB);
    assert_true(hazard_rate(&z, held, 300000) > .9);
    /* the latest are still known */
    hazard_book(&z, 9, s, 1e6, 1e6, 300000);
    for (uint32_t now = 300001; now < 310000; now++)
        hazard_book(&z, rng_u64(&g) | 1, s, 0, 1, now);
    assert_true(hazard_of(&z, 9, s) > .9);
    hazard_unref(&z, held);
    hazard_release(&z);
}

static void without_memory_a_family_counts_with_all(void **state)
{
    (void)state;
    struct hazard z;
    assert_true(hazard_init(&z));
    const uint32_t s = hazard_situation(CUT_PROMPT, 0, true, 1);
    mem_fail_after(1);
    for (uint64_t f = 1; f < 2000; f++) {
        const uint32_t cell = hazard_ref(&z, f, s, 1);
        assert_true(hazard_rate(&z, cell, 1) > 0);
        hazard_book(&z, f, s, 0, 1, 1);
        hazard_unref(&z, cell);
    }
    mem_fail_after(0);
    assert_true(z.cells[s].exposure == 1999);
    hazard_release(&z);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ages_fall_into_powers_of_four),
        cmocka_unit_test(an_unknown_family_has_the_habits_of_all_and_a_known_one_its_own),
        cmocka_unit_test(one_lucky_hit_among_rare_ones_proves_little),
        cmocka_unit_test(more_hits_are_worth_more_and_youth_is_where_something_came_back),
        cmocka_unit_test(where_nobody_comes_back_all_ages_of_a_kind_fall_together),
        cmocka_unit_test(families_that_never_come_back_do_not_fill_memory),
        cmocka_unit_test(without_memory_a_family_counts_with_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
