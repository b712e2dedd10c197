/* jinja_parse.c - tokens to nodes: recursive descent, one function per level of precedence. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "text/jinja_int.h"

#define MAX_NESTING 150 /* of brackets and blocks in the source */

struct parse {
    struct jinja *t;
    const struct jtoken *k; /* the current token */
    struct err *err;
    enum rc rc;
    unsigned nesting;
    unsigned loops;      /* for blocks around, within the current macro */
    struct jnode *macro; /* the innermost macro around */
};

static struct jnode *parse_expr(struct parse *p);
static struct jnode *parse_tuple(struct parse *p, bool with_cond, const char *end, bool parens);
static bool parse_body(struct parse *p, const char *const *ends, struct jnode_list *out);

/* ---- helpers; NULL and false mean that p->rc is set ---- */

static void *fail(struct parse *p, const struct jtoken *at, const char *msg)
{
    if (!p->rc)
        p->rc = jinja_fail_at(p->t, at->off, RC_FORMAT, msg, p->err);
    return NULL;
}

static void *no_memory(struct parse *p)
{
    if (!p->rc)
        p->rc = err_set(p->err, RC_NOMEM, "no memory for the template");
    return NULL;
}

static struct jnode *node(struct parse *p, enum jkind kind, const struct jtoken *at)
{
    struct jnode *const n = arena_try(&p->t->arena, sizeof *n);
    if (!n)
        return no_memory(p);
    n->kind = kind;
    n->off = at->off;
    return n;
}

/* Grows in the arena: what it outgrows stays there until the template is freed. */
static bool push(struct parse *p, struct jnode_list *l, struct jnode *n)
{
    if (!n)
        return false;
    if (l->n == l->cap) {
        const size_t cap = l->cap ? l->cap * 2 : 4;
        struct jnode **const v = arena_try(&p->t->arena, cap * sizeof(struct jnode *));
        if (!v)
            return no_memory(p);
        if (l->n)
            memcpy(v, l->v, l->n * sizeof(struct jnode *));
        l->v = v;
        l->cap = cap;
    }
    l->v[l->n++] = n;
    return true;
}

static bool intern(struct parse *p, struct str s, uint32_t *out)
{
    struct jinja *const t = p->t;
    for (size_t i = 0; i < t->n_names; i++)
        if (str_eq(t->names[i], s)) {
            *out = (uint32_t)i;
            return true;
        }
    if (t->n_names == 4096)
        return fail(p, p->k, "too many variables");
    if (!mem_grow(&t->names, &t->names_cap, t->n_names + 1, sizeof *t->names))
        return no_memory(p);
    const char *const kept = arena_strndup(&t->arena, s.p, s.n); /* with a 0 behind it */
    if (!kept)
        return no_memory(p);
    *out = (uint32_t)t->n_names;
    t->names[t->n_names++] = (struct str){kept, s.n};
    return true;
}

static bool is_op(const struct parse *p, enum op op)
{
    return p->k->kind == TOK_OP && p->k->op == op;
}

static bool is_name(const struct parse *p, const char *name)
{
    return p->k->kind == TOK_NAME && str_is(p->k->text, name);
}

static bool skip_op(struct parse *p, enum op op)
{
    const bool yes = is_op(p, op);
    p->k += yes;
    return yes;
}

static bool skip_name(struct parse *p, const char *name)
{
    const bool yes = is_name(p, name);
    p->k += yes;
    return yes;
}

static const char *op_text(enum op op)
{
    switch (op) {
    case OP_RPAREN:
        return "expected )";
    case OP_RBRACKET:
        return "expected ]";
    case OP_RBRACE:
        return "expected }";
    case OP_COLON:
        return "expected :";
    case OP_COMMA:
        return "expected ,";
    case OP_LPAREN:
        return "expected (";
    default:
        return "unexpected token";
    }
}

static bool expect_op(struct parse *p, enum op op)
{
    return skip_op(p, op) || fail(p, p->k, op_text(op));
}

static bool expect_kind(struct parse *p, enum tok kind, const char *msg)
{
    if (p->k->kind != kind)
        return fail(p, p->k, msg);
    p->k++;
    return true;
}

static bool deeper(struct parse *p)
{
    if (++p->nesting > MAX_NESTING)
        return fail(p, p->k, "nested too deeply");
    return true;
}

