/* read_llama.c - what llama.cpp's server prints, 2024 to autumn 2026.
 *
 * Dates are commit dates: from when until when a build prints the wording.  Since 2026-06-28 every
 * checkpoint line is printed at the trace level only (-lv 4).
 */
#include "lab/line.h"

#define L ENG_LLAMA
#define S ENG_SLOTS

static const struct shape slot_shapes[] = {
    {LINE_LAUNCH, "processing task, is_child = ", L, 20260110, 0, false},
    {LINE_LAUNCH, "processing task", L, 0, 20260109, false},
    {LINE_PROMPT, "new prompt, n_ctx_slot = {_}, n_keep = {_}, n_prompt_tokens = {n_prompt}", L, 0,
     20251029, false},
    {LINE_PROMPT, "new prompt, n_ctx_slot = {_}, n_keep = {_}, task.n_tokens = {n_prompt}", L,
     20251030, 0, false},
    {LINE_PROMPT, "new prompt, ", L, 0, 0, true},

    {LINE_DIVERGE, "n_past = {n_past}, cache_tokens.size() = {held}", L, 20250531, 20251014, true},
    {LINE_DIVERGE, "n_past = {n_past}, slot.prompt.tokens.size() = {held}", S, 20251015, 0, true},
    {LINE_CHECK, "Checking checkpoint with [{pos_min}, {pos_max}] against {n_past}...", L, 20260306,
     20260627, false},
    {LINE_CHECK, "checking checkpoint with [{pos_min}, {pos_max}] against {n_past}...", L, 20260628,
     0, false},
    {LINE_FORCE,
     "forcing full prompt re-processing due to lack of cache data (likely due to SWA or "
     "hybrid/recurrent memory",
     L | ENG_IK, 20251003, 0, false},
    {LINE_FORCE, "forcing full prompt re-processing", S, 20250520, 0, false},
    {LINE_CLEAR, "failed to truncate tokens with position >= {n_past}", L, 0, 20260516, false},
    {LINE_CLEAR, "failed to truncate tokens with position", L, 0, 20260516, false},

    {LINE_RESTORE, "restored context checkpoint (", L, 20251003, 0, true},
    /* a fork's */
    {LINE_CLEAR, "partial seq_rm at p0={n_past} failed", L, 0, 0, false},
    {LINE_RESTORE,
     "rescue: seq_rm at p0={_} failed; restored checkpoint at pos={pos_max} (n_past {_} -> "
     "{n_past}, ",
     L, 0, 0, true},
    {LINE_NOISE, "LCP backstep: n_past ", L, 0, 0, false},
    {LINE_RESTORE, "SWA checkpoint restore, ", L, 20250814, 20250926, true},
    {LINE_REFUSED, "failed to restore context checkpoint", S, 20251003, 0, true},
    {LINE_CREATE, "created context checkpoint {n} of {max} (", S, 20251009, 0, true},
    {LINE_CREATE, "created context checkpoint", S, 20251009, 0, true},
    {LINE_CREATE, "saved context checkpoint {n} of {max} (", L, 20251003, 20251008, true},
    {LINE_CREATE, "SWA checkpoint create, ", L, 20250814, 20250926, true},
    {LINE_ERASE, "erased invalidated context checkpoint", S, 20251003, 0, true},
    {LINE_ERASE, "SWA checkpoint erase, ", L, 20250814, 20250926, true},
    {LINE_EVICT, "erasing old context checkpoint", S, 20251009, 0, true},
    {LINE_THIN, "erasing context checkpoint too close to an earlier one", L, 20260712, 0, true},
    {LINE_THIN, "superseding context checkpoint at n_tokens = {n_tokens}", L, 20260901, 0, false},

    {LINE_REENTRY, "kv cache rm [{n_past}, end)", L, 0, 20251002, false},
    {LINE_REENTRY, "n_past = {n_past}, memory_seq_rm [", L, 20251003, 20251029, false},
    {LINE_REENTRY, "n_tokens = {n_past}, memory_seq_rm [", L, 20251030, 20260513, false},
    {LINE_REENTRY, "cached n_tokens = {n_past}, memory_seq_rm [", L, 20260514, 0, false},
    {LINE_REWIND, "need to evaluate at least 1 token", L, 0, 0, true},
    {LINE_NOISE, "n_past was set to ", L, 0, 0, false},

    {LINE_PROGRESS,
     "prompt processing progress, n_past = {n_past}, n_tokens = {n_tokens}, progress = {sim}", L, 0,
     20251029, false},
    {LINE_PROGRESS,
     "prompt processing progress, n_tokens = {n_past}, batch.n_tokens = {n_tokens}, progress = "
     "{sim}",
     L, 20251030, 20260513, false},
    {LINE_PROGRESS, "prompt processing, n_tokens = {n_tokens}, progress = {sim}", L, 20260514, 0,
     false},
    {LINE_PROMPT, "prompt done, n_past = {n_prompt}, ", L, 0, 20251029, false},
    {LINE_PROMPT, "prompt done, n_tokens = {n_prompt}, ", L, 20251030, 20260224, false},
    {LINE_PROMPT, "prompt processing done, n_tokens = {n_prompt}, ", L, 20260225, 20260513, false},
    {LINE_PROMPT, "init sampler, took {_} ms, tokens: text = {_}, total = {n_prompt}", L, 20260101,
     0, false},

    {LINE_EVAL, "prompt eval time = {ms} ms / {n_tokens} tokens", L, 20260519, 0, false},
    {LINE_DECODE, "eval time = {ms} ms / {n_tokens} tokens", L, 20260519, 0, false},
    {LINE_NOISE, "total time = ", L, 20260519, 0, false},
    {LINE_NOISE, "graphs reused = ", L, 20260519, 0, false},
    {LINE_NOISE, "draft acceptance", S, 0, 0, false},
    {LINE_NOISE, "n_decoded = ", L, 20260514, 20260812, false},
    {LINE_NOISE, "n_gen = ", L, 20260813, 0, false},
    {LINE_NOISE, "statistics ", S, 0, 0, false},
    {LINE_RELEASE, "stop processing: n_past = {held}", L, 0, 20251029, false},
    {LINE_RELEASE, "stop processing: n_tokens = {held}", L, 20251030, 0, false},

    {LINE_PICK_LCP, "selected slot by LCP similarity, sim_best = {sim}", L, 20251009, 20260728,
     true},
    {LINE_PICK_LCP, "selected slot by LCP similarity, f_sim_best = {sim}", L, 20260729, 0, true},
    {LINE_PICK_LCP, "selected slot by lcs similarity, lcs_len = {lcp}, similarity = {sim}", L,
     20250912, 20251008, true},
    {LINE_PICK_LRU, "selected slot by LRU, t_last = {t_last}", L, 0, 0, false},
    {LINE_PICK_LRU, "selected slot by lru, t_last = {t_last}", L, 0, 20251008, false},
    {LINE_PICK, "selected slot by id", L, 20260619, 0, false},
    {LINE_PICK_SIM, "- checking sim = {sim} ({n_past}/{n_prompt})", L, 20260601, 0, false},
    {LINE_PARK, "saving idle slot to prompt cache", L, 20260403, 0, false},
    {LINE_FREED, "clearing prompt with {held} tokens", L, 20260403, 0, false},
    {LINE_FREED, "purging slot {_} with {held} tokens", L, 20260403, 0, false},

    {LINE_BEGIN, "new slot, n_ctx = ", L, 0, 0, false},
    {LINE_NOISE, "new slot n_ctx_slot = ", L, 0, 0, false},
    {LINE_NOISE, "{_} tokens since last checkpoint at {_}, creating new checkpoint", L, 20260306,
     20260524, false},
    {LINE_NOISE, "checkpoint before user input reached", L, 0, 0, false},
    {LINE_NOISE, "skip checkpoint at ", L, 0, 0, false},
    {LINE_NOISE, "sampler chain:", L, 0, 0, false},
    {LINE_NOISE, "sampler params:", L, 0, 0, false},
    {LINE_NOISE, "cache reuse is not supported", L, 0, 0, false},
    {LINE_NOISE, "created speculative", L, 0, 0, false},
};

