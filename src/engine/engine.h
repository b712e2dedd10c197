/* engine.h - many sequences at once over one model: start, submit, read, cancel, stop.
 *
 * One engine thread owns scheduler, cache and sequences.  Any thread may submit jobs, read their
 * pieces and cancel them.
 */
#ifndef HOLDFAST_ENGINE_ENGINE_H
#define HOLDFAST_ENGINE_ENGINE_H

#include "base/buf.h"
#include "base/err.h"
#include "base/event.h"
#include "base/log.h"
#include "cache/cache.h"
#include "engine/drop.h"
#include "model/model.h"
#include "state/disk.h"
#include "text/vocab.h"

struct engine;
struct job;
struct job_desc;

struct engine_opts {
    struct model *model;       /* borrowed; no other engine may run it meanwhile */
    const struct vocab *vocab; /* borrowed */
    const struct logger *lg;
    struct event_log *events; /* may be NULL */
    uint32_t n_ctx;           /* per request; 0 = the model's */
    uint32_t n_parallel;      /* sequences at once; 0 = 4 */
    uint32_t n_batch; /* rows of one step, -b; 0 or more than one forward takes: the model's */
    uint64_t cache_ram_bytes;
    const char
        *cache_dir; /* what goes from memory is kept here, for the next start too; NULL = nowhere */
    uint64_t cache_disk_bytes; /* at most so much of it; 0 = nothing */
    uint64_t
        disk_idle_ns; /* without a job for so long, write what is only in memory; 0 = half a second */
    double
        disk_read_rate; /* for tests: bytes/s that decisions count with; 0: as measured, against prefill */
    double audit_restores;    /* share of restored states that are evaluated again when idle */
    uint64_t kv_max_bytes;    /* hard limit of all KV pages, live and cached; 0 = none */
    uint32_t cache_step;      /* CUT_GRID; see cache.h */
    const char *cache_policy; /* NULL = "hold" */
    /* For tests: what is sampled as the answer's token n (from 0) instead of what the model says; -1:
     * as the model has it.  On the engine's thread. */
    token (*say)(void *ctx, const struct job_desc *d, uint32_t n);
    void *say_ctx;
};

/* Whether engine_start knows that policy: RC_ARG names those there are. */
NODISCARD enum rc engine_check_policy(const char *name, struct err *err);
NODISCARD enum rc engine_start(const struct engine_opts *o, struct engine **out, struct err *err);
/* Lets jobs finish for up to drain_ns, cancels the rest, joins the thread, frees e.  No other call on e
 * may be under way or come later; jobs stay readable until job_free. */
void engine_stop(struct engine *e, uint64_t drain_ns);

struct sampling {
    float temperature; /* <= 0: greedy */
    int32_t top_k;     /* <= 0: off */
    float top_p, min_p;
    float repeat_penalty, presence_penalty, frequency_penalty;
    int32_t repeat_last_n; /* -1: whole context */
    uint64_t seed;
    bool has_seed; /* else drawn */
    bool ignore_eos;
};
/* llama-server's defaults. */
void sampling_defaults(struct sampling *s);

struct logit_bias {
    token id;
    float bias; /* -INFINITY: never */
};

struct grammar;

/* Ends reasoning after budget tokens of it: end [n_end] is then said whatever the model would say. */
struct think_limit {
    const token *end; /* stands for "</think>" and what is round it */
    uint32_t n_end;   /* 0: no limit */
    uint32_t budget;
    bool
        open; /* the prompt ends in reasoning; else it begins where the answer begins with <think> */
};

struct job_desc { /* all borrowed for the call */
    const token *prompt;
    uint32_t n_prompt;
    const struct cache_hint *hints;
    uint32_t n_hints;
    int32_t n_predict; /* -1: until the context is full; 0: only evaluate the prompt */
    struct sampling sampling;
    const struct logit_bias *bias;
    uint32_t n_bias;
    const char *const *stop; /* empty ones never match */
    uint32_t n_stop;
    /* What the answer has to follow, or NULL; the job takes a reference of its own, and only the engine's
     * thread runs it (grammar.h).  grammar_after: from behind this text on ("</think>"); NULL: at once.
     * The answer ends where the grammar has to, and by itself only where it may; a place from which no token
     * leads on is an error (STOP_ERROR). */
    struct grammar *grammar;
    const char *grammar_after;
    struct think_limit think;
    uint32_t n_probs; /* top log-probabilities wanted with each token */
    uint64_t family;  /* plan_req.family: 0 = none */
    bool no_cache;    /* cache_prompt: false */
    bool pin;         /* with n_predict 0: the state is kept until engine_pin says otherwise */
    bool special;     /* show control tokens in the text */
};

enum stop_kind {
    STOP_NONE,
    STOP_EOG,
    STOP_WORD,
    STOP_LIMIT,
    STOP_CONTEXT,
    STOP_CANCELLED,
    STOP_ERROR
};

struct timings { /* n_reused + n_evaluated = n_prompt once the prompt is done */
    uint32_t n_prompt, n_reused, n_evaluated, n_predicted;
    uint32_t n_shared; /* of n_reused: taken over from a request in flight with the same prefix */
    double prompt_ms, predicted_ms, queue_ms;
};

struct prob {
    token id;
    float logprob;
};

