/* constrain.h - what an answer has to be: response_format, json_schema, grammar, tool_choice.
 *
 *     params_read    constraint_read: the fields, still as the client wrote them
 *     then           constraint_compile: a grammar out of the server's cache, errors named after the field
 */
#ifndef HOLDFAST_SERVER_CONSTRAIN_H
#define HOLDFAST_SERVER_CONSTRAIN_H

#include "server/server_int.h"
#include "text/grammar_cache.h"

struct constraint {      /* zero: anything goes */
    const char *field;   /* that asked; NULL: none did */
    struct str gbnf;     /* borrowed from the body; n 0: none */
    json_t *schema;      /* owned; NULL: none */
    const json_t *tools; /* borrowed: it may be calls of these; or NULL */
    const char *tool;    /* borrowed: this one has to be called; or NULL */
    bool parallel;       /* one call or several */
    bool in_text;        /* calls need not come, and text may */
};

/* grammar, json_schema, response_format of a request's object.  *out is to be released, whatever
 * comes back.  RC_ARG, RC_UNSUPPORTED, RC_NOMEM. */
NODISCARD enum rc constraint_read(const json_t *o, struct constraint *out, struct err *err);
/* One format, as response_format and text.format have it: {"type": "json_schema", ...}.  The schema stands
 * in it or, as in chats, under json_schema. */
NODISCARD enum rc constraint_read_format(const json_t *format, const char *field,
                                         struct constraint *out, struct err *err);
/* A tool has to be called (name NULL: any).  tools: as chat.h has them.  RC_ARG when there is no such
 * tool. */
NODISCARD enum rc constraint_must_call(struct constraint *k, const json_t *tools, const char *name,
                                       struct err *err);
/* What a request calls a tool, and the schema of its arguments (NULL or null: none).  where: the tool's
 * place in the request; key: the schema's name there; max: characters of a name.  RC_ARG unless the
 * name is of letters, digits and _ - . : and the schema is an object. */
NODISCARD enum rc constraint_check_tool(const json_t *name, const json_t *schema, const char *where,
                                        const char *key, size_t max, struct err *err);
/* Whether a tool is strict: its calls keep its schema also where they are not asked for. */
bool constraint_any_strict(const json_t *tools);
void constraint_release(struct constraint *k);

/* *out: the caller's reference, or NULL when anything goes. */
NODISCARD enum rc constraint_compile(const struct call *c, const struct constraint *k,
                                     struct grammar **out, struct err *err);

#endif
