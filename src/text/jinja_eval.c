/* jinja_eval.c - walks the nodes: scopes, statements, operators, calls.
 *
 * Scopes: a loop's iteration, a macro call, a with and a set block each have one; an if has none.
 * {% set %} writes to the innermost, names are looked up outwards, then among the input variables,
 * then among the global functions.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "text/jinja_int.h"

enum flow { FLOW_NEXT, FLOW_BREAK, FLOW_CONTINUE, FLOW_FAIL };

static bool eval(struct jrun *r, const struct jnode *n, struct jval *out);
static enum flow exec(struct jrun *r, const struct jnode_list *body);

/* ---- output ---- */

static bool add_mark(struct jrun *r, struct jinja_result *o, struct jinja_mark m)
{
    if (m.begin == m.end)
        return true;
    if (o->n_marks) {
        struct jinja_mark *const last = &o->marks[o->n_marks - 1];
        if (last->source == m.source && last->end == m.begin && !(m.source & JINJA_LOOP)) {
            last->end = m.end;
            return true;
        }
    }
    if (!mem_grow(&o->marks, &o->marks_cap, o->n_marks + 1, sizeof *o->marks))
        return jfail_rc(r, RC_NOMEM, "no memory for the output");
    o->marks[o->n_marks++] = m;
    return true;
}

static bool write_raw(struct jrun *r, struct str s)
{
    struct jinja_result *const o = &r->out->r;
    buf_add(&o->text, s.p, s.n);
    if (o->text.failed)
        return jfail_rc(r, RC_LIMIT, "the template writes too much");
    return jstep(r, s.n / 64);
}

static bool write_value(struct jrun *r, struct jval v)
{
    struct jinja_result *const o = &r->out->r;
    const size_t at = o->text.n;
    struct jval s;
    if (!jv_str(r, v, &s) || !write_raw(r, jv_text(s)))
        return false;
    for (size_t i = 0; i < s.s->n_marks; i++) {
        const struct jinja_mark m = s.s->marks[i];
        if (!add_mark(r, o, (struct jinja_mark){at + m.begin, at + m.end, m.source}))
            return false;
    }
    return true;
}

static void capture_begin(struct jrun *r, struct jout *o)
{
    *o = (struct jout){.outer = r->out};
    o->r.text.limit = r->o->max_output;
    r->out = o;
}

/* What was written since, as a string with its marks; ok: nothing has failed meanwhile. */
static bool capture_end(struct jrun *r, struct jout *o, bool ok, struct jval *out)
{
    r->out = o->outer;
    if (ok && jstr_take(r, &o->r.text, out)) {
        const size_t n = o->r.n_marks;
        struct jinja_mark *const m = n ? jalloc(r, n * sizeof *m) : NULL;
        ok = !n || m;
        if (m)
            memcpy(m, o->r.marks, n * sizeof *m);
        out->s->marks = m;
        out->s->n_marks = m ? n : 0;
    } else {
        ok = false;
    }
    jinja_result_release(&o->r);
    return ok;
}

/* ---- scopes ---- */

static struct jscope *scope_new(struct jrun *r, struct jscope *parent)
{
    struct jscope *const s = jalloc(r, sizeof *s);
    if (s)
        s->parent = parent;
    return s;
}

static bool set_var(struct jrun *r, struct jscope *s, uint32_t name, struct jval v)
{
    if (!s) {
        r->root[name] = v;
        return true;
    }
    for (struct jvar *x = s->vars; x; x = x->next)
        if (x->name == name) {
            x->value = v;
            return true;
        }
    struct jvar *const x = jalloc(r, sizeof *x);
    if (!x)
        return false;
    *x = (struct jvar){name, v, s->vars};
    s->vars = x;
    return true;
}

static bool get_var(struct jrun *r, uint32_t name, struct jval *out)
{
    for (const struct jscope *s = r->scope; s; s = s->parent)
        for (const struct jvar *x = s->vars; x; x = x->next)
            if (x->name == name) {
                *out = x->value;
                return true;
            }
    struct jval *const root = &r->root[name];
    if (root->type == J_ABSENT) { /* converted on first use */
        const struct str text = r->t->names[name];
        const json_t *const j = json_object_get(r->vars, text.p);
        const bool ok =
            j ? jv_from_json(r, j, 0, root)
              : jinja_global(r, text, root) &&
                    (root->type != J_ABSENT || jv_undef_fmt(r, root, "'%s' is undefined", text.p));
        if (!ok)
            return false;
    }
    *out = *root;
    return true;
}

static bool assign(struct jrun *r, const struct jnode *target, struct jval v)
{
    r->at = target;
    if (target->kind == N_NAME)
        return set_var(r, r->scope, target->name, v);
    if (target->kind == N_NSREF) {
        struct jval ns, key;
        if (!get_var(r, target->name, &ns))
            return false;
        if (ns.type != J_NAMESPACE)
            return jfail(r, "cannot assign attribute on non-namespace object");
        return jstr_borrow(r, target->text.p, target->text.n, &key) && jdict_set(r, ns, key, v);
    }
    struct jlist *items;
    if (!jv_items(r, v, &items))
        return false;
    if (items->n != target->kids.n)
        return jfail(r,
                     items->n < target->kids.n
                         ? "not enough values to unpack (expected %zu, got %zu)"
                         : "too many values to unpack (expected %zu, got %zu)",
                     target->kids.n, items->n);
    for (size_t i = 0; i < items->n; i++)
        if (!assign(r, target->kids.v[i], items->v[i]))
            return false;
    return true;
}

/* ---- attributes and items ---- */

