#include "lab/avoid.h"

#include <math.h>

void rate_init(struct rate *r)
{
    *r = (struct rate){0};
    hist_init(&r->per_turn);
}

void rate_release(struct rate *r)
{
    hist_release(&r->per_turn);
}

void rate_add(struct rate *r, const struct turn *t)
{
    if (t->timed && t->evaluated > 0 && t->prefill_ms > 0) {
        r->n++;
        r->tokens += (double)t->evaluated;
        r->ms += t->prefill_ms;
        if (t->evaluated >= RATE_LONG) {
            r->n_long++;
            r->long_tokens += (double)t->evaluated;
            r->long_ms += t->prefill_ms;
            hist_add(&r->per_turn, (double)t->evaluated * 1e3 / t->prefill_ms);
        }
    } else if (t->rate_tokens > 0 && t->rate_s > 0) {
        r->n_progress++;
        r->progress_tokens += (double)t->rate_tokens;
        r->progress_s += t->rate_s;
    }
}

double rate_of(const struct rate *r, const char **how)
{
    if (r->n_long) {
        *how = "tokens evaluated / prefill time, over the timed turns that evaluated at least 512 "
               "tokens";
        return r->long_tokens * 1e3 / r->long_ms;
    }
    if (r->n) {
        *how = "tokens evaluated / prefill time, over all timed turns (none evaluated 512 tokens: "
               "too low "
               "for a long prefill)";
        return r->tokens * 1e3 / r->ms;
    }
    if (r->progress_s > 0) {
        *how =
            "tokens between progress lines / time between them (the log prints no prefill timing)";
        return r->progress_tokens / r->progress_s;
    }
    *how = "the log gives no prefill time: no rate";
    return NAN;
}

static void fixed_or_null(struct jwrite *w, const char *key, double v, int decimals)
{
    if (isnan(v) || isinf(v))
        jwrite_null(w, key);
    else
        jwrite_fixed(w, key, v, decimals);
}

void rate_json(struct rate *r, struct jwrite *w, const char *key)
{
    const char *how;
    const double rate = rate_of(r, &how);
    jwrite_obj(w, key);
    fixed_or_null(w, "tokens_per_second", rate, 1);
    jwrite_str(w, "how", how);
    jwrite_u64(w, "turns", r->n_long ? r->n_long : r->n ? r->n : r->n_progress);
    fixed_or_null(w, "p10", hist_quantile(&r->per_turn, 0.1), 1);
    fixed_or_null(w, "median", hist_quantile(&r->per_turn, 0.5), 1);
    fixed_or_null(w, "p90", hist_quantile(&r->per_turn, 0.9), 1);
    jwrite_end_obj(w);
}

void avoid_json(struct rate *r, uint64_t tokens, uint64_t unknown_turns, uint64_t rounded_turns,
                struct jwrite *w, const char *key)
{
    const char *how;
    const double rate = rate_of(r, &how), n = (double)tokens;
    jwrite_obj(w, key);
    jwrite_u64(w, "tokens", tokens);
    fixed_or_null(w, "seconds", n / rate, 2);
    fixed_or_null(w, "seconds_low", n / hist_quantile(&r->per_turn, 0.9), 2);
    fixed_or_null(w, "seconds_high", n / hist_quantile(&r->per_turn, 0.1), 2);
    jwrite_u64(w, "turns_without_common_prefix", unknown_turns);
    jwrite_u64(w, "turns_with_rounded_common_prefix", rounded_turns);
    jwrite_arr(w, "assumptions");
    jwrite_str(
        w, NULL,
        "Counted are tokens at the front of a prompt that the slot had computed and held, and "
        "that were evaluated again; the last prompt token never counts.");
    jwrite_str(
        w, NULL,
        "An upper bound for the slot: it supposes a state kept at every divergence, at no cost.");
    jwrite_str(w, NULL,
               "A lower bound for the traffic: what a prompt shares with anything but the slot's "
               "present content is not in the log and counts nothing.");
    jwrite_str(w, NULL,
               "Seconds are tokens at the rate given under 'rate'; low and high at the "
               "90th and the 10th percentile of the turns' own rates.");
    if (unknown_turns)
        jwrite_str(w, NULL, "Turns whose common prefix the log does not give count nothing.");
    jwrite_end_arr(w);
    jwrite_end_obj(w);
}
