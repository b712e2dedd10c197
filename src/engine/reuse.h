/* reuse.h - carries plans out: binds what cache decides to the bytes that state holds.
 *
 * cache knows entries by number; here each has its snapshot and its list of KV pages.  A running
 * sequence has a struct live: its plan, its pages, its recurrent slot.
 *
 *     restore   = the snapshot copied into the slot, its pages forked into the sequence's table
 *     keep      = cache_offer, then the slot copied out and the pages shared, then cache_commit
 *     drop      = cache says so (ops.drop): the snapshot freed, the pages given back
 *     spill     = cache says so (ops.spill): another thread writes snapshot and pages, then the copy in memory
 *                 may go; a plan that restores it later waits until it is read back (fetching)
 *
 * Pages are held once: a new entry takes over the pages of the prefix it shares with another entry,
 * and the entry above it takes over the new one's copy of a page that both end in.  What the cache
 * has booked is then what its entries really hold (README.md).
 *
 * Owner: the engine thread.
 */
#ifndef HOLDFAST_ENGINE_REUSE_H
#define HOLDFAST_ENGINE_REUSE_H

#include "base/event.h"
#include "base/log.h"
#include "cache/cache.h"
#include "state/disk.h"
#include "engine/drop.h"
#include "engine/saved.h"
#include "state/kv.h"
#include "state/rec.h"

struct reuse;

struct reuse_opts {
    struct shape shape;
    uint32_t n_slots;      /* sequences at once */
    uint64_t kv_max_bytes; /* hard limit of all pages; 0 = none */
    uint64_t cache_ram_bytes;
    const char *cache_dir;     /* NULL: no disk tier */
    uint64_t cache_disk_bytes; /* 0: no disk tier */
    double disk_read_rate;     /* engine_opts has it */
    const char *kernels;       /* model_info.isa */
    void (*wake)(void *ctx);   /* on another thread: there is something to reuse_poll */
    void *wake_ctx;
    uint32_t cache_step;
    const char *cache_policy;   /* those of cache, or pxa with its levers: perslot.h */
    uint32_t n_batch, n_ubatch; /* what pxa's rules take for -b and -ub; 0 = their defaults */
    const struct logger *lg;
    struct event_log *events;
};

struct reuse_counts {
    uint64_t evicted[DROP_N]; /* entries gone, or slots' states */
    uint64_t restores[CUT_N_KINDS], from_disk;
    uint64_t restore_ns; /* for those on disk with the time they were waited for */
};

/* engine_check_policy. */
NODISCARD enum rc reuse_check_policy(const char *name, struct err *err);
NODISCARD enum rc reuse_new(const struct reuse_opts *o, struct reuse **out, struct err *err);
/* Every live must have ended. */
void reuse_free(struct reuse *r);
struct kv *reuse_kv(struct reuse *r);
struct rec *reuse_rec(struct reuse *r);
struct cache *reuse_cache(struct reuse *r);
uint64_t reuse_snap_bytes(const struct reuse *r);

#define LIVE_NO_SLOT UINT32_MAX

/* The state of one running sequence after pos tokens.  Zero-initialise; id names it in events. */
struct live {
    uint64_t id;
    struct plan plan;
    struct kv_table kv;
    rec_slot rec;
    uint32_t pos;
    uint32_t n_reused; /* of pos: restored, or taken over from another sequence */
    uint32_t n_shared; /* of n_reused: taken over */
    struct foreign_state
        foreign;       /* what it could have gone on from, deeper than all it has in common here */
    bool fetching;     /* what the plan restores is being read from disk */
    uint64_t fetch_ns; /* since then */
    uint32_t slot;     /* the sequence's place; perslot has its own */
    bool in_prompt;    /* before reuse_end: it ends within its prompt */
    int64_t
        n_answer; /* before reuse_end: tokens sampled; -1 when the answer did not come to its end */
};

/* Plans and restores.  With req->may_wait and RC_OK, l->plan.wait_ticket may name a running request to
 * wait for: nothing is held then, and the call is made again later.  On any error nothing is held. */
NODISCARD enum rc reuse_begin(struct reuse *r, struct live *l, const struct plan_req *req,
                              struct err *err);
