/* openai_chat.c - POST /v1/chat/completions, whole and streamed; POST /apply-template.
 *
 * Source: OpenAI's API reference, "Chat Completions"; reasoning_content, chat_template_kwargs,
 * reasoning_format and timings are llama-server's.
 */
#include <string.h>

#include "base/mem.h"
#include "server/reply.h"
#include "server/route.h"
#include "server/said.h"
#include "server/shape.h"
#include "server/talk.h"
#include "server/thinking.h"

struct chat {
    struct call *c;
    struct talk t;
    int64_t n_top; /* top_logprobs; -1: no logprobs */
    char id[48];
    int64_t created;
    struct stream st;
    struct choice *choices; /* [p.n] */
};

/* What is known of one choice while it comes. */
struct choice {
    struct said said;   /* all of it, unless streamed */
    struct prob *probs; /* [n_probs][1 + width]: not yet sent */
    size_t n_probs, cap_probs;
    uint32_t width;
    bool begun; /* its role has been sent */
    bool nomem;
    struct timings timings;
};

/* ---- the request ---- */

/* Fields that would change the answer and that we have nothing for. */
static enum rc refuse_fields(const json_t *o, struct err *err)
{
    static const char *const absent[] = {"audio", "web_search_options", "functions",
                                         "function_call"};
    for (size_t i = 0; i < COUNT_OF(absent); i++) {
        const json_t *v = json_object_get(o, absent[i]);
        if (v && !json_is_null(v))
            return err_set(err, RC_UNSUPPORTED, "%s is not supported%s", absent[i],
                           absent[i][0] == 'f' ? "; use tools" : "");
    }
    bool store = false;
    enum rc rc = jread_bool(o, "store", &store, err);
    if (!rc && store)
        rc = err_set(err, RC_UNSUPPORTED, "store is not supported: nothing is stored");
    const json_t *modalities = json_object_get(o, "modalities");
    for (size_t i = 0; i < json_array_size(modalities) && !rc; i++) {
        const char *m = json_string_value(json_array_get(modalities, i));
        if (!m || strcmp(m, "text") != 0)
            rc = err_set(err, RC_UNSUPPORTED, "modalities[%zu] is not supported, only text is", i);
    }
    return rc;
}

static enum rc check_roles(const json_t *messages, struct err *err)
{
    static const char *const roles[] = {"system", "developer", "user", "assistant", "tool"};
    for (size_t i = 0; i < json_array_size(messages); i++) {
        const json_t *m = json_array_get(messages, i);
        const char *role = json_string_value(json_object_get(m, "role"));
        bool known = !json_is_object(m); /* which is an error of its own */
        for (size_t k = 0; role && k < COUNT_OF(roles); k++)
            known = known || !strcmp(role, roles[k]);
        if (!known)
            return err_set(err, RC_ARG,
                           "messages[%zu].role must be system, developer, user, assistant or tool",
                           i);
    }
    return RC_OK;
}

/* Text parts are what the template gets; of the others none is understood. */
static enum rc check_parts(const json_t *messages, struct err *err)
{
    for (size_t i = 0; i < json_array_size(messages); i++) {
        const json_t *content = json_object_get(json_array_get(messages, i), "content");
        if (!json_is_array(content))
            continue;
        for (size_t k = 0; k < json_array_size(content); k++) {
            const json_t *part = json_array_get(content, k);
            const char *type = json_string_value(json_object_get(part, "type"));
            if (!type)
                return err_set(err, RC_ARG, "messages[%zu].content[%zu] has no type", i, k);
            if (strcmp(type, "text") != 0 && strcmp(type, "refusal") != 0)
                return err_set(err, RC_UNSUPPORTED,
                               "messages[%zu].content[%zu] of type %.40s is not supported", i, k,
                               type);
            if (!strcmp(type, "text") && !json_is_string(json_object_get(part, "text")))
                return err_set(err, RC_ARG, "messages[%zu].content[%zu].text must be a string", i,
                               k);
        }
    }
    return RC_OK;
}

