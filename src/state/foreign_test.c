/* What another maker's files had for a prompt is what a search of all of them finds.  SEED repeats a run. */
#include "state/foreign.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"

#include <cmocka.h>

static struct rng rng_of_run(void)
{
    const char *s = getenv("SEED");
    const struct rng g = {s ? strtoull(s, NULL, 0) : 1};
    print_message("SEED=%" PRIu64 "\n", g.s);
    return g;
}

enum { N_FILES = 60, LONGEST = 500 };

struct file {
    token seq[LONGEST];
    struct segment_head h;
    struct segment_maker by;
    bool has_snap, whole;
};

static void new_file(struct file *all, uint32_t i, struct rng *g)
{
    struct file *x = &all[i];
    const struct file *p = i && rng_below(g, 3) ? &all[rng_below(g, i)] : NULL;
    for (uint32_t k = 0; k < LONGEST; k++)
        x->seq[k] = (token)rng_below(g, 5);
    x->h = (struct segment_head){
        .id = i + 1, .pos = 1 + rng_below(g, LONGEST), .used_ns = rng_below(g, 1000)};
    x->by.fingerprint = 1 + rng_below(g, 2);
    x->has_snap = rng_below(g, 4) != 0;
    x->whole = true;
    if (p) {
        x->h.from = rng_below(g, p->h.pos + 1);
        x->h.pos = MAX(x->h.pos, x->h.from);
        memcpy(x->seq, p->seq, x->h.from * sizeof *x->seq);
        x->h.parent = rng_below(g, 8) ? p->h.id : 999; /* that one is lost */
        x->whole = x->h.parent == p->h.id && p->whole && p->by.fingerprint == x->by.fingerprint;
    }
    x->h.path_hash = segment_hash(x->seq, x->h.pos);
}

static void it_is_what_a_search_of_all_files_finds(void **state)
{
    (void)state;
    struct rng g = rng_of_run();
    static struct file all[N_FILES];
    uint32_t n_found = 0;
    for (int round = 0; round < 40; round++) {
        struct foreign *f = foreign_new();
        for (uint32_t i = 0; i < N_FILES; i++)
            new_file(all, i, &g);
        for (uint32_t i = 0; i < N_FILES; i++) /* in any order */
            foreign_add(f, &all[i * 7 % N_FILES].h, &all[i * 7 % N_FILES].by,
                        all[i * 7 % N_FILES].has_snap);
        foreign_ready(f);
        for (int k = 0; k < 50; k++) {
            const struct file *like = &all[rng_below(&g, N_FILES)];
            const uint32_t n = rng_below(&g, LONGEST + 1), from = rng_below(&g, 200);
            token seq[LONGEST];
            memcpy(seq, like->seq, sizeof seq);
            if (rng_below(&g, 2))
                seq[rng_below(&g, LONGEST)]++;
            uint32_t want = 0;
            for (uint32_t i = 0; i < N_FILES; i++)
                if (all[i].has_snap && all[i].whole && all[i].h.pos > from && all[i].h.pos <= n &&
                    !memcmp(all[i].seq, seq, all[i].h.pos * sizeof *seq))
                    want = MAX(want, all[i].h.pos);
            const struct foreign_state got = foreign_find(f, seq, n, from);
            assert_int_equal(got.pos, want);
            if (want) {
                const struct file *x = &all[got.id - 1];
                assert_true(x->h.pos == want && x->by.fingerprint == got.by.fingerprint);
                n_found++;
            }
        }
        foreign_free(f);
    }
    assert_true(n_found > 100);
}

static void of_too_many_those_used_last_are_known(void **state)
{
    (void)state;
    struct foreign *f = foreign_new();
    const struct segment_maker by = {.fingerprint = 1};
    for (uint32_t i = 0; i < FOREIGN_MAX + 100; i++) {
        const token t = (token)i;
        const struct segment_head h = {
            .id = i + 1, .pos = 1, .used_ns = i, .path_hash = segment_hash(&t, 1)};
        foreign_add(f, &h, &by, true);
    }
    foreign_ready(f);
    for (token t = 0; t < FOREIGN_MAX + 100; t++)
        assert_int_equal(foreign_find(f, &t, 1, 0).pos, t >= 100);
    foreign_free(f);
}

static void without_memory_there_are_none(void **state)
{
    (void)state;
    const struct segment_maker by = {.fingerprint = 1};
    const token t = 5;
    const struct segment_head h = {.id = 1, .pos = 1, .path_hash = segment_hash(&t, 1)};
    bool found = false;
    for (uint64_t i = 1; !found; i++) {
        mem_fail_after(i);
        struct foreign *f = foreign_new();
        foreign_add(f, &h, &by, true);
        foreign_ready(f);
        mem_fail_after(0);
        found = foreign_find(f, &t, 1, 0).pos;
        foreign_free(f);
        assert_true(i < 20);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_is_what_a_search_of_all_files_finds),
        cmocka_unit_test(of_too_many_those_used_last_are_known),
        cmocka_unit_test(without_memory_there_are_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
