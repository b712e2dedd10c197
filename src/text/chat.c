/* chat.c - rendering with probes and provenance.
 *
 * Where messages stand in the text is not asked of the template.  The renderer marks which bytes come
 * from which input value and what a loop writes while it runs over a message (jinja.h), and spans
 * are read off these marks: chat_spans.  A message that no loop ran over, such as a system message
 * taken out first, spans from the end of what comes before its text to the beginning of what follows.
 */
#include "text/chat.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/jinja.h"
#include "text/json_int.h"

const char chat_template_chatml[] =
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

struct chat_template {
    struct jinja *jinja;
    char *source;
    struct chat_caps caps;
    char *bos, *eos;
};

void chat_prompt_release(struct chat_prompt *p)
{
    buf_release(&p->text);
    mem_free(p->spans);
    mem_free(p->verbatims);
    tokens_release(&p->verbatim_tokens);
    *p = (struct chat_prompt){0};
}

/* ---- normalising messages ---- */

static enum rc no_memory(struct err *err)
{
    return err_set(err, RC_NOMEM, "no memory for the chat");
}

/* The texts of a list of parts, joined by newlines; owned. */
static json_t *join_parts(const json_t *parts)
{
    struct buf b = BUF_INIT;
    size_t i;
    const json_t *part;
    json_array_foreach(parts, i, part)
    {
        const json_t *const text = json_is_string(part) ? part : json_object_get(part, "text");
        if (!json_is_string(text))
            continue;
        if (b.n)
            buf_addc(&b, '\n');
        buf_add(&b, json_string_value(text), json_string_length(text));
    }
    json_t *const s = b.failed ? NULL : json_stringn_nocheck(buf_str(&b), b.n);
    buf_release(&b);
    return s;
}

static json_t *content_for(const struct chat_caps *caps, const json_t *content)
{
    if (!content || json_is_null(content))
        return json_string("");
    if (json_is_array(content) && !caps->parts)
        return join_parts(content);
    if (json_is_string(content) && !caps->string_content)
        return json_pack("[{s:s,s:O}]", "type", "text", "text", content);
    return json_incref(json_unconst(content));
}

/* A copy of the calls whose arguments are objects, as templates expect them, where they parse. */
static json_t *calls_for(const json_t *calls)
{
    json_t *const out = json_array();
    size_t i;
    const json_t *call;
    json_array_foreach(calls, i, call)
    {
        json_t *const copy = json_copy(json_unconst(call));
        const json_t *const fn = json_object_get(call, "function");
        const json_t *const text = json_object_get(fn ? fn : call, "arguments");
        if (!copy || json_array_append_new(out, copy)) {
            json_decref(out);
            return NULL;
        }
        if (!json_is_string(text))
            continue;
        json_t *args = NULL;
        if (json_string_length(text) == 0)
            args = json_object();
        else if (jread_parse(json_string_value(text), json_string_length(text), &args, NULL) ||
                 !json_is_object(args)) {
            json_decref(args);
            continue;
        }
        json_t *fn_copy = fn ? json_copy(json_unconst(fn)) : json_incref(copy);
        int bad = json_object_set_new(fn_copy, "arguments", args);
        if (fn)
            bad |= json_object_set(copy, "function", fn_copy);
        json_decref(fn_copy);
        if (bad) {
            json_decref(out);
            return NULL;
        }
    }
    return out;
}

static enum rc check_message(const json_t *m, size_t i, struct err *err)
{
    if (!json_is_object(m))
        return err_set(err, RC_ARG, "messages[%zu] is not an object", i);
    if (!json_is_string(json_object_get(m, "role")))
        return err_set(err, RC_ARG, "messages[%zu].role is not a string", i);
    const json_t *const content = json_object_get(m, "content");
    if (content && !json_is_null(content) && !json_is_string(content) && !json_is_array(content))
        return err_set(err, RC_ARG, "messages[%zu].content is neither a string nor a list", i);
    const json_t *const calls = json_object_get(m, "tool_calls");
    if (calls && !json_is_null(calls) && !json_is_array(calls))
        return err_set(err, RC_ARG, "messages[%zu].tool_calls is not a list", i);
    size_t k;
    const json_t *call;
    json_array_foreach(calls, k, call)
    {
        const json_t *const fn = json_object_get(call, "function");
        if (!json_is_object(call) || !json_is_string(json_object_get(fn ? fn : call, "name")))
            return err_set(err, RC_ARG, "messages[%zu].tool_calls[%zu] has no function name", i, k);
    }
    return RC_OK;
}

