/* jinja_method.c - methods of strings, lists, dicts and loops, and % formatting.
 *
 * As in the sandbox, what would change a list or dict is not there.
 */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "text/jinja_int.h"
#include "text/unicode.h"

bool jfunc_new(struct jrun *r, const char *name, jfn *fn, struct jval self, struct jval *out)
{
    struct jfunc *const f = jalloc(r, sizeof *f);
    if (!f)
        return false;
    *f = (struct jfunc){.name = name, .fn = fn, .self = self};
    *out = (struct jval){.type = J_FUNC, .fn = f};
    return true;
}

bool jargs_bind(struct jrun *r, const struct jargs *a, const char *func, const char *const *names,
                size_t n, size_t n_required, struct jval *out)
{
    for (size_t i = 0; i < n; i++)
        out[i] = (struct jval){.type = J_ABSENT};
    if (a->n_pos > n)
        return jfail(r, "%s() takes at most %zu argument(s), %zu given", func, n, a->n_pos);
    for (size_t i = 0; i < a->n_pos; i++)
        out[i] = a->pos[i];
    for (size_t k = 0; k < a->n_kw; k++) {
        size_t i = 0;
        while (i < n && !str_is(a->kw_name[k], names[i]))
            i++;
        if (i == n)
            return jfail(r, "%s() got an unexpected keyword argument '%.*s'", func,
                         (int)MIN(a->kw_name[k].n, 60), a->kw_name[k].p);
        if (out[i].type != J_ABSENT)
            return jfail(r, "%s() got multiple values for argument '%s'", func, names[i]);
        out[i] = a->kw[k];
    }
    for (size_t i = 0; i < n_required; i++)
        if (out[i].type == J_ABSENT)
            return jfail(r, "%s() misses its argument '%s'", func, names[i]);
    return true;
}

static bool need_str(struct jrun *r, const char *func, struct jval v)
{
    if (v.type == J_UNDEF)
        return jfail_undef(r, v);
    return v.type == J_STR || jfail(r, "%s() argument must be str, not %s", func, jtype_name(v));
}

static bool need_int(struct jrun *r, const char *func, struct jval v, int64_t if_absent,
                     int64_t *out)
{
    *out = if_absent;
    if (v.type == J_UNDEF)
        return jfail_undef(r, v);
    if (v.type != J_ABSENT && v.type != J_NONE && v.type != J_INT && v.type != J_BOOL)
        return jfail(r, "%s() argument must be int, not %s", func, jtype_name(v));
    *out = v.type == J_INT ? v.i : v.type == J_BOOL ? v.b : if_absent;
    return true;
}

/* ---- strings ---- */

static bool is_in(struct str set, const char *p, size_t n)
{
    return str_find(set, (struct str){p, n}, 0) >= 0;
}

bool jstr_strip(struct jrun *r, struct jval s, struct jval chars, bool left, bool right,
                struct jval *out)
{
    const bool spaces = chars.type == J_ABSENT || chars.type == J_NONE;
    if (!spaces && !need_str(r, "strip", chars))
        return false;
    size_t begin = 0, end = s.s->n;
    uint32_t cp;
    while (left && begin < end) {
        const size_t n = utf8_decode(s.s->p + begin, end - begin, &cp);
        if (spaces ? !unicode_is_python_space(cp) : !is_in(jv_text(chars), s.s->p + begin, n))
            break;
        begin += n;
    }
    while (right && begin < end) {
        size_t at = end - 1;
        while (at > begin && ((uint8_t)s.s->p[at] & 0xc0) == 0x80)
            at--;
        (void)utf8_decode(s.s->p + at, end - at, &cp);
        if (spaces ? !unicode_is_python_space(cp) : !is_in(jv_text(chars), s.s->p + at, end - at))
            break;
        end = at;
    }
    return jstep(r, s.s->n / 64) && jstr_sub(r, s, begin, end, out);
}

static bool strip_method(struct jrun *r, struct jval self, const struct jargs *a, bool left,
                         bool right, struct jval *out)
{
    struct jval chars;
    return jargs_bind(r, a, "strip", (const char *const[]){"chars"}, 1, 0, &chars) &&
           jstr_strip(r, self, chars, left, right, out);
}

static bool m_strip(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    return strip_method(r, self, a, true, true, out);
}

static bool m_lstrip(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    return strip_method(r, self, a, true, false, out);
}

static bool m_rstrip(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    return strip_method(r, self, a, false, true, out);
}

/* Adds s[begin, end) to a list. */
static bool add_part(struct jrun *r, struct jval list, struct jval s, size_t begin, size_t end)
{
    struct jval part;
    return jstep(r, 1) && jstr_sub(r, s, begin, end, &part) && jlist_add(r, list, part);
}

