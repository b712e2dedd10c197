/* pretok.h - cuts text into the pieces within which BPE merges.
 *
 * Scanners over code points in place of the vocabularies' regular expressions (pretok.c quotes them;
 * pretok_test.c holds each scanner to its expression).  Linear in the text.
 */
#ifndef HOLDFAST_TEXT_PRETOK_H
#define HOLDFAST_TEXT_PRETOK_H

#include "base/str.h"

struct pretok {
    const char *name;   /* tokenizer.ggml.pre */
    bool gpt2;          /* the GPT-2 expression; else the family below */
    bool marks;         /* combining marks belong to words */
    uint8_t max_digits; /* numbers in one piece */
    bool ignore_merges; /* a piece that is a token is taken whole */
    bool add_bos;       /* when the file does not say */
};

/* NULL for a name we do not know. */
const struct pretok *pretok_find(struct str name);
/* "qwen35, qwen2, ...", for messages. */
#define PRETOK_NAMES "qwen35, qwen2, llama-bpe, gpt-2"

/* The end of the piece that begins at `at` < text.n; always > at.  text is what unicode_is_clean
 * accepts. */
size_t pretok_next(const struct pretok *p, struct str text, size_t at);

#endif
