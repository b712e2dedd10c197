/* avoid.h - what the avoidable prefill costs: tokens, and seconds at the rate the log itself shows. */
#ifndef HOLDFAST_LAB_AVOID_H
#define HOLDFAST_LAB_AVOID_H

#include "base/hist.h"
#include "base/json.h"
#include "lab/turn.h"

struct rate {
    /* all timed turns; those that evaluated at least RATE_LONG tokens; between progress lines */
    uint64_t n, n_long, n_progress;
    double tokens, ms, long_tokens, long_ms, progress_tokens, progress_s;
    struct hist per_turn; /* tokens per second of the long ones */
};
enum { RATE_LONG = 512 };

void rate_init(struct rate *r);
void rate_release(struct rate *r);
void rate_add(struct rate *r, const struct turn *t);

/* Tokens per second a re-prefill runs at, and how it was computed (a fixed sentence).  NaN when the log
 * gives no time: there is then no rate. */
double rate_of(const struct rate *r, const char **how);
void rate_json(struct rate *r, struct jwrite *w, const char *key);

/* {"tokens":..,"seconds":..,"seconds_low":..,"seconds_high":..,"assumptions":[..]} under key; seconds are
 * null without a rate. unknown_turns: those whose common prefix the log does not give. */
void avoid_json(struct rate *r, uint64_t tokens, uint64_t unknown_turns, uint64_t rounded_turns,
                struct jwrite *w, const char *key);

#endif