static const struct shape srv_shapes[] = {
    {LINE_NOISE, "all slots are idle", L, 0, 0, false},
    {LINE_NOISE, "message_spans:", L, 20260520, 0, false},
    {LINE_NOISE, "Chat format:", L, 0, 0, false},
    {LINE_NOISE, "chat format:", L, 0, 0, false},
    {LINE_CANCEL, "cancel task, id_task = {task}", L, 0, 0, false},
    {LINE_HTTP, "done request:", L, 0, 0, false},
    {LINE_HTTP, "request:", L, 0, 0, false},
    {LINE_NOISE, "updating prompt cache", L, 20251009, 0, false},
    {LINE_PARK, "- saving prompt with length {held}, total state size = {mib} MiB", L, 20251009, 0,
     false},
    {LINE_NOISE, "- prompt is already in the cache", L, 20251009, 0, false},
    {LINE_NOISE, "- removing obsolete cached prompt", L, 20251009, 0, false},
    {LINE_OFFER, "- looking for better prompt, base f_keep = {keep}, sim = {sim}", L, 20251009,
     20260728, false},
    {LINE_OFFER, "- looking for better prompt, base f_keep = {keep}, f_sim = {sim}", L, 20260729, 0,
     false},
    {LINE_SWAP, "- found better prompt with f_keep = {keep}, sim = {sim}", L, 20251009, 20260728,
     false},
    {LINE_SWAP, "- found better prompt with f_keep = {keep}, f_sim = {sim}", L, 20260729, 0, false},
    {LINE_NOISE, "- cache state: ", L, 20251009, 0, false},
    {LINE_NOISE, "- cache size limit", L, 20251009, 0, false},
    {LINE_NOISE, "- cache token limit", L, 20251009, 0, false},
    {LINE_NOISE, "- making room for prompt cache entry", L, 20260707, 0, false},
    {LINE_NOISE, "- prompt ", L, 20251009, 0, false},
    {LINE_NOISE, "prompt cache update took ", L, 20251009, 0, false},
    {LINE_NOISE, "prompt cache is ", L, 20251009, 0, false},
    {LINE_NOISE, "context checkpoints enabled", L, 20260525, 0, false},
    {LINE_BEGIN, "initializing slots, n_slots = {n}", L, 0, 20260627, false},
    {LINE_BEGIN, "initializing, n_slots = {n}", L, 20260628, 0, false},
    {LINE_BEGIN, "loading model", L, 0, 0, false},
    {LINE_NOISE, "model loaded", L, 0, 0, false},
    {LINE_NOISE, "server is listening", L, 0, 0, false},
    {LINE_NOISE, "listening on ", L, 0, 0, false},
    {LINE_NOISE, "for more info see", L, 0, 0, false},
    {LINE_NOISE, "use `--cache-ram 0`", L, 0, 0, false},
    {LINE_NOISE, "idle slots will be", L, 0, 0, false},
    {LINE_NOISE, "init: chat template", L, 0, 0, false},
};

