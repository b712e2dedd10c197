/* legacy.h - the slot caches of llama.cpp, ik_llama.cpp and PXA, token for token, over counted state.
 *
 * A slot holds one sequence and a ring of checkpoints on it.  A prompt that leaves the sequence goes back to a
 * checkpoint below the divergence, or starts over, and everything above is erased.  What differs between the
 * engines, and in llama.cpp from month to month, is where checkpoints are made, which one is usable, and what
 * a RAM store of whole prompts saves of it.
 *
 * Not modelled: matching by text across re-tokenised stretches, images, context shift, speculation, reclaim
 * of a unified KV, concurrency inside a batch.
 * Source: the three engines' server code, to the state of September 2026.
 */
#ifndef HOLDFAST_LAB_LEGACY_H
#define HOLDFAST_LAB_LEGACY_H

#include "cache/cache.h"
#include "cache/pxa.h"
#include "lab/trace.h"

enum legacy_family { LEGACY_LLAMA, LEGACY_IK, LEGACY_PXA };

struct legacy_opts {
    enum legacy_family family;
    int32_t date;     /* LEGACY_LLAMA: of the build, yyyymmdd */
    uint32_t batch;   /* -b */
    uint32_t ubatch;  /* -ub */
    uint32_t n_slots; /* -np */
    uint32_t ring;    /* checkpoints a slot */
    uint32_t interval;
    int32_t tolerance;
    enum pxa_evict evict;
    bool prompt_policy; /* PXA_CKPT_PROMPT_POLICY */
    bool prompt_end;    /* PXA_CKPT_PROMPT_END */
    bool victim_cheap;  /* PXA_SLOT_VICTIM=cheap */
    bool hybrid_usable; /* PXA_CACHE_HYBRID_USABLE */
    int64_t cram_mib;   /* RAM store; 0 = off */
    uint32_t min_step;  /* LEGACY_LLAMA: --checkpoint-min-step */
    uint64_t snap_bytes, token_bytes;
};
/* The engine's own defaults, for one slot; date only with LEGACY_LLAMA. */
void legacy_defaults(struct legacy_opts *o, enum legacy_family family, int32_t date);

enum { LEGACY_MAX_MADE = 64 };
struct legacy_turn {
    enum slot_verdict verdict;
    uint32_t slot, held, lcp; /* before the turn, after a swap */
    uint32_t reused, processed;
    int64_t restored; /* position, or -1 */
    uint32_t n_made, n_erased, n_evicted, n_thinned;
    uint32_t made[LEGACY_MAX_MADE]; /* positions of the first ones made */
    bool swapped, saved;            /* RAM store */
};

struct legacy;
NODISCARD enum rc legacy_new(const struct legacy_opts *o, struct legacy **out, struct err *err);
void legacy_free(struct legacy *l);

/* seq: n_prompt tokens of the prompt, then n_gen sampled ones (the last never enters the slot).  hints as
 * for plan_make: where messages begin (LEGACY_LLAMA uses the user's).  RC_NOMEM; RC_ARG if n_prompt is 0. */
NODISCARD enum rc legacy_request(struct legacy *l, const token *seq, uint32_t n_prompt,
                                 uint32_t n_gen, const struct cache_hint *hints, uint32_t n_hints,
                                 struct legacy_turn *out, struct err *err);
/* Positions in a slot's ring, oldest first; returns their number, at most max written. */
uint32_t legacy_ring(const struct legacy *l, uint32_t slot, uint32_t *pos, uint32_t max);

struct legacy_result {
    uint64_t prompt_tokens, reused_tokens;
    uint64_t verdicts[4], made, erased, evicted, thinned, swaps;
    double seconds;
};
/* A whole trace, every request after the other.  reused [t->n], or NULL. */
NODISCARD enum rc legacy_run(const struct trace *t, const struct legacy_opts *o, uint32_t *reused,
                             struct legacy_result *out, struct err *err);

/* "pxa", "pxa-policy0", "pxa-end", "pxa-both", "pxa-policy0-cram", "ik", "llama" (newest), "llama-20260320",
 * each with "xN" for N slots: "ikx4".  False when the name is none of these. */
bool legacy_by_name(const char *name, struct legacy_opts *o);
/* The names for --help, and to try in turn; NULL past the end. */
const char *legacy_name_at(size_t i);

#endif
