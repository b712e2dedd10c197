/* reply_testing_int.h - gathers a reply's events in one normal form, for its tests and fuzz target. */
#ifndef HOLDFAST_TEXT_REPLY_TESTING_INT_H
#define HOLDFAST_TEXT_REPLY_TESTING_INT_H

#include "base/buf.h"
#include "text/reply.h"

struct gathered {
    struct buf b;
    enum reply_kind last;
    bool in_call, any;
    bool cut;        /* the text ends because it was cut off */
    struct buf args; /* of the current call */
    json_t *tools;
};

/* "R[...]C[...]call 0 f {...}": stretches of a kind are joined. */
static inline void gather(void *ctx, const struct reply_event *e)
{
    struct gathered *const g = ctx;
    const bool text = e->kind == REPLY_REASONING || e->kind == REPLY_CONTENT;
    CHECK(g->in_call == (e->kind == REPLY_ARGS || e->kind == REPLY_CALL_END));
    CHECK(!text || e->text.n);
    if (g->any && (g->last == REPLY_REASONING || g->last == REPLY_CONTENT) && e->kind != g->last)
        buf_addc(&g->b, ']');
    switch (e->kind) {
    case REPLY_REASONING:
    case REPLY_CONTENT:
        if (!g->any || g->last != e->kind)
            buf_adds(&g->b, e->kind == REPLY_REASONING ? "R[" : "C[");
        buf_add(&g->b, e->text.p, e->text.n);
        break;
    case REPLY_CALL:
        buf_addf(&g->b, "(%u ", e->call);
        buf_add(&g->b, e->text.p, e->text.n);
        buf_addc(&g->b, ' ');
        buf_clear(&g->args);
        g->in_call = true;
        break;
    case REPLY_ARGS:
        buf_add(&g->b, e->text.p, e->text.n);
        buf_add(&g->args, e->text.p, e->text.n);
        break;
    case REPLY_CALL_END:
        buf_addc(&g->b, ')');
        g->in_call = false;
        break;
    }
    g->last = e->kind;
    g->any = true;
}

static inline void gather_end(struct gathered *g)
{
    CHECK(g->cut || !g->in_call);
    if (g->any && (g->last == REPLY_REASONING || g->last == REPLY_CONTENT))
        buf_addc(&g->b, ']');
}

static inline void gather_release(struct gathered *g)
{
    buf_release(&g->b);
    buf_release(&g->args);
    *g = (struct gathered){.cut = g->cut};
}

/* Feeds text cut before each byte i where cut(ctx, i) says so. */
static inline void feed(struct gathered *g, const struct reply_opts *o, struct str text,
                        bool (*cut)(void *ctx, size_t i), void *ctx)
{
    struct reply *r;
    struct err err;
    CHECK(reply_new(o, gather, g, &r, &err) == RC_OK);
    size_t from = 0;
    for (size_t i = 1; i <= text.n; i++)
        if (i == text.n || cut(ctx, i)) {
            CHECK(reply_add(r, (struct str){text.p + from, i - from}, &err) == RC_OK);
            from = i;
        }
    CHECK((g->cut ? reply_cut(r, &err) : reply_finish(r, &err)) == RC_OK);
    reply_free(r);
    gather_end(g);
}

#endif
