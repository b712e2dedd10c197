/* said.h - an answer's parts in the order they came: reasoning, content, tool calls.
 *
 * A part ends where the next kind begins, so content after a call is a part of its own.
 */
#ifndef HOLDFAST_SERVER_SAID_H
#define HOLDFAST_SERVER_SAID_H

#include "server/server_int.h"
#include "text/reply.h"

struct said_part {
    enum reply_kind kind; /* REPLY_REASONING, REPLY_CONTENT or REPLY_CALL */
    char id[48];          /* of a call */
    struct buf name;      /* of a call */
    struct buf text;      /* of a call: its arguments */
    bool ended;           /* of a call: it is whole */
};

struct said {
    struct said_part *parts;
    size_t n, cap;
    bool nomem;
};

/* How an event changes the parts: NULL when it adds nothing; *fresh tells a new part from more of the
 * last one.  call_prefix: of the ids of calls ("call_", "toolu_"). */
struct said_part *said_add(struct said *s, const struct call *c, const char *call_prefix,
                           const struct reply_event *e, bool *fresh);
void said_release(struct said *s);
/* All parts of a kind, one after the other. */
void said_join(const struct said *s, enum reply_kind kind, struct buf *out);
size_t said_count(const struct said *s, enum reply_kind kind);
/* The answer was cut off inside the call that is its last part. */
bool said_in_call(const struct said *s);

#endif
