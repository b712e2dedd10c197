/* automaton.c - runs a grammar over bytes and computes masks.
 *
 * A *stack* is a state on top of the states to return to; a *set* is all the stacks that a text may have
 * led to.  Both are interned, and a set remembers where each byte leads, so that the same place is
 * worked out once: after some tokens this is a deterministic automaton for the part of the language
 * that occurs.
 *
 * The mask of a set is put together from its stacks.  For a stack's top state alone (`struct local`) it is
 * known, whatever lies below, which tokens stay inside the state's rule, and after which trie nodes the
 * rule may end.  Only what follows these nodes has to be walked with the rest of the stack.  So the
 * large walk, over nearly all tokens inside a JSON string, happens once per grammar and not once
 * per property.  States near another one, such as those inside a mark or a bounded string, are worked out
 * as what differs from it.
 */
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/mem.h"
#include "text/automaton_int.h"

enum {
    WORN_STACKS = 1 << 20,
    WORN_SETS = 1 << 18,
    MAX_STACKS = 1 << 22,
    MAX_SETS = 1 << 20,
    MAX_NEXT_BYTES = 64 << 20,
    MAX_LOCAL_BYTES = 64 << 20,
    MAX_AT_ONCE = 4096,    /* stacks of a set */
    MAX_CLOSURE = 1 << 17, /* stacks looked at for one step */
    MAX_WORK = 1 << 26     /* trie nodes and stacks looked at for one mask: below a second */
};

static void out_of(struct grammar *g, const char *what)
{
    grammar_fail(g, RC_LIMIT, "the output needs more than a million %s of the grammar", what);
}

static void too_much_work(struct grammar *g)
{
    grammar_fail(g, RC_LIMIT, "the grammar is too ambiguous: a mask takes too much work");
}

static void too_many_at_once(struct grammar *g)
{
    grammar_fail(g, RC_LIMIT,
                 "the grammar is too ambiguous: the output may stand at more than %d of its places",
                 MAX_AT_ONCE);
}

static void no_memory(struct grammar *g)
{
    grammar_fail(g, RC_NOMEM, "no memory for the grammar's states");
}

/* ---- stacks ---- */

static uint32_t stack_hash(uint32_t state, uint32_t parent)
{
    const uint64_t k = ((uint64_t)state << 32 | parent) * UINT64_C(0x9e3779b97f4a7c15);
    return (uint32_t)(k >> 32);
}

static bool stack_table_grow(struct grammar *g)
{
    const uint32_t size = g->stack_table ? (g->stack_mask + 1) * 2 : 1024;
    uint32_t *const t = mem_try_array(size, sizeof *t);
    if (!t)
        return false;
    for (uint32_t id = 1; id < g->n_stacks; id++) {
        uint32_t i = stack_hash(g->stacks[id].state, g->stacks[id].parent) & (size - 1);
        while (t[i])
            i = (i + 1) & (size - 1);
        t[i] = id;
    }
    mem_free(g->stack_table);
    g->stack_table = t;
    g->stack_mask = size - 1;
    return true;
}

/* 0 when it failed. */
static uint32_t stack_id(struct grammar *g, uint32_t state, uint32_t parent)
{
    uint32_t i = stack_hash(state, parent) & g->stack_mask;
    for (; g->stack_table[i]; i = (i + 1) & g->stack_mask) {
        const uint32_t id = g->stack_table[i];
        if (g->stacks[id].state == state && g->stacks[id].parent == parent)
            return id;
    }
    if (g->n_stacks == MAX_STACKS) {
        out_of(g, "stacks");
        return 0;
    }
    if (!mem_grow(&g->stacks, &g->stacks_cap, g->n_stacks + 1, sizeof *g->stacks) ||
        (g->n_stacks > g->stack_mask / 2 && !stack_table_grow(g))) {
        no_memory(g);
        return 0;
    }
    const uint32_t id = (uint32_t)g->n_stacks++;
    g->stacks[id] = (struct gstack){state, parent, DEAD};
    for (i = stack_hash(state, parent) & g->stack_mask; g->stack_table[i];)
        i = (i + 1) & g->stack_mask;
    g->stack_table[i] = id;
    return id;
}