/* One message as the template takes it; owned, NULL when memory is out. */
static json_t *message_for(const struct chat_caps *caps, const json_t *m)
{
    json_t *const copy = json_copy(json_unconst(m));
    const json_t *const calls = json_object_get(m, "tool_calls");
    const char *const role = json_string_value(json_object_get(m, "role"));
    int bad = !copy || json_object_set_new(copy, "content",
                                           content_for(caps, json_object_get(m, "content")));
    if (!bad && calls && (json_is_null(calls) || !json_array_size(calls)))
        bad = json_object_del(copy, "tool_calls");
    else if (!bad && calls)
        bad = json_object_set_new(copy, "tool_calls", calls_for(calls));
    if (!bad && json_is_null(json_object_get(copy, "reasoning_content")))
        bad = json_object_del(copy, "reasoning_content");
    if (!bad && !caps->developer && strcmp(role, "developer") == 0)
        bad = json_object_set_new(copy, "role", json_string("system"));
    if (!bad)
        return copy;
    json_decref(copy);
    return NULL;
}

/* A message's content as text; owned. */
static json_t *content_text(const json_t *m)
{
    json_t *const content = json_object_get(m, "content");
    return json_is_array(content) ? join_parts(content) : json_incref(content);
}

/* A copy of m whose content is head's text, between, m's text, after; NULL when memory is out. */
static json_t *join_messages(const struct chat_caps *caps, const json_t *m, const json_t *head,
                             const char *between, const char *after)
{
    struct buf b = BUF_INIT;
    json_t *const s = head ? content_text(head) : json_string("");
    json_t *const u = content_text(m);
    json_t *out = json_copy(json_unconst(m));
    buf_add(&b, json_string_value(s), s ? json_string_length(s) : 0);
    buf_adds(&b, between);
    buf_add(&b, json_string_value(u), u ? json_string_length(u) : 0);
    buf_adds(&b, after);
    json_t *const text = b.failed ? NULL : json_stringn_nocheck(buf_str(&b), b.n);
    if (!s || !u || !out || !text || json_object_set_new(out, "content", content_for(caps, text))) {
        json_decref(out);
        out = NULL;
    }
    json_decref(text);
    json_decref(s);
    json_decref(u);
    buf_release(&b);
    return out;
}

struct normal {
    json_t *messages;
    int32_t *index; /* [n] of each in the client's list */
    size_t n;
};

static void normal_release(struct normal *n)
{
    json_decref(n->messages);
    mem_free(n->index);
}

static bool is_role(const json_t *m, const char *role)
{
    const char *const r = json_string_value(json_object_get(m, "role"));
    return r && strcmp(r, role) == 0;
}

static bool set_role(json_t *m, const char *role)
{
    return m && !json_object_set_new(m, "role", json_string(role));
}

/* How a message is put into the one before it where the template has no place for it; *joined is owned
 * and NULL when it stays on its own.  False when memory is out.
 *
 * Later system messages go behind the user's text or the tool's result before them rather than to the
 * front: what stands before them was evaluated without them. */
static bool join_before(const struct chat_caps *caps, const json_t *before, size_t n_before,
                        json_t *m, json_t **joined)
{
    static const char open[] = "<system-reminder>\n", close[] = "\n</system-reminder>";
    *joined = NULL;
    if (!before)
        return true;
    if (n_before == 1 && !caps->system && is_role(before, "system") && is_role(m, "user")) {
        *joined = join_messages(caps, m, before, "\n\n", "");
        return *joined != NULL;
    }
    if (!is_role(m, "system") || caps->late_system)
        return true;
    if (is_role(before, "system") || is_role(before, "user") || is_role(before, "tool")) {
        const bool same = is_role(before, "system");
        char between[32];
        snprintf(between, sizeof between, "\n\n%s", same ? "" : open);
        *joined = join_messages(caps, m, before, between, same ? "" : close);
        json_t *const whole = *joined ? json_copy(json_unconst(before)) : NULL;
        if (!whole || json_object_set(whole, "content", json_object_get(*joined, "content"))) {
            json_decref(whole);
            return false;
        }
        json_decref(*joined);
        *joined = whole;
        return true;
    }
    json_t *const alone = join_messages(caps, m, NULL, open, close);
    const bool ok = set_role(alone, "user") && !json_object_update(m, alone);
    json_decref(alone);
    return ok;
}

