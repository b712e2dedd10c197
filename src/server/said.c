#include "server/said.h"

#include "base/mem.h"

static struct said_part *new_part(struct said *s, enum reply_kind kind)
{
    if (!mem_grow(&s->parts, &s->cap, s->n + 1, sizeof *s->parts)) {
        s->nomem = true;
        return NULL;
    }
    struct said_part *p = &s->parts[s->n++];
    *p = (struct said_part){.kind = kind};
    return p;
}

struct said_part *said_add(struct said *s, const struct call *c, const char *call_prefix,
                           const struct reply_event *e, bool *fresh)
{
    struct said_part *last = s->n ? &s->parts[s->n - 1] : NULL;
    *fresh = false;
    switch (e->kind) {
    case REPLY_CALL:
        *fresh = true;
        last = new_part(s, REPLY_CALL);
        if (last) {
            call_id(c, call_prefix, last->id);
            buf_add(&last->name, e->text.p, e->text.n);
            s->nomem = s->nomem || last->name.failed;
        }
        return last;
    case REPLY_CALL_END:
        if (last && last->kind == REPLY_CALL)
            last->ended = true;
        return NULL;
    case REPLY_ARGS:
        if (!last || last->kind != REPLY_CALL || !e->text.n)
            return NULL;
        break;
    default:
        if (!e->text.n)
            return NULL;
        *fresh = !last || last->kind != e->kind;
        if (*fresh)
            last = new_part(s, e->kind);
    }
    if (last) {
        buf_add(&last->text, e->text.p, e->text.n);
        s->nomem = s->nomem || last->text.failed;
    }
    return last;
}

void said_release(struct said *s)
{
    for (size_t i = 0; i < s->n; i++) {
        buf_release(&s->parts[i].name);
        buf_release(&s->parts[i].text);
    }
    mem_free(s->parts);
    *s = (struct said){0};
}

void said_join(const struct said *s, enum reply_kind kind, struct buf *out)
{
    for (size_t i = 0; i < s->n; i++)
        if (s->parts[i].kind == kind)
            buf_add(out, s->parts[i].text.p, s->parts[i].text.n);
}

size_t said_count(const struct said *s, enum reply_kind kind)
{
    size_t n = 0;
    for (size_t i = 0; i < s->n; i++)
        n += s->parts[i].kind == kind;
    return n;
}

bool said_in_call(const struct said *s)
{
    return s->n && s->parts[s->n - 1].kind == REPLY_CALL && !s->parts[s->n - 1].ended;
}
