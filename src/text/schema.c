/* schema.c - JSON schemas to an automaton over the JSON that they allow.
 *
 * Each schema becomes a rule; a $ref to one that is being built is a call of its rule, so recursive
 * schemas come for free.  Members of an object come in the order in which the schema lists them;
 * which may be left out is a matter of empty edges:
 *
 *      {        a            b (optional)        c
 *   ---o---> o ----> o ------------> o ------------> o ---> }
 *                      \_____empty___/
 *
 * with a second row of states for "a member has been written, so a comma comes before the next".
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "text/gtree_int.h"
#include "text/json_int.h"
#include "text/tools.h"

enum { MAX_NESTING = 64, MAX_DIGITS = 16, MAX_KEY = 256, MAX_LITERALS = 1 << 19 /* bytes */ };
#define NO_RULE UINT32_MAX

struct schema_memo {
    const json_t *schema;
    uint32_t rule;
};

/* A schema and what it is with fewer kinds of values, which is NULL for none. */
struct schema_narrow {
    const json_t *schema, *narrow;
    unsigned kinds;
};

struct schema_build {
    struct grammar *g;
    const json_t *root;
    struct schema_memo *memo; /* rules made, by schema */
    size_t n_memo, memo_cap;
    struct schema_narrow *narrow; /* schemas made, by schema and kinds */
    size_t n_narrow, narrow_cap;
    json_t *made; /* their owner */
    unsigned depth;
    uint32_t bare_like[BARE_NODES]; /* grammar_bare_text's */
    bool bare;        /* strings are as XML calls have them: without quotes, then PARAMETER_END */
    struct buf where; /* path of the schema being built, for messages */
    uint32_t string_loop; /* the state within a string of any length */
    /* rules for what every schema needs, made when first asked for */
    uint32_t space, string, number, integer, value, object, array, bare_text;
};

#define PARAMETER_END "\n</parameter>"
#define CALL_TAG "<tool_call>"

struct schema_build *schema_build_new(struct grammar *g, const json_t *root, const char *where)
{
    struct schema_build *const b = mem_zalloc(sizeof *b);
    b->g = g;
    b->root = root;
    b->space = b->string = b->number = b->integer = b->value = b->object = b->array = b->bare_text =
        NO_RULE;
    buf_adds(&b->where, where);
    return b;
}

/* On with another schema of the same grammar, with what has been made already. */
static void another_root(struct schema_build *b, const json_t *root, const char *where)
{
    b->root = root;
    buf_clear(&b->where);
    buf_adds(&b->where, where);
}

void schema_build_free(struct schema_build *b)
{
    if (!b)
        return;
    mem_free(b->memo);
    mem_free(b->narrow);
    json_decref(b->made);
    buf_release(&b->where);
    mem_free(b);
}

/* Appends to the path; the length before is what where_end takes back. */
static size_t where_begin(struct schema_build *b, const char *fmt, const char *what)
{
    const size_t n = b->where.n;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    buf_addf(&b->where, fmt, what);
#pragma GCC diagnostic pop
    return n;
}

static void where_end(struct schema_build *b, size_t n)
{
    buf_truncate(&b->where, n);
}

/* ---- JSON at large ---- */

/* A blank, or a line break with an indent; bounded, or a model could go on with it for ever. */
static uint32_t space(struct schema_build *b)
{
    if (b->space != NO_RULE)
        return b->space;
    struct grammar *const g = b->g;
    b->space = grammar_rule(g, "space");
    const struct grule r = grammar_rule_at(g, b->space);
    uint32_t at = grammar_state_add(g);
    grammar_empty_edge(g, r.start, r.final);
    grammar_bytes_edge(g, r.start, ' ', ' ', r.final);
    grammar_bytes_edge(g, r.start, '\n', '\n', at);
    for (int i = 0; i < 20; i++) {
        const uint32_t next = grammar_state_add(g);
        grammar_empty_edge(g, at, r.final);
        grammar_bytes_edge(g, at, ' ', ' ', next);
        grammar_bytes_edge(g, at, '\t', '\t', next);
        at = next;
    }
    grammar_empty_edge(g, at, r.final);
    return b->space;
}

/* text with room for white space behind it, or before it. */
static uint32_t token_then_space(struct schema_build *b, uint32_t from, const char *text)
{
    const uint32_t mid = grammar_state_add(b->g), to = grammar_state_add(b->g);
    grammar_text(b->g, from, str_of(text), mid);
    grammar_call_edge(b->g, mid, space(b), to);
    return to;
}

static void space_then_token(struct schema_build *b, uint32_t from, const char *text, uint32_t to)
{
    const uint32_t mid = grammar_state_add(b->g);
    grammar_call_edge(b->g, from, space(b), mid);
    grammar_text(b->g, mid, str_of(text), to);
}

/* A backslash and what may follow it. */
static void string_escape(struct grammar *g, uint32_t from, uint32_t to)
{
    static const char simple[] = "\"\\/bfnrt";
    const uint32_t slash = grammar_state_add(g);
    grammar_bytes_edge(g, from, '\\', '\\', slash);
    for (size_t i = 0; i < sizeof simple - 1; i++)
        grammar_bytes_edge(g, slash, (uint8_t)simple[i], (uint8_t)simple[i], to);
    uint32_t at = grammar_state_add(g);
    grammar_bytes_edge(g, slash, 'u', 'u', at);
    for (int i = 0; i < 4; i++) {
        const uint32_t next = i < 3 ? grammar_state_add(g) : to;
        grammar_bytes_edge(g, at, '0', '9', next);
        grammar_bytes_edge(g, at, 'a', 'f', next);
        grammar_bytes_edge(g, at, 'A', 'F', next);
        at = next;
    }
}

/* One character inside a JSON string. */
static void string_char(struct grammar *g, uint32_t from, uint32_t to)
{
    static const struct grange special[] = {{0, 0x1f}, {'"', '"'}, {'\\', '\\'}};
    grammar_chars(g, from, special, COUNT_OF(special), true, to);
    string_escape(g, from, to);
}

static uint32_t string(struct schema_build *b)
{
    if (b->string != NO_RULE)
        return b->string;
    struct grammar *const g = b->g;
    b->string = grammar_rule(g, "string");
    const struct grule r = grammar_rule_at(g, b->string);
    const uint32_t loop = b->string_loop = grammar_state_add(g);
    grammar_bytes_edge(g, r.start, '"', '"', loop);
    string_char(g, loop, loop);
    grammar_bytes_edge(g, loop, '"', '"', r.final);
    return b->string;
}

/* min to max decimal digits. */
static void digits(struct grammar *g, uint32_t from, int min, int max, uint32_t to)
{
    for (int i = 0; i < max; i++) {
        if (i >= min)
            grammar_empty_edge(g, from, to);
        const uint32_t next = i + 1 < max ? grammar_state_add(g) : to;
        grammar_bytes_edge(g, from, '0', '9', next);
        from = next;
    }
}

/* 0, or a number that does not begin with it. */
static void natural(struct grammar *g, uint32_t from, uint32_t to)
{
    const uint32_t rest = grammar_state_add(g);
    grammar_bytes_edge(g, from, '0', '0', to);
    grammar_bytes_edge(g, from, '1', '9', rest);
    digits(g, rest, 0, MAX_DIGITS - 1, to);
}

static uint32_t integer(struct schema_build *b)
{
    if (b->integer != NO_RULE)
        return b->integer;
    struct grammar *const g = b->g;
    b->integer = grammar_rule(g, "integer");
    const struct grule r = grammar_rule_at(g, b->integer);
    const uint32_t magnitude = grammar_state_add(g);
    grammar_empty_edge(g, r.start, magnitude);
    grammar_bytes_edge(g, r.start, '-', '-', magnitude);
    natural(g, magnitude, r.final);
    return b->integer;
}

