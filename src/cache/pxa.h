/* pxa.h - the rules by which PXA v3.1, and ik_llama.cpp of August 2026, keep a slot.
 *
 * Kept to show what they lose, on real state (engine/perslot) and over counted state (lab/legacy), by the
 * same object code.  Two rules make the trouble:
 *   - usable is only what lies strictly below t = n_past - 1, so the perfect checkpoint, which covers exactly
 *     the shared prefix, is refused;
 *   - everything above t is erased, also when nothing was shared.
 *
 * One request:
 *     pxa_pick()          the slot
 *     pxa_begin()         what of it is reused: run.n_past tokens; erases
 *     pxa_evaluated()     after each decode batch of the prompt, whose end pxa_batch_end() says
 *     pxa_sampled()       before the first token is sampled, then after each sampled token is decoded
 *     pxa_end()           at the final response; not when cancelled
 * then slot_set().  Source: the server code of both engines.
 */
#ifndef HOLDFAST_CACHE_PXA_H
#define HOLDFAST_CACHE_PXA_H

#include "cache/slot.h"

enum pxa_evict { EVICT_VARIANCE, EVICT_FIFO, EVICT_VALUE };

struct pxa_rules {
    bool ik;         /* ik_llama.cpp's */
    uint32_t batch;  /* -b, the decode batch */
    uint32_t ubatch; /* -ub */
    uint32_t ring;   /* checkpoints a slot; 0 = none are made */
    uint32_t interval;
    int32_t tolerance; /* the batch is cut when so many prompt tokens are left */
    enum pxa_evict evict;
    bool prompt_policy; /* PXA_CKPT_PROMPT_POLICY: while loading, none far from the prompt's end */
    bool prompt_end;    /* PXA_CKPT_PROMPT_END: one at the prompt's last token */
    bool victim_cheap;  /* PXA_SLOT_VICTIM=cheap */
};

/* Defaults with the levers of the name: "pxa", "pxa-policy0", "pxa-end", "pxa-both".  False when it is none of
 * these. */
bool pxa_rules_by_name(const char *name, struct pxa_rules *out);
/* The name for an environment's levers (values of the variables, or NULL). */
const char *pxa_name_of_levers(const char *prompt_policy, const char *prompt_end);

/* What happens to checkpoints, as it happens.  The driver copies, frees, counts, prints. */
struct pxa_ops {
    void *ctx;
    /* Take the state into m->state.  False when it cannot be: there is then no checkpoint. */
    bool (*created)(void *ctx, struct mark *m);
    /* In these two run.n_past is still where the prompt leaves the sequence. */
    void (*restored)(void *ctx, const struct mark *m);
    void (*forced)(void *ctx);
    void (*erased)(void *ctx, const struct mark *m);
    void (*evicted)(void *ctx, const struct mark *m);
};

/* A request's view of its slot. */
struct pxa_run {
    const struct pxa_rules *rules; /* borrowed, as are the next two */
    const struct pxa_ops *ops;
    struct slot *slot;
    uint64_t request;
    uint32_t n_prompt;
    uint32_t have;   /* tokens the live state stands at */
    uint32_t n_past; /* of the prompt: reused, then evaluated */
    enum slot_verdict verdict;
    int64_t restored; /* position, or -1 */
    int64_t cpos;     /* the last interval checkpoint */
    bool armed;       /* the batch was cut at the tolerance */
    bool boundary;    /* the next checkpoint is the first after a restore */
    bool one_more;    /* all of the prompt was there: its last token is evaluated again */
};

/* Among those that are not busy; NULL when all are. */
struct slot *pxa_pick(const struct pxa_rules *o, struct slot *slots, uint32_t n_slots,
                      const token *prompt, uint32_t n);
/* How alike a prompt of n tokens is to a sequence of held that shares lcp with it: 0 to 1. */
double pxa_similarity(uint32_t held, uint32_t lcp, uint32_t n);

/* r: rules, ops, slot and request are set, the rest 0.  lcp: tokens the prompt shares with the slot, or 0
 * when nothing is to be reused.  Afterwards r->n_past < n_prompt. */
void pxa_begin(struct pxa_run *r, uint32_t n_prompt, uint32_t lcp);
uint32_t pxa_batch_end(const struct pxa_run *r);
/* RC_NOMEM when the ring cannot grow; the run may go on. */
NODISCARD enum rc pxa_evaluated(struct pxa_run *r, uint32_t pos, struct err *err);
/* The k-th token, from 1. */
NODISCARD enum rc pxa_sampled(struct pxa_run *r, uint32_t k, struct err *err);
NODISCARD enum rc pxa_end(struct pxa_run *r, struct err *err);

#endif
