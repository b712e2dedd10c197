/* jinja_lex.c - source to tokens; the only place that knows of white space control.
 *
 * A tag may eat the white space before it and behind it:
 *   {%- {{- {#-   all of it before                   -%} -}} -#}   all of it behind
 *   {%  {#        blanks back to the line's start    %}  #}        one newline behind
 *   {%+ {#+       none                               +%} +#}       none
 * {{ and }} without a sign eat nothing.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "text/jinja_int.h"
#include "text/unicode.h"

struct lex {
    struct jinja *t;
    struct jtokens *out;
    struct err *err;
    const char *s;
    size_t n, at;
    bool line_start; /* what was read last ended with a newline, or nothing was read yet */
};

enum rc jinja_fail_at(const struct jinja *t, uint32_t off, enum rc rc, const char *msg,
                      struct err *err)
{
    unsigned line = 1, col = 1;
    for (uint32_t i = 0; i < off && i < t->source.n; i++) {
        const uint8_t c = (uint8_t)t->source.p[i];
        if (c == '\n') {
            line++;
            col = 1;
        } else if ((c & 0xc0) != 0x80) {
            col++;
        }
    }
    return err_set(err, rc, "line %u, column %u: %s", line, col, msg);
}

static enum rc fail(const struct lex *x, size_t off, const char *msg)
{
    return jinja_fail_at(x->t, (uint32_t)off, RC_FORMAT, msg, x->err);
}

static enum rc no_memory(const struct lex *x)
{
    return err_set(x->err, RC_NOMEM, "no memory for the template");
}

static struct jtoken *add(struct lex *x, enum tok kind, size_t off)
{
    struct jtokens *const o = x->out;
    if (!mem_grow(&o->v, &o->cap, o->n + 1, sizeof *o->v))
        return NULL;
    o->v[o->n] = (struct jtoken){.kind = kind, .off = (uint32_t)off};
    return &o->v[o->n++];
}

/* White space from i on, as \s* matches it. */
static size_t skip_space(const struct lex *x, size_t i)
{
    while (i < x->n) {
        uint32_t cp;
        const size_t len = utf8_decode(x->s + i, x->n - i, &cp);
        if (cp > 0x10ffff || !unicode_is_python_space(cp))
            break;
        i += len;
    }
    return i;
}

/* The end of s[begin, end) without the white space at its end. */
static size_t strip_right(const struct lex *x, size_t begin, size_t end)
{
    size_t last = begin; /* behind the last character that is none */
    for (size_t i = begin; i < end;) {
        uint32_t cp;
        i += utf8_decode(x->s + i, end - i, &cp);
        if (cp > 0x10ffff || !unicode_is_python_space(cp))
            last = i;
    }
    return last;
}

static bool at_str(const struct lex *x, size_t i, const char *what)
{
    const size_t n = strlen(what);
    return i + n <= x->n && memcmp(x->s + i, what, n) == 0;
}

/* Text [begin, end) before a tag whose sign is given ('-', '+' or 0). */
static enum rc add_data(struct lex *x, size_t begin, size_t end, char sign, bool is_var)
{
    if (sign == '-') {
        end = strip_right(x, begin, end);
    } else if (sign != '+' && !is_var) {
        size_t line = end;
        while (line > begin && x->s[line - 1] != '\n')
            line--;
        if ((line > begin || x->line_start) && strip_right(x, line, end) == line)
            end = line;
    }
    if (begin == end)
        return RC_OK;
    struct jtoken *const k = add(x, TOK_DATA, begin);
    if (!k)
        return no_memory(x);
    k->text = (struct str){x->s + begin, end - begin};
    return RC_OK;
}

static char sign_at(const struct lex *x, size_t i)
{
    return i < x->n && (x->s[i] == '-' || x->s[i] == '+') ? x->s[i] : 0;
}

/* Steps behind a block's or comment's closing two characters at i, where sign stood before them. */
static size_t behind_tag(const struct lex *x, size_t i, char sign)
{
    i += 2;
    if (sign == '-')
        return skip_space(x, i);
    if (sign != '+' && i < x->n && x->s[i] == '\n')
        i++;
    return i;
}

static enum rc lex_comment(struct lex *x, size_t open)
{
    size_t i = x->at; /* behind {# and its sign */
    while (!at_str(x, i, "#}"))
        if (++i >= x->n)
            return fail(x, open, "missing end of comment tag");
    x->at = behind_tag(x, i, i > x->at ? sign_at(x, i - 1) : 0);
    return RC_OK;
}

