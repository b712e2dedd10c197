/* fake_engine_int.h - an engine for the tests of this room: it says the prompt's tokens again (or a
 * script), one a piece, then ends; and it misbehaves on request.
 *
 * It defines engine.h's functions in the test's own program, so that the real ones are not linked.
 * The seed tells it what to do (enum fake_seed).
 */
#ifndef HOLDFAST_SERVER_FAKE_ENGINE_INT_H
#define HOLDFAST_SERVER_FAKE_ENGINE_INT_H

#include <math.h>
#include <poll.h>
#include <stdatomic.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/engine.h"
#include "text/bpe.h"
#include "text/detok.h"

enum { FAKE_CTX = 2000 };

enum fake_seed {
    FAKE_PLAIN = 0,
    FAKE_ERROR_LATE = 9001, /* STOP_ERROR after the first piece */
    FAKE_SILENT,            /* nothing until it is cancelled */
    FAKE_NO_MEMORY,         /* engine_submit fails */
    FAKE_ERROR_EARLY,       /* STOP_ERROR at once */
    FAKE_PROGRESS,          /* two pieces of progress first */
    FAKE_STOP_WORD,         /* ends with the first stop word */
    FAKE_FULL,              /* ends because the context is full */
    FAKE_OTHER_SCRIPT = 9100
};

struct engine {
    const struct vocab *vocab;
    const char *script; /* what to say instead of the prompt; NULL: the prompt */
    const char *other_script;
    atomic_uint n_submitted, n_cancelled, n_alive;
    /* what the last job asked for; the pointers are not to be followed */
    struct job_desc last;
    char last_stop[64];
    char last_hints;     /* role of the last hint */
    char last_after[16]; /* grammar_after; empty: none */
    struct logit_bias last_bias;
    snap_id dropped, pinned; /* pinned: what jobs that pin are told */
    char slot_path[256];
    int pin;          /* the last one: 1 on, -1 off */
    struct plan plan; /* of every last piece */
    struct foreign_state foreign;
};

struct job {
    struct engine *e;
    struct job_desc d;
    struct tokens saying;
    char stop[64];
    struct detok detok;
    uint32_t n_said, n_progress;
    atomic_bool cancelled;
    bool ended;
    uint64_t id;
};

enum rc engine_submit(struct engine *e, const struct job_desc *d, struct job **out, struct err *err)
{
    if (d->sampling.seed == FAKE_NO_MEMORY)
        return err_set(err, RC_NOMEM, "no memory for a request of %u tokens", d->n_prompt);
    if (d->n_prompt > FAKE_CTX)
        return err_set(err, RC_LIMIT, "prompt has %u tokens, the context %u", d->n_prompt,
                       (unsigned)FAKE_CTX);
    const char *script = d->sampling.seed == FAKE_OTHER_SCRIPT ? e->other_script : e->script;
    struct tokens saying = {0};
    bool ok = true;
    if (script)
        ok = !bpe_encode(e->vocab, str_of(script), &(struct bpe_opts){.parse_special = true},
                         &saying, NULL);
    for (uint32_t i = 0; !script && i < d->n_prompt && ok; i++)
        ok = tokens_add(&saying, d->prompt[i]);
    if (!ok) {
        tokens_release(&saying);
        return err_set(err, RC_NOMEM, "no memory for what to say");
    }
    struct job *j = mem_zalloc(sizeof *j);
    j->e = e;
    j->d = *d;
    j->saying = saying;
    detok_init(&j->detok, true);
    e->last_hints = d->n_hints ? d->hints[d->n_hints - 1].role : 0;
    if (d->n_stop)
        snprintf(j->stop, sizeof j->stop, "%s", d->stop[0]);
    snprintf(e->last_stop, sizeof e->last_stop, "%s", j->stop);
    snprintf(e->last_after, sizeof e->last_after, "%s", d->grammar_after ? d->grammar_after : "");
    if (d->n_bias)
        e->last_bias = d->bias[0];
    e->last = *d;
    j->id = atomic_fetch_add(&e->n_submitted, 1) + 1;
    atomic_fetch_add(&e->n_alive, 1);
    *out = j;
    return RC_OK;
}

static struct piece *fake_last(struct job *j, struct piece *p, enum stop_kind stop)
{
    detok_finish(&j->detok, &p->text);
    p->last = true;
    p->stop = stop;
    p->stop_word = stop == STOP_WORD ? j->stop : NULL;
    p->plan = j->e->plan;
    p->foreign = j->e->foreign;
    p->pinned = j->d.pin ? j->e->pinned : 0;
    if (stop == STOP_ERROR)
        err_set(&p->err, RC_NOMEM, "no memory for another token");
    j->ended = true;
    return p;
}

/* False when memory is out. */
static bool fake_token(struct job *j, struct piece *p)
{
    const token t = j->saying.v[j->n_said++];
    detok_add(&j->detok, j->e->vocab, t, &p->text);
    p->tokens = mem_alloc(sizeof t);
    p->tokens[0] = t;
    p->n_tokens = 1;
    if (j->d.n_probs) {
        p->n_probs = j->d.n_probs;
        p->probs = mem_try_array(1 + (size_t)p->n_probs, sizeof *p->probs);
        for (uint32_t i = 0; p->probs && i <= p->n_probs; i++)
            p->probs[i] =
                (struct prob){(token)(((uint32_t)t + (i ? i - 1 : 0)) % vocab_size(j->e->vocab)),
                              i > 1 ? -INFINITY : -0.5F};
    }
    return !p->text.failed && (p->probs || !j->d.n_probs);
}

