/* slot.h - a cache as engines with per-slot state keep it: one sequence, and a ring of checkpoints on it.
 *
 * A checkpoint at pos is the recurrent state after token pos, that is after pos + 1 tokens.  It is of use only
 * while the sequence it lies on is in the slot.  Which ones are made, used and erased is for rules to say:
 * pxa.h, lab/legacy.
 *
 * Pure, like all of cache: what a checkpoint's state is, is the driver's (mark.state).
 */
#ifndef HOLDFAST_CACHE_SLOT_H
#define HOLDFAST_CACHE_SLOT_H

#include "base/err.h"

/* What became of a prompt. */
enum slot_verdict {
    VERDICT_COLD,   /* nothing in common, or an empty slot: full prefill, nothing printed */
    VERDICT_APPEND, /* went on from the live state */
    VERDICT_RESTORED,
    VERDICT_FORCED
};
const char *slot_verdict_name(enum slot_verdict v);

enum mark_kind { MARK_INTERVAL, MARK_TAIL, MARK_PROMPT_END, MARK_FINAL };

/* A checkpoint. */
struct mark {
    uint32_t pos;
    uint32_t hits;
    uint64_t request; /* that made it */
    enum mark_kind kind;
    bool boundary; /* the first one after a restore */
    void *state;   /* the driver's; NULL where state is only counted */
};

struct slot {
    token *seq;
    size_t seq_cap;
    uint32_t n;        /* tokens */
    struct mark *ring; /* oldest first */
    size_t ring_cap;
    uint32_t n_ring;
    uint64_t used; /* last request */
    bool busy;
};

/* The slot now holds seq[n]. */
NODISCARD enum rc slot_set(struct slot *s, const token *seq, uint32_t n, struct err *err);
/* States of marks must have been given back before these three. */
void slot_release(struct slot *s);
void slot_clear(struct slot *s);
void slot_remove_mark(struct slot *s, uint32_t i);
/* At the end of the ring; a pointer until the ring changes, or NULL when memory is out. */
NODISCARD struct mark *slot_add_mark(struct slot *s, uint32_t pos, uint64_t request);

uint32_t common_prefix(const token *a, uint32_t na, const token *b, uint32_t nb);

#endif
