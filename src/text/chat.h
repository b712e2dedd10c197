/* chat.h - messages to the prompt's text and tokens, remembering where each message stands.
 *
 * Messages, tools and calls are in OpenAI's shape (the other protocols are translated to it):
 * {"role", "content": text | parts | null, "reasoning_content", "tool_calls", "tool_call_id", "name"}.
 */
#ifndef HOLDFAST_TEXT_CHAT_H
#define HOLDFAST_TEXT_CHAT_H

#include "base/json.h"
#include "text/bpe.h"

/* What a template was found to do, by rendering small conversations with it. */
struct chat_caps {
    bool system;         /* shows a system message (else it is put before the first user's text) */
    bool late_system;    /* shows one behind other messages (else it goes into the one before it) */
    bool developer;      /* takes the role developer (else it is rendered as system) */
    bool parts;          /* takes content as a list of parts (else texts are joined by newlines) */
    bool string_content; /* takes content as a string (else it becomes one part) */
    bool tools;          /* shows the tools offered */
    bool tool_calls;     /* shows an assistant's calls */
    bool tool_results;   /* shows messages of the role tool */
    bool reasoning;      /* shows reasoning_content of the last turn */
    bool thinks; /* the generation prompt leaves <think> open, or enable_thinking changes it */
};

struct chat_template; /* read-only: any thread may render it */

/* v gives bos_token and eos_token; NULL: empty ones.  Messages begin with "line L, column C: ". */
NODISCARD enum rc chat_template_new(struct str source, const struct vocab *v,
                                    struct chat_template **out, struct err *err);
void chat_template_free(struct chat_template *t);
const struct chat_caps *chat_template_caps(const struct chat_template *t);
struct str chat_template_source(const struct chat_template *t);
/* For models without one: ChatML. */
extern const char chat_template_chatml[];

struct chat_input {         /* all borrowed */
    const json_t *messages; /* array, at least one */
    const json_t *tools;    /* array of {"type": "function", "function": {...}}, or NULL */
    const json_t *kwargs;   /* object: further variables (enable_thinking ...), or NULL */
    bool add_generation_prompt;
    bool continue_last; /* the last message is an assistant's and the reply goes on in it */
    int64_t now;        /* seconds since 1970, for templates that print the date */
};

enum chat_part {
    CHAT_MESSAGE, /* the whole of it with its role's header and end mark */
    CHAT_CONTENT,
    CHAT_THINKING,
    CHAT_CALLS,
    CHAT_TOOLS, /* the tools offered; message is -1 */
    CHAT_PROMPT /* what asks for the reply, at the end; message is -1 */
};

/* A stretch of the prompt.  In the order of begin, the longer first. */
struct chat_span {
    enum chat_part part;
    int32_t message;       /* index into messages */
    size_t begin, end;     /* bytes of the text */
    uint32_t pos, pos_end; /* tokens before begin and end: chat_tokenize */
};

/* A stretch of the text that is tokens as they are, whatever its text would be cut into. */
struct chat_verbatim {
    size_t begin, end; /* bytes of the text: what the tokens stand for */
    size_t first, n;   /* of chat_prompt.verbatim_tokens */
};

struct chat_prompt { /* zero-initialise */
    struct buf text;
    struct chat_span *spans;
    size_t n_spans, spans_cap;
    bool thinking;                   /* the text ends inside a <think> that the reply will close */
    struct chat_verbatim *verbatims; /* in the order of the text */
    size_t n_verbatims, verbatims_cap;
    struct tokens verbatim_tokens;
};
void chat_prompt_release(struct chat_prompt *p);

/* RC_ARG: the template refused (its own words) or a message is malformed (named as messages[i]...);
 * RC_LIMIT: see jinja.h. */
NODISCARD enum rc chat_render(const struct chat_template *t, const struct chat_input *in,
                              struct chat_prompt *out, struct err *err);

/* Puts head and what tokens [n] stand for in the place of the text's bytes [begin, end), which lie
 * behind all earlier such stretches; spans are moved along.  chat_tokenize will give these very
 * tokens.  RC_NOMEM, and p is as before. */
NODISCARD enum rc chat_splice(const struct vocab *v, struct chat_prompt *p, size_t begin,
                              size_t end, struct str head, const token *tokens, size_t n,
                              struct err *err);

/* Appends the prompt's tokens to out and fills pos and pos_end of its spans: tokens that end at or
 * before the byte.  bos: put the BOS token first where the vocabulary asks for it and the text does
 * not begin with it. */
NODISCARD enum rc chat_tokenize(const struct vocab *v, struct chat_prompt *p, bool bos,
                                struct tokens *out, struct err *err);

#endif
