/* cache.h - what to keep: the token tree, snapshots on it, byte budgets, policies.
 *
 * Pure: tokens, times and sizes in; reuse, cuts and evictions out.  No clock, no thread, no byte of
 * state: a driver (engine/reuse over real state, lab/sim over counted state) carries out what is
 * decided, through cache_ops.  Owner: one thread.  README.md has the numbered invariants.
 *
 * One request:
 *     plan_make()            reuse and cuts for a prompt; pins what it restores
 *     cache_offer()          at each cut: is the state here worth its bytes?  0 = no
 *     cache_commit()         the driver has copied the state (or cache_abandon: it could not)
 *     plan_done()            finished or cancelled: the path walked so far stays in the tree; unpin
 *
 * KV in the accounts: the pages of the union of all entries' paths, each page once.  A driver with real
 * pages gets there by letting a new entry take over the pages that its path shares with others
 * (cache_donor), and the entry above take over the new one's page where its own last page is partial.
 */
#ifndef HOLDFAST_CACHE_CACHE_H
#define HOLDFAST_CACHE_CACHE_H

#include "base/buf.h"
#include "base/err.h"

struct cache;
typedef uint32_t snap_id; /* 0 = none */

enum cut_kind {
    CUT_NONE = 0,
    CUT_BRANCH,    /* where a prompt left a path walked before */
    CUT_SIGNATURE, /* where earlier prompts left, recognised in this one */
    CUT_GEN_END,   /* end of generation */
    CUT_PROMPT,    /* start of the generation prompt, or prompt end where that is unknown */
    CUT_SYSTEM,    /* end of the first message */
    CUT_MESSAGE,   /* message boundary of the ladder */
    CUT_LADDER,    /* position of the ladder, when there are no boundaries */
    CUT_GRID,      /* multiple of --cache-step */
    CUT_PINNED, /* asked for by the user: offered, it is taken whatever the policy thinks, and pinned */
    CUT_STOPPED, /* where a request was cancelled within its prompt */
    CUT_N_KINDS
};
const char *cut_kind_name(enum cut_kind k);

/* An entry to be written to disk: its snapshot, and the KV of its path from kv_from on (what lies before is
 * on disk already, with others' entries). */
struct cache_spill {
    snap_id id;
    uint32_t pos, kv_from;
    uint64_t bytes;
};
enum spill_result {
    SPILL_NO,      /* cannot; it is dropped instead */
    SPILL_STARTED, /* cache_spilled() will tell */
    SPILL_DONE
};

/* What a driver does.  Called from within plan_make, offer, done, shrink, drop and free; must not call back
 * into the cache, but for cache_path, cache_entry_get and cache_donor.  Only committed entries are named. */
struct cache_ops {
    void *ctx;
    /* The entry is gone: free its payload, in memory and on disk, and the KV that only it held. */
    void (*drop)(void *ctx, snap_id id);
    /* The rest only with disk_bytes > 0. */
    enum spill_result (*spill)(void *ctx, const struct cache_spill *s);
    void (*drop_ram)(void *ctx, snap_id id);  /* its copy in memory goes, the one on disk stays */
    void (*drop_disk)(void *ctx, snap_id id); /* the other way round */
};

enum cache_rate { CACHE_RATE_PREFILL, CACHE_RATE_READ, CACHE_RATE_WRITE, CACHE_N_RATES };

struct cache_opts {
    const char *policy;        /* "hold" (NULL), "lru", "none" */
    uint64_t ram_bytes;        /* 0 = keep nothing */
    uint64_t disk_bytes;       /* 0 = no disk tier */
    uint64_t snap_bytes;       /* of one snapshot */
    uint64_t disk_entry_bytes; /* what an entry's file takes besides snapshot and KV */
    uint64_t token_bytes;      /* KV of one token */
    uint32_t page_tokens; /* KV granularity for accounting; 0 = 1 (exact tokens: the simulator) */
    uint32_t step;        /* grid of CUT_GRID; 0 = none */
    uint64_t tree_bytes;  /* cap of the token tree and ghosts; 0 = 256 MiB */
    bool charge_tree;     /* the tree's bytes count against ram_bytes (the tree then takes at most a
                           * 64th of it, or 4 MiB); 1 MiB it has in any case, so that the causes of
                           * losses are known, and what this is beyond its share is not counted */
    double rates[CACHE_N_RATES]; /* tokens/s, bytes/s, bytes/s to begin with; 0 = a guess */
    struct cache_ops ops;
};

NODISCARD enum rc cache_new(const struct cache_opts *o, struct cache **out, struct err *err);
/* The names of the policies there are; NULL past the end. */
const char *cache_policy_at(size_t i);
void cache_free(struct cache *c); /* drops every entry through ops */