static bool loop_attr(struct jrun *r, struct jval v, struct str name, struct jval *out)
{
    const struct jloop *const l = v.loop;
    const int64_t i = (int64_t)l->i, n = (int64_t)l->items->n;
    if (str_is(name, "index"))
        *out = jv_int(i + 1);
    else if (str_is(name, "index0"))
        *out = jv_int(i);
    else if (str_is(name, "revindex"))
        *out = jv_int(n - i);
    else if (str_is(name, "revindex0"))
        *out = jv_int(n - i - 1);
    else if (str_is(name, "first"))
        *out = jv_bool(i == 0);
    else if (str_is(name, "last"))
        *out = jv_bool(i == n - 1);
    else if (str_is(name, "length"))
        *out = jv_int(n);
    else if (str_is(name, "depth"))
        *out = jv_int((int64_t)l->depth0 + 1);
    else if (str_is(name, "depth0"))
        *out = jv_int(l->depth0);
    else if (str_is(name, "previtem"))
        *out = i ? l->items->v[i - 1] : jv_undef("there is no previous item");
    else if (str_is(name, "nextitem"))
        *out = i + 1 < n ? l->items->v[i + 1] : jv_undef("there is no next item");
    else
        return jinja_method(r, v, name, out);
    return true;
}

static bool no_attr(struct jrun *r, struct jval v, struct str name, struct jval *out)
{
    if (v.type == J_NONE)
        return jv_undef_fmt(r, out, "'None' has no attribute '%.*s'", (int)MIN(name.n, 80), name.p);
    return jv_undef_fmt(r, out, "'%s object' has no attribute '%.*s'", jtype_name(v),
                        (int)MIN(name.n, 80), name.p);
}

/* v.name: methods before keys. */
bool jattr(struct jrun *r, struct jval v, struct str name, struct jval *out)
{
    if (v.type == J_UNDEF)
        return jfail_undef(r, v);
    *out = (struct jval){.type = J_ABSENT};
    if (v.type == J_LOOP ? !loop_attr(r, v, name, out) : !jinja_method(r, v, name, out))
        return false;
    if (out->type != J_ABSENT)
        return true;
    if (v.type == J_DICT || v.type == J_NAMESPACE) {
        const struct jval *const found = jdict_get_str(v.d, name);
        if (found) {
            *out = *found;
            return true;
        }
    }
    if (v.type == J_LIST && v.l->group && (str_is(name, "grouper") || str_is(name, "list"))) {
        *out = v.l->v[name.p[0] == 'l'];
        return true;
    }
    return no_attr(r, v, name, out);
}

/* v[key]: keys before methods; what is not there is undefined, not an error. */
bool jitem(struct jrun *r, struct jval v, struct jval key, struct jval *out)
{
    if (v.type == J_UNDEF)
        return jfail_undef(r, v);
    if (v.type == J_DICT) {
        if (!jstep(r, 1 + v.d->n / 8))
            return false;
        const struct jval *const found = jdict_get(v.d, key);
        if (found) {
            *out = *found;
            return true;
        }
    }
    if (((v.type == J_LIST && !v.l->view) || v.type == J_STR) &&
        (key.type == J_INT || key.type == J_BOOL)) {
        const int64_t n = (int64_t)(v.type == J_LIST ? v.l->n : jstr_chars(v.s));
        int64_t i = key.type == J_BOOL ? key.b : key.i;
        i += i < 0 ? n : 0;
        if (i >= 0 && i < n) {
            if (v.type == J_STR)
                return jstr_sub(r, v, jstr_byte(v.s, (size_t)i), jstr_byte(v.s, (size_t)i + 1),
                                out);
            *out = v.l->v[i];
            return true;
        }
    }
    if (key.type == J_STR) {
        *out = (struct jval){.type = J_ABSENT};
        if (v.type != J_NAMESPACE && !jinja_method(r, v, jv_text(key), out))
            return false;
        if (v.type == J_NAMESPACE)
            return jattr(r, v, jv_text(key), out);
        return out->type != J_ABSENT || no_attr(r, v, jv_text(key), out);
    }
    struct buf b = BUF_INIT;
    jv_repr(key, &b);
    const bool ok =
        jv_undef_fmt(r, out, "'%s object' has no element %s", jtype_name(v), buf_str(&b));
    buf_release(&b);
    return ok;
}

/* A bound of a slice, clamped to [lo, hi]; counts from the end when negative. */
static int64_t clamp(int64_t i, int64_t n, int64_t lo, int64_t hi)
{
    if (i < 0)
        i = i < -n ? -1 : i + n;
    return i < lo ? lo : i > hi ? hi : i;
}

static bool slice_bound(struct jrun *r, const struct jnode *n, int64_t if_absent, bool *given,
                        int64_t *out)
{
    *given = false;
    *out = if_absent;
    if (!n)
        return true;
    struct jval v;
    if (!eval(r, n, &v))
        return false;
    if (v.type == J_NONE)
        return true;
    if (v.type == J_UNDEF)
        return jfail_undef(r, v);
    if (v.type != J_INT && v.type != J_BOOL)
        return jfail(r, "slice indices must be integers or None");
    *given = true;
    *out = v.type == J_BOOL ? v.b : v.i;
    return true;
}

