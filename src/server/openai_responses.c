/* openai_responses.c - POST /v1/responses, whole and streamed.
 *
 * Source: OpenAI's API reference, "Responses".  Nothing is stored: previous_response_id and
 * conversation are refused, items must come with their content.  Tools that OpenAI would run itself
 * (web_search and the like) are not offered to the model; functions are.
 */
#include <string.h>

#include "base/mem.h"
#include "server/reply.h"
#include "server/route.h"
#include "server/said.h"
#include "server/shape.h"
#include "server/talk.h"

struct responses {
    struct call *c;
    struct talk t;
    char id[48];
    int64_t created;
    const char *effort; /* reasoning.effort, or NULL */
    struct stream st;
    struct said said;
    size_t n_open;     /* parts announced, in a stream */
    uint64_t sequence; /* of the next event */
    bool begun;
};

/* ---- the request: items to messages ---- */

/* The assistant's message under way: reasoning, text and calls that follow one another are one. */
struct turn_draft {
    json_t *list; /* all messages */
    json_t *open; /* borrowed from list; NULL: none */
    bool bad;     /* memory is out */
};

/* Takes content. */
static json_t *push(struct turn_draft *d, const char *role, json_t *content)
{
    json_t *m = json_object();
    d->bad |= json_object_set_new(m, "content", content) ||
              json_object_set_new(m, "role", json_string(role)) || json_array_append(d->list, m);
    json_decref(m);
    d->open = NULL;
    return d->bad ? NULL : json_array_get(d->list, json_array_size(d->list) - 1);
}

static json_t *assistant(struct turn_draft *d)
{
    if (!d->open)
        d->open = push(d, "assistant", json_string(""));
    return d->open;
}

static void append_text(struct turn_draft *d, const char *key, const char *text, size_t n)
{
    json_t *m = assistant(d), *had = json_object_get(m, key);
    struct buf b = BUF_INIT;
    buf_add(&b, json_string_value(had), json_string_length(had));
    buf_add(&b, text, n);
    d->bad |= b.failed || json_object_set_new(m, key, json_stringn(buf_str(&b), b.n));
    buf_release(&b);
}

/* The text of content parts, for one role's kinds of them; *out is owned. */
static enum rc content_text(json_t *content, const char *where, json_t **out, struct err *err)
{
    static const char *const kinds[] = {"input_text", "output_text", "text", "refusal"};
    *out = NULL;
    if (json_is_string(content)) {
        *out = json_incref(content);
        return RC_OK;
    }
    if (!json_is_array(content))
        return err_set(err, RC_ARG, "%s must be a string or an array", where);
    json_t *parts = json_array();
    bool bad = !parts;
    for (size_t i = 0; i < json_array_size(content) && !bad; i++) {
        const json_t *part = json_array_get(content, i);
        const char *type = json_string_value(json_object_get(part, "type"));
        bool known = false;
        for (size_t k = 0; type && k < COUNT_OF(kinds); k++)
            known = known || !strcmp(type, kinds[k]);
        json_t *text = json_object_get(part, "text");
        text = text ? text : json_object_get(part, "refusal");
        if (!known || !json_is_string(text)) {
            json_decref(parts);
            return err_set(err, RC_UNSUPPORTED, "%s[%zu] of type %.40s is not supported", where, i,
                           type ? type : "none");
        }
        json_t *copy = json_object();
        bad = json_object_set(copy, "text", text) ||
              json_object_set_new(copy, "type", json_string("text")) ||
              json_array_append(parts, copy);
        json_decref(copy);
    }
    if (!bad) /* a lone text is a string, so that both ways of sending it make the same prompt */
        *out = json_array_size(parts) == 1
                   ? json_incref(json_object_get(json_array_get(parts, 0), "text"))
                   : json_incref(parts);
    json_decref(parts);
    return *out ? RC_OK : err_set(err, RC_NOMEM, "out of memory for %s", where);
}

