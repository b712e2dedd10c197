#include "state/kv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static const struct shape tiny = {.n_attn = 2, .n_kv_heads = 2, .head_dim = 32, .kv_type = KV_F32};

static struct kv *new_kv(uint64_t max_bytes)
{
    struct kv *kv;
    assert_int_equal(kv_new(&tiny, max_bytes, &kv, NULL), RC_OK);
    return kv;
}

/* The whole of a position's K and V is one stamp, so that a copy of the wrong page shows.  Position t of
 * a page is its t-th 16 bytes of each side: the layout within a page is the kernels' business. */
static void stamp(struct kv *kv, const struct kv_table *t, uint32_t pos, uint64_t value)
{
    for (uint32_t a = 0; a < tiny.n_attn; a++)
        for (uint32_t h = 0; h < tiny.n_kv_heads; h++) {
            const uint64_t k = value + a * 10 + h, v = ~k;
            const kv_page p = t->pages[pos / KV_PAGE];
            memcpy((uint8_t *)kv_k(kv, p, a, h) + pos % KV_PAGE * 16, &k, sizeof k);
            memcpy((uint8_t *)kv_v(kv, p, a, h) + pos % KV_PAGE * 16, &v, sizeof v);
        }
}

static void assert_stamped(struct kv *kv, const struct kv_table *t, uint32_t pos, uint64_t value)
{
    for (uint32_t a = 0; a < tiny.n_attn; a++)
        for (uint32_t h = 0; h < tiny.n_kv_heads; h++) {
            uint64_t k, v;
            const kv_page p = t->pages[pos / KV_PAGE];
            memcpy(&k, (uint8_t *)kv_k(kv, p, a, h) + pos % KV_PAGE * 16, sizeof k);
            memcpy(&v, (uint8_t *)kv_v(kv, p, a, h) + pos % KV_PAGE * 16, sizeof v);
            assert_int_equal(k, value + a * 10 + h);
            assert_int_equal(v, ~k);
        }
}

static void fill(struct kv *kv, struct kv_table *t, uint32_t n, uint64_t base)
{
    assert_int_equal(kv_table_extend(kv, t, n, NULL), RC_OK);
    for (uint32_t i = 0; i < n; i++)
        stamp(kv, t, t->len + i, base + 1000 * (t->len + i));
    kv_table_advance(t, n);
}

static void a_shared_table_holds_the_same_pages(void **state)
{
    (void)state;
    struct kv *kv = new_kv(0);
    struct kv_table seq, snap;
    kv_table_init(&seq);
    kv_table_init(&snap);
    fill(kv, &seq, 100, 7);
    assert_int_equal(kv_table_share(kv, &seq, 70, &snap, NULL), RC_OK);
    assert_int_equal(snap.len, 70);
    assert_int_equal(snap.n, 2);
    assert_int_equal(snap.pages[1], seq.pages[1]);
    assert_int_equal(kv_refs(kv, seq.pages[1]), 2);
    kv_table_release(kv, &seq);
    assert_stamped(kv, &snap, 69, 7 + 69000);
    kv_table_release(kv, &snap);
    assert_int_equal(kv_n_pages(kv), 0);
    assert_int_equal(kv_bytes(kv), 0);
    kv_free(kv);
}

static void a_fork_inside_a_page_writes_into_a_copy(void **state)
{
    (void)state;
    struct kv *kv = new_kv(0);
    struct kv_table a, b;
    kv_table_init(&a);
    kv_table_init(&b);
    fill(kv, &a, 100, 7);
    assert_int_equal(kv_table_fork(kv, &a, 70, &b, NULL), RC_OK);
    assert_int_equal(b.pages[0], a.pages[0]);
    assert_int_not_equal(b.pages[1], a.pages[1]);
    assert_int_equal(kv_n_pages(kv), 3);
    fill(kv, &b, 30, 9);
    for (uint32_t i = 0; i < 100; i++) {
        assert_stamped(kv, &a, i, 7 + 1000 * i);
        assert_stamped(kv, &b, i, (i < 70 ? 7 : 9) + 1000 * i);
    }
    kv_table_release(kv, &a);
    kv_table_release(kv, &b);
    kv_free(kv);
}

static void a_fork_at_a_page_end_copies_nothing(void **state)
{
    (void)state;
    struct kv *kv = new_kv(0);
    struct kv_table a, b;
    kv_table_init(&a);
    kv_table_init(&b);
    fill(kv, &a, 128, 7);
    assert_int_equal(kv_table_fork(kv, &a, 128, &b, NULL), RC_OK);
    assert_int_equal(kv_n_pages(kv), 2);
    assert_int_equal(b.n, 2);
    kv_table_release(kv, &a);
    kv_table_release(kv, &b);
    kv_free(kv);
}

