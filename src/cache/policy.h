/* policy.h - where to cut and what to keep, as a table of functions.
 *
 * The facade (cache.c, plan.c) keeps the tree, the bytes and the pins; a policy proposes cuts and ranks
 * entries.  Only the facade evicts, always the entry of least value, value = weight * rate.  A function may be
 * missing: it then does nothing, admits nothing, writes nothing, weighs 1.
 */
#ifndef HOLDFAST_CACHE_POLICY_H
#define HOLDFAST_CACHE_POLICY_H

#include "base/pack.h"
#include "cache/cache.h"

enum tier { TIER_RAM, TIER_DISK, N_TIERS };

struct active;
struct candidates;
struct entry;
struct lookup;

struct policy {
    const char *name;
    enum rc (*init)(struct cache *c, struct err *err); /* fills c->policy_state */
    void (*release)(struct cache *c);
    uint64_t (*bytes)(const struct cache *c); /* of its tables */

    /* A request begins; c->now is its number.  May forget ghosts. */
    void (*tick)(struct cache *c);
    /* It was looked up.  Learn from it; set a->family. */
    void (*observe)(struct cache *c, struct active *a, const struct plan_req *r,
                    const struct lookup *l);
    /* Propose positions above l->start. */
    void (*place)(struct cache *c, const struct plan_req *r, const struct lookup *l,
                  struct candidates *cs);
    /* The candidate e (not live) would save gap tokens.  loss is what would go for it, in the unit of value * bytes;
     * 0: there is room.  Is it worth that? */
    bool (*admit)(struct cache *c, const struct entry *e, uint32_t gap, double loss);

    /* The entry has to leave memory.  Is it worth writing to disk? */
    bool (*spill)(const struct cache *c, const struct entry *e);

    /* Life of an entry.  born: first sight (family and kind set).  enter, leave: becomes and ceases to be
     * live.  hit: restored, or would have been.  tip: tip is about to become the given value.  kind: kind is
     * about to become the given value.  gone: forgotten altogether. */
    void (*born)(struct cache *c, snap_id id);
    void (*enter)(struct cache *c, snap_id id);
    void (*leave)(struct cache *c, snap_id id);
    void (*hit)(struct cache *c, snap_id id);
    void (*tip)(struct cache *c, snap_id id, bool tip);
    void (*kind)(struct cache *c, snap_id id, enum cut_kind kind);
    void (*gone)(struct cache *c, snap_id id);

    /* value = weight * rate(cell).  weight changes only with the entry's neighbours and hits; rate may change
     * between requests. */
    double (*weight)(const struct cache *c, const struct entry *e, enum tier t);
    double (*rate)(const struct cache *c, uint32_t cell);

    /* What it has learned, for the next start.  load: before anything else, now being the requests so far; false, and
     * nothing is taken over, when the bytes are not save's or memory is out. */
    void (*save)(const struct cache *c, struct buf *b);
    bool (*load)(struct cache *c, uint32_t now, struct unpack *u);
};

extern const struct policy policy_none, policy_hold, policy_lru;

#endif
