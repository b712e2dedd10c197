#include "text/tools.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

const json_t *tools_schema(const json_t *tools, struct str name, bool *known)
{
    size_t i;
    const json_t *tool;
    *known = false;
    json_array_foreach(tools, i, tool)
    {
        const json_t *const fn = json_object_get(tool, "function");
        const json_t *const n = json_object_get(fn ? fn : tool, "name");
        if (!json_is_string(n) ||
            !str_eq(name, (struct str){json_string_value(n), json_string_length(n)}))
            continue;
        *known = true;
        const json_t *const schema = json_object_get(fn ? fn : tool, "parameters");
        return json_is_object(schema) ? schema : NULL;
    }
    return NULL;
}

/* ---- schemas ---- */

#define MAX_REFS 16

/* Follows {"$ref": "#/a/b"} within root. */
static const json_t *resolve(const json_t *schema, const json_t *root)
{
    for (int i = 0; i < MAX_REFS; i++) {
        const char *const ref = json_string_value(json_object_get(schema, "$ref"));
        if (!ref || !root || ref[0] != '#')
            return schema;
        const json_t *at = root;
        for (const char *p = ref + 1; *p == '/' && at;) {
            const size_t n = strcspn(++p, "/");
            at = json_object_getn(at, p, n);
            p += n;
        }
        if (!at)
            return schema;
        schema = at;
    }
    return schema;
}

static unsigned kind_of(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_STRING:
        return KIND_STRING;
    case JSON_INTEGER:
        return KIND_INTEGER;
    case JSON_REAL:
        return KIND_NUMBER;
    case JSON_TRUE:
    case JSON_FALSE:
        return KIND_BOOLEAN;
    case JSON_NULL:
        return KIND_NULL;
    case JSON_OBJECT:
        return KIND_OBJECT;
    case JSON_ARRAY:
        return KIND_ARRAY;
    }
    return 0;
}

static unsigned kind_named(const char *name)
{
    static const struct {
        const char *name;
        unsigned kind;
    } names[] = {
        {"string", KIND_STRING},
        {"integer", KIND_INTEGER},
        {"number", KIND_NUMBER | KIND_INTEGER},
        {"boolean", KIND_BOOLEAN},
        {"null", KIND_NULL},
        {"object", KIND_OBJECT},
        {"array", KIND_ARRAY},
    };
    for (size_t i = 0; name && i < COUNT_OF(names); i++)
        if (strcmp(name, names[i].name) == 0)
            return names[i].kind;
    return 0;
}

static unsigned kinds_within(const json_t *schema, const json_t *root, int depth)
{
    schema = resolve(schema, root);
    if (!json_is_object(schema) || depth > MAX_REFS)
        return KIND_ANY;
    unsigned kinds = KIND_ANY;
    size_t i;
    const json_t *x;
    const json_t *const type = json_object_get(schema, "type");
    if (json_is_string(type)) {
        kinds &= kind_named(json_string_value(type));
    } else if (json_is_array(type)) {
        unsigned any = 0;
        json_array_foreach(type, i, x) any |= kind_named(json_string_value(x));
        kinds &= any;
    }
    const json_t *const constant = json_object_get(schema, "const");
    if (constant)
        kinds &= kind_of(constant);
    static const char *const lists[] = {"enum", "anyOf", "oneOf"};
    for (size_t k = 0; k < COUNT_OF(lists); k++) {
        const json_t *const list = json_object_get(schema, lists[k]);
        unsigned any = 0;
        json_array_foreach(list, i, x) any |=
            k == 0 ? kind_of(x) : kinds_within(x, root, depth + 1);
        if (json_array_size(list))
            kinds &= any;
    }
    json_array_foreach(json_object_get(schema, "allOf"), i, x) kinds &=
        kinds_within(x, root, depth + 1);
    if (!type && json_object_get(schema, "properties"))
        kinds &= KIND_OBJECT;
    return kinds ? kinds : KIND_ANY;
}

unsigned schema_kinds(const json_t *schema, const json_t *root)
{
    return schema ? kinds_within(schema, root, 0) : KIND_ANY;
}

static const json_t *property_within(const json_t *schema, const json_t *root, const char *key,
                                     int depth)
{
    schema = resolve(schema, root);
    const json_t *found = json_object_get(json_object_get(schema, "properties"), key);
    static const char *const lists[] = {"allOf", "anyOf", "oneOf"};
    for (size_t k = 0; !found && depth < MAX_REFS && k < COUNT_OF(lists); k++) {
        size_t i;
        const json_t *x;
        json_array_foreach(json_object_get(schema, lists[k]), i, x) if (!found) found =
            property_within(x, root, key, depth + 1);
    }
    return found;
}

const json_t *schema_property(const json_t *schema, const json_t *root, const char *key)
{
    return schema ? property_within(schema, root, key, 0) : NULL;
}

/* ---- values ---- */