static void dedupe_takes_over_full_pages_only(void **state)
{
    (void)state;
    struct kv *kv = new_kv(0);
    struct kv_table a, b;
    kv_table_init(&a);
    kv_table_init(&b);
    fill(kv, &a, 200, 7);
    fill(kv, &b, 150, 7);
    assert_int_equal(kv_n_pages(kv), 4 + 3);
    kv_table_dedupe(kv, &b, &a, 150);
    assert_int_equal(kv_n_pages(kv), 4 + 1);
    assert_int_equal(b.pages[1], a.pages[1]);
    assert_int_not_equal(b.pages[2], a.pages[2]);
    kv_table_release(kv, &a);
    for (uint32_t i = 0; i < 150; i++)
        assert_stamped(kv, &b, i, 7 + 1000 * i);
    kv_table_release(kv, &b);
    assert_int_equal(kv_n_pages(kv), 0);
    kv_free(kv);
}

static void a_full_budget_leaves_the_table_as_it_was(void **state)
{
    (void)state;
    const uint64_t page = shape_page_bytes(&tiny);
    struct kv *kv = new_kv(5 * page);
    struct kv_table t, u;
    kv_table_init(&t);
    kv_table_init(&u);
    fill(kv, &t, 3 * KV_PAGE, 1);
    struct err err;
    assert_int_equal(kv_table_extend(kv, &u, 3 * KV_PAGE, &err), RC_NOMEM);
    assert_non_null(strstr(err.msg, "no KV memory for 192 more tokens"));
    assert_int_equal(u.n, 0);
    assert_int_equal(kv_n_pages(kv), 3);
    assert_int_equal(kv_table_extend(kv, &u, 2 * KV_PAGE, NULL), RC_OK);
    assert_true(kv_bytes(kv) <= 5 * page);
    kv_table_release(kv, &t);
    kv_table_release(kv, &u);
    kv_free(kv);
}

static void a_budget_below_one_page_is_refused(void **state)
{
    (void)state;
    struct kv *kv;
    struct err err;
    assert_int_equal(kv_new(&tiny, 100, &kv, &err), RC_LIMIT);
    assert_non_null(strstr(err.msg, "100 bytes of KV hold not one page"));
}

static void lengths_beyond_32_bits_are_refused(void **state)
{
    (void)state;
    struct kv *kv = new_kv(0);
    struct kv_table t;
    kv_table_init(&t);
    fill(kv, &t, 10, 1);
    assert_int_equal(kv_table_extend(kv, &t, UINT32_MAX - 3, NULL), RC_LIMIT);
    kv_table_release(kv, &t);
    kv_free(kv);
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    for (uint64_t n = 1;; n++) {
        struct kv *kv = new_kv(0);
        struct kv_table a, b, c;
        kv_table_init(&a);
        kv_table_init(&b);
        kv_table_init(&c);
        mem_fail_after(n);
        enum rc rc = kv_table_extend(kv, &a, 100, NULL);
        if (!rc) {
            kv_table_advance(&a, 100);
            rc = kv_table_share(kv, &a, 90, &b, NULL);
        }
        if (!rc)
            rc = kv_table_fork(kv, &a, 80, &c, NULL);
        mem_fail_after(0);
        assert_true(rc == RC_OK || rc == RC_NOMEM);
        kv_table_release(kv, &a);
        kv_table_release(kv, &b);
        kv_table_release(kv, &c);
        assert_int_equal(kv_n_pages(kv), 0);
        kv_free(kv);
        if (!rc)
            break;
    }
}

/* ---- random steps against a model that keeps every holder's values in full ---- */

enum { N_HOLDERS = 12, MAX_LEN = 1000, STEPS = 4000 };

struct holder {
    struct kv_table t;
    bool live, runs; /* only what runs may write */
    uint64_t value[MAX_LEN];
};

static void check_all(struct kv *kv, struct holder *hs)
{
    uint32_t used = 0;
    static uint32_t refs[4096];
    memset(refs, 0, sizeof refs);
    for (int i = 0; i < N_HOLDERS; i++) {
        const struct holder *h = &hs[i];
        for (uint32_t j = 0; h->live && j < h->t.n; j++) {
            assert_true(h->t.pages[j] < COUNT_OF(refs));
            used += refs[h->t.pages[j]]++ == 0;
        }
        for (uint32_t p = 0; h->live && p < h->t.len; p += 7)
            assert_stamped(kv, &h->t, p, h->value[p]);
    }
    assert_int_equal(used, kv_n_pages(kv));
    for (kv_page p = 1; p < COUNT_OF(refs); p++)
        if (refs[p])
            assert_int_equal(refs[p], kv_refs(kv, p));
    assert_true(kv_bytes(kv) >= used * shape_page_bytes(&tiny));
}