static bool split_spaces(struct jrun *r, struct jval s, int64_t max, struct jval list)
{
    size_t i = 0;
    for (;;) {
        uint32_t cp;
        size_t n = 0;
        while (i < s.s->n &&
               (n = utf8_decode(s.s->p + i, s.s->n - i, &cp), unicode_is_python_space(cp)))
            i += n;
        if (i >= s.s->n)
            return true;
        const size_t begin = i;
        if (max-- == 0) {
            struct jval rest;
            return jstr_sub(r, s, begin, s.s->n, &rest) && jlist_add(r, list, rest);
        }
        while (i < s.s->n &&
               (n = utf8_decode(s.s->p + i, s.s->n - i, &cp), !unicode_is_python_space(cp)))
            i += n;
        if (!add_part(r, list, s, begin, i))
            return false;
    }
}

/* The white space runs between words, from the right. */
static bool rsplit_spaces(struct jrun *r, struct jval s, int64_t max, struct jval *list)
{
    struct jval words;
    if (!jlist_new(r, 0, &words) || !split_spaces(r, s, -1, words))
        return false;
    const size_t n = words.l->n;
    if (max < 0 || (uint64_t)max >= n) {
        *list = words;
        return true;
    }
    /* The first n - max words stay together, with what was between them. */
    const size_t first = n - (size_t)max;
    struct jval head = s;
    if (first) {
        const struct jstr *const last = words.l->v[first - 1].s;
        if (!jstr_sub(r, s, 0, (size_t)(last->p + last->n - s.s->p), &head) ||
            !jlist_add(r, *list, head))
            return false;
    }
    for (size_t i = first; i < n; i++)
        if (!jlist_add(r, *list, words.l->v[i]))
            return false;
    return true;
}

static ptrdiff_t find_last(struct str hay, struct str needle, size_t end)
{
    if (needle.n > end)
        return -1;
    for (size_t i = end - needle.n + 1; i-- > 0;)
        if (memcmp(hay.p + i, needle.p, needle.n) == 0)
            return (ptrdiff_t)i;
    return -1;
}

static bool split_method(struct jrun *r, struct jval self, const struct jargs *a, bool from_right,
                         struct jval *out)
{
    struct jval v[2];
    int64_t max;
    if (!jargs_bind(r, a, "split", (const char *const[]){"sep", "maxsplit"}, 2, 0, v) ||
        !need_int(r, "split", v[1], -1, &max) || !jlist_new(r, 0, out) || !jstep(r, self.s->n / 16))
        return false;
    if (v[0].type == J_ABSENT || v[0].type == J_NONE)
        return from_right ? rsplit_spaces(r, self, max, out) : split_spaces(r, self, max, *out);
    if (!need_str(r, "split", v[0]))
        return false;
    const struct str s = jv_text(self), sep = jv_text(v[0]);
    if (!sep.n)
        return jfail(r, "empty separator");
    if (!from_right) {
        size_t at = 0;
        for (ptrdiff_t hit; max-- != 0 && (hit = str_find(s, sep, at)) >= 0;
             at = (size_t)hit + sep.n)
            if (!add_part(r, *out, self, at, (size_t)hit))
                return false;
        return add_part(r, *out, self, at, s.n);
    }
    size_t end = s.n;
    for (ptrdiff_t hit; max-- != 0 && (hit = find_last(s, sep, end)) >= 0; end = (size_t)hit)
        if (!add_part(r, *out, self, (size_t)hit + sep.n, end))
            return false;
    if (!add_part(r, *out, self, 0, end))
        return false;
    struct jlist *const l = out->l;
    for (size_t i = 0; i < l->n / 2; i++) {
        const struct jval t = l->v[i];
        l->v[i] = l->v[l->n - 1 - i];
        l->v[l->n - 1 - i] = t;
    }
    return true;
}

static bool m_split(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    return split_method(r, self, a, false, out);
}

static bool m_rsplit(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    return split_method(r, self, a, true, out);
}

static bool is_line_end(uint32_t cp)
{
    return (cp >= 0x0a && cp <= 0x0d) || (cp >= 0x1c && cp <= 0x1e) || cp == 0x85 || cp == 0x2028 ||
           cp == 0x2029;
}

bool jstr_lines(struct jrun *r, struct jval s, bool keep_ends, struct jval *out)
{
    if (!jlist_new(r, 0, out) || !jstep(r, s.s->n / 16))
        return false;
    size_t begin = 0;
    for (size_t i = 0; i < s.s->n;) {
        uint32_t cp;
        const size_t n = utf8_decode(s.s->p + i, s.s->n - i, &cp);
        if (is_line_end(cp)) {
            size_t end = i + n;
            if (cp == '\r' && end < s.s->n && s.s->p[end] == '\n')
                end++;
            if (!add_part(r, *out, s, begin, keep_ends ? end : i))
                return false;
            begin = i = end;
        } else {
            i += n;
        }
    }
    return begin == s.s->n || add_part(r, *out, s, begin, s.s->n);
}

static bool m_splitlines(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    struct jval keep;
    return jargs_bind(r, a, "splitlines", (const char *const[]){"keepends"}, 1, 0, &keep) &&
           jstr_lines(r, self, jtruth(keep), out);
}

