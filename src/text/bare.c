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

enum { MAX_BARE_LENGTH = 1000 };

struct marks {
    uint32_t n;
    uint8_t next[BARE_NODES][128]; /* complete: over any byte below 128 */
    uint8_t fail[BARE_NODES];
    uint8_t depth[BARE_NODES]; /* bytes of the longest beginning of `end` that the text ends with */
    uint8_t verdict[BARE_NODES]; /* GO_ON, or what the text now ends with */
};
enum { GO_ON, AT_END, AT_NEVER };

static uint8_t add_mark(struct marks *m, const char *mark, bool is_end)
{
    uint8_t at = 0;
    for (; *mark; mark++) {
        uint8_t *const to = &m->next[at][(uint8_t)*mark];
        if (!*to) {
            CHECK(m->n < BARE_NODES);
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
    uint8_t queue[BARE_NODES];
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
    uint32_t to, stop;
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
    if (p->stop != NO_STOP)
        grammar_empty_edge(p->g, from, p->stop);
}

void grammar_bare_text(struct grammar *g, const struct bare_marks *k, uint32_t from, uint32_t min,
                       uint32_t max, uint32_t to, uint32_t stop, uint32_t *like)
{
    const uint32_t limit = max == GTREE_NO_END ? min : max;
    const bool free = max == GTREE_NO_END && !min;
    if (limit > MAX_BARE_LENGTH) {
        grammar_fail(g, RC_LIMIT, "a limit on length above %d is not supported in XML calls",
                     MAX_BARE_LENGTH);
        return;
    }
    struct marks *const m = mem_zalloc(sizeof *m);
    m->n = 1;
    for (size_t i = 0; i < k->n_never; i++)
        m->verdict[add_mark(m, k->never[i], false)] = AT_NEVER;
    m->verdict[add_mark(m, k->end, true)] = AT_END;
    complete(m);
    const size_t n = ((size_t)limit + 1) * m->n;
    struct product p = {.g = g,
                        .m = m,
                        .min = min,
                        .max = max,
                        .n_counts = limit + 1,
                        .to = to,
                        .stop = stop,
                        .state = mem_try_array(n, sizeof *p.state),
                        .todo = mem_try_array(n, sizeof *p.todo)};
    if (!p.state || !p.todo)
        grammar_fail(g, RC_NOMEM, "no memory for the grammar");
    else
        grammar_empty_edge(g, from, place(&p, 0, 0));
    while (p.n_todo && !grammar_failed(g)) {
        const uint32_t i = p.todo[--p.n_todo];
        const uint32_t node = i % m->n, count = i / m->n, ahead = count + m->depth[node];
        edges(&p, i);
        if (free)
            grammar_near(g, p.state[i] - 1, p.state[0] - 1);
        else if (like && like[node] && count >= min && ahead <= max)
            grammar_alias(g, p.state[i] - 1, like[node] - 1, max - ahead);
    }
    if (free && like && p.state)
        memcpy(like, p.state, m->n * sizeof *like);
    mem_free(p.state);
    mem_free(p.todo);
    mem_free(m);
}
