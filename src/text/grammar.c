/* grammar.c - builds automata: states, edges, characters; checks them when they are whole. */
#include "text/grammar.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "text/automaton_int.h"

enum { MAX_STATES = 1 << 20, MAX_EDGES = 1 << 22 };

struct grammar *grammar_new(struct token_trie *t)
{
    struct grammar *const g = mem_zalloc(sizeof *g);
    atomic_init(&g->refs, 1);
    atomic_init(&g->worn, false);
    atomic_init(&g->held, 0);
    atomic_fetch_add_explicit(&t->refs, 1, memory_order_relaxed);
    g->trie = t;
    g->tail_to = NO_STATE;
    arena_init(&g->arena, 0);
    return g;
}

void grammar_ref(struct grammar *g)
{
    atomic_fetch_add_explicit(&g->refs, 1, memory_order_relaxed);
}

void grammar_free(struct grammar *g)
{
    /* release: what this holder wrote is done; acquire: the one who frees sees all of it */
    if (!g || atomic_fetch_sub_explicit(&g->refs, 1, memory_order_acq_rel) != 1)
        return;
    automaton_release(g);
    mem_free(g->edges);
    mem_free(g->rules);
    mem_free(g->aliases);
    mem_free(g->first);
    mem_free(g->skip);
    mem_free(g->final);
    mem_free(g->reads);
    mem_free(g->like);
    mem_free(g->near);
    mem_free(g->room);
    arena_release(&g->arena);
    token_trie_free(g->trie);
    mem_free(g);
}

void grammar_fail(struct grammar *g, enum rc rc, const char *fmt, ...)
{
    char msg[sizeof g->err.msg];
    va_list ap;
    if (g->rc)
        return;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    g->rc = err_set(&g->err, rc, "%s", msg);
}

bool grammar_failed(const struct grammar *g)
{
    return g->rc != RC_OK;
}

struct arena *grammar_arena(struct grammar *g)
{
    return &g->arena;
}

uint32_t grammar_state_add(struct grammar *g)
{
    if (g->n_states == MAX_STATES)
        grammar_fail(g, RC_LIMIT, "the grammar has more than %d states", MAX_STATES);
    return grammar_failed(g) ? 0 : g->n_states++;
}

uint32_t grammar_rule(struct grammar *g, const char *name)
{
    const char *const kept = arena_strndup(&g->arena, name, strlen(name));
    const uint32_t start = grammar_state_add(g), final = grammar_state_add(g);
    if (!kept || !mem_grow(&g->rules, &g->rules_cap, g->n_rules + 1, sizeof *g->rules)) {
        grammar_fail(g, RC_NOMEM, "no memory for the grammar");
        return 0;
    }
    g->rules[g->n_rules] = (struct grule){start, final, kept};
    return (uint32_t)g->n_rules++;
}

struct grule grammar_rule_at(const struct grammar *g, uint32_t rule)
{
    return rule < g->n_rules ? g->rules[rule] : (struct grule){0, 0, ""};
}

static void edge(struct grammar *g, struct gedge e)
{
    if (grammar_failed(g))
        return;
    if (g->n_edges == MAX_EDGES)
        grammar_fail(g, RC_LIMIT, "the grammar has more than %d edges", MAX_EDGES);
    else if (!mem_grow(&g->edges, &g->edges_cap, g->n_edges + 1, sizeof *g->edges))
        grammar_fail(g, RC_NOMEM, "no memory for the grammar");
    else
        g->edges[g->n_edges++] = e;
}

void grammar_bytes_edge(struct grammar *g, uint32_t from, uint8_t lo, uint8_t hi, uint32_t to)
{
    edge(g, (struct gedge){.from = from, .to = to, .kind = EDGE_BYTES, .lo = lo, .hi = hi});
}

void grammar_empty_edge(struct grammar *g, uint32_t from, uint32_t to)
{
    edge(g, (struct gedge){.from = from, .to = to, .kind = EDGE_EMPTY});
}

void grammar_call_edge(struct grammar *g, uint32_t from, uint32_t rule, uint32_t to)
{
    edge(g, (struct gedge){.from = from, .to = to, .kind = EDGE_CALL, .rule = rule});
}

void grammar_text(struct grammar *g, uint32_t from, struct str text, uint32_t to)
{
    if (!text.n)
        grammar_empty_edge(g, from, to);
    for (size_t i = 0; i < text.n; i++) {
        const uint32_t next = i + 1 < text.n ? grammar_state_add(g) : to;
        grammar_bytes_edge(g, from, (uint8_t)text.p[i], (uint8_t)text.p[i], next);
        from = next;
    }
}

static int by_bytes(const void *a, const void *b)
{
    const struct str *const x = a, *const y = b;
    const size_t n = MIN(x->n, y->n);
    const int c = n ? memcmp(x->p, y->p, n) : 0;
    return c ? c : x->n < y->n ? -1 : x->n > y->n;
}