static enum rc normalise(const struct chat_caps *caps, const json_t *messages, struct normal *out,
                         struct err *err)
{
    const size_t n = json_array_size(messages);
    size_t i;
    const json_t *m;
    if (!json_is_array(messages) || !n)
        return err_set(err, RC_ARG, "messages is empty or not a list");
    if (n > INT32_MAX / 16)
        return err_set(err, RC_ARG, "messages has %zu entries", n);
    *out = (struct normal){.messages = json_array()};
    out->index = mem_try_array(n, sizeof *out->index);
    if (!out->messages || !out->index)
        return no_memory(err);
    json_array_foreach(messages, i, m)
    {
        const enum rc rc = check_message(m, i, err);
        if (rc)
            return rc;
        json_t *const copy = message_for(caps, m);
        const size_t last = json_array_size(out->messages);
        const json_t *const before = last ? json_array_get(out->messages, last - 1) : NULL;
        json_t *joined;
        if (!copy || !join_before(caps, before, last, copy, &joined)) {
            json_decref(copy);
            return no_memory(err);
        }
        if (joined) {
            const bool user = is_role(copy, "user"); /* it is the message that counts */
            json_decref(copy);
            if (json_array_set_new(out->messages, last - 1, joined))
                return no_memory(err);
            if (user)
                out->index[last - 1] = (int32_t)i;
            continue;
        }
        if (json_array_append_new(out->messages, copy))
            return no_memory(err);
        out->index[out->n++] = (int32_t)i;
    }
    return RC_OK;
}

/* ---- sources and spans ---- */

#define SOURCE(message, part) (((uint32_t)((message) + 2) << 3) | (uint32_t)(part))
#define SOURCE_MESSAGE(id) ((int32_t)((id) >> 3) - 2)
#define SOURCE_PART(id) ((enum chat_part)((id)&7))

static size_t add_source(struct jinja_source *s, size_t n, const json_t *value, int32_t message,
                         enum chat_part part)
{
    if (!value)
        return n;
    s[n] = (struct jinja_source){value, SOURCE(message, part)};
    return n + 1;
}

static size_t list_sources(const struct normal *in, const json_t *tools, struct jinja_source *s)
{
    size_t n = add_source(s, 0, tools, -1, CHAT_TOOLS), i;
    const json_t *m;
    json_array_foreach(in->messages, i, m)
    {
        const int32_t at = (int32_t)i;
        n = add_source(s, n, m, at, CHAT_MESSAGE);
        n = add_source(s, n, json_object_get(m, "content"), at, CHAT_CONTENT);
        n = add_source(s, n, json_object_get(m, "reasoning_content"), at, CHAT_THINKING);
        n = add_source(s, n, json_object_get(m, "tool_calls"), at, CHAT_CALLS);
    }
    return n;
}

struct extent {
    size_t begin, end; /* end 0: nothing */
};

static void widen(struct extent *e, size_t begin, size_t end)
{
    if (!e->end)
        *e = (struct extent){begin, end};
    e->begin = MIN(e->begin, begin);
    e->end = MAX(e->end, end);
}

#define N_PARTS 4 /* up to CHAT_CALLS */

/* What the marks say of one message. */
struct trace {
    struct extent loop; /* what loops over it wrote */
    struct extent any;  /* all that came from it */
    struct extent part[N_PARTS];
};

static bool add_span(struct chat_prompt *p, enum chat_part part, int32_t message, struct extent e)
{
    if (e.begin >= e.end)
        return true;
    if (!mem_grow(&p->spans, &p->spans_cap, p->n_spans + 1, sizeof *p->spans))
        return false;
    p->spans[p->n_spans++] =
        (struct chat_span){.part = part, .message = message, .begin = e.begin, .end = e.end};
    return true;
}

static int by_begin(const void *a, const void *b)
{
    const struct chat_span *const x = a, *const y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    if (x->end != y->end)
        return x->end > y->end ? -1 : 1;
    return (int)x->part - (int)y->part;
}

