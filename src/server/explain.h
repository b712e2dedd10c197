/* explain.h - GET /cache/explain?id=RESPONSE_ID: what one answer's prompt reused, and why not more.
 *
 * The last EXPLAIN_KEPT prompts are remembered, whatever protocol they came by, in a fixed ring: counts and
 * positions, no text.  Any thread.
 */
#ifndef HOLDFAST_SERVER_EXPLAIN_H
#define HOLDFAST_SERVER_EXPLAIN_H

#include "engine/engine.h"

enum { EXPLAIN_KEPT = 512 };

struct explain;

/* NULL when memory is out; the others take that as a ring of none. */
struct explain *explain_new(void);
void explain_free(struct explain *x);

/* One finished prompt. */
struct explained {
    char id[48]; /* the response's */
    uint32_t index;
    bool off; /* nothing was to be reused */
    uint64_t when_ns;
    struct timings t;
    uint32_t lcp, asked, start; /* as in struct plan */
    enum cut_kind kind;         /* of what was restored */
    bool disk, forks;
    uint32_t lost_placement, lost_rejected, lost_evicted, lost_minimum, lost_last;
    uint64_t evicted_ns;
    bool unreadable; /* evicted: its file could not be read */
    struct foreign_state foreign;
    /* the message in which the prompt leaves what was known; n_messages 0: not known */
    uint32_t n_messages, message, offset;
    char role;
};

/* Fills in what a job's last piece and its prompt's boundaries say. */
void explained_from(struct explained *e, const struct piece *last, const struct cache_hint *hints,
                    uint32_t n_hints);
/* The one word for it: cold, append, repeat, branch, placement, rejected, evicted, fingerprint,
 * minimum, last, off. */
const char *explained_cause(const struct explained *e);

void explain_note(struct explain *x, const struct explained *e);
/* Those of a response, at most max; how many there are. */
uint32_t explain_find(struct explain *x, const char *id, struct explained *out, uint32_t max);

#endif
