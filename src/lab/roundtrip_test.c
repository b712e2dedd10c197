/* Random traffic through the engines' rules, written as the log each build would print, read back: every
 * count, token and outcome must come out as the rules made it.  SEED repeats a run. */
#include "lab/forensics.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "lab/legacy.h"

#include <cmocka.h>

enum { MAX_TURNS = 60, ROOM = 24000, MAX_SLOTS = 3, RING = 64 };

/* What a build prints. */
struct era {
    const char *name;
    enum legacy_family family;
    int32_t date;
    bool trace; /* -lv 4, where that makes a difference */
};

struct truth {
    struct legacy_turn t;
    uint32_t task, n_prompt;
    bool cancelled;
    bool hidden; /* no line gives the common prefix: forced, with no checkpoint to search */
    int64_t held, lcp;
};

struct world {
    const struct era *era;
    struct rng rng;
    struct buf log;
    struct legacy *cache;
    uint32_t n_slots, task;
    bool used[MAX_SLOTS];
    uint32_t ring[MAX_SLOTS][2 * RING], n_ring[MAX_SLOTS];
    struct truth truth[MAX_TURNS];
    uint32_t n;
};

PRINTF_LIKE(3, 4)
static void slot_line(struct world *w, const char *func, const char *fmt, ...)
{
    const struct truth *u = &w->truth[w->n];
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (w->era->date >= 20260514)
        buf_addf(&w->log, "%u.%02u.100.000 I ", w->n / 60, w->n % 60);
    buf_addf(&w->log, "slot %12.12s: id %2u | task %u | %s\n", func, u->t.slot, u->task, text);
}