bool jstr_replace(struct jrun *r, struct jval s, struct jval old, struct jval new, int64_t count,
                  struct jval *out)
{
    const struct str text = jv_text(s), what = jv_text(old);
    struct jval parts;
    size_t at = 0;
    if (!jlist_new(r, 0, &parts) || !jstep(r, text.n / 16))
        return false;
    while (count != 0) {
        ptrdiff_t hit;
        if (what.n) {
            hit = str_find(text, what, at);
        } else { /* between any two characters, and at both ends */
            uint32_t cp;
            hit = (ptrdiff_t)at;
            if (parts.l->n)
                hit =
                    at < text.n ? hit + (ptrdiff_t)utf8_decode(text.p + at, text.n - at, &cp) : -1;
        }
        if (hit < 0)
            break;
        if (!add_part(r, parts, s, at, (size_t)hit) || !jlist_add(r, parts, new))
            return false;
        at = (size_t)hit + what.n;
        count -= count > 0;
        if (parts.l->n * new.s->n / 2 > r->o->max_output)
            return jfail_rc(r, RC_LIMIT, "a string is too long");
    }
    if (!at && !parts.l->n) {
        *out = s;
        return true;
    }
    return add_part(r, parts, s, at, text.n) && jstr_concat(r, parts.l->v, parts.l->n, out);
}

static bool m_replace(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    struct jval v[3];
    int64_t count;
    return jargs_bind(r, a, "replace", (const char *const[]){"old", "new", "count"}, 3, 2, v) &&
           need_str(r, "replace", v[0]) && need_str(r, "replace", v[1]) &&
           need_int(r, "replace", v[2], -1, &count) &&
           jstr_replace(r, self, v[0], v[1], count, out);
}

/* s[start:end] of the optional arguments of find, count and startswith, in bytes. */
static bool byte_range(struct jrun *r, struct jval self, struct jval from, struct jval to,
                       size_t *begin, size_t *end)
{
    const int64_t n = (int64_t)jstr_chars(self.s);
    int64_t a, b;
    if (!need_int(r, "find", from, 0, &a) || !need_int(r, "find", to, INT64_MAX, &b))
        return false;
    a = a < 0 ? MAX(a + n, 0) : MIN(a, n);
    b = b < 0 ? MAX(b + n, 0) : MIN(b, n);
    *begin = jstr_byte(self.s, (size_t)a);
    *end = jstr_byte(self.s, (size_t)MAX(a, b));
    return true;
}

enum search { FIND, RFIND, INDEX, COUNT };

static bool search(struct jrun *r, struct jval self, const struct jargs *a, enum search how,
                   struct jval *out)
{
    struct jval v[3];
    size_t begin, end;
    if (!jargs_bind(r, a, "find", (const char *const[]){"sub", "start", "end"}, 3, 1, v) ||
        !need_str(r, "find", v[0]) || !byte_range(r, self, v[1], v[2], &begin, &end) ||
        !jstep(r, self.s->n / 16))
        return false;
    const struct str hay = {self.s->p, end}, needle = jv_text(v[0]);
    if (how == COUNT) {
        int64_t n = 0;
        if (!needle.n) {
            for (size_t i = begin; i < end; i++)
                n += ((uint8_t)hay.p[i] & 0xc0) != 0x80;
            n++;
        }
        ptrdiff_t at = (ptrdiff_t)begin;
        while (needle.n && (at = str_find(hay, needle, (size_t)at)) >= 0) {
            n++;
            at += (ptrdiff_t)needle.n;
        }
        *out = jv_int(n);
        return true;
    }
    ptrdiff_t at = how == RFIND ? find_last(hay, needle, end) : str_find(hay, needle, begin);
    if (at < (ptrdiff_t)begin)
        at = -1;
    if (at < 0 && how == INDEX)
        return jfail(r, "substring not found");
    int64_t chars = at < 0 ? -1 : 0;
    for (ptrdiff_t i = 0; i < at; i++)
        chars += ((uint8_t)hay.p[i] & 0xc0) != 0x80;
    *out = jv_int(chars);
    return true;
}

static bool m_find(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    return search(r, self, a, FIND, out);
}

static bool m_rfind(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    return search(r, self, a, RFIND, out);
}

static bool m_index(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    return search(r, self, a, INDEX, out);
}

static bool m_count(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    return search(r, self, a, COUNT, out);
}

static bool starts_or_ends(struct jrun *r, struct jval self, const struct jargs *a, bool ends,
                           struct jval *out)
{
    const char *const func = ends ? "endswith" : "startswith";
    struct jval v[3];
    size_t begin, end;
    if (!jargs_bind(r, a, func, (const char *const[]){"prefix", "start", "end"}, 3, 1, v) ||
        !byte_range(r, self, v[1], v[2], &begin, &end))
        return false;
    const struct str s = {self.s->p + begin, end - begin};
    struct jlist one = {.v = &v[0], .n = 1};
    const struct jlist *const options = v[0].type == J_LIST && v[0].tuple ? v[0].l : &one;
    *out = jv_bool(false);
    for (size_t i = 0; i < options->n; i++) {
        if (!need_str(r, func, options->v[i]))
            return false;
        const struct str x = jv_text(options->v[i]);
        out->b |= ends ? str_ends(s, x) : str_starts(s, x);
    }
    return true;
}

static bool m_startswith(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    return starts_or_ends(r, self, a, false, out);
}