static uint32_t number(struct schema_build *b)
{
    if (b->number != NO_RULE)
        return b->number;
    struct grammar *const g = b->g;
    b->number = grammar_rule(g, "number");
    const struct grule r = grammar_rule_at(g, b->number);
    const uint32_t whole = grammar_state_add(g), point = grammar_state_add(g),
                   fraction = grammar_state_add(g), e = grammar_state_add(g),
                   exponent = grammar_state_add(g);
    grammar_call_edge(g, r.start, integer(b), whole);
    grammar_empty_edge(g, whole, fraction);
    grammar_bytes_edge(g, whole, '.', '.', point);
    digits(g, point, 1, MAX_DIGITS, fraction);
    grammar_empty_edge(g, fraction, r.final);
    grammar_bytes_edge(g, fraction, 'e', 'e', e);
    grammar_bytes_edge(g, fraction, 'E', 'E', e);
    grammar_empty_edge(g, e, exponent);
    grammar_bytes_edge(g, e, '+', '+', exponent);
    grammar_bytes_edge(g, e, '-', '-', exponent);
    digits(g, exponent, 1, 2, r.final); /* with three a double may overflow */
    return b->number;
}

static uint32_t value(struct schema_build *b);

/* open (member (, member)*)? close */
static void listing(struct schema_build *b, uint32_t from, const char *open, const char *close,
                    void (*member)(struct schema_build *, uint32_t, uint32_t), uint32_t to)
{
    struct grammar *const g = b->g;
    const uint32_t begin = token_then_space(b, from, open), one = grammar_state_add(g);
    grammar_text(g, begin, str_of(close), to);
    member(b, begin, one);
    space_then_token(b, one, close, to);
    member(b, token_then_space(b, one, ","), one);
}

static void any_item(struct schema_build *b, uint32_t from, uint32_t to)
{
    grammar_call_edge(b->g, from, value(b), to);
}

static void any_member(struct schema_build *b, uint32_t from, uint32_t to)
{
    const uint32_t key = grammar_state_add(b->g);
    grammar_call_edge(b->g, from, string(b), key);
    any_item(b, token_then_space(b, key, ":"), to);
}

static uint32_t object(struct schema_build *b)
{
    if (b->object == NO_RULE) {
        b->object = grammar_rule(b->g, "object");
        const struct grule r = grammar_rule_at(b->g, b->object);
        listing(b, r.start, "{", "}", any_member, r.final);
    }
    return b->object;
}

static uint32_t array(struct schema_build *b)
{
    if (b->array == NO_RULE) {
        b->array = grammar_rule(b->g, "array");
        const struct grule r = grammar_rule_at(b->g, b->array);
        listing(b, r.start, "[", "]", any_item, r.final);
    }
    return b->array;
}

static uint32_t value(struct schema_build *b)
{
    if (b->value != NO_RULE)
        return b->value;
    struct grammar *const g = b->g;
    b->value = grammar_rule(g, "value");
    const struct grule r = grammar_rule_at(g, b->value);
    grammar_call_edge(g, r.start, object(b), r.final);
    grammar_call_edge(g, r.start, array(b), r.final);
    grammar_call_edge(g, r.start, string(b), r.final);
    grammar_call_edge(g, r.start, number(b), r.final);
    grammar_text(g, r.start, str_of("true"), r.final);
    grammar_text(g, r.start, str_of("false"), r.final);
    grammar_text(g, r.start, str_of("null"), r.final);
    return b->value;
}

/* ---- keywords ---- */

/* Says nothing about values. */
static const char *const annotations[] = {
    "title", "description", "default",  "examples",   "example",  "$schema",
    "$id",   "id",          "$comment", "deprecated", "readOnly", "writeOnly",
    "$defs", "definitions", "$anchor",  "strict",

};

static const char *const supported[] = {
    "$ref",
    "type",
    "enum",
    "const",
    "anyOf",
    "oneOf",
    "allOf",
    "properties",
    "required",
    "additionalProperties",
    "items",
    "prefixItems",
    "minItems",
    "maxItems",
    "minLength",
    "maxLength",
    "pattern",
    "format",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
};

static bool is_among(const char *key, const char *const *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(key, list[i]) == 0)
            return true;
    return false;
}

static bool is_annotation(const char *key)
{
    return is_among(key, annotations, COUNT_OF(annotations)) || strncmp(key, "x-", 2) == 0;
}

/* Fails unless every keyword is an annotation or one of the list. */
static void only_supported(struct schema_build *b, const json_t *schema)
{
    const char *key;
    json_t *x;
    json_object_foreach(json_unconst(schema), key, x)
    {
        if (!is_annotation(key) && !is_among(key, supported, COUNT_OF(supported)))
            grammar_fail(b->g, RC_UNSUPPORTED, "%s: the keyword \"%s\" is not supported",
                         buf_str(&b->where), key);
    }
}

/* The same where place, such as next to another keyword, leaves the n of the list only. */
static void only(struct schema_build *b, const json_t *schema, const char *place,
                 const char *const *list, size_t n)
{
    const char *key;
    json_t *x;
    only_supported(b, schema);
    json_object_foreach(json_unconst(schema), key, x)
    {
        if (!is_annotation(key) && !is_among(key, list, n))
            grammar_fail(b->g, RC_UNSUPPORTED, "%s: the keyword \"%s\" %s is not supported",
                         buf_str(&b->where), key, place);
    }
}

#define ONLY(b, schema, place, ...)                                                                \
    only(b, schema, place, (const char *const[]){__VA_ARGS__},                                     \
         sizeof((const char *const[]){__VA_ARGS__}) / sizeof(const char *))

/* A size such as minItems; false when absent. */
static bool size_of(struct schema_build *b, const json_t *schema, const char *key, uint32_t *out)
{
    const json_t *const v = json_object_get(schema, key);
    if (!v)
        return false;
    const double f = json_is_number(v) ? json_number_value(v) : -1;
    if (!(f >= 0) || f > GTREE_MAX_REPEAT || f != floor(f)) {
        grammar_fail(b->g, RC_ARG, "%s.%s is no whole number between 0 and %d", buf_str(&b->where),
                     key, GTREE_MAX_REPEAT);
        return false;
    }
    *out = (uint32_t)f;
    return true;
}

/* ---- strings ---- */

static void string_of_length(struct schema_build *b, uint32_t from, uint32_t min, uint32_t max,
                             uint32_t to)
{
    struct grammar *const g = b->g;
    (void)string(b);
    uint32_t at = grammar_state_add(g);
    grammar_bytes_edge(g, from, '"', '"', at);
    for (uint32_t i = 0; i < min && !grammar_failed(g); i++) {
        const uint32_t next = grammar_state_add(g);
        string_char(g, at, next);
        at = next;
    }
    if (max == GTREE_NO_END) {
        const uint32_t loop = grammar_state_add(g);
        grammar_empty_edge(g, at, loop);
        string_char(g, loop, loop);
        grammar_bytes_edge(g, loop, '"', '"', to);
        return;
    }
    for (uint32_t i = min; i <= max && !grammar_failed(g); i++) {
        grammar_bytes_edge(g, at, '"', '"', to);
        /* far from its end a bounded string allows what any string does */
        grammar_alias(g, at, b->string_loop, max - i);
        if (i == max)
            break;
        const uint32_t next = grammar_state_add(g);
        string_char(g, at, next);
        at = next;
    }
}

/* A rule for bare text of a length, and PARAMETER_END. */
static uint32_t bare_text(struct schema_build *b, uint32_t min, uint32_t max)
{
    /* what the reply's parser would take for the value's end */
    static const char *const never[] = {"</parameter>", "\n<parameter=", "\n</function>",
                                        "\n</tool_call>"};
    static const struct bare_marks marks = {PARAMETER_END, never, COUNT_OF(never)};
    if (b->bare_text == NO_RULE) {
        b->bare_text = grammar_rule(b->g, "text");
        const struct grule r = grammar_rule_at(b->g, b->bare_text);
        grammar_bare_text(b->g, &marks, r.start, 0, GTREE_NO_END, r.final, NO_STOP, b->bare_like);
    }
    if (!min && max == GTREE_NO_END)
        return b->bare_text;
    const uint32_t rule = grammar_rule(b->g, "text of a length");
    const struct grule r = grammar_rule_at(b->g, rule);
    grammar_bare_text(b->g, &marks, r.start, min, max, r.final, NO_STOP, b->bare_like);
    return rule;
}