/* Is this the word of a {% raw %} or {% endraw %} tag, from i behind {% and its sign?  Sets *end to
 * the position of its %} and *sign. */
static bool word_tag(const struct lex *x, size_t i, const char *word, size_t *end, char *sign)
{
    i = skip_space(x, i);
    if (!at_str(x, i, word))
        return false;
    i = skip_space(x, i + strlen(word));
    *sign = sign_at(x, i);
    *end = i + (*sign != 0);
    return at_str(x, *end, "%}");
}

static enum rc lex_raw(struct lex *x, size_t open, size_t end, char sign)
{
    /* Unlike other tags {% raw %} does not eat the newline behind it. */
    const size_t begin = sign == '-' ? skip_space(x, end + 2) : end + 2;
    x->line_start = x->s[begin - 1] == '\n';
    for (size_t i = begin; i < x->n; i++) {
        size_t close;
        char close_sign;
        const char s = at_str(x, i, "{%") ? sign_at(x, i + 2) : 0;
        if (!at_str(x, i, "{%") || !word_tag(x, i + 2 + (s != 0), "endraw", &close, &close_sign))
            continue;
        const enum rc rc = add_data(x, begin, i, s, false);
        x->at = behind_tag(x, close, close_sign);
        return rc;
    }
    return fail(x, open, "missing end of raw directive");
}

/* ---- inside {% %} and {{ }} ---- */

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_name_byte(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || is_digit(c) ||
           (uint8_t)c >= 0x80;
}

/* (\d+_)*\d+ from i: its end, i when there is none.  Digits go to b. */
static size_t digits(const struct lex *x, size_t i, struct buf *b)
{
    size_t end = i;
    for (; i < x->n; i++) {
        if (is_digit(x->s[i])) {
            buf_addc(b, x->s[i]);
            end = i + 1;
        } else if (x->s[i] != '_' || end != i) {
            break;
        }
    }
    return end;
}

/* 0b1, 0o7, 0xf; *end stays i when it is none. */
static enum rc lex_based(struct lex *x, size_t i, size_t *end, int64_t *out)
{
    const char c = i + 1 < x->n && x->s[i] == '0' ? (char)(x->s[i + 1] | 0x20) : 0;
    const int base = c == 'b' ? 2 : c == 'o' ? 8 : c == 'x' ? 16 : 0;
    *end = i;
    *out = 0;
    if (!base)
        return RC_OK;
    for (size_t k = i + 2; k < x->n; k++) {
        const char d = x->s[k];
        const int v = is_digit(d)                              ? d - '0'
                      : (d | 0x20) >= 'a' && (d | 0x20) <= 'f' ? (d | 0x20) - 'a' + 10
                                                               : 99;
        if (d == '_' && k + 1 < x->n)
            continue;
        if (v >= base)
            break;
        if (__builtin_mul_overflow(*out, base, out) || __builtin_add_overflow(*out, v, out))
            return fail(x, i, "number too large");
        *end = k + 1;
    }
    return RC_OK;
}

static enum rc lex_number(struct lex *x)
{
    const size_t at = x->at;
    size_t end;
    int64_t v;
    enum rc rc = lex_based(x, at, &end, &v);
    if (rc)
        return rc;
    if (end > at) {
        struct jtoken *const k = add(x, TOK_INT, at);
        if (!k)
            return no_memory(x);
        k->i = v;
        x->at = end;
        return RC_OK;
    }
    struct buf b = BUF_INIT;
    bool is_float = false;
    end = digits(x, at, &b);
    if (at == 0 || x->s[at - 1] != '.') { /* x.1.5 is two subscripts */
        if (end + 1 < x->n && x->s[end] == '.' && is_digit(x->s[end + 1])) {
            buf_addc(&b, '.');
            end = digits(x, end + 1, &b);
            is_float = true;
        }
        size_t e = end;
        if (e < x->n && (x->s[e] | 0x20) == 'e') {
            e++;
            e += sign_at(x, e) != 0;
            if (e < x->n && is_digit(x->s[e])) {
                buf_addc(&b, 'e');
                if (x->s[e - 1] == '-')
                    buf_addc(&b, '-');
                end = digits(x, e, &b);
                is_float = true;
            }
        }
    }
    struct jtoken *const k = add(x, is_float ? TOK_FLOAT : TOK_INT, at);
    if (!k || b.failed) {
        rc = no_memory(x);
    } else if (is_float) {
        k->f = strtod(buf_str(&b), NULL);
    } else {
        for (const char *p = buf_str(&b); !rc && *p; p++)
            if (__builtin_mul_overflow(k->i, 10, &k->i) ||
                __builtin_add_overflow(k->i, *p - '0', &k->i))
                rc = fail(x, at, "number too large");
    }
    buf_release(&b);
    x->at = end;
    return rc;
}

