#include "nn/mat_heap.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include "base/mem.h"

#include <cmocka.h>

static void small_ones_follow_one_another_and_large_ones_stand_alone(void **state)
{
    (void)state;
    struct mat_heap *h = mat_heap_new();
    uint8_t *a = mat_heap_try(h, 100), *large = mat_heap_try(h, 9 << 20), *b = mat_heap_try(h, 64);
    assert_non_null(a);
    assert_non_null(large);
    assert_int_equal((uintptr_t)a % (2 << 20), 0);
    assert_int_equal((uintptr_t)large % (2 << 20), 0);
    assert_ptr_equal(b, a + 128);
    memset(large, 1, 9 << 20);
    memset(a, 2, 100);
    memset(b, 3, 64);
    assert_int_equal(large[0] + large[(9 << 20) - 1], 2);
    mat_heap_free(h);
}

static void a_chunk_that_is_full_is_followed_by_another(void **state)
{
    (void)state;
    enum { N = 20, BYTES = 5 << 20 };
    struct mat_heap *h = mat_heap_new();
    uint8_t *p[N];
    for (int i = 0; i < N; i++) {
        p[i] = mat_heap_try(h, BYTES);
        assert_non_null(p[i]);
        p[i][0] = p[i][BYTES - 1] = (uint8_t)i;
    }
    for (int i = 0; i < N; i++)
        assert_int_equal(p[i][0] + p[i][BYTES - 1], 2 * i);
    mat_heap_free(h);
}

static void without_memory_there_is_no_chunk_and_the_heap_lives_on(void **state)
{
    (void)state;
    struct mat_heap *h = mat_heap_new();
    mem_fail_after(1);
    uint8_t *p = mat_heap_try(h, 1000);
    mem_fail_after(1);
    uint8_t *large = mat_heap_try(h, 9 << 20);
    mem_fail_after(0);
    assert_null(p);
    assert_null(large);
    assert_non_null(mat_heap_try(h, 1000));
    mat_heap_free(h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_ones_follow_one_another_and_large_ones_stand_alone),
        cmocka_unit_test(a_chunk_that_is_full_is_followed_by_another),
        cmocka_unit_test(without_memory_there_is_no_chunk_and_the_heap_lives_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
