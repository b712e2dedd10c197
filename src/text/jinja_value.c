/* jinja_value.c - values: strings with marks, lists, dicts; Python's equality, order, repr and JSON.
 *
 * Values are never changed once others can see them (namespaces aside), so they are shared freely.
 * All live in the run's arena.
 */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "text/jinja_int.h"
#include "text/json_int.h"
#include "text/unicode.h"

/* ---- failing ---- */

void jfail_set(struct jrun *r, enum rc rc, const char *fmt, ...)
{
    char msg[200];
    va_list ap;
    if (r->rc)
        return;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    r->rc = jinja_fail_at(r->t, r->at ? r->at->off : 0, rc, msg, r->err);
}

bool jstep(struct jrun *r, uint64_t n)
{
    if (r->steps_left < n)
        return jfail_rc(r, RC_LIMIT, "the template takes too many steps");
    r->steps_left -= n;
    return true;
}

void *jalloc(struct jrun *r, size_t n)
{
    void *const p = arena_try(&r->arena, n);
    if (!p && (n > r->arena.limit || r->arena.used > r->arena.limit - n))
        (void)jfail_rc(r, RC_LIMIT, "the template takes too much memory");
    else if (!p)
        (void)jfail_rc(r, RC_NOMEM, "no memory for the template's values");
    return p;
}

bool jv_undef_fmt(struct jrun *r, struct jval *out, const char *fmt, ...)
{
    char msg[200];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    char *const kept = jalloc(r, strlen(msg) + 1);
    if (!kept)
        return false;
    memcpy(kept, msg, strlen(msg));
    *out = jv_undef(kept);
    return true;
}

/* ---- strings ---- */

bool jstr_borrow(struct jrun *r, const char *p, size_t n, struct jval *out)
{
    struct jstr *const s = jalloc(r, sizeof *s);
    if (!s)
        return false;
    *s = (struct jstr){.p = p, .n = n, .n_chars = SIZE_MAX};
    *out = (struct jval){.type = J_STR, .s = s};
    return true;
}

bool jstr_copy(struct jrun *r, const char *p, size_t n, struct jval *out)
{
    char *const q = jalloc(r, n + 1);
    if (!q || !jstep(r, n / 64))
        return false;
    if (n)
        memcpy(q, p, n);
    return jstr_borrow(r, q, n, out);
}

bool jstr_take(struct jrun *r, struct buf *b, struct jval *out)
{
    const bool ok = b->failed ? jfail_rc(r, RC_NOMEM, "the template takes too much memory")
                              : jstr_copy(r, buf_str(b), b->n, out);
    buf_release(b);
    return ok;
}

static bool mark_whole(struct jrun *r, struct jval s, uint32_t source)
{
    if (!source || !s.s->n)
        return true;
    struct jinja_mark *const m = jalloc(r, sizeof *m);
    if (!m)
        return false;
    *m = (struct jinja_mark){0, s.s->n, source};
    s.s->marks = m;
    s.s->n_marks = 1;
    return true;
}

bool jstr_take_from(struct jrun *r, struct buf *b, struct jval from, struct jval *out)
{
    const uint32_t source = from.type == J_STR ? (from.s->n_marks ? from.s->marks[0].source : 0)
                            : from.type == J_LIST || from.type == J_DICT ? from.source
                                                                         : 0;
    return jstr_take(r, b, out) && mark_whole(r, *out, source);
}

bool jstr_sub(struct jrun *r, struct jval v, size_t begin, size_t end, struct jval *out)
{
    const struct jstr *const s = v.s;
    if (begin == 0 && end == s->n) {
        *out = v;
        return true;
    }
    if (!jstr_borrow(r, s->p + begin, end - begin, out))
        return false;
    if (!s->n_marks || begin == end)
        return true;
    struct jinja_mark *const m = jalloc(r, s->n_marks * sizeof *m);
    if (!m || !jstep(r, s->n_marks))
        return false;
    size_t n = 0;
    for (size_t i = 0; i < s->n_marks; i++) {
        const size_t b = MAX(s->marks[i].begin, begin), e = MIN(s->marks[i].end, end);
        if (b < e)
            m[n++] = (struct jinja_mark){b - begin, e - begin, s->marks[i].source};
    }
    out->s->marks = m;
    out->s->n_marks = n;
    return true;
}

