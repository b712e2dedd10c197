/* ppl.h - perplexity: how well a model foretells a text, window by window.
 *
 * A text of n tokens is cut into windows of n_ctx.  Each is evaluated from the empty state; the tokens
 * of its second half (with a stride: its last `stride` ones) are scored by what the model gave them
 * from the tokens before.  Windows follow one another; with a stride each begins so many tokens after
 * the one before.  This is llama-perplexity's measure, so figures compare.
 *
 *     PPL = exp(mean of -ln p),   its standard error = PPL * sd(-ln p) / sqrt(n - 1)
 */
#ifndef HOLDFAST_CLI_PPL_H
#define HOLDFAST_CLI_PPL_H

#include "model/model.h"

struct ppl_opts {
    const token *tokens; /* [n], borrowed */
    uint64_t n;
    uint32_t n_ctx;     /* tokens of a window, >= 4 */
    uint32_t stride;    /* 0: the second half is scored; else < n_ctx */
    uint32_t n_windows; /* at most; 0 = all */
    token bos;          /* stands in for each window's first token; -1: nothing does */
};

struct ppl {
    uint32_t n_windows; /* done */
    uint64_t n_scored;
    double nll, nll2; /* sums of -ln p and of its square */
};

/* NaN before there is anything to tell. */
double ppl_value(const struct ppl *p);
double ppl_error(const struct ppl *p);

/* How many windows the text has. */
uint32_t ppl_windows(const struct ppl_opts *o);

/* Calls each(ctx, so far) after every window (may be NULL).  RC_ARG when the text has no whole window,
 * n_ctx is beyond the model's or a token is not the vocabulary's; RC_NOMEM. */
NODISCARD enum rc ppl_run(struct model *m, struct pool *pool, const struct ppl_opts *o,
                          void (*each)(void *ctx, const struct ppl *p), void *ctx, struct ppl *out,
                          struct err *err);

#endif
