/* gtree_int.h - a small tree for what is written as text (GBNF, patterns) before it becomes edges:
 * what is repeated is built several times over. */
#ifndef HOLDFAST_TEXT_GTREE_INT_H
#define HOLDFAST_TEXT_GTREE_INT_H

#include "text/grammar_int.h"

enum gnode_kind { G_TEXT, G_CLASS, G_CALL, G_SEQUENCE, G_CHOICE, G_REPEAT };

enum { GTREE_MAX_DEPTH = 64, GTREE_MAX_REPEAT = 100000 };
#define GTREE_NO_END UINT32_MAX

struct gnode { /* in the grammar's arena */
    enum gnode_kind kind;
    struct str text;       /* G_TEXT, UTF-8 */
    struct grange *ranges; /* G_CLASS */
    size_t n_ranges, ranges_cap;
    bool negated;
    uint32_t rule;                    /* G_CALL */
    struct gnode *kids, *last, *next; /* kids in a list */
    uint32_t min, max;                /* G_REPEAT of kids; max may be GTREE_NO_END */
};

/* NULL when the grammar has failed or memory is out. */
struct gnode *gnode_new(struct grammar *g, enum gnode_kind kind);
/* kid may be NULL, when the grammar has failed. */
void gnode_add(struct gnode *of, struct gnode *kid);
void gnode_range(struct grammar *g, struct gnode *of, uint32_t lo, uint32_t hi);
/* Makes a class the complement of itself, so that it can be joined to others. */
void gnode_complement(struct grammar *g, struct gnode *class_node);
/* json: characters are written as inside a JSON string. */
void gnode_build(struct grammar *g, const struct gnode *n, bool json, uint32_t from, uint32_t to);

#endif
