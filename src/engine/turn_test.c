#include "engine/turn.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static void expect(const struct turn *t, const char *want)
{
    struct buf line = BUF_INIT;
    turn_line(t, &line);
    assert_string_equal(buf_str(&line), want);
    buf_release(&line);
}

static void the_line_says_what_was_reused_and_from_where(void **state)
{
    (void)state;
    struct turn t = {.id = 3,
                     .t = {.n_prompt = 4947,
                           .n_reused = 2531,
                           .n_evaluated = 2416,
                           .n_predicted = 32,
                           .prompt_ms = 7102,
                           .predicted_ms = 660},
                     .plan = {.restore = 9, .restore_kind = CUT_BRANCH, .start = 2531, .lcp = 2531},
                     .stop = STOP_LIMIT};
    expect(&t, "request 3: prompt 4947, reused 2531 (branch, RAM), evaluated 2416 in 7.10 s "
               "(340.2 tok/s), generated 32 in 0.66 s (48.5 tok/s), stop limit");
    t.t.n_shared = 31;
    t.plan.start = 2500;
    expect(&t,
           "request 3: prompt 4947, reused 2531 (2500 branch, RAM; 31 from a request in flight), "
           "evaluated 2416 in 7.10 s (340.2 tok/s), generated 32 in 0.66 s (48.5 tok/s), "
           "stop limit");
    t.t.n_shared = 0;
    t.plan.start = 2531;
    t.plan.fetch = true;
    expect(&t, "request 3: prompt 4947, reused 2531 (branch, disk), evaluated 2416 in 7.10 s "
               "(340.2 tok/s), generated 32 in 0.66 s (48.5 tok/s), stop limit");
}

static void the_line_says_why_less_was_reused_than_is_common(void **state)
{
    (void)state;
    const struct turn t = {.id = 4,
                           .t = {.n_prompt = 100, .n_evaluated = 100, .prompt_ms = 1000},
                           .plan = {.lcp = 90,
                                    .lost_placement = 20,
                                    .lost_evicted = 69,
                                    .lost_last = 1,
                                    .evicted_ns = 1000},
                           .stop = STOP_CANCELLED,
                           .now_ns = 12 * UINT64_C(1000000000) + 1000};
    expect(&t,
           "request 4: prompt 100, reused 0, evaluated 100 in 1.00 s (100.0 tok/s), generated 0 "
           "in 0.00 s, stop cancelled; 90 of 90 common tokens evaluated again: no snapshot "
           "placed 20, evicted 69 (12 s ago), for the last token 1");
}

static void an_error_is_told(void **state)
{
    (void)state;
    const struct turn t = {
        .id = 5, .t = {.n_prompt = 7}, .stop = STOP_ERROR, .error = "no KV memory"};
    expect(&t, "request 5: prompt 7, reused 0, evaluated 0 in 0.00 s, generated 0 in 0.00 s, stop "
               "error (no KV memory)");
}

static void the_line_tells_of_a_state_that_another_maker_left(void **state)
{
    (void)state;
    struct turn t = {.id = 5,
                     .t = {.n_prompt = 100, .n_evaluated = 100, .prompt_ms = 1000},
                     .foreign = {.pos = 80, .by = {.kernels = "avx2", .kv_type = "f16"}},
                     .stop = STOP_LIMIT};
    expect(&t,
           "request 5: prompt 100, reused 0, evaluated 100 in 1.00 s (100.0 tok/s), generated 0 "
           "in 0.00 s, stop limit; 80 tokens are on disk for another fingerprint (KV f16, "
           "kernels avx2)");
    t.t.n_reused = 90; /* from a request in flight */
    t.t.n_shared = 90;
    t.t.n_evaluated = 10;
    expect(&t,
           "request 5: prompt 100, reused 90 (from a request in flight), evaluated 10 in 1.00 s "
           "(10.0 tok/s), generated 0 in 0.00 s, stop limit");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_line_says_what_was_reused_and_from_where),
        cmocka_unit_test(the_line_says_why_less_was_reused_than_is_common),
        cmocka_unit_test(the_line_tells_of_a_state_that_another_maker_left),
        cmocka_unit_test(an_error_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