/* Written without a prefix, whatever the era. */
static const struct shape raw_shapes[] = {
    {LINE_EVAL, "prompt eval time = {ms} ms / {n_tokens} tokens", S, 0, 0, false},
    {LINE_DECODE, "eval time = {ms} ms / {n_tokens} tokens", S, 0, 0, false},
    {LINE_DECODE, "eval time = {ms} ms / {n_tokens} runs", S, 0, 0, false},
    {LINE_NOISE, "total time = ", S, 0, 0, false},
    {LINE_NOISE, "draft acceptance", S, 0, 0, false},
    {LINE_NOISE, "reasoning-budget:", L, 0, 0, false},
    {LINE_BEGIN, "build: {_} (", L, 0, 0, false},
    {LINE_NOISE, "main: server is listening", L, 0, 0, false},
    {LINE_NOISE, "main: starting the main loop", L, 0, 0, false},
    {LINE_BEGIN, "main: loading model", L, 0, 0, false},
    {LINE_HTTP, "request: ", L, 0, 0, false},
    {LINE_CANCEL, "cancel task, id_task = {task}", L, 0, 0, false},
    /* before 2024: no task on some lines */
    {LINE_LAUNCH, "slot {slot} is processing [task id: {task}]", L, 0, 20240101, false},
    {LINE_REENTRY, "slot {slot} : kv cache rm - [{n_past}, end)", L, 0, 20240101, false},
    {LINE_RELEASE, "slot {slot} released ({held} tokens in cache)", L, 0, 20240101, false},
};

/* Before May 2024 it wrote what ik_llama.cpp still writes. */
static const struct shape kv_shapes[] = {
    {LINE_NOISE, "slot progression", L, 0, 20240531, true},
    {LINE_BEGIN, "model loaded", L | ENG_KV, 0, 0, false},
};

const struct dialect dialect_llama[4] = {
    {FORM_SLOT, slot_shapes, COUNT_OF(slot_shapes)},
    {FORM_SRV, srv_shapes, COUNT_OF(srv_shapes)},
    {FORM_RAW, raw_shapes, COUNT_OF(raw_shapes)},
    {FORM_KV, kv_shapes, COUNT_OF(kv_shapes)},
};
