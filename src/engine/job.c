#include "engine/job.h"

#include <math.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/mem.h"
#include "text/grammar.h"

/* ---- checks ---------------------------------------------------------------------------------- */

static enum rc check_range(const char *field, double v, double min, double max, struct err *err)
{
    if (v >= min && v <= max) /* false for NaN */
        return RC_OK;
    return err_set(err, RC_ARG, "%s is %g, not from %g to %g", field, v, min, max);
}

static enum rc check_sampling(const struct sampling *s, struct err *err)
{
    static const double big = 1e6;
    enum rc rc = check_range("temperature", (double)s->temperature, -big, big, err);
    if (!rc)
        rc = check_range("top_p", (double)s->top_p, 0, 1, err);
    if (!rc)
        rc = check_range("min_p", (double)s->min_p, 0, 1, err);
    if (!rc)
        rc = check_range("repeat_penalty", (double)s->repeat_penalty, 1e-3, big, err);
    if (!rc)
        rc = check_range("presence_penalty", (double)s->presence_penalty, -big, big, err);
    if (!rc)
        rc = check_range("frequency_penalty", (double)s->frequency_penalty, -big, big, err);
    if (!rc)
        rc = check_range("repeat_last_n", (double)s->repeat_last_n, -1, INT32_MAX, err);
    return rc;
}

static enum rc check_prompt(const struct job_desc *d, const struct job_limits *lim, struct err *err)
{
    if (d->n_prompt == 0)
        return err_set(err, RC_ARG, "prompt is empty");
    /* one position is for the first token generated */
    if (d->n_prompt > lim->n_ctx || (d->n_prompt == lim->n_ctx && d->n_predict != 0))
        return err_set(err, RC_LIMIT, "prompt has %u tokens, the context %u", d->n_prompt,
                       lim->n_ctx);
    for (uint32_t i = 0; i < d->n_prompt; i++)
        if (d->prompt[i] < 0 || (uint32_t)d->prompt[i] >= lim->n_vocab)
            return err_set(err, RC_ARG, "prompt: token %u is %d, the vocabulary ends at %u", i,
                           d->prompt[i], lim->n_vocab - 1);
    for (uint32_t i = 0; i < d->n_hints; i++)
        if (d->hints[i].pos > d->n_prompt || (i && d->hints[i].pos < d->hints[i - 1].pos))
            return err_set(err, RC_ARG, "hint %u at position %u is out of order or past the prompt",
                           i, d->hints[i].pos);
    return RC_OK;
}

static enum rc check_desc(const struct job_desc *d, const struct job_limits *lim, struct err *err)
{
    enum rc rc = check_prompt(d, lim, err);
    if (!rc)
        rc = check_sampling(&d->sampling, err);
    if (rc)
        return rc;
    if (d->n_predict < -1)
        return err_set(err, RC_ARG, "n_predict is %d, not -1 or more", d->n_predict);
    if (d->n_probs > lim->n_vocab)
        return err_set(err, RC_ARG, "n_probs is %u, the vocabulary has %u", d->n_probs,
                       lim->n_vocab);
    if (d->grammar_after && !*d->grammar_after)
        return err_set(err, RC_ARG, "grammar_after is empty");
    for (uint32_t i = 0; i < d->think.n_end; i++)
        if (d->think.end[i] < 0 || (uint32_t)d->think.end[i] >= lim->n_vocab)
            return err_set(err, RC_ARG, "think: token %d, the vocabulary ends at %u",
                           d->think.end[i], lim->n_vocab - 1);
    for (uint32_t i = 0; i < d->n_bias; i++) {
        const struct logit_bias *b = &d->bias[i];
        if (b->id < 0 || (uint32_t)b->id >= lim->n_vocab)
            return err_set(err, RC_ARG, "logit_bias: token %d, the vocabulary ends at %u", b->id,
                           lim->n_vocab - 1);
        if (isnan(b->bias) || b->bias == INFINITY)
            return err_set(err, RC_ARG, "logit_bias of token %d is no number", b->id);
    }
    return RC_OK;
}

/* ---- the copy -------------------------------------------------------------------------------- */

/* A copy of from [bytes] in a; *ok turns false when memory is out. */
static void *copy(struct arena *a, const void *from, size_t bytes, bool *ok)
{
    if (bytes == 0)
        return NULL;
    void *p = arena_try(a, bytes);
    if (p)
        memcpy(p, from, bytes);
    else
        *ok = false;
    return p;
}

