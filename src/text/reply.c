/* reply.c - a state machine over what has come in and is not settled yet.
 *
 *   TEXT -- tag --> HEAD -- { or [ --------> JSON -- whole value --> AFTER --> TEXT
 *    ^               |                        ^                        ^
 *    |               |-- <function= --> NAME -+-> BODY <--> KEY        | </function>
 *    |               |                   |         ^---- VALUE <-'     |
 *    '--- no call ---+-------------------'         '-------------------'
 *
 * in holds the unsettled input.  In HEAD, JSON and NAME it begins with white space and the tag, so that
 * all of it can still come out as text.  From BODY on the call has been announced and is completed whatever comes,
 * unless the text is cut off.
 *
 * White space is held back in TEXT until something follows it: before a call or </think> it is the
 * format's, not the reply's.
 */
#include "text/reply.h"

#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/json.h"
#include "base/mem.h"
#include "text/tools.h"

enum state { TEXT, HEAD, JSON, NAME, BODY, KEY, VALUE, AFTER };

enum tag { TAG_NONE, TAG_THINK, TAG_THINK_END, TAG_CALL, TAG_FUNCTION };

static const struct {
    const char *text;
    enum tag tag;
    bool generic; /* for REPLY_GENERIC alone */
} tags[] = {
    {"<think>", TAG_THINK, false},     {"</think>", TAG_THINK_END, false},
    {"<tool_call>", TAG_CALL, false},  {"<function=", TAG_FUNCTION, false},
    {"[TOOL_CALLS]", TAG_CALL, true},  {"<|python_tag|>", TAG_CALL, true},
    {"<|tool_call|>", TAG_CALL, true},
};

#define FUNCTION "<function="
#define PARAMETER "<parameter="
#define NEXT_LINE_PARAMETER "\n<parameter="
#define MAX_NAME 128 /* bytes of a function's or parameter's name */

struct reply {
    struct reply_opts o;
    reply_sink *sink;
    void *ctx;
    struct buf in;
    size_t scan; /* bytes of in that need not be looked at again */
    enum state state;
    bool finished, nomem;
    bool cut; /* finished, but not by the model */

    bool reasoning;   /* TEXT is reasoning */
    bool at_start;    /* newlines that come next belong to the tag before */
    bool line_start;  /* nothing has come out since the region began */
    bool any_content; /* some has come out */

    size_t tag_n;   /* HEAD, JSON, NAME: what is text of in if this is no call: the tag */
    size_t at;      /* NAME: of <function=; JSON: of the value */
    bool tagged;    /* inside <tool_call> or the like, which is not closed yet */
    bool args_only; /* JSON: the value is the arguments of a call that has begun */

    struct json_scan {
        size_t depth;
        bool in_string, escaped;
    } json;

    uint32_t n_calls, n_ended;
    bool dropping;        /* this call is beyond max_calls */
    const json_t *schema; /* of the current function's parameters, or NULL */
    json_t *seen;         /* parameters that came, as keys */
    const json_t *value_schema;
    bool skipping;  /* VALUE: of a parameter that came before */
    bool streaming; /* VALUE: a string that is passed on as it comes */
    bool begun;     /* VALUE: the newline behind its tag is dealt with */
};

enum reply_family reply_family_of(struct str source)
{
    const bool xml = str_find(source, str_of(FUNCTION), 0) >= 0 &&
                     str_find(source, str_of("<parameter"), 0) >= 0;
    if (xml)
        return REPLY_QWEN_XML;
    return str_find(source, str_of("<tool_call>"), 0) >= 0 ? REPLY_HERMES : REPLY_GENERIC;
}

static struct str pending(const struct reply *r)
{
    return (struct str){r->in.p ? r->in.p : "", r->in.n};
}

static struct str from(struct str s, size_t i)
{
    return (struct str){s.p + i, s.n - i};
}

static void eat(struct reply *r, size_t n)
{
    buf_eat(&r->in, n);
    r->scan = 0;
}

static void emit(struct reply *r, enum reply_kind kind, struct str s)
{
    if (kind >= REPLY_CALL && r->dropping)
        return;
    const struct reply_event e = {kind, r->n_calls ? r->n_calls - 1 : 0, s};
    r->sink(r->ctx, &e);
}

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static size_t skip_space(struct str s, size_t i)
{
    while (i < s.n && is_space(s.p[i]))
        i++;
    return i;
}