static enum rc add_message(struct turn_draft *d, const json_t *item, const char *where,
                           struct err *err)
{
    static const char *const roles[] = {"user", "system", "developer", "assistant"};
    const char *role = json_string_value(json_object_get(item, "role"));
    bool known = false;
    for (size_t i = 0; role && i < COUNT_OF(roles); i++)
        known = known || !strcmp(role, roles[i]);
    if (!known)
        return err_set(err, RC_ARG, "%s.role must be user, system, developer or assistant", where);
    char inner[64];
    json_t *content;
    snprintf(inner, sizeof inner, "%s.content", where);
    const enum rc rc = content_text(json_object_get(item, "content"), inner, &content, err);
    if (rc)
        return rc;
    if (strcmp(role, "assistant") != 0) {
        push(d, role, content);
        return RC_OK;
    }
    if (json_is_string(content)) {
        append_text(d, "content", json_string_value(content), json_string_length(content));
    } else {
        for (size_t i = 0; i < json_array_size(content); i++) {
            const json_t *text = json_object_get(json_array_get(content, i), "text");
            append_text(d, "content", json_string_value(text), json_string_length(text));
        }
    }
    json_decref(content);
    return RC_OK;
}

static enum rc add_call(struct turn_draft *d, const json_t *item, const char *where,
                        struct err *err)
{
    json_t *id = json_object_get(item, "call_id"), *name = json_object_get(item, "name");
    json_t *args = json_object_get(item, "arguments");
    if (!json_is_string(id) || !json_is_string(name))
        return err_set(err, RC_ARG, "%s must have a call_id and a name", where);
    json_t *m = assistant(d), *call = json_object(), *fn = json_object();
    if (m && !json_object_get(m, "tool_calls"))
        d->bad |= json_object_set_new(m, "tool_calls", json_array()) != 0;
    d->bad |= json_object_set(fn, "name", name) ||
              json_object_set_new(fn, "arguments",
                                  json_is_string(args) ? json_incref(args) : json_string("")) ||
              json_object_set(call, "id", id) ||
              json_object_set_new(call, "type", json_string("function")) ||
              json_object_set(call, "function", fn) ||
              json_array_append(json_object_get(m, "tool_calls"), call);
    json_decref(fn);
    json_decref(call);
    return RC_OK;
}

static enum rc add_output(struct turn_draft *d, const json_t *item, const char *where,
                          struct err *err)
{
    json_t *id = json_object_get(item, "call_id"), *text;
    char inner[64];
    if (!json_is_string(id))
        return err_set(err, RC_ARG, "%s.call_id must be a string", where);
    snprintf(inner, sizeof inner, "%s.output", where);
    const enum rc rc = content_text(json_object_get(item, "output"), inner, &text, err);
    if (rc)
        return rc;
    d->bad |= json_object_set(push(d, "tool", text), "tool_call_id", id) != 0;
    return RC_OK;
}

/* content (reasoning_text) where there is some, else the summary. */
static void add_reasoning(struct turn_draft *d, const json_t *item)
{
    const json_t *list = json_object_get(item, "content");
    if (!json_array_size(list))
        list = json_object_get(item, "summary");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *text = json_object_get(json_array_get(list, i), "text");
        if (json_is_string(text))
            append_text(d, "reasoning_content", json_string_value(text), json_string_length(text));
    }
}

static enum rc add_item(struct turn_draft *d, const json_t *item, size_t i, struct err *err)
{
    const char *type = json_string_value(json_object_get(item, "type"));
    char where[32];
    snprintf(where, sizeof where, "input[%zu]", i);
    if (!json_is_object(item))
        return err_set(err, RC_ARG, "%s must be an object", where);
    if (!type || !strcmp(type, "message"))
        return add_message(d, item, where, err);
    if (!strcmp(type, "function_call"))
        return add_call(d, item, where, err);
    if (!strcmp(type, "function_call_output"))
        return add_output(d, item, where, err);
    if (!strcmp(type, "reasoning")) {
        if (json_array_size(json_object_get(item, "content")) ||
            json_array_size(json_object_get(item, "summary")))
            add_reasoning(d, item);
        return RC_OK;
    }
    return err_set(err, RC_UNSUPPORTED, "%s of type %.40s is not supported", where, type);
}