/* ---- expressions ---- */

static struct jnode *constant(struct parse *p, struct jval v)
{
    struct jnode *const n = node(p, N_CONST, p->k);
    if (n)
        n->value = v;
    p->k++;
    return n;
}

static struct jnode *parse_string(struct parse *p)
{
    struct jnode *const n = node(p, N_CONST, p->k);
    struct jstr *const s = arena_try(&p->t->arena, sizeof *s);
    if (!n || !s)
        return no_memory(p);
    *s = (struct jstr){.p = p->k->text.p, .n = p->k->text.n, .n_chars = SIZE_MAX};
    p->k++;
    if (p->k->kind == TOK_STRING) { /* 'a' 'b' is 'ab' */
        struct buf b = BUF_INIT;
        buf_add(&b, s->p, s->n);
        for (; p->k->kind == TOK_STRING; p->k++)
            buf_add(&b, p->k->text.p, p->k->text.n);
        s->p = b.failed ? NULL : arena_strndup(&p->t->arena, buf_str(&b), b.n);
        s->n = b.n;
        buf_release(&b);
        if (!s->p)
            return no_memory(p);
    }
    (void)jstr_chars(s); /* counted now: runs in several threads share it and only read */
    n->value = (struct jval){.type = J_STR, .s = s};
    return n;
}

static struct jnode *parse_name(struct parse *p, bool with_namespace)
{
    const struct str s = p->k->text;
    if (str_is(s, "true") || str_is(s, "True") || str_is(s, "false") || str_is(s, "False"))
        return constant(p, jv_bool(s.p[0] == 't' || s.p[0] == 'T'));
    if (str_is(s, "none") || str_is(s, "None"))
        return constant(p, jv_none());
    struct jnode *const n = node(p, N_NAME, p->k);
    if (!n || !intern(p, s, &n->name))
        return NULL;
    if (p->macro) {
        p->macro->uses_varargs |= str_is(s, "varargs");
        p->macro->uses_kwargs |= str_is(s, "kwargs");
        p->macro->uses_caller |= str_is(s, "caller");
    }
    p->k++;
    if (with_namespace && skip_op(p, OP_DOT)) {
        n->kind = N_NSREF;
        n->text = p->k->text;
        if (!expect_kind(p, TOK_NAME, "expected a name"))
            return NULL;
    }
    return n;
}

static struct jnode *parse_list(struct parse *p)
{
    struct jnode *const n = node(p, N_LIST, p->k);
    p->k++;
    while (n && !is_op(p, OP_RBRACKET)) {
        if (n->kids.n && !expect_op(p, OP_COMMA))
            return NULL;
        if (is_op(p, OP_RBRACKET))
            break;
        if (!push(p, &n->kids, parse_expr(p)))
            return NULL;
    }
    p->k++;
    return n;
}

static struct jnode *parse_dict(struct parse *p)
{
    struct jnode *const n = node(p, N_DICT, p->k);
    p->k++;
    while (n && !is_op(p, OP_RBRACE)) {
        if (n->kids.n && !expect_op(p, OP_COMMA))
            return NULL;
        if (is_op(p, OP_RBRACE))
            break;
        if (!push(p, &n->kids, parse_expr(p)) || !expect_op(p, OP_COLON) ||
            !push(p, &n->kids, parse_expr(p)))
            return NULL;
    }
    p->k++;
    return n;
}

static struct jnode *parse_primary(struct parse *p, bool with_namespace)
{
    switch (p->k->kind) {
    case TOK_NAME:
        return parse_name(p, with_namespace);
    case TOK_STRING:
        return parse_string(p);
    case TOK_INT:
        return constant(p, jv_int(p->k->i));
    case TOK_FLOAT:
        return constant(p, jv_float(p->k->f));
    case TOK_OP:
        break;
    case TOK_EOF:
        return fail(p, p->k, "unexpected end of the template");
    default:
        return fail(p, p->k, "expected an expression");
    }
    if (is_op(p, OP_LBRACKET))
        return parse_list(p);
    if (is_op(p, OP_LBRACE))
        return parse_dict(p);
    if (!skip_op(p, OP_LPAREN))
        return fail(p, p->k, "expected an expression");
    struct jnode *const n = parse_tuple(p, true, NULL, true);
    return n && expect_op(p, OP_RPAREN) ? n : NULL;
}

