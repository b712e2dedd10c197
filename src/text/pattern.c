/* pattern.c - the regular expressions of JSON schemas (ECMA 262) to an automaton.
 *
 * Supported: alternatives, groups, * + ? {m,n} (lazy ones too: for an automaton it is the same), classes,
 * \d \w \s and their opposites, '.', escapes, ^ and $ at the ends of an alternative.  An expression
 * without them matches anywhere, so any text may stand around it.
 */
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"
#include "text/gtree_int.h"

struct pattern {
    struct grammar *g;
    struct str s;
    size_t at;
    const char *where;
    unsigned depth;
};

static void *fail(struct pattern *p, enum rc rc, const char *msg)
{
    grammar_fail(p->g, rc, "%s: pattern: %s (at byte %zu)", p->where, msg, p->at);
    return NULL;
}

static void *unsupported(struct pattern *p, const char *what)
{
    char msg[96];
    snprintf(msg, sizeof msg, "%s not supported", what);
    return fail(p, RC_UNSUPPORTED, msg);
}

static char peek(const struct pattern *p, size_t ahead)
{
    return p->at + ahead < p->s.n ? p->s.p[p->at + ahead] : 0;
}

static bool skip(struct pattern *p, const char *text)
{
    const struct str rest = {p->s.p + p->at, p->s.n - p->at};
    if (!str_starts(rest, str_of(text)))
        return false;
    p->at += strlen(text);
    return true;
}

/* Adds \d, \w or \s, or the complement for a capital. */
static void add_set(struct pattern *p, struct gnode *to, char which)
{
    static const struct grange digits[] = {{'0', '9'}},
                               words[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}},
                               spaces[] = {{9, 13},          {' ', ' '},       {0xa0, 0xa0},
                                           {0x1680, 0x1680}, {0x2000, 0x200a}, {0x2028, 0x2029},
                                           {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000},
                                           {0xfeff, 0xfeff}};
    const char low = (char)(which | 0x20);
    const struct grange *const r = low == 'd' ? digits : low == 'w' ? words : spaces;
    const size_t n = low == 'd'   ? COUNT_OF(digits)
                     : low == 'w' ? COUNT_OF(words)
                                  : COUNT_OF(spaces);
    struct gnode set = {.kind = G_CLASS};
    for (size_t i = 0; i < n; i++)
        gnode_range(p->g, &set, r[i].lo, r[i].hi);
    if (which != low)
        gnode_complement(p->g, &set);
    for (size_t i = 0; i < set.n_ranges; i++)
        gnode_range(p->g, to, set.ranges[i].lo, set.ranges[i].hi);
}

static bool hex(struct pattern *p, size_t n, uint32_t *out)
{
    *out = 0;
    for (size_t i = 0; i < n; i++) {
        const char c = peek(p, i), low = (char)(c | 0x20);
        if (c >= '0' && c <= '9')
            *out = *out << 4 | (uint32_t)(c - '0');
        else if (low >= 'a' && low <= 'f')
            *out = *out << 4 | (uint32_t)(low - 'a' + 10);
        else
            return fail(p, RC_ARG, "bad hexadecimal escape");
    }
    p->at += n;
    return true;
}

/* What follows a backslash, when it is one character. */
static bool escaped(struct pattern *p, bool in_class, uint32_t *cp)
{
    static const char from[] = "tnrfv0", to[] = "\t\n\r\f\v";
    const char c = peek(p, 0);
    const char *const simple = c ? strchr(from, c) : NULL;
    if (simple) {
        *cp = (uint8_t)to[simple - from];
        p->at++;
        return true;
    }
    if (c == 'x' || (c == 'u' && peek(p, 1) != '{')) {
        p->at++;
        if (!hex(p, c == 'x' ? 2 : 4, cp))
            return false;
        uint32_t low;
        if (*cp >= 0xd800 && *cp < 0xdc00 && skip(p, "\\u")) {
            if (!hex(p, 4, &low))
                return false;
            *cp = 0x10000 + ((*cp - 0xd800) << 10) + (low - 0xdc00);
        }
        return *cp <= 0x10ffff || fail(p, RC_ARG, "not a character");
    }
    if (in_class && c == 'b') {
        *cp = '\b';
        p->at++;
        return true;
    }
    if (c == 'b' || c == 'B')
        return unsupported(p, "\\b is");
    if (c == 'p' || c == 'P' || c == 'u')
        return unsupported(p, "\\p{...} and \\u{...} are");
    if (c == 'c' || c == 'k' || (c >= '1' && c <= '9'))
        return unsupported(p, "back references and \\c are");
    if (!c)
        return fail(p, RC_ARG, "it ends in a backslash");
    p->at += utf8_decode(p->s.p + p->at, p->s.n - p->at, cp);
    return *cp <= 0x10ffff || fail(p, RC_ARG, "not UTF-8");
}

