/* reply.h - a reply's text, as it streams in, split into reasoning, content and tool calls.
 *
 * One path for streams and whole replies: how the text is cut into pieces changes nothing but where the
 * events are cut.  Nothing is lost: what turns out to be no call is content (or reasoning) after all.
 */
#ifndef HOLDFAST_TEXT_REPLY_H
#define HOLDFAST_TEXT_REPLY_H

#include <jansson.h>

#include "base/err.h"
#include "base/str.h"

/* How calls are written; found in the chat template. */
enum reply_family {
    REPLY_QWEN_XML, /* <tool_call><function=NAME><parameter=KEY>value</parameter></function></tool_call> */
    REPLY_HERMES, /* <tool_call>{"name": NAME, "arguments": {...}}</tool_call> */
    REPLY_GENERIC /* these two, [TOOL_CALLS], <|python_tag|>, <|tool_call|>, or a reply that is such JSON */
};
enum reply_family reply_family_of(struct str template_source);

enum reply_kind {
    REPLY_REASONING, /* text: a stretch of it */
    REPLY_CONTENT,   /* text: a stretch of it */
    REPLY_CALL,      /* text: the function's name; a call begins */
    REPLY_ARGS,      /* text: a stretch of the arguments' JSON object */
    REPLY_CALL_END   /* not of a call that reply_cut leaves unfinished */
};

struct reply_event {
    enum reply_kind kind;
    uint32_t call;   /* of the last three: 0, 1, ... */
    struct str text; /* borrowed for the call */
};
typedef void reply_sink(void *ctx, const struct reply_event *e);

struct reply_opts {
    enum reply_family family;
    const json_t *tools; /* borrowed; NULL: calls are not looked for (tool_choice none) */
    bool thinking_open;  /* the prompt ended inside <think> (chat_prompt.thinking) */
    bool keep_thinking;  /* reasoning_format none: tags and reasoning stay in the content */
    uint32_t max_calls;  /* 0: no limit; further ones are dropped (parallel_tool_calls false: 1) */
};

struct reply;
NODISCARD enum rc reply_new(const struct reply_opts *o, reply_sink *sink, void *ctx,
                            struct reply **out, struct err *err);
void reply_free(struct reply *r);
/* The texts together are UTF-8; a cut may fall inside a character.  RC_NOMEM, after which only
 * reply_free may follow. */
NODISCARD enum rc reply_add(struct reply *r, struct str text, struct err *err);
/* The text has ended: what is held comes out, a call that is not closed is. */
NODISCARD enum rc reply_finish(struct reply *r, struct err *err);
/* The text was cut off (a limit, a stop string): as reply_finish, but a call that is not whole stays so.  Its
 * arguments are left unclosed, no JSON, and REPLY_CALL_END does not come. */
NODISCARD enum rc reply_cut(struct reply *r, struct err *err);
/* Calls that have ended, whole: a server that wants one only can stop generating. */
uint32_t reply_n_calls(const struct reply *r);

#endif