/* Messages that no loop ran over reach from the end of what precedes their text to the beginning of
 * what follows. */
static void place_loose(struct trace *t, size_t n, size_t text_n, bool prompt)
{
    size_t before = 0;
    for (size_t i = 0; i < n; i++) {
        if (!t[i].loop.end && t[i].any.end) {
            size_t after = 0;
            for (size_t k = i + 1; k < n && !after; k++)
                after = t[k].loop.end ? t[k].loop.begin : t[k].any.end ? t[i].any.end : 0;
            if (!after)
                after = prompt ? t[i].any.end : text_n;
            t[i].loop = (struct extent){MIN(before, t[i].any.begin), MAX(after, t[i].any.end)};
        }
        before = MAX(before, t[i].loop.end);
    }
}

static bool chat_spans(const struct jinja_result *r, const struct normal *in,
                       const struct chat_input *input, struct chat_prompt *out)
{
    const size_t n = in->n;
    struct trace *const t = mem_try_array(n + 1, sizeof *t); /* the last: tools */
    if (!t)
        return false;
    for (size_t i = 0; i < r->n_marks; i++) {
        const struct jinja_mark m = r->marks[i];
        const uint32_t id = m.source & ~JINJA_LOOP;
        const int32_t message = SOURCE_MESSAGE(id);
        struct trace *const x = &t[message < 0 ? n : (size_t)message];
        const enum chat_part part = SOURCE_PART(id);
        /* the longest: a loop of a helper may look at the message as well */
        if (part == CHAT_MESSAGE && (m.source & JINJA_LOOP) &&
            m.end - m.begin > x->loop.end - x->loop.begin)
            x->loop = (struct extent){m.begin, m.end};
        widen(&x->any, m.begin, m.end);
        if (part != CHAT_MESSAGE && part <= CHAT_CALLS)
            widen(&x->part[part], m.begin, m.end);
    }
    const bool prompt = input->add_generation_prompt && !input->continue_last;
    place_loose(t, n, r->text.n, prompt);
    bool ok = add_span(out, CHAT_TOOLS, -1, t[n].any);
    size_t last = 0;
    for (size_t i = 0; ok && i < n; i++) {
        ok = add_span(out, CHAT_MESSAGE, in->index[i], t[i].loop);
        for (unsigned part = CHAT_CONTENT; ok && part < N_PARTS; part++)
            ok = add_span(out, (enum chat_part)part, in->index[i], t[i].part[part]);
        last = MAX(last, t[i].loop.end);
    }
    if (prompt)
        ok = ok && add_span(out, CHAT_PROMPT, -1, (struct extent){last, r->text.n});
    mem_free(t);
    if (ok && out->n_spans)
        qsort(out->spans, out->n_spans, sizeof *out->spans, by_begin);
    return ok;
}

/* ---- rendering ---- */

/* The template's variables; owned. */
static json_t *variables(const struct chat_template *t, const struct chat_input *in,
                         const json_t *messages, bool generation_prompt)
{
    json_t *const v = json_object();
    const char *key;
    json_t *x;
    int bad = json_object_set_new(v, "tools", json_null()) ||
              json_object_set_new(v, "documents", json_null()) ||
              json_object_set_new(v, "bos_token", json_string(t->bos)) ||
              json_object_set_new(v, "eos_token", json_string(t->eos));
    json_object_foreach(json_unconst(in->kwargs), key, x) bad |= json_object_set(v, key, x);
    if (in->tools && json_array_size(in->tools))
        bad |= json_object_set(v, "tools", json_unconst(in->tools));
    bad |= json_object_set(v, "messages", json_unconst(messages)) ||
           json_object_set_new(v, "add_generation_prompt", json_boolean(generation_prompt));
    if (!bad)
        return v;
    json_decref(v);
    return NULL;
}

/* Cuts the text behind the last message's content, so that a reply goes on in it. */
static enum rc cut_to_continue(struct jinja_result *r, size_t last, struct err *err)
{
    size_t end = 0, kept = 0;
    for (size_t i = 0; i < r->n_marks; i++)
        if (r->marks[i].source == SOURCE(last, CHAT_CONTENT))
            end = MAX(end, r->marks[i].end);
    if (!end)
        return err_set(err, RC_ARG,
                       "the last message cannot be continued: the chat template does "
                       "not show its content");
    buf_truncate(&r->text, end);
    for (size_t i = 0; i < r->n_marks; i++) {
        struct jinja_mark m = r->marks[i];
        m.end = MIN(m.end, end);
        if (m.begin < m.end)
            r->marks[kept++] = m;
    }
    r->n_marks = kept;
    return RC_OK;
}

