/* One line of every wording, through line_read. */
#include "lab/line.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#define NO (-1)

static const struct {
    const char *text;
    enum line_kind kind;
    uint32_t engines;
    int32_t since, until;
    int32_t slot;
    int64_t task, n_prompt, n_past, held, pos_max, n_tokens;
} cases[] = {
    {"slot launch_slot_: id  2 | task 45 | processing task", LINE_LAUNCH, ENG_LLAMA, 0, 20260109, 2,
     45, NO, NO, NO, NO, NO},
    {"slot launch_slot_: id  0 | task 9 | processing task, is_child = 0", LINE_LAUNCH, ENG_LLAMA,
     20260110, 0, 0, 9, NO, NO, NO, NO, NO},
    {"slot update_slots: id  0 | task 0 | new prompt, n_ctx_slot = 4096, n_keep = 0, "
     "n_prompt_tokens = 342",
     LINE_PROMPT, ENG_LLAMA, 0, 20251029, 0, 0, 342, NO, NO, NO, NO},
    {"slot update_slots: id  0 | task 0 | new prompt, n_ctx_slot = 4096, n_keep = -1, "
     "task.n_tokens = 342",
     LINE_PROMPT, ENG_LLAMA, 20251030, 0, 0, 0, 342, NO, NO, NO, NO},
    {"slot update_slots: id  1 | task 7 | n_past = 12, cache_tokens.size() = 438, seq_id = 1, "
     "pos_min = 437, n_swa = 1",
     LINE_DIVERGE, ENG_LLAMA, 20250531, 20251014, 1, 7, NO, 12, 438, NO, NO},
    {"slot update_slots: id  1 | task 7 | n_past = 12, slot.prompt.tokens.size() = 438, seq_id = "
     "1, pos_min = 437, n_swa = 1",
     LINE_DIVERGE, ENG_LLAMA, 20251015, 0, 1, 7, NO, 12, 438, NO, NO},
    {"slot apply_checkp: id  1 | task 7 | n_past = 12, slot.prompt.tokens.size() = 438, seq_id = "
     "1, pos_min = 437",
     LINE_DIVERGE, ENG_IK, 20251015, 0, 1, 7, NO, 12, 438, NO, NO},
    {"slot apply_checkp: id  1 | task 7 | n_past = 12, slot.prompt.tokens.size() = 438, seq_id = "
     "1, pos_min = 437, state_pos = 437",
     LINE_DIVERGE, ENG_PXA, 20251015, 0, 1, 7, NO, 12, 438, NO, NO},
    {"slot update_slots: id  0 | task 5 | forcing full prompt re-processing due to lack of cache "
     "data (likely due to SWA, see https://x)",
     LINE_FORCE, ENG_SLOTS, 20250520, 0, 0, 5, NO, NO, NO, NO, NO},
    {"slot update_slots: id  0 | task 5 | forcing full prompt re-processing due to lack of cache "
     "data (likely due to SWA or hybrid/recurrent memory, see https://x)",
     LINE_FORCE, ENG_LLAMA | ENG_IK, 20251003, 0, 0, 5, NO, NO, NO, NO, NO},
    {"slot apply_checkp: id  0 | task 5 | no usable hybrid/recurrent checkpoint; forcing full "
     "prompt re-processing",
     LINE_FORCE, ENG_IK, 20260424, 20260502, 0, 5, NO, NO, NO, NO, NO},
    {"slot apply_checkp: id  0 | task 5 | no usable hybrid/recurrent checkpoint; preserving slot "
     "state (n_past = 40, n_past_prompt = 40)",
     LINE_DIVERGE, ENG_IK, 20260423, 20260424, 0, 5, NO, 40, NO, NO, NO},
    {"slot apply_checkp: id  0 | task 5 | cached sequence diverges at 30/90 and this model does "
     "not support partial KV reuse - reprocessing from scratch",
     LINE_FORCE, ENG_IK, 20260221, 0, 0, 5, NO, 30, 90, NO, NO},
    {"slot update_slots: id  0 | task 5 | failed to truncate tokens with position >= 300 - "
     "clearing the memory",
     LINE_CLEAR, ENG_LLAMA, 0, 20260516, 0, 5, NO, 300, NO, NO, NO},
    {"slot update_slots: id  3 | task 5 | partial seq_rm at p0=300 failed (recurrent backend "
     "cannot roll into cache); clearing slot and re-evaluating from scratch",
     LINE_CLEAR, ENG_LLAMA, 0, 0, 3, 5, NO, 300, NO, NO, NO},
    {"slot update_slots: id  2 | task 5 | rescue: seq_rm at p0=340 failed; restored checkpoint at "
     "pos=300 (n_past 340 -> 300, size = 62.813 MiB)",
     LINE_RESTORE, ENG_LLAMA, 20260309, 0, 2, 5, NO, 300, NO, 300, NO},
    {"slot update_slots: id  0 | task 5 | Checking checkpoint with [99, 99] against 340...",
     LINE_CHECK, ENG_LLAMA, 20260306, 20260627, 0, 5, NO, 340, NO, 99, NO},
    {"slot   operator(): id  0 | task 5 | checking checkpoint with [99, 99] against 340...",
     LINE_CHECK, ENG_LLAMA, 20260628, 0, 0, 5, NO, 340, NO, 99, NO},
    {"slot update_slots: id  0 | task 5 | SWA checkpoint restore, pos_min = 1, pos_max = 99, size "
     "= 5.000 MiB",
     LINE_RESTORE, ENG_LLAMA, 20250814, 20250926, 0, 5, NO, NO, NO, 99, NO},
    {"slot update_slots: id  0 | task 5 | restored context checkpoint (pos_min = 99, pos_max = 99, "
     "n_tokens = 100, n_past = 100, size = 5.000 MiB)",
     LINE_RESTORE, ENG_LLAMA, 20260309, 0, 0, 5, NO, 100, NO, 99, 100},
    {"slot apply_checkp: id  0 | task 5 | restored context checkpoint took  14.48 ms (pos_min = "
     "2047, pos_max = 2047, n_tokens = 2048, n_past = 2048, size = 19.286 MiB)",
     LINE_RESTORE, ENG_KV, 20260221, 0, 0, 5, NO, 2048, NO, 2047, 2048},
    {"slot apply_checkp: id  0 | task 5 | restored HYBRID context checkpoint took 14.48 ms "
     "(state_pos 4590 -> 2047, n_past = 2048, size = 62.9 MiB)",
     LINE_RESTORE, ENG_PXA, 0, 0, 0, 5, NO, 2048, NO, 2047, NO},
    {"slot update_slots: id  0 | task 5 | saved context checkpoint 1 of 3 (pos_min = 9, pos_max = "
     "99, size = 5.000 MiB)",
     LINE_CREATE, ENG_LLAMA, 20251003, 20251008, 0, 5, NO, NO, NO, 99, NO},
    {"slot update_slots: id  0 | task 5 | created context checkpoint 1 of 8 (pos_min = 99, pos_max "
     "= 99, size = 5.000 MiB)",
     LINE_CREATE, ENG_LLAMA, 20251009, 20260224, 0, 5, NO, NO, NO, 99, NO},
    {"slot create_check: id  0 | task 5 | created context checkpoint 1 of 8 (pos_min = 99, pos_max "
     "= 99, n_tokens = 100, size = 5.000 MiB)",
     LINE_CREATE, ENG_LLAMA, 20260225, 0, 0, 5, NO, NO, NO, 99, 100},
    {"slot create_check: id  0 | task 5 | created context checkpoint 1 of 8 (pos_min = 99, pos_max "
     "= 99, n_tokens = 100, size = 5.000 MiB, took 50.19 ms)",
     LINE_CREATE, ENG_KV, 20251009, 0, 0, 5, NO, NO, NO, 99, 100},
    {"slot create_check: id  0 | task 5 | created context checkpoint 1 of 8 (pos_min = 99, pos_max "
     "= 99, n_tokens = 100, size = 5.000 MiB, took 50.19 ms, prompt-end)",
     LINE_CREATE, ENG_PXA, 20251009, 0, 0, 5, NO, NO, NO, 99, 100},
    {"slot update_slots: id  0 | task 5 | erased invalidated context checkpoint (pos_min = 99, "
     "pos_max = 99, n_swa = 1, size = 5.000 MiB)",
     LINE_ERASE, ENG_LLAMA, 20251003, 0, 0, 5, NO, NO, NO, 99, NO},
    {"slot update_slots: id  0 | task 5 | erased invalidated context checkpoint (pos_min = 99, "
     "pos_max = 99, n_tokens = 100, n_swa = 0, pos_next = 0, size = 5.000 MiB)",
     LINE_ERASE, ENG_LLAMA, 20260317, 0, 0, 5, NO, NO, NO, 99, 100},
    {"slot apply_checkp: id  0 | task 5 | erased invalidated context checkpoint (pos_min = 99, "
     "pos_max = 99, size = 5.000 MiB)",
     LINE_ERASE, ENG_KV, 20251003, 0, 0, 5, NO, NO, NO, 99, NO},
    {"slot create_check: id  0 | task 5 | erasing old context checkpoint (pos_min = 99, pos_max = "
     "99, n_tokens = 100, size = 5.000 MiB, replay_hits = 2, boundary, prompt-end)",
     LINE_EVICT, ENG_PXA, 20251009, 0, 0, 5, NO, NO, NO, 99, 100},
    {"slot create_check: id  0 | task 5 | erasing context checkpoint too close to an earlier one "
     "(pos_min = 99, pos_max = 99, n_tokens = 100, size = 5.000 MiB)",
     LINE_THIN, ENG_LLAMA, 20260712, 0, 0, 5, NO, NO, NO, 99, 100},
    {"slot create_check: id  0 | task 5 | superseding context checkpoint at n_tokens = 100",
     LINE_THIN, ENG_LLAMA, 20260901, 0, 0, 5, NO, NO, NO, NO, 100},
    {"slot update_slots: id  0 | task 5 | kv cache rm [64, end)", LINE_REENTRY, ENG_LLAMA, 0,
     20251002, 0, 5, NO, 64, NO, NO, NO},
    {"slot update_slots: id  0 | task 5 | n_past = 64, memory_seq_rm [64, end)", LINE_REENTRY,
     ENG_LLAMA, 20251003, 20251029, 0, 5, NO, 64, NO, NO, NO},
    {"slot update_slots: id  0 | task 5 | n_tokens = 64, memory_seq_rm [64, end)", LINE_REENTRY,
     ENG_LLAMA, 20251030, 20260513, 0, 5, NO, 64, NO, NO, NO},
    {"slot   operator(): id  0 | task 5 | cached n_tokens = 64, memory_seq_rm [64, end)",
     LINE_REENTRY, ENG_LLAMA, 20260514, 0, 0, 5, NO, 64, NO, NO, NO},
    {"slot print_timing: id  0 | task 5 | prompt eval time =    8410.84 ms / 11756 tokens (    "
     "0.72 ms per token,  1397.72 tokens per second)",
     LINE_EVAL, ENG_LLAMA, 20260519, 0, 0, 5, NO, NO, NO, NO, 11756},
    {"slot print_timing: id  0 | task 5 | ", LINE_TIMING, ENG_SLOTS, 0, 0, 0, 5, NO, NO, NO, NO,
     NO},
    {"slot print_timing: id  0 | task 5 |", LINE_TIMING, ENG_SLOTS, 0, 0, 0, 5, NO, NO, NO, NO, NO},
    {"slot print_timing: id  1 | task -1 | ", LINE_TIMING, ENG_SLOTS, 0, 0, 1, -1, NO, NO, NO, NO,
     NO},
    {"prompt eval time =    8410.84 ms / 11756 tokens (    0.72 ms per token,  1397.72 tokens per "
     "second)",
     LINE_EVAL, ENG_SLOTS, 0, 0, NO, NO, NO, NO, NO, NO, 11756},
    {"       eval time =     987.76 ms /    40 tokens (   24.69 ms per token,    40.50 tokens per "
     "second)",
     LINE_DECODE, ENG_SLOTS, 0, 0, NO, NO, NO, NO, NO, NO, 40},
    {"slot      release: id  0 | task 5 | stop processing: n_past = 380, truncated = 0",
     LINE_RELEASE, ENG_LLAMA, 0, 20251029, 0, 5, NO, NO, 380, NO, NO},
    {"slot      release: id  0 | task 5 | stop processing: n_tokens = 380, truncated = 0",
     LINE_RELEASE, ENG_LLAMA, 20251030, 0, 0, 5, NO, NO, 380, NO, NO},
    {"slot get_availabl: id  0 | task -1 |  - checking sim = 0.961 (10850/11290) > 0.100",
     LINE_PICK_SIM, ENG_LLAMA, 20260601, 0, 0, -1, 11290, 10850, NO, NO, NO},
    {"slot prompt_clear: id  0 | task -1 | clearing prompt with 656 tokens", LINE_FREED, ENG_LLAMA,
     20260403, 0, 0, -1, NO, NO, 656, NO, NO},
    {"srv          stop: cancel task, id_task = 1826", LINE_CANCEL, ENG_LLAMA, 0, 0, NO, 1826, NO,
     NO, NO, NO, NO},
    {"srv          load:  - found better prompt with f_keep = 0.491, sim = 0.519", LINE_SWAP,
     ENG_LLAMA, 20251009, 20260728, NO, NO, NO, NO, NO, NO, NO},
    {"srv    load_model: initializing, n_slots = 2, n_ctx_slot = 80000, kv_unified = 'true'",
     LINE_BEGIN, ENG_LLAMA, 20260628, 0, NO, NO, NO, NO, NO, NO, NO},
    {"INFO [   launch_slot_with_task] slot is processing task | tid=\"140\" timestamp=1792224001 "
     "id_slot=3 id_task=17",
     LINE_LAUNCH, ENG_KV | ENG_LLAMA, 0, 0, 3, 17, NO, NO, NO, NO, NO},
    {"INFO [    batch_pending_prompt] kv cache rm [p0, end) | tid=\"140\" timestamp=1792224001 "
     "id_slot=0 id_task=0 p0=2048",
     LINE_REENTRY, ENG_KV | ENG_LLAMA, 0, 0, 0, 0, NO, 2048, NO, NO, NO},
    {"INFO [           release_slots] slot released | tid=\"140\" timestamp=1792224004 id_slot=0 "
     "id_task=0 n_ctx=262144 n_past=3083 n_system_tokens=0 n_cache_tokens=3083 truncated=false",
     LINE_RELEASE, ENG_KV | ENG_LLAMA, 0, 0, 0, 0, NO, 3083, 3083, NO, NO},
    {"INFO [           print_timings] prompt eval time     =    1048.86 ms /   221 tokens (    "
     "4.75 ms per token,   210.70 tokens per second) | tid=\"0x1e\" timestamp=1720645909 id_slot=0 "
     "id_task=1 t_prompt_processing=1048.86 n_prompt_tokens_processed=221",
     LINE_EVAL, ENG_KV | ENG_LLAMA, 0, 20260109, 0, 1, NO, NO, NO, NO, 221},
    {"{\"function\":\"print_timings\",\"level\":\"INFO\",\"line\":272,\"msg\":\"prompt eval time   "
     "  =    1327.47 ms /   405 tokens (    3.28 ms per "
     "token)\",\"n_prompt_tokens_processed\":405,\"slot_id\":0,\"t_prompt_processing\":1327.475,"
     "\"task_id\":8,\"tid\":\"0x176\",\"timestamp\":1712133610}",
     LINE_EVAL, ENG_KV | ENG_LLAMA, 0, 20260109, 0, 8, NO, NO, NO, NO, 405},
    {"{\"tid\":\"139\",\"timestamp\":1791450012,\"level\":\"INFO\",\"function\":\"batch_pending_"
     "prompt\",\"line\":4081,\"msg\":\"kv cache rm [p0, "
     "end)\",\"id_slot\":0,\"id_task\":0,\"p0\":2048,\"params\":{\"p0\":7}}",
     LINE_REENTRY, ENG_KV | ENG_LLAMA, 0, 0, 0, 0, NO, 2048, NO, NO, NO},
    {"======== Cache: cache_size = 4591, n_past =  2531, n_past_prompt = 2531", LINE_CACHE, ENG_IK,
     20260710, 0, NO, NO, NO, 2531, 4591, NO, NO},
    {"======== Cache: cache_size = 4591, n_past0 =  2530, n_past1 =  2531, n_past_prompt1 = 2531,  "
     "n_past2 =  2531, n_past_prompt2 =  2531",
     LINE_CACHE, ENG_KV, 20251130, 0, NO, NO, NO, 2531, 4591, NO, NO},
    {"======== Prompt cache: cache size: 4591, n_keep: 0, n_discarded_prompt: 0, cache_ram_n_min: "
     "0, f_keep: 0.55, cache_ram_similarity: 0.50",
     LINE_OFFER, ENG_KV, 0, 0, NO, NO, NO, NO, 4591, NO, NO},
    {"PXA_SWA_TRUNCATE_GUARD: forcing full re-process (cache=5000, keep=40, discard=4960) ...",
     LINE_FORCE, ENG_PXA, 0, 0, NO, NO, NO, 40, 5000, NO, NO},
    {"Common part does not match fully", LINE_ECHO, ENG_KV, 0, 0, NO, NO, NO, NO, NO, NO, NO},
    {"time=2026-01-25T14:40:29.858Z level=DEBUG source=cache.go:142 msg=\"loading cache slot\" "
     "id=1 cache=11060 prompt=4539 used=2560 remaining=1979",
     LINE_TURN, ENG_OLLAMA, 20241030, 0, 1, NO, 4539, 2560, 11060, NO, 1979},
    {"time=2026-08-19T19:37:11.287+02:00 level=INFO source=prefix_cache.go:124 msg=\"cache hit\" "
     "total=23169 matched=21742 cached=16383 left=6786",
     LINE_TURN, ENG_OLLAMA, 20260301, 0, NO, NO, 23169, 16383, NO, NO, 6786},
    {"Prompt cache restore: cached_tokens=37464 uncached_tokens=19 lifetime_efficiency=90.58%",
     LINE_TURN, ENG_LMSTUDIO, 20260401, 0, NO, NO, NO, 37464, NO, NO, 19},
    {"Cache reuse summary: 939/940 of prompt (99%), 939 prefix, 0 non-prefix", LINE_TURN,
     ENG_LMSTUDIO, 20250101, 20251231, NO, NO, 940, 939, NO, NO, NO},
    {"{\"t\":12.5,\"ev\":\"lookup\",\"id\":3,\"n_prompt\":4947,\"lcp\":2531,\"start\":2528,"
     "\"from\":\"ram\",\"why\":\"\"}",
     LINE_LAUNCH, ENG_HOLDFAST, 0, 0, NO, 3, 4947, 2528, NO, NO, NO},
    {"request 3: prompt 4947, reused 2528 (branch, RAM), evaluated 2419 in 1.83 s (1321.9 tok/s), "
     "generated 32 in 1.20 s (26.7 tok/s), stop limit; 3 of 2531 common tokens again: no snapshot "
     "placed 3",
     LINE_TURN, ENG_HOLDFAST, 0, 0, NO, 3, 4947, 2528, NO, NO, 2419},
};