static enum rc read_tools(const json_t *o, struct talk *t, struct err *err)
{
    json_t *tools = json_object_get(o, "tools");
    if (!tools || json_is_null(tools))
        return RC_OK;
    if (!json_is_array(tools))
        return err_set(err, RC_ARG, "tools must be an array");
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *tool = json_array_get(tools, i);
        const char *type = json_string_value(json_object_get(tool, "type"));
        const json_t *fn = json_object_get(tool, "function");
        if (!type || strcmp(type, "function") != 0)
            return err_set(err, RC_UNSUPPORTED,
                           "tools[%zu].type is not supported, only function is", i);
        char where[64];
        snprintf(where, sizeof where, "tools[%zu].function", i);
        const enum rc rc =
            constraint_check_tool(json_object_get(fn, "name"), json_object_get(fn, "parameters"),
                                  where, "parameters", 64, err);
        if (rc)
            return rc;
    }
    t->tools = json_array_size(tools) ? json_incref(tools) : NULL;
    t->calls = t->tools != NULL;
    return RC_OK;
}

static enum rc read_tool_choice(const json_t *o, struct talk *t, struct err *err)
{
    const json_t *v = json_object_get(o, "tool_choice");
    const char *s = json_string_value(v);
    bool parallel = true;
    const char *type = json_string_value(json_object_get(v, "type"));
    enum rc rc = jread_bool(o, "parallel_tool_calls", &parallel, err);
    t->max_calls = parallel ? 0 : 1;
    if (rc || !v || json_is_null(v) || (s && !strcmp(s, "auto")))
        return rc;
    if (s && !strcmp(s, "none")) {
        t->calls = false; /* the tools stay in the prompt, which so keeps its prefix */
        return RC_OK;
    }
    if (s && !strcmp(s, "required"))
        return constraint_must_call(&t->p.want, t->tools, NULL, err);
    if (!type || strcmp(type, "function") != 0)
        return err_set(err, RC_UNSUPPORTED,
                       "tool_choice is not supported unless auto, none, required or a function");
    const char *name = json_string_value(json_object_get(json_object_get(v, "function"), "name"));
    if (!name)
        return err_set(err, RC_ARG, "tool_choice.function.name must be a string");
    return constraint_must_call(&t->p.want, t->tools, name, err);
}

/* reasoning_effort, chat_template_kwargs, enable_thinking: variables of the template. */
static enum rc read_kwargs(json_t *o, struct talk *t, struct err *err)
{
    json_t *given = json_object_get(o, "chat_template_kwargs");
    json_t *thinking = json_object_get(o, "enable_thinking");
    const char *effort = NULL;
    if (given && !json_is_null(given) && !json_is_object(given))
        return err_set(err, RC_ARG, "chat_template_kwargs must be an object");
    if (thinking && !json_is_null(thinking) && !json_is_boolean(thinking))
        return err_set(err, RC_ARG, "enable_thinking must be true or false");
    const enum rc rc = jread_str(o, "reasoning_effort", &effort, err);
    if (rc)
        return rc;
    t->effort = effort;
    t->kwargs = json_object();
    bool bad = !t->kwargs;
    if (effort && !strcmp(effort, "none"))
        bad |= json_object_set_new(t->kwargs, "enable_thinking", json_false()) != 0;
    else if (effort)
        bad |= json_object_set_new(t->kwargs, "reasoning_effort", json_string(effort)) != 0;
    if (json_is_boolean(thinking))
        bad |= json_object_set(t->kwargs, "enable_thinking", thinking) != 0;
    if (json_is_object(given))
        bad |= json_object_update(t->kwargs, given) != 0;
    return bad ? err_set(err, RC_NOMEM, "out of memory for the template's variables") : RC_OK;
}

static enum rc read_reasoning_format(const json_t *o, struct talk *t, struct err *err)
{
    const char *f = NULL;
    const enum rc rc = jread_str(o, "reasoning_format", &f, err);
    if (rc || !f || !strcmp(f, "auto") || !strcmp(f, "deepseek"))
        return rc;
    if (!strcmp(f, "none")) {
        t->keep_thinking = true;
        return RC_OK;
    }
    return err_set(err, RC_UNSUPPORTED, "reasoning_format is none, auto or deepseek");
}

static enum rc read_logprobs(struct chat *m, struct err *err)
{
    const json_t *o = m->c->body;
    bool wanted = false;
    int64_t top = 0;
    enum rc rc = jread_bool(o, "logprobs", &wanted, err);
    if (!rc)
        rc = jread_i64(o, "top_logprobs", 0, 20, &top, err);
    if (!rc && top && !wanted)
        rc = err_set(err, RC_ARG, "top_logprobs asks for logprobs to be true");
    m->n_top = wanted ? top : -1;
    if (wanted)
        m->t.p.n_probs = (uint32_t)MAX(top, 1);
    return rc;
}