/* ---- text ---- */

/* Passes the first n bytes of in on as text. */
static void put_text(struct reply *r, size_t n)
{
    size_t begin = 0;
    while (r->at_start && begin < n && r->in.p[begin] == '\n')
        begin++;
    if (begin < n) {
        r->at_start = r->line_start = false;
        r->any_content |= !r->reasoning;
        emit(r, r->reasoning ? REPLY_REASONING : REPLY_CONTENT,
             (struct str){r->in.p + begin, n - begin});
    }
    eat(r, n);
}

static bool tag_counts(const struct reply *r, size_t t)
{
    if (tags[t].tag == TAG_THINK)
        return !r->o.keep_thinking && !r->reasoning && !r->any_content;
    if (tags[t].tag == TAG_THINK_END)
        return r->reasoning;
    return r->o.tools && (!tags[t].generic || r->o.family == REPLY_GENERIC);
}

/* <think> comes first.  Inside reasoning a call has its tag and begins on a line of its own: models
 * also think about calls. */
static bool place_counts(const struct reply *r, struct str s, size_t at, enum tag tag)
{
    if (tag == TAG_THINK)
        return skip_space(s, 0) >= at;
    if (!r->reasoning || tag == TAG_THINK_END)
        return true;
    if (tag == TAG_FUNCTION)
        return false;
    while (at && (s.p[at - 1] == ' ' || s.p[at - 1] == '\t'))
        at--;
    return at ? s.p[at - 1] == '\n' : r->line_start;
}

/* The first tag from r->scan on; *whole: all of it is there, else the input ends in what may become
 * one.  *at is the input's end when there is none. */
static enum tag find_tag(const struct reply *r, struct str s, size_t *at, size_t *n, bool *whole)
{
    for (size_t i = r->scan; i < s.n; i++) {
        if (s.p[i] != '<' && s.p[i] != '[')
            continue;
        for (size_t t = 0; t < COUNT_OF(tags); t++) {
            const struct str text = str_of(tags[t].text), rest = from(s, i);
            *whole = str_starts(rest, text);
            if ((!*whole && !str_starts(text, rest)) || !tag_counts(r, t) ||
                !place_counts(r, s, i, tags[t].tag))
                continue;
            *at = i;
            *n = text.n;
            return tags[t].tag;
        }
    }
    *at = s.n;
    *whole = false;
    return TAG_NONE;
}

static void begin_json(struct reply *r, size_t tag_n, size_t at, bool args_only)
{
    r->state = JSON;
    r->tag_n = tag_n;
    r->at = r->scan = at;
    r->args_only = args_only;
    r->json = (struct json_scan){0};
}

static bool finish_text(struct reply *r)
{
    const struct str s = pending(r);
    size_t end = s.n;
    while (end && is_space(s.p[end - 1]))
        end--;
    /* White space at the end is the content's own, but nobody's behind reasoning or a tag. */
    if (!r->reasoning && (end || !r->at_start))
        end = s.n;
    put_text(r, end);
    eat(r, r->in.n);
    return false;
}

static bool step_text(struct reply *r)
{
    const struct str s = pending(r);
    size_t at, n = 0;
    bool whole;
    const enum tag tag = find_tag(r, s, &at, &n, &whole);
    if (r->o.tools && r->o.family == REPLY_GENERIC && !r->reasoning && !r->any_content &&
        !r->n_calls) { /* the whole reply may be a call */
        const size_t i = skip_space(s, 0);
        if (i == s.n && !r->finished)
            return false;
        if (i < at && (s.p[i] == '{' || s.p[i] == '[')) {
            r->tagged = false;
            begin_json(r, i + 1, i, false);
            return true;
        }
    }
    size_t text = at; /* without the white space before the tag or the end */
    while (text > r->scan && is_space(s.p[text - 1]))
        text--;
    if (text == r->scan) /* what was looked at before is all white space */
        text = 0;
    if (!whole) {
        if (r->finished)
            return finish_text(r);
        if (text)
            put_text(r, text);
        r->scan = at - text;
        return false;
    }
    if (text)
        put_text(r, text);
    at -= text; /* white space, then the tag */
    if (tag == TAG_THINK || tag == TAG_THINK_END) {
        eat(r, at + n);
        r->reasoning = tag == TAG_THINK;
        r->at_start = r->line_start = true;
    } else {
        r->state = tag == TAG_FUNCTION ? NAME : HEAD;
        r->tagged = tag != TAG_FUNCTION;
        r->tag_n = at + n;
        r->at = at;
    }
    return true;
}

