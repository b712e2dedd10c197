/* stream.h - a reply of server-sent events.
 *
 * The HTTP reply begins with the first event (or the first comment that keeps it alive), so that what
 * fails before still gets its proper status.
 */
#ifndef HOLDFAST_SERVER_STREAM_H
#define HOLDFAST_SERVER_STREAM_H

#include "server/server_int.h"

struct stream {
    struct call *c;
    struct buf b;      /* the event being written */
    int32_t ping_s;    /* < 0: never */
    uint64_t wrote_ns; /* last sign of life */
    bool begun, broken;
};

void stream_init(struct stream *st, struct call *c, int32_t ping_s);
void stream_release(struct stream *st);
/* data: one JSON text; event: its name, or NULL.  False once the client has gone. */
bool stream_event(struct stream *st, const char *event, const struct buf *data);
/* OpenAI's end of stream. */
bool stream_done(struct stream *st);
/* Sends a comment when it is time for one. */
void stream_ping(struct stream *st, uint64_t now_ns);
/* Before the first event: a reply with a status; later: an event with the same object. */
void stream_error(struct stream *st, const struct err *err);

#endif
