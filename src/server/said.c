#include "server/said.h"

#include "base/mem.h"

static void begin_call(struct said *s, const struct call *c, const char *id_prefix, struct str name)
{
    if (!mem_grow(&s->calls, &s->cap_calls, s->n_calls + 1, sizeof *s->calls)) {
        s->nomem = true;
        return;
    }
    struct said_call *call = &s->calls[s->n_calls++];
    *call = (struct said_call){0};
    call_id(c, id_prefix, call->id);
    buf_add(&call->name, name.p, name.n);
    s->nomem = s->nomem || call->name.failed;
}

void said_add(struct said *s, const struct call *c, const char *id_prefix,
              const struct reply_event *e)
{
    switch (e->kind) {
    case REPLY_REASONING:
        buf_add(&s->reasoning, e->text.p, e->text.n);
        break;
    case REPLY_CONTENT:
        buf_add(&s->content, e->text.p, e->text.n);
        break;
    case REPLY_CALL:
        begin_call(s, c, id_prefix, e->text);
        break;
    case REPLY_ARGS:
        if (s->n_calls)
            buf_add(&s->calls[s->n_calls - 1].args, e->text.p, e->text.n);
        s->nomem = s->nomem || (s->n_calls && s->calls[s->n_calls - 1].args.failed);
        break;
    case REPLY_CALL_END:
        break;
    }
    s->nomem = s->nomem || s->reasoning.failed || s->content.failed;
}

void said_release(struct said *s)
{
    for (size_t i = 0; i < s->n_calls; i++) {
        buf_release(&s->calls[i].name);
        buf_release(&s->calls[i].args);
    }
    mem_free(s->calls);
    buf_release(&s->reasoning);
    buf_release(&s->content);
}