struct piece *job_next(struct job *j, uint64_t timeout_ns)
{
    if (j->ended)
        return NULL;
    const uint64_t until = clock_mono_ns() + timeout_ns;
    const uint64_t seed = j->d.sampling.has_seed ? j->d.sampling.seed : FAKE_PLAIN;
    while (seed == FAKE_SILENT && !atomic_load(&j->cancelled)) {
        if (clock_mono_ns() >= until)
            return NULL;
        poll(NULL, 0, 1);
    }
    struct piece *p = mem_zalloc(sizeof *p);
    const bool over =
        j->n_said == j->saying.n || (j->d.n_predict >= 0 && j->n_said == (uint32_t)j->d.n_predict);
    const bool progress = seed == FAKE_PROGRESS && j->n_progress < 2;
    p->timings = (struct timings){.n_prompt = j->d.n_prompt,
                                  .n_reused = 2,
                                  .n_evaluated = j->d.n_prompt - 2,
                                  .n_predicted = j->n_said + !(over || progress),
                                  .prompt_ms = 10,
                                  .predicted_ms = 5};
    if (atomic_load(&j->cancelled))
        return fake_last(j, p, STOP_CANCELLED);
    if (seed == FAKE_ERROR_EARLY || (seed == FAKE_ERROR_LATE && j->n_said))
        return fake_last(j, p, STOP_ERROR);
    if (progress) {
        j->n_progress++;
        return p;
    }
    if (!over)
        return fake_token(j, p) ? p : fake_last(j, p, STOP_ERROR);
    return fake_last(j, p,
                     seed == FAKE_STOP_WORD               ? STOP_WORD
                     : seed == FAKE_FULL                  ? STOP_CONTEXT
                     : j->n_said == (uint32_t)j->saying.n ? STOP_EOG
                                                          : STOP_LIMIT);
}

void piece_free(struct piece *p)
{
    if (!p)
        return;
    buf_release(&p->text);
    mem_free(p->tokens);
    mem_free(p->probs);
    mem_free(p);
}

void job_cancel(struct job *j)
{
    if (!atomic_exchange(&j->cancelled, true))
        atomic_fetch_add(&j->e->n_cancelled, !j->ended);
}

void job_free(struct job *j)
{
    if (!j)
        return;
    job_cancel(j);
    atomic_fetch_sub(&j->e->n_alive, 1);
    tokens_release(&j->saying);
    mem_free(j);
}

uint64_t job_id(const struct job *j)
{
    return j->id;
}

uint64_t job_seed(const struct job *j)
{
    return j->d.sampling.seed;
}

uint32_t engine_n_ctx(const struct engine *e)
{
    (void)e;
    return FAKE_CTX;
}

bool engine_drop(struct engine *e, snap_id id)
{
    if (id != 7)
        return false;
    e->dropped = id;
    return true;
}

bool engine_pin(struct engine *e, snap_id id, bool on)
{
    if (id != 7)
        return false;
    e->pin = on ? 1 : -1;
    return true;
}

enum rc engine_slot_save(struct engine *e, uint32_t slot, const char *path, struct slot_file *out,
                         struct err *err)
{
    snprintf(e->slot_path, sizeof e->slot_path, "%s", path);
    *out = (struct slot_file){.n_tokens = 84, .n_bytes = 14309796};
    return slot == 0 ? RC_OK : err_set(err, RC_STALE, "nothing is kept");
}

enum rc engine_slot_restore(struct engine *e, uint32_t slot, const char *path,
                            struct slot_file *out, struct err *err)
{
    return engine_slot_save(e, slot, path, out, err);
}

uint32_t engine_slot_erase(struct engine *e, uint32_t slot)
{
    (void)e;
    return slot ? 0 : 84;
}

enum rc engine_view(struct engine *e, bool entries, struct engine_view *out, struct err *err)
{
    (void)e;
    (void)err;
    *out = (struct engine_view){
        .n_slots = 2,
        .n_queued = 1,
        .jobs_total = 3,
        .prompt_tokens_total = 100,
        .reused_tokens_total = 40,
        .prompt_seconds_total = 2,
        .steps_total = 9,
        .evicted[DROP_USER] = 4,
        .restores[CUT_BRANCH] = 6,
        .restore_seconds_total = .5,
        .maker = {.fingerprint = 1, .kernels = "ref", .kv_type = "f16"},
        .cache = {.budget = 1000, .bytes = 300, .n_snaps = 2, .lost_evicted = 5, .lcp_tokens = 50}};
    out->slots = mem_try_array(2, sizeof *out->slots);
    out->slots[0] =
        (struct slot_view){.id = 0, .job = 12, .n_prompt = 30, .n_done = 10, .prefill = true};
    out->slots[1] = (struct slot_view){.id = 1};
    if (entries) {
        out->n_entries = 2;
        out->entries = mem_try_array(2, sizeof *out->entries);
        out->entries[0] = (struct cache_entry){.id = 9,
                                               .pos = 100,
                                               .kind = CUT_BRANCH,
                                               .above = 7,
                                               .bytes = 200,
                                               .hits = 3,
                                               .used_ns = clock_wall_ns() - 2000000000};
        out->entries[1] =
            (struct cache_entry){.id = 7, .pos = 60, .kind = CUT_PROMPT, .bytes = 100};
    }
    return RC_OK;
}

void engine_view_release(struct engine_view *v)
{
    mem_free(v->slots);
    mem_free(v->entries);
}

#endif