/* What a job says next.  The reader owns it (piece_free).  While the prompt is evaluated there are
 * pieces with progress alone, one a step. */
struct piece {
    struct buf text; /* whole characters; never part of a stop string; may be empty */
    token *tokens;   /* those that text came from */
    uint32_t n_tokens;
    struct prob *probs; /* [n_tokens][1 + n_probs]: the sampled one first; NULL unless asked for */
    uint32_t n_probs;
    float progress; /* prefill done, 0..1; 1 once tokens come */
    bool last;
    enum stop_kind stop;    /* with last */
    const char *stop_word;  /* with STOP_WORD: borrowed from the job */
    struct err err;         /* with STOP_ERROR */
    struct timings timings; /* so far */
    int32_t slot;     /* the place it runs in, as engine_slot_save has it; -1: it never got one */
    struct plan plan; /* with last: what was reused and why not more */
    struct foreign_state foreign; /* with last: what another maker's file has beyond plan.lcp */
    snap_id pinned; /* with last, of a job that pins: the entry; 0 when it could not be kept */
};

/* RC_ARG naming the field; RC_LIMIT when the prompt does not fit (both numbers in the message). */
NODISCARD enum rc engine_submit(struct engine *e, const struct job_desc *d, struct job **out,
                                struct err *err);
/* The next piece, waiting up to timeout_ns; NULL when none came. After the last piece always NULL. */
struct piece *job_next(struct job *j, uint64_t timeout_ns);
void piece_free(struct piece *p);
void job_cancel(struct job *j);
/* Cancels if it still runs. */
void job_free(struct job *j);
uint64_t job_id(const struct job *j);
uint64_t job_seed(const struct job *j); /* the one given, or the one drawn */
const char *stop_kind_name(enum stop_kind k);

uint32_t engine_n_ctx(const struct engine *e);
/* A user's DELETE of a cached entry: false when there is none of that id or it is in use. */
bool engine_drop(struct engine *e, snap_id id);
/* Pins an entry, or takes the pin away: false when there is none of that id. */
bool engine_pin(struct engine *e, snap_id id, bool on);

/* The deepest state kept of the request that ended in a place last, by file.  They run on the caller's thread but for the
 * copies.  RC_ARG: no such place; RC_STALE: nothing is kept, or the file is of another model; RC_LIMIT: it does not fit
 * into the cache or the context; else as state/segment.h. */
struct slot_file {
    uint32_t n_tokens;
    uint64_t n_bytes;
};
NODISCARD enum rc engine_slot_save(struct engine *e, uint32_t slot, const char *path,
                                   struct slot_file *out, struct err *err);
/* Puts a saved state into the cache, where it competes like any other. */
NODISCARD enum rc engine_slot_restore(struct engine *e, uint32_t slot, const char *path,
                                      struct slot_file *out, struct err *err);
/* Drops it from the cache; its tokens, or 0 when nothing was kept or it is in use. */
uint32_t engine_slot_erase(struct engine *e, uint32_t slot);

/* Times that the cache keeps (entries' used_ns and made_ns, plan.evicted_ns) are clock_wall_ns().
 *
 * A picture of the engine for /slots, /metrics and /cache, taken between two steps. */
struct slot_view {
    uint32_t id;
    uint64_t job; /* 0 = idle */
    uint32_t n_prompt, n_done, n_predicted;
    bool prefill;
};
/* What a slot keeps between requests, with --cache-policy pxa alone: its last sequence with its state, and n earlier
 * states of it, engine_view.states[first ..]. */
struct held_view {
    uint32_t n_tokens; /* of a busy one: before its request */
    bool busy;
    uint32_t first, n;
};
struct held_state {
    uint32_t pos, hits;
    enum cut_kind kind;
};
struct engine_view {
    struct slot_view *slots;
    uint32_t n_slots;
    struct held_view *held; /* [n_slots], or NULL; with the entries */
    struct held_state *states;
    uint32_t n_queued;
    struct cache_stats cache;
    struct cache_entry *entries; /* NULL unless asked for */
    uint32_t n_entries;
    uint64_t kv_bytes, snap_bytes;
    /* of one: what the cache counts with */
    uint64_t bytes_per_snap, bytes_per_token;
    uint32_t page_tokens, cache_step;
    struct segment_maker maker; /* of states here, as against piece.foreign */
    bool has_disk;
    struct disk_stats disk;
    /* of ended jobs; prompt_tokens_total counts those evaluated, without the reused ones */
    uint64_t jobs_total, prompt_tokens_total, reused_tokens_total, predicted_tokens_total;
    double prompt_seconds_total, predicted_seconds_total;
    uint64_t steps_total;
    uint64_t evicted[DROP_N];                           /* entries, or slots' states */
    uint64_t restores[CUT_N_KINDS], restores_from_disk; /* by the kind of what was restored */
    double restore_seconds_total;
    uint64_t audits_equal, audits_different, audits_skipped;
};
NODISCARD enum rc engine_view(struct engine *e, bool entries, struct engine_view *out,
                              struct err *err);
void engine_view_release(struct engine_view *v);

/* For tests: a bit of an entry's snapshot changes; false when there is none of that id in memory. */
bool engine_spoil(struct engine *e, snap_id id);
/* For tests: every invariant of the cache and of what its entries hold, between two steps; aborts when
 * one is broken. */
void engine_check(struct engine *e);

#endif
