/* Turns, outcomes and causes of the logs in tests/logs, and of short ones written here. */
#include "lab/forensics.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"

#include <cmocka.h>

struct got {
    struct turn v[64];
    size_t n;
};

static bool keep(void *ctx, const struct turn *t)
{
    struct got *g = ctx;
    if (g->n < COUNT_OF(g->v))
        g->v[g->n++] = *t;
    return true;
}

static void analyse(struct got *g, const char *text, size_t n)
{
    struct err err;
    struct forensics *f;
    g->n = 0;
    assert_int_equal(
        forensics_new(&(struct forensics_opts){.now = 1.8e9, .turn = keep, .ctx = g}, &f, &err), 0);
    assert_int_equal(forensics_mem(f, "memory", text, n, &err), 0);
    assert_int_equal(forensics_end(f, &err), 0);
    forensics_free(f);
}

static void analyse_file(struct got *g, const char *name)
{
    char path[512], *text;
    size_t n;
    struct err err;
    snprintf(path, sizeof path, "%s/tests/logs/%s", HOUSE_SOURCE_DIR, name);
    if (file_read_all(path, MIB, &text, &n, &err))
        fail_msg("%s", err.msg);
    analyse(g, text, n);
    mem_free(text);
}

struct want {
    int64_t task, n_prompt, held, lcp, reused;
    enum outcome outcome;
    enum cause cause;
    bool inferred;
    int64_t by_task;
};

static void same(const struct got *g, const struct want *w, size_t n)
{
    if (g->n != n)
        fail_msg("%zu turns, should be %zu", g->n, n);
    for (size_t i = 0; i < n; i++) {
        const struct turn *t = &g->v[i];
        const struct {
            const char *what;
            int64_t got, want;
        } f[] = {{"task", t->task, w[i].task},
                 {"n_prompt", t->n_prompt, w[i].n_prompt},
                 {"held", t->held, w[i].held},
                 {"lcp", t->lcp, w[i].lcp},
                 {"reused", turn_reused(t), w[i].reused},
                 {"outcome", t->outcome, w[i].outcome},
                 {"cause", t->cause, w[i].cause},
                 {"inferred", t->cause_inferred, w[i].inferred},
                 {"by_task", t->cause_task, w[i].by_task}};
        for (size_t k = 0; k < COUNT_OF(f); k++)
            if (f[k].got != f[k].want)
                fail_msg("turn %zu: %s is %lld, should be %lld", i, f[k].what, (long long)f[k].got,
                         (long long)f[k].want);
    }
}

static void mainline_causes_are_found(void **state)
{
    struct got g;
    (void)state;
    analyse_file(&g, "mainline-plain.log");
    static const struct want w[] = {
        {0, 3000, 0, 0, 0, OUT_COLD, CAUSE_BASELINE, false, -1},
        {25, 3200, 3020, 2950, 2936, OUT_RESTORED, CAUSE_GRANULARITY, false, -1},
        {40, 3400, 3209, 1500, 0, OUT_FORCED, CAUSE_PLACEMENT, false, -1},
        {52, 90, 3404, 0, 0, OUT_ZERO_OVERLAP, CAUSE_BASELINE, false, -1},
        /* as long as what task 52 drove out: likely its continuation, but the log does not say so */
        {60, 3450, 90, 0, 0, OUT_ZERO_OVERLAP, CAUSE_RETENTION, true, 52},
    };
    same(&g, w, COUNT_OF(w));
    assert_true(g.v[3].cancelled);
    assert_int_equal(g.v[4].evidence[g.v[4].n_evidence - 1].line, 50);
}

static void pxa_eviction_is_retention_with_its_line(void **state)
{
    struct got g;
    (void)state;
    analyse_file(&g, "pxa.log");
    static const struct want w[] = {
        {0, 4560, 0, 0, 0, OUT_COLD, CAUSE_BASELINE, false, -1},
        {40, 4700, 4591, 4570, 4560, OUT_RESTORED, CAUSE_GRANULARITY, false, -1},
        {60, 5000, 4710, 4200, 0, OUT_FORCED, CAUSE_RETENTION, false, 40},
    };
    same(&g, w, COUNT_OF(w));
    assert_int_equal(g.v[2].cause_pos, 4095);
    assert_int_equal(g.v[2].evidence[g.v[2].n_evidence - 1].line, 29);
}

