/* grammar_int.h - building automata: what gbnf.c, schema.c and their like see of grammar.c.
 *
 * A grammar is a set of rules; each rule is a nondeterministic automaton over bytes with one start and
 * one final state, whose edges are byte ranges, nothing, or calls of rules.
 *
 * Builders do not check for memory at each step: the grammar notes the first failure, everything after
 * it does nothing, and grammar_finish reports it.
 */
#ifndef HOLDFAST_TEXT_GRAMMAR_INT_H
#define HOLDFAST_TEXT_GRAMMAR_INT_H

#include "base/arena.h"
#include "base/buf.h"
#include "text/grammar.h"

enum edge_kind { EDGE_BYTES, EDGE_EMPTY, EDGE_CALL };

struct gedge {
    uint32_t from, to;
    uint32_t rule; /* EDGE_CALL */
    uint8_t kind, lo, hi;
};

struct grule {
    uint32_t start, final;
    const char *name; /* in the arena; "" for those without */
};

struct grange { /* code points, inclusive */
    uint32_t lo, hi;
};

/* A new grammar without rules; RC_NOMEM aside it cannot fail. */
NODISCARD struct grammar *grammar_new(struct token_trie *t);
/* The grammar's own error: the first one wins. */
PRINTF_LIKE(3, 4) void grammar_fail(struct grammar *g, enum rc rc, const char *fmt, ...);
bool grammar_failed(const struct grammar *g);
struct arena *grammar_arena(struct grammar *g);

uint32_t grammar_rule(struct grammar *g, const char *name);
struct grule grammar_rule_at(const struct grammar *g, uint32_t rule);
uint32_t grammar_state_add(struct grammar *g);
void grammar_bytes_edge(struct grammar *g, uint32_t from, uint8_t lo, uint8_t hi, uint32_t to);
void grammar_empty_edge(struct grammar *g, uint32_t from, uint32_t to);
void grammar_call_edge(struct grammar *g, uint32_t from, uint32_t rule, uint32_t to);
/* A text, byte by byte. */
void grammar_text(struct grammar *g, uint32_t from, struct str text, uint32_t to);
/* Any of the texts [n > 0], byte by byte; sorts them.  Those that begin alike share states: however
 * many there are, the output stands at one place.  The caller bounds their lengths together. */
void grammar_texts(struct grammar *g, uint32_t from, struct str *texts, size_t n, uint32_t to);
/* One character of the ranges (sorted or not), in UTF-8; negated: of any others but surrogates. */
void grammar_chars(struct grammar *g, uint32_t from, const struct grange *r, size_t n, bool negated,
                   uint32_t to);
/* Tokens of at most room bytes may do at state s what they may at `like`, and end its rule where they
 * end that one's. */
void grammar_alias(struct grammar *g, uint32_t s, uint32_t like, uint32_t room);
/* Most tokens lead from s to the very places that they lead to from `base`, a state of the same rule:
 * only where the two have not met yet they need to be looked at. */
void grammar_near(struct grammar *g, uint32_t s, uint32_t base);

/* Checks the whole (left recursion, size) and makes it ready for states; root is where it begins.
 * Takes g: on failure it is freed. */
NODISCARD enum rc grammar_finish(struct grammar *g, uint32_t root, struct grammar **out,
                                 struct err *err);

/* ---- schema.c, for the tools' grammar ---- */

/* A rule for JSON values of schema; root is where $ref is looked up. */
struct schema_build;
NODISCARD struct schema_build *schema_build_new(struct grammar *g, const json_t *root,
                                                const char *where);
void schema_build_free(struct schema_build *b);
uint32_t schema_rule(struct schema_build *b, const json_t *schema);

/* ---- bare.c: text as it is, up to a mark ---- */

enum { BARE_NODES = 128 };
struct bare_marks {           /* ASCII, all together shorter than BARE_NODES */
    const char *end;          /* the mark */
    const char *const *never; /* [n_never] texts that do not come before it */
    size_t n_never;
};
/* min to max characters (GTREE_NO_END: any number), then the mark, which leads to `to`.  stop: where the
 * text leads if it ends anywhere without the mark; or NO_STOP.  No control characters but tab and line
 * ends.  like [BARE_NODES], zeroed by the caller, or NULL: states of the text of any length, which is
 * what fills it; texts with limits and the same marks then share its masks. */
#define NO_STOP UINT32_MAX
void grammar_bare_text(struct grammar *g, const struct bare_marks *k, uint32_t from, uint32_t min,
                       uint32_t max, uint32_t to, uint32_t stop, uint32_t *like);

/* pattern.c: text that matches an ECMA regular expression (a subset); quoted: as a JSON string. */
void pattern_build(struct grammar *g, uint32_t from, struct str pattern, const char *where,
                   bool quoted, uint32_t to);

#endif