bool jstr_concat(struct jrun *r, const struct jval *v, size_t n, struct jval *out)
{
    size_t bytes = 0, n_marks = 0;
    for (size_t i = 0; i < n; i++) {
        bytes += v[i].s->n;
        n_marks += v[i].s->n_marks;
    }
    char *const p = jalloc(r, bytes + 1);
    struct jinja_mark *const m = n_marks ? jalloc(r, n_marks * sizeof *m) : NULL;
    if (!p || (n_marks && !m) || !jstep(r, bytes / 64 + n_marks) || !jstr_borrow(r, p, bytes, out))
        return false;
    size_t at = 0, k = 0;
    for (size_t i = 0; i < n; i++) {
        if (v[i].s->n)
            memcpy(p + at, v[i].s->p, v[i].s->n);
        for (size_t j = 0; m && j < v[i].s->n_marks; j++) {
            const struct jinja_mark x = v[i].s->marks[j];
            m[k++] = (struct jinja_mark){x.begin + at, x.end + at, x.source};
        }
        at += v[i].s->n;
    }
    out->s->marks = m;
    out->s->n_marks = n_marks;
    return true;
}

size_t jstr_chars(struct jstr *s)
{
    if (s->n_chars == SIZE_MAX) {
        size_t n = 0;
        for (size_t i = 0; i < s->n; i++)
            n += ((uint8_t)s->p[i] & 0xc0) != 0x80;
        s->n_chars = n;
    }
    return s->n_chars;
}

size_t jstr_byte(struct jstr *s, size_t i)
{
    const size_t chars = jstr_chars(s);
    if (chars == s->n || i == 0)
        return i;
    if (i == chars)
        return s->n;
    size_t at = 0;
    for (size_t k = 0; at < s->n; at++)
        if (((uint8_t)s->p[at] & 0xc0) != 0x80 && k++ == i)
            break;
    return at;
}

/* ---- lists and dicts ---- */

static bool grow(struct jrun *r, struct jval **v, size_t n, size_t cap)
{
    struct jval *const wider = jalloc(r, cap * sizeof *wider);
    if (!wider)
        return false;
    if (n)
        memcpy(wider, *v, n * sizeof *wider);
    *v = wider;
    return true;
}

bool jlist_new(struct jrun *r, size_t cap, struct jval *out)
{
    struct jlist *const l = jalloc(r, sizeof *l);
    if (!l || (cap && !grow(r, &l->v, 0, cap)))
        return false;
    l->cap = cap;
    *out = (struct jval){.type = J_LIST, .l = l};
    return true;
}

/* A namespace can hold itself, so it counts for nothing and repr does not enter it. */
static bool holds(struct jrun *r, uint32_t *depth, struct jval v)
{
    const uint32_t inner = v.type == J_LIST ? v.l->depth : v.type == J_DICT ? v.d->depth : 0;
    *depth = MAX(*depth, inner + 1);
    return *depth <= r->o->max_depth || jfail_rc(r, RC_LIMIT, "a value is nested too deeply");
}

bool jlist_add(struct jrun *r, struct jval list, struct jval v)
{
    struct jlist *const l = list.l;
    if (!holds(r, &l->depth, v))
        return false;
    if (l->n == l->cap) {
        const size_t cap = l->cap ? l->cap * 2 : 4;
        if (!grow(r, &l->v, l->n, cap))
            return false;
        l->cap = cap;
    }
    l->v[l->n++] = v;
    return true;
}

