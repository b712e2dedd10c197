#include "base/dtype.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static void every_known_id_has_the_block_size_of_the_format(void **state)
{
    (void)state;
    static const struct {
        uint32_t id, elems, bytes;
        const char *name;
    } want[] = {
        {0, 1, 4, "f32"},       {1, 1, 2, "f16"},         {2, 32, 18, "q4_0"},
        {3, 32, 20, "q4_1"},    {6, 32, 22, "q5_0"},      {7, 32, 24, "q5_1"},
        {8, 32, 34, "q8_0"},    {10, 256, 84, "q2_K"},    {11, 256, 110, "q3_K"},
        {12, 256, 144, "q4_K"}, {13, 256, 176, "q5_K"},   {14, 256, 210, "q6_K"},
        {20, 32, 18, "iq4_nl"}, {23, 256, 136, "iq4_xs"}, {30, 1, 2, "bf16"},
        {39, 32, 17, "mxfp4"},
    };
    size_t known = 0;
    for (uint32_t id = 0; id < 300; id++)
        known += dtype_info(id) != NULL;
    assert_int_equal(known, COUNT_OF(want));
    for (size_t i = 0; i < COUNT_OF(want); i++) {
        const struct dtype_info *d = dtype_info(want[i].id);
        assert_non_null(d);
        assert_int_equal(d->type, want[i].id);
        assert_int_equal(d->block_elems, want[i].elems);
        assert_int_equal(d->block_bytes, want[i].bytes);
        assert_string_equal(d->name, want[i].name);
    }
}

static void ids_between_and_beyond_are_unknown(void **state)
{
    (void)state;
    static const uint32_t ids[] = {4, 5, 9, 15, 16, 24, 31, 38, 40, 133, 0x80000000u, UINT32_MAX};
    for (size_t i = 0; i < COUNT_OF(ids); i++)
        assert_null(dtype_info(ids[i]));
}

static void names_are_found_in_any_case(void **state)
{
    (void)state;
    assert_int_equal(dtype_by_name("Q8_0")->type, DT_Q8_0);
    assert_int_equal(dtype_by_name("q4_k")->type, DT_Q4_K);
    assert_int_equal(dtype_by_name("F16")->type, DT_F16);
    assert_int_equal(dtype_by_name("MXFP4")->type, DT_MXFP4);
    assert_null(dtype_by_name("q8"));
    assert_null(dtype_by_name(""));
    assert_null(dtype_by_name("q8_0 "));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_known_id_has_the_block_size_of_the_format),
        cmocka_unit_test(ids_between_and_beyond_are_unknown),
        cmocka_unit_test(names_are_found_in_any_case),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
