/* legacy_int.h - what the families share: slots with a token sequence and a ring. */
#ifndef HOLDFAST_LAB_LEGACY_INT_H
#define HOLDFAST_LAB_LEGACY_INT_H

#include "lab/legacy.h"

struct mark {
    uint32_t pos; /* the state after token pos: pos + 1 tokens */
    uint32_t hits;
    uint64_t request; /* that made it */
    bool boundary;    /* the first one after a restore */
};

/* A sequence and its checkpoints: in a slot, or parked in RAM. */
struct store {
    token *seq;
    size_t seq_cap;
    uint32_t n; /* tokens */
    struct mark *ring;
    size_t ring_cap;
    uint32_t n_ring;
    uint64_t used; /* last request */
};

struct legacy {
    struct legacy_opts o;
    struct store *slots;  /* [n_slots] */
    struct store *parked; /* oldest first */
    size_t n_parked, parked_cap;
    uint64_t request;
    struct legacy_turn *out; /* of the request under way */
};

/* One request on the chosen slot. */
enum rc pxa_serve(struct legacy *l, struct store *s, const token *seq, uint32_t n_prompt,
                  uint32_t n_gen, struct err *err);
enum rc llama_serve(struct legacy *l, struct store *s, const token *seq, uint32_t n_prompt,
                    uint32_t n_gen, const struct cache_hint *hints, uint32_t n_hints,
                    struct err *err);
/* Which slot, and what the RAM store does about it. */
enum rc pxa_choose(struct legacy *l, const token *seq, uint32_t n, struct store **out,
                   struct err *err);
enum rc llama_choose(struct legacy *l, const token *seq, uint32_t n, struct store **out,
                     struct err *err);

uint32_t common_prefix(const token *a, uint32_t na, const token *b, uint32_t nb);
/* The slot now holds seq[n]. */
NODISCARD enum rc store_set(struct store *s, const token *seq, uint32_t n, struct err *err);
void store_release(struct store *s);
void store_clear(struct store *s);
uint64_t store_bytes(const struct legacy *l, const struct store *s);
void ring_remove(struct store *s, uint32_t i);
/* Erases what lies above limit; counts. */
void ring_erase_above(struct legacy *l, struct store *s, int64_t limit);
NODISCARD enum rc ring_append(struct legacy *l, struct store *s, uint32_t pos, struct err *err);

/* RAM store: puts a copy of s aside, unless contained in an entry; drops entries contained in s. */
NODISCARD enum rc park(struct legacy *l, const struct store *s, struct err *err);
void parked_remove(struct legacy *l, size_t i);
/* Swaps entry i with the slot's content, which is lost. */
void parked_take(struct legacy *l, size_t i, struct store *s);
/* Drops the oldest while more than one entry and over the limit. */
void parked_trim(struct legacy *l);

#endif