bool jdict_new(struct jrun *r, struct jval *out)
{
    struct jdict *const d = jalloc(r, sizeof *d);
    if (!d)
        return false;
    *out = (struct jval){.type = J_DICT, .d = d};
    return true;
}

struct jval *jdict_get(const struct jdict *d, struct jval k)
{
    if (k.type == J_STR)
        return jdict_get_str(d, jv_text(k));
    for (size_t i = 0; i < d->n; i++)
        if (jequal(d->k[i], k))
            return &d->v[i];
    return NULL;
}

struct jval *jdict_get_str(const struct jdict *d, struct str k)
{
    for (size_t i = 0; i < d->n; i++)
        if (d->k[i].type == J_STR && str_eq(jv_text(d->k[i]), k))
            return &d->v[i];
    return NULL;
}

bool jhashable(struct jrun *r, struct jval v)
{
    return (v.type == J_LIST ? v.tuple : v.type != J_DICT) ||
           jfail(r, "unhashable type: '%s'", jtype_name(v));
}

bool jdict_set(struct jrun *r, struct jval dict, struct jval k, struct jval v)
{
    struct jdict *const d = dict.d;
    struct jval *const old = jdict_get(d, k);
    if (!jstep(r, 1 + d->n / 8) || (dict.type == J_DICT && !holds(r, &d->depth, v)))
        return false;
    if (old) {
        *old = v;
        return true;
    }
    if (!jhashable(r, k))
        return false;
    if (d->n == d->cap) {
        const size_t cap = d->cap ? d->cap * 2 : 4;
        if (!grow(r, &d->k, d->n, cap) || !grow(r, &d->v, d->n, cap))
            return false;
        d->cap = cap;
    }
    d->k[d->n] = k;
    d->v[d->n++] = v;
    return true;
}

bool jv_items(struct jrun *r, struct jval v, struct jlist **out)
{
    struct jval list;
    switch (v.type) {
    case J_LIST:
        *out = v.l;
        return true;
    case J_UNDEF:
        if (!jlist_new(r, 0, &list))
            return false;
        break;
    case J_DICT:
        if (!jlist_new(r, v.d->n, &list))
            return false;
        for (size_t i = 0; i < v.d->n; i++)
            if (!jlist_add(r, list, v.d->k[i]))
                return false;
        break;
    case J_STR:
        if (!jstep(r, v.s->n) || !jlist_new(r, jstr_chars(v.s), &list))
            return false;
        for (size_t i = 0; i < v.s->n;) {
            uint32_t cp;
            struct jval c;
            const size_t len = utf8_decode(v.s->p + i, v.s->n - i, &cp);
            if (!jstr_sub(r, v, i, i + len, &c) || !jlist_add(r, list, c))
                return false;
            i += len;
        }
        break;
    default:
        return jfail(r, "'%s' object is not iterable", jtype_name(v));
    }
    *out = list.l;
    return true;
}

/* ---- Python's rules ---- */

const char *jtype_name(struct jval v)
{
    switch (v.type) {
    case J_UNDEF:
        return "Undefined";
    case J_NONE:
        return "NoneType";
    case J_BOOL:
        return "bool";
    case J_INT:
        return "int";
    case J_FLOAT:
        return "float";
    case J_STR:
        return "str";
    case J_LIST:
        return v.l->view ? v.l->view : v.tuple ? "tuple" : "list";
    case J_DICT:
        return "dict";
    case J_NAMESPACE:
        return "Namespace";
    case J_LOOP:
        return "LoopContext";
    default:
        return v.fn->fn ? "function" : "Macro";
    }
}

bool jtruth(struct jval v)
{
    switch (v.type) {
    case J_BOOL:
        return v.b;
    case J_INT:
        return v.i != 0;
    case J_FLOAT:
        return v.f != 0;
    case J_STR:
        return v.s->n > 0;
    case J_LIST:
        return v.l->n > 0;
    case J_DICT:
        return v.d->n > 0;
    case J_NAMESPACE:
    case J_FUNC:
    case J_LOOP:
        return true;
    default:
        return false;
    }
}

