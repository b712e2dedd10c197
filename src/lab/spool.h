/* spool.h - bytes put aside for later: in memory while they are few, then in an unlinked file. */
#ifndef HOLDFAST_LAB_SPOOL_H
#define HOLDFAST_LAB_SPOOL_H

#include "base/buf.h"
#include "base/err.h"

#include <stdio.h>

struct spool {
    struct buf b; /* add here, then spool_turn_over */
    FILE *f;
    uint64_t n_items;
    struct err err; /* the first failure; adds after it do nothing */
};

void spool_init(struct spool *s);
void spool_release(struct spool *s);
/* After an item was added to s->b: moves what has gathered to the file when it is much. */
void spool_turn_over(struct spool *s);
/* Everything so far, in order, to out. RC_IO, RC_NOMEM. */
NODISCARD enum rc spool_copy(struct spool *s, FILE *out, struct err *err);

#endif
