/* jinja_lib.c - filters, tests and global functions. */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/utf8.h"
#include "text/jinja_int.h"
#include "text/unicode.h"

#define ARGS(...) ((const char *const[]){__VA_ARGS__})

static bool none_given(struct jrun *r, const struct jargs *a, const char *func)
{
    return jargs_bind(r, a, func, NULL, 0, 0, NULL);
}

static bool get_int(struct jrun *r, struct jval v, int64_t if_absent, int64_t *out)
{
    *out = if_absent;
    if (v.type == J_UNDEF)
        return jfail_undef(r, v);
    *out = v.type == J_INT ? v.i : v.type == J_BOOL ? v.b : if_absent;
    return v.type == J_INT || v.type == J_BOOL || v.type == J_ABSENT || v.type == J_NONE ||
           jfail(r, "an argument must be int, not %s", jtype_name(v));
}

static bool is_int(struct jval v)
{
    return v.type == J_INT || v.type == J_BOOL;
}

static int64_t as_int(struct jval v)
{
    return v.type == J_BOOL ? v.b : v.i;
}

/* value[a][0][b] for the attribute "a.0.b" (or an int). */
static bool get_path(struct jrun *r, struct jval v, struct jval path, struct jval *out)
{
    if (path.type != J_STR)
        return jitem(r, v, path, out);
    const struct str s = jv_text(path);
    *out = v;
    for (size_t i = 0; i <= s.n;) {
        size_t end = i;
        bool digits = true;
        while (end < s.n && s.p[end] != '.')
            digits &= isdigit((unsigned char)s.p[end++]) != 0;
        struct jval key;
        if (digits && end > i && end - i < 10)
            key = jv_int(strtoll(s.p + i, NULL, 10));
        else if (!jstr_sub(r, path, i, end, &key))
            return false;
        if (!jitem(r, *out, key, out))
            return false;
        i = end + 1;
    }
    return true;
}

/* What strings compare by unless case counts. */
static bool fold(struct jrun *r, bool case_sensitive, struct jval *v)
{
    return case_sensitive || v->type != J_STR || jstr_case(r, *v, JCASE_LOWER, v);
}

static bool f_length(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out);

/* ---- filters on strings ---- */

static bool f_upper(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    return none_given(r, a, "upper") && jv_str(r, self, &self) &&
           jstr_case(r, self, JCASE_UPPER, out);
}

static bool f_lower(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    return none_given(r, a, "lower") && jv_str(r, self, &self) &&
           jstr_case(r, self, JCASE_LOWER, out);
}

static bool f_capitalize(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    return none_given(r, a, "capitalize") && jv_str(r, self, &self) &&
           jstr_case(r, self, JCASE_CAPITAL, out);
}

/* Unlike str.title: a word begins behind white space or one of -({[<. */
static bool f_title(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    struct buf b = BUF_INIT;
    bool start = true;
    if (!none_given(r, a, "title") || !jv_str(r, self, &self) || !jstep(r, self.s->n / 16))
        return false;
    for (size_t i = 0; i < self.s->n;) {
        uint32_t cp, to[3];
        char c[4];
        i += utf8_decode(self.s->p + i, self.s->n - i, &cp);
        cp = cp > 0x10ffff ? 0xfffd : cp;
        const size_t n = start ? unicode_to_upper(cp, to) : unicode_to_lower(cp, to);
        for (size_t k = 0; k < n; k++)
            buf_add(&b, c, utf8_encode(to[k], c));
        start = unicode_is_python_space(cp) || (cp < 0x80 && cp && strchr("-({[<", (int)cp));
    }
    return jstr_take_from(r, &b, self, out);
}

static bool f_trim(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    struct jval chars;
    return jargs_bind(r, a, "trim", ARGS("chars"), 1, 0, &chars) && jv_str(r, self, &self) &&
           jstr_strip(r, self, chars, true, true, out);
}

static bool f_string(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    return none_given(r, a, "string") && jv_str(r, self, out);
}

static bool f_replace(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    struct jval v[3];
    int64_t count;
    return jargs_bind(r, a, "replace", ARGS("old", "new", "count"), 3, 2, v) &&
           get_int(r, v[2], -1, &count) && jv_str(r, self, &self) && jv_str(r, v[0], &v[0]) &&
           jv_str(r, v[1], &v[1]) && jstr_replace(r, self, v[0], v[1], count, out);
}

static bool f_escape(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    struct buf b = BUF_INIT;
    if (!none_given(r, a, "escape") || !jv_str(r, self, &self) || !jstep(r, self.s->n / 16))
        return false;
    for (size_t i = 0; i < self.s->n; i++) {
        const char c = self.s->p[i];
        if (c == '&')
            buf_adds(&b, "&amp;");
        else if (c == '<')
            buf_adds(&b, "&lt;");
        else if (c == '>')
            buf_adds(&b, "&gt;");
        else if (c == '\'')
            buf_adds(&b, "&#39;");
        else if (c == '"')
            buf_adds(&b, "&#34;");
        else
            buf_addc(&b, c);
    }
    return jstr_take_from(r, &b, self, out);
}

static bool f_indent(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    struct jval v[3], lines, end, parts;
    int64_t width;
    if (!jargs_bind(r, a, "indent", ARGS("width", "first", "blank"), 3, 0, v))
        return false;
    if (self.type != J_STR)
        return self.type == J_UNDEF ? jfail_undef(r, self)
                                    : jfail(r, "indent needs a string, not %s", jtype_name(self));
    if (v[0].type != J_STR) {
        if (!get_int(r, v[0], 4, &width))
            return false;
        if (width > 4096)
            return jfail_rc(r, RC_LIMIT, "an indent of %" PRId64, width);
        char spaces[4096];
        memset(spaces, ' ', sizeof spaces);
        if (!jstr_copy(r, spaces, (size_t)MAX(width, 0), &v[0]))
            return false;
    }
    const bool first = jtruth(v[1]), blank = jtruth(v[2]);
    if (!jstr_borrow(r, "\n", 1, &end) || !jstr_concat(r, (struct jval[]){self, end}, 2, &self) ||
        !jstr_lines(r, self, false, &lines) || !jlist_new(r, 0, &parts) ||
        (first && !jlist_add(r, parts, v[0])))
        return false;
    for (size_t i = 0; i < lines.l->n; i++) {
        const struct jval line = lines.l->v[i];
        if ((i && !jlist_add(r, parts, end)) ||
            (i && (blank || line.s->n) && !jlist_add(r, parts, v[0])) || !jlist_add(r, parts, line))
            return false;
    }
    return jstr_concat(r, parts.l->v, parts.l->n, out);
}

