#include "server/shape.h"

#include <float.h>
#include <math.h>

static double ratio(double a, double b)
{
    return b > 0 ? a / b : 0;
}

void shape_timings(struct jwrite *w, const struct timings *t)
{
    jwrite_obj(w, "timings");
    jwrite_u64(w, "cache_n", t->n_reused);
    jwrite_u64(w, "prompt_n", t->n_evaluated);
    jwrite_fixed(w, "prompt_ms", t->prompt_ms, 3);
    jwrite_fixed(w, "prompt_per_token_ms", ratio(t->prompt_ms, t->n_evaluated), 4);
    jwrite_fixed(w, "prompt_per_second", ratio(1e3 * t->n_evaluated, t->prompt_ms), 3);
    jwrite_u64(w, "predicted_n", t->n_predicted);
    jwrite_fixed(w, "predicted_ms", t->predicted_ms, 3);
    jwrite_fixed(w, "predicted_per_token_ms", ratio(t->predicted_ms, t->n_predicted), 4);
    jwrite_fixed(w, "predicted_per_second", ratio(1e3 * t->n_predicted, t->predicted_ms), 3);
    jwrite_end_obj(w);
}

void shape_progress(struct jwrite *w, const struct timings *t)
{
    jwrite_obj(w, "prompt_progress");
    jwrite_u64(w, "total", t->n_prompt);
    jwrite_u64(w, "cache", t->n_reused);
    jwrite_u64(w, "processed", t->n_reused + t->n_evaluated);
    jwrite_fixed(w, "time_ms", t->prompt_ms, 0);
    jwrite_end_obj(w);
}

void shape_usage(struct jwrite *w, const struct gen *g, const struct answer *answers,
                 int64_t n_reasoning)
{
    uint64_t prompt = 0, cached = 0, completion = 0;
    for (uint32_t i = 0; i < g->n; i++) {
        const struct timings *t = &answers[i].timings;
        completion += t->n_predicted;
        if (i % g->per_prompt == 0) {
            prompt += t->n_prompt;
            cached += t->n_reused;
        }
    }
    jwrite_obj(w, "usage");
    jwrite_u64(w, "completion_tokens", completion);
    jwrite_u64(w, "prompt_tokens", prompt);
    jwrite_u64(w, "total_tokens", prompt + completion);
    jwrite_obj(w, "prompt_tokens_details");
    jwrite_u64(w, "cached_tokens", cached);
    jwrite_end_obj(w);
    if (n_reasoning >= 0) {
        jwrite_obj(w, "completion_tokens_details");
        jwrite_i64(w, "reasoning_tokens", n_reasoning);
        jwrite_end_obj(w);
    }
    jwrite_end_obj(w);
}

static void one_prob(struct jwrite *w, const struct call *c, const struct prob *p)
{
    const struct str s = token_bytes(c, p->id);
    jwrite_i64(w, "id", p->id);
    jwrite_strn(w, "token", s.p, s.n);
    jwrite_arr(w, "bytes");
    for (size_t i = 0; i < s.n; i++)
        jwrite_i64(w, NULL, (unsigned char)s.p[i]);
    jwrite_end_arr(w);
    jwrite_f64(w, "logprob", isfinite(p->logprob) ? (double)p->logprob : -(double)FLT_MAX);
}

void shape_probs(struct jwrite *w, const char *key, const struct call *c, const struct prob *probs,
                 size_t n, uint32_t n_probs, uint32_t n_top)
{
    jwrite_arr(w, key);
    for (size_t i = 0; i < n; i++) {
        const struct prob *p = probs + i * (1 + (size_t)n_probs);
        jwrite_obj(w, NULL);
        one_prob(w, c, p);
        jwrite_arr(w, "top_logprobs");
        for (uint32_t k = 1; k <= n_top; k++) {
            jwrite_obj(w, NULL);
            one_prob(w, c, p + k);
            jwrite_end_obj(w);
        }
        jwrite_end_arr(w);
        jwrite_end_obj(w);
    }
    jwrite_end_arr(w);
}
