#include "engine/think.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static const token end[] = {7, 8};

/* Says the texts until something else is to come; how many were said. */
static uint32_t run(struct think *t, const char *const *texts)
{
    uint32_t n = 0;
    while (texts[n] && think_next(t) < 0)
        think_note(t, str_of(texts[n++]));
    return n;
}

static void the_end_comes_after_the_budget_and_once(void **state)
{
    (void)state;
    static const char *const texts[] = {"a", "b", "c", "d", "e", NULL};
    for (uint32_t budget = 0; budget < 4; budget++) {
        const struct think_limit limit = {.end = end, .n_end = 2, .budget = budget, .open = true};
        struct think t;
        think_init(&t, &limit);
        assert_int_equal(run(&t, texts), budget);
        assert_int_equal(think_next(&t), 7);
        think_note(&t, str_of("</th"));
        assert_int_equal(think_next(&t), 8);
        think_note(&t, str_of("ink>"));
        assert_int_equal(run(&t, texts), 5); /* the answer has no limit */
    }
}

static void reasoning_that_ends_by_itself_is_left_alone(void **state)
{
    (void)state;
    static const char *const whole[] = {"a", "</think>", "b", "c", "d", NULL};
    static const char *const pieces[] = {"a</", "thi", "nk>x", "c", "d", "e", NULL};
    const struct think_limit limit = {.end = end, .n_end = 2, .budget = 3, .open = true};
    struct think t;
    think_init(&t, &limit);
    assert_int_equal(run(&t, whole), 5);
    think_init(&t, &limit);
    assert_int_equal(run(&t, pieces), 6);
}

static void tokens_count_from_the_tag_when_the_model_opens_it(void **state)
{
    (void)state;
    static const char *const thinks[] = {"\n", "<thi", "nk>", "a", "b", "c", NULL};
    static const char *const answers[] = {"<", "b>", "<think>", "a", "b", "c", "d", NULL};
    const struct think_limit limit = {.end = end, .n_end = 2, .budget = 2};
    struct think t;
    think_init(&t, &limit);
    assert_int_equal(run(&t, thinks), 5);
    assert_int_equal(think_next(&t), 7);
    think_init(&t, &limit);
    assert_int_equal(run(&t, answers), 7); /* a tag that comes later is talk about tags */
}

static void without_an_end_nothing_is_ended(void **state)
{
    (void)state;
    static const char *const texts[] = {"a", "b", NULL};
    const struct think_limit limit = {.open = true};
    struct think t;
    think_init(&t, &limit);
    assert_int_equal(run(&t, texts), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_end_comes_after_the_budget_and_once),
        cmocka_unit_test(reasoning_that_ends_by_itself_is_left_alone),
        cmocka_unit_test(tokens_count_from_the_tag_when_the_model_opens_it),
        cmocka_unit_test(without_an_end_nothing_is_ended),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