/* It was no call: the tag is text, and what follows is looked at anew. */
static bool no_call(struct reply *r)
{
    r->state = TEXT;
    put_text(r, r->tag_n);
    return true;
}

/* ---- calls ---- */

static void begin_call(struct reply *r, struct str name, const json_t *schema)
{
    r->dropping = r->o.max_calls && r->n_calls >= r->o.max_calls;
    r->n_calls += !r->dropping;
    r->schema = schema;
    json_object_clear(r->seen);
    emit(r, REPLY_CALL, name);
}

static void end_call(struct reply *r)
{
    emit(r, REPLY_CALL_END, (struct str){NULL, 0});
    r->n_ended += !r->dropping;
    r->dropping = false;
    r->state = AFTER;
    r->at_start = true;
}

/* May this be a call's name?  In doubt (in reasoning, without a tag) only if there is such a tool. */
static bool name_counts(const struct reply *r, struct str name, const json_t **schema)
{
    bool known;
    *schema = tools_schema(r->o.tools, name, &known);
    return name.n && name.n <= MAX_NAME && (known || (!r->reasoning && r->tagged));
}

static bool step_head(struct reply *r)
{
    const struct str s = pending(r), function = str_of(FUNCTION);
    const size_t i = skip_space(s, r->tag_n);
    const struct str rest = from(s, i);
    if (rest.n && (rest.p[0] == '{' || rest.p[0] == '[')) {
        begin_json(r, r->tag_n, i, false);
        return true;
    }
    if (rest.n && str_starts(rest, function)) {
        r->state = NAME;
        r->at = i;
        return true;
    }
    if (str_starts(function, rest) && !r->finished) /* so far, or nothing yet */
        return false;
    return no_call(r);
}

/* The text was cut off inside a call that has begun: its arguments stay open. */
static bool cut_call(struct reply *r)
{
    if (!json_object_size(r->seen))
        emit(r, REPLY_ARGS, str_of("{"));
    eat(r, r->in.n);
    return false;
}

/* ---- JSON ---- */

static struct str json_text(const json_t *v)
{
    return (struct str){json_string_value(v), json_string_length(v)};
}

/* open: without the bracket that closes it. */
static void emit_json(struct reply *r, const json_t *v, bool open)
{
    char *const text = json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY);
    struct str s = text ? str_of(text) : (struct str){NULL, 0};
    r->nomem |= !text;
    s.n -= s.n && open;
    emit(r, REPLY_ARGS, s);
    free(text);
}

/* Name and arguments of {"name": ..., "arguments": ...} and its kin; false when it is none.  *args is
 * owned. */
static bool read_call(const struct reply *r, const json_t *v, const json_t **name, json_t **args,
                      const json_t **schema)
{
    const json_t *const fn = json_object_get(v, "function");
    const json_t *const in = json_is_object(fn) ? fn : v;
    const json_t *given = json_object_get(in, "arguments");
    if (!given)
        given = json_object_get(in, "parameters");
    *name = json_is_string(fn) ? fn : json_object_get(in, "name");
    *args = NULL;
    if (!json_is_string(*name) || !name_counts(r, json_text(*name), schema))
        return false;
    if (json_is_string(given))
        *args = json_read_lenient(json_text(given));
    else
        *args = !given || json_is_null(given) ? json_object() : json_deep_copy(given);
    if (json_is_object(*args))
        return true;
    json_decref(*args);
    *args = NULL;
    return false;
}

/* In a call that was cut off: has something come behind its name? */
static bool name_is_whole(json_t *call)
{
    json_t *const fn = json_object_get(call, "function");
    json_t *const in = json_is_object(fn) ? fn : call;
    const char *last = "";
    for (void *i = json_object_iter(in); i; i = json_object_iter_next(in, i))
        last = json_object_iter_key(i);
    return strcmp(last, json_is_string(fn) ? "function" : "name") != 0;
}

