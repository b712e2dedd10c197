/* sample.h - from a row of logits to a token.
 *
 * The order is llama-server's default chain: forbidden tokens (a grammar's too), bias, penalties, then
 * top-k, top-p, min-p, temperature, draw.  Top-p and min-p look at the distribution before temperature.
 * Everything is a function of the logits, the history and the seed: ties go to the lower id, sums
 * run in a fixed order.  Linear in the vocabulary (times log k for top-k); nothing larger than what
 * top-k keeps is ever sorted.
 */
#ifndef HOLDFAST_ENGINE_SAMPLE_H
#define HOLDFAST_ENGINE_SAMPLE_H

#include "base/rng.h"
#include "engine/engine.h"

/* Work space of one thread, and what holds for every request. */
struct sample_room;
/* forbidden [n_forbidden]: never sampled, whatever the request says (unused rows of the embedding);
 * eog [n_eog]: forbidden with ignore_eos.  Both are copied. */
NODISCARD enum rc sample_room_new(uint32_t n_vocab, const token *forbidden, uint32_t n_forbidden,
                                  const token *eog, uint32_t n_eog, struct sample_room **out,
                                  struct err *err);
void sample_room_free(struct sample_room *r);

struct sampler {
    struct sampling p;
    const struct logit_bias *bias; /* borrowed */
    uint32_t n_bias;
    struct rng rng;
    /* NULL, or the tokens that a grammar allows next, borrowed: bit i % 64 of word i / 64,
     * ceil(n_mask / 64) words.  Tokens from n_mask on are not allowed. */
    const uint64_t *mask;
    uint32_t n_mask;
    token forced; /* comes next whatever the logits say; -1: none */
};

void sampler_init(struct sampler *s, const struct sampling *p, uint64_t seed,
                  const struct logit_bias *bias, uint32_t n_bias);

/* The next token, or -1 when none is allowed (or no logit is a number).  logits [n_vocab] are
 * overwritten.  history [n]: prompt and what was generated, for the penalties.
 * probs: NULL, or [1 + n_probs]: the log-probabilities of the sampled token and then of the most
 * probable ones, by the model's logits before mask, bias, penalties and filters. */
token sampler_next(struct sampler *s, struct sample_room *r, float *logits, const token *history,
                   uint32_t n, struct prob *probs, uint32_t n_probs);

/* What is left to draw from after all filters, for tests: ids and their probabilities.  Same
 * arguments as sampler_next; returns how many. */
uint32_t sampler_candidates(struct sampler *s, struct sample_room *r, float *logits,
                            const token *history, uint32_t n, token *ids, double *p);

#endif
