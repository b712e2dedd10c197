/* grammar_cache.h - grammars by what they were made of, so that the same schema is compiled once.
 *
 * Any thread may ask.  What is given out is shared: the thread that runs the outputs (the engine's) is
 * the only one to use its states; all others hold references.
 */
#ifndef HOLDFAST_TEXT_GRAMMAR_CACHE_H
#define HOLDFAST_TEXT_GRAMMAR_CACHE_H

#include "text/grammar.h"

/* What an output has to be, all borrowed.  One of the first three; or schema and tools: JSON or calls. */
struct grammar_spec {
    struct str gbnf;      /* a grammar; n 0: none */
    const json_t *schema; /* JSON that it allows, true: any; NULL: none */
    const json_t *tools;  /* calls of these; NULL: none */
    const char *tool;     /* of this one only; NULL: of any */
    enum reply_family family;
    bool parallel; /* one call or several */
    bool in_text;  /* calls as they come within text */
};

struct grammar_cache;
/* v is borrowed and outlives all grammars given out.  The vocabulary is read at the first get.  budget:
 * bytes of grammars kept for later; 0 = 256 MiB. */
struct grammar_cache *grammar_cache_new(const struct vocab *v, size_t budget);
/* Grammars given out stay. */
void grammar_cache_free(struct grammar_cache *c);
/* *out is the caller's reference (grammar_free).  Errors as those of grammar.h. */
NODISCARD enum rc grammar_cache_get(struct grammar_cache *c, const struct grammar_spec *spec,
                                    struct grammar **out, struct err *err);

#endif