/* The value of one call or a list of them; false when any is none.  cut: the last was cut off. */
static bool take_calls(struct reply *r, json_t *v, bool cut)
{
    const bool is_list = json_is_array(v);
    size_t n = is_list ? json_array_size(v) : 1;
    const json_t *name, *schema;
    json_t *args;
    if (cut && n && !name_is_whole(is_list ? json_array_get(v, n - 1) : v)) {
        cut = false;
        n--;
    }
    for (size_t i = 0; i < n; i++) {
        if (!read_call(r, is_list ? json_array_get(v, i) : v, &name, &args, &schema))
            return false;
        json_decref(args);
    }
    for (size_t i = 0; i < n; i++) {
        if (!read_call(r, is_list ? json_array_get(v, i) : v, &name, &args, &schema))
            return i > 0;
        if (schema)
            args = value_take_coerced(args, schema, schema);
        const bool open = cut && i + 1 == n;
        begin_call(r, json_text(name), schema);
        emit_json(r, args, open);
        if (!open)
            end_call(r);
        json_decref(args);
    }
    return n > 0;
}

/* The value in[at, end), which is whole or as much as there will be; cut: which was cut off. */
static bool take_json(struct reply *r, size_t end, bool cut)
{
    json_t *v = json_read_lenient((struct str){r->in.p + r->at, end - r->at});
    bool more = !cut;
    if (!r->args_only && v && take_calls(r, v, cut)) {
        eat(r, end);
    } else if (!r->args_only) {
        more = no_call(r);
    } else if (json_is_object(v)) {
        if (r->schema)
            v = value_take_coerced(v, r->schema, r->schema);
        emit_json(r, v, cut);
        if (!cut)
            end_call(r);
        eat(r, end);
    } else if (cut) {
        more = cut_call(r);
    } else { /* not arguments: on with the call */
        r->state = BODY;
        eat(r, r->at + 1);
    }
    json_decref(v);
    return more;
}

static bool step_json(struct reply *r)
{
    static const char *const closers[] = {"</tool_call>", "</function>"};
    const struct str s = pending(r);
    struct json_scan *const j = &r->json;
    for (; r->scan < s.n; r->scan++) {
        const char c = s.p[r->scan];
        if (j->in_string) {
            if (!j->escaped && c == '"')
                j->in_string = false;
            j->escaped = !j->escaped && c == '\\';
            continue;
        }
        if (c == '"')
            j->in_string = true;
        j->depth += c == '{' || c == '[';
        if ((c == '}' || c == ']') && --j->depth == 0)
            return take_json(r, r->scan + 1, false);
        for (size_t k = 0; c == '<' && k < COUNT_OF(closers); k++) { /* brackets are missing */
            const struct str close = str_of(closers[k]), rest = from(s, r->scan);
            if (str_starts(rest, close))
                return take_json(r, r->scan, false);
            if (str_starts(close, rest) && !r->finished)
                return false;
        }
    }
    return r->finished && take_json(r, s.n, r->cut);
}

/* ---- XML ---- */

static struct str unquoted(struct str s)
{
    while (s.n && strchr(" \t\"'", s.p[0])) {
        s.p++;
        s.n--;
    }
    while (s.n && strchr(" \t\"'", s.p[s.n - 1]))
        s.n--;
    return s;
}

/* The name from i up to >: 1 when it is there, 0 when it may still come, -1 when this is none. */
static int read_name(const struct reply *r, struct str s, size_t i, struct str *name, size_t *end)
{
    for (size_t k = i; k < s.n && k - i <= MAX_NAME; k++) {
        if (s.p[k] == '\n' || s.p[k] == '<')
            return -1;
        if (s.p[k] == '>') {
            *name = unquoted((struct str){s.p + i, k - i});
            *end = k + 1;
            return name->n ? 1 : -1;
        }
    }
    return s.n - MIN(i, s.n) > MAX_NAME || r->finished ? -1 : 0;
}

static bool step_name(struct reply *r)
{
    const struct str s = pending(r);
    struct str name;
    size_t end;
    const json_t *schema;
    const int found = read_name(r, s, r->at + strlen(FUNCTION), &name, &end);
    if (found == 0)
        return false;
    if (found < 0 || !name_counts(r, name, &schema))
        return no_call(r);
    begin_call(r, name, schema);
    eat(r, end);
    r->state = BODY;
    return true;
}

/* The } that closes the arguments, behind a { where there was no parameter. */
static void end_params(struct reply *r)
{
    emit(r, REPLY_ARGS, str_of(json_object_size(r->seen) ? "}" : "{}"));
    end_call(r);
}

