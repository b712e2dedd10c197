/* live.h - a trace's prompts sent to a running server, and what it reuses held against the simulator.
 *
 * The prompts are synthetic tokens of the server's vocabulary with the overlaps of the trace.  Where the trace goes on
 * with what an earlier request generated, the prompt has what the server really said; each request is told to say one
 * token more than the trace has, because the last one is never evaluated.  Message boundaries go along as
 * /completion's cache_hints, so the server's cache and the simulator's are told the same.
 *
 * One request at a time, in the trace's order: the simulator knows no others.
 */
#ifndef HOLDFAST_LAB_LIVE_H
#define HOLDFAST_LAB_LIVE_H

#include "lab/trace.h"

struct live_opts {
    const char *url, *api_key; /* api_key may be NULL */
    const char
        *against; /* afterwards every prompt again, reusing nothing, at this server: NULL = not */
    double speed; /* times as fast as recorded; 0 = each as soon as the one before has ended */
    bool no_hints;
    void (*progress)(void *ctx, uint32_t done, uint32_t total); /* may be NULL */
    void *progress_ctx;
};

struct live_one {
    uint32_t n_prompt, predicted, reported; /* tokens; reused for the latter two */
    uint32_t evaluated;
    double prompt_ms;
};

struct live_result {
    char policy[32];
    uint64_t budget_bytes, snap_bytes, token_bytes;
    uint32_t page_tokens, step;
    uint32_t n, n_differ, worst; /* requests; with predicted != reported; which differs most */
    uint64_t prompt_tokens, predicted, reported;
    double seconds, prompt_seconds;
    uint32_t n_checked, n_unequal, first_unequal; /* completions, with against */
    struct live_one *all;                         /* [n] */
};

/* What the server's cache is told by GET /cache and /v1/models decides the prediction; its cache must be empty.
 * RC_IO, RC_FORMAT (a server that is none of ours), RC_LIMIT (a prompt longer than its context), RC_STALE (its cache has
 * been used), RC_NOMEM.  Release out in any case. */
NODISCARD enum rc live_run(const struct trace *t, const struct live_opts *o,
                           struct live_result *out, struct err *err);
void live_result_release(struct live_result *r);

#endif