/* One index or slice of x[...]. */
static struct jnode *parse_index(struct parse *p)
{
    const struct jtoken *const at = p->k;
    struct jnode *first = NULL;
    if (!is_op(p, OP_COLON)) {
        first = parse_expr(p);
        if (!first || !is_op(p, OP_COLON))
            return first;
    }
    struct jnode *const n = node(p, N_SLICE, at);
    if (!n)
        return NULL;
    n->a = first;
    p->k++;
    if (!is_op(p, OP_COLON) && !is_op(p, OP_RBRACKET) && !is_op(p, OP_COMMA)) {
        n->b = parse_expr(p);
        if (!n->b)
            return NULL;
    }
    if (skip_op(p, OP_COLON) && !is_op(p, OP_RBRACKET) && !is_op(p, OP_COMMA)) {
        n->c = parse_expr(p);
        if (!n->c)
            return NULL;
    }
    return n;
}

static struct jnode *parse_subscript(struct parse *p, struct jnode *of)
{
    const struct jtoken *const at = p->k++;
    struct jnode *const n = node(p, at->op == OP_DOT ? N_ATTR : N_ITEM, at);
    if (!n)
        return NULL;
    n->a = of;
    if (at->op == OP_DOT) {
        if (p->k->kind == TOK_INT) {
            n->kind = N_ITEM;
            n->b = constant(p, jv_int(p->k->i));
            return n->b ? n : NULL;
        }
        n->text = p->k->text;
        return expect_kind(p, TOK_NAME, "expected a name or number") ? n : NULL;
    }
    struct jnode_list parts = {0};
    while (!is_op(p, OP_RBRACKET))
        if ((parts.n && !expect_op(p, OP_COMMA)) || !push(p, &parts, parse_index(p)))
            return NULL;
    p->k++;
    if (parts.n == 1) {
        n->b = parts.v[0];
        return n;
    }
    n->b = node(p, N_TUPLE, at);
    if (n->b)
        n->b->kids = parts;
    return n->b ? n : NULL;
}

/* (a, b, c=d, *e, **f) into a call, filter or test. */
static bool parse_args(struct parse *p, struct jnode *n)
{
    const struct jtoken *const open = p->k;
    struct jnode_list values = {0};
    size_t n_names = 0, cap = 0;
    p->k++;
    for (bool first = true; !is_op(p, OP_RPAREN); first = false) {
        if (!first && !expect_op(p, OP_COMMA))
            return false;
        if (is_op(p, OP_RPAREN))
            break;
        if (is_op(p, OP_MUL) || is_op(p, OP_POW)) {
            struct jnode **const star = is_op(p, OP_MUL) ? &n->star : &n->star_star;
            if (*star || n->star_star)
                return fail(p, open, "invalid arguments of a call");
            p->k++;
            *star = parse_expr(p);
            if (!*star)
                return false;
        } else if (p->k->kind == TOK_NAME && p->k[1].kind == TOK_OP && p->k[1].op == OP_ASSIGN) {
            if (n->star_star)
                return fail(p, open, "invalid arguments of a call");
            if (n_names == cap) {
                cap = cap ? cap * 2 : 4;
                struct str *const wider = arena_try(&p->t->arena, cap * sizeof *wider);
                if (!wider)
                    return no_memory(p);
                if (n_names)
                    memcpy(wider, n->names, n_names * sizeof *wider);
                n->names = wider;
            }
            n->names[n_names++] = p->k->text;
            p->k += 2;
            if (!push(p, &values, parse_expr(p)))
                return false;
        } else {
            if (n->star || n->star_star || n_names)
                return fail(p, open, "invalid arguments of a call");
            if (!push(p, &values, parse_expr(p)))
                return false;
        }
    }
    p->k++;
    n->kids = values;
    n->n_names = n_names;
    return true;
}

static struct jnode *parse_call(struct parse *p, struct jnode *of)
{
    struct jnode *const n = node(p, N_CALL, p->k);
    if (!n || !parse_args(p, n))
        return NULL;
    n->a = of;
    return n;
}

