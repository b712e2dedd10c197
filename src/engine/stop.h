/* stop.h - stop strings: text goes out only once it can no longer be part of one. */
#ifndef HOLDFAST_ENGINE_STOP_H
#define HOLDFAST_ENGINE_STOP_H

#include "base/buf.h"

struct stopper {
    const char *const *words; /* borrowed; empty ones never match */
    uint32_t n;
    struct buf held; /* the end of the text that could begin a stop word */
};

void stopper_init(struct stopper *s, const char *const *words, uint32_t n);
void stopper_release(struct stopper *s);
/* Adds text [n]; what is free of stop words goes to out.  Returns the index of the word that begins
 * first (of equals, the earlier in the list), after which neither it nor what follows it comes out,
 * or -1.  Memory running out shows in out->failed. */
int stopper_add(struct stopper *s, const char *text, size_t n, struct buf *out);
/* The text is over: what was held is no stop word after all. */
void stopper_finish(struct stopper *s, struct buf *out);

#endif
