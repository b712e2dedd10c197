/* grammar.h - which tokens may come next, when the output has to follow a grammar.
 *
 * A grammar comes from GBNF, from a JSON schema, or from the tools of a request.  It is compiled to an
 * automaton over bytes; masks over the vocabulary are computed on demand and kept (README.md).
 */
#ifndef HOLDFAST_TEXT_GRAMMAR_H
#define HOLDFAST_TEXT_GRAMMAR_H

#include <jansson.h>

#include "text/reply.h"
#include "text/vocab.h"

/* ---- the vocabulary as a trie: once per model, shared by all grammars ---- */

struct token_trie;
/* v is borrowed and outlives the trie and all grammars over it.  Control and unused tokens are in no mask; tokens that end a generation are where the
 * grammar may end. */
NODISCARD enum rc token_trie_new(const struct vocab *v, struct token_trie **out, struct err *err);
/* Grammars keep it alive. */
void token_trie_free(struct token_trie *t);

/* ---- grammars ---- */

/* With its caches.  All states of one grammar are used by one thread at a time; references may be
 * taken and given back by any. */
struct grammar;

/* GBNF as llama.cpp defines it; messages begin with "grammar line L: ". */
NODISCARD enum rc grammar_from_gbnf(struct token_trie *t, struct str text, struct grammar **out,
                                    struct err *err);
/* JSON that the schema allows; NULL or an empty schema: any JSON.  RC_UNSUPPORTED names the keyword and
 * where it stands.  README.md lists what is supported. */
NODISCARD enum rc grammar_from_schema(struct token_trie *t, const json_t *schema,
                                      struct grammar **out, struct err *err);
/* Any JSON object (response_format json_object). */
NODISCARD enum rc grammar_json_object(struct token_trie *t, struct grammar **out, struct err *err);
/* Calls of tools, as the family writes them, and what may stand beside them. */
struct tools_grammar { /* all borrowed */
    enum reply_family family;
    const json_t *tools;   /* as in reply.h */
    const char *name;      /* only this one; NULL: any */
    bool parallel;         /* one call or several */
    const json_t *content; /* instead of calls it may be JSON of this schema; NULL: it may not */
    bool
        in_text; /* calls are not asked for: text, with some in it or none; not for REPLY_GENERIC */
};
NODISCARD enum rc grammar_from_tools(struct token_trie *t, const struct tools_grammar *o,
                                     struct grammar **out, struct err *err);
void grammar_ref(struct grammar *g);
/* Gives a reference back; the last one frees. */
void grammar_free(struct grammar *g);
/* Bytes held by the automaton and its caches, as of the last mask; any thread may ask. */
size_t grammar_bytes(const struct grammar *g);
/* It has met so much text that a fresh one is better for what begins now: what an automaton remembers of
 * places is bounded, and at the bound its outputs fail.  Any thread may ask. */
bool grammar_is_worn(const struct grammar *g);

/* ---- one output's way through a grammar ---- */

struct grammar_state;
/* g is borrowed.  after (NULL: at once): the grammar holds from behind the first occurrence of this
 * text, such as "</think>", and up to two newlines may come in between.  Until then anything may come but
 * the end. */
NODISCARD enum rc grammar_state_new(struct grammar *g, const char *after,
                                    struct grammar_state **out, struct err *err);
void grammar_state_free(struct grammar_state *s);
/* The same place, for another output (n > 1). */
NODISCARD enum rc grammar_state_copy(const struct grammar_state *s, struct grammar_state **out,
                                     struct err *err);

/* *bits: bit i % 64 of word i / 64 says whether token i may come next, ceil(n_vocab / 64) words,
 * borrowed until the next call on this grammar. */
NODISCARD enum rc grammar_mask(struct grammar_state *s, const uint64_t **bits, struct err *err);
/* Goes on over a token.  RC_ARG, and the state stays, when it may not come next. */
NODISCARD enum rc grammar_accept(struct grammar_state *s, token t, struct err *err);
/* The output may end here. */
bool grammar_may_end(const struct grammar_state *s);
/* It has to: nothing may follow. */
bool grammar_must_end(const struct grammar_state *s);

#endif