PRINTF_LIKE(2, 3)
static void kv_line(struct world *w, const char *fmt, ...)
{
    const struct truth *u = &w->truth[w->n];
    char msg[128], rest[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    const char *bar = strchr(msg, '|');
    const int n = bar ? (int)(bar - msg) : (int)strlen(msg);
    snprintf(rest, sizeof rest, "%s", bar ? bar + 1 : "");
    buf_addf(&w->log, "INFO [%24.24s] %.*s | tid=\"1\" timestamp=%u id_slot=%u id_task=%u%s\n", "f",
             n, msg, 1792224000 + w->n, u->t.slot, u->task, rest);
}

/* The ring as it stands before the turn's own checkpoints: the highest n_erased are gone. */
static void print_divergence(struct world *w)
{
    const struct truth *u = &w->truth[w->n];
    const struct era *e = w->era;
    const bool llama = e->family == LEGACY_LLAMA, quiet = llama && e->date >= 20260628 && !e->trace;
    uint32_t *ring = w->ring[u->t.slot], *n = &w->n_ring[u->t.slot];
    const bool diverged = u->lcp > 0 && u->lcp < u->held;
    if (!llama && e->family == LEGACY_PXA)
        buf_addf(&w->log,
                 "======== Cache: cache_size = %lld, n_past0 =  %lld, n_past1 =  %lld, "
                 "n_past_prompt1 = %lld,  n_past2 =  "
                 "%lld, n_past_prompt2 =  %lld\n",
                 (long long)u->held, (long long)u->lcp, (long long)u->lcp, (long long)u->lcp,
                 (long long)u->lcp, (long long)u->lcp);
    else if (!llama)
        buf_addf(&w->log,
                 "======== Cache: cache_size = %lld, n_past =  %lld, n_past_prompt = %lld\n",
                 (long long)u->held, (long long)u->lcp, (long long)u->lcp);
    if (diverged && (!llama || e->date < 20260525)) {
        if (llama && e->date < 20251015)
            slot_line(
                w, "update_slots",
                "n_past = %lld, cache_tokens.size() = %lld, seq_id = 0, pos_min = %lld, n_swa = 1",
                (long long)u->lcp, (long long)u->held, (long long)u->held - 1);
        else
            slot_line(
                w, llama ? "update_slots" : "apply_checkpoint",
                "n_past = %lld, slot.prompt.tokens.size() = %lld, seq_id = 0, pos_min = %lld%s",
                (long long)u->lcp, (long long)u->held, (long long)u->held - 1,
                llama                     ? ", n_swa = 0"
                : e->family == LEGACY_PXA ? ", state_pos = 7"
                                          : "");
    }
    w->truth[w->n].hidden = llama && e->date >= 20260525 && u->t.verdict == VERDICT_FORCED && !*n;
    const bool searched = u->t.verdict == VERDICT_FORCED || u->t.verdict == VERDICT_RESTORED;
    if (llama && e->date >= 20260306 && searched && !quiet)
        for (uint32_t i = *n; i-- > 0;) {
            slot_line(w, "update_slots",
                      "%c"
                      "hecking checkpoint with [%u, %u] against %lld...",
                      e->date < 20260628 ? 'C' : 'c', ring[i], ring[i], (long long)u->lcp);
            if (ring[i] == u->t.restored)
                break;
        }
    if (u->t.verdict == VERDICT_FORCED && !quiet)
        slot_line(w, "update_slots",
                  "forcing full prompt re-processing due to lack of cache data (likely due to "
                  "SWA%s, see x)",
                  llama && e->date >= 20251003 ? " or hybrid/recurrent memory" : "");
    if (u->t.verdict == VERDICT_RESTORED && !quiet) {
        const long long p = u->t.restored;
        if (e->family == LEGACY_PXA)
            slot_line(w, "apply_checkpoint",
                      "restored HYBRID context checkpoint took 14.20 ms (state_pos %lld -> %lld, "
                      "n_past = %u, size "
                      "= 62.9 MiB)",
                      (long long)u->held - 1, p, u->t.reused);
        else if (!llama)
            slot_line(w, "apply_checkpoint",
                      "restored context checkpoint took  14.20 ms (pos_min = %lld, pos_max = %lld, "
                      "n_tokens = "
                      "%lld, n_past = %u, size = 62.9 MiB)",
                      p, p, p + 1, u->t.reused);
        else if (e->date >= 20260309)
            slot_line(w, "update_slots",
                      "restored context checkpoint (pos_min = %lld, pos_max = %lld, n_tokens = "
                      "%lld, n_past = %u, size = "
                      "62.8 MiB)",
                      p, p, p + 1, u->t.reused);
        else
            slot_line(
                w, "update_slots",
                "restored context checkpoint (pos_min = %lld, pos_max = %lld, size = 62.8 MiB)", p,
                p);
    }
    for (uint32_t i = *n - u->t.n_erased; i < *n && !quiet; i++) {
        if (!llama)
            slot_line(w, "apply_checkpoint",
                      "erased invalidated context checkpoint (pos_min = %u, pos_max = %u, size = "
                      "62.9 MiB)",
                      ring[i], ring[i]);
        else if (e->date >= 20260317)
            slot_line(w, "update_slots",
                      "erased invalidated context checkpoint (pos_min = %u, pos_max = %u, n_tokens "
                      "= %u, n_swa = 0, "
                      "pos_next = 0, size = 62.8 MiB)",
                      ring[i], ring[i], ring[i] + 1);
        else
            slot_line(w, "update_slots",
                      "erased invalidated context checkpoint (pos_min = %u, pos_max = %u, n_swa = "
                      "1, size = 62.8 MiB)",
                      ring[i], ring[i]);
    }
    *n -= u->t.n_erased;
}

static void print_checkpoints(struct world *w)
{
    const struct truth *u = &w->truth[w->n];
    const struct era *e = w->era;
    const bool llama = e->family == LEGACY_LLAMA, quiet = llama && e->date >= 20260628 && !e->trace;
    uint32_t *ring = w->ring[u->t.slot], *n = &w->n_ring[u->t.slot];
    for (uint32_t i = 0; i < u->t.n_made; i++) {
        const uint32_t p = u->t.made[i];
        ring[(*n)++] = p;
        if (quiet)
            continue;
        if (!llama)
            slot_line(w, "create_checkpoint",
                      "created context checkpoint %u of %d (pos_min = %u, pos_max = %u, n_tokens = "
                      "%u, size = 62.9 MiB, took "
                      "60.00 ms)",
                      *n, RING, p, p, p + 1);
        else if (e->date < 20251009)
            slot_line(
                w, "update_slots",
                "saved context checkpoint %u of %d (pos_min = %u, pos_max = %u, size = 62.8 MiB)",
                *n, RING, p, p);
        else if (e->date < 20260225)
            slot_line(
                w, "update_slots",
                "created context checkpoint %u of %d (pos_min = %u, pos_max = %u, size = 62.8 MiB)",
                *n, RING, p, p);
        else
            slot_line(w, "create_checkpoint",
                      "created context checkpoint %u of %d (pos_min = %u, pos_max = %u, n_tokens = "
                      "%u, size = 62.8 MiB)",
                      *n, RING, p, p, p + 1);
    }
}

static void print_reentry(struct world *w, uint32_t at)
{
    const struct era *e = w->era;
    if (e->family != LEGACY_LLAMA)
        kv_line(w, "kv cache rm [p0, end)| p0=%u", at);
    else if (e->date < 20251003)
        slot_line(w, "update_slots", "kv cache rm [%u, end)", at);
    else if (e->date < 20251030)
        slot_line(w, "update_slots", "n_past = %u, memory_seq_rm [%u, end)", at, at);
    else if (e->date < 20260514)
        slot_line(w, "update_slots", "n_tokens = %u, memory_seq_rm [%u, end)", at, at);
    else if (e->trace)
        slot_line(w, "update_slots", "cached n_tokens = %u, memory_seq_rm [%u, end)", at, at);
}

static void print_turn(struct world *w, uint32_t gen)
{
    const struct truth *u = &w->truth[w->n];
    const struct era *e = w->era;
    const bool llama = e->family == LEGACY_LLAMA;
    const uint32_t task = u->task;
    if (llama) {
        const double sim = (double)u->lcp / u->n_prompt;
        struct truth *mut = &w->truth[w->n];
        mut->task = UINT32_MAX; /* printed as -1 would be: no task yet */
        if (e->date >= 20260514)
            buf_addf(&w->log, "%u.%02u.100.000 I ", w->n / 60, w->n % 60);
        if (w->used[u->t.slot] && sim > 0.1 && e->date < 20251009)
            buf_addf(&w->log,
                     "slot get_availabl: id %2u | task -1 | selected slot by lcs similarity, "
                     "lcs_len = %lld, similarity = %.3f (> 0.100 thold)\n",
                     u->t.slot, (long long)u->lcp, sim);
        else if (w->used[u->t.slot] && sim > 0.1)
            buf_addf(&w->log,
                     "slot get_availabl: id %2u | task -1 | selected slot by LCP similarity, %s = "
                     "%.3f (> 0.100 thold), f_keep = %.3f\n",
                     u->t.slot, e->date < 20260729 ? "sim_best" : "f_sim_best", sim,
                     (double)u->lcp / (double)u->held);
        else
            buf_addf(&w->log,
                     "slot get_availabl: id %2u | task -1 | selected slot by LRU, t_last = %d\n",
                     u->t.slot, w->used[u->t.slot] ? 77 : -1);
        mut->task = task;
        slot_line(w, "launch_slot_with_task", "%s",
                  e->date < 20260110 ? "processing task" : "processing task, is_child = 0");
        if (e->date < 20251030)
            slot_line(w, "update_slots",
                      "new prompt, n_ctx_slot = 65536, n_keep = 0, n_prompt_tokens = %u",
                      u->n_prompt);
        else if (e->date < 20260514 || e->trace)
            slot_line(w, "update_slots",
                      "new prompt, n_ctx_slot = 65536, n_keep = 0, task.n_tokens = %u",
                      u->n_prompt);
    } else {
        buf_addf(&w->log,
                 "======== Prompt cache: cache size: %lld, n_keep: 0, n_discarded_prompt: 0, "
                 "cache_ram_n_min: 0, f_keep: 0.50, "
                 "cache_ram_similarity: 0.50\n",
                 (long long)u->held);
        kv_line(w, "slot is processing task");
    }
    w->used[u->t.slot] = true;
    print_divergence(w);
    print_reentry(w, u->t.reused);
    if (u->cancelled) {
        print_checkpoints(w);
        if (e->date >= 20260514)
            buf_addf(&w->log, "%u.%02u.100.000 W ", w->n / 60, w->n % 60);
        buf_addf(&w->log,
                 llama ? "srv          stop: cancel task, id_task = %u\n"
                       : "Decode process is cancelled by user.\n",
                 task);
    } else {
        if (u->t.processed > 2048)
            print_reentry(w, u->t.reused + 2048);
        print_checkpoints(w);
        static const char *const parts[] = {
            "prompt eval time =   ", "       eval time =   ", "      total time =   "};
        const double ms[] = {u->t.processed * 0.5, gen * 20.0, 0};
        const uint32_t tokens[] = {u->t.processed, gen, u->t.processed + gen};
        if (!llama || e->date < 20260519)
            slot_line(w, "print_timings", "%s", "");
        for (int i = 0; i < 3; i++) {
            char line[200];
            snprintf(line, sizeof line, "%s %8.2f ms / %5u %s", parts[i], ms[i], tokens[i],
                     i < 2 ? "tokens (    0.50 ms per token,  2000.00 tokens per second)"
                           : "tokens");
            if (llama && e->date >= 20260519)
                slot_line(w, "print_timings", "%s", line);
            else
                buf_addf(&w->log, "%s\n", line);
        }
    }
    const uint32_t left = u->n_prompt + (u->cancelled ? 0 : gen - 1);
    if (!llama)
        kv_line(w,
                "slot released| n_ctx=65536 n_past=%u n_system_tokens=0 n_cache_tokens=%u "
                "truncated=false",
                left, left);
    else if (e->date < 20251030)
        slot_line(w, "release", "stop processing: n_past = %u, truncated = 0", left);
    else
        slot_line(w, "release", "stop processing: n_tokens = %u, truncated = 0", left);
}

static void make_traffic(struct world *w, uint32_t turns)
{
    static token seq[ROOM], kept[4][ROOM];
    uint32_t kept_n[4] = {0};
    struct err err;
    for (uint32_t i = 0; i < turns; i++) {
        /* a stream's prompt shares some of what it had last, or all of it */
        const uint32_t stream = rng_below(&w->rng, 4), had = kept_n[stream];
        const uint32_t n = 70 + rng_below(&w->rng, 9000), gen = 2 + rng_below(&w->rng, 60);
        uint32_t shared = 0;
        switch (rng_below(&w->rng, 4)) {
        case 0:
            shared = had;
            break;
        case 1:
            shared = had ? rng_below(&w->rng, had) : 0;
            break;
        case 2:
            shared = MIN(had, 3u);
            break;
        default:
            break;
        }
        const uint32_t len =
            MIN(shared + 1 + rng_below(&w->rng, shared ? 2000 : n), (uint32_t)ROOM - 100);
        shared = MIN(shared, len);
        for (uint32_t k = 0; k < len + gen; k++)
            seq[k] = k < shared ? kept[stream][k] : (token)(1000 + rng_below(&w->rng, 1 << 30));
        struct truth *u = &w->truth[w->n];
        u->cancelled = rng_below(&w->rng, 12) == 0;
        u->n_prompt = len;
        u->task = w->task;
        w->task += 3 + gen;
        assert_int_equal(
            legacy_request(w->cache, seq, len, u->cancelled ? 0 : gen, NULL, 0, &u->t, &err), 0);
        u->held = u->t.held;
        u->lcp = u->t.lcp;
        print_turn(w, gen);
        w->n++;
        kept_n[stream] = len + (u->cancelled ? 0 : gen - 1);
        memcpy(kept[stream], seq, kept_n[stream] * sizeof *seq);
    }
}

struct got {
    struct turn v[MAX_TURNS + 8];
    size_t n;
};

static bool keep_turn(void *ctx, const struct turn *t)
{
    struct got *g = ctx;
    if (g->n < COUNT_OF(g->v))
        g->v[g->n++] = *t;
    return true;
}

static enum outcome expected(const struct truth *u)
{
    switch (u->t.verdict) {
    case VERDICT_FORCED:
        return OUT_FORCED;
    case VERDICT_RESTORED:
        return OUT_RESTORED;
    case VERDICT_APPEND:
        return OUT_APPEND;
    case VERDICT_COLD:
        break;
    }
    return u->held ? OUT_ZERO_OVERLAP : OUT_COLD;
}

static void compare(const struct world *w, uint64_t seed)
{
    static struct got g;
    struct err err;
    struct forensics *f;
    json_t *s;
    g.n = 0;
    assert_int_equal(
        forensics_new(&(struct forensics_opts){.now = 1.8e9, .turn = keep_turn, .ctx = &g}, &f,
                      &err),
        0);
    assert_int_equal(forensics_mem(f, "log", w->log.p, w->log.n, &err), 0);
    assert_int_equal(forensics_end(f, &err), 0);
    assert_int_equal(forensics_summary(f, NULL, &s, &err), 0);
    forensics_free(f);
    const bool quiet = w->era->family == LEGACY_LLAMA && w->era->date >= 20260628 && !w->era->trace;
    int64_t forced = 0, restored = 0, made = 0, erased = 0, cancelled = 0, prompt = 0,
            evaluated = 0, common = 0, avoidable = 0;
    bool hidden = false;
    if (g.n != w->n)
        fail_msg("SEED=%llu %s: %zu turns, should be %u", (unsigned long long)seed, w->era->name,
                 g.n, w->n);
    for (uint32_t i = 0; i < w->n; i++) {
        const struct truth *u = &w->truth[i];
        const struct turn *t = &g.v[i];
        forced += u->t.verdict == VERDICT_FORCED;
        restored += u->t.verdict == VERDICT_RESTORED;
        made += u->t.n_made;
        erased += u->t.n_erased;
        cancelled += u->cancelled;
        hidden |= u->hidden && !u->cancelled;
        if (!u->cancelled) {
            prompt += u->n_prompt;
            evaluated += u->t.processed;
            common += u->lcp;
            avoidable += MAX(0, MIN(u->lcp, (int64_t)u->n_prompt - 1) - u->t.reused);
        }
        if (quiet) /* the log does not tell them apart */
            continue;
        /* nothing so far says that this server prints its checkpoint lines */
        if (!t->verbose && t->outcome == OUT_UNKNOWN) {
            hidden = true;
            continue;
        }
        /* what a cancelled turn shared or reused is not always printed */
        const bool known = !u->cancelled || t->outcome != OUT_UNKNOWN;
        if (t->task != u->task || t->slot != u->t.slot ||
            (known && (t->outcome != expected(u) || (!u->hidden && t->lcp != u->lcp))) ||
            t->held != u->held ||
            (!u->cancelled && (turn_reused(t) != u->t.reused || t->n_prompt != u->n_prompt)))
            fail_msg("SEED=%llu %s: turn %u (task %u): %s, lcp %lld, held %lld, reused %lld of "
                     "%lld; should be %s, %lld, %lld, %u of %u",
                     (unsigned long long)seed, w->era->name, i, u->task, outcome_name(t->outcome),
                     (long long)t->lcp, (long long)t->held, (long long)turn_reused(t),
                     (long long)t->n_prompt, outcome_name(expected(u)), (long long)u->lcp,
                     (long long)u->held, u->t.reused, u->n_prompt);
        if (t->cause == CAUSE_UNKNOWN && t->timed && !u->hidden)
            fail_msg("SEED=%llu %s: turn %u: cause unknown: %s", (unsigned long long)seed,
                     w->era->name, i, t->cause_why);
    }
    const json_t *tot = json_object_get(s, "totals");
    const struct {
        const char *key;
        int64_t want;
        bool always;
    } sums[] = {{"turns", w->n, true},
                {"cancelled", cancelled, true},
                {"turns_timed", w->n - cancelled, true},
                {"unpaired", 0, true},
                {"orphan_timings", 0, true},
                {"prompt_tokens", prompt, true},
                {"evaluated_tokens", evaluated, true},
                {"reused_tokens", prompt - evaluated, true},
                {"forced", forced, false},
                {"restored", restored, false},
                {"created", made, false},
                {"erased", erased, false},
                {"common_prefix_tokens", common, false},
                {"avoidable_tokens", avoidable, false}};
    for (size_t i = 0; i < COUNT_OF(sums); i++)
        if ((sums[i].always || (!quiet && (i < 12 || !hidden))) &&
            json_integer_value(json_object_get(tot, sums[i].key)) != sums[i].want)
            fail_msg("SEED=%llu %s: %s is %lld, should be %lld", (unsigned long long)seed,
                     w->era->name, sums[i].key,
                     (long long)json_integer_value(json_object_get(tot, sums[i].key)),
                     (long long)sums[i].want);
    const json_t *stretches =
        json_object_get(json_array_get(json_object_get(s, "files"), 0), "stretches");
    if (json_array_size(stretches) != 1)
        fail_msg("SEED=%llu %s: %zu stretches", (unsigned long long)seed, w->era->name,
                 json_array_size(stretches));
    json_decref(s);
}

static void every_build_reads_back(void **state)
{
    (void)state;
    static const struct era eras[] = {{"llama 2025-10-05", LEGACY_LLAMA, 20251005, false},
                                      {"llama 2025-10-12", LEGACY_LLAMA, 20251012, false},
                                      {"llama 2025-10-20", LEGACY_LLAMA, 20251020, false},
                                      {"llama 2025-11-15", LEGACY_LLAMA, 20251115, false},
                                      {"llama 2026-01-20", LEGACY_LLAMA, 20260120, false},
                                      {"llama 2026-02-15", LEGACY_LLAMA, 20260215, false},
                                      {"llama 2026-03-07", LEGACY_LLAMA, 20260307, false},
                                      {"llama 2026-03-12", LEGACY_LLAMA, 20260312, false},
                                      {"llama 2026-04-10", LEGACY_LLAMA, 20260410, false},
                                      {"llama 2026-05-16", LEGACY_LLAMA, 20260516, false},
                                      {"llama 2026-05-22", LEGACY_LLAMA, 20260522, false},
                                      {"llama 2026-06-12", LEGACY_LLAMA, 20260612, false},
                                      {"llama 2026-07-01 -lv 4", LEGACY_LLAMA, 20260701, true},
                                      {"llama 2026-07-01", LEGACY_LLAMA, 20260701, false},
                                      {"llama 2026-08-10", LEGACY_LLAMA, 20260810, false},
                                      {"ik", LEGACY_IK, 20260815, false},
                                      {"pxa", LEGACY_PXA, 20260815, false}};
    const char *text = getenv("SEED");
    const uint64_t first = text ? strtoull(text, NULL, 0) : 1;
    for (uint64_t seed = first; seed < first + (text ? 1 : 12); seed++)
        for (size_t i = 0; i < COUNT_OF(eras); i++) {
            static struct world w;
            struct legacy_opts o;
            struct err err;
            w = (struct world){.era = &eras[i], .rng = {.s = seed * 1000 + i}};
            buf_init(&w.log);
            legacy_defaults(&o, eras[i].family, eras[i].date);
            o.cram_mib = 0;
            o.ring = RING;
            o.n_slots = w.n_slots = 1 + rng_below(&w.rng, MAX_SLOTS);
            assert_int_equal(legacy_new(&o, &w.cache, &err), 0);
            make_traffic(&w, 40);
            compare(&w, seed);
            legacy_free(w.cache);
            buf_release(&w.log);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_build_reads_back)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