static bool step_body(struct reply *r)
{
    static const struct {
        const char *text;
        enum state next;
        bool keep; /* for the next state to see */
    } marks[] = {
        {PARAMETER, KEY, true},        {"</function>", AFTER, false},
        {"</tool_call>", AFTER, true}, /* </function> is missing */
        {"<tool_call>", AFTER, true},  {FUNCTION, AFTER, true},
    };
    eat(r, skip_space(pending(r), 0));
    const struct str s = pending(r);
    bool partial = false;
    for (size_t i = 0; s.n && i < COUNT_OF(marks); i++) {
        const struct str text = str_of(marks[i].text);
        partial |= str_starts(text, s);
        if (!str_starts(s, text))
            continue;
        if (marks[i].next == KEY)
            r->state = KEY;
        else
            end_params(r);
        if (!marks[i].keep)
            eat(r, text.n);
        return true;
    }
    if (s.n && s.p[0] == '{' && !json_object_size(r->seen)) {
        begin_json(r, 0, 0, true);
        return true;
    }
    if (!s.n || partial) {
        if (r->cut)
            return cut_call(r);
        if (r->finished) {
            eat(r, s.n);
            end_params(r);
        }
        return r->finished;
    }
    eat(r, 1); /* nothing that belongs here */
    return true;
}

/* The parameter's name in JSON, with what separates it. */
static void emit_key(struct reply *r, struct str key)
{
    json_t *const k = json_stringn_nocheck(key.p, key.n);
    char *const text = k ? json_dumps(k, JSON_ENCODE_ANY) : NULL;
    r->nomem |= !text;
    emit(r, REPLY_ARGS, str_of(json_object_size(r->seen) ? "," : "{"));
    emit(r, REPLY_ARGS, str_of(text ? text : "\"\""));
    emit(r, REPLY_ARGS, str_of(":"));
    free(text);
    json_decref(k);
}

static bool step_key(struct reply *r)
{
    const struct str s = pending(r);
    struct str key;
    size_t end;
    const int found = read_name(r, s, strlen(PARAMETER), &key, &end);
    if (found == 0)
        return false;
    if (found < 0 && r->cut && !memchr(s.p, '>', s.n))
        return cut_call(r);
    if (found < 0) {
        eat(r, MIN(strlen(PARAMETER), s.n));
        r->state = BODY;
        return true;
    }
    char name[MAX_NAME + 1];
    memcpy(name, key.p, key.n);
    name[key.n] = 0;
    r->skipping = json_object_get(r->seen, name) != NULL;
    r->value_schema = schema_property(r->schema, r->schema, name);
    r->streaming =
        !r->skipping && r->value_schema && schema_kinds(r->value_schema, r->schema) == KIND_STRING;
    r->begun = false;
    if (!r->skipping) {
        emit_key(r, key);
        r->nomem |= json_object_set_new_nocheck(r->seen, name, json_true()) != 0;
        if (r->streaming)
            emit(r, REPLY_ARGS, str_of("\""));
    }
    eat(r, end);
    r->state = VALUE;
    return true;
}

/* Text inside a JSON string. */
static void emit_escaped(struct reply *r, struct str s)
{
    struct buf b = BUF_INIT;
    for (size_t i = 0; i < s.n; i++) {
        static const char plain[] = "\"\\\b\f\n\r\t", shown[] = "\"\\bfnrt";
        const char c = s.p[i], *const e = c ? strchr(plain, c) : NULL;
        if (e)
            buf_addf(&b, "\\%c", shown[e - plain]);
        else if ((uint8_t)c < 0x20)
            buf_addf(&b, "\\u%04x", (unsigned)c);
        else
            buf_addc(&b, c);
    }
    r->nomem |= b.failed;
    if (b.n)
        emit(r, REPLY_ARGS, (struct str){b.p, b.n});
    buf_release(&b);
}

static void end_value(struct reply *r, size_t n)
{
    if (!r->skipping && r->streaming) {
        emit_escaped(r, (struct str){pending(r).p, n});
        emit(r, REPLY_ARGS, str_of("\""));
    } else if (!r->skipping) {
        json_t *const v = value_from_text((struct str){r->in.p, n}, r->value_schema, r->schema);
        if (v)
            emit_json(r, v, false);
        r->nomem |= !v;
        json_decref(v);
    }
    eat(r, n);
    r->state = BODY;
}

