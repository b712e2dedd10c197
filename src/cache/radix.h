/* radix.h - the token tree: every token path walked lately, edges split at any token.
 *
 *   root --[ 1 2 3 4 5 ]-- x --[ 6 7 8 ]-- y        an edge and the node it leads to are one thing, named
 *                           \--[ 9 2 ]---- z        by a u32; position = tokens from the root
 *
 * An edge owns its label.  Ids stay where they are under splits (the upper part is the new node), so a
 * path's end keeps its name.  All nodes stand in one list by their last walk, a child always before its
 * parent; radix_trim() takes leaves from its old end.
 *
 * The fields marked cache's are kept by cache.c through the hooks; the tree only leaves nodes with
 * at[0].n_live > 0 alone.
 */
#ifndef HOLDFAST_CACHE_RADIX_H
#define HOLDFAST_CACHE_RADIX_H

#include "base/base.h"

enum { RADIX_ROOT = 1 }; /* 0 = none */

enum { RADIX_LAYERS = 3 }; /* cache's, see entry.c */

struct radix_layer {
    uint32_t n_own;  /* live entries in the edge */
    uint32_t n_live; /* live entries in the edge and below it */
    uint32_t kv;     /* [start, kv) is resident; start = nothing is */
};

struct radix_node {
    token *label;                       /* [end - start] */
    uint32_t start, end;                /* positions before and after the edge */
    uint32_t parent, child, next, prev; /* first child; siblings */
    uint32_t older, newer;              /* by last walk */
    /* cache's: */
    uint32_t live, ghost; /* entries that end in this edge, deepest first */
    struct radix_layer at[RADIX_LAYERS];
    uint32_t done; /* [start, done) was evaluated, not only asked for */
    uint32_t mark; /* scratch */
};

struct radix_hooks {
    void *ctx;
    /* upper is the new parent of lower: hand it what ends at or before upper's end. */
    void (*split)(void *ctx, uint32_t upper, uint32_t lower);
    /* upper, which has no other child, becomes part of lower and is gone afterwards. */
    void (*merge)(void *ctx, uint32_t upper, uint32_t lower);
    /* A leaf without live entries is about to go. */
    void (*remove)(void *ctx, uint32_t leaf);
};

struct radix {
    struct radix_node *nodes; /* [0] unused, [1] root */
    uint32_t n_nodes;         /* in use, without the root */
    uint32_t used, free;      /* high water; list of free nodes by parent */
    size_t nodes_cap;
    uint32_t *index; /* (parent, first token) -> child; open addressing, 0 = empty */
    uint32_t index_cap;
    uint64_t n_tokens;
    uint64_t label_bytes;
    uint32_t oldest, newest;
    struct radix_hooks hooks;
};

/* Nodes from the root down (without it); the last one may be matched in part. */
struct radix_path {
    uint32_t *nodes;
    size_t cap;
    uint32_t n;
    uint32_t len; /* tokens matched */
};

/* False when memory is out. */
NODISCARD bool radix_init(struct radix *r, const struct radix_hooks *hooks);
void radix_release(struct radix *r);
void radix_path_release(struct radix_path *p);

/* Longest prefix of seq[0 .. n) in the tree.  path may be NULL; false when it could not grow. */
NODISCARD bool radix_walk(const struct radix *r, const token *seq, uint32_t n,
                          struct radix_path *path, uint32_t *len);
/* Makes all of seq[0 .. n) part of the tree and path its nodes.  False when memory is out; the tree is then
 * as before. */
NODISCARD bool radix_insert(struct radix *r, const token *seq, uint32_t n, struct radix_path *path);
/* Adds tokens[0 .. n), n > 0, below the end of path, where no child begins with tokens[0].  Extends path.  False as
 * above. */
NODISCARD bool radix_extend(struct radix *r, const token *tokens, uint32_t n,
                            struct radix_path *path);
/* Takes away a leaf without live entries. */
void radix_remove_leaf(struct radix *r, uint32_t leaf);
/* The path's nodes were walked just now. */
void radix_touch(struct radix *r, const struct radix_path *path);
/* Takes leaves, least recently walked first, until radix_bytes() <= bytes or all that is left has live
 * entries below it. */
void radix_trim(struct radix *r, uint64_t bytes);

/* Index into path->nodes of the node with start < pos <= end; pos in 1 .. end of the last one. */
uint32_t radix_path_at(const struct radix *r, const struct radix_path *path, uint32_t pos);
/* The child of node whose label begins with t, or 0. */
uint32_t radix_child(const struct radix *r, uint32_t node, token t);
/* First index at which a and b differ, or n. */
uint32_t radix_mismatch(const token *a, const token *b, uint32_t n);
/* A child becomes the first of its siblings. */
void radix_to_front(struct radix *r, uint32_t node);

/* Held from the system. */
uint64_t radix_bytes(const struct radix *r);
/* Aborts when the tree contradicts itself. */
void radix_check(const struct radix *r);

static inline struct radix_node *radix_at(const struct radix *r, uint32_t id)
{
    return &r->nodes[id];
}

#endif
