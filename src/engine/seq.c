#include "engine/seq.h"

#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/turn.h"

static uint32_t n_prompt(const struct seq *s)
{
    return s->job->d.n_prompt;
}

static uint32_t n_generated(const struct seq *s)
{
    return (uint32_t)s->n_tokens - n_prompt(s);
}

static void end_nomem(struct seq *s, struct seq_env *env, const char *what)
{
    struct err err;
    err_set(&err, RC_NOMEM, "no memory for %s", what);
    seq_end(s, env, STOP_ERROR, &err);
}

/* ---- pieces ---------------------------------------------------------------------------------- */

static struct timings timings(const struct seq *s)
{
    const uint64_t now = clock_mono_ns();
    const uint64_t begun = s->begun_ns ? s->begun_ns : now;
    const uint64_t first = s->first_ns ? s->first_ns : now;
    return (struct timings){
        .n_prompt = n_prompt(s),
        .n_reused = s->live.n_reused,
        .n_evaluated = MIN(s->live.pos, n_prompt(s)) - s->live.n_reused,
        .n_predicted = n_generated(s),
        .n_shared = s->live.n_shared,
        .prompt_ms = (double)(first - begun) * 1e-6,
        .predicted_ms = (double)(now - first) * 1e-6,
        .queue_ms = (double)(begun - s->job->submit_ns) * 1e-6,
    };
}

/* Moves what was said but not sent into p.  False, and p without tokens, when memory is out. */
static bool fill_piece(struct seq *s, struct piece *p)
{
    const uint32_t n = n_generated(s) - s->n_sent;
    bool ok = !s->text.failed;
    p->progress = (float)MIN(s->live.pos, n_prompt(s)) / (float)n_prompt(s);
    p->timings = timings(s);
    p->slot = s->live.slot == LIVE_NO_SLOT ? -1 : (int32_t)s->live.slot;
    p->text = s->text;
    buf_init(&s->text);
    if (n) {
        p->tokens = mem_try_array(n, sizeof *p->tokens);
        ok = ok && p->tokens;
    }
    if (p->tokens) {
        memcpy(p->tokens, s->tokens + n_prompt(s) + s->n_sent, n * sizeof *p->tokens);
        p->n_tokens = n;
        if (s->job->d.n_probs) {
            p->probs = s->probs;
            p->n_probs = s->job->d.n_probs;
            s->probs = NULL;
            s->cap_probs = 0;
        }
    }
    s->n_sent += n;
    return ok;
}

static void send(struct seq *s, struct seq_env *env)
{
    struct piece_node *p = piece_new();
    if (!p) {
        end_nomem(s, env, "a piece of the answer");
        return;
    }
    const bool ok = fill_piece(s, &p->piece);
    job_take_piece(s->job, p);
    if (!ok)
        end_nomem(s, env, "a piece of the answer");
}

/* ---- start ----------------------------------------------------------------------------------- */

static void begin(struct seq *s, struct seq_env *env, bool may_wait)
{
    const struct job_desc *d = &s->job->d;
    const struct plan_req req = {.prompt = d->prompt,
                                 .n = d->n_prompt,
                                 .hints = d->hints,
                                 .n_hints = d->n_hints,
                                 .family = d->family,
                                 .no_reuse = d->no_cache,
                                 .may_wait = may_wait && !d->no_cache};
    struct err err;
    if (reuse_begin(env->reuse, &s->live, &req, &err)) {
        seq_end(s, env, STOP_ERROR, &err);
        return;
    }
    s->state = SEQ_WAIT;
    if (s->live.plan.wait_ticket)
        return;
    s->state = s->live.fetching ? SEQ_FETCH : SEQ_PREFILL;
    if (!s->begun_ns)
        s->begun_ns = clock_mono_ns();
}

void seq_fetched(struct seq *s, struct seq_env *env)
{
    if (reuse_is_reading(env->reuse, &s->live))
        return;
    struct err err;
    const enum rc rc = reuse_fetched(env->reuse, &s->live, &err);
    if (!rc)
        s->state = SEQ_PREFILL;
    else if (rc == RC_STALE)
        begin(s, env, true);
    else
        seq_end(s, env, STOP_ERROR, &err);
}

