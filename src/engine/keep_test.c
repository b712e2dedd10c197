/* What the engine keeps, and what it says about it, over a tiny model: interlopers, budgets of nothing. */
#include "engine/engine.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/rng.h"
#include "model/maker.h"
#include "engine/world_int.h"

static int open_world(void **state)
{
    (void)state;
    return world_open_with(KV_F32, 256);
}

static const struct logger quiet = {.level = LOG_ERROR};

static struct engine *start(struct engine_opts o)
{
    struct engine *e;
    struct err err;
    o.model = world.model;
    o.vocab = world.vocab;
    o.lg = &quiet;
    o.n_ctx = 2048;
    if (engine_start(&o, &e, &err))
        fail_msg("%s", err.msg);
    return e;
}

enum { N_SAID = 8 };

struct told {
    struct timings t;
    struct plan plan;
    token said[N_SAID];
};

static struct told ask(struct engine *e, const token *prompt, uint32_t n)
{
    struct job_desc d = {.prompt = prompt, .n_prompt = n, .n_predict = N_SAID};
    struct told told = {0};
    struct job *j;
    struct err err;
    uint32_t n_said = 0;
    sampling_defaults(&d.sampling);
    d.sampling.temperature = 0;
    d.sampling.ignore_eos = true;
    if (engine_submit(e, &d, &j, &err))
        fail_msg("%s", err.msg);
    for (bool last = false; !last;) {
        struct piece *p = job_next(j, 60 * UINT64_C(1000000000));
        assert_non_null(p);
        for (uint32_t i = 0; i < p->n_tokens && n_said < N_SAID; i++)
            told.said[n_said++] = p->tokens[i];
        last = p->last;
        told.t = p->timings;
        told.plan = p->plan;
        piece_free(p);
    }
    job_free(j);
    return told;
}

/* ---- A, then k times something else, then C -------------------------------------------------- */

enum { A = 900, TAIL = 60, BRANCH = 640 };

struct reuse_of_c {
    uint32_t append, branch;
    token said[2][N_SAID];
};

/* A; k different interlopers that share overlap tokens with it; then C, once as A continued and once as
 * another prompt that leaves A in its middle. */
static struct reuse_of_c with_interlopers(uint64_t ram_bytes, uint32_t overlap, uint32_t k)
{
    token a[A + TAIL], b[A], c[A];
    struct engine *e = start((struct engine_opts){.cache_ram_bytes = ram_bytes});
    random_tokens(a, A + TAIL, 1);
    random_tokens(c, A, 2);
    memcpy(c, a, BRANCH * sizeof *a);
    ask(e, a, A);
    for (uint32_t i = 0; i < k; i++) {
        random_tokens(b, overlap + TAIL, 100 + i);
        memcpy(b, a, overlap * sizeof *a);
        ask(e, b, overlap + TAIL);
    }
    const struct told append = ask(e, a, A + TAIL), branch = ask(e, c, A);
    struct reuse_of_c r = {.append = append.t.n_reused, .branch = branch.t.n_reused};
    memcpy(r.said[0], append.said, sizeof append.said);
    memcpy(r.said[1], branch.said, sizeof branch.said);
    engine_check(e);
    engine_stop(e, 0);
    return r;
}

static void interlopers_cost_nothing_however_many_and_however_much_they_share(void **state)
{
    (void)state;
    static const uint32_t overlaps[] = {0, 1, 3, 32, 500}, counts[] = {1, 20, 200};
    const struct reuse_of_c without = with_interlopers(256 * MIB, 0, 0);
    assert_true(without.append >= A - 1);
    assert_true(without.branch > 0);
    for (size_t i = 0; i < COUNT_OF(overlaps); i++)
        for (size_t k = 0; k < COUNT_OF(counts); k++) {
            const struct reuse_of_c with = with_interlopers(256 * MIB, overlaps[i], counts[k]);
            /* an interloper of 500 common tokens leaves a state where it parted */
            if (with.append != without.append || with.branch < without.branch ||
                (overlaps[i] < 500 && with.branch != without.branch))
                fail_msg("overlap %u, %u times: C reuses %u and %u, without B %u and %u",
                         overlaps[i], counts[k], with.append, with.branch, without.append,
                         without.branch);
            assert_memory_equal(with.said, without.said, sizeof with.said);
        }
}

