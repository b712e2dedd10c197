/* bare.c - text as it is, up to a mark: string arguments of XML calls, what is said before a call.
 *
 * Which marks a text is in the middle of is the state of Aho and Corasick's automaton over all marks: a
 * trie whose node stands for the longest end of the text that is the beginning of a mark.  Here it is
 * crossed with the number of characters that are surely before the mark, for limits on length.
 */
#include <string.h>

#include "base/mem.h"
#include "text/grammar_int.h"
#include "text/gtree_int.h"

enum { MAX_NODES = 128, MAX_BARE_LENGTH = 1000 };

struct marks {
    uint32_t n;
    uint8_t next[MAX_NODES][128]; /* complete: over any byte below 128 */
    uint8_t fail[MAX_NODES];
    uint8_t depth[MAX_NODES]; /* bytes of the longest beginning of `end` that the text ends with */
    uint8_t verdict[MAX_NODES]; /* GO_ON, or what the text now ends with */
};
enum { GO_ON, AT_END, AT_NEVER };

static uint8_t add_mark(struct marks *m, const char *mark, bool is_end)
{
    uint8_t at = 0;
    for (; *mark; mark++) {
        uint8_t *const to = &m->next[at][(uint8_t)*mark];
        if (!*to) {
            CHECK(m->n < MAX_NODES);
            *to = (uint8_t)m->n++;
        }
        m->depth[*to] = is_end ? (uint8_t)(m->depth[at] + 1) : m->depth[*to];
        at = *to;
    }
    return at;
}

/* Breadth first: a node's failure lies nearer the root and is complete before it. */
static void complete(struct marks *m)
{
    uint8_t queue[MAX_NODES];
    size_t n = 0;
    for (int c = 0; c < 128; c++)
        if (m->next[0][c])
            queue[n++] = m->next[0][c];
    for (size_t i = 0; i < n; i++) {
        const uint8_t u = queue[i], f = m->fail[u];
        if (!m->depth[u])
            m->depth[u] = m->depth[f];
        if (m->verdict[u] == GO_ON)
            m->verdict[u] = m->verdict[f];
        for (int c = 0; c < 128; c++) {
            const uint8_t v = m->next[u][c];
            if (v) {
                m->fail[v] = m->next[f][c];
                queue[n++] = v;
            } else {
                m->next[u][c] = m->next[f][c];
            }
        }
    }
}

/* Where the product stands: chars before the mark (no more than counted), node. */
struct product {
    struct grammar *g;
    const struct marks *m;
    uint32_t min, max, n_counts;
    bool any_end; /* the text may end anywhere */
    uint32_t to;
    uint32_t *state; /* [n_counts][m->n] + 1; 0: not met */
    uint32_t *todo;  /* what was met and has no edges yet */
    size_t n_todo;
};

static uint32_t place(struct product *p, uint32_t count, uint32_t node)
{
    const uint32_t i = MIN(count, p->n_counts - 1) * p->m->n + node;
    if (!p->state[i]) {
        p->state[i] = grammar_state_add(p->g) + 1;
        p->todo[p->n_todo++] = i;
    }
    return p->state[i] - 1;
}

/* Where a byte leads, or -1. */
static int64_t step(struct product *p, uint32_t count, uint32_t node, unsigned c)
{
    const uint32_t v = p->m->next[node][c];
    if ((c < 0x20 && c != '\t' && c != '\n' && c != '\r') || p->m->verdict[v] == AT_NEVER)
        return -1;
    if (p->m->verdict[v] == AT_END)
        return count >= p->min ? (int64_t)p->to : -1;
    const uint32_t now = count + p->m->depth[node] + 1 - p->m->depth[v];
    return now > p->max ? -1 : (int64_t)place(p, now, v);
}

static void edges(struct product *p, uint32_t i)
{
    static const struct grange beyond = {0x80, 0x10ffff};
    const uint32_t count = i / p->m->n, node = i % p->m->n, from = p->state[i] - 1;
    for (unsigned lo = 0, hi; lo < 128; lo = hi + 1) {
        const int64_t to = step(p, count, node, lo);
        for (hi = lo; hi + 1 < 128 && step(p, count, node, hi + 1) == to; hi++)
            ;
        if (to >= 0)
            grammar_bytes_edge(p->g, from, (uint8_t)lo, (uint8_t)hi, (uint32_t)to);
    }
    const uint32_t now = count + p->m->depth[node] + 1;
    if (now <= p->max)
        grammar_chars(p->g, from, &beyond, 1, false, place(p, now, 0));
    if (p->any_end)
        grammar_empty_edge(p->g, from, p->to);
}

/* min to max characters from `from` to `to`; like: the states of the same text without limits. */
static void build(struct grammar *g, const struct marks *m, uint32_t from, uint32_t min,
                  uint32_t max, bool any_end, uint32_t to, uint32_t *state, const uint32_t *like)
{
    const bool bounded = max != GTREE_NO_END;
    struct product p = {.g = g,
                        .m = m,
                        .min = min,
                        .max = max,
                        .n_counts = (bounded ? max : min) + 1,
                        .any_end = any_end,
                        .to = to,
                        .state = state};
    p.todo = mem_try_array((size_t)p.n_counts * m->n, sizeof *p.todo);
    if (!p.todo) {
        grammar_fail(g, RC_NOMEM, "no memory for the grammar");
        return;
    }
    grammar_empty_edge(g, from, place(&p, 0, 0));
    while (p.n_todo && !grammar_failed(g)) {
        const uint32_t i = p.todo[--p.n_todo];
        const uint32_t count = i / m->n, ahead = count + m->depth[i % m->n];
        edges(&p, i);
        if (like && like[i % m->n] && count >= min && ahead <= max)
            grammar_alias(g, p.state[i] - 1, like[i % m->n] - 1, max - ahead);
    }
    mem_free(p.todo);
}

void grammar_bare_text(struct grammar *g, uint32_t from, const char *end, const char *const *never,
                       size_t n_never, uint32_t min, uint32_t max, uint32_t to)
{
    const bool bounded = max != GTREE_NO_END;
    if ((bounded ? max : min) > MAX_BARE_LENGTH) {
        grammar_fail(g, RC_LIMIT, "a limit on length above %d is not supported in XML calls",
                     MAX_BARE_LENGTH);
        return;
    }
    struct marks *const m = mem_zalloc(sizeof *m);
    m->n = 1;
    for (size_t i = 0; i < n_never; i++)
        m->verdict[add_mark(m, never[i], false)] = AT_NEVER;
    if (end)
        m->verdict[add_mark(m, end, true)] = AT_END;
    complete(m);
    const size_t n_counts = (size_t)(bounded ? max : min) + 1;
    uint32_t *const state = mem_try_array(n_counts * m->n, sizeof *state);
    uint32_t *const like = bounded ? mem_try_array(m->n, sizeof *like) : NULL;
    if (!state || (bounded && !like)) {
        grammar_fail(g, RC_NOMEM, "no memory for the grammar");
    } else {
        if (bounded) /* reached from nowhere: there to be like */
            build(g, m, grammar_state_add(g), 0, GTREE_NO_END, !end, to, like, NULL);
        build(g, m, from, min, max, !end, to, state, like);
    }
    mem_free(state);
    mem_free(like);
    mem_free(m);
}
