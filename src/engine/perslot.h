/* perslot.h - reuse as an engine with per-slot state does it: --cache-policy pxa.
 *
 * A second way to carry a request's reuse out, beside cache and its snapshots on one tree: every slot keeps
 * the pages and the recurrent state of its last request, and a ring of copies of earlier ones.  cache/pxa
 * decides; here are the bytes, and the lines which that engine would print (perslot_log).  It is there to
 * show live what such an engine evaluates again; the bits of the answers are those of any other policy.
 *
 * Slots are those of the cache: which sequence runs a request is another matter.  Of the engine's own
 * behaviour one thing is left out: a batch never counts what other requests put into it.
 *
 * Owner: the engine thread.
 */
#ifndef HOLDFAST_ENGINE_PERSLOT_H
#define HOLDFAST_ENGINE_PERSLOT_H

#include "cache/pxa.h"
#include "engine/reuse.h"
#include "state/snap.h"

struct perslot;

struct perslot_opts {
    struct pxa_rules rules;
    uint32_t n_slots;
    uint64_t ram_bytes; /* of all rings: how many checkpoints a slot's holds at most */
    struct shape shape;
    struct kv *kv; /* these three: borrowed */
    struct rec *rec;
    struct snap_store *store;
    uint64_t *evicted; /* [DROP_N], counted up; borrowed */
    const struct logger *lg;
    struct event_log *events;
};

NODISCARD enum rc perslot_new(const struct perslot_opts *o, struct perslot **out, struct err *err);
void perslot_free(struct perslot *p);

/* As reuse_begin, reuse_advance and reuse_end.  l->plan has the next batch's end as its one cut. */
NODISCARD enum rc perslot_begin(struct perslot *p, struct live *l, const struct plan_req *req,
                                struct err *err);
void perslot_advance(struct perslot *p, struct live *l);
void perslot_end(struct perslot *p, struct live *l, const token *seq);
/* Memory is short: empties the idle slot that was used longest ago, its ring too.  False when all are
 * empty. */
bool perslot_shrink(struct perslot *p);

/* Fills v->held [n_slots] and v->states; false when memory is out. */
struct engine_view;
NODISCARD bool perslot_held(const struct perslot *p, struct engine_view *v);

/* For tests, between two steps: slots and rings have their bytes.  Aborts otherwise. */
void perslot_check(const struct perslot *p);

#endif