static bool is_number(struct jval v)
{
    return v.type == J_BOOL || v.type == J_INT || v.type == J_FLOAT;
}

static int64_t as_int(struct jval v)
{
    return v.type == J_BOOL ? v.b : v.i;
}

static double as_float(struct jval v)
{
    return v.type == J_FLOAT ? v.f : (double)as_int(v);
}

bool jequal(struct jval a, struct jval b)
{
    if (is_number(a) && is_number(b)) {
        if (a.type == J_FLOAT || b.type == J_FLOAT)
            return as_float(a) == as_float(b);
        return as_int(a) == as_int(b);
    }
    if (a.type != b.type)
        return false;
    switch (a.type) {
    case J_UNDEF:
    case J_NONE:
        return true;
    case J_STR:
        return str_eq(jv_text(a), jv_text(b));
    case J_LIST:
        if (a.l->n != b.l->n || a.tuple != b.tuple)
            return false;
        for (size_t i = 0; i < a.l->n; i++)
            if (!jequal(a.l->v[i], b.l->v[i]))
                return false;
        return true;
    case J_DICT:
        if (a.d->n != b.d->n)
            return false;
        for (size_t i = 0; i < a.d->n; i++) {
            const struct jval *const other = jdict_get(b.d, a.d->k[i]);
            if (!other || !jequal(a.d->v[i], *other))
                return false;
        }
        return true;
    case J_FUNC:
        return a.fn == b.fn;
    default:
        return a.d == b.d;
    }
}

bool jcompare(struct jrun *r, struct jval a, struct jval b, const char *op, int *out)
{
    if (is_number(a) && is_number(b)) {
        if (a.type == J_FLOAT || b.type == J_FLOAT) {
            const double x = as_float(a), y = as_float(b);
            *out = x < y ? -1 : x > y ? 1 : 0;
        } else {
            const int64_t x = as_int(a), y = as_int(b);
            *out = x < y ? -1 : x > y ? 1 : 0;
        }
        return true;
    }
    if (a.type == J_STR && b.type == J_STR) {
        /* UTF-8 orders as code points do */
        const int c = memcmp(a.s->p, b.s->p, MIN(a.s->n, b.s->n));
        *out = c ? c : a.s->n < b.s->n ? -1 : a.s->n > b.s->n;
        return jstep(r, MIN(a.s->n, b.s->n) / 64);
    }
    if (a.type == J_LIST && b.type == J_LIST && a.tuple == b.tuple) {
        for (size_t i = 0; i < MIN(a.l->n, b.l->n); i++)
            if (!jequal(a.l->v[i], b.l->v[i]))
                return jcompare(r, a.l->v[i], b.l->v[i], op, out);
        *out = a.l->n < b.l->n ? -1 : a.l->n > b.l->n;
        return true;
    }
    if (a.type == J_UNDEF || b.type == J_UNDEF)
        return jfail_undef(r, a.type == J_UNDEF ? a : b);
    return jfail(r, "'%s' not supported between instances of '%s' and '%s'", op, jtype_name(a),
                 jtype_name(b));
}

void jfloat_repr(double f, struct buf *b)
{
    if (isnan(f) || isinf(f)) {
        buf_adds(b, isnan(f) ? "nan" : f < 0 ? "-inf" : "inf");
        return;
    }
    char s[40];
    for (int digits = 1; digits <= 17; digits++) { /* the fewest that read back */
        snprintf(s, sizeof s, "%.*e", digits - 1, f);
        if (strtod(s, NULL) == f)
            break;
    }
    char *const e = strchr(s, 'e');
    const int exponent = (int)strtol(e + 1, NULL, 10);
    *e = 0;
    if (exponent < -4 || exponent >= 16) {
        buf_addf(b, "%se%c%02d", s, exponent < 0 ? '-' : '+', abs(exponent));
        return;
    }
    char digits[24];
    size_t n = 0;
    for (const char *p = s; *p; p++)
        if (*p != '-' && *p != '.')
            digits[n++] = *p;
    if (s[0] == '-')
        buf_addc(b, '-');
    if (exponent < 0) {
        buf_adds(b, "0.");
        for (int i = -1; i > exponent; i--)
            buf_addc(b, '0');
        buf_add(b, digits, n);
        return;
    }
    for (int i = 0; i <= exponent || (size_t)i < n || i == exponent + 1; i++) {
        if (i == exponent + 1)
            buf_addc(b, '.');
        buf_addc(b, (size_t)i < n ? digits[i] : '0');
    }
}