static bool f_truncate(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    struct jval v[4], head;
    int64_t length, leeway;
    if (!jargs_bind(r, a, "truncate", ARGS("length", "killwords", "end", "leeway"), 4, 0, v) ||
        !get_int(r, v[0], 255, &length) || !get_int(r, v[3], 5, &leeway))
        return false;
    if (self.type != J_STR) { /* what is short enough passes, whatever it is */
        struct jval n;
        *out = self;
        return f_length(r, self, &(struct jargs){0}, &n) &&
               (n.i - leeway <= length ||
                jfail(r, "truncate needs a string, not %s", jtype_name(self)));
    }
    if (v[2].type == J_ABSENT ? !jstr_borrow(r, "...", 3, &v[2]) : !jv_str(r, v[2], &v[2]))
        return false;
    const int64_t n = (int64_t)jstr_chars(self.s), n_end = (int64_t)jstr_chars(v[2].s);
    if (length < n_end || leeway < 0)
        return jfail(r, "truncate: expected length >= %" PRId64, n_end);
    if (n <= length || n - length <= leeway) {
        *out = self;
        return true;
    }
    size_t end = jstr_byte(self.s, (size_t)(length - n_end));
    if (!jtruth(v[1])) { /* back to the last blank, if there is one */
        size_t blank = end;
        while (blank > 0 && self.s->p[blank - 1] != ' ')
            blank--;
        if (blank)
            end = blank - 1;
    }
    return jstr_sub(r, self, 0, end, &head) && jstr_concat(r, (struct jval[]){head, v[2]}, 2, out);
}

static bool f_wordcount(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    bool in_word = false;
    if (!none_given(r, a, "wordcount") || !jv_str(r, self, &self) || !jstep(r, self.s->n / 16))
        return false;
    *out = jv_int(0);
    for (size_t i = 0; i < self.s->n;) {
        uint32_t cp;
        i += utf8_decode(self.s->p + i, self.s->n - i, &cp);
        const enum unicode_class k = cp > 0x10ffff ? UNICODE_OTHER : unicode_class(cp);
        const bool word = k == UNICODE_LETTER || k == UNICODE_NUMBER || cp == '_';
        out->i += word && !in_word;
        in_word = word;
    }
    return true;
}

static bool f_center(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    struct jval width, center;
    if (!jargs_bind(r, a, "center", ARGS("width"), 1, 0, &width) || !jv_str(r, self, &self))
        return false;
    if (width.type == J_ABSENT)
        width = jv_int(80);
    return jinja_method(r, self, str_of("center"), &center) &&
           jcall(r, center, &(struct jargs){.pos = &width, .n_pos = 1}, out);
}

static bool f_format(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    struct jval args;
    if (a->n_pos && a->n_kw)
        return jfail(r, "format: positional and keyword arguments at the same time");
    if (!jv_str(r, self, &self) || (a->n_kw ? !jdict_new(r, &args) : !jlist_new(r, 0, &args)))
        return false;
    for (size_t i = 0; i < a->n_pos; i++)
        if (!jlist_add(r, args, a->pos[i]))
            return false;
    for (size_t i = 0; i < a->n_kw; i++) {
        struct jval k;
        if (!jstr_borrow(r, a->kw_name[i].p, a->kw_name[i].n, &k) ||
            !jdict_set(r, args, k, a->kw[i]))
            return false;
    }
    if (!a->n_kw)
        args.tuple = true;
    return jinja_format(r, self, args, out);
}

/* Percent-encoding; a mapping or list of pairs becomes a query string. */
static void quote(struct str s, bool query, struct buf *b)
{
    for (size_t i = 0; i < s.n; i++) {
        const unsigned char c = (unsigned char)s.p[i];
        if (c < 0x80 && (isalnum(c) || (c && strchr(query ? "_.-~" : "_.-~/", c))))
            buf_addc(b, (char)c);
        else if (query && c == ' ')
            buf_addc(b, '+');
        else
            buf_addf(b, "%%%02X", c);
    }
}

static bool f_urlencode(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    struct buf b = BUF_INIT;
    if (!none_given(r, a, "urlencode"))
        return false;
    if (self.type != J_DICT && self.type != J_LIST) {
        if (!jv_str(r, self, &self) || !jstep(r, self.s->n / 16))
            return false;
        quote(jv_text(self), false, &b);
        return jstr_take_from(r, &b, self, out);
    }
    const size_t n = self.type == J_DICT ? self.d->n : self.l->n;
    for (size_t i = 0; i < n; i++) {
        struct jval k, v;
        if (self.type == J_DICT) {
            k = self.d->k[i];
            v = self.d->v[i];
        } else {
            const struct jval pair = self.l->v[i];
            if (pair.type != J_LIST || pair.l->n != 2) {
                buf_release(&b);
                return jfail(r, "urlencode needs pairs");
            }
            k = pair.l->v[0];
            v = pair.l->v[1];
        }
        if (!jv_str(r, k, &k) || !jv_str(r, v, &v) || !jstep(r, v.s->n / 16)) {
            buf_release(&b);
            return false;
        }
        if (i)
            buf_addc(&b, '&');
        quote(jv_text(k), true, &b);
        buf_addc(&b, '=');
        quote(jv_text(v), true, &b);
    }
    return jstr_take_from(r, &b, self, out);
}

/* ---- filters on numbers ---- */

static bool f_abs(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    if (!none_given(r, a, "abs"))
        return false;
    if (self.type == J_FLOAT) {
        *out = jv_float(fabs(self.f));
        return true;
    }
    if (!is_int(self))
        return self.type == J_UNDEF
                   ? jfail_undef(r, self)
                   : jfail(r, "bad operand type for abs(): '%s'", jtype_name(self));
    if (as_int(self) == INT64_MIN)
        return jfail_rc(r, RC_LIMIT, "an integer is too large");
    *out = jv_int(as_int(self) < 0 ? -as_int(self) : as_int(self));
    return true;
}

/* Text as Python's int() or float() reads it: white space around, single _ between digits. */
static bool number_text(struct jrun *r, struct jval s, char out[64])
{
    struct jval t;
    size_t n = 0;
    if (!jstr_strip(r, s, jv_none(), true, true, &t))
        return false;
    for (size_t i = 0; i < t.s->n && n < 63; i++) {
        const char c = t.s->p[i];
        if (c == '_' && i && isdigit((unsigned char)t.s->p[i - 1]) && i + 1 < t.s->n &&
            isalnum((unsigned char)t.s->p[i + 1]))
            continue;
        out[n++] = c;
    }
    out[t.s->n > 63 ? 0 : n] = 0;
    return true;
}

static bool parse_int(const char *s, int base, int64_t *out)
{
    const char *p = s + (*s == '-' || *s == '+');
    if (!isalnum((unsigned char)*p))
        return false;
    if (base == 10 && p[0] == '0' && (p[1] | 0x20) == 'x')
        return false;
    if ((base == 2 && p[0] == '0' && (p[1] | 0x20) == 'b') ||
        (base == 8 && p[0] == '0' && (p[1] | 0x20) == 'o')) {
        p += 2;
        if (*p == '-' || *p == '+')
            return false;
    } else {
        p = s;
    }
    char *end;
    const long long v = strtoll(p, &end, base);
    if (end == p || *end)
        return false;
    *out = p != s && *s == '-' ? -v : v;
    return true;
}

