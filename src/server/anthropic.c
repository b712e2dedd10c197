/* anthropic.c - POST /v1/messages, whole and streamed; /v1/messages/count_tokens.
 *
 * Source: Anthropic's API reference, "Messages".  cache_control is accepted wherever it stands: every
 * message is a place the cache knows, marked or not.  usage.input_tokens are those evaluated,
 * cache_read_input_tokens those reused.
 */
#include <string.h>

#include "base/mem.h"
#include "server/reply.h"
#include "server/route.h"
#include "server/said.h"
#include "server/shape.h"
#include "server/talk.h"

struct messages {
    struct call *c;
    struct talk t;
    char id[48];
    struct stream st;
    struct said said;
    bool begun, in_block;
    size_t n_blocks; /* begun, in a stream */
    struct timings timings;
};

/* ---- the request: blocks to OpenAI's messages ---- */

/* What a message is being made of. */
struct draft {
    json_t *parts, *calls; /* arrays */
    struct buf reasoning;
    bool bad; /* memory is out */
};

static json_t *text_of(const struct buf *b)
{
    return json_stringn(buf_str(b), b->n);
}

static json_t *text_part(json_t *text)
{
    json_t *part = json_object();
    if (!part || json_object_set_new(part, "type", json_string("text")) ||
        json_object_set(part, "text", text)) {
        json_decref(part);
        return NULL;
    }
    return part;
}

/* A lone text is a string, so that both ways of sending it make the same prompt. */
static json_t *content_of(json_t *parts)
{
    if (json_array_size(parts) == 1)
        return json_incref(json_object_get(json_array_get(parts, 0), "text"));
    return json_array_size(parts) ? json_incref(parts) : json_string("");
}

/* Takes content. */
static bool push(json_t *list, const char *role, json_t *content)
{
    json_t *m = json_object();
    /* takes content even when there is no m */
    const bool bad = json_object_set_new(m, "content", content) ||
                     json_object_set_new(m, "role", json_string(role)) ||
                     json_array_append(list, m);
    json_decref(m);
    return !bad;
}

/* A list of text blocks (or a string), where nothing else may stand. */
static enum rc texts_only(json_t *v, const char *where, json_t **out, struct err *err)
{
    *out = NULL;
    if (json_is_string(v)) {
        *out = json_incref(v);
        return RC_OK;
    }
    if (!json_is_array(v))
        return err_set(err, RC_ARG, "%s must be a string or an array of text blocks", where);
    json_t *parts = json_array();
    bool bad = !parts;
    for (size_t i = 0; i < json_array_size(v) && !bad; i++) {
        const json_t *block = json_array_get(v, i);
        const char *type = json_string_value(json_object_get(block, "type"));
        json_t *text = json_object_get(block, "text");
        if (!type || strcmp(type, "text") != 0 || !json_is_string(text)) {
            json_decref(parts);
            return err_set(err, RC_UNSUPPORTED, "%s[%zu] of type %.40s is not supported", where, i,
                           type ? type : "none");
        }
        bad = json_array_append_new(parts, text_part(text)) != 0;
    }
    if (!bad)
        *out = content_of(parts);
    json_decref(parts);
    return *out ? RC_OK : err_set(err, RC_NOMEM, "out of memory for %s", where);
}

static enum rc add_tool_result(json_t *list, const json_t *block, const char *where,
                               struct err *err)
{
    const char *id = json_string_value(json_object_get(block, "tool_use_id"));
    json_t *content = json_object_get(block, "content");
    char inner[96];
    json_t *text = NULL;
    if (!id)
        return err_set(err, RC_ARG, "%s.tool_use_id must be a string", where);
    snprintf(inner, sizeof inner, "%s.content", where);
    const enum rc rc = content ? texts_only(content, inner, &text, err) : RC_OK;
    if (rc)
        return rc;
    if (!push(list, "tool", text ? text : json_string("")) ||
        json_object_set_new(json_array_get(list, json_array_size(list) - 1), "tool_call_id",
                            json_string(id)))
        return err_set(err, RC_NOMEM, "out of memory for %s", where);
    return RC_OK;
}