/* Does the text end inside a <think> block? */
static bool ends_thinking(struct str s)
{
    const struct str open = str_of("<think>"), close = str_of("</think>");
    for (size_t i = s.n; i-- > 0;) {
        const struct str rest = {s.p + i, s.n - i};
        if (str_starts(rest, close))
            return false;
        if (str_starts(rest, open))
            return true;
        if (s.n - i > 4096) /* an open one stands at the very end of a generation prompt */
            return false;
    }
    return false;
}

enum rc chat_render(const struct chat_template *t, const struct chat_input *in,
                    struct chat_prompt *out, struct err *err)
{
    struct normal normal = {0};
    struct jinja_result r = {0};
    struct jinja_source *sources = NULL;
    json_t *vars = NULL;
    chat_prompt_release(out);
    enum rc rc = normalise(&t->caps, in->messages, &normal, err);
    if (rc)
        goto out;
    if (in->continue_last && !is_role(json_array_get(normal.messages, normal.n - 1), "assistant")) {
        rc = err_set(err, RC_ARG, "only an assistant's message can be continued");
        goto out;
    }
    vars = variables(t, in, normal.messages, in->add_generation_prompt && !in->continue_last);
    sources = mem_try_array(4 * normal.n + 1, sizeof *sources);
    if (!vars || !sources) {
        rc = no_memory(err);
        goto out;
    }
    const struct jinja_opts opts = {
        .sources = sources, .n_sources = list_sources(&normal, in->tools, sources), .now = in->now};
    rc = jinja_render(t->jinja, vars, &opts, &r, err);
    if (rc) {
        (void)err_wrap(err, rc, "chat template");
        goto out;
    }
    if (in->continue_last)
        rc = cut_to_continue(&r, normal.n - 1, err);
    if (!rc && !chat_spans(&r, &normal, in, out))
        rc = no_memory(err);
    if (!rc) {
        out->text = r.text;
        r.text = (struct buf)BUF_INIT;
        out->thinking = ends_thinking((struct str){out->text.p, out->text.n});
    }
out:
    if (rc)
        chat_prompt_release(out);
    jinja_result_release(&r);
    mem_free(sources);
    json_decref(vars);
    normal_release(&normal);
    return rc;
}

enum rc chat_splice(const struct vocab *v, struct chat_prompt *p, size_t begin, size_t end,
                    struct str head, const token *tokens, size_t n, struct err *err)
{
    const size_t first = p->verbatim_tokens.n;
    struct buf whole = BUF_INIT;
    buf_add(&whole, p->text.p, begin);
    buf_add(&whole, head.p, head.n);
    const size_t at = whole.n;
    bool ok = mem_grow(&p->verbatims, &p->verbatims_cap, p->n_verbatims + 1, sizeof *p->verbatims);
    for (size_t i = 0; i < n && ok; i++) {
        const struct str s = vocab_bytes(v, tokens[i], true);
        buf_add(&whole, s.p, s.n);
        ok = tokens_add(&p->verbatim_tokens, tokens[i]);
    }
    const size_t new_end = whole.n;
    buf_add(&whole, p->text.p + end, p->text.n - end);
    if (!ok || whole.failed) {
        buf_release(&whole);
        p->verbatim_tokens.n = first;
        return no_memory(err);
    }
    for (size_t i = 0; i < p->n_spans; i++) {
        struct chat_span *const s = &p->spans[i];
        /* what began or ended inside has no place of its own any more */
        s->begin = s->begin >= end ? s->begin - end + new_end : MIN(s->begin, begin);
        s->end = s->end >= end ? s->end - end + new_end : s->end > begin ? new_end : s->end;
    }
    p->verbatims[p->n_verbatims++] =
        (struct chat_verbatim){.begin = at, .end = new_end, .first = first, .n = n};
    buf_release(&p->text);
    p->text = whole;
    return RC_OK;
}

