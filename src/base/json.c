#include "base/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"

enum rc jread_parse(const char *s, size_t n, json_t **out, struct err *err)
{
    json_error_t e;
    json_t *v = json_loadb(s, n, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &e);
    if (!v)
        return err_set(err, RC_FORMAT, "JSON, line %d column %d: %s", e.line, e.column, e.text);
    *out = v;
    return RC_OK;
}

static const json_t *present(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    return v && !json_is_null(v) ? v : NULL;
}

enum rc jread_i64(const json_t *o, const char *key, int64_t min, int64_t max, int64_t *out,
                  struct err *err)
{
    const json_t *v = present(o, key);
    if (!v)
        return RC_OK;
    int64_t i;
    if (json_is_integer(v)) {
        i = json_integer_value(v);
    } else if (json_is_real(v) && json_real_value(v) == trunc(json_real_value(v)) &&
               fabs(json_real_value(v)) < 0x1p53) {
        i = (int64_t)json_real_value(v);
    } else {
        return err_set(err, RC_ARG, "%s must be an integer", key);
    }
    if (i < min || i > max)
        return err_set(err, RC_ARG, "%s is %" PRId64 ", must be %" PRId64 " to %" PRId64, key, i,
                       min, max);
    *out = i;
    return RC_OK;
}

enum rc jread_f64(const json_t *o, const char *key, double min, double max, double *out,
                  struct err *err)
{
    const json_t *v = present(o, key);
    if (!v)
        return RC_OK;
    if (!json_is_number(v))
        return err_set(err, RC_ARG, "%s must be a number", key);
    const double d = json_number_value(v);
    if (!(d >= min && d <= max))
        return err_set(err, RC_ARG, "%s is %g, must be %g to %g", key, d, min, max);
    *out = d;
    return RC_OK;
}

enum rc jread_bool(const json_t *o, const char *key, bool *out, struct err *err)
{
    const json_t *v = present(o, key);
    if (!v)
        return RC_OK;
    if (!json_is_boolean(v))
        return err_set(err, RC_ARG, "%s must be true or false", key);
    *out = json_is_true(v);
    return RC_OK;
}

enum rc jread_str(const json_t *o, const char *key, const char **out, struct err *err)
{
    const json_t *v = present(o, key);
    if (!v)
        return RC_OK;
    if (!json_is_string(v))
        return err_set(err, RC_ARG, "%s must be a string", key);
    if (strlen(json_string_value(v)) != json_string_length(v))
        return err_set(err, RC_ARG, "%s must not contain \\u0000", key);
    *out = json_string_value(v);
    return RC_OK;
}

void jwrite_init(struct jwrite *w, struct buf *b)
{
    *w = (struct jwrite){.b = b, .first = 1};
}

static void quoted(struct buf *b, const char *s, size_t n)
{
    buf_addc(b, '"');
    for (size_t i = 0; i < n;) {
        const unsigned char c = (unsigned char)s[i];
        uint32_t cp;
        const size_t len = utf8_decode(s + i, n - i, &cp);
        if (c == '"' || c == '\\') {
            buf_addc(b, '\\');
            buf_addc(b, s[i]);
        } else if (c == '\n') {
            buf_adds(b, "\\n");
        } else if (c == '\r') {
            buf_adds(b, "\\r");
        } else if (c == '\t') {
            buf_adds(b, "\\t");
        } else if (c < 0x20 || c == 0x7f) {
            buf_addf(b, "\\u%04x", c);
        } else if (cp == UINT32_MAX) {
            buf_adds(b, "\xEF\xBF\xBD");
        } else {
            buf_add(b, s + i, len);
        }
        i += len;
    }
    buf_addc(b, '"');
}

/* The comma and the key before a value. */
static void lead(struct jwrite *w, const char *key)
{
    const uint64_t bit = UINT64_C(1) << w->depth;
    if (!(w->first & bit))
        buf_addc(w->b, ',');
    w->first &= ~bit;
    if (key) {
        quoted(w->b, key, strlen(key));
        buf_addc(w->b, ':');
    }
}

static void open_with(struct jwrite *w, const char *key, char c)
{
    lead(w, key);
    buf_addc(w->b, c);
    CHECK(w->depth < 63);
    w->depth++;
    w->first |= UINT64_C(1) << w->depth;
}

static void close_with(struct jwrite *w, char c)
{
    CHECK(w->depth > 0);
    w->depth--;
    buf_addc(w->b, c);
}

void jwrite_obj(struct jwrite *w, const char *key)
{
    open_with(w, key, '{');
}

void jwrite_arr(struct jwrite *w, const char *key)
{
    open_with(w, key, '[');
}

void jwrite_end_obj(struct jwrite *w)
{
    close_with(w, '}');
}

void jwrite_end_arr(struct jwrite *w)
{
    close_with(w, ']');
}

void jwrite_strn(struct jwrite *w, const char *key, const char *s, size_t n)
{
    lead(w, key);
    quoted(w->b, s, n);
}

void jwrite_str(struct jwrite *w, const char *key, const char *s)
{
    if (s)
        jwrite_strn(w, key, s, strlen(s));
    else
        jwrite_null(w, key);
}

void jwrite_i64(struct jwrite *w, const char *key, int64_t v)
{
    lead(w, key);
    buf_addf(w->b, "%" PRId64, v);
}

void jwrite_u64(struct jwrite *w, const char *key, uint64_t v)
{
    lead(w, key);
    buf_addf(w->b, "%" PRIu64, v);
}

void jwrite_f64(struct jwrite *w, const char *key, double v)
{
    lead(w, key);
    if (!isfinite(v)) {
        buf_adds(w->b, "null");
        return;
    }
    char s[32];
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(s, sizeof s, "%.*g", digits, v);
        if (strtod(s, NULL) == v)
            break;
    }
    buf_adds(w->b, s);
}

void jwrite_fixed(struct jwrite *w, const char *key, double v, int decimals)
{
    lead(w, key);
    if (isfinite(v))
        buf_addf(w->b, "%.*f", decimals, v);
    else
        buf_adds(w->b, "null");
}

void jwrite_bool(struct jwrite *w, const char *key, bool v)
{
    lead(w, key);
    buf_adds(w->b, v ? "true" : "false");
}

void jwrite_null(struct jwrite *w, const char *key)
{
    lead(w, key);
    buf_adds(w->b, "null");
}

static int dump_to_buf(const char *p, size_t n, void *b)
{
    buf_add(b, p, n);
    return 0;
}

void jwrite_json(struct jwrite *w, const char *key, const json_t *v)
{
    lead(w, key);
    if (json_dump_callback(v, dump_to_buf, w->b, JSON_COMPACT | JSON_ENCODE_ANY))
        w->b->failed = true;
}

void jwrite_raw(struct jwrite *w, const char *key, const char *json)
{
    lead(w, key);
    buf_adds(w->b, json);
}