/* One character, or one end of a class's range; *set: it was \d or the like, and is added already. */
static bool one_char(struct pattern *p, bool in_class, struct gnode *n, uint32_t *cp, bool *set)
{
    *set = false;
    if (skip(p, "\\")) {
        if (peek(p, 0) && strchr("dDwWsS", peek(p, 0))) {
            add_set(p, n, p->s.p[p->at++]);
            *set = true;
            return true;
        }
        return escaped(p, in_class, cp);
    }
    p->at += utf8_decode(p->s.p + p->at, p->s.n - p->at, cp);
    return *cp <= 0x10ffff || fail(p, RC_ARG, "not UTF-8");
}

static struct gnode *class(struct pattern *p)
{
    struct gnode *const n = gnode_new(p->g, G_CLASS);
    const bool negated = skip(p, "^");
    while (n && !grammar_failed(p->g) && !skip(p, "]")) {
        uint32_t lo, hi;
        bool set, hi_set;
        if (p->at >= p->s.n)
            return fail(p, RC_ARG, "a class is not closed");
        if (!one_char(p, true, n, &lo, &set))
            return NULL;
        if (set)
            continue;
        hi = lo;
        if (peek(p, 0) == '-' && peek(p, 1) && peek(p, 1) != ']') {
            p->at++;
            if (!one_char(p, true, n, &hi, &hi_set))
                return NULL;
            if (hi_set) { /* a-\d: the - is itself */
                gnode_range(p->g, n, '-', '-');
                hi = lo;
            }
        }
        if (lo > hi)
            return fail(p, RC_ARG, "a range that ends before it begins");
        gnode_range(p->g, n, lo, hi);
    }
    if (negated)
        gnode_complement(p->g, n);
    return n;
}

static struct gnode *choice(struct pattern *p);

static struct gnode *atom(struct pattern *p)
{
    struct gnode *n;
    if (skip(p, "[")) {
        n = class(p);
    } else if (skip(p, "(")) {
        if (skip(p, "?")) {
            const bool named = peek(p, 0) == '<' && peek(p, 1) != '=' && peek(p, 1) != '!';
            while (named && p->at < p->s.n && p->s.p[p->at - 1] != '>')
                p->at++;
            if (!named && !skip(p, ":"))
                return unsupported(p, "looking ahead and behind is");
        }
        if (++p->depth > GTREE_MAX_DEPTH)
            return fail(p, RC_LIMIT, "groups are nested too deeply");
        n = choice(p);
        p->depth--;
        if (!grammar_failed(p->g) && !skip(p, ")"))
            return fail(p, RC_ARG, "a group is not closed");
    } else if (skip(p, ".")) {
        n = gnode_new(p->g, G_CLASS);
        gnode_range(p->g, n, '\n', '\n');
        gnode_range(p->g, n, '\r', '\r');
        gnode_range(p->g, n, 0x2028, 0x2029);
        gnode_complement(p->g, n);
    } else if (peek(p, 0) == '^' || peek(p, 0) == '$') {
        return unsupported(p, "^ and $ inside an alternative are");
    } else if (peek(p, 0) && strchr("*+?", peek(p, 0))) {
        return fail(p, RC_ARG, "nothing to repeat");
    } else {
        uint32_t cp;
        n = gnode_new(p->g, G_CLASS);
        bool set;
        if (!n || !one_char(p, false, n, &cp, &set))
            return NULL;
        if (!set)
            gnode_range(p->g, n, cp, cp);
    }
    return n;
}