static bool m_endswith(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    return starts_or_ends(r, self, a, true, out);
}

static bool remove_affix(struct jrun *r, struct jval self, const struct jargs *a, bool suffix,
                         struct jval *out)
{
    struct jval v;
    if (!jargs_bind(r, a, suffix ? "removesuffix" : "removeprefix", (const char *const[]){"affix"},
                    1, 1, &v) ||
        !need_str(r, "removeprefix", v))
        return false;
    const struct str s = jv_text(self), x = jv_text(v);
    if (suffix)
        return jstr_sub(r, self, 0, str_ends(s, x) ? s.n - x.n : s.n, out);
    return jstr_sub(r, self, str_starts(s, x) ? x.n : 0, s.n, out);
}

static bool m_removeprefix(struct jrun *r, struct jval self, const struct jargs *a,
                           struct jval *out)
{
    return remove_affix(r, self, a, false, out);
}

static bool m_removesuffix(struct jrun *r, struct jval self, const struct jargs *a,
                           struct jval *out)
{
    return remove_affix(r, self, a, true, out);
}

static bool partition(struct jrun *r, struct jval self, const struct jargs *a, bool last,
                      struct jval *out)
{
    struct jval sep;
    if (!jargs_bind(r, a, "partition", (const char *const[]){"sep"}, 1, 1, &sep) ||
        !need_str(r, "partition", sep) || !jlist_new(r, 3, out))
        return false;
    if (!sep.s->n)
        return jfail(r, "empty separator");
    out->tuple = true;
    const struct str s = jv_text(self);
    const ptrdiff_t at = last ? find_last(s, jv_text(sep), s.n) : str_find(s, jv_text(sep), 0);
    if (at >= 0)
        return add_part(r, *out, self, 0, (size_t)at) && jlist_add(r, *out, sep) &&
               add_part(r, *out, self, (size_t)at + sep.s->n, s.n);
    return add_part(r, *out, self, 0, last ? 0 : s.n) && add_part(r, *out, self, 0, 0) &&
           add_part(r, *out, self, last ? 0 : s.n, s.n);
}

static bool m_partition(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    return partition(r, self, a, false, out);
}

static bool m_rpartition(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    return partition(r, self, a, true, out);
}

bool jstr_case(struct jrun *r, struct jval s, enum jcase how, struct jval *out)
{
    struct buf b = BUF_INIT;
    if (!jstep(r, s.s->n / 16))
        return false;
    for (size_t i = 0; i < s.s->n;) {
        uint32_t cp, to[3];
        const size_t len = utf8_decode(s.s->p + i, s.s->n - i, &cp);
        if (cp > 0x10ffff) {
            buf_add(&b, s.s->p + i, len);
        } else {
            size_t n = unicode_to_lower(cp, to);
            if (how == JCASE_UPPER || (how == JCASE_CAPITAL && i == 0) ||
                (how == JCASE_SWAP && n == 1 && to[0] == cp))
                n = unicode_to_upper(cp, to);
            char c[4];
            for (size_t k = 0; k < n; k++)
                buf_add(&b, c, utf8_encode(to[k], c));
        }
        i += len;
    }
    return jstr_take_from(r, &b, s, out);
}

static bool no_args(struct jrun *r, const struct jargs *a, const char *func)
{
    return jargs_bind(r, a, func, NULL, 0, 0, NULL);
}

static bool m_upper(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    return no_args(r, a, "upper") && jstr_case(r, self, JCASE_UPPER, out);
}

static bool m_lower(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    return no_args(r, a, "lower") && jstr_case(r, self, JCASE_LOWER, out);
}

static bool m_capitalize(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    return no_args(r, a, "capitalize") && jstr_case(r, self, JCASE_CAPITAL, out);
}

static bool m_swapcase(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    return no_args(r, a, "swapcase") && jstr_case(r, self, JCASE_SWAP, out);
}

/* str.title: each run of letters begins with a capital. */
static bool m_title(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    struct buf b = BUF_INIT;
    bool in_word = false;
    if (!no_args(r, a, "title") || !jstep(r, self.s->n / 16))
        return false;
    for (size_t i = 0; i < self.s->n;) {
        uint32_t cp, to[3];
        char c[4];
        i += utf8_decode(self.s->p + i, self.s->n - i, &cp);
        cp = cp > 0x10ffff ? 0xfffd : cp;
        const size_t n = in_word ? unicode_to_lower(cp, to) : unicode_to_upper(cp, to);
        for (size_t k = 0; k < n; k++)
            buf_add(&b, c, utf8_encode(to[k], c));
        in_word = unicode_class(cp) == UNICODE_LETTER;
    }
    return jstr_take_from(r, &b, self, out);
}

enum is_what { IS_DIGIT, IS_ALPHA, IS_ALNUM, IS_SPACE, IS_UPPER, IS_LOWER };

