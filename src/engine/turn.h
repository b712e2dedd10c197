/* turn.h - the one line per request that a person reads: what came, what was reused, what it cost,
 * and why not more was reused.  Counts and times only, no text. */
#ifndef HOLDFAST_ENGINE_TURN_H
#define HOLDFAST_ENGINE_TURN_H

#include "engine/engine.h"

struct turn {
    uint64_t id;
    struct timings t;
    struct plan plan;
    struct foreign_state foreign; /* piece.foreign */
    enum stop_kind stop;
    const char *error; /* with STOP_ERROR */
    uint64_t now_ns;   /* the clock of plan.evicted_ns */
};

void turn_line(const struct turn *t, struct buf *out);

#endif
