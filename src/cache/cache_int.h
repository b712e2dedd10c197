/* cache_int.h - what the files of this room share. */
#ifndef HOLDFAST_CACHE_CACHE_INT_H
#define HOLDFAST_CACHE_CACHE_INT_H

#include "cache/cache.h"
#include "cache/cost.h"
#include "cache/policy.h"
#include "cache/radix.h"
#include "cache/rank.h"

enum {
    MIN_TOKENS = 32,    /* an entry saves at least that many over the one above it */
    MIN_WAIT = 128,     /* waiting for another request pays from that many tokens on */
    MAX_GHOSTS = 20000, /* entries without a state, kept for what they teach */
    MIN_TREE = MIB,     /* with budgets too small for it: what went before is known all the same */
};

enum layer { LAYER_ANY, LAYER_RAM, LAYER_DISK, N_LAYERS }; /* see entry.c */
static_assert((int)N_LAYERS == (int)RADIX_LAYERS, "a node counts for each layer");

enum entry_state {
    ENTRY_FREE,
    ENTRY_GHOST,
    ENTRY_PLANNED,  /* room is kept for it, the request has not come there yet */
    ENTRY_RESERVED, /* offered: the driver is copying the state */
    ENTRY_LIVE
};
enum ghost_why { GHOST_EVICTED, GHOST_UNREADABLE, GHOST_DEAR, GHOST_SMALL, GHOST_ABANDONED };

/* A position on a path whose state is kept or about to be (live), or was found not worth keeping (ghost).
 * "Live" here and below means PLANNED, RESERVED or LIVE: all three take part in bytes and ranking alike; only
 * LIVE ones have a payload.  Index = snap_id. */
struct entry {
    uint32_t node, pos; /* node->start < pos <= node->end */
    uint32_t next; /* of its node's list, which runs from deep to shallow; free: list of free */
    uint32_t older, newer;       /* ghosts, by the time they became one */
    uint32_t due_prev, due_next; /* the policy's: entries with equal last */
    uint64_t family;
    uint64_t used_ns, made_ns, gone_ns;
    uint32_t last;   /* request of the last hit, or the first sight */
    uint32_t booked; /* up to which request its exposure is booked */
    uint32_t hits;
    uint32_t pins;
    uint32_t
        gap; /* live: tokens lost if it were gone (to the entry above); ghost: when it became one */
    uint32_t cell;           /* live: the policy's */
    uint32_t slot[N_TIERS];  /* live, where it has a copy: of cache.ranks */
    uint32_t pages[N_TIERS]; /* KV pages freed there if that copy went */
    uint8_t tiers;           /* live: bit 1 << layer */
    uint8_t state;           /* enum entry_state */
    uint8_t kind;            /* enum cut_kind */
    uint8_t why;             /* ghost: enum ghost_why */
    bool tip;                /* no live entry below it (ghost: when it was last live) */
    bool due;                /* in a list of due_* */
    bool user_pin;
    bool fetching;  /* its copy in memory is still being read from disk */
    bool writing;   /* its copy on disk is still being written */
    bool unfit;     /* could not be written: not tried again */
    bool broken;    /* could not be read: goes with its last pin */
    bool stand_in;  /* planned end of a generation, on made-up tokens; see plan.c */
    uint32_t owner; /* planned: its request (low half of the ticket) */
};

/* A request between plan_make and plan_done. */
struct active {
    uint64_t ticket;
    token *prompt; /* a copy, for those who may wait for it; NULL when memory was out */
    uint32_t n;
    uint32_t progress;
    uint32_t lcp;    /* with what was evaluated when it came */
    snap_id restore; /* pinned */
    uint64_t family;
    snap_id planned[PLAN_MAX_CUTS + 1]; /* some of them may have gone since: see owner */
    uint32_t n_planned;
    snap_id stand_in;     /* one of them, or 0 */
    uint32_t promised[8]; /* positions others wait for: their use is certain */
    uint32_t n_promised;
};

struct cache {
    struct cache_opts o;
    uint64_t page_bytes;
    uint64_t tree_cap, tree_charge; /* at most so much of it is charged */
    const struct policy *policy;
    void *policy_state;

    struct radix tree;
    struct radix_path path; /* scratch of one call */
    struct entry *entries;  /* [0] unused */
    size_t entries_cap;
    uint32_t entries_used, entries_free;
    struct ranks ranks[N_TIERS]; /* of the entries with a copy there */
    uint32_t n_live;
    enum layer ram; /* LAYER_RAM with a disk, LAYER_ANY without: nothing is counted twice */
    uint32_t n_ghosts, ghost_oldest, ghost_newest;
    uint64_t n_pages[N_LAYERS]; /* resident */
    uint32_t n_writing;         /* on their way to disk */
    struct cost cost;           /* what decisions follow */
    struct cost measured;       /* taken over when it has moved by a tenth */
    uint32_t n_pins;            /* entries with pins > 0 */

    struct active *active;
    size_t active_cap;
    uint32_t n_active;
    uint64_t last_ticket;
    uint32_t now; /* requests so far: the only clock decisions know */
    uint32_t mark;
    double gen_tokens; /* of a generation, running mean */
    enum reject last_reject;
    struct cache_stats stats; /* counters only */
};

/* Positions worth an entry, in order; who comes first names the kind. */
struct candidates {
    struct candidate {
        uint32_t pos;
        enum cut_kind kind;
        uint64_t family;
    } list[PLAN_MAX_CUTS];
    uint32_t n;
    bool gen_end; /* and the end of generation, wherever that will be */
};
enum { SPARE_CUTS = 8 }; /* of PLAN_MAX_CUTS, left free for requests that wait (plan_add_cut) */
/* Ignores positions at or below above, beyond to, and such that are there; false when full. */
bool candidates_add(struct candidates *cs, uint32_t above, uint32_t to, uint32_t pos,
                    enum cut_kind kind, uint64_t family);

