/* talk.h - one request of a conversation, whatever the protocol: messages to jobs, pieces to events.
 *
 * A protocol translates its request into OpenAI's messages and tools, calls talk_run with a sink, and
 * writes what the sink is told in its own words:
 *
 *     read the request -> talk.messages, .tools, .kwargs, .p
 *     talk_prepare     render, tokenise, hints            (errors are replied)
 *     talk_run         submit; then for each piece: sink.piece, sink.event ..., at the end sink.end
 */
#ifndef HOLDFAST_SERVER_TALK_H
#define HOLDFAST_SERVER_TALK_H

#include "server/gen.h"
#include "server/replay.h"
#include "server/said.h"
#include "text/chat.h"
#include "text/reply.h"

struct talk {
    struct call *c;
    struct params p;
    json_t *messages, *tools, *kwargs; /* owned; tools and kwargs may be NULL */
    bool calls;                        /* look for tool calls in the answer */
    uint32_t max_calls;                /* 0 = no limit */
    bool keep_thinking;                /* leave reasoning in the content */
    bool continue_last;                /* the answer goes on in the last message */
    const char *effort;                /* of reasoning, as the request has it; NULL: not said */

    /* made by talk_prepare */
    enum reply_family family;
    struct replay_look look;
    struct chat_prompt prompt;
    struct tokens tokens;
    struct cache_hint *hints;
    struct prompts prompts;
    struct tokens think_end; /* what p.think points to */
    /* made by talk_run */
    struct gen g;
    struct answer *answers;      /* [g.n]; without text */
    struct talk_choice *choices; /* [g.n] */
};

struct talk_choice {
    struct reply *reply;
    const struct talk_sink *sink;
    void *ctx;
    uint32_t index;
    bool in_reasoning;    /* what came last was */
    uint32_t n_reasoning; /* tokens of pieces that had some */
    struct tokens tokens; /* all of the answer, for replay_keep */
    bool forgetful;       /* memory ran out for them */
    size_t n_closing; /* of the last call wanted: bytes of its closing tag that came behind it */
    bool cut;         /* cancelled there: something else came */
};

/* What a protocol is told; choice counts from 0.  Every function but event may be NULL. */
struct talk_sink {
    /* before the events of a piece, with its tokens */
    void (*piece)(void *ctx, uint32_t choice, const struct piece *p);
    void (*event)(void *ctx, uint32_t choice, const struct reply_event *e);
    /* the choice is complete */
    void (*end)(void *ctx, uint32_t choice, const struct answer *a);
};

/* messages, tools and the template's variables of an OpenAI request's body (openai_chat.c). */
NODISCARD enum rc openai_conversation(struct call *c, struct talk *t, struct err *err);
/* The prompt alone.  RC_ARG, RC_UNSUPPORTED, RC_LIMIT, RC_NOMEM. */
NODISCARD enum rc talk_prepare(struct talk *t, struct err *err);
/* Runs to the end.  False when the client has gone or an error has been sent: nothing more is to be
 * written.  stream: NULL for a whole reply. */
bool talk_run(struct talk *t, struct stream *stream, const struct talk_sink *sink, void *ctx);
/* From sink.end, before the client learns of the end: keeps what was said, to be put back exactly when
 * the client sends it again (replay.h). */
void talk_keep(struct talk *t, uint32_t choice, const struct said *said);
void talk_release(struct talk *t);
/* Of all choices. */
uint32_t talk_n_reasoning(const struct talk *t);

#endif
