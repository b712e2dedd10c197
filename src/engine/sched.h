/* sched.h - who gets how many rows of the next forward.
 *
 * Pure arithmetic over what each running sequence could use.  Every sequence that decodes has one
 * row, before anyone prefills: a token a step.  What is left goes to those that prefill, in equal
 * shares; what a short one does not need of its share falls to the longer ones.  So a short prompt
 * is through in a step or two, however long the prompts beside it are, and none ever stands still.
 */
#ifndef HOLDFAST_ENGINE_SCHED_H
#define HOLDFAST_ENGINE_SCHED_H

#include "base/base.h"

struct sched_row {
    uint32_t want; /* tokens up to the sequence's next cut or its prompt's end; 1 when it decodes */
    bool decode;
    uint32_t take; /* out: tokens it gets, 0..want */
};

/* Sets take of rows [n]; their sum is at most max_rows, and of those that prefill at most
 * max_prefill.  first: the row served first when there are more rows than room; the caller counts it
 * up from step to step. */
void sched_share(struct sched_row *rows, uint32_t n, uint32_t max_rows, uint32_t max_prefill,
                 uint32_t first);

#endif
