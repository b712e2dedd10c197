/* think.h - ends reasoning that has taken its budget of tokens.
 *
 *     WAIT --<think>--> ON --budget used up--> ENDING --all of end said--> OVER
 *      |                 |                                                  ^
 *      '-- other text ---+-------------------- </think> --------------------'
 *
 * Tags are looked for in the text, so that it does not matter how a model cuts them into tokens.
 */
#ifndef HOLDFAST_ENGINE_THINK_H
#define HOLDFAST_ENGINE_THINK_H

#include "base/str.h"
#include "engine/engine.h"

struct think {
    enum think_state {
        THINK_OVER,
        THINK_WAIT,
        THINK_ON,
        THINK_ENDING
    } state;                         /* zero: nothing to end */
    const struct think_limit *limit; /* borrowed */
    uint32_t n;   /* ON: tokens of reasoning; ENDING: tokens of end that were said */
    char seen[8]; /* WAIT: the beginning of the text; ON: its end */
    size_t n_seen;
};

void think_init(struct think *t, const struct think_limit *limit);
/* What comes next whatever the model would say, or -1. */
token think_next(struct think *t);
/* A token was said that stands for text. */
void think_note(struct think *t, struct str text);

#endif