/* n hexadecimal digits from i; false when they are not there. */
static bool hex(const struct lex *x, size_t i, size_t n, uint32_t *out)
{
    *out = 0;
    for (size_t k = i; k < i + n; k++) {
        if (k >= x->n)
            return false;
        const char c = x->s[k], low = (char)(c | 0x20);
        if (!is_digit(c) && !(low >= 'a' && low <= 'f'))
            return false;
        *out = *out << 4 | (uint32_t)(is_digit(c) ? c - '0' : low - 'a' + 10);
    }
    return true;
}

/* One escape at i (behind the backslash); returns where it ends, 0 when it is broken. */
static size_t escape(const struct lex *x, size_t i, struct buf *b)
{
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    const char c = x->s[i];
    const char *const simple = c ? strchr(from, c) : NULL;
    if (simple) {
        buf_addc(b, to[simple - from]);
        return i + 1;
    }
    if (c == '\n')
        return i + 1;
    uint32_t cp = 0;
    size_t end;
    if (c == 'x' || c == 'u' || c == 'U') {
        const size_t n = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        if (!hex(x, i + 1, n, &cp) || cp > 0x10ffff)
            return 0;
        end = i + 1 + n;
        uint32_t low;
        if (cp >= 0xd800 && cp < 0xdc00 && at_str(x, end, "\\u") && hex(x, end + 2, 4, &low) &&
            low >= 0xdc00 && low < 0xe000) {
            cp = 0x10000 + ((cp - 0xd800) << 10) + (low - 0xdc00);
            end += 6;
        }
        if (cp >= 0xd800 && cp < 0xe000)
            return 0;
    } else if (c >= '0' && c <= '7') {
        for (end = i; end < x->n && end < i + 3 && x->s[end] >= '0' && x->s[end] <= '7'; end++)
            cp = cp * 8 + (uint32_t)(x->s[end] - '0');
    } else if (c == 'N') {
        return 0;
    } else { /* not an escape: the backslash stays */
        buf_addc(b, '\\');
        return i;
    }
    char u[4];
    buf_add(b, u, utf8_encode(cp, u));
    return end;
}

static enum rc lex_string(struct lex *x)
{
    const size_t open = x->at;
    const char quote = x->s[open];
    struct buf b = BUF_INIT;
    enum rc rc = RC_OK;
    size_t i = open + 1;
    while (!rc && i < x->n && x->s[i] != quote) {
        if (x->s[i] != '\\') {
            buf_addc(&b, x->s[i++]);
        } else if (i + 1 >= x->n) {
            i++;
        } else {
            const size_t end = escape(x, i + 1, &b);
            if (!end)
                rc = fail(x, i, "bad escape in a string");
            i = end;
        }
    }
    if (!rc && i >= x->n)
        rc = fail(x, open, "unexpected end of a string");
    struct jtoken *const k = rc ? NULL : add(x, TOK_STRING, open);
    if (k) {
        char *const text = arena_strndup(&x->t->arena, buf_str(&b), b.n);
        k->text = (struct str){text, b.n};
        if (!text || b.failed)
            rc = no_memory(x);
    } else if (!rc) {
        rc = no_memory(x);
    }
    buf_release(&b);
    x->at = i + 1;
    return rc;
}

static const struct {
    const char *text;
    enum op op;
} ops[] = {
    /* longer ones first */
    {"//", OP_FLOORDIV}, {"**", OP_POW},   {"==", OP_EQ},      {"!=", OP_NE},      {">=", OP_GE},
    {"<=", OP_LE},       {"+", OP_ADD},    {"-", OP_SUB},      {"/", OP_DIV},      {"*", OP_MUL},
    {"%", OP_MOD},       {"~", OP_TILDE},  {"[", OP_LBRACKET}, {"]", OP_RBRACKET}, {"(", OP_LPAREN},
    {")", OP_RPAREN},    {"{", OP_LBRACE}, {"}", OP_RBRACE},   {">", OP_GT},       {"<", OP_LT},
    {"=", OP_ASSIGN},    {".", OP_DOT},    {":", OP_COLON},    {"|", OP_PIPE},     {",", OP_COMMA},
    {";", OP_SEMICOLON},
};

