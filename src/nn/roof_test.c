#include "nn/roof.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include "kern/kern.h"
#include "kern/pick.h"

#include <cmocka.h>

static void every_table_has_a_roof_of_each_kind(void **state)
{
    (void)state;
    struct err err;
    struct pool *pool;
    const struct pool_opts po = {.n_threads = 2};
    if (pool_new(&po, &pool, &err))
        fail_msg("%s", err.msg);
    const struct kern *k;
    for (uint32_t i = 0; (k = kern_nth(i)); i++) {
        struct roof_probe *p;
        if (roof_new(k, pool, &p, &err))
            fail_msg("%s: %s", k->name, err.msg);
        const struct roof r = roof_measure(p);
        printf("%s: int8 %.1f GOPS, f32 %.1f GFLOPS, read %.1f GB/s\n", k->name, r.int8_ops * 1e-9,
               r.f32_ops * 1e-9, r.read_bytes * 1e-9);
        assert_true(r.int8_ops > 1e6 && r.f32_ops > 1e6 && r.read_bytes > 1e6);
        roof_free(p);
    }
    pool_free(pool);
}

static void the_better_of_two_roofs_is_so_in_each_kind(void **state)
{
    (void)state;
    const struct roof a = {1, 20, 3}, b = {10, 2, 4};
    const struct roof best = roof_better(&a, &b);
    assert_true(best.int8_ops == 10 && best.f32_ops == 20 && best.read_bytes == 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_table_has_a_roof_of_each_kind),
        cmocka_unit_test(the_better_of_two_roofs_is_so_in_each_kind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