static bool all_are(struct jval self, enum is_what what)
{
    bool any = false;
    for (size_t i = 0; i < self.s->n;) {
        uint32_t cp, to[3];
        i += utf8_decode(self.s->p + i, self.s->n - i, &cp);
        if (cp > 0x10ffff)
            return false;
        const enum unicode_class k = unicode_class(cp);
        switch (what) {
        case IS_DIGIT:
            if (k != UNICODE_NUMBER)
                return false;
            break;
        case IS_ALPHA:
            if (k != UNICODE_LETTER)
                return false;
            break;
        case IS_ALNUM:
            if (k != UNICODE_LETTER && k != UNICODE_NUMBER)
                return false;
            break;
        case IS_SPACE:
            if (!unicode_is_python_space(cp))
                return false;
            break;
        case IS_UPPER: /* cased characters, all of them upper */
        case IS_LOWER: {
            const bool up = unicode_to_lower(cp, to) != 1 || to[0] != cp;
            const bool low = unicode_to_upper(cp, to) != 1 || to[0] != cp;
            if (what == IS_UPPER ? low && !up : up && !low)
                return false;
            any |= up || low;
            continue;
        }
        }
        any = true;
    }
    return any;
}

static bool m_isdigit(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    *out = jv_bool(all_are(self, IS_DIGIT));
    return no_args(r, a, "isdigit");
}

static bool m_isalpha(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    *out = jv_bool(all_are(self, IS_ALPHA));
    return no_args(r, a, "isalpha");
}

static bool m_isalnum(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    *out = jv_bool(all_are(self, IS_ALNUM));
    return no_args(r, a, "isalnum");
}

static bool m_isspace(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    *out = jv_bool(all_are(self, IS_SPACE));
    return no_args(r, a, "isspace");
}

static bool m_isupper(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    *out = jv_bool(all_are(self, IS_UPPER));
    return no_args(r, a, "isupper");
}

static bool m_islower(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    *out = jv_bool(all_are(self, IS_LOWER));
    return no_args(r, a, "islower");
}

static bool m_join(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    struct jval v, parts;
    struct jlist *items;
    if (!jargs_bind(r, a, "join", (const char *const[]){"iterable"}, 1, 1, &v) ||
        !jv_items(r, v, &items) || !jlist_new(r, 0, &parts))
        return false;
    for (size_t i = 0; i < items->n; i++) {
        if (items->v[i].type != J_STR)
            return jfail(r, "sequence item %zu: expected str instance, %s found", i,
                         jtype_name(items->v[i]));
        if ((i && !jlist_add(r, parts, self)) || !jlist_add(r, parts, items->v[i]))
            return false;
    }
    return jstr_concat(r, parts.l->v, parts.l->n, out);
}

/* ljust, rjust, center, zfill: fill characters on both sides. */
static bool pad(struct jrun *r, struct jval self, size_t left, size_t right, struct str fill,
                struct jval *out)
{
    struct buf b = BUF_INIT;
    if (left > r->o->max_output || right > r->o->max_output || !jstep(r, left + right))
        return jfail_rc(r, RC_LIMIT, "a string is too long");
    while (left--)
        buf_add(&b, fill.p, fill.n);
    buf_add(&b, self.s->p, self.s->n);
    while (right--)
        buf_add(&b, fill.p, fill.n);
    return jstr_take_from(r, &b, self, out);
}

static bool justify(struct jrun *r, struct jval self, const struct jargs *a, int how,
                    struct jval *out)
{
    struct jval v[2];
    int64_t width;
    if (!jargs_bind(r, a, "just", (const char *const[]){"width", "fillchar"}, 2, 1, v) ||
        !need_int(r, "just", v[0], 0, &width) ||
        (v[1].type != J_ABSENT && !need_str(r, "just", v[1])))
        return false;
    if (v[1].type == J_STR && jstr_chars(v[1].s) != 1)
        return jfail(r, "The fill character must be exactly one character long");
    const int64_t n = (int64_t)jstr_chars(self.s);
    const size_t gap = width > n ? (size_t)(width - n) : 0;
    /* as CPython halves: the odd blank goes left when the width is odd */
    const size_t left = how < 0 ? 0 : how > 0 ? gap : gap / 2 + (gap & (size_t)width & 1);
    return pad(r, self, left, gap - left, v[1].type == J_STR ? jv_text(v[1]) : str_of(" "), out);
}

static bool m_ljust(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    return justify(r, self, a, -1, out);
}

static bool m_center(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    return justify(r, self, a, 0, out);
}

static bool m_rjust(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    return justify(r, self, a, 1, out);
}

static bool m_zfill(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    struct jval v;
    int64_t width;
    if (!jargs_bind(r, a, "zfill", (const char *const[]){"width"}, 1, 1, &v) ||
        !need_int(r, "zfill", v, 0, &width))
        return false;
    const int64_t n = (int64_t)jstr_chars(self.s);
    const size_t gap = width > n ? (size_t)(width - n) : 0;
    if (!self.s->n || (self.s->p[0] != '-' && self.s->p[0] != '+'))
        return pad(r, self, gap, 0, str_of("0"), out);
    struct jval sign, digits;
    return jstr_sub(r, self, 0, 1, &sign) && jstr_sub(r, self, 1, self.s->n, &digits) &&
           pad(r, digits, gap, 0, str_of("0"), &digits) &&
           jstr_concat(r, (struct jval[]){sign, digits}, 2, out);
}