/* The dotted name behind | or is. */
static struct str parse_dotted(struct parse *p)
{
    struct str s = p->k->text;
    if (!expect_kind(p, TOK_NAME, "expected a name"))
        return (struct str){NULL, 0};
    while (skip_op(p, OP_DOT)) {
        const struct str more = p->k->text;
        if (!expect_kind(p, TOK_NAME, "expected a name"))
            return (struct str){NULL, 0};
        s.n = (size_t)(more.p + more.n - s.p); /* no filter has a dot: only for the message */
    }
    return s;
}

static struct jnode *unknown(struct parse *p, const struct jtoken *at, const char *what,
                             struct str name)
{
    char msg[128];
    snprintf(msg, sizeof msg, "no %s named '%.*s'", what, (int)MIN(name.n, 60), name.p);
    return fail(p, at, msg);
}

/* One filter, from its name. */
static struct jnode *parse_filter(struct parse *p, struct jnode *of)
{
    const struct jtoken *const at = p->k;
    struct jnode *const n = node(p, N_FILTER, at);
    const struct str name = parse_dotted(p);
    if (!n || !name.p)
        return NULL;
    n->a = of;
    n->text = name;
    n->fn = jinja_filter(name);
    if (!n->fn)
        return unknown(p, at, "filter", name);
    return !is_op(p, OP_LPAREN) || parse_args(p, n) ? n : NULL;
}

static struct jnode *parse_postfix(struct parse *p, struct jnode *n)
{
    while (n) {
        if (is_op(p, OP_DOT) || is_op(p, OP_LBRACKET))
            n = parse_subscript(p, n);
        else if (is_op(p, OP_LPAREN))
            n = parse_call(p, n);
        else
            break;
    }
    return n;
}

static struct jnode *parse_test(struct parse *p, struct jnode *of)
{
    const struct jtoken *const at = p->k;
    const bool negated = skip_name(p, "not");
    struct jnode *const n = node(p, N_TEST, at);
    const struct str name = parse_dotted(p);
    if (!n || !name.p)
        return NULL;
    n->a = of;
    n->text = name;
    n->fn = jinja_test(name);
    if (!n->fn)
        return unknown(p, at, "test", name);
    if (is_op(p, OP_LPAREN)) {
        if (!parse_args(p, n))
            return NULL;
    } else if (((p->k->kind >= TOK_NAME && p->k->kind <= TOK_FLOAT) || is_op(p, OP_LBRACKET) ||
                is_op(p, OP_LBRACE)) &&
               !is_name(p, "else") && !is_name(p, "or") && !is_name(p, "and")) {
        if (is_name(p, "is"))
            return fail(p, p->k, "tests cannot be chained with is");
        if (!push(p, &n->kids, parse_postfix(p, parse_primary(p, false))))
            return NULL;
    }
    if (!negated)
        return n;
    struct jnode *const no = node(p, N_NOT, at);
    if (no)
        no->a = n;
    return no;
}

static struct jnode *parse_unary(struct parse *p, bool with_filter)
{
    struct jnode *n;
    if (!deeper(p))
        return NULL;
    if (is_op(p, OP_SUB) || is_op(p, OP_ADD)) {
        n = node(p, is_op(p, OP_SUB) ? N_NEG : N_POS, p->k);
        p->k++;
        if (n && !(n->a = parse_unary(p, false)))
            n = NULL;
    } else {
        n = parse_primary(p, false);
    }
    n = parse_postfix(p, n);
    while (n && with_filter) {
        if (skip_op(p, OP_PIPE))
            n = parse_filter(p, n);
        else if (skip_name(p, "is"))
            n = parse_test(p, n);
        else if (is_op(p, OP_LPAREN))
            n = parse_call(p, n);
        else
            break;
    }
    p->nesting--;
    return n;
}

static struct jnode *binary(struct parse *p, enum jkind kind, const struct jtoken *at,
                            struct jnode *a, struct jnode *b)
{
    struct jnode *const n = b ? node(p, kind, at) : NULL;
    if (n) {
        n->op = at->op;
        n->a = a;
        n->b = b;
    }
    return n;
}

static struct jnode *parse_pow(struct parse *p)
{
    struct jnode *n = parse_unary(p, true);
    while (n && is_op(p, OP_POW)) {
        const struct jtoken *const at = p->k++;
        n = binary(p, N_BINARY, at, n, parse_unary(p, true));
    }
    return n;
}