static bool step_value(struct reply *r)
{
    /* The first closes a value, the others when it was forgotten. */
    static const char *const ends[] = {"</parameter>", "\n</parameter>", NEXT_LINE_PARAMETER,
                                       "\n</function>", "\n</tool_call>"};
    const size_t n_closing = 2; /* of ends: what belongs to the value and is eaten */
    if (!r->begun) {
        const struct str s = pending(r);
        if (!s.n && !r->finished)
            return false;
        if (s.n && s.p[0] == '\n')
            eat(r, 1);
        r->begun = true;
    }
    const struct str s = pending(r);
    size_t i = r->scan;
    for (bool partial = false; i < s.n; i++) {
        const struct str rest = from(s, i);
        for (size_t k = 0; k < COUNT_OF(ends); k++) {
            const struct str end = str_of(ends[k]);
            if (str_starts(rest, end)) {
                end_value(r, i);
                if (k < n_closing)
                    eat(r, end.n);
                return true;
            }
            partial |= str_starts(end, rest);
        }
        if (partial)
            break;
    }
    if (r->finished && !r->cut) { /* [i, n) is the beginning of an end, here and below */
        end_value(r, i);
        eat(r, r->in.n);
        return true;
    }
    if (r->streaming && i) {
        emit_escaped(r, (struct str){s.p, i});
        eat(r, i);
    } else {
        r->scan = i;
    }
    return r->cut && cut_call(r);
}

/* Behind a call: its closing tags, or the next object of the same tag. */
static bool step_after(struct reply *r)
{
    static const char *const closers[] = {"</function>", "</tool_call>"};
    const struct str s = pending(r);
    const struct str rest = from(s, skip_space(s, 0));
    for (size_t i = 0; rest.n && i < COUNT_OF(closers); i++) {
        const struct str close = str_of(closers[i]);
        if (str_starts(rest, close)) {
            eat(r, s.n - rest.n + close.n);
            r->tagged = false;
            return true;
        }
        if (str_starts(close, rest)) {
            if (r->finished) /* cut off inside it */
                eat(r, s.n);
            return false;
        }
    }
    if (!rest.n) {
        if (r->finished)
            eat(r, s.n);
        return false;
    }
    r->state = TEXT;
    if (rest.p[0] == '{' && r->tagged) {
        begin_json(r, s.n - rest.n + 1, s.n - rest.n, false);
    }
    return true;
}

/* ---- the outside ---- */

static bool step(struct reply *r)
{
    switch (r->state) {
    case TEXT:
        return step_text(r);
    case HEAD:
        return step_head(r);
    case JSON:
        return step_json(r);
    case NAME:
        return step_name(r);
    case BODY:
        return step_body(r);
    case KEY:
        return step_key(r);
    case VALUE:
        return step_value(r);
    case AFTER:
        return step_after(r);
    }
    return false;
}

static enum rc run(struct reply *r, struct err *err)
{
    while (!r->in.failed && !r->nomem && (r->in.n || r->finished) && step(r))
        ;
    if (r->in.failed || r->nomem)
        return err_set(err, RC_NOMEM, "no memory for the reply");
    return RC_OK;
}

enum rc reply_new(const struct reply_opts *o, reply_sink *sink, void *ctx, struct reply **out,
                  struct err *err)
{
    struct reply *const r = mem_zalloc(sizeof *r);
    r->o = *o;
    if (o->tools && !json_array_size(o->tools))
        r->o.tools = NULL;
    r->sink = sink;
    r->ctx = ctx;
    r->reasoning = r->at_start = o->thinking_open && !o->keep_thinking;
    r->line_start = true;
    r->seen = json_object();
    if (!r->seen) {
        reply_free(r);
        return err_set(err, RC_NOMEM, "no memory for the reply");
    }
    *out = r;
    return RC_OK;
}

void reply_free(struct reply *r)
{
    if (!r)
        return;
    buf_release(&r->in);
    json_decref(r->seen);
    mem_free(r);
}

enum rc reply_add(struct reply *r, struct str text, struct err *err)
{
    buf_add(&r->in, text.p, text.n);
    return run(r, err);
}

enum rc reply_finish(struct reply *r, struct err *err)
{
    r->finished = true;
    return run(r, err);
}

enum rc reply_cut(struct reply *r, struct err *err)
{
    r->cut = true;
    return reply_finish(r, err);
}

uint32_t reply_n_calls(const struct reply *r)
{
    return r->n_ended;
}
