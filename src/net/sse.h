/* sse.h - server-sent events: writing them, reading them.
 *
 * Source: WHATWG HTML, "Server-sent events", 9.2.6 "Interpreting an event stream".
 */
#ifndef HOLDFAST_NET_SSE_H
#define HOLDFAST_NET_SSE_H

#include "base/buf.h"
#include "base/str.h"

/* Appends one event; a data of several lines becomes several data fields.  event may be NULL. */
void sse_write(struct buf *b, const char *event, struct str data);
/* Appends a comment: it keeps a connection alive and no reader sees it. */
void sse_write_comment(struct buf *b, const char *text);

/* A reader: feed bytes as they come, take events until there are none. */
struct sse {
    struct buf in; /* fed; [at, n) is not interpreted yet, [at, seen) has no line end */
    size_t at, seen;
    struct buf data, event; /* of the event in the making, or the one just handed out */
    bool began;             /* past the place of a byte order mark */
    bool after_cr;          /* a line feed that comes next belongs to the line end before */
    bool has_data, handed_out;
};
struct sse_event {
    struct str event; /* "" = "message" */
    struct str data;  /* both borrowed until the next call */
};

/* limit: bytes of one event; 0 = 16 MiB. */
void sse_init(struct sse *s, size_t limit);
void sse_release(struct sse *s);
/* False when an event grows beyond the limit or memory is out: give the stream up. */
NODISCARD bool sse_feed(struct sse *s, const void *p, size_t n);
/* False when no whole event is at hand. */
bool sse_next(struct sse *s, struct sse_event *out);

#endif