static void string_of_pattern(struct schema_build *b, uint32_t from, struct str pattern,
                              uint32_t to)
{
    const uint32_t end = b->bare ? grammar_state_add(b->g) : to;
    pattern_build(b->g, from, pattern, buf_str(&b->where), !b->bare, end);
    if (b->bare)
        grammar_text(b->g, end, str_of(PARAMETER_END), to);
}

static void string_schema(struct schema_build *b, const json_t *schema, uint32_t from, uint32_t to)
{
    static const struct {
        const char *name, *pattern;
    } formats[] = {
        {"date", "^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])$"},
        {"time", "^([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?"
                 "(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$"},
        {"date-time",
         "^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])T([01][0-9]|2[0-3])"
         ":[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$"},
        {"duration", "^P([0-9]{1,9}W|([0-9]{1,9}Y)?([0-9]{1,9}M)?[0-9]{1,9}D"
                     "(T([0-9]{1,9}H)?([0-9]{1,9}M)?[0-9]{1,9}S)?|T[0-9]{1,9}[HMS])$"},
        {"uuid", "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"},
        {"email", "^[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9-]{1,63}(\\.[A-Za-z0-9-]{1,63}){1,8}$"},
        {"hostname", "^[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
                     "(\\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?){0,8}$"},
        {"ipv4", "^((25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])\\.){3}"
                 "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])$"},
        {"uri", "^[A-Za-z][A-Za-z0-9+.-]{0,15}:[A-Za-z0-9._~:/?#@!$&'()*+,;=%-]{1,2048}$"},
    };
    const json_t *const pattern = json_object_get(schema, "pattern"), *const format =
                                                                          json_object_get(schema,
                                                                                          "format");
    uint32_t min = 0, max = GTREE_NO_END;
    const bool has_min = size_of(b, schema, "minLength", &min),
               has_max = size_of(b, schema, "maxLength", &max);
    if (max < min)
        grammar_fail(b->g, RC_ARG, "%s: maxLength is less than minLength", buf_str(&b->where));
    if ((pattern || format) && (has_min || has_max || (pattern && format))) {
        grammar_fail(b->g, RC_UNSUPPORTED, "%s: the keyword \"%s\" next to \"%s\" is not supported",
                     buf_str(&b->where),
                     has_min   ? "minLength"
                     : has_max ? "maxLength"
                               : "format",
                     pattern ? "pattern" : "format");
    } else if (pattern && !json_is_string(pattern)) {
        grammar_fail(b->g, RC_ARG, "%s.pattern is not a string", buf_str(&b->where));
    } else if (pattern) {
        string_of_pattern(
            b, from, (struct str){json_string_value(pattern), json_string_length(pattern)}, to);
    } else if (format) {
        const char *const name = json_string_value(format);
        size_t i = 0;
        while (name && i < COUNT_OF(formats) && strcmp(name, formats[i].name) != 0)
            i++;
        if (!name || i == COUNT_OF(formats))
            grammar_fail(b->g, RC_UNSUPPORTED, "%s: the format \"%s\" is not supported",
                         buf_str(&b->where), name ? name : "?");
        else
            string_of_pattern(b, from, str_of(formats[i].pattern), to);
    } else if (b->bare) {
        grammar_call_edge(b->g, from, bare_text(b, min, max), to);
    } else if (has_min || has_max) {
        string_of_length(b, from, min, max, to);
    } else {
        grammar_call_edge(b->g, from, string(b), to);
    }
}

/* ---- numbers ---- */

/* Digit strings of one length n, from lo to hi: as utf8_between in grammar.c, with digits. */
static void digits_between(struct grammar *g, uint32_t from, const char *lo, const char *hi, int n,
                           uint32_t to)
{
    static const char nines[] = "9999999999999999999", zeros[] = "0000000000000000000";
    char first = lo[0], last = hi[0];
    if (n == 1) {
        grammar_bytes_edge(g, from, (uint8_t)first, (uint8_t)last, to);
        return;
    }
    const bool lo_free = memcmp(lo + 1, zeros, (size_t)n - 1) == 0,
               hi_free = memcmp(hi + 1, nines, (size_t)n - 1) == 0;
    if (first == last && !(lo_free && hi_free)) {
        const uint32_t mid = grammar_state_add(g);
        grammar_bytes_edge(g, from, (uint8_t)first, (uint8_t)first, mid);
        digits_between(g, mid, lo + 1, hi + 1, n - 1, to);
        return;
    }
    if (!lo_free) {
        const uint32_t mid = grammar_state_add(g);
        grammar_bytes_edge(g, from, (uint8_t)first, (uint8_t)first, mid);
        digits_between(g, mid, lo + 1, nines, n - 1, to);
        first++;
    }
    if (!hi_free) {
        const uint32_t mid = grammar_state_add(g);
        grammar_bytes_edge(g, from, (uint8_t)last, (uint8_t)last, mid);
        digits_between(g, mid, zeros, hi + 1, n - 1, to);
        last--;
    }
    if (first <= last) {
        const uint32_t mid = grammar_state_add(g);
        grammar_bytes_edge(g, from, (uint8_t)first, (uint8_t)last, mid);
        digits(g, mid, n - 1, n - 1, to);
    }
}

/* Numbers lo to hi, without sign. */
static void naturals_between(struct grammar *g, uint32_t from, int64_t lo, int64_t hi, uint32_t to)
{
    int64_t least = 0, most = 9; /* of n digits */
    for (int n = 1; n <= MAX_DIGITS && least <= hi; n++) {
        const int64_t a = MAX(lo, least), z = MIN(hi, most);
        if (a <= z) {
            char x[24], y[24];
            snprintf(x, sizeof x, "%0*" PRId64, n, a);
            snprintf(y, sizeof y, "%0*" PRId64, n, z);
            digits_between(g, from, x, y, n, to);
        }
        least = most + 1;
        most = most * 10 + 9;
    }
}

#define MOST_WHOLE INT64_C(9999999999999999) /* MAX_DIGITS nines */

struct bounds {
    int64_t lo, hi;        /* within +-MOST_WHOLE */
    bool lo_open, hi_open; /* the end itself is left out */
    bool given;
};

static void one_bound(struct schema_build *b, const json_t *schema, const char *key, bool low,
                      bool open, struct bounds *out)
{
    const json_t *const v = json_object_get(schema, key);
    if (!v || grammar_failed(b->g))
        return;
    const double f = json_is_number(v) ? json_number_value(v) : NAN;
    if (isnan(f)) {
        grammar_fail(b->g, RC_ARG, "%s.%s is not a number", buf_str(&b->where), key);
        return;
    }
    if (f != floor(f) || fabs(f) > 1e15) {
        grammar_fail(b->g, RC_UNSUPPORTED,
                     "%s: the keyword \"%s\" is supported with whole numbers up to 1e15 only",
                     buf_str(&b->where), key);
        return;
    }
    out->given = true;
    const int64_t i = (int64_t)f;
    if (low && (i > out->lo || (i == out->lo && open))) {
        out->lo = i;
        out->lo_open = open;
    }
    if (!low && (i < out->hi || (i == out->hi && open))) {
        out->hi = i;
        out->hi_open = open;
    }
}

static struct bounds bounds_of(struct schema_build *b, const json_t *schema)
{
    struct bounds r = {.lo = -MOST_WHOLE, .hi = MOST_WHOLE};
    one_bound(b, schema, "minimum", true, false, &r);
    one_bound(b, schema, "exclusiveMinimum", true, true, &r);
    one_bound(b, schema, "maximum", false, false, &r);
    one_bound(b, schema, "exclusiveMaximum", false, true, &r);
    return r;
}

static void empty_range(struct schema_build *b)
{
    grammar_fail(b->g, RC_ARG, "%s: no number is within the bounds", buf_str(&b->where));
}

static void integer_schema(struct schema_build *b, const json_t *schema, uint32_t from, uint32_t to)
{
    struct bounds r = bounds_of(b, schema);
    struct grammar *const g = b->g;
    if (!r.given) {
        grammar_call_edge(g, from, integer(b), to);
        return;
    }
    r.lo += r.lo_open;
    r.hi -= r.hi_open;
    if (r.lo > r.hi)
        empty_range(b);
    if (r.hi >= 0)
        naturals_between(g, from, MAX(r.lo, 0), r.hi, to);
    if (r.lo < 0) {
        const uint32_t minus = grammar_state_add(g);
        grammar_bytes_edge(g, from, '-', '-', minus);
        naturals_between(g, minus, MAX(-r.hi, 1), -r.lo, to);
    }
}