/* The conversation: what /apply-template needs too. */
enum rc openai_conversation(struct call *c, struct talk *t, struct err *err)
{
    json_t *messages = json_object_get(c->body, "messages");
    if (!messages || json_is_null(messages))
        return err_set(err, RC_ARG, "messages is missing");
    if (!json_is_array(messages) || !json_array_size(messages))
        return err_set(err, RC_ARG, "messages must be an array with something in it");
    enum rc rc = check_roles(messages, err);
    if (!rc)
        rc = check_parts(messages, err);
    if (!rc)
        rc = read_tools(c->body, t, err);
    if (!rc)
        rc = read_kwargs(c->body, t, err);
    if (rc)
        return rc;
    t->c = c;
    t->messages = json_incref(messages);
    const json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    const char *role = json_string_value(json_object_get(last, "role"));
    t->continue_last =
        role && !strcmp(role, "assistant") && !json_array_size(json_object_get(last, "tool_calls"));
    return RC_OK;
}

static enum rc read_request(struct chat *m, struct err *err)
{
    enum rc rc = params_read(m->c, &m->t.p, err);
    if (!rc)
        rc = refuse_fields(m->c->body, err);
    if (!rc)
        rc = openai_conversation(m->c, &m->t, err);
    if (!rc)
        rc = read_tool_choice(m->c->body, &m->t, err);
    if (!rc)
        rc = read_reasoning_format(m->c->body, &m->t, err);
    if (!rc)
        rc = read_logprobs(m, err);
    if (!rc)
        rc = talk_prepare(&m->t, err);
    return rc;
}

/* ---- what both replies share ---- */

static void begin_object(struct jwrite *w, struct buf *b, const struct chat *m, const char *object)
{
    jwrite_init(w, b);
    jwrite_obj(w, NULL);
    jwrite_str(w, "id", m->id);
    jwrite_str(w, "object", object);
    jwrite_i64(w, "created", m->created);
    jwrite_str(w, "model", m->c->m->alias);
    jwrite_str(w, "system_fingerprint", "holdfast-" HOLDFAST_VERSION);
}

static const char *finish_reason(enum stop_kind stop, const struct said *s)
{
    if (stop != STOP_EOG && stop != STOP_WORD)
        return "length";
    return said_count(s, REPLY_CALL) && !said_in_call(s) ? "tool_calls" : "stop";
}

static void write_logprobs(struct jwrite *w, const struct chat *m, struct choice *ch)
{
    if (m->n_top < 0) {
        jwrite_null(w, "logprobs");
        return;
    }
    jwrite_obj(w, "logprobs");
    shape_probs(w, "content", m->c, ch->probs, ch->n_probs, ch->width, (uint32_t)m->n_top);
    jwrite_null(w, "refusal");
    jwrite_end_obj(w);
    ch->n_probs = 0;
}

static void keep_probs(void *ctx, uint32_t i, const struct piece *p)
{
    struct chat *m = ctx;
    struct choice *ch = &m->choices[i];
    ch->timings = p->timings;
    if (m->n_top < 0 || !p->probs)
        return;
    const size_t width = 1 + (size_t)p->n_probs, n = ch->n_probs + p->n_tokens;
    if (!mem_grow(&ch->probs, &ch->cap_probs, n * width, sizeof *ch->probs)) {
        ch->nomem = true;
        return;
    }
    ch->width = p->n_probs;
    memcpy(ch->probs + ch->n_probs * width, p->probs, p->n_tokens * width * sizeof *p->probs);
    ch->n_probs = n;
}

/* ---- a whole reply ---- */

static void keep_event(void *ctx, uint32_t i, const struct reply_event *e)
{
    struct chat *m = ctx;
    bool fresh;
    said_add(&m->choices[i].said, m->c, "call_", e, &fresh);
}

static void keep_end(void *ctx, uint32_t i, const struct answer *a)
{
    struct chat *m = ctx;
    (void)a;
    talk_keep(&m->t, i, &m->choices[i].said);
}

static void write_calls(struct jwrite *w, const struct said *s)
{
    jwrite_arr(w, "tool_calls");
    for (size_t i = 0; i < s->n; i++) {
        const struct said_part *call = &s->parts[i];
        if (call->kind != REPLY_CALL)
            continue;
        jwrite_obj(w, NULL);
        jwrite_str(w, "id", call->id);
        jwrite_str(w, "type", "function");
        jwrite_obj(w, "function");
        jwrite_strn(w, "name", buf_str(&call->name), call->name.n);
        jwrite_strn(w, "arguments", buf_str(&call->text), call->text.n);
        jwrite_end_obj(w);
        jwrite_end_obj(w);
    }
    jwrite_end_arr(w);
}