/* ---- sets ---- */

static uint64_t set_hash(const uint32_t *items, uint32_t n, bool end)
{
    return XXH3_64bits_withSeed(items, n * sizeof *items, end);
}

static bool set_table_grow(struct grammar *g)
{
    const uint32_t size = g->set_table ? (g->set_mask + 1) * 2 : 256;
    uint32_t *const t = mem_try_array(size, sizeof *t);
    if (!t)
        return false;
    for (uint32_t id = 1; id < g->n_sets; id++) {
        const struct gset *const s = &g->sets[id];
        uint32_t i = (uint32_t)set_hash(g->set_items + s->begin, s->n, s->end) & (size - 1);
        while (t[i])
            i = (i + 1) & (size - 1);
        t[i] = id;
    }
    mem_free(g->set_table);
    g->set_table = t;
    g->set_mask = size - 1;
    return true;
}

static uint32_t set_id(struct grammar *g, const uint32_t *items, uint32_t n, bool end)
{
    if (!n && !end)
        return DEAD;
    const uint64_t hash = set_hash(items, n, end);
    uint32_t i = (uint32_t)hash & g->set_mask;
    for (; g->set_table[i]; i = (i + 1) & g->set_mask) {
        const struct gset *const s = &g->sets[g->set_table[i]];
        if (s->n == n && s->end == end &&
            (!n || !memcmp(g->set_items + s->begin, items, n * sizeof *items)))
            return g->set_table[i];
    }
    if (g->n_sets == MAX_SETS || g->n_set_items > UINT32_MAX - n) {
        out_of(g, "states");
        return DEAD;
    }
    if (!mem_grow(&g->sets, &g->sets_cap, g->n_sets + 1, sizeof *g->sets) ||
        !mem_grow(&g->set_items, &g->set_items_cap, g->n_set_items + n + 1, sizeof *g->set_items) ||
        (g->n_sets > g->set_mask / 2 && !set_table_grow(g))) {
        no_memory(g);
        return DEAD;
    }
    const uint32_t id = (uint32_t)g->n_sets++;
    g->sets[id] = (struct gset){.begin = (uint32_t)g->n_set_items, .n = n, .end = end, .mask = -1};
    if (n)
        memcpy(g->set_items + g->n_set_items, items, n * sizeof *items);
    g->n_set_items += n;
    for (i = (uint32_t)hash & g->set_mask; g->set_table[i];)
        i = (i + 1) & g->set_mask;
    g->set_table[i] = id;
    return id;
}

/* A closure under way: stacks still to be looked at, those found that read a byte. */
struct closure {
    size_t n_todo, n_found;
    bool end;
};

static void closure_begin(struct grammar *g, struct closure *c)
{
    *c = (struct closure){0};
    g->epoch++;
}

/* Adds what is at `state` above parent, unless it was met. */
static void closure_add(struct grammar *g, struct closure *c, uint32_t state, uint32_t parent)
{
    state = g->skip[state];
    const uint32_t id = stack_id(g, state, parent);
    if (!id)
        return;
    if (id >= g->seen_cap) {
        const size_t before = g->seen_cap;
        if (!mem_grow(&g->seen, &g->seen_cap, (size_t)id + 1, sizeof *g->seen)) {
            no_memory(g);
            return;
        }
        memset(g->seen + before, 0, (g->seen_cap - before) * sizeof *g->seen);
    }
    if (g->seen[id] == g->epoch)
        return;
    g->seen[id] = g->epoch;
    if (!mem_grow(&g->todo, &g->todo_cap, c->n_todo + 1, sizeof *g->todo))
        no_memory(g);
    else
        g->todo[c->n_todo++] = id;
}