/* The text between the verbatim stretches cut into tokens, these put between. */
static enum rc encode(const struct vocab *v, const struct chat_prompt *p, struct bpe_opts o,
                      struct tokens *out, struct err *err)
{
    size_t at = 0;
    for (size_t k = 0; k <= p->n_verbatims; k++) {
        const struct chat_verbatim *const verbatim = k < p->n_verbatims ? &p->verbatims[k] : NULL;
        const size_t end = verbatim ? verbatim->begin : p->text.n;
        const enum rc rc = bpe_encode(v, (struct str){p->text.p + at, end - at}, &o, out, err);
        if (rc)
            return rc;
        o.add_special = false; /* at the beginning only */
        if (verbatim && !tokens_append(out, p->verbatim_tokens.v + verbatim->first, verbatim->n))
            return no_memory(err);
        at = verbatim ? verbatim->end : end;
    }
    return RC_OK;
}

enum rc chat_tokenize(const struct vocab *v, struct chat_prompt *p, bool bos, struct tokens *out,
                      struct err *err)
{
    const struct str text = {p->text.p, p->text.n};
    const bool has_bos = vocab_bos(v) >= 0 && str_starts(text, vocab_bytes(v, vocab_bos(v), true));
    const struct bpe_opts o = {.add_special = bos && !has_bos, .parse_special = true};
    const size_t first = out->n;
    const enum rc rc = encode(v, p, o, out, err);
    if (rc) {
        out->n = first;
        return rc;
    }
    const size_t n = out->n - first;
    uint32_t *const ends = mem_try_array(n + 1, sizeof *ends); /* byte where token i ends */
    if (!ends) {
        out->n = first;
        return no_memory(err);
    }
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        const bool extra = i == 0 && o.add_special && vocab_add_bos(v) && vocab_bos(v) >= 0;
        at += extra ? 0 : vocab_bytes(v, out->v[first + i], true).n;
        ends[i] = (uint32_t)at;
    }
    for (size_t i = 0; i < p->n_spans; i++) {
        struct chat_span *const s = &p->spans[i];
        for (int side = 0; side < 2; side++) {
            const size_t byte = side ? s->end : s->begin;
            size_t lo = 0, hi = n; /* tokens [0, lo) end at or before byte */
            while (lo < hi) {
                const size_t mid = (lo + hi) / 2;
                if (ends[mid] <= byte)
                    lo = mid + 1;
                else
                    hi = mid;
            }
            *(side ? &s->pos_end : &s->pos) = (uint32_t)lo;
        }
    }
    mem_free(ends);
    return RC_OK;
}

/* ---- probes ---- */

/* Renders messages given as JSON; an empty string when that fails. */
static struct buf probe(struct chat_template *t, const char *messages, const char *tools,
                        const char *kwargs, bool generation)
{
    struct jinja_result r = {0};
    json_t *const m = json_loads(messages, 0, NULL);
    json_t *const tl = tools ? json_loads(tools, 0, NULL) : NULL;
    json_t *const kw = kwargs ? json_loads(kwargs, 0, NULL) : NULL;
    const struct chat_input in = {.tools = tl, .kwargs = kw};
    json_t *const vars = variables(t, &in, m, generation);
    if (vars && jinja_render(t->jinja, vars, &(struct jinja_opts){.max_steps = 1000000}, &r, NULL))
        jinja_result_release(&r);
    json_decref(vars);
    json_decref(m);
    json_decref(tl);
    json_decref(kw);
    return r.text;
}

/* Does the rendering hold the text? */
static bool shows(struct chat_template *t, const char *messages, const char *tools,
                  const char *text)
{
    struct buf b = probe(t, messages, tools, NULL, false);
    const bool yes = strstr(buf_str(&b), text) != NULL;
    buf_release(&b);
    return yes;
}

#define USER "{\"role\":\"user\",\"content\":\"q\"}"
#define USER_PARTS "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"q\"}]}"
#define CALL                                                                                       \
    "{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"id\":\"call_0001\",\"type\":"     \
    "\"function\",\"function\":{\"name\":\"needle\",\"arguments\":{\"a\":\"b\"}}}]}"
#define TOOL                                                                                       \
    "[{\"type\":\"function\",\"function\":{\"name\":\"needle\",\"description\":\"d\","             \
    "\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\"}},"            \
    "\"required\":[\"a\"]}}}]"

