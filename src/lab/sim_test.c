#include "lab/sim.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static const uint64_t snap_35b = 65863680, token_35b = 20480;

/* NULL: not at hand. */
static struct trace *shared_trace(const char *name)
{
    char path[512];
    struct trace *t = NULL;
    struct stat st;
    snprintf(path, sizeof path, "%s/traces/%s.jsonl", HOUSE_SHARED_DIR, name);
    if (stat(path, &st))
        return NULL;
    assert_int_equal(trace_open(path, &t, NULL), RC_OK);
    return t;
}

/* The traces' own README and the reference simulator give the same numbers. */
static void the_oracle_is_that_of_the_reference_simulator(void **state)
{
    (void)state;
    struct trace *t = shared_trace("kairo-s2");
    if (!t)
        skip();
    uint32_t *oracle;
    uint64_t sum = 0;
    assert_int_equal(sim_oracle(t, &oracle, NULL), RC_OK);
    for (uint32_t i = 0; i < t->n; i++)
        sum += oracle[i];
    assert_int_equal(t->prompt_tokens, 67893753);
    assert_int_equal(sum, 39192177);
    mem_free(oracle);
    trace_close(t);
}

static double fraction(const struct trace *t, const uint32_t *oracle, const char *policy,
                       double gib, struct sim_result *r)
{
    const struct sim_opts o = {.policy = policy,
                               .ram_bytes = (uint64_t)(gib * (double)GIB),
                               .snap_bytes = snap_35b,
                               .token_bytes = token_35b};
    assert_int_equal(sim_run(t, &o, oracle, NULL, r, NULL), RC_OK);
    const struct cache_stats *s = &r->cache;
    assert_true(s->bytes <= s->budget);
    /* what is not reused is accounted for, to the token */
    assert_int_equal(s->lost_placement + s->lost_rejected + s->lost_evicted + s->lost_minimum +
                         s->lost_last,
                     s->lcp_tokens - s->reused_tokens);
    assert_int_equal(s->reused_tokens, r->saved_tokens);
    return (double)r->saved_tokens / (double)r->oracle_tokens;
}

static void hold_reuses_what_it_should_of_each_workload(void **state)
{
    (void)state;
    static const struct {
        const char *trace;
        double gib, at_least, snaps_at_most;
    } bars[] = {
        {"kairo-s2", 1, .42, 4.5},     {"kairo-s2", 4, .93, 4.5},      {"kairo-s2", 16, .995, 4.5},
        {"agentic-coding", 4, .46, 9}, {"agentic-coding", 16, .98, 9},
    };
    const char *name = "";
    struct trace *t = NULL;
    uint32_t *oracle = NULL;
    for (size_t i = 0; i < COUNT_OF(bars); i++) {
        if (strcmp(name, bars[i].trace)) {
            mem_free(oracle);
            trace_close(t);
            name = bars[i].trace;
            t = shared_trace(name);
            if (!t)
                skip();
            assert_int_equal(sim_oracle(t, &oracle, NULL), RC_OK);
        }
        struct sim_result r;
        const double f = fraction(t, oracle, "hold", bars[i].gib, &r);
        print_message("%s %g GiB: %.4f of the oracle, %.2f snapshots a request\n", name,
                      bars[i].gib, f, (double)r.cache.commits / t->n);
        assert_true(f >= bars[i].at_least);
        assert_true((double)r.cache.commits / t->n <= bars[i].snaps_at_most);
        if (bars[i].gib == 16 && !strcmp(name, "kairo-s2"))
            assert_true((double)r.cache.lost_placement <= .005 * (double)r.oracle_tokens);
    }
    mem_free(oracle);
    trace_close(t);
}

static void policies_rank_as_they_must_and_a_run_repeats_itself(void **state)
{
    (void)state;
    struct trace *t = shared_trace("kairo-s2");
    if (!t)
        skip();
    t->n = 800;
    uint32_t *oracle;
    assert_int_equal(sim_oracle(t, &oracle, NULL), RC_OK);
    struct sim_result r, again;
    const double hold = fraction(t, oracle, "hold", 4, &r);
    assert_true(fraction(t, oracle, "hold", 4, &again) == hold);
    assert_int_equal(r.cache.commits, again.cache.commits);
    assert_int_equal(r.cache.evictions, again.cache.evictions);
    const double lru = fraction(t, oracle, "lru", 4, &r);
    assert_true(hold > lru && lru > 0);
    assert_true(fraction(t, oracle, "none", 4, &r) == 0);
    assert_int_equal(r.cache.commits, 0);
    assert_true(fraction(t, oracle, "hold", 64, &r) > hold);
    mem_free(oracle);
    trace_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_oracle_is_that_of_the_reference_simulator),
        cmocka_unit_test(hold_reuses_what_it_should_of_each_workload),
        cmocka_unit_test(policies_rank_as_they_must_and_a_run_repeats_itself),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