static void append(struct kv *kv, struct holder *h, struct rng *rng)
{
    const uint32_t want = rng_below(rng, 150) + 1, n = MIN(want, MAX_LEN - h->t.len);
    if (n == 0 || kv_table_extend(kv, &h->t, n, NULL) != RC_OK)
        return;
    for (uint32_t i = h->t.len; i < h->t.len + n; i++) {
        h->value[i] = rng_u64(rng) >> 8;
        stamp(kv, &h->t, i, h->value[i]);
    }
    kv_table_advance(&h->t, n);
}

static void random_holders_never_see_one_another(void **state)
{
    (void)state;
    const char *seed = getenv("SEED");
    struct rng rng = {seed ? strtoull(seed, NULL, 10) : 1};
    print_message("SEED=%llu\n", (unsigned long long)rng.s);
    struct kv *kv = new_kv(90 * shape_page_bytes(&tiny));
    struct holder *hs = mem_zalloc(N_HOLDERS * sizeof *hs);
    for (int step = 0; step < STEPS; step++) {
        struct holder *h = &hs[rng_below(&rng, N_HOLDERS)];
        const struct holder *src = &hs[rng_below(&rng, N_HOLDERS)];
        if (h->live && rng_below(&rng, 4) == 0) {
            kv_table_release(kv, &h->t);
            h->live = false;
        } else if (h->live && h->runs) {
            append(kv, h, &rng);
        } else if (!h->live && src->live && rng_below(&rng, 3) != 0) {
            const uint32_t len = rng_below(&rng, src->t.len + 1);
            h->runs = rng_below(&rng, 2);
            const enum rc rc = h->runs ? kv_table_fork(kv, &src->t, len, &h->t, NULL)
                                       : kv_table_share(kv, &src->t, len, &h->t, NULL);
            if (rc == RC_OK) {
                h->live = true;
                memcpy(h->value, src->value, sizeof h->value);
            } else {
                assert_int_equal(h->t.n, 0);
            }
        } else if (!h->live) {
            h->live = h->runs = true;
        } else if (src->live && src != h) {
            uint32_t same = 0;
            while (same < MIN(h->t.len, src->t.len) && h->value[same] == src->value[same])
                same++;
            kv_table_dedupe(kv, &h->t, &src->t, same);
        }
        if (step % 8 == 0)
            check_all(kv, hs);
    }
    for (int i = 0; i < N_HOLDERS; i++)
        kv_table_release(kv, &hs[i].t);
    assert_int_equal(kv_n_pages(kv), 0);
    assert_int_equal(kv_bytes(kv), 0);
    mem_free(hs);
    kv_free(kv);
}

static uint64_t resident(void)
{
    unsigned long all, pages;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f)
        skip();
    assert_int_equal(fscanf(f, "%lu %lu", &all, &pages), 2);
    fclose(f);
    return (uint64_t)pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* 32 MiB in many slabs, none of which ever becomes empty. */
static void pages_freed_among_others_give_their_memory_back(void **state)
{
    (void)state;
    enum { N = 512 };
    static struct kv_table t[N];
    struct kv *kv = new_kv(0);
    const uint64_t page = shape_page_bytes(&tiny);
    for (uint32_t i = 0; i < N; i++) {
        kv_table_init(&t[i]);
        fill(kv, &t[i], KV_PAGE, i);
    }
    assert_int_equal(kv_bytes(kv), N * page);
    for (int round = 0; round < 3; round++) {
        for (uint32_t i = 0; i < N; i++) /* what comes again is written whole */
            memset(kv_page_mem(kv, t[i].pages[0]), round, page);
        const uint64_t full = resident();
        for (uint32_t i = 0; i < N; i++)
            if (i % 4)
                kv_table_release(kv, &t[i]);
        assert_int_equal(kv_n_pages(kv), N / 4);
        assert_in_range(kv_bytes(kv), N / 4 * page, N / 4 * page * 103 / 100);
        assert_true(full - resident() > N / 2 * page);
        for (uint32_t i = 0; i < N; i++)
            if (i % 4)
                fill(kv, &t[i], KV_PAGE, i);
        assert_int_equal(kv_bytes(kv), N * page);
    }
    for (uint32_t i = 0; i < N; i++)
        kv_table_release(kv, &t[i]);
    assert_int_equal(kv_bytes(kv), 0);
    kv_free(kv);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_shared_table_holds_the_same_pages),
        cmocka_unit_test(a_fork_inside_a_page_writes_into_a_copy),
        cmocka_unit_test(a_fork_at_a_page_end_copies_nothing),
        cmocka_unit_test(dedupe_takes_over_full_pages_only),
        cmocka_unit_test(a_full_budget_leaves_the_table_as_it_was),
        cmocka_unit_test(a_budget_below_one_page_is_refused),
        cmocka_unit_test(lengths_beyond_32_bits_are_refused),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(random_holders_never_see_one_another),
        cmocka_unit_test(pages_freed_among_others_give_their_memory_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