static bool parse_float(const char *s, double *out)
{
    char *end;
    for (const char *p = s; *p; p++)
        if (*p == 'x' || *p == 'X' || *p == '(' || isspace((unsigned char)*p))
            return false;
    *out = strtod(s, &end);
    return end != s && !*end;
}

static bool f_int(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    struct jval v[2];
    int64_t base, i;
    double f;
    char text[64];
    if (!jargs_bind(r, a, "int", ARGS("default", "base"), 2, 0, v) || !get_int(r, v[1], 10, &base))
        return false;
    if (base < 2 || base > 36)
        base = 10;
    *out = v[0].type == J_ABSENT ? jv_int(0) : v[0];
    if (self.type == J_UNDEF)
        return jfail_undef(r, self);
    if (is_int(self)) {
        *out = jv_int(as_int(self));
        return true;
    }
    if (self.type == J_FLOAT) {
        f = self.f;
    } else if (self.type == J_STR) {
        if (!number_text(r, self, text))
            return false;
        if (parse_int(text, (int)base, &i)) {
            *out = jv_int(i);
            return true;
        }
        if (!parse_float(text, &f))
            return true;
    } else {
        return true;
    }
    if (isnan(f) || isinf(f))
        return true; /* the default */
    if (!(fabs(f) < 9.2e18))
        return jfail_rc(r, RC_LIMIT, "an integer is too large");
    *out = jv_int((int64_t)f);
    return true;
}

static bool f_float(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    struct jval v;
    double f;
    char text[64];
    if (!jargs_bind(r, a, "float", ARGS("default"), 1, 0, &v))
        return false;
    *out = v.type == J_ABSENT ? jv_float(0) : v;
    if (self.type == J_UNDEF)
        return jfail_undef(r, self);
    if (is_int(self))
        *out = jv_float((double)as_int(self));
    else if (self.type == J_FLOAT)
        *out = self;
    else if (self.type == J_STR) {
        if (!number_text(r, self, text))
            return false;
        if (parse_float(text, &f))
            *out = jv_float(f);
    }
    return true;
}

static bool f_round(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    struct jval v[2];
    int64_t digits;
    if (!jargs_bind(r, a, "round", ARGS("precision", "method"), 2, 0, v) ||
        !get_int(r, v[0], 0, &digits))
        return false;
    if (!is_int(self) && self.type != J_FLOAT)
        return self.type == J_UNDEF ? jfail_undef(r, self)
                                    : jfail(r, "type %s has no rounding", jtype_name(self));
    const double f = self.type == J_FLOAT ? self.f : (double)as_int(self);
    const struct str how = v[1].type == J_STR ? jv_text(v[1]) : str_of("common");
    const bool up = str_is(how, "ceil"), down = str_is(how, "floor");
    if (!up && !down && !str_is(how, "common"))
        return jfail(r, "method must be common, ceil or floor");
    if (digits < -300 || digits > 300)
        return jfail(r, "round to %" PRId64 " digits", digits);
    if (up || down) {
        const double scale = pow(10, (double)digits);
        *out = jv_float((up ? ceil(f * scale) : floor(f * scale)) / scale);
        return true;
    }
    if (is_int(self)) {
        *out = jv_int(as_int(self));
        if (digits >= 0)
            return true;
        const double scale = pow(10, (double)-digits);
        *out = jv_int((int64_t)(rint(f / scale) * scale));
        return true;
    }
    if (digits < 0) {
        const double scale = pow(10, (double)-digits);
        *out = jv_float(rint(f / scale) * scale);
        return true;
    }
    char text[700]; /* correctly rounded, half to even of the exact value, as Python does */
    snprintf(text, sizeof text, "%.*f", (int)digits, f);
    *out = jv_float(strtod(text, NULL));
    return true;
}

static bool f_filesizeformat(struct jrun *r, struct jval self, const struct jargs *a,
                             struct jval *out)
{
    static const char *const units[] = {"k", "M", "G", "T", "P", "E", "Z", "Y"};
    struct jval binary, number;
    struct buf b = BUF_INIT;
    if (!jargs_bind(r, a, "filesizeformat", ARGS("binary"), 1, 0, &binary) ||
        !f_float(r, self, &(struct jargs){0}, &number))
        return false;
    const double base = jtruth(binary) ? 1024 : 1000, bytes = number.f;
    if (bytes == 1) {
        buf_adds(&b, "1 Byte");
    } else if (bytes < base) {
        buf_addf(&b, "%.0f Bytes", trunc(bytes));
    } else {
        double unit = base * base;
        size_t i = 0;
        while (i + 1 < COUNT_OF(units) && bytes >= unit) {
            unit *= base;
            i++;
        }
        buf_addf(&b, "%.1f %s%sB", base * bytes / unit, jtruth(binary) && i == 0 ? "K" : units[i],
                 jtruth(binary) ? "i" : "");
    }
    return jstr_take(r, &b, out);
}

/* ---- filters on sequences ---- */

static bool f_length(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    if (!none_given(r, a, "length"))
        return false;
    switch (self.type) {
    case J_STR:
        *out = jv_int((int64_t)jstr_chars(self.s));
        return true;
    case J_LIST:
        *out = jv_int((int64_t)self.l->n);
        return true;
    case J_DICT:
        *out = jv_int((int64_t)self.d->n);
        return true;
    case J_UNDEF:
        *out = jv_int(0);
        return true;
    case J_LOOP:
        *out = jv_int((int64_t)self.loop->items->n);
        return true;
    default:
        return jfail(r, "object of type '%s' has no len()", jtype_name(self));
    }
}

static bool f_first(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    struct jlist *items;
    if (!none_given(r, a, "first") || !jv_items(r, self, &items))
        return false;
    *out = items->n ? items->v[0] : jv_undef("No first item, sequence was empty.");
    return true;
}

static bool f_last(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    struct jlist *items;
    if (!none_given(r, a, "last") || !jv_items(r, self, &items))
        return false;
    *out = items->n ? items->v[items->n - 1] : jv_undef("No last item, sequence was empty.");
    return true;
}

static bool f_list(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    struct jlist *items;
    if (!none_given(r, a, "list") || !jv_items(r, self, &items))
        return false;
    if (!jlist_new(r, 0, out))
        return false;
    *out->l = (struct jlist){.v = items->v, .n = items->n, .depth = items->depth};
    out->source = self.type == J_LIST || self.type == J_DICT ? self.source : 0;
    return true;
}