static void every_wording_is_read(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct line l;
        if (!line_read(str_of(cases[i].text), &l))
            fail_msg("not read: %s", cases[i].text);
        const struct {
            const char *what;
            int64_t got, want;
        } fields[] = {{"kind", l.kind, cases[i].kind},
                      {"engines", l.engines, cases[i].engines},
                      {"since", l.since, cases[i].since},
                      {"until", l.until, cases[i].until},
                      {"slot", l.slot, cases[i].slot},
                      {"task", l.task, cases[i].task},
                      {"n_prompt", l.n_prompt, cases[i].n_prompt},
                      {"n_past", l.n_past, cases[i].n_past},
                      {"held", l.held, cases[i].held},
                      {"pos_max", l.pos_max, cases[i].pos_max},
                      {"n_tokens", l.n_tokens, cases[i].n_tokens}};
        for (size_t k = 0; k < COUNT_OF(fields); k++)
            if (fields[k].got != fields[k].want)
                fail_msg("%s is %lld, should be %lld in: %s", fields[k].what,
                         (long long)fields[k].got, (long long)fields[k].want, cases[i].text);
    }
}

static void shares_and_milliseconds_are_read(void **state)
{
    (void)state;
    struct line l;
    assert_true(
        line_read(str_of("slot get_availabl: id  0 | task -1 | selected slot by LCP similarity, "
                         "f_sim_best = 0.961 (> 0.100 thold), f_keep = 0.952"),
                  &l));
    assert_float_equal(l.sim, 0.961, 1e-12);
    assert_float_equal(l.keep, 0.952, 1e-12);
    assert_true(
        line_read(str_of("slot create_check: id  0 | task 0 | created context checkpoint 1 of 64 "
                         "(pos_min = 2453, "
                         "pos_max = 2453, n_tokens = 2454, size = 62.901 MiB, took 50.19 ms)"),
                  &l));
    assert_float_equal(l.ms, 50.19, 1e-12);
    assert_float_equal(l.mib, 62.901, 1e-12);
    assert_int_equal(l.n, 1);
    assert_int_equal(l.max, 64);
    assert_true(line_read(
        str_of(
            "request 3: prompt 10, reused 4, evaluated 6 in 1.83 s (3.3 tok/s), generated 32 "
            "in 1.20 s (26.7 tok/s), stop limit; 3 of 7 common tokens again: evicted 3 (4 s ago)"),
        &l));
    assert_float_equal(l.ms, 1830, 1e-9);
    assert_float_equal(l.ms2, 1200, 1e-9);
    assert_int_equal(l.lcp0, 7);
    assert_int_equal(l.n, 32);
    assert_true(str_starts(l.why, str_of(" evicted 3")));
}

