#include "server/talk.h"

#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "server/reply.h"
#include "server/thinking.h"
#include "server/volatile.h"

/* ---- the prompt ---- */

/* The trace's letter for a message's role. */
static char role_letter(const json_t *message)
{
    static const struct {
        const char *role;
        char letter;
    } roles[] = {
        {"system", 's'}, {"developer", 's'}, {"user", 'u'}, {"assistant", 'a'}, {"tool", 'o'}};
    const char *role = json_string_value(json_object_get(message, "role"));
    for (size_t i = 0; role && i < COUNT_OF(roles); i++)
        if (!strcmp(role, roles[i].role))
            return roles[i].letter;
    return 'u';
}

/* Where each message and the generation prompt begin: the places where conversations part. */
static enum rc make_hints(struct talk *t, struct err *err)
{
    t->hints = mem_try_array(t->prompt.n_spans, sizeof *t->hints);
    if (!t->hints)
        return err_set(err, RC_NOMEM, "out of memory for the prompt's boundaries");
    uint32_t n = 0;
    for (size_t i = 0; i < t->prompt.n_spans; i++) {
        const struct chat_span *s = &t->prompt.spans[i];
        if (s->part != CHAT_MESSAGE && s->part != CHAT_PROMPT)
            continue;
        const char role = s->part == CHAT_PROMPT
                              ? 'g'
                              : role_letter(json_array_get(t->messages, (size_t)s->message));
        if (n && t->hints[n - 1].pos > s->pos)
            continue; /* two messages that share tokens: the first has the place */
        t->hints[n++] = (struct cache_hint){.pos = s->pos, .role = role};
    }
    t->prompts.hints = t->hints;
    t->prompts.n_hints = n;
    return RC_OK;
}

/* What the answer has to be, now that tools and prompt are known. */
static enum rc settle_constraint(struct talk *t, struct err *err)
{
    struct constraint *const k = &t->p.want;
    const bool may_call = t->calls && json_array_size(t->tools);
    if (may_call && k->gbnf.n)
        return err_set(err, RC_UNSUPPORTED,
                       "grammar is not supported together with tools that may be called");
    if (may_call && t->family == REPLY_GENERIC && k->schema)
        return err_set(err, RC_UNSUPPORTED,
                       "%s is not supported together with tools that may be called: the model's "
                       "calls are JSON too",
                       k->field);
    if (k->field && t->continue_last)
        return err_set(err, RC_UNSUPPORTED,
                       "%s is not supported when the last message is the assistant's", k->field);
    if (may_call && !k->field && constraint_any_strict(t->tools)) {
        k->field = "tools";
        k->in_text = true;
    }
    k->tools = may_call && k->field ? t->tools : NULL;
    k->parallel = t->max_calls != 1;
    t->p.grammar_after = k->field && t->prompt.thinking ? "</think>" : NULL;
    return RC_OK;
}

/* tool_choice none: the tools stay in the prompt, which so keeps its prefix, but the mark that opens a
 * call is not generated where it is a token.  What is written as a call all the same is content. */
static enum rc forbid_calls(struct talk *t, struct err *err)
{
    const token mark = vocab_find(t->c->m->vocab, str_of("<tool_call>"));
    return t->calls || !json_array_size(t->tools) || mark < 0 ? RC_OK
                                                              : params_forbid(&t->p, mark, err);
}

