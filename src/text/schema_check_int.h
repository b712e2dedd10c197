/* schema_check_int.h - does a value fit a schema?  For tests of what grammars let through: it shares no
 * code with them, and knows the keywords that the tests use. */
#ifndef HOLDFAST_TEXT_SCHEMA_CHECK_INT_H
#define HOLDFAST_TEXT_SCHEMA_CHECK_INT_H

#include <jansson.h>
#include <regex.h>
#include <stdbool.h>
#include <string.h>

static inline bool has_type(const json_t *v, const char *type)
{
    return !strcmp(type, "object")    ? json_is_object(v)
           : !strcmp(type, "array")   ? json_is_array(v)
           : !strcmp(type, "string")  ? json_is_string(v)
           : !strcmp(type, "integer") ? json_is_integer(v)
           : !strcmp(type, "number")  ? json_is_number(v)
           : !strcmp(type, "boolean") ? json_is_boolean(v)
                                      : json_is_null(v);
}

static inline size_t count_chars(const json_t *v)
{
    const char *const s = json_string_value(v);
    size_t n = 0;
    for (size_t i = 0; i < json_string_length(v); i++)
        n += ((unsigned char)s[i] & 0xc0) != 0x80;
    return n;
}

/* pattern: POSIX extended, anchored by itself. */
static inline bool matches(const char *pattern, const char *text)
{
    regex_t re;
    if (regcomp(&re, pattern, REG_EXTENDED | REG_NOSUB))
        return false;
    const bool ok = !regexec(&re, text, 0, NULL, 0);
    regfree(&re);
    return ok;
}

static inline bool fits_schema(const json_t *schema, const json_t *v)
{
    const json_t *const type = json_object_get(schema, "type"),
                        *const list = json_object_get(schema, "enum"),
                        *const any = json_object_get(schema, "anyOf"), *x;
    size_t i;
    bool ok = !type;
    if (json_is_string(type))
        ok = has_type(v, json_string_value(type));
    json_array_foreach(type, i, x) ok |= has_type(v, json_string_value(x));
    if (any) {
        bool one = false;
        json_array_foreach(any, i, x) one |= fits_schema(x, v);
        ok &= one;
    }
    if (list) {
        bool one = false;
        json_array_foreach(list, i, x) one |= json_equal(x, v);
        ok &= one;
    }
    if (json_is_string(v)) {
        const json_t *const min = json_object_get(schema, "minLength"), *const max =
                                                                            json_object_get(
                                                                                schema,
                                                                                "maxLength");
        const char *const pattern = json_string_value(json_object_get(schema, "pattern"));
        ok &= !min || (json_int_t)count_chars(v) >= json_integer_value(min);
        ok &= !max || (json_int_t)count_chars(v) <= json_integer_value(max);
        ok &= !pattern || matches(pattern, json_string_value(v));
    }
    if (json_is_number(v)) {
        const json_t *const min = json_object_get(schema, "minimum"), *const max = json_object_get(
                                                                          schema, "maximum");
        ok &= !min || json_number_value(v) >= json_number_value(min);
        ok &= !max || json_number_value(v) <= json_number_value(max);
    }
    if (json_is_array(v)) {
        const json_t *const max = json_object_get(schema, "maxItems"),
                            *const min = json_object_get(schema, "minItems"),
                            *const items = json_object_get(schema, "items");
        ok &= !max || (json_int_t)json_array_size(v) <= json_integer_value(max);
        ok &= !min || (json_int_t)json_array_size(v) >= json_integer_value(min);
        json_array_foreach(v, i, x) ok &= !items || fits_schema(items, x);
    }
    if (json_is_object(v)) {
        const json_t *const properties = json_object_get(schema, "properties");
        const char *key;
        json_t *member;
        json_object_foreach((json_t *)(uintptr_t)v, key, member)
        {
            const json_t *const p = json_object_get(properties, key);
            ok &= p ? fits_schema(p, member)
                    : !json_is_false(json_object_get(schema, "additionalProperties"));
        }
        json_array_foreach(json_object_get(schema, "required"), i, x) ok &=
            json_object_get(v, json_string_value(x)) != NULL;
    }
    return ok;
}

#endif