static void a_phrase_elsewhere_in_a_line_is_no_event(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "log tail: forcing full prompt re-processing due to lack of cache data (user pasted a log)",
        "user: slot update_slots: id  0 | task 5 | forcing full prompt re-processing",
        "slot update_slots: id  0 | said: forcing full prompt re-processing",
        "slot update_slots: id  0 | task 5 | the log said forcing full prompt re-processing",
        "forcing full prompt re-processing due to lack of cache data",
        "slot create_check: id  0 | task",
        "{\"msg\":\"slot is",
        "INFO [ x] kv cache rm [p0, end)",
        "",
        "{",
        "slot ",
        "srv  x",
        "time=2026",
        "created context checkpoint 1 of 64 (pos_min = 2453",
    };
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        struct line l;
        if (line_read(str_of(texts[i]), &l))
            fail_msg("read as %s: %s", line_kind_name(l.kind), texts[i]);
    }
}

static void numbers_out_of_range_are_no_numbers(void **state)
{
    (void)state;
    struct line l;
    assert_false(
        line_read(str_of("slot x: id  99999999999999999999 | task 5 | processing task"), &l));
    assert_true(line_read(str_of("slot x: id  4294967296 | task 5 | processing task"), &l));
    assert_int_equal(l.slot, -1);
    assert_true(line_read(
        str_of("INFO [ launch_slot_with_task] slot is processing task | tid=\"1\" id_slot=-7 "
               "id_task=99999999999999999999999"),
        &l));
    assert_int_equal(l.slot, -1);
    assert_int_equal(l.task, -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_wording_is_read),
        cmocka_unit_test(shares_and_milliseconds_are_read),
        cmocka_unit_test(a_phrase_elsewhere_in_a_line_is_no_event),
        cmocka_unit_test(numbers_out_of_range_are_no_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
