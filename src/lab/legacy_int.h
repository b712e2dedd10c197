/* legacy_int.h - what the families share: slots, counters, the RAM store. */
#ifndef HOLDFAST_LAB_LEGACY_INT_H
#define HOLDFAST_LAB_LEGACY_INT_H

#include "lab/legacy.h"

struct legacy {
    struct legacy_opts o;
    struct slot *slots;  /* [n_slots] */
    struct slot *parked; /* oldest first */
    size_t n_parked, parked_cap;
    uint64_t request;
    struct legacy_turn *out; /* of the request under way */
};

/* One request on the chosen slot. */
enum rc serve_pxa(struct legacy *l, struct slot *s, const token *seq, uint32_t n_prompt,
                  uint32_t n_gen, struct err *err);
enum rc serve_llama(struct legacy *l, struct slot *s, const token *seq, uint32_t n_prompt,
                    uint32_t n_gen, const struct cache_hint *hints, uint32_t n_hints,
                    struct err *err);
/* Which slot, and what the RAM store does about it. */
enum rc choose_pxa(struct legacy *l, const token *seq, uint32_t n, struct slot **out,
                   struct err *err);
enum rc choose_llama(struct legacy *l, const token *seq, uint32_t n, struct slot **out,
                     struct err *err);

uint64_t slot_bytes(const struct legacy *l, const struct slot *s);
/* Erases what lies above limit; counts. */
void ring_erase_above(struct legacy *l, struct slot *s, int64_t limit);
/* A checkpoint was made. */
void note_made(struct legacy *l, uint32_t pos);
NODISCARD enum rc ring_append(struct legacy *l, struct slot *s, uint32_t pos, struct err *err);

/* RAM store: puts a copy of s aside, unless contained in an entry; drops entries contained in s. */
NODISCARD enum rc park(struct legacy *l, const struct slot *s, struct err *err);
void parked_remove(struct legacy *l, size_t i);
/* Swaps entry i with the slot's content, which is lost. */
void parked_take(struct legacy *l, size_t i, struct slot *s);
/* Drops the oldest while more than one entry and over the limit. */
void parked_trim(struct legacy *l);

#endif
