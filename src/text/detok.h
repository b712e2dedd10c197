/* detok.h - tokens to text that never ends inside a UTF-8 character. */
#ifndef HOLDFAST_TEXT_DETOK_H
#define HOLDFAST_TEXT_DETOK_H

#include "base/buf.h"
#include "text/vocab.h"

/* A stream: up to 3 bytes are held back until their character is whole. */
struct detok {
    char held[4];
    uint8_t n_held;
    bool special; /* show control tokens */
};

void detok_init(struct detok *d, bool special);
/* Appends the whole characters that t completes; bytes that can never be UTF-8 become U+FFFD. */
void detok_add(struct detok *d, const struct vocab *v, token t, struct buf *out);
/* What is still held, as U+FFFD. */
void detok_finish(struct detok *d, struct buf *out);

#endif