/* {} {0} {name}, with [key] and .attr behind; no format specs or conversions. */
static bool m_format(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    const struct str s = jv_text(self);
    struct jval parts, part;
    size_t next = 0, from = 0;
    if (!jlist_new(r, 0, &parts))
        return false;
    for (size_t i = 0; i < s.n;) {
        const char c = s.p[i];
        if (c != '{' && c != '}') {
            i++;
            continue;
        }
        if (!add_part(r, parts, self, from, i))
            return false;
        if (i + 1 < s.n && s.p[i + 1] == c) { /* {{ is { */
            if (!add_part(r, parts, self, i, i + 1))
                return false;
            i += 2;
            from = i;
            continue;
        }
        size_t end = i + 1;
        while (end < s.n && s.p[end] != '}' && s.p[end] != '{')
            end++;
        if (c == '}' || end == s.n || s.p[end] != '}')
            return jfail(r, "single '%c' in a format string", c);
        const struct str field = {s.p + i + 1, end - i - 1};
        for (size_t k = 0; k < field.n; k++)
            if (strchr(":!.[", field.p[k]))
                return jfail_rc(r, RC_UNSUPPORTED,
                                "format() fields are a number or a name, without a spec");
        size_t index = next, k = 0;
        if (field.n && field.p[0] >= '0' && field.p[0] <= '9') {
            index = (size_t)strtoul(field.p, NULL, 10);
        } else if (field.n) {
            while (k < a->n_kw && !str_eq(a->kw_name[k], field))
                k++;
            if (k == a->n_kw)
                return jfail(r, "format() misses '%.*s'", (int)MIN(field.n, 60), field.p);
            index = SIZE_MAX;
        } else {
            next++;
        }
        if (index != SIZE_MAX && index >= a->n_pos)
            return jfail(r, "format() has too few arguments");
        if (!jv_str(r, index == SIZE_MAX ? a->kw[k] : a->pos[index], &part) ||
            !jlist_add(r, parts, part))
            return false;
        i = end + 1;
        from = i;
    }
    return add_part(r, parts, self, from, s.n) && jstr_concat(r, parts.l->v, parts.l->n, out);
}

/* ---- % ---- */

/* %[flags][width][.precision]conversion of one value. */
static bool format_one(struct jrun *r, struct str spec, struct jval v, struct jval *out)
{
    char fmt[32];
    struct buf b = BUF_INIT;
    const char conv = spec.p[spec.n - 1];
    if (spec.n > 16)
        return jfail(r, "a format of %zu characters", spec.n);
    size_t digits_in_row = 0; /* snprintf would go on for as long as a width asks */
    for (size_t i = 1; i + 1 < spec.n; i++) {
        digits_in_row = spec.p[i] >= '0' && spec.p[i] <= '9' ? digits_in_row + 1 : 0;
        if (digits_in_row > 3 && conv != 's' && conv != 'r')
            return jfail(r, "unsupported format");
    }
    if (v.type == J_UNDEF && conv != 's' && conv != 'r')
        return jfail_undef(r, v);
    snprintf(fmt, sizeof fmt, "%.*s", (int)spec.n - 1, spec.p);
    switch (conv) {
    case 's':
    case 'r': {
        struct jval s;
        if (conv == 's') {
            if (!jv_str(r, v, &s))
                return false;
        } else {
            jv_repr(v, &b);
            if (!jstr_take(r, &b, &s))
                return false;
        }
        if (spec.n == 2) {
            *out = s;
            return true;
        }
        /* width and precision count characters */
        const char *p = spec.p + 1;
        const bool left = *p == '-';
        p += left;
        char *rest;
        const unsigned long width = strtoul(p, &rest, 10);
        if (*rest == '.') {
            const size_t most = (size_t)strtoul(rest + 1, NULL, 10);
            if (jstr_chars(s.s) > most && !jstr_sub(r, s, 0, jstr_byte(s.s, most), &s))
                return false;
        }
        const size_t n = jstr_chars(s.s), gap = width > n ? width - n : 0;
        return pad(r, s, left ? 0 : gap, left ? gap : 0, str_of(" "), out);
    }
    case 'd':
    case 'i':
    case 'u':
    case 'x':
    case 'X':
    case 'o': {
        if (v.type != J_INT && v.type != J_BOOL &&
            (v.type != J_FLOAT || conv == 'x' || conv == 'X'))
            return jfail(r, "%%%c format: a real number is required, not %s", conv, jtype_name(v));
        if (v.type == J_FLOAT && !(fabs(v.f) < 9e18))
            return jfail_rc(r, RC_LIMIT, "an integer is too large");
        const int64_t i = v.type == J_FLOAT ? (int64_t)v.f : v.type == J_BOOL ? v.b : v.i;
        const bool signed_hex = i < 0 && conv != 'd' && conv != 'i' && conv != 'u';
        if (signed_hex)
            buf_addc(&b, '-');
        snprintf(fmt + spec.n - 1, sizeof fmt - spec.n, "ll%c", conv == 'u' ? 'd' : conv);
        char digits[128];
        const uint64_t magnitude = i < 0 ? 0 - (uint64_t)i : (uint64_t)i;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        const int n =
            snprintf(digits, sizeof digits, fmt, signed_hex ? (long long)magnitude : (long long)i);
#pragma GCC diagnostic pop
        if (n < 0 || (size_t)n >= sizeof digits)
            return jfail(r, "unsupported format");
        buf_adds(&b, digits);
        return jstr_take(r, &b, out);
    }
    case 'f':
    case 'F':
    case 'e':
    case 'E':
    case 'g':
    case 'G': {
        if (v.type != J_INT && v.type != J_BOOL && v.type != J_FLOAT)
            return jfail(r, "must be real number, not %s", jtype_name(v));
        const double f = v.type == J_FLOAT ? v.f : v.type == J_BOOL ? v.b : (double)v.i;
        snprintf(fmt + spec.n - 1, sizeof fmt - spec.n, "%c", conv);
        char digits[512];
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        const int n = snprintf(digits, sizeof digits, fmt, f);
#pragma GCC diagnostic pop
        if (n < 0 || (size_t)n >= sizeof digits)
            return jfail(r, "unsupported format");
        return jstr_copy(r, digits, (size_t)n, out);
    }
    default:
        return jfail(r, "unsupported format character '%c'", conv);
    }
}