static bool slice(struct jrun *r, struct jval v, const struct jnode *s, struct jval *out)
{
    bool has_a, has_b, has_c;
    int64_t a, b, step;
    if (v.type == J_UNDEF)
        return jfail_undef(r, v);
    if (!slice_bound(r, s->a, 0, &has_a, &a) || !slice_bound(r, s->b, 0, &has_b, &b) ||
        !slice_bound(r, s->c, 1, &has_c, &step))
        return false;
    r->at = s;
    if ((v.type != J_LIST || v.l->view) && v.type != J_STR)
        return jfail(r, "'%s' object cannot be sliced", jtype_name(v));
    if (step == 0)
        return jfail(r, "slice step cannot be zero");
    const int64_t n = (int64_t)(v.type == J_LIST ? v.l->n : jstr_chars(v.s));
    if (step > 0) {
        a = has_a ? clamp(a, n, 0, n) : 0;
        b = has_b ? clamp(b, n, 0, n) : n;
    } else {
        a = has_a ? clamp(a, n, -1, n - 1) : n - 1;
        b = has_b ? clamp(b, n, -1, n - 1) : -1;
    }
    if (v.type == J_STR && step == 1)
        return jstr_sub(r, v, jstr_byte(v.s, (size_t)a), jstr_byte(v.s, (size_t)MAX(a, b)), out);
    struct jlist *items;
    struct jval list;
    if (!jv_items(r, v, &items) || !jlist_new(r, 0, &list))
        return false;
    for (int64_t i = a; step > 0 ? i < b : i > b;) {
        if (!jstep(r, 1) || !jlist_add(r, list, items->v[i]))
            return false;
        if (__builtin_add_overflow(i, step, &i))
            break;
    }
    list.tuple = v.type == J_LIST && v.tuple;
    list.source = v.type == J_LIST ? v.source : 0;
    if (v.type == J_STR)
        return jstr_concat(r, list.l->v, list.l->n, out);
    *out = list;
    return true;
}

/* ---- operators ---- */

static bool is_int(struct jval v)
{
    return v.type == J_INT || v.type == J_BOOL;
}

static int64_t as_int(struct jval v)
{
    return v.type == J_BOOL ? v.b : v.i;
}

static bool is_num(struct jval v)
{
    return is_int(v) || v.type == J_FLOAT;
}

static double as_float(struct jval v)
{
    return v.type == J_FLOAT ? v.f : (double)as_int(v);
}

static bool op_types(struct jrun *r, const char *op, struct jval a, struct jval b)
{
    if (a.type == J_UNDEF || b.type == J_UNDEF)
        return jfail_undef(r, a.type == J_UNDEF ? a : b);
    return jfail(r, "unsupported operand types for %s: '%s' and '%s'", op, jtype_name(a),
                 jtype_name(b));
}

static bool overflow(struct jrun *r)
{
    return jfail_rc(r, RC_LIMIT, "an integer is too large");
}

static bool repeat(struct jrun *r, struct jval v, int64_t times, struct jval *out)
{
    const size_t n = v.type == J_STR ? v.s->n : v.l->n;
    const uint64_t k = times > 0 && n ? (uint64_t)times : 0;
    uint64_t total;
    if (!mul_u64(k, n ? n : 1, &total) || total > r->o->max_output || !jstep(r, total / 16))
        return jfail_rc(r, RC_LIMIT, "a repetition is too long");
    struct jval list;
    if (!jlist_new(r, 0, &list))
        return false;
    list.tuple = v.type == J_LIST && v.tuple;
    for (uint64_t i = 0; i < k; i++) {
        if (v.type == J_STR && !jlist_add(r, list, v))
            return false;
        for (size_t j = 0; v.type == J_LIST && j < n; j++)
            if (!jlist_add(r, list, v.l->v[j]))
                return false;
    }
    if (v.type == J_STR)
        return jstr_concat(r, list.l->v, list.l->n, out);
    *out = list;
    return true;
}

static bool add(struct jrun *r, struct jval a, struct jval b, struct jval *out)
{
    if (is_int(a) && is_int(b)) {
        *out = jv_int(0);
        return !__builtin_add_overflow(as_int(a), as_int(b), &out->i) || overflow(r);
    }
    if (is_num(a) && is_num(b)) {
        *out = jv_float(as_float(a) + as_float(b));
        return true;
    }
    if (a.type == J_STR && b.type == J_STR)
        return jstr_concat(r, (struct jval[]){a, b}, 2, out);
    if (a.type == J_LIST && b.type == J_LIST && a.tuple == b.tuple && !a.l->view && !b.l->view) {
        if (!jlist_new(r, a.l->n + b.l->n, out) || !jstep(r, a.l->n + b.l->n))
            return false;
        out->tuple = a.tuple;
        out->source = a.source == b.source ? a.source : 0;
        for (size_t i = 0; i < a.l->n + b.l->n; i++)
            if (!jlist_add(r, *out, i < a.l->n ? a.l->v[i] : b.l->v[i - a.l->n]))
                return false;
        return true;
    }
    return op_types(r, "+", a, b);
}

/* Python's: the quotient rounds down, the remainder has the divisor's sign. */
static bool int_div(struct jrun *r, int64_t a, int64_t b, bool want_mod, struct jval *out)
{
    if (b == 0)
        return jfail(r, "integer division or modulo by zero");
    if (b == -1) {
        *out = jv_int(0);
        return want_mod || !__builtin_sub_overflow(0, a, &out->i) || overflow(r);
    }
    const int64_t q = a / b, m = a % b;
    const bool down = m != 0 && (m < 0) != (b < 0);
    *out = jv_int(want_mod ? m + (down ? b : 0) : q - down);
    return true;
}