/* ---- pins ------------------------------------------------------------------------------------ */

static snap_id warm(struct engine *e, const token *prompt, uint32_t n)
{
    struct job_desc d = {.prompt = prompt, .n_prompt = n, .pin = true};
    struct job *j;
    struct err err;
    snap_id id = 0;
    sampling_defaults(&d.sampling);
    if (engine_submit(e, &d, &j, &err))
        fail_msg("%s", err.msg);
    for (bool last = false; !last;) {
        struct piece *p = job_next(j, 60 * UINT64_C(1000000000));
        assert_non_null(p);
        last = p->last;
        id = p->pinned;
        piece_free(p);
    }
    job_free(j);
    return id;
}

/* At a budget that holds A, but not what 200 others would leave. */
static void a_warmed_prefix_outlives_any_interloper_until_it_is_unpinned(void **state)
{
    (void)state;
    token a[A + TAIL], b[A];
    random_tokens(a, A + TAIL, 1);
    struct engine *e = start((struct engine_opts){.cache_ram_bytes = 2 * MIB});
    const snap_id id = warm(e, a, A);
    assert_true(id != 0);
    assert_int_equal(warm(e, a, A), id); /* twice is once */
    for (uint32_t i = 0; i < 200; i++) {
        random_tokens(b, 32 + TAIL, 100 + i);
        memcpy(b, a, 32 * sizeof *a);
        ask(e, b, 32 + TAIL);
    }
    assert_int_equal(ask(e, a, A + TAIL).t.n_reused, A);
    engine_check(e);
    assert_true(engine_pin(e, id, false));
    struct engine_view v;
    assert_int_equal(engine_view(e, true, &v, NULL), RC_OK);
    for (uint32_t i = 0; i < v.n_entries; i++)
        assert_false(v.entries[i].user_pin);
    engine_view_release(&v);
    assert_false(engine_pin(e, UINT32_MAX, true));
    engine_stop(e, 0);
}

static uint32_t n_entries(struct engine *e)
{
    struct engine_view v;
    assert_int_equal(engine_view(e, false, &v, NULL), RC_OK);
    const uint32_t n = (uint32_t)v.cache.n_snaps;
    engine_view_release(&v);
    return n;
}

/* The state a question left where a conversation can go on is the one that warming wants. */
static void warming_what_is_kept_pins_it_and_evaluates_nothing(void **state)
{
    (void)state;
    token a[A + TAIL];
    random_tokens(a, A + TAIL, 1);
    struct engine *e = start((struct engine_opts){.cache_ram_bytes = 16 * MIB});
    ask(e, a, A);
    const uint32_t before = n_entries(e);
    struct engine_view v;
    assert_int_equal(engine_view(e, true, &v, NULL), RC_OK);
    snap_id kept = 0;
    for (uint32_t i = 0; i < v.n_entries; i++)
        kept = v.entries[i].pos == A - 1 ? v.entries[i].id : kept;
    const uint64_t evaluated = v.prompt_tokens_total;
    engine_view_release(&v);
    assert_int_not_equal(kept, 0);
    assert_int_equal(warm(e, a, A - 1), kept);
    assert_int_equal(n_entries(e), before);
    assert_int_equal(engine_view(e, false, &v, NULL), RC_OK);
    assert_int_equal(v.prompt_tokens_total, evaluated);
    assert_int_equal(v.cache.n_pinned, 1);
    engine_view_release(&v);
    assert_int_equal(ask(e, a, A + TAIL).t.n_reused, A - 1);
    engine_check(e);
    engine_stop(e, 0);
}

