/* cache_bench.c - what a decision costs: 10,000 entries in the cache, prompts of 200,000 tokens.
 *
 * Prints the time all calls for one request take together (plan_make, the offers, plan_done), for a prompt that
 * continues a known path and for one that is new, with room and with a full cache; and the bytes of tree,
 * entries and tables for each token kept.  Bars: 2 ms, 64 B.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/hist.h"
#include "base/mem.h"
#include "base/rng.h"
#include "cache/cache.h"

enum { LONG = 200000, ENTRIES = 10000, GEN = 300, ROUNDS = 60 };

static void fill(token *t, uint32_t from, uint32_t to, struct rng *g)
{
    for (uint32_t i = from; i < to; i++)
        t[i] = (token)rng_below(g, 150000);
}

static void serve(struct cache *c, const token *t, uint32_t n, struct plan *p)
{
    const struct cache_hint hints[] = {{0, 's'}, {1000, 'u'}, {n - 600, 'u'}, {n - 5, 'g'}};
    const struct plan_req r = {.prompt = t, .n = n, .hints = hints, .n_hints = COUNT_OF(hints)};
    if (plan_make(c, &r, 0, p, NULL))
        exit(1);
    for (uint32_t i = 0; i < p->n_cuts; i++) {
        const snap_id id = cache_offer(c, p, t, p->cuts[i].pos, p->cuts[i].kind, 0);
        if (id)
            cache_commit(c, id);
    }
    const snap_id id = cache_offer(c, p, t, n + GEN, CUT_GEN_END, 0);
    if (id)
        cache_commit(c, id);
    plan_done(c, p, t, n + GEN, 0);
}

static void report(const char *what, struct hist *h)
{
    printf("  %-34s median %6.3f ms   p90 %6.3f   max %6.3f\n", what, hist_quantile(h, .5),
           hist_quantile(h, .9), hist_quantile(h, 1));
    hist_release(h);
    hist_init(h);
}

static void timed(struct cache *c, const token *t, uint32_t n, struct hist *h)
{
    struct plan p;
    const uint64_t t0 = clock_mono_ns();
    serve(c, t, n, &p);
    hist_add(h, (double)(clock_mono_ns() - t0) / 1e6);
}

int main(void)
{
    struct rng g = {1};
    token *t = mem_try_array(LONG + 100000, sizeof *t);
    if (!t)
        return 1;
    for (int full = 0; full < 2; full++) {
        /* snapshots weigh as in the 0.8B shape; room for the entries, or for no more than those */
        const uint64_t snap = 20201472, kv = 12288;
        const struct cache_opts o = {.ram_bytes =
                                         full ? ENTRIES * (snap + 1200 * kv) : UINT64_MAX / 4,
                                     .snap_bytes = snap,
                                     .token_bytes = kv,
                                     .page_tokens = 64};
        struct cache *c;
        struct plan p;
        struct cache_stats st = {0};
        if (cache_new(&o, &c, NULL))
            return 1;
        for (uint32_t i = 0; i < ENTRIES * 2 && st.n_snaps < ENTRIES; i++) {
            if (!(rng_below(&g, 3)))
                fill(t, 0, 1000, &g); /* another system prompt */
            const uint32_t n = 2000 + rng_below(&g, 6000);
            fill(t, 1000, n + GEN, &g);
            serve(c, t, n, &p);
            cache_stats(c, &st);
        }
        printf("%s: %" PRIu32 " entries, %" PRIu64
               " tokens known, %.1f B of tree and tables a token\n",
               full ? "full" : "roomy", st.n_snaps, st.n_tokens,
               (double)st.tree_bytes / (double)st.n_tokens);
        struct hist h;
        hist_init(&h);
        for (int i = 0; i < ROUNDS; i++) {
            fill(t, 0, LONG + GEN, &g);
            timed(c, t, LONG, &h);
        }
        report("200,000 new tokens", &h);
        uint32_t n = LONG;
        for (int i = 0; i < ROUNDS; i++) {
            fill(t, n + GEN, n + GEN + 500, &g);
            n += GEN + 500;
            timed(c, t, n, &h);
        }
        report("200,000 known tokens, 500 new", &h);
        for (int i = 0; i < 2000; i++) {
            fill(t, 1000, 3000 + GEN, &g);
            timed(c, t, 3000, &h);
        }
        report("3,000 tokens", &h);
        cache_stats(c, &st);
        printf("  evictions %" PRIu64 ", rejected %" PRIu64 "\n", st.evictions, st.rejected);
        cache_free(c);
    }
    mem_free(t);
    return 0;
}