static enum rc add_tool_use(struct draft *d, const json_t *block, const char *where,
                            struct err *err)
{
    json_t *id = json_object_get(block, "id"), *name = json_object_get(block, "name");
    json_t *input = json_object_get(block, "input");
    if (!json_is_string(id) || !json_is_string(name))
        return err_set(err, RC_ARG, "%s must have an id and a name", where);
    json_t *call = json_object(), *fn = json_object();
    d->bad |= !call || !fn || json_object_set(fn, "name", name) ||
              json_object_set_new(fn, "arguments",
                                  json_is_object(input) ? json_incref(input) : json_object()) ||
              json_object_set(call, "id", id) ||
              json_object_set_new(call, "type", json_string("function")) ||
              json_object_set(call, "function", fn) || json_array_append(d->calls, call);
    json_decref(fn);
    json_decref(call);
    return RC_OK;
}

static enum rc add_block(struct draft *d, json_t *list, const char *role, const json_t *block,
                         const char *where, struct err *err)
{
    const char *type = json_string_value(json_object_get(block, "type"));
    json_t *text = json_object_get(block, "text");
    const bool user = !strcmp(role, "user");
    if (!type)
        return err_set(err, RC_ARG, "%s has no type", where);
    if (!strcmp(type, "text")) {
        if (!json_is_string(text))
            return err_set(err, RC_ARG, "%s.text must be a string", where);
        d->bad |= json_array_append_new(d->parts, text_part(text)) != 0;
        return RC_OK;
    }
    if (user && !strcmp(type, "tool_result"))
        return add_tool_result(list, block, where, err);
    if (!user && !strcmp(type, "tool_use"))
        return add_tool_use(d, block, where, err);
    if (!user && !strcmp(type, "thinking")) {
        const json_t *t = json_object_get(block, "thinking");
        buf_add(&d->reasoning, json_string_value(t), json_string_length(t));
        return RC_OK;
    }
    if (!user && !strcmp(type, "redacted_thinking"))
        return RC_OK; /* nobody but who wrote it can read it */
    return err_set(err, RC_UNSUPPORTED, "%s of type %.40s is not supported", where, type);
}

/* Claude Code sends some of its instructions as messages of the role system. */
static enum rc add_system(json_t *list, const json_t *m, size_t i, struct err *err)
{
    char where[40];
    json_t *text;
    snprintf(where, sizeof where, "messages[%zu].content", i);
    const enum rc rc = texts_only(json_object_get(m, "content"), where, &text, err);
    if (rc)
        return rc;
    return push(list, "system", text) ? RC_OK
                                      : err_set(err, RC_NOMEM, "out of memory for %s", where);
}

/* Tool results become messages of their own, before the rest of the turn. */
static enum rc add_message(json_t *list, const json_t *m, size_t i, struct err *err)
{
    const char *role = json_string_value(json_object_get(m, "role"));
    json_t *content = json_object_get(m, "content");
    if (role && !strcmp(role, "system"))
        return add_system(list, m, i, err);
    if (!role || (strcmp(role, "user") != 0 && strcmp(role, "assistant") != 0))
        return err_set(err, RC_ARG, "messages[%zu].role must be user, assistant or system", i);
    if (json_is_string(content))
        return push(list, role, json_incref(content))
                   ? RC_OK
                   : err_set(err, RC_NOMEM, "out of memory for the messages");
    if (!json_is_array(content))
        return err_set(err, RC_ARG, "messages[%zu].content must be a string or an array", i);
    struct draft d = {.parts = json_array(), .calls = json_array()};
    enum rc rc = RC_OK;
    for (size_t k = 0; k < json_array_size(content) && !rc; k++) {
        char where[64];
        snprintf(where, sizeof where, "messages[%zu].content[%zu]", i, k);
        rc = add_block(&d, list, role, json_array_get(content, k), where, err);
    }
    const bool empty = !json_array_size(d.parts) && !json_array_size(d.calls) && !d.reasoning.n;
    if (!rc && !empty) {
        d.bad |= !push(list, role, content_of(d.parts));
        json_t *last = json_array_get(list, json_array_size(list) - 1);
        if (json_array_size(d.calls))
            d.bad |= json_object_set(last, "tool_calls", d.calls) != 0;
        if (d.reasoning.n)
            d.bad |= json_object_set_new(last, "reasoning_content", text_of(&d.reasoning)) != 0;
    }
    if (!rc && (d.bad || d.reasoning.failed))
        rc = err_set(err, RC_NOMEM, "out of memory for the messages");
    json_decref(d.parts);
    json_decref(d.calls);
    buf_release(&d.reasoning);
    return rc;
}