static struct jnode *parse_product(struct parse *p)
{
    struct jnode *n = parse_pow(p);
    while (n &&
           (is_op(p, OP_MUL) || is_op(p, OP_DIV) || is_op(p, OP_FLOORDIV) || is_op(p, OP_MOD))) {
        const struct jtoken *const at = p->k++;
        n = binary(p, N_BINARY, at, n, parse_pow(p));
    }
    return n;
}

static struct jnode *parse_concat(struct parse *p)
{
    struct jnode *const first = parse_product(p);
    if (!first || !is_op(p, OP_TILDE))
        return first;
    struct jnode *const n = node(p, N_CONCAT, p->k);
    if (!n || !push(p, &n->kids, first))
        return NULL;
    while (skip_op(p, OP_TILDE))
        if (!push(p, &n->kids, parse_product(p)))
            return NULL;
    return n;
}

static struct jnode *parse_sum(struct parse *p)
{
    struct jnode *n = parse_concat(p);
    while (n && (is_op(p, OP_ADD) || is_op(p, OP_SUB))) {
        const struct jtoken *const at = p->k++;
        n = binary(p, N_BINARY, at, n, parse_concat(p));
    }
    return n;
}

/* The comparison at the current token, which it skips. */
static enum op compare_op(struct parse *p)
{
    if (p->k->kind == TOK_OP) {
        const enum op op = p->k->op;
        if (op != OP_EQ && op != OP_NE && op != OP_GT && op != OP_GE && op != OP_LT && op != OP_LE)
            return OP_NONE;
        p->k++;
        return op;
    }
    if (skip_name(p, "in"))
        return OP_IN;
    if (is_name(p, "not") && p->k[1].kind == TOK_NAME && str_is(p->k[1].text, "in")) {
        p->k += 2;
        return OP_NOT_IN;
    }
    return OP_NONE;
}

static struct jnode *parse_compare(struct parse *p)
{
    struct jnode *const first = parse_sum(p);
    const struct jtoken *const at = p->k;
    enum op op = first ? compare_op(p) : OP_NONE;
    if (!op)
        return first;
    struct jnode *const n = node(p, N_COMPARE, at);
    if (!n)
        return NULL;
    n->a = first;
    size_t cap = 0;
    for (; op; op = compare_op(p)) {
        if (n->kids.n == cap) {
            cap = cap ? cap * 2 : 2;
            enum op *const wider = arena_try(&p->t->arena, cap * sizeof *wider);
            if (!wider)
                return no_memory(p);
            if (n->kids.n)
                memcpy(wider, n->ops, n->kids.n * sizeof *wider);
            n->ops = wider;
        }
        n->ops[n->kids.n] = op;
        if (!push(p, &n->kids, parse_sum(p)))
            return NULL;
    }
    return n;
}

static struct jnode *parse_not(struct parse *p)
{
    if (!is_name(p, "not"))
        return parse_compare(p);
    struct jnode *n = node(p, N_NOT, p->k);
    p->k++;
    if (!n || !deeper(p))
        return NULL;
    n->a = parse_not(p);
    p->nesting--;
    return n->a ? n : NULL;
}

static struct jnode *parse_and(struct parse *p)
{
    struct jnode *n = parse_not(p);
    while (n && is_name(p, "and")) {
        const struct jtoken *const at = p->k++;
        n = binary(p, N_AND, at, n, parse_not(p));
    }
    return n;
}

static struct jnode *parse_or(struct parse *p)
{
    struct jnode *n = parse_and(p);
    while (n && is_name(p, "or")) {
        const struct jtoken *const at = p->k++;
        n = binary(p, N_OR, at, n, parse_and(p));
    }
    return n;
}

static struct jnode *parse_expr(struct parse *p)
{
    if (!deeper(p))
        return NULL;
    struct jnode *n = parse_or(p);
    while (n && is_name(p, "if")) {
        struct jnode *const cond = node(p, N_COND, p->k);
        p->k++;
        if (!cond)
            return NULL;
        cond->a = n;
        cond->b = parse_or(p);
        if (!cond->b)
            return NULL;
        if (skip_name(p, "else") && !(cond->c = parse_expr(p)))
            return NULL;
        n = cond;
    }
    p->nesting--;
    return n;
}