static void warming_leaves_no_state_a_token_before_the_pinned_one(void **state)
{
    (void)state;
    token a[A];
    random_tokens(a, A, 1);
    struct engine *e = start((struct engine_opts){.cache_ram_bytes = 16 * MIB});
    const snap_id id = warm(e, a, A);
    struct engine_view v;
    assert_int_equal(engine_view(e, true, &v, NULL), RC_OK);
    for (uint32_t i = 0; i < v.n_entries; i++) {
        assert_int_not_equal(v.entries[i].pos, A - 1);
        assert_int_equal(v.entries[i].pos == A, v.entries[i].id == id);
    }
    engine_view_release(&v);
    engine_check(e);
    engine_stop(e, 0);
}

static void what_does_not_fit_is_not_said_to_be_pinned(void **state)
{
    (void)state;
    token a[A];
    random_tokens(a, A, 1);
    struct engine *e = start((struct engine_opts){.cache_ram_bytes = 64 * KIB});
    assert_int_equal(warm(e, a, A), 0);
    engine_stop(e, 0);
    e = start((struct engine_opts){.cache_ram_bytes = 16 * MIB, .cache_policy = "none"});
    assert_int_equal(warm(e, a, A), 0);
    engine_stop(e, 0);
}

/* ---- audits ---------------------------------------------------------------------------------- */

static struct engine_view wait_audits(struct engine *e, uint64_t n)
{
    for (;;) {
        struct engine_view v;
        assert_int_equal(engine_view(e, true, &v, NULL), RC_OK);
        if (v.audits_equal + v.audits_different + v.audits_skipped >= n)
            return v;
        engine_view_release(&v);
    }
}

static void restored_states_pass_their_audit_and_a_changed_bit_does_not(void **state)
{
    (void)state;
    token a[A + TAIL], b[A];
    random_tokens(a, A + TAIL, 1);
    random_tokens(b, A, 2);
    memcpy(b, a, BRANCH * sizeof *a);
    struct engine *e = start((struct engine_opts){
        .cache_ram_bytes = 64 * MIB, .audit_restores = 1, .cache_step = 100, .n_parallel = 2});
    /* positions at and inside pages, grown from restored states too */
    uint64_t n = 0;
    for (uint32_t len = 200; len <= A + TAIL; len += 76) {
        n += ask(e, a, len).t.n_reused > 0;
        struct engine_view v = wait_audits(e, n);
        engine_view_release(&v);
    }
    n += ask(e, b, A).t.n_reused > 0;
    assert_true(n > 8);
    struct engine_view v = wait_audits(e, n);
    assert_int_equal(v.audits_equal, n);
    assert_int_equal(v.audits_different, 0);
    engine_view_release(&v);
    /* the one that the next request restores */
    const struct told first = ask(e, a, A + TAIL);
    const snap_id id = first.plan.restore;
    v = wait_audits(e, n + 1);
    engine_view_release(&v);
    assert_true(engine_spoil(e, id));
    assert_int_equal(ask(e, a, A + TAIL).plan.restore, id);
    v = wait_audits(e, n + 2);
    assert_int_equal(v.audits_different, 1);
    assert_int_equal(v.evicted[DROP_AUDIT], 1);
    uint64_t n_restores = 0;
    for (uint32_t k = 0; k < CUT_N_KINDS; k++)
        n_restores += v.restores[k];
    assert_int_equal(n_restores, n + 2);
    for (uint32_t i = 0; i < v.n_entries; i++)
        assert_true(v.entries[i].id != id || v.entries[i].pos != first.plan.start);
    engine_view_release(&v);
    engine_check(e);
    /* what comes next is right again */
    const struct told after = ask(e, a, A + TAIL);
    assert_memory_equal(after.said, first.said, sizeof first.said);
    engine_stop(e, 0);
}