static enum rc read_messages(struct messages *m, struct err *err)
{
    const json_t *o = m->c->body, *list = json_object_get(o, "messages");
    json_t *system = json_object_get(o, "system"), *text;
    if (!list)
        return err_set(err, RC_ARG, "messages is missing");
    if (!json_is_array(list) || !json_array_size(list))
        return err_set(err, RC_ARG, "messages must be an array with something in it");
    m->t.messages = json_array();
    if (!m->t.messages)
        return err_set(err, RC_NOMEM, "out of memory for the messages");
    enum rc rc = RC_OK;
    if (system && !json_is_null(system)) {
        rc = texts_only(system, "system", &text, err);
        if (!rc && !push(m->t.messages, "system", text))
            rc = err_set(err, RC_NOMEM, "out of memory for system");
    }
    for (size_t i = 0; i < json_array_size(list) && !rc; i++)
        rc = add_message(m->t.messages, json_array_get(list, i), i, err);
    const size_t n = json_array_size(m->t.messages);
    const json_t *last = n ? json_array_get(m->t.messages, n - 1) : NULL;
    const char *role = json_string_value(json_object_get(last, "role"));
    m->t.continue_last = role && !strcmp(role, "assistant") && !json_object_get(last, "tool_calls");
    return rc;
}

static enum rc read_tools(struct messages *m, struct err *err)
{
    const json_t *list = json_object_get(m->c->body, "tools");
    if (!list || json_is_null(list))
        return RC_OK;
    if (!json_is_array(list))
        return err_set(err, RC_ARG, "tools must be an array");
    m->t.tools = json_array();
    bool bad = !m->t.tools;
    for (size_t i = 0; i < json_array_size(list) && !bad; i++) {
        const json_t *tool = json_array_get(list, i);
        const char *type = json_string_value(json_object_get(tool, "type"));
        json_t *name = json_object_get(tool, "name"), *text = json_object_get(tool, "description");
        json_t *schema = json_object_get(tool, "input_schema");
        if (type && strcmp(type, "custom") != 0)
            return err_set(err, RC_UNSUPPORTED, "tools[%zu].type %.60s is not supported", i, type);
        char where[64];
        snprintf(where, sizeof where, "tools[%zu]", i);
        const enum rc rc = constraint_check_tool(name, schema, where, "input_schema", 128, err);
        if (rc)
            return rc;
        json_t *fn = json_object(), *out = json_object();
        bad = !fn || !out || json_object_set(fn, "name", name) ||
              (json_is_string(text) && json_object_set(fn, "description", text)) ||
              (json_is_object(schema) && json_object_set(fn, "parameters", schema)) ||
              (json_is_true(json_object_get(tool, "strict")) &&
               json_object_set_new(fn, "strict", json_true())) ||
              json_object_set_new(out, "type", json_string("function")) ||
              json_object_set(out, "function", fn) || json_array_append(m->t.tools, out);
        json_decref(fn);
        json_decref(out);
    }
    m->t.calls = json_array_size(m->t.tools);
    return bad ? err_set(err, RC_NOMEM, "out of memory for tools") : RC_OK;
}

static enum rc read_tool_choice(struct messages *m, struct err *err)
{
    const json_t *v = json_object_get(m->c->body, "tool_choice");
    const char *type = json_string_value(json_object_get(v, "type"));
    bool one = false;
    if (!v || json_is_null(v))
        return RC_OK;
    if (!type)
        return err_set(err, RC_ARG, "tool_choice must be an object with a type");
    const enum rc rc =
        err_wrap(err, jread_bool(v, "disable_parallel_tool_use", &one, err), "tool_choice");
    m->t.max_calls = one ? 1 : 0;
    if (rc || !strcmp(type, "auto"))
        return rc;
    if (!strcmp(type, "none")) {
        m->t.calls = false;
        return RC_OK;
    }
    if (!strcmp(type, "any"))
        return constraint_must_call(&m->t.p.want, m->t.tools, NULL, err);
    const char *name = json_string_value(json_object_get(v, "name"));
    if (strcmp(type, "tool") != 0)
        return err_set(err, RC_UNSUPPORTED, "tool_choice of type %.40s is not supported", type);
    if (!name)
        return err_set(err, RC_ARG, "tool_choice.name must be a string");
    return constraint_must_call(&m->t.p.want, m->t.tools, name, err);
}