#define MAX_BRACKETS 256

/* From behind the opening tag to behind the closing one. */
static enum rc lex_inside(struct lex *x, size_t open, bool is_var)
{
    const char *const close = is_var ? "}}" : "%}";
    char brackets[MAX_BRACKETS]; /* what is to be closed */
    size_t depth = 0;
    while (x->at < x->n) {
        x->at = skip_space(x, x->at);
        if (x->at >= x->n)
            break;
        const char c = x->s[x->at];
        if (depth == 0) {
            const char sign = c == '-' || (c == '+' && !is_var) ? c : 0;
            const size_t i = x->at + (sign != 0);
            if (at_str(x, i, close)) {
                if (!add(x, is_var ? TOK_VAR_END : TOK_BLOCK_END, x->at))
                    return no_memory(x);
                x->at = is_var && !sign ? i + 2 : behind_tag(x, i, sign);
                return RC_OK;
            }
        }
        enum rc rc = RC_OK;
        if (is_digit(c)) {
            rc = lex_number(x);
        } else if (is_name_byte(c)) {
            const size_t begin = x->at;
            while (x->at < x->n && is_name_byte(x->s[x->at]))
                x->at++;
            struct jtoken *const k = add(x, TOK_NAME, begin);
            if (!k)
                return no_memory(x);
            k->text = (struct str){x->s + begin, x->at - begin};
        } else if (c == '"' || c == '\'') {
            rc = lex_string(x);
        } else {
            size_t o = 0;
            while (o < COUNT_OF(ops) && !at_str(x, x->at, ops[o].text))
                o++;
            if (o == COUNT_OF(ops))
                return fail(x, x->at, "unexpected character");
            if (c == '(' || c == '[' || c == '{') {
                if (depth == MAX_BRACKETS)
                    return fail(x, x->at, "too many brackets");
                brackets[depth++] = c == '(' ? ')' : c == '[' ? ']' : '}';
            } else if (c == ')' || c == ']' || c == '}') {
                if (depth == 0 || brackets[--depth] != c)
                    return fail(x, x->at, "unexpected closing bracket");
            }
            struct jtoken *const k = add(x, TOK_OP, x->at);
            if (!k)
                return no_memory(x);
            k->op = ops[o].op;
            x->at += strlen(ops[o].text);
        }
        if (rc)
            return rc;
    }
    return fail(x, open, is_var ? "missing }}" : "missing %}");
}

/* One piece of text and the tag behind it. */
static enum rc lex_next(struct lex *x)
{
    const size_t begin = x->at;
    size_t i = begin;
    while (i < x->n && !at_str(x, i, "{{") && !at_str(x, i, "{%") && !at_str(x, i, "{#"))
        i++;
    if (i == x->n) {
        x->at = i;
        return add_data(x, begin, i, '+', true);
    }
    const bool is_var = x->s[i + 1] == '{', is_comment = x->s[i + 1] == '#';
    const char sign = sign_at(x, i + 2);
    enum rc rc = add_data(x, begin, i, sign, is_var);
    x->at = i + 2 + (sign != 0);
    size_t end;
    char end_sign;
    if (rc)
        return rc;
    if (is_comment) {
        rc = lex_comment(x, i);
    } else if (!is_var && word_tag(x, x->at, "raw", &end, &end_sign) && end_sign != '+') {
        rc = lex_raw(x, i, end, end_sign);
    } else {
        if (!add(x, is_var ? TOK_VAR : TOK_BLOCK, i))
            return no_memory(x);
        rc = lex_inside(x, i, is_var);
    }
    x->line_start = !rc && x->s[x->at - 1] == '\n';
    return rc;
}

enum rc jinja_lex(struct jinja *t, struct jtokens *out, struct err *err)
{
    struct lex x = {t, out, err, t->source.p, t->source.n, 0, true};
    enum rc rc = RC_OK;
    while (!rc && x.at < x.n)
        rc = lex_next(&x);
    if (!rc && !add(&x, TOK_EOF, x.n))
        rc = no_memory(&x);
    return rc;
}