static enum rc read_input(struct responses *m, struct err *err)
{
    const json_t *o = m->c->body;
    json_t *input = json_object_get(o, "input"), *instructions = json_object_get(o, "instructions");
    struct turn_draft d = {.list = json_array()};
    m->t.messages = d.list;
    if (!input || json_is_null(input))
        return err_set(err, RC_ARG, "input is missing");
    if (!json_is_string(input) && !json_array_size(input))
        return err_set(err, RC_ARG, "input must be text or an array with something in it");
    if (instructions && !json_is_null(instructions) && !json_is_string(instructions))
        return err_set(err, RC_ARG, "instructions must be a string");
    if (json_is_string(instructions) && json_string_length(instructions))
        push(&d, "system", json_incref(instructions));
    enum rc rc = RC_OK;
    if (json_is_string(input))
        push(&d, "user", json_incref(input));
    for (size_t i = 0; i < json_array_size(input) && !rc; i++)
        rc = add_item(&d, json_array_get(input, i), i, err);
    if (!rc && d.bad)
        rc = err_set(err, RC_NOMEM, "out of memory for input");
    return rc;
}

static enum rc read_tools(struct responses *m, struct err *err)
{
    const json_t *list = json_object_get(m->c->body, "tools");
    if (!list || json_is_null(list))
        return RC_OK;
    if (!json_is_array(list))
        return err_set(err, RC_ARG, "tools must be an array");
    m->t.tools = json_array();
    bool bad = !m->t.tools;
    for (size_t i = 0; i < json_array_size(list) && !bad; i++) {
        static const char *const copied[] = {"name", "description", "parameters", "strict"};
        const json_t *tool = json_array_get(list, i);
        const char *type = json_string_value(json_object_get(tool, "type"));
        if (type && !strcmp(type, "custom"))
            return err_set(err, RC_UNSUPPORTED, "tools[%zu].type custom is not supported", i);
        if (!type || strcmp(type, "function") != 0)
            continue; /* the server's own: there are none to offer */
        char where[64];
        snprintf(where, sizeof where, "tools[%zu]", i);
        const enum rc rc = constraint_check_tool(json_object_get(tool, "name"),
                                                 json_object_get(tool, "parameters"), where,
                                                 "parameters", 64, err);
        if (rc)
            return rc;
        json_t *fn = json_object(), *out = json_object();
        for (size_t k = 0; k < COUNT_OF(copied); k++) {
            json_t *v = json_object_get(tool, copied[k]);
            if (v && !json_is_null(v))
                bad |= json_object_set(fn, copied[k], v) != 0;
        }
        bad |= json_object_set_new(out, "type", json_string("function")) ||
               json_object_set(out, "function", fn) || json_array_append(m->t.tools, out);
        json_decref(fn);
        json_decref(out);
    }
    m->t.calls = json_array_size(m->t.tools);
    return bad ? err_set(err, RC_NOMEM, "out of memory for tools") : RC_OK;
}