static void find_caps(struct chat_template *t)
{
    struct chat_caps *const c = &t->caps;
    c->string_content = shows(t, "[{\"role\":\"user\",\"content\":\"needle\"}]", NULL, "needle");
    struct buf b = probe(t,
                         "[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":"
                         "\"needle\"}]}]",
                         NULL, NULL, false);
    /* shown as text, not as the list's own form */
    c->parts = strstr(buf_str(&b), "needle") && !strstr(buf_str(&b), "'needle'") &&
               !strstr(buf_str(&b), "\"needle\"");
    buf_release(&b);
    if (!c->parts)
        c->string_content = true;
    const char *const user = c->string_content ? USER : USER_PARTS;
    struct buf m = BUF_INIT;
#define PROBE(...) (buf_clear(&m), buf_addf(&m, __VA_ARGS__), buf_str(&m))
    static const char role[] = "[{\"role\":\"%s\",\"content\":%s},%s]";
    const char *const needle =
        c->string_content ? "\"needle\"" : "[{\"type\":\"text\",\"text\":\"needle\"}]";
    c->system = shows(t, PROBE(role, "system", needle, user), NULL, "needle");
    c->developer = shows(t, PROBE(role, "developer", needle, user), NULL, "needle");
    c->late_system = shows(t,
                           PROBE("[%s,{\"role\":\"assistant\",\"content\":%s},"
                                 "{\"role\":\"system\",\"content\":%s},%s]",
                                 user, c->string_content ? "\"a\"" : "[]", needle, user),
                           NULL, "needle");
    c->tools = shows(t, PROBE("[%s]", user), TOOL, "needle");
    c->tool_calls = shows(t, PROBE("[%s," CALL "]", user), TOOL, "needle");
    c->tool_results = shows(t,
                            PROBE("[%s," CALL ",{\"role\":\"tool\",\"tool_call_id\":\"call_0001\","
                                  "\"name\":\"needle\",\"content\":\"result\"}]",
                                  user),
                            NULL, "result");
    c->reasoning = shows(t,
                         PROBE("[%s,{\"role\":\"assistant\",\"content\":\"a\","
                               "\"reasoning_content\":\"needle\"}]",
                               user),
                         NULL, "needle");
    struct buf plain = probe(t, PROBE("[%s]", user), NULL, NULL, true);
    struct buf off = probe(t, PROBE("[%s]", user), NULL, "{\"enable_thinking\":false}", true);
    c->thinks = ends_thinking((struct str){buf_str(&plain), plain.n}) ||
                strcmp(buf_str(&plain), buf_str(&off)) != 0;
    buf_release(&plain);
    buf_release(&off);
    buf_release(&m);
#undef PROBE
}

static char *token_text(const struct vocab *v, token id)
{
    struct str s = {NULL, 0};
    if (v && id >= 0)
        s = vocab_text(v, id);
    char *const p = mem_try(s.n + 1);
    if (p) {
        if (s.n)
            memcpy(p, s.p, s.n);
        p[s.n] = 0;
    }
    return p;
}

enum rc chat_template_new(struct str source, const struct vocab *v, struct chat_template **out,
                          struct err *err)
{
    struct chat_template *t = mem_zalloc(sizeof *t);
    enum rc rc = jinja_compile(source, &t->jinja, err);
    if (rc)
        goto out;
    t->bos = token_text(v, v ? vocab_bos(v) : -1);
    t->eos = token_text(v, v ? vocab_eos(v) : -1);
    t->source = mem_try(source.n + 1);
    if (!t->bos || !t->eos || !t->source) {
        rc = no_memory(err);
        goto out;
    }
    memcpy(t->source, source.p, source.n);
    t->source[source.n] = 0;
    find_caps(t);
    *out = t;
    t = NULL;
out:
    chat_template_free(t);
    return rc;
}

void chat_template_free(struct chat_template *t)
{
    if (!t)
        return;
    jinja_free(t->jinja);
    mem_free(t->source);
    mem_free(t->bos);
    mem_free(t->eos);
    mem_free(t);
}

const struct chat_caps *chat_template_caps(const struct chat_template *t)
{
    return &t->caps;
}

struct str chat_template_source(const struct chat_template *t)
{
    return str_of(t->source);
}