static bool copy_desc(struct job *j, const struct job_desc *d)
{
    struct arena *a = &j->mem;
    bool ok = true;
    j->d = *d;
    j->d.prompt = copy(a, d->prompt, d->n_prompt * sizeof *d->prompt, &ok);
    j->d.hints = copy(a, d->hints, d->n_hints * sizeof *d->hints, &ok);
    j->d.think.end = copy(a, d->think.end, d->think.n_end * sizeof *d->think.end, &ok);
    j->d.bias = copy(a, d->bias, d->n_bias * sizeof *d->bias, &ok);
    const char **stop = copy(a, d->stop, d->n_stop * sizeof *d->stop, &ok);
    for (uint32_t i = 0; stop && i < d->n_stop; i++)
        stop[i] = copy(a, d->stop[i], strlen(d->stop[i]) + 1, &ok);
    j->d.stop = stop;
    j->d.grammar_after =
        d->grammar_after ? copy(a, d->grammar_after, strlen(d->grammar_after) + 1, &ok) : NULL;
    if (d->grammar)
        grammar_ref(d->grammar);
    return ok;
}

static uint64_t draw_seed(void)
{
    uint64_t s;
    if (getrandom(&s, sizeof s, 0) != (ssize_t)sizeof s)
        s = clock_wall_ns() ^ clock_mono_ns() << 20;
    return s;
}

enum rc job_new(const struct job_desc *d, const struct job_limits *lim, uint64_t id,
                struct job **out, struct err *err)
{
    enum rc rc = check_desc(d, lim, err);
    if (rc)
        return rc;
    struct job *j = mem_zalloc(sizeof *j);
    j->msg.kind = MSG_JOB;
    atomic_init(&j->refs, 1);
    atomic_init(&j->cancelled, false);
    j->id = id;
    j->seed = d->sampling.has_seed ? d->sampling.seed : draw_seed();
    j->submit_ns = clock_mono_ns();
    arena_init(&j->mem, 0);
    queue_init(&j->out);
    j->last = piece_new();
    if (!j->last || !copy_desc(j, d)) {
        job_unref(j);
        return err_set(err, RC_NOMEM, "no memory for a request of %u tokens", d->n_prompt);
    }
    *out = j;
    return RC_OK;
}

void job_ref(struct job *j)
{
    atomic_fetch_add_explicit(&j->refs, 1, memory_order_relaxed);
}

static void drain(struct job *j)
{
    for (struct qmsg *m; (m = queue_get(&j->out, 0));)
        piece_free(&((struct piece_node *)m)->piece);
}

void job_unref(struct job *j)
{
    /* release: what this holder wrote is done; acquire: the one who frees sees all of it */
    if (atomic_fetch_sub_explicit(&j->refs, 1, memory_order_acq_rel) != 1)
        return;
    drain(j);
    queue_release(&j->out);
    if (j->last)
        piece_free(&j->last->piece);
    grammar_free(j->d.grammar);
    arena_release(&j->mem);
    mem_free(j);
}

bool job_is_cancelled(const struct job *j)
{
    /* relaxed: a flag alone; the engine looks again before its next step */
    return atomic_load_explicit(&j->cancelled, memory_order_relaxed);
}

/* ---- pieces ---------------------------------------------------------------------------------- */

struct piece_node *piece_new(void)
{
    return mem_try_zalloc(sizeof(struct piece_node));
}

void piece_free(struct piece *p)
{
    if (!p)
        return;
    buf_release(&p->text);
    mem_free(p->tokens);
    mem_free(p->probs);
    mem_free((char *)p - offsetof(struct piece_node, piece));
}

void job_take_piece(struct job *j, struct piece_node *p)
{
    if (!queue_put(&j->out, &p->q))
        piece_free(&p->piece);
}

/* ---- the client's side ----------------------------------------------------------------------- */

struct piece *job_next(struct job *j, uint64_t timeout_ns)
{
    if (j->ended)
        return NULL;
    const uint64_t start = clock_mono_ns();
    for (;;) {
        const uint64_t waited = clock_mono_ns() - start;
        const uint64_t left = timeout_ns == UINT64_MAX ? timeout_ns
                              : waited < timeout_ns    ? timeout_ns - waited
                                                       : 0;
        struct piece_node *p = (struct piece_node *)queue_get(&j->out, left);
        if (p) {
            j->ended = p->piece.last;
            return &p->piece;
        }
        if (left == 0)
            return NULL;
    }
}

void job_cancel(struct job *j)
{
    atomic_store_explicit(&j->cancelled, true, memory_order_relaxed);
}

void job_free(struct job *j)
{
    if (!j)
        return;
    job_cancel(j);
    queue_close(&j->out);
    drain(j);
    job_unref(j);
}

uint64_t job_id(const struct job *j)
{
    return j->id;
}

uint64_t job_seed(const struct job *j)
{
    return j->seed;
}

const char *stop_kind_name(enum stop_kind k)
{
    static const char *const names[] = {
        [STOP_NONE] = "none",   [STOP_EOG] = "eog",         [STOP_WORD] = "word",
        [STOP_LIMIT] = "limit", [STOP_CONTEXT] = "context", [STOP_CANCELLED] = "cancelled",
        [STOP_ERROR] = "error",
    };
    return names[k];
}