static bool number(struct pattern *p, size_t *ahead, uint32_t *out)
{
    const size_t begin = *ahead;
    *out = 0;
    for (; peek(p, *ahead) >= '0' && peek(p, *ahead) <= '9'; ++*ahead)
        if (*out <= GTREE_MAX_REPEAT)
            *out = *out * 10 + (uint32_t)(peek(p, *ahead) - '0');
    return *ahead > begin;
}

/* The quantifier at the current place, if there is one. */
static bool quantifier(struct pattern *p, uint32_t *min, uint32_t *max)
{
    *max = GTREE_NO_END;
    if (skip(p, "*"))
        *min = 0;
    else if (skip(p, "+"))
        *min = 1;
    else if (skip(p, "?")) {
        *min = 0;
        *max = 1;
    } else {
        size_t i = 1;
        if (peek(p, 0) != '{' || !number(p, &i, min))
            return false; /* a { that is no quantifier is itself */
        *max = *min;
        if (peek(p, i) == ',') {
            i++;
            if (!number(p, &i, max))
                *max = GTREE_NO_END;
        }
        if (peek(p, i) != '}')
            return false;
        p->at += i + 1;
        if (*min > GTREE_MAX_REPEAT || (*max != GTREE_NO_END && *max > GTREE_MAX_REPEAT))
            return fail(p, RC_LIMIT, "a repetition of more than 100000");
        if (*max < *min)
            return fail(p, RC_ARG, "a repetition that ends before it begins");
    }
    (void)skip(p, "?");
    return true;
}

static struct gnode *sequence(struct pattern *p)
{
    struct gnode *const n = gnode_new(p->g, G_SEQUENCE);
    while (n && !grammar_failed(p->g) && p->at < p->s.n && peek(p, 0) != '|' && peek(p, 0) != ')' &&
           !(p->depth == 0 && peek(p, 0) == '$' && (!peek(p, 1) || peek(p, 1) == '|'))) {
        struct gnode *x = atom(p);
        uint32_t min, max;
        if (x && quantifier(p, &min, &max)) {
            struct gnode *const times = gnode_new(p->g, G_REPEAT);
            if (times) {
                times->kids = x;
                times->min = min;
                times->max = max;
            }
            x = times;
            if (peek(p, 0) && strchr("*+?", peek(p, 0)))
                return fail(p, RC_ARG, "nothing to repeat");
        }
        gnode_add(n, x);
    }
    return n;
}

/* Any text, for where an expression is not anchored. */
static struct gnode *anything(struct pattern *p)
{
    struct gnode *const any = gnode_new(p->g, G_CLASS), *const n = gnode_new(p->g, G_REPEAT);
    if (any && n) {
        any->negated = true;
        n->kids = any;
        n->max = GTREE_NO_END;
    }
    return n;
}

static struct gnode *choice(struct pattern *p)
{
    struct gnode *const n = gnode_new(p->g, G_CHOICE);
    const bool top = p->depth == 0;
    do {
        struct gnode *const one = gnode_new(p->g, G_SEQUENCE);
        if (top && !skip(p, "^"))
            gnode_add(one, anything(p));
        gnode_add(one, sequence(p));
        if (top && !skip(p, "$"))
            gnode_add(one, anything(p));
        gnode_add(n, one);
    } while (!grammar_failed(p->g) && skip(p, "|"));
    return grammar_failed(p->g) ? NULL : n;
}

void pattern_build(struct grammar *g, uint32_t from, struct str pattern, const char *where,
                   bool quoted, uint32_t to)
{
    struct pattern p = {.g = g, .s = pattern, .where = where};
    struct gnode *const n = choice(&p);
    if (!grammar_failed(g) && p.at < pattern.n)
        (void)fail(&p, RC_ARG, "unexpected )");
    if (!quoted) {
        gnode_build(g, n, false, from, to);
        return;
    }
    const uint32_t begin = grammar_state_add(g), end = grammar_state_add(g);
    grammar_bytes_edge(g, from, '"', '"', begin);
    gnode_build(g, n, true, begin, end);
    grammar_bytes_edge(g, end, '"', '"', to);
}
