#include "text/gtree_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"

struct gnode *gnode_new(struct grammar *g, enum gnode_kind kind)
{
    struct gnode *const n = grammar_failed(g) ? NULL : arena_try(grammar_arena(g), sizeof *n);
    if (n)
        n->kind = kind;
    else
        grammar_fail(g, RC_NOMEM, "no memory for the grammar");
    return n;
}

void gnode_add(struct gnode *of, struct gnode *kid)
{
    if (!of || !kid)
        return;
    *(of->last ? &of->last->next : &of->kids) = kid;
    of->last = kid;
}

void gnode_range(struct grammar *g, struct gnode *of, uint32_t lo, uint32_t hi)
{
    if (!of)
        return;
    if (of->n_ranges == of->ranges_cap) {
        const size_t cap = of->ranges_cap ? of->ranges_cap * 2 : 4;
        struct grange *const wider = arena_try(grammar_arena(g), cap * sizeof *wider);
        if (!wider) {
            grammar_fail(g, RC_NOMEM, "no memory for the grammar");
            return;
        }
        if (of->n_ranges)
            memcpy(wider, of->ranges, of->n_ranges * sizeof *wider);
        of->ranges = wider;
        of->ranges_cap = cap;
    }
    of->ranges[of->n_ranges++] = (struct grange){lo, hi};
}

static int by_lo(const void *a, const void *b)
{
    const struct grange *const x = a, *const y = b;
    return x->lo < y->lo ? -1 : x->lo > y->lo;
}

void gnode_complement(struct grammar *g, struct gnode *n)
{
    if (!n || grammar_failed(g))
        return;
    struct gnode out = {0};
    uint32_t at = 0;
    if (n->n_ranges)
        qsort(n->ranges, n->n_ranges, sizeof *n->ranges, by_lo);
    for (size_t i = 0; i < n->n_ranges; i++) {
        if (n->ranges[i].lo > at)
            gnode_range(g, &out, at, n->ranges[i].lo - 1);
        at = MAX(at, n->ranges[i].hi + 1);
    }
    if (at <= 0x10ffff)
        gnode_range(g, &out, at, 0x10ffff);
    n->ranges = out.ranges;
    n->n_ranges = out.n_ranges;
    n->ranges_cap = out.ranges_cap;
}

/* One character as JSON writes it; false when it stands for itself. */
static bool json_escape(uint32_t cp, char out[8])
{
    static const char plain[] = "\"\\\b\f\n\r\t", shown[] = "\"\\bfnrt";
    const char *const e = cp && cp < 0x80 ? strchr(plain, (int)cp) : NULL;
    if (e)
        snprintf(out, 8, "\\%c", shown[e - plain]);
    else if (cp < 0x20)
        snprintf(out, 8, "\\u%04x", cp);
    else
        return false;
    return true;
}

static bool in_class(const struct gnode *n, uint32_t cp)
{
    for (size_t i = 0; i < n->n_ranges; i++)
        if (cp >= n->ranges[i].lo && cp <= n->ranges[i].hi)
            return !n->negated;
    return n->negated;
}

static void build_class(struct grammar *g, const struct gnode *n, bool json, uint32_t from,
                        uint32_t to)
{
    if (!json) {
        grammar_chars(g, from, n->ranges, n->n_ranges, n->negated, to);
        return;
    }
    /* What is escaped is taken out and put in again in its escaped form. */
    static const struct grange special[] = {{0, 0x1f}, {'"', '"'}, {'\\', '\\'}};
    struct gnode rest = {.kind = G_CLASS};
    for (size_t i = 0; i < n->n_ranges; i++)
        gnode_range(g, &rest, n->ranges[i].lo, n->ranges[i].hi);
    if (!n->negated)
        gnode_complement(g, &rest);
    for (size_t i = 0; i < COUNT_OF(special); i++)
        gnode_range(g, &rest, special[i].lo, special[i].hi);
    grammar_chars(g, from, rest.ranges, rest.n_ranges, true, to);
    for (uint32_t cp = 0; cp < 0x80; cp++) {
        char text[8];
        if (in_class(n, cp) && json_escape(cp, text))
            grammar_text(g, from, str_of(text), to);
    }
}

static void build_text(struct grammar *g, struct str text, bool json, uint32_t from, uint32_t to)
{
    if (!json) {
        grammar_text(g, from, text, to);
        return;
    }
    struct buf b = BUF_INIT;
    for (size_t i = 0; i < text.n; i++) {
        char escaped[8];
        if ((uint8_t)text.p[i] < 0x80 && json_escape((uint8_t)text.p[i], escaped))
            buf_adds(&b, escaped);
        else
            buf_addc(&b, text.p[i]);
    }
    if (b.failed)
        grammar_fail(g, RC_NOMEM, "no memory for the grammar");
    grammar_text(g, from, (struct str){buf_str(&b), b.n}, to);
    buf_release(&b);
}

static void build_times(struct grammar *g, const struct gnode *x, bool json, uint32_t min,
                        uint32_t max, uint32_t from, uint32_t to)
{
    for (uint32_t i = 0; i < min && !grammar_failed(g); i++) {
        const uint32_t next = grammar_state_add(g);
        gnode_build(g, x, json, from, next);
        from = next;
    }
    if (max == GTREE_NO_END) {
        const uint32_t loop = grammar_state_add(g);
        grammar_empty_edge(g, from, loop);
        gnode_build(g, x, json, loop, loop);
        from = loop;
    }
    for (uint32_t i = min; max != GTREE_NO_END && i < max && !grammar_failed(g); i++) {
        const uint32_t next = grammar_state_add(g);
        grammar_empty_edge(g, from, to);
        gnode_build(g, x, json, from, next);
        from = next;
    }
    grammar_empty_edge(g, from, to);
}

/* What is repeated and is no single character becomes a rule, so that each time costs one edge.  A
 * single character stays where it is: a loop over one stays within its rule, for the masks' sake. */
static void build_repeat(struct grammar *g, const struct gnode *n, bool json, uint32_t from,
                         uint32_t to)
{
    const struct gnode *x = n->kids;
    struct gnode call = {.kind = G_CALL};
    while ((x->kind == G_CHOICE || x->kind == G_SEQUENCE) && x->kids && !x->kids->next)
        x = x->kids; /* brackets around one thing */
    if (x->kind != G_CLASS && x->kind != G_CALL && !(x->kind == G_TEXT && x->text.n == 1)) {
        call.rule = grammar_rule(g, "");
        const struct grule r = grammar_rule_at(g, call.rule);
        gnode_build(g, x, json, r.start, r.final);
        x = &call;
    }
    build_times(g, x, json, n->min, n->max, from, to);
}

void gnode_build(struct grammar *g, const struct gnode *n, bool json, uint32_t from, uint32_t to)
{
    if (!n || grammar_failed(g))
        return;
    switch (n->kind) {
    case G_TEXT:
        build_text(g, n->text, json, from, to);
        break;
    case G_CLASS:
        build_class(g, n, json, from, to);
        break;
    case G_CALL:
        grammar_call_edge(g, from, n->rule, to);
        break;
    case G_CHOICE:
        for (const struct gnode *k = n->kids; k; k = k->next)
            gnode_build(g, k, json, from, to);
        break;
    case G_SEQUENCE:
        for (const struct gnode *k = n->kids; k; k = k->next) {
            const uint32_t next = k->next ? grammar_state_add(g) : to;
            gnode_build(g, k, json, from, next);
            from = next;
        }
        if (!n->kids)
            grammar_empty_edge(g, from, to);
        break;
    case G_REPEAT:
        build_repeat(g, n, json, from, to);
        break;
    }
}
