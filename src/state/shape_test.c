#include "state/shape.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

/* specs of two published sizes: 0.8B and 35B-A3B */
static const struct shape small = {.n_attn = 6,
                                   .n_delta = 18,
                                   .n_kv_heads = 2,
                                   .head_dim = 256,
                                   .conv_taps = 4,
                                   .conv_channels = 6144,
                                   .n_v_heads = 16,
                                   .state_dim = 128};
static const struct shape big = {.n_attn = 10,
                                 .n_delta = 30,
                                 .n_kv_heads = 2,
                                 .head_dim = 256,
                                 .conv_taps = 4,
                                 .conv_channels = 8192,
                                 .n_v_heads = 32,
                                 .state_dim = 128};

static void the_0_8b_shape_takes_12_kib_a_token_and_20_mb_a_snapshot(void **state)
{
    (void)state;
    assert_int_equal(shape_token_bytes(&small), 12 * 1024);
    assert_int_equal(shape_page_bytes(&small), 64 * 12 * 1024);
    assert_int_equal(shape_snap_bytes(&small), 18 * 4 * (3 * 6144 + 16 * 128 * 128));
}

static void the_35b_shape_takes_62_8125_mib_a_snapshot(void **state)
{
    (void)state;
    assert_int_equal(shape_snap_bytes(&big), 65863680);
    assert_int_equal(shape_token_bytes(&big), 20 * 1024);
}

static void the_kv_type_scales_the_row(void **state)
{
    (void)state;
    struct shape s = small;
    s.kv_type = KV_F32;
    assert_int_equal(shape_row_bytes(&s), 1024);
    s.kv_type = KV_Q8_0;
    assert_int_equal(shape_row_bytes(&s), 272);
    s.kv_type = KV_I16;
    assert_int_equal(shape_row_bytes(&s), 516);
}

static void a_shape_without_delta_layers_has_an_empty_snapshot(void **state)
{
    (void)state;
    const struct shape s = {.n_attn = 2, .n_kv_heads = 1, .head_dim = 64};
    assert_int_equal(shape_snap_bytes(&s), 0);
    assert_int_equal(shape_conv_floats(&s), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_0_8b_shape_takes_12_kib_a_token_and_20_mb_a_snapshot),
        cmocka_unit_test(the_35b_shape_takes_62_8125_mib_a_snapshot),
        cmocka_unit_test(the_kv_type_scales_the_row),
        cmocka_unit_test(a_shape_without_delta_layers_has_an_empty_snapshot),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
