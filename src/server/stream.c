#include "server/stream.h"

#include "base/clock.h"
#include "net/sse.h"
#include "server/reply.h"

void stream_init(struct stream *st, struct call *c, int32_t ping_s)
{
    *st = (struct stream){.c = c, .ping_s = ping_s, .wrote_ns = clock_mono_ns()};
    buf_init(&st->b);
}

void stream_release(struct stream *st)
{
    buf_release(&st->b);
}

static bool send(struct stream *st)
{
    if (!st->begun) {
        http_set_header(st->c->r, "Cache-Control", "no-cache");
        http_set_header(st->c->r, "X-Accel-Buffering", "no"); /* nginx: pass it on as it comes */
        http_stream_begin(st->c->r, 200, "text/event-stream");
        st->begun = true;
    }
    st->broken = st->broken || st->b.failed || !http_write(st->c->r, buf_str(&st->b), st->b.n);
    st->wrote_ns = clock_mono_ns();
    buf_clear(&st->b);
    return !st->broken;
}

bool stream_event(struct stream *st, const char *event, const struct buf *data)
{
    if (data->failed)
        st->broken = true;
    sse_write(&st->b, event, (struct str){buf_str(data), data->n});
    return send(st);
}

bool stream_done(struct stream *st)
{
    sse_write(&st->b, NULL, str_of("[DONE]"));
    return send(st);
}

void stream_ping(struct stream *st, uint64_t now_ns)
{
    if (st->ping_s < 0 || now_ns - st->wrote_ns < (uint64_t)st->ping_s * 1000000000)
        return;
    sse_write_comment(&st->b, "ping");
    send(st);
}

void stream_error(struct stream *st, const struct err *err)
{
    if (!st->begun) {
        reply_error(st->c, err);
        return;
    }
    struct buf b = BUF_INIT;
    reply_write_error(st->c, &b, err);
    stream_event(st, st->c->anthropic ? "error" : NULL, &b);
    buf_release(&b);
}
