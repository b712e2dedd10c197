/* gbnf.c - GBNF text to an automaton.
 *
 *   rule    name ::= alternative | alternative          ends with its line, unless in brackets
 *   item    "text"  [a-z]  [^a-z]  .  name  ( ... )     then * + ? {m} {m,} {m,n}
 *   escapes \n \r \t \\ \" \[ \] \xHH \uHHHH \UHHHHHHHH
 *   # comments to the end of the line
 *
 * The text becomes a small tree first, since what is repeated is built several times over.
 */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "text/gtree_int.h"

#define NO_RULE UINT32_MAX

struct grule_text {
    struct str name;
    uint32_t rule, line;
    bool defined;
};

struct gbnf {
    struct grammar *g;
    struct str s;
    size_t at;
    uint32_t line;
    unsigned depth;
    struct grule_text *rules;
    size_t n_rules, rules_cap;
};

static void *fail(struct gbnf *p, const char *msg)
{
    grammar_fail(p->g, RC_ARG, "grammar line %u: %s", p->line, msg);
    return NULL;
}

static char peek(const struct gbnf *p)
{
    return p->at < p->s.n ? p->s.p[p->at] : 0;
}

/* Blanks and comments; newlines too where a rule cannot end. */
static void skip_space(struct gbnf *p, bool newlines)
{
    for (; p->at < p->s.n; p->at++) {
        const char c = p->s.p[p->at];
        if (c == '#') {
            while (p->at + 1 < p->s.n && p->s.p[p->at + 1] != '\n')
                p->at++;
        } else if (c == '\n' && newlines) {
            p->line++;
        } else if (c != ' ' && c != '\t' && c != '\r') {
            return;
        }
    }
}

static bool is_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_';
}

static struct str word(struct gbnf *p)
{
    const size_t begin = p->at;
    while (is_word(peek(p)))
        p->at++;
    if (p->at == begin)
        fail(p, "expected a rule's name");
    return (struct str){p->s.p + begin, p->at - begin};
}

static uint32_t rule_named(struct gbnf *p, struct str name)
{
    for (size_t i = 0; i < p->n_rules; i++)
        if (str_eq(p->rules[i].name, name))
            return (uint32_t)i;
    if (p->n_rules == 10000) {
        fail(p, "more than 10000 rules");
        return 0;
    }
    char text[64];
    snprintf(text, sizeof text, "%.*s", (int)MIN(name.n, sizeof text - 1), name.p);
    if (!mem_grow(&p->rules, &p->rules_cap, p->n_rules + 1, sizeof *p->rules)) {
        grammar_fail(p->g, RC_NOMEM, "no memory for the grammar");
        return 0;
    }
    p->rules[p->n_rules] =
        (struct grule_text){.name = name, .rule = grammar_rule(p->g, text), .line = p->line};
    return (uint32_t)p->n_rules++;
}

/* One character of a literal or class, escapes resolved; false at the end or when it is broken. */
static bool character(struct gbnf *p, uint32_t *cp)
{
    if (p->at >= p->s.n || peek(p) == '\n')
        return fail(p, "unexpected end of the line");
    if (peek(p) != '\\') {
        p->at += utf8_decode(p->s.p + p->at, p->s.n - p->at, cp);
        return *cp <= 0x10ffff || fail(p, "not UTF-8");
    }
    static const char from[] = "nrt\\\"[]-^/'", to[] = "\n\r\t\\\"[]-^/'";
    const char c = p->at + 1 < p->s.n ? p->s.p[p->at + 1] : 0;
    const char *const simple = c ? strchr(from, c) : NULL;
    p->at += 2;
    if (simple) {
        *cp = (uint8_t)to[simple - from];
        return true;
    }
    const size_t n = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    *cp = 0;
    for (size_t i = 0; i < n; i++, p->at++) {
        const char d = peek(p), low = (char)(d | 0x20);
        if (d >= '0' && d <= '9')
            *cp = *cp << 4 | (uint32_t)(d - '0');
        else if (low >= 'a' && low <= 'f')
            *cp = *cp << 4 | (uint32_t)(low - 'a' + 10);
        else
            return fail(p, "bad hexadecimal escape");
    }
    if (!n)
        return fail(p, "unknown escape");
    return (*cp <= 0x10ffff && (*cp < 0xd800 || *cp > 0xdfff)) || fail(p, "not a character");
}

static struct gnode *literal(struct gbnf *p)
{
    struct gnode *const n = gnode_new(p->g, G_TEXT);
    struct buf b = BUF_INIT;
    uint32_t cp;
    p->at++;
    while (n && peek(p) != '"') {
        char c[4];
        if (!character(p, &cp))
            break;
        buf_add(&b, c, utf8_encode(cp, c));
    }
    p->at++;
    if (n && !grammar_failed(p->g)) {
        n->text = (struct str){arena_strndup(grammar_arena(p->g), buf_str(&b), b.n), b.n};
        if (!n->text.p || b.failed)
            grammar_fail(p->g, RC_NOMEM, "no memory for the grammar");
    }
    buf_release(&b);
    return n;
}

static struct gnode *class(struct gbnf *p)
{
    struct gnode *const n = gnode_new(p->g, G_CLASS);
    p->at++;
    if (n && peek(p) == '^') {
        n->negated = true;
        p->at++;
    }
    while (n && !grammar_failed(p->g) && peek(p) != ']') {
        uint32_t lo, hi;
        if (!character(p, &lo))
            break;
        hi = lo;
        if (peek(p) == '-' && p->at + 1 < p->s.n && p->s.p[p->at + 1] != ']') {
            p->at++;
            if (!character(p, &hi))
                break;
        }
        if (lo > hi)
            fail(p, "a range that ends before it begins");
        gnode_range(p->g, n, lo, hi);
    }
    p->at++;
    return n;
}