/* a, b, c without brackets; end: a word that ends it, or NULL; parens: () is the empty tuple. */
static struct jnode *parse_tuple(struct parse *p, bool with_cond, const char *end, bool parens)
{
    const struct jtoken *const at = p->k;
    struct jnode_list items = {0};
    bool is_tuple = false;
    for (;;) {
        if (items.n && !expect_op(p, OP_COMMA))
            return NULL;
        if (p->k->kind == TOK_VAR_END || p->k->kind == TOK_BLOCK_END || is_op(p, OP_RPAREN) ||
            (end && is_name(p, end)))
            break;
        if (!push(p, &items, with_cond ? parse_expr(p) : parse_or(p)))
            return NULL;
        if (!is_op(p, OP_COMMA))
            break;
        is_tuple = true;
    }
    if (!is_tuple && items.n)
        return items.v[0];
    if (!is_tuple && !parens)
        return fail(p, p->k, "expected an expression");
    struct jnode *const n = node(p, N_TUPLE, at);
    if (n)
        n->kids = items;
    return n;
}

/* ---- statements ---- */

static bool may_assign(const struct jnode *n)
{
    if (n->kind == N_NAME || n->kind == N_NSREF)
        return true;
    if (n->kind != N_TUPLE)
        return false;
    for (size_t i = 0; i < n->kids.n; i++)
        if (!may_assign(n->kids.v[i]))
            return false;
    return true;
}

/* A name, a, b, (a, b), or with_namespace: ns.x. */
static struct jnode *parse_target(struct parse *p, const char *end, bool with_namespace)
{
    const struct jtoken *const at = p->k;
    struct jnode_list items = {0};
    bool is_tuple = false;
    for (;;) {
        if (items.n && !expect_op(p, OP_COMMA))
            return NULL;
        if (p->k->kind == TOK_BLOCK_END || is_op(p, OP_RPAREN) || (end && is_name(p, end)))
            break;
        if (!push(p, &items, parse_primary(p, with_namespace)))
            return NULL;
        if (!is_op(p, OP_COMMA))
            break;
        is_tuple = true;
    }
    if (!items.n)
        return fail(p, at, "expected a name to assign to");
    struct jnode *n = items.v[0];
    if (is_tuple) {
        n = node(p, N_TUPLE, at);
        if (!n)
            return NULL;
        n->kids = items;
    }
    return may_assign(n) ? n : fail(p, at, "cannot assign to this");
}

static struct jnode *parse_for(struct parse *p, const struct jtoken *at)
{
    static const char *const ends[] = {"endfor", "else", NULL}, *const end[] = {"endfor", NULL};
    struct jnode *const n = node(p, N_FOR, at);
    if (!n || !(n->a = parse_target(p, "in", false)))
        return NULL;
    if (!skip_name(p, "in"))
        return fail(p, p->k, "expected in");
    if (!(n->b = parse_tuple(p, false, "recursive", false)))
        return NULL;
    if (skip_name(p, "if") && !(n->c = parse_expr(p)))
        return NULL;
    n->flag = skip_name(p, "recursive");
    if (!intern(p, str_of("loop"), &n->name))
        return NULL;
    p->loops++;
    const bool ok = parse_body(p, ends, &n->body);
    p->loops--;
    if (!ok)
        return NULL;
    if (skip_name(p, "else")) {
        if (!parse_body(p, end, &n->other))
            return NULL;
    }
    p->k++;
    return n;
}

static struct jnode *parse_if(struct parse *p, const struct jtoken *at)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL}, *const end[] = {"endif",
                                                                                       NULL};
    struct jnode *const n = node(p, N_IF, at);
    size_t cap = 0;
    while (n) {
        if (n->kids.n == cap) {
            cap = cap ? cap * 2 : 2;
            struct jnode_list *const wider = arena_try(&p->t->arena, cap * sizeof *wider);
            if (!wider)
                return no_memory(p);
            if (n->kids.n)
                memcpy(wider, n->bodies, n->kids.n * sizeof *wider);
            n->bodies = wider;
        }
        struct jnode_list *const body = &n->bodies[n->kids.n];
        if (!push(p, &n->kids, parse_tuple(p, false, NULL, false)) || !parse_body(p, ends, body))
            return NULL;
        if (skip_name(p, "elif"))
            continue;
        if (skip_name(p, "else") && !parse_body(p, end, &n->other))
            return NULL;
        p->k++;
        return n;
    }
    return NULL;
}