/* A prompt that is only to be kept, and is: nothing to evaluate, and no second state beside it. */
static bool pin_kept(struct seq *s, struct seq_env *env)
{
    const struct job_desc *d = &s->job->d;
    if (d->pin && d->n_predict == 0 && !d->no_cache)
        s->pinned = reuse_pin_kept(env->reuse, d->prompt, d->n_prompt);
    struct cache_entry e;
    if (!s->pinned || !cache_entry_get(reuse_cache(env->reuse), s->pinned, &e))
        return false;
    s->live.plan.restore_kind = e.kind;
    s->begun_ns = s->first_ns = clock_mono_ns();
    s->live.pos = s->live.n_reused = s->live.plan.lcp = s->live.plan.start = d->n_prompt;
    seq_end(s, env, STOP_LIMIT, NULL);
    return true;
}

void seq_start(struct seq *s, struct seq_env *env, struct job *j)
{
    const struct job_desc *d = &j->d;
    *s = (struct seq){.state = SEQ_WAIT,
                      .place = s->place,
                      .job = j,
                      .live.id = j->id,
                      .live.slot = s->place,
                      .stop_word = -1};
    sampler_init(&s->sampler, &d->sampling, j->seed, d->bias, d->n_bias);
    s->sampler.n_mask = vocab_size(env->vocab);
    think_init(&s->think, &d->think);
    detok_init(&s->detok, d->special);
    stopper_init(&s->stopper, d->stop, d->n_stop);
    buf_init(&s->text);
    if (!mem_grow(&s->tokens, &s->cap_tokens, (size_t)d->n_prompt + 1, sizeof *s->tokens)) {
        s->n_tokens = d->n_prompt; /* so that none count as generated */
        end_nomem(s, env, "the prompt");
        return;
    }
    memcpy(s->tokens, d->prompt, d->n_prompt * sizeof *s->tokens);
    s->n_tokens = d->n_prompt;
    struct err err;
    if (d->grammar && grammar_state_new(d->grammar, d->grammar_after, &s->grammar, &err)) {
        seq_end(s, env, STOP_ERROR, &err);
        return;
    }
    if (!pin_kept(s, env))
        begin(s, env, true);
}

void seq_resume(struct seq *s, struct seq_env *env, const struct seq *from, bool may_wait)
{
    begin(s, env, may_wait);
    if (s->state != SEQ_PREFILL || !from || s->live.pos >= from->live.pos ||
        from->live.pos >= n_prompt(s))
        return;
    struct err err;
    if (reuse_take_over(env->reuse, &s->live, &from->live, &err))
        log_debug(env->lg, "request %" PRIu64 ": %s; evaluates the prefix itself", s->job->id,
                  err.msg);
}

/* ---- steps ----------------------------------------------------------------------------------- */

struct sched_row seq_row(const struct seq *s)
{
    if (s->state == SEQ_DECODE)
        return (struct sched_row){.want = 1, .decode = true};
    const struct cut *cut = reuse_next_cut(&s->live);
    const uint32_t end = cut ? MIN(cut->pos, n_prompt(s)) : n_prompt(s);
    return (struct sched_row){.want = end - s->live.pos};
}

bool seq_run(struct seq *s, struct seq_env *env, uint32_t n, float *logits, struct run *out)
{
    struct err err;
    if (reuse_extend(env->reuse, &s->live, n, &err)) {
        seq_end(s, env, STOP_ERROR, &err);
        return false;
    }
    const uint32_t end = s->live.pos + n;
    *out = (struct run){.tokens = s->tokens + s->live.pos,
                        .n = n,
                        .pos = s->live.pos,
                        .kv = &s->live.kv,
                        .rec = s->live.rec,
                        .n_logits = end == s->n_tokens && s->job->d.n_predict != 0,
                        .logits = logits};
    return true;
}

/* Why the generation ends with the token just added, or STOP_NONE. */
static enum stop_kind add_token(struct seq *s, const struct seq_env *env, token t)
{
    const struct job_desc *d = &s->job->d;
    s->tokens[s->n_tokens++] = t;
    const bool eog = vocab_is_eog(env->vocab, t);
    if (!eog || d->special) { /* the end mark is no part of the answer */
        struct buf whole = BUF_INIT;
        detok_add(&s->detok, env->vocab, t, &whole);
        s->stop_word = stopper_add(&s->stopper, buf_str(&whole), whole.n, &s->text);
        s->text.failed |= whole.failed;
        buf_release(&whole);
    }
    if (s->stop_word >= 0)
        return STOP_WORD;
    if (eog || (s->grammar && grammar_must_end(s->grammar)))
        return STOP_EOG;
    if (d->n_predict >= 0 && n_generated(s) >= (uint32_t)d->n_predict)
        return STOP_LIMIT;
    return s->n_tokens >= env->n_ctx ? STOP_CONTEXT : STOP_NONE;
}