static int ascending(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

/* Follows empty edges, calls and returns; the set of all that then reads a byte. */
static uint32_t closure_end(struct grammar *g, struct closure *c)
{
    for (size_t n = 0; c->n_todo && !g->rc; n++) {
        const uint32_t id = g->todo[--c->n_todo];
        if (c->n_found == MAX_AT_ONCE)
            too_many_at_once(g);
        else if (n == MAX_CLOSURE || g->work++ > MAX_WORK)
            too_much_work(g);
        const uint32_t state = g->stacks[id].state, parent = g->stacks[id].parent;
        if (g->final[state]) {
            if (parent == BOTTOM)
                c->end = true;
            else
                closure_add(g, c, g->stacks[parent].state, g->stacks[parent].parent);
        }
        for (uint32_t i = g->first[state]; i < g->first[state + 1]; i++) {
            const struct gedge e = g->edges[i];
            if (e.kind == EDGE_EMPTY) {
                closure_add(g, c, e.to, parent);
            } else if (e.kind == EDGE_CALL) {
                /* where nothing but returning is left to do, return to the caller's caller */
                const uint32_t back = g->skip[e.to];
                const bool last = g->final[back] && g->first[back] == g->first[back + 1];
                const uint32_t below = last ? parent : stack_id(g, back, parent);
                closure_add(g, c, g->rules[e.rule].start, below);
            }
        }
        if (!g->reads[state])
            continue;
        if (!mem_grow(&g->found, &g->found_cap, c->n_found + 1, sizeof *g->found))
            no_memory(g);
        else
            g->found[c->n_found++] = id;
    }
    if (g->rc)
        return DEAD;
    if (c->n_found > 1)
        qsort(g->found, c->n_found, sizeof *g->found, ascending);
    return set_id(g, g->found, (uint32_t)c->n_found, c->end);
}

/* Going on from one stack alone. */
static uint32_t resume(struct grammar *g, uint32_t id)
{
    if (g->stacks[id].resume == DEAD) {
        struct closure c;
        closure_begin(g, &c);
        closure_add(g, &c, g->stacks[id].state, g->stacks[id].parent);
        const uint32_t set = closure_end(g, &c);
        g->stacks[id].resume = set;
    }
    return g->stacks[id].resume;
}

static void forget_steps(struct grammar *g)
{
    for (size_t i = 0; i < g->n_sets; i++) {
        mem_free(g->sets[i].next);
        g->sets[i].next = NULL;
    }
    g->next_bytes = 0;
}

static uint32_t step_anew(struct grammar *g, uint32_t set, uint8_t byte)
{
    struct closure c;
    closure_begin(g, &c);
    for (uint32_t k = 0; k < g->sets[set].n; k++) {
        const struct gstack top = g->stacks[g->set_items[g->sets[set].begin + k]];
        for (uint32_t i = g->first[top.state]; i < g->first[top.state + 1]; i++)
            if (g->edges[i].kind == EDGE_BYTES && byte >= g->edges[i].lo && byte <= g->edges[i].hi)
                closure_add(g, &c, g->edges[i].to, top.parent);
    }
    const uint32_t to = closure_end(g, &c);
    if (g->rc)
        return DEAD;
    if (!g->sets[set].next) {
        const size_t bytes = sizeof(uint32_t) * 256;
        if (g->next_bytes + bytes > MAX_NEXT_BYTES)
            forget_steps(g);
        g->sets[set].next = mem_try_array(256, sizeof(uint32_t));
        if (!g->sets[set].next) {
            no_memory(g);
            return DEAD;
        }
        g->next_bytes += bytes;
    }
    g->sets[set].next[byte] = to + 1;
    return to;
}

static inline uint32_t step(struct grammar *g, uint32_t set, uint8_t byte)
{
    const uint32_t *const next = g->sets[set].next;
    return next && next[byte] ? next[byte] - 1 : step_anew(g, set, byte);
}

/* ---- walks over the vocabulary ---- */

/* Where a walk puts what it finds. */
struct finds {
    uint64_t *bits; /* or, when NULL, list */
    token *list;
    size_t n_list, list_cap;
    uint32_t *exits; /* wanted when exits_cap is not NULL */
    size_t n_exits, exits_cap;
    bool want_exits;
};

static void find_token(struct grammar *g, struct finds *f, token t)
{
    for (; t >= 0; t = g->trie->same[t]) {
        if (f->bits)
            f->bits[t / 64] |= UINT64_C(1) << t % 64;
        else if (mem_grow(&f->list, &f->list_cap, f->n_list + 1, sizeof *f->list))
            f->list[f->n_list++] = t;
        else
            no_memory(g);
    }
}

static void add_exit(struct grammar *g, struct finds *f, uint32_t node)
{
    if (mem_grow(&f->exits, &f->exits_cap, f->n_exits + 1, sizeof *f->exits))
        f->exits[f->n_exits++] = node;
    else
        no_memory(g);
}

struct walk_level {
    uint32_t end, set;
};

/* All tokens of the trie's nodes [begin, end), siblings and below, from a set on. */
static void walk(struct grammar *g, uint32_t begin, uint32_t end, uint32_t set, struct finds *f)
{
    const struct token_trie *const t = g->trie;
    struct walk_level small[64], *path = small;
    if (t->max_depth >= COUNT_OF(small)) {
        path = mem_try_array((size_t)t->max_depth + 1, sizeof *path);
        if (!path) {
            no_memory(g);
            return;
        }
    }
    size_t depth = 0;
    path[0] = (struct walk_level){end, set};
    for (uint32_t i = begin; i < end && !g->rc;) {
        while (i >= path[depth].end)
            depth--;
        if (g->work++ > MAX_WORK)
            too_much_work(g);
        const uint32_t to = step(g, path[depth].set, t->byte[i]);
        if (to == DEAD) {
            i = t->next[i];
            continue;
        }
        if (t->at[i] >= 0)
            find_token(g, f, t->at[i]);
        const bool more = t->next[i] > i + 1;
        if (more && f->want_exits && g->sets[to].end)
            add_exit(g, f, i);
        if (more)
            path[++depth] = (struct walk_level){t->next[i], to};
        i++;
    }
    if (path != small)
        mem_free(path);
}

static void local_release(struct local *l)
{
    mem_free(l->bits);
    mem_free(l->list);
    mem_free(l->exits);
    *l = (struct local){0};
}

/* The set at a state alone. */
static uint32_t set_at(struct grammar *g, uint32_t state)
{
    struct closure c;
    closure_begin(g, &c);
    closure_add(g, &c, state, BOTTOM);
    return closure_end(g, &c);
}

/* What is found from a state of its own, by walking everything. */
static void find_all(struct grammar *g, uint32_t state, struct finds *f)
{
    const struct token_trie *const t = g->trie;
    const uint32_t set = set_at(g, state);
    if (!g->rc)
        walk(g, 0, t->n_nodes, set, f);
    if (g->rc || f->n_list <= (size_t)t->n_words * 2) /* the list is smaller */
        return;
    f->bits = mem_try_array(t->n_words, sizeof *f->bits);
    if (!f->bits) {
        no_memory(g);
        return;
    }
    for (size_t i = 0; i < f->n_list; i++)
        f->bits[f->list[i] / 64] |= UINT64_C(1) << f->list[i] % 64;
    mem_free(f->list);
    f->list = NULL;
    f->list_cap = f->n_list = 0;
}

/* The same by way of what is known of a state near it: only the parts of the trie are walked where the
 * two may differ. */
struct near_walk {
    uint32_t room; /* tokens of so many bytes are the same; 0: those from where the sets are */
    const struct local *base;
    uint32_t exit; /* of base->exits: the first that is not dealt with */
};

/* Subtree of node i: as base has it. */
static void near_same(struct grammar *g, struct near_walk *w, uint32_t end, struct finds *f)
{
    for (; f->want_exits && w->exit < w->base->n_exits && w->base->exits[w->exit] < end; w->exit++)
        add_exit(g, f, w->base->exits[w->exit]);
}

/* Tokens of nodes [i, end) are out. */
static void near_none(const struct grammar *g, struct near_walk *w, uint32_t i, uint32_t end,
                      struct finds *f)
{
    for (; i < end; i++)
        for (token t = g->trie->at[i]; t >= 0; t = g->trie->same[t])
            f->bits[t / 64] &= ~(UINT64_C(1) << t % 64);
    while (w->exit < w->base->n_exits && w->base->exits[w->exit] < end)
        w->exit++;
}

struct near_level {
    uint32_t end, set, base;
};

static void find_near(struct grammar *g, uint32_t state, struct near_walk *w, struct finds *f)
{
    const struct token_trie *const t = g->trie;
    struct near_level *const path = mem_try_array((size_t)t->max_depth + 1, sizeof *path);
    f->bits = mem_try_array(t->n_words, sizeof *f->bits);
    if (!path || !f->bits) {
        no_memory(g);
        mem_free(path);
        return;
    }
    memcpy(f->bits, w->base->bits, t->n_words * sizeof *f->bits);
    size_t depth = 0;
    path[0] = (struct near_level){t->n_nodes, set_at(g, state), DEAD};
    if (!w->room)
        path[0].base = set_at(g, g->near[state]);
    for (uint32_t i = 0; i < t->n_nodes && !g->rc;) {
        while (i >= path[depth].end)
            depth--;
        if (g->work++ > MAX_WORK)
            too_much_work(g);
        const uint32_t next = t->next[i];
        if (w->room && t->reach[i] <= w->room) {
            near_same(g, w, next, f);
            i = next;
            continue;
        }
        const uint32_t to = step(g, path[depth].set, t->byte[i]);
        const uint32_t base = w->room ? DEAD : step(g, path[depth].base, t->byte[i]);
        if (!w->room && to == base) {
            near_same(g, w, next, f);
            i = next;
            continue;
        }
        if (to == DEAD) {
            near_none(g, w, i, next, f);
            i = next;
            continue;
        }
        near_none(g, w, i, i + 1, f);
        if (t->at[i] >= 0)
            find_token(g, f, t->at[i]);
        if (next > i + 1) {
            if (f->want_exits && g->sets[to].end)
                add_exit(g, f, i);
            path[++depth] = (struct near_level){next, to, base};
        }
        i++;
    }
    mem_free(path);
}

/* Shorter than this all is walked: nearly every token is longer than so few bytes. */
enum { MIN_ROOM = 4 };

/* Exits are asked for where something lies below on the stack: text that may end anywhere has one at
 * every node. */
static const struct local *local_of(struct grammar *g, uint32_t state, bool exits)
{
    struct local *const l = &g->locals[state];
    const struct token_trie *const t = g->trie;
    if (l->known && (l->exits_known || !exits))
        return l;
    const uint32_t room = g->room[state], near = g->near[state];
    struct finds f = {.want_exits = exits};
    struct near_walk w = {.room = room};
    if (near != NO_STATE && (!room || room >= MIN_ROOM) && room < 255)
        w.base = local_of(g, g->like[near], exits);
    if (w.base && w.base->bits)
        find_near(g, state, &w, &f);
    else if (!g->rc)
        find_all(g, state, &f);
    if (g->rc) {
        mem_free(f.bits);
        mem_free(f.list);
        mem_free(f.exits);
        return NULL;
    }
    const size_t bytes = (f.bits ? t->n_words * sizeof *f.bits : 0) + f.list_cap * sizeof *f.list +
                         f.exits_cap * sizeof *f.exits;
    if (g->local_bytes + bytes > MAX_LOCAL_BYTES) {
        for (uint32_t s = 0; s < g->n_states; s++)
            local_release(&g->locals[s]);
        g->local_bytes = 0;
    }
    g->local_bytes += bytes;
    local_release(l); /* it was known without exits; its bytes count until all are dropped */
    *l = (struct local){.known = true,
                        .exits_known = exits,
                        .bits = f.bits,
                        .list = f.list,
                        .n_list = (uint32_t)f.n_list,
                        .exits = f.exits,
                        .n_exits = (uint32_t)f.n_exits};
    return l;
}

/* ---- masks ---- */

static void add_stack(struct grammar *g, uint32_t id, uint64_t *bits)
{
    const struct token_trie *const t = g->trie;
    const struct gstack top = g->stacks[id];
    const struct local *const l = local_of(g, g->like[top.state], top.parent != BOTTOM);
    if (!l)
        return;
    for (uint32_t i = 0; l->bits && i < t->n_words; i++)
        bits[i] |= l->bits[i];
    for (uint32_t i = 0; i < l->n_list; i++)
        bits[l->list[i] / 64] |= UINT64_C(1) << l->list[i] % 64;
    if (top.parent == BOTTOM || !l->n_exits)
        return;
    const uint32_t below = resume(g, top.parent);
    struct finds f = {.bits = bits};
    for (uint32_t i = 0; i < l->n_exits && !g->rc; i++)
        walk(g, l->exits[i] + 1, t->next[l->exits[i]], below, &f);
}

static const uint64_t *mask_of(struct grammar *g, uint32_t set)
{
    const struct token_trie *const t = g->trie;
    if (g->sets[set].mask >= 0)
        return g->masks + (size_t)g->sets[set].mask * t->n_words;
    const uint32_t at = g->mask_at;
    if (g->mask_set[at] != DEAD) /* the oldest makes room */
        g->sets[g->mask_set[at]].mask = -1;
    g->mask_set[at] = DEAD;
    uint64_t *const bits = g->masks + (size_t)at * t->n_words;
    memset(bits, 0, t->n_words * sizeof *bits);
    for (uint32_t k = 0; k < g->sets[set].n && !g->rc; k++)
        add_stack(g, g->set_items[g->sets[set].begin + k], bits);
    if (g->rc)
        return NULL;
    for (size_t i = 0; g->sets[set].end && i < t->n_eog; i++)
        bits[t->eog[i] / 64] |= UINT64_C(1) << t->eog[i] % 64;
    g->mask_at = (at + 1) % N_MASKS;
    g->mask_set[at] = set;
    g->sets[set].mask = (int32_t)at;
    return bits;
}

/* ---- life ---- */

static size_t count_bytes(const struct grammar *g)
{
    return g->edges_cap * sizeof *g->edges +
           (size_t)g->n_states * (3 * sizeof(uint32_t) + 2 + sizeof *g->locals) +
           g->stacks_cap * (sizeof *g->stacks + sizeof *g->seen) +
           ((size_t)g->stack_mask + g->set_mask + 2) * sizeof(uint32_t) +
           g->sets_cap * sizeof *g->sets + g->set_items_cap * sizeof *g->set_items + g->next_bytes +
           g->local_bytes + ((size_t)N_MASKS + 2) * g->trie->n_words * sizeof *g->masks +
           g->arena.used;
}

/* For other threads; relaxed: numbers that nothing else hangs on. */
static void tell(struct grammar *g)
{
    atomic_store_explicit(&g->held, count_bytes(g), memory_order_relaxed);
    if (g->n_stacks > WORN_STACKS || g->n_sets > WORN_SETS)
        atomic_store_explicit(&g->worn, true, memory_order_relaxed);
}

size_t grammar_bytes(const struct grammar *g)
{
    return atomic_load_explicit(&g->held, memory_order_relaxed);
}

bool grammar_is_worn(const struct grammar *g)
{
    return atomic_load_explicit(&g->worn, memory_order_relaxed);
}

bool automaton_init(struct grammar *g, uint32_t root, uint32_t root_lead)
{
    g->n_stacks = g->n_sets = 1; /* BOTTOM, DEAD */
    g->locals = mem_try_array(g->n_states, sizeof *g->locals);
    g->masks = mem_try_array(((size_t)N_MASKS + 1) * g->trie->n_words, sizeof *g->masks);
    g->waiting = mem_try_array(g->trie->n_words, sizeof *g->waiting);
    if (!g->locals || !g->masks || !g->waiting || !stack_table_grow(g) || !set_table_grow(g) ||
        !mem_grow(&g->stacks, &g->stacks_cap, 64, sizeof *g->stacks) ||
        !mem_grow(&g->sets, &g->sets_cap, 16, sizeof *g->sets))
        return false;
    g->stacks[BOTTOM] = (struct gstack){0};
    g->sets[DEAD] = (struct gset){.mask = -1};
    for (int lead = 0; lead < 2; lead++) {
        struct closure c;
        closure_begin(g, &c);
        closure_add(g, &c, g->rules[lead ? root_lead : root].start, BOTTOM);
        *(lead ? &g->start_lead : &g->start) = closure_end(g, &c);
    }
    tell(g);
    return true;
}

void automaton_release(struct grammar *g)
{
    if (g->sets)
        forget_steps(g);
    for (uint32_t s = 0; g->locals && s < g->n_states; s++)
        local_release(&g->locals[s]);
    mem_free(g->locals);
    mem_free(g->masks);
    mem_free(g->waiting);
    mem_free(g->stacks);
    mem_free(g->stack_table);
    mem_free(g->seen);
    mem_free(g->todo);
    mem_free(g->found);
    mem_free(g->sets);
    mem_free(g->set_items);
    mem_free(g->set_table);
}

/* ---- states ---- */

struct grammar_state {
    struct grammar *g;
    uint32_t set;
    char *after;    /* what is still waited for, or NULL */
    size_t n_after; /* bytes of it that stand at the end of the output */
    bool ended;
};

enum rc grammar_state_new(struct grammar *g, const char *after, struct grammar_state **out,
                          struct err *err)
{
    struct grammar_state *const s = mem_zalloc(sizeof *s);
    s->g = g;
    s->set = g->start;
    if (after) {
        s->set = g->start_lead;
        const size_t n = strlen(after) + 1;
        s->after = mem_try(n);
        if (!s->after) {
            mem_free(s);
            return err_set(err, RC_NOMEM, "no memory for the grammar's state");
        }
        memcpy(s->after, after, n);
    }
    *out = s;
    return RC_OK;
}

void grammar_state_free(struct grammar_state *s)
{
    if (!s)
        return;
    mem_free(s->after);
    mem_free(s);
}

enum rc grammar_state_copy(const struct grammar_state *s, struct grammar_state **out,
                           struct err *err)
{
    const enum rc rc = grammar_state_new(s->g, s->after, out, err);
    if (rc)
        return rc;
    (*out)->set = s->set;
    (*out)->n_after = s->n_after;
    (*out)->ended = s->ended;
    return RC_OK;
}

/* The failure of running, which may pass: memory comes back, another output needs less. */
static enum rc take_error(struct grammar *g, struct err *err)
{
    const enum rc rc = g->rc;
    if (rc && err)
        *err = g->err;
    g->rc = RC_OK;
    g->work = 0;
    return rc;
}

static inline void clear_bit(uint64_t *bits, token t)
{
    bits[t / 64] &= ~(UINT64_C(1) << t % 64);
}

/* Whether a text may follow `set`. */
static bool fits(struct grammar *g, uint32_t set, const char *p, size_t n)
{
    for (size_t i = 0; i < n && set != DEAD; i++)
        set = step(g, set, (uint8_t)p[i]);
    return set != DEAD;
}

/* Before `after`: anything but the end, and but tokens that complete it and go on with what the grammar
 * does not begin with. */
static const uint64_t *mask_waiting(const struct grammar_state *s)
{
    struct grammar *const g = s->g;
    const struct token_trie *const t = g->trie;
    uint64_t *const bits = g->waiting;
    memset(bits, 0xff, t->n_words * sizeof *bits);
    for (size_t i = 0; i < t->n_eog; i++)
        clear_bit(bits, t->eog[i]);
    /* down the trie along what is left of it, then all that goes on from there */
    const char *const left = s->after + s->n_after;
    const size_t n_left = strlen(left);
    uint32_t at = 0, end = t->n_nodes;
    for (size_t depth = 0; depth < n_left; depth++) {
        while (at < end && t->byte[at] != (uint8_t)left[depth])
            at = t->next[at];
        if (at >= end)
            return bits;
        end = t->next[at++];
    }
    for (uint32_t i = at; i < end; i++)
        for (token id = t->at[i]; id >= 0; id = t->same[id]) {
            const struct str b = vocab_bytes(t->vocab, id, true);
            if (!fits(g, s->set, b.p + n_left, b.n - n_left))
                clear_bit(bits, id);
        }
    return bits;
}

enum rc grammar_mask(struct grammar_state *s, const uint64_t **bits, struct err *err)
{
    struct grammar *const g = s->g;
    if (s->after)
        *bits = mask_waiting(s);
    else if (s->ended) /* behind the end nothing comes: the mask behind the ring stays empty */
        *bits = g->masks + (size_t)N_MASKS * g->trie->n_words;
    else
        *bits = mask_of(g, s->set);
    tell(g);
    return take_error(g, err);
}

static enum rc refuse(const struct grammar_state *s, token t, struct err *err)
{
    (void)s;
    return err_set(err, RC_ARG, "token %d is not what the grammar allows here", t);
}

/* Bytes of a token while `after` is waited for: how many belong to it and what is before. */
static size_t wait_for(struct grammar_state *s, struct str bytes)
{
    const size_t m = strlen(s->after);
    for (size_t i = 0; i < bytes.n; i++) {
        /* the longest beginning of `after` that the output now ends with */
        while (s->n_after && s->after[s->n_after] != bytes.p[i]) {
            size_t k = s->n_after - 1;
            while (k && memcmp(s->after, s->after + s->n_after - k, k) != 0)
                k--;
            s->n_after = k;
        }
        s->n_after += s->after[s->n_after] == bytes.p[i];
        if (s->n_after == m) {
            mem_free(s->after);
            s->after = NULL;
            return i + 1;
        }
    }
    return bytes.n;
}

enum rc grammar_accept(struct grammar_state *s, token t, struct err *err)
{
    struct grammar *const g = s->g;
    const struct vocab *const v = g->trie->vocab;
    if (t < 0 || (uint32_t)t >= g->trie->n_tokens)
        return refuse(s, t, err);
    struct str bytes = vocab_bytes(v, t, true);
    if (s->after) {
        if (vocab_is_eog(v, t))
            return refuse(s, t, err);
        const size_t n = wait_for(s, bytes);
        bytes = (struct str){bytes.p + n, bytes.n - n};
        if (s->after || !bytes.n)
            return RC_OK;
        /* The token went on behind `after`.  If that does not fit (masks let only tokens through that
         * have all of `after` and more in one piece, behind something else), it stays outside. */
        uint32_t set = s->set;
        for (size_t i = 0; i < bytes.n && set != DEAD; i++)
            set = step(g, set, (uint8_t)bytes.p[i]);
        s->set = set == DEAD ? s->set : set;
        return take_error(g, err);
    }
    if (vocab_is_eog(v, t)) {
        if (!grammar_may_end(s))
            return refuse(s, t, err);
        s->ended = true;
        return RC_OK;
    }
    const enum token_type type = vocab_type(v, t);
    if (!bytes.n || s->ended || type == TOKEN_CONTROL || type == TOKEN_UNKNOWN)
        return refuse(s, t, err);
    uint32_t set = s->set;
    for (size_t i = 0; i < bytes.n && set != DEAD; i++)
        set = step(g, set, (uint8_t)bytes.p[i]);
    const enum rc rc = take_error(g, err);
    if (rc)
        return rc;
    if (set == DEAD)
        return refuse(s, t, err);
    s->set = set;
    return RC_OK;
}

bool grammar_may_end(const struct grammar_state *s)
{
    return s->ended || (!s->after && s->g->sets[s->set].end);
}

bool grammar_must_end(const struct grammar_state *s)
{
    return s->ended || (!s->after && s->g->sets[s->set].end && !s->g->sets[s->set].n);
}
