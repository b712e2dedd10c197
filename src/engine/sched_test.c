#include "engine/sched.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/rng.h"
#include "engine/meter.h"

#include <cmocka.h>

static uint64_t seed_of_run(void)
{
    const char *s = getenv("SEED");
    return s ? strtoull(s, NULL, 10) : 5;
}

static uint32_t total(const struct sched_row *rows, uint32_t n)
{
    uint32_t sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += rows[i].take;
    return sum;
}

static void those_that_decode_come_first_and_the_rest_is_shared(void **state)
{
    (void)state;
    struct sched_row r[] = {
        {.want = 5000}, {.want = 1, .decode = true}, {.want = 20}, {.want = 900}};
    sched_share(r, 4, 512, 512, 0);
    assert_int_equal(r[1].take, 1);
    assert_int_equal(r[2].take, 20); /* a short prompt is through at once */
    assert_int_equal(r[0].take + r[3].take, 512 - 21);
    assert_true(abs((int)r[0].take - (int)r[3].take) <= 1);
    sched_share(r, 4, 512, 64, 0); /* someone waits for a token: less prefill beside it */
    assert_int_equal(total(r, 4), 1 + 64);
}

static void more_decoders_than_rows_take_turns(void **state)
{
    (void)state;
    uint32_t served[7] = {0};
    for (uint32_t step = 0; step < 7; step++) {
        struct sched_row r[7];
        for (uint32_t i = 0; i < 7; i++)
            r[i] = (struct sched_row){.want = 1, .decode = true};
        sched_share(r, 7, 3, 3, step);
        assert_int_equal(total(r, 7), 3);
        for (uint32_t i = 0; i < 7; i++)
            served[i] += r[i].take;
    }
    for (uint32_t i = 0; i < 7; i++)
        assert_int_equal(served[i], 3);
}

static void no_row_takes_more_than_it_wants_and_no_room_is_left_unused(void **state)
{
    (void)state;
    const uint64_t seed = seed_of_run();
    struct rng rng = {seed};
    for (int round = 0; round < 20000; round++) {
        struct sched_row r[9];
        const uint32_t n = 1 + rng_below(&rng, 9);
        uint32_t n_decode = 0, want = 0;
        for (uint32_t i = 0; i < n; i++) {
            const bool decode = rng_below(&rng, 3) == 0;
            r[i] =
                (struct sched_row){.want = decode ? 1 : 1 + rng_below(&rng, 300), .decode = decode};
            n_decode += decode;
            want += decode ? 0 : r[i].want;
        }
        const uint32_t max_rows = 1 + rng_below(&rng, 400);
        const uint32_t max_prefill = rng_below(&rng, 400);
        sched_share(r, n, max_rows, max_prefill, rng_below(&rng, n));
        uint32_t decode = 0, prefill = 0;
        for (uint32_t i = 0; i < n; i++) {
            if (r[i].take > r[i].want)
                fail_msg("SEED=%" PRIu64 " round %d: row %u takes %u of %u", seed, round, i,
                         r[i].take, r[i].want);
            *(r[i].decode ? &decode : &prefill) += r[i].take;
        }
        assert_int_equal(decode, MIN(n_decode, max_rows));
        assert_int_equal(prefill, MIN(want, MIN(max_rows - decode, max_prefill)));
        /* shares: one that got less than it wanted got no less than any other, give or take one */
        for (uint32_t i = 0; i < n; i++)
            for (uint32_t k = 0; k < n; k++)
                if (!r[i].decode && !r[k].decode && r[i].take < r[i].want)
                    assert_true(r[k].take <= r[i].take + 1);
    }
}

static void a_forward_is_sized_by_the_measured_rate(void **state)
{
    (void)state;
    struct meter m = {0};
    assert_int_equal(meter_rows_in(&m, 250000000, 32, 512), 512); /* nothing measured yet */
    meter_step(&m, 512, 2000000000);                              /* 256 rows a second */
    assert_int_equal(meter_rows_in(&m, 250000000, 32, 512), 64);
    meter_step(&m, 1, 1000000000); /* one row says nothing about many */
    assert_int_equal(meter_rows_in(&m, 250000000, 32, 512), 64);
    assert_int_equal(meter_rows_in(&m, 1000000, 32, 512), 32);
    assert_int_equal(meter_rows_in(&m, 250000000, 32, 16), 16);
    assert_int_equal(m.steps, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(those_that_decode_come_first_and_the_rest_is_shared),
        cmocka_unit_test(more_decoders_than_rows_take_turns),
        cmocka_unit_test(no_row_takes_more_than_it_wants_and_no_room_is_left_unused),
        cmocka_unit_test(a_forward_is_sized_by_the_measured_rate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