static bool f_reverse(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    struct jlist *items;
    if (!none_given(r, a, "reverse") || !jv_items(r, self, &items) ||
        !jlist_new(r, items->n, out) || !jstep(r, items->n))
        return false;
    for (size_t i = items->n; i-- > 0;)
        if (!jlist_add(r, *out, items->v[i]))
            return false;
    if (self.type == J_STR)
        return jstr_concat(r, out->l->v, out->l->n, out);
    out->source = self.type == J_LIST ? self.source : 0;
    return true;
}

static bool f_join(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    struct jval v[2], parts;
    struct jlist *items;
    if (!jargs_bind(r, a, "join", ARGS("d", "attribute"), 2, 0, v) || !jv_items(r, self, &items) ||
        !jlist_new(r, 0, &parts) ||
        (v[0].type == J_ABSENT ? !jstr_borrow(r, "", 0, &v[0]) : !jv_str(r, v[0], &v[0])))
        return false;
    for (size_t i = 0; i < items->n; i++) {
        struct jval x = items->v[i];
        if (v[1].type != J_ABSENT && v[1].type != J_NONE && !get_path(r, x, v[1], &x))
            return false;
        if ((i && !jlist_add(r, parts, v[0])) || !jv_str(r, x, &x) || !jlist_add(r, parts, x))
            return false;
    }
    return jstr_concat(r, parts.l->v, parts.l->n, out);
}

static bool f_items(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    struct jval method;
    if (!none_given(r, a, "items"))
        return false;
    if (self.type == J_UNDEF)
        return jlist_new(r, 0, out);
    if (self.type != J_DICT)
        return jfail(r, "Can only get item pairs from a mapping.");
    return jinja_method(r, self, str_of("items"), &method) && jcall(r, method, a, out);
}

struct keyed {
    struct jval key, value;
};

/* Stable merge sort of v[n]; tmp[n]. */
static bool merge_sort(struct jrun *r, struct keyed *v, struct keyed *tmp, size_t n, bool reverse)
{
    if (n < 2)
        return true;
    const size_t half = n / 2;
    if (!jstep(r, n) || !merge_sort(r, v, tmp, half, reverse) ||
        !merge_sort(r, v + half, tmp, n - half, reverse))
        return false;
    memcpy(tmp, v, half * sizeof *v);
    size_t i = 0, j = half, k = 0;
    while (i < half && j < n) {
        int c;
        if (!jcompare(r, v[j].key, tmp[i].key, "<", &c))
            return false;
        v[k++] = (reverse ? c > 0 : c < 0) ? v[j++] : tmp[i++];
    }
    memcpy(v + k, tmp + i, (half - i) * sizeof *v);
    return true;
}

static bool sort_values(struct jrun *r, struct keyed *v, size_t n, bool reverse, struct jval *out)
{
    struct keyed *const tmp = jalloc(r, (n + 1) * sizeof *tmp);
    if (!tmp || !merge_sort(r, v, tmp, n, reverse) || !jlist_new(r, n, out))
        return false;
    for (size_t i = 0; i < n; i++)
        if (!jlist_add(r, *out, v[i].value))
            return false;
    return true;
}

/* The sort key: the value, or the list of the attributes "a,b". */
static bool sort_key(struct jrun *r, struct jval v, struct jval attribute, bool case_sensitive,
                     struct jval *out)
{
    if (attribute.type == J_ABSENT || attribute.type == J_NONE) {
        *out = v;
        return fold(r, case_sensitive, out);
    }
    if (attribute.type != J_STR)
        return get_path(r, v, attribute, out) && fold(r, case_sensitive, out);
    if (!jlist_new(r, 1, out))
        return false;
    const struct str s = jv_text(attribute);
    for (size_t i = 0; i <= s.n;) {
        size_t end = i;
        while (end < s.n && s.p[end] != ',')
            end++;
        struct jval path, key;
        if (!jstr_sub(r, attribute, i, end, &path) || !get_path(r, v, path, &key) ||
            !fold(r, case_sensitive, &key) || !jlist_add(r, *out, key))
            return false;
        i = end + 1;
    }
    return true;
}

static bool f_sort(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    struct jval v[3];
    struct jlist *items;
    if (!jargs_bind(r, a, "sort", ARGS("reverse", "case_sensitive", "attribute"), 3, 0, v) ||
        !jv_items(r, self, &items))
        return false;
    struct keyed *const k = jalloc(r, (items->n + 1) * sizeof *k);
    if (!k)
        return false;
    for (size_t i = 0; i < items->n; i++) {
        k[i].value = items->v[i];
        if (!sort_key(r, items->v[i], v[2], jtruth(v[1]), &k[i].key))
            return false;
    }
    return sort_values(r, k, items->n, jtruth(v[0]), out);
}

static bool f_dictsort(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    struct jval v[3], pairs;
    if (!jargs_bind(r, a, "dictsort", ARGS("case_sensitive", "by", "reverse"), 3, 0, v))
        return false;
    if (self.type == J_UNDEF)
        return jfail_undef(r, self);
    if (!f_items(r, self, &(struct jargs){0}, &pairs))
        return false;
    size_t by = 0;
    if (v[1].type != J_ABSENT) {
        if (v[1].type == J_STR && str_is(jv_text(v[1]), "value"))
            by = 1;
        else if (v[1].type != J_STR || !str_is(jv_text(v[1]), "key"))
            return jfail(r, "You can only sort by either \"key\" or \"value\"");
    }
    const size_t n = pairs.l->n;
    struct keyed *const k = jalloc(r, (n + 1) * sizeof *k);
    if (!k)
        return false;
    for (size_t i = 0; i < n; i++) {
        k[i] = (struct keyed){pairs.l->v[i].l->v[by], pairs.l->v[i]};
        if (!fold(r, jtruth(v[0]), &k[i].key))
            return false;
    }
    return sort_values(r, k, n, jtruth(v[2]), out);
}

static bool f_unique(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    struct jval v[2], seen;
    struct jlist *items;
    if (!jargs_bind(r, a, "unique", ARGS("case_sensitive", "attribute"), 2, 0, v) ||
        !jv_items(r, self, &items) || !jlist_new(r, 0, out) || !jlist_new(r, 0, &seen))
        return false;
    for (size_t i = 0; i < items->n; i++) {
        struct jval key = items->v[i];
        if (v[1].type != J_ABSENT && v[1].type != J_NONE && !get_path(r, key, v[1], &key))
            return false;
        if (!jhashable(r, key) || !fold(r, jtruth(v[0]), &key) || !jstep(r, 1 + seen.l->n / 4))
            return false;
        size_t k = 0;
        while (k < seen.l->n && !jequal(seen.l->v[k], key))
            k++;
        if (k == seen.l->n && (!jlist_add(r, seen, key) || !jlist_add(r, *out, items->v[i])))
            return false;
    }
    return true;
}