static void the_default_level_leaves_the_cause_unknown(void **state)
{
    struct got g;
    (void)state;
    analyse_file(&g, "mainline-default-level.log");
    static const struct want w[] = {
        {0, 8000, 0, 0, 0, OUT_COLD, CAUSE_BASELINE, false, -1},
        {60, 8332, 8050, 8050, 8050, OUT_APPEND, CAUSE_NONE, false, -1},
        {80, 9000, 8342, 6299, 0, OUT_SILENT_FULL, CAUSE_UNKNOWN, false, -1},
    };
    same(&g, w, COUNT_OF(w));
    assert_int_equal(g.v[2].lcp_from, LCP_ROUNDED);
}

static void front_ends_with_whole_turn_lines_are_read(void **state)
{
    struct got g;
    (void)state;
    analyse_file(&g, "ollama.log");
    static const struct want ollama[] = {
        {0, 6144, -1, 0, 0, OUT_COLD, CAUSE_BASELINE, false, -1},
        {1, 6500, -1, 6100, 5000, OUT_RESTORED, CAUSE_GRANULARITY, true, -1},
        {2, 1000, 900, 900, 900, OUT_APPEND, CAUSE_NONE, false, -1},
    };
    same(&g, ollama, COUNT_OF(ollama));
    assert_int_equal(g.v[0].rate_tokens, 4096);
    assert_float_equal(g.v[0].rate_s, 4.0, 1e-6);
    analyse_file(&g, "lmstudio.log");
    static const struct want lmstudio[] = {
        {0, 4000, -1, -1, 0, OUT_UNKNOWN, CAUSE_UNKNOWN, false, -1},
        {1, 4240, -1, -1, 3840, OUT_RESTORED, CAUSE_UNKNOWN, false, -1},
        {316, 2000, -1, 1200, 0, OUT_FORCED, CAUSE_UNKNOWN, false, -1},
    };
    same(&g, lmstudio, COUNT_OF(lmstudio));
    assert_true(g.v[1].cancelled);
}

static void holdfast_states_its_reasons(void **state)
{
    struct got g;
    (void)state;
    analyse_file(&g, "holdfast.log");
    static const struct want w[] = {
        {1, 4560, -1, 0, 0, OUT_COLD, CAUSE_BASELINE, false, -1},
        {2, 4947, -1, 2531, 2528, OUT_RESTORED, CAUSE_PLACEMENT, false, -1},
        {3, 1000, -1, 900, 400, OUT_RESTORED, CAUSE_RETENTION, false, -1},
    };
    same(&g, w, COUNT_OF(w));
}