/* . and digits, which may be missing; some: not all zeros; none: all zeros. */
static void fraction(struct grammar *g, uint32_t from, bool some, bool none, uint32_t to)
{
    if (!some)
        grammar_empty_edge(g, from, to);
    uint32_t at = grammar_state_add(g);
    grammar_bytes_edge(g, from, '.', '.', at);
    if (!some && !none) {
        digits(g, at, 1, MAX_DIGITS, to);
        return;
    }
    for (int i = 0; i < MAX_DIGITS; i++) { /* zeros so far */
        const uint32_t next = grammar_state_add(g);
        if (none && i)
            grammar_empty_edge(g, at, to);
        grammar_bytes_edge(g, at, '0', '0', next);
        if (some) {
            const uint32_t rest = grammar_state_add(g);
            grammar_bytes_edge(g, at, '1', '9', rest);
            digits(g, rest, 0, MAX_DIGITS, to);
        }
        at = next;
    }
    if (none)
        grammar_empty_edge(g, at, to);
}

/* Magnitudes between two whole numbers, ends left out or not. */
static void magnitudes(struct grammar *g, uint32_t from, int64_t lo, bool lo_open, int64_t hi,
                       bool hi_open, uint32_t to)
{
    if (lo_open) {
        if (lo < hi) { /* lo and something */
            const uint32_t whole = grammar_state_add(g);
            naturals_between(g, from, lo, lo, whole);
            fraction(g, whole, true, false, to);
        }
        lo++;
    }
    if (lo <= hi - 1) {
        const uint32_t whole = grammar_state_add(g);
        naturals_between(g, from, lo, hi - 1, whole);
        fraction(g, whole, false, false, to);
    }
    if (lo <= hi && !hi_open) {
        const uint32_t whole = grammar_state_add(g);
        naturals_between(g, from, hi, hi, whole);
        fraction(g, whole, false, true, to);
    }
}

static void number_schema(struct schema_build *b, const json_t *schema, uint32_t from, uint32_t to)
{
    const struct bounds r = bounds_of(b, schema);
    struct grammar *const g = b->g;
    if (!r.given) {
        grammar_call_edge(g, from, number(b), to);
        return;
    }
    if (r.lo > r.hi || (r.lo == r.hi && (r.lo_open || r.hi_open)))
        empty_range(b);
    if (r.hi > 0 || (r.hi == 0 && !r.hi_open))
        magnitudes(g, from, MAX(r.lo, 0), r.lo >= 0 && r.lo_open, r.hi, r.hi_open, to);
    if (r.lo < 0) {
        const uint32_t minus = grammar_state_add(g);
        grammar_bytes_edge(g, from, '-', '-', minus);
        magnitudes(g, minus, MAX(-r.hi, 0), r.hi >= 0 || r.hi_open, -r.lo, r.lo_open, to);
    }
}

/* ---- objects ---- */

static void key_text(struct schema_build *b, uint32_t from, const char *key, uint32_t to)
{
    json_t *const s = json_string(key);
    char *const text = s ? json_dumps(s, JSON_ENCODE_ANY) : NULL;
    if (text)
        grammar_text(b->g, from, str_of(text), to);
    else
        grammar_fail(b->g, RC_NOMEM, "no memory for the grammar");
    free(text);
    json_decref(s);
}

struct key { /* as JSON writes it, without quotes */
    const char *p;
    size_t n;
};

static int by_text(const void *a, const void *b)
{
    const struct key *const x = a, *const y = b;
    const int c = memcmp(x->p, y->p, MIN(x->n, y->n));
    return c ? c : x->n < y->n ? -1 : x->n > y->n;
}

/* The rest of a key of which `at` characters are written, and which is none of keys[n] (all of these
 * share what is written).  rest: any further characters and the quote. */
static void other_keys(struct grammar *g, uint32_t from, const struct key *keys, size_t n,
                       size_t at, uint32_t rest, uint32_t to)
{
    struct gnode other = {.kind = G_CLASS};
    bool is_key = false;
    for (size_t i = 0; i < n;) {
        if (keys[i].n == at) {
            is_key = true;
            i++;
            continue;
        }
        uint32_t cp;
        const size_t len = utf8_decode(keys[i].p + at, keys[i].n - at, &cp);
        size_t end = i;
        while (end < n && keys[end].n >= at + len && !memcmp(keys[end].p + at, keys[i].p + at, len))
            end++;
        if (cp != '\\' && cp <= 0x10ffff) { /* an escape always leads away from the keys */
            char c[4];
            const uint32_t next = grammar_state_add(g);
            grammar_text(g, from, (struct str){c, utf8_encode(cp, c)}, next);
            other_keys(g, next, keys + i, end - i, at + len, rest, to);
            gnode_range(g, &other, cp, cp);
        }
        i = end;
    }
    gnode_range(g, &other, 0, 0x1f);
    gnode_range(g, &other, '"', '"');
    gnode_range(g, &other, '\\', '\\');
    grammar_chars(g, from, other.ranges, other.n_ranges, true, rest);
    string_escape(g, from, rest);
    if (!is_key)
        grammar_bytes_edge(g, from, '"', '"', to);
}

/* A rule for keys that are none of the properties. */
static uint32_t additional_key(struct schema_build *b, const json_t *properties)
{
    struct grammar *const g = b->g;
    const size_t n = json_object_size(properties);
    if (!n)
        return string(b);
    struct key *const keys = arena_try(grammar_arena(g), n * sizeof *keys);
    size_t i = 0;
    const char *key;
    json_t *x;
    json_object_foreach(json_unconst(properties), key, x)
    {
        json_t *const s = json_string(key);
        char *const text = s ? json_dumps(s, JSON_ENCODE_ANY) : NULL;
        const size_t len = text ? strlen(text) - 2 : 0;
        const char *const kept = text ? arena_strndup(grammar_arena(g), text + 1, len) : NULL;
        free(text);
        json_decref(s);
        if (!keys || !kept) {
            grammar_fail(g, RC_NOMEM, "no memory for the grammar");
            return 0;
        }
        if (len > MAX_KEY)
            grammar_fail(g, RC_LIMIT, "%s: a property's name of %zu bytes", buf_str(&b->where),
                         len);
        keys[i++] = (struct key){kept, len};
    }
    if (grammar_failed(g))
        return 0;
    qsort(keys, n, sizeof *keys, by_text);
    const uint32_t rule = grammar_rule(g, "key");
    const struct grule r = grammar_rule_at(g, rule);
    const uint32_t begin = grammar_state_add(g), rest = grammar_state_add(g);
    grammar_bytes_edge(g, r.start, '"', '"', begin);
    string_char(g, rest, rest);
    grammar_bytes_edge(g, rest, '"', '"', r.final);
    other_keys(g, begin, keys, n, 0, rest, r.final);
    return rule;
}

static bool is_required(const json_t *required, const char *key)
{
    size_t i;
    const json_t *x;
    json_array_foreach(required, i, x) if (json_is_string(x) &&
                                           strcmp(json_string_value(x), key) == 0) return true;
    return false;
}