void grammar_texts(struct grammar *g, uint32_t from, struct str *texts, size_t n, uint32_t to)
{
    size_t longest = 0;
    for (size_t i = 0; i < n; i++)
        longest = MAX(longest, texts[i].n);
    uint32_t *const path = mem_try_array(longest + 1, sizeof *path); /* states of the text before */
    if (!path) {
        grammar_fail(g, RC_NOMEM, "no memory for the grammar");
        return;
    }
    qsort(texts, n, sizeof *texts, by_bytes);
    path[0] = from;
    for (size_t i = 0; i < n && !grammar_failed(g); i++) {
        const struct str t = texts[i], before = i ? texts[i - 1] : (struct str){NULL, 0};
        size_t at = 0;
        while (at < MIN(t.n, before.n) && t.p[at] == before.p[at])
            at++;
        if (i && at == t.n) /* the same once more */
            continue;
        for (; at < t.n; at++) {
            path[at + 1] = grammar_state_add(g);
            grammar_bytes_edge(g, path[at], (uint8_t)t.p[at], (uint8_t)t.p[at], path[at + 1]);
        }
        grammar_empty_edge(g, path[t.n], to);
    }
    mem_free(path);
}

/* The state from which n continuation bytes lead to `to`. */
static uint32_t tail(struct grammar *g, size_t n, uint32_t to)
{
    if (!n)
        return to;
    if (g->tail_to != to) {
        g->tail_to = to;
        memset(g->tail, 0xff, sizeof g->tail);
    }
    if (g->tail[n - 1] == NO_STATE) {
        const uint32_t s = grammar_state_add(g);
        grammar_bytes_edge(g, s, 0x80, 0xbf, tail(g, n - 1, to));
        g->tail[n - 1] = s;
    }
    return g->tail[n - 1];
}

static bool all_bytes(const uint8_t *p, size_t n, uint8_t b)
{
    for (size_t i = 0; i < n; i++)
        if (p[i] != b)
            return false;
    return true;
}

/* Byte strings of one length n, from lo to hi, whose continuation bytes run from 0x80 to 0xBF: the
 * ends are split off until the middle is a product of ranges. */
static void utf8_between(struct grammar *g, uint32_t from, const uint8_t *lo, const uint8_t *hi,
                         size_t n, uint32_t to)
{
    static const uint8_t least[3] = {0x80, 0x80, 0x80}, most[3] = {0xbf, 0xbf, 0xbf};
    CHECK(n >= 1 && n <= 4);
    if (n == 1) {
        grammar_bytes_edge(g, from, lo[0], hi[0], to);
        return;
    }
    if (lo[0] == hi[0]) {
        const uint32_t mid = grammar_state_add(g);
        grammar_bytes_edge(g, from, lo[0], lo[0], mid);
        utf8_between(g, mid, lo + 1, hi + 1, n - 1, to);
        return;
    }
    uint8_t first = lo[0], last = hi[0];
    if (!all_bytes(lo + 1, n - 1, 0x80)) {
        const uint32_t mid = grammar_state_add(g);
        grammar_bytes_edge(g, from, first, first, mid);
        utf8_between(g, mid, lo + 1, most, n - 1, to);
        first++;
    }
    if (!all_bytes(hi + 1, n - 1, 0xbf)) {
        const uint32_t mid = grammar_state_add(g);
        grammar_bytes_edge(g, from, last, last, mid);
        utf8_between(g, mid, least, hi + 1, n - 1, to);
        last--;
    }
    if (first <= last)
        grammar_bytes_edge(g, from, first, last, tail(g, n - 1, to));
}

static void code_points(struct grammar *g, uint32_t from, uint32_t lo, uint32_t hi, uint32_t to)
{
    static const uint32_t tops[] = {0x7f, 0x7ff, 0xd7ff, 0xdfff, 0xffff, 0x10ffff};
    for (size_t i = 0; i < COUNT_OF(tops) && lo <= hi; i++) {
        const uint32_t top = MIN(hi, tops[i]);
        if (lo > top)
            continue;
        char a[4], b[4];
        const size_t n = utf8_encode(lo, a);
        (void)utf8_encode(top, b);
        if (tops[i] != 0xdfff) /* surrogates are no characters */
            utf8_between(g, from, (const uint8_t *)a, (const uint8_t *)b, n, to);
        lo = top + 1;
    }
}

