/* vocab_int.h - what bpe.c and the vocabulary masks see of a vocabulary.
 *
 * A *symbol* is what BPE merges: a token id, or from n_tokens on a *ghost*, a string that stands in
 * the merge list but is no token.  A sound vocabulary has no ghosts; with one the encoder falls back
 * to single bytes where a ghost is left over.
 */
#ifndef HOLDFAST_TEXT_VOCAB_INT_H
#define HOLDFAST_TEXT_VOCAB_INT_H

#include "base/arena.h"
#include "text/pretok.h"
#include "text/vocab.h"

struct merge {
    uint64_t pair; /* left << 32 | right; UINT64_MAX: empty place */
    uint32_t rank, result;
};

struct special_node {        /* of the trie over the texts that are cut out of a prompt */
    uint32_t child, sibling; /* indices; 0 = none */
    token id;                /* that ends here, or -1 */
    uint32_t order;          /* of that token: longer texts first, then lower ids */
    uint8_t byte;
};

struct vocab {
    const struct gguf *gguf;
    const struct pretok *pretok;
    uint32_t n_tokens;
    struct str *text;    /* [n_tokens] in the file's map */
    uint8_t *type;       /* [n_tokens] enum token_type */
    char *bytes;         /* what the tokens stand for, one after another */
    uint32_t *bytes_end; /* [n_tokens] */

    uint32_t *by_text; /* open addressing: symbol + 1, or 0 */
    uint32_t by_text_mask, n_by_text;
    struct merge *merges; /* open addressing */
    uint32_t merge_shift; /* 64 - log2 of its size */
    struct str *ghost;    /* [n_ghosts] */
    size_t n_ghosts, ghost_cap;
    uint32_t byte_symbol[256];
    token byte_token[256];

    struct special_node *special; /* node 0 is the root */
    size_t n_special_nodes, special_cap;
    uint32_t special_root[256]; /* first step of the trie */
    uint32_t n_specials;

    token bos, eos;
    bool add_bos;
    token *eog;
    size_t n_eog, eog_cap;
    struct str chat_template;
    struct arena arena; /* ghost texts */
};

/* The printable stand-in of a byte, as the files write it, and back (-1: not of the alphabet). */
uint32_t alphabet_char(uint8_t byte);
int alphabet_byte(uint32_t cp);

/* Rank of the merge left + right and its result; UINT32_MAX when they do not merge. */
static inline uint32_t vocab_merge(const struct vocab *v, uint32_t left, uint32_t right,
                                   uint32_t *result)
{
    const uint64_t pair = (uint64_t)left << 32 | right;
    const uint64_t mask = UINT64_MAX >> v->merge_shift;
    for (uint64_t i = (pair * UINT64_C(0x9e3779b97f4a7c15)) >> v->merge_shift;;
         i = (i + 1) & mask) {
        if (v->merges[i].pair == pair) {
            *result = v->merges[i].result;
            return v->merges[i].rank;
        }
        if (v->merges[i].pair == UINT64_MAX)
            return UINT32_MAX;
    }
}

#endif