static struct jnode *parse_set(struct parse *p, const struct jtoken *at)
{
    static const char *const end[] = {"endset", NULL};
    struct jnode *const n = node(p, N_SET, at);
    if (!n || !(n->a = parse_target(p, NULL, true)))
        return NULL;
    if (skip_op(p, OP_ASSIGN))
        return (n->b = parse_tuple(p, true, NULL, false)) ? n : NULL;
    n->kind = N_SET_BLOCK;
    while (skip_op(p, OP_PIPE))
        if (!(n->b = parse_filter(p, n->b)))
            return NULL;
    if (!parse_body(p, end, &n->body))
        return NULL;
    p->k++;
    return n;
}

/* (a, b=1): parameters, then the defaults of the last of them. */
static bool parse_signature(struct parse *p, struct jnode *n)
{
    struct jnode_list defaults = {0};
    if (!expect_op(p, OP_LPAREN))
        return false;
    while (!is_op(p, OP_RPAREN)) {
        if (n->n_params && !expect_op(p, OP_COMMA))
            return false;
        struct jnode *const name = node(p, N_NAME, p->k);
        const struct str text = p->k->text;
        if (!name || !expect_kind(p, TOK_NAME, "expected a parameter's name"))
            return false;
        name->text = text;
        if (!intern(p, text, &name->name) || !push(p, &n->kids, name))
            return false;
        n->n_params++;
        if (skip_op(p, OP_ASSIGN)) {
            if (!push(p, &defaults, parse_expr(p)))
                return false;
        } else if (defaults.n) {
            return fail(p, p->k, "a parameter without default follows one with");
        }
    }
    p->k++;
    for (size_t i = 0; i < defaults.n; i++)
        if (!push(p, &n->kids, defaults.v[i]))
            return false;
    return true;
}

/* A body that is called: no loop of the outside reaches into it. */
static bool parse_called_body(struct parse *p, struct jnode *n, const char *const *end)
{
    struct jnode *const outer = p->macro;
    const unsigned loops = p->loops;
    p->macro = n;
    p->loops = 0;
    const bool ok = parse_body(p, end, &n->body);
    p->macro = outer;
    p->loops = loops;
    p->k += ok;
    if (ok && outer) { /* what an inner body uses, the outer one has to supply */
        outer->uses_varargs |= n->uses_varargs;
        outer->uses_kwargs |= n->uses_kwargs;
        outer->uses_caller |= n->uses_caller;
    }
    return ok;
}

static struct jnode *parse_macro(struct parse *p, const struct jtoken *at)
{
    static const char *const end[] = {"endmacro", NULL};
    struct jnode *const n = node(p, N_MACRO, at);
    const struct str name = p->k->text;
    if (!n || !expect_kind(p, TOK_NAME, "expected the macro's name") ||
        !intern(p, name, &n->name) || !parse_signature(p, n))
        return NULL;
    n->text = name;
    return parse_called_body(p, n, end) ? n : NULL;
}

static struct jnode *parse_call_block(struct parse *p, const struct jtoken *at)
{
    static const char *const end[] = {"endcall", NULL};
    struct jnode *const n = node(p, N_CALL_BLOCK, at);
    if (!n || (is_op(p, OP_LPAREN) && !parse_signature(p, n)))
        return NULL;
    n->text = str_of("caller");
    n->a = parse_expr(p);
    if (n->a && n->a->kind != N_CALL)
        return fail(p, at, "expected a call");
    return n->a && parse_called_body(p, n, end) ? n : NULL;
}

static struct jnode *parse_with(struct parse *p, const struct jtoken *at)
{
    static const char *const end[] = {"endwith", NULL};
    struct jnode *const n = node(p, N_WITH, at);
    while (n && p->k->kind != TOK_BLOCK_END) {
        if (n->kids.n && !expect_op(p, OP_COMMA))
            return NULL;
        struct jnode *const target = parse_primary(p, false);
        if (!push(p, &n->kids, target))
            return NULL;
        if (!may_assign(target))
            return fail(p, at, "cannot assign to this");
        if (!skip_op(p, OP_ASSIGN))
            return fail(p, p->k, "expected =");
        if (!push(p, &n->kids, parse_expr(p)))
            return NULL;
    }
    if (!n || !parse_body(p, end, &n->body))
        return NULL;
    p->k++;
    return n;
}