static bool min_or_max(struct jrun *r, struct jval self, const struct jargs *a, int sign,
                       struct jval *out)
{
    struct jval v[2], best = {.type = J_ABSENT};
    struct jlist *items;
    if (!jargs_bind(r, a, sign < 0 ? "min" : "max", ARGS("case_sensitive", "attribute"), 2, 0, v) ||
        !jv_items(r, self, &items))
        return false;
    *out = jv_undef("No aggregated item, sequence was empty.");
    for (size_t i = 0; i < items->n; i++) {
        struct jval key = items->v[i];
        int c = -1;
        if ((v[1].type != J_ABSENT && v[1].type != J_NONE && !get_path(r, key, v[1], &key)) ||
            !fold(r, jtruth(v[0]), &key) ||
            (i && !jcompare(r, key, best, sign < 0 ? "<" : ">", &c)))
            return false;
        if (!i || c * sign > 0) {
            best = key;
            *out = items->v[i];
        }
    }
    return true;
}

static bool f_min(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    return min_or_max(r, self, a, -1, out);
}

static bool f_max(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    return min_or_max(r, self, a, 1, out);
}

static bool f_sum(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    struct jval v[2];
    struct jlist *items;
    if (!jargs_bind(r, a, "sum", ARGS("attribute", "start"), 2, 0, v) || !jv_items(r, self, &items))
        return false;
    *out = v[1].type == J_ABSENT ? jv_int(0) : v[1];
    for (size_t i = 0; i < items->n; i++) {
        struct jval x = items->v[i];
        if (v[0].type != J_ABSENT && v[0].type != J_NONE && !get_path(r, x, v[0], &x))
            return false;
        const bool whole = is_int(*out) && is_int(x);
        if ((!is_int(*out) && out->type != J_FLOAT) || (!is_int(x) && x.type != J_FLOAT))
            return jfail(r, "unsupported operand types for +: '%s' and '%s'", jtype_name(*out),
                         jtype_name(x));
        if (whole) {
            int64_t sum;
            if (__builtin_add_overflow(as_int(*out), as_int(x), &sum))
                return jfail_rc(r, RC_LIMIT, "an integer is too large");
            *out = jv_int(sum);
        } else {
            *out = jv_float((out->type == J_FLOAT ? out->f : (double)as_int(*out)) +
                            (x.type == J_FLOAT ? x.f : (double)as_int(x)));
        }
    }
    return true;
}

/* The rest of arguments from the i-th positional one on. */
static struct jargs rest(const struct jargs *a, size_t i)
{
    struct jargs b = *a;
    b.pos += i;
    b.n_pos -= i;
    return b;
}

static bool named(struct jrun *r, const char *what, struct jval name, jfn *(*find)(struct str),
                  jfn **out)
{
    *out = name.type == J_STR ? find(jv_text(name)) : NULL;
    if (*out)
        return true;
    struct jval s;
    return jv_str(r, name, &s) &&
           jfail(r, "no %s named '%.*s'", what, (int)MIN(s.s->n, 60), s.s->p);
}

static bool f_map(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    struct jlist *items;
    jfn *fn = NULL;
    struct jval v[2] = {{.type = J_ABSENT}, {.type = J_ABSENT}};
    if (!jlist_new(r, 0, out))
        return false;
    if (!jtruth(self)) /* whatever it is */
        return true;
    if (!jv_items(r, self, &items))
        return false;
    if (a->n_pos ? !named(r, "filter", a->pos[0], jinja_filter, &fn)
                 : !jargs_bind(r, a, "map", ARGS("attribute", "default"), 2, 1, v))
        return false;
    const struct jargs args = a->n_pos ? rest(a, 1) : (struct jargs){0};
    for (size_t i = 0; i < items->n; i++) {
        struct jval x;
        if (!jstep(r, 1) ||
            !(fn ? fn(r, items->v[i], &args, &x) : get_path(r, items->v[i], v[0], &x)))
            return false;
        if (!fn && x.type == J_UNDEF && v[1].type != J_ABSENT)
            x = v[1];
        if (!jlist_add(r, *out, x))
            return false;
    }
    return true;
}

static bool choose(struct jrun *r, struct jval self, const struct jargs *a, bool by_attr, bool keep,
                   struct jval *out)
{
    struct jlist *items;
    jfn *fn = NULL;
    const size_t off = by_attr;
    if (!jlist_new(r, 0, out))
        return false;
    if (!jtruth(self)) /* whatever it is */
        return true;
    if (!jv_items(r, self, &items))
        return false;
    if (a->n_pos < off)
        return jfail(r, "Missing parameter for attribute name");
    if (a->n_pos > off && !named(r, "test", a->pos[off], jinja_test, &fn))
        return false;
    const struct jargs args = a->n_pos > off ? rest(a, off + 1) : (struct jargs){0};
    for (size_t i = 0; i < items->n; i++) {
        struct jval x = items->v[i], yes;
        if (!jstep(r, 1) || (by_attr && !get_path(r, x, a->pos[0], &x)))
            return false;
        yes = x;
        if (fn && !fn(r, x, &args, &yes))
            return false;
        if (jtruth(yes) == keep && !jlist_add(r, *out, items->v[i]))
            return false;
    }
    return true;
}

static bool f_select(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    return choose(r, self, a, false, true, out);
}

static bool f_reject(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    return choose(r, self, a, false, false, out);
}

static bool f_selectattr(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    return choose(r, self, a, true, true, out);
}

static bool f_rejectattr(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    return choose(r, self, a, true, false, out);
}

static bool f_groupby(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    struct jval v[3], sorted, group, pair;
    struct jlist *items;
    if (!jargs_bind(r, a, "groupby", ARGS("attribute", "default", "case_sensitive"), 3, 1, v) ||
        !jv_items(r, self, &items) || !jlist_new(r, 0, out))
        return false;
    struct keyed *const k = jalloc(r, (items->n + 1) * sizeof *k);
    if (!k)
        return false;
    for (size_t i = 0; i < items->n; i++) {
        k[i].value = items->v[i];
        if (!get_path(r, items->v[i], v[0], &k[i].key))
            return false;
        if (k[i].key.type == J_UNDEF && v[1].type != J_ABSENT)
            k[i].key = v[1];
        if (!fold(r, jtruth(v[2]), &k[i].key))
            return false;
    }
    if (!sort_values(r, k, items->n, false, &sorted))
        return false;
    for (size_t i = 0; i < items->n; i++) {
        if (!i || !jequal(k[i].key, k[i - 1].key)) {
            struct jval key; /* as the group's first item writes it */
            if (!get_path(r, k[i].value, v[0], &key))
                return false;
            if (key.type == J_UNDEF && v[1].type != J_ABSENT)
                key = v[1];
            if (!jlist_new(r, 0, &group) || !jlist_new(r, 2, &pair) || !jlist_add(r, pair, key) ||
                !jlist_add(r, pair, group))
                return false;
            pair.tuple = true;
            pair.l->group = true;
            if (!jlist_add(r, *out, pair))
                return false;
        }
        if (!jlist_add(r, group, k[i].value))
            return false;
    }
    return true;
}