/* Every property's own kid: what may stand behind its key. */
static void members(struct schema_build *b, const json_t *properties, const json_t *required,
                    const json_t *additional, uint32_t from, uint32_t to)
{
    struct grammar *const g = b->g;
    uint32_t none = token_then_space(b, from, "{"); /* no member is written yet */
    uint32_t some = NO_RULE;                        /* one is */
    const char *key;
    json_t *x;
    json_object_foreach(json_unconst(properties), key, x)
    {
        const size_t where = where_begin(b, ".properties.%s", key);
        const uint32_t rule = schema_rule(b, x);
        where_end(b, where);
        const uint32_t name = grammar_state_add(g), named = grammar_state_add(g),
                       done = grammar_state_add(g);
        const bool optional = !is_required(required, key);
        if (none != NO_RULE)
            grammar_empty_edge(g, none, name);
        if (some != NO_RULE)
            grammar_empty_edge(g, token_then_space(b, some, ","), name);
        key_text(b, name, key, named);
        grammar_call_edge(g, token_then_space(b, named, ":"), rule, done);
        if (optional && some != NO_RULE)
            grammar_empty_edge(g, some, done);
        some = done;
        if (!optional)
            none = NO_RULE;
        if (grammar_failed(g))
            return;
    }
    if (additional) {
        const size_t where = where_begin(b, ".%s", "additionalProperties");
        const uint32_t rule = schema_rule(b, additional);
        where_end(b, where);
        const uint32_t keys = additional_key(b, properties);
        const uint32_t name = grammar_state_add(g), named = grammar_state_add(g),
                       done = grammar_state_add(g);
        if (none != NO_RULE)
            grammar_empty_edge(g, none, name);
        if (some != NO_RULE)
            grammar_empty_edge(g, some, done);
        grammar_call_edge(g, name, keys, named);
        grammar_call_edge(g, token_then_space(b, named, ":"), rule, done);
        grammar_empty_edge(g, token_then_space(b, done, ","), name);
        some = done;
    }
    if (none != NO_RULE)
        grammar_text(g, none, str_of("}"), to);
    if (some != NO_RULE)
        space_then_token(b, some, "}", to);
}

/* Fails where a member has to come that additionalProperties forbids. */
static void required_are_allowed(struct schema_build *b, const json_t *schema)
{
    const json_t *const properties = json_object_get(schema, "properties");
    size_t i;
    const json_t *x;
    if (!json_is_false(json_object_get(schema, "additionalProperties")))
        return;
    json_array_foreach(json_object_get(schema, "required"), i, x)
    {
        const char *const name = json_string_value(x);
        if (name && !json_object_get(properties, name))
            grammar_fail(b->g, RC_ARG,
                         "%s.required names \"%s\", which is none of the properties, and "
                         "additionalProperties is false",
                         buf_str(&b->where), name);
    }
}

static void object_schema(struct schema_build *b, const json_t *schema, uint32_t from, uint32_t to)
{
    const json_t *const properties = json_object_get(schema, "properties"),
                        *const required = json_object_get(schema, "required"),
                        *additional = json_object_get(schema, "additionalProperties");
    if (properties && !json_is_object(properties))
        grammar_fail(b->g, RC_ARG, "%s.properties is not an object", buf_str(&b->where));
    if (required && !json_is_array(required))
        grammar_fail(b->g, RC_ARG, "%s.required is not a list", buf_str(&b->where));
    if (!properties && !json_array_size(required) && (!additional || json_is_true(additional))) {
        grammar_call_edge(b->g, from, object(b), to);
        return;
    }
    required_are_allowed(b, schema);
    if (json_is_false(
            additional)) /* and where properties are listed, others have to be asked for */
        additional = NULL;
    json_t *all = properties ? json_copy(json_unconst(properties)) : json_object();
    size_t i;
    const json_t *name;
    json_array_foreach(required, i, name)
    {
        if (!json_is_string(name))
            grammar_fail(b->g, RC_ARG, "%s.required holds no name", buf_str(&b->where));
        else if (!json_object_get(all, json_string_value(name)) &&
                 json_object_set_new(all, json_string_value(name), json_true()))
            grammar_fail(b->g, RC_NOMEM, "no memory for the grammar");
    }
    if (!all)
        grammar_fail(b->g, RC_NOMEM, "no memory for the grammar");
    if (!grammar_failed(b->g))
        members(b, all, required, additional, from, to);
    json_decref(all);
}

/* ---- arrays ---- */

static void array_schema(struct schema_build *b, const json_t *schema, uint32_t from, uint32_t to)
{
    struct grammar *const g = b->g;
    const json_t *items = json_object_get(schema, "items"),
                 *prefix = json_object_get(schema, "prefixItems");
    uint32_t min = 0, max = GTREE_NO_END;
    (void)size_of(b, schema, "minItems", &min);
    (void)size_of(b, schema, "maxItems", &max);
    if (json_is_array(items)) { /* as drafts before 2020 write a tuple */
        prefix = items;
        items = NULL;
    }
    if (prefix && !json_is_array(prefix))
        grammar_fail(g, RC_ARG, "%s.prefixItems is not a list", buf_str(&b->where));
    const size_t n_prefix = json_array_size(prefix);
    if (json_is_false(items) || (prefix && !items))
        max = MIN(max, (uint32_t)n_prefix);
    if (max < min) {
        grammar_fail(g, RC_ARG, "%s: maxItems is less than minItems", buf_str(&b->where));
        return;
    }
    if (!items && !prefix && min == 0 && max == GTREE_NO_END) {
        grammar_call_edge(g, from, array(b), to);
        return;
    }
    uint32_t rule = NO_RULE;
    if (max > n_prefix) {
        const size_t where = where_begin(b, ".%s", "items");
        rule = items ? schema_rule(b, items) : value(b);
        where_end(b, where);
    }
    uint32_t at = token_then_space(b, from, "[");
    if (min == 0)
        grammar_text(g, at, str_of("]"), to);
    for (uint32_t i = 0; i < max && !grammar_failed(g); i++) {
        const uint32_t done = grammar_state_add(g);
        uint32_t item = rule;
        if (i < n_prefix) {
            char index[24];
            snprintf(index, sizeof index, "%u", i);
            const size_t where = where_begin(b, ".prefixItems.%s", index);
            item = schema_rule(b, json_array_get(prefix, i));
            where_end(b, where);
        }
        grammar_call_edge(g, at, item, done);
        if (i + 1 >= min)
            space_then_token(b, done, "]", to);
        if (i + 1 >= max)
            break;
        at = token_then_space(b, done, ",");
        if (max == GTREE_NO_END && i + 1 >= MAX(min, (uint32_t)n_prefix)) { /* any number more */
            grammar_call_edge(g, at, rule, done);
            break;
        }
    }
}

/* ---- schemas ---- */

/* A value as JSON, or bare if it is a string that may be, in the grammar's arena; NULL after a
 * failure. */
static struct str literal(struct schema_build *b, const json_t *v, bool bare)
{
    char *const json =
        bare && json_is_string(v) ? NULL : json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT);
    const char *const text = json ? json : bare ? json_string_value(v) : NULL;
    const size_t n = json ? strlen(json) : text ? json_string_length(v) : 0;
    const char *const kept = text ? arena_strndup(grammar_arena(b->g), text, n) : NULL;
    if (!kept)
        grammar_fail(b->g, RC_NOMEM, "no memory for the grammar");
    free(json);
    return (struct str){kept, n};
}

/* The kinds that a type names, and whole numbers with all numbers; any without a type. */
static unsigned type_kinds(struct schema_build *b, const json_t *type)
{
    static const struct {
        const char *name;
        unsigned kinds;
    } types[] = {{"null", KIND_NULL},       {"boolean", KIND_BOOLEAN},
                 {"integer", KIND_INTEGER}, {"number", KIND_NUMBER | KIND_INTEGER},
                 {"string", KIND_STRING},   {"array", KIND_ARRAY},
                 {"object", KIND_OBJECT}};
    if (!type)
        return KIND_ANY;
    const bool list = json_is_array(type);
    unsigned kinds = 0;
    for (size_t i = 0; i < (list ? json_array_size(type) : 1); i++) {
        const char *const name = json_string_value(list ? json_array_get(type, i) : type);
        size_t k = 0;
        while (name && k < COUNT_OF(types) && strcmp(name, types[k].name) != 0)
            k++;
        if (name && k < COUNT_OF(types))
            kinds |= types[k].kinds;
        else if (name)
            grammar_fail(b->g, RC_ARG, "%s.type \"%s\" is unknown", buf_str(&b->where), name);
        else
            grammar_fail(b->g, RC_ARG, "%s.type is neither a name nor a list of such",
                         buf_str(&b->where));
    }
    return kinds;
}

static bool is_of_kinds(const json_t *v, unsigned kinds)
{
    const double f = json_is_real(v) ? json_real_value(v) : 0.5;
    const unsigned kind = json_is_null(v)      ? KIND_NULL
                          : json_is_boolean(v) ? KIND_BOOLEAN
                          : json_is_integer(v) ? KIND_INTEGER
                          : json_is_real(v)    ? KIND_NUMBER
                          : json_is_string(v)  ? KIND_STRING
                          : json_is_array(v)   ? KIND_ARRAY
                                               : KIND_OBJECT;
    return kind & kinds || (kinds & KIND_INTEGER && f == floor(f));
}