static enum rc read_rest(struct responses *m, struct err *err)
{
    const json_t *o = m->c->body, *v;
    static const struct {
        const char *name, *why;
    } refused[] = {{"previous_response_id", "nothing is stored: send the whole conversation"},
                   {"conversation", "nothing is stored: send the whole conversation"},
                   {"prompt", "there are no stored prompts"}};
    for (size_t i = 0; i < COUNT_OF(refused); i++) {
        v = json_object_get(o, refused[i].name);
        if (v && !json_is_null(v))
            return err_set(err, RC_UNSUPPORTED, "%s is not supported; %s", refused[i].name,
                           refused[i].why);
    }
    bool background = false, parallel = true;
    int64_t max = m->t.p.n_predict;
    enum rc rc = jread_bool(o, "background", &background, err);
    if (!rc && background)
        rc = err_set(err, RC_UNSUPPORTED, "background is not supported");
    if (!rc)
        rc = jread_bool(o, "parallel_tool_calls", &parallel, err);
    if (!rc)
        rc = jread_i64(o, "max_output_tokens", 1, INT32_MAX, &max, err);
    m->t.max_calls = parallel ? 0 : 1;
    m->t.p.n_predict = (int32_t)max;
    if (!rc)
        rc = constraint_read_format(json_object_get(json_object_get(o, "text"), "format"),
                                    "text.format", &m->t.p.want, err);
    return rc;
}

static enum rc read_tool_choice(struct responses *m, struct err *err)
{
    const json_t *v = json_object_get(m->c->body, "tool_choice");
    const char *choice = json_string_value(v);
    const char *type = json_string_value(json_object_get(v, "type"));
    const char *name = json_string_value(json_object_get(v, "name"));
    if (!v || json_is_null(v) || (choice && !strcmp(choice, "auto")))
        return RC_OK;
    if (choice && !strcmp(choice, "none")) {
        m->t.calls = false;
        return RC_OK;
    }
    if (choice && !strcmp(choice, "required"))
        return constraint_must_call(&m->t.p.want, m->t.tools, NULL, err);
    if (!type || strcmp(type, "function") != 0)
        return err_set(err, RC_UNSUPPORTED,
                       "tool_choice is not supported unless auto, none, required or a function");
    if (!name)
        return err_set(err, RC_ARG, "tool_choice.name must be a string");
    return constraint_must_call(&m->t.p.want, m->t.tools, name, err);
}

static enum rc read_reasoning(struct responses *m, struct err *err)
{
    const json_t *v = json_object_get(m->c->body, "reasoning");
    json_t *given = json_object_get(m->c->body, "chat_template_kwargs");
    if (v && !json_is_null(v) && !json_is_object(v))
        return err_set(err, RC_ARG, "reasoning must be an object");
    const enum rc rc = err_wrap(err, jread_str(v, "effort", &m->effort, err), "reasoning");
    if (rc)
        return rc;
    m->t.effort = m->effort;
    m->t.kwargs = json_is_object(given) ? json_copy(given) : json_object();
    bool bad = !m->t.kwargs;
    if (m->effort && !strcmp(m->effort, "none"))
        bad |= json_object_set_new(m->t.kwargs, "enable_thinking", json_false()) != 0;
    else if (m->effort)
        bad |= json_object_set_new(m->t.kwargs, "reasoning_effort", json_string(m->effort)) != 0;
    return bad ? err_set(err, RC_NOMEM, "out of memory for reasoning") : RC_OK;
}

static enum rc read_request(struct responses *m, struct err *err)
{
    enum rc rc = params_read(m->c, &m->t.p, err);
    m->t.c = m->c;
    m->t.p.n = 1;
    if (!rc)
        rc = read_input(m, err);
    if (!rc)
        rc = read_tools(m, err);
    if (!rc)
        rc = read_rest(m, err);
    if (!rc)
        rc = read_tool_choice(m, err);
    if (!rc)
        rc = read_reasoning(m, err);
    if (!rc)
        rc = talk_prepare(&m->t, err);
    return rc;
}

/* ---- what both replies share ---- */

/* Of the i-th part of the output. */
static void item_id(const struct responses *m, size_t i, char out[80])
{
    const enum reply_kind kind = m->said.parts[i].kind;
    snprintf(out, 80, "%s%s_%zu",
             kind == REPLY_REASONING ? "rs_"
             : kind == REPLY_CONTENT ? "msg_"
                                     : "fc_",
             m->id + strlen("resp_"), i);
}

