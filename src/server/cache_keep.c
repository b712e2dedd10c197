/* cache_keep.c - POST /cache/pin, /cache/unpin and /cache/warm: what is to stay, whatever comes.
 *
 * Warm evaluates a prefix and keeps the state after it: of messages the one where the next message or
 * the generation prompt would begin, of a raw prompt the one before its last token, because a request
 * always evaluates one.
 */
#include <string.h>

#include "server/reply.h"
#include "server/route.h"
#include "server/shape.h"
#include "server/talk.h"

/* ---- pin and unpin --------------------------------------------------------------------------- */

static void set_pin(struct call *c, bool on)
{
    int64_t id = 0;
    struct err err;
    enum rc rc = jread_i64(c->body, "id", 1, UINT32_MAX, &id, &err);
    if (!rc && !id)
        rc = err_set(&err, RC_ARG, "id is missing");
    if (rc) {
        reply_error(c, &err);
        return;
    }
    if (!engine_pin(c->m->engine, (snap_id)id, on)) {
        reply_refuse(c, 404, "not_found_error", "no entry of that id");
        return;
    }
    struct buf b = BUF_INIT;
    buf_addf(&b, "{\"id\":%" PRId64 ",\"pinned\":%s}", id, on ? "true" : "false");
    reply_json(c, 200, &b);
    buf_release(&b);
}

void cache_pin_post(struct call *c)
{
    set_pin(c, true);
}

void cache_unpin_post(struct call *c)
{
    set_pin(c, false);
}

/* ---- warm ------------------------------------------------------------------------------------ */

/* Templates refuse a conversation without a question, yet a system prompt is what is warmed most. */
static bool add_question(struct talk *t)
{
    const json_t *last = json_array_get(t->messages, json_array_size(t->messages) - 1);
    const char *role = json_string_value(json_object_get(last, "role"));
    if (!role || (strcmp(role, "system") != 0 && strcmp(role, "developer") != 0))
        return false;
    return !json_array_append_new(t->messages,
                                  json_pack("{s:s,s:s}", "role", "user", "content", "?"));
}

/* Ends the prompt where another one could go on from. */
static void cut_prompt(struct talk *t, bool question)
{
    struct prompts *p = &t->prompts;
    struct tokens *tokens = &p->v[0];
    const struct cache_hint *last = p->n_hints ? &p->hints[p->n_hints - 1] : NULL;
    if (question && p->n_hints > 1 && last->role == 'g') {
        last--;
        p->n_hints--;
    }
    if (last && (last->role == 'g' || question) && last->pos) {
        tokens->n = last->pos;
        p->n_hints--;
    } else if (tokens->n > 1) {
        tokens->n--;
    }
    while (last && p->n_hints && p->hints[p->n_hints - 1].pos > tokens->n)
        p->n_hints--;
}

static enum rc read_warm(struct call *c, struct talk *t, struct prompts *raw, bool *question,
                         struct err *err)
{
    const json_t *messages = json_object_get(c->body, "messages");
    const bool chat = messages && !json_is_null(messages);
    const json_t *prompt = json_object_get(c->body, "prompt");
    bool pin = true;
    enum rc rc = params_read(c, &t->p, err);
    if (!rc)
        rc = jread_bool(c->body, "pin", &pin, err);
    if (!rc && chat && prompt && !json_is_null(prompt))
        rc = err_set(err, RC_ARG, "prompt and messages exclude one another");
    if (rc)
        return rc;
    t->p.n_predict = 0;
    t->p.n = 1;
    t->p.pin = pin;
    if (chat) {
        rc = openai_conversation(c, t, err);
        *question = !rc && add_question(t);
        return rc ? rc : talk_prepare(t, err);
    }
    rc = prompts_read(c, "prompt", raw, err);
    if (!rc && raw->n != 1)
        rc = err_set(err, RC_ARG, "prompt has %u prompts, one can be warmed at a time", raw->n);
    if (!rc)
        t->prompts = *raw;
    return rc;
}

static void reply_warm(struct call *c, const struct talk *t, const struct answer *a)
{
    struct buf b = BUF_INIT;
    struct jwrite w;
    if (t->p.pin && !a->pinned) {
        reply_refuse(c, 507, "unavailable_error",
                     "the state cannot be kept: it does not fit into --cache-ram beside what is in "
                     "use or pinned, or the cache policy keeps nothing");
        return;
    }
    jwrite_init(&w, &b);
    jwrite_obj(&w, NULL);
    if (a->pinned)
        jwrite_u64(&w, "id", a->pinned);
    else
        jwrite_null(&w, "id");
    jwrite_bool(&w, "pinned", a->pinned != 0);
    jwrite_u64(&w, "position", t->prompts.v[0].n);
    shape_timings(&w, &a->timings);
    jwrite_end_obj(&w);
    reply_json(c, 200, &b);
    buf_release(&b);
}

void cache_warm_post(struct call *c)
{
    struct talk t = {.c = c};
    struct prompts raw = {0};
    struct err err;
    bool question = false;
    if (read_warm(c, &t, &raw, &question, &err)) {
        reply_error(c, &err);
    } else {
        cut_prompt(&t, question);
        if (gen_start(&t.g, c, &t.prompts, &t.p, NULL)) {
            t.answers = answers_new(&t.g);
            if (t.answers && gen_collect(&t.g, t.answers))
                reply_warm(c, &t, &t.answers[0]);
        }
    }
    talk_release(&t);
    prompts_release(&raw);
}