#define KV(msg, rest) "INFO [ f] " msg " | tid=\"1\" timestamp=1 " rest "\n"
#define SLOT(id, task, msg) "slot x: id  " #id " | task " #task " | " msg "\n"
#define TIMING(id, task, n, g)                                                                     \
    SLOT(id, task, "prompt eval time = 100.00 ms / " #n " tokens")                                 \
    SLOT(id, task, "eval time = 10.00 ms / " #g " tokens")

/* A fresh slot of llama.cpp with a prompt of 5000 and the checkpoints given. */
#define COLD(ckpts)                                                                                \
    SLOT(0, 0, "processing task, is_child = 0")                                                    \
    SLOT(0, 0, "cached n_tokens = 0, memory_seq_rm [0, end)")                                      \
    ckpts TIMING(0, 0, 5000, 11) SLOT(0, 0, "stop processing: n_tokens = 5010, truncated = 0")
#define CKPT(n, task, pos)                                                                         \
    SLOT(0, task,                                                                                  \
         "created context checkpoint " #n " of 32 (pos_min = " #pos ", pos_max = " #pos            \
         ", n_tokens = 1, size = 62.8 MiB)")

static void a_checkpoint_at_the_divergence_that_is_refused_is_a_rewind(void **state)
{
    struct got g;
    (void)state;
    static const char text[] = COLD(CKPT(1, 0, 2047) CKPT(2, 0, 4095) CKPT(3, 0, 4994))
        SLOT(0, 20, "processing task, is_child = 0")
            SLOT(0, 20, "checking checkpoint with [4095, 4095] against 4096...")
                SLOT(0, 20,
                     "restored context checkpoint (pos_min = 2047, pos_max = 2047, n_tokens = "
                     "2048, n_past = 2048, size = 62.8 MiB)")
                    SLOT(0, 20, "cached n_tokens = 2048, memory_seq_rm [2048, end)")
                        TIMING(0, 20, 3000, 5)
                            SLOT(0, 20, "stop processing: n_tokens = 5052, truncated = 0");
    analyse(&g, text, sizeof text - 1);
    static const struct want w[] = {
        {0, 5000, 0, 0, 0, OUT_COLD, CAUSE_BASELINE, false, -1},
        {20, 5048, 5010, 4096, 2048, OUT_RESTORED, CAUSE_REWIND, false, 0},
    };
    same(&g, w, COUNT_OF(w));
    assert_int_equal(g.v[1].cause_pos, 4095);
}

static void a_log_that_begins_late_says_unknown(void **state)
{
    struct got g;
    (void)state;
    static const char text[] = SLOT(0, 20, "processing task, is_child = 0") SLOT(
        0, 20,
        "n_past = 3000, slot.prompt.tokens.size() = 5010, seq_id = 0, pos_min = 5009, n_swa = 0")
        SLOT(0, 20,
             "forcing full prompt re-processing due to lack of cache data (likely due to SWA or "
             "hybrid/recurrent memory, see x)") SLOT(0, 20, "n_tokens = 0, memory_seq_rm [0, end)")
            TIMING(0, 20, 5100, 5) SLOT(0, 20, "stop processing: n_tokens = 5104, truncated = 0");
    analyse(&g, text, sizeof text - 1);
    static const struct want w[] = {
        {20, 5100, 5010, 3000, 0, OUT_FORCED, CAUSE_UNKNOWN, false, -1}};
    same(&g, w, 1);
    assert_non_null(strstr(g.v[0].cause_why, "begins after"));
}

static void an_older_order_of_lines_is_paired(void **state)
{
    struct got g;
    (void)state;
    /* release first, then timings without a prefix (2024) */
    static const char text[] = SLOT(0, 519, "processing task")
        SLOT(0, 519, "new prompt, n_ctx_slot = 4096, n_keep = 0, n_prompt_tokens = 339")
            SLOT(0, 519, "kv cache rm [0, end)")
                SLOT(0, 519,
                     "stop processing: n_past = 380, truncated = "
                     "0") "slot print_timing: id  0 | task 519 |\n"
                          "prompt eval time =     100.00 ms /   "
                          "339 tokens (x)\n       eval time =     "
                          "900.00 ms /    42 tokens (x)\n"
                          "      total time =    1000.00 ms /   "
                          "381 tokens\n" SLOT(0, 562, "processing task")
                              SLOT(0, 562,
                                   "new prompt, n_ctx_slot = "
                                   "4096, n_keep = 0, "
                                   "n_prompt_tokens = 342") SLOT(0, 562, "kv cache rm [340, end)")
                                  SLOT(0, 562,
                                       "stop processing: "
                                       "n_past = 350, "
                                       "truncated = 0");
    analyse(&g, text, sizeof text - 1);
    static const struct want w[] = {{519, 339, -1, -1, 0, OUT_UNKNOWN, CAUSE_UNKNOWN, false, -1},
                                    {562, 342, 380, 340, 340, OUT_TRIMMED, CAUSE_NONE, false, -1}};
    same(&g, w, 2);
    assert_true(g.v[0].timed);
    assert_int_equal(g.v[0].generated, 42);
    assert_false(g.v[1].timed);
}

static void prefixless_timings_go_to_the_only_turn_without_one(void **state)
{
    struct got g;
    (void)state;
    static const char text[] = KV(
        "slot is processing task",
        "id_slot=0 id_task=4") "======== Cache: cache_size = 0, n_past =  0, n_past_prompt = "
                               "0\n" KV("kv cache rm [p0, end)",
                                        "id_slot=0 id_task=4 p0=0") "slot print_ti\n" /* cut */
                                                                    "prompt eval time =     100.00 "
                                                                    "ms /   339 tokens (x)\n" KV(
                                                                        "slot released",
                                                                        "id_slot=0 id_task=4 "
                                                                        "n_past=350 "
                                                                        "n_cache_tokens=350");
    analyse(&g, text, sizeof text - 1);
    assert_int_equal(g.n, 1);
    assert_int_equal(g.v[0].evaluated, 339);
}

static void cache_lines_find_their_slot_when_several_begin_at_once(void **state)
{
    struct got g;
    (void)state;
    static const char text[] = KV("slot released", "id_slot=0 id_task=1 n_past=100 "
                                                   "n_cache_tokens=100")
        KV("slot released", "id_slot=1 id_task=2 n_past=700 n_cache_tokens=700")
            KV("slot is processing task", "id_slot=1 id_task=4") KV(
                "slot is processing task",
                "id_slot=0 id_task=5") "======== Cache: cache_size = 100, n_past =  90, "
                                       "n_past_prompt = "
                                       "90\n" KV(
                                           "kv cache rm [p0, end)",
                                           "id_slot=0 id_task=5 p0=90") "======== Cache: "
                                                                        "cache_size = 700, n_past "
                                                                        "=  650, n_past_prompt = "
                                                                        "650\n" KV("kv cache rm "
                                                                                   "[p0, end)",
                                                                                   "id_slot=1 "
                                                                                   "id_task=4 "
                                                                                   "p0=650") "slot"
                                                                                             " pri"
                                                                                             "nt_"
                                                                                             "timi"
                                                                                             "ng: "
                                                                                             "id  "
                                                                                             "1 | "
                                                                                             "task"
                                                                                             " 4 "
                                                                                             "| "
                                                                                             "\npr"
                                                                                             "ompt"
                                                                                             " eva"
                                                                                             "l "
                                                                                             "time"
                                                                                             " = "
                                                                                             "1."
                                                                                             "00 "
                                                                                             "ms "
                                                                                             "/ "
                                                                                             "50 "
                                                                                             "toke"
                                                                                             "ns\n"
                                                                                             "slot"
                                                                                             " pri"
                                                                                             "nt_"
                                                                                             "timi"
                                                                                             "ng: "
                                                                                             "id  "
                                                                                             "0 | "
                                                                                             "task"
                                                                                             " 5 "
                                                                                             "| "
                                                                                             "\npr"
                                                                                             "ompt"
                                                                                             " eva"
                                                                                             "l "
                                                                                             "time"
                                                                                             " = "
                                                                                             "1."
                                                                                             "00 "
                                                                                             "ms "
                                                                                             "/ "
                                                                                             "60 "
                                                                                             "toke"
                                                                                             "ns"
                                                                                             "\n";
    analyse(&g, text, sizeof text - 1);
    static const struct want w[] = {{4, 700, 700, 650, 650, OUT_TRIMMED, CAUSE_NONE, false, -1},
                                    {5, 150, 100, 90, 90, OUT_TRIMMED, CAUSE_NONE, false, -1}};
    same(&g, w, 2);
}

static void a_lost_re_entry_line_does_not_shift_the_turn(void **state)
{
    struct got g;
    (void)state;
    /* ik prints no prompt length: start 0 was in the line that is lost, 2048 is the next batch's */
    static const char text[] = KV(
        "slot is processing task",
        "id_slot=0 id_task=0") "======== Cache: cache_size = 0, n_past =  0, n_past_prompt = "
                               "0\n" KV("kv cache rm [p0, end)",
                                        "id_slot=0 id_task=0 p0=2048") "slot print_timing: id  0 | "
                                                                       "task 0 | \n"
                                                                       "prompt eval time = 100.00 "
                                                                       "ms / 3000 tokens\n       "
                                                                       "eval time = 10.00 ms / 11 "
                                                                       "tokens\n" KV(
                                                                           "slot released",
                                                                           "id_slot=0 id_task=0 "
                                                                           "n_past=3010 "
                                                                           "n_cache_tokens=3010");
    analyse(&g, text, sizeof text - 1);
    static const struct want w[] = {{0, 3000, 0, 0, 0, OUT_COLD, CAUSE_BASELINE, false, -1}};
    same(&g, w, 1);
}

static void an_idle_slot_put_aside_is_empty_afterwards(void **state)
{
    struct got g;
    (void)state;
    static const char text[] =
        COLD(CKPT(1, 0, 4994)) SLOT(0, -1, "saving idle slot to prompt cache")
            SLOT(0, -1, "clearing prompt with 5010 tokens")
                SLOT(0, 30, "processing task, is_child = 0")
                    SLOT(0, 30, "cached n_tokens = 0, memory_seq_rm [0, end)") TIMING(0, 30, 90, 5)
                        SLOT(0, 30,
                             "stop processing: n_tokens = 94, truncated = "
                             "0") "srv          load:  - found better "
                                  "prompt with f_keep = 1.000, sim = "
                                  "0.919\n" SLOT(0, 50,
                                                 "processing task, "
                                                 "is_child = 0") SLOT(0, 50,
                                                                      "cached n_tokens = 5010, "
                                                                      "memory_seq_rm [5010, end)")
                                      TIMING(0, 50, 200, 5) SLOT(0, 50,
                                                                 "stop processing: n_tokens "
                                                                 "= 5214, truncated = 0");
    analyse(&g, text, sizeof text - 1);
    static const struct want w[] = {
        {0, 5000, 0, 0, 0, OUT_COLD, CAUSE_BASELINE, false, -1},
        {30, 90, 0, 0, 0, OUT_COLD, CAUSE_BASELINE, false, -1},
        {50, 5210, 5010, 5010, 5010, OUT_APPEND, CAUSE_NONE, false, -1}};
    same(&g, w, 3);
}

static void what_an_older_build_cleared_is_placement(void **state)
{
    struct got g;
    (void)state;
    static const char text[] = SLOT(0, 0, "processing task") SLOT(0, 0, "kv cache rm [0, end)")
        TIMING(0, 0, 5000, 11) SLOT(0, 0, "stop processing: n_past = 5010, truncated = 0")
            SLOT(0, 20, "processing task") SLOT(
                0, 20, "new prompt, n_ctx_slot = 8192, n_keep = 0, n_prompt_tokens = 5100")
                SLOT(0, 20, "failed to truncate tokens with position >= 3000 - clearing the memory")
                    SLOT(0, 20, "kv cache rm [0, end)") TIMING(0, 20, 5100, 5)
                        SLOT(0, 20, "stop processing: n_past = 5104, truncated = 0");
    analyse(&g, text, sizeof text - 1);
    static const struct want w[] = {
        {0, 5000, 0, 0, 0, OUT_COLD, CAUSE_BASELINE, false, -1},
        {20, 5100, 5010, 3000, 0, OUT_CLEARED, CAUSE_PLACEMENT, false, -1}};
    same(&g, w, 2);
}

static void a_swap_with_the_ram_cache_is_seen(void **state)
{
    struct got g;
    (void)state;
    static const char text[] = COLD(CKPT(
        1, 0,
        4994)) "srv  get_availabl: updating prompt cache\n"
               "srv   prompt_save:  - saving prompt with length 5010, total state size = 477.812 "
               "MiB\n"
               "srv          load:  - looking for better prompt, base f_keep = 0.044, sim = 0.019\n"
               "srv          load:  - found better prompt with f_keep = 0.891, sim = 0.819\n" SLOT(
                   0, 30, "processing task, is_child = 0")
                   SLOT(0, 30,
                        "n_past = 7000, slot.prompt.tokens.size() = 7856, seq_id = 0, pos_min = "
                        "7855, n_swa = 0")
                       SLOT(0, 30,
                            "restored context checkpoint (pos_min = 6143, pos_max = 6143, n_tokens "
                            "= 6144, n_past = 6144, size = 62.8 MiB)")
                           SLOT(0, 30, "n_tokens = 6144, memory_seq_rm [6144, end)")
                               TIMING(0, 30, 2400, 5)
                                   SLOT(0, 30, "stop processing: n_tokens = 8548, truncated = 0");
    analyse(&g, text, sizeof text - 1);
    static const struct want w[] = {
        {0, 5000, 0, 0, 0, OUT_COLD, CAUSE_BASELINE, false, -1},
        {30, 8544, 7856, 7000, 6144, OUT_RESTORED, CAUSE_GRANULARITY, false, -1}};
    same(&g, w, 2);
    assert_true(g.v[1].swapped);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mainline_causes_are_found),
        cmocka_unit_test(pxa_eviction_is_retention_with_its_line),
        cmocka_unit_test(the_default_level_leaves_the_cause_unknown),
        cmocka_unit_test(front_ends_with_whole_turn_lines_are_read),
        cmocka_unit_test(holdfast_states_its_reasons),
        cmocka_unit_test(a_checkpoint_at_the_divergence_that_is_refused_is_a_rewind),
        cmocka_unit_test(a_log_that_begins_late_says_unknown),
        cmocka_unit_test(an_older_order_of_lines_is_paired),
        cmocka_unit_test(prefixless_timings_go_to_the_only_turn_without_one),
        cmocka_unit_test(cache_lines_find_their_slot_when_several_begin_at_once),
        cmocka_unit_test(a_lost_re_entry_line_does_not_shift_the_turn),
        cmocka_unit_test(an_idle_slot_put_aside_is_empty_afterwards),
        cmocka_unit_test(what_an_older_build_cleared_is_placement),
        cmocka_unit_test(a_swap_with_the_ram_cache_is_seen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
