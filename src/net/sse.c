#include "net/sse.h"

#include "base/base.h"

static void field(struct buf *b, const char *name, struct str value)
{
    buf_adds(b, name);
    buf_adds(b, ": ");
    buf_add(b, value.p, value.n);
    buf_addc(b, '\n');
}

/* Length of the line at p (the terminator not counted) and of its terminator. */
static size_t line_length(struct str s, size_t *terminator)
{
    size_t n = 0;
    while (n < s.n && s.p[n] != '\n' && s.p[n] != '\r')
        n++;
    const bool crlf = n + 1 < s.n && s.p[n] == '\r' && s.p[n + 1] == '\n';
    *terminator = n == s.n ? 0 : crlf ? 2 : 1;
    return n;
}

void sse_write(struct buf *b, const char *event, struct str data)
{
    if (event)
        field(b, "event", str_of(event));
    for (;;) {
        size_t end;
        const size_t n = line_length(data, &end);
        field(b, "data", (struct str){data.p, n});
        if (!end)
            break;
        data.p += n + end;
        data.n -= n + end;
    }
    buf_addc(b, '\n');
}

void sse_write_comment(struct buf *b, const char *text)
{
    buf_addf(b, ": %s\n\n", text);
}

void sse_init(struct sse *s, size_t limit)
{
    memset(s, 0, sizeof *s);
    s->in.limit = limit ? limit : 16 * MIB;
    s->data.limit = s->in.limit;
    s->event.limit = s->in.limit;
}

void sse_release(struct sse *s)
{
    buf_release(&s->in);
    buf_release(&s->data);
    buf_release(&s->event);
}

bool sse_feed(struct sse *s, const void *p, size_t n)
{
    buf_eat(&s->in, s->at);
    s->seen -= s->at;
    s->at = 0;
    buf_add(&s->in, p, n);
    return !s->in.failed && !s->data.failed && !s->event.failed;
}

/* A line of the stream.  Fields other than data and event mean nothing here, comments to nobody. */
static void interpret(struct sse *s, struct str line)
{
    const char *colon = line.n ? memchr(line.p, ':', line.n) : NULL;
    const struct str name = {line.p, colon ? (size_t)(colon - line.p) : line.n};
    struct str value = {"", 0};
    if (colon) {
        value = (struct str){colon + 1, line.n - name.n - 1};
        if (value.n && value.p[0] == ' ')
            value = (struct str){value.p + 1, value.n - 1};
    }
    if (str_is(name, "data")) {
        if (s->has_data)
            buf_addc(&s->data, '\n');
        buf_add(&s->data, value.p, value.n);
        s->has_data = true;
    } else if (str_is(name, "event")) {
        buf_clear(&s->event);
        buf_add(&s->event, value.p, value.n);
    }
}

static bool skip_byte_order_mark(struct sse *s)
{
    static const char bom[] = "\xEF\xBB\xBF";
    const size_t n = MIN(s->in.n, (size_t)3);
    if (s->began || (n && memcmp(s->in.p, bom, n) != 0)) {
        s->began = true;
    } else if (n == 3) {
        s->began = true;
        s->at = s->seen = 3;
    }
    return s->began;
}

/* The next whole line, or false. */
static bool next_line(struct sse *s, struct str *line)
{
    if (s->after_cr && s->at < s->in.n) {
        s->after_cr = false;
        s->at += s->in.p[s->at] == '\n';
        s->seen = MAX(s->seen, s->at);
    }
    while (s->seen < s->in.n && s->in.p[s->seen] != '\n' && s->in.p[s->seen] != '\r')
        s->seen++;
    if (s->seen == s->in.n)
        return false;
    *line = (struct str){s->in.p + s->at, s->seen - s->at};
    s->after_cr = s->in.p[s->seen] == '\r';
    s->at = ++s->seen;
    return true;
}

bool sse_next(struct sse *s, struct sse_event *out)
{
    struct str line;
    if (s->handed_out) {
        buf_clear(&s->data);
        buf_clear(&s->event);
        s->handed_out = s->has_data = false;
    }
    if (!skip_byte_order_mark(s))
        return false;
    while (next_line(s, &line)) {
        if (line.n) {
            interpret(s, line);
        } else if (s->data.failed || s->event.failed) {
            return false; /* cut off: the next sse_feed says so */
        } else if (s->has_data) {
            *out = (struct sse_event){{buf_str(&s->event), s->event.n},
                                      {buf_str(&s->data), s->data.n}};
            s->handed_out = true;
            return true;
        } else {
            buf_clear(&s->event); /* an event without data is none */
        }
    }
    return false;
}
