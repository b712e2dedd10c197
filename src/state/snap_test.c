#include "state/snap.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static const struct shape tiny = {.n_attn = 1,
                                  .n_delta = 3,
                                  .n_kv_heads = 1,
                                  .head_dim = 32,
                                  .conv_taps = 4,
                                  .conv_channels = 10,
                                  .n_v_heads = 2,
                                  .state_dim = 4};

static void slots_are_aligned_zeroed_and_apart(void **state)
{
    (void)state;
    struct rec *r;
    assert_int_equal(rec_new(&tiny, 2, &r, NULL), RC_OK);
    const uint64_t bytes = shape_snap_bytes(&tiny);
    for (int round = 0; round < 2; round++) {
        const rec_slot a = rec_take(r), b = rec_take(r);
        assert_true(a != 0 && b != 0 && a != b);
        assert_int_equal(rec_take(r), 0);
        for (uint64_t i = 0; i < bytes; i++)
            assert_int_equal(((const uint8_t *)rec_bytes(r, a))[i], 0);
        assert_int_equal((uintptr_t)rec_bytes(r, a) % 64, 0);
        assert_int_equal((uintptr_t)rec_bytes(r, b) % 64, 0);
        memset(rec_bytes(r, a), 0xa5, bytes);
        for (uint64_t i = 0; i < bytes; i++)
            assert_int_equal(((const uint8_t *)rec_bytes(r, b))[i], 0);
        memset(rec_bytes(r, b), 0x5a, bytes);
        rec_give(r, a);
        rec_give(r, b);
    }
    rec_free(r);
}

static void layers_follow_one_another_in_a_slot(void **state)
{
    (void)state;
    struct rec *r;
    assert_int_equal(rec_new(&tiny, 1, &r, NULL), RC_OK);
    const rec_slot s = rec_take(r);
    const float *at = rec_bytes(r, s);
    for (uint32_t d = 0; d < tiny.n_delta; d++) {
        assert_ptr_equal(rec_conv(r, s, d), at);
        at += 3 * 10;
        assert_ptr_equal(rec_s(r, s, d), at);
        at += 2 * 4 * 4;
    }
    assert_ptr_equal(at, (const uint8_t *)rec_bytes(r, s) + shape_snap_bytes(&tiny));
    rec_free(r);
}

static void fill(void *p, uint64_t n, uint64_t seed)
{
    struct rng rng = {seed};
    for (uint64_t i = 0; i < n; i++)
        ((uint8_t *)p)[i] = (uint8_t)rng_u64(&rng);
}

static void a_restored_slot_has_the_bits_that_were_taken(void **state)
{
    (void)state;
    enum { N = 20 };
    const uint64_t bytes = shape_snap_bytes(&tiny);
    struct rec *r;
    struct snap_store *st;
    struct snap *sn[N] = {0};
    assert_int_equal(rec_new(&tiny, 1, &r, NULL), RC_OK);
    assert_int_equal(snap_store_new(&tiny, &st, NULL), RC_OK);
    const rec_slot s = rec_take(r);
    uint8_t *want = mem_alloc(bytes);
    const char *env = getenv("SEED");
    struct rng rng = {env ? strtoull(env, NULL, 10) : 1};
    print_message("SEED=%llu\n", (unsigned long long)rng.s);
    uint64_t live = 0;
    for (int step = 0; step < 1000; step++) {
        const uint32_t i = rng_below(&rng, N);
        if (!sn[i]) {
            fill(rec_bytes(r, s), bytes, i + 1);
            assert_int_equal(snap_take(st, r, s, &sn[i], NULL), RC_OK);
            live++;
        } else if (rng_below(&rng, 2)) {
            snap_free(st, sn[i]);
            sn[i] = NULL;
            live--;
        } else {
            memset(rec_bytes(r, s), 0xff, bytes);
            snap_restore(sn[i], r, s);
            fill(want, bytes, i + 1);
            assert_memory_equal(rec_bytes(r, s), want, bytes);
            assert_memory_equal(snap_data(sn[i]), want, bytes);
        }
        assert_int_equal(snap_store_bytes(st), live * bytes);
    }
    for (int i = 0; i < N; i++)
        snap_free(st, sn[i]);
    assert_int_equal(snap_store_bytes(st), 0);
    mem_free(want);
    snap_store_free(st);
    rec_free(r);
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    for (uint64_t n = 1;; n++) {
        struct rec *r = NULL;
        struct snap_store *st = NULL;
        struct snap *sn = NULL;
        mem_fail_after(n);
        enum rc rc = rec_new(&tiny, 3, &r, NULL);
        if (!rc)
            rc = snap_store_new(&tiny, &st, NULL);
        if (!rc)
            rc = snap_take(st, r, rec_take(r), &sn, NULL);
        mem_fail_after(0);
        assert_true(rc == RC_OK || rc == RC_NOMEM);
        if (st) {
            snap_free(st, sn);
            assert_int_equal(snap_store_bytes(st), 0);
        }
        snap_store_free(st);
        rec_free(r);
        if (!rc)
            break;
        assert_null(sn);
    }
}

static void more_slots_than_memory_are_refused_with_the_numbers(void **state)
{
    (void)state;
    struct shape s = tiny;
    s.state_dim = 1 << 16;
    s.n_v_heads = 1 << 16;
    struct rec *r;
    struct err err;
    assert_int_equal(rec_new(&s, 4000000000u, &r, &err), RC_NOMEM);
    assert_non_null(strstr(err.msg, "4000000000 recurrent states"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slots_are_aligned_zeroed_and_apart),
        cmocka_unit_test(layers_follow_one_another_in_a_slot),
        cmocka_unit_test(a_restored_slot_has_the_bits_that_were_taken),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(more_slots_than_memory_are_refused_with_the_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
