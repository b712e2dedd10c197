/* seq.h - one request's life, from a free place to its last piece.
 *
 *               seq_start
 *                   |  plan
 *        +----------+-----------+
 *        |                      |  another request is computing this prefix
 *        |                      v
 *        |                    WAIT --- seq_resume: it is there, or will not come
 *        |                      |
 *        +-- FETCH <------------+  what is restored is on disk: others go on while it is read
 *        |     | seq_fetched    |
 *        v  restore             |
 *     PREFILL <-----------------+
 *        |  ^ a slice: up to the next cut or the prompt's end; at a cut the state is kept
 *        |  |
 *        +--+
 *        |  the prompt's last row gives logits
 *        v
 *     DECODE  a token a step
 *        |
 *        v  end of generation, stop word, limit, context full, cancelled, error
 *      FREE   (seq_end, from any state: the last state is kept, the last piece sent)
 *
 * Nothing a sequence computes looks at another one.  Owner: the engine thread.
 */
#ifndef HOLDFAST_ENGINE_SEQ_H
#define HOLDFAST_ENGINE_SEQ_H

#include "engine/audit.h"
#include "engine/job.h"
#include "engine/meter.h"
#include "engine/reuse.h"
#include "engine/sample.h"
#include "engine/sched.h"
#include "engine/stop.h"
#include "engine/think.h"
#include "text/detok.h"
#include "text/grammar.h"

/* What all sequences of an engine use. */
struct seq_env {
    const struct vocab *vocab;
    const struct logger *lg;
    struct event_log *events;
    struct reuse *reuse;
    struct audit *audit; /* NULL: none */
    /* [n_seqs] the deepest entry of the request that ended in each place last; id 0: none */
    struct kept {
        snap_id id;
        uint64_t made_ns; /* tells it from a later entry of the same id */
    } * kept;
    struct sample_room *room;
    struct meter meter;
    uint32_t n_ctx;
    token (*say)(void *ctx, const struct job_desc *d, uint32_t n); /* engine_opts.say */
    void *say_ctx;
};

enum seq_state { SEQ_FREE, SEQ_WAIT, SEQ_FETCH, SEQ_PREFILL, SEQ_DECODE };

struct seq {
    enum seq_state state;
    uint32_t place; /* of the engine's seqs; set by whoever has them, kept by seq_end */
    struct job *job;
    struct live live; /* live.pos: tokens evaluated or restored */
    token *tokens;    /* [n_tokens] prompt, then what was sampled */
    size_t n_tokens, cap_tokens;
    struct sampler sampler;
    struct grammar_state *grammar; /* where the answer stands in its grammar; NULL: it has none */
    struct detok detok;
    struct stopper stopper;
    struct think think;
    int stop_word; /* with STOP_WORD: which */
    /* said but not sent yet */
    struct buf text;
    uint32_t n_sent;    /* generated tokens that pieces have carried */
    struct prob *probs; /* [generated - n_sent][1 + n_probs] */
    size_t cap_probs;
    snap_id pinned;              /* with job_desc.pin: what was */
    uint64_t begun_ns, first_ns; /* first_ns: of the first token; 0 before */
};

/* Takes over the caller's reference to j.  Afterwards WAIT, PREFILL, or FREE when it ended at once. */
void seq_start(struct seq *s, struct seq_env *env, struct job *j);
/* From WAIT: plans again.  from: the sequence waited for, when it stands at the position waited for;
 * its state is taken over unless the cache has as much. */
void seq_resume(struct seq *s, struct seq_env *env, const struct seq *from, bool may_wait);
/* From FETCH, between two steps: goes on when the disk is done.  Afterwards FETCH, PREFILL, or WAIT when it was lost and
 * the plan made again. */
void seq_fetched(struct seq *s, struct seq_env *env);
/* What it could use of the next step (PREFILL or DECODE). */
struct sched_row seq_row(const struct seq *s);
/* Its n tokens of the next step; logits [n_vocab] is room for a row of them.  False when memory is out:
 * the sequence has then ended. */
NODISCARD bool seq_run(struct seq *s, struct seq_env *env, uint32_t n, float *logits,
                       struct run *out);
/* The step is done: what run said. */
void seq_ran(struct seq *s, struct seq_env *env, const struct run *run);
/* err: with STOP_ERROR. */
void seq_end(struct seq *s, struct seq_env *env, enum stop_kind stop, const struct err *err);

#endif