static void sample(struct seq *s, struct seq_env *env, float *logits)
{
    const struct job_desc *d = &s->job->d;
    struct prob *probs = NULL;
    if (d->n_probs) {
        const size_t at = n_generated(s) - s->n_sent, width = 1 + (size_t)d->n_probs;
        if (!mem_grow(&s->probs, &s->cap_probs, (at + 1) * width, sizeof *probs)) {
            end_nomem(s, env, "log-probabilities");
            return;
        }
        probs = s->probs + at * width;
    }
    if (!mem_grow(&s->tokens, &s->cap_tokens, s->n_tokens + 1, sizeof *s->tokens)) {
        end_nomem(s, env, "another token");
        return;
    }
    struct err err;
    if (s->grammar && grammar_mask(s->grammar, &s->sampler.mask, &err)) {
        seq_end(s, env, STOP_ERROR, &err);
        return;
    }
    s->sampler.forced = env->say ? env->say(env->say_ctx, d, n_generated(s)) : -1;
    const token ends = think_next(&s->think);
    s->sampler.forced = ends >= 0 ? ends : s->sampler.forced;
    const token t = sampler_next(&s->sampler, env->room, logits, s->tokens, (uint32_t)s->n_tokens,
                                 probs, d->n_probs);
    if (t < 0) {
        err_set(&err, RC_ARG, "no token may follow: %s, or no logit is a number",
                s->grammar ? "what the grammar allows here is forbidden" : "all are forbidden");
        seq_end(s, env, STOP_ERROR, &err);
        return;
    }
    think_note(&s->think, vocab_bytes(env->vocab, t, true));
    if (s->grammar && grammar_accept(s->grammar, t, &err)) {
        seq_end(s, env, STOP_ERROR, &err);
        return;
    }
    const enum stop_kind stop = add_token(s, env, t);
    if (stop)
        seq_end(s, env, stop, NULL);
    else if (s->text.n || s->text.failed)
        send(s, env);
}

/* The state before the last token serves who sends the prompt again.  One that is to be pinned whole is the beginning
 * of others. */
static bool is_wanted(const struct seq *s, const struct cut *cut)
{
    const struct job_desc *d = &s->job->d;
    return !d->pin || cut->kind != CUT_PROMPT || cut->pos + 1 != d->n_prompt;
}

void seq_ran(struct seq *s, struct seq_env *env, const struct run *run)
{
    reuse_advance(env->reuse, &s->live, run->n);
    if (s->state == SEQ_PREFILL) {
        for (uint32_t i = 0; i < s->live.plan.n_cuts; i++)
            if (s->live.plan.cuts[i].pos == s->live.pos && is_wanted(s, &s->live.plan.cuts[i]))
                reuse_keep(env->reuse, &s->live, s->tokens, s->live.plan.cuts[i].kind);
        if (s->live.pos < n_prompt(s)) {
            send(s, env); /* progress */
            return;
        }
        s->state = SEQ_DECODE;
        s->first_ns = clock_mono_ns();
        if (!run->n_logits) { /* n_predict 0: the prompt is wanted in the cache, no more */
            if (s->job->d.pin)
                s->pinned = reuse_pin(env->reuse, &s->live, s->tokens);
            seq_end(s, env, STOP_LIMIT, NULL);
            return;
        }
    }
    sample(s, env, run->logits);
}

/* ---- end ------------------------------------------------------------------------------------- */