/* What plan_make found for a prompt. */
struct lookup {
    const struct radix_path *path; /* of the prompt, as far as it was asked for before */
    uint32_t lcp;                  /* = path->len */
    uint32_t done;                 /* as far as it was evaluated: <= lcp */
    uint32_t limit;                /* deepest position that could be restored: of done, below n */
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
/* ghost -> planned in memory, or kept on disk; a rank was reserved */
void entry_enter(struct cache *c, snap_id id, enum tier t);
void entry_leave(struct cache *c, snap_id id, enum ghost_why why, uint64_t now_ns); /* -> ghost */
/* Another copy, or one fewer; a rank was reserved. */
void entry_join(struct cache *c, snap_id id, enum tier t);
void entry_part(struct cache *c, snap_id id, enum tier t);
void entry_forget(struct cache *c, snap_id id); /* ghost -> free */
void entry_pin(struct cache *c, snap_id id, int by);
/* Nearest live entry above a position in node, or 0. */
snap_id entry_above(const struct cache *c, uint32_t node, uint32_t pos);
/* See cache_above_in_memory. */
snap_id entry_above_in_memory(const struct cache *c, snap_id id);
/* An entry with its payload in memory below node's edge, but not below its child but, or 0. */
snap_id entry_any_below(const struct cache *c, uint32_t node, uint32_t but);
/* See cache_donor. */
snap_id entry_donor(const struct cache *c, snap_id id, uint32_t *shared);
/* How far the KV of the path to pos in node is resident in a tier, and how many of its pages are not. */
uint32_t entry_resident(const struct cache *c, uint32_t node, uint32_t pos, enum tier t,
                        uint64_t *missing);
/* Bytes that a copy of an entry at pos in node would add: its snapshot and the missing pages. */
uint64_t entry_cost(const struct cache *c, uint32_t node, uint32_t pos, enum tier t);
/* Bytes freed if that copy went. */
uint64_t entry_bytes(const struct cache *c, const struct entry *e, enum tier t);
double entry_value(struct cache *c, snap_id id, enum tier t);
/* What its weights follow from has changed. */
void entry_reweigh(struct cache *c, snap_id id);
void entry_revalue(struct cache *c, snap_id id);
void entry_set_cell(struct cache *c, snap_id id, uint32_t cell);
/* The unpinned entry of least value in the tier (ties: the smaller id), but may be pinned once; 0 = none. */
snap_id entry_least(struct cache *c, enum tier t, snap_id but);
/* What would be lost with the least valuable copies that together free need bytes: the sum of value * bytes. */
double entry_loss(struct cache *c, enum tier t, uint64_t need, snap_id but);
/* Snapshots of the pinned entries and the union of their KV, but only if it is pinned twice. */
uint64_t entry_pinned_bytes(struct cache *c, snap_id but);

/* cache.c */
uint64_t cache_used(const struct cache *c, enum tier t); /* against its budget */
uint64_t cache_overhead(const struct cache *c);          /* tree, entries, tables */
void cache_settle(struct cache *c, uint64_t now_ns);     /* within tree cap and budgets */
/* Evicts from memory until need more bytes fit; own: an entry that may go though its request has it pinned, set to 0 if
 * it did.  False when nothing unpinned is left. */
bool cache_make_room(struct cache *c, uint64_t need, snap_id *own, uint64_t now_ns);
/* One pin fewer; goes if it was broken and that was the last. */
void cache_unpin(struct cache *c, snap_id id, uint64_t now_ns);
/* From memory: to disk, if it is there or worth it; else altogether. */
void cache_evict(struct cache *c, snap_id id, uint64_t now_ns);
/* Planned entry -> ghost (a stand-in: -> gone, its made-up tokens with it). */
void cache_unplan(struct cache *c, snap_id id, enum ghost_why why, uint64_t now_ns);
/* Is an entry of this request at pos on c->path worth its bytes?  If so *id is a ghost there that may enter; it does
 * not fit yet.  certain: it will be used, whatever the policy thinks. */
enum reject cache_consider(struct cache *c, const struct active *a, uint32_t pos,
                           enum cut_kind kind, uint64_t family, bool certain, snap_id *id);
/* The first n tokens of c->path have been evaluated. */
void cache_mark_done(struct cache *c, uint32_t n);
struct active *cache_find_active(struct cache *c, uint64_t ticket);

static inline struct entry *entry_at(const struct cache *c, snap_id id)
{
    return &c->entries[id];
}

static inline uint32_t layer_bit(enum tier t)
{
    return t == TIER_RAM ? LAYER_RAM : LAYER_DISK;
}

static inline bool entry_has(const struct entry *e, enum tier t)
{
    return e->tiers >> layer_bit(t) & 1;
}

static inline struct rank *ranks_at(const struct cache *c, const struct entry *e, enum tier t)
{
    return &c->ranks[t].list[e->slot[t]];
}

/* Bytes of an entry's copy besides its KV. */
static inline uint64_t entry_own_bytes(const struct cache *c, enum tier t)
{
    return c->o.snap_bytes + (t == TIER_DISK ? c->o.disk_entry_bytes : 0);
}

static inline bool entry_is_live(const struct entry *e)
{
    return e->state >= ENTRY_PLANNED;
}

#endif
