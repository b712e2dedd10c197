#include "server/constrain.h"

#include <string.h>

static bool is_given(const json_t *v)
{
    return v && !json_is_null(v) && !json_is_false(v);
}

/* One field may ask, no more. */
static enum rc claim(struct constraint *k, const char *field, struct err *err)
{
    if (k->field)
        return err_set(err, RC_ARG, "%s and %s exclude each other", field, k->field);
    k->field = field;
    return RC_OK;
}

static enum rc take_schema(struct constraint *k, json_t *schema, const char *field, struct err *err)
{
    if (!json_is_object(schema) && !json_is_boolean(schema))
        return err_set(err, RC_ARG, "%s must be a JSON schema", field);
    k->schema = json_incref(schema);
    return RC_OK;
}

enum rc constraint_read_format(const json_t *format, const char *field, struct constraint *out,
                               struct err *err)
{
    const char *const type = json_string_value(json_object_get(format, "type"));
    if (!is_given(format))
        return RC_OK;
    if (!json_is_object(format) || !type)
        return err_set(err, RC_ARG, "%s must be an object with a type", field);
    if (!strcmp(type, "text"))
        return RC_OK;
    json_t *schema = json_object_get(format, "schema");
    const bool object = !strcmp(type, "json_object");
    if (!object && strcmp(type, "json_schema") != 0)
        return err_set(err, RC_UNSUPPORTED, "%s of type %.40s is not supported", field, type);
    const json_t *const inner = json_object_get(format, "json_schema");
    if (!object && json_is_object(inner))
        schema = json_object_get(inner, "schema");
    char name[64];
    snprintf(name, sizeof name, "%s%s.schema", field, json_is_object(inner) ? ".json_schema" : "");
    enum rc rc = claim(out, field, err);
    if (!rc && is_given(schema))
        return take_schema(out, schema, name, err);
    if (!rc && !object)
        return err_set(err, RC_ARG, "%s is missing", name);
    out->schema = rc ? NULL : json_pack("{s:s}", "type", "object");
    if (!rc && !out->schema)
        rc = err_set(err, RC_NOMEM, "out of memory for %s", field);
    return rc;
}

enum rc constraint_read(const json_t *o, struct constraint *out, struct err *err)
{
    const json_t *const gbnf = json_object_get(o, "grammar");
    json_t *const schema = json_object_get(o, "json_schema");
    enum rc rc = RC_OK;
    *out = (struct constraint){0};
    if (is_given(gbnf) && !json_is_string(gbnf))
        return err_set(err, RC_ARG, "grammar must be a string");
    if (json_string_length(gbnf)) {
        rc = claim(out, "grammar", err);
        out->gbnf = (struct str){json_string_value(gbnf), json_string_length(gbnf)};
    }
    if (!rc && is_given(schema)) {
        rc = claim(out, "json_schema", err);
        if (!rc)
            rc = take_schema(out, schema, "json_schema", err);
    }
    if (!rc)
        rc = constraint_read_format(json_object_get(o, "response_format"), "response_format", out,
                                    err);
    return rc;
}

static bool has_tool(const json_t *tools, const char *name)
{
    size_t i;
    const json_t *tool;
    json_array_foreach(tools, i, tool)
    {
        const char *const own =
            json_string_value(json_object_get(json_object_get(tool, "function"), "name"));
        if (own && !strcmp(own, name))
            return true;
    }
    return false;
}

enum rc constraint_must_call(struct constraint *k, const json_t *tools, const char *name,
                             struct err *err)
{
    if (!json_array_size(tools))
        return err_set(err, RC_ARG, "tool_choice asks for a call, but there are no tools");
    if (name && !has_tool(tools, name))
        return err_set(err, RC_ARG, "tool_choice names %.80s, which is not among the tools", name);
    if (k->gbnf.n)
        return claim(k, "tool_choice", err);
    constraint_release(k); /* a format is for text, and there will be none */
    k->field = "tool_choice";
    k->tool = name;
    return RC_OK;
}

enum rc constraint_check_tool(const json_t *name, const json_t *schema, const char *where,
                              const char *key, size_t max, struct err *err)
{
    static const char allowed[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.:";
    if (!json_is_string(name))
        return err_set(err, RC_ARG, "%s.name must be a string", where);
    const size_t n = json_string_length(name);
    if (!n || n > max || strspn(json_string_value(name), allowed) != n)
        return err_set(err, RC_ARG,
                       "%s.name must be 1 to %zu characters: letters, digits and _ - . :", where,
                       max);
    if (schema && !json_is_null(schema) && !json_is_object(schema))
        return err_set(err, RC_ARG, "%s.%s must be an object", where, key);
    return RC_OK;
}

bool constraint_any_strict(const json_t *tools)
{
    size_t i;
    const json_t *tool;
    json_array_foreach(tools, i, tool)
    {
        if (json_is_true(json_object_get(json_object_get(tool, "function"), "strict")))
            return true;
    }
    return false;
}

void constraint_release(struct constraint *k)
{
    json_decref(k->schema);
    k->schema = NULL;
}

/* Messages about tools and lines of a GBNF do by themselves. */
static bool begins_with_field(const char *msg)
{
    static const char *const fields[] = {"grammar line ", "tools[", "tool_choice "};
    for (size_t i = 0; i < COUNT_OF(fields); i++)
        if (!strncmp(msg, fields[i], strlen(fields[i])))
            return true;
    return false;
}

enum rc constraint_compile(const struct call *c, const struct constraint *k, struct grammar **out,
                           struct err *err)
{
    *out = NULL;
    if (!k->field)
        return RC_OK;
    const struct grammar_spec spec = {.gbnf = k->gbnf,
                                      .schema = k->schema,
                                      .tools = k->tools,
                                      .tool = k->tool,
                                      .family = reply_family_of(chat_template_source(c->m->chat)),
                                      .parallel = k->parallel,
                                      .in_text = k->in_text};
    const enum rc rc = grammar_cache_get(c->s->grammars, &spec, out, err);
    return rc && err && !begins_with_field(err->msg) ? err_wrap(err, rc, "%s", k->field) : rc;
}
