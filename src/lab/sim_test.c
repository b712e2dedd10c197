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
        if (strcmp(name, bars[i].trace) != 0) {
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

/* -- A, k times B, C ------------------------------------------------------------------------- */

enum { A_TOKENS = 4560, B_TOKENS = 99, BRANCH_AT = 2531 };

/* One request: shared tokens of A (stream 1), then own of a stream of its own; 16 are generated.  Chats have a system
 * message of 500 tokens and a generation prompt. */
static void add_request(struct trace *t, uint32_t shared, uint32_t own, bool chat)
{
    const int64_t stream = 10 + 2 * (int64_t)t->n;
    struct trace_seg segs[8];
    uint32_t n = 0;
    if (chat && shared > 500) {
        segs[n++] = (struct trace_seg){1, 500, 's'};
        segs[n++] = (struct trace_seg){2, shared - 500, 'u'};
    } else if (shared) {
        segs[n++] = (struct trace_seg){1, shared, chat ? 's' : 0};
    }
    if (own)
        segs[n++] = (struct trace_seg){stream, own, chat ? 'u' : 0};
    if (chat)
        segs[n++] = (struct trace_seg){3, 5, 'g'};
    segs[n++] = (struct trace_seg){stream + 1, 16, 0};
    t->reqs[t->n] = (struct trace_req){.t = 5 * t->n,
                                       .first = (uint32_t)t->n_segs,
                                       .n_own = n,
                                       .n_prompt = shared + own + (chat ? 5 : 0),
                                       .n_gen = 16};
    memcpy(t->segs + t->n_segs, segs, n * sizeof *segs);
    t->n_segs += n;
    t->n++;
}

/* What C reuses after A and k requests B. */
static uint32_t reused_by_c(uint32_t k, uint32_t overlap, bool branch, bool chat,
                            const struct sim_opts *o)
{
    enum { MAX = 512 };
    static struct trace_req reqs[MAX];
    static struct trace_seg segs[MAX * 8];
    uint32_t reused[MAX], *oracle;
    struct trace t = {.reqs = reqs, .segs = segs};
    add_request(&t, A_TOKENS, 0, chat);
    while (t.n <= k)
        add_request(&t, overlap, B_TOKENS, chat);
    add_request(&t, branch ? BRANCH_AT : A_TOKENS, branch ? 2416 : 200, chat);
    struct sim_result r;
    assert_int_equal(sim_oracle(&t, &oracle, NULL), RC_OK);
    assert_int_equal(sim_run(&t, o, oracle, reused, &r, NULL), RC_OK);
    mem_free(oracle);
    return reused[t.n - 1];
}

static void requests_nobody_comes_back_for_cost_an_earlier_prompt_nothing(void **state)
{
    (void)state;
    static const uint32_t ks[] = {1, 3, 10, 30, 100, 200, 500}, overlaps[] = {0, 1, 3, 32, 500};
    static const struct sim_opts sizes[] = {
        {.policy = "hold", .ram_bytes = 480 * MIB, .snap_bytes = 65863680, .token_bytes = 20480},
        {.policy = "hold", .ram_bytes = 1 * GIB, .snap_bytes = 65863680, .token_bytes = 20480},
        {.policy = "hold", .ram_bytes = 160 * MIB, .snap_bytes = 20197376, .token_bytes = 12288},
        {.policy = "hold", .ram_bytes = 400 * MIB, .snap_bytes = 20197376, .token_bytes = 12288},
    };
    int lost = 0;
    for (size_t s = 0; s < COUNT_OF(sizes); s++)
        for (int i = 0; i < 4; i++) {
            const bool branch = i & 1, chat = i & 2;
            const uint32_t alone = reused_by_c(0, 0, branch, chat, &sizes[s]);
            if (!chat) /* to the last rung of the ladder */
                assert_int_equal(alone, branch ? 2512 : A_TOKENS - 1);
            for (size_t o = 0; o < COUNT_OF(overlaps); o++)
                for (size_t k = 0; k < COUNT_OF(ks); k++) {
                    const uint32_t c = reused_by_c(ks[k], overlaps[o], branch, chat, &sizes[s]);
                    if (c < alone)
                        print_message("%" PRIu64 " MiB, %s %s, overlap %u, k %u: %u of %u\n",
                                      sizes[s].ram_bytes / MIB, chat ? "chat" : "raw",
                                      branch ? "branch" : "append", overlaps[o], ks[k], c, alone);
                    lost += c < alone;
                }
        }
    assert_int_equal(lost, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_oracle_is_that_of_the_reference_simulator),
        cmocka_unit_test(hold_reuses_what_it_should_of_each_workload),
        cmocka_unit_test(policies_rank_as_they_must_and_a_run_repeats_itself),
        cmocka_unit_test(requests_nobody_comes_back_for_cost_an_earlier_prompt_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
