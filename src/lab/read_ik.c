/* read_ik.c - what ik_llama.cpp's server prints: its own log calls as "INFO [f] text | tid=... key=value"
 * or one JSON object a line, the slot lines it shares with llama.cpp, and raw lines of its prompt cache.
 * PXA derives from it and prints the same unless read_pxa.c has another wording. */
#include "lab/line.h"

#define K ENG_KV
#define IK ENG_IK
#define OLD (ENG_KV | ENG_LLAMA) /* llama.cpp until May 2024 */

static const struct shape slot_shapes[] = {
    {LINE_RESTORE, "restored context checkpoint took {ms} ms (", K, 20260221, 0, true},
    {LINE_FORCE, "no usable hybrid/recurrent checkpoint; forcing full prompt re-processing", IK,
     20260424, 20260502, false},
    {LINE_DIVERGE, "no usable hybrid/recurrent checkpoint; preserving slot state (", IK, 20260423,
     20260424, true},
    {LINE_FORCE, "no checkpoint before divergence point - reprocessing from scratch", IK, 20260221,
     0, false},
    {LINE_FORCE,
     "cached sequence diverges at {n_past}/{held} and this model does not support partial KV reuse",
     IK, 20260221, 0, false},
    {LINE_REFUSED, "restore position mismatch", K, 0, 0, true},
    {LINE_REFUSED, "checkpoint rewind to {_} was refused", K, 0, 0, false},
    {LINE_CANCEL, "Decode process is cancelled by user.", K, 0, 0, false},
};

static const struct shape kv_shapes[] = {
    {LINE_LAUNCH, "slot is processing task", OLD, 0, 0, false},
    {LINE_REENTRY, "kv cache rm [p0, end)", OLD, 0, 0, false},
    {LINE_REWIND, "we have to evaluate at least 1 token", OLD, 0, 0, false},
    {LINE_RELEASE, "slot released", OLD, 0, 0, false},
    {LINE_EVAL, "prompt eval time = {ms} ms / {n_tokens} tokens", OLD, 0, 20260109, false},
    {LINE_DECODE, "generation eval time = {ms} ms / {n_tokens} runs", OLD, 0, 20260109, false},
    {LINE_NOISE, "total time = ", OLD, 0, 20260109, false},
    {LINE_PROGRESS, "prompt processing progress", K, 0, 0, false},
    {LINE_PICK_LCP, "selected slot by lcp similarity", K, 0, 0, false},
    {LINE_PICK, "selected slot by lru", K, 0, 0, false},
    {LINE_CANCEL, "Decode process is cancelled by user.", K, 0, 0, false},
    {LINE_CANCEL, "cancel task", K, 0, 0, false},
    {LINE_CANCEL, "stop: cancel task", K, 0, 0, false},
    {LINE_HTTP, "request", OLD, 0, 0, false},
    {LINE_NOISE, "all slots are idle", OLD, 0, 0, false},
    {LINE_NOISE, "slot data", OLD, 0, 0, false},
    {LINE_BEGIN, "initializing slots", OLD, 0, 0, false},
    {LINE_NOISE, "new slot", OLD, 0, 0, false},
    {LINE_NOISE, "HTTP server listening", OLD, 0, 0, false},
    {LINE_BEGIN, "build info", OLD, 0, 0, false},
    {LINE_NOISE, "system info", OLD, 0, 0, false},
    {LINE_NOISE, "chat template", OLD, 0, 0, false},
};

static const struct shape raw_shapes[] = {
    {LINE_CACHE, "======== Cache: cache_size = {held}, n_past0 = {lcp}, n_past1 = {n_past}", K,
     20251130, 0, false},
    {LINE_CACHE, "======== Cache: cache_size = {held}, n_past = {n_past}, ", IK, 20260710, 0,
     false},
    {LINE_OFFER,
     "======== Prompt cache: cache size: {held}, n_keep: {_}, n_discarded_prompt: {_}, "
     "cache_ram_n_min: {_}, f_keep: {keep}",
     K, 0, 0, false},
    {LINE_ECHO, "Common part does not match fully", K, 0, 0, false},
    {LINE_NOISE, "updating prompt cache", K, 0, 0, false},
    {LINE_PARK, "- saving prompt with length {held}, total state size = {mib} MiB", K, 0, 0, false},
    {LINE_NOISE, "- prompt is already in the cache", K, 0, 0, false},
    {LINE_NOISE, "- removing obsolete cached prompt", K, 0, 0, false},
    {LINE_OFFER, "- looking for better prompt, base f_keep = {keep}, sim = {sim}", K, 0, 0, false},
    {LINE_SWAP, "- found better prompt with f_keep = {keep}, sim = {sim}", K, 0, 0, false},
    {LINE_NOISE, "- cache state: ", K, 0, 0, false},
    {LINE_NOISE, "- cache size limit reached", K, 0, 0, false},
    {LINE_NOISE, "prompt cache save took ", K, 0, 0, false},
    {LINE_NOISE, "prompt cache load took ", K, 0, 0, false},
    {LINE_NOISE, "prompt cache is ", K, 0, 0, false},
    {LINE_CANCEL, "Decode process is cancelled by user.", K, 0, 0, false},
};

const struct dialect dialect_ik[3] = {
    {FORM_SLOT, slot_shapes, COUNT_OF(slot_shapes)},
    {FORM_KV, kv_shapes, COUNT_OF(kv_shapes)},
    {FORM_RAW, raw_shapes, COUNT_OF(raw_shapes)},
};
