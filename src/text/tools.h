/* tools.h - the tools a request offers: look-up by name, and arguments bent to their JSON schema. */
#ifndef HOLDFAST_TEXT_TOOLS_H
#define HOLDFAST_TEXT_TOOLS_H

#include "base/json.h"
#include "base/str.h"

/* The parameters' schema of a tool in OpenAI's list ({"type": "function", "function": {...}}).
 * Borrowed; NULL when the tool declares none.  *known: whether there is such a tool. */
const json_t *tools_schema(const json_t *tools, struct str name, bool *known);

/* What values of a schema may be. */
enum json_kind {
    KIND_STRING = 1,
    KIND_INTEGER = 2,
    KIND_NUMBER = 4,
    KIND_BOOLEAN = 8,
    KIND_NULL = 16,
    KIND_OBJECT = 32,
    KIND_ARRAY = 64,
    KIND_ANY = 127 /* the schema does not say */
};
/* From type, enum, const, anyOf, oneOf, allOf and local $ref; root is where $ref is looked up (NULL:
 * nowhere). */
unsigned schema_kinds(const json_t *schema, const json_t *root);
/* The schema of an object's property; NULL when none is declared. */
const json_t *schema_property(const json_t *schema, const json_t *root, const char *key);

/* A parameter's text as the schema has it: text for a string, else the JSON it spells, else text
 * again.  Owned; NULL when memory is out. */
json_t *value_from_text(struct str text, const json_t *schema, const json_t *root);
/* v with values that have the wrong kind but can be read as the right one converted ("3" where an
 * integer is asked for, 3 for a string), down through objects and arrays.  Takes v; owned. */
json_t *value_take_coerced(json_t *v, const json_t *schema, const json_t *root);

/* Parses JSON as models write it: control characters inside strings are let through, and at the end
 * up to 16 closing brackets and a quote may be missing.  Owned; NULL when that does not help. */
json_t *json_read_lenient(struct str s);

#endif
