/* bpe.h - text to tokens.  Linear in the text (n log n within one piece). */
#ifndef HOLDFAST_TEXT_BPE_H
#define HOLDFAST_TEXT_BPE_H

#include "text/vocab.h"

struct tokens { /* growable; zero-initialise */
    token *v;
    size_t n, cap;
};
void tokens_release(struct tokens *t);
NODISCARD bool tokens_add(struct tokens *t, token x);
NODISCARD bool tokens_append(struct tokens *t, const token *v, size_t n); /* not of t itself */

struct bpe_opts {
    bool add_special;   /* BOS, where the model asks for it */
    bool parse_special; /* control tokens in the text become their ids */
};

/* Appends to out.  Thread-safe on one vocab.  RC_NOMEM, or RC_LIMIT above a gigabyte of text; out is
 * then as it was. */
NODISCARD enum rc bpe_encode(const struct vocab *v, struct str text, const struct bpe_opts *o,
                             struct tokens *out, struct err *err);

#endif