static void write_content(struct jwrite *w, const char *key, const struct said_part *p, bool empty)
{
    jwrite_obj(w, key);
    jwrite_str(w, "type", p->kind == REPLY_REASONING ? "reasoning_text" : "output_text");
    jwrite_strn(w, "text", buf_str(&p->text), empty ? 0 : p->text.n);
    if (p->kind == REPLY_CONTENT) {
        jwrite_arr(w, "annotations");
        jwrite_end_arr(w);
        jwrite_arr(w, "logprobs");
        jwrite_end_arr(w);
    }
    jwrite_end_obj(w);
}

/* Has the model come to its end, as far as it is known?  A stop string inside a call is none. */
static bool is_whole(const struct responses *m)
{
    const enum stop_kind stop = m->t.answers[0].stop;
    return stop == STOP_EOG || (stop == STOP_WORD && !said_in_call(&m->said));
}

/* "completed", or "incomplete" for the last part when the answer ended in it. */
static const char *item_status(const struct responses *m, size_t i)
{
    const bool is_last = i + 1 == m->said.n;
    const bool is_open = m->said.parts[i].kind != REPLY_CALL || said_in_call(&m->said);
    return is_last && is_open && !is_whole(m) ? "incomplete" : "completed";
}

/* begun: announced only, nothing in it yet. */
static void write_item(struct jwrite *w, const char *key, const struct responses *m, size_t i,
                       bool begun)
{
    const struct said_part *p = &m->said.parts[i];
    char id[80];
    item_id(m, i, id);
    jwrite_obj(w, key);
    jwrite_str(w, "id", id);
    if (p->kind == REPLY_CALL) {
        jwrite_str(w, "type", "function_call");
        jwrite_str(w, "call_id", p->id);
        jwrite_strn(w, "name", buf_str(&p->name), p->name.n);
        jwrite_strn(w, "arguments", buf_str(&p->text), begun ? 0 : p->text.n);
    } else {
        jwrite_str(w, "type", p->kind == REPLY_REASONING ? "reasoning" : "message");
        if (p->kind == REPLY_CONTENT)
            jwrite_str(w, "role", "assistant");
        if (p->kind == REPLY_REASONING) {
            jwrite_arr(w, "summary");
            jwrite_end_arr(w);
        }
        jwrite_arr(w, "content");
        if (!begun)
            write_content(w, NULL, p, false);
        jwrite_end_arr(w);
    }
    jwrite_str(w, "status", begun ? "in_progress" : item_status(m, i));
    jwrite_end_obj(w);
}

/* A field of the request as it was sent, or null. */
static void write_given(struct jwrite *w, const struct responses *m, const char *key)
{
    const json_t *v = json_object_get(m->c->body, key);
    if (v)
        jwrite_json(w, key, v);
    else
        jwrite_null(w, key);
}

static void write_usage(struct jwrite *w, const struct responses *m)
{
    const struct timings *t = &m->t.answers[0].timings;
    jwrite_obj(w, "usage");
    jwrite_u64(w, "input_tokens", t->n_prompt);
    jwrite_obj(w, "input_tokens_details");
    jwrite_u64(w, "cached_tokens", t->n_reused);
    jwrite_end_obj(w);
    jwrite_u64(w, "output_tokens", t->n_predicted);
    jwrite_obj(w, "output_tokens_details");
    jwrite_u64(w, "reasoning_tokens", talk_n_reasoning(&m->t));
    jwrite_end_obj(w);
    jwrite_u64(w, "total_tokens", t->n_prompt + t->n_predicted);
    jwrite_end_obj(w);
}