static bool f_batch(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    struct jval v[2], row = jv_none();
    struct jlist *items;
    int64_t n;
    if (!jargs_bind(r, a, "batch", ARGS("linecount", "fill_with"), 2, 1, v) ||
        !get_int(r, v[0], 0, &n) || !jv_items(r, self, &items) || !jlist_new(r, 0, out))
        return false;
    if (n < 1 || n > 1000000)
        return jfail(r, "batch of %" PRId64, n);
    for (size_t i = 0; i < items->n; i++) {
        if (i % (size_t)n == 0 && (!jlist_new(r, 0, &row) || !jlist_add(r, *out, row)))
            return false;
        if (!jlist_add(r, row, items->v[i]))
            return false;
    }
    while (items->n && v[1].type != J_ABSENT && v[1].type != J_NONE && row.l->n < (size_t)n)
        if (!jstep(r, 1) || !jlist_add(r, row, v[1]))
            return false;
    return true;
}

static bool f_slice(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    struct jval v[2];
    struct jlist *items;
    int64_t n;
    if (!jargs_bind(r, a, "slice", ARGS("slices", "fill_with"), 2, 1, v) ||
        !get_int(r, v[0], 0, &n) || !jv_items(r, self, &items) || !jlist_new(r, 0, out))
        return false;
    if (n < 1 || n > 1000000)
        return jfail(r, "slice into %" PRId64, n);
    const size_t each = items->n / (size_t)n, extra = items->n % (size_t)n;
    size_t at = 0;
    for (size_t i = 0; i < (size_t)n; i++) {
        struct jval part;
        if (!jstep(r, 1) || !jlist_new(r, 0, &part))
            return false;
        for (const size_t end = at + each + (i < extra); at < end; at++)
            if (!jlist_add(r, part, items->v[at]))
                return false;
        if (v[1].type != J_ABSENT && v[1].type != J_NONE && i >= extra && !jlist_add(r, part, v[1]))
            return false;
        if (!jlist_add(r, *out, part))
            return false;
    }
    return true;
}

/* ---- other filters ---- */

static bool f_default(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    struct jval v[2];
    if (!jargs_bind(r, a, "default", ARGS("default_value", "boolean"), 2, 0, v))
        return false;
    *out = self;
    if (self.type != J_UNDEF && !(jtruth(v[1]) && !jtruth(self)))
        return true;
    *out = v[0];
    return v[0].type != J_ABSENT || jstr_borrow(r, "", 0, out);
}

static bool f_attr(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    struct jval name;
    if (!jargs_bind(r, a, "attr", ARGS("name"), 1, 1, &name) || !jv_str(r, name, &name))
        return false;
    if (self.type == J_DICT) { /* attributes only, no keys */
        *out = (struct jval){.type = J_ABSENT};
        if (!jinja_method(r, self, jv_text(name), out))
            return false;
        return out->type != J_ABSENT ||
               jv_undef_fmt(r, out, "'dict object' has no attribute '%.*s'",
                            (int)MIN(name.s->n, 60), name.s->p);
    }
    return jattr(r, self, jv_text(name), out);
}

static bool f_tojson(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    struct jval v[4];
    char spaces[64];
    if (!jargs_bind(r, a, "tojson", ARGS("ensure_ascii", "indent", "separators", "sort_keys"), 4, 0,
                    v))
        return false;
    struct jjson_opts o = {.item = str_of(", "), .key = str_of(": ")};
    o.ascii = jtruth(v[0]);
    o.sort_keys = jtruth(v[3]);
    if (v[1].type == J_STR) {
        o.indent = jv_text(v[1]);
        o.item = str_of(",");
    } else if (v[1].type != J_ABSENT && v[1].type != J_NONE) {
        int64_t n;
        if (!get_int(r, v[1], 0, &n))
            return false;
        memset(spaces, ' ', sizeof spaces);
        o.indent = (struct str){spaces, (size_t)MAX(MIN(n, (int64_t)sizeof spaces), 0)};
        o.item = str_of(",");
    }
    if (v[2].type != J_ABSENT && v[2].type != J_NONE) {
        if (v[2].type != J_LIST || v[2].l->n != 2 || v[2].l->v[0].type != J_STR ||
            v[2].l->v[1].type != J_STR)
            return jfail(r, "tojson: separators must be two strings");
        o.item = jv_text(v[2].l->v[0]);
        o.key = jv_text(v[2].l->v[1]);
    }
    struct buf b = BUF_INIT;
    b.limit = r->o->max_output;
    if (!jv_to_json(r, self, &o, 0, &b)) {
        buf_release(&b);
        return false;
    }
    return jstep(r, b.n / 64) && jstr_take_from(r, &b, self, out);
}

static const struct {
    const char *name;
    jfn *fn;
} filters[] = {
    {"abs", f_abs},
    {"attr", f_attr},
    {"batch", f_batch},
    {"capitalize", f_capitalize},
    {"center", f_center},
    {"count", f_length},
    {"d", f_default},
    {"default", f_default},
    {"dictsort", f_dictsort},
    {"e", f_escape},
    {"escape", f_escape},
    {"filesizeformat", f_filesizeformat},
    {"first", f_first},
    {"float", f_float},
    {"forceescape", f_escape},
    {"format", f_format},
    {"groupby", f_groupby},
    {"indent", f_indent},
    {"int", f_int},
    {"items", f_items},
    {"join", f_join},
    {"last", f_last},
    {"length", f_length},
    {"list", f_list},
    {"lower", f_lower},
    {"map", f_map},
    {"max", f_max},
    {"min", f_min},
    {"reject", f_reject},
    {"rejectattr", f_rejectattr},
    {"replace", f_replace},
    {"reverse", f_reverse},
    {"round", f_round},
    {"safe", f_string},
    {"select", f_select},
    {"selectattr", f_selectattr},
    {"slice", f_slice},
    {"sort", f_sort},
    {"string", f_string},
    {"sum", f_sum},
    {"title", f_title},
    {"tojson", f_tojson},
    {"trim", f_trim},
    {"truncate", f_truncate},
    {"unique", f_unique},
    {"upper", f_upper},
    {"urlencode", f_urlencode},
    {"wordcount", f_wordcount},
};

jfn *jinja_filter(struct str name)
{
    for (size_t i = 0; i < COUNT_OF(filters); i++)
        if (str_is(name, filters[i].name))
            return filters[i].fn;
    return NULL;
}

/* ---- tests ---- */