void grammar_chars(struct grammar *g, uint32_t from, const struct grange *r, size_t n, bool negated,
                   uint32_t to)
{
    if (!negated) {
        for (size_t i = 0; i < n; i++)
            code_points(g, from, r[i].lo, r[i].hi, to);
        return;
    }
    uint32_t at = 0; /* everything below is dealt with */
    while (at <= 0x10ffff) {
        uint32_t next = 0x110000; /* where the first range at or above begins */
        uint32_t end = at;        /* behind the ranges that cover at */
        for (size_t i = 0; i < n; i++) {
            if (r[i].lo <= at && r[i].hi >= at)
                end = MAX(end, r[i].hi + 1);
            else if (r[i].lo > at)
                next = MIN(next, r[i].lo);
        }
        if (end > at) {
            at = end;
            continue;
        }
        code_points(g, from, at, next - 1, to);
        at = next;
    }
}

void grammar_near(struct grammar *g, uint32_t s, uint32_t base)
{
    if (s != base)
        grammar_alias(g, s, base, 0);
}

void grammar_alias(struct grammar *g, uint32_t s, uint32_t like, uint32_t room)
{
    if (grammar_failed(g))
        return;
    if (!mem_grow(&g->aliases, &g->aliases_cap, g->n_aliases + 1, sizeof *g->aliases))
        grammar_fail(g, RC_NOMEM, "no memory for the grammar");
    else
        g->aliases[g->n_aliases++] = (struct galias){s, like, room};
}

/* ---- checking and finishing ---- */

/* Sorts edges by their origin and fills first. */
static bool sort_edges(struct grammar *g)
{
    struct gedge *const sorted = mem_try_array(g->n_edges + 1, sizeof *sorted);
    g->first = mem_try_array((size_t)g->n_states + 2, sizeof *g->first);
    if (!sorted || !g->first) {
        mem_free(sorted);
        return false;
    }
    for (size_t i = 0; i < g->n_edges; i++)
        g->first[g->edges[i].from + 1]++;
    for (uint32_t s = 0; s < g->n_states; s++)
        g->first[s + 1] += g->first[s];
    for (size_t i = 0; i < g->n_edges; i++)
        sorted[g->first[g->edges[i].from]++] = g->edges[i];
    for (uint32_t s = g->n_states; s > 0; s--) /* each has moved to its end */
        g->first[s] = g->first[s - 1];
    g->first[0] = 0;
    mem_free(g->edges);
    g->edges = sorted;
    g->edges_cap = g->n_edges;
    return true;
}

static bool mark_states(struct grammar *g)
{
    g->skip = mem_try_array(g->n_states, sizeof *g->skip);
    g->final = mem_try_zalloc(g->n_states);
    g->reads = mem_try_zalloc(g->n_states);
    g->like = mem_try_array(g->n_states, sizeof *g->like);
    g->near = mem_try_array(g->n_states, sizeof *g->near);
    g->room = mem_try_array(g->n_states, sizeof *g->room);
    if (!g->skip || !g->final || !g->reads || !g->like || !g->near || !g->room)
        return false;
    for (size_t i = 0; i < g->n_rules; i++)
        g->final[g->rules[i].final] = true;
    for (uint32_t s = 0; s < g->n_states; s++) {
        g->like[s] = s;
        g->near[s] = NO_STATE;
        for (uint32_t i = g->first[s]; i < g->first[s + 1]; i++)
            g->reads[s] |= g->edges[i].kind == EDGE_BYTES;
    }
    for (uint32_t s = 0; s < g->n_states; s++) {
        uint32_t t = s;
        for (uint32_t steps = 0; steps < g->n_states; steps++) {
            const uint32_t i = g->first[t];
            if (g->final[t] || g->first[t + 1] - i != 1 || g->edges[i].kind != EDGE_EMPTY)
                break;
            t = g->edges[i].to;
        }
        g->skip[s] = t;
    }
    for (size_t i = 0; i < g->n_aliases; i++) {
        const struct galias a = g->aliases[i];
        if (a.room >= g->trie->max_depth) {
            g->like[a.state] = a.like;
        } else {
            g->near[a.state] = a.like;
            g->room[a.state] = a.room;
        }
    }
    return true;
}

/* nullable[rule]: it may be nothing. */
static bool find_nullable(const struct grammar *g, bool *nullable)
{
    uint32_t *const todo = mem_try_array((size_t)g->n_states + 1, sizeof *todo);
    uint32_t *const seen = mem_try_array((size_t)g->n_states + 1, sizeof *seen);
    uint32_t round = 0;
    if (todo && seen)
        for (bool changed = true; changed;) {
            changed = false;
            for (uint32_t rule = 0; rule < g->n_rules; rule++) {
                if (nullable[rule])
                    continue;
                size_t n = 0;
                round++;
                todo[n++] = g->rules[rule].start;
                seen[g->rules[rule].start] = round;
                while (n && !nullable[rule]) {
                    const uint32_t s = todo[--n];
                    changed |= nullable[rule] = s == g->rules[rule].final;
                    for (uint32_t i = g->first[s]; i < g->first[s + 1]; i++) {
                        const struct gedge *const e = &g->edges[i];
                        if (e->kind == EDGE_BYTES || (e->kind == EDGE_CALL && !nullable[e->rule]) ||
                            seen[e->to] == round)
                            continue;
                        seen[e->to] = round;
                        todo[n++] = e->to;
                    }
                }
            }
        }
    mem_free(todo);
    mem_free(seen);
    return todo && seen;
}

