/* rank.h - live entries by value, the least valuable at hand.
 *
 * value = weight * rate: the weight is the entry's (tokens at risk per byte), the rate its situation's (chance of
 * a hit), which the policy may change from request to request.  Entries stand in slots 0 .. n - 1; over them
 * lies a tournament: each inner place holds the slot of the smaller value below it, so the least is at the top
 * and one change costs log2 n comparisons.  It is set up anew once per request, and only if someone asks.
 */
#ifndef HOLDFAST_CACHE_RANK_H
#define HOLDFAST_CACHE_RANK_H

#include "cache/cache.h"

struct rank {
    double weight;
    double value;  /* as of ranks.epoch */
    uint32_t cell; /* the policy's */
    snap_id id;
    bool barred; /* pinned: not to be found */
};

struct ranks {
    struct rank *list;
    size_t cap;
    uint32_t n;
    uint32_t *winner; /* [2 width]: places 1 .. width - 1 inner, width + i is slot i */
    uint32_t width;   /* power of two; 0 = none yet */
    uint32_t epoch;   /* request for which values and winners hold */
    bool stale;       /* they do not hold at all */
};

typedef double rank_rate(const struct cache *c, uint32_t cell);

/* Room for one more.  False when memory is out. */
NODISCARD bool ranks_reserve(struct ranks *r);
void ranks_release(struct ranks *r);
uint64_t ranks_bytes(const struct ranks *r);

/* Room was reserved; returns the slot. */
uint32_t ranks_add(struct ranks *r, snap_id id);
/* The last slot moves to the one that is free; returns whose entry that was (id itself if it was last). */
snap_id ranks_drop(struct ranks *r, uint32_t slot);
/* weight, cell or barred of this slot has changed. */
void ranks_update(struct ranks *r, uint32_t slot, rank_rate *rate, const struct cache *c);
/* Values as of request epoch; call before the next three. */
void ranks_renew(struct ranks *r, uint32_t epoch, rank_rate *rate, const struct cache *c);
/* Slot of the least value that is not barred (ties: smaller id), or UINT32_MAX. */
uint32_t ranks_least(const struct ranks *r);
/* Leaves a slot out, or takes it in again, until the next ranks_renew of another epoch. */
void ranks_hide(struct ranks *r, uint32_t slot);
void ranks_show(struct ranks *r, uint32_t slot);
/* Nothing in it can be found. */
bool ranks_all_barred(const struct ranks *r);
/* Aborts when the winner is not the least, as of request epoch. */
void ranks_check(const struct ranks *r, uint32_t epoch);

#endif