static void requests_come_before_audits_and_a_stop_before_both(void **state)
{
    (void)state;
    token a[A + TAIL];
    random_tokens(a, A + TAIL, 1);
    struct engine *e = start(
        (struct engine_opts){.cache_ram_bytes = 64 * MIB, .audit_restores = 1, .n_parallel = 1});
    ask(e, a, A);
    for (uint32_t i = 0; i < 40; i++) {
        assert_true(ask(e, a, A + i).t.n_reused > 0);
        engine_check(e);
    }
    engine_stop(e, 0);
    struct engine *wrong;
    const struct engine_opts o = {
        .model = world.model, .vocab = world.vocab, .lg = &quiet, .audit_restores = 2};
    assert_int_equal(engine_start(&o, &wrong, NULL), RC_ARG);
}

/* ---- places by file -------------------------------------------------------------------------- */

static void a_saved_place_goes_on_in_another_process_with_the_same_bits(void **state)
{
    (void)state;
    char path[256], other[300];
    snprintf(path, sizeof path, "%s/keep_test-%d.slot", HOUSE_BINARY_DIR, (int)getpid());
    snprintf(other, sizeof other, "%s.no", path);
    token a[A + TAIL];
    random_tokens(a, A + TAIL, 1);
    const struct engine_opts o = {.cache_ram_bytes = 64 * MIB, .n_parallel = 1};
    struct slot_file saved, got;
    struct err err = {0};
    struct engine *e = start(o);
    assert_int_equal(engine_slot_save(e, 0, path, &saved, &err), RC_STALE); /* nothing yet */
    assert_int_equal(engine_slot_save(e, 1, path, &saved, &err), RC_ARG);
    const struct told first = ask(e, a, A), want = ask(e, a, A + TAIL);
    assert_int_equal(first.t.n_reused, 0);
    engine_stop(e, 0);
    e = start(o);
    ask(e, a, A);
    if (engine_slot_save(e, 0, path, &saved, &err))
        fail_msg("%s", err.msg);
    assert_true(saved.n_tokens >= A - 1);
    assert_int_equal(engine_slot_erase(e, 0), saved.n_tokens);
    assert_int_equal(engine_slot_erase(e, 0), 0);
    engine_stop(e, 0);
    /* afterwards, elsewhere */
    e = start(o);
    if (engine_slot_restore(e, 0, path, &got, &err))
        fail_msg("%s", err.msg);
    assert_int_equal(got.n_tokens, saved.n_tokens);
    assert_int_equal(got.n_bytes, saved.n_bytes);
    assert_int_equal(engine_slot_restore(e, 0, path, &got, &err), RC_OK); /* twice is once */
    engine_check(e);
    const struct told on = ask(e, a, A + TAIL);
    assert_true(on.t.n_reused >= A - 1);
    assert_memory_equal(on.said, want.said, sizeof want.said);
    engine_check(e);
    assert_int_equal(engine_slot_restore(e, 0, other, &got, &err), RC_IO);
    engine_stop(e, 0);
    /* where it does not fit */
    e = start((struct engine_opts){.cache_ram_bytes = 64 * KIB, .n_parallel = 1});
    assert_int_equal(engine_slot_restore(e, 0, path, &got, &err), RC_LIMIT);
    engine_check(e);
    engine_stop(e, 0);
    /* a file with a wrong byte */
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, (long)saved.n_bytes / 2, SEEK_SET), 0);
    const int c = fgetc(f);
    assert_int_equal(fseek(f, (long)saved.n_bytes / 2, SEEK_SET), 0);
    assert_int_equal(fputc(c ^ 4, f), c ^ 4);
    assert_int_equal(fclose(f), 0);
    e = start(o);
    assert_int_equal(engine_slot_restore(e, 0, path, &got, &err), RC_FORMAT);
    assert_int_equal(ask(e, a, A).t.n_reused, 0);
    engine_stop(e, 0);
    unlink(path);
}

/* ---- budgets of nothing ---------------------------------------------------------------------- */