/* The values of enum or const that the type beside it allows. */
static void literals(struct schema_build *b, const json_t *schema, bool bare, uint32_t from,
                     uint32_t to)
{
    const json_t *const one = json_object_get(schema, "const"), *const list =
                                                                    json_object_get(schema, "enum");
    const unsigned kinds = type_kinds(b, json_object_get(schema, "type"));
    const char *const key = one ? "const" : "enum";
    if (one)
        ONLY(b, schema, "next to \"const\"", "const", "type");
    else
        ONLY(b, schema, "next to \"enum\"", "enum", "type");
    const size_t n = one ? 1 : json_array_size(list);
    struct str *const texts = mem_try_array(n, sizeof *texts);
    size_t n_kept = 0, bytes = 0;
    if (n && !texts)
        grammar_fail(b->g, RC_NOMEM, "no memory for the grammar");
    for (size_t i = 0; i < n && !grammar_failed(b->g); i++) {
        const json_t *const v = one ? one : json_array_get(list, i);
        if (!is_of_kinds(v, kinds))
            continue;
        texts[n_kept] = literal(b, v, bare);
        bytes += texts[n_kept++].n;
    }
    if (bytes > MAX_LITERALS)
        grammar_fail(b->g, RC_LIMIT, "%s.%s: %zu bytes of values are more than %d",
                     buf_str(&b->where), key, bytes, MAX_LITERALS);
    if (n_kept && !grammar_failed(b->g))
        grammar_texts(b->g, from, texts, n_kept, to);
    mem_free(texts);
    if (!n)
        grammar_fail(b->g, RC_ARG, "%s.enum is empty or not a list", buf_str(&b->where));
    else if (!n_kept)
        grammar_fail(b->g, RC_ARG, "%s.%s holds nothing that its type allows", buf_str(&b->where),
                     key);
}

static const json_t *resolve(struct schema_build *b, const char *ref)
{
    const json_t *at = b->root;
    if (ref[0] != '#') {
        grammar_fail(b->g, RC_UNSUPPORTED, "%s: $ref \"%s\" leads outside of the schema",
                     buf_str(&b->where), ref);
        return NULL;
    }
    for (const char *p = ref + 1; *p == '/' && at;) {
        struct buf key = BUF_INIT;
        for (p++; *p && *p != '/'; p++) {
            const bool slash = !strncmp(p, "~1", 2), tilde = !strncmp(p, "~0", 2);
            buf_addc(&key, slash ? '/' : tilde ? '~' : *p);
            p += slash || tilde;
        }
        char *end;
        const unsigned long i = strtoul(buf_str(&key), &end, 10);
        at = json_is_array(at) && key.n && !*end ? json_array_get(at, i)
                                                 : json_object_get(at, buf_str(&key));
        buf_release(&key);
    }
    if (!at)
        grammar_fail(b->g, RC_ARG, "%s: $ref \"%s\" leads nowhere", buf_str(&b->where), ref);
    return at;
}

/* A type with all names of the kinds.  Owned. */
static json_t *type_of_kinds(unsigned kinds)
{
    static const struct {
        const char *name;
        unsigned kind;
    } types[] = {{"null", KIND_NULL},     {"boolean", KIND_BOOLEAN}, {"integer", KIND_INTEGER},
                 {"number", KIND_NUMBER}, {"string", KIND_STRING},   {"array", KIND_ARRAY},
                 {"object", KIND_OBJECT}};
    json_t *const out = json_array();
    if (kinds & KIND_NUMBER)
        kinds &= ~(unsigned)KIND_INTEGER;
    for (size_t i = 0; i < COUNT_OF(types); i++)
        if (kinds & types[i].kind && json_array_append_new(out, json_string(types[i].name))) {
            json_decref(out);
            return NULL;
        }
    return out;
}

/* schema where its values have one of the kinds as well: itself, another that b owns, or NULL if
 * there are no such values (or after a failure). */
static const json_t *narrowed(struct schema_build *b, const json_t *schema, unsigned kinds)
{
    if (!json_is_object(schema) && !json_is_true(schema))
        return schema; /* and an error in a moment */
    unsigned all = schema_kinds(schema, b->root);
    if (all & KIND_NUMBER)
        all |= KIND_INTEGER;
    if ((all & kinds) == all)
        return schema;
    for (size_t i = 0; i < b->n_narrow; i++)
        if (b->narrow[i].schema == schema && b->narrow[i].kinds == kinds)
            return b->narrow[i].narrow;
    const json_t *const own = json_object_get(schema, "type");
    const unsigned left = type_kinds(b, own) & kinds;
    json_t *out = NULL;
    if (all & kinds && left && !grammar_failed(b->g)) {
        out = json_is_true(schema) ? json_object() : json_copy(json_unconst(schema));
        b->made = b->made ? b->made : json_array();
        if (json_object_set_new(out, "type", type_of_kinds(left)) ||
            json_array_append(b->made, out)) {
            json_decref(out);
            grammar_fail(b->g, RC_NOMEM, "no memory for the grammar");
            return NULL;
        }
        json_decref(out); /* made has it */
    }
    if (!mem_grow(&b->narrow, &b->narrow_cap, b->n_narrow + 1, sizeof *b->narrow)) {
        grammar_fail(b->g, RC_NOMEM, "no memory for the grammar");
        return NULL;
    }
    b->narrow[b->n_narrow++] = (struct schema_narrow){schema, out, kinds};
    return out;
}

/* narrowed where there have to be such values. */
static const json_t *narrowed_ref(struct schema_build *b, const char *ref, const json_t *type)
{
    const json_t *const target = resolve(b, ref);
    const json_t *const out = target ? narrowed(b, target, type_kinds(b, type)) : NULL;
    if (!out)
        grammar_fail(b->g, RC_ARG, "%s.$ref leads to nothing that its type allows",
                     buf_str(&b->where));
    return out;
}

/* Each of the list's schemas narrowed to the type, by build. */
static void alternatives(struct schema_build *b, const json_t *list, const char *key,
                         const json_t *type, uint32_t from, uint32_t to,
                         void (*build)(struct schema_build *, const json_t *, uint32_t, uint32_t))
{
    const unsigned kinds = type_kinds(b, type);
    size_t n = 0;
    size_t i;
    const json_t *x;
    if (!json_array_size(list))
        grammar_fail(b->g, RC_ARG, "%s.%s is empty or not a list", buf_str(&b->where), key);
    json_array_foreach(list, i, x)
    {
        char at[64];
        snprintf(at, sizeof at, ".%s.%zu", key, i);
        const size_t where = where_begin(b, "%s", at);
        const json_t *const left = narrowed(b, x, kinds);
        if (left)
            build(b, left, from, to);
        n += left != NULL;
        where_end(b, where);
    }
    if (!n)
        grammar_fail(b->g, RC_ARG, "%s.%s holds nothing that its type allows", buf_str(&b->where),
                     key);
}

static void call_schema(struct schema_build *b, const json_t *schema, uint32_t from, uint32_t to)
{
    grammar_call_edge(b->g, from, schema_rule(b, schema), to);
}

/* Objects joined into one: properties and required of all.  Owned. */
static json_t *join_objects(struct schema_build *b, const json_t *list)
{
    json_t *const out = json_pack("{s:s,s:{},s:[]}", "type", "object", "properties", "required");
    size_t i;
    json_t *x;
    bool bad = !out;
    json_array_foreach(list, i, x)
    {
        const json_t *part = x;
        const char *const ref = json_string_value(json_object_get(x, "$ref"));
        if (ref && !(part = resolve(b, ref)))
            break;
        ONLY(b, part, "within \"allOf\"", "type", "properties", "required", "additionalProperties");
        if (!json_is_object(part) || !(schema_kinds(part, b->root) & KIND_OBJECT))
            grammar_fail(b->g, RC_UNSUPPORTED,
                         "%s: the keyword \"allOf\" is supported for objects only",
                         buf_str(&b->where));
        json_t *const properties = json_object_get(part, "properties");
        bad |= properties && json_object_update(json_object_get(out, "properties"), properties);
        json_t *const required = json_object_get(part, "required");
        bad |= required && json_array_extend(json_object_get(out, "required"), required);
        json_t *const additional = json_object_get(part, "additionalProperties");
        if (additional && !json_object_get(out, "additionalProperties"))
            bad |= json_object_set(out, "additionalProperties", additional);
    }
    if (bad)
        grammar_fail(b->g, RC_NOMEM, "no memory for the grammar");
    return out;
}