static void write_message(struct jwrite *w, const struct said *s)
{
    struct buf reasoning = BUF_INIT, content = BUF_INIT;
    const bool calls = said_count(s, REPLY_CALL);
    said_join(s, REPLY_REASONING, &reasoning);
    said_join(s, REPLY_CONTENT, &content);
    jwrite_obj(w, "message");
    jwrite_str(w, "role", "assistant");
    if (reasoning.n)
        jwrite_strn(w, "reasoning_content", reasoning.p, reasoning.n);
    if (content.n || !calls)
        jwrite_strn(w, "content", buf_str(&content), content.n);
    else
        jwrite_null(w, "content");
    jwrite_null(w, "refusal");
    if (calls)
        write_calls(w, s);
    jwrite_end_obj(w);
    w->b->failed |= reasoning.failed || content.failed;
    buf_release(&reasoning);
    buf_release(&content);
}

static void reply_whole(struct chat *m)
{
    static const struct talk_sink sink = {
        .piece = keep_probs, .event = keep_event, .end = keep_end};
    struct buf b = BUF_INIT;
    struct jwrite w;
    if (!talk_run(&m->t, NULL, &sink, m))
        return;
    begin_object(&w, &b, m, "chat.completion");
    jwrite_arr(&w, "choices");
    for (uint32_t i = 0; i < m->t.g.n; i++) {
        struct choice *ch = &m->choices[i];
        jwrite_obj(&w, NULL);
        jwrite_u64(&w, "index", i);
        write_message(&w, &ch->said);
        write_logprobs(&w, m, ch);
        jwrite_str(&w, "finish_reason", finish_reason(m->t.answers[i].stop, &ch->said));
        jwrite_end_obj(&w);
        b.failed |= ch->nomem || ch->said.nomem;
    }
    jwrite_end_arr(&w);
    shape_usage(&w, &m->t.g, m->t.answers, talk_n_reasoning(&m->t));
    shape_timings(&w, &m->t.answers[m->t.g.n - 1].timings);
    jwrite_end_obj(&w);
    reply_json(m->c, 200, &b);
    buf_release(&b);
}

/* ---- a stream ---- */

/* Opens a chunk up to and into its delta. */
static void begin_delta(struct chat *m, uint32_t i, struct buf *b, struct jwrite *w)
{
    begin_object(w, b, m, "chat.completion.chunk");
    jwrite_arr(w, "choices");
    jwrite_obj(w, NULL);
    jwrite_u64(w, "index", i);
    jwrite_obj(w, "delta");
}

/* role: the chunk that has it alone; the tokens so far belong to the next one. */
static void end_delta(struct chat *m, uint32_t i, struct buf *b, struct jwrite *w, bool role,
                      const char *finish)
{
    struct choice *ch = &m->choices[i];
    jwrite_end_obj(w);
    if (ch->n_probs && !role)
        write_logprobs(w, m, ch);
    else
        jwrite_null(w, "logprobs");
    jwrite_str(w, "finish_reason", finish);
    jwrite_end_obj(w);
    jwrite_end_arr(w);
    if (m->t.p.include_usage)
        jwrite_null(w, "usage");
    if (finish || m->t.p.timings_per_token)
        shape_timings(w, &ch->timings);
    jwrite_end_obj(w);
    stream_event(&m->st, NULL, b);
    buf_release(b);
}

static void begin_choice(struct chat *m, uint32_t i)
{
    struct buf b = BUF_INIT;
    struct jwrite w;
    if (m->choices[i].begun)
        return;
    m->choices[i].begun = true;
    begin_delta(m, i, &b, &w);
    jwrite_str(&w, "role", "assistant");
    jwrite_str(&w, "content", "");
    end_delta(m, i, &b, &w, true, NULL);
}

static void send_progress(struct chat *m, const struct piece *p)
{
    struct buf b = BUF_INIT;
    struct jwrite w;
    begin_object(&w, &b, m, "chat.completion.chunk");
    jwrite_arr(&w, "choices");
    jwrite_end_arr(&w);
    shape_progress(&w, &p->timings);
    jwrite_end_obj(&w);
    stream_event(&m->st, NULL, &b);
    buf_release(&b);
}

static void stream_piece(void *ctx, uint32_t i, const struct piece *p)
{
    struct chat *m = ctx;
    keep_probs(ctx, i, p);
    if (!p->n_tokens && !p->last && m->t.p.return_progress)
        send_progress(m, p);
}