static void str_repr(struct str s, struct buf *b)
{
    const bool twice = s.n && memchr(s.p, '\'', s.n) && !memchr(s.p, '"', s.n);
    const char quote = twice ? '"' : '\'';
    buf_addc(b, quote);
    for (size_t i = 0; i < s.n;) {
        uint32_t cp;
        const size_t len = utf8_decode(s.p + i, s.n - i, &cp);
        if (cp == (uint8_t)quote || cp == '\\')
            buf_addf(b, "\\%c", (char)cp);
        else if (cp == '\n' || cp == '\r' || cp == '\t')
            buf_addf(b, "\\%c", cp == '\n' ? 'n' : cp == '\r' ? 'r' : 't');
        else if (cp <= 0x10ffff && unicode_is_printable(cp))
            buf_add(b, s.p + i, len);
        else
            buf_addf(b, cp < 0x100 ? "\\x%02x" : cp < 0x10000 ? "\\u%04x" : "\\U%08x", cp);
        i += len;
    }
    buf_addc(b, quote);
}

void jv_repr(struct jval v, struct buf *b)
{
    switch (v.type) {
    case J_NONE:
        buf_adds(b, "None");
        break;
    case J_BOOL:
        buf_adds(b, v.b ? "True" : "False");
        break;
    case J_INT:
        buf_addf(b, "%" PRId64, v.i);
        break;
    case J_FLOAT:
        jfloat_repr(v.f, b);
        break;
    case J_STR:
        str_repr(jv_text(v), b);
        break;
    case J_LIST:
        if (v.l->view)
            buf_addf(b, "%s(", v.l->view);
        buf_addc(b, v.tuple ? '(' : '[');
        for (size_t i = 0; i < v.l->n && !b->failed; i++) {
            if (i)
                buf_adds(b, ", ");
            jv_repr(v.l->v[i], b);
        }
        buf_adds(b, v.l->view ? "])" : !v.tuple ? "]" : v.l->n == 1 ? ",)" : ")");
        break;
    case J_DICT:
        buf_addc(b, '{');
        for (size_t i = 0; i < v.d->n && !b->failed; i++) {
            if (i)
                buf_adds(b, ", ");
            jv_repr(v.d->k[i], b);
            buf_adds(b, ": ");
            jv_repr(v.d->v[i], b);
        }
        buf_addc(b, '}');
        break;
    case J_NAMESPACE:
        buf_adds(b, "<Namespace>");
        break;
    case J_FUNC:
        buf_addf(b, "<%s %s>", v.fn->fn ? "function" : "Macro", v.fn->name);
        break;
    case J_LOOP:
        buf_addf(b, "<LoopContext %zu/%zu>", v.loop->i + 1, v.loop->items->n);
        break;
    default:
        buf_adds(b, "Undefined");
    }
}

bool jv_str(struct jrun *r, struct jval v, struct jval *out)
{
    if (v.type == J_STR) {
        *out = v;
        return true;
    }
    if (v.type == J_UNDEF)
        return jstr_borrow(r, "", 0, out);
    struct buf b = BUF_INIT;
    b.limit = r->o->max_output;
    jv_repr(v, &b);
    return jstr_take_from(r, &b, v, out);
}

/* ---- JSON ---- */

