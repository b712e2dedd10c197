/* said.h - an answer's parts put together again: reasoning, content, tool calls. */
#ifndef HOLDFAST_SERVER_SAID_H
#define HOLDFAST_SERVER_SAID_H

#include "server/server_int.h"
#include "text/reply.h"

struct said_call {
    char id[48];
    struct buf name, args;
};

struct said {
    struct buf reasoning, content;
    struct said_call *calls;
    size_t n_calls, cap_calls;
    bool nomem;
};

/* id_prefix: of calls ("call_", "toolu_"). */
void said_add(struct said *s, const struct call *c, const char *id_prefix,
              const struct reply_event *e);
void said_release(struct said *s);

#endif