static bool power(struct jrun *r, struct jval a, struct jval b, struct jval *out)
{
    if (!is_num(a) || !is_num(b))
        return op_types(r, "**", a, b);
    if (!is_int(a) || !is_int(b) || as_int(b) < 0) {
        if (as_float(a) == 0 && as_float(b) < 0)
            return jfail(r, "0.0 cannot be raised to a negative power");
        *out = jv_float(pow(as_float(a), as_float(b)));
        return true;
    }
    int64_t x = as_int(a), n = as_int(b), y = 1;
    while (n) {
        if ((n & 1) && __builtin_mul_overflow(y, x, &y))
            return overflow(r);
        n >>= 1;
        if (n && __builtin_mul_overflow(x, x, &x))
            return overflow(r);
    }
    *out = jv_int(y);
    return true;
}

static bool arithmetic(struct jrun *r, enum op op, struct jval a, struct jval b, struct jval *out)
{
    switch (op) {
    case OP_ADD:
        return add(r, a, b, out);
    case OP_SUB:
        if (is_int(a) && is_int(b)) {
            *out = jv_int(0);
            return !__builtin_sub_overflow(as_int(a), as_int(b), &out->i) || overflow(r);
        }
        if (!is_num(a) || !is_num(b))
            return op_types(r, "-", a, b);
        *out = jv_float(as_float(a) - as_float(b));
        return true;
    case OP_MUL:
        if (is_int(a) && is_int(b)) {
            *out = jv_int(0);
            return !__builtin_mul_overflow(as_int(a), as_int(b), &out->i) || overflow(r);
        }
        if ((a.type == J_STR || a.type == J_LIST) && is_int(b))
            return repeat(r, a, as_int(b), out);
        if (is_int(a) && (b.type == J_STR || b.type == J_LIST))
            return repeat(r, b, as_int(a), out);
        if (!is_num(a) || !is_num(b))
            return op_types(r, "*", a, b);
        *out = jv_float(as_float(a) * as_float(b));
        return true;
    case OP_DIV:
        if (!is_num(a) || !is_num(b))
            return op_types(r, "/", a, b);
        if (as_float(b) == 0)
            return jfail(r, "division by zero");
        *out = jv_float(as_float(a) / as_float(b));
        return true;
    case OP_POW:
        return power(r, a, b, out);
    default: /* // and % */
        if (op == OP_MOD && a.type == J_STR)
            return jinja_format(r, a, b, out);
        if (!is_num(a) || !is_num(b))
            return op_types(r, op == OP_MOD ? "%" : "//", a, b);
        if (is_int(a) && is_int(b))
            return int_div(r, as_int(a), as_int(b), op == OP_MOD, out);
        if (as_float(b) == 0)
            return jfail(r, "float division by zero");
        const double x = as_float(a), y = as_float(b);
        double m = fmod(x, y);
        if (m != 0 && (m < 0) != (y < 0))
            m += y;
        *out = jv_float(op == OP_MOD ? m : floor((x - m) / y + 0.5));
        return true;
    }
}

static bool contains(struct jrun *r, struct jval item, struct jval in, bool *out)
{
    *out = false;
    switch (in.type) {
    case J_UNDEF:
        return true;
    case J_STR:
        if (item.type != J_STR)
            return item.type == J_UNDEF
                       ? jfail_undef(r, item)
                       : jfail(r, "'in <string>' requires string as left operand, not %s",
                               jtype_name(item));
        *out = str_find(jv_text(in), jv_text(item), 0) >= 0;
        return jstep(r, in.s->n / 64);
    case J_LIST:
        for (size_t i = 0; !*out && i < in.l->n; i++)
            *out = jequal(in.l->v[i], item);
        return jstep(r, in.l->n / 8);
    case J_DICT:
        *out = jdict_get(in.d, item) != NULL;
        return jhashable(r, item) && jstep(r, in.d->n / 8);
    default:
        return jfail(r, "argument of type '%s' is not iterable", jtype_name(in));
    }
}

static bool compare(struct jrun *r, enum op op, struct jval a, struct jval b, bool *out)
{
    static const char *const names[] = {
        [OP_GT] = ">", [OP_GE] = ">=", [OP_LT] = "<", [OP_LE] = "<="};
    int c;
    switch (op) {
    case OP_EQ:
    case OP_NE:
        *out = jequal(a, b) == (op == OP_EQ);
        return true;
    case OP_IN:
    case OP_NOT_IN:
        if (!contains(r, a, b, out))
            return false;
        *out = *out == (op == OP_IN);
        return true;
    default:
        if (!jcompare(r, a, b, names[op], &c))
            return false;
        *out = op == OP_GT ? c > 0 : op == OP_GE ? c >= 0 : op == OP_LT ? c < 0 : c <= 0;
        return true;
    }
}

static bool eval_compare(struct jrun *r, const struct jnode *n, struct jval *out)
{
    struct jval left, right;
    if (!eval(r, n->a, &left))
        return false;
    bool yes = true;
    for (size_t i = 0; yes && i < n->kids.n; i++, left = right) {
        if (!eval(r, n->kids.v[i], &right))
            return false;
        r->at = n;
        if (!compare(r, n->ops[i], left, right, &yes))
            return false;
    }
    *out = jv_bool(yes);
    return true;
}

/* ---- calls ---- */