/* output_config.format, and output_format before it. */
static enum rc read_format(struct messages *m, struct err *err)
{
    const json_t *o = m->c->body;
    enum rc rc = constraint_read_format(json_object_get(o, "output_format"), "output_format",
                                        &m->t.p.want, err);
    if (!rc)
        rc = constraint_read_format(json_object_get(json_object_get(o, "output_config"), "format"),
                                    "output_config.format", &m->t.p.want, err);
    return rc;
}

static enum rc read_thinking(struct messages *m, struct err *err)
{
    const json_t *v = json_object_get(m->c->body, "thinking");
    const char *type = json_string_value(json_object_get(v, "type"));
    int64_t budget = m->t.p.think_budget;
    enum rc rc = err_wrap(
        err, jread_str(json_object_get(m->c->body, "output_config"), "effort", &m->t.effort, err),
        "output_config");
    if (rc || !v || json_is_null(v))
        return rc; /* as the template has it */
    if (!type)
        return err_set(err, RC_ARG, "thinking must be an object with a type");
    rc = err_wrap(err, jread_i64(v, "budget_tokens", 1, INT32_MAX, &budget, err), "thinking");
    if (rc)
        return rc;
    m->t.p.think_given = m->t.p.think_given || json_object_get(v, "budget_tokens");
    m->t.p.think_budget = (int32_t)budget;
    m->t.kwargs = json_object();
    if (!m->t.kwargs || json_object_set_new(m->t.kwargs, "enable_thinking",
                                            json_boolean(strcmp(type, "disabled") != 0)))
        return err_set(err, RC_NOMEM, "out of memory for thinking");
    return RC_OK;
}

static enum rc refuse_fields(const json_t *o, struct err *err)
{
    static const char *const absent[] = {"mcp_servers", "container"};
    for (size_t i = 0; i < COUNT_OF(absent); i++) {
        const json_t *v = json_object_get(o, absent[i]);
        if (v && !json_is_null(v) && !(json_is_array(v) && !json_array_size(v)))
            return err_set(err, RC_UNSUPPORTED, "%s is not supported", absent[i]);
    }
    return RC_OK;
}

static enum rc read_request(struct messages *m, struct err *err)
{
    enum rc rc = params_read(m->c, &m->t.p, err);
    m->t.c = m->c;
    m->t.p.n = 1;
    if (!rc)
        rc = params_read_stop(m->c->body, "stop_sequences", &m->t.p, err);
    if (!rc)
        rc = refuse_fields(m->c->body, err);
    if (!rc)
        rc = read_messages(m, err);
    if (!rc)
        rc = read_tools(m, err);
    if (!rc)
        rc = read_tool_choice(m, err);
    if (!rc)
        rc = read_format(m, err);
    if (!rc)
        rc = read_thinking(m, err);
    if (!rc)
        rc = talk_prepare(&m->t, err);
    return rc;
}

/* ---- what both replies share ---- */

static const char *stop_reason(const struct messages *m, enum stop_kind stop)
{
    if (stop == STOP_WORD)
        return "stop_sequence";
    if (stop != STOP_EOG)
        return "max_tokens";
    return said_count(&m->said, REPLY_CALL) ? "tool_use" : "end_turn";
}

static void write_usage(struct jwrite *w, const struct timings *t, bool begins)
{
    jwrite_obj(w, "usage");
    jwrite_u64(w, "input_tokens", t->n_prompt - t->n_reused);
    jwrite_u64(w, "cache_creation_input_tokens", 0);
    jwrite_u64(w, "cache_read_input_tokens", t->n_reused);
    jwrite_u64(w, "output_tokens", begins ? 0 : t->n_predicted);
    jwrite_end_obj(w);
}

static void begin_message(struct jwrite *w, const char *key, const struct messages *m)
{
    jwrite_obj(w, key);
    jwrite_str(w, "id", m->id);
    jwrite_str(w, "type", "message");
    jwrite_str(w, "role", "assistant");
    jwrite_str(w, "model", m->c->m->alias);
}