static void all_of(struct schema_build *b, const json_t *list, const json_t *type, uint32_t from,
                   uint32_t to)
{
    if (json_array_size(list) == 1) {
        alternatives(b, list, "allOf", type, from, to, call_schema);
        return;
    }
    if (!json_array_size(list))
        grammar_fail(b->g, RC_ARG, "%s.allOf is empty or not a list", buf_str(&b->where));
    if (!(type_kinds(b, type) & KIND_OBJECT))
        grammar_fail(b->g, RC_UNSUPPORTED,
                     "%s: the keyword \"allOf\" is supported for objects only", buf_str(&b->where));
    json_t *const joined = join_objects(b, list);
    if (!grammar_failed(b->g))
        object_schema(b, joined, from, to);
    json_decref(joined);
}

static void of_type(struct schema_build *b, const json_t *schema, const char *type, uint32_t from,
                    uint32_t to)
{
    static const struct {
        const char *name;
        void (*build)(struct schema_build *, const json_t *, uint32_t, uint32_t);
    } types[] = {
        {"object", object_schema},   {"array", array_schema},   {"string", string_schema},
        {"integer", integer_schema}, {"number", number_schema},
    };
    for (size_t i = 0; i < COUNT_OF(types); i++)
        if (strcmp(type, types[i].name) == 0) {
            types[i].build(b, schema, from, to);
            return;
        }
    if (strcmp(type, "boolean") == 0) {
        grammar_text(b->g, from, str_of("true"), to);
        grammar_text(b->g, from, str_of("false"), to);
    } else if (strcmp(type, "null") == 0) {
        grammar_text(b->g, from, str_of("null"), to);
    } else {
        grammar_fail(b->g, RC_ARG, "%s.type \"%s\" is unknown", buf_str(&b->where), type);
    }
}

/* What a schema without a type is about, by its other keywords; NULL: anything. */
static const char *implied_type(const json_t *schema)
{
    static const char *const implied[][2] = {
        {"properties", "object"},
        {"required", "object"},
        {"additionalProperties", "object"},
        {"items", "array"},
        {"prefixItems", "array"},
        {"minItems", "array"},
        {"maxItems", "array"},
        {"pattern", "string"},
        {"format", "string"},
        {"minLength", "string"},
        {"maxLength", "string"},
        {"minimum", "number"},
        {"maximum", "number"},
        {"exclusiveMinimum", "number"},
        {"exclusiveMaximum", "number"},
    };
    for (size_t i = 0; i < COUNT_OF(implied); i++)
        if (json_object_get(schema, implied[i][0]))
            return implied[i][1];
    return NULL;
}

static void fill(struct schema_build *b, const json_t *schema, uint32_t from, uint32_t to)
{
    if (!schema || json_is_true(schema)) {
        grammar_call_edge(b->g, from, value(b), to);
        return;
    }
    if (!json_is_object(schema)) {
        grammar_fail(b->g, RC_ARG, "%s is not a schema", buf_str(&b->where));
        return;
    }
    only_supported(b, schema);
    size_t i;
    const json_t *x;
    const json_t *const type = json_object_get(schema, "type");
    const char *const ref = json_string_value(json_object_get(schema, "$ref"));
    if (ref) {
        ONLY(b, schema, "next to \"$ref\"", "$ref", "type");
        const json_t *const target = narrowed_ref(b, ref, type);
        if (target)
            grammar_call_edge(b->g, from, schema_rule(b, target), to);
    } else if (json_object_get(schema, "const") || json_object_get(schema, "enum")) {
        literals(b, schema, false, from, to);
    } else if (json_object_get(schema, "anyOf")) {
        ONLY(b, schema, "next to \"anyOf\"", "anyOf", "type");
        alternatives(b, json_object_get(schema, "anyOf"), "anyOf", type, from, to, call_schema);
    } else if (json_object_get(schema, "oneOf")) {
        ONLY(b, schema, "next to \"oneOf\"", "oneOf", "type");
        alternatives(b, json_object_get(schema, "oneOf"), "oneOf", type, from, to, call_schema);
    } else if (json_object_get(schema, "allOf")) {
        ONLY(b, schema, "next to \"allOf\"", "allOf", "type");
        all_of(b, json_object_get(schema, "allOf"), type, from, to);
    } else if (json_is_array(type)) {
        json_array_foreach(type, i, x)
            of_type(b, schema, json_is_string(x) ? json_string_value(x) : "?", from, to);
    } else if (type && !json_is_string(type)) {
        grammar_fail(b->g, RC_ARG, "%s.type is neither a name nor a list", buf_str(&b->where));
    } else {
        const char *const name = type ? json_string_value(type) : implied_type(schema);
        if (name)
            of_type(b, schema, name, from, to);
        else
            grammar_call_edge(b->g, from, value(b), to);
    }
}

uint32_t schema_rule(struct schema_build *b, const json_t *schema)
{
    const bool shared = json_is_object(schema);
    for (size_t i = 0; shared && i < b->n_memo; i++)
        if (b->memo[i].schema == schema)
            return b->memo[i].rule;
    const uint32_t rule = grammar_rule(b->g, buf_str(&b->where));
    if (shared) {
        if (!mem_grow(&b->memo, &b->memo_cap, b->n_memo + 1, sizeof *b->memo))
            grammar_fail(b->g, RC_NOMEM, "no memory for the grammar");
        else
            b->memo[b->n_memo++] = (struct schema_memo){schema, rule};
    }
    if (++b->depth > MAX_NESTING)
        grammar_fail(b->g, RC_LIMIT, "the schema is nested more than %d deep", MAX_NESTING);
    const struct grule r = grammar_rule_at(b->g, rule);
    if (!grammar_failed(b->g))
        fill(b, schema, r.start, r.final);
    b->depth--;
    return rule;
}

enum rc grammar_from_schema(struct token_trie *t, const json_t *schema, struct grammar **out,
                            struct err *err)
{
    struct grammar *const g = grammar_new(t);
    struct schema_build *const b = schema_build_new(g, schema, "schema");
    const uint32_t root = schema_rule(b, schema);
    schema_build_free(b);
    return grammar_finish(g, root, out, err);
}

enum rc grammar_json_object(struct token_trie *t, struct grammar **out, struct err *err)
{
    struct grammar *const g = grammar_new(t);
    struct schema_build *const b = schema_build_new(g, NULL, "schema");
    const uint32_t root = object(b);
    schema_build_free(b);
    return grammar_finish(g, root, out, err);
}

/* ---- tool calls ---- */

/* NAME's arguments as one JSON object. */
static void json_args(struct schema_build *b, const json_t *schema, uint32_t from, uint32_t to)
{
    grammar_call_edge(b->g, from, schema ? schema_rule(b, schema) : object(b), to);
}

/* {"name": "NAME", "arguments": {...}} */
static void json_call(struct schema_build *b, const char *name, const json_t *schema, uint32_t from,
                      uint32_t to)
{
    struct grammar *const g = b->g;
    const uint32_t key = grammar_state_add(g), named = grammar_state_add(g),
                   args = grammar_state_add(g), end = grammar_state_add(g);
    grammar_text(g, from, str_of("{\"name\": "), key);
    key_text(b, key, name, named);
    grammar_text(g, named, str_of(", \"arguments\": "), args);
    json_args(b, schema, args, end);
    grammar_text(g, end, str_of("}"), to);
}