/* With l->fetching after reuse_begin: not before this is false can it go on. */
bool reuse_is_reading(struct reuse *r, const struct live *l);
/* Then.  On any error nothing is held; RC_STALE: the file was damaged, begin again. */
NODISCARD enum rc reuse_fetched(struct reuse *r, struct live *l, struct err *err);
/* l, just begun, stands behind from, and their tokens [0, from->pos) are equal: takes the state over. */
NODISCARD enum rc reuse_take_over(struct reuse *r, struct live *l, const struct live *from,
                                  struct err *err);
/* Pages for n more tokens.  When there are none the cache gives up entries; RC_NOMEM when that does not
 * help. */
NODISCARD enum rc reuse_extend(struct reuse *r, struct live *l, uint32_t n, struct err *err);
/* n tokens were evaluated. */
void reuse_advance(struct reuse *r, struct live *l, uint32_t n);
/* The next cut after l->pos, or NULL. */
const struct cut *reuse_next_cut(const struct live *l);
/* Offers the state at l->pos to the cache.  seq [l->pos]: its tokens. */
void reuse_keep(struct reuse *r, struct live *l, const token *seq, enum cut_kind kind);
/* The sequence is over; seq [l->pos].  Keeps its last state if that is worth it, gives everything back. */
void reuse_end(struct reuse *r, struct live *l, const token *seq);
/* The state at l->pos is kept, whatever the policy thinks, until it is unpinned; its id, or 0 when it cannot be. */
snap_id reuse_pin(struct reuse *r, struct live *l, const token *seq);
/* The same for the state after seq [n] when it is in memory already; 0 otherwise. */
snap_id reuse_pin_kept(struct reuse *r, const token *seq, uint32_t n);
/* cache_pin for a user. */
bool reuse_set_pin(struct reuse *r, snap_id id, bool on);
/* cache_drop for a user. */
bool reuse_drop(struct reuse *r, snap_id id);
/* The same for a state that was found wrong. */
bool reuse_distrust(struct reuse *r, snap_id id);
/* An entry's state, borrowed until the next call that changes the cache; false when it is not in memory. */
struct reuse_state {
    const struct kv_table *kv;
    const void *snap;
    uint64_t page_bytes, snap_bytes;
};
bool reuse_entry_state(struct reuse *r, snap_id id, struct reuse_state *out);
/* Copies an entry's state out; false, and *s empty, when it is not in memory or memory is out. */
bool reuse_export(struct reuse *r, snap_id id, struct saved *s);
/* Puts a state into the cache, if it is not there; its id.  RC_LIMIT when it does not fit, RC_NOMEM. */
NODISCARD enum rc reuse_import(struct reuse *r, const struct saved *s, snap_id *id,
                               struct err *err);
void reuse_counts(const struct reuse *r, struct reuse_counts *out);
const struct shape *reuse_shape(const struct reuse *r);
/* Fills v->held and v->states, where slots hold anything; false when memory is out. */
struct engine_view;
NODISCARD bool reuse_held(const struct reuse *r, struct engine_view *v);
/* For tests: a bit of an entry's snapshot changes. */
bool reuse_spoil(struct reuse *r, snap_id id);
/* The log has the lines of another engine: ours for people would say each request twice. */
bool reuse_speaks(const struct reuse *r);

/* ---- disk ---- */

/* Takes note of what has been written and read.  Between two steps, when woken. */
void reuse_poll(struct reuse *r);
/* Nothing else to do: starts to write the most valuable entry that is only in memory; false when there is none. */
bool reuse_idle(struct reuse *r);
/* Before the end: as many of those as begin until then, all that is under way, and what was learned. */
void reuse_flush(struct reuse *r, uint64_t until_ns);
/* False when there is no disk tier. */
bool reuse_disk(const struct reuse *r, struct disk_stats *out);
/* A forward evaluated so many tokens in so long: what reading is held against. */
void reuse_prefilled(struct reuse *r, uint32_t n_tokens, uint64_t ns);

/* For tests, between two steps: every entry has its bytes, at its position; what they hold is within
 * what the cache has booked, and that within the budget.  Aborts otherwise. */
void reuse_check(struct reuse *r);

#endif