#define SIMPLE_TEST(name, cond)                                                                    \
    static bool t_##name(struct jrun *r, struct jval self, const struct jargs *a,                  \
                         struct jval *out)                                                         \
    {                                                                                              \
        *out = jv_bool(cond);                                                                      \
        return none_given(r, a, #name);                                                            \
    }

SIMPLE_TEST(defined, self.type != J_UNDEF)
SIMPLE_TEST(undefined, self.type == J_UNDEF)
SIMPLE_TEST(none, self.type == J_NONE)
SIMPLE_TEST(boolean, self.type == J_BOOL)
SIMPLE_TEST(true, self.type == J_BOOL && self.b)
SIMPLE_TEST(false, self.type == J_BOOL && !self.b)
SIMPLE_TEST(integer, self.type == J_INT)
SIMPLE_TEST(float, self.type == J_FLOAT)
SIMPLE_TEST(number, self.type == J_INT || self.type == J_FLOAT || self.type == J_BOOL)
SIMPLE_TEST(string, self.type == J_STR)
SIMPLE_TEST(mapping, self.type == J_DICT)
SIMPLE_TEST(sequence, self.type == J_STR || self.type == J_LIST || self.type == J_DICT ||
                          self.type == J_UNDEF)
SIMPLE_TEST(iterable, self.type == J_STR || self.type == J_LIST || self.type == J_DICT ||
                          self.type == J_UNDEF || self.type == J_LOOP)
/* Undefined has __call__, so Python calls it callable. */
SIMPLE_TEST(callable, self.type == J_FUNC || self.type == J_UNDEF || self.type == J_LOOP)
SIMPLE_TEST(escaped, false && self.type)

static bool parity(struct jrun *r, struct jval self, const struct jargs *a, int want,
                   struct jval *out)
{
    if (!none_given(r, a, want ? "odd" : "even"))
        return false;
    if (self.type == J_FLOAT) {
        *out = jv_bool(fabs(fmod(self.f, 2)) == want);
        return true;
    }
    if (!is_int(self))
        return self.type == J_UNDEF
                   ? jfail_undef(r, self)
                   : jfail(r, "odd and even need a number, not %s", jtype_name(self));
    *out = jv_bool((as_int(self) & 1) == want);
    return true;
}

static bool t_odd(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    return parity(r, self, a, 1, out);
}

static bool t_even(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    return parity(r, self, a, 0, out);
}

static bool t_divisibleby(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    struct jval v;
    if (!jargs_bind(r, a, "divisibleby", ARGS("num"), 1, 1, &v))
        return false;
    if ((!is_int(self) && self.type != J_FLOAT) || (!is_int(v) && v.type != J_FLOAT))
        return jfail(r, "divisibleby needs numbers");
    if (v.type == J_FLOAT ? v.f == 0 : as_int(v) == 0)
        return jfail(r, "integer division or modulo by zero");
    if (is_int(self) && is_int(v))
        *out = jv_bool(as_int(v) == -1 || as_int(self) % as_int(v) == 0);
    else
        *out = jv_bool(fmod(self.type == J_FLOAT ? self.f : (double)as_int(self),
                            v.type == J_FLOAT ? v.f : (double)as_int(v)) == 0);
    return true;
}

/* str.islower and str.isupper of the value's text. */
static bool case_test(struct jrun *r, struct jval self, const struct jargs *a, const char *method,
                      struct jval *out)
{
    struct jval m;
    return none_given(r, a, method) && jv_str(r, self, &self) &&
           jinja_method(r, self, str_of(method), &m) && jcall(r, m, &(struct jargs){0}, out);
}

static bool t_lower(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    return case_test(r, self, a, "islower", out);
}

static bool t_upper(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    return case_test(r, self, a, "isupper", out);
}

static bool t_filter(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    *out = jv_bool(self.type == J_STR && jinja_filter(jv_text(self)));
    return none_given(r, a, "filter");
}

static bool t_test(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    *out = jv_bool(self.type == J_STR && jinja_test(jv_text(self)));
    return none_given(r, a, "test");
}

static bool t_sameas(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    struct jval v;
    if (!jargs_bind(r, a, "sameas", ARGS("other"), 1, 1, &v))
        return false;
    bool same = self.type == v.type;
    if (same && self.type == J_STR)
        same = str_eq(jv_text(self), jv_text(v)); /* short strings are interned in Python */
    else if (same && (self.type == J_LIST || self.type == J_DICT || self.type == J_FUNC ||
                      self.type == J_NAMESPACE))
        same = self.d == v.d;
    else
        same = same && jequal(self, v);
    *out = jv_bool(same);
    return true;
}

static bool t_eq(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    struct jval v;
    if (!jargs_bind(r, a, "eq", ARGS("other"), 1, 1, &v))
        return false;
    *out = jv_bool(jequal(self, v));
    return true;
}

static bool t_ne(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    if (!t_eq(r, self, a, out))
        return false;
    out->b = !out->b;
    return true;
}

static bool order_test(struct jrun *r, struct jval self, const struct jargs *a, const char *op,
                       int *c)
{
    struct jval v;
    return jargs_bind(r, a, op, ARGS("other"), 1, 1, &v) && jcompare(r, self, v, op, c);
}

#define ORDER_TEST(name, op, cond)                                                                 \
    static bool t_##name(struct jrun *r, struct jval self, const struct jargs *a,                  \
                         struct jval *out)                                                         \
    {                                                                                              \
        int c = 0;                                                                                 \
        const bool ok = order_test(r, self, a, op, &c);                                            \
        *out = jv_bool(cond);                                                                      \
        return ok;                                                                                 \
    }

ORDER_TEST(gt, ">", c > 0)
ORDER_TEST(ge, ">=", c >= 0)
ORDER_TEST(lt, "<", c < 0)
ORDER_TEST(le, "<=", c <= 0)

static bool t_in(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    struct jval v;
    struct jlist *items;
    if (!jargs_bind(r, a, "in", ARGS("seq"), 1, 1, &v))
        return false;
    if (v.type == J_STR) {
        if (self.type != J_STR)
            return jfail(r, "'in <string>' requires string as left operand, not %s",
                         jtype_name(self));
        *out = jv_bool(str_find(jv_text(v), jv_text(self), 0) >= 0);
        return true;
    }
    if (!jv_items(r, v, &items) || !jstep(r, items->n / 8))
        return false;
    *out = jv_bool(false);
    for (size_t i = 0; !out->b && i < items->n; i++)
        out->b = jequal(items->v[i], self);
    return true;
}