/* The response object; finished: with output and usage. */
static void write_response(struct jwrite *w, const char *key, const struct responses *m,
                           bool finished)
{
    const bool whole = finished && is_whole(m);
    jwrite_obj(w, key);
    jwrite_str(w, "id", m->id);
    jwrite_str(w, "object", "response");
    jwrite_i64(w, "created_at", m->created);
    jwrite_str(w, "status", !finished ? "in_progress" : whole ? "completed" : "incomplete");
    jwrite_null(w, "error");
    if (finished && !whole) {
        jwrite_obj(w, "incomplete_details");
        jwrite_str(w, "reason", m->t.answers[0].stop == STOP_WORD ? "stop" : "max_output_tokens");
        jwrite_end_obj(w);
    } else {
        jwrite_null(w, "incomplete_details");
    }
    write_given(w, m, "instructions");
    write_given(w, m, "max_output_tokens");
    jwrite_str(w, "model", m->c->m->alias);
    jwrite_arr(w, "output");
    for (size_t i = 0; finished && i < m->said.n; i++)
        write_item(w, NULL, m, i, false);
    jwrite_end_arr(w);
    jwrite_bool(w, "parallel_tool_calls", m->t.max_calls != 1);
    jwrite_null(w, "previous_response_id");
    jwrite_obj(w, "reasoning");
    jwrite_str(w, "effort", m->effort);
    jwrite_null(w, "summary");
    jwrite_end_obj(w);
    jwrite_bool(w, "store", false);
    jwrite_f64(w, "temperature", (double)m->t.p.sampling.temperature);
    if (json_is_object(json_object_get(m->c->body, "text")))
        write_given(w, m, "text");
    else
        jwrite_raw(w, "text", "{\"format\":{\"type\":\"text\"}}");
    const json_t *choice = json_object_get(m->c->body, "tool_choice");
    if (choice && !json_is_null(choice))
        jwrite_json(w, "tool_choice", choice);
    else
        jwrite_str(w, "tool_choice", "auto");
    if (json_object_get(m->c->body, "tools"))
        write_given(w, m, "tools");
    else
        jwrite_raw(w, "tools", "[]");
    jwrite_f64(w, "top_p", (double)m->t.p.sampling.top_p);
    jwrite_str(w, "truncation", "disabled");
    if (finished)
        write_usage(w, m);
    else
        jwrite_null(w, "usage");
    jwrite_null(w, "user");
    jwrite_raw(w, "metadata", "{}");
    jwrite_end_obj(w);
}

/* ---- a whole reply ---- */

static void keep_event(void *ctx, uint32_t choice, const struct reply_event *e)
{
    struct responses *m = ctx;
    bool fresh;
    (void)choice;
    said_add(&m->said, m->c, "call_", e, &fresh);
}

static void keep_end(void *ctx, uint32_t choice, const struct answer *a)
{
    struct responses *m = ctx;
    (void)a;
    talk_keep(&m->t, choice, &m->said);
}

static void reply_whole(struct responses *m)
{
    static const struct talk_sink sink = {.event = keep_event, .end = keep_end};
    struct buf b = BUF_INIT;
    struct jwrite w;
    if (!talk_run(&m->t, NULL, &sink, m))
        return;
    jwrite_init(&w, &b);
    write_response(&w, NULL, m, true);
    b.failed |= m->said.nomem;
    reply_json(m->c, 200, &b);
    buf_release(&b);
}

/* ---- a stream ---- */

static void begin_event(struct responses *m, struct jwrite *w, struct buf *b, const char *type)
{
    jwrite_init(w, b);
    jwrite_obj(w, NULL);
    jwrite_str(w, "type", type);
    jwrite_u64(w, "sequence_number", m->sequence++);
}

static void end_event(struct responses *m, struct jwrite *w, struct buf *b, const char *type)
{
    jwrite_end_obj(w);
    stream_event(&m->st, type, b);
    buf_release(b);
}

static void send_response(struct responses *m, const char *type, bool finished)
{
    struct buf b = BUF_INIT;
    struct jwrite w;
    begin_event(m, &w, &b, type);
    write_response(&w, "response", m, finished);
    end_event(m, &w, &b, type);
}

static void send_item(struct responses *m, const char *type, size_t i, bool begun)
{
    struct buf b = BUF_INIT;
    struct jwrite w;
    begin_event(m, &w, &b, type);
    jwrite_u64(&w, "output_index", i);
    write_item(&w, "item", m, i, begun);
    end_event(m, &w, &b, type);
}