/* ---- a whole reply ---- */

static void keep_event(void *ctx, uint32_t choice, const struct reply_event *e)
{
    struct messages *m = ctx;
    bool fresh;
    (void)choice;
    said_add(&m->said, m->c, "toolu_", e, &fresh);
}

static void write_input(struct jwrite *w, const struct buf *args)
{
    json_t *input = NULL;
    if (!jread_parse(buf_str(args), args->n, &input, NULL) && json_is_object(input)) {
        jwrite_json(w, "input", input);
    } else { /* none were given */
        jwrite_obj(w, "input");
        jwrite_end_obj(w);
    }
    json_decref(input);
}

static void write_part(struct jwrite *w, const struct said_part *p)
{
    jwrite_obj(w, NULL);
    if (p->kind == REPLY_REASONING) {
        jwrite_str(w, "type", "thinking");
        jwrite_strn(w, "thinking", p->text.p, p->text.n);
        jwrite_str(w, "signature", "");
    } else if (p->kind == REPLY_CONTENT) {
        jwrite_str(w, "type", "text");
        jwrite_strn(w, "text", p->text.p, p->text.n);
    } else {
        jwrite_str(w, "type", "tool_use");
        jwrite_str(w, "id", p->id);
        jwrite_strn(w, "name", buf_str(&p->name), p->name.n);
        write_input(w, &p->text);
    }
    jwrite_end_obj(w);
}

static void keep_end(void *ctx, uint32_t choice, const struct answer *a)
{
    struct messages *m = ctx;
    (void)a;
    talk_keep(&m->t, choice, &m->said);
}

static void reply_whole(struct messages *m)
{
    static const struct talk_sink sink = {.event = keep_event, .end = keep_end};
    struct buf b = BUF_INIT;
    struct jwrite w;
    if (!talk_run(&m->t, NULL, &sink, m))
        return;
    const struct answer *a = &m->t.answers[0];
    jwrite_init(&w, &b);
    begin_message(&w, NULL, m);
    jwrite_arr(&w, "content");
    /* a call that was cut off has no input that is JSON: it is left out */
    const size_t n = m->said.n - said_in_call(&m->said);
    for (size_t i = 0; i < n; i++)
        write_part(&w, &m->said.parts[i]);
    jwrite_end_arr(&w);
    jwrite_str(&w, "stop_reason", stop_reason(m, a->stop));
    jwrite_str(&w, "stop_sequence", a->stop_word);
    write_usage(&w, &a->timings, false);
    jwrite_end_obj(&w);
    b.failed |= m->said.nomem;
    reply_json(m->c, 200, &b);
    buf_release(&b);
}

/* ---- a stream ---- */

static void begin_event(struct jwrite *w, struct buf *b, const char *type)
{
    jwrite_init(w, b);
    jwrite_obj(w, NULL);
    jwrite_str(w, "type", type);
}

static void end_event(struct messages *m, struct jwrite *w, struct buf *b, const char *type)
{
    jwrite_end_obj(w);
    stream_event(&m->st, type, b);
    buf_release(b);
}

static void start_message(struct messages *m)
{
    struct buf b = BUF_INIT;
    struct jwrite w;
    if (m->begun)
        return;
    m->begun = true;
    begin_event(&w, &b, "message_start");
    begin_message(&w, "message", m);
    jwrite_arr(&w, "content");
    jwrite_end_arr(&w);
    jwrite_null(&w, "stop_reason");
    jwrite_null(&w, "stop_sequence");
    write_usage(&w, &m->timings, true);
    jwrite_end_obj(&w);
    end_event(m, &w, &b, "message_start");
}

static void stop_block(struct messages *m)
{
    struct buf b = BUF_INIT;
    struct jwrite w;
    if (!m->in_block)
        return;
    m->in_block = false;
    begin_event(&w, &b, "content_block_stop");
    jwrite_u64(&w, "index", m->n_blocks - 1);
    end_event(m, &w, &b, "content_block_stop");
}