bool jv_from_json(struct jrun *r, const json_t *j, uint32_t source, struct jval *out)
{
    const struct jinja_source *lo = r->o->sources;
    for (size_t n = r->o->n_sources; n;) { /* sorted by address */
        const size_t half = n / 2;
        if (lo[half].value == j) {
            source = lo[half].id;
            break;
        }
        if ((uintptr_t)lo[half].value < (uintptr_t)j) {
            lo += half + 1;
            n -= half + 1;
        } else {
            n = half;
        }
    }
    if (!jstep(r, 1))
        return false;
    size_t i;
    const json_t *x;
    switch (json_typeof(j)) {
    case JSON_NULL:
        *out = jv_none();
        return true;
    case JSON_TRUE:
    case JSON_FALSE:
        *out = jv_bool(json_is_true(j));
        return true;
    case JSON_INTEGER:
        *out = jv_int(json_integer_value(j));
        return true;
    case JSON_REAL:
        *out = jv_float(json_real_value(j));
        return true;
    case JSON_STRING:
        return jstr_borrow(r, json_string_value(j), json_string_length(j), out) &&
               mark_whole(r, *out, source);
    case JSON_ARRAY:
        if (++r->depth > r->o->max_depth)
            return jfail_rc(r, RC_LIMIT, "the variables are nested too deeply");
        if (!jlist_new(r, json_array_size(j), out))
            return false;
        out->source = source;
        json_array_foreach(j, i, x)
        {
            struct jval v;
            if (!jv_from_json(r, x, source, &v) || !jlist_add(r, *out, v))
                return false;
        }
        r->depth--;
        return true;
    case JSON_OBJECT: {
        if (++r->depth > r->o->max_depth)
            return jfail_rc(r, RC_LIMIT, "the variables are nested too deeply");
        const size_t n = json_object_size(j);
        if (!jdict_new(r, out))
            return false;
        out->source = source;
        struct jdict *const d = out->d;
        if (n && (!grow(r, &d->k, 0, n) || !grow(r, &d->v, 0, n)))
            return false;
        d->cap = n;
        json_t *const object = json_unconst(j); /* keys are distinct already */
        for (void *it = json_object_iter(object); it; it = json_object_iter_next(object, it)) {
            const char *const key = json_object_iter_key(it);
            if (!jstr_borrow(r, key, strlen(key), &d->k[d->n]) ||
                !jv_from_json(r, json_object_iter_value(it), source, &d->v[d->n]) ||
                !holds(r, &d->depth, d->v[d->n]))
                return false;
            d->n++;
        }
        r->depth--;
        return true;
    }
    }
    return false;
}

static void json_str(struct str s, bool ascii, struct buf *b)
{
    buf_addc(b, '"');
    size_t from = 0;
    for (size_t i = 0; i < s.n;) {
        const uint8_t c = (uint8_t)s.p[i];
        uint32_t cp = c;
        const size_t len = c < 0x80 ? 1 : utf8_decode(s.p + i, s.n - i, &cp);
        if (c == '"' || c == '\\' || c < 0x20 || (ascii && c >= 0x7f && cp != 0x7f)) {
            buf_add(b, s.p + from, i - from);
            from = i + len;
            static const char plain[] = "\"\\\b\f\n\r\t", shown[] = "\"\\bfnrt";
            const char *const e = c && c < 0x80 ? strchr(plain, c) : NULL;
            if (e)
                buf_addf(b, "\\%c", shown[e - plain]);
            else if (cp >= 0x10000 && cp <= 0x10ffff)
                buf_addf(b, "\\u%04x\\u%04x", 0xd800 + ((cp - 0x10000) >> 10),
                         0xdc00 + ((cp - 0x10000) & 0x3ff));
            else
                buf_addf(b, "\\u%04x", cp & 0xffff);
        }
        i += len;
    }
    buf_add(b, s.p + from, s.n - from);
    buf_addc(b, '"');
}