enum rc talk_prepare(struct talk *t, struct err *err)
{
    t->family = reply_family_of(chat_template_source(t->c->m->chat));
    struct replay *replay = t->c->s->replay;
    const enum rc dropped = volatile_drop(t->c->s->o.drop_volatile, &t->messages, err);
    if (dropped)
        return dropped;
    if (replay) {
        const enum rc looked = replay_look(replay, &t->messages, &t->look, err);
        if (looked)
            return looked;
    }
    const enum rc settled = thinking_settle(t, err);
    if (settled)
        return settled;
    const struct chat_input in = {.messages = t->messages,
                                  .tools = t->tools,
                                  .kwargs = t->kwargs,
                                  .add_generation_prompt = true,
                                  .continue_last = t->continue_last,
                                  .now = call_time()};
    if (json_array_size(t->tools) && !chat_template_caps(t->c->m->chat)->tools)
        return err_set(err, RC_UNSUPPORTED,
                       "tools is not supported: the model's chat template does not show them");
    enum rc rc = chat_render(t->c->m->chat, &in, &t->prompt, err);
    if (!rc && replay)
        rc = replay_splice(replay, &t->look, t->c->m->vocab, &t->prompt, err);
    if (!rc)
        rc = chat_tokenize(t->c->m->vocab, &t->prompt, true, &t->tokens, err);
    if (!rc && !t->tokens.n)
        rc = err_set(err, RC_ARG, "messages make an empty prompt");
    if (!rc)
        rc = make_hints(t, err);
    if (!rc)
        rc = settle_constraint(t, err);
    if (!rc)
        rc = forbid_calls(t, err);
    if (!rc)
        rc = thinking_limit(t, err);
    t->prompts.v = &t->tokens;
    t->prompts.n = 1;
    return rc;
}

/* ---- the answer ---- */

static void relay_event(void *ctx, const struct reply_event *e)
{
    struct talk_choice *ch = ctx;
    ch->in_reasoning = e->kind == REPLY_REASONING;
    ch->sink->event(ch->ctx, ch->index, e);
}

static bool make_choices(struct talk *t, const struct talk_sink *sink, void *ctx, struct err *err)
{
    const struct reply_opts o = {.family = t->family,
                                 .tools = t->calls ? t->tools : NULL,
                                 .thinking_open = t->prompt.thinking,
                                 .keep_thinking = t->keep_thinking,
                                 .max_calls = t->max_calls};
    for (uint32_t i = 0; i < t->g.n; i++) {
        struct talk_choice *ch = &t->choices[i];
        *ch = (struct talk_choice){.sink = sink,
                                   .ctx = ctx,
                                   .index = i,
                                   .in_reasoning = t->prompt.thinking && !t->keep_thinking};
        if (reply_new(&o, relay_event, ch, &ch->reply, err))
            return false;
    }
    return true;
}

static void note_tokens(struct talk_choice *ch, const struct piece *p)
{
    ch->forgetful = ch->forgetful || !tokens_append(&ch->tokens, p->tokens, p->n_tokens);
}

/* Behind the last call wanted: does the answer end here in the way it would have by itself?  The rest of
 * the call's tag and white space do; anything else begins what is not wanted. */
static bool closes(struct talk_choice *ch, const struct buf *text)
{
    static const char tag[] = "</tool_call>";
    for (size_t i = 0; i < text->n; i++) {
        const bool between = ch->n_closing == 0 || ch->n_closing == sizeof tag - 1;
        if (between && strchr(" \t\r\n", text->p[i]))
            continue;
        if (ch->n_closing == sizeof tag - 1 || text->p[i] != tag[ch->n_closing])
            return false;
        ch->n_closing++;
    }
    return true;
}

/* Hands one piece on; false with *err when the answer must end with an error. */
static bool take_piece(struct talk *t, uint32_t i, const struct piece *p,
                       const struct talk_sink *sink, void *ctx, struct err *err)
{
    struct answer *a = &t->answers[i];
    struct talk_choice *ch = &t->choices[i];
    struct reply *r = ch->reply;
    const bool reasoned = ch->in_reasoning;
    /* what comes behind the last call wanted is not part of the answer, however much of it is made before
     * the engine hears of the cancel; an end mark is waited for, so that the answer is whole */
    const bool over = t->max_calls && reply_n_calls(r) >= t->max_calls;
    if (over && !ch->cut && !closes(ch, &p->text)) {
        ch->cut = true;
        job_cancel(t->g.jobs[i]);
    }
    answer_note(a, p);
    if (t->c->s->replay && !ch->cut)
        note_tokens(ch, p);
    if (sink->piece)
        sink->piece(ctx, i, p);
    const enum rc rc = over ? RC_OK : reply_add(r, (struct str){buf_str(&p->text), p->text.n}, err);
    ch->n_reasoning += reasoned || ch->in_reasoning ? p->n_tokens : 0;
    if (rc || !p->last)
        return !rc;
    if (ch->cut && a->stop == STOP_CANCELLED)
        a->stop = STOP_EOG;
    if (gen_failed(a, err))
        return false;
    if (a->stop == STOP_EOG ? reply_finish(r, err) : reply_cut(r, err))
        return false;
    if (sink->end)
        sink->end(ctx, i, a);
    return true;
}

