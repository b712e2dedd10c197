/* sim.h - a trace through the cache, over counted state.
 *
 * The simulator fills cache_ops with counters and calls plan_make, cache_offer, cache_commit and plan_done as the
 * engine does: what decides here is the object code that decides there.
 */
#ifndef HOLDFAST_LAB_SIM_H
#define HOLDFAST_LAB_SIM_H

#include "lab/trace.h"

struct sim_opts {
    const char *policy;
    uint64_t ram_bytes;
    uint64_t disk_bytes; /* 0 = no disk */
    double rates
        [CACHE_N_RATES]; /* prefill tokens/s, reading and writing bytes/s; 0 = the cache's guess */
    uint64_t snap_bytes, token_bytes;
    uint32_t page_tokens; /* 0 = exact tokens */
    uint32_t step;
    uint64_t tree_bytes; /* 0 = the cache's default */
    bool charge_tree;
    bool no_hints; /* as for raw prompts */
    /* Called now and then, and at the end; may be NULL. */
    void (*progress)(void *ctx, uint32_t done, uint32_t total);
    void *progress_ctx;
};

struct sim_result {
    struct cache_stats cache; /* at the end */
    uint64_t oracle_tokens, saved_tokens, prompt_tokens;
    uint64_t hits;                        /* requests that reused something */
    uint64_t snap_bytes_written;          /* copied out of running sequences */
    double read_seconds;                  /* spent reading from disk, at the given rate */
    double decide_ms_max, decide_ms_mean; /* CPU time of one request's calls into the cache */
    double seconds;
};

/* What an infinite cache with a snapshot at every token would reuse of each request: the longest prefix that
 * any earlier prompt and what was generated for it share with the prompt, at most all but one token.
 * *out [t->n], owned by the caller. */
NODISCARD enum rc sim_oracle(const struct trace *t, uint32_t **out, struct err *err);

/* oracle from sim_oracle.  reused [t->n], or NULL: tokens restored for each request. */
NODISCARD enum rc sim_run(const struct trace *t, const struct sim_opts *o, const uint32_t *oracle,
                          uint32_t *reused, struct sim_result *out, struct err *err);

#endif