/* A parameter's value and PARAMETER_END: strings are bare text, all else is JSON. */
static void xml_value(struct schema_build *b, const json_t *schema, uint32_t from, uint32_t to)
{
    struct grammar *const g = b->g;
    const char *const ref = json_string_value(json_object_get(schema, "$ref"));
    const char *const key = json_object_get(schema, "anyOf") ? "anyOf" : "oneOf";
    const json_t *const any = json_object_get(schema, key), *const type =
                                                                json_object_get(schema, "type");
    size_t i;
    const json_t *x;
    if (++b->depth > MAX_NESTING)
        grammar_fail(g, RC_LIMIT, "the schema is nested more than %d deep", MAX_NESTING);
    if (grammar_failed(g)) {
        b->depth--;
        return;
    }
    const unsigned kinds = schema_kinds(schema, b->root);
    if (!(kinds & KIND_STRING)) {
        const uint32_t end = grammar_state_add(g);
        grammar_call_edge(g, from, schema_rule(b, schema), end);
        grammar_text(g, end, str_of(PARAMETER_END), to);
    } else if (ref) {
        ONLY(b, schema, "next to \"$ref\"", "$ref", "type");
        const json_t *const target = narrowed_ref(b, ref, type);
        if (target)
            xml_value(b, target, from, to);
    } else if (any) {
        char place[24];
        snprintf(place, sizeof place, "next to \"%s\"", key);
        ONLY(b, schema, place, key, "type");
        alternatives(b, any, key, type, from, to, xml_value);
    } else if (json_object_get(schema, "enum") || json_object_get(schema, "const")) {
        const uint32_t end = grammar_state_add(g);
        literals(b, schema, true, from, end);
        grammar_text(g, end, str_of(PARAMETER_END), to);
    } else {
        const char *const name =
            json_is_string(type) ? json_string_value(type) : implied_type(schema);
        const bool may_be_text = !name || json_is_array(type) || !strcmp(name, "string");
        only_supported(b, schema);
        b->bare = true; /* also what could be something else: any text is some text */
        string_schema(b, may_be_text ? schema : NULL, from, to);
        b->bare = false;
        json_array_foreach(json_is_array(type) ? type : NULL, i, x)
        {
            const char *const other = json_string_value(x);
            if (!other || !strcmp(other, "string"))
                continue;
            const uint32_t end = grammar_state_add(g);
            of_type(b, schema, other, from, end);
            grammar_text(g, end, str_of(PARAMETER_END), to);
        }
    }
    b->depth--;
}

/* <parameter=KEY>\nvalue\n</parameter>\n for each property, in order. */
static void xml_args(struct schema_build *b, const json_t *schema, uint32_t from, uint32_t to)
{
    struct grammar *const g = b->g;
    for (const char *ref; (ref = json_string_value(json_object_get(schema, "$ref")));) {
        schema = b->depth++ < MAX_NESTING ? resolve(b, ref) : NULL;
        if (!schema)
            grammar_fail(g, RC_LIMIT, "%s.$ref leads nowhere", buf_str(&b->where));
    }
    if (json_is_object(schema))
        ONLY(b, schema, "at the top of a tool's parameters", "type", "properties", "required",
             "additionalProperties");
    required_are_allowed(b, schema);
    const json_t *const required = json_object_get(schema, "required");
    const char *key;
    json_t *x;
    json_object_foreach(json_object_get(schema, "properties"), key, x)
    {
        const uint32_t value_at = grammar_state_add(g), end = grammar_state_add(g),
                       next = grammar_state_add(g);
        struct buf open = BUF_INIT;
        buf_addf(&open, "<parameter=%s>\n", key);
        grammar_text(g, from, (struct str){buf_str(&open), open.n}, value_at);
        if (open.failed)
            grammar_fail(g, RC_NOMEM, "no memory for the grammar");
        buf_release(&open);
        const size_t where = where_begin(b, ".properties.%s", key);
        xml_value(b, x, value_at, end);
        where_end(b, where);
        grammar_bytes_edge(g, end, '\n', '\n', next);
        if (!is_required(required, key))
            grammar_empty_edge(g, from, next);
        from = next;
    }
    grammar_empty_edge(g, from, to);
}

/* opened: the tag before it has been written. */
static void one_call(struct schema_build *b, enum reply_family family, const char *name,
                     const json_t *schema, bool opened, uint32_t from, uint32_t to)
{
    struct grammar *const g = b->g;
    if (family == REPLY_GENERIC) {
        json_call(b, name, schema, from, to);
        return;
    }
    const uint32_t in = grammar_state_add(g), end = grammar_state_add(g);
    struct buf open = BUF_INIT;
    buf_addf(&open, "%s\n", opened ? "" : CALL_TAG);
    if (family == REPLY_QWEN_XML)
        buf_addf(&open, "<function=%s>\n", name);
    if (open.failed)
        grammar_fail(g, RC_NOMEM, "no memory for the grammar");
    grammar_text(g, from, (struct str){buf_str(&open), open.n}, in);
    buf_release(&open);
    if (family == REPLY_HERMES)
        json_call(b, name, schema, in, end);
    else
        xml_args(b, schema, in, end);
    grammar_text(g, end,
                 str_of(family == REPLY_HERMES ? "\n</tool_call>" : "</function>\n</tool_call>"),
                 to);
}

/* A rule for a call of the tool named, or of any. */
static uint32_t any_call(struct grammar *g, const struct tools_grammar *o, bool opened)
{
    struct schema_build *const b = schema_build_new(g, NULL, "");
    const uint32_t call = grammar_rule(g, "call");
    const struct grule c = grammar_rule_at(g, call);
    size_t i, n = 0;
    const json_t *tool;
    json_array_foreach(o->tools, i, tool)
    {
        const json_t *const fn = json_object_get(tool, "function");
        const char *const own = json_string_value(json_object_get(fn ? fn : tool, "name"));
        const json_t *const schema = json_object_get(fn ? fn : tool, "parameters");
        if (!own) {
            grammar_fail(g, RC_ARG, "tools[%zu] has no function name", i);
            break;
        }
        if (o->name && strcmp(o->name, own) != 0)
            continue;
        struct buf where = BUF_INIT;
        buf_addf(&where, "tools[%zu].function.parameters", i);
        another_root(b, schema, buf_str(&where));
        one_call(b, o->family, own, schema, opened, c.start, c.final);
        buf_release(&where);
        n++;
    }
    schema_build_free(b);
    if (!n && o->name)
        grammar_fail(g, RC_ARG, "tool_choice names \"%s\", which is not among the tools", o->name);
    else if (!n)
        grammar_fail(g, RC_ARG, "tool_choice asks for a call, but there are no tools");
    return call;
}

/* Text without calls, or with some, each after its tag. */
static void calls_in_text(struct grammar *g, const struct tools_grammar *o, uint32_t from,
                          uint32_t to)
{
    static const char *const never[] = {"<function="};
    static const struct bare_marks marks = {CALL_TAG, never, COUNT_OF(never)};
    const uint32_t opened = grammar_state_add(g), after = grammar_state_add(g);
    grammar_bare_text(g, &marks, from, 0, GTREE_NO_END, opened, to, NULL);
    grammar_call_edge(g, opened, any_call(g, o, true), after);
    grammar_empty_edge(g, after, o->parallel ? from : to);
}

enum rc grammar_from_tools(struct token_trie *t, const struct tools_grammar *o,
                           struct grammar **out, struct err *err)
{
    struct grammar *const g = grammar_new(t);
    const uint32_t root = grammar_rule(g, "reply");
    const struct grule r = grammar_rule_at(g, root);
    if (o->in_text && o->family != REPLY_GENERIC) {
        calls_in_text(g, o, r.start, r.final);
        return grammar_finish(g, root, out, err);
    }
    if (o->in_text)
        grammar_fail(g, RC_UNSUPPORTED, "calls of this template's kind cannot be told from text");
    const uint32_t after = grammar_state_add(g), call = any_call(g, o, false);
    grammar_call_edge(g, r.start, call, after);
    grammar_empty_edge(g, after, r.final);
    if (o->parallel && o->family != REPLY_GENERIC) {
        const uint32_t again = grammar_state_add(g);
        grammar_bytes_edge(g, after, '\n', '\n', again);
        grammar_call_edge(g, again, call, after);
    }
    if (o->content) {
        struct schema_build *const b = schema_build_new(g, o->content, "schema");
        grammar_call_edge(g, r.start, schema_rule(b, o->content), r.final);
        schema_build_free(b);
    }
    return grammar_finish(g, root, out, err);
}
