/* shape.h - pieces of JSON that several protocols share. */
#ifndef HOLDFAST_SERVER_SHAPE_H
#define HOLDFAST_SERVER_SHAPE_H

#include "server/gen.h"

/* llama-server's timings object; cache_n + prompt_n is the prompt. */
void shape_timings(struct jwrite *w, const struct timings *t);
/* {"total", "cache", "processed", "time_ms"} under prompt_progress. */
void shape_progress(struct jwrite *w, const struct timings *t);
/* OpenAI's usage over the answers [g->n]; a prompt with several answers counts once.  n_reasoning: tokens
 * of the completion that were reasoning; -1: not known. */
void shape_usage(struct jwrite *w, const struct gen *g, const struct answer *answers,
                 int64_t n_reasoning);
/* llama-server's list of token probabilities, which is OpenAI's for chats too: n tokens, probs
 * [n][1 + n_probs], the first n_top alternatives of each. */
void shape_probs(struct jwrite *w, const char *key, const struct call *c, const struct prob *probs,
                 size_t n, uint32_t n_probs, uint32_t n_top);

#endif