static void json_line(const struct jjson_opts *o, int depth, struct buf *b)
{
    if (!o->indent.p)
        return;
    buf_addc(b, '\n');
    for (int i = 0; i < depth; i++)
        buf_add(b, o->indent.p, o->indent.n);
}

static void json_float(double f, struct buf *b)
{
    if (isnan(f) || isinf(f))
        buf_adds(b, isnan(f) ? "NaN" : f < 0 ? "-Infinity" : "Infinity");
    else
        jfloat_repr(f, b);
}

/* Order of a dict's entries: indices, by key if asked. */
static bool json_order(struct jrun *r, const struct jdict *d, bool sort, size_t **out)
{
    size_t *const order = jalloc(r, (d->n + 1) * sizeof *order);
    if (!order)
        return false;
    for (size_t i = 0; i < d->n; i++) {
        size_t k = i;
        for (; sort && k > 0; k--) { /* insertion: keys often come sorted */
            int c;
            if (!jstep(r, 1) || !jcompare(r, d->k[order[k - 1]], d->k[i], "<", &c))
                return false;
            if (c <= 0)
                break;
            order[k] = order[k - 1];
        }
        order[k] = i;
    }
    *out = order;
    return true;
}

bool jv_to_json(struct jrun *r, struct jval v, const struct jjson_opts *o, int depth, struct buf *b)
{
    if (!jstep(r, 1))
        return false;
    if (b->failed)
        return jfail_rc(r, RC_LIMIT, "the template writes too much");
    if (depth > (int)r->o->max_depth)
        return jfail_rc(r, RC_LIMIT, "nested too deeply for JSON");
    switch (v.type) {
    case J_NONE:
        buf_adds(b, "null");
        return true;
    case J_BOOL:
        buf_adds(b, v.b ? "true" : "false");
        return true;
    case J_INT:
        buf_addf(b, "%" PRId64, v.i);
        return true;
    case J_FLOAT:
        json_float(v.f, b);
        return true;
    case J_STR:
        json_str(jv_text(v), o->ascii, b);
        return true;
    case J_LIST:
        if (v.l->view)
            return jfail(r, "Object of type %s is not JSON serializable", v.l->view);
        buf_addc(b, '[');
        for (size_t i = 0; i < v.l->n; i++) {
            if (i)
                buf_add(b, o->item.p, o->item.n);
            json_line(o, depth + 1, b);
            if (!jv_to_json(r, v.l->v[i], o, depth + 1, b))
                return false;
        }
        if (v.l->n)
            json_line(o, depth, b);
        buf_addc(b, ']');
        return true;
    case J_DICT: {
        size_t *order;
        if (!json_order(r, v.d, o->sort_keys, &order))
            return false;
        buf_addc(b, '{');
        for (size_t i = 0; i < v.d->n; i++) {
            const struct jval k = v.d->k[order[i]];
            if (i)
                buf_add(b, o->item.p, o->item.n);
            json_line(o, depth + 1, b);
            struct buf name = BUF_INIT;
            if (k.type == J_BOOL || k.type == J_NONE || k.type == J_INT || k.type == J_FLOAT) {
                if (!jv_to_json(r, k, o, depth, &name)) {
                    buf_release(&name);
                    return false;
                }
            } else if (k.type != J_STR) {
                return jfail(r, "keys must be str, int, float, bool or None, not %s",
                             jtype_name(k));
            }
            json_str(k.type == J_STR ? jv_text(k) : (struct str){name.p, name.n}, o->ascii, b);
            buf_release(&name);
            buf_add(b, o->key.p, o->key.n);
            if (!jv_to_json(r, v.d->v[order[i]], o, depth + 1, b))
                return false;
        }
        if (v.d->n)
            json_line(o, depth, b);
        buf_addc(b, '}');
        return true;
    }
    default:
        return jfail(r, "Object of type %s is not JSON serializable", jtype_name(v));
    }
}