static void write_call_delta(struct jwrite *w, const struct reply_event *e,
                             const struct said_part *call)
{
    const bool first = e->kind == REPLY_CALL;
    jwrite_arr(w, "tool_calls");
    jwrite_obj(w, NULL);
    jwrite_u64(w, "index", e->call);
    if (first) {
        jwrite_str(w, "id", call->id);
        jwrite_str(w, "type", "function");
    }
    jwrite_obj(w, "function");
    if (first)
        jwrite_strn(w, "name", e->text.p, e->text.n);
    jwrite_strn(w, "arguments", first ? "" : e->text.p, first ? 0 : e->text.n);
    jwrite_end_obj(w);
    jwrite_end_obj(w);
    jwrite_end_arr(w);
}

static void stream_delta(void *ctx, uint32_t i, const struct reply_event *e)
{
    struct chat *m = ctx;
    struct buf b = BUF_INIT;
    struct jwrite w;
    bool fresh;
    const struct said_part *part = said_add(&m->choices[i].said, m->c, "call_", e, &fresh);
    if (!part)
        return;
    begin_choice(m, i);
    begin_delta(m, i, &b, &w);
    if (e->kind == REPLY_REASONING)
        jwrite_strn(&w, "reasoning_content", e->text.p, e->text.n);
    else if (e->kind == REPLY_CONTENT)
        jwrite_strn(&w, "content", e->text.p, e->text.n);
    else
        write_call_delta(&w, e, part);
    end_delta(m, i, &b, &w, false, NULL);
}

static void stream_choice_end(void *ctx, uint32_t i, const struct answer *a)
{
    struct chat *m = ctx;
    struct buf b = BUF_INIT;
    struct jwrite w;
    talk_keep(&m->t, i, &m->choices[i].said);
    begin_choice(m, i);
    begin_delta(m, i, &b, &w);
    end_delta(m, i, &b, &w, false, finish_reason(a->stop, &m->choices[i].said));
}

static void reply_stream(struct chat *m)
{
    static const struct talk_sink sink = {
        .piece = stream_piece, .event = stream_delta, .end = stream_choice_end};
    if (!talk_run(&m->t, &m->st, &sink, m))
        return;
    if (m->t.p.include_usage) {
        struct buf b = BUF_INIT;
        struct jwrite w;
        begin_object(&w, &b, m, "chat.completion.chunk");
        jwrite_arr(&w, "choices");
        jwrite_end_arr(&w);
        shape_usage(&w, &m->t.g, m->t.answers, talk_n_reasoning(&m->t));
        jwrite_end_obj(&w);
        stream_event(&m->st, NULL, &b);
        buf_release(&b);
    }
    stream_done(&m->st);
}

/* ---- routes ---- */

void openai_chat(struct call *c)
{
    struct chat m = {.c = c, .created = call_time()};
    struct err err;
    call_id(c, "chatcmpl-", m.id);
    c->id = m.id;
    enum rc rc = read_request(&m, &err);
    if (!rc) {
        m.choices = mem_try_array(m.t.p.n, sizeof *m.choices);
        if (!m.choices)
            rc = err_set(&err, RC_NOMEM, "out of memory for %u choices", m.t.p.n);
    }
    if (rc) {
        reply_error(c, &err);
    } else if (m.t.p.stream) {
        stream_init(&m.st, c, m.t.p.sse_ping_s);
        reply_stream(&m);
        stream_release(&m.st);
    } else {
        reply_whole(&m);
    }
    for (uint32_t i = 0; m.choices && i < m.t.p.n; i++) {
        said_release(&m.choices[i].said);
        mem_free(m.choices[i].probs);
    }
    mem_free(m.choices);
    talk_release(&m.t);
}

void openai_apply_template(struct call *c)
{
    struct talk t = {.p.think_budget = thinking_default(c->s)};
    struct err err;
    enum rc rc = openai_conversation(c, &t, &err);
    if (!rc)
        rc = talk_prepare(&t, &err);
    if (rc) {
        reply_error(c, &err);
    } else {
        struct buf b = BUF_INIT;
        struct jwrite w;
        jwrite_init(&w, &b);
        jwrite_obj(&w, NULL);
        jwrite_strn(&w, "prompt", buf_str(&t.prompt.text), t.prompt.text.n);
        jwrite_end_obj(&w);
        reply_json(c, 200, &b);
        buf_release(&b);
    }
    talk_release(&t);
}