static bool eval_args(struct jrun *r, const struct jnode *n, struct jargs *a)
{
    *a = (struct jargs){0};
    struct jval star = {.type = J_ABSENT}, star_star = {.type = J_ABSENT};
    struct jlist *more = NULL;
    if (n->star && (!eval(r, n->star, &star) || !jv_items(r, star, &more)))
        return false;
    if (n->star_star && !eval(r, n->star_star, &star_star))
        return false;
    if (n->star_star && star_star.type != J_DICT)
        return jfail(r, "argument after ** must be a mapping, not %s", jtype_name(star_star));
    const size_t n_pos = n->kids.n - n->n_names;
    const size_t n_kw = n->n_names + (n->star_star ? star_star.d->n : 0) + 1; /* 1: a caller */
    a->pos = jalloc(r, (n_pos + (more ? more->n : 0) + 1) * sizeof *a->pos);
    a->kw = jalloc(r, n_kw * sizeof *a->kw);
    a->kw_name = jalloc(r, n_kw * sizeof *a->kw_name);
    if (!a->pos || !a->kw || !a->kw_name)
        return false;
    for (size_t i = 0; i < n_pos; i++)
        if (!eval(r, n->kids.v[i], &a->pos[a->n_pos++]))
            return false;
    for (size_t i = 0; more && i < more->n; i++)
        a->pos[a->n_pos++] = more->v[i];
    for (size_t i = 0; i < n->n_names; i++) {
        a->kw_name[i] = n->names[i];
        if (!eval(r, n->kids.v[n_pos + i], &a->kw[i]))
            return false;
        a->n_kw++;
    }
    for (size_t i = 0; n->star_star && i < star_star.d->n; i++) {
        if (star_star.d->k[i].type != J_STR)
            return jfail(r, "keywords must be strings");
        a->kw_name[a->n_kw] = jv_text(star_star.d->k[i]);
        a->kw[a->n_kw++] = star_star.d->v[i];
    }
    return true;
}

/* Sets one of the names a macro body may use without declaring it. */
static bool set_implicit(struct jrun *r, struct jscope *s, const char *name, struct jval v)
{
    for (size_t i = 0; i < r->t->n_names; i++)
        if (str_is(r->t->names[i], name))
            return set_var(r, s, (uint32_t)i, v);
    return true;
}

static bool bind_params(struct jrun *r, const struct jnode *m, const char *name,
                        const struct jargs *a, struct jscope *s)
{
    const size_t n_defaults = m->kids.n - m->n_params;
    struct jval varargs, kwargs, caller = {.type = J_ABSENT};
    uint64_t used = 0; /* keywords that name a parameter */
    if (!jlist_new(r, 0, &varargs) || !jdict_new(r, &kwargs))
        return false;
    varargs.tuple = true;
    if (a->n_pos > m->n_params && !m->uses_varargs)
        return jfail(r, "macro '%s' takes not more than %zu argument(s)", name, m->n_params);
    if (a->n_kw > 64)
        return jfail_rc(r, RC_LIMIT, "more than 64 keyword arguments");
    for (size_t i = m->n_params; i < a->n_pos; i++)
        if (!jlist_add(r, varargs, a->pos[i]))
            return false;
    for (size_t i = 0; i < m->n_params; i++) {
        const struct jnode *const p = m->kids.v[i];
        struct jval v = {.type = J_ABSENT};
        if (i < a->n_pos)
            v = a->pos[i];
        for (size_t k = 0; k < a->n_kw; k++) {
            if (!str_eq(a->kw_name[k], p->text))
                continue;
            if (v.type != J_ABSENT)
                return jfail(r, "macro '%s' got multiple values for argument '%.*s'", name,
                             (int)p->text.n, p->text.p);
            v = a->kw[k];
            used |= UINT64_C(1) << k;
        }
        if (v.type == J_ABSENT) {
            const size_t first = m->n_params - n_defaults;
            if (i >= first ? !eval(r, m->kids.v[m->n_params + i - first], &v)
                           : !jv_undef_fmt(r, &v, "parameter '%.*s' was not provided",
                                           (int)p->text.n, p->text.p))
                return false;
        }
        if (!set_var(r, s, p->name, v))
            return false;
    }
    for (size_t k = 0; k < a->n_kw; k++) {
        if (used >> k & 1)
            continue;
        if (m->uses_caller && str_is(a->kw_name[k], "caller")) {
            caller = a->kw[k];
            continue;
        }
        struct jval key;
        if (!m->uses_kwargs)
            return jfail(r, "macro '%s' takes no keyword argument '%.*s'", name,
                         (int)a->kw_name[k].n, a->kw_name[k].p);
        if (!jstr_borrow(r, a->kw_name[k].p, a->kw_name[k].n, &key) ||
            !jdict_set(r, kwargs, key, a->kw[k]))
            return false;
    }
    if (caller.type == J_ABSENT)
        caller = jv_undef("No caller defined");
    return (!m->uses_varargs || set_implicit(r, s, "varargs", varargs)) &&
           (!m->uses_kwargs || set_implicit(r, s, "kwargs", kwargs)) &&
           (!m->uses_caller || m->kind != N_MACRO || set_implicit(r, s, "caller", caller));
}

static bool call_macro(struct jrun *r, const struct jfunc *f, const struct jargs *a,
                       struct jval *out)
{
    struct jscope *const before = r->scope;
    struct jscope *const s = scope_new(r, f->scope);
    struct jout o;
    if (!s)
        return false;
    r->scope = s; /* a default may use the parameters before it */
    capture_begin(r, &o);
    const bool ok =
        bind_params(r, f->macro, f->name, a, s) && exec(r, &f->macro->body) != FLOW_FAIL;
    r->scope = before;
    return capture_end(r, &o, ok, out);
}

static enum flow run_for(struct jrun *r, const struct jnode *n, struct jval over, uint32_t depth0);