/* Places of interest in a prompt, ascending by pos: where a message begins (role: the trace's letters
 * s u a o v, or g where the generation prompt begins). */
struct cache_hint {
    uint32_t pos;
    char role;
};

struct plan_req {
    const token *prompt; /* borrowed for the call */
    uint32_t n;          /* >= 1 */
    const struct cache_hint *hints;
    uint32_t n_hints;
    bool no_reuse;   /* cache_prompt: false */
    bool may_wait;   /* see plan.wait_ticket */
    uint64_t family; /* prompt_cache_key, API key, alias: requests with another one share no habits
                      * (they still share entries); 0 = none */
};

struct cut {
    uint32_t pos;
    enum cut_kind kind;
};
enum { PLAN_MAX_CUTS = 64 };

struct plan {
    uint64_t ticket; /* names the request inside the cache */
    snap_id restore; /* 0: start from the empty state */
    enum cut_kind restore_kind;
    uint32_t start; /* first position to prefill; what lies before it is restored; start < n */
    uint32_t lcp;   /* longest common prefix with anything walked before (KV or not) */
    uint32_t
        asked; /* at least lcp: the same with any prompt asked for before, walked so far or not */
    uint32_t n_cuts; /* ascending, all > start and <= n */
    struct cut cuts[PLAN_MAX_CUTS];
    /* why lcp - start tokens are evaluated again; the five add up to it */
    uint32_t lost_placement, lost_rejected, lost_evicted, lost_minimum, lost_last;
    uint64_t evicted_ns; /* with lost_evicted: when that entry went */
    bool unreadable;     /* with lost_evicted: because its file could not be read */
    bool forks;          /* at lcp an earlier path goes on otherwise (else it ends there) */
    /* restore is on disk, or on its way from there for another request: read its snapshot and the KV of
     * [fetch_from, start) (what lies before is in memory: cache_donor), then cache_fetched(). */
    bool fetch;
    uint32_t fetch_from;
    uint64_t fetch_bytes;
    /* Only with plan_req.may_wait: a running request is about to compute the prefix [0, wait_pos) that
     * this one needs too.  ticket is then 0, nothing is pinned or booked, and there is no plan_done():
     * add a cut at wait_pos to that request's plan (plan_add_cut), and make the plan again when the cut
     * was committed, or when that request ended. */
    uint64_t wait_ticket;
    uint32_t wait_pos;
};

/* RC_ARG if n is 0, RC_NOMEM.  plan->restore stays pinned until plan_done(). */
NODISCARD enum rc plan_make(struct cache *c, const struct plan_req *r, uint64_t now_ns,
                            struct plan *plan, struct err *err);

/* Puts a cut into the plan, keeping the order; false when it is there already, at or below start, or the
 * plan is full. */
bool plan_add_cut(struct plan *p, uint32_t pos, enum cut_kind kind);

/* Tells how far the request has been evaluated.  Optional; without it the cache knows of start and of
 * the offers, and may name a wait_pos that lies behind (go on without waiting then). */
void cache_progress(struct cache *c, const struct plan *p, uint32_t pos);

/* The state after seq[0 .. pos) is at hand (pos a cut, or the end of generation): make room for it
 * within the budget, evicting only entries worth less.  seq is the request's whole token path so far,
 * pos <= n.  Returns the entry's id, or 0 when it is not worth it (already there, too small, too dear). */
NODISCARD snap_id cache_offer(struct cache *c, const struct plan *p, const token *seq, uint32_t pos,
                              enum cut_kind kind, uint64_t now_ns);
void cache_commit(struct cache *c, snap_id id);
/* Not called back through ops.drop. */
void cache_abandon(struct cache *c, snap_id id);

/* The request ends; seq[0 .. n) is all that was evaluated (prompt, or the finished part of it, and
 * what was generated).  Remembers the path and unpins. */
void plan_done(struct cache *c, const struct plan *p, const token *seq, uint32_t n,
               uint64_t now_ns);

/* Why the last cache_offer() returned 0. */
enum reject {
    REJECT_NONE = 0,
    REJECT_HELD,   /* an entry is there already */
    REJECT_SMALL,  /* too few tokens past the entry above */
    REJECT_DEAR,   /* worth less than what it would displace */
    REJECT_BUDGET, /* larger than what pins leave of the budget */
    REJECT_MEMORY  /* the tree could not grow */
};
enum reject cache_last_reject(const struct cache *c);
const char *reject_name(enum reject r);

/* Under memory pressure: give up the least valuable entries until at least bytes are freed or
 * nothing unpinned is left.  Returns the bytes freed. */
