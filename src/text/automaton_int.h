/* automaton_int.h - a grammar's insides, shared by grammar.c (building) and automaton.c (running). */
#ifndef HOLDFAST_TEXT_AUTOMATON_INT_H
#define HOLDFAST_TEXT_AUTOMATON_INT_H

#include <stdatomic.h>

#include "text/grammar_int.h"

/* The vocabulary's tokens as a trie, its nodes in the order a walk from the root meets them: node i's
 * subtree is [i, next[i]).  The root has no node. */
struct token_trie {
    uint32_t n_nodes, n_tokens, n_words; /* n_words: of a mask */
    uint8_t *byte;                       /* [n_nodes] */
    uint32_t *next;                      /* [n_nodes] */
    token *at;                           /* [n_nodes] a token that ends here, or -1 */
    uint8_t *reach;     /* [n_nodes] bytes of the longest token at it or below, at most 255 */
    token *same;        /* [n_tokens] the next token with the same bytes, or -1 */
    uint32_t max_depth; /* bytes of the longest token */
    token *eog;
    size_t n_eog, eog_cap;
    const struct vocab *vocab;
    atomic_uint refs; /* the owner's and one of each grammar */
};

#define NO_STATE UINT32_MAX
#define BOTTOM 0u /* stack id: nothing below */
#define DEAD 0u   /* set id: no way to go on, and no end */

/* A stack of states: where the automaton is, on top of where it returns to.  Interned, so that equal
 * stacks have equal ids. */
struct gstack {
    uint32_t state, parent;
    uint32_t resume; /* set id of going on from here alone, or DEAD: not known yet */
};

/* What can be said of the tokens from a state without knowing what lies below it on the stack. */
struct local {
    bool known, exits_known;
    uint64_t *bits; /* tokens that may come, or NULL: the list */
    token *list;
    uint32_t n_list;
    uint32_t *exits; /* trie nodes behind which the state's rule may end and more may follow */
    uint32_t n_exits;
};

/* The stacks the automaton may be in after some text.  Interned like them. */
struct gset {
    uint32_t begin, n; /* of set_items: stack ids, ascending */
    bool end;          /* the text may end here (or, above BOTTOM, the rule) */
    uint32_t *next;    /* [256] set id + 1, 0: not known yet; NULL: none is */
    int32_t mask;      /* index of its mask, or -1 */
};

enum { N_MASKS = 128 };

struct grammar {
    atomic_uint refs;
    atomic_bool worn;   /* see grammar_is_worn; written by the thread that runs it */
    atomic_size_t held; /* grammar_bytes, as of the last mask */
    struct token_trie *trie;
    struct arena arena;
    enum rc rc; /* the first failure of building or running */
    struct err err;

    struct gedge *edges; /* after grammar_finish sorted by from */
    size_t n_edges, edges_cap;
    uint32_t n_states;
    struct grule *rules;
    size_t n_rules, rules_cap;
    struct galias {
        uint32_t state, like, room;
    } * aliases;
    size_t n_aliases, aliases_cap;
    uint32_t tail_to, tail[3]; /* grammar_chars: states one, two, three bytes before tail_to */

    uint32_t *first; /* [n_states + 1] into edges */
    uint32_t *skip;  /* [n_states] where nothing but an empty edge leads */
    bool *final;     /* [n_states] some rule's final state */
    bool *reads;     /* [n_states] has byte edges */
    uint32_t *like;  /* [n_states] whose tokens it shares, mostly itself */
    uint32_t *near;  /* [n_states] whose tokens it shares for the most part, or NO_STATE */
    uint32_t *room;  /* [n_states] with near: those up to so many bytes; 0: see grammar_near */
    uint32_t start, start_lead; /* set ids: at once, behind up to two newlines */

    struct gstack *stacks;
    size_t n_stacks, stacks_cap;
    uint32_t *stack_table; /* open addressing: stack id or 0 */
    uint32_t stack_mask;
    uint32_t *seen; /* [stacks_cap] closure in which it was met last */
    size_t seen_cap;
    uint32_t epoch;
    uint32_t *todo, *found; /* scratch of a closure */
    size_t todo_cap, found_cap;

    struct gset *sets;
    size_t n_sets, sets_cap;
    uint32_t *set_items;
    size_t n_set_items, set_items_cap;
    uint32_t *set_table;
    uint32_t set_mask;
    size_t next_bytes; /* of all gset.next */

    struct local *locals; /* [n_states] */
    size_t local_bytes;
    uint64_t *masks; /* [N_MASKS][n_words], a ring; behind it an empty one */
    uint32_t mask_set[N_MASKS];
    uint32_t mask_at;
    uint64_t *waiting; /* [n_words] scratch: the mask before `after` has come */
    uint32_t work;     /* since the last answer */
};

/* Makes the running part ready; root is a rule. */
NODISCARD bool automaton_init(struct grammar *g, uint32_t root, uint32_t root_lead);
void automaton_release(struct grammar *g);

#endif