/* A rule that calls itself before it reads a byte would never end.  In the graph of what is reached
 * without reading (empty edges, calls, and past calls of nullable rules) that is a call within one
 * strongly connected component.  Tarjan's algorithm, with its own stack. */
struct visit {
    uint32_t state, edge;
    bool past; /* of a nullable call: its start was looked at, now what follows it */
};

static bool find_left_recursion(struct grammar *g, const bool *nullable, uint32_t *component)
{
    const uint32_t n = g->n_states;
    uint32_t *const index = mem_try_array((size_t)n + 1, sizeof *index);
    uint32_t *const low = mem_try_array((size_t)n + 1, sizeof *low);
    uint32_t *const open = mem_try_array((size_t)n + 1, sizeof *open);
    struct visit *const path = mem_try_array((size_t)n + 1, sizeof *path);
    const bool ok = index && low && open && path;
    uint32_t counter = 0, n_open = 0, n_components = 0;
    for (uint32_t root = 0; ok && root < n; root++) {
        uint32_t depth = 0;
        if (index[root])
            continue;
        path[depth++] = (struct visit){root, g->first[root], false};
        index[root] = low[root] = ++counter;
        open[n_open++] = root;
        while (depth) {
            struct visit *const v = &path[depth - 1];
            const uint32_t s = v->state;
            uint32_t to = NO_STATE;
            if (v->edge < g->first[s + 1]) {
                const struct gedge *const e = &g->edges[v->edge];
                if (e->kind == EDGE_EMPTY || v->past) {
                    to = e->to;
                    v->past = false;
                    v->edge++;
                } else if (e->kind == EDGE_CALL) {
                    to = g->rules[e->rule].start;
                    v->past = nullable[e->rule];
                    v->edge += !v->past;
                } else {
                    v->edge++;
                }
                if (to == NO_STATE)
                    continue;
                if (!index[to]) {
                    index[to] = low[to] = ++counter;
                    open[n_open++] = to;
                    path[depth++] = (struct visit){to, g->first[to], false};
                } else if (!component[to]) {
                    low[s] = MIN(low[s], index[to]);
                }
                continue;
            }
            if (low[s] == index[s]) {
                n_components++;
                for (uint32_t t = NO_STATE; t != s;) {
                    t = open[--n_open];
                    component[t] = n_components;
                }
            }
            if (--depth)
                low[path[depth - 1].state] = MIN(low[path[depth - 1].state], low[s]);
        }
    }
    for (size_t i = 0; ok && i < g->n_edges; i++) {
        const struct gedge *const e = &g->edges[i];
        if (e->kind == EDGE_CALL && component[e->from] == component[g->rules[e->rule].start])
            grammar_fail(g, RC_UNSUPPORTED, "rule '%s' is left-recursive", g->rules[e->rule].name);
    }
    mem_free(index);
    mem_free(low);
    mem_free(open);
    mem_free(path);
    return ok;
}

static bool check(struct grammar *g)
{
    bool *const nullable = mem_try_zalloc(g->n_rules + 1);
    uint32_t *const component = mem_try_array((size_t)g->n_states + 1, sizeof *component);
    const bool ok = nullable && component && find_nullable(g, nullable) &&
                    find_left_recursion(g, nullable, component);
    mem_free(nullable);
    mem_free(component);
    return ok;
}

enum rc grammar_finish(struct grammar *g, uint32_t root, struct grammar **out, struct err *err)
{
    /* the same behind up to two newlines, as they follow a </think> */
    const uint32_t lead = grammar_rule(g, "lead");
    const uint32_t one = grammar_state_add(g), two = grammar_state_add(g);
    const struct grule r = grammar_rule_at(g, lead);
    grammar_bytes_edge(g, r.start, '\n', '\n', one);
    grammar_bytes_edge(g, one, '\n', '\n', two);
    grammar_call_edge(g, r.start, root, r.final);
    grammar_call_edge(g, one, root, r.final);
    grammar_call_edge(g, two, root, r.final);
    if (!g->rc && (!sort_edges(g) || !mark_states(g) || !check(g)))
        grammar_fail(g, RC_NOMEM, "no memory for the grammar");
    if (!g->rc && !automaton_init(g, root, lead))
        grammar_fail(g, RC_NOMEM, "no memory for the grammar");
    if (!g->rc) {
        *out = g;
        return RC_OK;
    }
    const enum rc rc = g->rc;
    if (err)
        *err = g->err;
    grammar_free(g);
    return rc;
}