bool jinja_format(struct jrun *r, struct jval text, struct jval args, struct jval *out)
{
    const struct str s = jv_text(text);
    struct jval parts, part;
    size_t used = 0, from = 0;
    struct jlist one = {.v = &args, .n = 1};
    const struct jlist *const list = args.type == J_LIST && args.tuple ? args.l : &one;
    if (!jlist_new(r, 0, &parts))
        return false;
    for (size_t i = 0; i < s.n; i++) {
        if (s.p[i] != '%')
            continue;
        if (!add_part(r, parts, text, from, i))
            return false;
        struct jval v = {.type = J_ABSENT};
        size_t at = i + 1;
        if (at < s.n && s.p[at] == '(') { /* %(name)s */
            const size_t begin = at + 1;
            while (at < s.n && s.p[at] != ')')
                at++;
            if (at == s.n || args.type != J_DICT)
                return jfail(r, "format requires a mapping");
            const struct jval *const found =
                jdict_get_str(args.d, (struct str){s.p + begin, at - begin});
            if (!found)
                return jfail(r, "format: no key '%.*s'", (int)MIN(at - begin, 60), s.p + begin);
            v = *found;
            at++;
        }
        const size_t spec = at;
        while (at < s.n && strchr("-+ #0123456789.", s.p[at]))
            at++;
        if (at == s.n)
            return jfail(r, "incomplete format");
        if (s.p[at] == '%') {
            if (!add_part(r, parts, text, at, at + 1))
                return false;
        } else {
            if (v.type == J_ABSENT) {
                if (used == list->n)
                    return jfail(r, "not enough arguments for format string");
                v = list->v[used++];
            }
            char f[24];
            snprintf(f, sizeof f, "%%%.*s", (int)MIN(at - spec + 1, sizeof f - 2), s.p + spec);
            if (!format_one(r, str_of(f), v, &part) || !jlist_add(r, parts, part))
                return false;
        }
        i = at;
        from = at + 1;
    }
    /* CPython lets arguments it takes for a mapping, lists among them, be left over */
    const bool tuple_or_str = args.type != J_LIST || args.tuple;
    if (used < list->n && args.type != J_DICT && args.type != J_UNDEF && tuple_or_str)
        return jfail(r, "not all arguments converted during string formatting");
    return add_part(r, parts, text, from, s.n) && jstr_concat(r, parts.l->v, parts.l->n, out);
}

/* ---- lists ---- */

static bool list_index(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    struct jval v[3];
    if (!jargs_bind(r, a, "index", (const char *const[]){"value", "start", "stop"}, 3, 1, v) ||
        !jstep(r, self.l->n))
        return false;
    int64_t from, to;
    const int64_t n = (int64_t)self.l->n;
    if (!need_int(r, "index", v[1], 0, &from) || !need_int(r, "index", v[2], n, &to))
        return false;
    from = from < 0 ? MAX(from + n, 0) : from;
    to = to < 0 ? MAX(to + n, 0) : MIN(to, n);
    for (int64_t i = from; i < to; i++)
        if (jequal(self.l->v[i], v[0])) {
            *out = jv_int(i);
            return true;
        }
    return jfail(r, "the value is not in the list");
}

static bool list_count(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    struct jval v;
    if (!jargs_bind(r, a, "count", (const char *const[]){"value"}, 1, 1, &v) ||
        !jstep(r, self.l->n))
        return false;
    *out = jv_int(0);
    for (size_t i = 0; i < self.l->n; i++)
        out->i += jequal(self.l->v[i], v);
    return true;
}

/* Values never change, so a copy is the thing itself. */
static bool m_copy(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    *out = self;
    return no_args(r, a, "copy");
}

/* ---- dicts ---- */