/* Begins an event about the i-th part: where it is. */
static void begin_part_event(struct responses *m, struct jwrite *w, struct buf *b, const char *type,
                             size_t i)
{
    char id[80];
    item_id(m, i, id);
    begin_event(m, w, b, type);
    jwrite_str(w, "item_id", id);
    jwrite_u64(w, "output_index", i);
    if (m->said.parts[i].kind != REPLY_CALL)
        jwrite_u64(w, "content_index", 0);
}

static void send_content(struct responses *m, const char *type, size_t i, bool begun)
{
    struct buf b = BUF_INIT;
    struct jwrite w;
    begin_part_event(m, &w, &b, type, i);
    write_content(&w, "part", &m->said.parts[i], begun);
    end_event(m, &w, &b, type);
}

/* "…delta" or "…done" of what a part is made of. */
static void send_text(struct responses *m, size_t i, bool done, struct str text)
{
    static const char *const words[][2] = {
        [REPLY_REASONING] = {"response.reasoning_text.delta", "response.reasoning_text.done"},
        [REPLY_CONTENT] = {"response.output_text.delta", "response.output_text.done"},
        [REPLY_CALL] = {"response.function_call_arguments.delta",
                        "response.function_call_arguments.done"}};
    const enum reply_kind kind = m->said.parts[i].kind;
    const char *type = words[kind][done];
    struct buf b = BUF_INIT;
    struct jwrite w;
    begin_part_event(m, &w, &b, type, i);
    jwrite_strn(&w, !done ? "delta" : kind == REPLY_CALL ? "arguments" : "text", text.p, text.n);
    if (kind == REPLY_CONTENT) {
        jwrite_arr(&w, "logprobs");
        jwrite_end_arr(&w);
    }
    end_event(m, &w, &b, type);
}

static void close_part(struct responses *m)
{
    if (!m->n_open)
        return;
    const size_t i = m->n_open - 1;
    const struct said_part *p = &m->said.parts[i];
    send_text(m, i, true, (struct str){buf_str(&p->text), p->text.n});
    if (p->kind != REPLY_CALL)
        send_content(m, "response.content_part.done", i, false);
    send_item(m, "response.output_item.done", i, false);
    m->n_open = 0;
}

static void open_part(struct responses *m, size_t i)
{
    send_item(m, "response.output_item.added", i, true);
    if (m->said.parts[i].kind != REPLY_CALL)
        send_content(m, "response.content_part.added", i, true);
    m->n_open = i + 1;
}

static void stream_piece(void *ctx, uint32_t choice, const struct piece *p)
{
    struct responses *m = ctx;
    (void)choice;
    if (m->begun || !(p->n_tokens || p->last))
        return;
    m->begun = true;
    send_response(m, "response.created", false);
    send_response(m, "response.in_progress", false);
}

static void stream_part(void *ctx, uint32_t choice, const struct reply_event *e)
{
    struct responses *m = ctx;
    (void)choice;
    bool fresh;
    if (!said_add(&m->said, m->c, "call_", e, &fresh))
        return;
    if (fresh) {
        close_part(m);
        open_part(m, m->said.n - 1);
    }
    if (e->kind != REPLY_CALL)
        send_text(m, m->said.n - 1, false, e->text);
}

static void stream_end(void *ctx, uint32_t choice, const struct answer *a)
{
    struct responses *m = ctx;
    (void)a;
    talk_keep(&m->t, choice, &m->said);
    close_part(m);
    send_response(m, is_whole(m) ? "response.completed" : "response.incomplete", true);
}

/* ---- the route ---- */

void openai_responses(struct call *c)
{
    struct responses m = {.c = c, .created = call_time()};
    struct err err;
    call_id(c, "resp_", m.id);
    c->id = m.id;
    if (read_request(&m, &err)) {
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