bool jcall(struct jrun *r, struct jval f, const struct jargs *a, struct jval *out)
{
    if (++r->depth > r->o->max_depth)
        return jfail_rc(r, RC_LIMIT, "calls are nested too deeply");
    bool ok;
    if (f.type == J_UNDEF) {
        ok = jfail_undef(r, f);
    } else if (f.type == J_FUNC) {
        ok = f.fn->fn ? f.fn->fn(r, f.fn->self, a, out) : call_macro(r, f.fn, a, out);
    } else if (f.type == J_LOOP && f.loop->node && a->n_pos == 1 && a->n_kw == 0) {
        struct jscope *const before = r->scope;
        struct jout o;
        r->scope = f.loop->scope;
        capture_begin(r, &o);
        ok = run_for(r, f.loop->node, a->pos[0], f.loop->depth0 + 1) != FLOW_FAIL;
        r->scope = before;
        ok = capture_end(r, &o, ok, out);
    } else {
        ok = jfail(r, "'%s' object is not callable", jtype_name(f));
    }
    r->depth--;
    return ok;
}

static bool eval_call(struct jrun *r, const struct jnode *n, const struct jval *caller,
                      struct jval *out)
{
    struct jval f;
    struct jargs a;
    if (!eval(r, n->a, &f) || !eval_args(r, n, &a))
        return false;
    if (caller) {
        a.kw_name[a.n_kw] = str_of("caller");
        a.kw[a.n_kw++] = *caller;
    }
    r->at = n;
    return jcall(r, f, &a, out);
}

/* ---- expressions ---- */

static bool eval_list(struct jrun *r, const struct jnode *n, struct jval *out)
{
    struct jval list;
    if (!jlist_new(r, n->kids.n, &list))
        return false;
    for (size_t i = 0; i < n->kids.n; i++) {
        struct jval v;
        if (!eval(r, n->kids.v[i], &v) || !jlist_add(r, list, v))
            return false;
    }
    list.tuple = n->kind == N_TUPLE;
    *out = list;
    return true;
}

static bool eval_dict(struct jrun *r, const struct jnode *n, struct jval *out)
{
    struct jval d;
    if (!jdict_new(r, &d))
        return false;
    for (size_t i = 0; i < n->kids.n; i += 2) {
        struct jval k, v;
        if (!eval(r, n->kids.v[i], &k) || !eval(r, n->kids.v[i + 1], &v) || !jdict_set(r, d, k, v))
            return false;
    }
    *out = d;
    return true;
}

static bool eval_concat(struct jrun *r, const struct jnode *n, struct jval *out)
{
    struct jval *const v = jalloc(r, n->kids.n * sizeof *v);
    if (!v)
        return false;
    for (size_t i = 0; i < n->kids.n; i++)
        if (!eval(r, n->kids.v[i], &v[i]) || !jv_str(r, v[i], &v[i]))
            return false;
    return jstr_concat(r, v, n->kids.n, out);
}

static bool eval_filter(struct jrun *r, const struct jnode *n, const struct jval *block,
                        struct jval *out)
{
    struct jval v;
    struct jargs a;
    bool ok = true;
    if (!block)
        ok = eval(r, n->a, &v);
    else if (n->a)
        ok = eval_filter(r, n->a, block, &v);
    else
        v = *block; /* the first of a block's filters */
    if (!ok || !eval_args(r, n, &a))
        return false;
    r->at = n;
    return n->fn(r, v, &a, out);
}

static bool eval_sign(struct jrun *r, const struct jnode *n, struct jval *out)
{
    struct jval v;
    if (!eval(r, n->a, &v))
        return false;
    r->at = n;
    if (v.type == J_UNDEF)
        return jfail_undef(r, v);
    if (!is_num(v))
        return jfail(r, "bad operand type for unary %c: '%s'", n->kind == N_NEG ? '-' : '+',
                     jtype_name(v));
    if (v.type == J_FLOAT) {
        *out = jv_float(n->kind == N_NEG ? -v.f : v.f);
        return true;
    }
    *out = jv_int(as_int(v));
    return n->kind == N_POS || !__builtin_sub_overflow(0, out->i, &out->i) || overflow(r);
}

static bool eval_node(struct jrun *r, const struct jnode *n, struct jval *out)
{
    struct jval a, b;
    switch (n->kind) {
    case N_CONST:
        *out = n->value;
        return true;
    case N_NAME:
        return get_var(r, n->name, out);
    case N_LIST:
    case N_TUPLE:
        return eval_list(r, n, out);
    case N_DICT:
        return eval_dict(r, n, out);
    case N_COND:
        if (!eval(r, n->b, &a))
            return false;
        if (jtruth(a))
            return eval(r, n->a, out);
        if (n->c)
            return eval(r, n->c, out);
        *out = jv_undef("the inline if-expression evaluated to false and no else section was "
                        "defined");
        return true;
    case N_OR:
    case N_AND:
        if (!eval(r, n->a, out))
            return false;
        return jtruth(*out) == (n->kind == N_OR) || eval(r, n->b, out);
    case N_NOT:
        if (!eval(r, n->a, &a))
            return false;
        *out = jv_bool(!jtruth(a));
        return true;
    case N_COMPARE:
        return eval_compare(r, n, out);
    case N_CONCAT:
        return eval_concat(r, n, out);
    case N_BINARY:
        if (!eval(r, n->a, &a) || !eval(r, n->b, &b))
            return false;
        r->at = n;
        return arithmetic(r, n->op, a, b, out);
    case N_NEG:
    case N_POS:
        return eval_sign(r, n, out);
    case N_ATTR:
        if (!eval(r, n->a, &a))
            return false;
        r->at = n;
        return jattr(r, a, n->text, out);
    case N_ITEM:
        if (!eval(r, n->a, &a))
            return false;
        if (n->b->kind == N_SLICE)
            return slice(r, a, n->b, out);
        if (!eval(r, n->b, &b))
            return false;
        r->at = n;
        return jitem(r, a, b, out);
    case N_CALL:
        return eval_call(r, n, NULL, out);
    case N_FILTER:
        return eval_filter(r, n, NULL, out);
    case N_TEST: {
        struct jargs args;
        if (!eval(r, n->a, &a) || !eval_args(r, n, &args))
            return false;
        r->at = n;
        return n->fn(r, a, &args, out);
    }
    default:
        return jfail(r, "a slice stands alone");
    }
}

