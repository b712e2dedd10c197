/* maker_int.h - what the files of the model maker share. */
#ifndef HOLDFAST_MODEL_MAKER_INT_H
#define HOLDFAST_MODEL_MAKER_INT_H

#include "base/arena.h"
#include "base/err.h"
#include "base/str.h"

extern const char maker_corpus[];        /* what the vocabulary is trained on */
extern const char maker_chat_template[]; /* Jinja */

enum { MAKER_MIN_VOCAB = 256 + 26, MAKER_MAX_VOCAB = 1 << 20 };

/* A byte-level BPE vocabulary: 256 bytes, trained merges, for a large one made-up joins of what there
 * is, then the special tokens and unused ids up to n. */
struct maker_vocab {
    uint32_t n, n_merges;
    struct str *tokens; /* [n], in the printable alphabet of byte-level BPE */
    int32_t *types;     /* [n], the file's numbers */
    struct str *merges; /* "left right", best first */
    uint32_t endoftext, im_end;
    struct arena text; /* holds all strings */
};

/* RC_ARG when n_tokens is out of [MAKER_MIN_VOCAB, MAKER_MAX_VOCAB]. */
NODISCARD enum rc maker_vocab_init(struct maker_vocab *v, uint32_t n_tokens, uint64_t seed,
                                   struct err *err);
void maker_vocab_release(struct maker_vocab *v);

#endif
