#include "engine/perslot_log.h"

#include <stdarg.h>

#include "base/clock.h"

/* In one write. */
PRINTF_LIKE(3, 4)
static void say(const struct perslot_log *g, enum log_level level, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    if (!g->lg || !g->lg->out || level > g->lg->level)
        return;
    va_start(ap, fmt);
    const int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    fwrite(text, 1, (size_t)MIN(MAX(n, 0), (int)sizeof text - 1), g->lg->out);
    fflush(g->lg->out);
}

#define SLOT_FMT "slot %12.12s: id %2u | task %" PRIu64 " | "
#define SLOT(g, func) func, (g)->slot, (g)->task
#define KV_FMT(text)                                                                               \
    "INFO [%24.24s] " text " | tid=\"engine\" timestamp=%" PRIu64 " id_slot=%u id_task=%" PRIu64
#define KV(g, func) func, clock_wall_ns() / 1000000000, (g)->slot, (g)->task

void say_rules(const struct perslot_log *g, const struct pxa_rules *r)
{
    say(g, LOG_INFO, "context checkpoints: %u per slot, %.2f MiB each\n", r->ring, g->mib);
    say(g, LOG_INFO, "PXA_CKPT_PROMPT_POLICY: %s\nPXA_CKPT_PROMPT_END: %s\n",
        r->prompt_policy ? "on" : "off", r->prompt_end ? "on" : "off");
}

void say_launch(const struct perslot_log *g, uint32_t held, uint32_t lcp)
{
    say(g, LOG_INFO, KV_FMT("slot is processing task") "\n", KV(g, "launch_slot_with_task"));
    say(g, LOG_INFO,
        "======== Cache: cache_size = %u, n_past0 =  %u, n_past1 =  %u, n_past_prompt1 = %u,  "
        "n_past2 =  "
        "%u, n_past_prompt2 =  %u\n",
        held, lcp, lcp, lcp, lcp, lcp);
}

void say_divergence(const struct perslot_log *g, uint32_t lcp, uint32_t held)
{
    say(g, LOG_WARN,
        SLOT_FMT
        "n_past = %u, slot.prompt.tokens.size() = %u, seq_id = %u, pos_min = %u, state_pos = %u\n",
        SLOT(g, "apply_checkpoint"), lcp, held, g->slot, held - 1, held - 1);
}

void say_restored(const struct perslot_log *g, uint32_t held, const struct mark *m, double ms)
{
    say(g, LOG_WARN,
        SLOT_FMT
        "restored HYBRID context checkpoint took %.2f ms (state_pos %u -> %u, n_past = %u, size = "
        "%.3f MiB)\n",
        SLOT(g, "apply_checkpoint"), ms, held - 1, m->pos, m->pos + 1, g->mib);
}

void say_forced(const struct perslot_log *g)
{
    say(g, LOG_WARN,
        SLOT_FMT
        "forcing full prompt re-processing due to lack of cache data (likely due to SWA, see "
        "https://github.com/ggml-org/llama.cpp/pull/13194#issuecomment-2868343055)\n",
        SLOT(g, "apply_checkpoint"));
}

void say_erased(const struct perslot_log *g, const struct mark *m)
{
    say(g, LOG_WARN,
        SLOT_FMT
        "erased invalidated context checkpoint (pos_min = %u, pos_max = %u, size = %.3f MiB)\n",
        SLOT(g, "apply_checkpoint"), m->pos, m->pos, g->mib);
}

void say_evicted(const struct perslot_log *g, const struct mark *m)
{
    say(g, LOG_WARN,
        SLOT_FMT
        "erasing old context checkpoint (pos_min = %u, pos_max = %u, n_tokens = %u, size = %.3f "
        "MiB, replay_hits = %u%s%s)\n",
        SLOT(g, "create_checkpoint"), m->pos, m->pos, m->pos + 1, g->mib, m->hits,
        m->boundary ? ", boundary" : "", m->kind == MARK_PROMPT_END ? ", prompt-end" : "");
}

void say_created(const struct perslot_log *g, const struct mark *m, uint32_t n, uint32_t of,
                 double ms)
{
    say(g, LOG_WARN,
        SLOT_FMT
        "created context checkpoint %u of %u (pos_min = %u, pos_max = %u, n_tokens = %u, size = "
        "%.3f MiB, took %.2f ms%s)\n",
        SLOT(g, "create_checkpoint"), n, of, m->pos, m->pos, m->pos + 1, g->mib, ms,
        m->kind == MARK_PROMPT_END ? ", prompt-end" : "");
}

void say_one_token(const struct perslot_log *g)
{
    say(g, LOG_INFO, KV_FMT("we have to evaluate at least 1 token to generate logits") "\n",
        KV(g, "update_slots"));
}

void say_batch(const struct perslot_log *g, uint32_t p0)
{
    say(g, LOG_INFO, KV_FMT("kv cache rm [p0, end)") " p0=%u\n", KV(g, "update_slots"), p0);
}

void say_timings(const struct perslot_log *g, uint32_t n_prompt, double prompt_ms, uint32_t n_gen,
                 double gen_ms)
{
    say(g, LOG_INFO,
        SLOT_FMT
        "\nprompt eval time = %10.2f ms / %5u tokens (%8.2f ms per token, %8.2f tokens per "
        "second)\n"
        "       eval time = %10.2f ms / %5u tokens (%8.2f ms per token, %8.2f tokens per second)\n"
        "      total time = %10.2f ms / %5u tokens\n",
        SLOT(g, "print_timing"), prompt_ms, n_prompt, prompt_ms / MAX(n_prompt, 1u),
        prompt_ms > 0 ? n_prompt * 1e3 / prompt_ms : 0, gen_ms, n_gen, gen_ms / MAX(n_gen, 1u),
        gen_ms > 0 ? n_gen * 1e3 / gen_ms : 0, prompt_ms + gen_ms, n_prompt + n_gen);
}

void say_released(const struct perslot_log *g, uint32_t n_past, uint32_t n_cache)
{
    say(g, LOG_INFO,
        KV_FMT("slot released") " n_past=%u n_system_tokens=0 n_cache_tokens=%u truncated=false\n",
        KV(g, "release_slots"), n_past, n_cache);
}