static void start_block(struct messages *m, const struct said_part *p)
{
    struct buf b = BUF_INIT;
    struct jwrite w;
    stop_block(m);
    m->in_block = true;
    begin_event(&w, &b, "content_block_start");
    jwrite_u64(&w, "index", m->n_blocks++);
    jwrite_obj(&w, "content_block");
    if (p->kind == REPLY_REASONING) {
        jwrite_str(&w, "type", "thinking");
        jwrite_str(&w, "thinking", "");
        jwrite_str(&w, "signature", "");
    } else if (p->kind == REPLY_CONTENT) {
        jwrite_str(&w, "type", "text");
        jwrite_str(&w, "text", "");
    } else {
        jwrite_str(&w, "type", "tool_use");
        jwrite_str(&w, "id", p->id);
        jwrite_strn(&w, "name", buf_str(&p->name), p->name.n);
        jwrite_obj(&w, "input");
        jwrite_end_obj(&w);
    }
    jwrite_end_obj(&w);
    end_event(m, &w, &b, "content_block_start");
}

static void send_delta(struct messages *m, enum reply_kind kind, struct str text)
{
    static const char *const words[][2] = {[REPLY_REASONING] = {"thinking_delta", "thinking"},
                                           [REPLY_CONTENT] = {"text_delta", "text"},
                                           [REPLY_CALL] = {"input_json_delta", "partial_json"}};
    struct buf b = BUF_INIT;
    struct jwrite w;
    begin_event(&w, &b, "content_block_delta");
    jwrite_u64(&w, "index", m->n_blocks - 1);
    jwrite_obj(&w, "delta");
    jwrite_str(&w, "type", words[kind][0]);
    jwrite_strn(&w, words[kind][1], text.p, text.n);
    jwrite_end_obj(&w);
    end_event(m, &w, &b, "content_block_delta");
}

static void stream_piece(void *ctx, uint32_t choice, const struct piece *p)
{
    struct messages *m = ctx;
    (void)choice;
    m->timings = p->timings;
    if (p->n_tokens || p->last)
        start_message(m); /* what was reused is known now */
}

static void stream_part(void *ctx, uint32_t choice, const struct reply_event *e)
{
    struct messages *m = ctx;
    bool fresh;
    (void)choice;
    const struct said_part *p = said_add(&m->said, m->c, "toolu_", e, &fresh);
    if (!p)
        return;
    if (fresh)
        start_block(m, p);
    if (e->kind != REPLY_CALL)
        send_delta(m, p->kind, e->text);
}

static void stream_end(void *ctx, uint32_t choice, const struct answer *a)
{
    struct messages *m = ctx;
    struct buf b = BUF_INIT;
    struct jwrite w;
    talk_keep(&m->t, choice, &m->said);
    stop_block(m);
    begin_event(&w, &b, "message_delta");
    jwrite_obj(&w, "delta");
    jwrite_str(&w, "stop_reason", stop_reason(m, a->stop));
    jwrite_str(&w, "stop_sequence", a->stop_word);
    jwrite_end_obj(&w);
    write_usage(&w, &a->timings, false);
    end_event(m, &w, &b, "message_delta");
    begin_event(&w, &b, "message_stop");
    end_event(m, &w, &b, "message_stop");
}

/* ---- routes ---- */

void anthropic_messages(struct call *c)
{
    struct messages m = {.c = c};
    struct err err;
    call_id(c, "msg_", m.id);
    c->id = m.id;
    enum rc rc = read_request(&m, &err);
    const json_t *max = json_object_get(c->body, "max_tokens");
    if (!rc && (!max || json_is_null(max)))
        rc = err_set(&err, RC_ARG, "max_tokens is missing");
    if (rc) {
        reply_error(c, &err);
    } else if (m.t.p.stream) {
        static const struct talk_sink sink = {
            .piece = stream_piece, .event = stream_part, .end = stream_end};
        stream_init(&m.st, c, m.t.p.sse_ping_s);
        talk_run(&m.t, &m.st, &sink, &m);
        stream_release(&m.st);
    } else {
        reply_whole(&m);
    }
    said_release(&m.said);
    talk_release(&m.t);
}

void anthropic_count_tokens(struct call *c)
{
    struct messages m = {.c = c};
    struct err err;
    if (read_request(&m, &err)) {
        reply_error(c, &err);
    } else {
        struct buf b = BUF_INIT;
        buf_addf(&b, "{\"input_tokens\":%zu}", m.t.tokens.n);
        reply_json(c, 200, &b);
        buf_release(&b);
    }
    talk_release(&m.t);
}
