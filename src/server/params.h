/* params.h - the fields of a generation request that all protocols share: sampling, limits, stops.
 *
 * Names and ranges are llama-server's, with OpenAI's names beside them (max_tokens, n).  What a model
 * server elsewhere would do and we do not is refused by name unless it asks for nothing; fields that
 * nobody knows are ignored.
 */
#ifndef HOLDFAST_SERVER_PARAMS_H
#define HOLDFAST_SERVER_PARAMS_H

#include "server/constrain.h"

enum { MAX_STOPS = 32, MAX_CHOICES = 64 };

struct params {
    struct sampling sampling;
    int32_t n_predict;
    uint32_t n;                  /* completions of each prompt */
    const char *stop[MAX_STOPS]; /* borrowed from the body */
    uint32_t n_stop;
    struct logit_bias *bias; /* [n_bias] */
    size_t n_bias, cap_bias;
    uint32_t n_probs;
    struct constraint want;
    const char *grammar_after; /* job_desc's; NULL: at once */
    uint64_t family;
    int32_t think_budget; /* tokens of reasoning; -1: no limit (thinking.h) */
    bool think_given;     /* by the request */
    struct think_limit think;
    bool pin; /* job_desc's; no protocol's field */
    bool stream, include_usage, cache_prompt, return_tokens, return_progress, timings_per_token;
    int32_t sse_ping_s;
};

/* Sets every field, defaults from the server's options.  RC_ARG, RC_UNSUPPORTED, RC_NOMEM. */
NODISCARD enum rc params_read(const struct call *c, struct params *p, struct err *err);
void params_release(struct params *p);
/* Stop strings under another name than "stop". */
NODISCARD enum rc params_read_stop(const json_t *o, const char *key, struct params *p,
                                   struct err *err);
/* The token is not generated.  RC_NOMEM. */
NODISCARD enum rc params_forbid(struct params *p, token id, struct err *err);
/* Everything but the prompt. */
void params_to_job(const struct call *c, const struct params *p, struct job_desc *d);
/* llama-server's generation_settings: an object under key. */
void params_write(struct jwrite *w, const char *key, const struct params *p, uint64_t seed);

#endif