static bool eval(struct jrun *r, const struct jnode *n, struct jval *out)
{
    r->at = n;
    if (++r->depth > r->o->max_depth)
        return jfail_rc(r, RC_LIMIT, "expressions are nested too deeply");
    const bool ok = jstep(r, 1) && eval_node(r, n, out);
    r->depth--;
    return ok;
}

/* ---- statements ---- */

/* The items for which the loop's condition holds. */
static bool filter_items(struct jrun *r, const struct jnode *n, struct jlist **items)
{
    struct jscope *const before = r->scope;
    struct jval kept;
    if (!jlist_new(r, 0, &kept))
        return false;
    for (size_t i = 0; i < (*items)->n; i++) {
        struct jval yes;
        r->scope = scope_new(r, before);
        if (!r->scope || !assign(r, n->a, (*items)->v[i]) || !eval(r, n->c, &yes) ||
            (jtruth(yes) && !jlist_add(r, kept, (*items)->v[i])))
            return false;
    }
    r->scope = before;
    *items = kept.l;
    return true;
}

static enum flow run_for(struct jrun *r, const struct jnode *n, struct jval over, uint32_t depth0)
{
    struct jscope *const before = r->scope;
    struct jlist *items;
    struct jloop *const loop = jalloc(r, sizeof *loop);
    r->at = n->b;
    if (!loop || !jv_items(r, over, &items) || (n->c && !filter_items(r, n, &items)))
        return FLOW_FAIL;
    *loop = (struct jloop){.items = items, .depth0 = depth0, .scope = before};
    if (n->flag)
        loop->node = n;
    for (size_t i = 0; i < items->n; i++) {
        struct jinja_result *const o = &r->out->r;
        const size_t at = o->text.n;
        const struct jval item = items->v[i];
        loop->i = i;
        r->scope = scope_new(r, before);
        if (!r->scope ||
            !set_var(r, r->scope, n->name, (struct jval){.type = J_LOOP, .loop = loop}) ||
            !assign(r, n->a, item))
            return FLOW_FAIL;
        const enum flow f = exec(r, &n->body);
        r->scope = before;
        if (f == FLOW_FAIL)
            return FLOW_FAIL;
        if (item.type == J_DICT && item.source &&
            !add_mark(r, o, (struct jinja_mark){at, o->text.n, item.source | JINJA_LOOP}))
            return FLOW_FAIL;
        if (f == FLOW_BREAK)
            break;
    }
    if (!items->n && n->other.n) {
        r->scope = scope_new(r, before);
        const enum flow f = r->scope ? exec(r, &n->other) : FLOW_FAIL;
        r->scope = before;
        return f;
    }
    return FLOW_NEXT;
}

/* Runs a body in a scope of its own. */
static enum flow exec_scoped(struct jrun *r, const struct jnode_list *body)
{
    struct jscope *const before = r->scope;
    r->scope = scope_new(r, before);
    const enum flow f = r->scope ? exec(r, body) : FLOW_FAIL;
    r->scope = before;
    return f;
}

/* A set or filter block: its output, through its filters. */
static enum flow exec_captured(struct jrun *r, const struct jnode *n, struct jval *out)
{
    struct jout o;
    capture_begin(r, &o);
    const enum flow f = exec_scoped(r, &n->body);
    struct jval v;
    if (!capture_end(r, &o, f != FLOW_FAIL, &v))
        return FLOW_FAIL;
    *out = v;
    return n->b && !eval_filter(r, n->b, &v, out) ? FLOW_FAIL : f;
}

static enum flow exec_if(struct jrun *r, const struct jnode *n)
{
    for (size_t i = 0; i < n->kids.n; i++) {
        struct jval v;
        if (!eval(r, n->kids.v[i], &v))
            return FLOW_FAIL;
        if (jtruth(v))
            return exec(r, &n->bodies[i]);
    }
    return exec(r, &n->other);
}

static enum flow exec_with(struct jrun *r, const struct jnode *n)
{
    struct jscope *const before = r->scope;
    struct jscope *const s = scope_new(r, before);
    for (size_t i = 0; i < n->kids.n; i += 2) {
        struct jval v;
        r->scope = before; /* a value does not see the targets */
        if (!s || !eval(r, n->kids.v[i + 1], &v))
            return FLOW_FAIL;
        r->scope = s;
        if (!assign(r, n->kids.v[i], v))
            return FLOW_FAIL;
    }
    r->scope = s;
    const enum flow f = s ? exec(r, &n->body) : FLOW_FAIL;
    r->scope = before;
    return f;
}

static bool new_macro(struct jrun *r, const struct jnode *n, struct jval *out)
{
    struct jfunc *const f = jalloc(r, sizeof *f);
    char *const name = jalloc(r, n->text.n + 1);
    if (!f || !name)
        return false;
    memcpy(name, n->text.p, n->text.n);
    *f = (struct jfunc){.name = name, .macro = n, .scope = r->scope};
    *out = (struct jval){.type = J_FUNC, .fn = f};
    return true;
}