static struct jnode *parse_statement(struct parse *p)
{
    static const char *const end_filter[] = {"endfilter", NULL}, *const end_generation[] = {
                                                                     "endgeneration", NULL};
    const struct jtoken *const at = p->k;
    if (at->kind != TOK_NAME)
        return fail(p, at, "expected a statement");
    p->k++;
    if (str_is(at->text, "if"))
        return parse_if(p, at);
    if (str_is(at->text, "for"))
        return parse_for(p, at);
    if (str_is(at->text, "set"))
        return parse_set(p, at);
    if (str_is(at->text, "macro"))
        return parse_macro(p, at);
    if (str_is(at->text, "call"))
        return parse_call_block(p, at);
    if (str_is(at->text, "with"))
        return parse_with(p, at);
    if (str_is(at->text, "break") || str_is(at->text, "continue")) {
        if (!p->loops)
            return fail(p, at, "outside of a loop");
        return node(p, at->text.p[0] == 'b' ? N_BREAK : N_CONTINUE, at);
    }
    struct jnode *const n = node(p, N_PRINT, at);
    if (!n)
        return NULL;
    if (str_is(at->text, "print")) {
        while (p->k->kind != TOK_BLOCK_END)
            if ((n->kids.n && !expect_op(p, OP_COMMA)) || !push(p, &n->kids, parse_expr(p)))
                return NULL;
        return n;
    }
    if (str_is(at->text, "generation")) {
        n->kind = N_GENERATION;
        return parse_called_body(p, n, end_generation) ? n : NULL;
    }
    if (str_is(at->text, "filter")) {
        n->kind = N_FILTER_BLOCK;
        do {
            if (!(n->b = parse_filter(p, n->b)))
                return NULL;
        } while (skip_op(p, OP_PIPE));
        if (!parse_body(p, end_filter, &n->body))
            return NULL;
        p->k++;
        return n;
    }
    char msg[128];
    snprintf(msg, sizeof msg, "unknown statement '%.*s'", (int)MIN(at->text.n, 60), at->text.p);
    return fail(p, at, msg);
}

/* Text, {{ }} and statements up to {% end %}, whose word is then the current token; ends NULL: up to
 * the end of the template. */
static bool parse_nodes(struct parse *p, const char *const *ends, struct jnode_list *out)
{
    for (;;) {
        const struct jtoken *const at = p->k;
        switch (at->kind) {
        case TOK_DATA: {
            struct jnode *const n = node(p, N_DATA, at);
            if (!push(p, out, n))
                return false;
            n->text = at->text;
            p->k++;
            break;
        }
        case TOK_VAR: {
            struct jnode *const n = node(p, N_PRINT, at);
            p->k++;
            if (!push(p, out, n) || !push(p, &n->kids, parse_tuple(p, true, NULL, false)) ||
                !expect_kind(p, TOK_VAR_END, "expected }}"))
                return false;
            break;
        }
        case TOK_BLOCK:
            p->k++;
            for (size_t i = 0; ends && ends[i]; i++)
                if (is_name(p, ends[i]))
                    return true;
            if (!push(p, out, parse_statement(p)) || !expect_kind(p, TOK_BLOCK_END, "expected %}"))
                return false;
            break;
        default: /* the end */
            if (!ends)
                return true;
            return fail(p, at, "unexpected end of the template; a block is not closed");
        }
    }
}

static bool parse_body(struct parse *p, const char *const *ends, struct jnode_list *out)
{
    (void)skip_op(p, OP_COLON);
    if (!expect_kind(p, TOK_BLOCK_END, "expected %}") || !deeper(p) || !parse_nodes(p, ends, out))
        return false;
    p->nesting--;
    return true;
}

enum rc jinja_parse(struct jinja *t, const struct jtokens *toks, struct err *err)
{
    struct parse p = {.t = t, .k = toks->v, .err = err};
    (void)parse_nodes(&p, NULL, &t->body);
    return p.rc;
}