static bool read_pieces(struct talk *t, const struct talk_sink *sink, void *ctx)
{
    struct piece *p;
    uint32_t which;
    bool ok = true;
    struct err err;
    while (ok && (p = gen_next(&t->g, &which))) {
        ok = take_piece(t, which, p, sink, ctx, &err);
        piece_free(p);
    }
    if (!ok && t->g.stream)
        stream_error(t->g.stream, &err);
    else if (!ok)
        reply_error(t->c, &err);
    return ok && !t->g.gone;
}

bool talk_run(struct talk *t, struct stream *stream, const struct talk_sink *sink, void *ctx)
{
    if (!gen_start(&t->g, t->c, &t->prompts, &t->p, stream))
        return false;
    struct err err;
    t->choices = mem_try_array(t->g.n, sizeof *t->choices);
    t->answers = mem_try_array(t->g.n, sizeof *t->answers);
    bool ok = t->choices && t->answers;
    if (!ok)
        err_set(&err, RC_NOMEM, "out of memory for the answer");
    else
        ok = make_choices(t, sink, ctx, &err);
    if (ok)
        return read_pieces(t, sink, ctx);
    reply_error(t->c, &err);
    return false;
}

uint32_t talk_n_reasoning(const struct talk *t)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < t->g.n; i++)
        n += t->choices[i].n_reasoning;
    return n;
}

/* The message as a client will send it again; NULL when memory is out. */
static json_t *message_of(const struct said *said)
{
    struct buf content = BUF_INIT;
    json_t *m = json_object(), *calls = json_array();
    said_join(said, REPLY_CONTENT, &content);
    bool bad = content.failed || json_object_set_new(m, "role", json_string("assistant")) ||
               json_object_set_new(m, "content", json_stringn(buf_str(&content), content.n));
    for (size_t i = 0; i < said->n && !bad; i++) {
        const struct said_part *p = &said->parts[i];
        if (p->kind == REPLY_CALL)
            bad = json_array_append_new(calls, json_pack("{s:s,s:s%,s:s%}", "id", p->id, "name",
                                                         buf_str(&p->name), p->name.n, "arguments",
                                                         buf_str(&p->text), p->text.n)) != 0;
    }
    bad |= json_object_set(m, "tool_calls", calls) != 0;
    json_decref(calls);
    buf_release(&content);
    if (!bad)
        return m;
    json_decref(m);
    return NULL;
}

void talk_keep(struct talk *t, uint32_t choice, const struct said *said)
{
    const struct talk_choice *ch = &t->choices[choice];
    struct replay *replay = t->c->s->replay;
    /* in the other cases what the client will send is not the whole answer, or more than it */
    if (!replay || t->answers[choice].stop != STOP_EOG || t->keep_thinking || t->continue_last ||
        said->nomem || ch->forgetful)
        return;
    struct buf reasoning = BUF_INIT;
    json_t *message = message_of(said);
    said_join(said, REPLY_REASONING, &reasoning);
    if (message && !reasoning.failed)
        replay_keep(replay, &t->look, t->c->m->vocab, &t->prompt, message,
                    (struct str){buf_str(&reasoning), reasoning.n}, ch->tokens.v, ch->tokens.n);
    json_decref(message);
    buf_release(&reasoning);
}

void talk_release(struct talk *t)
{
    for (uint32_t i = 0; t->choices && i < t->g.n; i++) {
        reply_free(t->choices[i].reply);
        tokens_release(&t->choices[i].tokens);
    }
    if (t->c && t->c->s->replay)
        replay_look_release(t->c->s->replay, &t->look);
    mem_free(t->choices);
    answers_free(&t->g, t->answers);
    gen_end(&t->g);
    chat_prompt_release(&t->prompt);
    tokens_release(&t->tokens);
    tokens_release(&t->think_end);
    mem_free(t->hints);
    json_decref(t->messages);
    json_decref(t->tools);
    json_decref(t->kwargs);
    params_release(&t->p);
}
