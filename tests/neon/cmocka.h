/* cmocka.h - the few names of cmocka that the kernels' tests use, for a target cmocka is not built
 * for.  The first failure ends the program. */
#ifndef HOLDFAST_TESTS_NEON_CMOCKA_H
#define HOLDFAST_TESTS_NEON_CMOCKA_H

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct CMUnitTest {
    const char *name;
    void (*fn)(void **state);
};
#define cmocka_unit_test(f)                                                                        \
    {                                                                                              \
        .name = #f, .fn = f                                                                        \
    }

#define fail_msg(...)                                                                              \
    (fprintf(stderr, "%s:%d: ", __FILE__, __LINE__), fprintf(stderr, __VA_ARGS__),                 \
     fputc('\n', stderr), exit(1))
#define print_message(...) printf(__VA_ARGS__)
#define skip() return
#define assert_true(c) ((c) ? (void)0 : fail_msg("%s", #c))
#define assert_false(c) assert_true(!(c))
#define assert_non_null(p) assert_true((p) != NULL)
#define assert_null(p) assert_true((p) == NULL)
#define assert_int_equal(a, b) assert_true((intmax_t)(a) == (intmax_t)(b))
#define assert_int_not_equal(a, b) assert_true((intmax_t)(a) != (intmax_t)(b))
#define assert_ptr_equal(a, b) assert_true((const void *)(a) == (const void *)(b))
#define assert_string_equal(a, b) assert_true(strcmp((a), (b)) == 0)
#define assert_memory_equal(a, b, n) assert_true(memcmp((a), (b), (n)) == 0)
#define assert_in_range(v, lo, hi) assert_true((v) >= (lo) && (v) <= (hi))

static inline int cmocka_run(const struct CMUnitTest *tests, size_t n, int (*setup)(void **),
                             int (*teardown)(void **))
{
    void *state = NULL;
    if (setup && setup(&state))
        fail_msg("setup failed");
    for (size_t i = 0; i < n; i++) {
        tests[i].fn(&state);
        printf("ok %s\n", tests[i].name);
    }
    return teardown ? teardown(&state) : 0;
}
#define cmocka_run_group_tests(tests, setup, teardown)                                             \
    cmocka_run((tests), sizeof(tests) / sizeof((tests)[0]), (setup), (teardown))

#endif