static const struct {
    const char *name;
    jfn *fn;
} tests[] = {
    {"boolean", t_boolean},
    {"callable", t_callable},
    {"defined", t_defined},
    {"divisibleby", t_divisibleby},
    {"eq", t_eq},
    {"equalto", t_eq},
    {"==", t_eq},
    {"escaped", t_escaped},
    {"even", t_even},
    {"false", t_false},
    {"filter", t_filter},
    {"float", t_float},
    {"ge", t_ge},
    {">=", t_ge},
    {"gt", t_gt},
    {">", t_gt},
    {"greaterthan", t_gt},
    {"in", t_in},
    {"integer", t_integer},
    {"iterable", t_iterable},
    {"le", t_le},
    {"<=", t_le},
    {"lower", t_lower},
    {"lt", t_lt},
    {"<", t_lt},
    {"lessthan", t_lt},
    {"mapping", t_mapping},
    {"ne", t_ne},
    {"!=", t_ne},
    {"none", t_none},
    {"number", t_number},
    {"odd", t_odd},
    {"sameas", t_sameas},
    {"sequence", t_sequence},
    {"string", t_string},
    {"test", t_test},
    {"true", t_true},
    {"undefined", t_undefined},
    {"upper", t_upper},
};

jfn *jinja_test(struct str name)
{
    for (size_t i = 0; i < COUNT_OF(tests); i++)
        if (str_is(name, tests[i].name))
            return tests[i].fn;
    return NULL;
}

/* ---- global functions ---- */

static bool g_range(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    int64_t n[3] = {0, 0, 1};
    (void)self;
    if (a->n_kw || a->n_pos < 1 || a->n_pos > 3)
        return jfail(r, "range() takes one to three arguments");
    for (size_t i = 0; i < a->n_pos; i++) {
        if (!is_int(a->pos[i]))
            return a->pos[i].type == J_UNDEF
                       ? jfail_undef(r, a->pos[i])
                       : jfail(r, "'%s' object cannot be interpreted as an integer",
                               jtype_name(a->pos[i]));
        n[i] = as_int(a->pos[i]);
    }
    if (a->n_pos == 1) {
        n[1] = n[0];
        n[0] = 0;
    }
    if (n[2] == 0)
        return jfail(r, "range() arg 3 must not be zero");
    if (!jlist_new(r, 0, out))
        return false;
    for (int64_t i = n[0]; n[2] > 0 ? i < n[1] : i > n[1];) {
        if (out->l->n == 100000)
            return jfail_rc(r, RC_LIMIT, "a range of more than 100000 numbers");
        if (!jstep(r, 1) || !jlist_add(r, *out, jv_int(i)))
            return false;
        if (__builtin_add_overflow(i, n[2], &i))
            break;
    }
    return true;
}

static bool fill_dict(struct jrun *r, const char *func, const struct jargs *a, struct jval d)
{
    if (a->n_pos > 1)
        return jfail(r, "%s() takes at most 1 argument", func);
    if (a->n_pos && a->pos[0].type == J_DICT) {
        for (size_t i = 0; i < a->pos[0].d->n; i++)
            if (!jdict_set(r, d, a->pos[0].d->k[i], a->pos[0].d->v[i]))
                return false;
    } else if (a->n_pos) {
        struct jlist *items;
        if (!jv_items(r, a->pos[0], &items))
            return false;
        for (size_t i = 0; i < items->n; i++) {
            const struct jval pair = items->v[i];
            if (pair.type != J_LIST || pair.l->n != 2)
                return jfail(r, "%s() needs pairs", func);
            if (!jdict_set(r, d, pair.l->v[0], pair.l->v[1]))
                return false;
        }
    }
    for (size_t i = 0; i < a->n_kw; i++) {
        struct jval k;
        if (!jstr_borrow(r, a->kw_name[i].p, a->kw_name[i].n, &k) || !jdict_set(r, d, k, a->kw[i]))
            return false;
    }
    return true;
}

static bool g_dict(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    (void)self;
    return jdict_new(r, out) && fill_dict(r, "dict", a, *out);
}

static bool g_namespace(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    (void)self;
    if (!jdict_new(r, out))
        return false;
    out->type = J_NAMESPACE;
    return fill_dict(r, "namespace", a, *out);
}

static bool g_raise(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    struct jval v, s;
    (void)self;
    (void)out;
    return jargs_bind(r, a, "raise_exception", ARGS("message"), 1, 1, &v) && jv_str(r, v, &s) &&
           jfail(r, "%.*s", (int)MIN(s.s->n, 160), s.s->p);
}

static bool g_strftime_now(struct jrun *r, struct jval self, const struct jargs *a,
                           struct jval *out)
{
    struct jval v;
    char fmt[256], text[1024];
    (void)self;
    if (!jargs_bind(r, a, "strftime_now", ARGS("format"), 1, 1, &v))
        return false;
    if (v.type != J_STR || v.s->n >= sizeof fmt)
        return jfail(r, "strftime_now needs a format of at most 255 bytes");
    memcpy(fmt, v.s->p, v.s->n);
    fmt[v.s->n] = 0;
    const time_t t = (time_t)r->o->now;
    struct tm tm;
    if (!localtime_r(&t, &tm))
        return jfail(r, "strftime_now: the time is out of range");
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    const size_t n = strftime(text, sizeof text, fmt, &tm);
#pragma GCC diagnostic pop
    return jstr_copy(r, text, n, out);
}

/* joiner: nothing the first time it is called, then its separator.  State: a namespace. */
static bool joiner_call(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    struct jval *const used = jdict_get_str(self.d, str_of("used"));
    const bool first = !jtruth(*used);
    *used = jv_bool(true);
    if (first)
        return none_given(r, a, "joiner") && jstr_borrow(r, "", 0, out);
    *out = *jdict_get_str(self.d, str_of("sep"));
    return none_given(r, a, "joiner");
}

static bool g_joiner(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    struct jval sep, key;
    (void)self;
    if (!jargs_bind(r, a, "joiner", ARGS("sep"), 1, 0, &sep) ||
        (sep.type == J_ABSENT && !jstr_borrow(r, ", ", 2, &sep)) || !jdict_new(r, &self))
        return false;
    self.type = J_NAMESPACE;
    return jstr_borrow(r, "sep", 3, &key) && jdict_set(r, self, key, sep) &&
           jstr_borrow(r, "used", 4, &key) && jdict_set(r, self, key, jv_bool(false)) &&
           jfunc_new(r, "joiner", joiner_call, self, out);
}

bool jinja_global(struct jrun *r, struct str name, struct jval *out)
{
    static const struct {
        const char *name;
        jfn *fn;
    } globals[] = {
        {"range", g_range},
        {"dict", g_dict},
        {"namespace", g_namespace},
        {"raise_exception", g_raise},
        {"strftime_now", g_strftime_now},
        {"joiner", g_joiner},
    };
    *out = (struct jval){.type = J_ABSENT};
    for (size_t i = 0; i < COUNT_OF(globals); i++)
        if (str_is(name, globals[i].name))
            return jfunc_new(r, globals[i].name, globals[i].fn, jv_none(), out);
    return true;
}
