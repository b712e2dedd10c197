/* cache_int.h - what the files of this room share. */
#ifndef HOLDFAST_CACHE_CACHE_INT_H
#define HOLDFAST_CACHE_CACHE_INT_H

#include "cache/cache.h"
#include "cache/policy.h"
#include "cache/radix.h"

enum {
    MIN_TOKENS = 32,    /* an entry saves at least that many over the one above it */
    MIN_WAIT = 128,     /* waiting for another request pays from that many tokens on */
    MAX_GHOSTS = 20000, /* entries without a state, kept for what they teach */
};

enum entry_state { ENTRY_FREE, ENTRY_GHOST, ENTRY_RESERVED, ENTRY_LIVE };
enum ghost_why { GHOST_EVICTED, GHOST_DEAR, GHOST_SMALL, GHOST_ABANDONED };

/* A position on a path whose state is kept (live), about to be kept (reserved) or was found not worth
 * keeping (ghost).  RESERVED counts as live in everything but drop.  Index = snap_id. */
struct entry {
    uint32_t node, pos; /* node->start < pos <= node->end */
    uint32_t next; /* of its node's list, which runs from deep to shallow; free: list of free */
    uint32_t slot; /* live: index into cache.ranks */
    uint32_t older, newer;       /* ghosts, by the time they became one */
    uint32_t due_prev, due_next; /* the policy's: entries with equal last */
    uint64_t family;
    uint64_t used_ns, made_ns, gone_ns;
    uint32_t last;   /* request of the last hit, or the first sight */
    uint32_t booked; /* up to which request its exposure is booked */
    uint32_t hits;
    uint32_t pins;
    uint32_t gap;   /* live: tokens lost if it were gone (to the entry above) */
    uint32_t pages; /* live: KV pages freed if it were gone */
    uint8_t state;  /* enum entry_state */
    uint8_t kind;   /* enum cut_kind */
    uint8_t why;    /* ghost: enum ghost_why */
    bool tip;       /* no live entry below it (ghost: when it was last live) */
    bool due;       /* in a list of due_* */
    bool user_pin;
};

/* What ranks a live entry: value = weight * policy->rate(cell).  Dense, so that the least valuable is found by
 * running over it. */
struct rank {
    double weight;
    uint32_t cell; /* the policy's */
    snap_id id;
};

/* A request between plan_make and plan_done. */
struct active {
    uint64_t ticket;
    token *prompt; /* a copy, for those who may wait for it; NULL when memory was out */
    uint32_t n;
    uint32_t progress;
    snap_id restore; /* pinned */
    uint64_t family;
    struct {
        uint32_t pos;
        uint64_t family;
    } notes[PLAN_MAX_CUTS]; /* cuts that belong to a family of their own */
    uint32_t n_notes;
    uint32_t promised[8]; /* positions others wait for: their use is certain */
    uint32_t n_promised;
};

struct cache {
    struct cache_opts o;
    uint64_t page_bytes;
    uint64_t tree_cap;
    const struct policy *policy;
    void *policy_state;

    struct radix tree;
    struct radix_path path; /* scratch of one call */
    struct entry *entries;  /* [0] unused */
    size_t entries_cap;
    uint32_t entries_used, entries_free;
    struct rank *ranks;
    size_t ranks_cap;
    uint32_t n_live; /* reserved ones included */
    uint32_t n_ghosts, ghost_oldest, ghost_newest;
    uint64_t n_pages; /* resident */
    uint32_t n_pins;  /* entries with pins > 0 */

    struct active *active;
    size_t active_cap;
    uint32_t n_active;
    uint64_t last_ticket;
    uint32_t now; /* requests so far: the only clock decisions know */
    uint32_t mark;
    enum reject last_reject;
    struct cache_stats stats; /* counters only */
};

/* What plan_make found for a prompt. */
struct lookup {
    const struct radix_path *path; /* of the prompt, as far as it was walked before */
    uint32_t lcp;                  /* = path->len */
    uint32_t limit;                /* deepest position that may be restored */
    snap_id live;                  /* deepest live entry at or above limit, or 0 */
    snap_id ghost;                 /* deepest ghost at or above limit, or 0 */
    uint32_t start;                /* what is restored: pos of live, or 0 */
};

/* entry.c: entries on the tree, what each would free, who is worth least. */
NODISCARD bool entries_init(struct cache *c);
void entries_release(struct cache *c);
extern const struct radix_hooks entry_hooks; /* ctx: the cache */
/* The entry at pos on the path in c->path, whatever its state; 0 when there is none. */
snap_id entry_find(const struct cache *c, uint32_t pos);
/* A new ghost there; 0 when memory is out. */
snap_id entry_new_ghost(struct cache *c, uint32_t pos, enum cut_kind kind, uint64_t family,
                        enum ghost_why why);
NODISCARD bool entry_reserve_rank(struct cache *c);
void entry_enter(struct cache *c, snap_id id); /* ghost -> reserved; a rank was reserved */
void entry_leave(struct cache *c, snap_id id, enum ghost_why why, uint64_t now_ns); /* -> ghost */
void entry_forget(struct cache *c, snap_id id); /* ghost -> free */
void entry_pin(struct cache *c, snap_id id, int by);
/* Nearest live entry above a position in node, or 0. */
snap_id entry_above(const struct cache *c, uint32_t node, uint32_t pos);
/* A committed entry below node's edge, but not below its child but; 0 when the first found has none. */
snap_id entry_any_below(const struct cache *c, uint32_t node, uint32_t but);
/* Bytes that an entry at pos in node would add: its snapshot and the pages not resident yet. */
uint64_t entry_cost(const struct cache *c, uint32_t node, uint32_t pos);
/* Bytes freed if the live entry went. */
uint64_t entry_bytes(const struct cache *c, const struct entry *e);
double entry_value(const struct cache *c, snap_id id);
/* The unpinned live entry of least value (ties: the smaller id), but may be pinned once; 0 = none. */
snap_id entry_least(const struct cache *c, snap_id but);
/* Snapshots of the pinned entries and the union of their KV, but only if it is pinned twice. */
uint64_t entry_pinned_bytes(struct cache *c, snap_id but);

/* cache.c */
uint64_t cache_used(const struct cache *c);          /* against ram_bytes */
uint64_t cache_overhead(const struct cache *c);      /* tree, entries, tables */
void cache_settle(struct cache *c, uint64_t now_ns); /* within tree cap and budget */
struct active *cache_find_active(struct cache *c, uint64_t ticket);

static inline struct entry *entry_at(const struct cache *c, snap_id id)
{
    return &c->entries[id];
}

static inline bool entry_is_live(const struct entry *e)
{
    return e->state >= ENTRY_RESERVED;
}

#endif