uint64_t cache_shrink(struct cache *c, uint64_t bytes, uint64_t now_ns);
/* -- the disk tier ------------------------------------------------------------------------- */

/* What SPILL_STARTED started has ended.  The entry stays in memory, pinned, until then. */
void cache_spilled(struct cache *c, snap_id id, bool ok, uint64_t now_ns);
/* What plan.fetch asked for has been read.  If not, the entry is not found any more and goes when the plans that
 * restore it are done: end them (plan_done with n = 0) and make them again. */
void cache_fetched(struct cache *c, snap_id id, bool ok, uint64_t now_ns);
/* Starts to write the most valuable entry that is worth it and only in memory, before shutdown for instance; false when
 * there is none. */
bool cache_spill_next(struct cache *c, uint64_t now_ns);
/* What has been learned from traffic (chances, signs), for the next start; b->failed when memory is out. */
void cache_save(struct cache *c, struct buf *b);
/* What cache_save said goes on: before the first request, and before entries are adopted.  Nothing is taken over when
 * it fails: RC_FORMAT when the bytes are not those of this program's cache_save. */
NODISCARD enum rc cache_load(struct cache *c, const void *p, size_t n, struct err *err);
/* After a restart: an entry found on disk, seq[0 .. pos) its path.  0 when there is one at this place, or no
 * room.  hits and idle are what cache_entry said of it. */
struct cache_found {
    const token *seq;
    uint32_t pos;
    enum cut_kind kind;
    uint64_t family;
    uint32_t hits, idle;
    uint64_t used_ns, made_ns;
};
NODISCARD snap_id cache_adopt(struct cache *c, const struct cache_found *f, uint64_t now_ns);
/* The tokens of an entry's path into out [pos], for its file.  False when id is no committed entry. */
bool cache_path(const struct cache *c, snap_id id, token *out);
/* amount (tokens or bytes) took ns: decisions follow what is measured. */
void cache_measured(struct cache *c, enum cache_rate r, uint64_t amount, uint64_t ns);

/* -- by hand and for show -------------------------------------------------------------------- */

/* A user's DELETE: false when there is no such entry or it is pinned. */
bool cache_drop(struct cache *c, snap_id id);
/* The committed entry after seq[0 .. pos), or 0. */
snap_id cache_find(struct cache *c, const token *seq, uint32_t pos);
/* A user's pin: kept whatever comes, until unpinned or dropped.  False when there is no such entry. */
bool cache_pin(struct cache *c, snap_id id, bool on);

struct cache_stats {
    uint64_t budget, bytes, tree_bytes;
    uint32_t n_snaps, n_pinned, n_nodes;
    uint64_t n_tokens; /* in the tree */
    uint64_t n_pages;  /* of KV in memory, room kept for planned entries included */
    uint64_t requests, prompt_tokens, reused_tokens, lcp_tokens;
    uint64_t offers, rejected, commits, evictions;
    uint64_t lost_placement, lost_rejected, lost_evicted, lost_minimum, lost_last;
    uint64_t disk_budget, disk_bytes;
    uint32_t n_on_disk, n_disk_only;
    uint64_t spills, spill_bytes, fetches, fetch_bytes, disk_evictions;
    double rates[CACHE_N_RATES];
};
void cache_stats(const struct cache *c, struct cache_stats *out);

/* Entries, for GET /cache; order is unspecified.  Returns false when i is past the end. */
struct cache_entry {
    snap_id id;
    uint32_t pos;
    enum cut_kind kind;
    uint64_t bytes; /* freed if it alone went */
    uint64_t used_ns, made_ns;
    uint32_t hits, pins;
    uint32_t idle; /* requests since the last hit, or since it was made */
    double value;  /* the policy's density; larger stays longer */
    snap_id above; /* nearest shallower entry on its path, or 0 */
    bool user_pin;
    bool in_ram, on_disk;
    uint64_t family;
};
bool cache_entry_at(struct cache *c, uint32_t i, struct cache_entry *out);
/* False when id is no committed entry. */
bool cache_entry_get(struct cache *c, snap_id id, struct cache_entry *out);

/* The committed entry, other than id, whose path shares most with id's; *shared = tokens in common
 * (<= id's pos; that many tokens' KV need no pages of id's own).  0 when none shares any. */
snap_id cache_donor(const struct cache *c, snap_id id, uint32_t *shared);
/* The nearest shallower entry on id's path that is committed and in memory, or 0. */
snap_id cache_above_in_memory(const struct cache *c, snap_id id);

/* Every invariant of the README; aborts with the number of the first broken one. For tests. */
void cache_check(const struct cache *c);

#endif