json_t *json_read_lenient(struct str s)
{
    struct buf b = BUF_INIT;
    char open[16];
    size_t depth = 0;
    bool in_string = false, escaped = false;
    for (size_t i = 0; i < s.n; i++) {
        const char c = s.p[i];
        if (in_string) {
            if (!escaped && (uint8_t)c < 0x20)
                buf_addf(&b, "\\u%04x", (unsigned)c);
            else
                buf_addc(&b, c);
            if (!escaped && c == '"')
                in_string = false;
            escaped = !escaped && c == '\\';
            continue;
        }
        buf_addc(&b, c);
        if (c == '"')
            in_string = true;
        else if ((c == '{' || c == '[') && depth < sizeof open)
            open[depth++] = c == '{' ? '}' : ']';
        else if ((c == '}' || c == ']') && depth)
            depth--;
    }
    if (in_string && !escaped)
        buf_addc(&b, '"');
    while (depth)
        buf_addc(&b, open[--depth]);
    json_t *const v =
        b.failed ? NULL : json_loadb(buf_str(&b), b.n, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    buf_release(&b);
    return v;
}

static struct str trimmed(struct str s)
{
    while (s.n && strchr(" \t\r\n", s.p[s.n - 1]))
        s.n--;
    while (s.n && strchr(" \t\r\n", s.p[0])) {
        s.p++;
        s.n--;
    }
    return s;
}

/* A number without a fraction is an integer as well. */
static bool is_kind(const json_t *v, unsigned kinds)
{
    const unsigned k = kind_of(v);
    if (k & kinds || (k == KIND_INTEGER && kinds & KIND_NUMBER))
        return true;
    if (k != KIND_NUMBER || !(kinds & KIND_INTEGER))
        return false;
    const double f = json_real_value(v);
    return f > -9e15 && f < 9e15 && f == (double)(int64_t)f;
}

/* The value a text spells, if it is of one of the kinds; NULL otherwise. */
static json_t *spelled(struct str text, unsigned kinds)
{
    static const struct {
        const char *text;
        bool value;
    } bools[] = {{"true", true}, {"True", true}, {"false", false}, {"False", false}};
    const struct str s = trimmed(text);
    if (kinds & KIND_BOOLEAN)
        for (size_t i = 0; i < COUNT_OF(bools); i++)
            if (str_is(s, bools[i].text))
                return json_boolean(bools[i].value);
    if (kinds & KIND_NULL && (str_is(s, "null") || str_is(s, "None")))
        return json_null();
    if (!(kinds & (KIND_INTEGER | KIND_NUMBER | KIND_OBJECT | KIND_ARRAY)) || !s.n)
        return NULL;
    json_t *const v = json_read_lenient(s);
    if (v && is_kind(v, kinds & ~(unsigned)KIND_STRING)) {
        if (!json_is_real(v) || kinds & KIND_NUMBER)
            return v;
        json_t *const whole = json_integer((json_int_t)json_real_value(v));
        json_decref(v);
        return whole;
    }
    json_decref(v);
    return NULL;
}

json_t *value_from_text(struct str text, const json_t *schema, const json_t *root)
{
    const unsigned kinds = schema_kinds(schema, root);
    json_t *v = NULL;
    if (kinds == KIND_ANY) { /* undeclared: only what is plainly no prose */
        const struct str s = trimmed(text);
        if (s.n && (s.p[0] == '{' || s.p[0] == '['))
            v = json_loadb(s.p, s.n, JSON_ALLOW_NUL, NULL);
    } else if (kinds & KIND_STRING) { /* text stays text, but for a null that may be one */
        v = spelled(text, kinds & KIND_NULL);
    } else {
        v = spelled(text, kinds);
    }
    if (v && schema)
        v = value_take_coerced(v, schema, root);
    return v ? v : json_stringn_nocheck(text.p ? text.p : "", text.n);
}

static json_t *coerce(json_t *v, const json_t *schema, const json_t *root, int depth)
{
    schema = resolve(schema, root);
    if (!v || !json_is_object(schema) || depth > 64)
        return v;
    const unsigned kinds = schema_kinds(schema, root);
    json_t *better = NULL;
    if (!is_kind(v, kinds)) {
        if (json_is_string(v)) {
            better = spelled((struct str){json_string_value(v), json_string_length(v)}, kinds);
        } else if (kinds & KIND_STRING) {
            char *const text = json_dumps(v, JSON_ENCODE_ANY);
            better = text ? json_string(text) : NULL;
            free(text);
        } else if (kinds & KIND_ARRAY && !json_is_null(v)) { /* one where a list was asked for */
            better = json_array();
            if (better && json_array_append(better, v)) {
                json_decref(better);
                better = NULL;
            }
        }
    } else if (json_is_real(v) && !(kinds & KIND_NUMBER)) {
        better = json_integer((json_int_t)json_real_value(v));
    }
    if (better) {
        json_decref(v);
        v = better;
    }
    if (json_is_object(v)) {
        const char *key;
        json_t *x;
        void *next;
        json_object_foreach_safe(v, next, key, x)
        {
            const json_t *const s = schema_property(schema, root, key);
            if (s && json_object_set_new(v, key, coerce(json_incref(x), s, root, depth + 1)))
                break;
        }
    } else if (json_is_array(v)) {
        const json_t *const items = json_object_get(schema, "items");
        for (size_t i = 0; json_is_object(items) && i < json_array_size(v); i++)
            if (json_array_set_new(
                    v, i, coerce(json_incref(json_array_get(v, i)), items, root, depth + 1)))
                break;
    }
    return v;
}

json_t *value_take_coerced(json_t *v, const json_t *schema, const json_t *root)
{
    return coerce(v, schema, root, 0);
}