static bool dict_get(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    struct jval v[2];
    if (!jargs_bind(r, a, "get", (const char *const[]){"key", "default"}, 2, 1, v) ||
        !jstep(r, 1 + self.d->n / 8))
        return false;
    const struct jval *const found = jdict_get(self.d, v[0]);
    *out = found ? *found : v[1].type == J_ABSENT ? jv_none() : v[1];
    return true;
}

static bool dict_list(struct jrun *r, struct jval self, const struct jargs *a, int what,
                      struct jval *out)
{
    if (!no_args(r, a, "items") || !jlist_new(r, self.d->n, out) || !jstep(r, self.d->n))
        return false;
    static const char *const views[] = {"dict_keys", "dict_values", "dict_items"};
    out->source = self.source;
    out->l->view = views[what];
    for (size_t i = 0; i < self.d->n; i++) {
        struct jval pair = what == 0 ? self.d->k[i] : self.d->v[i];
        if (what == 2) {
            if (!jlist_new(r, 2, &pair) || !jlist_add(r, pair, self.d->k[i]) ||
                !jlist_add(r, pair, self.d->v[i]))
                return false;
            pair.tuple = true;
        }
        if (!jlist_add(r, *out, pair))
            return false;
    }
    return true;
}

static bool dict_keys(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    return dict_list(r, self, a, 0, out);
}

static bool dict_values(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    return dict_list(r, self, a, 1, out);
}

static bool dict_items(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    return dict_list(r, self, a, 2, out);
}

/* ---- loops ---- */

static bool loop_cycle(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    if (!a->n_pos)
        return jfail(r, "no items for cycling given");
    *out = a->pos[self.loop->i % a->n_pos];
    return true;
}

static bool loop_changed(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out)
{
    struct jval now;
    if (!jlist_new(r, 0, &now))
        return false;
    for (size_t i = 0; i < a->n_pos; i++)
        if (!jlist_add(r, now, a->pos[i]))
            return false;
    *out = jv_bool(!self.loop->changed_before || !jequal(self.loop->last_changed, now));
    self.loop->changed_before = true;
    self.loop->last_changed = now;
    return true;
}

/* ---- tables ---- */

struct method {
    const char *name;
    jfn *fn; /* NULL: there in Python, refused by the sandbox */
};

static const struct method str_methods[] = {
    {"strip", m_strip},
    {"lstrip", m_lstrip},
    {"rstrip", m_rstrip},
    {"split", m_split},
    {"rsplit", m_rsplit},
    {"splitlines", m_splitlines},
    {"replace", m_replace},
    {"find", m_find},
    {"rfind", m_rfind},
    {"index", m_index},
    {"count", m_count},
    {"startswith", m_startswith},
    {"endswith", m_endswith},
    {"removeprefix", m_removeprefix},
    {"removesuffix", m_removesuffix},
    {"partition", m_partition},
    {"rpartition", m_rpartition},
    {"upper", m_upper},
    {"lower", m_lower},
    {"casefold", m_lower},
    {"capitalize", m_capitalize},
    {"title", m_title},
    {"swapcase", m_swapcase},
    {"isdigit", m_isdigit},
    {"isdecimal", m_isdigit},
    {"isnumeric", m_isdigit},
    {"isalpha", m_isalpha},
    {"isalnum", m_isalnum},
    {"isspace", m_isspace},
    {"isupper", m_isupper},
    {"islower", m_islower},
    {"join", m_join},
    {"ljust", m_ljust},
    {"rjust", m_rjust},
    {"center", m_center},
    {"zfill", m_zfill},
    {"format", m_format},
};

static const struct method list_methods[] = {
    {"index", list_index}, {"count", list_count}, {"copy", m_copy}, {"append", NULL},
    {"extend", NULL},      {"insert", NULL},      {"pop", NULL},    {"remove", NULL},
    {"reverse", NULL},     {"sort", NULL},        {"clear", NULL},
};

static const struct method dict_methods[] = {
    {"get", dict_get},    {"items", dict_items}, {"keys", dict_keys}, {"values", dict_values},
    {"copy", m_copy},     {"clear", NULL},       {"pop", NULL},       {"popitem", NULL},
    {"setdefault", NULL}, {"update", NULL},
};

static const struct method loop_methods[] = {{"cycle", loop_cycle}, {"changed", loop_changed}};

bool jinja_method(struct jrun *r, struct jval v, struct str name, struct jval *out)
{
    const struct method *m = NULL;
    size_t n = 0;
    if (v.type == J_STR) {
        m = str_methods;
        n = COUNT_OF(str_methods);
    } else if (v.type == J_LIST) {
        m = list_methods;
        n = COUNT_OF(list_methods);
    } else if (v.type == J_DICT) {
        m = dict_methods;
        n = COUNT_OF(dict_methods);
    } else if (v.type == J_LOOP) {
        m = loop_methods;
        n = COUNT_OF(loop_methods);
    }
    for (size_t i = 0; i < n; i++)
        if (str_is(name, m[i].name)) {
            if (m[i].fn)
                return jfunc_new(r, m[i].name, m[i].fn, v, out);
            return jv_undef_fmt(r, out, "access to attribute '%s' of '%s' object is unsafe",
                                m[i].name, jtype_name(v));
        }
    return true;
}