static struct gnode *choice(struct gbnf *p, bool nested);

static struct gnode *item(struct gbnf *p)
{
    const char c = peek(p);
    if (c == '"')
        return literal(p);
    if (c == '[')
        return class(p);
    if (c == '.') {
        struct gnode *const n = gnode_new(p->g, G_CLASS);
        p->at++;
        if (n)
            n->negated = true; /* of nothing */
        return n;
    }
    if (c == '(') {
        if (++p->depth > GTREE_MAX_DEPTH)
            return fail(p, "brackets are nested too deeply");
        p->at++;
        struct gnode *const n = choice(p, true);
        if (!grammar_failed(p->g) && peek(p) != ')')
            fail(p, "expected )");
        p->at++;
        p->depth--;
        return n;
    }
    if (!is_word(c))
        return NULL;
    const uint32_t rule = rule_named(p, word(p));
    struct gnode *const n = gnode_new(p->g, G_CALL); /* NULL when the rule was not to be had */
    if (n)
        n->rule = p->rules[rule].rule;
    return n;
}

static uint32_t count(struct gbnf *p)
{
    uint32_t v = 0;
    skip_space(p, false);
    const size_t begin = p->at;
    while (peek(p) >= '0' && peek(p) <= '9' && v <= GTREE_MAX_REPEAT)
        v = v * 10 + (uint32_t)(p->s.p[p->at++] - '0');
    if (p->at == begin)
        fail(p, "expected a number");
    if (v > GTREE_MAX_REPEAT)
        fail(p, "a repetition of more than 100000");
    skip_space(p, false);
    return v;
}

static struct gnode *repeated(struct gbnf *p, struct gnode *of)
{
    uint32_t min, max = GTREE_NO_END;
    const char c = peek(p);
    if (c == '*' || c == '+' || c == '?') {
        p->at++;
        min = c == '+';
        max = c == '?' ? 1 : GTREE_NO_END;
    } else {
        p->at++;
        skip_space(p, false);
        min = peek(p) == ',' ? 0 : count(p);
        if (peek(p) != ',') {
            max = min;
        } else {
            p->at++;
            skip_space(p, false);
            if (peek(p) != '}')
                max = count(p);
        }
        if (peek(p) != '}')
            return fail(p, "expected }");
        p->at++;
        if (max < min)
            return fail(p, "a repetition that ends before it begins");
    }
    struct gnode *const n = gnode_new(p->g, G_REPEAT);
    if (n) {
        n->kids = of;
        n->min = min;
        n->max = max;
    }
    return n;
}

static struct gnode *sequence(struct gbnf *p, bool nested)
{
    struct gnode *const n = gnode_new(p->g, G_SEQUENCE);
    for (;;) {
        struct gnode *x = grammar_failed(p->g) ? NULL : item(p);
        if (!x)
            return n;
        skip_space(p, nested);
        for (int i = 0; x && peek(p) && strchr("*+?{", peek(p)); i++) {
            x = i < 8 ? repeated(p, x) : fail(p, "too many repetitions of one item");
            skip_space(p, nested);
        }
        if (!x)
            return n;
        gnode_add(n, x);
    }
}

static struct gnode *choice(struct gbnf *p, bool nested)
{
    struct gnode *const n = gnode_new(p->g, G_CHOICE);
    for (;;) {
        skip_space(p, true);
        struct gnode *const x = sequence(p, nested);
        if (grammar_failed(p->g))
            return NULL;
        gnode_add(n, x);
        /* the next alternative may stand on a line of its own */
        const size_t at = p->at;
        const uint32_t line = p->line;
        skip_space(p, true);
        if (peek(p) != '|') {
            p->at = nested ? p->at : at;
            p->line = nested ? p->line : line;
            return n;
        }
        p->at++;
    }
}

static void parse_rule(struct gbnf *p)
{
    const struct str name = word(p);
    if (grammar_failed(p->g))
        return;
    const uint32_t rule = rule_named(p, name);
    skip_space(p, false);
    if (grammar_failed(p->g) ||
        !str_starts((struct str){p->s.p + p->at, p->s.n - p->at}, str_of("::="))) {
        fail(p, "expected ::=");
        return;
    }
    p->at += 3;
    if (p->rules[rule].defined) {
        fail(p, "a rule is defined twice");
        return;
    }
    p->rules[rule].defined = true;
    struct gnode *const n = choice(p, false);
    if (grammar_failed(p->g))
        return;
    skip_space(p, false);
    if (p->at < p->s.n && peek(p) != '\n') {
        fail(p, "unexpected character");
        return;
    }
    const struct grule r = grammar_rule_at(p->g, p->rules[rule].rule);
    gnode_build(p->g, n, false, r.start, r.final);
}

enum rc grammar_from_gbnf(struct token_trie *t, struct str text, struct grammar **out,
                          struct err *err)
{
    struct gbnf p = {.g = grammar_new(t), .s = text, .line = 1};
    for (skip_space(&p, true); p.at < text.n && !grammar_failed(p.g); skip_space(&p, true))
        parse_rule(&p);
    uint32_t root = NO_RULE;
    for (size_t i = 0; i < p.n_rules; i++) {
        if (str_is(p.rules[i].name, "root"))
            root = p.rules[i].rule;
        if (!p.rules[i].defined)
            grammar_fail(p.g, RC_ARG, "grammar line %u: rule '%.*s' is not defined",
                         p.rules[i].line, (int)MIN(p.rules[i].name.n, 60), p.rules[i].name.p);
    }
    if (root == NO_RULE)
        grammar_fail(p.g, RC_ARG, "the grammar has no rule 'root'");
    mem_free(p.rules);
    return grammar_finish(p.g, root, out, err);
}