static void a_loss_has_its_cause_where_nothing_can_be_kept(void **state)
{
    (void)state;
    static const uint64_t budgets[] = {0, 64 * KIB, MIB};
    token a[A], b[A], c[A];
    random_tokens(a, A, 1);
    random_tokens(b, A, 3);
    random_tokens(c, A, 4);
    memcpy(c, a, BRANCH * sizeof *a);
    for (size_t i = 0; i < COUNT_OF(budgets); i++) {
        struct engine *e = start((struct engine_opts){.cache_ram_bytes = budgets[i]});
        assert_int_equal(ask(e, a, A - TAIL).plan.lcp, 0);
        for (uint32_t k = 0; k < 20; k++) { /* others in between are no reason to forget it */
            random_tokens(b, A, 100 + k);
            assert_true(ask(e, b, A).plan.lcp < 8);
        }
        const struct told again = ask(e, a, A), branch = ask(e, c, A);
        const struct plan *p = &again.plan;
        assert_int_equal(p->lcp, A - TAIL);
        assert_int_equal(p->start + p->lost_placement + p->lost_rejected + p->lost_evicted +
                             p->lost_minimum + p->lost_last,
                         p->lcp);
        assert_true(p->start + p->lost_rejected + p->lost_evicted > p->lcp / 2);
        assert_true(p->forks); /* the answer went on otherwise */
        assert_int_equal(branch.plan.lcp, BRANCH);
        assert_true(branch.plan.forks);
        /* the answer sent back, and more: nothing leaves anything */
        random_tokens(b, A, 5);
        const struct told said = ask(e, b, A - TAIL);
        memcpy(b + A - TAIL, said.said, N_SAID * sizeof *b);
        const struct told on = ask(e, b, A);
        assert_int_equal(on.plan.lcp, A - TAIL + N_SAID - 1);
        assert_false(on.plan.forks);
        struct engine_view v;
        assert_int_equal(engine_view(e, false, &v, NULL), RC_OK);
        assert_true(v.cache.bytes <= v.cache.budget);
        assert_true(v.cache.tree_bytes <= MIB + 256 * KIB);
        engine_view_release(&v);
        engine_check(e);
        engine_stop(e, 0);
    }
}

/* Thousands of prompts at a budget of nothing: what is remembered stays small, and stays. */
static void a_small_tree_is_not_crowded_out_by_its_ghosts(void **state)
{
    (void)state;
    token a[A], b[A];
    random_tokens(a, A, 1);
    struct engine *e = start((struct engine_opts){.cache_ram_bytes = 0});
    for (uint32_t k = 0; k < 1500; k++) {
        random_tokens(b, 40, 1000 + k);
        ask(e, b, 40);
    }
    ask(e, a, A);
    assert_int_equal(ask(e, a, A).plan.lcp, A);
    struct engine_view v;
    assert_int_equal(engine_view(e, false, &v, NULL), RC_OK);
    assert_true(v.cache.tree_bytes <= MIB + 256 * KIB);
    engine_view_release(&v);
    engine_stop(e, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(interlopers_cost_nothing_however_many_and_however_much_they_share),
        cmocka_unit_test(a_warmed_prefix_outlives_any_interloper_until_it_is_unpinned),
        cmocka_unit_test(warming_what_is_kept_pins_it_and_evaluates_nothing),
        cmocka_unit_test(warming_leaves_no_state_a_token_before_the_pinned_one),
        cmocka_unit_test(what_does_not_fit_is_not_said_to_be_pinned),
        cmocka_unit_test(restored_states_pass_their_audit_and_a_changed_bit_does_not),
        cmocka_unit_test(requests_come_before_audits_and_a_stop_before_both),
        cmocka_unit_test(a_saved_place_goes_on_in_another_process_with_the_same_bits),
        cmocka_unit_test(a_loss_has_its_cause_where_nothing_can_be_kept),
        cmocka_unit_test(a_small_tree_is_not_crowded_out_by_its_ghosts),
    };
    return cmocka_run_group_tests(tests, open_world, world_close);
}