static enum flow exec_node(struct jrun *r, const struct jnode *n)
{
    struct jval v;
    bool ok = true;
    enum flow f = FLOW_NEXT;
    switch (n->kind) {
    case N_DATA:
        ok = write_raw(r, n->text);
        break;
    case N_PRINT:
        for (size_t i = 0; ok && i < n->kids.n; i++)
            ok = eval(r, n->kids.v[i], &v) && write_value(r, v);
        break;
    case N_FOR:
        return eval(r, n->b, &v) ? run_for(r, n, v, 0) : FLOW_FAIL;
    case N_IF:
        return exec_if(r, n);
    case N_SET:
        ok = eval(r, n->b, &v) && assign(r, n->a, v);
        break;
    case N_SET_BLOCK:
        f = exec_captured(r, n, &v);
        ok = f != FLOW_FAIL && assign(r, n->a, v);
        break;
    case N_FILTER_BLOCK:
        f = exec_captured(r, n, &v);
        ok = f != FLOW_FAIL && write_value(r, v);
        break;
    case N_MACRO:
        ok = new_macro(r, n, &v) && set_var(r, r->scope, n->name, v);
        break;
    case N_CALL_BLOCK: {
        struct jval caller;
        ok = new_macro(r, n, &caller) && eval_call(r, n->a, &caller, &v) && write_value(r, v);
        break;
    }
    case N_WITH:
        return exec_with(r, n);
    case N_BREAK:
        return FLOW_BREAK;
    case N_CONTINUE:
        return FLOW_CONTINUE;
    case N_GENERATION:
        return exec_scoped(r, &n->body);
    default:
        ok = jfail(r, "not a statement");
    }
    return ok ? f : FLOW_FAIL;
}

static enum flow exec(struct jrun *r, const struct jnode_list *body)
{
    if (++r->depth > r->o->max_depth) {
        (void)jfail_rc(r, RC_LIMIT, "blocks are nested too deeply");
        return FLOW_FAIL;
    }
    enum flow f = FLOW_NEXT;
    for (size_t i = 0; f == FLOW_NEXT && i < body->n; i++) {
        r->at = body->v[i];
        f = jstep(r, 1) ? exec_node(r, body->v[i]) : FLOW_FAIL;
    }
    r->depth--;
    return f;
}

/* ---- the outside ---- */

/* Newlines become \n, and the last one goes, as Jinja reads sources. */
static bool normalise(struct jinja *t, struct str s)
{
    char *const p = arena_try(&t->arena, s.n + 1);
    if (!p)
        return false;
    size_t n = 0;
    for (size_t i = 0; i < s.n; i++) {
        if (s.p[i] == '\r' && i + 1 < s.n && s.p[i + 1] == '\n')
            continue;
        p[n++] = s.p[i] == '\r' ? '\n' : s.p[i];
    }
    n -= n && p[n - 1] == '\n';
    t->source = (struct str){p, n};
    return true;
}

enum rc jinja_compile(struct str source, struct jinja **out, struct err *err)
{
    if (source.n > 16 * MIB)
        return err_set(err, RC_LIMIT, "a template of %zu bytes is larger than 16 MiB", source.n);
    if (!utf8_valid(source.p, source.n))
        return err_set(err, RC_FORMAT, "the template is not UTF-8");
    struct jinja *t = mem_zalloc(sizeof *t);
    struct jtokens toks = {0};
    arena_init(&t->arena, 0);
    enum rc rc = RC_OK;
    if (!normalise(t, source))
        rc = err_set(err, RC_NOMEM, "no memory for the template");
    if (!rc)
        rc = jinja_lex(t, &toks, err);
    if (!rc)
        rc = jinja_parse(t, &toks, err);
    mem_free(toks.v);
    if (rc)
        goto out;
    *out = t;
    t = NULL;
out:
    jinja_free(t);
    return rc;
}

void jinja_free(struct jinja *t)
{
    if (!t)
        return;
    mem_free(t->names);
    arena_release(&t->arena);
    mem_free(t);
}

void jinja_result_release(struct jinja_result *o)
{
    buf_release(&o->text);
    mem_free(o->marks);
    *o = (struct jinja_result){0};
}

static int by_address(const void *a, const void *b)
{
    const struct jinja_source *const x = a, *const y = b;
    const uintptr_t p = (uintptr_t)x->value, q = (uintptr_t)y->value;
    return p < q ? -1 : p > q;
}

enum rc jinja_render(const struct jinja *t, const json_t *vars, const struct jinja_opts *o,
                     struct jinja_result *out, struct err *err)
{
    struct jinja_opts opts = *o;
    opts.max_steps = o->max_steps ? o->max_steps : 20000000;
    opts.max_output = o->max_output ? o->max_output : 64 * MIB;
    opts.max_memory = o->max_memory ? o->max_memory : 512 * MIB;
    opts.max_depth = o->max_depth ? o->max_depth : 800;
    struct jrun r = {.t = t, .o = &opts, .vars = vars, .steps_left = opts.max_steps, .err = err};
    arena_init(&r.arena, opts.max_memory);
    r.root = jalloc(&r, (t->n_names + 1) * sizeof *r.root);
    struct jinja_source *const sources =
        r.root ? jalloc(&r, (o->n_sources + 1) * sizeof *sources) : NULL;
    struct jout top = {0};
    top.r.text.limit = opts.max_output;
    if (sources) {
        if (o->n_sources)
            memcpy(sources, o->sources, o->n_sources * sizeof *sources);
        qsort(sources, o->n_sources, sizeof *sources, by_address);
        opts.sources = sources;
        r.out = &top;
        (void)exec(&r, &t->body);
    }
    arena_release(&r.arena);
    if (r.rc) {
        jinja_result_release(&top.r);
        return r.rc;
    }
    jinja_result_release(out);
    *out = top.r;
    out->text.limit = 0;
    return RC_OK;
}