static void account(struct seq *s, struct seq_env *env, const struct piece *last)
{
    const struct timings *t = &last->timings;
    audit_note(env->audit, t->n_reused > t->n_shared ? last->plan.restore : 0);
    struct meter *m = &env->meter;
    m->jobs++;
    m->prompt_tokens += t->n_evaluated;
    m->reused_tokens += t->n_reused;
    m->predicted_tokens += t->n_predicted;
    m->prompt_ns += (uint64_t)(t->prompt_ms * 1e6);
    m->predicted_ns += (uint64_t)(t->predicted_ms * 1e6);
    static const char *const phases[] = {[SEQ_FREE] = "free",
                                         [SEQ_WAIT] = "wait",
                                         [SEQ_FETCH] = "fetch",
                                         [SEQ_PREFILL] = "prefill",
                                         [SEQ_DECODE] = "decode"};
    if (last->stop == STOP_CANCELLED)
        event_cancel(env->events, &(struct event_cancel){.id = s->job->id,
                                                         .n_done = s->live.pos,
                                                         .phase = phases[s->state]});
    event_turn(env->events, &(struct event_turn){.id = s->job->id,
                                                 .n_prompt = t->n_prompt,
                                                 .n_reused = t->n_reused,
                                                 .n_evaluated = t->n_evaluated,
                                                 .n_generated = t->n_predicted,
                                                 .prefill_ms = t->prompt_ms,
                                                 .decode_ms = t->predicted_ms,
                                                 .stop = stop_kind_name(last->stop)});
    struct buf line = BUF_INIT;
    turn_line(&(struct turn){.id = s->job->id,
                             .t = *t,
                             .plan = last->plan,
                             .foreign = last->foreign,
                             .stop = last->stop,
                             .error = last->err.msg,
                             .now_ns = clock_wall_ns()},
              &line);
    if (!reuse_speaks(env->reuse))
        log_info(env->lg, "%s", buf_str(&line));
    buf_release(&line);
}

/* The deepest entry that there is of what was just evaluated. */
static void note_kept(const struct seq *s, struct seq_env *env)
{
    struct cache *cache = reuse_cache(env->reuse);
    const struct plan *p = &s->live.plan;
    struct cache_entry e;
    snap_id id = cache_find(cache, s->tokens, s->live.pos);
    for (uint32_t i = p->n_cuts; i-- && !id;)
        if (p->cuts[i].pos < s->live.pos)
            id = cache_find(cache, s->tokens, p->cuts[i].pos);
    if (!id)
        id = cache_find(cache, s->tokens, p->start);
    if (id && cache_entry_get(cache, id, &e))
        env->kept[s->place] = (struct kept){id, e.made_ns};
    else
        env->kept[s->place] = (struct kept){0};
}

void seq_end(struct seq *s, struct seq_env *env, enum stop_kind stop, const struct err *err)
{
    struct piece_node *node = s->job->last; /* made with the job, so that this cannot fail */
    s->job->last = NULL;
    struct piece *p = &node->piece;
    p->last = true;
    if (s->stop_word < 0 && stop != STOP_ERROR) {
        struct buf rest = BUF_INIT;
        if (stop == STOP_EOG) /* else it was cut, and the rest of a character would have come */
            detok_finish(&s->detok, &rest);
        s->stop_word = stopper_add(&s->stopper, buf_str(&rest), rest.n, &s->text);
        stopper_finish(&s->stopper, &s->text);
        s->text.failed |= rest.failed;
        buf_release(&rest);
    }
    if (!fill_piece(s, p) && stop != STOP_ERROR) {
        stop = STOP_ERROR;
        err_set(&p->err, RC_NOMEM, "no memory for the end of the answer");
    } else if (err) {
        p->err = *err;
    }
    p->stop = stop;
    p->stop_word = stop == STOP_WORD ? s->job->d.stop[s->stop_word] : NULL;
    p->plan = s->live.plan;
    p->foreign = s->live.foreign;
    p->pinned = s->pinned;
    account(s, env, p);
    struct job *job = s->job;
    job_take_piece(job, node);
    s->live.n_answer = stop == STOP_CANCELLED || stop == STOP_ERROR ? -1 : (int64_t)n_generated(s);
    s->live.in_prompt = s->live.pos < n_prompt(s);
    if (s->live.rec) { /* it began */
        reuse_end(env->reuse, &s->live, s->tokens);
        note_kept(s, env);
    }
    mem_free(s->tokens);
    mem_free(s->probs);
    buf_release(&s->text);
    stopper_release(&s->stopper);
    grammar_state_free(s->grammar);
    *s = (struct seq){.state = SEQ_FREE, .place = s->place};
    job_unref(job);
}
